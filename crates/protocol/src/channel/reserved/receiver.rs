//! The receiver of messages in a pool of mailboxes.

use super::super::canary::{ChannelMutant, mutant};
use super::super::effects::{Effects, Name, Notify, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HeldMessage, NOT_HELD, Own, OwnRegions,
    PeerRegions, Received, Step, UNEXPECTED, WRONG_LENGTH, own as reach,
};
use super::super::inbound::{ReceiveHalf, post_receives};
use super::super::kind::Kind;
use super::super::shape::{Shape, Signal};
use super::{GRANT_BITS, RECEIVES, REQUEST, REQUESTS, STATE, WORD, step_bytes};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{Memory, Planted, RemoteSlice};

/// The name of WRITEs of states.
const NAME: Name = Name(0);

/// The state of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReservedState {
    Free,
    /// A sender may write into it.
    Granted,
    /// Its message has arrived, and the program has not received it.
    Arrived,
    Held,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Mailbox {
    state: ReservedState,
    /// The sender to which it was granted.
    peer: Peer,
    /// That sender is gone.
    orphan: bool,
    /// The size of its message.
    bytes: u32,
}

/// A sender, as the receiver knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct From {
    regions: Option<PeerRegions>,
    /// It broke the protocol: its words are ignored.
    muted: bool,
    /// The number of requests seen.
    requests: u64,
    /// It has a request without a grant.
    asks: bool,
    /// The mailbox that it was granted and has not filled.
    granted: Option<u32>,
    grants: u64,
    /// The mailbox of the last grant.
    last: u32,
    /// The number of its messages that are released, and the number acknowledged to it.
    released: u64,
    told: u64,
    /// A state is in flight; another one has to follow it.
    flying: bool,
    due: bool,
}

/// The receiver half of `write-slot-reserved`.
///
/// *Order*: for each sender, that of sending. *Cost*: a grant per message. With `Signal::Word` a poll of a word per
/// sender and of a bell per granted mailbox. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReservedReceiver {
    shape: Shape,
    step: u64,
    regions: OwnRegions,
    senders: Vec<From>,
    /// Senders from this number on were never connected.
    senders_end: usize,
    mailboxes: Vec<Mailbox>,
    free: VecDeque<u32>,
    /// Senders that wait for a mailbox, in turn.
    waiting: VecDeque<Peer>,
    /// Mailboxes with bells to be polled, in the order of grants (words).
    granted: VecDeque<u32>,
    /// Mailboxes with messages that the program has not received (messages).
    ready: VecDeque<u32>,
    mutant: Planted<ChannelMutant>,
}

impl ReservedReceiver {
    pub(in super::super) fn new(_: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let (slots, peers) = (shape.slots as usize, usize::from(shape.peers_max));
        let mailbox =
            Mailbox { state: ReservedState::Free, peer: Peer::ONLY, orphan: false, bytes: 0 };
        Self {
            shape: *shape,
            step: step_bytes(shape),
            regions,
            senders: alloc::vec![From::default(); peers],
            senders_end: 0,
            mailboxes: alloc::vec![mailbox; slots],
            free: (0..shape.slots).collect(),
            waiting: VecDeque::with_capacity(peers),
            granted: VecDeque::with_capacity(slots),
            ready: VecDeque::with_capacity(slots),
            mutant: Planted::NONE,
        }
    }

    fn sender(&mut self, peer: Peer) -> Option<&mut From> {
        self.senders.get_mut(usize::from(peer.0))
    }

