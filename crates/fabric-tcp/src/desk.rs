//! What all links of a port share: regions, receive queues, completions and events.

use crate::link::Link;
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
/// Bytes that are received at once: some frames of every size, and little enough for a cache.
const BUFFER_BYTES: usize = 128 << 10;

/// What a port hands over, and what it needs for that.
pub(crate) struct Desk {
    pub(crate) regions: Regions,
    queues: Vec<Option<ReceiveQueue>>,
    queues_made: u32,
    completions: VecDeque<Finished>,
    pub(crate) events: VecDeque<LinkEvent>,
    /// Of each link.
    counts: Vec<Counts>,
    pub(crate) armed: bool,
    wake: bool,
    pub(crate) waiter: Arc<ThreadWaiter>,
    /// Woken by link events too.
    pub(crate) other_waiter: Option<Arc<dyn Waiter>>,
    /// Where links receive to.
    pub(crate) buffer: Vec<u8>,
    /// Where long payloads are copied to be encrypted.
    pub(crate) scratch: Vec<u8>,
    /// Something was received.
    pub(crate) moved: bool,
    /// Bytes that were sent or received since a thread of the program called last.
    pub(crate) bytes_moved: u64,
    /// Links that wait for receives which have come.
    pub(crate) hints: Vec<LinkId>,
}

/// Completions of a link that nobody has polled.
#[derive(Clone, Copy, Default)]
struct Counts {
    requests: u32,
    messages: u32,
}

/// A completion, and the receive queue that gets its place back when it is polled.
struct Finished {
    completion: Completion,
    queue: Option<(ReceiveQueueId, u32)>,
}

struct ReceiveQueue {
    /// Tells tenants of a number apart.
    tenant: u32,
    depth: usize,
    posted: VecDeque<Posted>,
    unpolled: usize,
    /// Links that take receives from here.
    links: usize,
    /// Links whose peers were told to wait, oldest first.
    waiting: VecDeque<LinkId>,
}

/// A receive, and the memory that it names.
#[derive(Clone)]
pub(crate) struct Posted {
    pub(crate) receive: Receive,
    pub(crate) arena: Arena,
}

impl Desk {
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

    /// Room for the counts of a further link.
    pub(crate) fn add_link(&mut self) {
        self.counts.push(Counts::default());
    }

    fn count(&mut self, link: LinkId) -> Option<&mut Counts> {
        self.counts.get_mut(link.0 as usize)
    }

    /// Completions of requests of this link that nobody has polled.
    pub(crate) fn unpolled(&self, link: LinkId) -> u32 {
        self.counts.get(link.0 as usize).map_or(0, |counts| counts.requests)
    }

    /// Messages of this link that nobody has polled.
    pub(crate) fn messages(&self, link: LinkId) -> u32 {
        self.counts.get(link.0 as usize).map_or(0, |counts| counts.messages)
    }

    /// Whether the sleeper is to be woken, told once.
    pub(crate) fn take_wake(&mut self) -> bool {
        std::mem::take(&mut self.wake)
    }

    fn announce(&mut self) {
        if std::mem::take(&mut self.armed) {
            self.wake = true;
        }
    }

    pub(crate) fn tell(&mut self, event: LinkEvent) {
        self.events.push_back(event);
        if let Some(other) = &self.other_waiter {
            other.wake();
        }
        self.announce();
    }

    /// Whether there is something to take.
    pub(crate) fn has_something(&self) -> bool {
        !self.completions.is_empty() || !self.events.is_empty()
    }

    pub(crate) fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// Ends a request.
    pub(crate) fn finish(
        &mut self,
        link: LinkId,
        (id, kind): (WorkId, CompletionKind),
        bytes: u32,
        status: CompletionStatus,
    ) {
        let completion = Completion { id, link, bytes, immediate: None, kind, status };
        self.completions.push_back(Finished { completion, queue: None });
        if let Some(counts) = self.count(link) {
            counts.requests += 1;
        }
        self.announce();
    }

    /// Ends a receive.
    pub(crate) fn finish_receive(&mut self, completion: Completion, queue: ReceiveQueueId) {
        let tenant = self.queue_mut(queue).map(|queue| {
            queue.unpolled += 1;
            queue.tenant
        });
        let queue = tenant.map(|tenant| (queue, tenant));
        if let Some(counts) = self.count(completion.link) {
            counts.messages += 1;
        }
        self.completions.push_back(Finished { completion, queue });
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

    fn queue_mut(&mut self, queue: ReceiveQueueId) -> Option<&mut ReceiveQueue> {
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
        self.queues[at] = Some(ReceiveQueue {
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

    /// A link begins to take receives from a queue.
    pub(crate) fn join(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        let found = self.queue_mut(queue).ok_or(FabricError::Unknown("receive queue"))?;
        found.links += 1;
        Ok(())
    }

    /// A link is closed; whoever waits behind it is told instead.
    pub(crate) fn leave(&mut self, queue: ReceiveQueueId, link: LinkId) {
        if let Some(found) = self.queue_mut(queue) {
            found.links = found.links.saturating_sub(1);
        }
        self.stop_waiting(queue, link);
    }

    /// A link does not wait for receives any more; those that it may have been told of are told of to
    /// the next.
    pub(crate) fn stop_waiting(&mut self, queue: ReceiveQueueId, link: LinkId) {
        if let Some(found) = self.queue_mut(queue) {
            found.waiting.retain(|waiting| *waiting != link);
            let count = found.posted.len().min(found.waiting.len());
            self.hint(queue, count);
        }
    }

    /// Tells so many of those who wait at a queue that there are receives.
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
        queue.posted.push_back(Posted { receive: *receive, arena });
        self.hint(receive.queue, 1);
        Ok(())
    }

    /// The next receive of a queue, for a message of this link; without one, the link joins those who
    /// wait.
    pub(crate) fn next_receive(&mut self, queue: ReceiveQueueId, link: LinkId) -> Option<Posted> {
        let queue = self.queue_mut(queue)?;
        let next = queue.posted.pop_front();
        if next.is_none() && !queue.waiting.contains(&link) {
            queue.waiting.push_back(link);
        }
        next
    }

    /// Puts a receive back whose message never came to an end.
    pub(crate) fn give_back(&mut self, posted: Posted) {
        let name = posted.receive.queue;
        if let Some(queue) = self.queue_mut(name) {
            queue.posted.push_front(posted);
            self.hint(name, 1);
        }
    }

    /// Takes events whose time has come: a loss waits until messages from before it were polled.
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

    /// Forgets what nobody has heard of a link that was closed.
    pub(crate) fn forget_events(&mut self, link: LinkId) {
        self.events.retain(|event| event.link() != link);
    }
}

/// A finished receive.
pub(crate) fn received(
    link: &Link,
    posted: &Posted,
    kind: CompletionKind,
    bytes: u32,
    immediate: Option<u32>,
    status: CompletionStatus,
) -> Completion {
    let success = status == CompletionStatus::Success;
    Completion {
        id: posted.receive.id,
        link: link.id,
        bytes: if success { bytes } else { 0 },
        immediate: immediate.filter(|_| success),
        kind,
        status,
    }
}
