//! Scenarios. Each is a function of a [`ScenarioSetup`], run on a sound machine and, under `--cfg canary`,
//! on each of the defects listed with it, where it must fail.

extern crate std;

mod closing;
mod deadlock;
mod death;
mod delegation;
mod input;
mod loan;
mod order;
mod own;
mod wire;

use super::canary::LockMutant;
use super::{
    Action, Ask, Effects, Here, LockEffect, LockEvent, LockMessage, LockRequest, Locks, Mode,
    Patience, Range, Token,
};
use crate::wire::{Class, Violation};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use farside_base::{
    ErrorCode, GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId, Random, SessionId,
};

/// The machine on which a scenario runs.
#[derive(Clone, Copy, Default)]
pub(super) struct ScenarioSetup {
    mutant: Option<LockMutant>,
}

/// Lists scenarios as tests, and the defects that each must find.
macro_rules! scenarios {
    ($($name:ident [$($mutant:ident)*])*) => {
        mod sound {
            $(#[test] fn $name() { super::$name(crate::lock::tests::ScenarioSetup::default()) })*
        }
        #[cfg(canary)]
        mod canary_mutants {
            $(crate::lock::tests::mutants! { $name [$($mutant)*] })*
        }
    };
}
use scenarios;

/// The test that a scenario finds the defects listed with it, if there are any.
#[cfg(canary)]
macro_rules! mutants {
    ($name:ident []) => {};
    ($name:ident [$($mutant:ident)+]) => {
        #[test]
        fn $name() {
            let mutants = [$(crate::lock::canary::LockMutant::$mutant),+];
            crate::lock::tests::must_fail(super::$name, &mutants);
        }
    };
}
#[cfg(canary)]
use mutants;

/// Checks that a scenario fails on each of the defects.
#[cfg(canary)]
fn must_fail(scenario: fn(ScenarioSetup), mutants: &[LockMutant]) {
    for mutant in mutants {
        let setup = ScenarioSetup { mutant: Some(*mutant) };
        let outcome = std::panic::catch_unwind(|| scenario(setup));
        assert!(outcome.is_err(), "{mutant:?} was not found");
    }
}

const R: Mode = Mode::Read;
const W: Mode = Mode::Write;

/// Limits of the scenarios: delegation with the second grant, one overtaking.
const LIMITS: Limits = Limits {
    nodes_max: 8,
    sessions_max: 8,
    locks_per_session_max: 4,
    lock_handovers_max: 2,
    lock_delegations_max: 8,
    lock_delegate_after: 2,
    ..Limits::DEFAULT
};

/// No delegations.
const AT_HOME: Limits = Limits { lock_delegate_after: u32::MAX, ..LIMITS };

/// A lock reported to a session as granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct GrantedLock {
    session: SessionId,
    line: LineAddress,
    range: Range,
    mode: Mode,
}

/// Nodes, the messages in flight between them, and the results reported to their sessions.
#[derive(Clone)]
struct LockNetwork {
    nodes: Vec<Locks>,
    wires: BTreeMap<(u16, u16, Class), VecDeque<LockMessage>>,
    /// Bytes of each line's allocation.
    bytes: u32,
    operations: BTreeMap<u64, (SessionId, LockRequest)>,
    results: BTreeMap<u64, LockEffect>,
    held: Vec<GrantedLock>,
    tokens: BTreeMap<LineAddress, u64>,
    dead: Vec<u16>,
    /// Messages sent so far.
    sent: usize,
}

fn line(home: u16, number: u64) -> LineAddress {
    GlobalAddress::new(NodeId(home), LineSize::MIN, number * 64).unwrap().line()
}

fn session(node: u16, number: u64) -> SessionId {
    SessionId::new(NodeId(node), number)
}

const fn range(start: u32, bytes: u32) -> Range {
    Range { start, bytes }
}

/// The range that most scenarios lock.
const ALL: Range = range(0, 64);

fn lock(mode: Mode) -> Action {
    Action::Ask(Ask::Lock { mode, patience: Patience::Wait })
}

fn try_lock(mode: Mode) -> Action {
    Action::Ask(Ask::Lock { mode, patience: Patience::Try })
}

const UPGRADE: Action = Action::Ask(Ask::Upgrade { patience: Patience::Wait });
const TRY_UPGRADE: Action = Action::Ask(Ask::Upgrade { patience: Patience::Try });

