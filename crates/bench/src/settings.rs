//! Benchmarks: what each measures, and with which effort.

use farside::channel::{DeviceWords, Kind, Options};
use farside_apps::join::JoinKind;
use farside_apps::ycsb::CoreWorkload;
use farside_command::settings::{FabricKind, FabricSettings, Places};
use farside_launcher::ends::task::DeviceWordsName;
use farside_launcher::worker::GraphForm;
use farside_sim::fabric::INFINIBAND;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The figures to measure, and the effort.
#[derive(Debug)]
pub struct Effort {
    /// Measure only figures whose name contains this text.
    pub only: Option<String>,
    /// Windows of about half a millisecond per figure.
    pub windows: u32,
}

/// A measurement of a fabric: within this machine, as a server, or as a client.
#[derive(Debug)]
pub struct BenchFabric {
    /// What is measured within this machine.
    pub effort: Effort,
    /// The address of the server, for a client.
    pub to: Option<String>,
    /// The address to listen at, for a server.
    pub listen: Option<String>,
    /// Whether the server ends after one client.
    pub once: bool,
    /// Whether the measured memory has untorn words and ordered WRITEs.
    pub strict_ordering: bool,
    /// The fabric between the ends.
    pub choice: FabricSettings,
    /// The operations to test, each once.
    pub tests: Vec<Test>,
    /// Whether operations that the fabric lacks are skipped, since all were requested.
    pub all_tests: bool,
    /// What to measure, each once.
    pub measures: Vec<Measure>,
    /// Whether all powers of two from 2 B to 8 MiB are measured.
    pub all: bool,
    /// Request sizes; perftest's defaults if empty.
    pub bytes: Vec<u32>,
    /// Requests per test; `None` for the default.
    pub iterations: Option<u64>,
    /// Seconds per test, instead of a number of requests.
    pub seconds: Option<f64>,
    /// Maximum requests in flight.
    pub window: Option<u32>,
    /// Requests per doorbell.
    pub batch: Option<u32>,
    /// Requests per signaled completion.
    pub signal_every: u32,
    /// Maximum bytes that are sent inline.
    pub inline: Option<u32>,
}

impl BenchFabric {
    /// Returns whether this process is a client or a server, and does not measure within this machine.
    pub fn is_of_two_ends(&self) -> bool {
        self.to.is_some() || self.listen.is_some() || self.strict_ordering || self.choice.chooses()
    }
}

/// A measurement of the data channels.
#[derive(Debug)]
pub struct BenchChannels {
    /// The channels, each once, in the order of the table.
    pub kinds: Vec<Kind>,
    /// Message sizes.
    pub bytes: Vec<u32>,
    /// Numbers of senders and receivers.
    pub pattern: Vec<Pattern>,
    /// Senders of N:1.
    pub clients: u16,
    /// Receivers of 1:N.
    pub readers: u16,
    /// Windows of about half a millisecond per figure.
    pub windows: u32,
    /// Seconds per figure, instead of a number of windows.
    pub seconds: Option<f64>,
    /// Words in device memory; the default if empty.
    pub device_words: Vec<DeviceWordsName>,
    /// Bytes that readers fetch with the bell; the default if empty.
    pub prefetch: Vec<u32>,
    /// Whether figures with a copy of each message into a log are measured too.
    pub copy: bool,
    /// Whether the distribution of round trips is reported.
    pub distribution: bool,
    /// Whether the findings of paper 001 are printed instead.
    pub findings: bool,
    /// The file of the plot.
    pub plot: Option<PathBuf>,
    /// Where it is measured.
    pub profile: ProfileName,
    /// Hosts of the node processes, and the fabric between them.
    pub places: Places,
}

impl BenchChannels {
    /// Returns the requested settings of device words that the channel supports, each once; possibly none.
    pub fn devices(&self, kind: Kind) -> Vec<DeviceWords> {
        let usual = [DeviceWordsName::Nothing];
        let asked = if self.device_words.is_empty() { &usual[..] } else { &self.device_words };
        let mut all = Vec::new();
        for device in asked.iter().map(|name| name.words()) {
            let shape = Options::new(kind, 64).device(device).shape(&INFINIBAND);
            let has = device == DeviceWords::Nothing || kind.has_device_words(&shape);
            if has && !all.contains(&device) {
                all.push(device);
            }
        }
        all
    }

