//! Words of the table's segments, and the form of entries.
//!
//! ```text
//! segment  state, 8 bytes | 120 bytes unused | 31 buckets of 15 slots and a gate
//! slot     63     | 62      | 61   58 | 57     51 | 50       39 | 38  35 | 34      0
//!          frozen | -       | -       | version   | fingerprint | size   | place / 64, zero: empty
//! hot slot frozen | -       | 1, size | version   | fingerprint | cell   | place of its block / 64
//! gate     frozen | pending | slot    | of the empty slot; the entry that is inserted there, or was last
//! entry    hash, 8 bytes | checksum, 8 | bytes of the key, 4 | of the value, 4 | key | value
//! block    word, 8 bytes | 56 unused | hashes of the keys of 16 cells | 16 cells, an entry each | 16 cells
//! word     63: revoked | number of the last commit, whose lowest bit names the half
//! ```
//! Checksums of entries in a block depend on the number of the commit too.

use crate::dht::hash::{hash, scramble};

/// Bytes of a segment, and of its buckets.
pub(super) const SEGMENT: u64 = 4096;
pub(super) const BUCKET: u64 = 128;
pub(super) const BUCKETS: u64 = 31;
pub(super) const SLOTS: usize = 15;
/// Bytes of an entry before its key.
pub(super) const ENTRY_HEADER: usize = 24;
/// Most levels of splits.
pub(super) const DEPTH_MAX: u32 = 32;

/// Cells of a block, and its bytes before them.
pub(super) const CELLS: usize = 16;
const HASHES: u64 = 64;
pub(super) const BLOCK_HEADER: u64 = HASHES + 8 * CELLS as u64;

const FROZEN: u64 = 1 << 63;
const PENDING: u64 = 1 << 62;
const SLOT_SHIFT: u32 = 58;
const VERSION_SHIFT: u32 = 51;
const VERSION_MASK: u64 = 0x7f << VERSION_SHIFT;
const FINGERPRINT_SHIFT: u32 = 39;
const FINGERPRINT_MASK: u64 = 0xfff;
const SIZE_SHIFT: u32 = 35;
const HOT: u64 = 1 << 61;
const CELL_SIZE_SHIFT: u32 = 58;
const PLACE_MASK: u64 = (1 << SIZE_SHIFT) - 1;

/// A slot: where an entry is. Each change raises the version, also to empty and back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Slot(pub(super) u64);

impl Slot {
    /// Of an entry in an object at `offset`, of at least `bytes` bytes: a power of two from 64 on.
    pub(super) const fn new(version: u64, fingerprint: u64, bytes: u64, offset: u64) -> Self {
        let size = bytes.div_ceil(64).next_power_of_two().trailing_zeros() as u64;
        Self(
            version << VERSION_SHIFT & VERSION_MASK
                | (fingerprint & FINGERPRINT_MASK) << FINGERPRINT_SHIFT
                | size << SIZE_SHIFT
                | (offset / 64),
        )
    }

    /// Of an entry in a cell of the block at `offset`; a cell has `bytes` bytes, a power of two from 64 to 8,192.
    pub(super) const fn hot(
        version: u64,
        fingerprint: u64,
        (cell, bytes): (usize, u64),
        offset: u64,
    ) -> Self {
        let size = (bytes / 64).trailing_zeros() as u64;
        let slot = Self::new(version, fingerprint, 64 << cell, offset);
        Self(slot.0 | HOT | size << CELL_SIZE_SHIFT)
    }

    /// Whether its entry is in a block.
    pub(super) const fn is_hot(self) -> bool {
        self.0 & HOT != 0
    }

    /// Returns the bytes of the cells of its block.
    pub(super) const fn cell_bytes(self) -> u64 {
        64 << (self.0 >> CELL_SIZE_SHIFT & 7)
    }

    /// Returns its cell in a half of its block, as an offset.
    pub(super) const fn cell(self, half: u64) -> u64 {
        self.offset() + cell_at(self.cell_number(), half, self.cell_bytes())
    }

    pub(super) const fn cell_number(self) -> usize {
        (self.0 >> SIZE_SHIFT & 15) as usize
    }

    /// Returns the offset of the hash of its key.
    pub(super) const fn hash_at(self) -> u64 {
        match self.is_hot() {
            true => hash_at(self.offset(), self.cell_number()),
            false => self.offset(),
        }
    }

    pub(super) const fn is_frozen(self) -> bool {
        self.0 & FROZEN != 0
    }

