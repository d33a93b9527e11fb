//! The coherence machine of one node.

use super::canary::{CoherenceMutant, mutant};
use super::holder::Holder;
use super::home::Home;
use super::{
    CoherenceEffect, CoherenceEvent, CoherenceMessage, Counters, Effects, Here, Step, StepContext,
};
use crate::wire::Violation;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use farside_base::{ErrorCode, Grant, Limits, LineAddress, NodeId, NodeSet, Planted};

/// The coherence machine of one node: home of its own lines and holder of other nodes' lines.
///
/// Pure: the effects of a step depend only on the events so far. A step on the miss path costs a few look-ups and
/// allocates nothing once the machine has reached its peak load.
#[derive(Clone, Debug)]
pub struct Coherence {
    me: NodeId,
    nodes_max: u16,
    dead: NodeSet,
    /// Dead nodes with bytes that may still land at this node.
    lingering: NodeSet,
    home: Home,
    holder: Holder,
    /// Lines of this home are logged.
    logs: bool,
    /// No other node is granted an own line for writing.
    closing: bool,
    counters: Counters,
    mutant: Planted<CoherenceMutant>,
}

impl Coherence {
    /// Creates the machine of node `me`, with nothing shared and nothing held.
    pub fn new(me: NodeId, limits: &Limits) -> Self {
        Self {
            me,
            nodes_max: limits.nodes_max.min(NodeSet::CAPACITY as u16),
            dead: NodeSet::EMPTY,
            lingering: NodeSet::EMPTY,
            home: Home::new(limits),
            holder: Holder::new(limits),
            logs: false,
            closing: false,
            counters: Counters::default(),
            mutant: Planted::NONE,
        }
    }

