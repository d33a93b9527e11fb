//! The memory models as a small machine: one memory, and a store buffer per thread. It enumerates the allowed
//! outcomes of a program; any other outcome of a subject is an error.

use super::program::{Instruction, Litmus, LitmusOutcome, Outcomes};
use super::search::{RunModel, ends};
use crate::explorer::{Model, Violation};
use std::collections::VecDeque;

/// Memory models, by the delays of writes that they allow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemoryModel {
    /// Partial store order: writes to different variables may become visible in any order.
    Pso,
    /// Total store order: writes of a thread become visible in program order.
    Tso,
}

/// A running program.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Reference {
    litmus: &'static Litmus,
    model: MemoryModel,
    threads: Vec<Thread>,
    memory: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Thread {
    next: usize,
    registers: Vec<u64>,
    /// The store buffer: writes that are not visible to other threads yet, oldest first.
    buffer: VecDeque<(u8, u64)>,
}

/// A transition of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ReferenceAction {
    /// The thread performs its next instruction.
    Execute(usize),
    /// The thread's buffered write with this index becomes visible.
    Drain(usize, usize),
}

impl Reference {
    /// Creates the initial state of a test under a model.
    pub fn new(litmus: &'static Litmus, model: MemoryModel) -> Self {
        Self {
            litmus,
            model,
            threads: vec![Thread::default(); litmus.threads.len()],
            memory: vec![0; litmus.variables()],
        }
    }

    fn execute(&mut self, number: usize) {
        let thread = &mut self.threads[number];
        let instruction = self.litmus.threads[number][thread.next];
        thread.next += 1;
        let Some(variable) = instruction.variable() else {
            return;
        };
        if let Instruction::Write { value, .. } = instruction {
            thread.buffer.push_back((variable, value));
            return;
        }
        let word = &mut self.memory[usize::from(variable)];
        let own = thread.buffer.iter().rev().find(|(other, _)| *other == variable);
        thread.registers.push(own.map_or(*word, |(_, value)| *value));
        // A read leaves the word unchanged; the buffer of an atomic is empty.
        *word = instruction.apply(*word);
    }
}

impl Model for Reference {
    type Action = ReferenceAction;

    fn enabled(&self) -> Vec<ReferenceAction> {
        let mut actions = Vec::new();
        for (number, thread) in self.threads.iter().enumerate() {
            let next = self.litmus.threads[number].get(thread.next);
            let waits = |one: &Instruction| one.is_atomic() || *one == Instruction::Fence;
            if next.is_some_and(|next| !waits(next) || thread.buffer.is_empty()) {
                actions.push(ReferenceAction::Execute(number));
            }
            for (at, (variable, _)) in thread.buffer.iter().enumerate() {
                let mut before = thread.buffer.iter().take(at);
                let first = match self.model {
                    MemoryModel::Tso => at == 0,
                    MemoryModel::Pso => before.all(|(other, _)| other != variable),
                };
                if first {
                    actions.push(ReferenceAction::Drain(number, at));
                }
            }
        }
        actions
    }

    fn apply(&mut self, action: ReferenceAction) {
        match action {
            ReferenceAction::Execute(number) => self.execute(number),
            ReferenceAction::Drain(number, at) => {
                if let Some((variable, value)) = self.threads[number].buffer.remove(at) {
                    self.memory[usize::from(variable)] = value;
                }
            }
        }
    }

    fn violation(&self) -> Option<Violation> {
        None
    }
}

impl RunModel for Reference {
    fn outcome(&self) -> Option<LitmusOutcome> {
        let ended = |(number, thread): (usize, &Thread)| {
            thread.next == self.litmus.threads[number].len() && thread.buffer.is_empty()
        };
        self.threads.iter().enumerate().all(ended).then(|| LitmusOutcome {
            registers: self.threads.iter().flat_map(|thread| thread.registers.clone()).collect(),
            memory: self.memory.clone(),
        })
    }
}

/// Returns all outcomes of a test under a model, by exhaustive search.
pub fn outcomes(litmus: &'static Litmus, model: MemoryModel) -> Outcomes {
    let ends = ends(&Reference::new(litmus, model), 10_000_000);
    ends.expect("a reference machine of a few instructions ends").outcomes
}

#[cfg(test)]
mod tests {
    use super::super::{CATALOG, ModelVerdict};
    use super::*;

    #[test]
    fn catalog_verdicts_agree_with_models() {
        for litmus in CATALOG {
            for model in [MemoryModel::Pso, MemoryModel::Tso] {
                let possible = outcomes(litmus, model);
                let seen = possible.iter().any(|outcome| litmus.is_witness(outcome));
                let verdict = if seen { ModelVerdict::Allowed } else { ModelVerdict::Forbidden };
                assert_eq!(verdict, litmus.verdict(model), "{litmus} under {model:?}");
            }
        }
    }

    #[test]
    fn total_store_order_allows_no_more_than_partial() {
        for litmus in CATALOG {
            let pso = outcomes(litmus, MemoryModel::Pso);
            assert!(outcomes(litmus, MemoryModel::Tso).is_subset(&pso), "{litmus}");
        }
    }

    #[test]
    fn witnesses_name_registers_and_variables_that_are_there() {
        for litmus in CATALOG {
            let possible = outcomes(litmus, MemoryModel::Pso);
            for outcome in &possible {
                assert_eq!(outcome.registers.len(), litmus.registers(), "{litmus}");
                assert_eq!(outcome.memory.len(), litmus.variables(), "{litmus}");
            }
            for condition in litmus.witness {
                let there = match *condition {
                    super::super::Condition::Register(register, _) => {
                        usize::from(register) < litmus.registers()
                    }
                    super::super::Condition::Memory(variable, _) => {
                        usize::from(variable) < litmus.variables()
                    }
                };
                assert!(there, "{litmus}: {condition:?}");
            }
        }
    }

    #[test]
    fn names_are_unique() {
        for (at, litmus) in CATALOG.iter().enumerate() {
            assert!(CATALOG[..at].iter().all(|other| other.name != litmus.name));
        }
    }
}
