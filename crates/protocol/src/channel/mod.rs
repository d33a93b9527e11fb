//! The twenty data channels of paper 001. A channel has a sender half and a receiver half. A *bell* is a word that
//! announces a message.

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
mod window;
pub mod write_slot;

#[cfg(canary)]
pub use canary::ChannelMutant;
pub use effects::{Effects, InlineWrite, Name, PostRequest, Posting};
pub use half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Offer, Own, OwnRegions, Payload,
    Peer, PeerRegions, ReceiveHalf, Received, SendHalf, Sending,
};
pub use kind::{Family, Kind, UnknownKind};
pub use machine::{AnyHalf, Receiver, Sender};
pub use shape::{Acknowledge, BadShape, DeviceWords, MemoryPlan, Shape, Signal};
