//! Directory coherence of lines (004 §2.2 to §2.6), home and holder in one machine per node.
//!
//! The rules that differ from the paper, and why:
//!
//! - **Grants are numbered** by the home, one 64-bit counter for all its lines. A recall names the
//!   grant it ends; acknowledgements are counted by (node, grant).
//! - **An eviction asks to be recalled.** A clean copy is dropped at once and its home told; an owner
//!   keeps its line until the home recalls it, so bytes travel to a home's memory under a recall
//!   only, and a stale write-back cannot exist.
//! - **A line is invalid the moment its bytes leave**; only the frame stays pinned until they are
//!   placed.
//! - **A recall that names a grant not held** while a request for the line is under way waits for
//!   that request's grant: it is either for it (obey after using it once) or for a former one
//!   (forget it; the eviction that ended the former one is the acknowledgement).
//! - **An operation that waited is performed once** when its grant arrives, before any recall.
//! - **A frame that somebody may still write stays reserved**: a requester that is refused or loses
//!   its home after its request was forwarded keeps the frame until the owner's bytes have come, or
//!   cannot come any more.
//! - **Lost is lost.** A line whose owner died is refused until it is freed, or overwritten as a whole: never
//!   old bytes. A requester that overwrites it makes the bytes itself, before its level rises. While a removed node
//!   may still write here (`Lingers`), it is not healed.
//! - **A write-back is a downgrade that the owner asks for.** The home recalls the owner, whichever node that is
//!   by then, down to `Shared`, and says when it has the bytes. So a line that may be written is never clean, and
//!   nothing marks lines as modified.
//! - **Locks are not here.** No transition waits for a lock.
//!
//! | file | what |
//! | --- | --- |
//! | `machine` | one machine per node: dispatch to its two roles |
//! | `home`, `home_line` | one transaction per line, a queue of waiting requests, the grant counter |
//! | `directory`, `copies` | who holds what, at rest |
//! | `holder`, `holder_line` | operations that wait, deferred recalls, pins, evictions |
//! | `message` | the wire form |
//!
//! What the machine does not know: bytes, frames' replacement order, levels of lines at rest (the
//! tags of the runtime hold them; each event brings what the tag says).

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
pub use canary::Mutant;
pub use counters::Counters;
pub use machine::Coherence;

use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, Grant, LineAddress, NodeId, NodeSet, OperationId, Ticket};

/// What a node may do with a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Level {
    /// Nothing.
    #[default]
    Invalid,
    /// Read; others may read too.
    Shared,
    /// Read and write; nobody else has it. For a home's own line: `UnShared` in the paper.
    Dirty,
}

/// What a node holds of a line by its tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Held {
    /// What it may do.
    pub level: Level,
    /// By which grant; meaningless at `Invalid` and for a home's own lines.
    pub grant: Grant,
}

/// The place of a line in a node's cache: how the home or owner addresses a one-sided WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, PartialOrd, Ord)]
pub struct Frame(pub u32);

/// What the home knows of a line's allocation; travels with the first grant to a node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The line is the first of its allocation.
    pub first: bool,
    /// Bytes of the line that belong to the allocation, 1 to the line size.
    pub bytes: u32,
}

/// What an operation needs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Want {
    /// `Shared` or better.
    Read,
    /// `Dirty`.
    Write,
    /// `Dirty`, to write every byte of the line up to `covers`. If that is all of the allocation's, a lost line is
    /// as good as any other.
    Overwrite {
        /// Bytes from the line's start.
        covers: u32,
        /// The write began in an earlier line, so it may not reach a line that is the first of its allocation.
        continues: bool,
    },
}

/// Where a requester's frame is, for whoever sends it the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Requester {
    /// The node.
    pub node: NodeId,
    /// Its frame.
    pub frame: Frame,
    /// Its request.
    pub ticket: Ticket,
}

/// How the bytes of a granted line reach the requester.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Supply {
    /// It has them: it was and is a sharer.
    Held,
    /// The home has placed them in the frame, before this message.
    Home,
    /// The former owner, this node, places them and says so by `Data`. Its name tells the requester
    /// whose death means that they will not come.
    Owner(NodeId),
    /// There are none: the line was lost, and the requester overwrites all of it.
    Nothing,
}

/// What a holder had when it was recalled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Had {
    /// Nothing: it was granted the line, but the node that was to supply the bytes died first.
    Nothing,
    /// The bytes that the home has too.
    Clean,
    /// The only bytes; placed in the home's memory before this message.
    Bytes,
    /// The only bytes; placed in the frame that the recall named, and nowhere else. The home must not
    /// conclude that they have landed.
    Forwarded,
}

