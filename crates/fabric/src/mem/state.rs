//! The tables of the in-process fabric and their control side: regions, ports, links.

use crate::{
    Arena, FabricError, LinkEvent, Loss, PortSpec, Region, RegionSpec, Stop, ThreadWaiter, Waiter,
};
use farside_base::{
    Access, Capabilities, Completion, LinkId, LocalSlice, Receive, ReceiveQueueId, RegionId,
    RegionKind, RegionToken, RemoteKey, RemoteRegionId,
};
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

/// Most receive queues of a port at a time.
const QUEUES_MAX: usize = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessNumber(pub(super) u32);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PortNumber(u64);

#[derive(Default)]
pub(super) struct MemState {
    processes: u32,
    regions_made: u32,
    regions: BTreeMap<(ProcessNumber, RegionId), MemRegion>,
    listeners: BTreeMap<String, PortNumber>,
    ports_made: u64,
    ports: BTreeMap<PortNumber, PortState>,
}

/// A region as its owner recorded it, against which each request is checked.
pub(super) struct MemRegion {
    pub(super) arena: Arena,
    pub(super) key: RemoteKey,
    pub(super) access: Access,
    kind: RegionKind,
}

pub(super) struct PortState {
    pub(super) process: ProcessNumber,
    pub(super) links: BTreeMap<LinkId, MemLink>,
    /// Numbers below were given out; one without an entry in `links` is closed.
    links_made: u32,
    imports_made: u32,
    pub(super) queues: BTreeMap<ReceiveQueueId, MemReceiveQueue>,
    queues_made: u32,
    pub(super) completions: VecDeque<UnpolledCompletion>,
    /// Entries of `completions` that end requests of this port, not receives.
    pub(super) requests_finished: usize,
    events: VecDeque<LinkEvent>,
    armed: bool,
    waiter: Arc<ThreadWaiter>,
    /// Woken by link events too.
    other_waiter: Option<Arc<dyn Waiter>>,
}

/// A completion, and the receive queue whose entry it frees when it is polled.
pub(super) struct UnpolledCompletion {
    pub(super) completion: Completion,
    pub(super) queue: Option<ReceiveQueueId>,
}

pub(super) struct MemReceiveQueue {
    depth: usize,
    pub(super) posted: VecDeque<Receive>,
    /// Taken receives with an unpolled completion.
    pub(super) unpolled: usize,
    /// Links that use this queue.
    links: usize,
}

pub(super) struct MemLink {
    /// The other end.
    pub(super) peer: (PortNumber, LinkId),
    pub(super) state: LinkState,
    pub(super) queue: Option<ReceiveQueueId>,
    pub(super) imports: BTreeMap<RemoteRegionId, RegionToken>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkState {
    /// `connect` was called locally; the peer has not answered.
    Connecting,
    /// The peer connected; this side has not answered.
    Requested,
    /// Usable.
    Ready,
    /// The peer is gone; the next request reports it and fails the link.
    Lost,
    /// A request failed, or the link was closed locally: everything is flushed.
    Failed,
}

impl MemState {
    pub(super) fn new_process(&mut self) -> ProcessNumber {
        self.processes += 1;
        ProcessNumber(self.processes)
    }

    pub(super) fn port(&self, port: PortNumber) -> &PortState {
        self.ports.get(&port).expect("a port's state lives as long as the port")
    }

    pub(super) fn port_mut(&mut self, port: PortNumber) -> &mut PortState {
        self.ports.get_mut(&port).expect("a port's state lives as long as the port")
    }

    /// Returns the other end of a link, when that still exists and points back.
    pub(super) fn peer_of(&self, link: &MemLink) -> Option<(&PortState, &MemLink)> {
        let port = self.ports.get(&link.peer.0)?;
        Some((port, port.links.get(&link.peer.1)?))
    }

    pub(super) fn region(&self, process: ProcessNumber, region: RegionId) -> Option<&MemRegion> {
        self.regions.get(&(process, region))
    }

    pub(super) fn register(
        &mut self,
        capabilities: &Capabilities,
        process: ProcessNumber,
        spec: &RegionSpec,
    ) -> Result<Region, FabricError> {
        let own = self.regions.iter().filter(|((owner, _), _)| *owner == process);
        let device = own.filter(|(_, region)| region.kind == RegionKind::Device);
        let device_bytes = device.map(|(_, region)| region.arena.len() as u64).sum();
        spec.check(capabilities, device_bytes)?;
        Ok(self.add_region(process, spec.memory()?, spec))
    }

