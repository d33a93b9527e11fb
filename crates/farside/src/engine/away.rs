//! Operations on memory of a node with state that is away: they wait for its return, up to a time.
//!
//! An operation takes effect at this node once its line is here, so one that has failed for the end of its home has had no
//! effect, and starts again as if it were new.

use farside_base::{NodeId, NodeSet, OperationId};
use std::collections::VecDeque;

/// Operations that wait, by the time at which they fail.
#[derive(Debug)]
pub(crate) struct Away {
    /// How long each waits.
    pub(super) timeout_ns: u64,
    pub(super) waiting: VecDeque<(OperationId, u64)>,
    /// Linked homes that are leaving, and have refused an operation.
    leaving: NodeSet,
}

impl Away {
    pub(crate) fn new(timeout_ns: u64) -> Self {
        Self { timeout_ns, waiting: VecDeque::new(), leaving: NodeSet::EMPTY }
    }

    /// The time of the first failure that is due.
    pub(crate) fn wakes_at_ns(&self) -> u64 {
        self.waiting.iter().map(|(_, at_ns)| *at_ns).min().unwrap_or(u64::MAX)
    }

    /// A home has refused an operation because it leaves.
    pub(super) fn leaves(&mut self, home: NodeId) {
        self.leaving.insert(home);
    }

    /// Whether a home that may still be linked leaves.
    pub(super) fn is_leaving(&self, home: NodeId) -> bool {
        self.leaving.contains(home)
    }

    /// A home has been linked, or has ended.
    pub(super) fn returns(&mut self, home: NodeId) {
        self.leaving.remove(home);
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
