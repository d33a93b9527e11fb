//! The receiver of a shared ring.

use super::super::canary::{ChannelMutant, mutant};
use super::super::effects::{Effects, Name, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HeldMessage, Own, OwnRegions, PeerRegions,
    Received, Step, UNEXPECTED, checked_length, own as reach,
};
use super::super::inbound::{ReceiveHalf, post_receives};
use super::super::kind::Kind;
use super::super::releases::Releases;
use super::super::shape::Shape;
use super::repair::Repair;
use super::{Layout, RingWords, SharedRingBell, TAIL, WORD, header};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use farside_base::{Memory, Planted};

/// A message that is in the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ArrivedMessage {
    position: u64,
    /// The offset of its content.
    offset: u64,
    bytes: u32,
    peer: Peer,
}

/// The receiver half of a shared ring.
///
/// *Order*: that of positions with the inlined bell, that of arrival with immediate data. *Cost*: a poll of one word
/// while there is no message; no request except a word to each sender when it connects, and queries when one has
/// died. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SharedRingReceiver {
    layout: Layout,
    words: RingWords,
    shape: Shape,
    regions: OwnRegions,
    /// The position of the next message (inlined).
    next: u64,
    releases: Releases,
    /// Messages that have arrived and were not received by the program (immediate).
    arrived: VecDeque<ArrivedMessage>,
    /// Receives that are still to be posted for the first time.
    receives: u32,
    /// The tail that senders can READ.
    told: u64,
    repair: Repair,
    mutant: Planted<ChannelMutant>,
}

impl SharedRingReceiver {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let receives = super::plan_receiver(kind, shape).receives;
        Self {
            layout: Layout::of(kind, shape),
            words: RingWords::of(shape),
            shape: *shape,
            regions,
            next: 0,
            releases: Releases::default(),
            arrived: VecDeque::with_capacity(receives as usize),
            receives,
            told: 0,
            repair: Repair::new(shape),
            mutant: Planted::NONE,
        }
    }

    /// The position after everything that may be in the ring.
    const fn end(&self) -> u64 {
        self.releases.tail() + self.shape.ring_bytes
    }

    /// The next message, if it has arrived completely.
    #[inline]
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked<Option<ArrivedMessage>> {
        if self.layout.bell == SharedRingBell::Immediate {
            return Ok(self.arrived.pop_front());
        }
        if self.next >= self.end() {
            // The ring is full: the oldest record, which is still held, is at this offset.
            return Ok(None);
        }
        let first = self.layout.ring.offset(self.next);
        let word = reach(own.buffer.load_word(first))?;
        if word == 0 {
            return Ok(None);
        }
        let length = u64::from((word as u32).wrapping_sub(1));
        let bytes = checked_length(length, self.shape.message_bytes_max)?;
        let peer = Peer((word >> 32) as u16);
        if header(bytes, peer.0, self.next) != word || !self.repair.has_number(peer) {
            return Err(Violation("an invalid header"));
        }
        let record = self.layout.record(bytes);
        if self.next + record > self.end() {
            return Err(Violation("a message beyond the ring"));
        }
        let last = first + record - WORD;
        match reach(own.buffer.load_word(last))? {
            0 if !mutant!(self, TrailerUnchecked) => Ok(None),
            0 | 1 => {
                let offset = last - u64::from(bytes);
                if !self.releases.hold(self.next, self.next + record) {
                    return Err(Violation("overlapping messages"));
                }
                let message = ArrivedMessage { position: self.next, offset, bytes, peer };
                self.next += record;
                Ok(Some(message))
            }
            _ => Err(Violation("a last word that is neither zero nor one")),
        }
    }

    /// Skips incomplete records that dead senders have left; false if nothing was skipped.
    #[inline]
    fn pass<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<bool> {
        if self.repair.is_idle(self.releases.tail()) {
            return Ok(false);
        }
        let (gap, next) = self.releases.gap();
        let Some(vacant) = self.repair.vacant(gap, step)? else {
            return Ok(false);
        };
        let end = next.map_or(vacant, |next| vacant.min(next));
        if self.layout.bell == SharedRingBell::InlinedZeroing {
            // Dead senders have written only within the room that they knew of.
            reach(self.layout.ring.clear(gap, end.min(self.end()), step.own.buffer))?;
            self.next = end;
        }
        self.releases.pass(gap, end);
        self.publish(step.own);
        Ok(true)
    }

    /// Publishes the position up to which everything is released.
    #[inline]
    fn publish<M: Memory>(&mut self, own: Own<'_, M>) {
        let tail = self.releases.tail();
        if tail > self.told {
            self.told = tail;
            let stored = match self.words.tail_apart {
                true => own.counters.store_word(TAIL, tail),
                false => own.bells.store_word(TAIL, tail),
            };
            debug_assert!(stored.is_ok(), "the plan has this word");
        }
    }
}

impl ReceiveHalf for SharedRingReceiver {
    #[cfg(canary)]
    fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self.repair.mutant = self.mutant;
        self
    }

    fn connected(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        step: &mut Step<'_, impl Memory>,
    ) -> Checked {
        post_receives(peer, core::mem::take(&mut self.receives), self.regions, step.effects);
        self.repair.connected(peer, regions, step)
    }

    fn lost(&mut self, peer: Peer) {
        self.repair.lost(peer);
    }

    fn completed<M: Memory>(&mut self, _: Completed, _: &mut Step<'_, M>) -> Checked {
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let Arrival { peer, bytes, .. } = arrival;
        self.wasted(peer, arrival.name, step.effects);
        let immediate = arrival.immediate.filter(|_| self.layout.bell == SharedRingBell::Immediate);
        let position = self.releases.position(immediate.ok_or(UNEXPECTED)?, WORD);
        if bytes > self.shape.message_bytes_max || position + self.layout.record(bytes) > self.end()
        {
            return self.blame(peer, "a bell out of range");
        }
        if !self.releases.hold(position, position + self.layout.record(bytes)) {
            return self.blame(peer, "overlapping messages");
        }
        let offset = self.layout.ring.offset(position);
        self.arrived.push_back(ArrivedMessage { position, offset, bytes, peer });
        Ok(())
    }

    fn wasted(&mut self, peer: Peer, _: Name, effects: &mut Effects) {
        if self.layout.bell == SharedRingBell::Immediate {
            post_receives(peer, 1, self.regions, effects);
        }
    }

    #[inline]
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        loop {
            if let Some(ArrivedMessage { position, offset, bytes, peer }) = self.look(step.own)? {
                let content = Content::Buffer { offset, bytes };
                return Ok(Some(Received { held: HeldMessage(position), peer, content }));
            }
            if !self.pass(step)? {
                return Ok(None);
            }
        }
    }

    #[inline]
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        let (start, end) = self.releases.release(held)?;
        if self.layout.bell == SharedRingBell::InlinedZeroing && !mutant!(self, NotZeroed) {
            let cleared = step.own.buffer.clear(self.layout.ring.offset(start), end - start);
            debug_assert!(cleared.is_ok(), "a record is within the buffer");
        }
        self.publish(step.own);
        Ok(())
    }
}

impl SharedRingReceiver {
    /// Reports a violation of a living sender. A late message of a dead one may arrive at a skipped position.
    fn blame(&self, peer: Peer, text: &'static str) -> Checked {
        if self.repair.is_connected(peer) { Err(Violation(text)) } else { Ok(()) }
    }
}
