//! The membership machine of one process.
//!
//! **Views.** Each view differs from the previous one by one node that joined or went. Views are numbered without
//! gaps and made by the coordinator alone, the live node that was admitted first. Each member receives them in order
//! on its link to the coordinator, so what any two members know are prefixes of one sequence.
//!
//! **Age.** Members are ordered by the view that admitted them (`born`). Every member knows all live nodes that were
//! admitted earlier, and the later one of two nodes connects. *Numbers* are reused and say nothing about age: see
//! `membership/numbers.rs`.
//!
//! **Joining.** A joiner sends `Join` to the coordinator, receives `Welcome`, links to all members in that list that
//! no view has removed meanwhile, and is `Ready`. A member answers `PeerRequest` once its view names that node and
//! incarnation. A joiner that loses its coordinator before `Ready`, or is refused by any member, gives up and starts
//! over as a new incarnation. Until it is linked to the coordinator, its `Join` link shows that it is alive.
//!
//! **Death.** A member that detects the end of another process declares it dead, once and for good, and reports it to
//! the coordinator; other members learn it from the view. An unreachable member may be alive: see
//! `membership/quorum.rs`.
//!
//! **Leaving.** A node that leaves has handed over everything that it held. It sends `Leave` to every linked member
//! after all its other messages; each member answers once it has processed those. When all have answered, the node
//! sends `Left` and closes. From then on other members may learn of it in any way (`Left`, a closed link, a view),
//! because none of its messages is in flight.
//!
//! **Takeover.** The earliest survivor asks all linked members for views that it missed, waits until each has
//! answered or died, forwards the views that others missed, and only then makes views. A member that receives the
//! question treats every member earlier than the asker as dead, so late messages of the former coordinator are void.
//! A node without a link to the new coordinator cannot be monitored, and is declared dead.
//!
//! *Why two nodes never have one number at a time.* Suppose the dead coordinator admitted `n`, and the new one never
//! learns of it. Then no survivor accepted `n`, since a survivor accepts only nodes that its view names, and all
//! survivors' views are collected. So `n` has no link to the new coordinator and is not `Ready`. It loses its
//! coordinator or is refused, and gives up; its number was never in use, and no address of its memory exists. For the
//! same reason no `Ready` node is declared dead for lack of a link.

mod accusations;
mod admission;
mod judgement;
mod numbers;
mod quorum;

use self::judgement::{Accusations, Vote};
use super::canary::{MemberMutant, mutant};
use super::event::{Death, Effects, Identity, MemberEffect, MemberEvent, RequestId};
use super::hello::{
    JoinRefusal, LentNumber, ListedMember, PROTOCOL_VERSION, PeerRequest, Welcome, version_refusal,
};
use super::message::{Change, MemberMessage};
use super::roster::{Roster, RosterEntry};
use crate::wire::Violation;
use alloc::{collections::BTreeMap, vec::Vec};
use core::net::SocketAddr;
use farside_base::{ErrorCode, Generation, Incarnation, MemoryId, NodeId, Planted, ViewNumber};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum MembershipStage {
    /// Neither founded nor joined a cluster.
    Outside,
    /// Welcomed, and not yet linked to every member.
    Joining,
    /// Linked to every member; another node makes the views.
    Member,
    /// Every earlier member is dead; collects the views that other members know.
    TakingOver,
    /// Makes the views.
    Coordinator,
    /// Left, expelled, or gave up joining.
    Over,
}

/// The members of the cluster, as this process knows them.
///
/// *Guarantees.* At rest all members have the same view. Two ready nodes never have one number at a time, and a
/// number is reused only after every member has settled the removal of the last node that had it. No two memories
/// have the same generation of one number. Each dead node is declared dead once. *Cost*: nothing on the path of an
/// operation; a change of membership costs one message per member, a takeover two more.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Membership {
    identity: Identity,
    stage: MembershipStage,
    me: NodeId,
    /// The view that admitted this node.
    born: ViewNumber,
    view: ViewNumber,
    /// The incarnation of the founder.
    founder: Incarnation,
    roster: Roster,
    /// The numbers under which memory was lent.
    generations: BTreeMap<NodeId, LentNumber>,
    /// The view up to which this node has reported removals as settled to a coordinator.
    settled_told: ViewNumber,
    /// Link requests of nodes that no view names yet. Invariant: at most `nodes_max`.
    waiting: Vec<(RequestId, PeerRequest)>,
    /// This node has sent `Leave` and waits for the answers.
    leaving: bool,
    vote: Vote,
    /// Accusations to be judged, at the coordinator or the node that takes over.
    accusations: Accusations,
    mutant: Planted<MemberMutant>,
}

