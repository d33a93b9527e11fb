//! The state of a simulated network, and its virtual time.

use super::crash::{CrashDomain, CrashRegion};
use super::hardware::{Adapters, Lane, Lanes, Packet};
use super::locality::SocketPlacement;
use super::nvm::NvmSocket;
use super::options::{DelayRange, SimOptions};
use super::paths::Paths;
use super::port::SimWaiter;
use super::program::{ProgramClock, ProgramCounts};
use super::request::{Inbound, RequestRecord};
use super::transcript::{Transcript, TranscriptLine};
use farside_base::Random;
use farside_base::{
    Access, Completion, LinkId, Receive, ReceiveQueueId, RegionId, RegionKind, RegionToken,
    RemoteKey, RemoteRegionId,
};
use farside_fabric::{Arena, LinkEvent, Waiter};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct NodeKey(pub(super) usize);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct PortKey(pub(super) usize);

/// One end of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct LinkEnd {
    pub(super) port: PortKey,
    pub(super) link: LinkId,
}

/// A scheduled event. It names the link end at which it happens; requests are identified by their number within the
/// requester's link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum WorldEvent {
    /// The requester's adapter starts the first queued request.
    Depart(LinkEnd),
    /// A message arrives; its number is given if links are unordered, else it is the oldest.
    Arrive(LinkEnd, u64),
    /// One piece of a running message is placed or sampled.
    Piece(LinkEnd, u64, usize),
    /// The second half of an atomic that is atomic only within the adapter.
    AtomicStore(LinkEnd, u64),
    /// A message that found no receive checks again.
    RetryReceive(LinkEnd, u64),
    /// A message has exceeded the time limit for a receive.
    ReceiverNotReady(LinkEnd, u64),
    /// The answer to a request arrives.
    Response(LinkEnd, u64),
    /// One piece of fetched data is placed in local memory.
    Land(LinkEnd, u64, usize),
    /// A connection request arrives.
    Requested(LinkEnd),
    /// The peer's acceptance arrives.
    Connected(LinkEnd),
    /// The peer's refusal arrives.
    Refused(LinkEnd),
    /// The connection request was not answered.
    NotReached(LinkEnd),
    /// The adapter detects the loss of the peer.
    Lost(LinkEnd),
    /// The target of a WRITE by READ requests its bytes from this end, the requester.
    Fetch(LinkEnd, u64),
    /// Those bytes arrive at the target.
    Fetched(LinkEnd, u64),
    /// With a hardware profile: the next packet of a lane leaves this end.
    Emit(LinkEnd, Lane),
    /// With a hardware profile: a packet reaches the last wire to this end.
    Hop(LinkEnd, u64, Packet),
}

#[derive(Debug)]
pub(super) struct SimNode {
    pub(super) name: String,
    pub(super) alive: bool,
    /// The program is stopped.
    pub(super) paused: bool,
    /// The adapter is stopped too; its events are kept in `held`.
    pub(super) frozen: bool,
    pub(super) held: Vec<WorldEvent>,
    pub(super) regions: BTreeMap<RegionId, SimRegion>,
    pub(super) regions_made: u32,
    /// Words on which the adapter is between load and store of an atomic.
    pub(super) busy_words: Vec<(RegionId, u64)>,
    /// Operations of the program since the counts were last taken.
    pub(super) counts: ProgramCounts,
    /// The placement of what the program creates.
    pub(super) placement: SocketPlacement,
    /// Whether regions that it registers are persistent memory.
    pub(super) persistent: bool,
    /// What keeps bytes of the regions that it registers; `None` if they are not tracked.
    pub(super) crash: Option<CrashDomain>,
}

/// The owner's record of a region, against which requests are checked.
#[derive(Debug)]
pub(super) struct SimRegion {
    pub(super) arena: Arena,
    pub(super) key: RemoteKey,
    pub(super) access: Access,
    pub(super) kind: RegionKind,
    pub(super) socket: u8,
    /// Its address in the persistent memory of the socket; `None` for other memory.
    pub(super) persistent_at: Option<u64>,
}

pub(super) struct PortState {
    pub(super) node: NodeKey,
    pub(super) placement: SocketPlacement,
    pub(super) open: bool,
    pub(super) links: Vec<SimLink>,
    pub(super) imports_made: u32,
    pub(super) queues: Vec<SimReceiveQueue>,
    pub(super) completions: VecDeque<UnpolledCompletion>,
    pub(super) events: VecDeque<LinkEvent>,
    pub(super) armed: bool,
    pub(super) waiter: Arc<SimWaiter>,
    /// A second waiter, woken by link events too.
    pub(super) other_waiter: Option<Arc<dyn Waiter>>,
}

