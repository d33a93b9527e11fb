//! The layout in global memory. All numbers are little-endian.
//!
//! ```text
//! hash     | partition (1 to 8 bits) | tag (24 bits) | ... | low 32 bits choose the bucket |
//!
//! root     magic 8 | table id 8 | hash seed 8 | partition bits 1, record line class 1, format 2 |
//!          durability 1, 0 3 | address of each partition's first segment 8 ...
//! segment  one header line and 15 buckets, each one line of 256 B
//! header   table id 8 | prefix 4 | depth 1 | created 1 | partition 2 | parent 8 | magic 8 | children 24 x 8
//! bucket   table id 8 | prefix 4 | depth 1 | state 1 | 0 2 | 15 x meta 8 | 15 x link 8
//! meta     tag 24 bits | lines 8 bits | generation 32 bits
//! link     address of the record, bit 0 set; 0 is a free entry
//! record   line 0: generation 4 | key bytes and flags 4 | value bytes 4 | tag 4 | key | value ...
//!          line 1...: generation 4 | ... value
//! ```
//! A segment holds the keys of its partition whose tag starts with `depth` bits of `prefix`. Each line of a
//! record starts with the record's generation, which the bucket's entry repeats: a reader that finds the
//! same generation in every line has one record, whole, even if the memory is reused meanwhile (the
//! per-line versions of FaRM, without a second read of the bucket). `dht_lookup.c` in the library of calls
//! reads the same bytes by the same rules.

use farside::{AllocationHint, AllocationSpec, Durability, GlobalAddress, LineSize};

/// Maximum bytes of a key.
pub const KEY_BYTES_MAX: usize = 65_536;
/// Maximum bytes of a value.
pub const VALUE_BYTES_MAX: usize = 64 << 20;

/// Bytes of a bucket, of a segment's header, and of their lines.
pub(super) const BUCKET_BYTES: usize = 256;
/// Entries of a bucket.
pub(super) const SLOTS: usize = 15;
/// Buckets of a segment; with the header sixteen lines.
pub(super) const BUCKETS: usize = 15;
/// Bytes of a segment.
pub(super) const SEGMENT_BYTES: usize = BUCKET_BYTES * (BUCKETS + 1);
/// Bits of a tag, and so the deepest split.
pub(super) const TAG_BITS: u32 = 24;
/// Bytes before a record's key in its first line.
pub(super) const RECORD_HEADER: usize = 16;
/// Bytes before the payload in a record's further lines.
pub(super) const LINE_HEADER: usize = 4;

const METAS: usize = 16;
const LINKS: usize = METAS + 8 * SLOTS;
const CHILDREN: usize = 32;
const SEGMENT_MAGIC: u64 = u64::from_le_bytes(*b"FSegment");
const ROOT_MAGIC: u64 = u64::from_le_bytes(*b"FarsiDHT");
const FORMAT: u16 = 1;
/// Bytes of the root before the partitions' addresses.
pub(super) const ROOT_HEADER: usize = 32;

const _: () = assert!(LINKS + 8 * SLOTS == BUCKET_BYTES);
const _: () = assert!(CHILDREN + 8 * TAG_BITS as usize <= BUCKET_BYTES);

/// The line size of segments.
pub(super) fn bucket_line() -> LineSize {
    LineSize::from_bytes(BUCKET_BYTES).expect("256 is a line size")
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// An address in its stored form: never zero.
fn link(address: GlobalAddress) -> u64 {
    address.to_bits() | 1
}

fn unlink(bits: u64) -> Option<GlobalAddress> {
    if bits & 1 == 0 {
        return None;
    }
    GlobalAddress::from_bits(bits & !1).ok()
}

/// An entry of a bucket: the record's address, and enough metadata to skip others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct BucketEntry {
    meta: u64,
    link: u64,
}

impl BucketEntry {
    /// A free entry.
    pub(super) const FREE: Self = Self { meta: 0, link: 0 };
    /// The value of `lines` for records with this many lines or more.
    pub(super) const LINES_MANY: u32 = 255;

    /// Creates the entry of a record.
    pub(super) fn new(tag: u32, lines: u32, generation: u32, address: GlobalAddress) -> Self {
        debug_assert!(tag < 1 << TAG_BITS && lines > 0);
        let lines = u64::from(lines.min(Self::LINES_MANY));
        Self {
            meta: (u64::from(tag) << 40) | (lines << 32) | u64::from(generation),
            link: link(address),
        }
    }

