//! Machine code for x86-64 on Linux.
//!
//! A template compiler translates each instruction into a few native ones. Helpers are called. Rare cases (the end of a
//! budget, slots that the verifier never reached) *leave*: the registers are stored into the machine, and the
//! interpreter continues. So all cases have one implementation, and a call that runs as machine code suspends, moves
//! and stops like any other.
//!
//! Accesses to memory of the call are not checked at run time: the verifier has proven each of them, for
//! this program. Therefore the code only takes machines that were started with it, and interprets those
//! that were restored from bytes. Words and short reads of host memory are checked each time, against the
//! regions that the executor lends.

mod arithmetic;
mod compile;
mod compiler;
mod emit;
mod entry;
mod later;
mod reads;
mod relied;
mod words;

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::fast;
use super::machine::{Machine, Registers, StartError, admit, frame_pointer};
use super::meter::Meter;
use super::{Lent, Near, Outcome};
use crate::limits::Budget;
use crate::verify::Verified;
use entry::{Data, Mapping, NativeExit, Start};

pub use compiler::CompileError;
pub use entry::NativeRegion;

/// Bits of the places that are constants and variables.
const DATA: u8 = 7;

/// A verified program with its machine code.
#[derive(Debug)]
pub struct Compiled {
    verified: Arc<Verified>,
    mapping: Mapping,
    /// Where the code of each slot starts that can be entered.
    places: Vec<Option<u32>>,
    /// Whether its instructions access constants or variables.
    has_data: bool,
}

impl Compiled {
    /// Compiles a program. The program may be shared, so that a caller can interpret it if this fails, or before.
    /// Costs some microseconds and up to three system calls.
    pub fn new(verified: impl Into<Arc<Verified>>) -> Result<Self, CompileError> {
        let verified = verified.into();
        let compile::Compiled { code, first, places } = compile::compile(&verified)?;
        let mapping = Mapping::new(&code, first).ok_or(CompileError::NoMemory)?;
        let has_data = (0..places.len()).any(|slot| verified.places(slot) & DATA != 0);
        Ok(Self { verified, mapping, places, has_data })
    }

    /// The program, to start machines with.
    pub fn verified(&self) -> &Verified {
        &self.verified
    }

    /// Bytes of machine code.
    pub fn code_bytes(&self) -> usize {
        self.mapping.bytes()
    }

