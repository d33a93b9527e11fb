//! Reading a log back: where it ends, and what is cut off.

use super::device::{LogDevice, Segment};
use super::tag::{MARK, RecordTag, SEGMENT_END, STAGED_BYTES_MAX};
use crate::canary;
use crate::record::{RECORD_GRANULE, RecordHeader};
use crate::{Error, ErrorCode};
use farside_protocol::persist::{LogTail, TailScan};

/// Bytes that are read at a time.
const WINDOW: u64 = 1 << 20;
const HEADER: usize = RECORD_GRANULE as usize;
/// Most bytes of a group with its marks, without its last record and what it leaves unused at the end of a segment: each at
/// most a record, which is at most a quarter of a segment.
const GROUP_BYTES_MAX: u64 = STAGED_BYTES_MAX as u64 + (64 << 10);

/// What opening a log has found.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Recovered {
    /// The first position.
    pub begin: u64,
    /// The end of the last whole record. All before it is durable now.
    pub end: u64,
    /// Records of the program.
    pub records: u64,
    /// Headers of records after the end, which no commit had reported, that were cut off.
    pub cut: u64,
    /// The segments, in order.
    pub segments: Vec<Segment>,
}

/// Sees the records of a log while it is opened, in order: those that are kept, if the log is whole.
pub(super) trait LogVisitor {
    /// A record of the program, at a position.
    fn record(&mut self, tag: RecordTag, position: u64, payload: &[u8]) -> Result<(), Error>;

    /// All records were seen, and the log is whole. After an error nothing is changed.
    fn end(&mut self) -> Result<(), Error>;
}

/// Sees nothing.
impl LogVisitor for () {
    fn record(&mut self, _: RecordTag, _: u64, _: &[u8]) -> Result<(), Error> {
        Ok(())
    }

