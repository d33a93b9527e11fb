//! The in-process fabric with less than it has: the suite holds it to the refusals too, and itself
//! to working without.

use farside_base::{AtomicScope, Capabilities, FlushScope, WordScope};
use farside_fabric::conformance::Subject;
use farside_fabric::{Fabric, MemFabric};
use std::sync::Arc;

struct Restricted(MemFabric);

impl Restricted {
    fn to(less: fn(&mut Capabilities)) -> Self {
        let mut capabilities = MemFabric::new().capabilities();
        less(&mut capabilities);
        Self(MemFabric::with_capabilities(capabilities))
    }
}

impl Subject for Restricted {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        (0..count).map(|_| Arc::new(self.0.another()) as Arc<dyn Fabric>).collect()
    }
}

mod messages_only {
    use super::*;

    farside_fabric::conformance_suite!(Restricted::to(|has| {
        has.write = false;
        has.atomic_write = false;
        has.flush = FlushScope::None;
        has.own_memory = false;
        has.read = false;
        has.atomics = AtomicScope::None;
        has.extended_atomics = false;
    }));
}

mod one_sided_only {
    use super::*;

    farside_fabric::conformance_suite!(Restricted::to(|has| {
        has.send = false;
        has.immediate = false;
        has.sleep = false;
        has.mirrored_regions = false;
    }));
}

mod read_only {
    use super::*;

    farside_fabric::conformance_suite!(Restricted::to(|has| {
        has.write = false;
        has.atomic_write = false;
        has.immediate = false;
        has.extended_atomics = false;
        has.atomics = AtomicScope::Adapter;
        has.device_bytes_max = 0;
    }));
}

mod small {
    use super::*;

    farside_fabric::conformance_suite!(Restricted::to(|has| {
        has.slices_max = 1;
        has.inline_bytes_max = 8;
        has.outstanding_max = 3;
        has.links_max = 4;
        has.send_bytes_max = 100;
        has.transfer_bytes_max = 8192;
        has.region_bytes_max = 1 << 20;
        has.device_bytes_max = 1000;
        has.byte_order = false;
        has.words = WordScope::None;
        has.shared_receive_queue = false;
    }));
}