    pub(super) fn add_region(
        &mut self,
        process: ProcessNumber,
        arena: Arena,
        spec: &RegionSpec,
    ) -> Region {
        self.regions_made += 1;
        let id = RegionId(self.regions_made);
        // The standard library seeds each `RandomState` from the system's random numbers.
        let key = RemoteKey(RandomState::new().hash_one(id.0));
        let access = spec.access;
        let registered = MemRegion { arena: arena.clone(), key, access, kind: spec.kind };
        self.regions.insert((process, id), registered);
        let token = RegionToken { region: id, key, bytes: arena.len() as u64, access };
        Region { id, arena, token, device: None }
    }

    /// Requests run under the lock that the caller holds, so none is in flight.
    pub(super) fn deregister(
        &mut self,
        process: ProcessNumber,
        region: RegionId,
    ) -> Result<(), FabricError> {
        let removed = self.regions.remove(&(process, region));
        removed.map(|_| ()).ok_or(FabricError::Unknown("region"))
    }

    pub(super) fn open(
        &mut self,
        process: ProcessNumber,
        spec: &PortSpec,
        waiter: Arc<ThreadWaiter>,
        capabilities: &Capabilities,
    ) -> Result<PortNumber, FabricError> {
        self.ports_made += 1;
        let number = PortNumber(self.ports_made);
        if let Some(address) = &spec.listen {
            if self.listeners.contains_key(address) {
                return Err(FabricError::AddressInUse(address.clone()));
            }
            self.listeners.insert(address.clone(), number);
        }
        let port = PortState {
            process,
            links: BTreeMap::new(),
            links_made: 0,
            imports_made: 0,
            queues: BTreeMap::new(),
            queues_made: 0,
            completions: VecDeque::with_capacity(capabilities.outstanding_max as usize),
            requests_finished: 0,
            events: VecDeque::new(),
            armed: false,
            waiter,
            other_waiter: None,
        };
        self.ports.insert(number, port);
        Ok(number)
    }

    pub(super) fn close_port(&mut self, number: PortNumber) {
        self.listeners.retain(|_, listener| *listener != number);
        let Some(port) = self.ports.remove(&number) else {
            return;
        };
        for link in port.links.into_values() {
            self.lose(link.peer);
        }
    }

    /// Notifies one end of a link that the other is gone.
    fn lose(&mut self, (port, link): (PortNumber, LinkId)) {
        let Some(port) = self.ports.get_mut(&port) else {
            return;
        };
        let Some(end) = port.links.get_mut(&link) else {
            return;
        };
        if end.state != LinkState::Failed {
            end.state = LinkState::Lost;
        }
        port.tell(LinkEvent::Lost { link, loss: Loss::Ended });
    }

    /// `None` when the port has too many.
    pub(super) fn create_receive_queue(
        &mut self,
        port: PortNumber,
        depth: usize,
    ) -> Option<ReceiveQueueId> {
        let port = self.port_mut(port);
        if port.queues.len() >= QUEUES_MAX {
            return None;
        }
        let number = ReceiveQueueId(port.queues_made);
        port.queues_made += 1;
        let posted = VecDeque::with_capacity(depth);
        port.queues.insert(number, MemReceiveQueue { depth, posted, unpolled: 0, links: 0 });
        port.completions.reserve(depth);
        Some(number)
    }

