//! Which registers are read later. What is not can be forgotten where paths meet, so that more of them
//! turn out to be alike; there an error costs precision alone, as what was forgotten cannot be read. Machine
//! code does not compute what nobody reads, and believes it.

use alloc::vec::Vec;

use crate::helpers::Helper;
use crate::isa::{AtomicOp, Instruction, Operand, Register};
use crate::program::Program;

/// What a slot does to registers, and where it goes on.
struct Flow {
    read: u16,
    written: u16,
    /// The slot behind it and the target of its jump; the end of the code where there is none.
    next: [u32; 2],
}

impl Flow {
    fn of(slot: usize, code: &[Instruction]) -> Self {
        let instruction = code[slot];
        let (read, written) = uses(instruction);
        let behind = instruction.falls_through().then(|| slot + instruction.slots());
        let target = instruction.jump_target(slot).and_then(|at| usize::try_from(at).ok());
        let next = |next: Option<usize>| next.map_or(code.len(), |at| at.min(code.len())) as u32;
        Self { read, written, next: [next(behind), next(target)] }
    }
}

/// Bits of registers that are read before they are written, at each slot.
pub(crate) fn live(program: &Program) -> Vec<u16> {
    let code = &program.code;
    let flows: Vec<_> = (0..code.len()).map(|slot| Flow::of(slot, code)).collect();
    // Nothing is read behind the end.
    let mut live = alloc::vec![0u16; code.len() + 1];
    // Loops need some rounds; where they are not enough, registers only look more alive.
    let mut changed = true;
    let mut rounds = 0;
    while changed {
        changed = false;
        rounds += 1;
        if rounds > 64 {
            return alloc::vec![u16::MAX; code.len()];
        }
        for (slot, Flow { read, written, next }) in flows.iter().enumerate().rev() {
            let after = live[next[0] as usize] | live[next[1] as usize];
            let before = after & !written | read;
            changed |= before != live[slot];
            live[slot] = before;
        }
    }
    live
}

fn bit(register: Register) -> u16 {
    1 << register.number()
}

fn of(operand: Operand) -> u16 {
    match operand {
        Operand::Register(register) => bit(register),
        Operand::Immediate(_) => 0,
    }
}

/// Bits of registers that an instruction reads and writes.
pub(crate) fn uses(instruction: Instruction) -> (u16, u16) {
    const CALL: u16 = 0b11_1111;
    match instruction {
        Instruction::Alu { op, dst, src, .. } => {
            let first = if op.is_move() { 0 } else { bit(dst) };
            (first | of(src), bit(dst))
        }
        Instruction::Bytes { dst, .. } => (bit(dst), bit(dst)),
        Instruction::LoadWide { dst, .. } => (0, bit(dst)),
        Instruction::Load { dst, base, .. } => (bit(base), bit(dst)),
        Instruction::Store { base, src, .. } => (bit(base) | of(src), 0),
        Instruction::Atomic { op, base, src, .. } => {
            let expected = if op == AtomicOp::CompareExchange { 1 } else { 0 };
            (bit(base) | bit(src) | expected, 0)
        }
        Instruction::JumpIf { dst, src, .. } => (bit(dst) | of(src), 0),
        Instruction::CallHelper { number } => {
            let count = Helper::with_number(number).map_or(5, |helper| helper.arguments.len());
            ((1 << (count + 1)) - 2, CALL)
        }
        Instruction::CallFunction { .. } => (CALL & !1, CALL),
        Instruction::Exit => (1, 0),
        Instruction::Jump { .. } | Instruction::SecondHalf => (0, 0),
    }
}
