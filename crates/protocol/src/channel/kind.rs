//! The twenty channels of 001 Table 2 by name, and the fabric capabilities that each needs.

use super::shape::{Acknowledge, Shape, Signal};
use super::shared_ring;
use core::fmt;
use core::str::FromStr;
use farside_base::{AtomicScope, Requirements, WordScope};

/// The memory layout of a channel, and the requests that carry its messages (001 §4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Family {
    /// SEND into receives posted by the receiver (001 §4.1).
    SendReceive,
    /// WRITE into mailboxes of a fixed size (001 §4.2).
    WriteSlot,
    /// WRITE into a ring of one sender (001 §4.3).
    Ring,
    /// WRITE into a ring that senders share (001 §4.4).
    SharedRing,
    /// READ from mailboxes at the sender (001 §4.5).
    ReadSlot,
    /// READ from a ring at the sender (001 §4.6).
    ReadRing,
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendReceive => "send/receive",
            Self::WriteSlot => "write slot",
            Self::Ring => "ring",
            Self::SharedRing => "shared ring",
            Self::ReadSlot => "read slot",
            Self::ReadRing => "read ring",
        })
    }
}

macro_rules! kinds {
    ($($number:literal $kind:ident $family:ident $name:literal $sentence:literal;)*) => {
        /// One of the twenty uni-directional channels (001 Table 2).
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = $sentence] $kind = $number,)*
        }

        impl Kind {
            /// All of them, in the order of 001 Table 2.
            pub const ALL: [Self; 20] = [$(Self::$kind,)*];

            /// Its family.
            pub const fn family(self) -> Family {
                match self {
                    $(Self::$kind => Family::$family,)*
                }
            }

            /// Its name, as in `farside channels`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Its description in one sentence.
            pub const fn sentence(self) -> &'static str {
                match self {
                    $(Self::$kind => $sentence,)*
                }
            }

            /// From its number on the wire.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$kind),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    1 Send SendReceive "send" "SEND into receives of one sender.";
    2 SendShared SendReceive "send-shared" "SEND into receives that all senders share.";
    3 SendBufferless SendReceive "send-bufferless" "A 32-bit integer as immediate data, without any memory.";
    4 WriteSlotDetached WriteSlot "write-slot-detached" "WRITE into a mailbox, then into its bell.";
    5 WriteSlotInlined WriteSlot "write-slot-inlined" "WRITE into a mailbox whose last word is its bell.";
    6 WriteSlotImmediate WriteSlot "write-slot-immediate" "WRITE with immediate into a mailbox.";
    7 WriteSlotReserved WriteSlot "write-slot-reserved" "WRITE into a mailbox that was reserved first, out of a pool of all senders.";
    8 RingDetached Ring "ring-detached" "WRITE into a ring, then its head into a bell.";
    9 RingImmediate Ring "ring-immediate" "WRITE with immediate into a ring.";
    10 RingInlinedZeroing Ring "ring-inlined-zeroing" "WRITE into a ring with a bell at both ends of the message; the receiver zeroes what it has processed.";
    11 RingInlined Ring "ring-inlined" "WRITE downwards into a ring, each message with its bell and the zero of the next one.";
    12 SharedRingImmediate SharedRing "shared-ring-immediate" "FETCH_ADD for a place in the ring of all senders, then WRITE with immediate.";
    13 SharedRingInlinedZeroing SharedRing "shared-ring-inlined-zeroing" "FETCH_ADD for a place in the ring of all senders, then WRITE with a bell at both ends.";
    14 ReadSlotDetached ReadSlot "read-slot-detached" "READ of a bell, then of the message that it names.";
    15 ReadSlotInlined ReadSlot "read-slot-inlined" "READ of a mailbox together with its bell.";
    16 ReadSlotNotify ReadSlot "read-slot-notify" "A notice to the receiver, which then READs the message.";
    17 ReadSlotIndirect ReadSlot "read-slot-indirect" "The receiver names a buffer of its own and the sender WRITEs into it.";
    18 ReadRingDetached ReadRing "read-ring-detached" "READ of a ring's head, then of all messages up to it.";
    19 ReadRingInlined ReadRing "read-ring-inlined" "READ of a message's bell, then of the message, or of both at once by prefetching.";
    20 ReadRingNotify ReadRing "read-ring-notify" "A notice with the ring's head to each receiver, which then READs.";
}

/// Returns `bytes`, or the size of a word if that is larger.
const fn word(bytes: u32) -> u32 {
    if bytes < 8 { 8 } else { bytes }
}

impl Kind {
    /// Whether one receiver half serves many senders out of one memory (N:1).
    pub const fn shares_receiver(self) -> bool {
        matches!(
            self,
            Self::SendShared
                | Self::WriteSlotReserved
                | Self::SharedRingImmediate
                | Self::SharedRingInlinedZeroing
        )
    }

