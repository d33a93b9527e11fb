//! Completion queues, the channels that wake for them, and shared receive queues.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the port that owns a [`CompletionQueue`] | poll, arm, take and acknowledge events | while it has it |
//! | any thread | wait for a [`Channel`]'s descriptor | while it holds the `Arc` |
//! | queue pairs | keep the queues they use | until they are destroyed |

use super::device::{Context, ProtectionDomain, check, made};
use super::types::*;
use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion: `ibv_wc`.
pub(crate) type WorkCompletion = ibv_wc;

/// Becomes readable when an armed queue has something.
pub(crate) struct Channel {
    context: Arc<Context>,
    raw: NonNull<ibv_comp_channel>,
}

// SAFETY: libibverbs may be called from any thread; the descriptor is fixed.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: an open context.
        let raw = made(unsafe { (context.library.create_comp_channel)(context.raw.as_ptr()) })?;
        let channel = Self { context: Arc::clone(context), raw };
        context.unblock(channel.descriptor())?;
        Ok(Arc::new(channel))
    }

    fn descriptor(&self) -> c_int {
        // SAFETY: lives as long as self; fixed.
        unsafe { self.raw.as_ref().fd }
    }

    /// Returns the descriptor to wait for.
    pub(crate) fn borrowed(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as self.
        unsafe { BorrowedFd::borrow_raw(self.descriptor()) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: the queue that used it held its `Arc`.
        unsafe { (self.context.library.destroy_comp_channel)(self.raw.as_ptr()) };
    }
}

/// A completion queue with its channel.
pub(crate) struct CompletionQueue {
    channel: Arc<Channel>,
    pub(super) raw: NonNull<ibv_cq>,
    poll: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    notify: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
}

// SAFETY: libibverbs may be called from any thread, and locks what it must.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// # Errors
    /// Errors of the system; `EINVAL` for more entries than the device has.
    pub(crate) fn new(channel: &Arc<Channel>, entries: u32) -> io::Result<Arc<Self>> {
        let context = &channel.context;
        let unsupported = || io::Error::from(io::ErrorKind::Unsupported);
        let poll = context.operations().poll_cq.ok_or_else(unsupported)?;
        let notify = context.operations().req_notify_cq.ok_or_else(unsupported)?;
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        let create = context.library.create_cq;
        // SAFETY: an open context and a channel of it.
        let raw =
            unsafe { create(context.raw.as_ptr(), entries, null_mut(), channel.raw.as_ptr(), 0) };
        Ok(Arc::new(Self { channel: Arc::clone(channel), raw: made(raw)?, poll, notify }))
    }

    /// Takes completions. Returns how many were written to the front of `out`.
    ///
    /// # Errors
    /// If the queue is broken: it has overrun, or the device is gone.
    #[inline]
    pub(crate) fn poll(&self, out: &mut [WorkCompletion]) -> io::Result<usize> {
        let most = c_int::try_from(out.len()).unwrap_or(c_int::MAX);
        // SAFETY: the queue lives; writes at most `most` entries.
        let count = unsafe { (self.poll)(self.raw.as_ptr(), most, out.as_mut_ptr()) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Lets the channel become readable at the next completion.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives.
        check(unsafe { (self.notify)(self.raw.as_ptr(), 0) })
    }

    /// Takes the channel's events and acknowledges them, without waiting.
    pub(crate) fn drain(&self) {
        let library = &self.channel.context.library;
        let (mut queue, mut context) = (null_mut(), null_mut());
        let mut events = 0;
        // SAFETY: writes two pointers, of which the first can only be this queue's, since the channel
        // has no other.
        while unsafe {
            (library.get_cq_event)(self.channel.raw.as_ptr(), &raw mut queue, &raw mut context)
        } == 0
        {
            events += 1;
        }
        if events > 0 {
            // SAFETY: as many events of this queue as were just taken.
            unsafe { (library.ack_cq_events)(self.raw.as_ptr(), events) };
        }
    }

    /// Returns how many completions it holds.
    pub(crate) fn entries(&self) -> u32 {
        // SAFETY: lives as long as self; changes under `resize` alone, which the port calls.
        let entries = unsafe { self.raw.as_ref().cqe };
        u32::try_from(entries).unwrap_or(0)
    }

    /// Resizes the queue to at least this many entries.
    ///
    /// # Errors
    /// When the device cannot do that; the queue is as it was.
    pub(crate) fn resize(&self, entries: u32) -> io::Result<()> {
        let entries = c_int::try_from(entries).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the queue lives; libibverbs locks against polls.
        check(unsafe { (self.channel.context.library.resize_cq)(self.raw.as_ptr(), entries) })
    }

    /// Returns its address, for comparing with an asynchronous event.
    pub(crate) fn address(&self) -> u64 {
        self.raw.as_ptr().addr() as u64
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.drain();
        // SAFETY: queue pairs that used it held its `Arc`; its events are acknowledged.
        unsafe { (self.channel.context.library.destroy_cq)(self.raw.as_ptr()) };
    }
}

/// A stretch of registered memory, by its local key. The adapter checks it against the key.
pub(crate) type Slice = ibv_sge;

/// A receive queue that several queue pairs share.
pub(crate) struct SharedReceiveQueue {
    domain: Arc<ProtectionDomain>,
    pub(super) raw: NonNull<ibv_srq>,
    post: unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
}

// SAFETY: libibverbs may be called from any thread, and locks what it must.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// # Errors
    /// Errors of the system; `EINVAL` for more entries than the device has.
    pub(crate) fn new(domain: &Arc<ProtectionDomain>, depth: u32) -> io::Result<Arc<Self>> {
        let context = &domain.context;
        let post = context.operations().post_srq_recv.ok_or(io::ErrorKind::Unsupported)?;
        let mut attributes = ibv_srq_init_attr {
            srq_context: null_mut(),
            max_wr: depth.max(1),
            max_sge: 1,
            srq_limit: 0,
        };
        // SAFETY: a domain that lives; the attributes are read and written during the call.
        let raw = unsafe { (context.library.create_srq)(domain.raw.as_ptr(), &raw mut attributes) };
        Ok(Arc::new(Self { domain: Arc::clone(domain), raw: made(raw)?, post }))
    }

    /// Posts one receive; a slice of no bytes takes messages of no bytes.
    ///
    /// # Errors
    /// `ENOMEM` when it is full.
    #[inline]
    pub(crate) fn post(&self, id: u64, mut into: Slice) -> io::Result<()> {
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: &raw mut into,
            num_sge: c_int::from(into.length > 0),
        };
        let mut bad = null_mut();
        // SAFETY: the queue lives; request and slice are read during the call. What the adapter writes
        // later is bounded by the slice's key.
        check(unsafe { (self.post)(self.raw.as_ptr(), &raw mut request, &raw mut bad) })
    }

    /// Returns its address, for comparing with an asynchronous event.
    pub(crate) fn address(&self) -> u64 {
        self.raw.as_ptr().addr() as u64
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs that used it held its `Arc`.
        unsafe { (self.domain.context.library.destroy_srq)(self.raw.as_ptr()) };
    }
}
