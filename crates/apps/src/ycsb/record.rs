//! The contents of records: bytes that can be checked against their key.
//!
//! A field is a random 8-byte stamp followed by bytes derived from stamp, key and field number. So a value
//! under the wrong key, a field in the wrong position and a torn field are all detected. Fields of under 16
//! bytes are derived from key and number alone. A record is its fields in sequence; if their lengths vary,
//! each is preceded by its length.

use super::generator::Zipfian;
use super::random::WorkloadRandom;
use super::workload::{FieldLength, Workload};
use crate::dht::scramble;

/// Fields shorter than this have no stamp.
const STAMPED_BYTES: usize = 16;
/// Bytes of a length, if lengths vary.
const LENGTH_BYTES: usize = 4;

/// Generates and checks the records of a workload.
#[derive(Clone, Debug)]
pub struct Records {
    fields: usize,
    length: Length,
}

#[derive(Clone, Debug)]
enum Length {
    Constant(usize),
    Uniform(u32, u32),
    Zipfian(Zipfian),
}

impl Records {
    /// Creates a generator for the fields of `workload`.
    pub fn new(workload: &Workload) -> Self {
        let length = match workload.field_length {
            FieldLength::Constant(bytes) => Length::Constant(bytes as usize),
            FieldLength::Uniform(min, max) => Length::Uniform(min, max),
            FieldLength::Zipfian(min, max) => Length::Zipfian(Zipfian::new(
                min.into(),
                max.into(),
                super::generator::ZIPFIAN_CONSTANT,
            )),
        };
        Self { fields: workload.fields as usize, length }
    }

    /// Fields of a record.
    pub fn fields(&self) -> usize {
        self.fields
    }

    /// Generates a whole record for `key`.
    pub fn fill(&mut self, key: &[u8], random: &mut WorkloadRandom, out: &mut Vec<u8>) {
        out.clear();
        for field in 0..self.fields {
            let bytes = self.next_length(random);
            if self.varies() {
                out.extend_from_slice(&(bytes as u32).to_le_bytes());
            }
            let start = out.len();
            out.resize(start + bytes, 0);
            fill_field(key, field, random.bits(), &mut out[start..]);
        }
    }

    /// Rewrites field `field` of the record of `key`; false if `record` is no record.
    pub fn change(
        &mut self,
        key: &[u8],
        field: usize,
        random: &mut WorkloadRandom,
        record: &mut Vec<u8>,
    ) -> bool {
        let Some(old) = self.part(record, field) else {
            return false;
        };
        if !self.varies() {
            fill_field(key, field, random.bits(), &mut record[old]);
            return true;
        }
        let bytes = self.next_length(random);
        let mut new = (bytes as u32).to_le_bytes().to_vec();
        new.resize(LENGTH_BYTES + bytes, 0);
        fill_field(key, field, random.bits(), &mut new[LENGTH_BYTES..]);
        record.splice(old.start - LENGTH_BYTES..old.end, new);
        true
    }

    /// Whether these bytes are a record of `key`; with `only`, whether that field is correct.
    pub fn verify(&self, key: &[u8], record: &[u8], only: Option<usize>) -> bool {
        let mut wanted = Vec::new();
        let right = |field: usize, bytes: &[u8], wanted: &mut Vec<u8>| {
            wanted.clear();
            wanted.resize(bytes.len(), 0);
            fill_field(key, field, stamp_of(bytes), wanted);
            wanted == bytes
        };
        if let Some(field) = only {
            let part = self.part(record, field);
            return part.is_some_and(|part| right(field, &record[part], &mut wanted));
        }
        let mut end = 0;
        let all = (0..self.fields).all(|field| {
            self.part_after(record, end).is_some_and(|part| {
                end = part.end;
                right(field, &record[part], &mut wanted)
            })
        });
        all && end == record.len()
    }

    fn varies(&self) -> bool {
        !matches!(self.length, Length::Constant(_))
    }

    fn next_length(&mut self, random: &mut WorkloadRandom) -> usize {
        match &mut self.length {
            Length::Constant(bytes) => *bytes,
            Length::Uniform(min, max) => {
                let range = u64::from(*max - *min) + 1;
                (u64::from(*min) + random.bits() % range) as usize
            }
            Length::Zipfian(zipfian) => zipfian.next(random) as usize,
        }
    }

    /// The byte range of field `field`.
    fn part(&self, record: &[u8], field: usize) -> Option<std::ops::Range<usize>> {
        if let Length::Constant(bytes) = self.length {
            let part = field * bytes..(field + 1) * bytes;
            return (part.end <= record.len()).then_some(part);
        }
        (0..=field).try_fold(0..0, |before, _| self.part_after(record, before.end))
    }

