//! Registered memory that is deregistered by its owner's drop, and errors of the control path.

use crate::{Error, ErrorCode};
use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, FabricError, NotReached, Region, RegionSpec};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A region that is deregistered when it is dropped.
pub(crate) struct Registered {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) region: Region,
}

impl Registered {
    /// Registers a region.
    pub(crate) fn of(fabric: &Arc<dyn Fabric>, spec: &RegionSpec) -> Result<Self, FabricError> {
        Ok(Self { fabric: Arc::clone(fabric), region: fabric.register(spec)? })
    }

    /// Registers memory that is not exported, for local use by work requests.
    pub(crate) fn own(fabric: &Arc<dyn Fabric>, bytes: u64) -> Result<Self, Error> {
        Self::new(fabric, bytes, Access::NONE, RegionKind::Memory)
    }

    pub(crate) fn new(
        fabric: &Arc<dyn Fabric>,
        bytes: u64,
        access: Access,
        kind: RegionKind,
    ) -> Result<Self, Error> {
        Self::of(fabric, &RegionSpec { bytes, access, kind }).map_err(|error| control(&error))
    }

    /// The same, or `None` for zero bytes.
    pub(crate) fn if_any(
        fabric: &Arc<dyn Fabric>,
        bytes: u64,
        access: Access,
        kind: RegionKind,
    ) -> Result<Option<Self>, Error> {
        (bytes > 0).then(|| Self::new(fabric, bytes, access, kind)).transpose()
    }
}

impl Deref for Registered {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region.fmt(f)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // The owner uses the region no more, whatever the result. Requests in flight fail; the fabric
        // guarantees that none accesses the memory.
        let _ = self.fabric.deregister(self.region.id);
    }
}

/// The error for an unreachable peer; `trouble` is the port's description of the link.
pub(crate) fn not_reached(why: NotReached, trouble: Option<String>) -> Error {
    let (code, text) = match why {
        NotReached::NoListener => (ErrorCode::NoListener, "no process listens at that address"),
        NotReached::NotPermitted => (ErrorCode::NotPermitted, "not trusted by the peer"),
        _ => (ErrorCode::NoListener, "unreachable, or no answer in time"),
    };
    Error::with(code, trouble.unwrap_or_else(|| text.to_owned()))
}

/// The error of the table for an error of the control path.
pub(crate) fn control(error: &FabricError) -> Error {
    let code = match error {
        FabricError::Lacks(_) => ErrorCode::FabricLacks,
        FabricError::AddressInUse(_) => ErrorCode::AddressTaken,
        FabricError::NoListener(_) => ErrorCode::NoListener,
        FabricError::NotPermitted(_) => ErrorCode::NotPermitted,
        FabricError::PeerLost | FabricError::Unknown(_) => ErrorCode::PeerLost,
        FabricError::Limit(_) => ErrorCode::BadConfiguration,
        _ => ErrorCode::System,
    };
    Error::with(code, error.to_string())
}
