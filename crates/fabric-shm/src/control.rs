//! The control path of a fabric: the state shared by its ports and its control thread, and that thread.
//!
//! The thread sleeps in `epoll_wait` until a socket is ready. It accepts connections, answers peers'
//! imports without the program's help, and notices when a peer's process is gone. Results go to the
//! inboxes of ports. It blocks only in `epoll_wait`: sockets are non-blocking, locks are held for short
//! times, and a listener whose connection cannot be accepted for lack of descriptors or memory is left
//! out of the epoll for a while. Connections are accepted in batches between links, each has a deadline
//! for its hello, and each process has a share of those without a hello, so that a silent process
//! delays neither joins nor imports of others.

use crate::barrier;
use crate::bell::SharedBell;
use crate::connection::{Answer, Connection, ConnectionStage, Inbound, Inbox, KnownPeer, lock};
use crate::layout::{LINKS_MAX, PORTS_MAX, bells, board};
use crate::mapping::{PeerMappings, SharedMapping};
use crate::message::{ControlMessage, MESSAGE_BYTES_MAX, Terms};
use crate::names::Listener;
use crate::options::ShmOptions;
use crate::region::RegionTable;
use crate::ring::Geometry;
use crate::socket::{self, Accepted, Received};
use farside_base::{LinkId, RegionId, RemoteKey};
use farside_fabric::{FabricError, PendingConnection, PendingLimits};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Connections accepted before links are served again.
const ACCEPTS: usize = 16;

/// How long accepting at a listener pauses after the system ran out of descriptors or memory.
const PAUSE: Duration = Duration::from_millis(10);

/// The token of the event that ends the thread.
const STOP: u64 = 0;

/// The state shared by the ports of a fabric and its control thread.
pub(crate) struct Inner {
    pub(crate) options: ShmOptions,
    /// Whether this process can do both halves of the light and heavy barrier.
    pub(crate) barriers: bool,
    pub(crate) board: SharedMapping,
    pub(crate) bells: SharedMapping,
    pub(crate) regions: Mutex<RegionTable>,
    registry: Mutex<Registry>,
    epoll: OwnedFd,
    stop: OwnedFd,
}

/// The sockets, by token.
#[derive(Default)]
struct Registry {
    tokens: u64,
    entries: HashMap<u64, ControlEntry>,
    /// By number.
    ports: Vec<Option<Arc<Inbox>>>,
}

enum ControlEntry {
    /// A listening socket and the port that listens. Used under the lock of the registry alone, so
    /// that its name is free as soon as it is forgotten.
    Listener(Listener, Arc<Inbox>),
    /// A connection to that port without a hello yet.
    Fresh(Fresh),
    /// One end of a link.
    Link(Arc<Connection>),
}

/// A connection without a hello yet.
#[derive(Clone)]
struct Fresh {
    socket: Arc<OwnedFd>,
    inbox: Arc<Inbox>,
    /// The process at the other end; 0 if that is not known.
    process: u32,
    /// When its hello is due.
    deadline: Instant,
}

/// The source of an event, for the control thread.
enum Speaker {
    Listener,
    Fresh(Fresh),
    Link(Arc<Connection>),
}

impl ControlEntry {
    fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(socket, _) => socket.as_fd(),
            Self::Fresh(fresh) => fresh.socket.as_fd(),
            Self::Link(connection) => connection.socket.as_fd(),
        }
    }
}

fn system(what: &'static str) -> impl FnOnce(Errno) -> FabricError {
    move |reason| FabricError::System(what, reason.into())
}

impl Inner {
    fn new(options: ShmOptions) -> Result<Self, FabricError> {
        let memory = |name, bytes, peers| {
            SharedMapping::new(name, bytes, peers)
                .map_err(|reason| FabricError::System("memory for control", reason))
        };
        let board = memory("farside-board", board::BYTES, PeerMappings::Read)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(system("eventfd"))?;
        let data = epoll::EventData::new_u64(STOP);
        epoll::add(&epoll, &stop, data, epoll::EventFlags::IN).map_err(system("epoll"))?;
        Ok(Self {
            options,
            barriers: barrier::register(),
            bells: memory("farside-bells", bells::BYTES, PeerMappings::Write)?,
            regions: Mutex::new(RegionTable::new(board.arena.clone())),
            board,
            registry: Mutex::default(),
            epoll,
            stop,
        })
    }

