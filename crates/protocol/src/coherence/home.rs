//! The home role: its lines, and the validation of other nodes' requests before any line is changed.
//!
//! The state machine of one line is in [`home_line`](super::home_line).

use super::canary::mutant;
use super::directory::{Directory, Sharers};
use super::home_line::{HomeRequest, HomeStage, HomeStep, HomeWork, keeps, same_kind};
use super::{
    CoherenceEffect, CoherenceEvent, CoherenceMessage, Extent, Had, Here, Level, Requester, Step,
    StepContext,
};
use crate::Table;
use crate::wire::Violation;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use farside_base::{ErrorCode, Grant, Limits, LineAddress, NodeId};

/// The initial capacity for lines with work.
const LINES_BUSY: u32 = 1_024;

/// All lines of one home.
#[derive(Debug)]
pub(super) struct Home {
    directory: Directory,
    /// Lines with a transaction, a queue or pins.
    busy: Table<LineAddress, Box<HomeWork>>,
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is reused")]
    spare: Vec<Box<HomeWork>>,
    last_grant: Grant,
}

impl Home {
    pub(super) fn new(limits: &Limits) -> Self {
        let lines = limits.operations_max.min(LINES_BUSY) as usize;
        Self {
            directory: Directory::default(),
            busy: Table::with_capacity(lines),
            spare: Vec::new(),
            last_grant: Grant(0),
        }
    }

    pub(super) const fn continue_grants(&mut self, last: Grant) {
        if last.0 > self.last_grant.0 {
            self.last_grant = last;
        }
    }

    pub(super) fn lines_away(&self) -> usize {
        self.directory.len()
    }

    pub(super) fn lines_busy(&self) -> usize {
        self.busy.len()
    }

    pub(super) fn is_busy(&self, line: LineAddress) -> bool {
        self.busy.contains(line)
    }

    pub(super) fn owner(&self, line: LineAddress) -> Option<(NodeId, Grant)> {
        self.directory.owner(line)
    }

