//! Queue pairs: creation, state changes, posting.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the port that owns a [`QueuePair`] | post; destroy it by dropping it | while it has it |
//! | holders of its [`QueuePairHandle`], any thread | change its state, bind a window | until it is destroyed, which waits |
//! | the adapter | read and write slices by their keys | until the request's completion |
//!
//! Requests are posted by the extended interface (`ibv_wr_*`: fields written directly into the queue)
//! if the queue pair supports it, otherwise as one post list by `ibv_post_send`; either way with one
//! doorbell for all requests between two calls of `ring`.

use super::completion::{CompletionQueue, SharedReceiveQueue, Slice};
use super::device::{ProtectionDomain, check, made};
use super::types::*;
use farside_base::FlushScope;
use std::ffi::{c_int, c_uint};
use std::io;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The capacity and features of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueuePairShape {
    pub(crate) requests: u32,
    pub(crate) slices: u32,
    pub(crate) inline_bytes: u32,
    /// ATOMIC WRITE is to be had; needs the extended interface.
    pub(crate) atomic_write: bool,
    /// FLUSH is to be had; needs the extended interface.
    pub(crate) flush: bool,
    /// Atomics are to be had.
    pub(crate) atomics: bool,
    /// Use the extended interface.
    pub(crate) extended: bool,
    /// But post requests of several slices as lists: the provider's extended interface gets those wrong
    /// (soft-RoCE's up to rdma-core 56 takes the first length for all).
    pub(crate) gathers_by_list: bool,
    /// In lists: slices of so few bytes altogether are copied by the provider when they are posted,
    /// unless they wait for READs.
    /// Soft-iWARP (Linux 7.3) may else have them copied by a thread of the kernel that has no memory
    /// of the program's, over which User Mode Linux panics.
    pub(crate) copied_bytes: u32,
}

/// The operation of a request at the peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Write,
    WriteImmediate(u32),
    Read,
    FetchAdd(u64),
    CompareSwap { expected: u64, new: u64 },
    AtomicWrite(u64),
    Flush { bytes: u64, scope: FlushScope },
    Send,
    SendImmediate(u32),
}

/// The local bytes of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LocalBytes<'a> {
    Slices(&'a [Slice]),
    Inline(&'a [u8]),
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkRequest<'a> {
    pub(crate) id: u64,
    pub(crate) signalled: bool,
    pub(crate) fence: bool,
    pub(crate) verb: Verb,
    pub(crate) address: u64,
    pub(crate) key: u32,
    pub(crate) bytes: LocalBytes<'a>,
}

/// The attributes that a queue pair needs of its peer and path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// `ibv_mtu`.
    pub(crate) mtu: u8,
    pub(crate) peer_queue_pair: u32,
    pub(crate) peer_packet: u32,
    pub(crate) own_packet: u32,
    pub(crate) peer_gid: [u8; 16],
    pub(crate) peer_lid: u16,
    /// Packets carry the GID: always on RoCE.
    pub(crate) global: bool,
    pub(crate) own_gid_index: u8,
    pub(crate) port: u8,
    /// READs and atomics that this end may have outstanding, and that it takes.
    pub(crate) reads_out: u8,
    pub(crate) reads_in: u8,
    pub(crate) service_level: u8,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
    /// 4.096 us times two to this.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) not_ready_retries: u8,
    pub(crate) not_ready_timer: u8,
}

/// A queue pair, or none once it is destroyed; under a lock, so that it is not destroyed during a state
/// change.
struct SharedQueuePair {
    raw: Mutex<Option<NonNull<ibv_qp>>>,
    domain: Arc<ProtectionDomain>,
    /// Its number, and its address, for comparing.
    number: u32,
    address: u64,
    end: AtomicU8,
}

/// Why a queue pair is over, as far as this side made it so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum OwnEnd {
    /// This side did nothing.
    None,
    /// It has failed locally.
    Failed,
    /// The program, or its port, has closed the link.
    Closed,
}

// SAFETY: libibverbs may be called from any thread; the pointer is used under the lock.
unsafe impl Send for SharedQueuePair {}
// SAFETY: as above.
unsafe impl Sync for SharedQueuePair {}

/// Changes the state of a queue pair from any thread, and binds windows to it.
#[derive(Clone)]
pub(crate) struct QueuePairHandle(Arc<SharedQueuePair>);

