//! Loop summarization: the remaining iterations of a counted loop are verified at once.
//!
//! *Induction variables* (Aho, Lam, Sethi, Ullman: Compilers, chapter 9) are registers that each iteration changes by
//! constants only. What a path added to them since the loop header is part of its abstract state ([`Count`]), until
//! another instruction writes one of them. There are two kinds of summarized loops:
//!
//! - *Constants* ([`LoopCounters::Constants`]). A path returns to the header with induction variables moved by a constant
//!   step, and otherwise only numbers changed, which are widened to any number. A candidate for the bound (`bounds.rs`)
//!   gives the trip count, and the path continues with the range of each induction variable over all iterations. When
//!   it returns, each must have moved by the same step, and the rest of the state must be contained in the header's.
//!   Then, by induction over the iterations, variables are `first + iteration * step`, and a bound of one of them at
//!   the header bounds the trip count.
//! - *Ranges* ([`LoopCounters::Ranges`]). A path returns to the header with a state that is contained in a visited one, and
//!   continues with the visited state. If it returns with a contained state again, and has always moved a register of
//!   bounded range in one direction, the trip count is at most the range divided by the smallest step.
//!
//! The cost of the loop is its most expensive iteration times (trip count - 1), plus its most expensive exit
//! ([`Behind`]). A path that reaches the header with a different state is first treated as the exit. If that was wrong,
//! a problem cannot be ruled out, or the candidate was no bound, the summarization is abandoned and the path resumes at
//! the header. The next attempt widens the registers that were found to change; after [`TRIES_MAX`] attempts the loop
//! is unrolled.

use alloc::vec::Vec;

use super::bounds::{Bounds, Loop, With};
use super::induction::{COUNTERS_MAX, Count, STEP_MAX};
use super::interned::Interned;
use super::scalar::Scalar;
use super::state::{AbstractState, Number, Value};
use super::step::FactsOfAll;
use crate::cost::Cost;
use crate::isa::Register;

/// Greatest nesting of summarized loops.
const NESTED_MAX: usize = 3;
/// Smallest trip count to summarize: unrolling fewer iterations is as fast.
const TURNS_MIN: u64 = 3;
/// Greatest trip count to summarize, so that sums of costs do not overflow.
const TURNS_MAX: u64 = 1 << 40;
/// Greatest absolute value of a counter, so that no arithmetic here overflows.
const FAR: i64 = 1 << 61;
/// Paths of a loop that may return to its header with a different state.
const OTHERS_MAX: u8 = 2;
/// Failed attempts at summarization per loop header.
const TRIES_MAX: u8 = 6;

/// A register that counts.
#[derive(Clone, Copy, Debug)]
struct Counter {
    register: u8,
    /// Its value in the first iteration; of a range, the end that lags most.
    first: i64,
    /// The width of its range there.
    width: u64,
    /// Its step per iteration; never zero.
    by: i64,
}

impl Counter {
    /// The last iteration, from 0, in which it can be in the range of `scalar`.
    fn turn(&self, scalar: &Scalar) -> Option<u64> {
        let far = if self.by > 0 { scalar.signed_most } else { scalar.signed_least };
        let way = i128::from(far) - i128::from(self.first);
        u64::try_from(way / i128::from(self.by))
            .ok()
            .filter(|_| (way < 0) == (self.by < 0) || way == 0)
    }

    /// Its set of values over `turns` iterations.
    fn of(&self, turns: u64) -> Option<Scalar> {
        let last = self.last(turns)?;
        if self.width == 0 {
            return Scalar::steps(self.first, last, self.by);
        }
        Some(Scalar::signed_range(self.first.min(last), self.first.max(last)))
    }

    fn last(&self, turns: u64) -> Option<i64> {
        let ahead = i128::from(self.width) * i128::from(self.by.signum());
        let way = i128::from(self.by) * i128::from(turns - 1) + ahead;
        i64::try_from(i128::from(self.first) + way).ok().filter(|last| (-FAR..=FAR).contains(last))
    }
}

