//! What both ends have: a port with the control link and the link that is measured, and one turn that
//! takes what has come. The hot loops of the tests call `turn` and look at its counters.

use super::wire::{MESSAGE_BYTES_MAX, Message};
use crate::failure::Failure;
use farside_base::{
    Access, Capabilities, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice,
    Operation, Receive, ReceiveQueueId, RegionId, RegionKind, RegionToken, RemoteRegionId,
    RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{
    Fabric, FabricError, LinkEvent, Loss, Port, PortSpec, Region, RegionSpec, Stop,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Receives of the control link, each in a slot of its region, and one slot to send from behind them.
const CONTROL_RECEIVES: u32 = 8;
/// Receives of the measured link, as many as perftest's receive depth.
const DATA_RECEIVES: u32 = 512;
/// Turns without anything after which this thread lets others run, looks at links and at the clock.
/// Where the other end needs this very processor, spinning on would only delay it.
const TURNS_ALONE: u32 = 256;
/// The same over verbs, whose adapters bring what is waited for without this processor: some ten round
/// trips of a guest. There each of those calls takes as long as a round trip, so where a slow one led
/// to them the next would be slow again; with less than that the typical READ took twice its time.
const TURNS_ALONE_OF_VERBS: u32 = 65_536;
/// Turns without anything after which a message that nobody times is slept for.
const TURNS_AWAKE: u32 = 4096;
/// Completions taken at once.
const COMPLETIONS: usize = 32;
/// Parts of the measured region begin at multiples of this.
const PAGE_BYTES: u64 = 4096;

/// Why the serving end refuses others.
pub(super) const BUSY: &[u8] = b"it measures with somebody else: try again when that is over";

/// The link that is measured. Its region has two halves: one where the other end's bytes land, and
/// one that requests are made of.
pub(super) struct Data {
    pub(super) link: LinkId,
    /// The other end's region; set once it is known.
    pub(super) remote: RemoteRegionId,
}

/// One end.
pub(super) struct End {
    pub(super) port: Box<dyn Port>,
    fabric: Arc<dyn Fabric>,
    pub(super) capabilities: Capabilities,
    control: Region,
    control_queue: Option<ReceiveQueueId>,
    pub(super) control_link: Option<LinkId>,
    pub(super) data: Option<Data>,
    region: Option<Region>,
    data_queue: Option<ReceiveQueueId>,
    half_bytes: u64,
    messages: VecDeque<Message>,
    /// Events that nobody has looked at.
    events: VecDeque<LinkEvent>,
    /// Messages that came on the measured link since the counters were reset.
    pub(super) arrived: u64,
    /// Requests of the measured link, since then, that have ended.
    pub(super) completed: u64,
    /// Receives that found no room.
    receives_owed: u32,
    out: [Completion; COMPLETIONS],
    turns_alone: u32,
    turns_alone_max: u32,
    /// Everything that ever came, for telling whether anything still does.
    heard: u64,
    heard_before: u64,
    heard_at: Instant,
    /// For how long nothing may come while this end waits for something.
    quiet_max: Duration,
    /// How peers may reach the measured region.
    access: Access,
}

pub(super) fn failed(what: &str) -> impl Fn(FabricError) -> Failure {
    move |error| Failure::system(format!("{what}: {error}"))
}

impl End {
    /// An end that listens at a name, or only connects.
    pub(super) fn open(
        fabric: Arc<dyn Fabric>,
        listen: Option<String>,
        quiet_max: Duration,
    ) -> Result<Self, Failure> {
        let port = fabric.open(&PortSpec { listen }).map_err(failed("port"))?;
        let bytes = u64::from((CONTROL_RECEIVES + 1) * MESSAGE_BYTES_MAX);
        let spec = RegionSpec { bytes, access: Access::NONE, kind: RegionKind::Memory };
        let control = fabric.register(&spec).map_err(failed("region"))?;
        let capabilities = fabric.capabilities();
        let turns_alone_max = match fabric.name() {
            "verbs" => TURNS_ALONE_OF_VERBS,
            _ => TURNS_ALONE,
        };
        Ok(Self {
            port,
            fabric,
            capabilities,
            control,
            control_queue: None,
            control_link: None,
            data: None,
            region: None,
            data_queue: None,
            half_bytes: 0,
            messages: VecDeque::new(),
            events: VecDeque::new(),
            arrived: 0,
            completed: 0,
            receives_owed: 0,
            out: [Completion::BLANK; COMPLETIONS],
            turns_alone: 0,
            turns_alone_max,
            heard: 0,
            heard_before: 0,
            heard_at: Instant::now(),
            quiet_max,
            access: Access::ALL.with(Access::RELAXED_ORDERING),
        })
    }

    /// From the next session on, the measured region keeps words whole and WRITEs in order. By default
    /// it does not, as perftest's: the tests look at their memory once it is known to be whole, or at
    /// its last byte alone.
    pub(super) fn keep_order(&mut self) {
        self.access = Access::ALL;
    }

    /// The receive queue of the control link of a new session.
    pub(super) fn prepare_control(&mut self) -> Result<ReceiveQueueId, Failure> {
        let depth = CONTROL_RECEIVES as usize;
        let queue = self.port.create_receive_queue(depth).map_err(failed("receive queue"))?;
        self.control_queue = Some(queue);
        for slot in 0..CONTROL_RECEIVES {
            self.receive_control(u64::from(slot))?;
        }
        self.progress();
        Ok(queue)
    }

    /// Memory for requests of up to `bytes_max` bytes: what a peer needs to reach it, and the receive
    /// queue of the measured link.
    pub(super) fn prepare(
        &mut self,
        bytes_max: u32,
    ) -> Result<(RegionToken, ReceiveQueueId), Failure> {
        self.half_bytes = u64::from(bytes_max.max(1)).next_multiple_of(PAGE_BYTES);
        let spec = RegionSpec {
            bytes: 2 * self.half_bytes,
            access: self.access,
            kind: RegionKind::Memory,
        };
        let region = self.fabric.register(&spec).map_err(failed("region"))?;
        let token = region.token;
        // The first touch of a page is not what is measured.
        let zeroed = region.arena.zero(0, region.arena.len());
        self.region = Some(region);
        zeroed.map_err(|_| Failure::system("the region is shorter than registered"))?;
        let depth = DATA_RECEIVES as usize;
        let queue = self.port.create_receive_queue(depth).map_err(failed("receive queue"))?;
        self.data_queue = Some(queue);
        if self.capabilities.send {
            self.receives_owed = DATA_RECEIVES;
            self.pay_receives()?;
        }
        Ok((token, queue))
    }

    /// Closes both links and ends what belongs to them.
    pub(super) fn clear(&mut self) {
        let links = [self.control_link.take(), self.data.take().map(|data| data.link)];
        for link in links.into_iter().flatten() {
            self.port.close(link);
        }
        // What the links still had to say, so that the next session does not hear it.
        for _ in 0..TURNS_ALONE {
            if self.port.poll(&mut self.out) == 0 {
                break;
            }
        }
        for queue in [self.control_queue.take(), self.data_queue.take()].into_iter().flatten() {
            let _ = self.port.destroy_receive_queue(queue);
        }
        if let Some(region) = self.region.take() {
            let _ = self.fabric.deregister(region.id);
        }
        self.messages.clear();
        self.receives_owed = 0;
        self.reset();
    }

    /// Counts from zero again.
    pub(super) fn reset(&mut self) {
        self.arrived = 0;
        self.completed = 0;
        self.progress();
    }

    /// Whoever waits has just got on.
    fn progress(&mut self) {
        self.heard_at = Instant::now();
    }

    /// Takes what has come; how much. Looks at links, clock and other threads now and then.
    #[inline]
    pub(super) fn turn(&mut self) -> Result<usize, Failure> {
        let count = self.port.poll(&mut self.out);
        if count == 0 {
            self.turns_alone += 1;
            if self.turns_alone.is_multiple_of(self.turns_alone_max) {
                self.look_around()?;
            }
            std::hint::spin_loop();
            return Ok(0);
        }
        self.turns_alone = 0;
        self.heard += count as u64;
        for at in 0..count {
            let done = self.out[at];
            self.take(&done)?;
        }
        if self.receives_owed > 0 {
            self.pay_receives()?;
        }
        Ok(count)
    }

    #[inline]
    fn take(&mut self, done: &Completion) -> Result<(), Failure> {
        let measured = self.data.as_ref().is_some_and(|data| data.link == done.link);
        if !measured && self.control_link != Some(done.link) {
            // The end of a link that is closed already.
            return Ok(());
        }
        if done.status != CompletionStatus::Success {
            return Err(self.broken(done));
        }
        match done.kind {
            CompletionKind::Receive | CompletionKind::ReceiveImmediate if measured => {
                self.arrived += 1;
                self.receives_owed += 1;
            }
            CompletionKind::Receive | CompletionKind::ReceiveImmediate => {
                self.take_message(done)?
            }
            // Requests of a link end in their order, so this one tells of all before it.
            _ if measured => self.completed = done.id.0 + 1,
            _ => {}
        }
        Ok(())
    }

    fn take_message(&mut self, done: &Completion) -> Result<(), Failure> {
        let mut bytes = vec![0; done.bytes.min(MESSAGE_BYTES_MAX) as usize];
        let read = self.control.arena.read(done.id.0 * u64::from(MESSAGE_BYTES_MAX), &mut bytes);
        self.receive_control(done.id.0)?;
        read.map_err(|_| Failure::system("a receive that was never posted"))?;
        if self.messages.len() >= CONTROL_RECEIVES as usize {
            return Err(Failure::system("the other end says more than was asked"));
        }
        self.messages.push_back(Message::decode(&bytes)?);
        Ok(())
    }

    fn receive_control(&mut self, slot: u64) -> Result<(), Failure> {
        let bytes = MESSAGE_BYTES_MAX;
        let offset = slot * u64::from(bytes);
        let into = LocalSlice { region: self.control.id, offset, bytes };
        let Some(queue) = self.control_queue else { return Ok(()) };
        let receive = Receive { id: WorkId(slot), queue, into };
        let posted = self.port.post_receives(&[receive]);
        match posted.stop {
            None => Ok(()),
            Some(stop) => Err(Failure::system(format!("receive: {stop:?}"))),
        }
    }

    /// Posts the receives that are owed to the measured link, all into the same place: nobody looks
    /// at the bytes of messages.
    fn pay_receives(&mut self) -> Result<(), Failure> {
        let (Some(region), Some(queue)) = (&self.region, self.data_queue) else {
            return Ok(());
        };
        let bytes = u32::try_from(self.half_bytes).unwrap_or(u32::MAX);
        let into = LocalSlice { region: region.id, offset: 0, bytes };
        let list = [Receive { id: WorkId(0), queue, into }; COMPLETIONS];
        while self.receives_owed > 0 {
            let count = list.len().min(self.receives_owed as usize);
            let posted = self.port.post_receives(&list[..count]);
            self.receives_owed -= u32::try_from(posted.accepted).unwrap_or(u32::MAX);
            match posted.stop {
                None => {}
                Some(Stop::QueueFull) => break,
                Some(stop) => return Err(Failure::system(format!("receive: {stop:?}"))),
            }
        }
        Ok(())
    }

    #[cold]
    fn look_around(&mut self) -> Result<(), Failure> {
        self.take_events()?;
        if self.heard != self.heard_before {
            self.heard_before = self.heard;
            self.progress();
        } else if self.heard_at.elapsed() > self.quiet_max {
            let seconds = self.quiet_max.as_secs();
            return Err(Failure::system(format!("the other end has said nothing for {seconds} s")));
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Takes events of links: the loss of one of this session's is a failure, and while both are
    /// there nobody else is let in. Whoever asks after the loss is left to the next session.
    fn take_events(&mut self) -> Result<(), Failure> {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        let measured = self.data.as_ref().map(|data| data.link);
        let mut lost = None;
        for event in events {
            let link = event.link();
            match event {
                LinkEvent::Requested { .. } if measured.is_some() && lost.is_none() => {
                    let _ = self.port.refuse(link, BUSY);
                }
                LinkEvent::Lost { loss, .. }
                    if [self.control_link, measured].contains(&Some(link)) =>
                {
                    lost.get_or_insert((link, loss));
                }
                other => self.events.push_back(other),
            }
        }
        lost.map_or(Ok(()), |(link, loss)| Err(self.lost(link, loss)))
    }

    fn lost(&self, link: LinkId, loss: Loss) -> Failure {
        let what = match loss {
            Loss::Ended => "the other end is gone",
            _ => "the other end cannot be reached any more",
        };
        self.with_trouble(link, what.to_owned())
    }

    /// A request failed: why, as far as the fabric knows.
    fn broken(&mut self, done: &Completion) -> Failure {
        let gone = matches!(done.status, CompletionStatus::PeerLost | CompletionStatus::Flushed);
        if gone && let Err(lost) = self.take_events() {
            return lost;
        }
        let what = match done.status {
            CompletionStatus::PeerLost | CompletionStatus::Flushed => "the other end is gone",
            CompletionStatus::Unreachable => "the other end cannot be reached any more",
            _ => {
                return self.with_trouble(done.link, format!("{:?}: {:?}", done.kind, done.status));
            }
        };
        self.with_trouble(done.link, what.to_owned())
    }

    fn with_trouble(&self, link: LinkId, what: String) -> Failure {
        match self.port.trouble(link) {
            Some(trouble) => Failure::system(format!("{what}: {trouble}")),
            None => Failure::system(what),
        }
    }

    /// The next event of a link, if there is one now.
    pub(super) fn event(&mut self) -> Result<Option<LinkEvent>, Failure> {
        if self.events.is_empty() {
            self.take_events()?;
        }
        Ok(self.events.pop_front())
    }

    /// Sleeps for a while unless something is here; the other end may be quiet as long as it likes.
    pub(super) fn idle(&mut self) -> Result<(), Failure> {
        self.progress();
        self.take_events()?;
        self.sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Sleeps until something may have come.
    pub(super) fn sleep(&mut self, timeout: Duration) {
        if !self.port.arm() {
            self.port.waiter().wait(Some(timeout));
        }
        self.port.disarm();
    }

    /// A control message that has come already.
    pub(super) fn message(&mut self) -> Option<Message> {
        self.messages.pop_front()
    }

    /// The next control message, waited for as long as the other end may be quiet.
    pub(super) fn next_message(&mut self) -> Result<Message, Failure> {
        self.progress();
        let mut turns = 0;
        loop {
            if let Some(message) = self.message() {
                return Ok(message);
            }
            turns = if self.turn()? > 0 { 0 } else { turns + 1 };
            if turns > TURNS_AWAKE {
                self.sleep(Duration::from_millis(100));
                self.look_around()?;
            }
        }
    }

    /// Sends a control message.
    pub(super) fn tell(&mut self, message: &Message) -> Result<(), Failure> {
        self.say(&message.encode())
    }

    /// Sends bytes on the control link.
    pub(super) fn say(&mut self, wire: &[u8]) -> Result<(), Failure> {
        let link = self.control_link.ok_or_else(|| Failure::system("no control link"))?;
        let offset = u64::from(CONTROL_RECEIVES * MESSAGE_BYTES_MAX);
        let written = self.control.arena.write(offset, wire);
        written.map_err(|_| Failure::system("a control message that is too long"))?;
        let bytes = u32::try_from(wire.len()).unwrap_or(u32::MAX);
        let slices = [LocalSlice { region: self.control.id, offset, bytes }];
        let source = Source::Gather(&slices);
        self.post(&[Work {
            id: WorkId(0),
            link,
            flags: WorkFlags { signalled: true, ..WorkFlags::default() },
            operation: Operation::Send { source, immediate: None },
        }])
    }

    /// Posts requests, all of them, taking what comes meanwhile.
    #[inline]
    pub(super) fn post(&mut self, work: &[Work<'_>]) -> Result<(), Failure> {
        let mut rest = work;
        loop {
            let posted = self.port.post(rest);
            rest = &rest[posted.accepted..];
            match posted.stop {
                _ if rest.is_empty() => return Ok(()),
                None | Some(Stop::QueueFull | Stop::ReceiverNotReady) => {
                    self.turn()?;
                }
                Some(Stop::Invalid(what)) => {
                    return Err(Failure::system(format!("the fabric refuses the request: {what}")));
                }
                Some(other) => return Err(Failure::system(format!("post: {other:?}"))),
            }
        }
    }

    /// Most bytes of a request of this session.
    pub(super) fn half_bytes(&self) -> u64 {
        self.half_bytes
    }

    /// The place of the measured link's requests.
    pub(super) fn place(&self) -> Result<Place, Failure> {
        match (&self.data, &self.region) {
            (Some(data), Some(region)) => Ok(Place {
                link: data.link,
                region: region.id,
                remote: data.remote,
                half_bytes: self.half_bytes,
            }),
            _ => Err(Failure::system("no link to measure")),
        }
    }

    /// The last byte of `bytes` where the other end's bytes land.
    #[inline]
    pub(super) fn landed(&self, bytes: u32) -> u8 {
        let at = u64::from(bytes.max(1) - 1);
        let word = self.region.as_ref().map(|region| region.arena.load(at & !7, Ordering::Acquire));
        let byte = (at % 8) as usize;
        word.and_then(Result::ok).map_or(0, |word| word.to_ne_bytes()[byte])
    }

    /// Forgets what landed.
    pub(super) fn wipe(&self, bytes: u32) {
        if let Some(region) = &self.region {
            let _ = region.arena.write(u64::from(bytes.max(1) - 1), &[0]);
        }
    }

    /// Sets the last byte of `bytes` of what requests are made of.
    #[inline]
    pub(super) fn mark(&self, bytes: u32, mark: u8) {
        if let Some(region) = &self.region {
            let _ = region.arena.write(self.half_bytes + u64::from(bytes.max(1) - 1), &[mark]);
        }
    }
}

/// Where requests of the measured link come from and go to.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) link: LinkId,
    region: RegionId,
    remote: RemoteRegionId,
    half_bytes: u64,
}

impl Place {
    /// Bytes that requests are made of.
    pub(super) const fn source(&self, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region, offset: self.half_bytes, bytes }
    }

    /// Where what is fetched lands here.
    pub(super) const fn landing(&self, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region, offset: 0, bytes }
    }

    /// Where bytes land at the other end.
    pub(super) const fn there(&self) -> RemoteSlice {
        RemoteSlice { region: self.remote, offset: 0 }
    }

    /// What the other end's requests are made of.
    pub(super) const fn source_there(&self) -> RemoteSlice {
        RemoteSlice { region: self.remote, offset: self.half_bytes }
    }

    /// A signalled request.
    pub(super) fn work<'a>(&self, number: u64, operation: Operation<'a>) -> Work<'a> {
        let flags = WorkFlags { signalled: true, fence: false, awaited: false };
        Work { id: WorkId(number), link: self.link, flags, operation }
    }
}
