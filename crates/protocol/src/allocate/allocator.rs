//! The allocator of one home.
//!
//! Memory is divided into segments of 1 MiB; a segment serves one line size at a time and may change it when it is
//! wholly free. An allocation takes whole consecutive lines, so no two allocations share a line.
//!
//! - **Up to a segment** an allocation is within one segment of its line size. Such segments are kept in bins by
//!   their longest free run: exact up to 15 lines, then four bins per power of two. The lowest bin that certainly
//!   suffices is used, so full segments fill up before others. Each 64 lines have the longest free run that starts
//!   among them, so the first fitting run is found by checking one number per 64 lines.
//! - **Beyond a segment** it starts at a segment border and takes the first consecutive wholly free segments that
//!   suffice; the rest of the last one serves lines of the same size.
//!
//! *Memory.* Two bits and a quarter per line in segments that serve lines, nothing per line elsewhere, and
//! [`Allocator::METADATA_BYTES`] per segment: less than 0.5% of the home for lines of 64 B.
//!
//! *Fragmentation.* A line is unavailable only while an allocation covers it. An allocation of `n` lines fails only
//! if no segment of its line size has `n` consecutive free lines and no segment (for large ones: no such row of
//! segments) is wholly free.

mod blocks;

use super::bits;
use super::canary::{AllocateMutant, mutant};
use alloc::{boxed::Box, vec, vec::Vec};
use core::mem;
use farside_base::{ErrorCode, GlobalAddress, Limits, LineSize, Planted};

/// Bytes of a segment.
pub const SEGMENT_BYTES: u64 = 1 << 20;

/// Bytes at the start of a home that are never allocated, so that an address with offset 0 is null, in every line
/// size.
pub const RESERVED_BYTES: u64 = LineSize::MAX.bytes() as u64;

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(RESERVED_BYTES));

/// Runs up to this many lines have a bin each.
const EXACT_BINS: usize = 15;

/// One bin for each exact length, four for each power of two above; the last one is for a whole segment of the
/// smallest lines.
const BINS: usize = bin_within(SEGMENT_BYTES as usize >> LineSize::MIN.log2()) + 1;
const _: () = assert!(BINS <= u64::BITS as usize, "a word tells which bins are filled");

const NONE: u32 = u32::MAX;

/// The lines of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Block {
    /// First byte within the home's memory; a multiple of the line size, never 0.
    pub offset: u64,
    /// The number of lines.
    pub lines: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ChunkState {
    /// Wholly free.
    Free,
    /// Serves lines of this size.
    Serves(LineSize),
    /// Wholly inside one allocation of this line size; whether the allocation starts here.
    Covered(LineSize, bool),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Segment {
    state: ChunkState,
    /// Lines in use, without reserved ones.
    used: u32,
    /// The longest free run, in lines.
    run: u32,
    /// Neighbours in the bin of `run`; `NONE` in no bin.
    previous: u32,
    next: u32,
    /// While the segment serves lines: bitmaps of the lines in use (or nonexistent), then of the first lines of
    /// allocations (or nonexistent). Empty otherwise.
    maps: Box<[u64]>,
    /// For each word of the first map, the longest free run that starts in it. Empty otherwise.
    runs: Box<[u16]>,
}

/// The segments of a line size, by `Segment::run`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Bins {
    heads: [u32; BINS],
    /// Bit `i` is set if bin `i` has a segment.
    filled: u64,
}

/// The memory of one home: which lines are free.
///
/// *Guarantees.* Blocks never overlap and never contain offset 0; only an allocated block can be freed, once. *Cost*:
/// up to a segment, a handful of steps and a search of at most 256 numbers; beyond, a search of one bit per segment.
/// Heap memory is allocated only when a segment changes its use.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Allocator {
    segments: Vec<Segment>,
    /// A set bit for each segment that is not wholly free, or smaller than a full one.
    taken: Vec<u64>,
    /// Words of `taken` before this one are full.
    taken_open_word: usize,
    bins: [Bins; LineSize::CLASSES],
    /// The size of the home in bytes; a multiple of 64 KiB.
    bytes: u64,
    free_bytes: u64,
    allocation_bytes_max: u64,
    mutant: Planted<AllocateMutant>,
}

impl Allocator {
    /// Bytes of metadata per segment, apart from the two bits per line.
    pub const METADATA_BYTES: usize = mem::size_of::<Segment>();

