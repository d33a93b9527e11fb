//! Records the calls and completions of a fabric: the last events of a bounded ring, one line each.
//!
//! ```text
//!       13 p2   post  send                                 l0     w4                     7 s-i#
//!       18 p2   done  read                RemoteAccess     l0     w5                     0 ----
//!       19 p1   done  receive             Success          l0     w4d                    7 ---#
//! ```
//! Columns: number, port, action, what, status, link, request (in hex), bytes, flags (`s`ignalled,
//! `f`enced, `i`nline, `#` immediate). Records have no time, so that equal runs give equal records.

use crate::{
    Fabric, FabricError, LinkEvent, Loss, Parts, PeerProcess, Port, PortSpec, Posted, Region,
    RegionSpec, Stop,
};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LinkId, Receive, ReceiveQueueId, RegionId,
    RegionToken, RemoteRegionId, Work, WorkId,
};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One recorded event; prints as one line of fixed columns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Events of this recorder before it, dropped ones included.
    pub sequence: u64,
    /// The port, numbered from 1 in the order of opening; 0 for the fabric itself.
    pub port: u32,
    /// The kind of event: `post`, `stop`, `recv`, `done`, `link`, `call`.
    pub action: &'static str,
    /// The operation, event, call or reason.
    pub what: &'static str,
    /// How a completion ended.
    pub status: Option<CompletionStatus>,
    /// The link, if it concerns one.
    pub link: Option<LinkId>,
    /// The request or receive, if it is about one.
    pub id: Option<WorkId>,
    /// Bytes requested or moved.
    pub bytes: u64,
    /// `s`, `f`, `i` and `#`, each in its column, or `-`.
    pub flags: [char; 4],
}

impl TraceEvent {
    const NO_FLAGS: [char; 4] = ['-'; 4];

    const fn new(action: &'static str, what: &'static str) -> Self {
        Self {
            sequence: 0,
            port: 0,
            action,
            what,
            status: None,
            link: None,
            id: None,
            bytes: 0,
            flags: Self::NO_FLAGS,
        }
    }

    fn on(self, link: LinkId) -> Self {
        Self { link: Some(link), ..self }
    }

    fn posted(work: &Work<'_>) -> Self {
        let parts = Parts::of(&work.operation);
        let flag = |on: bool, letter| if on { letter } else { '-' };
        Self {
            id: Some(work.id),
            bytes: parts.bytes(),
            flags: [
                flag(work.flags.signalled, 's'),
                flag(work.flags.fence, 'f'),
                flag(parts.inline.is_some(), 'i'),
                flag(parts.immediate.is_some(), '#'),
            ],
            ..Self::new("post", parts.name).on(work.link)
        }
    }

    fn done(done: &Completion) -> Self {
        let what = match done.kind {
            CompletionKind::Write => "write",
            CompletionKind::Read => "read",
            CompletionKind::Atomic => "atomic",
            CompletionKind::AtomicWrite => "atomic write",
            CompletionKind::Flush => "flush",
            CompletionKind::Send => "send",
            CompletionKind::Receive => "receive",
            CompletionKind::ReceiveImmediate => "receive immediate",
            _ => "other",
        };
        let mut flags = Self::NO_FLAGS;
        if done.immediate.is_some() {
            flags[3] = '#';
        }
        Self {
            status: Some(done.status),
            id: Some(done.id),
            bytes: u64::from(done.bytes),
            flags,
            ..Self::new("done", what).on(done.link)
        }
    }

    fn stopped(stop: Stop) -> Self {
        let what = match stop {
            Stop::QueueFull => "queue full",
            Stop::ReceiverNotReady => "receiver not ready",
            Stop::Invalid(what) => what,
        };
        Self::new("stop", what)
    }

    fn happened(event: &LinkEvent) -> Self {
        let (what, link, said) = match event {
            LinkEvent::Requested { link, hello } => ("requested", link, hello.len()),
            LinkEvent::Connected { link, reply } => ("connected", link, reply.len()),
            LinkEvent::Refused { link, reason } => ("refused", link, reason.len()),
            LinkEvent::NotReached { link, .. } => ("not reached", link, 0),
            LinkEvent::Lost { link, loss: Loss::Ended } => ("lost", link, 0),
            LinkEvent::Lost { link, .. } => ("out of reach", link, 0),
        };
        Self { bytes: said as u64, ..Self::new("link", what).on(*link) }
    }
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8} p{:<3} {:<5} {:<19}", self.sequence, self.port, self.action, self.what)?;
        match self.status {
            Some(status) => write!(f, " {:<16}", format!("{status:?}"))?,
            None => write!(f, " {:<16}", "")?,
        }
        match self.link {
            Some(link) => write!(f, " l{:<5}", link.0)?,
            None => write!(f, " {:<6}", "")?,
        }
        match self.id {
            Some(id) => write!(f, " w{:<12x}", id.0)?,
            None => write!(f, " {:<13}", "")?,
        }
        let [s, fence, i, immediate] = self.flags;
        write!(f, " {:>10} {s}{fence}{i}{immediate}", self.bytes)
    }
}

