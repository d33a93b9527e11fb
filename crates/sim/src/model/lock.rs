//! The model of locks: the lock machines of a few nodes, sessions that lock and unlock in any order, and a network with
//! no more than the guaranteed order per (source, destination, class).
//!
//! A waiting session takes no other step, except that its wait may be cancelled or the session closed. A session that
//! does not wait can always unlock its locks, so if no step is enabled, a session that still waits was
//! forgotten, or is in a deadlock that was not detected.
//!
//! Properties of every state:
//! - no two sessions hold overlapping ranges of a line unless both read, over all nodes: a session
//!   holds from `Locked` until it begins to unlock;
//! - of two conflicting grants the later one has the greater token;
//! - a waiter is overtaken by at most `lock_handovers_max` conflicting requests that were issued when it was already in
//!   the queue, and by one of each other node for each request of its own node before it;
//! - the requests of another node that a waiter waits for are at most a batch of `lock_handovers_max`, but at least one,
//!   for each such batch of its own node up to its own, and `lock_handovers_max` readers that overtook it;
//! - a session that fails with `Deadlock` was the youngest of a cycle while it waited (unless a wait ended other
//!   than by a grant, and earlier messages are still in flight: a probe may have passed it);
//! - a session never holds more locks than its limit, over all homes that granted them;
//! - every operation has one result, and a try has its result when nothing is in flight;
//! - a session that gets a lock of bytes with a dead writer, of which their home has learned, is notified, until a
//!   writer was notified and did not undo its lock;
//! - no machine reports a violation by a peer, and its invariants hold;
//!
//! If no step is enabled, no session waits, and no machine records a held lock.

mod leave;
mod loan;
mod stage;

use crate::explorer::{Model, Violation};
use farside_base::{
    ErrorCode, GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId, SessionId, Ticket,
};
use farside_protocol::lock::{
    Action as Wanted, Ask, Blocked, Effects, Here, LockEffect, LockEvent, LockMessage, LockRequest,
    Locks, Mode, Patience, ProbedWait, Range, Token,
};
use farside_protocol::wire::Class;
use loan::LentLine;
use stage::LeaveStage;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

#[cfg(canary)]
use farside_protocol::lock::LockMutant;

/// A lock that a session may request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Choice {
    /// The index of the line.
    pub line: usize,
    /// The bytes of the line that it covers.
    pub range: Range,
    /// Whether for reading or writing.
    pub ask: Ask,
}

/// Parameters of a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SessionPlan {
    /// Its node.
    pub node: u16,
    /// The locks that it may request.
    pub menu: Vec<Choice>,
    /// Whether it requests each entry of the menu once, in order.
    pub in_order: bool,
    /// Maximum number of requests.
    pub asks: u8,
    /// Maximum number of cancelled waits.
    pub cancels: u8,
    /// Whether it may be closed.
    pub closes: bool,
    /// Whether it may undo locks.
    pub undoes: bool,
}

impl Choice {
    /// The whole line.
    pub const fn whole(line: usize, ask: Ask) -> Self {
        Self::part(line, 0, 64, ask)
    }

    /// Some of its bytes.
    pub const fn part(line: usize, start: u32, bytes: u32, ask: Ask) -> Self {
        Self { line, range: Range { start, bytes }, ask }
    }
}

impl SessionPlan {
    /// Creates a session of `node` that makes `requests` requests, each for any entry of the menu.
    pub const fn new(node: u16, asks: u8, menu: Vec<Choice>) -> Self {
        Self { node, menu, in_order: false, asks, cancels: 0, closes: false, undoes: false }
    }

    /// Creates a session that requests each entry of the menu in order.
    pub fn in_order(node: u16, menu: Vec<Choice>) -> Self {
        let asks = menu.len() as u8;
        Self { in_order: true, ..Self::new(node, asks, menu) }
    }

    /// Returns the setup with this number of cancelled waits.
    pub fn with_cancels(self, cancels: u8) -> Self {
        Self { cancels, ..self }
    }

    /// Returns the setup of a session that may be closed at any time.
    pub fn with_close(self) -> Self {
        Self { closes: true, ..self }
    }

    /// Returns the setup of a session that may undo its locks, as a runtime does when a grant arrives too late.
    pub fn with_undo(self) -> Self {
        Self { undoes: true, ..self }
    }
}

