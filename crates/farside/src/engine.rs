//! The progress engine of a node: its protocol machines, its port and the state that they share. The thread
//! that holds the engine's lock runs [`turn`](crate::turn), one poll; nothing here blocks. Waiting threads
//! poll it ([`wait`](crate::wait)).

use crate::allocation::Homes;
use crate::boot::Boot;
use crate::contact::Keeper;
use crate::hit::Lines;
use crate::leave::LeaveProgress;
use crate::lock_hit::LockCells;
use crate::locks::Grant;
use crate::operation::{
    OperationKind, OperationSlot, Outcome, SessionSlots, is_home, session_index,
};
use crate::peer::Peers;
use crate::registered::Registered;
use crate::requests::Requests;
use crate::stopped::Lookout;
use crate::turn::BATCH;
use crate::watch::Watches;
use crate::write_back::WriteBacks;
use farside_base::{
    Completion, ErrorCode, GlobalAddress, Limits, LineAddress, NodeId, OperationId,
};
use farside_fabric::Port;
use farside_protocol::coherence::{Coherence, Effects, HeldLine};
use farside_protocol::lock::{self, Locks};
use farside_protocol::member::Membership;
use farside_protocol::messaging::WritesInFlight;
use std::collections::VecDeque;
use std::sync::Arc;

/// Work that effects of a step leave for after the step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FollowUp {
    /// Bytes placed at a removed peer count as landed.
    Placed(LineAddress),
    /// Unpins the line of an operation that its caller has abandoned.
    Unpin(LineAddress),
    /// Retries operations that wait for a frame.
    RetryFrames,
    /// Starts an operation that was held back.
    Start(OperationId),
    /// The link to a peer failed.
    Drop(NodeId),
    /// A peer broke the protocol.
    Accuse(NodeId),
    /// Judges members that accuse each other.
    Judge,
}

/// A one-sided WRITE of a line's bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineWrite {
    pub(crate) line: LineAddress,
    /// Whether the bytes come from the cache region rather than the home region.
    pub(crate) from_cache: bool,
    pub(crate) offset: u64,
    pub(crate) bytes: u32,
    /// Whether they go to the peer's cache region rather than its home region.
    pub(crate) to_cache: bool,
    pub(crate) to_offset: u64,
}

/// Counters of what the engine did.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct EngineCounters {
    pub(crate) invalidations: u64,
    pub(crate) evictions: u64,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_placed: u64,
    pub(crate) work_requests: u64,
    pub(crate) doorbells: u64,
    pub(crate) locks: u64,
    /// Links that broke and came back.
    pub(crate) resumes: u64,
    /// Stopped members that this node has removed.
    pub(crate) removals: u64,
    /// Hits and misses of sessions that are closed.
    pub(crate) past_hits: u64,
    pub(crate) past_misses: u64,
    pub(crate) past_lock_hits: u64,
}

/// Limits atomics of several lines to one at a time, so that two cannot starve each other of frames to pin.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_closed: bool,
    /// Operations that wait for it.
    waiting: Vec<OperationId>,
}

/// Result of an operation that has taken the gate.
pub(crate) const GATE_TAKEN: u64 = 1;
/// Result of an operation that waited until the gate was opened.
const GATE_OPENED: u64 = 0;

/// The registered regions of a node. They end with it: a fabric may outlive its nodes.
#[derive(Debug)]
pub(crate) struct Regions {
    /// The memory this node is home of; peers write it under recalls.
    pub(crate) home: Arc<Registered>,
    /// Frames of cached lines; homes and owners write them under grants.
    pub(crate) cache: Arc<Registered>,
    /// Receive buffers of messages; not exported to peers.
    pub(crate) messages: Registered,
    /// The fence word of this node, which peers that remove it write.
    pub(crate) fence: Arc<Registered>,
}

