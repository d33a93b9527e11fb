//! The verifier: what may run beside the memory, and what it may cost.
//!
//! Programs are run on sets of values instead of values. A number is known by its bits and by its
//! unsigned and signed ranges, of 64 and of 32 bits; an address by the memory that it leads to and the
//! range of its offset; bytes of the stack by whether they were written. What follows from the condition
//! of a jump is known behind it, of all numbers that follow from the same value (`link.rs`) or are related by
//! a sum (`relation.rs`).
//!
//! Two proofs, the cheaper-to-run first:
//!
//! 1. *Every path to its end* (`explore.rs`). It ends with the worst case over all paths, of instructions, helper
//!    calls and bytes, and nothing is metered. All turns of a loop that counts are walked as one (`counted.rs`), other
//!    loops as often as they turn. A path that comes back with nothing new proves that its loop does nothing wrong
//!    for any number of turns; then every jump backwards charges a meter at run time.
//! 2. *A fixpoint* (`fixpoint.rs`), where there is too much to walk: joined and widened, whatever a loop does is
//!    proven for any number of turns too, and metered. A program whose proven worst case is over the budget is metered
//!    as well.
//!
//! A program that has no path to its end is refused; one that may miss its end is metered. Instructions
//! that no path reaches are tolerated, since compilers leave some behind conditions that they could not
//! see through: they become traps, so that no mistake of the verifier could run what it did not see.
//!
//! Whoever verifies for many does so by steps (`verification.rs`), and has other work between them.
//!
//! What an address is never becomes known to a program: addresses are no numbers, do not leave the stack,
//! and are no results.

mod bounds;
mod call;
mod counted;
mod explore;
mod fixpoint;
mod interned;
mod link;
mod live;
mod memory;
mod problem;
mod refine;
mod relation;
mod scalar;
mod state;
mod step;
mod structure;
#[cfg(test)]
mod tests;
mod tnum;
mod verification;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::isa::Instruction;
use crate::limits::{Budget, Limits};
use crate::program::{Line, Program};
use crate::run::{Charges, Op, StartError};

pub(crate) use live::uses;

pub use problem::{Expected, Found, Memory, Problem, Refusal};
pub use step::Cost;
pub use verification::Verification;

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
    /// Slots where paths may meet.
    meetings: Vec<bool>,
    /// Bits of the registers that are read before they are written, at each slot.
    live: Vec<u16>,
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

    /// Bytes of memory that it takes, about, machine code that may be made of it included. Fixed by the program's text.
    pub fn bytes(&self) -> usize {
        /// Machine code of an instruction, at most in the long run.
        const NATIVE_BYTES: usize = 32;
        let program = &self.program;
        let slot = size_of::<Instruction>() + 2 * size_of::<Op>() + size_of::<u16>() + 2;
        let data = &program.variables;
        program.code.len() * (slot + NATIVE_BYTES)
            + program.lines.len() * size_of::<Line>()
            + program.constants.len()
            + data.own.len()
            + data.shared.len()
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

    /// Slots where paths may meet.
    pub(crate) fn meetings(&self) -> &[bool] {
        &self.meetings
    }

    /// Bits of the registers that are read before they are written, at each slot.
    pub(crate) fn live(&self) -> &[u16] {
        &self.live
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

/// Verifies a program against limits: a [`Verification`] from its start to its end.
///
/// # Errors
/// Which instruction is wrong, from which line, and why. The same program is refused again by the same limits.
///
/// # Cost
/// Some microseconds for a program of the library, tens of milliseconds for one that wants to be slow.
pub fn verify(program: Program, limits: &Limits) -> Result<Verified, Box<Refusal>> {
    let mut verification = Verification::new(program, limits);
    loop {
        if let Some(verdict) = verification.step(u32::MAX) {
            return verdict;
        }
    }
}

#[inline]
fn within(worst: &Cost, budget: &Budget) -> bool {
    worst.instructions <= budget.instructions
        && worst.helper_calls <= budget.helper_calls
        && worst.bytes <= budget.bytes
}
