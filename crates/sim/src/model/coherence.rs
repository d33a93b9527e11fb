//! The model of coherence: the machines of a few nodes, a network with no more than the guaranteed order,
//! and the runtime's part of the contract (tags, frames, bytes).
//!
//! Messages are ordered per (source, destination, class) only. The bytes of a
//! `Place` land between its posting and the delivery of its message; `Placed` is reported at
//! any time after the posting. Bytes are version numbers: each write creates a new one.
//!
//! With [`Lingers`] dead nodes are removed while they are stopped: of the bytes that such a node was writing
//! into another node's memory when that node learned of the removal, a prefix lands at any later time.
//!
//! Properties of every state:
//! - a readable copy has the latest version, and a writable copy is the only one (so every read returns
//!   the latest write);
//! - bytes in flight do not change at their source, and land only in a frame that is reserved for them at
//!   `Invalid`; no frame is freed while bytes are in flight from or to it;
//! - a pinned line does not change; operations on a line become ready in the order of issue;
//! - no machine reports a violation by a peer, and its invariants hold;
//! - when a write-back is answered, the home has every write that the node performed before it requested it;
//! - a lost line gets its bytes from an operation that overwrites it, while it cannot be read;
//! - a home that logs places and shares only what is durable, logs bytes that do not change meanwhile, has logged what it
//!   answers as written back, and never loses a line;
//! - when nothing is in flight, no operation waits, no machine is busy, and each directory
//!   agrees with the tags.

mod actions;
mod direct_reads;
mod leave;
mod properties;
mod runtime;

#[cfg(canary)]
pub use direct_reads::DirectReadMutant;
pub use direct_reads::{DirectReadAction, DirectReadSetup, Reuse};

use crate::explorer::{Model, Violation};
use direct_reads::DirectReads;
use farside_base::{GlobalAddress, Grant, Limits, LineAddress, LineSize, NodeId, OperationId};
use farside_protocol::coherence::{
    Coherence, CoherenceMessage, Extent, HeldLine, Here, Level, PlacementTarget, Want,
};
use farside_protocol::wire::Class;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

#[cfg(canary)]
use farside_protocol::coherence::CoherenceMutant;

/// A version that must not be read.
const JUNK: u8 = u8::MAX;

/// Bytes of a line.
const LINE_BYTES: u32 = LineSize::DEFAULT.bytes() as u32;

/// Number of operations of each kind that a node may start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// Reads that miss.
    pub reads: u8,
    /// Writes, missing or not.
    pub writes: u8,
    /// A read, then a write, with the line pinned in between.
    pub updates: u8,
    /// A read, with the line pinned afterwards.
    pub holds: u8,
    /// Evictions.
    pub evictions: u8,
}

/// Whether bytes in flight from removed nodes land after the removal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Lingers {
    /// They do not land.
    #[default]
    Never,
    /// They land, and the machines allow for it.
    Told,
    /// They land, and the machines do not allow for it: a defect.
    Untold,
    /// They land, the machines allow for it, and the removed node's number is reused meanwhile: a defect.
    Renumbered,
}

