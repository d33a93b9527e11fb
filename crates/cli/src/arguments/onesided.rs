//! Arguments of benchmarks of memory that is lent.

use super::fabric::FabricArguments;
use super::values::{named, selected};
use clap::Args;
use farside_bench::settings::{
    BenchAccess, BenchAtomics, BenchDurable, BenchHashtable, BenchLent, BenchNuma, NumaPath,
};
use farside_command::units::bytes;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench vector                                on memory of this process, over shm
  farside lend --bytes 1M --listen 10.0.0.1:7471      on one host, and on another:
  farside bench vector 10.0.0.1:7471/pool --json | jq '.[] | select(.pieces == 16)'
  farside bench vector --list 112000                  one list of 112,000 ranges: its launch

A transfer moves pieces that are 16 KiB apart in a buffer to or from adjacent remote memory, and is waited for. The ways
are a work request for each piece (doorbell), lists of pieces (gather) and copies through staging memory (stage): paper
000, figure 3. The column `expected` is what the client assumes of its own time when it chooses.")]
pub(crate) struct BenchVectorArguments {
    #[command(flatten)]
    pub(crate) lent: LentArguments,
    /// Measure one list of this number of ranges of 128 B instead: by strides, by a table of blocks, and by explicit ranges
    #[arg(long, value_name = "RANGES", conflicts_with = "plot", value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub(crate) list: Option<u32>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench log                                   on memory of this process, over shm
  farside bench log 10.0.0.1:7471/pool --json | jq '.[] | select(.batch == 32)'

Appends records by each mode, one at a time and in batches, whose records are copied together (stage, SP in paper 000)
or collected by the fabric from where they are (gather, SGL: figure 19); then reads them. The baseline is a ring of
records between two threads without a fabric.")]
pub(crate) struct BenchLogArguments {
    #[command(flatten)]
    pub(crate) lent: LentArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench hashtable                             on memory of this process, over shm
  farside bench hashtable --hot 8 --theta 32          puts of hot keys held, and written 32 together
  farside bench hashtable 10.0.0.1:7471/pool --json | jq '.[] | [.operation, .doorbells]'

Requests and doorbells are those of one key. The baseline is a map in this process whose parts have a lock each. Skewed
puts (zipf, with constant 0.99) are measured without held puts, and with a hot area for each share of the keys: paper 000,
figure 13.")]
pub(crate) struct BenchHashtableArguments {
    #[command(flatten)]
    lent: LentArguments,
    /// Sizes of the hot area, for a figure each: 4 for a quarter of the keys
    #[arg(long, value_delimiter = ',', default_value = "4,8,16,32", value_parser = clap::value_parser!(u32).range(1..=512))]
    hot: Vec<u32>,
    /// Puts of a block of hot keys until it is flushed
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    theta: u32,
}

#[derive(Args, Debug)]
pub(crate) struct LentArguments {
    /// Address of a memory server, as farside lend prints it [default: one of this process]
    #[arg(value_name = "ADDRESS")]
    to: Option<String>,
    #[command(flatten)]
    effort: EffortArguments,
}

#[derive(Args, Debug)]
struct EffortArguments {
    /// Windows of about half a millisecond per figure
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    windows: u32,
    /// Post every request, also those that could be carried out within their calls (shm)
    #[arg(long)]
    posted: bool,
    /// Draw the figures to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    choice: FabricArguments,
}

impl From<LentArguments> for BenchLent {
    fn from(LentArguments { to, effort }: LentArguments) -> Self {
        let EffortArguments { windows, posted, plot, choice } = effort;
        Self { to, windows, posted, choice: choice.into(), plot }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench consolidate                           on memory of this process, over shm
  farside lend --bytes 1M --listen 10.0.0.1:7471      on one host, and on another:
  farside bench consolidate 10.0.0.1:7471/pool --json | jq '.[] | select(.theta == 16)'

Writes of 32 B, each posted by itself (direct, also with 8 to a doorbell) or collected in blocks of 1 KiB that are flushed
after theta writes: paper 000, figure 8. Up to 16 requests are in flight in each case. The column `gain` compares with
the faster of the direct ways.

Patterns: sequential; random over the 64 blocks that are held; zipf, with constant 0.99 over 1,024 blocks, of
which the 48 that are written most are hinted as hot.")]
pub(crate) struct BenchConsolidateArguments {
    #[command(flatten)]
    pub(crate) lent: LentArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench atomics                               on memory of this process, over shm
  farside bench atomics --clients 1,2,4,8,14 --windows 10
  farside lend --bytes 1M --listen 10.0.0.1:7471      on one host, and on another:
  farside bench atomics 10.0.0.1:7471/pool --json | jq '.[] | select(.form == \"rpc\")'

Threads, each with a client of its own, take numbers from one sequencer, or take and free one lock, without a pause (paper
000, figure 10). The forms are remote atomics without and with back-off, the same object served by a thread of this process
over Send/Recv channels (rpc, without ADDRESS only), and atomics of process memory (local). A window takes 20 ms here.
Columns: million operations a second, the ratio to rpc with as many clients, and to the first number of clients.")]
pub(crate) struct BenchAtomicsArguments {
    #[command(flatten)]
    lent: LentArguments,
    /// Numbers of clients that contend
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: Vec<u16>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench access                                on memory of this process, over shm
  farside bench access --region 2M                    of which most fits caches
  farside lend --bytes 256M --listen 10.0.0.1:7471    on one host, and on another:
  farside bench access 10.0.0.1:7471/pool --json | jq '.[] | select(.bytes == 32)'

READs and WRITEs with 16 in flight and 8 to a doorbell, whose sources and destinations are each sequential or random in
a region: paper 000, figure 6. The column `gain` compares with random sources and destinations. Over shm this processor
copies the bytes, and what is compared are its caches; over verbs it is the adapter's cache of translations as well.")]
pub(crate) struct BenchAccessArguments {
    /// Bytes of the remote memory, and of the local memory
    #[arg(long, default_value = "256M", value_parser = region)]
    region: u64,
    #[command(flatten)]
    lent: LentArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench numa                                  each socket of this machine, over shm
  farside bench numa --topology '0-7;8-15'            these processors as two sockets
  farside bench numa --path direct --unbound          without proxies, threads and memory anywhere
  farside lend --bytes 1M --name near0 --socket 0 --listen 10.0.0.1:7471      on one host, one for each socket, and on another:
  farside bench numa 10.0.0.1:7471/near0 10.0.0.1:7472/near1 --json | jq '.[] | select(.path == \"proxy\")'

A thread of each socket reads, writes (64 B) and adds to memory of each socket, in batches of one doorbell that it waits for:
by a client of its own (direct), and through the proxy of the socket that serves the memory (paper 000, section III-D).
Memory that the system does not put on its socket is an error. Where all sockets are of one NUMA node the figures are the cost
of a proxy, and the output says so.")]
pub(crate) struct BenchNumaArguments {
    /// Addresses of memory servers, one for each socket [default: one of this process for each]
    #[arg(value_name = "ADDRESS")]
    to: Vec<String>,
    /// Processors of each socket, such as 0-7;8-15 [default: NUMA nodes of the system]
    #[arg(long, value_name = "SOCKETS")]
    topology: Option<String>,
    /// Paths to the memory [default: both]
    #[arg(long, value_delimiter = ',', value_parser = named::<NumaPath>())]
    path: Vec<NumaPath>,
    /// Requests of a doorbell, for a figure each
    #[arg(long, value_delimiter = ',', default_value = "1,16", value_parser = clap::value_parser!(u32).range(1..=32))]
    batch: Vec<u32>,
    /// Bind no thread and place no memory
    #[arg(long)]
    unbound: bool,
    #[command(flatten)]
    effort: EffortArguments,
}

impl From<BenchNumaArguments> for BenchNuma {
    fn from(arguments: BenchNumaArguments) -> Self {
        let BenchNumaArguments { to, topology, path, batch, unbound, effort } = arguments;
        let EffortArguments { windows, posted, plot, choice } = effort;
        let (paths, choice) = (selected(&path), choice.into());
        Self { to, topology, paths, batch, unbound, posted, windows, plot, choice }
    }
}

/// Parses the bytes of a region: room for some of the largest transfers.
fn region(text: &str) -> Result<u64, String> {
    const BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 40;
    let region = bytes(text)?;
    if BYTES.contains(&region) { Ok(region) } else { Err("a region has 64K to 1T".to_owned()) }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench durable --folder /var/lib/farside     on the disk of that folder
  farside bench durable --json | jq '.[] | select(.threads > 1)'

Appends records of 64 B to a durable log, one or several to a commit, by turns with pwrite and fdatasync of the same
bytes (raw) and with a log of two copies in memory of this process, over shm; then by several threads that each commit
every record, and share writes and syncs (group commit).")]
pub(crate) struct BenchDurableArguments {
    /// Folder for the log [default: that of temporary files]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Commits per figure
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    windows: u32,
    /// Draw the figures to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

convert! {
    BenchDurableArguments => BenchDurable { folder, windows, plot }
    BenchHashtableArguments => BenchHashtable { lent, hot, theta }
    BenchAccessArguments => BenchAccess { lent, region }
    BenchAtomicsArguments => BenchAtomics { lent, clients }
}
