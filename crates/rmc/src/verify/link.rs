//! Relations between the numbers of one abstract state that derive from one value: refining one refines the others.
//!
//! A number may be linked to a *symbol*, which names a value that was computed once: `form(symbol + add)`. Two
//! numbers of a state with the same symbol are functions of the same value, so that a comparison of one of them
//! bounds the other: copies, copies at a distance, the zero- and sign-extended lower half, the lower half shifted up
//! (an extension on processors without the instruction), and the value scaled by a power of two, as an index is. This
//! is Linux's `find_equal_scalars` (scalar ids, with `BPF_ADD_CONST`), with these extensions.
//!
//! A symbol means nothing outside of its state: two states agree in their relations if one's symbols can be renamed
//! into the other's, each at one distance ([`Renaming`]).

use alloc::vec::Vec;

use super::interned::Id;
use super::scalar::Scalar;
use super::tnum::Bits;
use crate::isa::{AluOp, Width};

/// The greatest distance from a symbol, and the greatest divisor.
const ADD_MAX: i64 = 1 << 14;

const DIVISOR_MAX: u64 = ADD_MAX as u64;

/// The greatest shift of a scaled sum.
const SCALE_MAX: u64 = 12;

/// What a number is of the sum of a symbol and a constant. Kept in two bytes, so that values of a state are small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Form(u16);

impl Form {
    /// The sum itself.
    const WHOLE: Self = Self(0);
    /// Its lower half, zero-extended.
    const ZERO: Self = Self(1);
    /// Its lower half, sign-extended.
    const SIGN: Self = Self(2);
    /// Its lower half, in the upper half.
    const UPPER: Self = Self(3);
    /// The sum, which is from 0 to 2^31 - 1, in the upper half.
    const UPPER_WHOLE: Self = Self(4);
    const QUOTIENT: u16 = 5;
    const MULTIPLE: u16 = Self::QUOTIENT + DIVISOR_MAX as u16;
    const SCALED: u16 = Self::MULTIPLE + DIVISOR_MAX as u16;

    /// The sum divided by a number.
    fn quotient(by: u16) -> Self {
        Self(Self::QUOTIENT + by)
    }

    /// The greatest multiple of a number that is not above the sum.
    fn multiple(of: u16) -> Self {
        Self(Self::MULTIPLE + of)
    }

    /// The sum shifted to the left, by at least 1.
    fn scaled(by: u16) -> Self {
        Self(Self::SCALED + by)
    }

    fn is_divided(self) -> bool {
        (Self::QUOTIENT..=Self::SCALED).contains(&self.0)
    }

    /// What it is a multiple of.
    fn multiple_of(self) -> Option<u16> {
        let of = self.0.checked_sub(Self::MULTIPLE)?;
        (1..=DIVISOR_MAX).contains(&u64::from(of)).then_some(of)
    }

    /// By how much the sum is shifted to the left: not at all where it is the sum itself; `None` of other forms.
    fn scale(self) -> Option<u16> {
        if self == Self::WHOLE {
            Some(0)
        } else {
            self.0.checked_sub(Self::SCALED + 1).map(|by| by + 1)
        }
    }
}

const _: () = assert!(Form::SCALED as u64 + SCALE_MAX <= u16::MAX as u64);

/// How a number follows from a symbol, if it does: `form(symbol + add)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SymbolLink {
    /// Zero for none.
    symbol: u32,
    add: i16,
    form: Form,
}

impl SymbolLink {
    pub(super) const NONE: Self = Self { symbol: 0, form: Form::WHOLE, add: 0 };

    /// The symbol itself.
    pub(super) fn of(symbol: u32) -> Self {
        Self { symbol, ..Self::NONE }
    }

    pub(super) fn is_none(self) -> bool {
        self.symbol == 0
    }

    /// The symbol itself.
    pub(super) fn symbol(self) -> Self {
        Self::of(self.symbol)
    }

    /// Whether it is a symbol at a distance.
    pub(super) fn is_whole(self) -> bool {
        !self.is_none() && self.form == Form::WHOLE
    }

    /// Whether it is that, or can get a separate symbol.
    pub(super) fn may_be_whole(self) -> bool {
        self.form == Form::WHOLE
    }

    /// Whether it is the extended lower half of a symbol at a distance.
    pub(super) fn is_half(self) -> bool {
        !self.is_none() && (self.form == Form::ZERO || self.form == Form::SIGN)
    }

