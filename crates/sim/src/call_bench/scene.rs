//! The connected client, host and adapter's processor, with a list and a buffer in the host's memory.

use super::charged::{ArrivalCost, Charged};
use super::{
    FROM_NIC_NS, HOST_ACCESS_NS, HOST_START_NS, NIC_START_NS, Nic, ROUND_TRIP_NS, SimSite,
    TO_NIC_NS, network,
};
use crate::fabric::{INFINIBAND, NO_COSTS, NO_TIME, Path, SimNet, SimOptions, Traffic};
use crate::stage::{Actor, ActorNetwork, Spent, Stopped, Then};
use farside::call::rmc::library::{Checksum, HostWord as Word, LibraryEntry, ListSearch};
use farside::call::{
    CallOptions, CallServer, Caller, CallerOptions, LearningOptions, PlaceModel, Placed,
    PlacedAnswer, PlacedProgram, PlacedTicket, Prices, Processor, Program, ServerOptions, Site,
};
use farside::{Error, ErrorCode};
use farside_base::Access;
use farside_fabric::{CountFabric, Fabric, FabricCounts};
use std::sync::Arc;

/// Nodes of the net.
const NODES: [&str; 3] = ["client", "nic", "host"];
/// Bytes of a node of a list: key, value, next.
const NODE_BYTES: u64 = 24;
/// Offsets of the list and the buffer.
const LIST: u64 = 64;
const BUFFER: u64 = 1 << 16;
const BUFFER_BYTES_MAX: u64 = 1 << 20;
/// Maximum length of a list.
pub const NODES_MAX: u64 = 128;
/// Number of steps after which connecting fails.
const STEPS_MAX: u32 = 1_000_000;

/// Counters of one call: from decorators at each node, and from the net per path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Virtual time from call to answer.
    pub took_ns: u64,
    /// At the client, the adapter's processor and the host.
    pub at: [FabricCounts; 3],
    /// Client to host, and back.
    pub host: [Traffic; 2],
    /// Client to the adapter's processor, and back.
    pub nic: [Traffic; 2],
    /// The adapter's processor to host memory, and back.
    pub local: [Traffic; 2],
    /// Result of the program.
    pub result: u64,
}

impl Counted {
    /// Returns the bytes through the network: sent and received by the client.
    pub const fn network_bytes(&self) -> u64 {
        self.host[0].bytes + self.host[1].bytes + self.nic[0].bytes + self.nic[1].bytes
    }
}

struct Job {
    program: PlacedProgram,
    parameters: Vec<u8>,
    hint: u64,
}

/// The client, which runs one batch of calls at a time.
struct Client {
    net: SimNet,
    placed: Placed,
    jobs: Vec<Job>,
    in_flight: Vec<PlacedTicket>,
    begun_ns: u64,
    ended: Vec<Result<PlacedAnswer, Error>>,
    took_ns: u64,
}

enum SceneActor {
    Client(Box<Client>),
    Server(Box<CallServer>),
}

impl Actor for SceneActor {
    fn run(&mut self) -> Spent {
        let busy = match self {
            Self::Server(server) => server.progress(),
            Self::Client(client) => client.run(),
        };
        Spent { then: if busy { Then::Run } else { Then::Poll }, ..Spent::NOTHING }
    }
}

impl Client {
    fn run(&mut self) -> bool {
        if !self.jobs.is_empty() {
            self.begun_ns = self.net.now_ns();
        }
        for job in self.jobs.drain(..) {
            match self.placed.begin(
                job.program,
                &job.parameters,
                CallOptions::new().accesses(job.hint),
            ) {
                Ok(Some(ticket)) => self.in_flight.push(ticket),
                Ok(None) => self.ended.push(Err(ErrorCode::OverQuota.into())),
                Err(error) => self.ended.push(Err(error)),
            }
        }
        // Its errors are reported by the calls.
        let _ = self.placed.progress();
        let (placed, ended) = (&mut self.placed, &mut self.ended);
        let before = self.in_flight.len();
        self.in_flight.retain(|ticket| match placed.poll(*ticket) {
            Some(end) => {
                ended.push(end);
                false
            }
            None => true,
        });
        if self.in_flight.len() < before {
            self.took_ns = self.net.now_ns() - self.begun_ns;
        }
        self.placed.is_ready()
    }
}

