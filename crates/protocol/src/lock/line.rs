//! The lock state of one line, and the order of grants. Pure computation: it sends nothing, and does not know on
//! which node it runs.

use super::canary::{LockMutant, mutant};
use super::lent::Loan;
use super::{Ask, Mode, Patience, ProbedWait, Range, Token};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{
    ErrorCode, LineAddress, NodeId, NodeSet, OperationId, Planted, SessionId, Ticket,
};

/// Parameters of the order of grants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Rules {
    /// How often readers may overtake one waiting writer; and how many requests of one node, but at least one, go
    /// before those of another in a row.
    pub(super) handovers_max: u32,
    pub(super) mutant: Planted<LockMutant>,
}

impl Rules {
    fn conflict(self, a: (Range, Mode), b: (Range, Mode)) -> bool {
        if a.1 == Mode::Read && b.1 == Mode::Read {
            return false;
        }
        if mutant!(self, EqualRangesOnly) {
            return a.0 == b.0;
        }
        a.0.overlaps(b.0) || mutant!(self, WholeLine)
    }
}

/// A lock that a session holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Holder {
    pub(super) session: SessionId,
    pub(super) token: Token,
    pub(super) range: Range,
    pub(super) mode: Mode,
    /// The granted request, as long as it may be cancelled without knowledge of the grant.
    pub(super) ticket: Ticket,
    /// Of an upgraded lock: the token before the upgrade.
    pub(super) base: Option<Token>,
    /// At the home: its grant removed the marks of its range.
    pub(super) abandoned: bool,
}

impl Holder {
    /// The name by which probes refer to it: the token of its first grant, on which its node and the authority agree
    /// even while an upgrade, or the cancellation of one, is in flight between them.
    pub(super) fn name(&self) -> Token {
        self.base.unwrap_or(self.token)
    }

    /// Whether it is the read lock that `waiter` wants to upgrade.
    pub(super) fn is_base_of(&self, waiter: &Waiter) -> bool {
        matches!(waiter.ask, Ask::Upgrade { .. })
            && self.session == waiter.session
            && self.range == waiter.range
            && self.mode == Mode::Read
    }
}

/// Holders in the order of their grants; the first needs no heap memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Holders {
    first: Option<Holder>,
    rest: Vec<Holder>,
}

impl Holders {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.rest.len() + usize::from(self.first.is_some())
    }

    pub(super) fn push(&mut self, holder: Holder) {
        if self.first.is_none() {
            self.first = Some(holder);
        } else {
            self.rest.push(holder);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Holder> {
        self.first.iter().chain(&self.rest)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Holder> {
        self.first.iter_mut().chain(&mut self.rest)
    }

    /// Removes and returns the oldest holder for which `which` is true.
    pub(super) fn take(&mut self, which: impl Fn(&Holder) -> bool) -> Option<Holder> {
        if self.first.as_ref().is_some_and(&which) {
            let next = if self.rest.is_empty() { None } else { Some(self.rest.remove(0)) };
            return core::mem::replace(&mut self.first, next);
        }
        let at = self.rest.iter().position(which)?;
        Some(self.rest.remove(at))
    }

    pub(super) fn clear(&mut self) {
        self.first = None;
        self.rest.clear();
    }
}

/// A request that waits at this node, or that is in flight to the home.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Waiter {
    pub(super) session: SessionId,
    pub(super) ticket: Ticket,
    /// Meaningful only if the session is of this node.
    pub(super) operation: OperationId,
    pub(super) range: Range,
    pub(super) ask: Ask,
    pub(super) birth: u64,
    /// How many later readers overtook it. Invariant: at most `handovers_max`.
    pub(super) overtaken: u32,
    /// Its session held another lock, or awaited one, when it made the request.
    pub(super) holds: bool,
    /// Its operation has its result already; only the home's answer is outstanding.
    pub(super) cancelled: bool,
    /// The number of the probe that this authority sent for it, if that has closed no cycle.
    pub(super) probe: Option<u64>,
    /// The number of the probe that has closed a cycle with a victim that may still wait; zero for none.
    pub(super) closed: u64,
    /// The probes that passed it, by origin and number, the latest last.
    pub(super) seen: Vec<(NodeId, u64)>,
}

impl Waiter {
    pub(super) const fn mode(&self) -> Mode {
        self.ask.mode()
    }

    pub(super) const fn key(&self) -> RequestKey {
        RequestKey(self.session.node(), self.ticket)
    }

    pub(super) const fn wait(&self) -> ProbedWait {
        ProbedWait { birth: self.birth, node: self.session.node(), ticket: self.ticket }
    }

    const fn claim(&self) -> (Range, Mode) {
        (self.range, self.mode())
    }
}

/// Identifies a request in the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RequestKey(pub(super) NodeId, pub(super) Ticket);

/// A message that overtook the return of a delegation to the home.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Early {
    Release(Token),
    Cancel(Ticket),
}

