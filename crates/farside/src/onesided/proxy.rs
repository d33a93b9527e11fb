//! The proxy of a socket: a thread that is bound to the socket, owns its client, and issues the requests of threads of all
//! sockets (the proxy socket of paper 000, section III-D).
//!
//! A requester and a proxy share two [rings](super::ring), one of requests and one of outcomes. Neither is ever full by
//! more than the requester's own requests, so that nothing is lost and no thread waits for space.

use super::client::{MemoryClient, RemoteAddress, RemoteMemory};
use super::request::Action;
use super::ring::{Consumer, Producer, SleepFlag};
use crate::buffer::Buffer;
use crate::event_wait::EventWait;
use crate::mutex::locked;
use crate::port_wait::Waits;
use crate::{Error, ErrorCode};
use farside_base::waiting::{POLL_INTERVAL, SPIN_ENGINE_POLLS};
use farside_fabric::{Fabric, ThreadWaiter, Waiter};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The proxy runs, has answered everything and ended, or has panicked.
pub(super) const RUNS: u8 = 0;
const ENDED: u8 = 1;
pub(super) const PANICKED: u8 = 2;

/// Longer than any wait: the spin of a proxy has no deadline.
const FOREVER: Duration = Duration::from_secs(1 << 30);

/// A request on its way to a proxy.
pub(super) struct ProxiedRequest {
    /// Of the requester.
    pub(super) slot: u32,
    pub(super) at: RemoteAddress,
    pub(super) action: Action,
    pub(super) bytes: u64,
    pub(super) local: Option<(Buffer, u64)>,
}

/// An outcome on its way to the requester.
pub(super) struct ProxiedOutcome {
    pub(super) slot: u32,
    pub(super) outcome: Result<u64, Error>,
}

/// What a requester shares with all proxies.
pub(super) struct RequesterState {
    pub(super) flag: SleepFlag,
    pub(super) waiter: ThreadWaiter,
    /// It takes no more outcomes, and sends no more requests.
    pub(super) is_gone: AtomicBool,
}

/// A requester, as a proxy sees it.
pub(super) struct RequesterConnection {
    pub(super) requests: Consumer<ProxiedRequest>,
    pub(super) outcomes: Producer<ProxiedOutcome>,
    pub(super) requester: Arc<RequesterState>,
    /// A request for which the client had no slot.
    stalled: Option<ProxiedRequest>,
    in_flight: usize,
    /// Outcomes were not published yet.
    has_outcomes: bool,
}

impl RequesterConnection {
    pub(super) fn new(
        requests: Consumer<ProxiedRequest>,
        outcomes: Producer<ProxiedOutcome>,
        requester: Arc<RequesterState>,
    ) -> Self {
        Self { requests, outcomes, requester, stalled: None, in_flight: 0, has_outcomes: false }
    }

    fn answer(&mut self, slot: u32, outcome: Result<u64, Error>) {
        // The ring has space for as many as the requester has slots; one that is gone needs none.
        let _ = self.outcomes.push(ProxiedOutcome { slot, outcome });
        self.has_outcomes = true;
    }

    fn is_over(&mut self) -> bool {
        // In this order: it sends nothing after that.
        self.requester.is_gone.load(Ordering::Acquire)
            && self.in_flight == 0
            && self.stalled.is_none()
            && self.requests.is_empty()
    }
}

/// What a proxy has done.
#[derive(Default)]
pub(super) struct ProxyCounters {
    pub(super) requests: AtomicU64,
    pub(super) doorbells: AtomicU64,
    pub(super) work_requests: AtomicU64,
    pub(super) wake_ups: AtomicU64,
}

/// What a proxy shares with its requesters.
pub(super) struct ProxyState {
    pub(super) socket: u16,
    /// The number of its client, by which its memories are known.
    pub(super) client: u64,
    pub(super) fabric: Arc<dyn Fabric>,
    pub(super) counters: ProxyCounters,
    flag: SleepFlag,
    waiter: Arc<dyn Waiter>,
    joining: Mutex<Vec<RequesterConnection>>,
    has_joining: AtomicBool,
    ends: AtomicBool,
    end: AtomicU8,
}

