//! The holder role: lines of other homes in transition at this node, and the validation of those homes' messages
//! before any line is changed.
//!
//! The state machine of one line is in [`holder_line`](super::holder_line).

use super::canary::mutant;
use super::holder_line::{Granted, HolderStep, HolderWork, Recall, WaitingOperation};
use super::{
    CoherenceEffect, CoherenceEvent, CoherenceMessage, Frame, HeldLine, Here, Level,
    PlacementTarget, Step, StepContext,
};
use crate::Table;
use crate::wire::Violation;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use farside_base::{ErrorCode, Limits, LineAddress, NodeId, NodeSet, OperationId, Ticket};

/// The initial capacity for lines in transition.
const LINES_BUSY: u32 = 1_024;

/// All lines in transition of other homes.
#[derive(Debug)]
pub(super) struct Holder {
    busy: Table<LineAddress, Box<HolderWork>>,
    #[expect(clippy::vec_box, reason = "the boxes themselves are what is reused")]
    spare: Vec<Box<HolderWork>>,
    last_ticket: Ticket,
}

impl Holder {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            busy: Table::with_capacity(limits.operations_max.min(LINES_BUSY) as usize),
            spare: Vec::new(),
            last_ticket: Ticket(0),
        }
    }

    pub(super) fn lines_busy(&self) -> usize {
        self.busy.len()
    }

    pub(super) fn is_busy(&self, line: LineAddress) -> bool {
        self.busy.contains(line)
    }

    pub(super) fn holds_work(&self) -> bool {
        self.busy.iter().any(|(_, work)| work.holds_work())
    }

    pub(super) fn is_pinned(&self, line: LineAddress) -> bool {
        self.busy.get(line).is_some_and(|work| work.pins > 0)
    }

    pub(super) fn own_event(
        &mut self,
        line: LineAddress,
        event: &CoherenceEvent,
        context: &mut StepContext<'_>,
    ) {
        match *event {
            CoherenceEvent::Issue { operation, want, pin, frame, here, .. } => {
                let waiting = WaitingOperation { operation, want, pin };
                self.issue(line, waiting, frame, here, context);
            }
            CoherenceEvent::Evict { here, .. } if !self.busy.contains(line) => {
                self.evict(line, here, context);
            }
            CoherenceEvent::WriteBack { operation, here, .. } => {
                self.write_back(line, operation, here, context);
            }
            CoherenceEvent::Unpin { .. } if self.busy.contains(line) => {
                self.at(line, HeldLine::default(), context, |desk| {
                    desk.state.pins = desk.state.pins.saturating_sub(1);
                });
            }
            CoherenceEvent::Placed { .. } if self.busy.contains(line) => {
                self.at(line, HeldLine::default(), context, |desk| desk.placed());
            }
            CoherenceEvent::Cancel { operation, .. } if self.busy.contains(line) => {
                self.at(line, HeldLine::default(), context, |desk| desk.cancel(operation));
            }
            CoherenceEvent::Cancel { .. }
            | CoherenceEvent::Evict { .. }
            | CoherenceEvent::Unpin { .. }
            | CoherenceEvent::Placed { .. }
            | CoherenceEvent::Retire { .. }
            | CoherenceEvent::Received { .. }
            | CoherenceEvent::NodeDead { .. }
            | CoherenceEvent::NodeAdmitted { .. }
            | CoherenceEvent::Lingers { .. }
            | CoherenceEvent::Quiet { .. }
            | CoherenceEvent::Settled { .. }
            | CoherenceEvent::Logged { .. }
            | CoherenceEvent::DropPins => {}
        }
    }

    fn issue(
        &mut self,
        line: LineAddress,
        waiting: WaitingOperation,
        frame: Frame,
        here: Here,
        context: &mut StepContext<'_>,
    ) {
        let at_rest = !self.busy.contains(line);
        if at_rest && !waiting.pin && here.held.level >= waiting.want.level() {
            let operation = waiting.operation;
            return context.effects.push(CoherenceEffect::Ready { operation, line });
        }
        self.at(line, here.held, context, |desk| {
            desk.state.frame = frame;
            desk.issue(waiting);
        });
    }

    /// Evicts a line at rest: drops a clean copy at once, an owned one when its home recalls it.
    fn evict(&mut self, line: LineAddress, here: Here, context: &mut StepContext<'_>) {
        let HeldLine { level, grant } = here.held;
        let dirty = level == Level::Dirty;
        if level == Level::Invalid {
            return;
        }
        let early = mutant!(context, EvictionWritesBack);
        self.at(line, here.held, context, |desk| {
            if !dirty || early {
                desk.set_level(Level::Invalid, grant);
            }
            let message = CoherenceMessage::Evict { line, grant, dirty };
            if dirty && early {
                return desk.place(line.home(), PlacementTarget::Home, message);
            }
            desk.context.send(line.home(), message);
            desk.state.evicting = dirty;
            if dirty {
                desk.context.counters.evictions_dirty += 1;
            } else {
                desk.context.counters.evictions_clean += 1;
            }
        });
    }

    /// Requests the write-back of a line to its home.
    fn write_back(
        &mut self,
        line: LineAddress,
        operation: Option<OperationId>,
        here: Here,
        context: &mut StepContext<'_>,
    ) {
        let work = self.busy.get(line);
        let held = work.map_or(here.held, |work| work.held);
        let goes_home = work.is_some_and(|work| work.goes_home());
        if operation.is_none() && (held.level < Level::Dirty || goes_home) {
            return;
        }
        self.at(line, held, context, |desk| desk.write_back(operation));
    }

    /// Handles a message from a live sender, sent by the home if it must be.
    pub(super) fn received(
        &mut self,
        from: NodeId,
        message: &CoherenceMessage,
        here: Here,
        context: &mut StepContext<'_>,
    ) -> Step {
        match *message {
            CoherenceMessage::Recall { line, grant, down_to, forward } => {
                let kept = mutant!(context, FormerRequesterKept);
                let forward = forward.filter(|to| kept || !context.dead.contains(to.node));
                let recall = Recall { grant, down_to, forward };
                self.recalled(line, recall, here.held, context)
            }
            CoherenceMessage::Grant { line, ticket, grant, level, supply, extent } => {
                let granted = Granted { held: HeldLine { level, grant }, supply, extent };
                self.granted(line, ticket, granted, context)
            }
            CoherenceMessage::Refuse { line, ticket, code, supplier } => {
                self.refused(line, ticket, code, supplier, context)
            }
            CoherenceMessage::Data { line, ticket } => self.supplied(line, ticket, from, context),
            CoherenceMessage::Written { line, ticket } => self.written(line, ticket, context),
            CoherenceMessage::Read { .. }
            | CoherenceMessage::Write { .. }
            | CoherenceMessage::Evict { .. }
            | CoherenceMessage::WriteBack { .. }
            | CoherenceMessage::Ack { .. } => Err(Violation("a message for a home")),
        }
    }

    fn recalled(
        &mut self,
        line: LineAddress,
        recall: Recall,
        held: HeldLine,
        context: &mut StepContext<'_>,
    ) -> Step {
        let work = self.busy.get(line);
        let held = work.map_or(held, |work| work.held);
        if recall.down_to == Level::Dirty {
            return Err(Violation("a recall that does not lower the level"));
        }
        let is_held = held.level > Level::Invalid;
        if is_held && recall.grant == held.grant {
            if work.is_some_and(|work| work.recall.is_some()) {
                return Err(Violation("a second recall of one grant"));
            }
        } else if is_held && recall.grant < held.grant {
            return Ok(()); // the eviction of this grant is the acknowledgement
        } else if let Some(work) = work
            && work.may_get(recall.grant)
            && !mutant!(context, EarlyRecallForgotten)
        {
            work.check_early(recall)?;
        } else {
            return Ok(()); // as above
        }
        self.at(line, held, context, |desk| desk.recalled(recall));
        Ok(())
    }

    fn granted(
        &mut self,
        line: LineAddress,
        ticket: Ticket,
        granted: Granted,
        context: &mut StepContext<'_>,
    ) -> Step {
        let Some(work) = self.busy.get(line) else {
            return Err(Violation("a grant that was not requested"));
        };
        work.check_grant(ticket, granted)?;
        self.at(line, HeldLine::default(), context, |desk| {
            if let Some(asked) = &mut desk.state.asked {
                asked.granted = Some(granted);
            }
            desk.complete();
        });
        Ok(())
    }

    fn refused(
        &mut self,
        line: LineAddress,
        ticket: Ticket,
        code: ErrorCode,
        supplier: Option<NodeId>,
        context: &mut StepContext<'_>,
    ) -> Step {
        let work = self.busy.get(line);
        if supplier.is_none() && work.is_some_and(|work| work.write_back == Some(ticket)) {
            self.at(line, HeldLine::default(), context, |desk| desk.not_written(code));
            return Ok(());
        }
        match work.and_then(|work| work.asked) {
            Some(asked) if asked.ticket == ticket && asked.granted.is_none() => {}
            _ => return Err(Violation("a refusal of no pending request")),
        }
        let reasons = [ErrorCode::Unallocated, ErrorCode::LineLost, ErrorCode::HomeAway];
        if !reasons.contains(&code) {
            return Err(Violation("a refusal for a reason that a home cannot have"));
        }
        self.at(line, HeldLine::default(), context, |desk| desk.refused(code, supplier));
        Ok(())
    }

    fn written(
        &mut self,
        line: LineAddress,
        ticket: Ticket,
        context: &mut StepContext<'_>,
    ) -> Step {
        if self.busy.get(line).is_none_or(|work| work.write_back != Some(ticket)) {
            return Err(Violation("an answer to a write-back that was not asked for"));
        }
        self.at(line, HeldLine::default(), context, |desk| desk.written());
        Ok(())
    }

    fn supplied(
        &mut self,
        line: LineAddress,
        ticket: Ticket,
        from: NodeId,
        context: &mut StepContext<'_>,
    ) -> Step {
        let Some(work) = self.busy.get(line) else {
            return Err(Violation("unrequested bytes"));
        };
        let is_stray = work.awaits_stray(ticket, from);
        if !is_stray && !work.awaits_data(ticket, from) {
            return Err(Violation("unrequested bytes"));
        }
        self.at(line, HeldLine::default(), context, |desk| {
            if is_stray {
                desk.state.stray = None;
            } else {
                desk.supplied(from);
            }
        });
        Ok(())
    }

    pub(super) fn node_dead(&mut self, node: NodeId, context: &mut StepContext<'_>) {
        for line in self.busy.sorted_keys() {
            self.at(line, HeldLine::default(), context, |desk| {
                if line.home() == node {
                    desk.home_dead(node);
                } else {
                    desk.supplier_dead(node);
                }
            });
        }
        context.effects.push(CoherenceEffect::DropHome { node });
    }

    pub(super) fn quiet(&mut self, node: NodeId, context: &mut StepContext<'_>) {
        for line in self.busy.sorted_keys() {
            self.at(line, HeldLine::default(), context, |desk| desk.quiet(node));
        }
    }

    /// Lines with frames into which bytes of these nodes may still arrive.
    pub(super) fn awaiting(&self, nodes: &NodeSet) -> impl Iterator<Item = LineAddress> + '_ {
        let (nodes, any) = (*nodes, nodes.iter().next().is_some());
        let awaits = move |work: &HolderWork| {
            work.stray_from().is_some_and(|from| from.map_or(any, |node| nodes.contains(node)))
        };
        self.busy.iter().filter(move |(_, work)| awaits(work)).map(|(line, _)| line)
    }

    /// Returns a line with pending work that refers to a node.
    pub(super) fn names(&self, node: NodeId) -> Option<LineAddress> {
        let mut busy = self.busy.iter();
        busy.find(|(line, work)| work.names(node, line.home())).map(|(line, _)| line)
    }

    pub(super) fn drop_pins(&mut self, context: &mut StepContext<'_>) {
        let pinned = self.busy.iter().filter(|(_, work)| work.pins > 0);
        let mut pinned: Vec<LineAddress> = pinned.map(|(line, _)| line).collect();
        pinned.sort_unstable();
        for line in pinned {
            self.at(line, HeldLine::default(), context, |desk| desk.state.pins = 0);
        }
    }

    pub(super) fn settled(&mut self, node: NodeId, context: &mut StepContext<'_>) {
        if !context.dead.contains(node) {
            return;
        }
        for line in self.busy.sorted_keys() {
            if line.home() == node {
                self.at(line, HeldLine::default(), context, |desk| desk.state.stray = None);
            }
        }
    }

    /// Runs `work` on a line, then everything that can proceed after it. `held` is used for a line without an entry.
    fn at(
        &mut self,
        line: LineAddress,
        held: HeldLine,
        context: &mut StepContext<'_>,
        work: impl FnOnce(&mut HolderStep<'_, '_>),
    ) {
        let Self { busy, spare, last_ticket } = self;
        let fresh = || spare.pop().unwrap_or_else(|| Box::new(HolderWork::new()));
        let done = busy.visit(line, fresh, |state, is_new| {
            if is_new {
                state.held = held;
            }
            let mut desk = HolderStep { line, state, last_ticket, context };
            work(&mut desk);
            desk.go_on();
            let is_idle = desk.state.is_idle();
            if is_idle {
                desk.release();
            }
            is_idle
        });
        if let Some(mut state) = done {
            state.frame = Frame::default();
            self.spare.push(state);
        }
    }

    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        let works = self.busy.iter().map(|(_, work)| work).chain(&self.spare);
        let queues: usize = works.map(|work| 1 + work.waiting.capacity()).sum();
        self.busy.capacity() + queues
    }

    pub(super) fn invariants(&self, me: NodeId) -> Result<(), &'static str> {
        for (line, work) in self.busy.iter() {
            if line.home() == me {
                return Err("a holder has work on a line of its own home");
            }
            work.invariants()?;
        }
        Ok(())
    }
}

impl Clone for Holder {
    /// Without the spare entries.
    fn clone(&self) -> Self {
        Self { busy: self.busy.clone(), spare: Vec::new(), last_ticket: self.last_ticket }
    }
}

impl PartialEq for Holder {
    fn eq(&self, other: &Self) -> bool {
        self.last_ticket == other.last_ticket && self.busy == other.busy
    }
}

impl Eq for Holder {}

impl Hash for Holder {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.busy.hash(state);
        self.last_ticket.hash(state);
    }
}
