//! The model of settled deaths: a node has died, and others still send bytes to each other on its behalf until they
//! learn of its death. Links keep the order within each lane; lanes overtake each other.
//!
//! Checked: once a removal is settled at a node, none of those bytes arrive there, and eventually it is settled at
//! all nodes.
//!
//! In a second model a node joins meanwhile, which may have known the dead one, and is linked to the others one after
//! the other. A node that is linked to a peer after that peer has learned of the death may still send it bytes, until
//! both have settled it. When all have, the number is reused: from then on no bytes for its previous bearer may arrive
//! at any node. The new bearer may die too.

use crate::explorer::{Model, Violation};
use farside_base::{NodeId, NodeSet, ViewNumber};
use farside_protocol::member::Burials;
use farside_protocol::member::burial::{Lane, RemovalEffect, RemovalEvent};
use std::collections::VecDeque;

/// A message from one survivor to another.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RemovalMessage {
    /// Bytes, on behalf of the bearer of number 0 that this view admitted.
    Bytes(u64),
    /// Notification that this bearer of a number is dead, or the answer to one.
    Buried(u16, u64, bool),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct RemovalNode {
    alive: bool,
    burials: Burials,
    /// Dead nodes that this node knows of, and those whose deaths it has settled.
    knows: NodeSet,
    settled: NodeSet,
    /// Number of sends left.
    sends: u8,
    /// Nodes that it is linked to.
    linked: NodeSet,
    /// Nodes that were removed before it joined.
    ignorant: NodeSet,
    /// Nodes that it was linked to when it learned of the death of node 0.
    late: NodeSet,
}

/// The nodes; node 0 dies first, and others may follow.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RemovalCluster {
    nodes: Vec<RemovalNode>,
    /// Messages in flight, by sender, receiver and lane.
    links: Vec<Vec<[VecDeque<RemovalMessage>; 2]>>,
    deaths: u8,
    /// How many more times number 0 is reused once all nodes have settled the death of its bearer.
    reuses: u8,
    /// The view that admitted the bearer of number 0, and the initial state of each bearer.
    born: u64,
    first: Box<RemovalNode>,
    wrong: Option<&'static str>,
}

/// The view that admitted every node but the later bearers of number 0.
const FIRST: u64 = 1;

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum RemovalAction {
    /// A node that considers node 0 alive sends bytes, or a recall, to another node on its behalf.
    Send(u16, u16, Lane),
    /// The oldest message of a lane from one node to another arrives.
    Deliver(u16, u16, Lane),
    /// A node dies; its messages in flight may arrive until the receivers learn of its death.
    Die(u16),
    /// A node learns that another is dead.
    Learn(u16, u16),
    /// The joining node is linked to another node.
    Link(u16, u16),
    /// All nodes have settled the death of node 0: a new node gets the number, and is linked to all.
    Reuse,
}

impl RemovalCluster {
    /// Creates `nodes` nodes: the first is dead, and up to `deaths` more may die. Each of the others sends bytes
    /// `sends` times. `change` may plant a mutant.
    pub fn new(nodes: u16, deaths: u8, sends: u8, change: impl Fn(Burials) -> Burials) -> Self {
        let node = |number: u16| RemovalNode {
            alive: number > 0,
            burials: change(Burials::new(nodes)),
            knows: NodeSet::EMPTY,
            settled: NodeSet::EMPTY,
            sends,
            linked: (0..nodes).filter(|other| *other != number).map(NodeId).collect(),
            ignorant: NodeSet::EMPTY,
            late: NodeSet::EMPTY,
        };
        let count = usize::from(nodes);
        let first = Box::new(RemovalNode { sends: 0, ..node(0) });
        Self {
            first,
            nodes: (0..nodes).map(node).collect(),
            links: vec![vec![[VecDeque::new(), VecDeque::new()]; count]; count],
            deaths,
            reuses: 0,
            born: FIRST,
            wrong: None,
        }
    }