    /// Creates an allocator of a home of `bytes`, rounded down to 64 KiB, with the default limit of one allocation.
    pub fn new(bytes: u64) -> Self {
        Self::with_limit(bytes, Limits::DEFAULT.allocation_bytes_max)
    }

    /// Creates an allocator with its own `Limits::allocation_bytes_max`. Bytes beyond the range of an address are
    /// left out.
    pub fn with_limit(bytes: u64, allocation_bytes_max: u64) -> Self {
        let bytes = bytes.min(1 << GlobalAddress::OFFSET_BITS);
        let bytes = bytes - bytes % RESERVED_BYTES;
        let count = bytes.div_ceil(SEGMENT_BYTES) as usize;
        let mut taken = vec![u64::MAX; count.div_ceil(64)];
        // The first segment has reserved lines; the last one may be shorter. Neither can be part of a large
        // allocation, so both stay out of the pool.
        let whole = (bytes / SEGMENT_BYTES) as usize;
        if whole > 1 {
            bits::fill(&mut taken, 1, whole, false);
        }
        Self {
            segments: (0..count).map(|_| Segment::free()).collect(),
            taken,
            taken_open_word: 0,
            bins: core::array::from_fn(|_| Bins { heads: [NONE; BINS], filled: 0 }),
            bytes,
            free_bytes: bytes.saturating_sub(RESERVED_BYTES),
            allocation_bytes_max,
            mutant: Planted::NONE,
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: AllocateMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// The number of free bytes, in whole lines, not necessarily contiguous.
    pub fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// Bytes of all allocations, in whole lines.
    pub fn used_bytes(&self) -> u64 {
        self.capacity_bytes() - self.free_bytes
    }

    /// The number of bytes that can be allocated when nothing is.
    pub fn capacity_bytes(&self) -> u64 {
        self.bytes.saturating_sub(RESERVED_BYTES)
    }

    /// The number of segments of the home.
    pub fn segments(&self) -> usize {
        self.segments.len()
    }

    /// The line size that this segment serves, if any.
    pub fn segment_line_size(&self, segment: usize) -> Option<LineSize> {
        match self.segments.get(segment)?.state {
            ChunkState::Free => None,
            ChunkState::Serves(size) | ChunkState::Covered(size, _) => Some(size),
        }
    }

    /// Allocates consecutive whole lines for `bytes`.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge` above the limit of one allocation; `OutOfMemory` if this home has no contiguous free
    /// block of that size: ask another.
    pub fn allocate(&mut self, bytes: u64, line_size: LineSize) -> Result<Block, ErrorCode> {
        if bytes == 0 {
            return Err(ErrorCode::ZeroSize);
        }
        if bytes > self.allocation_bytes_max {
            return Err(ErrorCode::TooLarge);
        }
        let lines = bytes.div_ceil(line_size.bytes() as u64);
        if lines > self.free_bytes >> line_size.log2() {
            return Err(ErrorCode::OutOfMemory);
        }
        let offset = if lines <= segment_lines(line_size) as u64 {
            self.allocate_small(lines as usize, line_size)
        } else {
            self.allocate_large(lines, line_size)
        };
        let offset = offset.ok_or(ErrorCode::OutOfMemory)?;
        self.free_bytes -= lines << line_size.log2();
        Ok(Block { offset, lines })
    }

    /// Allocates a given block, which an earlier allocator of this home has allocated.
    ///
    /// # Errors
    /// `NotAnAllocation` if no allocator can have allocated it beside the present blocks; nothing was changed.
    pub fn restore(&mut self, block: Block, line_size: LineSize) -> Result<(), ErrorCode> {
        let Block { offset, lines } = block;
        let in_line = offset & (line_size.bytes() as u64 - 1);
        let bytes = lines.checked_mul(line_size.bytes() as u64);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        if in_line != 0 || lines == 0 || end.is_none_or(|end| end > self.bytes) {
            return Err(ErrorCode::NotAnAllocation);
        }
        let segment = (offset / SEGMENT_BYTES) as usize;
        if lines > segment_lines(line_size) as u64 {
            self.restore_large(segment, offset, lines, line_size)?;
        } else {
            let line = ((offset % SEGMENT_BYTES) >> line_size.log2()) as usize;
            self.restore_small(segment, line, lines as usize, line_size)?;
        }
        self.free_bytes -= lines << line_size.log2();
        Ok(())
    }

    fn restore_small(
        &mut self,
        at: usize,
        line: usize,
        lines: usize,
        line_size: LineSize,
    ) -> Result<(), ErrorCode> {
        let (first, last) = self.range(at, line_size);
        if line < first || line + lines > last {
            return Err(ErrorCode::NotAnAllocation);
        }
        match self.segments[at].state {
            ChunkState::Free => self.open_segment(at, line_size),
            ChunkState::Serves(size)
                if size == line_size
                    && !bits::any(self.segments[at].used_map(), line, line + lines) => {}
            ChunkState::Serves(_) | ChunkState::Covered(..) => {
                return Err(ErrorCode::NotAnAllocation);
            }
        }
        self.mark(at, line, lines, true, line_size);
        Ok(())
    }

    fn restore_large(
        &mut self,
        first: usize,
        offset: u64,
        lines: u64,
        line_size: LineSize,
    ) -> Result<(), ErrorCode> {
        let per_segment = segment_lines(line_size) as u64;
        let end = first + (lines / per_segment) as usize;
        let rest = (lines % per_segment) as usize;
        let free = |segment: &Segment| segment.state == ChunkState::Free;
        let fits = offset.is_multiple_of(SEGMENT_BYTES)
            && (first..end).all(|at| self.is_whole(at) && free(&self.segments[at]));
        let last_fits = rest == 0
            || self.is_whole(end)
                && match self.segments[end].state {
                    ChunkState::Free => true,
                    ChunkState::Serves(size) => {
                        size == line_size && !bits::any(self.segments[end].used_map(), 0, rest)
                    }
                    ChunkState::Covered(..) => false,
                };
        if !fits || !last_fits {
            return Err(ErrorCode::NotAnAllocation);
        }
        for at in first..end {
            self.take_from_pool(at);
            self.segments[at].state = ChunkState::Covered(line_size, at == first);
        }
        if rest > 0 {
            if self.segments[end].state == ChunkState::Free {
                self.open_segment(end, line_size);
            }
            self.mark(end, 0, rest, false, line_size);
        }
        Ok(())
    }

    /// Frees a block: exactly one returned by `allocate`, once.
    ///
    /// # Errors
    /// `NotAnAllocation` if it is not; nothing was changed.
    pub fn free(&mut self, offset: u64, lines: u64, line_size: LineSize) -> Result<(), ErrorCode> {
        let in_line = offset & (line_size.bytes() as u64 - 1);
        let bytes = lines.checked_mul(line_size.bytes() as u64);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        if in_line != 0 || lines == 0 || end.is_none_or(|end| end > self.bytes) {
            return Err(ErrorCode::NotAnAllocation);
        }
        let segment = (offset / SEGMENT_BYTES) as usize;
        match self.segments[segment].state {
            ChunkState::Serves(size) if size == line_size => {
                let line = (offset % SEGMENT_BYTES) >> line_size.log2();
                self.free_small(segment, line as usize, lines, line_size)?;
            }
            ChunkState::Covered(size, true)
                if size == line_size && offset.is_multiple_of(SEGMENT_BYTES) =>
            {
                self.free_large(segment, lines, line_size)?;
            }
            ChunkState::Free | ChunkState::Serves(_) | ChunkState::Covered(..) => {
                return Err(ErrorCode::NotAnAllocation);
            }
        }
        self.free_bytes += lines << line_size.log2();
        Ok(())
    }

    /// Whether an allocation of this line size starts at `offset`.
    pub fn is_start(&self, offset: u64, line_size: LineSize) -> bool {
        let line = (offset % SEGMENT_BYTES) >> line_size.log2();
        let segment = (offset / SEGMENT_BYTES) as usize;
        if offset & (line_size.bytes() as u64 - 1) != 0 || offset >= self.bytes {
            return false;
        }
        match self.segments[segment].state {
            ChunkState::Serves(size) => {
                let (first, last) = self.range(segment, line_size);
                let line = line as usize;
                size == line_size
                    && (first..last).contains(&line)
                    && bits::get(self.segments[segment].starts(), line)
            }
            ChunkState::Covered(size, start) => size == line_size && start && line == 0,
            ChunkState::Free => false,
        }
    }

    /// The lines of a segment that exist and are not reserved.
    fn range(&self, segment: usize, line_size: LineSize) -> (usize, usize) {
        let first = match segment {
            0 if !mutant!(self, ZeroHandedOut) => RESERVED_BYTES,
            _ => 0,
        };
        let last = (self.bytes - segment as u64 * SEGMENT_BYTES).min(SEGMENT_BYTES);
        ((first >> line_size.log2()) as usize, (last >> line_size.log2()) as usize)
    }

    /// From the lowest bin that certainly suffices; otherwise from a run that fits among shorter ones of its bin;
    /// otherwise from a new segment.
    fn allocate_small(&mut self, lines: usize, line_size: LineSize) -> Option<u64> {
        let at = self
            .segment_above(lines, line_size)
            .or_else(|| self.segment_near(lines, line_size))
            .or_else(|| self.open_fresh(lines, line_size))?;
        let line = self.segments[at].find_run(lines)?;
        self.mark(at, line, lines, true, line_size);
        Some(at as u64 * SEGMENT_BYTES + ((line as u64) << line_size.log2()))
    }

    /// A segment of the lowest bin in which every run suffices.
    fn segment_above(&self, lines: usize, line_size: LineSize) -> Option<usize> {
        let bins = &self.bins[line_size.class() as usize];
        let lowest = bin_above(lines);
        let filled = bins.filled.checked_shr(lowest as u32)?;
        let head = bins.heads.get(lowest + filled.trailing_zeros() as usize)?;
        Some(*head as usize)
    }

    /// A segment of the bin below, with a run of `lines` among shorter ones.
    fn segment_near(&self, lines: usize, line_size: LineSize) -> Option<usize> {
        let bin = bin_within(lines);
        let mut at = self.bins[line_size.class() as usize].heads[bin];
        while let Some(segment) = self.segments.get(at as usize) {
            if segment.run as usize >= lines {
                return Some(at as usize);
            }
            at = segment.next;
        }
        None
    }

    fn open_fresh(&mut self, lines: usize, line_size: LineSize) -> Option<usize> {
        let at = self.fresh_segment(lines, line_size)?;
        self.open_segment(at, line_size);
        Some(at)
    }

    /// A wholly free segment; preferably the first or last of the home, since large allocations may need the others.
    fn fresh_segment(&mut self, lines: usize, line_size: LineSize) -> Option<usize> {
        let odd = [0, self.segments.len().checked_sub(1)?];
        let fits = |at: &usize| {
            let (first, last) = self.range(*at, line_size);
            self.segments[*at].state == ChunkState::Free
                && !self.is_whole(*at)
                && last - first >= lines
        };
        if let Some(at) = odd.into_iter().find(fits) {
            return Some(at);
        }
        self.taken_open_word = bits::first_open_word(&self.taken, self.taken_open_word);
        bits::find_clear(&self.taken, self.taken_open_word, 1).ok()
    }

    /// Whether a segment can be part of a large allocation.
    fn is_whole(&self, segment: usize) -> bool {
        segment > 0 && (segment as u64 + 1) * SEGMENT_BYTES <= self.bytes
    }

    fn take_from_pool(&mut self, segment: usize) {
        bits::fill(&mut self.taken, segment, segment + 1, true);
    }

    fn return_to_pool(&mut self, segment: usize) {
        self.segments[segment] = Segment::free();
        if self.is_whole(segment) {
            bits::fill(&mut self.taken, segment, segment + 1, false);
            self.taken_open_word = self.taken_open_word.min(segment / 64);
        }
    }

    /// Makes a free segment serve lines of a size.
    fn open_segment(&mut self, at: usize, line_size: LineSize) {
        let (first, last) = self.range(at, line_size);
        let words = segment_lines(line_size).div_ceil(64);
        let mut maps = vec![0; 2 * words].into_boxed_slice();
        for map in maps.chunks_exact_mut(words) {
            bits::fill(map, 0, first, true);
            bits::fill(map, last, words * 64, true);
        }
        self.take_from_pool(at);
        self.segments[at] = Segment {
            state: ChunkState::Serves(line_size),
            maps,
            runs: vec![0; words].into_boxed_slice(),
            ..Segment::free()
        };
        self.segments[at].measure(0, words - 1);
        self.bin_again(at, line_size);
    }

    /// Marks lines as in use; `start` says whether the first one starts an allocation.
    fn mark(&mut self, at: usize, line: usize, lines: usize, start: bool, line_size: LineSize) {
        let segment = &mut self.segments[at];
        let (used, starts) = segment.maps_mut();
        bits::fill(used, line, line + lines, true);
        bits::fill(starts, line, line + usize::from(start), true);
        segment.used += lines as u32;
        segment.measure(line / 64, (line + lines) / 64);
        self.bin_again(at, line_size);
    }

    fn free_small(
        &mut self,
        at: usize,
        line: usize,
        lines: u64,
        line_size: LineSize,
    ) -> Result<(), ErrorCode> {
        let (first, last) = self.range(at, line_size);
        let end = line as u64 + lines;
        if line < first || end > last as u64 {
            return Err(ErrorCode::NotAnAllocation);
        }
        let end = end as usize;
        let segment = &self.segments[at];
        let exact = bits::get(segment.starts(), line)
            && !bits::any(segment.starts(), line + 1, end)
            && bits::all(segment.used_map(), line, end)
            && !segment.goes_on_at(end);
        if !exact {
            return Err(ErrorCode::NotAnAllocation);
        }
        self.unmark(at, line, end, line_size);
        Ok(())
    }

    /// Marks lines as free; a segment without lines in use returns to the pool.
    fn unmark(&mut self, at: usize, line: usize, end: usize, line_size: LineSize) {
        let segment = &mut self.segments[at];
        let (used, starts) = segment.maps_mut();
        bits::fill(used, line, end, false);
        bits::fill(starts, line, line + 1, false);
        segment.used -= (end - line) as u32;
        if segment.used == 0 && !mutant!(self, SegmentKept) {
            self.unbin(at, line_size);
            return self.return_to_pool(at);
        }
        if mutant!(self, RunForgotten) {
            return;
        }
        let run_word = bits::run_start(segment.used_map(), line) / 64;
        segment.measure(run_word, run_word);
        segment.measure(line / 64, end / 64);
        self.bin_again(at, line_size);
    }

    fn allocate_large(&mut self, lines: u64, line_size: LineSize) -> Option<u64> {
        let per_segment = segment_lines(line_size) as u64;
        let covered = (lines / per_segment) as usize;
        let rest = (lines % per_segment) as usize;
        let count = covered + usize::from(rest > 0);
        self.taken_open_word = bits::first_open_word(&self.taken, self.taken_open_word);
        let first = bits::find_clear(&self.taken, self.taken_open_word, count).ok()?;
        for at in first..first + covered {
            self.take_from_pool(at);
            self.segments[at].state = ChunkState::Covered(line_size, at == first);
        }
        if rest > 0 {
            self.open_segment(first + covered, line_size);
            self.mark(first + covered, 0, rest, false, line_size);
        }
        Some(first as u64 * SEGMENT_BYTES)
    }

    fn free_large(
        &mut self,
        first: usize,
        lines: u64,
        line_size: LineSize,
    ) -> Result<(), ErrorCode> {
        let per_segment = segment_lines(line_size) as u64;
        let end = first + (lines / per_segment) as usize;
        let rest = (lines % per_segment) as usize;
        let inside = |segment: &Segment| segment.state == ChunkState::Covered(line_size, false);
        let covered = first < end && self.segments[first + 1..end].iter().all(inside);
        if !covered || !self.ends_at(end, rest, line_size) {
            return Err(ErrorCode::NotAnAllocation);
        }
        for at in first..end {
            self.return_to_pool(at);
        }
        if rest > 0 {
            self.unmark(end, 0, rest, line_size);
        }
        Ok(())
    }

    /// Whether a large allocation that covers the segments before `at` ends `rest` lines into it.
    fn ends_at(&self, at: usize, rest: usize, line_size: LineSize) -> bool {
        let Some(segment) = self.segments.get(at) else {
            return rest == 0;
        };
        match segment.state {
            ChunkState::Free => rest == 0,
            ChunkState::Covered(_, start) => rest == 0 && start,
            ChunkState::Serves(size) if rest == 0 => size != line_size || !segment.goes_on_at(0),
            ChunkState::Serves(size) => {
                size == line_size
                    && bits::all(segment.used_map(), 0, rest)
                    && !bits::any(segment.starts(), 0, rest)
                    && (!segment.goes_on_at(rest) || mutant!(self, EndUnchecked))
            }
        }
    }

    /// Moves a segment to the bin of its longest run, after a change.
    fn bin_again(&mut self, at: usize, line_size: LineSize) {
        let segment = &mut self.segments[at];
        let run = u32::from(segment.runs.iter().copied().max().unwrap_or(0));
        let before = mem::replace(&mut segment.run, run);
        if bin_of(before) != bin_of(run) {
            segment.run = before;
            self.unbin(at, line_size);
            self.segments[at].run = run;
            self.bin(at, line_size);
        }
    }

    fn bin(&mut self, at: usize, line_size: LineSize) {
        let Some(bin) = bin_of(self.segments[at].run) else {
            return;
        };
        let bins = &mut self.bins[line_size.class() as usize];
        let head = mem::replace(&mut bins.heads[bin], at as u32);
        bins.filled |= 1 << bin;
        self.segments[at].previous = NONE;
        self.segments[at].next = head;
        if let Some(next) = self.segments.get_mut(head as usize) {
            next.previous = at as u32;
        }
    }

    /// Removes a segment from its bin.
    fn unbin(&mut self, at: usize, line_size: LineSize) {
        let Some(bin) = bin_of(self.segments[at].run) else {
            return;
        };
        let Segment { previous, next, .. } = self.segments[at];
        if let Some(next) = self.segments.get_mut(next as usize) {
            next.previous = previous;
        }
        match self.segments.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => {
                let bins = &mut self.bins[line_size.class() as usize];
                bins.heads[bin] = next;
                bins.filled &= !(u64::from(next == NONE) << bin);
            }
        }
        (self.segments[at].previous, self.segments[at].next) = (NONE, NONE);
    }
}

impl Segment {
    fn free() -> Self {
        Self {
            state: ChunkState::Free,
            used: 0,
            run: 0,
            previous: NONE,
            next: NONE,
            maps: Box::default(),
            runs: Box::default(),
        }
    }

