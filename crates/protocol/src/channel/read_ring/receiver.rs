//! A reader of a ring.

use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, Name};
use super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Offer, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received, own as reach,
};
use super::super::kind::Kind;
use super::super::readers::Bells;
use super::super::shape::{Shape, Signal};
use super::super::stand::{START, Stand};
use super::fetch::{FLYING, Flying};
use super::{COPY, ReadRingForm, ReadRingOffsets, WORD, notices_max, receives_max};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of every receive.
const NOTICE: Name = Name(0);
/// The maximum number of open offers.
const OFFERS_MAX: usize = 16;

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
    pub(super) form: ReadRingForm,
    pub(super) signal: Signal,
    pub(super) place: ReadRingOffsets,
    pub(super) message_bytes_max: u32,
    /// The maximum size in bytes of one READ, or one record.
    pub(super) piece_bytes: u64,
    pub(super) prefetch_bytes: u32,
    /// The location of the detached head at the sender.
    pub(super) bell: Bells,
    pub(super) regions: OwnRegions,
    pub(super) stand: Stand,
    /// The position of the next message to be received or offered.
    next: u64,
    /// Messages before this position have arrived.
    pub(super) here: u64,
    /// The sender's head, as far as it was announced (detached, notify).
    pub(super) head: u64,
    pub(super) flying: Option<Flying>,
    /// The length of the message at `here`, if only its bell has arrived (inlined).
    pub(super) seen: Option<u32>,
    /// The size of the record at `here`, if its bell has arrived with fewer bytes, or with stale ones (prefetched).
    pub(super) wanted: u64,
    offers: Vec<Fetch>,
    /// The number of notices received, and those since the last forced acknowledgement.
    pub(super) notices: u64,
    notices_since: u32,
    pub(super) notices_max: u32,
    receives: u32,
    /// The newest head that arrived before the start was known.
    early: Option<u32>,
    pub(super) canary: ChannelCanary,
}

impl ReadRingReceiver {
    /// Creates a receiver without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadRingForm::of(kind, shape);
        Self {
            form,
            signal: shape.signal,
            place: ReadRingOffsets::new(form, shape),
            message_bytes_max: shape.message_bytes_max,
            piece_bytes: u64::from(shape.piece_bytes),
            prefetch_bytes: shape.prefetch_bytes,
            bell: Bells::of(shape),
            regions,
            stand: Stand::new(shape, WORD, shape.ring_bytes, regions),
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
            receives: receives_max(shape),
            early: None,
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self
    }

    fn post(&self, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 };
        effects.receive(Peer::ONLY, NOTICE, into);
    }

    pub(super) const fn noticed(&mut self) {
        self.notices += 1;
        self.notices_since += 1;
    }

    /// Handles a head that arrived as a message, by its low bits.
    fn told(&mut self, low: u32) -> Result<(), Violation> {
        // Messages may overtake each other: a head below the known one is stale.
        let ahead = low.wrapping_sub((self.head / WORD) as u32);
        if ahead > u32::MAX / 2 {
            return Ok(());
        }
        self.advance_to(self.head + u64::from(ahead) * WORD)
    }

    fn start(&mut self, start: u64) -> Result<(), Violation> {
        (self.next, self.here, self.head) = (start, start, start);
        match self.early.take() {
            Some(low) => self.told(low),
            None => Ok(()),
        }
    }

    /// The name of the READ of an offered message.
    const fn name(position: u64) -> Name {
        Name((position / WORD % (1 << 28)) as u32)
    }

    /// Releases a message, and acknowledges if the sender may wait for that: it has as many notices in flight as
    /// there are receives or words for them.
    fn give_back<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        self.stand.release(held, own, effects)?;
        if self.stand.tail() == self.head && self.notices_since >= self.notices_max.div_ceil(2) {
            self.notices_since = 0;
            self.stand.must(effects);
        }
        Ok(())
    }

    /// The next message that can be offered: its position and maximum size.
    fn offerable<M: Memory>(
        &mut self,
        to: &PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<(u64, u32)>, Violation> {
        self.look(own)?;
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
                Ok(Some((self.next, most.min(u64::from(self.message_bytes_max)) as u32)))
            }
            ReadRingForm::Detached => {
                self.read_head(to, effects);
                Ok(None)
            }
            ReadRingForm::Notify => Ok(None),
            ReadRingForm::Inlined | ReadRingForm::Prefetched => match self.seen.take() {
                Some(bytes) => Ok(Some((self.next, bytes))),
                None => {
                    self.read_bell(to, effects);
                    Ok(None)
                }
            },
        }
    }

    /// Handles a message that has arrived at the caller's destination.
    fn fetch_here<M: Memory>(&mut self, name: Name, own: Own<'_, M>) -> Result<(), Violation> {
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
            self.stand.hold(fetch.position, end)?;
            (fetch.bytes, fetch.known) = (bytes, true);
            (self.next, self.here) = (end, end);
        }
        if let Some(place) = self.offers.get_mut(at) {
            *place = fetch;
        }
        Ok(())
    }
}

