//! The form of records of logs, in memory and in files.
//!
//! ```text
//!  0  checksum, 4 bytes | kind, 1 byte | bytes of the payload, 3 bytes
//!  8  log sequence number: the position of the record in its log
//! 16  counter    what these two mean is the log's own
//! 24  address
//! 32  payload, then zeros up to the next multiple of 32
//! ```
//! The first word is never zero. In memory that several programs write it is stored last, by a compare-and-swap from
//! zero: it decides that the record exists. The checksum covers the rest, from a seed of the log. As the sequence number
//! is the position, bytes of an earlier use of the same place are no record there.

pub use farside_protocol::remote_log::{CloseStep, HoleCloser, PlaceState};
use xxhash_rust::xxh64::Xxh64;

/// Bytes of a header, of which each record takes a multiple.
pub const RECORD_GRANULE: u64 = 32;
/// Most bytes of a payload.
pub const RECORD_BYTES_MAX: usize = (1 << 24) - 1;

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordHeader {
    /// What the record is, for its log; not zero.
    pub kind: u8,
    /// Bytes of its payload, at most [`RECORD_BYTES_MAX`].
    pub bytes: u32,
    /// Its position in its log.
    pub sequence: u64,
    /// For its log.
    pub counter: u64,
    /// For its log.
    pub address: u64,
}

impl RecordHeader {
    /// Returns the bytes that a record with this payload takes in its log.
    ///
    /// ```
    /// # use farside::record::RecordHeader;
    /// assert_eq!([0, 1, 32, 33].map(RecordHeader::footprint), [32, 64, 64, 96]);
    /// ```
    pub const fn footprint(bytes: u64) -> u64 {
        RECORD_GRANULE + bytes.next_multiple_of(RECORD_GRANULE)
    }

    /// Returns the header as it is stored, for a payload in parts.
    pub fn encode<'a>(&self, seed: u64, payload: impl IntoIterator<Item = &'a [u8]>) -> [u8; 32] {
        let mut out = [0; 32];
        out[4] = self.kind;
        out[5..8].copy_from_slice(&self.bytes.to_le_bytes()[..3]);
        for (at, word) in [self.sequence, self.counter, self.address].into_iter().enumerate() {
            out[8 * at + 8..8 * at + 16].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = checksum(seed, &out, payload);
        out[..4].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Returns the kind and the payload's bytes of a first word; `None` if it is zero.
    pub const fn first_word(word: u64) -> Option<(u8, u32)> {
        match (word >> 32) as u8 {
            0 => None,
            kind => Some((kind, (word >> 40) as u32)),
        }
    }

    /// Returns the header of a record if its checksum is right.
    pub fn decode(seed: u64, header: &[u8; 32], payload: &[u8]) -> Option<Self> {
        let decoded = Self::unchecked(header);
        let first = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let is_right = decoded.kind != 0
            && decoded.bytes as usize == payload.len()
            && first == checksum(seed, header, std::iter::once(payload));
        is_right.then_some(decoded)
    }

    /// Returns the header without a look at its checksum.
    pub(crate) fn unchecked(header: &[u8; 32]) -> Self {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
        let (kind, bytes) = Self::first_word(word(0)).unwrap_or_default();
        Self { kind, bytes, sequence: word(8), counter: word(16), address: word(24) }
    }
}

/// The checksum of a header, without its first 4 bytes, and of a payload.
fn checksum<'a>(seed: u64, header: &[u8; 32], payload: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let mut hash = Xxh64::new(seed);
    hash.update(&header[4..]);
    payload.into_iter().for_each(|part| hash.update(part));
    hash.digest() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_and_each_changed_bit_is_found() {
        let header =
            RecordHeader { kind: 7, bytes: 40, sequence: 1 << 40, counter: 3, address: u64::MAX };
        let payload: Vec<u8> = (0..40).collect();
        let stored = header.encode(9, [&payload[..13], &payload[13..]]);
        assert_eq!(RecordHeader::decode(9, &stored, &payload), Some(header));
        assert_eq!(RecordHeader::decode(8, &stored, &payload), None);
        assert_eq!(RecordHeader::decode(9, &stored, &payload[..39]), None);
        for bit in 0..8 * (32 + 40) {
            let (mut stored, mut payload) = (stored, payload.clone());
            match bit / 8 {
                at @ 0..32 => stored[at] ^= 1 << (bit % 8),
                at => payload[at - 32] ^= 1 << (bit % 8),
            }
            assert_eq!(RecordHeader::decode(9, &stored, &payload), None, "bit {bit}");
        }
    }
}
