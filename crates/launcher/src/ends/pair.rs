//! Two ends of a link for measuring a fabric: a requester, and a responder that echoes messages.

use farside_base::{
    Access, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation, Receive,
    ReceiveQueueId, RegionId, RegionKind, RegionToken, RemoteRegionId, Source, Work, WorkFlags,
    WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use farside_command::failure::Failure;

/// Bytes of the measured region.
pub const REGION_BYTES: u64 = 4 << 20;
/// Receives that each end keeps posted, and bytes of each.
const RECEIVES: u64 = 16;
const RECEIVE_BYTES: u32 = 4096;
/// Offset of the receive buffers in the region; one-sided operations use the bytes before it.
const RECEIVES_AT: u64 = REGION_BYTES / 2;
/// How long a connection may take to be established.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How the other end waits for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Polls continuously.
    Awake,
    /// Sleeps whenever a poll returns nothing.
    Asleep,
}

/// One end of the link.
pub struct PairEnd {
    /// The port of the link.
    pub port: Box<dyn Port>,
    /// The link to the other end.
    pub link: LinkId,
    /// The measured region.
    pub region: Region,
    /// The other end's region.
    pub remote: RemoteRegionId,
    queue: ReceiveQueueId,
    /// Completions of the last poll. Reused, as programs do, instead of cleared for each poll.
    out: [Completion; 4],
}

fn failed(what: &str) -> impl Fn(farside_fabric::FabricError) -> Failure {
    move |error| Failure::system(format!("{what}: {error}"))
}

fn region(fabric: &dyn Fabric) -> Result<Region, Failure> {
    let spec = RegionSpec { bytes: REGION_BYTES, access: Access::ALL, kind: RegionKind::Memory };
    fabric.register(&spec).map_err(failed("region"))
}

fn receive(queue: ReceiveQueueId, region: RegionId, number: u64) -> Receive {
    Receive {
        id: WorkId(number),
        queue,
        into: LocalSlice {
            region,
            offset: RECEIVES_AT + number * u64::from(RECEIVE_BYTES),
            bytes: RECEIVE_BYTES,
        },
    }
}

fn receives(port: &mut dyn Port, region: &Region) -> Result<ReceiveQueueId, Failure> {
    let depth = usize::try_from(RECEIVES).unwrap_or(usize::MAX);
    let queue = port.create_receive_queue(depth).map_err(failed("receive queue"))?;
    let all: Vec<_> = (0..RECEIVES).map(|number| receive(queue, region.id, number)).collect();
    let posted = port.post_receives(&all);
    if posted.accepted < all.len() {
        return Err(Failure::system(format!("receives: {:?}", posted.stop)));
    }
    Ok(queue)
}

impl PairEnd {
    /// Connects to the other end and imports its region.
    pub fn connect(fabric: &dyn Fabric, to: &str) -> Result<Self, Failure> {
        let region = region(fabric)?;
        let mut port = fabric.open(&PortSpec::default()).map_err(failed("port"))?;
        let queue = receives(&mut *port, &region)?;
        let link = port.connect(to, &[], queue).map_err(failed("connect"))?;
        let token = loop {
            match next_event(&mut *port, CONNECT_TIMEOUT)? {
                Some(LinkEvent::Connected { reply, .. }) => break reply,
                Some(LinkEvent::Requested { .. }) => {}
                other => return Err(Failure::system(format!("no connection to {to}: {other:?}"))),
            }
        };
        let token = <&[u8; RegionToken::ENCODED]>::try_from(token.as_slice())
            .ok()
            .and_then(RegionToken::decode);
        let token = token.ok_or_else(|| Failure::system("the other end sent no region"))?;
        let remote = port.import(link, &token).map_err(failed("import"))?;
        let out = [Completion::BLANK; 4];
        let mut end = Self { port, link, region, remote, queue, out };
        end.warm_up()?;
        Ok(end)
    }

    /// Writes the measured region once, so that its pages are mapped.
    fn warm_up(&mut self) -> Result<(), Failure> {
        let zeroed = self.region.arena.zero(0, self.region.arena.len());
        zeroed.map_err(|_| Failure::system("the region is shorter than registered"))
    }

