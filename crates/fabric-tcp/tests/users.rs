//! Without a key a loopback address is for one user: others can neither connect nor pretend to be the
//! listener. Needs root, to start processes of another user; without it, the tests report so and pass.

mod common;

use common::{free_endpoint, node, node_at};
use farside_bootstrap::{Admission, ClusterKey, Identity, Protect, Security};
use farside_fabric::{FabricError, LinkEvent, NotReached};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{Process, WATCHDOG, role};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;

/// A user that this test is not.
const OTHER: u32 = 65_534;
const OPENING: &[u8; 16] = b"farside\n\x01\0\0\0\0\0\0\0";

/// The role of a child process; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let role: Vec<&str> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["refused", to] => refused(to, "another user"),
        ["flood", to] => flood(to),
        ["pretend", at] => pretend(at),
        ["joins", to, key] => joins(to, key),
        ["serve", at] => serve(at),
        ["unmapped", to] => unmapped(to),
        _ => panic!("unknown role {role:?}"),
    }
}

fn keyed(key: &str) -> Security {
    let key = ClusterKey::from_hex(key).expect("a key");
    let identity = Identity::cluster_key(&key).expect("an identity");
    Security::new(identity, Protect::Everything).expect("what goes together")
}

/// Asserts that a dial fails, with a text that says why.
fn refused(to: &str, why: &str) {
    let mut node = node(TcpOptions::default());
    let link = node.port.connect(&format!("{to}/p"), b"", node.queue).expect("an address");
    let event = node.event();
    assert_eq!(event, LinkEvent::NotReached { link, why: NotReached::NotPermitted });
    let trouble = node.port.trouble(link).expect("a reason");
    assert!(trouble.contains(why) && trouble.contains("farside key new"), "{trouble}");
}

/// Connections that are held open take no entry: each is rejected with a reason and closed.
fn flood(to: &str) {
    let connect = |_| TcpStream::connect(to).expect("a listener");
    for mut stream in (0..400).map(connect).collect::<Vec<_>>() {
        let mut said = Vec::new();
        stream.read_to_end(&mut said).expect("to be told");
        assert_eq!((said.len(), said[10]), (16, 255));
    }
}

/// Pretends to be a fabric that admits every user.
fn pretend(at: &str) {
    let listener = TcpListener::bind(at).expect("a free address");
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.write_all(OPENING).expect("to write");
    let _ = stream.read_to_end(&mut Vec::new());
}

fn joins(to: &str, key: &str) {
    let mut node = node(TcpOptions { security: keyed(key), ..TcpOptions::default() });
    let (link, region) = node.connect(&format!("{to}/p"));
    node.works(link, region);
}

/// Accepts every link, until it is killed.
fn serve(at: &str) {
    let mut node = node_at(at, TcpOptions::default());
    loop {
        match node.event() {
            LinkEvent::Requested { link, .. } => drop(node.accept_link(link)),
            event => node.port.close(event.link()),
        }
    }
}

/// Runs as a process whose user is not mapped in its user namespace: other users may have the same
/// number.
fn unmapped(to: &str) {
    let listen = Some(free_endpoint());
    let started = TcpFabric::new(TcpOptions { listen, ..TcpOptions::default() }).map(drop);
    let Err(FabricError::NotPermitted(text)) = started else { panic!("{started:?}") };
    assert!(text.contains("user namespace") && text.contains("farside key new"), "{text}");
    refused(to, "user namespace");
}

/// Returns a child of another user.
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn other(role: &str) -> Option<Process> {
    let root = rustix::process::geteuid().is_root();
    let child = root.then(|| {
        let mut command = Process::command(&[], role);
        command.uid(OTHER).gid(OTHER);
        Process::try_start(command).ok()
    });
    let child = child.flatten();
    if child.is_none() {
        println!(
            "SKIPPED: it starts a process of another user, which needs root and a path for it"
        );
    }
    child
}

