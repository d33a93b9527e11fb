//! Directory coherence of lines (004 §2.2 to §2.6), with home and holder in one machine per node.
//!
//! The rules that differ from the paper, and why:
//!
//! - **Grants are numbered** by the home, with one 64-bit counter for all its lines. A recall names the grant it
//!   ends; acknowledgements are matched by (node, grant).
//! - **An eviction requests a recall.** A clean copy is dropped at once and its home notified. An owner keeps its
//!   line until the home recalls it.
//! - **A line is invalid the moment its bytes are sent**; only the frame stays pinned until they are placed.
//! - **A recall that names a grant not held**, while a request for the line is in flight, waits for that request's
//!   grant. It is either for that grant (obey after using it once) or for a former one (drop it; the eviction of the
//!   former grant is the acknowledgement).
//! - **A waiting operation is performed once** when its grant arrives, before any recall.
//! - **A frame that another node may still write stays reserved**: a requester that is refused, or loses its home,
//!   after its request was forwarded keeps the frame until the owner's bytes have arrived, or cannot arrive any more.
//! - **A lost line stays lost.** A line with a dead owner is refused until it is freed, or overwritten as a whole:
//!   its old bytes are never served. A requester that overwrites it fills in the bytes itself, before its level
//!   rises. While a removed node may still write to this home (`Lingers`), the line is not healed.
//! - **A write-back is a downgrade by the owner**: it sends the bytes with its request and stays a sharer. The bytes
//!   of a recall that the request crosses are answered by it, so a home ends no grant before it has the bytes of its write-back, and a
//!   stale one cannot exist. Where the owner is another node by then, or has the line pinned, the home recalls it. A line
//!   that may be written is never clean, and no modified bit is needed.
//! - **A home that logs grants only what its log has** (004 §5: a redo record is durable before its bytes become visible
//!   to another node). Bytes come back to it and never go from owner to requester, and what its own node writes is
//!   logged before the line is readable again. A dead owner's line is restored from the log and never lost.
//! - **Locks are separate.** No transition waits for a lock.
//!
//! | file | contents |
//! | --- | --- |
//! | `machine` | one machine per node: dispatch to its two roles |
//! | `home`, `home_line` | one transaction per line, a queue of waiting requests, the grant counter |
//! | `directory`, `copies` | the holders of each line at rest |
//! | `holder`, `holder_line` | waiting operations, deferred recalls, pins, evictions |
//! | `message` | the wire form |
//!
//! The machine does not know bytes, the replacement order of frames, or the levels of lines at rest: the runtime's
//! tags hold those, and each event carries the tag.

mod canary;
mod copies;
mod counters;
mod directory;
#[cfg(test)]
mod directory_tests;
mod display;
mod holder;
mod holder_line;
mod home;
mod home_line;
mod machine;
mod message;
#[cfg(test)]
mod message_tests;
#[cfg(test)]
mod steady_tests;

#[cfg(canary)]
pub use canary::CoherenceMutant;
pub use counters::Counters;
pub use machine::Coherence;

use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, Grant, LineAddress, NodeId, NodeSet, OperationId, Ticket};

/// The access that a node has to a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Level {
    /// None.
    #[default]
    Invalid,
    /// Read; other nodes may read too.
    Shared,
    /// Read and write; no other node has it. For a home's own line: `UnShared` in the paper.
    Dirty,
}

/// A node's level and grant of a line, from its tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct HeldLine {
    /// Its access.
    pub level: Level,
    /// Its grant; meaningless at `Invalid` and for a home's own lines.
    pub grant: Grant,
}

/// The index of a line's frame in a node's cache, by which the home or owner addresses a one-sided WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Frame(pub u32);

/// The home's knowledge of a line's allocation; travels with the first grant to a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The line is the first of its allocation.
    pub first: bool,
    /// Bytes of the line that belong to the allocation, 1 to the line size.
    pub bytes: u32,
}

/// The access that an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Want {
    /// `Shared` or better.
    Read,
    /// `Dirty`.
    Write,
    /// `Dirty`, to write every byte of the line up to `covers`. If that is all of the allocation's bytes, a lost line
    /// can be used like any other.
    Overwrite {
        /// Bytes from the line's start.
        covers: u32,
        /// The write began in an earlier line, so it may not reach a line that is the first of its allocation.
        continues: bool,
    },
}

/// The destination of a requester's bytes, for the node that sends them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Requester {
    /// The node.
    pub node: NodeId,
    /// Its frame.
    pub frame: Frame,
    /// Its request.
    pub ticket: Ticket,
}

/// How the requester gets the bytes of a granted line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Supply {
    /// It has them: it was and remains a sharer.
    Held,
    /// The home has placed them in the frame, before this message.
    Home,
    /// The former owner, this node, places them and reports it by `Data`. If that node dies, they will not arrive.
    Owner(NodeId),
    /// There are none: the line was lost, and the requester overwrites all of it.
    Nothing,
}

