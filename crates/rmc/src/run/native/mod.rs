//! Machine code for x86-64 on Linux.
//!
//! Each instruction becomes a few of the processor's, by templates. Helpers are called out to, and what is
//! rare (the end of a budget, what the verifier never came to) *leaves*: registers go back to the machine,
//! and the interpreter goes on. So there is one meaning of everything, and a call that runs as machine code
//! suspends, moves and stops like any other.
//!
//! Accesses to memory of the call are not checked at run time: the verifier has proven each of them, for
//! this program. Therefore the code only takes machines that were started with it, and interprets those
//! that were restored from bytes. Words of host memory are checked each time, against the regions that
//! the executor lends.

mod arithmetic;
mod compile;
mod emit;
mod entry;
mod later;
mod relied;
mod words;

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use super::fast;
use super::machine::{Machine, Registers, StartError, frame_pointer};
use super::meter::Meter;
use super::{Area, Lent, Near, Outcome};
use crate::limits::Budget;
use crate::verify::Verified;
use entry::{Data, End, Mapping, Start};

pub use entry::Region;

/// Bits of the places that are constants and variables.
const DATA: u8 = 7;

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
    /// Where the code of each slot starts that can be entered.
    places: Vec<Option<u32>>,
    /// Whether its instructions access constants or variables.
    has_data: bool,
}

impl Compiled {
    /// Compiles a program. Costs some microseconds and a system call or three.
    pub fn new(verified: Verified) -> Result<Self, CompileError> {
        Self::or_back(verified).map_err(|(error, _)| error)
    }

