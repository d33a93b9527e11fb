//! Programs on raw ports of simulated adapters, and their rates in virtual time.

use crate::fabric::{
    CONNECTX3_IB, E5_2640_V2, ProcessorCosts, SimNet, SimOptions, SocketPlacement, VERBS_CONNECTX3,
};
use crate::stage::{Actor, ActorNetwork, Spent, Then};
use farside_base::{
    Access, Completion, CompletionStatus, FlushScope, LinkId, LocalSlice, Operation, Random,
    Receive, ReceiveQueueId, RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags,
    WorkId,
};
use farside_fabric::{Fabric, FabricError, LinkEvent, Port, PortSpec, Region, RegionSpec};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering;

/// The node whose memory the clients use.
pub(crate) const SERVER: &str = "server";
/// Bytes at the end of each region for results of atomics and messages.
pub(crate) const RESULT_BYTES: u64 = 4_096;
/// Receives that each end of a link keeps posted.
const RECEIVES: u64 = 4;
/// Receives that the server keeps posted.
const SERVER_RECEIVES: u64 = 128;
/// Bytes of a message.
pub(crate) const MESSAGE_BYTES: u32 = 16;
/// Time that a program runs before it is measured, and time for which it is measured.
const WARM_UP_NS: u64 = 60_000;
const MEASURED_NS: u64 = 480_000;

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// WRITE of gathered slices.
    Write,
    /// WRITE of inline bytes, as many as the slices have.
    Inline,
    Read,
    FetchAdd,
    /// Compare-and-swap of these two values.
    CompareSwap(u64, u64),
    /// SEND of two inline words.
    Send([u64; 2]),
    /// SEND of gathered slices.
    Message,
    /// FLUSH of the range to persistence.
    Flush,
}

/// A request of a program: local ranges (offset, bytes) and the offset in the server's region.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    pub(crate) local: Vec<(u64, u32)>,
    pub(crate) at: u64,
}

impl Request {
    pub(crate) fn new(verb: Verb, local: u64, bytes: u32, at: u64) -> Self {
        Self { verb, local: vec![(local, bytes)], at }
    }

    /// A request that needs no local range of its own.
    pub(crate) fn word(verb: Verb) -> Self {
        Self { verb, local: Vec::new(), at: 0 }
    }
}

/// A port with memory, which it may share, and a receive queue.
pub(crate) struct Endpoint {
    pub(crate) net: SimNet,
    port: Box<dyn Port>,
    pub(crate) region: Region,
    /// Offset of its results of atomics and messages.
    pub(crate) results: u64,
    /// Bytes of each of its receives, which are behind its results.
    pub(crate) message_bytes: u32,
    queue: ReceiveQueueId,
}

impl Endpoint {
    pub(crate) fn new(
        net: &SimNet,
        node: &str,
        name: &str,
        region: Region,
    ) -> Result<Self, FabricError> {
        let mut port = net.fabric(node).open(&PortSpec { listen: Some(name.to_owned()) })?;
        let queue = port.create_receive_queue(256)?;
        Ok(Self { net: net.clone(), port, region, results: 0, message_bytes: MESSAGE_BYTES, queue })
    }

    /// Connects to the port that listens under this name. Returns the link of each end.
    pub(crate) fn connect(
        &mut self,
        name: &str,
        peer: &mut Self,
    ) -> Result<[LinkId; 2], FabricError> {
        let link = self.port.connect(name, b"", self.queue)?;
        let LinkEvent::Requested { link: back, .. } = peer.event()? else {
            return Err(FabricError::Unknown("link event"));
        };
        peer.port.accept(back, b"", peer.queue)?;
        self.event()?;
        Ok([link, back])
    }

    /// Returns the way by a link to a region of the peer.
    pub(crate) fn import(&mut self, link: LinkId, region: &Region) -> Result<Link, FabricError> {
        Ok(Link { link, remote: self.port.import(link, &region.token)? })
    }

