//! Tests `farside rmc serve` as a cluster node: calls of other processes on global addresses.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, failure, name, output, report, text};
use farside::{Config, ErrorCode, GlobalAddress, Node, NodeId};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Adds the second parameter to the word at the global address in the first; returns the previous value.
const ADD: &str = "
.program add
    r2 = *(u64 *)(r1 + 8)
    r1 = *(u64 *)(r1 + 0)
    call global_fetch_add
    exit
";

fn config(cluster: &str) -> Config {
    Config::new(cluster).memory_bytes(1 << 20).cache_bytes(1 << 20)
}

/// Runs calls from two processes and additions by a session of this process concurrently.
fn add_up(node: &Node, executor: &[&str], at: &str) {
    let folder = Folder::new();
    let add = folder.file("add.s", ADD.as_bytes());
    let fixed = ["--json", "rmc", "serve", at];
    let mut server = Running::start(&[], &[&fixed, executor].concat());
    let serving = server.event("serving");
    let to = serving["address"].as_str().unwrap();
    assert_eq!(serving["node"], 1);
    node.wait_for_members(2, Duration::from_secs(10)).unwrap();
    let counter = node.session().unwrap().alloc(8).unwrap();
    let parameters = format!("{:#x},3", counter.to_bits());
    let call = ["rmc", "call", to, &add, "--parameters", &parameters, "--json"];
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let done = report(&output(&[], &[&call[..], &["--times", "500"]].concat()));
                assert_eq!(done["calls"], 500);
            });
        }
        scope.spawn(|| {
            let mut session = node.session().unwrap();
            for _ in 0..1000 {
                session.fetch_add(counter, 1).unwrap();
            }
        });
    });
    let last = report(&output(&[], &call));
    assert_eq!(last["returned"]["result"], 2 * 500 * 3 + 1000);
    // At either place: at the executor, or in the calling process, which is a node for the duration.
    let placed = [&call[..], &["--times", "60", "--place", "choose"], executor].concat();
    let placed = report(&output(&[], &placed));
    assert_eq!(placed["returned"]["result"], 2 * 500 * 3 + 1000 + 3 * 60, "{placed}");
    let places = placed["places"].as_array().unwrap();
    let calls = places.iter().map(|place| place["calls"].as_u64().unwrap());
    assert_eq!((places[0]["place"].as_str(), calls.sum::<u64>()), (Some("here"), 60), "{placed}");

    node.session().unwrap().free(counter).unwrap();
    let (code, kind, said) = failure(&output(&[], &call));
    assert_eq!((code, kind.as_str()), (Some(1), "CallStopped"), "{said}");
    assert!(said.contains("no allocation"), "{said}");
    server.signal(Signal::INT);
    assert_eq!(server.event("ended")["served"].as_u64().map(|served| served > 1000), Some(true));
    assert_eq!(server.end(), (Some(0), String::new()));
}

#[test]
fn process_calls_and_sessions_add_atomically_on_one_machine() {
    let cluster = name();
    let node = Node::create(&config(&cluster)).unwrap();
    add_up(&node, &["--cluster", &cluster], &name());
}

#[test]
fn process_calls_and_sessions_add_atomically_between_hosts() {
    let (cluster, folder) = (name(), Folder::new());
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let fabric = TcpFabric::new(TcpOptions { listen, ..TcpOptions::default() }).unwrap();
    let at = fabric.listens_at().unwrap();
    let node = Node::create_on(&config(&cluster), Arc::new(fabric)).unwrap();
    let settings = format!(
        "listen = \"127.0.0.1:0\"\njoin = [\"{at}\"]\ncluster = \"{cluster}\"\n\
         memory_bytes = \"1M\"\ncache_bytes = \"1M\"\n"
    );
    let settings = folder.file("node.toml", settings.as_bytes());
    add_up(&node, &["--node", &settings], "127.0.0.1:0");
}

/// Returns the number of members that a node considers alive.
fn alive(node: &Node) -> usize {
    node.members().iter().filter(|member| member.alive).count()
}

