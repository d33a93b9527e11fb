//! Reading a log that no process uses, without a change.

use super::device::{LogDevice, Promise, Segment};
use super::file::FileDevice;
use super::recovery::scan;
use crate::{Error, ErrorCode};
use farside_protocol::persist::LogTail;
use std::path::Path;

/// What a folder with a log has.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LogReport {
    /// What a commit means there.
    pub promise: Promise,
    /// The segments, in order.
    pub segments: Vec<Segment>,
    /// The first position.
    pub begin: u64,
    /// The end of the last whole record before any damage.
    pub end: u64,
    /// Whole records up to there, and the bytes of their payloads.
    pub records: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// Headers after the end. Without damage they are of appends that were cut off, and opening the log removes them.
    pub cut_off: u64,
    /// The log was durable up to here, which is after the end: it is damaged there.
    pub damaged_below: Option<u64>,
}

/// Reads the log of a folder and changes nothing.
///
/// *Blocks* for a read of all segments.
///
/// # Errors
/// `StateInUse`; `StateForeign` if the folder has no log; `LogDamaged` for files whose headers are; `LogTruncated`; `System`.
pub fn check(folder: &Path) -> Result<LogReport, Error> {
    if !folder.join("identity").is_file() {
        let text = format!("{} has no log", folder.display());
        return Err(Error::with(ErrorCode::StateForeign, text));
    }
    let mut device = FileDevice::open(folder)?;
    let found = scan(&mut device, &mut ())?;
    let (end, damaged_below) = match found.tail {
        LogTail::End(end) => (end, None),
        LogTail::Damaged { at, durable } => (at, Some(durable)),
    };
    Ok(LogReport {
        promise: device.promise(),
        segments: found.segments,
        begin: found.begin,
        end,
        records: found.records,
        payload_bytes: found.payload_bytes,
        cut_off: found.after_end.headers,
        damaged_below,
    })
}
