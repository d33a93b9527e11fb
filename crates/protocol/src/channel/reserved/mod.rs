//! WRITE into mailboxes of a pool shared by senders (001 §4.2, "reserve slot"). A sender requests a mailbox, is
//! granted one, and writes; the receiver frees the mailbox by releasing the message, without a request.
//!
//! ```text
//!              sender                                receiver
//! Message        empty SEND: REQUEST          -->
//!                                             <--    empty SEND: grant
//!                WRITE with immediate: slot   -->    mailbox: | message | ... |
//!
//! Word           WRITE of a request word      -->    bells:   | of sender 0 | of sender 1 | ...
//!   bells: | state |                          <--    WRITE of the sender's state
//!                WRITE                        -->    mailbox: | ... | padding, message | length + 1 |
//!
//! request word   requests made
//! grant          messages of this sender that are released, low 19 bits | slot + 1, or 0: no grant
//! state          grants made, 16 bits | slot of the last, 16 bits | messages released, low 32 bits
//! ```
//! Acknowledgements are part of grants and states; [`Shape::acknowledge`] has no effect here. A state
//! that was changed only by releases is sent when the receiver is asked to acknowledge.
//!
//! *Order and fairness.* A sender has one request outstanding, and accepts one message ahead: the one for which it
//! requests a mailbox. Requests are granted in the order in which the receiver sees them, but none to a sender with a
//! granted mailbox that is not filled. So a sender that requests and never writes occupies only one mailbox, and each
//! sender's messages arrive in order on any fabric.
//!
//! *Loss.* Mailboxes granted to a lost sender and not filled are free again; filled ones can still be received.
//!
//! *Assumed*: `Signal::Message`, nothing. `Signal::Word`, that the bytes of a WRITE land in order, and that a state
//! does not overwrite the next one, which is written after its WRITE has completed.
//!
//! *Trust.* A peer with access to the pool can write all of it: senders that share one can corrupt each other's
//! messages, but not make the receiver access memory outside its own. A sender that writes an invalid word is muted
//! until it is lost.

mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use super::half::WORD;
use super::kind::Kind;
use super::outbound::staging_bytes;
use super::shape::{MemoryPlan, Shape, Signal};
use farside_base::Access;

pub(super) use receiver::ReservedReceiver;
pub(super) use sender::ReservedSender;

/// The sender's bells: its state, written by the receiver.
const STATE: u64 = 0;
/// The receiver's bells: a word of requests for each sender.
const REQUESTS: u64 = 64;

/// The immediate data of a request; those of messages are slots.
const REQUEST: u32 = u32::MAX;
/// The number of bits of a grant by message that name a slot, or none.
const GRANT_BITS: u32 = 13;
const _: () = assert!(Shape::SLOTS_MAX < 1 << GRANT_BITS);

/// The number of receives that the receiver keeps per sender: at most a message and the next request are in flight.
const RECEIVES: u32 = 2;

/// The number of receives that a sender keeps: for a grant, and for states between grants, each of which acknowledges
/// at least one of its messages. A grant acknowledges everything released before, so at most as many messages as
/// mailboxes are unacknowledged.
const fn sender_receives(shape: &Shape) -> u32 {
    match shape.signal {
        Signal::Word => 0,
        Signal::Message => shape.slots + 2,
    }
}

/// Bytes from a mailbox to the next one.
const fn step_bytes(shape: &Shape) -> u64 {
    shape.mailbox_bytes(match shape.signal {
        Signal::Word => WORD,
        Signal::Message => 0,
    })
}

/// The memory that the sender needs.
pub(super) const fn plan_sender(_: Kind, shape: &Shape) -> MemoryPlan {
    MemoryPlan::words(staging_bytes(WORD)).with_receives(sender_receives(shape))
}

/// The memory that the receiver needs.
pub(super) const fn plan_receiver(_: Kind, shape: &Shape) -> MemoryPlan {
    let (words, receives) = match shape.signal {
        Signal::Word => (WORD * shape.peers_max as u64, 0),
        Signal::Message => (0, RECEIVES * shape.peers_max as u32),
    };
    MemoryPlan::words(REQUESTS + words)
        .with_buffer(step_bytes(shape) * shape.slots as u64, Access::WRITE)
        .with_receives(receives)
}
