//! Cycles of waiters, by probes that run along the edges (Chandy, Misra, Haas).
//!
//! An edge leads from a waiting session to each session that holds a conflicting lock, and to each
//! that waits ahead with a conflicting request. All edges out of a session stand at one authority,
//! since a session waits for one request at a time. So a probe at a waiter goes, within the
//! authority, through the waiters ahead, and by message only from a holder to the holder's node
//! (`Probe`) and from there to the authority of what that session waits for (`Visit`). Back at the
//! waiter that it was sent for, it has closed a cycle; it carries the youngest wait of its way, whose
//! node is told to fail it (`Abort`).
//!
//! **No cycle escapes.** Consider a cycle that lasts, and its last edge to appear. Edges out of a
//! session appear when its request is queued, or when the authority over its line changed hands;
//! then the authority sends a fresh probe for it. Edges into a session that do not come so (a reader
//! that overtakes a writer, an upgrade put ahead of the queue, a grant to somebody a waiter
//! conflicts with) lead to a session that was queued in the same step, which sends a probe itself,
//! or to one that waits for nothing: its next wait will. The fresh probe finds all other edges in
//! place. On its way it cannot pass a request: `Granted` and what returns a delegation travel in the
//! probe's class. An authority on its way that changes hands makes later last edges.
//!
//! A probe goes through a waiter once, so it may come back by a cycle other than the one considered.
//! Therefore, when the victim is gone from its queue (`Aborted`), its sender is probed for again until
//! nothing comes back: each time at least one wait has ended. A probe that would make a victim of a
//! dead node's wait, which somebody else still believes in, takes its sender instead.
//!
//! **Cost.** A probe is at most one message per holder that a waiter reached by it waits for, and one
//! back: one in all where the holder of a contended lock waits for nothing.
//!
//! **No cycle is invented.** A probe names the lock and the request it found; whoever has let the
//! lock go, or waits for something else, drops it. While sessions that wait let nothing go, a cycle
//! found is a cycle still. What remains is an edge that vanishes behind the probe, because a wait was
//! cancelled, a session closed, a node died, or another cycle through the same session was broken:
//! then the victim was in a cycle that is just gone.

use super::canary::Mutant;
use super::line::{Key, Line, Rules, Waiter, is_behind, stands_against};
use super::own::Locks;
use super::{Effect, Effects, Message, Probe, Step, Token, Wait};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, LineAddress, NodeId, SessionId, Ticket};

/// Probes that a waiter remembers to have let through. Beyond it a probe may go round once more.
const SEEN_MAX: usize = 64;

/// What a probe meets at a waiter.
#[derive(Default)]
struct Met {
    /// Holders in the way, with the youngest wait on the way to each.
    holders: Vec<(Token, SessionId, Wait)>,
    /// The waiter that the probe was sent for, if it is back, with the youngest of the cycle.
    closed: Option<(Key, Wait)>,
}

/// A victim of this node whose request still is, or may be, in a queue elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Abort {
    pub(super) ticket: Ticket,
    /// Who wants to know when it is gone.
    pub(super) origin: NodeId,
    line: LineAddress,
    number: u64,
}

impl Locks {
    /// Sends a fresh probe for each request that was queued in this step.
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

    /// A probe for one that waits here.
    pub(super) fn visit(
        &mut self,
        from: NodeId,
        at: LineAddress,
        ticket: Ticket,
        probe: Probe,
        effects: &mut Effects,
    ) -> Step {
        self.check_probe(probe)?;
        let met = self.meet(at, Key(from, ticket), probe);
        self.follow(at, met, probe, effects);
        Ok(())
    }

