//! A home that leaves and will return: it drains its locks, closes when none is held, and leaves.
//!
//! A session that it has refused waits for its return, and takes no step before its node knows of the leave: it
//! unlocks nothing meanwhile. So a home that cannot leave, because a holder waits for such a session, is found.
//!
//! Properties: while the home drains, only sessions that hold a lock are granted one by it, and later none; no lock of it
//! is held when it leaves; and if no step is enabled, it has left.

use super::stage::LeaveStage;
use super::{LockAction, System};
use farside_base::{LineAddress, NodeId, Ticket};
use farside_protocol::lock::{Ask, LockEffect, LockEvent, LockMessage, Patience};

impl System {
    /// Enables the next step of the leave.
    pub(super) fn enabled_leave(&self, actions: &mut Vec<LockAction>) {
        let Some(home) = self.setup.leaves else {
            return;
        };
        match self.leave {
            LeaveStage::Member => actions.push(LockAction::Drain),
            LeaveStage::Draining if self.nodes[usize::from(home)].is_home_unused() => {
                actions.push(LockAction::CloseHome);
            }
            LeaveStage::Closed => actions.push(LockAction::Leave),
            LeaveStage::Draining | LeaveStage::Left => {}
        }
    }

    /// Takes the next step of the leave.
    pub(super) fn leave(&mut self, stage: LeaveStage) {
        let Some(home) = self.setup.leaves else {
            return;
        };
        self.leave = stage;
        match stage {
            LeaveStage::Draining => self.step(home, LockEvent::Drain),
            LeaveStage::Closed => self.step(home, LockEvent::CloseHome),
            LeaveStage::Left => {
                let is_of_home = |line: usize| self.setup.homes[line] == home;
                let mut held = self.sessions.iter().flat_map(|session| &session.held);
                if let Some(hold) = held.find(|hold| is_of_home(hold.line)) {
                    let text = format!("node {home} leaves while {hold:?} is held");
                    self.fail(text);
                }
                for at in 0..self.sessions.len() {
                    if self.node_of(at) == home && !self.sessions[at].closed {
                        self.apply_close(at);
                    }
                }
                self.die(home);
            }
            LeaveStage::Member => {}
        }
    }

    /// Whether this node has left.
    pub(super) fn has_left(&self, node: u16) -> bool {
        self.setup.leaves == Some(node) && self.leave == LeaveStage::Left
    }

    /// Whether a request may be refused for the leave. A request that waits then waits for the home's return.
    pub(super) fn is_refused_for_leave(&mut self, at: usize, line_home: u16, ask: Ask) -> bool {
        let waits = matches!(ask, Ask::Lock { patience: Patience::Wait, .. });
        self.sessions[at].awaits_home = waits;
        self.setup.leaves == Some(line_home)
            && match self.leave {
                LeaveStage::Member => false,
                LeaveStage::Draining => self.sessions[at].held.is_empty(),
                LeaveStage::Closed | LeaveStage::Left => true,
            }
    }

    /// Checks a grant of the home that leaves.
    pub(super) fn judge_grant(&mut self, node: u16, effect: &LockEffect) {
        if self.setup.leaves != Some(node) || self.leave == LeaveStage::Member {
            return;
        }
        let granted = match *effect {
            LockEffect::Send { to, message: LockMessage::Granted { line, ticket, .. } } => {
                self.session_of(to, line, ticket)
            }
            LockEffect::Locked { operation, .. } => self.sessions.iter().position(|session| {
                let pending = session.pending.as_ref();
                pending.is_some_and(|pending| {
                    pending.operation == operation && self.setup.homes[pending.choice.line] == node
                })
            }),
            _ => None,
        };
        let Some(at) = granted else {
            return;
        };
        if self.leave > LeaveStage::Draining || self.sessions[at].held.is_empty() {
            self.fail(format!("node {node} leaves, and grants a lock to session {at}"));
        }
    }

    /// The session of a request that was not cancelled.
    fn session_of(&self, to: NodeId, line: LineAddress, ticket: Ticket) -> Option<usize> {
        let operation = self.nodes[usize::from(to.0)].operation(line, ticket)?;
        self.sessions.iter().position(|session| {
            session.pending.as_ref().is_some_and(|pending| pending.operation == operation)
        })
    }

    /// Lets the sessions of a node continue that waited for the home's return.
    pub(super) fn hear_of_leave(&mut self, node: u16) {
        for at in 0..self.sessions.len() {
            if self.node_of(at) == node {
                self.sessions[at].awaits_home = false;
            }
        }
    }
}
