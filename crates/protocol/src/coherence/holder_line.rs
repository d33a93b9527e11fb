//! One line of a holder: operations of this node on a line of another home, and the recalls of that home.
//!
//! A line at rest has no entry: its tag is its whole state. An entry exists while at least one of these is pending:
//!
//! | field | pending | ends by |
//! | --- | --- | --- |
//! | `waiting` | operations, in the order of issue | `Ready`, `Fail` |
//! | `asked` | one request to the home | `Grant` (and `Data`), `Refuse` |
//! | `recall` | a recall that waits for a grant or a pin | `Ack` |
//! | `pins` | operations that keep the line unchanged | `Unpin` |
//! | `places` | WRITEs of the line's bytes to other nodes in flight | `Placed` |
//! | `evicting` | an owned line that the home was asked to recall | the recall |
//! | `write_back` | a write-back requested from the home | `Written`, `Refuse` |
//! | `flushing` | operations that wait until the home has the bytes | `Ready`, `Fail` |
//! | `stray` | bytes that may still arrive in the frame, for a request that has ended | `Data`, `Settled`, `Quiet` |
//! | `lost` | an ownership whose bytes were lost with the node that had them | the recall |

use super::canary::mutant;
use super::{
    CANCELLED, CoherenceEffect, CoherenceMessage, Extent, Frame, Had, HeldLine, Level,
    PlacementTarget, Requester, Step, StepContext, Supply, Want,
};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{ErrorCode, Grant, LineAddress, NodeId, OperationId, Ticket};

/// The usual maximum of operations that wait for one line.
const WAITING: usize = 4;

/// A line in transition.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct HolderWork {
    /// The line's tag.
    pub(super) held: HeldLine,
    pub(super) frame: Frame,
    pub(super) waiting: VecDeque<WaitingOperation>,
    pub(super) asked: Option<OutstandingRequest>,
    pub(super) recall: Option<Recall>,
    pub(super) pins: u32,
    places: u32,
    pub(super) evicting: bool,
    pub(super) write_back: Option<Ticket>,
    flushing: Vec<OperationId>,
    pub(super) stray: Option<Stray>,
    lost: Option<Grant>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct WaitingOperation {
    pub(super) operation: OperationId,
    pub(super) want: Want,
    pub(super) pin: bool,
}

/// A request in flight; complete when granted and supplied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct OutstandingRequest {
    pub(super) ticket: Ticket,
    want: Want,
    covers: u32,
    pub(super) granted: Option<Granted>,
    /// The owner that has sent the bytes, if one has.
    data: Option<NodeId>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Granted {
    pub(super) held: HeldLine,
    pub(super) supply: Supply,
    pub(super) extent: Extent,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Recall {
    pub(super) grant: Grant,
    pub(super) down_to: Level,
    pub(super) forward: Option<Requester>,
}

/// Bytes that may still arrive for a request that has ended without them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Stray {
    ticket: Ticket,
    /// Their sender, if known.
    from: Option<NodeId>,
}

