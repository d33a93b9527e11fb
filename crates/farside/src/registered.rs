//! Registered memory that ends with its owner, and errors of the control side.

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

    /// Memory of this end alone, for requests to take from and to put into.
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

    /// The same, or nothing where no bytes are wanted.
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
        // Whatever the fabric says, nobody here uses it any more. Requests that are under way fail;
        // the fabric sees to it that none reaches the memory.
        let _ = self.fabric.deregister(self.region.id);
    }
}

/// Why nobody was reached, in terms of the table; `trouble` is what the port has to say of the link.
pub(crate) fn not_reached(why: NotReached, trouble: Option<String>) -> Error {
    let (code, text) = match why {
        NotReached::Nobody => (ErrorCode::NobodyListens, "nobody listens there"),
        NotReached::NotPermitted => (ErrorCode::NotPermitted, "not trusted there"),
        _ => (ErrorCode::NobodyListens, "no way there, or no answer in time"),
    };
    Error::with(code, trouble.unwrap_or_else(|| text.to_owned()))
}

/// An error of the control side, in terms of the table.
pub(crate) fn control(error: &FabricError) -> Error {
    let code = match error {
        FabricError::Lacks(_) => ErrorCode::FabricLacks,
        FabricError::AddressInUse(_) => ErrorCode::AddressTaken,
        FabricError::NobodyThere(_) => ErrorCode::NobodyListens,
        FabricError::NotPermitted(_) => ErrorCode::NotPermitted,
        FabricError::PeerLost | FabricError::Unknown(_) => ErrorCode::PeerLost,
        FabricError::Limit(_) => ErrorCode::BadConfiguration,
        _ => ErrorCode::System,
    };
    Error::with(code, error.to_string())
}
