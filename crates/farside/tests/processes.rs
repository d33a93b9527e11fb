//! Real processes over shared memory, and the state after one of them is killed.
//!
//! The test executable starts itself again as the other nodes: a child joins the cluster, plays its role, and
//! reports on its output.

use farside::{Config, ErrorCode, GlobalAddress, Node, NodeId, Session};
use farside_testkit::{Process, await_parent, role, say};
use std::future::Future;
use std::task::{Context, Waker};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(20);

fn config(cluster: &str) -> Config {
    // Lines that a killed process owns are not written back before.
    let write_back_ns = None;
    Config::new(cluster).memory_bytes(4 << 20).cache_bytes(16 << 20).write_back_ns(write_back_ns)
}

fn address(bits: &str) -> GlobalAddress {
    GlobalAddress::from_bits(bits.parse().unwrap()).unwrap()
}

/// Not a test by itself: the other processes.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let node = Node::join(&config(&role[0])).unwrap();
    let mut session = node.session().unwrap();
    match role[1..].join(" ").as_str() {
        "home" => {
            let address = session.alloc_on(4096, node.id()).unwrap();
            session.write(address, &[7; 4096]).unwrap();
            session.fence().unwrap();
            say(&format!("address {}", address.to_bits()));
        }
        "owner" => {
            let address = session.alloc_on(4096, NodeId(0)).unwrap();
            session.write(address, &[9; 4096]).unwrap();
            session.fence().unwrap();
            let token = session.lock_write(address, 64).unwrap().keep();
            say(&format!("address {}", address.to_bits()));
            say(&format!("token {token}"));
        }
        role => hold(&mut session, role),
    }
    // Until it is killed, or its parent is gone.
    await_parent();
}

/// Holds locks in the given way, and prints the address.
fn hold(session: &mut Session, how: &str) {
    let address = session.alloc_on(4096, NodeId(0)).unwrap();
    match how {
        "holds for writing" => {
            session.lock_write(address, 4096).unwrap().keep();
        }
        "holds for reading" => {
            session.lock_read(address, 4096).unwrap().keep();
        }
        "holds by an upgrade" => {
            let mut guard = session.lock_read(address, 4096).unwrap();
            guard.upgrade().unwrap();
            guard.keep();
        }
        "holds as the delegate" => {
            for _ in 0..3 {
                session.lock_write(address, 512).unwrap().unlock().unwrap();
            }
            session.lock_write(address, 512).unwrap().keep();
        }
        how => panic!("unknown role {how}"),
    }
    say(&format!("address {}", address.to_bits()));
}

fn parent(name: &str) -> (String, Node) {
    let cluster = format!("{name}-{}", std::process::id());
    let node = Node::create(&config(&cluster)).unwrap();
    (cluster, node)
}

fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

/// Waits until the node knows that only `alive` members are left.
fn wait_for_deaths(node: &Node, alive: usize) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while node.members().iter().filter(|member| member.alive).count() > alive {
        assert!(
            std::time::Instant::now() < deadline,
            "the death is not noticed: {}",
            node.describe()
        );
        std::thread::yield_now();
    }
}

#[test]
fn a_killed_home_takes_its_memory_and_nothing_else() {
    let (cluster, node) = parent("home");
    let mut lost = Process::child(&format!("{cluster} home"));
    let lost_address = address(&lost.hear("address"));
    let mut kept = Process::child(&format!("{cluster} home"));
    let kept_address = address(&kept.hear("address"));
    node.wait_for_members(3, PATIENCE).unwrap();
    let mut session = node.session().unwrap();
    let mut bytes = [0; 4096];
    session.read(lost_address, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
    lost.kill();
    wait_for_deaths(&node, 2);
    assert_eq!(code(session.read(lost_address, &mut bytes)), ErrorCode::NodeLost);
    assert_eq!(code(session.fetch_add(lost_address, 1)), ErrorCode::NodeLost);
    assert_eq!(code(session.lock_read(lost_address, 8)), ErrorCode::NodeLost);
    assert_eq!(code(session.free(lost_address)), ErrorCode::NodeLost);
    session.write(lost_address, &bytes).unwrap();
    assert_eq!(code(session.fence()), ErrorCode::NodeLost);
    session.read(kept_address, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096], "the other node's memory is as it was");
    session.write(kept_address, &[8; 4096]).unwrap();
    session.fence().unwrap();
    let mut again = Process::child(&format!("{cluster} home"));
    node.wait_for_members(3, PATIENCE).unwrap();
    let numbers: Vec<_> =
        node.members().iter().map(|member| (member.node.0, member.alive)).collect();
    assert_eq!(numbers, [(0, true), (1, false), (2, true), (3, true)], "no number is used again");
    again.kill();
    kept.kill();
}