/// What nodes say to each other about lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum Message {
    /// Requester to home (class request): wants to read.
    Read { line: LineAddress, frame: Frame, ticket: Ticket },
    /// Requester to home (class request): wants to write; `held` is its shared grant, if any. It overwrites
    /// the first `covers` bytes.
    Write { line: LineAddress, frame: Frame, ticket: Ticket, held: Option<Grant>, covers: u32 },
    /// Holder to home (class request): a clean copy is gone already, and this acknowledges a recall of
    /// it that is on its way; a dirty one asks to be recalled.
    Evict { line: LineAddress, grant: Grant, dirty: bool },
    /// Holder to home (class request): wants the home to have the line's bytes.
    WriteBack { line: LineAddress, ticket: Ticket },
    /// Home to holder (class forward): give the line up down to `down_to`; the bytes of a dirty line
    /// go to `forward` as its `Data`, and to the home's memory when `down_to` is `Shared` or there is
    /// no `forward`.
    Recall { line: LineAddress, grant: Grant, down_to: Level, forward: Option<Requester> },
    /// Home to requester (class reply): yes.
    Grant {
        line: LineAddress,
        ticket: Ticket,
        grant: Grant,
        level: Level,
        supply: Supply,
        extent: Extent,
    },
    /// Home to holder (class reply): it has the bytes, those of every write that the holder performed before it
    /// sent the `WriteBack` among them.
    Written { line: LineAddress, ticket: Ticket },
    /// Home to requester (class reply): no. `supplier` is the dead owner that the request had been
    /// forwarded to: its bytes may still be on their way into the frame.
    Refuse { line: LineAddress, ticket: Ticket, code: ErrorCode, supplier: Option<NodeId> },
    /// Owner to requester (class reply): the bytes are in your frame.
    Data { line: LineAddress, ticket: Ticket },
    /// Holder to home (class reply): the recall of `grant` is done; `left` is what the holder keeps.
    Ack { line: LineAddress, grant: Grant, had: Had, left: Level },
}

/// What the runtime's tags say of the line that an event is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Here {
    /// For a line homed elsewhere: what this node holds. For an own line: ignored.
    pub held: Held,
    /// For an own line: its allocation; `None` when it lies in none. For others: ignored.
    pub extent: Option<Extent>,
}

/// What happens to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum Event {
    /// An operation of this node found the tag insufficient. `frame` is its line's frame (reserved by
    /// the runtime; any value for an own line). With `pin`, no other node gets the line between
    /// `Ready` and `Unpin`; when its home dies it falls to `Invalid` all the same, but keeps its frame.
    /// Operations on one line become ready in the order of issue.
    Issue {
        operation: OperationId,
        line: LineAddress,
        want: Want,
        pin: bool,
        frame: Frame,
        here: Here,
    },
    /// The caller of this operation has gone. `Fail` with `TimedOut` follows at once, and what was
    /// asked of others for it continues; ignored when it has its result already.
    Cancel { operation: OperationId, line: LineAddress, here: Here },
    /// A pinned operation is done with its line.
    Unpin { line: LineAddress, here: Here },
    /// The runtime wants the frame of a line homed elsewhere; `Release` follows at once for a clean
    /// copy and after a recall for a dirty one. Ignored for a line with work under way.
    Evict { line: LineAddress, here: Here },
    /// The home of a line homed elsewhere shall have its bytes: this node's level falls to `Shared`. With an
    /// operation, `Ready` follows when it has them, for a line at any level. Without one nothing follows, and the
    /// event is ignored for a line that this node does not own or that is on its way home already.
    WriteBack { operation: Option<OperationId>, line: LineAddress, here: Here },
    /// No operation keeps a line of another home at this node any more.
    DropPins,
    /// The owner of the allocation frees this own line; `Ready` follows when nobody holds it any more
    /// and every request for it is refused from now on.
    Retire { operation: OperationId, line: LineAddress, here: Here },
    /// A message.
    Received { from: NodeId, message: Message, here: Here },
    /// The bytes of the oldest `Place` of this line have landed, or their target is dead.
    Placed { line: LineAddress, here: Here },
    /// Bytes that this node, of which `NodeDead` follows, had begun to write may still land here: it was
    /// removed, and its thread may be stopped within a copy. No lost line is healed until it is quiet.
    Lingers { node: NodeId },
    /// Nothing of a node that lingered lands here any more.
    Quiet { node: NodeId },
    /// A node is dead. Its link is closed: nothing that it sent or placed arrives after this, unless it lingers.
    NodeDead { node: NodeId },
    /// A new node has this number. If a dead one had it, `Settled` has come for that one.
    NodeAdmitted { node: NodeId },
    /// Every living node has had `NodeDead` of this node, and what it sent before has arrived here.
    /// Not to be said while any node lingers.
    /// Frees frames that an owner might have been asked to fill by a home that died; a runtime that
    /// never says so loses as many frames as it had requests under way to that home.
    Settled { node: NodeId },
}

