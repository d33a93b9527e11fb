//! Relations between three numbers of one abstract state: `first + second = sum`, modulo 2^64.
//!
//! They are the constraints of the octagon domain (Miné: The octagon abstract domain, 2006), bounds on x + y
//! and on x - y, for those pairs alone that a program adds, subtracts or compares (variable packing; Blanchet and others,
//! 2003). A difference `x - y = d` is the sum `y + d = x`, and `x <= y` is that sum with a *slack variable* d that is
//! not negative. So one form covers `offset + length <= size`, `length <= size - offset` and `end - start`. Two
//! numbers that are compared as unsigned ones before either is bounded are *parts*: `x + d = y` without overflow, so
//! that a bound of y, which comes later, bounds x and d. What is scaled by a power of two keeps its relation, by
//! links (`link.rs`).
//!
//! A relation names its three numbers by the symbols of `link.rs`, at no distance, or by none where only the set is
//! known (a constant, say), and keeps what is known of each: what a register says of a symbol stays known when the
//! register is overwritten. The closure of the octagon domain is not computed; instead, refining one number of a
//! relation refines the other two once (bound propagation).
//!
//! Invariant: a relation is true of the values that its symbols name, in every concrete state. Two numbers are the
//! same value if they have the same symbol, or are the same constant; numbers of equal sets are not. So an operand of a
//! relation has a symbol or is a constant, and the sum of a [`RelationKind::Half`] has a symbol. The transfer function
//! of relations is in `relate.rs`.

use super::interned::Interned;
use super::link::{Number, Renaming, SymbolLink};

/// How the numbers of a relation are related.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RelationKind {
    /// `terms[0] + terms[1] = sum`.
    Sum,
    /// The same, where the sum of unsigned numbers does not overflow: neither term is greater than `sum`.
    Parts,
    /// The lower half of `terms[0]`, extended either way, is `sum`, which is from 0 to 2^31 - 1. The other term is any.
    Half,
}

/// A relation of three numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Relation {
    pub(super) kind: RelationKind,
    pub(super) terms: [Number; 2],
    pub(super) sum: Number,
}

impl Relation {
    pub(super) fn numbers(&self) -> [Number; 3] {
        [self.terms[0], self.terms[1], self.sum]
    }

    pub(super) fn numbers_mut(&mut self) -> impl Iterator<Item = &mut Number> {
        self.terms.iter_mut().chain([&mut self.sum])
    }

    pub(super) fn is_sum(&self) -> bool {
        matches!(self.kind, RelationKind::Sum | RelationKind::Parts)
    }

    pub(super) fn mentions(&self, link: SymbolLink) -> bool {
        self.numbers().iter().any(|number| number.link.is_related(link))
    }

    /// The other term, where this is one of them.
    pub(super) fn other(&self, term: SymbolLink) -> Option<Number> {
        let [first, second] = self.terms;
        let is = |number: Number| self.is_sum() && number.link.is_related(term);
        if is(first) { Some(second) } else { is(second).then_some(first) }
    }

    pub(super) fn is_sum_of(&self, first: SymbolLink, second: SymbolLink) -> bool {
        let pair = |a: Number, b: Number| a.link.is_related(first) && b.link.is_related(second);
        let [a, b] = self.terms;
        self.is_sum() && (pair(a, b) || pair(b, a))
    }

    /// The half of a symbol.
    pub(super) fn half_of(&self, whole: SymbolLink) -> Option<Number> {
        let is = self.kind == RelationKind::Half && self.terms[0].link.is_related(whole);
        is.then_some(self.sum)
    }

    /// Whether this relation of one state holds where `new` does, by symbols that are renamed already but for one at
    /// most.
    pub(super) fn follows_from(&self, new: &Self, links: &mut Renaming, known: &Interned) -> bool {
        let crossed = Self { terms: [new.terms[1], new.terms[0]], ..*new };
        self.kind == new.kind
            && [*new, crossed].iter().any(|new| {
                let pairs = || self.numbers().into_iter().zip(new.numbers());
                let contained =
                    pairs().all(|(old, new)| known.get(old.id).contains(known.get(new.id)));
                let (mut same, mut open) = (0, 0);
                for (old, new) in pairs().filter(|(old, _)| !old.link.is_none()) {
                    match links.is_bound(old.link) {
                        true if links.agrees(old.link, new.link) => same += 1,
                        true => return false,
                        false if new.link.is_none() => return false,
                        false => open += 1,
                    }
                }
                let constants = pairs().filter(|(old, _)| old.link.is_none()).count();
                // Two of three determine the third one, so that it may be given its name here.
                contained
                    && open <= 1
                    && same + constants >= 2
                    && pairs().all(|(old, new)| links.holds(old.link, new.link))
            })
    }

    /// What holds of both, by `join` for each number; `None` if they do not relate the same symbols.
    pub(super) fn merge(
        &self,
        other: &Self,
        join: &mut dyn FnMut(Number, Number) -> Number,
    ) -> Option<Self> {
        let mut merge = |a: Number, b: Number| {
            let joined = join(a, b);
            (joined.link == a.link).then_some(joined)
        };
        if self.kind != other.kind {
            return None;
        }
        let [first, second] = self.terms;
        let terms = [merge(first, other.terms[0])?, merge(second, other.terms[1])?];
        Some(Self { terms, sum: merge(self.sum, other.sum)?, ..*self })
    }
}
