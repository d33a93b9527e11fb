//! Arguments of the benchmarks of the shuffle and the join.

use super::values::named;
use clap::Args;
use farside_apps::join::JoinKind;
use farside_bench::settings::{BenchJoin, BenchShuffle};
use farside_command::units::bytes;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench shuffle
  farside bench shuffle --senders 4 --receivers 16 --rows 16000000
  farside bench shuffle --one-key --batch-rows 4,16,64 --json | jq '.[] | {way, batch_rows, gb_per_s}'

Threads push rows by the hash of their keys to the inboxes of other threads, over shared memory. Rows are copied into
batches (stage), gathered from the input (gather) or sent one by one (single): paper 000, figure 15. The sum of the rows
received is checked.")]
pub(crate) struct BenchShuffleArguments {
    /// Rows of all senders
    #[arg(long, default_value_t = 2_000_000)]
    rows: u64,
    /// Bytes of a row
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(8..=65_536))]
    row_bytes: u32,
    /// Sending threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    senders: u16,
    /// Receiving threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    receivers: u16,
    /// Most rows of a batch, besides full batches
    #[arg(long, value_delimiter = ',', default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    batch_rows: Vec<u32>,
    #[command(flatten)]
    batches: BatchArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench join
  farside bench join --rows 16000000 --executors 1,2 --runs 3
  farside bench join --kind anti --one-key --json | jq '.[] | {way, executors, median_ns}'

Each executor is a thread that pushes its part of both inputs to all executors, over shared memory, and joins what it
receives. Each left row has one right row. The baselines are one thread with the standard library's hash map, and with
the executors' own tables: paper 000, figure 16. The numbers of rows returned are compared.")]
pub(crate) struct BenchJoinArguments {
    /// Rows of each input
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(..=1 << 32))]
    rows: u64,
    /// Numbers of executors
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=64))]
    executors: Vec<u16>,
    /// Which rows the join returns
    #[arg(long, default_value = "inner", value_parser = named::<JoinKind>())]
    kind: JoinKind,
    /// Most rows of a batch, besides full batches
    #[arg(long, value_delimiter = ',', default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    batch_rows: Vec<u32>,
    #[command(flatten)]
    batches: BatchArguments,
}

#[derive(Args, Debug)]
struct BatchArguments {
    /// Most bytes of a batch
    #[arg(long, default_value = "32K", value_parser = bytes)]
    batch_bytes: u64,
    /// All rows have one key
    #[arg(long)]
    one_key: bool,
    /// Runs of each figure
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,
    /// Draw the figures to this file, as SVG
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
}

impl From<BenchShuffleArguments> for BenchShuffle {
    fn from(arguments: BenchShuffleArguments) -> Self {
        let BenchShuffleArguments { rows, row_bytes, senders, receivers, batch_rows, batches } =
            arguments;
        let BatchArguments { batch_bytes, one_key, runs, plot } = batches;
        // A larger one than batches can be is refused by the shuffle.
        let batch_bytes = u32::try_from(batch_bytes).unwrap_or(u32::MAX);
        Self { rows, row_bytes, senders, receivers, batch_rows, batch_bytes, one_key, runs, plot }
    }
}

impl From<BenchJoinArguments> for BenchJoin {
    fn from(arguments: BenchJoinArguments) -> Self {
        let BenchJoinArguments { rows, executors, kind, batch_rows, batches } = arguments;
        let BatchArguments { batch_bytes, one_key, runs, plot } = batches;
        let batch_bytes = u32::try_from(batch_bytes).unwrap_or(u32::MAX);
        Self { rows, executors, kind, batch_rows, batch_bytes, one_key, runs, plot }
    }
}
