//! Structural checks before any analysis: sizes, targets of jumps and calls, references to data; and the control flow.

use alloc::vec::Vec;
use core::ops::Range;

use super::problem::Problem;
use crate::helpers::Helper;
use crate::isa::{AtomicOp, Instruction, Register, Wide, encode};
use crate::limits::Limits;
use crate::program::Program;

/// Checks the program as a whole, without its slots.
pub(super) fn whole(program: &Program, limits: &Limits) -> Result<(), Problem> {
    if program.code.is_empty() {
        return Err(Problem::NoCode);
    }
    let variables = &program.variables;
    for (what, found, most) in [
        ("instructions", program.code.len(), limits.slots_max),
        ("bytes of constant data", program.constants.len(), limits.constants_bytes_max),
        ("bytes of variables", variables.own.len(), limits.variables_bytes_max),
        ("bytes of shared variables", variables.shared.len(), limits.variables_bytes_max),
        ("declared states", program.states.len(), limits.states_max),
    ] {
        if found > most {
            return Err(Problem::TooLarge { what, found: found as u64, most: most as u64 });
        }
    }
    let mut end = 0;
    for function in &program.functions {
        if function.start != end || function.end <= function.start {
            return Err(Problem::BadFunctions);
        }
        end = function.end;
    }
    if end != program.code.len() {
        return Err(Problem::BadFunctions);
    }
    for state in &program.states {
        if let Some(why) = state.problem(limits.state_bytes_max) {
            return Err(Problem::BadState { name: state.name.clone(), why });
        }
    }
    Ok(())
}

/// Checks a range of slots of a program that passed [`whole`].
pub(super) fn check(program: &Program, slots: Range<usize>) -> Result<(), (usize, Problem)> {
    for (slot, instruction) in program.code.iter().enumerate().take(slots.end).skip(slots.start) {
        one(program, slot, *instruction).map_err(|problem| (slot, problem))?;
    }
    Ok(())
}

fn one(program: &Program, slot: usize, instruction: Instruction) -> Result<(), Problem> {
    let second = slot.checked_sub(1).map(|before| program.code[before]);
    let belongs = matches!(second, Some(Instruction::LoadWide { .. }));
    if belongs != (instruction == Instruction::SecondHalf) {
        return Err(Problem::NoSuchForm);
    }
    if belongs {
        return Ok(());
    }
    encode(instruction).map_err(|_| Problem::NoSuchForm)?;
    if written(instruction) == Some(Register::R10) {
        return Err(Problem::FramePointer);
    }
    let own = program.function_at(slot).ok_or(Problem::BadFunctions)?;
    let function = &program.functions[own];
    if let Some(target) = instruction.jump_target(slot) {
        let within = function.start..function.end;
        let to = usize::try_from(target).ok().filter(|to| within.contains(to));
        let to = to.ok_or(Problem::JumpOutside { target })?;
        if program.code[to] == Instruction::SecondHalf {
            return Err(Problem::IntoTheMiddle { target });
        }
    }
    if slot + instruction.slots() >= function.end && instruction.falls_through() {
        return Err(Problem::FallsOff);
    }
    match instruction {
        Instruction::CallHelper { number } => {
            Helper::with_number(number).ok_or(Problem::UnknownHelper { number })?;
        }
        Instruction::CallFunction { offset } => {
            let target = slot as i64 + 1 + i64::from(offset);
            let functions = &program.functions;
            functions
                .binary_search_by_key(&target, |function| function.start as i64)
                .map_err(|_| Problem::NoFunction { target })?;
        }
        Instruction::LoadWide { value, .. } => data(program, value)?,
        _ => {}
    }
    Ok(())
}

/// Wide loads of addresses may also name the end of the data, as C does.
fn data(program: &Program, value: Wide) -> Result<(), Problem> {
    let (what, at, count, end) = match value {
        Wide::Value(_) => return Ok(()),
        Wide::Constant(at) => ("byte of constant data", at, program.constants.len(), 1),
        Wide::StateHandle(at) => ("state", at, program.states.len(), 0),
        Wide::Variable { shared: false, offset } => {
            ("byte of variables", offset, program.variables.own.len(), 1)
        }
        Wide::Variable { shared: true, offset } => {
            ("byte of shared variables", offset, program.variables.shared.len(), 1)
        }
    };
    let (at, count) = (u64::from(at), count as u64);
    if at < count + end { Ok(()) } else { Err(Problem::NoSuchData { what, at, count }) }
}

/// The register that an instruction writes, but for calls.
pub(super) fn written(instruction: Instruction) -> Option<Register> {
    match instruction {
        Instruction::Alu { dst, .. }
        | Instruction::Bytes { dst, .. }
        | Instruction::LoadWide { dst, .. }
        | Instruction::Load { dst, .. } => Some(dst),
        Instruction::Atomic { op: AtomicOp::CompareExchange, fetch: true, .. } => {
            Some(Register::R0)
        }
        Instruction::Atomic { fetch: true, src, .. } => Some(src),
        _ => None,
    }
}

/// Join points: targets of jumps, starts of functions, and the slots after calls of functions.
pub(super) fn meeting_points(program: &Program) -> Vec<bool> {
    let mut points = alloc::vec![false; program.code.len()];
    for (slot, instruction) in program.code.iter().enumerate() {
        let target = instruction.jump_target(slot).and_then(|target| usize::try_from(target).ok());
        if let Some(point) = target.and_then(|target| points.get_mut(target)) {
            *point = true;
        }
    }
    for function in &program.functions {
        if let Some(point) = points.get_mut(function.start) {
            *point = true;
        }
    }
    points
}

/// For each loop header, a target of a back edge, the last slot that jumps to it.
pub(super) fn loop_ends(program: &Program) -> Vec<Option<u32>> {
    let mut ends = alloc::vec![None; program.code.len()];
    for (slot, instruction) in program.code.iter().enumerate() {
        let target = instruction.jump_target(slot).and_then(|target| usize::try_from(target).ok());
        if let Some(head) = target.filter(|target| *target <= slot) {
            ends[head] = Some(slot as u32);
        }
    }
    ends
}
