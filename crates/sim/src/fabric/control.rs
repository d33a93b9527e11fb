//! The control path of the simulated fabric: nodes, regions, links, and their faults.

use super::crash::CrashRegion;
use super::locality::SocketPlacement;
use super::port::SimWaiter;
use super::program::ProgramCounts;
use super::request::{Phase, Progress};
use super::world::{
    LinkEnd, LinkState, NodeKey, PortKey, PortState, SimLink, SimNode, SimReceiveQueue, SimRegion,
    World, WorldEvent,
};
use farside_base::{
    Access, CompletionKind, CompletionStatus, LinkId, ReceiveQueueId, RegionId, RegionKind,
    RegionToken, RemoteKey, RemoteRegionId,
};
use farside_fabric::{
    Arena, FabricError, LinkEvent, Loss, NotReached, PortSpec, Region, RegionSpec,
};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

impl World {
    /// Returns the living node of this name, and creates it if there is none.
    pub(super) fn node_named(&mut self, name: &str) -> NodeKey {
        if let Some(node) = self.find_node(name) {
            return node;
        }
        self.nodes.push(SimNode {
            name: name.to_owned(),
            alive: true,
            paused: false,
            frozen: false,
            held: Vec::new(),
            regions: BTreeMap::new(),
            regions_made: 0,
            busy_words: Vec::new(),
            counts: ProgramCounts::default(),
            placement: SocketPlacement::default(),
            persistent: false,
            crash: None,
        });
        NodeKey(self.nodes.len() - 1)
    }

    pub(super) fn find_node(&self, name: &str) -> Option<NodeKey> {
        let living = |node: &SimNode| node.alive && node.name == name;
        self.nodes.iter().rposition(living).map(NodeKey)
    }

    /// Registers a region. Memory at the adapter differs from other memory only by its budget.
    pub(super) fn register(
        &mut self,
        node: NodeKey,
        spec: &RegionSpec,
    ) -> Result<Region, FabricError> {
        let regions = self.nodes[node.0].regions.values();
        let device = regions.filter(|region| region.kind == RegionKind::Device);
        let device_bytes = device.map(|region| region.arena.len() as u64).sum();
        let checked = self.checked_access(node, spec.access);
        RegionSpec { access: checked, ..*spec }.check(&self.options.capabilities, device_bytes)?;
        let arena = spec.memory()?;
        let key = RemoteKey(self.random.word());
        self.record_node("register", node, spec.bytes);
        let persistent_at = self.place_region(node, spec.kind, arena.len() as u64);
        let (owner, node) = (node, &mut self.nodes[node.0]);
        node.regions_made += 1;
        let id = RegionId(node.regions_made);
        let access = spec.access;
        let socket = node.placement.memory_socket;
        let (arena_kept, kind) = (arena.clone(), spec.kind);
        if let Some(domain) = node.crash {
            self.crash.insert((owner, id), CrashRegion::new(domain, arena.clone()));
        }
        let registered = SimRegion { arena: arena_kept, key, access, kind, socket, persistent_at };
        node.regions.insert(id, registered);
        let token = RegionToken { region: id, key, bytes: arena.len() as u64, access };
        Ok(Region { id, arena, token, device: None })
    }

    /// Removes a region. Pieces still in flight are discarded on arrival.
    pub(super) fn deregister(
        &mut self,
        node: NodeKey,
        region: RegionId,
    ) -> Result<(), FabricError> {
        self.record_node("deregister", node, u64::from(region.0));
        let removed = self.nodes[node.0].regions.remove(&region);
        self.crash.remove(&(node, region));
        removed.map(|_| ()).ok_or(FabricError::Unknown("region"))
    }

