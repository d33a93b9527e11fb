//! Induction variables: what a path has added to registers since a loop header (Aho, Lam, Sethi, Ullman: Compilers,
//! chapter 9).

use super::structure::written;
use crate::decode::register_bit;
use crate::isa::{AluOp, Instruction, Operand, Register, Width};

/// Greatest step of a counter per iteration.
pub(super) const STEP_MAX: u32 = 1 << 20;

/// What a path has added to each counter since the loop header. Dropped when another instruction writes one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Count {
    /// The summarization that it belongs to.
    pub(super) id: u32,
    /// The frame that has the counters.
    pub(super) depth: u8,
    /// The registers that are counters, as bits.
    pub(super) counters: u16,
    /// What was added to each of them.
    pub(super) added: [i32; Register::COUNT],
}

impl Count {
    /// Applies an instruction of the counters' frame. Returns whether the count still holds.
    pub(super) fn follow(&mut self, instruction: Instruction) -> bool {
        if let Instruction::Alu {
            width: Width::Double,
            op: op @ (AluOp::Add | AluOp::Sub),
            dst,
            src: Operand::Immediate(by),
        } = instruction
            && self.counters & register_bit(dst) != 0
        {
            let added = &mut self.added[dst.index()];
            let add = if op == AluOp::Add { i32::saturating_add } else { i32::saturating_sub };
            *added = add(*added, by);
            return added.unsigned_abs() <= STEP_MAX;
        }
        const CALL: u16 = 0b11_1111;
        let lost = match instruction {
            Instruction::CallHelper { .. } | Instruction::CallFunction { .. } => CALL,
            _ => written(instruction).map_or(0, register_bit),
        };
        self.counters & lost == 0
    }
}
