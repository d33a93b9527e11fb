//! Matched-socket links: a client for each socket, which opens the memory of the same socket of other machines alone.

use super::client::{MemoryClient, RemoteMemory};
use super::options::MemoryClientOptions;
use super::proxy::{Proxy, ProxyState};
use super::requester::SocketRequester;
use crate::setters::setters;
use crate::topology::{CpuSocket, Topology};
use crate::{Error, ErrorCode};
use farside_fabric::Fabric;
use farside_fabric::runtime::{Thread, spawn};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most requests of a requester.
const REQUESTS_MAX: u32 = 1 << 16;

/// Options of [`SocketClients`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SocketOptions {
    /// Options of the client of each socket.
    pub client: MemoryClientOptions,
    /// Most requests of a requester whose outcomes were not taken; 256 by default, up to 65,536.
    pub requests_max: u32,
    /// Whether proxies are bound to their sockets and memory is placed there; true by default.
    pub binds: bool,
}

setters!(SocketOptions { client: MemoryClientOptions, requests_max: u32, binds: bool });

impl Default for SocketOptions {
    fn default() -> Self {
        Self { client: MemoryClientOptions::default(), requests_max: 256, binds: true }
    }
}

/// What the proxy of a socket has done, and where its adapter is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SocketStats {
    /// The socket.
    pub socket: u16,
    /// The socket of the adapter of its fabric; `None` where the system does not report it, and without an adapter.
    pub port_socket: Option<u16>,
    /// Memories that its client has opened: links.
    pub links: usize,
    /// Requests that it has taken from requesters.
    pub requests: u64,
    /// Times that work requests were posted: doorbells of an adapter.
    pub doorbells: u64,
    /// Work requests.
    pub work_requests: u64,
    /// How often it has woken up after it slept.
    pub wake_ups: u64,
}

/// Clients of memory servers, one for each socket of this machine, with a proxy thread each (paper 000, section III-D).
///
/// Each client opens only memory that the same socket of another machine lends, so that s sockets and m machines take s
/// links for each pair of machines and not s * s. Any thread uses all memories by a [`SocketRequester`]: it hands a request
/// to the proxy of the socket that serves the memory, which issues it next to its adapter.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryServer, SocketClients, SocketOptions};
/// use farside::topology::Topology;
/// # let (name, second) = (format!("near-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let machine = Topology::of_system()?;
/// let near = LendOptions::default().socket(Some(machine.socket(0)?.clone()));
/// let server = MemoryServer::lend(&fabric, &name, 1 << 20, &near)?;
///
/// let addresses = [server.address()]; // of all sockets of all machines
/// let clients = SocketClients::open(&machine, &[fabric], &addresses, &SocketOptions::default(), second)?;
/// let memory = clients.memories()[0];
/// assert_eq!(clients.socket_of(memory), Some(0));
///
/// let mut requester = clients.requester(0)?; // of a thread on socket 0
/// let added = requester.fetch_add(memory.at(0), 5)?;
/// assert_eq!(requester.wait(added, second)?, 0); // the value before
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Ends*: dropping it ends the proxies. What is outstanding then ends with `PeerLost`, atomics in flight with
/// `Indeterminate`; requesters remain usable for nothing else. *Idle* proxies sleep. *Memory that ends* (its server has
/// gone) fails its own requests alone.
pub struct SocketClients {
    topology: Topology,
    proxies: Vec<ProxyThread>,
    memories: Vec<RemoteMemory>,
    options: SocketOptions,
}

struct ProxyThread {
    state: Arc<ProxyState>,
    thread: Option<Thread>,
}