impl Half for ReadRingReceiver {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.stand.connected(regions, effects);
        if self.form == ReadRingForm::Notify && self.signal == Signal::Message {
            let few = self.canary.is(ChannelMutant::LateNoticeForgotten);
            for _ in 0..if few { self.notices_max } else { self.receives } {
                self.post(effects);
            }
        }
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.stand.lost();
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        match completed.name {
            name if self.stand.completed(name, effects) => Ok(()),
            START => match self.stand.started(own)? {
                Some(start) => self.start(start),
                None => Ok(()),
            },
            FLYING => self.landed(own),
            name => self.fetch_here(name, own),
        }
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let told = self.form == ReadRingForm::Notify && self.signal == Signal::Message;
        let Some(low) = arrival.immediate.filter(|_| told) else {
            return Err(Violation("a message where none comes"));
        };
        self.post(effects);
        self.noticed();
        if self.stand.has_begun() {
            return self.told(low);
        }
        let newer = |early: u32| low.wrapping_sub(early) <= u32::MAX / 2;
        if self.early.is_none_or(newer) {
            self.early = Some(low);
        }
        Ok(())
    }
}

impl ReceiveHalf for ReadRingReceiver {
    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        if self.offers.last().is_some_and(|fetch| !fetch.known) {
            return Ok(None);
        }
        if self.next == self.here {
            self.ask(own, effects)?;
        }
        // Empty messages are present without a request.
        if self.next == self.here {
            return Ok(None);
        }
        let (position, offset) = (self.next, self.place.offset(self.next));
        let bell = reach(own.buffer.load_word(offset))?;
        let Some(bytes) = self.rung(bell, position)? else {
            return Err(Violation("a message without a bell"));
        };
        let end = position + self.form.record(bytes);
        let held = self.stand.hold(position, end)?;
        self.next = end;
        // After the last message the caller has not asked for more yet: a READ now would complete too early, and
        // delay the next one.
        if self.next < self.here || self.seen.is_some() || self.here < self.head {
            self.ask(own, effects)?;
        }
        let content = Content::Buffer { offset: offset + self.form.header(), bytes };
        Ok(Some(Received { held, peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        if let Some(at) = self.offers.iter().position(|fetch| fetch.position == held.0) {
            let offered = |fetch: &Fetch| fetch.known && fetch.state == DeliveryState::Offered;
            if !self.offers.get(at).is_some_and(offered) {
                return Err(HalfRefusal::NoSuch("held message"));
            }
            self.offers.remove(at);
        }
        self.give_back(held, own, effects)
    }

    fn offer<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Offer>, Violation> {
        let Some(to) = self.stand.ready(effects) else { return Ok(None) };
        let Some((position, bytes)) = self.offerable(&to, own, effects)? else {
            return Ok(None);
        };
        let known = matches!(self.form, ReadRingForm::Inlined | ReadRingForm::Prefetched);
        if known {
            let end = position + self.form.record(bytes);
            self.stand.hold(position, end)?;
            (self.next, self.here) = (end, end);
        }
        self.offers.push(Fetch { position, bytes, known, state: DeliveryState::Offered });
        let place = known.then(|| self.place.offset(position) + self.form.header());
        Ok(Some(Offer { held: HeldMessage(position), peer: Peer::ONLY, bytes_max: bytes, place }))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: HeldMessage,
        into: LocalSlice,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let offered =
            |fetch: &&mut Fetch| fetch.position == offer.0 && fetch.state == DeliveryState::Offered;
        let Some(fetch) = self.offers.iter_mut().find(offered) else {
            return Err(HalfRefusal::NoSuch("offer"));
        };
        let to = self.stand.ready(effects).ok_or(HalfRefusal::Lost)?;
        if into.bytes < fetch.bytes {
            return Err(HalfRefusal::TooLong { bytes_max: into.bytes });
        }
        if fetch.known && fetch.bytes == 0 {
            fetch.state = DeliveryState::Here;
            return Ok(());
        }
        fetch.state = DeliveryState::Reading;
        let offset = self.place.offset(fetch.position);
        let header = LocalSlice { region: self.regions.bells, offset: COPY, bytes: WORD as u32 };
        let into = LocalSlice { bytes: fetch.bytes, ..into };
        let name = Self::name(fetch.position);
        if fetch.known {
            let from = RemoteSlice { region: to.buffer, offset: offset + self.form.header() };
            effects.read(Peer::ONLY, name, into, from);
        } else {
            let from = RemoteSlice { region: to.buffer, offset };
            effects.read_scatter(Peer::ONLY, name, &[header, into], from);
        }
        Ok(())
    }

    fn fetched<M: Memory>(
        &mut self,
        offer: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Option<u32> {
        let here = |fetch: &Fetch| fetch.position == offer.0 && fetch.state == DeliveryState::Here;
        let at = self.offers.iter().position(here)?;
        let fetch = self.offers.remove(at);
        self.give_back(offer, own, effects).ok()?;
        Some(fetch.bytes)
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        self.stand.acknowledge(effects);
    }
}
