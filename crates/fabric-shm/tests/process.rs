//! Real processes, of which some are killed with kill -9 or stopped in the middle of their work.

mod common;

use common::{TestNode, name, node, node_of};
use farside_base::{CompletionStatus, LinkId, Operation, RemoteSlice, Source};
use farside_fabric::{Fabric, FabricError, LinkEvent, Loss, PortSpec};
use farside_fabric_shm::{ShmFabric, ShmOptions};
use farside_testkit::{Process, WATCHDOG, role};
use std::time::Duration;

/// The role of a child process; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let role: Vec<&str> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["echo", listen] => echo(listen),
        ["stream", to] => stream(to),
        ["hammer", to] => hammer(to),
        _ => panic!("unknown role {role:?}"),
    }
}

/// Accepts every peer and answers every message with the word after it, until it is killed.
fn echo(listen: &str) {
    let mut node = node(Some(listen));
    loop {
        node.until("anything", |node| {
            (!node.events.is_empty() || !node.completions.is_empty()).then_some(())
        });
        for event in std::mem::take(&mut node.events) {
            if let LinkEvent::Requested { link, .. } = event {
                let token = node.region.token.encode();
                let accepted = node.port.accept(link, &token, node.queue);
                accepted.expect("the peer waits");
            }
        }
        for received in std::mem::take(&mut node.completions) {
            let word = node.word_of(&received);
            node.post_receive(received.id.0);
            assert!(node.try_send(received.link, word + 1));
        }
    }
}

/// Sends 1, 2, 3, ... as fast as it can, until it is killed.
fn stream(to: &str) {
    let mut node = node(None);
    let (link, _) = node.connect(to);
    for word in 1.. {
        while !node.try_send(link, word) {
            std::thread::yield_now();
        }
    }
}

/// The target offset of `hammer`, its bytes per WRITE, and its source offset.
const HAMMERED: u64 = 512 << 10;
const BLOW: u32 = 256 << 10;
const HAMMERS: [u64; 2] = [0, 256 << 10];

/// Overwrites a large part of the peer's region with one pattern and another, until it is killed.
fn hammer(to: &str) {
    let mut node = node(None);
    let (link, region) = node.connect(to);
    for (from, byte) in HAMMERS.into_iter().zip([0x11, 0x22]) {
        let pattern = vec![byte; BLOW as usize];
        node.region.arena.write(from, &pattern).expect("in bounds");
    }
    for from in HAMMERS.into_iter().cycle() {
        let slices = [node.slice(from, BLOW)];
        let write = Operation::Write {
            source: Source::Gather(&slices),
            to: RemoteSlice { region, offset: HAMMERED },
            immediate: None,
        };
        if node.perform(link, write).status != CompletionStatus::Success {
            // The region was deregistered, which the parent waits for.
            std::thread::park();
        }
    }
}

/// Waits until the peer hammers.
fn hammered(node: &TestNode) {
    let start = std::time::Instant::now();
    let mut changes = 0;
    let mut last = 0;
    while changes < 20 {
        assert!(start.elapsed() < WATCHDOG, "the peer does not come");
        let now = node.word(HAMMERED + u64::from(BLOW) / 2);
        changes += u32::from(now != last);
        last = now;
        std::hint::spin_loop();
    }
}

/// Returns a child that echoes, and a link to it.
fn echoing(node: &mut TestNode, listen: &str) -> (Process, LinkId, farside_base::RemoteRegionId) {
    let helper = Process::child(&format!("echo {listen}"));
    let (link, region) = node.connect(listen);
    node.works(link, region);
    (helper, link, region)
}

fn echoes(node: &mut TestNode, link: LinkId, word: u64) {
    assert!(node.try_send(link, word));
    assert_eq!(node.message(), word + 1);
}

/// Returns the files with our names, in all folders that may have any.
fn left_behind(listen: &str) -> Vec<String> {
    let user = rustix::process::geteuid().as_raw();
    let names = [format!("/tmp/farside-{user}"), format!("/run/user/{user}/farside")];
    let mut found = Vec::new();
    for folder in ["/dev/shm", "/tmp", "/run", "/var/tmp", &names[0], &names[1]] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let file = entry.file_name().to_string_lossy().into_owned();
            if file.contains(listen) {
                found.push(format!("{folder}/{file}"));
            }
        }
    }
    found
}

/// Returns whether a process listens at this name.
fn is_listening(listen: &str) -> bool {
    farside_fabric_shm::listening().expect("a right folder").iter().any(|name| name == listen)
}

#[test]
fn kill_9_ends_the_links_of_the_dead_and_no_other() {
    let mut node = node(None);
    let names = [name("dying"), name("living")];
    let (mut dying, lost, gone) = echoing(&mut node, &names[0]);
    let (_living, link, region) = echoing(&mut node, &names[1]);
    echoes(&mut node, lost, 7);
    assert_eq!((left_behind(&names[0]).len(), is_listening(&names[0])), (1, true));
    dying.kill();
    assert_eq!(node.event(), LinkEvent::Lost { link: lost, loss: Loss::Ended });
    let slices = [node.slice(0, 8)];
    let write = Operation::Write {
        source: Source::Gather(&slices),
        to: RemoteSlice { region: gone, offset: 0 },
        immediate: None,
    };
    let first = node.perform(lost, write);
    assert_eq!(first.status, CompletionStatus::PeerLost, "{first:?}");
    for _ in 0..3 {
        let next = node.perform(lost, write);
        assert_eq!(next.status, CompletionStatus::Flushed, "{next:?}");
    }
    node.works(link, region);
    echoes(&mut node, link, 9);
    assert!(!is_listening(&names[0]) && is_listening(&names[1]));
    // The name is free at once, and any listener removes the dead process's socket.
    let listen = Some(names[0].clone());
    drop(node.fabric.open(&PortSpec { listen }).expect("a free name"));
    assert_eq!(left_behind(&names[0]), [""; 0]);
}

