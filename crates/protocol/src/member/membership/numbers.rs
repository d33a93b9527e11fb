//! Reuse of node numbers, and the generation under which memory is lent.
//!
//! **A number is free** when every member has settled the removal of the last node that had it: its
//! [`burial`](crate::member::burial) machine has said so, and all its other machines have dropped their entries. Each
//! member reports to the coordinator, and again to a new coordinator, the view up to which every removal is settled;
//! the coordinator takes the minimum. A member has no state of nodes that were removed before its own admission, so a
//! joiner that has not reported yet counts with the view of its welcome.
//!
//! *Numbers that a coordinator has never seen used.* The founder knows that they were never used. Another coordinator
//! may not know of a node that was removed before its own admission, and waits until every member has settled all
//! removals up to that view. Of the free numbers, the one freed first is used, numbers never seen before all others.
//!
//! **Generations.** A node that lends memory gets the next generation of its number, which all members count along
//! with the views and joiners learn from their welcome. A generation given in a view that was lost with its
//! coordinator may be given again: no address of that memory exists, since its node was never ready, and a node
//! allocates nothing for others before it is. For the same reason a coordinator reuses the generation of a member
//! that it admitted and that was never linked to it, so that failed joins use none up. Only that coordinator can know
//! this, so the other members take the generation of the last node from it.

use super::{Membership, MembershipStage, refusal};
use crate::member::canary::MemberMutant;
use crate::member::event::{Effects, MemberEffect};
use crate::member::hello::{JoinRefusal, ListedMember};
use crate::member::message::MemberMessage;
use crate::member::roster::RosterEntry;
use crate::member::settings::Leases;
use crate::wire::Violation;
use alloc::format;
use farside_base::{ErrorCode, Generation, NodeId, ViewNumber};

const NOT_SETTLED: &str = "every free node number waits until all members have settled the removal of the node \
    that had it; try again";

