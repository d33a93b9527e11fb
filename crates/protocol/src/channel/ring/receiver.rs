//! The receiver of a ring.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, Name};
use super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received, drain_one_by_one, own as reach,
};
use super::super::kind::Kind;
use super::super::releases::Releases;
use super::super::shape::Shape;
use super::{HEAD, PROGRESS, RingBell, RingOffsets, WORD};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use farside_base::{LocalSlice, Memory};

/// The size of a cache line on most processors.
const LINE: u64 = 64;

/// The name of every receive: they are all alike.
const RECEIVE: Name = Name(0);

/// The receiver half of a ring channel.
///
/// *Order*: that of sending; `ring-immediate` on a fabric without `message_order`: any. *Cost*: a poll of one word
/// while there is no message; no request except an acknowledgement per half of the ring. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RingReceiver {
    bell: RingBell,
    place: RingOffsets,
    ring_bytes: u64,
    message_bytes_max: u32,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    /// The position of the next message.
    next: u64,
    /// The position up to which the detached bell announces messages.
    head: u64,
    releases: Releases,
    /// Position and size of messages that have arrived and were not received by the program (immediate).
    arrived: VecDeque<(u64, u32)>,
    receives: u32,
    /// The number of messages that the tail has passed since the last forced acknowledgement: their receives bound
    /// what the sender may have in flight (immediate).
    passed: u32,
    acknowledger: Acknowledger,
    canary: ChannelCanary,
}

impl RingReceiver {
    /// Creates a receiver without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let bell = RingBell::of(kind);
        let receives = if bell == RingBell::Immediate { shape.slots } else { 0 };
        let (back, capacity) = (shape.acknowledge, shape.ring_bytes);
        Self {
            bell,
            place: RingOffsets::new(bell, shape),
            ring_bytes: shape.ring_bytes,
            message_bytes_max: shape.message_bytes_max,
            regions,
            peer: None,
            next: 0,
            head: 0,
            releases: Releases::default(),
            arrived: VecDeque::with_capacity(receives as usize),
            receives,
            passed: 0,
            acknowledger: Acknowledger::new(back, Peer::ONLY, WORD, PROGRESS, capacity),
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self.acknowledger.set_canary(self.canary);
        self
    }

    #[cfg(test)]
    pub(super) const fn tail_for_tests(&self) -> u64 {
        self.releases.tail()
    }

    fn post(&self, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 };
        effects.receive(Peer::ONLY, RECEIVE, into);
    }

    /// The length in a word that is not zero.
    #[inline]
    fn length(&self, word: u64) -> Result<u32, Violation> {
        match u32::try_from(word - 1) {
            Ok(bytes) if bytes <= self.message_bytes_max => Ok(bytes),
            _ => Err(Violation("a length that no message has")),
        }
    }

    /// Position, offset and size of the next message of a ring with inlined bells, if there is one.
    #[inline(always)]
    fn look<M: Memory>(
        &mut self,
        bell: RingBell,
        own: Own<'_, M>,
    ) -> Result<Option<(u64, u64, u32)>, Violation> {
        match bell {
            RingBell::Detached => self.look_detached(own),
            RingBell::Inlined => {
                let bell = self.place.down(self.next);
                let word = reach(own.buffer.load_word(bell))?;
                if word == 0 {
                    // The message will be below its bell: prefetch its line together with that one.
                    own.buffer.expect_read(bell.saturating_sub(LINE), 1);
                    return Ok(None);
                }
                let bytes = self.length(word)?;
                Ok(Some((self.next, bell - u64::from(bytes), bytes)))
            }
            RingBell::InlinedZeroing => {
                let full = self.next - self.releases.tail() >= self.ring_bytes;
                if full && !self.canary.is(ChannelMutant::HeldTakenForNew) {
                    return Ok(None); // the oldest held message is at this offset
                }
                let first = self.place.up(self.next);
                let word = reach(own.buffer.load_word(first))?;
                if word == 0 {
                    own.buffer.expect_read(first + LINE, 1);
                    return Ok(None);
                }
                let bytes = self.length(word)?;
                let last = first + self.bell.record(bytes) - WORD;
                match reach(own.buffer.load_word(last))? {
                    0 if !self.canary.is(ChannelMutant::TrailerUnchecked) => Ok(None),
                    0 | 1 => Ok(Some((self.next, last - u64::from(bytes), bytes))),
                    _ => Err(Violation("a last word that is neither zero nor one")),
                }
            }
            RingBell::Immediate => Ok(self
                .arrived
                .pop_front()
                .map(|(position, bytes)| (position, self.place.up(position), bytes))),
        }
    }

    /// Handles the release of a record.
    #[inline(always)]
    fn released<M: Memory>(
        &mut self,
        bell: RingBell,
        start: u64,
        end: u64,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) {
        if bell == RingBell::InlinedZeroing && !self.canary.is(ChannelMutant::NotZeroed) {
            let cleared = own.buffer.clear(self.place.up(start), end - start);
            debug_assert!(cleared.is_ok(), "a record is within the buffer");
        }
        let tail = self.releases.tail();
        if tail > self.acknowledger.done() {
            self.acknowledger.processed(tail, self.peer.as_ref(), own, effects);
        }
    }

    /// Passes messages to the program and releases them, while none is held.
    #[inline(always)]
    fn pass<M: Memory>(
        &mut self,
        bell: RingBell,
        max: usize,
        own: Own<'_, M>,
        effects: &mut Effects,
        see: &mut impl FnMut(Received),
    ) -> (usize, Result<(), Violation>) {
        let mut taken = 0;
        while taken < max {
            let (position, offset, bytes) = match self.look(bell, own) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(violation) => return (taken, Err(violation)),
            };
            let content = Content::Buffer { offset, bytes };
            see(Received { held: HeldMessage(position), peer: Peer::ONLY, content });
            self.next = position + bell.record(bytes);
            self.releases.pass_to(self.next);
            self.released(bell, position, self.next, own, effects);
            taken += 1;
        }
        (taken, Ok(()))
    }

    fn look_detached<M: Memory>(
        &mut self,
        own: Own<'_, M>,
    ) -> Result<Option<(u64, u64, u32)>, Violation> {
        if self.head == self.next {
            let upon_tail = self.canary.is(ChannelMutant::HeadUponTail);
            let head = reach(own.bells.load_word(if upon_tail { 0 } else { HEAD }))?;
            // A sender with its WRITEs in order never sends a bell below the one seen.
            let ahead = head.wrapping_sub(self.releases.tail());
            if head < self.head || ahead > self.ring_bytes || !head.is_multiple_of(WORD) {
                return Err(Violation("a bell out of range"));
            }
            self.head = head;
            if head == self.next {
                let first = self.place.up(self.next);
                own.buffer.expect_read(first, 1 + LINE as usize);
                return Ok(None);
            }
        }
        let first = self.place.up(self.next);
        let word = reach(own.buffer.load_word(first))?;
        if word == 0 {
            return Err(Violation("a bell before its message"));
        }
        let bytes = self.length(word)?;
        if self.next + self.bell.record(bytes) > self.head {
            return Err(Violation("a message beyond its bell"));
        }
        Ok(Some((self.next, first + WORD, bytes)))
    }
}