    /// Whether the entry is free.
    pub(super) fn is_free(self) -> bool {
        self.link == 0
    }

    /// The record's tag.
    pub(super) fn tag(self) -> u32 {
        (self.meta >> 40) as u32
    }

    /// Lines of the record, or `LINES_MANY` for that many and more.
    pub(super) fn lines(self) -> u32 {
        (self.meta >> 32) as u32 & 0xff
    }

    /// The record's generation.
    pub(super) fn generation(self) -> u32 {
        self.meta as u32
    }

    /// The record's address; `None` for a free or forged entry.
    pub(super) fn address(self) -> Option<GlobalAddress> {
        unlink(self.link)
    }
}

/// The state of a bucket in a split.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BucketState {
    /// It is not being split.
    Normal,
    /// It is being split: its entries do not change until its half of them has moved.
    Frozen,
    /// The new half of a split: its entries are still in the parent's bucket.
    Pending,
}

/// The location of a key's entry according to one bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryLocation {
    /// In this bucket, to be read and changed.
    Here,
    /// In this bucket until the split in progress is complete: to be read only.
    HereFrozen,
    /// In the child of this number, or a descendant of it.
    Child(u32),
    /// In the child of this number or still in this bucket: the split decides.
    Moving,
    /// Still in the parent.
    Pending,
}

/// The bytes of a bucket.
#[derive(Clone, Debug)]
pub(super) struct Bucket(pub(super) [u8; BUCKET_BYTES]);

impl Bucket {
    /// An empty bucket.
    pub(super) fn new(table: u64, prefix: u32, depth: u32, state: BucketState) -> Self {
        let mut bucket = Self([0; BUCKET_BYTES]);
        bucket.0[..8].copy_from_slice(&table.to_le_bytes());
        bucket.0[8..12].copy_from_slice(&prefix.to_le_bytes());
        let mut view = BucketMut(&mut bucket.0);
        view.become_state(depth, state);
        bucket
    }

    /// The entry at `slot`.
    #[inline]
    pub(super) fn entry(&self, slot: usize) -> BucketEntry {
        entry(&self.0, slot)
    }

    /// The location of `tag`; `None` if these bytes are no bucket of `table`.
    #[inline]
    pub(super) fn place(&self, table: u64, tag: u32) -> Option<EntryLocation> {
        place(&self.0, table, tag)
    }

    /// Bits of the tag that this bucket's keys have in common.
    pub(super) fn depth(&self) -> u32 {
        u32::from(self.0[12])
    }

    /// The common bits, at the top of 24.
    pub(super) fn prefix(&self) -> u32 {
        u32_at(&self.0, 8)
    }

    /// Its state; `None` for bytes that are no bucket.
    pub(super) fn state(&self) -> Option<BucketState> {
        state(&self.0)
    }

    /// Slots whose record may have `tag`, as a bit mask.
    #[inline]
    pub(super) fn candidates(&self, tag: u32) -> u32 {
        let mut mask = 0;
        for slot in 0..SLOTS {
            let meta = u64_at(&self.0, METAS + 8 * slot);
            mask |= u32::from((meta >> 40) as u32 == tag && meta != 0) << slot;
        }
        mask
    }
}

#[inline]
fn entry(bytes: &[u8], slot: usize) -> BucketEntry {
    BucketEntry { meta: u64_at(bytes, METAS + 8 * slot), link: u64_at(bytes, LINKS + 8 * slot) }
}

#[inline]
fn place(bytes: &[u8], table: u64, tag: u32) -> Option<EntryLocation> {
    let depth = u32::from(bytes[12]);
    if u64_at(bytes, 0) != table || depth > TAG_BITS {
        return None;
    }
    let prefix = u32_at(bytes, 8);
    if prefix >> TAG_BITS != 0 {
        return None;
    }
    let differs = tag ^ prefix;
    if differs >> (TAG_BITS - depth) != 0 {
        return Some(EntryLocation::Child(differs.leading_zeros() - (u32::BITS - TAG_BITS)));
    }
    match state(bytes)? {
        BucketState::Normal => Some(EntryLocation::Here),
        BucketState::Pending => Some(EntryLocation::Pending),
        BucketState::Frozen if goes_to_child(tag, depth) => Some(EntryLocation::Moving),
        BucketState::Frozen => Some(EntryLocation::HereFrozen),
    }
}