impl ProxyState {
    pub(super) fn new(client: &mut MemoryClient, fabric: &Arc<dyn Fabric>, socket: u16) -> Self {
        Self {
            socket,
            client: client.number(),
            fabric: Arc::clone(fabric),
            counters: ProxyCounters::default(),
            flag: SleepFlag::new(),
            waiter: client.port().waiter(),
            joining: Mutex::default(),
            has_joining: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            end: AtomicU8::new(RUNS),
        }
    }

    /// Adds a requester.
    pub(super) fn join(&self, connection: RequesterConnection) {
        locked(&self.joining).push(connection);
        self.has_joining.store(true, Ordering::Release);
        self.wake();
    }

    /// Ends the proxy soon.
    pub(super) fn stop(&self) {
        self.ends.store(true, Ordering::SeqCst);
        self.waiter.wake();
    }

    /// Wakes the proxy if it sleeps, after something was published for it.
    pub(super) fn wake(&self) {
        if self.flag.must_wake() {
            self.waiter.wake();
        }
    }

    /// Whether and how it has ended. What it answered before is published.
    pub(super) fn end(&self) -> u8 {
        self.end.load(Ordering::Acquire)
    }

    /// The error of requests that a proxy which has ended did not issue.
    pub(super) fn gone(&self) -> Error {
        let text = format!("the proxy of socket {} has ended", self.socket);
        Error::with(ErrorCode::PeerLost, text)
    }
}

/// The thread of a proxy.
pub(super) struct Proxy {
    client: MemoryClient,
    memories: Vec<RemoteMemory>,
    state: Arc<ProxyState>,
    connections: Vec<Option<RequesterConnection>>,
    /// The connection that is served first in the next poll.
    first: usize,
    /// By slot of the client: the connection, and the slot of its requester.
    owners: Vec<Option<(usize, u32)>>,
}

impl Proxy {
    pub(super) fn new(
        client: MemoryClient,
        memories: Vec<RemoteMemory>,
        state: Arc<ProxyState>,
        requests_max: u32,
    ) -> Self {
        let owners = vec![None; requests_max as usize];
        Self { client, memories, state, connections: Vec::new(), first: 0, owners }
    }

    pub(super) fn run(mut self) {
        let mut wait = EventWait::new(FOREVER, SPIN_ENGINE_POLLS);
        while !self.state.ends.load(Ordering::SeqCst) {
            if self.poll() {
                wait = EventWait::new(FOREVER, SPIN_ENGINE_POLLS);
            } else if !matches!(wait.spin(), Ok(None)) {
                self.sleep();
            }
        }
        self.end();
    }

    /// Issues what the requesters have published with one doorbell, and answers what has ended; returns whether there was
    /// work.
    fn poll(&mut self) -> bool {
        self.admit();
        let taken = self.take_requests();
        if taken > 0 {
            self.client.submit();
        }
        let progressed = self.client.progress();
        let answered = self.answer();
        let worked = taken > 0 || progressed || answered;
        if worked {
            self.count(taken);
            self.publish();
        }
        worked
    }

    fn admit(&mut self) {
        if !self.state.has_joining.swap(false, Ordering::Acquire) {
            return;
        }
        for connection in std::mem::take(&mut *locked(&self.state.joining)) {
            match self.connections.iter_mut().find(|entry| entry.is_none()) {
                Some(entry) => *entry = Some(connection),
                None => self.connections.push(Some(connection)),
            }
        }
    }

    /// Queues the requests at the client; returns how many were taken from the rings.
    fn take_requests(&mut self) -> u64 {
        let (mut taken, count) = (0, self.connections.len());
        self.first = self.first.wrapping_add(1);
        for at in 0..count {
            let index = self.first.wrapping_add(at) % count;
            let Some(connection) = &mut self.connections[index] else { continue };
            let mut next = connection.stalled.take();
            while let Some(request) = next.or_else(|| connection.requests.pop()) {
                taken += 1;
                if let Some(stalled) =
                    issue(&mut self.client, &mut self.owners, (index, connection), request)
                {
                    taken -= 1;
                    connection.stalled = Some(stalled);
                    break;
                }
                next = None;
            }
            if connection.is_over() {
                self.connections[index] = None;
            }
        }
        taken
    }

