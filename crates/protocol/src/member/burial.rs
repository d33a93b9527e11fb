//! When the death of a node is settled: every other node knows of it, and what they sent before they
//! knew has arrived.
//!
//! A node that dies may have asked a second one to write into the memory of a third (004 §2.3: a home
//! forwards a request to the owner). The third cannot know whether it did. So each node that learns of
//! a death says so to all that it is linked to, behind everything that it sent them before, and does
//! nothing for the dead one from then on. Who has heard that from everybody it was linked to when it
//! learned of the death itself, except for those that have died since, has nothing to expect any more.
//!
//! *Links that are younger than the death.* A node that was linked to this one only after it had learned of
//! the death (a joiner, which learns of it later) was not told, and says so itself when it learns of it: it is
//! answered then, and its message and the answer have swept both directions of the link. A node that never
//! knew the dead one answers at once.
//!
//! *Numbers are given again*, so the dead are told apart by the view that admitted them. When all members have
//! settled the death of `n`, no message that speaks of that bearer of the number is in flight between any two:
//! of each pair, each has received the other's `Buried`, or was linked after the other had sent the last of
//! it. What a member that is gone has said does not count for the next bearer of *its* number either.

use super::canary::{Canary, Mutant};
use crate::Table;
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{NodeId, NodeSet, ViewNumber};

/// What happens to the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// This node has learned that a node is dead, has told its other machines, and will send nothing
    /// on behalf of it from now on.
    Dead {
        /// The dead one.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// Every peer that this node is linked to.
        linked: NodeSet,
    },
    /// A linked node has said the same, after all that it sent before.
    Buried {
        /// The peer that says so.
        from: NodeId,
        /// The dead one.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// It answers what this node said.
        answer: bool,
        /// The dead one was removed before this node was a member, or its number was given again.
        former: bool,
    },
}

/// What the machine wants done, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Tell a linked node that this one knows of the death: [`super::Message::Buried`], behind the bytes
    /// and replies that are on their way to it.
    Tell {
        /// The peer.
        to: NodeId,
        /// The dead one.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// It answers what the peer said.
        answer: bool,
    },
    /// Nothing arrives any more that a peer sends because of the dead node, of the peers that were linked when
    /// this node learned of the death.
    Settled {
        /// The dead one.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
    },
}

/// What this node knows of one death.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Grave {
    /// The view that admitted the dead one.
    born: ViewNumber,
    /// Nodes that have said that they know.
    heard: NodeSet,
    /// Those that must say so; `None` while this node does not know itself.
    awaited: Option<NodeSet>,
    /// Those that this node has told.
    told: NodeSet,
    settled: bool,
}

impl Grave {
    fn of(born: ViewNumber) -> Self {
        Self { born, ..Self::default() }
    }

    fn is_due(&self) -> bool {
        let silent = |node| !self.heard.contains(node);
        !self.settled && self.awaited.is_some_and(|awaited| !awaited.iter().any(silent))
    }
}

/// The last death under each number. *Cost*: one message to each other node for each death.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Burials {
    nodes_max: u16,
    /// By the dead node; kept until its number is given again.
    graves: Table<NodeId, Grave>,
    canary: Canary,
}