/// Parameters of the model.
#[derive(Clone, Debug)]
pub struct LockSetup {
    /// Number of nodes.
    pub nodes: u16,
    /// The home of each line.
    pub homes: Vec<u16>,
    /// The sessions; their order is independent of age.
    pub sessions: Vec<SessionPlan>,
    /// The nodes that may die.
    pub mortal: Vec<u16>,
    /// The home that leaves and will return; not to be combined with deaths.
    pub leaves: Option<u16>,
    /// Maximum number of loans of lines to the hit path of their node.
    pub loans: u8,
    /// The limits.
    pub limits: Limits,
    /// The planted defect, if any.
    #[cfg(canary)]
    pub mutant: Option<LockMutant>,
}

impl Default for LockSetup {
    fn default() -> Self {
        let limits = Limits {
            nodes_max: 4,
            sessions_max: 4,
            locks_per_session_max: 4,
            lock_handovers_max: 1,
            ..Limits::TINY
        };
        Self {
            nodes: 2,
            homes: vec![0],
            sessions: Vec::new(),
            mortal: Vec::new(),
            leaves: None,
            loans: 0,
            limits,
            #[cfg(canary)]
            mutant: None,
        }
    }
}

/// The state of a session.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct ModelSession {
    /// Requests left, and cancellations left.
    asks: u8,
    cancels: u8,
    closed: bool,
    /// The locks that it holds, as indices into the menu.
    held: Vec<Hold>,
    /// Its pending request.
    pending: Option<PendingOperation>,
    /// Whether it waits for the return of the home that leaves.
    awaits_home: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hold {
    line: usize,
    range: Range,
    mode: Mode,
    /// Its session was the first writer to be notified of a dead holder.
    told: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct PendingOperation {
    operation: OperationId,
    choice: Choice,
    /// The operations that waited in conflict when this was issued.
    behind: Vec<OperationId>,
    /// The number of requests that overtook it.
    overtaken: u32,
    /// Whether it was, or may have been, the youngest of a cycle.
    guilty: bool,
}

/// A step of the model.
#[expect(missing_docs, reason = "a variant's sentence speaks of its fields")]
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum LockAction {
    /// A session requests an entry of its menu.
    Ask { session: usize, entry: usize },
    /// A session unlocks its held lock at this index.
    Unlock { session: usize, held: usize },
    /// A session undoes its held lock at this index, as if it had never learned of the grant.
    Undo { session: usize, held: usize },
    /// A session's wait is cancelled.
    Cancel { session: usize },
    /// A session ends.
    Close { session: usize },
    /// The oldest message of a link and class arrives.
    Deliver { from: u16, to: u16, class: Class },
    /// A node dies.
    Die { node: u16 },
    /// A node learns of a death.
    Hear { node: u16, dead: u16 },
    /// The home that leaves drains its locks.
    Drain,
    /// The home that leaves closes: no lock of it is held.
    CloseHome,
    /// The home that leaves has left.
    Leave,
    /// A node lends a line to its hit path.
    Lend { node: u16, line: usize },
    /// A node ends a loan without a cause.
    EndLoan { node: u16, line: usize },
}

/// The nodes, the messages in flight, and the sessions.
#[derive(Clone, Debug)]
pub struct System {
    setup: Rc<LockSetup>,
    nodes: Vec<Locks>,
    wires: BTreeMap<(u16, u16, Class), VecDeque<LockMessage>>,
    sessions: Vec<ModelSession>,
    /// The loans, by node and line, and the number of loans left.
    lent: BTreeMap<(u16, usize), LentLine>,
    loans: u8,
    leave: LeaveStage,
    /// The greatest token of each kind of grant so far.
    tokens: BTreeMap<(usize, Range, Mode), u64>,
    dead: Vec<u16>,
    /// Pairs of a node and a dead node of which it has learned.
    heard: Vec<(u16, u16)>,
    /// Ranges held for writing by sessions at their death: node, line and range.
    left: Vec<(u16, usize, Range)>,
    /// The part of these that the home knows of and no writer was notified of.
    untold: Vec<(usize, Range)>,
    operations: u64,
    /// The operation that unlocks in this step, with its line, until its result.
    unlocking: Option<(OperationId, usize)>,
    /// Whether a wait ended without a grant while earlier messages may be in flight.
    disturbed: bool,
    broken: Option<String>,
}

impl PartialEq for System {
    fn eq(&self, other: &Self) -> bool {
        self.nodes == other.nodes
            && self.wires == other.wires
            && self.sessions == other.sessions
            && self.lent == other.lent
            && self.loans == other.loans
            && self.leave == other.leave
            && self.tokens == other.tokens
            && self.dead == other.dead
            && self.heard == other.heard
            && self.left == other.left
            && self.untold == other.untold
            && self.disturbed == other.disturbed
            && self.broken == other.broken
    }
}

impl Eq for System {}

impl Hash for System {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.nodes.hash(state);
        self.wires.hash(state);
        self.sessions.hash(state);
        (&self.lent, self.loans, self.leave).hash(state);
        self.tokens.hash(state);
        (&self.dead, &self.heard, &self.left, &self.untold).hash(state);
        (self.disturbed, &self.broken).hash(state);
    }
}

