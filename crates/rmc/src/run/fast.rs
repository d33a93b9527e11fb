//! The interpreter of verified programs.
//!
//! It has the bounds checks of safe Rust and no others. The loop is one match; a macro has the table of its arms, so
//! that the function around it stays readable.

use super::call::{self, Called, Rest};
use super::machine::{Frames, Machine, Registers};
use super::memory::{Lent, View};
use super::meter::Meter;
use super::{Fault, FaultKind, Near, Outcome, Reply, Request, Resource, Stop};
use crate::decode::{Code, Op};
use crate::helpers::{BUFFER_BYTES_MAX, Call};
use crate::isa::{AtomicOp, Instruction, Width, alu, byte_swap};
use crate::program::Program;
use crate::verify::Verified;

/// Why the loop ends; the machine's slot is that of the instruction that ends it.
pub(super) enum FastExit {
    Returned,
    Suspended,
    /// The slice is used up, and the call continues at this slot.
    Paused(usize),
    /// One operation has been done, which is all that was wanted.
    Stepped,
    Stopped(Stop),
    Fault(FaultKind),
}

/// Assigns the destination and advances.
macro_rules! set {
    ($op:ident, ($machine:ident, $at:ident, $left:ident, $aside:ident, $view:ident), $value:expr) => {{
        $machine.registers[usize::from($op.dst & 15)] = $value;
        $at += 1 + usize::from($op.code == Code::LoadWide);
    }};
}

/// Jumps when the condition holds, and pays for it.
macro_rules! jump {
    ($op:ident, ($machine:ident, $at:ident, $left:ident, $aside:ident, $view:ident), $holds:expr) => {{
        if $holds {
            $left -= i64::from($op.extra);
            if $left < 0 {
                break spent($left, $aside, $at, $op.offset as usize);
            }
            $at = $op.offset as usize;
        } else {
            $at += 1;
        }
    }};
}

/// Loads a number and widens it.
macro_rules! load {
    ($op:ident, $b:ident, ($machine:ident, $at:ident, $left:ident, $aside:ident, $view:ident),
     $number:ty, |$value:ident| $widen:expr) => {{
        let address = $b.wrapping_add($op.offset as i64 as u64);
        let Some(bytes) = $view!().load(address) else {
            break out_of_bounds(address, size_of::<$number>());
        };
        let $value = <$number>::from_le_bytes(bytes);
        $machine.registers[usize::from($op.dst & 15)] = $widen;
        $at += 1;
    }};
}

/// Loads `$count` numbers of 64 bits.
macro_rules! loads {
    ($count:literal, ($machine:ident, $at:ident, $left:ident, $aside:ident, $view:ident), $ops:ident) => {{
        let behind = $at + $count;
        while $at < behind {
            let Some(op) = $ops.get($at) else {
                break;
            };
            let base = $machine.registers[usize::from(op.src & 15)];
            let address = base.wrapping_add(op.offset as i64 as u64);
            let Some(bytes) = $view!().load(address) else {
                break;
            };
            $machine.registers[usize::from(op.dst & 15)] = u64::from_le_bytes(bytes);
            $at += 1;
        }
        if $at < behind {
            break lost_load($machine, $ops, $at);
        }
    }};
}

/// Stores a number.
macro_rules! store {
    ($op:ident, $a:ident, $b:ident, ($machine:ident, $at:ident, $left:ident, $aside:ident, $view:ident),
     $number:ty) => {{
        let address = $a.wrapping_add($op.offset as i64 as u64);
        if $view!().store(address, ($b as $number).to_le_bytes()).is_none() {
            break out_of_bounds(address, size_of::<$number>());
        }
        $at += 1;
    }};
}