    /// Takes a free port number, and the inbox of the port that has it now.
    pub(crate) fn take_port(&self) -> Result<(u32, Arc<Inbox>), FabricError> {
        let mut registry = lock(&self.registry);
        let free = registry.ports.iter().position(Option::is_none);
        let number = free.unwrap_or(registry.ports.len());
        let limit = FabricError::Limit("ports");
        if number >= PORTS_MAX as usize {
            return Err(limit);
        }
        let bell = SharedBell::new(&self.bells.arena, number as u32).ok_or(limit)?;
        let inbox = Arc::new(Inbox::new(bell));
        let entry = Some(Arc::clone(&inbox));
        match registry.ports.get_mut(number) {
            Some(place) => *place = entry,
            None => registry.ports.push(entry),
        }
        Ok((number as u32, inbox))
    }

    pub(crate) fn give_back_port(&self, number: u32) {
        if let Some(place) = lock(&self.registry).ports.get_mut(number as usize) {
            *place = None;
        }
    }

    /// Makes every port check its regions.
    fn call_attention(&self) {
        for inbox in lock(&self.registry).ports.iter().flatten() {
            inbox.call_attention();
        }
    }

    /// Returns the terms of a link of port `port`.
    pub(crate) fn terms(&self, port: u32) -> Terms {
        Terms { geometry: self.geometry(), port, barriers: self.barriers }
    }

    /// Returns the geometry of the rings with which local links send.
    pub(crate) fn geometry(&self) -> Geometry {
        Geometry { slots: self.options.ring_slots, bulk: self.options.bulk_bytes }
    }

    /// Listens at `name` for a port.
    pub(crate) fn listen(&self, name: &str, inbox: &Arc<Inbox>) -> Result<u64, FabricError> {
        let socket = socket::listen(self.options.folder.as_deref(), name)?;
        self.watch(|_| ControlEntry::Listener(socket, Arc::clone(inbox)))
    }

    /// Connects a port to the listener at `name`, as `link`.
    pub(crate) fn connect(
        &self,
        name: &str,
        link: LinkId,
        inbox: &Arc<Inbox>,
    ) -> Result<Arc<Connection>, FabricError> {
        let socket = Arc::new(socket::connect(self.options.folder.as_deref(), name)?);
        let inbox = Arc::clone(inbox);
        let mut made = None;
        self.watch(|token| {
            let connection =
                Connection::new(token, socket, link, inbox, ConnectionStage::Connecting);
            let connection = Arc::new(connection);
            made = Some(Arc::clone(&connection));
            ControlEntry::Link(connection)
        })?;
        made.ok_or(FabricError::PeerLost)
    }

    /// Registers a socket with the thread.
    fn watch(&self, make: impl FnOnce(u64) -> ControlEntry) -> Result<u64, FabricError> {
        let mut registry = lock(&self.registry);
        registry.tokens += 1;
        let token = registry.tokens;
        let entry = make(token);
        let data = epoll::EventData::new_u64(token);
        // Under the lock, so that the thread finds the entry when the first event arrives.
        epoll::add(&self.epoll, entry.socket(), data, epoll::EventFlags::IN)
            .map_err(system("epoll"))?;
        registry.entries.insert(token, entry);
        Ok(token)
    }

    /// Forgets a socket, which is closed when its last reference is dropped.
    pub(crate) fn forget(&self, token: u64) {
        let entry = lock(&self.registry).entries.remove(&token);
        if let Some(entry) = entry {
            // Fails only for a socket that is not watched.
            let _ = epoll::delete(&self.epoll, entry.socket());
        }
    }

    fn speaker(&self, token: u64) -> Option<Speaker> {
        match lock(&self.registry).entries.get(&token)? {
            ControlEntry::Listener(..) => Some(Speaker::Listener),
            ControlEntry::Fresh(fresh) => Some(Speaker::Fresh(fresh.clone())),
            ControlEntry::Link(connection) => Some(Speaker::Link(Arc::clone(connection))),
        }
    }

