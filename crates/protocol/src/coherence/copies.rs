//! Copies of lines in eight bytes each, and the storage of lists of them.
//!
//! ```text
//!  63    61   60  59        52 51                                0
//! +--------+-----+------------+-----------------------------------+
//! |  0     | far |    node    |  grant, or the index of a far one |
//! +--------+-----+------------+-----------------------------------+
//! ```
//! A grant has 64 bits and never wraps. One that needs more than 52 bits is stored in a word of its own (a *far*
//! grant), and the copy has the index of that word. The three highest bits belong to the directory.

use alloc::vec::Vec;
use farside_base::{Grant, NodeId, NodeSet};

/// One node's copy.
pub(super) type Copy = (NodeId, Grant);

const NODE_SHIFT: u32 = 52;
const GRANT_MASK: u64 = (1 << NODE_SHIFT) - 1;
const NODE_MASK: u64 = 0xff;
const FAR: u64 = 1 << 60;

/// Sizes of chunks: 1, 2, 4, ... 256 words.
const SIZES: usize = 9;

const _: () = assert!(NodeSet::CAPACITY as u64 <= NODE_MASK + 1);
const _: () = assert!(NodeSet::CAPACITY <= 1 << (SIZES - 1));

/// A list of two or more copies: their number, and the index of its chunk. The chunk's size is the next power of two
/// of words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct List(u64);

impl List {
    const fn new(place: u64, copies: usize) -> Self {
        Self((copies as u64 - 1) << NODE_SHIFT | place)
    }

    /// Decodes a stored list.
    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Encodes the list in 60 bits.
    pub(super) const fn to_bits(self) -> u64 {
        self.0
    }

    pub(super) const fn len(self) -> usize {
        (self.0 >> NODE_SHIFT & NODE_MASK) as usize + 1
    }

    const fn place(self) -> u64 {
        self.0 & GRANT_MASK
    }

    const fn size(self) -> usize {
        size_of_list(self.len())
    }
}

/// The chunk size for a list of `copies`.
const fn size_of_list(copies: usize) -> usize {
    copies.next_power_of_two().trailing_zeros() as usize
}

/// Contiguous chunks of one size. Each free chunk has the index of the next free one.
#[derive(Clone, Debug, Default)]
struct Pool {
    words: Vec<u64>,
    /// The index of the first free chunk, plus one.
    free: u64,
    used: usize,
}

impl Pool {
    fn take(&mut self, size: usize) -> u64 {
        self.used += 1;
        if self.free == 0 {
            let place = self.words.len() as u64 >> size;
            self.words.resize(self.words.len() + (1 << size), 0);
            return place;
        }
        let place = self.free - 1;
        self.free = self.words[(place << size) as usize];
        place
    }

    fn give_back(&mut self, place: u64, size: usize) {
        self.used -= 1;
        self.words[(place << size) as usize] = self.free;
        self.free = place + 1;
    }
}

/// Storage of far grants and lists of copies, which do not fit in the eight bytes of a line.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    /// By size; the first pool also has the far grants.
    pools: [Pool; SIZES],
}

impl Copies {
    /// Encodes a copy in 61 bits. Release it with `free`.
    #[inline]
    pub(super) fn pack(&mut self, (node, grant): Copy) -> u64 {
        debug_assert!(u64::from(node.0) <= NODE_MASK, "the machine has checked the node");
        let node = (u64::from(node.0) & NODE_MASK) << NODE_SHIFT;
        if grant.0 <= GRANT_MASK {
            return node | grant.0;
        }
        let place = self.pools[0].take(0);
        self.pools[0].words[place as usize] = grant.0;
        FAR | node | place
    }

    #[inline]
    pub(super) fn unpack(&self, bits: u64) -> Copy {
        let low = bits & GRANT_MASK;
        let grant = if bits & FAR == 0 { low } else { self.pools[0].words[low as usize] };
        (node_of(bits), Grant(grant))
    }

    #[inline]
    pub(super) fn free(&mut self, bits: u64) {
        if bits & FAR != 0 {
            self.pools[0].give_back(bits & GRANT_MASK, 0);
        }
    }

    /// The copies of a list, by ascending node number.
    pub(super) fn of(&self, list: List) -> &[u64] {
        let start = (list.place() << list.size()) as usize;
        &self.pools[list.size()].words[start..start + list.len()]
    }

    fn of_mut(&mut self, list: List) -> &mut [u64] {
        let start = (list.place() << list.size()) as usize;
        &mut self.pools[list.size()].words[start..start + list.len()]
    }

    /// Creates a list of two packed copies of different nodes.
    pub(super) fn pair(&mut self, one: u64, other: u64) -> List {
        let list = List::new(self.pools[1].take(1), 2);
        let ordered = if node_of(one) < node_of(other) { [one, other] } else { [other, one] };
        self.of_mut(list).copy_from_slice(&ordered);
        list
    }

    /// The index of a node in a list, or its insertion index.
    pub(super) fn find(&self, list: List, node: NodeId) -> Result<usize, usize> {
        self.of(list).binary_search_by_key(&node, |bits| node_of(*bits))
    }

    /// Replaces the copy of a node.
    pub(super) fn replace(&mut self, list: List, at: usize, bits: u64) {
        let former = core::mem::replace(&mut self.of_mut(list)[at], bits);
        self.free(former);
    }

    /// Inserts a copy at an index.
    pub(super) fn insert(&mut self, list: List, at: usize, bits: u64) -> List {
        let larger = self.resize(list, list.len() + 1);
        let words = self.of_mut(larger);
        words.copy_within(at..list.len(), at + 1);
        words[at] = bits;
        larger
    }

    /// Removes the copy at an index from a list of three or more.
    pub(super) fn remove(&mut self, list: List, at: usize) -> List {
        let former = self.of(list)[at];
        self.free(former);
        self.of_mut(list).copy_within(at + 1.., at);
        self.resize(list, list.len() - 1)
    }

    /// Frees a list, but not its copies.
    pub(super) fn dissolve(&mut self, list: List) {
        self.pools[list.size()].give_back(list.place(), list.size());
    }

    /// Resizes the chunk of a list to `copies`; copies that fit are kept.
    fn resize(&mut self, list: List, copies: usize) -> List {
        let (from, to) = (list.size(), size_of_list(copies));
        if from == to {
            return List::new(list.place(), copies);
        }
        let place = self.pools[to].take(to);
        let kept = list.len().min(copies);
        let [source, target] =
            self.pools.get_disjoint_mut([from, to]).expect("two sizes that differ");
        let (start, end) = ((list.place() << from) as usize, (place << to) as usize);
        target.words[end..end + kept].copy_from_slice(&source.words[start..start + kept]);
        self.dissolve(list);
        List::new(place, copies)
    }

    /// The number of far grants and lists in use.
    pub(super) fn used(&self) -> (usize, usize) {
        let lists = self.pools[1..].iter().map(|pool| pool.used).sum();
        (self.pools[0].used, lists)
    }

    /// The capacity in words.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        self.pools.iter().map(|pool| pool.words.capacity()).sum()
    }
}

/// The node of a packed copy.
pub(super) const fn node_of(bits: u64) -> NodeId {
    NodeId((bits >> NODE_SHIFT & NODE_MASK) as u16)
}

/// Whether the grant of a packed copy has a word of its own.
pub(super) const fn is_far(bits: u64) -> bool {
    bits & FAR != 0
}