/// Loads a word of host memory: `$sums` slots before the call, `$copies` after it, and a jump if `$asks`.
macro_rules! word {
    ($sums:literal, $copies:literal, $asks:literal, $op:ident, ($a:ident, $b:ident),
     ($machine:ident, $at:ident, $left:ident, $aside:ident, $view:ident),
     ($ops:ident, $near:ident)) => {{
        ($machine.registers[1], $machine.registers[2]) = ($a, $b);
        let value = match $near.load_u64($a, $b) {
            Reply::Now(value) => value,
            reply => {
                $at += 2 + $sums;
                break word_later(reply, $at, &$machine.registers, &mut $machine.pending);
            }
        };
        $machine.registers[0] = value;
        if $copies > 0 {
            $machine.registers[($op.extra & 15) as usize] = value;
        }
        $at += 3 + $sums + $copies;
        if $asks {
            let Some(op) = $ops.get($at) else {
                break FastExit::Fault(FaultKind::LostControl);
            };
            let first = $machine.registers[usize::from(op.dst & 15)];
            let second = $machine.registers[usize::from(op.src & 15)];
            let equal = first == second.wrapping_add(op.immediate as i64 as u64);
            jump!(op, ($machine, $at, $left, $aside, $view), equal == (op.code == Code::Equal));
        }
    }};
}

/// Every arm that belongs into the loop; `$m` are its variables.
macro_rules! dispatch {
    ($op:ident, $a:ident, $b:ident, $m:tt, ($ops:ident, $near:ident); $($rest:tt)*) => {
        match $op.code {
            Code::Add => set!($op, $m, $a.wrapping_add($b)),
            Code::Sub => set!($op, $m, $a.wrapping_sub($b)),
            Code::Mul => set!($op, $m, $a.wrapping_mul($b)),
            Code::Or => set!($op, $m, $a | $b),
            Code::And => set!($op, $m, $a & $b),
            Code::Xor => set!($op, $m, $a ^ $b),
            Code::ShiftLeft => set!($op, $m, $a.wrapping_shl($b as u32)),
            Code::ShiftRight => set!($op, $m, $a.wrapping_shr($b as u32)),
            Code::ShiftRightSigned => set!($op, $m, ($a as i64).wrapping_shr($b as u32) as u64),
            Code::Move => set!($op, $m, $b),
            Code::Add32 => set!($op, $m, u64::from(($a as u32).wrapping_add($b as u32))),
            Code::Sub32 => set!($op, $m, u64::from(($a as u32).wrapping_sub($b as u32))),
            Code::Mul32 => set!($op, $m, u64::from(($a as u32).wrapping_mul($b as u32))),
            Code::Or32 => set!($op, $m, u64::from($a as u32 | $b as u32)),
            Code::And32 => set!($op, $m, u64::from($a as u32 & $b as u32)),
            Code::Xor32 => set!($op, $m, u64::from($a as u32 ^ $b as u32)),
            Code::ShiftLeft32 => set!($op, $m, u64::from(($a as u32).wrapping_shl($b as u32))),
            Code::ShiftRight32 => set!($op, $m, u64::from(($a as u32).wrapping_shr($b as u32))),
            Code::ShiftRightSigned32 => {
                set!($op, $m, u64::from(($a as i32).wrapping_shr($b as u32) as u32))
            }
            Code::Move32 => set!($op, $m, u64::from($b as u32)),
            Code::LoadWide => {
                set!($op, $m, u64::from($op.extra) << 32 | u64::from($op.immediate as u32))
            }
            Code::Load8 => load!($op, $b, $m, u8, |value| u64::from(value)),
            Code::Load16 => load!($op, $b, $m, u16, |value| u64::from(value)),
            Code::Load32 => load!($op, $b, $m, u32, |value| u64::from(value)),
            Code::Load64 => load!($op, $b, $m, u64, |value| value),
            Code::LoadSigned8 => load!($op, $b, $m, i8, |value| i64::from(value) as u64),
            Code::LoadSigned16 => load!($op, $b, $m, i16, |value| i64::from(value) as u64),
            Code::LoadSigned32 => load!($op, $b, $m, i32, |value| i64::from(value) as u64),
            Code::Store8 => store!($op, $a, $b, $m, u8),
            Code::Store16 => store!($op, $a, $b, $m, u16),
            Code::Store32 => store!($op, $a, $b, $m, u32),
            Code::Store64 => store!($op, $a, $b, $m, u64),
            Code::Jump => jump!($op, $m, true),
            Code::Equal => jump!($op, $m, $a == $b),
            Code::Greater => jump!($op, $m, $a > $b),
            Code::GreaterEqual => jump!($op, $m, $a >= $b),
            Code::Set => jump!($op, $m, $a & $b != 0),
            Code::NotEqual => jump!($op, $m, $a != $b),
            Code::SignedGreater => jump!($op, $m, $a as i64 > $b as i64),
            Code::SignedGreaterEqual => jump!($op, $m, $a as i64 >= $b as i64),
            Code::Less => jump!($op, $m, $a < $b),
            Code::LessEqual => jump!($op, $m, $a <= $b),
            Code::SignedLess => jump!($op, $m, ($a as i64) < $b as i64),
            Code::SignedLessEqual => jump!($op, $m, $a as i64 <= $b as i64),
            Code::Equal32 => jump!($op, $m, $a as u32 == $b as u32),
            Code::Greater32 => jump!($op, $m, $a as u32 > $b as u32),
            Code::GreaterEqual32 => jump!($op, $m, $a as u32 >= $b as u32),
            Code::Set32 => jump!($op, $m, $a as u32 & $b as u32 != 0),
            Code::NotEqual32 => jump!($op, $m, $a as u32 != $b as u32),
            Code::SignedGreater32 => jump!($op, $m, $a as i32 > $b as i32),
            Code::SignedGreaterEqual32 => jump!($op, $m, $a as i32 >= $b as i32),
            Code::Less32 => jump!($op, $m, ($a as u32) < $b as u32),
            Code::LessEqual32 => jump!($op, $m, $a as u32 <= $b as u32),
            Code::SignedLess32 => jump!($op, $m, ($a as i32) < $b as i32),
            Code::SignedLessEqual32 => jump!($op, $m, $a as i32 <= $b as i32),
            Code::Loads2 => loads!(2, $m, $ops),
            Code::Loads3 => loads!(3, $m, $ops),
            Code::Word => word!(0, 0, false, $op, ($a, $b), $m, ($ops, $near)),
            Code::WordIf => word!(0, 0, true, $op, ($a, $b), $m, ($ops, $near)),
            Code::WordKept => word!(0, 1, false, $op, ($a, $b), $m, ($ops, $near)),
            Code::WordKeptIf => word!(0, 1, true, $op, ($a, $b), $m, ($ops, $near)),
            Code::SumWord => word!(1, 0, false, $op, ($a, $b), $m, ($ops, $near)),
            Code::SumWordIf => word!(1, 0, true, $op, ($a, $b), $m, ($ops, $near)),
            Code::SumWordKept => word!(1, 1, false, $op, ($a, $b), $m, ($ops, $near)),
            Code::SumWordKeptIf => word!(1, 1, true, $op, ($a, $b), $m, ($ops, $near)),
            $($rest)*
        }
    };
}

