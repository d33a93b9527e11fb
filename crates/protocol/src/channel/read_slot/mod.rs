//! Mailboxes at the sender (001 §4.5): messages stay in the sender's memory until its readers READ them. All but the
//! indirect channel serve up to `peers_max` readers from one memory.
//!
//! Message number `k`, counted from the sender's first, is in mailbox `k` modulo `slots`, so its number determines
//! its mailbox. A mailbox is reused when every living reader has released its previous message. A reader keeps
//! messages at the same offsets of its own buffer, or at a destination named by its caller. A *bell* has the number
//! and the length:
//!
//! ```text
//! bell: | number mod 2^40 - 1, + 1 | length, 24 bits |       zero: never set
//!
//! read-slot-detached     sender's bells:  [ readers | bell 0 | bell 1 | ... ]; at the adapter the bells
//!                                         are a region of their own (`Shape::device`)
//!                        sender's buffer: [ message 0 | message 1 | ... ]
//!   READ of up to eight bells, then of exactly each message.
//!
//! read-slot-inlined      sender's buffer: [ bell, checksum, message 0 | bell, checksum, message 1 ... ]
//!   READ of whole mailboxes: one, or more while they keep being full. For a destination of the
//!   caller's choice, READ of the bell, then of exactly the message.
//!
//! read-slot-notify       immediate: | length | slot |, or
//!                        reader's bells:  [ 64 bytes | 64 bytes | bell 0 | bell 1 | ... ]
//!   A notice by SEND, or by a WRITE of the bell; then READ of exactly the message.
//!
//! read-slot-indirect     sender's bells:  [ reader | place 0 | place 1 | ... ]
//!                        reader's bells:  [ 64 bytes | 64 bytes | bell 0 | bell 1 | ... ]
//!   place: | offset in the reader's buffer, 40 bits | number mod 2^24 - 1, + 1 |
//!   The reader WRITEs a place (a destination), the sender WRITEs the message there: with its number as immediate
//!   data, or followed by a WRITE of its bell.
//! ```
//!
//! *Order of stores.* The sender stores a message, and then, as a release, its bell or notice: a READ of the message
//! after a READ of its bell returns the complete message. A mailbox that is READ together with its bell also has a
//! checksum (`checksum.rs` says why): if it does not match, the mailbox is READ again, and must match then. Nothing
//! is assumed about the order of requests, except for the indirect channel with bells (`message_order`).
//!
//! *Sending* copies bytes into the mailbox. Without a copy, the message is built in the memory that
//! [`loan`](super::SendHalf::loan) returns, and sent as its slice; it is done when all readers have released it. The
//! indirect channel sends from any memory, but only once a destination is known: until then it is full, and its round
//! trip is counted from the reader's request.

mod forms;
mod indirect_receiver;
mod indirect_sender;
mod mailbox_fetch;
mod mailbox_receiver;
mod mailbox_sender;
#[cfg(test)]
mod tests;

use super::kind::Kind;
use super::readers::{self, READER_WORDS};
use super::shape::{DeviceWords, MemoryPlan, Shape, Signal};
use crate::wire::Violation;
use farside_base::Access;

pub use forms::{ReadSlotReceiver, ReadSlotSender};

const WORD: u64 = 8;
/// The size in bytes of the bell and checksum before a message with an inlined bell.
const INLINED: u64 = 16;
/// The maximum number of bells, or full mailboxes, per READ; a line of a reader's bells.
const BATCH: u64 = 8;
/// The maximum number of messages that are READ, or requested, at a time.
const IN_FLIGHT: usize = 16;
/// The offset, at a reader, of the words that its sender WRITEs.
const SIGNALS: u64 = READER_WORDS + BATCH * WORD;

/// The offset at which the indirect sender's only receiver acknowledges: reader 0 of `readers.rs`.
const PROGRESS: u64 = 8;

/// The channel of this family, except the indirect one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReadSlotForm {
    Detached,
    Inlined,
    Notify,
}

impl ReadSlotForm {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::ReadSlotInlined => Self::Inlined,
            Kind::ReadSlotNotify => Self::Notify,
            _ => Self::Detached,
        }
    }

    /// Bytes in a mailbox before its message.
    const fn header(self) -> u64 {
        match self {
            Self::Inlined => INLINED,
            Self::Detached | Self::Notify => 0,
        }
    }
}

/// The layout of mailboxes, at the sender and at its readers alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Boxes {
    slots: u64,
    step: u64,
    header: u64,
    message_bytes_max: u32,
}

