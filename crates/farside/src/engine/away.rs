//! Operations on memory of a node with state that is away: they wait for its return, up to a time.
//!
//! An operation takes effect at this node once its line is here, so one that has failed for the end of its home has had no
//! effect, and starts again as if it were new.

use farside_base::OperationId;
use std::collections::VecDeque;

/// Operations that wait, by the time at which they fail.
#[derive(Debug)]
pub(crate) struct Away {
    /// How long each waits.
    pub(super) timeout_ns: u64,
    pub(super) waiting: VecDeque<(OperationId, u64)>,
}

impl Away {
    pub(crate) fn new(timeout_ns: u64) -> Self {
        Self { timeout_ns, waiting: VecDeque::new() }
    }

    /// The time of the first failure that is due.
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.waiting.iter().map(|(_, at_ns)| *at_ns).min().unwrap_or(u64::MAX)
    }

    /// Forgets all: they have failed.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Stops an operation from waiting; returns whether it did.
    pub(super) fn forget(&mut self, operation: OperationId) -> bool {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == operation);
        at.is_some_and(|at| self.waiting.remove(at).is_some())
    }
}
