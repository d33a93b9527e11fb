//! The halves of all channels under one type each, so that a program selects a channel at run time.

use super::delegate::delegate_halves;
use super::half::{Half, OwnRegions};
use super::kind::Kind;
use super::ring;
use super::send_receive;
use super::shape::{MemoryPlan, Shape};
use super::shared_ring;
use super::write_slot;
use super::{read_ring, read_slot};

macro_rules! halves {
    ($($family:ident($module:ident, $sender:ident, $receiver:ident);)*) => {
        /// The sender half of any channel.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Sender {
            $(#[doc = concat!("Of the family `", stringify!($module), "`.")]
            $family($module::$sender),)*
        }

        /// The receiver half of any channel.
        #[derive(Clone, PartialEq, Eq, Hash, Debug)]
        pub enum Receiver {
            $(#[doc = concat!("Of the family `", stringify!($module), "`.")]
            $family($module::$receiver),)*
        }

        impl Sender {
            /// The memory that it needs.
            pub const fn plan(kind: Kind, shape: &Shape) -> MemoryPlan {
                match kind.family() {
                    $(super::Family::$family => $module::plan_sender(kind, shape),)*
                }
            }

            /// Creates a sender without peers. The shape must have passed [`Shape::check`].
            pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
                match kind.family() {
                    $(super::Family::$family => {
                        Self::$family($module::$sender::new(kind, shape, regions))
                    })*
                }
            }

            /// Enables a planted defect.
            #[cfg(canary)]
            pub fn with_mutant(self, mutant: super::ChannelMutant) -> Self {
                match self {
                    $(Self::$family(half) => Self::$family(half.with_mutant(mutant)),)*
                }
            }
        }

        impl Receiver {
            /// The memory that it needs.
            pub const fn plan(kind: Kind, shape: &Shape) -> MemoryPlan {
                match kind.family() {
                    $(super::Family::$family => $module::plan_receiver(kind, shape),)*
                }
            }

            /// Creates a receiver without peers. The shape must have passed [`Shape::check`].
            pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
                match kind.family() {
                    $(super::Family::$family => {
                        Self::$family($module::$receiver::new(kind, shape, regions))
                    })*
                }
            }

            /// Enables a planted defect.
            #[cfg(canary)]
            pub fn with_mutant(self, mutant: super::ChannelMutant) -> Self {
                match self {
                    $(Self::$family(half) => Self::$family(half.with_mutant(mutant)),)*
                }
            }
        }

        macro_rules! each {
            ($half:expr, $one:ident => $call:expr) => {
                match $half {
                    $(Self::$family($one) => $call,)*
                }
            };
        }
    };
}

halves! {
    SharedRing(shared_ring, SharedRingSender, SharedRingReceiver);
    SendReceive(send_receive, TwoSidedSender, TwoSidedReceiver);
    WriteSlot(write_slot, WriteSlotSender, WriteSlotReceiver);
    Ring(ring, RingSender, RingReceiver);
    ReadSlot(read_slot, ReadSlotSender, ReadSlotReceiver);
    ReadRing(read_ring, ReadRingSender, ReadRingReceiver);
}

delegate_halves!(each, Sender, Receiver);

/// Either half of any channel, for code that drives senders and receivers alike.
pub trait AnyHalf: Half + Sized {
    /// Whether it is a sender.
    const SENDS: bool;

    /// The memory that it needs.
    fn plan(kind: Kind, shape: &Shape) -> MemoryPlan;

    /// Creates a half without peers. The shape must have passed [`Shape::check`].
    fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self;

    /// Whether one half serves all peers.
    fn shares(kind: Kind) -> bool;
}

macro_rules! any_half {
    ($half:ident, $sends:literal, $shares:ident) => {
        impl AnyHalf for $half {
            const SENDS: bool = $sends;

            fn plan(kind: Kind, shape: &Shape) -> MemoryPlan {
                Self::plan(kind, shape)
            }

            fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
                Self::new(kind, shape, regions)
            }

            fn shares(kind: Kind) -> bool {
                kind.$shares()
            }
        }
    };
}

any_half!(Sender, true, shares_sender);
any_half!(Receiver, false, shares_receiver);
