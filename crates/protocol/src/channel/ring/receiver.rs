//! The receiver of a ring.

use super::super::canary::mutant;
use super::super::effects::Peer;
use super::super::half::{
    Accepted, Arrival, Checked, Content, HeldMessage, Own, OwnRegions, Received, Step, own as reach,
};
use super::super::inbound::{InboundPeer, ReceiveHalf, drain_one_by_one};
use super::super::kind::Kind;
use super::super::releases::Releases;
use super::super::ring_layout::RingLayout;
use super::super::shape::Shape;
use super::{HEAD, RingBell, WORD, layout};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use farside_base::Memory;

/// The size of a cache line on most processors.
const LINE: u64 = 64;

/// The receiver half of a ring channel.
///
/// *Order*: that of sending; `ring-immediate` on a fabric without `message_order`: any. *Cost*: a poll of one word
/// while there is no message; no request except an acknowledgement per half of the ring. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RingReceiver {
    bell: RingBell,
    ring: RingLayout,
    inbound: InboundPeer,
    /// The position of the next message.
    next: u64,
    /// The position up to which the detached bell announces messages.
    head: u64,
    releases: Releases,
    /// Position and size of messages that have arrived and were not received by the program (immediate).
    arrived: VecDeque<(u64, u32)>,
    /// The number of messages that the tail has passed since the last forced acknowledgement: their receives bound
    /// what the sender may have in flight (immediate).
    passed: u32,
}

impl RingReceiver {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let bell = RingBell::of(kind);
        let receives = if bell == RingBell::Immediate { shape.slots } else { 0 };
        Self {
            bell,
            ring: layout(bell, shape),
            inbound: InboundPeer::new(shape, regions, receives, (WORD, shape.ring_bytes)),
            next: 0,
            head: 0,
            releases: Releases::default(),
            arrived: VecDeque::with_capacity(receives as usize),
            passed: 0,
        }
    }

    #[cfg(test)]
    pub(super) const fn tail_for_tests(&self) -> u64 {
        self.releases.tail()
    }

    /// Position, offset and size of the next message of a ring with inlined bells, if there is one.
    #[inline(always)]
    fn look<M: Memory>(
        &mut self,
        bell: RingBell,
        own: Own<'_, M>,
    ) -> Checked<Option<(u64, u64, u32)>> {
        match bell {
            RingBell::Detached => self.look_detached(own),
            RingBell::Inlined => {
                let bell = self.ring.down(self.next);
                let word = reach(own.buffer.load_word(bell))?;
                if word == 0 {
                    // The message will be below its bell: prefetch its line together with that one.
                    own.buffer.expect_read(bell.saturating_sub(LINE), 1);
                    return Ok(None);
                }
                let bytes = self.inbound.length(word - 1)?;
                Ok(Some((self.next, bell - u64::from(bytes), bytes)))
            }
            RingBell::InlinedZeroing => {
                let full = self.next - self.releases.tail() >= self.inbound.shape.ring_bytes;
                if full && !mutant!(self.inbound, HeldTakenForNew) {
                    return Ok(None); // the oldest held message is at this offset
                }
                let first = self.ring.offset(self.next);
                let word = reach(own.buffer.load_word(first))?;
                if word == 0 {
                    own.buffer.expect_read(first + LINE, 1);
                    return Ok(None);
                }
                let bytes = self.inbound.length(word - 1)?;
                let last = first + self.bell.record(bytes) - WORD;
                match reach(own.buffer.load_word(last))? {
                    0 if !mutant!(self.inbound, TrailerUnchecked) => Ok(None),
                    0 | 1 => Ok(Some((self.next, last - u64::from(bytes), bytes))),
                    _ => Err(Violation("a last word that is neither zero nor one")),
                }
            }
            RingBell::Immediate => Ok(self
                .arrived
                .pop_front()
                .map(|(position, bytes)| (position, self.ring.offset(position), bytes))),
        }
    }

    /// Handles the release of a record.
    #[inline(always)]
    fn released<M: Memory>(
        &mut self,
        bell: RingBell,
        (start, end): (u64, u64),
        step: &mut Step<'_, M>,
    ) {
        if bell == RingBell::InlinedZeroing && !mutant!(self.inbound, NotZeroed) {
            let cleared = step.own.buffer.clear(self.ring.offset(start), end - start);
            debug_assert!(cleared.is_ok(), "a record is within the buffer");
        }
        self.inbound.processed(self.releases.tail(), step);
    }

    /// Passes messages to the program and releases them, while none is held.
    #[inline(always)]
    fn pass<M: Memory>(
        &mut self,
        bell: RingBell,
        max: usize,
        step: &mut Step<'_, M>,
        see: &mut impl FnMut(Received),
    ) -> (usize, Checked) {
        let mut taken = 0;
        while taken < max {
            let (position, offset, bytes) = match self.look(bell, step.own) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err(violation) => return (taken, Err(violation)),
            };
            let content = Content::Buffer { offset, bytes };
            see(Received { held: HeldMessage(position), peer: Peer::ONLY, content });
            self.next = position + bell.record(bytes);
            self.releases.pass_to(self.next);
            self.released(bell, (position, self.next), step);
            taken += 1;
        }
        (taken, Ok(()))
    }

    fn look_detached<M: Memory>(&mut self, own: Own<'_, M>) -> Checked<Option<(u64, u64, u32)>> {
        if self.head == self.next {
            let upon_tail = mutant!(self.inbound, HeadUponTail);
            let head = reach(own.bells.load_word(if upon_tail { 0 } else { HEAD }))?;
            // A sender with its WRITEs in order never sends a bell below the one seen.
            let ahead = head.wrapping_sub(self.releases.tail());
            if head < self.head
                || ahead > self.inbound.shape.ring_bytes
                || !head.is_multiple_of(WORD)
            {
                return Err(Violation("a bell out of range"));
            }
            self.head = head;
            if head == self.next {
                let first = self.ring.offset(self.next);
                own.buffer.expect_read(first, 1 + LINE as usize);
                return Ok(None);
            }
        }
        let first = self.ring.offset(self.next);
        let word = reach(own.buffer.load_word(first))?;
        if word == 0 {
            return Err(Violation("a bell before its message"));
        }
        let bytes = self.inbound.length(word - 1)?;
        if self.next + self.bell.record(bytes) > self.head {
            return Err(Violation("a message beyond its bell"));
        }
        Ok(Some((self.next, first + WORD, bytes)))
    }
}

