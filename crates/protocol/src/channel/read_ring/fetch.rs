//! The READs of a reader of a ring, and their completions.

use super::super::canary::mutant;
use super::super::checksum::checksum;
use super::super::effects::{Effects, Peer};
use super::super::half::{Checked, Own, PeerRegions, Step, own as reach};
use super::super::shape::Signal;
use super::receiver::{FLYING, Flying, ReadRingReceiver};
use super::{COPY, ReadRingForm, SIGNALS, WORD, sequence};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RemoteSlice};

impl ReadRingReceiver {
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
    pub(super) fn read_head(&mut self, peer: &PeerRegions, effects: &mut Effects) {
        self.flying = Some(Flying::Head);
        let into =
            LocalSlice { region: self.position.inbound.regions.bells, offset: COPY, bytes: 8 };
        let from = self.bell.at(0, peer);
        effects.read(Peer::ONLY, FLYING, into, from);
    }

    /// READs the bell of the next record, unless a held record occupies its position here.
    pub(super) fn read_bell(&mut self, peer: &PeerRegions, effects: &mut Effects) {
        if self.here + WORD <= self.limit() {
            self.read(Flying::Bell, self.here, self.here + WORD, peer, effects);
        }
    }

    /// Requests the next message, if no READ is in flight.
    pub(super) fn ask<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
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
    pub(super) fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
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
    pub(super) fn advance_to(&mut self, head: u64) -> Checked {
        if head < self.head || head > self.limit() || !head.is_multiple_of(WORD) {
            return Err(Violation("a head out of range"));
        }
        self.head = head;
        Ok(())
    }

    /// Handles the completion of the READ in flight.
    pub(super) fn landed<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
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
    pub(super) fn rung(&self, bell: u64, position: u64) -> Checked<Option<u32>> {
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
