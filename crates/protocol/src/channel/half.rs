//! The interface of all halves, independent of their memory layout.
//!
//! A half is driven by the runtime, which passes it the program's calls and the completions, lends it its own
//! regions, and performs its effects. It never blocks.
//!
//! If its plan omits a region, the bells take that region's place, at this half and at its peers.

use super::effects::{Effects, Name, Peer};
use crate::wire::Violation;
use core::fmt;
use farside_base::{LocalSlice, Memory, OutOfBounds, RegionId, RemoteRegionId};

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

/// A message that a sender has accepted; [`Sender::is_done`](super::Sender::is_done) reports when its source is free again.
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

/// What a call of a half works with: the half's own memory, and the list to which it adds requests.
pub(super) struct Step<'a, M> {
    pub(super) own: Own<'a, M>,
    pub(super) effects: &'a mut Effects,
}

/// A step, or the words of a peer that are invalid.
pub(super) type Checked<T = ()> = Result<T, Violation>;

/// A call that may be refused.
pub(super) type Accepted<T = Sending> = Result<T, HalfRefusal>;

/// The size of a bell, header or length in bytes.
pub(super) const WORD: u64 = 8;

/// No such message is held (any more).
pub(super) const NOT_HELD: HalfRefusal = HalfRefusal::NoSuch("held message");
/// A message where none is expected.
pub(super) const UNEXPECTED: Violation = Violation("a message where none comes");
/// A message longer than the channel's maximum.
pub(super) const WRONG_LENGTH: Violation = Violation("a length that no message has");

/// Checks the length of a message.
#[inline]
pub(super) fn checked_length(bytes: u64, bytes_max: u32) -> Checked<u32> {
    match u32::try_from(bytes) {
        Ok(bytes) if bytes <= bytes_max => Ok(bytes),
        _ => Err(WRONG_LENGTH),
    }
}

/// Converts a failed access of a half to its own memory. It accesses only memory in its plan, so the runtime has lent
/// it too little, and no peer is at fault.
pub(super) fn own<T>(access: Result<T, OutOfBounds>) -> Checked<T> {
    access.map_err(|OutOfBounds| Violation("a half was lent too little memory"))
}
