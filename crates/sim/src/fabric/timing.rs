//! The path of a message through the resources of a [`HardwareProfile`], packet by packet.

use super::delays::EngineDelay;
use super::hardware::{AdapterPort, DepartingMessage, HardwareProfile, Lane, Packet, Then};
use super::program::ProgramCounts;
use super::request::{AdapterMessage, Inbound, LocalRange, MessagePayload};
use super::world::{LinkEnd, PortKey, World, WorldEvent};
use farside_base::{CompletionKind, LinkId, RegionKind, Work};
use std::collections::BTreeMap;

impl World {
    /// The port of the adapter that this link uses.
    fn adapter_port(&mut self, end: LinkEnd) -> &mut AdapterPort {
        let port = self.port(end.port);
        let (node, number) = (port.node, usize::from(port.placement.port));
        &mut self.adapters.of(node).ports[number]
    }

    /// Builds the requests of a list and rings one doorbell for each of its links. Returns per link when the adapter
    /// has its requests.
    pub(super) fn ring(&mut self, port: PortKey, work: &[Work<'_>]) -> BTreeMap<LinkId, u64> {
        let requests = work.len() as u64;
        self.charge(&ProgramCounts { requests, ..ProgramCounts::default() });
        let mut links: BTreeMap<LinkId, u64> = BTreeMap::new();
        for one in work {
            *links.entry(one.link).or_default() += 1;
        }
        let rung = links.into_iter().map(|(link, requests)| {
            let doorbell = ProgramCounts { doorbells: 1, ..ProgramCounts::default() };
            self.count_and_charge(port, &doorbell);
            (link, self.rung_ns(LinkEnd { port, link }, requests))
        });
        rung.collect()
    }

    /// Rings the doorbell for `requests` requests of one link. Returns when the adapter has them.
    fn rung_ns(&mut self, end: LinkEnd, requests: u64) -> u64 {
        let at_ns = self.program_ns();
        let Some(hardware) = self.options.hardware else {
            return at_ns;
        };
        let node = self.port(end.port).node;
        let busy_ps = hardware.doorbell_busy_ns * 1_000;
        let (start_ns, _) = self.adapters.of(node).doorbells.take(at_ns, busy_ps);
        // A single request is inlined in its doorbell; several are fetched by the adapter.
        let fetch_ns = if requests > 1 { hardware.pcie_read_ns } else { 0 };
        start_ns + hardware.doorbell_ns + self.thread_crossing_ns(&hardware, end) + fetch_ns
    }

    /// Returns when the send engine may start a request that the adapter has since `rung_ns`.
    pub(super) fn departure_ns(&self, end: LinkEnd, rung_ns: u64) -> u64 {
        self.now_ns.max(rung_ns).max(self.link(end).lanes.send.free_ns())
    }

    /// Schedules the work of the adapter at `from` on a request: fetch its bytes, then send.
    pub(super) fn dispatch(
        &mut self,
        hardware: &HardwareProfile,
        from: LinkEnd,
        message: &AdapterMessage,
    ) {
        let places: &[LocalRange] = match &message.payload {
            MessagePayload::Unsampled(places) => places,
            MessagePayload::Sampled(_) => &[],
        };
        let slices = places.len() as u64;
        let host = places.iter().filter(|place| !place.device);
        let fetched: u64 = host.map(|place| place.bytes as u64).sum();
        let (fetch_ns, link_fetch_ns) =
            if fetched > 0 { (hardware.fetch_ns, hardware.link_fetch_ns) } else { (0, 0) };
        let delay = self.send_delay(hardware, from, places);
        let gather_ns = hardware.gather_ns * slices.saturating_sub(1);
        let now_ns = self.now_ns;
        let link_ps = (hardware.link_send_ns + link_fetch_ns + gather_ns) * 1_000;
        self.link_mut(from).lanes.send.take(now_ns, link_ps);
        let send_ps = (hardware.send_ns + fetch_ns + gather_ns) * 1_000 + delay.busy_ps;
        let (_, started_ns) = self.adapter_port(from).send.take(now_ns, send_ps);
        let mut started_ns = started_ns + delay.latency_ns;
        let by_read = self.by_read(message);
        let (bytes, fetched) = match message.kind {
            CompletionKind::Write | CompletionKind::Send if !by_read => {
                (message.bytes as u64, fetched)
            }
            _ => (0, 0),
        };
        if fetched > 0 && places.iter().any(|place| self.is_across(from, place.region)) {
            started_ns = self.cross(hardware, from, started_ns, fetched);
        }
        let ready_ns = self.read_bus(hardware, from, started_ns, fetched) + hardware.pipeline_ns;
        self.launch(
            from,
            Lane::Requests,
            DepartingMessage::new(message.number, Then::Arrive, bytes, ready_ns),
        );
    }

    /// Returns when the first packet of `bytes` bytes of main memory is at the adapter; at once if `bytes` is 0.
    fn read_bus(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        at_ns: u64,
        bytes: u64,
    ) -> u64 {
        if bytes == 0 {
            return at_ns;
        }
        let ps_per_byte = hardware.pcie_ps_per_byte;
        let node = self.port(end.port).node;
        let bus = &mut self.adapters.of(node).bus_read;
        let (start_ns, _) = bus.take(at_ns, bytes * ps_per_byte);
        let first = bytes.min(u64::from(hardware.packet_bytes_max));
        start_ns + hardware.pcie_read_ns + first * ps_per_byte / 1_000
    }

    /// Queues a message for transmission.
    pub(super) fn launch(&mut self, from: LinkEnd, lane: Lane, flight: DepartingMessage) {
        let to = self.link(from).peer;
        self.count_traffic(to, lane == Lane::Answers, flight.bytes);
        let waiting = self.link_mut(from).lanes.of(lane);
        waiting.push_back(flight);
        if waiting.len() == 1 {
            self.at(flight.ready_ns.max(self.now_ns), WorldEvent::Emit(from, lane));
        }
    }

    /// Sends an answer with `bytes` bytes that are already at the adapter.
    pub(super) fn launch_answer(&mut self, from: LinkEnd, number: u64, then: Then, bytes: u64) {
        let Some(hardware) = self.options.hardware else {
            return;
        };
        let ready_ns = self.now_ns + hardware.pipeline_ns;
        self.launch(from, Lane::Answers, DepartingMessage::new(number, then, bytes, ready_ns));
    }

    /// Sends the bytes that the target of a WRITE by READ has requested.
    pub(super) fn launch_fetched(&mut self, from: LinkEnd, number: u64, bytes: u64) {
        let Some(hardware) = self.options.hardware else {
            return;
        };
        let now_ns = self.now_ns;
        let ready_ns = self.read_bus(&hardware, from, now_ns, bytes) + hardware.pipeline_ns;
        self.launch(
            from,
            Lane::Answers,
            DepartingMessage::new(number, Then::Fetched, bytes, ready_ns),
        );
    }

    /// Sends the next packet of a lane. Lanes alternate, since each has at most one packet queued.
    pub(super) fn emit(&mut self, from: LinkEnd, lane: Lane) {
        let Some(hardware) = self.options.hardware else {
            return;
        };
        let waiting = self.link_mut(from).lanes.of(lane);
        let Some(flight) = waiting.front_mut() else {
            return;
        };
        let number = flight.number;
        let packet = flight.packet(hardware.packet_bytes_max);
        if packet.last {
            waiting.pop_front();
        }
        let next_ns = waiting.front().map(|flight| flight.ready_ns);
        let now_ns = self.now_ns;
        let to = self.link(from).peer;
        let bytes = bytes_around(&hardware, &packet);
        let (start_ns, sent_ns, latency_ns) = match self.take_cable(to, bytes) {
            Some((start_ns, sent_ns, path)) => (start_ns, sent_ns, path.latency_ns),
            None => {
                let busy_ps = bytes * hardware.wire_ps_per_byte;
                let (start_ns, sent_ns) = self.adapter_port(from).wire_out.take(now_ns, busy_ps);
                (start_ns, sent_ns, hardware.path_ns)
            }
        };
        self.at(start_ns + latency_ns, WorldEvent::Hop(to, number, packet));
        if let Some(next_ns) = next_ns {
            self.at(sent_ns.max(next_ns), WorldEvent::Emit(from, lane));
        }
    }

    /// Moves a packet over the last wire to the adapter; the last one of a message triggers the message's effect.
    pub(super) fn hop(&mut self, to: LinkEnd, number: u64, packet: Packet) {
        let Some(hardware) = self.options.hardware else {
            return;
        };
        let target = self.target_of(to, number, packet.then);
        let now_ns = self.now_ns;
        let bytes = bytes_around(&hardware, &packet);
        let cable_ns = self.cable_ns(to, bytes);
        let delay = match packet.then {
            _ if !packet.last => EngineDelay::default(),
            Then::Arrive => self.receive_delay(&hardware, to, number),
            Then::Response => self.answer_delay(&hardware, to, number),
            Then::Fetch | Then::Fetched => EngineDelay::default(),
        };
        let port = self.adapter_port(to);
        let arrived_ns = match cable_ns {
            Some(cable_ns) => now_ns + cable_ns,
            None => port.wire_in.take(now_ns, bytes * hardware.wire_ps_per_byte).1,
        };
        let mut busy_ns = hardware.packet_ns;
        if packet.first && packet.then == Then::Arrive {
            busy_ns = hardware.receive_ns;
            if target.receives {
                busy_ns += hardware.receive_request_ns + hardware.completion_ns;
            }
        }
        let (_, seen_ns) = port.receive.take(arrived_ns, busy_ns * 1_000 + delay.busy_ps);
        let seen_ns = seen_ns + delay.latency_ns;
        let written_ns = self.write_bus(&hardware, to, number, &packet, seen_ns);
        if !packet.last {
            return;
        }
        let seen_ns = seen_ns + hardware.pipeline_ns;
        let mut access_ns = if target.device { hardware.device_ns } else { hardware.pcie_write_ns };
        if target.across {
            access_ns += hardware.sockets.crossing_ns;
        }
        let landed_ns = written_ns + hardware.pipeline_ns + access_ns;
        let thread_ns = self.thread_crossing_ns(&hardware, to);
        let entry_ns = if target.receives { hardware.completion_ns + thread_ns } else { 0 };
        let request = matches!(packet.then, Then::Arrive | Then::Fetched);
        if let Some(inbound) = self.link_mut(to).inbound(number).filter(|_| request) {
            inbound.landed_ns = landed_ns + entry_ns;
        }
        match packet.then {
            Then::Arrive => {
                let link = self.link_mut(to);
                let at_ns = seen_ns.max(link.arrival_ns);
                link.arrival_ns = at_ns;
                self.at(at_ns, WorldEvent::Arrive(to, number));
            }
            Then::Response => {
                let at_ns = landed_ns + hardware.completion_ns + thread_ns;
                self.at(at_ns, WorldEvent::Response(to, number));
            }
            Then::Fetch => self.at(seen_ns, WorldEvent::Fetch(to, number)),
            Then::Fetched => self.at(seen_ns, WorldEvent::Fetched(to, number)),
        }
    }

    /// Writes the bytes of a packet to memory. Returns when the bus and the memory have taken them.
    fn write_bus(
        &mut self,
        hardware: &HardwareProfile,
        to: LinkEnd,
        number: u64,
        packet: &Packet,
        at_ns: u64,
    ) -> u64 {
        let request = matches!(packet.then, Then::Arrive | Then::Fetched);
        let device = request && self.at_device(to, number);
        let bytes = if device { 0 } else { u64::from(packet.bytes) };
        let bus_ps = bytes * hardware.pcie_ps_per_byte;
        let node = self.port(to.port).node;
        let (bus_ns, _) = self.adapters.of(node).bus_write.take(at_ns, bus_ps);
        let written_ns = bus_ns + bus_ps / 1_000;
        if !request {
            return written_ns;
        }
        // Posted writes keep their order.
        let at_ns = written_ns.max(self.adapters.of(node).posted.last_ns());
        let Some(taken_ns) = self.store_arriving(to, number, bytes, at_ns) else {
            return written_ns;
        };
        let bytes_max = hardware.nvm.map_or(0, |nvm| u64::from(nvm.posted_bytes));
        let free_ns = self.adapters.of(node).posted.add(taken_ns, bytes, bytes_max);
        self.adapter_port(to).receive.hold_ps(free_ns * 1_000);
        taken_ns
    }

    /// Returns the delays of a message at its target.
    fn target_of(&mut self, to: LinkEnd, number: u64, then: Then) -> TargetDelay {
        let mut target = TargetDelay { receives: false, device: false, across: false };
        if !matches!(then, Then::Arrive | Then::Fetched) {
            return target;
        }
        let Some(inbound) = self.link_mut(to).inbound(number) else {
            return target;
        };
        let message = &inbound.message;
        target.receives = message.kind == CompletionKind::Send || message.immediate.is_some();
        let region = message.at.map(|(token, _)| token.region);
        target.across = region.is_some_and(|region| self.is_across(to, region));
        target.device = self.at_device(to, number);
        target
    }

    /// Whether the target memory of a message is at the adapter.
    fn at_device(&self, end: LinkEnd, number: u64) -> bool {
        let mut all = self.link(end).inbound.iter();
        let inbound = all.find(|inbound| inbound.message.number == number);
        let Some((token, _)) = inbound.and_then(|inbound| inbound.message.at) else {
            return false;
        };
        let region = self.node(end).regions.get(&token.region);
        region.is_some_and(|region| region.kind == RegionKind::Device)
    }

    /// Returns when a message at the adapter has read or written memory.
    pub(super) fn placed_ns(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        number: u64,
    ) -> u64 {
        let device = self.at_device(end, number);
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return self.now_ns;
        };
        let Inbound { arrived_ns, landed_ns, .. } = *inbound;
        let bytes = inbound.message.bytes as u64;
        let (kind, at) = (inbound.message.kind, inbound.message.at);
        let across = at.is_some_and(|(token, _)| self.is_across(end, token.region));
        let arrived_ns = match kind {
            CompletionKind::Read => self.read_persistent(end, at, bytes, arrived_ns),
            _ => arrived_ns,
        };
        match kind {
            CompletionKind::Atomic => {
                let (busy_ns, access_ns) = if device {
                    (hardware.atomic_device_ns, hardware.device_ns)
                } else {
                    (hardware.atomic_host_ns, hardware.pcie_read_ns)
                };
                let crossing_ns = if across { 2 * hardware.sockets.crossing_ns } else { 0 };
                let arrived_ns = self.change_persistent(end, at, arrived_ns);
                let unit = &mut self.adapter_port(end).atomics;
                let (start_ns, _) = unit.take(arrived_ns, busy_ns * 1_000);
                start_ns + busy_ns.max(access_ns + crossing_ns)
            }
            CompletionKind::AtomicWrite => {
                self.write_persistent(end, at, arrived_ns.max(landed_ns))
            }
            CompletionKind::Read if device => arrived_ns + hardware.device_ns,
            // The adapter reads across the bus until all it has posted is there.
            CompletionKind::Flush => {
                self.flush_persistent(end, number, arrived_ns + hardware.pcie_read_ns)
            }
            CompletionKind::Read if across => {
                let at_ns = self.cross(hardware, end, arrived_ns, bytes);
                self.read_bus(hardware, end, at_ns, bytes)
            }
            CompletionKind::Read => self.read_bus(hardware, end, arrived_ns, bytes),
            _ => landed_ns,
        }
    }
}

/// Delays of a message at its target.
#[derive(Clone, Copy, Debug)]
struct TargetDelay {
    /// Whether it consumes a receive.
    receives: bool,
    /// Whether its memory is at the adapter.
    device: bool,
    /// Whether its memory is on the other socket.
    across: bool,
}

/// Returns the size of a packet on the wire.
fn bytes_around(hardware: &HardwareProfile, packet: &Packet) -> u64 {
    u64::from(packet.bytes) + u64::from(hardware.packet_header_bytes)
}
