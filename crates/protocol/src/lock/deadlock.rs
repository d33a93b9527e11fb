//! Distributed deadlock detection by edge-chasing probes (Chandy, Misra, Haas).
//!
//! An edge of the waits-for graph leads from a waiting session to each session that holds a conflicting lock, and to
//! each earlier waiter with a conflicting request. All edges out of a session are at one authority, since a session
//! waits for one request at a time. So within the authority a probe passes from a waiter through the waiters ahead of
//! it. Messages are needed only from a holder to the holder's node (`Probe`), and from there to the authority of the
//! request for which that session waits (`Visit`). A probe that returns to the waiter that sent it has closed a
//! cycle. It carries the youngest wait of its path, and the node of that wait is asked to fail it (`Abort`).
//!
//! **Every lasting cycle is found.** Consider a cycle that lasts, and its last edge to appear. Edges out of a session
//! appear when its request is queued, or when the authority over its line moves; then the authority sends a new probe
//! for it. Edges into a session that appear in other ways (a reader that overtakes a writer, an upgrade put at the
//! front of the queue, a grant that conflicts with a waiter) lead to a session that was queued in the same step,
//! which sends a probe itself, or to one that waits for nothing: its next wait will send one. The new probe finds all
//! other edges present. It cannot overtake a request: `Granted` and the messages that return a delegation travel in
//! the probe's class. If the authority moves during the search, the cycle has later last edges.
//!
//! A probe passes through a waiter once, so it may return by a cycle other than the one considered. Therefore its
//! sender is probed for again when the victim has left its queue (`Aborted`), until no probe returns: each time at
//! least one wait has ended. A probe that would select the wait of a dead node, which another node still believes in,
//! selects its sender instead.
//!
//! **Cost.** At most one message per holder for which a waiter reached by the probe waits, and one back: one in all
//! if the holder of a contended lock waits for nothing.
//!
//! **No false cycles.** A probe names the lock and the request that it found; a node drops it if the session has
//! released that lock or waits for a different request. While waiting sessions release nothing, a detected cycle
//! remains a cycle. The exception is an edge that vanishes after the probe has passed, because a wait was cancelled,
//! a session closed, a node died, or another cycle through the same session was broken: then the victim was in a
//! cycle that has just ended.

use super::canary::LockMutant;
use super::line::{LineLocks, RequestKey, Rules, Waiter, is_behind, stands_against};
use super::own::Locks;
use super::waits::Abort;
use super::{Effects, LockEffect, LockMessage, Probe, ProbedWait, Step, Token};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, LineAddress, NodeId, SessionId, Ticket};

/// Probes that a waiter remembers as passed. With more, a probe may go round once more.
const SEEN_MAX: usize = 64;

/// What a probe finds at a waiter.
#[derive(Default)]
struct Met {
    /// Conflicting holders, with the youngest wait on the path to each.
    holders: Vec<(Token, SessionId, ProbedWait)>,
    /// The waiter that sent the probe, if the probe has returned, with the youngest wait of the cycle.
    closed: Option<(RequestKey, ProbedWait)>,
}

impl Locks {
    /// Sends a new probe for each request that was queued in this step.
    pub(super) fn chase_blocked(&mut self, effects: &mut Effects) {
        while let Some((at, key)) = self.blocked.pop() {
            let (me, rules, number) = (self.me, self.rules, self.probe_next);
            let Some(line) = self.lines.get_mut(at).filter(|line| line.decides()) else {
                continue;
            };
            let Some(place) = line.place(key) else {
                continue;
            };
            self.probe_next += 1;
            let waiter = &mut line.queue[place];
            waiter.probe = Some(number);
            waiter.is_new(me, number);
            let probe = Probe { origin: me, number, youngest: waiter.wait() };
            let met = line.look_ahead(rules, place, probe.youngest, Some(number));
            self.follow(at, met, probe, effects);
        }
    }

    /// Handles a probe for a request that waits at this authority.
    pub(super) fn visit(
        &mut self,
        from: NodeId,
        at: LineAddress,
        ticket: Ticket,
        probe: Probe,
        effects: &mut Effects,
    ) -> Step {
        self.check_probe(probe)?;
        let met = self.meet(at, RequestKey(from, ticket), probe);
        self.follow(at, met, probe, effects);
        Ok(())
    }

    /// Handles a probe from the line's home for a holder of this node.
    pub(super) fn probed(
        &mut self,
        at: LineAddress,
        token: Token,
        probe: Probe,
        effects: &mut Effects,
    ) -> Step {
        self.check_probe(probe)?;
        let holders = self.lines.get(at).map(|line| &line.holders);
        let holder = holders.and_then(|holders| holders.iter().find(|held| held.name() == token));
        if let Some(session) = holder.map(|holder| holder.session)
            && !self.rules.has(LockMutant::ProbeNotForwarded)
        {
            let holders = Vec::from([(token, session, probe.youngest)]);
            self.follow(at, Met { holders, closed: None }, probe, effects);
        }
        Ok(())
    }

