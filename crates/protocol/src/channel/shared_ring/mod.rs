//! Rings shared by many senders (001 §4.4): a sender reserves space in the ring at the receiver by a FETCH_ADD on the
//! head, and WRITEs its message there.
//!
//! Positions, records and the guard are as in [`super::ring`].
//!
//! ```text
//! receiver's words       [ tail | head |   senders READ the tail and FETCH_ADD the head, which the
//!                                          receiver only loads
//!                        [ answer of sender 0 | answer of sender 1 | ...
//!
//! receiver's buffer
//!   shared-ring-inlined-zeroing            the receiver zeroes what it has processed
//!     ... | header | padding, message | 1 | header | padding, message | 1 | 0 ...
//!     header: 32 bits length + 1, 16 bits number of the sender, 16 bits position / 8
//!
//!   shared-ring-immediate                  immediate: position / 8; length and sender: from the
//!     ... | message, padded | message, padded ...                                  completion
//!
//! sender's bells         [ tail as it was READ |
//!                        [ welcome | query |           the receiver WRITEs them
//!                        [ 1 | header and zeroes of each message | position of each message
//! sender's buffer        staging of each message that was given as bytes
//! ```
//!
//! *Reserving.* Each message has its own FETCH_ADD, and many are in flight at a time. When one has completed and the
//! record fits between the last known tail and one ring beyond it, the record is WRITten; otherwise the sender READs
//! the tail, one READ at a time, until there is room. Reserved messages that wait are written in order of positions.
//!
//! *Order.* With the inlined bell, messages are received in order of positions, with immediate data in order of
//! arrival. Positions are in the order of sending as far as the fabric carries out the atomics of a link in the order
//! of posting, which [`farside_base::Capabilities`] do not promise: messages of one sender that were in flight
//! together may overtake each other.
//!
//! *Numbers.* A sender reserves nothing before the receiver has WRITten its number to it, plus one: so every sender
//! with reservations is known to the receiver, and is queried by `repair.rs`.
//!
//! *Trust.* Senders trust each other with progress. A sender that reserves and never writes, or overwrites other
//! records, stops the ring or corrupts messages of all, and the author of an invalid record is unknown: the sender
//! number in a header is only a claim. None of this makes the receiver access memory outside its own. A sender that
//! dies does not stop the ring: see `repair.rs`.

mod outgoing;
mod receiver;
mod repair;
mod sender;
#[cfg(test)]
mod tests;

use super::half::{PeerRegions, WORD};
use super::kind::Kind;
use super::ring_layout::RingLayout;
use super::shape::{DeviceWords, MemoryPlan, Shape};
use super::window::Window;
use farside_base::{Access, RemoteRegionId};

pub(super) use receiver::SharedRingReceiver;
pub(super) use sender::SharedRingSender;

/// Every position of a correct peer is less.
const POSITION_MAX: u64 = 1 << 62;

/// The receiver's words, in whichever region they are. The tail comes first, where [`super::acknowledge`] expects it.
const TAIL: u64 = 0;
const HEAD: u64 = 8;
const ANSWERS: u64 = 64;

/// The sender's bells.
const WELCOME: u64 = 64;
const QUERY: u64 = 72;
const ONE: u64 = 128;
const HEADERS: u64 = 192;
/// Spaced so that a header and the zeroes after it are one slice.
const HEADERS_STEP: u64 = 16;
const FETCHED: u64 = HEADERS + HEADERS_STEP * Window::MESSAGES as u64;

/// A query and its answer have in their low bits, which are free in positions, a number that distinguishes them from
/// the previous ones.
const TAG: u64 = WORD - 1;

/// The regions of the receiver's words.
///
/// The head is among its counters, which peers change by atomics, the tail and the answers among its bells.
/// `Shape::device` moves either or both to adapter memory, into the counters; the head alone is left among the bells
/// if only the tail moves. In adapter memory FETCH_ADDs do not cross the bus (001 §6.3). The location of the tail
/// does not affect senders (001 figure 8), but the receiver stores it for each released record, across the bus if it
/// is in adapter memory. The receiver loads the head only when a sender has died. A tail that is READ in halves, the
/// new low one with the old high one, is less than one READ before, and is ignored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RingWords {
    /// The head is among the counters, not the bells.
    head_apart: bool,
    /// The tail and the answers are among the counters.
    tail_apart: bool,
}

impl RingWords {
    const fn of(shape: &Shape) -> Self {
        // With the tail alone in adapter memory the head stays in main memory, among the bells.
        let (head, tail) = (shape.device.has_head(), shape.device.has_tail());
        Self { head_apart: head || !tail, tail_apart: tail }
    }

