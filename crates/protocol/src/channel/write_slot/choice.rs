//! The halves of all write slots under one name: mailboxes of one's own, or out of a pool.

use super::super::effects::Effects;
use super::super::half::{
    Arrival, Completed, Held, Offer, Own, OwnRegions, Payload, Peer, PeerRegions, ReceiveHalf,
    Received, Refusal, SendHalf, Sending,
};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::reserved::{ReservedReceiver, ReservedSender};
use super::{MailboxReceiver, MailboxSender};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory};

/// The sender half of a write slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Sender {
    /// Into mailboxes of its own.
    Mailbox(MailboxSender),
    /// Into a pool that senders share.
    Reserved(ReservedSender),
}

/// The receiver half of a write slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Receiver {
    /// Of one sender.
    Mailbox(MailboxReceiver),
    /// Of a pool that senders share.
    Reserved(ReservedReceiver),
}

impl Sender {
    /// A sender without a peer yet.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::WriteSlotReserved => Self::Reserved(ReservedSender::new(shape, regions)),
            _ => Self::Mailbox(MailboxSender::new(kind, shape, regions)),
        }
    }

    /// Puts a defect in.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::Mutant) -> Self {
        match self {
            Self::Mailbox(half) => Self::Mailbox(half.with_mutant(mutant)),
            Self::Reserved(half) => Self::Reserved(half.with_mutant(mutant)),
        }
    }
}

impl Receiver {
    /// A receiver without peers yet.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::WriteSlotReserved => Self::Reserved(ReservedReceiver::new(shape, regions)),
            _ => Self::Mailbox(MailboxReceiver::new(kind, shape, regions)),
        }
    }

    /// Puts a defect in.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::Mutant) -> Self {
        match self {
            Self::Mailbox(half) => Self::Mailbox(half.with_mutant(mutant)),
            Self::Reserved(half) => Self::Reserved(half.with_mutant(mutant)),
        }
    }
}

macro_rules! either {
    ($half:expr, $one:ident => $call:expr) => {
        match $half {
            Self::Mailbox($one) => $call,
            Self::Reserved($one) => $call,
        }
    };
}

impl SendHalf for Sender {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.connected(peer, regions, own, effects))
    }

    fn lost(&mut self, peer: Peer) {
        either!(self, half => half.lost(peer));
    }

    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, Refusal> {
        either!(self, half => half.send(payload, own, effects))
    }

    #[inline]
    fn send_to<M: Memory>(
        &mut self,
        slot: u32,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, Refusal> {
        either!(self, half => half.send_to(slot, payload, own, effects))
    }

    #[inline]
    fn flush<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
        either!(self, half => half.flush(own, effects));
    }

    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.advance(own, effects))
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.completed(completed, own, effects))
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.arrived(arrival, own, effects))
    }

    #[inline]
    fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
        either!(self, half => half.loan(bytes, own))
    }

    fn accused(&self) -> Peer {
        either!(self, half => half.accused())
    }

    fn ask_progress(&mut self, effects: &mut Effects) {
        either!(self, half => half.ask_progress(effects));
    }

    #[inline]
    fn is_done(&self, sending: Sending) -> bool {
        either!(self, half => half.is_done(sending))
    }

    fn is_drained(&self) -> bool {
        either!(self, half => half.is_drained())
    }
}

impl ReceiveHalf for Receiver {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.connected(peer, regions, own, effects))
    }

    fn lost(&mut self, peer: Peer) {
        either!(self, half => half.lost(peer));
    }

    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        either!(self, half => half.receive(own, effects))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: Held,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        either!(self, half => half.release(held, own, effects))
    }

    fn offer<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Offer>, Violation> {
        either!(self, half => half.offer(own, effects))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: Held,
        into: LocalSlice,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        either!(self, half => half.receive_into(offer, into, own, effects))
    }

    fn fetched<M: Memory>(
        &mut self,
        offer: Held,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Option<u32> {
        either!(self, half => half.fetched(offer, own, effects))
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.completed(completed, own, effects))
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        either!(self, half => half.arrived(arrival, own, effects))
    }

    fn acknowledge<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
        either!(self, half => half.acknowledge(own, effects));
    }
}
