//! The litmus tests at node height: whole nodes on the simulated fabric.

use farside_sim::litmus::{CATALOG, LitmusReport, MemoryModel, ModelVerdict, NodeSubject, observe};

/// Number of runs of each test; `FARSIDE_RUNS` overrides it.
fn runs() -> u64 {
    farside_sim::seeds::setting("FARSIDE_RUNS", 50)
}

/// Asserts that every `of`th test from `part` on shows no forbidden outcome.
fn hold(part: usize, of: usize) {
    for (number, litmus) in CATALOG.iter().enumerate().skip(part).step_by(of) {
        let seed = number as u64 * 1_000_000;
        let mut subject = NodeSubject::new(seed);
        let seen =
            observe(litmus, &mut subject, seed, runs()).unwrap_or_else(|stuck| panic!("{stuck}"));
        let report = LitmusReport::new(litmus, "node", MemoryModel::Pso, &seen);
        let report = report.holds().unwrap_or_else(|text| panic!("{text}"));
        if litmus.verdict(MemoryModel::Pso) == ModelVerdict::Forbidden {
            assert_eq!(report.witness_seen(), 0, "{report}");
        }
    }
}

#[test]
fn litmus_node_first_half() {
    hold(0, 2);
}

#[test]
fn litmus_node_second_half() {
    hold(1, 2);
}

#[cfg(canary)]
mod canary {
    use super::*;
    use farside::canary::{NodeMutant, plant};

    /// Returns the forbidden outcomes of all tests with fences.
    fn forbidden(mutant: Option<NodeMutant>, runs: u64) -> Option<String> {
        plant(mutant);
        let chosen = |name: &str| name.contains("fence");
        let found = CATALOG.iter().filter(|litmus| chosen(litmus.name)).find_map(|litmus| {
            let seen = observe(litmus, &mut NodeSubject::new(0), 0, runs).ok()?;
            LitmusReport::new(litmus, "node", MemoryModel::Pso, &seen).holds().err()
        });
        plant(None);
        found
    }

    #[test]
    fn canary_v16_fence_returns_at_once() {
        assert_eq!(forbidden(None, 50), None);
        let text =
            forbidden(Some(NodeMutant::FenceReturnsAtOnce), 400).expect("a forbidden outcome");
        assert!(text.contains("FORBIDDEN"), "{text}");
    }
}
