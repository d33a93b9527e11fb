//! Refinement of the operands of a conditional jump, on either path.

use super::scalar::Scalar;
use super::tnum::Bits;
use crate::isa::{Condition, Width, compare};

/// Comparisons of which all conditions and their opposites are made.
#[derive(Clone, Copy)]
enum Relation {
    Equal,
    NotEqual,
    Less,
    LessEqual,
    SignedLess,
    SignedLessEqual,
    Set,
    NotSet,
}

/// The operands where the condition holds, or does not; `None` when that cannot be.
pub(super) fn refine(
    width: Width,
    condition: Condition,
    holds: bool,
    a: &Scalar,
    b: &Scalar,
) -> Option<(Scalar, Scalar)> {
    use Relation::{Equal, Less, LessEqual, NotEqual, NotSet, Set, SignedLess, SignedLessEqual};
    // Known numbers cannot be refined; only the condition is decided.
    if a.is_exact() && b.is_exact() {
        let same = compare(width, condition, a.least, b.least) == holds;
        return same.then_some((*a, *b));
    }
    let (relation, swapped) = match (condition, holds) {
        (Condition::Equal, true) | (Condition::NotEqual, false) => (Equal, false),
        (Condition::NotEqual, true) | (Condition::Equal, false) => (NotEqual, false),
        (Condition::Less, true) | (Condition::GreaterEqual, false) => (Less, false),
        (Condition::LessEqual, true) | (Condition::Greater, false) => (LessEqual, false),
        (Condition::Greater, true) | (Condition::LessEqual, false) => (Less, true),
        (Condition::GreaterEqual, true) | (Condition::Less, false) => (LessEqual, true),
        (Condition::SignedLess, true) | (Condition::SignedGreaterEqual, false) => {
            (SignedLess, false)
        }
        (Condition::SignedLessEqual, true) | (Condition::SignedGreater, false) => {
            (SignedLessEqual, false)
        }
        (Condition::SignedGreater, true) | (Condition::SignedLessEqual, false) => {
            (SignedLess, true)
        }
        (Condition::SignedGreaterEqual, true) | (Condition::SignedLess, false) => {
            (SignedLessEqual, true)
        }
        (Condition::Set, true) => (Set, false),
        (Condition::Set, false) => (NotSet, false),
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
        Relation::Less => {
            a.most = a.most.min(b.most.checked_sub(1)?);
            b.least = b.least.max(a.least.checked_add(1)?);
        }
        Relation::LessEqual => {
            a.most = a.most.min(b.most);
            b.least = b.least.max(a.least);
        }
        Relation::SignedLess => {
            a.signed_most = a.signed_most.min(b.signed_most.checked_sub(1)?);
            b.signed_least = b.signed_least.max(a.signed_least.checked_add(1)?);
        }
        Relation::SignedLessEqual => {
            a.signed_most = a.signed_most.min(b.signed_most);
            b.signed_least = b.signed_least.max(a.signed_least);
        }
        Relation::Set | Relation::NotSet => {
            let set = matches!(relation, Relation::Set);
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
        Relation::Less => {
            a.most32 = a.most32.min(b.most32.checked_sub(1)?);
            b.least32 = b.least32.max(a.least32.checked_add(1)?);
        }
        Relation::LessEqual => {
            a.most32 = a.most32.min(b.most32);
            b.least32 = b.least32.max(a.least32);
        }
        Relation::SignedLess => {
            a.signed_most32 = a.signed_most32.min(b.signed_most32.checked_sub(1)?);
            b.signed_least32 = b.signed_least32.max(a.signed_least32.checked_add(1)?);
        }
        Relation::SignedLessEqual => {
            a.signed_most32 = a.signed_most32.min(b.signed_most32);
            b.signed_least32 = b.signed_least32.max(a.signed_least32);
        }
        Relation::Set | Relation::NotSet => {
            let set = matches!(relation, Relation::Set);
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