/// A register of bounded range that every iteration moves in the same direction.
#[derive(Clone, Copy, Debug)]
struct Ranged {
    register: u8,
    /// From its least number to its greatest.
    span: u64,
    /// The smallest step of an iteration, with the sign of all steps.
    by: Option<i64>,
}

impl Ranged {
    /// Records a step of `added`. Returns whether it has the direction of the others.
    fn moves(&mut self, added: i64) -> bool {
        match self.by {
            Some(by) if by.signum() == added.signum() => {
                self.by = Some(if by.unsigned_abs() < added.unsigned_abs() { by } else { added });
                true
            }
            Some(_) => false,
            None => {
                self.by = Some(added);
                added != 0
            }
        }
    }
}

/// The registers that bound the trip count of a loop.
enum LoopCounters {
    Constants {
        counters: Vec<Counter>,
        /// The assumed trip count.
        tried: u64,
        /// The last iteration that a path can reach.
        last: u64,
        /// Whether other changing registers are not widened.
        keeps: bool,
    },
    Ranges(Vec<Ranged>),
}

/// A loop summarization in progress.
pub(super) struct Counted {
    id: u32,
    /// The loop header.
    pub(super) at: usize,
    /// The stretch of the path that starts at the header.
    pub(super) stretch: usize,
    /// The number of the first visited state recorded since it began.
    pub(super) memory: u32,
    /// The visited state that is explored, for ranges.
    pub(super) of: Option<u32>,
    /// Instructions explored and instructions discarded, and the facts, when it began.
    pub(super) walked: u64,
    pub(super) wasted: u64,
    pub(super) facts: FactsOfAll,
    /// The state at the header when it began, to which the path returns if it is abandoned.
    pub(super) before: AbstractState,
    /// The state that holds at the header in every iteration.
    pub(super) general: AbstractState,
    counters: LoopCounters,
    /// Paths that returned to the header with a different state, and the registers that differed, as bits, if nothing
    /// else did.
    others: u8,
    changed: u16,
}

/// How a path that reaches the header of a summarized loop relates to the loop.
pub(super) enum Turn {
    /// It does not: another frame.
    Other,
    /// The next iteration, and the induction step holds.
    Same,
    /// It is treated as having left the loop.
    Leaves,
    /// The next iteration, but the induction step fails.
    Another(Again),
}

/// How to retry a failed summarization.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    /// With this trip count.
    Turns(u64),
    /// With these registers widened to any number, as bits.
    Changing(u16),
    Never,
}

impl Again {
    /// The retry for registers, as bits, that change by another step: widened if they all hold numbers.
    fn with(registers: u16, keeps: bool, state: &AbstractState) -> Self {
        let are_numbers = registers & !state.numbers() == 0;
        if are_numbers && !keeps { Self::Changing(registers) } else { Self::Never }
    }
}

/// Failed attempts at summarizing the loop at a header, and what the next one should assume.
#[derive(Clone, Copy, Default)]
pub(super) struct Tries {
    failures: u8,
    /// The smallest trip count that can succeed.
    least: u64,
    /// Registers that changed in later iterations than the first ones, as bits.
    changing: u16,
    /// Whether widening these failed too, so that a path on which they change is treated as the exit.
    keeps: bool,
    /// Whether an attempt by ranges failed.
    ranges: bool,
}

impl Tries {
    /// Records a failed attempt.
    pub(super) fn add(&mut self, counted: &Counted, again: Again) {
        if counted.of.is_some() {
            self.ranges = true;
            return;
        }
        self.failures += 1;
        match again {
            Again::Turns(turns) => self.least = turns,
            Again::Changing(registers) => self.changing |= registers,
            Again::Never if self.keeps => self.failures = TRIES_MAX,
            Again::Never if counted.changed & !self.changing != 0 => {
                self.changing |= counted.changed;
            }
            Again::Never if self.changing != 0 => {
                (self.changing, self.keeps, self.least) = (0, true, 0);
            }
            Again::Never => self.failures = TRIES_MAX,
        }
    }

