//! The effects of the death of a home on the other nodes, on the simulated fabric.

use farside::{AllocationHint, AllocationSpec, ErrorCode, GlobalAddress, LineSize};
use farside_sim::cluster::SimCluster;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

const LINE: LineSize = LineSize::DEFAULT;
/// Frames of each cache: one set.
const FRAMES: usize = 8;
const LINES: usize = 2 * FRAMES;

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn lines(cluster: &mut SimCluster, home: u16) -> Result<Vec<GlobalAddress>, String> {
    let mut session = cluster.node(home).ok_or("dead")?.session().map_err(|e| e.to_string())?;
    let spec = AllocationSpec::new(AllocationHint::Local).line_size(Some(LINE));
    let first = cluster.finish(session.alloc_with_async((LINES * LINE.bytes()) as u64, spec))?;
    let first = first.map_err(|error| error.to_string())?;
    let nth = |number| first.checked_add((number * LINE.bytes()) as u64);
    Ok((0..LINES).filter_map(nth).collect())
}

/// Runs a scenario: node 0 dies with requests of node 1 in flight, some of which it may have forwarded to node 2;
/// then node 1 fills its cache with lines of node 2, several times over.
fn run(seed: u64) -> Result<(), String> {
    let mut cluster = SimCluster::start(seed, 3, (FRAMES / 8) as u16)?;
    let (lost, kept) = (lines(&mut cluster, 0)?, lines(&mut cluster, 2)?);
    let mut owner = cluster.node(2).ok_or("dead")?.session().map_err(|e| e.to_string())?;
    for line in lost.iter().step_by(2).take(FRAMES) {
        let done = cluster.finish(owner.write_async(*line, &[9; 8]))?;
        done.map_err(|error| error.to_string())?;
    }
    cluster.finish(owner.fence_async())?.map_err(|error| error.to_string())?;

    let mut session = cluster.node(1).ok_or("dead")?.session().map_err(|e| e.to_string())?;
    for line in &lost {
        let begun = poll_once(session.write_async(*line, &[7; 8]));
        assert!(matches!(begun, Poll::Ready(Ok(()))), "seed {seed}: {begun:?}");
    }
    for _ in 0..seed % 24 {
        cluster.sweep();
    }
    cluster.kill(0);
    let fenced = cluster.finish(session.fence_async())?;
    assert!(fenced.is_ok() || fenced.is_err_and(|error| error.code == ErrorCode::NodeLost));
    for round in 1..4 {
        for line in &kept {
            let done = cluster.finish(session.write_async(*line, &[round; 8]))?;
            done.map_err(|error| error.to_string())?;
        }
        cluster.finish(session.fence_async())?.map_err(|error| error.to_string())?;
        for line in &kept {
            let mut bytes = [0; 8];
            let done = cluster.finish(session.read_async(*line, &mut bytes))?;
            done.map_err(|error| error.to_string())?;
            assert_eq!(bytes, [round; 8], "seed {seed}");
        }
    }
    let mut bytes = [0; 8];
    let gone = cluster.finish(session.read_async(lost[0], &mut bytes))?;
    assert_eq!(gone.map_err(|error| error.code), Err(ErrorCode::NodeLost));
    Ok(())
}

#[test]
fn requests_in_flight_to_a_dead_home_leave_no_frame_behind() {
    for seed in 0..200 {
        run(seed).unwrap_or_else(|trouble| panic!("seed {seed}: {trouble}"));
    }
}
