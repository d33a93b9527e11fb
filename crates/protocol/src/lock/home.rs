//! The home of a line: requests of other nodes, and the return of a delegation.

use super::canary::mutant;
use super::line::{Authority, Early, RequestKey, Waiter};
use super::own::Locks;
use super::session::NO_OPERATION;
use super::{Ask, Effects, Here, LockEffect, LockMessage, Mode, Patience, Range, Step, Token};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, LineAddress, NodeId, SessionId, Ticket};

impl Locks {
    /// Handles a message.
    pub(super) fn received(
        &mut self,
        from: NodeId,
        message: LockMessage,
        here: Here,
        effects: &mut Effects,
    ) -> Step {
        if from == self.me || from.0 >= self.limits.nodes_max {
            return Err(Violation("a message from an invalid node"));
        }
        let at = message.line();
        if let LockMessage::Probe { probe, .. } | LockMessage::Visit { probe, .. } = message
            && (self.dead.contains(probe.origin) || self.dead.contains(probe.youngest.node))
        {
            // A cycle through a waiter of a dead node is broken, and every node probes again when it learns of a
            // death. A forwarded probe could arrive when a new node has the number.
            return Ok(());
        }
        // These two messages travel between the node that sent a probe and the victim's node, whichever node is the
        // home.
        if let LockMessage::Abort { ticket, number, .. } = message {
            return self.aborted(from, at, ticket, number, effects);
        }
        if let LockMessage::Aborted { number, .. } = message {
            return self.victim_gone(at, number);
        }
        if at.home() == self.me {
            self.received_at_home(from, at, message, here, effects)
        } else if at.home() == from {
            self.received_reply(from, message, effects)
        } else {
            Err(Violation("a message about a third node's line"))
        }
    }

    fn received_at_home(
        &mut self,
        from: NodeId,
        at: LineAddress,
        message: LockMessage,
        here: Here,
        effects: &mut Effects,
    ) -> Step {
        match message {
            LockMessage::Request { range, ask, session, ticket, birth, holds, .. } => {
                let waiter = asked(from, at, session, range, ask, ticket, birth)?;
                let waiter = Waiter { holds, ..waiter };
                self.request(from, at, waiter, here, effects)
            }
            LockMessage::Release { token, untold, .. } => {
                self.release(from, at, token, untold, effects)
            }
            LockMessage::Cancel { ticket, .. } => self.cancel_remote(from, at, ticket, effects),
            LockMessage::Offer { number, .. } => self.offer(from, at, number, effects),
            LockMessage::Holder { session, range, mode, token, .. } => {
                let ask = Ask::Lock { mode, patience: Patience::Wait };
                let holder = asked(from, at, session, range, ask, Ticket(0), 0)?;
                self.returned_holder(from, at, &holder, token)
            }
            LockMessage::Waiter {
                session, range, ask, ticket, birth, overtaken, holds, ..
            } => {
                let waiter = asked(from, at, session, range, ask, ticket, birth)?;
                let waiter = Waiter { overtaken, holds, ..waiter };
                self.returned_waiter(from, at, waiter)
            }
            LockMessage::Returned { number, holders, waiters, .. } => {
                self.returned(from, at, number, (holders, waiters), effects)
            }
            LockMessage::Visit { ticket, probe, .. } => {
                self.visit(from, at, ticket, probe, effects)
            }
            LockMessage::Recall { .. }
            | LockMessage::Granted { .. }
            | LockMessage::Refused { .. }
            | LockMessage::Cancelled { .. }
            | LockMessage::Moved { .. }
            | LockMessage::Probe { .. }
            | LockMessage::Abort { .. }
            | LockMessage::Aborted { .. } => Err(Violation("a message not from the line's home")),
        }
    }

    /// Handles a request of another node's session.
    fn request(
        &mut self,
        from: NodeId,
        at: LineAddress,
        waiter: Waiter,
        here: Here,
        effects: &mut Effects,
    ) -> Step {
        let last = self.tickets_seen.get(from).copied().unwrap_or_default();
        if waiter.ticket <= last {
            return Err(Violation("a ticket was used twice"));
        }
        self.tickets_seen.insert(from, waiter.ticket);
        self.hear_birth(waiter.birth);
        if let Some(code) = waiter.range.refusal(here.bytes.into()) {
            self.refuse(at, &waiter, code, effects);
            return Ok(());
        }
        self.open(at, here);
        if self.line(at).authority.is_with(from) {
            let message = LockMessage::Moved { line: at, ticket: waiter.ticket };
            effects.push(LockEffect::Send { to: from, message });
        } else {
            self.decide(at, waiter, effects);
        }
        self.settle(at, effects);
        Ok(())
    }