    /// Polls senders' requests by words.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        for number in 0..self.senders_end as u16 {
            let Some(from) = self.sender(Peer(number)) else { break };
            if from.muted || from.regions.is_none() {
                continue;
            }
            let word = reach(own.bells.load_word(REQUESTS + WORD * u64::from(number)))?;
            if word == from.requests {
                continue;
            }
            if word != from.requests + 1 || from.asks {
                from.muted = true;
                return Err(Violation("asks for two mailboxes"));
            }
            from.requests = word;
            self.asked(Peer(number))?;
        }
        Ok(())
    }

    /// The offset of a mailbox's bell (words).
    const fn bell(&self, slot: u32) -> u64 {
        (slot as u64 + 1) * self.step - WORD
    }

    /// Polls the bells of granted mailboxes; returns the first with a message.
    fn find<M: Memory>(&mut self, own: Own<'_, M>) -> Checked<Option<u32>> {
        let mut at = 0;
        while let Some(slot) = self.granted.get(at).copied() {
            let mailbox = self.mailboxes.get(slot as usize);
            let (peer, orphan) = mailbox.map_or((Peer::ONLY, true), |one| (one.peer, one.orphan));
            let word = reach(own.buffer.load_word(self.bell(slot)))?;
            let bytes = word.checked_sub(1).and_then(|bytes| u32::try_from(bytes).ok());
            match bytes.filter(|bytes| *bytes <= self.shape.message_bytes_max) {
                Some(bytes) => {
                    self.granted.remove(at);
                    self.filled(slot, bytes, ReservedState::Held);
                    return Ok(Some(slot));
                }
                None if orphan => {
                    // No message arrives any more.
                    self.granted.remove(at);
                    self.give_back(slot, own);
                }
                None if word == 0 => at += 1,
                None => {
                    at += 1;
                    let from = self.sender(peer).filter(|from| !from.muted);
                    if let Some(from) = from {
                        from.muted = true;
                        return Err(WRONG_LENGTH);
                    }
                }
            }
        }
        Ok(None)
    }

    /// Frees a mailbox.
    fn give_back<M: Memory>(&mut self, slot: u32, own: Own<'_, M>) {
        if self.shape.signal == Signal::Word && !mutant!(self, BellNotCleared) {
            let cleared = own.buffer.store_word(self.bell(slot), 0);
            debug_assert!(cleared.is_ok(), "a mailbox is within the buffer");
        }
        if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
            mailbox.state = ReservedState::Free;
        }
        self.free.push_back(slot);
    }

    /// Handles the request of a sender for a mailbox.
    fn asked(&mut self, peer: Peer) -> Checked {
        let from = self.sender(peer).filter(|from| !from.asks);
        let Some(from) = from else {
            return Err(Violation("asks for two mailboxes"));
        };
        from.asks = true;
        if from.granted.is_none() {
            self.waiting.push_back(peer);
        }
        Ok(())
    }

    /// Handles a filled mailbox.
    fn filled(&mut self, slot: u32, bytes: u32, state: ReservedState) {
        let Some(mailbox) = self.mailboxes.get_mut(slot as usize) else {
            return;
        };
        (mailbox.state, mailbox.bytes) = (state, bytes);
        let (peer, orphan) = (mailbox.peer, mailbox.orphan);
        let Some(from) = self.sender(peer).filter(|_| !orphan) else {
            return;
        };
        from.granted = None;
        if from.asks {
            self.waiting.push_back(peer);
        }
    }

    /// Grants free mailboxes to waiting senders.
    fn serve(&mut self, effects: &mut Effects) {
        while let (Some(peer), Some(slot)) =
            (self.waiting.front().copied(), self.free.front().copied())
        {
            self.waiting.pop_front();
            if !mutant!(self, SlotGrantedTwice) {
                self.free.pop_front();
            }
            let Some(from) = self.senders.get_mut(usize::from(peer.0)) else {
                continue;
            };
            from.asks = false;
            from.granted = Some(slot);
            from.grants += 1;
            from.last = slot;
            if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
                *mailbox = Mailbox { state: ReservedState::Granted, peer, orphan: false, bytes: 0 };
            }
            if self.shape.signal == Signal::Word {
                self.granted.push_back(slot);
            }
            Self::tell(self.shape.signal, from, peer, Some(slot), effects);
        }
    }

    /// Sends a sender its grant, and the number of its released messages.
    fn tell(
        signal: Signal,
        from: &mut From,
        peer: Peer,
        grant: Option<u32>,
        effects: &mut Effects,
    ) {
        let Some(to) = from.regions else {
            return;
        };
        match signal {
            Signal::Message => {
                let slot = grant.map_or(0, |slot| slot + 1);
                let immediate = Some((from.released as u32) << GRANT_BITS | slot);
                effects.send_inline(peer, NAME, Notify::No, &[], immediate);
            }
            Signal::Word if from.flying => {
                from.due = true;
                return;
            }
            Signal::Word => {
                from.flying = true;
                let low = u64::from(from.released as u32);
                let state = from.grants << 48 | u64::from(from.last) << 32 | low;
                let place = RemoteSlice { region: to.bells, offset: STATE };
                let word = state.to_le_bytes();
                effects.write_inline(peer, NAME, Notify::Yes, &[&word], place, None);
            }
        }
        from.told = from.released;
    }
}

impl ReceiveHalf for ReservedReceiver {
    #[cfg(canary)]
    fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    fn prepare<M: Memory>(&mut self, peer: Peer, step: &mut Step<'_, M>) -> Checked {
        match self.shape.signal {
            Signal::Word => {
                reach(step.own.bells.store_word(REQUESTS + WORD * u64::from(peer.0), 0))
            }
            Signal::Message => Ok(()),
        }
    }

