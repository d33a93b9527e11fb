//! Memory of each socket used by threads of each socket, directly and through the proxy of the memory's socket (paper 000,
//! section III-D, tables II and III).

use super::TIMEOUT;
use crate::settings::{BenchNuma, NumaPath};
use crate::window::{Figure, measure};
use farside::fabrics::{self, Fabric};
use farside::onesided::{
    Buffer, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, ProxiedRequestId,
    RemoteMemory, RequestId, SocketClients, SocketOptions, SocketRequester,
};
use farside::topology::{CpuSocket, Topology};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;
use std::sync::Arc;

/// Bytes of each remote memory that are used.
const BYTES: u64 = 1 << 20;
/// From one request of a batch to the next, in both memories.
const STRIDE: u64 = 4096;

const OPERATIONS: [&str; 3] = ["read", "write", "fetch_add"];

/// Requests of a thread of one socket on memory of another, by one path.
#[derive(Debug, Serialize)]
struct NumaFigure {
    operation: &'static str,
    path: &'static str,
    /// The socket of the thread.
    thread: u16,
    /// The socket of the memory: of this machine, or of that of its server.
    memory: u16,
    batch: u32,
    /// Doorbells of a batch.
    doorbells: u64,
    /// Time per request.
    #[serde(flatten)]
    time: Figure,
    /// Million requests per second.
    requests_per_us: f64,
    /// The time divided by that of the direct path between the same sockets.
    by_direct: Option<f64>,
    /// Whether the sockets of this machine are of different NUMA nodes. If not, the figures show the cost of proxies alone.
    is_numa: bool,
}

/// The memory of each socket, and the sockets.
struct NumaBench {
    topology: Topology,
    binds: bool,
    client: MemoryClientOptions,
    fabric: Arc<dyn Fabric>,
    addresses: Vec<String>,
    /// Of this process, if the memory is.
    _servers: Vec<MemoryServer>,
}

/// Runs `farside bench numa`.
///
/// # Errors
/// Usage for a topology that this machine does not have; those of memory servers and of binding threads; that of output
/// which cannot be written.
pub fn run(arguments: &BenchNuma, output: Output) -> Result<(), Failure> {
    let bench = NumaBench::new(arguments)?;
    let clients = bench.clients()?;
    let mut figures: Vec<NumaFigure> = Vec::new();
    let sockets = bench.topology.sockets();
    let count = OPERATIONS.len() * arguments.batch.len() * arguments.paths.len();
    let bar = output.bar("figures", (count * sockets.len() * bench.addresses.len()) as u64);
    for memory in 0..bench.addresses.len() {
        for socket in sockets {
            for path in &arguments.paths {
                let measured = bench.on(socket, || {
                    let mut way = bench.way(*path, &clients, (socket, memory))?;
                    let each = |figure| way.measure(&clients, figure, arguments.windows);
                    arguments.figures().map(each).collect::<Result<Vec<_>, Failure>>()
                })??;
                bar.inc(measured.len() as u64);
                let ends = (socket.number(), bench.socket_of(&clients, memory));
                for ((operation, batch), (time, doorbells)) in arguments.figures().zip(measured) {
                    let direct = figures.iter().find(|one| {
                        (one.operation, one.batch, one.path) == (operation, batch, "direct")
                            && (one.thread, one.memory) == ends
                    });
                    figures.push(NumaFigure {
                        operation,
                        path: path.name(),
                        thread: ends.0,
                        memory: ends.1,
                        batch,
                        doorbells,
                        time,
                        requests_per_us: 1e3 / time.median_ns,
                        by_direct: direct.map(|one| time.median_ns / one.time.median_ns),
                        is_numa: bench.topology.is_numa(),
                    });
                }
            }
        }
    }
    bar.finish_and_clear();
    output.line(table(&figures));
    for line in bench.remarks(&clients) {
        output.line(line);
    }
    let labels = ["a request, ns, median", "requests of a doorbell"];
    super::draw(arguments.plot.as_deref(), labels, &figures, |one| {
        let NumaFigure { operation, path, thread, memory, .. } = one;
        (format!("{operation} {path}, {thread} to {memory}"), one.batch.into(), one.time.median_ns)
    })?;
    output.value(&figures);
    Ok(())
}