    pub(super) const fn of_constants_are_over(&self) -> bool {
        self.failures >= TRIES_MAX
    }

    pub(super) const fn of_ranges_are_over(&self) -> bool {
        self.ranges
    }
}

impl Counted {
    /// A summarization that has not begun; the caller sets stretch, memory and figures.
    fn begun(
        (at, id): (usize, u32),
        of: Option<u32>,
        (before, general): (AbstractState, AbstractState),
        counters: LoopCounters,
    ) -> Self {
        let (walked, wasted, facts) = (0, 0, FactsOfAll::default());
        let (stretch, memory, others, changed) = (0, 0, 0, 0);
        Self {
            id,
            at,
            stretch,
            memory,
            of,
            walked,
            wasted,
            facts,
            before,
            general,
            counters,
            others,
            changed,
        }
    }

    /// Begins a summarization by constants at a header reached with `earlier` and then with `state`. Returns the state
    /// to continue with.
    pub(super) fn of_constants(
        (loops, id): (Loop, u32),
        (earlier, state): (&AbstractState, &AbstractState),
        (tries, bounds): (Tries, &Bounds),
        known: &mut Interned,
    ) -> Option<(Self, AbstractState)> {
        if state.counts.len() >= NESTED_MAX || earlier.counts != state.counts {
            return None;
        }
        let adds = bounds.adds & !tries.changing;
        let (counters, mut changing) = constants(earlier, state, adds, known)?;
        if !earlier.contains_but(mask(&counters) | changing, state, known) {
            return None;
        }
        changing |= tries.changing & !mask(&counters) & state.numbers();
        let tried = turns(&counters, loops, state, (bounds, tries.least), known)?;
        let mut general = state.clone();
        let registers = (0..Register::COUNT as u8).filter(|register| changing >> register & 1 == 1);
        for register in registers.filter_map(Register::new) {
            general.set(register, Value::UNKNOWN);
        }
        for counter in &counters {
            let register = Register::new(counter.register)?;
            let id = known.intern(&counter.of(tried)?);
            let value = match state.value(register) {
                Value::Address(place, _) => Value::Address(place, Number::unlinked(id)),
                _ => Value::Number(Number::unlinked(id)),
            };
            general.set(register, value);
        }
        let walked = counting(&general, id, counters.iter().map(|counter| counter.register));
        let counters = LoopCounters::Constants { counters, tried, last: 0, keeps: tries.keeps };
        let before = state.clone();
        Some((Self::begun((loops.head, id), None, (before, general), counters), walked))
    }

    /// Begins a summarization by ranges at a header reached with `state`, which is contained in the visited state
    /// `earlier`.
    pub(super) fn of_ranges(
        (at, id): (usize, u32),
        ((number, earlier), state): ((u32, &AbstractState), &AbstractState),
        bounds: &Bounds,
        known: &Interned,
    ) -> Option<(Self, AbstractState)> {
        if state.counts.len() >= NESTED_MAX || earlier.counts != state.counts {
            return None;
        }
        let ranged = |register: u8| {
            let range = known.get(offset(earlier.value(Register::new(register)?))?);
            let (least, most) = (range.signed_least, range.signed_most);
            let span = u64::try_from(most.checked_sub(least)?).ok()?;
            let near = least >= -FAR && most <= FAR && (1..=TURNS_MAX).contains(&span);
            (near && bounds.adds >> register & 1 == 1).then_some(Ranged {
                register,
                span,
                by: None,
            })
        };
        let registers = 0..Register::COUNT as u8 - 1;
        let counters: Vec<_> = registers.filter_map(ranged).take(COUNTERS_MAX).collect();
        if counters.is_empty() {
            return None;
        }
        let general = earlier.clone();
        let walked = counting(&general, id, counters.iter().map(|counter| counter.register));
        let (counters, before) = (LoopCounters::Ranges(counters), state.clone());
        let of = Some(number);
        Some((Self::begun((at, id), of, (before, general), counters), walked))
    }

