//! The fabric of a node between hosts: its description for a worker, and how it is opened.

use crate::choice;
use crate::failure::Failure;
use crate::settings::{HostFabric, Protection, Rdma};
use farside::fabrics::{FabricOptions, OpenFabric};
use farside_bootstrap::{Admission, Endpoint};
use farside_fabric::Fabric;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Lease of the links of these clusters. Workers share processors with other programs, so a shorter silence of a
/// node may only mean that it waits for a processor.
pub const LEASE: Duration = Duration::from_secs(3);

/// A fabric that listens, and the address at which others reach it.
pub type Opened = (Arc<dyn Fabric>, SocketAddr);

/// A worker's fabric between hosts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostSpec {
    /// TCP or verbs.
    pub fabric: HostFabric,
    /// For verbs, the requested device and its options.
    pub rdma: Rdma,
    /// The address to listen at; port 0 is any free one.
    pub listen: SocketAddr,
    /// Addresses of nodes of the cluster.
    pub hosts: Vec<SocketAddr>,
    /// What is protected with the worker's key.
    pub protect: Option<Protection>,
}

impl HostSpec {
    /// Opens the fabric; returns it with its address.
    pub fn fabric(
        &self,
        key: Option<&Path>,
        spin_ns: Option<u64>,
    ) -> Result<(Arc<dyn Fabric>, SocketAddr), Failure> {
        let usual = FabricOptions::new(self.fabric.scheme());
        let spin = spin_ns.map_or(usual.spin, Duration::from_nanos).min(usual.spin);
        let options = usual
            .listen(Some(Endpoint::from(self.listen)))
            .hosts(self.hosts.iter().copied().map(Endpoint::from).collect())
            .security(choice::host_security(self.fabric, key, self.protect)?)
            .lease(LEASE)
            .spin(spin);
        open(&self.rdma.apply(options))
    }
}

/// Opens a fabric between hosts that listens, and returns it with its address.
pub fn open(options: &FabricOptions) -> Result<Opened, Failure> {
    open_for(options).map(|(opened, _)| opened)
}

/// Opens a fabric as [`open`], and also returns the peers that may connect to it.
pub fn open_for(options: &FabricOptions) -> Result<(Opened, Option<Admission>), Failure> {
    let place = options.listen.as_ref().map(Endpoint::to_string).unwrap_or_default();
    let name = options.scheme.name();
    let failed = |text: &str| Failure::system(format!("{name} at {place}: {text}"));
    let OpenFabric { fabric, admission, .. } =
        options.open().map_err(|error| failed(&error.detail))?;
    match fabric.host() {
        Some(at) => Ok(((fabric, at), admission)),
        None => {
            Err(failed("no address that others can reach: give one to listen at or to advertise"))
        }
    }
}
