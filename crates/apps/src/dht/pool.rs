//! One user's spare record blocks, oldest first. The block of a replaced record goes to the user that
//! replaced it, and is reused for a later record under the next generation, so that readers with the old
//! entry see that the record is gone (or read the old record whole, if they are in time).
//!
//! Limits: blocks do not move between users, and those of a process stay allocated at its death.

use super::hash::scramble;
use farside::{GlobalAddress, LineSize, MemoryId};
use std::collections::VecDeque;

/// Maximum spare blocks of one class.
pub(super) const BLOCKS_MAX: usize = 64;
/// Maximum bytes of spare blocks of one class, unless that is less than two blocks.
const BYTES_MAX: u64 = 1 << 20;

/// The size class of a block: records of a class fit each other's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockClass {
    pub(super) line: LineSize,
    pub(super) lines: u32,
}

impl BlockClass {
    /// The smallest class for a record of `lines` lines: exact up to eight, then in steps of an eighth, so
    /// that records which grow a little stay in one class.
    pub(super) fn fitting(line: LineSize, lines: u32) -> Self {
        let step = 1 << lines.max(8).ilog2().saturating_sub(3);
        Self { line, lines: lines.next_multiple_of(step) }
    }

    /// Bytes of a block.
    pub(super) fn bytes(self) -> u64 {
        self.line.bytes() as u64 * u64::from(self.lines)
    }
}

/// Memory for one record, and the generation of its last record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordBlock {
    pub(super) address: GlobalAddress,
    pub(super) class: BlockClass,
    pub(super) generation: u32,
}

/// Spare blocks by class.
#[derive(Debug)]
pub(super) struct Pool {
    classes: Vec<(BlockClass, VecDeque<RecordBlock>)>,
    /// Blocks whose entries are removed, but not yet durably; with the count of write losses before that.
    waiting: Vec<(RecordBlock, u32)>,
    /// Blocks to free after the next fence.
    pub(super) discarded: Vec<RecordBlock>,
    blocks_max: usize,
    state: u64,
}

impl Pool {
    /// An empty pool for at most `blocks_max` blocks of a class; `seed` starts the generations of blocks
    /// from the allocator.
    pub(super) fn new(blocks_max: usize, seed: u64) -> Self {
        Self {
            classes: Vec::new(),
            waiting: Vec::new(),
            discarded: Vec::new(),
            blocks_max,
            state: seed,
        }
    }

    /// Takes a spare block of the class, with its next generation.
    pub(super) fn take(&mut self, class: BlockClass) -> Option<RecordBlock> {
        let (_, blocks) = self.classes.iter_mut().find(|(c, _)| *c == class)?;
        let mut block = blocks.pop_front()?;
        block.generation = next_generation(block.generation);
        Some(block)
    }

    /// The generation for a block from the allocator: random, since the memory may have been a block of
    /// this table before.
    pub(super) fn first_generation(&mut self) -> u32 {
        self.state = scramble(self.state);
        next_generation((self.state >> 32) as u32)
    }

    /// Keeps a block; returns one for the allocator if there are too many.
    pub(super) fn put(&mut self, block: RecordBlock) -> Option<RecordBlock> {
        let blocks = match self.classes.iter_mut().position(|(class, _)| *class == block.class) {
            Some(at) => &mut self.classes[at].1,
            None => {
                self.classes.push((block.class, VecDeque::new()));
                &mut self.classes.last_mut().expect("pushed just now").1
            }
        };
        blocks.push_back(block);
        let by_bytes = (BYTES_MAX / block.class.bytes()).max(2) as usize;
        if blocks.len() > by_bytes.min(self.blocks_max) {
            return blocks.pop_front();
        }
        None
    }

    /// Keeps a block until the removal of its entry is durable.
    pub(super) fn wait(&mut self, block: RecordBlock, write_losses: u32) {
        self.waiting.push((block, write_losses));
    }

    /// Returns how many blocks wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Takes a block that has waited, after a fence at this count of write losses. Blocks of another count are
    /// forgotten: their entries may be there again.
    pub(super) fn take_waiting(&mut self, write_losses: u32) -> Option<RecordBlock> {
        self.waiting.retain(|(_, before)| *before == write_losses);
        self.waiting.pop().map(|(block, _)| block)
    }

    /// Drops the blocks in a memory that is gone with its node.
    pub(super) fn forget_memory(&mut self, memory: MemoryId) {
        self.waiting.retain(|(block, _)| block.address.memory() != memory);
        self.discarded.retain(|block| block.address.memory() != memory);
        for (_, blocks) in &mut self.classes {
            blocks.retain(|block| block.address.memory() != memory);
        }
    }

    /// Takes any block, to return it to the allocator.
    pub(super) fn drain_one(&mut self) -> Option<RecordBlock> {
        self.classes.iter_mut().find_map(|(_, blocks)| blocks.pop_front())
    }
}

/// The generation after this one; never 0, which means "no record".
fn next_generation(generation: u32) -> u32 {
    generation.wrapping_add(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside::{Generation, NodeId};

    fn block(number: u64, generation: u32) -> RecordBlock {
        RecordBlock {
            address: GlobalAddress::new(
                NodeId((number % 2) as u16),
                LineSize::DEFAULT,
                number << 9,
            )
            .unwrap(),
            class: BlockClass { line: LineSize::DEFAULT, lines: 3 },
            generation,
        }
    }

    #[test]
    fn classes_waste_an_eighth_at_most() {
        for lines in 1..10_000 {
            let class = BlockClass::fitting(LineSize::DEFAULT, lines);
            assert!(class.lines >= lines && class.lines - lines <= lines / 8, "{lines}");
            assert_eq!(BlockClass::fitting(LineSize::DEFAULT, class.lines), class, "stable");
        }
    }

    #[test]
    fn oldest_first_under_the_next_generation_and_bounded() {
        let mut pool = Pool::new(BLOCKS_MAX, 1);
        assert_eq!(pool.take(block(0, 0).class), None);
        for number in 0..BLOCKS_MAX as u64 {
            assert_eq!(pool.put(block(number, u32::MAX)), None);
        }
        assert_eq!(pool.put(block(99, 5)), Some(block(0, u32::MAX)));
        assert_eq!(pool.take(block(0, 0).class), Some(block(1, 1)));
        pool.wait(block(100, 1), 4);
        pool.wait(block(101, 1), 5);
        assert_eq!(
            pool.take_waiting(5),
            Some(block(101, 1)),
            "the other may be in the table again"
        );
        assert_eq!((pool.take_waiting(4), pool.waiting_count()), (None, 0));
        pool.forget_memory(MemoryId::new(NodeId(1), Generation(0)).unwrap());
        assert_eq!(pool.take(block(0, 0).class), Some(block(2, 1)));
        assert_eq!(std::iter::from_fn(|| pool.drain_one()).count(), 30);
    }
}