impl Membership {
    /// The number of members alive as far as this node knows, itself included, and the maximum number.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.roster.iter().filter(|member| !member.gone).count(), self.nodes_max())
    }

    /// The leases of the cluster.
    pub const fn leases(&self) -> Leases {
        self.identity.settings.leases
    }

    /// The next memory generation of a number: all smaller ones have been used.
    pub fn next_generation(&self, node: NodeId) -> Generation {
        let unused = self.roster.find(node).filter(|last| last.gone && last.unused);
        let next = self.generations.get(&node).copied().unwrap_or(0);
        unused.and_then(|last| last.memory).unwrap_or(Generation(next))
    }

    /// Whether the node admitted in view `born` was removed before this node was a member, or its number was reused.
    pub fn is_former(&self, node: NodeId, born: ViewNumber) -> bool {
        born <= self.view && self.roster.find(node).is_none_or(|member| member.born != born)
    }

    /// Adds a member that a view names.
    pub(super) fn take_in(&mut self, member: RosterEntry, effects: &mut Effects) {
        let node = member.node;
        self.note_generation(&member.listed());
        self.roster.insert(member);
        effects.push(MemberEffect::Admitted { node });
    }

    pub(super) fn note_generation(&mut self, listed: &ListedMember) {
        if let Some(generation) = listed.memory
            && !self.canary.is(MemberMutant::GenerationKept)
        {
            self.generations.insert(listed.node, generation.0 + 1);
        }
    }

    /// Checks that a view may give a member this number and generation.
    pub(super) fn check_number(&self, named: &ListedMember) -> Result<(), Violation> {
        let settled = |last: &RosterEntry| last.died.is_some() && last.settled;
        let used = !self.roster.find(named.node).is_none_or(settled);
        if used || usize::from(named.node.0) >= self.nodes_max() {
            return Err(Violation("view names a node by a used number"));
        }
        let next = self.next_generation(named.node).0;
        if named.memory.is_some_and(|memory| memory.0 + 1 < next) {
            return Err(Violation("view names memory by a used generation"));
        }
        Ok(())
    }

    /// Returns the number that has been free for the longest.
    pub(super) fn free_number(&self, lends: bool) -> Result<NodeId, JoinRefusal> {
        let settled = self.settled_by_all();
        let (mut found, mut waits, mut used_up) = (None, false, false);
        for node in (0..self.identity.settings.nodes_max).map(NodeId) {
            let last = self.roster.find(node);
            let Some(since) = last.map_or(Some(self.unknown_since()), |last| last.died) else {
                continue;
            };
            if lends && self.next_generation(node).0 >= Generation::COUNT {
                used_up = true;
            } else if since > settled && !self.canary.is(MemberMutant::ReusedBeforeSettled) {
                waits = true;
            } else if found.is_none_or(|(first, _)| since < first) {
                found = Some((since, node));
            }
        }
        let (members, most) = self.occupancy();
        match found {
            Some((_, node)) => Ok(node),
            None if waits => Err(refusal(ErrorCode::Busy, NOT_SETTLED)),
            None if used_up => Err(JoinRefusal {
                code: ErrorCode::ClusterFull,
                text: format!(
                    "{members} of {most} members, and memory was lent {} times under each free node number: \
                     nodes without memory can join",
                    Generation::COUNT
                ),
            }),
            None => Err(JoinRefusal {
                code: ErrorCode::ClusterFull,
                text: format!("{members} of {most} members (Limits::nodes_max)"),
            }),
        }
    }

    /// The view up to which nodes unknown to this node may have been removed.
    fn unknown_since(&self) -> ViewNumber {
        if self.born == ViewNumber(1) { ViewNumber(0) } else { self.born }
    }

    /// The view up to which every removal is settled at all members.
    fn settled_by_all(&self) -> ViewNumber {
        let others = self.roster.iter().filter(|member| !member.gone && member.node != self.me);
        let settled = others.map(|member| member.settled_to);
        settled.fold(self.settled_to(), ViewNumber::min)
    }

    /// The view up to which every removal is settled at this node.
    fn settled_to(&self) -> ViewNumber {
        let unsettled = self.roster.iter().filter(|member| !member.settled);
        let before = unsettled.filter_map(|member| Some(ViewNumber(member.died?.0 - 1)));
        before.fold(self.view, ViewNumber::min)
    }

    /// Notes that this node holds no state of a removed member any more.
    pub(super) fn settled(&mut self, node: NodeId, born: ViewNumber) {
        if let Some(member) = self.roster.find_mut(node).filter(|member| member.born == born) {
            debug_assert!(member.gone, "a live member is not settled");
            member.settled = true;
        }
    }

    /// Returns the view up to which removals are settled, for a report to a coordinator.
    pub(super) fn tell_settled(&mut self) -> ViewNumber {
        let settled = self.settled_to();
        let removals = self.roster.iter().filter_map(|member| member.died);
        let last = removals.filter(|died| *died <= settled).max();
        self.settled_told = self.settled_told.max(last.unwrap_or_default());
        settled
    }

    /// Reports to the coordinator if more removals are settled than last reported.
    pub(super) fn report_settled(&mut self, effects: &mut Effects) {
        let Some(to) = self.coordinator().filter(|_| self.stage == MembershipStage::Member) else {
            return;
        };
        let told = self.settled_told;
        let linked = self.roster.find(to).is_some_and(|member| member.linked);
        if !linked || to == self.me {
            return;
        }
        let number = self.tell_settled();
        if self.settled_told > told {
            effects.push(MemberEffect::Send { to, message: MemberMessage::Settled { number } });
        }
    }

    pub(super) fn settled_heard(
        &mut self,
        from: NodeId,
        number: ViewNumber,
    ) -> Result<(), Violation> {
        // Before it takes over, a coordinator may know fewer views; it collects reports when it does.
        if !matches!(self.stage, MembershipStage::Coordinator | MembershipStage::TakingOver) {
            return Ok(());
        }
        if self.stage == MembershipStage::Coordinator && number > self.view {
            return Err(Violation("settled removals of future views"));
        }
        if let Some(member) = self.roster.find_mut(from) {
            member.settled_to = member.settled_to.max(number);
        }
        Ok(())
    }
}
