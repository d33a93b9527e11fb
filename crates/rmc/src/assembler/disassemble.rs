//! Instructions to text that [`super::assemble`] reads back, as LLVM writes it.

use alloc::format;
use alloc::string::{String, ToString};

use crate::helpers::Helper;
use crate::isa::{
    AluOp, AtomicOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width,
};

/// One instruction. Jumps and calls of functions show their offset, as `+3`.
pub fn disassemble(instruction: Instruction) -> String {
    match instruction {
        Instruction::Alu { width, op, dst, src } => arithmetic(width, op, dst, src),
        Instruction::Bytes { order, size, dst } => {
            let name = match order {
                Order::Little => "le",
                Order::Big => "be",
                Order::Swapped => "bswap",
            };
            format!("r{0} = {name}{1} r{0}", dst.number(), size.bytes() * 8)
        }
        Instruction::LoadWide { dst, value } => {
            let value = match value {
                Wide::Value(value) => format!("{value:#x} ll"),
                Wide::Constant(offset) => format!("constant {offset}"),
                Wide::StateHandle(number) => format!("state {number}"),
                Wide::Variable { shared: false, offset } => format!("own {offset}"),
                Wide::Variable { shared: true, offset } => format!("shared {offset}"),
            };
            format!("r{} = {value}", dst.number())
        }
        Instruction::Load { size, signed, dst, base, offset } => {
            let sign = if signed { 's' } else { 'u' };
            format!("r{} = {}", dst.number(), place(sign, size, base, offset))
        }
        Instruction::Store { size, base, offset, src } => {
            format!("{} = {}", place('u', size, base, offset), operand('r', src))
        }
        Instruction::Atomic { width, op, fetch, base, offset, src } => {
            atomic(width, op, fetch, (base, offset), src)
        }
        Instruction::Jump { offset } => format!("goto {offset:+}"),
        Instruction::JumpIf { width, condition, dst, src, offset } => {
            let letter = letter(width);
            let sign = condition_sign(condition);
            let (dst, src) = (dst.number(), operand(letter, src));
            format!("if {letter}{dst} {sign} {src} goto {offset:+}")
        }
        Instruction::CallHelper { number } => match Helper::with_number(number) {
            Some(helper) => format!("call {}", helper.name),
            None => format!("call {number}"),
        },
        Instruction::CallFunction { offset } => format!("call {offset:+}"),
        Instruction::Exit => "exit".to_string(),
        Instruction::SecondHalf => String::new(),
    }
}

fn letter(width: Width) -> char {
    if width == Width::Word { 'w' } else { 'r' }
}

fn operand(letter: char, operand: Operand) -> String {
    match operand {
        Operand::Register(register) => format!("{letter}{}", register.number()),
        Operand::Immediate(value) => value.to_string(),
    }
}

fn place(sign: char, size: Size, base: Register, offset: i16) -> String {
    format!("*({sign}{} *)({})", size.bytes() * 8, address(base, offset))
}

fn address(base: Register, offset: i16) -> String {
    let sign = if offset < 0 { '-' } else { '+' };
    format!("r{} {sign} {}", base.number(), offset.unsigned_abs())
}

fn arithmetic(width: Width, op: AluOp, dst: Register, src: Operand) -> String {
    let letter = letter(width);
    let (dst, src) = (dst.number(), operand(letter, src));
    let sign = match op {
        AluOp::Neg => return format!("{letter}{dst} = -{letter}{dst}"),
        AluOp::Move => "=",
        AluOp::MoveSigned8 => "= (s8)",
        AluOp::MoveSigned16 => "= (s16)",
        AluOp::MoveSigned32 => "= (s32)",
        AluOp::Add => "+=",
        AluOp::Sub => "-=",
        AluOp::Mul => "*=",
        AluOp::Div => "/=",
        AluOp::SignedDiv => "s/=",
        AluOp::Or => "|=",
        AluOp::And => "&=",
        AluOp::ShiftLeft => "<<=",
        AluOp::ShiftRight => ">>=",
        AluOp::Mod => "%=",
        AluOp::SignedMod => "s%=",
        AluOp::Xor => "^=",
        AluOp::ShiftRightSigned => "s>>=",
    };
    let space = if sign.ends_with(')') { "" } else { " " };
    format!("{letter}{dst} {sign}{space}{src}")
}

fn atomic(
    width: Width,
    op: AtomicOp,
    fetch: bool,
    (base, offset): (Register, i16),
    src: Register,
) -> String {
    let letter = letter(width);
    let (bits, src) = (if width == Width::Word { 32 } else { 64 }, src.number());
    let address = address(base, offset);
    let exchange_suffix = if width == Width::Word { "32_32" } else { "_64" };
    let (name, sign) = match op {
        AtomicOp::Add => ("add", "+="),
        AtomicOp::Or => ("or", "|="),
        AtomicOp::And => ("and", "&="),
        AtomicOp::Xor => ("xor", "^="),
        AtomicOp::Exchange => {
            return format!("{letter}{src} = xchg{exchange_suffix}({address}, {letter}{src})");
        }
        AtomicOp::CompareExchange => {
            return format!(
                "{letter}0 = cmpxchg{exchange_suffix}({address}, {letter}0, {letter}{src})"
            );
        }
    };
    if fetch {
        format!("{letter}{src} = atomic_fetch_{name}((u{bits} *)({address}), {letter}{src})")
    } else {
        format!("lock *(u{bits} *)({address}) {sign} {letter}{src}")
    }
}

fn condition_sign(condition: Condition) -> &'static str {
    match condition {
        Condition::Equal => "==",
        Condition::Greater => ">",
        Condition::GreaterEqual => ">=",
        Condition::Set => "&",
        Condition::NotEqual => "!=",
        Condition::SignedGreater => "s>",
        Condition::SignedGreaterEqual => "s>=",
        Condition::Less => "<",
        Condition::LessEqual => "<=",
        Condition::SignedLess => "s<",
        Condition::SignedLessEqual => "s<=",
    }
}
