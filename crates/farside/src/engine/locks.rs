//! Locks of byte ranges: drives the lock machine.

use super::Engine;
use crate::lock_hit::{CELLS, LentLock, LockCells, Returned};
use crate::operation::SessionSlots;
use crate::{ErrorCode, NodeId};
use farside_base::{Limits, LineAddress, OperationId, SessionId};
use farside_protocol::lock::{
    Action, Effects, Here, Hold, LockEffect, LockEvent, LockMessage, LockRequest, Locks,
};
use farside_protocol::wire::{BODY, Family, Violation};

/// The result of a lock operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Grant {
    pub(crate) token: u64,
    /// An earlier holder died, and no writer has been notified since.
    pub(crate) abandoned: bool,
}

/// Drives the lock machine.
pub(crate) struct LockDriver {
    machine: Locks,
    effects: Effects,
    /// What the machine has lent to the hit path.
    cells: LockCells,
    /// The operation that is being started, and its outcome if it ended at once.
    awaited: Option<(OperationId, Option<Result<Grant, ErrorCode>>)>,
    per_session_max: u64,
    granted: u64,
}

impl LockDriver {
    pub(super) fn new(me: NodeId, limits: &Limits) -> Self {
        Self {
            machine: Locks::new(me, limits),
            effects: Vec::with_capacity(64),
            cells: LockCells::new(CELLS),
            awaited: None,
            per_session_max: limits.locks_per_session_max.into(),
            granted: 0,
        }
    }

    /// What the machine has lent to the hit path.
    pub(super) fn cells(&self) -> &LockCells {
        &self.cells
    }

    /// The number of locks that the machine has granted.
    pub(super) fn granted(&self) -> u64 {
        self.granted
    }
}

impl Engine {
    fn lock_here(&self, line: LineAddress) -> Here {
        let extent = if line.home() == self.me() { self.lines.here(line).1 } else { None };
        Here { bytes: extent.map_or(0, |extent| extent.bytes) }
    }

    /// Passes an operation to the lock machine. `None`: it is in flight, and its slot receives the outcome.
    pub(crate) fn start_lock(
        &mut self,
        operation: OperationId,
        slots: &SessionSlots,
        request: LockRequest,
    ) -> Option<Result<Grant, ErrorCode>> {
        let unlocks = matches!(request.action, Action::Unlock(_) | Action::Undo(_));
        // A leave waits for the locks of this home; those of other homes end with it.
        let serves = self.awaits_unlocks() && (unlocks || slots.locks.all() > 0);
        let leaves = self.leaving.is_some() && !serves;
        if let Some(code) = self.refusal().or(leaves.then_some(ErrorCode::NodeClosed)) {
            self.call_in_loans();
            return Some(Err(code));
        }
        if let Some(code) = self.refusal_at(request.line) {
            return Some(Err(code));
        }
        let full = slots.locks.all() >= self.locks.per_session_max;
        if full && matches!(request.action, Action::Ask(_)) {
            // The machine checks the limit, and from now on has all of the session's locks.
            self.call_in_loans_of(slots);
        }
        let (here, session) = (self.lock_here(request.line), slots.session);
        self.locks.awaited = Some((operation, None));
        let on_loan = slots.locks.on_loan() > 0;
        self.lock_own(LockEvent::Issue { operation, session, request, here, on_loan });
        slots.locks.set_machine(self.locks.machine.locks_of(session));
        let outcome = self.locks.awaited.take().and_then(|(_, outcome)| outcome);
        if unlocks && matches!(outcome, Some(Ok(_))) {
            self.lend(request.line);
        }
        outcome
    }

    /// Lends a line that a session has unlocked to the hit path, if that seems worthwhile.
    fn lend(&mut self, line: LineAddress) {
        match self.locks.machine.used_here_alone(line) {
            Some((0, 0)) if self.locks.cells.wants(line) => {}
            // The last request of the queue was granted.
            Some((0 | 1, 0)) => return,
            Some((_, 1..)) => return self.locks.cells.contend(line),
            Some((2.., 0)) | None => return self.locks.cells.dispute(line),
        }
        // Grants on loan process no arrivals: this bounds how many precede a request that has arrived.
        self.poll();
        if let Some(loan) = self.locks.machine.lend(line) {
            if let Some((other, returned)) = self.locks.cells.make_room(line) {
                self.end_loan(other, returned);
            }
            self.locks.cells.lend(line, loan);
        } else {
            self.locks.cells.dispute(line);
        }
    }

