//! The coherence machine of one node.

use super::canary::{Canary, Mutant};
use super::holder::Holder;
use super::home::Home;
use super::{Context, Counters, Effect, Effects, Event, Here, Message, Step};
use crate::wire::Violation;
use core::hash::{Hash, Hasher};
use farside_base::{ErrorCode, Grant, Limits, LineAddress, NodeId, NodeSet};

/// Home of this node's lines and holder of the lines of others.
///
/// Pure: the effects of a step depend on the events so far and on nothing else. A step on the miss
/// path costs a few look-ups and allocates nothing once the machine has met its load.
#[derive(Clone, Debug)]
pub struct Coherence {
    me: NodeId,
    nodes_max: u16,
    dead: NodeSet,
    /// Dead nodes whose bytes may still land here.
    lingering: NodeSet,
    home: Home,
    holder: Holder,
    counters: Counters,
    canary: Canary,
}

impl Coherence {
    /// The machine of node `me`, with nothing shared and nothing held.
    pub fn new(me: NodeId, limits: &Limits) -> Self {
        Self {
            me,
            nodes_max: limits.nodes_max.min(NodeSet::CAPACITY as u16),
            dead: NodeSet::EMPTY,
            lingering: NodeSet::EMPTY,
            home: Home::new(limits),
            holder: Holder::new(limits),
            counters: Counters::default(),
            canary: Canary::default(),
        }
    }

    /// A machine with a defect, to test tests.
    #[cfg(canary)]
    pub fn with_mutant(me: NodeId, limits: &Limits, mutant: Mutant) -> Self {
        Self { canary: Canary::new(mutant), ..Self::new(me, limits) }
    }

    /// Continues the numbering of grants behind `last`: a home that takes over or comes back from a
    /// log must not use a number twice.
    pub const fn continue_grants(&mut self, last: Grant) {
        self.home.continue_grants(last);
    }

    /// What it has done.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Lines of this home that others hold, or that are lost.
    pub fn lines_away(&self) -> usize {
        self.home.lines_away()
    }

    /// Lines with work under way, in both roles.
    pub fn lines_busy(&self) -> usize {
        self.home.lines_busy() + self.holder.lines_busy()
    }

    /// Whether a line of another home is in transition at this node: something is still to be sent or to
    /// arrive because this node had it or asked for it.
    pub fn holds_work(&self) -> bool {
        self.holder.holds_work()
    }

