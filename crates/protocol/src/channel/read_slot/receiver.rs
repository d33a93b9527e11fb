//! A reader of mailboxes.

use super::super::canary::mutant;
use super::super::checksum::checksum;
use super::super::effects::{Effects, Name, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HalfRefusal, HeldMessage, NOT_HELD, Offer, Own,
    OwnRegions, PeerRegions, Received, Step, own as reach,
};
use super::super::inbound::{InboundPeer, NO_OFFER, ReaderPosition, ReceiveHalf, START};
use super::super::kind::Kind;
use super::super::readers::{Bells, READER_WORDS};
use super::super::shape::{Shape, Signal};
use super::{BATCH, Boxes, IN_FLIGHT, ReadSlotForm, SIGNALS, WORD};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of a READ of bells; that of a message is its slot.
const BELLS: Name = Name(1 << 16);
/// The name of a READ of whole mailboxes.
const WHOLE: Name = Name(1 << 17);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum MailboxState {
    /// Its bell has been seen.
    Seen,
    /// It is being READ.
    Reading,
    /// It has arrived.
    Here,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct MailboxMessage {
    number: u64,
    bytes: u32,
    state: MailboxState,
}

/// The receiver half of the read slot channels except the indirect one: one reader.
///
/// *Order*: that of sending. *Cost*: a READ of the bell while it is not set, and one of the message; both in one with
/// an inlined bell; only the latter with notices. One READ fetches many bells or mailboxes while messages keep
/// arriving. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadMailboxReceiver {
    form: ReadSlotForm,
    slot_bits: u32,
    boxes: Boxes,
    /// The location of detached bells at the sender.
    bells: Bells,
    position: ReaderPosition,
    /// The number of the next message whose bell has not been seen.
    next: u64,
    /// The number of bells or mailboxes that are being READ.
    flying: Option<u64>,
    /// The number of mailboxes to READ next; for detached bells, how many the last READ found set.
    batch: u64,
    /// The bell of the next message has been seen, with bytes that did not match it.
    torn: bool,
    /// Messages to be received: with a known bell, in flight, or arrived.
    queue: VecDeque<MailboxMessage>,
    reading: usize,
    /// Messages that are offered (`Seen`), or fetched to the caller's destination.
    offers: Vec<MailboxMessage>,
    /// Lengths by slot, of notices that arrived as messages.
    notices: Vec<Option<u32>>,
}