    /// Whether one sender half serves many receivers out of one memory (1:N).
    pub const fn shares_sender(self) -> bool {
        matches!(self.family(), Family::ReadRing)
            || matches!(self, Self::ReadSlotDetached | Self::ReadSlotInlined | Self::ReadSlotNotify)
    }

    /// Whether the receiver fetches messages, and so can choose the destination of each.
    pub const fn receiver_names_destination(self) -> bool {
        matches!(self.family(), Family::ReadSlot | Family::ReadRing)
    }

    /// Whether its sender stages bytes of any length, or sends an integer: others accept bytes that fit in a request,
    /// and slices of any length.
    pub const fn stages(self) -> bool {
        self.shares_sender()
            || matches!(self.family(), Family::SharedRing)
            || matches!(self, Self::SendBufferless)
    }

    /// The fabric capabilities that its messages alone need.
    const fn needs_for_messages(self, shape: &Shape) -> Requirements {
        let mut needs = Requirements::NOTHING;
        match self {
            Self::Send | Self::SendShared => {
                needs.send = true;
                needs.send_bytes = shape.message_bytes_max;
                needs.shared_receive_queue = matches!(self, Self::SendShared);
            }
            Self::SendBufferless => {
                needs.send = true;
                needs.immediate = true;
            }
            Self::WriteSlotDetached => {
                needs.write = true;
                needs.message_order = true;
            }
            Self::RingDetached => {
                needs.write = true;
                needs.message_order = true;
            }
            Self::WriteSlotInlined | Self::RingInlinedZeroing => {
                needs.write = true;
                needs.byte_order = true;
            }
            Self::RingInlined => {
                needs.write = true;
                needs.byte_order = true;
                needs.message_order = true;
            }
            Self::WriteSlotImmediate | Self::RingImmediate => {
                needs.write = true;
                needs.immediate = true;
            }
            Self::WriteSlotReserved => {
                needs.write = true;
            }
            Self::SharedRingImmediate => {
                needs.write = true;
                needs.shared_receive_queue = true;
                needs.immediate = true;
                needs.read = true;
                needs.atomics = AtomicScope::Adapter;
            }
            Self::SharedRingInlinedZeroing => {
                needs.write = true;
                needs.byte_order = true;
                needs.read = true;
                needs.atomics = AtomicScope::Adapter;
            }
            Self::ReadSlotDetached
            | Self::ReadSlotInlined
            | Self::ReadRingDetached
            | Self::ReadRingInlined => {
                needs.read = true;
            }
            Self::ReadSlotNotify | Self::ReadRingNotify => {
                needs.read = true;
            }
            Self::ReadSlotIndirect => {
                needs.write = true;
            }
        }
        needs
    }

    /// The fabric capabilities that it needs, including the second channels in `shape`.
    pub const fn requirements(self, shape: &Shape) -> Requirements {
        let mut needs = self.needs_for_messages(shape);
        needs.inline_bytes = self.inline_bytes(shape);
        if matches!(self, Self::ReadRingDetached | Self::ReadRingNotify) {
            needs.slices = 2; // an offer's header and message have two destinations
        }
        if !matches!(self.family(), Family::SendReceive) {
            // The largest message with the words around it.
            needs.transfer_bytes = shape.message_bytes_max as u64 + 24;
        }
        if self.has_second_channel() {
            match shape.signal {
                Signal::Word => {
                    needs.write = true;
                    // The word must land after the message that it announces.
                    needs.message_order |= matches!(self, Self::ReadSlotIndirect);
                    // The bell is in the mailbox, and a newer grant overwrites an older one.
                    needs.byte_order |= matches!(self, Self::WriteSlotReserved);
                    needs.ordered_or_placed |= matches!(self, Self::WriteSlotReserved);
                }
                Signal::Message => {
                    needs.send = true;
                    needs.immediate = true;
                    // All senders' requests and messages arrive in one queue.
                    needs.shared_receive_queue |= matches!(self, Self::WriteSlotReserved);
                }
            }
        }
        if self.has_device_words(shape) {
            needs.device_bytes = self.device_bytes(shape);
            // Both halves of a bell's word differ from those of the previous bell.
            needs.device_words = !matches!(self.family(), Family::SharedRing);
        }
        match shape.acknowledge {
            // Its grants carry the acknowledgements.
            _ if matches!(self, Self::WriteSlotReserved) => {}
            Acknowledge::Word => {
                needs.write = true;
                needs.ordered_or_placed = true;
                needs.inline_bytes = word(needs.inline_bytes);
            }
            Acknowledge::Message => {
                needs.send = true;
                needs.immediate = true;
            }
            Acknowledge::ReadTail => needs.read = true,
        }
        // Bells, heads, tails and offers are words that one half polls while the other changes them.
        if needs.write || needs.read {
            needs.words = WordScope::Aligned;
        }
        needs
    }

