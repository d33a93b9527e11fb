//! Preconditions of code at join points: which region is the last one, and that R10 holds its start.
//!
//! Loops that load words rely on it from their header on, so that the region is looked up once and not in every
//! iteration. Every predecessor of the header establishes it: fall-through, jumps, and entries from outside. The target
//! of a single jump relies on what is known at the jump.

use super::compiler::{
    Cold, Compiler, Paid, R10Value, Relied, condition, condition_or_jump, ends_group, word_bytes,
};
use super::emit::{Hole, MemoryOperand, R10, RBP, When};
use super::entry::{LAST_BASE, LAST_NUMBER};
use super::later::{Later, PendingRegisters};
use crate::decode::{Code, uses};

impl Compiler<'_> {
    /// Lets loops rely on the region of the first word that they load.
    pub(super) fn rely_in_loops(&mut self) {
        let functions = &self.verified.program().functions;
        for (slot, op) in self.ops.iter().enumerate() {
            let head = op.offset as usize;
            if !condition_or_jump(op.code) || head > slot || self.relied[head].is_some() {
                continue;
            }
            // Calls and returns establish nothing.
            let called = functions.iter().any(|function| function.start == head);
            let returned = head.checked_sub(1).is_some_and(|at| self.ops[at].code == Code::Call);
            if !called && !returned {
                self.relied[head] = self.first_region(head);
            }
        }
    }

    /// The region of the first word loaded after a slot, if it is known there already.
    fn first_region(&self, head: usize) -> Option<Relied> {
        let (mut waiting, mut changed) = (PendingRegisters::default(), 0);
        for (slot, op) in self.ops.iter().enumerate().skip(head) {
            let (read, written) = uses(self.verified.program().code[slot]);
            if slot > head && self.meetings[slot] {
                return None;
            }
            if word_bytes(*op).is_some() {
                let [region, _] = waiting.arguments();
                let stays = region.outlives_calls() && !region.changes_with(changed);
                return stays.then_some(Relied { region, base: true });
            }
            if ends_group(*op) {
                return None;
            }
            changed |= written;
            if !waiting.takes(*op) {
                let all = condition(op.code).is_some();
                let due = waiting.due(if all { u16::MAX } else { read }, written);
                waiting.drop(due);
            }
        }
        None
    }

    /// Whether what a slot relies on is known here.
    fn is_seen_to(&self, relied: Relied) -> bool {
        self.state.last == Some(relied.region)
            && (self.state.held == R10Value::Base || !relied.base)
    }

    /// Establishes what the code of the next slot relies on, if it is reached from here.
    pub(super) fn arrive(&mut self, slot: usize, comes: bool) {
        let relied = self.relied.get(slot).copied().flatten();
        if let Some(relied) = relied.filter(|relied| comes && !self.is_seen_to(*relied)) {
            self.rely(relied.region);
        }
        self.state.last = relied.map(|relied| relied.region);
        let base = relied.is_some_and(|relied| relied.base);
        self.state.held = if base { R10Value::Base } else { R10Value::Nothing };
    }

    /// Before a jump: loads what its target relies on if it is available, or makes it rely on what is known here.
    pub(super) fn depart(&mut self, slot: usize, target: usize) {
        if self.behind_one[target] && target > slot && !self.careful {
            let base = self.state.held == R10Value::Base;
            self.relied[target] = self.state.last.map(|region| Relied { region, base });
        }
        if let Some(relied) = self.relied[target]
            && self.state.last == Some(relied.region)
            && !self.is_seen_to(relied)
        {
            self.out.load(R10, MemoryOperand::at(RBP, LAST_BASE));
            self.state.held = R10Value::Base;
        }
    }

    /// Sets the target of a jump to a slot, through code that charges it and establishes what that slot relies on, if
    /// needed.
    pub(super) fn lead(&mut self, from: Hole, paid: Option<Paid>, target: usize) {
        let relied = self.relied[target].filter(|relied| !self.is_seen_to(*relied));
        if paid.is_some() || relied.is_some() {
            self.cold.push(Cold::Way { from, paid, relied, target });
        } else {
            self.jumps.push((from, target));
        }
    }

    /// Makes a region the last one, and loads R10.
    pub(super) fn rely(&mut self, region: Later) {
        self.compare(region, MemoryOperand::at(RBP, LAST_NUMBER));
        let from = self.out.jump_if(When::NOT_EQUAL);
        let to = self.out.code.len();
        self.out.load(R10, MemoryOperand::at(RBP, LAST_BASE));
        self.cold.push(Cold::Other { from, region, to });
    }
}
