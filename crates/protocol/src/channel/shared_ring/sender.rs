//! A sender of a shared ring.

use super::super::acknowledge::ACKNOWLEDGEMENT;
use super::super::canary::mutant;
use super::super::effects::{Effects, Name, Notify, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, HalfRefusal, Own, OwnRegions, Payload, PeerRegions,
    Step, UNEXPECTED, own as reach,
};
use super::super::kind::Kind;
use super::super::outbound::{Outbound, PushSender};
use super::super::shape::{Acknowledge, Shape};
use super::outgoing::Outgoing;
use super::{
    ANSWERS, FETCHED, HEAD, Layout, ONE, POSITION_MAX, QUERY, RingWords, TAG, WELCOME, WORD,
};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// Names of requests besides READs of the tail: a FETCH_ADD has the index of its message, a WRITE that and this bit.
const WRITE: u32 = 1 << 16;
/// The name of an answer.
const ANSWER: Name = Name(1 << 17);

/// The maximum number of a sender's messages not known to be processed: their positions are stored.
const REMEMBERED_MAX: usize = 1024;

/// The sender half of a shared ring.
///
/// *Cost*: a FETCH_ADD and a WRITE per message, and a READ whenever the known tail leaves no room. Bytes are copied
/// into staging memory; slices are sent without a copy. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SharedRingSender {
    layout: Layout,
    words: RingWords,
    out: Outbound,
    /// Its number at the receiver, once welcomed.
    number: Option<u16>,
    outgoing: Outgoing,
    /// Messages with a FETCH_ADD still to be posted, in the order of sending.
    waiting: VecDeque<u32>,
    /// The number of FETCH_ADDs in flight.
    fetching: u32,
    /// Positions and indexes of messages to be written, by position.
    reserved: VecDeque<(u64, u32)>,
    /// Positions of all its records not known to be processed, ascending.
    positions: VecDeque<u64>,
    /// The tag of the last query seen.
    tag: u64,
    /// A query to be answered.
    query: Option<u64>,
}

impl SharedRingSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let places = super::places(shape) as usize;
        Self {
            layout: Layout::of(kind, shape),
            words: RingWords::of(shape),
            out: Outbound::new(shape, regions, Acknowledge::ReadTail, (WORD, 0)),
            number: None,
            outgoing: Outgoing::new(kind, shape, regions),
            waiting: VecDeque::with_capacity(places),
            fetching: 0,
            reserved: VecDeque::with_capacity(places),
            positions: VecDeque::with_capacity(REMEMBERED_MAX),
            tag: 0,
            query: None,
        }
    }

    /// Polls for the number that the receiver assigns.
    fn greet<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        match reach(own.bells.load_word(WELCOME))? {
            0 => Ok(()),
            number if number <= u64::from(self.out.shape.peers_max) => {
                self.number = Some((number - 1) as u16);
                Ok(())
            }
            _ => Err(Violation("an invalid sender number")),
        }
    }

    /// Posts the pending FETCH_ADDs, unless a query waits for those in flight.
    fn reserve(&mut self, to: &PeerRegions, effects: &mut Effects) {
        if self.number.is_none() || self.query.is_some() {
            return;
        }
        while let Some(place) = self.waiting.pop_front() {
            let at = RemoteSlice { region: self.words.head(to), offset: HEAD };
            let offset = FETCHED + WORD * u64::from(place);
            let into = LocalSlice { region: self.out.regions.bells, offset, bytes: WORD as u32 };
            let record = self.layout.record(self.outgoing.bytes(place));
            effects.fetch_add(Peer::ONLY, Name(place), at, record, into);
            self.fetching += 1;
        }
    }

    /// Handles the reservation of a position for the message at this index.
    fn reserved<M: Memory>(&mut self, place: u32, own: Own<'_, M>) -> Checked {
        let position = reach(own.bells.load_word(FETCHED + WORD * u64::from(place)))?;
        self.fetching = self.fetching.saturating_sub(1);
        if position > POSITION_MAX || !position.is_multiple_of(WORD) {
            return Err(Violation("an invalid head"));
        }
        if position < self.out.progress.tail() {
            return Err(Violation("a head below the tail"));
        }
        let at = self.reserved.partition_point(|(before, _)| *before < position);
        self.reserved.insert(at, (position, place));
        let at = self.positions.partition_point(|before| *before < position);
        self.positions.insert(at, position);
        Ok(())
    }

    /// Whether a record fits between the last known tail and one ring beyond it.
    #[inline]
    fn fits(&self, position: u64, bytes: u32) -> bool {
        position + self.layout.record(bytes) <= self.out.progress.tail() + self.out.shape.ring_bytes
            || mutant!(self.out, TailUnchecked)
    }

    /// Writes the reserved messages that have room; false if one has none.
    fn write_reserved<M: Memory>(
        &mut self,
        to: &PeerRegions,
        step: &mut Step<'_, M>,
    ) -> Checked<bool> {
        while let Some(&(position, place)) = self.reserved.front() {
            if !self.fits(position, self.outgoing.bytes(place)) {
                return Ok(false);
            }
            let named = (Name(place | WRITE), self.number.unwrap_or_default());
            self.outgoing.write((place, position), named, to, step)?;
            self.reserved.pop_front();
        }
        Ok(true)
    }

    /// Frees the source and the index of a message that was written.
    fn written(&mut self, place: u32) {
        if let Some(source) = self.outgoing.take(place) {
            self.out.window.done(source);
        }
    }

    /// READs the tail, unless a READ of it is in flight.
    fn fetch_tail(&mut self, to: &PeerRegions, effects: &mut Effects) {
        let to = PeerRegions { bells: self.words.tail(to), ..*to };
        self.out.full(&to, effects);
    }

    /// Drops the positions that the receiver has processed.
    fn forget(&mut self) {
        let tail = self.out.progress.tail();
        while self.positions.front().is_some_and(|position| *position < tail) {
            self.positions.pop_front();
        }
    }

    /// Polls for a query.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        let word = reach(own.bells.load_word(QUERY))?;
        if word & TAG != self.tag && self.query.is_none() {
            self.tag = word & TAG;
            self.query = Some(word & !TAG);
        }
        Ok(())
    }

    /// Answers a query, once all reservations in flight at its arrival have completed.
    fn answer(&mut self, to: &PeerRegions, effects: &mut Effects) {
        let Some((gap, number)) = self.query.zip(self.number) else {
            return;
        };
        if self.fetching > 0 && !mutant!(self.out, AnswersWhileFetching) {
            return;
        }
        self.query = None;
        let at = self.positions.partition_point(|position| *position < gap);
        let smallest = self.positions.get(at).copied().unwrap_or(POSITION_MAX);
        let offset = ANSWERS + WORD * u64::from(number);
        let place = RemoteSlice { region: self.words.tail(to), offset };
        let word = (smallest | self.tag).to_le_bytes();
        effects.write_inline(Peer::ONLY, ANSWER, Notify::No, &[&word], place, None);
        self.reserve(to, effects);
    }

    /// The peer for a message and the index at which it waits for its position, if there is room for it.
    fn room(
        &mut self,
        payload: Payload<'_>,
        effects: &mut Effects,
    ) -> Accepted<(PeerRegions, u32)> {
        let (to, _) = self.out.check(payload)?;
        let place = self.outgoing.room().filter(|_| self.out.window.has_room());
        let place = place.ok_or(HalfRefusal::Full)?;
        if self.remembered() >= REMEMBERED_MAX {
            self.fetch_tail(&to, effects);
            return Err(HalfRefusal::Full);
        }
        Ok((to, place))
    }

    /// The number of messages not known to be processed.
    fn remembered(&self) -> usize {
        self.positions.len() + self.waiting.len() + self.fetching as usize
    }
}

