//! Advisory byte-range locks inside one line (004 §4.1), home, requester and delegate in one machine
//! per node.
//!
//! A lock protects nothing by itself: it is arbitrated apart from the line's bytes, and no transition
//! of the line waits for it. The runtime waits for the writes of the session before it asks for a lock and before
//! `Unlock`; ranges of several lines are cut into lines and locked in address order.
//!
//! **Who arbitrates.** One node at a time has the authority over a line's locks: its home, or, when
//! one other node alone has used them of late, that node, by a *delegation* that came with a grant.
//! A delegate grants and releases without messages. When anybody else asks, the home recalls the
//! delegation; the delegate answers at once with its holders and its waiters in order, whoever holds
//! what, and the home is the authority again. A delegate that wants to be rid of a delegation (least
//! recently used of too many, or out of tokens) asks to be recalled.
//!
//! **Order.** One queue per line. A request is granted when it conflicts with no holder and with no
//! request ahead of it. Two requests conflict when their ranges overlap and one of them writes. New
//! requests go to the end, with two exceptions: a reader joins the last waiting reader it overlaps,
//! which overtakes a waiting writer at most `Limits::lock_handovers_max` times; and an upgrade goes
//! to the front, where its read lock stands already.
//!
//! **Within a session.** A session is one program order: it waits for one lock at a time, further
//! waiting requests start when the former has its result (tries start at once). It may hold several
//! read locks of one range, and unlocks each once. Whatever else of its own a request conflicts with
//! fails it with `Deadlock`, since it would wait for itself. In particular read then write is
//! `Upgrade`, which keeps the read lock when it fails.
//!
//! **Tokens.** Every grant carries a [`Token`]: never used twice by a home, rising for each line. A
//! delegate hands out tokens of a block that came with the delegation, a home lends them in blocks, so
//! tokens of different lines of one home may be granted out of order.
//!
//! **Deadlock.** See `deadlock.rs`: a blocked request sends probes along the waits-for edges; a probe
//! that comes back has found a cycle, and the wait of its youngest session fails with `Deadlock`.
//! Younger is who took its first lock later, in the order of causes; a session that was a victim and
//! let everything go keeps its age, so that it cannot lose for ever. Only an edge that vanished while
//! the probe was under way can make a cycle found one that is gone.
//!
//! **Messages** of one class between two nodes arrive in order; classes overtake each other. Hence:
//! - A recall may overtake the grant that carries its delegation: it is kept for that grant, told by
//!   its number.
//! - Releases and cancellations may overtake the return that names what they are about: the home
//!   keeps those of the delegate until the return is complete.
//! - A request may meet its own node's delegation at the home: it is sent back (`Moved`).
//! - Each request gets exactly one answer, and the requester keeps it until then, even cancelled.
//!
//! **Death.** Locks, waits and delegations of a dead node are gone. Locks homed at a dead node are
//! void: its waiters fail with `NodeLost`, and so does unlocking. The next holder of what a dead node
//! held for writing learns of it: see `abandoned.rs`.
//!
//! **Loans.** See `loan.rs`: a line that this node decides about and nobody is at can be lent to the
//! runtime, which grants its locks without asking until the machine has to hear of the line.
//!
//! What the machine does not know: bytes, fences, time, allocations (each event about an own line
//! brings what the runtime knows).

mod abandoned;
mod alone;
mod authority;
mod canary;
mod deadlock;
mod home;
mod invariants;
mod line;
mod loan;
mod own;
mod recency;
mod requester;
mod session;
#[cfg(test)]
mod tests;
mod wire;

#[cfg(canary)]
pub use canary::Mutant;
pub use invariants::Blocked;
pub use loan::{Hold, Loan};
pub use own::Locks;

use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, LineAddress, NodeId, OperationId, SessionId, Ticket};

/// What a lock allows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mode {
    /// Others may read too.
    Read,
    /// Nobody else.
    Write,
}