    /// Answers the requests that have ended; returns whether there were any.
    fn answer(&mut self) -> bool {
        let mut answered = false;
        while let Some((request, outcome)) = self.client.take_next() {
            let owner = self.owners.get_mut(request.0.slot as usize).and_then(Option::take);
            if let Some((index, slot)) = owner
                && let Some(connection) = &mut self.connections[index]
            {
                connection.in_flight -= 1;
                connection.answer(slot, outcome);
            }
            answered = true;
        }
        answered
    }

    fn publish(&mut self) {
        for connection in self.connections.iter_mut().flatten() {
            if std::mem::take(&mut connection.has_outcomes) {
                connection.outcomes.publish();
                if connection.requester.flag.must_wake() {
                    connection.requester.waiter.wake();
                }
            }
        }
    }

    fn count(&self, taken: u64) {
        let (counters, stats) = (&self.state.counters, self.client.stats());
        counters.requests.fetch_add(taken, Ordering::Relaxed);
        counters.doorbells.store(stats.doorbells, Ordering::Relaxed);
        counters.work_requests.store(stats.work_requests, Ordering::Relaxed);
    }

    /// Sleeps until a requester publishes, a request completes, or a connection is to be established again.
    fn sleep(&mut self) {
        self.state.flag.announce();
        let nap_max = (!self.client.is_quiet()).then_some(POLL_INTERVAL);
        let has_requests = |connection: &mut RequesterConnection| {
            connection.stalled.is_none() && !connection.requests.is_empty()
        };
        let has_work = self.state.has_joining.load(Ordering::Acquire)
            || self.state.ends.load(Ordering::SeqCst)
            || self.connections.iter_mut().flatten().any(has_requests);
        let port = self.client.port();
        if !has_work && !port.arm() {
            self.state.waiter.wait(nap_max);
            self.state.counters.wake_ups.fetch_add(1, Ordering::Relaxed);
        }
        port.disarm();
        self.state.flag.awake();
    }

    /// Ends what is in flight as the end of a client does, and refuses the rest.
    fn end(mut self) {
        self.admit();
        for memory in std::mem::take(&mut self.memories) {
            // It is of this client.
            let _ = self.client.close(memory);
        }
        self.answer();
        for connection in self.connections.iter_mut().flatten() {
            while let Some(request) =
                connection.stalled.take().or_else(|| connection.requests.pop())
            {
                connection.answer(request.slot, Err(self.state.gone()));
            }
        }
        self.publish();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let end = if std::thread::panicking() { PANICKED } else { ENDED };
        self.state.end.store(end, Ordering::Release);
        let joining = std::mem::take(&mut *locked(&self.state.joining));
        for connection in self.connections.iter().flatten().chain(&joining) {
            connection.requester.waiter.wake();
        }
    }
}

/// Queues a request at the client, or answers it if it is wrong; gives it back if the client has no slot.
fn issue(
    client: &mut MemoryClient,
    owners: &mut [Option<(usize, u32)>],
    (index, connection): (usize, &mut RequesterConnection),
    request: ProxiedRequest,
) -> Option<ProxiedRequest> {
    let ProxiedRequest { slot, at, action, bytes, local } = &request;
    let checked = local.as_ref().map_or(Ok(()), |(buffer, _)| client.of_this_fabric(buffer));
    let local = local.as_ref().map(|(buffer, offset)| (buffer, *offset));
    match checked.and_then(|()| client.request(*at, *action, *bytes, local)) {
        Ok(id) => {
            owners[id.0.slot as usize] = Some((index, *slot));
            connection.in_flight += 1;
        }
        Err(error) if error.code == ErrorCode::TooManyRequests => return Some(request),
        Err(error) => connection.answer(*slot, Err(error)),
    }
    None
}