impl QueuePairHandle {
    pub(super) fn modify(&self, attributes: &mut ibv_qp_attr, mask: c_int) -> io::Result<()> {
        let raw = self.0.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = raw.ok_or(io::ErrorKind::NotConnected)?;
        let library = &self.0.domain.context.library;
        // SAFETY: it lives, since the lock is held; the attributes are read during the call.
        check(unsafe { (library.modify_qp)(raw.as_ptr(), &raw mut *attributes, mask) })
    }

    /// Posts a request from any thread: as a list of its own, for which the provider takes its lock of
    /// the queue, as it does for each of the port's lists.
    pub(super) fn post(&self, request: &mut ibv_send_wr) -> io::Result<()> {
        let raw = self.0.raw.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = raw.ok_or(io::ErrorKind::NotConnected)?;
        let operations = self.0.domain.context.operations();
        let post = operations.post_send.ok_or(io::ErrorKind::Unsupported)?;
        let mut bad = null_mut();
        // SAFETY: it lives, since the lock is held; the caller's list is read during the call.
        check(unsafe { post(raw.as_ptr(), &raw mut *request, &raw mut bad) })
    }

    /// Moves it to INIT, in which receives may be posted.
    pub(crate) fn initialise(&self, port: u8, access: c_int) -> io::Result<()> {
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: port,
            qp_access_flags: access.cast_unsigned(),
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attributes, mask)
    }

    /// Ready to receive and to send.
    pub(crate) fn connect(&self, route: &Route) -> io::Result<()> {
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: c_int::from(route.mtu),
            rq_psn: route.peer_packet,
            dest_qp_num: route.peer_queue_pair,
            max_dest_rd_atomic: route.reads_in,
            min_rnr_timer: route.not_ready_timer,
            ..Default::default()
        };
        let way = &mut attributes.ah_attr;
        way.dgid = Gid8(route.peer_gid);
        way.sgid_index = route.own_gid_index;
        way.hop_limit = route.hop_limit;
        way.traffic_class = route.traffic_class;
        way.dlid = route.peer_lid;
        way.sl = route.service_level;
        way.is_global = u8::from(route.global);
        way.port_num = route.port;
        let mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        self.modify(&mut attributes, mask | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)?;
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: route.own_packet,
            timeout: route.timeout,
            retry_cnt: route.retries,
            rnr_retry: route.not_ready_retries,
            max_rd_atomic: route.reads_out,
            ..Default::default()
        };
        let mask = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT;
        self.modify(&mut attributes, mask | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC)
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns its address, for comparing with an asynchronous event.
    pub(crate) fn address(&self) -> u64 {
        self.0.address
    }

    /// Returns whether this side has ended it.
    pub(crate) fn own_end(&self) -> OwnEnd {
        match self.0.end.load(Ordering::Acquire) {
            0 => OwnEnd::None,
            1 => OwnEnd::Failed,
            _ => OwnEnd::Closed,
        }
    }

    /// Moves it to the error state, because the link is closed.
    pub(crate) fn close(&self) {
        self.0.end.fetch_max(OwnEnd::Closed as u8, Ordering::AcqRel);
        self.fail();
    }

    /// Moves it to the error state: nothing more is sent or received, and everything outstanding is
    /// flushed.
    pub(crate) fn fail(&self) {
        self.0.end.fetch_max(OwnEnd::Failed as u8, Ordering::AcqRel);
        let mut attributes = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        // Fails only for a queue pair, or a device, that is gone.
        let _ = self.modify(&mut attributes, IBV_QP_STATE);
    }
}

/// How requests get to the adapter.
struct PostPath {
    /// Fields straight into its queue.
    extended: Option<NonNull<ibv_qp_ex>>,
    /// A list of the extended interface is begun.
    begun: bool,
    /// Requests of several slices are not posted by the extended interface.
    gathers_by_list: bool,
    /// The error of a list before the last one.
    error: Option<io::Error>,
    list: List,
    post: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
}

impl PostPath {
    /// Returns the extended interface, if a request is posted by it.
    fn extended_for(&self, request: &WorkRequest<'_>) -> Option<NonNull<ibv_qp_ex>> {
        let several = matches!(request.bytes, LocalBytes::Slices(slices) if slices.len() > 1);
        self.extended.filter(|_| !(several && self.gathers_by_list))
    }

