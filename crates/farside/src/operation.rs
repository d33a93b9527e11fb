//! Operations that wait in the engine: each has a slot, which can be polled, awaited or blocked on.
//!
//! A slot belongs to its session. The session fills in the request, the engine performs it once the line is
//! at the required level, the session takes the result. The release store of the slot's state publishes its
//! other fields.

use crate::hit::{Lines, WORD};
use crate::lock_hit::LockCounts;
use crate::mutex::locked;
use farside_base::{ErrorCode, GlobalAddress, LineAddress, NodeId, OperationId, SessionId};
use farside_protocol::allocate::StateNeeds;
use farside_protocol::coherence::Want;
use farside_protocol::lock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::task::Waker;

/// An atomic operation on a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WordOperation {
    /// Add, wrapping.
    FetchAdd(u64),
    /// Replace the word if it has the expected value.
    CompareSwap(u64, u64),
    /// Replace the word.
    Swap(u64),
}

impl WordOperation {
    /// The new value of a word.
    #[inline(always)]
    pub(crate) fn apply(self, word: u64) -> u64 {
        match self {
            Self::FetchAdd(add) => word.wrapping_add(add),
            Self::CompareSwap(expected, new) if word == expected => new,
            Self::CompareSwap(..) => word,
            Self::Swap(new) => new,
        }
    }
}

/// The kind of an operation. The slot's `buffer` holds bytes in and out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum OperationKind {
    /// Nothing yet.
    #[default]
    Idle,
    /// Copy bytes out into the buffer.
    Read,
    /// Copy the buffer in.
    Write,
    /// Change a word of 4 or 8 bytes.
    Word(WordOperation),
    /// Keep the line as it is until unpinned.
    Pin(Want),
    /// Fetch the line for later accesses; none waits for it.
    Prefetch(Want),
    /// Allocate memory at a node; `elsewhere`: it need not be that one, so it does not wait for its return.
    Allocate { node: NodeId, bytes: u64, class: u8, elsewhere: bool, needs: StateNeeds },
    /// Get the directory of named roots of a node.
    Directory { node: NodeId },
    /// Free an allocation.
    Free,
    /// Lock, unlock or upgrade a range of a line.
    Lock(lock::LockRequest),
    /// Take the node's gate for atomics of several lines.
    Gate,
    /// Find out whether this node is still a member.
    Confirm,
    /// Wait until the home of the address can be asked, if it is a node with state that is away.
    AwaitHome,
    /// Write the line back to its home.
    WriteBack,
    /// Wait until what this node has written to memory of nodes with state is durable.
    Persist,
}

impl OperationKind {
    /// The access that the coherence machine must provide; `None` for operations that do not access a line.
    pub(crate) fn want(self) -> Option<Want> {
        match self {
            Self::Read => Some(Want::Read),
            Self::Write | Self::Word(_) => Some(Want::Write),
            Self::Pin(want) | Self::Prefetch(want) => Some(want),
            Self::Idle
            | Self::Allocate { .. }
            | Self::Directory { .. }
            | Self::Free
            | Self::Lock(_)
            | Self::Gate
            | Self::Confirm
            | Self::AwaitHome
            | Self::WriteBack
            | Self::Persist => None,
        }
    }

    /// Whether an operation of this kind starts again when its home returns, if it fails for the end of its home: it has had
    /// no effect then, holds nothing meanwhile, and an allocation that was made nevertheless stays unused.
    pub(crate) fn waits_for_home(self) -> bool {
        match self {
            Self::Read
            | Self::Write
            | Self::Word(_)
            | Self::Allocate { .. }
            | Self::Directory { .. }
            | Self::AwaitHome
            | Self::WriteBack => true,
            // Pins and locks are of several lines, which are lost together; a free may have taken effect, unless
            // its home has left.
            Self::Pin(_) | Self::Lock(_) | Self::Free => false,
            Self::Idle | Self::Prefetch(_) | Self::Gate | Self::Confirm | Self::Persist => false,
        }
    }

    /// Whether an operation of this kind that was abandoned does not start any more: the session has gone on, perhaps
    /// with another operation in its place. The others take back what they acquire.
    pub(crate) fn ends_when_abandoned(self) -> bool {
        match self {
            Self::Read
            | Self::Write
            | Self::Word(_)
            | Self::Pin(_)
            | Self::Free
            | Self::WriteBack => true,
            // Each prefetch is abandoned from the start.
            Self::Prefetch(_) => false,
            Self::Allocate { .. } | Self::Directory { .. } | Self::Lock(_) | Self::Gate => false,
            Self::Idle | Self::Confirm | Self::AwaitHome | Self::Persist => false,
        }
    }

