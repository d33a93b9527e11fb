//! A ring at the sender (001 §4.6): the sender stores messages one after the other by its processor alone, and any
//! number of readers up to `peers_max` READ them.
//!
//! Positions, records and the guard are as in [`super::ring`]. A reader keeps a copy of the ring, every record at its
//! own offset, unless its caller names another destination.
//!
//! ```text
//! read-ring-detached            sender's bells:  [ readers | head ]; at the adapter the head is a
//!                                                region of its own (`Shape::device`)
//!                               sender's buffer: ... | length + 1 | message, padded to 8 | ...
//!   READ of the head, then of all up to it, in pieces of at most 64 KiB or one record.
//!
//! read-ring-notify              immediate: head / 8, low 32 bits, or
//!                               reader's bells:  [ 64 bytes | 64 bytes | head | head | ... ]
//!                               sender's buffer: as above
//!   A notice to each reader by a SEND, or by a WRITE of the head into the next of a few words, once
//!   for a batch; then READ of all up to it.
//!
//! read-ring-inlined             sender's buffer: ... | length + 1 | message | length + 1 | message | 0
//!   READ of a bell, then of the message together with the bell after it.
//!
//! read-ring-inlined, prefetch   sender's buffer: ... | bell | checksum | message | bell ... | 0
//!                               bell: | position / 8 mod 2^40 - 1, + 1 | length, 24 bits |
//!   READ of a bell and `prefetch_bytes` after it: all the complete messages in that range.
//! ```
//!
//! *Order of stores* (001 figure 3). The sender stores the message, clears the bell after it, and then stores the
//! length into the bell before it, the latter two as releases. So after a READ has returned a set bell, a later READ
//! returns the complete message and the next bell either clear or valid; that READ may fetch both, since both were
//! stored before the bell that was seen. With prefetching one READ fetches bells and messages that no earlier READ
//! has seen, and a READ samples its words in any order: those need their position and a checksum (`checksum.rs`). A
//! record that does not match, or is cut off, is READ again from its bell on; its bell has been seen then, and it
//! must match. A head, however it is announced, is stored or sent after all messages before it.
//!
//! *Sending* copies bytes into the ring; without a copy, the message is built in the memory that
//! [`loan`](super::Sender::loan) returns. *Destinations* of the caller's choice: with inlined bells the length is
//! known first, by a READ of the bell alone; otherwise one READ fetches length and message, as much as the head
//! permits, and the next offer waits for it. An offer fetches again what was fetched for `receive` and not taken.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::half::WORD;
use super::kind::Kind;
use super::readers;
use super::ring_layout::RingLayout;
use super::shape::{DeviceWords, MemoryPlan, Shape, Signal};
use farside_base::Access;

pub(super) use receiver::ReadRingReceiver;
pub(super) use sender::ReadRingSender;

/// The offset, at a reader, of the heads that its sender WRITEs. Before them is a copy of the head, or of the length
/// that comes with a message.
const SIGNALS: u64 = readers::READER_WORDS + 64;
const COPY: u64 = readers::READER_WORDS;

/// The channel of this family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReadRingForm {
    Detached,
    Notify,
    Inlined,
    Prefetched,
}

impl ReadRingForm {
    const fn of(kind: Kind, shape: &Shape) -> Self {
        match kind {
            Kind::ReadRingNotify => Self::Notify,
            Kind::ReadRingInlined if shape.prefetch_bytes > 0 => Self::Prefetched,
            Kind::ReadRingInlined => Self::Inlined,
            _ => Self::Detached,
        }
    }

    /// Bytes of a record before its message.
    #[inline]
    const fn header(self) -> u64 {
        match self {
            Self::Detached | Self::Notify | Self::Inlined => WORD,
            Self::Prefetched => 2 * WORD,
        }
    }

    /// The size in the ring of a message of `bytes`.
    #[inline]
    const fn record(self, bytes: u32) -> u64 {
        self.header() + (bytes as u64).next_multiple_of(WORD)
    }

    /// The space that must be free besides a record: the bell of the next one.
    #[inline]
    const fn beside(self) -> u64 {
        match self {
            Self::Detached | Self::Notify => 0,
            Self::Inlined | Self::Prefetched => WORD,
        }
    }
}

/// The layout of the ring, at the sender and at its readers alike.
const fn layout(form: ReadRingForm, shape: &Shape) -> RingLayout {
    RingLayout::new(shape, form.record(shape.message_bytes_max))
}

/// The sequence number of a position in a bell, besides the length: 40 bits that are never zero.
#[inline]
const fn sequence(position: u64) -> u64 {
    position / WORD % ((1 << 40) - 1) + 1
}

/// The maximum number of notices that have not arrived, or that a reader has not acknowledged by its processing. The
/// reader has this many words for them.
const fn notices_max(shape: &Shape) -> u32 {
    if shape.slots < 16 { shape.slots } else { 16 }
}

/// The number of receives for notices. If messages overtake each other, a notice that has arrived may wait to be
/// handled although a later one has announced the same messages and they were acknowledged. Notices sent because of
/// that arrive, and are handled, after it. So at most as many as were outstanding besides it wait in that way, and as
/// many again are in flight.
const fn receives_max(shape: &Shape) -> u32 {
    2 * notices_max(shape)
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(kind: Kind, shape: &Shape) -> MemoryPlan {
    let form = ReadRingForm::of(kind, shape);
    let detached = matches!(form, ReadRingForm::Detached);
    let (bells, apart) = readers::plan_bells(shape, if detached { WORD } else { 0 });
    readers::plan_sender(shape, bells)
        .with_counters(apart, DeviceWords::kind(apart > 0), Access::READ)
        .with_ring(layout(form, shape), Access::READ)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let form = ReadRingForm::of(kind, shape);
    let notices = if matches!(form, ReadRingForm::Notify) { notices_max(shape) } else { 0 };
    let words = matches!(shape.signal, Signal::Word) && notices > 0;
    let bytes = SIGNALS - readers::READER_WORDS + if words { notices as u64 * WORD } else { 0 };
    readers::plan_reader(shape, bytes, words)
        .with_ring(layout(form, shape), Access::NONE)
        .with_receives(if words || notices == 0 { 0 } else { receives_max(shape) })
}
