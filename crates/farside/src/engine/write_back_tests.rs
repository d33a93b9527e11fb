//! Driven nodes, so that each poll of an engine is a step of the test. No line becomes due by itself.

use crate::Node;
use crate::{AllocationHint, AllocationSpec, Config, ErrorCode, GlobalAddress, Joining, LineSize};
use farside_base::{LineAddress, NodeId, OperationId};
use farside_fabric::{Fabric, MemFabric};
use farside_protocol::coherence::{CoherenceEvent, Frame, Want};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls after which a test fails: far more than any of them needs.
const POLLS_MAX: usize = 1 << 16;
const LINE: u64 = 512;
/// Frames of the cache.
const FRAMES: u64 = 8;
/// An operation without a session, whose results are discarded.
const STRANGER: OperationId = OperationId(0xffff << 44);

fn cluster(name: &str, count: usize) -> Vec<Node> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    // A direct read needs no frame.
    let mut config = Config::new(name).direct_reads(false);
    (config.memory_bytes, config.cache_bytes) = (1 << 20, FRAMES * LINE);
    config.line_size = LineSize::all().find(|size| size.bytes() as u64 == LINE).unwrap();
    config.write_back_ns = Some(600_000_000_000);
    let mut nodes = vec![Node::create_driven(&config, Arc::clone(&fabric)).unwrap()];
    for _ in 1..count {
        let mut joining = Joining::start(&config, Arc::clone(&fabric)).unwrap();
        let joined = (0..POLLS_MAX).find_map(|_| {
            settle_once(&nodes);
            joining.poll().unwrap()
        });
        nodes.push(joined.expect("the cluster takes the node in"));
    }
    settle(&nodes);
    nodes
}

fn settle_once(nodes: &[Node]) {
    for node in nodes {
        node.progress();
    }
}

fn settle(nodes: &[Node]) {
    while nodes.iter().map(Node::progress).fold(false, |any, busy| any | busy) {}
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn finish<F: Future>(nodes: &[Node], future: F) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        settle_once(nodes);
    }
    panic!("the operation does not end");
}

fn alloc(nodes: &[Node], home: &Node, lines: u64) -> GlobalAddress {
    let spec = AllocationSpec::new(AllocationHint::On(home.id()));
    let mut session = nodes[0].session().unwrap();
    finish(nodes, session.alloc_with_async(lines * LINE, spec)).unwrap()
}

fn nth(first: GlobalAddress, number: u64) -> GlobalAddress {
    first.checked_add(number * LINE).unwrap()
}

/// Makes the second node own some lines from `first` on, after its engine has seen their last write.
fn own(nodes: &[Node], first: GlobalAddress, lines: u64) {
    let mut session = nodes[1].session().unwrap();
    for number in 0..lines {
        finish(nodes, session.write_async(nth(first, number), &[7; 8])).unwrap();
    }
    finish(nodes, session.fence_async()).unwrap();
    settle(nodes);
    turn_when_due(&nodes[1]);
    assert_eq!(queued(&nodes[1]) as u64, lines);
}

fn queued(node: &Node) -> usize {
    node.core().engine().write_backs.queue.len()
}

/// Polls the engine once; it checks each owned line.
fn turn_when_due(node: &Node) {
    {
        let mut engine = node.core().engine();
        engine.write_backs.queue.iter_mut().for_each(|entry| entry.due_ns = 0);
        engine.polls = u32::MAX; // the next poll checks
    }
    node.progress();
}

fn code<T: std::fmt::Debug>(result: Result<T, crate::Error>) -> ErrorCode {
    result.unwrap_err().code
}

/// The base case of the other tests in this file.
#[test]
fn due_line_is_written_back() {
    let nodes = cluster("due", 2);
    let first = alloc(&nodes, &nodes[0], 1);
    own(&nodes, first, 1);
    turn_when_due(&nodes[1]);
    assert_eq!(queued(&nodes[1]), 0);
    settle(&nodes);
    assert_eq!(nodes[1].stats().write_backs, 1);
}

