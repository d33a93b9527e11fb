//! One DIMM: write queue, controller, combining buffer and media.

use super::profile::{NvmCounters, NvmProfile};
use crate::fabric::resource::Resource;
use std::collections::{BTreeMap, VecDeque};

/// A media line in the combining buffer.
#[derive(Clone, Copy, Debug)]
struct BufferedLine {
    /// The parts that are written and not on the media.
    dirty: u32,
    /// Whether the rest of it is here too.
    is_read: bool,
    /// Age of its last use.
    used: u64,
}

/// The combining buffer of a DIMM, which replaces the least recently used line.
#[derive(Clone, Default, Debug)]
struct CombiningBuffer {
    lines: BTreeMap<u64, BufferedLine>,
    ages: BTreeMap<u64, u64>,
    uses: u64,
}

impl CombiningBuffer {
    /// Uses a line and returns it, if it is here.
    fn touch(&mut self, line: u64) -> Option<&mut BufferedLine> {
        let found = self.lines.get_mut(&line)?;
        self.uses += 1;
        self.ages.remove(&found.used);
        found.used = self.uses;
        self.ages.insert(self.uses, line);
        Some(found)
    }

    fn insert(&mut self, line: u64, dirty: u32, is_read: bool) {
        self.uses += 1;
        self.lines.insert(line, BufferedLine { dirty, is_read, used: self.uses });
        self.ages.insert(self.uses, line);
    }

    /// Removes the least recently used line if the buffer is full.
    fn replace(&mut self, lines_max: u32) -> Option<BufferedLine> {
        if self.lines.len() < lines_max as usize {
            return None;
        }
        let (_, oldest) = self.ages.pop_first()?;
        self.lines.remove(&oldest)
    }
}

/// One DIMM. Times are in picoseconds.
#[derive(Clone, Default, Debug)]
pub(super) struct Dimm {
    controller: Resource,
    media_reads: Resource,
    media_writes: Resource,
    buffer: CombiningBuffer,
    /// When the queued writes leave the queue.
    queue: VecDeque<u64>,
    /// Whether the last request was a read.
    is_reading: bool,
    /// Until when threads wait for this DIMM.
    writers: Vec<u64>,
    pub(super) counters: NvmCounters,
}

impl Dimm {
    /// Returns how many threads wait for this DIMM.
    pub(super) fn writers(&mut self, at_ps: u64) -> u64 {
        self.writers.retain(|until| *until > at_ps);
        self.writers.len() as u64
    }

    /// Counts a thread that waits for this DIMM.
    pub(super) fn add_writer(&mut self, until_ps: u64) {
        self.writers.push(until_ps);
    }

    /// Writes 64 bytes; `others` threads write at the same time. Returns when the queue has them.
    pub(super) fn write(
        &mut self,
        profile: &NvmProfile,
        at_ps: u64,
        line: u64,
        others: u64,
    ) -> u64 {
        let accepted_ps = self.admit(profile, at_ps);
        self.counters.write_requests += 1;
        let over = others.saturating_sub(u64::from(profile.writers_free).saturating_sub(1));
        let mut busy_ps = profile.request_write_ps;
        if over > 0 {
            let whole_ps = busy_ps.max(profile.media_write_ps / profile.parts());
            busy_ps = whole_ps * (1_000 + profile.writer_per_mille * over) / 1_000;
        }
        if std::mem::replace(&mut self.is_reading, false) {
            busy_ps += profile.switch_ps;
        }
        let (_, served_ps) = self.controller.take_ps(accepted_ps, busy_ps);
        let buffered_ps = self.combine(profile, served_ps, line);
        self.controller.hold_ps(buffered_ps);
        self.queue.push_back(buffered_ps);
        accepted_ps
    }

    /// Reads 64 bytes. Returns when they leave the DIMM.
    pub(super) fn read(&mut self, profile: &NvmProfile, at_ps: u64, line: u64) -> u64 {
        self.counters.read_requests += 1;
        let mut busy_ps = profile.request_read_ps;
        if !std::mem::replace(&mut self.is_reading, true) {
            busy_ps += profile.switch_ps;
        }
        let (_, served_ps) = self.controller.take_ps(at_ps, busy_ps);
        let media_line = line / profile.parts();
        if self.buffer.touch(media_line).is_some_and(|found| found.is_read) {
            return served_ps;
        }
        if let Some(found) = self.buffer.touch(media_line) {
            found.is_read = true;
        } else {
            let free_ps = self.make_room(profile, served_ps);
            self.controller.hold_ps(free_ps);
            self.buffer.insert(media_line, 0, true);
        }
        self.fetch(profile, served_ps)
    }

    /// Returns when the queue takes a write.
    fn admit(&mut self, profile: &NvmProfile, at_ps: u64) -> u64 {
        while self.queue.front().is_some_and(|leaves| *leaves <= at_ps) {
            self.queue.pop_front();
        }
        if self.queue.len() < profile.queue_lines.max(1) as usize {
            return at_ps;
        }
        self.queue.pop_front().map_or(at_ps, |leaves| leaves.max(at_ps))
    }

    /// Puts a part of a media line into the buffer. Returns when it is there.
    fn combine(&mut self, profile: &NvmProfile, at_ps: u64, line: u64) -> u64 {
        let (media_line, part) = (line / profile.parts(), 1_u32 << (line % profile.parts()));
        let whole = u32::MAX >> (32 - profile.parts());
        let mut at_ps = at_ps;
        if self.buffer.touch(media_line).is_none() {
            at_ps = self.make_room(profile, at_ps);
            self.buffer.insert(media_line, 0, false);
        }
        let Some(found) = self.buffer.touch(media_line) else {
            return at_ps;
        };
        found.dirty |= part;
        if found.dirty == whole {
            (found.dirty, found.is_read) = (0, true);
            at_ps = self.store(profile, at_ps);
        }
        at_ps
    }

    /// Replaces a line of a full buffer. Returns when there is room.
    fn make_room(&mut self, profile: &NvmProfile, at_ps: u64) -> u64 {
        let replaced = self.buffer.replace(profile.buffer_lines.max(1));
        let Some(dirty) = replaced.filter(|line| line.dirty != 0) else {
            return at_ps;
        };
        let read_ps = if dirty.is_read { at_ps } else { self.fetch(profile, at_ps) };
        self.store(profile, read_ps)
    }

    /// Reads a media line. Returns when it is here.
    fn fetch(&mut self, profile: &NvmProfile, at_ps: u64) -> u64 {
        self.counters.media_read_bytes += u64::from(profile.media_bytes);
        self.media_reads.take_ps(at_ps, profile.media_read_ps).1
    }

    /// Writes a media line. Returns when the media takes it.
    fn store(&mut self, profile: &NvmProfile, at_ps: u64) -> u64 {
        self.counters.media_write_bytes += u64::from(profile.media_bytes);
        self.media_writes.take_ps(at_ps, profile.media_write_ps).0
    }
}
