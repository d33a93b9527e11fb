//! Clients that read and write the memory of one server, one-sidedly or by messages, and their rates in virtual time.

use crate::fabric::{
    HardwareProfile, NvmCounters, NvmProfile, NvmWriter, OPTANE_CX5, ProcessorAccess, SimNet,
    SimOptions, SocketPlacement, VERBS_CONNECTX5, VERBS_FLUSH, XEON_5215M,
};
use crate::reproduce_000::scene::{
    Endpoint, Link, Request, SERVER, Study, Tally, ThreadProgram, Verb,
};
use crate::stage::{Spent, Then};
use farside_base::{Access, FlushScope, Random, RegionKind};
use farside_fabric::{Fabric, FabricError, Region, RegionSpec};
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of the region that clients access. The paper has 768 GB a socket; these are a thousand times what DDIO caches.
pub(super) const REGION_BYTES: u64 = 64 << 20;
/// Client machines with two adapters each (002 Table 2), as nodes of one.
const CLIENT_NODES: usize = 10;
/// Bytes of the memory of a client thread, its receives included.
const CLIENT_BYTES: u64 = 64 << 10;
/// Longest payload that a program posts inline.
const INLINE_BYTES: u32 = 64;
/// Receives that each server thread keeps posted.
const RECEIVES: u64 = 96;
/// Time that the adapters and caches run before they are measured, and time for which they are.
const WARM_UP_NS: u64 = 60_000;
const MEASURED_NS: u64 = 80_000;
/// Time before the measurement of plain stores, which fill the whole cache.
const STORES_WARM_UP_NS: u64 = 400_000;
/// Time to find the page of a random address: one load of its entry.
const PAGE_WALK_NS: u64 = XEON_5215M.miss_ns;
/// Further time of a message that the adapter wrote to memory and not to the cache, with DDIO off. From 002 §4.1: 54 M/s
/// become 23 M/s. An input.
const UNCACHED_MESSAGE_NS: u64 = 500;

/// The kind of the server's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServerMemory {
    Dram,
    Nvm,
}

/// The work of a server thread for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ServerWork {
    /// Nothing: the paper's LIMIT.
    Nothing,
    /// Copies its payload to memory, by these stores.
    Write(NvmWriter),
    /// Answers with the payload.
    Read,
}

/// How requests reach the memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Path {
    /// WRITE or READ.
    OneSided(Verb),
    /// Messages to this number of server threads.
    TwoSided(usize, ServerWork),
}

/// The order of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Addresses {
    /// At random, aligned to this.
    Random(u64),
    /// At random in the pages of one DIMM.
    OneDimm,
    /// One after the other.
    Steps,
}

/// A load.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Load {
    pub(super) hardware: HardwareProfile,
    pub(super) memory: ServerMemory,
    pub(super) path: Path,
    /// Whether the memory is at the other socket than the adapter and the server's threads.
    pub(super) is_across: bool,
    /// Bytes of the payload on the wire.
    pub(super) bytes: u32,
    pub(super) addresses: Addresses,
    pub(super) clients: usize,
    /// Requests that each client has in flight.
    pub(super) window: u64,
}

impl Load {
    /// Random requests of all clients to persistent memory as the paper's baseline: at the other socket, DDIO on.
    pub(super) const fn baseline(path: Path, bytes: u32) -> Self {
        Self {
            hardware: OPTANE_CX5,
            memory: ServerMemory::Nvm,
            path,
            is_across: true,
            bytes,
            addresses: Addresses::Random(bytes as u64),
            clients: 40,
            window: 12,
        }
    }

    /// The same at the adapter's socket (H1).
    pub(super) const fn near(path: Path, bytes: u32) -> Self {
        Self { is_across: false, ..Self::baseline(path, bytes) }
    }

    /// The same to DRAM at the adapter's socket.
    pub(super) const fn dram(path: Path, bytes: u32) -> Self {
        Self { memory: ServerMemory::Dram, ..Self::near(path, bytes) }
    }

    /// Sets the persistent memory.
    pub(super) const fn with_nvm(self, nvm: NvmProfile) -> Self {
        Self { hardware: HardwareProfile { nvm: Some(nvm), ..self.hardware }, ..self }
    }

