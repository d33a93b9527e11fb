//! Global addresses for calls: the sessions of a node of the global memory, lent to calls.
//!
//! An access that hits is answered at once, on a session that all calls share, since nothing is ever under
//! way on it. A call whose access misses gets a *seat*: a session of its own for as long as anything is
//! under way on it, so that the call is one program order. When that has ended the seat serves another
//! call. The end of an operation rings the executor's bell, which wakes it if it sleeps.

use crate::memory::{Access, What};
use crate::operation::Kind;
use crate::{Error, ErrorCode, GlobalAddress, Node, Session};
use farside_fabric::Waiter;
use farside_rmc::helpers::{Call, status};
use farside_rmc::run::{Buffers, Request};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

/// Calls of an executor that may have something under way at once; the bits of a word.
const SEATS_MAX: usize = u64::BITS as usize;
/// Bytes of a seat's buffer that are kept for its next access.
const KEPT_BYTES: usize = 4096;

/// What operations ring when they end, from whatever thread.
struct Bell {
    /// By bit: the seat has something new.
    rung: AtomicU64,
    /// The executor sleeps or is about to.
    asleep: AtomicBool,
    waiter: Arc<dyn Waiter>,
}

/// The wire from a seat to the bell.
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
        // Either this sees that it sleeps, or its look before sleeping sees the bit.
        if self.bell.asleep.load(Ordering::SeqCst) {
            self.bell.waiter.wake();
        }
    }
}

/// A session that a call has while something is under way on it.
pub(super) struct Seat {
    number: usize,
    session: Session,
    waker: Waker,
    /// What the call waits for, and its bytes.
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

    /// Begins the access that a request asks for; [`Self::poll`] goes on with it.
    pub(super) fn begin(&mut self, request: &Request, input: &[u8]) -> Result<(), Error> {
        let address = address(request)?;
        let [_, second, third, ..] = request.arguments;
        self.bytes.clear();
        let what = match request.call {
            Call::GlobalLoadU64 | Call::GlobalRead => What::Read,
            Call::GlobalWrite => What::Write,
            Call::GlobalStoreU64 => What::Post,
            Call::GlobalCompareSwap => What::Word(Kind::CompareSwap(second, third)),
            _ => What::Word(Kind::FetchAdd(second)),
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

    /// Goes on with the access: the helper's result, whose output is in `bytes` then. The call is woken
    /// otherwise.
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

    /// Whether all that its call wrote is visible to all; the call is woken otherwise.
    pub(super) fn poll_fence(&mut self) -> Option<Result<(), Error>> {
        self.session.poll_fence(&self.waker)
    }

    /// Whether the call could do without it now.
    pub(super) fn settle(&mut self) -> bool {
        self.access.is_none() && self.session.settle()
    }
}

/// A node's memory as the calls of an executor reach it.
pub(crate) struct Global {
    node: Node,
    /// Nothing is ever under way on it.
    hits: Session,
    bell: Arc<Bell>,
    #[expect(clippy::vec_box, reason = "moved to and from calls without copying the access")]
    free: Vec<Box<Seat>>,
    /// Given back by calls that were stopped, with something under way yet.
    #[expect(clippy::vec_box, reason = "likewise")]
    draining: Vec<Box<Seat>>,
    /// Seats that there are.
    seats: usize,
    /// By seat: the call that waits and has not been woken.
    waiting: [Option<usize>; SEATS_MAX],
    /// How many of them there are.
    waits: usize,
    /// Calls that wait for a seat.
    queue: VecDeque<usize>,
}

impl std::fmt::Debug for Global {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Global({:?}, {} seats)", self.node, self.seats)
    }
}

/// Who is to be woken: a call, with the seat that it waited for.
pub(super) type Woken = (usize, Option<Box<Seat>>);

impl Global {
    /// The memory of a node; `waiter` is what the executor sleeps on.
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
        // There is one at least, so that whoever waits for one waits for somebody.
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

    /// Carries a helper out if that needs no waiting: its result, with its output written. `seat` is the
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
                false => return None, // what it has under way must be looked at first
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
            Call::GlobalFetchAdd => session.word_hit(address, Kind::FetchAdd(second)),
            Call::GlobalCompareSwap => session.word_hit(address, Kind::CompareSwap(second, third)),
            _ => None,
        }
    }

    /// A seat for a call; without one the call waits, and is handed one in its turn.
    pub(super) fn take(&mut self, call: usize) -> Option<Box<Seat>> {
        let seat = match self.free.pop() {
            Some(seat) => Some(seat),
            // A node that has its most sessions lends what it has lent already.
            None if self.seats < SEATS_MAX => self.open().ok(),
            None => None,
        };
        if seat.is_none() {
            self.queue.push_back(call);
        }
        seat
    }

    /// The call of this seat waits for it.
    pub(super) fn waits(&mut self, seat: &Seat, call: usize) {
        self.waits += usize::from(self.waiting[seat.number].replace(call).is_none());
    }

    /// A call waits for no seat any more.
    pub(super) fn forget(&mut self, call: usize) {
        self.queue.retain(|other| *other != call);
    }

    /// Takes a seat back from a call that goes on without it or was stopped.
    pub(super) fn give_back(&mut self, mut seat: Box<Seat>) -> Option<Woken> {
        self.waits -= usize::from(self.waiting[seat.number].take().is_some());
        seat.bytes.clear();
        seat.bytes.shrink_to(KEPT_BYTES);
        seat.access = None;
        seat.session.clean_up(); // what it has begun may yet take effect
        self.drain(seat)
    }

    /// A seat that no call has: the next one's if nothing is under way on it any more.
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

    /// The next call that has been rung for.
    pub(super) fn heard(&mut self) -> Option<Woken> {
        loop {
            let rung = self.bell.rung.load(Ordering::SeqCst);
            if rung == 0 {
                return None;
            }
            let number = rung.trailing_zeros() as usize;
            // Before the look: what ends after it rings again.
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

    /// Whoever waits, turns: drives the node while calls wait for it.
    pub(super) fn drive(&self) {
        if self.waits > 0 {
            self.hits.core.drive_a_little();
        }
    }

    /// Whether calls wait for it.
    pub(super) fn is_awaited(&self) -> bool {
        self.waits > 0 || !self.queue.is_empty()
    }

    /// The calls that wait for a seat, at its end.
    pub(super) fn into_queue(self) -> VecDeque<usize> {
        self.queue
    }

    /// Has whoever serves sleep, so that the bell wakes it, and not at all where it has been rung.
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

/// The address that a helper names.
fn address(request: &Request) -> Result<GlobalAddress, Error> {
    let bits = request.arguments[0];
    GlobalAddress::from_bits(bits).map_err(|_| {
        let text = format!("{bits:#x} is no global address: its line size is none");
        Error::with(ErrorCode::ForeignAddress, text)
    })
}

/// Whether it is a helper of the global memory.
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

/// Whether a helper tells others of something, or waits for others: what the call wrote before is visible
/// then.
pub(super) const fn orders(call: Call) -> bool {
    matches!(call, Call::Lock | Call::Unlock | Call::WaitWord | Call::Notify)
}
