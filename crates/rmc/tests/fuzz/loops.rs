//! Loops that count in registers, most of them so that all their turns can be proven as one, and some of them only
//! nearly.

use super::{Maker, R};
use farside_rmc::isa::{AluOp, Condition, Instruction, Operand, Register, Size, Width};

/// What a loop counts by.
struct Counter {
    register: u8,
    first: i32,
    by: i32,
    bound: i32,
}

impl Maker<'_> {
    pub(super) fn register_loop(&mut self) {
        let Some(counter) = self.counter() else { return self.arithmetic() };
        let (register, by) = (R[usize::from(counter.register)], counter.by);
        // Another one, which nothing compares.
        let second = self.chance.one_in(3).then(|| self.counter()).flatten();
        self.first(&counter);
        let second = second.filter(|second| second.register != counter.register);
        if let Some(second) = &second {
            self.builder.set(R[usize::from(second.register)], i64::from(second.first));
        }
        let (again, end) = (self.builder.label(), self.builder.label());
        self.builder.place(again);
        let top = self.chance.one_in(4);
        if top {
            self.leave(&counter, end);
        }
        let reserved = self.reserved;
        self.reserved |= 1 << counter.register;
        self.depth += 1;
        for _ in 0..1 + self.chance.below(2) {
            match self.chance.below(4) {
                0 => self.indexed(register),
                1 if second.is_some() => {
                    let at = second.as_ref().map_or(8, |second| second.register);
                    self.indexed(R[usize::from(at)]);
                }
                _ => self.piece(),
            }
        }
        self.depth -= 1;
        self.spoil(register, by);
        if !self.chance.one_in(12) {
            self.step(register, by);
        }
        if let Some(second) = &second {
            self.step(R[usize::from(second.register)], second.by);
        }
        self.reserved = reserved;
        if top {
            self.builder.jump(again);
        } else {
            self.turn(&counter, again);
        }
        self.builder.place(end);
    }

    fn counter(&mut self) -> Option<Counter> {
        let register = self.chance.of(&[7_u8, 8, 9]);
        if self.reserved >> register & 1 == 1 && !self.chance.one_in(8) {
            return None;
        }
        let by = self.chance.of(&[1, 1, 1, 2, 3, 8]);
        let turns = 1 + self.chance.below(24) as i32;
        let near = self.chance.of(&[0, 0, 0, 0, 1, -1]);
        let (low, high) = (self.chance.of(&[0, 0, 0, 1, 7, -20]), turns * by + near);
        Some(if self.chance.one_in(3) {
            Counter { register, first: high, by: -by, bound: low }
        } else {
            Counter { register, first: low, by, bound: high + low }
        })
    }

    /// What it begins with: a constant, or a number of which the range is known.
    fn first(&mut self, counter: &Counter) {
        let register = R[usize::from(counter.register)];
        if self.chance.one_in(4) {
            let offset = self.chance.below(8) as i16 * 8;
            self.builder.load(Size::Double, register, R[6], offset);
            let mask = self.chance.of(&[1, 7, 15, 31, 255]);
            self.builder.alu(AluOp::And, register, Operand::Immediate(mask));
            return;
        }
        self.builder.set(register, i64::from(counter.first));
    }

    fn step(&mut self, register: Register, by: i32) {
        let (op, by) = if self.chance.one_in(4) { (AluOp::Sub, -by) } else { (AluOp::Add, by) };
        let width = if self.chance.one_in(16) { Width::Word } else { Width::Double };
        let src = Operand::Immediate(by);
        self.builder.push(Instruction::Alu { width, op, dst: register, src });
    }

    /// Sometimes does something to the counter that it should not.
    fn spoil(&mut self, register: Register, by: i32) {
        if !self.chance.one_in(10) {
            return;
        }
        let end = self.builder.label();
        if self.chance.one_in(2) {
            let (condition, src) = (self.chance.of(&Condition::ALL), self.operand());
            self.builder.jump_if(condition, self.chance.of(&[R[0], R[8], R[9]]), src, end);
        }
        match self.chance.below(4) {
            0 => self.step(register, by),
            1 => self.step(register, -by),
            2 => {
                let (op, by) = (self.chance.of(&[AluOp::And, AluOp::Mul, AluOp::Xor]), 5);
                self.builder.alu(op, register, Operand::Immediate(by));
            }
            _ => {
                self.builder.copy(register, R[0]);
            }
        }
        self.builder.place(end);
    }

    /// Jumps back where it has not come to its bound.
    fn turn(&mut self, counter: &Counter, again: farside_rmc::assembler::Label) {
        let up = [Condition::Less, Condition::SignedLess, Condition::LessEqual];
        let down = [Condition::Greater, Condition::SignedGreater, Condition::GreaterEqual];
        let condition = match self.chance.below(12) {
            0 => self.chance.of(&Condition::ALL),
            1..5 => Condition::NotEqual,
            _ if counter.by > 0 => self.chance.of(&up),
            _ => self.chance.of(&down),
        };
        self.compare(condition, counter, again);
    }

    /// Leaves the loop where it has.
    fn leave(&mut self, counter: &Counter, end: farside_rmc::assembler::Label) {
        let up = [Condition::Greater, Condition::SignedGreater, Condition::GreaterEqual];
        let down = [Condition::Less, Condition::SignedLess, Condition::LessEqual];
        let condition = match self.chance.below(12) {
            0 => self.chance.of(&Condition::ALL),
            1..5 => Condition::Equal,
            _ if counter.by > 0 => self.chance.of(&up),
            _ => self.chance.of(&down),
        };
        self.compare(condition, counter, end);
    }

    fn compare(
        &mut self,
        condition: Condition,
        counter: &Counter,
        to: farside_rmc::assembler::Label,
    ) {
        let dst = R[usize::from(counter.register)];
        if self.chance.one_in(6) {
            self.builder.set(R[1], i64::from(counter.bound));
            self.builder.jump_if(condition, dst, Operand::Register(R[1]), to);
            return;
        }
        let width = if self.chance.one_in(10) { Width::Word } else { Width::Double };
        let src = Operand::Immediate(counter.bound);
        self.builder.push_to(Instruction::JumpIf { width, condition, dst, src, offset: 0 }, to);
    }

    /// Touches memory where the counter says.
    fn indexed(&mut self, register: Register) {
        let writes = self.chance.one_in(3);
        self.builder.copy(R[2], register);
        if self.chance.one_in(3) {
            self.builder.alu(AluOp::ShiftLeft, R[2], Operand::Immediate(3));
        }
        let _ = self.base(R[3], writes);
        self.builder.alu(AluOp::Add, R[3], Operand::Register(R[2]));
        self.touch(R[3], writes);
    }
}
