//! Nodes, agents and workers over TCP on the loopback, with real processes and signals.
#![forbid(unsafe_code)]

mod common;

use common::{
    Folder, Running, WATCHDOG, check_demo, check_returned, json, name, output, report, runs, text,
};
use farside::fabrics::Fabric;
use farside::onesided::{LendOptions, MemoryServer};
use farside::{AllocationSpec, Config, Durability, Node, NodeId};
use farside_bootstrap::{HandshakeLimits, HostAddress, Security, Stream, Transfer};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Returns the error text of a command that must fail with this exit code.
fn failure(code: i32, arguments: &[&str]) -> String {
    let done = output(&[], &[&["--json"], arguments].concat());
    assert_eq!(done.status.code(), Some(code), "{}{}", text(&done.stdout), text(&done.stderr));
    json(&text(&done.stdout))["error"]["text"].as_str().unwrap().to_owned()
}

#[test]
fn process_nodes_found_join_end_and_leave() {
    let folder = Folder::new();
    let key = folder.key("cluster.key");
    let mut first = Running::node(&[], &["--listen", "127.0.0.1:0", "--key", &key]);
    let (number, address) = first.started();
    assert_eq!(number, 0);
    // The second has a settings file, with a key in the same folder; flags take precedence.
    let settings = format!(
        "listen = \"127.0.0.2:0\"\njoin = [\"127.0.0.1:1\", \"{address}\"]\nkey = \"cluster.key\"\n\
         memory_bytes = \"1T\"\nlease = 2.5\n"
    );
    let settings = folder.file("node.toml", settings.as_bytes());
    let mut second = Running::node(&[], &["--config", &settings, "--lease", "1"]);
    let started = second.event("started");
    assert_eq!(
        (&started["node"], &started["lease_ms"]),
        (&1.into(), &2000.into()),
        "the founder's"
    );
    second.event_of("member_joined", 0);
    first.event_of("member_joined", 1);
    let join = ["--listen", "127.0.0.1:0", "--key", &key, "--join", &address];
    let mut third = Running::node(&[], &[&join[..], &["--found", "--lease", "5"]].concat());
    assert_eq!(third.started().0, 2, "there is a cluster already");
    for node in [&mut first, &mut second] {
        node.event_of("member_joined", 2);
    }
    second.signal(Signal::KILL);
    for node in [&mut first, &mut third] {
        node.event_of("member_lost", 1);
    }
    third.signal(Signal::INT);
    assert_eq!(third.event("ended")["reason"], Value::Null);
    let (code, said) = third.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("the lease is 2 s, as the founder said; 5 s would count"), "{said}");
    first.event_of("member_lost", 2);
    first.signal(Signal::TERM);
    assert_eq!(first.end(), (Some(0), String::new()));
}

/// A standby has the state once the process that used it was killed; what was fenced is there, and calls have waited.
#[test]
fn process_standby_takes_over_from_a_killed_node() {
    let (fabric, lend) = (tcp(&[]), LendOptions::default().exclusive(true));
    let lend =
        || ["one", "two"].map(|name| MemoryServer::lend(&fabric, name, 192 << 20, &lend).unwrap());
    let lent = lend();
    let folder = Folder::new();
    let file = format!("file:{}", folder.path("copy"));
    let copies = format!("{},{file},{}", lent[0].address(), lent[1].address());
    let cluster = name();
    let mut founder = Running::node(&[], &["--listen", "127.0.0.1:0", "--cluster", &cluster]);
    let (_, address) = founder.started();
    let join = ["--listen", "127.0.0.1:0", "--cluster", &cluster, "--join", &address];
    let state = [&join[..], &["--state-copies", &copies]].concat();
    let mut home = Running::node(&[], &state);
    let started = home.event("started");
    let number = started["node"].as_u64().unwrap();
    assert!(started["state"].as_str().unwrap().starts_with("2 copies, memory"), "{started}");
    let refused = failure(1, &[&["node"], &state[..]].concat());
    assert!(refused.contains("Another process uses"), "{refused}");

    let config = Config::new(cluster.clone()).memory_bytes(0).cache_bytes(1 << 20);
    let client = Node::join_on(&config, tcp(std::slice::from_ref(&address))).unwrap();
    let mut session = client.session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let word = session.alloc_with(8, logged).unwrap();
    for count in 0..3 {
        let mut standby = Running::node(&[], &[&state[..], &["--standby"]].concat());
        standby.event("standby");
        assert_eq!(session.fetch_add(word, 1).unwrap(), count);
        session.fence().unwrap();
        home.signal(Signal::KILL);
        assert_eq!(session.read_u64(word).unwrap(), count + 1);
        assert_eq!(standby.started().0, number);
        home = standby;
    }
    // The copies in memory are lost with it: the one in the file is whole.
    home.signal(Signal::KILL);
    drop((home, lent));
    let lent = lend();
    let copies = format!("{file},{},{}", lent[0].address(), lent[1].address());
    let state = [&join[..], &["--state-copies", &copies]].concat();
    let refused = failure(1, &[&["node", "--memory-bytes", "16M"], &state[..]].concat());
    assert!(refused.contains("empty:"), "{refused}");
    let least = [&state[..], &["--state-copies-min", "1"]].concat();
    let mut home = Running::node(&[], &least);
    assert_eq!(home.started().0, number);
    assert_eq!(session.read_u64(word).unwrap(), 3);
    let usage = [&["node"], &state[..6], &["--standby"]].concat();
    assert!(failure(2, &usage).contains("--state"));
}