    /// Classifies a path that has reached the header with its count of this loop at index `place`.
    pub(super) fn turn(&mut self, place: usize, state: &AbstractState, known: &Interned) -> Turn {
        let count = &state.counts[place];
        if count.depth != state.depth() {
            return Turn::Other;
        }
        let but = match &self.counters {
            LoopCounters::Constants { counters, .. } => mask(counters),
            LoopCounters::Ranges(_) => 0,
        };
        let same = state.counts[..place] == self.before.counts[..]
            && self.general.contains_but(but, state, known);
        if !same {
            return self.other(state, known);
        }
        match &mut self.counters {
            LoopCounters::Constants { counters, tried, last, keeps } => {
                let moved = count.added().iter().zip(&*counters);
                let others = moved.filter(|((_, added), counter)| *added != counter.by);
                let others = others.fold(0, |bits, ((register, _), _)| bits | 1 << register);
                if others != 0 {
                    return Turn::Another(Again::with(others, *keeps, state));
                }
                // Each bound limits the iteration that all counters are in.
                let turns = counters.iter().filter_map(|counter| {
                    let register = Register::new(counter.register)?;
                    counter.turn(known.get(offset(state.value(register))?))
                });
                match turns.min() {
                    Some(turn) if turn < *tried => {
                        *last = turn.max(*last);
                        Turn::Same
                    }
                    Some(turn) if turn < TURNS_MAX => Turn::Another(Again::Turns(turn + 1)),
                    _ => Turn::Another(Again::Never),
                }
            }
            LoopCounters::Ranges(ranges) => {
                ranges.retain_mut(|range| {
                    let added = count.added().iter().find(|(at, _)| *at == range.register);
                    added.is_some_and(|(_, added)| range.moves(*added))
                });
                if ranges.is_empty() { Turn::Another(Again::Never) } else { Turn::Same }
            }
        }
    }

    /// Classifies a path that has reached the header with a different state.
    fn other(&mut self, state: &AbstractState, known: &Interned) -> Turn {
        if let LoopCounters::Constants { counters, .. } = &self.counters {
            let but = mask(counters);
            let changed = self.general.changed(state, known) & !but;
            if self.general.contains_but(but | changed, state, known) {
                self.changed |= changed;
            }
        }
        // The last iteration often ends with a different state.
        self.others += 1;
        if self.others > OTHERS_MAX { Turn::Another(Again::Never) } else { Turn::Leaves }
    }

    /// Whether `other`, begun at the same header by a path that left this loop, continues it: same counter and step,
    /// different start.
    pub(super) fn goes_on_as(&self, other: &Self) -> bool {
        let (
            LoopCounters::Constants { counters, keeps: false, .. },
            LoopCounters::Constants { counters: others, .. },
        ) = (&self.counters, &other.counters)
        else {
            return false;
        };
        let same = |a: &Counter, b: &Counter| (a.register, a.by) == (b.register, b.by);
        let elsewhere = |a: &Counter, b: &Counter| (a.first, a.width) != (b.first, b.width);
        self.at == other.at
            && self.changed != 0
            && counters.iter().any(|a| others.iter().any(|b| same(a, b) && elsewhere(a, b)))
    }

    /// The greatest possible index of an iteration, from 0.
    fn last(&self) -> u64 {
        match &self.counters {
            LoopCounters::Constants { last, .. } => *last,
            LoopCounters::Ranges(ranges) => {
                let last = |range: &Ranged| Some(range.span / range.by?.unsigned_abs());
                ranges.iter().filter_map(last).min().unwrap_or(0)
            }
        }
    }

