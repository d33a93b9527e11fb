//! The command line.

mod channels;
mod hosts;
mod remote;
mod rmc;

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
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  farside demo                        three nodes, YCSB, a killed node, in about a minute
  farside up --nodes 3 --name lab     a local cluster that programs join by name
  farside wordcount *.txt             counts words with atomic updates in a shared table
  farside channels --need blocking    which data channels fit, and why the others do not
  farside bench memory                what each operation costs, beside its baseline
  farside rmc build search.c          a remote memory call: compiled, verified, its worst case
  farside rmc serve lists --memory 0=nodes.bin     runs calls of others on memory
  farside doctor                      what this machine lacks, and the line that fixes it
  farside key new cluster.key         a secret for the hosts of a cluster
  farside node --listen ADDR ...      one node of a cluster of several hosts
  farside agent --listen ADDR ...     runs nodes on this host for commands of others

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
    /// Show it all: three nodes, 300,000 records, YCSB A B C D F, then kill a node
    Demo(Demo),
    /// Run a local cluster that programs join by name, until Ctrl-C
    Up(Up),
    /// Run one node of a cluster of several hosts, until Ctrl-C
    Node(Node),
    /// Start node processes on this host for commands that run elsewhere, until Ctrl-C
    Agent(Agent),
    /// Count the words of files in a shared table
    Wordcount(Wordcount),
    /// Show the data channels as they were measured, or those that fit a need
    Channels(Channels),
    /// Measure, each figure beside its baseline of the same run
    Bench {
        #[command(subcommand)]
        which: Bench,
    },
    /// Remote memory calls: small programs that run beside the memory
    Rmc {
        #[command(subcommand)]
        which: Rmc,
    },
    /// Show fabrics, what would be chosen and why, and running clusters
    #[command(after_help = "\
Examples:
  farside info
  farside info --json | jq .clusters")]
    Info,
    /// Check limits and settings of this machine
    Doctor(Doctor),
    /// Make the secret that the hosts of a cluster share
    Key {
        #[command(subcommand)]
        which: Key,
    },
    /// Host one node for a parent process
    #[command(hide = true)]
    Worker(Worker),
}

#[derive(Args, Debug)]
pub(crate) struct Worker {
    /// The file with the cluster's key
    #[arg(long)]
    pub(crate) key: Option<PathBuf>,
    /// Neither read nor write files for the parent, which is on another host
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
    /// Records of 1 KB to load
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub(crate) records: u64,
    /// Operations of each workload, over all nodes
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
  farside up --nodes 3 --restart     a node that ends is replaced by a new one
  farside up --fabric tcp            over TCP; see farside node for clusters of several hosts

A program joins with Node::join(&Config::new(\"lab\")). Where the process of a node ends, its memory is lost,
which is said on standard error and as an event, and the others go on.")]
pub(crate) struct Up {
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) nodes: u16,
    /// Members that the cluster can have at a time, programs that join among them, 1 to 256
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
    /// Line size of allocations that name none, 64 to 65536
    #[arg(long, value_parser = clap::value_parser!(u32).range(64..=65536))]
    pub(crate) line_bytes: Option<u32>,
    /// Start a new node, with new memory, for each one whose process ends
    #[arg(long)]
    pub(crate) restart: bool,
    /// Do not remove nodes of this machine that are stopped, for a debugger, say: all others wait for them
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

Also reads pipes, /dev/stdin and files of /proc, which have no length.

Prints what this prints:
  cat FILE... | tr -cs '[:alpha:]' '\\n' | LC_ALL=C sort | uniq -c")]
pub(crate) struct Wordcount {
    /// Text files, read as if they were one
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

Without any of --need, --fan-in, --fan-out, --bytes and --fabric this prints the table of 001 as it was
measured. With one of them it names the channels that fit, best first, and why the others do not.")]
pub(crate) struct Channels {
    /// Features that are needed: zero-copy-send, zero-copy-recv, blocking, variable,
    /// passive-sender, passive-receiver, one-trip
    #[arg(long, value_delimiter = ',', value_name = "NEED")]
    need: Vec<Need>,
    /// Senders of one receiver
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    fan_in: Option<u16>,
    /// Receivers of one sender
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1024))]
    fan_out: Option<u16>,
    /// Most bytes of a message
    #[arg(long, value_parser = message_bytes)]
    bytes: Option<u32>,
    /// On which fabric; shm is this machine's
    #[arg(long)]
    fabric: Option<FabricName>,
}

impl Channels {
    /// Whether anything is asked for.
    pub(crate) fn asks(&self) -> bool {
        !self.need.is_empty()
            || self.fan_in.or(self.fan_out).is_some()
            || self.bytes.is_some()
            || self.fabric.is_some()
    }

