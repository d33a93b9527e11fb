//! The reading end of a log.

use super::appender::Appender;
use super::checkpoint::{LaneCut, decode_cuts};
use super::error::LogError;
use super::frame::{CLOSING, CUT, GROUP, VOID, decode, group, place, void_word};
use super::lane::bind;
use super::layout::{GRANULE, Layout, LogRing};
use crate::naps::Naps;
use farside::onesided::{Buffer, Deadline, MemoryClient, RemoteLock};
use farside::record::{CloseStep, HoleCloser, PlaceState, RecordHeader};
use farside::runtime::Instant;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

/// The time-out of the requests of one look, however short that of the call.
const LOOK: Duration = Duration::from_secs(10);
/// Bytes that are read at a time.
const CHUNK: u64 = 64 << 10;
/// Most granules of a hole that is closed at a time.
const HOLE_MAX: u64 = (1 << 24) - 1;

/// Position of a reader in a log. Another reader continues there ([`Log::reader_at`](super::Log::reader_at)), and a log
/// is trimmed up to there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogCursor {
    pub(super) position: u64,
    /// Records that were read behind the position.
    pub(super) read: u64,
    /// How far each lane is part of the log before the position.
    pub(super) lanes: Vec<LaneCut>,
}

impl LogCursor {
    /// Returns the position of the next record, or of the batch that it is in.
    pub const fn position(&self) -> u64 {
        self.position
    }
}

/// A record, as [`LogReader::next`] returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogRecord<'a> {
    /// Its position: of a batch, of all its records; of a lazy one, of what made it part of the log.
    pub position: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// A part of a lane that is to be read.
struct LanePart {
    lane: u32,
    next: u64,
    end: u64,
}

/// Bytes of a ring that were read.
struct Chunk {
    buffer: Buffer,
    bytes: Vec<u8>,
    /// Of the ring, and where; the first ring is the log's own.
    ring: u32,
    position: u64,
}

/// Reads the records of a [`Log`](super::Log), in order, each once.
///
/// *Guarantees*: all readers see the same records in the same order. A record is seen whole or not at all. Where a
/// writer has reserved a place and died, a reader closes it a lease after it has come there.
///
/// *Cost*: two round trips for up to 64 KiB of records; one more for each batch of lazy records, and three for the reader
/// that makes them part of the log.
pub struct LogReader {
    appender: Appender,
    chunk: Chunk,
    cursor: LogCursor,
    /// After the records of the cursor's position.
    next: u64,
    lanes: Vec<LaneCut>,
    /// Records in the chunk that were not returned.
    records: VecDeque<Range<usize>>,
    parts: VecDeque<LanePart>,
    /// Of a cursor in the midst of a batch: records to leave out.
    skips: u64,
    /// The tail when the reader first came to a place that is open, and since when.
    stall: Option<(u64, Instant)>,
    /// The tail is at least there.
    tail_seen: u64,
    /// Holes that this reader has closed.
    closed: u64,
}

impl LogReader {
    pub(super) fn new(
        client: &mut MemoryClient,
        layout: Layout,
        cursor: Option<&LogCursor>,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        let appender = Appender::new(client, layout, deadline)?;
        let first = LogCursor {
            position: appender.checkpoint.position,
            read: 0,
            lanes: appender.checkpoint.lanes.clone(),
        };
        let cursor = cursor.cloned().unwrap_or(first);
        if cursor.lanes.len() != appender.checkpoint.lanes.len() {
            return Err(LogError::Options("the cursor is of another log"));
        }
        if cursor.position < appender.checkpoint.position {
            return Err(LogError::Trimmed(appender.checkpoint.position));
        }
        let chunk = Chunk {
            buffer: client.register(CHUNK)?,
            bytes: Vec::new(),
            ring: u32::MAX,
            position: 0,
        };
        Ok(Self {
            appender,
            chunk,
            next: cursor.position,
            lanes: cursor.lanes.clone(),
            records: VecDeque::new(),
            parts: VecDeque::new(),
            skips: cursor.read,
            stall: None,
            tail_seen: 0,
            closed: 0,
            cursor: LogCursor { read: 0, ..cursor },
        })
    }