    /// Returns the requested prefetch sizes that the channel supports, each once; possibly none.
    pub fn prefetches(&self, kind: Kind) -> Vec<u32> {
        let mut all = self.prefetch.clone();
        all.dedup();
        if all.is_empty() {
            return vec![0];
        }
        all.retain(|bytes| *bytes == 0 || kind == Kind::ReadRingInlined);
        all
    }

    /// Returns whether a particular figure is requested, instead of all that a channel has.
    pub fn is_special(&self) -> bool {
        self.copy || self.distribution || !self.device_words.is_empty() || !self.prefetch.is_empty()
    }
}

/// A run of a YCSB workload.
#[derive(Debug)]
pub struct BenchYcsb {
    /// A core workload.
    pub workload: CoreWorkload,
    /// A property file, instead of a core workload.
    pub properties: Option<PathBuf>,
    /// Node processes.
    pub nodes: u16,
    /// Threads of each node; overrides the property file, as the next two.
    pub threads: Option<u16>,
    /// Records to load.
    pub records: Option<u64>,
    /// Operations over all nodes.
    pub operations: Option<u64>,
    /// The file for the history.
    pub history: Option<PathBuf>,
    /// Whether reads are remote memory calls.
    pub by_call: bool,
    /// Whether a table in logged memory of nodes with copies is measured too.
    pub logged: bool,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Hosts of the node processes, and the fabric between them.
    pub places: Places,
}

/// A measurement of memory that is lent.
#[derive(Debug)]
pub struct BenchLent {
    /// The memory server to use; `None`: one of this process, over shared memory.
    pub to: Option<String>,
    /// Windows per figure.
    pub windows: u32,
    /// Whether all requests are posted: none is carried out within its call.
    pub posted: bool,
    /// The fabric to the server.
    pub choice: FabricSettings,
    /// The file of the plot.
    pub plot: Option<PathBuf>,
}

/// A measurement of the durable log.
#[derive(Debug)]
pub struct BenchDurable {
    /// Where the log is; the folder of temporary files without.
    pub folder: Option<PathBuf>,
    /// Windows per figure.
    pub windows: u32,
    /// The file of the plot.
    pub plot: Option<PathBuf>,
}

/// A measurement of the hash table in memory that is lent.
#[derive(Debug)]
pub struct BenchHashtable {
    /// The memory, and how it is measured.
    pub lent: BenchLent,
    /// Sizes of the hot area, for a figure each: one of this many keys has space in it.
    pub hot: Vec<u32>,
    /// Puts of a block until it is flushed.
    pub theta: u32,
}

/// A measurement of random and sequential access to memory that is lent.
#[derive(Debug)]
pub struct BenchAccess {
    /// The memory, and how it is measured.
    pub lent: BenchLent,
    /// Bytes of the remote and of the local memory.
    pub region: u64,
}

/// A measurement of the shuffle.
#[derive(Debug)]
pub struct BenchShuffle {
    /// Rows of all senders.
    pub rows: u64,
    /// Bytes of a row, at least 8.
    pub row_bytes: u32,
    /// Sending threads.
    pub senders: u16,
    /// Receiving threads.
    pub receivers: u16,
    /// Most rows of a batch, for a figure each.
    pub batch_rows: Vec<u32>,
    /// Most bytes of a batch.
    pub batch_bytes: u32,
    /// Whether all rows have one key.
    pub one_key: bool,
    /// Runs of each figure.
    pub runs: u32,
    /// The file of the plot.
    pub plot: Option<PathBuf>,
}

/// A measurement of the join.
#[derive(Debug)]
pub struct BenchJoin {
    /// Rows of each input.
    pub rows: u64,
    /// Numbers of executors, for a figure each.
    pub executors: Vec<u16>,
    /// Which rows are returned.
    pub kind: JoinKind,
    /// Most rows of a batch, for a figure each.
    pub batch_rows: Vec<u32>,
    /// Most bytes of a batch.
    pub batch_bytes: u32,
    /// Whether all left rows have one key.
    pub one_key: bool,
    /// Runs of each figure.
    pub runs: u32,
    /// The file of the plot.
    pub plot: Option<PathBuf>,
}