    /// Creates a machine with a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(me: NodeId, limits: &Limits, mutant: CoherenceMutant) -> Self {
        Self { mutant: Planted::new(mutant), ..Self::new(me, limits) }
    }

    /// Has the lines of this home logged, from the start: a line is granted only once its bytes are durable.
    #[must_use]
    pub const fn with_log(mut self) -> Self {
        self.logs = true;
        self
    }

    /// Continues the numbering of grants after `last`. A home that returns need not: no copy of its lines exists then.
    pub const fn continue_grants(&mut self, last: Grant) {
        self.home.continue_grants(last);
    }

    /// Grants no own line for writing from now on: this home leaves. The
    /// requests are refused with `HomeAway`. Returns whether it granted lines before.
    pub const fn stop_granting(&mut self) -> bool {
        !core::mem::replace(&mut self.closing, true)
    }

    /// Whether bytes of a removed node may still land in lines of this home.
    pub fn is_lingering(&self) -> bool {
        !self.lingering.is_empty()
    }

    /// Statistics of the machine.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The number of lines of this home that other nodes hold, or that are lost.
    pub fn lines_away(&self) -> usize {
        self.home.lines_away()
    }

    /// The number of lines of this home that were lost with their owners.
    pub fn lines_lost(&self) -> usize {
        self.home.lines_lost()
    }

    /// The number of lines with pending work, in both roles.
    pub fn lines_busy(&self) -> usize {
        self.home.lines_busy() + self.holder.lines_busy()
    }

    /// Whether a line has pending work at this node: it is being fetched, recalled or given back.
    pub fn is_busy(&self, line: LineAddress) -> bool {
        match line.home() == self.me {
            true => self.home.is_busy(line),
            false => self.holder.is_busy(line),
        }
    }

    /// Whether a line of another home is in transition at this node: a message is still to be sent or to arrive
    /// because this node held or requested it.
    pub fn holds_work(&self) -> bool {
        self.holder.holds_work()
    }

    /// Lines of other homes with frames that a removed node may still write.
    pub fn quarantined(&self) -> impl Iterator<Item = LineAddress> + '_ {
        self.holder.awaiting(&self.lingering)
    }

    /// Whether an operation pins a line of another home at this node.
    pub fn is_pinned(&self, line: LineAddress) -> bool {
        self.holder.is_pinned(line)
    }

    /// The owner of an own line, if another node owns it.
    pub fn owner(&self, line: LineAddress) -> Option<(NodeId, Grant)> {
        self.home.owner(line)
    }

    /// The own lines that other nodes own, in ascending order.
    pub fn owned_lines(&self) -> Vec<LineAddress> {
        self.home.owned_lines()
    }

    /// The sharers of an own line, by ascending node number.
    pub fn sharers(
        &self,
        line: LineAddress,
    ) -> impl ExactSizeIterator<Item = (NodeId, Grant)> + '_ {
        self.home.sharers(line)
    }

    /// Whether the only copy of an own line was at a node that died.
    pub fn is_lost(&self, line: LineAddress) -> bool {
        self.home.is_lost(line)
    }

    /// Handles one event and appends its effects in order.
    ///
    /// # Errors
    /// The event is a message that no correct peer sends: nothing was changed; close the link to the peer. This
    /// node's own events never fail.
    pub fn step(&mut self, event: CoherenceEvent, effects: &mut Effects) -> Step {
        match event {
            CoherenceEvent::Received { from, ref message, here } => {
                return self.received(from, message, here, effects);
            }
            CoherenceEvent::NodeDead { node } => self.node_dead(node, effects),
            CoherenceEvent::Lingers { node } => _ = self.lingering.insert(node),
            CoherenceEvent::Quiet { node } => {
                self.lingering.remove(node);
                let (home, holder, mut context) = self.parts(effects);
                home.quiet(&mut context);
                holder.quiet(node, &mut context);
            }
            CoherenceEvent::NodeAdmitted { node } => self.node_admitted(node),
            CoherenceEvent::Settled { node } => {
                let (_, holder, mut context) = self.parts(effects);
                holder.settled(node, &mut context);
            }
            CoherenceEvent::DropPins => {
                let (_, holder, mut context) = self.parts(effects);
                holder.drop_pins(&mut context);
            }
            CoherenceEvent::Issue { line, .. }
            | CoherenceEvent::WriteBack { line, .. }
            | CoherenceEvent::Cancel { line, .. }
            | CoherenceEvent::Unpin { line, .. }
            | CoherenceEvent::Evict { line, .. }
            | CoherenceEvent::Retire { line, .. }
            | CoherenceEvent::Logged { line }
            | CoherenceEvent::Placed { line, .. } => self.own_event(line, &event, effects),
        }
        Ok(())
    }

    /// Checks the invariants between two steps; the text names the broken one.
    pub fn invariants(&self) -> Result<(), &'static str> {
        self.home.invariants(self.me, self.logs)?;
        self.holder.invariants(self.me)
    }

    /// The total capacity of its tables, spare entries and queues, which changes if any of them grows.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.home.memory() + self.holder.memory()
    }

    fn parts<'a>(
        &'a mut self,
        effects: &'a mut Effects,
    ) -> (&'a mut Home, &'a mut Holder, StepContext<'a>) {
        let context = StepContext {
            me: self.me,
            dead: &self.dead,
            lingering: &self.lingering,
            effects,
            counters: &mut self.counters,
            logs: self.logs,
            closing: self.closing,
            mutant: self.mutant,
        };
        (&mut self.home, &mut self.holder, context)
    }

    fn own_event(&mut self, line: LineAddress, event: &CoherenceEvent, effects: &mut Effects) {
        let own = line.home() == self.me;
        let foreign = line.home().0 >= self.nodes_max;
        let (home, holder, mut context) = self.parts(effects);
        match *event {
            CoherenceEvent::Issue { operation, .. } if foreign => {
                context.fail(operation, line, ErrorCode::ForeignAddress);
                context.effects.push(CoherenceEffect::Release { line });
            }
            CoherenceEvent::Retire { operation, .. } if !own => {
                context.fail(operation, line, ErrorCode::NotAnAllocation);
            }
            _ if own => home.own_event(line, event, &mut context),
            _ => holder.own_event(line, event, &mut context),
        }
    }

    fn received(
        &mut self,
        from: NodeId,
        message: &CoherenceMessage,
        here: Here,
        effects: &mut Effects,
    ) -> Step {
        if from.0 >= self.nodes_max || from == self.me {
            return Err(Violation("a message from an invalid node"));
        }
        if self.dead.contains(from) {
            return Ok(());
        }
        let line = message.line();
        let nodes_max = self.nodes_max;
        let own = line.home() == self.me;
        let (home, holder, mut context) = self.parts(effects);
        match *message {
            CoherenceMessage::Read { .. }
            | CoherenceMessage::Write { .. }
            | CoherenceMessage::Evict { .. }
            | CoherenceMessage::WriteBack { .. }
            | CoherenceMessage::Ack { .. } => {
                if !own {
                    return Err(Violation("a message for the home of another node's line"));
                }
                return home.received(from, message, here, &mut context);
            }
            CoherenceMessage::Recall { forward, .. } => {
                if line.home() != from {
                    return Err(Violation("a recall from a node that is not the line's home"));
                }
                if forward.is_some_and(|to| {
                    to.node.0 >= nodes_max || to.node == context.me || to.node == from
                }) {
                    return Err(Violation("a recall forwards to an invalid node"));
                }
            }
            CoherenceMessage::Grant { .. }
            | CoherenceMessage::Refuse { .. }
            | CoherenceMessage::Written { .. } => {
                if line.home() != from {
                    return Err(Violation("an answer from a node that is not the line's home"));
                }
            }
            CoherenceMessage::Data { .. } => {
                if own || line.home() == from {
                    return Err(Violation("bytes of a line between its home and an owner"));
                }
            }
        }
        holder.received(from, message, here, &mut context)
    }

    /// Handles the reuse of a dead node's number, which was remembered until now: nothing may refer to the dead node
    /// any more.
    fn node_admitted(&mut self, node: NodeId) {
        if self.dead.remove(node) {
            debug_assert_eq!(self.home.names(node), None, "{node} is a new node");
            let kept = mutant!(self, FormerRequesterKept);
            debug_assert!(kept || self.holder.names(node).is_none(), "{node} is a new node");
        }
    }

    fn node_dead(&mut self, node: NodeId, effects: &mut Effects) {
        if node == self.me || !self.dead.insert(node) {
            return;
        }
        let (home, holder, mut context) = self.parts(effects);
        home.node_dead(node, &mut context);
        holder.node_dead(node, &mut context);
    }
}

impl PartialEq for Coherence {
    /// Equal if they behave alike from now on; counters are ignored.
    fn eq(&self, other: &Self) -> bool {
        (self.me, self.nodes_max, self.dead, self.lingering, self.logs, self.mutant)
            == (other.me, other.nodes_max, other.dead, other.lingering, other.logs, other.mutant)
            && self.closing == other.closing
            && self.home == other.home
            && self.holder == other.holder
    }
}

impl Eq for Coherence {}

impl Hash for Coherence {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.me, self.dead, self.lingering).hash(state);
        self.home.hash(state);
        self.holder.hash(state);
    }
}
