//! Joining, links and deaths: carries out the effects of the membership machine.

use crate::engine::{Engine, FollowUp};
use crate::hit::remove_member;
use crate::incoming::Incoming;
use crate::peer::Tokens;
use farside_base::{ErrorCode, Incarnation, LinkId, NodeId, ViewNumber};
use farside_fabric::{Fabric, FabricError, LinkEvent, NotReached, Port, PortSpec};
use farside_protocol::coherence;
use farside_protocol::member::{
    self, Burials, Elsewhere, HelloAnswer, HelloRequest, JoinRefusal, MemberEffect, MemberEvent,
    MemberMessage, Occupancy, PROTOCOL_VERSION, PeerReply, RequestId, burial,
};
use farside_protocol::wire::{BODY, Family, Violation};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// Marks requests that arrived at the rendezvous name.
pub(crate) const AT_RENDEZVOUS: u64 = 1 << 63;

/// The name at which a cluster admits new nodes.
pub(crate) fn rendezvous_name(cluster: &str) -> String {
    format!("farside.{cluster}")
}

/// The name at which a node accepts links of other nodes. As far as names have room, it includes the view
/// that admitted the node: an earlier node of the same number may still listen, stopped or partitioned.
/// `farside info` reads it.
pub(crate) fn member_name(cluster: &str, node: NodeId, born: ViewNumber) -> String {
    let digit = |power| char::from_digit((born.0 / 36_u64.pow(power) % 36) as u32, 36);
    let age: String = (0..3).rev().filter_map(digit).collect();
    format!("farside.{cluster}.{node}-{age}")
}

/// The address to dial for a link to a node.
pub(crate) fn member_address(
    cluster: &str,
    (node, born): (NodeId, ViewNumber),
    host: Option<SocketAddr>,
) -> String {
    let name = member_name(cluster, node, born);
    host.map_or_else(|| name.clone(), |host| format!("{host}/{name}"))
}

/// A link to a member that is being established.
#[derive(Clone, Copy, Debug)]
struct Connecting {
    node: NodeId,
    incarnation: Incarnation,
    /// The view that admitted it.
    born: ViewNumber,
    /// Its address, on fabrics between hosts.
    host: Option<SocketAddr>,
    /// `None` while the member does not listen yet.
    link: Option<LinkId>,
    /// The earliest time of the next attempt.
    next_ns: u64,
}

/// The delay before a member that does not listen yet is dialled again, if that costs a connection.
const CALL_AGAIN_NS: u64 = 5_000_000;

/// Offset of the fence word in a member's fence region.
pub(crate) const FENCE_WORD: u64 = 0;
/// Bytes of a fence region.
pub(crate) const FENCE_BYTES: u64 = 4096;

/// The state for joining and leaving besides the membership machine.
pub(crate) struct Boot {
    pub(crate) cluster: String,
    pub(crate) fabric: Arc<dyn Fabric>,
    connecting: Vec<Connecting>,
    /// Linked members whose regions are being imported.
    pub(crate) incoming: Vec<Incoming>,
    /// A joiner's link to the rendezvous name, kept until it is linked to the coordinator.
    pub(crate) joining: Option<(Box<dyn Port>, LinkId, NodeId)>,
    /// The rendezvous name is to be bound as soon as it is free.
    wants_rendezvous: bool,
    /// The effects of a membership step are being carried out; events are queued meanwhile.
    stepping: bool,
    reports: VecDeque<MemberEvent>,
    burials: Burials,
    pub(crate) ready: bool,
    pub(crate) closed: bool,
    pub(crate) refused: Option<JoinRefusal>,
}

impl Boot {
    pub(crate) fn new(cluster: String, fabric: Arc<dyn Fabric>, nodes_max: u16) -> Self {
        Self {
            cluster,
            fabric,
            connecting: Vec::new(),
            incoming: Vec::new(),
            joining: None,
            wants_rendezvous: false,
            stepping: false,
            reports: VecDeque::new(),
            burials: Burials::new(nodes_max),
            ready: false,
            closed: false,
            refused: None,
        }
    }
}