    /// As [`Machine::run`], with machine code. Words in `regions` are loaded, and short reads of whole words
    /// into the stack carried out, without asking `near`, which must see the same memory under the same
    /// numbers. A panic of `near` ends the process.
    #[inline]
    pub fn run(
        &self,
        machine: &mut Machine,
        lent: Lent<'_>,
        regions: &[NativeRegion<'_>],
        near: &mut impl Near,
    ) -> Outcome {
        let verified = &self.verified;
        let fits = self.fits(&lent) && machine.proven == Some(verified.identity());
        let place = self.places.get(machine.at).copied().flatten();
        let meter = machine.meter.instructions;
        // Machine code must start with a meter that is not exhausted; else the interpreter reports it.
        let (true, Some(place), true) = (fits && meter >= 0, place, machine.ready()) else {
            return machine.run(verified, lent, near);
        };
        let place = (machine.at > 0 || machine.paused).then_some(place);
        let left = [machine.meter.helper_calls, machine.meter.bytes];
        let driver = Driver { machine, verified, fresh: None, lent, near, end: None };
        self.enter(driver, (place, meter, left), regions, |end, driver| match end {
            NativeExit::Returned(result) => driver.returned(result),
            end => driver.outcome(end),
        })
    }

    /// As [`Machine::run_slice`], with machine code.
    pub fn run_slice(
        &self,
        machine: &mut Machine,
        instructions: u64,
        lent: Lent<'_>,
        regions: &[NativeRegion<'_>],
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
        lent: Lent<'_>,
        regions: &[NativeRegion<'_>],
        near: &mut impl Near,
    ) -> Result<Outcome, StartError> {
        let verified = &self.verified;
        admit(verified, context, &budget)?;
        machine.begin_call(verified);
        let instructions = Meter::of_instructions(verified, &budget);
        if !self.fits(&lent) || instructions < 0 {
            machine.begin_verified(verified, context, budget);
            return Ok(machine.run(verified, lent, near));
        }
        let meter = Meter::new(instructions, &budget);
        let left = [meter.helper_calls, meter.bytes];
        let fresh = Some(Fresh { context, budget });
        let driver = Driver { machine, verified, fresh, lent, near, end: None };
        self.enter(driver, (None, instructions, left), regions, |end, driver| match end {
            NativeExit::Returned(result) => Ok(driver.returned(result)),
            end => driver.result(end),
        })
    }

    /// Whether the variables are as long as was verified.
    #[inline]
    fn fits(&self, lent: &Lent<'_>) -> bool {
        let variables = &self.verified.program().variables;
        let fit =
            || lent.own.len() >= variables.own.len() && lent.shared.len() >= variables.shared.len();
        !self.has_data || fit()
    }

    #[inline(always)]
    fn enter<'a, 'l, N: Near, T>(
        &self,
        mut driver: Driver<'a, 'l, N>,
        (place, meter, left): (Option<u32>, i64, [i64; 2]),
        regions: &[NativeRegion<'_>],
        ended: impl FnOnce(NativeExit, &mut Driver<'a, 'l, N>) -> T,
    ) -> T {
        let Driver { machine, fresh, lent, .. } = &mut driver;
        let context = fresh.as_ref().map_or(&machine.context[..], |fresh| fresh.context);
        let start = Start {
            place,
            meter,
            left,
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
        entry::enter(&self.mapping, start, driver, regions, ended)
    }
}

/// What a machine was started with but has not stored yet.
struct Fresh<'a> {
    context: &'a [u8],
    budget: Budget,
}

/// Serves the callbacks of machine code while it runs.
struct Driver<'a, 'l, N> {
    machine: &'a mut Machine,
    verified: &'a Verified,
    fresh: Option<Fresh<'a>>,
    lent: Lent<'l>,
    near: &'a mut N,
    end: Option<fast::FastExit>,
}

impl<N> Driver<'_, '_, N> {
    /// Stores into the machine what it was started with.
    #[inline]
    fn settle(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.machine.begin_verified(self.verified, fresh.context, fresh.budget);
        }
    }
}

impl<N: Near> Driver<'_, '_, N> {
    #[inline]
    fn returned(&mut self, result: u64) -> Outcome {
        self.machine.end();
        Outcome::Returned(result)
    }

    /// The outcome of a run of machine code. If the code has left, the interpreter continues.
    #[inline(never)]
    fn outcome(&mut self, end: NativeExit) -> Outcome {
        self.settle();
        match (end, self.end.take()) {
            (NativeExit::Returned(result), _) => self.returned(result),
            (NativeExit::Stopped, Some(end)) => fast::outcome(self.machine, end),
            (NativeExit::Stopped | NativeExit::Left, _) => {
                let lent = Lent { own: &mut *self.lent.own, shared: &mut *self.lent.shared };
                self.machine.run(self.verified, lent, self.near)
            }
        }
    }

    /// The same as a `Result`, built where it is returned: copying outcomes costs more than a short call.
    #[inline(never)]
    fn result(&mut self, end: NativeExit) -> Result<Outcome, StartError> {
        Ok(self.outcome(end))
    }
}

impl<N: Near> entry::Driver for Driver<'_, '_, N> {
    fn registers(&self) -> &Registers {
        &self.machine.registers
    }

    fn help(&mut self, slot: usize, registers: &mut Registers, left: &mut [i64; 2]) -> bool {
        self.settle();
        self.left(*left);
        let program = self.verified.program();
        let Some(op) = self.verified.ops().get(slot) else {
            return false;
        };
        let lent = Lent { own: &mut *self.lent.own, shared: &mut *self.lent.shared };
        let (mut view, mut rest, mut frames) = self.machine.parts(program, lent);
        let memory = (&mut view, &mut rest, &mut frames);
        let helped = fast::help((program, op, slot), registers, memory, self.near);
        *left = [self.machine.meter.helper_calls, self.machine.meter.bytes];
        match helped {
            Ok(()) => true,
            Err(end) => {
                self.end = Some(end);
                false
            }
        }
    }

    fn left(&mut self, [helper_calls, bytes]: [i64; 2]) {
        if self.fresh.is_none() {
            self.machine.meter.helper_calls = helper_calls;
            self.machine.meter.bytes = bytes;
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
