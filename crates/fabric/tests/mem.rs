//! The in-process fabric under the conformance suite.

use farside_fabric::conformance::Subject;
use farside_fabric::{Fabric, MemFabric};
use std::sync::Arc;

struct Mem(MemFabric);

impl Subject for Mem {
    fn fabrics(&self, count: usize) -> Vec<Arc<dyn Fabric>> {
        (0..count).map(|_| Arc::new(self.0.another()) as Arc<dyn Fabric>).collect()
    }
}

farside_fabric::conformance_suite!(Mem(MemFabric::new()));
