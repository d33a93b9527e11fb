//! Which of two members goes when they cannot reach each other, although the coordinator reaches both.
//!
//! Every member has a link to every other, so one of the two has to go. An accusation says which link does not hold,
//! not which end is at fault. The coordinator therefore collects accusations until those of one outage must have
//! arrived (`Effect::JudgeLater`, `Event::Judge`), takes them for the edges of a graph, and removes the
//! members with the most edges until no edge is left: the greedy vertex cover. Of members with equally many, one without
//! memory goes first (it takes nothing with it), then the one that was admitted last. A member whose own network fails
//! is an end of all broken links, so that it goes and not those that accuse it; a program with a link that fails
//! takes no server along.
//!
//! A member that the coordinator does not reach itself is not judged here: it is a suspect (see [`quorum`](super::quorum)).
//! Members that are removed learn of it as every suspect does. A member repeats its accusations in its report to
//! a new coordinator.

use super::{Membership, Stage};
use crate::member::event::{Effect, Effects};
use alloc::vec::Vec;
use farside_base::NodeId;

/// Pairs of live members that are no suspects, the smaller number first, without duplicates.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Accusations(Vec<(NodeId, NodeId)>);

impl Accusations {
    /// Whether the pair is new.
    fn insert(&mut self, one: NodeId, other: NodeId) -> bool {
        let pair = (one.min(other), one.max(other));
        let new = !self.0.contains(&pair);
        if new {
            self.0.push(pair);
            self.0.sort_unstable();
        }
        new
    }

    /// The member is removed or a suspect.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.0.retain(|(one, other)| *one != node && *other != node);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn contains(&self, node: NodeId) -> bool {
        self.degree(node) > 0
    }

    fn degree(&self, node: NodeId) -> usize {
        self.0.iter().filter(|(one, other)| *one == node || *other == node).count()
    }
}

impl Membership {
    /// The coordinator, or the one that takes over, hears that a member cannot reach another.
    pub(super) fn accused(&mut self, by: NodeId, node: NodeId, effects: &mut Effects) {
        let judged =
            |node| self.roster.find(node).is_none_or(|member| member.gone || member.suspect);
        if by == node || judged(by) || judged(node) {
            return;
        }
        let first = self.accusations.is_empty();
        let new = self.accusations.insert(by, node);
        if new && first && self.stage == Stage::Coordinator {
            effects.push(Effect::JudgeLater);
        }
    }

    /// All accusations of one outage have arrived.
    pub(super) fn judge_accusations(&mut self, effects: &mut Effects) {
        if self.stage != Stage::Coordinator {
            return; // another coordinator hears of them in the reports
        }
        let mut removes = false;
        while let Some(node) = self.most_accused() {
            self.suspect(node, effects);
            removes = true;
        }
        if removes {
            self.judge(effects);
        }
    }

    fn most_accused(&self) -> Option<NodeId> {
        let accused = self.roster.iter().filter(|member| !member.gone);
        let accused = accused.filter(|member| self.accusations.contains(member.node));
        let worst = accused.max_by_key(|member| {
            (self.accusations.degree(member.node), member.memory.is_none(), member.born)
        });
        worst.map(|member| member.node)
    }
}
