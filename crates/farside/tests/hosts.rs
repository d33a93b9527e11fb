//! Nodes on several hosts, simulated in one process: each has its own fabric, and its network path breaks.

#[path = "hosts/proxy.rs"]
mod proxy;

use farside::{Config, ErrorCode, GlobalAddress, Node, NodeId};
use farside_fabric::Fabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{Process, Signal, role, say, until};
use proxy::Proxy;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Not a test by itself: the other process.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [cluster, host, lease_ns, silence_ns] = &role[..] else { panic!("{role:?}") };
    let host: SocketAddr = host.parse().unwrap();
    let config = Config::new(cluster)
        .memory_bytes(4 << 20)
        .cache_bytes(4 << 20)
        .lease_ns(lease_ns.parse().unwrap());
    let options = TcpOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        hosts: vec![host.into()],
        lease: Duration::from_nanos(silence_ns.parse().unwrap()),
        request_timeout: Duration::from_nanos(silence_ns.parse().unwrap()),
        ..TcpOptions::default()
    };
    let node = Node::join_on(&config, Arc::new(TcpFabric::new(options).unwrap())).unwrap();
    let mut session = node.session().unwrap();
    let mine = session.alloc_on(64, node.id()).unwrap();
    let theirs = session.alloc_on(64, NodeId(0)).unwrap();
    session.write_u64(mine, 7).unwrap();
    session.write_u64(theirs, 7).unwrap();
    session.lock_write(theirs, 64).unwrap().keep();
    say(&format!("has {} {}", mine.to_bits(), theirs.to_bits()));
    until("it is out", || match session.read_u64(theirs) {
        Ok(_) => false,
        Err(error) => {
            say(&format!("out {:?}", error.code));
            true
        }
    });
}

/// A host: a node, its fabric, and its network path.
struct TestHost {
    node: Node,
    way: Proxy,
}

fn config(name: &str) -> Config {
    let name = format!("{name}-{}", std::process::id());
    Config::new(name).memory_bytes(4 << 20).cache_bytes(4 << 20)
}

/// A fabric behind a proxy, that knows some other hosts.
fn fabric(way: &Proxy, hosts: &[&Proxy], lease: Duration) -> TcpFabric {
    let options = TcpOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        advertise: Some(way.at().into()),
        hosts: hosts.iter().map(|host| host.at().into()).collect(),
        lease,
        // Longer than any lease here: a node that waits for a lost dial waits too long.
        connect_timeout: Duration::from_secs(60),
        ..TcpOptions::default()
    };
    let fabric = TcpFabric::new(options).unwrap();
    let listens_at = fabric.listens_at().unwrap().resolve().unwrap();
    way.leads_to(listens_at[0]);
    assert_eq!(fabric.host(), Some(way.at()));
    fabric
}

fn hosts(config: &Config, count: usize, lease: Duration) -> Vec<TestHost> {
    let mut hosts: Vec<TestHost> = Vec::new();
    for index in 0..count {
        let way = Proxy::new();
        // A joiner asks the last node that joined, which redirects it to the first.
        let known: Vec<&Proxy> = hosts.last().map(|host| &host.way).into_iter().collect();
        let fabric = Arc::new(fabric(&way, &known, lease));
        let node = match index {
            0 => Node::create_on(config, fabric).unwrap(),
            _ => Node::join_on(config, fabric).unwrap(),
        };
        hosts.push(TestHost { node, way });
    }
    for host in &hosts {
        host.node.wait_for_members(count, Duration::from_secs(30)).unwrap();
    }
    hosts
}