fn table(figures: &[NumaFigure]) -> String {
    let heads = [
        "operation",
        "path",
        "thread",
        "memory",
        "batch",
        "doorbells",
        "best",
        "median",
        "MOPS",
        "by direct",
    ];
    let mut table = Table::new(heads).left(0).left(1);
    for one in figures {
        table.row([
            one.operation.to_owned(),
            one.path.to_owned(),
            one.thread.to_string(),
            one.memory.to_string(),
            one.batch.to_string(),
            one.doorbells.to_string(),
            time(one.time.best_ns),
            time(one.time.median_ns),
            format!("{:.3}", one.requests_per_us),
            one.by_direct.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        ]);
    }
    table.text()
}

impl BenchNuma {
    fn figures(&self) -> impl Iterator<Item = (&'static str, u32)> {
        OPERATIONS
            .into_iter()
            .flat_map(|operation| self.batch.iter().map(move |batch| (operation, *batch)))
    }
}

impl NumaBench {
    fn new(arguments: &BenchNuma) -> Result<Self, Failure> {
        let topology = choice::topology(arguments.topology.as_deref())?;
        let binds = !arguments.unbound;
        let client = MemoryClientOptions::default().in_call(!arguments.posted);
        if let Some(first) = arguments.to.first() {
            let Chosen { fabric, .. } = choice::caller(&arguments.choice, first, "pool")?;
            let address =
                |to: &String| choice::address_to_call(&arguments.choice, to, "pool", first);
            let addresses = arguments.to.iter().map(address).collect::<Result<_, Failure>>()?;
            return Ok(Self { topology, binds, client, fabric, addresses, _servers: Vec::new() });
        }
        let lender = fabrics::shared_memory()?;
        let lend = |socket: &CpuSocket| {
            let name = format!("bench-numa-{}-{}", std::process::id(), socket.number());
            let options = LendOptions::default().socket(binds.then(|| socket.clone()));
            MemoryServer::lend(&lender, &name, BYTES, &options)
        };
        let servers = topology.sockets().iter().map(lend).collect::<Result<Vec<_>, _>>()?;
        let addresses = servers.iter().map(|server| server.address().to_owned()).collect();
        let fabric = fabrics::shared_memory()?;
        Ok(Self { topology, binds, client, fabric, addresses, _servers: servers })
    }

    fn clients(&self) -> Result<SocketClients, Failure> {
        let options = SocketOptions::default().binds(self.binds).client(self.client.clone());
        let fabrics = [Arc::clone(&self.fabric)];
        let clients =
            SocketClients::open(&self.topology, &fabrics, &self.addresses, &options, TIMEOUT)?;
        match clients.memories().iter().map(RemoteMemory::bytes).min() {
            Some(lends) if lends < BYTES => {
                let text = format!("a server lends {lends} B; the benchmark needs {BYTES}");
                Err(Failure::usage(text))
            }
            _ => Ok(clients),
        }
    }

    /// Runs a function on a socket, unless nothing is bound.
    fn on<T: Send>(
        &self,
        socket: &CpuSocket,
        body: impl FnOnce() -> T + Send,
    ) -> Result<T, farside::Error> {
        if self.binds { socket.run(body) } else { Ok(body()) }
    }

    /// The socket that a memory's server names, or that of the proxy which serves it.
    fn socket_of(&self, clients: &SocketClients, memory: usize) -> u16 {
        let memory = clients.memories()[memory];
        memory.socket().or_else(|| clients.socket_of(memory)).unwrap_or(0)
    }

    /// Returns a path of this thread, which is on the socket, to a memory.
    fn way(
        &self,
        path: NumaPath,
        clients: &SocketClients,
        (socket, memory): (&CpuSocket, usize),
    ) -> Result<NumaWay, Failure> {
        if path == NumaPath::Proxy {
            let requester = clients.requester(socket.number().into())?;
            let memory = clients.memories()[memory];
            let buffer = requester.register(memory, BYTES)?;
            return Ok(NumaWay::Proxy { requester, memory, buffer, requests: Vec::new() });
        }
        let mut client = MemoryClient::new(&self.fabric, &self.client)?;
        let memory = client.open(&self.addresses[memory], TIMEOUT)?;
        let buffer = match self.binds {
            true => client.register_next_to(socket, BYTES)?,
            false => client.register(BYTES)?,
        };
        Ok(NumaWay::Direct { client: Box::new(client), memory, buffer, requests: Vec::new() })
    }