/// Whether a split at `depth` moves `tag` to the child.
pub(super) fn goes_to_child(tag: u32, depth: u32) -> bool {
    depth < TAG_BITS && (tag >> (TAG_BITS - 1 - depth)) & 1 == 1
}

fn state(bytes: &[u8]) -> Option<BucketState> {
    match bytes[13] {
        0 => Some(BucketState::Normal),
        1 => Some(BucketState::Frozen),
        2 => Some(BucketState::Pending),
        _ => None,
    }
}

/// A bucket's line within an atomic step.
pub(super) struct BucketMut<'a>(pub(super) &'a mut [u8]);

impl BucketMut<'_> {
    /// The location of `tag`.
    pub(super) fn place(&self, table: u64, tag: u32) -> Option<EntryLocation> {
        place(self.0, table, tag)
    }

    /// The entry at `slot`.
    pub(super) fn entry(&self, slot: usize) -> BucketEntry {
        entry(self.0, slot)
    }

    /// Stores an entry.
    pub(super) fn set(&mut self, slot: usize, entry: BucketEntry) {
        self.0[METAS + 8 * slot..][..8].copy_from_slice(&entry.meta.to_le_bytes());
        self.0[LINKS + 8 * slot..][..8].copy_from_slice(&entry.link.to_le_bytes());
    }

    /// The first free entry.
    pub(super) fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|slot| self.entry(*slot).is_free())
    }

    /// Depth and state; `None` for bytes that are no bucket of `table`.
    pub(super) fn stage(&self, table: u64) -> Option<(u32, BucketState)> {
        if u64_at(self.0, 0) != table {
            return None;
        }
        Some((u32::from(self.0[12]), state(self.0)?))
    }

    /// Sets depth and state.
    pub(super) fn become_state(&mut self, depth: u32, state: BucketState) {
        self.0[12] = depth as u8;
        self.0[13] = match state {
            BucketState::Normal => 0,
            BucketState::Frozen => 1,
            BucketState::Pending => 2,
        };
    }

    /// Copies the entries of another bucket that satisfy `keep`.
    pub(super) fn copy_entries(&mut self, from: &Bucket, keep: impl Fn(u32) -> bool) {
        for slot in 0..SLOTS {
            let entry = from.entry(slot);
            let kept = !entry.is_free() && keep(entry.tag());
            self.set(slot, if kept { entry } else { BucketEntry::FREE });
        }
    }
}

/// The bytes of a segment's first line.
#[derive(Clone, Debug)]
pub(super) struct SegmentHeader(pub(super) [u8; BUCKET_BYTES]);

impl SegmentHeader {
    /// The header of a new segment; `parent` is the segment it splits from.
    pub(super) fn new(
        table: u64,
        partition: u16,
        prefix: u32,
        depth: u32,
        parent: Option<GlobalAddress>,
    ) -> Self {
        let mut bytes = [0; BUCKET_BYTES];
        bytes[..8].copy_from_slice(&table.to_le_bytes());
        bytes[8..12].copy_from_slice(&prefix.to_le_bytes());
        bytes[12] = depth as u8;
        bytes[13] = depth as u8;
        bytes[14..16].copy_from_slice(&partition.to_le_bytes());
        bytes[16..24].copy_from_slice(&parent.map_or(0, link).to_le_bytes());
        bytes[24..32].copy_from_slice(&SEGMENT_MAGIC.to_le_bytes());
        Self(bytes)
    }

    /// Whether these bytes are a header of `table`.
    pub(super) fn is_valid(&self, table: u64) -> bool {
        u64_at(&self.0, 0) == table && u64_at(&self.0, 24) == SEGMENT_MAGIC
    }

    /// Bits in common after the last finished split.
    pub(super) fn depth(&self) -> u32 {
        u32::from(self.0[12])
    }

    /// Bits in common when it was created.
    pub(super) fn created(&self) -> u32 {
        u32::from(self.0[13])
    }

    /// Its partition.
    pub(super) fn partition(&self) -> u16 {
        u16::from_le_bytes([self.0[14], self.0[15]])
    }