/// Parameters of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct CoherenceSetup {
    /// The home of each line.
    pub homes: Vec<u16>,
    /// The operations of each node.
    pub budgets: Vec<Budget>,
    /// Maximum number of frees.
    pub retires: u8,
    /// Maximum number of allocations of freed lines.
    pub allocations: u8,
    /// Maximum number of cancellations of waiting operations.
    pub cancels: u8,
    /// Maximum number of background write-backs of owned lines.
    pub write_backs: u8,
    /// Maximum number of write-back operations.
    pub flushes: u8,
    /// Maximum number of writes of whole lines.
    pub overwrites: u8,
    /// Nodes that may die.
    pub mortal: Vec<u16>,
    /// Maximum number of deaths.
    pub deaths: u8,
    /// Whether bytes that they were writing may land after their removal.
    pub lingers: Lingers,
    /// Maximum number of reuses of the number of a dead node that is home of no line.
    pub reuses: u8,
    /// A number is reused while recalls that name its last bearer are in flight: `Burials` prevents this by sweeping
    /// the classes of recalls and replies.
    pub ignores_recalls: bool,
    /// Last grant of each home before the start.
    pub last_grant: u64,
    /// Whether the homes log their lines.
    pub logs: bool,
    /// Direct reads, and with them the steps of a read, a write, a landing, a free and an allocation.
    pub direct: DirectReadSetup,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CoherenceAction {
    /// The next message of a class from one node to another arrives.
    Deliver(u16, u16, Class),
    /// The node learns that the bytes of its oldest place of the line have landed.
    Placed(u16, u8),
    /// An operation begins.
    Start(u16, u8, CoherenceOperation),
    /// A pinned operation ends.
    Finish(u16, u8),
    /// The oldest operation that waits for the line is cancelled.
    Cancel(u16, u8),
    /// The runtime reclaims a frame.
    Evict(u16, u8),
    /// The runtime writes back an owned line in the background.
    WriteBack(u16, u8),
    /// An operation requests that the home has the line's bytes.
    Flush(u16, u8),
    /// The record of a line is durable.
    Logged(u8),
    /// The line's home frees it.
    Retire(u8),
    /// The line's home allocates it again.
    Allocate(u8),
    /// A node dies.
    Die(u16),
    /// A node learns that another is dead.
    Notice(u16, u16),
    /// A node learns that all others know of the death.
    Settle(u16, u16),
    /// The last bytes of a removed node land at a node, which is notified.
    Quiet(u16, u16),
    /// All nodes have settled a death, and no message names the dead node: a new node gets its number.
    Reuse(u16),
    /// A step that has to do with direct reads.
    Direct(DirectReadAction),
}

/// A kind of operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CoherenceOperation {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Write the whole line.
    Overwrite,
    /// Read, then write, pinned in between.
    Update,
    /// Read twice, pinned in between.
    Hold,
    /// Free.
    Retire,
}

impl CoherenceOperation {
    const fn want(self) -> Want {
        match self {
            Self::Read | Self::Hold => Want::Read,
            Self::Write | Self::Update | Self::Retire => Want::Write,
            Self::Overwrite => Want::Overwrite { covers: LINE_BYTES, continues: false },
        }
    }

    const fn pins(self) -> bool {
        matches!(self, Self::Update | Self::Hold)
    }
}

/// A node's tag, frame and bytes of a line; at its home, its memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Tag {
    held: HeldLine,
    reserved: bool,
    value: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Operation {
    id: OperationId,
    line: u8,
    kind: CoherenceOperation,
    /// Of a pinned operation: the bytes at its `Ready`. Of a write-back: the node's last write at its start.
    seen: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct CoherenceNode {
    machine: Coherence,
    alive: bool,
    /// Known deaths, as bits.
    noticed: u8,
    tags: Vec<Tag>,
    waiting: Vec<Operation>,
    pinned: Vec<Operation>,
    flushing: Vec<Operation>,
    /// Its last write of each line; kept only with write-back operations.
    wrote: Vec<u8>,
    started: u8,
    budget: Budget,
}

/// A message in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct MessageInFlight {
    from: u16,
    to: u16,
    message: CoherenceMessage,
    /// Bytes that have not landed yet.
    bytes: Option<(PlacementTarget, u8)>,
}

impl MessageInFlight {
    const fn link(&self) -> (u16, u16, u8) {
        (self.from, self.to, self.message.class() as u8)
    }
}

/// Bytes of a line whose landing has not been reported to `from` yet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct UnlandedWrite {
    from: u16,
    line: u8,
    to: u16,
}

/// Bytes that a removed node was writing, and that have not landed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Late {
    from: u16,
    to: u16,
    line: u8,
    target: PlacementTarget,
}

/// The global state of a line, as seen by an observer of all nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Truth {
    latest: u8,
    allocated: bool,
    retiring: bool,
    /// The highest version so far: that of a dead owner may be taken back.
    highest: u8,
    /// The version that is durable.
    durable: u8,
    /// The version that is being logged.
    logging: Option<u8>,
}

/// A state of the model.
#[derive(Clone, Debug)]
pub struct System {
    setup: Rc<CoherenceSetup>,
    nodes: Vec<CoherenceNode>,
    /// Messages in flight, by link, in order of sending.
    flights: Vec<MessageInFlight>,
    /// Placements in flight, by source, in order of posting.
    places: Vec<UnlandedWrite>,
    late: Vec<Late>,
    truths: Vec<Truth>,
    retires: u8,
    allocations: u8,
    cancels: u8,
    write_backs: u8,
    flushes: u8,
    overwrites: u8,
    deaths: u8,
    reuses: u8,
    /// Nodes that have left, as bits.
    left: u8,
    direct: DirectReads,
    wrong: Option<String>,
    /// The trace of events, if enabled.
    log: Option<Vec<String>>,
}

