//! Joining, links and deaths: drives the membership machine and the removal machine.

use super::links::{Import, Inquiry, LinkChange, Links};
use super::{Engine, FollowUp};
use crate::progress::Progress;
use crate::{Error, ErrorCode};
use farside_base::{Incarnation, LinkId, MemberRegions, MemoryId, NodeId, ViewNumber};
use farside_protocol::coherence;
use farside_protocol::member::{
    self, Burials, Elsewhere, HelloAnswer, HelloError, HelloRequest, Identity, JoinRefusal,
    MemberEffect, MemberEvent, MemberMessage, Membership, Occupancy, PROTOCOL_VERSION, PeerReply,
    RequestId, Welcome, burial,
};
use farside_protocol::wire::{BODY, Violation};
use std::collections::VecDeque;
use std::net::SocketAddr;

/// The name at which a node accepts links of other nodes. As far as names have room, it includes the view
/// that admitted the node: an earlier node of the same number may still listen, stopped or partitioned.
/// `farside info` reads it.
pub(crate) fn member_name(cluster: &str, node: NodeId, born: ViewNumber) -> String {
    let digit = |power| char::from_digit((born.0 / 36_u64.pow(power) % 36) as u32, 36);
    let age: String = (0..3).rev().filter_map(digit).collect();
    format!("farside.{cluster}.{node}-{age}")
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

/// Drives the membership machine, and the removal machine, which ends what is left of dead members.
pub(crate) struct MembershipDriver {
    machine: Membership,
    burials: Burials,
    cluster: String,
    connecting: Vec<Connecting>,
    /// The rendezvous name is to be bound as soon as it is free.
    wants_rendezvous: bool,
    /// The effects of a membership step are being carried out; events are queued meanwhile.
    stepping: bool,
    reports: VecDeque<MemberEvent>,
    is_ready: bool,
    has_left: bool,
    refused: Option<JoinRefusal>,
}

impl MembershipDriver {
    pub(super) fn new(identity: Identity) -> Self {
        Self {
            burials: Burials::new(identity.settings.nodes_max),
            cluster: identity.cluster.clone(),
            machine: Membership::new(identity),
            connecting: Vec::new(),
            wants_rendezvous: false,
            stepping: false,
            reports: VecDeque::new(),
            is_ready: false,
            has_left: false,
            refused: None,
        }
    }

    /// The machine, for queries.
    pub(super) fn machine(&self) -> &Membership {
        &self.machine
    }

    pub(super) fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Whether this node is linked to all members.
    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Whether this node has left.
    pub(super) fn has_left(&self) -> bool {
        self.has_left
    }

    /// Whether this node was refused or removed.
    pub(super) fn is_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// The address to dial for a link to a node.
    pub(super) fn address_of(
        &self,
        (node, born): (NodeId, ViewNumber),
        host: Option<SocketAddr>,
    ) -> String {
        let name = member_name(&self.cluster, node, born);
        host.map_or_else(|| name.clone(), |host| format!("{host}/{name}"))
    }

    fn take_connecting(&mut self, link: LinkId) -> Option<Connecting> {
        let index = self.connecting.iter().position(|entry| entry.link == Some(link))?;
        Some(self.connecting.swap_remove(index))
    }

    /// The address of the coordinator, if that is on another host.
    fn coordinator_elsewhere(&self, me: NodeId) -> Option<SocketAddr> {
        let coordinator = self.machine.coordinator().filter(|first| *first != me)?;
        self.machine.listed(coordinator)?.host
    }
}

impl Engine {
    /// Steps the membership machine and carries out all effects before its next step; events that effects
    /// cause are queued.
    fn step_member(&mut self, event: MemberEvent) -> Result<(), Violation> {
        if self.membership.stepping {
            self.membership.reports.push_back(event);
            return Ok(());
        }
        self.membership.stepping = true;
        let mut effects = Vec::new(); // changes of membership are rare
        let first = self.membership.machine.step(event, &mut effects);
        loop {
            for effect in effects.drain(..) {
                self.route_member(effect);
            }
            let Some(report) = self.membership.reports.pop_front() else {
                break;
            };
            if let Err(violation) = self.membership.machine.step(report, &mut effects) {
                self.failure = Some(violation.0);
            }
        }
        self.membership.stepping = false;
        self.watches.wake_members();
        self.reconsider_away();
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
                let former = self.membership.machine.is_former(node, born);
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
                self.membership.connecting.push(connecting);
                self.retry_connections();
            }
            MemberEffect::Admit { request, welcome } => {
                self.requests.add(request, self.links.now_ns(), true);
                let accepted = self.links.accept(request, &welcome.encode()).is_some();
                self.answered(request, accepted);
            }
            MemberEffect::Deny { request, refusal } => {
                self.requests.remove(request);
                let refused = self.links.refuse(request, &refusal.encode());
                self.answered(request, refused);
            }
            MemberEffect::AcceptPeer { request, peer } => self.accept_peer(request, &peer),
            MemberEffect::Send { to, message } => self.links.push_member(to, &message),
            MemberEffect::Cut { node } => {
                _ = self.links.unlink(node);
                self.contact_cut(node);
            }
            MemberEffect::JudgeLater => self.judge_later(),
            MemberEffect::Admitted { node } => self.node_admitted(node),
            MemberEffect::Dead { node, death, .. } => self.member_dead(node, death),
            MemberEffect::Ready => {
                self.membership.is_ready = true;
                self.lend_memory();
                if self.links.resumes() {
                    // A joiner that asks here is redirected to the coordinator.
                    self.membership.wants_rendezvous = true;
                    self.bind_rendezvous();
                }
            }
            MemberEffect::BecomeCoordinator => {
                self.membership.wants_rendezvous = true;
                self.bind_rendezvous();
            }
            MemberEffect::Failed(refusal) => {
                let code = match refusal.code {
                    ErrorCode::Isolated => ErrorCode::Isolated,
                    _ => ErrorCode::NodeClosed,
                };
                self.membership.refused = Some(refusal);
                self.close_with(code);
                self.disconnect();
                self.membership.wants_rendezvous = false;
            }
            MemberEffect::Closed => self.membership.has_left = true,
        }
    }

    /// Handles the loss of a request that could not be answered.
    fn answered(&mut self, request: RequestId, is_answered: bool) {
        if !is_answered {
            self.requests.remove(request);
            self.member_own(MemberEvent::RequestLost { request });
        }
    }

    /// Tries again to bind the rendezvous name, if this node should have it and has not.
    pub(super) fn bind_rendezvous(&mut self) {
        if self.membership.wants_rendezvous {
            self.links.bind_rendezvous(&self.membership.cluster);
        }
    }

    /// Dials members that did not listen yet.
    pub(crate) fn retry_connections(&mut self) {
        for index in 0..self.membership.connecting.len() {
            let Some(Connecting { node, born, host, link: None, next_ns, .. }) =
                self.membership.connecting.get(index).copied()
            else {
                continue;
            };
            if next_ns > 0 && self.links.now_ns() < next_ns {
                continue;
            }
            let hello = member::PeerRequest {
                version: PROTOCOL_VERSION,
                cluster: self.membership.cluster.clone(),
                node: self.me(),
                incarnation: self.membership.machine.incarnation(),
                view: self.membership.machine.born(),
                regions: self.links.tokens(),
            }
            .encode();
            let to = self.membership.address_of((node, born), host);
            match self.links.dial(&to, &hello) {
                Ok(link) => self.membership.connecting[index].link = Some(link),
                Err(true) => {}
                Err(false) => self.lost_on_the_way(node),
            }
        }
    }

    pub(crate) fn lost_on_the_way(&mut self, node: NodeId) {
        self.stop_connecting(node);
        self.member_own(match self.links.resumes() {
            true => MemberEvent::OutOfReach { node },
            false => MemberEvent::LinkLost { node },
        });
    }

    /// Abandons this node's pending link to a member.
    fn stop_connecting(&mut self, node: NodeId) {
        let Self { membership, links, .. } = self;
        let given_up = membership.connecting.extract_if(.., |connecting| connecting.node == node);
        given_up.filter_map(|connecting| connecting.link).for_each(|link| links.close(link));
    }

    fn accept_peer(&mut self, request: RequestId, peer: &member::PeerRequest) {
        self.requests.remove(request);
        let reply = PeerReply {
            node: self.me(),
            incarnation: self.membership.machine.incarnation(),
            view: self.membership.machine.view(),
            regions: self.links.tokens(),
        }
        .encode();
        let life = (peer.node, peer.incarnation);
        let accepted = self.links.accept(request, &reply);
        if !accepted.is_some_and(|link| self.take_in(life, link, peer.regions, false)) {
            self.links.close_request(request);
            return self.member_own(MemberEvent::Dropped { node: peer.node });
        }
        self.advance_imports();
    }

    /// Whether this link to a member is being established.
    pub(super) fn is_connecting(&self, link: LinkId) -> bool {
        self.membership.connecting.iter().any(|connecting| connecting.link == Some(link))
            || self.links.is_importing(link)
            || self.is_dialling(link)
    }

    /// Handles what has happened to links and at the names at which this node listens; returns whether
    /// anything has.
    pub(super) fn poll_links(&mut self) -> bool {
        self.tick();
        self.end_requests();
        let mut any = false;
        for at_rendezvous in [false, true] {
            any |= self.links.collect_events(at_rendezvous);
            while let Some(change) = self.links.next_change() {
                self.link_changed(change);
            }
        }
        if self.links.imports() > 0 {
            self.advance_imports();
        }
        any
    }

    fn link_changed(&mut self, change: LinkChange) {
        let Some(change) = self.dial_change(change) else {
            return;
        };
        match change {
            LinkChange::Asked(request, hello) => self.requested(request, hello),
            LinkChange::Accepted(link, answer) => self.connected(link, answer),
            LinkChange::Refused(link, answer) => {
                let Some(Connecting { node, .. }) = self.membership.take_connecting(link) else {
                    return;
                };
                match answer {
                    Ok(HelloAnswer::Refusal(refusal)) => {
                        self.member_own(MemberEvent::Refused { node, refusal })
                    }
                    _ => self.lost_on_the_way(node),
                }
            }
            LinkChange::NotReached(link, true) => {
                // It does not listen yet: retry later.
                let next_ns = self.links.now_ns() + CALL_AGAIN_NS;
                let connecting = &mut self.membership.connecting;
                if let Some(entry) = connecting.iter_mut().find(|entry| entry.link == Some(link)) {
                    (entry.link, entry.next_ns) = (None, next_ns);
                }
            }
            LinkChange::NotReached(link, false) => {
                if let Some(connecting) = self.membership.take_connecting(link) {
                    self.lost_on_the_way(connecting.node);
                }
            }
            LinkChange::Lost(link, ended) => {
                if let Some(node) = self.links.peers().node(link) {
                    self.link_lost(node, ended);
                } else if let Some(connecting) = self.membership.take_connecting(link) {
                    self.links.close(link);
                    self.lost_on_the_way(connecting.node);
                } else if let Some(import) = self.links.take_import(link) {
                    self.not_taken_in(import);
                } else {
                    // A lost link occupies an entry of the port until it is closed.
                    self.links.close(link);
                    let request = RequestId(u64::from(link.0));
                    if self.requests.remove(request) {
                        self.member_own(MemberEvent::RequestLost { request });
                    }
                }
            }
            LinkChange::AskerGone(request) => {
                self.requests.remove(request);
                self.member_own(MemberEvent::RequestLost { request });
            }
        }
    }

    /// Handles another process's request.
    fn requested(&mut self, request: RequestId, hello: Result<HelloRequest, HelloError>) {
        match (hello, Links::is_at_rendezvous(request)) {
            (Ok(HelloRequest::Join(join)), true) => {
                match self.membership.coordinator_elsewhere(self.me()) {
                    // The requester may be gone already; then the answer is not needed.
                    Some(host) => _ = self.links.refuse(request, &Elsewhere { host }.encode()),
                    None => self.member_own(MemberEvent::JoinAsked { request, join }),
                }
            }
            (Ok(HelloRequest::AskOccupancy(_)), true) => {
                let (members, members_max) = self.membership.machine.occupancy();
                // Both are bounded by the numbers of nodes.
                let (members, members_max) = (members as u16, members_max as u16);
                self.links.refuse(request, &Occupancy { members, members_max }.encode());
            }
            (Ok(HelloRequest::Peer(peer)), false) => {
                self.requests.add(request, self.links.now_ns(), false);
                self.member_own(MemberEvent::PeerAsked { request, peer });
            }
            (Ok(HelloRequest::Resume(resume)), false) => self.resume_asked(request, &resume),
            (Ok(_), _) => self.turn_away(request, JoinRefusal::new(ErrorCode::ProtocolViolation)),
            (Err(error), _) => self.turn_away(request, error.refusal()),
        }
    }

    pub(super) fn turn_away(&mut self, request: RequestId, refusal: JoinRefusal) {
        // The requester may be gone already; then the answer is not needed.
        self.links.refuse(request, &refusal.encode());
    }

    fn connected(&mut self, link: LinkId, answer: Result<HelloAnswer, HelloError>) {
        let Some(connecting) = self.membership.take_connecting(link) else {
            return self.links.close(link); // the member was removed meanwhile
        };
        let node = connecting.node;
        let incarnation = connecting.incarnation;
        let admitted = match answer {
            Ok(HelloAnswer::PeerReply(reply)) => {
                reply.node == node
                    && reply.incarnation == incarnation
                    && self.take_in((node, incarnation), link, reply.regions, true)
            }
            _ => false,
        };
        if !admitted {
            self.links.close(link);
            return self.lost_on_the_way(node);
        }
        self.advance_imports();
    }

    /// Starts to link a member with a connected link; false if there is no room for its number.
    fn take_in(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        link: LinkId,
        regions: MemberRegions,
        asked_here: bool,
    ) -> bool {
        let memory = self.membership.machine.listed(node).and_then(|listed| listed.memory);
        let memory = memory.and_then(|generation| MemoryId::new(node, generation));
        let import = Import::new(node, link, regions, asked_here);
        let added = self.links.add((node, incarnation), memory, import);
        if added {
            self.home_returns(node); // before an operation that starts now can pass one that waits
        }
        added
    }

    /// Advances the imports of all members that are being linked.
    fn advance_imports(&mut self) {
        // One at a time: each step may end others.
        for _ in 0..self.links.imports() {
            match self.links.advance_import() {
                Some((import, true)) => self.taken_in(&import),
                Some((import, false)) => self.not_taken_in(import),
                None => {}
            }
        }
    }

    /// Handles the completion of a member's link.
    fn taken_in(&mut self, import: &Import) {
        let Import { node, link, asked_here, .. } = *import;
        if let Some(home) = self.links.direct_home(node) {
            self.direct_homes.open(home.logged(self.has_state(node)));
        }
        self.watches.wake_members();
        self.watch_peer(node);
        self.contact_linked(node);
        if self.membership.is_ready {
            self.announce_free(Some(node));
        }
        if asked_here {
            self.member_own(MemberEvent::LinkUp { node });
        }
        self.early_messages(node, link);
    }

    /// Handles the end of its link, or a failed import.
    fn not_taken_in(&mut self, import: Import) {
        let Import { node, asked_here, .. } = import;
        if asked_here || self.links.resumes() || !self.links.peers().is_connected(node) {
            self.links.close_import(&import);
        } else {
            // Closed with its removal, which first decides which of the two survives: a member with a
            // stopped process takes a closed link for the end of this node.
            self.links.keep_import(import);
        }
        match asked_here {
            true => self.lost_on_the_way(node),
            false => self.member_own(MemberEvent::Dropped { node }),
        }
    }

    /// Processes messages that arrived before their link was known to be connected.
    pub(crate) fn early_messages(&mut self, node: NodeId, link: LinkId) {
        for bytes in self.links.take_early(link) {
            self.message(node, bytes.as_ref());
        }
    }

    /// Begins the first cluster of this name.
    pub(crate) fn found(&mut self) {
        self.member_own(MemberEvent::Found);
    }

    /// Begins to link this node, which was admitted over `inquiry`, to all members.
    pub(crate) fn join(&mut self, welcome: Welcome, inquiry: Inquiry) {
        let coordinator = welcome.members.first().map_or(NodeId(0), |first| first.node);
        self.links.set_joining(inquiry, coordinator);
        self.member_own(MemberEvent::Joined(welcome));
    }

    /// Continues to join; true once this node is linked to all members.
    ///
    /// # Errors
    /// Why the cluster refuses this node.
    pub(crate) fn advance_join(&mut self) -> Result<bool, Error> {
        self.poll();
        if let Some(coordinator) = self.links.take_lost_joining() {
            self.lost_on_the_way(coordinator);
        }
        self.retry_connections();
        if let Some(refusal) = self.membership.refused.take() {
            return Err(Error::with(refusal.code, refusal.text));
        }
        if self.membership.is_ready {
            self.post();
        }
        Ok(self.membership.is_ready)
    }

    /// Drops a peer that this node can no longer use: a request failed, it broke the protocol, or there is
    /// no room for it.
    pub(crate) fn drop_peer(&mut self, node: NodeId) {
        if self.links.peers().is_connected(node) {
            self.member_own(MemberEvent::Dropped { node });
        }
    }

    /// Accuses a peer that broke the protocol. Its messages are ignored; the coordinator declares it dead,
    /// the same for all members. If no member can be asked, this node drops it.
    pub(crate) fn accuse_peer(&mut self, node: NodeId) {
        match self.membership.machine.accusation(node) {
            Some((to, message)) => self.links.push_member(to, &message),
            None => self.drop_peer(node),
        }
    }

    /// Handles the admission of a node, perhaps under the number of an earlier one of which no state is
    /// left.
    fn node_admitted(&mut self, node: NodeId) {
        self.links.peers_mut().admitted(node);
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
        if let Some(words) = self.links.words(node) {
            words.fence_off();
        }
        self.direct_homes.close(node);
        self.stop_connecting(node);
        self.links.end_imports(|incoming| incoming == node);
        let follow_ups = &mut self.follow_ups;
        let landed = |line| follow_ups.push_back(FollowUp::Placed(line));
        let link = self.links.remove(node, self.membership.machine.has_left(node), landed);
        self.quarantine(node, link);
        // It may have been the member that was to judge.
        let peers = self.links.peers();
        let accused = peers.iter().filter(|node| peers.is_accused(*node));
        self.follow_ups.extend(accused.map(FollowUp::Accuse));
        self.step_own(coherence::CoherenceEvent::NodeDead { node });
        self.locks_of_dead(node);
        self.home_dead(node);
        let (born, linked) =
            (self.membership.machine.born_of(node), self.links.peers().iter().collect());
        if let Err(violation) = self.bury(burial::RemovalEvent::Dead { node, born, linked }) {
            self.failure = Some(violation.0);
        }
    }

    /// Steps the removal machine and carries out all effects.
    fn bury(&mut self, event: burial::RemovalEvent) -> Result<(), Violation> {
        let mut effects = Vec::new(); // deaths are rare
        let step = self.membership.burials.step(event, &mut effects);
        for effect in effects {
            match effect {
                burial::RemovalEffect::Tell { to, node, born, lane, answer } => {
                    self.links.push_member(to, &MemberMessage::Buried { node, born, lane, answer });
                }
                burial::RemovalEffect::Settled { node, born } => self.settled(node, born),
            }
        }
        step
    }
}

#[cfg(test)]
#[path = "returning_tests.rs"]
mod returning;
