//! What holds at every place however often it is passed: the proof for programs that need a meter.
//!
//! Where paths meet, what is known is joined; where they come back, widened, to the next number that the
//! program itself compares with. Calls are followed anew from each place that calls.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::explore::forget_dead;
use super::interned::Interned;
use super::problem::Problem;
use super::scalar::Scalar;
use super::state::{CELLS_MAX, Number, State};
use super::step::{Next, Stepper};
use crate::isa::{Instruction, Operand};
use crate::program::Program;

/// Joins at a place before bounds are widened.
const PATIENCE: u32 = 3;
/// Widenings at a place before whatever still changes is forgotten.
const PATIENCE_LAST: u32 = 40;

/// A place: the slots behind the calls that lead to it, then its own.
type Key = Vec<usize>;

struct Known {
    state: State,
    visits: u32,
}

pub(super) fn fixpoint(
    stepper: &mut Stepper<'_>,
    points: &[bool],
    live: &[u16],
    start: State,
) -> Result<(), (usize, Problem)> {
    let thresholds = thresholds(stepper.program);
    let mut known: BTreeMap<Key, Known> = BTreeMap::new();
    let mut open: BTreeSet<Key> = BTreeSet::new();
    let first = alloc::vec![0];
    known.insert(first.clone(), Known { state: start, visits: 0 });
    open.insert(first);
    let mut walked = 0;
    while let Some(key) = open.pop_first() {
        if stepper.known.is_full() {
            stepper.known.keep(known.values_mut().map(|known| &mut known.state));
        }
        let Some(state) = known.get(&key).map(|known| stepper.copy(&known.state)) else {
            continue;
        };
        let at = key[key.len() - 1];
        // States of a place only lose values, so the first size is the greatest.
        let cells = known.len().saturating_mul(state.cells());
        if cells > CELLS_MAX {
            return Err((at, Problem::TooComplex { walked }));
        }
        let mut paths = alloc::vec![(at, state, true)];
        while let Some((mut at, mut state, mut first)) = paths.pop() {
            loop {
                if points[at] && !first {
                    forget_dead(&mut state, live[at]);
                    let left =
                        meet((&mut known, &mut open), at, state, &mut stepper.known, &thresholds);
                    stepper.spare.extend(left);
                    break;
                }
                first = false;
                walked += 1;
                if walked > stepper.limits.widened_max {
                    return Err((at, Problem::TooComplex { walked }));
                }
                match stepper.step(&mut state, at).map_err(|problem| (at, problem))? {
                    Next::Through => at += stepper.program.code[at].slots(),
                    Next::At(target) => at = target,
                    Next::Either(target) => {
                        paths.extend(stepper.jumped.take().map(|jumped| (target, jumped, false)));
                        at += 1;
                    }
                    Next::End => break,
                }
            }
        }
    }
    Ok(())
}

/// A path has come to a meeting point. Its state, unless that was new.
fn meet(
    (known, open): (&mut BTreeMap<Key, Known>, &mut BTreeSet<Key>),
    at: usize,
    state: State,
    numbers: &mut Interned,
    thresholds: &[i64],
) -> Option<State> {
    let mut key: Key = state.frames[1..].iter().map(|frame| frame.back).collect();
    key.push(at);
    let Some(before) = known.get_mut(&key) else {
        known.insert(key.clone(), Known { state, visits: 0 });
        open.insert(key);
        return None;
    };
    if before.state.contains(&state, numbers) {
        return Some(state);
    }
    before.visits += 1;
    let visits = before.visits;
    before.state = before.state.merge(&state, &mut |old: Number, new: Number| {
        let (old, new) = (numbers.number(old), numbers.number(new));
        let joined = if visits <= PATIENCE {
            old.join(&new)
        } else if visits <= PATIENCE_LAST || old.contains(&new) {
            old.widen(&new, thresholds)
        } else {
            Scalar::UNKNOWN
        };
        Number { id: numbers.intern(&joined), link: joined.link }
    });
    open.insert(key);
    Some(state)
}

/// The numbers that a program compares with, and their neighbours.
fn thresholds(program: &Program) -> Vec<i64> {
    let mut numbers = BTreeSet::from([-1, 0, 1]);
    for instruction in &program.code {
        if let Instruction::JumpIf { src: Operand::Immediate(value), .. } = instruction {
            let value = i64::from(*value);
            numbers.extend([value - 1, value, value + 1]);
        }
    }
    numbers.into_iter().collect()
}
