//! Settles the death of a node: every other node knows of it, and everything that they sent before they knew has
//! arrived.
//!
//! A node that dies may have asked a second one to write into the memory of a third (004 §2.3: a home forwards a
//! request to the owner), and the third cannot know whether it did. So each node that learns of a death notifies all
//! linked peers, after everything that it sent them before, and does nothing on behalf of the dead node from then on.
//! A node settles the death once it has received that notification from every peer that was linked when it learned of
//! the death, except peers that have died since.
//!
//! *Lanes.* Messages of different classes overtake each other on one link, and messages of two classes refer to a
//! third node: a home's recall names the requester to which the owner writes, and replies follow such writes. So a
//! node sends the notification once in each of these classes, gets an answer in each, and counts as notified when
//! both have arrived.
//!
//! *Links younger than the death.* A node that was linked to this one only after this one learned of the death (a
//! joiner, which learns of it later) was not notified. It sends its own notification when it learns of the death, and
//! is answered then: its message and the answer have swept both directions of the link. A node that never knew the
//! dead one answers at once.
//!
//! *Numbers are reused*, so dead nodes are identified by the view that admitted them. When all members have settled
//! the death of `n`, no message about that node is in flight between any two: of each pair, each has received the
//! other's `Buried`, or was linked after the other had sent its last message about `n`. The notifications of a
//! removed member do not count for the next node with *its* number either.
//!
//! *Invalid messages.* A peer's notification counts for that peer alone, and only if it names the node that this node
//! considers dead: a peer that names others delays nothing reported by correct peers.

use super::canary::{MemberMutant, mutant};
use crate::Table;
use crate::wire::{Class, Violation};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farside_base::{NodeId, NodeSet, Planted, ViewNumber};

/// The message classes that refer to a third node; each link keeps the order within one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Recalls.
    Forward,
    /// Replies, and the bytes written before them.
    Reply,
}

impl Lane {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Forward, Self::Reply];

    /// The class of its messages.
    pub const fn class(self) -> Class {
        match self {
            Self::Forward => Class::Forward,
            Self::Reply => Class::Reply,
        }
    }
}

/// An event for the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemovalEvent {
    /// This node has learned that a node is dead, and has notified its other machines. It will send nothing on behalf
    /// of that node from now on.
    Dead {
        /// The dead node.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// Every peer that this node is linked to.
        linked: NodeSet,
    },
    /// A linked node has sent the same notification, after all that it sent before.
    Buried {
        /// The peer that sent it.
        from: NodeId,
        /// The dead node.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// The class in which it arrived.
        lane: Lane,
        /// It answers this node's notification in that class.
        answer: bool,
        /// The dead node was removed before this node was a member, or its number was reused.
        former: bool,
    },
}

/// An action that the machine requests; perform them in order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemovalEffect {
    /// Send [`super::MemberMessage::Buried`] to a linked node, after the bytes and replies in flight to it.
    Tell {
        /// The peer.
        to: NodeId,
        /// The dead node.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// The class in which to send it.
        lane: Lane,
        /// It answers the peer's notification in that class.
        answer: bool,
    },
    /// No message sent because of the dead node arrives any more from the peers that were linked when this node
    /// learned of the death.
    Settled {
        /// The dead node.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
    },
}

/// A death known to this node.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Grave {
    /// The view that admitted the dead node.
    born: ViewNumber,
    /// Peers whose notifications are outstanding.
    awaited: NodeSet,
    /// Peers that this node has notified, by lane.
    told: [NodeSet; 2],
    settled: bool,
}

/// The last death under each number. *Cost*: two messages to each other node per death.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Burials {
    nodes_max: u16,
    /// By dead node; kept until its number is reused.
    graves: Table<NodeId, Grave>,
    /// By dead node, lane and peer: the view that admitted the last node of that number that the peer reported dead,
    /// until this node has settled that death.
    heard: BTreeMap<(NodeId, Lane, NodeId), ViewNumber>,
    mutant: Planted<MemberMutant>,
}

