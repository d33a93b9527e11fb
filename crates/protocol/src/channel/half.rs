//! What every half of every channel can do, whatever its memory looks like.
//!
//! A half is driven: the runtime hands it what was asked and what has arrived, lends it the regions
//! that it owns, and carries out its effects. It never waits.
//!
//! Where its plan leaves a region out, its bells stand for that one, here and at its peers.

use super::effects::{Effects, Name, Record};
use crate::wire::Violation;
use core::fmt;
use farside_base::{LocalSlice, Memory, OutOfBounds, RegionId, RemoteRegionId};

/// The number of a peer of a half: its place among `Shape::peers_max`. Of a half with one peer it is
/// [`Peer::ONLY`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer(pub u16);

impl Peer {
    /// The peer of a half that has one.
    pub const ONLY: Self = Self(0);
}

/// The regions of a half, as memory.
pub struct Own<'a, M> {
    /// Messages.
    pub buffer: &'a M,
    /// Bells and other words.
    pub bells: &'a M,
    /// Words apart from the bells: those that peers change by atomics, and those at the adapter,
    /// which may be reached by other means than memory is.
    pub counters: &'a dyn Memory,
}

impl<M: fmt::Debug> fmt::Debug for Own<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffer, bells, .. } = self;
        f.debug_struct("Own").field("buffer", buffer).field("bells", bells).finish_non_exhaustive()
    }
}

impl<M> Clone for Own<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Own<'_, M> {}

/// The regions of a half that its own work requests name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnRegions {
    /// Messages.
    pub buffer: RegionId,
    /// Bells and other words.
    pub bells: RegionId,
}

/// The regions of a peer's half, imported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerRegions {
    /// Messages.
    pub buffer: RemoteRegionId,
    /// Bells and other words.
    pub bells: RemoteRegionId,
    /// Words apart from the bells: those that peers change by atomics, and those at the adapter.
    pub counters: RemoteRegionId,
    /// The number by which the peer knows this half: which of the words that it has for each of its
    /// peers is ours.
    pub number: Peer,
}

/// What is to be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Bytes, copied before the call returns: by the request itself where the half sends them
    /// inline, or into memory that peers READ.
    Bytes(&'a [u8]),
    /// Slices of local regions, one after the other, sent from where they are; they stay unchanged
    /// until the message is done.
    Gather(&'a [LocalSlice]),
}

impl Payload<'_> {
    /// Bytes of it, at most `u64::MAX`.
    #[inline]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Gather([slice]) => u64::from(slice.bytes),
            Self::Gather(slices) => slices.iter().map(|slice| u64::from(slice.bytes)).sum(),
        }
    }
}

/// A message that a sender has taken; [`SendHalf::is_done`] tells when its source is free again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sending(pub u64);

/// A message that a receiver holds in its memory until it is released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Held(pub u64);

/// Why a half did not do what was asked. Nothing of it has happened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refusal {
    /// The peer has not released enough yet: ask again later. This is back-pressure, not a fault.
    Full,
    /// No peer is connected yet.
    NotConnected,
    /// The peer is gone.
    Lost,
    /// More bytes than a message of this channel has.
    TooLong {
        /// Most bytes.
        bytes_max: u32,
    },
    /// The channel cannot send this form of payload; says which one it takes.
    Form(&'static str),
    /// No message of this name is held (any more), or no such slot or offer exists.
    NoSuch(&'static str),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full => f.write_str("the channel is full until the receiver has released more"),
            Self::NotConnected => f.write_str("no peer is connected yet"),
            Self::Lost => f.write_str("the peer is gone"),
            Self::TooLong { bytes_max } => write!(f, "a message has at most {bytes_max} bytes"),
            Self::Form(form) => write!(f, "this channel takes {form}"),
            Self::NoSuch(what) => write!(f, "no such {what}"),
        }
    }
}

impl core::error::Error for Refusal {}

/// A request that has succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completed {
    /// Of which peer.
    pub peer: Peer,
    /// The half's name for it.
    pub name: Name,
}