impl System {
    /// Creates the initial state.
    pub fn new(setup: LockSetup) -> Self {
        let make = |node| {
            let locks = Locks::new(NodeId(node), &setup.limits);
            #[cfg(canary)]
            let locks = match setup.mutant {
                Some(mutant) => locks.with_mutant(mutant),
                None => locks,
            };
            locks
        };
        let session = |plan: &SessionPlan| ModelSession {
            asks: plan.asks,
            cancels: plan.cancels,
            ..ModelSession::default()
        };
        Self {
            nodes: (0..setup.nodes).map(make).collect(),
            wires: BTreeMap::new(),
            sessions: setup.sessions.iter().map(session).collect(),
            lent: BTreeMap::new(),
            loans: setup.loans,
            leave: LeaveStage::Member,
            tokens: BTreeMap::new(),
            dead: Vec::new(),
            heard: Vec::new(),
            left: Vec::new(),
            untold: Vec::new(),
            operations: 0,
            unlocking: None,
            disturbed: false,
            broken: None,
            setup: Rc::new(setup),
        }
    }

    fn line(&self, line: usize) -> LineAddress {
        let home = NodeId(self.setup.homes[line]);
        let address = GlobalAddress::new(home, LineSize::MIN, 64 * line as u64);
        address.expect("a small offset").line()
    }

    fn line_index(&self, line: LineAddress) -> usize {
        (line.offset() / 64) as usize
    }

    fn id(&self, session: usize) -> SessionId {
        SessionId::new(NodeId(self.setup.sessions[session].node), session as u64)
    }

    const fn index(session: SessionId) -> usize {
        (session.0 & 0xffff_ffff_ffff) as usize
    }

    fn node_of(&self, session: usize) -> u16 {
        self.setup.sessions[session].node
    }

    fn lives(&self, node: u16) -> bool {
        !self.dead.contains(&node)
    }

    fn fail(&mut self, text: String) {
        self.broken.get_or_insert(text);
    }

    /// The enabled steps of a session.
    fn enabled_of(&self, at: usize, actions: &mut Vec<LockAction>) {
        let (session, plan) = (&self.sessions[at], &self.setup.sessions[at]);
        if session.closed || !self.lives(plan.node) {
            return;
        }
        if plan.closes {
            actions.push(LockAction::Close { session: at });
        }
        if session.awaits_home {
            return;
        }
        if let Some(pending) = &session.pending {
            if session.cancels > 0 && pending.choice.ask.patience() == Patience::Wait {
                actions.push(LockAction::Cancel { session: at });
            }
            return;
        }
        for held in 0..session.held.len() {
            actions.push(LockAction::Unlock { session: at, held });
            if plan.undoes {
                actions.push(LockAction::Undo { session: at, held });
            }
        }
        if session.asks == 0 {
            return;
        }
        for (entry, choice) in plan.menu.iter().enumerate() {
            // Requests that conflict with a lock of the same session are refused at once (covered by unit tests).
            let near = |hold: &&Hold| hold.line == choice.line && hold.range.overlaps(choice.range);
            let mut own = session.held.iter().filter(near);
            let sensible = match choice.ask {
                Ask::Upgrade { .. } => {
                    let (line, range) = (choice.line, choice.range);
                    let base = Hold { line, range, mode: Mode::Read, told: false };
                    own.next() == Some(&base) && own.next().is_none()
                }
                Ask::Lock { mode: Mode::Write, .. } => own.next().is_none(),
                Ask::Lock { mode: Mode::Read, .. } => own.all(|hold| hold.mode == Mode::Read),
            };
            let next = plan.asks - session.asks;
            if sensible && (!plan.in_order || entry == usize::from(next)) {
                actions.push(LockAction::Ask { session: at, entry });
            }
        }
    }

    /// Steps the machine of a node, performs its effects, and checks the properties.
    fn step(&mut self, node: u16, event: LockEvent) {
        let mut effects = Effects::new();
        self.end_loans_before(node, &event);
        let before = self.waits();
        let outcome = self.nodes[usize::from(node)].step(event, &mut effects);
        if let Err(violation) = outcome {
            self.fail(format!("node {node} refuses {event:?}: {}", violation.0));
        }
        for effect in effects {
            self.judge_grant(node, &effect);
            self.effect(node, effect, &before);
        }
        self.disturbed &= self.wires.values().any(|wire| !wire.is_empty());
        if let Err(rule) = self.nodes[usize::from(node)].invariants() {
            self.fail(format!("node {node}: {rule}"));
        }
        self.judge();
    }

