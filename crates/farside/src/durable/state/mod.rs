//! The state of a node's memory: its contents and its allocations, kept in a [`DurableLog`].
//!
//! *Concept*: a redo log with physical records, and a fuzzy checkpoint that is written into the same log (Gray and Reuter,
//! *Transaction Processing*, 11.3; the cleaner of log-structured stores, Rosenblum and Ousterhout 1992, section 3).
//!
//! *Replay* applies all records from the first one of the log on. A fresh allocation zeroes its bytes, a restated one does
//! not. *Invariants*, which the records of a log keep whatever was trimmed or cut off:
//!
//! 1. The records found are a prefix of those appended, and contain all that were committed.
//! 2. A byte's value after a prefix is that of the last record that covers it. If the log has none, the byte is zero: what
//!    is not zero when a pass reaches it is restated, after the pass's beginning `p`.
//! 3. The log is trimmed below `p` when all up to the pass's end is durable. So a trimmed log has a whole pass.
//! 4. Allocations found in a part of the log are some of those that existed; at the end of a pass, all of them.
//!
//! A pass that the end of the process has interrupted continues where its records end. Why each point is right, case by case,
//! is in `docs/internals/durable-log.md`.
//!
//! | file | does |
//! | --- | --- |
//! | `record.rs` | the form of records |
//! | `contents.rs` | the image, and how records change it |
//! | `changes.rs` | which bytes of a write are logged |
//! | `cleaning.rs` | passes |
//! | `replay.rs` | reads a log back |
//! | `pass.rs`, `types.rs` | what these share |
//! | `sizes.rs` | sizes with which the log never fills |

mod changes;
mod cleaning;
mod contents;
mod pass;
mod record;
mod replay;
mod sizes;
#[cfg(test)]
mod tests;
mod types;

use super::device::LogDevice;
use super::file::FileDevice;
use super::log::{DurableLog, DurableLogOptions};
use crate::{Error, ErrorCode, canary};
use contents::{Contents, RecordOrigin};
use pass::Pass;
use record::StateRecord;
use replay::Replay;
use sizes::{RECORD_MAX, StateSizes};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use types::{Allocation, Restored, StateIdentity, StateOptions, StateStats};

/// Most bytes of the name of a cluster.
const CLUSTER_BYTES_MAX: usize = 64;

/// Pieces by which a pass continues when the state is opened.
const RESUMED_PIECES: i64 = 4;

/// The contents of a node's memory, kept in a log: an image in memory, of which each change is appended to the log.
///
/// It has one owner. An operation appends a record, changes the image, and returns the position up to which a commit
/// makes it durable; another thread commits, by [`log`](Self::log).
///
/// *Guarantees*: after any end of the process, and of the machine where the device says so, the state has all operations
/// that were committed, then perhaps some of the later ones without a gap. A write of more than
/// [`atomic_bytes`](Self::atomic_bytes) counts as several. The log never fills, unless the device has no space.
/// *Blocks*: not for the device, except where [`DurableLog::append`] does (to add a segment, and to write when 1 MiB waits)
/// and at the end of a pass (to remove segments). *Cost*: a write compares its bytes with the image, copies those that
/// changed, and moves cleaning on by twice as many. *Source*: 004 section 5 asks for logging and recovery.
///
/// ```
/// use farside::durable::{Allocation, MemoryState, StateIdentity, StateOptions};
/// use std::time::Duration;
///
/// # let folder = std::env::temp_dir().join(format!("farside-doc-state-{}", std::process::id()));
/// let options = StateOptions::default().memory_bytes(1 << 20).segment_bytes(1 << 20);
/// let (mut state, _) = MemoryState::open(&folder, &options)?;
/// let identity =
///     StateIdentity { cluster: "pool".into(), node: 1, generation: 1, memory_bytes: 1 << 20 };
/// state.set_identity(identity)?;
/// state.allocated(4096, Allocation { bytes: 100, lines: 1, class: 3 })?;
/// if let Some(end) = state.write(4096, b"two pears")? {
///     state.log().commit(end, Duration::from_secs(10))?; // survives from here on
/// }
/// assert_eq!(state.write(4096, b"two pears")?, None);
/// drop(state);
///
/// let (state, restored) = MemoryState::open(&folder, &options)?;
/// assert_eq!((restored.allocations, &state.image()[4096..4105]), (1, &b"two pears"[..]));
/// # drop(state);
/// # std::fs::remove_dir_all(folder).ok();
/// # Ok::<(), farside::Error>(())
/// ```
pub struct MemoryState {
    log: Arc<DurableLog>,
    contents: Contents,
    memory_bytes: u64,
    sizes: StateSizes,
    pass: Option<Pass>,
    /// Bytes that the last whole pass has restated.
    live: u64,
    /// The end of the log when cleaning was last moved on.
    paced: u64,
    /// Bytes that cleaning may add to the log.
    credit: i64,
    /// Why cleaning has stopped.
    cleaning_failure: Option<Error>,
    scratch: Vec<u8>,
    stats: StateStats,
}

