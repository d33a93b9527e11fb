//! The responder's adapter: arrived messages take effect piece by piece, within the declared order.

use super::hardware::Then;
use super::request::{Inbound, Phase, Pieces, Response, TransferPiece};
use super::world::{LinkEnd, LinkState, PortKey, World, WorldEvent};
use farside_base::{
    Access, AtomicScope, BackPressure, Completion, CompletionKind, CompletionStatus, Receive,
    ReceiveQueueId, RegionId, WordScope,
};
use farside_fabric::{Arena, OutOfBounds, Stop};
use std::sync::atomic::Ordering;

impl World {
    /// Handles the arrival of a message of the peer: on an ordered link, the oldest one in flight.
    pub(super) fn arrive(&mut self, end: LinkEnd, number: u64) {
        let ordered = self.options.capabilities.message_order;
        let (now_ns, by_read) = (self.now_ns, self.options.write_by_read);
        let state = self.link(end).state;
        if matches!(state, LinkState::Connecting) {
            // The peer has accepted and sent at once; its acceptance is still in flight.
            self.after(self.options.control_ns, WorldEvent::Arrive(end, number));
            return;
        }
        let mut in_flight = self.link_mut(end).inbound.iter_mut().filter(|inbound| {
            inbound.phase == Phase::InFlight && (ordered || inbound.message.number == number)
        });
        let Some(inbound) = in_flight.next() else {
            return;
        };
        inbound.phase = Phase::Arrived;
        inbound.arrived_ns = now_ns;
        if !(by_read && inbound.message.kind == CompletionKind::Write) {
            inbound.message.payload.sample();
        }
        let number = inbound.message.number;
        let bytes = inbound.message.bytes as u64;
        self.record("arrive", end, number, bytes);
        if number >= self.link(end).broken_from {
            self.discard(end, number);
        } else if matches!(state, LinkState::Failed | LinkState::Lost) {
            self.refuse_message(end, number, CompletionStatus::PeerLost);
        } else if let Err(status) = self.target(end, number) {
            self.refuse_message(end, number, status);
        } else {
            self.acknowledge_early(end, number);
            self.admit(end);
        }
    }

    /// Returns the target memory of a message, if the owner's record permits it. Of the token, only number and key
    /// are used.
    fn target(&self, end: LinkEnd, number: u64) -> Result<Option<(Arena, u64)>, CompletionStatus> {
        let mut all = self.link(end).inbound.iter();
        let refused = CompletionStatus::RemoteAccess;
        let inbound = all.find(|inbound| inbound.message.number == number);
        let message = &inbound.ok_or(refused)?.message;
        let Some((token, offset)) = message.at else {
            return Ok(None);
        };
        let region = self.node(end).regions.get(&token.region);
        let region = region.ok_or(refused)?;
        if region.key != token.key || !region.access.allows(message.access) {
            return Err(refused);
        }
        region.arena.at(offset, message.reach).map_err(|_| refused)?;
        let is_word = matches!(message.kind, CompletionKind::Atomic | CompletionKind::AtomicWrite);
        if is_word && !offset.is_multiple_of(8) {
            return Err(CompletionStatus::RemoteAlignment);
        }
        Ok(Some((region.arena.clone(), offset)))
    }

    /// Starts every message that is permitted to start.
    fn admit(&mut self, end: LinkEnd) {
        while let Some(number) = self.next_startable(end) {
            self.start(end, number);
        }
    }

    /// Returns the first arrived message that does not have to wait for an earlier one.
    fn next_startable(&mut self, end: LinkEnd) -> Option<u64> {
        let ordered = self.options.capabilities.message_order;
        let strict = self.options.reads_in_order;
        let (mut writes_before, mut fetches_before, mut in_flight_before) = (false, false, false);
        for inbound in &self.link(end).inbound {
            // FLUSH and ATOMIC WRITE come after everything before them (IBTA annex A19).
            let kind = inbound.message.kind;
            let last = matches!(kind, CompletionKind::Flush | CompletionKind::AtomicWrite);
            let blocked = (ordered && (writes_before || (strict && fetches_before)))
                || (last && (writes_before || fetches_before || in_flight_before));
            if inbound.phase == Phase::Arrived && !blocked {
                let number = inbound.message.number;
                self.marks.fetches_overtaken += u64::from(fetches_before);
                let reordered = !ordered && (writes_before || in_flight_before);
                self.marks.messages_reordered += u64::from(reordered);
                return Some(number);
            }
            if inbound.message.fetches() {
                fetches_before = true;
            } else {
                writes_before = true;
            }
            in_flight_before |= inbound.phase == Phase::InFlight;
        }
        None
    }

