//! A node that is not the home of a line: the answers to its requests, and its role as a delegate.

use super::canary::mutant;
use super::line::{Authority, Holder, Waiter};
use super::own::{Locks, TOKENS_LOW};
use super::{Ask, Delegation, Effects, LockEffect, LockMessage, Step, Token};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, LineAddress, NodeId, Ticket};

/// The kind of an answer to a request.
#[derive(Clone, Copy)]
enum AnswerKind {
    /// It was cancelled, as its node requested.
    Cancelled,
    /// A grant with a delegation.
    Delegation,
    Other,
}

const UNASKED: Violation = Violation("an answer to no request");

impl Locks {
    /// Handles a message from the home of a line.
    pub(super) fn received_reply(
        &mut self,
        from: NodeId,
        message: LockMessage,
        effects: &mut Effects,
    ) -> Step {
        match message {
            LockMessage::Recall { line, number } => self.recalled(from, line, number, effects)?,
            LockMessage::Granted { line, ticket, token, delegation, abandoned } => {
                self.granted(line, ticket, token, (delegation, abandoned), effects)?;
            }
            LockMessage::Refused { line, ticket, code } => {
                let waiter = self.take_answered(line, ticket, AnswerKind::Other, effects)?;
                if !waiter.cancelled {
                    self.conclude(&waiter, false);
                    effects.push(LockEffect::Failed { operation: waiter.operation, code });
                }
            }
            LockMessage::Cancelled { line, ticket } => {
                self.take_answered(line, ticket, AnswerKind::Cancelled, effects)?;
            }
            LockMessage::Moved { line, ticket } => self.moved(line, ticket, effects)?,
            LockMessage::Probe { line, token, probe } => {
                self.probed(line, token, probe, effects)?
            }
            LockMessage::Request { .. }
            | LockMessage::Release { .. }
            | LockMessage::Cancel { .. }
            | LockMessage::Offer { .. }
            | LockMessage::Holder { .. }
            | LockMessage::Waiter { .. }
            | LockMessage::Returned { .. }
            | LockMessage::Visit { .. }
            | LockMessage::Abort { .. }
            | LockMessage::Aborted { .. } => return Err(Violation("a request to a non-home node")),
        }
        self.settle(message.line(), effects);
        Ok(())
    }

    /// Takes the request to which an answer belongs, if it can get this kind of answer.
    fn take_answered(
        &mut self,
        at: LineAddress,
        ticket: Ticket,
        answer: AnswerKind,
        effects: &mut Effects,
    ) -> Result<Waiter, Violation> {
        let line = self.lines.get_mut(at).ok_or(UNASKED)?;
        let place = line.limbo.iter().position(|waiter| waiter.ticket == ticket).ok_or(UNASKED)?;
        let recalled = matches!(line.authority, Authority::Elsewhere { recall: Some(_) });
        match answer {
            AnswerKind::Cancelled if !line.limbo[place].cancelled => return Err(UNASKED),
            AnswerKind::Cancelled | AnswerKind::Other if recalled && line.limbo.len() == 1 => {
                return Err(Violation("a recall of a delegation that was never granted"));
            }
            AnswerKind::Cancelled | AnswerKind::Other | AnswerKind::Delegation => {}
        }
        let waiter = line.limbo.remove(place).ok_or(UNASKED)?;
        if waiter.cancelled {
            self.answer_aborts(ticket, effects);
        }
        Ok(waiter)
    }

    /// Handles a grant of the home.
    fn granted(
        &mut self,
        at: LineAddress,
        ticket: Ticket,
        token: Token,
        (delegation, abandoned): (Option<Delegation>, bool),
        effects: &mut Effects,
    ) -> Step {
        let recall = match self.lines.get(at).map(|line| &line.authority) {
            Some(Authority::Elsewhere { recall }) => *recall,
            _ => return Err(Violation("a grant of a line that this node arbitrates")),
        };
        if abandoned && delegation.is_some() {
            return Err(Violation("a delegation of an abandoned line"));
        }
        if let Some(delegation) = delegation {
            let seen = self.delegations_seen.get(at.home()).copied().unwrap_or_default();
            if token <= seen || recall.is_some_and(|number| number != token) {
                return Err(Violation("a delegation out of order"));
            }
            // With fewer it could run out of tokens without having asked to be recalled.
            if u64::from(delegation.tokens) <= TOKENS_LOW {
                return Err(Violation("a delegation with too few tokens"));
            }
            let end = token.0.checked_add(u64::from(delegation.tokens) + 1);
            end.ok_or(Violation("a delegation beyond the last token"))?;
        }
        self.check_grant(at, ticket, token)?;
        let answer = if delegation.is_some() { AnswerKind::Delegation } else { AnswerKind::Other };
        let waiter = self.take_answered(at, ticket, answer, effects)?;
        // The home takes back the lock of a cancelled request when it learns of that, or no longer arbitrates: a
        // delegate itself knows its locks.
        if !waiter.cancelled {
            let held = self.line(at).hold(&waiter, token);
            assert!(held, "an upgrade whose lock is gone was cancelled");
            self.conclude(&waiter, matches!(waiter.ask, Ask::Lock { .. }));
            let operation = waiter.operation;
            effects.push(LockEffect::Locked { operation, token, abandoned });
        }
        if let Some(delegation) = delegation {
            self.become_delegate(at, token, delegation);
            if recall.is_some() {
                self.give_back(at, token, effects);
            }
        }
        Ok(())
    }

