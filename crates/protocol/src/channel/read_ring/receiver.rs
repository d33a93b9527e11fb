//! A reader of a ring.

#[cfg(canary)]
use super::super::canary::ChannelMutant;
use super::super::canary::mutant;
use super::super::checksum::checksum;
use super::super::effects::{Effects, Name, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HalfRefusal, HeldMessage, NOT_HELD, Offer, Own,
    OwnRegions, PeerRegions, Received, Step, own as reach,
};
use super::super::inbound::{InboundPeer, NO_OFFER, ReaderPosition, ReceiveHalf, START};
use super::super::kind::Kind;
use super::super::readers::Bells;
use super::super::ring_layout::RingLayout;
use super::super::shape::{Shape, Signal};
use super::{COPY, ReadRingForm, SIGNALS, WORD, layout, notices_max, plan_receiver, sequence};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The maximum number of open offers.
const OFFERS_MAX: usize = 16;

/// The name of the READ in [`Flying`]; those of offers are smaller.
const FLYING: Name = Name(1 << 28);

/// The READ in flight for `receive`, or for a bell.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Flying {
    /// Of the detached head.
    Head,
    /// Of a bell alone.
    Bell,
    /// Of records, up to a position.
    Records(u64),
    /// Of a message of this size, and possibly of the bell after it.
    Message { bytes: u32, bell: bool },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum DeliveryState {
    /// The caller has not named a destination.
    Offered,
    /// It is being READ into its destination.
    Reading,
    /// It has arrived.
    Here,
}

/// A message with a destination named by the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Fetch {
    position: u64,
    /// Its size in bytes; the maximum, unless its length is known.
    bytes: u32,
    /// The length is known: it is held, and the message after it can be offered.
    known: bool,
    state: DeliveryState,
}

/// The receiver half of a read ring channel: one reader.
///
/// *Order*: that of sending. *Cost*: a READ of the head or bell while there is no message, and one for all messages
/// up to the head, or of one message and the next bell; both in one with prefetching; only the latter with notices.
/// No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadRingReceiver {
    form: ReadRingForm,
    ring: RingLayout,
    /// The location of the detached head at the sender.
    bell: Bells,
    position: ReaderPosition,
    /// The position of the next message to be received or offered.
    next: u64,
    /// Messages before this position have arrived.
    here: u64,
    /// The sender's head, as far as it was announced (detached, notify).
    head: u64,
    flying: Option<Flying>,
    /// The length of the message at `here`, if only its bell has arrived (inlined).
    seen: Option<u32>,
    /// The size of the record at `here`, if its bell has arrived with fewer bytes, or with stale ones (prefetched).
    wanted: u64,
    offers: Vec<Fetch>,
    /// The number of notices received, and those since the last forced acknowledgement.
    notices: u64,
    notices_since: u32,
    notices_max: u32,
    /// The newest head that arrived before the start was known.
    early: Option<u32>,
}

