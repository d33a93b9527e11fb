//! Remote memory calls from seeds, on a network with faults. `FARSIDE_RUNS` sets the number of rounds, `FARSIDE_SEED`
//! the first seed; a failure prints the command that reproduces it.

use farside_sim::call_soak::{Round, Tally};
use farside_sim::seeds::setting;

#[test]
fn simulation_of_calls() {
    let (first, runs) = (setting("FARSIDE_SEED", 0), setting("FARSIDE_RUNS", 300));
    let mut all = Tally::default();
    for seed in first..first + runs {
        let tally = Round::draw(seed).play().unwrap_or_else(|trouble| panic!("{trouble}"));
        all.answered += tally.answered;
        all.failed += tally.failed;
        all.cuts += tally.cuts;
        all.deaths += tally.deaths;
    }
    assert!(all.answered > 0, "{all:?}");
    assert!(runs < 100 || (all.failed > 0 && all.cuts > 0 && all.deaths > 0), "{all:?}");
}

#[cfg(canary)]
#[test]
fn canary_calls_that_run_twice_or_never_end_are_found() {
    use farside::canary::{NodeMutant, plant};
    for (mutant, expected) in
        [(NodeMutant::CallsRunAgain, "call"), (NodeMutant::RepliesForgotten, "no progress")]
    {
        plant(Some(mutant));
        let trouble = (0..1_000).find_map(|seed| Round::draw(seed).play().err());
        plant(None);
        let trouble = trouble.expect("no seed detects the defect");
        assert!(trouble.starts_with(expected), "{trouble}");
    }
}
