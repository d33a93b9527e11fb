//! Leaving a cluster: a node hands over what it holds of other homes before it leaves.
//!
//! 1. **Unlock.** If this home has state, or saves its memory, it waits until its locks are unlocked, while it serves its
//!    memory as before: it refuses only lock requests of sessions that hold no lock, with `HomeAway`. Locks that are
//!    held after the given time end with it.
//! 2. **Drain.** New operations are refused with `NodeClosed`; those that have begun complete, asynchronous
//!    writes among them. Every cached line is returned to its home. Then nothing hits any more, and
//!    sessions release their locks.
//! 3. **Flush.** Every message of step 2 has been posted. A queue that was once seen empty counts as
//!    flushed: after that, this node sends only answers as a home, which end with it.
//! 4. **Save**, if this home is drained: [`drain`](crate::drain).
//! 5. **Announce.** The membership machine sends `Leave`, waits until every linked member has processed all
//!    earlier messages, and sends `Left`.
//!
//! The memory that this node is home of stays accessible until step 5 ends, and is gone then. New operations
//! of this node's own sessions are refused from step 1 on, in step 1 except fences and those of sessions that hold locks.

use super::Engine;
use crate::ErrorCode;
use crate::canary;
use crate::operation::{OperationKind, SessionSlots};
use farside_base::{LineAddress, NodeSet, OperationId};
use farside_protocol::coherence::{CoherenceEvent, Level};
use farside_protocol::member;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Lines that only operations hold are returned nevertheless after this time. No operation that a thread
/// drives holds lines for so long; one with a forgotten future holds them until its session's next call.
const PINS_GRACE_NS: u64 = 100_000_000;
/// The time between two rounds of evictions while lines of the last round are still in transition.
const EVICT_EVERY_NS: u64 = 1_000_000;

/// What a leave does with the memory of a home without state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Saving {
    /// It ends.
    #[default]
    No,
    /// It is to be saved, by the one who has asked for it.
    Wanted,
    /// Saving it has failed: the leave waits for another attempt, or to be asked to leave without.
    Failed,
    /// It is saved.
    Done,
}

/// A leave in progress.
#[derive(Debug, Default)]
pub(crate) struct LeaveProgress {
    /// When locks that are held end nevertheless; `None` once the leave does not wait for them.
    locks_end_ns: Option<u64>,
    /// Members to which all messages of this node's own operations have been posted.
    flushed: NodeSet,
    /// The time of the last round of evictions.
    evicted_at_ns: Option<u64>,
    /// When lines that operations hold are returned nevertheless.
    pins_end_ns: Option<u64>,
    /// Lines of this home, if they will return, that their owners were asked for.
    asked_back: BTreeSet<LineAddress>,
    /// What is done with the memory of this home, if it has no state.
    saving: Saving,
    /// Everything was handed over.
    drained: bool,
    /// All messages before that were posted.
    all_flushed: bool,
    /// The membership machine knows of the leave.
    announced: bool,
}

impl Engine {
    /// Starts a leave, which waits for as long as `unlock_timeout` for locks of this home, if its memory will return;
    /// [`poll`](Self::poll) continues it. If `saves`, it stops when the memory can be saved ([`wants_saving`](Self::wants_saving)).
    /// Does nothing if it was started before, unless saving has failed; returns whether it did something.
    pub(crate) fn begin_leave(&mut self, unlock_timeout: Duration, saves: bool) -> bool {
        let saving = if saves { Saving::Wanted } else { Saving::No };
        if let Some(leave) = &mut self.leaving {
            let had_failed = leave.saving == Saving::Failed;
            if had_failed {
                leave.saving = saving;
            }
            return had_failed && self.closed_with.is_none();
        }
        if self.closed_with.is_some() {
            return false;
        }
        let mut leave = LeaveProgress { saving, ..LeaveProgress::default() };
        let returns = saves || self.keeps_state();
        if returns {
            let unlock_timeout_ns = u64::try_from(unlock_timeout.as_nanos()).unwrap_or(u64::MAX);
            leave.locks_end_ns = Some(self.links.now_ns().saturating_add(unlock_timeout_ns));
        }
        self.leaving = Some(leave);
        self.fail_away();
        if returns {
            self.drain_locks();
        }
        true
    }