/// A node without state saves its memory when it is stopped; the process that is started from there is that node. One that
/// cannot save it stays until it is stopped again.
#[test]
fn process_drained_node_returns_from_its_folder() {
    let folder = Folder::new();
    let cluster = name();
    let mut founder = Running::node(&[], &["--listen", "127.0.0.1:0", "--cluster", &cluster]);
    let (_, address) = founder.started();
    let join = ["--listen", "127.0.0.1:0", "--cluster", &cluster, "--join", &address];
    let saved = folder.path("saved");
    let mut home = Running::node(&[], &[&join[..], &["--drain-to", &saved]].concat());
    let (number, _) = home.started();
    let file = folder.file("file", b"no folder");
    let mut stuck = Running::node(&[], &[&join[..], &["--drain-to", &file]].concat());
    let (stuck_number, _) = stuck.started();

    let config = Config::new(cluster.clone()).memory_bytes(0).cache_bytes(1 << 20);
    let client = Node::join_on(&config, tcp(std::slice::from_ref(&address))).unwrap();
    let mut session = client.session().unwrap();
    let node = |number: u64| NodeId(number.try_into().unwrap());
    let word = session.alloc_on(8, node(number)).unwrap();
    session.write_u64(word, 7).unwrap();
    let other = session.alloc_on(8, node(stuck_number)).unwrap();

    stuck.signal(Signal::TERM);
    assert!(stuck.event("not_drained")["reason"].as_str().is_some_and(|why| !why.is_empty()));
    session.write_u64(other, 8).unwrap();
    stuck.signal(Signal::TERM);
    assert_eq!(stuck.event("ended")["memory_bytes"], 512);
    stuck.end();

    home.signal(Signal::TERM);
    assert_eq!(home.event("draining")["place"], saved[..]);
    let drained = home.event("drained");
    assert_eq!((&drained["memory_bytes"], &drained["lines_lost"]), (&512.into(), &0.into()));
    assert_eq!(home.event("ended")["memory_bytes"], 0);
    assert_eq!(home.end().0, Some(0));
    let mut home = Running::node(&[], &[&join[..], &["--state", &saved]].concat());
    assert_eq!(home.started().0, number);
    assert_eq!(session.read_u64(word).unwrap(), 7);
    let both = [&["node"], &join[..], &["--state", &saved, "--drain-to", &saved]].concat();
    assert_eq!(output(&[], &both).status.code(), Some(2));
    let again = [&["node"], &join[..], &["--drain-to", &saved]].concat();
    assert!(failure(2, &again).contains("is not empty"));
}

/// TCP as of another process, which finds a cluster at these hosts.
fn tcp(join: &[String]) -> Arc<dyn Fabric> {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let hosts = join.iter().map(|host| host.parse().unwrap()).collect();
    Arc::new(TcpFabric::new(TcpOptions { listen, hosts, ..TcpOptions::default() }).unwrap())
}