impl MemoryState {
    /// Opens the state of a folder; makes it if the folder has none.
    ///
    /// *Blocks* for a read of the log.
    ///
    /// # Errors
    /// `BadConfiguration`, with the least `log_bytes_max`; `StateInUse`; `StateForeign` for a state of another memory size
    /// or version, or another program's log; `LogDamaged` also for records that are none of a state; `LogTruncated`: nothing
    /// was changed; `System`.
    pub fn open(folder: &Path, options: &StateOptions) -> Result<(Self, Restored), Error> {
        StateSizes::of(options)?;
        Self::on(Box::new(FileDevice::open(folder)?), options)
    }

    /// Opens the state of a device.
    ///
    /// # Errors
    /// As [`open`](Self::open); `DeviceFailed`.
    pub fn on(
        device: Box<dyn LogDevice>,
        options: &StateOptions,
    ) -> Result<(Self, Restored), Error> {
        let sizes = StateSizes::of(options)?;
        let mut log_options = DurableLogOptions::default()
            .segment_bytes(sizes.segment_bytes)
            .bytes_max(sizes.log_bytes_max);
        log_options.record_bytes_max = RECORD_MAX;
        let mut replay = Replay::new(options.memory_bytes);
        let (mut log, found) = DurableLog::on_visited(device, &log_options, &mut replay)?;
        // A log that was allowed to be longer is cleaned within what its pass needs.
        let kept: u64 = found.segments.iter().map(|segment| segment.bytes).sum();
        log.raise_bytes_max(kept + sizes.headroom + 3 * sizes.segment_bytes);
        let restored = replay.restored(&found);
        let (contents, pass, live) = replay.into_parts();
        let paced = log.watermarks().appended;
        let mut state = Self {
            log: Arc::new(log),
            contents,
            memory_bytes: options.memory_bytes,
            sizes,
            pass,
            live,
            paced,
            credit: 0,
            cleaning_failure: None,
            scratch: Vec::new(),
            stats: StateStats::default(),
        };
        // A pass whose end is durable trims now. One in flight continues by some pieces, so that it ends even if each process
        // is killed after its first operation.
        if state.pass.is_some() {
            state.credit = RESUMED_PIECES * state.sizes.piece.cast_signed();
        }
        state.pace();
        Ok((state, restored))
    }

    /// Returns whose memory it is; `None` of a new state.
    pub const fn identity(&self) -> Option<&StateIdentity> {
        self.contents.identity.as_ref()
    }

    /// Sets whose memory it is, before anything else is logged. May be called again with the same identity.
    ///
    /// # Errors
    /// `StateForeign` for another identity than before; `BadConfiguration` for another memory size than that of the options,
    /// or a name that is not 1 to 64 bytes long; those of [`DurableLog::append`].
    pub fn set_identity(&mut self, identity: StateIdentity) -> Result<u64, Error> {
        if self.contents.identity.as_ref() == Some(&identity) {
            return Ok(self.log.watermarks().appended);
        }
        self.check_identity(&identity)?;
        self.log_record(&StateRecord::Identity(identity))
    }

