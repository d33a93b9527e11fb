//! `farside log`: appends lines to a log in memory that is lent, and prints its records.

use crate::settings::{LogAppend, LogMode, LogTail};
use farside::onesided::{MemoryClient, MemoryClientOptions, RemoteMemory};
use farside_apps::log::{AppendMode, Log, LogError, LogOptions, LogWriter};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes, count};
use farside_command::settings::FabricSettings;
use farside_command::signals;
use serde::Serialize;
use std::io::BufRead;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(20);
/// How often a command that waits looks for a signal.
const LOOK: Duration = Duration::from_millis(100);
/// Records after which a consumer frees what it has printed.
const TRIM_RECORDS: u64 = 1024;

/// The name that an address without one has.
const NAME: &str = "pool";

/// What was appended.
#[derive(Debug, Default, Serialize)]
struct Appended {
    records: u64,
    bytes: u64,
    /// Positions of the first and the last one, unless readers decide about them.
    first_position: Option<u64>,
    last_position: Option<u64>,
}

/// A record, as `--json` prints it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Text(&'a str),
    /// Of a record that is no text.
    Bytes(&'a [u8]),
}

#[derive(Debug, Serialize)]
struct Printed<'a> {
    position: u64,
    #[serde(flatten)]
    content: Content<'a>,
}

fn open(choice: &FabricSettings, to: &str) -> Result<(MemoryClient, RemoteMemory), Failure> {
    let Chosen { fabric, address, .. } = choice::caller(choice, to, NAME)?;
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
    let memory = client.open(&address, TIMEOUT)?;
    Ok((client, memory))
}

/// Opens the log of a memory; creates it if the memory is unused.
fn open_or_create(
    client: &mut MemoryClient,
    memory: RemoteMemory,
    (lanes, lease): (u32, Duration),
) -> Result<Log, Failure> {
    match Log::open(client, memory.at(0), TIMEOUT) {
        Err(LogError::NotALog) => {}
        opened => return Ok(opened?),
    }
    let options = LogOptions { lanes, lease, ..LogOptions::default() };
    let options = options.filling(memory.bytes()).ok_or_else(|| {
        let lent = bytes(memory.bytes());
        Failure::usage(format!("{lent} are too few for a log of {lanes} lanes"))
    })?;
    match Log::create(client, memory.at(0), options, TIMEOUT) {
        // By another program, meanwhile.
        Err(LogError::Exists) => Ok(Log::open(client, memory.at(0), TIMEOUT)?),
        created => Ok(created?),
    }
}

/// Appends the lines of standard input.
pub(crate) fn append(arguments: &LogAppend, output: Output) -> Result<(), Failure> {
    let (mut client, memory) = open(&arguments.choice, &arguments.to)?;
    let log = open_or_create(&mut client, memory, (arguments.lanes, arguments.lease))?;
    let mode = match arguments.mode {
        LogMode::Positioned => AppendMode::Positioned,
        LogMode::Planned => AppendMode::Planned { quota_bytes: arguments.quota_bytes },
        LogMode::Lazy => AppendMode::Lazy,
    };
    let mut writer = log.writer(&mut client, mode, TIMEOUT)?;
    let mut appended = Appended::default();
    let done = append_lines(&mut client, &mut writer, arguments.batch, &mut appended);
    let done = done.and(writer.finish(&mut client, TIMEOUT).map_err(Failure::from));
    let Appended { records, bytes: length, .. } = appended;
    output.line(format!("appended {} records, {}", count(records), bytes(length)));
    output.ended(serde_json::json!(appended), done)
}

fn append_lines(
    client: &mut MemoryClient,
    writer: &mut LogWriter,
    batch_max: usize,
    appended: &mut Appended,
) -> Result<(), Failure> {
    let mut input = std::io::stdin().lock();
    let mut batch: Vec<Vec<u8>> = Vec::new();
    loop {
        let mut line = Vec::new();
        let read = input.read_until(b'\n', &mut line);
        let is_end =
            read.map_err(|error| Failure::system(format!("standard input: {error}")))? == 0;
        if !is_end {
            line.pop_if(|last| *last == b'\n');
            batch.push(line);
        }
        if batch.len() == batch_max || is_end && !batch.is_empty() {
            let records: Vec<&[u8]> = batch.iter().map(Vec::as_slice).collect();
            let position = match records[..] {
                [record] => writer.append(client, record, TIMEOUT)?,
                _ => writer.append_batch(client, &records, TIMEOUT)?,
            };
            appended.records += records.len() as u64;
            appended.bytes += records.iter().map(|record| record.len() as u64).sum::<u64>();
            appended.first_position = appended.first_position.or(position);
            appended.last_position = position;
            batch.clear();
        }
        if is_end {
            return Ok(());
        }
    }
}

/// Prints the records.
pub(crate) fn tail(arguments: &LogTail, output: Output) -> Result<(), Failure> {
    if arguments.follow {
        signals::watch(|| true)?;
    }
    let (mut client, memory) = open(&arguments.choice, &arguments.to)?;
    let log = Log::open(&mut client, memory.at(0), TIMEOUT)?;
    let mut reader = log.reader(&mut client, TIMEOUT)?;
    let waits = if arguments.follow { LOOK } else { Duration::ZERO };
    let mut left = arguments.records.unwrap_or(u64::MAX);
    let mut untrimmed = 0;
    while left > 0 && !signals::is_stopping() {
        let record = reader.next(&mut client, waits)?;
        let is_end = record.is_none();
        if let Some(record) = record {
            print(&output, record.position, record.bytes);
            left -= 1;
            untrimmed += 1;
        }
        if output.is_closed() {
            break; // what may not have been printed is not freed
        }
        let is_due = untrimmed >= TRIM_RECORDS || is_end || left == 0;
        if arguments.trim && untrimmed > 0 && is_due {
            let cursor = reader.cursor();
            log.trim(&mut client, &cursor, TIMEOUT)?;
            untrimmed = 0;
        }
        if is_end && !arguments.follow {
            break;
        }
    }
    Ok(())
}

pub(crate) fn print(output: &Output, position: u64, record: &[u8]) {
    output.text(record);
    output.text(b"\n");
    let content = std::str::from_utf8(record).map_or(Content::Bytes(record), Content::Text);
    output.value(&Printed { position, content });
}