    /// Rings the doorbell for requests begun by the extended interface.
    ///
    /// # Safety
    /// The queue pair lives, and no other thread posts to it.
    unsafe fn complete(&mut self) -> io::Result<()> {
        let Some(extended) = self.extended.filter(|_| std::mem::take(&mut self.begun)) else {
            return Ok(());
        };
        // SAFETY: as promised; `wr_start` was called before.
        unsafe {
            match extended.as_ref().wr_complete {
                Some(complete) => check(complete(extended.as_ptr())),
                None => Err(io::ErrorKind::Unsupported.into()),
            }
        }
    }
}

/// A reliable connection's end. Dropping it destroys it: when that has returned, the adapter reaches
/// no memory by it.
pub(crate) struct QueuePair {
    shared: Arc<SharedQueuePair>,
    raw: NonNull<ibv_qp>,
    way: PostPath,
    /// The size that the adapter granted, which may be more than requested.
    pub(crate) inline_bytes: u32,
    atomic_write: bool,
    flush: bool,
    _completions: Arc<CompletionQueue>,
    _receives: Arc<SharedReceiveQueue>,
}

// SAFETY: libibverbs may be called from any thread; posting takes `&mut self`.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// # Errors
    /// Errors of the system: `EINVAL` or `EOPNOTSUPP` for a shape that the device lacks, `ENOMEM` for
    /// too many.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        receives: &Arc<SharedReceiveQueue>,
        shape: &QueuePairShape,
    ) -> io::Result<Self> {
        let cap = ibv_qp_cap {
            max_send_wr: shape.requests,
            max_recv_wr: 0,
            max_send_sge: shape.slices,
            max_recv_sge: 0,
            max_inline_data: shape.inline_bytes,
        };
        let (raw, way, inline_bytes) = if shape.extended {
            make_extended(domain, completions, receives, shape, cap)?
        } else {
            make_plain(domain, completions, receives, shape, cap)?
        };
        // SAFETY: a queue pair that was just made; its number is fixed.
        let number = unsafe { raw.as_ref().qp_num };
        let shared = SharedQueuePair {
            raw: Mutex::new(Some(raw)),
            domain: Arc::clone(domain),
            number,
            address: raw.as_ptr().addr() as u64,
            end: AtomicU8::new(OwnEnd::None as u8),
        };
        Ok(Self {
            shared: Arc::new(shared),
            raw,
            way,
            inline_bytes,
            atomic_write: shape.extended && shape.atomic_write,
            flush: shape.extended && shape.flush,
            _completions: Arc::clone(completions),
            _receives: Arc::clone(receives),
        })
    }

    pub(crate) fn handle(&self) -> QueuePairHandle {
        QueuePairHandle(Arc::clone(&self.shared))
    }

    pub(crate) fn number(&self) -> u32 {
        self.shared.number
    }

    /// Returns whether the bytes of a WRITE are placed in the order of their addresses, as reported by
    /// the provider.
    pub(crate) fn is_in_order(&self) -> bool {
        const WHOLE_MESSAGE: c_int = 1;
        let query = self.shared.domain.context.library.query_qp_data_in_order;
        // SAFETY: it lives.
        let answer = query.map(|query| unsafe { query(self.raw.as_ptr(), IBV_WR_RDMA_WRITE, 0) });
        answer == Some(WHOLE_MESSAGE)
    }

    /// Adds a request to those that `ring` posts.
    #[inline]
    pub(crate) fn push(&mut self, request: &WorkRequest<'_>) {
        let may = self.may(request.verb);
        debug_assert!(may, "what is not declared is refused before");
        if !may {
            return;
        }
        let (way, raw) = (&mut self.way, self.raw);
        let begun = match way.extended_for(request) {
            Some(extended) => {
                // Earlier requests must be posted first.
                let before = way.list.post(raw, way.post);
                // SAFETY: it lives, posting is exclusive, and it was made for this verb.
                unsafe { push_extended(extended, &mut way.begun, request) };
                before
            }
            None => {
                // SAFETY: it lives, and posting is exclusive.
                let before = unsafe { way.complete() };
                way.list.push(request);
                before
            }
        };
        if let Err(error) = begun {
            way.error = Some(error);
        }
    }

    fn may(&self, verb: Verb) -> bool {
        match verb {
            Verb::AtomicWrite(_) => self.atomic_write,
            Verb::Flush { .. } => self.flush,
            _ => true,
        }
    }

    /// Rings one doorbell for the pushed requests.
    ///
    /// # Errors
    /// If the adapter took none of them, or (by a list) not all.
    #[inline]
    pub(crate) fn ring(&mut self) -> io::Result<()> {
        // SAFETY: it lives, and posting is exclusive.
        let extended = unsafe { self.way.complete() };
        let list = self.way.list.post(self.raw, self.way.post);
        match self.way.error.take() {
            Some(error) => Err(error),
            None => extended.and(list),
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        self.shared.end.fetch_max(OwnEnd::Closed as u8, Ordering::AcqRel);
        let mut raw = self.shared.raw.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(raw) = raw.take() {
            // SAFETY: destroyed once, under the lock of its state changes.
            unsafe { (self.shared.domain.context.library.destroy_qp)(raw.as_ptr()) };
        }
    }
}

