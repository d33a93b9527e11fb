//! Regions of memory at the adapter's disposal.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the adapter | read and write the memory, as its keys permit | until the region is dropped |
//! | holders of a [`MemoryRegion`] | read its keys, from any thread | as above |
//! | a region | keep its memory and its protection domain | so that it is deregistered before either ends |

use super::adapter_memory::AdapterMemory;
use super::device::{ProtectionDomain, made};
use super::types::*;
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// A region of memory at the adapter's disposal.
pub(crate) struct MemoryRegion {
    domain: Arc<ProtectionDomain>,
    pub(super) raw: NonNull<ibv_mr>,
    /// On iWARP, a second registration of memory that peers may not write, for this side's requests.
    /// There the answer of a READ is a tagged WRITE of the responding adapter (RFC 5040 4.4), for which
    /// most adapters require that right. Its key is never sent to a peer's program; the requests
    /// themselves carry it.
    local: Option<NonNull<ibv_mr>>,
    /// Keeps the memory while the adapter may use it.
    memory: Backing,
}

/// The kind of memory of a region.
pub(crate) enum Backing {
    /// Memory of this process.
    Arena(farside_fabric::Arena),
    /// Memory at the adapter.
    Adapter(Arc<AdapterMemory>),
}

// SAFETY: as for the context; the memory is an arena, which any thread may use.
unsafe impl Send for MemoryRegion {}

// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers all of an arena with `ibv_access_flags`; optional ones are used if library and kernel
    /// know them.
    ///
    /// # Errors
    /// Errors of the system: `ENOMEM` for too much locked memory, `EINVAL` for access that this memory
    /// cannot have.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        memory: farside_fabric::Arena,
        access: c_int,
    ) -> io::Result<Self> {
        let start = memory.at(0, memory.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let library = &domain.context.library;
        let (place, bytes) = (start.cast::<c_void>(), memory.len());
        let optional = access & IBV_ACCESS_OPTIONAL_RANGE != 0;
        let raw = match library.reg_mr_iova2.filter(|_| optional) {
            Some(register) => {
                let address = start.addr() as u64;
                // SAFETY: the arena's memory is readable and writable while `memory` is held, and races
                // with the adapter are what an arena is for.
                unsafe {
                    register(domain.raw.as_ptr(), place, bytes, address, access.cast_unsigned())
                }
            }
            None => {
                let access = access & !IBV_ACCESS_OPTIONAL_RANGE;
                // SAFETY: as above.
                unsafe { (library.reg_mr)(domain.raw.as_ptr(), place, bytes, access) }
            }
        };
        let memory = Backing::Arena(memory);
        let mut region = Self { domain: Arc::clone(domain), raw: made(raw)?, local: None, memory };
        let iwarp = domain.context.listed.transport == IBV_TRANSPORT_IWARP;
        if iwarp && access & IBV_ACCESS_REMOTE_WRITE == 0 {
            let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
            let domain = domain.raw.as_ptr();
            // SAFETY: as above.
            let raw = unsafe { (library.reg_mr)(domain, start.cast::<c_void>(), bytes, access) };
            region.local = Some(made(raw)?);
        }
        Ok(region)
    }

    /// Registers all of some memory at the adapter.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn at_adapter(
        domain: &Arc<ProtectionDomain>,
        memory: Arc<AdapterMemory>,
        access: c_int,
    ) -> io::Result<Self> {
        let raw = memory.register(domain, access & !IBV_ACCESS_OPTIONAL_RANGE)?;
        let memory = Backing::Adapter(memory);
        Ok(Self { domain: Arc::clone(domain), raw, local: None, memory })
    }

    /// Returns the kind of memory.
    pub(crate) const fn backing(&self) -> &Backing {
        &self.memory
    }

    /// Returns the key for local requests.
    pub(crate) fn local_key(&self) -> u32 {
        let local = self.local.unwrap_or(self.raw);
        // SAFETY: lives as long as self; fixed.
        unsafe { local.as_ref().lkey }
    }

    /// Returns the key for requests of peers.
    pub(crate) fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { self.raw.as_ref().rkey }
    }

    /// Returns how many bytes it has.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.memory {
            Backing::Arena(arena) => arena.len() as u64,
            Backing::Adapter(memory) => memory.bytes(),
        }
    }

    /// Returns its start address, for requests.
    pub(crate) fn address(&self) -> u64 {
        match &self.memory {
            Backing::Arena(arena) => arena.at(0, 0).map_or(0, |start| start.addr() as u64),
            Backing::Adapter(_) => 0,
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        for raw in [Some(self.raw), self.local].into_iter().flatten() {
            // SAFETY: each deregistered once, while the memory still exists.
            unsafe { (self.domain.context.library.dereg_mr)(raw.as_ptr()) };
        }
    }
}