impl Half for RingReceiver {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.peer = Some(regions);
        for _ in 0..self.receives {
            self.post(effects);
        }
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.peer = None;
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if completed.name == ACKNOWLEDGEMENT {
            self.acknowledger.completed(self.peer.as_ref(), effects);
        }
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(immediate) = arrival.immediate.filter(|_| self.bell == RingBell::Immediate) else {
            return Err(Violation("a message where none comes"));
        };
        self.post(effects);
        if arrival.bytes > self.message_bytes_max {
            return Err(Violation("a length that no message has"));
        }
        // Positions are sent as their low 32 bits, and are less than a ring ahead of the tail.
        let tail = self.releases.tail();
        let ahead = immediate.wrapping_sub((tail / WORD) as u32);
        let position = tail + u64::from(ahead) * WORD;
        if position + self.bell.record(arrival.bytes) > tail + self.ring_bytes {
            return Err(Violation("a bell out of range"));
        }
        self.arrived.push_back((position, arrival.bytes));
        Ok(())
    }
}

impl ReceiveHalf for RingReceiver {
    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        let Some((position, offset, bytes)) = self.look(self.bell, own)? else {
            return Ok(None);
        };
        let end = position + self.bell.record(bytes);
        if !self.releases.hold(position, end) {
            return Err(Violation("overlapping messages"));
        }
        if self.bell != RingBell::Immediate {
            self.next = end;
        }
        let content = Content::Buffer { offset, bytes };
        Ok(Some(Received { held: HeldMessage(position), peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let before = self.releases.count();
        let (start, end) = self.releases.release(held)?;
        self.released(self.bell, start, end, own, effects);
        // Messages after a held one are acknowledged together with it: until then the sender cannot know.
        self.passed += (before - self.releases.count()) as u32;
        if self.receives > 0 && self.passed >= self.receives.div_ceil(2) {
            self.passed = 0;
            self.acknowledger.must(self.peer.as_ref(), effects);
        }
        Ok(())
    }

    #[inline]
    fn drain<M: Memory>(
        &mut self,
        max: usize,
        own: Own<'_, M>,
        effects: &mut Effects,
        see: &mut impl FnMut(Received),
    ) -> (usize, Result<(), Violation>) {
        if self.releases.count() > 0 {
            return drain_one_by_one(self, max, own, effects, see);
        }
        match self.bell {
            RingBell::Detached => self.pass(RingBell::Detached, max, own, effects, see),
            RingBell::InlinedZeroing => self.pass(RingBell::InlinedZeroing, max, own, effects, see),
            RingBell::Inlined => self.pass(RingBell::Inlined, max, own, effects, see),
            RingBell::Immediate => drain_one_by_one(self, max, own, effects, see),
        }
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        self.acknowledger.now(self.peer.as_ref(), effects);
    }
}