type Made = (NonNull<ibv_qp>, PostPath, u32);

fn make_plain(
    domain: &Arc<ProtectionDomain>,
    completions: &CompletionQueue,
    receives: &SharedReceiveQueue,
    shape: &QueuePairShape,
    cap: ibv_qp_cap,
) -> io::Result<Made> {
    let context = &domain.context;
    let post = context.operations().post_send.ok_or(io::ErrorKind::Unsupported)?;
    let mut attributes = ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: completions.raw.as_ptr(),
        recv_cq: completions.raw.as_ptr(),
        srq: receives.raw.as_ptr(),
        cap,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: domain and queues live, and the queue pair keeps them.
    let raw = unsafe { (context.library.create_qp)(domain.raw.as_ptr(), &raw mut attributes) };
    let way = PostPath {
        extended: None,
        begun: false,
        gathers_by_list: true,
        error: None,
        list: List::new(cap.max_send_wr as usize, shape.copied_bytes),
        post,
    };
    Ok((made(raw)?, way, attributes.cap.max_inline_data))
}

fn make_extended(
    domain: &Arc<ProtectionDomain>,
    completions: &CompletionQueue,
    receives: &SharedReceiveQueue,
    shape: &QueuePairShape,
    cap: ibv_qp_cap,
) -> io::Result<Made> {
    let context = &domain.context;
    let at = std::mem::offset_of!(verbs_context_tail, create_qp_ex);
    let create = context.extended(at).and_then(|tail| tail.create_qp_ex);
    let create = create.ok_or(io::ErrorKind::Unsupported)?;
    let post = context.operations().post_send.ok_or(io::ErrorKind::Unsupported)?;
    let convert = context.library.qp_to_qp_ex.ok_or(io::ErrorKind::Unsupported)?;
    let flag = |wanted: bool, flag: u64| if wanted { flag } else { 0 };
    let mut attributes = ibv_qp_init_attr_ex {
        qp_context: null_mut(),
        send_cq: completions.raw.as_ptr(),
        recv_cq: completions.raw.as_ptr(),
        srq: receives.raw.as_ptr(),
        cap,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: domain.raw.as_ptr(),
        xrcd: null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: [0; 3],
        source_qpn: 0,
        send_ops_flags: IBV_QP_EX_WITH_RDMA_WRITE
            | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
            | IBV_QP_EX_WITH_SEND
            | IBV_QP_EX_WITH_SEND_WITH_IMM
            | IBV_QP_EX_WITH_RDMA_READ
            | flag(shape.atomics, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
            | flag(shape.atomics, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
            | flag(shape.atomic_write, IBV_QP_EX_WITH_ATOMIC_WRITE)
            | flag(shape.flush, IBV_QP_EX_WITH_FLUSH),
    };
    // SAFETY: domain and queues live, and the queue pair keeps them.
    let raw = made(unsafe { create(context.raw.as_ptr(), &raw mut attributes) })?;
    // SAFETY: a queue pair that was just made.
    let extended = unsafe { convert(raw.as_ptr()) };
    match NonNull::new(extended) {
        Some(extended) => {
            let way = PostPath {
                extended: Some(extended),
                begun: false,
                gathers_by_list: shape.gathers_by_list,
                error: None,
                list: List::new(0, 0),
                post,
            };
            Ok((raw, way, attributes.cap.max_inline_data))
        }
        None => {
            // SAFETY: no other code knows of it.
            unsafe { (context.library.destroy_qp)(raw.as_ptr()) };
            Err(io::ErrorKind::Unsupported.into())
        }
    }
}

/// # Safety
/// The queue pair lives, no other thread posts to it, and it was made for the verb.
#[inline]
unsafe fn push_extended(extended: NonNull<ibv_qp_ex>, begun: &mut bool, request: &WorkRequest<'_>) {
    let pair = extended.as_ptr();
    // SAFETY: as promised by the caller. A missing function belongs to a verb that the queue pair was
    // not created for, so no null pointer is called. The keys bound the memory that is accessed.
    unsafe {
        if !std::mem::replace(begun, true)
            && let Some(start) = (*pair).wr_start
        {
            start(pair);
        }
        (*pair).wr_id = request.id;
        // Providers that copy the flags unchanged (soft-RoCE) need the flag for inline bytes.
        let inline = matches!(request.bytes, LocalBytes::Inline(bytes) if !bytes.is_empty());
        (*pair).wr_flags = flags(request, if inline { IBV_SEND_INLINE } else { 0 });
        let (key, address) = (request.key, request.address);
        match request.verb {
            Verb::Write => call!((*pair).wr_rdma_write, pair, key, address),
            Verb::WriteImmediate(immediate) => {
                call!((*pair).wr_rdma_write_imm, pair, key, address, immediate.to_be());
            }
            Verb::Read => call!((*pair).wr_rdma_read, pair, key, address),
            Verb::FetchAdd(add) => call!((*pair).wr_atomic_fetch_add, pair, key, address, add),
            Verb::CompareSwap { expected, new } => {
                call!((*pair).wr_atomic_cmp_swp, pair, key, address, expected, new);
            }
            Verb::AtomicWrite(value) => {
                let value = value.to_ne_bytes();
                call!((*pair).wr_atomic_write, pair, key, address, value.as_ptr().cast());
                return;
            }
            Verb::Flush { bytes, scope } => {
                let (kind, level) = flush(bytes, scope);
                call!((*pair).wr_flush, pair, key, address, bytes as usize, kind, level);
                return;
            }
            Verb::Send => call!((*pair).wr_send, pair),
            Verb::SendImmediate(immediate) => {
                call!((*pair).wr_send_imm, pair, immediate.to_be());
            }
        }
        match request.bytes {
            LocalBytes::Inline(bytes) if !bytes.is_empty() => {
                let start = bytes.as_ptr().cast_mut().cast();
                call!((*pair).wr_set_inline_data, pair, start, bytes.len());
            }
            LocalBytes::Inline(_) => call!((*pair).wr_set_sge_list, pair, 0, null()),
            LocalBytes::Slices([one]) => {
                call!((*pair).wr_set_sge, pair, one.lkey, one.addr, one.length);
            }
            LocalBytes::Slices(slices) => {
                call!((*pair).wr_set_sge_list, pair, slices.len(), slices.as_ptr());
            }
        }
    }
}

/// Calls a function pointer if there is one.
macro_rules! call {
    ($function:expr, $($argument:expr),*) => {
        if let Some(function) = $function {
            function($($argument),*);
        }
    };
}
use call;

fn flags(request: &WorkRequest<'_>, more: c_uint) -> c_uint {
    let signalled = if request.signalled { IBV_SEND_SIGNALED } else { 0 };
    let fence = if request.fence { IBV_SEND_FENCE } else { 0 };
    signalled | fence | more
}

/// Returns the type and level of a FLUSH.
fn flush(bytes: u64, scope: FlushScope) -> (u8, u8) {
    let persistent = scope == FlushScope::Persistent;
    let kind = if persistent { IBV_FLUSH_PERSISTENT } else { IBV_FLUSH_GLOBAL };
    (kind, if bytes == 0 { IBV_FLUSH_MR } else { IBV_FLUSH_RANGE })
}

/// A post list for `ibv_post_send`, built for each doorbell in reused memory.
struct List {
    requests: Vec<ibv_send_wr>,
    slices: Vec<Slice>,
    inline: Vec<u8>,
    /// Which slices are offsets in `inline`.
    inline_slices: Vec<usize>,
    copied_bytes: u32,
}

impl List {
    fn new(requests: usize, copied_bytes: u32) -> Self {
        Self {
            requests: Vec::with_capacity(requests),
            slices: Vec::with_capacity(requests),
            inline: Vec::new(),
            inline_slices: Vec::new(),
            copied_bytes,
        }
    }

    /// Copies a request in. The start of its slices and inline bytes is stored as an index in the
    /// pointer's field, which `post` turns into a pointer when nothing moves any more.
    fn push(&mut self, request: &WorkRequest<'_>) {
        let (address, rkey) = (request.address, request.key);
        let rdma = ibv_send_wr_remote {
            atomic: ibv_send_wr_atomic {
                remote_addr: address,
                compare_add: rkey.into(),
                swap: 0,
                rkey,
            },
        };
        let atomic = |compare_add, swap| ibv_send_wr_remote {
            atomic: ibv_send_wr_atomic { remote_addr: address, compare_add, swap, rkey },
        };
        let (opcode, immediate, wr) = match request.verb {
            Verb::Write => (IBV_WR_RDMA_WRITE, 0, rdma),
            Verb::WriteImmediate(immediate) => (IBV_WR_RDMA_WRITE_WITH_IMM, immediate, rdma),
            Verb::Read => (IBV_WR_RDMA_READ, 0, rdma),
            Verb::FetchAdd(add) => (IBV_WR_ATOMIC_FETCH_AND_ADD, 0, atomic(add, 0)),
            Verb::CompareSwap { expected, new } => {
                (IBV_WR_ATOMIC_CMP_AND_SWP, 0, atomic(expected, new))
            }
            Verb::Send => (IBV_WR_SEND, 0, rdma),
            Verb::SendImmediate(immediate) => (IBV_WR_SEND_WITH_IMM, immediate, rdma),
            // These do not exist without the extended interface, and are not declared.
            Verb::AtomicWrite(_) | Verb::Flush { .. } => return,
        };
        let start = self.slices.len();
        let more = match request.bytes {
            LocalBytes::Slices(slices) => {
                self.slices.extend_from_slice(slices);
                let bytes: u64 = slices.iter().map(|slice| u64::from(slice.length)).sum();
                let goes_out = !matches!(
                    request.verb,
                    Verb::Read | Verb::FetchAdd(_) | Verb::CompareSwap { .. }
                );
                let copied = goes_out
                    && !request.fence
                    && bytes > 0
                    && bytes <= u64::from(self.copied_bytes);
                if copied { IBV_SEND_INLINE } else { 0 }
            }
            LocalBytes::Inline(bytes) => {
                let at = self.inline.len() as u64;
                self.inline.extend_from_slice(bytes);
                if !bytes.is_empty() {
                    self.inline_slices.push(self.slices.len());
                    self.slices.push(Slice { addr: at, length: bytes.len() as u32, lkey: 0 });
                }
                IBV_SEND_INLINE
            }
        };
        self.requests.push(ibv_send_wr {
            wr_id: request.id,
            next: null_mut(),
            sg_list: std::ptr::without_provenance_mut(start),
            num_sge: (self.slices.len() - start) as c_int,
            opcode,
            send_flags: flags(request, more),
            imm_data: immediate.to_be(),
            wr,
            remote_srqn: 0,
            bind_mw: ibv_send_wr_bind::NONE,
        });
    }

    fn post(
        &mut self,
        pair: NonNull<ibv_qp>,
        post: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    ) -> io::Result<()> {
        if self.requests.is_empty() {
            return Ok(());
        }
        let inline = self.inline.as_ptr();
        for slice in self.inline_slices.drain(..) {
            self.slices[slice].addr += inline.expose_provenance() as u64;
        }
        let slices = self.slices.as_mut_ptr();
        let mut next: *mut ibv_send_wr = null_mut();
        for request in self.requests.iter_mut().rev() {
            request.sg_list = slices.wrapping_add(request.sg_list.addr());
            request.next = next;
            next = &raw mut *request;
        }
        let mut bad = null_mut();
        // SAFETY: the queue pair lives; the list, its slices and inline bytes stay in place until the
        // call returns, which has copied them by then.
        let done = check(unsafe { post(pair.as_ptr(), next, &raw mut bad) });
        self.requests.clear();
        self.slices.clear();
        self.inline.clear();
        done
    }
}