/// The state of a node that a poll drives.
pub(crate) struct Engine {
    pub(crate) lines: Arc<Lines>,
    /// Declared before the regions, so that it is dropped first.
    pub(crate) port: Box<dyn Port>,
    pub(crate) regions: Regions,
    pub(crate) peers: Peers,
    /// The completion buffer of polls; `None` only while its completions are processed.
    pub(crate) completions: Option<Box<[Completion; BATCH]>>,
    pub(crate) coherence: Coherence,
    pub(crate) locks: Locks,
    /// What the lock machine has lent to the hit path.
    pub(crate) lock_cells: LockCells,
    pub(crate) membership: Membership,
    pub(crate) homes: Homes,
    pub(crate) sessions: Vec<Option<Arc<SessionSlots>>>,
    /// Table entries of closed sessions with abandoned operations that may not have ended.
    pub(crate) closed_sessions: Vec<u32>,
    pub(crate) effects: Effects,
    /// Effects of the coherence machine carried out so far.
    pub(crate) routed: u64,
    pub(crate) lock_effects: lock::Effects,
    /// The lock operation that is being started, and its outcome if it ended at once.
    pub(crate) awaited_lock: Option<(OperationId, Option<Result<Grant, ErrorCode>>)>,
    pub(crate) follow_ups: VecDeque<FollowUp>,
    /// WRITEs of lines to peers in progress, each posted before the message that announces it.
    pub(crate) placements: WritesInFlight<LineWrite>,
    /// Operations on lines whose set has no free frame at the moment.
    pub(crate) frameless: VecDeque<OperationId>,
    pub(crate) counters: EngineCounters,
    pub(crate) limits: Limits,
    /// Polls so far.
    pub(crate) turns: u32,
    /// The port is armed: a thread sleeps, and arrivals wake it.
    pub(crate) armed: bool,
    /// The reason why this node stopped serving, if it did.
    pub(crate) failure: Option<&'static str>,
    /// The error of every operation after this node has left or was removed.
    pub(crate) closed_with: Option<ErrorCode>,
    pub(crate) boot: Boot,
    /// Owned lines that are to be written back.
    pub(crate) write_backs: WriteBacks,
    /// The leave in progress, during which no operation starts.
    pub(crate) leaving: Option<LeaveProgress>,
    /// Reconnects broken links, on fabrics between hosts.
    pub(crate) keeper: Option<Keeper>,
    /// Watches for stopped members.
    pub(crate) lookout: Lookout,
    /// Requests of other processes that have no link yet.
    pub(crate) requests: Requests,
    /// Admits one atomic of several lines at a time.
    pub(crate) gate: Gate,
    /// Threads that wait for a change of memory or of the membership.
    pub(crate) watches: Watches,
}

impl Engine {
    /// This node's number.
    pub(crate) fn me(&self) -> NodeId {
        self.lines.me()
    }

    /// The session of an operation, if it still exists.
    pub(crate) fn session_of(&self, operation: OperationId) -> Option<&Arc<SessionSlots>> {
        self.sessions.get(session_index(operation))?.as_ref()
    }

    pub(crate) fn slot(&self, operation: OperationId) -> Option<&OperationSlot> {
        self.session_of(operation)?.slot(operation)
    }

    /// The kind and address of an operation, if its session still exists.
    pub(crate) fn request(
        &self,
        operation: OperationId,
    ) -> Option<(OperationKind, Option<GlobalAddress>)> {
        let request = self.slot(operation)?.request();
        Some((request.kind, request.address))
    }

    /// Ends an operation.
    pub(crate) fn finish(&mut self, operation: OperationId, outcome: Outcome) {
        let outcome = outcome.map_err(|code| self.name_loss(operation, code));
        if is_home(operation) {
            self.homes.retired(operation);
        } else if let Some(slot) = self.slot(operation) {
            slot.finish_if_pending(outcome);
        }
    }