    /// The cost of the loop and of what follows it, given the most expensive iteration and the cost after the last one.
    pub(super) fn cost(&self, mut behind: Behind) -> Behind {
        let Some(turn) = behind.take(self.id) else { return behind };
        let all = turn.times(self.last());
        match &mut behind.end {
            Some(end) => *end = end.plus(all),
            // The loop has no exit: its cost is that of its iterations.
            None if behind.turns.is_empty() => behind.end = Some(all.plus(turn)),
            None => {}
        }
        behind.turns.iter_mut().for_each(|(_, cost)| *cost = cost.plus(all));
        behind
    }

    /// A number that increases with each summarization.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// The states that it keeps.
    pub(super) fn states(&mut self) -> [&mut AbstractState; 2] {
        [&mut self.before, &mut self.general]
    }

    /// Values that it keeps.
    pub(super) fn cells(&self) -> usize {
        self.before.cells() + self.general.cells()
    }
}

/// A copy of the state that counts these registers from here on.
fn counting(
    general: &AbstractState,
    id: u32,
    registers: impl Iterator<Item = u8>,
) -> AbstractState {
    let mut walked = general.clone();
    let (mut added, mut counters) = ([(0, 0); COUNTERS_MAX], 0);
    for (added, register) in added.iter_mut().zip(registers) {
        added.0 = register;
        counters += 1;
    }
    walked.counts.push(Count { id, depth: general.depth(), added, counters });
    walked
}

/// The registers of the counters, as bits.
fn mask(counters: &[Counter]) -> u16 {
    counters.iter().fold(0, |mask, counter| mask | 1 << counter.register)
}

/// The set of a number, or of the offset of an address.
fn offset(value: Value) -> Option<super::interned::Id> {
    match value {
        Value::Number(number) | Value::Address(_, number) => Some(number.id),
        Value::Nothing | Value::Handle(_) => None,
    }
}

/// The registers of the running frame that moved by a constant step, if there are some and at most [`COUNTERS_MAX`];
/// and those that changed otherwise and may be widened, as bits.
fn constants(
    earlier: &AbstractState,
    state: &AbstractState,
    adds: u16,
    known: &Interned,
) -> Option<(Vec<Counter>, u16)> {
    if earlier.frames.len() != state.frames.len() {
        return None;
    }
    let (mut counters, mut changing) = (Vec::new(), 0);
    for register in 0..Register::COUNT as u8 - 1 {
        let at = Register::new(register)?;
        let (before, now) = (earlier.value(at), state.value(at));
        let same_kind = match (before, now) {
            (Value::Number(_), Value::Number(_)) => true,
            (Value::Address(a, _), Value::Address(b, _)) => a == b,
            _ => false,
        };
        if before == now || !same_kind {
            continue;
        }
        let is_number = matches!(now, Value::Number(_));
        let (Some(before), Some(now)) = (offset(before), offset(now)) else { continue };
        let (before, now) = (known.get(before), known.get(now));
        if before.contains(now) {
            continue;
        }
        changing |= u16::from(is_number) << register;
        let (least, most) = (now.signed_least, now.signed_most);
        let far =
            least < -FAR || most > FAR || before.signed_least < -FAR || before.signed_most > FAR;
        if far {
            continue;
        }
        let by = least - before.signed_least;
        let is_added = adds >> register & 1 == 1;
        if by == 0 || by != most - before.signed_most || !is_added {
            continue;
        }
        if counters.len() == COUNTERS_MAX || by.unsigned_abs() > STEP_MAX {
            return None;
        }
        let (first, width) = (if by > 0 { least } else { most }, least.abs_diff(most));
        changing &= !(1 << register);
        counters.push(Counter { register, first, width, by });
    }
    (!counters.is_empty()).then_some((counters, changing))
}

