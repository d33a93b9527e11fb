//! The cache's memory: one pool of frames for all line sizes, managed by the binary buddy system (Knowlton
//! 1965; Knuth, The Art of Computer Programming 1, section 2.5).
//!
//! A frame is a block of the size of its line, aligned to it. A larger free block is split for a smaller
//! frame, and merged with its buddy when both are free, so that memory moves between sizes as its use
//! changes. Where no free block is large enough, the engine *clears* one: it evicts all lines in it.
//! Meanwhile no frame is allocated in the block, else smaller lines could take its parts for ever.
//!
//! *Invariants*: each unit of 64 B is in exactly one frame, one free block, or a free part of a block that is
//! being cleared. No two free buddies exist. Blocks that are being cleared do not overlap.
//! *Cost*: constant time and no allocation for a frame, apart from the list of blocks being cleared.

use farside_base::LineSize;

/// The largest order: a block of order `n` has `64 << n` bytes.
const ORDER_MAX: u32 = LineSize::CLASSES as u32 - 1;

/// An aligned block: its first unit of 64 B, and its order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Block {
    pub(crate) start: u32,
    pub(crate) order: u32,
}

impl Block {
    /// The block of this order that contains a unit.
    pub(crate) const fn around(unit: u32, order: u32) -> Self {
        Self { start: unit >> order << order, order }
    }

    pub(crate) const fn units(self) -> u32 {
        1 << self.order
    }

    pub(crate) const fn end(self) -> u32 {
        self.start + self.units()
    }

    const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// A set of small integers whose minimum is found in logarithmic time: each level has a bit for each nonzero
/// word of the level below.
#[derive(Debug)]
struct BitTree(Vec<Box<[u64]>>);

impl BitTree {
    fn new(count: u32) -> Self {
        let mut levels = Vec::new();
        let mut words = count.div_ceil(64).max(1) as usize;
        loop {
            levels.push(vec![0; words].into_boxed_slice());
            if words == 1 {
                return Self(levels);
            }
            words = words.div_ceil(64);
        }
    }

    fn insert(&mut self, mut number: u32) {
        for level in &mut self.0 {
            let word = &mut level[number as usize / 64];
            let was_empty = *word == 0;
            *word |= 1 << (number % 64);
            if !was_empty {
                return;
            }
            number /= 64;
        }
    }

    /// Removes a number; returns whether it was in the set.
    fn remove(&mut self, mut number: u32) -> bool {
        let is_set = |word: &u64| word & 1 << (number % 64) != 0;
        if !self.0[0].get(number as usize / 64).is_some_and(is_set) {
            return false;
        }
        for level in &mut self.0 {
            let word = &mut level[number as usize / 64];
            *word &= !(1 << (number % 64));
            if *word != 0 {
                break;
            }
            number /= 64;
        }
        true
    }

    fn first(&self) -> Option<u32> {
        self.0.iter().rev().try_fold(0, |at, level| match level[at as usize] {
            0 => None,
            word => Some(at * 64 + word.trailing_zeros()),
        })
    }
}

/// The frames of a cache, and the free blocks between them.
#[derive(Debug)]
pub(crate) struct Pool {
    units: u32,
    /// Free blocks by order, numbered by their start in units of that order.
    free: [BitTree; LineSize::CLASSES],
    /// The owner of each frame, by [`index`](Self::index).
    owners: Box<[u32]>,
    /// The order of each frame plus one; zero: no frame starts here.
    orders: Box<[u8]>,
    /// Blocks being cleared, and the units of their frames.
    clearing: Vec<(Block, u32)>,
    /// Where the search for blocks to clear continues.
    hand: u32,
}

impl Pool {
    /// The length of the tables of a pool of `units`.
    pub(crate) const fn table_len(units: u32) -> usize {
        (units as usize).next_power_of_two()
    }

    /// A pool of `units` of 64 B, all free, with its tables of zeros.
    pub(crate) fn new(units: u32, owners: Box<[u32]>, orders: Box<[u8]>) -> Self {
        let free = std::array::from_fn(|order| BitTree::new((units >> order) + 1));
        let mut pool = Self { units, free, owners, orders, clearing: Vec::new(), hand: 0 };
        let mut at = 0;
        while at < units {
            let order = ORDER_MAX.min(at.trailing_zeros()).min((units - at).ilog2());
            pool.free[order as usize].insert(at >> order);
            at += 1 << order;
        }
        pool
    }

