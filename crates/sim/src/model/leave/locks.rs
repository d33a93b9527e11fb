//! The lock machines of the model of leaving: one session a node, one lock, with node 0 as its home.

use super::Action as ClusterAction;
use farside_base::{GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId, SessionId};
use farside_protocol::lock::{
    Action as Wanted, Ask, Effect, Effects, Event, Here, Locks, Message, Mode, Patience, Range,
    Request,
};
use farside_protocol::wire::Class;

/// Something that happens to the locks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// The next lock message of a class from one node to another arrives.
    Deliver(u16, u16, Class),
    /// The session of a node asks for the lock.
    Ask(u16),
    /// It releases the lock.
    Unlock(u16),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Idle,
    Waiting,
    Holding,
    Closed,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    machine: Locks,
    stage: Stage,
    asks: u8,
    operations: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Flight {
    from: u16,
    to: u16,
    message: Message,
}

impl Flight {
    fn link(&self) -> (u16, u16, u8) {
        (self.from, self.to, self.message.class() as u8)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct LockWorld {
    nodes: Vec<Node>,
    /// By link and class; in order of sending within them.
    flights: Vec<Flight>,
    /// Nodes that are no more, as bits.
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
        let node = |(number, asks): (u16, &u8)| Node {
            machine: Locks::new(NodeId(number), &limits),
            stage: Stage::Idle,
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

    fn node_mut(&mut self, node: u16) -> &mut Node {
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

    fn step(&mut self, node: u16, event: Event) {
        let mut effects = Effects::new();
        let machine = &mut self.node_mut(node).machine;
        if let Err(violation) = machine.step(event, &mut effects) {
            self.wrong = Some(violation.0);
        }
        for effect in effects {
            match effect {
                Effect::Send { to, message } => self.send(node, to.0, message),
                Effect::Locked { abandoned, .. } => {
                    if abandoned {
                        self.wrong = Some("a lock that was let go is called abandoned");
                    }
                    self.set(node, Stage::Waiting, Stage::Holding);
                }
                Effect::Unlocked { .. } | Effect::Cancelled { .. } => {}
                Effect::Failed { .. } => {
                    if self.runs(HOME) {
                        self.wrong = Some("a lock of a home that runs fails");
                    }
                    if self.node_mut(node).stage != Stage::Closed {
                        self.node_mut(node).stage = Stage::Idle;
                    }
                }
            }
        }
    }

    fn set(&mut self, node: u16, before: Stage, after: Stage) {
        let stage = &mut self.node_mut(node).stage;
        if *stage == before {
            *stage = after;
        } else {
            self.wrong = Some("a session hears of what it does not wait for");
        }
    }

    fn send(&mut self, from: u16, to: u16, message: Message) {
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
        let request = Request { line: line(), range, action };
        let session = SessionId::new(NodeId(node), 0);
        self.step(node, Event::Issue { operation, session, request, here: Self::here(node) });
    }

    pub(super) fn apply(&mut self, action: Action) {
        match action {
            Action::Deliver(from, to, class) => {
                let link = (from, to, class as u8);
                if let Some(at) = self.flights.iter().position(|flight| flight.link() == link) {
                    let message = self.flights.remove(at).message;
                    let (from, here) = (NodeId(from), Self::here(to));
                    self.step(to, Event::Received { from, message, here });
                }
            }
            Action::Ask(node) => {
                let state = self.node_mut(node);
                state.asks -= 1;
                state.stage = Stage::Waiting;
                let (mode, patience) = (Mode::Write, Patience::Wait);
                self.issue(node, Wanted::Ask(Ask::Lock { mode, patience }));
            }
            Action::Unlock(node) => {
                self.node_mut(node).stage = Stage::Idle;
                self.issue(node, Wanted::Unlock(Mode::Write));
            }
        }
    }

    pub(super) fn close(&mut self, node: u16) {
        if usize::from(node) < self.nodes.len() {
            self.node_mut(node).stage = Stage::Closed;
            self.step(node, Event::Close { session: SessionId::new(NodeId(node), 0) });
        }
    }

    pub(super) fn end(&mut self, node: u16) {
        self.ended |= 1 << node;
        self.flights.retain(|flight| flight.to != node);
        if let Some(state) = self.nodes.get_mut(usize::from(node)) {
            state.stage = Stage::Closed;
            state.asks = 0;
        }
    }

    pub(super) fn learn_of_end(&mut self, node: u16, other: u16, left: bool) {
        self.flights.retain(|flight| (flight.from, flight.to) != (other, node));
        if usize::from(node) < self.nodes.len() {
            self.step(node, Event::NodeDead { node: NodeId(other), left });
            // What it held of a home that is gone is void.
            if other == HOME && self.node_mut(node).stage == Stage::Holding {
                self.node_mut(node).stage = Stage::Idle;
            }
        }
    }

    pub(super) fn enabled_internal(&self, actions: &mut Vec<ClusterAction>) {
        let mut last = None;
        for flight in &self.flights {
            if last.replace(flight.link()) != Some(flight.link()) {
                let action = Action::Deliver(flight.from, flight.to, flight.message.class());
                actions.push(ClusterAction::Lock(action));
            }
        }
        for (number, node) in (0..).zip(&self.nodes) {
            if node.stage == Stage::Holding {
                actions.push(ClusterAction::Lock(Action::Unlock(number)));
            }
        }
    }

    pub(super) fn enabled_external(&self, node: u16, actions: &mut Vec<ClusterAction>) {
        if let Some(state) = self.nodes.get(usize::from(node))
            && state.stage == Stage::Idle
            && state.asks > 0
            && self.runs(HOME)
        {
            actions.push(ClusterAction::Lock(Action::Ask(node)));
        }
    }

    pub(super) fn violation(&self) -> Option<&'static str> {
        let holders = self.nodes.iter().filter(|node| node.stage == Stage::Holding).count();
        self.wrong.or((holders > 1).then_some("two sessions hold one lock"))
    }

    pub(super) fn rest_violation(&self) -> Option<&'static str> {
        let waits = self.nodes.iter().any(|node| node.stage == Stage::Waiting);
        waits.then_some("a session waits for a lock for ever")
    }
}
