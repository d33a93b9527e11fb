//! Direct reads: lines of another home read in its memory, without its processor.

mod fabrics;

use fabrics::{Make, cluster};
use farside::{
    AllocationHint, AllocationSpec, Config, ErrorCode, GlobalAddress, LineSize, Node, NodeId,
    Session,
};
use farside_testkit::{Process, WATCHDOG, await_parent, role, say, unique_name, until};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm => (
    read_of_a_lines_home_sends_nothing_and_caches_nothing
    read_sees_every_fenced_write
    reads_see_whole_lines_in_rising_order
    freed_memory_is_not_read
    nodes_that_switch_it_off_use_messages
) with crate::fabrics::named }

fn config(test: &str) -> Config {
    Config::new(unique_name(test)).memory_bytes(4 << 20).cache_bytes(4 << 20)
}

/// Two nodes, a session of each, and memory of the first.
fn pair(make: &Make, config: &Config, bytes: u64) -> (Vec<Node>, Session, Session, GlobalAddress) {
    let nodes = cluster(make, config, 2);
    let (mut home, reader) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    let address = home.alloc_on(bytes, NodeId(0)).unwrap();
    (nodes, home, reader, address)
}

fn read_of_a_lines_home_sends_nothing_and_caches_nothing(make: &Make) {
    let (nodes, mut home, mut reader, address) = pair(make, &config("silent"), 4096);
    home.write(address, &[7; 4096]).unwrap();
    let before = nodes[1].stats();
    let mut bytes = [0; 4096];
    for _ in 0..10 {
        reader.read(address, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
        assert_eq!(reader.read_u64(address).unwrap(), 0x0707_0707_0707_0707);
    }
    let after = nodes[1].stats();
    assert_eq!(after.direct_reads - before.direct_reads, 10 * (4096 / 512 + 1));
    assert_eq!((after.hits, after.misses), (before.hits, before.misses));
    assert_eq!(after.work_requests, before.work_requests);
    // The home owns the line still.
    let misses = nodes[0].stats().misses;
    home.write_u64(address, 8).unwrap();
    assert_eq!(nodes[0].stats().misses, misses);
    assert_eq!(reader.read_u64(address).unwrap(), 8);
}

fn read_sees_every_fenced_write(make: &Make) {
    let (nodes, mut home, mut reader, address) = pair(make, &config("fenced"), 4096);
    for round in 1..=200 {
        // The home and the other node own the line alternately; a read by the home takes it back.
        let (writer, other) = match round % 2 {
            0 => (&mut home, &mut reader),
            _ => (&mut reader, &mut home),
        };
        writer.write_u64(address, round).unwrap();
        writer.fence().unwrap();
        assert_eq!(other.read_u64(address).unwrap(), round);
        assert_eq!(writer.read_u64(address).unwrap(), round);
    }
    let mut third = nodes[1].session().unwrap();
    third.write_u64(address, 1000).unwrap();
    assert_eq!(third.read_u64(address).unwrap(), 1000, "its own write, which may be in flight");
    third.fence().unwrap();
    assert_eq!(reader.read_u64(address).unwrap(), 1000);
    assert!(nodes[1].stats().direct_reads > 0);
}

/// A writer of the home and one of a third node write lines of equal, rising words.
fn reads_see_whole_lines_in_rising_order(make: &Make) {
    let nodes = cluster(make, &config("whole"), 3);
    let mut home = nodes[0].session().unwrap();
    let spec = AllocationSpec::new(AllocationHint::On(NodeId(0)));
    let line = home.alloc_with(2048, spec.line_size(LineSize::from_bytes(2048))).unwrap();
    let rounds = 3000_u64;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut other = nodes[2].session().unwrap();
            for round in 1..=rounds {
                let bytes = round.to_le_bytes().repeat(256);
                let writer = if round % 16 == 0 { &mut other } else { &mut home };
                writer.write(line, &bytes).unwrap();
                writer.fence().unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut reader = nodes[1].session().unwrap();
        let (mut bytes, mut newest) = ([0; 2048], 0);
        while !done.load(Ordering::SeqCst) || newest < rounds {
            reader.read(line, &mut bytes).unwrap();
            let word = reader_word(&bytes);
            assert!(bytes.chunks(8).all(|part| part == word.to_le_bytes()), "a torn line");
            assert!(word >= newest, "{word} after {newest}");
            newest = word;
        }
    });
    assert!(nodes[1].stats().direct_reads > 0);
}

