//! Mailboxes at the sender (001 §4.5): messages stay in the sender's memory until its readers, up to
//! `peers_max`, READ them. (`indirect` has the channel of this family with mailboxes that the receiver names.)
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
//! ```
//!
//! *Order of stores.* The sender stores a message, and then, as a release, its bell or notice: a READ of the message
//! after a READ of its bell returns the complete message. A mailbox that is READ together with its bell also has a
//! checksum (`checksum.rs` says why): if it does not match, the mailbox is READ again, and must match then. Nothing
//! is assumed about the order of requests.
//!
//! *Sending* copies bytes into the mailbox. Without a copy, the message is built in the memory that
//! [`loan`](super::Sender::loan) returns, and sent as its slice; it is done when all readers have released it.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::half::{Checked, WORD, checked_length};
use super::kind::Kind;
use super::readers::{self, READER_WORDS};
use super::shape::{DeviceWords, MemoryPlan, Shape, Signal};
use crate::wire::Violation;
use farside_base::Access;

pub(super) use receiver::ReadMailboxReceiver;
pub(super) use sender::ReadMailboxSender;

/// The size in bytes of the bell and checksum before a message with an inlined bell.
const INLINED: u64 = 16;
/// The maximum number of bells, or full mailboxes, per READ; a line of a reader's bells.
pub(super) const BATCH: u64 = 8;
/// The maximum number of messages that are READ, or requested, at a time.
pub(super) const IN_FLIGHT: usize = 16;
/// The offset, at a reader, of the words that its sender WRITEs.
pub(super) const SIGNALS: u64 = READER_WORDS + BATCH * WORD;

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
pub(super) struct Boxes {
    pub(super) slots: u64,
    pub(super) step: u64,
    pub(super) header: u64,
    pub(super) message_bytes_max: u32,
}

impl Boxes {
    pub(super) const fn new(header: u64, shape: &Shape) -> Self {
        Self {
            slots: shape.slots as u64,
            step: shape.mailbox_bytes(header),
            header,
            message_bytes_max: shape.message_bytes_max,
        }
    }

    #[inline]
    pub(super) const fn slot(self, number: u64) -> u64 {
        number % self.slots
    }

    /// The first byte of a mailbox.
    #[inline]
    pub(super) const fn mailbox(self, number: u64) -> u64 {
        self.slot(number) * self.step
    }

    /// The first byte of a message.
    #[inline]
    pub(super) const fn message(self, number: u64) -> u64 {
        self.mailbox(number) + self.header
    }

    /// The bytes of a mailbox that are in use.
    pub(super) const fn used(self) -> u64 {
        self.header + self.message_bytes_max as u64
    }

    /// The length of a message, if its bell is set.
    #[inline]
    pub(super) fn rung(self, number: u64, bell: u64) -> Checked<Option<u32>> {
        let bytes = bell & 0xff_ffff;
        if bell >> 24 == sequence(number) {
            return checked_length(bytes, self.message_bytes_max).map(Some);
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
pub(super) const fn bell_of(number: u64, bytes: u32) -> u64 {
    (sequence(number) << 24) | bytes as u64
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(kind: Kind, shape: &Shape) -> MemoryPlan {
    let words = shape.slots as u64 * WORD;
    let boxes = Boxes::new(ReadSlotForm::of(kind).header(), shape);
    let detached = matches!(kind, Kind::ReadSlotDetached);
    let (bells, apart) = readers::plan_bells(shape, if detached { words } else { 0 });
    readers::plan_sender(shape, bells)
        .with_counters(apart, DeviceWords::kind(apart > 0), Access::READ)
        .with_buffer(boxes.slots * boxes.step, Access::READ)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let boxes = Boxes::new(ReadSlotForm::of(kind).header(), shape);
    let told = matches!(kind, Kind::ReadSlotNotify);
    let words = told && matches!(shape.signal, Signal::Word);
    let bytes = BATCH * WORD + if words { boxes.slots * WORD } else { 0 };
    readers::plan_reader(shape, bytes, words)
        .with_receives(if told && !words { shape.slots } else { 0 })
        .with_buffer(boxes.slots * boxes.step, Access::NONE)
}
