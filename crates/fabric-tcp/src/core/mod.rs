//! The state of a port behind its lock: its links and what they share. The thread that holds the lock,
//! the engine or a polling thread, serves the links.

mod dialing;
mod program;

use crate::failure::{self, ConnectionFailure};
use crate::imports::Imports;
use crate::link::{Phase, TcpLink, TimerVerdict};
use crate::options::{LINKS_MAX, TcpOptions};
use crate::queues::PortQueues;
use crate::region::{Regions, TcpRegion};
use crate::stream::LinkStream;
use farside_base::waiting::{POLLS_PER_SCAN, WARM_AFTER_ARRIVALS};
use farside_base::{CompletionStatus, LinkId, ReceiveQueueId, RegionId};
use farside_fabric::{FabricError, LinkEvent, Loss, ThreadWaiter, Waiter};
use rustix::event::epoll;
use rustix::fd::OwnedFd;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};

/// Events taken by one `epoll_wait`.
const EVENTS_MAX: usize = 16;

/// The events of one `epoll_wait`.
pub(crate) struct PolledEvents([epoll::Event; EVENTS_MAX]);

impl PolledEvents {
    pub(crate) fn new() -> Self {
        let (flags, data) = (epoll::EventFlags::empty(), epoll::EventData::new_u64(0));
        Self([epoll::Event { flags, data }; EVENTS_MAX])
    }

    /// Polls the epoll without waiting.
    pub(crate) fn poll(&mut self, epoll: &OwnedFd) -> &[epoll::Event] {
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        let found = epoll::wait(epoll, &mut self.0[..], Some(&now)).unwrap_or(0);
        &self.0[..found]
    }
}