    /// Whether the memory of this home returns after the leave that is in progress, or after one that may begin.
    pub(crate) fn will_return(&self) -> bool {
        self.keeps_state() || self.leaving.as_ref().is_some_and(|leave| leave.saving != Saving::No)
    }

    /// Whether everything was handed over, and the memory of this home does not change until it is saved.
    pub(crate) fn wants_saving(&self) -> bool {
        let wants = |leave: &LeaveProgress| leave.saving == Saving::Wanted && leave.all_flushed;
        // Bytes of a removed node may still land.
        self.leaving.as_ref().is_some_and(wants) && !self.coherence.machine().is_lingering()
    }

    /// Whether a leave ends only when the memory of this home was saved.
    pub(crate) fn awaits_saving(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leave| leave.saving == Saving::Wanted)
    }

    /// Whether a leave in progress lets nothing write the memory of this home any more.
    pub(crate) fn is_closed_to_writers(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leave| leave.locks_end_ns.is_none())
    }

    /// The name of the cluster.
    pub(crate) fn cluster_name(&self) -> &str {
        self.membership.cluster()
    }

    /// The memory was saved, and the leave continues; or saving it has failed.
    pub(crate) fn end_saving(&mut self, is_saved: bool) {
        if let Some(leave) = self.leaving.as_mut().filter(|leave| leave.saving == Saving::Wanted) {
            leave.saving = if is_saved { Saving::Done } else { Saving::Failed };
        }
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
        if self.is_unlocking() {
            return;
        }
        let Some(mut leave) = self.leaving.take() else {
            return;
        };
        let drains = !leave.drained && self.drain(&mut leave);
        leave.drained |= drains;
        leave.all_flushed |= leave.drained && !drains && self.is_flushed(&mut leave);
        let is_kept_back = matches!(leave.saving, Saving::Wanted | Saving::Failed);
        let announces = leave.all_flushed && !leave.announced && !is_kept_back;
        leave.announced |= announces;
        let saved = leave.saving == Saving::Done;
        self.leaving = Some(leave);
        if drains {
            self.release_locks();
        }
        if announces {
            let names = self.directory_of_names().is_some();
            self.member_own(member::MemberEvent::Leave { saved, names: saved && names });
        }
    }

    /// Whether an operation of this node may start while its leave waits for locks: one of a session that holds any lock,
    /// or a fence, with which an unlock begins.
    pub(super) fn serves_holder(&self, operation: OperationId) -> bool {
        let holds = || self.sessions.of(operation).is_some_and(|slots| slots.locks.all() > 0);
        let kind = self.sessions.request(operation).map(|(kind, _)| kind);
        self.awaits_unlocks() && (kind == Some(OperationKind::Persist) || holds())
    }

    /// Whether a leave waits for locks of this home.
    pub(super) fn awaits_unlocks(&self) -> bool {
        self.leaving.as_ref().is_some_and(|leave| leave.locks_end_ns.is_some())
    }

    /// Continues step 1; whether it still waits for locks of this home.
    fn is_unlocking(&mut self) -> bool {
        let Some(end_ns) = self.leaving.as_ref().and_then(|leave| leave.locks_end_ns) else {
            return false;
        };
        let waits = self.links.now_ns() < end_ns && !self.has_no_lock_held();
        if waits && !canary::mutant!(canary::nodes(), StateLocksEnded) {
            return true;
        }
        if let Some(leave) = self.leaving.as_mut() {
            leave.locks_end_ns = None;
        }
        self.stop_locking();
        false
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

    /// Takes the lines of this home, if they will return, back from their owners; whether all are back and logged. No line is
    /// granted for writing meanwhile: who asks for one waits for the return of this node.
    fn takes_lines_back(&mut self, leave: &mut LeaveProgress) -> bool {
        let keeps_owners = canary::mutant!(canary::nodes(), DrainKeepsOwners);
        if !self.keeps_state() && (leave.saving == Saving::No || keeps_owners) {
            return true;
        }
        if self.coherence.stop_granting() {
            self.announce_full();
        }
        // Allocations and frees in progress end, and are answered; new ones are refused.
        self.takes_back(&mut leave.asked_back) && self.has_logged_all() && !self.homes.has_jobs()
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
