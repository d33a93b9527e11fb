//! The halves of all channels under one type each, so that a program selects a channel at run time: the one place at
//! which calls are dispatched.

use super::effects::{Effects, InlineWrite, Name, Peer};
use super::half::{
    Arrival, Completed, HalfRefusal, HeldMessage, Offer, Own, OwnRegions, Payload, PeerRegions,
    Received, Sending, Step,
};
use super::inbound::ReceiveHalf as _;
use super::kind::Kind;
use super::outbound::PushSender as _;
use super::shape::{MemoryPlan, Shape};
use super::store::PullSender as _;
use super::{
    indirect, read_ring, read_slot, reserved, ring, send_receive, shared_ring, write_slot,
};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory};

/// Either half of any channel, for code that drives senders and receivers alike.
///
/// Every call that can emit work takes `effects`, to be posted in that order.
pub trait Half: Sized {
    /// Whether it is a sender.
    const SENDS: bool;

    /// The memory that it needs.
    fn plan(kind: Kind, shape: &Shape) -> MemoryPlan;

    /// Creates a half without peers. The shape must have passed [`Shape::check`].
    fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self;

    /// Whether one half serves all peers.
    fn shares(kind: Kind) -> bool;

    /// Clears what an earlier peer with this number wrote. Call it before the link of the next one is accepted, from
    /// which on that one may write.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn prepare<M: Memory>(
        &mut self,
        _: Peer,
        _: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        Ok(())
    }

    /// Connects a peer with these regions, which may have written already.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation>;

    /// Disconnects a peer; its requests no longer reach memory here. Messages that have arrived completely can still
    /// be received.
    fn lost(&mut self, peer: Peer);

    /// Polls the words that peers have written, and continues work that waited for them. Receivers poll when they are
    /// asked for a message.
    ///
    /// # Errors
    /// [`Violation`]: a peer wrote a word that no correct peer writes. Close its link.
    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation>;

    /// Handles the completion of a successful request.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation>;

    /// Handles the completion of a receive.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation>;

    /// Handles a receive that was consumed by a failed message: if peers share their receives, it is posted again.
    /// The link of that peer is closed.
    fn wasted(&mut self, _: Peer, _: Name, _: &mut Effects) {}

    /// The peer whose words caused the last [`Violation`] reported without a completion; `None` if it may have been
    /// any peer of this half.
    fn accused(&self) -> Option<Peer>;
}

