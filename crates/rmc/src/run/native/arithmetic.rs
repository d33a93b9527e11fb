//! Templates of arithmetic.

use super::compiler::{Compiler, home};
use super::emit::{MemoryOperand, R10, RAX, RBP, RCX, RDX, Reg, When};
use super::entry::BORROWED;
use crate::decode::{Code, Op, ZERO};
use crate::isa::{AluOp, Instruction, Operand, Order, Size, Width};

impl Compiler<'_> {
    /// Arithmetic; whether the operation was such.
    pub(super) fn arithmetic(&mut self, op: Op, instruction: Instruction) -> bool {
        let wide = matches!(
            op.code,
            Code::Add
                | Code::Sub
                | Code::Mul
                | Code::Or
                | Code::And
                | Code::Xor
                | Code::ShiftLeft
                | Code::ShiftRight
                | Code::ShiftRightSigned
                | Code::Move
        );
        let to = home(op.dst);
        match op.code {
            Code::Add | Code::Add32 => self.simple(op, wide, 0x01, 0),
            Code::Or | Code::Or32 => self.simple(op, wide, 0x09, 1),
            Code::And | Code::And32 => self.simple(op, wide, 0x21, 4),
            Code::Sub | Code::Sub32 => self.simple(op, wide, 0x29, 5),
            Code::Xor | Code::Xor32 => self.simple(op, wide, 0x31, 6),
            Code::Mul | Code::Mul32 if op.src == ZERO => {
                self.out.pair(wide, &[0x69], to.0, to);
                self.out.word(op.immediate);
            }
            Code::Mul | Code::Mul32 => {
                self.out.pair(wide, &[0x0f, 0xaf], to.0, home(op.src));
            }
            Code::ShiftLeft | Code::ShiftLeft32 => self.shift(op, wide, 4),
            Code::ShiftRight | Code::ShiftRight32 => self.shift(op, wide, 5),
            Code::ShiftRightSigned | Code::ShiftRightSigned32 => self.shift(op, wide, 7),
            Code::Move | Code::Move32 if op.src == ZERO => {
                let value = op.immediate as i64 as u64;
                self.out.set(to, if wide { value } else { value & 0xffff_ffff });
            }
            Code::Move | Code::Move32 => self.out.copy(wide, to, home(op.src)),
            Code::Rare => match instruction {
                Instruction::Alu { width, op, dst, src } => {
                    self.rare(width == Width::Double, op, home(dst.number()), src);
                }
                Instruction::Bytes { order, size, dst } => {
                    self.bytes(order, size, home(dst.number()));
                }
                _ => return false,
            },
            _ => return false,
        }
        true
    }

    fn simple(&mut self, op: Op, wide: bool, opcode: u8, extension: u8) {
        if op.src == ZERO {
            self.out.with_number(wide, extension, home(op.dst), op.immediate);
        } else {
            self.out.pair(wide, &[opcode], home(op.src).0, home(op.dst));
        }
    }

    /// Shifts: the processor takes counts modulo the width, as eBPF does.
    fn shift(&mut self, op: Op, wide: bool, extension: u8) {
        let to = home(op.dst);
        if op.src == ZERO {
            let mask = if wide { 63 } else { 31 };
            self.out.shift_by(wide, extension, to, op.immediate as u8 & mask);
            // A shift by zero leaves the upper half as it was.
            if !wide && op.immediate as u8 & mask == 0 {
                self.out.copy(false, to, to);
            }
        } else {
            self.out.copy(true, RCX, home(op.src));
            self.out.pair(wide, &[0xd3], extension, to);
            if !wide {
                self.out.copy(false, to, to);
            }
        }
    }

    fn rare(&mut self, wide: bool, op: AluOp, to: Reg, src: Operand) {
        let from = match src {
            Operand::Register(register) => home(register.number()),
            Operand::Immediate(_) => to,
        };
        match op {
            AluOp::Neg => self.out.pair(wide, &[0xf7], 3, to),
            AluOp::MoveSigned8 => self.out.pair(wide, &[0x0f, 0xbe], to.0, from),
            AluOp::MoveSigned16 => self.out.pair(wide, &[0x0f, 0xbf], to.0, from),
            AluOp::MoveSigned32 => self.out.pair(wide, &[0x63], to.0, from),
            AluOp::Div => self.divide(wide, (false, false), to, src),
            AluOp::Mod => self.divide(wide, (false, true), to, src),
            AluOp::SignedDiv => self.divide(wide, (true, false), to, src),
            AluOp::SignedMod => self.divide(wide, (true, true), to, src),
            // All others have codes of their own.
            _ => {}
        }
    }

    /// Quotients and remainders. By zero and by -1 the processor would not divide.
    fn divide(&mut self, wide: bool, (signed, remainder): (bool, bool), to: Reg, src: Operand) {
        let by = match src {
            Operand::Register(register) => {
                self.out.copy(wide, RCX, home(register.number()));
                None
            }
            Operand::Immediate(by) => Some(by),
        };
        match by {
            Some(0) => return self.divided_by_zero(wide, remainder, to),
            Some(-1) if signed => return self.divided_by_minus_one(wide, remainder, to),
            Some(by) => {
                self.out.set(RCX, i64::from(by) as u64);
                return self.divided(wide, (signed, remainder), to);
            }
            None => {}
        }
        self.out.test(wide, RCX, RCX);
        let some = self.out.jump_if(When::NOT_EQUAL);
        self.divided_by_zero(wide, remainder, to);
        let mut ends = [Some(self.out.jump()), None];
        self.out.here(some);
        if signed {
            self.out.with_number(wide, 7, RCX, -1);
            let other = self.out.jump_if(When::NOT_EQUAL);
            self.divided_by_minus_one(wide, remainder, to);
            ends[1] = Some(self.out.jump());
            self.out.here(other);
        }
        self.divided(wide, (signed, remainder), to);
        ends.into_iter().flatten().for_each(|end| self.out.here(end));
    }

    fn divided_by_zero(&mut self, wide: bool, remainder: bool, to: Reg) {
        if !remainder {
            self.out.clear(to);
        } else if !wide {
            self.out.copy(false, to, to);
        }
    }

    fn divided_by_minus_one(&mut self, wide: bool, remainder: bool, to: Reg) {
        if remainder {
            self.out.clear(to);
        } else {
            self.out.pair(wide, &[0xf7], 3, to);
        }
    }

    /// Divides by RCX, with RAX and RDX borrowed.
    fn divided(&mut self, wide: bool, (signed, remainder): (bool, bool), to: Reg) {
        let out = &mut self.out;
        let borrowed = MemoryOperand::at(RBP, BORROWED);
        out.store(borrowed, RAX);
        out.copy(true, R10, RDX);
        out.copy(true, RAX, to);
        if signed {
            out.extend_rax(wide);
            out.pair(wide, &[0xf7], 7, RCX);
        } else {
            out.clear(RDX);
            out.pair(wide, &[0xf7], 6, RCX);
        }
        out.copy(true, RCX, if remainder { RDX } else { RAX });
        out.load(RAX, borrowed);
        out.copy(true, RDX, R10);
        out.copy(true, to, RCX);
    }

    fn bytes(&mut self, order: Order, size: Size, to: Reg) {
        match (order, size) {
            // Those have codes of their own.
            (Order::Little, _) | (_, Size::Byte) => {}
            (_, Size::Half) => {
                self.out.swap_half(to);
                self.out.pair(false, &[0x0f, 0xb7], to.0, to);
            }
            (_, Size::Word) => self.out.reverse(false, to),
            (_, Size::Double) => self.out.reverse(true, to),
        }
    }
}
