//! One call in progress.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use super::call::Rest;
use super::long::Long;
use super::memory::{Lent, View};
use super::meter::Meter;
use super::shadow::Shadow;
use super::{Outcome, Request, Span, Stop, call};
use crate::cost::Cost;
use crate::decode::Area;
use crate::helpers::{Helper, HelperEffect};
use crate::isa::Instruction;
use crate::limits::{Budget, FRAME_BYTES, FRAMES_MAX};
use crate::program::Program;
use crate::verify::Verified;

pub(super) use super::call::Registers;

/// The registers that a frame saves for its caller. Machine code depends on the layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub(super) struct SavedFrame {
    /// The slot after the call.
    pub(super) back: u32,
    /// R6 to R9.
    pub(super) kept: [u64; 4],
}

/// One call in progress. See the module.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub(super) registers: Registers,
    pub(super) at: usize,
    pub(super) depth: usize,
    pub(super) frames: [SavedFrame; FRAMES_MAX],
    pub(super) stack: Vec<u8>,
    pub(super) context: Vec<u8>,
    pub(super) output: Vec<u8>,
    pub(super) output_max: usize,
    pub(super) scratch: Vec<u8>,
    pub(super) meter: Meter,
    /// Whether it is charged.
    pub(super) charged: bool,
    pub(super) pending: Option<Request>,
    /// The helper that is carried out a piece at a time, if one is.
    pub(super) long: Option<Box<Long>>,
    /// What the present slice has, of bytes too; `None` in a run to the end.
    pub(super) slice: Option<u64>,
    pub(super) running: bool,
    /// Whether it has ever paused since its start.
    pub(super) paused: bool,
    pub(super) executed: u64,
    pub(super) shadow: Option<Box<Shadow>>,
    /// The verified program that has made every value in here, if that is certain.
    pub(super) proven: Option<u64>,
}

/// Why a call cannot start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The parameters are shorter than what the program reads of them.
    ContextTooShort {
        /// Bytes that it needs.
        needed: usize,
    },
    /// The parameters are longer than the limit.
    ContextTooLong {
        /// The limit.
        most: usize,
    },
    /// The program's proven worst case is over the budget.
    OverBudget {
        /// The worst case.
        worst: Cost,
    },
}

impl fmt::Display for StartError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ContextTooShort { needed } => {
                write!(out, "the program reads {needed} B of parameters: pass as many")
            }
            Self::ContextTooLong { most } => {
                write!(out, "parameters have at most {most} B: put the rest into memory")
            }
            Self::OverBudget { worst } => write!(
                out,
                "the program may take {} instructions, {} helper calls and {} B, \
                 which is over the budget",
                worst.instructions, worst.helper_calls, worst.bytes
            ),
        }
    }
}

impl core::error::Error for StartError {}

/// Checks that a call may start with these parameters and this budget.
#[inline]
pub(super) fn admit(
    verified: &Verified,
    context: &[u8],
    budget: &Budget,
) -> Result<(), StartError> {
    let needed = verified.context_bytes() as usize;
    if context.len() < needed {
        return Err(StartError::ContextTooShort { needed });
    }
    let most = verified.limits().context_bytes_max;
    if context.len() > most {
        return Err(StartError::ContextTooLong { most });
    }
    if !verified.metered() && !verified.worst().within(budget) {
        return Err(StartError::OverBudget { worst: verified.worst() });
    }
    Ok(())
}

/// Why an answer was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum AnswerError {
    /// The machine waits for none.
    NothingAsked,
    /// The result is not in the helper's range.
    OutOfRange,
    /// There are more bytes than were asked for.
    TooLong,
    /// The lent variables are shorter than at the start of the call.
    WrongVariables,
}

impl fmt::Display for AnswerError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::NothingAsked => "the call waits for no answer",
            Self::OutOfRange => "the result is not in the helper's range",
            Self::TooLong => "there are more bytes than were asked for",
            Self::WrongVariables => "these are not the variables of the call's program",
        })
    }
}

impl core::error::Error for AnswerError {}

/// Why bytes are no call of this program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreError;

