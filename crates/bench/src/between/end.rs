//! Common part of both ends: a port with the control link and the measured link, and a poll that processes
//! completions. The inner loops of the tests call [`poll`](FabricEnd::poll) and read its counters.

use super::wire::{ControlMessage, MESSAGE_BYTES_MAX};
use farside_base::{
    Access, Capabilities, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice,
    Operation, Receive, ReceiveQueueId, RegionId, RegionKind, RegionToken, RemoteRegionId,
    RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_command::failure::Failure;
use farside_fabric::{
    Fabric, FabricError, LinkEvent, Loss, Port, PortSpec, Region, RegionSpec, Stop,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Receives of the control link, each in a slot of its region; one more slot, the last, is for sending.
const CONTROL_RECEIVES: u32 = 8;
/// Receives of the measured link, as many as perftest's receive depth.
const DATA_RECEIVES: u32 = 512;
/// Empty polls after which this thread yields and checks link events and the clock. If the other end needs this
/// processor, spinning on would only delay it.
const EMPTY_POLLS_MAX: u32 = 256;
/// The same over verbs, whose adapters need no processor to transfer data: about ten round trips of a guest.
/// There each of those calls takes as long as a round trip, so one slow request would make the next one slow
/// too; with fewer polls the typical READ took twice its time.
const EMPTY_POLLS_MAX_OF_VERBS: u32 = 65_536;
/// Empty polls after which waiting for a control message, which is not timed, sleeps.
const EMPTY_POLLS_BEFORE_SLEEP: u32 = 4096;
/// Completions of one poll.
const COMPLETIONS: usize = 32;
/// Alignment of the halves of the measured region.
const PAGE_BYTES: u64 = 4096;

/// Reason for which the serving end refuses a second client.
pub(super) const BUSY: &[u8] = b"it serves another client: try again later";

/// The measured link. Its region has two halves: a landing half for bytes from the other end, and a source half
/// for this end's requests.
pub(super) struct Data {
    pub(super) link: LinkId,
    /// The other end's region; 0 until it is imported.
    pub(super) remote: RemoteRegionId,
}

/// One end of a session.
pub(super) struct FabricEnd {
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
    messages: VecDeque<ControlMessage>,
    /// Pending link events.
    events: VecDeque<LinkEvent>,
    /// Messages received on the measured link since the last [`reset`](FabricEnd::reset).
    pub(super) arrived: u64,
    /// Requests of the measured link that have completed since the last [`reset`](FabricEnd::reset).
    pub(super) completed: u64,
    /// Receives of the measured link that are still to be posted.
    receives_missing: u32,
    out: [Completion; COMPLETIONS],
    empty_polls: u32,
    empty_polls_max: u32,
    /// Completions so far.
    completions: u64,
    /// `completions` at the last check for silence.
    completions_before: u64,
    progress_at: Instant,
    /// How long this end may wait without any completion.
    quiet_max: Duration,
    /// How peers may reach the measured region.
    access: Access,
}

pub(super) fn failed(what: &str) -> impl Fn(FabricError) -> Failure {
    move |error| Failure::system(format!("{what}: {error}"))
}

impl FabricEnd {
    /// Opens an end that listens at a name, or only connects.
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
        let empty_polls_max = match fabric.name() {
            "verbs" => EMPTY_POLLS_MAX_OF_VERBS,
            _ => EMPTY_POLLS_MAX,
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
            receives_missing: 0,
            out: [Completion::BLANK; COMPLETIONS],
            empty_polls: 0,
            empty_polls_max,
            completions: 0,
            completions_before: 0,
            progress_at: Instant::now(),
            quiet_max,
            access: Access::ALL.with(Access::RELAXED_ORDERING),
        })
    }

    /// Registers the measured regions of later sessions with strict ordering: words stay whole and bytes of a
    /// WRITE appear in order. By default they have relaxed ordering, as in perftest: the tests read their
    /// memory after a completion, or read its last byte only.
    pub(super) fn keep_order(&mut self) {
        self.access = Access::ALL;
    }

    /// Creates the receive queue of the control link of a new session and posts its receives.
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

    /// Registers memory for requests of up to `bytes_max` bytes; returns its token, and the receive queue of the
    /// measured link.
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
        // Page faults are not part of the figures.
        let zeroed = region.arena.zero(0, region.arena.len());
        self.region = Some(region);
        zeroed.map_err(|_| Failure::system("the region is shorter than registered"))?;
        let depth = DATA_RECEIVES as usize;
        let queue = self.port.create_receive_queue(depth).map_err(failed("receive queue"))?;
        self.data_queue = Some(queue);
        if self.capabilities.send {
            self.receives_missing = DATA_RECEIVES;
            self.post_missing_receives()?;
        }
        Ok((token, queue))
    }

    /// Closes both links and frees their queues, regions and messages.
    pub(super) fn clear(&mut self) {
        let links = [self.control_link.take(), self.data.take().map(|data| data.link)];
        for link in links.into_iter().flatten() {
            self.port.close(link);
        }
        // Discards completions of the closed links.
        for _ in 0..EMPTY_POLLS_MAX {
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
        self.receives_missing = 0;
        self.reset();
    }

    /// Sets the counters to zero.
    pub(super) fn reset(&mut self) {
        self.arrived = 0;
        self.completed = 0;
        self.progress();
    }

    /// Starts the time limit on silence again.
    fn progress(&mut self) {
        self.progress_at = Instant::now();
    }

    /// Polls the port once and processes the completions; returns their number. Every `empty_polls_max`
    /// empty polls it checks links and clock and yields.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<usize, Failure> {
        let count = self.port.poll(&mut self.out);
        if count == 0 {
            self.empty_polls += 1;
            if self.empty_polls.is_multiple_of(self.empty_polls_max) {
                self.check_and_yield()?;
            }
            std::hint::spin_loop();
            return Ok(0);
        }
        self.empty_polls = 0;
        self.completions += count as u64;
        for at in 0..count {
            let done = self.out[at];
            self.take(&done)?;
        }
        if self.receives_missing > 0 {
            self.post_missing_receives()?;
        }
        Ok(count)
    }

    #[inline]
    fn take(&mut self, done: &Completion) -> Result<(), Failure> {
        let measured = self.data.as_ref().is_some_and(|data| data.link == done.link);
        if !measured && self.control_link != Some(done.link) {
            // A completion of a closed link.
            return Ok(());
        }
        if done.status != CompletionStatus::Success {
            return Err(self.broken(done));
        }
        match done.kind {
            CompletionKind::Receive | CompletionKind::ReceiveImmediate if measured => {
                self.arrived += 1;
                self.receives_missing += 1;
            }
            CompletionKind::Receive | CompletionKind::ReceiveImmediate => {
                self.take_message(done)?
            }
            // Requests of a link complete in order, so this one completes all earlier ones.
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
            return Err(Failure::system("the other end sent too many control messages"));
        }
        self.messages.push_back(ControlMessage::decode(&bytes)?);
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

    /// Posts the missing receives of the measured link. All of them have the same buffer: the bytes of messages
    /// are not read.
    fn post_missing_receives(&mut self) -> Result<(), Failure> {
        let (Some(region), Some(queue)) = (&self.region, self.data_queue) else {
            return Ok(());
        };
        let bytes = u32::try_from(self.half_bytes).unwrap_or(u32::MAX);
        let into = LocalSlice { region: region.id, offset: 0, bytes };
        let list = [Receive { id: WorkId(0), queue, into }; COMPLETIONS];
        while self.receives_missing > 0 {
            let count = list.len().min(self.receives_missing as usize);
            let posted = self.port.post_receives(&list[..count]);
            self.receives_missing -= u32::try_from(posted.accepted).unwrap_or(u32::MAX);
            match posted.stop {
                None => {}
                Some(Stop::QueueFull) => break,
                Some(stop) => return Err(Failure::system(format!("receive: {stop:?}"))),
            }
        }
        Ok(())
    }

    /// Processes link events, checks the time limit on silence, and yields the processor.
    #[cold]
    fn check_and_yield(&mut self) -> Result<(), Failure> {
        self.take_events()?;
        if self.completions != self.completions_before {
            self.completions_before = self.completions;
            self.progress();
        } else if self.progress_at.elapsed() > self.quiet_max {
            let seconds = self.quiet_max.as_secs();
            return Err(Failure::system(format!("nothing from the other end for {seconds} s")));
        }
        std::thread::yield_now();
        Ok(())
    }

    /// Processes link events. While both links of the session are connected, it refuses other connection requests;
    /// requests after the loss of a link stay pending for the next session.
    ///
    /// # Errors
    /// The loss of a link of the session.
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
        self.with_cause(link, what.to_owned())
    }

    /// Returns why a request failed, as far as the fabric knows.
    fn broken(&mut self, done: &Completion) -> Failure {
        let gone = matches!(done.status, CompletionStatus::PeerLost | CompletionStatus::Flushed);
        if gone && let Err(lost) = self.take_events() {
            return lost;
        }
        let what = match done.status {
            CompletionStatus::PeerLost | CompletionStatus::Flushed => "the other end is gone",
            CompletionStatus::Unreachable => "the other end cannot be reached any more",
            _ => {
                return self.with_cause(done.link, format!("{:?}: {:?}", done.kind, done.status));
            }
        };
        self.with_cause(done.link, what.to_owned())
    }

    fn with_cause(&self, link: LinkId, what: String) -> Failure {
        match self.port.trouble(link) {
            Some(cause) => Failure::system(format!("{what}: {cause}")),
            None => Failure::system(what),
        }
    }

    /// Returns the next pending link event, if any.
    pub(super) fn event(&mut self) -> Result<Option<LinkEvent>, Failure> {
        if self.events.is_empty() {
            self.take_events()?;
        }
        Ok(self.events.pop_front())
    }

    /// Sleeps for up to 1 s unless something is pending. There is no limit on the other end's silence.
    pub(super) fn idle(&mut self) -> Result<(), Failure> {
        self.progress();
        self.take_events()?;
        self.sleep(Duration::from_secs(1));
        Ok(())
    }

    /// Sleeps until the port wakes or `timeout` has passed.
    pub(super) fn sleep(&mut self, timeout: Duration) {
        if !self.port.arm() {
            self.port.waiter().wait(Some(timeout));
        }
        self.port.disarm();
    }

    /// Returns a control message that has been received, if any.
    pub(super) fn message(&mut self) -> Option<ControlMessage> {
        self.messages.pop_front()
    }

    /// Waits for the next control message.
    ///
    /// # Errors
    /// Nothing from the other end for `quiet_max`, or the loss of a link.
    pub(super) fn next_message(&mut self) -> Result<ControlMessage, Failure> {
        self.progress();
        let mut empty_polls = 0;
        loop {
            if let Some(message) = self.message() {
                return Ok(message);
            }
            empty_polls = if self.poll()? > 0 { 0 } else { empty_polls + 1 };
            if empty_polls > EMPTY_POLLS_BEFORE_SLEEP {
                self.sleep(Duration::from_millis(100));
                self.check_and_yield()?;
            }
        }
    }

    /// Sends a control message.
    pub(super) fn send_message(&mut self, message: &ControlMessage) -> Result<(), Failure> {
        self.send_bytes(&message.encode())
    }

    /// Sends bytes on the control link.
    pub(super) fn send_bytes(&mut self, wire: &[u8]) -> Result<(), Failure> {
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

    /// Posts all requests, and polls while the queue is full.
    #[inline]
    pub(super) fn post(&mut self, work: &[Work<'_>]) -> Result<(), Failure> {
        let mut rest = work;
        loop {
            let posted = self.port.post(rest);
            rest = &rest[posted.accepted..];
            match posted.stop {
                _ if rest.is_empty() => return Ok(()),
                None | Some(Stop::QueueFull | Stop::ReceiverNotReady) => {
                    self.poll()?;
                }
                Some(Stop::Invalid(what)) => {
                    return Err(Failure::system(format!("the fabric refuses the request: {what}")));
                }
                Some(other) => return Err(Failure::system(format!("post: {other:?}"))),
            }
        }
    }

    /// Returns the most bytes of a request of this session.
    pub(super) fn half_bytes(&self) -> u64 {
        self.half_bytes
    }

    /// Returns the memory at both ends that requests of the measured link use.
    pub(super) fn memory(&self) -> Result<TransferMemory, Failure> {
        match (&self.data, &self.region) {
            (Some(data), Some(region)) => Ok(TransferMemory {
                link: data.link,
                region: region.id,
                remote: data.remote,
                half_bytes: self.half_bytes,
            }),
            _ => Err(Failure::system("no link to measure")),
        }
    }

    /// Returns the last of the first `bytes` bytes of the landing half.
    #[inline]
    pub(super) fn landed(&self, bytes: u32) -> u8 {
        let at = u64::from(bytes.max(1) - 1);
        let word = self.region.as_ref().map(|region| region.arena.load(at & !7, Ordering::Acquire));
        let byte = (at % 8) as usize;
        word.and_then(Result::ok).map_or(0, |word| word.to_ne_bytes()[byte])
    }

    /// Clears the byte that [`landed`](Self::landed) returns.
    pub(super) fn clear_landing(&self, bytes: u32) {
        if let Some(region) = &self.region {
            let _ = region.arena.write(u64::from(bytes.max(1) - 1), &[0]);
        }
    }

    /// Sets the last of the first `bytes` bytes of the source half.
    #[inline]
    pub(super) fn mark(&self, bytes: u32, mark: u8) {
        if let Some(region) = &self.region {
            let _ = region.arena.write(self.half_bytes + u64::from(bytes.max(1) - 1), &[mark]);
        }
    }
}

/// Memory at both ends that requests of the measured link use.
#[derive(Clone, Copy)]
pub(super) struct TransferMemory {
    pub(super) link: LinkId,
    region: RegionId,
    remote: RemoteRegionId,
    half_bytes: u64,
}

impl TransferMemory {
    /// Returns the source of this end's requests.
    pub(super) const fn source(&self, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region, offset: self.half_bytes, bytes }
    }

    /// Returns where results of READs and atomics land at this end.
    pub(super) const fn landing(&self, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region, offset: 0, bytes }
    }

    /// Returns where WRITEs land at the other end.
    pub(super) const fn remote_landing(&self) -> RemoteSlice {
        RemoteSlice { region: self.remote, offset: 0 }
    }

    /// Returns the source half of the other end.
    pub(super) const fn remote_source(&self) -> RemoteSlice {
        RemoteSlice { region: self.remote, offset: self.half_bytes }
    }

    /// Returns a signalled work request.
    pub(super) fn work<'a>(&self, number: u64, operation: Operation<'a>) -> Work<'a> {
        let flags = WorkFlags { signalled: true, fence: false, awaited: false };
        Work { id: WorkId(number), link: self.link, flags, operation }
    }
}