    pub(super) fn open(
        &mut self,
        node: NodeKey,
        spec: &PortSpec,
        waiter: Arc<SimWaiter>,
    ) -> Result<PortKey, FabricError> {
        let port = PortKey(self.ports.len());
        if let Some(name) = &spec.listen {
            let address = match self.host(node) {
                Some(host) => format!("{host}/{name}"),
                None => name.clone(),
            };
            if self.listeners.contains_key(&address) {
                return Err(FabricError::AddressInUse(address));
            }
            self.listeners.insert(address, port);
        }
        self.record_node("open", node, port.0 as u64);
        self.ports.push(PortState {
            node,
            placement: self.nodes[node.0].placement,
            open: true,
            links: Vec::new(),
            imports_made: 0,
            queues: Vec::new(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
            armed: false,
            waiter,
            other_waiter: None,
        });
        Ok(port)
    }

    /// Returns the address of a node, if nodes are separate hosts.
    pub(super) fn host(&self, node: NodeKey) -> Option<SocketAddr> {
        self.options.silence_ns?;
        let number = u16::try_from(node.0 + 1).ok()?;
        Some(SocketAddr::from(([10, 0, 0, 1], number)))
    }

    /// Returns the port that listens at this address, or under this name.
    fn listener(&self, to: &str) -> Option<PortKey> {
        let named = || {
            let is_it = |(address, _): &(&String, &PortKey)| {
                address.rsplit_once('/').is_some_and(|(_, name)| name == to)
            };
            self.listeners.iter().find(is_it)
        };
        let port = self.listeners.get_key_value(to).or_else(named)?.1;
        Some(*port)
    }

    /// Whether two nodes are not partitioned.
    fn reaches(&self, one: NodeKey, other: NodeKey) -> bool {
        !self.parted.contains(&(one.min(other), one.max(other)))
    }

    /// Partitions two nodes until they are mended.
    pub(super) fn part_nodes(&mut self, one: NodeKey, other: NodeKey) {
        self.parted.insert((one.min(other), one.max(other)));
        self.cut(one, other);
    }

    pub(super) fn mend_nodes(&mut self, one: NodeKey, other: NodeKey) {
        self.record_node("mend", one, other.0 as u64);
        self.parted.remove(&(one.min(other), one.max(other)));
    }

    pub(super) fn create_receive_queue(&mut self, port: PortKey, depth: usize) -> ReceiveQueueId {
        let port = self.port_mut(port);
        port.queues.push(SimReceiveQueue {
            depth,
            posted: VecDeque::new(),
            unpolled: 0,
            links: 0,
            credits: 0,
            ended: false,
        });
        ReceiveQueueId(port.queues.len() as u32 - 1)
    }

    pub(super) fn destroy_receive_queue(
        &mut self,
        port: PortKey,
        queue: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        let queue = self.port_mut(port).queues.get_mut(queue.0 as usize);
        let queue = queue.filter(|queue| !queue.ended);
        let queue = queue.ok_or(FabricError::Unknown("receive queue"))?;
        if queue.links > 0 {
            return Err(FabricError::Limit("receive queue in use"));
        }
        queue.ended = true;
        queue.posted = VecDeque::new();
        queue.credits = 0;
        Ok(())
    }

    pub(super) fn connect(
        &mut self,
        from: PortKey,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        let far = self.host_of(to).filter(|there| !self.reaches(self.port(from).node, *there));
        if far.is_some() {
            self.join_queue(from, receives)?;
            let here = LinkEnd { port: from, link: self.next_link(from) };
            let link = SimLink::new(here, LinkState::Connecting, Some(receives));
            self.port_mut(from).links.push(link);
            self.after(self.options.control_ns, WorldEvent::NotReached(here));
            return Ok(here.link);
        }
        let listener = self.listener(to);
        let listener = listener.ok_or_else(|| FabricError::NoListener(to.to_owned()))?;
        for port in [from, listener] {
            let links = self.port(port).links.iter();
            let open = links.filter(|link| link.state != LinkState::Closed).count();
            if open >= self.options.capabilities.links_max as usize {
                return Err(FabricError::Limit("links_max"));
            }
        }
        self.join_queue(from, receives)?;
        let here = LinkEnd { port: from, link: self.next_link(from) };
        // Placeholder peer, so that the ends of a port that connects to itself get distinct numbers.
        let link = SimLink::new(here, LinkState::Connecting, Some(receives));
        self.port_mut(from).links.push(link);
        let there = LinkEnd { port: listener, link: self.next_link(listener) };
        let mut link = SimLink::new(here, LinkState::Coming, None);
        link.greeting = hello.to_vec();
        self.port_mut(listener).links.push(link);
        self.link_mut(here).peer = there;
        self.record("connect", here, 0, hello.len() as u64);
        self.after(self.options.control_ns, WorldEvent::Requested(there));
        Ok(here.link)
    }

    /// Returns the node at an address, dead or alive.
    fn host_of(&self, to: &str) -> Option<NodeKey> {
        let (host, _) = to.split_once('/')?;
        let all = (0..self.nodes.len()).map(NodeKey);
        all.into_iter().find(|node| self.host(*node).is_some_and(|at| at.to_string() == host))
    }

    pub(super) fn not_reached(&mut self, end: LinkEnd) {
        if self.link(end).state != LinkState::Connecting {
            return;
        }
        self.forget(end);
        self.record("not-reached", end, 0, 0);
        let link = end.link;
        let why = NotReached::Unreachable;
        self.port_mut(end.port).notify(LinkEvent::NotReached { link, why });
    }

    fn next_link(&self, port: PortKey) -> LinkId {
        LinkId(self.port(port).links.len() as u32)
    }

    fn join_queue(&mut self, port: PortKey, queue: ReceiveQueueId) -> Result<(), FabricError> {
        let shared = self.options.capabilities.shared_receive_queue;
        let queue = self.port_mut(port).queues.get_mut(queue.0 as usize);
        let queue = queue.filter(|queue| !queue.ended);
        let queue = queue.ok_or(FabricError::Unknown("receive queue"))?;
        if queue.links > 0 && !shared {
            return Err(FabricError::Lacks("shared_receive_queue"));
        }
        queue.links += 1;
        Ok(())
    }

    pub(super) fn requested(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        if link.state != LinkState::Coming {
            return;
        }
        link.state = LinkState::Requested;
        let hello = std::mem::take(&mut link.greeting);
        self.record("requested", end, 0, hello.len() as u64);
        let link = end.link;
        self.port_mut(end.port).notify(LinkEvent::Requested { link, hello });
    }

    pub(super) fn accept(
        &mut self,
        end: LinkEnd,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        self.answerable(end)?;
        self.join_queue(end.port, receives)?;
        let peer = self.link(end).peer;
        let link = self.link_mut(end);
        link.state = LinkState::Ready;
        link.queue = Some(receives);
        let asking = self.link_mut(peer);
        asking.accepted = true;
        asking.greeting = reply.to_vec();
        self.record("accept", end, 0, reply.len() as u64);
        self.after(self.options.control_ns, WorldEvent::Connected(peer));
        Ok(())
    }

    /// Checks that `end` waits for an answer. The loss of its peer may be reported now or later.
    fn answerable(&mut self, end: LinkEnd) -> Result<(), FabricError> {
        let link = self.port(end.port).links.get(end.link.0 as usize);
        let link = link.ok_or(FabricError::Unknown("link"))?;
        let gone = match link.state {
            LinkState::Requested => link.severed && self.random.chance(500),
            LinkState::Lost => link.queue.is_none(),
            _ => return Err(FabricError::Unknown("link")),
        };
        if gone {
            self.forget(end);
            return Err(FabricError::PeerLost);
        }
        match self.link(end).state {
            LinkState::Requested => Ok(()),
            _ => Err(FabricError::Unknown("link")),
        }
    }

    pub(super) fn connected(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        if link.state != LinkState::Connecting {
            return;
        }
        link.state = LinkState::Ready;
        let reply = std::mem::take(&mut link.greeting);
        self.record("connected", end, 0, reply.len() as u64);
        let link = end.link;
        self.port_mut(end.port).notify(LinkEvent::Connected { link, reply });
    }

    pub(super) fn refuse(&mut self, end: LinkEnd, reason: &[u8]) -> Result<(), FabricError> {
        match self.answerable(end) {
            Ok(()) => {}
            Err(FabricError::PeerLost) => return Ok(()),
            Err(error) => return Err(error),
        }
        let peer = self.link(end).peer;
        self.forget(end);
        self.link_mut(peer).greeting = reason.to_vec();
        self.record("refuse-link", end, 0, reason.len() as u64);
        self.after(self.options.control_ns, WorldEvent::Refused(peer));
        Ok(())
    }

    pub(super) fn refused(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        if link.state != LinkState::Connecting {
            return;
        }
        let reason = std::mem::take(&mut link.greeting);
        self.forget(end);
        self.record("refused", end, 0, reason.len() as u64);
        let link = end.link;
        self.port_mut(end.port).notify(LinkEvent::Refused { link, reason });
    }

    /// Returns the memory of a region that a port has imported and may access so, on a fabric with loads.
    pub(super) fn reach(
        &self,
        end: LinkEnd,
        region: RemoteRegionId,
        access: Access,
    ) -> Option<Arena> {
        let link = self.port(end.port).links.get(end.link.0 as usize)?;
        let usable = link.state == LinkState::Ready
            && !link.severed
            && self.link(link.peer).state == LinkState::Ready;
        let token =
            link.imports.get(&region).filter(|_| usable && self.options.capabilities.loads)?;
        let region = self.node(link.peer).regions.get(&token.region)?;
        let may = region.key == token.key && region.access.allows(access);
        may.then(|| region.arena.clone())
    }

    pub(super) fn import(
        &mut self,
        end: LinkEnd,
        token: &RegionToken,
    ) -> Result<RemoteRegionId, FabricError> {
        let link = self.port(end.port).links.get(end.link.0 as usize);
        let link = link.ok_or(FabricError::Unknown("link"))?;
        match link.state {
            LinkState::Connecting
            | LinkState::Coming
            | LinkState::Requested
            | LinkState::Closed => return Err(FabricError::Unknown("link")),
            LinkState::Lost => return Err(FabricError::PeerLost),
            LinkState::Ready | LinkState::Failed => {}
        }
        if link.severed || self.link(link.peer).state == LinkState::Closed {
            return Err(FabricError::PeerLost);
        }
        match self.node(link.peer).regions.get(&token.region) {
            Some(region) if region.key == token.key => {}
            _ => return Err(FabricError::Unknown("region token")),
        }
        let known = link.imports.iter().find(|(_, known)| *known == token);
        if let Some((number, _)) = known {
            return Ok(*number);
        }
        let port = self.port_mut(end.port);
        let number = RemoteRegionId(port.imports_made);
        port.imports_made += 1;
        self.link_mut(end).imports.insert(number, *token);
        self.record("import", end, 0, u64::from(number.0));
        Ok(number)
    }

    pub(super) fn close(&mut self, end: LinkEnd) {
        let link = self.port(end.port).links.get(end.link.0 as usize);
        if link.is_none_or(|link| link.state == LinkState::Closed) {
            return;
        }
        self.record("close", end, 0, 0);
        self.part(end);
        self.fail_link(end);
        self.forget(end);
    }

    pub(super) fn close_port(&mut self, port: PortKey) {
        self.listeners.retain(|_, listener| *listener != port);
        for link in 0..self.next_link(port).0 {
            self.close(LinkEnd { port, link: LinkId(link) });
        }
        self.port_mut(port).open = false;
    }

    /// Closes a link and removes its unpolled events.
    fn forget(&mut self, end: LinkEnd) {
        let port = self.port_mut(end.port);
        let link = &mut port.links[end.link.0 as usize];
        link.state = LinkState::Closed;
        if let Some(queue) = link.queue {
            port.queues[queue.0 as usize].links -= 1;
        }
        port.events.retain(|event| event_link(event) != end.link);
    }

    /// Kills a node. Each of its requests in flight may or may not take effect.
    pub(super) fn kill(&mut self, node: NodeKey) {
        self.record_node("kill", node, 0);
        self.nodes[node.0].alive = false;
        self.nodes[node.0].held.clear();
        for port in 0..self.ports.len() {
            if self.ports[port].node != node || !self.ports[port].open {
                continue;
            }
            let port = PortKey(port);
            self.listeners.retain(|_, listener| *listener != port);
            self.port_mut(port).open = false;
            for link in 0..self.next_link(port).0 {
                let end = LinkEnd { port, link: LinkId(link) };
                if self.link(end).state != LinkState::Closed {
                    self.part(end);
                }
            }
        }
    }

    /// Breaks every link between two nodes; both ends detect it, at independent times.
    pub(super) fn cut(&mut self, one: NodeKey, other: NodeKey) {
        self.record_node("cut", one, other.0 as u64);
        for port in 0..self.ports.len() {
            if self.ports[port].node != one || !self.ports[port].open {
                continue;
            }
            for link in 0..self.ports[port].links.len() {
                let end = LinkEnd { port: PortKey(port), link: LinkId(link as u32) };
                let peer = self.link(end).peer;
                let there = self.port(peer.port).node;
                if there == other && self.link(end).state != LinkState::Closed {
                    self.sever(end, false);
                    self.sever(peer, false);
                }
            }
        }
    }

    /// Takes this end down: its messages to the peer may or may not arrive, the peer will detect it, and no further
    /// message of the peer takes effect at this end; the answered ones are placed in memory.
    fn part(&mut self, end: LinkEnd) {
        while let Some(inbound) = self.link(end).inbound.front() {
            let number = inbound.message.number;
            self.land_answered(end, number);
            self.discard(end, number);
        }
        self.link_mut(end).severed = true;
        let peer = self.link(end).peer;
        self.sever(peer, true);
    }

    /// Severs `end` from its peer: of the requests in flight, the answered ones take effect, of the rest a random
    /// part; then the loss is detected.
    fn sever(&mut self, end: LinkEnd, ended: bool) {
        let link = self.link(end);
        if link.severed || link.state == LinkState::Closed || !self.node(end).alive {
            return;
        }
        self.link_mut(end).severed = true;
        self.link_mut(end).ended = ended;
        let certain = self.certain(end);
        let ordered = self.options.capabilities.message_order;
        let count = self.link(end).inbound.len();
        let through = self.random.between(certain as u64, count as u64) as usize;
        let mut dropped = Vec::new();
        for at in 0..count {
            let coin = self.random.chance(500);
            let by_read = self.by_read(&self.link(end).inbound[at].message);
            let inbound = &mut self.link_mut(end).inbound[at];
            let unread = by_read && !inbound.read_back;
            if !unread {
                inbound.message.payload.sample();
            }
            let write = inbound.message.kind == CompletionKind::Write;
            let keep = match (ordered, must_happen(inbound)) {
                (true, _) => at < through && inbound.phase != Phase::Waiting,
                (false, must) => must || (coin && inbound.phase != Phase::Waiting),
            };
            if !keep || unread || inbound.message.kind == CompletionKind::Read {
                dropped.push(inbound.message.number);
            } else if write && !inbound.answered && inbound.receive.is_none() {
                inbound.torn = if ordered { at + 1 == through } else { coin };
            }
        }
        for number in dropped {
            self.drop_message(end, number);
        }
        self.drop_answers(end);
        match self.options.silence_ns {
            Some(silence_ns) => {
                let here = self.port(end.port).node;
                let there = self.port(self.link(end).peer.port).node;
                // A reset is detected sooner than silence.
                let reset = self.reaches(here, there);
                let most_ns = if reset { silence_ns / 4 } else { silence_ns * 9 / 10 };
                let at_ns = self.now_ns + self.random.below(most_ns);
                self.at(at_ns, WorldEvent::Lost(end));
            }
            None => self.after(self.options.loss_ns, WorldEvent::Lost(end)),
        }
    }

    /// Number of messages at the front that certainly take effect.
    fn certain(&self, end: LinkEnd) -> usize {
        let last = self.link(end).inbound.iter().rposition(must_happen);
        last.map_or(0, |at| at + 1)
    }

    fn drop_message(&mut self, end: LinkEnd, number: u64) {
        self.marks.dropped_by_death += 1;
        let inbound = self.link_mut(end).inbound(number);
        let begun = inbound.is_some_and(|one| {
            one.message.kind == CompletionKind::Write && one.pieces.left < one.pieces.all.len()
        });
        self.marks.writes_torn_by_death += u64::from(begun);
        self.discard(end, number);
    }

    /// Drops this message and, on an ordered link, all after it.
    pub(super) fn drop_from(&mut self, end: LinkEnd, number: u64) {
        let ordered = self.options.capabilities.message_order;
        let all = self.link(end).inbound.iter().map(|one| one.message.number);
        let gone: Vec<u64> =
            all.filter(|one| *one == number || (ordered && *one > number)).collect();
        for number in gone {
            self.drop_message(end, number);
        }
    }

    /// Delivers a random prefix of the answers in flight to `end` and drops the rest.
    fn drop_answers(&mut self, end: LinkEnd) {
        let mut through = true;
        for at in 0..self.link(end).requests.len() {
            through &= self.random.chance(600);
            let request = &mut self.link_mut(end).requests[at];
            if !through && matches!(request.progress, Progress::Answered(_)) {
                request.progress = Progress::Departed;
            }
        }
    }

    pub(super) fn lost(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        match link.state {
            LinkState::Closed => {}
            LinkState::Coming => self.forget(end),
            LinkState::Connecting if link.accepted => {
                self.after(self.options.control_ns, WorldEvent::Lost(end));
            }
            LinkState::Connecting
            | LinkState::Requested
            | LinkState::Ready
            | LinkState::Failed
            | LinkState::Lost => {
                link.losing = true;
                self.lose_if_drained(end);
            }
        }
    }

    /// Reports a loss to the program once everything that arrived before has been delivered.
    pub(super) fn lose_if_drained(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        if !link.losing || !link.inbound.is_empty() {
            return;
        }
        link.losing = false;
        if link.state != LinkState::Failed {
            link.state = LinkState::Lost;
        }
        if let Some(request) = link.requests.front_mut() {
            request.progress = Progress::Done(CompletionStatus::PeerLost);
            self.complete(end);
        }
        self.record("lost", end, 0, 0);
        let known = self.link(end).ended || self.options.silence_ns.is_none();
        let loss = if known { Loss::Ended } else { Loss::Unreachable };
        let link = end.link;
        self.port_mut(end.port).notify(LinkEvent::Lost { link, loss });
    }

    pub(super) fn freeze(&mut self, node: NodeKey, adapter: bool) {
        self.record_node("pause", node, u64::from(adapter));
        let node = &mut self.nodes[node.0];
        node.paused = true;
        node.frozen |= adapter;
    }

    /// Resumes the node and performs its held events in their order.
    pub(super) fn resume(&mut self, node: NodeKey) {
        self.record_node("resume", node, 0);
        let state = &mut self.nodes[node.0];
        state.paused = false;
        state.frozen = false;
        let held = std::mem::take(&mut state.held);
        for (count, event) in held.into_iter().enumerate() {
            self.at(self.now_ns + count as u64, event);
        }
    }
}

/// Whether a message takes effect even if its requester is gone: it was answered, or has consumed a receive.
fn must_happen(inbound: &super::request::Inbound) -> bool {
    inbound.answered || inbound.receive.is_some()
}

fn event_link(event: &LinkEvent) -> LinkId {
    event.link()
}