    /// A probe for one that holds a lock of this node, from the line's home.
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
            && !self.rules.has(Mutant::ProbeNotForwarded)
        {
            let holders = Vec::from([(token, session, probe.youngest)]);
            self.follow(at, Met { holders, closed: None }, probe, effects);
        }
        Ok(())
    }

    /// This node's wait is the youngest of a cycle.
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

    /// Fails a wait of this node, and answers when it is in no queue any more.
    fn abort(&mut self, abort: Abort, effects: &mut Effects) {
        self.fail_victim(abort.ticket, effects);
        let key = Key(self.me, abort.ticket);
        let meant = |waiter: &Waiter| waiter.cancelled && waiter.key() == key;
        let stays = self.lines.iter().any(|(_, line)| line.limbo.iter().any(meant));
        // No more than that can be under way at a time, unless a peer makes them up.
        if stays && self.aborts.len() < self.items_max() {
            self.aborts.push(abort);
        } else {
            self.answer_abort(abort, effects);
        }
    }

    /// A cancelled request of this node has its answer: it is in no queue any more.
    pub(super) fn answer_aborts(&mut self, ticket: Ticket, effects: &mut Effects) {
        while let Some(place) = self.aborts.iter().position(|abort| abort.ticket == ticket) {
            let abort = self.aborts.remove(place);
            self.answer_abort(abort, effects);
        }
    }

    fn answer_abort(&mut self, abort: Abort, effects: &mut Effects) {
        let Abort { origin, line, number, .. } = abort;
        if origin != self.me {
            effects.push(Effect::Send { to: origin, message: Message::Aborted { line, number } });
        } else if let Some(sender) = self.sender(line, number) {
            self.blocked.push((line, sender));
        }
    }

    /// The waiter whose probe of this number has closed a cycle.
    fn sender(&self, at: LineAddress, number: u64) -> Option<Key> {
        let queue = &self.lines.get(at).filter(|_| !self.rules.has(Mutant::OneCycleEach))?.queue;
        Some(queue.iter().find(|waiter| waiter.closed == number)?.key())
    }

    /// The victim of a cycle that a probe of this node has closed waits no more.
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

    /// Follows a probe, from what it met, as far as this node can see, and has the victim of the
    /// cycle failed that it has closed.
    fn follow(&mut self, at: LineAddress, met: Met, probe: Probe, effects: &mut Effects) {
        let mut next = Vec::from([(at, met)]);
        while let Some((at, met)) = next.pop() {
            if let Some((sender, victim)) = met.closed {
                return self.close_cycle(at, sender, victim, effects);
            }
            for (token, session, youngest) in met.holders {
                let probe = Probe { youngest, ..probe };
                if session.node() != self.me {
                    let message = Message::Probe { line: at, token, probe };
                    effects.push(Effect::Send { to: session.node(), message });
                } else if let Some((line, key)) = self.follow_session(session, probe, effects) {
                    next.push((line, self.meet(line, key, probe)));
                }
            }
        }
    }

    /// From a session of this node to what it waits for.
    fn follow_session(
        &self,
        session: SessionId,
        probe: Probe,
        effects: &mut Effects,
    ) -> Option<(LineAddress, Key)> {
        let wait = self.waiting_at(session)?;
        let line = self.lines.get(wait.line)?;
        let key = Key(self.me, wait.ticket);
        if line.place(key).is_some() {
            return Some((wait.line, key));
        }
        // Where this node is the home, the request waits for a delegation to come back: its edges
        // appear then.
        let home = wait.line.home();
        if home != self.me {
            let message = Message::Visit { line: wait.line, ticket: wait.ticket, probe };
            effects.push(Effect::Send { to: home, message });
        }
        None
    }

    /// What a probe meets at a waiter; nothing when the waiter is not in a queue here, or let the
    /// probe through before.
    fn meet(&mut self, at: LineAddress, key: Key, probe: Probe) -> Met {
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

    /// A cycle through the waiter `sender` is closed: fails its victim, and has the sender probed for
    /// again when that is done.
    fn close_cycle(&mut self, at: LineAddress, sender: Key, victim: Wait, effects: &mut Effects) {
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
            let message = Message::Abort { line: at, ticket, number };
            effects.push(Effect::Send { to: victim.node, message });
        }
    }

    /// Fails a wait of this node, if it still is one.
    fn fail_victim(&mut self, ticket: Ticket, effects: &mut Effects) {
        let Some((session, wait)) = self.session_waiting(ticket) else {
            return;
        };
        let session = self.sessions.get_mut(session).expect("it waits");
        session.victim = true;
        let key = Key(self.me, ticket);
        self.withdraw(wait.line, key, Some(ErrorCode::Deadlock), effects);
        self.settle(wait.line, effects);
    }
}

impl Waiter {
    /// Whether `own` is the number of the probe that was sent for this waiter and is not back yet.
    fn sent(&self, own: Option<u64>) -> bool {
        own.is_some() && self.probe == own
    }

    /// Whether a probe is here for the first time; from now on it is not.
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

impl Line {
    /// Forgets which probes of a dead node were let through: the next node of its number counts anew.
    pub(super) fn forget_probes_of(&mut self, node: NodeId) {
        for waiter in &mut self.queue {
            waiter.seen.retain(|(origin, _)| *origin != node);
        }
    }

    /// All holders that the waiter at `place` waits for, directly or through those ahead of it in
    /// the queue, each by a shortest way; or the waiter among those ahead that sent this very probe.
    fn look_ahead(&self, rules: Rules, place: usize, youngest: Wait, own: Option<u64>) -> Met {
        let mut met = Met::default();
        let mut holders: Vec<_> = self.holders.iter().collect();
        let mut ahead: Vec<usize> = (0..place).collect();
        // What is in the way of the first `done` of these has been looked at.
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
fn younger(rules: Rules, a: Wait, b: Wait) -> Wait {
    if rules.has(Mutant::OldestIsVictim) { a.min(b) } else { a.max(b) }
}
