//! The engine thread of a fabric: accepts connections, serves ports that no thread polls, and runs the
//! timers of all links.

use crate::core::PortShared;
use crate::options::{LEASE_MIN, TcpOptions, capabilities, peer_lease, tick_of};
use crate::pending::{PendingLink, PendingProgress};
use crate::region::{RegionRegistry, TcpRegion};
use crate::socket::{reachable, set_options};
use crate::stream::LinkStream;
use crate::wire::FrameKind;
use farside_base::waiting::{CLAIM_CALLS_MIN, CLAIM_CHECK, POLLS_PER_EPOLL};
use farside_base::{Capabilities, RegionId};
use farside_bootstrap::{Address, Admission, BootstrapError, Endpoint, HandshakeLimits, Stream};
use farside_fabric::{FabricError, PendingConnection, PortSpec, Region};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Bytes that a pending connection may send before it is authenticated.
const HANDSHAKE_BYTES: usize = 64 << 10;
/// How long accepting pauses after the system ran out of descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a rejected connection may take to close.
const REJECTED_TIME_MAX: Duration = Duration::from_secs(1);

/// Tokens of the epoll: the kind in the upper bits, a number below.
const PORT: u64 = 0;
const PENDING: u64 = 1 << 62;
const LISTENER: u64 = 2 << 62;
const WAKE: u64 = 3 << 62;
const KIND: u64 = 3 << 62;

/// The state that the fabric, its ports and the engine share.
pub(crate) struct Inner {
    pub(crate) options: Arc<TcpOptions>,
    pub(crate) capabilities: Capabilities,
    pub(crate) local: Option<SocketAddr>,
    /// The resolved address at which peers reach the fabric.
    pub(crate) host: Option<SocketAddr>,
    /// Which peers may connect.
    pub(crate) admission: Admission,
    pub(crate) incarnation: u64,
    registry: Mutex<Registry>,
    epoll: OwnedFd,
    wake: OwnedFd,
    listener: Option<TcpListener>,
    /// Number of ports claimed by threads.
    claims: AtomicU32,
    stop: AtomicBool,
    /// A port has dialled since the engine last woke up.
    dials: AtomicBool,
}