    /// Checks that this home has used a token; otherwise it cannot be released or returned.
    const fn check_token(&self, token: Token) -> Step {
        if token.0 == 0 || token.0 >= self.token_next {
            return Err(Violation("a token that was never granted"));
        }
        Ok(())
    }

    /// Handles a release. An unknown token was dropped before: its delegation was returned without it, or its
    /// delegate has the current state.
    fn release(
        &mut self,
        from: NodeId,
        at: LineAddress,
        token: Token,
        untold: bool,
        effects: &mut Effects,
    ) -> Step {
        self.check_token(token)?;
        let dropped = mutant!(self.rules, EarlyReleaseDropped);
        let bound = self.items_max();
        let Some(line) = self.lines.get_mut(at) else {
            return Ok(());
        };
        match line.authority {
            Authority::Home => {
                if line
                    .holders
                    .iter()
                    .any(|held| held.token == token && held.session.node() != from)
                {
                    return Err(Violation("released another node's lock"));
                }
                self.release_at(at, token, untold, effects);
                self.settle(at, effects);
            }
            Authority::Recalling { delegate, ref mut early, .. } if delegate == from => {
                keep_early(early, Early::Release(token), bound)?;
                if dropped {
                    early.pop();
                }
            }
            Authority::Recalling { .. }
            | Authority::Away { .. }
            | Authority::Elsewhere { .. }
            | Authority::Delegate { .. } => {}
        }
        Ok(())
    }

    /// Removes a holder at the home, with its pending upgrade, and wakes the waiters that can proceed.
    fn release_at(&mut self, at: LineAddress, token: Token, untold: bool, effects: &mut Effects) {
        let line = self.line(at);
        let Some(held) = line.holders.take(|held| held.token == token) else {
            return;
        };
        let orphan = line.queue.iter().position(|waiter| held.is_base_of(waiter));
        if let Some(waiter) = orphan.and_then(|place| line.queue.remove(place)) {
            self.refuse(at, &waiter, ErrorCode::NotLocked, effects);
        }
        if untold && held.abandoned && !mutant!(self.rules, UndoneTellsNobody) {
            self.mark(at, held.range);
        }
        self.promote(at, effects);
    }

    /// Handles a cancellation. A granted request is taken back, and `Granted`, which is in flight, will be ignored;
    /// any other unknown request has its answer in flight too.
    fn cancel_remote(
        &mut self,
        from: NodeId,
        at: LineAddress,
        ticket: Ticket,
        effects: &mut Effects,
    ) -> Step {
        if ticket == Ticket(0) {
            return Err(Violation("an invalid ticket"));
        }
        let key = RequestKey(from, ticket);
        let dropped = mutant!(self.rules, EarlyCancelDropped);
        let bound = self.items_max();
        let Some(line) = self.lines.get_mut(at) else {
            return Ok(());
        };
        let in_limbo = line.limbo.iter().position(|waiter| waiter.key() == key);
        if let Some(place) = in_limbo {
            line.limbo.remove(place);
            let message = LockMessage::Cancelled { line: at, ticket };
            effects.push(LockEffect::Send { to: from, message });
        } else if line.authority == Authority::Home {
            self.cancel_at(at, key, effects);
            self.settle(at, effects);
        } else if let Authority::Recalling { delegate, ref mut early, .. } = line.authority
            && delegate == from
            && !dropped
        {
            keep_early(early, Early::Cancel(ticket), bound)?;
        }
        Ok(())
    }

    /// Removes a cancelled request or its lock at the home, and wakes the waiters that can proceed.
    fn cancel_at(&mut self, at: LineAddress, key: RequestKey, effects: &mut Effects) {
        let line = self.line(at);
        if let Some(place) = line.place(key) {
            line.queue.remove(place);
            let message = LockMessage::Cancelled { line: at, ticket: key.1 };
            effects.push(LockEffect::Send { to: key.0, message });
        } else {
            let marked = line.take_back(key);
            if let Some(range) = marked.filter(|_| !mutant!(self.rules, UndoneTellsNobody)) {
                self.mark(at, range);
            }
        }
        if !mutant!(self.rules, CancelWakesNobody) {
            self.promote(at, effects);
        }
    }

    /// Handles the offer of a delegate to return its delegation. One for an ended delegation needs no action.
    fn offer(
        &mut self,
        from: NodeId,
        at: LineAddress,
        number: Token,
        effects: &mut Effects,
    ) -> Step {
        self.check_token(number)?;
        let current = Authority::Away { delegate: from, number };
        if self.lines.get(at).is_some_and(|line| line.authority == current) {
            self.recall(at, effects);
        }
        Ok(())
    }

    /// Recalls a delegation.
    pub(super) fn recall(&mut self, at: LineAddress, effects: &mut Effects) {
        let line = self.line(at);
        if let Authority::Away { delegate, number } = line.authority {
            line.authority = Authority::Recalling { delegate, number, early: Vec::new() };
            let message = LockMessage::Recall { line: at, number };
            effects.push(LockEffect::Send { to: delegate, message });
        }
    }