#[inline]
pub(super) fn run(
    machine: &mut Machine,
    verified: &Verified,
    lent: Lent<'_>,
    near: &mut impl Near,
) -> Outcome {
    match interpret::<false>(machine, verified, lent.own, lent.shared, near) {
        FastExit::Returned => {
            machine.running = false;
            Outcome::Returned(machine.registers[0])
        }
        end => outcome(machine, end),
    }
}

/// The end of a run. Outcomes are built where they are returned: copying them costs more than a short
/// call.
#[inline]
pub(super) fn outcome(machine: &mut Machine, end: FastExit) -> Outcome {
    let slot = machine.at;
    machine.running = matches!(end, FastExit::Suspended | FastExit::Paused(_));
    match end {
        FastExit::Returned => Outcome::Returned(machine.registers[0]),
        FastExit::Suspended => match machine.pending {
            Some(request) => Outcome::Suspended(request),
            None => Outcome::Stopped(Stop::NotRunning),
        },
        FastExit::Paused(slot) => {
            machine.at = slot;
            machine.paused = true;
            Outcome::Paused
        }
        FastExit::Stopped(stop) => Outcome::Stopped(stop),
        FastExit::Stepped => Outcome::Stopped(Stop::NotRunning),
        FastExit::Fault(kind) => Outcome::Stopped(Stop::Fault(Fault { slot, kind })),
    }
}

