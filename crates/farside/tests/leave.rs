//! Nodes that leave while others work: no memory of other nodes is lost.
//!
//! `FARSIDE_RUNS` sets the number of rounds of the longest test.

mod fabrics;

use fabrics::{Make, cluster, mem, shm};
use farside::{Config, ErrorCode, GlobalAddress, Node, Session};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::WATCHDOG;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};

farside_testkit::on_each_fabric! { mem shm tcp => (
    asynchronous_writes_are_handed_over
    locks_and_waiters_are_handed_over
    memory_of_a_home_that_left_fails_with_node_left
    all_leave_together_without_an_error
    atomics_of_several_lines_end_when_their_node_leaves
)}

/// The number of joins that one cluster has room for besides its first nodes.
const ROUNDS_OF_A_CLUSTER: u64 = 100;

fn tcp() -> Box<Make> {
    let hosts = Mutex::new(Vec::new());
    Box::new(move || {
        let mut hosts = hosts.lock().unwrap();
        let listen = Some("127.0.0.1:0".parse().unwrap());
        let first = hosts.first().cloned().into_iter().collect();
        let options = TcpOptions { listen, hosts: first, ..TcpOptions::default() };
        let fabric = TcpFabric::new(options).unwrap();
        hosts.push(fabric.listens_at().unwrap());
        Arc::new(fabric)
    })
}

fn named(fabric: &str) -> Box<Make> {
    if fabric == "tcp" { tcp() } else { fabrics::named(fabric) }
}

fn config(name: &str) -> Config {
    let name = format!("leave-{name}-{}", std::process::id());
    Config::new(name).memory_bytes(1 << 20).cache_bytes(4 << 20)
}

fn rounds() -> u64 {
    std::env::var("FARSIDE_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(30)
}

/// A node adds to a word of another's memory and leaves, while the home and further nodes read the word.
fn word_outlives_its_owner(make: &dyn Fn() -> Box<Make>, name: &str, readers: usize) {
    let mut left = rounds();
    while left > 0 {
        let (make, config) = (make(), config(name));
        let nodes = cluster(&make, &config, readers);
        let mut session = nodes[0].session().unwrap();
        for _ in 0..left.min(ROUNDS_OF_A_CLUSTER) {
            left -= 1;
            let word = session.alloc(8).unwrap();
            let stop = AtomicBool::new(false);
            let leaver = Node::join_on(&config, make()).unwrap();
            std::thread::scope(|scope| {
                for node in &nodes {
                    scope.spawn(|| poll_until_changed(node, word, &stop));
                }
                let mut session = leaver.session().unwrap();
                session.fetch_add(word, 1).unwrap();
                drop(session);
                leaver.leave().unwrap();
                stop.store(true, Ordering::Relaxed);
            });
            assert_eq!(session.read_u64(word), Ok(1));
        }
    }
}

fn poll_until_changed(node: &Node, word: GlobalAddress, stop: &AtomicBool) {
    let mut session = node.session().unwrap();
    while !stop.load(Ordering::Relaxed) && session.read_u64(word).unwrap() == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn word_outlives_its_owner_shm() {
    for readers in [1, 2, 4] {
        word_outlives_its_owner(&shm, "word", readers);
    }
}

#[test]
fn word_outlives_its_owner_tcp() {
    for readers in [1, 2, 4] {
        word_outlives_its_owner(&tcp, "word-tcp", readers);
    }
}

#[test]
fn word_outlives_its_owner_mem() {
    word_outlives_its_owner(&mem, "word-mem", 2);
}

/// Asynchronous writes to more lines than the cache has room for, without a fence.
fn asynchronous_writes_are_handed_over(fabric: &str) {
    let make = named(fabric);
    let config = config("writes");
    let nodes = cluster(&make, &config, 2);
    let small = config.cache_bytes(2 << 20);
    let leaver = Node::join_on(&small, make()).unwrap();
    let mut session = nodes[0].session().unwrap();
    let lines: Vec<GlobalAddress> = (0..400).map(|_| session.alloc(512).unwrap()).collect();
    let mut writer = leaver.session().unwrap();
    for (number, line) in (1_u64..).zip(&lines) {
        writer.write(*line, &number.to_le_bytes()).unwrap();
    }
    leaver.leave().unwrap();
    let mut reader = nodes[1].session().unwrap();
    for (number, line) in (1_u64..).zip(&lines) {
        assert_eq!(reader.read_u64(*line), Ok(number));
    }
    drop(writer);
}

/// The lock of a leaving node goes to the waiter of another node, and its own waiter fails with
/// `NodeClosed`.
fn locks_and_waiters_are_handed_over(fabric: &str) {
    let make = named(fabric);
    let config = config("locks");
    let mut nodes = cluster(&make, &config, 3);
    let address = nodes[0].session().unwrap().alloc(64).unwrap();
    let leaver = nodes.remove(1);
    let mut holder = leaver.session().unwrap();
    let mut guard = holder.lock_write(address, 64).unwrap();
    guard.write(address, &7_u64.to_le_bytes()).unwrap();
    let mut own_waiter = leaver.session().unwrap();
    let waiting = Barrier::new(3);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut session = nodes[1].session().unwrap();
            waiting.wait();
            let mut guard = session.lock_write(address, 64).unwrap();
            guard.read_u64(address).unwrap()
        });
        let own = scope.spawn(|| {
            waiting.wait();
            own_waiter.lock_write(address, 64).map(|_| ()).map_err(|error| error.code)
        });
        waiting.wait();
        leaver.leave().unwrap();
        assert_eq!(other.join().unwrap(), 7);
        assert_eq!(own.join().unwrap(), Err(ErrorCode::NodeClosed));
    });
    assert_eq!(guard.unlock().map_err(|error| error.code), Err(ErrorCode::NodeClosed));
}