impl Boxes {
    const fn new(header: u64, shape: &Shape) -> Self {
        let bytes = header + shape.message_bytes_max as u64;
        Self {
            slots: shape.slots as u64,
            step: bytes.next_multiple_of(64),
            header,
            message_bytes_max: shape.message_bytes_max,
        }
    }

    #[inline]
    const fn slot(self, number: u64) -> u64 {
        number % self.slots
    }

    /// The first byte of a mailbox.
    #[inline]
    const fn mailbox(self, number: u64) -> u64 {
        self.slot(number) * self.step
    }

    /// The first byte of a message.
    #[inline]
    const fn message(self, number: u64) -> u64 {
        self.mailbox(number) + self.header
    }

    /// The bytes of a mailbox that are in use.
    const fn used(self) -> u64 {
        self.header + self.message_bytes_max as u64
    }

    /// The length of a message, if its bell is set.
    #[inline]
    fn rung(self, number: u64, bell: u64) -> Result<Option<u32>, Violation> {
        let bytes = (bell & 0xff_ffff) as u32;
        if bell >> 24 == sequence(number) {
            return match bytes <= self.message_bytes_max {
                true => Ok(Some(bytes)),
                false => Err(Violation("a length that no message has")),
            };
        }
        let before = number.checked_sub(self.slots);
        match bell {
            0 => Ok(None),
            _ if before.is_some_and(|before| sequence(before) == bell >> 24) => Ok(None),
            _ => Err(Violation("a bell of another message")),
        }
    }
}

/// The sequence number of a message in its bell: 40 bits that are never zero, and differ from those of the previous
/// message in the same mailbox.
#[inline]
const fn sequence(number: u64) -> u64 {
    number % ((1 << 40) - 1) + 1
}

/// The bell of a message.
#[inline]
const fn bell_of(number: u64, bytes: u32) -> u64 {
    (sequence(number) << 24) | bytes as u64
}

/// The word by which a reader names the destination of a message.
#[inline]
const fn place_of(number: u64, offset: u64) -> u64 {
    (offset << 24) | place_sequence(number)
}

/// The sequence number of a message in a destination word: 24 bits, otherwise as [`sequence`].
#[inline]
const fn place_sequence(number: u64) -> u64 {
    number % ((1 << 24) - 1) + 1
}

/// The number of bits of the slot in the immediate data of a notice; the others are the length.
const fn slot_bits(shape: &Shape) -> u32 {
    u32::BITS - (shape.slots - 1).leading_zeros()
}

/// Whether they fit there.
pub(super) const fn notice_fits(shape: &Shape) -> bool {
    slot_bits(shape) + (u32::BITS - shape.message_bytes_max.leading_zeros()) <= u32::BITS
}

/// The memory that the sender needs.
pub const fn plan_sender(kind: Kind, shape: &Shape) -> MemoryPlan {
    let words = shape.slots as u64 * WORD;
    if matches!(kind, Kind::ReadSlotIndirect) {
        let plan = MemoryPlan::words(readers::sender_words(&one_reader(shape)) + words);
        return plan.with_acknowledgements(shape);
    }
    let boxes = Boxes::new(ReadSlotForm::of(kind).header(), shape);
    let detached = matches!(kind, Kind::ReadSlotDetached);
    let (bells, apart) = readers::plan_bells(shape, if detached { words } else { 0 });
    readers::plan_sender(shape, bells)
        .with_counters(apart, DeviceWords::kind(apart > 0), Access::READ)
        .with_buffer(boxes.slots * boxes.step, Access::READ)
}

/// The memory that the receiver needs.
pub const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let boxes = Boxes::new(ReadSlotForm::of(kind).header(), shape);
    let told = matches!(kind, Kind::ReadSlotNotify | Kind::ReadSlotIndirect);
    let words = told && matches!(shape.signal, Signal::Word);
    let bytes = BATCH * WORD + if words { boxes.slots * WORD } else { 0 };
    let plan = readers::plan_reader(shape, bytes, words);
    let plan = plan.with_receives(if told && !words { shape.slots } else { 0 });
    match kind {
        Kind::ReadSlotIndirect => plan.with_buffer(2 * boxes.slots * boxes.step, Access::WRITE),
        _ => plan.with_buffer(boxes.slots * boxes.step, Access::NONE),
    }
}

/// The shape of a channel with a single reader.
const fn one_reader(shape: &Shape) -> Shape {
    Shape { peers_max: 1, ..*shape }
}
