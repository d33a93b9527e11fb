//! A lease of a node on its own membership (Gray and Cheriton, *Leases*, SOSP 1989), for fabrics on which a removed
//! member cannot be notified.
//!
//! The other members remove one that they cannot reach. It may be alive, and its threads may be stopped at any point
//! and resume at any later one, so it must be able to find out for itself, at the moment of use, that it may have
//! been removed.
//!
//! **Rounds.** This node sends every linked member a request that only an open link answers (a one-sided WRITE; its
//! completion is the answer). An answer shows, whenever it arrives, that the member had this node's link open at some
//! time after the question. With answers of a quorum, the data that this node holds is valid until `asked + valid`.
//! The time of the question is read before it is posted; the time at which an answer is processed is irrelevant,
//! since answers may have waited in a buffer while this node was stopped.
//!
//! **Why nothing is reclaimed earlier.** Let this node ask at `a`, and let a quorum answer. To remove it, another
//! quorum has cut it off, each member before it voted. Two quorums share a member `p`, which had the link open at
//! `o > a`, and closed it at `c > o`. The node is dead by vote at `d > c`, and a member that knows that settles its
//! memory at `d + unaware` ([`Patience::unaware_ns`](super::contact::Patience)) at the earliest. So with
//! `valid < unaware`
//!
//! ```text
//! asked + valid  <  asked + unaware  <  o + unaware  <  c + unaware  <  d + unaware  <=  settled
//! ```
//!
//! the data that this node holds is current until the lease expires. The difference, a fifth of `unaware`, is the
//! margin for clocks that run at different rates. The node must read its clock *after* it has copied: if it was
//! stopped between the two, it finds the lease expired.

use alloc::vec::Vec;
use farside_base::NodeId;

/// The lease of one node on its own membership, in the runtime's unit of time.
///
/// *Guarantees.* [`until`](Self::until) is at most `valid` after the question of a round that a quorum has answered.
/// *Cost*: nothing until it is queried.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    valid: u64,
    /// Number of the last round, and when its questions were posted.
    round: u32,
    asked: u64,
    /// The members that have answered it.
    answered: Vec<NodeId>,
    until: u64,
}

impl Standing {
    /// Creates a lease without a confirmation; a round will be valid for `valid`.
    pub const fn new(valid: u64) -> Self {
        Self { valid, round: 0, asked: 0, answered: Vec::new(), until: 0 }
    }

    /// Begins a round, before its questions are posted, and returns its number. Answers to earlier rounds no longer
    /// count.
    pub fn ask(&mut self, now: u64) -> u32 {
        self.round = self.round.wrapping_add(1);
        self.asked = now;
        self.answered.clear();
        self.round
    }

    /// Notes the answer of a member to a round. True if the answers suffice, according to `is_quorum`.
    pub fn answered(
        &mut self,
        node: NodeId,
        round: u32,
        is_quorum: impl FnOnce(&[NodeId]) -> bool,
    ) -> bool {
        if round != self.round || self.answered.contains(&node) {
            return false;
        }
        self.answered.push(node);
        let enough = is_quorum(&self.answered);
        if enough {
            self.until = self.until.max(self.asked.saturating_add(self.valid));
        }
        enough
    }

    /// Drops the answer of a removed member: it does not count for the next node with its number.
    pub fn removed(&mut self, node: NodeId) {
        self.answered.retain(|answered| *answered != node);
    }

    /// The data that this node holds is valid before this time, exclusive.
    pub const fn until(&self) -> u64 {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_counts_from_its_question_and_needs_a_quorum() {
        let two = |nodes: &[NodeId]| nodes.len() >= 2;
        let mut standing = Standing::new(10);
        assert_eq!(standing.until(), 0);
        let first = standing.ask(100);
        assert!(!standing.answered(NodeId(1), first, two));
        assert!(!standing.answered(NodeId(1), first, two), "the same member again");
        assert_eq!(standing.until(), 0);
        assert!(standing.answered(NodeId(2), first, two));
        assert_eq!(standing.until(), 110);
        let second = standing.ask(105);
        assert!(!standing.answered(NodeId(1), first, two), "an answer to the round before");
        assert!(!standing.answered(NodeId(1), second, two));
        assert_eq!(standing.until(), 110, "the last round counts as long as it did");
        assert!(standing.answered(NodeId(3), second, two));
        assert_eq!(standing.until(), 115);
    }

    #[test]
    fn answer_of_a_removed_member_does_not_count_for_the_next_of_its_number() {
        let two = |nodes: &[NodeId]| nodes.len() >= 2;
        let mut standing = Standing::new(10);
        let round = standing.ask(100);
        assert!(!standing.answered(NodeId(1), round, two));
        standing.removed(NodeId(1));
        assert!(!standing.answered(NodeId(2), round, two));
        assert_eq!(standing.until(), 0);
    }
}