impl Membership {
    /// Creates the machine of a process that is not a member yet; it expects `Found` or `Joined`.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            stage: MembershipStage::Outside,
            me: NodeId(0),
            born: ViewNumber(0),
            view: ViewNumber(0),
            founder: Incarnation(0),
            roster: Roster::default(),
            generations: BTreeMap::new(),
            settled_told: ViewNumber(0),
            waiting: Vec::new(),
            leaving: false,
            vote: Vote::default(),
            accusations: Accusations::default(),
            mutant: Planted::NONE,
        }
    }

    /// The same, for a fabric on which unreachable members may be alive.
    pub fn in_a_quorum(mut self) -> Self {
        self.identity.quorum = true;
        self
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: MemberMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// This node's number; `None` before `Found` or `Joined`.
    pub fn node(&self) -> Option<NodeId> {
        (self.stage != MembershipStage::Outside).then_some(self.me)
    }

    /// The view that admitted this node; 0 before.
    pub fn born(&self) -> ViewNumber {
        self.born
    }

    /// The memory that this node lends, by number and generation.
    pub fn memory(&self) -> Option<MemoryId> {
        MemoryId::new(self.me, self.roster.find(self.me)?.memory?)
    }

    /// This node's incarnation.
    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// The incarnation of the cluster's founder, which distinguishes clusters of one name; zero before this node is a
    /// member.
    pub fn founder(&self) -> Incarnation {
        self.founder
    }

    /// The last view that this node knows.
    pub fn view(&self) -> ViewNumber {
        self.view
    }

    /// The node that makes the views or is about to: the earliest admitted of the live, reachable nodes.
    pub fn coordinator(&self) -> Option<NodeId> {
        if mutant!(self, LowestNumberCoordinates) {
            let reached = |member: &&RosterEntry| !member.gone && !member.suspect;
            return self.roster.iter().filter(reached).map(|member| member.node).min();
        }
        self.roster.first_alive()
    }

    /// The entry of a live member for the member list that joiners receive.
    pub fn listed(&self, node: NodeId) -> Option<ListedMember> {
        self.roster.find(node).filter(|member| !member.gone).map(RosterEntry::listed)
    }

    /// The network address of a node, or the last known one, on fabrics between hosts.
    pub fn host(&self, node: NodeId) -> Option<SocketAddr> {
        self.roster.find(node)?.host
    }

    /// Whether this node makes the views.
    pub fn is_coordinator(&self) -> bool {
        self.stage == MembershipStage::Coordinator
    }

    /// Whether this node is a full member.
    pub fn is_ready(&self) -> bool {
        matches!(
            self.stage,
            MembershipStage::Member | MembershipStage::TakingOver | MembershipStage::Coordinator
        )
    }

    /// The nodes that are alive as far as this node knows, itself included, in order of admission.
    pub fn alive(&self) -> impl Iterator<Item = (NodeId, Incarnation)> + '_ {
        self.roster
            .iter()
            .filter(|member| !member.gone)
            .map(|member| (member.node, member.incarnation))
    }

    /// Returns the accusation to send to the coordinator when a live member breaks the protocol.
    ///
    /// The coordinator alone decides, because the other member would accuse this one in the same way if this one
    /// closed the link. `None` if this node is the coordinator itself: then report `Dropped`.
    pub fn accusation(&self, node: NodeId) -> Option<(NodeId, MemberMessage)> {
        let coordinator = self.coordinator().filter(|first| *first != self.me && *first != node)?;
        let member = self.roster.find(node).filter(|member| !member.gone)?;
        let linked = self.roster.find(coordinator).is_some_and(|first| first.linked);
        let message = MemberMessage::Lost { node, incarnation: member.incarnation, ended: false };
        linked.then_some((coordinator, message))
    }

    /// Whether this node is alive as far as this node knows.
    pub fn is_alive(&self, node: NodeId) -> bool {
        self.roster.find(node).is_some_and(|member| !member.gone)
    }

    /// Whether this node has left, as opposed to having died, as far as this one knows.
    pub fn has_left(&self, node: NodeId) -> bool {
        self.roster.find(node).is_some_and(|member| member.gone && member.leaving)
    }

    /// Whether a member with this number is known, removed ones included.
    pub fn has_been(&self, node: NodeId) -> bool {
        self.roster.find(node).is_some()
    }

    /// Handles one event.
    ///
    /// # Errors
    /// [`Violation`]: the sender of the message broke the protocol; nothing was changed. Send its
    /// [`accusation`](Self::accusation); if there is none, close the link to it and report `Dropped`.
    pub fn step(&mut self, event: MemberEvent, effects: &mut Effects) -> Result<(), Violation> {
        match event {
            MemberEvent::Found => self.found(effects),
            MemberEvent::Joined(welcome) => self.joined(&welcome, effects),
            MemberEvent::JoinAsked { request, join } => self.join_asked(request, &join, effects),
            MemberEvent::PeerAsked { request, peer } => self.peer_asked(request, peer, effects),
            MemberEvent::RequestLost { request } => self.request_lost(request, effects),
            MemberEvent::LinkUp { node } => self.link_up(node, effects),
            MemberEvent::LinkLost { node } => self.lost(node, true, effects),
            MemberEvent::Dropped { node } => self.lost(node, false, effects),
            MemberEvent::OutOfReach { node } => self.out_of_reach(node, effects),
            MemberEvent::Expelled { by } => self.expelled(by, effects),
            MemberEvent::Removed => self.removed(effects),
            MemberEvent::Refused { refusal, .. } => {
                if self.stage == MembershipStage::Joining {
                    self.fail(refusal, effects);
                }
            }
            MemberEvent::Message { from, message } => self.message(from, message, effects)?,
            MemberEvent::Settled { node, born } => self.settled(node, born),
            MemberEvent::Leave { saved, names } => self.leave((saved, names), effects),
            MemberEvent::Judge => self.judge_accusations(effects),
        }
        self.report_settled(effects);
        self.check_leave(effects);
        self.invariants();
        Ok(())
    }

    fn found(&mut self, effects: &mut Effects) {
        if self.stage != MembershipStage::Outside {
            return;
        }
        let Identity { keeps, role, settings, incarnation, .. } = self.identity;
        let (node, memory) = match keeps.founding(role.lends(), settings.nodes_max) {
            Ok(own) => own,
            Err(text) => return self.fail(refusal(ErrorCode::BadConfiguration, &text), effects),
        };
        self.stage = MembershipStage::Coordinator;
        self.me = node;
        self.view = ViewNumber(1);
        self.founder = incarnation;
        self.insert_own(memory);
        effects.push(MemberEffect::Ready);
    }

    fn joined(&mut self, welcome: &Welcome, effects: &mut Effects) {
        if self.stage != MembershipStage::Outside {
            return;
        }
        if let Err(refusal) = self.check_welcome(welcome) {
            return self.fail(refusal, effects);
        }
        self.stage = MembershipStage::Joining;
        self.me = welcome.node;
        self.view = welcome.view;
        self.identity.settings = welcome.settings;
        self.founder = welcome.founder;
        self.generations = welcome.generations.iter().map(|lent| (lent.node, *lent)).collect();
        for listed in &welcome.members {
            self.roster.insert(RosterEntry::new(*listed));
            let ListedMember { node, incarnation, born, host, .. } = *listed;
            effects.push(MemberEffect::Connect { node, incarnation, born, host });
        }
        self.insert_own(welcome.memory);
        self.answer_waiting(effects);
    }

    fn insert_own(&mut self, memory: Option<Generation>) {
        let Identity { incarnation, host, keeps, role, settings, .. } = self.identity;
        let (node, born, state) = (self.me, self.view, keeps.has_state());
        let witness = role.is_witness();
        self.born = born;
        let names = keeps.may_have_names(settings.nodes_max);
        let own = ListedMember { node, incarnation, born, host, memory, state, names, witness };
        self.note_generation(&own);
        let mut own = RosterEntry::new(own);
        own.linked = true;
        self.roster.insert(own);
    }

    fn peer_asked(&mut self, request: RequestId, peer: PeerRequest, effects: &mut Effects) {
        match self.check_peer(&peer) {
            JoinDecision::Accept => self.accept(request, peer, effects),
            JoinDecision::Wait if self.waiting.len() < self.nodes_max() => {
                self.waiting.push((request, peer));
            }
            JoinDecision::Wait => effects
                .push(MemberEffect::Deny { request, refusal: JoinRefusal::new(ErrorCode::Busy) }),
            JoinDecision::Deny(refusal) => effects.push(MemberEffect::Deny { request, refusal }),
        }
    }

    fn check_peer(&self, peer: &PeerRequest) -> JoinDecision {
        let deny = |code| JoinDecision::Deny(JoinRefusal::new(code));
        if self.stage == MembershipStage::Over || self.leaving {
            return deny(ErrorCode::NodeClosed);
        }
        if peer.version != PROTOCOL_VERSION {
            return JoinDecision::Deny(version_refusal(peer.version));
        }
        if peer.cluster != self.identity.cluster {
            return deny(ErrorCode::NoSuchCluster);
        }
        if self.stage == MembershipStage::Outside {
            // A later joiner connected before this node received its own welcome.
            return JoinDecision::Wait;
        }
        if peer.view <= self.born || peer.node == self.me {
            // The later one of two nodes connects.
            return deny(ErrorCode::ProtocolViolation);
        }
        if peer.view > self.view {
            // No view known to this node has named it yet.
            return match mutant!(self, EarlyPeerRefused) {
                true => deny(ErrorCode::Busy),
                false => JoinDecision::Wait,
            };
        }
        match self.roster.find(peer.node).filter(|member| member.incarnation == peer.incarnation) {
            // Either the view that named it was made by a coordinator that died before any survivor received the
            // view, and a different view has that number now; or the node has been removed.
            None => deny(ErrorCode::NodeClosed),
            Some(member) if member.gone || member.suspect => deny(ErrorCode::NodeClosed),
            Some(member) if member.linked => deny(ErrorCode::ProtocolViolation),
            Some(_) => JoinDecision::Accept,
        }
    }

    fn accept(&mut self, request: RequestId, peer: PeerRequest, effects: &mut Effects) {
        let node = peer.node;
        let Some(member) = self.roster.find_mut(node) else {
            return;
        };
        member.linked = true;
        member.join = None;
        member.unused = false;
        let born = member.born;
        effects.push(MemberEffect::AcceptPeer { request, peer });
        match self.stage {
            MembershipStage::Coordinator => {
                self.catch_up(node, born, effects);
                self.ask_linked(node, effects);
            }
            MembershipStage::TakingOver => {
                let message = MemberMessage::Takeover { number: self.view };
                effects.push(MemberEffect::Send { to: node, message });
            }
            MembershipStage::Outside
            | MembershipStage::Joining
            | MembershipStage::Member
            | MembershipStage::Over => {}
        }
    }

    /// Answers the waiting link requests that can be decided after a view.
    fn answer_waiting(&mut self, effects: &mut Effects) {
        let mut at = 0;
        while let Some((_, peer)) = self.waiting.get(at) {
            match self.check_peer(peer) {
                JoinDecision::Wait => at += 1,
                JoinDecision::Accept => {
                    let (request, peer) = self.waiting.remove(at);
                    self.accept(request, peer, effects);
                }
                JoinDecision::Deny(refusal) => {
                    let (request, _) = self.waiting.remove(at);
                    effects.push(MemberEffect::Deny { request, refusal });
                }
            }
        }
    }

    fn request_lost(&mut self, request: RequestId, effects: &mut Effects) {
        self.waiting.retain(|(waiting, _)| *waiting != request);
        let vouched = |member: &RosterEntry| member.join == Some(request);
        if let Some(node) = self.roster.find_where(vouched) {
            self.lost(node, false, effects);
        }
    }

    fn link_up(&mut self, node: NodeId, effects: &mut Effects) {
        if let Some(member) = self.roster.find_mut(node)
            && !member.gone
            && !member.suspect
        {
            member.linked = true;
            self.check_ready(effects);
        }
    }

    /// Makes a joiner a member once it is linked to every live member that was admitted before it.
    fn check_ready(&mut self, effects: &mut Effects) {
        let born = self.born;
        let linked = |member: &RosterEntry| member.gone || member.linked || member.born > born;
        if self.stage == MembershipStage::Joining && self.roster.iter().all(linked) {
            self.stage = MembershipStage::Member;
            effects.push(MemberEffect::Ready);
        }
    }

    /// Declares a node dead; false if it was declared dead before.
    fn declare(&mut self, node: NodeId, effects: &mut Effects) -> bool {
        // On fabrics where live members are always reachable, each death is certain.
        let certain = !self.identity.quorum || mutant!(self, RemovedCountsAsEnded);
        self.roster.note_ended(node, certain);
        let new = self.roster.declare(node);
        self.accusations.forget(node);
        if new {
            let (born, death) = (self.born_of(node), self.death(node));
            effects.push(MemberEffect::Dead { node, born, death });
        }
        new
    }

    /// How a node has died, as far as this node knows.
    fn death(&self, node: NodeId) -> Death {
        match self.roster.find(node) {
            Some(member) if member.leaving => Death::Left,
            Some(member) if !member.ended => Death::Removed,
            Some(_) | None => Death::Ended,
        }
    }

    /// Handles the loss of a node detected by a link, not a view; `ended` if its process has ended, otherwise it may
    /// be alive.
    fn lost(&mut self, node: NodeId, ended: bool, effects: &mut Effects) {
        if self.stage == MembershipStage::Joining && !mutant!(self, JoinerJudges) {
            return self.lost_by_joiner(node, effects);
        }
        let outside = matches!(self.stage, MembershipStage::Outside | MembershipStage::Over);
        if outside || node == self.me {
            return;
        }
        self.roster.note_ended(node, ended);
        if !self.declare(node, effects) {
            return;
        }
        match self.stage {
            MembershipStage::Member if self.coordinator() == Some(self.me) => {
                self.take_over(effects)
            }
            MembershipStage::Member => self.report_losses(effects),
            MembershipStage::TakingOver => self.check_takeover(effects),
            MembershipStage::Coordinator => self.remove_lost(effects),
            MembershipStage::Outside | MembershipStage::Joining | MembershipStage::Over => {}
        }
        self.judge(effects);
    }

    /// Handles the loss of a link by a joiner, which declares no node dead by itself: the other node may have been
    /// asked to drop it. The coordinator decides.
    fn lost_by_joiner(&mut self, node: NodeId, effects: &mut Effects) {
        if self.welcomed_by(node) {
            self.fail_lost_coordinator(effects);
        } else if let Some(member) = self.roster.find_mut(node) {
            member.linked = false;
        }
    }

    /// Whether `node` is the coordinator that welcomed this joiner.
    fn welcomed_by(&self, node: NodeId) -> bool {
        !mutant!(self, JoinerOutlivesCoordinator) && self.roster.first() == Some(node)
    }

    /// Handles the removal of this node by another member: this node decides about no member any more.
    fn removed(&mut self, effects: &mut Effects) {
        if !matches!(self.stage, MembershipStage::Outside | MembershipStage::Over) {
            self.fail(refusal(ErrorCode::NodeClosed, EXPELLED), effects);
        }
    }

    fn fail_lost_coordinator(&mut self, effects: &mut Effects) {
        self.fail(refusal(ErrorCode::NoSuchCluster, COORDINATOR_LOST), effects);
    }

    fn fail(&mut self, refusal: JoinRefusal, effects: &mut Effects) {
        self.close(effects);
        effects.push(MemberEffect::Failed(refusal));
    }

    fn close(&mut self, effects: &mut Effects) {
        self.stage = MembershipStage::Over;
        for (request, _) in self.waiting.drain(..) {
            let refusal = JoinRefusal::new(ErrorCode::NodeClosed);
            effects.push(MemberEffect::Deny { request, refusal });
        }
    }

    fn leave(&mut self, (saved, names): (bool, bool), effects: &mut Effects) {
        if self.stage == MembershipStage::Over {
            return;
        }
        let at_once = self.leaving || !self.is_ready();
        self.leaving = true;
        if at_once {
            return self.finish_leave(effects);
        }
        for to in self.linked() {
            effects.push(MemberEffect::Send { to, message: MemberMessage::Leave { saved, names } });
        }
    }

    /// Completes the leave once every linked member has answered.
    fn check_leave(&mut self, effects: &mut Effects) {
        let me = self.me;
        let silent =
            |member: &RosterEntry| member.linked && member.node != me && !member.heard_leave;
        // A member that leaves before suspects are judged would take away a vote that decides about them.
        let waits = self.roster.find_where(silent).is_some() || self.has_suspects();
        let early = mutant!(self, LeavesUnheard);
        if self.leaving && self.stage != MembershipStage::Over && (!waits || early) {
            self.finish_leave(effects);
        }
    }

    fn finish_leave(&mut self, effects: &mut Effects) {
        for to in self.linked() {
            effects.push(MemberEffect::Send { to, message: MemberMessage::Left });
        }
        self.close(effects);
        effects.push(MemberEffect::Closed);
    }

    fn leave_heard(
        &mut self,
        from: NodeId,
        (saved, names): (bool, bool),
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if let Some(member) = self.roster.find_mut(from) {
            if member.leaving {
                return Err(Violation("leaves twice"));
            }
            member.leaving = true;
            if saved && member.memory.is_some() {
                self.note_state(from, (true, names));
            }
        }
        effects.push(MemberEffect::Send { to: from, message: MemberMessage::LeaveHeard });
        Ok(())
    }

    fn leave_answered(&mut self, from: NodeId) -> Result<(), Violation> {
        match self.roster.find_mut(from) {
            Some(member) if self.leaving && !member.heard_leave => {
                member.heard_leave = true;
                Ok(())
            }
            _ => Err(Violation("answer to a leave that was not announced")),
        }
    }

    fn left(&mut self, from: NodeId, effects: &mut Effects) -> Result<(), Violation> {
        if !self.roster.find(from).is_some_and(|member| member.leaving) {
            return Err(Violation("left without announcing it"));
        }
        if let Some(member) = self.roster.find_mut(from) {
            member.left = true;
        }
        self.lost(from, false, effects);
        Ok(())
    }

    fn message(
        &mut self,
        from: NodeId,
        message: MemberMessage,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if matches!(self.stage, MembershipStage::Outside | MembershipStage::Over) {
            return Ok(());
        }
        match self.roster.find(from) {
            None => return Err(Violation("message from a node that is no member")),
            Some(_) if from == self.me => return Err(Violation("message from this node")),
            Some(member) if member.gone || member.suspect => return Ok(()),
            Some(_) => {}
        }
        match message {
            MemberMessage::View { number, member, change } => {
                self.view_heard(from, number, member, change, effects)
            }
            MemberMessage::Takeover { number } => self.takeover_heard(from, number, effects),
            MemberMessage::Report { number, settled } => {
                self.report_heard(from, number, settled, effects)
            }
            MemberMessage::Settled { number } => self.settled_heard(from, number),
            MemberMessage::Lost { node, incarnation, ended } => {
                let same_life = |member: &RosterEntry| member.incarnation == incarnation;
                if self.roster.find(node).is_some_and(same_life) {
                    self.lost(node, ended, effects);
                }
                Ok(())
            }
            MemberMessage::Leave { saved, names } => {
                self.leave_heard(from, (saved, names), effects)
            }
            MemberMessage::LeaveHeard => self.leave_answered(from),
            MemberMessage::Left => self.left(from, effects),
            MemberMessage::Suspect { node, incarnation } => {
                self.suspect_heard(from, node, incarnation, effects)
            }
            MemberMessage::Vote { round } => self.vote_called(from, round, effects),
            MemberMessage::Voted { round } => self.vote_heard(from, round, effects),
            MemberMessage::Buried { .. } => Ok(()), // handled by `Burials`
        }
    }

    fn view_heard(
        &mut self,
        from: NodeId,
        number: ViewNumber,
        named: ListedMember,
        change: Change,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if !self.may_tell_views(from) {
            return Err(Violation("view from a node that is not the coordinator"));
        }
        if number <= self.view {
            return Ok(());
        }
        self.check_view(number, &named, change)?;
        self.view = number;
        match change {
            Change::Joined => self.take_in(RosterEntry::new(named), effects),
            Change::Died | Change::Left | Change::Removed if named.node == self.me => {
                self.fail(refusal(ErrorCode::NodeClosed, EXPELLED), effects);
                return Ok(());
            }
            Change::Died | Change::Left | Change::Removed => {
                if let Some(member) = self.roster.find_mut(named.node) {
                    member.left |= change == Change::Left;
                    member.leaving |= member.left;
                }
                if !mutant!(self, SavedMemoryUndecided) {
                    self.note_state(named.node, (named.state, named.names));
                }
                self.roster.note_ended(named.node, change == Change::Died);
                self.remove(named.node, number, effects);
            }
        }
        self.answer_waiting(effects);
        self.check_takeover(effects);
        Ok(())
    }

    fn may_tell_views(&self, from: NodeId) -> bool {
        match self.stage {
            MembershipStage::TakingOver => true,
            MembershipStage::Joining | MembershipStage::Member => {
                self.coordinator() == Some(from) || mutant!(self, FormerCoordinatorHeard)
            }
            MembershipStage::Coordinator => mutant!(self, TakeoverWithoutReports),
            MembershipStage::Outside | MembershipStage::Over => false,
        }
    }

    fn check_view(
        &self,
        number: ViewNumber,
        named: &ListedMember,
        change: Change,
    ) -> Result<(), Violation> {
        if number != self.next_view() {
            return Err(Violation("view out of order"));
        }
        if change == Change::Joined {
            return self.check_number(named);
        }
        let same_life = |known: &&RosterEntry| known.incarnation == named.incarnation;
        let known = self.roster.find(named.node).filter(same_life);
        match known.is_some_and(|known| known.born == named.born && known.died.is_none()) {
            true => Ok(()),
            false => Err(Violation("view removes a node that is no member")),
        }
    }

    fn remove(&mut self, node: NodeId, number: ViewNumber, effects: &mut Effects) {
        let declared = self.declare(node, effects);
        if mutant!(self, DeadTwice) && !declared {
            let born = self.born_of(node);
            effects.push(MemberEffect::Dead { node, born, death: Death::Ended });
        }
        if let Some(member) = self.roster.find_mut(node) {
            member.died = Some(number);
        }
        if declared {
            self.check_ready(effects);
        }
    }

    /// Starts a takeover: every earlier member is dead, so ask the others for the views they know.
    fn take_over(&mut self, effects: &mut Effects) {
        self.stage = MembershipStage::TakingOver;
        let message = MemberMessage::Takeover { number: self.view };
        for to in self.linked() {
            effects.push(MemberEffect::Send { to, message });
        }
        self.check_takeover(effects);
    }

    fn takeover_heard(
        &mut self,
        from: NodeId,
        number: ViewNumber,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if self.born_of(from) > self.born {
            return Err(Violation("takeover by a later node"));
        }
        match self.stage {
            MembershipStage::Joining if !mutant!(self, JoinerOutlivesCoordinator) => {
                self.fail_lost_coordinator(effects);
                return Ok(());
            }
            MembershipStage::Joining | MembershipStage::Member => {}
            MembershipStage::Outside
            | MembershipStage::TakingOver
            | MembershipStage::Coordinator
            | MembershipStage::Over => {
                return Err(Violation("takeover from a live coordinator"));
            }
        }
        if self.reaches_earlier(from) {
            if let Some(member) = self.roster.find_mut(from) {
                member.asked = Some(number);
            }
            return Ok(());
        }
        self.report_to(from, number, effects);
        Ok(())
    }

    /// Answers a takeover: marks every member earlier than the asker dead, and sends the views and losses that the
    /// asker lacks.
    fn report_to(&mut self, from: NodeId, number: ViewNumber, effects: &mut Effects) {
        let born = self.born_of(from);
        let heard = mutant!(self, FormerCoordinatorHeard);
        // Suspects are declared dead by views only.
        let declared =
            |member: &RosterEntry| member.born < born && !member.gone && !member.suspect && !heard;
        for node in self.roster.all_where(declared) {
            self.declare(node, effects);
        }
        self.catch_up(from, number, effects);
        self.tell_losses(from, effects);
        self.tell_suspects(from, effects);
        let settled = self.tell_settled();
        let message = MemberMessage::Report { number: self.view, settled };
        effects.push(MemberEffect::Send { to: from, message });
    }

    fn report_heard(
        &mut self,
        from: NodeId,
        number: ViewNumber,
        settled: ViewNumber,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if mutant!(self, TakeoverWithoutReports) {
            return Ok(());
        }
        if self.stage != MembershipStage::TakingOver {
            return Err(Violation("report without a question"));
        }
        if number > self.view || settled > number {
            return Err(Violation("report of views that were not sent"));
        }
        if let Some(member) = self.roster.find_mut(from) {
            member.reported = Some(number);
            member.settled_to = member.settled_to.max(settled);
        }
        self.check_takeover(effects);
        Ok(())
    }

    /// Completes the takeover once every linked member has answered.
    fn check_takeover(&mut self, effects: &mut Effects) {
        let me = self.me;
        let silent =
            |member: &RosterEntry| member.linked && member.node != me && member.reported.is_none();
        let all_answered =
            self.roster.find_where(silent).is_none() || mutant!(self, TakeoverWithoutReports);
        if self.stage != MembershipStage::TakingOver || !all_answered || self.lacks_quorum() {
            return;
        }
        self.expel_unlinked(effects);
        for to in self.linked() {
            let reported = self.roster.find(to).and_then(|member| member.reported);
            self.catch_up(to, reported.unwrap_or(self.view), effects);
        }
        self.stage = MembershipStage::Coordinator;
        self.remove_lost(effects);
        effects.push(MemberEffect::BecomeCoordinator);
        if self.has_undecided() {
            // Members that reported may still reach suspects.
            self.call_vote(effects);
        }
        if !self.accusations.is_empty() {
            effects.push(MemberEffect::JudgeLater);
        }
    }

    fn expel_unlinked(&mut self, effects: &mut Effects) {
        if mutant!(self, UnlinkedKept) {
            return;
        }
        for node in
            self.roster.all_where(|member| !member.gone && !member.linked && !member.suspect)
        {
            self.declare(node, effects);
        }
    }

    /// Sends the views after `number`, in order.
    fn catch_up(&self, to: NodeId, number: ViewNumber, effects: &mut Effects) {
        let views = self.roster.views_after(number).into_iter();
        effects.extend(views.map(|message| MemberEffect::Send { to, message }));
    }

    /// Makes a view and sends it to every linked member.
    fn publish(&mut self, message: MemberMessage, effects: &mut Effects) {
        self.view = self.next_view();
        for to in self.linked() {
            effects.push(MemberEffect::Send { to, message });
        }
    }

    /// Makes a view for each dead node that no view has removed.
    fn publish_losses(&mut self, effects: &mut Effects) {
        for node in self.roster.all_where(RosterEntry::is_unburied) {
            let number = self.next_view();
            if let Some(member) = self.roster.find_mut(node) {
                member.died = Some(number);
                let message = member.going(number);
                self.publish(message, effects);
            }
        }
        self.answer_waiting(effects);
    }

    fn report_losses(&mut self, effects: &mut Effects) {
        if let Some(coordinator) = self.coordinator() {
            self.tell_losses(coordinator, effects);
        }
    }

    /// Reports the dead nodes that no view has removed, except nodes earlier than `to`, which knows those.
    fn tell_losses(&self, to: NodeId, effects: &mut Effects) {
        let born = self.born_of(to);
        let told = self.roster.iter().filter(|member| member.is_unburied() && member.born > born);
        for member in told {
            let RosterEntry { node, incarnation, ended, .. } = *member;
            let message = MemberMessage::Lost { node, incarnation, ended };
            effects.push(MemberEffect::Send { to, message });
        }
    }

    fn next_view(&self) -> ViewNumber {
        ViewNumber(self.view.0 + 1)
    }

    fn nodes_max(&self) -> usize {
        usize::from(self.identity.settings.nodes_max)
    }

    /// The view that admitted a member, or the last removed member of that number; 0 if there is none.
    pub fn born_of(&self, node: NodeId) -> ViewNumber {
        self.roster.find(node).map_or(ViewNumber(0), |member| member.born)
    }

    /// All linked nodes except this one.
    fn linked(&self) -> Vec<NodeId> {
        let me = self.me;
        self.roster.all_where(|member| member.linked && member.node != me)
    }

    fn invariants(&self) {
        debug_assert!(self.waiting.len() <= self.nodes_max());
        for member in self.roster.iter() {
            debug_assert!(member.gone || member.died.is_none());
            debug_assert!(!(member.linked && (member.gone || member.suspect)));
            debug_assert!(member.born <= self.view);
            debug_assert!(member.died.is_none_or(|died| died <= self.view));
        }
    }
}

const COORDINATOR_LOST: &str = "the coordinator was lost during the join: it has ended, or its process or this \
    one has no descriptor left; raise their RLIMIT_NOFILE";
const REMOVAL_PENDING: &str = "members confirm that another has died; try again";
const EXPELLED: &str = "the cluster declared this node dead";

fn refusal(code: ErrorCode, text: &str) -> JoinRefusal {
    JoinRefusal { code, text: text.into() }
}

enum JoinDecision {
    Accept,
    Wait,
    Deny(JoinRefusal),
}

#[cfg(test)]
mod tests;
