//! Rings of one sender (001 §4.3): the sender WRITEs messages one after the other into a ring at the receiver; the
//! four channels differ in how they announce a message.
//!
//! A *position* counts bytes since the creation of the channel, in units of eight; a record takes the positions from
//! its start to the next one's. Its offset is the position modulo the ring. Records are never split: in a mirrored
//! ring the end joins the beginning; otherwise the last record before the end continues into a guard after the ring,
//! as large as the largest record, and the next one begins where it would have begun in a mirrored ring.
//!
//! ```text
//! ring-detached                          bells: [ head ]
//!   ... | length + 1 | message, padded to 8 | length + 1 | message ...
//!
//! ring-immediate                         immediate: position / 8; length: from the completion
//!   ... | message, padded to 8 | message, padded to 8 ...
//!
//! ring-inlined-zeroing                   the receiver zeroes what it has processed
//!   ... | length + 1 | padding, message | 1 | length + 1 | padding, message | 1 | 0 ...
//!
//! ring-inlined                           grows downwards; nothing is ever zeroed
//!   ... 0 | padding, message | length + 1 | padding, message | length + 1 ...
//!       ^ bell of the message to come     ^ was the 0 of the older message above it
//! ```
//! In the last channel one WRITE carries a message: its own zero first, its length last, over the zero of the
//! previous message. With the bytes of a WRITE and the WRITEs themselves in order, a bell that is not zero means a
//! complete message (001 figure 2).
//!
//! An acknowledgement is a position, sent when half of the ring has been processed.

mod receiver;
mod sender;

use super::kind::Kind;
use super::shape::{Acknowledge, MemoryPlan, Shape};
use farside_base::Access;

pub(super) use receiver::RingReceiver;
pub(super) use sender::RingSender;

/// The size of a length or bell in bytes.
const WORD: u64 = 8;

/// The bytes between the staged words of two messages, so that a length and the zeroes after it are one slice.
const WORDS_STEP: u64 = 16;

/// The receiver's bells: its tail in the first line, for a sender that READs it, and the head in the second.
const HEAD: u64 = 64;

/// The channel of this family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RingBell {
    Detached,
    Immediate,
    InlinedZeroing,
    Inlined,
}

impl RingBell {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::RingImmediate => Self::Immediate,
            Kind::RingInlinedZeroing => Self::InlinedZeroing,
            Kind::RingInlined => Self::Inlined,
            _ => Self::Detached,
        }
    }

    /// The size in the ring of a message of `bytes`.
    #[inline]
    const fn record(self, bytes: u32) -> u64 {
        let padded = (bytes as u64).next_multiple_of(8);
        match self {
            Self::Detached | Self::Inlined => padded + WORD,
            Self::Immediate if bytes == 0 => WORD,
            Self::Immediate => padded,
            Self::InlinedZeroing => padded + 2 * WORD,
        }
    }

    /// The space that must be free besides a record: the bell of the next message is in the next one.
    const fn beside(self) -> u64 {
        match self {
            Self::Inlined => WORD,
            _ => 0,
        }
    }
}

/// The offsets of positions in the receiver's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RingOffsets {
    mask: u64,
    /// The offset of the bell of position zero, if the ring grows downwards.
    top: u64,
}

impl RingOffsets {
    fn new(bell: RingBell, shape: &Shape) -> Self {
        let turns = if shape.mirrored { 2 } else { 1 };
        let guard = if shape.mirrored { 0 } else { guard(bell, shape) };
        Self { mask: shape.ring_bytes - 1, top: turns * shape.ring_bytes + guard - WORD }
    }

    /// In a ring that grows upwards: the first byte of a record.
    #[inline]
    const fn up(self, position: u64) -> u64 {
        position & self.mask
    }

    /// In a ring that grows downwards: the bell of a record, which is its last word.
    #[inline]
    const fn down(self, position: u64) -> u64 {
        self.top - (position & self.mask)
    }

    /// Whether a record crosses the end of the ring, or reaches it.
    #[inline]
    const fn passes_end(self, position: u64, record: u64) -> bool {
        (position & self.mask) + record > self.mask
    }
}

/// Bytes of the guard of a ring that is not mirrored.
const fn guard(bell: RingBell, shape: &Shape) -> u64 {
    bell.record(shape.message_bytes_max).next_multiple_of(64)
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(_: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(super::outbound::staging_bytes(WORDS_STEP)).with_acknowledgements(shape)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let bell = RingBell::of(kind);
    let receives = if matches!(bell, RingBell::Immediate) { shape.slots } else { 0 };
    let plan = MemoryPlan::words(128)
        .with_ring(shape, guard(bell, shape), Access::WRITE)
        .with_receives(receives);
    match shape.acknowledge {
        Acknowledge::ReadTail => {
            MemoryPlan { bells_access: Access::READ.with(Access::WRITE), ..plan }
        }
        Acknowledge::Word | Acknowledge::Message => plan,
    }
}

#[cfg(test)]
mod tests;