    /// Returns the connection without a hello that is closed in favor of a new one of `process`.
    fn gives_way(&self, process: u32) -> Option<u64> {
        let registry = lock(&self.registry);
        let fresh = registry.entries.iter().filter_map(|(token, entry)| match entry {
            ControlEntry::Fresh(fresh) => {
                // A peer that has sent something has sent its hello.
                Some(PendingConnection { peer: fresh.process, silent: true, age: *token })
            }
            ControlEntry::Listener(..) | ControlEntry::Link(_) => None,
        });
        PendingLimits::DEFAULT.gives_way(fresh, process)
    }

    /// Returns the deadlines of connections without a hello.
    fn deadlines(&self) -> Vec<(u64, Instant)> {
        let registry = lock(&self.registry);
        let fresh = registry.entries.iter().filter_map(|(token, entry)| match entry {
            ControlEntry::Fresh(fresh) => Some((*token, fresh.deadline)),
            ControlEntry::Listener(..) | ControlEntry::Link(_) => None,
        });
        fresh.collect()
    }

    /// Takes a connection that waits at a listener, with the port it is for.
    fn accept(&self, token: u64) -> rustix::io::Result<(Accepted, Option<Arc<Inbox>>)> {
        match lock(&self.registry).entries.get(&token) {
            Some(ControlEntry::Listener(socket, inbox)) => {
                Ok((socket::accept(socket.as_fd())?, Some(Arc::clone(inbox))))
            }
            Some(ControlEntry::Fresh(_) | ControlEntry::Link(_)) | None => {
                Ok((Accepted::Nothing, None))
            }
        }
    }

    /// Watches a listener again that was not watched, or no longer one that was.
    fn watch_listener(&self, token: u64, watched: bool) {
        if let Some(ControlEntry::Listener(socket, _)) = lock(&self.registry).entries.get(&token) {
            // To be found without events costs no memory, as adding it again would.
            let flags = if watched { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
            // Fails only for a socket that is not in the epoll.
            let _ = epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token), flags);
        }
    }

    /// Forgets every socket of a closed port.
    pub(crate) fn forget_port(&self, inbox: &Arc<Inbox>) {
        let mut registry = lock(&self.registry);
        registry.entries.retain(|_, entry| {
            let owner = match entry {
                ControlEntry::Listener(_, owner) => owner,
                ControlEntry::Fresh(fresh) => &fresh.inbox,
                ControlEntry::Link(connection) => &connection.inbox,
            };
            let gone = Arc::ptr_eq(owner, inbox);
            if gone {
                socket::end(entry.socket());
                // Fails only for a socket that is not watched.
                let _ = epoll::delete(&self.epoll, entry.socket());
            }
            !gone
        });
    }

    /// Ends a link from this side, without an event to the port.
    pub(crate) fn close(&self, connection: &Connection) {
        connection.end();
        self.forget(connection.token);
    }

    /// Ends a link because the peer is gone or violated the protocol, and reports it to the port.
    fn lose(&self, connection: &Connection) {
        let before = connection.end();
        self.forget(connection.token);
        if before != ConnectionStage::Ended {
            let link = connection.link;
            connection.inbox.push(Inbound::Lost { link });
        }
    }

    /// Returns the links whose other ends have imported `region`.
    pub(crate) fn holders(&self, region: RegionId) -> Vec<Arc<Connection>> {
        let registry = lock(&self.registry);
        let links = registry.entries.values().filter_map(|entry| match entry {
            ControlEntry::Link(link) if lock(&link.held).contains(&region) => {
                Some(Arc::clone(link))
            }
            ControlEntry::Listener(..) | ControlEntry::Fresh(_) | ControlEntry::Link(_) => None,
        });
        links.collect()
    }

    /// Sends a message on a link's socket.
    pub(crate) fn send(
        &self,
        connection: &Connection,
        message: &ControlMessage<'_>,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), FabricError> {
        let mut bytes = Vec::with_capacity(64);
        message.encode(&mut bytes);
        socket::send(connection.socket.as_fd(), &bytes, descriptors)
            .map_err(|_| FabricError::PeerLost)
    }
}

