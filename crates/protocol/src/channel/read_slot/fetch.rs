//! The READs of a reader of mailboxes, and their completions.

use super::super::canary::mutant;
use super::super::checksum::checksum;
use super::super::effects::{Effects, Name, Peer};
use super::super::half::{Checked, Own, PeerRegions, Step, own as reach};
use super::super::readers::READER_WORDS;
use super::super::shape::Signal;
use super::receiver::{BELLS, MailboxMessage, MailboxState, ReadMailboxReceiver, WHOLE};
use super::{BATCH, IN_FLIGHT, ReadSlotForm, SIGNALS, WORD};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RemoteSlice};

impl ReadMailboxReceiver {
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
    pub(super) fn read_bells(&mut self, most: u64, to: &PeerRegions, effects: &mut Effects) {
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
    pub(super) fn read_message(
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
    pub(super) fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
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
    pub(super) fn bells_here<M: Memory>(&mut self, count: u64, own: Own<'_, M>) -> Checked {
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
    pub(super) fn whole_here<M: Memory>(&mut self, count: u64, own: Own<'_, M>) -> Checked {
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
    pub(super) fn message_here(&mut self, slot: u64) {
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
    pub(super) fn ask<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
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
