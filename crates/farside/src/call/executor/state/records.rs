//! Records of one length, stored contiguously in chunks.

/// Most bytes of a chunk with several records. Small enough to be allocated, cleared or freed within some tens of
/// microseconds, most of them page faults.
pub(crate) const CHUNK_BYTES: usize = 32 * 1024;

/// A fixed number of records, initially zero. A chunk is allocated when the first of its records is written, and
/// never moved; unwritten chunks take no memory.
#[derive(Debug, Default)]
pub(crate) struct Records {
    record_bytes: usize,
    count: usize,
    /// log2 of the records per chunk; the last chunk has the remainder.
    shift: u32,
    /// Chunks never written are empty.
    chunks: Vec<Chunk>,
    /// Chunks allocated so far.
    made: usize,
}

/// The bytes of some records.
pub(crate) type Chunk = Box<[u8]>;

impl Records {
    pub(crate) fn new(record_bytes: usize, count: usize) -> Self {
        let shift = (CHUNK_BYTES / record_bytes.max(1)).max(1).ilog2();
        let chunks = (0..count.div_ceil(1 << shift)).map(|_| Chunk::default()).collect();
        Self { record_bytes, count, shift, chunks, made: 0 }
    }

    pub(crate) const fn count(&self) -> usize {
        self.count
    }

    /// Chunks allocated so far.
    pub(crate) const fn made(&self) -> usize {
        self.made
    }

    /// Returns the chunk of a record, and its range of bytes there.
    fn place(&self, index: usize) -> Option<(usize, std::ops::Range<usize>)> {
        let within = index & ((1 << self.shift) - 1);
        let start = within * self.record_bytes;
        let place = (index >> self.shift, start..start + self.record_bytes);
        (index < self.count).then_some(place)
    }

    /// Returns the bytes of a record, empty if its chunk was never written; `None` if there is no such record.
    pub(crate) fn get(&self, index: usize) -> Option<&[u8]> {
        let (chunk, range) = self.place(index)?;
        Some(self.chunks.get(chunk)?.get(range).unwrap_or_default())
    }

    /// Returns the bytes of a record for writing; `None` if there is no such record.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut [u8]> {
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

    /// Moves its chunks out; it has no records afterwards.
    pub(crate) fn take_chunks(&mut self) -> Vec<Chunk> {
        std::mem::take(self).chunks
    }

    /// Bytes of the allocated chunks.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.len() as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_zero_until_written_and_independent() {
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
    fn records_are_allocated_a_chunk_at_a_time_without_overhead() {
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