    /// Turns DDIO off (H3).
    pub(super) const fn without_ddio(self) -> Self {
        match self.hardware.nvm {
            Some(nvm) => self.with_nvm(NvmProfile { ddio: false, ..nvm }),
            None => self,
        }
    }

    /// Aligns and pads the payload to a multiple of this (H5 to H7).
    pub(super) const fn padded(self, to: u32) -> Self {
        let bytes = self.bytes.next_multiple_of(to);
        Self { bytes, addresses: Addresses::Random(to as u64), ..self }
    }

    /// Runs it.
    pub(super) fn run(&self) -> Result<Outcome, FabricError> {
        let options = SimOptions::on_hardware(VERBS_CONNECTX5, self.hardware);
        let net = SimNet::new(1, SimOptions { transcript_lines: 16, ..options });
        let memory = self.register(&net)?;
        let mut servers = self.servers(&net)?;
        let mut study = Study::with(&net, XEON_5215M, MEASURED_NS.max(2 * u64::from(self.bytes)));
        let tally = study.tally.clone();
        let steps = Rc::new(Cell::new(0));
        let mut nodes: Vec<Option<Region>> = vec![None; CLIENT_NODES];
        for number in 0..self.clients {
            let node = format!("client {}", number % CLIENT_NODES);
            let region = match &nodes[number % CLIENT_NODES] {
                Some(region) => region.clone(),
                None => register(&net, &node, (CLIENT_BYTES * 8).max(u64::from(self.bytes)))?,
            };
            nodes[number % CLIENT_NODES] = Some(region.clone());
            let mut end = Endpoint::new(&net, &node, &format!("thread {number}"), region)?;
            end.results = CLIENT_BYTES * (number / CLIENT_NODES % 8) as u64;
            end.message_bytes = self.reply_bytes();
            let to = number % servers.len();
            let [link, _] = end.connect(&server_name(to), &mut servers[to])?;
            let link = end.import(link, &memory)?;
            let random = Random::new(number as u64 + 1);
            let (load, tally, steps) = (*self, tally.clone(), Rc::clone(&steps));
            let client = ClientThread { end, link, load, tally, posted: 0, done: 0, steps, random };
            study.add(&node, client);
        }
        let ends = self.start_servers(&mut study, servers, &memory)?;
        let counted = || net.nvm_counters(SERVER, u8::from(self.is_across));
        let mut before = NvmCounters::default();
        let warm_up_ns = match self.path {
            Path::TwoSided(_, ServerWork::Write(NvmWriter::Store)) => STORES_WARM_UP_NS,
            _ => WARM_UP_NS,
        };
        let load = study.measure_from(warm_up_ns, || before = counted())?;
        drop(ends);
        Ok(Outcome { rate: load.rate, counters: counted().since(&before) })
    }

    /// Returns the time of these lists of requests of one client, in microseconds; each is posted by one doorbell when
    /// the one before has completed.
    pub(super) fn latency(&self, lists: Vec<Vec<Request>>) -> Result<f64, FabricError> {
        let net = SimNet::new(1, SimOptions::on_hardware(VERBS_FLUSH, self.hardware));
        let memory = self.register(&net)?;
        let mut servers = self.servers(&net)?;
        let region = register(&net, "client", CLIENT_BYTES)?;
        let mut end = Endpoint::new(&net, "client", "client", region)?;
        end.results = CLIENT_BYTES / 2;
        let [link, _] = end.connect(&server_name(0), &mut servers[0])?;
        let link = end.import(link, &memory)?;
        let mut study = Study::with(&net, XEON_5215M, MEASURED_NS);
        let tally = study.tally.clone();
        study.add("client", ListThread { end, link, lists, next: 0, waits: false, tally });
        let rate = study.rate(WARM_UP_NS).inspect(|_| drop(servers))?;
        Ok(1.0 / rate)
    }