    /// Returns the next record; `None` if there is none within the time.
    ///
    /// *Blocks*: yields the processor between attempts, then sleeps up to 0.5 ms. With a time-out of zero it looks once, which
    /// takes some round trips; its requests have 10 s.
    ///
    /// # Errors
    /// `Trimmed`: open another reader; `Corrupt`; `Memory`: call again. A record that was not returned is returned by a later
    /// call.
    pub fn next(
        &mut self,
        client: &mut MemoryClient,
        timeout: Duration,
    ) -> Result<Option<LogRecord<'_>>, LogError> {
        let until = Deadline::after(timeout);
        let mut naps = Naps::new();
        while self.records.is_empty() {
            let patience = Deadline::after(until.left().max(LOOK));
            let advanced = self.advance(client, &patience);
            if advanced.is_err() {
                // A request that did not end may still write to the buffer.
                self.chunk.forget();
                self.chunk.buffer = client.register(self.chunk.buffer.len() as u64)?;
            }
            if !advanced? {
                if until.is_over() {
                    return Ok(None);
                }
                naps.pause();
            }
        }
        self.cursor.read += 1;
        let position = self.cursor.position;
        Ok(self
            .records
            .pop_front()
            .map(|range| LogRecord { position, bytes: &self.chunk.bytes[range] }))
    }

    /// Returns where the reader is: before the next record.
    pub fn cursor(&mut self) -> LogCursor {
        self.pass();
        self.cursor.clone()
    }

    /// Returns how many holes this reader has closed: places of writers that have died or were too slow.
    pub const fn holes_closed(&self) -> u64 {
        self.closed
    }

    /// Moves the cursor on if all records at its position were returned.
    fn pass(&mut self) {
        if self.records.is_empty() && self.parts.is_empty() && self.cursor.position != self.next {
            self.cursor.position = self.next;
            self.cursor.read = 0;
            self.cursor.lanes.copy_from_slice(&self.lanes);
        }
    }

    /// Looks for records; returns whether there was anything.
    fn advance(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<bool, LogError> {
        if !self.parts.is_empty() {
            self.read_lane(client, deadline)?;
            return Ok(true);
        }
        self.pass();
        let at = self.next;
        if at >= self.appender.limit() {
            self.refresh(client, deadline)?;
        }
        if at >= self.tail_seen {
            self.tail_seen = deadline.read_word(client, self.appender.layout.tail())?;
        }
        if at >= self.tail_seen.min(self.appender.limit()) {
            let Self { appender, lanes, .. } = self;
            return Ok(!lanes.is_empty() && bind(client, appender, lanes, deadline)?);
        }
        self.read_place(client, at, deadline)
    }

    fn refresh(&mut self, client: &mut MemoryClient, deadline: &Deadline) -> Result<(), LogError> {
        self.appender.checkpoint.refresh(client, deadline)?;
        match self.appender.checkpoint.position {
            first if first > self.next => Err(LogError::Trimmed(first)),
            _ => Ok(()),
        }
    }

    /// Reads what is at the next position, which was reserved.
    fn read_place(
        &mut self,
        client: &mut MemoryClient,
        at: u64,
        deadline: &Deadline,
    ) -> Result<bool, LogError> {
        let ring = self.appender.ring;
        // The second look begins after the first has seen the word that commits the record, and sees all of it.
        for _ in 0..3 {
            let end = self.tail_seen.min(self.appender.limit());
            let bytes = self.chunk.load(client, (0, &ring), at..end, GRANULE, deadline)?;
            match place(ring.seed, at, word_of(bytes)) {
                // What was read with an earlier record may have changed since.
                PlaceState::Open if self.chunk.position == at => {
                    return self.wait_at(client, at, deadline);
                }
                PlaceState::Closing => {
                    self.close(client, at, self.tail_seen, deadline)?;
                    return Ok(true);
                }
                PlaceState::Void(bytes) if at + bytes <= end => {
                    self.passed(at + bytes);
                    return Ok(true);
                }
                PlaceState::Record(takes) => {
                    if takes <= ring.record_max()
                        && at + takes <= end
                        && let Some(content) =
                            self.chunk.record(client, (0, &ring), (at, takes, end), deadline)?
                    {
                        self.take(at, content)?;
                        self.passed(at + takes);
                        return Ok(true);
                    }
                }
                _ => {}
            }
            self.chunk.forget();
            self.refresh(client, deadline)?;
            self.tail_seen = deadline.read_word(client, self.appender.layout.tail())?;
        }
        Err(LogError::Corrupt(at))
    }

    /// Advances to a position.
    fn passed(&mut self, next: u64) {
        self.next = next;
        self.stall = self.stall.filter(|(tail, _)| next < *tail);
    }

    /// Takes the records of a place.
    fn take(&mut self, at: u64, content: Content) -> Result<(), LogError> {
        match content {
            Content::Record(range) => self.records.push_back(range),
            Content::Group(ranges) => self.records.extend(ranges),
            Content::Cut(cuts) if cuts.len() == self.lanes.len() => {
                for (lane, (known, cut)) in self.lanes.iter_mut().zip(cuts).enumerate() {
                    // Two readers may append a cut for the same records: the later cut has nothing new.
                    if cut.tail <= known.tail {
                        continue;
                    }
                    let is_same = known.tail.epoch() == cut.tail.epoch();
                    let next = if is_same { known.tail.bytes() } else { cut.start.bytes() };
                    let (lane, end) = (lane as u32, cut.tail.bytes());
                    self.parts.push_back(LanePart { lane, next, end });
                    *known = cut;
                }
            }
            Content::Cut(_) => return Err(LogError::Corrupt(at)),
        }
        self.skip();
        Ok(())
    }

    /// Leaves out records that the cursor has behind it.
    fn skip(&mut self) {
        let skipped = self.skips.min(self.records.len() as u64);
        self.records.drain(..skipped as usize);
        self.skips -= skipped;
        self.cursor.read += skipped;
    }

    /// Reads records of the first lane of a cut.
    fn read_lane(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let Some(LanePart { lane, next, end }) = self.parts.front_mut() else {
            return Ok(());
        };
        let (ring, at) = (self.appender.layout.lane_ring(*lane), *next);
        let corrupt = || LogError::Corrupt(at);
        if at < *end {
            let which = (*lane + 1, &ring);
            let bytes = self.chunk.load(client, which, at..*end, GRANULE, deadline)?;
            let (_, length) = RecordHeader::first_word(word_of(bytes)).ok_or_else(corrupt)?;
            let takes = RecordHeader::footprint(length.into());
            if takes > *end - at {
                return Err(corrupt());
            }
            let content = self.chunk.record(client, which, (at, takes, *end), deadline)?;
            *next += takes;
            match content {
                Some(content @ (Content::Record(_) | Content::Group(_))) => {
                    self.take(at, content)?;
                }
                _ => return Err(corrupt()),
            }
        }
        if self.parts.front().is_some_and(|part| part.next >= part.end) {
            self.parts.pop_front();
        }
        Ok(())
    }

    /// Waits at a place that is open; closes it a lease after the reader has come to it.
    fn wait_at(
        &mut self,
        client: &mut MemoryClient,
        at: u64,
        deadline: &Deadline,
    ) -> Result<bool, LogError> {
        self.chunk.forget();
        match self.stall {
            Some((tail, since)) if at < tail => {
                if since.elapsed() < self.appender.layout.options.lease {
                    return Ok(false);
                }
                self.close(client, at, tail, deadline)?;
                Ok(true)
            }
            _ => {
                self.stall = Some((self.tail_seen, Instant::now()));
                Ok(false)
            }
        }
    }

    /// Decides that nothing is between a position and the next record, or the tail.
    ///
    /// See [`HoleCloser`]. The lock keeps out those that trim.
    fn close(
        &mut self,
        client: &mut MemoryClient,
        at: u64,
        tail: u64,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let (ring, layout) = (self.appender.ring, self.appender.layout);
        let lock = RemoteLock::new(layout.lock(), layout.options.lease)?;
        let guard = lock.lock(client, deadline.left())?;
        let closed = self.refresh(client, deadline).and_then(|()| {
            let end = tail.min(self.appender.limit()).min(at + HOLE_MAX * GRANULE);
            let mut closer = HoleCloser::new(at, end, GRANULE);
            let closing = |at| void_word(ring.seed, at, CLOSING, 0);
            while !guard.left().is_zero() {
                match closer.step() {
                    CloseStep::Mark(at) => {
                        let was = deadline.replace(client, ring.at(at), (0, closing(at)))?;
                        closer.marked(place(ring.seed, at, was));
                    }
                    CloseStep::Check(at, takes) => {
                        closer.checked(self.is_record(client, at, takes, deadline)?);
                    }
                    CloseStep::Seal(at, bytes) => {
                        let void = void_word(ring.seed, at, VOID, bytes / GRANULE);
                        let was = deadline.replace(client, ring.at(at), (closing(at), void))?;
                        return Ok(was == closing(at));
                    }
                    CloseStep::Decided => return Ok(false),
                }
            }
            Ok(false) // another reader continues
        });
        self.chunk.forget();
        self.closed += u64::from(closed == Ok(true));
        let unlocked = guard.unlock(client, deadline.left());
        closed?;
        Ok(unlocked?)
    }

    /// Whether a whole record is at a position.
    fn is_record(
        &mut self,
        client: &mut MemoryClient,
        at: u64,
        takes: u64,
        deadline: &Deadline,
    ) -> Result<bool, LogError> {
        let ring = self.appender.ring;
        if takes > ring.record_max() || at + takes > self.appender.limit() {
            return Ok(false);
        }
        self.chunk.forget();
        let bytes = self.chunk.load(client, (0, &ring), at..at + takes, takes, deadline)?;
        Ok(decode(ring.seed, at, bytes).is_some())
    }
}