/// A completion, and the receive queue that regains an entry when it is polled.
pub(super) struct UnpolledCompletion {
    pub(super) completion: Completion,
    pub(super) queue: Option<ReceiveQueueId>,
}

pub(super) struct SimReceiveQueue {
    pub(super) depth: usize,
    pub(super) posted: VecDeque<Receive>,
    /// Number of consumed receives with unpolled completions.
    pub(super) unpolled: usize,
    /// Number of links that consume receives of this queue.
    pub(super) links: usize,
    /// Number of receives that no sender has reserved (`BackPressure::AtPost`).
    pub(super) credits: usize,
    /// Whether the queue is closed: it accepts no more receives.
    pub(super) ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// `connect` was called at this end; the peer has not answered.
    Connecting,
    /// The peer's request is still in flight to this end.
    Coming,
    /// The peer has sent its request; this end has not answered.
    Requested,
    /// Usable.
    Ready,
    /// The peer is lost; the next request reports it and fails the link.
    Lost,
    /// A request failed; all others are flushed.
    Failed,
    /// Closed or refused at this end; the number is not reused.
    Closed,
}

pub(super) struct SimLink {
    pub(super) peer: LinkEnd,
    pub(super) state: LinkState,
    pub(super) queue: Option<ReceiveQueueId>,
    pub(super) imports: BTreeMap<RemoteRegionId, RegionToken>,
    /// Payload of the connection handshake, until the program takes it.
    pub(super) greeting: Vec<u8>,
    pub(super) requests: VecDeque<RequestRecord>,
    pub(super) requests_made: u64,
    /// Number of unpolled completions of requests.
    pub(super) unpolled: usize,
    /// Whether a `Depart` is scheduled.
    pub(super) departing: bool,
    /// Messages of the peer, in the order of departure.
    pub(super) inbound: VecDeque<Inbound>,
    /// Arrival time of the latest inbound message.
    pub(super) arrival_ns: u64,
    /// Number from which the peer's messages are ignored, because an earlier one failed.
    pub(super) broken_from: u64,
    /// Whether nothing more arrives from the peer, and no answer returns to it.
    pub(super) severed: bool,
    /// The peer has accepted; its acceptance is still in flight to this end.
    pub(super) accepted: bool,
    /// Whether the peer certainly ended, or closed the link itself.
    pub(super) ended: bool,
    /// The adapter has detected the loss of the peer; the program is notified when `inbound` is empty.
    pub(super) losing: bool,
    /// With a hardware profile: the messages in transmission at this end.
    pub(super) lanes: Lanes,
}

impl SimLink {
    pub(super) fn new(peer: LinkEnd, state: LinkState, queue: Option<ReceiveQueueId>) -> Self {
        Self {
            peer,
            state,
            queue,
            imports: BTreeMap::new(),
            greeting: Vec::new(),
            requests: VecDeque::new(),
            requests_made: 0,
            unpolled: 0,
            departing: false,
            inbound: VecDeque::new(),
            arrival_ns: 0,
            broken_from: u64::MAX,
            severed: false,
            accepted: false,
            ended: false,
            losing: false,
            lanes: Lanes::default(),
        }
    }

    pub(super) fn request(&mut self, number: u64) -> Option<&mut RequestRecord> {
        let first = self.requests.front()?.number;
        let at = usize::try_from(number.checked_sub(first)?).ok()?;
        self.requests.get_mut(at)
    }

    pub(super) fn inbound(&mut self, number: u64) -> Option<&mut Inbound> {
        let mut all = self.inbound.iter_mut();
        all.find(|inbound| inbound.message.number == number)
    }
}

/// Counters of rare behaviours that a fabric permits: a case that never occurs in a run is not tested by it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    /// Pieces of one transfer that took effect out of address order.
    pub pieces_reordered: u64,
    /// Requests that started while an earlier READ or atomic of their link was in progress.
    pub fetches_overtaken: u64,
    /// Requests of an unordered link that took effect before an earlier one.
    pub messages_reordered: u64,
    /// WRITEs that completed before all their pieces were placed.
    pub completed_before_placed: u64,
    /// Messages that found an empty receive queue.
    pub receives_missing: u64,
    /// Atomics that waited for another on the same word.
    pub atomics_contended: u64,
    /// WRITEs of a dead requester of which only some pieces were placed.
    pub writes_torn_by_death: u64,
    /// Messages of a dead requester that were delivered after its death.
    pub delivered_after_death: u64,
    /// Messages of a dead requester that never arrive.
    pub dropped_by_death: u64,
    /// Requests refused by the responder's adapter.
    pub requests_refused: u64,
    /// WRITEs of which the target fetched the bytes by a READ.
    pub writes_read_back: u64,
}

