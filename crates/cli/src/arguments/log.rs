//! Arguments of `farside log`.

use super::fabric::FabricArguments;
use super::values::named;
use crate::settings::{LogAppend, LogMode, LogPlace, LogTail};
use clap::{Args, Subcommand};
use farside_command::units::{bytes, seconds};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand, Debug)]
pub(crate) enum Log {
    /// Append the lines of standard input as records
    Append(LogAppendArguments),
    /// Print the records, oldest first
    Tail(LogTailArguments),
    /// Append the lines of standard input to a durable log in a folder
    Keep(LogKeepArguments),
    /// Print the records of a durable log, oldest first
    Print(LogPrintArguments),
    /// Check a durable log: segments, records, damage; changes nothing
    Check(LogCheckArguments),
}

/// Where a durable log is: in a folder, or in memory that is lent.
#[derive(Args, Debug)]
pub(crate) struct LogPlaceArguments {
    /// Folder of the log
    #[arg(value_name = "FOLDER", required_unless_present = "copies")]
    folder: Option<PathBuf>,
    /// Addresses of memory that is lent exclusively, and files (file:PATH), with a copy of the log each, instead of a folder
    #[arg(long, value_name = "ADDRESS,...", value_delimiter = ',', conflicts_with = "folder")]
    copies: Vec<String>,
    /// Least number of copies to go on with, if others are lost [default: all that the log had]
    #[arg(long, value_name = "COUNT", requires = "copies")]
    copies_min: Option<u8>,
    #[command(flatten)]
    choice: FabricArguments,
}

impl From<LogPlaceArguments> for LogPlace {
    fn from(arguments: LogPlaceArguments) -> Self {
        let LogPlaceArguments { folder, copies, copies_min, choice } = arguments;
        match folder {
            Some(folder) => Self::Folder(folder),
            None => Self::Copies {
                addresses: copies,
                least: copies_min.map(usize::from),
                choice: choice.into(),
            },
        }
    }
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  journalctl -f -o cat | farside log keep /var/lib/events
  seq 1000000 | farside log keep /var/lib/events --batch 64
  farside lend --exclusive --bytes 1G --name a &      also b and c, here or on other machines
  seq 1000 | farside log keep --copies a,b,c
  seq 1000 | farside log keep --copies file:/var/lib/copy,a,b

Each batch is durable before the next line is read: it survives kill -9, and a loss of power if the folder or the file of a
copy is on a disk (farside info --folder says what a folder promises). Copies survive all processes but one. Makes the log if
there is none.")]
pub(crate) struct LogKeepArguments {
    #[command(flatten)]
    pub(crate) place: LogPlaceArguments,
    /// Lines of a batch, which becomes durable by one write and one sync
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) batch: u32,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside log print /var/lib/events
  farside log print /var/lib/events --json | jq .text
  farside log print --copies a,b,c --copies-min 2     also if one of three is lost

Each record is a line. With --json each is an object with its position. What no append had committed is cut off first.")]
pub(crate) struct LogPrintArguments {
    #[command(flatten)]
    pub(crate) place: LogPlaceArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside log check /var/lib/events
  farside log check /var/lib/events --json | jq .damaged_below

Fails if the log is damaged where it was durable, or if a process uses it.")]
pub(crate) struct LogCheckArguments {
    /// Folder of the log
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside lend --bytes 64M --name events &
  journalctl -f -o cat | farside log append events
  seq 1000000 | farside log append events --batch 32
  farside log append 10.0.0.1:7471/events --key cluster.key --mode lazy < lines

Creates a log in all of the memory if it is unused. Any number of programs append and read at the same time. With a
full log it fails: trim it by farside log tail --trim.")]
pub(crate) struct LogAppendArguments {
    /// Address of the memory server, as farside lend prints it
    #[arg(value_name = "ADDRESS")]
    to: String,
    /// How a record gets its place
    #[arg(long, value_parser = named::<LogMode>(), default_value = "positioned")]
    mode: LogMode,
    /// Bytes that a planned writer reserves at a time, a multiple of 64
    #[arg(long, value_parser = bytes, default_value = "64K")]
    quota_bytes: u64,
    /// Lines of a batch, which is appended as a whole
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Lanes for lazy writers, of a log that is created
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(0..=64))]
    lanes: u32,
    /// Time after which a writer that makes no progress counts as dead, of a log that is created
    #[arg(long, default_value = "1", value_parser = seconds, value_name = "SECONDS")]
    lease: f64,
    #[command(flatten)]
    choice: FabricArguments,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside log tail events
  farside log tail events --follow
  farside log tail events --follow --trim               a consumer: what it has printed is freed
  farside log tail 10.0.0.1:7471/events --key cluster.key --json | jq .text

Each record is a line. With --json each is an object with its position.")]
pub(crate) struct LogTailArguments {
    /// Address of the memory server, as farside lend prints it
    #[arg(value_name = "ADDRESS")]
    to: String,
    /// Wait for more records at the end, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Free the records that were printed
    #[arg(long)]
    trim: bool,
    /// End after this many records
    #[arg(long, value_name = "COUNT")]
    records: Option<u64>,
    #[command(flatten)]
    choice: FabricArguments,
}

impl From<LogAppendArguments> for LogAppend {
    fn from(arguments: LogAppendArguments) -> Self {
        let LogAppendArguments { to, mode, quota_bytes, batch, lanes, lease, choice } = arguments;
        let (batch, choice) = (batch as usize, choice.into());
        let lease = Duration::from_secs_f64(lease);
        Self { to, mode, quota_bytes, batch, lanes, lease, choice }
    }
}

impl From<LogTailArguments> for LogTail {
    fn from(arguments: LogTailArguments) -> Self {
        let LogTailArguments { to, follow, trim, records, choice } = arguments;
        Self { to, follow, trim, records, choice: choice.into() }
    }
}
