//! WRITE into mailboxes of a pool that senders share (001 §4.2, "reserve slot"). A sender asks for a
//! mailbox, is granted one, and writes; releasing the message frees the mailbox, without a message
//! for that.
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
//! The way back is part of grants and states; [`Shape::acknowledge`](super::Shape) is without
//! meaning here. A state that nothing but releases has changed is told when the receiver is asked to
//! acknowledge.
//!
//! *Order and fairness.* A sender has one request at a time, and takes one message ahead: the one
//! that it asks for. Requests are granted in the order in which the receiver sees them, but none to
//! a sender whose last mailbox is granted and not filled. So a sender that asks and never writes
//! keeps one mailbox and no more, and each sender's messages come in order on any fabric.
//!
//! *Loss.* What a lost sender was granted and did not fill is free again, what it filled can still be
//! received.
//!
//! *Assumed*: `Signal::Message`, nothing. `Signal::Word`, that the bytes of a WRITE land in order,
//! and that a state does not land upon the next one, which is written when its WRITE has completed.
//!
//! *Trust.* Whoever may write into the pool may write into all of it: senders that share one can
//! spoil each other's messages, though not make the receiver leave its memory. What a sender does
//! wrong in words mutes that sender, until it is lost.

mod receiver;
mod sender;

use super::super::shape::{Plan, Shape, Signal};
use super::{SENDER_BELLS, WORD};
use farside_base::Access;

pub use receiver::ReservedReceiver;
pub use sender::ReservedSender;

/// The sender's bells: its state, as the receiver sees it.
const STATE: u64 = 0;
/// The receiver's bells: a word of requests for each sender.
const REQUESTS: u64 = 64;

/// The immediate data of a request; those of messages are slots.
const REQUEST: u32 = u32::MAX;
/// Bits of a grant by message that name a slot, or none.
const GRANT_BITS: u32 = 13;
const _: () = assert!(Shape::SLOTS_MAX < 1 << GRANT_BITS);

/// Receives that the receiver keeps for each sender: a message and the request behind it are all
/// that it can have under way.
const RECEIVES: u32 = 2;

/// Receives that a sender keeps: a grant, and states between grants, each of which tells of one of
/// its messages at least. With a grant it hears of all that was released before, so that no more of
/// its messages than mailboxes are unheard of.
const fn sender_receives(shape: &Shape) -> u32 {
    match shape.signal {
        Signal::Word => 0,
        Signal::Message => shape.slots + 2,
    }
}

/// Bytes from a mailbox to the next one.
const fn step(shape: &Shape) -> u64 {
    let message = (shape.message_bytes_max as u64).next_multiple_of(8);
    let bell = match shape.signal {
        Signal::Word => WORD,
        Signal::Message => 0,
    };
    (message + bell).next_multiple_of(64)
}

/// What the sender needs.
pub(super) const fn plan_sender(shape: &Shape) -> Plan {
    Plan::words(SENDER_BELLS).with_receives(sender_receives(shape))
}

/// What the receiver needs.
pub(super) const fn plan_receiver(shape: &Shape) -> Plan {
    let (words, receives) = match shape.signal {
        Signal::Word => (WORD * shape.peers_max as u64, 0),
        Signal::Message => (0, RECEIVES * shape.peers_max as u32),
    };
    Plan::words(REQUESTS + words)
        .with_buffer(step(shape) * shape.slots as u64, Access::WRITE)
        .with_receives(receives)
}