#[test]
fn process_node_continues_without_a_lost_copy() {
    let (fabric, lend) = (tcp(&[]), LendOptions::default().exclusive(true));
    let lend = |name| MemoryServer::lend(&fabric, name, 192 << 20, &lend).unwrap();
    let mut copies = Vec::from(["one", "two", "three"].map(lend));
    let cluster = name();
    let mut founder = Running::node(&[], &["--listen", "127.0.0.1:0", "--cluster", &cluster]);
    let (_, address) = founder.started();
    let state = ["--listen", "127.0.0.1:0", "--cluster", &cluster, "--join", &address];
    let state = [&state[..], &["--state-copies-min", "2", "--state-copies"]].concat();
    let list = |copies: &[MemoryServer]| {
        copies.iter().map(MemoryServer::address).collect::<Vec<_>>().join(",")
    };
    let mut home = Running::node(&[], &[&state[..], &[&list(&copies)]].concat());
    let (number, _) = home.started();
    let config = Config::new(cluster.clone()).memory_bytes(0).cache_bytes(1 << 20);
    let client = Node::join_on(&config, tcp(std::slice::from_ref(&address))).unwrap();
    let mut session = client.session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let word = session.alloc_with(8, logged).unwrap();
    session.fetch_add(word, 1).unwrap();
    session.fence().unwrap();
    let lost = copies.remove(1).address().to_owned();
    session.fetch_add(word, 1).unwrap();
    session.fence().unwrap();
    let event = home.event("copy_lost");
    assert!(event["reason"].as_str().unwrap().contains(&lost), "{event}");
    // Another copy gets all bytes at the next start.
    home.signal(Signal::KILL);
    copies.push(lend("four"));
    let mut home = Running::node(&[], &[&state[..], &[&list(&copies)]].concat());
    assert_eq!(home.started().0, number);
    drop(copies.remove(0));
    assert_eq!(session.fetch_add(word, 1).unwrap(), 2);
    session.fence().unwrap();
    home.event("copy_lost");
}

/// A host of a copy that answers no more costs the home its timeout once. Meanwhile the home serves what needs no commit, and
/// remains a member.
#[test]
fn process_node_continues_without_a_copy_that_hangs() {
    let (fabric, lend) = (tcp(&[]), LendOptions::default().exclusive(true));
    let copies =
        ["one", "two"].map(|name| MemoryServer::lend(&fabric, name, 192 << 20, &lend).unwrap());
    let lend = ["--json", "lend", "--bytes", "192M", "--exclusive", "--listen", "127.0.0.1:0"];
    let mut hangs = Running::start(&[], &lend);
    let third = hangs.event("lending")["address"].as_str().unwrap().to_owned();
    let copies_of_home = format!("{},{third},{}", copies[0].address(), copies[1].address());
    let cluster = name();
    let mut founder = Running::node(&[], &["--listen", "127.0.0.1:0", "--cluster", &cluster]);
    let (_, address) = founder.started();
    let state = ["--listen", "127.0.0.1:0", "--cluster", &cluster, "--join", &address];
    let state = [&state[..], &["--state-copies-min", "2", "--state-copies", &copies_of_home]];
    let mut home = Running::node(&[], &state.concat());
    home.started();
    let config = Config::new(cluster).memory_bytes(0).cache_bytes(1 << 20);
    let client = Node::join_on(&config, tcp(std::slice::from_ref(&address))).unwrap();
    let (mut session, mut other) = (client.session().unwrap(), client.session().unwrap());
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let word = session.alloc_with(8, logged).unwrap();
    let read_only = session.alloc_on(64, word.home()).unwrap();
    session.fetch_add(word, 1).unwrap();
    session.fence().unwrap();
    hangs.stop();
    session.fetch_add(word, 1).unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fenced = session.fence();
            ended.store(true, Ordering::Relaxed);
            fenced.unwrap();
        });
        let mut served = 0;
        while !ended.load(Ordering::Relaxed) {
            other.write_back(read_only, 8).unwrap(); // asks the home
            served += 1;
        }
        assert!(served > 0);
    });
    let event = home.event("copy_lost");
    assert!(event["reason"].as_str().unwrap().contains(&third), "{event}");
    assert_eq!(session.fetch_add(word, 1).unwrap(), 2);
    session.fence().unwrap();
    hangs.signal(Signal::KILL);
}

#[test]
fn process_hang_up_ends_a_node_unless_it_is_ignored() {
    let listen = ["--listen", "127.0.0.1:0"];
    let mut ends = Running::node(&["env", "--default-signal=HUP"], &listen);
    ends.started();
    ends.signal(Signal::HUP);
    assert_eq!(ends.event("ended")["reason"], Value::Null);
    assert_eq!(ends.end().0, Some(0));
    let mut stays = Running::node(&["env", "--ignore-signal=HUP"], &listen);
    let (_, address) = stays.started();
    stays.signal(Signal::HUP);
    let mut other = Running::node(&[], &[&listen[..], &["--join", &address]].concat());
    other.started();
    stays.event_of("member_joined", 1);
}

/// Returns two addresses without a listener, and the list of both.
fn two_addresses() -> ([String; 2], String) {
    let free = |host: &str| {
        let listener = std::net::TcpListener::bind((host, 0)).unwrap();
        listener.local_addr().unwrap().to_string()
    };
    let both = [free("127.0.0.1"), free("127.0.0.2")];
    let list = both.join(",");
    (both, list)
}

