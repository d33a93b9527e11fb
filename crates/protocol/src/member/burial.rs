//! When the death of a node is settled: every other node knows of it, and what they sent before they
//! knew has arrived.
//!
//! A node that dies may have asked a second one to write into the memory of a third (004 §2.3: a home
//! forwards a request to the owner). The third cannot know whether it did. So each node that learns of
//! a death says so to all that it is linked to, behind everything that it sent them before, and does
//! nothing for the dead one from then on. Who has heard that from everybody it was linked to when it
//! learned of the death itself, except for those that have died since, has nothing to expect any more.
//!
//! A node that is linked later is not waited for: it was no full member while the dead one lived, so it
//! was never asked for anything.

use super::canary::{Canary, Mutant};
use crate::Table;
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{NodeId, NodeSet};

/// What happens to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// This node has learned that a node is dead, has told its other machines, and will send nothing
    /// on behalf of it from now on.
    Dead {
        /// The dead one.
        node: NodeId,
        /// Everybody that this node is linked to.
        linked: NodeSet,
    },
    /// A linked node has said the same, after all that it sent before.
    Buried {
        /// Who says so.
        from: NodeId,
        /// The dead one.
        node: NodeId,
    },
}

/// What the machine wants done, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Tell a linked node that this one knows of the death: [`super::Message::Buried`], behind the bytes
    /// and replies that are on their way to it.
    Tell {
        /// Whom.
        to: NodeId,
        /// The dead one.
        node: NodeId,
    },
    /// Nothing that anybody sends because of the dead node arrives any more.
    Settled {
        /// The dead one.
        node: NodeId,
    },
}

/// What this node knows of one death.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Grave {
    /// Nodes that have said that they know.
    heard: NodeSet,
    /// Those that must say so; `None` while this node does not know itself.
    awaited: Option<NodeSet>,
}

impl Grave {
    fn is_settled(&self) -> bool {
        let silent = |node| !self.heard.contains(node);
        self.awaited.is_some_and(|awaited| !awaited.iter().any(silent))
    }
}

/// The deaths that are not settled yet. *Cost*: one message to each other node for each death.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Burials {
    nodes_max: u16,
    /// By the dead node.
    graves: Table<NodeId, Grave>,
    canary: Canary,
}

impl Burials {
    /// Nobody is dead. Node numbers are below `nodes_max`.
    pub fn new(nodes_max: u16) -> Self {
        Self { nodes_max, graves: Table::new(), canary: Canary::default() }
    }

    /// Puts a defect in.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: Mutant) -> Self {
        self.canary = Canary::new(mutant);
        self
    }

    /// Takes one event; effects are appended.
    ///
    /// # Errors
    /// [`Violation`]: the sender of the message broke the protocol; nothing was changed.
    pub fn step(&mut self, event: Event, effects: &mut Vec<Effect>) -> Result<(), Violation> {
        match event {
            Event::Dead { node, linked } => self.dead(node, linked, effects),
            Event::Buried { node, .. } if node.0 >= self.nodes_max => {
                return Err(Violation("the death of a node that cannot be"));
            }
            Event::Buried { from, node } if from == node => {
                return Err(Violation("a node tells of its own death"));
            }
            Event::Buried { from, node } => {
                let grave = self.graves.get_or_insert_with(node, Grave::default);
                grave.heard.insert(from);
            }
        }
        self.settle(effects);
        Ok(())
    }

    fn dead(&mut self, node: NodeId, linked: NodeSet, effects: &mut Vec<Effect>) {
        for (_, grave) in self.graves.iter_mut() {
            if let Some(awaited) = &mut grave.awaited {
                awaited.remove(node);
            }
        }
        effects.extend(linked.iter().map(|to| Effect::Tell { to, node }));
        let early = self.canary.is(Mutant::DeathSettledAtOnce);
        let grave = self.graves.get_or_insert_with(node, Grave::default);
        grave.awaited = Some(if early { NodeSet::EMPTY } else { linked });
    }

    /// Tells of the deaths that are settled now, by rising node, and forgets them.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        if !self.graves.iter().any(|(_, grave)| grave.is_settled()) {
            return;
        }
        for node in self.graves.sorted_keys() {
            if self.graves.get(node).is_some_and(Grave::is_settled) {
                self.graves.remove(node);
                effects.push(Effect::Settled { node });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const DEAD: NodeId = NodeId(0);

    fn set(nodes: &[u16]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn step(burials: &mut Burials, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        burials.step(event, &mut effects).unwrap();
        effects
    }

    fn dies(node: u16, linked: &[u16]) -> Event {
        Event::Dead { node: NodeId(node), linked: set(linked) }
    }

    fn says(from: u16) -> Event {
        Event::Buried { from: NodeId(from), node: DEAD }
    }

    #[test]
    fn a_death_is_settled_when_everybody_has_said_so() {
        let mut burials = Burials::new(8);
        let tell = |to| Effect::Tell { to: NodeId(to), node: DEAD };
        assert_eq!(step(&mut burials, dies(0, &[2, 3])), [tell(2), tell(3)]);
        assert_eq!(step(&mut burials, says(3)), []);
        assert_eq!(step(&mut burials, says(2)), [Effect::Settled { node: DEAD }]);
        assert_eq!(step(&mut burials, says(4)), [], "whoever comes later is heard in vain");
    }

    #[test]
    fn whoever_knew_before_is_not_waited_for() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, says(2)), []);
        assert_eq!(step(&mut burials, says(3)), []);
        let told = step(&mut burials, dies(0, &[2, 3]));
        assert_eq!(told.last(), Some(&Effect::Settled { node: DEAD }));
    }

    #[test]
    fn the_dead_are_not_waited_for() {
        let mut burials = Burials::new(8);
        step(&mut burials, dies(0, &[2, 3]));
        assert_eq!(step(&mut burials, says(2)), []);
        let settled = [NodeId(0), NodeId(3)].map(|node| Effect::Settled { node });
        let told = Effect::Tell { to: NodeId(2), node: NodeId(3) };
        assert_eq!(step(&mut burials, dies(3, &[2])), [told, settled[0]]);
        let event = Event::Buried { from: NodeId(2), node: NodeId(3) };
        assert_eq!(step(&mut burials, event), [settled[1]]);
    }

    #[test]
    fn the_last_one_waits_for_nobody() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[])), vec![Effect::Settled { node: DEAD }]);
    }

    #[test]
    fn impossible_deaths_are_refused() {
        let mut burials = Burials::new(8);
        for (from, node) in [(1, 8), (1, u16::MAX), (2, 2)] {
            let event = Event::Buried { from: NodeId(from), node: NodeId(node) };
            assert!(burials.step(event, &mut Vec::new()).is_err());
        }
    }
}
