//! Fast path of an uncontended lock: two table look-ups and a few stores.

use super::canary::mutant;
use super::line::{Authority, Holder};
use super::own::{Deferred, Locks, TOKENS_LOW};
use super::{Ask, Effects, LockEffect, Token};
use farside_base::Ticket;

impl Locks {
    /// Grants a lock if this node arbitrates, no other request or holder is at the line, and the session waits for
    /// nothing. Otherwise returns false and changes nothing.
    pub(super) fn lock_alone(
        &mut self,
        issued: &Deferred,
        ask: Ask,
        effects: &mut Effects,
    ) -> bool {
        let (at, range) = (issued.request.line, issued.request.range);
        let is_open = self.is_open();
        let Ask::Lock { mode, .. } = ask else {
            return false;
        };
        let Some(line) = self.lines.get_mut(at).filter(|line| line.is_idle()) else {
            return false;
        };
        let (next, bytes) = match &mut line.authority {
            Authority::Home if is_open => (&mut self.token_next, issued.here.bytes),
            Authority::Delegate { next, end, .. } if *end - *next > TOKENS_LOW => {
                (next, line.bytes)
            }
            Authority::Home
            | Authority::Delegate { .. }
            | Authority::Away { .. }
            | Authority::Recalling { .. }
            | Authority::Elsewhere { .. } => return false,
        };
        if !range.fits(at) || range.refusal(bytes.into()).is_some() {
            return false;
        }
        if mutant!(self.rules, TokenRepeated) || mutant!(self.rules, ShortTokens) {
            return false;
        }
        let Some(session) = self.sessions.get_mut(issued.session) else {
            return false;
        };
        if session.wait.is_some() || session.locks >= self.limits.locks_per_session_max {
            return false;
        }
        session.count(&mut self.birth_last, self.rules);
        let token = Token(*next);
        *next += 1;
        line.bytes = bytes;
        line.note_user(self.me);
        let (session, ticket) = (issued.session, Ticket(0));
        let (base, abandoned) = (None, false);
        line.holders.push(Holder { session, token, range, mode, ticket, base, abandoned });
        effects.push(LockEffect::Locked { operation: issued.operation, token, abandoned });
        true
    }
}
