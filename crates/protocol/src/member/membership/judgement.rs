//! Accusations and votes about members.

use alloc::vec::Vec;
use farside_base::{NodeId, NodeSet};

/// Accusations that have not been judged.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Accusations {
    /// Pairs of live members that are not suspects, the smaller number first, without duplicates.
    pub(super) pairs: Vec<(NodeId, NodeId)>,
    /// They were judged once, and some wait for a vote.
    pub(super) postponed: bool,
}

impl Accusations {
    /// Adds a pair; returns whether it is new.
    pub(super) fn insert(&mut self, one: NodeId, other: NodeId) -> bool {
        let pair = (one.min(other), one.max(other));
        let new = !self.pairs.contains(&pair);
        if new {
            self.pairs.push(pair);
            self.pairs.sort_unstable();
        }
        new
    }

    /// Drops the accusations of a member that was removed or is a suspect.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.pairs.retain(|(one, other)| *one != node && *other != node);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.degree(node) > 0
    }

    /// Whether accusations wait for the vote about the members removed first.
    pub(super) fn are_postponed(&self) -> bool {
        self.postponed && !self.is_empty()
    }

    pub(super) fn degree(&self, node: NodeId) -> usize {
        self.pairs.iter().filter(|(one, other)| *one == node || *other == node).count()
    }
}

/// A vote of the coordinator on its suspects.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Vote {
    /// Counts the votes, so that late answers to earlier ones are recognized.
    pub(super) round: u64,
    /// The members that have answered this vote.
    pub(super) ayes: NodeSet,
}
