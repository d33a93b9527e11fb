//! What is joined, and how.

use crate::shuffle::{RowFormat, ShuffleError};
use std::ops::Range;

/// Which rows a join returns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum JoinKind {
    /// Each pair of a left and a right row of one key.
    #[default]
    Inner,
    /// The same, and each left row without a right row of its key.
    LeftOuter,
    /// Each left row that has a right row of its key, once.
    Semi,
    /// Each left row that has none.
    Anti,
}

impl JoinKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Inner, Self::LeftOuter, Self::Semi, Self::Anti];

    /// Returns its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inner => "inner",
            Self::LeftOuter => "left-outer",
            Self::Semi => "semi",
            Self::Anti => "anti",
        }
    }

    /// Whether left rows without a right row are returned.
    pub(super) const fn keeps_unmatched(self) -> bool {
        matches!(self, Self::LeftOuter | Self::Anti)
    }
}

/// Set in the length before a key of variable length if the key is null.
const NULL_KEY: u32 = 1 << 31;

/// Where the key of a row is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum JoinKey {
    /// Of a fixed length, anywhere in the row.
    Bytes {
        /// Its bytes in the row.
        range: Range<usize>,
        /// A byte of the row that is not zero if the key is null; `None`: no key is.
        null_at: Option<usize>,
    },
    /// Of any length below 2 GiB, at the start of the row: [`JoinKey::prefix`], then the key.
    Prefixed,
}

impl JoinKey {
    /// Returns the 4 B before a [`Prefixed`](Self::Prefixed) key: its length in little-endian order, whose highest bit is
    /// set if the key is null.
    ///
    /// ```
    /// use farside_apps::join::JoinKey;
    ///
    /// assert_eq!(JoinKey::prefix(5, false), [5, 0, 0, 0]);
    /// assert_eq!(JoinKey::prefix(5, true), [5, 0, 0, 0x80]);
    /// ```
    #[inline]
    pub const fn prefix(bytes: u32, is_null: bool) -> [u8; 4] {
        (bytes | if is_null { NULL_KEY } else { 0 }).to_le_bytes()
    }

    /// Divides a row of a [`Prefixed`](Self::Prefixed) key into the key, also if it is null, and the rest; `None` if the row
    /// is too short.
    ///
    /// ```
    /// use farside_apps::join::JoinKey;
    ///
    /// assert_eq!(JoinKey::split(b"\x02\0\0\0keys"), Some((&b"ke"[..], &b"ys"[..])));
    /// assert_eq!(JoinKey::split(b"\x05\0\0\0keys"), None);
    /// ```
    #[inline]
    pub fn split(row: &[u8]) -> Option<(&[u8], &[u8])> {
        let (prefix, rest) = row.split_first_chunk()?;
        rest.split_at_checked((u32::from_le_bytes(*prefix) & !NULL_KEY) as usize)
    }

    /// Returns the bytes that a row must have.
    fn row_bytes_min(&self) -> usize {
        match self {
            Self::Bytes { range, null_at } => range.end.max(null_at.map_or(0, |at| at + 1)),
            Self::Prefixed => size_of::<u32>(),
        }
    }

    /// Returns the key of a row; `None` if it is null.
    ///
    /// # Errors
    /// `RowSize` if the row is too short.
    #[inline]
    pub(super) fn of<'a>(&self, row: &'a [u8]) -> Result<Option<&'a [u8]>, ShuffleError> {
        let (is_null, key) = match self {
            Self::Bytes { range, null_at } => {
                let is_null = null_at.map_or(Some(false), |at| row.get(at).map(|byte| *byte != 0));
                (is_null, row.get(range.clone()))
            }
            Self::Prefixed => {
                let prefix = row.first_chunk().map(|prefix| u32::from_le_bytes(*prefix));
                (prefix.map(|prefix| prefix & NULL_KEY != 0), Self::split(row).map(|(key, _)| key))
            }
        };
        match (is_null, key) {
            (Some(false), Some(key)) => Ok(Some(key)),
            (Some(true), Some(_)) => Ok(None),
            _ => Err(ShuffleError::RowSize { bytes: row.len(), possible: self.row_bytes_min() }),
        }
    }
}

/// The form of an input.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct JoinSide {
    /// Of its rows.
    pub rows: RowFormat,
    /// Of their keys.
    pub key: JoinKey,
}

impl Default for JoinSide {
    /// Rows of 16 B, of which the first 8 are the key.
    fn default() -> Self {
        Self { rows: RowFormat::Fixed(16), key: JoinKey::Bytes { range: 0..8, null_at: None } }
    }
}

/// Options of a join, the same at all executors. Start from `JoinOptions::default()` and change fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JoinOptions {
    /// Which rows it returns; inner by default.
    pub kind: JoinKind,
    /// The input whose rows probe.
    pub left: JoinSide,
    /// The input of which tables are built: the smaller one is faster.
    pub right: JoinSide,
    /// The number of executors; 1 by default.
    pub executors: u16,
    /// Most bytes of a batch of the shuffle; 32 KiB by default.
    pub batch_bytes: u32,
    /// Most rows of a batch; `u32::MAX` by default.
    pub batch_rows: u32,
}

impl Default for JoinOptions {
    fn default() -> Self {
        Self {
            kind: JoinKind::Inner,
            left: JoinSide::default(),
            right: JoinSide::default(),
            executors: 1,
            batch_bytes: 32 << 10,
            batch_rows: u32::MAX,
        }
    }
}

impl JoinOptions {
    /// Checks that keys are within rows and comparable.
    pub(super) fn check(&self) -> Result<(), ShuffleError> {
        for JoinSide { rows, key } in [&self.left, &self.right] {
            if matches!(key, JoinKey::Bytes { range, .. } if range.start > range.end) {
                return Err(ShuffleError::Options("key: a range of bytes"));
            }
            if matches!(*rows, RowFormat::Fixed(bytes) if key.row_bytes_min() > bytes as usize) {
                return Err(ShuffleError::Options("key: within the rows"));
            }
        }
        if let (JoinKey::Bytes { range: left, .. }, JoinKey::Bytes { range: right, .. }) =
            (&self.left.key, &self.right.key)
            && left.len() != right.len()
        {
            return Err(ShuffleError::Options("keys: of the same length at both inputs"));
        }
        Ok(())
    }
}
