//! Cases, measured in interleaved rounds, so that disturbances of the machine affect all of them.

use std::time::{Duration, Instant};

/// One measured case.
pub(crate) struct Case {
    pub(crate) what: &'static str,
    pub(crate) party: String,
    pub(crate) n: Option<u64>,
    /// Operations of one iteration.
    each: u32,
    /// Runs a number of iterations.
    run: Box<dyn FnMut(u32)>,
    /// Iterations of a window.
    iterations: u32,
    ns: Vec<f64>,
}

impl Case {
    fn new(what: &'static str, party: String, run: impl FnMut(u32) + 'static) -> Self {
        let run = Box::new(run);
        Self { what, party, n: None, each: 1, run, iterations: 0, ns: Vec::new() }
    }

    pub(crate) fn search(party: &str, n: u64, run: impl FnMut(u32) + 'static) -> Self {
        Self { n: Some(n), ..Self::new("search", party.into(), run) }
    }

    pub(crate) fn registration(party: &str, program: &str, run: impl FnMut(u32) + 'static) -> Self {
        Self::new("registration", format!("{party}, {program}"), run)
    }

    pub(crate) fn suspension(party: &str, each: u32, run: impl FnMut(u32) + 'static) -> Self {
        Self { each, ..Self::new("suspension", party.into(), run) }
    }

    fn time_ns(&mut self, iterations: u32) -> f64 {
        let start = Instant::now();
        (self.run)(iterations);
        start.elapsed().as_nanos() as f64 / f64::from(iterations) / f64::from(self.each)
    }

    /// Chooses the iterations of a window.
    fn calibrate(&mut self, window: Duration) {
        let mut iterations = 1;
        loop {
            let ns = self.time_ns(iterations) * f64::from(iterations) * f64::from(self.each);
            if ns * 2.0 >= window.as_nanos() as f64 || iterations >= 1 << 28 {
                let more = window.as_nanos() as f64 / ns.max(1.0) * f64::from(iterations);
                self.iterations = more.clamp(1.0, f64::from(1 << 28)) as u32;
                return;
            }
            iterations *= 2;
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

/// Measures every case once a round; each round begins with a different case.
pub(crate) fn measure(cases: &mut [Case], rounds: usize, window: Duration) {
    cases.iter_mut().for_each(|case| case.calibrate(window));
    for round in 0..rounds {
        let count = cases.len();
        for at in 0..count {
            let case = &mut cases[(at + round * 7) % count];
            let ns = case.time_ns(case.iterations);
            case.ns.push(ns);
        }
    }
}