    /// Lines of other homes whose frames a removed node may still write.
    pub fn quarantined(&self) -> impl Iterator<Item = LineAddress> + '_ {
        self.holder.awaiting(&self.lingering)
    }

    /// Whether an operation keeps a line of another home at this node.
    pub fn is_pinned(&self, line: LineAddress) -> bool {
        self.holder.is_pinned(line)
    }

    /// Who owns an own line, if another node does.
    pub fn owner(&self, line: LineAddress) -> Option<(NodeId, Grant)> {
        self.home.owner(line)
    }

    /// Who shares an own line, by rising node.
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

    /// Takes one event and says what is to be done, appended to `effects` in this order.
    ///
    /// # Errors
    /// When the event is a message that no correct peer sends: nothing was changed, and the link to
    /// the peer should be closed. Events of the node's own never fail.
    pub fn step(&mut self, event: Event, effects: &mut Effects) -> Step {
        match event {
            Event::Received { from, ref message, here } => {
                return self.received(from, message, here, effects);
            }
            Event::NodeDead { node } => self.node_dead(node, effects),
            Event::Lingers { node } => _ = self.lingering.insert(node),
            Event::Quiet { node } => {
                self.lingering.remove(node);
                let (_, holder, mut context) = self.parts(effects);
                holder.quiet(node, &mut context);
            }
            Event::NodeAdmitted { node } => self.node_admitted(node),
            Event::Settled { node } => {
                let (_, holder, mut context) = self.parts(effects);
                holder.settled(node, &mut context);
            }
            Event::DropPins => {
                let (_, holder, mut context) = self.parts(effects);
                holder.drop_pins(&mut context);
            }
            Event::Issue { line, .. }
            | Event::WriteBack { line, .. }
            | Event::Cancel { line, .. }
            | Event::Unpin { line, .. }
            | Event::Evict { line, .. }
            | Event::Retire { line, .. }
            | Event::Placed { line, .. } => self.own_event(line, &event, effects),
        }
        Ok(())
    }

    /// What must hold between two steps; the text says what does not.
    pub fn invariants(&self) -> Result<(), &'static str> {
        self.home.invariants(self.me)?;
        self.holder.invariants(self.me)
    }

    /// Entries that all its tables, spares and queues have room for: what growth would change.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.home.memory() + self.holder.memory()
    }

    fn parts<'a>(
        &'a mut self,
        effects: &'a mut Effects,
    ) -> (&'a mut Home, &'a mut Holder, Context<'a>) {
        let context = Context {
            me: self.me,
            dead: &self.dead,
            lingering: &self.lingering,
            effects,
            counters: &mut self.counters,
            canary: self.canary,
        };
        (&mut self.home, &mut self.holder, context)
    }

    fn own_event(&mut self, line: LineAddress, event: &Event, effects: &mut Effects) {
        let own = line.home() == self.me;
        let foreign = line.home().0 >= self.nodes_max;
        let (home, holder, mut context) = self.parts(effects);
        match *event {
            Event::Issue { operation, .. } if foreign => {
                context.fail(operation, line, ErrorCode::ForeignAddress);
                context.effects.push(Effect::Release { line });
            }
            Event::Retire { operation, .. } if !own => {
                context.fail(operation, line, ErrorCode::NotAnAllocation);
            }
            _ if own => home.own_event(line, event, &mut context),
            _ => holder.own_event(line, event, &mut context),
        }
    }

    fn received(
        &mut self,
        from: NodeId,
        message: &Message,
        here: Here,
        effects: &mut Effects,
    ) -> Step {
        if from.0 >= self.nodes_max || from == self.me {
            return Err(Violation("a message from a node that cannot be"));
        }
        if self.dead.contains(from) {
            return Ok(());
        }
        let line = message.line();
        let nodes_max = self.nodes_max;
        let own = line.home() == self.me;
        let (home, holder, mut context) = self.parts(effects);
        match *message {
            Message::Read { .. }
            | Message::Write { .. }
            | Message::Evict { .. }
            | Message::WriteBack { .. }
            | Message::Ack { .. } => {
                if !own {
                    return Err(Violation("a message for the home of another node's line"));
                }
                return home.received(from, message, here, &mut context);
            }
            Message::Recall { forward, .. } => {
                if line.home() != from {
                    return Err(Violation("a recall from a node that is not the line's home"));
                }
                if forward.is_some_and(|to| {
                    to.node.0 >= nodes_max || to.node == context.me || to.node == from
                }) {
                    return Err(Violation("a recall forwards to a node that cannot be"));
                }
            }
            Message::Grant { .. } | Message::Refuse { .. } | Message::Written { .. } => {
                if line.home() != from {
                    return Err(Violation("an answer from a node that is not the line's home"));
                }
            }
            Message::Data { .. } => {
                if own || line.home() == from {
                    return Err(Violation("bytes of a line between its home and an owner"));
                }
            }
        }
        holder.received(from, message, here, &mut context)
    }

    /// A dead node is remembered until its number is given again: from then on nothing may be left that
    /// names it.
    fn node_admitted(&mut self, node: NodeId) {
        if self.dead.remove(node) {
            debug_assert_eq!(self.home.names(node), None, "{node} is a new node");
            let kept = self.canary.is(Mutant::FormerRequesterKept);
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
    /// Equal when they behave alike from now on; counters do not count.
    fn eq(&self, other: &Self) -> bool {
        (self.me, self.nodes_max, self.dead, self.lingering, self.canary)
            == (other.me, other.nodes_max, other.dead, other.lingering, other.canary)
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