/// Owns the control thread; dropped with the last port and the fabric.
pub(crate) struct Control {
    pub(crate) inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    pub(crate) fn start(options: ShmOptions) -> Result<Self, FabricError> {
        let inner = Arc::new(Inner::new(options)?);
        let mut thread = ControlThread::new(Arc::clone(&inner))?;
        let thread = std::thread::Builder::new()
            .name("farside-shm".to_owned())
            .spawn(move || thread.run())
            .map_err(|reason| FabricError::System("control thread", reason))?;
        Ok(Self { inner, thread: Some(thread) })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // An event counter takes a first value always.
        let _ = rustix::io::write(&self.inner.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // It panicked or it did not; it has ended.
            let _ = thread.join();
        }
    }
}

/// The control thread.
struct ControlThread {
    inner: Arc<Inner>,
    buffer: Box<[u8; MESSAGE_BYTES_MAX]>,
    /// Given up to accept and drop a connection when the process has no descriptor left, so that
    /// its peer learns it at once.
    spare: Option<OwnedFd>,
    /// When the next hello is due or the next listener is watched again; `None` if neither.
    deadline: Option<Instant>,
    /// Listeners that are not watched until then.
    paused: Vec<(u64, Instant)>,
}

impl ControlThread {
    fn new(inner: Arc<Inner>) -> Result<Self, FabricError> {
        Ok(Self {
            inner,
            buffer: Box::new([0; MESSAGE_BYTES_MAX]),
            spare: Some(spare_descriptor().map_err(system("eventfd"))?),
            deadline: None,
            paused: Vec::new(),
        })
    }

