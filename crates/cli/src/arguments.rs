//! The command line.

/// Converts arguments into a command with fields of the same names.
macro_rules! convert {
    ($($arguments:ty => $command:ty { $($field:ident),* $(,)? })*) => {$(
        impl From<$arguments> for $command {
            fn from(arguments: $arguments) -> Self {
                Self { $($field: arguments.$field.into()),* }
            }
        }
    )*};
}

mod channels;
mod fabric;
mod hosts;
mod log;
mod onesided;
mod remote;
mod reproduce;
mod rmc;
mod run;
mod shuffle;
mod values;

use crate::settings::{ChannelAdvice, FabricName, LendMemory, Wordcount};
use channels::BenchChannelsArguments;
use clap::{Args, Parser, Subcommand, ValueEnum};
use fabric::{FabricArguments, PlacesArguments};
use farside::channel::{Need, Requirements};
use farside_apps::graph::Kronecker;
use farside_apps::ycsb::CoreWorkload;
use farside_bench::demo::Demo;
use farside_bench::settings::{
    BenchFabric, BenchGraph, BenchRmc, BenchYcsb, Effort, KernelName, Measure, TRANSFER_BYTES_MAX,
    Test,
};
use farside_bootstrap::Endpoint;
use farside_command::settings::FabricKind;
use farside_command::units::{bytes, message_bytes, seconds};
use farside_doctor::Doctor;
use farside_launcher::up::Up;
use farside_launcher::worker::GraphForm;
use hosts::{AgentArguments, NodeArguments, WitnessArguments};
pub(crate) use log::Log;
use onesided::{
    BenchAccessArguments, BenchAtomicsArguments, BenchConsolidateArguments, BenchDurableArguments,
    BenchHashtableArguments, BenchLogArguments, BenchNumaArguments, BenchVectorArguments,
};
use remote::{RmcCallArguments, RmcListenArguments, RmcRegisterArguments, RmcServeArguments};
pub(crate) use reproduce::Paper;
use reproduce::ReproduceArguments;
use rmc::{
    RmcBuildArguments, RmcCheckArguments, RmcFiguresArguments, RmcListArguments, RmcRunArguments,
};
use run::{LaunchedArguments, RunProgramArguments};
use shuffle::{BenchJoinArguments, BenchShuffleArguments};
use std::path::PathBuf;
use values::{named, selected};

const EXAMPLES: &str = "\
Examples:
  farside demo                        three nodes, YCSB, killed nodes, in about a minute
  farside up --nodes 3 --name lab     a local cluster that programs join by name
  farside run -n 4 PROGRAM            a program as four processes that share a cluster
  farside wordcount *.txt             counts words with atomic updates in a shared table
  farside channels --need blocking    suitable data channels, and why others are rejected
  farside bench memory                the cost of each operation, with a baseline
  farside rmc build search.c          compiles and verifies a remote memory call
  farside rmc serve lists --memory 0=nodes.bin     runs remote memory calls on a file's contents
  farside lend --bytes 4G             memory that programs use while this process sleeps
  farside reproduce 000               the figures of a paper, from a model, beside its numbers
  farside doctor                      checks this machine, with a command for each fix
  farside key new cluster.key         creates the secret key of a cluster
  farside node --listen ADDR ...      one node of a cluster of several hosts
  farside witness --listen ADDR ...   a vote on a third host, so that two nodes survive either one
  farside agent --listen ADDR ...     starts nodes on this host for commands on other hosts

Exit codes: 0 done, 1 an operation failed, 2 wrong usage, 130 interrupted.";