/// All hosts add to words of every host, under atomics and locks, while `disturb` breaks the paths.
///
/// Between two disturbances one host completes a round: the number of disturbances has a bound.
fn add_while(hosts: &[TestHost], rounds: u64, disturb: impl Fn(u64) + Sync) {
    let mut first = hosts[0].node.session().unwrap();
    let words: Vec<_> =
        (0..hosts.len()).map(|at| first.alloc_on(64, NodeId(at as u16)).unwrap()).collect();
    let locked = first.alloc_on(4096, NodeId(1)).unwrap();
    let completed = AtomicU64::new(0);
    let total = rounds * hosts.len() as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut step = 0;
            while completed.load(Ordering::SeqCst) < total {
                let before = completed.load(Ordering::SeqCst);
                disturb(step);
                step += 1;
                until("a round is completed", || completed.load(Ordering::SeqCst) > before);
            }
        });
        let adders: Vec<_> = hosts
            .iter()
            .map(|host| {
                let (words, completed) = (&words, &completed);
                scope.spawn(move || {
                    let mut session = host.node.session().unwrap();
                    for round in 0..rounds {
                        for word in words {
                            session.fetch_add(*word, 1).unwrap();
                        }
                        let mut guard = session.lock_write(locked, 4096).unwrap();
                        let far = locked.checked_add(4088).unwrap();
                        let (near, there) = (guard.read_u64(locked), guard.read_u64(far));
                        let (near, there) = (near.unwrap(), there.unwrap());
                        assert_eq!(near, there, "round {round}");
                        guard.write_u64(locked, near + 1).unwrap();
                        guard.write_u64(far, near + 1).unwrap();
                        guard.unlock().unwrap();
                        completed.fetch_add(1, Ordering::SeqCst);
                    }
                })
            })
            .collect();
        for adder in adders {
            adder.join().unwrap();
        }
    });
    for host in hosts {
        let mut session = host.node.session().unwrap();
        for word in &words {
            assert_eq!(session.read_u64(*word).unwrap(), total, "{}", host.node.describe());
        }
        assert_eq!(session.read_u64(locked).unwrap(), total);
    }
}

/// Waits for a condition, with a deadline.
#[test]
fn links_that_break_lose_and_repeat_nothing() {
    let hosts = hosts(&config("broken"), 3, Duration::from_secs(5));
    add_while(&hosts, 150, |step| {
        let way = &hosts[step as usize % 3].way;
        let (before, served) = (way.connections(), hosts[0].node.stats().resumes);
        way.cut();
        // A broken link should reconnect before the next one breaks; it may be that none did.
        let patience = Instant::now() + Duration::from_millis(500);
        while way.connections() == before
            && hosts[0].node.stats().resumes == served
            && Instant::now() < patience
        {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    });
    let resumes: u64 = hosts.iter().map(|host| host.node.stats().resumes).sum();
    assert!(resumes > 0);
    for host in &hosts {
        assert!(host.node.members().iter().all(|member| member.alive));
    }
}

#[test]
fn silence_shorter_than_the_lease_only_delays() {
    let mut config = config("silent");
    config.lease_ns = 6_000_000_000;
    let hosts = hosts(&config, 2, Duration::from_millis(100));
    add_while(&hosts, 40, |_| {
        let resumed = hosts[0].node.stats().resumes;
        silence(&hosts, true);
        // Longer than the fabric's lease.
        until("a link is lost", || hosts[0].node.describe().contains("broken 1"));
        silence(&hosts, false);
        until("a link comes back", || hosts[0].node.stats().resumes > resumed);
    });
}

#[test]
fn dials_swallowed_by_an_outage_remove_no_member() {
    let mut config = config("swallowed");
    config.lease_ns = 6_000_000_000;
    let hosts = hosts(&config, 3, Duration::from_millis(300));
    let resumes = |host: &TestHost| host.node.stats().resumes;
    for at in 0..3 {
        let before: Vec<_> = hosts.iter().map(resumes).collect();
        let swallowed: Vec<_> = hosts.iter().map(|host| host.way.swallowed()).collect();
        hosts.iter().for_each(|host| host.way.swallow(true));
        until("a dial is swallowed", || {
            hosts.iter().zip(&swallowed).any(|(host, before)| host.way.swallowed() > *before)
        });
        hosts.iter().for_each(|host| host.way.swallow(false));
        until("all links are back", || {
            let linked = |host: &TestHost| host.node.describe().contains("broken 0");
            hosts.iter().zip(&before).any(|(host, before)| resumes(host) > *before)
                && hosts.iter().all(linked)
        });
        for host in &hosts {
            assert!(host.node.members().iter().all(|member| member.alive), "outage {at}");
        }
    }
}

fn silence(hosts: &[TestHost], silent: bool) {
    for host in hosts {
        host.way.silence(silent);
    }
}

#[test]
fn node_without_quorum_does_not_trust_its_cache() {
    let mut config = config("trust");
    config.lease_ns = 60_000_000_000;
    let hosts = hosts(&config, 2, Duration::from_millis(100));
    let mut session = hosts[1].node.session().unwrap();
    let word = session.alloc_on(64, NodeId(0)).unwrap();
    session.write_u64(word, 3).unwrap();
    session.fence().unwrap();
    assert_eq!(session.read_u64(word).unwrap(), 3, "cached");
    silence(&hosts, true);
    until("its link is lost", || hosts[1].node.describe().contains("broken 1"));
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| session.read_u64(word).unwrap());
        until("the read is held back", || hosts[1].node.describe().contains("held 1"));
        // The founder is a quorum by itself.
        let mut founder = hosts[0].node.session().unwrap();
        let own = founder.alloc_on(64, NodeId(0)).unwrap();
        founder.write_u64(own, 1).unwrap();
        assert!(!reader.is_finished());
        silence(&hosts, false);
        assert_eq!(reader.join().unwrap(), 3);
    });
}

