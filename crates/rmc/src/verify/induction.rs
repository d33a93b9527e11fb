//! Induction variables: what a path has added to registers since a loop header (Aho, Lam, Sethi, Ullman: Compilers,
//! chapter 9).

use super::structure::written;
use crate::isa::{AluOp, Instruction, Operand, Register, Width};

/// Most counters of a loop.
pub(super) const COUNTERS_MAX: usize = 4;
/// Greatest step of a counter per iteration.
pub(super) const STEP_MAX: u64 = 1 << 20;

/// What a path has added to each counter since the loop header. Dropped when another instruction writes one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Count {
    /// The summarization that it belongs to.
    pub(super) id: u32,
    /// The frame that has the counters.
    pub(super) depth: u8,
    /// Registers, each with what was added; the rest is the same throughout.
    pub(super) added: [(u8, i64); COUNTERS_MAX],
    pub(super) counters: u8,
}

impl Count {
    pub(super) fn added(&self) -> &[(u8, i64)] {
        &self.added[..usize::from(self.counters)]
    }

    /// Applies an instruction of the counters' frame. Returns whether the count still holds.
    pub(super) fn follow(&mut self, instruction: Instruction) -> bool {
        let sum = match instruction {
            Instruction::Alu {
                width: Width::Double,
                op: op @ (AluOp::Add | AluOp::Sub),
                dst,
                src: Operand::Immediate(by),
            } => {
                let by = i64::from(by);
                Some((dst.number(), if op == AluOp::Add { by } else { -by }))
            }
            _ => None,
        };
        let lost = lost(instruction);
        self.added[..usize::from(self.counters)].iter_mut().all(|(register, added)| match sum {
            Some((to, by)) if to == *register => {
                *added = added.saturating_add(by);
                added.unsigned_abs() <= STEP_MAX
            }
            Some(_) => true,
            None => lost >> *register & 1 == 0,
        })
    }
}

/// Bits of the registers that an instruction changes in the frame that runs it.
fn lost(instruction: Instruction) -> u16 {
    const CALL: u16 = 0b11_1111;
    let calls =
        matches!(instruction, Instruction::CallHelper { .. } | Instruction::CallFunction { .. });
    let bit = |register: Register| 1 << register.number();
    let [register] = written(instruction);
    if calls { CALL } else { register.map_or(0, bit) }
}
