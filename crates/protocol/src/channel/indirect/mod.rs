//! Mailboxes that the receiver names (001 §4.5, "read slot indirect"): the reader WRITEs a place (a destination in its
//! own buffer) for each message, and the sender WRITEs the message there.
//!
//! ```text
//! read-slot-indirect     sender's bells:  [ reader | place 0 | place 1 | ... ]
//!                        reader's bells:  [ 64 bytes | 64 bytes | bell 0 | bell 1 | ... ]
//!   place: | offset in the reader's buffer, 40 bits | number mod 2^24 - 1, + 1 |
//!   The message comes with its number as immediate data, or is followed by a WRITE of its bell (as in
//!   `read_slot`).
//! ```
//! The sender sends from any memory, but only once a destination is known: until then it is full, and its round trip
//! is counted from the reader's request. With bells, requests have to take effect in order (`message_order`).

mod receiver;
mod sender;

use super::half::WORD;
use super::kind::Kind;
use super::read_slot::{BATCH, Boxes};
use super::readers::{plan_reader, sender_words};
use super::shape::{MemoryPlan, Shape, Signal};
use farside_base::Access;

pub(super) use receiver::IndirectReceiver;
pub(super) use sender::IndirectSender;

/// The offset of the destinations at the sender: after the words of its only reader.
const PLACES: u64 = sender_words(1);

/// The word by which a reader names the destination of a message.
#[inline]
pub(super) const fn place_of(number: u64, offset: u64) -> u64 {
    (offset << 24) | place_sequence(number)
}

/// The sequence number of a message in a destination word: 24 bits that are never zero, and differ from those of the
/// previous message of the same slot.
#[inline]
const fn place_sequence(number: u64) -> u64 {
    number % ((1 << 24) - 1) + 1
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(_: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(PLACES + shape.slots as u64 * WORD).with_acknowledgements(shape)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(_: Kind, shape: &Shape) -> MemoryPlan {
    let boxes = Boxes::new(0, shape);
    let words = matches!(shape.signal, Signal::Word);
    let bytes = BATCH * WORD + if words { boxes.slots * WORD } else { 0 };
    plan_reader(shape, bytes, words)
        .with_receives(if words { 0 } else { shape.slots })
        .with_buffer(2 * boxes.slots * boxes.step, Access::WRITE)
}
