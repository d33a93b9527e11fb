//! Relations between three numbers of one abstract state: `first + second = sum`, modulo 2^64.
//!
//! They are the constraints of the octagon domain (Miné: The octagon abstract domain, 2006), bounds on x + y and on x - y,
//! for those pairs alone that a program adds, subtracts or compares (variable packing; Blanchet and others, 2003). A
//! difference `x - y = d` is the sum `y + d = x`, and `x <= y` is that sum with a *slack variable* d that is not negative.
//! So one form covers `offset + length <= size`, `length <= size - offset` and `end - start`.
//!
//! A relation names its three numbers by the symbols of `link.rs`, at no distance, or by none where only the set is known
//! (a constant, say), and keeps what is known of each: what a register says of a symbol stays known when the register is
//! overwritten. The closure of the octagon domain is not computed; in its place, whatever is learnt of one number of a
//! relation is learnt of the other two once (bound propagation).
//!
//! Invariants: a relation is true of the values that its symbols name, in every concrete state. All arithmetic is that of
//! [`Scalar::alu`], which wraps as the machine does, so that no rule here needs a condition on overflow, but where an order
//! is read as a difference ([`Stepper::order`]). There are at most [`RELATIONS_MAX`]; more take the place of the oldest.

use super::interned::Interned;
use super::link::{Link, Renaming};
use super::scalar::Scalar;
use super::state::{Number, State, Value};
use super::step::Stepper;
use crate::isa::{AluOp, Condition, Operand, Register, Width};

/// Most relations of a state.
pub(super) const RELATIONS_MAX: usize = 6;

/// Numbers farther from zero are related to nothing: neither offsets nor lengths are that large.
const NEAR: i64 = 1 << 33;

/// A comparison relates two numbers where one is no farther from zero: sizes are compared with lengths, while relations of
/// data that are compared with each other (in sorting, say) are of no use and make states differ.
const SMALL: i64 = 1 << 20;

