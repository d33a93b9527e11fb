//! The model of leaving: coherence, locks and membership of a few nodes together, with nodes that leave at every step.
//!
//! The machines are the real ones. The network keeps the order of coherence and lock messages per (source,
//! destination, class). A membership message arrives after everything that was posted to the same node before it, as
//! on a link, except for the loss of a link, which is detected at any time after the other end is closed. A view may
//! overtake messages of a third node.
//!
//! A leaving node starts no operation and returns one line after the other; once it holds none, it releases its locks
//! and announces its leave, as `farside::leave` does.
//!
//! Properties, besides those of the coherence model:
//! - without a death no line is lost, and an operation fails only for memory whose home has left;
//! - a lock is held by one session at a time, and a wait for it fails only when its home has left or died;
//! - no node is expelled, and no machine finds a message of another to be a violation;
//! - when nothing is in flight any more, no operation waits, every leave has ended, and the members agree.

mod locks;

use self::locks::LockWorld;
use super::coherence::{self, CoherenceSetup, System};
use super::member;
use crate::explorer::{Model, Violation};
use farside_base::NodeId;
use farside_protocol::member::{
    Death, Effects, MemberEffect, MemberEvent, MemberMessage, Membership,
};
use farside_protocol::wire::Class;
use std::collections::VecDeque;

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LeaveAction {
    /// A step of the coherence model.
    Memory(coherence::CoherenceAction),
    /// A step of the lock machines.
    Lock(locks::LeaveLocksAction),
    /// A node begins to leave.
    Leave(u16),
    /// A leaving node returns a line.
    GiveBack(u16, u8),
    /// A leaving node, which holds nothing, announces its leave.
    Announce(u16),
    /// The next membership message from one node to another arrives.
    Deliver(u16, u16),
    /// A node detects that its link to another is closed.
    NoticeLoss(u16, u16),
    /// A node dies.
    Die(u16),
}

/// A membership message in flight, and how many messages posted before it have not arrived, by class.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct PostedMessage {
    message: MemberMessage,
    memory_before: [u8; Class::ALL.len()],
    locks_before: [u8; Class::ALL.len()],
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LeavingNode {
    machine: Membership,
    leaving: bool,
    announced: bool,
    /// Members whose end it knows of, as bits.
    gone: u8,
    /// Messages in flight to this node, by sender.
    mail: Vec<VecDeque<PostedMessage>>,
}

/// A state of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LeavingCluster {
    memory: System,
    locks: LockWorld,
    nodes: Vec<LeavingNode>,
    /// Nodes that may leave, as bits.
    leavers: u8,
    deaths: u8,
    died: bool,
    /// A defect of the runtime: it announces a leave before it has returned its lines.
    careless: bool,
    wrong: Option<&'static str>,
}

impl LeavingCluster {
    /// Creates one member per node of the memory, all linked. `locks` is the number of times that each may take the one
    /// lock, whose home is node 0; `leavers` are the nodes that may leave, as bits. `change` may plant a
    /// defect in the membership machines.
    pub fn new(
        memory: CoherenceSetup,
        locks: &[u8],
        leavers: u8,
        change: impl Fn(Membership) -> Membership,
    ) -> Self {
        let count = memory.budgets.len();
        let settled = member::MemberCluster::new(count, 0, false, change).settled(count);
        let node = |machine: &Membership| LeavingNode {
            machine: machine.clone(),
            leaving: false,
            announced: false,
            gone: 0,
            mail: vec![VecDeque::new(); count],
        };
        Self {
            deaths: memory.deaths,
            memory: System::new(memory),
            locks: LockWorld::new(locks),
            nodes: settled.machines().map(node).collect(),
            leavers,
            died: false,
            careless: false,
            wrong: None,
        }
    }

    /// As `new`, with nodes that announce their leave at once.
    #[must_use]
    pub fn careless(self) -> Self {
        Self { careless: true, ..self }
    }

    fn numbers(&self) -> impl Iterator<Item = u16> + use<> {
        0..self.nodes.len() as u16
    }

