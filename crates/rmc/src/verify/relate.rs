//! The transfer function of relations (`relation.rs`): which are added, and what they teach of their numbers.
//!
//! All arithmetic is that of [`Scalar::alu`], which wraps as the machine does, so that no rule here needs a condition
//! on overflow, but where an order is read as a difference ([`Stepper::order`]). A state has at most [`RELATIONS_MAX`]
//! relations; further ones replace the oldest.

use super::interned::{Id, Interned};
use super::link::{Renaming, SymbolLink};
use super::relation::{Relation, RelationKind};
use super::scalar::Scalar;
use super::state::{AbstractState, Number, Value};
use super::step::Stepper;
use crate::isa::{AluOp, Condition, Operand, Register, Width};

/// Most relations of a state.
const RELATIONS_MAX: usize = 8;

/// Numbers farther from zero are related to nothing: neither offsets nor lengths are that large.
const NEAR: i64 = 1 << 33;

/// A comparison relates two numbers where one is at most this: sizes are compared with lengths, while relations of
/// data that are compared with each other (in sorting, say) are of no use and make states differ.
const SMALL: i64 = 1 << 20;

impl AbstractState {
    /// Whether every relation here holds in the other state. The numbers of both must have been compared before.
    pub(super) fn relations_follow_from(
        &self,
        other: &Self,
        links: &mut Renaming,
        known: &Interned,
    ) -> bool {
        let mut relations = self.relations.iter();
        relations.all(|old| other.relations.iter().any(|new| old.follows_from(new, links, known)))
    }

    /// Drops relations with fewer than two symbols that a register, the stack or another relation refers to: they
    /// cannot refine anything any more. The parts of a sum that is not bounded yet are dropped too: most are data
    /// that were compared, which would make states differ.
    pub(super) fn forget_relations(&mut self, known: &Interned) {
        let mut at = 0;
        while at < self.relations.len() {
            let relation = self.relations[at];
            let is_named = |number: &&Number| {
                let others = self.relations.iter().enumerate().filter(|(other, _)| *other != at);
                !number.link.is_none()
                    && (self.names(number.link)
                        || others.into_iter().any(|(_, other)| other.mentions(number.link)))
            };
            let is_of_use = match relation.kind {
                RelationKind::Parts if known.get(relation.sum.id).most == u64::MAX => false,
                RelationKind::Sum | RelationKind::Parts => {
                    relation.numbers().iter().filter(is_named).count() >= 2
                }
                // Halves are found by the whole.
                RelationKind::Half => self.names(relation.terms[0].link),
            };
            if is_of_use {
                at += 1;
            } else {
                self.relations.remove(at);
                // Others may have been needed for this one only.
                at = 0;
            }
        }
    }

    /// The relation of two terms.
    fn sum_of(&self, first: SymbolLink, second: SymbolLink) -> Option<&Relation> {
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
        let set = self.known.get(number.id).by(AluOp::Sub, add as u64);
        (Number { id: self.known.intern(&set), link: number.link.symbol() }, add)
    }

    fn near(&self, number: Number) -> bool {
        let set = self.known.get(number.id);
        set.signed_least >= -NEAR && set.signed_most <= NEAR
    }

    fn is_constant(&self, number: Number) -> bool {
        self.known.get(number.id).as_constant().is_some()
    }

    /// A new symbol for a set of numbers.
    fn fresh(&mut self, set: &Scalar) -> Number {
        Number { id: self.known.intern(set), link: self.new_symbol() }
    }

    /// Gives the number in a register a symbol, if it has none and is no constant.
    fn be_linked(&mut self, state: &mut AbstractState, register: Register) -> Option<Number> {
        self.link(state, register);
        match state.value(register) {
            Value::Number(number) | Value::Address(_, number) => Some(number),
            _ => None,
        }
    }

    /// Links a number that is added to a constant, so that the sum is known as the number at a distance.
    pub(super) fn link_term(
        &mut self,
        state: &mut AbstractState,
        (width, op): (Width, AluOp),
        (dst, src): (Register, Operand),
    ) {
        let Operand::Register(src) = src else { return };
        let matters = self.facts.live.strongly[self.at + 1] >> dst.number() & 1 == 1;
        if (width, op) != (Width::Double, AluOp::Add) || !matters {
            return;
        }
        if let Value::Number(a) | Value::Address(_, a) = state.value(dst)
            && self.is_constant(a)
        {
            self.link(state, src);
        }
    }

