//! Abstract interpretation to a fixpoint (Cousot and Cousot, 1977): the proof for programs that have too many paths.
//!
//! Abstract states are joined at join points, and widened after some joins: a bound that still moves goes to the
//! next number that the program itself compares with (widening with thresholds; Blanchet and others, 2003). Relations
//! between numbers survive a join if the symbols of one state can be renamed into the other's (`link.rs`). Calls are
//! analysed separately for each call site. Loops that were proven so are metered.
//!
//! The analysis can pause before every instruction.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::explore::Explorer;
use super::link::Renaming;
use super::problem::Problem;
use super::scalar::Scalar;
use super::state::{AbstractState, CELLS_MAX, Number};
use super::step::{Next, Stepper};
use crate::isa::{Instruction, Operand};
use crate::program::Program;

/// Joins at a program point before bounds are widened.
const PATIENCE: u32 = 3;
/// Widenings at a program point before what still changes becomes unknown.
const PATIENCE_LAST: u32 = 40;

/// A program point: the return slots of its call stack, then its own slot.
type Key = Vec<usize>;

struct Known {
    state: AbstractState,
    visits: u32,
}

/// A path from one join point to the next ones.
struct Path {
    at: usize,
    state: AbstractState,
    /// Whether it has not left its join point yet, so that it must not be joined there.
    first: bool,
}

/// The worklist algorithm: the states of all join points so far, and those to propagate.
pub(super) struct Fixpoint {
    pub(super) stepper: Box<Stepper>,
    thresholds: Vec<i64>,
    known: BTreeMap<Key, Known>,
    /// The worklist: join points with a state that was not propagated.
    open: BTreeSet<Key>,
    /// Paths from the join point that was taken from the worklist last.
    paths: Vec<Path>,
    walked: u32,
}

impl Fixpoint {
    /// Starts after an exploration that found no verdict, of which only the facts are kept.
    pub(super) fn new(explorer: Explorer) -> Self {
        let Explorer { mut stepper, .. } = explorer;
        stepper.known.clear();
        let state = AbstractState::new(stepper.limits.context_bytes_max, &mut stepper.known);
        Self {
            thresholds: thresholds(&stepper.program),
            known: BTreeMap::from([(alloc::vec![0], Known { state, visits: 0 })]),
            open: BTreeSet::from([alloc::vec![0]]),
            paths: Vec::new(),
            walked: 0,
            stepper,
        }
    }

    /// Instructions analysed.
    pub(super) fn walked(&self) -> u64 {
        u64::from(self.walked)
    }

    /// Analyses at most `instructions` more, which must not be 0. Returns whether the fixpoint is found. A problem
    /// comes with its slot.
    pub(super) fn find(&mut self, instructions: u32) -> Result<bool, (usize, Problem)> {
        let mut left = instructions;
        while left > 0 {
            if let Some(path) = self.paths.pop() {
                self.follow(path, &mut left)?;
            } else if let Some(key) = self.open.pop_first() {
                self.depart(&key)?;
            } else {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Starts a path from a join point with its present state.
    fn depart(&mut self, key: &Key) -> Result<(), (usize, Problem)> {
        if self.stepper.known.is_full() {
            self.stepper
                .known
                .keep(self.known.values_mut().flat_map(|known| known.state.ids_mut()));
        }
        let Some(known) = self.known.get(key) else {
            return Ok(());
        };
        let (at, state) = (key[key.len() - 1], self.stepper.copy(&known.state));
        // The states of a join point only lose values, so the first is the largest.
        let cells = self.known.len().saturating_mul(state.cells());
        if cells > CELLS_MAX {
            return Err((at, Problem::TooComplex { walked: self.walked }));
        }
        self.paths.push(Path { at, state, first: true });
        Ok(())
    }

    /// Follows a path to its end or to the next join point, or keeps it for the next step.
    fn follow(&mut self, path: Path, left: &mut u32) -> Result<(), (usize, Problem)> {
        let Path { mut at, mut state, mut first } = path;
        while *left > 0 {
            if self.stepper.facts.meetings[at] && !first {
                self.stepper.forget_dead(&mut state, at);
                self.meet(at, state);
                return Ok(());
            }
            first = false;
            self.walked += 1;
            *left -= 1;
            if self.walked > self.stepper.limits.widened_max {
                return Err((at, Problem::TooComplex { walked: self.walked }));
            }
            match self.stepper.step(&mut state, at).map_err(|problem| (at, problem))? {
                Next::Through => at += self.stepper.program.code[at].slots(),
                Next::At(target) => at = target,
                Next::Either(target) => {
                    let jumped = self.stepper.jumped.take();
                    let path = |state| Path { at: target, state, first: false };
                    self.paths.extend(jumped.map(path));
                    at += 1;
                }
                Next::End => return Ok(()),
            }
        }
        self.paths.push(Path { at, state, first });
        Ok(())
    }

    /// Joins the state of a path with that of a join point, and widens it after some joins.
    fn meet(&mut self, at: usize, state: AbstractState) {
        let (known, open) = (&mut self.known, &mut self.open);
        let (numbers, thresholds) = (&mut self.stepper.known, &self.thresholds);
        let mut key: Key = state.frames[1..].iter().map(|frame| frame.back).collect();
        key.push(at);
        let Some(before) = known.get_mut(&key) else {
            known.insert(key.clone(), Known { state, visits: 0 });
            open.insert(key);
            return;
        };
        if !before.state.contains(&state, numbers) {
            before.visits += 1;
            let visits = before.visits;
            let mut renaming = Renaming::default();
            before.state = before.state.merge(&state, &mut |old: Number, new: Number| {
                let link = renaming.join(old.link, new.link);
                let (old, new) = (*numbers.get(old.id), *numbers.get(new.id));
                let joined = if visits <= PATIENCE {
                    old.join(&new)
                } else if visits <= PATIENCE_LAST || old.contains(&new) {
                    old.widen(&new, thresholds)
                } else {
                    Scalar::UNKNOWN
                };
                Number { id: numbers.intern(&joined), link }
            });
            open.insert(key);
        }
        self.stepper.spare.push(state);
    }
}

/// The thresholds of widening: the numbers that a program compares with, and their neighbours.
fn thresholds(program: &Program) -> Vec<i64> {
    let mut numbers = alloc::vec![-1, 0, 1];
    for instruction in &program.code {
        if let Instruction::JumpIf { src: Operand::Immediate(value), .. } = instruction {
            let value = i64::from(*value);
            numbers.extend([value - 1, value, value + 1]);
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}