    fn effect(&mut self, node: u16, effect: LockEffect, before: &[Edges]) {
        match effect {
            LockEffect::Send { to, message } => {
                if let LockMessage::Abort { ticket, .. } = message {
                    self.convict(to, ticket, before);
                }
                if self.lives(to.0) {
                    let wire = self.wires.entry((node, to.0, message.class()));
                    wire.or_default().push_back(message);
                }
            }
            LockEffect::Locked { operation, token, abandoned } => {
                if let Some((at, pending)) = self.conclude(node, operation) {
                    self.locked(at, pending, token, abandoned);
                }
            }
            LockEffect::Failed { operation, code }
                if self.unlocking.is_some_and(|(unlocking, _)| unlocking == operation) =>
            {
                let lost = self.unlocking.take().is_some_and(|(_, line)| {
                    code == ErrorCode::NodeLost && !self.lives(self.setup.homes[line])
                });
                if !lost {
                    self.fail(format!("node {node}: unlocking fails with {code:?}"));
                }
            }
            LockEffect::Failed { operation, code } => {
                if let Some((at, mut pending)) = self.conclude(node, operation) {
                    pending.guilty |= before.iter().any(|edges| {
                        edges.operation == Some(operation) && closes_cycle(before, edges)
                    });
                    self.refused(at, &pending, code);
                }
            }
            LockEffect::Cancelled { operation } => {
                self.conclude(node, operation);
            }
            LockEffect::Unlocked { .. } => self.unlocking = None,
        }
    }

    /// Handles a detected cycle with a victim at another node, which is notified.
    fn convict(&mut self, node: NodeId, ticket: Ticket, before: &[Edges]) {
        let meant = |wait: ProbedWait| wait.node == node && wait.ticket == ticket;
        let Some(edges) = before.iter().find(|edges| edges.age.is_some_and(meant)) else {
            return;
        };
        if let Some(pending) = &mut self.sessions[edges.session].pending {
            pending.guilty |= closes_cycle(before, edges);
        }
    }

    /// Takes the pending request of an operation that has its result now.
    fn conclude(&mut self, node: u16, operation: OperationId) -> Option<(usize, PendingOperation)> {
        let meant = |session: &ModelSession| {
            session.pending.as_ref().is_some_and(|pending| pending.operation == operation)
        };
        let Some(at) = self.sessions.iter().position(meant) else {
            self.fail(format!("node {node}: a result for {operation:?}, which has one"));
            return None;
        };
        self.sessions[at].pending.take().map(|pending| (at, pending))
    }

    fn locked(&mut self, at: usize, pending: PendingOperation, token: Token, abandoned: bool) {
        let Choice { line, range, ask } = pending.choice;
        let mode = ask.mode();
        if matches!(ask, Ask::Upgrade { .. }) {
            let base = Hold { line, range, mode: Mode::Read, told: false };
            if let Some(place) = self.sessions[at].held.iter().position(|hold| *hold == base) {
                self.sessions[at].held.remove(place);
            }
        }
        for (other, session) in self.sessions.iter().enumerate() {
            let against = |hold: &&Hold| clash(hold.line, hold.range, hold.mode, line, range, mode);
            if let Some(hold) = session.held.iter().find(against) {
                let text =
                    format!("session {at} holds {:?} against {other}'s {hold:?}", pending.choice);
                self.broken.get_or_insert(text);
            }
        }
        let told = self.told(at, &pending.choice, abandoned);
        self.sessions[at].held.push(Hold { line, range, mode, told });
        if self.sessions[at].held.len() > self.setup.limits.locks_per_session_max as usize {
            self.fail(format!("session {at} holds too much"));
        }
        self.sessions[at].held.sort_by_key(|hold| (hold.line, hold.range, hold.mode));
        let later = self.tokens.iter().any(|((other_line, other_range, other_mode), last)| {
            clash(*other_line, *other_range, *other_mode, line, range, mode) && *last >= token.0
        });
        if later {
            self.fail(format!("session {at}: {token:?} does not rise"));
        }
        let last = self.tokens.entry((line, range, mode)).or_default();
        *last = token.0.max(*last);
        if matches!(ask, Ask::Lock { .. }) {
            self.count_overtaken(at, &pending);
        }
    }