    fn check_identity(&self, identity: &StateIdentity) -> Result<(), Error> {
        if let Some(known) = self.contents.identity.as_ref().filter(|known| *known != identity) {
            let text = format!("it is of {known:?}, not {identity:?}");
            return Err(Error::with(ErrorCode::StateForeign, text));
        }
        let name = identity.cluster.len();
        if identity.memory_bytes == self.memory_bytes && (1..=CLUSTER_BYTES_MAX).contains(&name) {
            return Ok(());
        }
        let text = format!(
            "{identity:?}: the memory has {} B, and the name of a cluster 1 to {CLUSTER_BYTES_MAX}",
            self.memory_bytes
        );
        Err(Error::with(ErrorCode::BadConfiguration, text))
    }

    /// Begins to save a memory: as [`set_identity`](Self::set_identity), but the state is not whole, and no node starts from
    /// it, until [`end_saving`](Self::end_saving) is durable. An attempt that was interrupted is continued.
    ///
    /// # Errors
    /// As [`set_identity`](Self::set_identity); `StateForeign` also if the state is whole.
    pub fn begin_saving(&mut self, identity: StateIdentity) -> Result<(), Error> {
        if let Some(known) = self.contents.identity.as_ref().filter(|_| !self.contents.is_saving) {
            let text = format!("there is a whole state of {known:?}: name an empty place");
            return Err(Error::with(ErrorCode::StateForeign, text));
        }
        self.check_identity(&identity)?;
        self.log_record(&StateRecord::Saving(identity)).map(drop)
    }

    /// Declares the state whole: all of the memory is saved. Returns the position that makes it so.
    ///
    /// # Errors
    /// `BadConfiguration` unless a save was begun; those of [`DurableLog::append`].
    pub fn end_saving(&mut self) -> Result<u64, Error> {
        match self.contents.identity.clone().filter(|_| self.contents.is_saving) {
            Some(identity) => self.log_record(&StateRecord::Identity(identity)),
            None => Err(Error::with(ErrorCode::BadConfiguration, "no save was begun")),
        }
    }

    /// Whether a save was begun and did not end.
    pub const fn is_saving(&self) -> bool {
        self.contents.is_saving
    }

    /// Returns the contents of the memory as they are logged, also what is not durable yet. Bytes that are not of an
    /// allocation's lines have any value.
    pub fn image(&self) -> &[u8] {
        &self.contents.image
    }

    /// Returns the allocations, with their offsets in ascending order.
    pub fn allocations(&self) -> impl Iterator<Item = (u64, Allocation)> {
        self.contents.allocations.iter().map(|(offset, one)| (*offset, *one))
    }