    /// Adds a relation, of which each number is in the set that follows from the others.
    fn relate(&self, state: &mut AbstractState, relation: Relation) {
        if state.relations.len() == RELATIONS_MAX {
            state.forget_relations(&self.known);
        }
        if state.relations.len() == RELATIONS_MAX {
            state.relations.remove(0);
        }
        state.relations.push(relation);
    }

    /// The lower half of a number that has a symbol of its own, if that is known to be from 0 to 2^31 - 1: by itself,
    /// or by a register that has it.
    fn half(&mut self, state: &mut AbstractState, whole: Number) -> Option<Number> {
        if !whole.link.is_whole() || whole.link.add() != 0 {
            return None;
        }
        if let Some(half) = state.relations.iter().find_map(|it| it.half_of(whole.link)) {
            return Some(half);
        }
        let is = |number: Number| {
            number.link.is_half() && number.link.add() == 0 && number.link.is_related(whole.link)
        };
        let known = self.known.get(whole.id).zero_extended();
        let named = match state.number_that(is).filter(|half| self.is_half(*half)) {
            Some(half) => {
                let named = Number { link: self.new_symbol(), ..half };
                let copies = state.numbers_mut().filter(|copy| copy.link == half.link);
                copies.for_each(|copy| *copy = named);
                named
            }
            None if known.most < 1 << 31 => self.fresh(&known),
            None => return None,
        };
        self.relate_half(state, whole.link, named);
        Some(named)
    }

    /// Relates a symbol with its lower half.
    fn relate_half(&self, state: &mut AbstractState, whole: SymbolLink, half: Number) {
        let terms = [Number { id: Id::UNKNOWN, link: whole }, Number::UNKNOWN];
        self.relate(state, Relation { kind: RelationKind::Half, terms, sum: half });
    }

    /// A number as a new symbol that is known by its lower half.
    fn with_half(&mut self, state: &mut AbstractState, number: Number, half: Number) -> Number {
        let link = self.new_symbol();
        self.relate_half(state, link, half);
        Number { link, ..number }
    }

    /// A number that is an extended lower half, as what is known of that half.
    pub(super) fn halved(&mut self, state: &mut AbstractState, number: Number) -> Number {
        if state.relations.is_empty() || !number.link.is_half() {
            return number;
        }
        let Some(half) = state.relations.iter().find_map(|it| it.half_of(number.link)) else {
            return number;
        };
        // Modulo 2^32 the lower half of the sum is that of the half and the distance.
        let add = number.link.add() as u64;
        let set = self.known.get(half.id).by(AluOp::Add, add);
        let met = self.known.get(number.id).meet(&set);
        let Some(met) = met.filter(|_| set.most < 1 << 31) else { return number };
        let link = half.link.through(Width::Double, AluOp::Add, Some(add), false);
        Number { id: self.known.intern(&met), link }
    }

    /// A number that was shifted to the left, known as the scaled number where that is a term of a relation: then
    /// offset and length in elements, `x + y <= size`, are known to be so in bytes.
    ///
    /// Sound: modulo 2^32, the shifted number is its shifted half. Where that is from 0 to 2^31 - 1, it is either
    /// extension of the lower half.
    pub(super) fn scaled(
        &mut self,
        state: &mut AbstractState,
        (width, op): (Width, AluOp),
        (a, b): (Number, Number),
        result: Number,
    ) -> Number {
        let by = self.known.get(b.id).as_constant();
        let (Some(by), (Width::Double, AluOp::ShiftLeft)) = (by, (width, op)) else {
            return result;
        };
        if state.relations.is_empty() || !result.link.is_none() {
            return result;
        }
        if state.relations.iter().any(|it| it.other(a.link).is_some()) {
            return Number { link: a.link.scaled(by).unwrap_or(SymbolLink::NONE), ..result };
        }
        let half = state.relations.iter().find_map(|it| it.half_of(a.link));
        let Some(half) = half.filter(|_| a.link.is_whole() && a.link.add() == 0) else {
            return result;
        };
        let Some(link) = half.link.scaled(by) else { return result };
        let set = self.known.get(half.id).by(op, by);
        if set.most >= 1 << 31 {
            return result;
        }
        let half = Number { id: self.known.intern(&set), link };
        self.with_half(state, result, half)
    }

