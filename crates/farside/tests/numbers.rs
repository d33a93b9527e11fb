//! Node numbers are reused, and an address of memory that is gone never names a later node's bytes.
//!
//! `FARSIDE_RUNS` sets how many nodes join and leave, or are killed, in the longest tests. The killed
//! processes run this executable again: one with `FARSIDE_TEST_CHILD` set joins the cluster of that name.

mod fabrics;

use fabrics::{Make, cluster, mem, shm};
use farside::{
    AllocationHint, AllocationSpec, Config, ErrorCode, GlobalAddress, Limits, Node, NodeId,
};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{Process, await_parent, role, say};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { mem shm tcp => (
    address_of_memory_that_is_gone_reads_no_later_bytes
    members_of_any_age_and_number_become_coordinator
    joiner_learns_how_many_members_there_can_be
)}

const WATCHDOG: Duration = Duration::from_secs(20);

fn tcp() -> Box<Make> {
    // The longest-lived nodes come first, or last.
    let known = Mutex::new(Vec::new());
    Box::new(move || {
        let mut known = known.lock().unwrap();
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let count = known.len();
        let some = known.iter().take(2).chain(known.iter().skip(count.max(4) - 2));
        let hosts = some.cloned().collect();
        let options = TcpOptions { listen, hosts, ..TcpOptions::default() };
        let fabric = TcpFabric::new(options).unwrap();
        known.push(fabric.listens_at().unwrap());
        Arc::new(fabric)
    })
}

/// Waits until a node knows that another one is no member any more.
fn wait_until_gone(node: &Node, other: NodeId) {
    let deadline = Instant::now() + WATCHDOG;
    while node.members().iter().any(|member| member.node == other && member.alive) {
        assert!(Instant::now() < deadline, "node {other} stays a member");
        std::thread::yield_now();
    }
}

fn named(fabric: &str) -> Box<Make> {
    if fabric == "tcp" { tcp() } else { fabrics::named(fabric) }
}

