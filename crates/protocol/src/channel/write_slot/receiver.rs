//! The receiver of messages in mailboxes of one sender.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, Name};
use super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received, own as reach,
};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::{BELLS, CHOSEN, MailboxBell, PROGRESS, SLOT_BITS, WORD};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory};

/// The name of every receive: they are all alike.
const RECEIVE: Name = Name(0);

/// The state of a message among those that the sender may have in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum SlotState {
    Unseen,
    Found,
    Held,
    Released,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct SlotMessage {
    state: SlotState,
    slot: u32,
    bytes: u32,
}

impl SlotMessage {
    const UNSEEN: Self = Self { state: SlotState::Unseen, slot: 0, bytes: 0 };
}

/// A mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mailbox {
    /// The bell last seen in it, or left there.
    bell: u64,
    /// The number after that of its last message.
    used: u64,
}

/// The receiver half of `write-slot-detached`, `-inlined` and `-immediate`.
///
/// *Order*: that of sending; `write-slot-immediate` on a fabric without `message_order`: any. *Cost*: a poll of two
/// words while there is no message, of all bells once the sender chooses; no request except an acknowledgement per
/// half of the mailboxes. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MailboxReceiver {
    how: MailboxBell,
    message_bytes_max: u32,
    step: u64,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    /// Messages before this number are released.
    tail: u64,
    /// The number of the message that is handed out next, if bells are polled.
    next: u64,
    /// By number modulo the number of mailboxes.
    messages: Vec<SlotMessage>,
    mailboxes: Vec<Mailbox>,
    /// The sender chooses mailboxes.
    chosen: bool,
    /// Numbers of messages that have arrived and were not received by the program.
    ready: VecDeque<u64>,
    receives: u32,
    acknowledger: Acknowledger,
    canary: ChannelCanary,
}

impl MailboxReceiver {
    /// Creates a receiver without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let how = MailboxBell::of(kind, shape);
        let (slots, receives) = (shape.slots as usize, how.receives(shape));
        let (back, capacity) = (shape.acknowledge, u64::from(shape.slots));
        Self {
            how,
            message_bytes_max: shape.message_bytes_max,
            step: how.step(shape),
            regions,
            peer: None,
            tail: 0,
            next: 0,
            messages: alloc::vec![SlotMessage::UNSEEN; slots],
            mailboxes: alloc::vec![Mailbox { bell: 0, used: 0 }; slots],
            chosen: false,
            ready: VecDeque::with_capacity(receives as usize),
            receives,
            acknowledger: Acknowledger::new(back, Peer::ONLY, 1, PROGRESS, capacity),
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self.acknowledger.set_canary(self.canary);
        self
    }

    fn post(&self, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 };
        effects.receive(Peer::ONLY, RECEIVE, into);
    }

    /// The index of a message's entry.
    #[inline]
    fn place(&self, number: u64) -> usize {
        (number % self.messages.len() as u64) as usize
    }

    /// The length in a bell.
    #[inline]
    fn length(&self, bell: u64) -> Result<u32, Violation> {
        match (bell as u32).checked_sub(1) {
            Some(bytes) if bytes <= self.message_bytes_max => Ok(bytes),
            _ => Err(Violation("a length that no message has")),
        }
    }

    /// The message number with these low bits, which are all but the `short` highest of 32.
    #[inline]
    fn number(&self, low: u32, short: u32) -> Result<u64, Violation> {
        let ahead = (low.wrapping_sub(self.tail as u32) << short) >> short;
        let number = self.tail + u64::from(ahead);
        // The sender knows no more than what was acknowledged.
        if number >= self.acknowledger.told() + self.messages.len() as u64 {
            return Err(Violation("a message out of turn"));
        }
        Ok(number)
    }

    /// Notes a message in a mailbox.
    #[inline]
    fn note(&mut self, number: u64, slot: u32, bytes: u32) -> Result<(), Violation> {
        let (place, told) = (self.place(number), self.acknowledger.told());
        let Some(mailbox) = self.mailboxes.get_mut(slot as usize) else {
            return Err(Violation("a slot that does not exist"));
        };
        if mailbox.used > told {
            return Err(Violation("a slot that was not released"));
        }
        match self.messages.get_mut(place) {
            Some(message) if message.state == SlotState::Unseen => {
                *message = SlotMessage { state: SlotState::Found, slot, bytes };
                mailbox.used = number + 1;
                Ok(())
            }
            _ => Err(Violation("a repeated message number")),
        }
    }

    /// The memory and offset of a mailbox's bell.
    #[inline]
    fn bell_of<'a, M>(&self, slot: u32, own: Own<'a, M>) -> (&'a M, u64) {
        match self.how {
            MailboxBell::Inlined => (own.buffer, (u64::from(slot) + 1) * self.step - WORD),
            MailboxBell::Announced => (own.buffer, u64::from(slot) * self.step),
            MailboxBell::Detached | MailboxBell::Immediate => {
                (own.bells, BELLS + WORD * u64::from(slot))
            }
        }
    }

    /// Polls a mailbox's bell.
    #[inline]
    fn look<M: Memory>(&mut self, slot: u32, own: Own<'_, M>) -> Result<(), Violation> {
        let (memory, at) = self.bell_of(slot, own);
        let bell = reach(memory.load_word(at))?;
        if self.mailboxes.get(slot as usize).is_some_and(|mailbox| mailbox.bell == bell) {
            return Ok(());
        }
        let bytes = self.length(bell)?;
        let number = self.number((bell >> 32) as u32, 0)?;
        self.note(number, slot, bytes)?;
        if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
            mailbox.bell = bell;
        }
        Ok(())
    }

    /// Whether the next message has arrived.
    #[inline]
    fn found(&self) -> bool {
        let message = self.messages.get(self.place(self.next));
        message.is_some_and(|message| message.state == SlotState::Found)
    }

    /// The number of the next message, if it has arrived.
    #[inline]
    fn find<M: Memory>(&mut self, own: Own<'_, M>) -> Result<Option<u64>, Violation> {
        if matches!(self.how, MailboxBell::Announced | MailboxBell::Immediate) {
            return Ok(self.ready.pop_front());
        }
        if !self.found() {
            self.look(self.place(self.next) as u32, own)?;
        }
        if !self.found() {
            self.chosen |= reach(own.bells.load_word(CHOSEN))? != 0;
            if self.chosen {
                for slot in 0..self.mailboxes.len() as u32 {
                    self.look(slot, own)?;
                }
            }
        }
        let number = self.next;
        let found = self.found();
        self.next += u64::from(found);
        Ok(found.then_some(number))
    }

    /// The offset of a message in the buffer.
    #[inline]
    fn offset(&self, message: SlotMessage) -> u64 {
        let first = u64::from(message.slot) * self.step;
        match self.how {
            MailboxBell::Inlined => first + self.step - WORD - u64::from(message.bytes),
            MailboxBell::Announced => first + WORD,
            MailboxBell::Detached | MailboxBell::Immediate => first,
        }
    }
}