    /// Whether a number is its own lower half, extended either way.
    fn is_half(&self, number: Number) -> bool {
        self.known.get(number.id).most < 1 << 31
    }

    /// The same for sums and differences of numbers of which the lower halves alone are known: they are related by
    /// these.
    ///
    /// Sound: modulo 2^32, `a op b` is what it is for the halves of a and b. Where that is from 0 to 2^31 - 1, it is
    /// either extension of the lower half of `a op b`.
    fn related_halves(
        &mut self,
        state: &mut AbstractState,
        op: AluOp,
        (dst, src): (Register, Register),
        (a, b): (Number, Number),
        result: Number,
    ) -> Option<Number> {
        if self.is_half(a) && self.is_half(b) || self.is_half(result) {
            return None;
        }
        let mut half = |stepper: &mut Self, register, number: Number| {
            if !stepper.is_half(number) {
                return stepper.half(state, number);
            }
            stepper.be_linked(state, register).filter(|number| number.link.may_be_whole())
        };
        let (a, b) = (half(self, dst, a)?, half(self, src, b)?);
        if !a.link.may_be_whole() || !b.link.may_be_whole() {
            return None;
        }
        let known = self.known.get(a.id);
        let set = Scalar::alu(Width::Double, op, known, self.known.get(b.id));
        let id = self.known.intern(&set);
        let half = self.combined(state, op, (a, b), Number::unlinked(id));
        if !self.is_half(half) {
            return None;
        }
        // A sum that is too far from its symbol has no link, and its set alone does not say which number it is.
        let half =
            if half.link.is_none() { Number { link: self.new_symbol(), ..half } } else { half };
        Some(self.with_half(state, result, half))
    }