    /// Reports the end of a loan to the machine.
    fn end_loan(&mut self, line: LineAddress, returned: Returned) {
        let Returned { used, held } = returned;
        let held = held.and_then(|LentLock { place, range, mode }| {
            let slots = self.sessions.at(place)?;
            slots.locks.took();
            Some(Hold { session: slots.session, range, mode })
        });
        self.locks.machine.take_back(line, used, held);
    }

    /// Ends the loan of a line before the machine gets an event about it.
    fn call_in_loan(&mut self, line: LineAddress) {
        if let Some(returned) = self.locks.cells.take_back(line) {
            self.end_loan(line, returned);
        }
    }

    /// Ends the loan of a line before the machine gets a request of a session of this node for it.
    fn call_in_loan_for(&mut self, session: SessionId, request: LockRequest) {
        let LockRequest { line, range, action } = request;
        let Some(returned) = self.locks.cells.take_back(line) else {
            return;
        };
        self.end_loan(line, returned);
        if let (Some(held), Action::Ask(ask)) = (returned.held, action)
            && held.conflicts(LentLock { range, mode: ask.mode(), ..held })
            && self.sessions.at(held.place).is_some_and(|slots| slots.session != session)
        {
            self.locks.cells.contend(line);
        }
    }

    /// Ends the loans of all locks that a session holds; the session locks nothing meanwhile.
    fn call_in_loans_of(&mut self, slots: &SessionSlots) {
        if slots.locks.on_loan() == 0 {
            return;
        }
        let lent: Vec<LineAddress> = self.locks.cells.lent().collect();
        for line in lent {
            if self.locks.cells.may_be_held_by(line, slots.index) {
                self.call_in_loan(line);
            }
        }
    }

    /// Ends all loans.
    pub(crate) fn call_in_loans(&mut self) {
        let lent: Vec<LineAddress> = self.locks.cells.lent().collect();
        for line in lent {
            self.call_in_loan(line);
        }
        self.locks.cells.dispute_all();
    }

    /// Reports the outcome of a lock operation to the caller that is starting it, or to its slot.
    fn lock_ended(&mut self, operation: OperationId, outcome: Result<Grant, ErrorCode>) {
        if let Some((awaited, result)) = self.locks.awaited.as_mut()
            && *awaited == operation
        {
            *result = Some(outcome);
            return;
        }
        if let Some(slots) = self.sessions.of(operation) {
            slots.locks.set_machine(self.locks.machine.locks_of(slots.session));
        }
        match outcome {
            Ok(Grant { token, abandoned }) => {
                if let Some(slot) = self.sessions.slot(operation) {
                    slot.request().abandoned = abandoned;
                }
                self.finish_with(operation, token);
            }
            Err(code) => self.finish(operation, Err(code)),
        }
    }

