//! The end of a thread that has its requests issued by the proxies of sockets.

use super::client::{RemoteAddress, RemoteMemory};
use super::engine::SlotName;
use super::proxy::{
    PANICKED, ProxiedOutcome, ProxiedRequest, ProxyState, RUNS, RequesterConnection, RequesterState,
};
use super::request::Action;
use super::ring::{Consumer, Producer, SleepFlag, ring};
use crate::buffer::Buffer;
use crate::event_wait::EventWait;
use crate::topology::CpuSocket;
use crate::{Error, ErrorCode};
use farside_base::waiting::SPIN_MEMORY_POLLS;
use farside_fabric::{ThreadWaiter, Waiter};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A request of a [`SocketRequester`], by which its outcome is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ProxiedRequestId(SlotName);

/// The queues to and from a proxy.
struct ProxyRoute {
    proxy: Arc<ProxyState>,
    requests: Producer<ProxiedRequest>,
    outcomes: Consumer<ProxiedOutcome>,
    /// Requests that were not published yet.
    unpublished: bool,
    /// Its end was seen, and all requests have outcomes.
    is_over: bool,
}

enum ProxiedStage {
    Free,
    /// At the proxy of this route; whether repeating it could have another effect.
    Waiting {
        route: usize,
        is_atomic: bool,
    },
    Ended(Result<u64, Error>),
}

struct ProxiedSlot {
    generation: u32,
    stage: ProxiedStage,
    is_forgotten: bool,
}

/// A thread's requests on memory of all sockets, each issued by the proxy of the socket that serves the memory
/// ([`SocketClients::requester`](super::SocketClients::requester)).
///
/// One thread at a time uses it. A request is queued by its call; [`submit`](Self::submit) publishes those of each proxy
/// together, which issues them with one doorbell. At most [`SocketOptions::requests_max`](super::SocketOptions) have
/// outcomes that were not taken; one more is refused with `TooManyRequests`, and none is ever lost.
///
/// *Order, visibility, lost connections*: those of [`MemoryClient`](super::MemoryClient), for the requests of one requester
/// on one memory. *Cost*: two transfers of cache lines between the processors of the two sockets more than the request of
/// a client, and a wake-up of the proxy if it sleeps. A request allocates nothing.
pub struct SocketRequester {
    routes: Vec<ProxyRoute>,
    slots: Vec<ProxiedSlot>,
    free: Vec<u32>,
    state: Arc<RequesterState>,
    socket: Option<CpuSocket>,
}

