//! Advisory byte-range locks inside one line (004 §4.1), with home, requester and delegate in one machine per node.
//!
//! A lock protects nothing by itself: it is arbitrated separately from the line's bytes, and no coherence transition
//! waits for it. The runtime waits for the session's writes before it requests a lock and before `Unlock`; ranges of
//! several lines are split into lines and locked in address order.
//!
//! **Authority.** One node at a time arbitrates a line's locks: its home, or the only other node that used them
//! recently, by a *delegation* that came with a grant. A delegate grants and releases without messages. When any
//! other node requests a lock, the home recalls the delegation; the delegate answers at once with its holders and its
//! waiters in order, and the home arbitrates again. A delegate offers a delegation for recall if it has too many (the
//! least recently used) or runs out of tokens.
//!
//! **Order.** One queue per line. A request is granted when it conflicts with no holder and no earlier request. Two
//! requests conflict if their ranges overlap and one of them writes. New requests go to the end, except that nodes are
//! served in batches of `Limits::lock_handovers_max` requests while several wait; that a reader joins the last waiting
//! reader it overlaps, which overtakes a waiting writer at most as often; and that an upgrade goes to the front, since
//! its read lock is held already.
//!
//! **Within a session.** A session waits for one lock at a time; further waiting requests start when the previous one
//! has its result (tries start at once). It may hold several read locks of one range, and unlocks each once. A
//! request that conflicts with another lock of its own session fails with `Deadlock`, since it would wait for itself.
//!
//! **Deadlock.** See `deadlock.rs`: a blocked request sends probes along the waits-for edges; a probe that returns
//! has found a cycle, and the wait of its youngest session fails with `Deadlock`. The youngest session is the one
//! that took its first lock last, in causal order. A victim that released all its locks keeps its age, so that it is
//! not chosen for ever.
//!
//! **Messages** of one class between two nodes arrive in order; classes overtake each other. Hence:
//! - A recall may overtake the grant that carries its delegation: it is kept for the grant with its number.
//! - Releases and cancellations may overtake the return that names their locks: the home keeps those of the delegate
//!   until the return is complete.
//! - A request may arrive at the home after its own node became the delegate: it is sent back (`Moved`).
//! - Each request gets exactly one answer, and the requester keeps it until then, even if cancelled.
//!
//! **Death.** Locks, waits and delegations of a dead node are dropped. Locks homed at a dead node are void: requests
//! and unlocks fail with `NodeLost`. The next holder of a range that a dead node held for writing is notified: see
//! `abandoned.rs`.
//!
//! **Loans.** See `loan.rs`: an unused line can be lent to the runtime, which grants its locks until an event names
//! it. **Leaves.** See `closing.rs`: a home that will return waits until its locks are unlocked.

mod abandoned;
mod alone;
mod authority;
mod canary;
mod closing;
mod deadlock;
mod home;
mod invariants;
mod lent;
mod line;
mod loan;
mod own;
mod recency;
mod requester;
mod service;
mod session;
#[cfg(test)]
mod tests;
mod waits;
mod wire;

#[cfg(canary)]
pub use canary::LockMutant;
pub use invariants::Blocked;
pub use lent::{Hold, Loan};
pub use own::Locks;

use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, LineAddress, NodeId, OperationId, SessionId, Ticket};

/// What a lock permits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Shared: other sessions may read too.
    Read,
    /// Exclusive.
    Write,
}

/// What to do if a lock cannot be granted at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Patience {
    /// Fail with `Busy`: one round trip to the home, and one more from there to a delegate if there is one. The
    /// request is never queued and changes no lock.
    Try,
    /// Wait in the line's queue.
    Wait,
}

/// Bytes of a line, as offsets within the line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    /// The first byte.
    pub start: u32,
    /// The number of bytes; at least one, and none past the line.
    pub bytes: u32,
}

