//! The command line.

use clap::{Args, Parser, Subcommand};
use farside_apps::ycsb::CoreWorkload;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  farside demo                        three nodes, YCSB, a killed node, in about a minute
  farside up --nodes 3 --name lab     a local cluster that programs join by name
  farside wordcount *.txt             counts words with atomic updates in a shared table
  farside bench memory                what each operation costs, beside its baseline
  farside doctor                      what this machine lacks, and the line that fixes it

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
    /// Count the words of files in a shared table
    Wordcount(Wordcount),
    /// Measure, each figure beside its baseline of the same run
    Bench {
        #[command(subcommand)]
        which: Bench,
    },
    /// Show fabrics, what would be chosen and why, and running clusters
    #[command(after_help = "\
Examples:
  farside info
  farside info --json | jq .clusters")]
    Info,
    /// Check limits and settings of this machine
    Doctor(Doctor),
    /// Host one node for a parent process
    #[command(hide = true)]
    Worker,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside demo
  farside demo --records 20000 --operations 20000    smaller and faster
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
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside up --nodes 3 --name lab
  farside up --name big --memory-bytes 4G --cache-bytes 512M

A program joins with Node::join(&Config::new(\"lab\")).")]
pub(crate) struct Up {
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) nodes: u16,
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
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside wordcount book.txt
  farside wordcount --nodes 4 *.txt | sort -rn | head

Prints what this prints:
  cat FILE... | tr -cs '[:alpha:]' '\\n' | LC_ALL=C sort | uniq -c")]
pub(crate) struct Wordcount {
    /// Text files, read as if they were one
    #[arg(required = true)]
    pub(crate) files: Vec<PathBuf>,
    /// Node processes
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) nodes: u16,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Bench {
    /// The coherent global memory: hits, misses, locks, atomics, the hash table
    Memory(BenchMemory),
    /// The shared-memory fabric: one-sided operations, messages, wake-ups
    Fabric(BenchFabric),
    /// The YCSB core workloads on the shared hash table
    Ycsb(BenchYcsb),
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
  farside bench fabric
  farside bench fabric --only fetch_add --json")]
pub(crate) struct BenchFabric {
    #[command(flatten)]
    pub(crate) effort: Effort,
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

The history has one JSON object a line: process, operation, key, value, invoke and return time in ns
of one clock, outcome. `cargo run -p farside-sim --example check_history FILE` checks it.")]
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
    #[arg(long)]
    pub(crate) history: Option<PathBuf>,
    /// Where the random choices start
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside doctor
  farside doctor --nodes 8 --memory-bytes 2G")]
pub(crate) struct Doctor {
    /// How many node processes are planned on this machine
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=128))]
    pub(crate) nodes: u16,
    /// Global memory of each
    #[arg(long, default_value = "256M", value_parser = bytes)]
    pub(crate) memory_bytes: u64,
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
        for junk in ["", "M", "1.5G", "-1", "99999999999T"] {
            assert!(bytes(junk).is_err(), "{junk}");
        }
    }
}
