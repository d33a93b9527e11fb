//! One user's cache of segment addresses. Only a hint: a bucket itself says whether a key belongs to it,
//! and a split leaves the address of the child in the parent, so a stale directory costs a few reads, which
//! correct it.

use super::layout::TAG_BITS;
use farside::GlobalAddress;

/// Maximum index bits of the directory: 32 MiB. Deeper segments are found through their ancestors each
/// time.
const BITS_MAX: u32 = 22;

/// Segments by the highest bits of the hash.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    partition_bits: u32,
    bits: u32,
    segments: Vec<GlobalAddress>,
}

impl Directory {
    /// Creates a directory with the first segment of each of the `1 << partition_bits` partitions.
    pub(super) fn new(partition_bits: u32, first: Vec<GlobalAddress>) -> Self {
        assert_eq!(first.len(), 1 << partition_bits, "one segment for each partition");
        Self { partition_bits, bits: partition_bits, segments: first }
    }

    /// The deepest known segment on the path to `hash`.
    #[inline]
    pub(super) fn lookup(&self, hash: u64) -> GlobalAddress {
        self.segments[(hash >> (64 - self.bits)) as usize]
    }

    /// Bits of the tag by which the directory distinguishes segments.
    pub(super) fn tag_bits(&self) -> u32 {
        self.bits - self.partition_bits
    }

    /// Records that hashes which agree with `hash` in the partition and `depth` further bits have moved
    /// from `from` to `to`.
    pub(super) fn learn(&mut self, hash: u64, depth: u32, from: GlobalAddress, to: GlobalAddress) {
        debug_assert!(depth <= TAG_BITS);
        let wanted = self.partition_bits + depth;
        if wanted > BITS_MAX {
            return;
        }
        while self.bits < wanted {
            self.double();
        }
        let first = ((hash >> (64 - wanted)) << (self.bits - wanted)) as usize;
        for segment in &mut self.segments[first..first + (1 << (self.bits - wanted))] {
            if *segment == from {
                *segment = to;
            }
        }
    }

    fn double(&mut self) {
        self.segments = self.segments.iter().flat_map(|segment| [*segment; 2]).collect();
        self.bits += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside::{LineSize, NodeId};

    fn segment(number: u64) -> GlobalAddress {
        GlobalAddress::new(NodeId(0), LineSize::DEFAULT, number << 12).unwrap()
    }

    #[test]
    fn deeper_knowledge_survives_shallower() {
        let mut directory = Directory::new(1, vec![segment(0), segment(1)]);
        directory.learn(0b101 << 61, 2, segment(1), segment(2));
        directory.learn(0b110 << 61, 1, segment(1), segment(3));
        let found: Vec<_> = (0..8_u64).map(|top| directory.lookup(top << 61)).collect();
        let wanted = [0, 0, 0, 0, 1, 2, 3, 3].map(segment);
        assert_eq!(found, wanted);
    }

    #[test]
    fn too_deep_segments_are_not_kept() {
        let mut directory = Directory::new(8, vec![segment(0); 256]);
        directory.learn(0, TAG_BITS, segment(0), segment(9));
        assert_eq!(directory.lookup(0), segment(0));
    }
}
