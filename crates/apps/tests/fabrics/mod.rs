//! The fabrics of tests of applications.

use farside::fabrics::{self, Fabric, MemFabric};
use farside::prelude::Security;
use std::sync::Arc;

/// Makes the fabric of an end; the ends that one makes reach each other.
pub(crate) type Make = dyn Fn() -> Arc<dyn Fabric> + Sync;

pub(crate) fn make(name: &str) -> Box<Make> {
    match name {
        "mem" => {
            let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
            Box::new(move || Arc::clone(&fabric))
        }
        "shm" => Box::new(|| fabrics::shared_memory().unwrap()),
        _ => Box::new(|| fabrics::listen("tcp://127.0.0.1:0", Security::open()).unwrap()),
    }
}
