use super::*;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use farside_base::Random;

const LINE: LineSize = LineSize::DEFAULT;

fn size(bytes: usize) -> LineSize {
    LineSize::from_bytes(bytes).unwrap()
}

/// The allocator with a reference list of its allocations.
struct CheckedAllocator {
    allocator: Allocator,
    blocks: BTreeMap<u64, (u64, LineSize)>,
    seed: u64,
}

impl CheckedAllocator {
    fn new(bytes: u64, seed: u64) -> Self {
        Self { allocator: Allocator::new(bytes), blocks: BTreeMap::new(), seed }
    }

    fn allocate(&mut self, bytes: u64, line_size: LineSize) -> Result<Block, ErrorCode> {
        let outcome = self.allocator.allocate(bytes, line_size);
        match outcome {
            Ok(block) => self.note(block, bytes, line_size),
            Err(code) => {
                assert_eq!(code, ErrorCode::OutOfMemory, "seed {}", self.seed);
                assert!(!self.could_fit(bytes, line_size), "seed {}: {bytes} fit", self.seed);
            }
        }
        self.check_free_bytes();
        outcome
    }

    fn note(&mut self, block: Block, bytes: u64, line_size: LineSize) {
        let line = line_size.bytes() as u64;
        let (start, end) = (block.offset, block.offset + block.lines * line);
        assert_eq!(block.lines, bytes.div_ceil(line), "seed {}", self.seed);
        assert_eq!(start % line, 0, "seed {}", self.seed);
        assert!(start >= RESERVED_BYTES && end <= self.allocator.bytes, "seed {}", self.seed);
        let before = self.blocks.range(..end).next_back();
        let clear = before
            .is_none_or(|(offset, (lines, size))| offset + lines * size.bytes() as u64 <= start);
        assert!(clear, "seed {}: {block:?} overlaps {before:?}", self.seed);
        for segment in start / SEGMENT_BYTES..end.div_ceil(SEGMENT_BYTES) {
            let served = self.allocator.segment_line_size(segment as usize);
            assert_eq!(served, Some(line_size), "seed {}", self.seed);
        }
        assert!(self.allocator.is_start(start, line_size));
        self.blocks.insert(start, (block.lines, line_size));
    }

    fn free(&mut self, offset: u64) {
        let (lines, line_size) = self.blocks.remove(&offset).unwrap();
        let outcome = self.allocator.free(offset, lines, line_size);
        assert_eq!(outcome, Ok(()), "seed {}: {offset:#x} {lines}", self.seed);
        let again = self.allocator.free(offset, lines, line_size);
        assert_eq!(again, Err(ErrorCode::NotAnAllocation), "seed {}", self.seed);
        assert!(!self.allocator.is_start(offset, line_size));
        self.check_free_bytes();
    }

    /// A free that is invalid unless it happens to name a block exactly.
    fn free_wrongly(&mut self, offset: u64, lines: u64, line_size: LineSize) {
        if self.blocks.get(&offset) == Some(&(lines, line_size)) {
            return self.free(offset);
        }
        let outcome = self.allocator.free(offset, lines, line_size);
        let told = (self.seed, offset, lines, line_size);
        assert_eq!(outcome, Err(ErrorCode::NotAnAllocation), "seed, block: {told:?}");
        self.check_free_bytes();
    }

    fn check_blocks(&self) {
        let segments = 0..self.allocator.segments();
        let found: Vec<_> = segments.flat_map(|at| self.allocator.blocks_in(at)).collect();
        let block = |(offset, (lines, size)): (&u64, &(u64, LineSize))| {
            (Block { offset: *offset, lines: *lines }, *size)
        };
        assert!(found.into_iter().eq(self.blocks.iter().map(block)), "seed {}", self.seed);
    }

    fn check_free_bytes(&self) {
        let blocks = self.blocks.values();
        let used: u64 = blocks.map(|(lines, size)| lines * size.bytes() as u64).sum();
        let allocator = &self.allocator;
        assert_eq!(allocator.free_bytes() + used, allocator.capacity_bytes(), "seed {}", self.seed);
    }

