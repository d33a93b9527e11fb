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
//!   bounded range in one direction, this is a *ranking function* (Floyd: Assigning meanings to programs, 1967): the
//!   trip count is at most the range divided by the smallest step.
//!
//! The cost of the loop is its most expensive iteration times (trip count - 1), plus its most expensive exit
//! ([`Behind`]). If a path returns to the header with another state, a problem cannot be ruled out, or the candidate was
//! no bound, the summarization is abandoned and the path resumes at the header. The next attempt widens the registers
//! that were found to change; after [`TRIES_MAX`] attempts the loop is unrolled.

use alloc::vec::Vec;

use super::bounds::{Bounds, Loop};
use super::induction::{Count, STEP_MAX};
use super::interned::Interned;
use super::scalar::Scalar;
use super::state::{AbstractState, Value};
use super::step::FactsOfAll;
use crate::cost::Cost;
use crate::decode::register_bit;
use crate::isa::{Operand, Register};

/// Greatest nesting of summarized loops.
const NESTED_MAX: usize = 3;
/// Smallest trip count to summarize: unrolling fewer iterations is as fast.
const TURNS_MIN: u64 = 3;
/// Greatest trip count to summarize, so that sums of costs do not overflow.
const TURNS_MAX: u64 = 1 << 40;
/// Greatest absolute value of a counter, so that no arithmetic here overflows.
const FAR: i64 = 1 << 61;
/// Failed attempts at summarization per loop header.
const TRIES_MAX: u8 = 6;

/// Whether no number of a set is too far from zero to count.
fn is_near(set: &Scalar) -> bool {
    set.signed_least >= -FAR && set.signed_most <= FAR
}

/// A register that counts.
#[derive(Clone, Copy, Debug)]
struct Counter {
    register: Register,
    /// Its value in the first iteration; of a range, the end that lags most.
    first: i64,
    /// The width of its range there.
    width: u64,
    /// Its step per iteration; never zero.
    by: i64,
}

impl Counter {
    /// A register that has moved from one range to another one of the same width.
    fn moved(register: Register, before: &Scalar, now: &Scalar) -> Option<Self> {
        if !is_near(before) || !is_near(now) {
            return None;
        }
        let (least, most) = (now.signed_least, now.signed_most);
        let by = least - before.signed_least;
        let counts = by == most - before.signed_most && by != 0;
        let first = if by > 0 { least } else { most };
        let counter = Self { register, first, width: least.abs_diff(most), by };
        (counts && by.unsigned_abs() <= u64::from(STEP_MAX)).then_some(counter)
    }

    /// The end of a set that it moves toward.
    fn end_of(&self, set: &Scalar) -> i64 {
        if self.by > 0 { set.signed_most } else { set.signed_least }
    }

    /// The last iteration, from 0, in which it can be before `end` or there.
    fn last_before(&self, end: i64) -> Option<u64> {
        let way = (i128::from(end) - i128::from(self.first)) * i128::from(self.by.signum());
        u64::try_from(way).ok().map(|way| way / self.by.unsigned_abs())
    }

    /// The farthest that it gets in `turns` iterations.
    fn farthest(&self, turns: u64) -> Option<i64> {
        let ahead = i128::from(self.width) * i128::from(self.by.signum());
        let way = i128::from(self.by) * i128::from(turns - 1) + ahead;
        i64::try_from(i128::from(self.first) + way).ok().filter(|last| (-FAR..=FAR).contains(last))
    }

    /// Its set of values over `turns` iterations.
    fn over(&self, turns: u64) -> Option<Scalar> {
        let last = self.farthest(turns)?;
        if self.width == 0 {
            return Scalar::steps(self.first, last, self.by);
        }
        Some(Scalar::signed_range(self.first.min(last), self.first.max(last)))
    }
}

/// A register of bounded range that every iteration moves in the same direction.
#[derive(Clone, Copy, Debug)]
struct Ranged {
    register: Register,
    /// From its least number to its greatest.
    span: u64,
    /// The smallest step of an iteration, with the sign of all steps; 0 before the first one.
    by: i32,
}

impl Ranged {
    /// Records a step of `added`. Returns whether it has the direction of the others.
    fn moves(&mut self, added: i32) -> bool {
        let same = added != 0 && self.by.signum() * added.signum() >= 0;
        if self.by == 0 || added.unsigned_abs() < self.by.unsigned_abs() {
            self.by = added;
        }
        same
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
    },
    Ranges(Vec<Ranged>),
}

/// How far the exploration was when a summarization began.
pub(super) struct Mark {
    /// A number that increases with each summarization.
    pub(super) id: u32,
    /// The stretch of the path that starts at the header.
    pub(super) stretch: usize,
    /// The number of the first visited state recorded since.
    pub(super) memory: u32,
    /// Instructions explored and instructions discarded, and the facts.
    pub(super) walked: u64,
    pub(super) wasted: u64,
    pub(super) facts: FactsOfAll,
}