impl LockNetwork {
    fn new(setup: ScenarioSetup, nodes: u16) -> Self {
        Self::with_limits(setup, nodes, LIMITS)
    }

    fn with_limits(setup: ScenarioSetup, nodes: u16, limits: Limits) -> Self {
        let make = |node| {
            let locks = Locks::new(NodeId(node), &limits);
            #[cfg(canary)]
            let locks = match setup.mutant {
                Some(mutant) => locks.with_mutant(mutant),
                None => locks,
            };
            #[cfg(not(canary))]
            assert!(setup.mutant.is_none());
            locks
        };
        Self {
            nodes: (0..nodes).map(make).collect(),
            wires: BTreeMap::new(),
            bytes: 64,
            operations: BTreeMap::new(),
            results: BTreeMap::new(),
            held: Vec::new(),
            tokens: BTreeMap::new(),
            dead: Vec::new(),
            sent: 0,
        }
    }

    fn here(&self) -> Here {
        Here { bytes: self.bytes }
    }

    /// Issues a request of a session; returns the operation.
    fn issue(
        &mut self,
        session: SessionId,
        line: LineAddress,
        range: Range,
        action: Action,
    ) -> u64 {
        let operation = self.operations.len() as u64 + 1;
        let request = LockRequest { line, range, action };
        self.operations.insert(operation, (session, request));
        if let Action::Unlock(mode) | Action::Undo(mode) = action {
            self.held_no_more(GrantedLock { session, line, range, mode });
        }
        let here = self.here();
        let operation_id = OperationId(operation);
        let event =
            LockEvent::Issue { operation: operation_id, session, request, here, on_loan: false };
        self.step(session.node().0, event).unwrap();
        operation
    }

    /// Issues a request of a session and delivers all messages.
    fn done(&mut self, session: SessionId, line: LineAddress, range: Range, action: Action) -> u64 {
        let operation = self.issue(session, line, range, action);
        self.settle();
        operation
    }

    fn lock(&mut self, session: SessionId, line: LineAddress, range: Range, mode: Mode) -> u64 {
        self.done(session, line, range, lock(mode))
    }

    fn unlock(&mut self, session: SessionId, line: LineAddress, range: Range, mode: Mode) {
        let operation = self.done(session, line, range, Action::Unlock(mode));
        assert_eq!(
            self.result(operation),
            Some(LockEffect::Unlocked { operation: OperationId(operation) })
        );
    }

    fn cancel(&mut self, operation: u64) {
        let (session, request) = self.operations[&operation];
        let event =
            LockEvent::Cancel { operation: OperationId(operation), session, line: request.line };
        self.step(session.node().0, event).unwrap();
    }

    fn close(&mut self, session: SessionId) {
        self.held.retain(|held| held.session != session);
        self.step(session.node().0, LockEvent::Close { session }).unwrap();
    }

    fn kill(&mut self, node: u16) {
        self.dead.push(node);
        self.held.retain(|held| held.session.node().0 != node && held.line.home().0 != node);
        self.wires.retain(|(from, to, _), _| *from != node && *to != node);
        for other in 0..self.nodes.len() as u16 {
            if !self.dead.contains(&other) {
                self.step(other, LockEvent::NodeDead { node: NodeId(node), left: false }).unwrap();
            }
        }
    }

    fn held_no_more(&mut self, held: GrantedLock) {
        if let Some(place) = self.held.iter().position(|other| *other == held) {
            self.held.remove(place);
        }
    }

    /// Runs one step of a node and its effects, and checks every property that must always hold.
    fn step(&mut self, node: u16, event: LockEvent) -> Result<(), Violation> {
        let mut effects = Effects::new();
        let outcome = self.nodes[usize::from(node)].step(event, &mut effects);
        for effect in effects {
            self.effect(node, effect);
        }
        let invariants = self.nodes[usize::from(node)].invariants();
        assert_eq!(
            invariants,
            Ok(()),
            "node {node} after {event:?}: {:#?}",
            self.nodes[usize::from(node)]
        );
        outcome
    }

