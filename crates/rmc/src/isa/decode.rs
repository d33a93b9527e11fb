//! Slots to instructions. Whatever RFC 9669 does not define is an error, also bits that must be zero:
//! what is not understood is not run.

use alloc::vec::Vec;
use core::fmt;

use super::{AluOp, AtomicOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width};

/// Why a slot is no instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DecodeError {
    /// No instruction has this operation code.
    Opcode(u8),
    /// An instruction of the legacy packet access.
    Legacy(u8),
    /// An indirect call, of a function address in a register.
    CallByPointer,
    /// There is no such register.
    Register(u8),
    /// A field that the instruction does not use is not zero.
    Reserved,
    /// The operation code exists, but not with this source field, offset or immediate.
    Variant,
    /// A wide load ends the code, or its second slot is not a plain one.
    Truncated,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Opcode(code) => write!(out, "no instruction has the operation code {code:#04x}"),
            Self::Legacy(code) => {
                write!(out, "legacy packet access ({code:#04x}) is not supported")
            }
            Self::CallByPointer => write!(
                out,
                "a call by a pointer to a function: only functions that are named can be called, so \
                 choose among them with if or switch"
            ),
            Self::Register(number) => write!(out, "there is no register r{number}"),
            Self::Reserved => write!(out, "a field that must be zero is not"),
            Self::Variant => write!(out, "the instruction has no such variant"),
            Self::Truncated => write!(out, "a wide load lacks its second slot"),
        }
    }
}

impl core::error::Error for DecodeError {}

/// The fields of a slot.
#[derive(Clone, Copy)]
struct InstructionSlot {
    code: u8,
    dst: u8,
    src: u8,
    offset: i16,
    immediate: i32,
}

impl InstructionSlot {
    const fn new(slot: u64) -> Self {
        Self {
            code: slot as u8,
            dst: (slot >> 8) as u8 & 15,
            src: (slot >> 12) as u8 & 15,
            offset: (slot >> 16) as i16,
            immediate: (slot >> 32) as i32,
        }
    }

    fn dst(self) -> Result<Register, DecodeError> {
        Register::new(self.dst).ok_or(DecodeError::Register(self.dst))
    }

    fn src(self) -> Result<Register, DecodeError> {
        Register::new(self.src).ok_or(DecodeError::Register(self.src))
    }

    /// The second operand of arithmetic and jumps; what the form does not use must be zero.
    fn operand(self) -> Result<Operand, DecodeError> {
        if self.code & 8 != 0 {
            zero(self.immediate == 0)?;
            Ok(Operand::Register(self.src()?))
        } else {
            zero(self.src == 0)?;
            Ok(Operand::Immediate(self.immediate))
        }
    }
}

fn zero(holds: bool) -> Result<(), DecodeError> {
    if holds { Ok(()) } else { Err(DecodeError::Reserved) }
}

/// Decodes every slot of `slots`, with [`Instruction::SecondHalf`] after wide loads. Fails with the slot that is not an
/// instruction, and why.
pub fn decode_all(slots: &[u64]) -> Result<Vec<Instruction>, (usize, DecodeError)> {
    let mut code = Vec::with_capacity(slots.len());
    while code.len() < slots.len() {
        let at = code.len();
        let instruction = decode(&slots[at..]).map_err(|error| (at, error))?;
        code.push(instruction);
        if instruction.slots() == 2 {
            code.push(Instruction::SecondHalf);
        }
    }
    Ok(code)
}

/// The instruction at the start of `slots`.
pub fn decode(slots: &[u64]) -> Result<Instruction, DecodeError> {
    let first = slots.first().ok_or(DecodeError::Truncated)?;
    let slot = InstructionSlot::new(*first);
    match slot.code & 7 {
        0 => wide(slot, slots.get(1).copied()),
        1 => load(slot),
        2 | 3 => store(slot),
        4 => arithmetic(slot, Width::Word),
        5 => jump(slot, Width::Double),
        6 => jump(slot, Width::Word),
        _ => arithmetic(slot, Width::Double),
    }
}

fn size(code: u8) -> Size {
    match code & 0x18 {
        0x00 => Size::Word,
        0x08 => Size::Half,
        0x10 => Size::Byte,
        _ => Size::Double,
    }
}

