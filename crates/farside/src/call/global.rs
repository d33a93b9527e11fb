//! Global addresses for calls: sessions of a node of the global memory, lent to calls.
//!
//! A hit is answered at once on a session that all calls share, as it never has operations in flight. A call whose
//! access misses gets a *seat*: a session of its own while operations are in flight on it, so that the call is one
//! program order. Once these have completed, the seat serves another call. The completion of an operation rings the
//! executor's bell, which wakes it if it sleeps.

use crate::memory::{Access, AccessKind};
use crate::operation::OperationKind;
use crate::{Error, ErrorCode, GlobalAddress, Node, Session};
use farside_fabric::Waiter;
use farside_rmc::helpers::{Call, status};
use farside_rmc::run::{Buffers, Request};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// Most calls of an executor with operations in flight; one bit each.
const SEATS_MAX: usize = u64::BITS as usize;
/// Bytes of a seat's buffer that are kept for its next access.
const KEPT_BYTES: usize = 4096;

/// Set by completing operations, from any thread.
struct Bell {
    /// By bit: an operation of this seat has completed.
    rung: AtomicU64,
    /// The executor sleeps or is about to.
    asleep: AtomicBool,
    waiter: Arc<dyn Waiter>,
}

/// The waker of a seat.
struct Wire {
    bell: Arc<Bell>,
    seat: usize,
}

impl Wake for Wire {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.bell.rung.fetch_or(1 << self.seat, Ordering::SeqCst);
        // Either this load sees `asleep`, or the check before sleeping sees the bit.
        if self.bell.asleep.load(Ordering::SeqCst) {
            self.bell.waiter.wake();
        }
    }
}

/// A session that a call has while operations are in flight on it.
pub(super) struct Seat {
    number: usize,
    session: Session,
    waker: Waker,
    /// The access that the call waits for, and its bytes.
    access: Option<Access>,
    pub(super) bytes: Vec<u8>,
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seat({}, {:?})", self.number, self.session)
    }
}

impl Seat {
    /// Whether its call waits for an access.
    pub(super) fn accesses(&self) -> bool {
        self.access.is_some()
    }

    /// Begins the access of a request; [`Self::poll`] continues it.
    pub(super) fn begin(&mut self, request: &Request, input: &[u8]) -> Result<(), Error> {
        let address = address(request)?;
        let [_, second, third, ..] = request.arguments;
        self.bytes.clear();
        let what = match request.call {
            Call::GlobalLoadU64 | Call::GlobalRead => AccessKind::Read,
            Call::GlobalWrite => AccessKind::Write,
            Call::GlobalStoreU64 => AccessKind::Post,
            Call::GlobalCompareSwap => AccessKind::Word(OperationKind::CompareSwap(second, third)),
            _ => AccessKind::Word(OperationKind::FetchAdd(second)),
        };
        match request.call {
            Call::GlobalWrite => self.bytes.extend_from_slice(input),
            Call::GlobalStoreU64 => self.bytes.extend_from_slice(&second.to_le_bytes()),
            Call::GlobalRead => {
                self.bytes.resize(request.output.map_or(0, |span| span.length as usize), 0);
            }
            _ => self.bytes.resize(8, 0),
        }
        self.access = Some(self.session.begin(what, address, self.bytes.len())?);
        Ok(())
    }

    /// Continues the access. Returns the helper's result, with the output in `bytes`, or wakes the call later.
    pub(super) fn poll(&mut self, call: Call) -> Option<Result<u64, Error>> {
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
    pub(super) fn poll_fence(&mut self) -> Option<Result<(), Error>> {
        self.session.poll_fence(&self.waker)
    }

    /// Whether the call no longer needs the seat.
    pub(super) fn settle(&mut self) -> bool {
        self.access.is_none() && self.session.settle()
    }
}

/// The memory of a node for the calls of an executor.
pub(crate) struct Global {
    node: Node,
    /// Never has operations in flight.
    hits: Session,
    bell: Arc<Bell>,
    #[expect(clippy::vec_box, reason = "moved to and from calls without copying the access")]
    free: Vec<Box<Seat>>,
    /// Returned by stopped calls, with operations still in flight.
    #[expect(clippy::vec_box, reason = "likewise")]
    draining: Vec<Box<Seat>>,
    /// Number of seats.
    seats: usize,
    /// By seat: the waiting call, until woken.
    waiting: [Option<usize>; SEATS_MAX],
    /// Number of waiting calls in `waiting`.
    waits: usize,
    /// Calls that wait for a seat.
    queue: VecDeque<usize>,
}

impl std::fmt::Debug for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Global({:?}, {} seats)", self.node, self.seats)
    }
}

/// A call to be woken, with the seat that it waited for.
pub(super) type Woken = (usize, Option<Box<Seat>>);

impl Global {
    /// Opens the memory of a node; `waiter` is that on which the executor sleeps.
    pub(super) fn new(node: &Node, waiter: Arc<dyn Waiter>) -> Result<Self, Error> {
        let (rung, asleep) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut global = Self {
            node: node.clone(),
            hits: node.session()?,
            bell: Arc::new(Bell { rung, asleep, waiter }),
            free: Vec::with_capacity(SEATS_MAX),
            draining: Vec::with_capacity(SEATS_MAX),
            seats: 0,
            waiting: [None; SEATS_MAX],
            waits: 0,
            queue: VecDeque::new(),
        };
        // At least one seat exists, so that a call that waits for a seat waits for a completion.
        let first = global.open()?;
        global.free.push(first);
        Ok(global)
    }

    fn open(&mut self) -> Result<Box<Seat>, Error> {
        let number = self.seats;
        let waker = Waker::from(Arc::new(Wire { bell: Arc::clone(&self.bell), seat: number }));
        let session = self.node.session()?;
        self.seats += 1;
        Ok(Box::new(Seat { number, session, waker, access: None, bytes: Vec::new() }))
    }