    /// Registers the server's memory that clients access.
    fn register(&self, net: &SimNet) -> Result<Region, FabricError> {
        let placement = SocketPlacement {
            memory_socket: u8::from(self.is_across),
            ..SocketPlacement::default()
        };
        let failed = |e| FabricError::System("placement", e);
        net.place(SERVER, placement).map_err(failed)?;
        net.place_persistent(SERVER, self.memory == ServerMemory::Nvm).map_err(failed)?;
        let flushes = net.options().capabilities.flush == FlushScope::Persistent
            && self.memory == ServerMemory::Nvm;
        let flush = if flushes { Access::FLUSH_PERSISTENT } else { Access::NONE };
        let access = Access::ALL.with(flush);
        let spec = RegionSpec { bytes: REGION_BYTES, access, kind: RegionKind::Memory };
        let region = net.fabric(SERVER).register(&spec)?;
        net.place_persistent(SERVER, false).map_err(failed)?;
        net.place(SERVER, SocketPlacement::default()).map_err(failed)?;
        Ok(region)
    }

    /// Opens a port for each server thread; one if there are none.
    fn servers(&self, net: &SimNet) -> Result<Vec<Endpoint>, FabricError> {
        let count = match self.path {
            Path::OneSided(_) => 1,
            Path::TwoSided(threads, _) => threads.min(self.clients).max(1),
        };
        let each = (64 + RECEIVES * u64::from(self.bytes)).next_multiple_of(4_096);
        let region = register(net, SERVER, each * count as u64)?;
        let open = |number: usize| {
            let mut end = Endpoint::new(net, SERVER, &server_name(number), region.clone())?;
            end.results = each * number as u64;
            end.message_bytes = self.bytes;
            Ok(end)
        };
        (0..count).map(open).collect()
    }

    /// Starts the server threads. Returns the ports that have none, which stay open.
    fn start_servers(
        &self,
        study: &mut Study,
        servers: Vec<Endpoint>,
        memory: &Region,
    ) -> Result<Vec<Endpoint>, FabricError> {
        let Path::TwoSided(_, work) = self.path else {
            return Ok(servers);
        };
        for (number, mut end) in servers.into_iter().enumerate() {
            for receive in 0..RECEIVES {
                end.receive(receive)?;
            }
            let random = Random::new(1_000 + number as u64);
            let (load, memory) = (*self, memory.clone());
            study.add(SERVER, ServerThread { end, memory, load, work, random });
        }
        Ok(Vec::new())
    }

    /// Returns the bytes of an answer.
    const fn reply_bytes(&self) -> u32 {
        match self.path {
            Path::TwoSided(_, ServerWork::Read) => self.bytes,
            _ => 16,
        }
    }

    /// Returns the next address.
    fn address(&self, random: &mut Random, steps: &Cell<u64>) -> u64 {
        let bytes = u64::from(self.bytes);
        match self.addresses {
            Addresses::Random(align) => random.below((REGION_BYTES - bytes) / align) * align,
            Addresses::OneDimm => {
                const STRIPE: u64 = 6 * 4_096;
                let page = random.below(REGION_BYTES / STRIPE) * STRIPE;
                page + random.below((4_096 / bytes).max(1)) * bytes
            }
            Addresses::Steps => {
                let at = steps.get();
                steps.set(at + 1);
                at % (REGION_BYTES / bytes) * bytes
            }
        }
    }
}

/// What a load reached.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Requests a microsecond.
    pub(super) rate: f64,
    /// The counters of the persistent memory in the measured time.
    pub(super) counters: NvmCounters,
}

impl Outcome {
    /// Returns the bandwidth of payloads of `bytes` bytes, in Gb/s.
    pub(super) fn gbps(&self, bytes: u32) -> f64 {
        self.rate * f64::from(bytes) * 8.0 / 1e3
    }
}

fn server_name(number: usize) -> String {
    format!("{SERVER} {number}")
}

fn register(net: &SimNet, node: &str, bytes: u64) -> Result<Region, FabricError> {
    net.fabric(node).register(&RegionSpec { bytes, access: Access::ALL, kind: RegionKind::Memory })
}

/// Keeps a number of requests in flight.
struct ClientThread {
    end: Endpoint,
    link: Link,
    load: Load,
    tally: Tally,
    posted: u64,
    done: u64,
    steps: Rc<Cell<u64>>,
    random: Random,
}

