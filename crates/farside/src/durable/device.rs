//! The seam between a log and what keeps its bytes.

use crate::Error;
use crate::record::RECORD_GRANULE;
use std::fmt;

/// The end of the last possible segment.
const POSITION_MAX: u64 = 1 << 62;

/// What keeps the bytes of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// Memory of this process.
    Memory,
    /// Memory of other processes, a copy in each; some of the copies may be in files of this machine.
    Replicas,
    /// A file system in memory (tmpfs).
    MemoryFile,
    /// A file on a disk of this machine, as its file system and the disk report it.
    File,
    /// Persistent memory of this machine, mapped.
    PersistentMemory,
    /// A file of another machine (NFS, SMB and others).
    NetworkFile,
}

/// What survives once a device has reported a write as durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub struct Promise {
    /// What keeps the bytes.
    pub medium: Medium,
    /// Whether they survive the end of the process, also by `kill -9`.
    pub survives_process: bool,
    /// Whether they survive the end of the operating system and the loss of power.
    pub survives_power: bool,
}

impl Promise {
    /// The promise of a medium.
    pub const fn of(medium: Medium) -> Self {
        let survives_process = !matches!(medium, Medium::Memory);
        let survives_power =
            matches!(medium, Medium::File | Medium::PersistentMemory | Medium::NetworkFile);
        Self { medium, survives_process, survives_power }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let medium = match self.medium {
            Medium::Memory => "memory of this process",
            Medium::Replicas if self.survives_power => {
                "memory of other processes and files of this machine, a copy in each"
            }
            Medium::Replicas => "memory of other processes, a copy in each",
            Medium::MemoryFile => "a file system in memory",
            Medium::File => "a file on a disk, if the disk keeps what it reports as written",
            Medium::PersistentMemory => "persistent memory of this machine",
            Medium::NetworkFile => "a file of another machine, as far as that one keeps it",
        };
        let survives = match (self.survives_process, self.survives_power) {
            (_, true) if self.medium == Medium::Replicas => {
                "survives all but one of them, and a loss of power"
            }
            (_, true) => "survives the process and a loss of power",
            (true, false) if self.medium == Medium::Replicas => {
                "survives this process and all but one of those; lost with their power"
            }
            (true, false) => "survives the process; lost with the power",
            (false, false) => "lost with the process",
        };
        write!(f, "{medium}: {survives}")
    }
}

/// A part of a log that a device keeps: positions from `begin` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct Segment {
    /// The first position.
    pub begin: u64,
    /// Positions in it.
    pub bytes: u64,
}

impl Segment {
    /// Whether it can be one: sums of its positions do not overflow, and records fill it.
    pub(super) fn is_possible(&self) -> bool {
        let end = self.begin.checked_add(self.bytes);
        self.bytes >= RECORD_GRANULE
            && (self.begin | self.bytes).is_multiple_of(RECORD_GRANULE)
            && end.is_some_and(|end| end <= POSITION_MAX)
    }

    /// The position after the last.
    pub const fn end(&self) -> u64 {
        self.begin.saturating_add(self.bytes)
    }
}

/// Keeps the segments of one log. A log calls it from one thread at a time.
///
/// A device never repeats a write or a sync by itself. After an error of `write` or `sync` the log calls neither again.
pub trait LogDevice: Send {
    /// Returns what a sync means.
    fn promise(&self) -> Promise;

    /// Returns a number that no other log has. It does not change.
    fn log_id(&self) -> u64;

    /// Returns the most bytes of a segment.
    fn segment_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Returns the segments that exist, in the order of their positions.
    ///
    /// # Errors
    /// `LogDamaged`, `LogTruncated`, `StateForeign`; `System`.
    fn segments(&mut self) -> Result<Vec<Segment>, Error>;

    /// Adds a segment. Its bytes are zero or those of a segment that was removed; once this returns, it exists also after a loss of power.
    ///
    /// # Errors
    /// `LogFull` without space; `System`. There is no segment then.
    fn create(&mut self, segment: Segment) -> Result<(), Error>;

    /// Called once the log is recovered: all that was read after the durable part has been written again and synced.
    fn recovered(&mut self) {}

    /// Writes bytes at a position of a segment, which holds all of them. They may be lost until [`sync`](Self::sync).
    ///
    /// # Errors
    /// `DeviceFailed`.
    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error>;

    /// Returns once all that was written to the segment is kept.
    ///
    /// # Errors
    /// `DeviceFailed`: what was written since the last sync may be lost, whatever a later call says.
    fn sync(&mut self, segment: Segment) -> Result<(), Error>;

    /// Reads bytes at a position of a segment, which holds all of them.
    ///
    /// # Errors
    /// `System`; `LogTruncated` if the segment is shorter than when it was created.
    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error>;

    /// Removes a segment.
    ///
    /// # Errors
    /// `System`; the segment may exist or not.
    fn remove(&mut self, segment: Segment) -> Result<(), Error>;
}