    /// Whether a grant is valid, judged by this node's own locks.
    fn check_grant(&self, at: LineAddress, ticket: Ticket, token: Token) -> Step {
        let line = self.lines.get(at).ok_or(UNASKED)?;
        let asked = line.limbo.iter().find(|waiter| waiter.ticket == ticket);
        let asked = asked.ok_or(UNASKED)?;
        if token == Token(0) || line.holders.iter().any(|held| held.token == token) {
            return Err(Violation("a token that was granted before"));
        }
        if !asked.cancelled && line.blocks(self.rules, asked, 0) {
            return Err(Violation("granted locks that exclude each other"));
        }
        Ok(())
    }

    fn become_delegate(&mut self, at: LineAddress, number: Token, delegation: Delegation) {
        let next = number.0 + 1;
        let end = next + u64::from(delegation.tokens);
        let line = self.line(at);
        line.bytes = delegation.bytes;
        line.authority = Authority::Delegate { number, next, end, offered: false };
        self.link(at);
        self.delegations_seen.insert(at.home(), number);
    }

    /// Handles `Moved`: this node was the delegate when its request arrived at the home.
    fn moved(&mut self, at: LineAddress, ticket: Ticket, effects: &mut Effects) -> Step {
        let mut waiter = self.take_answered(at, ticket, AnswerKind::Other, effects)?;
        if waiter.cancelled {
            return Ok(());
        }
        if mutant!(self.rules, MovedForgotten) {
            self.line(at).limbo.push_back(waiter);
            return Ok(());
        }
        if !self.line(at).decides() {
            // The delegation has ended since. The home has dropped the ticket: the request takes a new one.
            waiter.ticket = self.take_ticket();
            self.begin_wait(at, &waiter);
        }
        self.decide(at, waiter, effects);
        Ok(())
    }

    /// Handles the recall of a delegation.
    fn recalled(
        &mut self,
        from: NodeId,
        at: LineAddress,
        number: Token,
        effects: &mut Effects,
    ) -> Step {
        let seen = self.delegations_seen.get(from).copied().unwrap_or_default();
        let line = self.lines.get_mut(at).ok_or(Violation("a recall without a delegation"))?;
        match line.authority {
            Authority::Delegate { number: held, .. } if held == number => {
                if line.queue.is_empty() || !mutant!(self.rules, DelegateKeeps) {
                    self.give_back(at, number, effects);
                }
                Ok(())
            }
            Authority::Elsewhere { ref mut recall }
                if number > seen && recall.is_none() && !line.limbo.is_empty() =>
            {
                if mutant!(self.rules, RecallNumberIgnored) {
                    let message =
                        LockMessage::Returned { line: at, number, holders: 0, waiters: 0 };
                    effects.push(LockEffect::Send { to: from, message });
                } else {
                    *recall = Some(number);
                }
                Ok(())
            }
            Authority::Elsewhere { .. }
            | Authority::Delegate { .. }
            | Authority::Home
            | Authority::Away { .. }
            | Authority::Recalling { .. } => Err(Violation("a recall without a delegation")),
        }
    }

    /// Returns a delegation: its holders, its waiters in order, then `Returned`. The waiters are requests in flight
    /// to the home from now on.
    fn give_back(&mut self, at: LineAddress, number: Token, effects: &mut Effects) {
        let forgets = mutant!(self.rules, ReturnsNoHolders);
        let line = self.line(at);
        let to = at.home();
        let mut holders = 0;
        for holder in line.holders.iter_mut().filter(|_| !forgets) {
            // The home will know it by its current token.
            (holder.ticket, holder.base) = (Ticket(0), None);
            let Holder { session, token, range, mode, .. } = *holder;
            let message = LockMessage::Holder { line: at, session, range, mode, token };
            effects.push(LockEffect::Send { to, message });
            holders += 1;
        }
        let waiters = line.queue.len() as u32;
        for waiter in &mut line.queue {
            let Waiter { session, range, ask, ticket, birth, overtaken, holds, .. } = *waiter;
            let message = LockMessage::Waiter {
                line: at,
                session,
                range,
                ask,
                ticket,
                birth,
                overtaken,
                holds,
            };
            effects.push(LockEffect::Send { to, message });
            (waiter.overtaken, waiter.probe) = (0, None);
            (waiter.closed, waiter.seen) = (0, Vec::new());
        }
        line.limbo.append(&mut line.queue);
        let offered = matches!(line.authority, Authority::Delegate { offered: true, .. });
        line.authority = Authority::Elsewhere { recall: None };
        if !offered {
            self.unlink(at);
        }
        let message = LockMessage::Returned { line: at, number, holders, waiters };
        effects.push(LockEffect::Send { to, message });
    }

    /// Drops this node's locks and requests at a line with a dead home.
    pub(super) fn lose(&mut self, at: LineAddress, effects: &mut Effects) {
        if matches!(self.line(at).authority, Authority::Delegate { offered: false, .. }) {
            self.unlink(at);
        }
        let line = self.lines.remove(at).expect("the caller found it");
        for holder in line.holders.iter() {
            self.uncount(holder.session);
        }
        for waiter in line.queue.iter().chain(&line.limbo).filter(|waiter| !waiter.cancelled) {
            self.conclude(waiter, false);
            let code = ErrorCode::NodeLost;
            effects.push(LockEffect::Failed { operation: waiter.operation, code });
        }
        for waiter in line.limbo.iter().filter(|waiter| waiter.cancelled) {
            self.answer_aborts(waiter.ticket, effects);
        }
    }
}
