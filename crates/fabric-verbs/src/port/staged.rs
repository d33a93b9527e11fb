//! Completions that wait to be polled.

use super::receive_queues::ReceiveSlot;
use farside_base::Completion;

/// A completion that waits to be polled, and what its polling frees.
pub(super) struct Staged {
    pub(super) completion: Completion,
    pub(super) frees: Frees,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Frees {
    /// Room on its link.
    Room,
    /// An entry among the requests of closed links.
    Orphan,
    /// A slot of a receive queue.
    Receive(ReceiveSlot),
    /// Nothing any more.
    Nothing,
}

impl Staged {
    pub(super) fn of_link(completion: Completion) -> Self {
        Self { completion, frees: Frees::Room }
    }

    pub(super) fn orphan(completion: Completion) -> Self {
        Self { completion, frees: Frees::Orphan }
    }

    pub(super) fn forget_queue(&mut self, queue: u32) {
        if matches!(self.frees, Frees::Receive(slot) if slot.queue == queue) {
            self.frees = Frees::Nothing;
        }
    }
}
