//! Decides which of two members is removed if they cannot reach each other, although the coordinator reaches both.
//!
//! Every member has a link to every other, so one of the two has to be removed. An accusation says which link is
//! broken, not which end is at fault. The coordinator therefore collects accusations until those of one outage must
//! have arrived and it has reached both ends since (`MemberEffect::JudgeLater`, `MemberEvent::Judge`), takes them as the edges
//! of a graph, and removes the members
//! with the most edges until no edge is left: the greedy vertex cover. Of members with equally many edges, a program is
//! removed first, then a witness (no data is lost with either), then the one admitted last. A member with a failed
//! network is an end of all broken links, so it is removed and its accusers are not; a program or a witness with a
//! failed link causes no server to be removed. A witness that reaches both ends of a broken link is no end of it, and
//! remains.
//!
//! The remaining members are always a quorum, otherwise the coordinator would give up itself. Accusations that have
//! to be postponed for that are judged when a vote has removed the first members.
//!
//! A member that the coordinator itself does not reach is a suspect, and not judged here (see
//! [`quorum`](super::quorum)). Removed members learn of it as every suspect does. A member repeats its accusations in
//! its report to a new coordinator.

use super::{Membership, MembershipStage};
use crate::member::canary::mutant;
use crate::member::event::{Effects, MemberEffect};
use alloc::vec::Vec;
use farside_base::NodeId;

impl Membership {
    /// Notes, at the coordinator or the node that takes over, that a member cannot reach another.
    pub(super) fn accused(&mut self, by: NodeId, node: NodeId, effects: &mut Effects) {
        let judged =
            |node| self.roster.find(node).is_none_or(|member| member.gone || member.suspect);
        if by == node || judged(by) || judged(node) {
            return;
        }
        let first = self.accusations.is_empty();
        let new = self.accusations.insert(by, node);
        if new && first && self.stage == MembershipStage::Coordinator {
            effects.push(MemberEffect::JudgeLater);
        }
    }

    /// The members at both ends of the links of which accusations say that they are broken.
    pub fn accused_members(&self) -> impl Iterator<Item = NodeId> + '_ {
        let nodes = self.roster.iter().map(|member| member.node);
        nodes.filter(|node| self.accusations.contains(*node))
    }

    /// Judges the accusations: all of one outage have arrived, or a vote has decided about the members removed first.
    pub(super) fn judge_accusations(&mut self, effects: &mut Effects) {
        if self.stage != MembershipStage::Coordinator {
            return; // another coordinator receives them in the reports
        }
        let mut removes = false;
        while let Some(node) = self.most_accused() {
            self.suspect(node, effects);
            removes = true;
        }
        self.accusations.postponed = !self.accusations.is_empty();
        if removes {
            self.judge(effects);
        }
    }

    fn most_accused(&self) -> Option<NodeId> {
        let accused = self.roster.iter().filter(|member| !member.gone);
        let accused = accused.filter(|member| {
            self.accusations.contains(member.node) && self.is_quorum_without(member.node)
        });
        let worst = accused.max_by_key(|member| {
            let flaw = mutant!(self, WitnessJudgedAsLender) && member.witness;
            let dispensability = if flaw { 0 } else { member.dispensability() };
            (self.accusations.degree(member.node), dispensability, member.born)
        });
        worst.map(|member| member.node)
    }

    fn is_quorum_without(&self, node: NodeId) -> bool {
        let rest: Vec<NodeId> = self.linked().into_iter().filter(|other| *other != node).collect();
        self.is_quorum(&rest)
    }
}
