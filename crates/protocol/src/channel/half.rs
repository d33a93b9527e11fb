//! The interface of all sender and receiver halves, independent of their memory layout.
//!
//! A half is driven by the runtime, which passes it the program's calls and the completions, lends it its own
//! regions, and performs its effects. It never blocks.
//!
//! If its plan omits a region, the bells take that region's place, at this half and at its peers.

use super::effects::{Effects, InlineWrite, Name};
use crate::wire::Violation;
use core::fmt;
use farside_base::{LocalSlice, Memory, OutOfBounds, RegionId, RemoteRegionId};

/// The number of a peer of a half, below `Shape::peers_max`. For a half with one peer it is [`Peer::ONLY`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer(pub u16);

impl Peer {
    /// The peer of a half with only one.
    pub const ONLY: Self = Self(0);
}

/// The regions of a half, as accessible memory.
pub struct Own<'a, M> {
    /// Messages.
    pub buffer: &'a M,
    /// Bells and other words.
    pub bells: &'a M,
    /// Words apart from the bells: those that peers change by atomics, and those in adapter memory, which may need
    /// other means of access than main memory.
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

/// The regions of a half, as its own work requests name them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnRegions {
    /// Messages.
    pub buffer: RegionId,
    /// Bells and other words.
    pub bells: RegionId,
}

/// The imported regions of a peer's half.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PeerRegions {
    /// Messages.
    pub buffer: RemoteRegionId,
    /// Bells and other words.
    pub bells: RemoteRegionId,
    /// Words apart from the bells: those that peers change by atomics, and those in adapter memory.
    pub counters: RemoteRegionId,
    /// The number by which the peer knows this half: the index of this half's words among those that the peer has for
    /// each of its peers.
    pub number: Peer,
}

/// The content of a message to send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// Bytes, copied before the call returns: by the request itself if the half sends them inline, or into memory
    /// that peers READ.
    Bytes(&'a [u8]),
    /// Consecutive slices of local regions, sent without a copy; they must stay unchanged until the message is done.
    Gather(&'a [LocalSlice]),
}

impl Payload<'_> {
    /// Its size in bytes, at most `u64::MAX`.
    #[inline]
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Gather([slice]) => u64::from(slice.bytes),
            Self::Gather(slices) => slices.iter().map(|slice| u64::from(slice.bytes)).sum(),
        }
    }
}

/// A message that a sender has accepted; [`SendHalf::is_done`] reports when its source is free again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Sending(pub u64);

/// A message that a receiver holds in its memory until it is released.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeldMessage(pub u64);

/// Why a half refused a call; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HalfRefusal {
    /// The peer has not released enough yet: retry later. This is back-pressure, not a fault.
    Full,
    /// No peer is connected yet.
    NotConnected,
    /// The peer is gone.
    Lost,
    /// The message is longer than the channel's maximum.
    TooLong {
        /// The maximum size in bytes.
        bytes_max: u32,
    },
    /// The channel cannot send this form of payload; the text names the supported one.
    Form(&'static str),
    /// No message of this name is held (any more), or there is no such slot or offer.
    NoSuch(&'static str),
}

impl fmt::Display for HalfRefusal {
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

impl core::error::Error for HalfRefusal {}

/// The completion of a successful request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completed {
    /// Its target.
    pub peer: Peer,
    /// The half's name for it.
    pub name: Name,
}

/// The completion of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Arrival {
    /// The sender.
    pub peer: Peer,
    /// The half's name for the receive.
    pub name: Name,
    /// The size in bytes of the message or, for a WRITE with immediate, of the WRITE.
    pub bytes: u32,
    /// The immediate data.
    pub immediate: Option<u32>,
}

/// The location of a received message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// In the receiver's buffer.
    Buffer {
        /// First byte.
        offset: u64,
        /// The size in bytes.
        bytes: u32,
    },
    /// An integer that came as immediate data, without bytes.
    Integer(u32),
}

/// A message that has been received.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Received {
    /// Its name until it is released.
    pub held: HeldMessage,
    /// Its sender.
    pub peer: Peer,
    /// Its location.
    pub content: Content,
}

/// A message that a receiver can fetch into a destination of its choice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Offer {
    /// Its name.
    pub held: HeldMessage,
    /// Its sender.
    pub peer: Peer,
    /// The maximum size in bytes; the actual size is known when it has been fetched.
    pub bytes_max: u32,
    /// Its offset in the sender's buffer, if its exact size is known: for receivers that access that memory without a
    /// request. It stays there until it is released.
    pub place: Option<u64>,
}

/// The common part of both halves of a channel: peers and completions.
///
/// Every call that can emit work takes `effects`, to be posted in that order.
pub trait Half {
    /// Connects a peer with these regions.
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
    #[inline]
    fn advance<M: Memory>(&mut self, _: Own<'_, M>, _: &mut Effects) -> Result<(), Violation> {
        Ok(())
    }

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
    fn wasted(&mut self, _peer: Peer, _name: Name, _effects: &mut Effects) {}