    /// The maximum number of locks, and of waits, of one node.
    pub(super) fn items_max(&self) -> usize {
        let locks =
            u64::from(self.limits.sessions_max) * u64::from(self.limits.locks_per_session_max);
        usize::try_from(locks).unwrap_or(usize::MAX)
    }

    /// Whether a return from `from` is expected.
    fn is_returning(&self, from: NodeId, at: LineAddress) -> Result<(), Violation> {
        match self.lines.get(at).map(|line| &line.authority) {
            Some(Authority::Recalling { delegate, .. }) if *delegate == from => Ok(()),
            _ => Err(Violation("a return of a delegation that was not recalled")),
        }
    }

    fn returned_holder(
        &mut self,
        from: NodeId,
        at: LineAddress,
        holder: &Waiter,
        token: Token,
    ) -> Step {
        self.is_returning(from, at)?;
        self.check_token(token)?;
        let (rules, bound) = (self.rules, self.items_max());
        let line = self.line(at);
        if line.holders.len() >= bound {
            return Err(Violation("returned more locks than a node can hold"));
        }
        if line.holders.iter().any(|held| held.token == token) || line.blocks(rules, holder, 0) {
            return Err(Violation("returned locks that exclude each other"));
        }
        // The delegate knows that it has this lock, whatever it calls it from now on.
        line.hold(holder, token);
        Ok(())
    }

    fn returned_waiter(&mut self, from: NodeId, at: LineAddress, waiter: Waiter) -> Step {
        self.is_returning(from, at)?;
        let bound = self.items_max();
        if waiter.overtaken > self.rules.handovers_max {
            return Err(Violation("returned a waiter that was overtaken too often"));
        }
        let line = self.line(at);
        if line.queue.len() >= bound {
            return Err(Violation("returned more waits than a node can have"));
        }
        if waiter.ask.patience() == Patience::Try {
            return Err(Violation("returned a try among the waiters"));
        }
        let upgrade = matches!(waiter.ask, Ask::Upgrade { .. });
        if upgrade && !line.holders.iter().any(|holder| holder.is_base_of(&waiter)) {
            return Err(Violation("returned an upgrade of a lock that is not held"));
        }
        let birth = waiter.birth;
        line.queue.push_back(waiter);
        self.hear_birth(birth);
        Ok(())
    }

    /// Completes the return of a delegation.
    fn returned(
        &mut self,
        from: NodeId,
        at: LineAddress,
        number: Token,
        counts: (u32, u32),
        effects: &mut Effects,
    ) -> Step {
        self.is_returning(from, at)?;
        let line = self.line(at);
        let Authority::Recalling { number: recalled, ref mut early, .. } = line.authority else {
            return Err(Violation("a return of a delegation that was not recalled"));
        };
        if recalled != number {
            return Err(Violation("returned another delegation than was recalled"));
        }
        if counts.0 as usize != line.holders.len() || counts.1 as usize != line.queue.len() {
            return Err(Violation("a return with a wrong number of locks"));
        }
        let early = core::mem::take(early);
        self.take_authority(at);
        // Before the releases below can let these requests be granted.
        self.refuse_waiting(at, effects);
        for item in early {
            match item {
                // No grant of a delegated line reports a dead holder.
                Early::Release(token) => self.release_at(at, token, false, effects),
                Early::Cancel(ticket) => self.cancel_at(at, RequestKey(from, ticket), effects),
            }
        }
        self.resume(at, effects);
        Ok(())
    }

    /// Makes the home the authority again.
    pub(super) fn take_authority(&mut self, at: LineAddress) {
        self.line(at).authority = Authority::Home;
        self.link(at);
    }

    /// Resumes arbitration at the home: decides the requests that came with the return, then those that arrived
    /// meanwhile.
    pub(super) fn resume(&mut self, at: LineAddress, effects: &mut Effects) {
        if self.line(at).bytes == 0 {
            self.refuse_all(at, effects);
        }
        self.promote(at, effects);
        if !mutant!(self.rules, ReturnNotProbed) {
            let line = self.lines.get(at).expect("the caller found it");
            self.blocked.extend(line.queue.iter().map(|waiter| (at, waiter.key())));
        }
        loop {
            let line = self.line(at);
            if line.authority != Authority::Home {
                break;
            }
            let Some(waiter) = line.limbo.pop_front() else {
                break;
            };
            self.arrive(at, waiter, effects);
        }
        self.settle(at, effects);
    }

