//! Rows in the memory of an executor, divided by the hash of their keys.

use super::options::JoinSide;
use crate::dht::hash;
use crate::shuffle::{RowFormat, ShuffleError};

/// Bits of the hash that divide the rows as they come; and those of each further division.
const FIRST_BITS: u32 = 8;
const NEXT_BITS: u32 = 6;

/// Rows of one input, one after the other.
#[derive(Debug)]
pub(super) struct RowSet {
    bytes: Vec<u8>,
    /// Bytes of each row; zero if they differ.
    row_bytes: usize,
    /// The ends of rows that differ in length.
    ends: Vec<usize>,
}

impl RowSet {
    pub(super) const fn new(format: RowFormat) -> Self {
        let row_bytes = match format {
            RowFormat::Fixed(bytes) => bytes as usize,
            RowFormat::Variable => 0,
        };
        Self { bytes: Vec::new(), row_bytes, ends: Vec::new() }
    }

    #[inline]
    pub(super) fn push(&mut self, row: &[u8]) {
        self.bytes.extend_from_slice(row);
        if self.row_bytes == 0 {
            self.ends.push(self.bytes.len());
        }
    }

    /// Returns the number of rows.
    pub(super) const fn count(&self) -> usize {
        match self.bytes.len().checked_div(self.row_bytes) {
            Some(rows) => rows,
            None => self.ends.len(),
        }
    }

    /// Returns the bytes of all rows.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Returns a row, which exists.
    #[inline]
    pub(super) fn row(&self, number: usize) -> &[u8] {
        if self.row_bytes > 0 {
            return &self.bytes[number * self.row_bytes..][..self.row_bytes];
        }
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[start..self.ends[number]]
    }

    /// Returns the rows in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count()).map(|number| self.row(number))
    }
}

/// Rows of an input, divided by bits of the hashes of their keys.
#[derive(Debug)]
pub(super) struct Division<'a> {
    side: &'a JoinSide,
    seed: u64,
    /// The highest bits of the hash that were used before, and those that are used here.
    used: u32,
    bits: u32,
    pub(super) parts: Vec<RowSet>,
}

impl<'a> Division<'a> {
    /// Returns an empty one.
    pub(super) fn new(side: &'a JoinSide, seed: u64) -> Self {
        Self::empty(side, seed, 0, FIRST_BITS)
    }

    fn empty(side: &'a JoinSide, seed: u64, used: u32, bits: u32) -> Self {
        let parts = (0..1_usize << bits).map(|_| RowSet::new(side.rows)).collect();
        Self { side, seed, used, bits, parts }
    }

    /// Adds a row, whose key is not null.
    ///
    /// # Errors
    /// `RowSize` if it has none: it comes from another program.
    #[inline]
    pub(super) fn push(&mut self, row: &[u8]) -> Result<(), ShuffleError> {
        if let Some(key) = self.side.key.of(row)? {
            let part = hash(key, self.seed) << self.used >> (u64::BITS - self.bits);
            self.parts[part as usize].push(row);
        }
        Ok(())
    }

    /// Divides rows of a part by the next bits.
    pub(super) fn divide(
        side: &'a JoinSide,
        seed: u64,
        depth: u32,
        rows: &RowSet,
    ) -> Result<Self, ShuffleError> {
        let mut division = Self::empty(side, seed, FIRST_BITS + depth * NEXT_BITS, NEXT_BITS);
        rows.iter().try_for_each(|row| division.push(row))?;
        Ok(division)
    }
}
