//! Messages between two ends of a link: the messenger of the global memory (order, credits and validation of the
//! 56-byte messages of [`crate::wire`]), its WRITEs in flight, and the twenty data channels of paper 001.
//!
//! What is absent: links, receives and work requests. The runtime posts what [`Messenger::peek`]
//! gives and hands what arrives to [`Messenger::received`].

mod acknowledge;
mod canary;
mod checksum;
mod delegate;
mod effects;
mod half;
#[cfg(test)]
mod hand_tests;
mod kind;
mod machine;
mod messenger;
#[cfg(test)]
mod plain;
pub mod read_ring;
pub mod read_slot;
mod readers;
#[cfg(test)]
mod reading_tests;
mod releases;
pub mod ring;
pub mod send_receive;
mod shape;
pub mod shared_ring;
mod stand;
mod underway;
mod window;
pub mod write_slot;

#[cfg(canary)]
pub use canary::Mutant;
pub use effects::{Effects, Name, Posting, Record, Request};
pub use half::{
    Arrival, Completed, Content, Half, Held, Offer, Own, OwnRegions, Payload, Peer, PeerRegions,
    ReceiveHalf, Received, Refusal, SendHalf, Sending,
};
pub use kind::{Family, Kind, UnknownKind};
pub use machine::{AnyHalf, Receiver, Sender};
pub use messenger::Messenger;
pub use shape::{Acknowledge, BadShape, DeviceWords, Plan, Shape, Signal};
pub use underway::{Key, Underway};
