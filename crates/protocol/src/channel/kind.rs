//! The twenty channels of 001 Table 2 by name.

use core::fmt;
use core::str::FromStr;
use farside_base::Requirements;

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
    ($($number:literal $kind:ident $family:ident [$($need:ident)+] $name:literal $sentence:literal;)*) => {
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

            /// The fabric capabilities that its messages need in any shape.
            pub(super) const fn needs_for_messages(self) -> Requirements {
                let mut needs = Requirements::NOTHING;
                match self {
                    $(Self::$kind => { $(needs.$need = true;)+ })*
                }
                needs
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
    1 Send SendReceive [send] "send" "SEND into receives of one sender.";
    2 SendShared SendReceive [send shared_receive_queue] "send-shared" "SEND into receives that all senders share.";
    3 SendBufferless SendReceive [send immediate] "send-bufferless" "A 32-bit integer as immediate data, without any memory.";
    4 WriteSlotDetached WriteSlot [write message_order] "write-slot-detached" "WRITE into a mailbox, then into its bell.";
    5 WriteSlotInlined WriteSlot [write byte_order] "write-slot-inlined" "WRITE into a mailbox whose last word is its bell.";
    6 WriteSlotImmediate WriteSlot [write immediate] "write-slot-immediate" "WRITE with immediate into a mailbox.";
    7 WriteSlotReserved WriteSlot [write] "write-slot-reserved" "WRITE into a mailbox that was reserved first, out of a pool of all senders.";
    8 RingDetached Ring [write message_order] "ring-detached" "WRITE into a ring, then its head into a bell.";
    9 RingImmediate Ring [write immediate] "ring-immediate" "WRITE with immediate into a ring.";
    10 RingInlinedZeroing Ring [write byte_order] "ring-inlined-zeroing" "WRITE into a ring with a bell at both ends of the message; the receiver zeroes what it has processed.";
    11 RingInlined Ring [write byte_order message_order] "ring-inlined" "WRITE downwards into a ring, each message with its bell and the zero of the next one.";
    12 SharedRingImmediate SharedRing [write immediate shared_receive_queue read] "shared-ring-immediate" "FETCH_ADD for a place in the ring of all senders, then WRITE with immediate.";
    13 SharedRingInlinedZeroing SharedRing [write byte_order read] "shared-ring-inlined-zeroing" "FETCH_ADD for a place in the ring of all senders, then WRITE with a bell at both ends.";
    14 ReadSlotDetached ReadSlot [read] "read-slot-detached" "READ of a bell, then of the message that it names.";
    15 ReadSlotInlined ReadSlot [read] "read-slot-inlined" "READ of a mailbox together with its bell.";
    16 ReadSlotNotify ReadSlot [read] "read-slot-notify" "A notice to the receiver, which then READs the message.";
    17 ReadSlotIndirect ReadSlot [write] "read-slot-indirect" "The receiver names a buffer of its own and the sender WRITEs into it.";
    18 ReadRingDetached ReadRing [read] "read-ring-detached" "READ of a ring's head, then of all messages up to it.";
    19 ReadRingInlined ReadRing [read] "read-ring-inlined" "READ of a message's bell, then of the message, or of both at once by prefetching.";
    20 ReadRingNotify ReadRing [read] "read-ring-notify" "A notice with the ring's head to each receiver, which then READs.";
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
    use super::*;
    extern crate std;
    use std::string::ToString as _;

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
}