impl ReceiveHalf for RingReceiver {
    fn inbound(&mut self) -> Option<&mut InboundPeer> {
        Some(&mut self.inbound)
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let immediate = self.inbound.immediate(arrival, step.effects)?;
        self.inbound.length(u64::from(arrival.bytes))?;
        let position = self.releases.position(immediate, WORD);
        if position + self.bell.record(arrival.bytes)
            > self.releases.tail() + self.inbound.shape.ring_bytes
        {
            return Err(Violation("a bell out of range"));
        }
        self.arrived.push_back((position, arrival.bytes));
        Ok(())
    }

    #[inline]
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        let Some((position, offset, bytes)) = self.look(self.bell, step.own)? else {
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
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        let before = self.releases.count();
        let extent = self.releases.release(held)?;
        self.released(self.bell, extent, step);
        // Messages after a held one are acknowledged together with it: until then the sender cannot know.
        self.passed += (before - self.releases.count()) as u32;
        let receives = self.inbound.receives;
        if receives > 0 && self.passed >= receives.div_ceil(2) {
            self.passed = 0;
            self.inbound.must(step.effects);
        }
        Ok(())
    }

    #[inline]
    fn drain<M: Memory>(
        &mut self,
        max: usize,
        step: &mut Step<'_, M>,
        see: &mut impl FnMut(Received),
    ) -> (usize, Checked) {
        if self.releases.count() > 0 {
            return drain_one_by_one(self, max, step, see);
        }
        match self.bell {
            RingBell::Detached => self.pass(RingBell::Detached, max, step, see),
            RingBell::InlinedZeroing => self.pass(RingBell::InlinedZeroing, max, step, see),
            RingBell::Inlined => self.pass(RingBell::Inlined, max, step, see),
            RingBell::Immediate => drain_one_by_one(self, max, step, see),
        }
    }
}