#[test]
fn a_killed_owner_loses_what_only_it_had_and_its_locks() {
    let (cluster, node) = parent("owner");
    let mut owner = Process::child(&format!("{cluster} owner"));
    let address = address(&owner.hear("address"));
    let token: u64 = owner.hear("token").parse().unwrap();
    node.wait_for_members(2, PATIENCE).unwrap();
    let mut session = node.session().unwrap();
    assert_eq!(code(session.try_lock_write(address, 64)), ErrorCode::Busy);
    let mut bytes = [0; 512];
    session.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 512], "the first line has come home before the owner dies");
    owner.kill();
    wait_for_deaths(&node, 1);
    session.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [9; 512]);
    let second = address.checked_add(512).unwrap();
    assert_eq!(
        code(session.read(second, &mut bytes)),
        ErrorCode::LineLost,
        "never silently old data"
    );
    let guard = session.lock_write(address, 64).unwrap();
    assert!(guard.token() > token, "fencing tokens rise");
    guard.unlock().unwrap();
    session.free(address).unwrap();
    let fresh = session.alloc(4096).unwrap();
    session.read(fresh, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 512]);
}

#[test]
fn lock_of_a_killed_process_is_reported_as_abandoned() {
    let (cluster, node) = parent("told");
    let other = Node::join(&config(&cluster)).unwrap();
    let (mut here, mut there) = (node.session().unwrap(), other.session().unwrap());
    for (how, told) in [
        ("holds for writing", true),
        ("holds for reading", false),
        ("holds by an upgrade", true),
        ("holds as the delegate", true),
    ] {
        let mut holder = Process::child(&format!("{cluster} {how}"));
        let address = address(&holder.hear("address"));
        let taken = here.try_lock_write_for(address, 64, Duration::from_millis(5));
        assert_eq!(code(taken), ErrorCode::TimedOut);
        // A request that is given up learns nothing of the death; one that is granted does.
        let mut waiter = Box::pin(here.lock_write_async(address, 512));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waiter.as_mut().poll(&mut context).is_pending());
        holder.kill();
        wait_for_deaths(&node, 2);
        drop(waiter);
        let guard = there.lock_read(address, 64).unwrap();
        assert_eq!(guard.was_abandoned(), told, "{how}: a reader");
        guard.unlock().unwrap();
        let mut guard = there.lock_read(address, 512).unwrap();
        guard.upgrade().unwrap();
        assert_eq!(guard.was_abandoned(), told, "{how}: an upgrade");
        guard.unlock().unwrap();
        let guard = here.lock_write(address, 512).unwrap();
        assert!(!guard.was_abandoned(), "{how}: told once");
        guard.unlock().unwrap();
        there.free(address).unwrap();
    }
}

#[test]
fn waiter_learns_of_the_death_that_it_waited_for() {
    let (cluster, node) = parent("waiter");
    let mut owner = Process::child(&format!("{cluster} owner"));
    let address = address(&owner.hear("address"));
    owner.hear("token");
    node.wait_for_members(2, PATIENCE).unwrap();
    let mut session = node.session().unwrap();
    let killer = std::thread::spawn(move || owner.kill());
    // Granted when the holder dies, whichever comes first.
    session.lock_write(address, 64).unwrap().unlock().unwrap();
    killer.join().unwrap();
}

#[test]
fn a_killed_coordinator_is_replaced() {
    let cluster = format!("coordinator-{}", std::process::id());
    // The coordinator must be the killed node: a child creates the cluster.
    let (name, node) = (cluster.clone(), Node::create(&config(&cluster)).unwrap());
    let follower = Node::join(&config(&name)).unwrap();
    node.leave().unwrap();
    wait_for_deaths(&follower, 1);
    let deadline = std::time::Instant::now() + PATIENCE;
    let joined = loop {
        match Node::join(&config(&name)) {
            Ok(joined) => break joined,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
    };
    assert_eq!(joined.id(), NodeId(2));
    joined.wait_for_members(2, PATIENCE).unwrap();
}

#[test]
fn nothing_is_left_behind() {
    let (cluster, node) = parent("leftover");
    let mut other = Process::child(&format!("{cluster} home"));
    other.hear("address");
    node.wait_for_members(2, PATIENCE).unwrap();
    other.kill();
    wait_for_deaths(&node, 1);
    node.leave().unwrap();
    let names = farside_fabric_shm::listening().unwrap();
    assert!(!names.iter().any(|name| name.contains(&cluster)), "a socket is left: {names:?}");
    // The next node of any cluster removes the file of the killed one.
    parent("tidy").1.leave().unwrap();
    let folder = format!("/tmp/farside-{}", rustix::process::geteuid().as_raw());
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    assert_eq!(files.find(|file| file.contains(&cluster)), None);
    let left = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    assert!(
        left.filter(|entry| entry.file_name().to_string_lossy().contains("farside")).count() == 0
    );
}
