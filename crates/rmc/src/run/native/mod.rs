//! Machine code for x86-64 on Linux.
//!
//! Each instruction becomes a few of the processor's, by templates. What is rare or must look at more
//! than registers and memory of the call (helpers, functions, atomics, division, the end of a budget)
//! *leaves*: registers go back to the machine, the interpreter carries that one instruction out, and the
//! code is entered again behind it. So there is one meaning of everything, and a call that runs as machine
//! code suspends, moves and stops like any other.
//!
//! Accesses to memory of the call are not checked at run time: the verifier has proven each of them, for
//! this program. Therefore the code only takes machines that were started with it, and interprets those
//! that were restored from bytes. Words of host memory are checked each time, against the regions that
//! the executor lends.

mod compile;
mod emit;
mod entry;

use alloc::vec::Vec;
use core::fmt;

use super::fast::{self, End};
use super::machine::Machine;
use super::ops::Code;
use super::{Area, Lent, Near, Outcome, Stop};
use crate::verify::Verified;
use entry::{Frame, Mapping, Starts};

pub use entry::Region;

/// Why there is no machine code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CompileError {
    /// The code would be larger than jumps reach.
    TooLarge,
    /// The system gives no memory for code.
    NoMemory,
}

impl fmt::Display for CompileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::TooLarge => "the machine code would be too large: interpret the program",
            Self::NoMemory => "the system gives no memory for machine code: interpret the program",
        })
    }
}

impl core::error::Error for CompileError {}

/// A verified program with its machine code.
#[derive(Debug)]
pub struct Compiled {
    verified: Verified,
    mapping: Mapping,
    /// Where the code of each slot starts.
    places: Vec<u32>,
}

impl Compiled {
    /// Compiles a program. Costs some microseconds and a system call or three.
    pub fn new(verified: Verified) -> Result<Self, CompileError> {
        let (code, places) = compile::compile(&verified)?;
        let mapping = Mapping::new(&code).ok_or(CompileError::NoMemory)?;
        Ok(Self { verified, mapping, places })
    }

    /// The program, to start machines with.
    pub fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// As [`Machine::run`], with machine code. Words in `regions` are loaded without asking `near`, which
    /// must see the same memory under the same numbers.
    pub fn run(
        &self,
        machine: &mut Machine,
        lent: Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Outcome {
        let variables = &self.verified.program().variables;
        let fits = lent.own.len() >= variables.own.len()
            && lent.shared.len() >= variables.shared.len()
            && machine.proven == Some(self.verified.identity());
        if !fits {
            return machine.run(&self.verified, lent, near);
        }
        if !machine.ready() {
            return machine.why_not();
        }
        let Lent { own, shared } = lent;
        loop {
            match self.places.get(machine.at) {
                Some(place) => self.enter(machine, *place, own, shared, regions),
                None => return Outcome::Stopped(Stop::NotRunning),
            }
            // The most frequent reason to leave needs nobody else.
            let ends = self.verified.ops().get(machine.at).is_some_and(|op| op.code == Code::Exit);
            if ends && machine.depth == 0 {
                machine.running = false;
                return Outcome::Returned(machine.registers[0]);
            }
            let lent = Lent { own: &mut *own, shared: &mut *shared };
            let end = fast::interpret::<true>(machine, &self.verified, lent, near);
            if !matches!(end, End::Stepped) {
                return fast::outcome(machine, end);
            }
        }
    }

    /// Runs machine code from a place of it until it leaves.
    #[inline]
    fn enter(
        &self,
        machine: &mut Machine,
        place: u32,
        own: &mut [u8],
        shared: &mut [u8],
        regions: &[Region<'_>],
    ) {
        let starts = Starts {
            constants: self.verified.program().constants.as_ptr(),
            own: own.as_mut_ptr(),
            shared: shared.as_mut_ptr(),
            context: machine.context.as_ptr(),
            stack: machine.stack.as_mut_ptr(),
        };
        let meter = machine.meter.instructions;
        let mut frame = Frame::new(&mut machine.registers, meter, &starts, regions);
        entry::enter(&self.mapping, &mut frame, place);
        machine.meter.instructions = frame.meter;
        machine.at = frame.slot as usize;
    }
}