fn runs(default: u64) -> u64 {
    std::env::var("FARSIDE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn config(name: &str, nodes_max: u16) -> Config {
    let limits = Limits { nodes_max, ..Limits::DEFAULT };
    let name = format!("numbers-{name}-{}", std::process::id());
    Config::new(name).memory_bytes(1 << 20).cache_bytes(4 << 20).limits(limits)
}

fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

/// Checks that every use of an address of memory that is gone is refused.
fn check_gone(node: &Node, address: GlobalAddress, expected: ErrorCode) {
    let mut session = node.session().unwrap();
    let mut bytes = [0; 16];
    assert_eq!(code(session.read(address, &mut bytes)), expected, "{address}");
    let written = session.write(address, &[1; 16]).and_then(|()| session.fence());
    assert_eq!(code(written), expected, "{address}");
    assert_eq!(code(session.fetch_add(address, 1)), expected, "{address}");
    assert_eq!(code(session.lock_write(address, 8)), expected, "{address}");
    assert_eq!(code(session.free(address)), expected, "{address}");
    let hint = AllocationHint::Near(address);
    let spec = AllocationSpec::new(hint);
    assert_eq!(code(session.alloc_with(8, spec)), expected, "{address}");
    // Over two lines.
    assert_eq!(code(session.read(address, &mut [0; 1024])), expected, "{address}");
}

/// Short-lived nodes, with and without memory, while two others stay. With memory each leaves an address
/// behind.
fn short_nodes(make: &Make, name: &str, count: u64) {
    let config = config(name, 16);
    let nodes = cluster(make, &config, 2);
    let mut session = nodes[0].session().unwrap();
    let total = session.alloc(8).unwrap();
    let (mut numbers, mut addresses) = (BTreeSet::new(), Vec::new());
    for round in 0..count {
        // Each number has 1,024 generations of memory.
        let lends = round % 2 == 0 && round < 10_000;
        let memory_bytes = if lends { 1 << 20 } else { 0 };
        let short = Node::join_on(&config.clone().memory_bytes(memory_bytes), make()).unwrap();
        numbers.insert(short.id());
        let mut own = short.session().unwrap();
        own.fetch_add(total, 1).unwrap();
        if lends {
            let address = own.alloc_on(2048, short.id()).unwrap();
            own.write(address, &round.to_le_bytes()).unwrap();
            assert_eq!(session.read_u64(address), Ok(round));
            addresses.push(address);
        }
        let number = short.id();
        drop(own);
        short.leave().unwrap();
        wait_until_gone(&nodes[0], number);
        if let Some(last) = addresses.last() {
            check_gone(&nodes[0], *last, ErrorCode::NodeLeft);
        }
    }
    assert_eq!(session.read_u64(total), Ok(count));
    assert!(numbers.len() < 15, "{numbers:?}");
    let distinct: BTreeSet<u64> = addresses.iter().map(|address| address.to_bits()).collect();
    assert_eq!(distinct.len(), addresses.len(), "no address comes twice");
    let last = addresses.last().unwrap();
    wait_until_gone(&nodes[1], last.home());
    for address in addresses.iter().step_by(addresses.len() / 8 + 1) {
        check_gone(&nodes[0], *address, ErrorCode::NodeLeft);
        // This node has another memory of the number than those that it saw come and go.
        check_gone(&nodes[1], *address, ErrorCode::NodeLeft);
    }
}

#[test]
fn short_nodes_use_no_number_up_mem() {
    // More than the links that a port of this fabric has.
    short_nodes(&mem(), "short-mem", runs(1_100));
}

#[test]
fn short_nodes_use_no_number_up_shm() {
    short_nodes(&shm(), "short-shm", runs(100));
}

#[test]
fn short_nodes_use_no_number_up_tcp() {
    short_nodes(&tcp(), "short-tcp", runs(60));
}

/// The same number and offset, one memory after the other: neither reads the other's bytes.
fn address_of_memory_that_is_gone_reads_no_later_bytes(fabric: &str) {
    let (make, name) = (named(fabric), &format!("gone-{fabric}"));
    let config = config(name, 3);
    let nodes = cluster(&make, &config, 2);
    let mut gone: Vec<GlobalAddress> = Vec::new();
    for round in 0..4_u64 {
        let node = Node::join_on(&config, make()).unwrap();
        let mut own = node.session().unwrap();
        let address = own.alloc_on(2048, node.id()).unwrap();
        own.write(address, &[round as u8; 2048]).unwrap();
        let mut session = nodes[1].session().unwrap();
        let mut bytes = [0; 2048];
        session.read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [round as u8; 2048]);
        for former in &gone {
            assert_eq!((former.home(), former.offset()), (address.home(), address.offset()));
            check_gone(&nodes[1], *former, ErrorCode::NodeLeft);
            check_gone(&nodes[0], *former, ErrorCode::NodeLeft);
            // The node that has the number now was not a member then.
            check_gone(&node, *former, ErrorCode::NodeLost);
        }
        session.read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [round as u8; 2048]);
        gone.push(address);
        drop(own);
        node.leave().unwrap();
        nodes.iter().for_each(|node| wait_until_gone(node, address.home()));
    }
    let memory = gone[0].memory().node();
    let never = farside::MemoryId::new(memory, farside::Generation(900)).unwrap();
    let never = GlobalAddress::new_in(never, gone[0].line_size(), 0).unwrap();
    assert_eq!(code(nodes[0].session().unwrap().read_u64(never)), ErrorCode::ForeignAddress);
}

/// Joins as soon as the next coordinator is found.
fn join_when_taken_over(config: &Config, make: &Make) -> Node {
    let deadline = Instant::now() + WATCHDOG;
    loop {
        match Node::join_on(config, make()) {
            Err(error) if error.code == ErrorCode::NoSuchCluster && Instant::now() < deadline => {
                std::thread::yield_now();
            }
            joined => return joined.unwrap(),
        }
    }
}

/// The coordinator leaves, and later members have lower numbers.
fn members_of_any_age_and_number_become_coordinator(fabric: &str) {
    let (make, name) = (named(fabric), &format!("age-{fabric}"));
    let config = config(name, 4);
    let mut nodes: Vec<Node> = cluster(&make, &config, 3);
    for round in 0..runs(300) / 30 {
        nodes.remove(0).leave().unwrap();
        nodes.push(join_when_taken_over(&config, &make));
        let mut session = nodes[2].session().unwrap();
        let word = session.alloc_on(8, nodes[1].id()).unwrap();
        session.fetch_add(word, round).unwrap();
        assert_eq!(nodes[0].session().unwrap().read_u64(word), Ok(round));
    }
}

#[test]
fn full_cluster_names_its_limit() {
    let (make, config) = (mem(), config("full", 3));
    let nodes = cluster(&make, &config, 3);
    let error = Node::join_on(&config, make()).unwrap_err();
    assert_eq!(error.code, ErrorCode::ClusterFull);
    assert!(error.detail.contains("3 of 3 members"), "{error}");
    assert_eq!(nodes[0].members().len(), 3);
    assert_eq!(nodes[0].members_max(), 3);
}

fn joiner_learns_how_many_members_there_can_be(fabric: &str) {
    let (make, name) = (named(fabric), &format!("learn-{fabric}"));
    let founder = Node::create_on(&config(name, 5), make()).unwrap();
    let joiner = Node::join_on(&config(name, 128), make()).unwrap();
    assert_eq!((founder.members_max(), joiner.members_max()), (5, 5));
}

