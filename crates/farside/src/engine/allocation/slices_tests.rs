//! Driven nodes, so that each poll of an engine is a step of the test: counters bound the work of a poll.

use super::{Budget, Job, RECALLS_MAX};
use crate::{AllocationHint, AllocationSpec, Config, Error, ErrorCode, Joining, LineSize, Node};
use farside_fabric::{Fabric, MemFabric};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Polls after which a test fails: far more than any of them needs.
const POLLS_MAX: usize = 1 << 20;
const LARGE: u64 = 4 << 20;
const LINE: LineSize = LineSize::MIN;
const LARGE_LINES: u64 = LARGE / LINE.bytes() as u64;

fn cluster(name: &str, count: usize) -> Vec<Node> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let mut config = Config::new(name);
    (config.memory_bytes, config.cache_bytes, config.line_size) = (16 << 20, 8 << 20, LINE);
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

fn settle(nodes: &[Node]) {
    while nodes.iter().map(Node::progress).fold(false, |any, busy| any | busy) {}
}

fn poll<F: Future>(future: &mut Pin<&mut F>) -> Poll<F::Output> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// Lines and bytes that the slices of a node have touched so far.
fn touched(node: &Node) -> Budget {
    node.core().engine().homes.jobs.touched
}

/// Polls the engines in rotation until the future is ready; `each` checks after every poll of the first
/// node.
fn finish<F: Future>(nodes: &[Node], future: F, mut each: impl FnMut()) -> F::Output {
    let mut future = pin!(future);
    for _ in 0..POLLS_MAX {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        for node in nodes {
            let before = touched(node);
            node.progress();
            let after = touched(node);
            // One slice of those in progress, and one for requests that arrive.
            assert!(after.lines - before.lines <= 2 * Budget::SLICE.lines, "{before:?} {after:?}");
            assert!(after.bytes - before.bytes <= 2 * Budget::SLICE.bytes, "{before:?} {after:?}");
        }
        each();
    }
    panic!("the operation does not end");
}

fn on(node: &Node) -> AllocationSpec {
    AllocationSpec::new(AllocationHint::On(node.id()))
}

fn free_bytes(node: &Node) -> u64 {
    node.stats().memory_free_bytes
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    result.unwrap_err().code
}

#[test]
fn large_alloc_and_free_are_bounded_in_each_poll() {
    let nodes = cluster("bounded", 1);
    let mut session = nodes[0].session().unwrap();
    for round in 0..2 {
        let before = touched(&nodes[0]);
        let mut polls = 0;
        let address =
            finish(&nodes, session.alloc_with_async(LARGE, on(&nodes[0])), || polls += 1).unwrap();
        let after = touched(&nodes[0]);
        assert_eq!(after.lines - before.lines, LARGE_LINES);
        assert!(polls >= LARGE_LINES / Budget::SLICE.lines - 1, "{polls} polls");
        // In the first round the memory is as the operating system provided it, and stays untouched.
        assert_eq!(after.bytes - before.bytes, if round == 0 { 0 } else { LARGE });
        let mut bytes = vec![1; LARGE as usize];
        session.read(address, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "round {round}");
        session.write(address, &vec![7; LARGE as usize]).unwrap();
        let before = touched(&nodes[0]).lines;
        finish(&nodes, session.free_async(address), || {}).unwrap();
        assert_eq!(touched(&nodes[0]).lines - before, LARGE_LINES);
        let last = address.checked_add(LARGE - 8).unwrap();
        let mut word = [0; 8];
        for at in [address, last] {
            let read = finish(&nodes, session.read_async(at, &mut word), || {});
            assert_eq!(code(read), ErrorCode::Unallocated);
        }
    }
}

#[test]
fn peer_is_served_between_slices() {
    let nodes = cluster("between", 2);
    let (mut large, mut small) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    let address = {
        let mut future = pin!(large.alloc_with_async(LARGE, on(&nodes[0])));
        assert!(poll(&mut future).is_pending());
        for _ in 0..16 {
            let mut polls = 0;
            let address =
                finish(&nodes, small.alloc_with_async(64, on(&nodes[0])), || polls += 1).unwrap();
            finish(&nodes, small.free_async(address), || polls += 1).unwrap();
            assert!(polls <= 8, "{polls} polls for two round trips");
            assert!(poll(&mut future).is_pending());
        }
        finish(&nodes, future, || {}).unwrap()
    };
    let mut free = pin!(large.free_async(address));
    assert!(poll(&mut free).is_pending());
    let mut polls = 0;
    finish(&nodes, small.alloc_with_async(64, on(&nodes[0])), || polls += 1).unwrap();
    assert!(polls <= 4, "{polls} polls for one round trip");
    assert!(poll(&mut free).is_pending());
    finish(&nodes, free, || {}).unwrap();
}

