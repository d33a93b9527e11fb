//! Both forms of the family under one name.

use super::super::effects::Effects;
use super::super::half::{
    Arrival, Completed, Held, Offer, Own, OwnRegions, Payload, Peer, PeerRegions, ReceiveHalf,
    Received, Refusal, SendHalf, Sending,
};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::{indirect_receiver, indirect_sender, mailbox_receiver, mailbox_sender};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory};

/// The sender half of a read slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Sender {
    /// Readers READ its messages.
    Mailboxes(mailbox_sender::Sender),
    /// It WRITEs its messages.
    Indirect(indirect_sender::Sender),
}

/// The receiver half of a read slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Receiver {
    /// It READs messages.
    Mailboxes(mailbox_receiver::Receiver),
    /// It says where messages shall be written.
    Indirect(indirect_receiver::Receiver),
}

macro_rules! each {
    ($half:expr, $one:ident => $call:expr) => {
        match $half {
            Self::Mailboxes($one) => $call,
            Self::Indirect($one) => $call,
        }
    };
}

impl Sender {
    /// A sender without peers yet.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::ReadSlotIndirect => {
                Self::Indirect(indirect_sender::Sender::new(kind, shape, regions))
            }
            _ => Self::Mailboxes(mailbox_sender::Sender::new(kind, shape, regions)),
        }
    }

    /// Puts a defect in.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::Mutant) -> Self {
        match self {
            Self::Mailboxes(half) => Self::Mailboxes(half.with_mutant(mutant)),
            Self::Indirect(half) => Self::Indirect(half.with_mutant(mutant)),
        }
    }
}

impl Receiver {
    /// A receiver without a peer yet.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::ReadSlotIndirect => {
                Self::Indirect(indirect_receiver::Receiver::new(kind, shape, regions))
            }
            _ => Self::Mailboxes(mailbox_receiver::Receiver::new(kind, shape, regions)),
        }
    }

    /// Puts a defect in.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::Mutant) -> Self {
        match self {
            Self::Mailboxes(half) => Self::Mailboxes(half.with_mutant(mutant)),
            Self::Indirect(half) => Self::Indirect(half),
        }
    }
}

impl SendHalf for Sender {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        each!(self, half => half.connected(peer, regions, own, effects))
    }

    fn lost(&mut self, peer: Peer) {
        each!(self, half => half.lost(peer));
    }

    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, Refusal> {
        each!(self, half => half.send(payload, own, effects))
    }

    #[inline]
    fn flush<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
        each!(self, half => half.flush(own, effects));
    }

    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        each!(self, half => half.advance(own, effects))
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        each!(self, half => half.completed(completed, own, effects))
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        each!(self, half => half.arrived(arrival, own, effects))
    }

    #[inline]
    fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
        each!(self, half => half.loan(bytes, own))
    }

    fn accused(&self) -> Peer {
        each!(self, half => half.accused())
    }

    fn ask_progress(&mut self, effects: &mut Effects) {
        each!(self, half => half.ask_progress(effects));
    }

    #[inline]
    fn is_done(&self, sending: Sending) -> bool {
        each!(self, half => half.is_done(sending))
    }

    fn is_drained(&self) -> bool {
        each!(self, half => half.is_drained())
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
        each!(self, half => half.connected(peer, regions, own, effects))
    }

    fn lost(&mut self, peer: Peer) {
        each!(self, half => half.lost(peer));
    }

    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        each!(self, half => half.receive(own, effects))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: Held,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        each!(self, half => half.release(held, own, effects))
    }

    fn offer<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Offer>, Violation> {
        each!(self, half => half.offer(own, effects))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: Held,
        into: LocalSlice,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        each!(self, half => half.receive_into(offer, into, own, effects))
    }

    fn fetched<M: Memory>(
        &mut self,
        offer: Held,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Option<u32> {
        each!(self, half => half.fetched(offer, own, effects))
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        each!(self, half => half.completed(completed, own, effects))
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        each!(self, half => half.arrived(arrival, own, effects))
    }

    fn acknowledge<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
        each!(self, half => half.acknowledge(own, effects));
    }
}
