//! Options of both ends, and the rule by which rows find their inbox.

use super::ShuffleError;
use crate::dht::hash;
use std::fmt;
use std::ops::Range;

/// Bytes of the length before a row of variable length.
pub(super) const PREFIX: usize = 4;
/// The seed of the hash that all senders share.
const SEED: u64 = 0x5348_5546;

/// The form of the rows of a shuffle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RowFormat {
    /// Rows of this many bytes.
    Fixed(u32),
    /// Rows of any length. Each is preceded by its length, 4 B in little-endian order, in batches and in buffers from
    /// which rows are gathered.
    Variable,
}

impl RowFormat {
    /// Checks the length of a row.
    ///
    /// # Errors
    /// `RowSize`.
    #[inline]
    pub(crate) const fn check(self, row: &[u8]) -> Result<(), ShuffleError> {
        match self {
            Self::Fixed(bytes) if bytes as usize != row.len() => {
                Err(ShuffleError::RowSize { bytes: row.len(), possible: bytes as usize })
            }
            Self::Fixed(_) | Self::Variable => Ok(()),
        }
    }

    /// Returns the least bytes of a row in a batch.
    pub(super) const fn bytes_min(self) -> u32 {
        match self {
            Self::Fixed(bytes) => bytes,
            Self::Variable => PREFIX as u32,
        }
    }
}

/// Options of an [`ShuffleInbox`](super::ShuffleInbox). Start from `InboxOptions::default()` and change fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InboxOptions {
    /// The number of senders; 1 by default.
    pub senders: u16,
    /// The form of the rows; `Fixed(16)` by default.
    pub rows: RowFormat,
    /// Most bytes of a batch; 32 KiB by default.
    pub batch_bytes: u32,
    /// Batches that the inbox holds; 64 by default. More than the senders, so that all of them can proceed.
    pub slots: u32,
}

impl Default for InboxOptions {
    fn default() -> Self {
        Self { senders: 1, rows: RowFormat::Fixed(16), batch_bytes: 32 << 10, slots: 64 }
    }
}

/// A function that returns the number of a row's inbox.
pub type RowRule = Box<dyn Fn(&[u8]) -> usize + Send>;

/// How a sender finds the inbox of a row.
#[non_exhaustive]
pub enum Rule {
    /// By the hash of these bytes of the row: [`destination`].
    Hash(Range<usize>),
    /// By this function.
    Custom(RowRule),
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hash(key) => write!(f, "Hash({key:?})"),
            Self::Custom(_) => write!(f, "Custom"),
        }
    }
}

/// Options of a [`ShuffleSender`](super::ShuffleSender). Start from `SenderOptions::default()` and change fields.
#[derive(Debug)]
pub struct SenderOptions {
    /// How the inbox of a row is found; by the hash of its first 8 B by default.
    pub rule: Rule,
    /// Most rows of a batch; `u32::MAX` by default. 1 sends each row by itself.
    pub batch_rows: u32,
}

impl Default for SenderOptions {
    fn default() -> Self {
        Self { rule: Rule::Hash(0..8), batch_rows: u32::MAX }
    }
}

/// Returns the inbox of a key among `receivers` of them, as [`Rule::Hash`] finds it: a fixed hash, the same for all senders.
///
/// ```
/// use farside_apps::shuffle::destination;
///
/// assert!(destination(b"key", 3) < 3);
/// assert_eq!(destination(b"key", 1), 0);
/// ```
///
/// # Panics
/// Never; without receivers it returns 0.
#[inline]
pub fn destination(key: &[u8], receivers: usize) -> usize {
    ((u128::from(hash(key, SEED)) * receivers as u128) >> 64) as usize
}
