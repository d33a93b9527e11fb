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
//! no view has removed meanwhile, and is `Ready`. A member answers `Peer` once its view names that node and
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
mod numbers;
mod quorum;

use self::accusations::Accusations;
use self::quorum::Vote;
use super::canary::{Canary, Mutant};
use super::event::{Death, Effect, Effects, Event, Identity, RequestId};
use super::hello::{Join, Listed, PROTOCOL_VERSION, Peer, Refusal, Welcome, version_refusal};
use super::message::{Change, Message};
use super::roster::{Member, Roster};
use crate::wire::Violation;
use alloc::{collections::BTreeMap, format, vec::Vec};
use core::net::SocketAddr;
use farside_base::{
    ErrorCode, Generation, GlobalAddress, Incarnation, MemoryId, NodeId, NodeSet, ViewNumber,
};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
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
    stage: Stage,
    me: NodeId,
    /// The view that admitted this node.
    born: ViewNumber,
    view: ViewNumber,
    /// The incarnation of the founder.
    founder: Incarnation,
    roster: Roster,
    /// The next memory generation of each number under which memory was lent.
    generations: BTreeMap<NodeId, u16>,
    /// The view up to which this node has reported removals as settled to a coordinator.
    settled_told: ViewNumber,
    /// Link requests of nodes that no view names yet. Invariant: at most `nodes_max`.
    waiting: Vec<(RequestId, Peer)>,
    /// This node has sent `Leave` and waits for the answers.
    leaving: bool,
    vote: Vote,
    /// Accusations to be judged, at the coordinator or the node that takes over.
    accusations: Accusations,
    canary: Canary,
}

impl Membership {
    /// Creates the machine of a process that is not a member yet; it expects `Found` or `Joined`.
    pub fn new(identity: Identity) -> Self {
        Self {
            identity,
            stage: Stage::Outside,
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
            canary: Canary::default(),
        }
    }

    /// The same, for a fabric on which unreachable members may be alive.
    pub fn in_a_quorum(mut self) -> Self {
        self.identity.quorum = true;
        self
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: Mutant) -> Self {
        self.canary = Canary::new(mutant);
        self
    }

    /// This node's number; `None` before `Found` or `Joined`.
    pub fn node(&self) -> Option<NodeId> {
        (self.stage != Stage::Outside).then_some(self.me)
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
        if self.canary.is(Mutant::LowestNumberCoordinates) {
            let reached = |member: &&Member| !member.gone && !member.suspect;
            return self.roster.iter().filter(reached).map(|member| member.node).min();
        }
        self.roster.first_alive()
    }

    /// The entry of a live member for the member list that joiners receive.
    pub fn listed(&self, node: NodeId) -> Option<Listed> {
        self.roster.find(node).filter(|member| !member.gone).map(Member::listed)
    }

    /// The network address of a node, or the last known one, on fabrics between hosts.
    pub fn host(&self, node: NodeId) -> Option<SocketAddr> {
        self.roster.find(node)?.host
    }

    /// Whether this node makes the views.
    pub fn is_coordinator(&self) -> bool {
        self.stage == Stage::Coordinator
    }

