//! The operations of sessions as the engine sees them: it ends them, or performs them on a line.

use super::{Engine, FollowUp};
use crate::canary;
use crate::hit::Lines;
use crate::operation::{
    OperationKind, OperationSlot, Outcome, SessionSlots, is_home, is_persist, session_index,
};
use crate::{ErrorCode, Stats};
use farside_base::{GlobalAddress, LineAddress, MemoryId, NodeId, OperationId, SessionId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Limits atomics of several lines to one at a time, so that two cannot starve each other of frames to pin.
#[derive(Debug, Default)]
struct Gate {
    is_closed: bool,
    /// Operations that wait for it.
    waiting: Vec<OperationId>,
}

/// Result of an operation that has taken the gate.
pub(crate) const GATE_TAKEN: u64 = 1;
/// Result of an operation that waited until the gate was opened.
const GATE_OPENED: u64 = 0;

/// The open sessions of a node, with the slots of their operations.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    slots: Vec<Option<Arc<SessionSlots>>>,
    /// Table entries of closed sessions with abandoned operations that may not have ended.
    closed: Vec<u32>,
    gate: Gate,
    /// Counts of sessions that are closed.
    past: Stats,
}

/// What came of performing an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Performed {
    Done,
    /// It has ended, and the line that it has pinned must be unpinned.
    Unpin,
    /// It has ended, and the next write of its session to the line has waited for that.
    Next(OperationId),
    /// This node may not be a member any more.
    HeldBack,
}