/// `terms[0] + terms[1] = sum`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Relation {
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

    fn mentions(&self, link: Link) -> bool {
        self.numbers().iter().any(|number| number.link.is_related(link))
    }

    /// The other term, where this is one of them.
    fn other(&self, term: Link) -> Option<Number> {
        let [first, second] = self.terms;
        let is = |number: Number| number.link.is_related(term);
        if is(first) { Some(second) } else { is(second).then_some(first) }
    }

    fn is_sum_of(&self, first: Link, second: Link) -> bool {
        let pair = |a: Number, b: Number| a.link.is_related(first) && b.link.is_related(second);
        pair(self.terms[0], self.terms[1]) || pair(self.terms[1], self.terms[0])
    }

    /// Whether this relation of one state holds where `new` does, by symbols that are renamed already but for one at most.
    fn follows_from(&self, new: &Self, links: &mut Renaming, known: &Interned) -> bool {
        let crossed = Self { terms: [new.terms[1], new.terms[0]], ..*new };
        [*new, crossed].iter().any(|new| {
            let pairs = || self.numbers().into_iter().zip(new.numbers());
            let contained = pairs().all(|(old, new)| known.get(old.id).contains(known.get(new.id)));
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
        let [first, second] = self.terms;
        let terms = [merge(first, other.terms[0])?, merge(second, other.terms[1])?];
        Some(Self { terms, sum: merge(self.sum, other.sum)? })
    }
}

impl State {
    /// Whether every relation here holds in the other state, whose numbers were compared with these before.
    pub(super) fn relations_follow_from(
        &self,
        other: &Self,
        links: &mut Renaming,
        known: &Interned,
    ) -> bool {
        let mut relations = self.relations.iter();
        relations.all(|old| other.relations.iter().any(|new| old.follows_from(new, links, known)))
    }

    /// Forgets relations of which fewer than two symbols are named by a register, the stack or another relation: nothing
    /// can be learnt by them any more.
    pub(super) fn forget_relations(&mut self) {
        let mut at = 0;
        while at < self.relations.len() {
            let relation = self.relations[at];
            let is_named = |number: &&Number| {
                let others = self.relations.iter().enumerate().filter(|(other, _)| *other != at);
                !number.link.is_none()
                    && (self.names(number.link)
                        || others.into_iter().any(|(_, other)| other.mentions(number.link)))
            };
            if relation.numbers().iter().filter(is_named).count() >= 2 {
                at += 1;
            } else {
                self.relations.remove(at);
                // Others may have been of use for this one alone.
                at = 0;
            }
        }
    }

    /// The relation of two terms.
    fn sum_of(&self, first: Link, second: Link) -> Option<&Relation> {
        self.relations.iter().find(|relation| relation.is_sum_of(first, second))
    }
}

impl Stepper {
    /// What a number's symbol is, and the number's distance from it.
    fn symbol_of(&mut self, number: Number) -> (Number, i64) {
        let add = number.link.add();
        if number.link.is_none() || add == 0 {
            return (number, 0);
        }
        let by = Scalar::constant(add as u64);
        let set = Scalar::alu(Width::Double, AluOp::Sub, self.known.get(number.id), &by);
        (Number { id: self.known.intern(&set), link: number.link.symbol() }, add)
    }

    fn near(&self, number: Number) -> bool {
        self.is_within(number, NEAR)
    }

    fn is_within(&self, number: Number, most: i64) -> bool {
        let set = self.known.get(number.id);
        set.signed_least >= -most && set.signed_most <= most
    }

    fn is_constant(&self, number: Number) -> bool {
        self.known.get(number.id).as_constant().is_some()
    }

    /// A new symbol for a set of numbers.
    fn fresh(&mut self, set: &Scalar) -> Number {
        Number { id: self.known.intern(set), link: self.new_symbol() }
    }

    /// Gives the number in a register a symbol, if it has none and is no constant.
    fn be_linked(&mut self, state: &mut State, register: Register) -> Option<Number> {
        self.link(state, register);
        match state.value(register) {
            Value::Number(number) | Value::Address(_, number) => Some(number),
            _ => None,
        }
    }

    /// Links a number that is added to a constant, so that the sum is known as the number at a distance.
    pub(super) fn link_term(
        &mut self,
        state: &mut State,
        (width, op): (Width, AluOp),
        (dst, src): (Register, Operand),
    ) {
        let Operand::Register(src) = src else { return };
        let (Value::Number(a) | Value::Address(_, a)) = state.value(dst) else { return };
        let matters = self.facts.live.strongly[self.at + 1] >> dst.number() & 1 == 1;
        if (width, op) == (Width::Double, AluOp::Add) && matters && self.is_constant(a) {
            self.link(state, src);
        }
    }

    fn relate(&mut self, state: &mut State, relation: Relation) {
        if state.relations.len() == RELATIONS_MAX {
            state.relations.remove(0);
        }
        state.relations.push(relation);
        for number in relation.numbers() {
            self.propagate(state, number.link);
        }
    }

    /// The result of `a op b` in `dst`, related to its operands where it is a sum or difference of unknown numbers and its
    /// value may decide a verdict. Where the two are related already, what is known of the result by that.
    ///
    /// Sound: with `a = x + c`, `b = y + d` for symbols x, y, a sum is `(x + y) + (c + d)`, and a difference of `x = y + z`
    /// is `z + (c - d)`, modulo 2^64.
    pub(super) fn related(
        &mut self,
        state: &mut State,
        (width, op): (Width, AluOp),
        (dst, src): (Register, Operand),
        (a, b): (Number, Number),
        result: Number,
    ) -> Number {
        let Operand::Register(src) = src else { return result };
        let matters = || self.facts.live.strongly[self.at + 1] >> dst.number() & 1 == 1;
        let sums = width == Width::Double && matches!(op, AluOp::Add | AluOp::Sub);
        if !sums || dst == src || !matters() || self.is_constant(b) || !result.link.is_none() {
            return result;
        }
        if self.is_constant(result) || !self.near(a) || !self.near(b) {
            return result;
        }
        let is_sum = op == AluOp::Add;
        if is_sum && (self.is_constant(a) || a.link.is_none()) {
            return result;
        }
        if !a.link.may_be_whole() || !b.link.may_be_whole() {
            return result;
        }
        let (Some(a), Some(b)) = (self.be_linked(state, dst), self.be_linked(state, src)) else {
            return result;
        };
        let ((a, add_a), (b, add_b)) = (self.symbol_of(a), self.symbol_of(b));
        let add = if is_sum { add_a + add_b } else { add_a - add_b };
        let known = if is_sum {
            state.sum_of(a.link, b.link).map(|relation| relation.sum)
        } else {
            let of = |relation: &Relation| {
                relation.sum.link.is_related(a.link).then(|| relation.other(b.link)).flatten()
            };
            state.relations.iter().find_map(of)
        };
        let symbol = match known {
            Some(known) => known,
            None => {
                let by = Scalar::constant(add as u64);
                let set = *self.known.get(result.id);
                let symbol = self.fresh(&Scalar::alu(Width::Double, AluOp::Sub, &set, &by));
                let (terms, sum) = if is_sum { ([a, b], symbol) } else { ([symbol, b], a) };
                self.relate(state, Relation { terms, sum });
                symbol
            }
        };
        let by = Scalar::constant(add as u64);
        let set = Scalar::alu(Width::Double, AluOp::Add, self.known.get(symbol.id), &by);
        let met = self.known.get(result.id).meet(&set);
        let id = met.map_or(result.id, |met| self.known.intern(&met));
        Number { id, link: symbol.link.through(Width::Double, AluOp::Add, Some(add as u64), false) }
    }

    /// The greatest that `offset + length` may be, by a relation of the two. Both are far from the ends of the numbers, so
    /// that their sum is what it is modulo 2^64.
    pub(super) fn end_of(&mut self, state: &State, offset: Number, length: Number) -> Option<i64> {
        let relation = *state.sum_of(offset.link, length.link)?;
        let whole = offset.link.is_whole() && length.link.is_whole();
        if !whole || !self.near(offset) || !self.near(length) {
            return None;
        }
        let by = Scalar::constant((offset.link.add() + length.link.add()) as u64);
        let sum = Scalar::alu(Width::Double, AluOp::Add, self.known.get(relation.sum.id), &by);
        Some(sum.signed_most)
    }

    /// Learns of the other numbers of relations what follows from what is known of this symbol now.
    pub(super) fn propagate(&mut self, state: &mut State, symbol: Link) {
        for at in 0..state.relations.len() {
            let relation = state.relations[at];
            if symbol.is_none() || !relation.mentions(symbol) {
                continue;
            }
            let of = |stepper: &Self, op, a: Number, b: Number| {
                let (a, b) = (stepper.known.get(a.id), stepper.known.get(b.id));
                Scalar::alu(Width::Double, op, a, b)
            };
            let [first, second] = relation.terms;
            let sum = of(self, AluOp::Add, first, second);
            self.learn_set(state, relation.sum, &sum);
            let sum = state.relations[at].sum;
            for (term, other) in [(first, second), (second, first)] {
                let rest = of(self, AluOp::Sub, sum, other);
                self.learn_set(state, term, &rest);
            }
        }
    }

    /// A number of a relation is in this set too.
    fn learn_set(&mut self, state: &mut State, number: Number, set: &Scalar) {
        let before = self.known.get(number.id);
        // A contradiction means that no path comes here, and nothing has to be known.
        let Some(met) = before.meet(set) else { return };
        if number.link.is_none() || met == *before {
            return;
        }
        let id = self.known.intern(&met);
        self.learn_linked(state, Number { id, ..number });
    }

    /// Before a comparison of two numbers: whether it may teach a relation of them. Both get symbols then.
    pub(super) fn may_relate(
        &mut self,
        state: &mut State,
        (width, condition): (Width, Condition),
        (dst, src): (Register, Operand),
        target: usize,
    ) -> bool {
        let Operand::Register(src) = src else { return false };
        let unordered =
            matches!(condition, Condition::Equal | Condition::NotEqual | Condition::Set);
        let strongly = &self.facts.live.strongly;
        let matters = strongly[self.at + 1] | strongly.get(target).copied().unwrap_or(0);
        let both = 1 << dst.number() | 1 << src.number();
        if unordered || width == Width::Word || dst == src {
            return false;
        }
        let (a, b) = match (state.value(dst), state.value(src)) {
            (Value::Number(a), Value::Number(b)) => (a, b),
            (Value::Address(at, a), Value::Address(place, b)) if at == place => (a, b),
            _ => return false,
        };
        let is_term = |link: Link| state.relations.iter().any(|it| it.other(link).is_some());
        let of_use = matters & both == both || is_term(a.link) || is_term(b.link);
        if !of_use || self.is_constant(a) || self.is_constant(b) {
            return false;
        }
        let small = [a, b].iter().any(|number| self.is_within(*number, SMALL));
        if !small || !a.link.may_be_whole() || !b.link.may_be_whole() {
            return false;
        }
        self.link(state, dst);
        self.link(state, src);
        true
    }

    /// Behind a comparison of two registers that `may_relate`, one way: they are related.
    ///
    /// Sound: where both are near zero, and not negative if they are compared as unsigned numbers, the order of l and g is
    /// the sign of `g - l`, which does not overflow; so `d = g - l` is at least 0 (or 1) and at most `max g - min l`. With
    /// `l = x + c`, `g = y + e` that is `x + (d + c - e) = y`. And where `y + z = s` is known, `x + z = s - (y - x)`, which
    /// is `s - d + (e - c)`.
    pub(super) fn order(
        &mut self,
        state: &mut State,
        (condition, holds): (Condition, bool),
        (dst, src): (Register, Register),
    ) {
        use Condition::{Greater, Less, LessEqual};
        use Condition::{SignedGreater, SignedGreaterEqual, SignedLess, SignedLessEqual};
        let number = |register| match state.value(register) {
            Value::Number(number) | Value::Address(_, number) => number,
            Value::Nothing | Value::Handle(_) => Number::UNKNOWN,
        };
        let is_signed =
            matches!(condition, SignedLess | SignedLessEqual | SignedGreater | SignedGreaterEqual)
                || matches!(state.value(dst), Value::Address(..));
        let is_less = matches!(condition, Less | LessEqual | SignedLess | SignedLessEqual);
        let is_strict = matches!(condition, Less | Greater | SignedLess | SignedGreater) == holds;
        let (a, b) = (number(dst), number(src));
        let (least, greatest) = if is_less == holds { (a, b) } else { (b, a) };
        let (low, high) = (*self.known.get(least.id), *self.known.get(greatest.id));
        let negative = low.signed_least < 0 || high.signed_least < 0;
        if !self.near(least) || !self.near(greatest) || negative && !is_signed {
            return;
        }
        if !least.link.is_whole() || !greatest.link.is_whole() {
            return;
        }
        let difference = Scalar::signed_range(
            i64::from(is_strict),
            (high.signed_most - low.signed_least).max(i64::from(is_strict)),
        );
        let ((x, c), (y, e)) = (self.symbol_of(least), self.symbol_of(greatest));
        let alu = |op, a: &Scalar, b: &Scalar| Scalar::alu(Width::Double, op, a, b);
        let apart = Scalar::constant((c - e) as u64);
        let slack = alu(AluOp::Add, &difference, &apart);
        let mut found = false;
        for at in 0..state.relations.len() {
            let Some(relation) = state.relations.get(at).copied() else { break };
            let Some(z) = relation.other(y.link).filter(|z| !z.link.is_none()) else { continue };
            let sum = alu(AluOp::Sub, self.known.get(relation.sum.id), &slack);
            self.sum_is_in(state, (x, z), &sum);
            found = true;
        }
        if !found && !x.link.is_none() && !y.link.is_none() && !x.link.is_related(y.link) {
            let of = |relation: &&Relation| relation.sum.link.is_related(y.link);
            let mut known = state.relations.iter().filter(of);
            match known.find_map(|relation| relation.other(x.link)) {
                Some(known) => self.learn_set(state, known, &slack),
                None => {
                    let slack = self.fresh(&slack);
                    self.relate(state, Relation { terms: [x, slack], sum: y });
                }
            }
        }
    }

    /// A sum of two symbols is in this set.
    fn sum_is_in(&mut self, state: &mut State, (x, z): (Number, Number), set: &Scalar) {
        if let Some(relation) = state.sum_of(x.link, z.link) {
            let sum = relation.sum;
            self.learn_set(state, sum, set);
            self.propagate(state, sum.link);
            return;
        }
        let (first, second) = (self.known.get(x.id), self.known.get(z.id));
        let sum = Scalar::alu(Width::Double, AluOp::Add, first, second);
        if let Some(met) = sum.meet(set) {
            let sum = self.fresh(&met);
            self.relate(state, Relation { terms: [x, z], sum });
        }
    }
}
