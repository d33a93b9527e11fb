//! Arguments of the benchmarks of memory that is lent.

use super::fabric::FabricArguments;
use clap::Args;
use farside_bench::settings::BenchLent;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside bench vector                                on memory of this process, over shm
  farside lend --bytes 1M --listen 10.0.0.1:7471      on one host, and on another:
  farside bench vector 10.0.0.1:7471/pool --json | jq '.[] | select(.pieces == 16)'

A transfer moves pieces that are 16 KiB apart in a buffer to or from adjacent remote memory, and is waited for. The ways
are a work request for each piece (doorbell), lists of pieces (gather) and copies through staging memory (stage): paper
000, figure 3. The column `expected` is what the client assumes of its own time when it chooses.")]
pub(crate) struct BenchVectorArguments {
    #[command(flatten)]
    pub(crate) lent: LentArguments,
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
  farside bench hashtable 10.0.0.1:7471/pool --json | jq '.[] | [.operation, .doorbells]'

Requests and doorbells are those of one key. The baseline is a map in this process whose parts have a lock each.")]
pub(crate) struct BenchHashtableArguments {
    #[command(flatten)]
    pub(crate) lent: LentArguments,
}

#[derive(Args, Debug)]
pub(crate) struct LentArguments {
    /// Address of a memory server, as farside lend prints it [default: one of this process]
    #[arg(value_name = "ADDRESS")]
    to: Option<String>,
    /// Windows of about half a millisecond per figure
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    windows: u32,
    #[command(flatten)]
    choice: FabricArguments,
}

impl From<LentArguments> for BenchLent {
    fn from(LentArguments { to, windows, choice }: LentArguments) -> Self {
        Self { to, windows, choice: choice.into() }
    }
}
