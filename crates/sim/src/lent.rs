//! Clients of memory that is lent, in a simulated network, with faults: what one seed of a test runs.

use crate::fabric::{INFINIBAND, NO_TIME, Path, SHARED_MEMORY, SimNet, SimOptions};
use crate::programs::{Fault, Programs};
use farside::onesided::{
    LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteMemory,
};
use farside::{Error, ErrorCode};
use farside_base::{Capabilities, Random};
use farside_fabric::Fabric;
use farside_fabric::runtime::pause;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Of simulated time; more than any run takes.
pub const PATIENCE: Duration = Duration::from_hours(10);
/// Between attempts to find what another program makes.
pub const NAP: Duration = Duration::from_micros(100);
const LENDER: &str = "lender";

/// An adapter whose requests overtake each other, with atomics. Without order only completions tell that a WRITE is
/// placed.
const WITHOUT_ORDER: Capabilities = Capabilities {
    message_order: false,
    byte_order: false,
    completion_means_placed: true,
    ..INFINIBAND
};

type Lent = Arc<Mutex<Result<Option<MemoryServer>, Error>>>;

/// One run: a memory server, and programs that are its clients.
pub struct Scene {
    /// Of the seed.
    pub random: Random,
    net: SimNet,
    programs: Programs,
    server: Lent,
    others: Vec<Lent>,
}

impl Scene {
    /// Draws a network, in which memory of this length is lent.
    ///
    /// # Errors
    /// Those of the system.
    pub fn new(seed: u64, bytes: u64) -> Result<Self, String> {
        let mut random = Random::new(seed);
        let has = *random.pick(&[INFINIBAND, SHARED_MEMORY, WITHOUT_ORDER]);
        let drawn = SimOptions::draw(seed, has);
        // Longer delays are those of programs that are stopped.
        let options = SimOptions { straggler_factor: drawn.straggler_factor.min(50), ..drawn };
        Self::on(SimNet::new(seed, options), random, bytes)
    }

    /// A network without faults whose adapters take no time: what [`Meter`] measures is latency.
    ///
    /// # Errors
    /// Those of the system.
    pub fn to_measure(bytes: u64) -> Result<Self, String> {
        let net = SimNet::new(1, SimOptions::on_hardware(INFINIBAND, NO_TIME));
        Self::on(net, Random::new(1), bytes)
    }

    fn on(net: SimNet, random: Random, bytes: u64) -> Result<Self, String> {
        let programs = Programs::new(&net);
        let server: Lent = Arc::new(Mutex::new(Ok(None)));
        let others = Vec::new();
        let (fabric, its_server) = (net.fabric(LENDER), Arc::clone(&server));
        let lend = move || {
            let fabric: Arc<dyn Fabric> = fabric;
            let lent = MemoryServer::lend(&fabric, LENDER, bytes, &LendOptions::default());
            *its_server.lock().unwrap_or_else(PoisonError::into_inner) = lent.map(Some);
        };
        programs.add_service(LENDER, lend).map_err(|error| error.to_string())?;
        Ok(Self { random, net, programs, server, others })
    }

    /// Lends other memory at a node of this name, to one client at a time.
    ///
    /// # Errors
    /// Those of the system.
    pub fn lend_exclusively(&mut self, name: &str, bytes: u64) -> Result<(), String> {
        let server: Lent = Arc::new(Mutex::new(Ok(None)));
        let fabric: Arc<dyn Fabric> = self.net.fabric(name);
        let (its_name, its_server) = (name.to_owned(), Arc::clone(&server));
        let lend = move || {
            let options = LendOptions::default().exclusive(true);
            let lent = MemoryServer::lend(&fabric, &its_name, bytes, &options);
            *its_server.lock().unwrap_or_else(PoisonError::into_inner) = lent.map(Some);
        };
        self.others.push(server);
        self.programs.add_service(name, lend).map_err(|error| error.to_string())
    }

    /// Adds a program that has opened the memory. Its panic ends the run.
    ///
    /// # Errors
    /// Those of the system.
    pub fn client(
        &self,
        name: &str,
        body: impl FnOnce(&mut MemoryClient, RemoteMemory) + Send + 'static,
    ) -> Result<(), String> {
        let server = Arc::clone(&self.server);
        self.program(name, move |fabric| match open(&fabric, &server) {
            Ok((mut client, memory)) => body(&mut client, memory),
            Err(error) => panic!("{error}"),
        })
    }

    /// Adds a program with the fabric of its node.
    ///
    /// # Errors
    /// Those of the system.
    pub fn program(
        &self,
        node: &str,
        body: impl FnOnce(Arc<dyn Fabric>) + Send + 'static,
    ) -> Result<(), String> {
        let fabric: Arc<dyn Fabric> = self.net.fabric(node);
        self.programs.add(node, move || body(fabric)).map_err(|error| error.to_string())
    }

    /// Returns what measures the operations of a client, in a network [`to_measure`](Self::to_measure).
    pub fn meter(&self, client: &str) -> Meter {
        let path = Path { latency_ns: 1000, ps_per_byte: 0 };
        self.net.set_path(client, LENDER, path);
        self.net.set_path(LENDER, client, path);
        Meter { net: self.net.clone(), client: client.to_owned() }
    }