struct Ring {
    capacity: usize,
    events: VecDeque<TraceEvent>,
    sequence: u64,
}

/// Shared by a fabric and its ports.
struct Recorder(Mutex<Ring>);

impl Recorder {
    fn record(&self, port: u32, events: impl IntoIterator<Item = TraceEvent>) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            if ring.events.len() == ring.capacity {
                ring.events.pop_front();
            }
            let sequence = ring.sequence;
            ring.sequence += 1;
            ring.events.push_back(TraceEvent { sequence, port, ..event });
        }
    }
}

/// Wraps a fabric and records its calls and completions. Locks a mutex a call and formats nothing until
/// asked.
pub struct TraceFabric {
    inner: Arc<dyn Fabric>,
    recorder: Arc<Recorder>,
    ports: AtomicU32,
}

impl TraceFabric {
    /// Records the last `capacity` events (at least one) of `inner` through this fabric.
    pub fn new(inner: Arc<dyn Fabric>, capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let ring = Ring { capacity, events: VecDeque::with_capacity(capacity), sequence: 0 };
        Self { inner, recorder: Arc::new(Recorder(Mutex::new(ring))), ports: AtomicU32::new(0) }
    }

    /// Returns the recorded events, oldest first.
    pub fn events(&self) -> Vec<TraceEvent> {
        let ring = self.recorder.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.iter().copied().collect()
    }

    /// Drops the recorded events; numbers continue.
    pub fn clear(&self) {
        let mut ring = self.recorder.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.events.clear();
    }

    fn call(&self, what: &'static str, bytes: u64) {
        let event = TraceEvent { bytes, ..TraceEvent::new("call", what) };
        self.recorder.record(0, [event]);
    }
}

impl fmt::Debug for TraceFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceFabric({})", self.inner.name())
    }
}

impl Fabric for TraceFabric {
    crate::forward!(name, host, numa_node, lease_ns, time_ns, capabilities, register_memory);

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        self.call("register", spec.bytes);
        self.inner.register(spec)
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.call("deregister", 0);
        self.inner.deregister(region)
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        self.call("open", 0);
        Ok(Box::new(TracePort {
            inner: self.inner.open(spec)?,
            recorder: Arc::clone(&self.recorder),
            number: self.ports.fetch_add(1, Ordering::Relaxed) + 1,
        }))
    }
}

struct TracePort {
    inner: Box<dyn Port>,
    recorder: Arc<Recorder>,
    number: u32,
}

impl TracePort {
    fn record(&self, events: impl IntoIterator<Item = TraceEvent>) {
        self.recorder.record(self.number, events);
    }

    fn call(&self, what: &'static str, link: Option<LinkId>) {
        let event = TraceEvent { link, ..TraceEvent::new("call", what) };
        self.record([event]);
    }
}

impl Port for TracePort {
    crate::forward!(
        disarm,
        waiter,
        create_receive_queue,
        reach,
        path,
        address,
        destroy_receive_queue,
        trouble
    );

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let posted = self.inner.post(work);
        let taken = work[..posted.accepted].iter().map(TraceEvent::posted);
        // The request that was not taken lends its name to the reason.
        let refused = posted.stop.map(|stop| TraceEvent {
            id: work.get(posted.accepted).map(|request| request.id),
            link: work.get(posted.accepted).map(|request| request.link),
            ..TraceEvent::stopped(stop)
        });
        self.record(taken.chain(refused));
        posted
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        let posted = self.inner.post_receives(receives);
        let taken = receives[..posted.accepted].iter().map(|receive| TraceEvent {
            id: Some(receive.id),
            bytes: u64::from(receive.into.bytes),
            ..TraceEvent::new("recv", "receive")
        });
        self.record(taken.chain(posted.stop.map(TraceEvent::stopped)));
        posted
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = self.inner.poll(out);
        if count > 0 {
            self.record(out[..count].iter().map(TraceEvent::done));
        }
        count
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        let before = out.len();
        self.inner.link_events(out);
        if out.len() > before {
            self.record(out[before..].iter().map(TraceEvent::happened));
        }
    }

    fn arm(&mut self) -> bool {
        let something = self.inner.arm();
        self.call(if something { "arm: busy" } else { "arm" }, None);
        something
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        let link = self.inner.connect(to, hello, receives);
        self.call("connect", link.as_ref().ok().copied());
        link
    }

    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        self.call("accept", Some(link));
        self.inner.accept(link, reply, receives)
    }

    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        self.call("refuse", Some(link));
        self.inner.refuse(link, reason)
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        self.call("import", Some(link));
        self.inner.import(link, token)
    }

    fn try_import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<Option<RemoteRegionId>, FabricError> {
        self.call("try_import", Some(link));
        self.inner.try_import(link, token)
    }

    fn close(&mut self, link: LinkId) {
        self.call("close", Some(link));
        self.inner.close(link);
    }

    fn may_land(&mut self, link: LinkId) -> bool {
        self.inner.may_land(link)
    }

    fn peer_process(&self, link: LinkId) -> PeerProcess {
        self.inner.peer_process(link)
    }
}