pub(super) struct World {
    pub(super) seed: u64,
    pub(super) options: SimOptions,
    pub(super) random: Random,
    pub(super) now_ns: u64,
    queue: BinaryHeap<Reverse<(u64, u64, WorldEvent)>>,
    scheduled: u64,
    pub(super) nodes: Vec<SimNode>,
    pub(super) ports: Vec<PortState>,
    pub(super) listeners: BTreeMap<String, PortKey>,
    /// Pairs of partitioned hosts, the lower one first.
    pub(super) parted: BTreeSet<(NodeKey, NodeKey)>,
    pub(super) transcript: Transcript,
    pub(super) marks: Marks,
    pub(super) adapters: Adapters,
    pub(super) paths: Paths,
    /// The persistent memory of each node and socket.
    pub(super) nvm: BTreeMap<(NodeKey, u8), NvmSocket>,
    /// The unkept lines of tracked regions.
    pub(super) crash: BTreeMap<(NodeKey, RegionId), CrashRegion>,
    /// The clock of the running program, if it has one.
    pub(super) program: Option<ProgramClock>,
}

impl World {
    pub(super) fn new(seed: u64, options: SimOptions) -> Self {
        Self {
            seed,
            options,
            random: Random::new(seed),
            now_ns: 0,
            queue: BinaryHeap::new(),
            scheduled: 0,
            nodes: Vec::new(),
            ports: Vec::new(),
            listeners: BTreeMap::new(),
            parted: BTreeSet::new(),
            transcript: Transcript::new(options.transcript_lines),
            marks: Marks::default(),
            adapters: Adapters::default(),
            paths: Paths::default(),
            nvm: BTreeMap::new(),
            crash: BTreeMap::new(),
            program: None,
        }
    }

    /// Performs the next event; false if there is none.
    pub(super) fn step(&mut self) -> bool {
        self.step_touching().is_some()
    }

    /// Performs the next event, if there is one. Returns the node at which the program may notice it.
    pub(super) fn step_touching(&mut self) -> Option<Option<NodeKey>> {
        let Reverse((at_ns, _, event)) = self.queue.pop()?;
        self.now_ns = self.now_ns.max(at_ns);
        let key = self.node_of(event);
        let node = &mut self.nodes[key.0];
        // Packets on the wire proceed in any state of the two ends.
        let on_wire = matches!(event, WorldEvent::Emit(..) | WorldEvent::Hop(..));
        if node.frozen && !on_wire {
            node.held.push(event);
        } else if node.alive || on_wire {
            self.perform(event);
        }
        let unseen = on_wire || matches!(event, WorldEvent::Depart(..) | WorldEvent::Fetch(..));
        Some(if unseen { None } else { Some(key) })
    }

