//! The receiver of messages in mailboxes of one sender.

use super::super::canary::mutant;
use super::super::effects::Peer;
use super::super::half::{
    Accepted, Arrival, Checked, Content, HeldMessage, NOT_HELD, Own, OwnRegions, Received, Step,
    own as reach,
};
use super::super::inbound::{InboundPeer, ReceiveHalf};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::{BELLS, CHOSEN, MailboxBell, SLOT_BITS, WORD};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::Memory;

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
    step: u64,
    inbound: InboundPeer,
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
}

impl MailboxReceiver {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let how = MailboxBell::of(kind, shape);
        let (slots, receives) = (shape.slots as usize, how.receives(shape));
        Self {
            how,
            step: how.step(shape),
            inbound: InboundPeer::new(shape, regions, receives, (1, u64::from(shape.slots))),
            tail: 0,
            next: 0,
            messages: alloc::vec![SlotMessage::UNSEEN; slots],
            mailboxes: alloc::vec![Mailbox { bell: 0, used: 0 }; slots],
            chosen: false,
            ready: VecDeque::with_capacity(receives as usize),
        }
    }

    /// The index of a message's entry.
    #[inline]
    fn place(&self, number: u64) -> usize {
        (number % self.messages.len() as u64) as usize
    }

    /// The length in a bell.
    #[inline]
    fn length(&self, bell: u64) -> Checked<u32> {
        self.inbound.length(u64::from((bell as u32).wrapping_sub(1)))
    }

    /// The message number with these low bits, which are all but the `short` highest of 32.
    #[inline]
    fn number(&self, low: u32, short: u32) -> Checked<u64> {
        let ahead = (low.wrapping_sub(self.tail as u32) << short) >> short;
        let number = self.tail + u64::from(ahead);
        // The sender knows no more than what was acknowledged.
        if number >= self.inbound.acknowledger.told() + self.messages.len() as u64 {
            return Err(Violation("a message out of turn"));
        }
        Ok(number)
    }

    /// Notes a message in a mailbox.
    #[inline]
    fn note(&mut self, number: u64, slot: u32, bytes: u32) -> Checked {
        let (place, told) = (self.place(number), self.inbound.acknowledger.told());
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
    fn look<M: Memory>(&mut self, slot: u32, own: Own<'_, M>) -> Checked {
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
    fn find<M: Memory>(&mut self, own: Own<'_, M>) -> Checked<Option<u64>> {
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

impl ReceiveHalf for MailboxReceiver {
    fn inbound(&mut self) -> Option<&mut InboundPeer> {
        Some(&mut self.inbound)
    }

    #[inline]
    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let immediate = self.inbound.immediate(arrival, step.effects)?;
        let slot = immediate & ((1 << SLOT_BITS) - 1);
        let number = self.number(immediate >> SLOT_BITS, SLOT_BITS)?;
        let bytes = if self.how == MailboxBell::Announced {
            if slot as usize >= self.mailboxes.len() {
                return Err(Violation("a slot that does not exist"));
            }
            let (memory, at) = self.bell_of(slot, step.own);
            let bell = reach(memory.load_word(at))?;
            if (bell >> 32) as u32 != number as u32 || arrival.bytes > 0 {
                return Err(Violation("a bell before its message"));
            }
            self.length(bell)?
        } else {
            self.inbound.length(u64::from(arrival.bytes))?
        };
        self.note(number, slot, bytes)?;
        self.ready.push_back(number);
        Ok(())
    }

    #[inline]
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        let Some(number) = self.find(step.own)? else {
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
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        let all = self.messages.len() as u64;
        let place = self.place(held.0);
        let known = held.0 >= self.tail && held.0 - self.tail < all;
        let message = self.messages.get_mut(place).filter(|_| known);
        let message = message.filter(|message| message.state == SlotState::Held).ok_or(NOT_HELD)?;
        message.state = SlotState::Released;
        let slot = message.slot;
        if self.how == MailboxBell::Inlined {
            let (memory, at) = self.bell_of(slot, step.own);
            if !mutant!(self.inbound, BellNotCleared) {
                let cleared = memory.store_word(at, 0);
                debug_assert!(cleared.is_ok(), "a mailbox is within the buffer");
            }
            if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
                mailbox.bell = 0;
            }
        }
        while let Some(message) = self.messages.get_mut((self.tail % all) as usize) {
            if message.state != SlotState::Released {
                break;
            }
            *message = SlotMessage::UNSEEN;
            self.tail += 1;
        }
        self.inbound.processed(self.tail, step);
        Ok(())
    }
}