fn wide(slot: InstructionSlot, second: Option<u64>) -> Result<Instruction, DecodeError> {
    if matches!(slot.code & 0xe0, 0x20 | 0x40) {
        return Err(DecodeError::Legacy(slot.code));
    }
    if slot.code != 0x18 {
        return Err(DecodeError::Opcode(slot.code));
    }
    let second = InstructionSlot::new(second.ok_or(DecodeError::Truncated)?);
    if second.code != 0 {
        return Err(DecodeError::Truncated);
    }
    zero(slot.offset == 0 && second.dst == 0 && second.src == 0 && second.offset == 0)?;
    let (low, high) = (slot.immediate as u32, second.immediate as u32);
    let value = match slot.src {
        0 => Wide::Value(u64::from(high) << 32 | u64::from(low)),
        3 if high == 0 => Wide::Constant(low),
        5 if high == 0 => Wide::StateHandle(low),
        6 if low <= 1 => Wide::Variable { shared: low == 1, offset: high },
        _ => return Err(DecodeError::Variant),
    };
    Ok(Instruction::LoadWide { dst: slot.dst()?, value })
}

fn load(slot: InstructionSlot) -> Result<Instruction, DecodeError> {
    let size = size(slot.code);
    let signed = match slot.code & 0xe0 {
        0x60 => false,
        0x80 if size != Size::Double => true,
        _ => return Err(DecodeError::Opcode(slot.code)),
    };
    zero(slot.immediate == 0)?;
    let (dst, base) = (slot.dst()?, slot.src()?);
    Ok(Instruction::Load { size, signed, dst, base, offset: slot.offset })
}

fn store(slot: InstructionSlot) -> Result<Instruction, DecodeError> {
    let (size, base, offset) = (size(slot.code), slot.dst()?, slot.offset);
    let from_register = slot.code & 7 == 3;
    match slot.code & 0xe0 {
        0x60 if from_register => {
            zero(slot.immediate == 0)?;
            Ok(Instruction::Store { size, base, offset, src: Operand::Register(slot.src()?) })
        }
        0x60 => {
            zero(slot.src == 0)?;
            Ok(Instruction::Store { size, base, offset, src: Operand::Immediate(slot.immediate) })
        }
        0xc0 if from_register => atomic(slot, size),
        _ => Err(DecodeError::Opcode(slot.code)),
    }
}

fn atomic(slot: InstructionSlot, size: Size) -> Result<Instruction, DecodeError> {
    let width = match size {
        Size::Word => Width::Word,
        Size::Double => Width::Double,
        Size::Byte | Size::Half => return Err(DecodeError::Opcode(slot.code)),
    };
    let (op, fetch) = match slot.immediate {
        0x00 => (AtomicOp::Add, false),
        0x01 => (AtomicOp::Add, true),
        0x40 => (AtomicOp::Or, false),
        0x41 => (AtomicOp::Or, true),
        0x50 => (AtomicOp::And, false),
        0x51 => (AtomicOp::And, true),
        0xa0 => (AtomicOp::Xor, false),
        0xa1 => (AtomicOp::Xor, true),
        0xe1 => (AtomicOp::Exchange, true),
        0xf1 => (AtomicOp::CompareExchange, true),
        _ => return Err(DecodeError::Variant),
    };
    let (base, src) = (slot.dst()?, slot.src()?);
    Ok(Instruction::Atomic { width, op, fetch, base, offset: slot.offset, src })
}

