//! Reconnection of broken links between live nodes, on fabrics between hosts: carries out the effects of
//! the contact machine. If all members share a machine, there is none of this: a broken link means a dead
//! process.

use super::links::{LinkChange, Question};
use super::{Engine, FollowUp};
use crate::canary;
use crate::clock::Clock;
use crate::hit::ALWAYS;
use farside_base::{ErrorCode, LinkId, NodeId, OperationId};
use farside_protocol::member::contact::{
    ContactEffect, ContactEvent, Contacts, DialFailure, Patience, RESOLVE_NS,
};
use farside_protocol::member::{
    self, Death, HelloAnswer, HelloError, JoinRefusal, Leases, PROTOCOL_VERSION, RequestId, Resume,
    Resumed, Standing,
};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The longest wait for answers before members are queried again.
const ANSWER_MAX_NS: u64 = 100_000_000;

/// Drives the contact machine: the state of links between this node and all others, and their reconnection.
pub(crate) struct ContactDriver {
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
    /// When the first of them arrived.
    accused_at_ns: u64,
    /// The earliest time of the next query by a held operation.
    ask_again_ns: u64,
    /// The time and the period of queries that no operation waits for.
    confirm_at_ns: u64,
    confirm_every_ns: u64,
    /// How long to wait for their answers.
    answer_ns: u64,
}

