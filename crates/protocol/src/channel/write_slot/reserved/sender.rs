//! The sender of messages into a pool of mailboxes.

use super::super::super::effects::{Effects, Name, Notify};
use super::super::super::half::{
    Arrival, Completed, Half, HalfRefusal, Own, OwnRegions, Payload, Peer, PeerRegions, SendHalf,
    Sending, own as reach,
};
use super::super::super::shape::{Shape, Signal};
use super::super::super::window::Window;
use super::super::{WORD, WORDS, ZEROES, padding};
use super::{GRANT_BITS, REQUEST, REQUESTS, STATE, sender_receives, step};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of requests, and of receives. Messages have their window index.
const REQUESTED: Name = Name(1 << 16);

/// The message that waits for a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PendingMessage {
    Nothing,
    /// In `bytes`.
    Copied,
    /// Its slices in `slices`, with its index in the window.
    Sliced(u32),
}

/// The sender half of `write-slot-reserved`.
///
/// It accepts a message, requests a mailbox, and writes when it is granted one; until then it is full. *Cost*: a
/// request and a WRITE per message. Allocates until it has seen its longest message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReservedSender {
    signal: Signal,
    message_bytes_max: u32,
    slots: u32,
    step: u64,
    receives: u32,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    lost: bool,
    waiting: PendingMessage,
    bytes: Vec<u8>,
    slices: Vec<LocalSlice>,
    /// The number of requests made.
    requests: u64,
    /// The number of messages written.
    sent: u64,
    /// The number of those that the receiver has released.
    released: u64,
    window: Window,
}

impl ReservedSender {
    /// Creates a sender without a peer.
    pub fn new(shape: &Shape, regions: OwnRegions) -> Self {
        Self {
            signal: shape.signal,
            message_bytes_max: shape.message_bytes_max,
            slots: shape.slots,
            step: step(shape),
            receives: sender_receives(shape),
            regions,
            peer: None,
            lost: false,
            waiting: PendingMessage::Nothing,
            bytes: Vec::new(),
            slices: Vec::new(),
            requests: 0,
            sent: 0,
            released: 0,
            window: Window::default(),
        }
    }

    /// Enables a planted defect: this half has none.
    #[cfg(canary)]
    pub fn with_mutant(self, _: super::super::super::ChannelMutant) -> Self {
        self
    }

