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
//!
//! **Nodes with state** ([`Keeps`]) have numbers from the upper half of all numbers. Views and welcomes say which
//! numbers are theirs, so every coordinator keeps such a number for its node: no ordinary node gets it, and a new node
//! with state only if the last one was never ready. A node that returns gets its number and the generation of its
//! memory again once every member has settled its removal, unless the cluster has seen a later memory under that
//! number. A node that leaves with its memory saved is a node with state from its `Leave` on; so the process that is
//! started from what it has saved returns as it. If that node ends before its coordinator has received the `Leave`, its
//! memory has ended, at all members, and what it has saved is refused.

use super::{Membership, MembershipStage, refusal};
use crate::member::canary::mutant;
use crate::member::event::{Effects, MemberEffect};
use crate::member::hello::{Join, JoinRefusal, LentNumber, ListedMember, Welcome};
use crate::member::keeps::Keeps;
use crate::member::message::MemberMessage;
use crate::member::role::MemberRole;
use crate::member::roster::RosterEntry;
use crate::member::settings::Leases;
use crate::wire::Violation;
use alloc::{format, string::String};
use core::ops::Range;
use farside_base::{ErrorCode, Generation, MemoryId, NodeId, ViewNumber};

const NOT_SETTLED: &str = "every free node number waits until all members have settled the removal of the node \
    that had it; try again";
const RETURN_NOT_SETTLED: &str = "the members have not settled the removal of the last node with the number of this \
    state directory; try again";
const STATE_PRESENT: &str = "a node with this state directory is a member: its removal is not complete, or another \
    process uses a copy of the directory; end that process, or try again";

/// What a number is used for.
enum NumberUse {
    /// A node that no view has removed has it.
    Member,
    /// Its last node is removed, and not all members have settled that.
    Pending,
    /// Memory was lent under it in each generation.
    UsedUp,
    /// A node with state will return under it.
    Kept,
    /// Free since this view.
    Free(ViewNumber),
}

impl NumberUse {
    fn free_since(&self, node: NodeId) -> Option<(ViewNumber, NodeId)> {
        match self {
            Self::Free(since) => Some((*since, node)),
            Self::Member | Self::Pending | Self::UsedUp | Self::Kept => None,
        }
    }
}

