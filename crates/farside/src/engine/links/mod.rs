//! The links of a node: its port, the peers at their other ends, and all work requests. The only part of the
//! engine that calls the fabric; the others see nodes, requests for links, and decoded messages.
//!
//! Invariants: on each connection, the bytes of a line are posted before the message that announces them;
//! work requests without a connection wait until it is back, or count as landed when the peer is removed.

mod inquiry;
mod linking;
mod peers;
mod regions;

use crate::progress::EnginePort;
use crate::registered::Registered;
use crate::{Error, ErrorCode, Stats};
use farside_base::{
    Access, Completion, CompletionKind, CompletionStatus, Limits, LineAddress, LinkId, LocalSlice,
    MemberRegions, NodeId, Operation, ReceiveQueueId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{
    Fabric, LinkEvent, Loss, NotReached, Port, PortSpec, SharedWord, Stop, Waiter,
};
use farside_protocol::member::{HelloAnswer, HelloError, HelloRequest, MemberMessage, RequestId};
use farside_protocol::messaging::{Messenger, WriteKey, WritesInFlight};
use farside_protocol::wire::{BODY, Class, Family, MESSAGE, Violation};
use regions::register;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(crate) use inquiry::{Inquiry, Unanswered, fabric_error};
use peers::Messages;
pub(crate) use peers::Peers;
pub(crate) use regions::{Import, PeerWords, Question, Regions};

/// Work requests per doorbell.
const POST: usize = 16;
/// Distance between receive buffers in bytes.
const MESSAGE_SLOT: u64 = 64;
/// Bytes of a message.
pub(crate) const MESSAGE_BYTES: u32 = MESSAGE as u32;
/// Marks the work ids of placements.
const PLACED: u64 = 1 << 63;
/// Marks the work ids of membership queries; the queried node is in the low bits.
const ASKED: u64 = 1 << 62;
/// Marks requests that arrived at the rendezvous name.
const AT_RENDEZVOUS: u64 = 1 << 63;

/// The name at which a cluster admits new nodes.
pub(crate) fn rendezvous_name(cluster: &str) -> String {
    format!("farside.{cluster}")
}

/// A one-sided WRITE of a line's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct LineWrite {
    pub(super) line: LineAddress,
    pub(super) from: LocalSlice,
    /// Whether they go to the peer's cache region rather than its home region.
    pub(super) to_cache: bool,
    pub(super) to_offset: u64,
}

/// What a completion means.
pub(super) enum Arrival {
    /// A message of a peer; `None` for one of a wrong length.
    Message(NodeId, Option<[u8; MESSAGE]>),
    /// A message over a link to no known peer.
    Early(LinkId, Option<[u8; MESSAGE]>),
    /// The bytes of a line have landed at a peer.
    Placed(LineAddress),
    /// A member was reached by a membership query.
    Confirmed(NodeId, Question),
    Nothing,
}

/// A change of a link, or of a request for one.
pub(super) enum LinkChange {
    /// Another process asks for a link.
    Asked(RequestId, Result<HelloRequest, HelloError>),
    /// A process that asked at the rendezvous name is gone.
    AskerGone(RequestId),
    /// A dial was answered: the link is up.
    Accepted(LinkId, Result<HelloAnswer, HelloError>),
    /// A dial was answered: there is no link.
    Refused(LinkId, Result<HelloAnswer, HelloError>),
    /// A dial was not answered; `true` if nothing listens at the name.
    NotReached(LinkId, bool),
    /// A link was lost; `true` if the peer ended it.
    Lost(LinkId, bool),
}

