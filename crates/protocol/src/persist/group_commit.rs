//! Group commit: of all callers that wait for the device of a log, one writes what all have appended.

use super::canary::{PersistMutant, mutant};
use core::ops::Range;
use farside_base::Planted;

/// What a caller that waits for a position of the log does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CommitStatus {
    /// All before the position is durable.
    Durable,
    /// It calls [`GroupCommit::begin`], writes, and reports by [`GroupCommit::end`].
    Lead,
    /// Another caller writes: wait for its report.
    Wait,
    /// The device has failed before the position was durable. It stays so: an fsync that has failed may have dropped
    /// what it was to write, so that the success of another one tells nothing.
    Failed,
}

/// The positions of a log, and its leader.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct GroupCommit {
    appended: u64,
    durable: u64,
    /// The end of what is being written.
    writing: Option<u64>,
    is_failed: bool,
    mutant: Planted<PersistMutant>,
}

impl GroupCommit {
    /// A log that is durable up to its end.
    pub const fn new(end: u64) -> Self {
        let (appended, durable, writing, is_failed) = (end, end, None, false);
        Self { appended, durable, writing, is_failed, mutant: Planted::NONE }
    }

    /// The same with a defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: PersistMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// The end of what was appended.
    pub const fn appended(&self) -> u64 {
        self.appended
    }

    /// All before it is durable.
    pub const fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether the device has failed.
    pub const fn is_failed(&self) -> bool {
        self.is_failed
    }

    /// Moves the end of what was appended.
    pub fn append_to(&mut self, end: u64) {
        self.appended = self.appended.max(end);
    }

    /// What a caller that waits for a position does now.
    pub fn status(&self, upto: u64) -> CommitStatus {
        if self.durable >= upto {
            CommitStatus::Durable
        } else if self.is_failed {
            CommitStatus::Failed
        } else if self.writing.is_some() && !mutant!(self, TwoLeaders) {
            CommitStatus::Wait
        } else {
            CommitStatus::Lead
        }
    }

    /// Begins to write all that was appended; returns it.
    pub fn begin(&mut self) -> Range<u64> {
        self.writing = Some(self.appended);
        let range = self.durable..self.appended;
        if mutant!(self, DurableAtBegin) {
            self.durable = self.appended;
        }
        range
    }

    /// The device has failed outside of a write.
    pub const fn fail(&mut self) {
        self.is_failed = true;
    }

    /// Ends the write. All callers that wait ask for their status again.
    pub fn end(&mut self, is_durable: bool) {
        if let Some(mut end) = self.writing.take() {
            if mutant!(self, AllAppendedDurable) {
                end = self.appended;
            }
            if mutant!(self, FailureForgotten) && !is_durable {
                return;
            }
            match is_durable && !self.is_failed {
                true => self.durable = end,
                false => self.is_failed = true,
            }
        }
    }
}
