//! Fuel: at which slots a call is charged, and how much.
//!
//! A slot is charged before it is executed: the start of a function, a jump and a *mark* charge all slots up to the
//! next mark, or to the end of the function. A jump charges what its target needs, less what the jump itself leaves
//! unused. So the charge is never less than what was executed, and never more than if each function were charged at
//! its start and each iteration of a loop at its end.
//!
//! Marks are safepoints in straight-line code: any path between two safepoints weighs at most about
//! [`STRETCH_WEIGHT`], since jumps over a mark are charged. Shorter loops have none inside, shorter programs none at
//! all.
//!
//! Charges depend on the program alone, so that every engine pauses at the same slots.

use alloc::vec::Vec;
use core::ops::Range;

use super::is_slow;
use crate::isa::Instruction;
use crate::limits::{FRAMES_MAX, HELPER_WEIGHT, SLOW_WEIGHT, STRETCH_WEIGHT};
use crate::program::{Function, Program};

/// The charges of a program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charges {
    /// Marked slots, in order.
    marks: Vec<usize>,
    /// The end of each function.
    ends: Vec<usize>,
}

impl Charges {
    pub(crate) fn of(program: &Program) -> Self {
        let ends = program.functions.iter().map(|function| function.end).collect();
        let mut charges = Self { marks: Vec::new(), ends };
        let code = &program.code;
        let calls = |one: &Instruction| matches!(one, Instruction::CallFunction { .. });
        // Most programs are too short for a mark.
        let whole = code.iter().fold(0, |sum: u32, one| sum.saturating_add(weight(*one)));
        if whole > STRETCH_WEIGHT || code.iter().any(calls) {
            let walk = SafepointWalk::new(program);
            for function in &program.functions {
                let slots = function.start.min(code.len())..function.end.min(code.len());
                charges.mark_straight(&walk, slots.clone());
                charges.mark_behind_loops(program, slots);
            }
        }
        charges
    }

    /// The marked slots, each with the charge before its instruction.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (usize, u32)> {
        self.marks.iter().map(|slot| (*slot, (self.next(*slot) - slot) as u32))
    }

    /// The charge of a slot's mark.
    pub(crate) fn mark(&self, slot: usize) -> u32 {
        if self.is_marked(slot) { (self.next(slot) - slot) as u32 } else { 0 }
    }

    /// The charge of a taken jump.
    pub(crate) fn jump(&self, at: usize, target: usize) -> u32 {
        let (paid, needed) = (self.next(at) - at - 1, self.needed(target));
        if target <= at {
            return needed.saturating_sub(paid) as u32;
        }
        let over_mark = self.next(at) < target && !self.is_marked(target);
        if over_mark { needed.saturating_sub(paid).max(1) as u32 } else { 0 }
    }

    /// The charge of a call of the function at a slot, or of the start of the program.
    pub(crate) fn start(&self, slot: usize) -> u32 {
        self.needed(slot) as u32
    }

    /// The charge for reaching a slot. A mark charges for itself.
    fn needed(&self, slot: usize) -> usize {
        if self.is_marked(slot) { 0 } else { self.next(slot) - slot }
    }

    fn is_marked(&self, slot: usize) -> bool {
        self.marks.binary_search(&slot).is_ok()
    }

    /// The next mark after a slot, or the end of its function.
    fn next(&self, slot: usize) -> usize {
        let behind = |list: &[usize]| list.get(list.partition_point(|at| *at <= slot)).copied();
        let nearest = behind(&self.marks).into_iter().chain(behind(&self.ends)).min();
        // In unverified programs the end of a function may be anywhere.
        nearest.filter(|next| *next > slot).unwrap_or(slot + 1)
    }

    /// Marks slots of a function so that no stretch of it is too heavy.
    fn mark_straight(&mut self, walk: &SafepointWalk<'_>, slots: Range<usize>) {
        let heads = walk.short_loops(slots.clone());
        let (mut last, mut sum, mut slot) = (slots.start, 0, slots.start);
        while slot < slots.end {
            if sum + weight(walk.program.code[slot]) > STRETCH_WEIGHT && slot > last {
                slot = walk.place(slot, last, &heads, slots.start);
                self.marks.push(slot);
                (last, sum) = (slot, 0);
            }
            sum = walk.behind(sum, slot);
            slot += 1;
        }
    }

    /// Marks the slot after a loop that has marks, if otherwise the charge at its end would exceed that of its start.
    fn mark_behind_loops(&mut self, program: &Program, slots: Range<usize>) {
        for slot in slots {
            let Some(target) = back(program, slot) else { continue };
            let paid = self.next(slot) - slot - 1;
            if paid > 0 && paid >= self.needed(target) {
                let at = self.marks.partition_point(|mark| *mark <= slot);
                self.marks.insert(at, slot + 1);
            }
        }
    }
}