    /// The peer whose words caused the last [`Violation`] reported without a completion; `None` if it may have been
    /// any peer of this half.
    fn accused(&self) -> Option<Peer> {
        None
    }
}

/// The sender half of a channel.
pub trait SendHalf: Half {
    /// Sends a message. It may be announced only by [`Self::flush`].
    ///
    /// # Errors
    /// [`HalfRefusal`]; nothing has happened then.
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal>;

    /// Whether [`Self::send`] of this payload would be accepted now, for programs that need several halves to accept
    /// a message or none. Requests from the receiver what is missing.
    ///
    /// # Errors
    /// The error that [`Self::send`] would return.
    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal>;

    /// Like [`Self::send`], for a message that needs exactly one WRITE: adds it to `record` instead of the effects,
    /// next to the present messages of this half, for callers that post the record before anything else. `None` if it
    /// needs more, does not fit or is refused: post the record and call again, or call [`Self::send`].
    fn send_at_once<M: Memory>(
        &mut self,
        _message: &[u8],
        _own: Own<'_, M>,
        _record: &mut InlineWrite,
    ) -> Option<Sending> {
        None
    }

    /// Lends memory for the next message, in the region that peers READ, if there is room for `_bytes`: fill it and
    /// send it, or its beginning, as the only slice of a [`Payload::Gather`]. A loan ends with the next accepted
    /// [`Self::send`] or the next loan. Only channels with peers that READ the sender's memory lend it; the others
    /// send from any memory.
    fn loan<M: Memory>(&mut self, _bytes: u32, _own: Own<'_, M>) -> Option<LocalSlice> {
        None
    }

    /// Ends a batch of [`Self::send`]s: one announcement for all, if the channel allows it.
    fn flush<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects);

    /// Like [`Self::send`], into a slot of the caller's choice, on channels with a sender that places its messages.
    ///
    /// # Errors
    /// `NoSuch` if senders do not choose slots, or there is no such slot; `Full` while the receiver has not released
    /// that slot.
    fn send_to<M: Memory>(
        &mut self,
        _slot: u32,
        _payload: Payload<'_>,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        Err(HalfRefusal::NoSuch("slot to choose"))
    }

    /// Requests the progress of receivers, if it is known only by request ([`Acknowledge::ReadTail`]): for callers
    /// that wait for [`Self::is_drained`].
    ///
    /// [`Acknowledge::ReadTail`]: super::Acknowledge::ReadTail
    fn ask_progress(&mut self, _: &mut Effects) {}

    /// Whether the source of a message is free again. It does not imply that the message was received.
    fn is_done(&self, sending: Sending) -> bool;

    /// Whether every message has been sent and acknowledged as processed by all receivers.
    fn is_drained(&self) -> bool;
}

/// The receiver half of a channel.
pub trait ReceiveHalf: Half {
    /// Returns the next message, if there is one; it is held until it is released. A channel with a receiver that
    /// fetches messages fetches them into its own buffer for this.
    ///
    /// # Errors
    /// [`Violation`]: a peer wrote an invalid message. Close its link.
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation>;

    /// Releases the memory of a message, in any order: one that was received, or one that was offered and not
    /// fetched.
    ///
    /// # Errors
    /// `NoSuch` if it is not held (any more).
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal>;

    /// Receives up to `max` messages, passes each to `see` in place and releases it before the next one. Returns
    /// their number, and the error that ended the loop, if any.
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

    /// Returns a message to be fetched into a destination of the caller's choice, if the channel can do that;
    /// [`Self::receive`] then does not return it. Requests it from the sender if that needs a request.
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

    /// Fetches an offered message into `into`, which must not be used until it has arrived.
    ///
    /// # Errors
    /// `NoSuch` without such an offer; `TooLong` if `into` is shorter than the offer.
    fn receive_into<M: Memory>(
        &mut self,
        _offer: HeldMessage,
        _into: LocalSlice,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        Err(HalfRefusal::NoSuch("offer"))
    }

    /// Returns the size in bytes of a message fetched by [`Self::receive_into`], once it has arrived; releases it.
    fn fetched<M: Memory>(
        &mut self,
        _offer: HeldMessage,
        _own: Own<'_, M>,
        _effects: &mut Effects,
    ) -> Option<u32> {
        None
    }

    /// Acknowledges all released messages now, instead of in batches.
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

/// Converts a failed access of a half to its own memory. It accesses only memory in its plan, so the runtime has lent
/// it too little, and no peer is at fault.
pub(super) fn own<T>(access: Result<T, OutOfBounds>) -> Result<T, Violation> {
    access.map_err(|OutOfBounds| Violation("a half was lent too little memory"))
}