/// What to do when a lock cannot be had at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Patience {
    /// Fail with `Busy`: one round trip to the home, one more from there to a delegate if there is
    /// one; never queued, and nobody's locks change.
    Try,
    /// Wait in the line's queue.
    Wait,
}

/// Bytes of a line, as offsets within the line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Range {
    /// The first byte.
    pub start: u32,
    /// How many; at least one, and none past the line.
    pub bytes: u32,
}

impl Range {
    /// Whether a byte is in both.
    pub const fn overlaps(self, other: Self) -> bool {
        (self.start as u64) < other.end() && (other.start as u64) < self.end()
    }

    /// The byte behind the last.
    const fn end(self) -> u64 {
        self.start as u64 + self.bytes as u64
    }

    /// Why this is no range of the first `bytes` of a line, if it is none.
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

/// A fencing token: what a grant is known by to whoever must refuse the holder of a former one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Token(pub u64);

/// What is asked of whoever arbitrates a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Ask {
    /// A lock.
    Lock {
        /// To do what.
        mode: Mode,
        /// Or else.
        patience: Patience,
    },
    /// The session's read lock of exactly this range shall become a write lock, with a new token.
    Upgrade {
        /// Or else.
        patience: Patience,
    },
}

impl Ask {
    /// What is held when it is granted.
    pub const fn mode(self) -> Mode {
        match self {
            Self::Lock { mode, .. } => mode,
            Self::Upgrade { .. } => Mode::Write,
        }
    }

    /// Whether it waits.
    pub const fn patience(self) -> Patience {
        match self {
            Self::Lock { patience, .. } | Self::Upgrade { patience } => patience,
        }
    }
}

/// What a session wants with a range.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Action {
    /// To have it.
    Ask(Ask),
    /// To let it go: exactly the range and mode it holds.
    Unlock(Mode),
    /// The same for a lock that its session was not told of: what the grant said of the lock's last
    /// holder is said to the next one.
    Undo(Mode),
}

/// One request of a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request {
    /// The line.
    pub line: LineAddress,
    /// Its bytes.
    pub range: Range,
    /// What with them.
    pub action: Action,
}

/// What the runtime knows of the line that an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Here {
    /// For an own line: how many of its bytes belong to an allocation, zero when it lies in none.
    /// For others: ignored.
    pub bytes: u32,
}

/// The authority over a line's locks, as it travels with a grant. Its number is the grant's token.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Delegation {
    /// Tokens behind the grant's that the delegate may use.
    pub tokens: u32,
    /// Bytes of the line that can be locked.
    pub bytes: u32,
}

/// A wait, as probes name it; the order is that of age, older first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wait {
    /// When the waiting session took its first lock, in the order of causes.
    pub birth: u64,
    /// The session's node.
    pub node: NodeId,
    /// The request, unique within the node.
    pub ticket: Ticket,
}

/// A search for a cycle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Probe {
    /// The authority that sent it first.
    pub origin: NodeId,
    /// Its number there.
    pub number: u64,
    /// The youngest wait on its way.
    pub youngest: Wait,
}