    fn post(&self, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: STATE, bytes: 0 };
        effects.receive(Peer::ONLY, REQUESTED, into);
    }

    fn request(&mut self, to: PeerRegions, effects: &mut Effects) {
        self.requests += 1;
        match self.signal {
            Signal::Word => {
                let offset = REQUESTS + WORD * u64::from(to.number.0);
                let place = RemoteSlice { region: to.bells, offset };
                let word = self.requests.to_le_bytes();
                effects.write_inline(Peer::ONLY, REQUESTED, Notify::No, &[&word], place, None);
            }
            Signal::Message => {
                effects.send_inline(Peer::ONLY, REQUESTED, Notify::No, &[], Some(REQUEST));
            }
        }
    }

    /// Handles an acknowledgement: the low `bits` of the number of released messages.
    fn heard(&mut self, low: u32, bits: u32) -> Result<(), Violation> {
        let ahead = low.wrapping_sub(self.released as u32) << (32 - bits) >> (32 - bits);
        // Messages may overtake each other: one below the known number is stale.
        if ahead >> (bits - 1) != 0 {
            return Ok(());
        }
        let released = self.released + u64::from(ahead);
        if released > self.sent {
            return Err(Violation("acknowledges more than was sent"));
        }
        self.released = released;
        Ok(())
    }

    /// Writes the waiting message into the mailbox that was granted.
    fn granted<M: Memory>(
        &mut self,
        slot: u32,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let waiting = core::mem::replace(&mut self.waiting, PendingMessage::Nothing);
        let Some(to) = self.peer.filter(|_| slot < self.slots) else {
            return Err(Violation("a slot that does not exist"));
        };
        match waiting {
            PendingMessage::Nothing => return Err(Violation("a grant that was not requested")),
            PendingMessage::Copied => self.write(slot, to, effects),
            PendingMessage::Sliced(place) => self.write_slices(slot, place, to, own, effects)?,
        }
        self.sent += 1;
        Ok(())
    }

    fn write(&self, slot: u32, to: PeerRegions, effects: &mut Effects) {
        let first = u64::from(slot) * self.step;
        let (name, message) = (REQUESTED, &self.bytes[..]);
        let (offset, immediate) = match self.signal {
            Signal::Message => (first, Some(slot)),
            Signal::Word => {
                let whole = (message.len() as u64).next_multiple_of(WORD) + WORD;
                (first + self.step - whole, None)
            }
        };
        let place = RemoteSlice { region: to.buffer, offset };
        match self.signal {
            Signal::Message => {
                effects.write_inline(Peer::ONLY, name, Notify::No, &[message], place, immediate);
            }
            Signal::Word => {
                let zeroes = [0; WORD as usize];
                let padding = zeroes.get(..padding(message.len() as u32) as usize);
                let bell = (message.len() as u64 + 1).to_le_bytes();
                let parts = [padding.unwrap_or_default(), message, &bell];
                effects.write_inline(Peer::ONLY, name, Notify::No, &parts, place, immediate);
            }
        }
    }

    fn write_slices<M: Memory>(
        &self,
        slot: u32,
        window: u32,
        to: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let first = u64::from(slot) * self.step;
        let (name, message) = (Name(window), &self.slices[..]);
        match self.signal {
            Signal::Message => {
                let place = RemoteSlice { region: to.buffer, offset: first };
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &[message], place, Some(slot));
            }
            Signal::Word => {
                let bytes = Payload::Gather(message).bytes();
                let whole = bytes.next_multiple_of(WORD) + WORD;
                let offset = first + self.step - whole;
                let place = RemoteSlice { region: to.buffer, offset };
                let at = WORDS + WORD * u64::from(window);
                reach(own.bells.store_word(at, bytes + 1))?;
                let (region, padding) = (self.regions.bells, padding(bytes as u32));
                let zeroes = [LocalSlice { region, offset: ZEROES, bytes: padding }];
                let bell = [LocalSlice { region, offset: at, bytes: WORD as u32 }];
                let parts = [&zeroes[..], message, &bell];
                effects.write_gather(Peer::ONLY, name, Notify::Yes, &parts, place, None);
            }
        }
        Ok(())
    }

    /// Polls the state that the receiver writes.
    fn look<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) -> Result<(), Violation> {
        if self.signal == Signal::Message || self.lost {
            return Ok(());
        }
        let state = reach(own.bells.load_word(STATE))?;
        self.heard(state as u32, 32)?;
        let answered = self.requests - u64::from(self.waiting != PendingMessage::Nothing);
        match ((state >> 48) as u16).wrapping_sub(answered as u16) {
            0 => Ok(()),
            1 => self.granted(u32::from((state >> 32) as u16), own, effects),
            _ => Err(Violation("a grant that was not requested")),
        }
    }

    /// The peer for a message, if the previous one has its mailbox.
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<PeerRegions, HalfRefusal> {
        let Some(to) = self.peer else {
            return Err(HalfRefusal::NotConnected);
        };
        if self.lost {
            return Err(HalfRefusal::Lost);
        }
        let bytes_max = self.message_bytes_max;
        if payload.bytes() > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        if self.waiting != PendingMessage::Nothing {
            // The next `advance` detects and reports the same violation.
            let _ = self.look(own, effects);
        }
        if self.waiting == PendingMessage::Nothing && self.window.has_room() {
            Ok(to)
        } else {
            Err(HalfRefusal::Full)
        }
    }

    /// Stores a message until a mailbox is granted.
    fn keep(&mut self, payload: Payload<'_>) -> Sending {
        match payload {
            Payload::Bytes(message) => {
                self.bytes.clear();
                self.bytes.extend_from_slice(message);
                self.waiting = PendingMessage::Copied;
                self.window.take_done()
            }
            Payload::Gather(message) => {
                self.slices.clear();
                self.slices.extend_from_slice(message);
                self.waiting = PendingMessage::Sliced(self.window.next_place());
                self.window.take()
            }
        }
    }
}

impl Half for ReservedSender {
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
        self.lost = true;
        self.waiting = PendingMessage::Nothing;
        self.window.clear();
    }

    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.look(own, effects)
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        if completed.name != REQUESTED {
            self.window.done(completed.name.0);
        }
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(grant) = arrival.immediate.filter(|_| self.signal == Signal::Message) else {
            return Err(Violation("a message where none comes"));
        };
        self.post(effects);
        if self.lost {
            return Ok(());
        }
        self.heard(grant >> GRANT_BITS, 32 - GRANT_BITS)?;
        match (grant & ((1 << GRANT_BITS) - 1)).checked_sub(1) {
            Some(slot) => self.granted(slot, own, effects),
            None => Ok(()),
        }
    }
}

impl SendHalf for ReservedSender {
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        let to = self.room(payload, own, effects)?;
        let sending = self.keep(payload);
        self.request(to, effects);
        Ok(sending)
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
    fn flush<M: Memory>(&mut self, _: Own<'_, M>, _: &mut Effects) {}

    fn is_done(&self, sending: Sending) -> bool {
        self.window.is_done(sending)
    }

    fn is_drained(&self) -> bool {
        self.waiting == PendingMessage::Nothing
            && self.window.is_empty()
            && self.released == self.sent
    }
}
