//! Both forms of the family under one type.

use super::super::delegate::delegate_halves;
use super::super::half::OwnRegions;
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::{indirect_receiver, indirect_sender, mailbox_receiver, mailbox_sender};

/// The sender half of a read slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReadSlotSender {
    /// Readers READ its messages.
    Mailboxes(mailbox_sender::ReadMailboxSender),
    /// It WRITEs its messages.
    Indirect(indirect_sender::IndirectSender),
}

/// The receiver half of a read slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum ReadSlotReceiver {
    /// It READs messages.
    Mailboxes(mailbox_receiver::ReadMailboxReceiver),
    /// It tells the sender where to WRITE messages.
    Indirect(indirect_receiver::IndirectReceiver),
}

macro_rules! each {
    ($half:expr, $one:ident => $call:expr) => {
        match $half {
            Self::Mailboxes($one) => $call,
            Self::Indirect($one) => $call,
        }
    };
}

impl ReadSlotSender {
    /// Creates a sender without peers.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::ReadSlotIndirect => {
                Self::Indirect(indirect_sender::IndirectSender::new(kind, shape, regions))
            }
            _ => Self::Mailboxes(mailbox_sender::ReadMailboxSender::new(kind, shape, regions)),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::ChannelMutant) -> Self {
        match self {
            Self::Mailboxes(half) => Self::Mailboxes(half.with_mutant(mutant)),
            Self::Indirect(half) => Self::Indirect(half.with_mutant(mutant)),
        }
    }
}

impl ReadSlotReceiver {
    /// Creates a receiver without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::ReadSlotIndirect => {
                Self::Indirect(indirect_receiver::IndirectReceiver::new(kind, shape, regions))
            }
            _ => Self::Mailboxes(mailbox_receiver::ReadMailboxReceiver::new(kind, shape, regions)),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::ChannelMutant) -> Self {
        match self {
            Self::Mailboxes(half) => Self::Mailboxes(half.with_mutant(mutant)),
            Self::Indirect(half) => Self::Indirect(half),
        }
    }
}

delegate_halves!(each, ReadSlotSender, ReadSlotReceiver);
