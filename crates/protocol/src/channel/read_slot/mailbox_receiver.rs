//! A reader of mailboxes.

use super::super::canary::ChannelCanary;
#[cfg(canary)]
use super::super::canary::ChannelMutant;
use super::super::effects::{Effects, Name};
use super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Offer, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received,
};
use super::super::kind::Kind;
use super::super::readers::Bells;
use super::super::shape::{Shape, Signal};
use super::super::stand::{START, Stand};
use super::{BATCH, Boxes, ReadSlotForm, slot_bits};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory};

/// The name of a READ of bells; that of a message is its slot.
pub(super) const BELLS: Name = Name(1 << 16);
/// The name of a READ of whole mailboxes.
pub(super) const WHOLE: Name = Name(1 << 17);
/// The name of every receive.
const NOTICE: Name = Name(0);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum MailboxState {
    /// Its bell has been seen.
    Seen,
    /// It is being READ.
    Reading,
    /// It has arrived.
    Here,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct MailboxMessage {
    pub(super) number: u64,
    pub(super) bytes: u32,
    pub(super) state: MailboxState,
}

/// The receiver half of the read slot channels except the indirect one: one reader.
///
/// *Order*: that of sending. *Cost*: a READ of the bell while it is not set, and one of the message; both in one with
/// an inlined bell; only the latter with notices. One READ fetches many bells or mailboxes while messages keep
/// arriving. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadMailboxReceiver {
    pub(super) form: ReadSlotForm,
    pub(super) signal: Signal,
    pub(super) slot_bits: u32,
    pub(super) boxes: Boxes,
    /// The location of detached bells at the sender.
    pub(super) bells: Bells,
    pub(super) regions: OwnRegions,
    pub(super) stand: Stand,
    /// The number of the next message whose bell has not been seen.
    pub(super) next: u64,
    /// The number of bells or mailboxes that are being READ.
    pub(super) flying: Option<u64>,
    /// The number of mailboxes to READ next; for detached bells, how many the last READ found set.
    pub(super) batch: u64,
    /// The maximum size in bytes of one READ, or one mailbox.
    pub(super) piece_bytes: u64,
    /// The bell of the next message has been seen, with bytes that did not match it.
    pub(super) torn: bool,
    /// Messages to be received: with a known bell, in flight, or arrived.
    pub(super) queue: VecDeque<MailboxMessage>,
    pub(super) reading: usize,
    /// Messages that are offered (`Seen`), or fetched to the caller's destination.
    pub(super) offers: Vec<MailboxMessage>,
    /// Lengths by slot, of notices that arrived as messages.
    pub(super) notices: Vec<Option<u32>>,
    pub(super) canary: ChannelCanary,
}

impl ReadMailboxReceiver {
    pub(super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadSlotForm::of(kind);
        let slots = shape.slots as usize;
        let told = form == ReadSlotForm::Notify && shape.signal == Signal::Message;
        let mut notices = Vec::new();
        notices.resize(if told { slots } else { 0 }, None);
        Self {
            form,
            signal: shape.signal,
            slot_bits: slot_bits(shape),
            boxes: Boxes::new(form.header(), shape),
            bells: Bells::of(shape),
            regions,
            stand: Stand::new(shape, 1, u64::from(shape.slots), regions),
            next: 0,
            flying: None,
            batch: 1,
            piece_bytes: u64::from(shape.piece_bytes),
            torn: false,
            queue: VecDeque::with_capacity(slots),
            reading: 0,
            offers: Vec::with_capacity(slots),
            notices,
            canary: ChannelCanary::default(),
        }
    }

    #[cfg(canary)]
    pub(super) fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self
    }

    fn post(&self, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 };
        effects.receive(Peer::ONLY, NOTICE, into);
    }
}

