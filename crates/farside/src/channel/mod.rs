//! Data channels: the twenty ways of 001 Table 2 to send messages from a sender to a receiver, with one interface.
//! For programs; the global memory does not use them.
//!
//! ```
//! use farside::channel::{Kind, Options, Receiver, Sender};
//! use farside::fabrics;
//! # let (name, timeout) = (format!("example-{}", std::process::id()), std::time::Duration::from_secs(10));
//! let options = Options::new(Kind::RingInlined, 256); // messages of at most 256 bytes
//! let mut receiver = Receiver::listen(fabrics::shared_memory()?, &name, &options)?;
//! let mut sender = Sender::connect(fabrics::shared_memory()?, &name, &options)?;
//! receiver.wait_for_peers(1, timeout)?; // accepts the sender
//!
//! sender.send_wait(b"hello", timeout)?; // waits for the acceptance, and for space
//! let message = receiver.receive(timeout)?;
//! assert_eq!(message.to_vec(), b"hello");
//! receiver.release(message);
//! receiver.acknowledge(); // now, instead of when half of the memory has been released
//! sender.close(timeout)?; // once every message has been received and released
//! # Ok::<(), farside::Error>(())
//! ```
//!
//! [`TypedSender`] and [`TypedReceiver`] carry values of a type. [`advise`] ranks the channels for given requirements
//! and a fabric; `farside channels` prints the table ([`table`]) and the advice. Memory layouts: see the half-machines
//! in [`farside_protocol::channel`]. In short:
//!
//! | requirement | channel |
//! | --- | --- |
//! | lowest latency, highest rate; ordered bytes and messages | [`Kind::RingInlined`], [`Kind::RingDetached`] for batches |
//! | receiver sleeps, any fabric with immediate data | [`Kind::RingImmediate`] |
//! | sender chooses the destination of a message | [`Kind::WriteSlotInlined`], [`Kind::WriteSlotImmediate`] |
//! | many senders, little memory | [`Kind::SendShared`], [`Kind::SharedRingInlinedZeroing`], [`Kind::SharedRingImmediate`] |
//! | broadcast to many receivers with a passive sender | [`Kind::ReadRingDetached`], [`Kind::ReadRingInlined`] |
//! | receiver chooses the destination of a message | [`Kind::ReadSlotNotify`], [`Kind::ReadRingNotify`] |
//! | fabric with SEND and READ only | [`Kind::Send`], [`Kind::ReadRingNotify`] |
//! | fabric with READ only | [`Kind::ReadSlotInlined`], [`Kind::ReadRingInlined`] |
//!
//! *Delivery.* Every accepted message is received once and whole, or the receiver learns that its peer is lost.
//! *Order.* The order of sending, from one sender to one receiver; channels with SEND or immediate data need
//! `message_order` for it, shared rings keep the order of the ring, and chosen mailboxes have none. *Visibility.* A
//! received message is visible whole to the receiving thread. *Durability.* None. *Back-pressure* is a value,
//! [`Sent::Full`]. *Processing* is acknowledged separately, when half of the memory has been released or on
//! [`Receiver::acknowledge`]: by a word written to the sender, an integer if the fabric has no WRITE, or a READ of
//! the sender if the receiver is passive ([`Acknowledge`]). *Trust.* Everything that a peer writes is checked
//! before use. A peer that violates the protocol is disconnected with `ProtocolViolation`; it can damage its own
//! channel only and, if peers write shared memory (shared rings, reserved mailboxes, readers of one sender that
//! acknowledge by words), the progress of all. Messages are read by copying, never lent as slices, since a peer may
//! write to them. *Waiting.* [`Sender::send`], [`Receiver::poll`] and [`Receiver::drain`] never block or allocate,
//! and call the kernel only where the fabric's port does ([`farside_fabric::Port::post`]). Every operation has a form
//! that waits and one for any executor (`_async`). Both sleep: until an event where the channel has one
//! ([`can_sleep`]), else for intervals of at most 500 us.

mod advisor;
mod connection;
mod drive;
mod ends;
mod hello;
mod links;
mod memory;
mod options;
mod receiver;
mod sender;
mod staging;
pub mod table;
mod typed;

pub use crate::buffer::{Buffer, Slice};
pub use crate::fabrics::Fabric;
pub use advisor::{Advice, Candidate, Need, Rejection, Requirements, UnknownNeed, advise};
pub use connection::{ClientId, Connection, DuplexOptions, Service};
pub use farside_base::{
    AtomicScope, BackPressure, Capabilities, FlushScope, Missing,
    Requirements as FabricRequirements, WordScope,
};
pub use farside_protocol::channel::{
    Acknowledge, BadShape, DeviceWords, Family, Kind, Shape, Signal, UnknownKind,
};
pub use options::Options;
pub use receiver::{Incoming, Message, Offer, Receiver, can_sleep};
pub use sender::{Loan, Sender, Sent, Ticket};
pub use typed::{TypedReceiver, TypedSender};
