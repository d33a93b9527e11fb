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

/// Rounds over a program after which what is not known yet counts as read.
const ROUNDS_MAX: u32 = 64;

/// The search for registers that are read later, by rounds over the program from its end.
pub(super) struct Liveness {
    flows: Vec<Flow>,
    /// What was found so far. Nothing is read behind the end.
    live: Vec<u16>,
    rounds: u32,
}

impl Liveness {
    pub(super) fn new(program: &Program) -> Self {
        let code = &program.code;
        let flows = (0..code.len()).map(|slot| Flow::of(slot, code)).collect();
        Self { flows, live: alloc::vec![0; code.len() + 1], rounds: 0 }
    }

    /// Looks at about so many slots, one round at least: bits of registers that are read before they are
    /// written, at each slot, when all are found.
    pub(super) fn settle(&mut self, slots: u32) -> Option<Vec<u16>> {
        let mut seen = 0;
        while seen < slots as usize {
            if self.rounds >= ROUNDS_MAX {
                // Loops need some rounds; where they are not enough, registers only look more alive.
                return Some(alloc::vec![u16::MAX; self.flows.len()]);
            }
            self.rounds += 1;
            if !self.round() {
                return Some(core::mem::take(&mut self.live));
            }
            seen += self.flows.len();
        }
        None
    }

    /// Whether it has changed anything.
    fn round(&mut self) -> bool {
        let (live, mut changed) = (&mut self.live, false);
        for (slot, Flow { read, written, next }) in self.flows.iter().enumerate().rev() {
            let after = live[next[0] as usize] | live[next[1] as usize];
            let before = after & !written | read;
            changed |= before != live[slot];
            live[slot] = before;
        }
        changed
    }
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
