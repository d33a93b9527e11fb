//! WRITE into mailboxes of one size at the receiver (001 §4.2). Three channels have separate mailboxes for each
//! sender; the fourth (`reserved`) has a pool for all.
//!
//! ```text
//! write-slot-detached                    mailbox: | message | ... |
//!   Signal::Word                         bells:   [ bell of slot 0 ][ bell of slot 1 ] ...
//!   Signal::Message                      mailbox: | bell | message | ... |
//!                                        an empty SEND with the slot and the message's number
//!
//! write-slot-inlined                     mailbox: | ... | padding, message | bell |
//!
//! write-slot-immediate                   mailbox: | message | ... |
//!                                        immediate: slot and number; length: from the completion
//!
//! bell        the message's number, low 32 bits | length + 1, 32 bits
//! immediate   the message's number, low 20 bits | slot, 12 bits
//! ```
//! Mailboxes begin at cache lines. A mailbox with an inlined bell is filled from its end, so that the bell is at a
//! fixed offset and is the last word of the WRITE. No bell is zero, and none is written twice in a mailbox unless
//! 2^32 messages bypassed it; so a detached bell needs no clearing. The receiver clears an inlined one before it
//! releases the mailbox.
//!
//! Messages are numbered in the order of sending, and an acknowledgement is the number before which all are released.
//! A mailbox is reused when the number of its last message is acknowledged.
//!
//! By default a sender uses mailboxes in turn, and the receiver polls only one bell. Before the first message into a
//! mailbox *of the sender's choice* the sender sets a word in the receiver's bells, from which on the receiver polls
//! all mailboxes when the next one in turn is empty.
//!
//! *Assumed*: detached, that requests take effect in order; inlined, that the bytes of a WRITE land in order, not
//! that WRITEs do; immediate, nothing.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::half::WORD;
use super::kind::Kind;
use super::outbound::{Frame, FrameWord, padding, staging_bytes};
use super::shape::{MemoryPlan, Shape, Signal};
use farside_base::Access;

pub(super) use receiver::MailboxReceiver;
pub(super) use sender::MailboxSender;

/// The receiver's bells: its progress in the first line, if the sender READs it; whether the sender chooses
/// mailboxes; the detached bells.
const CHOSEN: u64 = 64;
const BELLS: u64 = 128;

/// The number of bits of a slot in immediate data; the others are the message's number.
const SLOT_BITS: u32 = 12;
const _: () = assert!(Shape::SLOTS_MAX == 1 << SLOT_BITS);

/// How a message in a mailbox of a single sender is announced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum MailboxBell {
    Detached,
    /// Detached, by a message.
    Announced,
    Inlined,
    Immediate,
}

impl MailboxBell {
    const fn of(kind: Kind, shape: &Shape) -> Self {
        match (kind, shape.signal) {
            (Kind::WriteSlotInlined, _) => Self::Inlined,
            (Kind::WriteSlotImmediate, _) => Self::Immediate,
            (_, Signal::Message) => Self::Announced,
            (_, Signal::Word) => Self::Detached,
        }
    }

    /// Whether it is apart from the message.
    const fn rings(self) -> bool {
        matches!(self, Self::Detached | Self::Announced)
    }

    /// Bytes from a mailbox to the next one.
    const fn step(self, shape: &Shape) -> u64 {
        shape.mailbox_bytes(match self {
            Self::Announced | Self::Inlined => WORD,
            Self::Detached | Self::Immediate => 0,
        })
    }

    /// The number of receives that the receiver keeps posted.
    const fn receives(self, shape: &Shape) -> u32 {
        match self {
            Self::Announced | Self::Immediate => shape.slots,
            Self::Detached | Self::Inlined => 0,
        }
    }
}

/// The bell of a message.
#[inline]
const fn bell(number: u64, bytes: u32) -> u64 {
    number << 32 | (bytes as u64 + 1)
}

/// The immediate data of a message.
#[inline]
const fn immediate(number: u64, slot: u32) -> u32 {
    (number as u32) << SLOT_BITS | slot
}

/// The words around a message that ends with its bell at the end of a mailbox, and its offset.
pub(super) const fn at_end(bytes: u32, bell: FrameWord, end: u64) -> (Frame, u64) {
    let padding = padding(bytes);
    let offset = end - WORD - bytes as u64 - padding as u64;
    (Frame { padding, after: bell, ..Frame::BARE }, offset)
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(_: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(staging_bytes(WORD)).with_acknowledgements(shape)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let how = MailboxBell::of(kind, shape);
    let bells = if matches!(how, MailboxBell::Detached) { WORD * shape.slots as u64 } else { 0 };
    MemoryPlan::words(BELLS + bells)
        .with_tail(shape)
        .with_buffer(how.step(shape) * shape.slots as u64, Access::WRITE)
        .with_receives(how.receives(shape))
}
