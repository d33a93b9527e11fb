//! The lock machines of the model of leaving: one session per node, and one lock, with node 0 as its home.

use super::LeaveAction as ClusterAction;
use farside_base::{GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId, SessionId};
use farside_protocol::lock::{
    Action as Wanted, Ask, Effects, Here, LockEffect, LockEvent, LockMessage, LockRequest, Locks,
    Mode, Patience, Range,
};
use farside_protocol::wire::Class;

/// A step of the lock machines.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaveLocksAction {
    /// The next lock message of a class from one node to another arrives.
    Deliver(u16, u16, Class),
    /// The session of a node requests the lock.
    Ask(u16),
    /// The session of a node releases the lock.
    Unlock(u16),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum LockingStage {
    Idle,
    Waiting,
    Holding,
    Closed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LockingNode {
    machine: Locks,
    stage: LockingStage,
    asks: u8,
    operations: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Flight {
    from: u16,
    to: u16,
    message: LockMessage,
}

impl Flight {
    fn link(&self) -> (u16, u16, u8) {
        (self.from, self.to, self.message.class() as u8)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LockWorld {
    nodes: Vec<LockingNode>,
    /// Messages in flight, by link and class, in order of sending.
    flights: Vec<Flight>,
    /// Nodes that have ended, as bits.
    ended: u8,
    wrong: Option<&'static str>,
}

const HOME: u16 = 0;

fn line() -> LineAddress {
    GlobalAddress::new(NodeId(HOME), LineSize::DEFAULT, 0).expect("a small offset").line()
}

impl LockWorld {
    pub(super) fn new(asks: &[u8]) -> Self {
        let limits = Limits { nodes_max: 8, ..Limits::TINY };
        let node = |(number, asks): (u16, &u8)| LockingNode {
            machine: Locks::new(NodeId(number), &limits),
            stage: LockingStage::Idle,
            asks: *asks,
            operations: 0,
        };
        Self {
            nodes: (0..).zip(asks).map(node).collect(),
            flights: Vec::new(),
            ended: 0,
            wrong: None,
        }
    }

    fn node_mut(&mut self, node: u16) -> &mut LockingNode {
        &mut self.nodes[usize::from(node)]
    }

    fn runs(&self, node: u16) -> bool {
        self.ended >> node & 1 == 0
    }

    pub(super) fn in_flight(&self, from: u16, to: u16) -> [u8; Class::ALL.len()] {
        let mut counts = [0; Class::ALL.len()];
        for flight in self.flights.iter().filter(|flight| (flight.from, flight.to) == (from, to)) {
            counts[flight.message.class() as usize] += 1;
        }
        counts
    }

    fn here(node: u16) -> Here {
        Here { bytes: if node == HOME { LineSize::DEFAULT.bytes() as u32 } else { 0 } }
    }

    fn step(&mut self, node: u16, event: LockEvent) {
        let mut effects = Effects::new();
        let machine = &mut self.node_mut(node).machine;
        if let Err(violation) = machine.step(event, &mut effects) {
            self.wrong = Some(violation.0);
        }
        for effect in effects {
            match effect {
                LockEffect::Send { to, message } => self.send(node, to.0, message),
                LockEffect::Locked { abandoned, .. } => {
                    if abandoned {
                        self.wrong = Some("a lock that was let go is called abandoned");
                    }
                    self.set(node, LockingStage::Waiting, LockingStage::Holding);
                }
                LockEffect::Unlocked { .. } | LockEffect::Cancelled { .. } => {}
                LockEffect::Failed { .. } => {
                    if self.runs(HOME) {
                        self.wrong = Some("a lock of a home that runs fails");
                    }
                    if self.node_mut(node).stage != LockingStage::Closed {
                        self.node_mut(node).stage = LockingStage::Idle;
                    }
                }
            }
        }
    }

    fn set(&mut self, node: u16, before: LockingStage, after: LockingStage) {
        let stage = &mut self.node_mut(node).stage;
        if *stage == before {
            *stage = after;
        } else {
            self.wrong = Some("a session hears of what it does not wait for");
        }
    }

    fn send(&mut self, from: u16, to: u16, message: LockMessage) {
        if self.runs(to) {
            let flight = Flight { from, to, message };
            let at = self.flights.partition_point(|other| other.link() <= flight.link());
            self.flights.insert(at, flight);
        }
    }

    fn issue(&mut self, node: u16, action: Wanted) {
        let state = self.node_mut(node);
        state.operations += 1;
        let operation = OperationId(state.operations);
        let range = Range { start: 0, bytes: 8 };
        let request = LockRequest { line: line(), range, action };
        let session = SessionId::new(NodeId(node), 0);
        let here = Self::here(node);
        let event = LockEvent::Issue { operation, session, request, here, on_loan: false };
        self.step(node, event);
    }

    pub(super) fn apply(&mut self, action: LeaveLocksAction) {
        match action {
            LeaveLocksAction::Deliver(from, to, class) => {
                let link = (from, to, class as u8);
                if let Some(at) = self.flights.iter().position(|flight| flight.link() == link) {
                    let message = self.flights.remove(at).message;
                    let (from, here) = (NodeId(from), Self::here(to));
                    self.step(to, LockEvent::Received { from, message, here });
                }
            }
            LeaveLocksAction::Ask(node) => {
                let state = self.node_mut(node);
                state.asks -= 1;
                state.stage = LockingStage::Waiting;
                let (mode, patience) = (Mode::Write, Patience::Wait);
                self.issue(node, Wanted::Ask(Ask::Lock { mode, patience }));
            }
            LeaveLocksAction::Unlock(node) => {
                self.node_mut(node).stage = LockingStage::Idle;
                self.issue(node, Wanted::Unlock(Mode::Write));
            }
        }
    }

    pub(super) fn close(&mut self, node: u16) {
        if usize::from(node) < self.nodes.len() {
            self.node_mut(node).stage = LockingStage::Closed;
            self.step(node, LockEvent::Close { session: SessionId::new(NodeId(node), 0) });
        }
    }

    pub(super) fn end(&mut self, node: u16) {
        self.ended |= 1 << node;
        self.flights.retain(|flight| flight.to != node);
        if let Some(state) = self.nodes.get_mut(usize::from(node)) {
            state.stage = LockingStage::Closed;
            state.asks = 0;
        }
    }

    pub(super) fn learn_of_end(&mut self, node: u16, other: u16, left: bool) {
        self.flights.retain(|flight| (flight.from, flight.to) != (other, node));
        if usize::from(node) < self.nodes.len() {
            self.step(node, LockEvent::NodeDead { node: NodeId(other), left });
            // Locks of a home that is gone are void.
            if other == HOME && self.node_mut(node).stage == LockingStage::Holding {
                self.node_mut(node).stage = LockingStage::Idle;
            }
        }
    }

    pub(super) fn enabled_internal(&self, actions: &mut Vec<ClusterAction>) {
        let mut last = None;
        for flight in &self.flights {
            if last.replace(flight.link()) != Some(flight.link()) {
                let action =
                    LeaveLocksAction::Deliver(flight.from, flight.to, flight.message.class());
                actions.push(ClusterAction::Lock(action));
            }
        }
        for (number, node) in (0..).zip(&self.nodes) {
            if node.stage == LockingStage::Holding {
                actions.push(ClusterAction::Lock(LeaveLocksAction::Unlock(number)));
            }
        }
    }

    pub(super) fn enabled_external(&self, node: u16, actions: &mut Vec<ClusterAction>) {
        if let Some(state) = self.nodes.get(usize::from(node))
            && state.stage == LockingStage::Idle
            && state.asks > 0
            && self.runs(HOME)
        {
            actions.push(ClusterAction::Lock(LeaveLocksAction::Ask(node)));
        }
    }

    pub(super) fn violation(&self) -> Option<&'static str> {
        let holders = self.nodes.iter().filter(|node| node.stage == LockingStage::Holding).count();
        self.wrong.or((holders > 1).then_some("two sessions hold one lock"))
    }

    pub(super) fn rest_violation(&self) -> Option<&'static str> {
        let waits = self.nodes.iter().any(|node| node.stage == LockingStage::Waiting);
        waits.then_some("a session waits for a lock for ever")
    }
}