impl PushSender for SharedRingSender {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn outbound_ref(&self) -> &Outbound {
        &self.out
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        reach(step.own.bells.store_word(ONE, 1))?;
        self.out.peer = Some(to);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.out.lost();
        self.outgoing.clear();
        self.waiting.clear();
        self.reserved.clear();
        self.fetching = 0;
        self.query = None;
    }

    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        let Some(to) = self.out.living() else {
            return Ok(());
        };
        if self.number.is_none() {
            self.greet(step.own)?;
        }
        self.look(step.own)?;
        self.answer(&to, step.effects);
        self.reserve(&to, step.effects);
        if !self.write_reserved(&to, step)? {
            self.fetch_tail(&to, step.effects);
        }
        Ok(())
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        let Some(to) = self.out.living() else {
            return Ok(());
        };
        match completed.name {
            ACKNOWLEDGEMENT => {
                self.out.progress.fetched(POSITION_MAX, step.own)?;
                self.forget();
                self.write_reserved(&to, step)?;
            }
            Name(name) if name & WRITE != 0 => self.written(name & !WRITE),
            Name(place) => {
                self.reserved(place, step.own)?;
                if !self.write_reserved(&to, step)? {
                    self.fetch_tail(&to, step.effects);
                }
                self.answer(&to, step.effects);
            }
        }
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, _: Arrival, _: &mut Step<'_, M>) -> Checked {
        Err(UNEXPECTED)
    }

    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        let (to, place) = self.room(payload, step.effects)?;
        self.outgoing.put(place, payload, self.out.window.next_place(), step.own)?;
        let sending = self.out.take(payload);
        self.waiting.push_back(place);
        if self.number.is_none() {
            // The next `advance` detects and reports the same violation.
            let _ = self.greet(step.own);
        }
        self.reserve(&to, step.effects);
        Ok(sending)
    }

    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        self.room(payload, step.effects).map(|_| ())
    }

    fn ask_progress(&mut self, effects: &mut Effects) {
        if let Some(to) = self.out.living().filter(|_| !self.positions.is_empty()) {
            self.fetch_tail(&to, effects);
        }
    }

    /// True only once the tail has been READ: see [`Self::ask_progress`].
    fn is_drained(&self) -> bool {
        self.outgoing.is_empty() && self.positions.is_empty() && self.out.window.is_empty()
    }
}