    fn effect(&mut self, node: u16, effect: LockEffect) {
        let operation = match effect {
            LockEffect::Send { to, message } => {
                assert_ne!(to.0, node, "a message to itself: {message:?}");
                assert_eq!(LockMessage::decode(&message.encode()), Ok(message));
                self.sent += 1;
                if !self.dead.contains(&to.0) {
                    let wire = self.wires.entry((node, to.0, message.class()));
                    wire.or_default().push_back(message);
                }
                return;
            }
            LockEffect::Locked { operation, token, .. } => {
                self.locked(operation, token);
                operation
            }
            LockEffect::Unlocked { operation }
            | LockEffect::Failed { operation, .. }
            | LockEffect::Cancelled { operation } => operation,
        };
        let before = self.results.insert(operation.0, effect);
        assert_eq!(before, None, "a second result {effect:?}");
    }

    fn locked(&mut self, operation: OperationId, token: Token) {
        let (session, LockRequest { line, range, action }) = self.operations[&operation.0];
        let Action::Ask(ask) = action else {
            panic!("unlocking locked");
        };
        if matches!(ask, Ask::Upgrade { .. }) {
            self.held_no_more(GrantedLock { session, line, range, mode: R });
        }
        let new = GrantedLock { session, line, range, mode: ask.mode() };
        for held in self.held.iter().filter(|held| held.line == line && held.range.overlaps(range))
        {
            assert!(held.mode == R && new.mode == R, "{new:?} together with {held:?}");
        }
        self.held.push(new);
        let last = self.tokens.insert(line, token.0).unwrap_or_default();
        assert!(token.0 > last, "token {token:?} after {last}");
    }

    /// Delivers the oldest message of a wire; panics if there is none.
    fn deliver(&mut self, from: u16, to: u16, class: Class) -> LockMessage {
        let wire = self.wires.get_mut(&(from, to, class)).expect("a message is in flight");
        let message = wire.pop_front().expect("a message is in flight");
        let event = LockEvent::Received { from: NodeId(from), message, here: self.here() };
        let outcome = self.step(to, event);
        assert_eq!(outcome, Ok(()), "{message:?} from {from} to {to}");
        message
    }

    fn busy_wires(&self) -> Vec<(u16, u16, Class)> {
        self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(key, _)| *key).collect()
    }

    /// Delivers all messages until none is in flight.
    fn settle(&mut self) {
        for _ in 0..5_000 {
            let Some((from, to, class)) = self.busy_wires().first().copied() else {
                return;
            };
            self.deliver(from, to, class);
        }
        panic!("does not come to rest: {:?}", self.wires);
    }

    /// Gives a node a forged message.
    fn forge(&mut self, from: u16, to: u16, message: LockMessage) -> Result<(), Violation> {
        let before = self.nodes[usize::from(to)].clone();
        let event = LockEvent::Received { from: NodeId(from), message, here: self.here() };
        let outcome = self.step(to, event);
        if outcome.is_err() {
            assert_eq!(self.nodes[usize::from(to)], before, "{message:?} changed something");
        }
        outcome
    }

    fn result(&self, operation: u64) -> Option<LockEffect> {
        self.results.get(&operation).copied()
    }

    fn is_locked(&self, operation: u64) -> bool {
        matches!(self.result(operation), Some(LockEffect::Locked { .. }))
    }

    /// Whether a granted lock reported that an earlier holder died; `None` if it was not granted.
    fn was_notified(&self, operation: u64) -> Option<bool> {
        match self.result(operation)? {
            LockEffect::Locked { abandoned, .. } => Some(abandoned),
            _ => None,
        }
    }

    fn waits(&self, operation: u64) -> bool {
        self.result(operation).is_none()
    }

    fn failure(&self, operation: u64) -> Option<ErrorCode> {
        match self.result(operation)? {
            LockEffect::Failed { code, .. } => Some(code),
            _ => None,
        }
    }

    fn is_delegate(&self, node: u16, line: LineAddress) -> bool {
        self.nodes[usize::from(node)].decides(line) && line.home().0 != node
    }

    /// Makes `node` the delegate of an unused line.
    fn make_delegate(&mut self, node: u16, line: LineAddress) {
        for _ in 0..LIMITS.lock_delegate_after {
            self.lock(session(node, 7), line, ALL, W);
            self.unlock(session(node, 7), line, ALL, W);
        }
        assert!(self.is_delegate(node, line));
    }
}

impl Locks {
    fn decides(&self, line: LineAddress) -> bool {
        self.lines.get(line).is_some_and(|line| line.decides())
    }
}