/// What came of posting what is queued.
pub(super) enum Queued {
    /// Everything that may be sent was posted; whether there was anything.
    Posted(bool),
    /// The port takes no more at present; whether it took any.
    Full(bool),
    /// The next line is for a peer that was removed.
    ToRemoved(NodeId),
    /// The fabric rejects the next line, for this reason.
    Invalid(NodeId, &'static str),
}

fn link_of(request: RequestId) -> LinkId {
    LinkId((request.0 & !AT_RENDEZVOUS) as u32)
}

/// The port of a node, with all that it is connected to.
pub(crate) struct Links {
    me: NodeId,
    fabric: Arc<dyn Fabric>,
    /// Declared before the regions, so that it is dropped first.
    port: EnginePort,
    regions: Regions,
    /// Receive buffers of messages; not exported to peers.
    messages: Registered,
    peers: Peers,
    /// Linked members whose regions are being imported.
    imports: Vec<Import>,
    /// The port at which new nodes ask to join; only the coordinator has one.
    rendezvous: Option<(Box<dyn Port>, ReceiveQueueId)>,
    /// A joiner's link to the rendezvous name, kept until it is linked to the coordinator.
    joining: Option<(Inquiry, NodeId)>,
    receives: ReceiveQueueId,
    /// Receive buffers handed out so far.
    buffers: u64,
    /// Events that were collected, the first one last.
    events: Vec<LinkEvent>,
    /// [`AT_RENDEZVOUS`] for events of that port.
    events_at: u64,
    /// Messages over links that are not known to be up yet.
    early: Vec<(LinkId, Option<[u8; MESSAGE]>)>,
    /// WRITEs of lines to peers in progress, each posted before the message that announces it.
    placements: WritesInFlight<LineWrite>,
    credits_per_class: u32,
    /// Whether broken links may reconnect.
    resumes: bool,
    /// The published count of this node's polls; `None` if its caller drives it.
    poll_count: Option<SharedWord>,
    polls: u64,
    counters: Stats,
}

impl Links {
    /// Opens the port of node `me`, which listens at `name`, without links.
    ///
    /// # Errors
    /// `NameTaken`, `FabricLacks`, `System`.
    pub(crate) fn open(
        fabric: &Arc<dyn Fabric>,
        (me, name): (NodeId, String),
        regions: Regions,
        limits: &Limits,
        counts_polls: bool,
    ) -> Result<Self, Error> {
        let port = fabric.open(&PortSpec { listen: Some(name) }).map_err(fabric_error)?;
        let mut port = EnginePort::new(port);
        let buffers_max = usize::from(limits.nodes_max)
            * Messenger::receives_needed(limits.credits_per_class) as usize;
        let messages = register(fabric, buffers_max as u64 * MESSAGE_SLOT, Access::NONE)?;
        let receives = (*port).create_receive_queue(buffers_max).map_err(|error| {
            let error = fabric_error(error);
            let (detail, nodes_max) = (&error.detail, limits.nodes_max);
            Error::with(error.code, format!("{detail}; limits.nodes_max is {nodes_max}: lower it"))
        })?;
        Ok(Self {
            me,
            fabric: Arc::clone(fabric),
            port,
            // Published only if threads of the node itself poll it.
            poll_count: if counts_polls { regions.poll_count() } else { None },
            regions,
            messages,
            peers: Peers::new(limits.nodes_max),
            imports: Vec::new(),
            rendezvous: None,
            joining: None,
            receives,
            buffers: 0,
            events: Vec::new(),
            events_at: 0,
            early: Vec::new(),
            placements: WritesInFlight::new(),
            credits_per_class: limits.credits_per_class,
            resumes: fabric.host().is_some(),
            polls: 0,
            counters: Stats::default(),
        })
    }

    /// The time of the fabric.
    #[inline]
    pub(super) fn now_ns(&self) -> u64 {
        self.fabric.time_ns()
    }

    /// How long a peer may be silent until the fabric reports its link as lost.
    pub(super) fn lease_ns(&self) -> u64 {
        self.fabric.lease_ns()
    }

    /// The other nodes.
    #[inline]
    pub(super) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(super) fn peers_mut(&mut self) -> &mut Peers {
        &mut self.peers
    }

    /// The tokens of this node's regions.
    pub(super) fn tokens(&self) -> MemberRegions {
        self.regions.tokens()
    }