impl Half for MailboxReceiver {
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
        self.peer = None;
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if completed.name == ACKNOWLEDGEMENT {
            self.acknowledger.completed(self.peer.as_ref(), effects);
        }
        Ok(())
    }

    #[inline]
    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(immediate) = arrival.immediate.filter(|_| self.receives > 0) else {
            return Err(Violation("a message where none comes"));
        };
        self.post(effects);
        let slot = immediate & ((1 << SLOT_BITS) - 1);
        let number = self.number(immediate >> SLOT_BITS, SLOT_BITS)?;
        let bytes = if self.how == MailboxBell::Announced {
            if slot as usize >= self.mailboxes.len() {
                return Err(Violation("a slot that does not exist"));
            }
            let (memory, at) = self.bell_of(slot, own);
            let bell = reach(memory.load_word(at))?;
            if (bell >> 32) as u32 != number as u32 || arrival.bytes > 0 {
                return Err(Violation("a bell before its message"));
            }
            self.length(bell)?
        } else if arrival.bytes > self.message_bytes_max {
            return Err(Violation("a length that no message has"));
        } else {
            arrival.bytes
        };
        self.note(number, slot, bytes)?;
        self.ready.push_back(number);
        Ok(())
    }
}

impl ReceiveHalf for MailboxReceiver {
    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        let Some(number) = self.find(own)? else {
            return Ok(None);
        };
        let place = self.place(number);
        let Some(message) = self.messages.get_mut(place) else {
            return Ok(None);
        };
        message.state = SlotState::Held;
        let message = *message;
        let content = Content::Buffer { offset: self.offset(message), bytes: message.bytes };
        Ok(Some(Received { held: HeldMessage(number), peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let all = self.messages.len() as u64;
        let place = self.place(held.0);
        let known = held.0 >= self.tail && held.0 - self.tail < all;
        let message = self.messages.get_mut(place).filter(|_| known);
        let Some(message) = message.filter(|message| message.state == SlotState::Held) else {
            return Err(HalfRefusal::NoSuch("held message"));
        };
        message.state = SlotState::Released;
        let slot = message.slot;
        if self.how == MailboxBell::Inlined {
            let (memory, at) = self.bell_of(slot, own);
            if !self.canary.is(ChannelMutant::BellNotCleared) {
                let cleared = memory.store_word(at, 0);
                debug_assert!(cleared.is_ok(), "a mailbox is within the buffer");
            }
            if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
                mailbox.bell = 0;
            }
        }
        let mut tail = self.tail;
        while let Some(message) = self.messages.get_mut((tail % all) as usize) {
            if message.state != SlotState::Released {
                break;
            }
            *message = SlotMessage::UNSEEN;
            tail += 1;
        }
        if tail > self.tail {
            self.tail = tail;
            self.acknowledger.processed(tail, self.peer.as_ref(), own, effects);
        }
        Ok(())
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        self.acknowledger.now(self.peer.as_ref(), effects);
    }
}