    fn running(&self) -> impl Iterator<Item = u16> + '_ {
        self.numbers().filter(|node| self.memory.runs(*node))
    }

    fn node(&self, node: u16) -> &LeavingNode {
        &self.nodes[usize::from(node)]
    }

    fn node_mut(&mut self, node: u16) -> &mut LeavingNode {
        &mut self.nodes[usize::from(node)]
    }

    fn knows_end(&self, node: u16, other: u16) -> bool {
        self.node(node).gone >> other & 1 == 1
    }

    fn is_drained(&self, node: u16) -> bool {
        self.careless || self.memory.is_drained(node)
    }

    fn step(&mut self, node: u16, event: MemberEvent) {
        let mut effects = Effects::new();
        if let Err(violation) = self.node_mut(node).machine.step(event, &mut effects) {
            self.wrong = Some(violation.0);
        }
        for effect in effects {
            match effect {
                MemberEffect::Send { to, message } => self.post(node, to.0, message),
                MemberEffect::Dead { node: gone, death, .. } => {
                    self.learn_of_end(node, gone.0, death == Death::Left);
                }
                MemberEffect::Closed => {
                    self.memory.leave(node);
                    self.end(node);
                }
                MemberEffect::BecomeCoordinator => {}
                MemberEffect::Failed(_) => self.wrong = Some("a member is expelled"),
                MemberEffect::Cut { .. }
                | MemberEffect::JudgeLater
                | MemberEffect::Ready
                | MemberEffect::Connect { .. }
                | MemberEffect::Admitted { .. }
                | MemberEffect::Admit { .. }
                | MemberEffect::Deny { .. }
                | MemberEffect::AcceptPeer { .. } => self.wrong = Some("an effect of joining"),
            }
        }
    }

    fn post(&mut self, from: u16, to: u16, message: MemberMessage) {
        if self.memory.runs(to) {
            let memory_before = self.memory.in_flight(from, to);
            let locks_before = self.locks.in_flight(from, to);
            let mail = PostedMessage { message, memory_before, locks_before };
            self.node_mut(to).mail[usize::from(from)].push_back(mail);
        }
    }

    /// A message that was posted before these has arrived.
    fn advance(&mut self, from: u16, to: u16, arrived: impl Fn(&mut PostedMessage) -> &mut u8) {
        for mail in &mut self.node_mut(to).mail[usize::from(from)] {
            let before = arrived(mail);
            *before = before.saturating_sub(1);
        }
    }

    fn learn_of_end(&mut self, node: u16, gone: u16, left: bool) {
        if self.memory.runs(gone) {
            self.wrong = Some("a member that runs is removed");
        }
        if !left && !self.died {
            self.wrong = Some("a member that has left is taken for dead");
        }
        self.node_mut(node).gone |= 1 << gone;
        self.node_mut(node).mail[usize::from(gone)].clear();
        self.memory.learn_of_end(node, gone);
        self.locks.learn_of_end(node, gone, left);
    }

    fn end(&mut self, node: u16) {
        self.node_mut(node).mail.iter_mut().for_each(VecDeque::clear);
        self.locks.end(node);
    }

    fn deliver(&mut self, from: u16, to: u16) {
        if let Some(mail) = self.node_mut(to).mail[usize::from(from)].pop_front() {
            self.step(to, MemberEvent::Message { from: NodeId(from), message: mail.message });
        }
    }

    /// The steps that no program takes.
    fn enabled_internal(&self, actions: &mut Vec<LeaveAction>) {
        let mut memory = Vec::new();
        self.memory.enabled_internal(&mut memory);
        memory.retain(|action| !System::is_of_membership(*action));
        actions.extend(memory.into_iter().map(LeaveAction::Memory));
        self.locks.enabled_internal(actions);
        for to in self.running() {
            for from in self.numbers() {
                let arrives = |mail: &PostedMessage| {
                    mail.memory_before == [0; 3] && mail.locks_before == [0; 3]
                };
                if self.node(to).mail[usize::from(from)].front().is_some_and(arrives) {
                    actions.push(LeaveAction::Deliver(from, to));
                }
                if !self.memory.runs(from) && !self.knows_end(to, from) {
                    actions.push(LeaveAction::NoticeLoss(to, from));
                }
            }
            let node = self.node(to);
            if node.leaving && !node.announced {
                actions.extend(self.memory.copies(to).map(|line| LeaveAction::GiveBack(to, line)));
                if self.is_drained(to) {
                    actions.push(LeaveAction::Announce(to));
                }
            }
        }
    }

    fn enabled_external(&self, actions: &mut Vec<LeaveAction>) {
        let mut memory = Vec::new();
        self.memory.enabled_external(&mut memory);
        let leaves = |node: NodeId| self.node(node.0).leaving;
        memory.retain(|action| {
            !System::is_of_membership(*action) && !self.memory.chooser(*action).is_some_and(leaves)
        });
        actions.extend(memory.into_iter().map(LeaveAction::Memory));
        for node in self.running().filter(|node| !self.node(*node).leaving) {
            self.locks.enabled_external(node, actions);
            if self.leavers >> node & 1 == 1 {
                actions.push(LeaveAction::Leave(node));
            }
        }
        if self.deaths > 0 {
            actions.extend(self.running().map(LeaveAction::Die));
        }
    }

    /// Checks the properties of states with nothing in flight.
    fn rest_violation(&self) -> Option<String> {
        if let Some(text) = self.memory.rest_violation() {
            return Some(text);
        }
        if let Some(node) = self.running().find(|node| self.node(*node).leaving) {
            return Some(format!("the leave of n{node} does not end"));
        }
        let views = self.running().map(|node| self.node(node).machine.view());
        let views: Vec<_> = views.collect();
        if views.windows(2).any(|pair| pair[0] != pair[1]) {
            return Some("views differ".to_owned());
        }
        self.locks.rest_violation().map(str::to_owned)
    }
}

