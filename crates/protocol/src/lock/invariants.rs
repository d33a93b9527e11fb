//! Invariants between any two steps, and a view of the waiting requests.

use super::line::{Authority, LineLocks, RequestKey, Rules, Waiter, is_behind, stands_against};
use super::own::Locks;
use super::waits::Abort;
use super::{Ask, Mode, Patience, ProbedWait, Range};
use alloc::vec::Vec;
use farside_base::{LineAddress, NodeId, OperationId, SessionId, Ticket};

impl Locks {
    /// Checks the invariants that hold after every step.
    ///
    /// # Errors
    /// The broken invariant; the machine is then unusable. *Cost*: visits everything several times; for tests and
    /// simulation.
    pub fn invariants(&self) -> Result<(), &'static str> {
        for (at, line) in self.lines.iter() {
            self.check_place(at, line)?;
            self.check_holders(line)?;
            self.check_marks(line)?;
            self.check_queue(line)?;
        }
        self.check_sessions()?;
        self.check_recency()?;
        self.check_loans()?;
        check(self.blocked.is_empty(), "probes that were not sent")?;
        let known = |abort: &Abort| {
            let key = RequestKey(self.me, abort.ticket);
            let meant = |waiter: &Waiter| waiter.cancelled && waiter.key() == key;
            self.lines.iter().any(|(_, line)| line.limbo.iter().any(meant))
        };
        check(self.aborts.iter().all(known), "an abort without a request")
    }

    fn check_place(&self, at: LineAddress, line: &LineLocks) -> Result<(), &'static str> {
        let own = at.home() == self.me;
        let is_home = matches!(
            line.authority,
            Authority::Home | Authority::Away { .. } | Authority::Recalling { .. }
        );
        check(own == is_home, "a line's authority is of the wrong kind")?;
        check(!self.dead.contains(at.home()), "a line whose home is dead")?;
        match &line.authority {
            Authority::Home => check(line.limbo.is_empty(), "undecided at the authority"),
            Authority::Away { delegate, .. } => {
                check(!self.dead.contains(*delegate), "a dead delegate")?;
                check(line.is_unused(), "something is here though the authority is not")
            }
            Authority::Recalling { delegate, .. } => {
                check(!self.dead.contains(*delegate), "a dead delegate")
            }
            Authority::Elsewhere { .. } => {
                check(line.queue.is_empty(), "a queue at a node that does not arbitrate")?;
                check(!line.is_idle(), "an entry for nothing")
            }
            Authority::Delegate { number, next, end, .. } => {
                check(number.0 < *next && next <= end, "tokens of a delegation")
            }
        }
    }

    fn check_holders(&self, line: &LineLocks) -> Result<(), &'static str> {
        let holders: Vec<_> = line.holders.iter().collect();
        for (place, holder) in holders.iter().enumerate() {
            let others = holders[..place].iter();
            check(
                others.clone().all(|other| {
                    !other.range.overlaps(holder.range)
                        || (other.mode == super::Mode::Read && holder.mode == super::Mode::Read)
                }),
                "two holders exclude each other",
            )?;
            check(others.clone().all(|other| other.token != holder.token), "a token held twice")?;
        }
        Ok(())
    }

    fn check_marks(&self, line: &LineLocks) -> Result<(), &'static str> {
        check(
            line.is_unmarked() || line.authority == Authority::Home && line.lent.is_none(),
            "a marked line that is not decided at home",
        )
    }

    fn check_queue(&self, line: &LineLocks) -> Result<(), &'static str> {
        let recalling = matches!(line.authority, Authority::Recalling { .. });
        for (place, waiter) in line.queue.iter().enumerate() {
            check(!waiter.cancelled, "a cancelled request in a queue")?;
            check(waiter.ask.patience() == Patience::Wait, "a try in a queue")?;
            check(waiter.overtaken <= self.rules.handovers_max, "overtaken too often")?;
            if matches!(waiter.ask, Ask::Upgrade { .. }) {
                let base = line.holders.iter().any(|holder| holder.is_base_of(waiter));
                check(base, "an upgrade of a lock that is not held")?;
            }
            let blocked = line.blocks(self.rules, waiter, place);
            check(blocked || recalling || line.is_out_of_tokens(), "nothing blocks a waiter")?;
        }
        Ok(())
    }

    fn check_sessions(&self) -> Result<(), &'static str> {
        for (id, session) in self.sessions.iter() {
            let (locks, found) = self.count_of(id);
            check(locks == session.locks as usize, "a session's locks are miscounted")?;
            let waits = session.wait.map(|wait| (wait.line, wait.ticket));
            check(waits == found, "a session's wait is misplaced")?;
        }
        let own = |session: SessionId| session.node() == self.me;
        let known = |session: SessionId| !own(session) || self.sessions.contains(session);
        let all = self.lines.iter().all(|(_, line)| {
            line.holders.iter().all(|holder| known(holder.session))
                && line
                    .queue
                    .iter()
                    .chain(&line.limbo)
                    .all(|waiter| waiter.cancelled || known(waiter.session))
        });
        check(all, "a lock of a session that is not known")?;
        let waits = self.deferred.iter().all(|next| self.waits(next.session));
        check(waits, "a request waits for nothing")
    }

    /// The number of locks and requests of a session, and its wait, according to the lines.
    fn count_of(&self, session: SessionId) -> (usize, Option<(LineAddress, Ticket)>) {
        let (mut locks, mut wait) = (0, None);
        for (at, line) in self.lines.iter() {
            locks += line.holders.iter().filter(|holder| holder.session == session).count();
            let own = line.queue.iter().chain(&line.limbo);
            for waiter in own.filter(|waiter| waiter.session == session && !waiter.cancelled) {
                locks += 1;
                if waiter.ask.patience() == Patience::Wait {
                    wait = Some((at, waiter.ticket));
                }
            }
        }
        (locks, wait)
    }

    fn check_recency(&self) -> Result<(), &'static str> {
        let (mut at, mut newer, mut listed) = (self.newest, None, 0);
        while let Some(here) = at {
            let line = self.lines.get(here).ok_or("a link to nowhere")?;
            check(line.newer == newer, "a link that does not come back")?;
            let kept = match line.authority {
                Authority::Home => true,
                Authority::Delegate { offered, .. } => !offered,
                Authority::Away { .. }
                | Authority::Recalling { .. }
                | Authority::Elsewhere { .. } => false,
            };
            check(kept, "a line in the list that is not decided here")?;
            check(line.lent.is_none(), "a lent line in the list")?;
            listed += 1;
            check(listed <= self.lines.len(), "the list is a ring")?;
            (at, newer) = (line.older, Some(here));
        }
        check(self.oldest == newer, "the list has two ends")?;
        check(listed == self.listed as usize, "the list is miscounted")?;
        let kept = self.lines.iter().filter(|(_, line)| match line.authority {
            Authority::Home => line.lent.is_none() && line.abandoned.is_empty(),
            Authority::Delegate { offered, .. } => !offered && line.lent.is_none(),
            Authority::Away { .. } | Authority::Recalling { .. } | Authority::Elsewhere { .. } => {
                false
            }
        });
        check(kept.count() == listed, "a line decided here that is not in the list")
    }
}