    /// The documented rule, by an exhaustive search.
    fn could_fit(&self, bytes: u64, line_size: LineSize) -> bool {
        let line = line_size.bytes() as u64;
        let bytes = bytes.div_ceil(line) * line;
        let runs = (0..self.allocator.segments()).map(|segment| {
            let served = self.allocator.segment_line_size(segment);
            match served {
                None => (true, self.longest_gap(segment)),
                Some(served) if served == line_size => (false, self.longest_gap(segment)),
                Some(_) => (false, 0),
            }
        });
        if bytes <= SEGMENT_BYTES {
            return runs.into_iter().any(|(_, gap)| gap >= bytes);
        }
        let mut row = 0;
        runs.into_iter().any(|(wholly_free, gap)| {
            row = if wholly_free && gap == SEGMENT_BYTES { row + gap } else { 0 };
            row >= bytes
        })
    }

    fn longest_gap(&self, segment: usize) -> u64 {
        let first = segment as u64 * SEGMENT_BYTES;
        let end = (first + SEGMENT_BYTES).min(self.allocator.bytes);
        let mut at = first.max(RESERVED_BYTES);
        let mut longest = 0;
        let entering = self.blocks.range(..first).next_back();
        for (offset, (lines, size)) in entering.into_iter().chain(self.blocks.range(first..end)) {
            longest = longest.max(offset.saturating_sub(at));
            at = at.max(offset + lines * size.bytes() as u64);
        }
        longest.max(end.saturating_sub(at))
    }

    fn finish(mut self) {
        for offset in self.blocks.keys().copied().collect::<Vec<_>>() {
            self.free(offset);
        }
        let served =
            (0..self.allocator.segments()).find_map(|at| self.allocator.segment_line_size(at));
        assert_eq!(served, None, "seed {}: everything came back", self.seed);
        assert!(self.allocator.bins.iter().all(|bins| bins.filled == 0), "seed {}", self.seed);
    }
}

/// Mostly small, sometimes about a segment, rarely several.
fn random_bytes(random: &mut Random) -> u64 {
    match random.below(20) {
        0 => 1 + random.below(4 * SEGMENT_BYTES),
        1..4 => 1 + random.below(SEGMENT_BYTES + 1),
        4..10 => 1 + random.below(65_536),
        _ => 1 + random.below(2_048),
    }
}

#[test]
fn blocks_are_restored_in_any_order() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let mut checked = CheckedAllocator::new(24 << 20, seed);
        for _ in 0..400 {
            let line_size = size(64 << random.below(6));
            let bytes = match random.below(8) {
                0 => SEGMENT_BYTES + random.below(2 << 20),
                _ => 1 + random.below(20_000),
            };
            if random.below(3) == 0
                && let Some(offset) = checked.blocks.keys().nth(random.below(8) as usize).copied()
            {
                checked.free(offset);
            } else {
                let _ = checked.allocate(bytes, line_size);
            }
        }
        let mut restored = Allocator::new(24 << 20);
        let mut blocks: Vec<_> = checked.blocks.iter().map(|(at, block)| (*at, *block)).collect();
        for index in (1..blocks.len()).rev() {
            blocks.swap(index, random.below(index as u64 + 1) as usize);
        }
        for (offset, (lines, line_size)) in &blocks {
            let block = Block { offset: *offset, lines: *lines };
            assert_eq!(restored.restore(block, *line_size), Ok(()), "seed {seed}: {block:?}");
            let again = restored.restore(block, *line_size);
            assert_eq!(again, Err(ErrorCode::NotAnAllocation), "seed {seed}: {block:?}");
        }
        assert_eq!(restored.free_bytes(), checked.allocator.free_bytes(), "seed {seed}");
        checked.allocator = restored;
        while let Some(offset) = checked.blocks.keys().next().copied() {
            checked.free(offset);
        }
        assert_eq!(checked.allocator.free_bytes(), checked.allocator.capacity_bytes());
    }
}

