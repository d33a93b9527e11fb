//! A port: the interface of its program. The core behind its lock is shared with the engine.

use crate::call::Dial;
use crate::connection::LinkStream;
use crate::core::{LinkSlotState, PolledEvents, PortCore};
use crate::engine::Inner;
use crate::fabric::EngineHandle;
use crate::link::{Phase, TcpLink};
use crate::region::Regions;
use crate::wire::{FrameKind, OUTSTANDING_MAX};
use farside_base::{
    Completion, CompletionStatus, LinkId, Receive, ReceiveQueueId, RegionToken, RemoteRegionId,
    Work,
};
use farside_fabric::{
    FabricError, HELLO_BYTES_MAX, LinkEvent, Parts, Port, PortSpec, Posted, Reached, SharedWord,
    Stop, ThreadWaiter, Waiter,
};
use rustix::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

/// Empty polls in a row after which a polling thread claims the port from the engine.
const CLAIM_AFTER_VAIN: u32 = 8;
/// The same for polls of any kind since the thread slept: a thread whose polls always find what the
/// engine received contends with the engine for the lock and, on few cores, for a processor.
const CLAIM_AFTER: u32 = 32;
/// Bytes that take about as long as a call without any, and count as one.
const BYTES_OF_A_CALL: u64 = 16 << 10;

/// Returns how many calls this many bytes count as.
fn calls_of(bytes_moved: u64) -> u32 {
    u32::try_from(bytes_moved / BYTES_OF_A_CALL).unwrap_or(u32::MAX)
}

/// Counts calls of the program. A concurrent reset by the engine may be overwritten once: then the
/// engine treats the thread as active for a while longer.
fn count(counter: &AtomicU32, calls: u32) {
    counter.store(counter.load(Ordering::Relaxed).saturating_add(calls), Ordering::Relaxed);
}

/// The state that a port and the engine share.
pub(crate) struct PortShared {
    core: Mutex<PortCore>,
    /// All sockets of the port.
    pub(crate) epoll: Arc<OwnedFd>,
    waiter: Arc<ThreadWaiter>,
    pub(crate) number: u64,
    /// A thread polls so often that the engine does not serve the port. Changes under the core's lock.
    pub(crate) claimed: AtomicBool,
    /// Polls since the engine's last check, and posted lists.
    pub(crate) polls: AtomicU32,
    pub(crate) posts: AtomicU32,
    /// Threads that wait for the lock.
    wanted: AtomicU32,
}