fn foreign(mut text: String) -> JoinRefusal {
    text.push_str("; use the newest copy of the directory, or an empty one to join as a new node");
    JoinRefusal { code: ErrorCode::StateForeign, text }
}

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
        let next = self.generations.get(&node).map_or(0, |lent| lent.next);
        unused.and_then(|last| last.memory).unwrap_or(Generation(next))
    }

    /// Whether the last memory under this number is that of a node with state, which is a member or will return.
    pub fn keeps(&self, node: NodeId) -> bool {
        self.generations.get(&node).is_some_and(|lent| lent.state)
    }

    /// Returns the numbers of nodes with state, members or not.
    pub fn kept(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.generations.iter().filter(|(_, lent)| lent.state).map(|(node, _)| *node)
    }

    /// Whether this is the memory of a node with state. While its node is no member, its contents are kept.
    pub fn keeps_memory(&self, memory: MemoryId) -> bool {
        let lent = self.generations.get(&memory.node());
        lent.is_some_and(|lent| lent.state && lent.next == memory.generation().0 + 1)
    }

    /// Replaces what this process keeps of its earlier lives. Call it before `Found` or `Joined`.
    pub fn with_keeps(mut self, keeps: Keeps) -> Self {
        self.identity.keeps = keeps;
        self
    }

    /// Replaces this process's role. Call it before `Found` or `Joined`.
    pub fn with_role(mut self, role: MemberRole) -> Self {
        self.identity.role = role;
        self
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
            && !mutant!(self, GenerationKept)
        {
            let ListedMember { node, state, names, .. } = *listed;
            let lent = LentNumber { node, next: generation.0 + 1, state, names };
            self.generations.insert(node, lent);
        }
    }

    /// Notes whether a member is a node with state: one becomes it when it leaves with its memory saved. What the
    /// coordinator knows when it removes the member is true for all.
    pub(super) fn note_state(&mut self, node: NodeId, (state, names): (bool, bool)) {
        let lends = |member: &&mut RosterEntry| member.memory.is_some();
        let Some(member) = self.roster.find_mut(node).filter(lends) else {
            return;
        };
        if (member.state, member.names) != (state, names) && !mutant!(self, SavedMemoryForgotten) {
            (member.state, member.names) = (state, names);
            let listed = member.listed();
            self.note_generation(&listed);
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
        if self.keeps(named.node) && !named.state {
            return Err(Violation("view gives the number of a node with state to another node"));
        }
        Ok(())
    }

    /// Whether a welcome gives this process what it asked for.
    pub(super) fn is_own(&self, welcome: &Welcome) -> bool {
        match self.identity.keeps {
            Keeps::Nothing | Keeps::New => true,
            Keeps::Known { node, generation, .. } => {
                welcome.node == node && welcome.memory == Some(generation)
            }
        }
    }

    /// The generation of the memory that a joiner lends under this number, if it lends any.
    pub(super) fn memory_for(&self, join: &Join, number: NodeId) -> Option<Generation> {
        match join.keeps {
            Keeps::Known { generation, .. } => Some(generation),
            Keeps::Nothing | Keeps::New => {
                (join.home_bytes > 0).then(|| self.next_generation(number))
            }
        }
    }

    /// Returns the number for a joiner.
    pub(super) fn number_for(&self, join: &Join) -> Result<NodeId, JoinRefusal> {
        let lends = join.home_bytes > 0;
        let nodes_max = self.identity.settings.nodes_max;
        let misfit = |text: String| refusal(ErrorCode::BadConfiguration, &text);
        join.keeps.check(lends, nodes_max).map_err(misfit)?;
        let half = Keeps::first_number(nodes_max).0;
        match join.keeps {
            Keeps::Nothing => self.ordinary_number(lends, half),
            Keeps::New => self.new_number(half..nodes_max),
            Keeps::Known { node, generation, .. } => {
                self.check_return(node, generation).map(|()| node)
            }
        }
    }

    /// Returns the number of the lower half that has been free for the longest, or else of the upper half.
    fn ordinary_number(&self, lends: bool, half: u16) -> Result<NodeId, JoinRefusal> {
        let nodes_max = self.identity.settings.nodes_max;
        let kept = |node| self.keeps(node) && !mutant!(self, StateNumberReused);
        let uses = |node| if kept(node) { NumberUse::Kept } else { self.number_use(node, lends) };
        let longest = |numbers: Range<u16>| {
            let free = numbers.map(NodeId).filter_map(|node| uses(node).free_since(node));
            free.min().map(|(_, node)| node)
        };
        let found = longest(0..half).or_else(|| longest(half..nodes_max));
        found.ok_or_else(|| self.no_number((0..nodes_max).map(NodeId).map(uses)))
    }

    /// Returns the lowest free number for a new node with state.
    fn new_number(&self, upper: Range<u16>) -> Result<NodeId, JoinRefusal> {
        // The number of a new node with state that was never ready is in no state directory.
        let unused = |node| self.roster.find(node).is_some_and(|last| last.gone && last.unused);
        let kept = |node| self.keeps(node) && !unused(node);
        let uses = |node| if kept(node) { NumberUse::Kept } else { self.number_use(node, true) };
        let mut free =
            upper.clone().map(NodeId).filter(|node| uses(*node).free_since(*node).is_some());
        free.next().ok_or_else(|| self.no_number(upper.map(NodeId).map(uses)))
    }

    fn number_use(&self, node: NodeId, lends: bool) -> NumberUse {
        let last = self.roster.find(node);
        let Some(since) = last.map_or(Some(self.unknown_since()), |last| last.died) else {
            return NumberUse::Member;
        };
        if lends && self.next_generation(node).0 >= Generation::COUNT {
            NumberUse::UsedUp
        } else if since > self.settled_by_all() && !mutant!(self, ReusedBeforeSettled) {
            NumberUse::Pending
        } else {
            NumberUse::Free(since)
        }
    }

    /// The refusal of a joiner for which no number is free.
    fn no_number(&self, uses: impl Iterator<Item = NumberUse>) -> JoinRefusal {
        let (mut pending, mut used_up, mut kept) = (false, false, 0);
        for number_use in uses {
            match number_use {
                NumberUse::Pending => pending = true,
                NumberUse::UsedUp => used_up = true,
                NumberUse::Kept => kept += 1,
                NumberUse::Member | NumberUse::Free(_) => {}
            }
        }
        if pending {
            return refusal(ErrorCode::Busy, NOT_SETTLED);
        }
        let (members, most) = self.occupancy();
        let text = match (used_up, kept) {
            (true, _) => format!(
                "{members} of {most} members, and memory was lent {} times under each free node number: nodes \
                 without memory can join",
                Generation::COUNT
            ),
            (false, 0) => format!("{members} of {most} members (Limits::nodes_max)"),
            (false, _) => format!(
                "{members} of {most} members, and {kept} of the permitted numbers are those of nodes with state \
                 (Limits::nodes_max)"
            ),
        };
        JoinRefusal { code: ErrorCode::ClusterFull, text }
    }

    /// Whether a node with state may return as a member now.
    fn check_return(&self, node: NodeId, generation: Generation) -> Result<(), JoinRefusal> {
        let last = self.roster.find(node);
        if let Some(member) = last.filter(|last| !last.gone) {
            return Err(match member.state && member.memory == Some(generation) {
                true => refusal(ErrorCode::Busy, STATE_PRESENT),
                false => foreign(format!("node {node} of this cluster is another node")),
            });
        }
        let next = self.generations.get(&node).map_or(0, |lent| lent.next);
        let used = self.next_generation(node).0 > generation.0;
        if next > generation.0 + 1 || used && !self.keeps(node) {
            return Err(foreign(format!(
                "node {node} has had memory of generation {} in this cluster, and the state directory is of \
                 generation {}",
                next.saturating_sub(1),
                generation.0,
            )));
        }
        match last.map_or(Some(self.unknown_since()), |last| last.died) {
            Some(_) if mutant!(self, ReturnedBeforeSettled) => Ok(()),
            Some(since) if since <= self.settled_by_all() => Ok(()),
            Some(_) | None => Err(refusal(ErrorCode::Busy, RETURN_NOT_SETTLED)),
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