/// Remote memory for clusters: programs on many nodes share one coherent global memory.
#[derive(Parser, Debug)]
#[command(name = "farside", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show no progress
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a demonstration: three nodes, 300,000 records, YCSB, then kill a node without and with copies of its memory
    Demo(DemoArguments),
    /// Run a local cluster that programs join by name, until Ctrl-C
    Up(UpArguments),
    /// Run a program as several processes that share a cluster
    Run(RunProgramArguments),
    /// Run one node of a cluster of several hosts, until Ctrl-C
    Node(NodeArguments),
    /// Run a witness: a member that votes and holds no data, so that two nodes survive either one, until Ctrl-C
    Witness(WitnessArguments),
    /// Start node processes on this host for commands on other hosts, until Ctrl-C
    Agent(AgentArguments),
    /// Count the words of files in a shared table
    Wordcount(WordcountArguments),
    /// Lend memory that clients read and write without this process, until Ctrl-C
    Lend(LendArguments),
    /// A totally ordered log in memory that is lent
    Log {
        #[command(subcommand)]
        which: Log,
    },
    /// List the data channels with their measurements, or those that meet given requirements
    Channels(ChannelsArguments),
    /// Run benchmarks, each with a baseline from the same run
    Bench {
        #[command(subcommand)]
        which: Bench,
    },
    /// Remote memory calls: small verified programs that run where the memory is
    Rmc {
        #[command(subcommand)]
        which: Rmc,
    },
    /// Reproduce the figures of a paper by a model in virtual time, or list what there is
    Reproduce(ReproduceArguments),
    /// Show the fabrics, which one would be chosen and why, and running clusters
    #[command(after_help = "\
Examples:
  farside info
  farside info --json | jq .clusters
  farside info --folder /var/lib/farside              what a durable log there would promise")]
    Info {
        /// Say what a durable log in this folder promises; also for others [default: this folder and that of temporary files]
        #[arg(long, value_name = "FOLDER")]
        folder: Vec<PathBuf>,
    },
    /// Check the limits and settings of this machine
    Doctor(DoctorArguments),
    /// Create the secret key that the hosts of a cluster share
    Key {
        #[command(subcommand)]
        which: Key,
    },
    /// Run one node for a parent process
    #[command(hide = true)]
    Worker(WorkerArguments),
    /// Execute a program that ends with its parent
    #[command(hide = true)]
    Launched(LaunchedArguments),
}

#[derive(Args, Debug)]
pub(crate) struct WorkerArguments {
    /// The file with the cluster's key
    #[arg(long)]
    pub(crate) key: Option<PathBuf>,
    /// Do not read or write files for the parent, which runs on another host
    #[arg(long)]
    pub(crate) without_files: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside demo
  farside demo --records 20000 --operations 20000    smaller and faster
  farside demo --fabric tcp                          the same over TCP
  farside demo --on 10.0.0.1:7401,10.0.0.2:7401 --key cluster.key
  farside demo --json | jq .workloads
  farside demo --json | jq .replicated               the killed node with copies of its memory

In the first part memory is volatile: the records of a killed node are lost. In the second, with a tenth of the
records (2,000 to 30,000, at most 3 nodes), each node has two copies of its memory in this process: a killed
node is started again with them, and the command fails unless all of its records are there. That part is left
out at agents and over verbs; the output says so.")]
pub(crate) struct DemoArguments {
    /// Number of 1 KB records to load
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    records: u64,
    /// Operations of each workload, all nodes together
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(100..))]
    operations: u64,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=64))]
    nodes: u16,
    /// Threads of each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    #[command(flatten)]
    places: PlacesArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside up --nodes 3 --name lab
  farside up --name big --memory-bytes 4G --cache-bytes 512M
  farside up --nodes 3 --restart     replaces a node whose process ends
  farside up --fabric tcp            over TCP; see farside node for clusters of several hosts

A program joins with Node::join(&Config::new(\"lab\")). If the process of a node ends, its memory is lost and
the other nodes continue; the loss is reported on standard error and as an event.")]
pub(crate) struct UpArguments {
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=256))]
    nodes: u16,
    /// Maximum number of members, including programs that join, 1 to 256
    #[arg(long, default_value_t = 128, value_name = "COUNT")]
    nodes_max: u16,
    /// The cluster's name
    #[arg(long, default_value = "farside")]
    name: String,
    /// Global memory of each node
    #[arg(long, default_value = "256M", value_parser = bytes)]
    memory_bytes: u64,
    /// Cache of each node
    #[arg(long, default_value = "64M", value_parser = bytes)]
    cache_bytes: u64,
    /// Line size of allocations that specify none, 64 to 65536
    #[arg(long, value_parser = clap::value_parser!(u32).range(64..=65536))]
    line_bytes: Option<u32>,
    /// Replace each node whose process ends by a new node with empty memory
    #[arg(long)]
    restart: bool,
    /// Do not remove nodes whose process is stopped, for example by a debugger: other nodes wait for them
    #[arg(long)]
    keep_stopped: bool,
    #[command(flatten)]
    places: PlacesArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside lend --bytes 4GiB --name pool                      to programs of this machine, over shm
  farside lend --bytes 4GiB --listen 10.0.0.1:7471 --key cluster.key     to other hosts, over TCP
  farside lend --bytes 64M --listen 10.0.0.1:7471 --fabric verbs --key cluster.key
  farside lend --bytes 4GiB --name near1 --socket 1          memory and thread on the second socket
  farside lend --bytes 1GiB --name copy1 --exclusive         for a copy of a durable log (farside log keep --copies)

