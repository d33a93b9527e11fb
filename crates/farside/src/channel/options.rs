//! How a channel shall be.

use farside_base::Capabilities;
use farside_protocol::channel::{Acknowledge, DeviceWords, Kind, Shape, Signal};

/// How a channel shall be; equal at both ends. Start from [`Options::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Which of the twenty.
    pub kind: Kind,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
    /// Mailboxes, receives or messages on their way; `None`: 64.
    pub slots: Option<u32>,
    /// Bytes of a ring, a power of two; `None`: room for 64 of the largest messages.
    pub ring_bytes: Option<u64>,
    /// Most peers of the end that listens.
    pub peers: u16,
    /// Whether rings are mapped twice in a row; `None`: where the fabric can.
    pub mirrored: Option<bool>,
    /// What a reader of a read ring fetches beyond a bell, at most what the fabric moves at once;
    /// zero: nothing.
    pub prefetch_bytes: u32,
    /// How the receiver acknowledges; `None`: as the fabric allows.
    pub acknowledge: Option<Acknowledge>,
    /// What announces a message, where that is a channel of its own; `None`: as the fabric allows.
    pub signal: Option<Signal>,
    /// This receiver fetches messages to places of its own choice alone ([`Receiver::offer`]), and so
    /// needs no memory of the channel's for each sender. Need not be equal at both ends; without
    /// meaning where messages are written to the receiver.
    ///
    /// [`Receiver::offer`]: super::Receiver::offer
    pub offers_only: bool,
    /// Which words are in memory at the adapter of the end that has them (001 §6.3): the head and the
    /// tail of a shared ring, at its receiver; the bells of `read-slot-detached` and the head of
    /// `read-ring-detached`, at the sender. Other channels have no such words.
    pub device: DeviceWords,
}

impl Options {
    /// A channel for messages of at most so many bytes between two peers.
    pub const fn new(kind: Kind, message_bytes_max: u32) -> Self {
        Self {
            kind,
            message_bytes_max,
            slots: None,
            ring_bytes: None,
            peers: 1,
            mirrored: None,
            prefetch_bytes: 0,
            acknowledge: None,
            signal: None,
            offers_only: false,
            device: DeviceWords::Nothing,
        }
    }

    /// The same with so many peers at the end that listens.
    pub const fn peers(self, peers: u16) -> Self {
        Self { peers, ..self }
    }

    /// The measures on a fabric that can do this.
    pub fn shape(&self, has: &Capabilities) -> Shape {
        let fit = Shape::fit(self.kind, self.message_bytes_max, has);
        let slots = self.slots.unwrap_or(fit.slots).max(match self.kind {
            Kind::SendShared => u32::from(self.peers),
            _ => 0,
        });
        // What one READ can bring beside a bell.
        let prefetch_max = has.transfer_bytes_max.saturating_sub(64);
        let prefetch_max = u32::try_from(prefetch_max).unwrap_or(u32::MAX);
        Shape {
            slots,
            ring_bytes: self.ring_bytes.unwrap_or(fit.ring_bytes),
            peers_max: self.peers.max(1),
            mirrored: self.mirrored.unwrap_or(fit.mirrored),
            prefetch_bytes: self.prefetch_bytes.min(prefetch_max),
            acknowledge: self.acknowledge.unwrap_or(fit.acknowledge),
            signal: self.signal.unwrap_or(fit.signal),
            device: self.device,
            ..fit
        }
    }
}
