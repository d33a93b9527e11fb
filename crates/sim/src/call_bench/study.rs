//! A workload with changing lists, load and link: the chooser's choices compared with each fixed site (003 §5.2).

use super::{
    CallScene, FROM_NIC_NS, HOST_START_NS, LIQUIDIO, NFP6000, NIC_START_NS, Nic, ROUND_TRIP_NS,
    SimSite, TO_NIC_NS,
};
use farside::Error;
use farside::call::Prices;

/// What holds for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    /// What changes, for people.
    pub name: &'static str,
    /// Nodes that each search passes.
    pub nodes: u64,
    /// Until the adapter's processor takes up a call.
    pub nic_start_ns: u64,
    /// Until the host's does.
    pub host_start_ns: u64,
    /// Client to host and back; to the adapter's processor it is as much longer or shorter.
    pub round_trip_ns: u64,
    /// The local link.
    pub nic: Nic,
}

const QUIET: Phase = Phase {
    name: "",
    nodes: 1,
    nic_start_ns: NIC_START_NS,
    host_start_ns: HOST_START_NS,
    round_trip_ns: ROUND_TRIP_NS,
    nic: NFP6000,
};

/// Calls of a phase.
pub const CALLS: u32 = 1_000;

/// The workload. No place is best in all of it.
pub const PHASES: [Phase; 8] = [
    Phase { name: "single nodes", ..QUIET },
    Phase { name: "short lists", nodes: 3, ..QUIET },
    Phase { name: "others call at the NIC", nodes: 3, nic_start_ns: 30_000, ..QUIET },
    Phase { name: "the NIC is free again", nodes: 3, ..QUIET },
    Phase { name: "long lists", nodes: 32, ..QUIET },
    Phase { name: "the host is busy", nodes: 32, host_start_ns: 150_000, ..QUIET },
    Phase {
        name: "a slower local link too",
        nodes: 32,
        host_start_ns: 150_000,
        nic: LIQUIDIO,
        ..QUIET
    },
    Phase { name: "a network of 25 us", nodes: 3, round_trip_ns: 25_000, ..QUIET },
];

/// What a phase took, in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PhaseTimes {
    /// All calls where the chooser put them.
    pub chosen_ns: u64,
    /// All calls at each place, in the order of [`SimSite::ALL`].
    pub fixed_ns: [u64; 3],
    /// How many calls the chooser put at each place.
    pub chosen: [u32; 3],
}

impl PhaseTimes {
    /// The best place.
    pub fn best(&self) -> (SimSite, u64) {
        let all = SimSite::ALL.into_iter().zip(self.fixed_ns);
        all.min_by_key(|(_, ns)| *ns).unwrap_or((SimSite::Client, 0))
    }
}

/// The workload run with the chooser and at each fixed place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Study {
    /// By phase.
    pub phases: Vec<PhaseTimes>,
}

impl Study {
    /// SimSite it: the same at every call.
    ///
    /// # Errors
    /// As [`CallScene::new`].
    pub fn run() -> Result<Self, Error> {
        let mut phases = vec![PhaseTimes::default(); PHASES.len()];
        for pinned in [None, Some(0), Some(1), Some(2)] {
            let mut scene = CallScene::new(&NFP6000, Prices::LATENCY)?;
            scene.pin(pinned.map(|at: usize| SimSite::ALL[at]));
            for (phase, times) in PHASES.iter().zip(&mut phases) {
                let more_ns = phase.round_trip_ns - ROUND_TRIP_NS;
                scene.set_host(phase.round_trip_ns);
                scene.set_nic(TO_NIC_NS + more_ns / 2, FROM_NIC_NS + more_ns / 2, &phase.nic);
                scene.set_nic_start(phase.nic_start_ns);
                scene.set_host_start(phase.host_start_ns);
                for _ in 0..CALLS {
                    let answer = scene.search(phase.nodes)?;
                    match pinned {
                        Some(at) => times.fixed_ns[at] += answer.took_ns,
                        None => {
                            times.chosen_ns += answer.took_ns;
                            times.chosen[answer.choice.place] += 1;
                        }
                    }
                }
            }
        }
        Ok(Self { phases })
    }

    /// What everything took: chosen, and at each place.
    pub fn total(&self) -> (u64, [u64; 3]) {
        let chosen = self.phases.iter().map(|phase| phase.chosen_ns).sum();
        let fixed = |at: usize| self.phases.iter().map(|phase| phase.fixed_ns[at]).sum();
        (chosen, std::array::from_fn(fixed))
    }
}