    /// Plans a stop of each program, of at most this duration, within this number of steps.
    pub fn stop(&mut self, nodes: &[String], steps: u64, most: Duration) {
        for node in nodes {
            let ns = self.random.below(most.as_nanos() as u64);
            let fault = Fault::Stop(node.clone(), Duration::from_nanos(ns));
            self.programs.after(self.random.below(steps), fault);
        }
    }

    /// Plans up to two cuts of links between clients and servers within this number of steps.
    pub fn cut_between(&mut self, clients: &[String], servers: &[String], steps: u64) {
        for _ in 0..self.random.below(3) {
            let (client, server) = (self.random.pick(clients), self.random.pick(servers));
            let fault = Fault::Cut(client.clone(), server.clone());
            self.programs.after(self.random.below(steps), fault);
        }
    }

    /// Plans up to two faults of each client within this number of steps: stops of at most this duration, and cut links.
    pub fn disturb(&mut self, clients: &[String], steps: u64, most: Duration) {
        for client in clients {
            for _ in 0..self.random.below(3) {
                let fault = if self.random.one_in(2) {
                    Fault::Cut(client.clone(), LENDER.to_owned())
                } else {
                    let ns = self.random.below(most.as_nanos() as u64);
                    Fault::Stop(client.clone(), Duration::from_nanos(ns))
                };
                self.programs.after(self.random.below(steps), fault);
            }
        }
    }

    /// Plans the death of a client within this number of steps.
    pub fn kill(&mut self, client: &str, steps: u64) {
        self.programs.after(self.random.below(steps), Fault::Kill(client.to_owned()));
    }

    /// Runs the clients to their ends; returns a hash of all that the network did.
    ///
    /// # Errors
    /// A text with what failed, and the settings of the network.
    pub fn run(&self) -> Result<u64, String> {
        self.programs.run().map_err(|why| self.trouble(&why))?;
        Ok(self.net.fingerprint())
    }

    /// Returns a text that says what failed, with the settings of the network.
    pub fn trouble(&self, why: &str) -> String {
        format!("{why}\n{}", self.net.options())
    }
}

impl fmt::Debug for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scene({:?})", self.programs)
    }
}

/// What an operation costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OperationCounts {
    /// Work requests.
    pub work_requests: u64,
    /// Times that work requests were posted.
    pub doorbells: u64,
    /// The time that it takes, in round trips of a READ of a word.
    pub round_trips: u64,
    /// Bytes on their way to and from the memory, without headers, of which operands of atomics are a part.
    pub bytes: u64,
    /// Copies to and from staging memory.
    pub copies: u64,
}

/// Measures operations of one client, whose program alone is running.
#[derive(Clone, Debug)]
pub struct Meter {
    net: SimNet,
    client: String,
}

impl Meter {
    /// Returns what an operation costs, and its result.
    ///
    /// # Errors
    /// As [`MemoryClient::wait`], of a READ that is measured first.
    pub fn measure<T>(
        &self,
        client: &mut MemoryClient,
        memory: RemoteMemory,
        operation: impl FnOnce(&mut MemoryClient) -> T,
    ) -> Result<(OperationCounts, T), Error> {
        let began_ns = self.net.now_ns();
        let read = client.read_word(memory.at(0))?;
        client.wait(read, PATIENCE)?;
        let trip_ns = (self.net.now_ns() - began_ns).max(1);
        self.take_bytes();
        let (before, began_ns) = (client.stats(), self.net.now_ns());
        let result = operation(client);
        let (after, lasted_ns) = (client.stats(), self.net.now_ns() - began_ns);
        let counts = OperationCounts {
            work_requests: after.work_requests - before.work_requests,
            doorbells: after.doorbells - before.doorbells,
            round_trips: (lasted_ns + trip_ns / 2) / trip_ns,
            bytes: self.take_bytes(),
            copies: after.copies - before.copies,
        };
        Ok((counts, result))
    }

    fn take_bytes(&self) -> u64 {
        let [there, back] = [(&*self.client, LENDER), (LENDER, &*self.client)]
            .map(|(from, to)| self.net.take_traffic(from, to).bytes);
        there + back
    }
}

/// Opens the memory when it is lent.
fn open(fabric: &Arc<dyn Fabric>, server: &Lent) -> Result<(MemoryClient, RemoteMemory), Error> {
    let options = MemoryClientOptions::default().reconnect(PATIENCE);
    let mut client = MemoryClient::new(fabric, &options)?;
    loop {
        if let Err(error) = &*server.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(error.clone());
        }
        match client.open(LENDER, PATIENCE) {
            Ok(memory) => return Ok((client, memory)),
            // Not lent yet, or the link was cut.
            Err(error) if [ErrorCode::NoListener, ErrorCode::PeerLost].contains(&error.code) => {
                pause(NAP);
            }
            Err(error) => return Err(error),
        }
    }
}