    /// Maps the loss of a home to `NodeLeft` if it left: only the membership knows whether it left or died.
    fn name_loss(&self, operation: OperationId, code: ErrorCode) -> ErrorCode {
        let left = || {
            let left = match self.request(operation)? {
                (OperationKind::Allocate { node, .. } | OperationKind::Directory { node }, _) => {
                    self.membership.has_left(node)
                }
                (OperationKind::Lock(request), _) => self.peers.has_left(request.line.memory()),
                (_, address) => self.peers.has_left(address?.memory()),
            };
            left.then_some(ErrorCode::NodeLeft)
        };
        match code {
            ErrorCode::NodeLost => left().unwrap_or(code),
            _ => code,
        }
    }

    /// Ends an operation with a result.
    pub(crate) fn finish_with(&mut self, operation: OperationId, result: u64) {
        let Some(slot) = self.slot(operation) else {
            return;
        };
        if slot.is_abandoned() && matches!(slot.request().kind, OperationKind::Allocate { .. }) {
            return self.undo_allocation(operation, result);
        }
        if slot.is_pending() {
            slot.request().result = result;
            slot.finish(Ok(()));
        }
    }

    /// Abandons a slot's operation, whose result is no longer wanted: undoes what it has acquired, now or
    /// when it ends.
    pub(crate) fn abandon(&mut self, slots: &SessionSlots, index: usize) {
        let slot = &slots.slots[index];
        slot.abandon();
        let operation = slots.operation(index);
        let (kind, address, result) = {
            let request = slot.request();
            (request.kind, request.address, request.result)
        };
        if let (Some(address), None, true) = (address, slot.outcome(), kind.waits_for_line()) {
            self.cancel(operation, address.line());
        }
        let outcome = slot.outcome();
        match (kind, address, outcome) {
            (OperationKind::Pin(_), Some(address), Some(Ok(()))) => self.unpin(address.line()),
            (OperationKind::Lock(request), _, None) => self.forget_lock(operation, request, false),
            (OperationKind::Lock(request), _, Some(Ok(()))) => {
                self.forget_lock(operation, request, true)
            }
            (OperationKind::Allocate { .. }, _, Some(Ok(()))) => {
                return self.undo_allocation(operation, result);
            }
            (OperationKind::Gate, _, Some(Ok(()))) if result == GATE_TAKEN => self.open_gate(),
            (OperationKind::Gate, _, None) => self.forget_gate(operation),
            _ => {}
        }
        if outcome.is_some() {
            slot.recycle();
        }
    }

    /// Frees what was allocated for a call that was abandoned; the slot stays occupied meanwhile.
    fn undo_allocation(&mut self, operation: OperationId, result: u64) {
        if let Some(slot) = self.slot(operation) {
            slot.request().kind = OperationKind::Free;
            slot.submit();
            slot.abandon();
            self.control(operation, OperationKind::Free, GlobalAddress::from_bits(result).ok());
        }
    }

    /// Takes the gate for atomics of several lines, or ends the operation with [`GATE_OPENED`] when it may
    /// be taken: a future that is not polled must not hold it.
    pub(crate) fn take_gate(&mut self, operation: OperationId) {
        if self.slot(operation).is_none_or(OperationSlot::is_abandoned) {
            return self.finish(operation, Err(ErrorCode::TimedOut));
        }
        match self.gate.is_closed {
            true => self.gate.waiting.push(operation),
            false => {
                self.gate.is_closed = true;
                self.finish_with(operation, GATE_TAKEN);
            }
        }
    }

    /// Opens the gate, for which all waiting operations may compete.
    pub(crate) fn open_gate(&mut self) {
        self.gate.is_closed = false;
        for operation in std::mem::take(&mut self.gate.waiting) {
            self.finish_with(operation, GATE_OPENED);
        }
    }

    /// Ends an abandoned operation if it waits for the gate; one that is held back ends when it starts.
    fn forget_gate(&mut self, operation: OperationId) {
        if let Some(at) = self.gate.waiting.iter().position(|waiting| *waiting == operation) {
            self.gate.waiting.swap_remove(at);
            self.finish(operation, Err(ErrorCode::TimedOut));
        }
    }