impl Model for LeavingCluster {
    type Action = LeaveAction;

    fn enabled(&self) -> Vec<LeaveAction> {
        let mut actions = Vec::new();
        self.enabled_internal(&mut actions);
        self.enabled_external(&mut actions);
        actions
    }

    fn apply(&mut self, action: LeaveAction) {
        match action {
            LeaveAction::Memory(action) => {
                self.memory.apply(action);
                if let coherence::CoherenceAction::Deliver(from, to, class) = action {
                    self.advance(from, to, |mail| &mut mail.memory_before[class as usize]);
                }
            }
            LeaveAction::Lock(action) => {
                self.locks.apply(action);
                if let locks::LeaveLocksAction::Deliver(from, to, class) = action {
                    self.advance(from, to, |mail| &mut mail.locks_before[class as usize]);
                }
            }
            LeaveAction::Leave(node) => {
                self.leavers &= !(1 << node);
                self.node_mut(node).leaving = true;
            }
            LeaveAction::GiveBack(node, line) => self.memory.give_back(node, line),
            LeaveAction::Announce(node) => {
                self.node_mut(node).announced = true;
                self.locks.close(node);
                self.step(node, MemberEvent::Leave { saved: false, names: false });
            }
            LeaveAction::Deliver(from, to) => self.deliver(from, to),
            LeaveAction::NoticeLoss(node, other) => {
                self.step(node, MemberEvent::LinkLost { node: NodeId(other) });
            }
            LeaveAction::Die(node) => {
                self.deaths -= 1;
                self.died = true;
                self.memory.die(node);
                self.end(node);
            }
        }
    }

    fn violation(&self) -> Option<Violation> {
        let lost = || self.memory.lost_line().filter(|_| !self.died);
        let own = self.wrong.or_else(|| self.locks.violation()).map(Violation::new);
        let found = own
            .or_else(|| lost().map(|line| Violation(format!("line {line} is lost"))))
            .or_else(|| self.memory.state_violation());
        if found.is_some() {
            return found;
        }
        let mut internal = Vec::new();
        self.enabled_internal(&mut internal);
        let rest = if internal.is_empty() { self.rest_violation() } else { None };
        rest.map(Violation)
    }

    fn narrate(&mut self, action: LeaveAction, lines: &mut Vec<String>) {
        match action {
            LeaveAction::Memory(action) => {
                self.memory.narrate(action, lines);
                // The coherence model has taken the step; the counts of arrived messages follow.
                if let coherence::CoherenceAction::Deliver(from, to, class) = action {
                    self.advance(from, to, |mail| &mut mail.memory_before[class as usize]);
                }
            }
            _ => {
                lines.push(format!("{action:?}"));
                self.apply(action);
            }
        }
    }
}

#[cfg(test)]
mod tests;
