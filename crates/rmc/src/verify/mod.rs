//! The verifier: proves memory safety of programs by abstract interpretation (Cousot and Cousot, 1977) and bounds
//! their cost.
//!
//! The *abstract state* of a program point (`state.rs`) approximates each value by a set: a number by its known bits
//! and its unsigned and signed ranges of 64 and 32 bits (`scalar.rs`, `tnum.rs`); an address by the memory area and the
//! range of its offset; a stack byte by whether it was written. The condition of a jump refines its operands on both
//! paths (`refine.rs`), and with them all numbers that derive from the same value (`link.rs`) or are related by a sum
//! (`relation.rs`, `relate.rs`). The transfer function is `step.rs`.
//!
//! Two analyses, the one with the lower cost at run time first:
//!
//! 1. *Path-sensitive exploration with pruning* by visited states (`explore.rs`), as in Linux's verifier. It yields the
//!    worst case over all paths, of instructions, helper calls and bytes, and nothing is metered. Counted loops are
//!    summarized (`counted.rs`), other loops unrolled. A path that returns to a visited state proves its loop safe for
//!    any number of iterations; then every back edge charges the meter at run time.
//! 2. *A fixpoint with join and widening* (`fixpoint.rs`), for programs with too many paths. Its loops are safe for any
//!    number of iterations, and metered.
//!
//! A program whose proven worst case is over the budget is metered as well. A program none of whose paths reaches an
//! exit is refused; one that may not reach it is metered. Unreachable instructions are tolerated, since compilers emit
//! them after conditions that they cannot decide; they become traps, so that a mistake of the verifier cannot run code
//! that was not verified.
//!
//! An executor that serves many callers verifies in bounded steps (`verification.rs`) and does other work in between.
//!
//! Invariant: addresses are not observable. They are not numbers, do not leave the stack, and are not results.

mod bounds;
mod call;
mod counted;
mod explore;
mod fixpoint;
mod induction;
mod interned;
mod link;
mod live;
mod memory;
mod problem;
mod refine;
mod relate;
mod relation;
mod scalar;
mod state;
mod step;
mod structure;
#[cfg(test)]
mod tests;
mod tnum;
mod verification;

use alloc::vec::Vec;

use crate::cost::Charges;
use crate::decode::Op;
use crate::isa::Instruction;
use crate::limits::Limits;
use crate::program::{Program, SourcePosition};

pub use crate::cost::Cost;
pub use problem::{Expected, FoundValue, MemoryKind, Problem, Refusal};
pub use verification::{Verification, verify};

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
    /// Where the meter is charged, and how much; `None` if it is not.
    charges: Option<Charges>,
    /// Charged at the start of a call.
    start_cost: u32,
    frames: usize,
    context_bytes: u32,
    unreached: usize,
    /// The memory areas that each slot may access, as bits.
    places: Vec<u8>,
    /// Slots where paths may meet.
    meetings: Vec<bool>,
    /// Live registers at each slot, as bits.
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

    /// The greatest cost of a call: proven, or the budget of [`Limits`] if it is metered.
    pub fn worst(&self) -> Cost {
        self.worst
    }

    /// Whether a meter bounds its calls. Otherwise they end within [`Verified::worst`].
    pub fn metered(&self) -> bool {
        self.metered
    }

    /// Where a call is charged, and how much: for the budget, or so that a long call can pause. `None` if it is not.
    pub(crate) fn charges(&self) -> Option<&Charges> {
        self.charges.as_ref()
    }

    /// The charge at the start of a call.
    pub(crate) fn start_cost(&self) -> u32 {
        self.start_cost
    }

    /// Frames that it needs.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Bytes of parameters that it reads: a call must pass at least as many.
    pub fn context_bytes(&self) -> u32 {
        self.context_bytes
    }

    /// Approximate bytes of memory that it takes, machine code included. Depends on the program's text alone.
    pub fn bytes(&self) -> usize {
        /// Machine code per instruction: an upper bound of the average.
        const NATIVE_BYTES: usize = 32;
        let program = &self.program;
        let slot = size_of::<Instruction>() + 2 * size_of::<Op>() + size_of::<u16>() + 2;
        let data = &program.variables;
        program.code.len() * (slot + NATIVE_BYTES)
            + program.lines.len() * size_of::<SourcePosition>()
            + program.constants.len()
            + data.own.len()
            + data.shared.len()
    }

    /// Instructions that no path reaches.
    pub fn unreached(&self) -> usize {
        self.unreached
    }

    /// The memory areas that a slot may access, as bits.
    pub(crate) fn places(&self, slot: usize) -> u8 {
        self.places.get(slot).copied().unwrap_or(0)
    }

    /// Slots where paths may meet.
    pub(crate) fn meetings(&self) -> &[bool] {
        &self.meetings
    }

    /// Live registers at each slot, as bits.
    pub(crate) fn live(&self) -> &[u16] {
        &self.live
    }

    /// A number that is unique to each verified program of the process.
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