#[test]
fn process_founder_waits_for_answers_of_all_hosts() {
    let ([lower, higher], join) = two_addresses();
    let mut founder = Running::node(&[], &["--listen", &higher, "--join", &join, "--found"]);
    let waits = founder.event("waiting");
    assert_eq!(
        (&waits["founds"], &waits["hosts"][0]["host"]),
        (&true.into(), &lower.clone().into())
    );
    assert_eq!(waits["hosts"].as_array().unwrap().len(), 1, "{waits}");
    let mut other = Running::node(&[], &["--listen", &lower, "--join", &join]);
    assert_eq!((founder.started().0, other.started().0), (0, 1));
}

#[test]
fn process_two_founders_found_one_cluster() {
    let ([lower, higher], join) = two_addresses();
    let start = |at: &str| Running::node(&[], &["--listen", at, "--join", &join, "--found"]);
    let (mut second, mut first) = (start(&higher), start(&lower));
    assert_eq!((first.started().0, second.started().0), (0, 1));
}

#[test]
fn process_found_alone_needs_no_answers() {
    let ([lower, _], join) = two_addresses();
    let mut alone = Running::node(&[], &["--listen", &lower, "--join", &join, "--found-alone"]);
    assert_eq!(alone.started().0, 0);
}

#[test]
fn process_isolated_node_joins_again_or_fails() {
    let lease = ["--lease", "0.5"];
    let mut first = Running::node(&[], &[&["--listen", "127.0.0.1:0"][..], &lease].concat());
    let (_, address) = first.started();
    let join = [&["--listen", "127.0.0.1:0", "--join", &address][..], &lease].concat();
    let mut other = Running::node(&[], &join);
    assert_eq!(other.started().0, 1);
    for (rejoin, expected) in [("--rejoin=true", 2), ("--rejoin=false", 4)] {
        let mut cut_off = Running::node(&[], &[&join[..], &[rejoin]].concat());
        assert_eq!(cut_off.started().0, expected);
        for node in [&mut first, &mut other] {
            node.event_of("member_joined", expected);
        }
        // It neither receives nor sends until the others have removed it.
        cut_off.stop();
        for node in [&mut first, &mut other] {
            node.event_of("member_lost", expected);
        }
        cut_off.signal(Signal::CONT);
        let rejoins = rejoin.ends_with("true");
        assert_eq!(cut_off.event("isolated")["rejoins"], rejoins);
        if rejoins {
            let again = cut_off.event("started");
            assert_eq!((&again["node"], &again["again"]), (&3.into(), &true.into()));
            first.event_of("member_joined", 3);
            cut_off.signal(Signal::INT);
            assert_eq!(cut_off.end().0, Some(0));
        } else {
            let (code, said) = cut_off.end();
            assert_eq!(code, Some(1), "{said}");
        }
    }
}

#[test]
fn process_survivor_of_two_reports_a_remedy_and_joins_again() {
    let ([lower, higher], join) = two_addresses();
    let start = |at: &str, founds: &[&str]| {
        let own = ["--listen", at, "--join", &join, "--lease", "0.5"];
        Running::node(&[], &[&own[..], founds].concat())
    };
    let (mut first, mut second) = (start(&lower, &["--found"]), start(&higher, &[]));
    assert_eq!((first.started().0, second.started().0), (0, 1));
    // The second cannot know whether the first is dead.
    first.stop();
    assert_eq!(second.event("isolated")["rejoins"], true);
    let waits = second.event("waiting");
    assert_eq!(waits["founds"], false);
    assert!(waits["remedy"].as_str().unwrap().contains("--found-alone"), "{waits}");
    first.signal(Signal::KILL);
    first.end();
    // The first comes back by the command that started it: the second answers that it has no cluster.
    let mut first = start(&lower, &["--found"]);
    assert_eq!(first.started().0, 0);
    let again = second.event("started");
    assert_eq!((&again["node"], &again["again"]), (&1.into(), &true.into()));
}

#[test]
fn process_removed_node_never_continues_alone() {
    let node = |join: &[&str]| {
        let own = ["--listen", "127.0.0.1:0", "--lease", "0.5", "--rejoin=false"];
        Running::node(&[], &[&own[..], join].concat())
    };
    let mut first = node(&[]);
    let (_, address) = first.started();
    let join = ["--join", &address];
    let mut stopped = node(&join);
    assert_eq!(stopped.started().0, 1);
    first.event_of("member_joined", 1);
    stopped.stop();
    first.event_of("member_lost", 1);
    // Of the two survivors, the stopped node knows only the one that has ended.
    let mut third = node(&join);
    third.started();
    // The first answers the third's membership query before it sends it another member on the same link.
    let mut fourth = node(&join);
    assert_eq!(fourth.started().0, 3);
    third.event_of("member_joined", 3);
    fourth.signal(Signal::INT);
    fourth.end();
    third.event_of("member_lost", 3);
    first.signal(Signal::KILL);
    third.event_of("member_lost", 0);
    stopped.signal(Signal::CONT);
    stopped.event("isolated");
    assert_eq!(stopped.end().0, Some(1));
}