impl fmt::Display for RestoreError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("the bytes are no suspended or paused call of this program")
    }
}

impl core::error::Error for RestoreError {}

impl Machine {
    /// A machine that has not started. Its memory is used again by every start.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts a call of a verified program with these parameters.
    #[inline]
    pub fn start(
        &mut self,
        verified: &Verified,
        context: &[u8],
        budget: Budget,
    ) -> Result<(), StartError> {
        admit(verified, context, &budget)?;
        self.begin_verified(verified, context, budget);
        Ok(())
    }

    #[inline]
    pub(super) fn begin_verified(&mut self, verified: &Verified, context: &[u8], budget: Budget) {
        self.output_max = verified.limits().output_bytes_max;
        self.meter = Meter::new(Meter::of_instructions(verified, &budget), &budget);
        self.begin(context, verified.frames(), verified.charges().is_some());
        self.proven = Some(verified.identity());
    }

    /// What a call that has not begun needs to run at all: no output, and a stack.
    #[inline]
    pub(super) fn begin_call(&mut self, verified: &Verified) {
        // The stores dominate short calls: words that have the value already are not stored.
        if !self.output.is_empty() {
            self.output.clear();
        }
        if self.pending.is_some() {
            self.pending = None;
        }
        if self.long.is_some() {
            self.long = None;
        }
        if self.proven.is_some() {
            self.proven = None;
        }
        let stack = verified.frames() * FRAME_BYTES as usize;
        if self.stack.len() != stack {
            self.stack.resize(stack, 0);
        }
    }

    /// The program has returned.
    #[inline]
    pub(super) fn end(&mut self) {
        if self.running {
            self.running = false;
        }
    }

    /// Starts a call of an unverified program, for [`Machine::run_checked`] only.
    pub fn start_unverified(&mut self, program: &Program, context: &[u8], budget: Budget) {
        self.output_max = crate::Limits::DEFAULT.output_bytes_max;
        self.meter = Meter::new(Meter::of_unverified(program, &budget), &budget);
        self.begin(context, FRAMES_MAX, true);
    }

    /// Sets up all but the meter, which is made in its place: a copy as a whole would wait for the words that
    /// have just been written one by one.
    fn begin(&mut self, context: &[u8], frames: usize, charged: bool) {
        self.charged = charged;
        let stack = frames * FRAME_BYTES as usize;
        if self.stack.len() != stack {
            self.stack.resize(stack, 0);
        }
        if self.context.len() == context.len() {
            self.context.copy_from_slice(context);
        } else {
            self.context = context.to_vec();
        }
        self.output.clear();
        self.registers = [0; 16];
        self.registers[1] = Area::Context.base();
        self.registers[2] = context.len() as u64;
        self.registers[10] = frame_pointer(0);
        self.at = 0;
        self.depth = 0;
        self.pending = None;
        self.running = true;
        self.paused = false;
        self.executed = 0;
        // Mostly nothing has to be freed first.
        if self.long.is_some() {
            self.long = None;
        }
        if self.shadow.is_some() {
            self.shadow = None;
        }
        self.proven = None;
    }

    #[inline]
    pub(super) fn ready(&self) -> bool {
        self.running && self.pending.is_none() && self.long.is_none()
    }

    /// The outcome of a run of a machine that is not ready.
    #[cold]
    pub(super) fn why_not(&self) -> Outcome {
        match self.pending {
            Some(request) if self.running => Outcome::Suspended(request),
            _ => Outcome::Stopped(Stop::NotRunning),
        }
    }

    /// What the call waits for.
    pub fn pending(&self) -> Option<&Request> {
        self.pending.as_ref()
    }