#[test]
fn other_users_are_refused_and_take_no_place() {
    let listen = free_endpoint().to_string();
    let mut node = node_at(&listen, TcpOptions::default());
    assert_eq!(node.fabric.admission(), Some(&Admission::ThisUser));
    for role in ["refused", "flood"] {
        let Some(attacker) = other(&format!("{role} {listen}")) else { return };
        let mut own = common::node(TcpOptions::default());
        let link = own.port.connect(&format!("{listen}/p"), b"", own.queue).expect("an address");
        let there = node.accept();
        let event = own.event();
        assert!(matches!(event, LinkEvent::Connected { link: same, .. } if same == link));
        assert!(attacker.succeeds(), "{role}");
        drop(own);
        assert_eq!(node.event().link(), there);
        node.port.close(there);
    }
}

#[test]
fn a_listener_of_another_user_is_not_trusted() {
    let listen = free_endpoint().to_string();
    let Some(pretender) = other(&format!("pretend {listen}")) else { return };
    let start = std::time::Instant::now();
    // It accepts one connection alone: this one must not be it.
    while !is_listening(&listen) {
        assert!(start.elapsed() < WATCHDOG, "it does not listen");
        std::thread::yield_now();
    }
    refused(&listen, &format!("user {OTHER}"));
    assert!(pretender.succeeds());
}

fn is_listening(at: &str) -> bool {
    let at: std::net::SocketAddrV4 = at.parse().expect("an address");
    let ip = u32::from_ne_bytes(at.ip().octets());
    let wanted = format!("{ip:08X}:{:04X} 00000000:0000 0A", at.port());
    std::fs::read_to_string("/proc/net/tcp").is_ok_and(|table| table.contains(&wanted))
}

#[test]
fn with_a_key_other_users_are_let_in() {
    let listen = free_endpoint().to_string();
    let key = "5e".repeat(32);
    let mut node = node_at(&listen, TcpOptions { security: keyed(&key), ..TcpOptions::default() });
    assert_eq!(node.fabric.admission(), Some(&Admission::Identity));
    let Some(joiner) = other(&format!("joins {listen} {key}")) else { return };
    node.accept();
    assert!(joiner.succeeds());
}

/// Sets its limit of descriptors to those that it has open now, and `more`.
fn limit_descriptors(process: &Process, more: usize) {
    let id = Pid::from_raw(process.id().cast_signed());
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.id())).expect("its descriptors");
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse::<u64>().ok();
    let open: Vec<u64> = open.map(|entry| entry.expect("one")).filter_map(number).collect();
    // The limit is on descriptor numbers, so the free ones below it count.
    let free = (0..).filter(|number| !open.contains(number)).nth(more);
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit { current: free, maximum };
    prlimit(id, Resource::Nofile, limit).expect("to limit a child");
}

/// A node that has no descriptor left to query the owner of a connection neither admits others nor
/// refuses its own user.
#[test]
fn a_node_without_descriptors_does_not_take_its_own_user_for_another() {
    let listen = free_endpoint().to_string();
    let to = format!("{listen}/p");
    let server = Process::child(&format!("serve {listen}"));
    let mut own = common::node(TcpOptions::default());
    own.connect(&to);
    // One more is accepted, and no descriptor is left to query its owner.
    limit_descriptors(&server, 1);
    let mut second = node(TcpOptions::default());
    let link = second.port.connect(&to, b"", second.queue).expect("an address");
    let event = second.event();
    let trouble = second.port.trouble(link);
    // As it is accepted before it is closed, or not.
    let not_reached = [NotReached::HungUp, NotReached::Unreachable]
        .map(|why| LinkEvent::NotReached { link, why });
    assert!(not_reached.contains(&event), "{event:?} {trouble:?}");
    limit_descriptors(&server, 64);
    let (link, region) = second.connect(&to);
    second.works(link, region);
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn the_number_of_unmapped_users_is_no_user() {
    let tried = std::process::Command::new("unshare").args(["--user", "true"]).status();
    if !tried.is_ok_and(|status| status.success()) {
        return println!("SKIPPED: no namespaces of users here (unshare --user)");
    }
    let listen = free_endpoint().to_string();
    let node = node_at(&listen, TcpOptions::default());
    let child =
        Process::start(Process::command(&["unshare", "--user"], &format!("unmapped {listen}")));
    assert!(child.succeeds());
    drop(node);
}