#[test]
fn process_two_clusters_of_one_name_are_reported() {
    let ([lower, higher], join) = two_addresses();
    let start = |at: &str| {
        Running::node(&[], &["--listen", at, "--join", &join, "--lease", "0.5", "--found-alone"])
    };
    let mut first = start(&lower);
    assert_eq!(first.started().0, 0);
    // The first cannot be reached while the operator lets the second found.
    first.stop();
    let mut second = start(&higher);
    assert_eq!(second.started().0, 0);
    first.signal(Signal::CONT);
    let (one, other) = (first.event("other_cluster"), second.event("other_cluster"));
    assert_eq!((&one["host"], &other["host"]), (&higher.into(), &lower.into()));
    assert_eq!((&one["own"], &one["other"]), (&other["other"], &other["own"]));
    assert_ne!(one["own"], one["other"]);
}

#[test]
fn process_only_holders_of_the_key_can_join() {
    let folder = Folder::new();
    let (key, other) = (folder.key("mine"), folder.key("other"));
    let mut first = Running::node(&[], &["--listen", "127.0.0.1:0", "--key", &key]);
    let (_, address) = first.started();
    let join = ["node", "--listen", "127.0.0.1:0", "--join", &address];
    let refused = failure(1, &[&join[..], &["--key", &other]].concat());
    assert!(refused.contains("another cluster key"), "{refused}");
    let refused = failure(1, &join);
    assert!(refused.contains("asks for a cluster key"), "{refused}");
    let refused = failure(1, &[&join[..], &["--key", &key, "--protect", "handshake"]].concat());
    assert!(refused.contains("protecting the handshake"), "{refused}");
    let refused = failure(1, &["node", "--listen", &address, "--key", &key]);
    assert!(refused.contains("in use"), "{refused}");
    let mut second =
        Running::node(&[], &["--listen", "127.0.0.1:0", "--join", &address, "--key", &key]);
    assert_eq!(second.started().0, 1, "the cluster has not suffered");
}

#[test]
fn process_inconsistent_settings_are_usage_errors() {
    let folder = Folder::new();
    let unknown = folder.file("unknown.toml", b"listen = \"127.0.0.1:0\"\ncolour = \"red\"\n");
    let broken = folder.file("broken.toml", b"listen = \"127.0.0.1:0\"\nlease = \n");
    for (arguments, says) in [
        (&["node", "--config", &unknown][..], &["line 2", "`colour`", "unknown.toml"][..]),
        (&["node", "--config", &broken], &["line 2"]),
        (&["node", "--listen", "10.0.0.1:7400"], &["farside key new", "--insecure"]),
        (&["node", "--cluster", "lab"], &["--listen"]),
        (&["agent", "--listen", "10.0.0.1:7400", "--insecure"], &["farside key new"]),
        (&["agent", "--listen", "127.0.0.1:0"], &["farside key new", "--insecure"]),
        (&["demo", "--on", "10.0.0.1:7401"], &["--key"]),
        (&["wordcount", "--fabric", "shm", "--on", "127.0.0.1:1", "x"], &["--on"]),
        (&["bench", "ycsb", "--key", "x"], &["--fabric tcp"]),
    ] {
        let refused = failure(2, arguments);
        assert!(says.iter().all(|part| refused.contains(part)), "{arguments:?}: {refused}");
    }
    let both = ["bench", "ycsb", "--on", "127.0.0.1:1", "--history", "x"];
    assert_eq!(output(&[], &both).status.code(), Some(2));
    let absent = failure(1, &["node", "--config", "/no/such/file"]);
    assert!(absent.contains("/no/such/file"), "{absent}");
}

