//! The queues of a port, shared by its links: receive queues, the completion queue, link events; and its regions.

use crate::region::Regions;
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, Receive, ReceiveQueueId,
    WorkId,
};
use farside_fabric::{Arena, FabricError, LinkEvent, Stop, ThreadWaiter, Waiter};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most receives of one queue.
const RECEIVES_MAX: usize = 1 << 16;
/// Most receive queues of a port at a time.
const QUEUES_MAX: usize = 4096;
/// Size of the receive buffer: several frames of every size, and small enough for a cache.
const BUFFER_BYTES: usize = 128 << 10;

/// The shared state of a port's links.
pub(crate) struct PortQueues {
    pub(crate) regions: Regions,
    queues: Vec<Option<TcpReceiveQueue>>,
    queues_made: u32,
    completions: VecDeque<UnpolledCompletion>,
    pub(crate) events: VecDeque<LinkEvent>,
    /// By link.
    counts: Vec<UnpolledCounts>,
    pub(crate) armed: bool,
    wake: bool,
    pub(crate) waiter: Arc<ThreadWaiter>,
    /// Woken by link events too.
    pub(crate) other_waiter: Option<Arc<dyn Waiter>>,
    /// The receive buffer of all links.
    pub(crate) buffer: Vec<u8>,
    /// The buffer in which long payloads are copied for encryption.
    pub(crate) scratch: Vec<u8>,
    /// Whether anything was received.
    pub(crate) moved: bool,
    /// Bytes sent or received since the program's last call.
    pub(crate) bytes_moved: u64,
    /// Links that waited for receives, which were posted meanwhile.
    pub(crate) hints: Vec<LinkId>,
}

/// Unpolled completions of a link.
#[derive(Clone, Copy, Default)]
struct UnpolledCounts {
    requests: u32,
    messages: u32,
}

/// A completion, and the receive queue whose entry it frees when it is polled.
struct UnpolledCompletion {
    completion: Completion,
    queue: Option<(ReceiveQueueId, u32)>,
}

struct TcpReceiveQueue {
    /// Distinguishes successive queues of one number.
    tenant: u32,
    depth: usize,
    posted: VecDeque<PostedReceive>,
    unpolled: usize,
    /// Links that use this queue.
    links: usize,
    /// Links whose peers were answered `NotReady`, oldest first.
    waiting: VecDeque<LinkId>,
}

/// A receive, and the memory that it names.
#[derive(Clone)]
pub(crate) struct PostedReceive {
    pub(crate) receive: Receive,
    pub(crate) arena: Arena,
}

impl PostedReceive {
    /// Returns the completion of this receive on a link.
    pub(crate) fn completion(
        &self,
        link: LinkId,
        kind: CompletionKind,
        bytes: u32,
        immediate: Option<u32>,
        status: CompletionStatus,
    ) -> Completion {
        let success = status == CompletionStatus::Success;
        Completion {
            id: self.receive.id,
            link,
            bytes: if success { bytes } else { 0 },
            immediate: immediate.filter(|_| success),
            kind,
            status,
        }
    }
}

impl PortQueues {
    pub(crate) fn new(regions: Regions) -> Self {
        Self {
            regions,
            queues: Vec::new(),
            queues_made: 0,
            completions: VecDeque::with_capacity(1024),
            events: VecDeque::new(),
            counts: Vec::new(),
            armed: false,
            wake: false,
            waiter: Arc::default(),
            other_waiter: None,
            buffer: vec![0; BUFFER_BYTES],
            scratch: vec![0; 16 << 10],
            moved: false,
            bytes_moved: 0,
            hints: Vec::new(),
        }
    }

    /// Adds the counts of a new link.
    pub(crate) fn add_link(&mut self) {
        self.counts.push(UnpolledCounts::default());
    }

    fn count(&mut self, link: LinkId) -> Option<&mut UnpolledCounts> {
        self.counts.get_mut(link.0 as usize)
    }

    /// Returns the unpolled completions of requests of this link.
    pub(crate) fn unpolled(&self, link: LinkId) -> u32 {
        self.counts.get(link.0 as usize).map_or(0, |counts| counts.requests)
    }

    /// Returns the unpolled messages of this link.
    pub(crate) fn messages(&self, link: LinkId) -> u32 {
        self.counts.get(link.0 as usize).map_or(0, |counts| counts.messages)
    }

