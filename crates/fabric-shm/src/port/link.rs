//! The links of a port, in each of their states.

use crate::bell::SharedBell;
use crate::connection::{Connection, KnownPeer};
use crate::layout::link;
use crate::mapping::{OwnMemory, View};
use crate::ring::{Consumer, Producer, ReadWords, SLOT_BYTES, WriteWords};
use farside_base::{CompletionStatus, LinkId, ReceiveQueueId};
use farside_fabric::Arena;
use rustix::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl ReadWords for OwnMemory {
    #[inline(always)]
    fn load(&self, offset: u64, order: Ordering) -> u64 {
        OwnMemory::load(self, offset, order)
    }
}

impl WriteWords for OwnMemory {
    #[inline(always)]
    fn store(&self, offset: u64, value: u64, order: Ordering) {
        let stored = OwnMemory::store(self, offset, value, order);
        debug_assert!(stored, "rings compute places within their memory");
    }

    #[inline(always)]
    fn store_line(&self, offset: u64, first: u64, bytes: &[u8; SLOT_BYTES as usize]) {
        let stored = OwnMemory::store_line(self, offset, first, bytes);
        debug_assert!(stored, "rings compute places within their memory");
    }

    #[inline(always)]
    fn expect_write(&self, offset: u64, bytes: u32) {
        self.arena().expect_write(offset, bytes as usize);
    }

    #[inline]
    fn expect_read_elsewhere(&self, offset: u64, bytes: u32) {
        self.arena().expect_read_elsewhere(offset, bytes as usize);
    }
}

impl ReadWords for View {
    #[inline(always)]
    fn load(&self, offset: u64, order: Ordering) -> u64 {
        View::load(self, offset, order)
    }
}

/// The state of a link number.
pub(super) enum LinkSlot {
    /// Not given out, or known to the control thread only.
    Absent,
    /// Requested, and not answered yet by this program or the peer.
    Waiting(Box<PendingLink>),
    /// Usable, or failed and not closed yet.
    Open(Box<ShmLink>),
    /// Closed or lost.
    Gone {
        /// How the next request on it ends; all further ones are flushed.
        status: CompletionStatus,
        /// The peer requested the link and ended before it was answered.
        unanswered: bool,
        /// It counts towards the links of the port until it is closed locally too.
        counted: bool,
    },
}

/// A link that is being made.
pub(super) enum PendingLink {
    Connecting { connection: Arc<Connection>, own: Arena, queue: ReceiveQueueId },
    Requested { connection: Arc<Connection>, peer: KnownPeer },
}

/// How requests on a link end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkHealth {
    /// The link works: each request completes with its own result.
    Up,
    /// The peer is gone, or its end has failed: the next request reports it.
    Down,
    /// A request has failed, or has reported the loss: all are flushed.
    Failed,
}

/// A link that was usable once. In cache lines of its own.
#[repr(align(128))]
pub(super) struct ShmLink {
    pub(super) producer: Producer<OwnMemory, View>,
    pub(super) consumer: Consumer<OwnMemory, View>,
    /// The peer's sleep word.
    pub(super) bell: SharedBell,
    pub(super) number: LinkId,
    /// The receive queue of its messages.
    pub(super) queue: u32,
    pub(super) state: LinkHealth,
    /// No more messages are taken from it.
    pub(super) deaf: bool,
    /// A message arrived after the last one was sent, so the peer may wait for the next.
    pub(super) heard: bool,
    /// A message was sent after the last one arrived, so the next may be its answer.
    pub(super) spoke: bool,
    pub(super) connection: Arc<Connection>,
}

impl LinkSlot {
    /// Returns the entry of a link that was closed locally.
    pub(super) fn closed() -> Self {
        Self::Gone { status: CompletionStatus::Flushed, unanswered: false, counted: false }
    }

    /// Returns the connection, if there is one.
    pub(super) fn connection(&self) -> Option<&Arc<Connection>> {
        match self {
            Self::Absent | Self::Gone { .. } => None,
            Self::Open(link) => Some(&link.connection),
            Self::Waiting(waiting) => match &**waiting {
                PendingLink::Connecting { connection, .. }
                | PendingLink::Requested { connection, .. } => Some(connection),
            },
        }
    }

    /// Returns the receive queue that it uses.
    pub(super) fn queue(&self) -> Option<ReceiveQueueId> {
        match self {
            Self::Absent | Self::Gone { .. } => None,
            Self::Open(link) => Some(ReceiveQueueId(link.queue)),
            Self::Waiting(waiting) => match &**waiting {
                PendingLink::Connecting { queue, .. } => Some(*queue),
                PendingLink::Requested { .. } => None,
            },
        }
    }

    /// Takes the state of a pending `connect`.
    pub(super) fn take_connecting(&mut self) -> Option<PendingLink> {
        match self {
            Self::Waiting(waiting) if matches!(**waiting, PendingLink::Connecting { .. }) => {}
            _ => return None,
        }
        match std::mem::replace(self, Self::closed()) {
            Self::Waiting(waiting) => Some(*waiting),
            Self::Absent | Self::Open(_) | Self::Gone { .. } => None,
        }
    }

    /// Takes the state of a peer's request.
    pub(super) fn take_requested(&mut self) -> Option<(Arc<Connection>, KnownPeer)> {
        match self {
            Self::Waiting(waiting) if matches!(**waiting, PendingLink::Requested { .. }) => {}
            _ => return None,
        }
        match std::mem::replace(self, Self::closed()) {
            Self::Waiting(waiting) => match *waiting {
                PendingLink::Requested { connection, peer } => Some((connection, peer)),
                PendingLink::Connecting { .. } => None,
            },
            Self::Absent | Self::Open(_) | Self::Gone { .. } => None,
        }
    }
}

impl ShmLink {
    /// Forbids further requests of the other end; those in flight have to be waited for.
    pub(super) fn shut(&self) {
        WriteWords::store(self.producer.own(), link::CLOSED, 1, Ordering::SeqCst);
    }

    /// Returns whether nothing more can be taken from it now.
    pub(super) fn is_drained(&self) -> bool {
        self.deaf || !self.consumer.is_ready()
    }

    /// Fails the link because the peer violated the message protocol: no completion would report it, so
    /// both ends get `Lost`.
    #[cold]
    pub(super) fn break_off(&mut self) {
        self.deaf = true;
        crate::socket::end(self.connection.socket.as_fd());
    }
}
