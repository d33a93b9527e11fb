//! A port: the interface of its program. The core behind its lock is shared with the engine.

use crate::core::{LinkSlotState, PortCore, PortShared};
use crate::dial::Dial;
use crate::engine::EngineHandle;
use crate::link::Phase;
use crate::stream::LinkStream;
use farside_base::waiting::{BYTES_PER_CALL, CLAIM_AFTER_EMPTY_POLLS, CLAIM_AFTER_POLLS};
use farside_base::{
    Completion, LinkId, Receive, ReceiveQueueId, RegionToken, RemoteRegionId, Work,
};
use farside_fabric::{FabricError, LinkEvent, Port, PortSpec, Posted, Reached, SharedWord, Waiter};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns how many calls this many bytes count as.
fn calls_of(bytes_moved: u64) -> u32 {
    u32::try_from(bytes_moved / BYTES_PER_CALL).unwrap_or(u32::MAX)
}

/// Counts calls of the program. A concurrent reset by the engine may be overwritten once: then the
/// engine treats the thread as active for a while longer.
fn count(counter: &AtomicU32, calls: u32) {
    counter.store(counter.load(Ordering::Relaxed).saturating_add(calls), Ordering::Relaxed);
}

pub(crate) struct TcpPort {
    shared: Arc<PortShared>,
    /// Keeps the engine alive.
    fabric: Arc<EngineHandle>,
    name: Option<String>,
    /// Empty polls in a row.
    empty_polls: u32,
    /// Polls since the thread slept or took the port over.
    polls: u32,
}

impl TcpPort {
    pub(crate) fn open(fabric: &Arc<EngineHandle>, spec: &PortSpec) -> Result<Self, FabricError> {
        let shared = fabric.inner.open(spec)?;
        let (fabric, name) = (Arc::clone(fabric), spec.listen.clone());
        Ok(Self { shared, fabric, name, empty_polls: 0, polls: 0 })
    }

    /// Claims the port from the engine, whose further wake-ups would find nothing to do.
    fn claim(&mut self) {
        (self.empty_polls, self.polls) = (0, 0);
        let inner = &self.fabric.inner;
        self.shared.with_core(|_| inner.claim(&self.shared));
    }
}

impl Drop for TcpPort {
    fn drop(&mut self) {
        self.fabric.inner.close(&self.shared, self.name.as_deref());
        self.shared.with_core(|core| {
            for id in core.open_links() {
                core.forget(id);
            }
        });
    }
}