impl ReadMailboxReceiver {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadSlotForm::of(kind);
        let slots = shape.slots as usize;
        let receives = super::plan_receiver(kind, shape).receives;
        let capacity = u64::from(shape.slots);
        Self {
            form,
            slot_bits: shape.slot_bits(),
            boxes: Boxes::new(form.header(), shape),
            bells: Bells::of(shape),
            position: ReaderPosition::new(shape, regions, receives, (1, capacity)),
            next: 0,
            flying: None,
            batch: 1,
            torn: false,
            queue: VecDeque::with_capacity(slots),
            reading: 0,
            offers: Vec::with_capacity(slots),
            notices: alloc::vec![None; receives as usize],
        }
    }

    /// The index of an offer in this state.
    fn offer_at(&self, held: HeldMessage, state: MailboxState) -> Option<usize> {
        self.offers.iter().position(|offer| offer.number == held.0 && offer.state == state)
    }

    fn see(&mut self, bytes: u32, state: MailboxState) {
        self.queue.push_back(MailboxMessage { number: self.next, bytes, state });
        self.next += 1;
        self.torn = false;
    }

    /// The number of next mailboxes that one READ can fetch: those before the end of the array with no held message
    /// here.
    fn ahead(&self, most: u64) -> u64 {
        let free = (self.position.tail() + self.boxes.slots).saturating_sub(self.next);
        most.min(free).min(self.boxes.slots - self.boxes.slot(self.next))
    }

    /// READs at most `most` bells.
    fn read_bells(&mut self, most: u64, to: &PeerRegions, effects: &mut Effects) {
        let count = self.ahead(most);
        if self.flying.is_some() || count == 0 {
            return;
        }
        self.flying = Some(count);
        let bytes = (count * WORD) as u32;
        let into =
            LocalSlice { region: self.position.inbound.regions.bells, offset: READER_WORDS, bytes };
        let from = match self.form {
            ReadSlotForm::Inlined => {
                RemoteSlice { region: to.buffer, offset: self.boxes.mailbox(self.next) }
            }
            ReadSlotForm::Detached | ReadSlotForm::Notify => {
                self.bells.at(self.boxes.slot(self.next) * WORD, to)
            }
        };
        effects.read(Peer::ONLY, BELLS, into, from);
    }

    /// READs whole mailboxes.
    fn read_whole(&mut self, to: &PeerRegions, effects: &mut Effects) {
        let count = self.ahead(self.batch);
        if self.flying.is_some() || count == 0 {
            return;
        }
        self.flying = Some(count);
        let bytes = ((count - 1) * self.boxes.step + self.boxes.used()) as u32;
        let offset = self.boxes.mailbox(self.next);
        let into = LocalSlice { region: self.position.inbound.regions.buffer, offset, bytes };
        effects.read(Peer::ONLY, WHOLE, into, RemoteSlice { region: to.buffer, offset });
    }

    /// READs a message with a known bell.
    fn read_message(
        &self,
        message: &mut MailboxMessage,
        into: LocalSlice,
        to: &PeerRegions,
        effects: &mut Effects,
    ) {
        if message.bytes == 0 {
            message.state = MailboxState::Here;
            return;
        }
        message.state = MailboxState::Reading;
        let into = LocalSlice { bytes: message.bytes, ..into };
        let from = RemoteSlice { region: to.buffer, offset: self.boxes.message(message.number) };
        effects.read(Peer::ONLY, Name(self.boxes.slot(message.number) as u32), into, from);
    }

    /// Polls the notices that have arrived, in order.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        while self.form == ReadSlotForm::Notify && self.ahead(1) > 0 {
            let slot = self.boxes.slot(self.next);
            let bytes = match self.position.inbound.shape.signal {
                Signal::Message => self.notices.get_mut(slot as usize).and_then(Option::take),
                Signal::Word => {
                    let word = reach(own.bells.load_word(SIGNALS + slot * WORD))?;
                    self.boxes.rung(self.next, word)?
                }
            };
            let Some(bytes) = bytes else { break };
            self.see(bytes, MailboxState::Seen);
        }
        Ok(())
    }

    /// Handles the bells that a READ has fetched.
    fn bells_here<M: Memory>(&mut self, count: u64, own: Own<'_, M>) -> Checked {
        self.batch = 1;
        for at in 0..count {
            let bell = reach(own.bells.load_word(READER_WORDS + at * WORD))?;
            let Some(bytes) = self.boxes.rung(self.next, bell)? else { break };
            self.see(bytes, MailboxState::Seen);
            if self.form == ReadSlotForm::Detached {
                self.batch = at + 1;
            }
        }
        Ok(())
    }

    /// Handles the mailboxes that a READ has fetched.
    fn whole_here<M: Memory>(&mut self, count: u64, own: Own<'_, M>) -> Checked {
        self.batch = 1;
        for at in 0..count {
            let mailbox = self.boxes.mailbox(self.next);
            let bell = reach(own.buffer.load_word(mailbox))?;
            let Some(bytes) = self.boxes.rung(self.next, bell)? else { return Ok(()) };
            let message = self.boxes.message(self.next);
            let sum = reach(checksum(bell, own.buffer, message, bytes))?;
            let fits = sum == reach(own.buffer.load_word(mailbox + WORD))?;
            if !fits && !mutant!(self.position.inbound, ChecksumUnchecked) {
                // Everything stored before a bell that an earlier READ returned is present.
                if at == 0 && self.torn {
                    return Err(Violation("a message with a wrong checksum"));
                }
                self.torn = true;
                return Ok(());
            }
            self.see(bytes, MailboxState::Here);
        }
        let most =
            (u64::from(self.position.inbound.shape.piece_bytes) / self.boxes.step).clamp(1, BATCH);
        self.batch = (count * 2).min(most);
        Ok(())
    }

    /// Handles a message that has arrived, at its own slot or at the caller's destination.
    fn message_here(&mut self, slot: u64) {
        let boxes = self.boxes;
        let mine = |message: &&mut MailboxMessage| {
            message.state == MailboxState::Reading && boxes.slot(message.number) == slot
        };
        if let Some(message) = self.queue.iter_mut().find(mine) {
            message.state = MailboxState::Here;
            self.reading -= 1;
        } else if let Some(message) = self.offers.iter_mut().find(mine) {
            message.state = MailboxState::Here;
        }
    }

    /// Requests the next messages.
    fn ask<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        let Some(to) = self.position.ready(step.effects) else { return Ok(()) };
        self.look(step.own)?;
        let mut seen = false;
        for at in 0..self.queue.len() {
            let Some(mut message) = self.queue.get(at).copied() else { break };
            if message.state != MailboxState::Seen {
                continue;
            }
            if self.reading == IN_FLIGHT {
                seen = true;
                break;
            }
            let offset = self.boxes.message(message.number);
            let into =
                LocalSlice { region: self.position.inbound.regions.buffer, offset, bytes: 0 };
            self.read_message(&mut message, into, &to, step.effects);
            self.reading += usize::from(message.state == MailboxState::Reading);
            if let Some(place) = self.queue.get_mut(at) {
                *place = message;
            }
        }
        // While messages arrive one by one, a READ of bells along with a message would complete too early.
        let look = self.queue.is_empty() || self.batch > 1;
        match self.form {
            ReadSlotForm::Detached if !seen && look => self.read_bells(BATCH, &to, step.effects),
            ReadSlotForm::Inlined if !seen => self.read_whole(&to, step.effects),
            _ => {}
        }
        Ok(())
    }
}