    pub(crate) fn fabric(&self) -> FabricName {
        self.fabric.unwrap_or(FabricName::Shm)
    }

    /// What the program looks for; the library's defaults where nothing was said.
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

/// A fabric by its capabilities.
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
    /// A fabric: one-sided operations and messages, within this machine or between two ends
    Fabric(BenchFabric),
    /// The data channels: latency, message rate and bandwidth
    Channels(BenchChannels),
    /// The YCSB core workloads on the shared hash table
    Ycsb(BenchYcsb),
    /// Remote memory calls beside one-sided requests
    Rmc(BenchRmc),
}

#[derive(Subcommand, Debug)]
pub(crate) enum Rmc {
    /// Compile a program in C with clang, and check it
    Build(RmcBuild),
    /// Verify programs: what is wrong with them, or what they cost at most
    Check(RmcCheck),
    /// Run a program here, on files as memory, and count its accesses
    Run(RmcRun),
    /// Show the calls of the library, or the programs of a file
    List(RmcList),
    /// Lend memory and run calls on it, until Ctrl-C
    Serve(RmcServe),
    /// Register programs at an executor, and show what it knows of them
    Register(RmcRegister),
    /// Call a program at an executor, or here on its memory
    Call(RmcCall),
    /// Print what programs notify topics of, as it comes
    Listen(RmcListen),
    /// Measure calls beside one-sided requests (the same as farside bench rmc)
    Bench(BenchRmc),
    /// Figures 3 to 7 of paper 003, from calls in virtual time: a model
    Figures(RmcFigures),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Searches a linked list in the memory of an executor that it starts as a process of its own: as one call,
and by a READ for each node, by turns; medians. Also what registering the library costs, what a short
call takes while another caller's long ones compute, and the same search on this processor beside native
Rust.

Examples:
  farside bench rmc
  farside bench rmc --fabric tcp --rounds 5000
  farside bench rmc --peers bench/compare/rmc/target/release/farside-compare-rmc")]
pub(crate) struct BenchRmc {
    /// Over this fabric alone
    #[arg(long, value_enum)]
    pub(crate) fabric: Option<FabricKind>,
    /// Round trips of each kind
    #[arg(long, default_value_t = 2000)]
    pub(crate) rounds: u32,
    /// Measure other engines in the same run, by the program that bench/compare/rmc builds
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
  farside bench fabric                              this machine alone, beside its baselines
  farside bench fabric --only fetch_add --json
  farside bench fabric --listen 0.0.0.0:7471        one end serves, over TCP
  farside bench fabric 10.0.0.1:7471 -a             the other measures latency of all tests and sizes
  farside bench fabric 10.0.0.1:7471 --test write,read --measure bandwidth -s 64K -D 5
  farside bench fabric --listen lab --once          the same between two processes over shm
  farside bench fabric lab --test all --measure all --json | jq .latency
  farside bench fabric 10.0.0.1:7471 --strict-ordering --test write --measure bandwidth

Between two ends the tables are perftest's: WRITE and SEND latency is half of a round trip with both
programs awake, READ and atomic latency a whole one whose target sleeps; t_typical is the median, a MiB
has 2^20 bytes, and BW peak is of the best stretch of four windows, from posting its first request to
the end of its last. A latency test ends after 4,194,304 rounds.")]
pub(crate) struct BenchFabric {
    #[command(flatten)]
    pub(crate) effort: Effort,
    /// The end that serves: HOST:PORT, HOST:PORT/NAME, or a name on this machine
    #[arg(value_name = "ADDR", conflicts_with_all = ["listen", "once", "only", "windows"])]
    pub(crate) to: Option<String>,
    /// Serve clients there, one after the other, until Ctrl-C; port 0 is any that is free
    #[arg(long, value_name = "ADDR", conflicts_with_all = CLIENT_ONLY)]
    pub(crate) listen: Option<String>,
    /// Serve one client only
    #[arg(long, requires = "listen")]
    pub(crate) once: bool,
    /// Register the measured memory so that its words stay whole and WRITEs to it keep their order,
    /// which takes long ones a copy more over tcp; for both ends. By default it gives up both, as
    /// perftest's (there: --disable_pcie_relaxed)
    #[arg(long)]
    pub(crate) strict_ordering: bool,
    #[command(flatten)]
    pub(crate) choice: FabricArguments,
    #[command(flatten)]
    tests: FabricTests,
    /// All sizes from 2 B to 8 MiB by powers of two
    #[arg(long, short = 'a', requires = "to", conflicts_with = "bytes")]
    pub(crate) all: bool,
    /// Sizes of a request
    #[arg(long, short = 's', visible_alias = "size", requires = "to", value_delimiter = ',', value_parser = request_bytes)]
    pub(crate) bytes: Vec<u32>,
    /// Requests of a test; by default 1000 for latency, 5000 else
    #[arg(long, short = 'n', visible_alias = "iters", requires = "to", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub(crate) iterations: Option<u64>,
    /// Or for how long each test runs
    #[arg(long, short = 'D', visible_alias = "duration", requires = "to", conflicts_with = "iterations", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Most requests under way of a stream; by default 128, or what the fabric has
    #[arg(long, short = 't', visible_alias = "tx-depth", requires = "to", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) window: Option<u32>,
    /// Requests of one doorbell, at most half a window; by default 1, for rates 32
    #[arg(long, short = 'l', visible_alias = "post-list", requires = "to", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) batch: Option<u32>,
    /// Every which request of a stream reports its end, at most half a window
    #[arg(long, short = 'Q', visible_alias = "cq-mod", requires = "to", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub(crate) signal_every: u32,
    /// Requests up to so many bytes carry them inside; by default 220 for latency, 0 else
    #[arg(long, short = 'I', requires = "to", value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) inline: Option<u32>,
}

/// Which tests between two ends.
#[derive(Args, Debug)]
struct FabricTests {
    /// Which operations
    #[arg(long, requires = "to", value_delimiter = ',', default_value = "all")]
    test: Vec<TestName>,
    /// What of them
    #[arg(long, requires = "to", value_delimiter = ',', default_value = "latency")]
    measure: Vec<MeasureName>,
}

/// Arguments that the serving end has no use for: it does what clients ask.
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
    /// Whether this is to be one of two ends.
    pub(crate) fn is_of_two_ends(&self) -> bool {
        self.to.is_some() || self.listen.is_some() || self.strict_ordering || self.choice.chooses()
    }