impl Burials {
    /// Creates the machine with no dead nodes. Node numbers are below `nodes_max`.
    pub fn new(nodes_max: u16) -> Self {
        Self { nodes_max, graves: Table::new(), heard: BTreeMap::new(), mutant: Planted::NONE }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: MemberMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// Handles one event and appends its effects.
    ///
    /// # Errors
    /// [`Violation`]: the sender of the message broke the protocol; nothing was changed.
    pub fn step(
        &mut self,
        event: RemovalEvent,
        effects: &mut Vec<RemovalEffect>,
    ) -> Result<(), Violation> {
        match event {
            RemovalEvent::Dead { node, born, linked } => self.dead(node, born, linked, effects),
            RemovalEvent::Buried { node, .. } if node.0 >= self.nodes_max => {
                return Err(Violation("the death of an invalid node"));
            }
            RemovalEvent::Buried { from, node, .. } if from == node => {
                return Err(Violation("a node reports its own death"));
            }
            RemovalEvent::Buried { from, node, born, lane, answer, former: true } => {
                if !answer {
                    self.answer(from, node, born, lane, effects);
                }
            }
            RemovalEvent::Buried { from, node, born, lane, answer, former: false } => {
                self.buried((from, lane), node, born, answer, effects)?;
            }
        }
        self.settle(effects);
        Ok(())
    }

    fn dead(
        &mut self,
        node: NodeId,
        born: ViewNumber,
        linked: NodeSet,
        effects: &mut Vec<RemovalEffect>,
    ) {
        self.heard.retain(|(_, _, peer), _| *peer != node);
        for (_, grave) in self.graves.iter_mut() {
            grave.awaited.remove(node);
            for told in &mut grave.told {
                told.remove(node);
            }
        }
        if let Some(last) = self.graves.get(node) {
            if last.born == born {
                return; // known already
            }
            debug_assert!(last.born < born, "deaths of one number come in order");
            debug_assert!(last.settled, "settled before the number was reused");
        }
        let early = mutant!(self, DeathSettledAtOnce);
        let awaited = if early { NodeSet::EMPTY } else { linked };
        self.graves.insert(node, Grave { born, awaited, told: [linked; 2], settled: false });
        for lane in Lane::ALL {
            let told = linked.iter();
            effects.extend(told.map(|to| RemovalEffect::Tell {
                to,
                node,
                born,
                lane,
                answer: false,
            }));
        }
    }

    fn buried(
        &mut self,
        (from, lane): (NodeId, Lane),
        node: NodeId,
        born: ViewNumber,
        answer: bool,
        effects: &mut Vec<RemovalEffect>,
    ) -> Result<(), Violation> {
        let mut untold = false;
        if let Some(grave) = self.graves.get_mut(node) {
            if born > grave.born && !grave.settled {
                return Err(Violation("a number was reused before a death was settled"));
            }
            // This node holds no state of an earlier node with this number.
            untold =
                born < grave.born || born == grave.born && grave.told[lane as usize].insert(from);
        }
        if !self.is_settled(node, born) {
            self.heard.insert((node, lane, from), born);
        }
        if untold && !answer {
            self.answer(from, node, born, lane, effects);
        }
        Ok(())
    }

    fn answer(
        &self,
        to: NodeId,
        node: NodeId,
        born: ViewNumber,
        lane: Lane,
        effects: &mut Vec<RemovalEffect>,
    ) {
        if !mutant!(self, BurialUnanswered) {
            effects.push(RemovalEffect::Tell { to, node, born, lane, answer: true });
        }
    }

    /// Whether this node has settled the death of this node, or of a later one with the same number.
    fn is_settled(&self, node: NodeId, born: ViewNumber) -> bool {
        let settled = |grave: &Grave| born < grave.born || born == grave.born && grave.settled;
        self.graves.get(node).is_some_and(settled)
    }

    /// Whether a death can be settled now: every awaited peer has sent its notification in each lane.
    fn is_due(&self, node: NodeId, grave: &Grave) -> bool {
        let any_bearer = mutant!(self, FormerBurialCounts);
        let one_lane = mutant!(self, BurialOvertakesRecalls);
        let says = |lane, peer| {
            let said = self.heard.get(&(node, lane, peer));
            said.is_some_and(|said| *said == grave.born || any_bearer)
                || one_lane && lane == Lane::Forward
        };
        let has_said = |peer| Lane::ALL.into_iter().all(|lane| says(lane, peer));
        !grave.settled && grave.awaited.iter().all(has_said)
    }

    /// Emits `Settled` for the deaths that can be settled now, by ascending node number.
    fn settle(&mut self, effects: &mut Vec<RemovalEffect>) {
        if !self.graves.iter().any(|(node, grave)| self.is_due(node, grave)) {
            return;
        }
        for node in self.graves.sorted_keys() {
            if self.graves.get(node).is_some_and(|grave| self.is_due(node, grave))
                && let Some(grave) = self.graves.get_mut(node)
            {
                grave.settled = true;
                let born = grave.born;
                effects.push(RemovalEffect::Settled { node, born });
                if !mutant!(self, FormerBurialCounts) {
                    self.heard.retain(|(dead, ..), said| *dead != node || *said > born);
                }
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

    fn step(burials: &mut Burials, event: RemovalEvent) -> Vec<RemovalEffect> {
        let mut effects = Vec::new();
        burials.step(event, &mut effects).unwrap();
        effects
    }

    fn dies(node: u16, linked: &[u16]) -> RemovalEvent {
        RemovalEvent::Dead { node: NodeId(node), born: BORN, linked: set(linked) }
    }

    /// In both lanes.
    fn says(burials: &mut Burials, from: u16) -> Vec<RemovalEffect> {
        says_of(burials, from, 0, BORN)
    }

    fn says_of(
        burials: &mut Burials,
        from: u16,
        node: u16,
        born: ViewNumber,
    ) -> Vec<RemovalEffect> {
        let word = |lane| buried(from, node, born, lane, false);
        Lane::ALL.into_iter().flat_map(|lane| step(burials, word(lane))).collect()
    }

    fn buried(from: u16, node: u16, born: ViewNumber, lane: Lane, answer: bool) -> RemovalEvent {
        let (from, node) = (NodeId(from), NodeId(node));
        RemovalEvent::Buried { from, node, born, lane, answer, former: false }
    }

    /// Notifications of each of these, in both lanes.
    fn tell(to: &[u16], node: u16, answer: bool) -> Vec<RemovalEffect> {
        let node = NodeId(node);
        let tell =
            |lane, to: u16| RemovalEffect::Tell { to: NodeId(to), node, born: BORN, lane, answer };
        Lane::ALL.into_iter().flat_map(|lane| to.iter().map(move |to| tell(lane, *to))).collect()
    }

    fn settled(node: u16) -> RemovalEffect {
        RemovalEffect::Settled { node: NodeId(node), born: BORN }
    }

    #[test]
    fn death_is_settled_when_every_linked_node_has_said_so() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[2, 3])), tell(&[2, 3], 0, false));
        assert_eq!(says(&mut burials, 3), []);
        assert_eq!(says(&mut burials, 2), [settled(0)]);
    }