/// The target of a jump backwards.
fn back(program: &Program, slot: usize) -> Option<usize> {
    let target = usize::try_from(program.code[slot].jump_target(slot)?).ok()?;
    (target <= slot).then_some(target)
}

/// The weight of an instruction, in additions that take as long.
fn weight(instruction: Instruction) -> u32 {
    match instruction {
        Instruction::CallHelper { .. } => HELPER_WEIGHT,
        slow if is_slow(slow) => SLOW_WEIGHT,
        _ => 1,
    }
}

/// Decides which slots are marked.
struct SafepointWalk<'p> {
    program: &'p Program,
    /// For each function, the greatest weight between its last safepoint and its end.
    tails: Vec<u32>,
}

impl<'p> SafepointWalk<'p> {
    fn new(program: &'p Program) -> Self {
        let mut walk = Self { program, tails: alloc::vec![0; program.functions.len()] };
        let calls = |code: &Instruction| matches!(code, Instruction::CallFunction { .. });
        if !program.code.iter().any(calls) {
            return walk; // tails are not needed
        }
        // Each round refines the tails of callees; those of recursive functions grow to the maximum.
        for _ in 0..FRAMES_MAX {
            let tail = |function: &Function| {
                let slots = function.start..function.end.min(program.code.len());
                let sum = slots.fold(0, |sum: u32, slot| sum.saturating_add(walk.whole(slot)));
                sum.min(STRETCH_WEIGHT)
            };
            let tails: Vec<u32> = program.functions.iter().map(tail).collect();
            if tails == walk.tails {
                break;
            }
            walk.tails = tails;
        }
        walk
    }

    /// The tail of what a slot calls, if it calls a function.
    fn called(&self, slot: usize) -> Option<u32> {
        let Instruction::CallFunction { offset } = self.program.code[slot] else {
            return None;
        };
        let target = usize::try_from(slot as i64 + 1 + i64::from(offset)).ok();
        let function = target.and_then(|target| self.program.function_at(target));
        Some(function.map_or(STRETCH_WEIGHT, |function| self.tails[function]))
    }

    /// The weight of a slot, with the tail of its callee.
    fn whole(&self, slot: usize) -> u32 {
        1 + self.called(slot).unwrap_or(weight(self.program.code[slot]) - 1)
    }

    /// The weight since the last safepoint after a slot, from that before it. The start of a called function is a
    /// safepoint, but other paths may bypass the call.
    fn behind(&self, sum: u32, slot: usize) -> u32 {
        match self.called(slot) {
            Some(tail) => sum.max(tail) + 1,
            None => sum + weight(self.program.code[slot]),
        }
    }

    /// For each slot of a function, the start of the outermost short loop around it.
    fn short_loops(&self, slots: Range<usize>) -> Vec<Option<usize>> {
        let mut sums = Vec::with_capacity(slots.len() + 1);
        sums.push(0u32);
        for slot in slots.clone() {
            sums.push(sums[slot - slots.start].saturating_add(self.whole(slot)));
        }
        let mut heads = alloc::vec![None; slots.len()];
        for slot in slots.clone() {
            let target = back(self.program, slot).filter(|target| slots.contains(target));
            let Some(head) = target else { continue };
            let (from, to) = (head - slots.start, slot - slots.start);
            // With room for the mark before it, so that it needs none within.
            if sums[to + 1] - sums[from] <= STRETCH_WEIGHT - HELPER_WEIGHT {
                for around in &mut heads[from..=to] {
                    *around = Some(around.map_or(head, |other: usize| other.min(head)));
                }
            }
        }
        heads
    }

