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

use super::half::WORD;
use super::kind::Kind;
use super::ring_layout::RingLayout;
use super::shape::{MemoryPlan, Shape};
use farside_base::Access;

pub(super) use receiver::RingReceiver;
pub(super) use sender::RingSender;

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

/// The layout of the receiver's buffer.
const fn layout(bell: RingBell, shape: &Shape) -> RingLayout {
    RingLayout::new(shape, bell.record(shape.message_bytes_max))
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(_: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(super::outbound::staging_bytes(WORDS_STEP)).with_acknowledgements(shape)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let bell = RingBell::of(kind);
    let receives = if matches!(bell, RingBell::Immediate) { shape.slots } else { 0 };
    MemoryPlan::words(128)
        .with_tail(shape)
        .with_ring(layout(bell, shape), Access::WRITE)
        .with_receives(receives)
}

#[cfg(test)]
mod tests;
