//! Operations that wait in the engine: a slot each, which can be polled, awaited or blocked on.
//!
//! A slot belongs to its session. The session fills the request, the engine performs it when the
//! line is there, the session takes the result. Whoever sets the state last has published the rest.

use crate::hit::WORD;
use crate::lock_hit::LockCounts;
use farside_base::{ErrorCode, GlobalAddress, NodeId, OperationId, SessionId};
use farside_protocol::coherence::Want;
use farside_protocol::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Locks a mutex; a panic elsewhere while it was held does not spread (the values stay sound).
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What an operation does once its line is there. `buffer` of the slot holds bytes in and out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kind {
    /// Nothing yet.
    #[default]
    Idle,
    /// Copy bytes out into the buffer.
    Read,
    /// Copy the buffer in.
    Write,
    /// Add to a word.
    FetchAdd(u64),
    /// Replace a word if it is as expected.
    CompareSwap(u64, u64),
    /// Replace a word.
    Swap(u64),
    /// Keep the line as it is until unpinned.
    Pin(Want),
    /// Allocate memory at a node.
    Allocate { node: NodeId, bytes: u64, class: u8 },
    /// Free an allocation.
    Free,
    /// Lock, unlock or upgrade a range of a line.
    Lock(lock::Request),
    /// Find out whether this node is a member still.
    Confirm,
    /// Have the line's home have its bytes.
    WriteBack,
}

impl Kind {
    /// What the coherence machine must provide; `None` for what is not about a line's bytes.
    pub(crate) fn want(self) -> Option<Want> {
        match self {
            Self::Read => Some(Want::Read),
            Self::Write | Self::FetchAdd(_) | Self::CompareSwap(..) | Self::Swap(_) => {
                Some(Want::Write)
            }
            Self::Pin(want) => Some(want),
            Self::Idle
            | Self::Allocate { .. }
            | Self::Free
            | Self::Lock(_)
            | Self::Confirm
            | Self::WriteBack => None,
        }
    }

    /// Whether the coherence machine may have an operation of this kind waiting for a line.
    pub(crate) fn waits_for_line(self) -> bool {
        self.want().is_some() || self == Self::WriteBack
    }
}

/// A request and its result.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    /// The first byte; to its end the access lies in one line.
    pub(crate) address: Option<GlobalAddress>,
    pub(crate) bytes: usize,
    /// The access began in an earlier line: this line must not be the first of an allocation.
    pub(crate) continues: bool,
    pub(crate) buffer: Vec<u8>,
    /// The former value of an atomic, the address of an allocation, the token of a lock.
    pub(crate) result: u64,
    /// Of a lock: an earlier holder died, and no writer was told since.
    pub(crate) abandoned: bool,
}

impl Request {
    /// What the coherence machine must provide. An operation that brings all bytes from the line's start on can
    /// do with a line whose former bytes are lost.
    pub(crate) fn want(&self) -> Option<Want> {
        let want = self.kind.want()?;
        let brings = self.buffer.len() == self.bytes && want == Want::Write;
        match self.address {
            Some(address) if brings && address.offset_in_line() == 0 => {
                let covers = self.bytes.next_multiple_of(WORD as usize);
                let covers = covers.min(address.line_size().bytes()) as u32;
                Some(Want::Overwrite { covers, continues: self.continues })
            }
            _ => Some(want),
        }
    }
}

const FREE: u32 = 0;
const PENDING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;

/// One place for an operation.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Low byte: the state; above it, the number of the error.
    state: AtomicU32,
    /// The caller has lost interest; the engine cleans up when the operation ends.
    abandoned: AtomicBool,
    request: Mutex<Request>,
    waker: Mutex<Option<Waker>>,
}

/// How an operation ended.
pub(crate) type Outcome = Result<(), ErrorCode>;