    /// The byte range of the field that begins at `end`.
    fn part_after(&self, record: &[u8], end: usize) -> Option<std::ops::Range<usize>> {
        let (start, bytes) = match self.length {
            Length::Constant(bytes) => (end, bytes),
            Length::Uniform(..) | Length::Zipfian(_) => {
                let length = record.get(end..end + LENGTH_BYTES)?;
                let bytes = u32::from_le_bytes(length.try_into().expect("four bytes"));
                (end + LENGTH_BYTES, bytes as usize)
            }
        };
        (start + bytes <= record.len()).then_some(start..start + bytes)
    }
}

/// A digest of a value: equal values have equal ones, others hardly ever.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(8);
    let state = words.by_ref().fold(bytes.len() as u64, |state, word| {
        let word = u64::from_le_bytes(word.try_into().expect("eight bytes"));
        (state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    });
    words.remainder().iter().fold(scramble(state), |state, byte| scramble(state ^ u64::from(*byte)))
}

fn stamp_of(field: &[u8]) -> u64 {
    match field.first_chunk::<8>() {
        Some(stamp) if field.len() >= STAMPED_BYTES => u64::from_le_bytes(*stamp),
        _ => 0,
    }
}

fn fill_field(key: &[u8], field: usize, stamp: u64, out: &mut [u8]) {
    let stamped = out.len() >= STAMPED_BYTES;
    let (stamp, body) = if stamped { (stamp, &mut out[8..]) } else { (0, &mut *out) };
    let mut state = scramble(digest(key) ^ scramble(field as u64 ^ scramble(stamp)));
    for word in body.chunks_mut(8) {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        word.copy_from_slice(&(state ^ (state >> 32)).to_le_bytes()[..word.len()]);
    }
    if stamped {
        out[..8].copy_from_slice(&stamp.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(field_length: FieldLength, fields: u32) -> Records {
        Records::new(&Workload { field_length, fields, ..Workload::default() })
    }

    #[test]
    fn the_standard_record_has_a_thousand_bytes() {
        let mut records = of(FieldLength::Constant(100), 10);
        let mut record = Vec::new();
        records.fill(b"user1", &mut WorkloadRandom::new(1), &mut record);
        assert_eq!(record.len(), 1_000);
    }

    #[test]
    fn records_verify_before_and_after_changes_and_only_so() {
        let lengths = [
            FieldLength::Constant(100),
            FieldLength::Constant(5),
            FieldLength::Uniform(1, 50),
            FieldLength::Zipfian(3, 70),
        ];
        let mut random = WorkloadRandom::new(2);
        for length in lengths {
            let mut records = of(length, 7);
            let mut record = Vec::new();
            records.fill(b"user1", &mut random, &mut record);
            for field in [0, 6, 3, 3] {
                assert!(records.change(b"user1", field, &mut random, &mut record));
                assert!(records.verify(b"user1", &record, None), "{length:?}");
                assert!(records.verify(b"user1", &record, Some(field)));
            }
            assert!(!records.verify(b"user2", &record, None), "{length:?}: another key's");
            assert!(!records.verify(b"user1", &record[1..], None), "{length:?}: shifted");
            assert!(
                !records.verify(b"user1", &record[..record.len() - 1], None),
                "{length:?}: cut"
            );
            let longer = [&record[..], &[0]].concat();
            assert!(!records.verify(b"user1", &longer, None), "{length:?}: longer");
            for at in 0..record.len() {
                record[at] ^= 4;
                assert!(!records.verify(b"user1", &record, None), "{length:?}: byte {at}");
                record[at] ^= 4;
            }
        }
    }

    #[test]
    fn a_torn_field_shows() {
        let mut records = of(FieldLength::Constant(100), 1);
        let mut random = WorkloadRandom::new(2);
        let (mut old, mut new) = (Vec::new(), Vec::new());
        records.fill(b"user1", &mut random, &mut old);
        records.fill(b"user1", &mut random, &mut new);
        for cut in 1..100 {
            let torn = [&old[..cut], &new[cut..]].concat();
            assert!(!records.verify(b"user1", &torn, None), "at {cut}");
        }
    }

    #[test]
    fn invalid_record_is_not_changed() {
        let mut records = of(FieldLength::Uniform(1, 50), 2);
        let mut nothing = vec![255; 9];
        assert!(!records.change(b"k", 1, &mut WorkloadRandom::new(1), &mut nothing));
        assert_eq!(nothing, [255; 9]);
    }

    #[test]
    fn digests_distinguish_values() {
        let values: Vec<Vec<u8>> = (0..500_u32).map(|i| vec![i as u8; i as usize / 5]).collect();
        let mut digests: Vec<u64> = values.iter().map(|value| digest(value)).collect();
        digests.sort_unstable();
        digests.dedup();
        let mut distinct = values.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(digests.len(), distinct.len());
    }
}