/// Calls of a half that work with its own memory and may add requests.
macro_rules! forward {
    ($($(#[$about:meta])* $visible:vis fn $call:ident($($name:ident: $type:ty),*) -> $result:ty;)*) => {
        $($(#[$about])*
        #[inline]
        $visible fn $call<M: Memory>(
            &mut self,
            $($name: $type,)*
            own: Own<'_, M>,
            effects: &mut Effects,
        ) -> $result {
            each!(self, half => half.$call($($name,)* &mut Step { own, effects }))
        })*
    };
}

macro_rules! role {
    ($role:ident, $sends:literal, $shares:ident, $plan:ident, { $($own:tt)* }
     $($module:ident, $family:ident, $half:ident, $($kind:ident)|+;)*) => {
        #[cfg(canary)]
        impl $role {
            /// Enables a planted defect.
            pub fn with_mutant(self, mutant: super::ChannelMutant) -> Self {
                match self {
                    $(Self::$family(half) => Self::$family(half.with_mutant(mutant)),)*
                }
            }
        }

        impl Half for $role {
            const SENDS: bool = $sends;

            fn plan(kind: Kind, shape: &Shape) -> MemoryPlan {
                match kind {
                    $($(Kind::$kind)|+ => $module::$plan(kind, shape),)*
                }
            }

            fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
                match kind {
                    $($(Kind::$kind)|+ => Self::$family($module::$half::new(kind, shape, regions)),)*
                }
            }

            fn shares(kind: Kind) -> bool {
                kind.$shares()
            }

            forward! {
                fn connected(peer: Peer, regions: PeerRegions) -> Result<(), Violation>;
                fn advance() -> Result<(), Violation>;
                fn completed(completed: Completed) -> Result<(), Violation>;
                fn arrived(arrival: Arrival) -> Result<(), Violation>;
            }

            fn lost(&mut self, peer: Peer) {
                each!(self, half => half.lost(peer));
            }

            fn accused(&self) -> Option<Peer> {
                each!(self, half => half.accused())
            }

            $($own)*
        }
    };
}

macro_rules! channels {
    ($($module:ident: $family:ident($sender:ident, $receiver:ident) = $($kind:ident)|+;)*) => {
        /// The sender half of any channel.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Sender {
            $(#[doc = concat!("Of `", stringify!($module), "`.")] $family($module::$sender),)*
        }

        /// The receiver half of any channel.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Receiver {
            $(#[doc = concat!("Of `", stringify!($module), "`.")] $family($module::$receiver),)*
        }

        macro_rules! each {
            ($role:expr, $one:ident => $call:expr) => {
                match $role {
                    $(Self::$family($one) => $call,)*
                }
            };
        }

        role! { Sender, true, shares_sender, plan_sender, {}
            $($module, $family, $sender, $($kind)|+;)* }
        role! { Receiver, false, shares_receiver, plan_receiver,
            {
                forward! { fn prepare(peer: Peer) -> Result<(), Violation>; }

                fn wasted(&mut self, peer: Peer, name: Name, effects: &mut Effects) {
                    each!(self, half => half.wasted(peer, name, effects));
                }
            }
            $($module, $family, $receiver, $($kind)|+;)* }
    };
}

channels! {
    send_receive: SendReceive(TwoSidedSender, TwoSidedReceiver) =
        Send | SendShared | SendBufferless;
    write_slot: WriteSlot(MailboxSender, MailboxReceiver) =
        WriteSlotDetached | WriteSlotInlined | WriteSlotImmediate;
    reserved: Reserved(ReservedSender, ReservedReceiver) = WriteSlotReserved;
    ring: Ring(RingSender, RingReceiver) =
        RingDetached | RingImmediate | RingInlinedZeroing | RingInlined;
    shared_ring: SharedRing(SharedRingSender, SharedRingReceiver) =
        SharedRingImmediate | SharedRingInlinedZeroing;
    read_slot: ReadSlot(ReadMailboxSender, ReadMailboxReceiver) =
        ReadSlotDetached | ReadSlotInlined | ReadSlotNotify;
    indirect: Indirect(IndirectSender, IndirectReceiver) = ReadSlotIndirect;
    read_ring: ReadRing(ReadRingSender, ReadRingReceiver) =
        ReadRingDetached | ReadRingInlined | ReadRingNotify;
}

impl Sender {
    forward! {
        /// Sends a message. It may be announced only by [`Self::flush`].
        ///
        /// # Errors
        /// [`HalfRefusal`]; nothing has happened then.
        pub fn send(payload: Payload<'_>) -> Result<Sending, HalfRefusal>;

        /// Whether [`Self::send`] of this payload would be accepted now, for programs that need several halves to
        /// accept a message or none. Requests from the receiver what is missing.
        ///
        /// # Errors
        /// The error that [`Self::send`] would return.
        pub fn ready(payload: Payload<'_>) -> Result<(), HalfRefusal>;

        /// Like [`Self::send`], into a slot of the caller's choice, on channels with a sender that places its
        /// messages.
        ///
        /// # Errors
        /// `NoSuch` if senders do not choose slots, or there is no such slot; `Full` while the receiver has not
        /// released that slot.
        pub fn send_to(slot: u32, payload: Payload<'_>) -> Result<Sending, HalfRefusal>;

        /// Ends a batch of [`Self::send`]s: one announcement for all, if the channel allows it.
        pub fn flush() -> ();
    }

    /// Like [`Self::send`], for a message that needs exactly one WRITE: adds it to `record` instead of the effects,
    /// next to the present messages of this half, for callers that post the record before anything else. `None` if it
    /// needs more, does not fit or is refused: post the record and call again, or call [`Self::send`].
    #[inline]
    pub fn send_at_once<M: Memory>(
        &mut self,
        message: &[u8],
        own: Own<'_, M>,
        record: &mut InlineWrite,
    ) -> Option<Sending> {
        each!(self, half => half.send_at_once(message, own, record))
    }

    /// Lends memory for the next message, in the region that peers READ, if there is room for `bytes`: fill it and
    /// send it, or its beginning, as the only slice of a [`Payload::Gather`]. A loan ends with the next accepted
    /// [`Self::send`] or the next loan. Only channels with peers that READ the sender's memory lend it; the others
    /// send from any memory.
    #[inline]
    pub fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
        each!(self, half => half.loan(bytes, own))
    }

    /// Requests the progress of receivers, if it is known only by request
    /// ([`Acknowledge::ReadTail`](super::Acknowledge::ReadTail)): for callers that wait for [`Self::is_drained`].
    pub fn ask_progress(&mut self, effects: &mut Effects) {
        each!(self, half => half.ask_progress(effects));
    }

    /// Whether the source of a message is free again. It does not imply that the message was received.
    #[inline]
    pub fn is_done(&self, sending: Sending) -> bool {
        each!(self, half => half.is_done(sending))
    }

    /// Whether every message has been sent and acknowledged as processed by all receivers.
    pub fn is_drained(&self) -> bool {
        each!(self, half => half.is_drained())
    }
}

impl Receiver {
    forward! {
        /// Returns the next message, if there is one; it is held until it is released. A channel with a receiver
        /// that fetches messages fetches them into its own buffer for this.
        ///
        /// # Errors
        /// [`Violation`]: a peer wrote an invalid message. Close its link.
        pub fn receive() -> Result<Option<Received>, Violation>;

        /// Releases the memory of a message, in any order: one that was received, or one that was offered and not
        /// fetched.
        ///
        /// # Errors
        /// `NoSuch` if it is not held (any more).
        pub fn release(held: HeldMessage) -> Result<(), HalfRefusal>;

        /// Returns a message to be fetched into a destination of the caller's choice, if the channel can do that;
        /// [`Self::receive`] then does not return it. Requests it from the sender if that needs a request.
        ///
        /// # Errors
        /// [`Violation`], as [`Self::receive`].
        pub fn offer() -> Result<Option<Offer>, Violation>;

        /// Fetches an offered message into `into`, which must not be used until it has arrived.
        ///
        /// # Errors
        /// `NoSuch` without such an offer; `TooLong` if `into` is shorter than the offer.
        pub fn receive_into(offer: HeldMessage, into: LocalSlice) -> Result<(), HalfRefusal>;

        /// Returns the size in bytes of a message fetched by [`Self::receive_into`], once it has arrived; releases
        /// it.
        pub fn fetched(offer: HeldMessage) -> Option<u32>;

        /// Acknowledges all released messages now, instead of in batches.
        pub fn acknowledge() -> ();
    }

    /// Receives up to `max` messages, passes each to `see` in place and releases it before the next one. Returns
    /// their number, and the error that ended the loop, if any.
    #[inline]
    pub fn drain<M: Memory>(
        &mut self,
        max: usize,
        own: Own<'_, M>,
        effects: &mut Effects,
        see: &mut impl FnMut(Received),
    ) -> (usize, Result<(), Violation>) {
        each!(self, half => half.drain(max, &mut Step { own, effects }, see))
    }
}