    /// Whether an operation of this kind may wait for a line in the coherence machine.
    pub(crate) fn waits_for_line(self) -> bool {
        self.want().is_some() || self == Self::WriteBack
    }
}

/// A request and its result.
#[derive(Debug, Default)]
pub(crate) struct OperationRequest {
    pub(crate) kind: OperationKind,
    /// The first byte; all bytes of the access from it on are in one line.
    pub(crate) address: Option<GlobalAddress>,
    pub(crate) bytes: usize,
    /// The access started in an earlier line: this line must not be the first of an allocation.
    pub(crate) continues: bool,
    pub(crate) buffer: Vec<u8>,
    /// The previous value of an atomic, the address of an allocation, or the token of a lock.
    pub(crate) result: u64,
    /// For a lock: an earlier holder died, and no writer has been notified since.
    pub(crate) abandoned: bool,
    /// When it fails if its home is still away, once it has waited for it.
    pub(crate) away_until_ns: Option<u64>,
    /// The write of the session to this line that was posted before it.
    pub(crate) after: Option<OperationId>,
    /// The write that starts when this one ends. Engine only.
    pub(crate) next: Option<OperationId>,
}

impl OperationRequest {
    /// The access that the coherence machine must provide. An operation that brings all bytes from the
    /// line's start on can use a line with lost contents.
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

    /// Performs the request on a line at a sufficient level. `None`, without effect, if this node may not be
    /// a member any more.
    pub(crate) fn perform(&mut self, lines: &Lines, line: LineAddress) -> Option<Outcome> {
        if self.kind != OperationKind::WriteBack {
            match self.access(lines, line) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(code) => return Some(Err(code)),
            }
        }
        Some(if lines.is_removed() { Err(ErrorCode::NodeClosed) } else { Ok(()) })
    }

    /// Accesses the bytes; false, without effect, if the cache is not trusted.
    fn access(&mut self, lines: &Lines, line: LineAddress) -> Result<bool, ErrorCode> {
        let (Some(address), Some(spot)) = (self.address, lines.spot(line)) else {
            return Err(ErrorCode::NodeFailed);
        };
        let (offset, bytes) = (address.offset_in_line(), self.bytes);
        let extent = spot.extent().ok_or(ErrorCode::Unallocated)?;
        if offset + bytes > extent.bytes as usize || (self.continues && extent.first) {
            return Err(ErrorCode::OutOfBounds);
        }
        match self.kind {
            OperationKind::Read => {
                self.buffer.resize(bytes, 0);
                while !spot.try_read(offset, &mut self.buffer, self.continues) {
                    std::hint::spin_loop();
                }
                Ok(lines.is_trusted())
            }
            OperationKind::Write | OperationKind::Word(_) => {
                let claim = loop {
                    if let Some(claim) = spot.try_claim(offset, bytes, self.continues) {
                        break claim;
                    }
                    std::hint::spin_loop();
                };
                let trusted = lines.is_trusted();
                match self.kind {
                    OperationKind::Word(change) if trusted => {
                        self.result = claim.update(offset, bytes, |word| change.apply(word));
                    }
                    _ if trusted => claim.write(offset, &self.buffer),
                    _ => {}
                }
                Ok(trusted)
            }
            OperationKind::Pin(_) | OperationKind::Prefetch(_) => Ok(true),
            OperationKind::Idle
            | OperationKind::Allocate { .. }
            | OperationKind::Directory { .. }
            | OperationKind::Free
            | OperationKind::Lock(_)
            | OperationKind::Gate
            | OperationKind::Confirm
            | OperationKind::AwaitHome
            | OperationKind::Persist
            | OperationKind::WriteBack => Err(ErrorCode::NodeFailed),
        }
    }
}

const FREE: u32 = 0;
const PENDING: u32 = 1;
const DONE: u32 = 2;
const FAILED: u32 = 3;

/// The slot of one operation.
#[derive(Debug, Default)]
pub(crate) struct OperationSlot {
    /// Low byte: the state; above it, the error number.
    state: AtomicU32,
    /// The caller has abandoned it; the engine cleans up when the operation ends.
    abandoned: AtomicBool,
    request: Mutex<OperationRequest>,
    waker: Mutex<Option<Waker>>,
}

/// The outcome of an operation.
pub(crate) type Outcome = Result<(), ErrorCode>;

