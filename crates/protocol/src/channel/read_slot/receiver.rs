//! A reader of mailboxes.

use super::super::effects::{Name, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HalfRefusal, HeldMessage, NOT_HELD, Offer,
    OwnRegions, PeerRegions, Received, Step,
};
use super::super::inbound::{InboundPeer, NO_OFFER, ReaderPosition, ReceiveHalf, START};
use super::super::kind::Kind;
use super::super::readers::Bells;
use super::super::shape::Shape;
use super::{BATCH, Boxes, ReadSlotForm};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory};

/// The name of a READ of bells; that of a message is its slot.
pub(super) const BELLS: Name = Name(1 << 16);
/// The name of a READ of whole mailboxes.
pub(super) const WHOLE: Name = Name(1 << 17);

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
    slot_bits: u32,
    pub(super) boxes: Boxes,
    /// The location of detached bells at the sender.
    pub(super) bells: Bells,
    pub(super) position: ReaderPosition,
    /// The number of the next message whose bell has not been seen.
    pub(super) next: u64,
    /// The number of bells or mailboxes that are being READ.
    pub(super) flying: Option<u64>,
    /// The number of mailboxes to READ next; for detached bells, how many the last READ found set.
    pub(super) batch: u64,
    /// The bell of the next message has been seen, with bytes that did not match it.
    pub(super) torn: bool,
    /// Messages to be received: with a known bell, in flight, or arrived.
    pub(super) queue: VecDeque<MailboxMessage>,
    pub(super) reading: usize,
    /// Messages that are offered (`Seen`), or fetched to the caller's destination.
    pub(super) offers: Vec<MailboxMessage>,
    /// Lengths by slot, of notices that arrived as messages.
    pub(super) notices: Vec<Option<u32>>,
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
