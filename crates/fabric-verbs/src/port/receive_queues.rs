//! The receive queues of a port: each a shared receive queue of the adapter, and the work ids of its receives.

use crate::ffi::{SharedReceiveQueue, Slice};
use farside_base::{ReceiveQueueId, WorkId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Marks receives in `wr_id`.
pub(super) const RECEIVE: u64 = 1 << 63;

/// Most receive queues of a port.
pub(super) const QUEUES_MAX: usize = 1 << 15;

/// The position of a receive: queue and slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveSlot {
    pub(super) queue: u32,
    pub(super) slot: u32,
}

impl ReceiveSlot {
    pub(super) fn request(self) -> u64 {
        RECEIVE | u64::from(self.queue) << 32 | u64::from(self.slot)
    }

    pub(super) fn of(request: u64) -> Self {
        let queue = (request & !RECEIVE) >> 32;
        Self { queue: queue as u32, slot: request as u32 }
    }
}

pub(super) struct VerbsReceiveQueue {
    pub(super) shared: Arc<SharedReceiveQueue>,
    /// The work id and memory of the receive in each slot.
    pub(super) slots: Vec<(WorkId, Slice)>,
    pub(super) free: Vec<u32>,
    /// Links that use it.
    pub(super) links: u32,
}

#[derive(Default)]
pub(super) struct ReceiveQueues {
    pub(super) queues: Vec<Option<VerbsReceiveQueue>>,
    pub(super) free: VecDeque<u32>,
}

impl ReceiveQueues {
    pub(super) fn find(&mut self, queue: ReceiveQueueId) -> Option<&mut VerbsReceiveQueue> {
        self.queues.get_mut(queue.0 as usize)?.as_mut()
    }

    /// Returns whether the adapter's queue of this address is among them.
    pub(super) fn has(&self, address: u64) -> bool {
        self.queues.iter().flatten().any(|queue| queue.shared.address() == address)
    }

    /// Returns the name of the receive in a slot.
    pub(super) fn name(&mut self, slot: ReceiveSlot) -> Option<WorkId> {
        let queue = self.find(ReceiveQueueId(slot.queue))?;
        queue.slots.get(slot.slot as usize).map(|(id, _)| *id)
    }

    /// Frees a slot whose receive was polled.
    pub(super) fn give_back(&mut self, slot: ReceiveSlot) {
        if let Some(queue) = self.find(ReceiveQueueId(slot.queue)) {
            queue.free.push(slot.slot);
        }
    }

    /// Posts a receive again that was flushed without a message.
    pub(super) fn post_again(&mut self, slot: ReceiveSlot) {
        if let Some(queue) = self.find(ReceiveQueueId(slot.queue))
            && let Some((_, into)) = queue.slots.get(slot.slot as usize)
        {
            // Its entry in the adapter's queue is free, since it was returned from there.
            let _ = queue.shared.post(slot.request(), *into);
        }
    }
}
