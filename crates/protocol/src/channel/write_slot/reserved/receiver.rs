//! The receiver of messages in a pool of mailboxes.

mod grants;

use super::super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::super::effects::{Effects, Name};
use super::super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received, own as reach,
};
use super::super::super::shape::{Shape, Signal};
use super::super::WORD;
use super::{RECEIVES, REQUEST, REQUESTS, step};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory};

/// The name of receives, and of WRITEs of states.
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
    signal: Signal,
    message_bytes_max: u32,
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
    canary: ChannelCanary,
}

impl ReservedReceiver {
    /// Creates a receiver without peers.
    pub fn new(shape: &Shape, regions: OwnRegions) -> Self {
        let (slots, peers) = (shape.slots as usize, usize::from(shape.peers_max));
        let mailbox =
            Mailbox { state: ReservedState::Free, peer: Peer::ONLY, orphan: false, bytes: 0 };
        Self {
            signal: shape.signal,
            message_bytes_max: shape.message_bytes_max,
            step: step(shape),
            regions,
            senders: alloc::vec![From::default(); peers],
            senders_end: 0,
            mailboxes: alloc::vec![mailbox; slots],
            free: (0..shape.slots).collect(),
            waiting: VecDeque::with_capacity(peers),
            granted: VecDeque::with_capacity(slots),
            ready: VecDeque::with_capacity(slots),
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self
    }

    fn post(&self, peer: Peer, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 };
        effects.receive(peer, NAME, into);
    }

    fn sender(&mut self, peer: Peer) -> Option<&mut From> {
        self.senders.get_mut(usize::from(peer.0))
    }

    /// Polls senders' requests by words.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Result<(), Violation> {
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
    fn find<M: Memory>(&mut self, own: Own<'_, M>) -> Result<Option<u32>, Violation> {
        let mut at = 0;
        while let Some(slot) = self.granted.get(at).copied() {
            let mailbox = self.mailboxes.get(slot as usize);
            let (peer, orphan) = mailbox.map_or((Peer::ONLY, true), |one| (one.peer, one.orphan));
            let word = reach(own.buffer.load_word(self.bell(slot)))?;
            let bytes = word.checked_sub(1).and_then(|bytes| u32::try_from(bytes).ok());
            match bytes.filter(|bytes| *bytes <= self.message_bytes_max) {
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
                        return Err(Violation("a length that no message has"));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Frees a mailbox.
    fn give_back<M: Memory>(&mut self, slot: u32, own: Own<'_, M>) {
        if self.signal == Signal::Word && !self.canary.is(ChannelMutant::BellNotCleared) {
            let cleared = own.buffer.store_word(self.bell(slot), 0);
            debug_assert!(cleared.is_ok(), "a mailbox is within the buffer");
        }
        if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
            mailbox.state = ReservedState::Free;
        }
        self.free.push_back(slot);
    }
}

impl Half for ReservedReceiver {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(from) = self.sender(peer) else {
            return Err(Violation("more peers than the channel has"));
        };
        *from = From { regions: Some(regions), ..From::default() };
        // All senders share the receives: those of an earlier sender with this number are still posted.
        let first = usize::from(peer.0) >= self.senders_end;
        self.senders_end = self.senders_end.max(usize::from(peer.0) + 1);
        match self.signal {
            // The first sender may have written a request already.
            Signal::Word if first => Ok(()),
            // Requests of an earlier sender with this number are void.
            Signal::Word => reach(own.bells.store_word(REQUESTS + WORD * u64::from(peer.0), 0)),
            Signal::Message => {
                for _ in 0..if first { RECEIVES } else { 0 } {
                    self.post(peer, effects);
                }
                Ok(())
            }
        }
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
            if mailbox.state == ReservedState::Granted && self.signal == Signal::Message {
                mailbox.state = ReservedState::Free;
                self.free.push_back(slot);
            }
            mailbox.orphan = true;
        }
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let signal = self.signal;
        if let Some(from) = self.sender(completed.peer) {
            from.flying = false;
            if core::mem::take(&mut from.due) {
                Self::tell(signal, from, completed.peer, None, effects);
            }
        }
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(immediate) = arrival.immediate.filter(|_| self.signal == Signal::Message) else {
            self.wasted(arrival.peer, arrival.name, effects);
            return Err(Violation("a message where none comes"));
        };
        let peer = arrival.peer;
        self.post(peer, effects);
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
        } else if arrival.bytes > self.message_bytes_max {
            return Err(Violation("a length that no message has"));
        } else {
            self.filled(immediate, arrival.bytes, ReservedState::Arrived);
            self.ready.push_back(immediate);
        }
        self.serve(effects);
        Ok(())
    }

    fn wasted(&mut self, peer: Peer, _: Name, effects: &mut Effects) {
        if self.signal == Signal::Message {
            self.post(peer, effects);
        }
    }
}

impl ReceiveHalf for ReservedReceiver {
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        let found = match self.signal {
            Signal::Message => self.ready.pop_front(),
            Signal::Word => {
                let looked = self.look(own);
                let found = looked.and_then(|()| self.find(own));
                self.serve(effects);
                found?
            }
        };
        if self.signal == Signal::Message {
            self.serve(effects);
        }
        let mailbox = found.and_then(|slot| Some((slot, self.mailboxes.get_mut(slot as usize)?)));
        let Some((slot, mailbox)) = mailbox else {
            return Ok(None);
        };
        mailbox.state = ReservedState::Held;
        let bytes = mailbox.bytes;
        let offset = match self.signal {
            Signal::Message => u64::from(slot) * self.step,
            Signal::Word => (u64::from(slot) + 1) * self.step - WORD - u64::from(bytes),
        };
        let content = Content::Buffer { offset, bytes };
        Ok(Some(Received { held: HeldMessage(u64::from(slot)), peer: mailbox.peer, content }))
    }

    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let mailbox = usize::try_from(held.0).ok().and_then(|slot| self.mailboxes.get(slot));
        let Some(mailbox) = mailbox.filter(|mailbox| mailbox.state == ReservedState::Held) else {
            return Err(HalfRefusal::NoSuch("held message"));
        };
        let (peer, orphan) = (mailbox.peer, mailbox.orphan);
        self.give_back(held.0 as u32, own);
        if let Some(from) = self.sender(peer).filter(|_| !orphan) {
            from.released += 1;
        }
        self.serve(effects);
        Ok(())
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        let signal = self.signal;
        for (number, from) in (0..).zip(self.senders.iter_mut().take(self.senders_end)) {
            if from.told != from.released {
                Self::tell(signal, from, Peer(number), None, effects);
            }
        }
    }
}
