//! Mailboxes at the sender (001 §4.5): messages stay where the sender has put them until its
//! readers READ them. All but the indirect channel serve up to `peers_max` readers out of one memory.
//!
//! Message number `k`, counted from the sender's first, lies in mailbox `k` modulo `slots`, so its
//! number tells its place and needs no word of its own; a number serves again when every living reader has
//! given back the message before. A reader keeps messages at the same places of its own buffer, or
//! where its caller names. A *bell* has the number and the length:
//!
//! ```text
//! bell: | number mod 2^40 - 1, + 1 | length, 24 bits |       zero: never rung
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
//!   The reader WRITEs a place, the sender WRITEs the message there: with its number as immediate
//!   data, or followed by a WRITE of its bell.
//! ```
//!
//! *Order of stores.* The sender stores a message, and then, as a release, its bell or notice: who
//! READs the bell and then, by another READ, the message sees it whole. A mailbox that is READ
//! together with its bell has a checksum besides (`checksum.rs` says why): if it does not fit, the
//! mailbox is READ again, and must fit then. Nothing is assumed of the order of requests, but for
//! the indirect channel with bells (`message_order`).
//!
//! *Sending* copies bytes into the mailbox. Without a copy, the message is built in the memory that
//! [`loan`](super::SendHalf::loan) gives out, and sent as its slice; it is done when all readers have
//! given it back. The indirect channel sends from anywhere, but only once a place is known: until then
//! it is full, and its round trip is counted from the reader's request.
//!
//! *Destinations.* The indirect channel can be given places in the reader's own buffer alone, since
//! no other region is known to the sender. The second half of that buffer is never used by
//! [`receive`](super::ReceiveHalf::receive). An offer of it is a place in the order of messages:
//! fetch it, or those behind it never come.

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
use super::shape::{DeviceWords, Plan, Shape, Signal};
use crate::wire::Violation;
use farside_base::Access;

pub use forms::{Receiver, Sender};

const WORD: u64 = 8;
/// Bytes of bell and checksum before a message with an inlined bell.
const INLINED: u64 = 16;
/// Bells, or full mailboxes, that one READ brings at most; a line of a reader's bells.
const BATCH: u64 = 8;
/// Messages that are READ, or asked for, at a time.
const IN_FLIGHT: usize = 16;
/// Where the words that a sender WRITEs are at its reader.
const SIGNALS: u64 = READER_WORDS + BATCH * WORD;

/// Where the indirect sender's only receiver acknowledges: reader 0 of `readers.rs`.
const PROGRESS: u64 = 8;

/// Which of the passive three it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Form {
    Detached,
    Inlined,
    Notify,
}

impl Form {
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

/// Where mailboxes are, at the sender and at its readers alike.
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

    /// The bytes of a mailbox that count.
    const fn used(self) -> u64 {
        self.header + self.message_bytes_max as u64
    }

    /// The length of a message, if its bell has been rung.
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

/// What a bell has of a number: 40 bits that are never zero, and differ from those of the message
/// before in the same mailbox.
#[inline]
const fn sequence(number: u64) -> u64 {
    number % ((1 << 40) - 1) + 1
}

/// The bell of a message.
#[inline]
const fn bell_of(number: u64, bytes: u32) -> u64 {
    (sequence(number) << 24) | bytes as u64
}

/// Where a message shall go, for a reader to WRITE.
#[inline]
const fn place_of(number: u64, offset: u64) -> u64 {
    (offset << 24) | place_sequence(number)
}

/// What a place has of a number: 24 bits, otherwise as [`sequence`].
#[inline]
const fn place_sequence(number: u64) -> u64 {
    number % ((1 << 24) - 1) + 1
}

/// How slot and length share the immediate data of a notice.
const fn slot_bits(shape: &Shape) -> u32 {
    u32::BITS - (shape.slots - 1).leading_zeros()
}

/// Whether they fit there.
pub(super) const fn notice_fits(shape: &Shape) -> bool {
    slot_bits(shape) + (u32::BITS - shape.message_bytes_max.leading_zeros()) <= u32::BITS
}

/// What the sender needs.
pub const fn plan_sender(kind: Kind, shape: &Shape) -> Plan {
    let words = shape.slots as u64 * WORD;
    if matches!(kind, Kind::ReadSlotIndirect) {
        let plan = Plan::words(readers::sender_words(&one_reader(shape)) + words);
        return plan.with_acknowledgements(shape);
    }
    let boxes = Boxes::new(Form::of(kind).header(), shape);
    let detached = matches!(kind, Kind::ReadSlotDetached);
    let (bells, apart) = readers::plan_bells(shape, if detached { words } else { 0 });
    readers::plan_sender(shape, bells)
        .with_counters(apart, DeviceWords::kind(apart > 0), Access::READ)
        .with_buffer(boxes.slots * boxes.step, Access::READ)
}

/// What the receiver needs.
pub const fn plan_receiver(kind: Kind, shape: &Shape) -> Plan {
    let boxes = Boxes::new(Form::of(kind).header(), shape);
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

/// The shape of a channel whose sender has one reader.
const fn one_reader(shape: &Shape) -> Shape {
    Shape { peers_max: 1, ..*shape }
}
