//! Memory at an adapter (`ibv_alloc_dm`), of which a region can be made (`ibv_reg_dm_mr`).
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | holders of an [`AdapterMemory`] | copy bytes in and out, from any thread | until the last `Arc` is dropped |
//! | the adapter | reach it by the keys of its regions | while these are registered |
//! | a [`MemoryRegion`](super::MemoryRegion) made of it | keep its `Arc` | so that its registration ends first |
//!
//! The library has no address of it, only calls that copy, of which nothing but the copy is promised.
//! mlx5's provider copies words of four bytes, and requires offsets and lengths in such words.

use super::device::{Context, ProtectionDomain, check, made};
use super::types::*;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// The functions of a context for memory at its adapter.
#[derive(Clone, Copy)]
struct Operations {
    alloc: AllocDm,
    free: FreeDm,
    register: RegDmMr,
}

impl Operations {
    fn of(context: &Context) -> Option<Self> {
        let wide = context.wide()?;
        Some(Self { alloc: wide.alloc_dm?, free: wide.free_dm?, register: wide.reg_dm_mr? })
    }
}

/// Some of an adapter's memory. It is not zeroed.
pub(crate) struct AdapterMemory {
    /// Keeps the device open.
    _context: Arc<Context>,
    operations: Operations,
    raw: NonNull<ibv_dm>,
    bytes: u64,
}

// SAFETY: libibverbs may be called from any thread; copies are stores and loads.
unsafe impl Send for AdapterMemory {}
// SAFETY: as above.
unsafe impl Sync for AdapterMemory {}

impl AdapterMemory {
    /// Returns whether library and provider have such memory at all.
    pub(crate) fn is_had(context: &Context) -> bool {
        Operations::of(context).is_some()
    }

    /// Allocates this many bytes of device memory, a multiple of eight.
    ///
    /// # Errors
    /// `Unsupported` if there are no such calls; errors of the system: `ENOMEM` if there is no more.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> io::Result<Arc<Self>> {
        let operations = Operations::of(context).ok_or(io::ErrorKind::Unsupported)?;
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut wanted = ibv_alloc_dm_attr { length, log_align_req: 3, comp_mask: 0 };
        // SAFETY: an open context, and a structure that lives during the call.
        let raw = made(unsafe { (operations.alloc)(context.raw.as_ptr(), &raw mut wanted) })?;
        Ok(Arc::new(Self { _context: Arc::clone(context), operations, raw, bytes }))
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    fn within(&self, offset: u64, bytes: usize) -> io::Result<()> {
        let end = offset.checked_add(bytes as u64);
        let fits = end.is_some_and(|end| end <= self.bytes);
        if fits { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// If they pass the end; errors of the provider for offsets that it does not support.
    pub(crate) fn copy_in(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.within(offset, bytes.len())?;
        let from = bytes.as_ptr().cast::<c_void>();
        // SAFETY: the memory lives as long as self; the call reads that many bytes of the slice.
        let copy = unsafe { self.raw.as_ref() }.memcpy_to_dm.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: as above, within the memory.
        check(unsafe { copy(self.raw.as_ptr(), offset, from, bytes.len()) })
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// As [`Self::copy_in`].
    pub(crate) fn copy_out(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.within(offset, out.len())?;
        let to = out.as_mut_ptr().cast::<c_void>();
        // SAFETY: as above; the call fills the slice.
        let copy = unsafe { self.raw.as_ref() }.memcpy_from_dm.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: as above, within the memory.
        check(unsafe { copy(to, self.raw.as_ptr(), offset, out.len()) })
    }

    /// Registers all of it: addresses of requests begin at zero.
    pub(super) fn register(
        &self,
        domain: &ProtectionDomain,
        access: c_int,
    ) -> io::Result<NonNull<ibv_mr>> {
        let access = (access | IBV_ACCESS_ZERO_BASED).cast_unsigned();
        let length = usize::try_from(self.bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let (domain, memory) = (domain.raw.as_ptr(), self.raw.as_ptr());
        // SAFETY: a domain of the same context and memory that lives; all of that.
        made(unsafe { (self.operations.register)(domain, memory, 0, length, access) })
    }
}

impl Drop for AdapterMemory {
    fn drop(&mut self) {
        // SAFETY: freed once, while its context is open; regions made of it held its `Arc`.
        unsafe { (self.operations.free)(self.raw.as_ptr()) };
    }
}