    /// The zero-extended lower half of the symbol.
    pub(super) fn half(self) -> Self {
        Self { form: Form::ZERO, ..self.symbol() }
    }

    /// How far the sum is from the symbol.
    pub(super) fn add(self) -> i64 {
        i64::from(self.add)
    }

    /// How far this number may be above `multiple`, where that is the greatest multiple of some n not above the same
    /// symbol at another distance: with the distances a and b that is `a - b` and a remainder, which is from 0 to n -
    /// 1.
    pub(super) fn above(self, multiple: Self) -> Option<Scalar> {
        let of = multiple.form.multiple_of()?;
        let remainder = Scalar::range(0, u64::from(of) - 1);
        let above = remainder.by(AluOp::Add, (self.add() - multiple.add()) as u64);
        (self.is_related(multiple) && self.is_whole()).then_some(above)
    }

    /// By how much the sum is shifted to the left, if it is that or the sum itself.
    pub(super) fn scale(self) -> Option<u64> {
        if self.is_none() { None } else { self.form.scale().map(u64::from) }
    }

    /// The sum itself, shifted to the left.
    pub(super) fn scaled(self, by: u64) -> Option<Self> {
        let fits = self.is_whole() && (1..=SCALE_MAX).contains(&by);
        fits.then(|| Self { form: Form::scaled(by as u16), ..self })
    }

    /// Whether refining one can refine the other.
    pub(super) fn is_related(self, other: Self) -> bool {
        self.symbol == other.symbol && self.symbol != 0
    }

    /// Whether it is the same function of a symbol, but for the distance.
    fn is_like(self, other: Self) -> bool {
        self.form == other.form
    }

    /// The link of `number op by`, where that has one. `fits` is whether the number is from 0 to 2^31 - 1: either
    /// extension of its lower half is the number itself then.
    pub(super) fn through(self, width: Width, op: AluOp, by: Option<u64>, fits: bool) -> Self {
        if self.is_none() {
            return Self::NONE;
        }
        let whole = self.form == Form::WHOLE;
        let half = whole || self.form == Form::ZERO || self.form == Form::SIGN;
        let exact = whole && fits;
        let form = match (width, op, by) {
            (Width::Double, AluOp::Div, Some(by @ 2..=DIVISOR_MAX)) if whole => {
                Form::quotient(by as u16)
            }
            (Width::Double, AluOp::Mul, Some(by @ 2..=DIVISOR_MAX))
                if self.form == Form::quotient(by as u16) =>
            {
                Form::multiple(by as u16)
            }
            (Width::Double, AluOp::Add | AluOp::Sub, Some(by)) if self.form.scale().is_some() => {
                let by = if op == AluOp::Add { by as i64 } else { (by as i64).wrapping_neg() };
                let scale = u32::from(self.form.scale().unwrap_or(0));
                // A multiple of the scale is a distance before scaling.
                return if by.trailing_zeros() >= scale {
                    self.plus(by >> scale)
                } else {
                    Self::NONE
                };
            }
            (Width::Double, AluOp::And, Some(0xffff_ffff))
            | (Width::Word, AluOp::Move, _)
            | (Width::Double, AluOp::MoveSigned32, _)
                if exact =>
            {
                Form::WHOLE
            }
            (Width::Double, AluOp::ShiftLeft, Some(32)) if exact => Form::UPPER_WHOLE,
            (Width::Double, AluOp::ShiftRight | AluOp::ShiftRightSigned, Some(32))
                if self.form == Form::UPPER_WHOLE =>
            {
                Form::WHOLE
            }
            (Width::Double, AluOp::ShiftLeft, Some(32)) if half => Form::UPPER,
            (Width::Double, AluOp::ShiftRight, Some(32)) if self.form == Form::UPPER => Form::ZERO,
            (Width::Double, AluOp::ShiftRightSigned, Some(32)) if self.form == Form::UPPER => {
                Form::SIGN
            }
            (Width::Double, AluOp::And, Some(0xffff_ffff)) if half => Form::ZERO,
            (Width::Word, AluOp::Move, _) if half => Form::ZERO,
            (Width::Double, AluOp::MoveSigned32, _) if half => Form::SIGN,
            _ => return Self::NONE,
        };
        Self { form, ..self }
    }

    fn plus(self, by: i64) -> Self {
        let sum =
            i64::from(self.add).checked_add(by).filter(|sum| (-ADD_MAX..=ADD_MAX).contains(sum));
        sum.map_or(Self::NONE, |sum| Self { add: sum as i16, ..self })
    }