    fn run(&mut self) {
        let mut space = [const { MaybeUninit::uninit() }; 64];
        loop {
            let left = self.deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.inner.epoll, &mut space, left.as_ref()) {
                Ok((events, _)) => {
                    for event in events.iter() {
                        match event.data.u64() {
                            STOP => return,
                            token => self.serve(token),
                        }
                    }
                }
                Err(Errno::INTR) => {}
                // Only a closed epoll descriptor, which this thread holds open.
                Err(_) => return,
            }
            if self.deadline.is_some_and(|at| Instant::now() >= at) {
                self.expire();
                self.resume();
            }
        }
    }

    fn serve(&mut self, token: u64) {
        // A token that was removed meanwhile needs nothing.
        match self.inner.speaker(token) {
            None => {}
            Some(Speaker::Listener) => self.accept(token),
            Some(Speaker::Fresh(fresh)) => self.greet(token, &fresh),
            Some(Speaker::Link(connection)) => self.listen_to(&connection),
        }
    }

    fn accept(&mut self, listener: u64) {
        // Connections that are still pending make the next `epoll_wait` return at once.
        for _ in 0..ACCEPTS {
            match self.inner.accept(listener) {
                Ok((Accepted::Connection(socket, process), Some(inbox))) => {
                    self.take_in(socket, inbox, process);
                }
                Ok((Accepted::Stranger, _)) => {}
                Ok((Accepted::Nothing | Accepted::Connection(..), _)) => return,
                Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => {
                    drop(self.inner.accept(listener));
                    // Another thread may have taken the descriptor meanwhile: then there is none until
                    // a pause is over.
                    self.spare = spare_descriptor().ok();
                    return;
                }
                Err(_) => return self.pause(listener),
            }
        }
    }

    /// Leaves a listener alone for a while: the connection keeps waiting, and would keep this thread awake.
    fn pause(&mut self, listener: u64) {
        self.inner.watch_listener(listener, false);
        let until = Instant::now() + PAUSE;
        self.paused.push((listener, until));
        self.deadline = Some(self.deadline.map_or(until, |next| next.min(until)));
    }

    /// Watches listeners again after their pause.
    fn resume(&mut self) {
        if self.paused.is_empty() {
            return;
        }
        let now = Instant::now();
        if self.spare.is_none() {
            self.spare = spare_descriptor().ok();
        }
        let inner = &self.inner;
        self.paused.retain(|(listener, until)| {
            let over = now >= *until;
            if over {
                inner.watch_listener(*listener, true);
            }
            !over
        });
        let next = self.paused.iter().map(|(_, until)| *until).chain(self.deadline).min();
        self.deadline = next;
    }

    fn take_in(&mut self, socket: OwnedFd, inbox: Arc<Inbox>, process: u32) {
        if let Some(token) = self.inner.gives_way(process) {
            self.hear_or_forget(token);
        }
        let deadline = Instant::now() + self.inner.options.hello_timeout;
        self.deadline = Some(self.deadline.map_or(deadline, |next| next.min(deadline)));
        let fresh = Fresh { socket: Arc::new(socket), inbox, process, deadline };
        // Refused only for want of kernel memory; then the connection is dropped.
        let _ = self.inner.watch(|_| ControlEntry::Fresh(fresh));
    }

    /// Closes connections whose hello is overdue.
    fn expire(&mut self) {
        let now = Instant::now();
        for (token, deadline) in self.inner.deadlines() {
            if now >= deadline {
                self.hear_or_forget(token);
            }
        }
        self.deadline = self.inner.deadlines().into_iter().map(|(_, deadline)| deadline).min();
    }

    /// Makes a connection a link if its hello has arrived, and closes it otherwise.
    fn hear_or_forget(&mut self, token: u64) {
        if let Some(Speaker::Fresh(fresh)) = self.inner.speaker(token) {
            self.greet(token, &fresh);
        }
        if let Some(Speaker::Fresh(_)) = self.inner.speaker(token) {
            self.inner.forget(token);
        }
    }

    /// Handles the first message of a connection, which makes it a link.
    fn greet(&mut self, token: u64, fresh: &Fresh) {
        let Fresh { socket, inbox, .. } = fresh;
        let (length, descriptors) = match socket::receive(socket.as_fd(), &mut self.buffer) {
            Received::Nothing => return,
            Received::Ended => return self.inner.forget(token),
            Received::Datagram(length, descriptors) => (length, descriptors),
        };
        let message = ControlMessage::decode(&self.buffer[..length]);
        let Some(ControlMessage::Hello { terms, bytes }) = message else {
            return self.inner.forget(token);
        };
        let Ok(peer) = KnownPeer::new(&terms, &descriptors) else {
            return self.inner.forget(token);
        };
        let Some(link) = inbox.open_link(LINKS_MAX) else {
            let mut refusal = Vec::new();
            ControlMessage::Refuse { bytes: b"links_max" }.encode(&mut refusal);
            // Best effort: without it the peer sees the connection end.
            let _ = socket::send(socket.as_fd(), &refusal, &[]);
            return self.inner.forget(token);
        };
        let hello = bytes.to_vec();
        let (socket, owner) = (Arc::clone(socket), Arc::clone(inbox));
        let connection = Connection::new(token, socket, link, owner, ConnectionStage::Requested);
        // Set only here, once.
        let _ = connection.peer.set(peer.clone());
        let connection = Arc::new(connection);
        let entry = ControlEntry::Link(Arc::clone(&connection));
        let known = lock(&self.inner.registry)
            .entries
            .get_mut(&token)
            .map(|place| *place = entry)
            .is_some();
        let news = Inbound::Requested { connection: Arc::clone(&connection), peer, hello };
        if !known || !inbox.push(news) {
            // The port was closed meanwhile.
            self.inner.close(&connection);
        }
    }

    /// Handles a message of a link's peer, or the end of the socket.
    fn listen_to(&mut self, connection: &Arc<Connection>) {
        let received = socket::receive(connection.socket.as_fd(), &mut self.buffer);
        let right = match received {
            Received::Nothing => true,
            Received::Ended => false,
            Received::Datagram(length, descriptors) => {
                match ControlMessage::decode(&self.buffer[..length]) {
                    Some(message) if message.descriptors() == descriptors.len() => {
                        understand(&self.inner, connection, &message, descriptors)
                    }
                    _ => false,
                }
            }
        };
        if !right {
            self.inner.lose(connection);
        }
    }
}

fn spare_descriptor() -> rustix::io::Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC)
}

