//! The parameters and the counters of persistent memory.

use std::fmt;

/// Bytes of a request to a controller: a cache line (002 Table 1).
pub const NVM_LINE_BYTES: u64 = 64;

/// The persistent memory of one socket. A plain record, to be changed by struct update; `Display` prints all fields
/// on one line.
///
/// Source: [`OPTANE_NVM`](crate::fabric::OPTANE_NVM) says where its numbers come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmProfile {
    /// DIMMs of the socket.
    pub dimms: u32,
    /// Bytes after which the next DIMM follows.
    pub interleave_bytes: u32,
    /// Bytes of a line of the media; a multiple of [`NVM_LINE_BYTES`], at most 32 of them.
    pub media_bytes: u32,
    /// Lines of the combining buffer of a DIMM.
    pub buffer_lines: u32,
    /// Writes of 64 bytes that the queue of a DIMM holds.
    pub queue_lines: u32,
    /// Bytes of WRITEs that bus and adapter hold until the memory takes them.
    pub posted_bytes: u32,
    /// Busy time of the controller for a read of 64 bytes.
    pub request_read_ps: u64,
    /// Busy time of the controller for a write of 64 bytes.
    pub request_write_ps: u64,
    /// Time that the controller needs to change between reads and writes.
    pub switch_ps: u64,
    /// Busy time of the media for reading one line.
    pub media_read_ps: u64,
    /// Busy time of the media for writing one line.
    pub media_write_ps: u64,
    /// Latency of a load that misses all caches.
    pub load_ns: u64,
    /// The same of DRAM.
    pub dram_load_ns: u64,
    /// Time of a non-temporal store until an idle queue has it.
    pub store_ns: u64,
    /// Lines in the part of the last-level cache that adapters write, from which it evicts at random.
    pub adapter_cache_lines: u32,
    /// The same for plain stores of processors.
    pub store_cache_lines: u32,
    /// Threads that may write to one DIMM without disturbing each other.
    pub writers_free: u32,
    /// Share of its service time that each further one adds.
    pub writer_per_mille: u64,
    /// Busy time of the interconnect for a read of 64 bytes from the other socket.
    pub crossing_read_ps: u64,
    /// The same for a write.
    pub crossing_write_ps: u64,
    /// Whether adapters write to the last-level cache (DDIO).
    pub ddio: bool,
    /// Whether the caches are in the persistent domain.
    pub caches_persist: bool,
}

impl NvmProfile {
    /// Returns the media lines that all DIMMs can write, in millions a second.
    pub fn writes_per_us(&self) -> f64 {
        f64::from(self.dimms) * 1e6 / self.media_write_ps.max(1) as f64
    }

    /// Returns the bandwidth of whole lines that all DIMMs can write, in Gb/s.
    pub fn write_gbps(&self) -> f64 {
        self.writes_per_us() * f64::from(self.media_bytes) * 8.0 / 1e3
    }

    /// Parts of 64 bytes of a media line.
    pub(super) const fn parts(&self) -> u64 {
        self.media_bytes as u64 / NVM_LINE_BYTES
    }
}

impl fmt::Display for NvmProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}B media={}B ", self.dimms, self.interleave_bytes, self.media_bytes)?;
        write!(f, "{}/{}ps ", self.media_read_ps, self.media_write_ps)?;
        write!(f, "buffer={} queue={} ", self.buffer_lines, self.queue_lines)?;
        write!(f, "posted={}B ", self.posted_bytes)?;
        write!(f, "request={}/{}", self.request_read_ps, self.request_write_ps)?;
        write!(f, "+{}ps load={}/{} ", self.switch_ps, self.load_ns, self.dram_load_ns)?;
        write!(f, "store={} cache={}", self.store_ns, self.adapter_cache_lines)?;
        write!(f, "/{} writers={}", self.store_cache_lines, self.writers_free)?;
        write!(f, "+{} crossing={}", self.writer_per_mille, self.crossing_read_ps)?;
        write!(f, "/{}ps ddio={} ", self.crossing_write_ps, u8::from(self.ddio))?;
        write!(f, "caches_persist={}", u8::from(self.caches_persist))
    }
}

/// The four counters of 002 §2.1, of all DIMMs of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NvmCounters {
    /// `NReadReq`: reads of 64 bytes that the controllers received.
    pub read_requests: u64,
    /// `NWriteReq`: writes of 64 bytes that they received.
    pub write_requests: u64,
    /// `NMediaRead`: bytes read from the media.
    pub media_read_bytes: u64,
    /// `NMediaWrite`: bytes written to the media.
    pub media_write_bytes: u64,
}

impl NvmCounters {
    /// Returns `NMediaWrite / (64 NWriteReq)`, NaN without writes.
    pub fn write_amplification(&self) -> f64 {
        self.media_write_bytes as f64 / (NVM_LINE_BYTES * self.write_requests) as f64
    }

    /// Returns `NMediaRead / (64 NReadReq)`, NaN without reads.
    pub fn read_amplification(&self) -> f64 {
        self.media_read_bytes as f64 / (NVM_LINE_BYTES * self.read_requests) as f64
    }

    /// Returns what was counted since an earlier state.
    pub const fn since(&self, before: &Self) -> Self {
        Self {
            read_requests: self.read_requests - before.read_requests,
            write_requests: self.write_requests - before.write_requests,
            media_read_bytes: self.media_read_bytes - before.media_read_bytes,
            media_write_bytes: self.media_write_bytes - before.media_write_bytes,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.read_requests += other.read_requests;
        self.write_requests += other.write_requests;
        self.media_read_bytes += other.media_read_bytes;
        self.media_write_bytes += other.media_write_bytes;
    }
}