    /// As [`Compiled::new`], but the program comes back where there is no machine code of it.
    pub fn or_back(verified: Verified) -> Result<Self, (CompileError, Box<Verified>)> {
        let made = compile::compile(&verified).and_then(|made| {
            let compile::Compiled { code, first, places } = made;
            let mapping = Mapping::new(&code, first).ok_or(CompileError::NoMemory)?;
            Ok((mapping, places))
        });
        match made {
            Ok((mapping, places)) => {
                let has_data = (0..places.len()).any(|slot| verified.places(slot) & DATA != 0);
                Ok(Self { verified, mapping, places, has_data })
            }
            Err(error) => Err((error, Box::new(verified))),
        }
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
    /// must see the same memory under the same numbers. A panic of `near` ends the process.
    #[inline]
    pub fn run(
        &self,
        machine: &mut Machine,
        mut lent: Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Outcome {
        match self.go_on(machine, &mut lent, regions, near) {
            Exit::Returned(result) => Outcome::Returned(result),
            exit => self.outcome(machine, exit, lent, near),
        }
    }

    /// As [`Machine::run_slice`], with machine code.
    pub fn run_slice(
        &self,
        machine: &mut Machine,
        instructions: u64,
        lent: Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Outcome {
        machine.sliced(instructions, |machine| self.run(machine, lent, regions, near))
    }

    /// As [`Machine::start`] and then [`Compiled::run`], but a call that ends without waiting costs less: its
    /// parameters stay where they are.
    #[inline]
    pub fn call(
        &self,
        machine: &mut Machine,
        context: &[u8],
        budget: Budget,
        mut lent: Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Result<Outcome, StartError> {
        self.verified.admits(context, &budget)?;
        match self.start(machine, context, &budget, &mut lent, regions, near) {
            Exit::Returned(result) => Ok(Outcome::Returned(result)),
            exit => self.started(machine, exit, lent, near),
        }
    }

    /// What is passed on the way to the code is passed by reference: values of several words that have just
    /// been written one by one would have to be waited for when they are copied as a whole.
    fn start(
        &self,
        machine: &mut Machine,
        context: &[u8],
        budget: &Budget,
        lent: &mut Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Exit {
        machine.begin_call(&self.verified);
        let meter = Meter::of_instructions(&self.verified, budget);
        if !self.fits(lent) || meter < 0 {
            machine.begin_verified(&self.verified, context, *budget);
            return Exit::Left;
        }
        let context = Fresh { context, budget };
        self.enter(machine, (None, meter), Some(context), lent, regions, near)
    }

    fn go_on(
        &self,
        machine: &mut Machine,
        lent: &mut Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Exit {
        let fits = self.fits(lent) && machine.proven == Some(self.verified.identity());
        let place = self.places.get(machine.at).copied().flatten();
        let meter = machine.meter.instructions;
        // Machine code charges what is there: where nothing is, the interpreter says so.
        let (true, Some(place), true) = (fits && meter >= 0, place, machine.ready()) else {
            return Exit::Left;
        };
        let place = (machine.at > 0 || machine.paused).then_some(place);
        self.enter(machine, (place, meter), None, lent, regions, near)
    }

    /// Whether the variables are as long as was verified.
    fn fits(&self, lent: &Lent<'_>) -> bool {
        let variables = &self.verified.program().variables;
        let fit =
            || lent.own.len() >= variables.own.len() && lent.shared.len() >= variables.shared.len();
        !self.has_data || fit()
    }

    #[inline(always)]
    fn enter(
        &self,
        machine: &mut Machine,
        (place, meter): (Option<u32>, i64),
        fresh: Option<Fresh<'_>>,
        lent: &mut Lent<'_>,
        regions: &[Region<'_>],
        near: &mut impl Near,
    ) -> Exit {
        let context = fresh.as_ref().map_or(&machine.context[..], |fresh| fresh.context);
        let start = Start {
            place,
            meter,
            depth: if place.is_some() { machine.depth } else { 0 },
            context: context.as_ptr(),
            context_bytes: context.len() as u64,
            frames: machine.frames.as_mut_ptr(),
            data: self.has_data.then(|| Data {
                constants: self.verified.program().constants.as_ptr(),
                own: lent.own.as_mut_ptr(),
                shared: lent.shared.as_mut_ptr(),
            }),
            stack: machine.stack.as_mut_ptr(),
        };
        let verified = &self.verified;
        let mut driver = Driver { machine, verified, fresh, lent, near, end: None };
        match entry::enter(&self.mapping, start, &mut driver, regions) {
            End::Returned(result) => {
                driver.machine.running = false;
                Exit::Returned(result)
            }
            End::Stopped => driver.end.map_or(Exit::Left, Exit::Ended),
            End::Left => Exit::Left,
        }
    }

    /// As [`Compiled::outcome`], apart so that results that are at hand are not copied with it.
    #[inline(never)]
    fn started(
        &self,
        machine: &mut Machine,
        exit: Exit,
        lent: Lent<'_>,
        near: &mut impl Near,
    ) -> Result<Outcome, StartError> {
        Ok(self.outcome(machine, exit, lent, near))
    }

    /// What comes of it when machine code has not seen to it.
    fn outcome(
        &self,
        machine: &mut Machine,
        exit: Exit,
        lent: Lent<'_>,
        near: &mut impl Near,
    ) -> Outcome {
        match exit {
            Exit::Returned(result) => Outcome::Returned(result),
            Exit::Ended(end) => fast::outcome(machine, end),
            Exit::Left => machine.run(&self.verified, lent, near),
        }
    }
}

/// How machine code was left.
enum Exit {
    /// The program has returned.
    Returned(u64),
    /// A helper has ended the run.
    Ended(fast::End),
    /// The interpreter goes on.
    Left,
}

/// What a machine has been started with, but not been told yet.
struct Fresh<'a> {
    context: &'a [u8],
    budget: &'a Budget,
}

/// What machine code asks while it runs.
struct Driver<'a, 'l, N> {
    machine: &'a mut Machine,
    verified: &'a Verified,
    fresh: Option<Fresh<'a>>,
    lent: &'a mut Lent<'l>,
    near: &'a mut N,
    end: Option<fast::End>,
}

impl<N> Driver<'_, '_, N> {
    /// Tells the machine what it has been started with.
    #[inline]
    fn settle(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.machine.begin_verified(self.verified, fresh.context, *fresh.budget);
        }
    }
}

impl<N: Near> entry::Driver for Driver<'_, '_, N> {
    fn registers(&self) -> &Registers {
        &self.machine.registers
    }

    fn help(&mut self, slot: usize, registers: &mut Registers) -> bool {
        self.settle();
        let program = self.verified.program();
        let Some(op) = self.verified.ops().get(slot) else {
            return false;
        };
        let lent = Lent { own: &mut *self.lent.own, shared: &mut *self.lent.shared };
        let (mut view, mut rest, mut frames) = self.machine.parts(program, lent);
        let memory = (&mut view, &mut rest, &mut frames);
        match fast::help((program, op, slot), registers, memory, self.near) {
            Ok(()) => true,
            Err(end) => {
                self.end = Some(end);
                false
            }
        }
    }

    fn stopped(&mut self, slot: usize, depth: usize, meter: i64, registers: &Registers) {
        self.settle();
        self.machine.at = slot;
        self.machine.depth = depth;
        self.machine.meter.instructions = meter;
        self.machine.registers = *registers;
        // Programs that do not use R10 have no register of the processor for it.
        self.machine.registers[10] = frame_pointer(depth);
    }
}
