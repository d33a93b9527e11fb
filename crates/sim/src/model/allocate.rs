//! The allocator's model: a home of a few segments, and every order of a few allocations and frees.
//! Line sizes are large, so that a segment has few lines and every border is met.

use crate::explorer::{Model, Violation};
use farside_base::{ErrorCode, LineSize};
use farside_protocol::allocate::{Allocator, Block, RESERVED_BYTES, SEGMENT_BYTES};

/// An allocator and the blocks that it has allocated.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Home {
    allocator: Allocator,
    bytes: u64,
    /// The blocks, by ascending offset.
    blocks: Vec<(Block, LineSize)>,
    blocks_max: usize,
    /// The sizes that can be allocated: bytes and line size.
    sizes: Vec<(u64, LineSize)>,
    broken: Option<&'static str>,
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AllocateAction {
    /// Allocate the size at this index.
    Allocate(usize),
    /// Free the block at this index.
    Free(usize),
}

const fn end((block, size): &(Block, LineSize)) -> u64 {
    block.offset + block.lines * size.bytes() as u64
}

impl Home {
    /// Creates a home of `bytes` bytes with at most `blocks_max` blocks allocated at a time.
    pub fn new(
        bytes: u64,
        blocks_max: usize,
        sizes: &[(u64, LineSize)],
        change: impl Fn(Allocator) -> Allocator,
    ) -> Self {
        Self {
            allocator: change(Allocator::new(bytes)),
            bytes,
            blocks: Vec::new(),
            blocks_max,
            sizes: sizes.to_vec(),
            broken: None,
        }
    }

    fn allocate(&mut self, bytes: u64, line_size: LineSize) {
        match self.allocator.allocate(bytes, line_size) {
            Ok(block) => {
                let at = self.blocks.partition_point(|(other, _)| other.offset < block.offset);
                self.blocks.insert(at, (block, line_size));
            }
            Err(ErrorCode::OutOfMemory) if !self.could_fit(bytes, line_size) => {}
            Err(_) => self.broken = Some("refused although there is room"),
        }
    }

    fn free(&mut self, at: usize) {
        let (block, size) = self.blocks.remove(at);
        // Addresses next to valid ones must be refused first.
        let line = size.bytes() as u64;
        let wrong = [
            (block.offset + line, block.lines),
            (block.offset + line, block.lines - 1),
            (block.offset.saturating_sub(line), block.lines + 1),
            (block.offset, block.lines + 1),
            (block.offset, block.lines - 1),
        ];
        let others = &self.blocks;
        for (offset, lines) in wrong {
            let is_other = others.iter().any(|(other, other_size)| {
                (other.offset, other.lines, *other_size) == (offset, lines, size)
            });
            if !is_other && self.allocator.free(offset, lines, size).is_ok() {
                self.broken = self.broken.or(Some("freed what was not allocated"));
            }
        }
        if self.allocator.free(block.offset, block.lines, size).is_err() {
            self.broken = self.broken.or(Some("a block cannot be freed"));
        }
    }

    /// The documented rule, checked by a search of all segments.
    fn could_fit(&self, bytes: u64, line_size: LineSize) -> bool {
        let bytes = bytes.next_multiple_of(line_size.bytes() as u64);
        let mut row = 0;
        (0..self.allocator.segments()).any(|segment| {
            let served = self.allocator.segment_line_size(segment);
            let gap = match served {
                Some(served) if served != line_size => 0,
                Some(_) | None => self.longest_gap(segment as u64 * SEGMENT_BYTES),
            };
            let whole = served.is_none() && gap == SEGMENT_BYTES;
            row = if whole { row + gap } else { 0 };
            row >= bytes || (bytes <= SEGMENT_BYTES && gap >= bytes)
        })
    }

    fn longest_gap(&self, start: u64) -> u64 {
        let stop = (start + SEGMENT_BYTES).min(self.bytes);
        let (mut at, mut longest) = (start.max(RESERVED_BYTES), 0);
        for block in &self.blocks {
            longest = longest.max(block.0.offset.min(stop).saturating_sub(at));
            at = at.max(end(block));
        }
        longest.max(stop.saturating_sub(at))
    }
}

