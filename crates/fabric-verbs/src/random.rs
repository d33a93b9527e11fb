//! Random numbers of the kernel.

use farside_fabric::FabricError;
use std::io;

/// Returns a random number of 64 bits.
///
/// # Errors
/// `System` if the kernel returns none.
pub(crate) fn random() -> Result<u64, FabricError> {
    let mut bytes = [0; 8];
    let taken = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match taken {
        Ok(8) => Ok(u64::from_ne_bytes(bytes)),
        Ok(_) => Err(FabricError::System("random number", io::ErrorKind::UnexpectedEof.into())),
        Err(reason) => Err(FabricError::System("random number", reason.into())),
    }
}