    /// The same, but the last node is joining and linked to none yet. If it is `ignorant`, node 0 was removed before it
    /// joined. The number of node 0 is reused `reuses` times.
    pub fn joining(mut self, ignorant: bool, reuses: u8) -> Self {
        let last = self.nodes.len() as u16 - 1;
        for other in 1..last {
            self.nodes[usize::from(other)].linked.remove(NodeId(last));
            self.nodes[usize::from(last)].linked.remove(NodeId(other));
        }
        if ignorant {
            // The joiner also sends, but nothing on behalf of a node that it does not know.
            let joiner = &mut self.nodes[usize::from(last)];
            joiner.ignorant.insert(NodeId(0));
            joiner.knows.insert(NodeId(0));
            joiner.settled.insert(NodeId(0));
        }
        self.reuses = reuses;
        self
    }

    fn link(&mut self, from: u16, to: u16, lane: Lane) -> &mut VecDeque<RemovalMessage> {
        &mut self.links[usize::from(from)][usize::from(to)][lane as usize]
    }

    fn clear_link(&mut self, from: u16, to: u16) {
        for lane in Lane::ALL {
            self.link(from, to, lane).clear();
        }
    }

    fn numbers(&self) -> std::ops::Range<u16> {
        0..self.nodes.len() as u16
    }

    fn node(&self, number: u16) -> &RemovalNode {
        &self.nodes[usize::from(number)]
    }

    /// The other nodes that a node considers alive.
    fn linked(&self, number: u16) -> NodeSet {
        let RemovalNode { knows, linked, .. } = self.node(number);
        linked.iter().filter(|other| !knows.contains(*other)).collect()
    }

    fn step(&mut self, number: u16, event: RemovalEvent) {
        let mut effects = Vec::new();
        let node = &mut self.nodes[usize::from(number)];
        if node.burials.step(event, &mut effects).is_err() {
            self.wrong = Some("a violation where there is none");
        }
        for effect in effects {
            match effect {
                RemovalEffect::Tell { to, node, born, lane, answer } => {
                    self.send(number, to.0, lane, RemovalMessage::Buried(node.0, born.0, answer));
                }
                RemovalEffect::Settled { node, .. } => {
                    if !self.nodes[usize::from(number)].settled.insert(node) {
                        self.wrong = Some("a death is settled twice");
                    }
                }
            }
        }
    }

    fn send(&mut self, from: u16, to: u16, lane: Lane, message: RemovalMessage) {
        if self.node(to).alive {
            self.link(from, to, lane).push_back(message);
        }
    }

    fn deliver(&mut self, from: u16, to: u16, lane: Lane) {
        match self.link(from, to, lane).pop_front() {
            Some(RemovalMessage::Bytes(born)) if born < self.born => {
                self.wrong = Some("bytes for a former bearer of a number arrive");
            }
            Some(RemovalMessage::Bytes(_)) if self.node(to).has_settled(0, from) => {
                self.wrong = Some("bytes arrive after a death is settled");
            }
            Some(RemovalMessage::Buried(dead, born, answer)) => {
                let (from, node) = (NodeId(from), NodeId(dead));
                let reused = dead == 0 && self.born > born;
                let former = reused || self.node(to).ignorant.contains(node);
                let born = ViewNumber(born);
                self.step(to, RemovalEvent::Buried { from, node, born, lane, answer, former });
            }
            Some(RemovalMessage::Bytes(_)) | None => {}
        }
    }

    fn die(&mut self, number: u16) {
        self.deaths -= 1;
        self.nodes[usize::from(number)].alive = false;
        for other in self.numbers() {
            self.clear_link(other, number);
        }
    }

    /// The link is closed: no further message arrives on it.
    fn learn(&mut self, number: u16, dead: u16) {
        self.clear_link(dead, number);
        self.nodes[usize::from(number)].knows.insert(NodeId(dead));
        let linked = self.linked(number);
        let born = ViewNumber(if dead == 0 { self.born } else { FIRST });
        self.step(number, RemovalEvent::Dead { node: NodeId(dead), born, linked });
    }

