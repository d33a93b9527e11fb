//! The sender of a ring.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Progress};
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, InlineWrite, Name, Notify};
use super::super::half::{
    Arrival, Completed, Half, HalfRefusal, Own, OwnRegions, Payload, Peer, PeerRegions, SendHalf,
    Sending, own as reach,
};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::super::window::Window;
use super::{HEAD, ONE, PROGRESS, RingBell, RingOffsets, WORD, WORDS, WORDS_STEP, ZEROES};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// Names of requests besides acknowledgements: the window index of a message, or this.
const BELL: Name = Name(1 << 16);

/// The sender half of a ring channel.
///
/// *Cost*: one WRITE per message; with a detached bell one more per batch. A message that crosses the end of a ring
/// that is not mirrored costs `ring-inlined` one more. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RingSender {
    bell: RingBell,
    place: RingOffsets,
    ring_bytes: u64,
    message_bytes_max: u32,
    mirrored: bool,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    lost: bool,
    /// The position of the next message.
    head: u64,
    /// The head that was announced to the receiver (detached bell).
    told: u64,
    progress: Progress,
    window: Window,
    /// Ends of the records with receives that are not known to be posted again (immediate).
    receives: VecDeque<u64>,
    receives_max: u32,
    canary: ChannelCanary,
}

impl RingSender {
    /// Creates a sender without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let bell = RingBell::of(kind);
        let receives_max = if bell == RingBell::Immediate { shape.slots } else { 0 };
        Self {
            bell,
            place: RingOffsets::new(bell, shape),
            ring_bytes: shape.ring_bytes,
            message_bytes_max: shape.message_bytes_max,
            mirrored: shape.mirrored,
            regions,
            peer: None,
            lost: false,
            head: 0,
            told: 0,
            progress: Progress::new(shape.acknowledge, Peer::ONLY, WORD, PROGRESS),
            window: Window::default(),
            receives: VecDeque::with_capacity(receives_max as usize),
            receives_max,
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self
    }

    #[cfg(test)]
    pub(super) const fn head_for_tests(&self) -> u64 {
        self.head
    }

    /// Whether a record fits besides what the receiver has not released.
    #[inline]
    fn has_room(&self, record: u64) -> bool {
        let extra = if self.canary.is(ChannelMutant::CreditOffByOne) { record } else { 0 };
        self.head + record + self.bell.beside() - self.progress.tail() <= self.ring_bytes + extra
            && self.receives_left()
    }

    #[inline]
    fn receives_left(&self) -> bool {
        self.bell != RingBell::Immediate || self.receives.len() < self.receives_max as usize
    }

    fn forget_receives(&mut self) {
        while self.receives.front().is_some_and(|end| *end <= self.progress.tail()) {
            self.receives.pop_front();
        }
    }

    /// The peer and the length for a message, if there is room for it.
    #[inline]
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(PeerRegions, u32), HalfRefusal> {
        let Some(to) = self.peer else {
            return Err(HalfRefusal::NotConnected);
        };
        if self.lost {
            return Err(HalfRefusal::Lost);
        }
        let bytes_max = self.message_bytes_max;
        let bytes = payload.bytes();
        if bytes > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        let bytes = bytes as u32;
        let record = self.bell.record(bytes);
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.progress.look(self.head, own);
            self.forget_receives();
            if !self.has_room(record) {
                self.progress.fetch(&to, &self.regions, effects);
                return Err(HalfRefusal::Full);
            }
        }
        if !self.window.has_room() {
            return Err(HalfRefusal::Full);
        }
        Ok((to, bytes))
    }

    /// A slice of the staging words.
    const fn staged(&self, offset: u64, bytes: u64) -> LocalSlice {
        LocalSlice { region: self.regions.bells, offset, bytes: bytes as u32 }
    }

    /// Stores a message's length in its staging slot; returns the offset.
    fn stage<M: Memory>(&self, length: u64, own: Own<'_, M>) -> Result<u64, Violation> {
        let at = WORDS + WORDS_STEP * u64::from(self.window.next_place());
        reach(own.bells.store_word(at, length))?;
        Ok(at)
    }

    fn emit<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        bytes: u32,
        to: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let length = u64::from(bytes) + 1;
        let padding = u64::from(bytes).next_multiple_of(8) - u64::from(bytes);
        let at = |offset| RemoteSlice { region: to.buffer, offset };
        let name = Name(self.window.next_place());
        let word = length.to_le_bytes();
        let zeroes = [0; WORD as usize];
        let pad = zeroes.get(..padding as usize).unwrap_or_default();
        let immediate = match self.bell {
            RingBell::Immediate => Some((self.head / WORD) as u32),
            _ => None,
        };
        let up = at(self.place.up(self.head));
        match (self.bell, payload) {
            (RingBell::Immediate, Payload::Bytes(message)) => {
                effects.write_inline(Peer::ONLY, name, Notify::No, &[message], up, immediate);
            }
            (RingBell::Immediate, Payload::Gather(message)) => {
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &[message], up, immediate);
            }
            (RingBell::Detached, Payload::Bytes(message)) => {
                // Padded, so that the next record joins it.
                let parts = [&word, message, pad];
                effects.write_inline(Peer::ONLY, name, Notify::No, &parts, up, None);
            }
            (RingBell::Detached, Payload::Gather(message)) => {
                let word = [self.staged(self.stage(length, own)?, WORD)];
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &[&word, message], up, None);
            }
            (RingBell::InlinedZeroing, Payload::Bytes(message)) => {
                let one = 1_u64.to_le_bytes();
                let parts = [&word, pad, message, &one];
                effects.write_inline(Peer::ONLY, name, Notify::No, &parts, up, None);
            }
            (RingBell::InlinedZeroing, Payload::Gather(message)) => {
                let word = [self.staged(self.stage(length, own)?, WORD + padding)];
                let one = [self.staged(ONE, WORD)];
                let parts = [&word, message, &one[..]];
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &parts, up, None);
            }
            (RingBell::Inlined, _) => return self.emit_downwards(payload, bytes, to, own, effects),
        }
        Ok(())
    }

    /// Emits a message of the ring that grows downwards: its own zero first, its length last.
    fn emit_downwards<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        bytes: u32,
        to: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let length = u64::from(bytes) + 1;
        let padding = u64::from(bytes).next_multiple_of(8) - u64::from(bytes);
        let record = self.bell.record(bytes);
        let at = |offset| RemoteSlice { region: to.buffer, offset };
        let name = Name(self.window.next_place());
        let bell = self.place.down(self.head);
        if !self.mirrored && self.place.passes_end(self.head, record) {
            // The zero that this WRITE carries goes into the guard.
            let next = at(self.place.down(self.head + record));
            effects.write_inline(Peer::ONLY, BELL, Notify::No, &[&[0; 8]], next, None);
        }
        let down = at(bell - record);
        match payload {
            Payload::Bytes(message) => {
                let unset =
                    if self.canary.is(ChannelMutant::NextBellNotUnset) { [1; 8] } else { [0; 8] };
                let pad = [0; WORD as usize];
                let pad = pad.get(..padding as usize).unwrap_or_default();
                let word = length.to_le_bytes();
                let parts = [&unset, pad, message, &word];
                effects.write_inline(Peer::ONLY, name, Notify::No, &parts, down, None);
            }
            Payload::Gather(message) => {
                let zeroes = [self.staged(ZEROES, WORD + padding)];
                let word = [self.staged(self.stage(length, own)?, WORD)];
                let parts = [&zeroes, message, &word[..]];
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &parts, down, None);
            }
        }
        Ok(())
    }
}

