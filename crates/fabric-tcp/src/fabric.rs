//! The public fabric: opening, regions, ports.

use crate::engine::{EngineHandle, Inner};
use crate::options::TcpOptions;
use crate::port::TcpPort;
use farside_base::{Access, Capabilities, RegionId, RegionKind};
use farside_bootstrap::{Admission, Endpoint};
use farside_fabric::{Arena, Fabric, FabricError, Port, PortSpec, Region, RegionSpec};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// The TCP fabric: a software RNIC with one connection for each link, served by one engine thread and
/// by polling threads.
///
/// Guarantees: see [`CAPABILITIES`](Fabric::capabilities). A clone is the same fabric. Cost: one
/// thread, which sleeps unless peers send.
#[derive(Clone)]
pub struct TcpFabric {
    handle: Arc<EngineHandle>,
}

impl TcpFabric {
    /// Opens a fabric, which listens from now on if the options say where.
    ///
    /// # Errors
    /// `Limit` with the name of an option that is out of its range, `AddressInUse`, `System` when the
    /// system refuses a socket, a thread or a name.
    pub fn new(options: TcpOptions) -> Result<Self, FabricError> {
        if let Some(name) = options.wrong() {
            return Err(FabricError::Limit(name));
        }
        let inner = Arc::new(Inner::new(options)?);
        Ok(Self { handle: Arc::new(EngineHandle::start(inner)?) })
    }

    /// Returns the address at which it listens.
    pub fn listens_at(&self) -> Option<Endpoint> {
        self.handle.inner.local.map(Endpoint::from)
    }

    /// Returns which peers may connect: without an identity on the loopback its own user alone, or
    /// every user of the machine if the kernel does not report the owner of a connection. `None` if it
    /// does not listen.
    pub fn admission(&self) -> Option<&Admission> {
        let inner = &self.handle.inner;
        inner.local.map(|_| &inner.admission)
    }

    /// Returns the incarnation: a random number chosen when the fabric was opened.
    pub fn incarnation(&self) -> u64 {
        self.handle.inner.incarnation
    }
}

impl fmt::Debug for TcpFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpFabric({:?})", self.handle.inner.local)
    }
}

impl Fabric for TcpFabric {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn capabilities(&self) -> Capabilities {
        self.handle.inner.capabilities
    }

    fn host(&self) -> Option<SocketAddr> {
        self.handle.inner.host
    }

    fn lease_ns(&self) -> u64 {
        u64::try_from(self.handle.inner.options.lease.as_nanos()).unwrap_or(u64::MAX)
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        let inner = &self.handle.inner;
        inner.add_region(|registry| registry.register(&inner.capabilities, spec))
    }

    fn register_memory(&self, memory: Arena, access: Access) -> Result<Region, FabricError> {
        let inner = &self.handle.inner;
        let bytes = memory.len() as u64;
        let spec = RegionSpec { bytes, access, kind: RegionKind::Memory };
        spec.check(&inner.capabilities, 0)?;
        inner.add_region(|registry| registry.add(memory, access, RegionKind::Memory))
    }

    /// Waits for copies that the engine or another thread is making.
    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.handle.inner.end_region(region)
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        Ok(Box::new(TcpPort::open(&self.handle, spec)?))
    }
}