    /// Whether all live nodes have settled the death of node 0. Another dead node no longer counts once
    /// a view has removed it, which all nodes receive before the view that reuses the number.
    fn is_free(&self) -> bool {
        let dead = |at: &u16| !self.node(*at).alive;
        let dead: NodeSet = self.numbers().filter(dead).map(NodeId).collect();
        let knows = |node: &RemovalNode| dead.iter().all(|dead| node.knows.contains(dead));
        let free =
            |node: &RemovalNode| !node.alive || node.settled.contains(NodeId(0)) && knows(node);
        !self.node(0).alive && self.nodes.iter().all(free)
    }

    fn reuse(&mut self) {
        self.reuses -= 1;
        self.born += 1;
        let dead = self.numbers().filter(|at| *at > 0 && !self.node(*at).alive).map(NodeId);
        let dead: NodeSet = dead.collect();
        let linked = self.numbers().skip(1).map(NodeId).filter(|at| !dead.contains(*at)).collect();
        let RemovalNode { burials, sends, .. } = (*self.first).clone();
        let (knows, settled, ignorant) = (dead, dead, dead);
        let late = NodeSet::EMPTY;
        self.nodes[0] =
            RemovalNode { alive: true, burials, knows, settled, sends, linked, ignorant, late };
        for node in &mut self.nodes[1..] {
            node.ignorant.remove(NodeId(0));
            node.knows.remove(NodeId(0));
            node.settled.remove(NodeId(0));
            node.late = NodeSet::EMPTY;
        }
    }
}

impl RemovalNode {
    /// Whether a node no longer sends messages on behalf of a dead node.
    fn has_settled(&self, dead: u16, from: u16) -> bool {
        let (dead, from) = (NodeId(dead), NodeId(from));
        !self.ignorant.contains(dead) && self.settled.contains(dead) && !self.late.contains(from)
    }

    fn link(&mut self, other: u16) {
        self.linked.insert(NodeId(other));
        if self.knows.contains(NodeId(0)) {
            self.late.insert(NodeId(other));
        }
    }
}

impl Model for RemovalCluster {
    type Action = RemovalAction;

    fn enabled(&self) -> Vec<RemovalAction> {
        let mut actions = Vec::new();
        for from in self.numbers() {
            let node = self.node(from);
            if self.deaths > 0 && node.alive {
                actions.push(RemovalAction::Die(from));
            }
            for other in self.numbers().filter(|other| *other != from) {
                for lane in Lane::ALL {
                    let link = &self.links[usize::from(from)][usize::from(other)];
                    if !link[lane as usize].is_empty() {
                        actions.push(RemovalAction::Deliver(from, other, lane));
                    }
                }
                let known = node.knows.contains(NodeId(other));
                let linked = node.linked.contains(NodeId(other));
                if from > other && !linked && node.alive && self.node(other).alive {
                    actions.push(RemovalAction::Link(from, other));
                }
                if node.alive && !known && !self.node(other).alive {
                    actions.push(RemovalAction::Learn(from, other));
                }
                let for_first = node.alive && !node.knows.contains(NodeId(0)) && other != 0;
                if node.sends > 0 && for_first && !known && linked {
                    actions.extend(Lane::ALL.map(|lane| RemovalAction::Send(from, other, lane)));
                }
            }
        }
        if self.reuses > 0 && self.is_free() {
            actions.push(RemovalAction::Reuse);
        }
        actions
    }

