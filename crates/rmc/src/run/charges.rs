//! Where a call is charged, and for how much.
//!
//! A slot is paid before it is executed: the start of a function, a jump and a *mark* pay all slots up to the
//! next mark, or to the end of the function. A jump pays what its target needs and the jump itself leaves
//! unused. So what has been charged is never less than what was executed, and never more than if each function
//! were paid as a whole where it starts, and each turn of a loop where it ends.
//!
//! Marks stand in straight code, so that a call can pause there too: between two places where it can there is
//! at most about [`STRETCH_WEIGHT`] of instructions, whatever path is taken, since jumps over a mark are
//! charged. Loops that are shorter have none within, and programs that are shorter have none at all.
//!
//! All of this follows from the program alone, so that every engine pauses at the same places.

use alloc::vec::Vec;
use core::ops::Range;

use crate::isa::{AluOp, Instruction};
use crate::limits::{FRAMES_MAX, HELPER_WEIGHT, SLOW_WEIGHT, STRETCH_WEIGHT};
use crate::program::{Function, Program};

/// What a call of a program is charged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Charges {
    /// Marked slots, in order.
    marks: Vec<usize>,
    /// Slots behind each function.
    ends: Vec<usize>,
}

impl Charges {
    pub(crate) fn of(program: &Program) -> Self {
        let ends = program.functions.iter().map(|function| function.end).collect();
        let mut charges = Self { marks: Vec::new(), ends };
        let code = &program.code;
        let calls = |one: &Instruction| matches!(one, Instruction::CallFunction { .. });
        // Most programs are so short that they need no mark, which is seen at once.
        let whole = code.iter().fold(0, |sum: u32, one| sum.saturating_add(weight(*one)));
        if whole > STRETCH_WEIGHT || code.iter().any(calls) {
            let walk = Walk::new(program);
            for function in &program.functions {
                let slots = function.start.min(code.len())..function.end.min(code.len());
                charges.mark_straight(&walk, slots.clone());
                charges.mark_behind_loops(program, slots);
            }
        }
        charges
    }

    /// The marked slots and what each costs, which is paid before its instruction.
    pub(crate) fn marks(&self) -> impl Iterator<Item = (usize, u32)> {
        self.marks.iter().map(|slot| (*slot, (self.next(*slot) - slot) as u32))
    }

    /// What is paid at a slot because it is marked.
    pub(crate) fn mark(&self, slot: usize) -> u32 {
        if self.is_marked(slot) { (self.next(slot) - slot) as u32 } else { 0 }
    }

    /// What a jump that is taken costs.
    pub(crate) fn jump(&self, at: usize, target: usize) -> u32 {
        let (paid, needed) = (self.next(at) - at - 1, self.needed(target));
        if target <= at {
            return needed.saturating_sub(paid) as u32;
        }
        let over_mark = self.next(at) < target && !self.is_marked(target);
        if over_mark { needed.saturating_sub(paid).max(1) as u32 } else { 0 }
    }

    /// What a call of the function costs that starts at a slot, or the start of the program.
    pub(crate) fn start(&self, slot: usize) -> u32 {
        self.needed(slot) as u32
    }

    /// Slots that have to be paid where control comes to a slot. A mark pays for itself.
    fn needed(&self, slot: usize) -> usize {
        if self.is_marked(slot) { 0 } else { self.next(slot) - slot }
    }

    fn is_marked(&self, slot: usize) -> bool {
        self.marks.binary_search(&slot).is_ok()
    }

    /// The next mark behind a slot, or the end of its function.
    fn next(&self, slot: usize) -> usize {
        let behind = |list: &[usize]| list.get(list.partition_point(|at| *at <= slot)).copied();
        let nearest = behind(&self.marks).into_iter().chain(behind(&self.ends)).min();
        // Functions of programs that nobody has verified may stand anywhere.
        nearest.filter(|next| *next > slot).unwrap_or(slot + 1)
    }

    /// Marks slots of a function so that no stretch of it is too heavy.
    fn mark_straight(&mut self, walk: &Walk<'_>, slots: Range<usize>) {
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

    /// Marks what is behind a loop with marks, where otherwise more would have been paid at its end than its
    /// start needs.
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

/// What an instruction weighs: as many sums as take as long, where it is slow.
fn weight(instruction: Instruction) -> u32 {
    match instruction {
        Instruction::CallHelper { .. } => HELPER_WEIGHT,
        slow if is_slow(slow) => SLOW_WEIGHT,
        _ => 1,
    }
}

/// Whether it is a division or an atomic change of memory.
pub(crate) fn is_slow(instruction: Instruction) -> bool {
    use AluOp::{Div, Mod, SignedDiv, SignedMod};
    match instruction {
        Instruction::Alu { op, .. } => matches!(op, Div | Mod | SignedDiv | SignedMod),
        Instruction::Atomic { .. } => true,
        _ => false,
    }
}

/// What is needed to decide which slots are marked.
struct Walk<'p> {
    program: &'p Program,
    /// For each function, the most weight between the last place where it can pause and its end.
    tails: Vec<u32>,
}

impl<'p> Walk<'p> {
    fn new(program: &'p Program) -> Self {
        let mut walk = Self { program, tails: alloc::vec![0; program.functions.len()] };
        let calls = |code: &Instruction| matches!(code, Instruction::CallFunction { .. });
        if !program.code.iter().any(calls) {
            return walk; // nobody asks for them
        }
        // What functions call is known better with each round; those that call themselves grow to the most.
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

    /// What a slot weighs with the tail of what it calls.
    fn whole(&self, slot: usize) -> u32 {
        1 + self.called(slot).unwrap_or(weight(self.program.code[slot]) - 1)
    }

    /// The weight since the last place to pause behind a slot, from that before it. A call has paused at the
    /// start of the function that it calls, but other paths may lead round it.
    fn behind(&self, sum: u32, slot: usize) -> u32 {
        match self.called(slot) {
            Some(tail) => sum.max(tail) + 1,
            None => sum + weight(self.program.code[slot]),
        }
    }

    /// For each slot of a function, where the first of the short loops around it starts.
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

    /// The slot to mark where a stretch ends behind `last` and before `slot`: before short loops, if there is
    /// one.
    fn place(&self, slot: usize, last: usize, heads: &[Option<usize>], start: usize) -> usize {
        // Nobody comes to a second half, which would be charged to those alone who look at each slot.
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
    use crate::isa::{Condition, Operand, Register, Wide, Width};

    /// Numbers by chance.
    struct Chance(u64);

    impl Chance {
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
            let mut chance = Chance(seed << 32 | seed);
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