impl ReadRingReceiver {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadRingForm::of(kind, shape);
        let receives = plan_receiver(kind, shape).receives;
        Self {
            form,
            ring: layout(form, shape),
            bell: Bells::of(shape),
            position: ReaderPosition::new(shape, regions, receives, (WORD, shape.ring_bytes)),
            next: 0,
            here: 0,
            head: 0,
            flying: None,
            seen: None,
            wanted: 0,
            offers: Vec::with_capacity(OFFERS_MAX),
            notices: 0,
            notices_since: 0,
            notices_max: notices_max(shape),
            early: None,
        }
    }

    #[inline]
    const fn shape(&self) -> &Shape {
        &self.position.inbound.shape
    }

    const fn noticed(&mut self) {
        self.notices += 1;
        self.notices_since += 1;
    }

    /// Handles a head that arrived as a message, by its low bits.
    fn told(&mut self, low: u32) -> Checked {
        // Messages may overtake each other: a head below the known one is stale.
        let ahead = low.wrapping_sub((self.head / WORD) as u32);
        if ahead > u32::MAX / 2 {
            return Ok(());
        }
        self.advance_to(self.head + u64::from(ahead) * WORD)
    }

    fn start(&mut self, start: u64) -> Checked {
        (self.next, self.here, self.head) = (start, start, start);
        match self.early.take() {
            Some(low) => self.told(low),
            None => Ok(()),
        }
    }

    /// The index of an offer in this state.
    fn offer_at(&self, held: HeldMessage, state: DeliveryState) -> Option<usize> {
        self.offers.iter().position(|offer| offer.position == held.0 && offer.state == state)
    }

    /// The name of the READ of an offered message.
    const fn name(position: u64) -> Name {
        Name((position / WORD % (1 << 28)) as u32)
    }

    /// Releases a message, and acknowledges if the sender may wait for that: it has as many notices in flight as
    /// there are receives or words for them.
    fn give_back<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        self.position.release(held, step)?;
        if self.position.tail() == self.head && self.notices_since >= self.notices_max.div_ceil(2) {
            self.notices_since = 0;
            self.position.inbound.must(step.effects);
        }
        Ok(())
    }

    /// The next message that can be offered: its position and maximum size.
    fn offerable<M: Memory>(
        &mut self,
        to: &PeerRegions,
        step: &mut Step<'_, M>,
    ) -> Checked<Option<(u64, u32)>> {
        self.look(step.own)?;
        let open = self.offers.last().is_some_and(|fetch| !fetch.known);
        if self.flying.is_some() || open || self.offers.len() == OFFERS_MAX {
            return Ok(None);
        }
        if self.here != self.next {
            (self.here, self.seen, self.wanted) = (self.next, None, 0);
        }
        match self.form {
            ReadRingForm::Detached | ReadRingForm::Notify if self.head > self.next => {
                let most = self.head - self.next - self.form.header().min(self.head - self.next);
                Ok(Some((self.next, most.min(u64::from(self.shape().message_bytes_max)) as u32)))
            }
            ReadRingForm::Detached => {
                self.read_head(to, step.effects);
                Ok(None)
            }
            ReadRingForm::Notify => Ok(None),
            ReadRingForm::Inlined | ReadRingForm::Prefetched => match self.seen.take() {
                Some(bytes) => Ok(Some((self.next, bytes))),
                None => {
                    self.read_bell(to, step.effects);
                    Ok(None)
                }
            },
        }
    }

    /// Handles a message that has arrived at the caller's destination.
    fn fetch_here<M: Memory>(&mut self, name: Name, own: Own<'_, M>) -> Checked {
        let mine = |fetch: &Fetch| {
            fetch.state == DeliveryState::Reading && Self::name(fetch.position) == name
        };
        let Some(at) = self.offers.iter().position(mine) else { return Ok(()) };
        let Some(mut fetch) = self.offers.get(at).copied() else { return Ok(()) };
        fetch.state = DeliveryState::Here;
        if !fetch.known {
            let word = reach(own.bells.load_word(COPY))?;
            let Some(bytes) = self.rung(word, fetch.position)? else {
                return Err(Violation("a head before its message"));
            };
            let end = fetch.position + self.form.record(bytes);
            if end > self.head {
                return Err(Violation("a message beyond the head"));
            }
            self.position.hold(fetch.position, end)?;
            (fetch.bytes, fetch.known) = (bytes, true);
            (self.next, self.here) = (end, end);
        }
        if let Some(place) = self.offers.get_mut(at) {
            *place = fetch;
        }
        Ok(())
    }

    /// The highest position that the sender can have reached: it reuses only released space.
    #[inline]
    fn limit(&self) -> u64 {
        self.position.tail() + self.shape().ring_bytes
    }

    /// READs the bytes between two positions into the same positions here.
    fn read(
        &mut self,
        what: Flying,
        from: u64,
        to: u64,
        peer: &PeerRegions,
        effects: &mut Effects,
    ) {
        self.flying = Some(what);
        let offset = self.ring.offset(self.here) + (from - self.here);
        let bytes = (to - from) as u32;
        let into = LocalSlice { region: self.position.inbound.regions.buffer, offset, bytes };
        effects.read(Peer::ONLY, FLYING, into, RemoteSlice { region: peer.buffer, offset });
    }

    /// READs the head.
    fn read_head(&mut self, peer: &PeerRegions, effects: &mut Effects) {
        self.flying = Some(Flying::Head);
        let into =
            LocalSlice { region: self.position.inbound.regions.bells, offset: COPY, bytes: 8 };
        let from = self.bell.at(0, peer);
        effects.read(Peer::ONLY, FLYING, into, from);
    }

    /// READs the bell of the next record, unless a held record occupies its position here.
    fn read_bell(&mut self, peer: &PeerRegions, effects: &mut Effects) {
        if self.here + WORD <= self.limit() {
            self.read(Flying::Bell, self.here, self.here + WORD, peer, effects);
        }
    }

    /// Requests the next message, if no READ is in flight.
    fn ask<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        let Some(peer) = self.position.ready(step.effects) else { return Ok(()) };
        self.look(step.own)?;
        let effects = &mut *step.effects;
        if self.flying.is_some() {
            return Ok(());
        }
        let end = self.ring.contiguous_end(self.here).min(self.limit());
        match self.form {
            ReadRingForm::Detached | ReadRingForm::Notify if self.head > self.here => {
                let piece = u64::from(self.shape().piece_bytes)
                    .max(self.form.record(self.shape().message_bytes_max));
                let end = end.min(self.head).min(self.here + piece);
                self.read(Flying::Records(end), self.here, end, &peer, effects);
            }
            ReadRingForm::Detached => self.read_head(&peer, effects),
            ReadRingForm::Notify => {}
            ReadRingForm::Prefetched => {
                self.seen = None;
                let most = self.form.header() + u64::from(self.shape().prefetch_bytes);
                let end = end.min(self.here + most.next_multiple_of(WORD).max(self.wanted));
                if end > self.here {
                    self.read(Flying::Records(end), self.here, end, &peer, effects);
                }
            }
            ReadRingForm::Inlined => match self.seen.take() {
                Some(bytes) => self.read_message(bytes, end, &peer, effects),
                None => self.read_bell(&peer, effects),
            },
        }
        Ok(())
    }

    /// READs a message with a known bell, and the bell after it if that is contiguous.
    fn read_message(&mut self, bytes: u32, end: u64, peer: &PeerRegions, effects: &mut Effects) {
        let next = self.here + self.form.record(bytes);
        let bell = next < self.ring.turn_end(self.here) && next + WORD <= end;
        if bytes == 0 {
            self.here = next;
            return self.read_bell(peer, effects);
        }
        let to = if bell { next + WORD } else { next };
        self.read(Flying::Message { bytes, bell }, self.here + WORD, to, peer, effects);
    }

    /// Polls the heads that the sender has written.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        if self.form != ReadRingForm::Notify || self.shape().signal != Signal::Word {
            return Ok(());
        }
        loop {
            let slot = self.notices % u64::from(self.notices_max);
            let head = reach(own.bells.load_word(SIGNALS + slot * WORD))?;
            if head <= self.head {
                return Ok(());
            }
            self.advance_to(head)?;
            self.noticed();
        }
    }

    /// Notes the sender's new head.
    fn advance_to(&mut self, head: u64) -> Checked {
        if head < self.head || head > self.limit() || !head.is_multiple_of(WORD) {
            return Err(Violation("a head out of range"));
        }
        self.head = head;
        Ok(())
    }

    /// Handles the completion of the READ in flight.
    fn landed<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        match self.flying.take() {
            None => Ok(()),
            Some(Flying::Head) => {
                let head = reach(own.bells.load_word(COPY))?;
                self.advance_to(head)
            }
            Some(Flying::Bell) => self.bell_here(own),
            Some(Flying::Records(end)) if self.form == ReadRingForm::Prefetched => {
                self.check(end, own)
            }
            Some(Flying::Records(end)) => self.walk(end, own),
            Some(Flying::Message { bytes, bell }) => {
                self.here += self.form.record(bytes);
                if bell { self.bell_here(own) } else { Ok(()) }
            }
        }
    }

    fn bell_here<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        let bell = reach(own.buffer.load_word(self.ring.offset(self.here)))?;
        self.seen = self.rung(bell, self.here)?;
        if self.seen.is_some_and(|bytes| self.here + self.form.record(bytes) > self.limit()) {
            return Err(Violation("overlapping messages"));
        }
        Ok(())
    }

    /// The length in a bell, if it is set.
    #[inline]
    fn rung(&self, bell: u64, position: u64) -> Checked<Option<u32>> {
        let bytes = match (self.form, bell) {
            (_, 0) => return Ok(None),
            (ReadRingForm::Prefetched, _) if bell >> 24 != sequence(position) => {
                return Err(Violation("a bell of another message"));
            }
            (ReadRingForm::Prefetched, _) => bell & 0xff_ffff,
            (ReadRingForm::Detached | ReadRingForm::Notify | ReadRingForm::Inlined, _) => bell - 1,
        };
        self.position.inbound.length(bytes).map(Some)
    }

    /// Walks over the complete records before a head.
    fn walk<M: Memory>(&mut self, end: u64, own: Own<'_, M>) -> Checked {
        let (start, turn_end) = (self.here, self.ring.turn_end(self.here));
        while self.here < end && self.here < turn_end {
            let offset = self.ring.offset(start) + (self.here - start);
            let bell = reach(own.buffer.load_word(offset))?;
            let Some(bytes) = self.rung(bell, self.here)? else {
                return Err(Violation("a head before its message"));
            };
            let next = self.here + self.form.record(bytes);
            if next > self.head {
                return Err(Violation("a message beyond the head"));
            }
            if next > end {
                break;
            }
            self.here = next;
        }
        Ok(())
    }

    /// Walks over the prefetched records, as far as their checksums match.
    fn check<M: Memory>(&mut self, end: u64, own: Own<'_, M>) -> Checked {
        let (start, turn_end) = (self.here, self.ring.turn_end(self.here));
        while self.here + WORD <= end && self.here < turn_end {
            let first = self.here == start;
            let offset = self.ring.offset(start) + (self.here - start);
            let bell = reach(own.buffer.load_word(offset))?;
            // Only the first bell was clear before it was set: the others may still have any value.
            let bytes = match self.rung(bell, self.here) {
                Ok(Some(bytes)) => bytes,
                Err(violation) if first => return Err(violation),
                Ok(None) | Err(_) => return Ok(()),
            };
            let record = self.form.record(bytes);
            if first && self.here + record > self.limit() {
                return Err(Violation("overlapping messages"));
            }
            if self.here + record > end {
                self.wanted = if first { record } else { 0 };
                return Ok(());
            }
            let sum = reach(checksum(bell, own.buffer, offset + self.form.header(), bytes))?;
            let fits = sum == reach(own.buffer.load_word(offset + WORD))?;
            if !fits && !mutant!(self.position.inbound, ChecksumUnchecked) {
                // Everything stored before a bell that an earlier READ returned is present.
                if first && self.wanted > 0 {
                    return Err(Violation("a message with a wrong checksum"));
                }
                self.wanted = if first { record } else { 0 };
                return Ok(());
            }
            self.here += record;
            self.wanted = 0;
        }
        Ok(())
    }
}