/// A receive that took something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arrival {
    /// From which peer.
    pub peer: Peer,
    /// The half's name for the receive.
    pub name: Name,
    /// Bytes of the message or, of a WRITE with immediate, of the WRITE.
    pub bytes: u32,
    /// The immediate data.
    pub immediate: Option<u32>,
}

/// Where a received message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// In the receiver's buffer.
    Buffer {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: u32,
    },
    /// Nowhere: an integer that came as immediate data.
    Integer(u32),
}

/// A message that has been received.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Received {
    /// Its name until it is released.
    pub held: Held,
    /// From whom.
    pub peer: Peer,
    /// Where it is.
    pub content: Content,
}

/// A message that a receiver can fetch to wherever it likes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offer {
    /// Its name.
    pub held: Held,
    /// From whom.
    pub peer: Peer,
    /// Most bytes that it has; what it really has is told when it is there.
    pub bytes_max: u32,
    /// Where it lies in the sender's buffer, if it is known to have just so many: for receivers that
    /// reach there without a request. It stays there until it is released.
    pub place: Option<u64>,
}

/// What both halves of a channel do: know their peers, and take what comes of the fabric.
///
/// Every call that can emit work takes `effects`; what it emits is posted in that order.
pub trait Half {
    /// A peer is there, and these are its regions.
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

    /// A peer is gone; nothing of it reaches memory here any more. What had arrived whole can still
    /// be received.
    fn lost(&mut self, peer: Peer);

    /// Looks at what peers have written meanwhile, and goes on with what waited for it. Receivers
    /// look when they are asked for a message.
    ///
    /// # Errors
    /// [`Violation`]: a peer wrote what no correct peer writes. Close its link.
    #[inline]
    fn advance<M: Memory>(&mut self, _: Own<'_, M>, _: &mut Effects) -> Result<(), Violation> {
        Ok(())
    }

    /// A request has succeeded.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation>;

    /// A receive took something.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation>;

    /// A receive was taken by what failed and is no message: where peers share their receives it is
    /// posted again. The link of that peer is over.
    fn wasted(&mut self, _peer: Peer, _name: Name, _effects: &mut Effects) {}

    /// Whose words the last [`Violation`] that came without a completion was found in; `None` when
    /// it may have been any peer of this half.
    fn accused(&self) -> Option<Peer> {
        None
    }
}

/// The sender half of a channel.
pub trait SendHalf: Half {
    /// Takes a message. What it emits may be announced only by [`Self::flush`].
    ///
    /// # Errors
    /// [`Refusal`]; nothing has happened then.
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, Refusal>;

    /// Whether [`Self::send`] of this would be taken now, for programs that want several halves to
    /// take a message or none. Asks the receiver for what is missing.
    ///
    /// # Errors
    /// What [`Self::send`] would refuse it with.
    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal>;

    /// As [`Self::send`] of bytes that are one WRITE and nothing else: puts it into `record` instead
    /// of among effects, beside the messages of this half that are there already, for callers that
    /// post it before anything else. `None` when it is more, does not fit or is refused: post the
    /// record and ask again, or ask [`Self::send`].
    fn send_at_once<M: Memory>(
        &mut self,
        _message: &[u8],
        _own: Own<'_, M>,
        _record: &mut Record,
    ) -> Option<Sending> {
        None
    }

    /// Memory for the next message, where peers will READ it, if there is room for so many bytes: to
    /// be filled and sent as the only slice of a [`Payload::Gather`], whole or its beginning. A loan
    /// ends with the next [`Self::send`] that is taken or the next loan. Only channels out of whose
    /// memory peers READ lend it; the others send from anywhere.
    fn loan<M: Memory>(&mut self, _bytes: u32, _own: Own<'_, M>) -> Option<LocalSlice> {
        None
    }

