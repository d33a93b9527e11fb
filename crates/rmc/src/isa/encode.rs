//! Instructions to slots.

use core::fmt;

use super::{AluOp, AtomicOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width};

/// Why an instruction has no encoding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EncodeError {
    /// No such combination exists, such as a sign-extending load of eight bytes.
    NoSuchForm,
    /// It is the second half of a wide load, which is encoded with the first.
    SecondHalf,
}

impl fmt::Display for EncodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchForm => write!(out, "the instruction set has no such combination"),
            Self::SecondHalf => write!(out, "the second half of a wide load is no instruction"),
        }
    }
}

impl core::error::Error for EncodeError {}

fn slot(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> u64 {
    u64::from(code)
        | u64::from(dst) << 8
        | u64::from(src) << 12
        | u64::from(offset as u16) << 16
        | u64::from(immediate as u32) << 32
}

/// Its slot, and the second one of a wide load.
pub fn encode(instruction: Instruction) -> Result<(u64, Option<u64>), EncodeError> {
    let first = match instruction {
        Instruction::LoadWide { dst, value } => {
            let (first, second) = wide(dst, value);
            return Ok((first, Some(second)));
        }
        Instruction::Alu { width, op, dst, src } => arithmetic(width, op, dst, src)?,
        Instruction::Bytes { order, size, dst } => bytes(order, size, dst)?,
        Instruction::Load { size, signed, dst, base, offset } => {
            if signed && size == Size::Double {
                return Err(EncodeError::NoSuchForm);
            }
            let mode = if signed { 0x80 } else { 0x60 };
            slot(0x01 | mode | size_code(size), dst.number(), base.number(), offset, 0)
        }
        Instruction::Store { size, base, offset, src } => {
            let code = 0x60 | size_code(size);
            match src {
                Operand::Register(src) => slot(code | 3, base.number(), src.number(), offset, 0),
                Operand::Immediate(value) => slot(code | 2, base.number(), 0, offset, value),
            }
        }
        Instruction::Atomic { width, op, fetch, base, offset, src } => {
            let size = if width == Width::Word { Size::Word } else { Size::Double };
            let code = 0xc3 | size_code(size);
            slot(code, base.number(), src.number(), offset, atomic_code(op, fetch)?)
        }
        Instruction::Jump { offset } => match i16::try_from(offset) {
            Ok(short) => slot(0x05, 0, 0, short, 0),
            Err(_) => slot(0x06, 0, 0, 0, offset),
        },
        Instruction::JumpIf { width, condition, dst, src, offset } => {
            let class = if width == Width::Double { 5 } else { 6 };
            let (form, src, immediate) = operand(src);
            slot(condition_code(condition) | class | form, dst.number(), src, offset, immediate)
        }
        Instruction::CallHelper { number } => slot(0x85, 0, 0, 0, number as i32),
        Instruction::CallFunction { offset } => slot(0x85, 0, 1, 0, offset),
        Instruction::Exit => slot(0x95, 0, 0, 0, 0),
        Instruction::SecondHalf => return Err(EncodeError::SecondHalf),
    };
    Ok((first, None))
}

fn operand(src: Operand) -> (u8, u8, i32) {
    match src {
        Operand::Register(register) => (8, register.number(), 0),
        Operand::Immediate(value) => (0, 0, value),
    }
}

fn size_code(size: Size) -> u8 {
    match size {
        Size::Word => 0x00,
        Size::Half => 0x08,
        Size::Byte => 0x10,
        Size::Double => 0x18,
    }
}

fn wide(dst: Register, value: Wide) -> (u64, u64) {
    let (src, low, high) = match value {
        Wide::Value(value) => (0, value as u32, (value >> 32) as u32),
        Wide::Constant(offset) => (3, offset, 0),
        Wide::StateHandle(number) => (5, number, 0),
        Wide::Variable { shared, offset } => (6, u32::from(shared), offset),
    };
    (slot(0x18, dst.number(), src, 0, low as i32), slot(0, 0, 0, 0, high as i32))
}

fn arithmetic(width: Width, op: AluOp, dst: Register, src: Operand) -> Result<u64, EncodeError> {
    let class = if width == Width::Double { 7 } else { 4 };
    let (code, offset) = match op {
        AluOp::Add => (0x00, 0),
        AluOp::Sub => (0x10, 0),
        AluOp::Mul => (0x20, 0),
        AluOp::Div => (0x30, 0),
        AluOp::SignedDiv => (0x30, 1),
        AluOp::Or => (0x40, 0),
        AluOp::And => (0x50, 0),
        AluOp::ShiftLeft => (0x60, 0),
        AluOp::ShiftRight => (0x70, 0),
        AluOp::Neg => (0x80, 0),
        AluOp::Mod => (0x90, 0),
        AluOp::SignedMod => (0x90, 1),
        AluOp::Xor => (0xa0, 0),
        AluOp::Move => (0xb0, 0),
        AluOp::MoveSigned8 => (0xb0, 8),
        AluOp::MoveSigned16 => (0xb0, 16),
        AluOp::MoveSigned32 => (0xb0, 32),
        AluOp::ShiftRightSigned => (0xc0, 0),
    };
    let immediate = matches!(src, Operand::Immediate(_));
    let exists = match op {
        AluOp::Neg => src == Operand::Immediate(0),
        AluOp::MoveSigned32 => !immediate && width == Width::Double,
        _ => !immediate || !op.needs_register(),
    };
    if !exists {
        return Err(EncodeError::NoSuchForm);
    }
    let (form, src, immediate) = operand(src);
    Ok(slot(code | class | form, dst.number(), src, offset, immediate))
}

fn bytes(order: Order, size: Size, dst: Register) -> Result<u64, EncodeError> {
    let code = match order {
        Order::Little => 0xd4,
        Order::Big => 0xdc,
        Order::Swapped => 0xd7,
    };
    let bits = match size {
        Size::Byte => return Err(EncodeError::NoSuchForm),
        Size::Half => 16,
        Size::Word => 32,
        Size::Double => 64,
    };
    Ok(slot(code, dst.number(), 0, 0, bits))
}

fn atomic_code(op: AtomicOp, fetch: bool) -> Result<i32, EncodeError> {
    let code = match op {
        AtomicOp::Add => 0x00,
        AtomicOp::Or => 0x40,
        AtomicOp::And => 0x50,
        AtomicOp::Xor => 0xa0,
        AtomicOp::Exchange if fetch => 0xe0,
        AtomicOp::CompareExchange if fetch => 0xf0,
        AtomicOp::Exchange | AtomicOp::CompareExchange => return Err(EncodeError::NoSuchForm),
    };
    Ok(code | i32::from(fetch))
}

fn condition_code(condition: Condition) -> u8 {
    match condition {
        Condition::Equal => 0x10,
        Condition::Greater => 0x20,
        Condition::GreaterEqual => 0x30,
        Condition::Set => 0x40,
        Condition::NotEqual => 0x50,
        Condition::SignedGreater => 0x60,
        Condition::SignedGreaterEqual => 0x70,
        Condition::Less => 0xa0,
        Condition::LessEqual => 0xb0,
        Condition::SignedLess => 0xc0,
        Condition::SignedLessEqual => 0xd0,
    }
}