    pub(super) fn sharers(&self, line: LineAddress) -> Sharers<'_> {
        self.directory.sharers(line)
    }

    pub(super) fn owned_lines(&self) -> Vec<LineAddress> {
        let mut lines = Vec::new();
        self.directory.owned_lines(&mut lines);
        lines.sort_unstable();
        lines
    }

    pub(super) fn is_lost(&self, line: LineAddress) -> bool {
        self.directory.is_lost(line)
    }

    pub(super) fn own_event(
        &mut self,
        line: LineAddress,
        event: &CoherenceEvent,
        context: &mut StepContext<'_>,
    ) {
        match *event {
            CoherenceEvent::Issue { operation, want, pin, here, .. } => {
                self.issue(line, HomeRequest::Own(operation, want, pin), here, context)
            }
            CoherenceEvent::Retire { operation, here, .. } => {
                self.at(line, here.extent, context, |desk| desk.retire(operation));
            }
            CoherenceEvent::Cancel { operation, .. } if self.busy.contains(line) => {
                self.at(line, None, context, |desk| desk.cancel(operation));
            }
            CoherenceEvent::Unpin { .. } if self.busy.contains(line) => {
                self.at(line, None, context, |desk| desk.unpin());
            }
            CoherenceEvent::Placed { .. } if self.busy.contains(line) => {
                self.at(line, None, context, |desk| desk.placed());
            }
            CoherenceEvent::Logged { .. } if self.busy.contains(line) => {
                self.at(line, None, context, |desk| desk.logged());
            }
            CoherenceEvent::WriteBack { operation: Some(operation), .. } => {
                context.ready(operation, line); // the home already has the bytes
            }
            CoherenceEvent::Cancel { .. }
            | CoherenceEvent::Unpin { .. }
            | CoherenceEvent::Placed { .. }
            | CoherenceEvent::Logged { .. }
            | CoherenceEvent::Evict { .. }
            | CoherenceEvent::WriteBack { .. }
            | CoherenceEvent::DropPins
            | CoherenceEvent::Received { .. }
            | CoherenceEvent::NodeDead { .. }
            | CoherenceEvent::Lingers { .. }
            | CoherenceEvent::Quiet { .. }
            | CoherenceEvent::NodeAdmitted { .. }
            | CoherenceEvent::Settled { .. } => {}
        }
    }

    /// Handles an operation of this node on its own line.
    fn issue(
        &mut self,
        line: LineAddress,
        request: HomeRequest,
        here: Here,
        context: &mut StepContext<'_>,
    ) {
        let HomeRequest::Own(operation, want, pin) = request else {
            return;
        };
        if here.extent.is_none() {
            return context.fail(operation, line, ErrorCode::Unallocated);
        }
        let at_rest = !self.busy.contains(line);
        if at_rest && !pin && rest_level(&self.directory, line, context.logs) >= want.level() {
            return context.effects.push(CoherenceEffect::Ready { operation, line });
        }
        self.at(line, here.extent, context, |desk| desk.enqueue(request));
    }

    /// Handles a message from a live sender about a line of this home.
    pub(super) fn received(
        &mut self,
        from: NodeId,
        message: &CoherenceMessage,
        here: Here,
        context: &mut StepContext<'_>,
    ) -> Step {
        match *message {
            CoherenceMessage::Read { line, frame, ticket } => {
                let requester = Requester { node: from, frame, ticket };
                self.request(line, HomeRequest::Read(requester), here, context)
            }
            CoherenceMessage::Write { line, frame, ticket, held, covers } => {
                let requester = Requester { node: from, frame, ticket };
                self.request(line, HomeRequest::Write(requester, held, covers), here, context)
            }
            CoherenceMessage::WriteBack { line, ticket, owned } => {
                self.write_back(line, HomeRequest::WriteBack(from, ticket), owned, here, context)
            }
            CoherenceMessage::Evict { line, grant, dirty } => {
                if grant > self.last_grant {
                    return Err(Violation("an eviction of a grant that was never made"));
                }
                if dirty {
                    self.evict_dirty(line, from, grant, context)
                } else {
                    self.evict_clean(line, from, grant, context)
                }
            }
            CoherenceMessage::Ack { line, grant, had, left } => {
                self.acknowledged(line, (from, grant), had, left, context)
            }
            CoherenceMessage::Recall { .. }
            | CoherenceMessage::Grant { .. }
            | CoherenceMessage::Refuse { .. }
            | CoherenceMessage::Written { .. }
            | CoherenceMessage::Data { .. } => Err(Violation("a message for a holder")),
        }
    }

    /// Handles a read or write request of another node.
    fn request(
        &mut self,
        line: LineAddress,
        request: HomeRequest,
        here: Here,
        context: &mut StepContext<'_>,
    ) -> Step {
        let level = match self.busy.get(line) {
            Some(work) if work.waiting.iter().any(|other| same_kind(*other, request)) => {
                return Err(Violation("a second request for a line before the first was answered"));
            }
            Some(_) => None,
            None => Some(rest_level(&self.directory, line, context.logs)),
        };
        if level == Some(Level::Invalid)
            && let Some((owner, _)) = self.directory.owner(line)
            && request.node() == Some(owner)
        {
            return Err(Violation("a request for a line from its owner"));
        }
        self.at_level(line, level, here.extent, context, |desk| {
            if here.extent.is_none() {
                desk.refuse(request, ErrorCode::Unallocated, None);
            } else {
                desk.enqueue(request);
            }
        });
        Ok(())
    }

    /// Handles a write-back request of a holder, whichever node owns the line by now.
    fn write_back(
        &mut self,
        line: LineAddress,
        request: HomeRequest,
        owned: Option<Grant>,
        here: Here,
        context: &mut StepContext<'_>,
    ) -> Step {
        let twice = |work: &HomeWork| work.waiting.iter().any(|other| same_kind(*other, request));
        if self.busy.get(line).is_some_and(|work| twice(work)) {
            return Err(Violation("a second write-back of a line before the first was answered"));
        }
        let returned = request.node().zip(owned);
        if returned.is_some() && self.directory.owner(line) != returned {
            return Err(Violation("bytes of a line that their sender does not own"));
        }
        let lost = context.logs && self.directory.is_lost(line);
        self.at(line, here.extent, context, |desk| {
            if let Some(owner) = returned {
                desk.owner_returned(owner);
            }
            if here.extent.is_none() {
                desk.refuse(request, ErrorCode::Unallocated, None);
            } else if lost {
                desk.written(request); // it was durable before it was lost, and must not wait until it is restored
            } else {
                desk.enqueue(request);
            }
        });
        Ok(())
    }

    /// Handles an owner's request to recall its line. A stale request is harmless: it is dropped when it is served.
    fn evict_dirty(
        &mut self,
        line: LineAddress,
        from: NodeId,
        grant: Grant,
        context: &mut StepContext<'_>,
    ) -> Step {
        let request = HomeRequest::Evict(from, grant);
        let Some(work) = self.busy.get(line) else {
            if self.directory.owner(line) == Some((from, grant))
                || mutant!(context, StaleEvictionBelieved)
            {
                self.at(line, None, context, |desk| desk.enqueue(request));
            }
            return Ok(());
        };
        if work.waiting.iter().any(|other| same_kind(*other, request)) {
            return Err(Violation("a second eviction of a line before the first was answered"));
        }
        self.at(line, None, context, |desk| desk.enqueue(request));
        Ok(())
    }

    /// Handles the eviction of a sharer's copy. It ends the sharer's grant in any state of the line, and counts as
    /// the acknowledgement of a recall that crossed it.
    fn evict_clean(
        &mut self,
        line: LineAddress,
        from: NodeId,
        grant: Grant,
        context: &mut StepContext<'_>,
    ) -> Step {
        let by_node = mutant!(context, QueueReorders);
        let known = |copy: (NodeId, Grant)| copy.0 == from && (by_node || copy.1 == grant);
        let is_sharer = self.directory.sharers(line).any(known);
        let becomes_sharer = self.directory.owner(line) == Some((from, grant))
            && matches!(self.stage(line), Some(HomeStage::Owner { down_to: Level::Shared, .. }));
        if !is_sharer && !becomes_sharer {
            return if by_node {
                Ok(())
            } else {
                Err(Violation("an eviction of a copy that does not exist"))
            };
        }
        let queued = mutant!(context, EvictionQueuedBehindRecall);
        if queued && self.stage(line) == Some(HomeStage::Sharers) {
            return Ok(());
        }
        self.at(line, None, context, |desk| {
            if is_sharer {
                desk.sharer_gone(from);
            } else {
                desk.leaves_early();
            }
        });
        Ok(())
    }

    fn stage(&self, line: LineAddress) -> Option<HomeStage> {
        let current = self.busy.get(line)?.current?;
        Some(current.stage)
    }

    /// Handles the acknowledgement of a recall.
    fn acknowledged(
        &mut self,
        line: LineAddress,
        copy: (NodeId, Grant),
        had: Had,
        left: Level,
        context: &mut StepContext<'_>,
    ) -> Step {
        match self.stage(line) {
            Some(HomeStage::Sharers) if self.is_recalled_sharer(line, copy) => {
                if had != Had::Clean || left != Level::Invalid {
                    return Err(Violation("a sharer acknowledges what only an owner can"));
                }
                self.at(line, None, context, |desk| desk.sharer_gone(copy.0));
                Ok(())
            }
            Some(HomeStage::Owner { down_to, .. }) if self.directory.owner(line) == Some(copy) => {
                let forwarded =
                    self.busy.get(line).and_then(|work| work.current?.request.requester());
                let fits = match had {
                    Had::Nothing => left == Level::Invalid,
                    Had::Clean => down_to == Level::Invalid && left == Level::Invalid,
                    Had::Bytes => left <= down_to,
                    Had::Forwarded => {
                        !context.logs
                            && down_to == Level::Invalid
                            && left == Level::Invalid
                            && forwarded.is_some()
                    }
                };
                if !fits {
                    return Err(Violation("an owner acknowledges what it was not asked"));
                }
                self.at(line, None, context, |desk| desk.owner_acknowledged(copy, had, left));
                Ok(())
            }
            _ => Err(Violation("an acknowledgement without a recall")),
        }
    }

    fn is_recalled_sharer(&self, line: LineAddress, copy: (NodeId, Grant)) -> bool {
        let request =
            self.busy.get(line).and_then(|work| work.current).map(|current| current.request);
        self.directory.is_sharer(line, copy) && !request.is_some_and(|request| keeps(request, copy))
    }

    pub(super) fn node_dead(&mut self, node: NodeId, context: &mut StepContext<'_>) {
        let mut lines: Vec<LineAddress> = self.busy.iter().map(|(line, _)| line).collect();
        self.directory.lines_of(node, &mut lines);
        lines.sort_unstable();
        lines.dedup();
        for line in lines {
            self.at(line, None, context, |desk| desk.node_dead(node));
        }
    }

    pub(super) fn lines_lost(&self) -> usize {
        let mut lines = Vec::new();
        self.directory.lost_lines(&mut lines);
        lines.len()
    }

    /// Restores lost lines of a home that logs: no bytes of their owners land any more.
    pub(super) fn quiet(&mut self, context: &mut StepContext<'_>) {
        if !context.logs || !context.lingering.is_empty() {
            return;
        }
        let mut lines = Vec::new();
        self.directory.lost_lines(&mut lines);
        lines.sort_unstable();
        for line in lines {
            self.at(line, None, context, |desk| desk.restore());
        }
    }

    /// Returns a line that a node holds or requests.
    pub(super) fn names(&self, node: NodeId) -> Option<LineAddress> {
        let mut lines = Vec::new();
        self.directory.lines_of(node, &mut lines);
        let mut busy = self.busy.iter();
        let asked = || busy.find(|(_, work)| work.asks(node)).map(|(line, _)| line);
        lines.first().copied().or_else(asked)
    }

    /// Runs `work` on a line, then starts as many waiting requests as possible.
    fn at(
        &mut self,
        line: LineAddress,
        extent: Option<Extent>,
        context: &mut StepContext<'_>,
        work: impl FnOnce(&mut HomeStep<'_, '_>),
    ) {
        self.at_level(line, None, extent, context, work);
    }

    /// The same; `level` is the level that the directory implies for a line at rest, if it is known already.
    fn at_level(
        &mut self,
        line: LineAddress,
        level: Option<Level>,
        extent: Option<Extent>,
        context: &mut StepContext<'_>,
        work: impl FnOnce(&mut HomeStep<'_, '_>),
    ) {
        let Self { directory, busy, spare, last_grant } = self;
        let fresh = || spare.pop().unwrap_or_else(|| Box::new(HomeWork::new()));
        let done = busy.visit(line, fresh, |state, is_new| {
            if is_new {
                state.level = level.unwrap_or_else(|| rest_level(directory, line, context.logs));
            }
            if extent.is_some() {
                state.extent = extent;
            }
            let mut desk = HomeStep { line, state, directory, last_grant, context };
            work(&mut desk);
            desk.advance();
            desk.is_idle()
        });
        if let Some(mut state) = done {
            state.reset();
            self.spare.push(state);
        }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let works = self.busy.iter().map(|(_, work)| work).chain(&self.spare);
        let queues: usize = works.map(|work| 1 + work.waiting.capacity()).sum();
        self.directory.memory() + self.busy.capacity() + queues
    }

    pub(super) fn invariants(&self, me: NodeId, logs: bool) -> Result<(), &'static str> {
        self.directory.invariants(self.last_grant)?;
        for (line, work) in self.busy.iter() {
            if line.home() != me {
                return Err("a home has work on another node's line");
            }
            work.invariants(line, &self.directory, logs)?;
        }
        Ok(())
    }
}

/// The home's own level of a line at rest. A home that logs writes no line at rest, so that it knows each write.
fn rest_level(directory: &Directory, line: LineAddress, logs: bool) -> Level {
    let level = directory.level(line);
    if logs { level.min(Level::Shared) } else { level }
}

impl Clone for Home {
    /// Without the spare entries.
    fn clone(&self) -> Self {
        Self {
            directory: self.directory.clone(),
            busy: self.busy.clone(),
            spare: Vec::new(),
            last_grant: self.last_grant,
        }
    }
}

impl PartialEq for Home {
    fn eq(&self, other: &Self) -> bool {
        self.last_grant == other.last_grant
            && self.directory == other.directory
            && self.busy == other.busy
    }
}

impl Eq for Home {}

impl Hash for Home {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.directory.hash(state);
        self.busy.hash(state);
        self.last_grant.hash(state);
    }
}