    /// Whether a session with a lock for writing is the first to be notified of a dead holder.
    fn told(&mut self, at: usize, choice: &Choice, abandoned: bool) -> bool {
        let (line, range) = (choice.line, choice.range);
        let meant = |(of, left): &(usize, Range)| *of == line && left.overlaps(range);
        if self.untold.iter().any(meant) && !abandoned {
            self.fail(format!("session {at} is not notified of the dead holder: {choice:?}"));
        }
        // In the searches with deaths, ranges are equal or disjoint.
        let taken = choice.ask.mode() == Mode::Write;
        self.untold.retain(|mark| !(taken && meant(mark)));
        taken && abandoned
    }

    /// Counts an overtaking for each session that was waiting when this request was issued. For one node's request to
    /// pass another's, one more of the other node must be ahead of it. Where all ask for the same bytes, that is a
    /// companion of the overtaken; else it may be any session's, which waits for other bytes of the overtaken.
    fn count_overtaken(&mut self, by: usize, granted: &PendingOperation) {
        let others = u32::from(self.setup.nodes) - 1;
        for at in 0..self.sessions.len() {
            let Some(line) = self.sessions[at].pending.as_ref().map(|pending| pending.choice.line)
            else {
                continue;
            };
            let ahead = if self.has_one_range(line) {
                self.companions(at)
            } else {
                self.sessions.len() as u32 - 1
            };
            let most = self.setup.limits.lock_handovers_max + ahead * others;
            let Some(pending) = &mut self.sessions[at].pending else {
                continue;
            };
            pending.overtaken += u32::from(granted.behind.contains(&pending.operation));
            if pending.overtaken > most {
                let text = format!("session {by} is one too many to overtake {at}");
                self.broken.get_or_insert(text);
            }
        }
    }

    /// Whether all requests for this line are for the same bytes.
    fn has_one_range(&self, line: usize) -> bool {
        let plans = self.setup.sessions.iter();
        let mut ranges = plans
            .flat_map(|plan| &plan.menu)
            .filter(|choice| choice.line == line)
            .map(|choice| choice.range);
        let first = ranges.next();
        ranges.all(|range| Some(range) == first)
    }

    /// The number of other sessions of a session's node.
    fn companions(&self, at: usize) -> u32 {
        let node = self.node_of(at);
        (0..self.sessions.len())
            .filter(|other| *other != at && self.node_of(*other) == node)
            .count() as u32
    }

    /// A queued request with too many of one other node before it, if there is one. The bound holds where all before
    /// it wait for each other: for the same bytes, for writing. One that overlaps several others, or waits for readers,
    /// stays behind all that came before those.
    fn unequal(&self) -> Option<String> {
        let handovers = self.setup.limits.lock_handovers_max;
        let batch = handovers.max(1);
        for node in (0..self.setup.nodes).filter(|node| self.lives(*node)) {
            let queued = self.nodes[usize::from(node)].blocked();
            let is_bounded = |waiter: &&Blocked| {
                let waits = |(_, range, mode): &(SessionId, Range, Mode)| {
                    (*range, *mode) == (waiter.range, Mode::Write)
                };
                waiter.requests_ahead.iter().all(waits)
            };
            for waiter in queued.iter().filter(is_bounded) {
                let at = Self::index(waiter.session);
                let most = (self.companions(at) / batch + 1) * batch + handovers;
                for other in (0..self.setup.nodes).filter(|other| *other != self.node_of(at)) {
                    let of_other =
                        |(session, ..): &&(SessionId, Range, Mode)| session.node().0 == other;
                    let ahead = waiter.requests_ahead.iter().filter(of_other).count() as u32;
                    if ahead > most {
                        let text = format!("{ahead} requests of node {other} before session {at}");
                        return Some(text);
                    }
                }
            }
        }
        None
    }

    fn refused(&mut self, at: usize, pending: &PendingOperation, code: ErrorCode) {
        let ask = pending.choice.ask;
        let waits = ask.patience() == Patience::Wait;
        let line_home = self.setup.homes[pending.choice.line];
        let allowed = match code {
            ErrorCode::Busy => !waits,
            ErrorCode::Deadlock => waits && (pending.guilty || self.disturbed),
            ErrorCode::TooManyLocks => {
                let most = self.setup.limits.locks_per_session_max as usize;
                matches!(ask, Ask::Lock { .. }) && self.sessions[at].held.len() >= most
            }
            ErrorCode::UpgradeConflict => matches!(ask, Ask::Upgrade { .. }),
            ErrorCode::NodeLost => !self.lives(line_home),
            ErrorCode::HomeAway => self.is_refused_for_leave(at, line_home, ask),
            _ => false,
        };
        self.disturbed |= matches!(code, ErrorCode::Deadlock | ErrorCode::HomeAway);
        if !allowed {
            self.fail(format!("session {at} fails with {code:?} at {:?}", pending.choice));
        }
    }