    fn start(&mut self, end: LinkEnd, number: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        inbound.phase = Phase::Running;
        let (kind, bytes) = (inbound.message.kind, inbound.message.bytes);
        let offset = inbound.message.at.map_or(0, |(_, offset)| offset);
        self.record("start", end, number, bytes as u64);
        match kind {
            CompletionKind::Atomic | CompletionKind::AtomicWrite | CompletionKind::Flush => {
                self.place_later(end, number, 0);
            }
            CompletionKind::Send => self.take_receive(end, number),
            CompletionKind::Read => {
                self.crash_read(end);
                if let Some(inbound) = self.link_mut(end).inbound(number) {
                    inbound.fetched = vec![0; bytes];
                }
                self.run_pieces(end, number, offset);
            }
            CompletionKind::Write if self.options.write_by_read => self.read_back(end, number),
            CompletionKind::Write => {
                self.run_pieces(end, number, offset);
            }
            _ => self.discard(end, number),
        }
    }

    /// Schedules a piece of a running message: after a random delay, or as the hardware profile computes.
    fn place_later(&mut self, end: LinkEnd, number: u64, piece: usize) {
        let event = WorldEvent::Piece(end, number, piece);
        match self.options.hardware {
            Some(hardware) => {
                let at_ns = self.placed_ns(&hardware, end, number).max(self.now_ns);
                self.at(at_ns, event);
            }
            None => self.after(self.options.place_ns, event),
        }
    }

    /// Requests the bytes of a WRITE by READ from the requester's adapter.
    fn read_back(&mut self, end: LinkEnd, number: u64) {
        match self.options.hardware {
            Some(_) => self.launch_answer(end, number, Then::Fetch, 0),
            None => {
                let peer = self.link(end).peer;
                self.after(self.options.response_ns, WorldEvent::Fetch(peer, number));
            }
        }
    }

    /// Handles the arrival of the bytes of a WRITE by READ.
    pub(super) fn fetched(&mut self, end: LinkEnd, number: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let offset = inbound.message.at.map_or(0, |(_, offset)| offset);
        self.record("fetched", end, number, 0);
        self.run_pieces(end, number, offset);
    }

    /// Answers a WRITE on arrival, before any of it is in memory, if that is permitted: not with
    /// `completion_means_placed`, and not after a message that may still fail.
    fn acknowledge_early(&mut self, end: LinkEnd, number: u64) {
        if self.options.capabilities.completion_means_placed
            || self.options.write_by_read
            || (self.options.hardware.is_none() && self.random.chance(300))
        {
            return;
        }
        for inbound in &self.link(end).inbound {
            let message = &inbound.message;
            if message.number == number {
                if message.kind == CompletionKind::Write && message.immediate.is_none() {
                    self.acknowledge(end, number);
                }
                return;
            }
            if !message.fetches() && !inbound.answered {
                return;
            }
        }
    }

    /// Whether the target's memory has relaxed ordering.
    fn is_relaxed(&self, end: LinkEnd, number: u64) -> bool {
        let mut all = self.link(end).inbound.iter();
        let inbound = all.find(|inbound| inbound.message.number == number);
        let place = inbound.and_then(|inbound| inbound.message.at);
        let region = place.and_then(|(token, _)| self.node(end).regions.get(&token.region));
        region.is_some_and(|region| region.access.allows(Access::RELAXED_ORDERING))
    }

    /// Whether the pieces of a transfer are performed in order.
    fn is_in_order(&self, end: LinkEnd, number: u64) -> bool {
        let mut all = self.link(end).inbound.iter();
        let inbound = all.find(|inbound| inbound.message.number == number);
        self.options.capabilities.byte_order
            && inbound.is_some_and(|inbound| inbound.message.kind != CompletionKind::Read)
            && !self.is_relaxed(end, number)
    }