    /// What the program has emitted so far.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Instructions that the checked interpreter has executed; the fast one counts none.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Memory of the call that a request names.
    pub fn bytes<'a>(
        &'a self,
        program: &'a Program,
        lent: &'a Lent<'_>,
        span: Span,
    ) -> Option<&'a [u8]> {
        let offset = span.address as u32 as usize;
        let bytes: &[u8] = match Area::of(span.address)? {
            Area::Constants => &program.constants,
            Area::Own => lent.own,
            Area::Shared => lent.shared,
            Area::Context => &self.context,
            Area::Stack => &self.stack,
        };
        bytes.get(offset..offset.checked_add(span.length as usize)?)
    }

    /// Takes the answer to [`Machine::pending`]. `bytes` are written to the buffer of the request; the rest of it is
    /// cleared, and all of it if the result is negative.
    pub fn answer(
        &mut self,
        program: &Program,
        lent: Lent<'_>,
        result: u64,
        bytes: &[u8],
    ) -> Result<(), AnswerError> {
        let request = self.pending.ok_or(AnswerError::NothingAsked)?;
        let helper = Helper::with_number(request.call as u32).ok_or(AnswerError::NothingAsked)?;
        if !helper.returns(result) {
            return Err(AnswerError::OutOfRange);
        }
        self.settle(program, lent, &request, result, bytes)
    }

    /// Copies a part of the bytes that [`Machine::pending`] waits for, at offset `from`, so that an executor can
    /// deliver a long answer in pieces. [`Machine::answer_brought`] completes it. On errors, those of
    /// [`Machine::answer`], nothing is written.
    pub fn bring(
        &mut self,
        program: &Program,
        lent: Lent<'_>,
        from: usize,
        bytes: &[u8],
    ) -> Result<(), AnswerError> {
        let request = self.pending.ok_or(AnswerError::NothingAsked)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let span = request.output.unwrap_or_default();
        let end = from.checked_add(bytes.len()).ok_or(AnswerError::TooLong)?;
        if end > span.length as usize {
            return Err(AnswerError::TooLong);
        }
        let (mut view, _) = self.view(program, lent);
        let address = span.address.wrapping_add(from as u64);
        let place = view.get_mut(address, bytes.len()).ok_or(AnswerError::WrongVariables)?;
        place.copy_from_slice(bytes);
        Ok(())
    }

    /// As [`Machine::answer`], after all bytes were brought. They are cleared if the result is negative.
    pub fn answer_brought(
        &mut self,
        program: &Program,
        lent: Lent<'_>,
        result: u64,
    ) -> Result<(), AnswerError> {
        let Some(request) = self.pending.filter(|_| (result as i64) >= 0) else {
            return self.answer(program, lent, result, &[]);
        };
        let helper = Helper::with_number(request.call as u32).ok_or(AnswerError::NothingAsked)?;
        if !helper.returns(result) {
            return Err(AnswerError::OutOfRange);
        }
        self.pass(&request, result);
        Ok(())
    }

    /// Continues after a helper.
    fn pass(&mut self, request: &Request, result: u64) {
        self.registers[0] = result;
        self.at += 1;
        self.pending = None;
        if let Some(shadow) = &mut self.shadow {
            shadow.called(request);
        }
    }

    /// Continues after a helper, with its result and the bytes that it returns.
    pub(super) fn settle(
        &mut self,
        program: &Program,
        lent: Lent<'_>,
        request: &Request,
        result: u64,
        bytes: &[u8],
    ) -> Result<(), AnswerError> {
        let (mut view, _) = self.view(program, lent);
        let room = request.output.map_or(0, |span| span.length as usize);
        if bytes.len() > room {
            return Err(AnswerError::TooLong);
        }
        if let Some(span) = request.output {
            let place = view.get_mut(span.address, room).ok_or(AnswerError::WrongVariables)?;
            let length = if (result as i64) < 0 { 0 } else { bytes.len() };
            place[..length].copy_from_slice(&bytes[..length]);
            place[length..].fill(0);
        }
        self.pass(request, result);
        Ok(())
    }

    /// Says that the word that the call waits for may not be accessed, which ends it.
    pub fn refuse(&mut self) -> Result<Stop, AnswerError> {
        let request = self.pending.take().ok_or(AnswerError::NothingAsked)?;
        self.running = false;
        Ok(Stop::Refused { slot: self.at, call: request.call })
    }

    /// Ends the call.
    pub fn cancel(&mut self) -> Stop {
        self.running = false;
        self.pending = None;
        self.long = None;
        Stop::Cancelled
    }

    pub(super) fn view<'a>(
        &'a mut self,
        program: &'a Program,
        lent: Lent<'a>,
    ) -> (View<'a>, &'a mut Registers) {
        let view = View::of(program, (&self.context, &mut self.stack), lent);
        (view, &mut self.registers)
    }

    /// Borrows the parts of the machine that a helper needs separately.
    pub(super) fn parts<'a>(
        &'a mut self,
        program: &'a Program,
        lent: Lent<'a>,
    ) -> (View<'a>, Rest<'a>, Frames<'a>) {
        let (_, view, rest, frames) = self.all_parts(program, lent);
        (view, rest, frames)
    }

    /// Borrows the parts of the machine that the interpreter loop needs separately.
    #[inline(always)]
    pub(super) fn all_parts<'a>(
        &'a mut self,
        program: &'a Program,
        lent: Lent<'a>,
    ) -> (&'a mut Registers, View<'a>, Rest<'a>, Frames<'a>) {
        let view = View::of(program, (&self.context, &mut self.stack), lent);
        let rest = Rest {
            meter: &mut self.meter,
            output: &mut self.output,
            output_max: self.output_max,
            scratch: &mut self.scratch,
            long: &mut self.long,
            slice: self.slice,
        };
        let frames =
            Frames { depth: &mut self.depth, frames: &mut self.frames, pending: &mut self.pending };
        (&mut self.registers, view, rest, frames)
    }

    /// The call as bytes, to be restored on another thread or at another place.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut number = |value: u64| out.extend_from_slice(&value.to_le_bytes());
        self.registers[..11].iter().for_each(|register| number(*register));
        number(self.at as u64);
        number(self.depth as u64);
        for frame in &self.frames[1..=self.depth] {
            number(u64::from(frame.back));
            frame.kept.iter().for_each(|register| number(*register));
        }
        number(self.meter.instructions as u64);
        number(self.meter.helper_calls as u64);
        number(self.meter.bytes as u64);
        number(u64::from(self.pending.is_some()));
        // One more than what is done of a long helper.
        number(self.long.as_ref().map_or(0, |long| long.done() as u64 + 1));
        number(self.context.len() as u64);
        number(self.output.len() as u64);
        let frames = (self.depth + 1) * FRAME_BYTES as usize;
        out.extend_from_slice(&self.context);
        out.extend_from_slice(&self.output);
        out.extend_from_slice(&self.stack[..frames.min(self.stack.len())]);
        out
    }

    /// A call of this program from the bytes that [`Machine::to_bytes`] made of one that was suspended,
    /// had paused, or had not run yet. The bytes are believed as to what registers hold: take them from executors
    /// only. Nonsense is refused or ends in a [`super::Fault`].
    pub fn from_bytes(verified: &Verified, bytes: &[u8]) -> Result<Self, RestoreError> {
        let mut reader = ByteReader { bytes };
        let mut machine =
            Self { running: true, charged: verified.charges().is_some(), ..Self::default() };
        for register in 0..11 {
            machine.registers[register] = reader.number()?;
        }
        let code = verified.program().code.len();
        machine.at = reader.below(code)?;
        machine.depth = reader.below(verified.frames())?;
        for at in 1..=machine.depth {
            machine.frames[at].back = reader.below(code)? as u32;
            for kept in 0..4 {
                machine.frames[at].kept[kept] = reader.number()?;
            }
        }
        // A call that has not run yet may lack the instructions of its first function.
        let mut left = |least: i64| match reader.number()? as i64 {
            value if value < least => Err(RestoreError),
            value => Ok(value),
        };
        machine.meter.instructions = left(-(code as i64))?;
        machine.meter.helper_calls = left(0)?;
        machine.meter.bytes = left(0)?;
        let pending = reader.below(2)? == 1;
        let long = reader.number()?;
        let limits = verified.limits();
        machine.output_max = limits.output_bytes_max;
        let context = reader.below(limits.context_bytes_max + 1)?;
        let output = reader.below(limits.output_bytes_max + 1)?;
        if context < verified.context_bytes() as usize {
            return Err(RestoreError);
        }
        machine.context = reader.take(context)?.to_vec();
        machine.output = reader.take(output)?.to_vec();
        machine.stack = reader.take((machine.depth + 1) * FRAME_BYTES as usize)?.to_vec();
        machine.stack.resize(verified.frames() * FRAME_BYTES as usize, 0);
        if !reader.bytes.is_empty() || machine.registers[10] != frame_pointer(machine.depth) {
            return Err(RestoreError);
        }
        if pending || long > 0 {
            let again = machine.request_again(verified).ok_or(RestoreError)?;
            match (pending, long.checked_sub(1)) {
                (true, None) if again.call.suspends() => machine.pending = Some(again),
                (false, Some(done))
                    if !again.call.suspends() && done <= u64::from(again.inputs[0].length) =>
                {
                    machine.long = Some(Box::new(Long::new(again, done as usize)));
                }
                _ => return Err(RestoreError),
            }
        }
        Ok(machine)
    }

    /// The request of a call that has been restored at a helper, or within a long one.
    fn request_again(&self, verified: &Verified) -> Option<Request> {
        let program = verified.program();
        let Some(Instruction::CallHelper { number }) = program.code.get(self.at) else {
            return None;
        };
        let helper = Helper::with_number(*number)?;
        let request = call::request(helper, &self.registers, &program.states).ok()?;
        // Variables are not available here; the answer checks them.
        let held = |span: &Span, writes: bool| match Area::of(span.address) {
            _ if span.length == 0 => true,
            Some(Area::Own | Area::Shared) => true,
            Some(Area::Context | Area::Constants) if writes => false,
            _ => self.bytes(program, &Lent::default(), *span).is_some(),
        };
        let holds = request.inputs.iter().all(|span| held(span, false))
            && request.output.iter().all(|span| held(span, true));
        (helper.effect != HelperEffect::Output && holds).then_some(request)
    }
}

