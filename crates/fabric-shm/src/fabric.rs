//! The control side that callers see: regions and ports.

use crate::connection::lock;
use crate::control::{Control, wait_for_requests};
use crate::mapping::Pages;
use crate::options::{CAPABILITIES, ShmOptions};
use crate::port::ShmPort;
use crate::region::allocate;
use farside_base::{Access, Capabilities, RegionId};
use farside_fabric::{Arena, Fabric, FabricError, Port, PortSpec, Region, RegionSpec};
use std::fmt;
use std::sync::Arc;

/// The shared-memory fabric for processes of one machine and user. It is truly one-sided: a request is
/// a copy by the thread that posts it.
///
/// Guarantees: see [`CAPABILITIES`](Fabric::capabilities); a process that ends in any way leaves
/// nothing except sockets that the next listener removes, and disturbs its own links only. A clone is
/// the same fabric. Cost: one thread, which sleeps unless links are opened or closed.
#[derive(Clone)]
pub struct ShmFabric {
    control: Arc<Control>,
}

impl ShmFabric {
    /// Opens a fabric with the default options.
    ///
    /// # Errors
    /// `System` if the kernel refuses memory, a thread or a descriptor; [`probe`](crate::probe) reports
    /// what is missing.
    pub fn new() -> Result<Self, FabricError> {
        Self::with_options(ShmOptions::DEFAULT)
    }

    /// Returns a fabric with options of its own.
    ///
    /// # Errors
    /// `Limit` with the name of an option that is out of its range; `System` as for
    /// [`new`](Self::new).
    pub fn with_options(options: ShmOptions) -> Result<Self, FabricError> {
        if let Some(name) = options.wrong() {
            return Err(FabricError::Limit(name));
        }
        Ok(Self { control: Arc::new(Control::start(options)?) })
    }

    /// Returns the pages of a region of this fabric, and why they are not better ones.
    ///
    /// # Errors
    /// `Unknown` if it was deregistered.
    pub fn describe(&self, region: RegionId) -> Result<Pages, FabricError> {
        let regions = lock(&self.control.inner.regions);
        let found = regions.find(region).ok_or(FabricError::Unknown("region"))?;
        Ok(found.pages.clone())
    }
}

impl fmt::Debug for ShmFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ShmFabric({:?})", self.control.inner.options)
    }
}

impl Fabric for ShmFabric {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        let inner = &self.control.inner;
        let (memory, pages) = allocate(spec, &inner.options)?;
        lock(&inner.regions).add(memory, pages, spec)
    }

    fn register_memory(&self, _memory: Arena, _access: Access) -> Result<Region, FabricError> {
        Err(FabricError::Lacks("own_memory"))
    }

    /// Waits for requests of peers that are in flight; for a peer that is stopped in the middle of one,
    /// at most `control_timeout`. After that error no new request passes, and the call may be repeated.
    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        let inner = &self.control.inner;
        lock(&inner.regions).revoke(region)?;
        wait_for_requests(inner, region)?;
        lock(&inner.regions).free(region);
        Ok(())
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        Ok(Box::new(ShmPort::open(&self.control, spec)?))
    }
}
