//! Registers that an instruction reads and writes, for liveness analysis and for the compiler.

use crate::helpers::Helper;
use crate::isa::{AtomicOp, Instruction, Operand, Register};

/// Bits of registers that an instruction reads and writes.
pub(crate) fn uses(instruction: Instruction) -> (u16, u16) {
    const CALL: u16 = 0b11_1111;
    match instruction {
        Instruction::Alu { op, dst, src, .. } => {
            let first = if op.is_move() { 0 } else { register_bit(dst) };
            (first | of(src), register_bit(dst))
        }
        Instruction::Bytes { dst, .. } => (register_bit(dst), register_bit(dst)),
        Instruction::LoadWide { dst, .. } => (0, register_bit(dst)),
        Instruction::Load { dst, base, .. } => (register_bit(base), register_bit(dst)),
        Instruction::Store { base, src, .. } => (register_bit(base) | of(src), 0),
        Instruction::Atomic { op, base, src, .. } => {
            let expected = if op == AtomicOp::CompareExchange { 1 } else { 0 };
            (register_bit(base) | register_bit(src) | expected, 0)
        }
        Instruction::JumpIf { dst, src, .. } => (register_bit(dst) | of(src), 0),
        Instruction::CallHelper { number } => {
            let count = Helper::with_number(number).map_or(5, |helper| helper.arguments.len());
            ((1 << (count + 1)) - 2, CALL)
        }
        Instruction::CallFunction { .. } => (CALL & !1, CALL),
        Instruction::Exit => (1, 0),
        Instruction::Jump { .. } | Instruction::SecondHalf => (0, 0),
    }
}

/// The bit of a register in a set of registers.
pub(crate) fn register_bit(register: Register) -> u16 {
    1 << register.number()
}

/// The bit of an operand, if it is a register.
fn of(operand: Operand) -> u16 {
    match operand {
        Operand::Register(register) => register_bit(register),
        Operand::Immediate(_) => 0,
    }
}