    /// The segment it split from.
    pub(super) fn parent(&self) -> Option<GlobalAddress> {
        unlink(u64_at(&self.0, 16))
    }

    /// The segment that took the keys with bit `number` set.
    pub(super) fn child(&self, number: u32) -> Option<GlobalAddress> {
        child(&self.0, number)
    }
}

fn child(bytes: &[u8], number: u32) -> Option<GlobalAddress> {
    unlink(u64_at(bytes, CHILDREN + 8 * number as usize))
}

/// A segment's first line within an atomic step.
pub(super) struct SegmentHeaderMut<'a>(pub(super) &'a mut [u8]);

impl SegmentHeaderMut<'_> {
    /// Announces a split at `depth` into `new`; returns the child of the split, which is another one if
    /// that was announced first, or `None` if that split is finished.
    pub(super) fn announce(&mut self, depth: u32, new: GlobalAddress) -> Option<GlobalAddress> {
        if u32::from(self.0[12]) != depth {
            return None;
        }
        if let Some(child) = child(self.0, depth) {
            return Some(child);
        }
        let at = CHILDREN + 8 * depth as usize;
        self.0[at..at + 8].copy_from_slice(&link(new).to_le_bytes());
        Some(new)
    }

    /// Records that the split at `depth` is finished.
    pub(super) fn finish(&mut self, depth: u32) {
        if u32::from(self.0[12]) == depth {
            self.0[12] = depth as u8 + 1;
        }
    }
}

/// The parameters of a table, stored in its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TableShape {
    /// Random; stored in every bucket.
    pub(super) table: u64,
    /// Seed of the hash.
    pub(super) seed: u64,
    /// Bits of the hash that choose the partition, 1 to 8.
    pub(super) partition_bits: u32,
    /// The line size of records that do not fit a smaller line.
    pub(super) record_line: LineSize,
    /// Whether the table is in memory of nodes with state.
    pub(super) logged: bool,
}

impl TableShape {
    /// The allocation of a part of the table.
    pub(super) fn allocation(
        &self,
        hint: AllocationHint,
        line: Option<LineSize>,
    ) -> AllocationSpec {
        let durability = if self.logged { Durability::Logged } else { Durability::Volatile };
        AllocationSpec::new(hint).line_size(line).durability(durability)
    }

    /// Encodes the first bytes of the root.
    pub(super) fn encode(&self) -> [u8; ROOT_HEADER] {
        let mut bytes = [0; ROOT_HEADER];
        bytes[..8].copy_from_slice(&ROOT_MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.table.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.seed.to_le_bytes());
        bytes[24] = self.partition_bits as u8;
        bytes[25] = self.record_line.class();
        bytes[26..28].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[28] = u8::from(self.logged);
        bytes
    }

    /// Decodes the first bytes of a root; `None` if they have another format.
    pub(super) fn decode(bytes: &[u8; ROOT_HEADER]) -> Option<Self> {
        let format = u16::from_le_bytes([bytes[26], bytes[27]]);
        if u64_at(bytes, 0) != ROOT_MAGIC || format != FORMAT {
            return None;
        }
        Some(Self {
            table: u64_at(bytes, 8),
            seed: u64_at(bytes, 16),
            partition_bits: Some(u32::from(bytes[24])).filter(|bits| (1..=8).contains(bits))?,
            record_line: LineSize::from_class(bytes[25])?,
            logged: match bytes[28] {
                0 => false,
                1 => true,
                _ => return None,
            },
        })
    }

    /// The tag of a hash: the 24 bits after the partition's.
    #[inline]
    pub(super) fn tag(&self, hash: u64) -> u32 {
        ((hash << self.partition_bits) >> (64 - TAG_BITS)) as u32
    }
}

/// The bucket of a hash within its segment.
#[inline]
pub(super) fn bucket_index(hash: u64) -> usize {
    (((hash & 0xffff_ffff) * BUCKETS as u64) >> 32) as usize
}

/// The address of bucket `index` of a segment.
#[inline]
pub(super) fn bucket_address(segment: GlobalAddress, index: usize) -> Option<GlobalAddress> {
    segment.checked_add((BUCKET_BYTES * (1 + index)) as u64)
}