    fn used_map(&self) -> &[u64] {
        &self.maps[..self.maps.len() / 2]
    }

    fn starts(&self) -> &[u64] {
        &self.maps[self.maps.len() / 2..]
    }

    fn maps_mut(&mut self) -> (&mut [u64], &mut [u64]) {
        let middle = self.maps.len() / 2;
        self.maps.split_at_mut(middle)
    }

    /// Recomputes the runs that start in words `from..=to`.
    fn measure(&mut self, from: usize, to: usize) {
        let (used, _) = self.maps.split_at(self.maps.len() / 2);
        let last = to.min(used.len() - 1);
        for word in from..=last {
            let runs = bits::runs_from(used, word).map(|(_, length)| length);
            self.runs[word] = runs.max().unwrap_or(0) as u16;
        }
    }

    /// The first run of at least `lines` free lines.
    fn find_run(&self, lines: usize) -> Option<usize> {
        let word = self.runs.iter().position(|run| usize::from(*run) >= lines)?;
        let mut runs = bits::runs_from(self.used_map(), word);
        let (line, _) = runs.find(|(_, length)| *length >= lines)?;
        Some(line)
    }

    /// Whether the line at `at` belongs to the allocation of the line before it.
    fn goes_on_at(&self, at: usize) -> bool {
        at < self.used_map().len() * 64
            && bits::get(self.used_map(), at)
            && !bits::get(self.starts(), at)
    }
}

/// The bin of runs of this length, which may also hold shorter ones beyond [`EXACT_BINS`].
const fn bin_within(run: usize) -> usize {
    if run <= EXACT_BINS {
        return run;
    }
    let power = run.ilog2() as usize;
    let quarter = (run >> (power - 2)) & 3;
    let first = EXACT_BINS.ilog2() as usize + 1;
    EXACT_BINS + 1 + (power - first) * 4 + quarter
}

/// The lowest bin in which every run has at least this length.
const fn bin_above(run: usize) -> usize {
    let bin = bin_within(run);
    if run <= EXACT_BINS || bin_within(run - 1) != bin { bin } else { bin + 1 }
}

/// The bin of a segment, by its longest run; `None` without a free line.
const fn bin_of(run: u32) -> Option<usize> {
    match run {
        0 => None,
        _ => Some(bin_within(run as usize)),
    }
}

/// Lines of a whole segment.
fn segment_lines(line_size: LineSize) -> usize {
    SEGMENT_BYTES as usize >> line_size.log2()
}

#[cfg(test)]
mod tests;