/// Runs the interpreter loop. With `ONCE` it does one operation, whether its slot is marked or not.
///
/// The lent variables are passed in registers: the caller has just stored their parts word by word, so that loading
/// them as a whole would stall (store forwarding).
#[inline(never)]
fn interpret<const ONCE: bool>(
    machine: &mut Machine,
    verified: &Verified,
    own: &mut [u8],
    shared: &mut [u8],
    near: &mut impl Near,
) -> FastExit {
    let ops = if ONCE { verified.ops() } else { verified.fused() };
    let program = verified.program();
    let mut at = machine.at;
    let mut left = machine.meter.instructions;
    let aside = machine.meter.instructions_aside;
    // What few operations need is done apart: nothing of it is made ready at the start of a short run.
    macro_rules! lent {
        () => {
            Lent { own: &mut *own, shared: &mut *shared }
        };
    }
    macro_rules! view {
        () => {
            View::of(program, (&machine.context, &mut machine.stack), lent!())
        };
    }
    let end = loop {
        let Some(op) = ops.get(at) else {
            break FastExit::Fault(FaultKind::LostControl);
        };
        let a = machine.registers[usize::from(op.dst & 15)];
        let b =
            machine.registers[usize::from(op.src & 15)].wrapping_add(op.immediate as i64 as u64);
        dispatch! { op, a, b, (machine, at, left, aside, view), (ops, near);
            Code::Rare => set!(op, (machine, at, left, aside, view), rare(program, at, a, b)),
            Code::HelperRead => match read(true, &mut machine.registers, &mut view!(), &mut machine.meter, near) {
                Ok(()) => at += 1,
                Err(said) => match apart(machine, program, (op, at), (left, aside), lent!(), (near, said)) {
                    Ok(next) => at = next,
                    Err(end) => break end,
                },
            },
            Code::Atomic | Code::HelperLoad | Code::Helper | Code::Call => {
                left -= i64::from(op.extra);
                match apart(machine, program, (op, at), (left, aside), lent!(), (near, None)) {
                    Ok(next) => at = next,
                    Err(end) => break end,
                }
            }
            Code::Exit if machine.depth == 0 => break FastExit::Returned,
            Code::Exit => at = leave(machine),
            Code::Moves => match moves(ops, op, at, &mut machine.registers) {
                Some(behind) => at = behind,
                None => break FastExit::Fault(FaultKind::LostControl),
            },
            Code::Mark => match marked(machine, verified, (op, at), (left, aside), lent!(), near) {
                (FastExit::Stepped, next) => (at, left) = next,
                (end, last) => {
                    (at, left) = last;
                    break end;
                }
            },
            Code::Trap => break FastExit::Fault(FaultKind::Unreachable),
        }
        if ONCE {
            break FastExit::Stepped;
        }
    };
    machine.at = at;
    machine.meter.instructions = left;
    end
}

/// Charges a marked slot and executes its operation, after which the call pauses if the slice is exceeded. Returns the
/// next slot and what is left of the meter.
#[inline(never)]
fn marked(
    machine: &mut Machine,
    verified: &Verified,
    (op, at): (&Op, usize),
    (left, aside): (i64, i64),
    lent: Lent<'_>,
    near: &mut impl Near,
) -> (FastExit, (usize, i64)) {
    let left = left - i64::from(op.extra);
    if left < 0 && left + aside < 0 {
        return (over(at), (at, left));
    }
    machine.at = at;
    machine.meter.instructions = left;
    let end = match interpret::<true>(machine, verified, lent.own, lent.shared, near) {
        FastExit::Stepped if machine.meter.instructions < 0 => FastExit::Paused(machine.at),
        end => end,
    };
    (end, (machine.at, machine.meter.instructions))
}

/// Executes atomics, helpers and calls of functions, which have been charged. Returns what comes next. A helper that
/// was tried has a reply of the executor already.
#[inline(never)]
fn apart(
    machine: &mut Machine,
    program: &Program,
    (op, at): (&Op, usize),
    (left, aside): (i64, i64),
    lent: Lent<'_>,
    (near, said): (&mut impl Near, Option<Reply>),
) -> Result<usize, FastExit> {
    let (registers, mut view, mut rest, mut frames) = machine.all_parts(program, lent);
    match op.code {
        Code::Atomic => {
            atomic(program.code[at], registers, &mut view).map_err(FastExit::Fault)?;
            Ok(at + 1)
        }
        Code::Call => {
            enter((op, at), (left, aside), registers, &mut frames)?;
            Ok(op.offset as usize)
        }
        code => {
            let memory = (&mut view, &mut rest, &mut frames);
            if code == Code::HelperRead {
                help_said((program, op, at), registers, memory, near, said)?;
            } else {
                help((program, op, at), registers, memory, near)?;
            }
            Ok(at + 1)
        }
    }
}

