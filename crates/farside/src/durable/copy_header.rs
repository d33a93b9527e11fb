//! The headers and the table of a copy, in bytes.

use super::device::Segment;
use xxhash_rust::xxh64::xxh64;

pub(super) const MAGIC: &[u8; 16] = b"farside rep 0001";
pub(super) const HEADER: usize = 1024;
pub(super) const ENTRY: usize = 32;
/// Where the table begins.
pub(super) const TABLE: usize = 2 * HEADER;
/// Bytes of a copy before its segments.
pub(super) const COPY_HEAD_BYTES: u64 = 64 << 10;
pub(super) const SLOTS_MAX: usize = (COPY_HEAD_BYTES as usize - TABLE) / ENTRY;
/// Words of a header before those of the copies.
const WORDS: usize = 6;
/// Copies that a header can name, before its checksum.
pub(super) const NAMES_MAX: usize = (HEADER - 16 - 8) / 8 - WORDS;

/// The header of a copy.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct ReplicaHeader {
    pub(super) id: u64,
    pub(super) sequence: u64,
    /// The copy has all of this epoch; zero of none.
    pub(super) epoch: u64,
    /// An opening has begun this epoch.
    pub(super) begun: u64,
    pub(super) slot_bytes: u64,
    /// Names of the copies of the epoch.
    pub(super) named: Vec<u64>,
    /// Those of the epoch before, while not all copies are known to have this header: an opening needs enough of both.
    /// Empty if they are the same.
    pub(super) before: Vec<u64>,
    /// The copy has lost bytes: it knows of the epoch, and nothing is taken from it.
    pub(super) is_short: bool,
}

/// The bit of a short copy in the word of the counts.
const SHORT: u64 = 1 << 63;

impl ReplicaHeader {
    pub(super) fn encode(&self) -> [u8; HEADER] {
        let Self { id, sequence, epoch, begun, slot_bytes, named, before, is_short } = self;
        let short = if *is_short { SHORT } else { 0 };
        let counts = named.len() as u64 | (before.len() as u64) << 32 | short;
        let words = [*id, *sequence, *epoch, *begun, *slot_bytes, counts];
        let mut out = [0; HEADER];
        out[..16].copy_from_slice(MAGIC);
        for (at, word) in words.iter().chain(named).chain(before).enumerate() {
            out[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh64(&out[..HEADER - 8], 0);
        out[HEADER - 8..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// `None` of one that was never written, or whose writer ended within it.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let is_whole = word(bytes, HEADER - 8) == xxh64(&bytes[..HEADER - 8], 0);
        let [id, sequence, epoch, begun, slot_bytes, counts] =
            std::array::from_fn(|at: usize| word(bytes, 16 + 8 * at));
        let [count, count_before] = [counts as u32 as usize, ((counts & !SHORT) >> 32) as usize];
        if bytes[..16] != *MAGIC || !is_whole || count + count_before > NAMES_MAX {
            return None;
        }
        let name = |at| word(bytes, 16 + 8 * (WORDS + at));
        let named = (0..count).map(name).collect();
        let before = (count..count + count_before).map(name).collect();
        let is_short = counts & SHORT != 0;
        Some(Self { id, sequence, epoch, begun, slot_bytes, named, before, is_short })
    }
}

/// Whether a header's place may be overwritten: it is empty, or has a header, perhaps a part of one.
pub(super) fn is_free(header: &[u8]) -> bool {
    header[..16].iter().zip(MAGIC).all(|(byte, magic)| *byte == 0 || byte == magic)
        && (header[..16] != [0; 16] || header.iter().all(|byte| *byte == 0))
}

pub(super) fn encode_entry(segment: Option<Segment>) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    if let Some(segment) = segment {
        out[..8].copy_from_slice(&segment.begin.to_le_bytes());
        out[8..16].copy_from_slice(&segment.bytes.to_le_bytes());
        out[16] = 1;
        let checksum = xxh64(&out[..24], 1);
        out[24..].copy_from_slice(&checksum.to_le_bytes());
    }
    out
}

/// The segment of an entry that is whole: another one is of a `create` that did not return.
pub(super) fn decode_entry(entry: &[u8]) -> Option<Segment> {
    let is_right = entry[16] == 1 && word(entry, 24) == xxh64(&entry[..24], 1);
    is_right.then(|| Segment { begin: word(entry, 0), bytes: word(entry, 8) })
}

pub(super) fn hash(address: &str) -> u64 {
    xxh64(address.as_bytes(), 0)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}