#[test]
fn blocks_that_no_allocator_returns_are_not_restored() {
    let mut allocator = Allocator::new(4 << 20);
    let mut restore = |offset, lines| allocator.restore(Block { offset, lines }, LINE);
    assert_eq!(restore(0, 1), Err(ErrorCode::NotAnAllocation), "null");
    assert_eq!(restore(SEGMENT_BYTES + 1, 1), Err(ErrorCode::NotAnAllocation), "within a line");
    assert_eq!(restore(SEGMENT_BYTES, 0), Err(ErrorCode::NotAnAllocation));
    assert_eq!(restore(SEGMENT_BYTES, u64::MAX), Err(ErrorCode::NotAnAllocation));
    assert_eq!(restore(SEGMENT_BYTES - 512, 2), Err(ErrorCode::NotAnAllocation), "two segments");
    assert_eq!(restore(SEGMENT_BYTES + 512, 4_000), Err(ErrorCode::NotAnAllocation));
    assert_eq!(restore(3 << 20, 2_049), Err(ErrorCode::NotAnAllocation), "beyond the end");
    assert_eq!(restore(SEGMENT_BYTES, 2_049), Ok(()));
    assert_eq!(restore(2 << 20, 1), Err(ErrorCode::NotAnAllocation), "its last line");
    assert_eq!(restore((2 << 20) + 512, 1), Ok(()), "after it");
}

#[test]
fn agrees_with_a_list_of_blocks() {
    for seed in 1..=60 {
        let mut random = Random::new(seed);
        let home = RESERVED_BYTES * random.below(200) + random.below(RESERVED_BYTES);
        let classes: Vec<LineSize> =
            LineSize::all().filter(|_| random.below(3) == 0).chain([LINE]).collect();
        let mut pair = CheckedAllocator::new(home, seed);
        let keep = 20 + random.below(300);
        for _ in 0..1_500 {
            let line_size = classes[random.below(classes.len() as u64) as usize];
            match random.below(keep) > pair.blocks.len() as u64 {
                true => {
                    let _ = pair.allocate(random_bytes(&mut random), line_size);
                }
                false => {
                    let from = random.below(home.max(1));
                    let blocks = pair.blocks.range(from..).chain(&pair.blocks);
                    if let Some(offset) = blocks.map(|(offset, _)| *offset).next() {
                        pair.free(offset);
                    }
                }
            }
            if random.below(8) == 0 {
                pair.check_blocks();
                let from = random.below(home.max(1));
                let near = pair.blocks.range(from..).next();
                let (offset, lines, size) = near
                    .map_or((from, 1, LINE), |(offset, (lines, size))| (*offset, *lines, *size));
                let line = size.bytes() as u64;
                pair.free_wrongly(offset + line, lines, size);
                pair.free_wrongly(offset, lines + 1, size);
                pair.free_wrongly(offset, lines - 1, size);
                pair.free_wrongly(offset + 1, lines, size);
                pair.free_wrongly(offset, lines, line_size);
                pair.free_wrongly(from, 1 + random.below(40), line_size);
            }
        }
        pair.finish();
    }
}

#[test]
fn one_line_at_a_time_fills_the_home_to_the_last_line() {
    for line_size in LineSize::all() {
        let mut pair = CheckedAllocator::new(3 * SEGMENT_BYTES + 5 * RESERVED_BYTES, 0);
        let line = line_size.bytes() as u64;
        let count = pair.allocator.capacity_bytes() / line;
        let step = (count / 512).max(1);
        for number in 0..count {
            let block = pair.allocator.allocate(1, line_size).unwrap();
            if number % step == 0 {
                pair.blocks.insert(block.offset, (1, line_size));
            }
        }
        assert_eq!(pair.allocator.free_bytes(), 0);
        assert_eq!(pair.allocator.allocate(1, line_size), Err(ErrorCode::OutOfMemory));
        let freed = pair.blocks.len();
        for (offset, (lines, size)) in core::mem::take(&mut pair.blocks) {
            assert_eq!(pair.allocator.free(offset, lines, size), Ok(()));
        }
        for _ in 0..freed {
            assert!(pair.allocator.allocate(line, line_size).is_ok());
        }
        assert_eq!(pair.allocator.free_bytes(), 0);
    }
}

