//! The state of sessions of this node, and the waits that fail.

use super::canary::LockMutant;
use super::line::Rules;
use farside_base::{LineAddress, NodeId, Ticket};

/// The state of a session of this node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct LockSession {
    /// When it took its first lock, in causal order.
    pub(super) birth: u64,
    /// Locks held, and pending requests.
    pub(super) locks: u32,
    /// Its last wait ended with `Deadlock`: if it starts over, it keeps its birth.
    pub(super) victim: bool,
    /// The one request for which it waits.
    pub(super) wait: Option<SessionWait>,
}

/// The line and request for which a session waits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct SessionWait {
    pub(super) line: LineAddress,
    pub(super) ticket: Ticket,
}

impl LockSession {
    /// Counts a lock. The first one sets the session's birth, unless it starts over as a victim.
    pub(super) fn count(&mut self, birth_last: &mut u64, rules: Rules) {
        if self.locks == 0 {
            if !self.victim || rules.has(LockMutant::VictimForgetsAge) {
                *birth_last = birth_last.saturating_add(1);
                self.birth = *birth_last;
            }
            self.victim = false;
        }
        self.locks += 1;
    }
}

/// A victim of this node with a request that is, or may be, in a queue elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Abort {
    pub(super) ticket: Ticket,
    /// The node to notify when it has left the queue.
    pub(super) origin: NodeId,
    pub(super) line: LineAddress,
    pub(super) number: u64,
}
