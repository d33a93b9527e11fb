//! Nodes on several hosts, as far as one process can show it: each has a fabric of its own, and the way
//! to it breaks.

#[path = "hosts/proxy.rs"]
mod proxy;

use farside::{Config, ErrorCode, Node, NodeId};
use farside_fabric::Fabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use proxy::Proxy;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A host: a node, its fabric, and the way there.
struct Host {
    node: Node,
    way: Proxy,
}

fn config(name: &str) -> Config {
    let name = format!("{name}-{}", std::process::id());
    Config { memory_bytes: 4 << 20, cache_bytes: 4 << 20, ..Config::new(name) }
}

/// A fabric behind a proxy, that knows some other hosts.
fn fabric(way: &Proxy, hosts: &[&Proxy], lease: Duration) -> TcpFabric {
    let options = TcpOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        advertise: Some(way.at().into()),
        hosts: hosts.iter().map(|host| host.at().into()).collect(),
        lease,
        ..TcpOptions::default()
    };
    let fabric = TcpFabric::new(options).unwrap();
    let listens_at = fabric.listens_at().unwrap().resolve().unwrap();
    way.leads_to(listens_at[0]);
    assert_eq!(fabric.host(), Some(way.at()));
    fabric
}

fn hosts(config: &Config, count: usize, lease: Duration) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for index in 0..count {
        let way = Proxy::new();
        // A joiner asks the last one that came, which sends it on to the first.
        let known: Vec<&Proxy> = hosts.last().map(|host| &host.way).into_iter().collect();
        let fabric = Arc::new(fabric(&way, &known, lease));
        let node = match index {
            0 => Node::create_on(config, fabric).unwrap(),
            _ => Node::join_on(config, fabric).unwrap(),
        };
        hosts.push(Host { node, way });
    }
    for host in &hosts {
        host.node.wait_for_members(count, Duration::from_secs(30)).unwrap();
    }
    hosts
}

/// All hosts add to words of every host, under atomics and locks, while something happens to the ways.
fn add_while(hosts: &[Host], rounds: u64, disturb: impl Fn(u64) + Sync) {
    let mut first = hosts[0].node.session().unwrap();
    let words: Vec<_> =
        (0..hosts.len()).map(|at| first.alloc_on(64, NodeId(at as u16)).unwrap()).collect();
    let locked = first.alloc_on(4096, NodeId(1)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut step = 0;
            while !done.load(Ordering::SeqCst) {
                disturb(step);
                step += 1;
            }
        });
        let adders: Vec<_> = hosts
            .iter()
            .map(|host| {
                let words = &words;
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
                    }
                })
            })
            .collect();
        for adder in adders {
            adder.join().unwrap();
        }
        done.store(true, Ordering::SeqCst);
    });
    let total = rounds * hosts.len() as u64;
    for host in hosts {
        let mut session = host.node.session().unwrap();
        for word in &words {
            assert_eq!(session.read_u64(*word).unwrap(), total, "{}", host.node.describe());
        }
        assert_eq!(session.read_u64(locked).unwrap(), total);
    }
}

/// Waits for something that takes its time.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

#[test]
fn links_that_break_lose_and_repeat_nothing() {
    let hosts = hosts(&config("broken"), 3, Duration::from_secs(5));
    add_while(&hosts, 150, |step| {
        let way = &hosts[step as usize % 3].way;
        let (before, served) = (way.connections(), hosts[0].node.stats().resumes);
        way.cut();
        // Something has to come back before the next one breaks.
        until("a link comes back", || {
            way.connections() > before || hosts[0].node.stats().resumes > served
        });
    });
    let resumes: u64 = hosts.iter().map(|host| host.node.stats().resumes).sum();
    assert!(resumes > 0);
    for host in &hosts {
        assert!(host.node.members().iter().all(|member| member.alive));
    }
}

#[test]
fn silence_shorter_than_the_lease_costs_time_alone() {
    let mut config = config("silent");
    config.lease_ns = 20_000_000_000;
    let hosts = hosts(&config, 2, Duration::from_millis(100));
    add_while(&hosts, 40, |step| {
        let way = &hosts[step as usize % 2].way;
        let resumed = hosts[0].node.stats().resumes;
        way.silence(true);
        // Longer than the fabric bears.
        until("a link is lost", || hosts[0].node.describe().contains("broken 1"));
        way.silence(false);
        until("a link comes back", || hosts[0].node.stats().resumes > resumed);
    });
}

#[test]
fn of_two_hosts_the_founder_goes_on_and_the_other_one_is_told() {
    let mut config = config("apart");
    config.lease_ns = 300_000_000;
    let hosts = hosts(&config, 2, Duration::from_millis(300));
    let mut here = hosts[0].node.session().unwrap();
    let mut there = hosts[1].node.session().unwrap();
    let word = here.alloc_on(64, NodeId(0)).unwrap();
    let lost = here.alloc_on(64, NodeId(1)).unwrap();
    there.write_u64(word, 1).unwrap();
    here.write_u64(lost, 1).unwrap();
    for host in &hosts {
        host.way.silence(true);
    }
    until(
        "the other one gives up",
        || matches!(there.read_u64(word), Err(error) if error.code == ErrorCode::Isolated),
    );
    until("the founder goes on", || {
        hosts[0].node.members().iter().filter(|member| member.alive).count() == 1
    });
    // What was cached of it counts until it must have noticed.
    until(
        "its memory is gone",
        || matches!(here.read_u64(lost), Err(error) if error.code == ErrorCode::NodeLost),
    );
    let code = here.read_u64(word).map_err(|error| error.code);
    assert!(matches!(code, Ok(1) | Err(ErrorCode::LineLost)), "{code:?}");
    assert_eq!(there.read_u64(lost).unwrap_err().code, ErrorCode::Isolated);
}