#[test]
fn bad_requests_are_typed() {
    let mut allocator = Allocator::with_limit(4 * SEGMENT_BYTES, SEGMENT_BYTES);
    assert_eq!(allocator.allocate(0, LINE), Err(ErrorCode::ZeroSize));
    assert_eq!(allocator.allocate(SEGMENT_BYTES + 1, LINE), Err(ErrorCode::TooLarge));
    assert_eq!(allocator.allocate(u64::MAX, LINE), Err(ErrorCode::TooLarge));
    let mut allocator = Allocator::with_limit(4 * SEGMENT_BYTES, u64::MAX);
    assert_eq!(allocator.allocate(u64::MAX, LINE), Err(ErrorCode::OutOfMemory));
    for lines in [0, 1, u64::MAX / 512, u64::MAX] {
        for offset in [0, 512, 65_536, SEGMENT_BYTES, 5 * SEGMENT_BYTES, u64::MAX, u64::MAX - 511] {
            assert_eq!(allocator.free(offset, lines, LINE), Err(ErrorCode::NotAnAllocation));
            assert!(!allocator.is_start(offset, LINE));
        }
    }
    assert_eq!(allocator.segment_line_size(99), None);
}

#[test]
fn tiny_homes_hand_out_nothing_or_little() {
    for bytes in [0, 1, 65_535, 65_536, 131_071] {
        let mut allocator = Allocator::new(bytes);
        assert_eq!(allocator.capacity_bytes(), 0);
        assert_eq!(allocator.allocate(1, LINE), Err(ErrorCode::OutOfMemory));
    }
    let mut allocator = Allocator::new(131_072);
    let block = allocator.allocate(65_536, LINE).unwrap();
    assert_eq!((block.offset, block.lines), (65_536, 128));
    assert_eq!(allocator.allocate(1, LINE), Err(ErrorCode::OutOfMemory));
}

#[test]
fn a_free_segment_may_change_its_line_size() {
    let mut allocator = Allocator::new(SEGMENT_BYTES);
    let block = allocator.allocate(64, size(64)).unwrap();
    assert_eq!(allocator.allocate(1, LINE), Err(ErrorCode::OutOfMemory), "the segment serves 64 B");
    allocator.free(block.offset, block.lines, size(64)).unwrap();
    assert_eq!(allocator.segment_line_size(0), None);
    assert!(allocator.allocate(1, LINE).is_ok());
    assert_eq!(allocator.segment_line_size(0), Some(LINE));
}

#[test]
fn the_rest_of_a_large_allocation_serves_small_ones() {
    let mut allocator = Allocator::new(4 * SEGMENT_BYTES);
    let large = allocator.allocate(2 * SEGMENT_BYTES + 512, LINE).unwrap();
    assert_eq!(large.offset, SEGMENT_BYTES);
    assert_eq!(allocator.blocks_in(1), [(large, LINE)]);
    assert_eq!(allocator.blocks_in(3), []);
    // The first segment of the home and the rest of the large one are left.
    let mut small = Vec::new();
    while let Ok(block) = allocator.allocate(65_536, LINE) {
        small.push(block);
    }
    assert_eq!(small.len(), 15 + 15);
    assert_eq!(
        allocator.free(large.offset, large.lines - 1, LINE),
        Err(ErrorCode::NotAnAllocation)
    );
    assert_eq!(
        allocator.free(large.offset, large.lines + 1, LINE),
        Err(ErrorCode::NotAnAllocation)
    );
    allocator.free(large.offset, large.lines, LINE).unwrap();
    assert_eq!(allocator.segment_line_size(1), None);
    assert_eq!(allocator.segment_line_size(3), Some(LINE), "small ones are still there");
    for block in small {
        allocator.free(block.offset, block.lines, LINE).unwrap();
    }
    assert_eq!(allocator.free_bytes(), allocator.capacity_bytes());
    assert_eq!(allocator.allocate(3 * SEGMENT_BYTES, LINE).unwrap().offset, SEGMENT_BYTES);
}

#[test]
fn metadata_is_small() {
    const { assert!(Allocator::METADATA_BYTES <= 64) };
    let mut allocator = Allocator::new(2 * SEGMENT_BYTES);
    for line_size in LineSize::all() {
        let block = allocator.allocate(1, line_size).unwrap();
        let segment = (block.offset / SEGMENT_BYTES) as usize;
        let map_bits = allocator.segments[segment].maps.len() * 64;
        assert!(map_bits <= 2 * segment_lines(line_size).max(64));
        allocator.free(block.offset, block.lines, line_size).unwrap();
    }
}
