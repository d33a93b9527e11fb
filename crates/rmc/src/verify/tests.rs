//! The arithmetic of sets against that of numbers: whatever an operation makes of members of sets is a
//! member of what it makes of the sets.

use super::link::{Renaming, SymbolLink};
use super::refine::refine;
use super::scalar::Scalar;
use super::tnum::Bits;
use crate::isa::{AluOp, Condition, Order, Size, Width, alu, byte_swap, compare};

/// Random numbers, many of them close to an overflow.
struct ScalarGenerator(u64);

impl ScalarGenerator {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn number(&mut self) -> u64 {
        const EDGES: [u64; 8] =
            [0, 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX, u32::MAX as u64, i64::MAX as u64];
        match self.below(4) {
            0 => EDGES[self.below(8) as usize].wrapping_add(self.below(9)).wrapping_sub(4),
            1 => self.below(70),
            2 => self.next() >> self.below(64),
            _ => (self.next() as i64 >> self.below(64)) as u64,
        }
    }

    /// A set and some of its members.
    fn set(&mut self) -> (Scalar, [u64; 4]) {
        let (a, b) = (self.number(), self.number());
        let (scalar, mut members) = match self.below(6) {
            0 => (Scalar::constant(a), [a; 4]),
            1 => {
                let (least, most) = (a.min(b), a.max(b));
                let within = |seed: u64| least + seed % (most - least).max(1);
                (
                    Scalar::range(least, most),
                    [least, most, within(self.next()), within(self.next())],
                )
            }
            2 => {
                let (least, most) = ((a as i64).min(b as i64), (a as i64).max(b as i64));
                (Scalar::signed_range(least, most), [least, most, least, most].map(|x| x as u64))
            }
            3 => {
                let bits = Bits { value: a & !b, mask: b };
                let scalar = Scalar { bits, ..Scalar::UNKNOWN };
                let of = |seed: u64| a & !b | seed & b;
                let members = [of(0), of(u64::MAX), of(self.next()), of(self.next())];
                (scalar.tighten().expect("bits alone agree"), members)
            }
            4 => {
                let half = Scalar::range(u64::from(a as u32), u64::from(a as u32));
                let scalar = Scalar {
                    least32: half.least32,
                    most32: half.most32,
                    signed_least32: half.signed_least32,
                    signed_most32: half.signed_most32,
                    ..Scalar::UNKNOWN
                };
                let of = |seed: u64| seed << 32 | u64::from(a as u32);
                let members = [of(0), of(u64::MAX), of(self.next()), of(self.next())];
                (scalar.tighten().expect("one half alone agrees"), members)
            }
            _ => (Scalar::constant(a).join(&Scalar::constant(b)), [a, b, a, b]),
        };
        members.sort_unstable();
        (scalar, members)
    }
}

fn has(scalar: &Scalar, value: u64) -> bool {
    scalar.contains(&Scalar::constant(value))
}

#[test]
fn sets_have_their_members() {
    let mut chance = ScalarGenerator(11);
    for _ in 0..20_000 {
        let (scalar, members) = chance.set();
        for value in members {
            assert!(has(&scalar, value), "{scalar:?} {value:#x}");
            let tight = scalar.tighten().expect("it has members");
            assert!(has(&tight, value), "{scalar:?} {tight:?} {value:#x}");
            assert!(has(&scalar.zero_extended(), u64::from(value as u32)), "{scalar:?} {value:#x}");
            assert!(has(&scalar.sign_extended(), i64::from(value as i32) as u64), "{value:#x}");
        }
    }
}

#[test]
fn arithmetic_on_sets_is_sound() {
    let mut chance = ScalarGenerator(12);
    for _ in 0..60_000 {
        let ((a, of_a), (b, of_b)) = (chance.set(), chance.set());
        for width in [Width::Word, Width::Double] {
            for op in AluOp::ALL {
                let set = Scalar::alu(width, op, &a, &b);
                for x in of_a {
                    for y in of_b {
                        let value = alu(width, op, x, y);
                        assert!(
                            has(&set, value),
                            "{width:?} {op:?} {x:#x} {y:#x} = {value:#x}\n{a:?}\n{b:?}\n{set:?}"
                        );
                    }
                }
            }
        }
        for order in [Order::Little, Order::Big, Order::Swapped] {
            for size in [Size::Half, Size::Word, Size::Double] {
                let set = Scalar::bytes(order, size, &a);
                assert!(of_a.iter().all(|x| has(&set, byte_swap(order, size, *x))), "{a:?}");
            }
        }
    }
}

#[test]
fn what_jumps_teach_is_sound() {
    let mut chance = ScalarGenerator(13);
    let mut impossible = 0;
    for _ in 0..60_000 {
        let ((a, of_a), (b, of_b)) = (chance.set(), chance.set());
        for width in [Width::Word, Width::Double] {
            for condition in Condition::ALL {
                let ways = [false, true].map(|holds| refine(width, condition, holds, &a, &b));
                impossible += ways.iter().filter(|way| way.is_none()).count();
                for x in of_a {
                    for y in of_b {
                        let holds = compare(width, condition, x, y);
                        let way = ways[usize::from(holds)];
                        let kept = way.is_some_and(|(a, b)| has(&a, x) && has(&b, y));
                        assert!(
                            kept,
                            "{width:?} {condition:?} {x:#x} {y:#x}\n{a:?}\n{b:?}\n{way:?}"
                        );
                    }
                }
            }
        }
    }
    assert!(impossible > 100_000, "jumps that go one way only are known: {impossible}");
}

