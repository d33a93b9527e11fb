//! The fabrics that this program was built with.

use crate::failure::Failure;
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;

/// The shared-memory fabric of this machine.
pub(crate) fn shm() -> Result<Box<dyn Fabric>, Failure> {
    let fabric =
        ShmFabric::new().map_err(|e| Failure::system(format!("shared-memory fabric: {e}")))?;
    Ok(Box::new(fabric))
}

/// A fabric and whether it can be used here.
pub(crate) struct Found {
    pub(crate) name: &'static str,
    /// What it reaches.
    pub(crate) reach: &'static str,
    /// It, or why it cannot be used.
    pub(crate) fabric: Result<Box<dyn Fabric>, Failure>,
}

/// Every fabric, best first.
pub(crate) fn all() -> Vec<Found> {
    vec![
        Found { name: "shm", reach: "processes of this machine and user", fabric: shm() },
        Found {
            name: "mem",
            reach: "threads of one process, for tests",
            fabric: Ok(Box::new(MemFabric::new())),
        },
    ]
}