    /// The wait-for graph: as known to the deciding nodes, with requests in flight as if they were queued now.
    fn waits(&self) -> Vec<Edges> {
        let mut all: Vec<Edges> = Vec::new();
        for node in (0..self.setup.nodes).filter(|node| self.lives(*node)) {
            all.extend(self.nodes[usize::from(node)].blocked().into_iter().map(|blocked| Edges {
                session: Self::index(blocked.session),
                line: self.line_index(blocked.line),
                age: Some(blocked.wait),
                operation: self.operation(&blocked),
                behind: blocked.behind.iter().map(|session| Self::index(*session)).collect(),
            }));
        }
        let queued = all.len();
        for at in 0..self.sessions.len() {
            if let Some(pending) = &self.sessions[at].pending
                && !all[..queued].iter().any(|edges| edges.operation == Some(pending.operation))
            {
                self.add_in_flight(at, pending, &mut all, queued);
            }
        }
        all
    }

    /// Adds the edges of a request in flight, to and from the first `queued` ones and other requests in flight.
    fn add_in_flight(
        &self,
        at: usize,
        pending: &PendingOperation,
        all: &mut Vec<Edges>,
        queued: usize,
    ) {
        let Choice { line, range, ask } = pending.choice;
        let mode = ask.mode();
        let against = |hold: &Hold| clash(hold.line, hold.range, hold.mode, line, range, mode);
        let mut behind = Vec::new();
        for (other, session) in self.sessions.iter().enumerate().filter(|(other, _)| *other != at) {
            // A cancelled request remains in the queue until the home knows.
            let gone = all[..queued].iter().any(|edges| {
                edges.session == other && edges.line == line && edges.operation.is_none()
            });
            let ahead = session.pending.as_ref().is_some_and(|ahead| {
                let stands =
                    all[..queued].iter().any(|edges| edges.operation == Some(ahead.operation));
                ahead.choice.clashes(pending.choice)
                    && (stands || ahead.operation < pending.operation)
            });
            if gone || ahead || session.held.iter().any(against) {
                behind.push(other);
            }
        }
        for edges in &mut *all {
            let other = self.sessions[edges.session].pending.as_ref();
            if other.is_some_and(|other| pending.choice.clashes(other.choice)) {
                edges.behind.push(at);
            }
        }
        let operation = Some(pending.operation);
        all.push(Edges { session: at, line, age: None, operation, behind });
    }

    /// Marks the youngest session of each current cycle.
    fn judge(&mut self) {
        let all = self.waits();
        if let Some(text) = self.unequal() {
            self.fail(text);
        }
        for edges in all.iter().filter(|edges| edges.age.is_some()) {
            let guilty = closes_cycle(&all, edges);
            if let Some(pending) = &mut self.sessions[edges.session].pending {
                pending.guilty |= guilty && edges.operation == Some(pending.operation);
            }
        }
    }

    fn ask(&mut self, at: usize, entry: usize) {
        let choice = self.setup.sessions[at].menu[entry];
        self.operations += 1;
        let operation = OperationId(self.operations);
        let behind = self.waiting_against(choice);
        self.sessions[at].asks -= 1;
        let pending = PendingOperation { operation, choice, behind, overtaken: 0, guilty: false };
        if let Some(token) = self.lock_on_loan(at, choice) {
            return self.locked(at, pending, token, false);
        }
        self.sessions[at].pending = Some(pending);
        let Choice { line, range, ask } = choice;
        let request = LockRequest { line: self.line(line), range, action: Wanted::Ask(ask) };
        self.issue(at, operation, request);
    }

    /// The operation of a request in a queue, unless it was cancelled and the home does not know yet.
    fn operation(&self, blocked: &Blocked) -> Option<OperationId> {
        let node = blocked.wait.node.0;
        let known = self.nodes[usize::from(node)].operation(blocked.line, blocked.wait.ticket);
        known.filter(|_| self.lives(node))
    }

    /// The queued operations that conflict with `choice`.
    fn waiting_against(&self, choice: Choice) -> Vec<OperationId> {
        let mut all = Vec::new();
        for node in (0..self.setup.nodes).filter(|node| self.lives(*node)) {
            for blocked in self.nodes[usize::from(node)].blocked() {
                let pending = self.sessions[Self::index(blocked.session)].pending.as_ref();
                let waits = |pending: &&PendingOperation| {
                    self.operation(&blocked) == Some(pending.operation)
                };
                if let Some(pending) = pending.filter(waits)
                    && pending.choice.clashes(choice)
                {
                    all.push(pending.operation);
                }
            }
        }
        all
    }

