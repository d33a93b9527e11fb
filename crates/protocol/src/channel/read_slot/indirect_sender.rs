//! The sender of indirect reads: it WRITEs each message to the destination that the receiver has requested.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Progress};
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, Name, Notify};
use super::super::half::{
    Arrival, Completed, Half, HalfRefusal, Own, OwnRegions, Payload, Peer, PeerRegions, SendHalf,
    Sending, own as reach,
};
use super::super::kind::Kind;
use super::super::readers::sender_words;
use super::super::shape::{Shape, Signal};
use super::super::window::Window;
use super::{Boxes, PROGRESS, SIGNALS, WORD, bell_of, one_reader, place_sequence, plan_receiver};
use crate::wire::Violation;
use farside_base::{Memory, RemoteSlice};

/// The name of every bell; that of a message is its index in the window.
const BELL: Name = Name(1 << 16);

/// The sender half of `read-slot-indirect`.
///
/// *Cost*: one WRITE per message, and one of a bell if signals are words. No copy, no allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndirectSender {
    signal: Signal,
    boxes: Boxes,
    /// The offset of the destinations.
    places: u64,
    /// The size of the receiver's buffer in bytes.
    buffer_bytes: u64,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    lost: bool,
    /// The number of the next message.
    head: u64,
    progress: Progress,
    window: Window,
    /// The head at the last poll: an idle sender asks for the last acknowledgements.
    rested: u64,
    canary: ChannelCanary,
}

impl IndirectSender {
    pub(super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        Self {
            signal: shape.signal,
            boxes: Boxes::new(0, shape),
            places: sender_words(&one_reader(shape)),
            buffer_bytes: plan_receiver(kind, shape).buffer_bytes,
            regions,
            peer: None,
            lost: false,
            head: 0,
            progress: Progress::new(shape.acknowledge, Peer::ONLY, 1, PROGRESS),
            window: Window::default(),
            rested: 0,
            canary: ChannelCanary::default(),
        }
    }

    #[cfg(canary)]
    pub(super) fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self
    }

    /// The destination of the next message, if the receiver has written it.
    #[inline]
    fn place<M: Memory>(&self, own: Own<'_, M>) -> Result<Option<u64>, Violation> {
        let at = self.places + self.boxes.slot(self.head) * WORD;
        let word = reach(own.bells.load_word(at))?;
        let (offset, sequence) = (word >> 24, word & 0xff_ffff);
        if sequence == place_sequence(self.head) {
            if offset + u64::from(self.boxes.message_bytes_max) > self.buffer_bytes {
                return Err(Violation("a place outside of the buffer"));
            }
            return Ok(Some(offset));
        }
        let before = self.head.checked_sub(self.boxes.slots);
        if word == 0 || before.is_some_and(|before| sequence == place_sequence(before)) {
            return Ok(None);
        }
        Err(Violation("a place of another message"))
    }

    fn write(&self, payload: Payload<'_>, to: &PeerRegions, offset: u64, effects: &mut Effects) {
        let name = Name(self.window.next_place());
        let at = RemoteSlice { region: to.buffer, offset };
        let immediate = match self.signal {
            Signal::Message => Some(self.head as u32),
            Signal::Word if payload.bytes() == 0 => return,
            Signal::Word => None,
        };
        match payload {
            Payload::Bytes(message) => {
                effects.write_inline(Peer::ONLY, name, Notify::No, &[message], at, immediate);
            }
            Payload::Gather(message) => {
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &[message], at, immediate);
            }
        }
    }

    fn ring(&self, bytes: u32, to: &PeerRegions, effects: &mut Effects) {
        if self.signal == Signal::Word {
            let word = bell_of(self.head, bytes).to_le_bytes();
            let offset = SIGNALS + self.boxes.slot(self.head) * WORD;
            let at = RemoteSlice { region: to.bells, offset };
            effects.write_inline(Peer::ONLY, BELL, Notify::No, &[&word], at, None);
        }
    }
}

impl IndirectSender {
    /// The peer and the offset for a message, if there is room for it.
    #[inline]
    fn room<M: Memory>(
        &self,
        payload: Payload<'_>,
        own: Own<'_, M>,
    ) -> Result<(PeerRegions, u64), HalfRefusal> {
        let Some(to) = self.peer else {
            return Err(HalfRefusal::NotConnected);
        };
        if self.lost {
            return Err(HalfRefusal::Lost);
        }
        let bytes_max = self.boxes.message_bytes_max;
        if payload.bytes() > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        // The next `advance` detects and reports the same violation.
        let place = self.place(own).ok().flatten();
        let place = place.filter(|_| self.window.has_room());
        place.map(|offset| (to, offset)).ok_or(HalfRefusal::Full)
    }
}

impl Half for IndirectSender {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.peer = Some(regions);
        self.progress.connected(&self.regions, effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.lost = true;
        self.window.clear();
    }

    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.place(own)?;
        self.progress.look(self.head, own)?;
        let rests = core::mem::replace(&mut self.rested, self.head) == self.head;
        if let Some(to) =
            self.peer.filter(|_| rests && !self.lost && self.progress.tail() < self.head)
        {
            self.progress.fetch(&to, &self.regions, effects);
        }
        Ok(())
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        match completed.name {
            ACKNOWLEDGEMENT => self.progress.fetched(self.head, own)?,
            BELL => {}
            Name(place) => self.window.done(place),
        }
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.progress.arrived(self.head, arrival.immediate, &self.regions, effects)
    }
}

impl SendHalf for IndirectSender {
    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        let (to, offset) = self.room(payload, own)?;
        let bytes = payload.bytes() as u32;
        if self.canary.is(ChannelMutant::BellBeforeData) {
            self.ring(bytes, &to, effects);
            self.write(payload, &to, offset, effects);
        } else {
            self.write(payload, &to, offset, effects);
            self.ring(bytes, &to, effects);
        }
        self.head += 1;
        let waits = bytes > 0 || self.signal == Signal::Message;
        Ok(match payload {
            Payload::Gather(_) if waits => self.window.take(),
            Payload::Gather(_) | Payload::Bytes(_) => self.window.take_done(),
        })
    }

    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        self.room(payload, own).map(|_| ())
    }

    fn flush<M: Memory>(&mut self, _: Own<'_, M>, _: &mut Effects) {}

    fn is_done(&self, sending: Sending) -> bool {
        self.window.is_done(sending)
    }

    fn is_drained(&self) -> bool {
        self.window.is_empty() && self.progress.tail() == self.head
    }
}