    /// Returns the allocations that begin in a range of the memory.
    pub fn allocations_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Allocation)> {
        self.contents.allocations.range(range).map(|(offset, one)| (*offset, *one))
    }

    /// Returns the offset and the lines of the directory of named roots.
    pub const fn directory(&self) -> Option<(u64, u64)> {
        self.contents.directory
    }

    /// Logs a fresh allocation, whose lines are zero from here on. Returns the position that makes it durable.
    ///
    /// # Errors
    /// `OutOfBounds` if it is not within the memory, overlaps another one, or is not of whole lines at a multiple of a line;
    /// `BadConfiguration` before [`set_identity`](Self::set_identity); those of [`DurableLog::append`]. Nothing has changed
    /// then.
    pub fn allocated(&mut self, offset: u64, allocation: Allocation) -> Result<u64, Error> {
        self.log_record(&StateRecord::Fresh { offset, allocation })
    }

    /// Logs that an allocation was freed. Returns the position that makes it durable.
    ///
    /// # Errors
    /// `OutOfBounds` if none begins at the offset; else as [`allocated`](Self::allocated).
    pub fn freed(&mut self, offset: u64) -> Result<u64, Error> {
        if canary::mutant!(canary::nodes(), StateFreedNotLogged) {
            self.contents.apply(&StateRecord::Freed { offset });
            return Ok(self.log.watermarks().appended);
        }
        self.log_record(&StateRecord::Freed { offset })
    }

    /// Logs where the directory of named roots is; nowhere, if it has no lines. Returns the position that makes it durable.
    ///
    /// # Errors
    /// `OutOfBounds` if it is not within the memory; else as [`allocated`](Self::allocated).
    pub fn set_directory(&mut self, offset: u64, lines: u64) -> Result<u64, Error> {
        self.log_record(&StateRecord::Directory { offset, lines })
    }

    /// Logs the bytes that differ from the image: from the first to the last, in granules of 8 B, or two such ranges where
    /// that is shorter. Returns the position that makes them durable; `None` if all are equal, and nothing was logged.
    ///
    /// A write of more than [`atomic_bytes`](Self::atomic_bytes) is logged as several, each of which survives whole or not.
    ///
    /// # Errors
    /// `OutOfBounds` if the bytes are not within the lines of one allocation; else as [`allocated`](Self::allocated). An error
    /// of the log may leave the first parts of a long write logged, as in the image.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<Option<u64>, Error> {
        let new = StateRecord::Write { offset, bytes };
        self.contents.check(&new, RecordOrigin::New).map_err(out_of_bounds)?;
        self.stats.written_bytes += bytes.len() as u64;
        let mut end = None;
        let starts = (offset..).step_by(self.sizes.piece as usize);
        for (start, piece) in starts.zip(bytes.chunks(self.sizes.piece as usize)) {
            let old = self.contents.bytes(start..start + piece.len() as u64);
            let part = |range: Range<u64>| {
                &piece[(range.start - start) as usize..(range.end - start) as usize]
            };
            let Some((first, second)) = changes::changes(start, old, piece) else {
                continue;
            };
            let place = first.start;
            let Some(second) = second else {
                let record = StateRecord::Write { offset: place, bytes: part(first) };
                end = Some(self.log_record(&record)?);
                continue;
            };
            let second_offset = second.start;
            let (first, second) = (part(first), part(second));
            if canary::mutant!(canary::nodes(), StateWriteTorn) {
                self.log_record(&StateRecord::Write { offset: place, bytes: first })?;
                let record = StateRecord::Write { offset: second_offset, bytes: second };
                end = Some(self.log_record(&record)?);
                continue;
            }
            let record = StateRecord::WriteTwo { offset: place, first, second_offset, second };
            end = Some(self.log_record(&record)?);
        }
        Ok(end)
    }

    /// Returns the most bytes of a write that survives whole or not: 64 KiB, or a 16th of a segment.
    pub const fn atomic_bytes(&self) -> u64 {
        self.sizes.piece
    }

    /// Returns the position before which all is durable.
    pub fn durable(&self) -> u64 {
        self.log.watermarks().durable
    }

    /// Returns the log, for commits by other threads. Only the state appends to it.
    pub const fn log(&self) -> &Arc<DurableLog> {
        &self.log
    }

    /// Returns what the state has done.
    pub const fn stats(&self) -> StateStats {
        self.stats
    }

    /// Commits all, and marks the end.
    ///
    /// *Blocks* for a write and a sync, at most `timeout` for those of other threads.
    ///
    /// # Errors
    /// Those of [`DurableLog::commit`].
    pub fn close(&mut self, timeout: Duration) -> Result<(), Error> {
        self.pace();
        let closed = self.log.commit_marked(Instant::now().checked_add(timeout));
        self.pace();
        closed
    }

    /// Appends a record and applies it. Returns its end.
    fn log_record(&mut self, record: &StateRecord<'_>) -> Result<u64, Error> {
        if self.contents.identity.is_none()
            && !matches!(record, StateRecord::Identity(_) | StateRecord::Saving(_))
        {
            let text = "the state has no identity: call set_identity first";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        self.contents.check(record, RecordOrigin::New).map_err(out_of_bounds)?;
        let (tag, payload) = record.encode(&mut self.scratch);
        let end = self.log.append(tag, payload)?;
        self.stats.logged_bytes += payload.len() as u64;
        if canary::mutant!(canary::nodes(), StateRestatedStale) {
            self.pace();
        }
        self.contents.apply(record);
        self.pace();
        Ok(end)
    }
}

fn out_of_bounds(why: String) -> Error {
    Error::with(ErrorCode::OutOfBounds, why)
}

impl std::fmt::Debug for MemoryState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryState({:?}, {:?})", self.identity(), self.log)
    }
}