impl Model for Home {
    type Action = AllocateAction;

    fn enabled(&self) -> Vec<AllocateAction> {
        let frees = (0..self.blocks.len()).map(AllocateAction::Free);
        let room = self.blocks.len() < self.blocks_max;
        let asks = (0..self.sizes.len()).map(AllocateAction::Allocate);
        frees.chain(asks.filter(|_| room)).collect()
    }

    fn apply(&mut self, action: AllocateAction) {
        match action {
            AllocateAction::Allocate(at) => {
                let (bytes, line_size) = self.sizes[at];
                self.allocate(bytes, line_size);
            }
            AllocateAction::Free(at) => self.free(at),
        }
    }

    fn violation(&self) -> Option<Violation> {
        let overlap = self.blocks.windows(2).any(|pair| end(&pair[0]) > pair[1].0.offset);
        let served = |(block, size): &(Block, LineSize)| {
            let segment = (block.offset / SEGMENT_BYTES) as usize;
            self.allocator.segment_line_size(segment) == Some(*size)
        };
        let used: u64 =
            self.blocks.iter().map(|(block, size)| block.lines * size.bytes() as u64).sum();
        let segments = 0..self.allocator.segments();
        let mut serving = segments.filter_map(|at| self.allocator.segment_line_size(at));
        let checks = [
            (overlap, "blocks overlap"),
            (self.blocks.iter().any(|(block, _)| block.offset == 0), "offset 0"),
            (self.blocks.iter().any(|block| end(block) > self.bytes), "beyond the home"),
            (!self.blocks.iter().all(served), "two line sizes in a segment"),
            (
                self.allocator.free_bytes() + used != self.allocator.capacity_bytes(),
                "bytes are not counted right",
            ),
            (self.blocks.is_empty() && serving.next().is_some(), "a segment does not come back"),
        ];
        let found = checks.into_iter().find(|(wrong, _)| *wrong);
        let broken = self.broken.or(found.map(|(_, name)| name));
        broken.map(Violation::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    /// Two partial segments around two whole ones.
    const BYTES: u64 = 3 * SEGMENT_BYTES + 2 * RESERVED_BYTES;

    fn sizes() -> [(u64, LineSize); 5] {
        let half = LineSize::from_bytes(32_768).expect("a line size");
        let line = LineSize::MAX.bytes() as u64;
        [
            (1, LineSize::MAX),
            (6 * line, LineSize::MAX),
            (SEGMENT_BYTES, LineSize::MAX),
            (SEGMENT_BYTES + 3 * line, LineSize::MAX),
            (7 * line, half),
        ]
    }

    #[test]
    fn nothing_overlaps_and_everything_comes_back() {
        let model = Home::new(BYTES, 4, &sizes(), |allocator| allocator);
        let coverage = Explorer::new().explore(&model).holds().expect("no violation");
        assert_eq!(coverage.states, 64_747);
    }

    #[cfg(canary)]
    #[test]
    fn canary_defects_are_found() {
        use farside_protocol::allocate::AllocateMutant;
        let cases = [
            (AllocateMutant::RunForgotten, "refused although there is room"),
            (AllocateMutant::EndUnchecked, "freed what was not allocated"),
            (AllocateMutant::ZeroHandedOut, "offset 0"),
            (AllocateMutant::SegmentKept, "a segment does not come back"),
        ];
        for (mutant, expected) in cases {
            let model = Home::new(BYTES, 4, &sizes(), |allocator| allocator.with_mutant(mutant));
            let outcome = Explorer::new().explore(&model);
            let failure = outcome.failure().unwrap_or_else(|| panic!("{mutant:?} is not found"));
            assert_eq!(failure.violation.0, expected, "{mutant:?}: {}", failure.transcript);
        }
    }
}