fn reader_word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn freed_memory_is_not_read(make: &Make) {
    let (_nodes, mut home, mut reader, address) = pair(make, &config("freed"), 64);
    home.write_u64(address, 5).unwrap();
    assert_eq!(reader.read_u64(address).unwrap(), 5);
    assert_eq!(
        reader.read(address.checked_add(60).unwrap(), &mut [0; 8]).unwrap_err().code,
        ErrorCode::OutOfBounds
    );
    home.free(address).unwrap();
    assert_eq!(reader.read_u64(address).unwrap_err().code, ErrorCode::Unallocated);
}

fn nodes_that_switch_it_off_use_messages(make: &Make) {
    let config = config("off").direct_reads(false);
    let (nodes, mut home, mut reader, address) = pair(make, &config, 64);
    home.write_u64(address, 5).unwrap();
    assert_eq!(reader.read_u64(address).unwrap(), 5);
    assert_eq!(reader.read_u64(address).unwrap(), 5);
    let stats = nodes[1].stats();
    assert_eq!((stats.direct_reads, stats.misses, stats.hits), (0, 1, 1));
}

/// Not a test by itself: a home in a process of its own.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [cluster, end] = &role[..] else { panic!("{role:?}") };
    let node = Node::join(&child_config(cluster)).unwrap();
    let mut session = node.session().unwrap();
    let word = session.alloc_on(8, node.id()).unwrap();
    session.write_u64(word, 7).unwrap();
    say(&format!("has {}", word.to_bits()));
    await_parent();
    drop(session);
    if end == "leaves" {
        node.leave().unwrap();
    }
}

fn child_config(cluster: &str) -> Config {
    // No stopped member is removed within a test.
    let config = Config::new(cluster).memory_bytes(4 << 20).cache_bytes(4 << 20);
    config.lease_ns(600_000_000_000)
}

/// This process founds a cluster that another one joins; the address is of a word there, which is 7.
fn with_home(test: &str, end: &str) -> (Node, Process, GlobalAddress) {
    let cluster = unique_name(test);
    let node = Node::create(&child_config(&cluster)).unwrap();
    let mut home = Process::child(&format!("{cluster} {end}"));
    let bits = home.hear("has ").parse().unwrap();
    // The home is linked to this node, but this node may be linked to the home later.
    node.wait_for_members(2, WATCHDOG).unwrap();
    (node, home, GlobalAddress::from_bits(bits).unwrap())
}

#[test]
fn stopped_home_is_read() {
    let (node, mut home, word) = with_home("stopped", "stays");
    let mut session = node.session().unwrap();
    assert_eq!(session.read_u64(word).unwrap(), 7);
    home.stop();
    let before = node.stats();
    for _ in 0..1000 {
        assert_eq!(session.read_u64(word).unwrap(), 7);
    }
    assert_eq!(node.stats().direct_reads, before.direct_reads + 1000);
    session.set_timeout(Some(Duration::from_millis(50)));
    session.write_u64(word, 8).unwrap();
    assert_eq!(session.fence().unwrap_err().code, ErrorCode::TimedOut, "ownership needs the home");
    home.resume();
    session.set_timeout(None);
    session.fence().unwrap();
    assert_eq!(session.read_u64(word).unwrap(), 8);
    home.say("end");
    home.wait();
}

/// Reads the word until its home is gone: the value is the one that it has, or there is none.
fn reads_until_lost(node: &Node, word: GlobalAddress, end: impl FnOnce()) -> ErrorCode {
    let reading = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut session = node.session().unwrap();
            loop {
                match session.read_u64(word) {
                    Ok(value) => assert_eq!(value, 7),
                    Err(error) => return error.code,
                }
                reading.store(true, Ordering::SeqCst);
            }
        });
        until("a read", || reading.load(Ordering::SeqCst));
        end();
        reader.join().unwrap()
    })
}

#[test]
fn killed_home_is_read_until_it_is_removed() {
    let (node, mut home, word) = with_home("killed", "stays");
    assert_eq!(reads_until_lost(&node, word, || home.kill()), ErrorCode::NodeLost);
}

#[test]
fn home_that_leaves_is_read_until_it_has_left() {
    for end in ["leaves", "drops"] {
        let (node, mut home, word) = with_home("leaves", end);
        let code = reads_until_lost(&node, word, || {
            home.say("end");
            home.wait();
        });
        assert!([ErrorCode::NodeLeft, ErrorCode::NodeLost].contains(&code), "{end}: {code:?}");
    }
}