/// Returns the word at the beginning of bytes.
fn word_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// What a place has, by places in the chunk.
enum Content {
    Record(Range<usize>),
    Group(Vec<Range<usize>>),
    Cut(Vec<LaneCut>),
}

impl Chunk {
    /// Reads a record of `takes` bytes; `None` if it is none, or not whole.
    fn record(
        &mut self,
        client: &mut MemoryClient,
        which: (u32, &LogRing),
        (at, takes, end): (u64, u64, u64),
        deadline: &Deadline,
    ) -> Result<Option<Content>, LogError> {
        let bytes = self.load(client, which, at..end, takes, deadline)?;
        let Some((header, payload)) = decode(which.1.seed, at, bytes) else {
            return Ok(None);
        };
        let content = match header.kind {
            GROUP => group(payload).map(Content::Group),
            CUT => Some(Content::Cut(decode_cuts(payload).collect())),
            _ => Some(Content::Record(0..payload.len())),
        };
        let begins = (at - self.position + GRANULE) as usize;
        let moved = |range: Range<usize>| range.start + begins..range.end + begins;
        Ok(content.map(|content| match content {
            Content::Record(range) => Content::Record(moved(range)),
            Content::Group(ranges) => Content::Group(ranges.into_iter().map(moved).collect()),
            cut @ Content::Cut(_) => cut,
        }))
    }

    fn forget(&mut self) {
        self.bytes.clear();
    }

    /// Returns bytes of a ring from the beginning of `range` on, at least `needs` of them. Reads them, and more of
    /// the range, unless they were read before.
    fn load(
        &mut self,
        client: &mut MemoryClient,
        (number, ring): (u32, &LogRing),
        range: Range<u64>,
        needs: u64,
        deadline: &Deadline,
    ) -> Result<&[u8], LogError> {
        let at = range.start;
        let has = self.position..self.position + self.bytes.len() as u64;
        if self.ring != number || !has.contains(&at) || at + needs > has.end {
            self.forget();
            let bytes = CHUNK.max(needs).min(range.end - at);
            if (self.buffer.len() as u64) < bytes {
                self.buffer = client.register(bytes.next_power_of_two())?;
            }
            ring.read(client, at, &self.buffer, bytes, deadline)?;
            self.bytes.resize(bytes as usize, 0);
            self.buffer.read(0, &mut self.bytes)?;
            (self.ring, self.position) = (number, at);
        }
        Ok(&self.bytes[(at - self.position) as usize..])
    }
}

impl std::fmt::Debug for LogReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogReader(at {}, {} holes closed)", self.next, self.closed)
    }
}