impl OperationSlot {
    pub(crate) fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    pub(crate) fn request(&self) -> MutexGuard<'_, OperationRequest> {
        locked(&self.request)
    }

    /// Session: submits the complete request.
    pub(crate) fn submit(&self) {
        self.abandoned.store(false, Ordering::Relaxed);
        self.state.store(PENDING, Ordering::Release);
    }

    /// Session: the outcome, if it has ended.
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

    /// Session: frees the slot after the result was taken.
    pub(crate) fn recycle(&self) {
        self.state.store(FREE, Ordering::Release);
    }

    /// Session: registers a waker for the end of the operation. True if it has ended meanwhile.
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        let mut place = locked(&self.waker);
        if !place.as_ref().is_some_and(|old| old.will_wake(waker)) {
            *place = Some(waker.clone());
        }
        drop(place);
        self.outcome().is_some()
    }

    /// Engine, for the session: marks the operation as abandoned.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::SeqCst)
    }

    /// Wakes the task that waits for the operation, which has not ended.
    pub(crate) fn rouse(&self) {
        let waker = locked(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Engine: ends the operation.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let state = match outcome {
            Ok(()) => DONE,
            Err(code) => FAILED | u32::from(code.entry().number) << 8,
        };
        self.state.store(state, Ordering::Release);
        self.rouse();
    }
}

impl OperationSlot {
    /// Whether the engine still processes it.
    pub(crate) fn is_pending(&self) -> bool {
        self.state.load(Ordering::Acquire) == PENDING
    }

    /// Engine: ends the operation if it is pending; for a node that leaves.
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
    /// The session's index in the engine's table: the high half of its operations' ids.
    pub(crate) index: u32,
    pub(crate) slots: Box<[OperationSlot]>,
    /// The deadline of the call that a task awaits, in time of [`Core`](crate::wait::Core); `u64::MAX` for
    /// never.
    pub(crate) alarm_ns: AtomicU64,
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) direct_reads: AtomicU64,
    pub(crate) locks: LockCounts,
}

impl SessionSlots {
    pub(crate) fn new(session: SessionId, index: u32, count: usize) -> Self {
        Self {
            session,
            index,
            slots: (0..count).map(|_| OperationSlot::default()).collect(),
            alarm_ns: AtomicU64::new(u64::MAX),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            direct_reads: AtomicU64::new(0),
            locks: LockCounts::default(),
        }
    }

    /// The id of a slot's operation.
    pub(crate) fn operation(&self, slot: usize) -> OperationId {
        let life = self.session.0 & LIFE_MASK;
        OperationId(u64::from(self.index) << INDEX_SHIFT | life << LIFE_SHIFT | slot as u64)
    }

    /// The slot of an operation, if it belongs to this session and not to an earlier one with the same
    /// index.
    pub(crate) fn slot(&self, operation: OperationId) -> Option<&OperationSlot> {
        if operation.0 >> LIFE_SHIFT & LIFE_MASK != self.session.0 & LIFE_MASK {
            return None;
        }
        self.slots.get((operation.0 & SLOT_MASK) as usize)
    }
}

// An operation's id: the session's index (20 bits), the session's count (36), the slot (8).
const INDEX_SHIFT: u32 = 44;
const LIFE_SHIFT: u32 = 8;
const LIFE_MASK: u64 = (1 << 36) - 1;
const SLOT_MASK: u64 = 0xff;
/// Instead of a slot: an operation that ends in the step that starts it.
pub(crate) const NO_SLOT: usize = 0xff;
const HOME: u64 = 0xf_ffff << INDEX_SHIFT;

const _: () = assert!(farside_base::Limits::DEFAULT.sessions_max < 0xf_ffff);
/// Writes of a session that may be in flight at most: with the other operations of the session, they have 8 bits of an id.
pub(crate) const WRITES_IN_FLIGHT_MOST: u32 = 179;
const _: () = assert!(farside_base::Limits::DEFAULT.writes_in_flight_max <= WRITES_IN_FLIGHT_MOST);

/// The table index of an operation's session.
pub(crate) fn session_index(operation: OperationId) -> usize {
    (operation.0 >> INDEX_SHIFT) as usize
}

/// The id of an operation of the home itself.
pub(crate) fn home_operation(number: u64) -> OperationId {
    OperationId(HOME | number & !HOME)
}

/// Of the numbers of the home's own operations, those of fences.
const PERSIST: u64 = 1 << (INDEX_SHIFT - 1);

/// The id of a write-back for a fence.
pub(crate) fn persist_operation(number: u64) -> OperationId {
    home_operation(PERSIST | number)
}

/// The number of a write-back for a fence.
pub(crate) fn persist_number(operation: OperationId) -> u64 {
    home_number(operation) & !PERSIST
}

/// Whether an operation is a write-back for a fence.
pub(crate) fn is_persist(operation: OperationId) -> bool {
    is_home(operation) && operation.0 & PERSIST != 0
}

/// The number of an operation of the home itself.
pub(crate) fn home_number(operation: OperationId) -> u64 {
    operation.0 & !HOME
}

/// Whether an operation is one of the home itself.
pub(crate) fn is_home(operation: OperationId) -> bool {
    operation.0 & HOME == HOME
}
