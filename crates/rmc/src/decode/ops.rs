//! Pre-decoded instructions for the interpreter: sixteen bytes, with decoded operands, and absolute jumps with their
//! cost.
//!
//! The second operand is always `register + immediate`: immediate forms take the register that is always
//! zero. That costs an addition and halves the number of cases.

use alloc::vec::Vec;

use crate::cost::Charges;
use crate::helpers::{Call, Helper};
use crate::isa::{AluOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width};
use crate::program::Program;

use super::area::Area;

/// The register that is always zero.
pub(crate) const ZERO: u8 = 11;

/// What an [`Op`] does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Code {
    Add,
    Sub,
    Mul,
    Or,
    And,
    Xor,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    Move,
    Add32,
    Sub32,
    Mul32,
    Or32,
    And32,
    Xor32,
    ShiftLeft32,
    ShiftRight32,
    ShiftRightSigned32,
    Move32,
    /// Any other arithmetic, executed from the original instruction.
    Rare,
    LoadWide,
    Load8,
    Load16,
    Load32,
    Load64,
    LoadSigned8,
    LoadSigned16,
    LoadSigned32,
    Store8,
    Store16,
    Store32,
    Store64,
    Atomic,
    Jump,
    Equal,
    Greater,
    GreaterEqual,
    Set,
    NotEqual,
    SignedGreater,
    SignedGreaterEqual,
    Less,
    LessEqual,
    SignedLess,
    SignedLessEqual,
    Equal32,
    Greater32,
    GreaterEqual32,
    Set32,
    NotEqual32,
    SignedGreater32,
    SignedGreaterEqual32,
    Less32,
    LessEqual32,
    SignedLess32,
    SignedLessEqual32,
    HelperLoad,
    HelperRead,
    Helper,
    Call,
    Exit,
    /// The verifier never came here.
    Trap,
    /// A marked slot, which is charged; the original operation says what it does. Only among fused operations,
    /// as are the next.
    Mark,
    /// Several moves, of which this is the first.
    Moves,
    /// Two or three loads of 64 bits.
    Loads2,
    Loads3,
    /// The helper `load_u64` with its arguments. The code also encodes the slots before and after the call, so that the
    /// next slot follows from it without a load.
    Word,
    WordIf,
    WordKept,
    WordKeptIf,
    SumWord,
    SumWordIf,
    SumWordKept,
    SumWordKeptIf,
}

/// Codes of words: by whether there is a sum, whether the result is kept, and whether a jump on equality follows.
const WORDS: [[[Code; 2]; 2]; 2] = [
    [[Code::Word, Code::WordIf], [Code::WordKept, Code::WordKeptIf]],
    [[Code::SumWord, Code::SumWordIf], [Code::SumWordKept, Code::SumWordKeptIf]],
];

/// One pre-decoded instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Op {
    pub(crate) code: Code,
    /// First operand and result; the base of a store.
    pub(crate) dst: u8,
    /// Second operand; the base of a load.
    pub(crate) src: u8,
    /// Offset of memory accesses; absolute target of jumps and calls.
    pub(crate) offset: i32,
    /// Added to the second operand; low half of a wide value; number of a helper.
    pub(crate) immediate: i32,
    /// High half of a wide value; what a jump, a call or a mark costs.
    pub(crate) extra: u32,
}

const TRAP: Op = Op { code: Code::Trap, dst: 0, src: 0, offset: 0, immediate: 0, extra: 0 };

/// Decodes the instructions of a program, one entry a slot. Slots that are not `reached` become traps. Jumps and calls
/// have a cost only in charged programs.
pub(crate) fn predecode(program: &Program, reached: &[bool], charges: Option<&Charges>) -> Vec<Op> {
    let one = |(at, instruction): (usize, &Instruction)| {
        if !reached.get(at).copied().unwrap_or(false) {
            return TRAP;
        }
        translate(at, *instruction, charges).unwrap_or(TRAP)
    };
    program.code.iter().enumerate().map(one).collect()
}

/// Fuses operations for the interpreter: the first slot of a frequent sequence does the work of all, unless one is
/// marked. Execution can still start at every slot.
pub(crate) fn fuse(ops: &[Op], charges: Option<&Charges>) -> Vec<Op> {
    let mut fused: Vec<Op> = ops.iter().map(|op| as_move(*op)).collect();
    for (slot, extra) in charges.into_iter().flat_map(Charges::marks) {
        if let Some(op) = fused.get_mut(slot) {
            *op = Op { code: Code::Mark, extra, ..TRAP };
        }
    }
    for at in (0..fused.len()).rev() {
        if let Some(op) = load_word(&fused[at..]) {
            fused[at] = op;
        } else if let [Op { code: Code::Load64, .. }, second, ..] = fused[at..] {
            fused[at].code = match second.code {
                Code::Load64 => Code::Loads2,
                Code::Loads2 | Code::Loads3 => Code::Loads3,
                _ => Code::Load64,
            };
        } else if let [first, second, ..] = fused[at..]
            && first.code == Code::Move
        {
            let more = match second.code {
                Code::Move => 1,
                Code::Moves => second.extra,
                _ => continue,
            };
            fused[at] = Op { code: Code::Moves, extra: more + 1, ..first };
        }
    }
    fused
}