impl PortShared {
    pub(crate) fn new(
        inner: &Inner,
        regions: Regions,
        number: u64,
    ) -> Result<Arc<Self>, FabricError> {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
            .map_err(|reason| FabricError::System("epoll", reason.into()))?;
        let epoll = Arc::new(epoll);
        Ok(Arc::new_cyclic(|shared: &Weak<Self>| {
            let options = Arc::clone(&inner.options);
            let core = PortCore::new(options, regions, Arc::clone(&epoll), Weak::clone(shared));
            let waiter = Arc::clone(&core.desk.waiter);
            Self {
                core: Mutex::new(core),
                epoll,
                waiter,
                number,
                claimed: AtomicBool::new(false),
                polls: AtomicU32::new(0),
                posts: AtomicU32::new(0),
                wanted: AtomicU32::new(0),
            }
        }))
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, PortCore>> {
        match self.core.try_lock() {
            Ok(core) => Some(core),
            Err(TryLockError::Poisoned(core)) => Some(core.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, PortCore> {
        self.try_lock().unwrap_or_else(|| {
            self.wanted.fetch_add(1, Ordering::Relaxed);
            let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
            self.wanted.fetch_sub(1, Ordering::Relaxed);
            core
        })
    }

    /// Polls the warm link up to `looks` times, until something arrives or another thread wants the
    /// port: one system call fewer than asking the epoll first. Returns whether another poll must
    /// follow; `None` if nothing arrived.
    pub(crate) fn look(&self, looks: u32) -> Option<bool> {
        let wanted = || self.wanted.load(Ordering::Relaxed) > 0;
        let mut core = if wanted() { None } else { self.try_lock() }?;
        let mut came = None;
        for _ in 0..looks {
            // Claims change only under the lock.
            let free = !self.claimed.load(Ordering::Relaxed);
            came = if free { core.look_at_warm() } else { None };
            if came != Some(false) || wanted() {
                break;
            }
        }
        let more = (came == Some(true)).then(|| core.has_more());
        self.leave(core);
        more
    }

    /// Serves ready sockets of the port. Readiness is checked without the lock, since a thread that
    /// checks repeatedly under it would keep the program out. Returns whether another poll must follow.
    pub(crate) fn serve_found(&self) -> Option<bool> {
        let mut events = PolledEvents::new();
        let found = events.look(&self.epoll);
        (!found.is_empty()).then(|| {
            self.with_core(|core| {
                core.serve_found(found, false);
                core.has_more()
            })
        })
    }

    /// Returns whether another thread holds the lock.
    pub(crate) fn is_busy(&self) -> bool {
        matches!(self.core.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Calls `act` on the core; a sleeping thread is woken after the lock is released.
    pub(crate) fn with_core<T>(&self, act: impl FnOnce(&mut PortCore) -> T) -> T {
        let mut core = self.lock();
        let value = act(&mut core);
        self.leave(core);
        value
    }

    fn leave(&self, mut core: MutexGuard<'_, PortCore>) {
        core.run_hints();
        let wake = core.desk.take_wake();
        drop(core);
        if wake {
            self.waiter.wake();
        }
    }
}

pub(crate) struct TcpPort {
    shared: Arc<PortShared>,
    /// Keeps the engine alive.
    fabric: Arc<EngineHandle>,
    name: Option<String>,
    /// Empty polls in a row.
    vain: u32,
    /// Polls since the thread slept or took the port over.
    polls: u32,
}

impl TcpPort {
    pub(crate) fn open(fabric: &Arc<EngineHandle>, spec: &PortSpec) -> Result<Self, FabricError> {
        let shared = fabric.inner.open(spec)?;
        let (fabric, name) = (Arc::clone(fabric), spec.listen.clone());
        Ok(Self { shared, fabric, name, vain: 0, polls: 0 })
    }

    /// Claims the port from the engine, whose further wake-ups would find nothing to do.
    fn claim(&mut self) {
        (self.vain, self.polls) = (0, 0);
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

impl PortCore {
    /// Accepts one request.
    fn take(&mut self, work: &Work<'_>, inner: &Inner) -> Result<(), Stop> {
        let parts = Parts::of(&work.operation);
        let slot = self.slots.get_mut(work.link.0 as usize).ok_or(Stop::Invalid("link"))?;
        let next = match &mut slot.state {
            LinkSlotState::Open(link) => {
                if !link.is_up() {
                    return Err(Stop::Invalid("link"));
                }
                parts.check(&inner.capabilities)?;
                let mut token = None;
                if let Some(remote) = parts.remote {
                    token = self.imports.find(work.link, remote.region);
                    if token.is_none() {
                        for slice in parts.local {
                            self.desk.local(slice)?;
                        }
                        return Err(Stop::Invalid("remote region"));
                    }
                }
                return link.requester.post(work, &parts, token, &self.desk);
            }
            LinkSlotState::Down { next, .. } => Some(next),
            LinkSlotState::Closed => None,
        };
        parts.check(&inner.capabilities)?;
        for slice in parts.local {
            self.desk.local(slice)?;
        }
        if self.desk.unpolled(work.link) >= OUTSTANDING_MAX {
            return Err(Stop::QueueFull);
        }
        let flushed = CompletionStatus::Flushed;
        let status = next.map_or(flushed, |next| std::mem::replace(next, flushed));
        self.desk.finish(work.link, (work.id, parts.kind), 0, status);
        Ok(())
    }

    fn post(&mut self, list: &[Work<'_>], inner: &Inner, claimed: bool) -> Posted {
        let mut stop = None;
        let mut accepted = 0;
        let mut last = None;
        for work in list {
            // Most lists are for one link; requests of another are flushed when the list changes to it.
            if let Some(before) = last.replace(work.link)
                && before != work.link
            {
                self.flush(before, false);
            }
            let mut taken = self.take(work, inner);
            if taken == Err(Stop::QueueFull) {
                // Answers received meanwhile may make room.
                self.serve(work.link, false);
                taken = self.take(work, inner);
            }
            match taken {
                Ok(()) => accepted += 1,
                Err(reason) => {
                    stop = Some(reason);
                    break;
                }
            }
        }
        if let Some(last) = last {
            self.flush_posted(last, claimed);
        }
        Posted { accepted, stop }
    }

    fn check_hello(bytes: &[u8]) -> Result<(), FabricError> {
        if bytes.len() > HELLO_BYTES_MAX { Err(FabricError::Limit("hello")) } else { Ok(()) }
    }

    /// Returns the link if the program may answer the peer's request for it.
    fn requested(&mut self, id: LinkId) -> Result<&mut TcpLink, FabricError> {
        let unknown = FabricError::Unknown("link");
        let slot = self.slots.get_mut(id.0 as usize).ok_or(FabricError::Unknown("link"))?;
        match &mut slot.state {
            LinkSlotState::Open(link) if matches!(link.phase, Phase::Requested) => Ok(link),
            LinkSlotState::Down { queue: None, .. } => Err(FabricError::PeerLost),
            _ => Err(unknown),
        }
    }

    fn accept(
        &mut self,
        id: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        Self::check_hello(reply)?;
        if matches!(self.requested(id), Err(FabricError::PeerLost)) {
            self.forget(id);
            self.desk.forget_events(id);
            return Err(FabricError::PeerLost);
        }
        self.requested(id)?;
        self.desk.join(receives)?;
        let link = self.requested(id)?;
        link.queue = Some(receives);
        link.accept(reply);
        self.flush(id, false);
        Ok(())
    }

    fn refuse(&mut self, id: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        Self::check_hello(reason)?;
        match self.requested(id) {
            Ok(link) => {
                link.say(FrameKind::Declined, 0, reason);
                self.flush(id, false);
            }
            Err(FabricError::PeerLost) => {}
            Err(unknown) => return Err(unknown),
        }
        self.forget(id);
        self.desk.forget_events(id);
        Ok(())
    }
}

impl Port for TcpPort {
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let inner = &self.fabric.inner;
        let claimed = self.shared.claimed.load(Ordering::Relaxed);
        count(&self.shared.posts, 1);
        self.shared.with_core(|core| {
            core.desk.bytes_moved = 0;
            let posted = core.post(work, inner, claimed);
            let calls = calls_of(core.desk.bytes_moved);
            if calls > 0 {
                count(&self.shared.posts, calls);
            }
            posted
        })
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        self.shared.with_core(|core| {
            for (accepted, receive) in receives.iter().enumerate() {
                if let Err(stop) = core.desk.post_receive(receive) {
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
            core.desk.bytes_moved = 0;
            core.uncork();
            if !core.desk.has_completions() {
                core.turn(claimed);
            }
            let calls = calls_of(core.desk.bytes_moved);
            if calls > 0 {
                count(&self.shared.polls, calls);
            }
            core.desk.take(out)
        });
        if !claimed {
            self.vain = if taken > 0 { 0 } else { self.vain + 1 };
            self.polls += 1;
            if self.vain > CLAIM_AFTER_VAIN || self.polls > CLAIM_AFTER {
                self.claim();
            }
        }
        taken
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        self.shared.with_core(|core| core.desk.take_events(out));
    }

    fn arm(&mut self) -> bool {
        let inner = &self.fabric.inner;
        (self.vain, self.polls) = (0, 0);
        self.shared.with_core(|core| {
            core.flush_deferred();
            inner.release(&self.shared);
            let more = core.has_more() && core.scan(false);
            let something = more || core.desk.has_something();
            core.desk.armed = !something;
            something
        })
    }

    fn disarm(&mut self) {
        self.shared.with_core(|core| core.desk.armed = false);
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.shared.waiter) as Arc<dyn Waiter>
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.shared.with_core(|core| core.desk.other_waiter = Some(waiter));
    }

    fn address(&self) -> Option<String> {
        self.fabric.inner.address(self.name.as_deref()?)
    }

    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        self.shared.with_core(|core| core.desk.create_queue(depth))
    }

    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        self.shared.with_core(|core| core.desk.destroy_queue(queue))
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        PortCore::check_hello(hello)?;
        let inner = &self.fabric.inner;
        let call = Box::new(Dial::new(to, hello, inner.local, &inner.options)?);
        let link = self.shared.with_core(|core| {
            core.desk.join(receives)?;
            let id = match core.add(Phase::Requested) {
                Ok(id) => id,
                Err(limit) => {
                    core.desk.leave(receives, LinkId(u32::MAX));
                    return Err(limit);
                }
            };
            if let Some(link) = core.link_mut(id) {
                link.queue = Some(receives);
            }
            core.call(id, call);
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
                LinkSlotState::Open(open) if open.is_up() => core.imports.import(link, token, most),
                LinkSlotState::Open(_) => Err(FabricError::Unknown("link")),
                LinkSlotState::Down { .. } | LinkSlotState::Closed => Err(FabricError::PeerLost),
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
            core.desk.forget_events(link);
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
                Some(LinkSlotState::Down { .. }) => "tcp: lost".to_owned(),
                Some(LinkSlotState::Closed) => "tcp: closed".to_owned(),
                None => "tcp: no such link".to_owned(),
            }
        })
    }

    fn trouble(&self, link: LinkId) -> Option<String> {
        self.shared.with_core(|core| core.slots.get(link.0 as usize)?.trouble.clone())
    }
}
