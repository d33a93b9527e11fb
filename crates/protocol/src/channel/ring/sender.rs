//! The sender of a ring.

use super::super::canary::mutant;
use super::super::effects::{InlineWrite, Notify, Peer};
use super::super::half::{
    Accepted, Checked, HalfRefusal, Own, OwnRegions, Payload, PeerRegions, Sending, Step,
    own as reach,
};
use super::super::kind::Kind;
use super::super::outbound::{BELL, Frame, FrameWord, ONE, Outbound, PushSender, padding};
use super::super::ring_layout::RingLayout;
use super::super::shape::Shape;
use super::{HEAD, RingBell, WORD, WORDS_STEP, layout};
use alloc::collections::VecDeque;
use farside_base::{Memory, OutOfBounds, RemoteSlice};

/// The sender half of a ring channel.
///
/// *Cost*: one WRITE per message; with a detached bell one more per batch. A message that crosses the end of a ring
/// that is not mirrored costs `ring-inlined` one more. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RingSender {
    bell: RingBell,
    ring: RingLayout,
    out: Outbound,
    /// The head that was announced to the receiver (detached bell).
    told: u64,
    /// Ends of the records with receives that are not known to be posted again (immediate).
    receives: VecDeque<u64>,
}

impl RingSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let bell = RingBell::of(kind);
        let receives_max = if bell == RingBell::Immediate { shape.slots } else { 0 };
        Self {
            bell,
            ring: layout(bell, shape),
            out: Outbound::new(shape, regions, shape.acknowledge, (WORD, WORDS_STEP)),
            told: 0,
            receives: VecDeque::with_capacity(receives_max as usize),
        }
    }

    #[cfg(test)]
    pub(super) const fn head_for_tests(&self) -> u64 {
        self.out.head
    }

    /// Whether a record fits besides what the receiver has not released.
    #[inline]
    fn has_room(&self, record: u64) -> bool {
        let extra = if mutant!(self.out, CreditOffByOne) { record } else { 0 };
        let used = self.out.head + record + self.bell.beside() - self.out.progress.tail();
        let receives = self.receives.len() < self.out.shape.slots as usize;
        used <= self.out.shape.ring_bytes + extra && (self.bell != RingBell::Immediate || receives)
    }

    /// The peer and the length for a message, if there is room for it.
    #[inline]
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        step: &mut Step<'_, M>,
    ) -> Accepted<(PeerRegions, u32)> {
        let (to, bytes) = self.out.check(payload)?;
        let record = self.bell.record(bytes);
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.out.look(step.own);
            self.acknowledged();
            if !self.has_room(record) {
                return Err(self.out.full(&to, step.effects));
            }
        }
        if self.out.window.has_room() { Ok((to, bytes)) } else { Err(HalfRefusal::Full) }
    }

    #[inline]
    fn advance_head(&mut self, record: u64) {
        self.out.head += record;
        if self.bell == RingBell::Immediate {
            self.receives.push_back(self.out.head);
        }
    }

    /// The offset of the WRITE of a record.
    #[inline]
    const fn offset(&self, record: u64) -> u64 {
        match self.bell {
            RingBell::Inlined => self.ring.down(self.out.head) - record,
            _ => self.ring.offset(self.out.head),
        }
    }

    fn emit<M: Memory>(
        &self,
        payload: Payload<'_>,
        (to, bytes): (PeerRegions, u32),
        step: &mut Step<'_, M>,
    ) -> Result<(), OutOfBounds> {
        let record = self.bell.record(bytes);
        let at = |offset| RemoteSlice { region: to.buffer, offset };
        let (length, padding) = (FrameWord::Word(u64::from(bytes) + 1), padding(bytes));
        let frame = match self.bell {
            RingBell::Immediate => Frame::BARE,
            // Padded, so that the next record joins it.
            RingBell::Detached => Frame { before: length, trailing: padding, ..Frame::BARE },
            RingBell::InlinedZeroing => {
                Frame { before: length, padding, after: FrameWord::One, ..Frame::BARE }
            }
            RingBell::Inlined => {
                let set =
                    matches!(payload, Payload::Bytes(_)) && mutant!(self.out, NextBellNotUnset);
                let next = u64::from_le_bytes([1; 8]);
                let before = if set { FrameWord::Word(next) } else { FrameWord::Zero };
                Frame { before, padding, after: length, ..Frame::BARE }
            }
        };
        if self.bell == RingBell::Inlined && !self.is_whole(record) {
            // The zero that this WRITE carries goes into the guard.
            let (next, zero) = (at(self.ring.down(self.out.head + record)), [0; 8]);
            step.effects.write_inline(Peer::ONLY, BELL, Notify::No, &[&zero], next, None);
        }
        let position = Some((self.out.head / WORD) as u32);
        let immediate = position.filter(|_| self.bell == RingBell::Immediate);
        let to = (at(self.offset(record)), immediate);
        self.out.write(self.out.name(), frame, payload, to, step)
    }

    /// Whether a record takes one WRITE.
    #[inline]
    const fn is_whole(&self, record: u64) -> bool {
        !matches!(self.bell, RingBell::Inlined)
            || self.ring.is_mirrored()
            || !self.ring.passes_end(self.out.head, record)
    }
}

