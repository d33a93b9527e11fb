//! The lending end: registers memory, accepts clients, and sleeps.

use super::hello::{LendReply, decode_hello};
use crate::progress::{ConnectionEvent, EnginePort};
use crate::refusal::Refusal;
use crate::registered::Registered;
use crate::runtime::random;
use crate::setters::setters;
use crate::topology::CpuSocket;
use crate::{Error, ErrorCode};
use farside_base::{
    Access, Completion, LinkId, LocalSlice, ReceiveQueueId, RegionKind, RegionToken, WorkId,
};
use farside_fabric::runtime::{Thread, spawn};
use farside_fabric::{Arena, Fabric, Waiter};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The receive that an unexpected message takes.
const GUARD: WorkId = WorkId(0);

/// What a [`MemoryServer`] lends.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LendOptions {
    /// What clients may do; [`Access::ALL`] by default.
    pub access: Access,
    /// Where the memory is; main memory by default.
    pub kind: RegionKind,
    /// Most clients at a time; 1,024 by default.
    pub clients_max: usize,
    /// The socket next to which the memory is and where the server's thread runs; none by default.
    pub socket: Option<CpuSocket>,
    /// Whether one client at a time uses the memory: another one is refused until no request of the one before can reach
    /// it any more; false by default. Replicas of a durable log need it.
    pub exclusive: bool,
}

setters!(LendOptions { access: Access, kind: RegionKind, clients_max: usize, socket: Option<CpuSocket>, exclusive: bool });

impl Default for LendOptions {
    fn default() -> Self {
        let (access, kind) = (Access::ALL, RegionKind::Memory);
        Self { access, kind, clients_max: 1024, socket: None, exclusive: false }
    }
}

/// Memory that clients on other machines use without this machine's processor ([module](super)).
///
/// A thread of its own accepts clients and sleeps otherwise. Dropping the server ends it: requests of clients
/// fail with `PeerLost`, and none reaches the memory after the drop.
pub struct MemoryServer {
    address: String,
    /// The bytes that were asked for; a fabric may round up.
    memory: Arena,
    shared: Arc<ServerState>,
    waiter: Arc<dyn Waiter>,
    thread: Option<Thread>,
    socket: Option<u16>,
}

/// What the server and its thread share.
#[derive(Default)]
struct ServerState {
    ends: AtomicBool,
    clients: AtomicUsize,
    wake_ups: AtomicU64,
}

impl MemoryServer {
    /// Registers `bytes` of zeroed memory and lends it under a name.
    ///
    /// *Blocks* for the registration: at least a system call; with a socket a touch of each page too. *Errors* leave
    /// nothing behind.
    ///
    /// # Errors
    /// `ZeroSize`; `FabricLacks` if the fabric cannot grant the access or has no such memory; `TooLarge` with
    /// the fabric's limit; `AddressTaken`; `System`, also if the memory cannot be put next to the socket;
    /// `BadConfiguration` for a socket and memory that is not populated or not of the machine.
    pub fn lend(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        bytes: u64,
        options: &LendOptions,
    ) -> Result<Self, Error> {
        let Some(socket) = &options.socket else {
            return Self::lend_from_here(fabric, name, bytes, options);
        };
        if matches!(options.kind, RegionKind::Sparse | RegionKind::Device) {
            let text =
                format!("{:?} memory is next to no socket: lend RegionKind::Memory", options.kind);
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        socket.run(|| Self::lend_from_here(fabric, name, bytes, options))?
    }

    /// Lends memory from this thread, which is bound to the socket if there is one.
    fn lend_from_here(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        bytes: u64,
        options: &LendOptions,
    ) -> Result<Self, Error> {
        if bytes == 0 {
            return Err(ErrorCode::ZeroSize.into());
        }
        let has = fabric.capabilities();
        if bytes > has.region_bytes_max {
            let text = format!("{bytes} B; the fabric has at most {} B", has.region_bytes_max);
            return Err(Error::with(ErrorCode::TooLarge, text));
        }
        let region = Registered::new(fabric, bytes, options.access, options.kind)?;
        let socket = options.socket.as_ref().map(CpuSocket::number);
        if let Some(socket) = &options.socket {
            socket.place(&region.arena)?;
        }
        let mut port = EnginePort::open(&**fabric, Some(name.to_owned()))?;
        let queue = port.create_receive_queue(1)?;
        let address = port.address().unwrap_or_else(|| name.to_owned());
        let memory = region.arena.part(0, bytes as usize).unwrap_or_else(|_| region.arena.clone());
        let token = RegionToken { bytes, ..region.token };
        let incarnation = random();
        let (shared, waiter) = (Arc::<ServerState>::default(), port.waiter());
        let mut acceptor = Acceptor {
            port,
            queue,
            reply: LendReply { incarnation, token, socket, is_exclusive: options.exclusive },
            clients_max: options.clients_max,
            links: BTreeMap::new(),
            closed: Vec::new(),
            shared: Arc::clone(&shared),
            region,
        };
        acceptor.guard();
        let thread = spawn("farside-lend", move || acceptor.run());
        let thread = thread.map_err(|error| Error::with(ErrorCode::System, error.to_string()))?;
        Ok(Self { address, memory, shared, waiter, thread: Some(thread), socket })
    }

    /// Returns the address that clients open: with host and port if the fabric has hosts.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the number of bytes lent.
    pub fn bytes(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Returns the number of the socket next to which the memory is, as clients see it
    /// ([`RemoteMemory::socket`](super::RemoteMemory::socket)).
    pub const fn socket(&self) -> Option<u16> {
        self.socket
    }

    /// Returns the number of connections of clients: at least those that have been opened and not lost.
    pub fn clients(&self) -> usize {
        self.shared.clients.load(Ordering::Relaxed)
    }

    /// Returns how often the server's thread has woken up: for clients that come and go, not for their requests.
    pub fn wake_ups(&self) -> u64 {
        self.shared.wake_ups.load(Ordering::Relaxed)
    }

    /// Copies bytes out of the lent memory. Words of 8 bytes are whole, more is not: clients may write meanwhile.
    ///
    /// # Errors
    /// `OutOfBounds`; nothing is copied then.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.memory.read(offset, out).map_err(|_| ErrorCode::OutOfBounds.into())
    }

    /// Copies bytes into the lent memory, as [`read`](Self::read) copies them out.
    ///
    /// # Errors
    /// `OutOfBounds`; nothing is copied then.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.memory.write(offset, bytes).map_err(|_| ErrorCode::OutOfBounds.into())
    }