impl System {
    /// Creates the initial state: no copies, every line allocated, at version 0.
    pub fn new(setup: CoherenceSetup) -> Self {
        Self::with_machines(setup, |node| Coherence::new(node, &limits()))
    }

    /// As `new`, with a defect in every machine.
    #[cfg(canary)]
    pub fn with_mutant(setup: CoherenceSetup, mutant: CoherenceMutant) -> Self {
        Self::with_machines(setup, |node| Coherence::with_mutant(node, &limits(), mutant))
    }

    /// As `new`, with a defect of direct reads.
    #[cfg(canary)]
    pub fn with_read_mutant(setup: CoherenceSetup, mutant: DirectReadMutant) -> Self {
        let mut system = Self::new(setup);
        system.direct.mutant = farside_base::Planted::new(mutant);
        system
    }

    fn with_machines(setup: CoherenceSetup, machine: impl Fn(NodeId) -> Coherence) -> Self {
        let continued = |number: usize| {
            let mut machine = machine(NodeId(number as u16));
            machine.continue_grants(Grant(setup.last_grant));
            if setup.logs { machine.with_log() } else { machine }
        };
        let node = |number: usize| CoherenceNode {
            machine: continued(number),
            alive: true,
            noticed: 0,
            tags: setup
                .homes
                .iter()
                .map(|home| Tag::first(usize::from(*home) == number, setup.logs))
                .collect(),
            waiting: Vec::new(),
            pinned: Vec::new(),
            flushing: Vec::new(),
            wrote: vec![0; setup.homes.len()],
            started: 0,
            budget: setup.budgets[number],
        };
        let truth = Truth {
            latest: 0,
            allocated: true,
            retiring: false,
            highest: 0,
            durable: 0,
            logging: None,
        };
        Self {
            nodes: (0..setup.budgets.len()).map(node).collect(),
            flights: Vec::new(),
            places: Vec::new(),
            late: Vec::new(),
            truths: vec![truth; setup.homes.len()],
            retires: setup.retires,
            allocations: setup.allocations,
            cancels: setup.cancels,
            write_backs: setup.write_backs,
            flushes: setup.flushes,
            overwrites: setup.overwrites,
            deaths: setup.deaths,
            reuses: setup.reuses,
            left: 0,
            direct: DirectReads::new(&setup.direct, setup.homes.len()),
            wrong: None,
            log: None,
            setup: Rc::new(setup),
        }
    }

    fn wrong(&mut self, what: impl Into<String>) {
        self.wrong.get_or_insert_with(|| what.into());
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(line());
        }
    }

    fn address(&self, line: u8) -> LineAddress {
        let home = NodeId(self.setup.homes[usize::from(line)]);
        let offset = u64::from(line) * LineSize::DEFAULT.bytes() as u64;
        GlobalAddress::new(home, LineSize::DEFAULT, offset).expect("a small offset").line()
    }

    fn line(address: LineAddress) -> u8 {
        (address.offset() / LineSize::DEFAULT.bytes() as u64) as u8
    }

    fn home(&self, line: u8) -> u16 {
        self.setup.homes[usize::from(line)]
    }

    fn node(&self, node: u16) -> &CoherenceNode {
        &self.nodes[usize::from(node)]
    }

    fn node_mut(&mut self, node: u16) -> &mut CoherenceNode {
        &mut self.nodes[usize::from(node)]
    }

    fn tag(&self, node: u16, line: u8) -> &Tag {
        &self.node(node).tags[usize::from(line)]
    }

    fn tag_mut(&mut self, node: u16, line: u8) -> &mut Tag {
        &mut self.node_mut(node).tags[usize::from(line)]
    }

    fn truth(&mut self, line: u8) -> &mut Truth {
        &mut self.truths[usize::from(line)]
    }

    fn here(&self, node: u16, line: u8) -> Here {
        let allocated = self.truths[usize::from(line)].allocated;
        let extent = Extent { first: true, bytes: LINE_BYTES };
        Here {
            held: self.tag(node, line).held,
            extent: (allocated && self.home(line) == node).then_some(extent),
        }
    }

    /// The remaining budgets of steps.
    const fn budgets(&self) -> [u8; 8] {
        [
            self.retires,
            self.allocations,
            self.cancels,
            self.write_backs,
            self.flushes,
            self.overwrites,
            self.deaths,
            self.reuses,
        ]
    }

    fn alive(&self) -> impl Iterator<Item = (u16, &CoherenceNode)> {
        (0..).zip(&self.nodes).filter(|(_, node)| node.alive)
    }
}

