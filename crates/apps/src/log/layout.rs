//! Where the parts of a log are in the remote memory.
//!
//! ```text
//! header     magic | bytes | lanes | bytes of a lane | lease | seed, 8 bytes each
//! tail       the next position that is free
//! lock       of those that trim the log or close holes
//! checkpoint position of the first record, and what had been read of each lane there (a `Publication`)
//! lanes      64 bytes each: lock | start | tail
//! ring       of records
//! rings of the lanes
//! ```

use super::error::LogError;
use farside::onesided::{Deadline, MemoryClient, MemoryHeader, Publication, RemoteAddress};
use farside::record::RECORD_GRANULE;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Bytes of which each record takes a multiple.
pub(super) const GRANULE: u64 = RECORD_GRANULE;
const MAGIC: u64 = u64::from_le_bytes(*b"FSLOG\0\0\x01");
const TAIL: u64 = 64;
const LOCK: u64 = 128;
const CHECKPOINT: u64 = 192;
/// Bytes of a lane's words.
pub(super) const LANE: u64 = 64;
const LANES_MAX: u32 = 64;
const RING_BYTES_MIN: u64 = 4096;
const RING_BYTES_MAX: u64 = 1 << 40;

/// The size and the timing of a [`Log`](super::Log).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogOptions {
    /// Bytes of records that the log holds before it must be trimmed: a multiple of 64, 4 KiB to 1 TiB.
    pub bytes: u64,
    /// Most writers that append lazily at a time: 0 to 64. A lazy writer takes a lane, a ring of its own.
    pub lanes: u32,
    /// Bytes of a lane's ring: as `bytes`.
    pub lane_bytes: u64,
    /// After this time without progress at a position its writer counts as dead: 1 ms to an hour.
    pub lease: Duration,
}

impl Default for LogOptions {
    /// 64 MiB, without lanes, 1 s.
    fn default() -> Self {
        Self { bytes: 64 << 20, lanes: 0, lane_bytes: 1 << 20, lease: Duration::from_secs(1) }
    }
}

impl LogOptions {
    fn check(&self) -> Result<(), LogError> {
        let is_ring = |bytes: u64| {
            (RING_BYTES_MIN..=RING_BYTES_MAX).contains(&bytes) && bytes.is_multiple_of(64)
        };
        if !is_ring(self.bytes) || self.lanes > 0 && !is_ring(self.lane_bytes) {
            return Err(LogError::Options("a ring has 4 KiB to 1 TiB, a multiple of 64"));
        }
        if self.lanes > LANES_MAX {
            return Err(LogError::Options("a log has at most 64 lanes"));
        }
        if !(Duration::from_millis(1)..=Duration::from_hours(1)).contains(&self.lease) {
            return Err(LogError::Options("a lease is 1 ms to an hour"));
        }
        Ok(())
    }

    /// Bytes of a checkpoint.
    pub(super) const fn checkpoint_bytes(&self) -> u64 {
        8 + 16 * self.lanes as u64
    }

    const fn lanes_at(&self) -> u64 {
        CHECKPOINT + Publication::footprint(self.checkpoint_bytes()).next_multiple_of(64)
    }

    const fn ring_at(&self) -> u64 {
        self.lanes_at() + LANE * self.lanes as u64
    }

    /// Returns these options with the longest ring that fits into a memory of this length, and lanes of a 64th of it each;
    /// `None` if it is too short.
    ///
    /// ```
    /// use farside_apps::log::LogOptions;
    /// let options = LogOptions { lanes: 4, ..LogOptions::default() };
    /// assert!(options.filling(1 << 20).is_some_and(|options| options.footprint() <= 1 << 20));
    /// assert!(options.filling(4096).is_none());
    /// ```
    pub fn filling(self, memory_bytes: u64) -> Option<Self> {
        let ring = |bytes: u64| bytes.min(RING_BYTES_MAX) / 64 * 64;
        let lane_bytes = ring(memory_bytes / 64).max(RING_BYTES_MIN);
        let others = Self { bytes: 0, lane_bytes, ..self }.footprint();
        let options = Self { bytes: ring(memory_bytes.checked_sub(others)?), lane_bytes, ..self };
        options.check().is_ok().then_some(options)
    }