#[test]
fn impossible_number_of_nodes_is_refused() {
    for nodes_max in [0, 257, u16::MAX] {
        let error = Node::create_on(&config("impossible", nodes_max), mem()()).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadConfiguration);
        assert!(error.detail.contains("limits.nodes_max: 1 to 256"), "{error}");
    }
}

#[test]
fn impossible_number_of_writes_in_flight_is_refused() {
    for writes_in_flight_max in [0, 180] {
        let limits = farside::Limits { writes_in_flight_max, ..farside::Limits::DEFAULT };
        let error = Node::create_on(&config("writes", 2).limits(limits), mem()()).unwrap_err();
        assert_eq!(error.code, ErrorCode::BadConfiguration);
        assert!(error.detail.contains("limits.writes_in_flight_max: 1 to 179"), "{error}");
    }
}

/// The lines of a write wait for the same slot.
#[test]
fn one_write_in_flight_is_enough() {
    let limits = farside::Limits { writes_in_flight_max: 1, ..farside::Limits::DEFAULT };
    let (config, make) = (config("one-write", 2).limits(limits), mem());
    let node = Node::create_on(&config, make()).unwrap();
    let user = Node::join_on(&config, make()).unwrap();
    let mut session = user.session().unwrap();
    let at = session.alloc_on(1 << 16, node.id()).unwrap();
    session.write(at, &vec![1; 1 << 16]).unwrap();
    session.fence().unwrap();
    assert_eq!(session.read_u64(at).unwrap(), 0x0101_0101_0101_0101);
}

/// Not a test by itself: the other processes.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [cluster, host] = &role[..] else { panic!("{role:?}") };
    let fabric: Arc<dyn Fabric> = match host.as_str() {
        "" => Arc::new(ShmFabric::new().unwrap()),
        host => {
            let (listen, hosts) =
                (Some("127.0.0.1:0".parse().unwrap()), vec![host.parse().unwrap()]);
            Arc::new(TcpFabric::new(TcpOptions { listen, hosts, ..TcpOptions::default() }).unwrap())
        }
    };
    let limits = Limits { nodes_max: 4, ..Limits::DEFAULT };
    let config = Config::new(cluster).memory_bytes(1 << 20).cache_bytes(4 << 20).limits(limits);
    let node = Node::join_on(&config, fabric).unwrap();
    let mut session = node.session().unwrap();
    let address = session.alloc_on(2048, node.id()).unwrap();
    let own = u64::from(std::process::id());
    session.write(address, &own.to_le_bytes()).unwrap();
    say(&format!("address {}", address.to_bits()));
    await_parent();
}

fn kills_and_restarts(host: &str, make: &Make, name: &str, count: u64) {
    let config = config(name, 4);
    let nodes = cluster(make, &config, 2);
    let mut session = nodes[0].session().unwrap();
    let mut gone: Vec<GlobalAddress> = Vec::new();
    for _ in 0..count {
        let mut other = Process::child(&format!("{} {host}", config.cluster));
        let address = GlobalAddress::from_bits(other.hear("address ").parse().unwrap()).unwrap();
        assert_eq!(session.read_u64(address), Ok(u64::from(other.id())));
        for former in gone.iter().rev().take(3) {
            check_gone(&nodes[0], *former, ErrorCode::NodeLost);
        }
        drop(other);
        wait_until_gone(&nodes[0], address.home());
        check_gone(&nodes[0], address, ErrorCode::NodeLost);
        gone.push(address);
    }
    assert!(gone.iter().all(|address| address.home().0 < 4));
}

#[test]
fn killed_and_restarted_node_finds_a_number_shm() {
    kills_and_restarts("", &shm(), "kill-shm", runs(12));
}

#[test]
fn killed_and_restarted_node_finds_a_number_tcp() {
    let fabric = || {
        let listen = Some("127.0.0.1:0".parse().unwrap());
        TcpFabric::new(TcpOptions { listen, ..TcpOptions::default() }).unwrap()
    };
    let first = fabric();
    let host = first.listens_at().unwrap().to_string();
    let first = Mutex::new(Some(first));
    let at = host.clone();
    let make: Box<Make> = Box::new(move || match first.lock().unwrap().take() {
        Some(first) => Arc::new(first),
        None => {
            let (listen, hosts) = (Some("127.0.0.1:0".parse().unwrap()), vec![at.parse().unwrap()]);
            Arc::new(TcpFabric::new(TcpOptions { listen, hosts, ..TcpOptions::default() }).unwrap())
        }
    });
    kills_and_restarts(&host, &make, "kill-tcp", runs(6));
}
