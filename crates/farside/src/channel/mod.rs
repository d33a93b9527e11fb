//! Data channels: the twenty ways of 001 Table 2 to bring messages from a sender to a receiver, behind
//! one pair of handles. The global memory does not use them: they are for programs.
//!
//! ```
//! use farside::channel::{Kind, Options, Receiver, Sender};
//! use farside_fabric::{Fabric, MemFabric};
//! use std::sync::Arc;
//! # fn main() -> Result<(), farside::Error> {
//! let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
//! let options = Options::new("ring-inlined".parse().unwrap(), 256);
//! let mut receiver = Receiver::listen(Arc::clone(&fabric), "example", &options)?;
//! let mut sender = Sender::connect(fabric, "example", &options)?;
//! while sender.peers().min(receiver.peers()) == 0 {} // both ends on one thread: drive both
//!
//! let _ = sender.send(b"hello")?; // Full is a value: try again when the receiver has released more
//! let message = receiver.poll()?.expect("it is here");
//! assert_eq!(message.to_vec(), b"hello");
//! receiver.release(message);
//! # Ok(())
//! # }
//! ```
//!
//! # Which one
//!
//! [`advise`] sorts them for a need and a fabric; `farside channels` prints the table ([`table`]) and
//! the advice. In short:
//!
//! | if | then |
//! | --- | --- |
//! | lowest latency and highest rate, order of bytes and messages | [`Kind::RingInlined`], [`Kind::RingDetached`] for batches |
//! | the receiver sleeps, any fabric with immediate data | [`Kind::RingImmediate`] |
//! | the sender chooses where a message goes | [`Kind::WriteSlotInlined`], [`Kind::WriteSlotImmediate`] |
//! | many senders, little memory | [`Kind::SendShared`], [`Kind::SharedRingInlinedZeroing`], [`Kind::SharedRingImmediate`] |
//! | many receivers of everything, a sender that does nothing for them | [`Kind::ReadRingDetached`], [`Kind::ReadRingInlined`] |
//! | the receiver chooses where a message goes | [`Kind::ReadSlotNotify`], [`Kind::ReadRingNotify`] |
//! | a fabric that has SEND and READ alone | [`Kind::Send`], [`Kind::ReadRingNotify`] |
//! | a fabric that has READ alone | [`Kind::ReadSlotInlined`], [`Kind::ReadRingInlined`] |
//!
//! # What holds for all
//!
//! *Delivery.* Every message that was taken is received once and whole, or the receiver hears that its
//! peer is lost. *Order.* That of sending, from one sender to one receiver; channels whose messages
//! come by completions ([`Kind::Send`] and its kin, all with immediate data) keep it where the fabric
//! has `message_order`, shared rings keep that of the ring, and chosen mailboxes none.
//! *Visibility.* A received message is visible whole to the receiving thread. *Durability.* None.
//! *Back-pressure* is a value, [`Sent::Full`]. *Processing* is acknowledged apart from delivery, when
//! half of the memory has been released or [`Receiver::acknowledge`] asks for it: by a word written at
//! the sender, by an integer where the fabric has no WRITE, by a READ of the sender's where the
//! receiver is passive ([`Acknowledge`]).
//!
//! *Trust.* What a peer writes is checked before it is used: lengths, places, bells, counts. A peer that
//! writes what no correct one would is cut off with `ProtocolViolation`; what it can spoil is its own
//! channel and, where peers share memory that they write (shared rings, reserved mailboxes, readers of
//! one sender that acknowledge by words), the progress of all. *Memory* of a message is never lent as a
//! slice, since a peer may write to it: it is read by copies.
//!
//! *Without copies.* [`Sender::send_slices`] sends from registered memory, [`Receiver::drain`] shows
//! messages where they have been written, [`Receiver::receive_into`] fetches one to where the program
//! wants it. Where peers READ the sender's memory, [`Sender::loan`] is that memory: a message is built
//! where it will be fetched from. Where this processor reaches it besides (shared memory), nothing is
//! fetched either: [`Receiver::offer`] tells of a message, [`Receiver::look_at`] shows it where it lies
//! at its sender, and [`Receiver::decline`] gives it back.
//!
//! *Waiting.* Calls of the core ([`Sender::send`], [`Receiver::poll`], [`Receiver::drain`]) never block,
//! or allocate, and call the kernel only where the fabric's port does ([`farside_fabric::Port::post`]).
//! [`Receiver::receive`], [`Sender::send_wait`] block; [`Receiver::next`],
//! [`Sender::sent`] are awaited on any executor. A channel with events sleeps ([`can_sleep`]); any
//! other is polled.
//!
//! # Together
//!
//! [`Connection`] and [`Service`] are two channels, one each way, any with any. One receiver has many
//! senders and one sender many receivers by [`Options::peers`]; kinds that share memory among peers do,
//! the others keep memory for each.
//!
//! # The layouts
//!
//! Each family has a picture of its memory in the documentation of its machines:
//! [`send_receive`], [`write_slot`], [`ring`], [`shared_ring`], [`read_slot`], [`read_ring`].
//!
//! [`send_receive`]: farside_protocol::channel::send_receive
//! [`write_slot`]: farside_protocol::channel::write_slot
//! [`ring`]: farside_protocol::channel::ring
//! [`shared_ring`]: farside_protocol::channel::shared_ring
//! [`read_slot`]: farside_protocol::channel::read_slot
//! [`read_ring`]: farside_protocol::channel::read_ring

mod advisor;
mod awaiting;
mod buffer;
mod connection;
mod drive;
mod hello;
mod memory;
mod options;
mod receiver;
mod sender;
mod staging;
pub mod table;

pub use advisor::{Advice, Fitting, Need, Unfit, UnknownNeed, Wish, advise};
pub use buffer::{Buffer, Slice};
pub use connection::{Both, Caller, Connection, Service};
pub use farside_protocol::channel::{
    Acknowledge, DeviceWords, Family, Kind, Shape, Signal, UnknownKind,
};
pub use options::Options;
pub use receiver::{Incoming, Message, Offer, Receiver, can_sleep};
pub use sender::{Loan, Sender, Sent, Ticket};