    /// Whether every operation is wanted that the fabric has.
    pub(crate) fn all_tests(&self) -> bool {
        self.tests.test.contains(&TestName::All)
    }

    /// The operations, each once.
    pub(crate) fn tests(&self) -> Vec<Test> {
        let wanted = |test: &Test| {
            self.all_tests() || self.tests.test.iter().any(|name| name.test() == Some(*test))
        };
        Test::ALL.into_iter().filter(wanted).collect()
    }

    /// What is measured of them, each once.
    pub(crate) fn measures(&self) -> Vec<MeasureName> {
        let asked = &self.tests.measure;
        let all = asked.contains(&MeasureName::All);
        let every = [MeasureName::Latency, MeasureName::Bandwidth, MeasureName::Rate];
        every.into_iter().filter(|measure| all || asked.contains(measure)).collect()
    }
}

/// Over which fabric, and how it is protected.
#[derive(Args, Debug, Default)]
pub(crate) struct FabricArguments {
    /// Over which fabric; by default tcp where an address has a port, else shm
    #[arg(long)]
    pub(crate) fabric: Option<FabricKind>,
    /// The file with the cluster's key (see farside key new)
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// What travels under TLS 1.3; by default everything with a key (over verbs handshakes, for
    /// adapters send data in plain text), nothing without
    #[arg(long)]
    pub(crate) protect: Option<Protection>,
    #[command(flatten)]
    pub(crate) rdma: Rdma,
    /// Over tcp, which congestion control of the kernel [default: unpaced]
    #[arg(long, value_name = "CONTROL")]
    pub(crate) congestion: Option<CongestionName>,
}

impl FabricArguments {
    /// Whether anything is chosen.
    fn chooses(&self) -> bool {
        self.fabric.is_some()
            || self.key.is_some()
            || self.protect.is_some()
            || self.rdma.asks()
            || self.congestion.is_some()
    }
}

/// A fabric to go over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FabricKind {
    /// Processes of this machine
    Shm,
    /// TCP, between machines
    Tcp,
    /// InfiniBand or RoCE, between machines
    Verbs,
}

/// What is protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Protection {
    /// Everybody is let in, and all is plain text
    Nothing,
    /// Who is who and the keys of memory; data is plain text
    Handshake,
    /// Everything
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
    /// Each that the fabric has
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

/// What is measured of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum MeasureName {
    /// One after the other; usually 2 B
    Latency,
    /// Many under way; usually 64 KiB
    Bandwidth,
    /// Many under way, lists of them posted together; usually 8 B
    Rate,
    /// All three
    All,
}

