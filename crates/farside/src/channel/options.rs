//! Options of a channel.

use crate::{Error, ErrorCode};
use farside_base::Capabilities;
use farside_protocol::channel::{Acknowledge, DeviceWords, Kind, Shape, Signal};

/// Options of a channel; equal at both ends.
///
/// Start from [`Options::new`] or [`Options::typed`], and set the others by the methods with their names.
///
/// ```
/// use farside::channel::{Acknowledge, Kind, Options, Receiver, Sender};
/// use std::time::Duration;
/// # fn main() -> Result<(), farside::Error> {
/// # let fabric = farside::fabrics::shared_memory()?;
/// # let name = format!("options-{}", std::process::id());
/// # let second = Duration::from_secs(20);
/// let options = Options::new(Kind::RingInlined, 500).ring_bytes(4096).acknowledge(Acknowledge::ReadTail);
/// let mut receiver = Receiver::listen(fabric.clone(), &name, &options)?;
/// let mut sender = Sender::connect(fabric, &name, &options)?;
/// receiver.wait_for_peers(1, second)?;
/// sender.send_wait(&[7; 500], second)?;
/// let message = receiver.receive(second)?;
/// assert_eq!(message.to_vec(), [7; 500]);
/// receiver.release(message);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The kind of channel.
    pub kind: Kind,
    /// Most bytes of a message.
    pub message_bytes_max: u32,
    /// Bytes of a value of a typed channel ([`TypedSender`], which sets it); zero: messages are bytes.
    ///
    /// [`TypedSender`]: super::TypedSender
    pub value_bytes: u32,
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
            value_bytes: 0,
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

    /// Returns options for messages of at most `values_max` values of `T`, between two peers.
    pub const fn typed<T>(kind: Kind, values_max: u32) -> Self {
        let bytes = (size_of::<T>() as u64).saturating_mul(values_max as u64);
        // A message that is too long for any channel is refused when the end is opened.
        Self::new(kind, if bytes > u32::MAX as u64 { u32::MAX } else { bytes as u32 })
    }

    /// Sets the kind of channel.
    #[must_use]
    pub const fn kind(self, kind: Kind) -> Self {
        Self { kind, ..self }
    }

    /// Sets the most bytes of a message.
    #[must_use]
    pub const fn message_bytes_max(self, message_bytes_max: u32) -> Self {
        Self { message_bytes_max, ..self }
    }

    /// Sets the number of mailboxes, receives or messages in flight.
    #[must_use]
    pub fn slots(self, slots: impl Into<Option<u32>>) -> Self {
        Self { slots: slots.into(), ..self }
    }

    /// Sets the bytes of a ring, a power of two.
    #[must_use]
    pub fn ring_bytes(self, ring_bytes: impl Into<Option<u64>>) -> Self {
        Self { ring_bytes: ring_bytes.into(), ..self }
    }

    /// Sets the number of peers of the listening end.
    #[must_use]
    pub const fn peers(self, peers: u16) -> Self {
        Self { peers, ..self }
    }

    /// Sets whether rings are mapped twice, contiguously.
    #[must_use]
    pub fn mirrored(self, mirrored: impl Into<Option<bool>>) -> Self {
        Self { mirrored: mirrored.into(), ..self }
    }

    /// Sets the bytes that a reader of a read ring fetches in addition to a bell.
    #[must_use]
    pub const fn prefetch_bytes(self, prefetch_bytes: u32) -> Self {
        Self { prefetch_bytes, ..self }
    }

    /// Sets how the receiver acknowledges.
    #[must_use]
    pub fn acknowledge(self, acknowledge: impl Into<Option<Acknowledge>>) -> Self {
        Self { acknowledge: acknowledge.into(), ..self }
    }

    /// Sets how a message is announced.
    #[must_use]
    pub fn signal(self, signal: impl Into<Option<Signal>>) -> Self {
        Self { signal: signal.into(), ..self }
    }

    /// Sets whether this receiver fetches messages only into memory of its choice.
    #[must_use]
    pub const fn offers_only(self, offers_only: bool) -> Self {
        Self { offers_only, ..self }
    }

    /// Sets the words placed in device memory of the adapter.
    #[must_use]
    pub const fn device(self, device: DeviceWords) -> Self {
        Self { device, ..self }
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

    /// Checks that a fabric with these capabilities and this name has what the channel needs.
    pub(super) fn check(
        &self,
        shape: &Shape,
        has: &Capabilities,
        fabric: &str,
    ) -> Result<(), Error> {
        let kind = self.kind;
        let needs = kind.requirements(shape);
        needs.check(has).map_err(|missing| {
            let name = missing.0;
            let text = match needs.amounts(missing, has) {
                None => format!("{kind} needs `{name}`, which {fabric} lacks"),
                Some((needed, had)) if name == "device_bytes_max" => format!(
                    "{kind} with {} slots and {} peers needs `{name}` of {needed}, and {fabric} has {had}: lower \
                     slots or peers, or place fewer words at the adapter (device)",
                    shape.slots, shape.peers_max
                ),
                Some((needed, had)) => format!(
                    "{kind} with messages of {} bytes needs `{name}` of {needed}, and {fabric} has {had}: \
                     lower message_bytes_max, or choose a channel that needs less (farside channels)",
                    shape.message_bytes_max
                ),
            };
            Error::with(ErrorCode::FabricLacks, text)
        })?;
        shape.check(kind).map_err(|bad| {
            let text = format!("{}; the options are {shape:?}", bad.0);
            Error::with(ErrorCode::BadConfiguration, text)
        })
    }
}