/// A sum with a number is a move, too, of which the operand is any register and number.
fn as_move(op: Op) -> Op {
    match op.code {
        Code::Add if op.src == ZERO => Op { code: Code::Move, src: op.dst, ..op },
        _ => op,
    }
}

/// Fuses `r1 = dst, r2 = src + immediate, call load_u64, extra = r0`, with optional sum and copy, and an optional jump
/// after it.
fn load_word(ops: &[Op]) -> Option<Op> {
    let is_move = |op: &Op, to: u8| matches!(op.code, Code::Move | Code::Moves) && op.dst == to;
    let (region, offset) = (ops.first()?, ops.get(1)?);
    let plain = is_move(region, 1) && region.immediate == 0 && region.src != ZERO;
    if !plain || !is_move(offset, 2) || offset.src == 1 {
        return None;
    }
    let more = ops.get(2).filter(|op| is_move(op, 2) && op.src == 2);
    let immediate = match more {
        Some(more) => offset.immediate.checked_add(more.immediate)?,
        None => offset.immediate,
    };
    let call = if more.is_some() { 3 } else { 2 };
    if ops.get(call)?.code != Code::HelperLoad {
        return None;
    }
    let copy = ops.get(call + 1).filter(|op| {
        matches!(op.code, Code::Move | Code::Moves) && op.src == 0 && op.immediate == 0
    });
    let behind = ops.get(call + 1 + usize::from(copy.is_some()));
    let asks = behind.is_some_and(|op| matches!(op.code, Code::Equal | Code::NotEqual));
    Some(Op {
        code: WORDS[usize::from(more.is_some())][usize::from(copy.is_some())][usize::from(asks)],
        dst: region.src,
        src: offset.src,
        offset: 0,
        immediate,
        extra: copy.map_or(0, |op| u32::from(op.dst)),
    })
}

fn translate(at: usize, instruction: Instruction, charges: Option<&Charges>) -> Option<Op> {
    let op = match instruction {
        Instruction::Alu { width, op, dst, src } => {
            let (src, immediate) = operand(src);
            Op { code: arithmetic(width, op), dst: dst.number(), src, immediate, ..TRAP }
        }
        Instruction::Bytes { order, size, dst } => bytes(order, size, dst),
        Instruction::LoadWide { dst, value } => {
            let value = wide_value(value);
            let (immediate, extra) = (value as i32, (value >> 32) as u32);
            Op { code: Code::LoadWide, dst: dst.number(), immediate, extra, ..TRAP }
        }
        Instruction::Load { size, signed, dst, base, offset } => {
            let (dst, src, offset) = (dst.number(), base.number(), i32::from(offset));
            Op { code: load(size, signed), dst, src, offset, ..TRAP }
        }
        Instruction::Store { size, base, offset, src } => {
            let code = match size {
                Size::Byte => Code::Store8,
                Size::Half => Code::Store16,
                Size::Word => Code::Store32,
                Size::Double => Code::Store64,
            };
            let (src, immediate) = operand(src);
            Op { code, dst: base.number(), src, offset: i32::from(offset), immediate, extra: 0 }
        }
        Instruction::Atomic { .. } => Op { code: Code::Atomic, ..TRAP },
        Instruction::Jump { .. } => Op { code: Code::Jump, ..jump(at, instruction, charges)? },
        Instruction::JumpIf { width, condition, dst, src, .. } => {
            let (src, immediate) = operand(src);
            let code = comparison(width, condition);
            let jump = jump(at, instruction, charges)?;
            Op { code, dst: dst.number(), src, immediate, ..jump }
        }
        Instruction::CallHelper { number } => {
            let helper = Helper::with_number(number)?;
            let code = match helper.call {
                Call::LoadU64 => Code::HelperLoad,
                Call::Read => Code::HelperRead,
                _ => Code::Helper,
            };
            Op { code, immediate: number as i32, ..TRAP }
        }
        Instruction::CallFunction { offset } => {
            let target = usize::try_from(at as i64 + 1 + i64::from(offset)).ok()?;
            let extra = charges.map_or(0, |charges| charges.start(target));
            Op { code: Code::Call, offset: i32::try_from(target).ok()?, extra, ..TRAP }
        }
        Instruction::Exit => Op { code: Code::Exit, ..TRAP },
        Instruction::SecondHalf => TRAP,
    };
    Some(op)
}

