//! An rkey granted to one link is refused on another link if there are memory windows. On this
//! machine's RDMA device, or in a guest; without one the test reports so and passes.

use super::VerbsPort;
use crate::{Options, VerbsFabric};
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::Security;
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use std::time::{Duration, Instant};

const WATCHDOG: Duration = Duration::from_secs(60);

struct TestPort {
    fabric: VerbsFabric,
    port: VerbsPort,
    queue: ReceiveQueueId,
    region: Region,
}

impl TestPort {
    #[allow(clippy::print_stdout, reason = "says what was skipped")]
    fn open(windows: bool) -> Option<Self> {
        let mut options = Options::new(Security::open());
        options.listen = Some("127.0.0.1:0".parse().expect("an endpoint"));
        options.lease = Duration::from_secs(3);
        options.memory_windows = windows;
        let fabric = match VerbsFabric::open(options) {
            Ok(fabric) => fabric,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let spec = PortSpec { listen: Some("end".to_owned()) };
        let mut port = VerbsPort::open(&fabric.control, &spec).expect("a port");
        let queue = port.create_receive_queue(16).expect("a queue");
        let spec = RegionSpec { bytes: 4096, access: Access::ALL, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        Some(Self { fabric, port, queue, region })
    }

    fn event(&mut self) -> LinkEvent {
        let (start, mut events) = (Instant::now(), Vec::new());
        while start.elapsed() < WATCHDOG {
            self.port.link_events(&mut events);
            if let Some(event) = events.pop() {
                assert!(events.is_empty(), "{events:?} before {event:?}");
                return event;
            }
            std::thread::yield_now();
        }
        panic!("no event");
    }

    /// Returns a link to another end, and its imported region.
    fn connect(&mut self, to: &mut Self) -> (LinkId, RemoteRegionId) {
        let address = to.port.address().expect("a listener");
        let link = self.port.connect(&address, b"", self.queue).expect("a link");
        let there = to.event().link();
        to.port.accept(there, b"", to.queue).expect("to be accepted");
        assert!(matches!(self.event(), LinkEvent::Connected { .. }));
        // The peer's port is not polled meanwhile.
        let region = self.port.import(link, &to.region.token).expect("a region");
        (link, region)
    }

    fn write(&mut self, (link, region): (LinkId, RemoteRegionId)) -> CompletionStatus {
        let slices = [LocalSlice { region: self.region.id, offset: 0, bytes: 8 }];
        let to = RemoteSlice { region, offset: 64 };
        let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        let posted = self.port.post(&[Work { id: WorkId(7), link, flags, operation }]);
        assert_eq!((posted.accepted, posted.stop), (1, None));
        let (start, mut out) = (Instant::now(), [Completion::BLANK]);
        while start.elapsed() < WATCHDOG {
            if self.port.poll(&mut out) > 0 {
                return out[0].status;
            }
            std::thread::yield_now();
        }
        panic!("no completion");
    }

    /// Uses the rkey of another node's region for an own import.
    fn steal(&mut self, own: RemoteRegionId, key: u32) {
        let own = self.port.remotes[own.0 as usize].as_mut();
        own.expect("a region").key = key;
    }

    fn key(&self, region: RemoteRegionId) -> u32 {
        self.port.remotes[region.0 as usize].expect("a region").key
    }
}

/// Returns how it completes when another process, and another link of the same, uses the rkey of a
/// link.
fn thefts(windows: bool) -> Option<(bool, [CompletionStatus; 2])> {
    let (mut near, mut far) = (TestPort::open(windows)?, TestPort::open(windows)?);
    let mut thief = TestPort::open(windows)?;
    let honest = near.connect(&mut far);
    let stolen = thief.connect(&mut far);
    let second = near.connect(&mut far);
    assert_eq!(near.write(honest), CompletionStatus::Success);
    let key = near.key(honest.1);
    thief.steal(stolen.1, key);
    let by_another = thief.write(stolen);
    assert_eq!(near.write(honest), CompletionStatus::Success, "others are undisturbed");
    near.steal(second.1, key);
    let by_the_same = near.write(second);
    assert_eq!(near.write(honest), CompletionStatus::Success, "others are undisturbed");
    Some((far.fabric.facts().trial.windows, [by_another, by_the_same]))
}

#[test]
#[allow(clippy::print_stdout, reason = "says what the device has")]
fn a_key_serves_on_the_link_that_it_was_given_to() {
    if let Some((windows, ends)) = thefts(true) {
        println!("memory windows: {windows}; thefts end as {ends:?}");
        let expected =
            if windows { CompletionStatus::RemoteAccess } else { CompletionStatus::Success };
        assert_eq!(ends, [expected; 2]);
    }
    // The theft is one: without windows it succeeds.
    if let Some((windows, ends)) = thefts(false) {
        assert_eq!((windows, ends), (false, [CompletionStatus::Success; 2]));
    }
}
