//! The litmus tests at machine height: the pure coherence machines, exhaustively for up to two threads, by random
//! walks for more.

use farside_sim::litmus::{
    CATALOG, Litmus, LitmusReport, MemoryModel, ModelVerdict, machine_report,
};

/// Number of random walks of each test with three and with four threads.
const WALKS: [u64; 2] = [10_000, 20_000];

/// Asserts that every `of`th test from `part` on holds, and that its allowed outcomes are observed.
fn hold(part: usize, of: usize, threads: std::ops::RangeInclusive<usize>) {
    let chosen = |litmus: &&Litmus| threads.contains(&litmus.threads.len());
    for litmus in CATALOG.iter().filter(chosen).skip(part).step_by(of) {
        let walks = WALKS[usize::from(litmus.threads.len() > 3)];
        let report = machine_report(litmus, 0, walks).and_then(LitmusReport::holds);
        let report = report.unwrap_or_else(|text| panic!("{text}"));
        // The machine is as weak as the model, and the search strong enough to observe it.
        if litmus.verdict(MemoryModel::Pso) == ModelVerdict::Allowed {
            assert!(report.witness_seen() > 0, "never seen:\n{report}");
        }
        if threads == (1..=2) {
            assert_eq!(report.allowed_unseen().count(), 0, "{report}");
        }
    }
}

#[test]
fn two_threads_exhaustively_first_half() {
    hold(0, 2, 1..=2);
}

#[test]
fn two_threads_exhaustively_second_half() {
    hold(1, 2, 1..=2);
}

#[test]
fn more_threads_by_random_walks_first_half() {
    hold(0, 2, 3..=4);
}

#[test]
fn more_threads_by_random_walks_second_half() {
    hold(1, 2, 3..=4);
}

#[cfg(canary)]
mod canary {
    use super::CATALOG;
    use farside_protocol::coherence::{Coherence, CoherenceMutant};
    use farside_sim::litmus::{LIMITS, LitmusReport, MemoryModel, machine_walks_with};

    /// Returns the report of the first test that detects the defect.
    fn caught(mutant: CoherenceMutant) -> Option<String> {
        let machine = |node| Coherence::with_mutant(node, &LIMITS, mutant);
        CATALOG.iter().find_map(|litmus| {
            let seen = machine_walks_with(litmus, 0, 2_000, &machine);
            let report =
                seen.map(|seen| LitmusReport::new(litmus, "machine", MemoryModel::Pso, &seen));
            report.and_then(LitmusReport::holds).err()
        })
    }

    /// Defects that occur without faults; the others need a death, a lock or a free.
    const DEFECTS: [CoherenceMutant; 14] = [
        CoherenceMutant::EvictionQueuedBehindRecall,
        CoherenceMutant::LevelFallsAfterPlace,
        CoherenceMutant::PerformedTwice,
        CoherenceMutant::EarlyWrite,
        CoherenceMutant::DataIsEnough,
        CoherenceMutant::GrantIsEnough,
        CoherenceMutant::QueueReorders,
        CoherenceMutant::FrameFreedEarly,
        CoherenceMutant::EvictionWritesBack,
        CoherenceMutant::StaleEvictionBelieved,
        CoherenceMutant::HeldBelieved,
        CoherenceMutant::EarlyRecallForgotten,
        CoherenceMutant::HomeLevelFallsLate,
        CoherenceMutant::AcksNotAwaited,
    ];

    #[test]
    fn canary_litmus_walks_catch_defects() {
        for mutant in DEFECTS {
            assert!(caught(mutant).is_some(), "{mutant:?} escapes the litmus tests");
        }
    }
}