#[test]
fn process_programs_join_a_cluster_over_tcp() {
    let name = name();
    let fixed = ["--json", "up", "--memory-bytes", "16M", "--cache-bytes", "4M", "--fabric", "tcp"];
    let mut up =
        Running::start(&[], &[&fixed[..], &["--nodes", "2", "--name", name.as_str()]].concat());
    let nodes = json(&up.line())["nodes"].clone();
    let options = TcpOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        // The second node, which is not the one that founded the cluster, comes last.
        hosts: nodes
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["address"].as_str().unwrap().parse().unwrap())
            .collect(),
        ..TcpOptions::default()
    };
    let fabric = Arc::new(TcpFabric::new(options).unwrap());
    let node = Node::join_on(&Config::new(name.as_str()), fabric).unwrap();
    let mut session = node.session().unwrap();
    let address = session.alloc(64).unwrap();
    session.write_u64(address, 7).unwrap();
    assert_eq!(session.read_u64(address).unwrap(), 7);
    drop(session);
    node.leave().unwrap();
    up.signal(Signal::INT);
    assert_eq!(up.end(), (Some(0), String::new()));
}

#[test]
fn process_wordcount_over_tcp_and_agents_equals_the_shell_pipeline() {
    let folder = Folder::new();
    let (file, expected) = folder.text();
    let key = folder.key("key");
    let (_one, at_one) = Running::agent(&[], &["--listen", "127.0.0.1:0", "--key", &key]);
    let (_two, at_two) = Running::agent(&[], &["--listen", "127.0.0.2:0", "--key", &key]);
    let on = format!("{at_one},{at_two}");
    for arguments in [
        &["--fabric", "tcp"][..],
        &["--fabric", "tcp", "--key", &key, "--nodes", "2"],
        &["--on", &on, "--key", &key],
        &["--on", &on, "--key", &key, "--protect", "handshake", "--nodes", "2"],
    ] {
        let counted = output(&[], &[&["wordcount", &file], arguments].concat());
        assert!(counted.status.success(), "{arguments:?}: {}", text(&counted.stderr));
        assert!(text(&counted.stdout) == expected, "{arguments:?}");
    }
    for (opens, expected) in [(&b"word"[..], 1), (b"\xe9 one\xe9two", 3), (b"...", 1), (b"", 0)] {
        let file = folder.file("short", opens);
        let counted =
            report(&output(&[], &["--json", "wordcount", "--on", &on, "--key", &key, &file]));
        assert_eq!(counted["words"].as_array().unwrap().len(), expected, "{opens:?}: {counted}");
    }
}

#[test]
fn process_demo_and_ycsb_run_over_tcp() {
    let size = ["--records", "1500", "--operations", "1500"];
    let shown = output(&[], &[&["demo", "--json", "--fabric", "tcp"][..], &size].concat());
    let shown = report(&shown);
    check_demo(&shown, "tcp", 1500);
    check_returned(&shown, 1_500);
    let bench = ["bench", "ycsb", "--json", "--fabric", "tcp", "--nodes", "2"];
    let found = report(&output(&[], &[&bench[..], &size].concat()));
    assert_eq!((&found["run"]["errors"], &found["fabric"]), (&0.into(), &"tcp".into()));
    assert_eq!(found["run"]["operations"], 1500);
}

#[test]
fn process_agent_serves_only_holders_of_its_key() {
    let folder = Folder::new();
    let (key, other) = (folder.key("mine"), folder.key("other"));
    let (mut agent, at) =
        Running::agent(&[], &["--listen", "127.0.0.1:0", "--key", &key, "--workers-max", "1"]);
    let file = folder.file("text", b"a b a");
    let count = ["wordcount", &file, "--nodes", "1", "--on", &at];
    let refused = failure(1, &[&count[..], &["--key", &other]].concat());
    assert!(refused.contains("another cluster key"), "{refused}");
    assert!(agent.event("refused")["reason"].as_str().unwrap().contains("key"));
    let refused = failure(1, &count);
    assert!(refused.contains("asks for a cluster key"), "{refused}");
    agent.event("refused");
    let two = ["wordcount", &file, "--nodes", "2", "--on", &at, "--key", &key];
    let refused = failure(1, &two);
    assert!(refused.contains("--workers-max"), "{refused}");
    agent.event("refused");
    agent.event("ended");
    let counted = report(&output(&[], &[&["--json"], &count[..], &["--key", &key]].concat()));
    assert_eq!(counted["words"], serde_json::json!([["a", 2], ["b", 1]]));
    agent.signal(Signal::INT);
    agent.event("closed");
    assert_eq!(agent.end(), (Some(0), String::new()));
    let gone = failure(1, &[&count[..], &["--key", &key]].concat());
    assert!(gone.contains("no process listens"), "{gone}");
}

/// Waits until a process has ended.
fn gone(process: u32) {
    let start = Instant::now();
    while runs(process) {
        assert!(start.elapsed() < WATCHDOG, "{process} still runs");
        std::thread::yield_now();
    }
}