impl Engine {
    /// Steps the membership machine and carries out all effects before its next step; events that effects
    /// cause are queued.
    fn step_member(&mut self, event: MemberEvent) -> Result<(), Violation> {
        if self.boot.stepping {
            self.boot.reports.push_back(event);
            return Ok(());
        }
        self.boot.stepping = true;
        let mut effects = Vec::new(); // changes of membership are rare
        let first = self.membership.step(event, &mut effects);
        loop {
            for effect in effects.drain(..) {
                self.route_member(effect);
            }
            let Some(report) = self.boot.reports.pop_front() else {
                break;
            };
            if let Err(violation) = self.membership.step(report, &mut effects) {
                self.failure = Some(violation.0);
            }
        }
        self.boot.stepping = false;
        self.watches.wake_members();
        // Before any effect is visible: this node may have been a quorum by itself, and may be none now.
        self.fence();
        first
    }

    /// Steps the machine with an event of this node, which it cannot refuse.
    pub(crate) fn member_own(&mut self, event: MemberEvent) {
        if let Err(violation) = self.step_member(event) {
            self.failure = Some(violation.0);
        }
    }

    pub(crate) fn member_message(
        &mut self,
        from: NodeId,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        match MemberMessage::decode(body)? {
            MemberMessage::Buried { node, born, lane, answer } => {
                let former = self.membership.is_former(node, born);
                self.bury(burial::RemovalEvent::Buried { from, node, born, lane, answer, former })
            }
            message => self.step_member(MemberEvent::Message { from, message }),
        }
    }

    fn route_member(&mut self, effect: MemberEffect) {
        match effect {
            MemberEffect::Connect { node, incarnation, born, host } => {
                let connecting =
                    Connecting { node, incarnation, born, host, link: None, next_ns: 0 };
                self.boot.connecting.push(connecting);
                self.retry_connections();
            }
            MemberEffect::Admit { request, welcome } => {
                let answer = welcome.encode();
                self.requests.add(request, self.boot.fabric.time_ns(), true);
                self.answer(request, |port, link, queue| port.accept(link, &answer, queue));
            }
            MemberEffect::Deny { request, refusal } => {
                let answer = refusal.encode();
                self.requests.remove(request);
                self.answer(request, |port, link, _| port.refuse(link, &answer));
            }
            MemberEffect::AcceptPeer { request, peer } => self.accept_peer(request, &peer),
            MemberEffect::Send { to, message } => {
                self.peers.push(to, message.class(), Family::Member, &message.encode());
            }
            MemberEffect::Cut { node } => {
                _ = self.unlink(node);
                self.contact_cut(node);
            }
            MemberEffect::JudgeLater => self.judge_later(),
            MemberEffect::Admitted { node } => self.node_admitted(node),
            MemberEffect::Dead { node, death, .. } => self.member_dead(node, death),
            MemberEffect::Ready => {
                self.boot.ready = true;
                self.lend_memory();
                if self.resumes() {
                    // A joiner that asks here is redirected to the coordinator.
                    self.boot.wants_rendezvous = true;
                    self.bind_rendezvous();
                }
            }
            MemberEffect::BecomeCoordinator => {
                self.boot.wants_rendezvous = true;
                self.bind_rendezvous();
            }
            MemberEffect::Failed(refusal) => {
                let code = match refusal.code {
                    ErrorCode::Isolated => ErrorCode::Isolated,
                    _ => ErrorCode::NodeClosed,
                };
                self.boot.refused = Some(refusal);
                self.close_with(code);
                self.disconnect();
                self.boot.wants_rendezvous = false;
            }
            MemberEffect::Closed => self.boot.closed = true,
        }
    }

