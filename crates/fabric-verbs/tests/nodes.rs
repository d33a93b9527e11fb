//! Two devices of a guest with nodes, in one process, and an outage of the path between them: shorter
//! than the lease, and longer. Needs a guest with `--nodes 2`; without one it reports so and passes.
//! The control streams use loopback, so that only the adapters notice the loss.

mod common;

use common::skipped;
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Fabric, LinkEvent, Loss, Port, PortSpec, Region, RegionSpec};
use farside_fabric_verbs::{Options, VerbsFabric};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longer than everything that is waited for, on however slow a machine.
const WATCHDOG: Duration = Duration::from_secs(60);
const LEASE: Duration = Duration::from_secs(1);

struct VerbsNode {
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    region: Region,
    events: Vec<LinkEvent>,
    _fabric: VerbsFabric,
}

impl VerbsNode {
    fn new(device: &str) -> Self {
        let mut options = Options::new(Security::open());
        options.device = Some(device.to_owned());
        options.listen = Some("127.0.0.1:0".parse::<Endpoint>().expect("an endpoint"));
        options.lease = LEASE;
        let fabric = VerbsFabric::open(options).expect("the device");
        let spec = PortSpec { listen: Some("node".to_owned()) };
        let mut port = fabric.open(&spec).expect("a port");
        let queue = port.create_receive_queue(16).expect("a queue");
        let spec = RegionSpec { bytes: 65_536, access: Access::ALL, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        Self { port, queue, region, events: Vec::new(), _fabric: fabric }
    }

    fn event(&mut self) -> LinkEvent {
        let start = Instant::now();
        // Several may come at once.
        while self.events.is_empty() {
            assert!(start.elapsed() < WATCHDOG, "no link event");
            self.port.link_events(&mut self.events);
            std::thread::yield_now();
        }
        self.events.remove(0)
    }

    fn write(&mut self, id: u64, link: LinkId, region: RemoteRegionId) {
        let slices = [LocalSlice { region: self.region.id, offset: 0, bytes: 4096 }];
        let to = RemoteSlice { region, offset: 0 };
        let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        let posted = self.port.post(&[Work { id: WorkId(id), link, flags, operation }]);
        assert_eq!(posted.accepted, 1, "{posted:?}");
    }

    fn completion(&mut self) -> Completion {
        let (start, mut out) = (Instant::now(), [Completion::BLANK]);
        while self.port.poll(&mut out) == 0 {
            assert!(start.elapsed() < WATCHDOG, "no completion");
            std::thread::yield_now();
        }
        out[0]
    }

    /// Returns how many WRITEs complete, one after the other, in that time.
    fn rate(&mut self, link: LinkId, region: RemoteRegionId, time: Duration) -> u64 {
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < time {
            self.write(1, link, region);
            assert_eq!(self.completion().status, CompletionStatus::Success);
            count += 1;
        }
        count
    }
}

fn connect(near: &mut VerbsNode, far: &mut VerbsNode) -> (LinkId, LinkId, RemoteRegionId) {
    let address = far.port.address().expect("a listener");
    let here = near.port.connect(&address, b"", near.queue).expect("a call");
    let LinkEvent::Requested { link: there, .. } = far.event() else { panic!("no request") };
    far.port.accept(there, b"", far.queue).expect("to accept");
    assert!(matches!(near.event(), LinkEvent::Connected { .. }));
    let region = near.port.import(here, &far.region.token).expect("a region");
    (here, there, region)
}

/// Passes or drops all packets of the first node. Not by taking its link down: the kernel takes up to a
/// second to use a link again, which is not the fabric's delay.
fn set_way(open: bool) -> bool {
    let loss = if open { "0%" } else { "100%" };
    // The names of the existing guests.
    let run = |(namespace, device): (&str, &str)| {
        let words = ["-n", namespace, "qdisc", "replace", "dev", device];
        let all = words.into_iter().chain(["root", "netem", "loss", loss]);
        let done = Command::new("tc").args(all).stderr(Stdio::null()).status();
        done.is_ok_and(|done| done.success())
    };
    [("node1", "eth0"), ("n1", "e1")].into_iter().any(run)
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was skipped, and what was seen")]
fn a_way_that_breaks_ends_links_after_the_lease_and_not_before() {
    let nodes = std::env::var("RDMA_NODES").or_else(|_| std::env::var("RXE_NODES"));
    if !nodes.is_ok_and(|nodes| nodes.parse().unwrap_or(0) >= 2) {
        skipped("no guest with nodes");
        return;
    }
    let (mut near, mut far) = (VerbsNode::new("rxe1"), VerbsNode::new("rxe2"));
    let (link, there, region) = connect(&mut near, &mut far);
    println!("{}", near.port.path(link));
    let before = near.rate(link, region, LEASE);
    if !set_way(false) {
        skipped("`tc` fails");
        return;
    }
    // A third of the lease: the request in flight completes soon after the path is back.
    near.write(2, link, region);
    let start = Instant::now();
    while start.elapsed() < LEASE / 3 {
        assert_eq!(near.port.poll(&mut [Completion::BLANK]), 0, "done without a way");
    }
    assert!(set_way(true));
    let back = Instant::now();
    let done = near.completion();
    let words = near.port.trouble(link);
    let expected = (WorkId(2), CompletionStatus::Success);
    assert_eq!((done.id, done.status), expected, "after {:?}: {words:?}", back.elapsed());
    let took = back.elapsed();
    let after = near.rate(link, region, LEASE);
    println!("done {took:?} after the way was back; {before} then {after} a second");
    // Longer than the lease.
    assert!(set_way(false));
    let start = Instant::now();
    near.write(3, link, region);
    let done = near.completion();
    println!("{:?} after {:?}: {:?}", done.status, start.elapsed(), near.port.trouble(link));
    assert_eq!((done.id, done.status), (WorkId(3), CompletionStatus::Unreachable));
    assert_eq!(near.event(), LinkEvent::Lost { link, loss: Loss::Unreachable });
    assert!(matches!(far.event(), LinkEvent::Lost { .. }));
    near.port.close(link);
    far.port.close(there);
    assert!(set_way(true));
    let (link, _, region) = connect(&mut near, &mut far);
    let again = near.rate(link, region, LEASE);
    println!("{again} a second on a new link, with the same regions");
}
