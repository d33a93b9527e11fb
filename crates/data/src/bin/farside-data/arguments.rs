//! The command line.

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use farside_apps::join::JoinKind;
use farside_command::units::bytes;
use farside_data::FileFormat;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  farside-data shuffle orders.csv --by customer --into 8 --out parts
  farside-data join orders.parquet customers.csv --on customer=id --out joined.parquet

Files are CSV or Parquet by their extension. The output appears when it is complete.

Exit codes: 0 done, 1 an operation failed, 2 wrong usage, 130 interrupted.";

/// Shuffle and join of CSV and Parquet files, over memory that is lent.
#[derive(Parser, Debug)]
#[command(name = "farside-data", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct Arguments {
    /// Print one JSON object instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Show no progress
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: DataCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DataCommand {
    /// Divide the rows of files by the hash of columns
    Shuffle(ShuffleArguments),
    /// Join the rows of two files by columns
    Join(JoinArguments),
}

/// What both commands have.
#[derive(Args, Debug)]
pub(crate) struct ExecutorArguments {
    /// Threads that read, send and join; as many as processors by default, at most 16
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "COUNT")]
    executors: Option<u16>,
    /// Most bytes of a batch, and so of a row
    #[arg(long, value_parser = batch_bytes, default_value = "64K")]
    pub(crate) batch_bytes: u32,
}

impl ExecutorArguments {
    /// Returns the number of executors.
    pub(crate) fn executors(&self) -> u16 {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        self.executors.unwrap_or_else(|| u16::try_from(processors().min(16)).unwrap_or(1))
    }
}

fn batch_bytes(text: &str) -> Result<u32, String> {
    let possible = 1 << 10..=1 << 28;
    let found = bytes(text)?;
    let found = u32::try_from(found).ok().filter(|found| possible.contains(found));
    found.ok_or_else(|| "from 1K to 256M".to_owned())
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside-data shuffle orders.csv --by customer --into 8 --out parts
  farside-data shuffle 2025.parquet 2026.parquet --by year,month --into 4 --out parts --format csv
  farside-data shuffle lines.csv --by key --into 2 --out parts --json | jq .partitions

Writes the files part-000 to part-(N-1) in a new folder. Rows of equal values of the columns are in one file; rows of one
part of the input (a CSV file, or a row group of a Parquet file) keep their order.")]
pub(crate) struct ShuffleArguments {
    /// CSV or Parquet files of the same columns
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Columns by whose hash rows are divided
    #[arg(long, required = true, value_delimiter = ',', value_name = "COLUMN")]
    pub(crate) by: Vec<String>,
    /// Number of files
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=256), value_name = "COUNT")]
    pub(crate) into: u16,
    /// Folder of the files; it does not exist, or is empty
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,
    /// Form of the files; that of the first input by default
    #[arg(long, value_parser = PossibleValuesParser::new(FileFormat::ALL.map(FileFormat::name)))]
    format: Option<String>,
    #[command(flatten)]
    pub(crate) executors: ExecutorArguments,
}

impl ShuffleArguments {
    /// Returns the form of the output, if it was chosen.
    pub(crate) fn format(&self) -> Option<FileFormat> {
        let chosen = self.format.as_deref()?;
        FileFormat::ALL.into_iter().find(|format| format.name() == chosen)
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside-data join orders.parquet customers.parquet --on customer=id --out joined.parquet
  farside-data join a.csv b.csv --on year,month --kind left --out joined.csv
  farside-data join orders.csv blocked.csv --on customer --kind anti --out allowed.csv

The output has the columns of LEFT and, for inner and left joins, those of RIGHT that are not keys. Null equals nothing.
Tables are built of RIGHT: let it be the smaller one. The order of the output is not specified.")]
pub(crate) struct JoinArguments {
    /// CSV or Parquet file
    pub(crate) left: PathBuf,
    /// CSV or Parquet file
    pub(crate) right: PathBuf,
    /// Columns whose values are equal; two names if they differ
    #[arg(long, required = true, value_delimiter = ',', value_name = "COLUMN[=COLUMN]")]
    on: Vec<String>,
    /// Rows of the output: pairs; these and left rows without one; left rows with one; left rows without one
    #[arg(long, value_parser = PossibleValuesParser::new(KINDS.map(|(name, _)| name)), default_value = "inner")]
    kind: String,
    /// CSV or Parquet file
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) executors: ExecutorArguments,
}

const KINDS: [(&str, JoinKind); 4] = [
    ("inner", JoinKind::Inner),
    ("left", JoinKind::LeftOuter),
    ("semi", JoinKind::Semi),
    ("anti", JoinKind::Anti),
];

impl JoinArguments {
    /// Returns the rows of the output.
    pub(crate) fn kind(&self) -> JoinKind {
        let chosen = KINDS.into_iter().find(|(name, _)| *name == self.kind);
        chosen.map_or(JoinKind::Inner, |(_, kind)| kind)
    }

    /// Returns the pairs of columns.
    pub(crate) fn on(&self) -> Vec<(&str, &str)> {
        self.on.iter().map(|pair| pair.split_once('=').unwrap_or((pair, pair))).collect()
    }
}
