//! Global addresses for calls: sessions of a node of the global memory, lent to calls.
//!
//! A hit is answered at once on a session that all calls share, as it never has operations in flight. A call whose
//! access misses gets a [`MissSession`], a session of its own while operations are in flight on it, so that the call
//! is one program order. Once these have completed, it serves another call. The completion of an operation sets the
//! session's completion bit and wakes the executor if it sleeps.

use super::{HelperMemory, HelperResult, perform};
use crate::operation::{OperationKind, WordOperation};
use crate::session::{Access, AccessKind};
use crate::{Error, ErrorCode, GlobalAddress, Node, Session};
use farside_fabric::Waiter;
use farside_rmc::helpers::{Call, status};
use farside_rmc::run::{Buffers, Request};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// Most calls of an executor with operations in flight; one bit each.
const SESSIONS_MAX: usize = u64::BITS as usize;
/// Bytes of a session's buffer that are kept for its next access.
const KEPT_BYTES: usize = 4096;

/// Set by completing operations, from any thread.
struct CompletionBits {
    /// By bit: an operation of this session has completed.
    bits: AtomicU64,
    /// The executor sleeps or is about to.
    asleep: AtomicBool,
    waiter: Arc<dyn Waiter>,
}

/// The waker of a [`MissSession`].
struct SessionWaker {
    completions: Arc<CompletionBits>,
    number: usize,
}

impl Wake for SessionWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.completions.bits.fetch_or(1 << self.number, Ordering::SeqCst);
        // Either this load sees `asleep`, or the check before sleeping sees the bit.
        if self.completions.asleep.load(Ordering::SeqCst) {
            self.completions.waiter.wake();
        }
    }
}

/// A session that a call has while operations are in flight on it.
pub(crate) struct MissSession {
    number: usize,
    session: Session,
    waker: Waker,
    /// The access that the call waits for, and its bytes.
    access: Option<Access>,
    pub(crate) bytes: Vec<u8>,
}

impl std::fmt::Debug for MissSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MissSession({}, {:?})", self.number, self.session)
    }
}

impl MissSession {
    /// Whether its call waits for an access.
    pub(crate) fn accesses(&self) -> bool {
        self.access.is_some()
    }

    /// Begins an access to the bytes that `bytes` was set to; [`Self::poll`] continues it.
    fn begin(&mut self, what: AccessKind, at: GlobalAddress) -> Result<Option<u64>, Error> {
        self.access = Some(self.session.begin(what, at, self.bytes.len())?);
        Ok(None)
    }

    fn change(&mut self, change: WordOperation, at: GlobalAddress) -> Result<Option<u64>, Error> {
        self.set_bytes(&[], 8);
        self.begin(AccessKind::Ordered(OperationKind::Word(change)), at)
    }

    /// Sets the bytes of the next access: these, and zeros up to a length.
    fn set_bytes(&mut self, bytes: &[u8], length: usize) {
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(length, 0);
    }

    /// Continues the access. Returns the helper's result, with the output in `bytes`, or wakes the call later.
    pub(crate) fn poll(&mut self, call: Call) -> Option<Result<u64, Error>> {
        let access = self.access.as_mut()?;
        let end = self.session.poll(access, &mut self.bytes, &self.waker)?;
        self.access = None;
        Some(end.map(|result| match call {
            Call::GlobalLoadU64 => {
                let word = self.bytes.first_chunk::<8>().copied().unwrap_or_default();
                self.bytes.clear();
                u64::from_le_bytes(word)
            }
            Call::GlobalRead => status::OK as u64,
            _ => {
                self.bytes.clear();
                result
            }
        }))
    }

    /// Whether all writes of its call are visible to others; wakes the call later otherwise.
    pub(crate) fn poll_fence(&mut self) -> Option<Result<(), Error>> {
        if !self.access.as_ref().is_some_and(Access::is_fence) {
            self.session.clean_up(); // a call that was stopped has abandoned its access
            self.access = Some(Access::FENCE);
        }
        let end = self.session.poll(self.access.as_mut()?, &mut [], &self.waker)?;
        self.access = None;
        Some(end.map(drop))
    }

    /// Whether the call no longer needs the session.
    pub(crate) fn settle(&mut self) -> bool {
        self.access.is_none() && self.session.settle()
    }
}

/// Begins accesses that miss.
impl HelperMemory for MissSession {
    type Address = GlobalAddress;
    type Failure = Error;

    fn decode(request: &Request) -> Result<(GlobalAddress, [u64; 2]), Error> {
        global_address(request)
    }

    fn load(&mut self, at: GlobalAddress, bytes: usize) -> HelperResult<Self> {
        self.set_bytes(&[], bytes);
        self.begin(AccessKind::Read, at)
    }

    fn store(&mut self, at: GlobalAddress, value: u64, bytes: usize) -> HelperResult<Self> {
        self.set_bytes(&value.to_le_bytes()[..bytes], bytes);
        self.begin(AccessKind::Post, at)
    }

    fn compare_swap(&mut self, at: GlobalAddress, expected: u64, new: u64) -> HelperResult<Self> {
        self.change(WordOperation::CompareSwap(expected, new), at)
    }

