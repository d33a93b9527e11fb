//! Cases, measured in interleaved rounds, so that what happens to the machine happens to all alike.

use std::time::{Duration, Instant};

/// What is measured.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) party: String,
    pub(crate) n: Option<u64>,
    /// Operations of one turn.
    each: u32,
    turn: Box<dyn FnMut(u32)>,
    turns: u32,
    ns: Vec<f64>,
}

impl Case {
    fn new(what: &'static str, party: String, turn: impl FnMut(u32) + 'static) -> Self {
        let turn = Box::new(turn);
        Self { what, party, n: None, each: 1, turn, turns: 0, ns: Vec::new() }
    }

    pub(crate) fn search(party: &str, n: u64, turn: impl FnMut(u32) + 'static) -> Self {
        Self { n: Some(n), ..Self::new("search", party.into(), turn) }
    }

    pub(crate) fn registration(
        party: &str,
        program: &str,
        turn: impl FnMut(u32) + 'static,
    ) -> Self {
        Self::new("registration", format!("{party}, {program}"), turn)
    }

    pub(crate) fn suspension(party: &str, each: u32, turn: impl FnMut(u32) + 'static) -> Self {
        Self { each, ..Self::new("suspension", party.into(), turn) }
    }

    fn time_ns(&mut self, turns: u32) -> f64 {
        let start = Instant::now();
        (self.turn)(turns);
        start.elapsed().as_nanos() as f64 / f64::from(turns) / f64::from(self.each)
    }

    /// Chooses how many turns make a window.
    fn calibrate(&mut self, window: Duration) {
        let mut turns = 1;
        loop {
            let ns = self.time_ns(turns) * f64::from(turns) * f64::from(self.each);
            if ns * 2.0 >= window.as_nanos() as f64 || turns >= 1 << 28 {
                let more = window.as_nanos() as f64 / ns.max(1.0) * f64::from(turns);
                self.turns = more.clamp(1.0, f64::from(1 << 28)) as u32;
                return;
            }
            turns *= 2;
        }
    }

    pub(crate) fn median_ns(&self) -> f64 {
        let mut sorted = self.ns.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn best_ns(&self) -> f64 {
        self.ns.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Measures every case once a round, each round beginning with another one.
pub(crate) fn measure(cases: &mut [Case], rounds: usize, window: Duration) {
    cases.iter_mut().for_each(|case| case.calibrate(window));
    for round in 0..rounds {
        let count = cases.len();
        for at in 0..count {
            let case = &mut cases[(at + round * 7) % count];
            let ns = case.time_ns(case.turns);
            case.ns.push(ns);
        }
    }
}
