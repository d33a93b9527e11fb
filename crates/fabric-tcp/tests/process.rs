//! Real processes, of which some are killed with kill -9, stopped, or do nothing at all.

mod common;

use common::{TestNode, free_endpoint, node, node_at};
use farside_base::{CompletionStatus, LinkId, Operation, RemoteRegionId, RemoteSlice, Source};
use farside_fabric::{Fabric, FabricError, LinkEvent, Loss};
use farside_fabric_tcp::TcpOptions;
use farside_testkit::{Process, RECEIVE_BYTES, WATCHDOG, role};
use std::time::{Duration, Instant};

/// The role of a child process; does nothing in an ordinary run.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let role: Vec<&str> = role.iter().map(String::as_str).collect();
    match role[..] {
        ["echo", listen] => echo(listen),
        ["idle", listen] => idle(listen),
        ["stream", to] => stream(to),
        ["hammer", to] => hammer(to),
        _ => panic!("unknown role {role:?}"),
    }
}

fn options() -> TcpOptions {
    TcpOptions { lease: Duration::from_millis(500), ..TcpOptions::default() }
}

/// Accepts every peer and answers every message with the word after it, until it is killed.
fn echo(listen: &str) {
    let mut node = node_at(listen, options());
    loop {
        node.until("anything", |node| {
            (!node.events.is_empty() || !node.completions.is_empty()).then_some(())
        });
        for event in std::mem::take(&mut node.events) {
            if let LinkEvent::Requested { link, .. } = event {
                node.accept_link(link);
            }
        }
        for received in std::mem::take(&mut node.completions) {
            if received.bytes == 8 {
                let word = node.word_of(&received);
                node.post_receive(received.id.0);
                node.try_send(received.link, word + 1);
            }
        }
    }
}

/// Accepts one link and never calls the port again.
fn idle(listen: &str) {
    let mut node = node_at(listen, options());
    node.accept();
    loop {
        std::thread::park();
    }
}

/// Sends 1, 2, 3, ... as fast as it can, until it is killed.
fn stream(to: &str) {
    let mut node = node(options());
    let (link, _) = node.connect(to);
    for word in 1.. {
        while !node.try_send(link, word) {
            node.poll();
        }
    }
}

/// The target offset of `hammer`, its bytes per WRITE, and its source offset.
const HAMMERED: u64 = 512 << 10;
const BLOW: u32 = 256 << 10;
const HAMMERS: [u64; 2] = [0, 256 << 10];

/// Overwrites a large part of the peer's region with one pattern and another, until it is refused.
fn hammer(to: &str) {
    let mut node = node(options());
    let (link, region) = node.connect(to);
    for (from, byte) in HAMMERS.into_iter().zip([0x11, 0x22]) {
        node.region.arena.write(from, &vec![byte; BLOW as usize]).expect("in bounds");
    }
    for from in HAMMERS.into_iter().cycle() {
        let slices = [node.slice(from, BLOW)];
        let to = RemoteSlice { region, offset: HAMMERED };
        let source = Source::Gather(&slices);
        let write = Operation::Write { source, to, immediate: None };
        if node.perform(link, write).status != CompletionStatus::Success {
            break;
        }
    }
    loop {
        std::thread::park();
    }
}

/// Returns a child in this role, and a link to it.
fn linked(node: &mut TestNode, role: &str) -> (Process, LinkId, RemoteRegionId, String) {
    let listen = free_endpoint().to_string();
    let helper = Process::child(&format!("{role} {listen}"));
    let address = format!("{listen}/p");
    let (link, region) = node.connect(&address);
    node.works(link, region);
    (helper, link, region, address)
}

fn echoes(node: &mut TestNode, link: LinkId, word: u64) {
    assert!(node.try_send(link, word));
    assert_eq!(node.message(), word + 1);
}

#[test]
fn kill_9_ends_the_links_of_the_dead_and_no_other() {
    let mut node = node(options());
    let (mut dying, lost, gone, _) = linked(&mut node, "echo");
    let (_living, link, region, _) = linked(&mut node, "echo");
    echoes(&mut node, lost, 7);
    dying.kill();
    assert_eq!(node.event(), LinkEvent::Lost { link: lost, loss: Loss::Ended });
    let trouble = node.port.trouble(lost).expect("words");
    assert!(trouble.contains("reconnect"), "{trouble}");
    let slices = [node.slice(0, 8)];
    let source = Source::Gather(&slices);
    let to = RemoteSlice { region: gone, offset: 0 };
    let write = Operation::Write { source, to, immediate: None };
    assert_eq!(node.perform(lost, write).status, CompletionStatus::PeerLost);
    assert_eq!(node.perform(lost, write).status, CompletionStatus::Flushed);
    echoes(&mut node, link, 1);
    node.works(link, region);
    node.port.close(lost);
    echoes(&mut node, link, 2);
}

