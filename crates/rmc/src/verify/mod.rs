//! The verifier: what may run beside the memory, and what it may cost.
//!
//! Programs are run on sets of values instead of values. A number is known by its bits and by its
//! unsigned and signed ranges, of 64 and of 32 bits; an address by the memory that it leads to and the
//! range of its offset; bytes of the stack by whether they were written. What follows from the condition
//! of a jump is known behind it.
//!
//! Two proofs, the cheaper-to-run first:
//!
//! 1. *Every path to its end* (`explore.rs`). Loops are walked as often as they turn. It ends with the
//!    worst case over all paths, of instructions, helper calls and bytes, and nothing is metered.
//! 2. *A fixpoint* (`fixpoint.rs`), for loops that turn too often or for ever. Then whatever a loop does is
//!    proven for any number of turns, and every jump backwards charges a meter at run time. A program
//!    whose proven worst case is over the budget is metered too.
//!
//! A program that has no path to its end is refused; one that may miss its end is metered. Instructions
//! that no path reaches are tolerated, since compilers leave some behind conditions that they could not
//! see through: they become traps, so that no mistake of the verifier could run what it did not see.
//!
//! What an address is never becomes known to a program: addresses are no numbers, do not leave the stack,
//! and are no results.

mod call;
mod explore;
mod fixpoint;
mod interned;
mod live;
mod memory;
mod problem;
mod refine;
mod scalar;
mod state;
mod step;
mod structure;
#[cfg(test)]
mod tests;
mod tnum;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::assembler::disassemble;
use crate::limits::{Budget, Limits, SLOW_WEIGHT, UNPAUSED_HELPER_WEIGHT};
use crate::program::Program;
use crate::run::{Charges, Op, StartError, fuse, predecode};
use explore::{Explored, Explorer};
use interned::Interned;
use state::State;
use step::{Facts, Stepper};

pub(crate) use live::{live, uses};
pub(crate) use structure::meeting_points;

pub use problem::{Expected, Found, Memory, Problem, Refusal};
pub use step::Cost;

/// How many programs this process has verified.
static VERIFIED: AtomicU64 = AtomicU64::new(0);

/// A program that was accepted, ready to run.
#[derive(Clone, Debug)]
pub struct Verified {
    program: Program,
    ops: Vec<Op>,
    /// The same for the interpreter.
    fused: Vec<Op>,
    limits: Limits,
    worst: Cost,
    metered: bool,
    /// Where and what it is charged, if it is at all.
    charges: Option<Charges>,
    /// What its start costs.
    start_cost: u32,
    frames: usize,
    context_bytes: u32,
    unreached: usize,
    /// Bits of the places that each slot may touch.
    places: Vec<u8>,
    identity: u64,
}

impl Verified {
    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The limits that it was verified against.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What a call costs at most: proven, or the budget of [`Limits`] where it is metered.
    pub fn worst(&self) -> Cost {
        self.worst
    }

    /// Whether a meter stops it. Otherwise it ends by itself within [`Verified::worst`].
    pub fn metered(&self) -> bool {
        self.metered
    }

    /// Where and what a call is charged: for the budget, or so that a long one can pause. `None` where it is
    /// nothing.
    pub(crate) fn charges(&self) -> Option<&Charges> {
        self.charges.as_ref()
    }

    /// What is charged at its start.
    pub(crate) fn start_cost(&self) -> u32 {
        self.start_cost
    }

    /// Frames that it needs.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of parameters that it reads, so that a call needs at least as many.
    pub fn context_bytes(&self) -> u32 {
        self.context_bytes
    }

    /// Instructions that no path reaches.
    pub fn unreached(&self) -> usize {
        self.unreached
    }

    /// Whether a call may start with these parameters and this budget.
    #[inline]
    pub(crate) fn admits(&self, context: &[u8], budget: &Budget) -> Result<(), StartError> {
        let needed = self.context_bytes as usize;
        if context.len() < needed {
            return Err(StartError::ContextTooShort { needed });
        }
        let most = self.limits.context_bytes_max;
        if context.len() > most {
            return Err(StartError::ContextTooLong { most });
        }
        if !self.metered && !within(&self.worst, budget) {
            return Err(StartError::OverBudget { worst: self.worst });
        }
        Ok(())
    }

    /// Bits of the places that a slot may touch.
    pub(crate) fn places(&self, slot: usize) -> u8 {
        self.places.get(slot).copied().unwrap_or(0)
    }

    /// Another one for each program that was verified.
    pub(crate) fn identity(&self) -> u64 {
        self.identity
    }