    fn answer(
        &mut self,
        request: RequestId,
        answer: impl FnOnce(
            &mut dyn Port,
            LinkId,
            farside_base::ReceiveQueueId,
        ) -> Result<(), FabricError>,
    ) {
        let link = LinkId((request.0 & !AT_RENDEZVOUS) as u32);
        let done = if request.0 & AT_RENDEZVOUS == 0 {
            answer(&mut *self.port, link, self.peers.receives)
        } else {
            match self.peers.rendezvous.as_mut() {
                Some((port, queue)) => answer(&mut **port, link, *queue),
                None => Err(FabricError::PeerLost),
            }
        };
        if done.is_err() {
            self.requests.remove(request);
            self.member_own(MemberEvent::RequestLost { request });
        }
    }

    /// Tries again to bind the rendezvous name, if this node should have it and has not.
    pub(crate) fn bind_rendezvous(&mut self) {
        if !self.boot.wants_rendezvous || self.peers.rendezvous.is_some() {
            return;
        }
        let listen = Some(rendezvous_name(&self.boot.cluster));
        let Ok(mut port) = self.boot.fabric.open(&PortSpec { listen }) else {
            return; // taken: the next attempt may find it free
        };
        if let Ok(queue) = port.create_receive_queue(1) {
            port.wake_also(self.port.waiter());
            self.peers.rendezvous = Some((port, queue));
        }
    }

    /// Does the checks that need only be done now and then.
    pub(crate) fn probe(&mut self) {
        self.bind_rendezvous();
        self.look_at_peers();
    }

    /// Dials members that did not listen yet.
    pub(crate) fn retry_connections(&mut self) {
        for index in 0..self.boot.connecting.len() {
            let Some(Connecting { node, born, host, link: None, next_ns, .. }) =
                self.boot.connecting.get(index).copied()
            else {
                continue;
            };
            if next_ns > 0 && self.boot.fabric.time_ns() < next_ns {
                continue;
            }
            let hello = member::PeerRequest {
                version: PROTOCOL_VERSION,
                cluster: self.boot.cluster.clone(),
                node: self.me(),
                incarnation: self.membership.incarnation(),
                view: self.membership.born(),
                home: self.regions.home.token,
                cache: self.regions.cache.token,
                fence: self.regions.fence.token,
                extra: Vec::new(),
            }
            .encode();
            let to = member_address(&self.boot.cluster, (node, born), host);
            match self.port.connect(&to, &hello, self.peers.receives) {
                Ok(link) => self.boot.connecting[index].link = Some(link),
                Err(FabricError::NoListener(_)) => {}
                Err(_) => self.lost_on_the_way(node),
            }
        }
    }

    pub(crate) fn lost_on_the_way(&mut self, node: NodeId) {
        self.stop_connecting(node);
        self.member_own(match self.resumes() {
            true => MemberEvent::OutOfReach { node },
            false => MemberEvent::LinkLost { node },
        });
    }

    /// Abandons this node's pending link to a member.
    fn stop_connecting(&mut self, node: NodeId) {
        let Self { boot, port, peers, .. } = self;
        for given_up in boot.connecting.extract_if(.., |connecting| connecting.node == node) {
            if let Some(link) = given_up.link {
                peers.early.retain(|(early, _)| *early != link);
                port.close(link);
            }
        }
    }

    fn accept_peer(&mut self, request: RequestId, peer: &member::PeerRequest) {
        let link = LinkId(request.0 as u32);
        self.requests.remove(request);
        let reply = PeerReply {
            node: self.me(),
            incarnation: self.membership.incarnation(),
            view: self.membership.view(),
            home: self.regions.home.token,
            cache: self.regions.cache.token,
            fence: self.regions.fence.token,
            extra: Vec::new(),
        }
        .encode();
        let accepted = self.port.accept(link, &reply, self.peers.receives).is_ok();
        let tokens = Tokens { home: peer.home, cache: peer.cache, fence: peer.fence };
        let life = (peer.node, peer.incarnation);
        if !accepted || !self.take_in(life, link, tokens, false) {
            self.port.close(link);
            return self.member_own(MemberEvent::Dropped { node: peer.node });
        }
        self.advance_incoming();
    }