impl ContactDriver {
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
        if canary::mutant!(canary::nodes(), SettledAtOnce) {
            (patience.unaware_ns, patience.standing_ns) = (0, u64::MAX);
        }
        Self {
            machine: Contacts::new(me, patience),
            standing: Standing::new(clock.ticks(patience.standing_ns)),
            judge_at_ns: u64::MAX,
            judge_ns: patience.judge_ns,
            accused_at_ns: 0,
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

    /// When this node has to check the time.
    pub(super) fn wakes_at_ns(&self) -> u64 {
        self.wakes_at_ns
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
    /// Whether this link is being dialled to a member with a broken link.
    pub(crate) fn is_dialling(&self, link: LinkId) -> bool {
        self.contact
            .as_ref()
            .is_some_and(|contact| contact.dials.iter().any(|(_, dial)| *dial == link))
    }

    /// Tells the machine the time when that is due.
    #[inline]
    pub(crate) fn tick(&mut self) {
        let Some(wakes_at_ns) = self.contact.as_ref().map(|contact| contact.wakes_at_ns) else {
            return;
        };
        if wakes_at_ns == u64::MAX {
            return;
        }
        let now_ns = self.links.now_ns();
        if now_ns >= wakes_at_ns {
            self.step_contact(ContactEvent::Tick { now_ns });
            self.ask_standing();
            self.judge_when_due(now_ns);
        }
    }

    /// Schedules the judgement of members that accuse each other: once all must have noticed the same outage, and the accused
    /// have answered a question posted since. A silent one is a suspect soon, and its accusers are not judged.
    pub(crate) fn judge_later(&mut self) {
        let now_ns = self.links.now_ns();
        match self.contact.as_mut() {
            Some(contact) => {
                contact.judge_at_ns = now_ns.saturating_add(contact.judge_ns);
                contact.accused_at_ns = now_ns;
                contact.confirm_at_ns = now_ns;
                contact.set_wake();
            }
            // Without leases there is nothing to wait for.
            None => self.follow_ups.push_back(FollowUp::Judge),
        }
    }

    fn judge_when_due(&mut self, now_ns: u64) {
        let Some(contact) = self.contact.as_mut().filter(|contact| now_ns >= contact.judge_at_ns)
        else {
            return;
        };
        let answers = |node| contact.machine.has_answered_since(node, contact.accused_at_ns);
        if !self.membership.machine().accused_members().all(answers) {
            contact.judge_at_ns = now_ns.saturating_add(contact.judge_ns / 4);
            contact.confirm_at_ns = now_ns;
            return contact.set_wake();
        }
        contact.judge_at_ns = u64::MAX;
        contact.set_wake();
        self.member_own(member::MemberEvent::Judge);
    }

    /// Notes the first link to a member.
    pub(crate) fn contact_linked(&mut self, node: NodeId) {
        if let Some(contact) = self.contact.as_mut() {
            contact.confirm_at_ns = 0;
        }
        self.step_contact(ContactEvent::Linked { node });
    }

    /// Notes that a member is unreachable, and may be alive.
    pub(crate) fn contact_cut(&mut self, node: NodeId) {
        self.step_contact(ContactEvent::Cut { node });
    }

    /// Notes the loss of a connected member's link.
    pub(crate) fn link_lost(&mut self, node: NodeId, ended: bool) {
        if !self.links.resumes() {
            return self.member_own(member::MemberEvent::LinkLost { node });
        }
        self.links.peers_mut().lost(node, ended);
        self.contact_broken(node);
    }

    /// Steps the machine and carries out all effects before its next step.
    fn step_contact(&mut self, event: ContactEvent) {
        let Some(contact) = self.contact.as_mut() else {
            return;
        };
        contact.waiting.push_back(event);
        if contact.stepping {
            return;
        }
        contact.stepping = true;
        let mut effects = Vec::new(); // links break rarely
        while let Some(contact) = self.contact.as_mut() {
            let Some(event) = contact.waiting.pop_front() else {
                contact.stepping = false;
                break;
            };
            contact.machine.step(event, &mut effects);
            for effect in effects.drain(..) {
                self.route_contact(effect);
            }
        }
        if let Some(contact) = self.contact.as_mut() {
            contact.set_wake();
        }
        self.fence();
    }

    /// Checks whether enough members are linked for the cache to be trusted, and until when it is.
    pub(crate) fn fence(&mut self) {
        let drained = self.is_drained();
        let Some(contact) = self.contact.as_mut() else {
            return;
        };
        let (peers, membership) = (self.links.peers(), self.membership.machine());
        let broken = contact.machine.down().next().is_some() || membership.has_suspects();
        let linked: Vec<NodeId> = peers.iter().filter(|node| peers.is_linked(*node)).collect();
        let fenced = broken && membership.is_ready() && !membership.is_quorum(&linked);
        let changed = fenced != contact.fenced;
        contact.fenced = fenced;
        self.lines.trust_until(match () {
            () if fenced || drained || self.closed_with.is_some() => 0,
            // No member can remove this node: there is no quorum without it.
            () if membership.is_quorum(&[]) => ALWAYS,
            () => contact.standing.until(),
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
        self.contact.as_mut().map(|contact| std::mem::take(&mut contact.held)).unwrap_or_default()
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
        let Some(contact) = self.contact.as_mut() else {
            return false;
        };
        contact.held.push_back(operation);
        self.ask_standing();
        true
    }

    /// Queries the members whether this node is one of them, if an operation waits for that or it is due.
    /// The query is a WRITE to the fence region of each, which only an open link completes.
    fn ask_standing(&mut self) {
        let now_ns = self.links.now_ns();
        let Some(contact) = self.contact.as_mut() else {
            return;
        };
        let is_awaited =
            !contact.fenced && !contact.held.is_empty() && now_ns >= contact.ask_again_ns;
        if !is_awaited && now_ns < contact.confirm_at_ns {
            return contact.set_wake();
        }
        contact.ask_again_ns = now_ns.saturating_add(contact.answer_ns);
        contact.confirm_at_ns = match self.links.peers().iter().next().is_none() {
            true => u64::MAX,
            false => now_ns.saturating_add(contact.confirm_every_ns),
        };
        contact.set_wake();
        // The time is read before the queries are posted.
        self.links.ask_members(Question { asked: self.lines.clock().now(), asked_ns: now_ns });
    }

    /// Notes a member's answer: its link was open after the query.
    pub(super) fn standing_answered(&mut self, node: NodeId, question: Question) {
        let now_ns = self.links.now_ns();
        let Some(contact) = self.contact.as_mut() else {
            return;
        };
        let Question { asked, asked_ns } = question;
        contact.machine.step(ContactEvent::Confirmed { node, asked_ns }, &mut Vec::new());
        if now_ns.saturating_sub(asked_ns) > contact.answer_ns {
            // Asked before an outage, say: operations that wait need the answer to a later question.
            contact.ask_again_ns = 0;
        }
        let membership = self.membership.machine();
        match contact.standing.answered(node, asked, |nodes| membership.is_quorum(nodes)) {
            true => self.fence(),
            false => self.ask_standing(),
        }
    }

    /// The number of operations held back.
    pub(crate) fn held_count(&self) -> usize {
        self.contact.as_ref().map_or(0, |contact| contact.held.len())
    }

    /// Handles the final removal of a member. It may be alive and not know it yet: its cached lines stay
    /// its own until it must have noticed, a time that the machine knows.
    pub(crate) fn member_dead(&mut self, node: NodeId, death: Death) {
        self.away.returns(node); // it refuses nothing any more
        if let Some(contact) = self.contact.as_mut() {
            contact.standing.removed(node);
            self.step_contact(ContactEvent::Dead { node, death, now_ns: self.links.now_ns() });
        } else {
            self.node_dead(node);
        }
    }

    fn contact_broken(&mut self, node: NodeId) {
        self.step_contact(ContactEvent::Broken { node, now_ns: self.links.now_ns() });
    }

    fn contact_failed(&mut self, node: NodeId, why: DialFailure) {
        self.step_contact(ContactEvent::Failed { node, why, now_ns: self.links.now_ns() });
    }

    fn route_contact(&mut self, effect: ContactEffect) {
        match effect {
            ContactEffect::Close { node } => {
                // Messages that arrived before count, and the peer will learn of their receipt.
                self.land_all();
                _ = self.links.unlink(node);
            }
            ContactEffect::Dial { node } => self.dial(node),
            ContactEffect::HangUp { node } => {
                if let Some(link) =
                    self.contact.as_mut().and_then(|contact| contact.take_dial_to(node))
                {
                    self.links.close(link);
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

    fn dial(&mut self, node: NodeId) {
        let listed = self.membership.machine().listed(node);
        let received = self.links.peers().received_count(node);
        let (Some(listed), Some(received)) = (listed, received) else {
            return;
        };
        let resume = Resume {
            version: PROTOCOL_VERSION,
            cluster: self.membership.cluster().to_owned(),
            node: self.me(),
            incarnation: self.membership.machine().incarnation(),
            to: listed.incarnation,
            received,
        };
        let to = self.membership.address_of((node, listed.born), listed.host);
        match (self.links.dial(&to, &resume.encode()), &mut self.contact) {
            (Ok(link), Some(contact)) => contact.dials.push((node, link)),
            (Err(true), _) => self.no_listener(node),
            _ => self.contact_failed(node, DialFailure::NoAnswer),
        }
    }

    /// Handles a dial to a member's address at which nothing listens. If its link ended there too, its
    /// process has certainly ended; otherwise a firewall may have answered, or another machine under its
    /// address.
    fn no_listener(&mut self, node: NodeId) {
        let ended = self.links.peers().has_ended(node);
        self.contact_failed(node, if ended { DialFailure::Ended } else { DialFailure::NoAnswer });
    }

    /// Handles a member's request to resume over a new link.
    pub(crate) fn resume_asked(&mut self, request: RequestId, resume: &Resume) {
        let here = self.membership.machine().incarnation();
        if resume.version != PROTOCOL_VERSION || resume.cluster != self.membership.cluster() {
            return self.turn_resume_away(request, ErrorCode::ProtocolViolation);
        }
        if resume.to != here || self.closed_with.is_some() {
            // The incarnation that it names has ended.
            return self.turn_resume_away(request, ErrorCode::NodeLost);
        }
        let node = resume.node;
        let same_life = self.links.peers().incarnation(node) == Some(resume.incarnation);
        match self.contact.as_mut().filter(|_| same_life) {
            Some(contact) => {
                contact.asked.push((request, resume.received));
                self.step_contact(ContactEvent::Dialled { node, request });
            }
            None => self.turn_resume_away(request, ErrorCode::NodeClosed),
        }
    }

    fn turn_resume_away(&mut self, request: RequestId, code: ErrorCode) {
        if let Some(contact) = self.contact.as_mut() {
            let _ = contact.take_asked(request);
        }
        // The requester may be gone already; then the answer is not needed.
        self.links.refuse(request, &JoinRefusal::new(code).encode());
    }

    fn accept_resume(&mut self, node: NodeId, request: RequestId) {
        let asked = self.contact.as_mut().and_then(|contact| contact.take_asked(request));
        let received = self.links.peers().received_count(node);
        let (Some(received_there), Some(received)) = (asked, received) else {
            return self.turn_resume_away(request, ErrorCode::NodeClosed);
        };
        let incarnation = self.membership.machine().incarnation();
        match self.links.accept(request, &Resumed { incarnation, received }.encode()) {
            Some(link) => self.resume(node, link, received_there),
            None => self.contact_broken(node),
        }
    }

    /// Resumes over a new link.
    fn resume(&mut self, node: NodeId, link: LinkId, received_there: u64) {
        if !self.links.peers().is_connected(node) {
            return self.links.close(link);
        }
        let follow_ups = &mut self.follow_ups;
        let landed = |line| follow_ups.push_back(FollowUp::Placed(line));
        match self.links.resume(node, link, received_there, landed) {
            Ok(true) => self.early_messages(node, link),
            Ok(false) => self.contact_broken(node),
            Err(violation) => {
                self.accuse(node, violation);
                self.contact_broken(node);
            }
        }
    }

    /// Handles a change of a link that this node dials; gives back that of any other link.
    pub(super) fn dial_change(&mut self, change: LinkChange) -> Option<LinkChange> {
        let (LinkChange::Accepted(link, _)
        | LinkChange::Refused(link, _)
        | LinkChange::NotReached(link, _)
        | LinkChange::Lost(link, _)) = change
        else {
            return Some(change);
        };
        let Some(node) = self.contact.as_mut().and_then(|contact| contact.take_dial(link)) else {
            return Some(change);
        };
        match change {
            LinkChange::Accepted(link, answer) => self.dial_answered(node, link, answer),
            LinkChange::Refused(_, answer) => {
                let code = match answer {
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
            LinkChange::NotReached(_, true) => self.no_listener(node),
            LinkChange::NotReached(_, false) => self.contact_failed(node, DialFailure::NoAnswer),
            LinkChange::Asked(..) | LinkChange::AskerGone(_) | LinkChange::Lost(..) => {
                self.links.close(link);
                self.contact_failed(node, DialFailure::NoAnswer);
            }
        }
        None
    }

    fn dial_answered(
        &mut self,
        node: NodeId,
        link: LinkId,
        answer: Result<HelloAnswer, HelloError>,
    ) {
        let life = self.links.peers().incarnation(node);
        let resumed = match answer {
            Ok(HelloAnswer::Resumed(resumed)) if Some(resumed.incarnation) == life => resumed,
            _ => {
                self.links.close(link);
                return self.contact_failed(node, DialFailure::NoAnswer);
            }
        };
        // Listed, so that abandoning the dial finds it.
        if let Some(contact) = self.contact.as_mut() {
            contact.dials.push((node, link));
        }
        self.step_contact(ContactEvent::Answered { node });
        if self.contact.as_mut().and_then(|contact| contact.take_dial(link)).is_some() {
            self.resume(node, link, resumed.received);
        }
    }
}