    /// Whether this node is a full member.
    pub fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Member | Stage::TakingOver | Stage::Coordinator)
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
    pub fn accusation(&self, node: NodeId) -> Option<(NodeId, Message)> {
        let coordinator = self.coordinator().filter(|first| *first != self.me && *first != node)?;
        let member = self.roster.find(node).filter(|member| !member.gone)?;
        let linked = self.roster.find(coordinator).is_some_and(|first| first.linked);
        let message = Message::Lost { node, incarnation: member.incarnation, ended: false };
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
    pub fn step(&mut self, event: Event, effects: &mut Effects) -> Result<(), Violation> {
        match event {
            Event::Found => self.found(effects),
            Event::Joined(welcome) => self.joined(&welcome, effects),
            Event::JoinAsked { request, join } => self.join_asked(request, &join, effects),
            Event::PeerAsked { request, peer } => self.peer_asked(request, peer, effects),
            Event::RequestLost { request } => self.request_lost(request, effects),
            Event::LinkUp { node } => self.link_up(node, effects),
            Event::LinkLost { node } => self.lost(node, true, effects),
            Event::Dropped { node } => self.lost(node, false, effects),
            Event::OutOfReach { node } => self.out_of_reach(node, effects),
            Event::Expelled { by } => self.expelled(by, effects),
            Event::Removed => self.removed(effects),
            Event::Refused { refusal, .. } => {
                if self.stage == Stage::Joining {
                    self.fail(refusal, effects);
                }
            }
            Event::Message { from, message } => self.message(from, message, effects)?,
            Event::Settled { node, born } => self.settled(node, born),
            Event::Leave => self.leave(effects),
            Event::Judge => self.judge_accusations(effects),
        }
        self.report_settled(effects);
        self.check_leave(effects);
        self.invariants();
        Ok(())
    }

    fn found(&mut self, effects: &mut Effects) {
        if self.stage != Stage::Outside {
            return;
        }
        self.stage = Stage::Coordinator;
        self.view = ViewNumber(1);
        self.founder = self.identity.incarnation;
        self.insert_own(self.identity.votes.then_some(Generation(0)));
        effects.push(Effect::Ready);
    }

    fn joined(&mut self, welcome: &Welcome, effects: &mut Effects) {
        if self.stage != Stage::Outside {
            return;
        }
        if let Err(refusal) = self.check_welcome(welcome) {
            return self.fail(refusal, effects);
        }
        self.stage = Stage::Joining;
        self.me = welcome.node;
        self.view = welcome.view;
        self.identity.settings = welcome.settings;
        self.founder = welcome.founder;
        self.generations = welcome.generations.iter().copied().collect();
        for listed in &welcome.members {
            self.roster.insert(Member::new(*listed));
            let Listed { node, incarnation, born, host, .. } = *listed;
            effects.push(Effect::Connect { node, incarnation, born, host });
        }
        self.insert_own(welcome.memory);
        self.answer_waiting(effects);
    }

    fn insert_own(&mut self, memory: Option<Generation>) {
        let Identity { incarnation, host, .. } = self.identity;
        self.born = self.view;
        let own = Listed { node: self.me, incarnation, born: self.born, host, memory };
        self.note_generation(&own);
        let mut own = Member::new(own);
        own.linked = true;
        self.roster.insert(own);
    }

    fn check_welcome(&self, welcome: &Welcome) -> Result<(), Refusal> {
        if welcome.limits != self.identity.limits {
            return Err(Refusal::new(ErrorCode::LimitsMismatch));
        }
        let fits = |node: NodeId| node.0 < welcome.settings.nodes_max;
        let rising = welcome.members.windows(2).all(|pair| pair[0].born < pair[1].born);
        let before = welcome.members.last().is_some_and(|last| last.born < welcome.view);
        let mut nodes: NodeSet = welcome.members.iter().map(|member| member.node).collect();
        let apart = nodes.insert(welcome.node) && nodes.len() == welcome.members.len() + 1;
        let lends = welcome.memory.is_some() == self.identity.votes;
        if rising && before && apart && lends && nodes.iter().all(fits) {
            return Ok(());
        }
        Err(refusal(ErrorCode::ProtocolViolation, "impossible welcome"))
    }

    fn join_asked(&mut self, request: RequestId, join: &Join, effects: &mut Effects) {
        let number = match self.check_join(join) {
            Ok(number) => number,
            Err(refusal) => return effects.push(Effect::Deny { request, refusal }),
        };
        let alive = self.roster.iter().filter(|member| !member.gone);
        let members = alive.map(Member::listed).collect();
        let (incarnation, host, born) = (join.incarnation, join.host, self.next_view());
        let memory = (join.home_bytes > 0).then(|| self.next_generation(number));
        let listed = Listed { node: number, incarnation, born, host, memory };
        let mut member = Member::new(listed);
        member.join = Some(request);
        member.unused = true;
        self.publish(member.coming(), effects);
        let generations = self.generations.iter().map(|(node, next)| (*node, *next)).collect();
        let Identity { limits, settings, .. } = self.identity;
        let (node, view, founder) = (number, self.view, self.founder);
        let welcome =
            Welcome { node, view, settings, memory, members, generations, limits, founder };
        self.take_in(member, effects);
        effects.push(Effect::Admit { request, welcome });
    }

    fn check_join(&self, join: &Join) -> Result<NodeId, Refusal> {
        if self.stage == Stage::Over || self.leaving {
            return Err(Refusal::new(ErrorCode::NodeClosed));
        }
        if join.version != PROTOCOL_VERSION {
            return Err(version_refusal(join.version));
        }
        if join.cluster != self.identity.cluster || self.stage != Stage::Coordinator {
            return Err(Refusal::new(ErrorCode::NoSuchCluster));
        }
        if join.limits != self.identity.limits {
            return Err(Refusal::new(ErrorCode::LimitsMismatch));
        }
        if self.roster.iter().any(|member| member.incarnation == join.incarnation) {
            // Each incarnation joins once: a removed process, or a repeated `Join` of the same incarnation, gets no
            // number.
            return Err(Refusal::new(ErrorCode::NodeClosed));
        }
        if join.home_bytes > 1 << GlobalAddress::OFFSET_BITS {
            return Err(Refusal {
                code: ErrorCode::BadConfiguration,
                text: format!("a node has at most {} bytes", 1_u64 << GlobalAddress::OFFSET_BITS),
            });
        }
        if self.has_undecided() && self.roster.iter().any(Member::is_unburied) {
            return Err(refusal(ErrorCode::Busy, REMOVAL_PENDING));
        }
        self.free_number(join.home_bytes > 0)
    }

    fn peer_asked(&mut self, request: RequestId, peer: Peer, effects: &mut Effects) {
        match self.check_peer(&peer) {
            Answer::Accept => self.accept(request, peer, effects),
            Answer::Wait if self.waiting.len() < self.nodes_max() => {
                self.waiting.push((request, peer));
            }
            Answer::Wait => {
                effects.push(Effect::Deny { request, refusal: Refusal::new(ErrorCode::Busy) })
            }
            Answer::Deny(refusal) => effects.push(Effect::Deny { request, refusal }),
        }
    }

    fn check_peer(&self, peer: &Peer) -> Answer {
        let deny = |code| Answer::Deny(Refusal::new(code));
        if self.stage == Stage::Over || self.leaving {
            return deny(ErrorCode::NodeClosed);
        }
        if peer.version != PROTOCOL_VERSION {
            return Answer::Deny(version_refusal(peer.version));
        }
        if peer.cluster != self.identity.cluster {
            return deny(ErrorCode::NoSuchCluster);
        }
        if self.stage == Stage::Outside {
            // A later joiner connected before this node received its own welcome.
            return Answer::Wait;
        }
        if peer.view <= self.born || peer.node == self.me {
            // The later one of two nodes connects.
            return deny(ErrorCode::ProtocolViolation);
        }
        if peer.view > self.view {
            // No view known to this node has named it yet.
            return match self.canary.is(Mutant::EarlyPeerRefused) {
                true => deny(ErrorCode::Busy),
                false => Answer::Wait,
            };
        }
        match self.roster.find(peer.node).filter(|member| member.incarnation == peer.incarnation) {
            // Either the view that named it was made by a coordinator that died before any survivor received the
            // view, and a different view has that number now; or the node has been removed.
            None => deny(ErrorCode::NodeClosed),
            Some(member) if member.gone || member.suspect => deny(ErrorCode::NodeClosed),
            Some(member) if member.linked => deny(ErrorCode::ProtocolViolation),
            Some(_) => Answer::Accept,
        }
    }

    fn accept(&mut self, request: RequestId, peer: Peer, effects: &mut Effects) {
        let node = peer.node;
        let Some(member) = self.roster.find_mut(node) else {
            return;
        };
        member.linked = true;
        member.join = None;
        member.unused = false;
        let born = member.born;
        effects.push(Effect::AcceptPeer { request, peer });
        match self.stage {
            Stage::Coordinator => {
                self.catch_up(node, born, effects);
                self.ask_linked(node, effects);
            }
            Stage::TakingOver => {
                let message = Message::Takeover { number: self.view };
                effects.push(Effect::Send { to: node, message });
            }
            Stage::Outside | Stage::Joining | Stage::Member | Stage::Over => {}
        }
    }

    /// Answers the waiting link requests that can be decided after a view.
    fn answer_waiting(&mut self, effects: &mut Effects) {
        let mut at = 0;
        while let Some((_, peer)) = self.waiting.get(at) {
            match self.check_peer(peer) {
                Answer::Wait => at += 1,
                Answer::Accept => {
                    let (request, peer) = self.waiting.remove(at);
                    self.accept(request, peer, effects);
                }
                Answer::Deny(refusal) => {
                    let (request, _) = self.waiting.remove(at);
                    effects.push(Effect::Deny { request, refusal });
                }
            }
        }
    }

    fn request_lost(&mut self, request: RequestId, effects: &mut Effects) {
        self.waiting.retain(|(waiting, _)| *waiting != request);
        let vouched = |member: &Member| member.join == Some(request);
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
        let linked = |member: &Member| member.gone || member.linked || member.born > born;
        if self.stage == Stage::Joining && self.roster.iter().all(linked) {
            self.stage = Stage::Member;
            effects.push(Effect::Ready);
        }
    }

    /// Declares a node dead; false if it was declared dead before.
    fn declare(&mut self, node: NodeId, effects: &mut Effects) -> bool {
        // On fabrics where live members are always reachable, each death is certain.
        let certain = !self.identity.quorum || self.canary.is(Mutant::RemovedCountsAsEnded);
        self.roster.note_ended(node, certain);
        let new = self.roster.declare(node);
        self.accusations.forget(node);
        if new {
            let (born, death) = (self.born_of(node), self.death(node));
            effects.push(Effect::Dead { node, born, death });
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
        if self.stage == Stage::Joining && !self.canary.is(Mutant::JoinerJudges) {
            return self.lost_by_joiner(node, effects);
        }
        let outside = matches!(self.stage, Stage::Outside | Stage::Over);
        if outside || node == self.me {
            return;
        }
        self.roster.note_ended(node, ended);
        if !self.declare(node, effects) {
            return;
        }
        match self.stage {
            Stage::Member if self.coordinator() == Some(self.me) => self.take_over(effects),
            Stage::Member => self.report_losses(effects),
            Stage::TakingOver => self.check_takeover(effects),
            Stage::Coordinator => self.remove_lost(effects),
            Stage::Outside | Stage::Joining | Stage::Over => {}
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
        !self.canary.is(Mutant::JoinerOutlivesCoordinator) && self.roster.first() == Some(node)
    }

    /// Handles the removal of this node by another member: this node decides about no member any more.
    fn removed(&mut self, effects: &mut Effects) {
        if !matches!(self.stage, Stage::Outside | Stage::Over) {
            self.fail(refusal(ErrorCode::NodeClosed, EXPELLED), effects);
        }
    }

    fn fail_lost_coordinator(&mut self, effects: &mut Effects) {
        self.fail(refusal(ErrorCode::NoSuchCluster, COORDINATOR_LOST), effects);
    }

    fn fail(&mut self, refusal: Refusal, effects: &mut Effects) {
        self.close(effects);
        effects.push(Effect::Failed(refusal));
    }

    fn close(&mut self, effects: &mut Effects) {
        self.stage = Stage::Over;
        for (request, _) in self.waiting.drain(..) {
            let refusal = Refusal::new(ErrorCode::NodeClosed);
            effects.push(Effect::Deny { request, refusal });
        }
    }

    fn leave(&mut self, effects: &mut Effects) {
        if self.stage == Stage::Over {
            return;
        }
        let at_once = self.leaving || !self.is_ready();
        self.leaving = true;
        if at_once {
            return self.finish_leave(effects);
        }
        for to in self.linked() {
            effects.push(Effect::Send { to, message: Message::Leave });
        }
    }

    /// Completes the leave once every linked member has answered.
    fn check_leave(&mut self, effects: &mut Effects) {
        let me = self.me;
        let silent = |member: &Member| member.linked && member.node != me && !member.heard_leave;
        // A member that leaves before suspects are judged would take away a vote that decides about them.
        let waits = self.roster.find_where(silent).is_some() || self.has_suspects();
        let early = self.canary.is(Mutant::LeavesUnheard);
        if self.leaving && self.stage != Stage::Over && (!waits || early) {
            self.finish_leave(effects);
        }
    }

    fn finish_leave(&mut self, effects: &mut Effects) {
        for to in self.linked() {
            effects.push(Effect::Send { to, message: Message::Left });
        }
        self.close(effects);
        effects.push(Effect::Closed);
    }

    fn leave_heard(&mut self, from: NodeId, effects: &mut Effects) -> Result<(), Violation> {
        if let Some(member) = self.roster.find_mut(from) {
            if member.leaving {
                return Err(Violation("leaves twice"));
            }
            member.leaving = true;
        }
        effects.push(Effect::Send { to: from, message: Message::LeaveHeard });
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
        message: Message,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if matches!(self.stage, Stage::Outside | Stage::Over) {
            return Ok(());
        }
        match self.roster.find(from) {
            None => return Err(Violation("message from a node that is no member")),
            Some(_) if from == self.me => return Err(Violation("message from this node")),
            Some(member) if member.gone || member.suspect => return Ok(()),
            Some(_) => {}
        }
        match message {
            Message::View { number, member, change } => {
                self.view_heard(from, number, member, change, effects)
            }
            Message::Takeover { number } => self.takeover_heard(from, number, effects),
            Message::Report { number, settled } => {
                self.report_heard(from, number, settled, effects)
            }
            Message::Settled { number } => self.settled_heard(from, number),
            Message::Lost { node, incarnation, ended } => {
                let same_life = |member: &Member| member.incarnation == incarnation;
                if self.roster.find(node).is_some_and(same_life) {
                    self.lost(node, ended, effects);
                }
                Ok(())
            }
            Message::Leave => self.leave_heard(from, effects),
            Message::LeaveHeard => self.leave_answered(from),
            Message::Left => self.left(from, effects),
            Message::Suspect { node, incarnation } => {
                self.suspect_heard(from, node, incarnation, effects)
            }
            Message::Vote { round } => self.vote_called(from, round, effects),
            Message::Voted { round } => self.vote_heard(from, round, effects),
            Message::Buried { .. } => Ok(()), // handled by `Burials`
        }
    }

    fn view_heard(
        &mut self,
        from: NodeId,
        number: ViewNumber,
        named: Listed,
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
            Change::Joined => self.take_in(Member::new(named), effects),
            Change::Died | Change::Left | Change::Removed if named.node == self.me => {
                self.fail(refusal(ErrorCode::NodeClosed, EXPELLED), effects);
                return Ok(());
            }
            Change::Died | Change::Left | Change::Removed => {
                if let Some(member) = self.roster.find_mut(named.node) {
                    member.left |= change == Change::Left;
                    member.leaving |= member.left;
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
            Stage::TakingOver => true,
            Stage::Joining | Stage::Member => {
                self.coordinator() == Some(from) || self.canary.is(Mutant::FormerCoordinatorHeard)
            }
            Stage::Coordinator => self.canary.is(Mutant::TakeoverWithoutReports),
            Stage::Outside | Stage::Over => false,
        }
    }

    fn check_view(
        &self,
        number: ViewNumber,
        named: &Listed,
        change: Change,
    ) -> Result<(), Violation> {
        if number != self.next_view() {
            return Err(Violation("view out of order"));
        }
        if change == Change::Joined {
            return self.check_number(named);
        }
        let same_life = |known: &&Member| known.incarnation == named.incarnation;
        let known = self.roster.find(named.node).filter(same_life);
        match known.is_some_and(|known| known.born == named.born && known.died.is_none()) {
            true => Ok(()),
            false => Err(Violation("view removes a node that is no member")),
        }
    }

    fn remove(&mut self, node: NodeId, number: ViewNumber, effects: &mut Effects) {
        let declared = self.declare(node, effects);
        if self.canary.is(Mutant::DeadTwice) && !declared {
            let born = self.born_of(node);
            effects.push(Effect::Dead { node, born, death: Death::Ended });
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
        self.stage = Stage::TakingOver;
        let message = Message::Takeover { number: self.view };
        for to in self.linked() {
            effects.push(Effect::Send { to, message });
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
            Stage::Joining if !self.canary.is(Mutant::JoinerOutlivesCoordinator) => {
                self.fail_lost_coordinator(effects);
                return Ok(());
            }
            Stage::Joining | Stage::Member => {}
            Stage::Outside | Stage::TakingOver | Stage::Coordinator | Stage::Over => {
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
        let heard = self.canary.is(Mutant::FormerCoordinatorHeard);
        // Suspects are declared dead by views only.
        let declared =
            |member: &Member| member.born < born && !member.gone && !member.suspect && !heard;
        for node in self.roster.all_where(declared) {
            self.declare(node, effects);
        }
        self.catch_up(from, number, effects);
        self.tell_losses(from, effects);
        self.tell_suspects(from, effects);
        let settled = self.tell_settled();
        let message = Message::Report { number: self.view, settled };
        effects.push(Effect::Send { to: from, message });
    }

    fn report_heard(
        &mut self,
        from: NodeId,
        number: ViewNumber,
        settled: ViewNumber,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if self.canary.is(Mutant::TakeoverWithoutReports) {
            return Ok(());
        }
        if self.stage != Stage::TakingOver {
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
            |member: &Member| member.linked && member.node != me && member.reported.is_none();
        let all_answered = self.roster.find_where(silent).is_none()
            || self.canary.is(Mutant::TakeoverWithoutReports);
        if self.stage != Stage::TakingOver || !all_answered || self.lacks_quorum() {
            return;
        }
        self.expel_unlinked(effects);
        for to in self.linked() {
            let reported = self.roster.find(to).and_then(|member| member.reported);
            self.catch_up(to, reported.unwrap_or(self.view), effects);
        }
        self.stage = Stage::Coordinator;
        self.remove_lost(effects);
        effects.push(Effect::BecomeCoordinator);
        if self.has_undecided() {
            // Members that reported may still reach suspects.
            self.call_vote(effects);
        }
        if !self.accusations.is_empty() {
            effects.push(Effect::JudgeLater);
        }
    }

    fn expel_unlinked(&mut self, effects: &mut Effects) {
        if self.canary.is(Mutant::UnlinkedKept) {
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
        effects.extend(views.map(|message| Effect::Send { to, message }));
    }

    /// Makes a view and sends it to every linked member.
    fn publish(&mut self, message: Message, effects: &mut Effects) {
        self.view = self.next_view();
        for to in self.linked() {
            effects.push(Effect::Send { to, message });
        }
    }

    /// Makes a view for each dead node that no view has removed.
    fn publish_losses(&mut self, effects: &mut Effects) {
        for node in self.roster.all_where(Member::is_unburied) {
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
            let Member { node, incarnation, ended, .. } = *member;
            let message = Message::Lost { node, incarnation, ended };
            effects.push(Effect::Send { to, message });
        }
    }

    fn next_view(&self) -> ViewNumber {
        ViewNumber(self.view.0 + 1)
    }

    fn nodes_max(&self) -> usize {
        usize::from(self.identity.settings.nodes_max)
    }

    /// The member that was admitted first among those that lend memory and do not leave.
    pub fn first_lender(&self) -> Option<NodeId> {
        let lenders = self
            .roster
            .iter()
            .filter(|member| member.memory.is_some() && !member.gone && !member.leaving);
        lenders.min_by_key(|member| member.born).map(|member| member.node)
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

fn refusal(code: ErrorCode, text: &str) -> Refusal {
    Refusal { code, text: text.into() }
}

enum Answer {
    Accept,
    Wait,
    Deny(Refusal),
}

#[cfg(test)]
mod tests;