    fn apply(&mut self, action: RemovalAction) {
        match action {
            RemovalAction::Send(from, to, lane) => {
                self.nodes[usize::from(from)].sends -= 1;
                self.send(from, to, lane, RemovalMessage::Bytes(self.born));
            }
            RemovalAction::Deliver(from, to, lane) => self.deliver(from, to, lane),
            RemovalAction::Die(number) => self.die(number),
            RemovalAction::Learn(number, dead) => self.learn(number, dead),
            RemovalAction::Link(one, other) => {
                self.nodes[usize::from(one)].link(other);
                self.nodes[usize::from(other)].link(one);
            }
            RemovalAction::Reuse => self.reuse(),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.wrong.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let dead = self.nodes.iter().filter(|node| !node.alive).count();
        let done = |node: &RemovalNode| !node.alive || node.settled.len() == dead;
        (!self.nodes.iter().all(done)).then(|| Violation::new("a death is never settled"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explorer::Explorer;

    fn states(nodes: u16, deaths: u8, sends: u8) -> u64 {
        let model = RemovalCluster::new(nodes, deaths, sends, |burials| burials);
        match Explorer::new().explore(&model).holds() {
            Ok(coverage) => coverage.states,
            Err(text) => panic!("{nodes} nodes, {deaths} more deaths, {sends} sends: {text}"),
        }
    }

    #[test]
    fn nothing_comes_of_a_settled_death() {
        let cases = [(3, 0, 2), (3, 1, 1), (4, 0, 1), (4, 1, 0)];
        let states = cases.map(|(nodes, deaths, sends)| states(nodes, deaths, sends));
        assert_eq!(states, [1_225, 656, 343_000, 57_956], "{cases:?}");
    }

    fn states_of_joining(nodes: u16, deaths: u8, ignorant: bool, reuses: u8) -> u64 {
        let model =
            RemovalCluster::new(nodes, deaths, 1, |burials| burials).joining(ignorant, reuses);
        match Explorer::new().explore(&model).holds() {
            Ok(coverage) => coverage.states,
            Err(text) => panic!("{nodes} nodes, {deaths} deaths, {ignorant}, {reuses}: {text}"),
        }
    }

    #[test]
    fn nothing_comes_of_a_former_bearer_of_a_number() {
        let cases = [(3, 0, false, 1), (3, 1, false, 2), (3, 1, true, 1), (4, 0, true, 1)];
        let states = cases.map(|(nodes, deaths, ignorant, reuses)| {
            states_of_joining(nodes, deaths, ignorant, reuses)
        });
        assert_eq!(states, [382, 2_494, 985, 28_820], "{cases:?}");
    }

    #[test]
    #[ignore = "a minute: a million states; run with --ignored"]
    fn nothing_comes_of_a_former_bearer_of_a_number_at_length() {
        assert_eq!(states_of_joining(4, 0, false, 1), 1_031_628);
    }

    #[cfg(canary)]
    #[test]
    fn canary_reuse_of_numbers_needs_its_rules() {
        use farside_protocol::member::MemberMutant;
        let cases = [
            (MemberMutant::FormerBurialCounts, false, 1, "bytes arrive after a death is settled"),
            (MemberMutant::BurialUnanswered, true, 1, "a death is never settled"),
        ];
        for (mutant, ignorant, deaths, expected) in cases {
            let change = |burials: Burials| burials.with_mutant(mutant);
            let model = RemovalCluster::new(3, deaths, 1, change).joining(ignorant, 2);
            let failure = Explorer::new().explore(&model).failure();
            let failure = failure.unwrap_or_else(|| panic!("{mutant:?} is not found"));
            assert_eq!(failure.violation.0, expected, "{mutant:?}: {}", failure.transcript);
        }
    }

    #[cfg(canary)]
    #[test]
    fn canary_defects_are_found() {
        use farside_protocol::member::MemberMutant;
        for (mutant, steps) in
            [(MemberMutant::DeathSettledAtOnce, 3), (MemberMutant::BurialOvertakesRecalls, 5)]
        {
            let change = |burials: Burials| burials.with_mutant(mutant);
            let failure = Explorer::new().explore(&RemovalCluster::new(3, 0, 1, change)).failure();
            let failure = failure.unwrap_or_else(|| panic!("{mutant:?} is not found"));
            let expected = ("bytes arrive after a death is settled", steps);
            let found = (failure.violation.0.as_str(), failure.trace.len());
            assert_eq!(found, expected, "{mutant:?}: {}", failure.transcript);
        }
    }
}