Prints the address that clients open (farside::onesided), then sleeps: requests of clients are executed by the
fabric, over shm by the client itself. With --json each event is a line: lending, ended.")]
pub(crate) struct LendArguments {
    /// How much, with K, M or G
    #[arg(long, value_parser = bytes)]
    bytes: u64,
    /// The name for clients
    #[arg(long, default_value = "pool")]
    name: String,
    /// Listen at HOST:PORT for clients of other hosts (port 0 selects a free port)
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<Endpoint>,
    /// Clients can only read
    #[arg(long)]
    read_only: bool,
    /// Lend to one client at a time, as copies of a durable log need it
    #[arg(long, conflicts_with = "read_only")]
    exclusive: bool,
    /// Maximum number of clients
    #[arg(long, default_value_t = 1024, value_name = "COUNT")]
    clients_max: usize,
    /// Put the memory next to this socket of the machine, counted from 0, and tell clients so
    #[arg(long, value_name = "NUMBER")]
    socket: Option<usize>,
    /// Processors of each socket, such as 0-7;8-15 [default: NUMA nodes of the system]
    #[arg(long, value_name = "SOCKETS", requires = "socket")]
    topology: Option<String>,
    /// Serve other machines without a key: every process that reaches the address can use the memory
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    choice: FabricArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside wordcount book.txt
  farside wordcount --nodes 4 *.txt | sort -rn | head
  farside wordcount --on 10.0.0.1:7401,10.0.0.2:7401 --key cluster.key *.txt

Pipes, /dev/stdin and files of /proc can be read too.

The output equals that of:
  cat FILE... | tr -cs '[:alpha:]' '\\n' | LC_ALL=C sort | uniq -c")]
pub(crate) struct WordcountArguments {
    /// Text files, read as one concatenated text
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    #[command(flatten)]
    places: PlacesArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside channels
  farside channels --need zero-copy-recv,blocking,variable --fan-in 64 --fabric efa
  farside channels --bytes 4096 --fan-out 8 --json | jq '.fitting[].channel'

Without --need, --fan-in, --fan-out, --bytes and --fabric, prints the measured table of paper 001. With any
of them, lists the channels that meet the requirements, best first, and why the others are rejected.")]
pub(crate) struct ChannelsArguments {
    /// Required features: zero-copy-send, zero-copy-recv, blocking, variable,
    /// passive-sender, passive-receiver, one-trip
    #[arg(long, value_delimiter = ',', value_name = "NEED")]
    need: Vec<Need>,
    /// Number of senders per receiver
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    fan_in: Option<u16>,
    /// Number of receivers per sender
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    fan_out: Option<u16>,
    /// Maximum message size
    #[arg(long, value_parser = message_bytes)]
    bytes: Option<u32>,
    /// Fabric [default: shm, within this machine]
    #[arg(long, value_parser = named::<FabricName>())]
    fabric: Option<FabricName>,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// The coherent global memory: hits, misses, locks, atomics, the hash table
    Memory(BenchMemoryArguments),
    /// A fabric: one-sided operations and messages, within this machine or between two processes
    Fabric(BenchFabricArguments),
    /// The data channels: latency, message rate and bandwidth
    Channels(BenchChannelsArguments),
    /// The YCSB core workloads on the shared hash table
    Ycsb(BenchYcsbArguments),
    /// Breadth-first search, PageRank and components on a shared graph, compared with one thread
    Graph(BenchGraphArguments),
    /// A hash table in memory that is lent, compared with one in this process
    Hashtable(BenchHashtableArguments),
    /// A log in memory that is lent: appends and reads, by mode and batch
    Log(BenchLogArguments),
    /// A durable log in a folder: commits of one record and of groups, compared with a write and a sync
    Durable(BenchDurableArguments),
    /// Pieces of a buffer moved to memory that is lent, by each way of vector IO
    Vector(BenchVectorArguments),
    /// Small writes of memory that is lent, collected in a burst buffer, compared with a request for each
    Consolidate(BenchConsolidateArguments),
    /// Random and sequential access to memory that is lent
    Access(BenchAccessArguments),
    /// Rows pushed from threads to threads by the shuffle, compared with one thread
    Shuffle(BenchShuffleArguments),
    /// Two inputs joined by executors, compared with one thread
    Join(BenchJoinArguments),
    /// Sequencers and locks: by remote atomics, by calls over channels, in local memory
    Atomics(BenchAtomicsArguments),
    /// Memory of each socket used from each socket, directly and through proxies
    Numa(BenchNumaArguments),
    /// Remote memory calls, compared with one-sided requests
    Rmc(BenchRmcArguments),
}

#[derive(Subcommand, Debug)]
pub(crate) enum Rmc {
    /// Compile a C program with clang, and verify it
    Build(RmcBuildArguments),
    /// Verify programs; print the reason for a rejection, or the worst-case cost
    Check(RmcCheckArguments),
    /// Run a program in this process, on files as memory, and count its accesses
    Run(RmcRunArguments),
    /// List the programs of the library, or of a file
    List(RmcListArguments),
    /// Run an executor: serve memory regions and run calls on them, until Ctrl-C
    Serve(RmcServeArguments),
    /// Register programs at an executor, and show what it reports about them
    Register(RmcRegisterArguments),
    /// Call a program at an executor, or run it in this process on the executor's memory
    Call(RmcCallArguments),
    /// Subscribe to topics and print the notifications of programs as they arrive
    Listen(RmcListenArguments),
    /// Model figures 3 to 7 of paper 003 by calls in virtual time
    Figures(RmcFiguresArguments),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Starts an executor in a separate process and searches a linked list in its memory, alternately with one call
and with one READ per list node; reports medians. Also measures the registration of the library, the latency of
a short call while another caller's long calls compute, and the same search on this processor, compared with
native Rust.

Examples:
  farside bench rmc
  farside bench rmc --fabric tcp --rounds 5000
  farside bench rmc --peers bench/compare/rmc/target/release/farside-compare-rmc")]
pub(crate) struct BenchRmcArguments {
    /// Measure over this fabric only
    #[arg(long, value_parser = named::<FabricKind>())]
    fabric: Option<FabricKind>,
    /// Round trips of each kind
    #[arg(long, default_value_t = 2000)]
    rounds: u32,
    /// Also measure other engines, with this program, which bench/compare/rmc builds
    #[arg(long, value_name = "PROGRAM")]
    peers: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench memory
  farside bench memory --only miss --windows 1000")]
pub(crate) struct BenchMemoryArguments {
    #[command(flatten)]
    pub(crate) effort: EffortArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench fabric                              within this machine, with baselines
  farside bench fabric --only fetch_add --json
  farside bench fabric --listen 0.0.0.0:7471        the server, over TCP
  farside bench fabric 10.0.0.1:7471 -a             the client: latency of all tests and sizes
  farside bench fabric 10.0.0.1:7471 --test write,read --measure bandwidth -s 64K -D 5
  farside bench fabric --listen lab --once          a server for one client, over shm
  farside bench fabric lab --test all --measure all --json | jq .latency
  farside bench fabric 10.0.0.1:7471 --strict-ordering --test write --measure bandwidth

The tables of a client follow perftest: WRITE and SEND latency is half of a round trip while both programs
poll; READ and atomic latency is a full round trip while the server sleeps. t_typical is the median, 1 MiB is
2^20 bytes, and BW peak is the best of any four windows in a row, from posting the first request to completing
the last one. A latency test ends after 4,194,304 rounds.")]
pub(crate) struct BenchFabricArguments {
    #[command(flatten)]
    effort: EffortArguments,
    /// Address of the server: HOST:PORT, HOST:PORT/NAME, or a name on this machine
    #[arg(value_name = "ADDR", conflicts_with_all = ["listen", "once", "only", "windows"])]
    to: Option<String>,
    /// Serve clients at this address, one after the other, until Ctrl-C; port 0 selects a free port
    #[arg(long, value_name = "ADDR", conflicts_with_all = CLIENT_ONLY)]
    listen: Option<String>,
    /// Serve one client only
    #[arg(long, requires = "listen")]
    once: bool,
    /// Register the measured memory with untorn words and ordered WRITEs, which costs long WRITEs over tcp
    /// one more copy; give it at both ends. Default: relaxed, as in perftest, whose option for strict order
    /// is --disable_pcie_relaxed
    #[arg(long)]
    strict_ordering: bool,
    #[command(flatten)]
    choice: FabricArguments,
    #[command(flatten)]
    tests: FabricTestsArguments,
    /// Measure all powers of two from 2 B to 8 MiB
    #[arg(long, short = 'a', requires = "to", conflicts_with = "bytes")]
    all: bool,
    /// Request sizes
    #[arg(long, short = 's', visible_alias = "size", requires = "to", value_delimiter = ',', value_parser = request_bytes)]
    bytes: Vec<u32>,
    /// Requests per test; by default 1000 for latency, 5000 otherwise
    #[arg(long, short = 'n', visible_alias = "iters", requires = "to", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    iterations: Option<u64>,
    /// Seconds per test, instead of a number of requests
    #[arg(long, short = 'D', visible_alias = "duration", requires = "to", conflicts_with = "iterations", value_parser = seconds)]
    seconds: Option<f64>,
    /// Maximum requests in flight; by default 128, or the fabric's limit if that is lower
    #[arg(long, short = 't', visible_alias = "tx-depth", requires = "to", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    window: Option<u32>,
    /// Requests per doorbell, at most half a window; by default 1, or 32 for rates
    #[arg(long, short = 'l', visible_alias = "post-list", requires = "to", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Requests per signaled completion (completion moderation), at most half a window
    #[arg(long, short = 'Q', visible_alias = "cq-mod", requires = "to", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    signal_every: u32,
    /// Maximum bytes that are sent inline; by default 220 for latency, 0 otherwise
    #[arg(long, short = 'I', requires = "to", value_parser = clap::value_parser!(u32).range(0..=4096))]
    inline: Option<u32>,
}

/// The tests of a client.
#[derive(Args, Debug)]
struct FabricTestsArguments {
    /// Operations to test
    #[arg(long, requires = "to", value_delimiter = ',', default_value = "all")]
    test: Vec<TestName>,
    /// What to measure
    #[arg(long, requires = "to", value_delimiter = ',', default_value = "latency")]
    measure: Vec<MeasureName>,
}

/// Arguments that conflict with `--listen`: a server takes its parameters from its clients.
const CLIENT_ONLY: [&str; 12] = [
    "only",
    "windows",
    "test",
    "measure",
    "all",
    "bytes",
    "iterations",
    "seconds",
    "window",
    "batch",
    "signal_every",
    "inline",
];

/// An operation by name, or all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TestName {
    /// One-sided WRITE
    Write,
    /// One-sided READ
    Read,
    /// FETCH_ADD
    Atomic,
    /// Messages
    Send,
    /// All that the fabric supports
    All,
}

impl TestName {
    const fn test(self) -> Option<Test> {
        match self {
            Self::Write => Some(Test::Write),
            Self::Read => Some(Test::Read),
            Self::Atomic => Some(Test::Atomic),
            Self::Send => Some(Test::Send),
            Self::All => None,
        }
    }
}

/// A measurement of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum MeasureName {
    /// One request at a time; by default 2 B
    Latency,
    /// Many requests in flight; by default 64 KiB
    Bandwidth,
    /// Many requests in flight, posted in lists; by default 8 B
    Rate,
    /// All three
    All,
}

/// Operations on cluster keys.
#[derive(Subcommand, Debug)]
pub(crate) enum Key {
    /// Write a new key to a file that only its owner can read; never overwrites a file
    New(KeyNewArguments),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside key new cluster.key
  farside bench fabric --listen 0.0.0.0:7471 --key cluster.key")]
pub(crate) struct KeyNewArguments {
    /// Path of the new file
    pub(crate) file: PathBuf,
}

/// The figures to measure, and the effort.
#[derive(Args, Debug)]
pub(crate) struct EffortArguments {
    /// Measure only figures whose name contains this text
    #[arg(long)]
    only: Option<String>,
    /// Windows of about half a millisecond per figure
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(8..))]
    windows: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench ycsb --workload a --nodes 3 --threads 2
  farside bench ycsb --properties workloads/workloadb --records 100000
  farside bench ycsb --workload a --operations 10000 --history history.jsonl
  farside bench ycsb --on 10.0.0.1:7401,10.0.0.2:7401 --key cluster.key
  farside bench ycsb --workload c --by-call
  farside bench ycsb --workload a --logged

The history has one JSON object per line: process, operation, key, value, invocation and return time in ns
of one clock, outcome. The histories of the nodes are merged even if the run fails. An operation that was in
flight at a killed node has no return time, and outcome `unknown` if it may have changed a record. Check it with
`cargo run -p farside-sim --example check_history FILE`.")]
pub(crate) struct BenchYcsbArguments {
    /// Core workload: a, b, c, d or f
    #[arg(long, short, default_value = "a", conflicts_with = "properties")]
    workload: CoreWorkload,
    /// A property file of YCSB
    #[arg(long)]
    properties: Option<PathBuf>,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Threads of each node; overrides the property file
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// Records to load; overrides the property file
    #[arg(long)]
    records: Option<u64>,
    /// Operations over all nodes; overrides the property file
    #[arg(long)]
    operations: Option<u64>,
    /// File for the history, one line of JSON per operation
    #[arg(long, conflicts_with = "on")]
    history: Option<PathBuf>,
    /// Read with one remote memory call at the home of the bucket; counts reads that cannot
    #[arg(long)]
    by_call: bool,
    /// Measure a table in memory that survives too: nodes with two copies of their memory in this process
    #[arg(long, conflicts_with_all = ["on", "history", "by_call"])]
    logged: bool,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    places: PlacesArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench graph --scale 18
  farside bench graph --kernel pagerank --form bulk --runs 9
  farside bench graph --scale 14 --nodes 2 --fabric tcp

A Kronecker graph as of Graph500 (A, B, C = 0.57, 0.19, 0.19). Each node has a part of the rows and of the results.
Bulk reads and writes ranges; words accesses each element by itself. Speed is the median time of one thread on
plain memory, in the same run, divided by the median time of the nodes. Every result is compared with that of the
thread: a wrong one fails the command.")]
pub(crate) struct BenchGraphArguments {
    /// Binary logarithm of the number of vertices
    #[arg(long, default_value_t = 18, value_parser = clap::value_parser!(u32).range(0..=Kronecker::SCALE_MAX as i64))]
    scale: u32,
    /// Generated edges for each vertex
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=Kronecker::EDGE_FACTOR_MAX as i64))]
    edge_factor: u32,
    /// Kernels [default: all]
    #[arg(long = "kernel", value_delimiter = ',', value_name = "KERNEL", value_parser = named::<KernelName>())]
    kernels: Vec<KernelName>,
    /// How the graph is accessed [default: both]
    #[arg(long = "form", value_delimiter = ',', value_name = "FORM", value_parser = named::<GraphForm>())]
    forms: Vec<GraphForm>,
    /// Iterations of PageRank
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(..=10_000))]
    iterations: u32,
    /// Runs of each kernel and form, of which the median is reported
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Node processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    places: PlacesArguments,
}