    const fn head(self, of: &PeerRegions) -> RemoteRegionId {
        if self.head_apart { of.counters } else { of.bells }
    }

    const fn tail(self, of: &PeerRegions) -> RemoteRegionId {
        if self.tail_apart { of.counters } else { of.bells }
    }
}

/// The channel of this family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum SharedRingBell {
    Immediate,
    InlinedZeroing,
}

/// The layout of positions and records in the receiver's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Layout {
    bell: SharedRingBell,
    ring: RingLayout,
    /// The minimum size of a record. `shared-ring-immediate` keeps `slots` receives in one queue for all senders, so
    /// a record takes at least a `slots`-th of the ring, and the ring never holds more messages than receives.
    record_min: u64,
}

impl Layout {
    const fn of(kind: Kind, shape: &Shape) -> Self {
        let bell = match kind {
            Kind::SharedRingImmediate => SharedRingBell::Immediate,
            _ => SharedRingBell::InlinedZeroing,
        };
        let record_min = match bell {
            SharedRingBell::Immediate => {
                shape.ring_bytes.div_ceil(shape.slots as u64).next_multiple_of(WORD)
            }
            SharedRingBell::InlinedZeroing => 2 * WORD,
        };
        let largest = Self::written(bell, shape.message_bytes_max);
        Self { bell, ring: RingLayout::new(shape, largest), record_min }
    }

    /// The size written for a message of `bytes`, in whole words.
    const fn written(bell: SharedRingBell, bytes: u32) -> u64 {
        let padded = (bytes as u64).next_multiple_of(WORD);
        match bell {
            SharedRingBell::Immediate => padded,
            SharedRingBell::InlinedZeroing => padded + 2 * WORD,
        }
    }

    /// The size in the ring of a message of `bytes`.
    #[inline]
    const fn record(&self, bytes: u32) -> u64 {
        let written = Self::written(self.bell, bytes);
        if written < self.record_min { self.record_min } else { written }
    }
}

/// The header of a message at a position.
const fn header(bytes: u32, number: u16, position: u64) -> u64 {
    (bytes as u64 + 1) | (number as u64) << 32 | (position / WORD) << 48
}

/// The maximum number of messages in flight from a sender.
const fn places(shape: &Shape) -> u32 {
    if shape.slots < Window::MESSAGES { shape.slots } else { Window::MESSAGES }
}

/// Bytes of staging for one message.
const fn staging(kind: Kind, shape: &Shape) -> u64 {
    let bell = Layout::of(kind, shape).bell;
    Layout::written(bell, shape.message_bytes_max).next_multiple_of(64)
}

/// The memory that a sender needs.
pub(super) const fn plan_sender(kind: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(FETCHED + WORD * Window::MESSAGES as u64)
        .with_buffer(staging(kind, shape) * places(shape) as u64, Access::NONE)
}

/// The size of the receiver's words in bytes: among its bells, and in the separate region.
const fn words_bytes(shape: &Shape) -> [u64; 2] {
    let (head_bytes, tail_bytes) = (HEAD + WORD, ANSWERS + WORD * shape.peers_max as u64);
    match RingWords::of(shape).tail_apart {
        true => [head_bytes, tail_bytes],
        false => [tail_bytes, head_bytes],
    }
}

/// The size of the receiver's words in adapter memory, for any shape, including refused ones.
pub(super) const fn device_bytes(shape: &Shape) -> u64 {
    match shape.device {
        DeviceWords::Nothing => 0,
        DeviceWords::Head | DeviceWords::Tail | DeviceWords::All => words_bytes(shape)[1],
    }
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let layout = Layout::of(kind, shape);
    let receives = match layout.bell {
        SharedRingBell::Immediate => shape.slots,
        SharedRingBell::InlinedZeroing => 0,
    };
    let RingWords { head_apart, tail_apart } = RingWords::of(shape);
    let tail_access = Access::READ.with(Access::WRITE);
    let access = match (head_apart, tail_apart) {
        (true, true) => tail_access.with(Access::ATOMIC),
        (true, false) => Access::ATOMIC,
        (false, _) => tail_access,
    };
    let bells_access = match (head_apart, tail_apart) {
        (_, false) => tail_access,
        (true, true) => Access::NONE,
        (false, true) => Access::ATOMIC,
    };
    let [bells_bytes, counters_bytes] = words_bytes(shape);
    let kind = DeviceWords::kind(!matches!(shape.device, DeviceWords::Nothing));
    let words = MemoryPlan { bells_access, ..MemoryPlan::words(bells_bytes) };
    words
        .with_counters(counters_bytes, kind, access)
        .with_ring(layout.ring, Access::WRITE)
        .with_receives(receives)
}
