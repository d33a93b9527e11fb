//! Registered memory of a program, to send from and to receive into without copies.

use crate::registered::Registered;
use crate::{Error, ErrorCode};
use farside_base::LocalSlice;
use farside_fabric::Fabric;
use std::sync::Arc;

/// Registered memory. It is read and written by copies: a fabric may write to it meanwhile.
///
/// *Cost*: registering takes a system call or more; do it before the hot path.
pub struct Buffer(Registered);

impl Buffer {
    pub(super) fn new(fabric: &Arc<dyn Fabric>, bytes: u64) -> Result<Self, Error> {
        Registered::own(fabric, bytes).map(Self)
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.0.region.arena.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `OutOfBounds`; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.region.arena.write(offset, bytes).map_err(|_| ErrorCode::OutOfBounds.into())
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// `OutOfBounds`; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.0.region.arena.read(offset, out).map_err(|_| ErrorCode::OutOfBounds.into())
    }

    /// A part of it, to be sent or received into.
    ///
    /// # Errors
    /// `OutOfBounds`.
    #[inline]
    pub fn slice(&self, offset: u64, bytes: u32) -> Result<Slice, Error> {
        match self.0.region.arena.at(offset, bytes as usize) {
            Ok(_) => {
                let slice = LocalSlice { region: self.0.region.id, offset, bytes };
                Ok(Slice { slice, fabric: address(&self.0.fabric) })
            }
            Err(_) => Err(ErrorCode::OutOfBounds.into()),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} B)", self.len())
    }
}

/// A part of a [`Buffer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    slice: LocalSlice,
    /// Where the fabric is that knows the region by its number.
    fabric: usize,
}

/// Tells fabrics apart while they live.
fn address(fabric: &Arc<dyn Fabric>) -> usize {
    Arc::as_ptr(fabric).cast::<()>().addr()
}

impl Slice {
    /// The slice, for requests over this fabric.
    ///
    /// # Errors
    /// `BadForm` when it was registered with another one.
    #[inline]
    pub(super) fn over(&self, fabric: &Arc<dyn Fabric>) -> Result<LocalSlice, Error> {
        if self.fabric == address(fabric) {
            return Ok(self.slice);
        }
        Err(Error::with(ErrorCode::BadForm, "the slice was registered with another fabric"))
    }

    /// Bytes of it.
    pub const fn len(&self) -> u32 {
        self.slice.bytes
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.slice.bytes == 0
    }
}