    /// Cuts a transfer and schedules its pieces: at random, or in order.
    fn run_pieces(&mut self, end: LinkEnd, number: u64, offset: u64) {
        let pieces_max = self.pieces_max();
        let (relaxed, in_order) = (self.is_relaxed(end, number), self.is_in_order(end, number));
        let Some(inbound) = self.ports[end.port.0].links[end.link.0 as usize].inbound(number)
        else {
            return;
        };
        let (kind, bytes) = (inbound.message.kind, inbound.message.bytes);
        let aligned = offset.is_multiple_of(8) && bytes.is_multiple_of(8);
        let needs = match kind {
            CompletionKind::Write if !aligned => WordScope::Any,
            _ => WordScope::Aligned,
        };
        let tears = relaxed || self.options.capabilities.words < needs;
        // With tearing, lines start at a random offset, so cuts split words.
        let lines_from = if tears { self.random.between(0, 63) } else { offset };
        inbound.pieces = Pieces::cut(lines_from, bytes, pieces_max, &mut self.random);
        let count = inbound.pieces.left;
        let first = if in_order { count.min(1) } else { count };
        for piece in 0..first {
            self.place_later(end, number, piece);
        }
        if count == 0 {
            self.moved(end, number);
        }
    }

    pub(super) fn piece(&mut self, end: LinkEnd, number: u64, index: usize) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let kind = inbound.message.kind;
        let (torn, begun) = (inbound.torn, inbound.pieces.left < inbound.pieces.all.len());
        if torn && self.random.chance(400) {
            self.marks.writes_torn_by_death += u64::from(begun);
            return self.discard(end, number);
        }
        if kind == CompletionKind::Atomic {
            self.atomic_load(end, number);
            return;
        }
        let Some((arena, offset)) = self.running_place(end, number) else {
            self.withdrawn(end, number);
            return;
        };
        if kind == CompletionKind::AtomicWrite {
            self.write_word(end, number, &arena, offset);
            return self.moved(end, number);
        }
        if kind == CompletionKind::Flush {
            self.crash_flush(end, number);
            self.record("flushed", end, number, 0);
            return self.moved(end, number);
        }
        let Some((piece, count)) = self.move_piece(end, number, index, &arena, offset) else {
            return;
        };
        self.record("piece", end, number, piece.start as u64);
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let left = inbound.pieces.left;
        let in_order = self.is_in_order(end, number);
        if left == 0 {
            self.moved(end, number);
        } else if in_order {
            self.place_later(end, number, index + 1);
        } else if index != count - left - 1 {
            self.marks.pieces_reordered += 1;
        }
    }

    /// Returns the memory that a running message reads or writes; `None` if it was deregistered meanwhile.
    fn running_place(&self, end: LinkEnd, number: u64) -> Option<(Arena, u64)> {
        let mut all = self.link(end).inbound.iter();
        let inbound = all.find(|inbound| inbound.message.number == number)?;
        if inbound.message.kind != CompletionKind::Send {
            return self.target(end, number).ok().flatten();
        }
        let (receive, place) = inbound.receive.as_ref()?;
        let place = place.as_ref()?;
        self.node(end).regions.get(&receive.into.region)?;
        Some((place.arena.clone(), place.offset))
    }

    fn move_piece(
        &mut self,
        end: LinkEnd,
        number: u64,
        index: usize,
        arena: &Arena,
        offset: u64,
    ) -> Option<(TransferPiece, usize)> {
        let inbound = self.link_mut(end).inbound(number)?;
        let piece = inbound.pieces.all.get(index).copied()?;
        if inbound.message.kind == CompletionKind::Write {
            let at = inbound.message.at;
            let at = at.map(|(token, offset)| (token, offset + piece.start as u64));
            self.crash_change(end, at, piece.bytes as u64);
        }
        let inbound = self.link_mut(end).inbound(number)?;
        let at = offset + piece.start as u64;
        let range = piece.start..piece.start + piece.bytes;
        let moved = if inbound.message.kind == CompletionKind::Read {
            arena.read(at, &mut inbound.fetched[range.clone()])
        } else {
            write_rising(arena, at, &inbound.message.payload.bytes()[range.clone()])
        };
        debug_assert!(moved.is_ok(), "the bounds were checked");
        inbound.pieces.left -= 1;
        let bytes = if inbound.message.kind == CompletionKind::Read {
            inbound.fetched[range].to_vec()
        } else {
            inbound.message.payload.bytes()[range].to_vec()
        };
        let count = inbound.pieces.all.len();
        self.transcript.bytes(&bytes);
        Some((piece, count))
    }

    /// Handles the end of a transfer: all its bytes have been read or written.
    fn moved(&mut self, end: LinkEnd, number: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        match inbound.message.kind {
            CompletionKind::Read => {
                let fetched = std::mem::take(&mut inbound.fetched);
                let status = CompletionStatus::Success;
                self.answer(end, number, Response { status, fetched });
                self.finish(end, number);
            }
            CompletionKind::Write if inbound.message.immediate.is_some() => {
                self.take_receive(end, number);
            }
            _ => {
                self.acknowledge(end, number);
                self.deliver(end, number, CompletionStatus::Success);
                self.finish(end, number);
            }
        }
    }

    /// Sends a positive answer to a WRITE or SEND, at most once.
    fn acknowledge(&mut self, end: LinkEnd, number: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        if !std::mem::replace(&mut inbound.answered, true) {
            let status = CompletionStatus::Success;
            self.answer(end, number, Response { status, fetched: Vec::new() });
        }
    }

    /// Assigns the next posted receive to a message that needs one, or makes the message wait.
    fn take_receive(&mut self, end: LinkEnd, number: u64) {
        let Some(queue) = self.link(end).queue else {
            return self.refuse_message(end, number, CompletionStatus::PeerLost);
        };
        let Some(receive) = self.port_mut(end.port).queues[queue.0 as usize].posted.pop_front()
        else {
            return self.wait_for_receive(end, number);
        };
        let place = self.place(end, &receive.into).ok();
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        inbound.phase = Phase::Running;
        inbound.message.reserved = false;
        let (kind, bytes) = (inbound.message.kind, inbound.message.bytes);
        inbound.receive = Some((receive, place.clone()));
        self.record("receive", end, number, receive.id.0);
        if kind == CompletionKind::Write {
            self.acknowledge(end, number);
            self.deliver(end, number, CompletionStatus::Success);
            return self.finish(end, number);
        }
        let status = match place {
            _ if bytes > receive.into.bytes as usize => CompletionStatus::LengthExceeded,
            None => CompletionStatus::RemoteAccess,
            Some(_) => CompletionStatus::Success,
        };
        if status != CompletionStatus::Success {
            self.deliver(end, number, status);
            return self.refuse_message(end, number, status);
        }
        if self.options.hardware.is_some() || self.random.chance(500) {
            self.acknowledge(end, number);
        }
        self.run_pieces(end, number, receive.into.offset);
    }

    fn wait_for_receive(&mut self, end: LinkEnd, number: u64) {
        debug_assert_eq!(
            self.options.capabilities.receiver_not_ready,
            BackPressure::Retried,
            "a receive was set aside"
        );
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let first = inbound.phase != Phase::Waiting;
        inbound.phase = Phase::Waiting;
        if !first {
            return;
        }
        if self.link(end).severed {
            return self.drop_from(end, number);
        }
        self.marks.receives_missing += 1;
        self.record("no-receive", end, number, 0);
        if let Some(patience_ns) = self.options.receiver_not_ready_ns {
            let at_ns = self.now_ns.saturating_add(patience_ns);
            self.at(at_ns, WorldEvent::ReceiverNotReady(end, number));
        }
    }

    pub(super) fn retry_receive(&mut self, end: LinkEnd, number: u64) {
        if self.waits_for_receive(end, number) {
            self.take_receive(end, number);
        }
    }

    pub(super) fn receiver_not_ready(&mut self, end: LinkEnd, number: u64) {
        if self.waits_for_receive(end, number) {
            self.refuse_message(end, number, CompletionStatus::ReceiverNotReady);
        }
    }

    fn waits_for_receive(&mut self, end: LinkEnd, number: u64) -> bool {
        let inbound = self.link_mut(end).inbound(number);
        inbound.is_some_and(|inbound| inbound.phase == Phase::Waiting)
    }

    pub(super) fn post_receive(&mut self, port: PortKey, receive: &Receive) -> Result<(), Stop> {
        let anywhere = LinkEnd { port, link: farside_base::LinkId(0) };
        self.place(anywhere, &receive.into)?;
        let queue = self.port_mut(port).queues.get_mut(receive.queue.0 as usize);
        let queue = queue.filter(|queue| !queue.ended);
        let queue = queue.ok_or(Stop::Invalid("receive queue"))?;
        if queue.posted.len() + queue.unpolled >= queue.depth {
            return Err(Stop::QueueFull);
        }
        queue.posted.push_back(*receive);
        queue.credits += 1;
        self.wake_waiting(port, receive.queue);
        Ok(())
    }

    /// Makes every message that waits at this queue check again, in random order.
    fn wake_waiting(&mut self, port: PortKey, queue: ReceiveQueueId) {
        let mut waiting = Vec::new();
        for (number, link) in self.port(port).links.iter().enumerate() {
            let link_id = farside_base::LinkId(number as u32);
            let here = link.queue == Some(queue);
            for inbound in link.inbound.iter().filter(|one| here && one.phase == Phase::Waiting) {
                waiting.push((LinkEnd { port, link: link_id }, inbound.message.number));
            }
        }
        for (end, number) in waiting {
            let retry = WorldEvent::RetryReceive(end, number);
            match self.options.hardware {
                Some(hardware) => self.at(self.now_ns + hardware.retry_ns, retry),
                None => self.after(self.options.flight_ns, retry),
            }
        }
    }

    /// Releases a receive that was reserved at `end` for a message that never arrives.
    pub(super) fn release_receive(&mut self, end: LinkEnd, reserved: bool) {
        let Some(queue) = self.link(end).queue.filter(|_| reserved) else {
            return;
        };
        self.port_mut(end.port).queues[queue.0 as usize].credits += 1;
    }

    /// Reports the receive that the message consumed, if any.
    fn deliver(&mut self, end: LinkEnd, number: u64, status: CompletionStatus) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let Some((receive, _)) = inbound.receive.take() else {
            return;
        };
        let success = status == CompletionStatus::Success;
        let message = &inbound.message;
        let completion = Completion {
            id: receive.id,
            link: end.link,
            bytes: if success { message.bytes as u32 } else { 0 },
            immediate: message.immediate.filter(|_| success),
            kind: if message.kind == CompletionKind::Send {
                CompletionKind::Receive
            } else {
                CompletionKind::ReceiveImmediate
            },
            status,
        };
        self.record("deliver", end, number, receive.id.0);
        let peer = self.link(end).peer;
        if !self.node(peer).alive {
            self.marks.delivered_after_death += 1;
        }
        self.port_mut(end.port).finish(completion, Some(receive.queue));
    }

    fn atomic_load(&mut self, end: LinkEnd, number: u64) {
        let Some((arena, offset)) = self.running_place(end, number) else {
            return self.withdrawn(end, number);
        };
        let word = (self.region_of(end, number), offset);
        if self.node(end).busy_words.contains(&word) {
            self.marks.atomics_contended += 1;
            return self.place_later(end, number, 0);
        }
        let system = self.options.capabilities.atomics == AtomicScope::System;
        if system {
            self.crash_word(end, number);
        }
        let change = self.link_mut(end).inbound(number).and_then(|inbound| inbound.message.change);
        let before = match change {
            // One step, also against processors, which may be other threads.
            Some(change) if system => arena.update(offset, |word| change.apply(word)),
            _ => arena.load(offset, Ordering::Acquire),
        };
        let before = before.unwrap_or_default();
        if let Some(inbound) = self.link_mut(end).inbound(number) {
            inbound.fetched = before.to_ne_bytes().to_vec();
        }
        self.record("atomic-load", end, number, before);
        if system {
            let after = change.map_or(before, |change| change.apply(before));
            self.atomic_end(end, number, after);
        } else {
            self.node_mut(end).busy_words.push(word);
            let store = WorldEvent::AtomicStore(end, number);
            match self.options.hardware {
                // The time of the atomic unit covers load and store.
                Some(_) => self.at(self.now_ns, store),
                None => self.after(self.options.place_ns, store),
            }
        }
    }

    /// Stores the modification of the word that an atomic loaded, even if the word has changed since.
    pub(super) fn atomic_store(&mut self, end: LinkEnd, number: u64) {
        let Some((arena, offset)) = self.running_place(end, number) else {
            return self.withdrawn(end, number);
        };
        self.release_word(end, number);
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let before = inbound.fetched.first_chunk().copied().map_or(0, u64::from_ne_bytes);
        let change = inbound.message.change;
        let after = change.map_or(before, |change| change.apply(before));
        if after != before {
            self.crash_word(end, number);
            let stored = arena.store(offset, after, Ordering::Release);
            debug_assert!(stored.is_ok(), "the bounds were checked");
        }
        self.atomic_end(end, number, after);
    }

    fn atomic_end(&mut self, end: LinkEnd, number: u64, after: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let fetched = std::mem::take(&mut inbound.fetched);
        self.record("atomic-store", end, number, after);
        let status = CompletionStatus::Success;
        self.answer(end, number, Response { status, fetched });
        self.finish(end, number);
    }

    fn region_of(&mut self, end: LinkEnd, number: u64) -> RegionId {
        let inbound = self.link_mut(end).inbound(number);
        let at = inbound.and_then(|inbound| inbound.message.at);
        at.map_or(RegionId(0), |(token, _)| token.region)
    }

    fn release_word(&mut self, end: LinkEnd, number: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let busy = !inbound.fetched.is_empty() && inbound.message.kind == CompletionKind::Atomic;
        if let Some((token, offset)) = inbound.message.at.filter(|_| busy) {
            let words = &mut self.node_mut(end).busy_words;
            words.retain(|word| *word != (token.region, offset));
        }
    }

    /// Handles deregistration of the memory of a running message.
    fn withdrawn(&mut self, end: LinkEnd, number: u64) {
        if self.link_mut(end).inbound(number).is_some_and(|one| one.answered) {
            return self.finish(end, number);
        }
        self.deliver(end, number, CompletionStatus::RemoteAccess);
        self.refuse_message(end, number, CompletionStatus::RemoteAccess);
    }

    /// Sends a negative answer; later messages of the link are ignored, as the requester will flush them.
    pub(super) fn refuse_message(&mut self, end: LinkEnd, number: u64, status: CompletionStatus) {
        self.record("refuse", end, number, status as u64);
        self.marks.requests_refused += 1;
        let link = self.link_mut(end);
        link.broken_from = link.broken_from.min(number + 1);
        let later = |inbound: &&Inbound| {
            inbound.message.number > number
                && matches!(inbound.phase, Phase::Arrived | Phase::Waiting)
        };
        let later: Vec<u64> =
            link.inbound.iter().filter(later).map(|one| one.message.number).collect();
        for number in later {
            self.discard(end, number);
        }
        self.answer(end, number, Response { status, fetched: Vec::new() });
        self.finish(end, number);
    }

    /// Removes a completed message, and starts the messages that waited for it.
    fn finish(&mut self, end: LinkEnd, number: u64) {
        self.discard(end, number);
        self.admit(end);
    }

    /// Places the rest of a WRITE that has completed at the requester.
    pub(super) fn land_answered(&mut self, end: LinkEnd, number: u64) {
        let Ok(Some((arena, offset))) = self.target(end, number) else {
            return;
        };
        let written = self
            .link_mut(end)
            .inbound(number)
            .filter(|inbound| inbound.answered && inbound.message.kind == CompletionKind::Write);
        let Some(inbound) = written else {
            return;
        };
        let (at, bytes) = (inbound.message.at, inbound.message.bytes as u64);
        self.crash_change(end, at, bytes);
        if let Some(inbound) = self.link_mut(end).inbound(number) {
            inbound.message.payload.sample();
            let written = write_rising(&arena, offset, inbound.message.payload.bytes());
            debug_assert!(written.is_ok(), "the bounds were checked");
        }
    }

    /// Removes a message and releases the word and the receive that it holds.
    pub(super) fn discard(&mut self, end: LinkEnd, number: u64) {
        self.release_word(end, number);
        let link = self.link_mut(end);
        let at = link.inbound.iter().position(|one| one.message.number == number);
        let Some(inbound) = at.and_then(|at| link.inbound.remove(at)) else {
            return;
        };
        self.release_receive(end, inbound.message.reserved);
        if let Some((receive, _)) = inbound.receive {
            // The receive returns to its queue: it has no completion yet.
            let queue = &mut self.port_mut(end.port).queues[receive.queue.0 as usize];
            queue.posted.push_front(receive);
        }
        self.lose_if_drained(end);
    }
}

/// Writes line by line, as `byte_order` promises: one long copy may write its end first.
fn write_rising(arena: &Arena, at: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        let at = at + done as u64;
        let line = (64 - at % 64) as usize;
        let part = &rest[..line.min(rest.len())];
        arena.write(at, part)?;
        done += part.len();
    }
    Ok(())
}