impl From<BenchGraphArguments> for BenchGraph {
    fn from(arguments: BenchGraphArguments) -> Self {
        let BenchGraphArguments {
            scale,
            edge_factor,
            kernels,
            forms,
            iterations,
            runs,
            nodes,
            seed,
            places,
        } = arguments;
        Self {
            scale,
            edge_factor,
            kernels: selected(&kernels),
            forms: selected(&forms),
            iterations,
            runs,
            nodes,
            seed,
            places: places.into(),
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside doctor
  farside doctor --nodes 8 --memory-bytes 2G
  farside doctor --peer node7                   also checks the route to another machine
  farside doctor --only gid_table,rdma_bus      some checks or groups, in detail
  farside doctor --json | jq '.checks[] | select(.verdict == \"failing\")'

Changes nothing. Verdicts: ok, note (no action needed), warning (works, but slower or with limits), failing,
skipped (with the reason). Exit code 1 if a check fails. Firewalls cannot be detected.")]
pub(crate) struct DoctorArguments {
    /// Number of node processes that are planned on this machine
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128))]
    nodes: u16,
    /// Global memory of each node
    #[arg(long, visible_alias = "memory", default_value = "256M", value_parser = bytes)]
    memory_bytes: u64,
    /// Also check the route to this machine
    #[arg(long, value_name = "HOST")]
    peer: Option<String>,
    /// Run only these checks or groups of checks, in detail
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// List the checks and why each matters, without running them
    #[arg(long)]
    list: bool,
}