    /// Handles `Abort`: this node's wait is the youngest of a cycle.
    pub(super) fn aborted(
        &mut self,
        from: NodeId,
        at: LineAddress,
        ticket: Ticket,
        number: u64,
        effects: &mut Effects,
    ) -> Step {
        if ticket.0 >= self.ticket_next {
            return Err(Violation("a ticket that was never used"));
        }
        self.abort(Abort { ticket, origin: from, line: at, number }, effects);
        Ok(())
    }

    /// Fails a wait of this node, and answers once it is in no queue.
    fn abort(&mut self, abort: Abort, effects: &mut Effects) {
        self.fail_victim(abort.ticket, effects);
        let key = RequestKey(self.me, abort.ticket);
        let meant = |waiter: &Waiter| waiter.cancelled && waiter.key() == key;
        let stays = self.lines.iter().any(|(_, line)| line.limbo.iter().any(meant));
        // More cannot be in flight at a time, unless a peer invents them.
        if stays && self.aborts.len() < self.items_max() {
            self.aborts.push(abort);
        } else {
            self.answer_abort(abort, effects);
        }
    }

    /// Sends `Aborted` for a cancelled request of this node that got its answer: it is in no queue any more.
    pub(super) fn answer_aborts(&mut self, ticket: Ticket, effects: &mut Effects) {
        while let Some(place) = self.aborts.iter().position(|abort| abort.ticket == ticket) {
            let abort = self.aborts.remove(place);
            self.answer_abort(abort, effects);
        }
    }

    fn answer_abort(&mut self, abort: Abort, effects: &mut Effects) {
        let Abort { origin, line, number, .. } = abort;
        if origin != self.me {
            effects.push(LockEffect::Send {
                to: origin,
                message: LockMessage::Aborted { line, number },
            });
        } else if let Some(sender) = self.sender(line, number) {
            self.blocked.push((line, sender));
        }
    }

    /// The waiter with the closed probe of this number.
    fn sender(&self, at: LineAddress, number: u64) -> Option<RequestKey> {
        let queue =
            &self.lines.get(at).filter(|_| !self.rules.has(LockMutant::OneCycleEach))?.queue;
        Some(queue.iter().find(|waiter| waiter.closed == number)?.key())
    }

    /// Handles `Aborted`: the victim of a cycle closed by a probe of this node has left its queue.
    pub(super) fn victim_gone(&mut self, at: LineAddress, number: u64) -> Step {
        if number >= self.probe_next {
            return Err(Violation("a probe that was never sent"));
        }
        if let Some(sender) = self.sender(at, number) {
            self.blocked.push((at, sender));
        }
        Ok(())
    }

    fn check_probe(&self, probe: Probe) -> Step {
        let Probe { origin, number, youngest } = probe;
        if origin == self.me && number >= self.probe_next {
            return Err(Violation("a probe that was never sent"));
        }
        if youngest.node == self.me && youngest.ticket.0 >= self.ticket_next {
            return Err(Violation("a ticket that was never used"));
        }
        Ok(())
    }

    /// Forwards a probe from what it found, as far as this node can see, and fails the victim of a cycle that it has
    /// closed.
    fn follow(&mut self, at: LineAddress, met: Met, probe: Probe, effects: &mut Effects) {
        let mut next = Vec::from([(at, met)]);
        while let Some((at, met)) = next.pop() {
            if let Some((sender, victim)) = met.closed {
                return self.close_cycle(at, sender, victim, effects);
            }
            for (token, session, youngest) in met.holders {
                let probe = Probe { youngest, ..probe };
                if session.node() != self.me {
                    let message = LockMessage::Probe { line: at, token, probe };
                    effects.push(LockEffect::Send { to: session.node(), message });
                } else if let Some((line, key)) = self.follow_session(session, probe, effects) {
                    next.push((line, self.meet(line, key, probe)));
                }
            }
        }
    }

    /// Forwards a probe from a session of this node to the request for which it waits.
    fn follow_session(
        &self,
        session: SessionId,
        probe: Probe,
        effects: &mut Effects,
    ) -> Option<(LineAddress, RequestKey)> {
        let wait = self.waiting_at(session)?;
        let line = self.lines.get(wait.line)?;
        let key = RequestKey(self.me, wait.ticket);
        if line.place(key).is_some() {
            return Some((wait.line, key));
        }
        // If this node is the home, the request waits for the return of a delegation: its edges appear then.
        let home = wait.line.home();
        if home != self.me {
            let message = LockMessage::Visit { line: wait.line, ticket: wait.ticket, probe };
            effects.push(LockEffect::Send { to: home, message });
        }
        None
    }