/// The client, the adapter's processor and the host, with their clocks.
pub struct CallScene {
    net: SimNet,
    stage: ActorNetwork<SceneActor>,
    fabrics: [Arc<CountFabric>; 3],
    arrival_costs: [ArrivalCost; 3],
    search: PlacedProgram,
    checksum: PlacedProgram,
    host_start_ns: u64,
    /// In the order of [`SimSite::ALL`].
    models: [PlaceModel; 3],
}

impl std::fmt::Debug for CallScene {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scene").field("net", &self.net).finish_non_exhaustive()
    }
}

/// Returns the initial cost models of the sites for the placement algorithm: those of the scene.
fn models(nic: &Nic) -> [PlaceModel; 3] {
    let model =
        |place: SimSite, core, round_trip_ns, start_ns, access_ns, bytes: [u64; 2]| PlaceModel {
            name: place.to_string().into(),
            core,
            round_trip_ns,
            start_ns,
            access_ns,
            call_bytes: bytes[0],
            access_bytes: bytes[1],
        };
    let to_nic_ns = TO_NIC_NS + FROM_NIC_NS;
    let local_ns = nic.host_round_trip_ns;
    [
        model(SimSite::Client, Processor::Client, 0, 0, ROUND_TRIP_NS, [0, NODE_BYTES]),
        model(
            SimSite::Host,
            Processor::Host,
            ROUND_TRIP_NS,
            HOST_START_NS,
            HOST_ACCESS_NS,
            [32, 0],
        ),
        model(SimSite::Nic, Processor::Nic, to_nic_ns, NIC_START_NS, local_ns, [32, 0]),
    ]
}

impl CallScene {
    /// Creates three connected nodes, and a list of [`NODES_MAX`] nodes.
    ///
    /// # Errors
    /// Errors of the facade; none is expected.
    pub fn new(nic: &Nic, prices: Prices) -> Result<Self, Error> {
        let options = SimOptions::on_hardware(INFINIBAND, NO_TIME);
        let net = SimNet::new(1, options);
        let arrival_costs: [ArrivalCost; 3] = Default::default();
        let fabrics = std::array::from_fn(|at| {
            let (inner, arrival_cost) = (net.fabric(NODES[at]), arrival_costs[at].clone());
            let charged = Charged { inner, net: net.clone(), arrival_cost };
            Arc::new(CountFabric::new(Arc::new(charged)))
        });
        let of = |at: usize| -> Arc<dyn Fabric> { Arc::<CountFabric>::clone(&fabrics[at]) };
        let server = ServerOptions::default().sessions(4);
        let mut host = CallServer::listen(&of(2), "host", &server)?;
        let memory = host.make_region(0, BUFFER + BUFFER_BYTES_MAX, Access::ALL)?;
        fill(&memory)?;
        let mut beside = CallServer::listen_with_host(&of(1), "nic", "host", &server)?;
        let caller = CallerOptions::default().slots(16);
        let mut callers =
            [Caller::begin(&of(0), "host", &caller)?, Caller::begin(&of(0), "nic", &caller)?];
        let mut servers = [&mut host, &mut beside];
        let search = register(&net, &mut callers, &mut servers, "list_search")?;
        let checksum = register(&net, &mut callers, &mut servers, "checksum_xxhash64")?;
        let mut placed = Placed::new(&of(0), prices, LearningOptions::default());
        let ([client, at_host, at_nic], [to_host, to_nic]) = (models(nic), callers);
        placed.add(to_host, &[(Site::Local, client), (Site::Remote, at_host)])?;
        placed.add(to_nic, &[(Site::Remote, at_nic)])?;
        let [search, checksum] = [search, checksum].map(|known| placed.add_program(known));
        let mut stage = ActorNetwork::new(&net, NO_COSTS);
        let client = Client {
            net: net.clone(),
            placed,
            jobs: Vec::new(),
            in_flight: Vec::new(),
            begun_ns: 0,
            ended: Vec::new(),
            took_ns: 0,
        };
        stage.add(NODES[0], SceneActor::Client(Box::new(client)));
        stage.add(NODES[1], SceneActor::Server(Box::new(beside)));
        stage.add(NODES[2], SceneActor::Server(Box::new(host)));
        let (search, checksum, host_start_ns) = (search?, checksum?, HOST_START_NS);
        let scene = Self {
            net,
            stage,
            fabrics,
            arrival_costs,
            search,
            checksum,
            host_start_ns,
            models: models(nic),
        };
        scene.set_host(ROUND_TRIP_NS);
        scene.set_nic(TO_NIC_NS, FROM_NIC_NS, nic);
        scene.set_nic_start(NIC_START_NS);
        Ok(scene)
    }