#[test]
fn a_sleeper_learns_of_a_death() {
    let mut node = node(None);
    let listen = name("watched");
    let (mut dying, lost, _) = echoing(&mut node, &listen);
    let waiter = node.port.waiter();
    assert!(!node.port.arm(), "nothing is going on");
    let sleeper = std::thread::spawn(move || waiter.wait(Some(WATCHDOG)));
    dying.kill();
    assert!(sleeper.join().expect("no panic"), "the death did not wake");
    node.port.disarm();
    assert_eq!(node.event(), LinkEvent::Lost { link: lost, loss: Loss::Ended });
}

/// Messages put into the ring before the sender is killed arrive, in order, and then the loss.
#[test]
fn messages_of_a_killed_sender_arrive_before_its_loss() {
    let listen = name("receiver");
    let mut node = node(Some(&listen));
    for messages in [1, 100, 1000, 5000] {
        let mut sender = Process::child(&format!("stream {listen}"));
        let link = node.accept();
        for word in 1..=messages {
            assert_eq!(node.message(), word);
        }
        sender.kill();
        let mut next = messages + 1;
        let lost = node.until("the loss", |node| {
            for received in std::mem::take(&mut node.completions) {
                assert_eq!(node.word_of(&received), next, "no gap behind the dead");
                next += 1;
                node.post_receive(received.id.0);
            }
            node.events.pop()
        });
        assert_eq!(lost, LinkEvent::Lost { link, loss: Loss::Ended });
        assert_eq!(node.completions, [], "nothing arrives after the loss");
        node.port.close(link);
    }
}

/// One-sided requests need nothing of the target's process: it is stopped while they run.
#[test]
fn a_stopped_process_serves_its_memory() {
    let options = ShmOptions { control_timeout: Duration::from_millis(50), ..ShmOptions::DEFAULT };
    let fabric = ShmFabric::with_options(options).expect("a fabric");
    let mut node = node_of(fabric, None);
    let listen = name("stopped");
    let (helper, link, region) = echoing(&mut node, &listen);
    helper.stop();
    node.works(link, region);
    for expected in 0..100 {
        let add = Operation::FetchAdd {
            at: RemoteSlice { region, offset: 64 },
            add: 1,
            into: node.slice(32, 8),
        };
        assert_eq!(node.perform(link, add).status, CompletionStatus::Success);
        assert_eq!(node.word(32), expected);
    }
    // A peer that does not answer does not block the requester.
    let token = node.region.token;
    match node.port.import(link, &token) {
        Err(FabricError::System(_, reason)) => {
            assert_eq!(reason.kind(), std::io::ErrorKind::TimedOut);
        }
        other => panic!("a stopped fabric answered: {other:?}"),
    }
    helper.resume();
    echoes(&mut node, link, 1);
    node.works(link, region);
}

fn target(node: &TestNode) -> Vec<u8> {
    let mut bytes = vec![0; BLOW as usize];
    node.region.arena.read(HAMMERED, &mut bytes).expect("in bounds");
    bytes
}

/// A peer that is stopped within a copy delays no close. That copy is stored when the peer continues,
/// and nothing is stored after the port has reported that nothing may be.
#[test]
fn copy_of_a_stopped_process_may_land_until_it_or_its_process_has_ended() {
    let mut within = [0; 2];
    for round in 0..40 {
        let listen = name(&format!("closing-{round}"));
        let mut node = node(Some(&listen));
        let mut hammer = Process::child(&format!("hammer {listen}"));
        let link = node.accept();
        hammered(&node);
        hammer.stop();
        node.port.close(link);
        let lands = node.port.may_land(link);
        match round % 2 {
            0 => hammer.resume(),
            _ => hammer.kill(),
        }
        within[round % 2] += u32::from(lands);
        // Nothing wakes a port for that.
        let closed = std::time::Instant::now();
        while node.port.may_land(link) {
            assert!(closed.elapsed() < WATCHDOG, "its copy has not ended");
            std::thread::yield_now();
        }
        let after = target(&node);
        for _ in 0..20 {
            assert!(target(&node) == after, "bytes came after the end of the link");
            std::thread::yield_now();
        }
        if within.iter().all(|count| *count > 1) {
            return;
        }
    }
    panic!("stopped within a copy: {within:?}");
}

/// A region is deregistered again and again while a peer writes to it: afterwards not one byte of the
/// peer reaches it.
#[test]
fn nothing_reaches_a_deregistered_region() {
    let listen = name("owner");
    let mut node = node(Some(&listen));
    for _ in 0..8 {
        let _hammer = Process::child(&format!("hammer {listen}"));
        node.accept();
        hammered(&node);
        node.fabric.deregister(node.region.id).expect("to revoke");
        let after = target(&node);
        for _ in 0..20 {
            assert!(target(&node) == after, "bytes came after the revocation");
            std::thread::yield_now();
        }
        let fabric = node.fabric.clone();
        // The name must be free before it is taken again.
        drop(node);
        node = node_of(fabric, Some(&listen));
    }
}

/// A death in the middle of a request does not hold up deregistration.
#[test]
fn a_dead_peer_does_not_hold_up_deregistration() {
    let listen = name("held");
    let mut node = node(Some(&listen));
    let mut hammer = Process::child(&format!("hammer {listen}"));
    node.accept();
    hammered(&node);
    hammer.kill();
    node.fabric.deregister(node.region.id).expect("to revoke");
    let again = node.fabric.deregister(node.region.id);
    assert!(matches!(again, Err(FabricError::Unknown("region"))), "{again:?}");
}