#[derive(Default)]
struct Registry {
    regions: RegionRegistry,
    ports: HashMap<u64, Arc<PortShared>>,
    names: HashMap<String, u64>,
    ports_made: u64,
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> FabricError {
    move |reason| FabricError::System(what, reason.into())
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // If this failed, creating keys would have failed before.
    let _ = getrandom(&mut bytes, GetRandomFlags::empty());
    u64::from_ne_bytes(bytes)
}

impl Inner {
    pub(crate) fn new(options: TcpOptions) -> Result<Self, FabricError> {
        let listener = options.listen.as_ref().map(listen).transpose()?;
        let local = listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let host = match (&options.advertise, local) {
            (Some(endpoint), Some(_)) => {
                let found = endpoint.resolve();
                found.map_err(|e| FabricError::System("advertised host", e))?.first().copied()
            }
            (_, local) => local.map(reachable),
        };
        // A fabric that does not listen accepts no peer.
        let admission = match local {
            Some(local) => Admission::of(&options.security, local)?,
            None => Admission::Identity,
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(system("eventfd"))?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)
            .map_err(system("epoll"))?;
        if let Some(listener) = &listener {
            epoll::add(&epoll, listener, EventData::new_u64(LISTENER), EventFlags::IN)
                .map_err(system("epoll"))?;
        }
        Ok(Self {
            capabilities: capabilities(&options.security),
            options: Arc::new(options),
            local,
            host,
            admission,
            incarnation: random(),
            registry: Mutex::default(),
            epoll,
            wake,
            listener,
            claims: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            dials: AtomicBool::new(false),
        })
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address by which peers dial the port `name`.
    pub(crate) fn address(&self, name: &str) -> Option<String> {
        let endpoint = match &self.options.advertise {
            Some(endpoint) => endpoint.clone(),
            None => Endpoint::from(reachable(self.local?)),
        };
        Some(Address { endpoint, name: name.to_owned() }.to_string())
    }

    pub(crate) fn open(&self, spec: &PortSpec) -> Result<Arc<PortShared>, FabricError> {
        let mut registry = self.registry();
        if let Some(name) = &spec.listen {
            Address::check_name(name).map_err(|_| FabricError::Unknown("name"))?;
            if self.local.is_none() {
                return Err(FabricError::Lacks("listening address"));
            }
            if registry.names.contains_key(name) {
                return Err(FabricError::AddressInUse(name.clone()));
            }
        }
        let number = registry.ports_made;
        registry.ports_made += 1;
        let shared =
            PortShared::new(Arc::clone(&self.options), registry.regions.regions.clone(), number)?;
        epoll::add(&self.epoll, &*shared.epoll, EventData::new_u64(PORT | number), EventFlags::IN)
            .map_err(system("epoll"))?;
        registry.ports.insert(number, Arc::clone(&shared));
        registry.names.extend(spec.listen.clone().map(|name| (name, number)));
        Ok(shared)
    }

    /// Removes a port from the registry.
    pub(crate) fn close(&self, shared: &PortShared, name: Option<&str>) {
        let mut registry = self.registry();
        registry.ports.remove(&shared.number);
        if let Some(name) = name {
            registry.names.remove(name);
        }
        drop(registry);
        shared.with_core(|_| self.release(shared));
        let _ = epoll::delete(&self.epoll, &*shared.epoll);
    }

    /// Claims a port for a thread. Called under the core's lock.
    pub(crate) fn claim(&self, shared: &PortShared) {
        if !shared.claimed.swap(true, Ordering::Relaxed) {
            shared.polls.store(CLAIM_CALLS_MIN, Ordering::Relaxed);
            let _ = epoll::delete(&self.epoll, &*shared.epoll);
            self.claims.fetch_add(1, Ordering::Relaxed);
            self.wake();
        }
    }

    /// Returns a port to the engine, which then checks for arrivals. Called under the core's lock.
    pub(crate) fn release(&self, shared: &PortShared) {
        if shared.claimed.swap(false, Ordering::Relaxed) {
            let data = EventData::new_u64(PORT | shared.number);
            let _ = epoll::add(&self.epoll, &*shared.epoll, data, EventFlags::IN);
            self.claims.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn add_region(
        &self,
        add: impl FnOnce(&mut RegionRegistry) -> Result<(TcpRegion, Region), FabricError>,
    ) -> Result<Region, FabricError> {
        let mut registry = self.registry();
        let (registered, region) = add(&mut registry.regions)?;
        for port in registry.ports.values() {
            port.with_core(|core| core.add_region(&registered));
        }
        Ok(region)
    }

    pub(crate) fn end_region(&self, region: RegionId) -> Result<(), FabricError> {
        let mut registry = self.registry();
        registry.regions.remove(region)?;
        for port in registry.ports.values() {
            port.with_core(|core| core.end_region(region));
        }
        Ok(())
    }

    /// Wakes the engine for a dial: the peer's lease may be shorter than the time between two ticks.
    pub(crate) fn wake_for_dial(&self) {
        self.dials.store(true, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
    }
}

fn listen(endpoint: &Endpoint) -> Result<TcpListener, FabricError> {
    let failed = |reason: io::Error| match reason.kind() {
        io::ErrorKind::AddrInUse => FabricError::AddressInUse(endpoint.to_string()),
        io::ErrorKind::AddrNotAvailable => {
            let what = format!("no address of this host: {endpoint}");
            FabricError::System("listen", io::Error::new(reason.kind(), what))
        }
        kind => {
            let what = format!("{endpoint}: {reason}");
            FabricError::System("listen", io::Error::new(kind, what))
        }
    };
    let addresses = endpoint.resolve().map_err(failed)?;
    let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Stops the engine when the fabric and all its ports are dropped.
pub(crate) struct EngineHandle {
    pub(crate) inner: Arc<Inner>,
    engine: Option<JoinHandle<()>>,
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        self.inner.stop();
        if let Some(engine) = self.engine.take() {
            let _ = engine.join();
        }
    }
}

impl EngineHandle {
    /// Starts the engine's thread.
    pub(crate) fn start(inner: Arc<Inner>) -> Result<Self, FabricError> {
        let shared = Arc::clone(&inner);
        let run = move || EngineThread::new(shared).run();
        let thread = std::thread::Builder::new().name("farside-tcp".to_owned()).spawn(run);
        let engine = thread.map_err(|reason| FabricError::System("thread", reason))?;
        Ok(Self { inner, engine: Some(engine) })
    }
}

struct EngineThread {
    inner: Arc<Inner>,
    pending: Vec<Option<PendingLink>>,
    /// Ports with buffered bytes, for which no socket becomes readable.
    more: Vec<u64>,
    /// A reused list, so that no tick allocates.
    ports: Vec<Arc<PortShared>>,
    /// Until when accepting is paused.
    paused: Option<Instant>,
    ticked: Instant,
    /// When claimed ports were last checked.
    checked: Instant,
    /// The port that was served last.
    last: Option<Arc<PortShared>>,
    /// The interval of ticks: the shortest that a link needs.
    tick_every: Duration,
}

impl EngineThread {
    fn new(inner: Arc<Inner>) -> Self {
        let (pending, ports, more) = (Vec::new(), Vec::new(), Vec::new());
        let now = Instant::now();
        let tick_every = inner.options.tick();
        Self {
            inner,
            pending,
            more,
            ports,
            paused: None,
            ticked: now,
            checked: now,
            last: None,
            tick_every,
        }
    }

    fn run(mut self) {
        let blank = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [blank; 64];
        let spin = self.inner.options.spin;
        let mut spins_until: Option<Instant> = None;
        let mut probes = 0_u32;
        while !self.inner.stop.load(Ordering::Acquire) {
            probes = probes.wrapping_add(1);
            let mut served = spins_until.is_some() && self.poll_last();
            if !served && (spins_until.is_none() || probes.is_multiple_of(POLLS_PER_EPOLL)) {
                let awake = spins_until.is_some() || !self.more.is_empty();
                let timeout = if awake { Duration::ZERO } else { self.sleep() };
                let timeout = rustix::time::Timespec::try_from(timeout).unwrap_or_default();
                let found = epoll::wait(&self.inner.epoll, &mut events[..], Some(&timeout));
                for event in &events[..found.unwrap_or(0)] {
                    served |= self.serve(event.data.u64());
                }
            }
            for port in std::mem::take(&mut self.more) {
                served |= self.serve(PORT | port);
            }
            let now = Instant::now();
            if served {
                spins_until = Some(now + spin);
            } else if spins_until.is_some_and(|until| now >= until) {
                (spins_until, self.last) = (None, None);
            }
            if now.saturating_duration_since(self.checked) >= CLAIM_CHECK {
                self.check_claims(now);
            }
            if now.saturating_duration_since(self.ticked) >= self.tick_every {
                self.tick(now);
            }
        }
    }

    /// Serves the port that was served last, if something arrived for it.
    fn poll_last(&mut self) -> bool {
        let free = |port: &&Arc<PortShared>| !port.claimed.load(Ordering::Relaxed);
        let Some(port) = self.last.as_ref().filter(free) else {
            return false;
        };
        let more = port.poll_warm(POLLS_PER_EPOLL).or_else(|| port.serve_found());
        if more == Some(true) {
            self.more.push(port.number);
        }
        more.is_some()
    }

    /// Returns how long the engine may sleep.
    fn sleep(&self) -> Duration {
        if self.inner.claims.load(Ordering::Relaxed) > 0 {
            return CLAIM_CHECK;
        }
        let next = self.ticked + self.tick_every;
        next.saturating_duration_since(Instant::now()).max(Duration::from_micros(100))
    }

    /// Handles an event by its token. Returns whether it was a port's, for which more may follow soon.
    fn serve(&mut self, token: u64) -> bool {
        let number = token & !KIND;
        match token & KIND {
            WAKE => {
                let mut count = [0; 8];
                let _ = rustix::io::read(&self.inner.wake, &mut count);
                self.checked = Instant::now();
                if self.inner.dials.swap(false, Ordering::AcqRel) {
                    self.tick_every = self.tick_every.min(LEASE_MIN);
                }
                false
            }
            LISTENER => {
                self.accept();
                false
            }
            PENDING => {
                self.advance_pending(number as usize);
                false
            }
            _ => {
                let port = self.inner.registry().ports.get(&number).cloned();
                let Some(port) = port else {
                    return false;
                };
                if port.with_core(|core| core.scan(false)) {
                    self.more.push(number);
                }
                self.last = Some(port);
                true
            }
        }
    }

    /// Takes claimed ports back from threads that stopped polling.
    fn check_claims(&mut self, now: Instant) {
        self.checked = now;
        if self.inner.claims.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut ports = self.ports();
        for port in ports.drain(..) {
            let polls = port.polls.swap(0, Ordering::Relaxed);
            let calls = polls.saturating_add(port.posts.swap(0, Ordering::Relaxed));
            let claimed = port.claimed.load(Ordering::Relaxed);
            // A thread that holds the lock may hold it for longer than the interval.
            if claimed && (polls == 0 || calls < CLAIM_CALLS_MIN) && !port.is_busy() {
                let more = port.with_core(|core| {
                    self.inner.release(&port);
                    core.flush_deferred();
                    core.scan(false)
                });
                self.more.extend(more.then_some(port.number));
            }
        }
        self.ports = ports;
    }

    fn accept(&mut self) {
        let inner = Arc::clone(&self.inner);
        let Some(listener) = &inner.listener else {
            return;
        };
        // At most 16 at a time, so that links are served between.
        for _ in 0..16 {
            match listener.accept() {
                Ok((socket, peer)) => {
                    let host = peer.ip().to_canonical();
                    // Checked before the connection takes an entry.
                    match self.inner.admission.judge(&socket) {
                        // The peer retries, and then there may be descriptors.
                        Err(BootstrapError::OwnerUnknown(_)) => return self.pause(),
                        judged if judged.is_err() || socket.set_nonblocking(true).is_err() => {
                            continue;
                        }
                        _ => {}
                    }
                    self.make_room(host);
                    set_options(&socket, &self.inner.options);
                    let time = self.inner.options.connect_timeout;
                    let limits = HandshakeLimits { time, bytes: HANDSHAKE_BYTES };
                    let stream = Stream::accept(socket, &self.inner.options.security, limits);
                    if let Ok(stream) = stream {
                        let connection = LinkStream::Stream(Box::new(stream));
                        let deadline = Instant::now() + time;
                        let own = (random(), self.inner.options.lease_ms());
                        self.add_pending(PendingLink::new(connection, host, deadline, own));
                    }
                }
                Err(reason) if reason.kind() == io::ErrorKind::WouldBlock => return,
                Err(reason) if is_exhausted(&reason) => return self.pause(),
                Err(_) => {}
            }
        }
    }

    /// Pauses accepting: without descriptors every further `accept` would fail.
    fn pause(&mut self) {
        if let Some(listener) = &self.inner.listener {
            let _ = epoll::delete(&self.inner.epoll, listener);
            self.paused = Some(Instant::now() + PAUSE);
        }
    }

    /// Makes room for a further pending connection of this host: idle connections lock out no peer and
    /// displace none that is only slow ([`PendingLimits`](farside_fabric::PendingLimits)).
    fn make_room(&mut self, host: IpAddr) {
        let limits = self.inner.options.limits.pending();
        let links = self.pending.iter().enumerate();
        let pending = links.filter_map(|(at, link)| {
            let link = link.as_ref()?;
            let age = (link.deadline, at);
            Some(PendingConnection { peer: link.host, silent: link.is_silent(), age })
        });
        if let Some((_, at)) = limits.gives_way(pending, host) {
            self.pending[at] = None;
        }
    }

    fn add_pending(&mut self, link: PendingLink) {
        let at = self.pending.iter().position(Option::is_none).unwrap_or(self.pending.len());
        let data = EventData::new_u64(PENDING | at as u64);
        if epoll::add(&self.inner.epoll, link.connection.socket(), data, EventFlags::IN).is_err() {
            return;
        }
        if at == self.pending.len() {
            self.pending.push(None);
        }
        self.pending[at] = Some(link);
        self.advance_pending(at);
    }

    /// Advances a pending connection as far as possible.
    fn advance_pending(&mut self, at: usize) {
        let Some(place) = self.pending.get_mut(at) else {
            return;
        };
        let Some(mut link) = place.take() else {
            return;
        };
        match link.advance(self.inner.incarnation) {
            Ok(PendingProgress::Incomplete) => {
                self.watch_pending(at, &link);
                self.pending[at] = Some(link);
            }
            Ok(PendingProgress::Hello { name, hello, early, lease_ms }) => {
                self.tick_every = self.tick_every.min(tick_of(peer_lease(lease_ms)));
                self.assign(at, link, &name, (&hello, &early, lease_ms));
            }
            Err(_) => {}
        }
    }

    fn watch_pending(&self, at: usize, link: &PendingLink) {
        let mut flags = EventFlags::IN;
        if link.connection.wants_write() {
            flags |= EventFlags::OUT;
        }
        let data = EventData::new_u64(PENDING | at as u64);
        let _ = epoll::modify(&self.inner.epoll, link.connection.socket(), data, flags);
    }

    /// Passes an authenticated connection to the port that it named.
    fn assign(&mut self, at: usize, link: PendingLink, name: &str, said: (&[u8], &[u8], u32)) {
        let port = {
            let registry = self.inner.registry();
            registry.names.get(name).and_then(|number| registry.ports.get(number)).cloned()
        };
        let Some(port) = port else {
            return self.reject(at, link, FrameKind::NoListener, b"");
        };
        let _ = epoll::delete(&self.inner.epoll, link.connection.socket());
        let (host, deadline) = (link.host, link.deadline);
        let requested = port.with_core(|core| core.request(link.connection, host, said));
        if let Err((connection, limit)) = requested {
            let data = EventData::new_u64(PENDING | at as u64);
            let socket = connection.socket();
            if epoll::add(&self.inner.epoll, socket, data, EventFlags::IN).is_ok() {
                let link = PendingLink::new(connection, host, deadline, (0, 0));
                self.reject(at, link, FrameKind::Declined, limit.as_bytes());
            }
        }
    }

    fn reject(&mut self, at: usize, mut link: PendingLink, kind: FrameKind, reason: &[u8]) {
        if link.reject(kind, reason).is_ok() {
            link.deadline = Instant::now() + REJECTED_TIME_MAX;
            self.pending[at] = Some(link);
        }
    }

    /// Runs the timers: deadlines of pending connections, the pause of accepting, ticks of all ports.
    fn tick(&mut self, now: Instant) {
        // If this thread was delayed, it cannot judge the silence of peers.
        let late = now.saturating_duration_since(self.ticked) > self.inner.options.lease / 2;
        self.ticked = now;
        for link in &mut self.pending {
            if link.as_ref().is_some_and(|link| now >= link.deadline) {
                *link = None;
            }
        }
        if self.paused.is_some_and(|until| now >= until) {
            self.paused = None;
            if let Some(listener) = &self.inner.listener {
                let data = EventData::new_u64(LISTENER);
                let _ = epoll::add(&self.inner.epoll, listener, data, EventFlags::IN);
            }
        }
        let mut ports = self.ports();
        self.tick_every = self.inner.options.tick();
        for port in ports.drain(..) {
            self.tick_every = self.tick_every.min(port.with_core(|core| core.tick(now, late)));
        }
        self.ports = ports;
    }

    /// Returns all ports, in the reused list, which the caller puts back.
    fn ports(&mut self) -> Vec<Arc<PortShared>> {
        let mut ports = std::mem::take(&mut self.ports);
        ports.extend(self.inner.registry().ports.values().cloned());
        ports
    }
}

fn is_exhausted(reason: &io::Error) -> bool {
    use rustix::io::Errno;
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    exhausted.iter().any(|errno| reason.raw_os_error() == Some(errno.raw_os_error()))
}
