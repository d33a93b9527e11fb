//! Abstract numbers: known bits, and unsigned and signed ranges of 64 and of 32 bits, as in Linux's verifier (`tnum`,
//! `umin_value` to `s32_max_value`); a reduced product, in which each part learns from the others
//! ([`Scalar::tighten`]): known low bits are a congruence modulo a power of two, to which the ends of ranges are
//! rounded.
//!
//! Arithmetic of 32 bits is that of 64 on the operands extended both ways: the zero-extended ones give the unsigned
//! range and the bits, the sign-extended ones the signed range. Arithmetic of 64 bits gives the ranges of the lower
//! half by that of 32 where it depends on the lower halves alone.

use super::tnum::Bits;
use crate::isa::{AluOp, Order, Size, Width, alu, byte_swap};

/// A set of numbers. Never empty; [`Scalar::tighten`] finds out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Scalar {
    pub(super) bits: Bits,
    pub(super) least: u64,
    pub(super) most: u64,
    pub(super) signed_least: i64,
    pub(super) signed_most: i64,
    pub(super) least32: u32,
    pub(super) most32: u32,
    pub(super) signed_least32: i32,
    pub(super) signed_most32: i32,
    /// Marks an operand, so that a result that is one of them is known as that; zero for none.
    pub(super) link: u32,
}

impl Scalar {
    pub(super) const UNKNOWN: Self = Self {
        bits: Bits::UNKNOWN,
        least: 0,
        most: u64::MAX,
        signed_least: i64::MIN,
        signed_most: i64::MAX,
        least32: 0,
        most32: u32::MAX,
        signed_least32: i32::MIN,
        signed_most32: i32::MAX,
        link: 0,
    };

    pub(super) const fn constant(value: u64) -> Self {
        Self {
            bits: Bits::constant(value),
            least: value,
            most: value,
            signed_least: value as i64,
            signed_most: value as i64,
            least32: value as u32,
            most32: value as u32,
            signed_least32: value as i32,
            signed_most32: value as i32,
            link: 0,
        }
    }

    pub(super) fn range(least: u64, most: u64) -> Self {
        Self { least, most, ..Self::UNKNOWN }.tighten().unwrap_or(Self::UNKNOWN)
    }

    pub(super) fn signed_range(least: i64, most: i64) -> Self {
        let scalar = Self { signed_least: least, signed_most: most, ..Self::UNKNOWN };
        scalar.tighten().unwrap_or(Self::UNKNOWN)
    }

    /// Some of `first`, `first + by`, and so on to `last`, which is one of them; the greatest power of two that
    /// divides `by` is known to.
    pub(super) fn steps(first: i64, last: i64, by: i64) -> Option<Self> {
        let low = (1_u64 << by.trailing_zeros().min(63)) - 1;
        let bits = Bits { value: first as u64 & low, mask: !low };
        let (signed_least, signed_most) = (first.min(last), first.max(last));
        Self { bits, signed_least, signed_most, ..Self::UNKNOWN }.tighten()
    }

    pub(super) fn as_constant(&self) -> Option<u64> {
        (self.least == self.most).then_some(self.least)
    }

    /// Whether every part is the same single number.
    pub(super) fn is_exact(&self) -> bool {
        self.least == self.most && *self == Self { link: self.link, ..Self::constant(self.least) }
    }

    /// Lets each part learn from the others; `None` when they contradict each other: there is no such
    /// number.
    pub(super) fn tighten(mut self) -> Option<Self> {
        // A known number cannot be refined further.
        if self.is_exact() {
            return Some(self);
        }
        for _ in 0..2 {
            let before = self;
            self.learn_from_bits();
            self.learn_from_low_bits()?;
            self.learn_from_signs();
            self.learn_from_halves();
            let ranges = self.least <= self.most
                && self.signed_least <= self.signed_most
                && self.least32 <= self.most32
                && self.signed_least32 <= self.signed_most32;
            if !ranges {
                return None;
            }
            let low = Bits::range(u64::from(self.least32), u64::from(self.most32));
            let low = Bits { value: low.value, mask: low.mask | !0xffff_ffff };
            self.bits = self.bits.meet(low)?.meet(Bits::range(self.least, self.most))?;
            if self == before {
                break;
            }
        }
        Some(self)
    }