/// What nodes say to each other about locks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum Message {
    /// Requester to home (class request): a session asks.
    Request {
        line: LineAddress,
        range: Range,
        ask: Ask,
        session: SessionId,
        ticket: Ticket,
        birth: u64,
    },
    /// Requester to home (class request): this lock is not held any more. `untold`: its session never
    /// knew of it.
    Release { line: LineAddress, token: Token, untold: bool },
    /// Requester to home (class request): a request is not wanted any more. It still gets its
    /// answer; what it was granted is taken back.
    Cancel { line: LineAddress, ticket: Ticket },
    /// Delegate to home (class request): please recall.
    Offer { line: LineAddress, number: Token },
    /// Home to delegate (class forward): return the delegation of this number.
    Recall { line: LineAddress, number: Token },
    /// Home to requester (class reply): yes.
    Granted {
        line: LineAddress,
        ticket: Ticket,
        token: Token,
        delegation: Option<Delegation>,
        abandoned: bool,
    },
    /// Home to requester (class reply): no.
    Refused { line: LineAddress, ticket: Ticket, code: ErrorCode },
    /// Home to requester (class reply): the cancelled request was taken out of the queue.
    Cancelled { line: LineAddress, ticket: Ticket },
    /// Home to requester (class reply): you are the delegate, or were since; decide it or ask again.
    Moved { line: LineAddress, ticket: Ticket },
    /// Delegate to home (class reply), before `Returned`: what a session of the delegate holds.
    Holder { line: LineAddress, session: SessionId, range: Range, mode: Mode, token: Token },
    /// Delegate to home (class reply), before `Returned`: who waits, in order.
    Waiter {
        line: LineAddress,
        session: SessionId,
        range: Range,
        ask: Ask,
        ticket: Ticket,
        birth: u64,
        overtaken: u32,
    },
    /// Delegate to home (class reply): the delegation is over; so many holders and waiters were told.
    Returned { line: LineAddress, number: Token, holders: u32, waiters: u32 },
    /// Home to a holder's node (class reply, because whatever it causes must never wait): somebody
    /// waits for this holder.
    Probe { line: LineAddress, token: Token, probe: Probe },
    /// A session's node to the home of the line it waits for (class reply): somebody waits for this
    /// waiter.
    Visit { line: LineAddress, ticket: Ticket, probe: Probe },
    /// Whoever sent the probe of this number for a waiter at `line`, to the youngest's node (class
    /// reply): it has closed a cycle; fail this wait.
    Abort { line: LineAddress, ticket: Ticket, number: u64 },
    /// And back (class reply): it is failed, or was no wait any more.
    Aborted { line: LineAddress, number: u64 },
}

/// What happens to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum Event {
    /// A session of this node wants something. Exactly one of `Locked`, `Unlocked`, `Failed` and
    /// `Cancelled` follows for the operation; `Unlocked` at once.
    Issue { operation: OperationId, session: SessionId, request: Request, here: Here },
    /// Nobody waits for this operation any more (its future was dropped, its deadline passed).
    /// Ignored when its result is out already: then a lock that it got is held.
    Cancel { operation: OperationId, session: SessionId, line: LineAddress },
    /// A session ends: it holds and awaits nothing any more.
    Close { session: SessionId },
    /// An own line is freed: waiting requests fail with `Unallocated`, holders may still unlock.
    Retire { line: LineAddress },
    /// A message.
    Received { from: NodeId, message: Message, here: Here },
    /// A node is dead. `left`: its sessions were closed before, so that it held nothing.
    NodeDead { node: NodeId, left: bool },
    /// A new node has this number. If a dead one had it, no message that speaks of that one arrives any more.
    NodeAdmitted { node: NodeId },
}

/// What the machine wants done, in this order, at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum Effect {
    /// Send a message.
    Send { to: NodeId, message: Message },
    /// The session holds the lock. `abandoned`: a holder of some of it for writing died, or may have,
    /// and no writer was told since.
    Locked { operation: OperationId, token: Token, abandoned: bool },
    /// The session holds the lock no more.
    Unlocked { operation: OperationId },
    /// The operation cannot be. `Busy`, `Deadlock`, `UpgradeConflict`: start over, or try again;
    /// `NotLocked`, `ZeroSize`, `OutOfBounds`, `Unallocated`, `ForeignAddress`: mend the caller;
    /// `TooManyLocks`, `TooManySessions`: a limit; `NodeLost`: the line's home is dead.
    Failed { operation: OperationId, code: ErrorCode },
    /// The operation was cancelled, or its session closed.
    Cancelled { operation: OperationId },
}

/// Collects effects; reuse it, so that a step allocates nothing.
pub type Effects = Vec<Effect>;

/// The outcome of a step: `Err` when a peer broke the protocol. Nothing was changed then.
pub type Step = Result<(), Violation>;