#[test]
fn write_back_to_a_dead_home_fails() {
    let mut nodes = cluster("dead-home", 3);
    let first = alloc(&nodes, &nodes[2], 2);
    let mut session = nodes[1].session().unwrap();
    own(&nodes, first, 1);
    let bytes = 2 * LINE as usize;
    assert_eq!(finish(&nodes, session.write_back_async(first, bytes)), Ok(()));
    assert_eq!(nodes[1].stats().write_backs, 2, "the home is asked for a line without a frame");
    drop(nodes.pop());
    (0..POLLS_MAX).for_each(|_| settle_once(&nodes));
    for address in [first, nth(first, 1)] {
        let written = finish(&nodes, session.write_back_async(address, 8));
        assert_eq!(code(written), ErrorCode::NodeLost);
    }
}

#[test]
fn write_back_of_freed_memory_fails() {
    let nodes = cluster("freed", 2);
    let first = alloc(&nodes, &nodes[0], 1);
    let (mut home, mut other) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    own(&nodes, first, 1);
    assert_eq!(finish(&nodes, home.write_back_async(first, 8)), Ok(()));
    finish(&nodes, home.free_async(first)).unwrap();
    for session in [&mut home, &mut other] {
        let written = finish(&nodes, session.write_back_async(first, 8));
        assert_eq!(code(written), ErrorCode::Unallocated);
    }
}

#[test]
fn removed_node_does_not_wake_for_owned_lines() {
    let nodes = cluster("removed", 2);
    let first = alloc(&nodes, &nodes[0], 1);
    own(&nodes, first, 1);
    let mut engine = nodes[1].core().engine();
    assert_ne!(engine.wakes_in_ns(), u64::MAX);
    engine.close_with(ErrorCode::NodeClosed);
    assert_eq!(engine.wakes_in_ns(), u64::MAX);
    engine.owned(first.line());
    assert_eq!(engine.wakes_in_ns(), u64::MAX, "nothing comes into the queue any more");
    assert_eq!(engine.take_first_due(), None);
}

/// All lines of the set are being written back while an operation wants another one. They stay cached for
/// reading, so no frame becomes free by itself.
#[test]
fn operation_gets_a_frame_when_lines_have_been_placed() {
    let nodes = cluster("frameless", 2);
    let first = alloc(&nodes, &nodes[0], FRAMES + 1);
    let (mut home, mut other) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    own(&nodes, first, FRAMES);
    let mut copy = vec![0; (FRAMES * LINE) as usize];
    let mut read = pin!(home.read_async(first, &mut copy));
    assert!(poll(&mut read).is_pending());
    nodes[0].progress();
    nodes[1].core().engine().land_all();
    let mut word = [0; 8];
    let mut ninth = pin!(other.read_async(nth(first, FRAMES), &mut word));
    assert!(poll(&mut ninth).is_pending());
    assert_eq!(nodes[1].core().engine().coherence.frameless(), 1);
    assert_eq!(finish(&nodes, read), Ok(()));
    assert_eq!(finish(&nodes, ninth), Ok(()));
}

/// The home of the line that this node has changed is slow. In some order of the lines in the cache, the first write waits
/// until that line has left its frame, and the second could have another frame at once.
#[test]
fn write_does_not_pass_one_that_waits_for_a_frame() {
    let mut waited = 0;
    for slow in 0..FRAMES {
        let nodes = cluster("passing", 3);
        let lines = alloc(&nodes, &nodes[0], FRAMES);
        let of_slow = alloc(&nodes, &nodes[2], 1);
        let mut session = nodes[1].session().unwrap();
        let mut word = [0; 8];
        for number in 0..FRAMES {
            match number == slow {
                true => finish(&nodes, session.write_async(of_slow, &word)).unwrap(),
                false => finish(&nodes, session.read_async(nth(lines, number), &mut word)).unwrap(),
            }
            finish(&nodes, session.fence_async()).unwrap();
        }
        let wanted = nth(lines, slow);
        for value in 1..=2 {
            let posted = poll(&mut pin!(session.write_async(wanted, &[value; 8])));
            assert_eq!(posted, Poll::Ready(Ok(())));
        }
        settle(&nodes[..2]);
        waited += nodes[1].core().engine().coherence.frameless();
        finish(&nodes, session.fence_async()).unwrap();
        finish(&nodes, session.read_async(wanted, &mut word)).unwrap();
        assert_eq!(word, [2; 8], "line {slow} is of the slow home");
    }
    assert!(waited > 0);
}

