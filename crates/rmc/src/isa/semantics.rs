//! What the operations compute: the one definition that the interpreters share and the verifier's
//! arithmetic is tested against.

use super::{AluOp, Condition, Order, Size, Width};

/// `a op b`.
pub fn alu(width: Width, op: AluOp, a: u64, b: u64) -> u64 {
    match width {
        Width::Double => alu_double(op, a, b),
        Width::Word => u64::from(alu_word(op, a as u32, b as u32)),
    }
}

fn alu_double(op: AluOp, a: u64, b: u64) -> u64 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::SignedDiv if b == 0 => 0,
        AluOp::SignedDiv => (a as i64).wrapping_div(b as i64) as u64,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::ShiftLeft => a.wrapping_shl(b as u32),
        AluOp::ShiftRight => a.wrapping_shr(b as u32),
        AluOp::Neg => a.wrapping_neg(),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SignedMod if b == 0 => a,
        AluOp::SignedMod => (a as i64).wrapping_rem(b as i64) as u64,
        AluOp::Xor => a ^ b,
        AluOp::Move => b,
        AluOp::MoveSigned8 => sign_extend(Size::Byte, b),
        AluOp::MoveSigned16 => sign_extend(Size::Half, b),
        AluOp::MoveSigned32 => sign_extend(Size::Word, b),
        AluOp::ShiftRightSigned => (a as i64).wrapping_shr(b as u32) as u64,
    }
}

fn alu_word(op: AluOp, a: u32, b: u32) -> u32 {
    match op {
        AluOp::Add => a.wrapping_add(b),
        AluOp::Sub => a.wrapping_sub(b),
        AluOp::Mul => a.wrapping_mul(b),
        AluOp::Div => a.checked_div(b).unwrap_or(0),
        AluOp::SignedDiv if b == 0 => 0,
        AluOp::SignedDiv => (a as i32).wrapping_div(b as i32) as u32,
        AluOp::Or => a | b,
        AluOp::And => a & b,
        AluOp::ShiftLeft => a.wrapping_shl(b),
        AluOp::ShiftRight => a.wrapping_shr(b),
        AluOp::Neg => a.wrapping_neg(),
        AluOp::Mod => a.checked_rem(b).unwrap_or(a),
        AluOp::SignedMod if b == 0 => a,
        AluOp::SignedMod => (a as i32).wrapping_rem(b as i32) as u32,
        AluOp::Xor => a ^ b,
        AluOp::Move | AluOp::MoveSigned32 => b,
        AluOp::MoveSigned8 => i32::from(b as i8) as u32,
        AluOp::MoveSigned16 => i32::from(b as i16) as u32,
        AluOp::ShiftRightSigned => (a as i32).wrapping_shr(b) as u32,
    }
}

/// The lower `size` of `value`, sign-extended.
pub fn sign_extend(size: Size, value: u64) -> u64 {
    match size {
        Size::Byte => i64::from(value as i8) as u64,
        Size::Half => i64::from(value as i16) as u64,
        Size::Word => i64::from(value as i32) as u64,
        Size::Double => value,
    }
}

/// The lower `size` of `value` in another order, the rest zero.
pub fn byte_swap(order: Order, size: Size, value: u64) -> u64 {
    let swaps = !matches!(order, Order::Little);
    match (size, swaps) {
        (Size::Byte, _) => value & 0xff,
        (Size::Half, false) => value & 0xffff,
        (Size::Half, true) => u64::from((value as u16).swap_bytes()),
        (Size::Word, false) => value & 0xffff_ffff,
        (Size::Word, true) => u64::from((value as u32).swap_bytes()),
        (Size::Double, false) => value,
        (Size::Double, true) => value.swap_bytes(),
    }
}

/// Whether the condition holds of `a` and `b`.
pub fn compare(width: Width, condition: Condition, a: u64, b: u64) -> bool {
    let (a, b, signed_a, signed_b) = match width {
        Width::Double => (a, b, a as i64, b as i64),
        Width::Word => {
            let (a, b) = (a as u32, b as u32);
            (u64::from(a), u64::from(b), i64::from(a as i32), i64::from(b as i32))
        }
    };
    match condition {
        Condition::Equal => a == b,
        Condition::Greater => a > b,
        Condition::GreaterEqual => a >= b,
        Condition::Set => a & b != 0,
        Condition::NotEqual => a != b,
        Condition::SignedGreater => signed_a > signed_b,
        Condition::SignedGreaterEqual => signed_a >= signed_b,
        Condition::Less => a < b,
        Condition::LessEqual => a <= b,
        Condition::SignedLess => signed_a < signed_b,
        Condition::SignedLessEqual => signed_a <= signed_b,
    }
}