    /// Whether this link to a member is being established.
    pub(crate) fn is_connecting(&self, link: LinkId) -> bool {
        self.boot.connecting.iter().any(|connecting| connecting.link == Some(link))
            || self.boot.incoming.iter().any(|incoming| incoming.is_of(link))
            || self.is_dialling(link)
    }

    /// Handles an event of the port that links nodes.
    pub(crate) fn link_event(&mut self, event: LinkEvent) {
        if let LinkEvent::Lost { link, .. }
        | LinkEvent::Refused { link, .. }
        | LinkEvent::NotReached { link, .. } = event
        {
            // Its link number may be reused.
            self.peers.early.retain(|(early, _)| *early != link);
        }
        if self.dial_event(&event) {
            return;
        }
        match event {
            LinkEvent::Requested { link, hello } => {
                self.requested(RequestId(u64::from(link.0)), &hello);
            }
            LinkEvent::Connected { link, reply } => self.connected(link, &reply),
            LinkEvent::Refused { link, reason } => {
                let Some(node) = self.take_connecting(link).map(|connecting| connecting.node)
                else {
                    return;
                };
                match HelloAnswer::decode(&reason) {
                    Ok(HelloAnswer::Refusal(refusal)) => {
                        self.member_own(MemberEvent::Refused { node, refusal })
                    }
                    _ => self.lost_on_the_way(node),
                }
            }
            LinkEvent::NotReached { link, why: NotReached::NoListener } => {
                // It does not listen yet: retry later.
                let next_ns = self.boot.fabric.time_ns() + CALL_AGAIN_NS;
                let connecting = &mut self.boot.connecting;
                if let Some(entry) = connecting.iter_mut().find(|entry| entry.link == Some(link)) {
                    (entry.link, entry.next_ns) = (None, next_ns);
                }
            }
            LinkEvent::NotReached { link, .. } => {
                if let Some(connecting) = self.take_connecting(link) {
                    self.lost_on_the_way(connecting.node);
                }
            }
            LinkEvent::Lost { link, loss } => {
                if let Some(node) = self.peers.node(link) {
                    self.link_lost(node, loss);
                } else if let Some(connecting) = self.take_connecting(link) {
                    self.port.close(link);
                    self.lost_on_the_way(connecting.node);
                } else if !self.incoming_lost(link) {
                    // A lost link occupies an entry of the port until it is closed.
                    self.port.close(link);
                    let request = RequestId(u64::from(link.0));
                    if self.requests.remove(request) {
                        self.member_own(MemberEvent::RequestLost { request });
                    }
                }
            }
            _ => {}
        }
    }

    /// Handles another node's request for a link.
    fn requested(&mut self, request: RequestId, hello: &[u8]) {
        match HelloRequest::decode(hello) {
            Ok(HelloRequest::Peer(peer)) => {
                self.requests.add(request, self.boot.fabric.time_ns(), false);
                self.member_own(MemberEvent::PeerAsked { request, peer });
            }
            Ok(HelloRequest::Resume(resume)) => self.resume_asked(request, &resume),
            Ok(HelloRequest::Join(_) | HelloRequest::AskOccupancy(_)) => {
                self.turn_away(request, JoinRefusal::new(ErrorCode::ProtocolViolation));
            }
            Err(error) => self.turn_away(request, error.refusal()),
        }
    }

    fn take_connecting(&mut self, link: LinkId) -> Option<Connecting> {
        let connecting = &mut self.boot.connecting;
        let index = connecting.iter().position(|entry| entry.link == Some(link))?;
        Some(connecting.swap_remove(index))
    }

