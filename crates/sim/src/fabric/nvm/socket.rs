//! The persistent memory of one socket: DIMMs, caches before them, and the interconnect to the other socket.

use super::cache::DirtyLines;
use super::dimm::Dimm;
use super::profile::{NVM_LINE_BYTES, NvmCounters, NvmProfile};
use crate::fabric::resource::Resource;
use farside_base::Random;
use std::ops::RangeInclusive;

/// A range of bytes that is read or written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmAccess {
    /// Address of the first byte in the memory of the socket.
    pub address: u64,
    /// Number of bytes.
    pub bytes: u64,
    /// Whether the adapter or thread is at the other socket.
    pub is_across: bool,
}

impl NvmAccess {
    /// The lines of 64 bytes; none if there are no bytes.
    fn lines(&self) -> RangeInclusive<u64> {
        let first = self.address / NVM_LINE_BYTES;
        let end = self.address.saturating_add(self.bytes);
        match end.checked_sub(1) {
            Some(last) if self.bytes > 0 => first..=last / NVM_LINE_BYTES,
            _ => RangeInclusive::new(1, 0),
        }
    }

    /// Whether it has all bytes of a line.
    fn covers(&self, line: u64) -> bool {
        let (start, end) = (line * NVM_LINE_BYTES, (line + 1) * NVM_LINE_BYTES);
        self.address <= start && self.address.saturating_add(self.bytes) >= end
    }
}

/// What writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NvmWriter {
    /// An adapter, by one-sided WRITEs or messages.
    Adapter,
    /// A thread, by plain stores.
    Store,
    /// A thread, by non-temporal stores.
    NonTemporal,
}

/// When a write has its effects, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NvmWriteTimes {
    /// When the memory has taken all of it: the writer may continue.
    pub accepted_ps: u64,
    /// When the lines are there that had to be read first; not after `accepted_ps` if there are none.
    pub loaded_ps: u64,
    /// Whether all of it is in the persistent domain then.
    pub is_durable: bool,
}

/// The persistent memory of one socket.
///
/// Guarantees: a function of the profile and the calls; eviction draws from a fixed seed. Cost: logarithmic in the
/// cached lines for each 64 bytes.
///
/// ```
/// use farside_sim::fabric::{NvmAccess, NvmSocket, NvmWriter, OPTANE_NVM};
///
/// let mut socket = NvmSocket::new(OPTANE_NVM);
/// for number in 0..1_000 {
///     let access = NvmAccess { address: number * 256, bytes: 256, is_across: false };
///     socket.write(0, &access, NvmWriter::NonTemporal);
/// }
/// assert_eq!(socket.counters().write_amplification(), 1.0);
/// ```
#[derive(Clone, Debug)]
pub struct NvmSocket {
    profile: NvmProfile,
    dimms: Vec<Dimm>,
    adapter_lines: DirtyLines,
    stored_lines: DirtyLines,
    interconnect: Resource,
    random: Random,
    /// Bytes that regions have taken.
    taken: u64,
}

impl NvmSocket {
    /// Creates idle memory with empty caches and buffers.
    pub fn new(profile: NvmProfile) -> Self {
        Self {
            profile,
            dimms: vec![Dimm::default(); profile.dimms.max(1) as usize],
            adapter_lines: DirtyLines::default(),
            stored_lines: DirtyLines::default(),
            interconnect: Resource::default(),
            random: Random::new(0x6e76_6d00),
            taken: 0,
        }
    }

    /// Returns its profile.
    pub const fn profile(&self) -> &NvmProfile {
        &self.profile
    }