#[test]
fn process_killed_node_and_killed_executor_are_errors_of_calls() {
    let (cluster, folder) = (name(), Folder::new());
    let add = folder.file("add.s", ADD.as_bytes());
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let fabric = TcpFabric::new(TcpOptions { listen, ..TcpOptions::default() }).unwrap();
    let at = fabric.listens_at().unwrap().to_string();
    let node = Node::create_on(&config(&cluster), Arc::new(fabric)).unwrap();
    let settings = format!(
        "listen = \"127.0.0.1:0\"\njoin = [\"{at}\"]\ncluster = \"{cluster}\"\n\
         memory_bytes = \"1M\"\ncache_bytes = \"1M\"\n"
    );
    let settings = folder.file("node.toml", settings.as_bytes());
    let mut server =
        Running::start(&[], &["--json", "rmc", "serve", "127.0.0.1:0", "--node", &settings]);
    let to = server.event("serving")["address"].as_str().unwrap().to_owned();
    let victim = Running::start(&[], &["--json", "node", "--config", &settings]);
    node.wait_for_members(3, Duration::from_secs(10)).unwrap();
    let mut session = node.session().unwrap();
    let [lost, kept] = [2, 0].map(|home| session.alloc_on(4096, NodeId(home)).unwrap());
    // In a line that no node caches yet.
    let lost = (lost, GlobalAddress::from_bits(lost.to_bits() + 2048).unwrap());
    let call = |word: GlobalAddress| {
        let parameters = format!("{:#x},3", word.to_bits());
        output(&[], &["rmc", "call", &to, &add, "--parameters", &parameters, "--json"])
    };
    for word in [lost.0, kept] {
        assert_eq!(report(&call(word))["returned"]["result"], 0);
    }
    drop(victim); // kill -9
    // The call waits until the other members have removed the node, and then fails.
    let (code, kind, said) = failure(&call(lost.1));
    assert_eq!((code, kind.as_str()), (Some(1), "PeerLost"), "{said}");
    assert_eq!(report(&call(kept))["returned"]["result"], 3);
    assert_eq!(session.read_u64(kept).unwrap(), 6);
    let dirty = GlobalAddress::from_bits(kept.to_bits() + 2048).unwrap();
    assert_eq!(report(&call(dirty))["returned"]["result"], 0);
    while alive(&node) > 2 {
        std::thread::yield_now();
    }
    drop(server);
    let (code, kind, said) = failure(&call(kept));
    assert_eq!((code, kind.as_str()), (Some(1), "NoListener"), "{said}");
    while alive(&node) > 1 {
        std::thread::yield_now();
    }
    // A value that another node has read since survives; a line that only the executor held is lost, with an error.
    assert_eq!(session.read_u64(kept).unwrap(), 6);
    assert_eq!(session.read_u64(dirty).unwrap_err().code, ErrorCode::LineLost);
}

/// A stopped executor is removed by the other members; continued, it rejoins as a new node and keeps its callers.
#[test]
fn process_removed_executor_rejoins() {
    let (cluster, folder) = (name(), Folder::new());
    let add = folder.file("add.s", ADD.as_bytes());
    let (listen, lease) = (Some("127.0.0.1:0".parse().unwrap()), Duration::from_millis(250));
    let fabric = TcpFabric::new(TcpOptions { listen, lease, ..TcpOptions::default() }).unwrap();
    let at = fabric.listens_at().unwrap().to_string();
    let config = config(&cluster).lease_ns(250_000_000);
    let node = Node::create_on(&config, Arc::new(fabric)).unwrap();
    let settings = |name: &str, more: &str| {
        let settings = format!(
            "listen = \"127.0.0.1:0\"\njoin = [\"{at}\"]\ncluster = \"{cluster}\"\nlease = 0.5\n\
             memory_bytes = \"1M\"\ncache_bytes = \"1M\"\n{more}"
        );
        folder.file(name, settings.as_bytes())
    };
    let usual = settings("node.toml", "");
    let other = Running::start(&[], &["--json", "node", "--config", &usual]);
    node.wait_for_members(2, Duration::from_secs(10)).unwrap();
    let mut session = node.session().unwrap();
    let counter = session.alloc_on(8, NodeId(0)).unwrap();
    let parameters = format!("{:#x},3", counter.to_bits());
    for (settings, rejoins) in [(usual, true), (settings("once.toml", "rejoin = false\n"), false)] {
        let serve = ["--json", "rmc", "serve", "127.0.0.1:0", "--node", &settings];
        let mut server = Running::start(&[], &serve);
        let serving = server.event("serving");
        let to = serving["address"].as_str().unwrap();
        node.wait_for_members(3, Duration::from_secs(10)).unwrap();
        let call = ["rmc", "call", to, &add, "--parameters", &parameters, "--json"];
        report(&output(&[], &call));
        // A value that another node has read is not lost with the node that wrote it.
        let before = session.read_u64(counter).unwrap();
        server.stop();
        while alive(&node) > 2 {
            std::thread::yield_now();
        }
        server.signal(Signal::CONT);
        assert_eq!(server.event("node_lost")["rejoins"], rejoins);
        if rejoins {
            let found = server.event("node_found");
            assert_ne!(found["node"], serving["node"]);
            assert_eq!(report(&output(&[], &call))["returned"]["result"], before);
            assert_eq!(session.read_u64(counter).unwrap(), before + 3);
            server.signal(Signal::INT);
            assert_eq!(server.end(), (Some(0), String::new()));
        } else {
            let (code, said) = server.end();
            assert_eq!(code, Some(1), "{said}");
            assert!(said.contains("nothing left to serve"), "{said}");
        }
        while alive(&node) > 2 {
            std::thread::yield_now();
        }
    }
    drop(other);
}