    pub(crate) fn turn_away(&mut self, request: RequestId, refusal: JoinRefusal) {
        let answer = refusal.encode();
        let link = LinkId((request.0 & !AT_RENDEZVOUS) as u32);
        // The requester may be gone already; then the answer is not needed.
        let _ = match self.peers.rendezvous.as_mut() {
            Some((port, _)) if request.0 & AT_RENDEZVOUS != 0 => port.refuse(link, &answer),
            _ => self.port.refuse(link, &answer),
        };
    }

    fn connected(&mut self, link: LinkId, reply: &[u8]) {
        let Some(connecting) = self.take_connecting(link) else {
            // The member was removed meanwhile.
            self.peers.early.retain(|(early, _)| *early != link);
            return self.port.close(link);
        };
        let node = connecting.node;
        let incarnation = connecting.incarnation;
        let admitted = match HelloAnswer::decode(reply) {
            Ok(HelloAnswer::PeerReply(reply)) => {
                let PeerReply { home, cache, fence, .. } = reply;
                let tokens = Tokens { home, cache, fence };
                reply.node == node
                    && reply.incarnation == incarnation
                    && self.take_in((node, incarnation), link, tokens, true)
            }
            _ => false,
        };
        if !admitted {
            self.port.close(link);
            return self.lost_on_the_way(node);
        }
        self.advance_incoming();
    }

    /// Processes messages that arrived before their link was known to be connected.
    pub(crate) fn early_messages(&mut self, node: NodeId, link: LinkId) {
        let early: Vec<_> = self.peers.early.extract_if(.., |(early, _)| *early == link).collect();
        for (_, bytes) in early {
            self.message(node, Some(&bytes));
        }
    }