impl ReceiveHalf for ReadRingReceiver {
    fn inbound(&mut self) -> Option<&mut InboundPeer> {
        Some(&mut self.position.inbound)
    }

    #[cfg(canary)]
    fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        let inbound = &mut self.position.inbound;
        inbound.mutant = farside_base::Planted::new(mutant);
        if inbound.receives > 0 && mutant!(inbound, LateNoticeForgotten) {
            inbound.receives = self.notices_max;
        }
        self
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        self.position.connected(to, step.effects);
        Ok(())
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        match completed.name {
            name if self.position.completed(name, step.effects) => Ok(()),
            START => match self.position.started(step.own)? {
                Some(start) => self.start(start),
                None => Ok(()),
            },
            FLYING => self.landed(step.own),
            name => self.fetch_here(name, step.own),
        }
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let low = self.position.inbound.immediate(arrival, step.effects)?;
        self.noticed();
        if self.position.has_begun() {
            return self.told(low);
        }
        let newer = |early: u32| low.wrapping_sub(early) <= u32::MAX / 2;
        if self.early.is_none_or(newer) {
            self.early = Some(low);
        }
        Ok(())
    }

    #[inline]
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        if self.offers.last().is_some_and(|fetch| !fetch.known) {
            return Ok(None);
        }
        if self.next == self.here {
            self.ask(step)?;
        }
        // Empty messages are present without a request.
        if self.next == self.here {
            return Ok(None);
        }
        let (position, offset) = (self.next, self.ring.offset(self.next));
        let bell = reach(step.own.buffer.load_word(offset))?;
        let Some(bytes) = self.rung(bell, position)? else {
            return Err(Violation("a message without a bell"));
        };
        let end = position + self.form.record(bytes);
        let held = self.position.hold(position, end)?;
        self.next = end;
        // After the last message the caller has not asked for more yet: a READ now would complete too early, and
        // delay the next one.
        if self.next < self.here || self.seen.is_some() || self.here < self.head {
            self.ask(step)?;
        }
        let content = Content::Buffer { offset: offset + self.form.header(), bytes };
        Ok(Some(Received { held, peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        if self.offers.iter().any(|fetch| fetch.position == held.0) {
            let at = self.offer_at(held, DeliveryState::Offered);
            let known = |at: &usize| self.offers.get(*at).is_some_and(|fetch| fetch.known);
            self.offers.remove(at.filter(known).ok_or(NOT_HELD)?);
        }
        self.give_back(held, step)
    }

    fn offer<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Offer>> {
        let Some(to) = self.position.ready(step.effects) else { return Ok(None) };
        let Some((position, bytes)) = self.offerable(&to, step)? else {
            return Ok(None);
        };
        let known = matches!(self.form, ReadRingForm::Inlined | ReadRingForm::Prefetched);
        if known {
            let end = position + self.form.record(bytes);
            self.position.hold(position, end)?;
            (self.next, self.here) = (end, end);
        }
        self.offers.push(Fetch { position, bytes, known, state: DeliveryState::Offered });
        let place = known.then(|| self.ring.offset(position) + self.form.header());
        Ok(Some(Offer { held: HeldMessage(position), peer: Peer::ONLY, bytes_max: bytes, place }))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: HeldMessage,
        into: LocalSlice,
        step: &mut Step<'_, M>,
    ) -> Accepted<()> {
        let at = self.offer_at(offer, DeliveryState::Offered).ok_or(NO_OFFER)?;
        let to = self.position.ready(step.effects).ok_or(HalfRefusal::Lost)?;
        let fetch = self.offers.get_mut(at).ok_or(NO_OFFER)?;
        if into.bytes < fetch.bytes {
            return Err(HalfRefusal::TooLong { bytes_max: into.bytes });
        }
        if fetch.known && fetch.bytes == 0 {
            fetch.state = DeliveryState::Here;
            return Ok(());
        }
        fetch.state = DeliveryState::Reading;
        let (name, known) = (Self::name(fetch.position), fetch.known);
        let offset = self.ring.offset(fetch.position) + if known { self.form.header() } else { 0 };
        let from = RemoteSlice { region: to.buffer, offset };
        let header = if known { 0 } else { WORD as u32 };
        let region = self.position.inbound.regions.bells;
        let header = LocalSlice { region, offset: COPY, bytes: header };
        let into = LocalSlice { bytes: fetch.bytes, ..into };
        step.effects.read_scatter(Peer::ONLY, name, &[header, into], from);
        Ok(())
    }

    fn fetched<M: Memory>(&mut self, offer: HeldMessage, step: &mut Step<'_, M>) -> Option<u32> {
        let at = self.offer_at(offer, DeliveryState::Here)?;
        let fetch = self.offers.remove(at);
        self.give_back(offer, step).ok()?;
        Some(fetch.bytes)
    }
}
