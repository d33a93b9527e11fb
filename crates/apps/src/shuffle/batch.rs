//! Batches of rows, as a receiver takes them.

use super::RowFormat;
use super::options::PREFIX;

/// Rows of one sender, in the order of their pushes. Used again for each batch, it allocates once.
#[derive(Debug)]
pub struct RowBatch {
    /// Longer than what is used.
    pub(super) memory: Vec<u8>,
    pub(super) used: usize,
    pub(super) sender: u16,
    pub(super) format: RowFormat,
}

impl Default for RowBatch {
    fn default() -> Self {
        Self { memory: Vec::new(), used: 0, sender: 0, format: RowFormat::Variable }
    }
}

impl RowBatch {
    /// Returns the number of its sender.
    pub const fn sender(&self) -> u16 {
        self.sender
    }

    /// Returns its bytes: the rows one after the other, each of variable length after its length.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[..self.used]
    }

    /// Returns its rows.
    pub fn rows(&self) -> Rows<'_> {
        Rows { rest: self.bytes(), format: self.format }
    }

    /// Whether its bytes are whole rows.
    pub(super) fn is_whole(&self) -> bool {
        match self.format {
            RowFormat::Fixed(bytes) => self.used.is_multiple_of(bytes as usize),
            RowFormat::Variable => {
                let mut rows = self.rows();
                rows.by_ref().for_each(drop);
                rows.rest.is_empty()
            }
        }
    }
}

/// The rows of a [`RowBatch`].
#[derive(Clone, Debug)]
pub struct Rows<'a> {
    rest: &'a [u8],
    format: RowFormat,
}

impl<'a> Iterator for Rows<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let (row, rest) = match self.format {
            RowFormat::Fixed(bytes) => self.rest.split_at_checked(bytes as usize)?,
            RowFormat::Variable => {
                let (prefix, rest) = self.rest.split_first_chunk::<PREFIX>()?;
                rest.split_at_checked(u32::from_le_bytes(*prefix) as usize)?
            }
        };
        self.rest = rest;
        Some(row)
    }
}