    fn connected(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        step: &mut Step<'_, impl Memory>,
    ) -> Checked {
        let Some(from) = self.sender(peer) else {
            return Err(Violation("more peers than the channel has"));
        };
        *from = From { regions: Some(regions), ..From::default() };
        // All senders share the receives: those of an earlier sender with this number are still posted.
        let first = usize::from(peer.0) >= self.senders_end;
        self.senders_end = self.senders_end.max(usize::from(peer.0) + 1);
        if first && self.shape.signal == Signal::Message {
            post_receives(peer, RECEIVES, self.regions, step.effects);
        }
        Ok(())
    }

    fn lost(&mut self, peer: Peer) {
        if let Some(from) = self.sender(peer) {
            *from = From::default();
        }
        self.waiting.retain(|waiting| *waiting != peer);
        for (slot, mailbox) in (0..).zip(&mut self.mailboxes) {
            if mailbox.state == ReservedState::Free || mailbox.peer != peer || mailbox.orphan {
                continue;
            }
            if mailbox.state == ReservedState::Granted && self.shape.signal == Signal::Message {
                mailbox.state = ReservedState::Free;
                self.free.push_back(slot);
            }
            mailbox.orphan = true;
        }
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        let signal = self.shape.signal;
        if let Some(from) = self.sender(completed.peer) {
            from.flying = false;
            if core::mem::take(&mut from.due) {
                Self::tell(signal, from, completed.peer, None, step.effects);
            }
        }
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let peer = arrival.peer;
        self.wasted(peer, arrival.name, step.effects);
        let immediate = arrival.immediate.filter(|_| self.shape.signal == Signal::Message);
        let immediate = immediate.ok_or(UNEXPECTED)?;
        let Some(from) = self.sender(peer) else {
            return Err(Violation("a message from an unknown sender"));
        };
        if from.regions.is_none() {
            return Ok(());
        }
        if immediate == REQUEST {
            self.asked(peer)?;
        } else if from.granted != Some(immediate) {
            return Err(Violation("a message into a mailbox that was not granted"));
        } else if arrival.bytes > self.shape.message_bytes_max {
            return Err(WRONG_LENGTH);
        } else {
            self.filled(immediate, arrival.bytes, ReservedState::Arrived);
            self.ready.push_back(immediate);
        }
        self.serve(step.effects);
        Ok(())
    }

    fn wasted(&mut self, peer: Peer, _: Name, effects: &mut Effects) {
        if self.shape.signal == Signal::Message {
            post_receives(peer, 1, self.regions, effects);
        }
    }

    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        let found = match self.shape.signal {
            Signal::Message => Ok(self.ready.pop_front()),
            Signal::Word => self.look(step.own).and_then(|()| self.find(step.own)),
        };
        self.serve(step.effects);
        let found = found?;
        let mailbox = found.and_then(|slot| Some((slot, self.mailboxes.get_mut(slot as usize)?)));
        let Some((slot, mailbox)) = mailbox else {
            return Ok(None);
        };
        mailbox.state = ReservedState::Held;
        let bytes = mailbox.bytes;
        let offset = match self.shape.signal {
            Signal::Message => u64::from(slot) * self.step,
            Signal::Word => (u64::from(slot) + 1) * self.step - WORD - u64::from(bytes),
        };
        let content = Content::Buffer { offset, bytes };
        Ok(Some(Received { held: HeldMessage(u64::from(slot)), peer: mailbox.peer, content }))
    }

    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        let mailbox = usize::try_from(held.0).ok().and_then(|slot| self.mailboxes.get(slot));
        let mailbox = mailbox.filter(|mailbox| mailbox.state == ReservedState::Held);
        let (peer, orphan) = mailbox.map(|one| (one.peer, one.orphan)).ok_or(NOT_HELD)?;
        self.give_back(held.0 as u32, step.own);
        if let Some(from) = self.sender(peer).filter(|_| !orphan) {
            from.released += 1;
        }
        self.serve(step.effects);
        Ok(())
    }

    fn acknowledge<M: Memory>(&mut self, step: &mut Step<'_, M>) {
        let signal = self.shape.signal;
        for (number, from) in (0..).zip(self.senders.iter_mut().take(self.senders_end)) {
            if from.told != from.released {
                Self::tell(signal, from, Peer(number), None, step.effects);
            }
        }
    }
}