/// What a holder had when a recall reached it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Had {
    /// No bytes: it was granted the line, but the supplier died first.
    Nothing,
    /// The same bytes as the home, or as it has once the holder's `WriteBack` has arrived.
    Clean,
    /// The only bytes; placed in the home's memory before this message.
    Bytes,
    /// The only bytes; placed in the frame that the recall named, and nowhere else. The home must not conclude that
    /// they have landed.
    Forwarded,
}

/// Messages between nodes about lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum CoherenceMessage {
    /// Requester to home (class request): requests read access.
    Read { line: LineAddress, frame: Frame, ticket: Ticket },
    /// Requester to home (class request): requests write access; `held` is its shared grant, if any. It overwrites
    /// the first `covers` bytes.
    Write { line: LineAddress, frame: Frame, ticket: Ticket, held: Option<Grant>, covers: u32 },
    /// Holder to home (class request): a clean copy was dropped, and this acknowledges a recall of it in flight; a
    /// dirty one is to be recalled.
    Evict { line: LineAddress, grant: Grant, dirty: bool },
    /// Holder to home (class request): requests a write-back of the line. With `owned`, the sender owned it by this grant,
    /// has lowered it to `Shared`, and has placed the bytes in the home's memory before this message, which acknowledges
    /// the bytes to a recall that it crosses.
    WriteBack { line: LineAddress, ticket: Ticket, owned: Option<Grant> },
    /// Home to holder (class forward): lower the line to `down_to`. The bytes of a dirty line go to `forward` as its
    /// `Data`, and to the home's memory if `down_to` is `Shared` or there is no `forward`. A holder that has returned the
    /// bytes with a `WriteBack` only lowers the line: it acknowledges that (`Clean`) if it had to.
    Recall { line: LineAddress, grant: Grant, down_to: Level, forward: Option<Requester> },
    /// Home to requester (class reply): the request is granted.
    Grant {
        line: LineAddress,
        ticket: Ticket,
        grant: Grant,
        level: Level,
        supply: Supply,
        extent: Extent,
    },
    /// Home to holder (class reply): the home has the bytes, including those of every write that the holder performed
    /// before it sent the `WriteBack`.
    Written { line: LineAddress, ticket: Ticket },
    /// Home to requester (class reply): the request is refused. `supplier` is the dead owner to which it had been
    /// forwarded: its bytes may still be in flight to the frame.
    Refuse { line: LineAddress, ticket: Ticket, code: ErrorCode, supplier: Option<NodeId> },
    /// Owner to requester (class reply): the bytes are in the requester's frame.
    Data { line: LineAddress, ticket: Ticket },
    /// Holder to home (class reply): the recall of `grant` is done; `left` is what the holder keeps.
    Ack { line: LineAddress, grant: Grant, had: Had, left: Level },
}

/// The runtime's tag and allocation of the line to which an event refers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Here {
    /// For a line of another home: this node's copy. For an own line: ignored.
    pub held: HeldLine,
    /// For an own line: its allocation; `None` if it is in none. For other lines: ignored.
    pub extent: Option<Extent>,
}

/// An event for the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum CoherenceEvent {
    /// An operation of this node found the tag insufficient. `frame` is its line's frame, reserved by the runtime
    /// (any value for an own line). With `pin`, no other node gets the line between `Ready` and `Unpin`; if its home
    /// dies it falls to `Invalid` all the same, but keeps its frame. Operations on one line become ready in the order
    /// of issue.
    Issue {
        operation: OperationId,
        line: LineAddress,
        want: Want,
        pin: bool,
        frame: Frame,
        here: Here,
    },
    /// This operation is cancelled. `Fail` with `TimedOut` follows at once, and requests sent for it continue;
    /// ignored if it has its result already.
    Cancel { operation: OperationId, line: LineAddress, here: Here },
    /// A pinned operation no longer needs its line.
    Unpin { line: LineAddress, here: Here },
    /// The runtime needs the frame of a line of another home. `Release` follows at once for a clean copy and after a
    /// recall for a dirty one. Ignored for a line with pending work.
    Evict { line: LineAddress, here: Here },
    /// Writes a line back to its home: this node's level falls to `Shared`. With an operation, `Ready` follows when
    /// the home has the bytes, for a line at any level. Without one nothing follows, and the event is ignored for a
    /// line that this node does not own or that is already being written back or evicted.
    WriteBack { operation: Option<OperationId>, line: LineAddress, here: Here },
    /// All pins of lines of other homes at this node are dropped.
    DropPins,
    /// The owner of the allocation frees this own line. `Ready` follows when no node holds it any more, and every
    /// request for it is refused from now on.
    Retire { operation: OperationId, line: LineAddress, here: Here },
    /// A message.
    Received { from: NodeId, message: CoherenceMessage, here: Here },
    /// The bytes of the oldest `Place` of this line have landed, or their target is dead.
    Placed { line: LineAddress, here: Here },
    /// Bytes that this node, for which `NodeDead` follows, had begun to write may still land here: it was removed,
    /// and its thread may be stopped within a copy. No lost line is healed until the node is quiet.
    Lingers { node: NodeId },
    /// No bytes of a lingering node land here any more.
    Quiet { node: NodeId },
    /// The record of the oldest `Log` of this own line is durable.
    Logged { line: LineAddress },
    /// A node is dead. Its link is closed: nothing that it sent or placed arrives after this, unless it lingers.
    NodeDead { node: NodeId },
    /// A new node has this number. If a dead node had it, `Settled` was given for that one.
    NodeAdmitted { node: NodeId },
    /// Every live node has had `NodeDead` of this node, and everything that it sent earlier has arrived here. Not to
    /// be given while any node lingers. It frees frames that an owner might have been asked to fill by a dead home; a
    /// runtime that never gives it loses as many frames as it had requests in flight to that home.
    Settled { node: NodeId },
}