    /// Whether broken links may reconnect.
    #[inline]
    pub(super) fn resumes(&self) -> bool {
        self.resumes
    }

    #[inline]
    pub(super) fn port(&mut self) -> &mut EnginePort {
        &mut self.port
    }

    #[inline]
    pub(super) fn is_armed(&self) -> bool {
        self.port.is_armed()
    }

    pub(crate) fn waiter(&self) -> Arc<dyn Waiter> {
        self.port.waiter()
    }

    /// Returns the counters of messages and work requests; all others are zero.
    pub(super) const fn counters(&self) -> Stats {
        self.counters
    }

    /// Publishes the number of polls.
    #[inline]
    pub(super) fn count_poll(&mut self) {
        if let Some(count) = &self.poll_count {
            self.polls += 1;
            count.store(self.polls, Ordering::Relaxed);
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.regions.end();
    }
}

/// Arrivals.
impl Links {
    pub(super) fn decode(&mut self, completion: &Completion) -> Arrival {
        match completion.kind {
            CompletionKind::Receive => self.received(completion),
            CompletionKind::Write => self.write_ended(completion),
            _ => Arrival::Nothing,
        }
    }

    /// The peer of a work request that failed for another reason than the end of its link.
    pub(super) fn failed(&self, completion: &Completion) -> Option<NodeId> {
        let failed = !matches!(
            completion.status,
            CompletionStatus::Success
                | CompletionStatus::Flushed
                | CompletionStatus::PeerLost
                | CompletionStatus::Unreachable
                | CompletionStatus::Broken
        );
        if failed { self.peers.node(completion.link) } else { None }
    }

    fn received(&mut self, completion: &Completion) -> Arrival {
        if completion.status != CompletionStatus::Success {
            return Arrival::Nothing;
        }
        let slot = completion.id.0;
        let mut bytes = [0; MESSAGE];
        let whole = completion.bytes as usize == MESSAGE
            && self.messages.arena.read(slot * MESSAGE_SLOT, &mut bytes).is_ok();
        self.post_receive(slot);
        let bytes = whole.then_some(bytes);
        match self.peers.node(completion.link) {
            Some(node) => Arrival::Message(node, bytes),
            None => Arrival::Early(completion.link, bytes),
        }
    }

    fn write_ended(&mut self, completion: &Completion) -> Arrival {
        let id = completion.id.0;
        // If links reconnect, a failed WRITE may still land.
        let ended = completion.status == CompletionStatus::Success || !self.resumes;
        if id & (PLACED | ASKED) == ASKED {
            return self.question_ended(completion);
        }
        if id & PLACED == 0 || !ended {
            return Arrival::Nothing;
        }
        let placement = self.placements.landed(WriteKey::from_bits(id & !PLACED));
        placement.map_or(Arrival::Nothing, |placement| Arrival::Placed(placement.line))
    }

    /// Handles the completion of a query: the member has answered, or its link has failed.
    fn question_ended(&mut self, completion: &Completion) -> Arrival {
        let node = NodeId((completion.id.0 & !ASKED) as u16);
        let link = self.peers.get_mut(node).and_then(|peer| peer.link.as_mut());
        let link = link.filter(|link| link.id == completion.link);
        match link.and_then(|link| link.question.take()) {
            Some(question) if completion.status == CompletionStatus::Success => {
                Arrival::Confirmed(node, question)
            }
            _ => Arrival::Nothing,
        }
    }

    /// Unpacks a message of a peer, `None` for one of a wrong length; returns the part that is for a machine.
    pub(super) fn unpack(
        &mut self,
        node: NodeId,
        bytes: Option<&[u8; MESSAGE]>,
    ) -> Result<Option<(Family, [u8; BODY])>, Violation> {
        self.counters.messages_received += 1;
        if self.peers.is_accused(node) {
            return Ok(None);
        }
        let Some(peer) = self.peers.get_mut(node) else {
            return Ok(None);
        };
        let bytes = bytes.ok_or(Violation("message of a wrong length"))?;
        let parsed = peer.messenger.received(bytes);
        // Credits may be owed now, or may have arrived for queued messages.
        if !peer.messenger.is_idle() {
            self.peers.ready.insert(node);
        }
        Ok(parsed?.map(|(_, family, body)| (family, body)))
    }