impl Port for TcpPort {
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let inner = &self.fabric.inner;
        let claimed = self.shared.claimed.load(Ordering::Relaxed);
        count(&self.shared.posts, 1);
        self.shared.with_core(|core| {
            core.queues.bytes_moved = 0;
            let posted = core.post(work, &inner.capabilities, claimed);
            let calls = calls_of(core.queues.bytes_moved);
            if calls > 0 {
                count(&self.shared.posts, calls);
            }
            posted
        })
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        self.shared.with_core(|core| {
            for (accepted, receive) in receives.iter().enumerate() {
                if let Err(stop) = core.queues.post_receive(receive) {
                    return Posted { accepted, stop: Some(stop) };
                }
            }
            Posted { accepted: receives.len(), stop: None }
        })
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let claimed = self.shared.claimed.load(Ordering::Relaxed);
        count(&self.shared.polls, 1);
        let taken = self.shared.with_core(|core| {
            core.queues.bytes_moved = 0;
            core.uncork();
            if !core.queues.has_completions() {
                core.poll(claimed);
            }
            let calls = calls_of(core.queues.bytes_moved);
            if calls > 0 {
                count(&self.shared.polls, calls);
            }
            core.queues.take(out)
        });
        if !claimed {
            self.empty_polls = if taken > 0 { 0 } else { self.empty_polls + 1 };
            self.polls += 1;
            if self.empty_polls > CLAIM_AFTER_EMPTY_POLLS || self.polls > CLAIM_AFTER_POLLS {
                self.claim();
            }
        }
        taken
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        self.shared.with_core(|core| core.queues.take_events(out));
    }

    fn arm(&mut self) -> bool {
        let inner = &self.fabric.inner;
        (self.empty_polls, self.polls) = (0, 0);
        self.shared.with_core(|core| {
            core.flush_deferred();
            inner.release(&self.shared);
            let more = core.has_more() && core.scan(false);
            let something = more || core.queues.has_something();
            core.queues.armed = !something;
            something
        })
    }

    fn disarm(&mut self) {
        self.shared.with_core(|core| core.queues.armed = false);
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.shared.waiter) as Arc<dyn Waiter>
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.shared.with_core(|core| core.queues.other_waiter = Some(waiter));
    }

    fn address(&self) -> Option<String> {
        self.fabric.inner.address(self.name.as_deref()?)
    }

    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        self.shared.with_core(|core| core.queues.create_queue(depth))
    }

    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        self.shared.with_core(|core| core.queues.destroy_queue(queue))
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        PortCore::check_hello(hello)?;
        let inner = &self.fabric.inner;
        let dial = Box::new(Dial::new(to, hello, inner.local, &inner.options)?);
        let link = self.shared.with_core(|core| {
            core.queues.join(receives)?;
            let id = match core.add(Phase::Requested) {
                Ok(id) => id,
                Err(limit) => {
                    core.queues.leave(receives, LinkId(u32::MAX));
                    return Err(limit);
                }
            };
            if let Some(link) = core.link_mut(id) {
                link.queue = Some(receives);
            }
            core.dial(id, dial);
            Ok(id)
        })?;
        inner.wake_for_dial();
        Ok(link)
    }

    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        self.shared.with_core(|core| core.accept(link, reply, receives))
    }

    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        self.shared.with_core(|core| core.refuse(link, reason))
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        let most = self.fabric.inner.options.limits.imports_max;
        self.shared.with_core(|core| {
            let slot = core.slots.get(link.0 as usize).ok_or(FabricError::Unknown("link"))?;
            match &slot.state {
                LinkSlotState::Open(open) if open.is_connected() => {
                    core.imports.import(link, token, most)
                }
                LinkSlotState::Open(_) => Err(FabricError::Unknown("link")),
                LinkSlotState::Disconnected { .. } | LinkSlotState::Closed => {
                    Err(FabricError::PeerLost)
                }
            }
        })
    }

    fn reach(&self, _link: LinkId, _region: RemoteRegionId) -> Option<Reached> {
        None
    }

    fn reach_word(
        &self,
        _link: LinkId,
        _region: RemoteRegionId,
        _offset: u64,
    ) -> Option<SharedWord> {
        None
    }

    fn close(&mut self, link: LinkId) {
        self.shared.with_core(|core| {
            core.forget(link);
            core.queues.forget_events(link);
        });
    }

    fn path(&self, link: LinkId) -> String {
        let security = &self.fabric.inner.options.security;
        self.shared.with_core(|core| {
            match core.slots.get(link.0 as usize).map(|slot| &slot.state) {
                Some(LinkSlotState::Open(open)) => {
                    let ends = open.connection.as_ref().map(LinkStream::ends);
                    let Some((Some(here), Some(there))) = ends else {
                        return "tcp: connecting".to_owned();
                    };
                    let by = open.connection.as_ref().and_then(LinkStream::congestion);
                    format!(
                        "tcp ({}) {here} -> {there}, {}, one-sided by engine thread or polling thread",
                        by.as_deref().unwrap_or("unknown congestion control"),
                        security.describe()
                    )
                }
                Some(LinkSlotState::Disconnected { .. }) => "tcp: lost".to_owned(),
                Some(LinkSlotState::Closed) => "tcp: closed".to_owned(),
                None => "tcp: no such link".to_owned(),
            }
        })
    }

    fn trouble(&self, link: LinkId) -> Option<String> {
        self.shared.with_core(|core| core.slots.get(link.0 as usize)?.trouble.clone())
    }
}
