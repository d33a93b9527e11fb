//! The members that a node knows, and the last removed member of each number that was not reused, with the views in
//! which they were admitted and removed.

use super::event::RequestId;
use super::hello::ListedMember;
use super::message::{Change, MemberMessage};
use alloc::vec::Vec;
use core::net::SocketAddr;
use farside_base::{Generation, Incarnation, NodeId, ViewNumber};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct RosterEntry {
    pub(super) node: NodeId,
    pub(super) incarnation: Incarnation,
    /// Its network address, on fabrics between hosts.
    pub(super) host: Option<SocketAddr>,
    /// The generation of the memory that it lends, if any; it counts in a quorum then.
    pub(super) memory: Option<Generation>,
    /// It is a node with state.
    pub(super) state: bool,
    /// Names of roots may be in its memory.
    pub(super) names: bool,
    /// It is a witness; it counts in a quorum then.
    pub(super) witness: bool,
    /// The view that admitted it: members are ordered by this age.
    pub(super) born: ViewNumber,
    /// The view that removed it.
    pub(super) died: Option<ViewNumber>,
    /// Declared dead by this node. Invariant: true when `died` is some.
    pub(super) gone: bool,
    /// Its process has certainly ended.
    pub(super) ended: bool,
    /// This node holds no state of it any more.
    pub(super) settled: bool,
    /// Every removal up to this view is settled at that member, as far as this node knows. A member never knows of
    /// removals before its own admission.
    pub(super) settled_to: ViewNumber,
    /// It has announced that it leaves: from then on it holds nothing of other homes, and leaves nothing to recover
    /// however it ends.
    pub(super) leaving: bool,
    /// It has sent `Left`, or a view says so: every member has answered its `Leave`.
    pub(super) left: bool,
    /// It has answered this node's own `Leave`.
    pub(super) heard_leave: bool,
    /// There is a link to it. Invariant: false when `gone`.
    pub(super) linked: bool,
    /// Unreachable and cut off, but not declared dead yet. Invariant: then not `linked`.
    pub(super) suspect: bool,
    /// At the coordinator: its `Join` request, until it is linked.
    pub(super) join: Option<RequestId>,
    /// This node admitted it, and has never been linked to it: it was never ready. False for a node with state that
    /// returned: its memory exists.
    pub(super) unused: bool,
    /// The last view that it knows, if it takes over and has asked for a report that it cannot have yet.
    pub(super) asked: Option<ViewNumber>,
    /// During a takeover: the last view it knows.
    pub(super) reported: Option<ViewNumber>,
}

impl RosterEntry {
    pub(super) const fn new(listed: ListedMember) -> Self {
        Self {
            node: listed.node,
            incarnation: listed.incarnation,
            host: listed.host,
            memory: listed.memory,
            state: listed.state,
            names: listed.names,
            witness: listed.witness,
            born: listed.born,
            died: None,
            gone: false,
            ended: false,
            settled: false,
            settled_to: listed.born,
            leaving: false,
            left: false,
            heard_leave: false,
            linked: false,
            suspect: false,
            asked: None,
            join: None,
            unused: false,
            reported: None,
        }
    }

    /// Its entry in the member list that joiners receive.
    pub(super) const fn listed(&self) -> ListedMember {
        ListedMember {
            node: self.node,
            incarnation: self.incarnation,
            born: self.born,
            host: self.host,
            memory: self.memory,
            state: self.state,
            names: self.names,
            witness: self.witness,
        }
    }

    /// The view that admits it.
    pub(super) const fn coming(&self) -> MemberMessage {
        MemberMessage::View { number: self.born, member: self.listed(), change: Change::Joined }
    }

    /// The view that removes it.
    pub(super) const fn going(&self, number: ViewNumber) -> MemberMessage {
        let change = match (self.left, self.ended) {
            (true, _) => Change::Left,
            (false, true) => Change::Died,
            (false, false) => Change::Removed,
        };
        MemberMessage::View { number, member: self.listed(), change }
    }

