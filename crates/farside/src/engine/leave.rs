//! Leaving a cluster: a node hands over what it holds of other homes before it leaves.
//!
//! 1. **Drain.** New operations are refused with `NodeClosed`; those that have begun complete, asynchronous
//!    writes among them. Every cached line is returned to its home. Then nothing hits any more, and
//!    sessions release their locks.
//! 2. **Flush.** Every message of step 1 has been posted. A queue that was once seen empty counts as
//!    flushed: after that, this node sends only answers as a home, which end with it.
//! 3. **Announce.** The membership machine sends `Leave`, waits until every linked member has processed all
//!    earlier messages, and sends `Left`.
//!
//! The memory that this node is home of stays accessible until step 3 ends, and is gone then.

use super::Engine;
use crate::ErrorCode;
use crate::operation::{OperationKind, SessionSlots};
use farside_base::{LineAddress, NodeSet};
use farside_protocol::coherence::{CoherenceEvent, Level};
use farside_protocol::member;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Lines that only operations hold are returned nevertheless after this time. No operation that a thread
/// drives holds lines for so long; one with a forgotten future holds them until its session's next call.
const PINS_GRACE_NS: u64 = 100_000_000;
/// The time between two rounds of evictions while lines of the last round are still in transition.
const EVICT_EVERY_NS: u64 = 1_000_000;

/// A leave in progress.
#[derive(Debug, Default)]
pub(crate) struct LeaveProgress {
    /// Members to which all messages of this node's own operations have been posted.
    flushed: NodeSet,
    /// The time of the last round of evictions.
    evicted_at_ns: Option<u64>,
    /// When lines that operations hold are returned nevertheless.
    pins_end_ns: Option<u64>,
    /// Lines of this home, if it has state, that their owners were asked for.
    asked_back: BTreeSet<LineAddress>,
    /// Everything was handed over.
    drained: bool,
    /// The membership machine knows of the leave.
    announced: bool,
}

impl Engine {
    /// Starts the leave; [`poll`](Self::poll) continues it. Does nothing if it was started before.
    pub(crate) fn begin_leave(&mut self) {
        if self.leaving.is_some() || self.closed_with.is_some() {
            return;
        }
        self.leaving = Some(LeaveProgress::default());
        self.fail_away();
    }

    /// Ends all hits, then releases all locks and lock requests of sessions: in this order, because a
    /// session's accesses under a lock must end before another session has it.
    fn release_locks(&mut self) {
        self.lines.trust_until(0);
        self.call_in_loans();
        let sessions: Vec<Arc<SessionSlots>> = self.sessions.iter().cloned().collect();
        for slots in sessions {
            self.close_locks(&slots);
        }
        // Only membership queries are still held back: the data that they are about was handed over.
        for operation in self.take_held() {
            self.finish(operation, Ok(()));
        }
    }

    /// Whether this node has handed its lines over and lets nothing hit any more.
    pub(crate) fn is_drained(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leave| leave.drained)
    }

    /// Whether the leave has ended, and with which error if this node was removed meanwhile.
    pub(crate) fn leave_ended(&self) -> Option<Result<(), ErrorCode>> {
        match self.closed_with {
            Some(code) => Some(Err(code)),
            None if self.membership.has_left() => Some(Ok(())),
            None => self.failure.map(|_| Err(ErrorCode::NodeFailed)),
        }
    }

    /// Continues a leave without waiting.
    pub(crate) fn step_leave(&mut self) {
        let Some(mut leave) = self.leaving.take() else {
            return;
        };
        let drains = !leave.drained && self.drain(&mut leave);
        leave.drained |= drains;
        let announces = leave.drained && !drains && !leave.announced && self.is_flushed(&mut leave);
        leave.announced |= announces;
        self.leaving = Some(leave);
        if drains {
            self.release_locks();
        }
        if announces {
            self.member_own(member::MemberEvent::Leave);
        }
    }

    /// Whether no operation of this node is in flight and it holds no line of another home. Evicts what can
    /// be evicted.
    fn drain(&mut self, leave: &mut LeaveProgress) -> bool {
        // Lock requests are cancelled later, after the lines were returned.
        let of_lines = |kind| !matches!(kind, OperationKind::Lock(_) | OperationKind::Confirm);
        let busy = self.sessions.any_pending(of_lines);
        let in_transition = self.coherence.machine().holds_work();
        let now_ns = self.links.now_ns();
        let waits = |at_ns: u64| in_transition && now_ns < at_ns.saturating_add(EVICT_EVERY_NS);
        if leave.evicted_at_ns.is_some_and(waits) {
            return false;
        }
        leave.evicted_at_ns = Some(now_ns);
        let pins_end_ns = *leave.pins_end_ns.get_or_insert(now_ns.saturating_add(PINS_GRACE_NS));
        if now_ns >= pins_end_ns {
            self.step_own(CoherenceEvent::DropPins);
        }
        let is_held = |line: &LineAddress| self.here(*line).held.level > Level::Invalid;
        let held: Vec<_> = self.lines.cached().filter(is_held).collect();
        for line in &held {
            let here = self.here(*line);
            self.step_own(CoherenceEvent::Evict { line: *line, here });
        }
        self.follow_up();
        let all_logged = self.takes_lines_back(leave);
        held.is_empty() && !busy && !in_transition && all_logged
    }

    /// Takes the lines of this home, if it has state, back from their owners; whether all are back and logged. No line is
    /// granted for writing meanwhile: who asks for one waits for the return of this node.
    fn takes_lines_back(&mut self, leave: &mut LeaveProgress) -> bool {
        if !self.keeps_state() {
            return true;
        }
        self.coherence.stop_granting();
        self.takes_back(&mut leave.asked_back) && self.has_logged_all()
    }

    /// Whether all messages sent to linked members before this node was drained are posted.
    fn is_flushed(&self, leave: &mut LeaveProgress) -> bool {
        if self.links.placements() > 0 {
            return false;
        }
        let peers = self.links.peers();
        let linked = || peers.iter().filter(|node| !peers.is_accused(*node));
        linked().filter(|node| peers.has_sent_all(*node)).for_each(|node| {
            leave.flushed.insert(node);
        });
        linked().all(|node| leave.flushed.contains(node))
    }
}
