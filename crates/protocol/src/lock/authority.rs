//! Arbitration of a line's locks: granting, refusing, queueing, and passing a lock to the next waiter.

use super::canary::mutant;
use super::line::{Admission, Authority, LineLocks, Waiter};
use super::own::{Locks, TOKENS_LOW, TOKENS_PER_DELEGATION};
use super::{Ask, Delegation, Effects, Here, LockEffect, LockMessage, Token};
use farside_base::{ErrorCode, LineAddress, NodeId};

impl Locks {
    /// Creates the entry of a line if there is none, and notes what the runtime knows of the line.
    pub(super) fn open(&mut self, at: LineAddress, here: Here) {
        let own = at.home() == self.me;
        if !self.lines.contains(at) {
            let authority =
                if own { Authority::Home } else { Authority::Elsewhere { recall: None } };
            self.lines.insert(at, LineLocks::new(authority, self.me));
            if own {
                self.link(at);
            }
        }
        if own {
            self.line(at).bytes = here.bytes;
        }
    }

    /// Returns the entry of a line that has one.
    pub(super) fn line(&mut self, at: LineAddress) -> &mut LineLocks {
        self.lines.get_mut(at).expect("the caller opened or found it")
    }

    /// Handles a request of this node, or one sent to this home: decides it or forwards it to the authority.
    pub(super) fn decide(&mut self, at: LineAddress, waiter: Waiter, effects: &mut Effects) {
        match self.line(at).authority {
            Authority::Home | Authority::Delegate { .. } => self.arrive(at, waiter, effects),
            Authority::Elsewhere { .. } => self.ask_home(at, waiter, effects),
            Authority::Recalling { .. } => self.line(at).limbo.push_back(waiter),
            Authority::Away { .. } => {
                self.line(at).limbo.push_back(waiter);
                self.recall(at, effects);
            }
        }
    }

    /// Sends a request of this node to the home.
    pub(super) fn ask_home(&mut self, at: LineAddress, waiter: Waiter, effects: &mut Effects) {
        let Waiter { range, ask, session, ticket, birth, holds, .. } = waiter;
        let message = LockMessage::Request { line: at, range, ask, session, ticket, birth, holds };
        self.line(at).limbo.push_back(waiter);
        effects.push(LockEffect::Send { to: at.home(), message });
    }

    /// Handles a request at the authority.
    pub(super) fn arrive(&mut self, at: LineAddress, waiter: Waiter, effects: &mut Effects) {
        if self.refuses(at, &waiter) {
            return self.refuse(at, &waiter, ErrorCode::HomeAway, effects);
        }
        let rules = self.rules;
        let line = self.line(at);
        match line.admit(rules, &waiter) {
            Admission::Grant if line.is_out_of_tokens() => self.ask_home(at, waiter, effects),
            Admission::Grant => self.grant(at, &waiter, effects),
            Admission::Refuse(code) => self.refuse(at, &waiter, code, effects),
            Admission::Queue => {
                let key = waiter.key();
                line.enqueue(rules, waiter);
                self.blocked.push((at, key));
            }
        }
    }

    /// Grants all waiting requests that the queue order permits.
    pub(super) fn promote(&mut self, at: LineAddress, effects: &mut Effects) {
        let rules = self.rules;
        let mut from = 0;
        loop {
            let line = self.line(at);
            if !line.decides() || line.is_out_of_tokens() {
                return;
            }
            let Some(place) = line.grantable(rules, from) else {
                return;
            };
            let waiter = line.queue.remove(place).expect("found just now");
            self.grant(at, &waiter, effects);
            from = place;
        }
    }

    /// Grants a request that is in no queue.
    fn grant(&mut self, at: LineAddress, waiter: &Waiter, effects: &mut Effects) {
        let token = self.take_token(at, effects);
        let me = self.me;
        let node = waiter.session.node();
        let line = self.line(at);
        if !line.hold(waiter, token) {
            return self.refuse(at, waiter, ErrorCode::NotLocked, effects);
        }
        line.note_user(node);
        let abandoned = self.tell(at, waiter.range, waiter.mode(), token);
        if node == me {
            self.conclude(waiter, matches!(waiter.ask, Ask::Lock { .. }));
            let operation = waiter.operation;
            return effects.push(LockEffect::Locked { operation, token, abandoned });
        }
        let delegation = self.delegate(at, node, token);
        let ticket = waiter.ticket;
        let message = LockMessage::Granted { line: at, ticket, token, delegation, abandoned };
        effects.push(LockEffect::Send { to: node, message });
    }

