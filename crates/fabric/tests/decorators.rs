//! The decorators under the conformance suite, each around the in-process fabric, with their counts,
//! records and faults.

use farside_fabric::conformance::Subject;
use farside_fabric::{CountFabric, Fabric, FaultFabric, FaultPlan, MemFabric, TraceFabric};
use std::sync::Arc;

/// Wraps each fabric that a case opens.
struct Wrapped(MemFabric, fn(Arc<dyn Fabric>) -> Arc<dyn Fabric>);

impl Subject for Wrapped {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        (0..count).map(|_| (self.1)(Arc::new(self.0.another()))).collect()
    }
}

mod count {
    use super::*;

    farside_fabric::conformance_suite!(Wrapped(MemFabric::new(), |inner| Arc::new(
        CountFabric::new(inner)
    )));
}

mod trace {
    use super::*;

    farside_fabric::conformance_suite!(Wrapped(MemFabric::new(), |inner| Arc::new(
        TraceFabric::new(inner, 256)
    )));
}

mod fault_free {
    use super::*;

    farside_fabric::conformance_suite!(Wrapped(MemFabric::new(), |inner| Arc::new(
        FaultFabric::new(inner, FaultPlan::default())
    )));
}

mod delayed {
    use super::*;

    const PLAN: FaultPlan = FaultPlan {
        seed: 42,
        queue_full_percent: 20,
        completion_delay_polls_max: 9,
        event_delay_polls_max: 9,
        lose_link_at: None,
    };

    farside_fabric::conformance_suite!(Wrapped(MemFabric::new(), |inner| Arc::new(
        FaultFabric::new(inner, PLAN)
    )));
}