    /// Sets the round trip time from the client to the host.
    pub fn set_host(&self, round_trip_ns: u64) {
        let there_ns = round_trip_ns / 2;
        self.net.set_path(NODES[0], NODES[2], network(there_ns));
        self.net.set_path(NODES[2], NODES[0], network(round_trip_ns - there_ns));
    }

    /// Sets the latencies to the adapter's processor, back, and from there to the host.
    pub fn set_nic(&self, to_ns: u64, from_ns: u64, nic: &Nic) {
        self.net.set_path(NODES[0], NODES[1], network(to_ns));
        self.net.set_path(NODES[1], NODES[0], network(from_ns));
        let local = |latency_ns| Path { latency_ns, ps_per_byte: nic.ps_per_byte };
        let there_ns = nic.host_round_trip_ns / 2;
        self.net.set_path(NODES[1], NODES[2], local(there_ns));
        self.net.set_path(NODES[2], NODES[1], local(nic.host_round_trip_ns - there_ns));
    }

    /// Sets the time after which the adapter's processor starts a call.
    pub fn set_nic_start(&self, ns: u64) {
        self.arrival_costs[1].set(ns);
    }

    /// Sets the time after which the host starts a call.
    pub const fn set_host_start(&mut self, ns: u64) {
        self.host_start_ns = ns;
    }

    /// Pins every call to a site from now on, or lets each run at the cheapest.
    pub fn pin(&mut self, place: Option<SimSite>) {
        let at = place.and_then(|place| SimSite::ALL.iter().position(|other| *other == place));
        if let Some(SceneActor::Client(client)) = self.stage.actor_mut(0) {
            client.placed.placement().pin(at);
        }
    }

    /// Returns the initial cost model of a site.
    pub fn model(&self, place: SimSite) -> PlaceModel {
        self.models[place as usize].clone()
    }

    /// Searches the list for its node of this number, from 1.
    ///
    /// # Errors
    /// The error of the call.
    pub fn search(&mut self, nodes: u64) -> Result<PlacedAnswer, Error> {
        let mut answers = self.search_all(&[nodes])?;
        answers.pop().ok_or_else(|| ErrorCode::TimedOut.into())
    }

    /// Performs several searches that begin between two polls.
    ///
    /// # Errors
    /// The error of the first one that failed.
    pub fn search_all(&mut self, nodes: &[u64]) -> Result<Vec<PlacedAnswer>, Error> {
        let Some(head) = Word::new(0, LIST) else { return Ok(Vec::new()) };
        // The host's loads, which no fabric sees, are charged with the message that requests them.
        let most = nodes.iter().max().copied().unwrap_or(0);
        self.arrival_costs[2].set(self.host_start_ns + most * HOST_ACCESS_NS);
        let job = |nodes: &u64| Job {
            program: self.search,
            parameters: ListSearch { head, key: *nodes }.to_bytes(),
            hint: *nodes,
        };
        let jobs = nodes.iter().map(job).collect();
        self.run(jobs)
    }

    /// Computes the checksum of `bytes` bytes.
    ///
    /// # Errors
    /// The error of the call.
    pub fn checksum(&mut self, bytes: u64) -> Result<PlacedAnswer, Error> {
        let Some(buffer) = Word::new(0, BUFFER) else { return Err(ErrorCode::BadForm.into()) };
        self.arrival_costs[2].set(self.host_start_ns);
        let parameters = Checksum { buffer, bytes, start: 0 }.to_bytes();
        let mut answers = self.run(vec![Job { program: self.checksum, parameters, hint: 1 }])?;
        answers.pop().ok_or_else(|| ErrorCode::TimedOut.into())
    }