    /// Refuses a request that is in no queue.
    pub(super) fn refuse(
        &mut self,
        at: LineAddress,
        waiter: &Waiter,
        code: ErrorCode,
        effects: &mut Effects,
    ) {
        let node = waiter.session.node();
        if mutant!(self.rules, DeniedTryUndoes)
            && let Some(line) = self.lines.get_mut(at)
        {
            line.holders.take(|holder| holder.is_base_of(waiter));
        }
        if node == self.me {
            self.conclude(waiter, false);
            return effects.push(LockEffect::Failed { operation: waiter.operation, code });
        }
        let message = LockMessage::Refused { line: at, ticket: waiter.ticket, code };
        effects.push(LockEffect::Send { to: node, message });
    }

    /// Takes a token of the authority. The caller ensures that there is one.
    fn take_token(&mut self, at: LineAddress, effects: &mut Effects) -> Token {
        let repeat = mutant!(self.rules, TokenRepeated);
        let short = mutant!(self.rules, ShortTokens);
        let next_of_home = self.token_next;
        let line = self.line(at);
        let Authority::Delegate { number, ref mut next, end, ref mut offered } = line.authority
        else {
            self.token_next += 1;
            return Token(if short { next_of_home & 0xffff_ffff } else { next_of_home });
        };
        let token = Token(*next);
        *next += u64::from(!repeat);
        if end - *next < TOKENS_LOW && !*offered {
            *offered = true;
            self.unlink(at);
            let message = LockMessage::Offer { line: at, number };
            effects.push(LockEffect::Send { to: at.home(), message });
        }
        token
    }

    /// Makes `node`, just granted `token`, the delegate if it qualifies, and returns the delegation.
    fn delegate(&mut self, at: LineAddress, node: NodeId, token: Token) -> Option<Delegation> {
        if !self.is_open() {
            return None;
        }
        let after = self.limits.delegate_after;
        let line = self.line(at);
        let alone = line.authority == Authority::Home
            && line.streak >= after
            && line.queue.is_empty()
            && line.limbo.is_empty()
            && line.is_unmarked()
            && line.holders.iter().all(|holder| holder.session.node() == node);
        if !alone {
            return None;
        }
        line.holders.clear();
        line.authority = Authority::Away { delegate: node, number: token };
        let bytes = line.bytes;
        self.unlink(at);
        self.token_next += u64::from(TOKENS_PER_DELEGATION);
        Some(Delegation { tokens: TOKENS_PER_DELEGATION, bytes })
    }

    /// Removes an entry that is no longer needed, or notes that it was used.
    pub(super) fn settle(&mut self, at: LineAddress, effects: &mut Effects) {
        let Some(line) = self.lines.get(at) else {
            return;
        };
        if !line.is_idle() || line.lent.is_some() {
            return;
        }
        match line.authority {
            Authority::Elsewhere { recall: None } => {
                self.lines.remove(at);
            }
            Authority::Home | Authority::Delegate { offered: false, .. } => self.touch(at, effects),
            Authority::Elsewhere { recall: Some(_) }
            | Authority::Delegate { offered: true, .. }
            | Authority::Away { .. }
            | Authority::Recalling { .. } => {}
        }
    }
}

impl LineLocks {
    /// Notes the node of the last grant.
    pub(super) const fn note_user(&mut self, node: NodeId) {
        if self.user.0 == node.0 {
            self.streak = self.streak.saturating_add(1);
        } else {
            (self.user, self.streak) = (node, 1);
        }
    }

    /// Whether this delegate has no tokens left.
    pub(super) const fn is_out_of_tokens(&self) -> bool {
        matches!(self.authority, Authority::Delegate { next, end, .. } if next >= end)
    }
}
