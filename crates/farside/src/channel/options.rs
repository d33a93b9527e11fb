//! Options of a channel.

use farside_base::Capabilities;
use farside_protocol::channel::{Acknowledge, DeviceWords, Kind, Shape, Signal};

/// Options of a channel; equal at both ends. Start from [`Options::new`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The kind of channel.
    pub kind: Kind,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
    /// Mailboxes, receives or messages in flight; `None`: 64.
    pub slots: Option<u32>,
    /// Bytes of a ring, a power of two; `None`: 64 times the largest message.
    pub ring_bytes: Option<u64>,
    /// Most peers of the listening end.
    pub peers: u16,
    /// Whether rings are mapped twice, contiguously; `None`: if the fabric supports it.
    pub mirrored: Option<bool>,
    /// Bytes that a reader of a read ring fetches in addition to a bell; zero: none. Capped by the largest transfer
    /// of the fabric.
    pub prefetch_bytes: u32,
    /// How the receiver acknowledges; `None`: chosen by the fabric's capabilities.
    pub acknowledge: Option<Acknowledge>,
    /// How a message is announced, for kinds with a second channel; `None`: chosen by the fabric's capabilities.
    pub signal: Option<Signal>,
    /// This receiver fetches messages only into memory of its choice ([`Receiver::offer`]), and so needs no channel
    /// memory for each sender. May differ between the ends; ignored for channels that write to the receiver.
    ///
    /// [`Receiver::offer`]: super::Receiver::offer
    pub offers_only: bool,
    /// The words placed in device memory of the adapter, at the end that owns them (001 §6.3). These are head and
    /// tail of a shared ring, at its receiver; bells of `read-slot-detached` and head of `read-ring-detached`, at
    /// the sender. Other channels have no such words.
    pub device: DeviceWords,
}

impl Options {
    /// Returns options for messages of at most this many bytes between two peers.
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

    /// Sets the number of peers of the listening end.
    pub const fn peers(self, peers: u16) -> Self {
        Self { peers, ..self }
    }

    /// Returns the shape of the channel on a fabric with these capabilities.
    pub fn shape(&self, has: &Capabilities) -> Shape {
        let fit = Shape::fit(self.kind, self.message_bytes_max, has);
        let slots = self.slots.unwrap_or(fit.slots).max(match self.kind {
            Kind::SendShared => u32::from(self.peers),
            _ => 0,
        });
        // The most that one READ can fetch in addition to a bell.
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
