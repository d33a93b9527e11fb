//! The twenty data channels of paper 001. A channel has a sender half and a receiver half. A *bell* is a word that
//! announces a message.
//!
//! Each is a memory layout, a notification and a direction. A direction is shared by all channels that have it:
//! `outbound` and `inbound` are the senders and receivers of messages that the sender moves by SEND or WRITE;
//! `store`, `readers` and the reader's position in `inbound` those of messages that readers READ.

mod acknowledge;
mod canary;
mod checksum;
mod effects;
mod half;
mod inbound;
mod indirect;
mod kind;
mod machine;
mod outbound;
mod read_ring;
mod read_slot;
mod readers;
mod releases;
mod requirements;
mod reserved;
mod ring;
mod ring_layout;
mod send_receive;
mod shape;
mod shared_ring;
mod store;
#[cfg(test)]
mod tests;
mod window;
mod write_slot;

#[cfg(canary)]
pub use canary::ChannelMutant;
pub use effects::{Effects, InlineWrite, Name, Peer, PostRequest, Posting};
pub use half::{
    Arrival, Completed, Content, HalfRefusal, HeldMessage, Offer, Own, OwnRegions, Payload,
    PeerRegions, Received, Sending,
};
pub use kind::{Family, Kind, UnknownKind};
pub use machine::{Half, Receiver, Sender};
pub use shape::{Acknowledge, BadShape, DeviceWords, MemoryPlan, Shape, Signal};