    fn event(&mut self) -> Result<LinkEvent, FabricError> {
        self.net.run_until_idle();
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        events.pop().ok_or(FabricError::Unknown("link event"))
    }

    /// Posts the receive of this number.
    pub(crate) fn receive(&mut self, number: u64) -> Result<(), FabricError> {
        let offset = self.message_at(number);
        let into = LocalSlice { region: self.region.id, offset, bytes: self.message_bytes };
        let receive = Receive { id: WorkId(number), queue: self.queue, into };
        accepted(self.port.post_receives(&[receive]).accepted, 1)
    }

    /// Returns the message in the receive of this number.
    pub(crate) fn message(&self, number: u64) -> [u64; 2] {
        let offset = self.message_at(number);
        [offset, offset + 8].map(|at| self.load(at))
    }

    /// Returns where the receive of this number is.
    fn message_at(&self, number: u64) -> u64 {
        self.results + 64 + number * u64::from(self.message_bytes)
    }

    /// Returns the value that the last atomic has returned.
    pub(crate) fn result(&self) -> u64 {
        self.load(self.results)
    }

    fn load(&self, offset: u64) -> u64 {
        self.region.arena.load(offset, Ordering::Acquire).unwrap_or_default()
    }

    /// Returns the next completion. A failed request is none of the study and ends it.
    pub(crate) fn poll(&mut self) -> Result<Option<Completion>, FabricError> {
        let mut out = [Completion::BLANK; 1];
        match self.port.poll(&mut out) {
            0 => Ok(None),
            _ if out[0].status != CompletionStatus::Success => {
                Err(FabricError::Unknown("completion"))
            }
            _ => Ok(Some(out[0])),
        }
    }

    /// Posts a list with one doorbell; only its last request is signaled, if at all.
    pub(crate) fn post(
        &mut self,
        to: Link,
        list: &[Request],
        signalled: bool,
    ) -> Result<(), FabricError> {
        let region = self.region.id;
        let slices = |request: &Request| -> Vec<LocalSlice> {
            let all = request.local.iter();
            all.map(|(offset, bytes)| LocalSlice { region, offset: *offset, bytes: *bytes })
                .collect()
        };
        let slices: Vec<_> = list.iter().map(slices).collect();
        let messages: Vec<_> = list.iter().map(message_of).collect();
        let result = LocalSlice { region, offset: self.results, bytes: 8 };
        let mut works = Vec::new();
        for (number, request) in list.iter().enumerate() {
            let remote = RemoteSlice { region: to.remote, offset: request.at };
            let (slices, message) = (&slices[number], &messages[number]);
            let operation = match request.verb {
                Verb::Write => {
                    let source = Source::Gather(slices);
                    Operation::Write { source, to: remote, immediate: None }
                }
                Verb::Inline => {
                    let source = Source::Inline(message);
                    Operation::Write { source, to: remote, immediate: None }
                }
                Verb::Read => Operation::Read { into: slices, from: remote },
                Verb::FetchAdd => Operation::FetchAdd { at: remote, add: 1, into: result },
                Verb::CompareSwap(expected, new) => {
                    Operation::CompareSwap { at: remote, expected, new, into: result }
                }
                Verb::Flush => {
                    let bytes = request.local.iter().map(|(_, bytes)| u64::from(*bytes)).sum();
                    let scope = FlushScope::Persistent;
                    Operation::Flush { from: remote, bytes, scope }
                }
                Verb::Message => {
                    Operation::Send { source: Source::Gather(slices), immediate: None }
                }
                Verb::Send(_) => {
                    Operation::Send { source: Source::Inline(message), immediate: None }
                }
            };
            let signalled = signalled && number + 1 == list.len();
            let flags = WorkFlags { signalled, fence: false, awaited: false };
            works.push(Work { id: WorkId(number as u64), link: to.link, flags, operation });
        }
        accepted(self.port.post(&works).accepted, works.len())
    }
}