    fn fetch_add(&mut self, at: GlobalAddress, add: u64) -> HelperResult<Self> {
        self.change(WordOperation::FetchAdd(add), at)
    }

    fn read(&mut self, at: GlobalAddress, output: &mut [u8]) -> HelperResult<Self> {
        self.set_bytes(&[], output.len());
        self.begin(AccessKind::Read, at)
    }

    fn write(&mut self, at: GlobalAddress, input: &[u8]) -> HelperResult<Self> {
        self.set_bytes(input, input.len());
        self.begin(AccessKind::Write, at)
    }
}

/// Accesses that hit: pending means that they miss.
struct GlobalHits<'a>(&'a mut Session);

impl HelperMemory for GlobalHits<'_> {
    type Address = GlobalAddress;
    type Failure = Error;

    #[inline]
    fn decode(request: &Request) -> Result<(GlobalAddress, [u64; 2]), Error> {
        global_address(request)
    }

    #[inline]
    fn load(&mut self, at: GlobalAddress, bytes: usize) -> HelperResult<Self> {
        let mut word = [0; 8];
        let hit = self.0.read_hit(at, &mut word[..bytes]);
        Ok(hit.then(|| u64::from_le_bytes(word)))
    }

    #[inline]
    fn store(&mut self, at: GlobalAddress, value: u64, bytes: usize) -> HelperResult<Self> {
        Ok(self.0.write_hit(at, &value.to_le_bytes()[..bytes]).then_some(0))
    }

    #[inline]
    fn compare_swap(&mut self, at: GlobalAddress, expected: u64, new: u64) -> HelperResult<Self> {
        Ok(self.0.word_hit(at, 8, |word| WordOperation::CompareSwap(expected, new).apply(word)))
    }

    #[inline]
    fn fetch_add(&mut self, at: GlobalAddress, add: u64) -> HelperResult<Self> {
        Ok(self.0.word_hit(at, 8, |word| WordOperation::FetchAdd(add).apply(word)))
    }

    #[inline]
    fn read(&mut self, at: GlobalAddress, output: &mut [u8]) -> HelperResult<Self> {
        Ok((output.is_empty() || self.0.read_hit(at, output)).then_some(0))
    }

    #[inline]
    fn write(&mut self, at: GlobalAddress, input: &[u8]) -> HelperResult<Self> {
        Ok((input.is_empty() || self.0.write_hit(at, input)).then_some(0))
    }
}

/// The memory of a node for the calls of an executor.
pub(crate) struct GlobalMemory {
    node: Node,
    /// Never has operations in flight.
    hits: Session,
    completions: Arc<CompletionBits>,
    #[expect(clippy::vec_box, reason = "moved to and from calls without copying the access")]
    free: Vec<Box<MissSession>>,
    /// Returned by stopped calls, with operations still in flight.
    #[expect(clippy::vec_box, reason = "likewise")]
    draining: Vec<Box<MissSession>>,
    /// Number of sessions.
    sessions: usize,
    /// By session: the waiting call, until woken.
    waiting: [Option<usize>; SESSIONS_MAX],
    /// Number of waiting calls in `waiting`.
    waits: usize,
    /// Calls that wait for a session.
    queue: VecDeque<usize>,
}

impl std::fmt::Debug for GlobalMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GlobalMemory({:?}, {} sessions)", self.node, self.sessions)
    }
}

/// A call to be woken, with the session that it waited for.
pub(crate) type Woken = (usize, Option<Box<MissSession>>);

impl GlobalMemory {
    /// Opens the memory of a node; `waiter` is that on which the executor sleeps.
    pub(crate) fn new(node: &Node, waiter: Arc<dyn Waiter>) -> Result<Self, Error> {
        let (bits, asleep) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut global = Self {
            node: node.clone(),
            hits: node.session()?,
            completions: Arc::new(CompletionBits { bits, asleep, waiter }),
            free: Vec::with_capacity(SESSIONS_MAX),
            draining: Vec::with_capacity(SESSIONS_MAX),
            sessions: 0,
            waiting: [None; SESSIONS_MAX],
            waits: 0,
            queue: VecDeque::new(),
        };
        // At least one session exists, so that a call that waits for one waits for a completion.
        let first = global.open()?;
        global.free.push(first);
        Ok(global)
    }

    fn open(&mut self) -> Result<Box<MissSession>, Error> {
        let number = self.sessions;
        let waker = Waker::from(Arc::new(SessionWaker {
            completions: Arc::clone(&self.completions),
            number,
        }));
        let session = self.node.session()?;
        self.sessions += 1;
        Ok(Box::new(MissSession { number, session, waker, access: None, bytes: Vec::new() }))
    }

    /// Performs a helper if that needs no waiting; returns its result, with its output written. `miss` is the
    /// call's, if it has one.
    #[inline]
    pub(crate) fn hit(
        &mut self,
        miss: Option<&mut MissSession>,
        request: &Request,
        buffers: &mut Buffers<'_>,
    ) -> Option<u64> {
        let session = match miss {
            Some(miss) => match miss.settle() {
                true => &mut miss.session,
                false => return None, // its operations in flight must complete first
            },
            None => &mut self.hits,
        };
        perform(&mut GlobalHits(session), request, buffers).ok().flatten()
    }