convert! {
    DemoArguments => Demo { records, operations, nodes, threads, places }
    UpArguments => Up {
        nodes, nodes_max, name, memory_bytes, cache_bytes, line_bytes, restart, keep_stopped, places,
    }
    WordcountArguments => Wordcount { files, nodes, places }
    LendArguments => LendMemory {
        name,
        listen,
        bytes,
        read_only,
        exclusive,
        clients_max,
        socket,
        topology,
        insecure,
        choice,
    }
    DoctorArguments => Doctor { nodes, memory_bytes, peer, only, list }
    EffortArguments => Effort { only, windows }
    BenchRmcArguments => BenchRmc { fabric, rounds, peers }
    BenchYcsbArguments => BenchYcsb {
        workload, properties, nodes, threads, records, operations, history, by_call, logged, seed, places,
    }
}

impl ChannelsArguments {
    /// Returns the request for advice, with the library's defaults for options that are not given; `None` without
    /// any.
    pub(crate) fn advice(self) -> Option<ChannelAdvice> {
        let Self { need, fan_in, fan_out, bytes, fabric } = self;
        let asks =
            !need.is_empty() || fan_in.or(fan_out).is_some() || bytes.is_some() || fabric.is_some();
        let usual = Requirements::default();
        let requirements = usual
            .clone()
            .needs(need)
            .fan_in(fan_in.unwrap_or(usual.fan_in))
            .fan_out(fan_out.unwrap_or(usual.fan_out))
            .message_bytes_max(bytes.unwrap_or(usual.message_bytes_max));
        let fabric = fabric.unwrap_or(FabricName::Shm);
        asks.then_some(ChannelAdvice { requirements, fabric })
    }
}