    pub(super) const fn frozen(self) -> Self {
        Self(self.0 | FROZEN)
    }

    pub(super) const fn thawed(self) -> Self {
        Self(self.0 & !FROZEN)
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 & PLACE_MASK == 0
    }

    /// The slot after the removal of its entry.
    pub(super) const fn emptied(self) -> Self {
        Self((self.version() + 1) << VERSION_SHIFT & VERSION_MASK)
    }

    pub(super) const fn fingerprint(self) -> u64 {
        self.0 >> FINGERPRINT_SHIFT & FINGERPRINT_MASK
    }

    pub(super) const fn offset(self) -> u64 {
        (self.0 & PLACE_MASK) * 64
    }

    /// Returns the most bytes of its entry.
    pub(super) const fn bytes(self) -> u64 {
        64 << (self.0 >> SIZE_SHIFT & 15)
    }

    pub(super) const fn version(self) -> u64 {
        (self.0 & VERSION_MASK) >> VERSION_SHIFT
    }
}

/// The last word of a bucket: one entry at a time is inserted into the bucket, and who meets it completes that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Gate(pub(super) u64);

impl Gate {
    /// Of an insertion into the empty slot `at` of a bucket.
    pub(super) const fn pending(at: usize, empty: Slot, entry: Slot) -> Self {
        let entry = entry.0 & !VERSION_MASK | empty.0 & VERSION_MASK;
        Self(PENDING | (at as u64) << SLOT_SHIFT | entry)
    }

    pub(super) const fn is_pending(self) -> bool {
        self.0 & PENDING != 0
    }

    /// The gate once the insertion is complete.
    pub(super) const fn idle(self) -> Self {
        Self(self.0 & !PENDING)
    }

    pub(super) const fn slot(self) -> usize {
        (self.0 >> SLOT_SHIFT & 15) as usize
    }

    /// The slot before the insertion, and after.
    pub(super) const fn change(self) -> (Slot, Slot) {
        let version = self.0 & VERSION_MASK;
        let next = Slot(version).emptied().0;
        let entry = self.0 & (VERSION_MASK - 1) & ((1 << VERSION_SHIFT) - 1);
        (Slot(version), Slot(next | entry))
    }
}

/// The state of a segment: in use, or split into two that are one behind the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SegmentState {
    Leaf,
    /// At this offset.
    Split(u64),
}

impl SegmentState {
    pub(super) const fn encode(self) -> u64 {
        match self {
            Self::Leaf => 1,
            Self::Split(offset) => offset | 2,
        }
    }

    pub(super) const fn decode(word: u64) -> Option<Self> {
        match word {
            1 => Some(Self::Leaf),
            _ if word % 64 == 2 => Some(Self::Split(word - 2)),
            _ => None,
        }
    }
}

/// Returns the offset of a cell in its block.
pub(super) const fn cell_at(cell: usize, half: u64, cell_bytes: u64) -> u64 {
    BLOCK_HEADER + (half * CELLS as u64 + cell as u64) * cell_bytes
}

/// Returns the offset of the hash of a cell's key, of the block at `block`.
pub(super) const fn hash_at(block: u64, cell: usize) -> u64 {
    block + HASHES + 8 * cell as u64
}

/// The first word of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockWord(pub(super) u64);

impl BlockWord {
    const REVOKED: u64 = 1 << 63;

    /// Of a block without commits yet. The random number makes the words of blocks at one place differ.
    pub(super) const fn first(random: u64) -> Self {
        Self(random & !Self::REVOKED)
    }

    /// The word after the next commit.
    pub(super) const fn next(self) -> Self {
        Self((self.0 + 1) & !Self::REVOKED)
    }

    /// Whether another client has ended the commits of this block.
    pub(super) const fn is_revoked(self) -> bool {
        self.0 & Self::REVOKED != 0
    }

    pub(super) const fn revoked(self) -> Self {
        Self(self.0 | Self::REVOKED)
    }

    /// The word without its revocation.
    pub(super) const fn commit(self) -> Self {
        Self(self.0 & !Self::REVOKED)
    }

    /// Returns the half that has the entries of the last commit.
    pub(super) const fn half(self) -> u64 {
        self.0 & 1
    }

    /// Returns what checksums of entries of the last commit are combined with.
    pub(super) fn stamp(self) -> u64 {
        scramble(self.commit().0)
    }
}

/// A key's hash, and the parts that choose its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyHash(pub(super) u64);

impl KeyHash {
    pub(super) fn of(key: &[u8], seed: u64) -> Self {
        Self(hash(key, seed))
    }