impl Half for RingSender {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        reach(own.bells.store_word(ONE, 1))?;
        self.peer = Some(regions);
        self.progress.connected(&self.regions, effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.lost = true;
        self.window.clear();
    }

    fn advance<M: Memory>(&mut self, own: Own<'_, M>, _: &mut Effects) -> Result<(), Violation> {
        self.progress.look(self.head, own)?;
        self.forget_receives();
        Ok(())
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        match completed.name {
            ACKNOWLEDGEMENT => {
                self.progress.fetched(self.head, own)?;
                self.forget_receives();
            }
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
        self.progress.arrived(self.head, arrival.immediate, &self.regions, effects)?;
        self.forget_receives();
        Ok(())
    }
}

impl SendHalf for RingSender {
    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        let (to, bytes) = self.room(payload, own, effects)?;
        let record = self.bell.record(bytes);
        if self.canary.is(ChannelMutant::BellBeforeData) && self.bell == RingBell::Detached {
            self.head += record;
            self.flush(own, effects);
            self.head -= record;
        }
        if self.emit(payload, bytes, to, own, effects).is_err() {
            return Err(HalfRefusal::NoSuch("staging memory"));
        }
        self.head += record;
        if self.bell == RingBell::Immediate {
            self.receives.push_back(self.head);
        }
        Ok(match payload {
            Payload::Bytes(_) => self.window.take_done(),
            Payload::Gather(_) => self.window.take(),
        })
    }

    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        self.room(payload, own, effects).map(|_| ())
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
        let whole = self.bell != RingBell::Inlined
            || self.mirrored
            || !self.place.passes_end(self.head, record);
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.progress.look(self.head, own);
        }
        let may = whole
            && !self.lost
            && bytes <= self.message_bytes_max
            && self.has_room(record)
            && self.window.has_room();
        let region = self.peer.filter(|_| may)?.buffer;
        let word = u64::from(bytes) + 1;
        let up = RemoteSlice { region, offset: self.place.up(self.head) };
        let filled = match self.bell {
            RingBell::Detached => false, // its bell is a separate WRITE
            RingBell::Immediate => out.fill(message, up, (self.head / WORD) as u32),
            RingBell::InlinedZeroing => out.above(word, message, 1, up),
            RingBell::Inlined => {
                let offset = self.place.down(self.head) - record;
                out.below(message, word, RemoteSlice { region, offset })
            }
        };
        if !filled {
            return None;
        }
        self.head += record;
        if self.bell == RingBell::Immediate {
            self.receives.push_back(self.head);
        }
        Some(self.window.take_done())
    }

    #[inline]
    fn flush<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        if self.bell != RingBell::Detached || self.told == self.head {
            return;
        }
        if let Some(to) = self.peer.filter(|_| !self.lost) {
            self.told = self.head;
            let offset = if self.canary.is(ChannelMutant::HeadUponTail) { 0 } else { HEAD };
            let place = RemoteSlice { region: to.bells, offset };
            let head = self.head.to_le_bytes();
            effects.write_inline(Peer::ONLY, BELL, Notify::No, &[&head], place, None);
        }
    }

    fn ask_progress(&mut self, effects: &mut Effects) {
        if let Some(to) = self.peer.filter(|_| !self.lost) {
            self.progress.fetch(&to, &self.regions, effects);
        }
    }

    fn is_done(&self, sending: Sending) -> bool {
        self.window.is_done(sending)
    }

    fn is_drained(&self) -> bool {
        self.window.is_empty() && self.progress.tail() == self.head
    }
}