    pub(super) fn next_event_ns(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse((at_ns, _, _))| *at_ns)
    }

    fn perform(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Depart(end) => self.depart(end),
            WorldEvent::Arrive(end, number) => self.arrive(end, number),
            WorldEvent::Piece(end, number, piece) => self.piece(end, number, piece),
            WorldEvent::AtomicStore(end, number) => self.atomic_store(end, number),
            WorldEvent::RetryReceive(end, number) => self.retry_receive(end, number),
            WorldEvent::ReceiverNotReady(end, number) => self.receiver_not_ready(end, number),
            WorldEvent::Response(end, number) => self.response(end, number),
            WorldEvent::Land(end, number, piece) => self.land(end, number, piece),
            WorldEvent::Requested(end) => self.requested(end),
            WorldEvent::Connected(end) => self.connected(end),
            WorldEvent::Refused(end) => self.refused(end),
            WorldEvent::NotReached(end) => self.not_reached(end),
            WorldEvent::Lost(end) => self.lost(end),
            WorldEvent::Fetch(end, number) => self.fetch(end, number),
            WorldEvent::Fetched(end, number) => self.fetched(end, number),
            WorldEvent::Emit(end, lane) => self.emit(end, lane),
            WorldEvent::Hop(end, number, packet) => self.hop(end, number, packet),
        }
    }

    fn node_of(&self, event: WorldEvent) -> NodeKey {
        let port = match event {
            WorldEvent::Depart(end)
            | WorldEvent::Arrive(end, _)
            | WorldEvent::Piece(end, _, _)
            | WorldEvent::AtomicStore(end, _)
            | WorldEvent::RetryReceive(end, _)
            | WorldEvent::ReceiverNotReady(end, _)
            | WorldEvent::Response(end, _)
            | WorldEvent::Land(end, _, _)
            | WorldEvent::Requested(end)
            | WorldEvent::Connected(end)
            | WorldEvent::Refused(end)
            | WorldEvent::NotReached(end)
            | WorldEvent::Lost(end)
            | WorldEvent::Fetch(end, _)
            | WorldEvent::Fetched(end, _)
            | WorldEvent::Emit(end, _)
            | WorldEvent::Hop(end, _, _) => end.port,
        };
        self.ports[port.0].node
    }

    /// Draws a delay from this range, stretched for stragglers; the mean with a hardware profile.
    pub(super) fn delay(&mut self, range: DelayRange) -> u64 {
        if self.options.hardware.is_some() {
            return range.min_ns.midpoint(range.max_ns);
        }
        let delay = self.random.between(range.min_ns, range.max_ns);
        if self.random.chance(self.options.straggler_per_mille) {
            delay.saturating_mul(self.options.straggler_factor)
        } else {
            delay
        }
    }

    /// Schedules `event` after a delay of `range`; simultaneous events are in random order.
    pub(super) fn after(&mut self, range: DelayRange, event: WorldEvent) {
        let at_ns = self.now_ns.saturating_add(self.delay(range));
        self.at(at_ns, event);
    }

    /// Schedules `event` for `at_ns`; with a hardware profile, simultaneous events happen in the order of these
    /// calls.
    pub(super) fn at(&mut self, at_ns: u64, event: WorldEvent) {
        self.scheduled += 1;
        let tie = match self.options.hardware {
            Some(_) => self.scheduled,
            None => self.random.word(),
        };
        self.queue.push(Reverse((at_ns, tie, event)));
    }

    /// Maximum number of pieces of a transfer: one with a hardware profile, which times whole messages.
    pub(super) fn pieces_max(&self) -> usize {
        if self.options.hardware.is_some() { 1 } else { self.options.pieces_max }
    }

    pub(super) fn port(&self, port: PortKey) -> &PortState {
        &self.ports[port.0]
    }

    pub(super) fn port_mut(&mut self, port: PortKey) -> &mut PortState {
        &mut self.ports[port.0]
    }

    pub(super) fn link(&self, end: LinkEnd) -> &SimLink {
        &self.ports[end.port.0].links[end.link.0 as usize]
    }

    pub(super) fn link_mut(&mut self, end: LinkEnd) -> &mut SimLink {
        &mut self.ports[end.port.0].links[end.link.0 as usize]
    }

    pub(super) fn node(&self, end: LinkEnd) -> &SimNode {
        &self.nodes[self.port(end.port).node.0]
    }

    pub(super) fn node_mut(&mut self, end: LinkEnd) -> &mut SimNode {
        let node = self.port(end.port).node;
        &mut self.nodes[node.0]
    }

    /// Writes a transcript line about a request of a link.
    pub(super) fn record(&mut self, event: &'static str, end: LinkEnd, request: u64, detail: u64) {
        self.transcript.write(TranscriptLine {
            at_ns: self.now_ns,
            event,
            node: self.port(end.port).node.0 as u32,
            port: end.port.0 as u32,
            link: end.link.0,
            request,
            detail,
        });
    }

    /// Writes a transcript line about a node or port.
    pub(super) fn record_node(&mut self, event: &'static str, node: NodeKey, detail: u64) {
        self.transcript.write(TranscriptLine {
            at_ns: self.now_ns,
            event,
            node: node.0 as u32,
            port: 0,
            link: 0,
            request: 0,
            detail,
        });
    }
}

impl PortState {
    pub(super) fn finish(&mut self, completion: Completion, queue: Option<ReceiveQueueId>) {
        match queue {
            Some(queue) => self.queues[queue.0 as usize].unpolled += 1,
            None => self.links[completion.link.0 as usize].unpolled += 1,
        }
        self.completions.push_back(UnpolledCompletion { completion, queue });
        self.wake();
    }

    pub(super) fn notify(&mut self, event: LinkEvent) {
        self.events.push_back(event);
        self.wake();
        if let Some(other) = &self.other_waiter {
            other.wake();
        }
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.waiter.wake();
        }
    }
}
