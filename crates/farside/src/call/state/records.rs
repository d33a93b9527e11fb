//! Records of one length, side by side in chunks.

/// Most bytes of a chunk that has several records: so few that one is made, cleared or freed within some tens
/// of microseconds, most of which the system takes to find its pages.
pub(super) const CHUNK_BYTES: usize = 32 * 1024;

/// So many records, zeros at first. Those that nobody has written to take no memory; all others are in a
/// chunk that is made when the first of its records is written, and none is ever moved.
#[derive(Debug, Default)]
pub(super) struct Records {
    record_bytes: usize,
    count: usize,
    /// A chunk has two to the power of this many records, the last one what is left.
    shift: u32,
    /// Empty where nobody has written.
    chunks: Vec<Chunk>,
    /// Chunks made so far.
    made: usize,
}

/// The bytes of some records.
pub(super) type Chunk = Box<[u8]>;

impl Records {
    pub(super) fn new(record_bytes: usize, count: usize) -> Self {
        let shift = (CHUNK_BYTES / record_bytes.max(1)).max(1).ilog2();
        let chunks = (0..count.div_ceil(1 << shift)).map(|_| Chunk::default()).collect();
        Self { record_bytes, count, shift, chunks, made: 0 }
    }

    pub(super) const fn count(&self) -> usize {
        self.count
    }

    /// Chunks made so far.
    pub(super) const fn made(&self) -> usize {
        self.made
    }

    /// Where a record is: its chunk, and its bytes there.
    fn place(&self, index: usize) -> Option<(usize, std::ops::Range<usize>)> {
        let within = index & ((1 << self.shift) - 1);
        let start = within * self.record_bytes;
        let place = (index >> self.shift, start..start + self.record_bytes);
        (index < self.count).then_some(place)
    }

    /// The bytes of a record, none at all where nobody has written to its chunk; `None` where there is no
    /// such record.
    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let (chunk, range) = self.place(index)?;
        Some(self.chunks.get(chunk)?.get(range).unwrap_or_default())
    }

    /// The bytes of a record, to be written; `None` where there is no such record.
    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let (chunk, range) = self.place(index)?;
        let left = self.count - (chunk << self.shift);
        let chunk = self.chunks.get_mut(chunk)?;
        if chunk.is_empty() {
            let records = left.min(1 << self.shift);
            *chunk = vec![0; records * self.record_bytes].into_boxed_slice();
            self.made += 1;
        }
        chunk.get_mut(range)
    }

    /// Gives its chunks away; it has no records then.
    pub(super) fn take_chunks(&mut self) -> Vec<Chunk> {
        std::mem::take(self).chunks
    }

    /// Bytes of the chunks that are there.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_zeros_until_they_are_written_and_each_is_its_own() {
        for (record_bytes, count) in [(1, 1), (4, 100_000), (24, 9_000), (65_536, 3), (70_000, 2)] {
            let mut records = Records::new(record_bytes, count);
            assert_eq!((records.bytes(), records.get(count - 1)), (0, Some(&[][..])));
            for index in [0, count / 2, count - 1] {
                let record = records.get_mut(index).unwrap();
                assert_eq!(record.len(), record_bytes);
                record.fill(index as u8 ^ 0x55);
            }
            for index in [0, count / 2, count - 1] {
                let record = records.get(index).unwrap();
                assert!(record.len() == record_bytes);
                assert!(record.iter().all(|byte| *byte == index as u8 ^ 0x55));
            }
            for index in [count, usize::MAX] {
                assert!(records.get(index).is_none() && records.get_mut(index).is_none());
            }
        }
    }

    #[test]
    fn all_of_them_take_what_they_have_and_come_a_chunk_at_a_time() {
        for (record_bytes, count) in [(1, 7), (8, 100_000), (65_536, 5), (100, 20_000)] {
            let mut records = Records::new(record_bytes, count);
            for index in 0..count {
                let before = records.bytes();
                records.get_mut(index).unwrap();
                assert!(records.bytes() - before <= CHUNK_BYTES.max(record_bytes) as u64);
            }
            assert_eq!(records.bytes(), (record_bytes * count) as u64);
            records.take_chunks();
            assert_eq!((records.count(), records.get(0)), (0, None));
        }
    }
}