    fn issue(&mut self, at: usize, operation: OperationId, request: LockRequest) {
        let (session, here) = (self.id(at), Here { bytes: 64 });
        let on_loan = self.is_on_loan(at);
        self.step(
            self.node_of(at),
            LockEvent::Issue { operation, session, request, here, on_loan },
        );
    }

    fn unlock(&mut self, at: usize, held: usize, undo: bool) {
        let hold = self.sessions[at].held.remove(held);
        if self.unlock_on_loan(at, hold) {
            return;
        }
        let Hold { line, range, mode, told } = hold;
        self.operations += 1;
        let action = if undo { Wanted::Undo(mode) } else { Wanted::Unlock(mode) };
        if undo && told {
            self.untold.push((line, range));
            self.untold.sort_unstable();
        }
        let request = LockRequest { line: self.line(line), range, action };
        let (node, id) = (self.node_of(at), self.id(at));
        let event_operation = (OperationId(self.operations), line);
        let event = LockEvent::Issue {
            operation: event_operation.0,
            session: id,
            request,
            here: Here { bytes: 64 },
            on_loan: false,
        };
        self.unlocking = Some(event_operation);
        self.step(node, event);
        if self.unlocking.take().is_some() {
            self.fail(format!("session {at} unlocked without a result"));
        }
    }

    fn apply_close(&mut self, session: usize) {
        self.disturbed |= self.sessions[session].pending.is_some();
        self.sessions[session].closed = true;
        self.sessions[session].held.clear();
        let event = LockEvent::Close { session: self.id(session) };
        self.step(self.node_of(session), event);
    }

    fn die(&mut self, node: u16) {
        self.dead.push(node);
        self.disturbed = true;
        self.wires.retain(|(_, to, _), _| *to != node);
        self.lent.retain(|(at, _), _| *at != node);
        for at in 0..self.sessions.len() {
            if self.node_of(at) == node {
                let written = self.sessions[at].held.iter().filter(|hold| hold.mode == Mode::Write);
                self.left.extend(written.map(|hold| (node, hold.line, hold.range)));
                self.left.sort_unstable();
                self.sessions[at] = ModelSession { closed: true, ..ModelSession::default() };
            }
        }
    }

    fn hear(&mut self, node: u16, dead: u16) {
        self.heard.push((node, dead));
        self.heard.sort_unstable();
        self.wires.remove(&(dead, node, Class::Request));
        self.wires.remove(&(dead, node, Class::Forward));
        self.wires.remove(&(dead, node, Class::Reply));
        let homes = &self.setup.homes;
        let heard = self.left.extract_if(.., |(of, line, _)| *of == dead && homes[*line] == node);
        self.untold.extend(heard.map(|(_, line, range)| (line, range)));
        self.untold.sort_unstable();
        let left = self.has_left(dead);
        self.step(node, LockEvent::NodeDead { node: NodeId(dead), left });
        self.hear_of_leave(node);
        let homes = &self.setup.homes;
        for (at, session) in self.sessions.iter_mut().enumerate() {
            if self.setup.sessions[at].node == node {
                session.held.retain(|hold| homes[hold.line] != dead);
            }
        }
    }
}

impl Model for System {
    type Action = LockAction;

    fn enabled(&self) -> Vec<LockAction> {
        let mut actions = Vec::new();
        for session in 0..self.sessions.len() {
            self.enabled_of(session, &mut actions);
        }
        for ((from, to, class), wire) in &self.wires {
            if !wire.is_empty() {
                actions.push(LockAction::Deliver { from: *from, to: *to, class: *class });
            }
        }
        for dead in &self.dead {
            for node in (0..self.setup.nodes).filter(|node| self.lives(*node)) {
                // What a node has sent before it left arrives first.
                let sends = self.has_left(*dead)
                    && self.wires.keys().any(|(from, to, _)| (*from, *to) == (*dead, node));
                if !self.heard.contains(&(node, *dead)) && !sends {
                    actions.push(LockAction::Hear { node, dead: *dead });
                }
            }
        }
        self.enabled_loans(&mut actions);
        self.enabled_leave(&mut actions);
        let mortal = self.setup.mortal.iter().filter(|node| self.lives(**node));
        actions.extend(mortal.map(|node| LockAction::Die { node: *node }));
        actions
    }