    /// Keeps a message over a link that is being established.
    pub(super) fn keep_early(&mut self, link: LinkId, bytes: Option<[u8; MESSAGE]>) {
        self.early.push((link, bytes));
    }

    /// Takes the messages that arrived before their link was known to be up.
    pub(super) fn take_early(&mut self, link: LinkId) -> Vec<Option<[u8; MESSAGE]>> {
        self.early.extract_if(.., |(early, _)| *early == link).map(|(_, bytes)| bytes).collect()
    }

    /// Reposts the receive of a buffer.
    fn post_receive(&mut self, slot: u64) {
        let (region, bytes) = (self.messages.id, MESSAGE_SLOT as u32);
        let into = LocalSlice { region, offset: slot * MESSAGE_SLOT, bytes };
        self.port.post_receive(WorkId(slot), self.receives, into);
    }
}

/// Requests for links, and links as such.
impl Links {
    /// Collects the events of the port of this node's own name, or of the rendezvous name; returns whether there
    /// are any.
    pub(super) fn collect_events(&mut self, at_rendezvous: bool) -> bool {
        debug_assert!(self.events.is_empty(), "all earlier ones were taken");
        self.events_at = if at_rendezvous { AT_RENDEZVOUS } else { 0 };
        let port: Option<&mut dyn Port> = match at_rendezvous {
            false => Some(&mut *self.port),
            true => self.rendezvous.as_mut().map(|(port, _)| &mut **port as _),
        };
        if let Some(port) = port {
            port.link_events(&mut self.events);
            self.events.reverse();
        }
        !self.events.is_empty()
    }

    /// Takes the next collected event that means anything.
    pub(super) fn next_change(&mut self) -> Option<LinkChange> {
        loop {
            let event = self.events.pop()?;
            let request = RequestId(u64::from(event.link().0) | self.events_at);
            return Some(match event {
                LinkEvent::Requested { hello, .. } => {
                    LinkChange::Asked(request, HelloRequest::decode(&hello))
                }
                LinkEvent::Lost { .. } if self.events_at == AT_RENDEZVOUS => {
                    self.close_request(request); // a lost link occupies an entry of the port
                    LinkChange::AskerGone(request)
                }
                _ if self.events_at == AT_RENDEZVOUS => continue,
                LinkEvent::Connected { link, reply } => {
                    LinkChange::Accepted(link, HelloAnswer::decode(&reply))
                }
                LinkEvent::Refused { link, reason } => {
                    self.forget_early(link); // its number may be reused
                    LinkChange::Refused(link, HelloAnswer::decode(&reason))
                }
                LinkEvent::NotReached { link, why } => {
                    self.forget_early(link);
                    LinkChange::NotReached(link, why == NotReached::NoListener)
                }
                LinkEvent::Lost { link, loss } => {
                    self.forget_early(link);
                    LinkChange::Lost(link, loss == Loss::Ended)
                }
                _ => continue,
            });
        }
    }

    /// Whether a request arrived at the rendezvous name.
    pub(super) fn is_at_rendezvous(request: RequestId) -> bool {
        request.0 & AT_RENDEZVOUS != 0
    }

    /// The port and the receive queue of a request.
    fn port_of(&mut self, request: RequestId) -> Option<(&mut dyn Port, ReceiveQueueId)> {
        if request.0 & AT_RENDEZVOUS == 0 {
            return Some((&mut *self.port, self.receives));
        }
        self.rendezvous.as_mut().map(|(port, queue)| (&mut **port as &mut dyn Port, *queue))
    }