    /// Loads an aligned word of 8 bytes: later reads return what clients wrote before the word, where the fabric has
    /// `message_order` or they waited.
    ///
    /// # Errors
    /// `OutOfBounds`, also if it is not aligned.
    #[inline]
    pub fn load_word(&self, offset: u64) -> Result<u64, Error> {
        self.memory.load(offset, Ordering::Acquire).map_err(|_| ErrorCode::OutOfBounds.into())
    }

    /// Stores an aligned word of 8 bytes, after earlier reads and writes of this thread. Clients must not change the same
    /// word by atomics, unless those have system scope.
    ///
    /// # Errors
    /// As [`load_word`](Self::load_word).
    #[inline]
    pub fn store_word(&self, offset: u64, value: u64) -> Result<(), Error> {
        let stored = self.memory.store(offset, value, Ordering::Release);
        stored.map_err(|_| ErrorCode::OutOfBounds.into())
    }
}

impl fmt::Debug for MemoryServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, clients) = (self.bytes(), self.clients());
        write!(f, "MemoryServer({} of {bytes} B, {clients} clients)", self.address)
    }
}

impl Drop for MemoryServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.waiter.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, the port and the region would have ended with it.
            thread.join();
        }
    }
}

/// The thread of a server.
struct Acceptor {
    port: EnginePort,
    queue: ReceiveQueueId,
    reply: LendReply,
    clients_max: usize,
    /// By the client's number of the connection. One that is established again replaces the earlier one, after
    /// which none of its requests reaches the memory.
    links: BTreeMap<u64, LinkId>,
    /// Earlier connections, closed, of which a request may still be executed.
    closed: Vec<(u64, LinkId)>,
    shared: Arc<ServerState>,
    /// Ends after the port.
    region: Registered,
}

impl Acceptor {
    fn run(&mut self) {
        let waiter = self.port.waiter();
        while !self.shared.ends.load(Ordering::SeqCst) {
            self.poll();
            if !self.port.arm() && !self.shared.ends.load(Ordering::SeqCst) {
                waiter.wait(None);
                self.shared.wake_ups.fetch_add(1, Ordering::Relaxed);
            }
            self.port.disarm();
        }
    }

    fn poll(&mut self) {
        while let Some(completion) = self.port.next(false) {
            self.unexpected(&completion);
        }
        for event in self.port.connection_events() {
            match event {
                ConnectionEvent::Requested(link, hello) => self.requested(link, &hello),
                ConnectionEvent::Lost(link) => self.lost(link),
                // This end dials none.
                ConnectionEvent::Connected(link, _)
                | ConnectionEvent::Refused(link, _)
                | ConnectionEvent::NotReached(link, _) => self.port.close(link),
            }
        }
        self.shared.clients.store(self.links.len(), Ordering::Relaxed);
    }

    fn requested(&mut self, link: LinkId, hello: &[u8]) {
        let client = match decode_hello(hello) {
            Ok(client) => client,
            Err(text) => return self.refuse(link, &text.into()),
        };
        if let Some(earlier) = self.links.get(&client).copied() {
            self.lost(earlier);
        }
        let port = &mut self.port;
        self.closed.retain(|(_, link)| port.may_land(*link));
        if self.closed.iter().any(|(other, _)| *other == client) {
            let text = "a request of the earlier connection is not over yet";
            return self.refuse(link, &Refusal::Full(text.to_owned()));
        }
        if self.reply.is_exclusive && !(self.links.is_empty() && self.closed.is_empty()) {
            let text = "the memory is lent to one client at a time, and another has it";
            return self.refuse(link, &Refusal::Full(text.to_owned()));
        }
        if self.links.len() >= self.clients_max {
            let text = format!("clients_max is {} at the server", self.clients_max);
            return self.refuse(link, &Refusal::Full(text));
        }
        // Before the client knows: it is counted from its first request on.
        self.shared.clients.fetch_add(1, Ordering::SeqCst);
        match self.port.accept(link, &self.reply.encode(), self.queue) {
            Ok(()) => {
                self.links.insert(client, link);
            }
            Err(_) => self.port.close(link), // gone meanwhile
        }
    }

    fn refuse(&mut self, link: LinkId, why: &Refusal) {
        // Otherwise it is gone already.
        let _ = self.port.refuse(link, &why.encode());
    }

    fn lost(&mut self, link: LinkId) {
        self.port.close(link);
        self.closed.extend(self.links.extract_if(.., |_, other| *other == link));
    }

    /// Clients send no messages: one that does is disconnected.
    fn unexpected(&mut self, completion: &Completion) {
        self.guard();
        self.lost(completion.link);
    }

    fn guard(&mut self) {
        let into = LocalSlice { region: self.region.id, offset: 0, bytes: 0 };
        self.port.post_receive(GUARD, self.queue, into);
    }
}