/// What a wide load puts into its register.
pub(crate) fn wide_value(value: Wide) -> u64 {
    match value {
        Wide::Value(value) => value,
        Wide::Constant(offset) => Area::Constants.base() + u64::from(offset),
        Wide::StateHandle(number) => u64::from(number),
        Wide::Variable { shared: false, offset } => Area::Own.base() + u64::from(offset),
        Wide::Variable { shared: true, offset } => Area::Shared.base() + u64::from(offset),
    }
}

fn jump(at: usize, instruction: Instruction, charges: Option<&Charges>) -> Option<Op> {
    let target = usize::try_from(instruction.jump_target(at)?).ok()?;
    let extra = charges.map_or(0, |charges| charges.jump(at, target));
    Some(Op { offset: i32::try_from(target).ok()?, extra, ..TRAP })
}

fn operand(operand: Operand) -> (u8, i32) {
    match operand {
        Operand::Register(register) => (register.number(), 0),
        Operand::Immediate(value) => (ZERO, value),
    }
}

fn bytes(order: Order, size: Size, dst: Register) -> Op {
    let dst = dst.number();
    match (order, size) {
        (Order::Little, Size::Half) => {
            Op { code: Code::And, dst, src: ZERO, immediate: 0xffff, ..TRAP }
        }
        (Order::Little, Size::Word) => Op { code: Code::Move32, dst, src: dst, ..TRAP },
        (Order::Little, _) => Op { code: Code::Move, dst, src: dst, ..TRAP },
        _ => Op { code: Code::Rare, dst, ..TRAP },
    }
}

fn arithmetic(width: Width, op: AluOp) -> Code {
    match (width, op) {
        (Width::Double, AluOp::Add) => Code::Add,
        (Width::Double, AluOp::Sub) => Code::Sub,
        (Width::Double, AluOp::Mul) => Code::Mul,
        (Width::Double, AluOp::Or) => Code::Or,
        (Width::Double, AluOp::And) => Code::And,
        (Width::Double, AluOp::Xor) => Code::Xor,
        (Width::Double, AluOp::ShiftLeft) => Code::ShiftLeft,
        (Width::Double, AluOp::ShiftRight) => Code::ShiftRight,
        (Width::Double, AluOp::ShiftRightSigned) => Code::ShiftRightSigned,
        (Width::Double, AluOp::Move) => Code::Move,
        (Width::Word, AluOp::Add) => Code::Add32,
        (Width::Word, AluOp::Sub) => Code::Sub32,
        (Width::Word, AluOp::Mul) => Code::Mul32,
        (Width::Word, AluOp::Or) => Code::Or32,
        (Width::Word, AluOp::And) => Code::And32,
        (Width::Word, AluOp::Xor) => Code::Xor32,
        (Width::Word, AluOp::ShiftLeft) => Code::ShiftLeft32,
        (Width::Word, AluOp::ShiftRight) => Code::ShiftRight32,
        (Width::Word, AluOp::ShiftRightSigned) => Code::ShiftRightSigned32,
        (Width::Word, AluOp::Move) => Code::Move32,
        _ => Code::Rare,
    }
}

fn load(size: Size, signed: bool) -> Code {
    match (size, signed) {
        (Size::Byte, false) => Code::Load8,
        (Size::Half, false) => Code::Load16,
        (Size::Word, false) => Code::Load32,
        (Size::Double, _) => Code::Load64,
        (Size::Byte, true) => Code::LoadSigned8,
        (Size::Half, true) => Code::LoadSigned16,
        (Size::Word, true) => Code::LoadSigned32,
    }
}

fn comparison(width: Width, condition: Condition) -> Code {
    let double = width == Width::Double;
    let pick = |wide, narrow| if double { wide } else { narrow };
    match condition {
        Condition::Equal => pick(Code::Equal, Code::Equal32),
        Condition::Greater => pick(Code::Greater, Code::Greater32),
        Condition::GreaterEqual => pick(Code::GreaterEqual, Code::GreaterEqual32),
        Condition::Set => pick(Code::Set, Code::Set32),
        Condition::NotEqual => pick(Code::NotEqual, Code::NotEqual32),
        Condition::SignedGreater => pick(Code::SignedGreater, Code::SignedGreater32),
        Condition::SignedGreaterEqual => pick(Code::SignedGreaterEqual, Code::SignedGreaterEqual32),
        Condition::Less => pick(Code::Less, Code::Less32),
        Condition::LessEqual => pick(Code::LessEqual, Code::LessEqual32),
        Condition::SignedLess => pick(Code::SignedLess, Code::SignedLess32),
        Condition::SignedLessEqual => pick(Code::SignedLessEqual, Code::SignedLessEqual32),
    }
}
