//! Candidates for the bounds of loops, from the text of a program: the constants and registers that it compares with.
//!
//! They are a heuristic: loop summarization (`counted.rs`) proves or rejects each, so a wrong one costs time alone.

use alloc::vec::Vec;

use super::structure::written;
use crate::isa::{AluOp, Instruction, Operand, Register, Width};
use crate::program::Program;

/// Comparisons considered at the start and at the end of a loop: its exit is mostly the first or the last one.
const LOOKED_AT: usize = 4;

/// The slots of a loop.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loop {
    pub(super) head: usize,
    /// The last back edge to the head.
    pub(super) end: usize,
}

/// What a register is compared with.
#[derive(Clone, Copy, Debug)]
pub(super) enum With {
    Number(i64),
    Register(Register),
}

/// The comparisons and constants of a program, by register.
pub(super) struct Bounds {
    /// Slots of the jumps that compare each register, and with what, in order.
    jumps: [Vec<(usize, With)>; Register::COUNT],
    /// Numbers that each register is compared with, and those that any is compared with or set to, in order.
    compared: [Vec<i64>; Register::COUNT],
    named: Vec<i64>,
    /// Bits of the registers to which a constant is added somewhere.
    pub(super) adds: u16,
    /// The greatest trip count: the budget of instructions.
    pub(super) turns_max: u64,
}

impl Bounds {
    pub(super) fn new(program: &Program, turns_max: u64) -> Self {
        let (jumps, compared) = Default::default();
        let mut bounds = Self { jumps, compared, named: Vec::new(), adds: 0, turns_max };
        // What each register was set to last in the text.
        let mut constants = [None; Register::COUNT];
        for (slot, instruction) in program.code.iter().enumerate() {
            match *instruction {
                Instruction::JumpIf { dst, src: Operand::Immediate(value), .. } => {
                    bounds.compare(slot, dst, With::Number(i64::from(value)));
                    bounds.named.push(i64::from(value));
                }
                Instruction::JumpIf { dst, src: Operand::Register(src), .. } => {
                    for (register, other) in [(dst, src), (src, dst)] {
                        let constant = constants[other.index()];
                        let with = constant.map_or(With::Register(other), With::Number);
                        bounds.compare(slot, register, with);
                    }
                }
                Instruction::Alu {
                    width: Width::Double,
                    op: AluOp::Add | AluOp::Sub,
                    dst,
                    src: Operand::Immediate(_),
                } => bounds.adds |= 1 << dst.number(),
                _ => {}
            }
            if let [Some(register)] = written(*instruction) {
                constants[register.index()] = set_to(*instruction);
                bounds.named.extend(constants[register.index()]);
            }
        }
        for list in bounds.compared.iter_mut().chain([&mut bounds.named]) {
            list.sort_unstable();
            list.dedup();
        }
        bounds
    }

    fn compare(&mut self, slot: usize, register: Register, with: With) {
        self.jumps[register.index()].push((slot, with));
        if let With::Number(number) = with {
            self.compared[register.index()].push(number);
        }
    }

    /// The operands that a register is compared with at the start and at the end of a loop.
    pub(super) fn within(
        &self,
        register: u8,
        Loop { head, end }: Loop,
    ) -> impl Iterator<Item = With> {
        let all = &self.jumps[usize::from(register)];
        let first = all.partition_point(|(slot, _)| *slot < head);
        let behind = all.partition_point(|(slot, _)| *slot <= end);
        let all = &all[first..behind.max(first)];
        let (first, others) = all.split_at(all.len().min(LOOKED_AT));
        let last = &others[others.len().saturating_sub(LOOKED_AT)..];
        first.iter().chain(last).map(|(_, with)| *with)
    }

    /// Bits of the registers that are compared with a number in a loop.
    pub(super) fn bounded(&self, loops: Loop) -> u16 {
        let is_bounded = |register: &u8| {
            self.within(*register, loops).any(|with| matches!(with, With::Number(_)))
        };
        let registers = (0..Register::COUNT as u8).filter(is_bounded);
        registers.fold(0, |bits, register| bits | 1 << register)
    }

    /// The three constants next to `from`, upwards or downwards, that a register is compared with; if it is compared
    /// with none, of all constants that the program compares with or assigns.
    pub(super) fn near(&self, register: u8, from: i64, up: bool) -> impl Iterator<Item = i64> {
        let own = &self.compared[usize::from(register)];
        let list = if own.is_empty() { &self.named } else { own };
        let first = list.partition_point(|bound| *bound < from - 1);
        let behind = list.partition_point(|bound| *bound <= from + 1);
        let some =
            if up { first..list.len().min(first + 3) } else { behind.saturating_sub(3)..behind };
        list[some].iter().copied()
    }
}

/// The number that an instruction sets its register to.
fn set_to(instruction: Instruction) -> Option<i64> {
    match instruction {
        Instruction::Alu { op: AluOp::Move, src: Operand::Immediate(value), .. } => {
            Some(i64::from(value))
        }
        _ => None,
    }
}
