//! The halves of all channels under one name each, so that a program chooses by value.

use super::effects::{Effects, Record};
use super::half::{
    Arrival, Completed, Held, Offer, Own, OwnRegions, Payload, Peer, PeerRegions, ReceiveHalf,
    Received, Refusal, SendHalf, Sending,
};
use super::kind::Kind;
use super::ring;
use super::send_receive;
use super::shape::{Plan, Shape};
use super::shared_ring;
use super::write_slot;
use super::{read_ring, read_slot};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory};

macro_rules! halves {
    ($($family:ident($module:ident);)*) => {
        /// The sender half of any channel.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Sender {
            $(#[doc = concat!("Of the family `", stringify!($module), "`.")]
            $family($module::Sender),)*
        }

        /// The receiver half of any channel.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Receiver {
            $(#[doc = concat!("Of the family `", stringify!($module), "`.")]
            $family($module::Receiver),)*
        }

        impl Sender {
            /// What it needs.
            pub const fn plan(kind: Kind, shape: &Shape) -> Plan {
                match kind.family() {
                    $(super::Family::$family => $module::plan_sender(kind, shape),)*
                }
            }

            /// A sender without peers yet. The shape must have passed [`Shape::check`].
            pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
                match kind.family() {
                    $(super::Family::$family => {
                        Self::$family($module::Sender::new(kind, shape, regions))
                    })*
                }
            }

            /// Puts a defect in.
            #[cfg(canary)]
            pub fn with_mutant(self, mutant: super::Mutant) -> Self {
                match self {
                    $(Self::$family(half) => Self::$family(half.with_mutant(mutant)),)*
                }
            }
        }

        impl Receiver {
            /// What it needs.
            pub const fn plan(kind: Kind, shape: &Shape) -> Plan {
                match kind.family() {
                    $(super::Family::$family => $module::plan_receiver(kind, shape),)*
                }
            }

            /// A receiver without peers yet. The shape must have passed [`Shape::check`].
            pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
                match kind.family() {
                    $(super::Family::$family => {
                        Self::$family($module::Receiver::new(kind, shape, regions))
                    })*
                }
            }

            /// Puts a defect in.
            #[cfg(canary)]
            pub fn with_mutant(self, mutant: super::Mutant) -> Self {
                match self {
                    $(Self::$family(half) => Self::$family(half.with_mutant(mutant)),)*
                }
            }
        }

        macro_rules! each {
            ($half:expr, $one:ident => $call:expr) => {
                match $half {
                    $(Self::$family($one) => $call,)*
                }
            };
        }
    };
}

halves! {
    SharedRing(shared_ring);
    SendReceive(send_receive);
    WriteSlot(write_slot);
    Ring(ring);
    ReadSlot(read_slot);
    ReadRing(read_ring);
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
    fn send_to<M: Memory>(
        &mut self,
        slot: u32,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, Refusal> {
        each!(self, half => half.send_to(slot, payload, own, effects))
    }

    #[inline]
    fn send_at_once<M: Memory>(
        &mut self,
        message: &[u8],
        own: Own<'_, M>,
        record: &mut Record,
    ) -> Option<Sending> {
        match self {
            Self::Ring(half) => half.send_at_once(message, own, record),
            _ => None,
        }
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