/// Encodes an address of the root's list.
pub(super) fn encode_address(address: GlobalAddress) -> [u8; 8] {
    link(address).to_le_bytes()
}

/// Decodes an address of the root's list.
pub(super) fn decode_address(bytes: [u8; 8]) -> Option<GlobalAddress> {
    unlink(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside::NodeId;

    const SHAPE: TableShape = TableShape {
        table: 1,
        seed: 2,
        partition_bits: 8,
        record_line: LineSize::MAX,
        logged: false,
    };

    fn address(offset: u64) -> GlobalAddress {
        GlobalAddress::new(NodeId(3), LineSize::DEFAULT, offset).unwrap()
    }

    #[test]
    fn an_entry_keeps_its_parts() {
        let entry = BucketEntry::new(0xab_cdef, 7, 0xffff_ffff, address(1 << 40));
        assert_eq!(entry.tag(), 0xab_cdef);
        assert_eq!(entry.lines(), 7);
        assert_eq!(entry.generation(), 0xffff_ffff);
        assert_eq!(entry.address(), Some(address(1 << 40)));
        assert!(!entry.is_free() && BucketEntry::FREE.is_free());
        assert_eq!(BucketEntry::FREE.address(), None);
    }

    #[test]
    fn bucket_locates_its_tags() {
        let top = 0b1010 << 20;
        let mut bucket = Bucket::new(9, top, 4, BucketState::Normal);
        assert_eq!(bucket.place(8, top), None, "another table's bucket");
        assert_eq!(bucket.place(9, top | 5), Some(EntryLocation::Here));
        assert_eq!(bucket.place(9, 0b1011 << 20), Some(EntryLocation::Child(3)));
        assert_eq!(bucket.place(9, 0b1100 << 20), Some(EntryLocation::Child(1)));
        BucketMut(&mut bucket.0).become_state(4, BucketState::Frozen);
        assert_eq!(bucket.place(9, top), Some(EntryLocation::HereFrozen));
        assert_eq!(bucket.place(9, top | (1 << 19)), Some(EntryLocation::Moving));
        BucketMut(&mut bucket.0).become_state(4, BucketState::Pending);
        assert_eq!(bucket.place(9, top), Some(EntryLocation::Pending));
        bucket.0[13] = 77;
        assert_eq!(bucket.place(9, top), None, "a state that cannot be");
    }

    #[test]
    fn a_tag_of_zero_is_no_free_place() {
        let mut bucket = Bucket::new(9, 0, 0, BucketState::Normal);
        assert_eq!(bucket.candidates(0), 0);
        BucketMut(&mut bucket.0).set(14, BucketEntry::new(0, 1, 1, address(64)));
        assert_eq!(bucket.candidates(0), 1 << 14);
        assert_eq!(bucket.candidates(1), 0);
    }

    #[test]
    fn a_split_is_announced_once_and_finished_once() {
        let mut header = SegmentHeader::new(9, 2, 0, 5, None);
        let mut view = SegmentHeaderMut(&mut header.0);
        assert_eq!(view.announce(5, address(4096)), Some(address(4096)));
        assert_eq!(view.announce(5, address(8192)), Some(address(4096)));
        view.finish(5);
        view.finish(5);
        assert_eq!(view.announce(5, address(8192)), None);
        assert_eq!((header.depth(), header.created()), (6, 5));
        assert_eq!(header.child(5), Some(address(4096)));
    }

    #[test]
    fn a_root_of_other_bytes_is_refused() {
        let shape = SHAPE;
        let bytes = shape.encode();
        assert_eq!(TableShape::decode(&bytes), Some(shape));
        let logged = TableShape { logged: true, ..shape };
        assert_eq!(TableShape::decode(&logged.encode()), Some(logged));
        for (at, value) in [(0, 0), (24, 0), (24, 9), (25, 11), (26, 2), (28, 2)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert_eq!(TableShape::decode(&bytes), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn hashes_fall_apart_into_tag_and_bucket() {
        let shape = SHAPE;
        let hash = 0xab12_3456_ffff_ffff;
        assert_eq!(shape.tag(hash), 0x12_3456);
        assert_eq!(bucket_index(hash), BUCKETS - 1);
        assert_eq!(bucket_index(0xffff_ffff_0000_0000), 0);
    }
}