    /// Returns a signalled work request on the link.
    pub fn work<'a>(&self, operation: Operation<'a>) -> Work<'a> {
        Work {
            id: WorkId(u64::MAX),
            link: self.link,
            flags: WorkFlags { signalled: true, fence: false, awaited: false },
            operation,
        }
    }

    /// Posts work requests of which only the last is signalled, and polls for its completion.
    #[inline]
    pub fn complete(&mut self, work: &[Work<'_>]) -> Result<(), Failure> {
        let mut rest = work;
        while !rest.is_empty() {
            let posted = self.port.post(rest);
            if posted.accepted == 0 && !retries(posted.stop) {
                return Err(Failure::system(format!("post: {:?}", posted.stop)));
            }
            rest = &rest[posted.accepted..];
        }
        loop {
            let count = self.port.poll(&mut self.out);
            for completion in &self.out[..count] {
                if completion.status != CompletionStatus::Success {
                    return Err(Failure::system(format!("{completion:?}")));
                }
                if completion.kind != CompletionKind::Receive {
                    return Ok(());
                }
            }
        }
    }

    /// Sends `bytes` bytes and waits for the echo as `mode` says.
    pub fn round_trip(&mut self, bytes: u32, mode: Mode) -> Result<(), Failure> {
        let from = [LocalSlice { region: self.region.id, offset: 0, bytes }];
        let operation = Operation::Send { source: Source::Gather(&from), immediate: None };
        let mut work = self.work(operation);
        work.flags.signalled = false;
        let posted = self.port.post(&[work]);
        if posted.accepted == 0 {
            return Err(Failure::system(format!("send: {:?}", posted.stop)));
        }
        let mut out = [Completion::BLANK; 1];
        while self.port.poll(&mut out) == 0 {
            if mode == Mode::Asleep {
                sleep(&mut *self.port, None);
            }
        }
        let [completion] = out;
        if completion.status != CompletionStatus::Success || completion.bytes != bytes {
            return Err(Failure::system(format!("echo: {completion:?}")));
        }
        let again = receive(self.queue, self.region.id, completion.id.0);
        let posted = self.port.post_receives(&[again]);
        if posted.accepted == 1 {
            Ok(())
        } else {
            Err(Failure::system(format!("receive: {:?}", posted.stop)))
        }
    }
}

/// Serves one connection: calls `ready` when it listens, then echoes every message until the link is lost or
/// `stop` returns true.
pub fn serve(
    fabric: &dyn Fabric,
    listen: &str,
    mode: Mode,
    ready: impl FnOnce(),
    stop: impl Fn() -> bool,
) -> Result<(), Failure> {
    let region = region(fabric)?;
    let spec = PortSpec { listen: Some(listen.to_owned()) };
    let mut port = fabric.open(&spec).map_err(failed("port"))?;
    let queue = receives(&mut *port, &region)?;
    ready();
    let mut events = Vec::new();
    let mut out = [Completion::BLANK; 4];
    while !stop() {
        port.link_events(&mut events);
        for event in events.drain(..) {
            match event {
                LinkEvent::Requested { link, .. } => {
                    port.accept(link, &region.token.encode(), queue).map_err(failed("accept"))?;
                }
                LinkEvent::Lost { .. } => return Ok(()),
                _ => {}
            }
        }
        let count = port.poll(&mut out);
        for completion in &out[..count] {
            echo(&mut *port, &region, queue, completion)?;
        }
        if count == 0 && mode == Mode::Asleep {
            sleep(&mut *port, Some(Duration::from_secs(1)));
        }
    }
    Ok(())
}

/// Sends a received message back and posts its receive buffer again.
fn echo(
    port: &mut dyn Port,
    region: &Region,
    queue: ReceiveQueueId,
    received: &Completion,
) -> Result<(), Failure> {
    if received.kind != CompletionKind::Receive || received.status != CompletionStatus::Success {
        return Ok(());
    }
    let again = receive(queue, region.id, received.id.0);
    let mut buffer = [0; 64];
    let gathered = [LocalSlice { bytes: received.bytes, ..again.into }];
    // Short messages are sent inline, so their receive buffer is free at once.
    let short = buffer.get_mut(..usize::try_from(received.bytes).unwrap_or(usize::MAX));
    let inline = short.and_then(|bytes| {
        let copied = region.arena.read(again.into.offset, bytes);
        copied.ok().map(|()| &*bytes)
    });
    let source = inline.map_or(Source::Gather(&gathered), Source::Inline);
    let work = Work {
        id: WorkId(0),
        link: received.link,
        flags: WorkFlags::default(),
        operation: Operation::Send { source, immediate: None },
    };
    let posted = port.post(&[work]);
    let posted_again = port.post_receives(&[again]);
    match posted.stop.or(posted_again.stop) {
        None => Ok(()),
        Some(stop) => Err(Failure::system(format!("echo: {stop:?}"))),
    }
}

fn retries(stop: Option<farside_fabric::Stop>) -> bool {
    matches!(stop, Some(farside_fabric::Stop::QueueFull | farside_fabric::Stop::ReceiverNotReady))
}

/// Waits for the next event of a link; returns `None` after `timeout`.
fn next_event(port: &mut dyn Port, timeout: Duration) -> Result<Option<LinkEvent>, Failure> {
    let start = std::time::Instant::now();
    let mut events = Vec::new();
    while start.elapsed() < timeout {
        port.link_events(&mut events);
        if !events.is_empty() {
            return Ok(Some(events.remove(0)));
        }
        sleep(port, Some(Duration::from_millis(100)));
    }
    Ok(None)
}

fn sleep(port: &mut dyn Port, timeout: Option<Duration>) {
    if !port.arm() {
        port.waiter().wait(timeout);
    }
    port.disarm();
}