impl FabricTestsArguments {
    /// Returns the operations, each once.
    fn tests(&self) -> Vec<Test> {
        let wanted = |test: &Test| {
            self.all_tests() || self.test.iter().any(|name| name.test() == Some(*test))
        };
        Test::ALL.into_iter().filter(wanted).collect()
    }

    /// Returns whether all operations of the fabric are requested.
    fn all_tests(&self) -> bool {
        self.test.contains(&TestName::All)
    }

    /// Returns the measurements, each once.
    fn measures(&self) -> Vec<Measure> {
        let every = [
            (MeasureName::Latency, Measure::Latency),
            (MeasureName::Bandwidth, Measure::Bandwidth),
            (MeasureName::Rate, Measure::Rate),
        ];
        let all = self.measure.contains(&MeasureName::All);
        let wanted = every.into_iter().filter(|(name, _)| all || self.measure.contains(name));
        wanted.map(|(_, measure)| measure).collect()
    }
}

impl From<BenchFabricArguments> for BenchFabric {
    fn from(arguments: BenchFabricArguments) -> Self {
        Self {
            effort: arguments.effort.into(),
            to: arguments.to,
            listen: arguments.listen,
            once: arguments.once,
            strict_ordering: arguments.strict_ordering,
            choice: arguments.choice.into(),
            tests: arguments.tests.tests(),
            all_tests: arguments.tests.all_tests(),
            measures: arguments.tests.measures(),
            all: arguments.all,
            bytes: arguments.bytes,
            iterations: arguments.iterations,
            seconds: arguments.seconds,
            window: arguments.window,
            batch: arguments.batch,
            signal_every: arguments.signal_every,
            inline: arguments.inline,
        }
    }
}

