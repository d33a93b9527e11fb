//! Errors of the table's operations.

use super::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use farside::{Error, ErrorCode, GlobalAddress};
use std::fmt;

/// Why an operation of the hash table failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DhtError {
    /// The memory refused the operation; see its code. `NodeLost` and `LineLost` mean that this key's
    /// bucket or record was lost with a node: other keys are unaffected.
    Memory(Error),
    /// The key has this many bytes; the allowed range is 1 to 65,536.
    KeySize(usize),
    /// The value has this many bytes; the maximum is 64 MiB.
    ValueSize(usize),
    /// An option is out of its range; names it.
    Options(&'static str),
    /// No table of this format starts at this address: use the address from `Dht::root`.
    NotATable(GlobalAddress),
    /// The contents at this address cannot be part of the table: another program wrote there.
    Damaged(GlobalAddress),
    /// More keys share one hash than a bucket holds; with the table's random hash seed this does not happen
    /// by accident.
    BucketFull,
}

impl DhtError {
    /// The best matching row of the error table.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Memory(error) => error.code,
            Self::KeySize(0) => ErrorCode::ZeroSize,
            Self::KeySize(_) | Self::ValueSize(_) => ErrorCode::TooLarge,
            Self::Options(_) => ErrorCode::BadConfiguration,
            Self::NotATable(_) | Self::Damaged(_) => ErrorCode::Unallocated,
            Self::BucketFull => ErrorCode::OutOfMemory,
        }
    }

    /// Whether the key's bucket or record was lost with a node that died or left.
    pub fn is_lost(&self) -> bool {
        matches!(self.code(), ErrorCode::NodeLost | ErrorCode::NodeLeft | ErrorCode::LineLost)
    }

    pub(super) fn busy() -> Self {
        Self::Memory(Error::with(ErrorCode::Busy, "the hash table's bucket changes too fast"))
    }
}

impl fmt::Display for DhtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "{error}"),
            Self::KeySize(bytes) => {
                write!(f, "A key of {bytes} bytes. Use 1 to {KEY_BYTES_MAX} bytes.")
            }
            Self::ValueSize(bytes) => {
                write!(f, "A value of {bytes} bytes. Use at most {VALUE_BYTES_MAX} bytes.")
            }
            Self::Options(which) => write!(f, "A bad option of the hash table: {which}."),
            Self::NotATable(address) => {
                write!(
                    f,
                    "No hash table starts at {address}. Use the address from Dht::root at its creator."
                )
            }
            Self::Damaged(address) => write!(
                f,
                "The contents at {address} are not part of the hash table. Find the program that writes there."
            ),
            Self::BucketFull => write!(
                f,
                "More keys share one hash than a bucket holds. Create the table with another seed."
            ),
        }
    }
}

impl std::error::Error for DhtError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) => Some(error),
            Self::KeySize(_)
            | Self::ValueSize(_)
            | Self::Options(_)
            | Self::NotATable(_)
            | Self::Damaged(_)
            | Self::BucketFull => None,
        }
    }
}

impl From<Error> for DhtError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}
