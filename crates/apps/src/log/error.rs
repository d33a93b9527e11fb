//! Errors of a log.

use farside::{Error, ErrorCode};
use std::fmt;

/// Why an operation on a log failed.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LogError {
    /// A request on the remote memory failed; see its code. After `TimedOut`, `PeerLost` or `Indeterminate` of an
    /// append the record is in the log or not: a reader finds out.
    Memory(Error),
    /// The log, or the lane of a writer, has no room for this many bytes: trim it.
    Full(u64),
    /// A record, or a batch of records, takes this many bytes of the log; the maximum is the second number.
    TooLarge(u64, u64),
    /// The reader's position was trimmed; the first record is now at this one. Records between were not read.
    Trimmed(u64),
    /// What is at this position cannot be part of the log: another program wrote there.
    Corrupt(u64),
    /// No log of this format is at the address, or its creation was not finished.
    NotALog,
    /// The memory is not zero there: a log exists, or another program has written.
    Exists,
    /// Each lane has a writer.
    LanesInUse,
    /// An option is out of its range; names it.
    Options(&'static str),
}

impl LogError {
    /// The best matching row of the error table.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Memory(error) => error.code,
            Self::Full(_) => ErrorCode::OutOfMemory,
            Self::TooLarge(..) => ErrorCode::TooLarge,
            Self::Trimmed(_) => ErrorCode::OutOfBounds,
            Self::Corrupt(_) | Self::NotALog => ErrorCode::BadForm,
            Self::Exists => ErrorCode::AddressTaken,
            Self::LanesInUse => ErrorCode::Busy,
            Self::Options(_) => ErrorCode::BadConfiguration,
        }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "{error}"),
            Self::Full(bytes) => {
                write!(f, "The log has no room for {bytes} bytes. Trim what has been read.")
            }
            Self::TooLarge(bytes, bytes_max) => {
                write!(f, "A record of {bytes} bytes of the log. Use at most {bytes_max} bytes.")
            }
            Self::Trimmed(first) => write!(
                f,
                "The position was trimmed. Read on from position {first}, the first that is left."
            ),
            Self::Corrupt(at) => write!(
                f,
                "Position {at} of the log has no record. Find the program that wrote to its memory."
            ),
            Self::NotALog => write!(
                f,
                "No log is here. Use the address at which one was created, and wait until it is."
            ),
            Self::Exists => {
                write!(f, "The memory is in use. Open the log that is there, or use zeroed memory.")
            }
            Self::LanesInUse => {
                write!(f, "Each lane of the log has a writer. Create the log with more lanes.")
            }
            Self::Options(what) => write!(f, "The log's options: {what}."),
        }
    }
}

impl std::error::Error for LogError {}

impl From<Error> for LogError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}