/// Parses a request size.
fn request_bytes(text: &str) -> Result<u32, String> {
    match u32::try_from(bytes(text)?) {
        Ok(bytes @ 1..=TRANSFER_BYTES_MAX) => Ok(bytes),
        _ => Err(format!("a request has 1 to {TRANSFER_BYTES_MAX} bytes")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples() {
        fn walk(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                let simple = sub.get_arguments().all(|argument| argument.is_global_set());
                let after = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                let group = sub.has_subcommands();
                assert!(simple || group || after.contains("Examples:"), "{}", sub.get_name());
                walk(sub);
            }
        }
        walk(&Arguments::command());
    }

    #[test]
    fn sizes_accept_units() {
        let cases =
            [("64", 64), ("1K", 1024), ("2MiB", 2 << 20), ("3g", 3 << 30), ("1TB", 1 << 40)];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        assert_eq!(message_bytes("64K"), Ok(65_536));
        assert_eq!(seconds("0.5"), Ok(0.5));
        for junk in ["0", "16M", "many"] {
            assert!(message_bytes(junk).is_err(), "{junk}");
        }
        for junk in ["0", "-1", "nan", "inf", "soon"] {
            assert!(seconds(junk).is_err(), "{junk}");
        }
        for junk in ["", "M", "1.5G", "-1", "99999999999T"] {
            assert!(bytes(junk).is_err(), "{junk}");
        }
    }

    fn command(line: &[&str]) -> Result<Command, clap::Error> {
        Arguments::try_parse_from([&["farside"], line].concat()).map(|arguments| arguments.command)
    }

    #[test]
    fn arguments_of_the_other_end_are_refused() {
        let refused = |line: &[&str]| command(&[&["bench", "fabric"], line].concat()).is_err();
        for line in [
            &["--listen", "lab", "--once"][..],
            &["lab", "-Q", "7"],
            &["--listen", "lab", "--strict-ordering"],
            &["lab", "--strict-ordering"],
        ] {
            assert!(!refused(line), "{line:?}");
        }
        for wrong in [
            &["lab", "--once"][..],
            &["lab", "--only", "read"],
            &["lab", "-n", "9", "-D", "1"],
            &["lab", "--listen", "lab"],
            &["--listen", "lab", "-a"],
            &["--listen", "lab", "-Q", "7"],
            &["--listen", "lab", "--test", "read"],
            &["-s", "8"],
        ] {
            assert!(refused(wrong), "{wrong:?}");
        }
    }

    #[test]
    fn bench_fabric_measures_latency_of_all_tests_by_default() {
        let settings = |line: &[&str]| match command(&[&["bench", "fabric"], line].concat()) {
            Ok(Command::Bench { which: Bench::Fabric(arguments) }) => BenchFabric::from(arguments),
            other => unreachable!("the command is bench fabric, not {other:?}"),
        };
        let usual = settings(&["lab"]);
        assert_eq!((&usual.tests[..], usual.all_tests), (&Test::ALL[..], true));
        assert_eq!((&usual.measures[..], usual.all), (&[Measure::Latency][..], false));
        assert_eq!((usual.to.as_deref(), usual.signal_every), (Some("lab"), 100));
        let one = settings(&["lab", "--test=send", "-s8192", "--measure", "all", "-t", "11"]);
        assert_eq!((&one.tests[..], one.all_tests), (&[Test::Send][..], false));
        assert_eq!((one.measures.len(), &one.bytes[..], one.window), (3, &[8192][..], Some(11)));
        assert!(settings(&["lab", "-a"]).all);
    }

    #[test]
    fn channels_asks_only_with_requirements() {
        let asks = |line: &[&str]| match command(&[&["channels"], line].concat()) {
            Ok(Command::Channels(arguments)) => arguments.advice().is_some(),
            other => unreachable!("the command is channels, not {other:?}"),
        };
        assert!(!asks(&[]));
        for line in
            [["--need", "blocking"], ["--fan-out", "2"], ["--bytes", "1K"], ["--fabric", "efa"]]
        {
            assert!(asks(&line), "{line:?}");
        }
    }
}
