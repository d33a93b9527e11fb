//! Two processes on this machine's RDMA device, of which one is killed: the other notices, its requests
//! end, and it continues with a third. In a guest with three nodes, one process in each. Without a
//! device the tests report so and pass.

mod common;

use common::skipped;
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, ReceiveQueueId,
    RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Fabric, LinkEvent, Loss, Port, PortSpec, Region, RegionSpec};
use farside_fabric_verbs::{Options, VerbsFabric};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The environment variable that makes this program serve.
const SERVES: &str = "FARSIDE_VERBS_SERVES";
/// The one that makes it call servers, at addresses with commas between.
const CALLS: &str = "FARSIDE_VERBS_CALLS";
/// The address at which it listens, unless on loopback.
const LISTENS: &str = "FARSIDE_VERBS_LISTENS";
/// Longer than everything that is waited for, on however slow a machine.
const WATCHDOG: Duration = Duration::from_secs(60);

struct ProcessNode {
    _fabric: VerbsFabric,
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    region: Region,
    events: Vec<LinkEvent>,
}

fn node(listens: bool) -> Option<ProcessNode> {
    let mut options = Options::new(Security::open());
    let place = std::env::var(LISTENS).unwrap_or_else(|_| "127.0.0.1:0".to_owned());
    let listen = listens.then(|| place.parse::<Endpoint>().expect("an endpoint"));
    options.listen = listen;
    let fabric = VerbsFabric::open(options).ok()?;
    let listen = listens.then(|| "served".to_owned());
    let mut port = fabric.open(&PortSpec { listen }).expect("a port");
    let queue = port.create_receive_queue(16).expect("a queue");
    let spec = RegionSpec { bytes: 4096, access: Access::ALL, kind: RegionKind::Memory };
    let region = fabric.register(&spec).expect("a region");
    Some(ProcessNode { _fabric: fabric, port, queue, region, events: Vec::new() })
}

impl ProcessNode {
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

    fn completion(&mut self) -> Completion {
        let (start, mut out) = (Instant::now(), [Completion::BLANK]);
        while self.port.poll(&mut out) == 0 {
            assert!(start.elapsed() < WATCHDOG, "no completion");
            std::thread::yield_now();
        }
        out[0]
    }

    fn write(&mut self, id: u64, link: LinkId, region: RemoteRegionId) {
        let slices = [LocalSlice { region: self.region.id, offset: 0, bytes: 8 }];
        let to = RemoteSlice { region, offset: 0 };
        let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        let posted = self.port.post(&[Work { id: WorkId(id), link, flags, operation }]);
        assert_eq!(posted.accepted, 1, "{posted:?}");
    }

    /// Returns a link to a server, and its region.
    fn connect(&mut self, address: &str) -> (LinkId, RemoteRegionId) {
        let link = self.port.connect(address, b"", self.queue).expect("a call");
        let start = Instant::now();
        let reply = match self.event() {
            LinkEvent::Connected { reply, .. } => reply,
            other => {
                let trouble = self.port.trouble(other.link());
                panic!(
                    "not connected to {address}: {other:?} after {:?}: {trouble:?}",
                    start.elapsed()
                );
            }
        };
        let token = reply.as_slice().try_into().ok().and_then(RegionToken::decode);
        let token = token.expect("a token as reply");
        (link, self.port.import(link, &token).expect("a region"))
    }
}

/// A server: accepts every peer until it is killed.
#[test]
#[allow(clippy::print_stdout, reason = "tells its parent where it is")]
fn serves() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let mut node = node(true).expect("the device that the parent has");
    println!("address={}", node.port.address().expect("a listener"));
    std::io::stdout().flush().expect("a parent that reads");
    loop {
        if let LinkEvent::Requested { link, .. } = node.event() {
            let token = node.region.token.encode();
            node.port.accept(link, &token, node.queue).expect("to accept");
        }
    }
}

fn server() -> (Child, String) {
    server_by(Command::new(std::env::current_exe().expect("this program")))
}

