//! `farside log keep`, `print` and `check`: a durable log in a folder.

use crate::log::print;
use crate::settings::LogPlace;
use farside::durable::{
    self, CopyStatus, DurableLog, DurableLogOptions, LogReport, RecordTag, Recovered,
    ReplicaOptions, ReplicatedDevice,
};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes, count};
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(3600);
/// The name that an address without one has.
const NAME: &str = "pool";
/// Bytes of a segment of a log with copies.
const COPIES_SEGMENT_BYTES: u64 = 1 << 20;
/// A line of text.
const LINE: RecordTag = RecordTag { kind: 1, counter: 0, address: 0 };

/// Opens a log; also returns a handle that tells what its copies are.
fn open(place: &LogPlace, output: &Output) -> Result<(DurableLog, Recovered, CopyStatus), Failure> {
    let options = DurableLogOptions::default();
    match place {
        LogPlace::Folder(folder) => {
            let (log, recovered) = DurableLog::open(folder, &options)?;
            Ok((log, recovered, CopyStatus::default()))
        }
        LogPlace::Copies { addresses, least, choice } => {
            let is_file = |address: &&String| address.starts_with("file:");
            let (files, lent): (Vec<_>, Vec<_>) = addresses.iter().partition(is_file);
            let chosen = lent.iter().map(|to| choice::caller(choice, to, NAME));
            let chosen: Vec<Chosen> = chosen.collect::<Result<_, _>>()?;
            let fabric = match chosen.first() {
                Some(Chosen { fabric, .. }) => Arc::clone(fabric),
                None => farside::fabrics::shared_memory()?,
            };
            let lent = chosen.iter().map(|one| one.address.as_str());
            let addresses: Vec<&str> = lent.chain(files.iter().map(|one| one.as_str())).collect();
            let replicas = ReplicaOptions::default().copies_min(*least);
            let device = ReplicatedDevice::open(&fabric, &addresses, &replicas)?;
            if device.copies() < addresses.len() {
                output.note(format!("{} of {} copies", device.copies(), addresses.len()));
            }
            // Small enough for memory of some megabytes.
            let options = options.segment_bytes(COPIES_SEGMENT_BYTES);
            let status = device.status();
            let (log, recovered) = DurableLog::on(Box::new(device), &options)?;
            Ok((log, recovered, status))
        }
    }
}

/// Appends the lines of standard input, each batch of which is durable before the next is read.
pub(crate) fn keep(place: &LogPlace, batch: u32, output: Output) -> Result<(), Failure> {
    let (log, recovered, copies) = open(place, &output)?;
    if recovered.cut > 0 {
        output.note(format!(
            "{} records were cut off: their appends were not committed",
            recovered.cut
        ));
    }
    let (mut records, mut length) = (0, 0);
    let mut reported = copies.lost().len();
    let kept = keep_lines(&log, u64::from(batch), (&mut records, &mut length), || {
        for error in copies.lost().iter().skip(reported) {
            reported += 1;
            output.warning(format!("continues without a copy: {error}"));
        }
    });
    let kept = kept.and_then(|()| Ok(log.close()?));
    output.line(format!("kept {} records, {}", count(records), bytes(length)));
    output.ended(serde_json::json!({ "records": records, "bytes": length }), kept)
}

fn keep_lines(
    log: &DurableLog,
    batch: u64,
    (records, length): (&mut u64, &mut u64),
    mut committed: impl FnMut(),
) -> Result<(), Failure> {
    let mut input = std::io::stdin().lock();
    let (mut line, mut end, mut staged) = (Vec::new(), 0, (0, 0));
    loop {
        line.clear();
        let read = input.read_until(b'\n', &mut line);
        let is_end =
            read.map_err(|error| Failure::system(format!("standard input: {error}")))? == 0;
        if !is_end {
            line.pop_if(|last| *last == b'\n');
            end = log.append(LINE, &line)?;
            staged = (staged.0 + 1, staged.1 + line.len() as u64);
        }
        if staged.0 == batch || is_end {
            log.commit(end, TIMEOUT)?;
            committed();
            (*records, *length) = (*records + staged.0, *length + staged.1);
            staged = (0, 0);
        }
        if is_end {
            return Ok(());
        }
    }
}

/// Prints the records.
pub(crate) fn print_all(place: &LogPlace, output: Output) -> Result<(), Failure> {
    if let LogPlace::Folder(folder) = place {
        durable::check(folder)?; // a folder without a log gets none
    }
    let (log, recovered, _) = open(place, &output)?;
    for record in log.reader(recovered.begin) {
        let record = record?;
        print(&output, record.position, &record.payload);
        if output.is_closed() {
            break;
        }
    }
    Ok(())
}

/// Prints what a folder has; fails if it is damaged.
pub(crate) fn check(folder: &Path, output: Output) -> Result<(), Failure> {
    let report = durable::check(folder)?;
    let LogReport { promise, segments, begin, end, records, payload_bytes, cut_off, .. } = &report;
    let taken = segments.iter().map(|segment| segment.bytes).sum();
    output.line(format!("medium    {promise}"));
    output.line(format!("segments  {}, {}", segments.len(), bytes(taken)));
    output.line(format!("records   {}, {}", count(*records), bytes(*payload_bytes)));
    output.line(format!("positions {begin} to {end}"));
    let state = match (report.damaged_below, *cut_off) {
        (Some(below), _) => format!("damaged at {end}: it was durable up to {below}"),
        (None, 0) => "whole".to_owned(),
        (None, cut) => format!("whole; {cut} appends after the end were cut off"),
    };
    output.line(format!("state     {state}"));
    output.value(&serde_json::json!({
        "medium": format!("{:?}", promise.medium),
        "survives_process": promise.survives_process,
        "survives_power": promise.survives_power,
        "segments": segments.iter().map(|one| [one.begin, one.bytes]).collect::<Vec<_>>(),
        "begin": begin,
        "end": end,
        "records": records,
        "payload_bytes": payload_bytes,
        "cut_off": cut_off,
        "damaged_below": report.damaged_below,
    }));
    match report.damaged_below {
        Some(_) => Err(Failure::check(format!("{} is damaged", folder.display()))),
        None => Ok(()),
    }
}
