//! Refinement of the operands of a conditional jump, on either path.

use super::scalar::Scalar;
use super::tnum::Bits;
use crate::isa::{Condition, Width, compare};

/// Comparisons of which all conditions and their opposites are made.
#[derive(Clone, Copy)]
enum Relation {
    Equal,
    NotEqual,
    /// Less, by this at least: by 1, or by 0 where the two may be equal.
    Less(u8),
    SignedLess(u8),
    Set(bool),
}

/// The operands where the condition holds, or does not; `None` when that cannot be.
pub(super) fn refine(
    width: Width,
    condition: Condition,
    holds: bool,
    a: &Scalar,
    b: &Scalar,
) -> Option<(Scalar, Scalar)> {
    // Known numbers cannot be refined; only the condition is decided.
    if a.is_exact() && b.is_exact() {
        let same = compare(width, condition, a.least, b.least) == holds;
        return same.then_some((*a, *b));
    }
    use Condition::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual, Set};
    use Condition::{SignedGreater, SignedLess, SignedLessEqual};
    let (relation, swapped) = match condition {
        Equal | NotEqual if (condition == Equal) == holds => (Relation::Equal, false),
        Equal | NotEqual => (Relation::NotEqual, false),
        Set => (Relation::Set(holds), false),
        _ => {
            // Where `a < b` does not hold, `b <= a` does.
            let is_less = matches!(condition, Less | LessEqual | SignedLess | SignedLessEqual);
            let is_strict = matches!(condition, Less | Greater | SignedLess | SignedGreater);
            let by = u8::from(is_strict == holds);
            let unsigned = matches!(condition, Less | LessEqual | Greater | GreaterEqual);
            (if unsigned { Relation::Less(by) } else { Relation::SignedLess(by) }, is_less != holds)
        }
    };
    let (first, second) = if swapped { (b, a) } else { (a, b) };
    let (first, second) = match width {
        Width::Double => double(relation, *first, *second)?,
        Width::Word => word(relation, *first, *second)?,
    };
    let (first, second) = (first.tighten()?, second.tighten()?);
    Some(if swapped { (second, first) } else { (first, second) })
}

fn double(relation: Relation, mut a: Scalar, mut b: Scalar) -> Option<(Scalar, Scalar)> {
    match relation {
        Relation::Equal => {
            let same = a.meet(&b)?;
            return Some((same, Scalar { link: b.link, ..same }));
        }
        Relation::NotEqual => {
            if let Some(not) = b.as_constant() {
                exclude(&mut a, not)?;
            }
            if let Some(not) = a.as_constant() {
                exclude(&mut b, not)?;
            }
        }
        Relation::Less(by) => {
            a.most = a.most.min(b.most.checked_sub(by.into())?);
            b.least = b.least.max(a.least.checked_add(by.into())?);
        }
        Relation::SignedLess(by) => {
            a.signed_most = a.signed_most.min(b.signed_most.checked_sub(by.into())?);
            b.signed_least = b.signed_least.max(a.signed_least.checked_add(by.into())?);
        }
        Relation::Set(set) => {
            let other = a;
            mask(&mut a, b.as_constant(), set)?;
            mask(&mut b, other.as_constant(), set)?;
        }
    }
    Some((a, b))
}

fn word(relation: Relation, mut a: Scalar, mut b: Scalar) -> Option<(Scalar, Scalar)> {
    match relation {
        Relation::Equal => {
            let same = a.zero_extended().meet(&b.zero_extended())?;
            for scalar in [&mut a, &mut b] {
                scalar.least32 = same.least32;
                scalar.most32 = same.most32;
                scalar.signed_least32 = scalar.signed_least32.max(same.signed_least32);
                scalar.signed_most32 = scalar.signed_most32.min(same.signed_most32);
                let low = Bits { value: same.bits.value, mask: same.bits.mask | !0xffff_ffff };
                scalar.bits = scalar.bits.meet(low)?;
            }
        }
        Relation::NotEqual => {
            let (low_a, low_b) = (a.zero_extended(), b.zero_extended());
            if let Some(not) = low_b.as_constant() {
                exclude32(&mut a, not as u32)?;
            }
            if let Some(not) = low_a.as_constant() {
                exclude32(&mut b, not as u32)?;
            }
        }
        Relation::Less(by) => {
            a.most32 = a.most32.min(b.most32.checked_sub(by.into())?);
            b.least32 = b.least32.max(a.least32.checked_add(by.into())?);
        }
        Relation::SignedLess(by) => {
            a.signed_most32 = a.signed_most32.min(b.signed_most32.checked_sub(by.into())?);
            b.signed_least32 = b.signed_least32.max(a.signed_least32.checked_add(by.into())?);
        }
        Relation::Set(set) => {
            let (low_a, low_b) = (a.zero_extended(), b.zero_extended());
            mask(&mut a, low_b.as_constant(), set)?;
            mask(&mut b, low_a.as_constant(), set)?;
        }
    }
    Some((a, b))
}

/// Takes one number away from the ends of the ranges.
fn exclude(scalar: &mut Scalar, not: u64) -> Option<()> {
    if scalar.as_constant() == Some(not) {
        return None;
    }
    scalar.least += u64::from(scalar.least == not);
    scalar.most -= u64::from(scalar.most == not);
    if scalar.signed_least < scalar.signed_most {
        scalar.signed_least += i64::from(scalar.signed_least == not as i64);
        scalar.signed_most -= i64::from(scalar.signed_most == not as i64);
    }
    Some(())
}

fn exclude32(scalar: &mut Scalar, not: u32) -> Option<()> {
    if scalar.least32 == scalar.most32 {
        return (scalar.least32 != not).then_some(());
    }
    scalar.least32 += u32::from(scalar.least32 == not);
    scalar.most32 -= u32::from(scalar.most32 == not);
    if scalar.signed_least32 < scalar.signed_most32 {
        scalar.signed_least32 += i32::from(scalar.signed_least32 == not as i32);
        scalar.signed_most32 -= i32::from(scalar.signed_most32 == not as i32);
    }
    Some(())
}

/// One of the bits of `with` is set, or none is.
fn mask(scalar: &mut Scalar, with: Option<u64>, set: bool) -> Option<()> {
    let Some(with) = with else {
        return Some(());
    };
    let Bits { value, mask } = scalar.bits;
    if set {
        if (value | mask) & with == 0 {
            return None;
        }
        if with.is_power_of_two() {
            scalar.bits = Bits { value: value | with, mask: mask & !with };
        }
    } else {
        if value & with != 0 {
            return None;
        }
        scalar.bits = Bits { value, mask: mask & !with };
    }
    Some(())
}