impl PushSender for RingSender {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn outbound_ref(&self) -> &Outbound {
        &self.out
    }

    /// Forgets receives that are posted again.
    fn acknowledged(&mut self) {
        while self.receives.front().is_some_and(|end| *end <= self.out.progress.tail()) {
            self.receives.pop_front();
        }
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        reach(step.own.bells.store_word(ONE, 1))?;
        self.out.connected(to, step.effects);
        Ok(())
    }

    #[inline]
    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        let to = self.room(payload, step)?;
        let record = self.bell.record(to.1);
        if mutant!(self.out, BellBeforeData) && self.bell == RingBell::Detached {
            self.out.head += record;
            self.flush(step);
            self.out.head -= record;
        }
        let emitted = self.emit(payload, to, step);
        emitted.map_err(|_| HalfRefusal::NoSuch("staging memory"))?;
        self.advance_head(record);
        Ok(self.out.take(payload))
    }

    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        self.room(payload, step).map(|_| ())
    }

    #[inline]
    fn send_at_once<M: Memory>(
        &mut self,
        message: &[u8],
        own: Own<'_, M>,
        out: &mut InlineWrite,
    ) -> Option<Sending> {
        let bytes = u32::try_from(message.len()).ok()?;
        let record = self.bell.record(bytes);
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.out.look(own);
        }
        let may = self.is_whole(record)
            && bytes <= self.out.shape.message_bytes_max
            && self.has_room(record)
            && self.out.window.has_room();
        let region = self.out.living().filter(|_| may)?.buffer;
        let word = u64::from(bytes) + 1;
        let to = RemoteSlice { region, offset: self.offset(record) };
        let filled = match self.bell {
            RingBell::Detached => false, // its bell is a separate WRITE
            RingBell::Immediate => out.fill(message, to, (self.out.head / WORD) as u32),
            RingBell::InlinedZeroing => out.above(word, message, 1, to),
            RingBell::Inlined => out.below(message, word, to),
        };
        if !filled {
            return None;
        }
        self.advance_head(record);
        Some(self.out.window.take_done())
    }

    #[inline]
    fn flush<M: Memory>(&mut self, step: &mut Step<'_, M>) {
        if self.bell != RingBell::Detached || self.told == self.out.head {
            return;
        }
        if let Some(to) = self.out.living() {
            self.told = self.out.head;
            let upon_tail = mutant!(self.out, HeadUponTail);
            let offset = if upon_tail { 0 } else { HEAD };
            self.out.write_word(&to, offset, self.out.head, step.effects);
        }
    }
}
