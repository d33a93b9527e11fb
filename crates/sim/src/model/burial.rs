//! The model of burials: a node has died, and some others still send bytes to each other because it
//! had asked them to, until they learn of its death. Links keep their order. Once a death is settled
//! for a node, none of those bytes may arrive there any more; and in the end it is settled for all.

use crate::explorer::{Model, Violation};
use farside_base::{NodeId, NodeSet};
use farside_protocol::member::Burials;
use farside_protocol::member::burial::{Effect, Event};
use std::collections::VecDeque;

/// What one survivor says to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Message {
    /// Bytes, on behalf of node 0.
    Bytes,
    /// It knows that this node is dead.
    Buried(u16),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Node {
    alive: bool,
    burials: Burials,
    /// Whose deaths it knows of, and which of them are settled for it.
    knows: NodeSet,
    settled: NodeSet,
    /// How many bytes it may still be asked to send.
    sends: u8,
}

/// Node 0 and then perhaps others die.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    /// On the way, by sender and receiver.
    links: Vec<Vec<VecDeque<Message>>>,
    deaths: u8,
    wrong: Option<&'static str>,
}

/// What can happen next.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A node that takes node 0 to be alive sends bytes to another on behalf of it.
    Send(u16, u16),
    /// The oldest message from one node to another arrives.
    Deliver(u16, u16),
    /// A node dies; what it has sent may arrive until the others learn of it.
    Die(u16),
    /// A node learns that another is dead.
    Learn(u16, u16),
}

impl Cluster {
    /// So many nodes, of which the first is dead and so many more may die. Each of the others sends
    /// bytes so many times. `change` may put a defect into a machine.
    pub fn new(nodes: u16, deaths: u8, sends: u8, change: impl Fn(Burials) -> Burials) -> Self {
        let node = |number: u16| Node {
            alive: number > 0,
            burials: change(Burials::new(nodes)),
            knows: NodeSet::EMPTY,
            settled: NodeSet::EMPTY,
            sends,
        };
        let count = usize::from(nodes);
        Self {
            nodes: (0..nodes).map(node).collect(),
            links: vec![vec![VecDeque::new(); count]; count],
            deaths,
            wrong: None,
        }
    }

    fn link(&mut self, from: u16, to: u16) -> &mut VecDeque<Message> {
        &mut self.links[usize::from(from)][usize::from(to)]
    }

    fn numbers(&self) -> std::ops::Range<u16> {
        0..self.nodes.len() as u16
    }

    fn node(&self, number: u16) -> &Node {
        &self.nodes[usize::from(number)]
    }

    /// Whom a node takes to be alive, itself apart.
    fn linked(&self, number: u16) -> NodeSet {
        let knows = self.node(number).knows;
        let others = self.numbers().filter(|other| *other != number).map(NodeId);
        others.filter(|other| !knows.contains(*other)).collect()
    }

    fn step(&mut self, number: u16, event: Event) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[usize::from(number)];
        if node.burials.step(event, &mut effects).is_err() {
            self.wrong = Some("a violation where there is none");
        }
        for effect in effects {
            match effect {
                Effect::Tell { to, node } => self.send(number, to.0, Message::Buried(node.0)),
                Effect::Settled { node } => {
                    if !self.nodes[usize::from(number)].settled.insert(node) {
                        self.wrong = Some("a death is settled twice");
                    }
                }
            }
        }
    }

    fn send(&mut self, from: u16, to: u16, message: Message) {
        if self.node(to).alive {
            self.link(from, to).push_back(message);
        }
    }

    fn deliver(&mut self, from: u16, to: u16) {
        match self.link(from, to).pop_front() {
            Some(Message::Bytes) if self.node(to).settled.contains(NodeId(0)) => {
                self.wrong = Some("bytes arrive after a death is settled");
            }
            Some(Message::Buried(dead)) => {
                let (from, node) = (NodeId(from), NodeId(dead));
                self.step(to, Event::Buried { from, node });
            }
            Some(Message::Bytes) | None => {}
        }
    }

    fn die(&mut self, number: u16) {
        self.deaths -= 1;
        self.nodes[usize::from(number)].alive = false;
        for other in self.numbers() {
            self.link(other, number).clear();
        }
    }

    /// Its link is closed: nothing more comes from there.
    fn learn(&mut self, number: u16, dead: u16) {
        self.link(dead, number).clear();
        self.nodes[usize::from(number)].knows.insert(NodeId(dead));
        let linked = self.linked(number);
        self.step(number, Event::Dead { node: NodeId(dead), linked });
    }
}

impl Model for Cluster {
    type Action = Action;

    fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        for from in self.numbers() {
            let node = self.node(from);
            if self.deaths > 0 && node.alive {
                actions.push(Action::Die(from));
            }
            for other in self.numbers().filter(|other| *other != from) {
                if !self.links[usize::from(from)][usize::from(other)].is_empty() {
                    actions.push(Action::Deliver(from, other));
                }
                let known = node.knows.contains(NodeId(other));
                if node.alive && !known && !self.node(other).alive {
                    actions.push(Action::Learn(from, other));
                }
                let for_first = node.alive && !node.knows.contains(NodeId(0)) && other != 0;
                if node.sends > 0 && for_first && !known {
                    actions.push(Action::Send(from, other));
                }
            }
        }
        actions
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Send(from, to) => {
                self.nodes[usize::from(from)].sends -= 1;
                self.send(from, to, Message::Bytes);
            }
            Action::Deliver(from, to) => self.deliver(from, to),
            Action::Die(number) => self.die(number),
            Action::Learn(number, dead) => self.learn(number, dead),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.wrong.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let dead = self.nodes.iter().filter(|node| !node.alive).count();
        let done = |node: &Node| !node.alive || node.settled.len() == dead;
        (!self.nodes.iter().all(done)).then(|| Violation::new("a death is never settled"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    fn states(nodes: u16, deaths: u8, sends: u8) -> u64 {
        let model = Cluster::new(nodes, deaths, sends, |burials| burials);
        match Explorer::new().explore(&model).holds() {
            Ok(coverage) => coverage.states,
            Err(text) => panic!("{nodes} nodes, {deaths} more deaths, {sends} sends: {text}"),
        }
    }

    #[test]
    fn nothing_comes_of_a_settled_death() {
        let cases = [(3, 0, 2), (3, 1, 1), (4, 0, 1), (4, 1, 0)];
        let states = cases.map(|(nodes, deaths, sends)| states(nodes, deaths, sends));
        assert_eq!(states, [225, 216, 4_096, 2_972], "{cases:?}");
    }

    #[cfg(canary)]
    #[test]
    fn canary_defects_are_found() {
        use farside_protocol::member::Mutant;
        let mutant = |burials: Burials| burials.with_mutant(Mutant::DeathSettledAtOnce);
        let failure = Explorer::new().explore(&Cluster::new(3, 0, 1, mutant)).failure();
        let failure = failure.expect("a failure");
        let expected = ("bytes arrive after a death is settled", 3);
        let found = (failure.violation.0.as_str(), failure.trace.len());
        assert_eq!(found, expected, "{}", failure.transcript);
    }
}
