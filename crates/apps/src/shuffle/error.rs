//! Errors of a shuffle.

use farside::{Error, ErrorCode};
use std::fmt;

/// Why an operation of a shuffle failed. After `Receiver`, `SendersLost` and `Damaged` this end has failed, and its calls
/// return the error again; the others have no effect, and the shuffle continues.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ShuffleError {
    /// The memory or its fabric refused the operation; see its code.
    Memory(Error),
    /// A request on the inbox of this number failed: `PeerLost` or `Indeterminate` if its receiver has ended.
    Receiver(usize, Error),
    /// Connections of `lost` of these senders ended before their rows did.
    SendersLost {
        /// The senders that have not ended.
        among: Vec<u16>,
        /// How many of them are lost.
        lost: usize,
    },
    /// No batch came in time; the call may be repeated.
    SendersLate {
        /// The senders that have not ended.
        missing: Vec<u16>,
        /// The slot that is waited for, if it was reserved.
        reserved: Option<u64>,
    },
    /// These inboxes have no free slot in time, or do not answer; the call may be repeated.
    ReceiversLate(Vec<usize>),
    /// The row has this many bytes, and another number is possible.
    RowSize {
        /// Of the row.
        bytes: usize,
        /// The only length of rows of fixed length, or the largest of others.
        possible: usize,
    },
    /// There is no inbox of this number.
    Destination(usize),
    /// An option is out of its range; names it.
    Options(&'static str),
    /// The memory at this address is not an inbox of such a shuffle; says why.
    NotAnInbox(String, &'static str),
    /// Another sender of this number has connected to the inbox of this number.
    SenderTaken(u16, usize),
    /// A slot has content that no sender writes: another program wrote there.
    Damaged(u64),
    /// Rows cannot follow the end.
    Finished,
    /// The program ended the operation by an error of its input.
    Stopped,
}

impl ShuffleError {
    /// Returns the best matching row of the error table.
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::Memory(error) | Self::Receiver(_, error) => error.code,
            Self::SendersLost { .. } => ErrorCode::PeerLost,
            Self::SendersLate { .. } | Self::ReceiversLate(_) => ErrorCode::TimedOut,
            Self::RowSize { .. } => ErrorCode::TooLarge,
            Self::Destination(_) => ErrorCode::OutOfBounds,
            Self::Options(_) => ErrorCode::BadConfiguration,
            Self::NotAnInbox(..) => ErrorCode::ChannelMismatch,
            Self::SenderTaken(..) => ErrorCode::AddressTaken,
            Self::Damaged(_) | Self::Finished | Self::Stopped => ErrorCode::BadForm,
        }
    }
}

impl fmt::Display for ShuffleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(error) => write!(f, "{error}"),
            Self::Receiver(number, error) => write!(f, "Receiver {number}: {error}"),
            Self::SendersLost { among, lost } => write!(
                f,
                "{lost} of the senders {among:?} lost the connection before the end. Start the shuffle again."
            ),
            Self::SendersLate { missing, reserved: None } => {
                write!(f, "No batch came in time; senders {missing:?} have not ended. Wait again.")
            }
            Self::SendersLate { missing, reserved: Some(slot) } => write!(
                f,
                "One of the senders {missing:?} has reserved slot {slot} and not written it in time. Wait again."
            ),
            Self::ReceiversLate(receivers) => write!(
                f,
                "The inboxes {receivers:?} had no free slot in time. Receive there, and try again."
            ),
            Self::RowSize { bytes, possible } => {
                write!(f, "A row of {bytes} bytes; {possible} are possible.")
            }
            Self::Destination(number) => write!(f, "There is no inbox {number}."),
            Self::Options(which) => write!(f, "A bad option of the shuffle: {which}."),
            Self::NotAnInbox(address, why) => {
                write!(f, "The memory at {address} is no inbox of this shuffle: {why}.")
            }
            Self::SenderTaken(sender, receiver) => write!(
                f,
                "A sender {sender} has connected to inbox {receiver} before. Give each another number."
            ),
            Self::Damaged(slot) => write!(
                f,
                "Slot {slot} was not written by a sender. Find the program that writes there."
            ),
            Self::Finished => write!(f, "The sender has finished. Push before."),
            Self::Stopped => write!(f, "The program has ended its input by an error."),
        }
    }
}

impl std::error::Error for ShuffleError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Memory(error) | Self::Receiver(_, error) => Some(error),
            _ => None,
        }
    }
}

impl From<Error> for ShuffleError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}
