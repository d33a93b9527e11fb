//! Two nodes and a witness over TCP on the loopback, with real processes and signals: the cluster continues without any
//! one of the three. The contrast, two nodes alone, is `process_survivor_of_two_reports_a_remedy_and_joins_again`.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, WATCHDOG, failure, name, output, text};
use farside::{Config, ErrorCode, GlobalAddress, Node, NodeId, Session};
use farside_fabric::Fabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use rustix::process::Signal;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Half of it is the fabric's lease.
const LEASE: &str = "1";

/// Two nodes that lend memory, in the order of their admission, and a witness.
struct Trio {
    cluster: String,
    nodes: [Running; 2],
    join: String,
    witness: Running,
}

fn options<'a>(cluster: &'a str, join: &'a str) -> Vec<&'a str> {
    let own = ["--listen", "127.0.0.1:0", "--cluster", cluster, "--lease", LEASE, "--rejoin=false"];
    match join.is_empty() {
        true => own.to_vec(),
        false => [&own[..], &["--join", join]].concat(),
    }
}

fn start_witness(cluster: &str, join: &str) -> Running {
    Running::start(&[], &[&["--json", "witness"], &options(cluster, join)[..]].concat())
}

impl Trio {
    fn start() -> Self {
        let cluster = name();
        let mut first = Running::node(&[], &options(&cluster, ""));
        let (_, founder) = first.started();
        let mut second = Running::node(&[], &options(&cluster, &founder));
        let (number, address) = second.started();
        assert_eq!(number, 1);
        let join = format!("{founder},{address}");
        let mut witness = start_witness(&cluster, &join);
        let started = witness.event("started");
        let said = (&started["node"], &started["witness"], &started["memory_bytes"]);
        assert_eq!(said, (&2.into(), &true.into(), &0.into()));
        for node in [&mut first, &mut second] {
            node.event_of("member_joined", 2);
        }
        Self { cluster, nodes: [first, second], join, witness }
    }

    /// Opens a node without memory and without a vote, in this process.
    fn program(&self) -> Node {
        let config = Config::new(self.cluster.clone()).memory_bytes(0).cache_bytes(1 << 20);
        Node::join_on(&config, tcp(&self.join)).unwrap()
    }
}

/// TCP as of another process, which finds a cluster at these hosts.
fn tcp(join: &str) -> Arc<dyn Fabric> {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let hosts = join.split(',').map(|host| host.parse().unwrap()).collect();
    let lease = Duration::from_millis(250);
    Arc::new(TcpFabric::new(TcpOptions { listen, hosts, lease, ..TcpOptions::default() }).unwrap())
}

/// Writes and reads memory of a home, also what is not cached.
fn use_memory(program: &Node, session: &mut Session, word: GlobalAddress, value: u64) {
    session.write_u64(word, value).unwrap();
    session.fence().unwrap();
    program.evict_all();
    assert_eq!(session.fetch_add(word, 1).unwrap(), value);
    assert_eq!(session.read_u64(word).unwrap(), value + 1);
}

/// Stops one data node: the other one and the witness remove it, and its memory is all that is lost.
fn other_node_continues_without(stopped: usize) {
    let mut trio = Trio::start();
    let program = trio.program();
    let mut session = program.session().unwrap();
    let words = [0, 1].map(|node| session.alloc_on(8, NodeId(node)).unwrap());
    let other = 1 - stopped;
    for word in words {
        use_memory(&program, &mut session, word, 7);
    }
    trio.nodes[stopped].stop();
    trio.nodes[other].event_of("member_lost", stopped as u64);
    trio.witness.event_of("member_lost", stopped as u64);
    use_memory(&program, &mut session, words[other], 100);
    // What it has cached counts until the removed node can have no copy any more.
    let begun = Instant::now();
    let lost = loop {
        match session.read_u64(words[stopped]) {
            Ok(value) => assert_eq!(value, 8),
            Err(lost) => break lost,
        }
        assert!(begun.elapsed() < WATCHDOG, "the memory of a removed node is there");
    };
    assert_eq!(lost.code, ErrorCode::NodeLost, "{lost}");

    // It has been removed, and learns so when it continues.
    trio.nodes[stopped].signal(Signal::CONT);
    let isolated = trio.nodes[stopped].event("isolated");
    assert_eq!(isolated["rejoins"], false);
    assert!(trio.nodes[stopped].event("ended")["reason"].is_string());
    let [first, second] = trio.nodes;
    let (removed, mut left) = if stopped == 0 { (first, second) } else { (second, first) };
    assert_eq!(removed.end().0, Some(1));
    use_memory(&program, &mut session, words[other], 200);
    assert!(left.runs());
}