impl SocketRequester {
    /// Joins the proxies. `socket` is where the thread is, and memory is placed.
    pub(super) fn new<'a>(
        proxies: impl Iterator<Item = &'a Arc<ProxyState>>,
        requests_max: u32,
        socket: Option<CpuSocket>,
    ) -> Self {
        let state = Arc::new(RequesterState {
            flag: SleepFlag::new(),
            waiter: ThreadWaiter::default(),
            is_gone: AtomicBool::new(false),
        });
        let route = |proxy: &Arc<ProxyState>| {
            let (requests, its_requests) = ring(requests_max as usize);
            let (its_outcomes, outcomes) = ring(requests_max as usize);
            proxy.join(RequesterConnection::new(its_requests, its_outcomes, Arc::clone(&state)));
            let (proxy, unpublished, is_over) = (Arc::clone(proxy), false, false);
            ProxyRoute { proxy, requests, outcomes, unpublished, is_over }
        };
        let routes = proxies.map(route).collect();
        let free =
            |_| ProxiedSlot { generation: 0, stage: ProxiedStage::Free, is_forgotten: false };
        Self {
            routes,
            slots: (0..requests_max).map(free).collect(),
            free: (0..requests_max).rev().collect(),
            state,
            socket,
        }
    }

    /// Registers memory for transfers to and from a memory, next to the socket of the requester.
    ///
    /// *Cost*: as [`MemoryClient::register_next_to`](super::MemoryClient::register_next_to).
    ///
    /// # Errors
    /// As there; `BadForm` for a memory of other clients.
    pub fn register(&self, memory: RemoteMemory, bytes: u64) -> Result<Buffer, Error> {
        let fabric = &self.routes[self.route(memory)?].proxy.fabric;
        match &self.socket {
            Some(socket) => Buffer::next_to(socket, fabric, bytes),
            None => Buffer::new(fabric, bytes),
        }
    }

    /// Reads remote bytes into a part of a buffer.
    ///
    /// # Errors
    /// `BadForm` for a memory of other clients; `TooManyRequests`; `PeerLost` if the proxy has ended. What else is wrong
    /// with a request, as [`MemoryClient::read`](super::MemoryClient::read) lists it, is its outcome.
    pub fn read(
        &mut self,
        from: RemoteAddress,
        into: &Buffer,
        range: Range<u64>,
    ) -> Result<ProxiedRequestId, Error> {
        let bytes = range.end.saturating_sub(range.start);
        self.request(from, Action::Read, bytes, Some((into.clone(), range.start)))
    }

    /// Writes a part of a buffer to remote bytes. The part must stay unchanged until the request ends.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(
        &mut self,
        to: RemoteAddress,
        from: &Buffer,
        range: Range<u64>,
    ) -> Result<ProxiedRequestId, Error> {
        let bytes = range.end.saturating_sub(range.start);
        self.request(to, Action::Write, bytes, Some((from.clone(), range.start)))
    }

    /// Adds to a word of 8 bytes, wrapping; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn fetch_add(&mut self, at: RemoteAddress, add: u64) -> Result<ProxiedRequestId, Error> {
        self.request(at, Action::FetchAdd(add), 8, None)
    }

    /// Replaces a word of 8 bytes if it is `expected`; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn compare_swap(
        &mut self,
        at: RemoteAddress,
        expected: u64,
        new: u64,
    ) -> Result<ProxiedRequestId, Error> {
        self.request(at, Action::CompareSwap { expected, new }, 8, None)
    }

    /// Reads a word of 8 bytes, whole; the outcome is its value.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_word(&mut self, at: RemoteAddress) -> Result<ProxiedRequestId, Error> {
        self.request(at, Action::ReadWord, 8, None)
    }

    fn route(&self, memory: RemoteMemory) -> Result<usize, Error> {
        let route = self.routes.iter().position(|route| memory.is_of(route.proxy.client));
        let text = "the memory was opened by other clients";
        route.ok_or_else(|| Error::with(ErrorCode::BadForm, text))
    }

    fn request(
        &mut self,
        at: RemoteAddress,
        action: Action,
        bytes: u64,
        local: Option<(Buffer, u64)>,
    ) -> Result<ProxiedRequestId, Error> {
        let number = self.route(at.memory())?;
        let route = &mut self.routes[number];
        if route.proxy.end() != RUNS {
            return Err(route.proxy.gone());
        }
        let too_many = || {
            let text = format!("SocketOptions::requests_max is {}", self.slots.len());
            Error::with(ErrorCode::TooManyRequests, text)
        };
        let slot = self.free.pop().ok_or_else(too_many)?;
        let request = ProxiedRequest { slot, at, action, bytes, local };
        if route.requests.push(request).is_err() {
            self.free.push(slot);
            return Err(too_many());
        }
        route.unpublished = true;
        let entry = &mut self.slots[slot as usize];
        entry.stage = ProxiedStage::Waiting { route: number, is_atomic: action.is_atomic() };
        entry.is_forgotten = false;
        Ok(ProxiedRequestId(SlotName { slot, generation: entry.generation }))
    }

    /// Publishes the queued requests: those of each proxy together.
    ///
    /// Never blocks. *Cost*: a store, and a wake-up of each proxy that sleeps.
    pub fn submit(&mut self) {
        for route in &mut self.routes {
            if std::mem::take(&mut route.unpublished) {
                route.requests.publish();
                route.proxy.wake();
            }
        }
    }

    /// Takes the outcome of a request, if it has ended: the previous value of an atomic, the value of a word, else zero.
    /// Never blocks.
    ///
    /// # Errors
    /// As [`MemoryClient::read`](super::MemoryClient::read) for a request that is wrong, and as
    /// [`MemoryClient::take`](super::MemoryClient::take); also `PeerLost` if the proxy has ended, and `Indeterminate` for an
    /// atomic of which it is unknown whether the proxy has issued it.
    pub fn take(&mut self, request: ProxiedRequestId) -> Result<Option<u64>, Error> {
        self.collect();
        let entry = self.slot(request)?;
        let ended = matches!(entry.stage, ProxiedStage::Ended(_));
        match std::mem::replace(&mut entry.stage, ProxiedStage::Free) {
            ProxiedStage::Ended(outcome) if ended => {
                self.free_slot(request.0.slot);
                outcome.map(Some)
            }
            stage => {
                entry.stage = stage;
                Ok(None)
            }
        }
    }

    /// Submits, waits for the end of a request and takes its outcome.
    ///
    /// *Blocks*: spins at first, then sleeps. After `TimedOut` the request is still in flight: wait again, or
    /// [`forget`](Self::forget) it.
    ///
    /// # Errors
    /// As [`take`](Self::take); `TimedOut`.
    pub fn wait(&mut self, request: ProxiedRequestId, timeout: Duration) -> Result<u64, Error> {
        self.submit();
        let mut wait = EventWait::new(timeout, SPIN_MEMORY_POLLS);
        loop {
            if let Some(value) = self.take(request)? {
                return Ok(value);
            }
            if let Some(left) = wait.spin()? {
                self.sleep(left);
            }
        }
    }

    /// Discards the outcome of a request, now or when it ends. It is not cancelled.
    pub fn forget(&mut self, request: ProxiedRequestId) {
        if let Ok(entry) = self.slot(request) {
            entry.is_forgotten = true;
            if matches!(entry.stage, ProxiedStage::Ended(_)) {
                self.free_slot(request.0.slot);
            }
        }
    }

    fn slot(&mut self, request: ProxiedRequestId) -> Result<&mut ProxiedSlot, Error> {
        let slot = self.slots.get_mut(request.0.slot as usize);
        let is_it = |slot: &&mut ProxiedSlot| {
            slot.generation == request.0.generation && !matches!(slot.stage, ProxiedStage::Free)
        };
        let text = "the outcome of the request was taken before, or it is one of another requester";
        slot.filter(is_it).ok_or_else(|| Error::with(ErrorCode::BadForm, text))
    }

    fn free_slot(&mut self, number: u32) {
        let entry = &mut self.slots[number as usize];
        entry.stage = ProxiedStage::Free;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(number);
    }

    /// Takes outcomes from the rings; after the end of a proxy all its requests have one.
    fn collect(&mut self) {
        for number in 0..self.routes.len() {
            let route = &mut self.routes[number];
            if route.is_over {
                continue;
            }
            // Before the ring: what it answered is published before its end.
            let end = route.proxy.end();
            while let Some(ProxiedOutcome { slot, outcome }) = self.routes[number].outcomes.pop() {
                self.end_request(slot, outcome);
            }
            if end != RUNS {
                self.end_route(number, end);
            }
        }
    }

    fn end_route(&mut self, number: usize, end: u8) {
        self.routes[number].is_over = true;
        for slot in 0..self.slots.len() as u32 {
            let ProxiedStage::Waiting { route, is_atomic } = self.slots[slot as usize].stage else {
                continue;
            };
            if route == number {
                let mut error = self.routes[number].proxy.gone();
                if end == PANICKED && is_atomic {
                    error.code = ErrorCode::Indeterminate;
                }
                self.end_request(slot, Err(error));
            }
        }
    }

    fn end_request(&mut self, slot: u32, outcome: Result<u64, Error>) {
        match self.slots[slot as usize].is_forgotten {
            true => self.free_slot(slot),
            false => self.slots[slot as usize].stage = ProxiedStage::Ended(outcome),
        }
    }

    /// Sleeps until a proxy publishes outcomes or ends.
    fn sleep(&mut self, timeout: Duration) {
        self.state.flag.announce();
        let has_news = |route: &mut ProxyRoute| {
            !route.is_over && (route.proxy.end() != RUNS || !route.outcomes.is_empty())
        };
        if !self.routes.iter_mut().any(has_news) {
            self.state.waiter.wait(Some(timeout));
        }
        self.state.flag.awake();
    }
}

impl fmt::Debug for SocketRequester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketRequester({} proxies)", self.routes.len())
    }
}

impl Drop for SocketRequester {
    fn drop(&mut self) {
        self.state.is_gone.store(true, Ordering::Release);
        for route in &self.routes {
            route.proxy.wake();
        }
    }
}