/// Which node arbitrates a line's locks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Authority {
    /// An own line: this node arbitrates.
    Home,
    /// An own line: another node arbitrates.
    Away { delegate: NodeId, number: Token },
    /// An own line: no node arbitrates until `Returned` arrives. Holders and queue have what arrived of the return.
    Recalling { delegate: NodeId, number: Token, early: Vec<Early> },
    /// Another node's line, for which this node does not arbitrate. `recall` overtook the delegation to which it
    /// refers.
    Elsewhere { recall: Option<Token> },
    /// Another node's line, for which this node arbitrates, with the tokens `next..end`.
    Delegate { number: Token, next: u64, end: u64, offered: bool },
}

/// The outcome of a new request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Admission {
    Grant,
    Queue,
    Refuse(ErrorCode),
}

/// The locks of a line.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LineLocks {
    pub(super) authority: Authority,
    /// Bytes that can be locked, as far as the authority knows.
    pub(super) bytes: u32,
    /// At the authority: all holders. Elsewhere: this node's.
    pub(super) holders: Holders,
    /// At the authority: the waiting requests, in order. Invariant: each conflicts with a holder or with an earlier
    /// one.
    pub(super) queue: VecDeque<Waiter>,
    /// Requests not decided here: at a home that recalls, those to be decided after the return; elsewhere, this
    /// node's requests that the home has not answered.
    pub(super) limbo: VecDeque<Waiter>,
    /// At the home: the node of the last grants, and their number in a row.
    pub(super) user: NodeId,
    pub(super) streak: u32,
    /// The loan of the line to the runtime. Invariant: the line then has no holder and no waiter.
    pub(super) lent: Option<Loan>,
    /// At the home, while it arbitrates: abandoned ranges of which the next holder is to be notified.
    pub(super) abandoned: Vec<Range>,
    /// The neighbours in the list of recency.
    pub(super) newer: Option<LineAddress>,
    pub(super) older: Option<LineAddress>,
}

impl LineLocks {
    pub(super) fn new(authority: Authority, user: NodeId) -> Self {
        Self {
            authority,
            bytes: 0,
            holders: Holders::default(),
            queue: VecDeque::new(),
            limbo: VecDeque::new(),
            user,
            streak: 0,
            lent: None,
            abandoned: Vec::new(),
            newer: None,
            older: None,
        }
    }

    /// Whether this node arbitrates.
    pub(super) const fn decides(&self) -> bool {
        matches!(self.authority, Authority::Home | Authority::Delegate { .. })
    }

    /// Whether the line has no holder, no waiter and no mark of an abandoned lock.
    pub(super) fn is_idle(&self) -> bool {
        self.is_unused() && self.abandoned.is_empty()
    }

    /// Whether the line has no holder and no waiter.
    pub(super) fn is_unused(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.limbo.is_empty()
    }