/// The program runs in the caller's process, which is a node for the duration.
#[test]
fn process_caller_runs_programs_on_global_memory() {
    let (cluster, folder) = (name(), Folder::new());
    let add = folder.file("add.s", ADD.as_bytes());
    let node = Node::create(&config(&cluster)).unwrap();
    let to = name();
    let mut server = Running::start(&[], &["--json", "rmc", "serve", &to, "--cluster", &cluster]);
    server.event("serving");
    let counter = node.session().unwrap().alloc(8).unwrap();
    let parameters = format!("{:#x},3", counter.to_bits());
    let call = ["rmc", "call", &to, &add, "--parameters", &parameters, "--json"];
    let here = [&call[..], &["--here", "--times", "500", "--cluster", &cluster]].concat();
    let done = report(&output(&[], &here));
    assert_eq!((&done["runs"], &done["returned"]["result"]), (&"here".into(), &(499 * 3).into()));
    assert_eq!(report(&output(&[], &call))["returned"]["result"], 1500);
    assert_eq!(node.session().unwrap().read_u64(counter).unwrap(), 1503);
    while alive(&node) > 2 {
        std::thread::yield_now();
    }
    let refused = |arguments: &[&str]| failure(&output(&[], &[&call[..], arguments].concat()));
    let (code, _, said) = refused(&["--cluster", &cluster]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("--here"), "{said}");
    let (code, kind, said) = refused(&["--here", "--cluster", &name()]);
    assert_eq!((code, kind.as_str()), (Some(1), "NoSuchCluster"), "{said}");
    let (code, kind, said) = refused(&["--here"]);
    assert_eq!((code, kind.as_str()), (Some(1), "ExecutorLacks"), "{said}");
    assert!(said.contains("--cluster"), "{said}");
    server.signal(Signal::INT);
    assert_eq!(server.end(), (Some(0), String::new()));
}

/// Calls and sessions find all nodes that calls of two processes pushed.
#[test]
fn process_list_in_c_is_shared_by_calls_and_sessions() {
    let clang = Command::new("clang").arg("--print-targets").output();
    if !clang.is_ok_and(|done| text(&done.stdout).contains("bpf")) {
        return; // a machine without a compiler for eBPF
    }
    let (cluster, folder) = (name(), Folder::new());
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../rmc/tests/c/global.c");
    let (source, object) = (source.display().to_string(), folder.path("global.o"));
    report(&output(&[], &["rmc", "build", &source, "-o", &object, "--json"]));
    let node = Node::create(&config(&cluster)).unwrap();
    let to = name();
    let mut server = Running::start(&[], &["--json", "rmc", "serve", &to, "--cluster", &cluster]);
    server.event("serving");
    let mut session = node.session().unwrap();
    let [head, nodes] = [8, 40 * 24].map(|bytes| session.alloc(bytes).unwrap());
    let at = |key: u64| GlobalAddress::from_bits(nodes.to_bits() + key * 24).unwrap();
    for key in 0..40 {
        let filled = [key, 100 + key, 0].map(u64::to_le_bytes).concat();
        session.write(at(key), &filled).unwrap();
    }
    session.fence().unwrap();
    let call = |program: &str, key: u64| {
        let parameters = format!("{:#x},{key:#x}", head.to_bits());
        let fixed = ["rmc", "call", &to, &object, "--json", "--program", program, "--parameters"];
        report(&output(&[], &[&fixed[..], &[&parameters]].concat()))["returned"]["result"].clone()
    };
    std::thread::scope(|scope| {
        for half in 0..2 {
            let call = &call;
            scope.spawn(move || {
                (0..20).for_each(|key| assert_eq!(call("push", at(2 * key + half).to_bits()), 0));
            });
        }
    });
    for key in [0, 17, 39] {
        assert_eq!(call("find", key), 100 + key);
    }
    assert_eq!(call("find", 40).as_u64(), Some(-2_i64 as u64), "no such key");
    let (mut found, mut next) = (BTreeSet::new(), session.read_u64(head).unwrap());
    while let (true, Ok(address)) = (next != 0, GlobalAddress::from_bits(next)) {
        found.insert(session.read_u64(address).unwrap());
        next = session.read_u64(GlobalAddress::from_bits(next + 16).unwrap()).unwrap();
    }
    assert_eq!(found, (0..40).collect());
    server.signal(Signal::INT);
    assert_eq!(server.end(), (Some(0), String::new()));
}

#[test]
fn process_global_addresses_without_a_node_are_refused() {
    let folder = Folder::new();
    let add = folder.file("add.s", ADD.as_bytes());
    let to = name();
    let mut server = Running::start(&[], &["--json", "rmc", "serve", &to, "--memory", "0=4K"]);
    server.event("serving");
    let (code, kind, said) =
        failure(&output(&[], &["rmc", "call", &to, &add, "--parameters", "0,1", "--json"]));
    assert_eq!((code, kind.as_str()), (Some(1), "ExecutorLacks"), "{said}");
    assert!(said.contains("--cluster"), "{said}");
    let none = output(&[], &["--json", "rmc", "serve", &name(), "--cluster", &name()]);
    let (code, kind, said) = failure(&none);
    assert_eq!((code, kind.as_str()), (Some(1), "NoSuchCluster"), "{said}");
}