    /// The place of a frame in the tables. With the bits reversed, the starts of frames of one order are
    /// consecutive numbers, so a cache of large lines touches little of the tables.
    fn index(&self, start: u32) -> usize {
        let bits = self.owners.len().trailing_zeros();
        (u64::from(start.reverse_bits()) << bits >> 32) as usize
    }

    /// The order of the frame that starts here.
    fn order_at(&self, start: u32) -> Option<u32> {
        u32::from(self.orders[self.index(start)]).checked_sub(1)
    }

    /// Allocates a frame of this order for `owner`, in the smallest block that has room; returns its start.
    pub(crate) fn allocate(&mut self, order: u32, owner: u32) -> Option<u32> {
        let (found, number) =
            (order..=ORDER_MAX).find_map(|at| Some((at, self.free[at as usize].first()?)))?;
        self.free[found as usize].remove(number);
        let start = number << found;
        for half in order..found {
            self.free[half as usize].insert(start >> half | 1);
        }
        let index = self.index(start);
        self.owners[index] = owner;
        self.orders[index] = order as u8 + 1;
        Some(start)
    }

    /// Frees the frame that starts here, if there is one.
    pub(crate) fn free(&mut self, start: u32) {
        let Some(order) = self.order_at(start) else {
            return;
        };
        let index = self.index(start);
        self.orders[index] = 0;
        let block = Block { start, order };
        let Some(at) = self.clearing.iter().position(|(other, _)| other.overlaps(block)) else {
            return self.merge(block);
        };
        self.clearing[at].1 -= block.units();
        if self.clearing[at].1 == 0 {
            let (block, _) = self.clearing.swap_remove(at);
            self.merge(block);
        }
    }

    /// Adds a free block, merged with its buddies.
    fn merge(&mut self, block: Block) {
        let Block { mut start, mut order } = block;
        while order < ORDER_MAX && self.free[order as usize].remove(start >> order ^ 1) {
            start &= !(1 << order);
            order += 1;
        }
        self.free[order as usize].insert(start >> order);
    }

    /// The first frame in `block` that starts at unit `from` or later: its start, end and owner.
    pub(crate) fn frame_in(&self, block: Block, from: u32) -> Option<(u32, u32, u32)> {
        (from.max(block.start)..block.end().min(self.units)).find_map(|start| {
            let order = self.order_at(start)?;
            Some((start, start + (1 << order), self.owners[self.index(start)]))
        })
    }

    /// The next block that could be cleared for a frame of this order, after that of the previous call. It
    /// is larger if a larger frame occupies it.
    pub(crate) fn next_block(&mut self, order: u32) -> Option<Block> {
        let unit = self.hand;
        let frame = (0..=ORDER_MAX).find_map(|at| {
            let start = Block::around(unit, at).start;
            Some(Block { start, order: self.order_at(start)? })
        });
        let covers = frame.filter(|frame| frame.end() > unit && frame.order > order);
        let block = covers.unwrap_or(Block::around(unit, order));
        self.hand = if block.end() < self.units { block.end() } else { 0 };
        (block.end() <= self.units && !self.overlaps_clearing(block)).then_some(block)
    }

    pub(crate) fn overlaps_clearing(&self, block: Block) -> bool {
        self.clearing.iter().any(|(other, _)| other.overlaps(block))
    }

    /// Whether a block is being cleared.
    pub(crate) fn is_clearing(&self, block: Block) -> bool {
        self.clearing.iter().any(|(other, _)| *other == block)
    }

    /// Withholds the free parts of a block until all frames in it are free. The block has frames, and
    /// overlaps no other that is being cleared.
    pub(crate) fn clear(&mut self, block: Block) {
        let (mut used, mut at) = (0, block.start);
        while at < block.end() {
            let order = self.order_at(at);
            let free = || {
                (0..block.order).find(|order| {
                    Block::around(at, *order).start == at
                        && self.free[*order as usize].remove(at >> order)
                })
            };
            used += order.map_or(0, |order| 1 << order);
            at += 1 << order.or_else(free).unwrap_or(0);
        }
        debug_assert!(used > 0, "a block without frames is free");
        self.clearing.push((block, used));
    }

    /// Gives up clearing a block: its free parts can be allocated again.
    pub(crate) fn abandon(&mut self, block: Block) {
        let Some(at) = self.clearing.iter().position(|(other, _)| *other == block) else {
            return;
        };
        self.clearing.swap_remove(at);
        let mut at = block.start;
        while at < block.end() {
            let order = self.order_at(at);
            if order.is_none() {
                self.merge(Block { start: at, order: 0 });
            }
            at += 1 << order.unwrap_or(0);
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