/// The frames of a machine.
pub(super) struct Frames<'a> {
    pub(super) depth: &'a mut usize,
    pub(super) frames: &'a mut [SavedFrame; FRAMES_MAX],
    pub(super) pending: &'a mut Option<Request>,
}

impl Frames<'_> {
    /// Makes a frame that returns to `back`; false when there is none left.
    #[inline]
    pub(super) fn enter(&mut self, back: usize, registers: &mut Registers) -> bool {
        let Some(frame) = self.frames.get_mut(*self.depth + 1) else {
            return false;
        };
        frame.back = back as u32;
        frame.kept.copy_from_slice(&registers[6..10]);
        *self.depth += 1;
        registers[10] = frame_pointer(*self.depth);
        true
    }

    /// Leaves a frame. Returns the return slot, or `None` for the last frame.
    #[inline]
    pub(super) fn leave(&mut self, registers: &mut Registers) -> Option<usize> {
        let below = self.depth.checked_sub(1)?;
        let frame = self.frames[*self.depth];
        *self.depth = below;
        registers[6..10].copy_from_slice(&frame.kept);
        registers[10] = frame_pointer(below);
        Some(frame.back as usize)
    }
}

/// R10 of the frame at this depth.
pub(in crate::run) fn frame_pointer(depth: usize) -> u64 {
    Area::Stack.base() + (depth as u64 + 1) * u64::from(FRAME_BYTES)
}

struct ByteReader<'a> {
    bytes: &'a [u8],
}

impl<'a> ByteReader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], RestoreError> {
        let (front, rest) = self.bytes.split_at_checked(length).ok_or(RestoreError)?;
        self.bytes = rest;
        Ok(front)
    }

    fn number(&mut self) -> Result<u64, RestoreError> {
        let bytes = self.take(8)?.try_into().map_err(|_| RestoreError)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn below(&mut self, bound: usize) -> Result<usize, RestoreError> {
        let number = usize::try_from(self.number()?).map_err(|_| RestoreError)?;
        if number < bound { Ok(number) } else { Err(RestoreError) }
    }
}
