//! The hit path of each node: lines that its machine has lent, and their locks.
//!
//! As in the runtime, a session locks on loan whenever it can, and a loan ends before the machine
//! handles an event of its line. Loans begin, and may also end, at any other step.

use super::{Choice, Hold, LockAction, System};
use farside_base::SessionId;
use farside_protocol::lock::{self, Ask, Loan, LockEvent, Token};

/// A lent line.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LentLine {
    loan: Loan,
    used: u32,
    held: Option<(usize, Hold)>,
}

impl System {
    /// Enables loans of lines, and the end of loans of locks that are free.
    pub(super) fn enabled_loans(&self, actions: &mut Vec<LockAction>) {
        for node in (0..self.setup.nodes).filter(|node| self.lives(*node)) {
            for line in 0..self.setup.homes.len() {
                match self.lent.get(&(node, line)) {
                    Some(lent) if lent.held.is_none() => {
                        actions.push(LockAction::EndLoan { node, line });
                    }
                    Some(_) => {}
                    None if self.loans == 0 => {}
                    None => {
                        let loan = self.nodes[usize::from(node)].lendable(self.line(line));
                        actions.extend(loan.map(|_| LockAction::Lend { node, line }));
                    }
                }
            }
        }
    }

    pub(super) fn lend(&mut self, node: u16, line: usize) {
        let at = self.line(line);
        self.loans -= 1;
        if let Some(loan) = self.nodes[usize::from(node)].lend(at) {
            self.lent.insert((node, line), LentLine { loan, used: 0, held: None });
        }
        self.check(node);
    }

    /// Ends the loan of a line, if there is one.
    pub(super) fn end_loan(&mut self, node: u16, line: usize) {
        let Some(LentLine { used, held, .. }) = self.lent.remove(&(node, line)) else {
            return;
        };
        let held = held.map(|(session, Hold { range, mode, .. })| lock::Hold {
            session: self.id(session),
            range,
            mode,
        });
        let at = self.line(line);
        self.nodes[usize::from(node)].take_back(at, used, held);
        self.check(node);
    }

    /// Ends the loans that must have ended before an event is handled.
    pub(super) fn end_loans_before(&mut self, node: u16, event: &LockEvent) {
        match event {
            LockEvent::Issue { request, .. } => self.end_loan(node, self.line_index(request.line)),
            LockEvent::Cancel { line, .. } | LockEvent::Retire { line } => {
                self.end_loan(node, self.line_index(*line));
            }
            LockEvent::Received { message, .. } => {
                self.end_loan(node, self.line_index(message.line()));
            }
            LockEvent::Close { session } => self.end_loans_of(node, *session),
            LockEvent::NodeAdmitted { .. } => {}
            LockEvent::NodeDead { .. } | LockEvent::Drain | LockEvent::CloseHome => {
                (0..self.setup.homes.len()).for_each(|line| self.end_loan(node, line));
            }
        }
    }

    /// Ends the loans of all locks that a session holds.
    fn end_loans_of(&mut self, node: u16, session: SessionId) {
        for line in 0..self.setup.homes.len() {
            let held = self.lent.get(&(node, line)).and_then(|lent| lent.held);
            if held.is_some_and(|(holder, _)| self.id(holder) == session) {
                self.end_loan(node, line);
            }
        }
    }

    /// Whether a session holds a lock on loan.
    pub(super) fn is_on_loan(&self, at: usize) -> bool {
        self.lent.values().any(|lent| lent.held.is_some_and(|(holder, _)| holder == at))
    }

    /// Locks on loan, if possible, and returns the token.
    pub(super) fn lock_on_loan(&mut self, at: usize, choice: Choice) -> Option<Token> {
        let (node, session) = (self.node_of(at), self.id(at));
        let Choice { line, range, ask: Ask::Lock { mode, .. } } = choice else {
            return None;
        };
        let on_loan = self.lent.values().filter_map(|lent| lent.held);
        let on_loan = on_loan.filter(|(holder, _)| *holder == at).count();
        let others = self.nodes[usize::from(node)].locks_of(session) as usize;
        if on_loan + others >= self.setup.limits.locks_per_session_max as usize {
            // The machine knows the bound, and from now on all locks of the session.
            self.end_loans_of(node, session);
            return None;
        }
        let lent = self.lent.get_mut(&(node, line))?;
        if lent.held.is_some() || lent.used >= lent.loan.tokens {
            return None;
        }
        let token = Token(lent.loan.first.0 + u64::from(lent.used));
        lent.used += 1;
        lent.held = Some((at, Hold { line, range, mode, told: false }));
        Some(token)
    }

    /// Unlocks on loan, if the lock is on loan.
    pub(super) fn unlock_on_loan(&mut self, at: usize, hold: Hold) -> bool {
        let lent = self.lent.get_mut(&(self.setup.sessions[at].node, hold.line));
        lent.is_some_and(|lent| lent.held.take_if(|held| *held == (at, hold)).is_some())
    }

    fn check(&mut self, node: u16) {
        if let Err(rule) = self.nodes[usize::from(node)].invariants() {
            self.fail(format!("node {node}: {rule}"));
        }
    }
}