#[test]
fn partition_of_two_hosts_isolates_the_later_one() {
    let mut config = config("apart");
    config.lease_ns = 300_000_000;
    let hosts = hosts(&config, 2, Duration::from_millis(300));
    let mut here = hosts[0].node.session().unwrap();
    let mut there = hosts[1].node.session().unwrap();
    let word = here.alloc_on(64, NodeId(0)).unwrap();
    let lost = here.alloc_on(64, NodeId(1)).unwrap();
    there.write_u64(word, 1).unwrap();
    here.write_u64(lost, 1).unwrap();
    // An unfenced write may still wait for its line, and be lost with its writer.
    there.fence().unwrap();
    here.fence().unwrap();
    silence(&hosts, true);
    until(
        "the other one gives up",
        || matches!(there.read_u64(word), Err(error) if error.code == ErrorCode::Isolated),
    );
    until("the founder goes on", || {
        hosts[0].node.members().iter().filter(|member| member.alive).count() == 1
    });
    // Its cached lines count as its own until it must have noticed.
    until(
        "its memory is gone",
        || matches!(here.read_u64(lost), Err(error) if error.code == ErrorCode::NodeLost),
    );
    let code = here.read_u64(word).map_err(|error| error.code);
    assert!(matches!(code, Ok(1) | Err(ErrorCode::LineLost)), "{code:?}");
    assert_eq!(there.read_u64(lost).unwrap_err().code, ErrorCode::Isolated);
}

/// A cluster of one node here, and one in another process that holds a line and a lock.
fn with_another(name: &str, lease: Duration) -> (Node, Process, GlobalAddress, GlobalAddress) {
    let lease_ns = u64::try_from(lease.as_nanos()).unwrap();
    let config = config(name).lease_ns(lease_ns);
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let fabric = TcpFabric::new(TcpOptions {
        listen,
        lease,
        request_timeout: lease,
        ..TcpOptions::default()
    });
    let fabric = fabric.unwrap();
    let host = fabric.host().unwrap();
    let node = Node::create_on(&config, Arc::new(fabric)).unwrap();
    let mut other =
        Process::child(&format!("{} {host} {lease_ns} {}", config.cluster, lease.as_nanos()));
    let has = other.hear("has ");
    let (mine, theirs) = has.split_once(' ').unwrap();
    let address = |bits: &str| GlobalAddress::from_bits(bits.parse().unwrap()).unwrap();
    (node, other, address(mine), address(theirs))
}

#[test]
fn a_killed_process_is_noticed_without_waiting_for_a_lease() {
    // No test waits for that long.
    let (node, other, lost, held) = with_another("killed", Duration::from_secs(600));
    let mut session = node.session().unwrap();
    assert_eq!(session.read_u64(lost).unwrap(), 7);
    other.signal(Signal::KILL);
    until("it is dead", || node.members().iter().filter(|member| member.alive).count() == 1);
    assert_eq!(session.read_u64(lost).unwrap_err().code, ErrorCode::NodeLost);
    // Its lock is free; its unshared writes are lost, or this node has seen them before.
    session.lock_write(held, 64).unwrap().unlock().unwrap();
    let code = session.read_u64(held).map_err(|error| error.code);
    assert!(matches!(code, Ok(7) | Err(ErrorCode::LineLost)), "{code:?}");
}

#[test]
fn stopped_process_is_removed_and_notified() {
    let (node, mut other, lost, held) = with_another("stopped", Duration::from_millis(300));
    let mut session = node.session().unwrap();
    other.stop();
    until(
        "it is given up",
        || matches!(session.read_u64(lost), Err(error) if error.code == ErrorCode::NodeLost),
    );
    session.lock_write(held, 64).unwrap().unlock().unwrap();
    other.signal(Signal::CONT);
    let code = other.hear("out ");
    assert!(["Isolated", "NodeClosed"].contains(&code.as_str()), "{code}");
}
