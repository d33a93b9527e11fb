//! Lines of homes with state whose latest bytes this node may have, and no log: a fence waits until all of them are
//! durable.
//!
//! A line of another home joins when this node owns it. A fence has it written back, which its home confirms once the
//! bytes are durable, whichever node has the line by then; it leaves when that is confirmed and this node does not own it
//! again. A line of this home joins when a session may write it, and leaves when it is logged, which needs no request.
//!
//! A home that dies takes the writes with it that it had not logged. Their number of *losses* rises then, and the next
//! fence of each session fails with `WritesLost`: hits leave no trace of which sessions wrote.

use crate::ErrorCode;
use farside_base::{LineAddress, OperationId};
use std::collections::{BTreeMap, BTreeSet};

/// A fence that waits.
#[derive(Debug)]
pub(super) struct Persist {
    pub(super) operation: OperationId,
    /// Write-backs in flight.
    pub(super) write_backs: BTreeSet<u64>,
    /// Lines of this home that are to be logged.
    pub(super) own: BTreeSet<LineAddress>,
    pub(super) outcome: Result<(), ErrorCode>,
}

/// A write-back for a fence.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteBack {
    pub(super) line: LineAddress,
    /// Of the line at its start.
    pub(super) serial: u64,
}

/// Lines that may not be durable, and the fences that wait for them.
#[derive(Debug, Default)]
pub(crate) struct Unlogged {
    /// With a number that is new whenever this node may write the line again.
    pub(super) lines: BTreeMap<LineAddress, u64>,
    pub(super) fences: Vec<Persist>,
    /// The write-backs in flight, by number.
    pub(super) write_backs: BTreeMap<u64, WriteBack>,
    next: u64,
    pub(super) losses: u32,
}

impl Unlogged {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}