/// Returns the inline bytes of a request.
fn message_of(request: &Request) -> Vec<u8> {
    match request.verb {
        Verb::Send(words) => words.iter().flat_map(|word| word.to_ne_bytes()).collect(),
        _ => vec![0; request.local.iter().map(|(_, bytes)| *bytes as usize).sum()],
    }
}

fn accepted(accepted: usize, posted: usize) -> Result<(), FabricError> {
    if accepted == posted { Ok(()) } else { Err(FabricError::Limit("outstanding_max")) }
}

/// A link, and the peer's region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) link: LinkId,
    remote: RemoteRegionId,
}

impl Link {
    /// Returns a link on which only messages are posted.
    pub(crate) const fn messages(link: LinkId) -> Self {
        // A SEND names no region.
        Self { link, remote: RemoteRegionId(0) }
    }
}

/// Where a load runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Number of client threads, each with its own queue pair.
    pub(crate) clients: usize,
    /// Whether each client is on a machine of its own.
    pub(crate) spread: bool,
    pub(crate) client: SocketPlacement,
    pub(crate) server: SocketPlacement,
    /// Bytes of the region that the clients of a node share, and of the server's.
    pub(crate) bytes: u64,
    /// Time that the programs run before they are measured.
    pub(crate) warm_up_ns: u64,
}

impl Setup {
    pub(crate) const fn new(clients: usize) -> Self {
        const HERE: SocketPlacement =
            SocketPlacement { port: 0, port_socket: 0, thread_socket: 0, memory_socket: 0 };
        Self {
            clients,
            spread: false,
            client: HERE,
            server: HERE,
            bytes: 1 << 20,
            warm_up_ns: WARM_UP_NS,
        }
    }

    /// Connects the clients to the server.
    pub(crate) fn connect(&self) -> Result<Connected, FabricError> {
        let net = SimNet::new(1, SimOptions::on_hardware(VERBS_CONNECTX3, CONNECTX3_IB));
        let placed = |node: &str, placement| {
            net.place(node, placement).map_err(|e| FabricError::System("placement", e))
        };
        let spec = RegionSpec {
            bytes: self.bytes + RESULT_BYTES * (self.clients.max(1) as u64),
            access: Access::ALL,
            kind: RegionKind::Memory,
        };
        placed(SERVER, self.server)?;
        let mut server = Endpoint::new(&net, SERVER, SERVER, net.fabric(SERVER).register(&spec)?)?;
        server.results = self.bytes;
        let mut clients: Vec<(String, Endpoint, Link)> = Vec::new();
        for number in 0..self.clients {
            let name = format!("client {number}");
            let node = if self.spread { name.clone() } else { "clients".to_owned() };
            placed(&node, self.client)?;
            let region = match clients.first() {
                Some((_, first, _)) if !self.spread => first.region.clone(),
                _ => net.fabric(&node).register(&spec)?,
            };
            let mut client = Endpoint::new(&net, &node, &name, region)?;
            client.results = self.bytes + RESULT_BYTES * number as u64;
            let [link, _] = client.connect(SERVER, &mut server)?;
            let link = client.import(link, &server.region)?;
            for number in 0..RECEIVES {
                client.receive(number)?;
            }
            clients.push((node, client, link));
        }
        Ok(Connected { net, server, clients, warm_up_ns: self.warm_up_ns })
    }
}

/// Connected clients.
pub(crate) struct Connected {
    pub(crate) net: SimNet,
    pub(crate) server: Endpoint,
    /// Node, port and link of each client.
    pub(crate) clients: Vec<(String, Endpoint, Link)>,
    pub(crate) warm_up_ns: u64,
}

/// The completed units of all clients, and the error that ended the study.
#[derive(Clone, Default)]
pub(crate) struct Tally {
    done: Rc<Cell<u64>>,
    /// Polls that found nothing.
    empty_polls: Rc<Cell<u64>>,
    failed: Rc<Cell<Option<FabricError>>>,
}