    /// Handles an event of the rendezvous port.
    pub(crate) fn rendezvous_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Requested { link, hello } => {
                let request = RequestId(u64::from(link.0) | AT_RENDEZVOUS);
                match HelloRequest::decode(&hello) {
                    Ok(HelloRequest::Join(join)) => match self.coordinator_elsewhere() {
                        Some(host) => self.send_elsewhere(link, host),
                        None => self.member_own(MemberEvent::JoinAsked { request, join }),
                    },
                    Ok(HelloRequest::AskOccupancy(_)) => self.tell_occupancy(link),
                    Ok(HelloRequest::Peer(_) | HelloRequest::Resume(_)) => {
                        self.turn_away(request, JoinRefusal::new(ErrorCode::ProtocolViolation))
                    }
                    Err(error) => self.turn_away(request, error.refusal()),
                }
            }
            LinkEvent::Lost { link, .. } => {
                // A lost link occupies an entry of the port until it is closed.
                self.close_rendezvous_link(link);
                let request = RequestId(u64::from(link.0) | AT_RENDEZVOUS);
                self.requests.remove(request);
                self.member_own(MemberEvent::RequestLost { request });
            }
            _ => {}
        }
    }

    pub(crate) fn close_rendezvous_link(&mut self, link: LinkId) {
        if let Some((port, _)) = self.peers.rendezvous.as_mut() {
            port.close(link);
        }
    }

    /// The address of the coordinator, if that is on another host.
    fn coordinator_elsewhere(&self) -> Option<SocketAddr> {
        let coordinator = self.membership.coordinator().filter(|first| *first != self.me())?;
        self.membership.listed(coordinator)?.host
    }

    fn send_elsewhere(&mut self, link: LinkId, host: SocketAddr) {
        if let Some((port, _)) = self.peers.rendezvous.as_mut() {
            // The requester may be gone already; then the answer is not needed.
            let _ = port.refuse(link, &Elsewhere { host }.encode());
        }
    }

    fn tell_occupancy(&mut self, link: LinkId) {
        let (members, members_max) = self.membership.occupancy();
        // Both are bounded by the numbers of nodes.
        let occupancy = Occupancy { members: members as u16, members_max: members_max as u16 };
        if let Some((port, _)) = self.peers.rendezvous.as_mut() {
            // The requester may be gone already; then the answer is not needed.
            let _ = port.refuse(link, &occupancy.encode());
        }
    }

    /// Watches a joiner's link to the rendezvous name.
    pub(crate) fn watch_joining(&mut self) {
        let Some((port, _, coordinator)) = self.boot.joining.as_mut() else {
            return;
        };
        let coordinator = *coordinator;
        let mut events = Vec::new();
        port.link_events(&mut events);
        if events.iter().any(|event| matches!(event, LinkEvent::Lost { .. })) {
            self.boot.joining = None;
            self.lost_on_the_way(coordinator);
        }
    }

    /// Drops a peer that this node can no longer use: a request failed, it broke the protocol, or there is
    /// no room for it.
    pub(crate) fn drop_peer(&mut self, node: NodeId) {
        if self.peers.get(node).is_some() {
            self.member_own(MemberEvent::Dropped { node });
        }
    }

    /// Accuses a peer that broke the protocol. Its messages are ignored; the coordinator declares it dead,
    /// the same for all members. If no member can be asked, this node drops it.
    pub(crate) fn accuse_peer(&mut self, node: NodeId) {
        match self.membership.accusation(node) {
            Some((to, message)) => {
                self.peers.push(to, message.class(), Family::Member, &message.encode());
            }
            None => self.drop_peer(node),
        }
    }

    /// Handles the admission of a node, perhaps under the number of an earlier one of which no state is
    /// left.
    fn node_admitted(&mut self, node: NodeId) {
        self.peers.admitted(node);
        self.step_own(coherence::CoherenceEvent::NodeAdmitted { node });
        self.locks_of_admitted(node);
    }

    /// Reclaims all state of a dead node. The node may be alive and stopped, so its fence word is set
    /// first.
    pub(crate) fn node_dead(&mut self, node: NodeId) {
        if self.lines.is_removed() {
            // Its link may have ended because it removed this node, which decides about no member any more.
            return self.member_own(MemberEvent::Removed);
        }
        if !self.outlives(node) {
            return self.remove_self();
        }
        if let Some(word) = self.peers.get(node).and_then(|peer| peer.fence_word.as_ref()) {
            remove_member(|value, order| word.store(value, order));
        }
        self.stop_connecting(node);
        self.end_incoming(|incoming| incoming == node);
        let closed = self.peers.get(node).and_then(|peer| peer.closed);
        let link = self.unlink(node).or(closed);
        self.peers.remove(node, self.membership.has_left(node));
        self.placed_at_dead(node);
        self.quarantine(node, link);
        // It may have been the member that was to judge.
        let accused = self.peers.iter().filter(|node| self.peers.is_accused(*node));
        self.follow_ups.extend(accused.map(FollowUp::Accuse));
        self.step_own(coherence::CoherenceEvent::NodeDead { node });
        self.locks_of_dead(node);
        self.home_dead(node);
        let (born, linked) = (self.membership.born_of(node), self.peers.iter().collect());
        if let Err(violation) = self.bury(burial::RemovalEvent::Dead { node, born, linked }) {
            self.failure = Some(violation.0);
        }
    }

    /// Steps the removal machine and carries out all effects.
    fn bury(&mut self, event: burial::RemovalEvent) -> Result<(), Violation> {
        let mut effects = Vec::new(); // deaths are rare
        let step = self.boot.burials.step(event, &mut effects);
        for effect in effects {
            match effect {
                burial::RemovalEffect::Tell { to, node, born, lane, answer } => {
                    let message = MemberMessage::Buried { node, born, lane, answer };
                    self.peers.push(to, message.class(), Family::Member, &message.encode());
                }
                burial::RemovalEffect::Settled { node, born } => self.settled(node, born),
            }
        }
        step
    }
}
