//! The halves of all write slot channels under one type: with mailboxes of one sender, or with a shared pool.

use super::super::delegate::delegate_halves;
use super::super::half::OwnRegions;
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::reserved::{ReservedReceiver, ReservedSender};
use super::{MailboxReceiver, MailboxSender};

/// The sender half of a write slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum WriteSlotSender {
    /// Into mailboxes of its own.
    Mailbox(MailboxSender),
    /// Into a pool shared by senders.
    Reserved(ReservedSender),
}

/// The receiver half of a write slot channel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum WriteSlotReceiver {
    /// Of one sender.
    Mailbox(MailboxReceiver),
    /// Of a pool shared by senders.
    Reserved(ReservedReceiver),
}

impl WriteSlotSender {
    /// Creates a sender without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::WriteSlotReserved => Self::Reserved(ReservedSender::new(shape, regions)),
            _ => Self::Mailbox(MailboxSender::new(kind, shape, regions)),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::ChannelMutant) -> Self {
        match self {
            Self::Mailbox(half) => Self::Mailbox(half.with_mutant(mutant)),
            Self::Reserved(half) => Self::Reserved(half.with_mutant(mutant)),
        }
    }
}

impl WriteSlotReceiver {
    /// Creates a receiver without peers.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        match kind {
            Kind::WriteSlotReserved => Self::Reserved(ReservedReceiver::new(shape, regions)),
            _ => Self::Mailbox(MailboxReceiver::new(kind, shape, regions)),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(self, mutant: super::super::ChannelMutant) -> Self {
        match self {
            Self::Mailbox(half) => Self::Mailbox(half.with_mutant(mutant)),
            Self::Reserved(half) => Self::Reserved(half.with_mutant(mutant)),
        }
    }
}

macro_rules! either {
    ($half:expr, $one:ident => $call:expr) => {
        match $half {
            Self::Mailbox($one) => $call,
            Self::Reserved($one) => $call,
        }
    };
}

delegate_halves!(either, WriteSlotSender, WriteSlotReceiver);