#[test]
fn process_later_node_and_witness_continue_without_the_earlier() {
    other_node_continues_without(0);
}

#[test]
fn process_earlier_node_and_witness_continue_without_the_later() {
    other_node_continues_without(1);
}

#[test]
fn process_nodes_continue_without_a_killed_witness_and_with_the_next() {
    let mut trio = Trio::start();
    let program = trio.program();
    let mut session = program.session().unwrap();
    let words = [0, 1].map(|node| session.alloc_on(8, NodeId(node)).unwrap());
    trio.witness.signal(Signal::KILL);
    for node in &mut trio.nodes {
        node.event_of("member_lost", 2);
    }
    for word in words {
        use_memory(&program, &mut session, word, 7);
    }
    // The next one has a vote at once.
    let mut witness = start_witness(&trio.cluster, &trio.join);
    let (number, _) = witness.started();
    trio.nodes[1].event_of("member_joined", number);
    trio.nodes[0].stop();
    trio.nodes[1].event_of("member_lost", 0);
    use_memory(&program, &mut session, words[1], 100);
}

/// The witness cannot be reached, and its process may live: the two nodes remove it.
#[test]
fn process_stopped_witness_is_removed_and_leaves_when_asked() {
    let mut trio = Trio::start();
    trio.witness.stop();
    for node in &mut trio.nodes {
        node.event_of("member_lost", 2);
    }
    trio.witness.signal(Signal::CONT);
    trio.witness.event("isolated");
    assert_eq!(trio.witness.end().0, Some(1));

    let mut witness = start_witness(&trio.cluster, &trio.join);
    let (number, _) = witness.started();
    trio.nodes[0].event_of("member_joined", number);
    witness.signal(Signal::TERM);
    assert_eq!(witness.event("ended")["reason"], Value::Null);
    assert_eq!(witness.end().0, Some(0));
    trio.nodes[0].event_of("member_lost", number);
}

/// What a process has, from `/proc`.
fn status(process: u32, name: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn process_witness_takes_little_memory_and_few_threads() {
    let trio = Trio::start();
    let witness = trio.witness.id();
    let (kib, threads) = (status(witness, "VmRSS"), status(witness, "Threads"));
    assert!(kib < 64 << 10, "{kib} KiB");
    assert!(threads <= 6, "{threads} threads");
}

#[test]
fn process_witness_refuses_data_and_founding() {
    let witness = |more: &[&str]| {
        let own = ["--json", "witness", "--listen", "127.0.0.1:0"];
        failure(&output(&[], &[&own[..], more].concat()))
    };
    let (code, _, said) = witness(&[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--join"), "{said}");
    for data in [["--memory-bytes", "1M"], ["--state", "folder"]] {
        let own = ["witness", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:1"];
        let refused = output(&[], &[&own[..], &data].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(data[0]), "{}", text(&refused.stderr));
    }
    let folder = Folder::new();
    let file = "listen = \"127.0.0.1:0\"\njoin = [\"127.0.0.1:1\"]\nmemory_bytes = \"1M\"\n";
    let file = folder.file("witness.toml", file.as_bytes());
    let (code, _, said) = failure(&output(&[], &["--json", "witness", "--config", &file]));
    assert_eq!(code, Some(2));
    assert!(said.contains("holds no data"), "{said}");
    let open = ["--json", "witness", "--listen", "10.0.0.1:7400", "--join", "10.0.0.2:7400"];
    let (code, _, said) = failure(&output(&[], &open));
    assert_eq!(code, Some(2));
    assert!(said.contains("farside key new") && said.contains("--insecure"), "{said}");
}

#[test]
fn process_witness_has_no_sessions() {
    let trio = Trio::start();
    let config = Config::new(trio.cluster.clone()).memory_bytes(0).witness(true);
    let node = Node::join_on(&config, tcp(&trio.join)).unwrap();
    assert_eq!(node.memory(), None);
    let refused = node.session().unwrap_err();
    assert_eq!(refused.code, ErrorCode::BadConfiguration);
    assert!(refused.to_string().contains("Config::witness"), "{refused}");
    let lent = trio.program().session().unwrap().alloc_on(8, node.id()).unwrap_err();
    assert_eq!(lent.code, ErrorCode::OutOfMemory, "{lent}");
    node.leave().unwrap();
}