fn arithmetic(slot: InstructionSlot, width: Width) -> Result<Instruction, DecodeError> {
    let dst = slot.dst()?;
    let op = match (slot.code & 0xf0, slot.offset) {
        (0x00, 0) => AluOp::Add,
        (0x10, 0) => AluOp::Sub,
        (0x20, 0) => AluOp::Mul,
        (0x30, 0) => AluOp::Div,
        (0x30, 1) => AluOp::SignedDiv,
        (0x40, 0) => AluOp::Or,
        (0x50, 0) => AluOp::And,
        (0x60, 0) => AluOp::ShiftLeft,
        (0x70, 0) => AluOp::ShiftRight,
        (0x80, 0) => {
            zero(slot.src == 0 && slot.immediate == 0)?;
            return match slot.code & 8 {
                0 => {
                    Ok(Instruction::Alu { width, op: AluOp::Neg, dst, src: Operand::Immediate(0) })
                }
                _ => Err(DecodeError::Opcode(slot.code)),
            };
        }
        (0x90, 0) => AluOp::Mod,
        (0x90, 1) => AluOp::SignedMod,
        (0xa0, 0) => AluOp::Xor,
        (0xb0, 0) => AluOp::Move,
        (0xb0, 8) => AluOp::MoveSigned8,
        (0xb0, 16) => AluOp::MoveSigned16,
        (0xb0, 32) if width == Width::Double => AluOp::MoveSigned32,
        (0xc0, 0) => AluOp::ShiftRightSigned,
        (0xd0, 0) => return bytes(slot, width, dst),
        (0xe0 | 0xf0, _) => return Err(DecodeError::Opcode(slot.code)),
        _ => return Err(DecodeError::Variant),
    };
    let src = slot.operand()?;
    if op.needs_register() && matches!(src, Operand::Immediate(_)) {
        return Err(DecodeError::Variant);
    }
    Ok(Instruction::Alu { width, op, dst, src })
}

fn bytes(slot: InstructionSlot, width: Width, dst: Register) -> Result<Instruction, DecodeError> {
    zero(slot.src == 0)?;
    let order = match (width, slot.code & 8) {
        (Width::Word, 0) => Order::Little,
        (Width::Word, _) => Order::Big,
        (Width::Double, 0) => Order::Swapped,
        (Width::Double, _) => return Err(DecodeError::Opcode(slot.code)),
    };
    let size = match slot.immediate {
        16 => Size::Half,
        32 => Size::Word,
        64 => Size::Double,
        _ => return Err(DecodeError::Variant),
    };
    Ok(Instruction::Bytes { order, size, dst })
}

fn jump(slot: InstructionSlot, width: Width) -> Result<Instruction, DecodeError> {
    let condition = match slot.code & 0xf0 {
        0x00 | 0x80 | 0x90 => return unconditional(slot),
        0x10 => Condition::Equal,
        0x20 => Condition::Greater,
        0x30 => Condition::GreaterEqual,
        0x40 => Condition::Set,
        0x50 => Condition::NotEqual,
        0x60 => Condition::SignedGreater,
        0x70 => Condition::SignedGreaterEqual,
        0xa0 => Condition::Less,
        0xb0 => Condition::LessEqual,
        0xc0 => Condition::SignedLess,
        0xd0 => Condition::SignedLessEqual,
        _ => return Err(DecodeError::Opcode(slot.code)),
    };
    let (dst, src) = (slot.dst()?, slot.operand()?);
    Ok(Instruction::JumpIf { width, condition, dst, src, offset: slot.offset })
}

/// Jumps without condition, calls and exits: their whole operation codes.
fn unconditional(slot: InstructionSlot) -> Result<Instruction, DecodeError> {
    if slot.code == 0x8d {
        return Err(DecodeError::CallByPointer);
    }
    let known = matches!(slot.code, 0x05 | 0x06 | 0x85 | 0x95);
    if !known {
        return Err(DecodeError::Opcode(slot.code));
    }
    zero(slot.dst == 0)?;
    if slot.code != 0x85 {
        zero(slot.src == 0)?;
    }
    match slot.code {
        0x05 => {
            zero(slot.immediate == 0)?;
            Ok(Instruction::Jump { offset: i32::from(slot.offset) })
        }
        0x06 => {
            zero(slot.offset == 0)?;
            Ok(Instruction::Jump { offset: slot.immediate })
        }
        0x85 => {
            zero(slot.offset == 0)?;
            match slot.src {
                0 => Ok(Instruction::CallHelper { number: slot.immediate as u32 }),
                1 => Ok(Instruction::CallFunction { offset: slot.immediate }),
                _ => Err(DecodeError::Variant),
            }
        }
        _ => {
            zero(slot.immediate == 0 && slot.offset == 0)?;
            Ok(Instruction::Exit)
        }
    }
}
