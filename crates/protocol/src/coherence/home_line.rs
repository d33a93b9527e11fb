//! One line of a home: one transaction at a time, and a queue of requests that wait for it.
//!
//! A transaction recalls the holders that conflict with it, waits for this node's own conflicting pins and
//! placements, answers, and closes. Its bytes may still be in flight then: further readers are served meanwhile, all
//! other requests wait until the bytes have landed.
//!
//! ```text
//!            begin               last acknowledgement         no own pins, no bytes in flight
//!   waiting -------> Owner, Sharers ---------------> Own ------------------------> answer, closed
//!               (none to recall: at once)           (no conflict: at once)
//! ```
//! An owner that supplies the requester itself ends the transaction by its acknowledgement. At a home that logs, `Own`
//! also waits until the bytes that came back from the owner, or that this node wrote, are durable.

use super::canary::mutant;
use super::directory::{Directory, LentTo};
use super::{
    CANCELLED, CoherenceEffect, CoherenceMessage, Extent, Had, HeldLine, Level, PlacementTarget,
    Requester, StepContext, Supply, Want,
};
use alloc::collections::VecDeque;
use farside_base::{ErrorCode, Grant, LineAddress, NodeId, OperationId, Ticket};

/// The usual maximum of requests that wait for one line.
const WAITING: usize = 4;

