//! The log: appends by any number of threads, group commit, trim.

use super::device::{LogDevice, Promise, Segment};
use super::file::FileDevice;
use super::recovery::{LogVisitor, Recovered, recover};
use super::tag::{MARK, RECORD_KIND_MAX, RecordTag, SEGMENT_END, STAGED_BYTES_MAX};
use crate::canary;
use crate::mutex::locked;
use crate::record::{RECORD_BYTES_MAX, RECORD_GRANULE, RecordHeader};
use crate::setters::setters;
use crate::{Error, ErrorCode};
use farside_protocol::persist::{CommitStatus, GroupCommit};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The smallest segment, so that one has room for several records.
const SEGMENT_BYTES_MIN: u64 = 4096;

/// Options of a [`DurableLog`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DurableLogOptions {
    /// Bytes of a segment, of which trims free whole ones; 64 MiB by default. A record takes at most a quarter.
    pub segment_bytes: u64,
    /// Most bytes of all segments; 4 GiB by default.
    pub bytes_max: u64,
    /// Most bytes of a record, which was no more at any opening before: as much as a group may have left after the log's
    /// end is overwritten when the log is opened.
    pub(super) record_bytes_max: usize,
}

setters!(DurableLogOptions { segment_bytes: u64, bytes_max: u64 });

impl Default for DurableLogOptions {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, bytes_max: 4 << 30, record_bytes_max: RECORD_BYTES_MAX }
    }
}

/// Positions of a log. Each is at most the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Watermarks {
    /// The first position that was not trimmed.
    pub begin: u64,
    /// All before it is durable.
    pub durable: u64,
    /// The end of what was appended.
    pub appended: u64,
}

/// What a log has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DurableLogStats {
    /// Records appended.
    pub records: u64,
    /// Groups written: each by one write and one sync for each segment that it touches, mostly one.
    pub groups: u64,
    /// Bytes written, with headers and marks.
    pub bytes: u64,
}

/// Bytes to be written to one segment.
struct StagedBytes {
    segment: Segment,
    at: u64,
    bytes: Vec<u8>,
}

struct LogState {
    commit: GroupCommit,
    staged: Vec<StagedBytes>,
    staged_bytes: usize,
    /// Those that exist. The end of what was appended is in the one at `current`.
    segments: VecDeque<Segment>,
    current: usize,
    /// Why the device has failed.
    failure: Option<Error>,
    stats: DurableLogStats,
}

/// A write-ahead log on a device: records are appended in memory, and durable once a commit has returned.
///
/// Any number of threads use it at the same time. One of those that wait for a commit writes what all of them have
/// appended, with one write and one sync (group commit); no thread runs otherwise.
///
/// *Guarantees*: records are in the order of their appends. After any end of the process, and of the machine where
/// [`promise`](Self::promise) says so, the log has all records that were committed, then perhaps some of the later ones
/// without a gap; each is whole. *Errors*: a device that fails once is never used again ([`ErrorCode::DeviceFailed`]).
/// *Cost*: an append copies the record, under a lock; a commit is one write and one `fdatasync` for a group.
///
/// ```
/// use farside::durable::{DurableLog, DurableLogOptions, RecordTag};
/// use std::time::Duration;
///
/// # let folder = std::env::temp_dir().join(format!("farside-doc-log-{}", std::process::id()));
/// # let options = DurableLogOptions::default().segment_bytes(1 << 20);
/// let (log, recovered) = DurableLog::open(&folder, &options)?;
/// assert_eq!(recovered.records, 0);
/// let order = RecordTag { kind: 1, ..RecordTag::default() };
/// log.append(order, b"two pears")?;
/// let end = log.append(order, b"one apple")?;
/// log.commit(end, Duration::from_secs(10))?; // both survive from here on
/// drop(log);
///
/// let (log, recovered) = DurableLog::open(&folder, &options)?;
/// assert_eq!(recovered.records, 2);
/// let mut orders = Vec::new();
/// for record in log.reader(recovered.begin) {
///     orders.push(record?.payload);
/// }
/// assert_eq!(orders, [b"two pears", b"one apple"]);
/// # drop(log);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok::<(), farside::Error>(())
/// ```
pub struct DurableLog {
    state: Mutex<LogState>,
    /// A group has been written, or has failed.
    ended: Condvar,
    /// Locked after `state` or alone, never before it.
    device: Mutex<Box<dyn LogDevice>>,
    promise: Promise,
    pub(super) id: u64,
    options: DurableLogOptions,
}

