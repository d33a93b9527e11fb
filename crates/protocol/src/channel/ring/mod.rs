//! Rings of one sender (001 §4.3): the sender WRITEs messages one after the other into a ring at the
//! receiver, and the four channels differ in how the receiver learns of one.
//!
//! A *position* counts bytes from the beginning of time in units of eight; a record takes the
//! positions from its start to the next one's. Where it lies is the position modulo the ring.
//! Records are never cut: in a mirrored ring the end joins the beginning, otherwise the last record
//! of a turn runs on into a guard behind the ring, as large as the largest record, and the next one
//! begins where it would have begun in a mirrored ring.
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
//! One WRITE carries a message of the last: its own zero first, its length last, upon the zero of
//! the message before. With the bytes of a WRITE and the WRITEs themselves in order, a bell that is
//! not zero means a whole message (001 figure 2).
//!
//! The way back is a position, told when half of the ring has been processed.

mod receiver;
mod sender;

use super::kind::Kind;
use super::shape::{Acknowledge, Plan, Shape};
use farside_base::Access;

pub use receiver::Receiver;
pub use sender::Sender;

/// Bytes of a length or bell.
const WORD: u64 = 8;

/// The sender's bells: the receiver's position in the first line, then what is gathered around
/// messages: zeroes and a one, and a word for each message on its way.
const PROGRESS: u64 = 0;
const ZEROES: u64 = 64;
const ONE: u64 = 80;
const WORDS: u64 = 128;
/// Apart, so that a length and zeroes behind it are one slice.
const WORDS_STEP: u64 = 16;

/// The receiver's bells: its tail in the first line, for a sender that READs it, and the head in the
/// second.
const HEAD: u64 = 64;

/// Which of the four it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bell {
    Detached,
    Immediate,
    InlinedZeroing,
    Inlined,
}

impl Bell {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::RingImmediate => Self::Immediate,
            Kind::RingInlinedZeroing => Self::InlinedZeroing,
            Kind::RingInlined => Self::Inlined,
            _ => Self::Detached,
        }
    }

    /// What a message of `bytes` takes of the ring.
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

    /// What must be free beside a record: the bell of the message to come lies in the next one.
    const fn beside(self) -> u64 {
        match self {
            Self::Inlined => WORD,
            _ => 0,
        }
    }
}

/// Where positions lie in the receiver's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    mask: u64,
    /// Where the bell of position zero lies, if the ring grows downwards.
    top: u64,
}

impl Place {
    fn new(bell: Bell, shape: &Shape) -> Self {
        let turns = if shape.mirrored { 2 } else { 1 };
        let guard = if shape.mirrored { 0 } else { guard(bell, shape) };
        Self { mask: shape.ring_bytes - 1, top: turns * shape.ring_bytes + guard - WORD }
    }

    /// Of a ring that grows upwards: the first byte of a record.
    #[inline]
    const fn up(self, position: u64) -> u64 {
        position & self.mask
    }

    /// Of a ring that grows downwards: the bell of a record, which is its last word.
    #[inline]
    const fn down(self, position: u64) -> u64 {
        self.top - (position & self.mask)
    }

    /// Whether a record passes the end of the ring, or reaches it.
    #[inline]
    const fn passes_end(self, position: u64, record: u64) -> bool {
        (position & self.mask) + record > self.mask
    }
}

/// Bytes of the guard of a ring that is not mirrored.
const fn guard(bell: Bell, shape: &Shape) -> u64 {
    bell.record(shape.message_bytes_max).next_multiple_of(64)
}

/// What the sender needs.
pub const fn plan_sender(_: Kind, shape: &Shape) -> Plan {
    Plan::words(WORDS + WORDS_STEP * super::window::Window::MESSAGES as u64)
        .with_acknowledgements(shape)
}

/// What the receiver needs.
pub const fn plan_receiver(kind: Kind, shape: &Shape) -> Plan {
    let bell = Bell::of(kind);
    let receives = if matches!(bell, Bell::Immediate) { shape.slots } else { 0 };
    let plan = Plan::words(128)
        .with_ring(shape, guard(bell, shape), Access::WRITE)
        .with_receives(receives);
    match shape.acknowledge {
        Acknowledge::ReadTail => Plan { bells_access: Access::READ.with(Access::WRITE), ..plan },
        Acknowledge::Word | Acknowledge::Message => plan,
    }
}

#[cfg(test)]
mod tests;