/// A measurement of sequencers and locks.
#[derive(Debug)]
pub struct BenchAtomics {
    /// The memory.
    pub lent: BenchLent,
    /// Numbers of clients that contend.
    pub clients: Vec<u16>,
}

/// How a thread reaches memory of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NumaPath {
    /// By a client of its own.
    Direct,
    /// Through the proxy of the socket.
    Proxy,
}

impl NumaPath {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Proxy => "proxy",
        }
    }
}

/// A measurement of sockets.
#[derive(Debug)]
pub struct BenchNuma {
    /// Memory servers, in the order of their sockets; one of this process for each socket if there are none.
    pub to: Vec<String>,
    /// The sockets, in the form of [`Topology`](farside::topology::Topology); those of the system without.
    pub topology: Option<String>,
    /// The paths, each once.
    pub paths: Vec<NumaPath>,
    /// Requests of a doorbell, for a figure each.
    pub batch: Vec<u32>,
    /// Whether threads and memory are left anywhere.
    pub unbound: bool,
    /// Whether all requests are posted: none is carried out within its call.
    pub posted: bool,
    /// Windows per figure.
    pub windows: u32,
    /// The file of the plot.
    pub plot: Option<PathBuf>,
    /// The fabric to the servers.
    pub choice: FabricSettings,
}

/// A measurement of kernels on a shared graph.
#[derive(Debug)]
pub struct BenchGraph {
    /// The binary logarithm of the number of vertices.
    pub scale: u32,
    /// Generated edges for each vertex.
    pub edge_factor: u32,
    /// The kernels, each once.
    pub kernels: Vec<KernelName>,
    /// The forms of access, each once.
    pub forms: Vec<GraphForm>,
    /// Iterations of PageRank.
    pub iterations: u32,
    /// Runs of each kernel and form.
    pub runs: u32,
    /// Node processes.
    pub nodes: u16,
    /// Seed of the random number generator.
    pub seed: u64,
    /// Hosts of the node processes, and the fabric between them.
    pub places: Places,
}

/// A kernel on a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelName {
    /// Breadth-first search.
    Bfs,
    /// PageRank.
    PageRank,
    /// Connected components.
    Components,
}

impl KernelName {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bfs => "bfs",
            Self::PageRank => "pagerank",
            Self::Components => "components",
        }
    }
}

/// A comparison of remote memory calls with one-sided requests.
#[derive(Debug)]
pub struct BenchRmc {
    /// `None` for each fabric.
    pub fabric: Option<FabricKind>,
    /// Round trips of each kind.
    pub rounds: u32,
    /// The program that measures other engines.
    pub peers: Option<PathBuf>,
}

/// A measurement of an operation of a fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Measure {
    /// One request at a time.
    Latency,
    /// Many requests in flight.
    Bandwidth,
    /// Many requests in flight, posted in lists.
    Rate,
}

/// Most bytes of a measured request.
pub const TRANSFER_BYTES_MAX: u32 = 64 << 20;

/// A test, named by its operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// One-sided WRITE.
    Write,
    /// One-sided READ.
    Read,
    /// FETCH_ADD.
    Atomic,
    /// Messages.
    Send,
}

impl Test {
    /// All tests.
    pub const ALL: [Self; 4] = [Self::Write, Self::Read, Self::Atomic, Self::Send];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
            Self::Send => "send",
        }
    }
}

/// Numbers of senders and receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// One sender, one receiver.
    OneToOne,
    /// Many senders, one receiver.
    ManyToOne,
    /// One sender, many receivers that each get every message (broadcast).
    OneToMany,
}

impl Pattern {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneToOne => "1:1",
            Self::ManyToOne => "N:1",
            Self::OneToMany => "1:N",
        }
    }
}

/// The environment of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProfileName {
    /// Processes of this machine.
    Shm,
    /// Virtual time: two ConnectX-5 of 100 Gb/s, the cluster of paper 001.
    Connectx5,
}