impl DurableLog {
    /// Opens the log of a folder; makes it if the folder has none.
    ///
    /// *Blocks* for a read of all segments. What was being appended when the log ended is cut off, and counted.
    ///
    /// # Errors
    /// `BadConfiguration`; `StateInUse`, `StateForeign`, `LogDamaged`, `LogTruncated`: nothing was changed; `LogFull`;
    /// `System`.
    pub fn open(folder: &Path, options: &DurableLogOptions) -> Result<(Self, Recovered), Error> {
        Self::on(Box::new(FileDevice::open(folder)?), options)
    }

    /// Opens the log of a device.
    ///
    /// # Errors
    /// As [`open`](Self::open); `DeviceFailed`.
    pub fn on(
        device: Box<dyn LogDevice>,
        options: &DurableLogOptions,
    ) -> Result<(Self, Recovered), Error> {
        Self::on_visited(device, options, &mut ())
    }

    /// Opens the log of a device, and shows its records to a visitor within the one read of the log. An error of the
    /// visitor is returned before the log was changed.
    pub(super) fn on_visited(
        mut device: Box<dyn LogDevice>,
        options: &DurableLogOptions,
        visitor: &mut dyn LogVisitor,
    ) -> Result<(Self, Recovered), Error> {
        let bytes = options.segment_bytes;
        if bytes < SEGMENT_BYTES_MIN || !bytes.is_multiple_of(RECORD_GRANULE) || bytes > 1 << 40 {
            let text = "segment_bytes has 4 KiB to 1 TiB, a multiple of 32";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        if bytes > device.segment_bytes_max() {
            let text = format!(
                "segment_bytes is {bytes}; the device has at most {}",
                device.segment_bytes_max()
            );
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let (promise, id) = (device.promise(), device.log_id());
        let recovered = recover(&mut *device, options.record_bytes_max, visitor)?;
        let state = LogState {
            commit: GroupCommit::new(recovered.end),
            staged: Vec::new(),
            staged_bytes: 0,
            current: recovered.segments.iter().take_while(|at| at.end() <= recovered.end).count(),
            segments: recovered.segments.iter().copied().collect(),
            failure: None,
            stats: DurableLogStats::default(),
        };
        let (state, device) = (Mutex::new(state), Mutex::new(device));
        let options = options.clone();
        Ok((Self { state, ended: Condvar::new(), device, promise, id, options }, recovered))
    }

    /// Returns what a commit means.
    pub const fn promise(&self) -> Promise {
        self.promise
    }

    /// Returns the positions of the log.
    pub fn watermarks(&self) -> Watermarks {
        let state = locked(&self.state);
        let (durable, appended) = (state.commit.durable(), state.commit.appended());
        let begin = state.segments.front().map_or(appended, |first| first.begin);
        Watermarks { begin, durable, appended }
    }

    /// Returns what the log has done.
    pub fn stats(&self) -> DurableLogStats {
        locked(&self.state).stats
    }

    /// Appends a record; returns its end, for [`commit`](Self::commit). It is not durable yet.
    ///
    /// *Blocks* to add a segment when one is full (its zeros are written and synced), and to write when 1 MiB waits.
    ///
    /// # Errors
    /// `BadForm` for a kind that is zero or over [`RECORD_KIND_MAX`]; `TooLarge` for a record that takes more than a
    /// quarter of a segment, or [`RECORD_BYTES_MAX`]; `LogFull`: trim, or free space; `DeviceFailed`. Nothing was appended
    /// then.
    pub fn append(&self, tag: RecordTag, payload: &[u8]) -> Result<u64, Error> {
        if !(1..=RECORD_KIND_MAX).contains(&tag.kind) {
            let text = format!("a record of kind {}: 1 to {RECORD_KIND_MAX}", tag.kind);
            return Err(Error::with(ErrorCode::BadForm, text));
        }
        let takes = RecordHeader::footprint(payload.len() as u64);
        if payload.len() > self.options.record_bytes_max || takes > self.options.segment_bytes / 4 {
            let text = format!(
                "a record of {} B in segments of {} B",
                payload.len(),
                self.options.segment_bytes
            );
            return Err(Error::with(ErrorCode::TooLarge, text));
        }
        let mut state = locked(&self.state);
        // Each of the threads that have waited looks again: a group must not be longer than an opening overwrites.
        while state.staged_bytes >= STAGED_BYTES_MAX {
            let upto = state.commit.appended();
            state = self.commit_staged(state, upto, None)?;
        }
        // A closed log has one mark more.
        self.make_room(&mut state, takes + RECORD_GRANULE)?;
        let end = self.stage(&mut state, tag, payload);
        state.stats.records += 1;
        Ok(end)
    }

    /// Waits until all before a position is durable. If no other thread writes, this one does.
    ///
    /// *Blocks*. The time-out ends the wait for other threads; the write of this one is not interrupted.
    ///
    /// # Errors
    /// `TimedOut`; `DeviceFailed`: of what was appended and not committed before, each record is in the log or not.
    /// `OutOfBounds` for a position after what was appended.
    pub fn commit(&self, upto: u64, timeout: Duration) -> Result<(), Error> {
        let state = locked(&self.state);
        if upto > state.commit.appended() {
            let text = format!("position {upto} of {}", state.commit.appended());
            return Err(Error::with(ErrorCode::OutOfBounds, text));
        }
        if state.commit.durable() >= upto {
            return Ok(());
        }
        let until = Instant::now().checked_add(timeout);
        self.commit_staged(state, upto, until).map(drop)
    }

    /// The end of what is durable, and the segments.
    pub(super) fn durable_segments(&self) -> (u64, Vec<Segment>) {
        let state = locked(&self.state);
        (state.commit.durable(), state.segments.iter().copied().collect())
    }

    pub(super) fn device(&self) -> MutexGuard<'_, Box<dyn LogDevice>> {
        locked(&self.device)
    }

    /// Allows the log to forget all before a position, which a checkpoint holds. Frees whole segments.
    ///
    /// # Errors
    /// `OutOfBounds` for a position that is not durable yet; `System`: what was freed is freed.
    pub fn trim(&self, below: u64) -> Result<(), Error> {
        let mut state = locked(&self.state);
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        if below > state.commit.durable() {
            let text = format!("position {below} of {} durable ones", state.commit.durable());
            return Err(Error::with(ErrorCode::OutOfBounds, text));
        }
        while state.current > 0
            && let Some(first) = state.segments.front().copied()
            && (first.end() <= below
                || canary::mutant!(canary::nodes(), LogTrimmedTooFar) && first.begin < below)
        {
            let removed = locked(&self.device).remove(first);
            removed.inspect_err(|error| fail(&mut state, error))?;
            state.segments.pop_front();
            state.current -= 1;
        }
        Ok(())
    }

    /// Makes all durable and marks the end, so that damage of the last records can be distinguished from an append that
    /// was cut off.
    /// A log that is dropped is committed no further.
    ///
    /// # Errors
    /// As [`commit`](Self::commit).
    pub fn close(self) -> Result<(), Error> {
        self.commit_marked(None)
    }

    /// Makes all durable and marks the end; the log may be used further.
    pub(super) fn commit_marked(&self, until: Option<Instant>) -> Result<(), Error> {
        let state = locked(&self.state);
        let upto = state.commit.appended();
        let mut state = self.commit_staged(state, upto, until)?;
        self.make_room(&mut state, 0)?;
        // Written by the next group, whose mark tells that the one before was durable.
        self.mark(&mut state);
        let upto = state.commit.appended();
        self.commit_staged(state, upto, until).map(drop)
    }

    /// Raises the most bytes of all segments.
    pub(super) const fn raise_bytes_max(&mut self, bytes_max: u64) {
        if self.options.bytes_max < bytes_max {
            self.options.bytes_max = bytes_max;
        }
    }

    /// Waits for a position, and writes if no other thread does.
    fn commit_staged<'a>(
        &'a self,
        mut state: MutexGuard<'a, LogState>,
        upto: u64,
        until: Option<Instant>,
    ) -> Result<MutexGuard<'a, LogState>, Error> {
        loop {
            match state.commit.status(upto) {
                CommitStatus::Durable => return Ok(state),
                CommitStatus::Failed => {
                    let error = state.failure.clone();
                    return Err(error.unwrap_or_else(|| ErrorCode::DeviceFailed.into()));
                }
                CommitStatus::Lead => state = self.lead(state),
                CommitStatus::Wait => {
                    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                    if left.is_some_and(|left| left.is_zero()) {
                        let text = format!("position {upto} is not durable yet");
                        return Err(Error::with(ErrorCode::TimedOut, text));
                    }
                    state = match left {
                        None => self.ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                        Some(left) => {
                            let waited = self.ended.wait_timeout(state, left);
                            waited.unwrap_or_else(PoisonError::into_inner).0
                        }
                    };
                }
            }
        }
    }

    /// Writes what was appended, and syncs it.
    fn lead<'a>(&'a self, mut state: MutexGuard<'a, LogState>) -> MutexGuard<'a, LogState> {
        self.mark(&mut state);
        state.commit.begin();
        let staged = std::mem::take(&mut state.staged);
        state.staged_bytes = 0;
        drop(state);
        let written = self.write(&staged);
        let mut state = locked(&self.state);
        let is_forgotten = canary::mutant!(canary::nodes(), LogFailureForgotten);
        state.commit.end(written.is_ok() || is_forgotten);
        match written {
            Ok(bytes) => {
                state.stats.groups += 1;
                state.stats.bytes += bytes;
            }
            Err(error) => state.failure = Some(error),
        }
        // The memory of this group serves a later one.
        if state.staged.is_empty()
            && let Some(mut one) = staged.into_iter().next_back()
        {
            one.bytes.clear();
            state.staged.push(one);
        }
        self.ended.notify_all();
        state
    }

    fn write(&self, staged: &[StagedBytes]) -> Result<u64, Error> {
        let mut device = locked(&self.device);
        let mut bytes = 0;
        for one in staged.iter().filter(|one| !one.bytes.is_empty()) {
            device.write(one.segment, one.at, &one.bytes)?;
            let is_skipped = canary::mutant!(canary::nodes(), LogNotSynced)
                || canary::mutant!(canary::nodes(), LogFirstSegmentNotSynced)
                    && staged.last().is_none_or(|last| last.segment != one.segment);
            if !is_skipped {
                device.sync(one.segment)?;
            }
            bytes += one.bytes.len() as u64;
        }
        Ok(bytes)
    }

    /// Ends a group.
    fn mark(&self, state: &mut LogState) {
        let durable = state.commit.durable();
        self.stage(state, RecordTag { kind: MARK, counter: durable, address: 0 }, &[]);
    }

    /// Copies a record to what is to be written; there is room for it. Returns its end.
    fn stage(&self, state: &mut LogState, tag: RecordTag, payload: &[u8]) -> u64 {
        let at = state.commit.appended();
        let takes = RecordHeader::footprint(payload.len() as u64);
        let header = RecordHeader {
            kind: tag.kind,
            bytes: payload.len() as u32,
            sequence: at,
            counter: tag.counter,
            address: tag.address,
        };
        let header = header.encode(self.id, [payload]);
        let Some(segment) = state.segments.get(state.current).copied() else {
            return at; // every caller has made room
        };
        match state.staged.last_mut() {
            Some(last) if last.bytes.is_empty() => (last.segment, last.at) = (segment, at),
            Some(last) if last.segment == segment => {}
            _ => state.staged.push(StagedBytes { segment, at, bytes: Vec::new() }),
        }
        if let Some(last) = state.staged.last_mut() {
            last.bytes.extend_from_slice(&header);
            last.bytes.extend_from_slice(payload);
            let padding = takes as usize - header.len() - payload.len();
            last.bytes.extend_from_slice(&[0; RECORD_GRANULE as usize][..padding]);
        }
        state.staged_bytes += takes as usize;
        let end = match tag.kind {
            SEGMENT_END => segment.end(),
            _ => at + takes,
        };
        state.commit.append_to(end);
        end
    }

    /// Makes room for a record of this length, and after it for a mark and the end of the segment: in the next segment,
    /// if this one has too little left.
    fn make_room(&self, state: &mut LogState, takes: u64) -> Result<(), Error> {
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        // A group may end after any record, with a mark; and the segment after that.
        let needs = takes + 4 * RECORD_GRANULE;
        loop {
            let at = state.commit.appended();
            let now = state.segments.get(state.current).copied();
            if now.is_some_and(|now| now.end() - at >= needs) {
                return Ok(());
            }
            if state.current + 1 >= state.segments.len() {
                self.add_segment(state)?;
            }
            if now.is_some() {
                self.stage(state, RecordTag { kind: SEGMENT_END, ..RecordTag::default() }, &[]);
                state.current += 1;
            }
        }
    }

    fn add_segment(&self, state: &mut LogState) -> Result<(), Error> {
        let begin = state.segments.back().map_or(state.commit.appended(), Segment::end);
        let segment = Segment { begin, bytes: self.options.segment_bytes };
        let all: u64 = state.segments.iter().map(|one| one.bytes).sum();
        if all.saturating_add(segment.bytes) > self.options.bytes_max {
            let text = format!("{all} B of at most {} B", self.options.bytes_max);
            return Err(Error::with(ErrorCode::LogFull, text));
        }
        let created = locked(&self.device).create(segment);
        created.inspect_err(|error| fail(state, error))?;
        state.segments.push_back(segment);
        Ok(())
    }
}

/// Fails a log whose device has.
fn fail(state: &mut LogState, error: &Error) {
    if error.code == ErrorCode::DeviceFailed {
        state.failure.get_or_insert_with(|| error.clone());
        state.commit.fail();
    }
}

impl std::fmt::Debug for DurableLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DurableLog({:?})", self.watermarks())
    }
}