    /// What a probe finds at a waiter; nothing if the waiter is not in a queue of this node, or the probe passed it
    /// before.
    fn meet(&mut self, at: LineAddress, key: RequestKey, probe: Probe) -> Met {
        let (me, rules) = (self.me, self.rules);
        let Some(line) = self.lines.get_mut(at).filter(|line| line.decides()) else {
            return Met::default();
        };
        let Some(place) = line.place(key) else {
            return Met::default();
        };
        let waiter = &mut line.queue[place];
        let own = (probe.origin == me).then_some(probe.number);
        let youngest = younger(rules, probe.youngest, waiter.wait());
        if waiter.sent(own) {
            return Met { holders: Vec::new(), closed: Some((key, youngest)) };
        }
        if !waiter.is_new(probe.origin, probe.number) {
            return Met::default();
        }
        line.look_ahead(rules, place, youngest, own)
    }

    /// Handles a closed cycle through the waiter `sender`: fails the victim, and probes for the sender again when
    /// that is done.
    fn close_cycle(
        &mut self,
        at: LineAddress,
        sender: RequestKey,
        victim: ProbedWait,
        effects: &mut Effects,
    ) {
        let line = self.line(at);
        let Some(place) = line.place(sender) else {
            return;
        };
        let waiter = &mut line.queue[place];
        let Some(number) = waiter.probe.take() else {
            return;
        };
        waiter.closed = number;
        let own = waiter.wait();
        let victim = if self.dead.contains(victim.node) { own } else { victim };
        let ticket = victim.ticket;
        if victim.node == self.me {
            self.abort(Abort { ticket, origin: self.me, line: at, number }, effects);
        } else {
            let message = LockMessage::Abort { line: at, ticket, number };
            effects.push(LockEffect::Send { to: victim.node, message });
        }
    }

    /// Fails a wait of this node, if it still waits.
    fn fail_victim(&mut self, ticket: Ticket, effects: &mut Effects) {
        let Some((session, wait)) = self.session_waiting(ticket) else {
            return;
        };
        let session = self.sessions.get_mut(session).expect("it waits");
        session.victim = true;
        let key = RequestKey(self.me, ticket);
        self.withdraw(wait.line, key, Some(ErrorCode::Deadlock), effects);
        self.settle(wait.line, effects);
    }
}

impl Waiter {
    /// Whether `own` is the number of the outstanding probe of this waiter.
    fn sent(&self, own: Option<u64>) -> bool {
        own.is_some() && self.probe == own
    }

    /// Whether a probe passes this waiter for the first time; remembers it.
    fn is_new(&mut self, origin: NodeId, number: u64) -> bool {
        let name = (origin, number);
        if self.seen.contains(&name) {
            return false;
        }
        if self.seen.len() == SEEN_MAX {
            self.seen.remove(0);
        }
        self.seen.push(name);
        true
    }
}

impl LineLocks {
    /// Drops the remembered probes of a dead node: the next node of its number counts from the start.
    pub(super) fn forget_probes_of(&mut self, node: NodeId) {
        for waiter in &mut self.queue {
            waiter.seen.retain(|(origin, _)| *origin != node);
        }
    }

    /// All holders for which the waiter at `place` waits, directly or through earlier waiters, each by a shortest
    /// path. If an earlier waiter sent this very probe, that waiter instead.
    fn look_ahead(
        &self,
        rules: Rules,
        place: usize,
        youngest: ProbedWait,
        own: Option<u64>,
    ) -> Met {
        let mut met = Met::default();
        let mut holders: Vec<_> = self.holders.iter().collect();
        let mut ahead: Vec<usize> = (0..place).collect();
        // The obstacles of the first `done` of these have been visited.
        let mut reached = Vec::from([(place, youngest)]);
        let mut done = 0;
        while let Some((at, youngest)) = reached.get(done).copied() {
            done += 1;
            let waiter = &self.queue[at];
            holders.retain(|held| {
                let stands = stands_against(rules, held, waiter);
                if stands {
                    met.holders.push((held.name(), held.session, youngest));
                }
                !stands
            });
            ahead.retain(|other| {
                let waits = *other < at && is_behind(rules, waiter, &self.queue[*other]);
                if waits {
                    let youngest = younger(rules, youngest, self.queue[*other].wait());
                    reached.push((*other, youngest));
                }
                !waits
            });
        }
        let sender = reached[1..].iter().find(|(at, _)| self.queue[*at].sent(own));
        met.closed = sender.map(|(at, youngest)| (self.queue[*at].key(), *youngest));
        met
    }
}

/// The younger of two waits.
fn younger(rules: Rules, a: ProbedWait, b: ProbedWait) -> ProbedWait {
    if rules.has(LockMutant::OldestIsVictim) { a.min(b) } else { a.max(b) }
}
