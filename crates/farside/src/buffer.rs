//! Registered memory of a program, for transfers without copies.

use crate::registered::Registered;
use crate::topology::CpuSocket;
use crate::{Error, ErrorCode};
use farside_base::LocalSlice;
use farside_fabric::Fabric;
use std::sync::Arc;

/// Registered memory, accessed by copying, as a fabric may write to it meanwhile. A clone is the same memory.
///
/// *Cost*: registration takes at least a system call; do it before the hot path.
#[derive(Clone)]
pub struct Buffer(Arc<Registered>);

impl Buffer {
    pub(crate) fn new(fabric: &Arc<dyn Fabric>, bytes: u64) -> Result<Self, Error> {
        Ok(Self(Arc::new(Registered::own(fabric, bytes)?)))
    }

    /// Registers memory next to a socket.
    pub(crate) fn next_to(
        socket: &CpuSocket,
        fabric: &Arc<dyn Fabric>,
        bytes: u64,
    ) -> Result<Self, Error> {
        socket.run(|| {
            let registered = Registered::own(fabric, bytes)?;
            socket.place(&registered.arena)?;
            Ok(Self(Arc::new(registered)))
        })?
    }

    /// Returns its length in bytes.
    pub fn len(&self) -> usize {
        self.0.region.arena.len()
    }

    /// Whether it is empty.
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

    /// Copies bytes of another buffer in.
    pub(crate) fn copy_from(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        bytes: usize,
    ) -> Result<(), Error> {
        let copied =
            self.0.region.arena.copy_from(offset, &from.0.region.arena, from_offset, bytes);
        copied.map_err(|_| ErrorCode::OutOfBounds.into())
    }

    /// The bytes as a slice of work requests, unchecked: the fabric refuses one out of bounds.
    pub(crate) fn local(&self, offset: u64, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.0.region.id, offset, bytes }
    }

    /// Whether it was registered with this fabric.
    pub(crate) fn is_of(&self, fabric: &Arc<dyn Fabric>) -> bool {
        Arc::ptr_eq(&self.0.fabric, fabric)
    }

    /// Returns a part of it, to send or receive into.
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
    /// Address of the fabric at which the region is registered.
    fabric: usize,
}

/// Identifies a fabric while it exists.
fn address(fabric: &Arc<dyn Fabric>) -> usize {
    Arc::as_ptr(fabric).cast::<()>().addr()
}

impl Slice {
    /// Returns the slice for requests on this fabric.
    ///
    /// # Errors
    /// `BadForm` if it was registered with another fabric.
    #[inline]
    pub(crate) fn over(&self, fabric: &Arc<dyn Fabric>) -> Result<LocalSlice, Error> {
        if self.fabric == address(fabric) {
            return Ok(self.slice);
        }
        Err(Error::with(ErrorCode::BadForm, "the slice was registered with another fabric"))
    }

    /// Returns its length in bytes.
    pub const fn len(&self) -> u32 {
        self.slice.bytes
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.slice.bytes == 0
    }
}