    /// Returns the bytes of remote memory that a log with these options needs.
    pub const fn footprint(&self) -> u64 {
        self.ring_at() + self.bytes + self.lanes as u64 * self.lane_bytes
    }
}

/// The places of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) at: RemoteAddress,
    pub(super) options: LogOptions,
    /// Random: of the checksums.
    pub(super) seed: u64,
}

/// A ring of bytes by position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogRing {
    pub(super) at: RemoteAddress,
    pub(super) bytes: u64,
    pub(super) seed: u64,
}

impl Layout {
    /// Creates a log in memory that is zero.
    pub(super) fn create(
        client: &mut MemoryClient,
        at: RemoteAddress,
        options: LogOptions,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        options.check()?;
        let seed = RandomState::new().hash_one("log");
        let layout = Self::fitting(at, options, seed)?;
        let header = MemoryHeader::new(at, MAGIC);
        if !header.claim(client, deadline)? {
            return Err(LogError::Exists);
        }
        let lease_ns = options.lease.as_nanos() as u64;
        let words = [options.bytes, options.lanes.into(), options.lane_bytes, lease_ns, seed];
        header.publish(client, &words, deadline)?;
        Ok(layout)
    }

    /// Reads the layout of a log.
    pub(super) fn open(
        client: &mut MemoryClient,
        at: RemoteAddress,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        let words = MemoryHeader::new(at, MAGIC).read(client, deadline)?;
        let [bytes, lanes, lane_bytes, lease_ns, seed] = words.ok_or(LogError::NotALog)?;
        let lanes = u32::try_from(lanes).map_err(|_| LogError::NotALog)?;
        let lease = Duration::from_nanos(lease_ns);
        let options = LogOptions { bytes, lanes, lane_bytes, lease };
        options.check().map_err(|_| LogError::NotALog)?;
        Self::fitting(at, options, seed)
    }

    fn fitting(at: RemoteAddress, options: LogOptions, seed: u64) -> Result<Self, LogError> {
        if !at.offset().is_multiple_of(64) {
            return Err(LogError::Options("a log begins at a multiple of 64"));
        }
        let end = at.offset().checked_add(options.footprint());
        if end.is_none_or(|end| end > at.memory().bytes()) {
            return Err(LogError::Options("the memory is smaller than the log's footprint"));
        }
        Ok(Self { at, options, seed })
    }

    pub(super) fn tail(&self) -> RemoteAddress {
        self.at.plus(TAIL)
    }

    pub(super) fn lock(&self) -> RemoteAddress {
        self.at.plus(LOCK)
    }

    pub(super) fn checkpoint(&self) -> RemoteAddress {
        self.at.plus(CHECKPOINT)
    }

    /// The words of a lane.
    pub(super) fn lane(&self, lane: u32) -> RemoteAddress {
        self.at.plus(self.options.lanes_at() + LANE * u64::from(lane))
    }

    pub(super) fn ring(&self) -> LogRing {
        LogRing {
            at: self.at.plus(self.options.ring_at()),
            bytes: self.options.bytes,
            seed: self.seed,
        }
    }

    pub(super) fn lane_ring(&self, lane: u32) -> LogRing {
        let bytes = self.options.lane_bytes;
        let at = self.options.ring_at() + self.options.bytes + u64::from(lane) * bytes;
        LogRing { at: self.at.plus(at), bytes, seed: self.seed.wrapping_add(u64::from(lane) + 1) }
    }
}

impl LogRing {
    /// Most bytes of a record with its header.
    pub(super) const fn record_max(&self) -> u64 {
        self.bytes / 4
    }

    /// Returns the address of a position.
    pub(super) fn at(&self, position: u64) -> RemoteAddress {
        self.at.plus(position % self.bytes)
    }

    /// Cuts bytes from a position on where the ring ends: offset in the ring, offset in the bytes, length.
    pub(super) fn pieces(
        &self,
        position: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, u64, u64)> + use<> {
        let at = position % self.bytes;
        let first = bytes.min(self.bytes - at);
        let pieces = [(at, 0, first), (0, first, bytes - first)];
        pieces.into_iter().filter(|(_, _, bytes)| *bytes > 0)
    }
}
