//! Words of the table's segments, and the form of entries.
//!
//! ```text
//! segment  state, 8 bytes | 120 bytes unused | 31 buckets of 15 slots and a gate
//! slot     63     | 62      | 61   58 | 57     51 | 50       39 | 38  35 | 34      0
//!          frozen | -       | -       | version   | fingerprint | size   | place / 64, zero: empty
//! gate     frozen | pending | slot    | of the empty slot; the entry that is inserted there, or was last
//! entry    hash, 8 bytes | checksum, 8 | bytes of the key, 4 | of the value, 4 | key | value
//! ```

use crate::dht::hash::hash;

/// Bytes of a segment, and of its buckets.
pub(super) const SEGMENT: u64 = 4096;
pub(super) const BUCKET: u64 = 128;
pub(super) const BUCKETS: u64 = 31;
pub(super) const SLOTS: usize = 15;
/// Bytes of an entry before its key.
pub(super) const ENTRY_HEADER: usize = 24;
/// Most levels of splits.
pub(super) const DEPTH_MAX: u32 = 32;

const FROZEN: u64 = 1 << 63;
const PENDING: u64 = 1 << 62;
const SLOT_SHIFT: u32 = 58;
const VERSION_SHIFT: u32 = 51;
const VERSION_MASK: u64 = 0x7f << VERSION_SHIFT;
const FINGERPRINT_SHIFT: u32 = 39;
const FINGERPRINT_MASK: u64 = 0xfff;
const SIZE_SHIFT: u32 = 35;
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

/// Returns the key and the value of an entry; `None` if it is torn, or none.
pub(super) fn decode_entry(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let lengths = word(16)?;
    let (key, value) = (lengths as u32 as usize, (lengths >> 32) as usize);
    let end = ENTRY_HEADER.checked_add(key)?.checked_add(value)?;
    let whole = bytes.get(16..end)?;
    if hash(whole, word(0)?) != word(8)? {
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
    }

    #[test]
    fn changed_entries_are_none() {
        let mut bytes = Vec::new();
        let key_hash = KeyHash::of(b"key", 7);
        encode_entry(b"key", b"a value", key_hash, &mut bytes);
        assert_eq!(decode_entry(&bytes), Some((&b"key"[..], &b"a value"[..])));
        for at in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[at / 8] ^= 1 << (at % 8);
            assert_eq!(decode_entry(&changed), None);
        }
        assert!((0..bytes.len()).all(|end| decode_entry(&bytes[..end]).is_none()));
    }
}
