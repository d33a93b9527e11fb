//! Creation and removal of receive queues, and posts to them.

use super::VerbsPort;
use super::receive_queues::{QUEUES_MAX, ReceiveSlot, VerbsReceiveQueue};
use crate::ffi::{SharedReceiveQueue, Slice};
use farside_base::{LocalSlice, Receive, ReceiveQueueId, WorkId};
use farside_fabric::{FabricError, Posted, Stop};

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