impl Burials {
    /// No node is dead. Node numbers are below `nodes_max`.
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
            Event::Dead { node, born, linked } => self.dead(node, born, linked, effects),
            Event::Buried { node, .. } if node.0 >= self.nodes_max => {
                return Err(Violation("the death of a node that cannot be"));
            }
            Event::Buried { from, node, .. } if from == node => {
                return Err(Violation("a node tells of its own death"));
            }
            Event::Buried { from, node, born, answer, former } => {
                let older = self.graves.get(node).is_some_and(|grave| born < grave.born);
                if former || older {
                    self.answer(from, node, born, answer, effects);
                } else {
                    self.buried(from, node, born, answer, effects)?;
                }
            }
        }
        self.settle(effects);
        Ok(())
    }

    fn dead(&mut self, node: NodeId, born: ViewNumber, linked: NodeSet, effects: &mut Vec<Effect>) {
        for (_, grave) in self.graves.iter_mut() {
            grave.heard.remove(node);
            grave.told.remove(node);
            if let Some(awaited) = &mut grave.awaited {
                awaited.remove(node);
            }
        }
        let early = self.canary.is(Mutant::DeathSettledAtOnce);
        let any_bearer = self.canary.is(Mutant::FormerBurialCounts);
        let grave = self.graves.get_or_insert_with(node, || Grave::of(born));
        debug_assert!(grave.born <= born, "deaths of one number come in order");
        if grave.born != born {
            debug_assert!(grave.settled || grave.awaited.is_none(), "settled before it was reused");
            let heard = if any_bearer { grave.heard } else { NodeSet::EMPTY };
            *grave = Grave { heard, ..Grave::of(born) };
        }
        if grave.awaited.is_some() {
            return; // known
        }
        grave.told = linked;
        grave.awaited = Some(if early { NodeSet::EMPTY } else { linked });
        effects.extend(linked.iter().map(|to| Effect::Tell { to, node, born, answer: false }));
    }

    fn buried(
        &mut self,
        from: NodeId,
        node: NodeId,
        born: ViewNumber,
        answer: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Violation> {
        let grave = self.graves.get_or_insert_with(node, || Grave::of(born));
        if grave.born < born {
            if grave.awaited.is_some() && !grave.settled {
                return Err(Violation("a number was given again before a death was settled"));
            }
            *grave = Grave::of(born);
        }
        grave.heard.insert(from);
        if grave.awaited.is_some() && grave.told.insert(from) {
            self.answer(from, node, born, answer, effects);
        }
        Ok(())
    }

    fn answer(
        &self,
        to: NodeId,
        node: NodeId,
        born: ViewNumber,
        is_answer: bool,
        effects: &mut Vec<Effect>,
    ) {
        if !is_answer && !self.canary.is(Mutant::BurialUnanswered) {
            effects.push(Effect::Tell { to, node, born, answer: true });
        }
    }

    /// Tells of the deaths that are settled now, by rising node.
    fn settle(&mut self, effects: &mut Vec<Effect>) {
        if !self.graves.iter().any(|(_, grave)| grave.is_due()) {
            return;
        }
        for node in self.graves.sorted_keys() {
            if let Some(grave) = self.graves.get_mut(node)
                && grave.is_due()
            {
                grave.settled = true;
                effects.push(Effect::Settled { node, born: grave.born });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const DEAD: NodeId = NodeId(0);
    const BORN: ViewNumber = ViewNumber(5);

    fn set(nodes: &[u16]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    fn step(burials: &mut Burials, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        burials.step(event, &mut effects).unwrap();
        effects
    }

    fn dies(node: u16, linked: &[u16]) -> Event {
        Event::Dead { node: NodeId(node), born: BORN, linked: set(linked) }
    }

    fn says(from: u16) -> Event {
        says_of(from, 0, BORN)
    }

    fn says_of(from: u16, node: u16, born: ViewNumber) -> Event {
        let (from, node) = (NodeId(from), NodeId(node));
        Event::Buried { from, node, born, answer: false, former: false }
    }

    fn tell(to: u16, node: u16, answer: bool) -> Effect {
        Effect::Tell { to: NodeId(to), node: NodeId(node), born: BORN, answer }
    }

    fn settled(node: u16) -> Effect {
        Effect::Settled { node: NodeId(node), born: BORN }
    }

    #[test]
    fn death_is_settled_when_every_linked_node_has_said_so() {
        let mut burials = Burials::new(8);
        let told = [tell(2, 0, false), tell(3, 0, false)];
        assert_eq!(step(&mut burials, dies(0, &[2, 3])), told);
        assert_eq!(step(&mut burials, says(3)), []);
        assert_eq!(step(&mut burials, says(2)), [settled(0)]);
    }

    #[test]
    fn node_linked_after_the_death_is_answered_once() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[])), [settled(0)]);
        assert_eq!(step(&mut burials, says(4)), [tell(4, 0, true)]);
        assert_eq!(step(&mut burials, says(4)), []);
        let (from, node) = (NodeId(5), DEAD);
        let answer = Event::Buried { from, node, born: BORN, answer: true, former: false };
        assert_eq!(step(&mut burials, answer), [], "an answer needs none");
    }

    #[test]
    fn node_that_never_knew_the_dead_one_answers_at_once() {
        let mut burials = Burials::new(8);
        let (from, node) = (NodeId(5), DEAD);
        let former = Event::Buried { from, node, born: BORN, answer: false, former: true };
        assert_eq!(step(&mut burials, former), [tell(5, 0, true)]);
        assert_eq!(burials, Burials::new(8), "and keeps nothing");
    }

    #[test]
    fn node_that_knew_before_is_not_waited_for() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, says(2)), []);
        assert_eq!(step(&mut burials, says(3)), []);
        let told = step(&mut burials, dies(0, &[2, 3]));
        assert_eq!(told.last(), Some(&settled(0)));
    }

    #[test]
    fn dead_nodes_are_not_waited_for() {
        let mut burials = Burials::new(8);
        step(&mut burials, dies(0, &[2, 3]));
        assert_eq!(step(&mut burials, says(2)), []);
        assert_eq!(step(&mut burials, dies(3, &[2])), [tell(2, 3, false), settled(0)]);
        assert_eq!(step(&mut burials, says_of(2, 3, BORN)), [settled(3)]);
    }

    #[test]
    fn word_on_a_former_bearer_does_not_count_for_the_next() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[])), [settled(0)]);
        step(&mut burials, says(2));
        let born = ViewNumber(9);
        let next = Event::Dead { node: DEAD, born, linked: set(&[2]) };
        assert_eq!(step(&mut burials, next).len(), 1, "node 2 is told and waited for");
        let late = step(&mut burials, says(2));
        assert_eq!(late, [tell(2, 0, true)], "the former one's; nothing is settled by it");
        let settled = Effect::Settled { node: DEAD, born };
        assert_eq!(step(&mut burials, says_of(2, 0, born)), [settled]);
    }

    #[test]
    fn word_of_a_former_bearer_does_not_count_as_the_next_ones() {
        let mut burials = Burials::new(8);
        step(&mut burials, says(2));
        step(&mut burials, dies(2, &[]));
        assert_eq!(step(&mut burials, dies(0, &[2])), [tell(2, 0, false)], "the next node 2");
        assert_eq!(step(&mut burials, says(2)), [settled(0)]);
    }

    #[test]
    fn the_last_node_waits_for_none() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[])), vec![settled(0)]);
    }

    #[test]
    fn impossible_deaths_are_refused() {
        let mut burials = Burials::new(8);
        for (from, node) in [(1, 8), (1, u16::MAX), (2, 2)] {
            let event = says_of(from, node, BORN);
            assert!(burials.step(event, &mut Vec::new()).is_err());
        }
        step(&mut burials, dies(0, &[2]));
        let early = says_of(2, 0, ViewNumber(9));
        assert!(burials.step(early, &mut Vec::new()).is_err());
    }
}