/// Leaves a frame that is not the last one. Returns the return slot.
#[inline(never)]
fn leave(machine: &mut Machine) -> usize {
    let frames = &mut machine.frames;
    let mut frames = Frames { depth: &mut machine.depth, frames, pending: &mut machine.pending };
    frames.leave(&mut machine.registers).unwrap_or(usize::MAX)
}

/// Calls a function of the program, which has been charged.
#[inline(always)]
fn enter(
    (op, at): (&Op, usize),
    (left, aside): (i64, i64),
    registers: &mut Registers,
    frames: &mut Frames<'_>,
) -> Result<(), FastExit> {
    if left < 0 && left + aside < 0 {
        return Err(over(at));
    }
    if !frames.enter(at + 1, registers) {
        return Err(FastExit::Fault(FaultKind::TooDeep));
    }
    if left < 0 { Err(FastExit::Paused(op.offset as usize)) } else { Ok(()) }
}

/// Executes several moves. Returns the slot after them.
#[inline(always)]
fn moves(ops: &[Op], first: &Op, at: usize, registers: &mut Registers) -> Option<usize> {
    let behind = at + first.extra as usize;
    for op in ops.get(at..behind)? {
        let from = registers[usize::from(op.src & 15)];
        registers[usize::from(op.dst & 15)] = from.wrapping_add(op.immediate as i64 as u64);
    }
    Some(behind)
}