impl Sessions {
    /// The open sessions.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<SessionSlots>> {
        self.slots.iter().flatten()
    }

    /// The session at an index of the table.
    pub(super) fn at(&self, index: u32) -> Option<&Arc<SessionSlots>> {
        self.slots.get(index as usize)?.as_ref()
    }

    /// The session of an operation, if it still exists.
    pub(super) fn of(&self, operation: OperationId) -> Option<&Arc<SessionSlots>> {
        self.slots.get(session_index(operation))?.as_ref()
    }

    pub(super) fn slot(&self, operation: OperationId) -> Option<&OperationSlot> {
        self.of(operation)?.slot(operation)
    }

    /// The kind and address of an operation, if its session still exists.
    pub(super) fn request(
        &self,
        operation: OperationId,
    ) -> Option<(OperationKind, Option<GlobalAddress>)> {
        let request = self.slot(operation)?.request();
        Some((request.kind, request.address))
    }

    /// Opens a session with this many slots; `None` if there are `sessions_max`.
    fn open(
        &mut self,
        id: SessionId,
        count: usize,
        sessions_max: u32,
    ) -> Option<Arc<SessionSlots>> {
        self.free_places();
        let free = self.slots.iter().position(Option::is_none);
        let index = free.unwrap_or(self.slots.len());
        if index >= sessions_max as usize {
            return None;
        }
        let slots = Arc::new(SessionSlots::new(id, index as u32, count));
        if index == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[index] = Some(Arc::clone(&slots));
        Some(slots)
    }

    /// Frees the table entries of closed sessions without operations in flight.
    fn free_places(&mut self) {
        let sessions = &mut self.slots;
        self.closed.retain(|index| {
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

    /// Whether an operation of this kind is in flight.
    pub(super) fn any_pending(&self, of: impl Fn(OperationKind) -> bool) -> bool {
        let is_it = |slot: &OperationSlot| slot.is_pending() && of(slot.request().kind);
        self.iter().any(|slots| slots.slots.iter().any(is_it))
    }

    /// Ends all operations.
    pub(super) fn fail_all(&mut self, code: ErrorCode) {
        self.gate.waiting.clear();
        for slots in self.iter() {
            slots.slots.iter().for_each(|slot| slot.finish_if_pending(Err(code)));
        }
    }

    /// Counts hits and misses.
    pub(super) fn count(&self, stats: &mut Stats) {
        let sum = |past: u64, count: fn(&SessionSlots) -> u64| {
            past + self.iter().map(|slots| count(slots)).sum::<u64>()
        };
        stats.hits = sum(self.past.hits, |slots| slots.hits.load(Ordering::Relaxed));
        stats.misses = sum(self.past.misses, |slots| slots.misses.load(Ordering::Relaxed));
        let direct = |slots: &SessionSlots| slots.direct_reads.load(Ordering::Relaxed);
        stats.direct_reads = sum(self.past.direct_reads, direct);
        let lock_hits = |slots: &SessionSlots| slots.locks.hits.load(Ordering::Relaxed);
        stats.lock_hits = sum(self.past.lock_hits, lock_hits);
    }

    /// Copies an operation's bytes into a lost line, which no reader can access yet.
    pub(super) fn fill(&self, lines: &Lines, operation: OperationId, line: LineAddress) {
        if let Some(slot) = self.slot(operation) {
            lines.fill(line, &slot.request().buffer);
        }
    }

    /// Performs an operation after its line has reached the required level.
    pub(super) fn perform(
        &self,
        lines: &Lines,
        operation: OperationId,
        line: LineAddress,
    ) -> Performed {
        let Some(slot) = self.slot(operation) else {
            return Performed::Done; // a session keeps its table entry until all its operations have ended
        };
        if !slot.is_pending() {
            // It has failed, because this node was closed.
            return match slot.request().kind {
                OperationKind::Pin(_) => Performed::Unpin,
                _ => Performed::Done,
            };
        }
        let (kind, outcome, next) = {
            let mut request = slot.request();
            (request.kind, request.perform(lines, line), request.next)
        };
        let Some(outcome) = outcome else {
            return Performed::HeldBack;
        };
        let unpins =
            matches!(kind, OperationKind::Pin(_)) && (outcome.is_err() || slot.is_abandoned());
        slot.finish(outcome);
        match next {
            Some(next) => Performed::Next(next),
            None if unpins => Performed::Unpin,
            None => Performed::Done,
        }
    }

    /// Lets a posted write wait until the earlier one of its session to the line has ended; false if it has. So they are
    /// performed in their order, wherever each of them has to wait.
    pub(super) fn queue_write(&self, operation: OperationId) -> bool {
        let earlier = self.slot(operation).and_then(|slot| slot.request().after);
        let earlier = earlier.and_then(|earlier| self.slot(earlier));
        match earlier.filter(|slot| slot.is_pending()) {
            Some(earlier) if !canary::mutant!(canary::nodes(), WritesPass) => {
                earlier.request().next = Some(operation);
                true
            }
            _ => false,
        }
    }

    /// Ends an operation; returns the write that has waited for that, which waits for its home no longer than this one.
    fn end(&self, operation: OperationId, outcome: Outcome) -> Option<OperationId> {
        let slot = self.slot(operation).filter(|slot| slot.is_pending())?;
        let (next, away_until_ns) = {
            let request = slot.request();
            (request.next, request.away_until_ns)
        };
        slot.finish(outcome);
        let waits = self.slot(next?)?;
        waits.request().away_until_ns = away_until_ns;
        next
    }
}

impl Engine {
    /// The open sessions.
    pub(crate) fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Opens a session with this many slots.
    ///
    /// # Errors
    /// `TooManySessions`, `NodeClosed`.
    pub(crate) fn open_session(
        &mut self,
        id: SessionId,
        count: usize,
        sessions_max: u32,
    ) -> Result<Arc<SessionSlots>, ErrorCode> {
        let leaving = self.leaving.as_ref().map(|_| ErrorCode::NodeClosed);
        if let Some(code) = self.closed_with.or(leaving) {
            return Err(code);
        }
        self.sessions.open(id, count, sessions_max).ok_or(ErrorCode::TooManySessions)
    }

    /// Closes a session: releases its locks and frees its table entry.
    pub(crate) fn close_session(&mut self, slots: &SessionSlots) {
        self.close_locks(slots);
        let past = &mut self.sessions.past;
        past.hits += slots.hits.load(Ordering::Relaxed);
        past.misses += slots.misses.load(Ordering::Relaxed);
        past.direct_reads += slots.direct_reads.load(Ordering::Relaxed);
        past.lock_hits += slots.locks.hits.swap(0, Ordering::Relaxed);
        self.sessions.closed.push(slots.index);
        self.sessions.free_places();
    }

    /// Ends an operation.
    pub(crate) fn finish(&mut self, operation: OperationId, outcome: Outcome) {
        if let Err(code) = outcome {
            self.note_refusal(operation, code);
        }
        let outcome = outcome.map_err(|code| self.name_loss(operation, code));
        if is_persist(operation) {
            self.persisted(operation, outcome);
        } else if is_home(operation) {
            self.homes.retired(operation);
        } else if outcome.is_err_and(|code| self.waits_for_home(operation, code)) {
            // It starts again, or fails later.
        } else {
            self.end(operation, outcome);
        }
    }

    /// Ends an operation of a session with an outcome that is final.
    pub(super) fn end(&mut self, operation: OperationId, outcome: Outcome) {
        let next = self.sessions.end(operation, outcome);
        self.follow_ups.extend(next.map(FollowUp::Start));
    }

    /// Maps the loss of a home to `NodeLeft` if it left, and to `HomeAway` if it will return: only the membership knows.
    fn name_loss(&self, operation: OperationId, code: ErrorCode) -> ErrorCode {
        let loss = || {
            let memory = match self.sessions.request(operation)? {
                (OperationKind::Allocate { node, .. } | OperationKind::Directory { node }, _) => {
                    return Some(self.loss_of_node(node));
                }
                (OperationKind::Lock(request), _) => request.line.memory(),
                (_, address) => address?.memory(),
            };
            Some(self.loss_of(memory))
        };
        match code {
            ErrorCode::NodeLost | ErrorCode::NodeLeft => loss().unwrap_or(code),
            _ => code,
        }
    }

    /// How memory was lost; that of a node with state may be lent again by now.
    pub(crate) fn loss_of(&self, memory: MemoryId) -> ErrorCode {
        loss(self.membership.machine().keeps_memory(memory), self.has_left(memory))
    }

    /// The same of a node that cannot be asked any more.
    fn loss_of_node(&self, node: NodeId) -> ErrorCode {
        let membership = self.membership.machine();
        loss(membership.keeps(node), membership.has_left(node))
    }

    /// Ends an operation with a result.
    pub(crate) fn finish_with(&mut self, operation: OperationId, result: u64) {
        let Some(slot) = self.sessions.slot(operation) else {
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
        if slot.outcome().is_none() && self.forget_away(operation) {
            return self.abandon(slots, index);
        }
        let waits = kind.waits_for_line() && slot.outcome().is_none();
        if let (Some(address), true) = (address, waits) {
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
        if let Some(slot) = self.sessions.slot(operation) {
            slot.request().kind = OperationKind::Free;
            slot.submit();
            slot.abandon();
            self.control(operation, OperationKind::Free, GlobalAddress::from_bits(result).ok());
        }
    }

    /// Takes the gate for atomics of several lines, or ends the operation with [`GATE_OPENED`] when it may
    /// be taken: a future that is not polled must not hold it.
    pub(crate) fn take_gate(&mut self, operation: OperationId) {
        if self.sessions.slot(operation).is_none_or(OperationSlot::is_abandoned) {
            return self.finish(operation, Err(ErrorCode::TimedOut));
        }
        match self.sessions.gate.is_closed {
            true => self.sessions.gate.waiting.push(operation),
            false => {
                self.sessions.gate.is_closed = true;
                self.finish_with(operation, GATE_TAKEN);
            }
        }
    }

    /// Opens the gate, for which all waiting operations may compete.
    pub(crate) fn open_gate(&mut self) {
        self.sessions.gate.is_closed = false;
        for operation in std::mem::take(&mut self.sessions.gate.waiting) {
            self.finish_with(operation, GATE_OPENED);
        }
    }

    /// Ends an abandoned operation if it waits for the gate; one that is held back ends when it starts.
    fn forget_gate(&mut self, operation: OperationId) {
        if let Some(at) =
            self.sessions.gate.waiting.iter().position(|waiting| *waiting == operation)
        {
            self.sessions.gate.waiting.swap_remove(at);
            self.finish(operation, Err(ErrorCode::TimedOut));
        }
    }
}

/// The error for a node that is gone: with state it will return.
const fn loss(has_state: bool, has_left: bool) -> ErrorCode {
    match (has_state, has_left) {
        (true, _) => ErrorCode::HomeAway,
        (false, true) => ErrorCode::NodeLeft,
        (false, false) => ErrorCode::NodeLost,
    }
}
