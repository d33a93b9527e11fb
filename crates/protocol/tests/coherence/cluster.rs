//! Machines, tags and a network, driven step by step.

use farside_base::{GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId};
use farside_protocol::coherence::{
    Coherence, CoherenceEffect, CoherenceEvent, CoherenceMessage, Effects, Extent, Frame, HeldLine,
    Here, Level, Want,
};
use farside_protocol::wire::Class;
use std::collections::{BTreeMap, VecDeque};

/// A whole-line extent.
pub(crate) const EXTENT: Extent = Extent { first: true, bytes: 512 };

/// The line used by the scenarios: homed at node 0.
pub(crate) fn line() -> LineAddress {
    GlobalAddress::new(NodeId(0), LineSize::DEFAULT, 0).unwrap().line()
}

/// A few nodes with one line, homed at node 0.
pub(crate) struct CoherenceCluster {
    pub(crate) machines: Vec<Coherence>,
    held: Vec<HeldLine>,
    allocated: bool,
    links: BTreeMap<(u16, u16, u8), VecDeque<CoherenceMessage>>,
    /// Nodes with placements that have not been reported as placed, in order.
    places: Vec<u16>,
    transcript: String,
}

impl CoherenceCluster {
    pub(crate) fn new(nodes: u16) -> Self {
        let machine = |node| Coherence::new(NodeId(node), &Limits::DEFAULT);
        let mut held = vec![HeldLine::default(); usize::from(nodes)];
        held[0].level = Level::Dirty;
        Self {
            machines: (0..nodes).map(machine).collect(),
            held,
            allocated: true,
            links: BTreeMap::new(),
            places: Vec::new(),
            transcript: String::new(),
        }
    }

    /// A cluster in which these nodes share the line, with grants 1, 2, ...
    pub(crate) fn shared_by(nodes: u16, sharers: &[u16]) -> Self {
        let mut cluster = Self::new(nodes);
        for node in sharers {
            cluster.read(*node, 900 + u64::from(*node));
            cluster.run();
        }
        cluster.forget();
        cluster
    }

    /// A cluster in which this node owns the line, with grant 1.
    pub(crate) fn owned_by(nodes: u16, owner: u16) -> Self {
        let mut cluster = Self::new(nodes);
        cluster.write(owner, 900);
        cluster.run();
        cluster.forget();
        cluster
    }

    pub(crate) fn held(&self, node: u16) -> HeldLine {
        self.held[usize::from(node)]
    }

    pub(crate) fn level(&self, node: u16) -> Level {
        self.held(node).level
    }

    fn here(&self, node: u16) -> Here {
        let extent = (node == 0 && self.allocated).then_some(EXTENT);
        Here { held: self.held(node), extent }
    }

    pub(crate) fn read(&mut self, node: u16, operation: u64) {
        self.issue(node, operation, Want::Read, false);
    }

    pub(crate) fn write(&mut self, node: u16, operation: u64) {
        self.issue(node, operation, Want::Write, false);
    }

    /// Issues an operation; with `pin` it keeps the line until [`CoherenceCluster::unpin`].
    pub(crate) fn issue(&mut self, node: u16, operation: u64, want: Want, pin: bool) {
        let pinned = if pin { ", pinned" } else { "" };
        self.tell(&format!("n{node} issues o{operation} {want:?}{pinned}"));
        let here = self.here(node);
        let event = CoherenceEvent::Issue {
            operation: OperationId(operation),
            line: line(),
            want,
            pin,
            frame: Frame(u32::from(node)),
            here,
        };
        self.step(node, event);
    }

    pub(crate) fn unpin(&mut self, node: u16) {
        self.tell(&format!("n{node} unpins"));
        let here = self.here(node);
        self.step(node, CoherenceEvent::Unpin { line: line(), here });
    }

    pub(crate) fn evict(&mut self, node: u16) {
        self.tell(&format!("n{node} evicts"));
        let here = self.here(node);
        self.step(node, CoherenceEvent::Evict { line: line(), here });
    }

    /// Writes the line back, in the background or for an operation.
    pub(crate) fn write_back(&mut self, node: u16, operation: Option<u64>) {
        let kind = operation.map_or_else(String::new, |operation| format!(" for o{operation}"));
        self.tell(&format!("n{node} writes back{kind}"));
        let here = self.here(node);
        let operation = operation.map(OperationId);
        self.step(node, CoherenceEvent::WriteBack { operation, line: line(), here });
    }

    pub(crate) fn drop_pins(&mut self, node: u16) {
        self.tell(&format!("n{node} drops its pins"));
        self.step(node, CoherenceEvent::DropPins);
    }

    pub(crate) fn retire(&mut self, operation: u64) {
        self.tell(&format!("n0 retires o{operation}"));
        let here = self.here(0);
        let event =
            CoherenceEvent::Retire { operation: OperationId(operation), line: line(), here };
        self.step(0, event);
    }

    pub(crate) fn placed(&mut self, node: u16) {
        self.tell(&format!("n{node} placed"));
        let at = self.places.iter().position(|other| *other == node);
        self.places.remove(at.expect("a placement in flight"));
        let here = self.here(node);
        self.step(node, CoherenceEvent::Placed { line: line(), here });
    }

