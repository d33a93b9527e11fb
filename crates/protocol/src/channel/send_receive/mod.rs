//! SEND into receives posted by the receiver (001 §4.1).
//!
//! The receiver posts `slots` receives, and each again when it is released; the sender sends only while it knows that
//! a receive is posted. So a correct SEND never meets an empty queue, independent of the fabric's receiver-not-ready
//! handling.
//!
//! ```text
//! send                                   one queue and one buffer for each sender
//!   queue of the link:  | 0 | 1 | 2 | ... | slots - 1 |      in any order, as they are released
//!                         v   v   v
//!   buffer:             | message_bytes_max, padded to 8 | ... |
//!
//! send-shared                            one queue and one buffer for all senders
//!   the same, and each of `peers_max` senders has `slots / peers_max` of the receives as its share
//!
//! send-bufferless                        no buffer: receives of zero bytes
//!   immediate: the integer
//! ```
//! A SEND carries only the message; its length comes with the completion. Acknowledgements count released messages,
//! in any order: receives are all alike. The sender's bells are one line, with the count of released messages in its
//! first word; the receiver has none (receives without bytes point to its line of bells).
//!
//! *Assumed*: only that a receive takes one complete message or none. Messages arrive in the order of their
//! completions, which is that of sending on a fabric with `message_order`.
//!
//! A new sender of `send-shared` that reuses the number of a lost one has its full share at once, though messages of
//! the lost one may still be held. Until they are released, the queue is that much shorter than the shares together.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::kind::Kind;
use super::shape::{MemoryPlan, Shape};
use farside_base::Access;

pub(super) use receiver::TwoSidedReceiver;
pub(super) use sender::TwoSidedSender;

/// Bytes of an integer.
const INTEGER: u32 = 4;

/// The channel of this family.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReceiveForm {
    Normal,
    Shared,
    Bufferless,
}

impl ReceiveForm {
    const fn of(kind: Kind) -> Self {
        match kind {
            Kind::SendShared => Self::Shared,
            Kind::SendBufferless => Self::Bufferless,
            _ => Self::Normal,
        }
    }

    /// The maximum number of messages in flight from one sender.
    const fn credits(self, shape: &Shape) -> u32 {
        match self {
            Self::Normal | Self::Bufferless => shape.slots,
            Self::Shared => {
                let share = shape.slots / shape.peers_max as u32;
                if share == 0 { 1 } else { share }
            }
        }
    }

    /// Bytes of the buffer for each receive.
    const fn step(self, shape: &Shape) -> u64 {
        match self {
            Self::Normal | Self::Shared => (shape.message_bytes_max as u64).next_multiple_of(8),
            Self::Bufferless => 0,
        }
    }
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(_: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(64).with_acknowledgements(shape)
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(kind: Kind, shape: &Shape) -> MemoryPlan {
    let bytes = ReceiveForm::of(kind).step(shape) * shape.slots as u64;
    MemoryPlan::words(64).with_buffer(bytes, Access::NONE).with_receives(shape.slots)
}