#[test]
fn joins_and_widenings_contain_both() {
    let mut chance = ScalarGenerator(14);
    let thresholds = [-1, 0, 1, 63, 64, 65, 4_096];
    for _ in 0..60_000 {
        let ((a, of_a), (b, of_b)) = (chance.set(), chance.set());
        let (join, wide) = (a.join(&b), a.widen(&b, &thresholds));
        assert!(wide.contains(&join), "{a:?} {b:?} {wide:?}");
        let meet = a.meet(&b);
        for x in of_a.into_iter().chain(of_b) {
            assert!(has(&join, x) && has(&wide, x), "{a:?} {b:?} {x:#x}");
            let in_both = has(&a, x) && has(&b, x);
            assert!(!in_both || meet.is_some_and(|meet| has(&meet, x)), "{a:?} {b:?} {x:#x}");
        }
    }
}

#[test]
fn widening_ends() {
    let mut chance = ScalarGenerator(15);
    let thresholds = [-1, 0, 1, 63, 64, 65, 4_096];
    for _ in 0..500 {
        let (mut set, _) = chance.set();
        let mut steps = 0;
        for _ in 0..2_000 {
            let (new, _) = chance.set();
            if !set.contains(&new) {
                set = set.widen(&new, &thresholds);
                steps += 1;
            }
        }
        assert!(steps < 200, "{steps}");
    }
}

/// A number that some instructions make of a value, and its link.
fn derived(chance: &mut ScalarGenerator, value: u64) -> (u64, SymbolLink) {
    let (mut number, mut link) = (value, SymbolLink::of(1));
    for _ in 0..chance.below(4) {
        let (width, op, by) = match chance.below(8) {
            0 => (Width::Double, AluOp::Add, chance.below(2_000)),
            1 => (Width::Double, AluOp::Sub, chance.below(2_000)),
            2 => (Width::Double, AluOp::ShiftLeft, 32),
            3 => (Width::Double, AluOp::ShiftRight, 32),
            4 => (Width::Double, AluOp::ShiftRightSigned, 32),
            5 => (Width::Double, AluOp::And, 0xffff_ffff),
            6 => (Width::Word, AluOp::Move, number),
            _ => (Width::Double, AluOp::MoveSigned32, number),
        };
        // Whether it is known that the number fits is another matter than whether it does.
        let fits = number < 1 << 31 && chance.below(2) == 0;
        let next = link.through(width, op, (!op.is_move()).then_some(by), fits);
        if !next.is_none() {
            (number, link) = (alu(width, op, number, by), next);
        }
    }
    (number, link)
}

#[test]
fn what_linked_numbers_imply_is_sound() {
    let (mut chance, mut bounded) = (ScalarGenerator(16), 0);
    for _ in 0..200_000 {
        let (value, other) = (chance.number(), chance.number());
        let ((a, of_a), (b, of_b)) = (derived(&mut chance, value), derived(&mut chance, value));
        let known = Scalar::constant(a).join(&Scalar::constant(other)).tighten().unwrap();
        if let Some(implied) = of_a.implied(&known, of_b) {
            assert!(has(&implied, b), "{value:#x}: {a:#x} {of_a:?} {b:#x} {of_b:?}\n{known:?}");
            bounded += u32::from(implied.most < u64::MAX);
        }
    }
    assert!(bounded > 50_000, "{bounded}");
}

#[test]
fn remainders_of_clang_are_bounded() {
    let mut chance = ScalarGenerator(17);
    for _ in 0..20_000 {
        let (value, by) = (chance.number(), 2 + chance.below(5_000));
        let plus = |by: u64| SymbolLink::of(3).through(Width::Double, AluOp::Add, Some(by), false);
        let (near, far) = (chance.below(3_000), chance.below(3_000));
        let quotient = plus(near).through(Width::Double, AluOp::Div, Some(by), false);
        let multiple = quotient.through(Width::Double, AluOp::Mul, Some(by), false);
        let above = plus(far).above(multiple).expect("both are of one symbol");
        let rest = value.wrapping_add(near) % by;
        let difference = value.wrapping_add(far).wrapping_sub(value.wrapping_add(near) - rest);
        assert!(has(&above, difference), "{value:#x} + {near} / {by}, {far}: {above:?}");
        assert!(above.signed_most - above.signed_least < by as i64);
        assert!(plus(far).above(quotient).is_none() && plus(far).above(plus(near)).is_none());
        assert!(quotient.through(Width::Double, AluOp::Mul, Some(by + 1), false).is_none());
        assert!(SymbolLink::of(4).above(multiple).is_none());
    }
}

#[test]
fn renamed_symbols_hold_at_one_distance_alone() {
    let plus = |symbol: u32, by: u64| {
        SymbolLink::of(symbol).through(Width::Double, AluOp::Add, Some(by), false)
    };
    let mut renaming = Renaming::default();
    assert!(renaming.holds(plus(1, 3), plus(7, 5)));
    assert!(renaming.holds(plus(1, 4), plus(7, 6)), "as far from each other");
    assert!(!renaming.holds(plus(1, 4), plus(7, 7)), "farther");
    assert!(!renaming.holds(plus(1, 3), plus(8, 5)), "another value");
    assert!(!renaming.holds(plus(1, 3), SymbolLink::NONE));
    let half = plus(1, 3).through(Width::Word, AluOp::Move, None, false);
    assert!(!renaming.holds(half, plus(7, 5)), "another function");
    assert!(renaming.holds(SymbolLink::NONE, plus(9, 0)));
}