    /// Copies an operation's bytes into a lost line, which no reader can access yet.
    pub(crate) fn fill(&mut self, operation: OperationId, line: LineAddress) {
        if let Some(slot) = self.slot(operation) {
            self.lines.fill(line, &slot.request().buffer);
        }
    }

    /// Performs an operation after its line has reached the required level.
    pub(crate) fn perform(&mut self, operation: OperationId, line: LineAddress) {
        let slots = self.session_of(operation).map(Arc::clone);
        let Some(slot) = slots.as_ref().and_then(|slots| slots.slot(operation)) else {
            return; // a session keeps its table entry until all its operations have ended
        };
        if !slot.is_pending() {
            // It has failed, because this node was closed.
            if matches!(slot.request().kind, OperationKind::Pin(_)) {
                self.follow_ups.push_back(FollowUp::Unpin(line));
            }
            return;
        }
        let (kind, outcome) = {
            let mut request = slot.request();
            (request.kind, request.perform(&self.lines, line))
        };
        let Some(outcome) = outcome else {
            // It is held back or refused, like an operation that starts now.
            return self.follow_ups.push_back(FollowUp::Start(operation));
        };
        if matches!(kind, OperationKind::Pin(_)) && (outcome.is_err() || slot.is_abandoned()) {
            self.follow_ups.push_back(FollowUp::Unpin(line));
        }
        slot.finish(outcome);
    }

    /// Frees the table entries of closed sessions without operations in flight.
    pub(crate) fn free_places(&mut self) {
        let sessions = &mut self.sessions;
        self.closed_sessions.retain(|index| {
            let Some(place) = sessions.get_mut(*index as usize) else {
                return false;
            };
            let busy = place
                .as_ref()
                .is_some_and(|slots| slots.slots.iter().any(OperationSlot::is_pending));
            if !busy {
                *place = None;
            }
            busy
        });
    }

    /// Closes this node, which is no member any more: all operations, pending and future, fail.
    pub(crate) fn close_with(&mut self, code: ErrorCode) {
        self.closed_with.get_or_insert(code);
        self.lines.trust_until(0);
        self.call_in_loans();
        self.homes.stop();
        self.write_backs.stop();
        self.fail_waiting();
        self.watches.wake_all();
    }

    fn fail_waiting(&mut self) {
        self.frameless.clear();
        self.gate.waiting.clear();
        self.take_held();
        let code = self.closed_with.unwrap_or(ErrorCode::NodeClosed);
        for slots in self.sessions.iter().flatten() {
            for slot in &slots.slots {
                slot.finish_if_pending(Err(code));
            }
        }
    }

    /// Closes all links.
    pub(crate) fn disconnect(&mut self) {
        self.end_incoming(|_| true);
        let peers: Vec<NodeId> = self.peers.iter().collect();
        for node in peers {
            _ = self.unlink(node);
            self.peers.remove(node, false);
        }
        self.peers.rendezvous = None;
    }

    /// What this node holds of a line.
    pub(crate) fn held(&self, line: LineAddress) -> HeldLine {
        self.lines.here(line).0
    }

    /// Describes the state of this node in one line, for people.
    pub(crate) fn describe(&self) -> String {
        format!(
            "node {} peers {} broken {} fenced {} clock {} held {} frameless {} placements {} quarantined {} B of {} members leaving {:?} failure {:?} accused {:?}",
            self.me(),
            self.peers.alive(),
            self.peers.iter().filter(|node| !self.peers.is_linked(*node)).count(),
            !self.lines.is_trusted(),
            if self.resumes() { self.lines.clock().name() } else { "none" },
            self.held_count(),
            self.frameless.len(),
            self.placements.waiting_count(),
            self.quarantined_bytes(),
            self.lookout.lingering_count(),
            self.leaving,
            self.failure,
            self.peers.accused
        )
    }
}
