//! A ring at the sender (001 §4.6): the sender stores messages one after the other by its processor
//! alone, and any number of readers up to `peers_max` READ them out of it.
//!
//! A *position* counts bytes from the beginning of time in units of eight; where it lies is the
//! position modulo the ring. Records are never cut: in a mirrored ring the end joins the beginning,
//! otherwise the last record of a turn runs on into a guard behind the ring, as large as the largest
//! record, and the next one begins where it would have begun in a mirrored ring. A reader keeps a copy
//! of the ring, every record at its own place, unless its caller names another place.
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
//!   READ of a bell, then of the message together with the bell behind it.
//!
//! read-ring-inlined, prefetch   sender's buffer: ... | bell | checksum | message | bell ... | 0
//!                               bell: | position / 8 mod 2^40 - 1, + 1 | length, 24 bits |
//!   READ of a bell and `prefetch_bytes` behind it: all the messages that are whole in there.
//! ```
//!
//! *Order of stores* (001 figure 3). The sender stores the message, clears the bell behind it, and
//! then stores the length into the bell before it, the latter two as releases. So whoever has READ a
//! bell that is set finds, by a later READ, the message whole and the next bell either clear or
//! true; that READ may bring both, since both were stored before the bell that was seen. With
//! prefetching one READ brings bells and messages that no earlier READ has seen, and a READ samples
//! its words in any order: those need their position and a checksum (`checksum.rs`). What does not
//! fit, or is cut off, is READ again from its bell on; its bell has been seen then, and it must fit.
//! A head, wherever it is told, is stored or sent after all messages before it.
//!
//! *Sending* copies bytes into the ring; without a copy, the message is built in what
//! [`loan`](super::SendHalf::loan) gives out. *Destinations* of the caller's choice: with inlined
//! bells the length is known first, by a READ of the bell alone; otherwise one READ brings length and
//! message at once, as much as the head allows, and the next offer waits for it. An offer fetches
//! anew what was fetched for `receive` and not taken.

mod fetch;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::kind::Kind;
use super::readers;
use super::shape::{DeviceWords, Plan, Shape, Signal};
use farside_base::Access;

pub use receiver::Receiver;
pub use sender::Sender;

const WORD: u64 = 8;
/// Where the heads that a sender WRITEs are at its reader; before them a copy of the head, or of
/// the length that comes with a message.
const SIGNALS: u64 = readers::READER_WORDS + 64;
const COPY: u64 = readers::READER_WORDS;

/// Which of the four it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Form {
    Detached,
    Notify,
    Inlined,
    Prefetched,
}

impl Form {
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

    /// What a message of `bytes` takes of the ring.
    #[inline]
    const fn record(self, bytes: u32) -> u64 {
        self.header() + (bytes as u64).next_multiple_of(WORD)
    }

    /// What must be free beside a record: the bell of the next one.
    #[inline]
    const fn beside(self) -> u64 {
        match self {
            Self::Detached | Self::Notify => 0,
            Self::Inlined | Self::Prefetched => WORD,
        }
    }
}

/// Where positions are, at the sender and at its readers alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    ring_bytes: u64,
    /// Bytes that can be reached from the beginning of the ring on.
    reach: u64,
    mirrored: bool,
}

impl Place {
    const fn new(form: Form, shape: &Shape) -> Self {
        let more = if shape.mirrored { shape.ring_bytes } else { guard(form, shape) };
        let ring_bytes = shape.ring_bytes;
        Self { ring_bytes, reach: ring_bytes + more, mirrored: shape.mirrored }
    }

    #[inline]
    const fn offset(self, position: u64) -> u64 {
        position & (self.ring_bytes - 1)
    }

    /// The end of what lies behind a position without a gap, guard included.
    #[inline]
    const fn contiguous_end(self, position: u64) -> u64 {
        position - self.offset(position) + self.reach
    }

    /// Where the records end that lie behind the one at a position without a gap.
    #[inline]
    const fn turn_end(self, position: u64) -> u64 {
        match self.mirrored {
            true => self.contiguous_end(position),
            false => position - self.offset(position) + self.ring_bytes,
        }
    }
}

/// Bytes of the guard of a ring that is not mirrored.
const fn guard(form: Form, shape: &Shape) -> u64 {
    form.record(shape.message_bytes_max).next_multiple_of(64)
}

/// What a bell has of its position, beside a length: 40 bits that are never zero.
#[inline]
const fn sequence(position: u64) -> u64 {
    position / WORD % ((1 << 40) - 1) + 1
}

/// Notices that have not arrived, or that a reader has not acknowledged by what it processed. It has
/// so many words for them.
const fn notices_max(shape: &Shape) -> u32 {
    if shape.slots < 16 { shape.slots } else { 16 }
}

/// Receives for notices. Where messages overtake each other, one that has arrived may wait to be
/// handled while what it tells was heard from another one and acknowledged. Those that are sent
/// because of that arrive, and are handled, behind it: so at most as many as were open beside it
/// wait in that way, and as many again are on their way.
const fn receives_max(shape: &Shape) -> u32 {
    2 * notices_max(shape)
}

/// What the sender needs.
pub const fn plan_sender(kind: Kind, shape: &Shape) -> Plan {
    let form = Form::of(kind, shape);
    let detached = matches!(form, Form::Detached);
    let (bells, apart) = readers::plan_bells(shape, if detached { WORD } else { 0 });
    readers::plan_sender(shape, bells)
        .with_counters(apart, DeviceWords::kind(apart > 0), Access::READ)
        .with_ring(shape, guard(form, shape), Access::READ)
}

/// What the receiver needs.
pub const fn plan_receiver(kind: Kind, shape: &Shape) -> Plan {
    let form = Form::of(kind, shape);
    let notices = if matches!(form, Form::Notify) { notices_max(shape) } else { 0 };
    let words = matches!(shape.signal, Signal::Word) && notices > 0;
    let bytes = SIGNALS - readers::READER_WORDS + if words { notices as u64 * WORD } else { 0 };
    readers::plan_reader(shape, bytes, words)
        .with_ring(shape, guard(form, shape), Access::NONE)
        .with_receives(if words || notices == 0 { 0 } else { receives_max(shape) })
}