    /// What the figures are of.
    fn remarks(&self, clients: &SocketClients) -> Vec<String> {
        let (topology, sockets) = (&self.topology, self.topology.sockets());
        let nodes: Vec<String> =
            sockets.iter().map(|socket| format!("{:?}", socket.nodes())).collect();
        let nodes = nodes.join(";");
        let proxies = "these figures are the cost of a proxy, and show no NUMA effect";
        let what = match (topology.is_numa(), sockets.len(), self.binds) {
            (_, _, false) => "threads and memory are not bound to the sockets".to_owned(),
            (true, ..) => format!("sockets {topology} of NUMA nodes {nodes}"),
            (false, 1, _) => format!("this machine has one socket ({topology}): {proxies}"),
            (false, ..) => format!("sockets {topology} are of one NUMA node ({nodes}): {proxies}"),
        };
        let links: usize = clients.stats().iter().map(|stats| stats.links).sum();
        let all = sockets.len() * self.addresses.len();
        vec![
            format!("{what}; over {}", self.fabric.name()),
            format!("links: {links} of matched sockets and their proxies, {all} of all to all"),
        ]
    }
}

/// How a thread reaches a memory, with what it needs.
enum NumaWay {
    Direct {
        client: Box<MemoryClient>,
        memory: RemoteMemory,
        buffer: Buffer,
        requests: Vec<RequestId>,
    },
    Proxy {
        requester: SocketRequester,
        memory: RemoteMemory,
        buffer: Buffer,
        requests: Vec<ProxiedRequestId>,
    },
}

impl NumaWay {
    /// Returns the time of a request of a batch, and the doorbells of the batch.
    fn measure(
        &mut self,
        clients: &SocketClients,
        (operation, batch): (&str, u32),
        windows: u32,
    ) -> Result<(Figure, u64), Failure> {
        let batches = |way: &mut Self, count| {
            (0..count).try_for_each(|_| way.batch(operation, u64::from(batch)))
        };
        let time = measure(windows, |count| batches(self, count))?;
        let before = self.doorbells(clients);
        batches(self, 1)?;
        Ok((time.per(batch.into()), self.doorbells(clients) - before))
    }

    /// Posts a batch and waits for it.
    fn batch(&mut self, operation: &str, batch: u64) -> Result<(), farside::Error> {
        let places = (0..batch).map(|at| at % (BYTES / STRIDE) * STRIDE);
        match self {
            Self::Direct { client, memory, buffer, requests } => {
                for place in places {
                    let (at, local) = (memory.at(place), place..place + 64);
                    requests.push(match operation {
                        "read" => client.read(at, buffer, local)?,
                        "write" => client.write(at, buffer, local)?,
                        _ => client.fetch_add(at, 1)?,
                    });
                }
                client.submit();
                requests.drain(..).try_for_each(|one| client.wait(one, TIMEOUT).map(drop))
            }
            Self::Proxy { requester, memory, buffer, requests } => {
                for place in places {
                    let (at, local) = (memory.at(place), place..place + 64);
                    requests.push(match operation {
                        "read" => requester.read(at, buffer, local)?,
                        "write" => requester.write(at, buffer, local)?,
                        _ => requester.fetch_add(at, 1)?,
                    });
                }
                requester.submit();
                requests.drain(..).try_for_each(|one| requester.wait(one, TIMEOUT).map(drop))
            }
        }
    }

    fn doorbells(&self, clients: &SocketClients) -> u64 {
        match self {
            Self::Direct { client, .. } => client.stats().doorbells,
            Self::Proxy { .. } => clients.stats().iter().map(|stats| stats.doorbells).sum(),
        }
    }
}