impl Tag {
    /// The same at the start; a home that logs writes no line at rest.
    fn first(own: bool, logs: bool) -> Self {
        let mut tag = Self::new(own);
        if logs {
            tag.held.level = tag.held.level.min(Level::Shared);
        }
        tag
    }

    /// The state of a home's own line, or of a line that a node holds nothing of.
    fn new(own: bool) -> Self {
        let level = if own { Level::Dirty } else { Level::Invalid };
        Self {
            held: HeldLine { level, ..HeldLine::default() },
            reserved: false,
            value: if own { 0 } else { JUNK },
        }
    }
}

/// Small tables, so that states are small; the machines grow them on demand.
const fn limits() -> Limits {
    Limits { operations_max: 0, nodes_max: 8, ..Limits::TINY }
}

impl Model for System {
    type Action = CoherenceAction;

    fn enabled(&self) -> Vec<CoherenceAction> {
        let mut actions = Vec::new();
        self.enabled_internal(&mut actions);
        self.enabled_external(&mut actions);
        self.drop_waiting(&mut actions);
        actions
    }

    fn apply(&mut self, action: CoherenceAction) {
        match action {
            CoherenceAction::Deliver(from, to, class) => self.deliver(from, to, class),
            CoherenceAction::Placed(node, line) => self.placed(node, line),
            CoherenceAction::Start(node, line, kind) => self.start(node, line, kind),
            CoherenceAction::Finish(node, line) => self.finish(node, line),
            CoherenceAction::Cancel(node, line) => self.cancel(node, line),
            CoherenceAction::Evict(node, line) => self.evict(node, line),
            CoherenceAction::WriteBack(node, line) => self.write_back(node, line),
            CoherenceAction::Flush(node, line) => self.flush(node, line),
            CoherenceAction::Logged(line) => self.logged(line),
            CoherenceAction::Retire(line) => {
                self.start(self.home(line), line, CoherenceOperation::Retire)
            }
            CoherenceAction::Allocate(line) => self.allocate(line),
            CoherenceAction::Die(node) => self.die(node),
            CoherenceAction::Notice(node, dead) => self.notice(node, dead),
            CoherenceAction::Settle(node, dead) => self.settle(node, dead),
            CoherenceAction::Quiet(node, dead) => self.quiet(node, dead),
            CoherenceAction::Reuse(node) => self.reuse(node),
            CoherenceAction::Direct(action) => self.apply_direct(action),
        }
    }

    fn violation(&self) -> Option<Violation> {
        let mut found = self.state_violation().map(|violation| violation.0);
        if found.is_none() {
            let mut internal = Vec::new();
            self.enabled_internal(&mut internal);
            if internal.is_empty() {
                found = self.rest_violation();
            }
        }
        found.map(Violation)
    }

    fn narrate(&mut self, action: CoherenceAction, lines: &mut Vec<String>) {
        self.log = Some(Vec::new());
        self.apply(action);
        lines.append(&mut self.log.take().unwrap_or_default());
    }
}

impl PartialEq for System {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes
            && self.flights == other.flights
            && self.places == other.places
            && self.late == other.late
            && self.truths == other.truths
            && self.budgets() == other.budgets()
            && self.left == other.left
            && self.direct == other.direct
            && self.wrong == other.wrong
    }
}

impl Eq for System {}

impl Hash for System {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nodes.hash(state);
        self.flights.hash(state);
        self.places.hash(state);
        self.late.hash(state);
        self.truths.hash(state);
        (self.budgets(), self.left).hash(state);
        self.direct.hash(state);
        self.wrong.hash(state);
    }
}
