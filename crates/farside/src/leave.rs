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

use crate::engine::Engine;
use crate::node::NodeShared;
use crate::operation::{OperationKind, OperationSlot, SessionSlots};
use crate::{Config, Error, ErrorCode};
use farside_base::NodeSet;
use farside_protocol::coherence::{CoherenceEvent, Level};
use farside_protocol::member::{self, Leases};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The minimum timeout of a leave.
const LEAVE_LEAST_NS: u64 = 5_000_000_000;
/// Lines that only operations hold are returned nevertheless after this time. No operation that a thread
/// drives holds lines for so long; one with a forgotten future holds them until its session's next call.
const PINS_GRACE_NS: u64 = 100_000_000;
/// The time between two rounds of evictions while lines of the last round are still in transition.
const EVICT_EVERY_NS: u64 = 1_000_000;
/// The maximum time of a dial and a vote besides the leases.
const DIAL_NS: u64 = 500_000_000;

/// The time until a silent member is removed, as `Config::lease_ns` describes.
pub(crate) fn removal_ns(leases: Leases) -> u64 {
    let noticed_ns = leases.fabric_ns.saturating_add(leases.member_ns.saturating_mul(3) / 2);
    let settled_ns = leases.fabric_ns.saturating_mul(3) / 2;
    noticed_ns.saturating_add(settled_ns).saturating_add(DIAL_NS)
}

/// The timeout of a leave: twice the time until a silent member is removed.
pub(crate) fn leave_timeout(config: &Config, leases: Leases) -> Duration {
    let derived_ns = removal_ns(leases).saturating_mul(2).max(LEAVE_LEAST_NS);
    Duration::from_nanos(config.leave_timeout_ns.unwrap_or(derived_ns))
}

/// What is gone with a node that has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Departure {
    /// Bytes of allocations in the node's memory: they are gone for all nodes.
    pub memory_bytes: u64,
}

/// A leave in progress.
#[derive(Debug, Default)]
pub(crate) struct LeaveProgress {
    /// Members to which all messages of this node's own operations have been posted.
    flushed: NodeSet,
    /// The time of the last round of evictions.
    evicted_at_ns: Option<u64>,
    /// When lines that operations hold are returned nevertheless.
    pins_end_ns: Option<u64>,
    /// Everything was handed over.
    drained: bool,
    /// The membership machine knows of the leave.
    announced: bool,
}

impl Engine {
    /// Starts the leave; [`turn`](Self::turn) continues it. Does nothing if it was started before.
    pub(crate) fn begin_leave(&mut self) {
        if self.leaving.is_some() || self.closed_with.is_some() {
            return;
        }
        self.leaving = Some(LeaveProgress::default());
    }

    /// Ends all hits, then releases all locks and lock requests of sessions: in this order, because a
    /// session's accesses under a lock must end before another session has it.
    fn release_locks(&mut self) {
        self.lines.trust_until(0);
        self.call_in_loans();
        let sessions: Vec<Arc<SessionSlots>> = self.sessions.iter().flatten().cloned().collect();
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
            None if self.boot.closed => Some(Ok(())),
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
        let of_lines = |slot: &OperationSlot| {
            slot.is_pending()
                && !matches!(slot.request().kind, OperationKind::Lock(_) | OperationKind::Confirm)
        };
        let busy = self.sessions.iter().flatten().any(|s| s.slots.iter().any(of_lines));
        let in_transition = self.coherence.holds_work();
        let now_ns = self.boot.fabric.time_ns();
        let waits = |at_ns: u64| in_transition && now_ns < at_ns.saturating_add(EVICT_EVERY_NS);
        if leave.evicted_at_ns.is_some_and(waits) {
            return false;
        }
        leave.evicted_at_ns = Some(now_ns);
        let pins_end_ns = *leave.pins_end_ns.get_or_insert(now_ns.saturating_add(PINS_GRACE_NS));
        if now_ns >= pins_end_ns {
            self.step_own(CoherenceEvent::DropPins);
        }
        let held = self.lines.cached().filter(|line| self.held(*line).level > Level::Invalid);
        let held: Vec<_> = held.collect();
        for line in &held {
            let here = self.here(*line);
            self.step_own(CoherenceEvent::Evict { line: *line, here });
        }
        self.follow_up();
        held.is_empty() && !busy && !in_transition
    }

    /// Whether all messages sent to linked members before this node was drained are posted.
    fn is_flushed(&self, leave: &mut LeaveProgress) -> bool {
        if !self.placements.is_idle() {
            return false;
        }
        let idle = |node| self.peers.get(node).is_some_and(|peer| peer.messenger.has_sent_all());
        let linked = || self.peers.iter().filter(|node| !self.peers.is_accused(*node));
        linked().filter(|node| idle(*node)).for_each(|node| {
            leave.flushed.insert(node);
        });
        linked().all(|node| leave.flushed.contains(node))
    }
}

/// A leave in progress that its caller drives: for simulation, and for programs with their own event loop.
/// [`Node::leave`](crate::Node::leave) does the same and blocks.
#[derive(Debug)]
pub struct Leaving {
    pub(crate) shared: Arc<NodeShared>,
}

impl Leaving {
    /// Continues the leave without waiting; `None` while other nodes have to act first.
    ///
    /// # Errors
    /// As [`Node::leave`](crate::Node::leave). The node has left then, too.
    pub fn poll(&mut self) -> Option<Result<Departure, Error>> {
        self.shared.poll_leave()
    }
}

impl NodeShared {
    fn poll_leave(&self) -> Option<Result<Departure, Error>> {
        if self.is_closed() {
            return Some(Ok(Departure::default())); // by a clone
        }
        let mut engine = self.core.engine();
        engine.turn();
        let ended = engine.leave_ended()?;
        let departure = Departure { memory_bytes: engine.homes.used_bytes() };
        if self.set_closed() {
            return Some(Ok(Departure::default())); // by a clone just now
        }
        drop(engine);
        self.end();
        Some(ended.map(|()| departure).map_err(Error::new))
    }

    /// Blocks until the leave has ended; closes this node after [`leave_timeout`].
    pub(crate) fn wait_until_left(&self) -> Result<Departure, Error> {
        let deadline = Instant::now() + self.core.leave_timeout;
        loop {
            if let Some(done) = self.poll_leave() {
                return done;
            }
            if Instant::now() > deadline {
                let text = self.core.engine().describe();
                self.close();
                return Err(Error::with(ErrorCode::TimedOut, text));
            }
            crate::wait::tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_timeout_follows_the_leases_unless_it_is_set() {
        let mut config = Config::new("x");
        let leases = |fabric_s: u64, member_s: u64| Leases {
            fabric_ns: fabric_s * 1_000_000_000,
            member_ns: member_s * 1_000_000_000,
        };
        let seconds = |leases| leave_timeout(&config, leases).as_secs();
        assert_eq!(seconds(leases(0, 1)), 5, "within a machine");
        assert_eq!([seconds(leases(1, 1)), seconds(leases(1, 60))], [9, 186]);
        config.leave_timeout_ns = Some(7);
        assert_eq!(leave_timeout(&config, leases(1, 60)), Duration::from_nanos(7));
    }
}