impl Tally {
    pub(crate) fn add(&self, units: u64) {
        self.done.set(self.done.get() + units);
    }
}

/// One thread of a client or server.
pub(crate) trait ThreadProgram {
    /// Does what is ready. Returns whether there was anything.
    fn run(&mut self) -> Result<Spent, FabricError>;
}

struct Running<P> {
    program: P,
    tally: Tally,
}

impl<P: ThreadProgram> Actor for Running<P> {
    fn run(&mut self) -> Spent {
        let spent = self.program.run().unwrap_or_else(|error| {
            self.tally.failed.set(Some(error));
            Spent { then: Then::End, ..Spent::NOTHING }
        });
        if spent.then == Then::Poll {
            self.tally.empty_polls.set(self.tally.empty_polls.get() + 1);
        }
        spent
    }
}

/// What the programs of a study have done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MeasuredLoad {
    /// Units a microsecond: millions a second.
    pub(crate) rate: f64,
    /// Processor time of a unit, without polls that find nothing.
    pub(crate) busy_ns: f64,
}

/// The actors of a study.
pub(crate) struct Study {
    net: SimNet,
    stage: ActorNetwork<Box<dyn Actor>>,
    costs: ProcessorCosts,
    measured_ns: u64,
    pub(crate) tally: Tally,
}

impl Study {
    pub(crate) fn new(net: &SimNet) -> Self {
        Self::with(net, E5_2640_V2, MEASURED_NS)
    }

    /// Creates a study of programs with these costs, measured for that time.
    pub(crate) fn with(net: &SimNet, costs: ProcessorCosts, measured_ns: u64) -> Self {
        let stage = ActorNetwork::new(net, costs);
        Self { net: net.clone(), stage, costs, measured_ns, tally: Tally::default() }
    }

    pub(crate) fn add(&mut self, node: &str, program: impl ThreadProgram + 'static) {
        let tally = self.tally.clone();
        self.stage.add(node, Box::new(Running { program, tally }));
    }

    /// Returns the units per microsecond: millions a second.
    ///
    /// # Errors
    /// The failure of a program.
    pub(crate) fn rate(self, warm_up_ns: u64) -> Result<f64, FabricError> {
        Ok(self.measure(warm_up_ns)?.rate)
    }

    /// As [`rate`](Self::rate), with the processor time.
    ///
    /// # Errors
    /// The failure of a program.
    pub(crate) fn measure(self, warm_up_ns: u64) -> Result<MeasuredLoad, FabricError> {
        self.measure_from(warm_up_ns, || {})
    }

    /// As [`measure`](Self::measure); calls `start` when the measurement begins.
    ///
    /// # Errors
    /// The failure of a program.
    pub(crate) fn measure_from(
        mut self,
        warm_up_ns: u64,
        start: impl FnOnce(),
    ) -> Result<MeasuredLoad, FabricError> {
        let start_ns = self.net.now_ns() + warm_up_ns;
        self.stage.run_until(start_ns, |_| false);
        start();
        let before = (self.tally.done.get(), self.busy_ns());
        self.stage.run_until(start_ns + self.measured_ns, |_| false);
        if let Some(error) = self.tally.failed.take() {
            return Err(error);
        }
        let units = self.tally.done.get() - before.0;
        Ok(MeasuredLoad {
            rate: units as f64 * 1e3 / self.measured_ns as f64,
            busy_ns: (self.busy_ns() - before.1) as f64 / units.max(1) as f64,
        })
    }

    /// Returns the processor time of all programs, without polls that found nothing.
    fn busy_ns(&self) -> u64 {
        let all: u64 = (0..).map_while(|number| self.stage.busy_ns(number)).sum();
        all - self.tally.empty_polls.get() * self.costs.poll_ns
    }
}

/// A list of requests, the units that it counts for, and the time to prepare it.
pub(crate) struct Batch {
    pub(crate) list: Vec<Request>,
    pub(crate) units: u64,
    pub(crate) prepare_ns: u64,
}