    /// Returns a session for a call; without a free one the call is queued and woken with one.
    pub(crate) fn take(&mut self, call: usize) -> Option<Box<MissSession>> {
        let miss = match self.free.pop() {
            Some(mut miss) => {
                miss.session.forget_losses();
                Some(miss)
            }
            // If the node is at its session limit, only the existing sessions are used.
            None if self.sessions < SESSIONS_MAX => self.open().ok(),
            None => None,
        };
        if miss.is_none() {
            self.queue.push_back(call);
        }
        miss
    }

    /// The write losses of the node.
    pub(crate) fn losses(&self) -> u64 {
        self.hits.lines().losses()
    }

    /// Whether all that the node has written is durable, and nothing was lost since there were these write losses.
    pub(crate) fn is_durable_since(&self, losses: u64) -> bool {
        self.hits.lines().unlogged() == losses
    }

    /// Registers the call of this session as waiting.
    pub(crate) fn waits(&mut self, miss: &MissSession, call: usize) {
        self.waits += usize::from(self.waiting[miss.number].replace(call).is_none());
    }

    /// Removes a call from the queue for sessions.
    pub(crate) fn forget(&mut self, call: usize) {
        self.queue.retain(|other| *other != call);
    }

    /// Takes a session back from a call that continues without it or was stopped.
    pub(crate) fn give_back(&mut self, mut miss: Box<MissSession>) -> Option<Woken> {
        self.waits -= usize::from(self.waiting[miss.number].take().is_some());
        miss.bytes.clear();
        miss.bytes.shrink_to(KEPT_BYTES);
        miss.access = None;
        miss.session.clean_up(); // what it has begun may yet take effect
        self.drain(miss)
    }

    /// Passes an unused session to the next queued call, once no operation is in flight on it.
    fn drain(&mut self, mut miss: Box<MissSession>) -> Option<Woken> {
        if !miss.session.poll_idle(&miss.waker) {
            self.draining.push(miss);
            return None;
        }
        match self.queue.pop_front() {
            Some(call) => Some((call, Some(miss))),
            None => {
                self.free.push(miss);
                None
            }
        }
    }

    /// Returns the next call whose session has a completion.
    pub(crate) fn next_completed(&mut self) -> Option<Woken> {
        loop {
            let bits = self.completions.bits.load(Ordering::SeqCst);
            if bits == 0 {
                return None;
            }
            let number = bits.trailing_zeros() as usize;
            // Cleared before the check: a later completion rings again.
            self.completions.bits.fetch_and(!(1 << number), Ordering::SeqCst);
            if let Some(call) = self.waiting[number].take() {
                self.waits -= 1;
                return Some((call, None));
            }
            let drains = self.draining.iter().position(|miss| miss.number == number);
            if let Some(at) = drains {
                let miss = self.draining.swap_remove(at);
                if let Some(woken) = self.drain(miss) {
                    return Some(woken);
                }
            }
        }
    }

    /// Drives the node while calls wait for it (help-while-waiting).
    pub(crate) fn drive(&self) {
        if self.waits > 0 {
            self.hits.core.drive_a_little();
        }
    }

    /// Whether calls wait for the global memory.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits > 0 || !self.queue.is_empty()
    }

    /// Returns the calls that wait for a session, at shutdown.
    pub(crate) fn into_queue(self) -> VecDeque<usize> {
        self.queue
    }

    /// Calls `sleep` so that a completion wakes it; skips it if there was one already.
    pub(crate) fn sleep(&self, sleep: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let (completions, core) = (&self.completions, &self.hits.core);
        completions.asleep.store(true, Ordering::SeqCst);
        core.sleeps();
        let slept = match completions.bits.load(Ordering::SeqCst) {
            0 => sleep(),
            _ => Ok(()),
        };
        core.wakes();
        completions.asleep.store(false, Ordering::SeqCst);
        slept
    }
}

/// Decodes a request on the global memory: its address, and the two arguments after it.
#[inline]
fn global_address(request: &Request) -> Result<(GlobalAddress, [u64; 2]), Error> {
    let [bits, second, third, ..] = request.arguments;
    let address = GlobalAddress::from_bits(bits).map_err(|_| {
        let text = format!("{bits:#x} is not a global address: its line size is invalid");
        Error::with(ErrorCode::ForeignAddress, text)
    })?;
    Ok((address, [second, third]))
}

/// Whether a helper accesses the global memory.
pub(crate) const fn is_global(call: Call) -> bool {
    matches!(
        call,
        Call::GlobalLoadU64
            | Call::GlobalStoreU64
            | Call::GlobalRead
            | Call::GlobalWrite
            | Call::GlobalCompareSwap
            | Call::GlobalFetchAdd
    )
}

/// Whether a helper communicates with or waits for other calls, so that earlier writes of the call must be visible
/// first.
pub(crate) const fn orders(call: Call) -> bool {
    matches!(call, Call::Lock | Call::Unlock | Call::WaitWord | Call::Notify)
}