    /// Returns the counters of these calls.
    ///
    /// # Errors
    /// As the calls.
    pub fn counted(
        &mut self,
        calls: impl FnOnce(&mut Self) -> Result<PlacedAnswer, Error>,
    ) -> Result<Counted, Error> {
        let ways = [(0, 2), (2, 0), (0, 1), (1, 0), (1, 2), (2, 1)];
        let take = |net: &SimNet| {
            ways.map(|(from, to): (usize, usize)| net.take_traffic(NODES[from], NODES[to]))
        };
        self.settle();
        take(&self.net);
        let before = self.fabrics.each_ref().map(|fabric| fabric.counts());
        let answer = calls(self)?;
        let took_ns = answer.took_ns;
        self.settle();
        let at = std::array::from_fn(|at| self.fabrics[at].counts() - before[at]);
        let [there, back, to_nic, from_nic, to_memory, from_memory] = take(&self.net);
        Ok(Counted {
            took_ns,
            at,
            host: [there, back],
            nic: [to_nic, from_nic],
            local: [to_memory, from_memory],
            result: answer.answer.result,
        })
    }

    /// Runs until no message is in flight.
    fn settle(&mut self) {
        let stopped = self.stage.run_until(u64::MAX, |_| false);
        debug_assert_eq!(stopped, Stopped::Stuck);
    }

    fn run(&mut self, jobs: Vec<Job>) -> Result<Vec<PlacedAnswer>, Error> {
        let count = jobs.len();
        if let Some(SceneActor::Client(client)) = self.stage.actor_mut(0) {
            client.jobs = jobs;
        }
        self.stage.wake(NODES[0]);
        self.stage.run_until(u64::MAX, |stage| {
            matches!(stage.actor(0), Some(SceneActor::Client(client)) if client.ended.len() == count)
        });
        let Some(SceneActor::Client(client)) = self.stage.actor_mut(0) else {
            return Err(ErrorCode::TimedOut.into());
        };
        let ended: Result<Vec<_>, Error> = client.ended.drain(..).collect();
        ended.and_then(|answers| match answers.len() == count {
            true => Ok(answers),
            false => Err(Error::with(ErrorCode::TimedOut, "a call does not end")),
        })
    }
}

/// Fills the memory with a list of [`NODES_MAX`] nodes with the keys 1, 2, ..., each with ten times its key as value,
/// and with a buffer.
fn fill(memory: &farside_fabric::Arena) -> Result<(), Error> {
    let bad = |_| Error::with(ErrorCode::BadConfiguration, "the memory is too small");
    for key in 1..=NODES_MAX {
        let at = LIST + (key - 1) * NODE_BYTES;
        let next = if key == NODES_MAX { 0 } else { at + NODE_BYTES };
        let node = [key, key * 10, next].map(u64::to_le_bytes).concat();
        memory.write(at, &node).map_err(bad)?;
    }
    let bytes: Vec<u8> = (0..BUFFER_BYTES_MAX).map(|at| (at * 7 % 251) as u8).collect();
    memory.write(BUFFER, &bytes).map_err(bad)
}

/// Polls callers and servers and steps the network until `done`.
fn until(
    net: &SimNet,
    callers: &mut [Caller],
    servers: &mut [&mut CallServer; 2],
    mut done: impl FnMut(&mut [Caller]) -> Result<bool, Error>,
) -> Result<(), Error> {
    for _ in 0..STEPS_MAX {
        if done(callers)? {
            return Ok(());
        }
        for caller in &mut *callers {
            caller.progress()?;
        }
        for server in &mut *servers {
            server.progress();
        }
        net.step();
    }
    Err(Error::with(ErrorCode::TimedOut, "the ends do not connect"))
}

fn register(
    net: &SimNet,
    callers: &mut [Caller],
    servers: &mut [&mut CallServer; 2],
    name: &str,
) -> Result<Vec<Program>, Error> {
    let mut known = Vec::new();
    let entry = LibraryEntry::with_name(name).ok_or(ErrorCode::NoProgram)?;
    for at in 0..callers.len() {
        until(net, callers, servers, |callers| callers[at].begin_register(entry.object))?;
        until(net, callers, servers, |callers| {
            let Some(programs) = callers[at].registered() else { return Ok(false) };
            known.extend(programs?.into_iter().find(|program| program.name == entry.name));
            Ok(true)
        })?;
    }
    Ok(known)
}
