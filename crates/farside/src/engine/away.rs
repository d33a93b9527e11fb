//! Operations on memory of a node with state that is away: they wait for its return, up to a time.
//!
//! An operation takes effect at this node once its line is here, so one that has failed for the end of its home has had no
//! effect, and starts again as if it were new.

use super::{Engine, FollowUp};
use crate::operation::OperationKind;
use farside_base::{ErrorCode, OperationId};
use std::collections::VecDeque;

/// Operations that wait, by the time at which they fail.
#[derive(Debug)]
pub(crate) struct Away {
    /// How long each waits.
    timeout_ns: u64,
    waiting: VecDeque<(OperationId, u64)>,
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
    fn forget(&mut self, operation: OperationId) -> bool {
        let at = self.waiting.iter().position(|(waiting, _)| *waiting == operation);
        at.is_some_and(|at| self.waiting.remove(at).is_some())
    }
}

impl Engine {
    /// Lets an operation wait that has failed because its home is away; false if it is to fail.
    pub(super) fn waits_for_home(&mut self, operation: OperationId, code: ErrorCode) -> bool {
        if code != ErrorCode::HomeAway || self.away.timeout_ns == 0 {
            return false;
        }
        let Some(slot) = self.sessions.slot(operation) else {
            return false;
        };
        let kind = slot.request().kind;
        let waits = matches!(
            kind,
            OperationKind::Read
                | OperationKind::Write
                | OperationKind::Word(_)
                | OperationKind::Pin(_)
        );
        if !waits || !slot.is_pending() || slot.is_abandoned() {
            return false;
        }
        let at_ns = self.links.now_ns().saturating_add(self.away.timeout_ns);
        self.away.waiting.push_back((operation, at_ns));
        true
    }

    /// Ends an abandoned operation if it waits for its home; returns whether it did.
    pub(super) fn forget_away(&mut self, operation: OperationId) -> bool {
        let waited = self.away.forget(operation);
        if waited {
            self.finish(operation, Err(ErrorCode::TimedOut));
        }
        waited
    }

    /// Starts the operations again whose homes have returned: a member has been linked.
    pub(super) fn home_returns(&mut self) {
        for (operation, at_ns) in std::mem::take(&mut self.away.waiting) {
            let address = self.sessions.request(operation).and_then(|(_, address)| address);
            let refusal = address.and_then(|address| self.refusal_at(address.line()));
            match refusal {
                Some(ErrorCode::HomeAway) => self.away.waiting.push_back((operation, at_ns)),
                _ => self.follow_ups.push_back(FollowUp::Start(operation)),
            }
        }
    }

    /// Ends the operations that have waited long enough.
    pub(super) fn end_away(&mut self) {
        if self.away.waiting.is_empty() {
            return;
        }
        let now_ns = self.links.now_ns();
        let late = |(_, at_ns): &(OperationId, u64)| *at_ns <= now_ns;
        let (late, waiting): (VecDeque<_>, _) = self.away.waiting.drain(..).partition(late);
        self.away.waiting = waiting;
        for (operation, _) in late {
            if let Some(slot) = self.sessions.slot(operation) {
                slot.finish_if_pending(Err(ErrorCode::HomeAway));
            }
        }
    }
}