    pub(crate) fn ops(&self) -> &[Op] {
        &self.ops
    }

    pub(crate) fn fused(&self) -> &[Op] {
        &self.fused
    }
}

/// Verifies a program against limits.
pub fn verify(program: Program, limits: &Limits) -> Result<Verified, Box<Refusal>> {
    match prove(&program, limits, &Interned::new) {
        Ok((facts, worst, metered)) => Ok(accept(program, limits, facts, worst, metered)),
        Err((slot, problem)) => Err(Box::new(refusal(&program, slot, problem))),
    }
}

type Proof = (Facts, Cost, bool);

/// With new tables of numbers from `numbers`.
fn prove(
    program: &Program,
    limits: &Limits,
    numbers: &dyn Fn() -> Interned,
) -> Result<Proof, (Option<usize>, Problem)> {
    structure::check(program, limits)?;
    let points = structure::meeting_points(program);
    let live = live(program);
    let mut stepper = Stepper::new(program, limits, numbers());
    let start = State::new(limits.context_bytes_max, &mut stepper.known);
    let at = |(slot, problem)| (Some(slot), problem);
    let explored = Explorer::new(&mut stepper, &points, &live).explore(start);
    let budget = limits.budget;
    if let Explored::Bounded(worst) = explored.map_err(at)? {
        return Ok(if within(&worst, &budget) {
            (stepper.facts, worst, false)
        } else {
            let worst = metered_worst(worst, budget);
            (stepper.facts, worst, true)
        });
    }
    stepper.known = numbers();
    let start = State::new(limits.context_bytes_max, &mut stepper.known);
    fixpoint::fixpoint(&mut stepper, &points, &live, start).map_err(at)?;
    if !stepper.facts.ends {
        return Err((None, Problem::NeverEnds));
    }
    let endless = Cost {
        instructions: u64::MAX,
        helper_calls: u64::MAX,
        bytes: u64::MAX,
        words: u64::MAX,
        slow: u64::MAX,
    };
    Ok((stepper.facts, metered_worst(endless, budget), true))
}

#[inline]
fn within(worst: &Cost, budget: &Budget) -> bool {
    worst.instructions <= budget.instructions
        && worst.helper_calls <= budget.helper_calls
        && worst.bytes <= budget.bytes
}

/// What a meter leaves of a worst case.
fn metered_worst(worst: Cost, budget: Budget) -> Cost {
    Cost {
        instructions: worst.instructions.min(budget.instructions),
        helper_calls: worst.helper_calls.min(budget.helper_calls),
        bytes: worst.bytes.min(budget.bytes),
        words: worst.words.min(budget.instructions),
        slow: worst.slow.min(budget.instructions),
    }
}

/// What a call weighs at most that never pauses, in instructions.
fn unpaused_weight(worst: &Cost) -> u64 {
    let helpers = worst.words.saturating_add(worst.helper_calls);
    let slow = worst.slow.saturating_mul(u64::from(SLOW_WEIGHT));
    let helpers = helpers.saturating_mul(UNPAUSED_HELPER_WEIGHT);
    worst.instructions.saturating_add(helpers).saturating_add(slow)
}

fn accept(program: Program, limits: &Limits, facts: Facts, worst: Cost, metered: bool) -> Verified {
    let charged = metered || unpaused_weight(&worst) > limits.unpaused_max;
    let charges = charged.then(|| Charges::of(&program));
    let ops = predecode(&program, &facts.reached, charges.as_ref());
    let second = crate::isa::Instruction::SecondHalf;
    let seen = |(code, reached): &(&crate::isa::Instruction, &bool)| !**reached && **code != second;
    let unreached = program.code.iter().zip(&facts.reached).filter(seen).count();
    Verified {
        fused: fuse(&ops, charges.as_ref()),
        ops,
        limits: *limits,
        worst,
        metered,
        start_cost: charges.as_ref().map_or(0, |charges| charges.start(0)),
        charges,
        frames: facts.frames,
        context_bytes: u32::try_from(facts.context_bytes).unwrap_or(u32::MAX),
        unreached,
        places: facts.places,
        identity: VERIFIED.fetch_add(1, Ordering::Relaxed),
        program,
    }
}

fn refusal(program: &Program, slot: Option<usize>, problem: Problem) -> Refusal {
    let at = |slot: usize| program.code.get(slot).map(|code| disassemble(*code));
    Refusal {
        program: program.name.clone(),
        slot,
        instruction: slot.and_then(at).unwrap_or_default(),
        line: slot.and_then(|slot| program.line_at(slot)).cloned(),
        problem,
    }
}