    #[test]
    fn peer_is_heard_when_both_lanes_have_come() {
        for [first, last] in [[Lane::Forward, Lane::Reply], [Lane::Reply, Lane::Forward]] {
            let mut burials = Burials::new(8);
            step(&mut burials, dies(0, &[2]));
            assert_eq!(step(&mut burials, buried(2, 0, BORN, first, false)), []);
            assert_eq!(step(&mut burials, buried(2, 0, BORN, last, false)), [settled(0)]);
        }
    }

    #[test]
    fn node_linked_after_the_death_is_answered_once() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[])), [settled(0)]);
        assert_eq!(says(&mut burials, 4), tell(&[4], 0, true));
        assert_eq!(says(&mut burials, 4), []);
        let answer = buried(5, 0, BORN, Lane::Reply, true);
        assert_eq!(step(&mut burials, answer), [], "an answer needs none");
    }

    #[test]
    fn node_that_never_knew_the_dead_one_answers_at_once() {
        let mut burials = Burials::new(8);
        let (from, node, lane) = (NodeId(5), DEAD, Lane::Reply);
        let former =
            RemovalEvent::Buried { from, node, born: BORN, lane, answer: false, former: true };
        let answer = RemovalEffect::Tell { to: from, node, born: BORN, lane, answer: true };
        assert_eq!(step(&mut burials, former), [answer]);
        assert_eq!(burials, Burials::new(8), "and keeps nothing");
    }

    #[test]
    fn node_that_knew_before_is_not_waited_for() {
        let mut burials = Burials::new(8);
        assert_eq!(says(&mut burials, 2), []);
        assert_eq!(says(&mut burials, 3), []);
        let told = step(&mut burials, dies(0, &[2, 3]));
        assert_eq!(told.last(), Some(&settled(0)));
    }

    #[test]
    fn dead_nodes_are_not_waited_for() {
        let mut burials = Burials::new(8);
        step(&mut burials, dies(0, &[2, 3]));
        assert_eq!(says(&mut burials, 2), []);
        let mut expected = tell(&[2], 3, false);
        expected.push(settled(0));
        assert_eq!(step(&mut burials, dies(3, &[2])), expected);
        assert_eq!(says_of(&mut burials, 2, 3, BORN), [settled(3)]);
    }

    #[test]
    fn word_on_a_former_bearer_does_not_count_for_the_next() {
        let mut burials = Burials::new(8);
        assert_eq!(step(&mut burials, dies(0, &[])), [settled(0)]);
        says(&mut burials, 2);
        let born = ViewNumber(9);
        let next = RemovalEvent::Dead { node: DEAD, born, linked: set(&[2]) };
        assert_eq!(step(&mut burials, next).len(), 2, "node 2 is notified and awaited");
        let late = says(&mut burials, 2);
        assert_eq!(late, tell(&[2], 0, true), "the former one's; nothing is settled by it");
        let settled = RemovalEffect::Settled { node: DEAD, born };
        assert_eq!(says_of(&mut burials, 2, 0, born), [settled]);
    }

    #[test]
    fn word_of_a_former_bearer_does_not_count_as_the_next_ones() {
        let mut burials = Burials::new(8);
        says(&mut burials, 2);
        step(&mut burials, dies(2, &[]));
        let told = tell(&[2], 0, false);
        assert_eq!(step(&mut burials, dies(0, &[2])), told, "the next node 2");
        assert_eq!(says(&mut burials, 2), [settled(0)]);
    }

    #[test]
    fn word_on_a_bearer_to_come_delays_no_other_peer() {
        for lie in [ViewNumber(BORN.0 + 1), ViewNumber(u64::MAX), ViewNumber(0)] {
            let mut burials = Burials::new(8);
            says(&mut burials, 2);
            assert_eq!(says_of(&mut burials, 7, 0, lie), []);
            says(&mut burials, 3);
            assert_eq!(step(&mut burials, dies(7, &[2, 3])), tell(&[2, 3], 7, false));
            let told = step(&mut burials, dies(0, &[2, 3]));
            assert_eq!(told.last(), Some(&settled(0)), "{lie:?}");
        }
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
            let event = buried(from, node, BORN, Lane::Reply, false);
            assert!(burials.step(event, &mut Vec::new()).is_err());
        }
        step(&mut burials, dies(0, &[2]));
        let early = buried(2, 0, ViewNumber(9), Lane::Reply, false);
        assert!(burials.step(early, &mut Vec::new()).is_err());
    }
}