/// The state that a port and the engine share.
pub(crate) struct PortShared {
    core: Mutex<PortCore>,
    /// All sockets of the port.
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) waiter: Arc<ThreadWaiter>,
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
        options: Arc<TcpOptions>,
        regions: Regions,
        number: u64,
    ) -> Result<Arc<Self>, FabricError> {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
            .map_err(|reason| FabricError::System("epoll", reason.into()))?;
        let epoll = Arc::new(epoll);
        Ok(Arc::new_cyclic(|shared: &Weak<Self>| {
            let core = PortCore::new(options, regions, Arc::clone(&epoll), Weak::clone(shared));
            let waiter = Arc::clone(&core.queues.waiter);
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

    /// Polls the warm link up to `polls` times, until something arrives or another thread wants the
    /// port: one system call fewer than asking the epoll first. Returns whether another poll must
    /// follow; `None` if nothing arrived.
    pub(crate) fn poll_warm(&self, polls: u32) -> Option<bool> {
        let wanted = || self.wanted.load(Ordering::Relaxed) > 0;
        let mut core = if wanted() { None } else { self.try_lock() }?;
        let mut came = None;
        for _ in 0..polls {
            // Claims change only under the lock.
            let free = !self.claimed.load(Ordering::Relaxed);
            came = if free { core.poll_warm() } else { None };
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
        let found = events.poll(&self.epoll);
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
        let wake = core.queues.take_wake();
        drop(core);
        if wake {
            self.waiter.wake();
        }
    }
}

/// An entry of the table of links.
pub(crate) struct LinkSlot {
    pub(crate) state: LinkSlotState,
    /// Why the link failed.
    pub(crate) trouble: Option<String>,
}

pub(crate) enum LinkSlotState {
    Open(Box<TcpLink>),
    /// Broken, and not closed by the program yet: the next request ends with `next`.
    Disconnected {
        next: CompletionStatus,
        queue: Option<ReceiveQueueId>,
    },
    /// Closed: every request is flushed.
    Closed,
}

pub(crate) struct PortCore {
    pub(crate) slots: Vec<LinkSlot>,
    pub(crate) queues: PortQueues,
    pub(crate) imports: Imports,
    pub(crate) options: Arc<TcpOptions>,
    pub(crate) epoll: Arc<OwnedFd>,
    pub(crate) shared: Weak<PortShared>,
    /// Links that are not closed.
    open: Vec<LinkId>,
    /// The link that received in the previous poll.
    hot: Option<LinkId>,
    /// The link that received last, and how many times in a row.
    warm: (LinkId, u32),
    /// Polls of the program.
    polls: u32,
    /// Links with delayed acknowledgements.
    deferred: Vec<LinkId>,
    /// A link whose posted requests are held back to be sent together: many are in flight, and a thread
    /// polls.
    corked: Option<LinkId>,
    /// Links with buffered bytes, for which no socket becomes readable.
    buffered: Vec<LinkId>,
}

impl PortCore {
    pub(crate) fn new(
        options: Arc<TcpOptions>,
        regions: Regions,
        epoll: Arc<OwnedFd>,
        shared: Weak<PortShared>,
    ) -> Self {
        Self {
            slots: Vec::new(),
            queues: PortQueues::new(regions),
            imports: Imports::default(),
            options,
            epoll,
            shared,
            open: Vec::new(),
            hot: None,
            warm: (LinkId(u32::MAX), 0),
            polls: 0,
            deferred: Vec::new(),
            corked: None,
            buffered: Vec::new(),
        }
    }

    pub(crate) fn link(&self, id: LinkId) -> Option<&TcpLink> {
        match &self.slots.get(id.0 as usize)?.state {
            LinkSlotState::Open(link) => Some(link),
            _ => None,
        }
    }

    pub(crate) fn link_mut(&mut self, id: LinkId) -> Option<&mut TcpLink> {
        match &mut self.slots.get_mut(id.0 as usize)?.state {
            LinkSlotState::Open(link) => Some(link),
            _ => None,
        }
    }

    /// Adds a link.
    pub(crate) fn add(&mut self, phase: Phase) -> Result<LinkId, FabricError> {
        if self.open.len() >= LINKS_MAX as usize {
            return Err(FabricError::Limit("links_max"));
        }
        let id = u32::try_from(self.slots.len()).map_err(|_| FabricError::Limit("link numbers"))?;
        let id = LinkId(id);
        let state = LinkSlotState::Open(Box::new(TcpLink::new(id, phase)));
        self.slots.push(LinkSlot { state, trouble: None });
        self.queues.add_link();
        self.open.push(id);
        Ok(id)
    }

    /// Adds the link of a peer that asks for this port, and reports it to the program. Gives the
    /// connection back if a limit is reached.
    pub(crate) fn request(
        &mut self,
        connection: LinkStream,
        host: IpAddr,
        (hello, early, lease_ms): (&[u8], &[u8], u32),
    ) -> Result<(), (LinkStream, &'static str)> {
        let of_host = |id: &&LinkId| self.link(**id).is_some_and(|link| link.host == Some(host));
        if self.open.iter().filter(of_host).count() >= self.options.limits.links_per_host_max {
            return Err((connection, "links_per_host_max"));
        }
        let Ok(id) = self.add(Phase::Requested) else {
            return Err((connection, "links_max"));
        };
        if let Some(link) = self.link_mut(id) {
            link.host = Some(host);
            link.peer_lease_ms = lease_ms;
            link.connection = Some(connection);
        }
        self.queues.push_event(LinkEvent::Requested { link: id, hello: hello.to_vec() });
        self.with_link(id, |link, queues| link.feed(early, queues));
        self.serve(id, false);
        Ok(())
    }

    /// Calls `act` on a link; if that fails, the link fails.
    pub(crate) fn with_link<T>(
        &mut self,
        id: LinkId,
        act: impl FnOnce(&mut TcpLink, &mut PortQueues) -> Result<T, ConnectionFailure>,
    ) -> Option<T> {
        let LinkSlotState::Open(link) = &mut self.slots.get_mut(id.0 as usize)?.state else {
            return None;
        };
        match act(link, &mut self.queues) {
            Ok(value) => Some(value),
            Err(failure) => {
                self.fail(id, &failure);
                None
            }
        }
    }

    /// Receives and sends all that is pending on a link.
    pub(crate) fn serve(&mut self, id: LinkId, defer: bool) {
        let advanced = self.with_link(id, |link, _| {
            let dialing = matches!(link.phase, Phase::Dialing(_));
            match &mut link.connection {
                None => Ok(false),
                Some(LinkStream::Stream(stream)) if dialing && !stream.is_ready() => {
                    if !stream.advance()? {
                        return Ok(false);
                    }
                    if stream.protect() == farside_bootstrap::Protect::Nothing
                        && let Some(connection) = &mut link.connection
                    {
                        connection.make_plain();
                    }
                    Ok(true)
                }
                Some(_) => Ok(true),
            }
        });
        if advanced == Some(true) {
            self.receive(id);
        }
        self.flush(id, defer);
    }

    fn receive(&mut self, id: LinkId) {
        let more = self.with_link(id, |link, queues| link.receive(queues));
        if more == Some(true) {
            self.buffered.push(id);
        }
    }

    /// Sends what may be sent on a link, and handles changes of its phase.
    pub(crate) fn flush(&mut self, id: LinkId, defer: bool) {
        let owes = self.with_link(id, |link, queues| {
            if matches!(link.phase, Phase::Dialing(_)) {
                return Ok(false);
            }
            link.flush(defer, queues)?;
            Ok(defer && link.owes_acknowledgement())
        });
        if owes == Some(true) {
            self.defer(id);
        }
        if self.link(id).is_some_and(TcpLink::is_rejected) {
            self.rejected(id);
        }
        self.watch(id);
    }

    fn defer(&mut self, id: LinkId) {
        if !self.deferred.contains(&id) {
            self.deferred.push(id);
        }
    }

    /// Sends `Ready` to peers that wait for receives that were posted meanwhile.
    pub(crate) fn run_hints(&mut self) {
        while let Some(waiting) = self.queues.hints.pop() {
            if let Some(link) = self.link_mut(waiting) {
                link.responder.receive_posted();
            }
            self.flush(waiting, false);
        }
    }

    /// Registers the link's interest in the epoll: readable, and writable if bytes wait for room.
    fn watch(&mut self, id: LinkId) {
        let is_watched = |link: &TcpLink| link.watched == Some(link.wants_write());
        if self.link(id).is_none_or(is_watched) {
            return;
        }
        let epoll = Arc::clone(&self.epoll);
        let Some(link) = self.link_mut(id) else {
            return;
        };
        let wants_write = link.wants_write();
        let Some(connection) = &link.connection else {
            return;
        };
        let mut flags = epoll::EventFlags::IN;
        if wants_write {
            flags |= epoll::EventFlags::OUT;
        }
        let data = epoll::EventData::new_u64(u64::from(id.0));
        let done = match link.watched {
            None => epoll::add(&*epoll, connection.socket(), data, flags),
            Some(_) => epoll::modify(&*epoll, connection.socket(), data, flags),
        };
        match done {
            Ok(()) => link.watched = Some(wants_write),
            Err(reason) => self.fail(id, &ConnectionFailure::Io(reason.into())),
        }
    }

    /// Sends a link's posted requests. If many are in flight, they may wait for more until the next
    /// poll of a thread that has claimed the port.
    pub(crate) fn flush_posted(&mut self, id: LinkId, claimed: bool) {
        let crowded = claimed && self.link(id).is_some_and(|link| link.requester.is_crowded());
        if self.corked != Some(id) {
            self.uncork();
        }
        if crowded {
            self.corked = Some(id);
        } else {
            self.corked = None;
            self.flush(id, false);
        }
    }

    /// Sends requests that were held back.
    pub(crate) fn uncork(&mut self) {
        if let Some(id) = self.corked.take() {
            self.flush(id, false);
        }
    }

    /// Sends delayed acknowledgements.
    pub(crate) fn flush_deferred(&mut self) {
        self.uncork();
        while let Some(id) = self.deferred.pop() {
            self.flush(id, false);
        }
    }

    /// Polls for the program: the link that received last, otherwise the epoll, which takes no socket
    /// lock that the kernel needs to deliver. With `defer`, acknowledgements of work that the program
    /// has something to do for wait for its reply, or for the next poll.
    pub(crate) fn poll(&mut self, claimed: bool) {
        self.polls = self.polls.wrapping_add(1);
        let all = self.polls.is_multiple_of(POLLS_PER_SCAN);
        if let Some(hot) = self.hot.take() {
            // All links are served every `POLLS_PER_SCAN` polls, however much one link receives.
            if self.poll_link(hot, claimed) && !all {
                return;
            }
        }
        self.flush_deferred();
        match self.warm().filter(|_| !all) {
            Some(warm) => {
                self.poll_link(warm, claimed);
            }
            None => {
                self.scan(claimed);
            }
        }
    }

    /// Receives on one link and returns whether anything arrived; only then can there be something new
    /// to send.
    fn poll_link(&mut self, id: LinkId, defer: bool) -> bool {
        self.queues.moved = false;
        if !self.link(id).is_some_and(TcpLink::is_connected) {
            self.serve(id, defer);
        } else {
            self.receive(id);
            let quiet = |link: &TcpLink| defer && link.only_acknowledges();
            if self.queues.moved && self.link(id).is_some_and(quiet) {
                self.defer(id);
            } else if self.queues.moved {
                self.flush(id, defer);
            }
        }
        if self.queues.moved {
            self.hot = Some(id);
        }
        self.queues.moved
    }

    /// Polls the warm link, for the engine; `None` without one.
    pub(crate) fn poll_warm(&mut self) -> Option<bool> {
        let warm = self.warm()?;
        Some(self.poll_link(warm, false))
    }

    /// Returns the only link that has received for a while, unless the epoll must report room to send:
    /// trying to receive takes one system call fewer.
    fn warm(&self) -> Option<LinkId> {
        let (id, streak) = self.warm;
        if streak < WARM_AFTER_ARRIVALS || self.has_more() {
            return None;
        }
        let link = self.link(id).filter(|link| !link.wants_write())?;
        link.connection.as_ref().is_some_and(LinkStream::is_plain).then_some(id)
    }

    /// Returns whether bytes are buffered for which no socket becomes readable, so that another poll
    /// must follow.
    pub(crate) fn has_more(&self) -> bool {
        !self.buffered.is_empty()
    }

    /// Serves every ready link. Returns whether another poll must follow.
    pub(crate) fn scan(&mut self, defer: bool) -> bool {
        for id in std::mem::take(&mut self.buffered) {
            self.serve(id, defer);
        }
        let epoll = Arc::clone(&self.epoll);
        self.serve_found(PolledEvents::new().poll(&epoll), defer);
        self.has_more()
    }

    /// Serves the links of these events.
    pub(crate) fn serve_found(&mut self, found: &[epoll::Event], defer: bool) {
        for event in found {
            let (id, flags) = (LinkId(event.data.u64() as u32), event.flags);
            if flags != epoll::EventFlags::IN
                && let Some(link) = self.link_mut(id)
            {
                link.has_room();
            }
            self.queues.moved = false;
            self.serve(id, defer);
            if self.queues.moved {
                self.hot = Some(id);
                let (last, streak) = self.warm;
                self.warm = (id, if last == id { streak.saturating_add(1) } else { 0 });
            }
        }
    }

    /// Removes a link without an event to the program.
    pub(crate) fn forget(&mut self, id: LinkId) {
        let Some(slot) = self.slots.get_mut(id.0 as usize) else {
            return;
        };
        let queue = match std::mem::replace(&mut slot.state, LinkSlotState::Closed) {
            LinkSlotState::Closed => return,
            LinkSlotState::Disconnected { queue, .. } => queue,
            LinkSlotState::Open(mut link) => {
                // Flush acknowledgements before the close, or the peer would count executed requests as
                // lost.
                if link.is_connected() && link.confirmed {
                    link.has_room();
                    let _ = link.flush(false, &mut self.queues);
                }
                link.incoming.end(&mut self.queues);
                link.requester.fail(id, CompletionStatus::Flushed, &mut self.queues);
                if let Some(connection) = &mut link.connection {
                    connection.end();
                }
                link.queue
            }
        };
        self.imports.forget(id);
        self.open.retain(|open| *open != id);
        if self.hot == Some(id) {
            self.hot = None;
        }
        if let Some(queue) = queue {
            self.queues.leave(queue, id);
        }
    }

    /// Handles a failure of a link: it goes down, or its dial tries the next address.
    pub(crate) fn fail(&mut self, id: LinkId, failure: &ConnectionFailure) {
        let Some(link) = self.link_mut(id) else {
            return;
        };
        let phase = std::mem::replace(&mut link.phase, Phase::Requested);
        match phase {
            Phase::Dialing(mut dial) => {
                dial.failed(failure);
                return self.dial(id, dial);
            }
            Phase::Asked(_) | Phase::Requested | Phase::Connected | Phase::Rejected(_) => {}
        }
        let refusal = link.refusal;
        let peer = link.connection.as_ref().and_then(|connection| connection.ends().1);
        let (loss, text) = match refusal {
            Some(status) => (Loss::Ended, failure::describe_refusal(status)),
            None => failure.describe(peer),
        };
        let first = refusal.unwrap_or(match loss {
            Loss::Ended => CompletionStatus::PeerLost,
            _ => CompletionStatus::Unreachable,
        });
        let queue = link.queue;
        let down = LinkSlotState::Disconnected { next: first, queue };
        let Some(slot) = self.slots.get_mut(id.0 as usize) else {
            return;
        };
        slot.trouble = Some(text);
        if let LinkSlotState::Open(mut link) = std::mem::replace(&mut slot.state, down) {
            link.incoming.end(&mut self.queues);
            let next = link.requester.fail(id, first, &mut self.queues);
            slot.state = LinkSlotState::Disconnected { next, queue };
            if let Some(connection) = &mut link.connection {
                connection.end();
            }
        }
        if let Some(queue) = queue {
            self.queues.stop_waiting(queue, id);
        }
        if refusal.is_none() {
            self.queues.push_event(LinkEvent::Lost { link: id, loss });
        }
    }

    /// Adds a registered region.
    pub(crate) fn add_region(&mut self, region: &TcpRegion) {
        self.queues.regions.insert(region.clone());
    }

    /// Removes a deregistered region: no request of a peer reaches it any more.
    pub(crate) fn end_region(&mut self, region: RegionId) {
        self.queues.regions.remove(region);
        for id in self.open_links() {
            let ended = self.with_link(id, |link, queues| {
                link.copy_direct_answer(Some(region));
                link.responder.end_region(region);
                if link.incoming.end_region(region, queues) {
                    link.responder.refuse(CompletionStatus::RemoteAccess);
                }
                Ok(link.responder.has_answers())
            });
            if ended == Some(true) {
                self.flush(id, false);
            }
        }
    }

    pub(crate) fn open_links(&self) -> Vec<LinkId> {
        self.open.clone()
    }

    /// Runs the timers of all links. With `late`, this process was delayed, so silence does not count
    /// against peers. Returns the time until the next tick is due.
    pub(crate) fn tick(&mut self, now: Instant, late: bool) -> Duration {
        self.flush_deferred();
        if late {
            self.scan(false);
        }
        let options = Arc::clone(&self.options);
        let mut next = options.tick();
        let mut at = 0;
        while let Some(id) = self.open.get(at).copied() {
            at += 1;
            let verdict = self.with_link(id, |link, _| link.tick(now, late, &options));
            if matches!(verdict, Some(TimerVerdict::Keepalive)) {
                if let Some(link) = self.link_mut(id) {
                    link.stage_keepalive();
                }
                self.flush(id, false);
            }
            next = self.link(id).map_or(next, |link| next.min(link.tick_every(&options)));
            let dials = self.link(id).is_some_and(|link| matches!(link.phase, Phase::Dialing(_)));
            if dials {
                self.serve(id, false);
            }
        }
        next
    }
}