/// Starts a long demonstration at one agent.
fn long_demo(at: &str) -> Running {
    Running::start(&[], &["demo", "--records", "200000", "--nodes", "2", "--on", at])
}

/// Returns the processes of the next two workers of an agent.
fn two_workers(agent: &mut Running) -> [u32; 2] {
    [(); 2].map(|()| u32::try_from(agent.event("started")["process"].as_u64().unwrap()).unwrap())
}

#[test]
fn process_workers_end_with_their_command_or_agent() {
    let (mut agent, at) = Running::agent(&[], &["--listen", "127.0.0.1:0", "--insecure"]);
    for how in [Signal::KILL, Signal::INT] {
        let mut demo = long_demo(&at);
        let workers = two_workers(&mut agent);
        assert!(demo.line().contains("200,000 records"));
        demo.signal(how);
        for _ in workers {
            let ended = agent.event("ended");
            assert!(ended["how"].as_str().unwrap().contains("signal: 9"), "{ended}");
        }
        workers.into_iter().for_each(gone);
        let (code, _) = demo.end();
        assert_eq!(code, if how == Signal::INT { Some(130) } else { None });
    }
    // Workers also end with the agent.
    let mut demo = long_demo(&at);
    let workers = two_workers(&mut agent);
    assert!(demo.line().contains("200,000 records"));
    agent.signal(Signal::KILL);
    workers.into_iter().for_each(gone);
    let (code, said) = demo.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("agent") && said.contains("out of reach"), "{said}");
}

/// A blocking stream to an agent without a key.
struct Raw(Stream<TcpStream>);

impl Raw {
    fn connect(at: &str) -> Self {
        let socket = TcpStream::connect(at).unwrap();
        socket.set_read_timeout(Some(WATCHDOG)).unwrap();
        let host = HostAddress::Ip(socket.peer_addr().unwrap().ip());
        let limits = HandshakeLimits::DEFAULT;
        let mut stream = Stream::connect(socket, &Security::open(), &host, limits).unwrap();
        while !stream.advance().unwrap() {}
        Self(stream)
    }

    fn send(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(Transfer::Moved(count)) => bytes = &bytes[count..],
                // The agent has closed the stream.
                _ => return,
            }
        }
    }

    /// Receives `count` lines, or all until the end of the stream.
    fn lines(&mut self, count: usize) -> Vec<String> {
        let (mut all, mut block) = (Vec::new(), [0; 4096]);
        while all.iter().filter(|byte| **byte == b'\n').count() < count {
            match self.0.read(&mut block) {
                Ok(Transfer::Moved(some)) => all.extend_from_slice(&block[..some]),
                _ => break,
            }
        }
        text(&all).lines().map(str::to_owned).collect()
    }
}

#[test]
fn process_agent_survives_invalid_input() {
    let (mut agent, at) = Running::agent(&[], &["--listen", "127.0.0.1:0", "--insecure"]);
    TcpStream::connect(&at).unwrap().write_all(&[7; 100]).unwrap();
    agent.event("refused");
    for junk in [&b"no json\n"[..], b"{\"agent\":\"dance\"}\n", b"\n", b"{\"command\":\"leave\"}\n"]
    {
        let mut raw = Raw::connect(&at);
        raw.send(junk);
        let answer = raw.lines(usize::MAX);
        assert_eq!(json(&answer[0])["agent"], "refused", "{answer:?}");
        agent.event("refused");
    }
    let mut raw = Raw::connect(&at);
    raw.send(b"{\"agent\":\"start\",\"version\":\"0.0.0-other\"}\n");
    assert!(raw.lines(usize::MAX)[0].contains("install one"));
    agent.event("refused");
    let mut raw = Raw::connect(&at);
    raw.send(&vec![b'x'; 3 << 20]);
    agent.event("refused");
    drop(raw);
    // The worker checks its own lines; an endless one ends it.
    let mut raw = Raw::connect(&at);
    let start = format!("{{\"agent\":\"start\",\"version\":\"{}\"}}\n", env!("CARGO_PKG_VERSION"));
    raw.send(start.as_bytes());
    assert_eq!(json(&raw.lines(1)[0])["agent"], "started");
    raw.send(b"{\"command\":\"words\",\"files\":[\"/etc/hosts\"],\"part\":0,\"parts\":1}\n");
    assert!(raw.lines(1)[0].contains("does not access files"));
    raw.send(b"{\"agent\":\"dance\"}\nno json\n");
    assert_eq!(json(&raw.lines(1)[0])["failure"]["kind"], "usage");
    raw.send(&vec![b'x'; 3 << 20]);
    assert!(agent.event("ended")["how"].as_str().unwrap().contains("signal: 9"));
    agent.signal(Signal::TERM);
    assert_eq!(agent.end(), (Some(0), String::new()));
}