impl Slot {
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    pub(crate) fn request(&self) -> MutexGuard<'_, Request> {
        locked(&self.request)
    }

    /// Session: the request is complete.
    pub(crate) fn submit(&self) {
        self.abandoned.store(false, Ordering::Relaxed);
        self.state.store(PENDING, Ordering::Release);
    }

    /// Session: how it ended, if it has.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        let state = self.state.load(Ordering::Acquire);
        match state & 0xff {
            DONE => Some(Ok(())),
            FAILED => Some(Err(
                ErrorCode::from_number((state >> 8) as u16).unwrap_or(ErrorCode::NodeFailed)
            )),
            _ => None,
        }
    }

    /// Session: the result is taken.
    pub(crate) fn recycle(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    /// Session: wake this waker when the operation ends. True when it has ended meanwhile.
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        let mut place = locked(&self.waker);
        if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *place = Some(waker.clone());
        }
        drop(place);
        self.outcome().is_some()
    }

    /// Engine, for the session: the result is not wanted any more.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Has the task that waits for the operation look again, though it has not ended.
    pub(crate) fn rouse(&self) {
        let waker = locked(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Engine: the operation has ended.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let state = match outcome {
            Ok(()) => DONE,
            Err(code) => FAILED | u32::from(code.entry().number) << 8,
        };
        self.state.store(state, Ordering::Release);
        self.rouse();
    }
}

impl Slot {
    /// Whether the engine still has it.
    pub(crate) fn is_pending(&self) -> bool {
        self.state.load(Ordering::Acquire) == PENDING
    }

    /// Engine: ends the operation if it has not ended; for a node that leaves.
    pub(crate) fn finish_if_pending(&self, outcome: Outcome) {
        if self.is_pending() {
            self.finish(outcome);
        }
    }
}

/// The slots of one session, shared with the engine, and its counters.
#[derive(Debug)]
pub(crate) struct SessionSlots {
    pub(crate) session: SessionId,
    /// The session's place in the engine's table: the high half of its operations' ids.
    pub(crate) index: u32,
    pub(crate) slots: Box<[Slot]>,
    /// When the call that a task awaits reaches its deadline, in time of [`Core`](crate::wait::Core);
    /// `u64::MAX` for never.
    pub(crate) alarm_ns: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) locks: LockCounts,
}

impl SessionSlots {
    pub(crate) fn new(session: SessionId, index: u32, count: usize) -> Self {
        Self {
            session,
            index,
            slots: (0..count).map(|_| Slot::default()).collect(),
            alarm_ns: AtomicU64::new(u64::MAX),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            locks: LockCounts::default(),
        }
    }

    /// The name of a slot's operation.
    pub(crate) fn operation(&self, slot: usize) -> OperationId {
        let life = self.session.0 & LIFE_MASK;
        OperationId(u64::from(self.index) << INDEX_SHIFT | life << LIFE_SHIFT | slot as u64)
    }

    /// The slot of an operation, if it is of this session and not of one that had its place before.
    pub(crate) fn slot(&self, operation: OperationId) -> Option<&Slot> {
        if operation.0 >> LIFE_SHIFT & LIFE_MASK != self.session.0 & LIFE_MASK {
            return None;
        }
        self.slots.get((operation.0 & SLOT_MASK) as usize)
    }
}

// An operation's name: the session's place (20 bits), the session's count (36), the slot (8).
const INDEX_SHIFT: u32 = 44;
const LIFE_SHIFT: u32 = 8;
const LIFE_MASK: u64 = (1 << 36) - 1;
const SLOT_MASK: u64 = 0xff;
/// In place of a slot: an operation that ends in the step that starts it.
pub(crate) const NO_SLOT: usize = 0xff;
const HOME: u64 = 0xf_ffff << INDEX_SHIFT;

const _: () = assert!(farside_base::Limits::DEFAULT.sessions_max < 0xf_ffff);
const _: () = assert!(farside_base::Limits::DEFAULT.writes_in_flight_max < 200);

/// The place of an operation's session in the engine's table.
pub(crate) fn session_index(operation: OperationId) -> usize {
    (operation.0 >> INDEX_SHIFT) as usize
}

/// The name of an operation of the home itself.
pub(crate) fn home_operation(number: u64) -> OperationId {
    OperationId(HOME | number & !HOME)
}

/// The number of an operation of the home itself.
pub(crate) fn home_number(operation: OperationId) -> u64 {
    operation.0 & !HOME
}

/// Whether an operation is the home's own.
pub(crate) fn is_home(operation: OperationId) -> bool {
    operation.0 & HOME == HOME
}
