//! The requester's adapter: accepts and starts requests, and delivers answers.

use super::hardware::Then;
use super::request::{
    AdapterMessage, Inbound, LocalRange, Pieces, Progress, RemotePlace, RequestRecord, Response,
};
use super::world::{LinkEnd, LinkState, PortKey, World, WorldEvent};
use farside_base::{
    BackPressure, Completion, CompletionKind, CompletionStatus, LocalSlice, RegionKind, Work,
};
use farside_fabric::{Parts, Stop};

impl World {
    /// Accepts a request that the adapter has at `rung_ns`.
    pub(super) fn post(
        &mut self,
        port: PortKey,
        work: &Work<'_>,
        rung_ns: u64,
    ) -> Result<(), Stop> {
        let end = LinkEnd { port, link: work.link };
        let parts = Parts::of(&work.operation);
        let (places, at) = self.check(end, &parts)?;
        let reserved = self.reserve_receive(end, &parts)?;
        let link = self.link_mut(end);
        let number = link.requests_made;
        link.requests_made += 1;
        let mut message = AdapterMessage::new(number, work, &parts, &places, at);
        message.reserved = reserved;
        let fetches = message.fetches();
        link.requests.push_back(RequestRecord {
            number,
            id: work.id,
            kind: parts.kind,
            signalled: work.flags.signalled,
            fence: work.flags.fence,
            rung_ns,
            bytes: parts.bytes() as u32,
            into: if fetches { places } else { Vec::new() },
            progress: Progress::Queued(message),
        });
        self.record("post", end, number, work.id.0);
        match self.link(end).state {
            LinkState::Ready => self.schedule_departure(end),
            LinkState::Lost => self.end_request(end, number, CompletionStatus::PeerLost),
            LinkState::Failed
            | LinkState::Closed
            | LinkState::Connecting
            | LinkState::Coming
            | LinkState::Requested => self.end_request(end, number, CompletionStatus::Flushed),
        }
        Ok(())
    }

    /// Performs all checks that do not need the peer. A refusal has no effect.
    fn check(
        &self,
        end: LinkEnd,
        parts: &Parts<'_>,
    ) -> Result<(Vec<LocalRange>, Option<RemotePlace>), Stop> {
        let capabilities = &self.options.capabilities;
        let links = &self.port(end.port).links;
        let link = links.get(end.link.0 as usize);
        let link = link.ok_or(Stop::Invalid("link"))?;
        if matches!(link.state, LinkState::Connecting | LinkState::Coming | LinkState::Requested) {
            return Err(Stop::Invalid("link"));
        }
        parts.check(capabilities)?;
        let places = parts.local.iter().map(|slice| self.place(end, slice));
        let places = places.collect::<Result<Vec<_>, _>>()?;
        let at = match parts.remote {
            None => None,
            Some(remote) => {
                let token = link.imports.get(&remote.region);
                let token = token.ok_or(Stop::Invalid("remote region"))?;
                Some((*token, remote.offset))
            }
        };
        if link.requests.len() + link.unpolled >= capabilities.outstanding_max as usize {
            return Err(Stop::QueueFull);
        }
        Ok((places, at))
    }

    /// The memory of a local slice.
    pub(super) fn place(&self, end: LinkEnd, slice: &LocalSlice) -> Result<LocalRange, Stop> {
        let region = self.node(end).regions.get(&slice.region);
        let region = region.ok_or(Stop::Invalid("local region"))?;
        let (arena, device) = (&region.arena, region.kind == RegionKind::Device);
        let inside = arena.at(slice.offset, slice.bytes as usize);
        inside.map_err(|_| Stop::Invalid("local bounds"))?;
        let (offset, bytes) = (slice.offset, slice.bytes as usize);
        Ok(LocalRange { region: slice.region, arena: arena.clone(), offset, bytes, device })
    }

    /// Reserves a receive of the peer, if senders must (`BackPressure::AtPost`).
    fn reserve_receive(&mut self, end: LinkEnd, parts: &Parts<'_>) -> Result<bool, Stop> {
        let capabilities = &self.options.capabilities;
        if capabilities.receiver_not_ready != BackPressure::AtPost
            || !parts.takes_receive()
            || self.link(end).state != LinkState::Ready
        {
            return Ok(false);
        }
        let peer = self.link(end).peer;
        let usable = matches!(self.link(peer).state, LinkState::Ready | LinkState::Connecting);
        let Some(queue) = self.link(peer).queue.filter(|_| usable) else {
            // The peer is gone or closed: the request is accepted and completes with an error.
            return Ok(false);
        };
        let queue = &mut self.port_mut(peer.port).queues[queue.0 as usize];
        if queue.credits == 0 {
            self.marks.receives_missing += 1;
            return Err(Stop::ReceiverNotReady);
        }
        queue.credits -= 1;
        Ok(true)
    }