    /// Whether some of its words are in adapter memory.
    pub const fn has_device_words(self, shape: &Shape) -> bool {
        self.device_bytes(shape) > 0
    }

    /// Bytes of its words in adapter memory: of the one half that has them there.
    const fn device_bytes(self, shape: &Shape) -> u64 {
        let bells = match self {
            Self::SharedRingImmediate | Self::SharedRingInlinedZeroing => {
                return shared_ring::device_bytes(shape);
            }
            Self::ReadSlotDetached => shape.slots as u64 * 8,
            Self::ReadRingDetached => 8,
            _ => 0,
        };
        if shape.device.has_head() { bells } else { 0 }
    }

    /// The maximum size in bytes of the words, besides messages, that its sender writes in one request.
    const fn inline_bytes(self, shape: &Shape) -> u32 {
        match self {
            // Bells of neighbouring mailboxes are written together.
            Self::WriteSlotDetached => 64,
            Self::RingDetached
            | Self::RingInlined
            | Self::SharedRingImmediate
            | Self::SharedRingInlinedZeroing => 8,
            Self::WriteSlotReserved
            | Self::ReadSlotNotify
            | Self::ReadSlotIndirect
            | Self::ReadRingNotify
                if matches!(shape.signal, Signal::Word) =>
            {
                16
            }
            Self::ReadSlotIndirect => 8,
            _ => 0,
        }
    }

    /// Whether its announcement of a message is a channel of its own (001 Table 2, note a).
    pub const fn has_second_channel(self) -> bool {
        matches!(
            self,
            Self::WriteSlotDetached
                | Self::WriteSlotReserved
                | Self::ReadSlotNotify
                | Self::ReadSlotIndirect
                | Self::ReadRingNotify
        )
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// No channel has this name; `farside channels` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UnknownKind;

impl fmt::Display for UnknownKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no channel has this name; `farside channels` lists them")
    }
}

impl core::error::Error for UnknownKind {}

impl FromStr for Kind {
    type Err = UnknownKind;

    fn from_str(name: &str) -> Result<Self, UnknownKind> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or(UnknownKind)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DeviceWords, Receiver, Sender};
    use super::*;
    extern crate std;
    use farside_base::RegionKind;
    use std::string::ToString as _;

    const SHAPE: Shape = Shape {
        message_bytes_max: 64,
        slots: 64,
        ring_bytes: 4096,
        peers_max: 64,
        mirrored: false,
        prefetch_bytes: 0,
        acknowledge: Acknowledge::ReadTail,
        signal: Signal::Word,
        device: DeviceWords::Nothing,
        piece_bytes: 1 << 16,
    };

    #[test]
    fn names_and_numbers_lead_back() {
        for kind in Kind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.to_string(), kind.name());
            assert_eq!(Kind::from_number(kind as u8), Some(kind));
        }
        assert_eq!("ring".parse::<Kind>(), Err(UnknownKind));
        assert_eq!(Kind::from_number(0), None);
        assert_eq!(Kind::from_number(21), None);
    }

    /// The required adapter memory equals what the halves of a channel register there.
    #[test]
    fn device_bytes_are_those_that_the_halves_register() {
        let mut most = 0;
        for kind in Kind::ALL {
            for (device, (slots, peers_max)) in DeviceWords::ALL
                .into_iter()
                .flat_map(|device| [(1, 1), (64, 64), (4096, 1024)].map(|counts| (device, counts)))
            {
                let shape = Shape { device, slots, peers_max, ..SHAPE };
                let plans = [Sender::plan(kind, &shape), Receiver::plan(kind, &shape)];
                let at_adapter =
                    plans.iter().filter(|plan| plan.counters_kind == RegionKind::Device);
                let bytes = at_adapter.map(|plan| plan.counters_bytes).sum();
                assert_eq!(kind.requirements(&shape).device_bytes, bytes, "{kind} {shape:?}");
                assert_eq!(kind.has_device_words(&shape), bytes > 0, "{kind} {shape:?}");
                most = most.max(bytes);
            }
        }
        assert_eq!(most, 4096 * 8);
    }

    /// Requirements are computed before the shape is checked.
    #[test]
    fn requirements_of_impossible_shapes_do_not_panic() {
        for kind in Kind::ALL {
            for device in DeviceWords::ALL {
                let fit = Shape { device, ..SHAPE };
                let least =
                    Shape { slots: 0, peers_max: 0, ring_bytes: 0, message_bytes_max: 0, ..fit };
                let most = Shape {
                    slots: u32::MAX,
                    peers_max: u16::MAX,
                    ring_bytes: u64::MAX,
                    message_bytes_max: u32::MAX,
                    ..fit
                };
                let bytes = [least, most].map(|shape| kind.requirements(&shape).device_bytes);
                assert!(bytes[0] <= bytes[1], "{kind} {bytes:?}");
            }
        }
    }
}
