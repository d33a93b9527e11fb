//! The command line.

mod channels;
mod hosts;
mod remote;
mod rmc;
mod run;

use crate::bench::{TRANSFER_BYTES_MAX, Test};
use crate::rdma::Rdma;
pub(crate) use channels::{BenchChannels, DeviceName, Pattern, ProfileName};
use clap::{Args, Parser, Subcommand, ValueEnum};
use farside::channel::{Need, Requirements};
use farside_apps::ycsb::CoreWorkload;
pub(crate) use hosts::{
    Agent, CongestionName, HostFabric, Node, NodeSettings, Places, WorkerFabric,
};
pub(crate) use remote::{
    CallerArguments, Lend, LendFrom, NodeArguments, OnlyFor, PlaceName, RmcCall, RmcListen,
    RmcRegister, RmcServe,
};
pub(crate) use rmc::{EngineName, Memory, RmcBuild, RmcCheck, RmcFigures, RmcList, RmcRun};
pub(crate) use run::{Launched, RunProgram};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  farside demo                        three nodes, YCSB, a killed node, in about a minute
  farside up --nodes 3 --name lab     a local cluster that programs join by name
  farside run -n 4 PROGRAM            a program as four processes that share a cluster
  farside wordcount *.txt             counts words with atomic updates in a shared table
  farside channels --need blocking    suitable data channels, and why others are rejected
  farside bench memory                the cost of each operation, with a baseline
  farside rmc build search.c          compiles and verifies a remote memory call
  farside rmc serve lists --memory 0=nodes.bin     runs remote memory calls on a file's contents
  farside doctor                      checks this machine, with a command for each fix
  farside key new cluster.key         creates the secret key of a cluster
  farside node --listen ADDR ...      one node of a cluster of several hosts
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
    /// Run a demonstration: three nodes, 300,000 records, YCSB A B C D F, then kill a node
    Demo(Demo),
    /// Run a local cluster that programs join by name, until Ctrl-C
    Up(Up),
    /// Run a program as several processes that share a cluster
    Run(RunProgram),
    /// Run one node of a cluster of several hosts, until Ctrl-C
    Node(Node),
    /// Start node processes on this host for commands on other hosts, until Ctrl-C
    Agent(Agent),
    /// Count the words of files in a shared table
    Wordcount(Wordcount),
    /// List the data channels with their measurements, or those that meet given requirements
    Channels(Channels),
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
    /// Show the fabrics, which one would be chosen and why, and running clusters
    #[command(after_help = "\
Examples:
  farside info
  farside info --json | jq .clusters")]
    Info,
    /// Check the limits and settings of this machine
    Doctor(Doctor),
    /// Create the secret key that the hosts of a cluster share
    Key {
        #[command(subcommand)]
        which: Key,
    },
    /// Run one node for a parent process
    #[command(hide = true)]
    Worker(Worker),
    /// Execute a program that ends with its parent
    #[command(hide = true)]
    Launched(Launched),
}

#[derive(Args, Debug)]
pub(crate) struct Worker {
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
  farside demo --json | jq .workloads")]
pub(crate) struct Demo {
    /// Number of 1 KB records to load
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) records: u64,
    /// Operations of each workload, all nodes together
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(100..))]
    pub(crate) operations: u64,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(crate) nodes: u16,
    /// Threads of each node
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: u16,
    #[command(flatten)]
    pub(crate) places: Places,
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
pub(crate) struct Up {
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) nodes: u16,
    /// Maximum number of members, including programs that join, 1 to 256
    #[arg(long, default_value_t = 128, value_name = "COUNT")]
    pub(crate) nodes_max: u16,
    /// The cluster's name
    #[arg(long, default_value = "farside")]
    pub(crate) name: String,
    /// Global memory of each node
    #[arg(long, default_value = "256M", value_parser = bytes)]
    pub(crate) memory_bytes: u64,
    /// Cache of each node
    #[arg(long, default_value = "64M", value_parser = bytes)]
    pub(crate) cache_bytes: u64,
    /// Line size of allocations that specify none, 64 to 65536
    #[arg(long, value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub(crate) line_bytes: Option<u32>,
    /// Replace each node whose process ends by a new node with empty memory
    #[arg(long)]
    pub(crate) restart: bool,
    /// Do not remove nodes whose process is stopped, for example by a debugger: other nodes wait for them
    #[arg(long)]
    pub(crate) keep_stopped: bool,
    #[command(flatten)]
    pub(crate) places: Places,
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
pub(crate) struct Wordcount {
    /// Text files, read as one concatenated text
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: u16,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside channels
  farside channels --need zero-copy-recv,blocking,variable --fan-in 64 --fabric efa
  farside channels --bytes 4096 --fan-out 8 --json | jq '.fitting[].channel'

Without --need, --fan-in, --fan-out, --bytes and --fabric, prints the measured table of paper 001. With any
of them, lists the channels that meet the requirements, best first, and why the others are rejected.")]
pub(crate) struct Channels {
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
    #[arg(long)]
    fabric: Option<FabricName>,
}

impl Channels {
    /// Returns whether any requirement is given.
    pub(crate) fn asks(&self) -> bool {
        !self.need.is_empty()
            || self.fan_in.or(self.fan_out).is_some()
            || self.bytes.is_some()
            || self.fabric.is_some()
    }

