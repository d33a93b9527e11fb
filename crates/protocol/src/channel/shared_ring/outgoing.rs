//! A sender's messages in flight, and the construction of their WRITEs.

use super::super::effects::{Name, Notify, Peer};
use super::super::half::{
    Accepted, Checked, HalfRefusal, Own, OwnRegions, Payload, PeerRegions, Step, own as reach,
};
use super::super::kind::Kind;
use super::super::outbound::padding;
use super::super::shape::Shape;
use super::{HEADERS, HEADERS_STEP, Layout, ONE, SharedRingBell, WORD, header};
use alloc::vec;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RegionId, RemoteSlice};

/// The maximum number of slices of a message.
const SLICES: usize = 8;

/// A message in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct OutgoingMessage {
    bytes: u32,
    /// Its index in the window, unless its source was copied.
    source: Option<u32>,
    slices: [LocalSlice; SLICES],
    count: usize,
}

impl OutgoingMessage {
    const NONE: Self = Self {
        bytes: 0,
        source: None,
        slices: [LocalSlice { region: RegionId(0), offset: 0, bytes: 0 }; SLICES],
        count: 0,
    };
}

/// Messages by index: at most 64.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Outgoing {
    layout: Layout,
    regions: OwnRegions,
    /// Bytes of staging per message, in the sender's buffer.
    staging: u64,
    messages: Vec<OutgoingMessage>,
    /// One bit per index: in use.
    busy: u64,
}

impl Outgoing {
    pub(super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        Self {
            layout: Layout::of(kind, shape),
            regions,
            staging: super::staging(kind, shape),
            messages: vec![OutgoingMessage::NONE; super::places(shape) as usize],
            busy: 0,
        }
    }

    /// A free index.
    #[inline]
    pub(super) fn room(&self) -> Option<u32> {
        let place = self.busy.trailing_ones();
        Some(place).filter(|place| (*place as usize) < self.messages.len())
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.busy == 0
    }

    /// The size in bytes of the message at an index.
    #[inline]
    pub(super) fn bytes(&self, place: u32) -> u32 {
        self.messages.get(place as usize).map_or(0, |message| message.bytes)
    }

    /// Stores a message at a free index: slices by reference, with their source's index in the window; bytes by copy.
    pub(super) fn put<M: Memory>(
        &mut self,
        place: u32,
        payload: Payload<'_>,
        source: u32,
        own: Own<'_, M>,
    ) -> Accepted<()> {
        let mut message =
            OutgoingMessage { bytes: payload.bytes() as u32, ..OutgoingMessage::NONE };
        let slices = match payload {
            Payload::Bytes(bytes) => {
                let staged = self.stage(place, bytes, own);
                &[staged.map_err(|_| HalfRefusal::NoSuch("staging memory"))?]
            }
            Payload::Gather(slices) => {
                message.source = Some(source);
                slices
            }
        };
        let Some(room) = message.slices.get_mut(..slices.len()) else {
            return Err(HalfRefusal::Form("at most eight slices"));
        };
        room.copy_from_slice(slices);
        message.count = slices.len();
        if let Some(room) = self.messages.get_mut(place as usize) {
            *room = message;
            self.busy |= 1 << place;
        }
        Ok(())
    }

    /// Copies a message into its staging slot, with the words around it except its header.
    fn stage<M: Memory>(&self, place: u32, bytes: &[u8], own: Own<'_, M>) -> Checked<LocalSlice> {
        let (region, offset) = (self.regions.buffer, u64::from(place) * self.staging);
        let length = bytes.len() as u32;
        if self.layout.bell == SharedRingBell::Immediate {
            reach(own.buffer.write(offset, bytes))?;
            return Ok(LocalSlice { region, offset, bytes: length });
        }
        let written = Layout::written(self.layout.bell, length);
        reach(own.buffer.store_word(offset + WORD, 0))?;
        reach(own.buffer.write(offset + WORD + u64::from(padding(length)), bytes))?;
        reach(own.buffer.store_word(offset + written - WORD, 1))?;
        Ok(LocalSlice { region, offset, bytes: written as u32 })
    }

    /// WRITEs the message at an index to its position, for the sender with this number.
    pub(super) fn write<M: Memory>(
        &self,
        (place, position): (u32, u64),
        (name, number): (Name, u16),
        to: &PeerRegions,
        step: &mut Step<'_, M>,
    ) -> Checked {
        let Step { own, effects } = step;
        let Some(message) = self.messages.get(place as usize) else {
            return Ok(());
        };
        let at = RemoteSlice { region: to.buffer, offset: self.layout.ring.offset(position) };
        let slices = message.slices.get(..message.count).unwrap_or_default();
        if self.layout.bell == SharedRingBell::Immediate {
            let immediate = Some((position / WORD) as u32);
            effects.write_gather(Peer::ONLY, name, Notify::Yes, &[slices], at, immediate);
            return Ok(());
        }
        let word = header(message.bytes, number, position);
        if message.source.is_none() {
            reach(own.buffer.store_word(u64::from(place) * self.staging, word))?;
            effects.write_gather(Peer::ONLY, name, Notify::Yes, &[slices], at, None);
        } else {
            let offset = HEADERS + HEADERS_STEP * u64::from(place);
            reach(own.bells.store_word(offset, word))?;
            let bells = |offset, bytes: u64| {
                [LocalSlice { region: self.regions.bells, offset, bytes: bytes as u32 }]
            };
            let before = bells(offset, WORD + u64::from(padding(message.bytes)));
            let behind = bells(ONE, WORD);
            let parts: [&[LocalSlice]; 3] = [&before, slices, &behind];
            effects.write_gather(Peer::ONLY, name, Notify::Yes, &parts, at, None);
        }
        Ok(())
    }

    /// Removes a message that was written; returns its source's index in the window, if it has one.
    pub(super) fn take(&mut self, place: u32) -> Option<u32> {
        let message = self.messages.get_mut(place as usize)?;
        self.busy &= !(1 << place);
        core::mem::replace(message, OutgoingMessage::NONE).source
    }

    /// Removes all messages.
    pub(super) fn clear(&mut self) {
        self.messages.fill(OutgoingMessage::NONE);
        self.busy = 0;
    }
}
