//! Sessions of this node: the number of their locks and requests, their age, and their wait.

use super::line::Waiter;
use super::own::Locks;
use super::waits::{LockSession, SessionWait};
use super::{Ask, Mode, Patience, Range, Token};
use farside_base::{ErrorCode, LineAddress, OperationId, SessionId, Ticket};

impl Locks {
    /// Whether a session waits for a lock.
    pub(super) fn waits(&self, session: SessionId) -> bool {
        self.sessions.get(session).is_some_and(|session| session.wait.is_some())
    }

    /// Counts a request; returns the session's birth.
    pub(super) fn count(&mut self, session: SessionId, ask: Ask) -> Result<u64, ErrorCode> {
        if self.sessions.len() >= self.limits.sessions_max as usize
            && !self.sessions.contains(session)
        {
            return Err(ErrorCode::TooManySessions);
        }
        let session = self.sessions.get_or_insert_with(session, LockSession::default);
        // An upgrade adds no lock.
        if matches!(ask, Ask::Lock { .. }) && session.locks >= self.limits.locks_per_session_max {
            return Err(ErrorCode::TooManyLocks);
        }
        session.count(&mut self.birth_last, self.rules);
        Ok(session.birth)
    }

    /// The number of locks that a session of this node holds, and of its pending requests.
    pub fn locks_of(&self, session: SessionId) -> u32 {
        self.sessions.get(session).map_or(0, |session| session.locks)
    }

    /// The token of the write lock that a session of this node holds of exactly this range.
    pub fn write_token(&self, at: LineAddress, session: SessionId, range: Range) -> Option<Token> {
        let mut holders = self.lines.get(at)?.holders.iter();
        let held = holders.find(|holder| {
            holder.session == session && holder.range == range && holder.mode == Mode::Write
        })?;
        Some(held.token)
    }

    /// Removes a held lock, or a request, from the count.
    pub(super) fn uncount(&mut self, session: SessionId) {
        let session = self.sessions.get_mut(session).expect("what is counted has a session");
        session.locks -= 1;
    }

    /// Notes that the session waits for a request, if it is of the waiting kind.
    pub(super) fn begin_wait(&mut self, line: LineAddress, waiter: &Waiter) {
        if waiter.ask.patience() == Patience::Wait {
            let session = self.sessions.get_mut(waiter.session).expect("counted before");
            session.wait = Some(SessionWait { line, ticket: waiter.ticket });
        }
    }

    /// Completes a request of this node; with `kept`, a lock is now held for it that was not before.
    pub(super) fn conclude(&mut self, waiter: &Waiter, kept: bool) {
        let session = self.sessions.get_mut(waiter.session).expect("counted before");
        if session.wait.is_some_and(|wait| wait.ticket == waiter.ticket) {
            session.wait = None;
        }
        if !kept {
            session.locks -= 1;
        }
    }

    /// Notes the birth of another node's session, so that later births here are younger.
    pub(super) fn hear_birth(&mut self, birth: u64) {
        self.birth_last = self.birth_last.max(birth);
    }

    /// Returns a ticket that this node has not used.
    pub(super) const fn take_ticket(&mut self) -> Ticket {
        let ticket = Ticket(self.ticket_next);
        self.ticket_next += 1;
        ticket
    }

    /// The request for which a session waits.
    pub(super) fn waiting_at(&self, session: SessionId) -> Option<SessionWait> {
        self.sessions.get(session)?.wait
    }

    /// The session of this node that waits for a request.
    pub(super) fn session_waiting(&self, ticket: Ticket) -> Option<(SessionId, SessionWait)> {
        self.sessions.iter().find_map(|(id, session)| {
            let wait = session.wait.filter(|wait| wait.ticket == ticket)?;
            Some((id, wait))
        })
    }
}

/// Stand-in for the operation of another node's session.
pub(super) const NO_OPERATION: OperationId = OperationId(0);
