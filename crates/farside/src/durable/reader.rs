//! Reading a log that is open.

use super::device::Segment;
use super::log::DurableLog;
use super::recovery::{SegmentReader, end_of};
use super::tag::{RECORD_KIND_MAX, RecordTag};
use crate::record::RecordHeader;
use crate::{Error, ErrorCode};

/// A record of a [`DurableLog`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DurableRecord {
    /// Where it begins.
    pub position: u64,
    /// Where it ends: it is durable once all before this is.
    pub end: u64,
    /// What it is.
    pub tag: RecordTag,
    /// Its payload.
    pub payload: Vec<u8>,
}

/// Reads the records of a log in order ([`DurableLog::reader`]): up to the end of what is durable, then on from there when
/// more is. Ends with the first error.
///
/// *Blocks* for a read of 1 MiB at a time, and for a group that is being written. *Errors*: `OutOfBounds` for a position that
/// was trimmed; `LogDamaged` if no record is there; `LogTruncated`; `System`.
pub struct DurableReader<'a> {
    log: &'a DurableLog,
    at: u64,
    /// Up to here records are durable, in these segments.
    durable: u64,
    segments: Vec<Segment>,
    reader: SegmentReader,
    /// It has failed.
    is_over: bool,
}

impl DurableLog {
    /// Returns a reader of the records from a position on, which is the beginning of a record or of the log; from any other one it reports damage.
    pub const fn reader(&self, from: u64) -> DurableReader<'_> {
        DurableReader {
            log: self,
            at: from,
            durable: from,
            segments: Vec::new(),
            reader: SegmentReader::new(self.id),
            is_over: false,
        }
    }
}

impl DurableReader<'_> {
    /// Returns the position of the next record.
    pub const fn position(&self) -> u64 {
        self.at
    }

    fn read(&mut self) -> Result<Option<DurableRecord>, Error> {
        loop {
            if self.at >= self.durable {
                (self.durable, self.segments) = self.log.durable_segments();
                self.reader.forget();
                if self.at >= self.durable {
                    return Ok(None);
                }
            }
            let at = self.at;
            let segment = self.segments.iter().find(|one| (one.begin..one.end()).contains(&at));
            let Some(segment) = segment.copied() else {
                let text = format!("position {at} was trimmed, or is none of this log");
                return Err(Error::with(ErrorCode::OutOfBounds, text));
            };
            let mut device = self.log.device();
            let Some((header, payload)) = self.reader.record(&mut **device, segment, at)? else {
                let text = format!("no record at position {at}, below {}", self.durable);
                return Err(Error::with(ErrorCode::LogDamaged, text));
            };
            let end = end_of(&header, segment);
            self.at = end;
            if header.kind <= RECORD_KIND_MAX {
                let RecordHeader { kind, counter, address, .. } = header;
                let (tag, payload) = (RecordTag { kind, counter, address }, payload.to_vec());
                return Ok(Some(DurableRecord { position: at, end, tag, payload }));
            }
        }
    }
}

impl Iterator for DurableReader<'_> {
    type Item = Result<DurableRecord, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let at = self.at;
        let next = match self.read() {
            // Its segment may have been trimmed meanwhile.
            Err(_) if at < self.log.watermarks().begin => {
                let text = format!("position {at} was trimmed");
                Some(Err(Error::with(ErrorCode::OutOfBounds, text)))
            }
            next => next.transpose(),
        };
        self.is_over = matches!(next, Some(Err(_)));
        next
    }
}

impl std::fmt::Debug for DurableReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DurableReader(at {})", self.at)
    }
}