/// Handles a message. Returns false if it is not allowed in this state, or the link cannot continue.
fn understand(
    inner: &Inner,
    connection: &Arc<Connection>,
    message: &ControlMessage<'_>,
    mut descriptors: Vec<OwnedFd>,
) -> bool {
    let link = connection.link;
    match (connection.stage(), message) {
        // Messages that arrive after the end were sent before the peer knew.
        (ConnectionStage::Ended, _) => true,
        (ConnectionStage::Connecting, ControlMessage::Accept { terms, bytes }) => {
            let Ok(peer) = KnownPeer::new(terms, &descriptors) else {
                return false;
            };
            let first = connection.peer.set(peer.clone()).is_ok();
            if first && connection.advance(ConnectionStage::Connecting, ConnectionStage::Ready) {
                let reply = bytes.to_vec();
                connection.inbox.push(Inbound::Connected { link, peer, reply });
            }
            first
        }
        (ConnectionStage::Connecting, ControlMessage::Refuse { bytes }) => {
            if connection.end() == ConnectionStage::Connecting {
                let reason = bytes.to_vec();
                connection.inbox.push(Inbound::Refused { link, reason });
            }
            inner.forget(connection.token);
            true
        }
        (ConnectionStage::Ready, ControlMessage::Import { question, region, key }) => {
            hand_over(inner, connection, *question, *region, *key)
        }
        (ConnectionStage::Ready, ControlMessage::Imported { question, grant }) => {
            let answer: Answer = grant.map(|grant| (grant, descriptors.pop()));
            connection.answer(*question, answer)
        }
        (ConnectionStage::Ready, ControlMessage::Broken) => {
            connection.hear_broken();
            true
        }
        (
            ConnectionStage::Connecting | ConnectionStage::Requested | ConnectionStage::Ready,
            ControlMessage::Hello { .. }
            | ControlMessage::Accept { .. }
            | ControlMessage::Refuse { .. }
            | ControlMessage::Import { .. }
            | ControlMessage::Imported { .. }
            | ControlMessage::Broken,
        ) => false,
    }
}

/// Answers an import.
fn hand_over(
    inner: &Inner,
    connection: &Connection,
    question: u64,
    region: RegionId,
    key: RemoteKey,
) -> bool {
    let granted = {
        let regions = lock(&inner.regions);
        let granted = regions.grant(region, key);
        if granted.is_some() {
            // Under the lock of the table, so that a later revocation of the region finds it held.
            let mut held = lock(&connection.held);
            if !held.contains(&region) {
                held.push(region);
            }
        }
        granted
    };
    let (grant, descriptor) = granted.unzip();
    let message = ControlMessage::Imported { question, grant };
    let descriptors: Vec<_> = match (&descriptor, message.descriptors()) {
        (Some(descriptor), 1) => vec![descriptor.as_fd()],
        _ => Vec::new(),
    };
    inner.send(connection, &message, &descriptors).is_ok()
}

/// Yields the processor to threads that cannot be waited for.
#[allow(
    clippy::disallowed_methods,
    reason = "no event tells when a peer leaves a request, or when the lock of names is free"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Reports a region as gone, and waits until no request of a peer can reach it any more.
///
/// A requester marks itself at work, then loads the key; this side has removed the key, and then loads
/// the marks. By the heavy barrier, a requester that is not marked now will see that the key is gone;
/// this side waits for one that is.
pub(crate) fn wait_for_requests(inner: &Inner, region: RegionId) -> Result<(), FabricError> {
    inner.call_attention();
    barrier::heavy();
    let mut left = inner.options.control_timeout;
    for connection in inner.holders(region) {
        wait_while_at_work(&connection, &mut left)?;
    }
    for connection in inner.holders(region) {
        lock(&connection.held).retain(|held| *held != region);
    }
    Ok(())
}

/// Waits until the port at the other end is not at work, or at other work than now.
fn wait_while_at_work(connection: &Connection, left: &mut Duration) -> Result<(), FabricError> {
    let Some(peer) = connection.peer.get() else {
        return Ok(());
    };
    let first = peer.in_flight();
    let at_work = |now: u64| first % 2 == 1 && now == first && !connection.has_ended();
    let mut spins = 0;
    while at_work(peer.in_flight()) {
        spins += 1;
        if spins < 1000 {
            std::hint::spin_loop();
            continue;
        }
        let step = Duration::from_micros(50);
        *left = left.checked_sub(step).ok_or_else(|| {
            let reason = std::io::ErrorKind::TimedOut.into();
            FabricError::System("a peer stopped in the middle of a request", reason)
        })?;
        pause(step);
    }
    Ok(())
}
