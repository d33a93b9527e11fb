//! Loans: lines for which the runtime grants locks without the machine.
//!
//! A line for which this node arbitrates, without holders and requests, can be lent. The borrower then grants its
//! locks itself, one at a time, with the tokens of the loan in order. The loan ends before the machine handles any
//! event that names the line; a held lock then becomes a holder like any other. So no wait, probe, recall or death
//! ever involves a lent line: a waiter waits only for holders that the machine knows, and deadlock detection is
//! unaffected.
//!
//! Not visible to the machine meanwhile: a session's first lock gets its birth when the machine learns of it, which
//! is before any request waits for it; and a session's locks on loan are not in its count, so the borrower enforces
//! the limit.

use super::canary::mutant;
use super::lent::{Hold, Loan};
use super::line::{Authority, Holder, LineLocks};
use super::own::{Locks, TOKENS_LOW};
use super::waits::LockSession;
use super::{LockEvent, Token};
use farside_base::{LineAddress, Ticket};

/// Tokens per loan: enough that renewal costs nothing per grant, few enough that another node's request, which the
/// runtime may notice only then, does not wait long, and that 64 bits last for 2^54 loans.
const TOKENS_PER_LOAN: u32 = 1 << 10;

impl Locks {
    /// Lends a line if possible. Until [`take_back`](Self::take_back) no event may name the line, no node may be
    /// reported dead, and no session may be closed that holds its lock.
    pub fn lend(&mut self, at: LineAddress) -> Option<Loan> {
        let loan = self.lendable(at)?;
        if at.home() == self.me {
            self.token_next += u64::from(loan.tokens);
        }
        self.unlink(at);
        self.line(at).lent = Some(loan);
        self.lent += 1;
        Some(loan)
    }

    /// Returns the loan that [`lend`](Self::lend) would make: none unless this node arbitrates the line, and the line
    /// has no holder and no request.
    pub fn lendable(&self, at: LineAddress) -> Option<Loan> {
        let line = self.lines.get(at).filter(|line| line.lent.is_none() && line.bytes > 0)?;
        let (first, tokens) = match line.authority {
            Authority::Home if self.is_open() => (self.token_next, TOKENS_PER_LOAN),
            Authority::Delegate { next, end, offered: false, .. } => {
                let left = (end - next).saturating_sub(TOKENS_LOW);
                (next, u32::try_from(left).unwrap_or(u32::MAX).min(TOKENS_PER_LOAN))
            }
            Authority::Home
            | Authority::Delegate { .. }
            | Authority::Away { .. }
            | Authority::Recalling { .. }
            | Authority::Elsewhere { .. } => return None,
        };
        let idle = line.is_idle() || mutant!(self.rules, LoanWhileHeld);
        // A deferred request starts without an event that names its line.
        let named = self.deferred.iter().any(|next| next.request.line == at);
        let wanted = named && !mutant!(self.rules, LoanDespiteDeferred);
        let room = self.lent < self.limits.delegations_max;
        let loan = Loan { first: Token(first), tokens, bytes: line.bytes };
        (idle && !wanted && room && tokens > 0).then_some(loan)
    }

    /// The numbers of holders and of waiting requests of a line for which this node arbitrates, if they are all of its
    /// own sessions.
    pub fn used_here_alone(&self, at: LineAddress) -> Option<(usize, usize)> {
        let line = self.lines.get(at).filter(|line| line.decides())?;
        let holders = line.holders.iter().map(|holder| holder.session);
        let mut sessions = holders.chain(line.queue.iter().map(|waiter| waiter.session));
        let alone = sessions.all(|session| session.node() == self.me);
        alone.then(|| (line.holders.len(), line.queue.len()))
    }

    /// Ends a loan with `used` tokens granted, the last one for the lock that is still `held`.
    pub fn take_back(&mut self, at: LineAddress, used: u32, held: Option<Hold>) {
        let (me, again) = (self.me, mutant!(self.rules, LoanTokensAgain));
        let line = self.lines.get_mut(at).expect("a lent line is not forgotten");
        let loan = line.lent.take().expect("what is taken back was lent");
        debug_assert!(used <= loan.tokens, "more grants than tokens");
        debug_assert!(used > 0 || held.is_none(), "held without a grant");
        if let Authority::Delegate { next, .. } = &mut line.authority {
            *next += if again { 0 } else { u64::from(used) };
        } else if again {
            self.token_next = loan.first.0;
        }
        if used > 0 {
            line.note_user(me);
            line.streak = line.streak.saturating_add(used - 1);
        }
        self.lent -= 1;
        self.link(at);
        if let Some(held) = held.filter(|_| !mutant!(self.rules, LoanForgetsHolder)) {
            let token = Token(loan.first.0 + u64::from(used) - 1);
            self.hold_lent(at, held, token);
        }
    }

    fn hold_lent(&mut self, at: LineAddress, held: Hold, token: Token) {
        let Hold { session, range, mode } = held;
        let counted = self.sessions.get_or_insert_with(session, LockSession::default);
        counted.count(&mut self.birth_last, self.rules);
        let (ticket, base, abandoned) = (Ticket(0), None, false);
        let holder = Holder { session, token, range, mode, ticket, base, abandoned };
        self.line(at).holders.push(holder);
    }

    /// The number of lines kept though no session here holds or requests a lock of them, as far as is known.
    pub(super) const fn kept(&self) -> u32 {
        self.listed + self.lent
    }

    /// Whether an event may be handled while loans are outstanding.
    pub(super) fn allows(&self, event: &LockEvent) -> bool {
        let at = match event {
            LockEvent::Issue { request, .. } => request.line,
            LockEvent::Cancel { line, .. } | LockEvent::Retire { line } => *line,
            LockEvent::Received { message, .. } => message.line(),
            LockEvent::Close { .. } | LockEvent::NodeAdmitted { .. } => return true,
            LockEvent::NodeDead { .. } | LockEvent::Drain | LockEvent::CloseHome => {
                return self.lent == 0;
            }
        };
        self.lines.get(at).is_none_or(|line| line.lent.is_none())
    }

    pub(super) fn check_loans(&self) -> Result<(), &'static str> {
        let lent = || self.lines.iter().filter(|(_, line)| line.lent.is_some());
        if lent().count() != self.lent as usize {
            return Err("loans are miscounted");
        }
        for (at, line) in lent() {
            if !line.is_idle() || self.deferred.iter().any(|next| next.request.line == at) {
                return Err("a lent line with a holder or a request");
            }
            if !self.covers(line) {
                return Err("tokens of a loan");
            }
        }
        Ok(())
    }

    /// Whether no other grant can have a token of the line's loan.
    fn covers(&self, line: &LineLocks) -> bool {
        let Some(Loan { first, tokens, .. }) = line.lent else {
            return true;
        };
        let past = first.0 + u64::from(tokens);
        match line.authority {
            Authority::Home => past <= self.token_next,
            Authority::Delegate { next, end, offered, .. } => {
                first.0 == next && past + TOKENS_LOW <= end && !offered
            }
            Authority::Away { .. } | Authority::Recalling { .. } | Authority::Elsewhere { .. } => {
                false
            }
        }
    }
}