    fn end(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// Reads records of a log, a window at a time.
pub(super) struct SegmentReader {
    id: u64,
    segment: Segment,
    /// The position of the window's first byte.
    at: u64,
    window: Vec<u8>,
}

impl SegmentReader {
    pub(super) const fn new(id: u64) -> Self {
        let segment = Segment { begin: 0, bytes: 0 };
        Self { id, segment, at: 0, window: Vec::new() }
    }

    /// Forgets what was read: more may have been written since.
    pub(super) fn forget(&mut self) {
        self.window.clear();
    }

    /// Bytes of a segment that are in it, from a position on.
    fn bytes(
        &mut self,
        device: &mut dyn LogDevice,
        segment: Segment,
        at: u64,
        bytes: u64,
    ) -> Result<&[u8], Error> {
        let has = self.at..self.at + self.window.len() as u64;
        if self.segment != segment || at < has.start || at + bytes > has.end {
            let length = bytes.max(WINDOW).min(segment.end() - at);
            self.window.resize(length as usize, 0);
            // A window whose read fails is empty.
            let read = device.read(segment, at, &mut self.window);
            (self.segment, self.at) = (segment, at);
            if read.is_err() {
                self.window.clear();
            }
            read?;
        }
        let from = (at - self.at) as usize;
        Ok(&self.window[from..from + bytes as usize])
    }

    /// The record at a position, if there is a whole one.
    pub(super) fn record(
        &mut self,
        device: &mut dyn LogDevice,
        segment: Segment,
        at: u64,
    ) -> Result<Option<(RecordHeader, &[u8])>, Error> {
        let id = self.id;
        if at + RECORD_GRANULE > segment.end() {
            return Ok(None);
        }
        let header = self.bytes(device, segment, at, RECORD_GRANULE)?;
        let mut first = [0; HEADER];
        first.copy_from_slice(header);
        let Some((_, bytes)) = RecordHeader::first_word(word(&first, 0)) else {
            return Ok(None);
        };
        let takes = RecordHeader::footprint(bytes.into());
        if word(&first, 8) != at || takes > segment.end() - at {
            return Ok(None);
        }
        let record = self.bytes(device, segment, at, takes)?;
        let payload = &record[HEADER..HEADER + bytes as usize];
        let decoded = RecordHeader::decode(id, &first, payload);
        let header = match canary::mutant!(canary::nodes(), LogChecksumIgnored) {
            true => Some(RecordHeader::unchecked(&first)),
            false => decoded,
        };
        Ok(header.map(|header| (header, payload)))
    }

    /// Finds the positions from `from` on at which a header of its own position is, whole or torn.
    fn headers(
        &mut self,
        device: &mut dyn LogDevice,
        segment: Segment,
        from: u64,
        found: &mut AfterEnd,
    ) -> Result<(), Error> {
        let mut at = from;
        while at + RECORD_GRANULE <= segment.end() {
            let header = self.bytes(device, segment, at, RECORD_GRANULE)?;
            // A zero is no record: it has no kind.
            if header[4] != 0 && word(header, 8) == at {
                let bytes = RecordHeader::first_word(word(header, 0)).map_or(0, |(_, bytes)| bytes);
                found.headers += 1;
                found.upto = at + RecordHeader::footprint(bytes.into());
                let mark = self.record(device, segment, at)?;
                if let Some((header, _)) = mark.filter(|(header, _)| header.kind == MARK) {
                    found.durable = found.durable.max(header.counter);
                }
            }
            at += RECORD_GRANULE;
        }
        Ok(())
    }
}

/// The position after a record.
pub(super) const fn end_of(header: &RecordHeader, segment: Segment) -> u64 {
    match header.kind {
        SEGMENT_END => segment.end(),
        _ => header.sequence + RecordHeader::footprint(header.bytes as u64),
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// What reading a log has found.
pub(super) struct Scan {
    pub(super) segments: Vec<Segment>,
    pub(super) begin: u64,
    pub(super) records: u64,
    pub(super) payload_bytes: u64,
    /// The last mark says that the log was durable up to here.
    marked: u64,
    pub(super) after_end: AfterEnd,
    pub(super) tail: LogTail,
}

/// What is read after the end of a log.
#[derive(Clone, Copy, Default)]
pub(super) struct AfterEnd {
    /// Headers of records.
    pub(super) headers: u64,
    /// Where the last of these records would end.
    upto: u64,
    /// How far a mark among them says that the log was durable.
    durable: u64,
}

/// Reads a log and changes nothing.
pub(super) fn scan(
    device: &mut dyn LogDevice,
    visitor: &mut dyn LogVisitor,
) -> Result<Scan, Error> {
    let segments = device.segments()?;
    let begin = segments.first().map_or(0, |first| first.begin);
    if let Some(pair) = segments.windows(2).find(|pair| pair[0].end() != pair[1].begin) {
        let text = format!("no segment between {} and {}", pair[0].end(), pair[1].begin);
        return Err(Error::with(ErrorCode::LogDamaged, text));
    }
    let mut reader = SegmentReader::new(device.log_id());
    let (mut scan, mut marked) = (TailScan::new(begin), begin);
    let (mut records, mut payload_bytes) = (0, 0);
    for segment in &segments {
        while scan.at() < segment.end()
            && let Some((header, payload)) = reader.record(device, *segment, scan.at())?
        {
            match header.kind {
                MARK => {
                    scan.mark(header.counter);
                    marked = marked.max(header.counter);
                }
                SEGMENT_END => {}
                _ => {
                    records += 1;
                    payload_bytes += u64::from(header.bytes);
                    let RecordHeader { kind, counter, address, .. } = header;
                    visitor.record(RecordTag { kind, counter, address }, scan.at(), payload)?;
                }
            }
            scan.record(end_of(&header, *segment));
        }
        if scan.at() < segment.end() {
            break;
        }
    }
    // The next segment is made before the end of one is written.
    if segments.last().is_some_and(|last| scan.at() == last.end()) {
        let text = format!("no segment from {} on", scan.at());
        return Err(Error::with(ErrorCode::LogDamaged, text));
    }
    let (mut after_end, stop) = (AfterEnd::default(), scan.at());
    for segment in segments.iter().filter(|segment| segment.end() > stop) {
        let from = stop.max(segment.begin);
        reader.headers(device, *segment, from, &mut after_end)?;
        scan.mark(after_end.durable);
    }
    let tail = match canary::mutant!(canary::nodes(), LogDamageCutOff) {
        true => LogTail::End(stop),
        false => scan.tail(),
    };
    Ok(Scan { segments, begin, records, payload_bytes, marked, after_end, tail })
}

/// Finds the end of a log, makes all before it durable, and cuts off what follows it.
///
/// A device may have lost what it had not synced, or a sync of the process before may have failed: so the records after
/// the last mark are written again, not just synced. An end at any point leaves a log of which the same is found again.
pub(super) fn recover(
    device: &mut dyn LogDevice,
    record_bytes_max: usize,
    visitor: &mut dyn LogVisitor,
) -> Result<Recovered, Error> {
    let Scan { segments, begin, records, marked, after_end, tail, .. } = scan(device, visitor)?;
    let end = match tail {
        LogTail::End(end) => end,
        LogTail::Damaged { at, durable } => {
            let text = format!("no record at position {at}; the log was durable up to {durable}");
            return Err(Error::with(ErrorCode::LogDamaged, text));
        }
    };
    visitor.end()?;
    write_again(device, &segments, marked..end)?;
    if !canary::mutant!(canary::nodes(), LogCutForgotten) {
        // In other copies, and below the page cache, there may be more than is read here.
        let longest = segments.iter().map(|segment| segment.bytes).max().unwrap_or(0);
        let record = (longest / 4).min(RecordHeader::footprint(record_bytes_max as u64));
        let upto = end.saturating_add(GROUP_BYTES_MAX + 2 * record).max(after_end.upto);
        cut_off(device, &segments, end..upto)?;
    }
    device.recovered();
    Ok(Recovered { begin, end, records, cut: after_end.headers, segments })
}

/// Writes zeros over all that a group may have reached that was not committed. It is not enough to remove what is read
/// there: an earlier opening may have removed it in the page cache alone, if its sync has failed.
fn cut_off(
    device: &mut dyn LogDevice,
    segments: &[Segment],
    positions: std::ops::Range<u64>,
) -> Result<(), Error> {
    let zeros = vec![0; WINDOW as usize];
    for segment in segments {
        let (mut at, until) =
            (positions.start.max(segment.begin), positions.end.min(segment.end()));
        if at >= until {
            continue;
        }
        while at < until {
            let length = (until - at).min(WINDOW);
            device.write(*segment, at, &zeros[..length as usize])?;
            at += length;
        }
        device.sync(*segment)?;
    }
    Ok(())
}

/// Writes positions again as they are read, and syncs them.
fn write_again(
    device: &mut dyn LogDevice,
    segments: &[Segment],
    positions: std::ops::Range<u64>,
) -> Result<(), Error> {
    for segment in segments {
        let (mut at, end) = (positions.start.max(segment.begin), positions.end.min(segment.end()));
        if at >= end || canary::mutant!(canary::nodes(), LogTrusted) {
            continue;
        }
        while at < end {
            let mut bytes = vec![0; (end - at).min(WINDOW) as usize];
            device.read(*segment, at, &mut bytes)?;
            if !canary::mutant!(canary::nodes(), LogNotWrittenAgain) {
                device.write(*segment, at, &bytes)?;
            }
            at += bytes.len() as u64;
        }
        device.sync(*segment)?;
    }
    Ok(())
}