    /// Takes memory for a region, which begins at the first DIMM. Returns its address.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let profile = &self.profile;
        let round = u64::from(profile.dimms.max(1)) * u64::from(profile.interleave_bytes.max(64));
        let at = self.taken;
        self.taken = at.saturating_add(bytes).next_multiple_of(round);
        at
    }

    /// Returns the counters of all DIMMs.
    pub fn counters(&self) -> NvmCounters {
        let mut all = NvmCounters::default();
        self.dimms.iter().for_each(|dimm| all.add(&dimm.counters));
        all
    }

    /// Returns the written lines of 64 bytes that a loss of power takes: those in caches that are not persistent.
    pub fn volatile_lines(&self) -> usize {
        if self.profile.caches_persist {
            return 0;
        }
        self.adapter_lines.len() + self.stored_lines.len()
    }

    /// Writes bytes from `at_ps` on, line by line in rising order.
    pub fn write(&mut self, at_ps: u64, access: &NvmAccess, writer: NvmWriter) -> NvmWriteTimes {
        let mut times = NvmWriteTimes { accepted_ps: at_ps, loaded_ps: at_ps, is_durable: true };
        let cached = match writer {
            NvmWriter::Adapter => self.profile.ddio,
            NvmWriter::Store => true,
            NvmWriter::NonTemporal => false,
        };
        let others = self.others(at_ps, access, writer);
        for line in access.lines() {
            // A plain store reads its line in any case.
            let reads = writer == NvmWriter::Store || !access.covers(line);
            let is_cached = self.adapter_lines.contains(line) || self.stored_lines.contains(line);
            if reads && !is_cached {
                let loaded_ps = self.read_line(times.accepted_ps, line, access.is_across);
                times.loaded_ps = times.loaded_ps.max(loaded_ps);
            }
            times.accepted_ps = if cached {
                self.write_cached(times.accepted_ps, line, access.is_across, writer)
            } else {
                self.adapter_lines.remove(line);
                self.stored_lines.remove(line);
                self.write_line(times.accepted_ps, line, access.is_across, others)
            };
        }
        times.is_durable = !cached || self.profile.caches_persist;
        if writer == NvmWriter::NonTemporal {
            self.dimm(access.address / NVM_LINE_BYTES).add_writer(times.accepted_ps);
        }
        times
    }

    /// Reads bytes from `at_ps` on. Returns when the last line leaves its DIMM or cache.
    pub fn read(&mut self, at_ps: u64, access: &NvmAccess) -> u64 {
        let mut ready_ps = at_ps;
        for line in access.lines() {
            if !self.adapter_lines.contains(line) && !self.stored_lines.contains(line) {
                ready_ps = ready_ps.max(self.read_line(at_ps, line, access.is_across));
            }
        }
        ready_ps
    }

    /// Brings the cached lines of these bytes to the persistent domain, as FLUSH and `clwb` do. Returns when they are
    /// there.
    pub fn flush(&mut self, at_ps: u64, access: &NvmAccess) -> u64 {
        let mut done_ps = at_ps;
        if self.profile.caches_persist {
            return done_ps;
        }
        let range = access.lines();
        let mut lines = self.adapter_lines.within(&range);
        lines.extend(self.stored_lines.within(&range));
        lines.sort_unstable();
        lines.dedup();
        for line in lines {
            self.adapter_lines.remove(line);
            self.stored_lines.remove(line);
            done_ps = self.write_line(done_ps, line, access.is_across, 0);
        }
        done_ps
    }

    /// Returns how many other threads write to the DIMM of these bytes.
    fn others(&mut self, at_ps: u64, access: &NvmAccess, writer: NvmWriter) -> u64 {
        match writer {
            NvmWriter::NonTemporal => self.dimm(access.address / NVM_LINE_BYTES).writers(at_ps),
            NvmWriter::Adapter | NvmWriter::Store => 0,
        }
    }

    /// Puts a line into the cache of its writer. Returns when an evicted line has made room.
    fn write_cached(&mut self, at_ps: u64, line: u64, is_across: bool, writer: NvmWriter) -> u64 {
        let (lines, lines_max) = match writer {
            NvmWriter::Adapter => (&mut self.adapter_lines, self.profile.adapter_cache_lines),
            NvmWriter::Store | NvmWriter::NonTemporal => {
                (&mut self.stored_lines, self.profile.store_cache_lines)
            }
        };
        match lines.insert(line, lines_max, &mut self.random) {
            Some(evicted) => self.write_line(at_ps, evicted, is_across, 0),
            None => at_ps,
        }
    }

    fn write_line(&mut self, at_ps: u64, line: u64, is_across: bool, others: u64) -> u64 {
        let profile = self.profile;
        let mut at_ps = at_ps;
        if is_across {
            at_ps = self.interconnect.take_ps(at_ps, profile.crossing_write_ps).1;
        }
        self.dimm(line).write(&profile, at_ps, line, others)
    }

    fn read_line(&mut self, at_ps: u64, line: u64, is_across: bool) -> u64 {
        let profile = self.profile;
        let mut at_ps = at_ps;
        if is_across {
            at_ps = self.interconnect.take_ps(at_ps, profile.crossing_read_ps).1;
        }
        self.dimm(line).read(&profile, at_ps, line)
    }

    fn dimm(&mut self, line: u64) -> &mut Dimm {
        let stripe = line * NVM_LINE_BYTES / u64::from(self.profile.interleave_bytes.max(64));
        let count = self.dimms.len();
        &mut self.dimms[(stripe % count as u64) as usize]
    }
}