/// The trip count, at least `least`, after which a counter reaches a constant that the program compares it with, or a
/// neighbour of one. `None` if it is less than [`TURNS_MIN`].
fn turns(
    counters: &[Counter],
    loops: Loop,
    state: &AbstractState,
    (bounds, least): (&Bounds, u64),
    known: &Interned,
) -> Option<u64> {
    // What only a copy is compared with bounds the counter too, but the way out is then mostly taken before the last
    // iteration's cost: unrolled, such a loop has the exact worst case.
    let own = |counter: &Counter| bounds.within(counter.register, loops).next().is_some();
    if !counters.iter().any(own) {
        return None;
    }
    let (least, most) = (least.max(2), TURNS_MAX.min(bounds.turns_max));
    let all = counters.iter().filter_map(|counter| {
        let up = counter.by > 0;
        let way = i128::from(counter.by) * i128::from(least - 1);
        let from = i64::try_from(i128::from(counter.first) + way).ok()?;
        let number = |with: With| match with {
            With::Number(number) => Some(number),
            With::Register(register) => {
                let range = known.get(offset(state.value(register))?);
                Some(if up { range.signed_most } else { range.signed_least })
            }
        };
        let turns = |number: i64| Some(counter.turn(&Scalar::constant(number as u64))? + 1);
        let first_of = |numbers: &mut dyn Iterator<Item = i64>| {
            let near = numbers.filter(|number| (-FAR..=FAR).contains(number));
            let beside = near.flat_map(|number| [number - 1, number, number + 1]);
            beside.filter_map(turns).filter(|turns| (least..=most).contains(turns)).min()
        };
        let within = bounds.within(counter.register, loops);
        first_of(&mut within.filter_map(number))
            .or_else(|| first_of(&mut bounds.near(counter.register, from, up)))
    });
    let turns = all.min()?;
    // No counter may leave the range in the iteration after the last one.
    let near = counters.iter().all(|counter| counter.last(turns + 1).is_some());
    (near && turns >= TURNS_MIN).then_some(turns)
}

/// The greatest cost of the rest of a path: to the program's exit, and to the header of each summarized loop.
#[derive(Clone, Default, Debug)]
pub(super) struct Behind {
    pub(super) end: Option<Cost>,
    turns: Vec<(u32, Cost)>,
}

impl Behind {
    /// At the program's exit.
    pub(super) fn end() -> Self {
        Self { end: Some(Cost::default()), turns: Vec::new() }
    }

    /// At the header of a summarized loop.
    pub(super) fn turn(id: u32) -> Self {
        Self { end: None, turns: alloc::vec![(id, Cost::default())] }
    }

    /// Takes the greater cost of each.
    pub(super) fn or(&mut self, other: Self) {
        self.end = match (self.end, other.end) {
            (Some(a), Some(b)) => Some(a.or(b)),
            (a, b) => a.or(b),
        };
        for (id, cost) in other.turns {
            match self.turns.iter_mut().find(|(known, _)| *known == id) {
                Some((_, known)) => *known = known.or(cost),
                None => self.turns.push((id, cost)),
            }
        }
    }

    /// Adds a cost to each.
    pub(super) fn add(&mut self, cost: Cost) {
        let turns = self.turns.iter_mut().map(|(_, behind)| behind);
        turns.chain(&mut self.end).for_each(|behind| *behind = cost.plus(*behind));
    }

    /// Whether no part leads to a loop header, so that it holds for any path.
    pub(super) fn is_to_ends(&self) -> bool {
        self.turns.is_empty()
    }

    /// Removes and returns the cost of an iteration of a loop.
    fn take(&mut self, id: u32) -> Option<Cost> {
        let at = self.turns.iter().position(|(known, _)| *known == id)?;
        Some(self.turns.swap_remove(at).1)
    }

    /// Without a bound.
    pub(super) fn endless() -> Self {
        Self { end: Some(Cost::ENDLESS), turns: Vec::new() }
    }
}