    /// Reports a death to a node. Messages of the dead node to it are lost.
    pub(crate) fn dead(&mut self, node: u16, dead: u16) {
        self.tell(&format!("n{node} learns that n{dead} is dead"));
        self.links.retain(|(from, to, _), _| (*from, *to) != (dead, node) && *to != dead);
        self.step(node, CoherenceEvent::NodeDead { node: NodeId(dead) });
    }

    pub(crate) fn settled(&mut self, node: u16, dead: u16) {
        self.tell(&format!("n{node} learns that the death of n{dead} is settled"));
        self.step(node, CoherenceEvent::Settled { node: NodeId(dead) });
    }

    /// Delivers the next message of a class from one node to another.
    pub(crate) fn deliver(&mut self, from: u16, to: u16, class: Class) {
        let link = (from, to, class as u8);
        let message = self.links.get_mut(&link).and_then(VecDeque::pop_front);
        let message = message.expect("a message to deliver");
        assert_eq!(CoherenceMessage::decode(&message.encode()), Ok(message));
        self.tell(&format!("n{from} > n{to}: {message}"));
        let here = self.here(to);
        let from = NodeId(from);
        self.step(to, CoherenceEvent::Received { from, message, here });
    }

    pub(crate) fn request(&mut self, from: u16, to: u16) {
        self.deliver(from, to, Class::Request);
    }

    pub(crate) fn forward(&mut self, from: u16, to: u16) {
        self.deliver(from, to, Class::Forward);
    }

    pub(crate) fn reply(&mut self, from: u16, to: u16) {
        self.deliver(from, to, Class::Reply);
    }

    /// The number of messages in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.links.values().map(VecDeque::len).sum()
    }

    /// Delivers all messages in flight, the lowest link first, and lets all bytes land.
    pub(crate) fn run(&mut self) {
        loop {
            let next = self.links.iter().find(|(_, queue)| !queue.is_empty());
            let Some((from, to, class)) = next.map(|(link, _)| *link) else {
                break;
            };
            self.deliver(from, to, Class::from_bits(class).unwrap());
        }
        while let Some(node) = self.places.first().copied() {
            self.placed(node);
        }
        if self.in_flight() > 0 {
            self.run();
        }
    }

    fn step(&mut self, node: u16, event: CoherenceEvent) {
        let mut effects = Effects::new();
        let machine = &mut self.machines[usize::from(node)];
        machine.step(event, &mut effects).expect("no correct peer sent this");
        machine.invariants().expect("an invariant");
        for effect in effects {
            self.tell(&format!("    n{node} {effect}"));
            if let CoherenceEffect::Place { .. } = effect {
                self.places.push(node);
            }
            match effect {
                CoherenceEffect::Send { to, message }
                | CoherenceEffect::Place { to, message, .. } => {
                    let link = (node, to.0, message.class() as u8);
                    self.links.entry(link).or_default().push_back(message);
                }
                CoherenceEffect::SetLevel { held, .. } => self.held[usize::from(node)] = held,
                CoherenceEffect::DropHome { node: home } if home == line().home() => {
                    self.held[usize::from(node)] = HeldLine::default();
                }
                CoherenceEffect::DropHome { .. }
                | CoherenceEffect::Ready { .. }
                | CoherenceEffect::Fill { .. }
                | CoherenceEffect::Release { .. }
                | CoherenceEffect::Log { .. }
                | CoherenceEffect::Restore { .. }
                | CoherenceEffect::Fail { .. } => {}
            }
        }
    }

    fn tell(&mut self, text: &str) {
        let short = text.replace(&format!(" {:?}", line()), "");
        self.transcript.push_str(&short);
        self.transcript.push('\n');
    }

    /// Clears the transcript.
    pub(crate) fn forget(&mut self) {
        self.transcript.clear();
    }

    /// Asserts the events since the last check, then clears the transcript.
    #[track_caller]
    pub(crate) fn happened(&mut self, expected: &str) {
        let margin = |line: &&str| line.len() - line.trim_start().len();
        let lines = || expected.lines().filter(|line| !line.trim().is_empty());
        let indent = lines().map(|line| margin(&line)).min().unwrap_or(0);
        let expected: String = lines().map(|line| format!("{}\n", &line[indent..])).collect();
        assert_eq!(self.transcript, expected, "\nhappened:\n{}", self.transcript);
        self.forget();
    }

    /// Asserts that no node has pending work, and the state of the directory.
    #[track_caller]
    pub(crate) fn at_rest(&self, owner: Option<u16>, sharers: &[u16]) {
        assert_eq!(self.in_flight(), 0, "messages are on their way");
        for machine in &self.machines {
            assert_eq!(machine.lines_busy(), 0, "{machine:?}");
        }
        let home = &self.machines[0];
        assert_eq!(home.owner(line()).map(|(node, _)| node.0), owner);
        let found: Vec<u16> = home.sharers(line()).map(|(node, _)| node.0).collect();
        assert_eq!(found, sharers);
    }

    /// Asserts that these nodes, the live ones, have no pending work.
    #[track_caller]
    pub(crate) fn at_rest_of(&self, nodes: &[u16]) {
        for node in nodes {
            let machine = &self.machines[usize::from(*node)];
            assert_eq!(machine.lines_busy(), 0, "{machine:?}");
        }
    }

    /// Marks the line as belonging to no allocation.
    pub(crate) fn unallocate(&mut self) {
        self.allocated = false;
    }
}