impl SocketClients {
    /// Opens the memory at each address by the client of one socket: the socket that its server names, modulo the number
    /// of sockets here. Where a server names none, the memory at address `i` is of socket `i` modulo that number.
    ///
    /// `fabrics` has one for each socket, such as that of the adapter port next to it, or one for all.
    ///
    /// *Blocks* for the connections, each for at most `timeout`. *Cost*: two round trips of the control path for each; twice
    /// that if the server names another socket than the position of its address. A thread for each socket.
    ///
    /// # Errors
    /// `BadConfiguration` for another number of fabrics, or an option out of its range; `System` if a thread cannot be bound
    /// or started; as [`MemoryClient::open`], with the address.
    pub fn open<A: AsRef<str>>(
        topology: &Topology,
        fabrics: &[Arc<dyn Fabric>],
        addresses: &[A],
        options: &SocketOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let sockets = topology.sockets();
        if fabrics.is_empty() || (fabrics.len() != 1 && fabrics.len() != sockets.len()) {
            let (fabrics, sockets) = (fabrics.len(), sockets.len());
            return Err(wrong(format!(
                "{fabrics} fabrics for {sockets} sockets: one, or one each"
            )));
        }
        if !(1..=REQUESTS_MAX).contains(&options.requests_max) {
            let text = format!("requests_max is {}: 1 to {REQUESTS_MAX}", options.requests_max);
            return Err(wrong(text));
        }
        let mut clients = Vec::new();
        for (socket, fabric) in sockets.iter().zip(fabrics.iter().cycle()) {
            let client = on(socket, options, || MemoryClient::new(fabric, &options.client))??;
            clients.push(client);
        }
        let mut memories = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            let opened = open_matched(&mut clients, at, address.as_ref(), timeout);
            let named = |error: Error| {
                let detail = format!("{}: {}", address.as_ref(), error.detail);
                Error { detail, ..error }
            };
            memories.push(opened.map_err(named)?);
        }
        let mut opened = Self {
            topology: topology.clone(),
            proxies: Vec::new(),
            memories,
            options: options.clone(),
        };
        for ((socket, fabric), client) in sockets.iter().zip(fabrics.iter().cycle()).zip(clients) {
            opened.start(socket, fabric, client)?;
        }
        Ok(opened)
    }

    /// Starts the proxy of a socket.
    fn start(
        &mut self,
        socket: &CpuSocket,
        fabric: &Arc<dyn Fabric>,
        mut client: MemoryClient,
    ) -> Result<(), Error> {
        let state = Arc::new(ProxyState::new(&mut client, fabric, socket.number()));
        let memories = self.memories.iter().copied().filter(|memory| memory.is_of(state.client));
        let requests_max = self.options.client.requests_max;
        let proxy = Proxy::new(client, memories.collect(), Arc::clone(&state), requests_max);
        // A thread is bound as the one that starts it.
        let name = format!("farside-proxy-{}", socket.number());
        let thread = on(socket, &self.options, || spawn(&name, move || proxy.run()))?;
        let thread = thread.map_err(|error| Error::with(ErrorCode::System, error.to_string()))?;
        self.proxies.push(ProxyThread { state, thread: Some(thread) });
        Ok(())
    }

    /// Returns the sockets.
    pub const fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the memories, in the order of their addresses.
    pub fn memories(&self) -> &[RemoteMemory] {
        &self.memories
    }

    /// Returns the number of the socket whose proxy serves a memory; `None` for one of other clients.
    pub fn socket_of(&self, memory: RemoteMemory) -> Option<u16> {
        let proxy = self.proxies.iter().find(|proxy| memory.is_of(proxy.state.client));
        proxy.map(|proxy| proxy.state.socket)
    }

    /// Returns a requester for a thread on this socket. The thread binds itself ([`CpuSocket::bind_current_thread`]).
    ///
    /// # Errors
    /// `BadConfiguration` if there is no such socket.
    pub fn requester(&self, socket: usize) -> Result<SocketRequester, Error> {
        let socket = self.topology.socket(socket)?;
        let socket = self.options.binds.then(|| socket.clone());
        let proxies = self.proxies.iter().map(|proxy| &proxy.state);
        Ok(SocketRequester::new(proxies, self.options.requests_max, socket))
    }

    /// Returns what the proxy of each socket has done.
    pub fn stats(&self) -> Vec<SocketStats> {
        let stats = |proxy: &ProxyThread| {
            let (state, counters) = (&proxy.state, &proxy.state.counters);
            let node = state.fabric.numa_node();
            let port = node.and_then(|node| self.topology.socket_of_node(node));
            SocketStats {
                socket: state.socket,
                port_socket: port.map(CpuSocket::number),
                links: self.memories.iter().filter(|memory| memory.is_of(state.client)).count(),
                requests: counters.requests.load(Ordering::Relaxed),
                doorbells: counters.doorbells.load(Ordering::Relaxed),
                work_requests: counters.work_requests.load(Ordering::Relaxed),
                wake_ups: counters.wake_ups.load(Ordering::Relaxed),
            }
        };
        self.proxies.iter().map(stats).collect()
    }
}

impl fmt::Debug for SocketClients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketClients({} memories from {})", self.memories.len(), self.topology)
    }
}

impl Drop for SocketClients {
    fn drop(&mut self) {
        self.proxies.iter().for_each(|proxy| proxy.state.stop());
        // They do not panic; if one did, its requesters have been notified.
        self.proxies.iter_mut().filter_map(|proxy| proxy.thread.take()).for_each(Thread::join);
    }
}

/// Runs a function on the socket, or on this thread if nothing is bound.
fn on<T: Send>(
    socket: &CpuSocket,
    options: &SocketOptions,
    body: impl FnOnce() -> T + Send,
) -> Result<T, Error> {
    if options.binds { socket.run(body) } else { Ok(body()) }
}

/// Opens a memory by the client of its socket; by that of its position where its server names none.
fn open_matched(
    clients: &mut [MemoryClient],
    at: usize,
    address: &str,
    timeout: Duration,
) -> Result<RemoteMemory, Error> {
    let first = at % clients.len();
    let memory = clients[first].open(address, timeout)?;
    match memory.socket().map(|socket| usize::from(socket) % clients.len()) {
        Some(matched) if matched != first => {
            clients[first].close(memory)?;
            clients[matched].open(address, timeout)
        }
        _ => Ok(memory),
    }
}

fn wrong(text: String) -> Error {
    Error::with(ErrorCode::BadConfiguration, text)
}
