//! Where a log ends that was read back: torn, or damaged.
//!
//! A log is read up to the first place without a valid record. What follows there was never acknowledged, if no mark
//! says otherwise: each group of records ends with a mark, which says how far the log was durable when the group was
//! written. So a mark after a place without a record tells that the place was durable once: it is damaged.
//!
//! *Limit*: damage of the last group of a log that was not closed cannot be distinguished from a group that was torn.

/// The end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LogTail {
    /// All records before it are whole. Nothing at it or after it was acknowledged.
    End(u64),
    /// There is no valid record at `at`, and the log was durable up to `durable`, after it.
    Damaged {
        /// The position of the damage.
        at: u64,
        /// How far the log was durable.
        durable: u64,
    },
}

/// Reads a log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TailScan {
    at: u64,
    durable: u64,
}

impl TailScan {
    /// Begins at the first position of the log.
    pub const fn new(begin: u64) -> Self {
        Self { at: begin, durable: begin }
    }

    /// The position to be read.
    pub const fn at(&self) -> u64 {
        self.at
    }

    /// There is a valid record, up to `end`.
    pub fn record(&mut self, end: u64) {
        self.at = end;
    }

    /// A mark, in the log or after its end, says that the log was durable up to here.
    pub fn mark(&mut self, durable: u64) {
        self.durable = self.durable.max(durable);
    }

    /// The end of the log, once all marks after it were found.
    pub const fn tail(&self) -> LogTail {
        if self.durable > self.at {
            return LogTail::Damaged { at: self.at, durable: self.durable };
        }
        LogTail::End(self.at)
    }
}