    fn learn_from_bits(&mut self) {
        let Bits { value, mask } = self.bits;
        self.least = self.least.max(value);
        self.most = self.most.min(value | mask);
        let sign = 1 << 63;
        self.signed_least = self.signed_least.max((value | mask & sign) as i64);
        self.signed_most = self.signed_most.min((value | mask & !sign) as i64);
        let (value, mask, sign) = (value as u32, mask as u32, 1 << 31);
        self.least32 = self.least32.max(value);
        self.most32 = self.most32.min(value | mask);
        self.signed_least32 = self.signed_least32.max((value | mask & sign) as i32);
        self.signed_most32 = self.signed_most32.min((value | mask & !sign) as i32);
    }

    /// Moves the ends of the ranges to the nearest numbers whose low bits are the known ones (a congruence modulo a
    /// power of two); `None` where there is none.
    fn learn_from_low_bits(&mut self) -> Option<()> {
        let known = self.bits.mask.trailing_zeros();
        if known == 0 || known >= 32 {
            return Some(());
        }
        let low = (1_u64 << known) - 1;
        let up = |from: u64| self.bits.value.wrapping_sub(from) & low;
        let down = |from: u64| from.wrapping_sub(self.bits.value) & low;
        self.least = self.least.checked_add(up(self.least))?;
        self.most = self.most.checked_sub(down(self.most))?;
        self.signed_least = self.signed_least.checked_add_unsigned(up(self.signed_least as u64))?;
        self.signed_most = self.signed_most.checked_sub_unsigned(down(self.signed_most as u64))?;
        self.least32 = self.least32.checked_add(up(u64::from(self.least32)) as u32)?;
        self.most32 = self.most32.checked_sub(down(u64::from(self.most32)) as u32)?;
        let (up, down) = (up(self.signed_least32 as u64), down(self.signed_most32 as u64));
        self.signed_least32 = self.signed_least32.checked_add_unsigned(up as u32)?;
        self.signed_most32 = self.signed_most32.checked_sub_unsigned(down as u32)?;
        Some(())
    }

    /// A range that does not change its sign is the same in both readings.
    fn learn_from_signs(&mut self) {
        if self.least as i64 <= self.most as i64 {
            self.signed_least = self.signed_least.max(self.least as i64);
            self.signed_most = self.signed_most.min(self.most as i64);
        }
        if self.signed_least as u64 <= self.signed_most as u64 {
            self.least = self.least.max(self.signed_least as u64);
            self.most = self.most.min(self.signed_most as u64);
        }
        if self.least32 as i32 <= self.most32 as i32 {
            self.signed_least32 = self.signed_least32.max(self.least32 as i32);
            self.signed_most32 = self.signed_most32.min(self.most32 as i32);
        }
        if self.signed_least32 as u32 <= self.signed_most32 as u32 {
            self.least32 = self.least32.max(self.signed_least32 as u32);
            self.most32 = self.most32.min(self.signed_most32 as u32);
        }
    }

    /// Propagates between the lower half and the whole if the upper half is known.
    fn learn_from_halves(&mut self) {
        let upper = self.least & !0xffff_ffff;
        if upper == self.most & !0xffff_ffff {
            self.least32 = self.least32.max(self.least as u32);
            self.most32 = self.most32.min(self.most as u32);
            self.least = self.least.max(upper | u64::from(self.least32));
            self.most = self.most.min(upper | u64::from(self.most32));
        }
        let fits =
            self.signed_least >= i64::from(i32::MIN) && self.signed_most <= i64::from(i32::MAX);
        if fits {
            self.signed_least32 = self.signed_least32.max(self.signed_least as i32);
            self.signed_most32 = self.signed_most32.min(self.signed_most as i32);
            self.signed_least = self.signed_least.max(i64::from(self.signed_least32));
            self.signed_most = self.signed_most.min(i64::from(self.signed_most32));
        }
    }