/// Its session may have gone on, and have written the word by another operation.
#[test]
fn abandoned_atomic_has_no_effect_later() {
    let nodes = cluster("abandoned", 2);
    let first = alloc(&nodes, &nodes[0], 1);
    let (mut home, mut session) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    {
        let mut add = pin!(session.fetch_add_async(first, 1));
        assert!(poll(&mut add).is_pending());
    }
    finish(&nodes, session.fence_async()).unwrap();
    settle(&nodes);
    let mut word = [1; 8];
    finish(&nodes, home.read_async(first, &mut word)).unwrap();
    assert_eq!(word, [0; 8]);
}

/// The later ones have waited for the first.
#[test]
fn writes_to_an_absent_line_fail_together() {
    let mut nodes = cluster("absent", 3);
    let first = alloc(&nodes, &nodes[2], 1);
    let mut session = nodes[1].session().unwrap();
    drop(nodes.pop());
    for value in 0..3 {
        let posted = poll(&mut pin!(session.write_async(first, &[value; 8])));
        assert_eq!(posted, Poll::Ready(Ok(())));
    }
    assert_eq!(code(finish(&nodes, session.fence_async())), ErrorCode::NodeLost);
    assert_eq!(finish(&nodes, session.fence_async()), Ok(()), "it is reported once");
}

#[test]
fn home_that_was_just_answered_is_not_busy() {
    let nodes = cluster("traffic", 2);
    let first = alloc(&nodes, &nodes[0], 2);
    let mut home = nodes[0].session().unwrap();
    own(&nodes, first, 2);
    let mut word = [0; 8];
    let mut read = pin!(home.read_async(nth(first, 1), &mut word));
    assert!(poll(&mut read).is_pending());
    nodes[0].progress();
    turn_when_due(&nodes[1]);
    assert_eq!(queued(&nodes[1]), 0, "one was recalled, the other is written back");
    assert_eq!(finish(&nodes, read), Ok(()));
    settle(&nodes);
    assert_eq!(nodes[1].stats().write_backs, 1);
}

#[test]
fn line_that_is_being_changed_or_kept_is_not_written_back() {
    let nodes = cluster("in-use", 2);
    let first = alloc(&nodes, &nodes[0], 1);
    own(&nodes, first, 1);
    let line: LineAddress = first.line();
    let lines = Arc::clone(&nodes[1].core().lines);
    let claim = lines.claim_pinned(first, 8, false).unwrap();
    turn_when_due(&nodes[1]);
    assert_eq!(queued(&nodes[1]), 1, "a closure changes it");
    drop(claim);
    turn_when_due(&nodes[1]);
    assert_eq!(queued(&nodes[1]), 1, "it was written since");

    let pin = |node: &Node| {
        let mut engine = node.core().engine();
        let (here, frame) = (engine.here(line), Frame(0));
        let (operation, want) = (STRANGER, Want::Write);
        engine.step_own(CoherenceEvent::Issue { operation, line, want, pin: true, frame, here });
    };
    pin(&nodes[1]);
    turn_when_due(&nodes[1]);
    assert_eq!(queued(&nodes[1]), 1, "an operation keeps it");
    nodes[1].core().engine().unpin(line);
    turn_when_due(&nodes[1]);
    settle(&nodes);
    assert_eq!((queued(&nodes[1]), nodes[1].stats().write_backs), (0, 1));
}

#[test]
fn frames_of_a_dead_home_are_not_counted_as_returned() {
    let nodes = cluster("clean", 2);
    let first = alloc(&nodes, &nodes[0], 1);
    own(&nodes, first, 1);
    turn_when_due(&nodes[1]);
    settle(&nodes);
    let mut engine = nodes[1].core().engine();
    assert!(engine.write_backs.pauses.clean.0.iter().any(|word| *word != 0));
    engine.step_own(CoherenceEvent::NodeDead { node: NodeId(0) });
    assert!(engine.write_backs.pauses.clean.0.iter().all(|word| *word == 0));
}