impl HolderWork {
    /// Creates an entry with capacity for a few waiting operations, so that a recycled one does not grow later.
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(WAITING), ..Self::default() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_idle_but_for_stray() && self.stray.is_none()
    }

    fn is_idle_but_for_stray(&self) -> bool {
        self.waiting.is_empty()
            && self.asked.is_none()
            && self.recall.is_none()
            && self.pins == 0
            && self.places == 0
            && !self.evicting
            && self.write_back.is_none()
            && self.lost.is_none()
    }

    /// Whether pending work of the line refers to this node. `home` is the line's.
    pub(super) fn names(&self, node: NodeId, home: NodeId) -> bool {
        let asked = self.asked.is_some_and(|asked| {
            let supply = asked.granted.map(|granted| granted.supply);
            home == node || asked.data == Some(node) || supply == Some(Supply::Owner(node))
        });
        let forward = self.recall.and_then(|recall| recall.forward);
        let stray = self.stray.is_some_and(|stray| home == node || stray.from == Some(node));
        let written = home == node && self.write_back.is_some();
        asked || stray || written || forward.is_some_and(|to| to.node == node)
    }

    /// Whether an owned line is about to be recalled, or a write-back to its home was requested.
    pub(super) fn goes_home(&self) -> bool {
        self.evicting || self.write_back.is_some() || self.recall.is_some()
    }

    /// Whether a message is still to be sent or to arrive for an operation, a recall or an eviction. Bytes that may
    /// still arrive in the frame of a request that has ended do not count.
    pub(super) fn holds_work(&self) -> bool {
        !self.is_idle_but_for_stray()
    }

    /// Whether a grant that is not held may be in flight, or lost in flight.
    pub(super) fn may_get(&self, grant: Grant) -> bool {
        self.asked.is_some() || self.lost == Some(grant)
    }

    /// Checks whether a recall of a grant that is not held can refer to the requested one. Grants rise, so an older
    /// one that waited was for a former grant. Of one grant only a recall that a write-back crossed precedes another.
    pub(super) fn check_early(&self, recall: Recall) -> Step {
        let precedes = |other: &Recall| {
            let crossed = other.down_to == Level::Shared && recall.down_to == Level::Invalid;
            other.grant < recall.grant || other.grant == recall.grant && crossed
        };
        if self.recall.is_some_and(|other| !precedes(&other)) {
            return Err(Violation("a second recall of one grant"));
        }
        match self.asked.and_then(|asked| asked.granted) {
            Some(granted) if granted.held.grant < recall.grant => {
                Err(Violation("a recall of a grant that was never made"))
            }
            Some(granted) if granted.held.grant == recall.grant => {
                granted.held.check_recall(recall)
            }
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn check_grant(&self, ticket: Ticket, granted: Granted) -> Step {
        let Some(asked) = self.asked else {
            return Err(Violation("a grant that was not requested"));
        };
        if asked.ticket != ticket || asked.granted.is_some() {
            return Err(Violation("a grant that was not requested"));
        }
        if granted.held.level < asked.want.level() {
            return Err(Violation("a grant of less than was asked for"));
        }
        match granted.supply {
            Supply::Held if self.held.level != Level::Shared => {
                return Err(Violation("an upgrade of a copy that is gone"));
            }
            Supply::Owner(owner) if asked.data.is_some_and(|from| from != owner) => {
                return Err(Violation("bytes came from another node than the owner"));
            }
            Supply::Nothing if self.held.level != Level::Invalid => {
                return Err(Violation("a lost line of which there is a copy"));
            }
            Supply::Held | Supply::Home | Supply::Nothing if asked.data.is_some() => {
                return Err(Violation("bytes from an owner that does not exist"));
            }
            Supply::Held | Supply::Home | Supply::Owner(_) | Supply::Nothing => {}
        }
        match self.recall {
            Some(recall) if recall.grant > granted.held.grant => {
                Err(Violation("a recall of a grant that was never made"))
            }
            Some(recall) if recall.grant == granted.held.grant => granted.held.check_recall(recall),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn awaits_data(&self, ticket: Ticket, from: NodeId) -> bool {
        self.asked.is_some_and(|asked| {
            let from_owner = |granted: Granted| granted.supply == Supply::Owner(from);
            asked.ticket == ticket && asked.data.is_none() && asked.granted.is_none_or(from_owner)
        })
    }

    pub(super) fn awaits_stray(&self, ticket: Ticket, from: NodeId) -> bool {
        self.stray.is_some_and(|stray| {
            stray.ticket == ticket && stray.from.is_none_or(|node| node == from)
        })
    }

    /// The sender of bytes that may still arrive for a request that has ended: `Some(None)` if unknown, `None` if
    /// there are none.
    pub(super) fn stray_from(&self) -> Option<Option<NodeId>> {
        self.stray.map(|stray| stray.from)
    }

    pub(super) fn invariants(&self) -> Result<(), &'static str> {
        if self.is_idle() {
            return Err("a line at rest is kept as in transition");
        }
        if self.asked.is_some() && self.waiting.is_empty() {
            return Err("a request for no operation");
        }
        if self.asked.is_some() && (self.places > 0 || self.stray.is_some()) {
            return Err("a request for bytes into a frame that is in use");
        }
        if self.asked.is_some() && self.held.level == Level::Dirty {
            return Err("a request for a line that is owned");
        }
        if self.places > 0 && self.held.level == Level::Dirty {
            return Err("a line may be written while its bytes are on their way");
        }
        if self.evicting && self.held.level != Level::Dirty {
            return Err("a line that is not owned waits for its eviction");
        }
        if self.write_back.is_none() && !self.flushing.is_empty() {
            return Err("operations wait for a write-back that was not asked for");
        }
        if self.lost.is_some() && self.held.level != Level::Invalid {
            return Err("a lost line may be read");
        }
        let hindered = self.recall.is_some() || self.places > 0 || self.stray.is_some();
        let blocked = hindered || self.lost.is_some();
        if !self.waiting.is_empty() && self.asked.is_none() && !blocked {
            return Err("operations wait for nothing");
        }
        if self.recall.is_some() && self.asked.is_none() && self.pins == 0 {
            return Err("a recall waits for nothing");
        }
        Ok(())
    }
}

impl HeldLine {
    /// Checks whether a home that made this grant can send this recall of it.
    pub(super) fn check_recall(self, recall: Recall) -> Step {
        let shared = self.level == Level::Shared;
        if shared && (recall.down_to == Level::Shared || recall.forward.is_some()) {
            return Err(Violation("a recall of a sharer as if it were the owner"));
        }
        Ok(())
    }
}

/// One line during one step.
pub(super) struct HolderStep<'a, 'b> {
    pub(super) line: LineAddress,
    pub(super) state: &'a mut HolderWork,
    pub(super) last_ticket: &'a mut Ticket,
    pub(super) context: &'a mut StepContext<'b>,
}

impl HolderStep<'_, '_> {
    /// Performs everything that is no longer blocked: ready operations, then a recall, then the next request.
    pub(super) fn go_on(&mut self) {
        if self.state.recall.is_none() {
            self.serve();
        }
        self.obey();
        self.ask();
    }

    pub(super) fn issue(&mut self, waiting: WaitingOperation) {
        let home = self.line.home();
        if self.context.dead.contains(home) {
            return self.context.fail(waiting.operation, self.line, ErrorCode::NodeLost);
        }
        if self.state.lost.is_some() && waiting.want.covers() == 0 {
            return self.context.fail(waiting.operation, self.line, ErrorCode::LineLost);
        }
        if self.state.asked.is_some() {
            self.context.counters.operations_merged += 1;
        }
        self.state.waiting.push_back(waiting);
    }

    /// Cancels an operation. A request that was sent for it alone continues without one.
    pub(super) fn cancel(&mut self, operation: OperationId) {
        if let Some(place) = self.state.flushing.iter().position(|other| *other == operation) {
            self.state.flushing.remove(place);
            return self.context.fail(operation, self.line, ErrorCode::TimedOut);
        }
        let mut waiting = self.state.waiting.iter();
        let Some(place) = waiting.position(|waiting| waiting.operation == operation) else {
            return;
        };
        self.state.waiting.remove(place);
        if let Some(OutstandingRequest { want, .. }) = self.state.asked
            && self.state.waiting.iter().all(|other| other.want.level() < want.level())
        {
            let cancelled = WaitingOperation { operation: CANCELLED, want, pin: false };
            self.state.waiting.insert(place, cancelled);
        }
        self.context.fail(operation, self.line, ErrorCode::TimedOut);
    }

    /// Completes the first waiting operations for which the level suffices.
    fn serve(&mut self) {
        let line = self.line;
        while let Some(next) = self.state.waiting.front().copied() {
            let early = mutant!(self.context, EarlyWrite) && self.state.held.level == Level::Shared;
            if self.state.held.level < next.want.level() && !early {
                break;
            }
            self.context.ready(next.operation, line);
            self.state.pins += u32::from(next.pin);
            if mutant!(self.context, PerformedTwice) && self.state.recall.is_some() {
                break;
            }
            self.state.waiting.pop_front();
        }
    }

    /// Sends the next request, if operations wait and nothing blocks it.
    fn ask(&mut self) {
        let removed = |node| self.context.dead.contains(node);
        if self.state.stray_from().flatten().is_some_and(removed) {
            // How long the frame will be in quarantine is unknown.
            return self.fail_all(ErrorCode::NodeLost);
        }
        let state = &mut *self.state;
        let hindered = state.asked.is_some()
            || state.lost.is_some()
            || state.recall.is_some()
            || state.places > 0
            || state.stray.is_some();
        if state.waiting.is_empty() || hindered {
            return;
        }
        let writes = |waiting: &WaitingOperation| waiting.want != Want::Read;
        let wants_write = state.waiting.front().is_some_and(writes)
            || (state.waiting.len() > 1 && state.waiting.iter().any(writes));
        let (line, frame) = (self.line, state.frame);
        self.last_ticket.0 += 1;
        let ticket = *self.last_ticket;
        let (want, covers, message) = if wants_write {
            let shared = state.held.level == Level::Shared;
            let held = shared.then_some(state.held.grant);
            let covers =
                state.waiting.iter().map(|waiting| waiting.want.covers()).max().unwrap_or(0);
            self.context.counters.writes_requested += 1;
            self.context.counters.upgrades_requested += u64::from(shared);
            let message = CoherenceMessage::Write { line, frame, ticket, held, covers };
            (Want::Write, covers, message)
        } else {
            self.context.counters.reads_requested += 1;
            (Want::Read, 0, CoherenceMessage::Read { line, frame, ticket })
        };
        state.asked = Some(OutstandingRequest { ticket, want, covers, granted: None, data: None });
        self.context.send(line.home(), message);
    }

    /// Requests a write-back, unless one is outstanding: its answer is sent after the home has obtained the bytes of
    /// every write so far. An answer for a grant that follows arrives after that grant. An owned line goes with the
    /// request, unless it is pinned or about to be recalled.
    pub(super) fn write_back(&mut self, operation: Option<OperationId>) {
        let failure = if self.context.dead.contains(self.line.home()) {
            Some(ErrorCode::NodeLost)
        } else {
            self.state.lost.map(|_| ErrorCode::LineLost)
        };
        match (operation, failure) {
            (Some(operation), Some(code)) => return self.context.fail(operation, self.line, code),
            (Some(operation), None) => self.state.flushing.push(operation),
            (None, Some(_)) => return,
            (None, None) => {}
        }
        if self.state.write_back.is_some() {
            return;
        }
        self.last_ticket.0 += 1;
        let (line, ticket, held) = (self.line, *self.last_ticket, self.state.held);
        self.state.write_back = Some(ticket);
        let hindered = self.state.pins > 0 || self.state.recall.is_some() || self.state.evicting;
        if held.level < Level::Dirty || hindered {
            let message = CoherenceMessage::WriteBack { line, ticket, owned: None };
            return self.context.send(line.home(), message);
        }
        if !mutant!(self.context, WriteBackKeepsOwner) {
            self.set_level(Level::Shared, held.grant);
        }
        let message = CoherenceMessage::WriteBack { line, ticket, owned: Some(held.grant) };
        self.place(line.home(), PlacementTarget::Home, message);
    }

    pub(super) fn written(&mut self) {
        self.context.counters.write_backs += 1;
        self.state.write_back = None;
        let line = self.line;
        for operation in self.state.flushing.drain(..) {
            self.context.ready(operation, line);
        }
    }

    /// Handles a refused write-back.
    pub(super) fn not_written(&mut self, code: ErrorCode) {
        self.state.write_back = None;
        let line = self.line;
        for operation in self.state.flushing.drain(..) {
            self.context.fail(operation, line, code);
        }
    }

    pub(super) fn recalled(&mut self, recall: Recall) {
        if self.state.lost == Some(recall.grant) {
            self.state.lost = None;
            return self.acknowledge(recall.grant, Had::Nothing, Level::Invalid);
        }
        let is_shared = self.state.held == HeldLine { level: Level::Shared, grant: recall.grant };
        if is_shared && recall.down_to == Level::Shared {
            return; // the write-back that it crossed is the acknowledgement
        }
        let crosses = is_shared && self.state.write_back.is_some();
        if crosses && mutant!(self.context, CrossedRecallIgnored) {
            return;
        }
        self.state.recall = Some(recall);
        if !self.may_obey(recall) {
            self.context.counters.recalls_deferred += 1;
        }
    }

    /// Whether a recall can be obeyed: its grant is held, and no pin blocks it.
    fn may_obey(&self, recall: Recall) -> bool {
        let pinned = self.state.pins > 0 && !mutant!(self.context, PinIgnored);
        self.state.held.level > Level::Invalid && self.state.held.grant == recall.grant && !pinned
    }

    fn obey(&mut self) {
        let Some(recall) = self.state.recall else {
            return;
        };
        if !self.may_obey(recall) {
            return;
        }
        self.state.recall = None;
        self.context.counters.recalls_obeyed += 1;
        if self.state.held.level == Level::Shared {
            self.set_level(Level::Invalid, recall.grant);
            return self.acknowledge(recall.grant, Had::Clean, Level::Invalid);
        }
        let keeps = recall.down_to == Level::Shared && !self.state.evicting;
        let left = if keeps { Level::Shared } else { Level::Invalid };
        self.state.evicting = false;
        if !mutant!(self.context, LevelFallsAfterPlace) {
            self.set_level(left, recall.grant);
        }
        self.send_bytes(recall, left);
    }

    /// Sends the bytes of a line owned until now as the recall says: to the requester, the home, or both.
    fn send_bytes(&mut self, recall: Recall, left: Level) {
        let line = self.line;
        let alive = |to: &Requester| !self.context.dead.contains(to.node);
        let forward = recall.forward.filter(alive);
        if let Some(to) = forward {
            self.context.counters.lines_forwarded += 1;
            let ticket = to.ticket;
            self.place(
                to.node,
                PlacementTarget::Frame(to.frame),
                CoherenceMessage::Data { line, ticket },
            );
        }
        if forward.is_some() && recall.down_to == Level::Invalid {
            return self.acknowledge(recall.grant, Had::Forwarded, left);
        }
        let message = CoherenceMessage::Ack { line, grant: recall.grant, had: Had::Bytes, left };
        self.place(line.home(), PlacementTarget::Home, message);
    }

    pub(super) fn place(&mut self, to: NodeId, target: PlacementTarget, message: CoherenceMessage) {
        let counted = !mutant!(self.context, FrameFreedEarly);
        self.state.places += u32::from(counted);
        self.context.effects.push(CoherenceEffect::Place { line: self.line, to, target, message });
    }

    fn acknowledge(&mut self, grant: Grant, had: Had, left: Level) {
        let message = CoherenceMessage::Ack { line: self.line, grant, had, left };
        self.context.send(self.line.home(), message);
    }

    pub(super) fn placed(&mut self) {
        self.state.places = self.state.places.saturating_sub(1);
        if mutant!(self.context, LevelFallsAfterPlace)
            && self.state.places == 0
            && self.state.held.level == Level::Dirty
        {
            self.set_level(Level::Invalid, self.state.held.grant);
        }
    }

    pub(super) fn supplied(&mut self, from: NodeId) {
        if let Some(asked) = &mut self.state.asked {
            asked.data = Some(from);
            let early = Granted {
                held: HeldLine { level: asked.want.level(), grant: Grant(0) },
                supply: Supply::Owner(from),
                extent: Extent { first: true, bytes: 1 },
            };
            if mutant!(self.context, DataIsEnough) {
                asked.granted.get_or_insert(early);
            }
        }
        self.complete();
    }

    /// Completes the request if it is granted and supplied; 004 §2.4.2 says why it needs both.
    pub(super) fn complete(&mut self) {
        let Some(OutstandingRequest { granted: Some(granted), data, .. }) = self.state.asked else {
            return;
        };
        if let Supply::Owner(owner) = granted.supply
            && data.is_none()
            && !mutant!(self.context, GrantIsEnough)
        {
            let awaited = mutant!(self.context, DeadSupplierAwaited);
            if self.context.dead.contains(owner) && !awaited {
                self.never_supplied(granted.held);
            }
            return;
        }
        if granted.supply == Supply::Nothing && !self.fill(granted.extent) {
            return self.never_supplied(granted.held);
        }
        self.state.asked = None;
        self.state.held = granted.held;
        self.context.effects.push(CoherenceEffect::SetLevel {
            line: self.line,
            held: granted.held,
            extent: Some(granted.extent),
        });
        self.forget_former_recall(granted.held.grant);
        self.serve();
    }

    /// Fills the line with the bytes of the first operation that overwrites all of it. False if no such operation is
    /// left, or those left are out of bounds. Earlier operations fail with `LineLost`.
    fn fill(&mut self, extent: Extent) -> bool {
        let part = mutant!(self.context, HealByPart);
        self.lose_all_before(|waiting| part || waiting.want.heals(extent));
        let (Some(first), line) = (self.state.waiting.front(), self.line) else {
            return false;
        };
        if !mutant!(self.context, HealReadsStale) {
            self.context.effects.push(CoherenceEffect::Fill { operation: first.operation, line });
        }
        true
    }

    /// Drops a waiting recall that is not for the new grant: it was for a former one, and that one's eviction has
    /// acknowledged it.
    fn forget_former_recall(&mut self, grant: Grant) {
        if self.state.recall.is_some_and(|recall| recall.grant != grant) {
            self.state.recall = None;
        }
    }

    /// Handles a granted line with a dead supplier. The home has the bytes of a shared line, so this one is returned
    /// and requested again; an owned one is lost.
    fn never_supplied(&mut self, held: HeldLine) {
        let (line, grant) = (self.line, held.grant);
        let dirty = held.level == Level::Dirty;
        if let Some(OutstandingRequest { ticket, granted: Some(granted), .. }) =
            self.state.asked.take()
            && let Supply::Owner(owner) = granted.supply
        {
            self.expect_stray(ticket, Some(owner));
        }
        self.forget_former_recall(grant);
        let had = if dirty { Had::Nothing } else { Had::Clean };
        if self.state.recall.take().is_some() {
            self.acknowledge(grant, had, Level::Invalid);
        } else {
            self.context.send(line.home(), CoherenceMessage::Evict { line, grant, dirty });
            self.state.lost = dirty.then_some(grant);
        }
        if dirty {
            self.lose_all_before(|waiting| waiting.want.covers() > 0);
        }
    }

    /// Fails waiting operations with `LineLost`, up to one that may heal the line.
    fn lose_all_before(&mut self, heals: impl Fn(&WaitingOperation) -> bool) {
        while self.state.waiting.front().is_some_and(|waiting| !heals(waiting))
            && let Some(waiting) = self.state.waiting.pop_front()
        {
            self.context.fail(waiting.operation, self.line, ErrorCode::LineLost);
        }
    }

    pub(super) fn refused(&mut self, code: ErrorCode, supplier: Option<NodeId>) {
        let asked = self.state.asked.take();
        if let Some(asked) = asked
            && asked.data.is_none()
            && let Some(node) = supplier
        {
            self.expect_stray(asked.ticket, Some(node));
        }
        let held = self.state.held;
        if held.level == Level::Invalid {
            self.state.recall = None; // for a former grant, which its eviction ended
        }
        if mutant!(self.context, RefusalRestoresCopy) && held.grant != Grant(0) {
            self.set_level(Level::Shared, held.grant);
        }
        // An overwrite unknown to the home, or forwarded by it to the dead owner, sends its request again.
        let known = if supplier.is_some() { 0 } else { asked.map_or(0, |asked| asked.covers) };
        if code == ErrorCode::LineLost {
            self.lose_all_before(|waiting| waiting.want.covers() > known);
        } else {
            self.fail_all(code);
        }
        if mutant!(self.context, FrameLeaks) {
            self.state.pins += 1;
        }
    }

    /// Keeps the frame until bytes that may be in flight have arrived, or cannot arrive any more.
    fn expect_stray(&mut self, ticket: Ticket, from: Option<NodeId>) {
        let quiet = from.is_some_and(|node| self.context.is_quiet(node));
        if !quiet && !mutant!(self.context, StrayForgotten) {
            self.state.stray = Some(Stray { ticket, from });
        }
    }

    fn fail_all(&mut self, code: ErrorCode) {
        while let Some(waiting) = self.state.waiting.pop_front() {
            self.context.fail(waiting.operation, self.line, code);
        }
    }

    pub(super) fn home_dead(&mut self, home: NodeId) {
        if let Some(asked) = self.state.asked.take()
            && asked.data.is_none()
        {
            let others = match asked.granted.map(|granted| granted.supply) {
                None => Some(None),
                Some(Supply::Owner(owner)) => Some(Some(owner)),
                Some(Supply::Held | Supply::Home | Supply::Nothing) => None,
            };
            let lingers = !self.context.is_quiet(home);
            if let Some(from) = others.filter(|from| *from != Some(home) || lingers) {
                self.expect_stray(asked.ticket, from);
            }
        }
        self.state.recall = None;
        self.state.evicting = false;
        self.state.lost = None;
        self.not_written(ErrorCode::NodeLost);
        self.fail_all(ErrorCode::NodeLost);
        if self.state.held.level > Level::Invalid {
            self.set_level(Level::Invalid, self.state.held.grant);
        }
    }

    pub(super) fn supplier_dead(&mut self, node: NodeId) {
        if self.context.is_quiet(node) {
            self.quiet(node);
        }
        // A recall may be obeyed after the number was reused.
        if let Some(recall) = &mut self.state.recall
            && recall.forward.is_some_and(|to| to.node == node)
            && !mutant!(self.context, FormerRequesterKept)
        {
            recall.forward = None;
        }
        self.complete();
    }

    /// Notes that no bytes of this node arrive any more.
    pub(super) fn quiet(&mut self, node: NodeId) {
        if self.state.stray.is_some_and(|stray| stray.from == Some(node)) {
            self.state.stray = None;
        }
    }

    /// Frees the frame of an invalid line at rest.
    pub(super) fn release(&mut self) {
        if self.state.held.level == Level::Invalid {
            let line = self.line;
            self.context.effects.push(CoherenceEffect::Release { line });
        }
        self.state.held = HeldLine::default();
    }

    pub(super) fn set_level(&mut self, level: Level, grant: Grant) {
        let held = HeldLine { level, grant };
        self.state.held = held;
        self.context.effects.push(CoherenceEffect::SetLevel {
            line: self.line,
            held,
            extent: None,
        });
    }
}