/// Where a `Place` puts a line's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Target {
    /// The other node's frame.
    Frame(Frame),
    /// The other node's own memory: it is the line's home.
    Home,
}

/// What the machine wants done, in this order, at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
pub enum Effect {
    /// Send a message.
    Send { to: NodeId, message: Message },
    /// Put the line's bytes (from its frame, or from this node's memory for an own line) into `to`'s
    /// memory and then, on the same link, send the message. `Placed` follows; the bytes must not
    /// change until then, and they do not: the level was lowered by an effect before.
    Place { line: LineAddress, to: NodeId, target: Target, message: Message },
    /// Set the line's tag. Waits for a copy under way on another thread. `extent` comes with the
    /// first grant of a line homed elsewhere.
    SetLevel { line: LineAddress, held: Held, extent: Option<Extent> },
    /// The frame of a line homed elsewhere is free.
    Release { line: LineAddress },
    /// Put the operation's bytes into the line, which nothing reads or writes at `Invalid`, and zeros behind them.
    /// Its `Ready` follows.
    Fill { operation: OperationId, line: LineAddress },
    /// Perform the operation now: the line is at the level it wants.
    Ready { operation: OperationId, line: LineAddress },
    /// The operation cannot be: `Unallocated`, `LineLost`, `NodeLost`.
    Fail { operation: OperationId, line: LineAddress, code: ErrorCode },
    /// Drop every frame at `Shared` or `Dirty` of lines homed at this dead node. Those at `Invalid` are
    /// in use (bytes on their way in or out, or a pin): a `Release` frees each.
    DropHome { node: NodeId },
}

/// Collects effects; reuse it, so that a step allocates nothing.
pub type Effects = Vec<Effect>;

/// The outcome of a step: `Err` when a peer broke the protocol. Nothing was changed then.
pub type Step = Result<(), Violation>;

impl Want {
    /// The lowest level that suffices.
    pub const fn level(self) -> Level {
        match self {
            Self::Read => Level::Shared,
            Self::Write | Self::Overwrite { .. } => Level::Dirty,
        }
    }

    /// How many bytes from the line's start it overwrites.
    pub(super) const fn covers(self) -> u32 {
        match self {
            Self::Overwrite { covers, .. } => covers,
            Self::Read | Self::Write => 0,
        }
    }

    /// Whether it overwrites all of a line with this extent, and nothing beyond it: a write that is out of bounds is
    /// refused, and may not change the line before.
    pub(super) fn heals(self, extent: Extent) -> bool {
        match self {
            Self::Overwrite { covers, continues } => {
                covers == extent.bytes && !(continues && extent.first)
            }
            Self::Read | Self::Write => false,
        }
    }
}

/// In place of an operation that was cancelled while a request for it is in flight.
const CANCELLED: OperationId = OperationId(u64::MAX);

/// What both roles share during one step.
struct Context<'a> {
    me: NodeId,
    dead: &'a NodeSet,
    /// Dead nodes whose bytes may still land.
    lingering: &'a NodeSet,
    effects: &'a mut Effects,
    counters: &'a mut Counters,
    canary: canary::Canary,
}

impl Context<'_> {
    /// Whether nothing that this node writes arrives any more.
    fn is_quiet(&self, node: NodeId) -> bool {
        self.dead.contains(node) && !self.lingering.contains(node)
    }

    fn send(&mut self, to: NodeId, message: Message) {
        self.effects.push(Effect::Send { to, message });
    }

    fn fail(&mut self, operation: OperationId, line: LineAddress, code: ErrorCode) {
        if operation != CANCELLED {
            self.effects.push(Effect::Fail { operation, line, code });
        }
    }

    fn ready(&mut self, operation: OperationId, line: LineAddress) {
        if operation != CANCELLED {
            self.effects.push(Effect::Ready { operation, line });
        }
    }
}