    /// The result of `a op b` in `dst`, related to its operands where it is a sum or difference of unknown numbers
    /// and its value may decide a verdict. Where the two are related already, what is known of the result by that.
    ///
    /// Sound: with `a = x + c`, `b = y + d` for symbols x, y, a sum is `(x + y) + (c + d)`, and a difference of
    /// `x = y + z` is `z + (c - d)`, modulo 2^64.
    pub(super) fn related(
        &mut self,
        state: &mut AbstractState,
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
        if self.is_constant(result) {
            return result;
        }
        if !self.near(a) || !self.near(b) {
            let related = self.related_halves(state, op, (dst, src), (a, b), result);
            return related.unwrap_or(result);
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
        self.combined(state, op, (a, b), result)
    }

    /// The result of `a op b` by the relation of the two, which are whole or known to be constants; a new one where
    /// they have none.
    fn combined(
        &mut self,
        state: &mut AbstractState,
        op: AluOp,
        (a, b): (Number, Number),
        result: Number,
    ) -> Number {
        for number in [a, b] {
            debug_assert!(number.link.is_whole() || self.is_constant(number), "no symbol");
        }
        let is_sum = op == AluOp::Add;
        let ((a, add_a), (b, add_b)) = (self.symbol_of(a), self.symbol_of(b));
        let add = if is_sum { add_a + add_b } else { add_a - add_b };
        let known = if is_sum {
            state.sum_of(a.link, b.link).map(|relation| relation.sum)
        } else {
            let is_constant = self.is_constant(a);
            let of = |relation: &Relation| {
                let sum = relation.sum;
                let same = sum.link.is_related(a.link) || is_constant && sum.id == a.id;
                same.then(|| relation.other(b.link)).flatten()
            };
            state.relations.iter().find_map(of)
        };
        let symbol = match known {
            Some(known) => known,
            None => {
                let set = self.known.get(result.id).by(AluOp::Sub, add as u64);
                let symbol = self.fresh(&set);
                let (terms, sum) = if is_sum { ([a, b], symbol) } else { ([symbol, b], a) };
                self.relate(state, Relation { kind: RelationKind::Sum, terms, sum });
                symbol
            }
        };
        let set = self.known.get(symbol.id).by(AluOp::Add, add as u64);
        let met = self.known.get(result.id).meet(&set);
        let id = met.map_or(result.id, |met| self.known.intern(&met));
        Number { id, link: symbol.link.through(Width::Double, AluOp::Add, Some(add as u64), false) }
    }

    /// The greatest that `offset + length` may be, by a relation of the two, or of what both are scaled from. Both
    /// are far from the ends of the numbers, so that their sum is what it is modulo 2^64.
    pub(super) fn end_of(
        &mut self,
        state: &AbstractState,
        offset: Number,
        length: Number,
    ) -> Option<i64> {
        let relation = *state.sum_of(offset.link, length.link)?;
        let scale = offset.link.scale().filter(|scale| length.link.scale() == Some(*scale))?;
        if !self.near(offset) || !self.near(length) {
            return None;
        }
        let add = (offset.link.add() + length.link.add()) as u64;
        let sum = self.known.get(relation.sum.id).by(AluOp::Add, add);
        Some(sum.by(AluOp::ShiftLeft, scale).signed_most)
    }

    /// Learns of the other numbers of relations what follows from what is known of this symbol now.
    pub(super) fn propagate(&mut self, state: &mut AbstractState, symbol: SymbolLink) {
        for at in 0..state.relations.len() {
            let relation = state.relations[at];
            if symbol.is_none() || !relation.mentions(symbol) {
                continue;
            }
            if relation.kind == RelationKind::Half {
                // Either extension of the lower half is this number, so that other forms of the whole learn of it.
                if relation.sum.link.is_related(symbol) && relation.sum.link.add() == 0 {
                    let link = relation.terms[0].link.half();
                    self.learn_linked(state, Number { link, ..relation.sum });
                }
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
                let mut rest = of(self, AluOp::Sub, sum, other);
                if relation.kind == RelationKind::Parts {
                    let part = Scalar::range(0, self.known.get(sum.id).most);
                    rest = rest.meet(&part).unwrap_or(rest);
                }
                self.learn_set(state, term, &rest);
            }
        }
    }

    /// A number of a relation is in this set too.
    fn learn_set(&mut self, state: &mut AbstractState, number: Number, set: &Scalar) {
        let before = self.known.get(number.id);
        // A contradiction means that no concrete path reaches this point, so any state is sound.
        let Some(met) = before.meet(set) else { return };
        if number.link.is_none() || met == *before {
            return;
        }
        let id = self.known.intern(&met);
        self.learn_linked(state, Number { id, ..number });
    }

    /// Whether a comparison of two numbers may relate them, before it. If so, both get symbols.
    pub(super) fn may_relate(
        &mut self,
        state: &mut AbstractState,
        (width, condition): (Width, Condition),
        (dst, src): (Register, Operand),
    ) -> bool {
        let Operand::Register(src) = src else { return false };
        let unordered =
            matches!(condition, Condition::Equal | Condition::NotEqual | Condition::Set);
        if unordered || width == Width::Word || dst == src {
            return false;
        }
        let (a, b) = match (state.value(dst), state.value(src)) {
            (Value::Number(a), Value::Number(b)) => (a, b),
            (Value::Address(at, a), Value::Address(place, b)) if at == place => (a, b),
            _ => return false,
        };
        if self.is_constant(a) || self.is_constant(b) {
            return false;
        }
        let small = [a, b].iter().any(|number| {
            let set = self.known.get(number.id);
            set.signed_least >= -NEAR && set.signed_most <= SMALL
        });
        let may_be = |number: Number| number.link.may_be_whole() || number.link.is_half();
        // Of a start and an end that may still be any numbers.
        let are_parts = !is_signed(condition)
            && [a, b].iter().all(|number| self.known.get(number.id).most == u64::MAX);
        if !small && !are_parts || !may_be(a) || !may_be(b) {
            return false;
        }
        self.link(state, dst);
        self.link(state, src);
        true
    }

    /// Relates two registers after a comparison that `may_relate`, on one of its paths.
    ///
    /// Sound: where both are near zero, and not negative if they are compared as unsigned numbers, the order of l and
    /// g is the sign of `g - l`, which does not overflow; so `d = g - l` is at least 0 (or 1) and at most
    /// `max g - min l`. With `l = x + c`, `g = y + e` that is `x + (d + c - e) = y`. And where `y + z = s` is known,
    /// `x + z = s - (y - x)`, which is `s - d + (e - c)`.
    pub(super) fn order(
        &mut self,
        state: &mut AbstractState,
        (condition, holds): (Condition, bool),
        (dst, src): (Register, Register),
    ) {
        use Condition::{Greater, Less, LessEqual, SignedGreater, SignedLess, SignedLessEqual};
        for register in [dst, src] {
            if let Value::Number(number) = state.value(register)
                && number.link.is_half()
            {
                self.half(state, Number { id: Id::UNKNOWN, link: number.link.symbol() });
            }
        }
        let number = |register| match state.value(register) {
            Value::Number(number) | Value::Address(_, number) => number,
            Value::Nothing | Value::Handle(_) => Number::UNKNOWN,
        };
        let is_signed = is_signed(condition) || matches!(state.value(dst), Value::Address(..));
        let is_less = matches!(condition, Less | LessEqual | SignedLess | SignedLessEqual);
        let is_strict = matches!(condition, Less | Greater | SignedLess | SignedGreater) == holds;
        let (a, b) = (number(dst), number(src));
        let (least, greatest) = if is_less == holds { (a, b) } else { (b, a) };
        let (low, high) = (*self.known.get(least.id), *self.known.get(greatest.id));
        let negative = low.signed_least < 0 || high.signed_least < 0;
        if !self.near(least) && !self.near(greatest) && !is_signed {
            self.part(state, (least, greatest), is_strict);
        }
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
        let slack = difference.by(AluOp::Add, (c - e) as u64);
        let mut found = false;
        for at in 0..state.relations.len() {
            let Some(relation) = state.relations.get(at).copied() else { break };
            let Some(z) = relation.other(y.link).filter(|z| !z.link.is_none()) else { continue };
            let sum = self.known.get(relation.sum.id);
            let sum = Scalar::alu(Width::Double, AluOp::Sub, sum, &slack);
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
                    let terms = [x, slack];
                    self.relate(state, Relation { kind: RelationKind::Sum, terms, sum: y });
                    self.propagate(state, slack.link);
                }
            }
        }
    }

    /// Relates two unsigned numbers after a comparison that orders them, so that a later bound of the greater one
    /// bounds the other.
    ///
    /// Sound: `d = greatest - least` is at most `greatest`, and `least + d` does not overflow.
    fn part(
        &mut self,
        state: &mut AbstractState,
        (least, greatest): (Number, Number),
        is_strict: bool,
    ) {
        let is_symbol = |number: Number| number.link.is_whole() && number.link.add() == 0;
        let known = |relation: &Relation| {
            relation.sum.link.is_related(greatest.link) && relation.other(least.link).is_some()
        };
        if !is_symbol(least)
            || !is_symbol(greatest)
            || least.link.is_related(greatest.link)
            || state.relations.iter().any(known)
        {
            return;
        }
        let most = self.known.get(greatest.id).most.saturating_sub(self.known.get(least.id).least);
        let slack = self.fresh(&Scalar::range(u64::from(is_strict), most));
        self.relate(
            state,
            Relation { kind: RelationKind::Parts, terms: [least, slack], sum: greatest },
        );
    }

    /// A sum of two symbols is in this set.
    fn sum_is_in(&mut self, state: &mut AbstractState, (x, z): (Number, Number), set: &Scalar) {
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
            self.relate(state, Relation { kind: RelationKind::Sum, terms: [x, z], sum });
            self.propagate(state, sum.link);
        }
    }
}

fn is_signed(condition: Condition) -> bool {
    use Condition::{SignedGreater, SignedGreaterEqual, SignedLess, SignedLessEqual};
    matches!(condition, SignedLess | SignedLessEqual | SignedGreater | SignedGreaterEqual)
}