    /// Decides whether a new request is granted, queued or refused.
    pub(super) fn admit(&self, rules: Rules, waiter: &Waiter) -> Admission {
        let blocked = match waiter.ask {
            Ask::Lock { .. } if mutant!(rules, Barging) => self.is_held_against(rules, waiter),
            Ask::Lock { .. } => self.blocks(rules, waiter, self.queue.len()),
            Ask::Upgrade { .. } => {
                if !self.holders.iter().any(|holder| holder.is_base_of(waiter)) {
                    return Admission::Refuse(ErrorCode::NotLocked);
                }
                if self.upgrades().any(|other| other.range.overlaps(waiter.range))
                    && !mutant!(rules, UpgradersWait)
                {
                    return Admission::Refuse(ErrorCode::UpgradeConflict);
                }
                self.is_held_against(rules, waiter)
            }
        };
        match (blocked, waiter.ask.patience()) {
            (false, _) => Admission::Grant,
            (true, Patience::Wait) => Admission::Queue,
            (true, Patience::Try) if mutant!(rules, TryWaits) => Admission::Queue,
            (true, Patience::Try) => Admission::Refuse(ErrorCode::Busy),
        }
    }

    /// Queues an admitted request at its position.
    pub(super) fn enqueue(&mut self, rules: Rules, waiter: Waiter) {
        let fair = self.fair_place(rules, &waiter);
        let place = match waiter.ask {
            Ask::Upgrade { .. } => self.upgrades().count(),
            Ask::Lock { mode: Mode::Write, .. } => fair,
            Ask::Lock { mode: Mode::Read, .. } => self.batch_place(rules, &waiter, fair),
        };
        if matches!(waiter.ask, Ask::Lock { .. }) {
            for other in self.queue.range_mut(place..fair) {
                if rules.conflict(other.claim(), waiter.claim()) {
                    other.overtaken += 1;
                }
            }
        }
        self.queue.insert(place, waiter);
    }

    /// The position by round robin over nodes, in batches of `handovers_max` requests: after the last request of its
    /// own node, and before the first one of another node that is of a later batch. So the number of consecutive
    /// grants to a node while another waits does not depend on the number of its requests (the bound on local
    /// handovers of Dice, Marathe and Shavit, *Lock Cohorting*, PPoPP 2012).
    fn fair_place(&self, rules: Rules, waiter: &Waiter) -> usize {
        let end = self.queue.len();
        let node = waiter.session.node();
        let is_own = |other: &Waiter| other.session.node() == node;
        let own = self.queue.iter().filter(|other| is_own(other)).count();
        if own == end || mutant!(rules, NodesUnequal) {
            return end;
        }
        let batch = rules.handovers_max.max(1) as usize;
        let places = (own / batch + 1) * batch;
        let mut counts = [0_usize; NodeSet::CAPACITY];
        let is_later = |other: &Waiter| {
            // Only requests that it waits for: one that waits for other bytes must not let others pass it.
            if !rules.conflict(other.claim(), waiter.claim()) {
                return false;
            }
            let count = &mut counts[usize::from(other.session.node().0) % NodeSet::CAPACITY];
            *count += 1;
            *count > places
        };
        let first = self.queue.iter().position(is_later).unwrap_or(end);
        let last_own = self.queue.iter().rposition(is_own);
        let first = first.max(last_own.map_or(0, |last| last + 1)).max(self.upgrades().count());
        // Where nothing blocks it, it would overtake without need.
        (first..end).find(|place| self.blocks(rules, waiter, *place)).unwrap_or(end)
    }

    /// The position after the last waiting reader before `end` that it overlaps, unless that would overtake a writer
    /// too often, or leave the reader nothing to wait for: then it would overtake without need.
    fn batch_place(&self, rules: Rules, reader: &Waiter, end: usize) -> usize {
        let joins = |other: &Waiter| {
            matches!(other.ask, Ask::Lock { mode: Mode::Read, .. })
                && other.range.overlaps(reader.range)
        };
        let Some(last) = self.queue.range(..end).rposition(joins) else {
            return end;
        };
        let bound = |other: &Waiter| {
            rules.conflict(other.claim(), reader.claim()) && other.overtaken >= rules.handovers_max
        };
        let too_often = self.queue.range(last + 1..end).any(bound);
        if too_often && !mutant!(rules, EndlessBatch) || !self.blocks(rules, reader, last + 1) {
            return end;
        }
        last + 1
    }

    fn upgrades(&self) -> impl Iterator<Item = &Waiter> {
        self.queue.iter().take_while(|waiter| matches!(waiter.ask, Ask::Upgrade { .. }))
    }