/// Returns batch `number` of all clients.
pub(crate) type NextBatch = Rc<dyn Fn(u64, &mut Random) -> Batch>;

/// Keeps a number of batches in flight.
struct BatchStream {
    end: Endpoint,
    link: Link,
    tally: Tally,
    window: usize,
    in_flight: usize,
    units: u64,
    number: Rc<Cell<u64>>,
    random: Random,
    next: NextBatch,
}

impl ThreadProgram for BatchStream {
    fn run(&mut self) -> Result<Spent, FabricError> {
        let mut idle = true;
        if self.in_flight > 0 && self.end.poll()?.is_some() {
            self.in_flight -= 1;
            self.tally.add(self.units);
            idle = false;
        }
        if self.in_flight < self.window {
            let batch = (self.next)(self.number.get(), &mut self.random);
            self.number.set(self.number.get() + 1);
            self.units = batch.units;
            self.end.net.spend_ns(batch.prepare_ns);
            self.end.post(self.link, &batch.list, true)?;
            self.in_flight += 1;
            idle = false;
        }
        Ok(Spent { then: if idle { Then::Poll } else { Then::Run }, ..Spent::NOTHING })
    }
}

/// Runs clients that keep `window` batches each in flight. Returns the units of all clients per microsecond.
pub(crate) fn stream(setup: &Setup, window: usize, next: &NextBatch) -> Result<f64, FabricError> {
    let connected = setup.connect()?;
    let mut study = Study::new(&connected.net);
    let counter = Rc::new(Cell::new(0));
    for (number, (node, end, link)) in connected.clients.into_iter().enumerate() {
        let (tally, next) = (study.tally.clone(), Rc::clone(next));
        let random = Random::new(number as u64 + 1);
        let (in_flight, units, number) = (0, 0, Rc::clone(&counter));
        let program =
            BatchStream { end, link, tally, window, in_flight, units, number, random, next };
        study.add(&node, program);
    }
    // The server's port stays open although its program does nothing.
    let _server = connected.server;
    study.rate(connected.warm_up_ns)
}

/// Returns the time of a batch that is posted when the one before has completed, in microseconds.
pub(crate) fn latency(setup: &Setup, next: &NextBatch) -> Result<f64, FabricError> {
    Ok(1.0 / stream(&Setup { clients: 1, ..*setup }, 1, next)?)
}

/// Returns the processor time to copy `count` buffers of `bytes` bytes that are in its cache.
pub(crate) const fn copy_ns(count: u64, bytes: u64) -> u64 {
    const COSTS: ProcessorCosts = E5_2640_V2;
    count * (COSTS.load_ns + bytes.div_ceil(COSTS.copy_bytes_per_ns))
}

/// Answers each message with the words that `answer` returns, if any.
pub(crate) struct Responder<F> {
    end: Endpoint,
    answer: F,
}

impl<F: FnMut([u64; 2]) -> Option<[u64; 2]>> Responder<F> {
    pub(crate) fn new(mut end: Endpoint, answer: F) -> Result<Self, FabricError> {
        for number in 0..SERVER_RECEIVES {
            end.receive(number)?;
        }
        Ok(Self { end, answer })
    }
}

impl<F: FnMut([u64; 2]) -> Option<[u64; 2]>> ThreadProgram for Responder<F> {
    fn run(&mut self) -> Result<Spent, FabricError> {
        let Some(completion) = self.end.poll()? else {
            return Ok(Spent { then: Then::Poll, ..Spent::NOTHING });
        };
        self.end.net.spend_ns(E5_2640_V2.miss_ns);
        if let Some(words) = (self.answer)(self.end.message(completion.id.0)) {
            let to = Link::messages(completion.link);
            self.end.post(to, &[Request::word(Verb::Send(words))], false)?;
        }
        self.end.receive(completion.id.0)?;
        Ok(Spent::NOTHING)
    }
}