    /// Accepts a request for a link; `None` if the requester is gone.
    pub(super) fn accept(&mut self, request: RequestId, reply: &[u8]) -> Option<LinkId> {
        let (port, queue) = self.port_of(request)?;
        port.accept(link_of(request), reply, queue).ok().map(|()| link_of(request))
    }

    /// Refuses a request for a link; false if the requester is gone.
    pub(super) fn refuse(&mut self, request: RequestId, reason: &[u8]) -> bool {
        self.port_of(request).is_some_and(|(port, _)| port.refuse(link_of(request), reason).is_ok())
    }

    /// Closes the link of a request, which was accepted or lost.
    pub(super) fn close_request(&mut self, request: RequestId) {
        if let Some((port, _)) = self.port_of(request) {
            port.close(link_of(request));
        }
    }

    /// Closes a link that belongs to no peer.
    pub(super) fn close(&mut self, link: LinkId) {
        self.forget_early(link);
        self.port.close(link);
    }

    fn forget_early(&mut self, link: LinkId) {
        self.early.retain(|(early, _)| *early != link);
    }

    /// Dials a name. On failure, whether it is known that nothing listens there.
    pub(super) fn dial(&mut self, name: &str, hello: &[u8]) -> Result<LinkId, bool> {
        self.port
            .connect(name, hello, self.receives)
            .map_err(|error| error.code == ErrorCode::NoListener)
    }

    /// Listens at the rendezvous name.
    ///
    /// # Errors
    /// `NameTaken`, `System`.
    pub(crate) fn listen_at_rendezvous(
        fabric: &dyn Fabric,
        cluster: &str,
    ) -> Result<(Box<dyn Port>, ReceiveQueueId), Error> {
        let listen = Some(rendezvous_name(cluster));
        let mut port = fabric.open(&PortSpec { listen }).map_err(fabric_error)?;
        let queue = port.create_receive_queue(1).map_err(fabric_error)?;
        Ok((port, queue))
    }

    /// Binds the rendezvous name, unless it is bound here or elsewhere.
    pub(super) fn bind_rendezvous(&mut self, cluster: &str) {
        // If it is taken, the next attempt may find it free.
        if self.rendezvous.is_none()
            && let Ok(rendezvous) = Self::listen_at_rendezvous(&*self.fabric, cluster)
        {
            self.set_rendezvous(rendezvous);
        }
    }

    pub(crate) fn set_rendezvous(&mut self, mut rendezvous: (Box<dyn Port>, ReceiveQueueId)) {
        rendezvous.0.wake_also(self.port.waiter());
        self.rendezvous = Some(rendezvous);
    }

    pub(super) fn unbind_rendezvous(&mut self) {
        self.rendezvous = None;
    }

    /// Keeps the link by which this node asked to join, until it is linked to the coordinator.
    pub(crate) fn set_joining(&mut self, inquiry: Inquiry, coordinator: NodeId) {
        self.joining = Some((inquiry, coordinator));
    }

    /// Takes the coordinator that this node is joining by, if the link to it was lost.
    pub(super) fn take_lost_joining(&mut self) -> Option<NodeId> {
        self.joining.take_if(|(inquiry, _)| inquiry.is_lost()).map(|(_, coordinator)| coordinator)
    }
}

/// Work requests.
impl Links {
    /// Queues a message for a node; does nothing if the node was removed.
    #[inline]
    pub(super) fn push(&mut self, to: NodeId, class: Class, family: Family, body: &[u8; BODY]) {
        self.peers.push(to, class, family, body);
    }

    /// Queues a message of the membership.
    pub(super) fn push_member(&mut self, to: NodeId, message: &MemberMessage) {
        self.push(to, message.class(), Family::Member, &message.encode());
    }

    /// A part of the cache region, or of the home region.
    pub(super) fn slice(&self, of_cache: bool, offset: u64, bytes: u32) -> LocalSlice {
        let region = if of_cache { self.regions.cache.id } else { self.regions.home.id };
        LocalSlice { region, offset, bytes }
    }

