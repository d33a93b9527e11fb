//! The lock machine, and the requests of its own sessions.

use super::canary::mutant;
use super::line::{LineLocks, RequestKey, Rules, Waiter};
use super::service::HomeService;
use super::waits::{Abort, LockSession};
use super::{
    Action, Ask, Effects, Here, LockEffect, LockEvent, LockMessage, LockRequest, Mode, Patience,
    Step, Token,
};
use crate::Table;
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{
    ErrorCode, Limits, LineAddress, NodeId, NodeSet, OperationId, Planted, SessionId, Ticket,
};

/// Tokens per delegation: enough that requests for more are rare, few enough that 64 bits last for 2^48 delegations.
pub(super) const TOKENS_PER_DELEGATION: u32 = 1 << 16;

/// The number of tokens left at which a delegate asks to be recalled; it continues to grant meanwhile.
pub(super) const TOKENS_LOW: u64 = 1 << 12;

const _: () = assert!((TOKENS_PER_DELEGATION as u64) > 2 * TOKENS_LOW);

/// A request that starts when its session's current wait ends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Deferred {
    pub(super) operation: OperationId,
    pub(super) session: SessionId,
    pub(super) request: LockRequest,
    pub(super) here: Here,
    pub(super) on_loan: bool,
}

/// The locks of one node: as home, as requester and as delegate. The machine does not know bytes, fences, time or
/// allocations; each event about an own line carries what the runtime knows.
///
/// *Cost.* If this node arbitrates and no other request or holder is at the line, locking and unlocking take two
/// table look-ups each and allocate nothing. Memory grows with the lines that are in use or delegated, and with
/// `Limits::lock_delegations_max`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Locks {
    pub(super) me: NodeId,
    pub(super) rules: Rules,
    pub(super) limits: Bounds,
    pub(super) lines: Table<LineAddress, LineLocks>,
    pub(super) sessions: Table<SessionId, LockSession>,
    pub(super) deferred: VecDeque<Deferred>,
    /// Requests that were queued in this step and have not sent their probes.
    pub(super) blocked: Vec<(LineAddress, RequestKey)>,
    /// Victims with requests that the home has not answered.
    pub(super) aborts: Vec<Abort>,
    pub(super) dead: NodeSet,
    /// The highest delegation received from each home.
    pub(super) delegations_seen: Table<NodeId, Token>,
    /// The last ticket of each node's requests to this home.
    pub(super) tickets_seen: Table<NodeId, Ticket>,
    /// The next token of this home.
    pub(super) token_next: u64,
    pub(super) ticket_next: u64,
    pub(super) probe_next: u64,
    /// The latest birth known.
    pub(super) birth_last: u64,
    /// The ends of the list of recency, and its length.
    pub(super) newest: Option<LineAddress>,
    pub(super) oldest: Option<LineAddress>,
    pub(super) listed: u32,
    /// The number of lent lines, which are not in that list.
    pub(super) lent: u32,
    /// Which requests this home grants.
    pub(super) service: HomeService,
}

/// The limits used by this machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Bounds {
    pub(super) nodes_max: u16,
    pub(super) sessions_max: u32,
    pub(super) locks_per_session_max: u32,
    pub(super) delegations_max: u32,
    pub(super) delegate_after: u32,
}