impl ReceiveHalf for ReadMailboxReceiver {
    fn inbound(&mut self) -> Option<&mut InboundPeer> {
        Some(&mut self.position.inbound)
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        self.position.connected(to, step.effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.position.inbound.peer = None;
        let here = |message: &&MailboxMessage| message.state == MailboxState::Here;
        self.queue.truncate(self.queue.iter().take_while(here).count());
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        match completed.name {
            name if self.position.completed(name, step.effects) => Ok(()),
            START => {
                if let Some(start) = self.position.started(step.own)? {
                    self.next = start;
                }
                Ok(())
            }
            BELLS => {
                let count = self.flying.take().unwrap_or(0);
                self.bells_here(count, step.own)
            }
            WHOLE => {
                let count = self.flying.take().unwrap_or(0);
                self.whole_here(count, step.own)
            }
            Name(slot) => {
                self.message_here(u64::from(slot));
                Ok(())
            }
        }
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let notice = self.position.inbound.immediate(arrival, step.effects)?;
        let slot = notice & ((1_u64 << self.slot_bits) - 1) as u32;
        let bytes = self.position.inbound.length(u64::from(notice) >> self.slot_bits)?;
        match self.notices.get_mut(slot as usize) {
            Some(place @ None) => *place = Some(bytes),
            Some(Some(_)) => return Err(Violation("two notices of one mailbox")),
            None => return Err(Violation("a notice for an unknown mailbox")),
        }
        Ok(())
    }

    #[inline]
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        let front = self.queue.front().copied();
        let here = front.filter(|message| message.state == MailboxState::Here);
        // After the last message the caller has not asked for more yet: a READ now would complete too early, and
        // delay the next one.
        if here.is_none() || self.queue.len() > 1 {
            self.ask(step)?;
        }
        let Some(message) = here else { return Ok(None) };
        self.queue.pop_front();
        let held = self.position.hold(message.number, message.number + 1)?;
        let content =
            Content::Buffer { offset: self.boxes.message(message.number), bytes: message.bytes };
        Ok(Some(Received { held, peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        if self.offers.iter().any(|offer| offer.number == held.0) {
            let at = self.offer_at(held, MailboxState::Seen).ok_or(NOT_HELD)?;
            self.offers.swap_remove(at);
        }
        self.position.release(held, step)
    }

    fn offer<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Offer>> {
        let Some(to) = self.position.ready(step.effects) else { return Ok(None) };
        self.look(step.own)?;
        let seen = self.queue.iter().position(|message| message.state == MailboxState::Seen);
        let Some(message) = seen.and_then(|at| self.queue.remove(at)) else {
            match self.form {
                ReadSlotForm::Detached => self.read_bells(BATCH, &to, step.effects),
                ReadSlotForm::Inlined => self.read_bells(1, &to, step.effects),
                ReadSlotForm::Notify => {}
            }
            return Ok(None);
        };
        let held = self.position.hold(message.number, message.number + 1)?;
        self.offers.push(message);
        let place = Some(self.boxes.message(message.number));
        Ok(Some(Offer { held, peer: Peer::ONLY, bytes_max: message.bytes, place }))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: HeldMessage,
        into: LocalSlice,
        step: &mut Step<'_, M>,
    ) -> Accepted<()> {
        let at = self.offer_at(offer, MailboxState::Seen).ok_or(NO_OFFER)?;
        let to = self.position.ready(step.effects).ok_or(HalfRefusal::Lost)?;
        let mut message = self.offers.get(at).copied().ok_or(NO_OFFER)?;
        if into.bytes < message.bytes {
            return Err(HalfRefusal::TooLong { bytes_max: into.bytes });
        }
        self.read_message(&mut message, into, &to, step.effects);
        if let Some(place) = self.offers.get_mut(at) {
            *place = message;
        }
        Ok(())
    }

    fn fetched<M: Memory>(&mut self, offer: HeldMessage, step: &mut Step<'_, M>) -> Option<u32> {
        let at = self.offer_at(offer, MailboxState::Here)?;
        let message = self.offers.swap_remove(at);
        self.position.release(offer, step).ok()?;
        Some(message.bytes)
    }
}