fn server_by(mut program: Command) -> (Child, String) {
    let mut child = program
        .args(["serves", "--exact", "--nocapture"])
        .env(SERVES, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a second process");
    let output = BufReader::new(child.stdout.take().expect("its output"));
    let mut lines = output.lines().map_while(Result::ok);
    let address = lines
        .find_map(|line| line.split_once("address=").map(|(_, address)| address.trim().to_owned()));
    (child, address.expect("the server to listen"))
}

/// A client: writes to its servers in rotation, while it is linked to all.
#[test]
#[allow(clippy::print_stdout, reason = "says how it went")]
fn calls() {
    let Ok(servers) = std::env::var(CALLS) else {
        return;
    };
    let mut node = node(false).expect("the device of this node");
    let links: Vec<_> = servers.split(',').map(|server| node.connect(server)).collect();
    for round in 0..200 {
        for (link, region) in &links {
            node.write(round, *link, *region);
            let done = node.completion();
            assert_eq!(done.status, CompletionStatus::Success, "{:?}", node.port.trouble(*link));
        }
    }
    println!("200 WRITEs each over {}", node.port.path(links[0].0));
}

/// Runs this program in a node of the guest.
fn in_node(number: u8) -> Command {
    let mut command = Command::new("on");
    command.arg(number.to_string()).arg(std::env::current_exe().expect("this program"));
    command.env(LISTENS, "0.0.0.0:0");
    command
}

#[test]
fn three_nodes_write_to_each_other() {
    let nodes = std::env::var("RDMA_NODES").ok().and_then(|nodes| nodes.parse().ok());
    if nodes.unwrap_or(0) < 3 {
        // Not the text of a guest that lacks what it should have: guests with one device run this file.
        let _ = writeln!(std::io::stdout(), "left out: no guest with three nodes");
        return;
    }
    for here in 1..=3 {
        let others = (1..=3).filter(|other| *other != here);
        let servers: Vec<_> = others.map(|other| server_by(in_node(other))).collect();
        let addresses: Vec<_> = servers.iter().map(|(_, address)| address.as_str()).collect();
        let called = in_node(here)
            .args(["calls", "--exact", "--nocapture"])
            .env(CALLS, addresses.join(","))
            .status();
        assert!(called.expect("a caller").success(), "from node {here}");
        for (mut child, _) in servers {
            child.kill().expect("to be killed");
            child.wait().expect("to have ended");
        }
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "says how long it took")]
fn a_peer_that_is_killed_ends_its_links_and_no_other() {
    let Some(mut node) = node(false) else {
        skipped("no RDMA device");
        return;
    };
    let ((mut dying, here), (mut living, there)) = (server(), server());
    let (link, region) = node.connect(&here);
    let (other, other_region) = node.connect(&there);
    for id in 0..50 {
        node.write(id, link, region);
        assert_eq!(node.completion().status, CompletionStatus::Success);
    }
    dying.kill().expect("to be killed");
    dying.wait().expect("to have ended");
    let start = Instant::now();
    node.write(100, link, region);
    node.write(101, link, region);
    let (first, second) = (node.completion(), node.completion());
    assert_eq!(first.id, WorkId(100));
    assert!(
        matches!(first.status, CompletionStatus::PeerLost | CompletionStatus::Unreachable),
        "{first:?}"
    );
    assert_eq!((second.id, second.status), (WorkId(101), CompletionStatus::Flushed));
    println!("after {:?}: {first:?}, {:?}", start.elapsed(), node.port.trouble(link));
    let event = node.event();
    assert_eq!(event, LinkEvent::Lost { link, loss: Loss::Ended });
    node.write(7, other, other_region);
    assert_eq!(node.completion().status, CompletionStatus::Success, "the other link");
    node.port.close(link);
    let (mut third, again) = server();
    let (link, region) = node.connect(&again);
    node.write(8, link, region);
    assert_eq!(node.completion().status, CompletionStatus::Success, "a new one");
    for child in [&mut living, &mut third] {
        child.kill().expect("to be killed");
        child.wait().expect("to have ended");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "says how long it took")]
fn a_peer_that_is_stopped_is_unreachable_after_the_lease() {
    let Some(mut node) = node(false) else {
        skipped("no RDMA device");
        return;
    };
    let ((mut stopped, here), (mut living, there)) = (server(), server());
    let (link, region) = node.connect(&here);
    let (other, other_region) = node.connect(&there);
    node.write(1, link, region);
    assert_eq!(node.completion().status, CompletionStatus::Success);
    let signal = |name: &str, child: &Child| {
        let sent = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(sent.expect("a `kill`").success());
    };
    signal("-STOP", &stopped);
    let start = Instant::now();
    // Its adapter may still answer, but its fabric is silent.
    let event = node.event();
    assert_eq!(event, LinkEvent::Lost { link, loss: Loss::Unreachable });
    println!("after {:?}: {:?}", start.elapsed(), node.port.trouble(link));
    assert!(node.port.trouble(link).is_some());
    node.write(2, link, region);
    assert_eq!(node.completion().status, CompletionStatus::Unreachable);
    node.write(3, link, region);
    assert_eq!(node.completion().status, CompletionStatus::Flushed);
    node.write(4, other, other_region);
    assert_eq!(node.completion().status, CompletionStatus::Success, "the other link");
    println!("after {:?}: the other link serves", start.elapsed());
    node.port.close(link);
    println!("after {:?}: the link is closed", start.elapsed());
    // It continues, and accepts a new link.
    signal("-CONT", &stopped);
    println!("after {:?}: it continues", start.elapsed());
    let (link, region) = node.connect(&here);
    node.write(5, link, region);
    assert_eq!(node.completion().status, CompletionStatus::Success);
    for child in [&mut living, &mut stopped] {
        child.kill().expect("to be killed");
        child.wait().expect("to have ended");
    }
}