#[test]
fn a_program_that_does_nothing_serves_its_memory() {
    let mut node = node(options());
    let (_helper, link, region, _) = linked(&mut node, "idle");
    for expected in 0..1000 {
        let at = RemoteSlice { region, offset: 64 };
        let add = Operation::FetchAdd { at, add: 1, into: node.slice(32, 8) };
        assert_eq!(node.perform(link, add).status, CompletionStatus::Success);
        assert_eq!(node.word(32), expected);
    }
    node.works(link, region);
}

/// A stopped process is silent: the link ends on both sides within the lease, and a new one works.
#[test]
fn a_stopped_process_is_unreachable_and_comes_back() {
    let mut node = node(options());
    let (helper, link, region, address) = linked(&mut node, "echo");
    let (_living, other, there, _) = linked(&mut node, "echo");
    helper.stop();
    let slices = [node.slice(0, 8)];
    let from = RemoteSlice { region, offset: 0 };
    let read = node.work(link, 5, Operation::Read { into: &slices, from });
    assert_eq!(node.port.post(&[read, read]).accepted, 2);
    assert_eq!(node.event(), LinkEvent::Lost { link, loss: Loss::Unreachable });
    assert_eq!(node.completion().status, CompletionStatus::Unreachable);
    assert_eq!(node.completion().status, CompletionStatus::Flushed);
    let trouble = node.port.trouble(link).expect("words");
    assert!(trouble.contains("was silent for a lease"), "{trouble}");
    node.works(other, there);
    helper.resume();
    let (again, region) = node.connect(&address);
    echoes(&mut node, again, 1);
    node.works(again, region);
    node.works(other, there);
}

/// Silence of the programs for several leases ends no link.
#[test]
fn quiet_links_stay() {
    let mut node = node(options());
    let (_helper, link, region, _) = linked(&mut node, "idle");
    let start = Instant::now();
    let waiter = node.port.waiter();
    while start.elapsed() < 4 * options().lease {
        node.poll();
        if !node.port.arm() {
            farside_fabric::Waiter::wait(&*waiter, Some(Duration::from_millis(100)));
        }
        node.port.disarm();
    }
    assert_eq!(node.events, []);
    node.works(link, region);
}

/// Messages sent before the sender is killed arrive, in order, and then the loss.
#[test]
fn messages_of_a_killed_sender_arrive_before_its_loss() {
    let listen = free_endpoint().to_string();
    let mut node = node_at(&listen, options());
    for messages in [1, 100, 5000] {
        let mut sender = Process::child(&format!("stream {listen}/p"));
        let link = node.accept();
        for word in 1..=messages {
            assert_eq!(node.message(), word);
        }
        sender.kill();
        let mut next = messages + 1;
        let lost = node.until("the loss", |node| {
            for received in std::mem::take(&mut node.completions) {
                assert_eq!(node.word_of(&received), next, "no gap behind the dead");
                assert!(received.bytes <= RECEIVE_BYTES);
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

/// While a peer hammers on a region it is taken away: afterwards not one byte of the peer reaches it.
#[test]
fn nothing_reaches_a_deregistered_region() {
    for _ in 0..4 {
        let listen = free_endpoint().to_string();
        let mut node = node_at(&listen, options());
        let target = |node: &TestNode| {
            let mut bytes = vec![0; BLOW as usize];
            node.region.arena.read(HAMMERED, &mut bytes).expect("in bounds");
            bytes
        };
        let _hammer = Process::child(&format!("hammer {listen}/p"));
        node.accept();
        let start = Instant::now();
        let (mut changes, mut last) = (0, 0);
        while changes < 20 {
            assert!(start.elapsed() < WATCHDOG, "the peer does not come");
            let now = node.word(HAMMERED + u64::from(BLOW) / 2);
            changes += u32::from(now != last);
            last = now;
            std::hint::spin_loop();
        }
        node.fabric.deregister(node.region.id).expect("to revoke");
        let after = target(&node);
        for _ in 0..50 {
            assert!(target(&node) == after, "bytes came after the revocation");
            std::thread::yield_now();
        }
        let again = node.fabric.deregister(node.region.id);
        assert!(matches!(again, Err(FabricError::Unknown("region"))), "{again:?}");
    }
}

/// A link under constant load does not starve the others of its port.
#[test]
fn a_busy_link_starves_no_other() {
    let listen = free_endpoint().to_string();
    let mut node = node_at(&listen, options());
    let _stream = Process::child(&format!("stream {listen}/p"));
    let busy = node.accept();
    let _other = Process::child(&format!("stream {listen}/p"));
    let mut links = vec![busy];
    let (mut of_busy, mut of_other) = (0_u64, 0_u64);
    let start = Instant::now();
    while of_busy < 5000 || of_other < 5000 {
        assert!(
            start.elapsed() < WATCHDOG,
            "{of_busy} messages of one and {of_other} of the other"
        );
        node.poll();
        for event in std::mem::take(&mut node.events) {
            if let LinkEvent::Requested { link, .. } = event {
                links.push(node.accept_link(link));
            }
        }
        for received in std::mem::take(&mut node.completions) {
            let counter = if received.link == busy { &mut of_busy } else { &mut of_other };
            *counter += 1;
            node.post_receive(received.id.0);
        }
    }
    assert_eq!(links.len(), 2);
}
