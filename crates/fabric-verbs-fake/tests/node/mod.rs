//! Two fabrics over the fake library, and helpers of their tests.

#![allow(dead_code, reason = "each test program uses a part")]

use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use farside_fabric_verbs::{Options, VerbsFabric};
use farside_fabric_verbs_fake::Fake;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longer than everything that is waited for, on however slow a machine.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(60);
pub(crate) const LEASE: Duration = Duration::from_millis(200);

/// Locks the fake device in its initial state: its script is shared by the whole process.
pub(crate) fn alone() -> (MutexGuard<'static, ()>, Fake) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let fake = Fake::open(&Fake::path().expect("the library")).expect("a library");
    fake.reset();
    // The control threads of the test before this one deregister a little later than it ends.
    let start = Instant::now();
    while fake.registered(0) > 0 {
        assert!(start.elapsed() < WATCHDOG, "{} regions of another test", fake.registered(0));
        std::thread::yield_now();
    }
    (one, fake)
}

pub(crate) fn options() -> Options {
    let mut options = Options::new(Security::open());
    options.library = Fake::path().expect("the library").to_string_lossy().into_owned();
    options.listen = Some("127.0.0.1:0".parse::<Endpoint>().expect("an endpoint"));
    options.lease = LEASE;
    options.patience = LEASE * 2;
    options.memory_windows = true;
    options
}

pub(crate) struct FakeNode {
    pub(crate) fabric: VerbsFabric,
    pub(crate) port: Box<dyn Port>,
    pub(crate) queue: ReceiveQueueId,
    pub(crate) region: Region,
    pub(crate) events: Vec<LinkEvent>,
    pub(crate) done: Vec<Completion>,
}

impl FakeNode {
    pub(crate) fn new(name: &str) -> Self {
        Self::with(name, options())
    }

    pub(crate) fn with(name: &str, options: Options) -> Self {
        let fabric = VerbsFabric::open(options).expect("the fake device");
        let spec = PortSpec { listen: Some(name.to_owned()) };
        let mut port = fabric.open(&spec).expect("a port");
        let queue = port.create_receive_queue(16).expect("a queue");
        let spec = RegionSpec { bytes: 4096, access: Access::ALL, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        Self { fabric, port, queue, region, events: Vec::new(), done: Vec::new() }
    }

    pub(crate) fn poll(&mut self) {
        self.port.link_events(&mut self.events);
        let mut out = [Completion::BLANK; 8];
        let count = self.port.poll(&mut out);
        self.done.extend(&out[..count]);
    }

    pub(crate) fn write(&mut self, id: u64, link: LinkId, to: RemoteRegionId) {
        let slice = LocalSlice { region: self.region.id, offset: 0, bytes: 8 };
        let slices = [slice];
        let to = RemoteSlice { region: to, offset: 64 };
        let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        self.post(id, link, operation);
    }

    pub(crate) fn post(&mut self, id: u64, link: LinkId, operation: Operation<'_>) {
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        let posted = self.port.post(&[Work { id: WorkId(id), link, flags, operation }]);
        assert_eq!((posted.accepted, posted.stop), (1, None));
    }
}

pub(crate) fn until<T>(
    what: &str,
    nodes: [&mut FakeNode; 2],
    ready: impl Fn(&mut FakeNode, &mut FakeNode) -> Option<T>,
) -> T {
    let start = Instant::now();
    let [one, other] = nodes;
    while start.elapsed() < WATCHDOG {
        one.poll();
        other.poll();
        if let Some(value) = ready(one, other) {
            return value;
        }
        std::thread::yield_now();
    }
    panic!("timed out waiting for {what}");
}

/// Returns the next completion of the first node.
pub(crate) fn completion(nodes: [&mut FakeNode; 2]) -> Completion {
    until("a completion", nodes, |one, _| (!one.done.is_empty()).then(|| one.done.remove(0)))
}

/// Returns a link from the first node to the second: its number at either, and the second's region.
pub(crate) fn connect(
    one: &mut FakeNode,
    other: &mut FakeNode,
) -> (LinkId, LinkId, RemoteRegionId) {
    let address = other.port.address().expect("a listener");
    let here = one.port.connect(&address, b"", one.queue).expect("a link");
    let there = until("a request", [one, other], |_, other| match other.events.pop()? {
        LinkEvent::Requested { link, .. } => Some(link),
        event => panic!("{event:?}"),
    });
    other.port.accept(there, b"", other.queue).expect("to be accepted");
    until("a link", [one, other], |one, _| match one.events.pop()? {
        LinkEvent::Connected { link, .. } if link == here => Some(()),
        event => panic!("{event:?}"),
    });
    let region = one.port.import(here, &other.region.token).expect("a region");
    (here, there, region)
}

pub(crate) fn works(
    one: &mut FakeNode,
    other: &mut FakeNode,
    link: LinkId,
    region: RemoteRegionId,
) {
    one.write(77, link, region);
    let done = completion([one, other]);
    assert_eq!((done.id, done.status), (WorkId(77), CompletionStatus::Success));
}