impl ClientThread {
    /// Returns the next request.
    fn request(&mut self) -> Request {
        let bytes = self.load.bytes;
        match self.load.path {
            Path::OneSided(verb) => {
                let inline = verb == Verb::Write && bytes <= INLINE_BYTES;
                let verb = if inline { Verb::Inline } else { verb };
                let at = self.load.address(&mut self.random, &self.steps);
                Request::new(verb, 0, bytes, at)
            }
            Path::TwoSided(_, ServerWork::Read) => Request::word(Verb::Send([0, 0])),
            Path::TwoSided(..) if bytes <= 16 => Request::word(Verb::Send([0, 0])),
            Path::TwoSided(..) => Request::new(Verb::Message, 0, bytes, 0),
        }
    }
}

impl ThreadProgram for ClientThread {
    fn run(&mut self) -> Result<Spent, FabricError> {
        let two_sided = matches!(self.load.path, Path::TwoSided(..));
        let mut idle = true;
        if self.posted > self.done
            && let Some(completion) = self.end.poll()?
        {
            self.done += 1;
            self.tally.add(1);
            if two_sided {
                self.end.receive(completion.id.0)?;
            }
            idle = false;
        }
        if self.posted - self.done < self.load.window {
            if two_sided && self.posted < self.load.window {
                self.end.receive(self.posted)?;
            }
            let request = self.request();
            self.end.post(self.link, &[request], !two_sided)?;
            self.posted += 1;
            idle = false;
        }
        Ok(Spent { then: if idle { Then::Poll } else { Then::Run }, ..Spent::NOTHING })
    }
}

/// Answers messages.
struct ServerThread {
    end: Endpoint,
    memory: Region,
    load: Load,
    work: ServerWork,
    random: Random,
}

impl ServerThread {
    /// Does the work of a message, which takes the time of the running program.
    fn serve(&mut self) {
        let bytes = u64::from(self.load.bytes);
        let offset = self.load.address(&mut self.random, &Cell::new(0));
        let access = ProcessorAccess { region: self.memory.id, offset, bytes, thread_socket: 0 };
        let net = &self.end.net;
        if self.work != ServerWork::Nothing {
            net.spend_ns(PAGE_WALK_NS);
        }
        match (self.load.memory, self.work) {
            (_, ServerWork::Nothing) => return,
            (ServerMemory::Dram, _) => net.spend_ns(XEON_5215M.miss_ns),
            (ServerMemory::Nvm, ServerWork::Write(writer)) => {
                net.store_persistent(SERVER, &access, writer);
            }
            (ServerMemory::Nvm, ServerWork::Read) => {
                net.load_persistent(SERVER, &access);
            }
        }
        net.spend_ns(bytes / XEON_5215M.copy_bytes_per_ns);
    }
}

impl ThreadProgram for ServerThread {
    fn run(&mut self) -> Result<Spent, FabricError> {
        let Some(completion) = self.end.poll()? else {
            return Ok(Spent { then: Then::Poll, ..Spent::NOTHING });
        };
        let uncached = self.load.hardware.nvm.is_some_and(|nvm| !nvm.ddio);
        let message_ns = if uncached { UNCACHED_MESSAGE_NS } else { 0 };
        self.end.net.spend_ns(XEON_5215M.miss_ns + message_ns);
        self.serve();
        let to = Link::messages(completion.link);
        let reply = match self.load.reply_bytes() {
            bytes if bytes <= 16 => Request::word(Verb::Send([0, 0])),
            bytes => Request::new(Verb::Message, 0, bytes, 0),
        };
        self.end.post(to, &[reply], false)?;
        self.end.receive(completion.id.0)?;
        Ok(Spent::NOTHING)
    }
}

/// Posts one list after the other, and counts when all have completed.
struct ListThread {
    end: Endpoint,
    link: Link,
    lists: Vec<Vec<Request>>,
    next: usize,
    waits: bool,
    tally: Tally,
}

impl ThreadProgram for ListThread {
    fn run(&mut self) -> Result<Spent, FabricError> {
        if self.waits {
            if self.end.poll()?.is_none() {
                return Ok(Spent { then: Then::Poll, ..Spent::NOTHING });
            }
            self.next += 1;
            if self.next == self.lists.len() {
                self.next = 0;
                self.tally.add(1);
            }
        }
        if let Some(list) = self.lists.get(self.next) {
            self.end.post(self.link, list, true)?;
        }
        self.waits = true;
        Ok(Spent::NOTHING)
    }
}
