//! The model of leaving's access to the memory of the nodes.

use super::{CoherenceAction, MessageInFlight, System};
use crate::explorer::Violation;
use farside_base::NodeId;
use farside_protocol::coherence::{CoherenceEvent, Level};
use farside_protocol::wire::Class;

impl System {
    /// The violation of a property that holds in every state, if any.
    pub(in crate::model) fn state_violation(&self) -> Option<Violation> {
        let lines = 0..self.setup.homes.len() as u8;
        let copies = || lines.map(|line| self.copies_violation(line)).find_map(|found| found);
        let found = self.wrong.clone().or_else(copies).or_else(|| self.pins_violation());
        found.or_else(|| self.words_violation()).map(Violation)
    }

    /// Messages in flight from one node to another, by class.
    pub(in crate::model) fn in_flight(&self, from: u16, to: u16) -> [u8; Class::ALL.len()] {
        let mut counts = [0; Class::ALL.len()];
        let between = |flight: &&MessageInFlight| flight.from == from && flight.to == to;
        for flight in self.flights.iter().filter(between) {
            counts[flight.message.class() as usize] += 1;
        }
        counts
    }

    /// The lines of which a node has a copy.
    pub(in crate::model) fn copies(&self, node: u16) -> impl Iterator<Item = u8> + '_ {
        (0..self.setup.homes.len() as u8).filter(move |line| {
            self.home(*line) != node && self.tag(node, *line).held.level > Level::Invalid
        })
    }

    /// Whether a node has no operation, and neither holds nor receives a copy of another home's line.
    pub(in crate::model) fn is_drained(&self, node: u16) -> bool {
        let state = self.node(node);
        state.waiting.is_empty()
            && state.pinned.is_empty()
            && self.copies(node).next().is_none()
            && !state.machine.holds_work()
    }

    /// A node returns a line to its home.
    pub(in crate::model) fn give_back(&mut self, node: u16, line: u8) {
        self.tell(|| format!("n{node} gives line {line} back"));
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::Evict { line: address, here });
    }

    /// A node has left.
    pub(in crate::model) fn leave(&mut self, node: u16) {
        self.tell(|| format!("n{node} has left"));
        self.left |= 1 << node;
        self.end(node);
    }

    /// Whether a node is running.
    pub(in crate::model) fn runs(&self, node: u16) -> bool {
        self.node(node).alive
    }

    /// A node learns of another node's end, unless it knows of it.
    pub(in crate::model) fn learn_of_end(&mut self, node: u16, other: u16) {
        if self.node(node).noticed >> other & 1 == 0 {
            self.notice(node, other);
        }
    }

    /// A line that has lost its only copy.
    pub(in crate::model) fn lost_line(&self) -> Option<u8> {
        (0..self.setup.homes.len() as u8).find(|line| {
            let home = self.node(self.home(*line));
            home.alive && home.machine.is_lost(self.address(*line))
        })
    }

    /// Whether the membership model decides when this step happens.
    pub(in crate::model) const fn is_of_membership(action: CoherenceAction) -> bool {
        matches!(action, CoherenceAction::Notice(..) | CoherenceAction::Die(_))
    }

    /// The node whose program takes this step, if a program does.
    pub(in crate::model) fn chooser(&self, action: CoherenceAction) -> Option<NodeId> {
        match action {
            CoherenceAction::Start(node, ..)
            | CoherenceAction::Evict(node, _)
            | CoherenceAction::Cancel(node, _)
            | CoherenceAction::Flush(node, _) => Some(NodeId(node)),
            CoherenceAction::Retire(line) | CoherenceAction::Allocate(line) => {
                Some(NodeId(self.home(line)))
            }
            CoherenceAction::Deliver(..)
            | CoherenceAction::Placed(..)
            | CoherenceAction::Logged(_)
            | CoherenceAction::WriteBack(..)
            | CoherenceAction::Finish(..)
            | CoherenceAction::Die(_)
            | CoherenceAction::Notice(..)
            | CoherenceAction::Settle(..)
            | CoherenceAction::Quiet(..)
            | CoherenceAction::Reuse(_)
            | CoherenceAction::Direct(_) => None,
        }
    }
}