    /// Ends a request that was never sent.
    fn end_request(&mut self, end: LinkEnd, number: u64, status: CompletionStatus) {
        if let Some(request) = self.link_mut(end).request(number) {
            request.progress = Progress::Done(status);
        }
        self.complete(end);
    }

    /// Schedules the start of the next request, unless a start is scheduled or the request has to wait.
    pub(super) fn schedule_departure(&mut self, end: LinkEnd) {
        let link = self.link(end);
        if link.departing || link.state != LinkState::Ready {
            return;
        }
        let hardware = self.options.hardware;
        let fetches_max = hardware.map_or(u32::MAX, |hardware| hardware.fetches_max);
        let mut fetching = 0;
        for request in &link.requests {
            if matches!(request.progress, Progress::Queued(_)) {
                let fenced = request.fence && fetching > 0;
                let too_many = request.fetching() && fetching >= fetches_max;
                if !fenced && !too_many {
                    let rung_ns = request.rung_ns;
                    self.link_mut(end).departing = true;
                    match hardware {
                        Some(_) => {
                            self.at(self.departure_ns(end, rung_ns), WorldEvent::Depart(end))
                        }
                        None => self.after(self.options.issue_ns, WorldEvent::Depart(end)),
                    }
                }
                return;
            }
            fetching += u32::from(request.fetching());
        }
    }

    pub(super) fn depart(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        link.departing = false;
        if link.state != LinkState::Ready {
            return;
        }
        let peer = link.peer;
        let queued = |request: &&mut RequestRecord| matches!(request.progress, Progress::Queued(_));
        let Some(request) = link.requests.iter_mut().find(queued) else {
            return;
        };
        let number = request.number;
        let progress = std::mem::replace(&mut request.progress, Progress::Departed);
        if let Progress::Queued(message) = progress {
            self.record("depart", end, number, message.bytes as u64);
            self.transmit(peer, message);
        }
        self.schedule_departure(end);
    }

    /// Sends a message. Its bytes are read between now and its arrival.
    fn transmit(&mut self, to: LinkEnd, mut message: AdapterMessage) {
        if self.link(to).severed || self.link(to).state == LinkState::Closed || !self.node(to).alive
        {
            return;
        }
        let number = message.number;
        if let Some(hardware) = self.options.hardware {
            self.dispatch(&hardware, self.link(to).peer, &message);
            if !self.by_read(&message) {
                message.payload.sample();
            }
            self.link_mut(to).inbound.push_back(Inbound::new(message));
            return;
        }
        if !self.by_read(&message) && self.random.chance(500) {
            message.payload.sample();
        }
        let mut at_ns = self.now_ns + self.delay(self.options.flight_ns);
        let link = self.link(to);
        if self.options.capabilities.message_order {
            at_ns = at_ns.max(link.arrival_ns + 1);
        }
        let link = self.link_mut(to);
        link.arrival_ns = link.arrival_ns.max(at_ns);
        link.inbound.push_back(Inbound::new(message));
        self.at(at_ns, WorldEvent::Arrive(to, number));
    }

    /// Whether the target of this message fetches its bytes (`SimOptions::write_by_read`).
    pub(super) fn by_read(&self, message: &AdapterMessage) -> bool {
        self.options.write_by_read && message.kind == CompletionKind::Write
    }

    /// Handles the read of the bytes of a WRITE by READ by its target.
    pub(super) fn fetch(&mut self, end: LinkEnd, number: u64) {
        let peer = self.link(end).peer;
        let Some(inbound) = self.link_mut(peer).inbound(number) else {
            return;
        };
        inbound.message.payload.sample();
        inbound.read_back = true;
        let bytes = inbound.message.bytes as u64;
        self.marks.writes_read_back += 1;
        self.record("fetch", end, number, bytes);
        match self.options.hardware {
            Some(_) => self.launch_fetched(end, number, bytes),
            None => self.after(self.options.flight_ns, WorldEvent::Fetched(peer, number)),
        }
    }

    /// Sends the answer of the responder at `from` to request `number` of its peer.
    pub(super) fn answer(&mut self, from: LinkEnd, number: u64, answer: Response) {
        let end = self.link(from).peer;
        if self.link(from).severed {
            return;
        }
        let Some(request) = self.link_mut(end).request(number) else {
            return;
        };
        if matches!(request.progress, Progress::Departed) {
            let bytes = answer.fetched.len() as u64;
            request.progress = Progress::Answered(answer);
            match self.options.hardware {
                Some(_) => self.launch_answer(from, number, Then::Response, bytes),
                None => self.after(self.options.response_ns, WorldEvent::Response(end, number)),
            }
        }
    }

