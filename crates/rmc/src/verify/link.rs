//! Relations between the numbers of one abstract state: what is learnt of one of them is learnt of the others.
//!
//! A number may be linked to a *symbol*, which names a value that was computed once: `form(symbol + add)`. Two numbers of
//! a state with the same symbol are functions of the same value, so that a comparison of one of them bounds the other:
//! copies, copies at a distance, the zero- and sign-extended lower half, and the lower half shifted up, which is the way
//! to an extension on processors without one. This is Linux's `find_equal_scalars` (scalar ids, with `BPF_ADD_CONST`),
//! extended by the extensions.
//!
//! A symbol means nothing outside of its state: two states agree in their relations if one's symbols can be renamed into
//! the other's, each at one distance ([`Renaming`]).

use alloc::vec::Vec;

use super::scalar::Scalar;
use super::tnum::Bits;
use crate::isa::{AluOp, Width};

/// The greatest distance from a symbol, and the greatest divisor.
const ADD_MAX: i64 = 1 << 14;

const DIVISOR_MAX: u64 = ADD_MAX as u64;

/// What a number is of a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    /// The sum itself.
    Whole,
    /// Its lower half, zero-extended.
    Zero,
    /// Its lower half, sign-extended.
    Sign,
    /// Its lower half, in the upper half.
    Upper,
    /// The symbol alone, divided by `add`.
    Quotient,
    /// The greatest multiple of `add` that is not above the symbol.
    Multiple,
}

/// How a number follows from a symbol, if it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Link {
    /// Zero for none.
    symbol: u32,
    add: i16,
    form: Form,
}

impl Link {
    pub(super) const NONE: Self = Self { symbol: 0, form: Form::Whole, add: 0 };

    /// The symbol itself.
    pub(super) fn of(symbol: u32) -> Self {
        Self { symbol, ..Self::NONE }
    }

    pub(super) fn is_none(self) -> bool {
        self.symbol == 0
    }

    /// Whether it is the symbol itself.
    pub(super) fn is_symbol(self) -> bool {
        self == Self::of(self.symbol)
    }

    /// Where `multiple` is the greatest multiple of a number that is not above this one, that number.
    pub(super) fn above(self, multiple: Self) -> Option<u64> {
        let is_above = self.is_related(multiple) && self.is_symbol();
        (is_above && multiple.form == Form::Multiple).then_some(multiple.add as u64)
    }

    /// Whether what is learnt of one is of use for the other.
    pub(super) fn is_related(self, other: Self) -> bool {
        self.symbol == other.symbol && self.symbol != 0
    }

    /// How far the sum is from the symbol.
    fn distance(self) -> i16 {
        if matches!(self.form, Form::Quotient | Form::Multiple) { 0 } else { self.add }
    }

    /// Whether it is the same function of a symbol, but for the distance.
    fn is_like(self, other: Self) -> bool {
        self.form == other.form && self.add - self.distance() == other.add - other.distance()
    }

    /// The link of `number op by`, where that has one.
    pub(super) fn through(self, width: Width, op: AluOp, by: Option<u64>) -> Self {
        if self.is_none() {
            return Self::NONE;
        }
        let whole = self.form == Form::Whole;
        let half = matches!(self.form, Form::Whole | Form::Zero | Form::Sign);
        let form = match (width, op, by) {
            (Width::Double, AluOp::Div, Some(by @ 2..=DIVISOR_MAX)) if self.is_symbol() => {
                return Self { form: Form::Quotient, add: by as i16, ..self };
            }
            (Width::Double, AluOp::Mul, Some(by))
                if self.form == Form::Quotient && by == self.add as u64 =>
            {
                Form::Multiple
            }
            (Width::Double, AluOp::Add, Some(by)) if whole => return self.plus(by as i64),
            (Width::Double, AluOp::Sub, Some(by)) if whole => {
                return self.plus((by as i64).wrapping_neg());
            }
            (Width::Double, AluOp::ShiftLeft, Some(32)) if half => Form::Upper,
            (Width::Double, AluOp::ShiftRight, Some(32)) if self.form == Form::Upper => Form::Zero,
            (Width::Double, AluOp::ShiftRightSigned, Some(32)) if self.form == Form::Upper => {
                Form::Sign
            }
            (Width::Double, AluOp::And, Some(0xffff_ffff)) if half => Form::Zero,
            (Width::Word, AluOp::Move, _) if half => Form::Zero,
            (Width::Double, AluOp::MoveSigned32, _) if half => Form::Sign,
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
        let shift = |op, of: &Scalar| Scalar::alu(Width::Double, op, of, &Scalar::constant(32));
        let sum = match self.form {
            Form::Whole => *known,
            Form::Zero | Form::Sign => lower_half(known)?,
            Form::Upper => lower_half(&shift(AluOp::ShiftRight, known))?,
            Form::Quotient | Form::Multiple => return None,
        };
        let by = Scalar::constant((i64::from(other.add) - i64::from(self.add)) as u64);
        let sum = Scalar::alu(Width::Double, AluOp::Add, &sum, &by);
        Some(match other.form {
            Form::Whole => sum,
            Form::Zero => sum.zero_extended(),
            Form::Sign => sum.sign_extended(),
            Form::Upper => shift(AluOp::ShiftLeft, &sum),
            Form::Quotient | Form::Multiple => return None,
        })
    }
}

/// All numbers whose lower half is that of one of these.
fn lower_half(of: &Scalar) -> Option<Scalar> {
    let bits = Bits { value: of.bits.low().value, mask: of.bits.mask | !0xffff_ffff };
    let Scalar { least32, most32, signed_least32, signed_most32, .. } = *of;
    let halves = Scalar { bits, least32, most32, signed_least32, signed_most32, ..Scalar::UNKNOWN };
    halves.tighten()
}

/// Which symbols of one state were found to be which of another, and how far from them.
#[derive(Default)]
pub(super) struct Renaming {
    /// The first ones, which need no memory of their own.
    first: [(u32, u32, i32); 4],
    count: usize,
    more: Vec<(u32, u32, i32)>,
}

impl Renaming {
    /// Whether whatever is related in the state of `old` is so in that of `new`, as far as both were compared.
    pub(super) fn holds(&mut self, old: Link, new: Link) -> bool {
        if old.is_none() {
            return true;
        }
        // A symbol that only one number is linked to says nothing, so that the first one may be anything.
        let to = if old.is_like(new) { new.symbol } else { 0 };
        let entry = (old.symbol, to, i32::from(old.distance()) - i32::from(new.distance()));
        let mut all = self.first[..self.count].iter().chain(&self.more);
        match all.find(|(known, ..)| *known == old.symbol) {
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
    pub(super) fn join(&mut self, old: Link, new: Link) -> Link {
        let both = !new.is_none() && old.is_like(new) && self.holds(old, new);
        if both { old } else { Link::NONE }
    }
}
