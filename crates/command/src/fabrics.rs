//! The fabrics of this program.

use crate::failure::Failure;
use crate::rdma;
use farside_bootstrap::Security;
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_fabric_verbs::{Choice, DeviceReport, Options, VerbsFabric};
use std::sync::Arc;

/// Opens the shared-memory fabric of this machine.
pub fn shm() -> Result<Arc<dyn Fabric>, Failure> {
    farside::fabrics::shared_memory()
        .map_err(|e| Failure::system(format!("shared-memory fabric: {}", e.detail)))
}

/// A fabric, and whether this machine can use it.
pub struct Found {
    /// Its name, as options have it.
    pub name: &'static str,
    /// The processes that it reaches.
    pub reach: &'static str,
    /// The open fabric, or why it cannot be used.
    pub fabric: Result<Arc<dyn Fabric>, Failure>,
    /// The device that would be used, if the fabric needs one.
    pub choice: Option<Choice>,
    /// All usable devices.
    pub devices: Vec<DeviceReport>,
}

impl Found {
    fn new(
        name: &'static str,
        reach: &'static str,
        fabric: Result<Arc<dyn Fabric>, Failure>,
    ) -> Self {
        Self { name, reach, fabric, choice: None, devices: Vec::new() }
    }
}

/// Opens every fabric, best first.
pub fn all() -> Vec<Found> {
    let tcp = TcpFabric::new(TcpOptions::default());
    let tcp = tcp.map_err(|e| Failure::system(format!("TCP fabric: {e}")));
    vec![
        Found::new("shm", "processes of this machine and user", shm()),
        verbs(),
        Found::new("tcp", "hosts of an IP network", tcp.map(|fabric| Arc::new(fabric) as _)),
        Found::new("mem", "threads of one process, for tests", Ok(Arc::new(MemFabric::new()))),
    ]
}

fn verbs() -> Found {
    let opened = VerbsFabric::open(Options::new(Security::open()));
    let opened = opened.map_err(|error| Failure::system(format!("verbs fabric: {error}")));
    let choice = opened.as_ref().ok().map(VerbsFabric::choice);
    let fabric = opened.map(|fabric| Arc::new(fabric) as _);
    let found = Found::new("verbs", "hosts of an InfiniBand or RoCE network", fabric);
    Found { choice, devices: rdma::devices(), ..found }
}
