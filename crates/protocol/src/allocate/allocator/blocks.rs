//! The blocks that are allocated, for a home that saves its memory.

use super::{Allocator, Block, ChunkState, SEGMENT_BYTES, bits, segment_lines};
use alloc::vec::Vec;
use farside_base::LineSize;

impl Allocator {
    /// Returns the blocks that start in a segment, by ascending offset, and their line size.
    pub fn blocks_in(&self, segment: usize) -> Vec<(Block, LineSize)> {
        let start = segment as u64 * SEGMENT_BYTES;
        match self.segments.get(segment).map(|segment| &segment.state) {
            Some(ChunkState::Serves(size)) => self.small_blocks(segment, *size),
            Some(ChunkState::Covered(size, true)) => {
                let block = Block { offset: start, lines: self.large_block_lines(segment, *size) };
                Vec::from([(block, *size)])
            }
            Some(ChunkState::Free | ChunkState::Covered(_, false)) | None => Vec::new(),
        }
    }

    fn small_blocks(&self, segment: usize, size: LineSize) -> Vec<(Block, LineSize)> {
        let (first, last) = self.range(segment, size);
        let (used, starts) = (self.segments[segment].used_map(), self.segments[segment].starts());
        let mut blocks: Vec<(Block, LineSize)> = Vec::new();
        let mut is_within = false; // of a block that starts in this segment
        for line in first..last {
            let starts_here = bits::get(starts, line);
            is_within = bits::get(used, line) && (is_within || starts_here);
            if starts_here && is_within {
                let offset = segment as u64 * SEGMENT_BYTES + ((line as u64) << size.log2());
                blocks.push((Block { offset, lines: 1 }, size));
            } else if is_within && let Some((block, _)) = blocks.last_mut() {
                block.lines += 1;
            }
        }
        blocks
    }

    /// Returns the lines of an allocation that covers whole segments from this one on, and perhaps the first lines of one
    /// more.
    fn large_block_lines(&self, first: usize, size: LineSize) -> u64 {
        let is_covered = |at: &usize| {
            let state = self.segments.get(*at).map(|segment| segment.state);
            *at == first || state == Some(ChunkState::Covered(size, false))
        };
        let covered = (first..).take_while(is_covered).count();
        let rest = match self.segments.get(first + covered) {
            Some(next) if next.state == ChunkState::Serves(size) => {
                let (from, last) = self.range(first + covered, size);
                let is_rest = |line: &usize| {
                    bits::get(next.used_map(), *line) && !bits::get(next.starts(), *line)
                };
                (from..last).take_while(is_rest).count()
            }
            Some(_) | None => 0,
        };
        (covered * segment_lines(size) + rest) as u64
    }
}