    /// Whether it counts in a quorum in any case.
    pub(super) const fn votes(&self) -> bool {
        self.memory.is_some() || self.witness
    }

    /// How little is lost with it, and how soon it is removed for a broken link: programs first, then witnesses.
    pub(super) const fn dispensability(&self) -> u8 {
        match (self.memory, self.witness) {
            (Some(_), _) => 0,
            (None, true) => 1,
            (None, false) => 2,
        }
    }

    /// Whether it was declared dead and no view has removed it yet.
    pub(super) const fn is_unburied(&self) -> bool {
        self.gone && self.died.is_none()
    }
}

/// Members in the order of their admission, removed ones too, at most one for each number.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Roster {
    members: Vec<RosterEntry>,
}

impl Roster {
    pub(super) fn iter(&self) -> core::slice::Iter<'_, RosterEntry> {
        self.members.iter()
    }

    pub(super) fn iter_mut(&mut self) -> core::slice::IterMut<'_, RosterEntry> {
        self.members.iter_mut()
    }

    pub(super) fn first(&self) -> Option<NodeId> {
        self.members.first().map(|member| member.node)
    }

    /// The earliest admitted member that is neither known to be dead nor cut off.
    pub(super) fn first_alive(&self) -> Option<NodeId> {
        self.find_where(|member| !member.gone && !member.suspect)
    }

    /// The earliest admitted member for which `test` is true.
    pub(super) fn find_where(&self, test: impl Fn(&RosterEntry) -> bool) -> Option<NodeId> {
        self.iter().find(|member| test(member)).map(|member| member.node)
    }

    /// All members for which `test` is true.
    pub(super) fn all_where(&self, test: impl Fn(&RosterEntry) -> bool) -> Vec<NodeId> {
        let found = self.iter().filter(|member| test(member));
        found.map(|member| member.node).collect()
    }

    /// Adds a new member, and drops the previous one with its number: see `views_after`.
    pub(super) fn insert(&mut self, member: RosterEntry) {
        self.members.retain(|known| known.node != member.node);
        let at = self.members.partition_point(|known| known.born <= member.born);
        self.members.insert(at, member);
    }

    pub(super) fn find(&self, node: NodeId) -> Option<&RosterEntry> {
        self.iter().find(|member| member.node == node)
    }

    pub(super) fn find_mut(&mut self, node: NodeId) -> Option<&mut RosterEntry> {
        self.iter_mut().find(|member| member.node == node)
    }

    /// Notes that the process of a node has ended, unless the node was declared dead before.
    pub(super) fn note_ended(&mut self, node: NodeId, ended: bool) {
        if let Some(member) = self.find_mut(node).filter(|member| !member.gone) {
            member.ended |= ended;
        }
    }

    /// Marks a node as dead; false if it was dead already, or is unknown.
    pub(super) fn declare(&mut self, node: NodeId) -> bool {
        let Some(member) = self.find_mut(node) else {
            return false;
        };
        let alive = !member.gone;
        member.gone = true;
        member.linked = false;
        member.join = None;
        alive
    }

    /// The views after `number`, in order.
    ///
    /// *Guarantees*: complete if `number` is the last view of a live member, or of a joiner that this node welcomed,
    /// and not earlier than this node's own admission. Views are missing only for a member whose number was reused,
    /// which was admitted in `b` and removed in `d > b`. Every node that was a member then had settled that removal,
    /// so it knew view `d`; every node admitted after `d` began with a later view. In both cases `number >= d`.
    pub(super) fn views_after(&self, number: ViewNumber) -> Vec<MemberMessage> {
        let comings = self.iter().map(|member| (member.born, member.coming()));
        let goings =
            self.iter().filter_map(|member| member.died.map(|died| (died, member.going(died))));
        let mut views: Vec<(ViewNumber, MemberMessage)> =
            comings.chain(goings).filter(|(view, _)| *view > number).collect();
        views.sort_unstable_by_key(|(view, _)| *view);
        views.into_iter().map(|(_, message)| message).collect()
    }
}