impl Range {
    /// Whether a byte is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        (self.start as u64) < other.end() && (other.start as u64) < self.end()
    }

    /// The byte after the last.
    const fn end(self) -> u64 {
        self.start as u64 + self.bytes as u64
    }

    /// Why this is not a valid range of the first `bytes` of a line; `None` if it is valid.
    const fn refusal(self, bytes: u64) -> Option<ErrorCode> {
        if self.bytes == 0 {
            return Some(ErrorCode::ZeroSize);
        }
        if bytes == 0 {
            return Some(ErrorCode::Unallocated);
        }
        if self.end() > bytes {
            return Some(ErrorCode::OutOfBounds);
        }
        None
    }

    const fn fits(self, line: LineAddress) -> bool {
        self.refusal(line.line_size().bytes() as u64).is_none()
    }
}

/// A fencing token: identifies a grant, so that a resource can refuse the holder of an earlier one.
///
/// A home never uses a token twice, and tokens rise for each line. A delegate grants from a block that came with the
/// delegation, and a home lends tokens in blocks, so tokens of different lines of one home may be granted out of
/// order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// A request to the authority of a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ask {
    /// A lock.
    Lock {
        /// The mode.
        mode: Mode,
        /// What to do if it cannot be granted at once.
        patience: Patience,
    },
    /// Converts the session's read lock of exactly this range into a write lock, with a new token. The read lock is
    /// kept if this fails. A second lock for writing would fail with `Deadlock`.
    Upgrade {
        /// What to do if it cannot be granted at once.
        patience: Patience,
    },
}

impl Ask {
    /// The mode that is held when it is granted.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Lock { mode, .. } => mode,
            Self::Upgrade { .. } => Mode::Write,
        }
    }

    /// Whether it waits or tries.
    pub const fn patience(self) -> Patience {
        match self {
            Self::Lock { patience, .. } | Self::Upgrade { patience } => patience,
        }
    }
}

/// An action of a session on a range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// Acquire or upgrade a lock.
    Ask(Ask),
    /// Release a lock of exactly this range and mode.
    Unlock(Mode),
    /// The same for a lock that was not reported to its session: if the grant reported a dead holder, the next grant
    /// reports it too.
    Undo(Mode),
}

/// One request of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LockRequest {
    /// The line.
    pub line: LineAddress,
    /// Its bytes.
    pub range: Range,
    /// The action.
    pub action: Action,
}

/// What the runtime knows of the line to which an event refers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Here {
    /// For an own line: how many of its bytes belong to an allocation, zero if it is in none. For other lines:
    /// ignored.
    pub bytes: u32,
}

/// The authority over a line's locks, as it travels with a grant. Its number is the grant's token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delegation {
    /// The number of tokens after the grant's that the delegate may use.
    pub tokens: u32,
    /// Bytes of the line that can be locked.
    pub bytes: u32,
}

/// A wait, as probes name it; ordered by age, older first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProbedWait {
    /// When the waiting session took its first lock, in causal order.
    pub birth: u64,
    /// The session's node.
    pub node: NodeId,
    /// The request, unique within the node.
    pub ticket: Ticket,
}

/// A deadlock probe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Probe {
    /// The authority that sent it first.
    pub origin: NodeId,
    /// Its number there.
    pub number: u64,
    /// The youngest wait on its path.
    pub youngest: ProbedWait,
}