/// What to do with keys.
#[derive(Subcommand, Debug)]
pub(crate) enum Key {
    /// Write a new key into a file that only its owner may read; never overwrites
    New(KeyNew),
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside key new cluster.key
  farside bench fabric --listen 0.0.0.0:7471 --key cluster.key")]
pub(crate) struct KeyNew {
    /// The file
    pub(crate) file: PathBuf,
}

/// What to measure and for how long.
#[derive(Args, Debug)]
pub(crate) struct Effort {
    /// Measure only figures whose name contains this
    #[arg(long)]
    pub(crate) only: Option<String>,
    /// Windows of about half a millisecond for each figure
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

The history has one JSON object a line: process, operation, key, value, invoke and return time in ns
of one clock, outcome. It is joined though the run fails; what a killed node had in flight has no
return time, and is `unknown` where it may have changed something. `cargo run -p farside-sim --example check_history FILE` checks it.")]
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
    /// Where to write every operation as a line of JSON
    #[arg(long, conflicts_with = "on")]
    pub(crate) history: Option<PathBuf>,
    /// Read by one remote memory call each, where the bucket lives; counts what could not
    #[arg(long)]
    pub(crate) by_call: bool,
    /// Where the random choices start
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
  farside doctor --peer node7                   the way to another machine too
  farside doctor --only gid_table,rdma_bus      some checks or groups, at length
  farside doctor --json | jq '.checks[] | select(.verdict == \"failing\")'

Looks and changes nothing. Verdicts: ok, note (nothing has to be done), warning (works, but slower or in
fewer places), failing, skipped (with the reason). Exit code 1 when a check fails. Firewalls cannot be
seen from here.")]
pub(crate) struct Doctor {
    /// How many node processes are planned on this machine
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) nodes: u16,
    /// Global memory of each
    #[arg(long, visible_alias = "memory", default_value = "256M", value_parser = bytes)]
    pub(crate) memory_bytes: u64,
    /// A machine that nodes of this one will reach: looks at the way there
    #[arg(long, value_name = "HOST")]
    pub(crate) peer: Option<String>,
    /// Only these checks or groups of checks, at length
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Name the checks and why each matters, without looking
    #[arg(long)]
    pub(crate) list: bool,
}

/// Reads a number of bytes: digits, then perhaps K, M, G or T (powers of 1,024).
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
        digits.parse().map_err(|_| "a number, perhaps with K, M, G or T".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

/// Reads the bytes of a message.
fn message_bytes(text: &str) -> Result<u32, String> {
    const BYTES_MAX: u32 = (1 << 24) - 1;
    let number = bytes(text)?;
    match u32::try_from(number) {
        Ok(bytes @ 1..=BYTES_MAX) => Ok(bytes),
        _ => Err(format!("a message has 1 to {BYTES_MAX} bytes")),
    }
}

/// Reads the bytes of a request.
fn request_bytes(text: &str) -> Result<u32, String> {
    match u32::try_from(bytes(text)?) {
        Ok(bytes @ 1..=TRANSFER_BYTES_MAX) => Ok(bytes),
        _ => Err(format!("a request has 1 to {TRANSFER_BYTES_MAX} bytes")),
    }
}

/// Reads a time in seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "a number of seconds".to_owned())?;
    if (0.01..=3600.0).contains(&number) { Ok(number) } else { Err("0.01 to 3600".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
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
    fn sizes_have_units() {
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
    fn a_bare_question_is_for_the_table() {
        let asks = |line: &[&str]| {
            let line = [&["farside", "channels"], line].concat();
            match Arguments::try_parse_from(line).unwrap().command {
                Command::Channels(arguments) => arguments.asks(),
                _ => unreachable!("the line says channels"),
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