/// A waiting request for which this node arbitrates.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Blocked {
    /// The line.
    pub line: LineAddress,
    /// The session that waits.
    pub session: SessionId,
    /// Its age.
    pub wait: ProbedWait,
    /// The sessions for which it waits: holders and earlier waiters in conflict with it.
    pub behind: Vec<SessionId>,
    /// Its bytes.
    pub range: Range,
    /// The sessions, bytes and modes of earlier requests for any of its bytes, without upgrades, which go to the front.
    pub requests_ahead: Vec<(SessionId, Range, Mode)>,
}

impl Locks {
    /// All waiting requests for which this node arbitrates, by line and in order: for dumps and checkers.
    pub fn blocked(&self) -> Vec<Blocked> {
        let mut all = Vec::new();
        for at in self.lines.sorted_keys() {
            let line = self.lines.get(at).expect("the key is there");
            if line.decides() {
                let waiters = line.queue.iter().enumerate();
                all.extend(waiters.map(|(place, waiter)| {
                    Blocked {
                        line: at,
                        session: waiter.session,
                        wait: waiter.wait(),
                        behind: line.obstacles(self.rules, place),
                        range: waiter.range,
                        requests_ahead: line
                            .queue
                            .iter()
                            .take(place)
                            .filter(|ahead| !matches!(ahead.ask, Ask::Upgrade { .. }))
                            .filter(|ahead| ahead.range.overlaps(waiter.range))
                            .map(|ahead| (ahead.session, ahead.range, ahead.ask.mode()))
                            .collect(),
                    }
                }));
            }
        }
        all
    }