    pub(crate) fn fabric(&self) -> FabricName {
        self.fabric.unwrap_or(FabricName::Shm)
    }

    /// Returns the requirements, with the library's defaults for options that are not given.
    pub(crate) fn requirements(&self) -> Requirements {
        let usual = Requirements::default();
        usual
            .clone()
            .needs(self.need.clone())
            .fan_in(self.fan_in.unwrap_or(usual.fan_in))
            .fan_out(self.fan_out.unwrap_or(usual.fan_out))
            .message_bytes_max(self.bytes.unwrap_or(usual.message_bytes_max))
    }
}

/// A fabric whose capabilities the advisor knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FabricName {
    /// Processes of this machine
    Shm,
    /// InfiniBand or RoCE
    Infiniband,
    /// InfiniBand or RoCE with adaptive routing
    Adaptive,
    /// The Elastic Fabric Adapter: SEND and READ of one packet, in any order
    Efa,
    /// 1RMA: READ of one packet, in any order
    #[value(name = "1rma")]
    OneRma,
}

impl FabricName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Infiniband => "infiniband",
            Self::Adaptive => "adaptive",
            Self::Efa => "efa",
            Self::OneRma => "1rma",
        }
    }
}

#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// The coherent global memory: hits, misses, locks, atomics, the hash table
    Memory(BenchMemory),
    /// A fabric: one-sided operations and messages, within this machine or between two processes
    Fabric(BenchFabric),
    /// The data channels: latency, message rate and bandwidth
    Channels(BenchChannels),
    /// The YCSB core workloads on the shared hash table
    Ycsb(BenchYcsb),
    /// Remote memory calls, compared with one-sided requests
    Rmc(BenchRmc),
}

