//! Memory windows of type 2B: a second rkey of a region, valid on one queue pair alone.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the owner of a [`MemoryWindow`] | bind it; deallocate it by dropping it | before its queue pair and its region end |
//! | the adapter | reach the region's bytes by the window's key, on that queue pair | once it is bound, until it ends |
//!
//! A bound window delays the destruction of its queue pair and its region, on some adapters for long:
//! its owner deallocates it first.

use super::device::{ProtectionDomain, made};
use super::memory_region::MemoryRegion;
use super::queue_pair::QueuePairHandle;
use super::types::*;
use std::ffi::c_int;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A window, bound or not yet.
pub(crate) struct MemoryWindow {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ibv_mw>,
}

// SAFETY: libibverbs may be called from any thread; binding takes `&mut self`.
unsafe impl Send for MemoryWindow {}

impl MemoryWindow {
    /// # Errors
    /// Errors of the system: `ENOMEM` if there are no more, `Unsupported` if there are none.
    pub(crate) fn new(domain: &Arc<ProtectionDomain>) -> io::Result<Self> {
        let operations = domain.context.operations();
        let alloc = operations.alloc_mw.ok_or(io::ErrorKind::Unsupported)?;
        operations.dealloc_mw.ok_or(io::ErrorKind::Unsupported)?;
        // SAFETY: a domain that lives.
        let raw = made(unsafe { alloc(domain.raw.as_ptr(), IBV_MW_TYPE_2) })?;
        Ok(Self { domain: Arc::clone(domain), raw })
    }

    /// Posts the bind of a window to all of a region, which permits the peer of one queue pair what
    /// `access` says. A completion of `id` reports when it is done. The rkey's low byte is `tag`;
    /// returns the rkey.
    ///
    /// The bind is fenced after a READ of no bytes, which completes when all before it has. Soft-RoCE
    /// (Linux 7.3) binds a second time when it repeats an earlier request that was lost or met
    /// receiver-not-ready (`req_retry` leaves a completed request as it is, and the requester executes
    /// all from there on again); a second bind of a bound window is an error, which moves the queue
    /// pair to the error state. With nothing before it that may be repeated, that does not happen.
    ///
    /// # Errors
    /// When the queue pair is gone or the adapter takes no such request; nothing has happened.
    pub(crate) fn bind(
        &mut self,
        pair: &QueuePairHandle,
        memory: &MemoryRegion,
        access: c_int,
        tag: u8,
        id: u64,
    ) -> io::Result<u32> {
        // SAFETY: lives as long as self; its key changes here alone.
        let key = unsafe { self.raw.as_ref().rkey } & !0xff | u32::from(tag);
        let nowhere = || ibv_send_wr_remote {
            atomic: ibv_send_wr_atomic { remote_addr: 0, compare_add: 0, swap: 0, rkey: 0 },
        };
        let mut bind = ibv_send_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: null_mut(),
            num_sge: 0,
            opcode: IBV_WR_BIND_MW,
            send_flags: IBV_SEND_SIGNALED | IBV_SEND_FENCE,
            imm_data: 0,
            wr: nowhere(),
            remote_srqn: 0,
            bind_mw: ibv_send_wr_bind {
                mw: self.raw.as_ptr(),
                rkey: key,
                bind_info: ibv_mw_bind_info {
                    mr: memory.raw.as_ptr(),
                    addr: memory.address(),
                    length: memory.bytes(),
                    mw_access_flags: access.cast_unsigned(),
                },
            },
        };
        let mut read = ibv_send_wr {
            wr_id: id,
            next: &raw mut bind,
            sg_list: null_mut(),
            num_sge: 0,
            opcode: IBV_WR_RDMA_READ,
            send_flags: 0,
            imm_data: 0,
            wr: nowhere(),
            remote_srqn: 0,
            bind_mw: ibv_send_wr_bind::NONE,
        };
        pair.post(&mut read)?;
        // SAFETY: as above. Providers want the program to note the key of a window of type 2.
        unsafe { self.raw.as_mut().rkey = key };
        Ok(key)
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if let Some(dealloc) = self.domain.context.operations().dealloc_mw {
            // SAFETY: ended once.
            unsafe { dealloc(self.raw.as_ptr()) };
        }
    }
}
