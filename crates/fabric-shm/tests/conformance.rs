//! The shared-memory fabric under the conformance suite. Each fabric has memory, sockets and a
//! control thread of its own, as if it were another process.

use farside_fabric::Fabric;
use farside_fabric::conformance::Subject;
use farside_fabric_shm::ShmFabric;
use std::sync::Arc;

struct Shm;

impl Subject for Shm {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        let fabric =
            || ShmFabric::new().expect("a machine that farside_fabric_shm::probe is content with");
        (0..count).map(|_| Arc::new(fabric()) as Arc<dyn Fabric>).collect()
    }
}

farside_fabric::conformance_suite!(Shm);