    pub(super) fn response(&mut self, end: LinkEnd, number: u64) {
        let Some(request) = self.link_mut(end).request(number) else {
            return;
        };
        let Progress::Answered(answer) = &mut request.progress else {
            return;
        };
        let status = answer.status;
        let fetched = std::mem::take(&mut answer.fetched);
        let offset = request.into.first().map_or(0, |place| place.offset);
        self.record("response", end, number, status as u64);
        let pieces_max = self.pieces_max();
        let pieces = Pieces::cut(offset, fetched.len(), pieces_max, &mut self.random);
        for piece in 0..pieces.all.len() {
            // With a hardware profile the response time includes the bus.
            match self.options.hardware {
                Some(_) => self.at(self.now_ns, WorldEvent::Land(end, number, piece)),
                None => self.after(self.options.place_ns, WorldEvent::Land(end, number, piece)),
            }
        }
        let empty = pieces.left == 0;
        if let Some(request) = self.link_mut(end).request(number) {
            request.progress =
                if empty { Progress::Done(status) } else { Progress::Landing(fetched, pieces) };
        }
        if empty {
            self.complete(end);
        }
    }

    pub(super) fn land(&mut self, end: LinkEnd, number: u64, piece: usize) {
        let Some(request) = self.link_mut(end).request(number) else {
            return;
        };
        let Progress::Landing(fetched, pieces) = &mut request.progress else {
            return;
        };
        let Some(piece) = pieces.all.get(piece).copied() else {
            return;
        };
        let bytes = fetched[piece.start..piece.start + piece.bytes].to_vec();
        pieces.left -= 1;
        scatter(&request.into, piece.start, &bytes);
        let last = pieces.left == 0;
        if last {
            request.progress = Progress::Done(CompletionStatus::Success);
        }
        self.transcript.bytes(&bytes);
        self.record("land", end, number, piece.bytes as u64);
        if last {
            self.complete(end);
        }
    }

    /// Completes the requests at the front that have ended; the first failure ends the link.
    pub(super) fn complete(&mut self, end: LinkEnd) {
        loop {
            let link = self.link_mut(end);
            let Some(status) = link.requests.front().and_then(RequestRecord::done) else {
                break;
            };
            if let Some(request) = link.requests.pop_front() {
                self.report(end, &request, status);
            }
            if status != CompletionStatus::Success {
                self.fail_link(end);
                return;
            }
        }
        self.schedule_departure(end);
    }

    fn report(&mut self, end: LinkEnd, request: &RequestRecord, status: CompletionStatus) {
        self.record("complete", end, request.number, status as u64);
        let success = status == CompletionStatus::Success;
        if success && !request.signalled {
            return;
        }
        if success && request.kind == CompletionKind::Write && self.unplaced(end, request.number) {
            self.marks.completed_before_placed += 1;
        }
        let completion = Completion {
            id: request.id,
            link: end.link,
            bytes: if success { request.bytes } else { 0 },
            immediate: None,
            kind: request.kind,
            status,
        };
        self.port_mut(end.port).finish(completion, None);
    }

    fn unplaced(&self, end: LinkEnd, number: u64) -> bool {
        let peer = self.link(end).peer;
        let mut inbound = self.link(peer).inbound.iter();
        inbound.any(|inbound| inbound.message.number == number)
    }

    /// Flushes the remaining requests and disables the link.
    pub(super) fn fail_link(&mut self, end: LinkEnd) {
        let link = self.link_mut(end);
        if link.state != LinkState::Closed {
            link.state = LinkState::Failed;
        }
        while let Some(request) = self.link_mut(end).requests.pop_front() {
            if let Progress::Queued(message) = &request.progress {
                self.release_receive(self.link(end).peer, message.reserved);
            }
            self.report(end, &request, CompletionStatus::Flushed);
        }
    }
}

/// Writes fetched bytes, from byte `start` on, into the local ranges.
fn scatter(places: &[LocalRange], start: usize, bytes: &[u8]) {
    let mut skip = start;
    let mut bytes = bytes;
    for place in places {
        if skip >= place.bytes {
            skip -= place.bytes;
            continue;
        }
        let count = bytes.len().min(place.bytes - skip);
        let (now, later) = bytes.split_at(count);
        // The bounds were checked at posting and an arena never shrinks.
        let written = place.arena.write(place.offset + skip as u64, now);
        debug_assert!(written.is_ok());
        bytes = later;
        skip = 0;
    }
}