impl Half for ReadMailboxReceiver {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.stand.connected(regions, effects);
        for _ in 0..self.notices.len() {
            self.post(effects);
        }
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.stand.lost();
        let whole =
            self.queue.iter().take_while(|message| message.state == MailboxState::Here).count();
        self.queue.truncate(whole);
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        match completed.name {
            name if self.stand.completed(name, effects) => Ok(()),
            START => {
                if let Some(start) = self.stand.started(own)? {
                    self.next = start;
                }
                Ok(())
            }
            BELLS => {
                let count = self.flying.take().unwrap_or(0);
                self.bells_here(count, own)
            }
            WHOLE => {
                let count = self.flying.take().unwrap_or(0);
                self.whole_here(count, own)
            }
            Name(slot) => {
                self.message_here(u64::from(slot));
                Ok(())
            }
        }
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let (Some(notice), false) = (arrival.immediate, self.notices.is_empty()) else {
            return Err(Violation("a message where none comes"));
        };
        self.post(effects);
        let slot = notice & ((1_u64 << self.slot_bits) - 1) as u32;
        let bytes = u64::from(notice) >> self.slot_bits;
        if bytes > u64::from(self.boxes.message_bytes_max) {
            return Err(Violation("a length that no message has"));
        }
        match self.notices.get_mut(slot as usize) {
            Some(place @ None) => *place = Some(bytes as u32),
            Some(Some(_)) => return Err(Violation("two notices of one mailbox")),
            None => return Err(Violation("a notice for an unknown mailbox")),
        }
        Ok(())
    }
}

impl ReceiveHalf for ReadMailboxReceiver {
    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        let front = self.queue.front().copied();
        let here = front.filter(|message| message.state == MailboxState::Here);
        // After the last message the caller has not asked for more yet: a READ now would complete too early, and
        // delay the next one.
        if here.is_none() || self.queue.len() > 1 {
            self.ask(own, effects)?;
        }
        let Some(message) = here else { return Ok(None) };
        self.queue.pop_front();
        let held = self.stand.hold(message.number, message.number + 1)?;
        let content =
            Content::Buffer { offset: self.boxes.message(message.number), bytes: message.bytes };
        Ok(Some(Received { held, peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        if let Some(at) = self.offers.iter().position(|message| message.number == held.0) {
            if self.offers.get(at).is_none_or(|message| message.state != MailboxState::Seen) {
                return Err(HalfRefusal::NoSuch("held message"));
            }
            self.offers.swap_remove(at);
        }
        self.stand.release(held, own, effects)
    }

    fn offer<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Offer>, Violation> {
        let Some(to) = self.stand.ready(effects) else { return Ok(None) };
        self.look(own)?;
        let seen = self.queue.iter().position(|message| message.state == MailboxState::Seen);
        let Some(message) = seen.and_then(|at| self.queue.remove(at)) else {
            match self.form {
                ReadSlotForm::Detached => self.read_bells(BATCH, &to, effects),
                ReadSlotForm::Inlined => self.read_bells(1, &to, effects),
                ReadSlotForm::Notify => {}
            }
            return Ok(None);
        };
        let held = self.stand.hold(message.number, message.number + 1)?;
        self.offers.push(message);
        let place = Some(self.boxes.message(message.number));
        Ok(Some(Offer { held, peer: Peer::ONLY, bytes_max: message.bytes, place }))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: HeldMessage,
        into: LocalSlice,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let offered = |message: &MailboxMessage| {
            message.number == offer.0 && message.state == MailboxState::Seen
        };
        let Some(at) = self.offers.iter().position(offered) else {
            return Err(HalfRefusal::NoSuch("offer"));
        };
        let to = self.stand.ready(effects).ok_or(HalfRefusal::Lost)?;
        let Some(mut message) = self.offers.get(at).copied() else {
            return Err(HalfRefusal::NoSuch("offer"));
        };
        if into.bytes < message.bytes {
            return Err(HalfRefusal::TooLong { bytes_max: into.bytes });
        }
        self.read_message(&mut message, into, &to, effects);
        if let Some(place) = self.offers.get_mut(at) {
            *place = message;
        }
        Ok(())
    }

    fn fetched<M: Memory>(
        &mut self,
        offer: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Option<u32> {
        let here = |message: &MailboxMessage| {
            message.number == offer.0 && message.state == MailboxState::Here
        };
        let at = self.offers.iter().position(here)?;
        let message = self.offers.swap_remove(at);
        self.stand.release(offer, own, effects).ok()?;
        Some(message.bytes)
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        self.stand.acknowledge(effects);
    }
}