    /// Handles an own line that is no longer allocated.
    pub(super) fn retire(&mut self, at: LineAddress, effects: &mut Effects) {
        let Some(line) = self.lines.get_mut(at).filter(|_| at.home() == self.me) else {
            return;
        };
        line.bytes = 0;
        if line.authority == Authority::Home {
            self.unmark(at);
            self.refuse_all(at, effects);
            self.settle(at, effects);
        } else {
            self.recall(at, effects);
        }
    }

    /// Refuses all requests that wait at a line that is no longer allocated.
    fn refuse_all(&mut self, at: LineAddress, effects: &mut Effects) {
        let line = self.line(at);
        let mut waiters = core::mem::take(&mut line.queue);
        waiters.append(&mut line.limbo);
        for waiter in waiters {
            self.refuse(at, &waiter, ErrorCode::Unallocated, effects);
        }
    }

    /// Handles the death of a node.
    pub(super) fn node_dead(&mut self, node: NodeId, left: bool, effects: &mut Effects) {
        if node == self.me || !self.dead.insert(node) {
            return;
        }
        self.delegations_seen.remove(node);
        self.tickets_seen.remove(node);
        self.aborts.retain(|abort| abort.origin != node);
        for at in self.lines.sorted_keys() {
            self.line(at).forget_probes_of(node);
        }
        for at in self.lines.sorted_keys() {
            // Settling one line may remove other idle ones.
            if !self.lines.contains(at) {
                continue;
            }
            if at.home() == node {
                self.lose(at, effects);
            } else if at.home() == self.me {
                self.bury(at, node, left, effects);
            }
        }
        self.chase_all();
    }

    /// Handles the reuse of a dead node's number, which was remembered until now: nothing may refer to the dead node
    /// any more.
    pub(super) fn node_admitted(&mut self, node: NodeId) {
        if self.dead.remove(node) {
            debug_assert!(
                self.lines.iter().all(|(at, line)| !line.names(at, node)),
                "{node} is new"
            );
        }
    }

    /// Probes again for all requests that wait at this node, since the outcome of a victim may be lost.
    fn chase_all(&mut self) {
        for at in self.lines.sorted_keys() {
            let line = self.lines.get(at).expect("the key is there");
            if line.decides() {
                self.blocked.extend(line.queue.iter().map(|waiter| (at, waiter.key())));
            }
        }
    }

    /// Removes the holders and requests of a dead node from an own line.
    fn bury(&mut self, at: LineAddress, node: NodeId, left: bool, effects: &mut Effects) {
        let (keeps, holds) =
            (mutant!(self.rules, DeadDelegateKeeps), mutant!(self.rules, DeadStillHold));
        let line = self.line(at);
        line.limbo.retain(|waiter| waiter.session.node() != node);
        line.queue.retain(|waiter| waiter.session.node() != node);
        let mut written = Vec::new();
        while !holds && let Some(held) = line.holders.take(|holder| holder.session.node() == node) {
            written.extend((held.mode == Mode::Write).then_some(held.range));
        }
        if line.user == node {
            line.streak = 0;
        }
        if line.authority.is_with(node) || line.authority.is_coming_from(node) {
            if !keeps {
                self.take_authority(at);
                if !(left || mutant!(self.rules, DeadDelegateUnmarked)) {
                    self.mark(at, Range { start: 0, bytes: at.line_size().bytes() as u32 });
                }
                self.resume(at, effects);
            }
        } else if line.authority == Authority::Home {
            written.into_iter().for_each(|range| self.mark(at, range));
            self.promote(at, effects);
            self.settle(at, effects);
        }
    }
}

impl Authority {
    /// Whether `node` is the delegate, as far as the home knows.
    pub(super) fn is_with(&self, node: NodeId) -> bool {
        matches!(self, Self::Away { delegate, .. } if *delegate == node)
    }

    fn is_coming_from(&self, node: NodeId) -> bool {
        matches!(self, Self::Recalling { delegate, .. } if *delegate == node)
    }
}

fn keep_early(early: &mut Vec<Early>, item: Early, bound: usize) -> Step {
    if early.len() >= bound.saturating_mul(2) {
        return Err(Violation("more releases and cancellations than a node can have"));
    }
    early.push(item);
    Ok(())
}

/// Builds the waiter for a request of another node's session, if the request is valid.
fn asked(
    from: NodeId,
    at: LineAddress,
    session: SessionId,
    range: Range,
    ask: Ask,
    ticket: Ticket,
    birth: u64,
) -> Result<Waiter, Violation> {
    if session.node() != from {
        return Err(Violation("for a session of another node"));
    }
    if !range.fits(at) {
        return Err(Violation("a range that is not within its line"));
    }
    Ok(Waiter {
        session,
        ticket,
        operation: NO_OPERATION,
        range,
        ask,
        birth,
        overtaken: 0,
        holds: false,
        cancelled: false,
        probe: None,
        closed: 0,
        seen: Vec::new(),
    })
}
