//! Whole nodes on the simulated fabric, from seeds. `FARSIDE_RUNS` sets the number of runs of each test,
//! `FARSIDE_SEED` the first seed; a failure prints the command that reproduces it.

use farside_sim::cluster::restarts::simulate_restarts;
use farside_sim::cluster::state::simulate_state;
use farside_sim::cluster::{Scenario, simulate};
use farside_sim::seeds::setting;

/// Performs the runs. Returns the numbers of operations on words, failures, evictions and direct reads.
fn many(salt: u64, draw: impl Fn(u64) -> Scenario) -> (usize, u64, u64, u64) {
    let first = setting("FARSIDE_SEED", 0).wrapping_add(salt << 32);
    let (mut operations, mut failed, mut evictions, mut write_backs) = (0, 0, 0, 0);
    let mut direct_reads = 0;
    for seed in first..first + setting("FARSIDE_RUNS", 300) {
        let summary = simulate(draw(seed)).unwrap_or_else(|trouble| panic!("{trouble}"));
        operations += summary.history.len();
        failed += summary.failed;
        evictions += summary.evictions;
        write_backs += summary.write_backs;
        direct_reads += summary.direct_reads;
    }
    assert!(write_backs > 0, "owned lines are written back");
    (operations, failed, evictions, direct_reads)
}

#[test]
fn simulation_with_delays() {
    let (operations, failed, evictions, direct_reads) = many(1, |seed| Scenario::draw(seed, false));
    assert_eq!(failed, 0, "nothing fails without a death");
    assert!(direct_reads > 0, "half of the fabrics have loads");
    assert!(operations > 0 && evictions > 0, "{operations} operations, {evictions} evictions");
}

#[test]
fn simulation_with_deaths() {
    let (operations, failed, _, direct_reads) = many(2, |seed| Scenario::draw(seed, true));
    assert!(operations > 0 && failed > 0, "deaths are noticed: {failed} of {operations}");
    assert!(direct_reads > 0, "half of the fabrics have loads");
}

#[test]
fn simulation_with_leaves() {
    let (operations, failed, _, direct_reads) = many(4, Scenario::draw_leave);
    assert!(operations > 0 && failed > 0, "memory goes with its home: {failed} of {operations}");
    assert!(direct_reads > 0, "half of the fabrics have loads");
}

#[test]
fn simulation_between_hosts() {
    let (operations, failed, _, direct_reads) = many(3, Scenario::draw_weather);
    assert!(operations > 0 && failed > 0, "partitions are noticed: {failed} of {operations}");
    assert_eq!(direct_reads, 0, "no memory of other hosts is reached by loads");
}

#[test]
fn simulation_with_restarts() {
    let first = setting("FARSIDE_SEED", 0).wrapping_add(5 << 32);
    let (mut reused, mut failed) = (0, 0);
    // A run has several joins, each with separate memory.
    for seed in first..first + setting("FARSIDE_RUNS", 300).div_ceil(6) {
        let summary = simulate_restarts(seed, 4).unwrap_or_else(|trouble| panic!("{trouble}"));
        let mut numbers = std::collections::BTreeSet::from([0, 1, 2]);
        reused += summary.joined.iter().filter(|number| !numbers.insert(**number)).count();
        failed += summary.failed;
    }
    assert!(
        reused > 0 && failed > 0,
        "{reused} numbers were given again, {failed} operations failed"
    );
}

#[test]
fn simulation_with_state() {
    let first = setting("FARSIDE_SEED", 0).wrapping_add(6 << 32);
    let (mut done, mut failed, mut returns, mut losses, mut drains) = (0, 0, 0, 0, 0);
    // A run has several lives of its nodes.
    for seed in first..first + setting("FARSIDE_RUNS", 300).div_ceil(2) {
        let summary = simulate_state(seed).unwrap_or_else(|trouble| panic!("{trouble}"));
        done += summary.done;
        failed += summary.failed;
        returns += summary.returns;
        losses += summary.losses;
        drains += summary.drains;
    }
    let all = (done, failed, returns, losses, drains);
    assert!(done > 0 && failed > 0 && returns > 0 && losses > 0 && drains > 0, "{all:?}");
}

#[cfg(canary)]
#[test]
fn canary_bytes_that_are_not_placed_again_are_found() {
    use farside::canary::{NodeMutant, plant};
    plant(Some(NodeMutant::NotPlacedAgain));
    let trouble = (0..1_000).find_map(|seed| simulate(Scenario::draw_weather(seed)).err());
    plant(None);
    let trouble = trouble.expect("no seed detects the defect");
    let found = ["not linearizable", "do not agree"].iter().any(|what| trouble.contains(what));
    assert!(found, "{trouble}");
}

#[cfg(canary)]
#[test]
fn canary_writes_that_pass_each_other_are_found() {
    use farside::canary::{NodeMutant, plant};
    plant(Some(NodeMutant::WritesPass));
    let between = |seed| simulate(Scenario::draw_weather(seed).with_own_writes()).err();
    let within = |seed| simulate(Scenario::draw(seed, false).with_own_writes()).err();
    let troubles = [(0..3_000).find_map(between), (0..3_000).find_map(within)];
    plant(None);
    for trouble in troubles {
        let trouble = trouble.expect("no seed detects the defect");
        assert!(trouble.contains("own word"), "{trouble}");
    }
}

/// Asserts that a seed finds the defect in nodes with state, by this text.
#[cfg(canary)]
#[track_caller]
fn state_caught(mutant: farside::canary::NodeMutant, expected: &str) {
    farside::canary::plant(Some(mutant));
    let trouble = (0..1_500).find_map(|seed| simulate_state(seed).err());
    farside::canary::plant(None);
    let trouble = trouble.unwrap_or_else(|| panic!("no seed detects {mutant:?}"));
    assert!(trouble.contains(expected), "{trouble}");
}

#[cfg(canary)]
#[test]
fn canary_defects_of_nodes_with_state_are_found() {
    use farside::canary::NodeMutant;
    state_caught(NodeMutant::StateLoggedEarly, "not linearizable");
    state_caught(NodeMutant::FenceForgetsState, "not linearizable");
    state_caught(NodeMutant::StateLossNotTold, "not linearizable");
    state_caught(NodeMutant::StateWriteBackTooEarly, "not linearizable");
    state_caught(NodeMutant::DrainCopiesOnce, "not linearizable");
    state_caught(NodeMutant::DrainKeepsOwners, "not linearizable");
    state_caught(NodeMutant::StateLocksEnded, "a lock was ended by a leave");
}