    /// Tightened where that is consistent. For results of sound arithmetic, which are never empty.
    fn settled(self) -> Self {
        self.tighten().unwrap_or(Self::UNKNOWN)
    }

    /// The lower half, zero-extended.
    pub(super) fn zero_extended(&self) -> Self {
        Self {
            bits: self.bits.low(),
            least: u64::from(self.least32),
            most: u64::from(self.most32),
            signed_least: 0,
            signed_most: i64::from(u32::MAX),
            link: 0,
            ..*self
        }
        .settled()
    }

    /// The lower half, sign-extended.
    pub(super) fn sign_extended(&self) -> Self {
        Self {
            bits: Bits { value: self.bits.low().value, mask: self.bits.low().mask | !0xffff_ffff },
            least: 0,
            most: u64::MAX,
            signed_least: i64::from(self.signed_least32),
            signed_most: i64::from(self.signed_most32),
            link: 0,
            ..*self
        }
        .settled()
    }

    /// All values that a load of this size can return.
    pub(super) fn loaded(size: Size, signed: bool) -> Self {
        let bits = size.bytes() as u32 * 8;
        if bits == 64 {
            return Self::UNKNOWN;
        }
        if signed {
            Self::signed_range(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
        } else {
            Self::range(0, (1 << bits) - 1)
        }
    }

    pub(super) fn contains(&self, other: &Self) -> bool {
        self.bits.contains(other.bits)
            && self.least <= other.least
            && self.most >= other.most
            && self.signed_least <= other.signed_least
            && self.signed_most >= other.signed_most
            && self.least32 <= other.least32
            && self.most32 >= other.most32
            && self.signed_least32 <= other.signed_least32
            && self.signed_most32 >= other.signed_most32
    }

    /// Whether it has a number and, as unsigned and signed ones, less and greater ones.
    pub(super) fn has_within(&self, number: u64) -> bool {
        let signed = number as i64;
        self.least < number
            && number < self.most
            && self.signed_least < signed
            && signed < self.signed_most
            && self.contains(&Self::constant(number))
    }

    pub(super) fn join(&self, other: &Self) -> Self {
        Self {
            bits: self.bits.join(other.bits),
            least: self.least.min(other.least),
            most: self.most.max(other.most),
            signed_least: self.signed_least.min(other.signed_least),
            signed_most: self.signed_most.max(other.signed_most),
            least32: self.least32.min(other.least32),
            most32: self.most32.max(other.most32),
            signed_least32: self.signed_least32.min(other.signed_least32),
            signed_most32: self.signed_most32.max(other.signed_most32),
            link: if self.link == other.link { self.link } else { 0 },
        }
    }

    pub(super) fn meet(&self, other: &Self) -> Option<Self> {
        Self {
            bits: self.bits.meet(other.bits)?,
            least: self.least.max(other.least),
            most: self.most.min(other.most),
            signed_least: self.signed_least.max(other.signed_least),
            signed_most: self.signed_most.min(other.signed_most),
            least32: self.least32.max(other.least32),
            most32: self.most32.min(other.most32),
            signed_least32: self.signed_least32.max(other.signed_least32),
            signed_most32: self.signed_most32.min(other.signed_most32),
            link: self.link,
        }
        .tighten()
    }

    /// At least the join, with every bound that has moved at one of the thresholds (sorted), so that it
    /// moves only so often.
    pub(super) fn widen(&self, new: &Self, thresholds: &[i64]) -> Self {
        let joined = self.join(new);
        let below = |value: i64| {
            let after = thresholds.partition_point(|threshold| *threshold <= value);
            after.checked_sub(1).map_or(i64::MIN, |at| thresholds[at])
        };
        let above = |value: i64| {
            let at = thresholds.partition_point(|threshold| *threshold < value);
            thresholds.get(at).copied().unwrap_or(i64::MAX)
        };
        let mut wide = joined;
        if joined.signed_least < self.signed_least {
            wide.signed_least = below(joined.signed_least);
        }
        if joined.signed_most > self.signed_most {
            wide.signed_most = above(joined.signed_most);
        }
        if joined.least < self.least {
            wide.least = below(i64::try_from(joined.least).unwrap_or(0)).max(0) as u64;
        }
        if joined.most > self.most {
            let most = i64::try_from(joined.most).map(above).unwrap_or(i64::MAX);
            wide.most = if most == i64::MAX { u64::MAX } else { most as u64 };
        }
        if joined.signed_least32 < self.signed_least32 {
            let least = below(i64::from(joined.signed_least32));
            wide.signed_least32 = i32::try_from(least).unwrap_or(i32::MIN);
        }
        if joined.signed_most32 > self.signed_most32 {
            let most = above(i64::from(joined.signed_most32));
            wide.signed_most32 = i32::try_from(most).unwrap_or(i32::MAX);
        }
        if joined.least32 < self.least32 {
            wide.least32 = u32::try_from(below(i64::from(joined.least32)).max(0)).unwrap_or(0);
        }
        if joined.most32 > self.most32 {
            let most = above(i64::from(joined.most32));
            wide.most32 = u32::try_from(most).unwrap_or(u32::MAX);
        }
        wide
    }

    /// `a op b`.
    pub(super) fn alu(width: Width, op: AluOp, a: &Self, b: &Self) -> Self {
        if let (Some(a), Some(b)) = (a.as_constant(), b.as_constant()) {
            return Self::constant(alu(width, op, a, b));
        }
        match width {
            Width::Double => with_lower_half(op, a, b, double(op, a, b)).settled(),
            Width::Word => word(op, a, b).settled(),
        }
    }

    /// `self op constant`, of 64 bits.
    pub(super) fn by(&self, op: AluOp, constant: u64) -> Self {
        Self::alu(Width::Double, op, self, &Self::constant(constant))
    }

    /// The lower `size` in another order.
    pub(super) fn bytes(order: Order, size: Size, a: &Self) -> Self {
        if let Some(value) = a.as_constant() {
            return Self::constant(byte_swap(order, size, value));
        }
        match (order, size) {
            (Order::Little, Size::Double) => *a,
            (Order::Little, Size::Word) => a.zero_extended(),
            (Order::Little, Size::Half) => {
                Self::alu(Width::Double, AluOp::And, a, &Self::constant(0xffff))
            }
            _ => Self::loaded(size, false),
        }
    }
}

/// A result of 64 bits with what the lower halves alone say of its lower half, where those do not follow from the
/// whole.
fn with_lower_half(op: AluOp, a: &Scalar, b: &Scalar, mut result: Scalar) -> Scalar {
    let follows = |scalar: &Scalar| scalar.least >> 32 == scalar.most >> 32;
    let by_halves = match op {
        AluOp::Add | AluOp::Sub | AluOp::Mul | AluOp::And | AluOp::Or | AluOp::Xor => true,
        AluOp::ShiftLeft => b.most < 32,
        _ => false,
    };
    let says = |scalar: &Scalar| {
        (scalar.least32, scalar.most32) != (0, u32::MAX)
            || (scalar.signed_least32, scalar.signed_most32) != (i32::MIN, i32::MAX)
    };
    if by_halves && says(a) && says(b) && !(follows(a) && follows(b)) {
        let half = word(op, a, b);
        (result.least32, result.most32) = (half.least32, half.most32);
        (result.signed_least32, result.signed_most32) = (half.signed_least32, half.signed_most32);
    }
    result
}

const FULL: (u64, u64) = (0, u64::MAX);
const SIGNED_FULL: (i64, i64) = (i64::MIN, i64::MAX);

fn made(bits: Bits, (least, most): (u64, u64), signed: (i64, i64)) -> Scalar {
    let (signed_least, signed_most) = signed;
    Scalar { bits, least, most, signed_least, signed_most, ..Scalar::UNKNOWN }
}

fn both<T, U>(a: Option<T>, b: Option<U>) -> Option<(T, U)> {
    a.zip(b)
}

fn double(op: AluOp, a: &Scalar, b: &Scalar) -> Scalar {
    match op {
        AluOp::Add => {
            let range = both(a.least.checked_add(b.least), a.most.checked_add(b.most));
            let signed = both(
                a.signed_least.checked_add(b.signed_least),
                a.signed_most.checked_add(b.signed_most),
            );
            made(a.bits.add(b.bits), range.unwrap_or(FULL), signed.unwrap_or(SIGNED_FULL))
        }
        AluOp::Sub => {
            let range = both(a.least.checked_sub(b.most), a.most.checked_sub(b.least));
            let signed = both(
                a.signed_least.checked_sub(b.signed_most),
                a.signed_most.checked_sub(b.signed_least),
            );
            made(a.bits.sub(b.bits), range.unwrap_or(FULL), signed.unwrap_or(SIGNED_FULL))
        }
        AluOp::Neg => double(AluOp::Sub, &Scalar::constant(0), a),
        AluOp::Mul => multiplied(a, b),
        AluOp::And => made(a.bits.and(b.bits), (0, a.most.min(b.most)), SIGNED_FULL),
        AluOp::Or => {
            made(a.bits.or(b.bits), (a.least.max(b.least), ones(a.most | b.most)), SIGNED_FULL)
        }
        AluOp::Xor => made(a.bits.xor(b.bits), (0, ones(a.most | b.most)), SIGNED_FULL),
        AluOp::ShiftLeft => shifted_left(a, b),
        AluOp::ShiftRight => shifted_right(a, b),
        AluOp::ShiftRightSigned => shifted_right_signed(a, b),
        AluOp::Div if b.least > 0 => {
            made(Bits::UNKNOWN, (a.least / b.most, a.most / b.least), SIGNED_FULL)
        }
        AluOp::Div => made(Bits::UNKNOWN, (0, a.most), SIGNED_FULL),
        AluOp::Mod if a.most < b.least => *a,
        AluOp::Mod if b.least > 0 => made(Bits::UNKNOWN, (0, a.most.min(b.most - 1)), SIGNED_FULL),
        AluOp::Mod => made(Bits::UNKNOWN, (0, a.most), SIGNED_FULL),
        AluOp::SignedDiv => divided_signed(a, b),
        AluOp::SignedMod => remainder_signed(a, b),
        AluOp::Move => *b,
        AluOp::MoveSigned8 => extended(b, Size::Byte),
        AluOp::MoveSigned16 => extended(b, Size::Half),
        AluOp::MoveSigned32 => b.sign_extended(),
    }
}

/// The least number of ones from the lowest bit that reaches over `value`.
fn ones(value: u64) -> u64 {
    Bits::range(0, value).mask
}

fn multiplied(a: &Scalar, b: &Scalar) -> Scalar {
    let range = both(a.least.checked_mul(b.least), a.most.checked_mul(b.most));
    let products = [
        a.signed_least.checked_mul(b.signed_least),
        a.signed_least.checked_mul(b.signed_most),
        a.signed_most.checked_mul(b.signed_least),
        a.signed_most.checked_mul(b.signed_most),
    ];
    let signed = products.into_iter().try_fold((i64::MAX, i64::MIN), |(least, most), product| {
        product.map(|product| (product.min(least), product.max(most)))
    });
    made(a.bits.mul(b.bits), range.unwrap_or(FULL), signed.unwrap_or(SIGNED_FULL))
}

/// The counts that a shift may have, if they are all below 64.
fn counts(b: &Scalar) -> Option<(u32, u32)> {
    (b.most < 64).then_some((b.least as u32, b.most as u32))
}

fn shifted_left(a: &Scalar, b: &Scalar) -> Scalar {
    let Some((low, high)) = counts(b) else {
        return Scalar::UNKNOWN;
    };
    if (low, high) == (32, 32) {
        // Only the lower half remains, so that its ranges apply.
        let range = (u64::from(a.least32) << 32, u64::from(a.most32) << 32);
        let signed = (i64::from(a.signed_least32) << 32, i64::from(a.signed_most32) << 32);
        return made(a.bits.shift_left(32), range, signed);
    }
    let range =
        if a.most.leading_zeros() >= high { (a.least << low, a.most << high) } else { FULL };
    let bits = if low == high { a.bits.shift_left(low) } else { Bits::UNKNOWN };
    let keeps = |value: i64| value << high >> high == value;
    let signed = if low == high && keeps(a.signed_least) && keeps(a.signed_most) {
        (a.signed_least << low, a.signed_most << low)
    } else {
        SIGNED_FULL
    };
    made(bits, range, signed)
}

fn shifted_right(a: &Scalar, b: &Scalar) -> Scalar {
    let Some((low, high)) = counts(b) else {
        return made(Bits::UNKNOWN, (0, a.most), SIGNED_FULL);
    };
    let bits = if low == high { a.bits.shift_right(low) } else { Bits::UNKNOWN };
    made(bits, (a.least >> high, a.most >> low), SIGNED_FULL)
}

fn shifted_right_signed(a: &Scalar, b: &Scalar) -> Scalar {
    let (low, high) = counts(b).unwrap_or((0, 63));
    let bits = if low == high { a.bits.shift_right_signed(low) } else { Bits::UNKNOWN };
    let least = (a.signed_least >> low).min(a.signed_least >> high);
    let most = (a.signed_most >> low).max(a.signed_most >> high);
    made(bits, FULL, (least, most))
}

fn divided_signed(a: &Scalar, b: &Scalar) -> Scalar {
    let signed = match b.as_constant().map(|b| b as i64) {
        Some(by) if by > 0 => (a.signed_least / by, a.signed_most / by),
        // A quotient is never farther from zero than the dividend, unless that is the least number.
        _ => match a.signed_least.checked_neg() {
            Some(least) => {
                let far = least.max(a.signed_most).max(a.signed_least).max(0);
                (far.checked_neg().unwrap_or(i64::MIN), far)
            }
            None => SIGNED_FULL,
        },
    };
    made(Bits::UNKNOWN, FULL, signed)
}

fn remainder_signed(a: &Scalar, b: &Scalar) -> Scalar {
    let (mut least, mut most) = (a.signed_least.min(0), a.signed_most.max(0));
    let by = b.as_constant().and_then(|b| (b as i64).checked_abs()).filter(|by| *by > 0);
    if let Some(by) = by {
        least = least.max(1 - by);
        most = most.min(by - 1);
    }
    made(Bits::UNKNOWN, FULL, (least, most))
}

fn extended(a: &Scalar, size: Size) -> Scalar {
    let whole = Scalar::loaded(size, true);
    let fits = a.signed_least >= whole.signed_least && a.signed_most <= whole.signed_most;
    if fits { *a } else { whole }
}

/// Arithmetic of 32 bits: see the module.
fn word(op: AluOp, a: &Scalar, b: &Scalar) -> Scalar {
    let unsigned = || double(op, &a.zero_extended(), &b.zero_extended()).settled();
    let signed = || double(op, &a.sign_extended(), &b.sign_extended()).settled();
    let mut result = Scalar {
        bits: Bits { value: 0, mask: 0xffff_ffff },
        least: 0,
        most: u64::from(u32::MAX),
        signed_least: 0,
        signed_most: i64::from(u32::MAX),
        ..Scalar::UNKNOWN
    };
    let shift = matches!(op, AluOp::ShiftLeft | AluOp::ShiftRight | AluOp::ShiftRightSigned);
    if shift && b.most32 > 31 {
        return result;
    }
    let uses_unsigned = !matches!(
        op,
        AluOp::SignedDiv
            | AluOp::SignedMod
            | AluOp::ShiftRightSigned
            | AluOp::MoveSigned8
            | AluOp::MoveSigned16
    );
    let uses_signed = !matches!(op, AluOp::Div | AluOp::Mod | AluOp::ShiftRight | AluOp::ShiftLeft);
    if uses_unsigned {
        let of = unsigned();
        result.bits = of.bits.low();
        if of.least >> 32 == of.most >> 32 {
            (result.least32, result.most32) = (of.least as u32, of.most as u32);
        }
    }
    if uses_signed {
        let of = signed();
        let least = i32::try_from(of.signed_least);
        let most = i32::try_from(of.signed_most);
        if let (Ok(least), Ok(most)) = (least, most) {
            (result.signed_least32, result.signed_most32) = (least, most);
        }
    }
    result
}