    /// What a number with the link `other` is where one with this link is in `known`.
    pub(super) fn implied(self, known: &Scalar, other: Self) -> Option<Scalar> {
        let is_scaled = |form: Form| form.scale().filter(|by| *by > 0).map(u64::from);
        if self.form.is_divided() || other.form.is_divided() || is_scaled(self.form).is_some() {
            return None;
        }
        let sum = match self.form {
            Form::WHOLE => *known,
            Form::UPPER_WHOLE => known.by(AluOp::ShiftRight, 32),
            Form::UPPER => lower_half(&known.by(AluOp::ShiftRight, 32))?,
            _ => lower_half(known)?,
        };
        let sum = sum.by(AluOp::Add, (other.add() - self.add()) as u64);
        if let Some(by) = is_scaled(other.form) {
            return Some(sum.by(AluOp::ShiftLeft, by));
        }
        Some(match other.form {
            Form::WHOLE => sum,
            Form::ZERO => sum.zero_extended(),
            Form::SIGN => sum.sign_extended(),
            _ => sum.by(AluOp::ShiftLeft, 32),
        })
    }
}

/// All numbers with the lower half of one of these.
fn lower_half(of: &Scalar) -> Option<Scalar> {
    let bits = Bits { value: of.bits.low().value, mask: of.bits.mask | !0xffff_ffff };
    let Scalar { least32, most32, signed_least32, signed_most32, .. } = *of;
    let halves = Scalar { bits, least32, most32, signed_least32, signed_most32, ..Scalar::UNKNOWN };
    halves.tighten()
}

/// A number of which that set is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number {
    pub(super) id: Id,
    pub(super) link: SymbolLink,
}

impl Number {
    pub(super) const UNKNOWN: Self = Self::unlinked(Id::UNKNOWN);

    /// A number of which only the set is known.
    pub(super) const fn unlinked(id: Id) -> Self {
        Self { id, link: SymbolLink::NONE }
    }
}

/// Which symbols of one state were found to be which of another, and how far from them.
#[derive(Default)]
pub(super) struct Renaming {
    /// The first ones, stored inline.
    first: [(u32, u32, i32); 4],
    count: usize,
    more: Vec<(u32, u32, i32)>,
}

impl Renaming {
    /// What the symbol of `old` is in the state of `new`, if these two are the same number.
    fn entry(old: SymbolLink, new: SymbolLink) -> (u32, u32, i32) {
        // A symbol with only one linked number relates nothing, so that the first one may be anything.
        let to = if old.is_like(new) { new.symbol } else { 0 };
        (old.symbol, to, i32::from(old.add) - i32::from(new.add))
    }

    fn known(&self, old: SymbolLink) -> Option<&(u32, u32, i32)> {
        let mut all = self.first[..self.count].iter().chain(&self.more);
        all.find(|(known, ..)| *known == old.symbol)
    }

    /// Whether it is known what the symbol of `old` is in the other state.
    pub(super) fn is_bound(&self, old: SymbolLink) -> bool {
        self.known(old).is_some()
    }

    /// Whether the symbol of `old` is known to be that of `new`, at their distance.
    pub(super) fn agrees(&self, old: SymbolLink, new: SymbolLink) -> bool {
        let entry = Self::entry(old, new);
        entry.1 != 0 && self.known(old) == Some(&entry)
    }

    /// Whether whatever is related in the state of `old` is so in that of `new`, as far as both were compared.
    #[inline]
    pub(super) fn holds(&mut self, old: SymbolLink, new: SymbolLink) -> bool {
        old.is_none() || self.renames(old, new)
    }

    fn renames(&mut self, old: SymbolLink, new: SymbolLink) -> bool {
        let entry @ (_, to, _) = Self::entry(old, new);
        match self.known(old) {
            Some(known) => *known == entry && to != 0,
            None => {
                match self.first.get_mut(self.count) {
                    Some(free) => {
                        *free = entry;
                        self.count += 1;
                    }
                    None => self.more.push(entry),
                }
                true
            }
        }
    }

    /// The link, by the names of the first, of a number that has this link in either state.
    pub(super) fn join(&mut self, old: SymbolLink, new: SymbolLink) -> SymbolLink {
        let both = !new.is_none() && old.is_like(new) && self.holds(old, new);
        if both { old } else { SymbolLink::NONE }
    }
}