    /// Queues the WRITE of a line's bytes.
    pub(super) fn place(&mut self, to: NodeId, placement: LineWrite) {
        self.placements.add(to, placement, self.peers.is_linked(to));
    }

    /// The number of WRITEs to be posted.
    pub(super) fn placements(&self) -> usize {
        self.placements.waiting_count()
    }

    /// Queries each linked member whether this node is one of them, unless an answer is outstanding. A query
    /// that is not accepted now is repeated later.
    pub(super) fn ask_members(&mut self, question: Question) {
        let Self { me, peers, port, regions, counters, .. } = self;
        for (node, link) in peers.links_mut().filter(|(_, link)| link.question.is_none()) {
            let asked = regions.ask(&mut **port, *me, link, WorkId(ASKED | u64::from(node.0)));
            link.question = asked.then_some(question);
            counters.doorbells += 1;
            counters.work_requests += u64::from(asked);
        }
    }

    /// Whether there is nothing to post.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.placements.is_idle() && self.peers.ready.is_empty()
    }

    /// Posts what is queued, lines before messages, with one doorbell for up to [`POST`] requests to all peers.
    pub(super) fn post_queued(&mut self) -> Queued {
        let mut any = false;
        loop {
            if self.is_idle() {
                return Queued::Posted(any);
            }
            let lines = self.placements.waiting_count();
            let messages = self.peers.messages(POST.saturating_sub(lines));
            let count = lines + messages.count;
            if count == 0 {
                return Queued::Posted(any);
            }
            let Self { port, placements, peers, .. } = self;
            let work = |at: usize| match at.checked_sub(lines) {
                None => line_work(placements.waiting(at)?, peers),
                Some(at) => Some(messages.work(at)),
            };
            let Some(posted) = port.post_batch::<POST>(count, work) else {
                return self
                    .placements
                    .waiting(0)
                    .map_or(Queued::Full(any), |(_, to, _)| Queued::ToRemoved(to));
            };
            any |= posted.accepted > 0;
            self.counters.doorbells += 1;
            self.counters.work_requests += posted.accepted as u64;
            self.posted_placements(posted.accepted.min(lines));
            self.posted_messages(&messages, posted.accepted.saturating_sub(lines));
            match (posted.stop, self.placements.waiting(0)) {
                (None, _) => {}
                (Some(Stop::Invalid(what)), Some((_, to, _))) => return Queued::Invalid(to, what),
                (Some(_), _) => return Queued::Full(any),
            }
        }
    }

    fn posted_placements(&mut self, count: usize) {
        for _ in 0..count {
            let Some((_, to, placement)) = self.placements.waiting(0) else {
                break;
            };
            self.counters.bytes_placed += u64::from(placement.from.bytes);
            let sent = self.peers.get(to).map_or(0, |peer| peer.messenger.sent_count());
            self.placements.posted(sent);
        }
    }

    fn posted_messages(&mut self, messages: &Messages, count: usize) {
        self.counters.messages_sent += count as u64;
        for (to, ..) in &messages.first[..count] {
            self.peers.sent(*to);
        }
    }
}

/// Returns the work request of a placement; `None` if its peer has no link.
#[inline]
fn line_work<'a>(
    (key, to, placement): (WriteKey, NodeId, &'a LineWrite),
    peers: &Peers,
) -> Option<Work<'a>> {
    let link = peers.get(to)?.link.as_ref()?;
    let region = link.region(placement.to_cache);
    Some(Work {
        id: WorkId(PLACED | key.to_bits()),
        link: link.id,
        flags: WorkFlags { signalled: true, fence: false, awaited: false },
        operation: Operation::Write {
            source: Source::Gather(std::slice::from_ref(&placement.from)),
            to: RemoteSlice { region, offset: placement.to_offset },
            immediate: None,
        },
    })
}
