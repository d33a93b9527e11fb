//! A member that is removed while alive must not continue to use its cache.

use farside::{AllocationHint, AllocationSpec, NodeId};
use farside_sim::cluster::{SimCluster, process};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const SILENCE_NS: u64 = 10_000_000_000;

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Node 2 has a word of node 0 cached and is partitioned from node 0 only. Node 1 removes it, too; node 0 then
/// changes the word. Returns what node 2 then reads; `None` if it has to wait.
fn stale(seed: u64) -> Result<Option<u64>, String> {
    let text = |error: farside::Error| error.to_string();
    let mut cluster = SimCluster::start_on(seed, 3, 1, Some(SILENCE_NS))?;
    let mut home = cluster.node(0).ok_or("dead")?.session().map_err(text)?;
    let mut other = cluster.node(2).ok_or("dead")?.session().map_err(text)?;
    let spec = AllocationSpec::new(AllocationHint::On(NodeId(0)));
    let word = cluster.finish(home.alloc_with_async(8, spec))?.map_err(text)?;
    let mut bytes = [0; 8];
    cluster.finish(other.read_async(word, &mut bytes))?.map_err(text)?;

    cluster.net().part(&process(0), &process(2));
    let given_up = |cluster: &SimCluster| {
        let members = cluster.node(0).map(farside::Node::members).unwrap_or_default();
        members.iter().any(|member| !member.alive)
    };
    let end_ns = cluster.net().now_ns() + 10 * SILENCE_NS;
    while !given_up(&cluster) {
        if !cluster.sweep() {
            cluster.let_time_pass();
        }
        if cluster.net().now_ns() > end_ns {
            return Err(format!("no member is removed: {}", cluster.describe()));
        }
    }
    // It waits until no other node may have a copy.
    let _ = poll_once(home.write_async(word, &1_u64.to_le_bytes()));
    let mut fence = pin!(home.fence_async());
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match fence.as_mut().poll(&mut context) {
            Poll::Ready(done) => break done.map_err(text)?,
            Poll::Pending if cluster.sweep() => {}
            Poll::Pending => cluster.let_time_pass(),
        }
        if cluster.net().now_ns() > end_ns {
            return Err(format!("the write does not end: {}", cluster.describe()));
        }
    }
    match poll_once(other.read_async(word, &mut bytes)) {
        Poll::Ready(Ok(())) => Ok(Some(u64::from_le_bytes(bytes))),
        Poll::Ready(Err(_)) | Poll::Pending => Ok(None),
    }
}

#[test]
fn removed_node_reads_nothing_stale() {
    for seed in 0..100 {
        let found = stale(seed).unwrap_or_else(|trouble| panic!("seed {seed}: {trouble}"));
        assert_eq!(found, None, "seed {seed}");
    }
}

#[cfg(canary)]
#[test]
fn canary_memory_that_settles_at_once_is_found() {
    farside::canary::plant(Some(farside::canary::NodeMutant::SettledAtOnce));
    let old = (0..100).filter(|seed| stale(*seed) == Ok(Some(0))).count();
    farside::canary::plant(None);
    assert!(old > 0, "no node reads a stale value");
}