    /// Returns and clears whether the sleeping thread must be woken.
    pub(crate) fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wake)
    }

    fn announce(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.wake = true;
        }
    }

    pub(crate) fn push_event(&mut self, event: LinkEvent) {
        self.events.push_back(event);
        if let Some(other) = &self.other_waiter {
            other.wake();
        }
        self.announce();
    }

    /// Returns whether there are completions or events.
    pub(crate) fn has_something(&self) -> bool {
        !self.completions.is_empty() || !self.events.is_empty()
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Completes a request.
    pub(crate) fn finish(
        &mut self,
        link: LinkId,
        (id, kind): (WorkId, CompletionKind),
        bytes: u32,
        status: CompletionStatus,
    ) {
        let completion = Completion { id, link, bytes, immediate: None, kind, status };
        self.completions.push_back(UnpolledCompletion { completion, queue: None });
        if let Some(counts) = self.count(link) {
            counts.requests += 1;
        }
        self.announce();
    }

    /// Completes a receive.
    pub(crate) fn finish_receive(&mut self, completion: Completion, queue: ReceiveQueueId) {
        let tenant = self.queue_mut(queue).map(|queue| {
            queue.unpolled += 1;
            queue.tenant
        });
        let queue = tenant.map(|tenant| (queue, tenant));
        if let Some(counts) = self.count(completion.link) {
            counts.messages += 1;
        }
        self.completions.push_back(UnpolledCompletion { completion, queue });
        self.announce();
    }

    /// Takes completions, oldest first.
    pub(crate) fn take(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.completions.len());
        for place in &mut out[..count] {
            let Some(finished) = self.completions.pop_front() else {
                break;
            };
            *place = finished.completion;
            let received = matches!(
                finished.completion.kind,
                CompletionKind::Receive | CompletionKind::ReceiveImmediate
            );
            if let Some(counts) = self.count(finished.completion.link) {
                let which = if received { &mut counts.messages } else { &mut counts.requests };
                *which = which.saturating_sub(1);
            }
            if let Some((queue, tenant)) = finished.queue
                && let Some(queue) = self.queue_mut(queue)
                && queue.tenant == tenant
            {
                queue.unpolled = queue.unpolled.saturating_sub(1);
            }
        }
        count
    }

    fn queue_mut(&mut self, queue: ReceiveQueueId) -> Option<&mut TcpReceiveQueue> {
        self.queues.get_mut(queue.0 as usize)?.as_mut()
    }

    pub(crate) fn create_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        if depth > RECEIVES_MAX {
            return Err(FabricError::Limit("receives"));
        }
        let at = match self.queues.iter().position(Option::is_none) {
            Some(free) => free,
            None if self.queues.len() >= QUEUES_MAX => {
                return Err(FabricError::Limit("receive queues"));
            }
            None => {
                self.queues.push(None);
                self.queues.len() - 1
            }
        };
        self.queues_made = self.queues_made.wrapping_add(1);
        self.queues[at] = Some(TcpReceiveQueue {
            tenant: self.queues_made,
            depth,
            posted: VecDeque::with_capacity(depth),
            unpolled: 0,
            links: 0,
            waiting: VecDeque::new(),
        });
        Ok(ReceiveQueueId(at as u32))
    }

    pub(crate) fn destroy_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        let found = self.queue_mut(queue).ok_or(FabricError::Unknown("receive queue"))?;
        if found.links > 0 {
            return Err(FabricError::Limit("receive queue in use"));
        }
        self.queues[queue.0 as usize] = None;
        Ok(())
    }

    /// Adds a link that takes receives from a queue.
    pub(crate) fn join(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        let found = self.queue_mut(queue).ok_or(FabricError::Unknown("receive queue"))?;
        found.links += 1;
        Ok(())
    }

    /// Removes a closed link from a queue, and hints the receives that it waited for to the next link.
    pub(crate) fn leave(&mut self, queue: ReceiveQueueId, link: LinkId) {
        if let Some(found) = self.queue_mut(queue) {
            found.links = found.links.saturating_sub(1);
        }
        self.stop_waiting(queue, link);
    }

    /// Removes a link from those that wait at a queue. Receives that it may have been notified of are
    /// offered to the next links.
    pub(crate) fn stop_waiting(&mut self, queue: ReceiveQueueId, link: LinkId) {
        if let Some(found) = self.queue_mut(queue) {
            found.waiting.retain(|waiting| *waiting != link);
            let count = found.posted.len().min(found.waiting.len());
            self.hint(queue, count);
        }
    }

    /// Moves up to `count` links that wait at a queue to `hints`: receives are available.
    fn hint(&mut self, queue: ReceiveQueueId, count: usize) {
        for _ in 0..count {
            let next = self.queue_mut(queue).and_then(|queue| queue.waiting.pop_front());
            self.hints.extend(next);
        }
    }

    /// Finds the memory of a local slice.
    #[inline]
    pub(crate) fn local(&self, slice: &LocalSlice) -> Result<&Arena, Stop> {
        let region = self.regions.find(slice.region).ok_or(Stop::Invalid("local region"))?;
        match region.arena.at(slice.offset, slice.bytes as usize) {
            Ok(_) => Ok(&region.arena),
            Err(_) => Err(Stop::Invalid("local bounds")),
        }
    }

    pub(crate) fn post_receive(&mut self, receive: &Receive) -> Result<(), Stop> {
        let arena = self.local(&receive.into)?.clone();
        let queue = self.queue_mut(receive.queue).ok_or(Stop::Invalid("receive queue"))?;
        if queue.posted.len() + queue.unpolled >= queue.depth {
            return Err(Stop::QueueFull);
        }
        queue.posted.push_back(PostedReceive { receive: *receive, arena });
        self.hint(receive.queue, 1);
        Ok(())
    }

    /// Takes the next receive of a queue for a message of this link; without one, the link is queued as
    /// waiting.
    pub(crate) fn next_receive(
        &mut self,
        queue: ReceiveQueueId,
        link: LinkId,
    ) -> Option<PostedReceive> {
        let queue = self.queue_mut(queue)?;
        let next = queue.posted.pop_front();
        if next.is_none() && !queue.waiting.contains(&link) {
            queue.waiting.push_back(link);
        }
        next
    }

    /// Puts a receive back whose message was interrupted.
    pub(crate) fn give_back(&mut self, posted: PostedReceive) {
        let name = posted.receive.queue;
        if let Some(queue) = self.queue_mut(name) {
            queue.posted.push_front(posted);
            self.hint(name, 1);
        }
    }

    /// Takes link events; `Lost` is held back until the messages received before it were polled.
    pub(crate) fn take_events(&mut self, out: &mut Vec<LinkEvent>) {
        for _ in 0..self.events.len() {
            let Some(event) = self.events.pop_front() else {
                return;
            };
            match event {
                LinkEvent::Lost { link, .. } if self.messages(link) > 0 => {
                    self.events.push_back(event);
                }
                event => out.push(event),
            }
        }
    }

    /// Removes unreported events of a closed link.
    pub(crate) fn forget_events(&mut self, link: LinkId) {
        self.events.retain(|event| event.link() != link);
    }
}
