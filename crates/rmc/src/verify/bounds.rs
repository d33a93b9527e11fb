//! Candidates for the bounds of loops: the thresholds of a widening (Blanchet and others, 2003), which are the constants
//! and registers that a program compares a register with. Loop summarization (`counted.rs`) proves or rejects each.

use alloc::vec::Vec;

use super::structure::written;
use crate::decode::register_bit;
use crate::isa::{AluOp, Instruction, Operand, Register, Width};
use crate::program::Program;

/// Most comparisons of a register in a loop that are considered, which bounds the work of an attempt.
const THRESHOLDS_MAX: usize = 16;

/// The slots of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    pub(super) head: usize,
    /// The last back edge to the head.
    pub(super) end: usize,
}

/// The comparisons of a program.
pub(super) struct Bounds {
    /// Slots of the jumps that compare each register, and with what, in order.
    jumps: [Vec<(usize, Operand)>; Register::COUNT],
    /// Bits of the registers to which a constant is added somewhere.
    pub(super) adds: u16,
    /// The greatest trip count: the budget of instructions.
    pub(super) turns_max: u64,
}

impl Bounds {
    pub(super) fn new(program: &Program, turns_max: u64) -> Self {
        let mut bounds = Self { jumps: Default::default(), adds: 0, turns_max };
        // The constant that each register was set to last in the text.
        let mut constants = [None; Register::COUNT];
        for (slot, instruction) in program.code.iter().enumerate() {
            match *instruction {
                Instruction::JumpIf { dst, src: Operand::Register(src), .. } => {
                    for (register, other) in [(dst, src), (src, dst)] {
                        let with = constants[other.index()].unwrap_or(Operand::Register(other));
                        bounds.jumps[register.index()].push((slot, with));
                    }
                }
                Instruction::JumpIf { dst, src, .. } => {
                    bounds.jumps[dst.index()].push((slot, src));
                }
                Instruction::Alu {
                    width: Width::Double,
                    op: AluOp::Add | AluOp::Sub,
                    dst,
                    src: Operand::Immediate(_),
                } => bounds.adds |= register_bit(dst),
                _ => {}
            }
            if let Some(register) = written(*instruction) {
                constants[register.index()] = match *instruction {
                    Instruction::Alu {
                        op: AluOp::Move, src: src @ Operand::Immediate(_), ..
                    } => Some(src),
                    _ => None,
                };
            }
        }
        bounds
    }

    /// The operands that a register is compared with in a loop.
    pub(super) fn within(
        &self,
        register: Register,
        Loop { head, end }: Loop,
    ) -> impl Iterator<Item = Operand> {
        let all = &self.jumps[register.index()];
        let first = all.partition_point(|(slot, _)| *slot < head);
        let within = all[first..].iter().take_while(move |(slot, _)| *slot <= end);
        within.take(THRESHOLDS_MAX).map(|(_, with)| *with)
    }

    /// Bits of the registers that are compared with a number in a loop.
    pub(super) fn bounded(&self, loops: Loop) -> u16 {
        let is_number = |with| matches!(with, Operand::Immediate(_));
        let is_bounded = |register: &Register| self.within(*register, loops).any(is_number);
        Register::all().filter(is_bounded).map(register_bit).fold(0, |bits, bit| bits | bit)
    }
}
