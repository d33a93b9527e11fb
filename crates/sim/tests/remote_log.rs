//! Exhaustive search over the closing of holes of a log in remote memory. The numbers of states are asserted, which
//! detects changes of the machine or of the model that reduce the search.

use farside_sim::explorer::Explorer;
use farside_sim::model::remote_log::RemoteLog;

/// Visits every state and checks their number.
fn explore(log: RemoteLog, states: u64) {
    let coverage = Explorer::new().explore(&log).holds();
    let coverage = coverage.unwrap_or_else(|transcript| panic!("{transcript}"));
    assert_eq!(coverage.states, states, "{coverage:?}");
    assert!(coverage.ends > 0);
}

#[test]
fn slow_writers_are_closed_or_in_the_log() {
    explore(RemoteLog::new(&[(2, false), (1, false), (2, true)], 2, 0), 50_528);
}

#[test]
fn dead_writers_are_closed() {
    explore(RemoteLog::new(&[(2, true), (1, false), (1, false)], 2, 1), 439_364);
}

#[test]
fn readers_that_stop_are_continued() {
    explore(RemoteLog::new(&[(2, true), (2, false)], 2, 2), 162_244);
}