    /// Whether a holder conflicts with the request.
    fn is_held_against(&self, rules: Rules, waiter: &Waiter) -> bool {
        self.holders.iter().any(|holder| stands_against(rules, holder, waiter))
    }

    /// Whether a holder, or one of the first `ahead` of the queue, conflicts with the request.
    pub(super) fn blocks(&self, rules: Rules, waiter: &Waiter, ahead: usize) -> bool {
        self.is_held_against(rules, waiter)
            || self.queue.iter().take(ahead).any(|other| is_behind(rules, waiter, other))
    }

    /// The first waiter at or after `from` in the queue that nothing blocks.
    pub(super) fn grantable(&self, rules: Rules, from: usize) -> Option<usize> {
        (from..self.queue.len()).find(|at| !self.blocks(rules, &self.queue[*at], *at))
    }

    /// Makes a granted request a holder. False if it upgrades a lock that is not held.
    pub(super) fn hold(&mut self, waiter: &Waiter, token: Token) -> bool {
        match waiter.ask {
            Ask::Lock { mode, .. } => {
                let Waiter { session, range, ticket, .. } = *waiter;
                let (base, abandoned) = (None, false);
                self.holders.push(Holder { session, token, range, mode, ticket, base, abandoned });
                true
            }
            Ask::Upgrade { .. } => {
                let mut holders = self.holders.iter_mut();
                let Some(held) = holders.find(|holder| holder.is_base_of(waiter)) else {
                    return false;
                };
                held.mode = Mode::Write;
                held.base = Some(core::mem::replace(&mut held.token, token));
                held.ticket = waiter.ticket;
                true
            }
        }
    }

    /// Takes back the lock of a cancelled request; returns the range if the grant removed its marks.
    pub(super) fn take_back(&mut self, key: RequestKey) -> Option<Range> {
        let meant = |held: &Holder| held.session.node() == key.0 && held.ticket == key.1;
        let upgraded = |held: &&mut Holder| meant(held) && held.base.is_some();
        if let Some(held) = self.holders.iter_mut().find(upgraded) {
            held.token = held.base.take().expect("an upgraded lock");
            held.mode = Mode::Read;
            held.ticket = Ticket(0);
            return core::mem::take(&mut held.abandoned).then_some(held.range);
        }
        self.holders.take(meant).filter(|held| held.abandoned).map(|held| held.range)
    }

    /// Whether the session would wait for itself.
    pub(super) fn conflicts_with_own(&self, rules: Rules, waiter: &Waiter) -> bool {
        let own = |other: &Waiter| other.session == waiter.session && !other.cancelled;
        self.holders
            .iter()
            .any(|holder| holder.session == waiter.session && stands_against(rules, holder, waiter))
            || self
                .queue
                .iter()
                .chain(&self.limbo)
                .any(|other| own(other) && rules.conflict(waiter.claim(), other.claim()))
    }

    /// Removes a request from limbo, or, if the home still owes it an answer, marks it as cancelled. The caller
    /// ensures that it is there.
    pub(super) fn leave_limbo(&mut self, key: RequestKey, gone: bool) -> Waiter {
        let place = self.limbo.iter().position(|waiter| waiter.key() == key);
        let place = place.expect("a request is in the queue or in limbo");
        if gone {
            return self.limbo.remove(place).expect("found just now");
        }
        self.limbo[place].cancelled = true;
        self.limbo[place].clone()
    }

    /// The position of a request in the queue.
    pub(super) fn place(&self, key: RequestKey) -> Option<usize> {
        self.queue.iter().position(|waiter| waiter.key() == key)
    }
}

/// Whether `holder` blocks `waiter`.
pub(super) fn stands_against(rules: Rules, holder: &Holder, waiter: &Waiter) -> bool {
    rules.conflict((holder.range, holder.mode), waiter.claim()) && !holder.is_base_of(waiter)
}

/// Whether `waiter`, after `other` in the queue, has to let it go first.
pub(super) fn is_behind(rules: Rules, waiter: &Waiter, other: &Waiter) -> bool {
    rules.conflict(waiter.claim(), other.claim())
}