impl Locks {
    /// Creates the machine of node `me`, without locks.
    pub fn new(me: NodeId, limits: &Limits) -> Self {
        Self {
            me,
            rules: Rules { handovers_max: limits.lock_handovers_max, mutant: Planted::NONE },
            limits: Bounds {
                nodes_max: limits.nodes_max,
                sessions_max: limits.sessions_max,
                locks_per_session_max: limits.locks_per_session_max,
                delegations_max: limits.lock_delegations_max,
                delegate_after: limits.lock_delegate_after,
            },
            lines: Table::new(),
            sessions: Table::new(),
            deferred: VecDeque::new(),
            blocked: Vec::new(),
            aborts: Vec::new(),
            dead: NodeSet::EMPTY,
            delegations_seen: Table::new(),
            tickets_seen: Table::new(),
            token_next: 1,
            ticket_next: 1,
            probe_next: 1,
            birth_last: 0,
            newest: None,
            oldest: None,
            listed: 0,
            lent: 0,
            service: HomeService::Open,
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: super::LockMutant) -> Self {
        self.rules.mutant = Planted::new(mutant);
        self
    }

    /// Handles one event and appends its effects.
    ///
    /// # Errors
    /// A message broke the protocol: nothing was changed; close the link. For an own event: the session is not of
    /// this node.
    pub fn step(&mut self, event: LockEvent, effects: &mut Effects) -> Step {
        debug_assert!(self.allows(&event), "a loan that should have ended: {event:?}");
        match event {
            LockEvent::Issue { operation, session, request, here, on_loan } => {
                self.check_own(session)?;
                self.issue(Deferred { operation, session, request, here, on_loan }, effects);
            }
            LockEvent::Cancel { operation, session, line } => {
                self.check_own(session)?;
                self.cancel(operation, session, line, effects);
            }
            LockEvent::Close { session } => {
                self.check_own(session)?;
                self.close(session, effects);
            }
            LockEvent::Retire { line } => self.retire(line, effects),
            LockEvent::Drain => self.serve(HomeService::Draining, effects),
            LockEvent::CloseHome => self.serve(HomeService::Closed, effects),
            LockEvent::Received { from, message, here } => {
                if self.dead.contains(from) {
                    return Ok(());
                }
                self.received(from, message, here, effects)?;
            }
            LockEvent::NodeDead { node, left } => self.node_dead(node, left, effects),
            LockEvent::NodeAdmitted { node } => self.node_admitted(node),
        }
        self.follow_up(effects);
        Ok(())
    }

    const fn check_own(&self, session: SessionId) -> Step {
        if session.node().0 == self.me.0 {
            Ok(())
        } else {
            Err(Violation("a session of another node"))
        }
    }

    /// Sends probes for the requests queued in this step, then starts deferred requests, until none is left.
    fn follow_up(&mut self, effects: &mut Effects) {
        loop {
            self.chase_blocked(effects);
            let Some(place) = self.deferred.iter().position(|next| !self.waits(next.session))
            else {
                return;
            };
            let next = self.deferred.remove(place).expect("found just now");
            if let Action::Ask(ask) = next.request.action {
                self.start(next, ask, effects);
            }
        }
    }

    /// Handles a request of a session.
    fn issue(&mut self, issued: Deferred, effects: &mut Effects) {
        let Deferred { operation, session, request, .. } = issued;
        match request.action {
            Action::Ask(ask) if self.lock_alone(&issued, ask, effects) => {}
            Action::Unlock(mode) | Action::Undo(mode) => {
                let unlocked = self.unlock(session, request, mode, effects);
                effects.push(match unlocked {
                    Ok(()) => LockEffect::Unlocked { operation },
                    Err(code) => LockEffect::Failed { operation, code },
                });
            }
            Action::Ask(ask) if ask.patience() == Patience::Wait && self.waits(session) => {
                self.deferred.push_back(issued);
            }
            Action::Ask(ask) => self.start(issued, ask, effects),
        }
    }

    /// Why a request is invalid, judged by the runtime's knowledge and the address.
    fn refusal(&self, request: LockRequest, here: Here) -> Option<ErrorCode> {
        let (home, line_bytes) = (request.line.home(), request.line.line_size().bytes() as u64);
        if home.0 >= self.limits.nodes_max {
            return Some(ErrorCode::ForeignAddress);
        }
        if self.dead.contains(home) {
            return Some(ErrorCode::NodeLost);
        }
        let bytes = if home == self.me { line_bytes.min(here.bytes.into()) } else { line_bytes };
        request.range.refusal(bytes)
    }

    /// Starts a request: decides it here, or sends it to the home.
    fn start(&mut self, issued: Deferred, ask: Ask, effects: &mut Effects) {
        let Deferred { operation, session, request, here, on_loan } = issued;
        let LockRequest { line: at, range, .. } = request;
        let birth = match self.refusal(request, here) {
            Some(code) => Err(code),
            None => self.count(session, ask),
        };
        let birth = match birth {
            Ok(birth) => birth,
            Err(code) => return effects.push(LockEffect::Failed { operation, code }),
        };
        let waiter = Waiter {
            session,
            ticket: self.take_ticket(),
            operation,
            range,
            ask,
            birth,
            overtaken: 0,
            holds: on_loan || self.holds_others(session),
            cancelled: false,
            probe: None,
            closed: 0,
            seen: Vec::new(),
        };
        self.open(at, here);
        match self.own_refusal(at, &waiter) {
            Some(code) => {
                self.conclude(&waiter, false);
                effects.push(LockEffect::Failed { operation, code });
            }
            None => {
                self.begin_wait(at, &waiter);
                self.decide(at, waiter, effects);
            }
        }
        self.settle(at, effects);
    }

    /// Why a request fails, judged by this node's own locks and its delegation.
    fn own_refusal(&self, at: LineAddress, waiter: &Waiter) -> Option<ErrorCode> {
        let line = self.lines.get(at).expect("opened before");
        if line.decides()
            && let Some(code) = waiter.range.refusal(line.bytes.into())
        {
            return Some(code);
        }
        if matches!(waiter.ask, Ask::Upgrade { .. }) {
            let bases = line.holders.iter().filter(|holder| holder.is_base_of(waiter));
            match bases.count() {
                0 => return Some(ErrorCode::NotLocked),
                1 => {}
                _ => return Some(ErrorCode::Deadlock),
            }
        }
        line.conflicts_with_own(self.rules, waiter).then_some(ErrorCode::Deadlock)
    }

    /// Releases one lock of a session.
    fn unlock(
        &mut self,
        session: SessionId,
        request: LockRequest,
        mode: Mode,
        effects: &mut Effects,
    ) -> Result<(), ErrorCode> {
        let LockRequest { line: at, range, .. } = request;
        if self.dead.contains(at.home()) {
            return Err(ErrorCode::NodeLost);
        }
        let any_mode = mutant!(self.rules, UnlockAnyMode);
        let line = self.lines.get_mut(at).ok_or(ErrorCode::NotLocked)?;
        let held = line.holders.take(|holder| {
            holder.session == session && holder.range == range && (holder.mode == mode || any_mode)
        });
        let held = held.ok_or(ErrorCode::NotLocked)?;
        let untold = matches!(request.action, Action::Undo(_));
        if untold && held.abandoned && !mutant!(self.rules, UndoneTellsNobody) {
            self.mark(at, held.range);
        }
        let line = self.line(at);
        let undisturbed = line.decides() && line.queue.is_empty() && line.limbo.is_empty();
        let idle = undisturbed && line.holders.is_empty();
        self.uncount(session);
        if undisturbed {
            // No request waits. What remains is to note the use, unless that is noted already.
            if idle && (self.newest != Some(at) || self.kept() > self.limits.delegations_max) {
                self.settle(at, effects);
            }
            return Ok(());
        }
        if mode == Mode::Read {
            self.drop_upgrade(at, session, request, effects);
        }
        self.released(at, held.token, untold, effects);
        self.settle(at, effects);
        Ok(())
    }

    /// Fails the pending upgrade of a lock that is released.
    fn drop_upgrade(
        &mut self,
        at: LineAddress,
        session: SessionId,
        request: LockRequest,
        effects: &mut Effects,
    ) {
        let line = self.lines.get(at).expect("found just now");
        let upgrade = |waiter: &&Waiter| {
            waiter.session == session
                && waiter.range == request.range
                && matches!(waiter.ask, Ask::Upgrade { .. })
                && !waiter.cancelled
        };
        let Some(waiter) = line.queue.iter().chain(&line.limbo).find(upgrade) else {
            return;
        };
        let key = waiter.key();
        self.withdraw(at, key, Some(ErrorCode::NotLocked), effects);
    }

    /// Passes the release of a lock of this node on to the authority.
    fn released(&mut self, at: LineAddress, token: Token, untold: bool, effects: &mut Effects) {
        let line = self.lines.get(at).expect("its lock was held just now");
        if line.decides() {
            self.promote(at, effects);
        } else if at.home() != self.me {
            effects.push(LockEffect::Send {
                to: at.home(),
                message: LockMessage::Release { line: at, token, untold },
            });
        }
    }

    /// Cancels an operation.
    fn cancel(
        &mut self,
        operation: OperationId,
        session: SessionId,
        at: LineAddress,
        effects: &mut Effects,
    ) {
        let meant = |next: &Deferred| next.operation == operation && next.session == session;
        if let Some(place) = self.deferred.iter().position(meant) {
            self.deferred.remove(place);
            return effects.push(LockEffect::Cancelled { operation });
        }
        let Some(line) = self.lines.get(at) else {
            return;
        };
        let meant = |waiter: &&Waiter| {
            waiter.operation == operation && waiter.session == session && !waiter.cancelled
        };
        if let Some(waiter) = line.queue.iter().chain(&line.limbo).find(meant) {
            let key = waiter.key();
            self.withdraw(at, key, None, effects);
            self.settle(at, effects);
        }
    }

    /// Withdraws a request of this node; its operation ends with `code`, or as cancelled.
    pub(super) fn withdraw(
        &mut self,
        at: LineAddress,
        key: RequestKey,
        code: Option<ErrorCode>,
        effects: &mut Effects,
    ) {
        let line = self.lines.get_mut(at).expect("it has the request");
        let queued = line.place(key).and_then(|place| line.queue.remove(place));
        let gone = queued.is_some() || at.home() == self.me;
        let waiter = match queued {
            Some(waiter) => waiter,
            None => line.leave_limbo(key, gone),
        };
        self.conclude(&waiter, false);
        let operation = waiter.operation;
        effects.push(match code {
            Some(code) => LockEffect::Failed { operation, code },
            None => LockEffect::Cancelled { operation },
        });
        if !gone {
            let message = LockMessage::Cancel { line: at, ticket: waiter.ticket };
            effects.push(LockEffect::Send { to: at.home(), message });
        } else if !mutant!(self.rules, CancelWakesNobody) {
            self.promote(at, effects);
        }
    }

    /// Closes a session.
    fn close(&mut self, session: SessionId, effects: &mut Effects) {
        self.deferred.retain(|next| {
            if next.session == session {
                effects.push(LockEffect::Cancelled { operation: next.operation });
            }
            next.session != session
        });
        let busy = self.sessions.get(session).is_some_and(|session| session.locks > 0);
        for at in if busy { self.lines.sorted_keys() } else { Vec::new() } {
            // Settling one line may remove other idle ones.
            if self.lines.contains(at) {
                self.close_at(at, session, effects);
            }
        }
        self.sessions.remove(session);
    }

    fn close_at(&mut self, at: LineAddress, session: SessionId, effects: &mut Effects) {
        loop {
            let line = self.lines.get(at).expect("no line goes before it is settled");
            let waiters = line.queue.iter().chain(&line.limbo);
            let own = |waiter: &&Waiter| waiter.session == session && !waiter.cancelled;
            let Some(waiter) = waiters.into_iter().find(own) else {
                break;
            };
            let key = waiter.key();
            self.withdraw(at, key, None, effects);
        }
        loop {
            let line = self.lines.get_mut(at).expect("no line goes before it is settled");
            let Some(held) = line.holders.take(|holder| holder.session == session) else {
                break;
            };
            self.uncount(session);
            self.released(at, held.token, false, effects);
        }
        self.settle(at, effects);
    }
}
