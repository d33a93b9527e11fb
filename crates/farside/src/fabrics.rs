//! The fabrics of this build, and the choice between them.

use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use std::sync::Arc;

/// The shared-memory fabric, for processes of this machine and user.
///
/// # Errors
/// `System` if the machine does not let this process use shared memory; `farside doctor` says what to
/// change.
pub fn shared_memory() -> Result<Arc<dyn Fabric>, Error> {
    match ShmFabric::new() {
        Ok(fabric) => Ok(Arc::new(fabric)),
        Err(error) => Err(Error::with(ErrorCode::System, error.to_string())),
    }
}