    /// Performs a helper if that needs no waiting; returns its result, with its output written. `seat` is the
    /// call's, if it has one.
    #[inline]
    pub(super) fn hit(
        &mut self,
        seat: Option<&mut Seat>,
        request: &Request,
        buffers: &mut Buffers<'_>,
    ) -> Option<u64> {
        let session = match seat {
            Some(seat) => match seat.settle() {
                true => &mut seat.session,
                false => return None, // its operations in flight must complete first
            },
            None => &mut self.hits,
        };
        let [_, second, third, ..] = request.arguments;
        let address = address(request).ok()?;
        match request.call {
            Call::GlobalLoadU64 => {
                let mut word = [0; 8];
                session.read_hit(address, &mut word).then(|| u64::from_le_bytes(word))
            }
            Call::GlobalStoreU64 => session.write_hit(address, &second.to_le_bytes()).then_some(0),
            Call::GlobalRead if buffers.output.is_empty() => Some(0),
            Call::GlobalRead => session.read_hit(address, buffers.output).then_some(0),
            Call::GlobalWrite if buffers.inputs[0].is_empty() => Some(0),
            Call::GlobalWrite => session.write_hit(address, buffers.inputs[0]).then_some(0),
            Call::GlobalFetchAdd => session.word_hit(address, OperationKind::FetchAdd(second)),
            Call::GlobalCompareSwap => {
                session.word_hit(address, OperationKind::CompareSwap(second, third))
            }
            _ => None,
        }
    }

    /// Returns a seat for a call; without a free one the call is queued and woken with one.
    pub(super) fn take(&mut self, call: usize) -> Option<Box<Seat>> {
        let seat = match self.free.pop() {
            Some(seat) => Some(seat),
            // If the node is at its session limit, only the existing seats are used.
            None if self.seats < SEATS_MAX => self.open().ok(),
            None => None,
        };
        if seat.is_none() {
            self.queue.push_back(call);
        }
        seat
    }

    /// Registers the call of this seat as waiting.
    pub(super) fn waits(&mut self, seat: &Seat, call: usize) {
        self.waits += usize::from(self.waiting[seat.number].replace(call).is_none());
    }

    /// Removes a call from the queue for seats.
    pub(super) fn forget(&mut self, call: usize) {
        self.queue.retain(|other| *other != call);
    }

    /// Takes a seat back from a call that continues without it or was stopped.
    pub(super) fn give_back(&mut self, mut seat: Box<Seat>) -> Option<Woken> {
        self.waits -= usize::from(self.waiting[seat.number].take().is_some());
        seat.bytes.clear();
        seat.bytes.shrink_to(KEPT_BYTES);
        seat.access = None;
        seat.session.clean_up(); // what it has begun may yet take effect
        self.drain(seat)
    }

    /// Passes an unused seat to the next queued call, once no operation is in flight on it.
    fn drain(&mut self, mut seat: Box<Seat>) -> Option<Woken> {
        if !seat.session.poll_idle(&seat.waker) {
            self.draining.push(seat);
            return None;
        }
        match self.queue.pop_front() {
            Some(call) => Some((call, Some(seat))),
            None => {
                self.free.push(seat);
                None
            }
        }
    }

    /// Returns the next call whose seat was rung.
    pub(super) fn heard(&mut self) -> Option<Woken> {
        loop {
            let rung = self.bell.rung.load(Ordering::SeqCst);
            if rung == 0 {
                return None;
            }
            let number = rung.trailing_zeros() as usize;
            // Cleared before the check: a later completion rings again.
            self.bell.rung.fetch_and(!(1 << number), Ordering::SeqCst);
            if let Some(call) = self.waiting[number].take() {
                self.waits -= 1;
                return Some((call, None));
            }
            let drains = self.draining.iter().position(|seat| seat.number == number);
            if let Some(at) = drains {
                let seat = self.draining.swap_remove(at);
                if let Some(woken) = self.drain(seat) {
                    return Some(woken);
                }
            }
        }
    }

    /// Drives the node while calls wait for it (help-while-waiting).
    pub(super) fn drive(&self) {
        if self.waits > 0 {
            self.hits.core.drive_a_little();
        }
    }

    /// Whether calls wait for the global memory.
    pub(super) fn is_awaited(&self) -> bool {
        self.waits > 0 || !self.queue.is_empty()
    }

    /// Returns the calls that wait for a seat, at shutdown.
    pub(super) fn into_queue(self) -> VecDeque<usize> {
        self.queue
    }

    /// Calls `sleep` so that the bell wakes it; skips it if the bell was rung already.
    pub(super) fn sleep(&self, sleep: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let (bell, core) = (&self.bell, &self.hits.core);
        bell.asleep.store(true, Ordering::SeqCst);
        core.sleeps();
        let slept = match bell.rung.load(Ordering::SeqCst) {
            0 => sleep(),
            _ => Ok(()),
        };
        core.wakes();
        bell.asleep.store(false, Ordering::SeqCst);
        slept
    }
}

/// Returns the address argument of a helper.
fn address(request: &Request) -> Result<GlobalAddress, Error> {
    let bits = request.arguments[0];
    GlobalAddress::from_bits(bits).map_err(|_| {
        let text = format!("{bits:#x} is not a global address: its line size is invalid");
        Error::with(ErrorCode::ForeignAddress, text)
    })
}

/// Whether a helper accesses the global memory.
pub(super) const fn is_global(call: Call) -> bool {
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
pub(super) const fn orders(call: Call) -> bool {
    matches!(call, Call::Lock | Call::Unlock | Call::WaitWord | Call::Notify)
}