    pub(super) fn destroy_receive_queue(
        &mut self,
        port: PortNumber,
        number: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        let queues = &mut self.port_mut(port).queues;
        match queues.get(&number) {
            None => Err(FabricError::Unknown("receive queue")),
            Some(queue) if queue.links > 0 => Err(FabricError::Limit("receive queue in use")),
            Some(_) => {
                queues.remove(&number);
                Ok(())
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        capabilities: &Capabilities,
        from: PortNumber,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        let listener = self.listeners.get(to).copied();
        let listener = listener.ok_or_else(|| FabricError::NoListener(to.to_owned()))?;
        for end in [from, listener] {
            if self.port(end).links.len() >= capabilities.links_max as usize {
                return Err(FabricError::Limit("links_max"));
            }
        }
        self.port_mut(from).join_queue(capabilities, receives)?;
        let here = self.port_mut(from).next_link();
        let there = self.port_mut(listener).next_link();
        let link = MemLink::new((listener, there), LinkState::Connecting, Some(receives));
        self.port_mut(from).links.insert(here, link);
        let link = MemLink::new((from, here), LinkState::Requested, None);
        self.port_mut(listener).links.insert(there, link);
        self.port_mut(listener).tell(LinkEvent::Requested { link: there, hello: hello.to_vec() });
        Ok(here)
    }

    pub(super) fn accept(
        &mut self,
        capabilities: &Capabilities,
        port: PortNumber,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        let asked = self.requester(port, link);
        if matches!(asked, Err(FabricError::PeerLost)) {
            self.port_mut(port).forget(link);
        }
        let (peer_port, peer_link) = asked?;
        self.port_mut(port).join_queue(capabilities, receives)?;
        let end = self.port_mut(port).links.get_mut(&link);
        let end = end.ok_or(FabricError::Unknown("link"))?;
        end.state = LinkState::Ready;
        end.queue = Some(receives);
        let peer = self.ports.get_mut(&peer_port).ok_or(FabricError::PeerLost)?;
        let end = peer.links.get_mut(&peer_link).ok_or(FabricError::PeerLost)?;
        end.state = LinkState::Ready;
        peer.tell(LinkEvent::Connected { link: peer_link, reply: reply.to_vec() });
        Ok(())
    }

    pub(super) fn refuse(
        &mut self,
        port: PortNumber,
        link: LinkId,
        reason: &[u8],
    ) -> Result<(), FabricError> {
        let asked = self.requester(port, link);
        if matches!(asked, Err(FabricError::Unknown(_))) {
            return Err(FabricError::Unknown("link"));
        }
        self.port_mut(port).forget(link);
        let Ok((peer_port, peer_link)) = asked else {
            return Ok(());
        };
        if let Some(peer) = self.ports.get_mut(&peer_port) {
            peer.forget(peer_link);
            peer.tell(LinkEvent::Refused { link: peer_link, reason: reason.to_vec() });
        }
        Ok(())
    }

    /// Returns the requester of `link`, while it is neither answered nor abandoned.
    fn requester(
        &self,
        port: PortNumber,
        link: LinkId,
    ) -> Result<(PortNumber, LinkId), FabricError> {
        let end = self.port(port).links.get(&link);
        match end.map(|end| (end.state, end.queue)) {
            Some((LinkState::Requested, _)) => {
                let end = end.ok_or(FabricError::Unknown("link"))?;
                self.peer_of(end).ok_or(FabricError::PeerLost)?;
                Ok(end.peer)
            }
            Some((LinkState::Lost, None)) => Err(FabricError::PeerLost),
            _ => Err(FabricError::Unknown("link")),
        }
    }

    pub(super) fn import(
        &mut self,
        port: PortNumber,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<RemoteRegionId, FabricError> {
        let end = self.port(port).links.get(&link);
        let end = end.ok_or(FabricError::Unknown("link"))?;
        if matches!(end.state, LinkState::Connecting | LinkState::Requested) {
            return Err(FabricError::Unknown("link"));
        }
        let (owner, _) = self.peer_of(end).ok_or(FabricError::PeerLost)?;
        match self.region(owner.process, token.region) {
            Some(region) if region.key == token.key => {}
            _ => return Err(FabricError::Unknown("region token")),
        }
        let known = end.imports.iter().find(|(_, known)| *known == token);
        if let Some((number, _)) = known {
            return Ok(*number);
        }
        let port = self.port_mut(port);
        let number = RemoteRegionId(port.imports_made);
        port.imports_made += 1;
        if let Some(end) = port.links.get_mut(&link) {
            end.imports.insert(number, *token);
        }
        Ok(number)
    }

    pub(super) fn reach(
        &self,
        port: PortNumber,
        link: LinkId,
        region: RemoteRegionId,
        access: Access,
    ) -> Option<Arena> {
        let link = self.port(port).links.get(&link)?;
        let token = link.imports.get(&region)?;
        let (owner, _) = self.peer_of(link).filter(|(_, end)| end.state == LinkState::Ready)?;
        let region = self.region(owner.process, token.region)?;
        let may = region.key == token.key && region.access.allows(access);
        may.then(|| region.arena.clone())
    }

    pub(super) fn close(&mut self, port: PortNumber, link: LinkId) {
        if let Some(end) = self.port_mut(port).forget(link) {
            self.lose(end.peer);
        }
    }

    pub(super) fn path(&self, port: PortNumber, link: LinkId) -> String {
        match self.port(port).links.get(&link) {
            Some(end) => format!("mem: copies within this process, {:?}", end.state),
            None => "mem: closed".to_owned(),
        }
    }

    /// Checks that a slice is within a region of `process`.
    pub(super) fn check_slice(
        &self,
        process: ProcessNumber,
        slice: &LocalSlice,
    ) -> Result<(), Stop> {
        let region = self.region(process, slice.region);
        let region = region.ok_or(Stop::Invalid("local region"))?;
        let inside = region.arena.at(slice.offset, slice.bytes as usize);
        inside.map(|_| ()).map_err(|_| Stop::Invalid("local bounds"))
    }

    pub(super) fn post_receive(&mut self, port: PortNumber, receive: &Receive) -> Result<(), Stop> {
        self.check_slice(self.port(port).process, &receive.into)?;
        let queue = self.port_mut(port).queues.get_mut(&receive.queue);
        let queue = queue.ok_or(Stop::Invalid("receive queue"))?;
        if queue.posted.len() + queue.unpolled >= queue.depth {
            return Err(Stop::QueueFull);
        }
        queue.posted.push_back(*receive);
        Ok(())
    }

    pub(super) fn poll(&mut self, port: PortNumber, out: &mut [Completion]) -> usize {
        let port = self.port_mut(port);
        let count = out.len().min(port.completions.len());
        for (place, finished) in out.iter_mut().zip(port.completions.drain(..count)) {
            *place = finished.completion;
            match finished.queue {
                // A destroyed queue has no entry to free.
                Some(queue) => {
                    if let Some(queue) = port.queues.get_mut(&queue) {
                        queue.unpolled -= 1;
                    }
                }
                None => port.requests_finished -= 1,
            }
        }
        count
    }

    /// A loss is held back until the messages received before it have been polled.
    pub(super) fn link_events(&mut self, port: PortNumber, out: &mut Vec<LinkEvent>) {
        let port = self.port_mut(port);
        for _ in 0..port.events.len() {
            let Some(event) = port.events.pop_front() else {
                return;
            };
            match event {
                LinkEvent::Lost { link, .. } if port.has_message_of(link) => {
                    port.events.push_back(event)
                }
                event => out.push(event),
            }
        }
    }

    pub(super) fn arm(&mut self, port: PortNumber) -> bool {
        let port = self.port_mut(port);
        let something = !port.completions.is_empty() || !port.events.is_empty();
        port.armed = !something;
        something
    }

    pub(super) fn disarm(&mut self, port: PortNumber) {
        self.port_mut(port).armed = false;
    }

    pub(super) fn wake_also(&mut self, port: PortNumber, waiter: Arc<dyn Waiter>) {
        self.port_mut(port).other_waiter = Some(waiter);
    }
}

impl MemLink {
    fn new(peer: (PortNumber, LinkId), state: LinkState, queue: Option<ReceiveQueueId>) -> Self {
        Self { peer, state, queue, imports: BTreeMap::new() }
    }
}

impl PortState {
    /// Returns the state that a request on `link` finds; `None` if no request may name it.
    pub(super) fn state_of(&self, link: LinkId) -> Option<LinkState> {
        match self.links.get(&link).map(|end| end.state) {
            Some(LinkState::Connecting | LinkState::Requested) => None,
            None if link.0 < self.links_made => Some(LinkState::Failed),
            state => state,
        }
    }

    fn next_link(&mut self) -> LinkId {
        self.links_made += 1;
        LinkId(self.links_made - 1)
    }

    fn join_queue(
        &mut self,
        capabilities: &Capabilities,
        queue: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        let queue = self.queues.get_mut(&queue);
        let queue = queue.ok_or(FabricError::Unknown("receive queue"))?;
        if queue.links > 0 && !capabilities.shared_receive_queue {
            return Err(FabricError::Lacks("shared_receive_queue"));
        }
        queue.links += 1;
        Ok(())
    }

    /// Removes a link from the table, with its unreported events.
    fn forget(&mut self, link: LinkId) -> Option<MemLink> {
        let end = self.links.remove(&link)?;
        if let Some(queue) = end.queue {
            self.queue_mut(queue).links -= 1;
        }
        self.events.retain(|event| event.link() != link);
        Some(end)
    }

    /// Returns the queue of a link, which lives as long as the link.
    pub(super) fn queue_mut(&mut self, queue: ReceiveQueueId) -> &mut MemReceiveQueue {
        self.queues.get_mut(&queue).expect("a queue that a link uses is not ended")
    }

    fn has_message_of(&self, link: LinkId) -> bool {
        let mut finished = self.completions.iter();
        finished.any(|one| one.queue.is_some() && one.completion.link == link)
    }

    fn tell(&mut self, event: LinkEvent) {
        self.events.push_back(event);
        self.wake();
        if let Some(other) = &self.other_waiter {
            other.wake();
        }
    }

    pub(super) fn finish(&mut self, completion: Completion, queue: Option<ReceiveQueueId>) {
        match queue {
            Some(queue) => self.queue_mut(queue).unpolled += 1,
            None => self.requests_finished += 1,
        }
        self.completions.push_back(UnpolledCompletion { completion, queue });
        self.wake();
    }

    fn wake(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.waiter.wake();
        }
    }
}