    /// The slot to mark for a stretch that ends after `last` and before `slot`: before a short loop, if there is one.
    fn place(&self, slot: usize, last: usize, heads: &[Option<usize>], start: usize) -> usize {
        // The second slot of a wide instruction is never executed: mark its first slot.
        let whole = |at: usize| match self.program.code[at] {
            Instruction::SecondHalf => at.saturating_sub(1),
            _ => at,
        };
        let mut at = whole(slot);
        while let Some(head) = heads[at - start] {
            let before = whole(head.saturating_sub(1));
            if before <= last {
                return whole(slot);
            }
            at = before;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helpers::Call;
    use crate::isa::{AluOp, Condition, Operand, Register, Wide, Width};

    /// Numbers by chance.
    struct CodeGenerator(u64);

    impl CodeGenerator {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 33) as usize % bound
        }

        fn code(&mut self) -> Vec<Instruction> {
            let length = 1 + self.below(2_000);
            let (jumps, reach) = (1 + self.below(60), [4, 40, 400, 2_000][self.below(4)]);
            let one = |at: usize| {
                let (dst, src, width) = (Register::R0, Operand::Immediate(1), Width::Double);
                if self.below(jumps) == 0 {
                    let least = at.saturating_sub(reach);
                    let target = (least + self.below(2 * reach)).min(length);
                    let offset = (target as i64 - at as i64 - 1) as i16;
                    let condition = Condition::Equal;
                    return Instruction::JumpIf { width, condition, dst, src, offset };
                }
                match self.below(6) {
                    0 => Instruction::CallHelper { number: Call::LoadU64 as u32 },
                    1 => Instruction::Alu { width, op: AluOp::Div, dst, src },
                    _ => Instruction::Alu { width, op: AluOp::Add, dst, src },
                }
            };
            let code = (0..length).map(one).chain([Instruction::Exit]).collect();
            self.with_wide_loads(code)
        }

        /// The same with some sums made loads of two slots, if no jump leads between these.
        fn with_wide_loads(&mut self, mut code: Vec<Instruction>) -> Vec<Instruction> {
            let target = |(at, one): (usize, &Instruction)| one.jump_target(at);
            let targets: Vec<i64> = code.iter().enumerate().filter_map(target).collect();
            let is_sum = |one: &Instruction| matches!(one, Instruction::Alu { op: AluOp::Add, .. });
            let mut at = 0;
            while at + 1 < code.len() {
                let room = code[at..at + 2].iter().all(is_sum);
                if room && !targets.contains(&(at as i64 + 1)) && self.below(4) == 0 {
                    let (dst, value) = (Register::R1, Wide::Value(0));
                    code[at] = Instruction::LoadWide { dst, value };
                    code[at + 1] = Instruction::SecondHalf;
                    at += 1;
                }
                at += 1;
            }
            code
        }
    }

    #[test]
    fn every_path_pauses_and_is_charged_between_what_it_executes_and_whole_turns() {
        for seed in 1..2_000 {
            let mut chance = CodeGenerator(seed << 32 | seed);
            let code = chance.code();
            let program = Program::from_code("chance", code.clone());
            let charges = Charges::of(&program);
            let halves = charges.marks().filter(|(at, _)| code[*at] == Instruction::SecondHalf);
            assert_eq!(halves.count(), 0, "seed {seed}");
            let (mut charged, mut whole) = (charges.start(0) as usize, code.len());
            let (mut at, mut executed, mut since) = (0, 0, 0);
            while at < code.len() && executed < 5_000 {
                let mark = charges.mark(at);
                (charged, executed) = (charged + mark as usize, executed + 1);
                since += weight(code[at]);
                assert!(since <= STRETCH_WEIGHT + HELPER_WEIGHT, "seed {seed}, slot {at}: {since}");
                let target = code[at].jump_target(at).filter(|_| chance.below(3) > 0);
                let next = target.map_or(at + code[at].slots(), |target| target as usize);
                let cost = target.map_or(0, |_| charges.jump(at, next));
                charged += cost as usize;
                whole += if next <= at { at + 1 - next } else { 0 };
                if mark > 0 || cost > 0 {
                    since = 0;
                }
                assert!(executed <= charged && charged <= whole, "seed {seed}, slot {at}");
                at = next;
            }
        }
    }
}