/// Messages between nodes about locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum LockMessage {
    /// Requester to home (class request): a session requests a lock. `holds`: it holds or awaits another one.
    Request {
        line: LineAddress,
        range: Range,
        ask: Ask,
        session: SessionId,
        ticket: Ticket,
        birth: u64,
        holds: bool,
    },
    /// Requester to home (class request): this lock was released. `untold`: its session never knew of it.
    Release { line: LineAddress, token: Token, untold: bool },
    /// Requester to home (class request): cancels a request. It still gets its answer; a lock that was granted to it
    /// is taken back.
    Cancel { line: LineAddress, ticket: Ticket },
    /// Delegate to home (class request): asks for a recall.
    Offer { line: LineAddress, number: Token },
    /// Home to delegate (class forward): return the delegation of this number.
    Recall { line: LineAddress, number: Token },
    /// Home to requester (class reply): the lock is granted.
    Granted {
        line: LineAddress,
        ticket: Ticket,
        token: Token,
        delegation: Option<Delegation>,
        abandoned: bool,
    },
    /// Home to requester (class reply): the lock is refused.
    Refused { line: LineAddress, ticket: Ticket, code: ErrorCode },
    /// Home to requester (class reply): the cancelled request was removed from the queue.
    Cancelled { line: LineAddress, ticket: Ticket },
    /// Home to requester (class reply): the requester is, or was since, the delegate; decide the request or send it
    /// again.
    Moved { line: LineAddress, ticket: Ticket },
    /// Delegate to home (class reply), before `Returned`: a lock held by a session of the delegate.
    Holder { line: LineAddress, session: SessionId, range: Range, mode: Mode, token: Token },
    /// Delegate to home (class reply), before `Returned`: a waiting request, in order.
    Waiter {
        line: LineAddress,
        session: SessionId,
        range: Range,
        ask: Ask,
        ticket: Ticket,
        birth: u64,
        overtaken: u32,
        holds: bool,
    },
    /// Delegate to home (class reply): the delegation is returned, with this many holders and waiters.
    Returned { line: LineAddress, number: Token, holders: u32, waiters: u32 },
    /// Home to a holder's node (class reply, because its consequences must never wait): a request waits for this
    /// holder.
    Probe { line: LineAddress, token: Token, probe: Probe },
    /// A session's node to the home of the line for which it waits (class reply): a request waits for this waiter.
    Visit { line: LineAddress, ticket: Ticket, probe: Probe },
    /// The node that sent the probe of this number for a waiter at `line`, to the youngest wait's node (class reply):
    /// the probe has closed a cycle; fail this wait.
    Abort { line: LineAddress, ticket: Ticket, number: u64 },
    /// Answers `Abort` (class reply): the wait is failed, or had ended.
    Aborted { line: LineAddress, number: u64 },
}

/// An event for the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum LockEvent {
    /// A session of this node issues a request. Exactly one of `Locked`, `Unlocked`, `Failed` and `Cancelled` follows
    /// for the operation; `Unlocked` at once. `on_loan`: the session holds a lock on loan.
    Issue {
        operation: OperationId,
        session: SessionId,
        request: LockRequest,
        here: Here,
        on_loan: bool,
    },
    /// This operation is cancelled (its future was dropped, or its deadline passed). Ignored if its result was
    /// emitted already: then a lock that it got is held.
    Cancel { operation: OperationId, session: SessionId, line: LineAddress },
    /// A session closes, and gives up all its locks and requests.
    Close { session: SessionId },
    /// An own line is freed: waiting requests fail with `Unallocated`, holders may still unlock.
    Retire { line: LineAddress },
    /// This home will leave, and return with its memory: grant locks only to sessions that hold some, until
    /// [`Locks::is_home_unused`]. No loan is outstanding.
    Drain,
    /// This home leaves: refuse all requests with `HomeAway`. No loan is outstanding.
    CloseHome,
    /// A message.
    Received { from: NodeId, message: LockMessage, here: Here },
    /// A node is dead. `left`: its sessions were closed before, so it held no locks.
    NodeDead { node: NodeId, left: bool },
    /// A new node has this number. If a dead node had it, no message that refers to that one arrives any more.
    NodeAdmitted { node: NodeId },
}

/// An action that the machine requests; perform them in order, at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum LockEffect {
    /// Send a message.
    Send { to: NodeId, message: LockMessage },
    /// The session holds the lock. `abandoned`: a holder of part of it for writing died, or may have, and no writer
    /// was notified since.
    Locked { operation: OperationId, token: Token, abandoned: bool },
    /// The session has released the lock.
    Unlocked { operation: OperationId },
    /// The operation failed. `Busy`, `Deadlock`, `UpgradeConflict`: start over, or retry; `NotLocked`, `ZeroSize`,
    /// `OutOfBounds`, `Unallocated`, `ForeignAddress`: fix the caller; `TooManyLocks`, `TooManySessions`: a limit;
    /// `NodeLost`: the line's home is dead; `HomeAway`: it leaves, request again once it has
    /// returned.
    Failed { operation: OperationId, code: ErrorCode },
    /// The operation was cancelled, or its session closed.
    Cancelled { operation: OperationId },
}

/// A list of effects; reuse it, so that a step allocates nothing.
pub type Effects = Vec<LockEffect>;

/// The outcome of a step: `Err` if a peer broke the protocol; nothing was changed then.
pub type Step = Result<(), Violation>;