    /// The operation of a pending request of this node.
    pub fn operation(&self, line: LineAddress, ticket: Ticket) -> Option<OperationId> {
        let line = self.lines.get(line)?;
        let meant =
            |waiter: &&Waiter| waiter.key() == RequestKey(self.me, ticket) && !waiter.cancelled;
        let waiter = line.queue.iter().chain(&line.limbo).find(meant)?;
        Some(waiter.operation)
    }

    /// The node for which a request of this node waits: that of the first conflicting session if this node
    /// arbitrates, the delegate if this node is the home; otherwise `None`, for the home.
    pub fn awaited(&self, at: LineAddress, operation: OperationId) -> Option<NodeId> {
        let line = self.lines.get(at)?;
        let meant = |waiter: &Waiter| waiter.operation == operation && !waiter.cancelled;
        match line.authority {
            Authority::Home | Authority::Delegate { .. } => {
                let place = line.queue.iter().position(meant)?;
                line.obstacles(self.rules, place).first().map(|session| session.node())
            }
            Authority::Away { delegate, .. } | Authority::Recalling { delegate, .. } => {
                Some(delegate)
            }
            Authority::Elsewhere { .. } => None,
        }
    }

    /// Whether no lock is held or awaited at this node, as far as it knows.
    pub fn is_idle(&self) -> bool {
        self.deferred.is_empty() && self.lines.iter().all(|(_, line)| line.is_unused())
    }
}

impl LineLocks {
    /// Whether the state of this line refers to `node`: as home or delegate, or by a session or probe.
    pub(super) fn names(&self, at: LineAddress, node: NodeId) -> bool {
        let waiters = || self.queue.iter().chain(&self.limbo);
        let with = match self.authority {
            Authority::Away { delegate, .. } | Authority::Recalling { delegate, .. } => {
                Some(delegate)
            }
            Authority::Home | Authority::Elsewhere { .. } | Authority::Delegate { .. } => None,
        };
        at.home() == node
            || with == Some(node)
            || self.holders.iter().any(|holder| holder.session.node() == node)
            || waiters().any(|waiter| waiter.session.node() == node)
            || waiters().any(|waiter| waiter.seen.iter().any(|(origin, _)| *origin == node))
    }

    /// The sessions for which the waiter at `place` waits.
    fn obstacles(&self, rules: Rules, place: usize) -> Vec<SessionId> {
        let waiter = &self.queue[place];
        let holders = self.holders.iter().filter(|held| stands_against(rules, held, waiter));
        let ahead = self.requests_ahead(rules, place);
        holders.map(|held| held.session).chain(ahead.map(|other| other.session)).collect()
    }

    /// The requests before `place` that are in conflict with the one there.
    fn requests_ahead(&self, rules: Rules, place: usize) -> impl Iterator<Item = &Waiter> {
        let waiter = &self.queue[place];
        let ahead = self.queue.iter().take(place);
        ahead.filter(move |other| is_behind(rules, waiter, other))
    }
}

const fn check(holds: bool, rule: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(rule) }
}
