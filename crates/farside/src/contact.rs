//! Reconnection of broken links between live nodes, on fabrics between hosts: carries out the effects of
//! the contact machine. If all members share a machine, there is none of this: a broken link means a dead
//! process.

use crate::boot::{FENCE_BYTES, member_address};
use crate::canary::{self, NodeMutant};
use crate::clock::Clock;
use crate::engine::{Engine, FollowUp, LineWrite};
use crate::hit::ALWAYS;
use crate::peer::{ASKED, PeerLink, Question};
use farside_base::{
    Completion, CompletionStatus, ErrorCode, LinkId, LocalSlice, NodeId, NodeSet, Operation,
    OperationId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{FabricError, LinkEvent, Loss, NotReached};
use farside_protocol::member::contact::{
    ContactEffect, ContactEvent, Contacts, DialFailure, Patience, RESOLVE_NS,
};
use farside_protocol::member::{
    self, Death, HelloAnswer, JoinRefusal, Leases, PROTOCOL_VERSION, RequestId, Resume, Resumed,
    Standing,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Offset of the query words in a fence region, one per member, which members WRITE as membership queries.
const QUESTIONS: u64 = 64;
/// The longest wait for answers before members are queried again.
const ANSWER_MAX_NS: u64 = 100_000_000;

const _: () = assert!(QUESTIONS + NodeSet::CAPACITY as u64 * 8 <= FENCE_BYTES);

/// The state of links between this node and all others, and their reconnection.
pub(crate) struct Keeper {
    machine: Contacts,
    /// The effects of a step are being carried out; events are queued meanwhile.
    stepping: bool,
    waiting: VecDeque<ContactEvent>,
    /// Links that this node dials.
    dials: Vec<(NodeId, LinkId)>,
    /// Requests to resume, and how many messages the requester has received.
    asked: Vec<(RequestId, u64)>,
    /// When the machine has to check the time.
    wakes_at_ns: u64,
    /// Too few members are linked: the cache may not be used, because the others may continue without this
    /// node.
    fenced: bool,
    /// Operations held back until this node is a member for certain, or learns that it was removed.
    held: VecDeque<OperationId>,
    /// Until when this node is a member for certain, in ticks of the hit path's clock.
    standing: Standing,
    /// When the accusations of members are to be judged.
    judge_at_ns: u64,
    judge_ns: u64,
    /// The earliest time of the next query by a held operation.
    ask_again_ns: u64,
    /// The time and the period of queries that no operation waits for.
    confirm_at_ns: u64,
    confirm_every_ns: u64,
    /// How long to wait for their answers.
    answer_ns: u64,
}

impl Keeper {
    /// `silence_ns` is the lease of this node's own fabric, which `leases` need not have; `host` is where others
    /// reach this node.
    pub(crate) fn new(
        me: NodeId,
        host: SocketAddr,
        leases: Leases,
        silence_ns: u64,
        clock: &Clock,
    ) -> Self {
        let resolve_ns = if host.ip().is_loopback() { 0 } else { RESOLVE_NS };
        // A fabric that detects silence earlier leaves more time for dials.
        let sooner_ns = leases.fabric_ns.saturating_sub(silence_ns);
        let lease_ns = leases.member_ns.saturating_add(sooner_ns);
        let mut patience = Patience::of_lease(lease_ns, leases.fabric_ns, resolve_ns);
        // This is of other members, which may detect silence later than this node.
        patience.confirmed_ns = leases.member_ns;
        if canary::is(NodeMutant::SettledAtOnce) {
            (patience.unaware_ns, patience.standing_ns) = (0, u64::MAX);
        }
        Self {
            machine: Contacts::new(me, patience),
            standing: Standing::new(clock.ticks(patience.standing_ns)),
            judge_at_ns: u64::MAX,
            judge_ns: patience.judge_ns,
            ask_again_ns: 0,
            confirm_at_ns: u64::MAX,
            confirm_every_ns: patience.confirmed_ns / 4,
            answer_ns: (patience.standing_ns / 8).min(ANSWER_MAX_NS),
            stepping: false,
            waiting: VecDeque::new(),
            dials: Vec::new(),
            asked: Vec::new(),
            wakes_at_ns: u64::MAX,
            fenced: false,
            held: VecDeque::new(),
        }
    }

    fn set_wake(&mut self) {
        let again_ns = if self.held.is_empty() { u64::MAX } else { self.ask_again_ns };
        let contact_ns = self.machine.wakes_at_ns().unwrap_or(u64::MAX);
        self.wakes_at_ns = contact_ns.min(again_ns).min(self.judge_at_ns).min(self.confirm_at_ns);
    }

    fn take_dial(&mut self, link: LinkId) -> Option<NodeId> {
        let index = self.dials.iter().position(|(_, dial)| *dial == link)?;
        Some(self.dials.swap_remove(index).0)
    }

    fn take_dial_to(&mut self, node: NodeId) -> Option<LinkId> {
        let index = self.dials.iter().position(|(to, _)| *to == node)?;
        Some(self.dials.swap_remove(index).1)
    }

    fn take_asked(&mut self, request: RequestId) -> Option<u64> {
        let index = self.asked.iter().position(|(asked, _)| *asked == request)?;
        Some(self.asked.swap_remove(index).1)
    }
}

impl Engine {
    /// Whether broken links may reconnect.
    #[inline]
    pub(crate) fn resumes(&self) -> bool {
        self.keeper.is_some()
    }

    /// Whether this link is being dialled to a member with a broken link.
    pub(crate) fn is_dialling(&self, link: LinkId) -> bool {
        self.keeper
            .as_ref()
            .is_some_and(|keeper| keeper.dials.iter().any(|(_, dial)| *dial == link))
    }

    /// The time until this node has to check the time.
    pub(crate) fn wakes_in_ns(&self) -> u64 {
        let contact_ns = self.keeper.as_ref().map_or(u64::MAX, |keeper| keeper.wakes_at_ns);
        let next_ns = contact_ns.min(self.write_backs.next_due_ns());
        match next_ns.min(self.lookout.wakes_at_ns()) {
            u64::MAX => u64::MAX,
            at_ns => at_ns.saturating_sub(self.boot.fabric.time_ns()),
        }
    }

    /// Tells the machine the time when that is due.
    #[inline]
    pub(crate) fn tick(&mut self) {
        let Some(wakes_at_ns) = self.keeper.as_ref().map(|keeper| keeper.wakes_at_ns) else {
            return;
        };
        if wakes_at_ns == u64::MAX {
            return;
        }
        let now_ns = self.boot.fabric.time_ns();
        if now_ns >= wakes_at_ns {
            self.contact(ContactEvent::Tick { now_ns });
            self.ask_standing();
            self.judge_when_due(now_ns);
        }
    }

    /// Judges members that accuse each other once all must have noticed the same outage.
    pub(crate) fn judge_later(&mut self) {
        let now_ns = self.boot.fabric.time_ns();
        match self.keeper.as_mut() {
            Some(keeper) => {
                keeper.judge_at_ns = now_ns.saturating_add(keeper.judge_ns);
                keeper.set_wake();
            }
            // Without leases there is nothing to wait for.
            None => self.follow_ups.push_back(FollowUp::Judge),
        }
    }

    fn judge_when_due(&mut self, now_ns: u64) {
        if let Some(keeper) = self.keeper.as_mut().filter(|keeper| now_ns >= keeper.judge_at_ns) {
            keeper.judge_at_ns = u64::MAX;
            keeper.set_wake();
            self.member_own(member::MemberEvent::Judge);
        }
    }

    /// Notes the first link to a member.
    pub(crate) fn contact_linked(&mut self, node: NodeId) {
        if let Some(keeper) = self.keeper.as_mut() {
            keeper.confirm_at_ns = 0;
        }
        self.contact(ContactEvent::Linked { node });
    }

    /// Notes that a member is unreachable, and may be alive.
    pub(crate) fn contact_cut(&mut self, node: NodeId) {
        self.contact(ContactEvent::Cut { node });
    }

    /// Notes the loss of a connected member's link.
    pub(crate) fn link_lost(&mut self, node: NodeId, loss: Loss) {
        if !self.resumes() {
            return self.member_own(member::MemberEvent::LinkLost { node });
        }
        if let Some(peer) = self.peers.get_mut(node) {
            peer.ended = loss == Loss::Ended;
        }
        self.contact_broken(node);
    }

    /// Steps the machine and carries out all effects before its next step.
    fn contact(&mut self, event: ContactEvent) {
        let Some(keeper) = self.keeper.as_mut() else {
            return;
        };
        keeper.waiting.push_back(event);
        if keeper.stepping {
            return;
        }
        keeper.stepping = true;
        let mut effects = Vec::new(); // links break rarely
        while let Some(keeper) = self.keeper.as_mut() {
            let Some(event) = keeper.waiting.pop_front() else {
                keeper.stepping = false;
                break;
            };
            keeper.machine.step(event, &mut effects);
            for effect in effects.drain(..) {
                self.route_contact(effect);
            }
        }
        if let Some(keeper) = self.keeper.as_mut() {
            keeper.set_wake();
        }
        self.fence();
    }

    /// Checks whether enough members are linked for the cache to be trusted, and until when it is.
    pub(crate) fn fence(&mut self) {
        let drained = self.is_drained();
        let Some(keeper) = self.keeper.as_mut() else {
            return;
        };
        let broken = keeper.machine.down().next().is_some() || self.membership.has_suspects();
        let linked: Vec<NodeId> =
            self.peers.iter().filter(|node| self.peers.is_linked(*node)).collect();
        let fenced = broken && self.membership.is_ready() && !self.membership.is_quorum(&linked);
        let changed = fenced != keeper.fenced;
        keeper.fenced = fenced;
        self.lines.trust_until(match () {
            () if fenced || drained || self.closed_with.is_some() => 0,
            // No member can remove this node: there is no quorum without it.
            () if self.membership.is_quorum(&[]) => ALWAYS,
            () => keeper.standing.until(),
        });
        match () {
            () if fenced && changed => self.call_in_loans(),
            () if fenced => {}
            // It may have become a quorum by itself, without an answer of any member.
            () if self.lines.is_trusted() => self.start_held(),
            () => self.ask_standing(),
        }
    }

    /// Takes the operations that are held back.
    pub(crate) fn take_held(&mut self) -> VecDeque<OperationId> {
        self.keeper.as_mut().map(|keeper| std::mem::take(&mut keeper.held)).unwrap_or_default()
    }

    fn start_held(&mut self) {
        for operation in self.take_held() {
            self.follow_ups.push_back(FollowUp::Start(operation));
        }
    }

    /// Holds an operation back while this node may not trust its cache; false if it may.
    #[inline]
    pub(crate) fn hold_operation(&mut self, operation: OperationId) -> bool {
        if self.lines.is_trusted() {
            return false;
        }
        let Some(keeper) = self.keeper.as_mut() else {
            return false;
        };
        keeper.held.push_back(operation);
        self.ask_standing();
        true
    }

    /// Queries the members whether this node is one of them, if an operation waits for that or it is due.
    /// The query is a WRITE to the fence region of each, which only an open link completes.
    fn ask_standing(&mut self) {
        let now_ns = self.boot.fabric.time_ns();
        let Some(keeper) = self.keeper.as_mut() else {
            return;
        };
        let is_awaited = !keeper.fenced && !keeper.held.is_empty() && now_ns >= keeper.ask_again_ns;
        if !is_awaited && now_ns < keeper.confirm_at_ns {
            return keeper.set_wake();
        }
        keeper.ask_again_ns = now_ns.saturating_add(keeper.answer_ns);
        keeper.confirm_at_ns = match self.peers.iter().next().is_none() {
            true => u64::MAX,
            false => now_ns.saturating_add(keeper.confirm_every_ns),
        };
        keeper.set_wake();
        // The time is read before the queries are posted.
        let question = Question { asked: self.lines.clock().now(), asked_ns: now_ns };
        let offset = QUESTIONS + u64::from(self.lines.me().0) * 8;
        let source = [LocalSlice { region: self.regions.fence.id, offset, bytes: 8 }];
        for (node, link) in self.peers.links_mut().filter(|(_, link)| link.question.is_none()) {
            let to = RemoteSlice { region: link.fence, offset };
            let source = Source::Gather(&source);
            let work = Work {
                id: WorkId(ASKED | u64::from(node.0)),
                link: link.id,
                flags: WorkFlags { signalled: true, ..WorkFlags::default() },
                operation: Operation::Write { source, to, immediate: None },
            };
            // A query that is not accepted now is repeated later.
            let posted = self.port.post(&[work]);
            link.question = (posted.accepted == 1).then_some(question);
            self.counters.doorbells += 1;
            self.counters.work_requests += posted.accepted as u64;
        }
    }

    /// Handles the completion of a query: the member has answered, or its link has failed.
    pub(crate) fn question_ended(&mut self, completion: &Completion) {
        let node = NodeId((completion.id.0 & !ASKED) as u16);
        let link = self.peers.get_mut(node).and_then(|peer| peer.link.as_mut());
        let link = link.filter(|link| link.id == completion.link);
        let Some(question) = link.and_then(|link| link.question.take()) else {
            return;
        };
        if completion.status == CompletionStatus::Success {
            self.standing_answered(node, question);
        }
    }

    /// Notes a member's answer: its link was open after the query.
    fn standing_answered(&mut self, node: NodeId, question: Question) {
        let now_ns = self.boot.fabric.time_ns();
        let Some(keeper) = self.keeper.as_mut() else {
            return;
        };
        let Question { asked, asked_ns } = question;
        keeper.machine.step(ContactEvent::Confirmed { node, asked_ns }, &mut Vec::new());
        if now_ns.saturating_sub(asked_ns) > keeper.answer_ns {
            // Asked before an outage, say: operations that wait need the answer to a later question.
            keeper.ask_again_ns = 0;
        }
        let membership = &self.membership;
        match keeper.standing.answered(node, asked, |nodes| membership.is_quorum(nodes)) {
            true => self.fence(),
            false => self.ask_standing(),
        }
    }

    /// The number of operations held back.
    pub(crate) fn held_count(&self) -> usize {
        self.keeper.as_ref().map_or(0, |keeper| keeper.held.len())
    }

    /// Handles the final removal of a member. It may be alive and not know it yet: its cached lines stay
    /// its own until it must have noticed, a time that the machine knows.
    pub(crate) fn member_dead(&mut self, node: NodeId, death: Death) {
        if let Some(keeper) = self.keeper.as_mut() {
            keeper.standing.removed(node);
            self.contact(ContactEvent::Dead { node, death, now_ns: self.boot.fabric.time_ns() });
        } else {
            self.node_dead(node);
        }
    }

    fn contact_broken(&mut self, node: NodeId) {
        self.contact(ContactEvent::Broken { node, now_ns: self.boot.fabric.time_ns() });
    }

    fn contact_failed(&mut self, node: NodeId, why: DialFailure) {
        self.contact(ContactEvent::Failed { node, why, now_ns: self.boot.fabric.time_ns() });
    }

    fn route_contact(&mut self, effect: ContactEffect) {
        match effect {
            ContactEffect::Close { node } => {
                // Messages that arrived before count, and the peer will learn of their receipt.
                self.land_all();
                _ = self.unlink(node);
            }
            ContactEffect::Dial { node } => self.dial(node),
            ContactEffect::HangUp { node } => {
                if let Some(link) =
                    self.keeper.as_mut().and_then(|keeper| keeper.take_dial_to(node))
                {
                    self.peers.early.retain(|(early, _)| *early != link);
                    self.port.close(link);
                }
            }
            ContactEffect::Accept { node, request } => self.accept_resume(node, request),
            ContactEffect::TurnAway { request } => self.turn_resume_away(request, ErrorCode::Busy),
            ContactEffect::Deny { request } => {
                self.turn_resume_away(request, ErrorCode::NodeClosed)
            }
            ContactEffect::Dead { node } => self.member_own(member::MemberEvent::LinkLost { node }),
            ContactEffect::OutOfReach { node } => {
                self.member_own(member::MemberEvent::OutOfReach { node })
            }
            ContactEffect::Expelled { by } => self.member_own(member::MemberEvent::Expelled { by }),
            ContactEffect::Settle { node } => self.node_dead(node),
        }
    }

    /// Closes the link to a member, if there is one; nothing from it is processed any more.
    pub(crate) fn unlink(&mut self, node: NodeId) -> Option<LinkId> {
        let link = self.peers.unlink(node)?;
        self.port.close(link);
        self.placements.hold(node);
        Some(link)
    }

    fn dial(&mut self, node: NodeId) {
        let listed = self.membership.listed(node);
        let received = self.peers.get(node).map(|peer| peer.messenger.received_count());
        let (Some(listed), Some(received)) = (listed, received) else {
            return;
        };
        let resume = Resume {
            version: PROTOCOL_VERSION,
            cluster: self.boot.cluster.clone(),
            node: self.me(),
            incarnation: self.membership.incarnation(),
            to: listed.incarnation,
            received,
        };
        let to = member_address(&self.boot.cluster, (node, listed.born), listed.host);
        match (self.port.connect(&to, &resume.encode(), self.peers.receives), &mut self.keeper) {
            (Ok(link), Some(keeper)) => keeper.dials.push((node, link)),
            (Err(FabricError::NoListener(_)), _) => self.no_listener(node),
            _ => self.contact_failed(node, DialFailure::NoAnswer),
        }
    }

    /// Handles a dial to a member's address at which nothing listens. If its link ended there too, its
    /// process has certainly ended; otherwise a firewall may have answered, or another machine under its
    /// address.
    fn no_listener(&mut self, node: NodeId) {
        let ended = self.peers.get(node).is_some_and(|peer| peer.ended);
        self.contact_failed(node, if ended { DialFailure::Ended } else { DialFailure::NoAnswer });
    }

    /// Handles a member's request to resume over a new link.
    pub(crate) fn resume_asked(&mut self, request: RequestId, resume: &Resume) {
        let here = self.membership.incarnation();
        if resume.version != PROTOCOL_VERSION || resume.cluster != self.boot.cluster {
            return self.turn_resume_away(request, ErrorCode::ProtocolViolation);
        }
        if resume.to != here || self.closed_with.is_some() {
            // The incarnation that it names has ended.
            return self.turn_resume_away(request, ErrorCode::NodeLost);
        }
        let node = resume.node;
        let same_life = self.peers.get(node).is_some_and(|p| p.incarnation == resume.incarnation);
        match self.keeper.as_mut().filter(|_| same_life) {
            Some(keeper) => {
                keeper.asked.push((request, resume.received));
                self.contact(ContactEvent::Dialled { node, request });
            }
            None => self.turn_resume_away(request, ErrorCode::NodeClosed),
        }
    }

    fn turn_resume_away(&mut self, request: RequestId, code: ErrorCode) {
        if let Some(keeper) = self.keeper.as_mut() {
            let _ = keeper.take_asked(request);
        }
        // The requester may be gone already; then the answer is not needed.
        let _ = self.port.refuse(LinkId(request.0 as u32), &JoinRefusal::new(code).encode());
    }

    fn accept_resume(&mut self, node: NodeId, request: RequestId) {
        let link = LinkId(request.0 as u32);
        let asked = self.keeper.as_mut().and_then(|keeper| keeper.take_asked(request));
        let received = self.peers.get(node).map(|peer| peer.messenger.received_count());
        let (Some(received_there), Some(received)) = (asked, received) else {
            return self.turn_resume_away(request, ErrorCode::NodeClosed);
        };
        let reply = Resumed { incarnation: self.membership.incarnation(), received }.encode();
        if self.port.accept(link, &reply, self.peers.receives).is_err() {
            return self.contact_broken(node);
        }
        self.resume(node, link, received_there);
    }

    /// Resumes over a new link.
    fn resume(&mut self, node: NodeId, link: LinkId, received_there: u64) {
        let Some(peer) = self.peers.get_mut(node) else {
            return self.port.close(link);
        };
        let resumed = peer.messenger.resume(received_there);
        let imported = PeerLink::import(&mut *self.port, link, &peer.tokens);
        if let Err(violation) = resumed {
            self.port.close(link);
            self.peers.accuse(node, violation);
            self.follow_ups.push_back(FollowUp::Accuse(node));
            return self.contact_broken(node);
        }
        let Some(linked) = imported else {
            self.port.close(link);
            return self.contact_broken(node);
        };
        self.counters.resumes += 1;
        let follow_ups = &mut self.follow_ups;
        let landed = |placement: LineWrite| follow_ups.push_back(FollowUp::Placed(placement.line));
        match canary::is(NodeMutant::NotPlacedAgain) {
            true => self.placements.gone(node, landed),
            false => self.placements.resume(node, received_there, landed),
        }
        self.peers.link(node, linked);
        self.early_messages(node, link);
    }

    /// Handles an event of a link that this node dials; false if it dials no such link.
    pub(crate) fn dial_event(&mut self, event: &LinkEvent) -> bool {
        let Some(node) = self.keeper.as_mut().and_then(|keeper| keeper.take_dial(event.link()))
        else {
            return false;
        };
        match event {
            LinkEvent::Connected { link, reply } => self.dial_answered(node, *link, reply),
            LinkEvent::Refused { reason, .. } => {
                let code = match HelloAnswer::decode(reason) {
                    Ok(HelloAnswer::Refusal(refusal)) => refusal.code,
                    _ => ErrorCode::ProtocolViolation,
                };
                let why = match code {
                    ErrorCode::NodeClosed => DialFailure::Expelled,
                    ErrorCode::NodeLost => DialFailure::Ended,
                    _ => DialFailure::Busy,
                };
                self.contact_failed(node, why);
            }
            LinkEvent::NotReached { why: NotReached::NoListener, .. } => self.no_listener(node),
            LinkEvent::NotReached { .. } => self.contact_failed(node, DialFailure::NoAnswer),
            _ => {
                self.port.close(event.link());
                self.contact_failed(node, DialFailure::NoAnswer);
            }
        }
        true
    }

    fn dial_answered(&mut self, node: NodeId, link: LinkId, reply: &[u8]) {
        let life = self.peers.get(node).map(|peer| peer.incarnation);
        let resumed = match HelloAnswer::decode(reply) {
            Ok(HelloAnswer::Resumed(resumed)) if Some(resumed.incarnation) == life => resumed,
            _ => {
                self.port.close(link);
                return self.contact_failed(node, DialFailure::NoAnswer);
            }
        };
        // Listed, so that abandoning the dial finds it.
        if let Some(keeper) = self.keeper.as_mut() {
            keeper.dials.push((node, link));
        }
        self.contact(ContactEvent::Answered { node });
        if self.keeper.as_mut().and_then(|keeper| keeper.take_dial(link)).is_some() {
            self.resume(node, link, resumed.received);
        }
    }
}
