//! The sender of indirect reads: it WRITEs each message to the destination that the receiver has requested.

use super::super::canary::mutant;
use super::super::effects::Effects;
use super::super::half::{
    Accepted, Checked, HalfRefusal, Own, OwnRegions, Payload, PeerRegions, Step, WORD, own as reach,
};
use super::super::kind::Kind;
use super::super::outbound::{Frame, Outbound, PushSender};
use super::super::read_slot::{Boxes, SIGNALS, bell_of};
use super::super::shape::{Shape, Signal};
use super::{PLACES, place_sequence, plan_receiver};
use crate::wire::Violation;
use farside_base::{Memory, RemoteSlice};

/// The sender half of `read-slot-indirect`.
///
/// *Cost*: one WRITE per message, and one of a bell if signals are words. No copy, no allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndirectSender {
    boxes: Boxes,
    /// The size of the receiver's buffer in bytes.
    buffer_bytes: u64,
    out: Outbound,
    /// The head at the last poll: an idle sender asks for the last acknowledgements.
    rested: u64,
}

impl IndirectSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let mut out = Outbound::new(shape, regions, shape.acknowledge, (1, 0));
        // Its only receiver acknowledges as reader 0 of `readers.rs`.
        out.progress.acknowledged_at(WORD);
        Self {
            boxes: Boxes::new(0, shape),
            buffer_bytes: plan_receiver(kind, shape).buffer_bytes,
            out,
            rested: 0,
        }
    }

    /// The destination of the next message, if the receiver has written it.
    #[inline]
    fn place<M: Memory>(&self, own: Own<'_, M>) -> Checked<Option<u64>> {
        let at = PLACES + self.boxes.slot(self.out.head) * WORD;
        let word = reach(own.bells.load_word(at))?;
        let (offset, sequence) = (word >> 24, word & 0xff_ffff);
        if sequence == place_sequence(self.out.head) {
            if offset + u64::from(self.boxes.message_bytes_max) > self.buffer_bytes {
                return Err(Violation("a place outside of the buffer"));
            }
            return Ok(Some(offset));
        }
        let before = self.out.head.checked_sub(self.boxes.slots);
        if word == 0 || before.is_some_and(|before| sequence == place_sequence(before)) {
            return Ok(None);
        }
        Err(Violation("a place of another message"))
    }

    fn write<M: Memory>(
        &self,
        payload: Payload<'_>,
        to: (&PeerRegions, u64),
        step: &mut Step<'_, M>,
    ) -> Accepted<()> {
        if payload.bytes() == 0 && self.out.shape.signal == Signal::Word {
            return Ok(());
        }
        let at = RemoteSlice { region: to.0.buffer, offset: to.1 };
        let number =
            Some(self.out.head as u32).filter(|_| self.out.shape.signal == Signal::Message);
        let written = self.out.write(self.out.name(), Frame::BARE, payload, (at, number), step);
        written.map_err(|_| HalfRefusal::NoSuch("staging memory"))
    }

    fn ring(&self, bytes: u32, to: &PeerRegions, effects: &mut Effects) {
        if self.out.shape.signal == Signal::Word {
            let offset = SIGNALS + self.boxes.slot(self.out.head) * WORD;
            self.out.write_word(to, offset, bell_of(self.out.head, bytes), effects);
        }
    }

    /// The peer, the length and the offset for a message, if there is room for it.
    #[inline]
    fn room<M: Memory>(
        &self,
        payload: Payload<'_>,
        own: Own<'_, M>,
    ) -> Accepted<(PeerRegions, u32, u64)> {
        let (to, bytes) = self.out.check(payload)?;
        // The next `advance` detects and reports the same violation.
        let place = self.place(own).ok().flatten();
        let place = place.filter(|_| self.out.window.has_room());
        place.map(|offset| (to, bytes, offset)).ok_or(HalfRefusal::Full)
    }
}

impl PushSender for IndirectSender {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn outbound_ref(&self) -> &Outbound {
        &self.out
    }

    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        self.place(step.own)?;
        self.out.look(step.own)?;
        let rests = core::mem::replace(&mut self.rested, self.out.head) == self.out.head;
        let asks = rests && self.out.progress.tail() < self.out.head;
        if let Some(to) = self.out.living().filter(|_| asks) {
            self.out.full(&to, step.effects);
        }
        Ok(())
    }

    #[inline]
    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        let (to, bytes, offset) = self.room(payload, step.own)?;
        let early = mutant!(self.out, BellBeforeData);
        if early {
            self.ring(bytes, &to, step.effects);
        }
        self.write(payload, (&to, offset), step)?;
        if !early {
            self.ring(bytes, &to, step.effects);
        }
        self.out.head += 1;
        let no_write = bytes == 0 && self.out.shape.signal == Signal::Word;
        Ok(self.out.take(if no_write { Payload::Bytes(&[]) } else { payload }))
    }

    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        self.room(payload, step.own).map(|_| ())
    }

    fn ask_progress(&mut self, _: &mut Effects) {}
}