/// The destination of a `Place`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PlacementTarget {
    /// The other node's frame.
    Frame(Frame),
    /// The other node's own memory: it is the line's home.
    Home,
}

/// An action that the machine requests; perform them in order, at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum CoherenceEffect {
    /// Send a message.
    Send { to: NodeId, message: CoherenceMessage },
    /// Write the line's bytes to `to`'s memory and then, on the same link, send the message. The bytes are in the
    /// line's frame, or for an own line in this node's memory. `Placed` follows. The bytes do not change until then,
    /// because an earlier effect lowered the level.
    Place { line: LineAddress, to: NodeId, target: PlacementTarget, message: CoherenceMessage },
    /// Set the line's tag. Waits for a copy in progress on another thread. `extent` comes with the first grant of a
    /// line of another home.
    SetLevel { line: LineAddress, held: HeldLine, extent: Option<Extent> },
    /// The frame of a line of another home is free.
    Release { line: LineAddress },
    /// Store the operation's bytes in the line, which no thread reads or writes at `Invalid`, followed by zeros. Its
    /// `Ready` follows.
    Fill { operation: OperationId, line: LineAddress },
    /// Append the bytes of an own line to the log. No thread reads or writes them until the `Logged` that follows.
    Log { line: LineAddress },
    /// Replace the bytes of an own line by those last logged: its owner died. No thread reads or writes them.
    Restore { line: LineAddress },
    /// Perform the operation now: the line has the level it needs.
    Ready { operation: OperationId, line: LineAddress },
    /// The operation failed: `Unallocated`, `LineLost`, `NodeLost`.
    Fail { operation: OperationId, line: LineAddress, code: ErrorCode },
    /// Drop every frame at `Shared` or `Dirty` of lines homed at this dead node. Those at `Invalid` are in use (bytes
    /// in flight in or out, or a pin): a `Release` frees each.
    DropHome { node: NodeId },
}

/// A list of effects; reuse it, so that a step allocates nothing.
pub type Effects = Vec<CoherenceEffect>;

/// The outcome of a step: `Err` if a peer broke the protocol; nothing was changed then.
pub type Step = Result<(), Violation>;

impl Want {
    /// The lowest level that suffices.
    pub const fn level(self) -> Level {
        match self {
            Self::Read => Level::Shared,
            Self::Write | Self::Overwrite { .. } => Level::Dirty,
        }
    }

    /// The number of bytes from the line's start that it overwrites.
    pub(super) const fn covers(self) -> u32 {
        match self {
            Self::Overwrite { covers, .. } => covers,
            Self::Read | Self::Write => 0,
        }
    }

    /// Whether it overwrites all of a line with this extent, and nothing beyond it: a write out of bounds is refused,
    /// and must not change the line before that.
    pub(super) fn heals(self, extent: Extent) -> bool {
        match self {
            Self::Overwrite { covers, continues } => {
                covers == extent.bytes && !(continues && extent.first)
            }
            Self::Read | Self::Write => false,
        }
    }
}

/// Replaces a cancelled operation while a request for it is in flight.
const CANCELLED: OperationId = OperationId(u64::MAX);

/// State shared by both roles during one step.
struct StepContext<'a> {
    me: NodeId,
    dead: &'a NodeSet,
    /// Dead nodes with bytes that may still land.
    lingering: &'a NodeSet,
    effects: &'a mut Effects,
    counters: &'a mut Counters,
    /// Lines of this home are logged.
    logs: bool,
    /// No other node is granted a line of this home for writing.
    closing: bool,
    mutant: farside_base::Planted<canary::CoherenceMutant>,
}

impl StepContext<'_> {
    /// Whether nothing written by this node arrives any more.
    fn is_quiet(&self, node: NodeId) -> bool {
        self.dead.contains(node) && !self.lingering.contains(node)
    }

    fn send(&mut self, to: NodeId, message: CoherenceMessage) {
        self.effects.push(CoherenceEffect::Send { to, message });
    }

    fn fail(&mut self, operation: OperationId, line: LineAddress, code: ErrorCode) {
        if operation != CANCELLED {
            self.effects.push(CoherenceEffect::Fail { operation, line, code });
        }
    }

    fn ready(&mut self, operation: OperationId, line: LineAddress) {
        if operation != CANCELLED {
            self.effects.push(CoherenceEffect::Ready { operation, line });
        }
    }
}