    pub(super) const fn fingerprint(self) -> u64 {
        self.0 & FINGERPRINT_MASK
    }

    pub(super) const fn bucket(self) -> u64 {
        ((self.0 >> 16 & 0xffff) * BUCKETS) >> 16
    }

    /// Which half of a segment that is split after `depth` splits.
    pub(super) const fn half(self, depth: u32) -> u64 {
        self.0 >> (32 + depth) & 1
    }
}

/// Encodes an entry.
pub(super) fn encode_entry(key: &[u8], value: &[u8], key_hash: KeyHash, out: &mut Vec<u8>) {
    out.clear();
    out.extend(key_hash.0.to_le_bytes());
    out.extend([0; 8]);
    out.extend((key.len() as u32).to_le_bytes());
    out.extend((value.len() as u32).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
    let checksum = hash(&out[16..], key_hash.0);
    out[8..16].copy_from_slice(&checksum.to_le_bytes());
}

/// Combines the checksum of an entry with a stamp.
pub(super) fn stamp_entry(bytes: &mut [u8], stamp: u64) {
    for (byte, stamp) in bytes.iter_mut().skip(8).zip(stamp.to_le_bytes()) {
        *byte ^= stamp;
    }
}

/// Returns the key and the value of an entry; `None` if it is torn, of another stamp, or none. Entries out of blocks have
/// the stamp zero.
pub(super) fn decode_entry(bytes: &[u8], stamp: u64) -> Option<(&[u8], &[u8])> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let lengths = word(16)?;
    let (key, value) = (lengths as u32 as usize, (lengths >> 32) as usize);
    let end = ENTRY_HEADER.checked_add(key)?.checked_add(value)?;
    let whole = bytes.get(16..end)?;
    if hash(whole, word(0)?) ^ stamp != word(8)? {
        return None;
    }
    Some(whole[8..].split_at(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_fields_apart() {
        for (version, fingerprint, bytes, offset) in
            [(0, 0, 1, 64), (126, 0xfff, 65_280, (1 << 41) - 64), (5, 9, 65, 4096)]
        {
            let slot = Slot::new(version + 1, fingerprint, bytes, offset);
            assert_eq!((slot.version(), slot.fingerprint()), (version + 1, fingerprint));
            assert!(slot.offset() == offset && slot.bytes() >= bytes && !slot.is_frozen());
            assert!(slot.frozen().is_frozen() && slot.frozen().thawed() == slot);
            assert!(!slot.is_empty() && slot.emptied().is_empty());
            let empty = Slot(version << VERSION_SHIFT);
            let gate = Gate::pending(14, empty, slot);
            assert!(gate.is_pending() && !gate.idle().is_pending() && gate.slot() == 14);
            assert_eq!(gate.change(), (empty, slot));
        }
        assert_eq!(Slot::new(127, 1, 1, 64).emptied(), Slot(0));
        for (cell, bytes) in [(0, 64), (15, 8192), (7, 128)] {
            let slot = Slot::hot(3, 0xfff, (cell, bytes), 640);
            assert!(slot.is_hot() && slot.cell_number() == cell && slot.cell_bytes() == bytes);
            assert_eq!((slot.version(), slot.fingerprint(), slot.offset()), (3, 0xfff, 640));
            assert_eq!(slot.cell(1) - slot.cell(0), 16 * bytes);
            assert!(!slot.emptied().is_hot() && slot.frozen().thawed() == slot);
        }
        let word = BlockWord::first(u64::MAX);
        assert!(!word.is_revoked() && word.next() == BlockWord(0) && word.revoked().is_revoked());
        assert!(word.revoked().commit() == word && word.stamp() != word.next().stamp());
    }

    #[test]
    fn changed_entries_are_none() {
        let mut bytes = Vec::new();
        let key_hash = KeyHash::of(b"key", 7);
        encode_entry(b"key", b"a value", key_hash, &mut bytes);
        assert_eq!(decode_entry(&bytes, 0), Some((&b"key"[..], &b"a value"[..])));
        for at in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode_entry(&changed, 0), None);
        }
        let word = BlockWord(5);
        stamp_entry(&mut bytes, word.stamp());
        assert_eq!(decode_entry(&bytes, 0), None);
        assert!(decode_entry(&bytes, word.revoked().stamp()).is_some());
        stamp_entry(&mut bytes, word.stamp());
        assert!((0..bytes.len()).all(|end| decode_entry(&bytes[..end], 0).is_none()));
    }
}