    /// Ends a batch of [`Self::send`]s: one announcement for all, where the channel allows.
    fn flush<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects);

    /// As [`Self::send`], into the slot of the caller's choice, on channels whose sender knows the
    /// places of its messages.
    ///
    /// # Errors
    /// `NoSuch` where senders do not choose, or without such a slot; `Full` while the receiver has
    /// not given that slot back.
    fn send_to<M: Memory>(
        &mut self,
        _slot: u32,
        _payload: Payload<'_>,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Result<Sending, Refusal> {
        Err(Refusal::NoSuch("slot to choose"))
    }

    /// Asks receivers how far they are, where only a request tells ([`Acknowledge::ReadTail`]): for
    /// those who wait for [`Self::is_drained`].
    ///
    /// [`Acknowledge::ReadTail`]: super::Acknowledge::ReadTail
    fn ask_progress(&mut self, _: &mut Effects) {}

    /// Whether the source of a message is free again. It does not say that the message was received.
    fn is_done(&self, sending: Sending) -> bool;

    /// Whether every message has been sent and acknowledged as processed by all receivers.
    fn is_drained(&self) -> bool;
}

/// The receiver half of a channel.
pub trait ReceiveHalf: Half {
    /// The next message, if one is here: held until it is released. A channel whose receiver fetches
    /// messages fetches them into its own buffer for this.
    ///
    /// # Errors
    /// [`Violation`]: what a peer wrote is no message. Close its link.
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation>;

    /// Gives a message's memory back, in any order: of one that was received, or of one that was
    /// offered and not fetched.
    ///
    /// # Errors
    /// `NoSuch` when it is not held (any more).
    fn release<M: Memory>(
        &mut self,
        held: Held,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal>;

    /// Receives up to `max` messages, shows each to `see` where it lies and releases it before the
    /// next one; how many, and what stands behind them if that is no message.
    #[inline]
    fn drain<M: Memory>(
        &mut self,
        max: usize,
        own: Own<'_, M>,
        effects: &mut Effects,
        see: &mut impl FnMut(Received),
    ) -> (usize, Result<(), Violation>) {
        drain_one_by_one(self, max, own, effects, see)
    }

    /// A message that can be fetched to a place of the caller's choice, if the channel can do that:
    /// then it is not shown by [`Self::receive`]. Asks the sender anew where that takes a request.
    ///
    /// # Errors
    /// [`Violation`], as [`Self::receive`].
    fn offer<M: Memory>(
        &mut self,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Result<Option<Offer>, Violation> {
        Ok(None)
    }

    /// Fetches an offered message into `into`, which must stay alone until it is there.
    ///
    /// # Errors
    /// `NoSuch` without such an offer; `TooLong` when `into` is shorter than the offer.
    fn receive_into<M: Memory>(
        &mut self,
        _offer: Held,
        _into: LocalSlice,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Result<(), Refusal> {
        Err(Refusal::NoSuch("offer"))
    }

    /// Bytes of a message that was fetched by [`Self::receive_into`], once it is there; it is
    /// released by this.
    fn fetched<M: Memory>(
        &mut self,
        _offer: Held,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Option<u32> {
        None
    }

    /// Acknowledges everything that has been released, now instead of when it is much.
    fn acknowledge<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects);
}

/// [`ReceiveHalf::drain`] by receiving and releasing.
#[inline]
pub(super) fn drain_one_by_one<H: ReceiveHalf + ?Sized, M: Memory>(
    half: &mut H,
    max: usize,
    own: Own<'_, M>,
    effects: &mut Effects,
    see: &mut impl FnMut(Received),
) -> (usize, Result<(), Violation>) {
    let mut taken = 0;
    while taken < max {
        match half.receive(own, effects) {
            Ok(Some(received)) => {
                see(received);
                let released = half.release(received.held, own, effects);
                debug_assert!(released.is_ok(), "it was just received");
                taken += 1;
            }
            Ok(None) => break,
            Err(violation) => return (taken, Err(violation)),
        }
    }
    (taken, Ok(()))
}

/// A half reaches for its own memory only where its plan says that there is some; the runtime that
/// lends it less has broken the agreement, and so has nobody remote.
pub(super) fn own<T>(access: Result<T, OutOfBounds>) -> Result<T, Violation> {
    access.map_err(|OutOfBounds| Violation("a half was lent too little memory"))
}
