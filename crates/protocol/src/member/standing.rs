//! A lease of a node on its own membership (Gray and Cheriton, *Leases*, SOSP 1989), for fabrics on which a removed
//! member cannot be notified.
//!
//! The other members remove one that they cannot reach. It may be alive, and its threads may be stopped at any point
//! and resume at any later one, so it must be able to find out for itself, at the moment of use, that it may have
//! been removed.
//!
//! **Questions.** This node sends every linked member a request that only an open link answers (a one-sided WRITE; its
//! completion is the answer). An answer shows, whenever it arrives, that the member had this node's link open at some
//! time after the question. When each member of a quorum has answered a question, the data that this node holds is
//! valid until `asked + valid`, where `asked` is the time of the oldest of those questions. The time of a question is
//! read before it is posted; the time at which an answer is processed is irrelevant, since answers may have waited in
//! a buffer while this node was stopped.
//!
//! **Why nothing is reclaimed earlier.** Let this node ask at `a` or later, and let a quorum answer. To remove it,
//! another quorum has cut it off, each member before it voted. Two quorums share a member `p`, which had the link open
//! at `o > a`, and closed it at `c > o`. The node is dead by vote at `d > c`, and a member that knows that settles its
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
/// *Guarantees.* [`until`](Self::until) is at most `valid` after the oldest of the questions that a quorum has
/// answered. *Cost*: a number and a time for each member that has answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    valid: u64,
    /// The time of the last question that each member has answered, the latest first.
    answered: Vec<(u64, NodeId)>,
    until: u64,
}

impl Standing {
    /// Creates a lease without a confirmation; a question will be valid for `valid`.
    pub const fn new(valid: u64) -> Self {
        Self { valid, answered: Vec::new(), until: 0 }
    }

    /// Notes the answer of a member to the question of time `asked`. Returns whether that extends
    /// [`until`](Self::until); `is_quorum` decides which members suffice.
    pub fn answered(
        &mut self,
        node: NodeId,
        asked: u64,
        is_quorum: impl Fn(&[NodeId]) -> bool,
    ) -> bool {
        let last = self.answered.iter().position(|(_, answered)| *answered == node);
        if last.is_some_and(|at| self.answered[at].0 >= asked) {
            return false;
        }
        if let Some(at) = last {
            self.answered.remove(at);
        }
        let at = self.answered.partition_point(|(before, _)| *before > asked);
        self.answered.insert(at, (asked, node));
        let mut nodes = Vec::with_capacity(self.answered.len());
        let oldest = self.answered.iter().find(|(_, node)| {
            nodes.push(*node);
            is_quorum(&nodes)
        });
        let until = oldest.map_or(0, |(asked, _)| asked.saturating_add(self.valid));
        let prolongs = until > self.until;
        self.until = self.until.max(until);
        prolongs
    }

    /// Drops the answer of a removed member: it does not count for the next node with its number.
    pub fn removed(&mut self, node: NodeId) {
        self.answered.retain(|(_, answered)| *answered != node);
    }

    /// The data that this node holds is valid before this time, exclusive.
    pub const fn until(&self) -> u64 {
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two(nodes: &[NodeId]) -> bool {
        nodes.len() >= 2
    }

    #[test]
    fn oldest_question_that_a_quorum_answered_counts() {
        let mut standing = Standing::new(10);
        assert_eq!(standing.until(), 0);
        assert!(!standing.answered(NodeId(1), 100, two));
        assert!(!standing.answered(NodeId(1), 103, two), "the same member again");
        assert_eq!(standing.until(), 0);
        assert!(standing.answered(NodeId(2), 101, two));
        assert_eq!(standing.until(), 111);
        assert!(!standing.answered(NodeId(3), 99, two), "two have answered later questions");
        assert!(standing.answered(NodeId(3), 105, two));
        assert_eq!(standing.until(), 113, "of members 3 and 1");
        assert!(!standing.answered(NodeId(3), 104, two), "it has answered a later one");
        assert!(standing.answered(NodeId(2), 104, two));
        assert_eq!(standing.until(), 114);
    }

    #[test]
    fn slow_member_counts_by_its_own_question() {
        let mut standing = Standing::new(100);
        for asked in [10, 20, 30] {
            standing.answered(NodeId(1), asked, two);
        }
        assert!(standing.answered(NodeId(2), 5, two), "asked long ago, and answered just now");
        assert_eq!(standing.until(), 105);
    }

    #[test]
    fn answer_of_a_removed_member_does_not_count_for_the_next_of_its_number() {
        let mut standing = Standing::new(10);
        assert!(!standing.answered(NodeId(1), 100, two));
        standing.removed(NodeId(1));
        assert!(!standing.answered(NodeId(2), 100, two));
        assert_eq!(standing.until(), 0);
    }
}