/// Calls the helper of an operation; R0 gets the result.
#[inline(always)]
pub(super) fn help(
    (program, op, at): (&Program, &Op, usize),
    registers: &mut Registers,
    (view, rest, frames): (&mut View<'_>, &mut Rest<'_>, &mut Frames<'_>),
    near: &mut impl Near,
) -> Result<(), FastExit> {
    if op.code == Code::HelperLoad {
        match near.load_u64(registers[1], registers[2]) {
            Reply::Now(value) => registers[0] = value,
            reply => return Err(word_later(reply, at, registers, frames.pending)),
        }
        return Ok(());
    }
    let quick = op.code == Code::HelperRead;
    match read(quick, registers, view, rest.meter, near) {
        Ok(()) => Ok(()),
        Err(said) => help_said((program, op, at), registers, (view, rest, frames), near, said),
    }
}

/// The general form, given the executor's reply if it was asked already.
#[inline(always)]
fn help_said(
    (program, op, at): (&Program, &Op, usize),
    registers: &mut Registers,
    (view, rest, frames): (&mut View<'_>, &mut Rest<'_>, &mut Frames<'_>),
    near: &mut impl Near,
    said: Option<Reply>,
) -> Result<(), FastExit> {
    match helper((program, op), registers, view, rest, near, said) {
        Ok((Called::Done(result), _)) => registers[0] = result,
        called => return Err(ended(called, at, frames.pending)),
    }
    if rest.meter.bytes_spent() { Err(FastExit::Paused(at + 1)) } else { Ok(()) }
}

/// The end of a run after a charge that exceeds what is left: the budget is exhausted, or only the slice, and the call
/// pauses at `target`.
#[cold]
fn spent(left: i64, aside: i64, slot: usize, target: usize) -> FastExit {
    if left + aside < 0 { over(slot) } else { FastExit::Paused(target) }
}

fn over(slot: usize) -> FastExit {
    FastExit::Stopped(Stop::Budget { slot, resource: Resource::Instructions })
}

/// Handles a load that cannot be executed.
#[cold]
fn lost_load(machine: &Machine, ops: &[Op], at: usize) -> FastExit {
    ops.get(at).map_or(FastExit::Fault(FaultKind::LostControl), |op| {
        let base = machine.registers[usize::from(op.src & 15)];
        out_of_bounds(base.wrapping_add(op.offset as i64 as u64), 8)
    })
}

fn out_of_bounds(address: u64, length: usize) -> FastExit {
    FastExit::Fault(FaultKind::OutOfBounds { address, length: length as u32 })
}

/// The fast path of the helper `read`. If it does not apply, it has no effect, and the general form continues with the
/// executor's reply, if it was asked.
#[inline]
fn read(
    quick: bool,
    registers: &mut Registers,
    view: &mut View<'_>,
    meter: &mut Meter,
    near: &mut impl Near,
) -> Result<(), Option<Reply>> {
    let [region, offset, address, length] =
        [registers[1], registers[2], registers[3], registers[4]];
    let paid = meter.helper_calls > 0 && meter.bytes >= 0 && length <= meter.bytes as u64;
    if !quick || !paid || length == 0 || length > u64::from(BUFFER_BYTES_MAX) {
        return Err(None);
    }
    let out = view.get_mut(address, length as usize).ok_or(None)?;
    match near.read(region, offset, out) {
        Reply::Now(0) => registers[0] = 0,
        reply => return Err(Some(reply)),
    }
    meter.helper_calls -= 1;
    meter.bytes -= length as i64;
    Ok(())
}

/// Rare arithmetic, executed from the original instruction.
#[inline(never)]
fn rare(program: &Program, at: usize, a: u64, b: u64) -> u64 {
    let instruction = program.code[at];
    match instruction {
        Instruction::Alu { width, op, .. } => alu(width, op, a, b),
        Instruction::Bytes { order, size, .. } => byte_swap(order, size, a),
        _ => a,
    }
}

#[cold]
fn word_later(
    reply: Reply,
    slot: usize,
    registers: &Registers,
    pending: &mut Option<Request>,
) -> FastExit {
    let call = Call::LoadU64;
    if reply == Reply::Refused {
        return FastExit::Stopped(Stop::Refused { slot, call });
    }
    *pending = Some(call::word(registers));
    FastExit::Suspended
}

/// A call and its request.
type Answer = Result<(Called, Request), FaultKind>;

#[inline(never)]
fn helper(
    (program, op): (&Program, &Op),
    registers: &Registers,
    view: &mut View<'_>,
    rest: &mut Rest<'_>,
    near: &mut impl Near,
    said: Option<Reply>,
) -> Answer {
    let helper = call::helper(op.immediate)?;
    let request = call::request(helper, registers, call::states(program))?;
    Ok((call::perform(helper, &request, view, rest, near, said)?, request))
}

#[cold]
fn ended(answer: Answer, slot: usize, pending: &mut Option<Request>) -> FastExit {
    let (called, request) = match answer {
        Ok(called) => called,
        Err(kind) => return FastExit::Fault(kind),
    };
    let call = request.call;
    match called {
        Called::Done(_) => FastExit::Fault(FaultKind::LostControl),
        Called::Later => {
            *pending = Some(request);
            FastExit::Suspended
        }
        Called::Long => FastExit::Paused(slot),
        Called::Refused => FastExit::Stopped(Stop::Refused { slot, call }),
        Called::BadReply => FastExit::Stopped(Stop::BadReply { slot, call }),
        Called::Over(resource) => FastExit::Stopped(Stop::Budget { slot, resource }),
    }
}

/// Executes an atomic instruction. The thread that runs the machine has exclusive access to the variables, so plain
/// loads and stores suffice.
pub(super) fn atomic(
    instruction: Instruction,
    registers: &mut Registers,
    view: &mut View<'_>,
) -> Result<(), FaultKind> {
    let Instruction::Atomic { width, op, fetch, base, offset, src } = instruction else {
        return Err(FaultKind::LostControl);
    };
    let length = if width == Width::Word { 4 } else { 8 };
    let address = registers[base.index()].wrapping_add(offset as i64 as u64);
    if !address.is_multiple_of(length as u64) {
        return Err(FaultKind::Misaligned);
    }
    let fault = FaultKind::OutOfBounds { address, length: length as u32 };
    let place = view.get_mut(address, length).ok_or(fault)?;
    let mut word = [0; 8];
    word[..length].copy_from_slice(place);
    let old = u64::from_le_bytes(word);
    let operand = registers[src.index()];
    let new = match op {
        AtomicOp::Add => old.wrapping_add(operand),
        AtomicOp::Or => old | operand,
        AtomicOp::And => old & operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Exchange => operand,
        AtomicOp::CompareExchange => {
            let expected = registers[0];
            let expected = if length == 4 { expected & 0xffff_ffff } else { expected };
            if old == expected { operand } else { old }
        }
    };
    place.copy_from_slice(&new.to_le_bytes()[..length]);
    if fetch {
        let to = if op == AtomicOp::CompareExchange { 0 } else { src.index() };
        registers[to] = old;
    }
    Ok(())
}