/// A loop summarization in progress.
pub(super) struct Counted {
    /// The loop header.
    pub(super) at: usize,
    pub(super) mark: Mark,
    /// The visited state that is explored, for ranges.
    pub(super) of: Option<u32>,
    /// The state at the header when it began, to which the path returns if it is abandoned.
    pub(super) before: AbstractState,
    /// The state that holds at the header in every iteration, but for registers that count by constants.
    pub(super) general: AbstractState,
    counters: LoopCounters,
    /// The registers that differed in a path that returned to the header, as bits, if nothing else did.
    changed: u16,
}

/// How a path that reaches the header of a summarized loop relates to the loop.
pub(super) enum Turn {
    /// It does not: another frame.
    Other,
    /// The next iteration, and the induction step holds.
    Same,
    /// The induction step fails; what to assume of the trip count in another attempt.
    Fails(Option<u64>),
}

/// Failed attempts at summarizing the loop at a header, and what the next one should assume.
#[derive(Clone, Copy, Default)]
pub(super) struct Tries {
    failures: u8,
    /// The smallest trip count that can succeed.
    least: u64,
    /// Registers that changed in later iterations than the first ones, as bits.
    changing: u16,
    /// Whether an attempt by ranges failed.
    ranges: bool,
}

impl Tries {
    /// Records a failed attempt, of which another trip count may succeed.
    pub(super) fn add(&mut self, counted: &Counted, turns: Option<u64>) {
        if counted.of.is_some() {
            self.ranges = true;
            return;
        }
        self.failures += 1;
        match turns {
            Some(turns) => self.least = turns,
            None if counted.changed & !self.changing != 0 => self.changing |= counted.changed,
            None => self.failures = TRIES_MAX,
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
    /// Begins a summarization by constants at a header reached with `earlier` and then with `state`. Returns the state
    /// to continue with.
    pub(super) fn of_constants(
        (loops, mark): (Loop, Mark),
        (earlier, state): (&AbstractState, &AbstractState),
        (tries, bounds): (Tries, &Bounds),
        known: &mut Interned,
    ) -> Option<(Self, AbstractState)> {
        if !may_nest(earlier, state) {
            return None;
        }
        let (counters, mut changing) =
            constants(earlier, state, bounds.adds & !tries.changing, known);
        let registers = bits(counters.iter().map(|counter| counter.register));
        if registers == 0 || !earlier.contains_but(registers | changing, state, known) {
            return None;
        }
        changing |= tries.changing & !registers & state.numbers();
        let tried = turns(&counters, loops, state, (bounds, tries.least), known)?;
        let mut general = state.clone();
        for register in Register::all().filter(|register| changing & register_bit(*register) != 0) {
            general.set(register, Value::UNKNOWN);
        }
        for counter in &counters {
            let id = known.intern(&counter.over(tried)?);
            general.set(counter.register, state.value(counter.register).with_set(id));
        }
        let counters = LoopCounters::Constants { counters, tried, last: 0 };
        Some(Self::begun((loops.head, mark, None), state, (general, registers), counters))
    }

    /// Begins a summarization by ranges at a header reached with `state`, which is contained in the visited state
    /// `earlier`.
    pub(super) fn of_ranges(
        (at, mark): (usize, Mark),
        ((number, earlier), state): ((u32, &AbstractState), &AbstractState),
        bounds: &Bounds,
        known: &Interned,
    ) -> Option<(Self, AbstractState)> {
        if !may_nest(earlier, state) {
            return None;
        }
        let ranged = |register: Register| {
            let range = known.get(earlier.value(register).number()?.id);
            let span = range.signed_most.checked_sub(range.signed_least)?;
            let counts = is_near(range) && bounds.adds & register_bit(register) != 0;
            let span = u64::try_from(span).ok().filter(|span| (1..=TURNS_MAX).contains(span))?;
            counts.then_some(Ranged { register, span, by: 0 })
        };
        let counters: Vec<_> = Register::all().filter_map(ranged).collect();
        let registers = bits(counters.iter().map(|range| range.register));
        let (general, counters) = ((earlier.clone(), registers), LoopCounters::Ranges(counters));
        (registers != 0).then(|| Self::begun((at, mark, Some(number)), state, general, counters))
    }

    /// A summarization of which the path continues with a copy of the general state that counts these registers.
    fn begun(
        (at, mark, of): (usize, Mark, Option<u32>),
        state: &AbstractState,
        (general, registers): (AbstractState, u16),
        counters: LoopCounters,
    ) -> (Self, AbstractState) {
        let mut walked = general.clone();
        let (id, depth, added) = (mark.id, general.depth(), Default::default());
        walked.counts.push(Count { id, depth, counters: registers, added });
        (Self { at, mark, of, before: state.clone(), general, counters, changed: 0 }, walked)
    }

    /// Classifies a path that has reached the header with its count of this loop at index `place`.
    pub(super) fn turn(&mut self, place: usize, state: &AbstractState, known: &Interned) -> Turn {
        let count = &state.counts[place];
        if count.depth != state.depth() {
            return Turn::Other;
        }
        let but = if self.of.is_none() { count.counters } else { 0 };
        let holds = |but| self.general.contains_but(but, state, known);
        if state.counts[..place] != self.before.counts[..] || !holds(but) {
            let changed = self.general.changed(state, known) & !but;
            if holds(but | changed) {
                self.changed |= changed;
            }
            return Turn::Fails(None);
        }
        match &mut self.counters {
            LoopCounters::Constants { counters, tried, last } => {
                let added = |counter: &Counter| i64::from(count.added[counter.register.index()]);
                if counters.iter().any(|counter| added(counter) != counter.by) {
                    return Turn::Fails(None);
                }
                // Each bound limits the iteration that all counters are in.
                let turns = counters.iter().filter_map(|counter| {
                    let set = known.get(state.value(counter.register).number()?.id);
                    counter.last_before(counter.end_of(set))
                });
                match turns.min() {
                    Some(turn) if turn < *tried => {
                        *last = turn.max(*last);
                        Turn::Same
                    }
                    turn => Turn::Fails(turn.filter(|turn| *turn < TURNS_MAX).map(|turn| turn + 1)),
                }
            }
            LoopCounters::Ranges(ranges) => {
                ranges.retain_mut(|range| range.moves(count.added[range.register.index()]));
                if ranges.is_empty() { Turn::Fails(None) } else { Turn::Same }
            }
        }
    }

    /// The greatest possible index of an iteration, from 0.
    fn last(&self) -> u64 {
        match &self.counters {
            LoopCounters::Constants { last, .. } => *last,
            LoopCounters::Ranges(ranges) => {
                let last = |range: &Ranged| range.span.checked_div(range.by.unsigned_abs().into());
                ranges.iter().filter_map(last).min().unwrap_or(0)
            }
        }
    }

    /// The cost of the loop and of what follows it, given the most expensive iteration and the cost after the last one.
    pub(super) fn cost(&self, mut behind: Behind) -> Behind {
        let Some(turn) = behind.take(self.mark.id) else { return behind };
        let all = turn.times(self.last());
        behind.add(all);
        if behind.end.is_none() && behind.turns.is_empty() {
            // The loop has no exit: its cost is that of its iterations.
            behind.end = Some(all.plus(turn));
        }
        behind
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

/// Whether another loop may be summarized within those of the path.
fn may_nest(earlier: &AbstractState, state: &AbstractState) -> bool {
    state.counts.len() < NESTED_MAX && earlier.counts == state.counts
}

/// A set of registers, as bits.
fn bits(registers: impl Iterator<Item = Register>) -> u16 {
    registers.fold(0, |bits, register| bits | register_bit(register))
}

/// The registers of the running frame that moved by a constant step, of those in `adds`; and those that changed
/// otherwise and may be widened, as bits.
fn constants(
    earlier: &AbstractState,
    state: &AbstractState,
    adds: u16,
    known: &Interned,
) -> (Vec<Counter>, u16) {
    let (mut counters, mut changing) = (Vec::new(), 0);
    for register in Register::all() {
        let now = state.value(register);
        let (Some(a), Some(b)) = (earlier.value(register).number(), now.number()) else { continue };
        let (a, b) = (known.get(a.id), known.get(b.id));
        if a.contains(b) {
            continue;
        }
        let counter = Counter::moved(register, a, b);
        match counter.filter(|_| adds & register_bit(register) != 0) {
            Some(counter) => counters.push(counter),
            None if matches!(now, Value::Number(_)) => changing |= register_bit(register),
            None => {}
        }
    }
    (counters, changing)
}

/// The trip count, at least `least`, after which a counter reaches a threshold of the loop, or a neighbour of one.
/// `None` if it is less than [`TURNS_MIN`].
fn turns(
    counters: &[Counter],
    loops: Loop,
    state: &AbstractState,
    (bounds, least): (&Bounds, u64),
    known: &Interned,
) -> Option<u64> {
    let possible = least.max(2)..=TURNS_MAX.min(bounds.turns_max);
    let candidates = counters.iter().flat_map(|counter| {
        let threshold = |with: Operand| match with {
            Operand::Immediate(number) => Some(i64::from(number)),
            Operand::Register(register) => {
                let set = known.get(state.value(register).number()?.id);
                Some(counter.end_of(set)).filter(|end| (-FAR..=FAR).contains(end))
            }
        };
        let thresholds = bounds.within(counter.register, loops).filter_map(threshold);
        let beside = thresholds.flat_map(|number| [number - 1, number, number + 1]);
        beside.filter_map(|number| Some(counter.last_before(number)? + 1))
    });
    let turns = candidates.filter(|turns| possible.contains(turns)).min()?;
    // No counter may leave the range in the iteration after the last one.
    let near = counters.iter().all(|counter| counter.farthest(turns + 1).is_some());
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

    /// Without a bound.
    pub(super) fn endless() -> Self {
        Self { end: Some(Cost::ENDLESS), turns: Vec::new() }
    }

    /// Takes the greater cost of each.
    pub(super) fn or(&mut self, other: Self) {
        self.end = self.end.map(|end| end.or(other.end.unwrap_or_default())).or(other.end);
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
}
