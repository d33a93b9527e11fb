//! A workload with changing lists, load and link: adaptive placement compared with each fixed site (003 §5.2).

use super::{
    CallScene, FROM_NIC_NS, HOST_START_NS, LIQUIDIO, NFP6000, NIC_START_NS, Nic, ROUND_TRIP_NS,
    SimSite, TO_NIC_NS,
};
use farside::Error;
use farside::call::Prices;

/// A period of the workload with constant parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phase {
    /// Name of the change, for tables.
    pub name: &'static str,
    /// Number of list nodes that each search visits.
    pub nodes: u64,
    /// Time until the adapter's processor starts a call.
    pub nic_start_ns: u64,
    /// Time until the host's processor starts a call.
    pub host_start_ns: u64,
    /// Round trip time between client and host, at least [`ROUND_TRIP_NS`]; that to the adapter's processor grows by
    /// the same amount.
    pub round_trip_ns: u64,
    /// The adapter with its local link.
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

/// Number of calls of a phase.
pub const CALLS: u32 = 1_000;

/// The workload. No site is the best in all phases.
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

/// Total times of a phase, in virtual time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PhaseTimes {
    /// Time of all calls with adaptive placement.
    pub chosen_ns: u64,
    /// Time of all calls at each fixed site, in the order of [`SimSite::ALL`].
    pub fixed_ns: [u64; 3],
    /// Number of calls that the placement algorithm ran at each site.
    pub chosen: [u32; 3],
}

impl PhaseTimes {
    /// Returns the best fixed site and its time.
    pub fn best(&self) -> (SimSite, u64) {
        let all = SimSite::ALL.into_iter().zip(self.fixed_ns);
        all.min_by_key(|(_, ns)| *ns).unwrap_or((SimSite::Client, 0))
    }
}

/// Results of the workload with adaptive placement and at each fixed site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Study {
    /// Results per phase.
    pub phases: Vec<PhaseTimes>,
}

impl Study {
    /// Runs the workload. Deterministic.
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

    /// Returns the total times: with adaptive placement, and at each site.
    pub fn total(&self) -> (u64, [u64; 3]) {
        let chosen = self.phases.iter().map(|phase| phase.chosen_ns).sum();
        let fixed = |at: usize| self.phases.iter().map(|phase| phase.fixed_ns[at]).sum();
        (chosen, std::array::from_fn(fixed))
    }
}