    /// Steps the lock machine and carries out all its effects.
    fn step_lock(&mut self, event: LockEvent) -> Result<(), Violation> {
        match &event {
            LockEvent::Issue { session, request, .. } => self.call_in_loan_for(*session, *request),
            LockEvent::Cancel { line, .. } | LockEvent::Retire { line } => self.call_in_loan(*line),
            LockEvent::Received { message, .. } => {
                self.call_in_loan(message.line());
                self.locks.cells.dispute(message.line());
            }
            LockEvent::NodeDead { .. } | LockEvent::Drain | LockEvent::CloseHome => {
                self.call_in_loans();
            }
            LockEvent::Close { .. } | LockEvent::NodeAdmitted { .. } => {}
        }
        let mut effects = std::mem::take(&mut self.locks.effects);
        let step = self.locks.machine.step(event, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                LockEffect::Send { to, message } => {
                    self.links.push(to, message.class(), Family::Lock, &message.encode());
                }
                LockEffect::Locked { operation, token, abandoned } => {
                    self.locks.granted += 1;
                    self.lock_ended(operation, Ok(Grant { token: token.0, abandoned }));
                }
                LockEffect::Unlocked { operation } => {
                    self.lock_ended(operation, Ok(Grant::default()))
                }
                LockEffect::Failed { operation, code } => {
                    let leaves = self.leaving.is_some() && code == ErrorCode::HomeAway;
                    let code = if leaves { ErrorCode::NodeClosed } else { code };
                    self.lock_ended(operation, Err(code));
                }
                LockEffect::Cancelled { operation } => {
                    let code = match self.leaving {
                        Some(_) => ErrorCode::NodeClosed,
                        None => ErrorCode::TimedOut,
                    };
                    self.lock_ended(operation, Err(code));
                }
            }
        }
        self.locks.effects = effects;
        step
    }

    fn lock_own(&mut self, event: LockEvent) {
        if let Err(violation) = self.step_lock(event) {
            self.failure = Some(violation.0);
        }
    }

    pub(crate) fn lock_message(
        &mut self,
        from: NodeId,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        let message = LockMessage::decode(body)?;
        self.check_generation(message.line())?;
        let here = self.lock_here(message.line());
        self.step_lock(LockEvent::Received { from, message, here })
    }

    /// The token of a lock for writing that a session holds.
    pub(crate) fn write_token(&self, slots: &SessionSlots, request: LockRequest) -> Option<u64> {
        let token = self.locks.machine.write_token(request.line, slots.session, request.range);
        token.map(|token| token.0)
    }

    /// The node that an operation on a lock waits for, as far as it is known.
    pub(crate) fn awaited_of_lock(
        &self,
        line: LineAddress,
        operation: OperationId,
    ) -> Option<NodeId> {
        self.locks.machine.awaited(line, operation)
    }

    /// Ends all locks and requests of a closed session.
    pub(crate) fn close_locks(&mut self, slots: &SessionSlots) {
        self.call_in_loans_of(slots);
        self.lock_own(LockEvent::Close { session: slots.session });
    }

    /// Grants locks of this home to their holders only: it leaves, and waits until no lock is held.
    pub(super) fn drain_locks(&mut self) {
        self.lock_own(LockEvent::Drain);
    }

    /// Grants no lock of this home any more.
    pub(super) fn stop_locking(&mut self) {
        self.lock_own(LockEvent::CloseHome);
    }

    /// Whether no lock of this home is held.
    pub(super) fn has_no_lock_held(&self) -> bool {
        self.locks.machine.is_home_unused()
    }

    /// Ends the locks of a dead node.
    pub(crate) fn locks_of_dead(&mut self, node: NodeId) {
        let left = self.membership.machine().has_left(node);
        self.lock_own(LockEvent::NodeDead { node, left });
        for slots in self.sessions.iter() {
            slots.locks.set_machine(self.locks.machine.locks_of(slots.session));
        }
    }

    /// Notes that a new node has a number.
    pub(crate) fn locks_of_admitted(&mut self, node: NodeId) {
        self.lock_own(LockEvent::NodeAdmitted { node });
    }

    /// Ends the locks of an own line that is freed.
    pub(crate) fn retire_locks(&mut self, line: LineAddress) {
        self.lock_own(LockEvent::Retire { line });
    }

    /// Withdraws a lock operation that its caller has abandoned; unlocks if it was granted.
    pub(crate) fn forget_lock(
        &mut self,
        operation: OperationId,
        request: LockRequest,
        granted: bool,
    ) {
        let Some(session) = self.sessions.of(operation).map(|slots| slots.session) else {
            return;
        };
        match request.action {
            Action::Ask(ask) if granted => {
                let action = Action::Undo(ask.mode());
                let request = LockRequest { action, ..request };
                let here = self.lock_here(request.line);
                let event = LockEvent::Issue { operation, session, request, here, on_loan: false };
                self.lock_own(event);
            }
            _ if granted => {}
            _ => self.lock_own(LockEvent::Cancel { operation, session, line: request.line }),
        }
    }
}