#[derive(Subcommand, Debug)]
pub(crate) enum Rmc {
    /// Compile a C program with clang, and verify it
    Build(RmcBuild),
    /// Verify programs; print the reason for a rejection, or the worst-case cost
    Check(RmcCheck),
    /// Run a program in this process, on files as memory, and count its accesses
    Run(RmcRun),
    /// List the programs of the library, or of a file
    List(RmcList),
    /// Run an executor: serve memory regions and run calls on them, until Ctrl-C
    Serve(RmcServe),
    /// Register programs at an executor, and show what it reports about them
    Register(RmcRegister),
    /// Call a program at an executor, or run it in this process on the executor's memory
    Call(RmcCall),
    /// Subscribe to topics and print the notifications of programs as they arrive
    Listen(RmcListen),
    /// Compare calls with one-sided requests (the same as farside bench rmc)
    Bench(BenchRmc),
    /// Model figures 3 to 7 of paper 003 by calls in virtual time
    Figures(RmcFigures),
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
pub(crate) struct BenchRmc {
    /// Measure over this fabric only
    #[arg(long, value_enum)]
    pub(crate) fabric: Option<FabricKind>,
    /// Round trips of each kind
    #[arg(long, default_value_t = 2000)]
    pub(crate) rounds: u32,
    /// Also measure other engines, with this program, which bench/compare/rmc builds
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) peers: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench memory
  farside bench memory --only miss --windows 1000")]
pub(crate) struct BenchMemory {
    #[command(flatten)]
    pub(crate) effort: Effort,
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
pub(crate) struct BenchFabric {
    #[command(flatten)]
    pub(crate) effort: Effort,
    /// Address of the server: HOST:PORT, HOST:PORT/NAME, or a name on this machine
    #[arg(value_name = "ADDR", conflicts_with_all = ["listen", "once", "only", "windows"])]
    pub(crate) to: Option<String>,
    /// Serve clients at this address, one after the other, until Ctrl-C; port 0 selects a free port
    #[arg(long, value_name = "ADDR", conflicts_with_all = CLIENT_ONLY)]
    pub(crate) listen: Option<String>,
    /// Serve one client only
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,
    /// Register the measured memory with untorn words and ordered WRITEs, which costs long WRITEs over tcp
    /// one more copy; give it at both ends. Default: relaxed, as in perftest, whose option for strict order
    /// is --disable_pcie_relaxed
    #[arg(long)]
    pub(crate) strict_ordering: bool,
    #[command(flatten)]
    pub(crate) choice: FabricArguments,
    #[command(flatten)]
    tests: FabricTests,
    /// Measure all powers of two from 2 B to 8 MiB
    #[arg(long, short = 'a', requires = "to", conflicts_with = "bytes")]
    pub(crate) all: bool,
    /// Request sizes
    #[arg(long, short = 's', visible_alias = "size", requires = "to", value_delimiter = ',', value_parser = request_bytes)]
    pub(crate) bytes: Vec<u32>,
    /// Requests per test; by default 1000 for latency, 5000 otherwise
    #[arg(long, short = 'n', visible_alias = "iters", requires = "to", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iterations: Option<u64>,
    /// Seconds per test, instead of a number of requests
    #[arg(long, short = 'D', visible_alias = "duration", requires = "to", conflicts_with = "iterations", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Maximum requests in flight; by default 128, or the fabric's limit if that is lower
    #[arg(long, short = 't', visible_alias = "tx-depth", requires = "to", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) window: Option<u32>,
    /// Requests per doorbell, at most half a window; by default 1, or 32 for rates
    #[arg(long, short = 'l', visible_alias = "post-list", requires = "to", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Option<u32>,
    /// Requests per signaled completion (completion moderation), at most half a window
    #[arg(long, short = 'Q', visible_alias = "cq-mod", requires = "to", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) signal_every: u32,
    /// Maximum bytes that are sent inline; by default 220 for latency, 0 otherwise
    #[arg(long, short = 'I', requires = "to", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) inline: Option<u32>,
}

/// The tests of a client.
#[derive(Args, Debug)]
struct FabricTests {
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

impl BenchFabric {
    /// Returns whether this process is a client or a server, and does not measure within this machine.
    pub(crate) fn is_of_two_ends(&self) -> bool {
        self.to.is_some() || self.listen.is_some() || self.strict_ordering || self.choice.chooses()
    }

    /// Returns whether all operations of the fabric are requested.
    pub(crate) fn all_tests(&self) -> bool {
        self.tests.test.contains(&TestName::All)
    }

    /// Returns the requested operations, each once.
    pub(crate) fn tests(&self) -> Vec<Test> {
        let wanted = |test: &Test| {
            self.all_tests() || self.tests.test.iter().any(|name| name.test() == Some(*test))
        };
        Test::ALL.into_iter().filter(wanted).collect()
    }

