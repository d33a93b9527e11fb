//! Errors of the table.

use farside::{Error, ErrorCode};
use std::fmt;

/// Why an operation on a table failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TableError {
    /// A request on the remote memory failed; see its code. After `TimedOut`, `PeerLost` or `Indeterminate` of a change it
    /// has taken effect or not.
    Memory(Error),
    /// Key and value have this many bytes together; the maximum is the second number.
    TooLarge(u64, u64),
    /// No table of this format is at the address, its creation was not finished, or the memories are not those of one
    /// table in their order.
    NotATable,
    /// The memory is not zero there: a table exists, or another program has written.
    Exists,
    /// The contents at this offset cannot be part of the table: another program wrote there.
    Corrupt(u64),
    /// More keys share a hash than a bucket holds; with the table's random seed this does not happen by accident.
    BucketFull,
}

impl TableError {
    /// The best matching row of the error table.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Memory(error) => error.code,
            Self::TooLarge(..) => ErrorCode::TooLarge,
            Self::NotATable | Self::Corrupt(_) => ErrorCode::BadForm,
            Self::Exists => ErrorCode::AddressTaken,
            Self::BucketFull => ErrorCode::OutOfMemory,
        }
    }
}

impl fmt::Display for TableError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "{error}"),
            Self::TooLarge(bytes, bytes_max) => {
                write!(f, "An entry of {bytes} bytes. Use at most {bytes_max} bytes.")
            }
            Self::NotATable => write!(
                f,
                "No table is here. Give the addresses at which one was created, in their order."
            ),
            Self::Exists => {
                write!(f, "The memory is in use. Open the table there, or use zeroed memory.")
            }
            Self::Corrupt(offset) => write!(
                f,
                "Offset {offset} is not of the table. Find the program that wrote to its memory."
            ),
            Self::BucketFull => write!(f, "Too many keys share one hash. Use other keys."),
        }
    }
}

impl std::error::Error for TableError {}

impl From<Error> for TableError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}