fn memory_of_a_home_that_left_fails_with_node_left(fabric: &str) {
    let make = named(fabric);
    let config = config("home");
    let mut nodes = cluster(&make, &config, 2);
    let home = nodes.pop().unwrap();
    let address = home.session().unwrap().alloc(1_000).unwrap();
    let mut session = nodes[0].session().unwrap();
    session.write(address, &[1; 8]).unwrap();
    session.fence().unwrap();
    let mut locker = nodes[0].session().unwrap();
    locker.lock_write(address, 8).unwrap().unlock().unwrap();
    let departure = home.leave().unwrap();
    assert_eq!(departure.memory_bytes, 1_024);
    wait_until_gone(&nodes[0], 1);
    let code = |result: Result<(), farside::Error>| result.unwrap_err().code;
    assert_eq!(code(session.read(address, &mut [0; 8])), ErrorCode::NodeLeft);
    assert_eq!(code(session.read_atomic(address, &mut [0; 900])), ErrorCode::NodeLeft);
    assert_eq!(code(session.fetch_add(address, 1).map(|_| ())), ErrorCode::NodeLeft);
    assert_eq!(code(locker.lock_write(address, 8).map(|_| ())), ErrorCode::NodeLeft);
    assert_eq!(code(session.free(address)), ErrorCode::NodeLeft);
    assert_eq!(code(session.alloc_near(8, address).map(|_| ())), ErrorCode::NodeLeft);
    session.write(address, &[1; 8]).unwrap();
    assert_eq!(code(session.fence()), ErrorCode::NodeLeft);
}

fn wait_until_gone(node: &Node, alive: usize) {
    let begun = std::time::Instant::now();
    while node.members().iter().filter(|member| member.alive).count() > alive {
        assert!(begun.elapsed() < WATCHDOG, "the departure is not noticed");
        std::thread::yield_now();
    }
}

/// The end of a parallel program: each node owns lines of every other one.
fn all_leave_together_without_an_error(fabric: &str) {
    for round in 0..5 {
        let config = config(&format!("together-{round}"));
        let nodes = cluster(&named(fabric), &config, 4);
        let mut sessions: Vec<Session> = nodes.iter().map(|node| node.session().unwrap()).collect();
        let words: Vec<GlobalAddress> =
            sessions.iter_mut().flat_map(|s| [s.alloc(8).unwrap(), s.alloc(8).unwrap()]).collect();
        let start = Barrier::new(nodes.len());
        std::thread::scope(|scope| {
            for (node, mut session) in nodes.into_iter().zip(sessions) {
                let (words, start) = (&words, &start);
                scope.spawn(move || {
                    for word in words {
                        session.fetch_add(*word, 1).unwrap();
                    }
                    start.wait();
                    node.leave().unwrap();
                });
            }
        });
    }
}

#[test]
fn sessions_of_a_node_that_left_are_closed() {
    let make = shm();
    let config = config("closed");
    let mut nodes = cluster(&make, &config, 2);
    let word = nodes[0].session().unwrap().alloc(8).unwrap();
    let leaver = nodes.pop().unwrap();
    let clone = leaver.clone();
    let mut session = leaver.session().unwrap();
    session.fetch_add(word, 1).unwrap();
    leaver.leave().unwrap();
    assert_eq!(session.read_u64(word).map_err(|error| error.code), Err(ErrorCode::NodeClosed));
    assert_eq!(clone.session().map(|_| ()).map_err(|e| e.code), Err(ErrorCode::NodeClosed));
    assert_eq!(clone.leave().unwrap().memory_bytes, 0, "by a clone, once");
}

/// Atomics of several lines pin them one after the other, and hold the node's gate for such atomics.
fn atomics_of_several_lines_end_when_their_node_leaves(fabric: &str) {
    for round in 0..5 {
        let make = named(fabric);
        let config = config(&format!("atomics-{round}"));
        let mut nodes = cluster(&make, &config, 2);
        let leaver = nodes.pop().unwrap();
        let own = leaver.session().unwrap().alloc_on(2_000, leaver.id()).unwrap();
        let far = nodes[0].session().unwrap().alloc(2_000).unwrap();
        let begun = Barrier::new(3);
        std::thread::scope(|scope| {
            for address in [own, far] {
                let (leaver, begun) = (leaver.clone(), &begun);
                scope.spawn(move || {
                    let mut session = leaver.session().unwrap();
                    session.write_atomic(address, &[1; 2_000]).unwrap();
                    begun.wait();
                    let mut bytes = [0; 2_000];
                    let ended = loop {
                        let written = session.write_atomic(address, &[1; 2_000]);
                        if let Err(error) =
                            written.and_then(|()| session.read_atomic(address, &mut bytes))
                        {
                            break error;
                        }
                    };
                    assert_eq!(ended.code, ErrorCode::NodeClosed, "{ended}");
                });
            }
            begun.wait();
            leaver.clone().leave().unwrap();
        });
    }
}

#[test]
fn clones_that_leave_at_once_all_succeed() {
    let make = shm();
    let config = config("clones");
    let mut nodes = cluster(&make, &config, 2);
    let leaver = nodes.pop().unwrap();
    leaver.session().unwrap().alloc_on(64, leaver.id()).unwrap();
    let start = Barrier::new(4);
    let gone: u64 = std::thread::scope(|scope| {
        let leave = || {
            let node = leaver.clone();
            start.wait();
            node.leave().unwrap().memory_bytes
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(leave)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(gone, 512, "one of them tells what went");
}