    /// Returns the requested measurements, each once.
    pub(crate) fn measures(&self) -> Vec<MeasureName> {
        let asked = &self.tests.measure;
        let all = asked.contains(&MeasureName::All);
        let every = [MeasureName::Latency, MeasureName::Bandwidth, MeasureName::Rate];
        every.into_iter().filter(|measure| all || asked.contains(measure)).collect()
    }
}

/// The fabric and its protection.
#[derive(Args, Debug, Default)]
pub(crate) struct FabricArguments {
    /// Fabric; by default tcp if an address has a port, otherwise shm
    #[arg(long)]
    pub(crate) fabric: Option<FabricKind>,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What TLS 1.3 protects; by default everything if there is a key (over verbs the handshake, since
    /// adapters send data in plain text), otherwise nothing
    #[arg(long)]
    pub(crate) protect: Option<Protection>,
    #[command(flatten)]
    pub(crate) rdma: Rdma,
    /// Congestion control of the kernel for tcp [default: unpaced]
    #[arg(long, value_name = "CONTROL")]
    pub(crate) congestion: Option<CongestionName>,
}

impl FabricArguments {
    /// Returns whether any option is given.
    fn chooses(&self) -> bool {
        self.fabric.is_some()
            || self.key.is_some()
            || self.protect.is_some()
            || self.rdma.asks()
            || self.congestion.is_some()
    }
}

/// A fabric between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FabricKind {
    /// Processes of this machine
    Shm,
    /// TCP, between machines
    Tcp,
    /// InfiniBand or RoCE, between machines
    Verbs,
}

/// What TLS protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protection {
    /// No authentication; all traffic is plain text
    Nothing,
    /// Authentication and memory keys; data is plain text
    Handshake,
    /// Authentication, memory keys and data
    Everything,
}

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
    New(KeyNew),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside key new cluster.key
  farside bench fabric --listen 0.0.0.0:7471 --key cluster.key")]
pub(crate) struct KeyNew {
    /// Path of the new file
    pub(crate) file: PathBuf,
}

/// The figures to measure, and the effort.
#[derive(Args, Debug)]
pub(crate) struct Effort {
    /// Measure only figures whose name contains this text
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Windows of about half a millisecond per figure
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(8..))]
    pub(crate) windows: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench ycsb --workload a --nodes 3 --threads 2
  farside bench ycsb --properties workloads/workloadb --records 100000
  farside bench ycsb --workload a --operations 10000 --history history.jsonl
  farside bench ycsb --on 10.0.0.1:7401,10.0.0.2:7401 --key cluster.key
  farside bench ycsb --workload c --by-call

The history has one JSON object per line: process, operation, key, value, invocation and return time in ns
of one clock, outcome. The histories of the nodes are merged even if the run fails. An operation that was in
flight at a killed node has no return time, and outcome `unknown` if it may have changed a record. Check it with
`cargo run -p farside-sim --example check_history FILE`.")]
pub(crate) struct BenchYcsb {
    /// Core workload: a, b, c, d or f
    #[arg(long, short, default_value = "a", conflicts_with = "properties")]
    pub(crate) workload: CoreWorkload,
    /// A property file of YCSB
    #[arg(long)]
    pub(crate) properties: Option<PathBuf>,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: u16,
    /// Threads of each node; overrides the property file
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) threads: Option<u16>,
    /// Records to load; overrides the property file
    #[arg(long)]
    pub(crate) records: Option<u64>,
    /// Operations over all nodes; overrides the property file
    #[arg(long)]
    pub(crate) operations: Option<u64>,
    /// File for the history, one line of JSON per operation
    #[arg(long, conflicts_with = "on")]
    pub(crate) history: Option<PathBuf>,
    /// Read with one remote memory call at the home of the bucket; counts reads that cannot
    #[arg(long)]
    pub(crate) by_call: bool,
    /// Seed of the random number generator
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) places: Places,
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
pub(crate) struct Doctor {
    /// Number of node processes that are planned on this machine
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) nodes: u16,
    /// Global memory of each node
    #[arg(long, visible_alias = "memory", default_value = "256M", value_parser = bytes)]
    pub(crate) memory_bytes: u64,
    /// Also check the route to this machine
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Option<String>,
    /// Run only these checks or groups of checks, in detail
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// List the checks and why each matters, without running them
    #[arg(long)]
    pub(crate) list: bool,
}

/// Parses a number of bytes: digits, optionally followed by K, M, G or T (powers of 1,024).
fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim().trim_end_matches(['B', 'b']).trim_end_matches('i');
    let (digits, shift) = match text.chars().last().map(|c| c.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number, optionally with K, M, G or T".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Parses a message size.
fn message_bytes(text: &str) -> Result<u32, String> {
    const BYTES_MAX: u32 = (1 << 24) - 1;
    let number = bytes(text)?;
    match u32::try_from(number) {
        Ok(bytes @ 1..=BYTES_MAX) => Ok(bytes),
        _ => Err(format!("a message has 1 to {BYTES_MAX} bytes")),
    }
}

/// Parses a request size.
fn request_bytes(text: &str) -> Result<u32, String> {
    match u32::try_from(bytes(text)?) {
        Ok(bytes @ 1..=TRANSFER_BYTES_MAX) => Ok(bytes),
        _ => Err(format!("a request has 1 to {TRANSFER_BYTES_MAX} bytes")),
    }
}

/// Parses a time in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    if (0.01..=3600.0).contains(&number) { Ok(number) } else { Err("0.01 to 3600".to_owned()) }
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

    #[test]
    fn channels_asks_only_with_requirements() {
        let asks = |line: &[&str]| {
            let line = [&["farside", "channels"], line].concat();
            match Arguments::try_parse_from(line).unwrap().command {
                Command::Channels(arguments) => arguments.asks(),
                _ => unreachable!("the command is channels"),
            }
        };
        assert!(!asks(&[]));
        for line in
            [["--need", "blocking"], ["--fan-out", "2"], ["--bytes", "1K"], ["--fabric", "efa"]]
        {
            assert!(asks(&line), "{line:?}");
        }
    }
}