#[test]
fn two_large_allocations_advance_in_step() {
    let nodes = cluster("fair", 2);
    let (mut own, mut other) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    let mut first = pin!(own.alloc_with_async(LARGE, on(&nodes[0])));
    let mut second = pin!(other.alloc_with_async(LARGE, on(&nodes[0])));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    let done = || -> Vec<u64> {
        let core = nodes[0].core();
        let engine = core.engine();
        let done = |job: &Job| match job {
            Job::Allocate(allocation) => allocation.done,
            Job::Free(_) => 0,
        };
        engine.homes.jobs.jobs.values().map(done).collect()
    };
    while done().len() < 2 {
        settle_once(&nodes);
    }
    let ahead = done()[0];
    for _ in 0..32 {
        settle_once(&nodes);
        let done = done();
        assert!(done[0] - done[1] <= ahead + Budget::SLICE.lines, "{done:?}");
    }
    let (one, two) =
        (finish(&nodes, first, || {}).unwrap(), finish(&nodes, second, || {}).unwrap());
    assert!(one.offset().abs_diff(two.offset()) >= LARGE);
}

fn settle_once(nodes: &[Node]) {
    for node in nodes {
        node.progress();
    }
}

#[test]
fn free_of_cached_memory_bounds_its_recalls() {
    let nodes = cluster("recalls", 2);
    let (mut own, mut other) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    let bytes = 8 * RECALLS_MAX as usize * LINE.bytes();
    let address = finish(&nodes, own.alloc_with_async(bytes as u64, on(&nodes[0])), || {}).unwrap();
    let mut copy = vec![0; bytes];
    finish(&nodes, other.read_async(address, &mut copy), || {}).unwrap();
    finish(&nodes, other.write_async(address, &vec![3; bytes / 2]), || {}).unwrap();
    finish(&nodes, other.fence_async(), || {}).unwrap();
    let mut most = 0;
    finish(&nodes, own.free_async(address), || {
        let core = nodes[0].core();
        for job in core.engine().homes.jobs.jobs.values() {
            if let Job::Free(freeing) = job {
                assert!(freeing.outstanding <= RECALLS_MAX);
                most = freeing.outstanding.max(most);
            }
        }
    })
    .unwrap();
    assert!(most > 0, "some lines were recalled");
    for session in [&mut own, &mut other] {
        let read = finish(&nodes, session.read_async(address, &mut copy[..8]), || {});
        assert_eq!(code(read), ErrorCode::Unallocated);
    }
}

#[test]
fn address_in_progress_is_no_allocation() {
    let nodes = cluster("progress", 1);
    let (mut session, mut second) = (nodes[0].session().unwrap(), nodes[0].session().unwrap());
    let address = finish(&nodes, session.alloc_with_async(LARGE, on(&nodes[0])), || {}).unwrap();
    {
        let mut free = pin!(session.free_async(address));
        assert!(poll(&mut free).is_pending());
        let again = finish(&nodes, second.free_async(address), || {});
        assert_eq!(code(again), ErrorCode::NotAnAllocation);
        finish(&nodes, free, || {}).unwrap();
    }
    let mut alloc = pin!(session.alloc_with_async(LARGE, on(&nodes[0])));
    assert!(poll(&mut alloc).is_pending());
    let early = finish(&nodes, second.free_async(address), || {});
    assert_eq!(code(early), ErrorCode::NotAnAllocation);
    assert_eq!(finish(&nodes, alloc, || {}).unwrap(), address, "the same block serves again");
}

#[test]
fn allocation_of_a_dead_requester_is_freed() {
    let mut nodes = cluster("dead", 2);
    let before = free_bytes(&nodes[0]);
    let mut session = nodes[1].session().unwrap();
    {
        let mut future = pin!(session.alloc_with_async(LARGE, on(&nodes[0])));
        assert!(poll(&mut future).is_pending());
        while free_bytes(&nodes[0]) == before {
            settle_once(&nodes);
        }
        assert!(poll(&mut future).is_pending());
    }
    drop((session, nodes.pop()));
    settle(&nodes);
    assert_eq!(free_bytes(&nodes[0]), before);
    assert!(nodes[0].core().engine().homes.jobs.jobs.is_empty());
}

#[test]
fn leaving_ends_allocations_in_progress() {
    let nodes = cluster("leave", 2);
    let (mut own, mut other) = (nodes[0].session().unwrap(), nodes[1].session().unwrap());
    let mut here = pin!(own.alloc_with_async(LARGE, on(&nodes[0])));
    let mut there = pin!(other.alloc_with_async(LARGE, on(&nodes[0])));
    assert!(poll(&mut here).is_pending() && poll(&mut there).is_pending());
    settle_once(&nodes);
    nodes[0].clone().leave().unwrap();
    assert!(
        matches!(poll(&mut here), Poll::Ready(Err(error)) if error.code == ErrorCode::NodeClosed)
    );
    assert_eq!(code(finish(&nodes, there, || {})), ErrorCode::NodeLost);
    assert!(!nodes[0].core().engine().homes.is_runnable());
}
