//! Straight code without memory, for engines of others.

use super::{FuzzRandom, R};
use farside_rmc::isa::{
    AluOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width, encode,
};

/// A program of arithmetic, jumps forward and memory that other engines understand in the same way: no
/// division by zero, no number with a sign where they disagree.
pub(crate) fn plain(chance: &mut FuzzRandom) -> Vec<Instruction> {
    let mut groups: Vec<Vec<Instruction>> = Vec::new();
    let numbers = [0, 2, 3, 4, 5, 7, 8, 9];
    let word = |dst, op, src| Instruction::Alu { width: Width::Word, op, dst, src };
    let double = |dst, op, src| Instruction::Alu { width: Width::Double, op, dst, src };
    groups.push(vec![double(R[6], AluOp::Move, Operand::Register(R[1]))]);
    for (at, register) in numbers.into_iter().enumerate() {
        let (dst, base) = (R[register], R[6]);
        let load = Instruction::Load {
            size: Size::Double,
            signed: false,
            dst,
            base,
            offset: at as i16 * 8,
        };
        let (base, offset) = (R[10], -8 - at as i16 * 8);
        let src = Operand::Register(dst);
        groups.push(vec![load, Instruction::Store { size: Size::Double, base, offset, src }]);
    }
    for _ in 0..chance.below(40) {
        let (dst, src) = (R[chance.of(&numbers)], R[chance.of(&numbers)]);
        groups.push(plain_group(chance, dst, src, word, double));
    }
    let mut code = Vec::new();
    let lengths: Vec<usize> =
        groups.iter().map(|group| group.iter().map(|one| one.slots()).sum()).collect();
    for (at, group) in groups.into_iter().enumerate() {
        for mut instruction in group {
            if let Instruction::JumpIf { offset, .. } = &mut instruction {
                let skipped = *offset as usize;
                let over = lengths.iter().skip(at + 1).take(skipped);
                *offset = over.sum::<usize>() as i16;
            }
            code.push(instruction);
            if instruction.slots() == 2 {
                code.push(Instruction::SecondHalf);
            }
        }
    }
    for register in [2, 3, 4, 5, 7, 8, 9] {
        code.push(double(R[0], AluOp::Mul, Operand::Immediate(31)));
        code.push(double(R[0], AluOp::Xor, Operand::Register(R[register])));
    }
    for slot in 1..9 {
        let (size, base, offset) = (Size::Double, R[10], slot * -8);
        code.push(Instruction::Load { size, signed: false, dst: R[1], base, offset });
        code.push(double(R[0], AluOp::Add, Operand::Register(R[1])));
    }
    code.push(Instruction::Exit);
    code
}

fn plain_group(
    chance: &mut FuzzRandom,
    dst: Register,
    src: Register,
    word: impl Fn(Register, AluOp, Operand) -> Instruction,
    double: impl Fn(Register, AluOp, Operand) -> Instruction,
) -> Vec<Instruction> {
    let from = Operand::Register(src);
    match chance.below(12) {
        0..=3 => {
            let ops = [AluOp::Or, AluOp::And, AluOp::Xor, AluOp::Move, AluOp::Add, AluOp::Sub];
            let ops = [&ops[..], &[AluOp::Mul]].concat();
            let op = chance.of(&ops);
            let operand =
                if chance.one_in(2) { from } else { Operand::Immediate(chance.immediate()) };
            if chance.one_in(2) {
                vec![double(dst, op, operand)]
            } else {
                // One engine sign-extends sums of 32 bits; moving them makes them equal again.
                let clear = word(dst, AluOp::Move, Operand::Register(dst));
                vec![word(dst, op, operand), clear]
            }
        }
        4 => {
            let op = chance.of(&[AluOp::ShiftLeft, AluOp::ShiftRight, AluOp::ShiftRightSigned]);
            let by = Operand::Immediate(chance.below(32) as i32);
            let by = if chance.one_in(2) { from } else { by };
            vec![if chance.one_in(2) { word(dst, op, by) } else { double(dst, op, by) }]
        }
        5 => {
            let op = chance.of(&[AluOp::Div, AluOp::Mod]);
            let not_zero = double(src, AluOp::Or, Operand::Immediate(1));
            let by = Operand::Immediate(1 + chance.below(1 << 20) as i32);
            let by = if chance.one_in(2) { from } else { by };
            vec![not_zero, if chance.one_in(2) { word(dst, op, by) } else { double(dst, op, by) }]
        }
        6 => {
            let smaller = double(dst, AluOp::ShiftRight, Operand::Immediate(1));
            let negated = double(dst, AluOp::Neg, Operand::Immediate(0));
            vec![smaller, negated]
        }
        7 => {
            let order = chance.of(&[Order::Little, Order::Big]);
            let size = chance.of(&[Size::Half, Size::Word, Size::Double]);
            vec![Instruction::Bytes { order, size, dst }]
        }
        8 => {
            let (size, offset) = (chance.of(&Size::ALL), -(chance.below(7) as i16 * 8) - 8);
            if chance.one_in(2) {
                vec![Instruction::Load { size, signed: false, dst, base: R[10], offset }]
            } else {
                vec![Instruction::Store { size, base: R[10], offset, src: from }]
            }
        }
        9 => vec![Instruction::LoadWide { dst, value: Wide::Value(chance.number()) }],
        _ => {
            let width = chance.of(&[Width::Word, Width::Double]);
            let condition = chance.of(&Condition::ALL);
            let immediate = Operand::Immediate(chance.below(1 << 31) as i32);
            let src = if chance.one_in(2) { from } else { immediate };
            let offset = 1 + chance.below(4) as i16;
            vec![Instruction::JumpIf { width, condition, dst, src, offset }]
        }
    }
}

/// The slots of code as bytes.
pub(crate) fn bytes_of(code: &[Instruction]) -> Vec<u8> {
    let slots = code.iter().filter_map(|instruction| encode(*instruction).ok());
    slots
        .flat_map(|(first, second)| [Some(first), second])
        .flatten()
        .flat_map(u64::to_le_bytes)
        .collect()
}