    fn apply(&mut self, action: LockAction) {
        match action {
            LockAction::Ask { session, entry } => self.ask(session, entry),
            LockAction::Unlock { session, held } => self.unlock(session, held, false),
            LockAction::Undo { session, held } => self.unlock(session, held, true),
            LockAction::Cancel { session } => {
                self.disturbed = true;
                self.sessions[session].cancels -= 1;
                if let Some(pending) = &self.sessions[session].pending {
                    let (operation, line) = (pending.operation, self.line(pending.choice.line));
                    let event = LockEvent::Cancel { operation, session: self.id(session), line };
                    self.step(self.node_of(session), event);
                }
            }
            LockAction::Close { session } => self.apply_close(session),
            LockAction::Drain => self.leave(LeaveStage::Draining),
            LockAction::CloseHome => self.leave(LeaveStage::Closed),
            LockAction::Leave => self.leave(LeaveStage::Left),
            LockAction::Deliver { from, to, class } => {
                let wire = self.wires.get_mut(&(from, to, class));
                if let Some(message) = wire.and_then(VecDeque::pop_front) {
                    self.wires.retain(|_, wire| !wire.is_empty());
                    let from = NodeId(from);
                    self.step(to, LockEvent::Received { from, message, here: Here { bytes: 64 } });
                }
            }
            LockAction::Die { node } => self.die(node),
            LockAction::Hear { node, dead } => self.hear(node, dead),
            LockAction::Lend { node, line } => self.lend(node, line),
            LockAction::EndLoan { node, line } => self.end_loan(node, line),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.broken.clone().map(Violation)
    }

    fn stuck(&self) -> Option<Violation> {
        for (at, session) in self.sessions.iter().enumerate() {
            if let Some(pending) = &session.pending {
                return Some(Violation(format!("session {at} waits for ever: {pending:?}")));
            }
        }
        if self.setup.leaves.is_some() && self.leave != LeaveStage::Left {
            return Some(Violation("the home cannot leave".to_owned()));
        }
        let busy = (0..self.setup.nodes)
            .filter(|node| self.lives(*node))
            .find(|node| !self.nodes[usize::from(*node)].is_idle())?;
        Some(Violation(format!(
            "node {busy} believes in locks: {:#?}",
            self.nodes[usize::from(busy)]
        )))
    }

    fn narrate(&mut self, action: LockAction, lines: &mut Vec<String>) {
        if let LockAction::Deliver { from, to, class } = action
            && let Some(message) = self.wires.get(&(from, to, class)).and_then(VecDeque::front)
        {
            lines.push(format!("{from} -> {to} {message:?}"));
        } else {
            lines.push(format!("{action:?}"));
        }
        let before = self.sessions.clone();
        self.apply(action);
        for (at, (before, after)) in before.iter().zip(&self.sessions).enumerate() {
            if before.held != after.held {
                lines.push(format!("    session {at} holds {:?}", after.held));
            }
            if before.pending.is_some() && after.pending.is_none() && before.held == after.held {
                lines.push(format!("    session {at} waits no more"));
            }
        }
    }
}

/// Whether two locks of a line exclude each other.
fn clash(
    line: usize,
    range: Range,
    mode: Mode,
    other_line: usize,
    other_range: Range,
    other_mode: Mode,
) -> bool {
    line == other_line
        && range.overlaps(other_range)
        && (mode == Mode::Write || other_mode == Mode::Write)
}

impl Choice {
    fn clashes(self, other: Self) -> bool {
        let (mode, other_mode) = (self.ask.mode(), other.ask.mode());
        clash(self.line, self.range, mode, other.line, other.range, other_mode)
    }
}

/// The sessions that a session waits for.
#[derive(Debug)]
struct Edges {
    session: usize,
    line: usize,
    /// Not known while the request is in flight.
    age: Option<ProbedWait>,
    /// `None` for a cancelled request, if the home does not know of the cancellation yet.
    operation: Option<OperationId>,
    behind: Vec<usize>,
}

/// Whether `first` is the youngest of a cycle: it reaches itself through older waits.
fn closes_cycle(all: &[Edges], first: &Edges) -> bool {
    let mut reached = Vec::new();
    let mut next: Vec<&Edges> = vec![first];
    while let Some(edges) = next.pop() {
        for session in &edges.behind {
            if *session == first.session {
                return true;
            }
            for other in all.iter().filter(|other| other.session == *session) {
                let younger = other.age.zip(first.age).is_some_and(|(other, first)| other > first);
                let name = (other.session, other.operation);
                if !younger && !reached.contains(&name) {
                    reached.push(name);
                    next.push(other);
                }
            }
        }
    }
    false
}