/// A line with work.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct HomeWork {
    pub(super) current: Option<Transaction>,
    pub(super) waiting: VecDeque<HomeRequest>,
    /// The number of operations of this node that pin the line.
    pins: u32,
    /// The number of WRITEs of the line's bytes in flight from this node's memory.
    places: u32,
    /// The line's bytes are being logged.
    logging: bool,
    /// This node's own tag. At rest the directory implies it.
    pub(super) level: Level,
    /// From the last event that carried one.
    pub(super) extent: Option<Extent>,
    /// A `Retire` is queued or in progress: all other requests are refused.
    retiring: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Transaction {
    pub(super) request: HomeRequest,
    pub(super) stage: HomeStage,
    /// The requester died; the transaction is completed without an answer.
    abandoned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum HomeStage {
    /// The owner's bytes are outstanding. `gone`: the owner has no copy any more. It evicted the one that it was to keep, or
    /// dropped it for a recall that its write-back crosses.
    Owner { down_to: Level, gone: bool },
    /// Acknowledgements of the sharers are outstanding; each shortens the list in the directory.
    Sharers,
    /// Own pins, bytes in flight, or bytes that are being logged or cannot be restored yet block the transaction.
    Own,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum HomeRequest {
    Read(Requester),
    /// With the copy that it upgrades, and the number of bytes that it overwrites.
    Write(Requester, Option<Grant>, u32),
    Evict(NodeId, Grant),
    WriteBack(NodeId, Ticket),
    Own(OperationId, Want, bool),
    Retire(OperationId),
}

impl HomeRequest {
    /// The other node that sent the request.
    pub(super) const fn node(self) -> Option<NodeId> {
        match self {
            Self::Read(requester) | Self::Write(requester, ..) => Some(requester.node),
            Self::Evict(node, _) | Self::WriteBack(node, _) => Some(node),
            Self::Own(..) | Self::Retire(_) => None,
        }
    }

    /// The requester to which an owner can send the bytes.
    pub(super) const fn requester(self) -> Option<Requester> {
        match self {
            Self::Read(requester) | Self::Write(requester, ..) => Some(requester),
            Self::Evict(..) | Self::WriteBack(..) | Self::Own(..) | Self::Retire(_) => None,
        }
    }

    /// Whether it overwrites all of a line with this extent. A requester with several writes, or with one out of
    /// bounds, detects that itself, and returns the line if it cannot heal it.
    fn heals(self, extent: Extent) -> bool {
        match self {
            Self::Write(_, _, covers) => covers >= extent.bytes,
            Self::Own(_, want, _) => want.heals(extent),
            Self::Read(_) | Self::Evict(..) | Self::WriteBack(..) | Self::Retire(_) => false,
        }
    }

    /// The level to which other holders fall.
    const fn down_to(self) -> Level {
        match self {
            Self::Read(_) | Self::WriteBack(..) | Self::Own(_, Want::Read, _) => Level::Shared,
            Self::Write(..) | Self::Evict(..) | Self::Own(..) | Self::Retire(_) => Level::Invalid,
        }
    }
}

/// Whether both are of a kind of which a node may have only one in a queue.
pub(super) fn same_kind(one: HomeRequest, other: HomeRequest) -> bool {
    let kind = |request| match request {
        HomeRequest::Evict(..) => 1,
        HomeRequest::WriteBack(..) => 2,
        HomeRequest::Read(_)
        | HomeRequest::Write(..)
        | HomeRequest::Own(..)
        | HomeRequest::Retire(_) => 0,
    };
    one.node().is_some() && one.node() == other.node() && kind(one) == kind(other)
}

/// Whether the copy is the one that an upgrade keeps.
pub(super) fn keeps(request: HomeRequest, copy: (NodeId, Grant)) -> bool {
    matches!(request, HomeRequest::Write(requester, Some(held), _) if (requester.node, held) == copy)
}

impl HomeWork {
    /// Whether a node waits for the line. A transaction for a requester that died meanwhile completes without it.
    pub(super) fn asks(&self, node: NodeId) -> bool {
        let current = self.current.filter(|current| !current.abandoned);
        let mut all =
            current.iter().map(|current| current.request).chain(self.waiting.iter().copied());
        all.any(|request| request.node() == Some(node))
    }

    /// Creates an entry with capacity for a few waiting requests, so that a recycled one does not grow later.
    pub(super) fn new() -> Self {
        Self { waiting: VecDeque::with_capacity(WAITING), ..Self::default() }
    }

    /// Resets it for another line.
    pub(super) fn reset(&mut self) {
        debug_assert!(self.waiting.is_empty() && self.current.is_none());
        self.extent = None;
        self.retiring = false;
    }

    pub(super) fn invariants(
        &self,
        line: LineAddress,
        directory: &Directory,
        logs: bool,
    ) -> Result<(), &'static str> {
        let implied = directory.level(line);
        if self.logging && (!logs || self.level > Level::Invalid) {
            return Err("a home may access a line that is being logged");
        }
        if self.level > implied {
            return Err("a home's own level exceeds what its directory implies");
        }
        if self.level == Level::Dirty && self.places > 0 {
            return Err("a home may write a line whose bytes are on their way");
        }
        let Some(current) = self.current else {
            if !self.waiting.is_empty() {
                return Err("requests wait for no transaction");
            }
            if self.pins == 0 && self.places == 0 && !self.logging {
                return Err("a line without work is kept as busy");
            }
            let rest = if logs && self.pins == 0 { implied.min(Level::Shared) } else { implied };
            let written = logs && self.pins > 0 && self.level == Level::Shared;
            if self.level != rest && self.places == 0 && !self.logging && !written {
                return Err("a home's own level differs from what its directory implies");
            }
            return Ok(());
        };
        match current.stage {
            HomeStage::Owner { .. } if directory.owner(line).is_none() => {
                Err("a recall of an owner that does not exist")
            }
            HomeStage::Own
                if self.pins == 0
                    && self.places == 0
                    && !self.logging
                    && !(logs && directory.is_lost(line)) =>
            {
                Err("a transaction waits for pins and places that are none")
            }
            HomeStage::Owner { .. } | HomeStage::Sharers | HomeStage::Own => Ok(()),
        }
    }
}

/// One line of the home during one step.
pub(super) struct HomeStep<'a, 'b> {
    pub(super) line: LineAddress,
    pub(super) state: &'a mut HomeWork,
    pub(super) directory: &'a mut Directory,
    pub(super) last_grant: &'a mut Grant,
    pub(super) context: &'a mut StepContext<'b>,
}

impl HomeStep<'_, '_> {
    pub(super) fn is_idle(&self) -> bool {
        self.state.current.is_none()
            && self.state.waiting.is_empty()
            && self.state.pins == 0
            && self.state.places == 0
            && !self.state.logging
    }

    pub(super) fn enqueue(&mut self, request: HomeRequest) {
        if self.state.retiring {
            return self.refuse(request, ErrorCode::Unallocated, None);
        }
        if self.state.current.is_none() && self.state.waiting.is_empty() {
            return self.start(request);
        }
        self.state.waiting.push_back(request);
    }

    /// Cancels an operation of this node. One in progress is completed without a result.
    pub(super) fn cancel(&mut self, operation: OperationId) {
        let meant = |request: &HomeRequest| matches!(request, HomeRequest::Own(own, ..) if *own == operation);
        if let Some(place) = self.state.waiting.iter().position(meant) {
            self.state.waiting.remove(place);
        } else if let Some(current) = self.state.current.as_mut()
            && let HomeRequest::Own(own, want, pin) = &mut current.request
            && *own == operation
        {
            (*own, *pin) = (CANCELLED, false);
            *want = (*want).min(Want::Write); // there are no bytes to overwrite the line
        } else {
            return;
        }
        self.context.fail(operation, self.line, ErrorCode::TimedOut);
    }

    fn start(&mut self, request: HomeRequest) {
        self.state.current =
            Some(Transaction { request, stage: HomeStage::Sharers, abandoned: false });
        self.begin(request);
    }

    #[inline]
    pub(super) fn advance(&mut self) {
        while self.state.current.is_none() && !self.state.waiting.is_empty() {
            let next = if mutant!(self.context, QueueReorders) {
                self.state.waiting.pop_back()
            } else {
                self.state.waiting.pop_front()
            };
            let Some(request) = next else { break };
            self.start(request);
        }
    }

    /// Whether this home leaves, and grants no line for writing any more.
    const fn is_refused(&self, request: HomeRequest) -> bool {
        self.context.closing && matches!(request, HomeRequest::Write(..))
    }

    /// Recalls the holders that conflict with a request.
    fn begin(&mut self, request: HomeRequest) {
        if self.is_refused(request) {
            self.refuse(request, ErrorCode::HomeAway, None);
            return self.close();
        }
        let lent = match self.state.level {
            Level::Dirty => LentTo::Not, // this node's own level is at most what the directory implies
            Level::Invalid | Level::Shared => self.directory.lent(self.line),
        };
        if lent == LentTo::Lost {
            return match request {
                // What its node wrote was durable before the dead owner had the line.
                HomeRequest::WriteBack(..) if self.context.logs => self.conclude(),
                HomeRequest::Retire(_) | HomeRequest::Evict(..) => self.finish_lost(None),
                _ if self.context.logs => self.set_stage(HomeStage::Own), // until it can be restored
                _ => self.finish_lost(None),
            };
        }
        if mutant!(self.context, WrittenEarly)
            && let HomeRequest::WriteBack(node, ticket) = request
        {
            self.context.send(node, CoherenceMessage::Written { line: self.line, ticket });
            return self.close();
        }
        if let HomeRequest::Evict(node, grant) = request
            && lent != LentTo::Owned((node, grant))
        {
            return self.evict_stale(node);
        }
        if mutant!(self.context, EvictionWritesBack) && matches!(request, HomeRequest::Evict(..)) {
            self.directory.clear(self.line);
            return self.close();
        }
        if let LentTo::Owned(owner) = lent {
            if request.requester().map(|requester| requester.node) == Some(owner.0) {
                self.refuse(request, ErrorCode::Unallocated, None); // no correct owner sends this
                return self.close();
            }
            if self.state.places > 0 {
                return self.set_stage(HomeStage::Own); // the owner would overwrite bytes in flight
            }
            return self.recall_owner(request, owner);
        }
        if lent == LentTo::Not {
            return self.conclude();
        }
        if request.down_to() == Level::Invalid {
            self.recall_sharers(request);
        }
        self.conclude_if_alone();
    }

    /// Drops an eviction that was overtaken by a recall.
    fn evict_stale(&mut self, node: NodeId) {
        if mutant!(self.context, StaleEvictionBelieved) {
            self.directory.clear(self.line);
        }
        if mutant!(self.context, QueueReorders) {
            self.directory.remove_sharer(self.line, node);
        }
        self.close();
    }

    fn recall_owner(&mut self, request: HomeRequest, owner: (NodeId, Grant)) {
        if mutant!(self.context, FreeRecallsNobody) && matches!(request, HomeRequest::Retire(_)) {
            self.directory.clear(self.line);
            return self.conclude();
        }
        let down_to = request.down_to();
        self.set_stage(HomeStage::Owner { down_to, gone: false });
        let returns = self.context.logs && !mutant!(self.context, LoggedForwarded);
        let forward = request.requester().filter(|_| !returns);
        recall(self.context, self.line, owner, down_to, forward);
    }

    fn recall_sharers(&mut self, request: HomeRequest) {
        if mutant!(self.context, FreeRecallsNobody) && matches!(request, HomeRequest::Retire(_)) {
            return self.directory.clear(self.line);
        }
        self.set_stage(HomeStage::Sharers);
        for copy in self.directory.sharers(self.line) {
            if !keeps(request, copy) {
                recall(self.context, self.line, copy, Level::Invalid, None);
            }
        }
    }

    fn set_stage(&mut self, stage: HomeStage) {
        if let Some(current) = &mut self.state.current {
            current.stage = stage;
        }
    }

    /// Handles the end of a sharer's copy: acknowledged, evicted, or lost with its node.
    pub(super) fn sharer_gone(&mut self, node: NodeId) {
        self.directory.remove_sharer(self.line, node);
        match self.state.current {
            None => self.raise(),
            Some(current) if current.stage == HomeStage::Sharers => self.conclude_if_alone(),
            Some(_) => {}
        }
    }

    /// Notes that the owner has become a sharer and evicted its copy, with its acknowledgement still outstanding.
    pub(super) fn leaves_early(&mut self) {
        if let Some(Transaction { stage: HomeStage::Owner { gone, .. }, .. }) =
            &mut self.state.current
            && !mutant!(self.context, EarlyLeaverKept)
        {
            *gone = true;
        }
    }

    /// Proceeds once no holder is left to recall.
    fn conclude_if_alone(&mut self) {
        let Some(current) = self.state.current else {
            return;
        };
        let in_the_way = |copy: (NodeId, Grant)| !keeps(current.request, copy);
        let waits = current.request.down_to() == Level::Invalid
            && self.directory.sharers(self.line).any(in_the_way);
        if !waits || mutant!(self.context, AcksNotAwaited) {
            self.conclude();
        }
    }

    /// Answers the request: only this node's own work can still block it.
    fn conclude(&mut self) {
        let Some(current) = self.state.current else {
            return;
        };
        if current.abandoned {
            return self.close();
        }
        if self.is_refused(current.request) {
            self.refuse(current.request, ErrorCode::HomeAway, None);
            return self.close();
        }
        if self.is_hindered(current.request) {
            return self.set_stage(HomeStage::Own);
        }
        match current.request {
            HomeRequest::Evict(..) => self.close(),
            HomeRequest::Own(operation, want, pin) => self.conclude_own(operation, want, pin),
            HomeRequest::Read(requester) => self.grant(requester, None, Level::Shared),
            HomeRequest::Write(requester, held, _) => self.grant(requester, held, Level::Dirty),
            HomeRequest::WriteBack(..) => {
                self.written(current.request);
                self.close();
            }
            HomeRequest::Retire(operation) => self.retired(operation),
        }
    }

    fn conclude_own(&mut self, operation: OperationId, want: Want, pin: bool) {
        let writes = self.context.logs && want != Want::Read;
        if writes {
            self.raise_to(Level::Dirty);
        } else {
            self.raise();
        }
        self.state.pins += u32::from(pin);
        let line = self.line;
        self.context.ready(operation, line);
        if writes && self.state.pins == 0 {
            self.log_own();
        }
        self.close();
    }

    /// Logs what this node has written.
    fn log_own(&mut self) {
        if mutant!(self.context, OwnWriteNotLogged) {
            return self.lower(Level::Shared);
        }
        self.lower(Level::Invalid);
        self.log();
    }

    fn log(&mut self) {
        self.state.logging = !mutant!(self.context, GrantedBeforeLogged);
        self.context.effects.push(CoherenceEffect::Log { line: self.line });
    }

    /// The line's bytes are durable.
    pub(super) fn logged(&mut self) {
        self.state.logging = false;
        if self.state.current.is_none() {
            self.raise();
        }
        self.retry();
    }

    /// Grants a line whose bytes this home has.
    fn grant(&mut self, requester: Requester, held: Option<Grant>, level: Level) {
        let remains = if level == Level::Dirty { Level::Invalid } else { Level::Shared };
        let copy = held.map(|held| (requester.node, held));
        let has_bytes = copy.is_some_and(|copy| {
            self.directory.is_sharer(self.line, copy) || mutant!(self.context, HeldBelieved)
        });
        let supply = if has_bytes { Supply::Held } else { Supply::Home };
        let late = mutant!(self.context, HomeLevelFallsLate) && supply == Supply::Home;
        if !late {
            self.lower(remains);
        }
        let message = self.granted(requester, level, supply);
        if supply == Supply::Held {
            self.context.send(requester.node, message);
            return self.close();
        }
        self.context.effects.push(CoherenceEffect::Place {
            line: self.line,
            to: requester.node,
            target: PlacementTarget::Frame(requester.frame),
            message,
        });
        if late {
            self.lower(remains);
        }
        self.state.places += u32::from(!mutant!(self.context, HomeForgetsPlace));
        self.close();
    }

    /// Whether this node's own pins or bytes in flight block the answer to a request.
    fn is_hindered(&self, request: HomeRequest) -> bool {
        let pinned = self.state.pins > 0 && !mutant!(self.context, PinIgnored);
        let placing = self.state.places > 0;
        let logging = self.state.logging;
        match request {
            HomeRequest::Read(_) => logging || pinned && self.state.level == Level::Dirty,
            HomeRequest::Write(..) => pinned || placing || logging,
            HomeRequest::Retire(_) => pinned || placing || logging,
            HomeRequest::Own(_, want, _) => logging || placing && want != Want::Read,
            HomeRequest::WriteBack(..) => logging,
            HomeRequest::Evict(..) => false,
        }
    }

    /// Numbers a grant, enters it in the directory, and builds its message.
    fn granted(&mut self, requester: Requester, level: Level, supply: Supply) -> CoherenceMessage {
        self.context.counters.requests_served += 1;
        self.last_grant.0 += 1;
        if mutant!(self.context, GrantsWrap) {
            self.last_grant.0 &= u64::from(u32::MAX);
        }
        let grant = *self.last_grant;
        if level == Level::Dirty {
            self.directory.set_owner(self.line, (requester.node, grant));
        } else {
            self.directory.add_sharer(self.line, (requester.node, grant));
        }
        let unknown = Extent { first: true, bytes: 1 };
        CoherenceMessage::Grant {
            line: self.line,
            ticket: requester.ticket,
            grant,
            level,
            supply,
            extent: self.state.extent.unwrap_or(unknown),
        }
    }

    /// Handles a write-back that brought the owner's bytes: the owner is a sharer now. It acknowledges the bytes of a recall
    /// that it crossed; the end of the copy, if that was recalled, has an acknowledgement of its own.
    pub(super) fn owner_returned(&mut self, owner: (NodeId, Grant)) {
        let stage = self.state.current.map(|current| current.stage);
        self.directory.clear(self.line);
        let gone = matches!(stage, Some(HomeStage::Owner { gone: true, .. }));
        if !gone || mutant!(self.context, CrossedCopyKept) {
            self.directory.add_sharer(self.line, owner);
        }
        if self.context.logs {
            self.log();
        }
        if let Some(HomeStage::Owner { .. }) = stage {
            self.set_stage(HomeStage::Sharers);
            self.conclude_if_alone();
        }
    }

    pub(super) fn owner_acknowledged(&mut self, owner: (NodeId, Grant), had: Had, left: Level) {
        if had == Had::Clean && !mutant!(self.context, WriteBackNotAwaited) {
            return self.leaves_early(); // its bytes come with its write-back
        }
        let Some(Transaction { request, stage: HomeStage::Owner { gone, .. }, abandoned }) =
            self.state.current
        else {
            return;
        };
        match had {
            Had::Nothing => {
                self.lose();
                return self.go_on_without(None);
            }
            Had::Forwarded if abandoned => {
                self.lose();
                return self.close();
            }
            Had::Bytes | Had::Clean | Had::Forwarded => self.directory.clear(self.line),
        }
        if left == Level::Shared && !gone {
            self.directory.add_sharer(self.line, owner);
        }
        if self.context.logs && had != Had::Forwarded {
            self.log();
            return self.conclude();
        }
        match request {
            HomeRequest::Read(requester) if !abandoned => {
                self.forwarded(requester, Level::Shared, owner.0)
            }
            HomeRequest::Write(requester, ..) if had == Had::Forwarded => {
                self.forwarded(requester, Level::Dirty, owner.0);
            }
            // An owner that was to forward a line and did not has found the target dead.
            HomeRequest::Read(_) | HomeRequest::Write(..) => self.close(),
            HomeRequest::Evict(..)
            | HomeRequest::WriteBack(..)
            | HomeRequest::Own(..)
            | HomeRequest::Retire(_) => {
                self.conclude();
            }
        }
    }

    /// Grants a line with bytes sent by its former owner.
    fn forwarded(&mut self, requester: Requester, level: Level, owner: NodeId) {
        let message = self.granted(requester, level, Supply::Owner(owner));
        self.raise();
        self.context.send(requester.node, message);
        self.close();
    }

    pub(super) fn unpin(&mut self) {
        self.state.pins = self.state.pins.saturating_sub(1);
        if self.context.logs && self.state.pins == 0 && self.state.level == Level::Dirty {
            match mutant!(self.context, UnpinNotLogged) {
                true => self.lower(Level::Shared),
                false => self.log_own(),
            }
        }
        self.retry();
    }

    pub(super) fn placed(&mut self) {
        self.state.places = self.state.places.saturating_sub(1);
        if self.state.current.is_none() {
            self.raise();
        }
        self.retry();
    }

    /// Restarts a transaction that only this node's own work blocked.
    fn retry(&mut self) {
        if let Some(current) = self.state.current
            && current.stage == HomeStage::Own
        {
            self.begin(current.request);
        }
    }

    /// Ends the transaction.
    fn close(&mut self) {
        self.state.current = None;
        self.raise();
    }

    /// Raises this node's own level to what the directory permits; not to `Dirty` while its bytes are in flight,
    /// since they must not change then.
    #[inline]
    fn raise(&mut self) {
        if self.state.logging {
            return;
        }
        let shared = self.state.places > 0 || self.context.logs;
        let most = if shared { Level::Shared } else { Level::Dirty };
        if self.state.level < most {
            self.raise_to(most);
        }
    }

    fn raise_to(&mut self, most: Level) {
        let level = self.directory.level(self.line).min(most);
        if level > self.state.level {
            self.set_level(level);
        }
    }

    fn lower(&mut self, level: Level) {
        if level < self.state.level {
            self.set_level(level);
        }
    }

    fn set_level(&mut self, level: Level) {
        self.state.level = level;
        self.context.effects.push(CoherenceEffect::SetLevel {
            line: self.line,
            held: HeldLine { level, grant: Grant(0) },
            extent: None,
        });
    }

    /// Handles the end of the only copy of the line.
    fn lose(&mut self) {
        self.directory.set_lost(self.line);
        if self.context.logs {
            self.answer_write_backs();
        }
        let late = !self.context.lingering.is_empty();
        if self.context.logs && (!late || mutant!(self.context, RestoredUnderLateBytes)) {
            return self.replace_lost();
        }
        self.context.counters.lines_lost += u64::from(!self.context.logs);
        if mutant!(self.context, LostServed) {
            self.directory.clear(self.line);
        }
    }

    /// Answers a write-back: this home has the bytes, and where it logs they are durable.
    pub(super) fn written(&mut self, request: HomeRequest) {
        if let HomeRequest::WriteBack(node, ticket) = request {
            self.context.send(node, CoherenceMessage::Written { line: self.line, ticket });
        }
    }

    /// Answers the write-backs that wait: what their nodes have written was durable before the owner had the line.
    fn answer_write_backs(&mut self) {
        let is_one = |request: &HomeRequest| matches!(request, HomeRequest::WriteBack(..));
        while let Some(at) = self.state.waiting.iter().position(is_one) {
            if let Some(request) = self.state.waiting.remove(at) {
                self.written(request);
            }
        }
    }

    /// Restores a lost line.
    pub(super) fn restore(&mut self) {
        self.replace_lost();
        if self.state.current.is_none() {
            self.raise();
        }
        self.retry();
    }

    fn replace_lost(&mut self) {
        self.context.counters.lines_restored += 1;
        self.directory.clear(self.line);
        if !mutant!(self.context, NotRestored) {
            self.context.effects.push(CoherenceEffect::Restore { line: self.line });
        }
    }

    /// Continues a transaction after the owner's end.
    fn go_on_without(&mut self, supplier: Option<NodeId>) {
        match self.state.current {
            Some(current) if self.context.logs && current.abandoned => self.close(),
            Some(current) if self.context.logs => self.begin(current.request),
            _ => self.finish_lost(supplier),
        }
    }

    /// Ends a transaction on a line with its only copy lost.
    fn finish_lost(&mut self, supplier: Option<NodeId>) {
        let Some(current) = self.state.current else {
            return;
        };
        if let HomeRequest::Retire(_) = current.request {
            self.directory.clear(self.line);
            return self.conclude();
        }
        // Bytes of a dead owner that may still arrive, at a requester or this home, would overwrite the new ones.
        let late = supplier.is_some() || self.awaits_late_bytes();
        if !late && !current.abandoned && self.is_healed_by(current.request) {
            return self.heal(current.request);
        }
        if !current.abandoned {
            self.refuse(current.request, ErrorCode::LineLost, supplier);
        }
        self.close();
    }

    /// Whether a request overwrites all of the line.
    fn is_healed_by(&self, request: HomeRequest) -> bool {
        let part = mutant!(self.context, HealByPart) && matches!(request, HomeRequest::Write(..));
        part || self.state.extent.is_some_and(|extent| request.heals(extent))
    }

    /// Whether the owner of a lost line may still write this home's memory. For how long is unknown, so requests are
    /// refused and do not wait.
    fn awaits_late_bytes(&self) -> bool {
        !self.context.lingering.is_empty() && !mutant!(self.context, HealUnderLateBytes)
    }

    /// Grants a lost line to a request that overwrites all of it.
    fn heal(&mut self, request: HomeRequest) {
        if self.is_hindered(request) {
            return self.set_stage(HomeStage::Own); // restarts
        }
        self.context.counters.lines_healed += 1;
        self.directory.clear(self.line);
        let line = self.line;
        match request {
            HomeRequest::Own(operation, ..) => {
                if !mutant!(self.context, HealReadsStale) {
                    self.context.effects.push(CoherenceEffect::Fill { operation, line });
                }
                self.conclude();
            }
            HomeRequest::Write(requester, ..) => {
                let message = self.granted(requester, Level::Dirty, Supply::Nothing);
                self.context.send(requester.node, message);
                self.close();
            }
            HomeRequest::Read(_)
            | HomeRequest::Evict(..)
            | HomeRequest::WriteBack(..)
            | HomeRequest::Retire(_) => {
                self.close();
            }
        }
    }

    pub(super) fn refuse(
        &mut self,
        request: HomeRequest,
        code: ErrorCode,
        supplier: Option<NodeId>,
    ) {
        let line = self.line;
        match request {
            HomeRequest::Read(requester) | HomeRequest::Write(requester, ..) => {
                self.context.counters.requests_refused += 1;
                let message =
                    CoherenceMessage::Refuse { line, ticket: requester.ticket, code, supplier };
                self.context.send(requester.node, message);
            }
            HomeRequest::WriteBack(node, ticket) => {
                self.context.counters.requests_refused += 1;
                self.context
                    .send(node, CoherenceMessage::Refuse { line, ticket, code, supplier: None });
            }
            HomeRequest::Own(operation, ..) | HomeRequest::Retire(operation) => {
                self.context.fail(operation, line, code);
            }
            HomeRequest::Evict(..) => {}
        }
    }

    pub(super) fn retire(&mut self, operation: OperationId) {
        let request = HomeRequest::Retire(operation);
        if self.state.retiring {
            return self.refuse(request, ErrorCode::Unallocated, None);
        }
        while let Some(waiting) = self.state.waiting.pop_front() {
            self.refuse(waiting, ErrorCode::Unallocated, None);
        }
        self.state.waiting.push_back(request);
        self.state.retiring = true;
        if let Some(current) = self.state.current
            && current.stage == HomeStage::Own
            && self.directory.is_lost(self.line)
        {
            // It would wait until the line can be restored.
            if !current.abandoned {
                self.refuse(current.request, ErrorCode::Unallocated, None);
            }
            self.close();
        }
    }

    /// Completes a `Retire`: no other node holds the line.
    fn retired(&mut self, operation: OperationId) {
        self.raise();
        self.state.retiring = false;
        let line = self.line;
        self.context.effects.push(CoherenceEffect::Ready { operation, line });
        self.close();
    }

    pub(super) fn node_dead(&mut self, node: NodeId) {
        self.state.waiting.retain(|request| request.node() != Some(node));
        let owned = self.directory.owner(self.line).is_some_and(|(owner, _)| owner == node);
        if owned {
            self.lose();
        } else {
            self.directory.remove_sharer(self.line, node);
        }
        let Some(current) = &mut self.state.current else {
            return self.raise();
        };
        current.abandoned |= current.request.node() == Some(node);
        match current.stage {
            HomeStage::Owner { .. } if owned => {
                let forwarded = current.request.requester().is_some();
                self.go_on_without(forwarded.then_some(node));
            }
            HomeStage::Sharers => self.conclude_if_alone(),
            HomeStage::Own if current.abandoned => self.close(),
            HomeStage::Own if owned => self.retry(),
            HomeStage::Owner { .. } | HomeStage::Own => {}
        }
    }
}

/// Sends a recall to a holder.
fn recall(
    context: &mut StepContext<'_>,
    line: LineAddress,
    (node, grant): (NodeId, Grant),
    down_to: Level,
    forward: Option<Requester>,
) {
    context.counters.recalls_sent += 1;
    context.send(node, CoherenceMessage::Recall { line, grant, down_to, forward });
}
