//! One user's spare record blocks, oldest first. The block of a replaced record goes to the user that
//! replaced it, and is reused for a later record under the next generation, so that readers with the old
//! entry see that the record is gone (or read the old record whole, if they are in time).
//!
//! Limits: blocks do not move between users, and those of a process stay allocated at its death.

use super::hash::scramble;
use super::space::LossMark;
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

impl RecordBlock {
    /// Whether an address is in it.
    pub(super) fn contains(&self, at: GlobalAddress) -> bool {
        let offset = at.offset().checked_sub(self.address.offset());
        at.memory() == self.address.memory()
            && offset.is_some_and(|offset| offset < self.class.bytes())
    }
}

/// Spare blocks by class.
#[derive(Debug)]
pub(super) struct Pool {
    classes: Vec<(BlockClass, VecDeque<RecordBlock>)>,
    /// Blocks whose entries are removed, but perhaps not durably; with the mark before that.
    waiting: Vec<(RecordBlock, LossMark)>,
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

    /// Keeps a block without an entry. If there are too many, the next fence frees one: the error of a fence of its own
    /// could not be returned, and would not be reported again.
    pub(super) fn put(&mut self, block: RecordBlock) {
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
            self.discarded.extend(blocks.pop_front());
        }
    }

    /// Keeps a block until the removal of its entry is durable.
    pub(super) fn wait(&mut self, block: RecordBlock, mark: LossMark) {
        self.waiting.push((block, mark));
    }

    /// Whether a fence is due for the blocks that wait.
    pub(super) fn waits_for_many(&self) -> bool {
        let bytes = || self.waiting.iter().map(|(block, _)| block.class.bytes()).sum::<u64>();
        self.waiting.len() >= self.blocks_max.max(2)
            || self.waiting.len() > 1 && bytes() > BYTES_MAX
    }

    /// Ends the wait of blocks after a fence of a node at this mark. Those at other marks of the node are forgotten: their
    /// entries may be there again.
    pub(super) fn fenced(&mut self, mark: LossMark) {
        for (block, before) in std::mem::take(&mut self.waiting) {
            if before == mark {
                self.put(block);
            } else if before.node != mark.node {
                self.waiting.push((block, before));
            }
        }
    }

    /// Whether there is a block that could be freed.
    pub(super) fn holds_any(&self) -> bool {
        let spare = self.classes.iter().any(|(_, blocks)| !blocks.is_empty());
        spare || !self.waiting.is_empty() || !self.discarded.is_empty()
    }

    /// Drops the blocks in a memory that is gone with its node.
    pub(super) fn forget_memory(&mut self, memory: MemoryId) {
        self.waiting.retain(|(block, _)| block.address.memory() != memory);
        self.discarded.retain(|block| block.address.memory() != memory);
        for (_, blocks) in &mut self.classes {
            blocks.retain(|block| block.address.memory() != memory);
        }
    }

    /// Discards all spare blocks.
    pub(super) fn discard_all(&mut self) {
        self.discarded.extend(self.classes.iter_mut().flat_map(|(_, blocks)| blocks.drain(..)));
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
            pool.put(block(number, u32::MAX));
            assert!(pool.discarded.is_empty());
        }
        pool.put(block(99, 5));
        assert_eq!(pool.discarded, [block(0, u32::MAX)]);
        assert_eq!(pool.take(block(0, 0).class), Some(block(1, 1)));
        let mark = |node, write_losses| LossMark { node: NodeId(node), write_losses };
        pool.wait(block(100, 1), mark(0, 4));
        pool.wait(block(101, 1), mark(0, 5));
        pool.wait(block(102, 1), mark(1, 4));
        pool.fenced(mark(0, 5));
        // Block 100 may be in the table again, and 102 waits for a fence of node 1.
        assert_eq!(pool.waiting, [(block(102, 1), mark(1, 4))]);
        assert_eq!(pool.classes[0].1.back(), Some(&block(101, 1)));
        pool.fenced(mark(1, 4));
        assert_eq!(pool.classes[0].1.back(), Some(&block(102, 1)));
        pool.forget_memory(MemoryId::new(NodeId(1), Generation(0)).unwrap());
        assert_eq!(pool.take(block(0, 0).class), Some(block(4, 1)));
        pool.discard_all();
        assert_eq!((pool.discarded.len(), pool.holds_any()), (32, true));
    }
}