/// An agent limits connections per host as nodes do: connections without an order are displaced by others, and closed
/// at their deadline.
#[test]
fn process_idle_connections_do_not_block_an_agent() {
    let (mut agent, at) = Running::agent(&[], &["--listen", "127.0.0.1:0", "--insecure"]);
    let file = Folder::new();
    let text_file = file.file("text", b"a b a");
    let silent: Vec<_> = (0..200).map(|_| TcpStream::connect(&at).unwrap()).collect();
    let opened: Vec<_> = (0..200).map(|_| TcpStream::connect(&at).unwrap()).collect();
    for mut stream in &opened {
        // The first part of the greeting.
        let _ = stream.write_all(b"farside\n");
    }
    for _ in 0..3 {
        let count = ["wordcount", &text_file, "--nodes", "2", "--on", &at];
        let counted = output(&[], &count);
        assert!(counted.status.success(), "{}", text(&counted.stderr));
        assert_eq!(text(&counted.stdout), "      2 a\n      1 b\n");
    }
    for stream in silent.iter().chain(&opened) {
        stream.set_read_timeout(Some(WATCHDOG)).unwrap();
        let mut stream = stream;
        // The agent must end the stream, possibly by a reset.
        let ended = std::io::Read::read_to_end(&mut stream, &mut Vec::new());
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }
    agent.event("refused");
    agent.signal(Signal::TERM);
    assert_eq!(agent.end().0, Some(0));
}

/// Without a key, agents and nodes on the loopback serve only their user.
#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn process_without_a_key_other_users_are_refused() {
    let other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let tried = common::farside(&other).arg("--version").output();
    if !tried.is_ok_and(|done| done.status.success()) {
        return println!(
            "SKIPPED: it starts a process of another user, which needs root and setpriv"
        );
    }
    let (mut agent, at) = Running::agent(&[], &["--listen", "127.0.0.1:0", "--insecure"]);
    let counted = output(&other, &["wordcount", "/etc/hostname", "--nodes", "1", "--on", &at]);
    assert_eq!(counted.status.code(), Some(1));
    assert!(text(&counted.stderr).contains("another user"), "{}", text(&counted.stderr));
    assert!(agent.event("refused")["reason"].as_str().unwrap().contains("user 65534"));
    let mut node = Running::node(&[], &["--listen", "127.0.0.1:0"]);
    let started = node.event("started");
    let security = started["security"].as_str().unwrap();
    assert!(security.contains("for processes of this user alone"), "{security}");
    let address = started["address"].as_str().unwrap();
    let joined = output(&other, &["--json", "node", "--listen", "127.0.0.1:0", "--join", address]);
    let (code, kind, said) = common::failure(&joined);
    assert_eq!((code, kind.as_str()), (Some(1), "NotPermitted"), "{said}");
    assert!(said.contains("another user") && said.contains("farside key new"), "{said}");
    let mut own = Running::node(&[], &["--listen", "127.0.0.1:0", "--join", address]);
    assert_eq!(own.started().0, 1);
}

#[test]
fn process_channels_are_measured_over_tcp() {
    let folder = Folder::new();
    let key = folder.key("key");
    let (_agent, at) = Running::agent(&[], &["--listen", "127.0.0.2:0", "--key", &key]);
    let fixed =
        ["bench", "channels", "--json", "--windows", "8", "--clients", "2", "--readers", "2"];
    let channels = ["--channel", "ring-immediate,read-slot-detached,read-ring-notify"];
    let size = ["--bytes", "4096"];
    let common = [&fixed[..], &channels, &size].concat();
    let found = report(&output(&[], &[&common[..], &["--fabric", "tcp"]].concat()));
    assert_eq!((&found["profile"], &found["failed"]), (&"tcp".into(), &0.into()), "{found}");
    assert_eq!(found["figures"].as_array().unwrap().len(), 3, "{found}");
    assert_eq!(found["fan_figures"].as_array().unwrap().len(), 6, "{found}");
    let single = ["--pattern", "1:1", "--on", &at, "--key", &key];
    let found = report(&output(&[], &[&common[..], &single].concat()));
    assert_eq!(
        (found["failed"].as_u64(), found["figures"].as_array().unwrap().len()),
        (Some(0), 3)
    );
    assert_eq!(
        output(&[], &["bench", "channels", "--profile", "connectx5", "--fabric", "tcp"])
            .status
            .code(),
        Some(2)
    );
}
