//! The conformance suite of all fabrics on the simulated fabric, with several sets of capabilities.

use farside_base::{AtomicScope, BackPressure, Capabilities, FlushScope, WordScope};
use farside_fabric::conformance::{Subject, run_case};
use farside_fabric::{Fabric, conformance_suite};
use farside_sim::fabric::{
    ADAPTIVE_ROUTING, CONNECTX5_ROCE, EFA, INFINIBAND, ONE_RMA, OPTANE_CX5, SHARED_MEMORY, SimNet,
    SimOptions, UNORDERED, VERBS_FLUSH,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

struct Sim {
    net: SimNet,
    nodes: AtomicU64,
    seed: u64,
}

impl Sim {
    fn new(seed: u64, capabilities: Capabilities) -> Self {
        Self::with(seed, SimOptions::draw(seed, capabilities))
    }

    /// Creates a subject on the hardware profile: one schedule, with which tests of any seed must pass too.
    fn on_hardware(seed: u64, capabilities: Capabilities) -> Self {
        Self::with(seed, SimOptions::on_hardware(capabilities, CONNECTX5_ROCE))
    }

    fn with(seed: u64, options: SimOptions) -> Self {
        let write_by_read = options.capabilities == ONE_RMA;
        let options = SimOptions { transcript_lines: 64, write_by_read, ..options };
        Self { net: SimNet::new(seed, options), nodes: AtomicU64::new(0), seed }
    }
}

impl Subject for Sim {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        let node = |_| {
            let number = self.nodes.fetch_add(1, Ordering::Relaxed);
            self.net.fabric(&format!("node-{number}")) as Arc<dyn Fabric>
        };
        (0..count).map(node).collect()
    }

    fn settle(&self) {
        if !self.net.step() {
            std::thread::yield_now();
        }
    }

    fn polls_max(&self) -> u64 {
        1_000_000
    }

    fn seed(&self) -> u64 {
        self.seed
    }
}

const SMALL: Capabilities = Capabilities {
    outstanding_max: 8,
    slices_max: 2,
    inline_bytes_max: 16,
    send_bytes_max: 256,
    transfer_bytes_max: 8192,
    shared_receive_queue: false,
    links_max: 64,
    ..INFINIBAND
};

mod infiniband {
    use super::*;
    conformance_suite!(Sim::new(1, INFINIBAND));
}

mod shared_memory {
    use super::*;
    conformance_suite!(Sim::new(2, SHARED_MEMORY));
}

mod unordered {
    use super::*;
    conformance_suite!(Sim::new(3, UNORDERED));
}

mod flush {
    use super::*;
    conformance_suite!(Sim::new(15, VERBS_FLUSH));
}

mod flush_without_order {
    use super::*;
    conformance_suite!(Sim::new(16, Capabilities { flush: FlushScope::Visible, ..UNORDERED }));
}

mod hardware_flush {
    use super::*;
    conformance_suite!(Sim::with(17, SimOptions::on_hardware(VERBS_FLUSH, OPTANE_CX5)));
}

mod adaptive_routing {
    use super::*;
    conformance_suite!(Sim::new(7, ADAPTIVE_ROUTING));
}

mod efa {
    use super::*;
    conformance_suite!(Sim::new(8, EFA));
}

mod one_rma {
    use super::*;
    conformance_suite!(Sim::new(9, ONE_RMA));
}

mod hardware {
    use super::*;
    conformance_suite!(Sim::on_hardware(10, INFINIBAND));
}

mod hardware_adaptive_routing {
    use super::*;
    conformance_suite!(Sim::on_hardware(11, ADAPTIVE_ROUTING));
}

mod hardware_efa {
    use super::*;
    conformance_suite!(Sim::on_hardware(12, EFA));
}

mod hardware_one_rma {
    use super::*;
    conformance_suite!(Sim::on_hardware(13, ONE_RMA));
}

mod no_byte_order {
    use super::*;
    conformance_suite!(Sim::new(4, Capabilities { byte_order: false, ..INFINIBAND }));
}

mod no_whole_words {
    use super::*;
    conformance_suite!(Sim::new(14, Capabilities { words: WordScope::None, ..INFINIBAND }));
}

mod no_atomics_no_immediate {
    use super::*;
    conformance_suite!(Sim::new(
        5,
        Capabilities {
            atomics: AtomicScope::None,
            extended_atomics: false,
            immediate: false,
            mirrored_regions: false,
            device_bytes_max: 0,
            one_sided: false,
            sleep: false,
            ..INFINIBAND
        }
    ));
}

mod small {
    use super::*;
    conformance_suite!(Sim::new(6, SMALL));
}

/// Runs the randomized cases with 100 seeds, each a different schedule, on every set of capabilities.
#[test]
fn randomized_cases_agree_with_their_oracles_on_100_seeds() {
    let sets = [
        INFINIBAND,
        SHARED_MEMORY,
        UNORDERED,
        ADAPTIVE_ROUTING,
        EFA,
        ONE_RMA,
        SMALL,
        Capabilities { receiver_not_ready: BackPressure::AtPost, byte_order: false, ..INFINIBAND },
    ];
    for seed in 0..100 {
        let set = sets[seed as usize % sets.len()];
        for case in [
            "random::one_sided_requests_agree_with_an_oracle",
            "random::messages_agree_with_an_oracle",
        ] {
            let sim = Sim::new(seed, set);
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                run_case(case, &sim);
            }));
            assert!(failed.is_ok(), "{case} fails on {:?}", sim.net);
        }
    }
}
