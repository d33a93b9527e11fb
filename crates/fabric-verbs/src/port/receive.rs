//! Receive queues: each a shared receive queue of the adapter, and the work ids of its receives.

use super::VerbsPort;
use crate::ffi::{SharedReceiveQueue, Slice};
use farside_base::{LocalSlice, Receive, ReceiveQueueId, WorkId};
use farside_fabric::{FabricError, Posted, Stop};
use std::collections::VecDeque;
use std::sync::Arc;

/// Marks receives in `wr_id`.
pub(super) const RECEIVE: u64 = 1 << 63;
/// Most receive queues of a port.
const QUEUES_MAX: usize = 1 << 15;

/// The position of a receive: queue and slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceiveSlot {
    pub(super) queue: u32,
    pub(super) slot: u32,
}

impl ReceiveSlot {
    fn request(self) -> u64 {
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
    slots: Vec<(WorkId, Slice)>,
    free: Vec<u32>,
    /// Links that use it.
    pub(super) links: u32,
}

#[derive(Default)]
pub(super) struct ReceiveQueues {
    queues: Vec<Option<VerbsReceiveQueue>>,
    free: VecDeque<u32>,
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

impl VerbsPort {
    pub(super) fn add_receive_queue(
        &mut self,
        depth: usize,
    ) -> Result<ReceiveQueueId, FabricError> {
        let most = self.core.device.facts.shared_receives.min(1 << 20);
        let depth = u32::try_from(depth).ok().filter(|depth| *depth <= most);
        let depth = depth.ok_or(FabricError::Limit("receive queue depth"))?.max(1);
        if self.queues.free.is_empty() && self.queues.queues.len() >= QUEUES_MAX {
            return Err(FabricError::Limit("receive queues"));
        }
        self.reserve(depth, "receive queue depth")?;
        let shared = match SharedReceiveQueue::new(&self.core.device.domain, depth) {
            Ok(shared) => shared,
            Err(reason) => {
                self.completions_used -= depth;
                return Err(FabricError::System("shared receive queue", reason));
            }
        };
        let blank = (WorkId(0), Slice::default());
        let made = VerbsReceiveQueue {
            shared,
            slots: vec![blank; depth as usize],
            free: (0..depth).rev().collect(),
            links: 0,
        };
        let at = match self.queues.free.pop_front() {
            Some(at) => at,
            None => {
                self.queues.queues.push(None);
                (self.queues.queues.len() - 1) as u32
            }
        };
        self.queues.queues[at as usize] = Some(made);
        Ok(ReceiveQueueId(at))
    }

    pub(super) fn remove_receive_queue(
        &mut self,
        queue: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        let found = self.queues.find(queue).ok_or(FabricError::Unknown("receive queue"))?;
        if found.links > 0 {
            return Err(FabricError::Limit("receive queue in use"));
        }
        let depth = found.slots.len() as u32;
        // Completed receives are staged, with their work ids.
        self.gather();
        if let Some(place) = self.queues.queues.get_mut(queue.0 as usize) {
            *place = None;
        }
        self.queues.free.push_back(queue.0);
        self.completions_used -= depth;
        // Receives polled later must not free slots of another queue with this number.
        for staged in &mut self.staged {
            staged.forget_queue(queue.0);
        }
        Ok(())
    }

    pub(super) fn post_all_receives(&mut self, receives: &[Receive]) -> Posted {
        self.forget_regions();
        let mut accepted = 0;
        for receive in receives {
            if let Err(stop) = self.post_receive(receive) {
                return Posted { accepted, stop: Some(stop) };
            }
            accepted += 1;
        }
        Posted { accepted, stop: None }
    }

    fn post_receive(&mut self, receive: &Receive) -> Result<(), Stop> {
        if self.queues.find(receive.queue).is_none() {
            return Err(Stop::Invalid("receive queue"));
        }
        let into = self.local(&receive.into)?;
        let queue = self.queues.find(receive.queue).ok_or(Stop::Invalid("receive queue"))?;
        let slot = queue.free.pop().ok_or(Stop::QueueFull)?;
        queue.slots[slot as usize] = (receive.id, into);
        let place = ReceiveSlot { queue: receive.queue.0, slot };
        if queue.shared.post(place.request(), into).is_err() {
            queue.free.push(slot);
            return Err(Stop::QueueFull);
        }
        Ok(())
    }

    /// Returns the address and key of a local slice, for the adapter.
    #[inline]
    pub(super) fn local(&mut self, slice: &LocalSlice) -> Result<Slice, Stop> {
        let place = match self.regions.find(slice.region) {
            Some(place) => *place,
            None => self.learn(slice)?,
        };
        let bytes = u64::from(slice.bytes);
        if slice.offset > place.bytes || bytes > place.bytes - slice.offset {
            return Err(Stop::Invalid("local bounds"));
        }
        Ok(Slice { addr: place.address + slice.offset, length: slice.bytes, lkey: place.key })
    }
}
