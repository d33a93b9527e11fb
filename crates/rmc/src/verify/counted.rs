//! Loops of which all further turns are walked as one.
//!
//! What a path adds to some registers since it passed the head of a loop, its *counters*, is kept with its state, and
//! lost with anything else that is done to them ([`Count`]). There are two kinds of such loops:
//!
//! - *Constants.* A path that comes back to the head may have moved some registers, from one constant to another or
//!   from a range to the next, and changed nothing else but numbers, which then may be anything. It goes on with what
//!   counters can be in so many turns, instead of with what they are: between where they stand and where they stand
//!   when the loop ends, if a number that the program names tells when that is. Where the path comes to the head again,
//!   each counter must have moved by as much as it did before, and all else must be as it was. Then, by induction over
//!   the turns, counters are `first + turn * by`, and as soon as the head knows a bound of one of them, it knows how
//!   many turns there are at most.
//! - *Ranges.* A path that comes back with no more than what was known at the head before goes on with that. Where it
//!   comes there again with no more, and has moved a register of which the range is known, always in the same direction,
//!   there are at most as many turns as steps of it have room in the range.
//!
//! The cost of such a loop is that of its dearest turn for all turns but the last, and that of the dearest way out
//! ([`Behind`]). A path that comes to the head with other numbers is first taken for the last turn. Where this does not
//! succeed, because it was not, or a problem cannot be ruled out or a bound was none, the path goes back to where it
//! was. What was found to change may then be any number there in the next try; after some, it is walked turn by turn.

use alloc::vec::Vec;

use super::bounds::{Bounds, Loop, With};
use super::interned::Interned;
use super::scalar::Scalar;
use super::state::{Number, State, Value};
use super::step::{Cost, FactsOfAll};
use super::structure::written;
use crate::isa::{AluOp, Instruction, Operand, Register, Width};

/// Most counters of a loop.
const COUNTERS_MAX: usize = 4;
/// Most loops within each other that are walked so.
const NESTED_MAX: usize = 3;
/// Fewer turns are walked as fast.
const TURNS_MIN: u64 = 3;
/// Most turns: far from what a sum of them could not hold.
const TURNS_MAX: u64 = 1 << 40;
/// What a turn adds to a counter at most.
const STEP_MAX: u64 = 1 << 20;
/// Counters are no farther from zero, so that nothing here overflows.
const FAR: i64 = 1 << 61;
/// Turns of a loop that end with something else at its head.
const OTHERS_MAX: u8 = 2;
/// How often a head is tried in vain.
const TRIES_MAX: u8 = 6;

/// How far a path has come since the head of a loop: what was added to each counter. While it is there, nothing else
/// was done to any of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Count {
    /// Which loop, and which time.
    id: u32,
    /// Which frame the counters belong to.
    depth: u8,
    /// Registers, each with what was added; the rest is the same throughout.
    added: [(u8, i64); COUNTERS_MAX],
    counters: u8,
}

impl Count {
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    fn added(&self) -> &[(u8, i64)] {
        &self.added[..usize::from(self.counters)]
    }

    /// Whether it is still true behind an instruction of the frame that has its counters.
    fn follow(&mut self, instruction: Instruction) -> bool {
        let sum = match instruction {
            Instruction::Alu {
                width: Width::Double,
                op: op @ (AluOp::Add | AluOp::Sub),
                dst,
                src: Operand::Immediate(by),
            } => {
                let by = i64::from(by);
                Some((dst.number(), if op == AluOp::Add { by } else { -by }))
            }
            _ => None,
        };
        let lost = lost(instruction);
        self.added[..usize::from(self.counters)].iter_mut().all(|(register, added)| match sum {
            Some((to, by)) if to == *register => {
                *added = added.saturating_add(by);
                added.unsigned_abs() <= STEP_MAX
            }
            Some(_) => true,
            None => lost >> *register & 1 == 0,
        })
    }
}

/// Bits of the registers that an instruction changes in the frame that runs it.
fn lost(instruction: Instruction) -> u16 {
    const CALL: u16 = 0b11_1111;
    let calls =
        matches!(instruction, Instruction::CallHelper { .. } | Instruction::CallFunction { .. });
    let bit = |register: Register| 1 << register.number();
    let [register] = written(instruction);
    if calls { CALL } else { register.map_or(0, bit) }
}

impl State {
    /// Notes what the instruction that comes next does to counters.
    #[inline]
    pub(super) fn count(&mut self, instruction: Instruction) {
        if !self.counts.is_empty() {
            self.count_it(instruction);
        }
    }

    /// Forgets loops that count by registers of which nobody reads any more what is in them now, as their bits here say.
    pub(super) fn forget_counts(&mut self, dead: u16) {
        if !self.counts.is_empty() {
            let depth = self.depth();
            let dies = |(register, _): &(u8, i64)| dead >> register & 1 == 1;
            self.counts.retain(|count| count.depth != depth || !count.added().iter().any(dies));
        }
    }

    fn count_it(&mut self, instruction: Instruction) {
        let depth = self.depth();
        let leaves = instruction == Instruction::Exit;
        self.counts
            .retain_mut(|count| count.depth != depth || !leaves && count.follow(instruction));
    }
}

/// A register that counts.
#[derive(Clone, Copy, Debug)]
struct Counter {
    register: u8,
    /// What it has at the first of the turns, or where it is farthest behind there.
    first: i64,
    /// How much farther it may be there.
    width: u64,
    /// What each turn adds; never zero.
    by: i64,
}

impl Counter {
    /// At which turn it may have come so far at most, as numbers of its range tell; the first one is 0.
    fn turn(&self, scalar: &Scalar) -> Option<u64> {
        let far = if self.by > 0 { scalar.signed_most } else { scalar.signed_least };
        let way = i128::from(far) - i128::from(self.first);
        u64::try_from(way / i128::from(self.by))
            .ok()
            .filter(|_| (way < 0) == (self.by < 0) || way == 0)
    }

    /// What it has in any of so many turns.
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

/// A register of which the range is known, and that moves through it.
#[derive(Clone, Copy, Debug)]
struct Ranged {
    register: u8,
    /// From its least number to its greatest.
    span: u64,
    /// What a turn adds at least, in the direction in which all do.
    by: Option<i64>,
}

impl Ranged {
    /// A turn has added so much; whether that is in the direction of the others.
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

/// What moves in a loop.
enum Counters {
    Constants {
        counters: Vec<Counter>,
        /// Turns that it was tried with.
        tried: u64,
        /// The last turn that a path has come to.
        last: u64,
        /// Whether what changes otherwise is not tried to be any number.
        keeps: bool,
    },
    Ranges(Vec<Ranged>),
}

/// A loop of which all turns are being walked as one.
pub(super) struct Counted {
    id: u32,
    /// Its head.
    pub(super) at: usize,
    /// The stretch of the path that begins there.
    pub(super) stretch: usize,
    /// The first memory that was made since.
    pub(super) memory: u32,
    /// What was known at its head before, where that is what is walked.
    pub(super) of: Option<u32>,
    /// How many instructions were walked before, how many of them in vain, and what was noticed.
    pub(super) walked: u64,
    pub(super) wasted: u64,
    pub(super) facts: FactsOfAll,
    /// What was known when it was tried.
    pub(super) before: State,
    /// What is known in any of the turns.
    pub(super) general: State,
    counters: Counters,
    /// Paths that came to the head with something else, and bits of the registers that had other numbers then, where
    /// that was all.
    others: u8,
    changed: u16,
}

/// What a path is that has come to the head of such a loop.
pub(super) enum Turn {
    /// Something else.
    Other,
    /// One more of the turns, and all is as it was.
    Same,
    /// None of the turns, though it counts as they do.
    Leaves,
    /// One more of the turns, but not as was thought.
    Another(Again),
}

/// How turns that were taken as one in vain might be taken so.
#[derive(Clone, Copy, Debug)]
pub(super) enum Again {
    /// If they are so many.
    Turns(u64),
    /// If registers with these bits may have any number in them.
    Changing(u16),
    Never,
}

impl Again {
    /// Registers with these bits change in another way than was thought, which those may that have numbers.
    fn with(registers: u16, keeps: bool, state: &State) -> Self {
        let are_numbers = registers & !state.numbers() == 0;
        if are_numbers && !keeps { Self::Changing(registers) } else { Self::Never }
    }
}

/// How often a head was tried in vain, and how it should be next.
#[derive(Clone, Copy, Default)]
pub(super) struct Tries {
    in_vain: u8,
    /// With less turns it would be in vain again.
    least: u64,
    /// Bits of registers that were found to change in later turns than the first ones.
    changing: u16,
    /// Whether it was in vain with these too, so that what changes is taken for the last turn.
    keeps: bool,
    /// Whether ranges were tried in vain.
    ranges: bool,
}

impl Tries {
    /// It was in vain again.
    pub(super) fn add(&mut self, counted: &Counted, again: Again) {
        if counted.of.is_some() {
            self.ranges = true;
            return;
        }
        self.in_vain += 1;
        match again {
            Again::Turns(turns) => self.least = turns,
            Again::Changing(registers) => self.changing |= registers,
            Again::Never if self.keeps => self.in_vain = TRIES_MAX,
            Again::Never if counted.changed & !self.changing != 0 => {
                self.changing |= counted.changed;
            }
            Again::Never if self.changing != 0 => {
                (self.changing, self.keeps, self.least) = (0, true, 0);
            }
            Again::Never => self.in_vain = TRIES_MAX,
        }
    }

    pub(super) const fn of_constants_are_over(&self) -> bool {
        self.in_vain >= TRIES_MAX
    }

    pub(super) const fn of_ranges_are_over(&self) -> bool {
        self.ranges
    }
}

impl Counted {
    /// Of which nothing has been walked yet; where and when that is, is to be filled in.
    fn begun(
        (at, id): (usize, u32),
        of: Option<u32>,
        (before, general): (State, State),
        counters: Counters,
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

    /// A loop to whose head a path has come with `state`, and before with `earlier`; what is known in its turns.
    pub(super) fn of_constants(
        (loops, id): (Loop, u32),
        (earlier, state): (&State, &State),
        (tries, bounds): (Tries, &Bounds),
        known: &mut Interned,
    ) -> Option<(Self, State)> {
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
        let counters = Counters::Constants { counters, tried, last: 0, keeps: tries.keeps };
        let before = state.clone();
        Some((Self::begun((loops.head, id), None, (before, general), counters), walked))
    }

    /// A loop to whose head a path has come with `state`, which is no more than what was known before, in the memory
    /// `earlier`.
    pub(super) fn of_ranges(
        (at, id): (usize, u32),
        ((number, earlier), state): ((u32, &State), &State),
        bounds: &Bounds,
        known: &Interned,
    ) -> Option<(Self, State)> {
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
        let (counters, before) = (Counters::Ranges(counters), state.clone());
        let of = Some(number);
        Some((Self::begun((at, id), of, (before, general), counters), walked))
    }

    /// What a path is that has come to the head with its count of this loop at this place.
    pub(super) fn turn(&mut self, place: usize, state: &State, known: &Interned) -> Turn {
        let count = &state.counts[place];
        if count.depth != state.depth() {
            return Turn::Other;
        }
        let but = match &self.counters {
            Counters::Constants { counters, .. } => mask(counters),
            Counters::Ranges(_) => 0,
        };
        let same = state.counts[..place] == self.before.counts[..]
            && self.general.contains_but(but, state, known);
        if !same {
            return self.other(state, known);
        }
        match &mut self.counters {
            Counters::Constants { counters, tried, last, keeps } => {
                let moved = count.added().iter().zip(&*counters);
                let others = moved.filter(|((_, added), counter)| *added != counter.by);
                let others = others.fold(0, |bits, ((register, _), _)| bits | 1 << register);
                if others != 0 {
                    return Turn::Another(Again::with(others, *keeps, state));
                }
                // Each of them says at most how far all have come.
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
            Counters::Ranges(ranges) => {
                ranges.retain_mut(|range| {
                    let added = count.added().iter().find(|(at, _)| *at == range.register);
                    added.is_some_and(|(_, added)| range.moves(*added))
                });
                if ranges.is_empty() { Turn::Another(Again::Never) } else { Turn::Same }
            }
        }
    }

    /// What a path is that has come to the head with something else.
    fn other(&mut self, state: &State, known: &Interned) -> Turn {
        if let Counters::Constants { counters, .. } = &self.counters {
            let but = mask(counters);
            let changed = self.general.changed(state, known) & !but;
            if self.general.contains_but(but | changed, state, known) {
                self.changed |= changed;
            }
        }
        // The last turn is often another one.
        self.others += 1;
        if self.others > OTHERS_MAX { Turn::Another(Again::Never) } else { Turn::Leaves }
    }

    /// Whether a path that left it is what has come to its head again, where `other` begins: by the same counter, which
    /// stands elsewhere.
    pub(super) fn goes_on_as(&self, other: &Self) -> bool {
        let (
            Counters::Constants { counters, keeps: false, .. },
            Counters::Constants { counters: others, .. },
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

    /// The last turn there may be; the first one is 0.
    fn last(&self) -> u64 {
        match &self.counters {
            Counters::Constants { last, .. } => *last,
            Counters::Ranges(ranges) => {
                let last = |range: &Ranged| Some(range.span / range.by?.unsigned_abs());
                ranges.iter().filter_map(last).min().unwrap_or(0)
            }
        }
    }

    /// What the loop costs, and what is behind it, where the dearest turn and what is behind the last one cost so much.
    pub(super) fn cost(&self, mut behind: Behind) -> Behind {
        let Some(turn) = behind.take(self.id) else { return behind };
        let all = turn.times(self.last());
        match &mut behind.end {
            Some(end) => *end = end.plus(all),
            // No way out but to turn: it never comes to more.
            None if behind.turns.is_empty() => behind.end = Some(all.plus(turn)),
            None => {}
        }
        behind.turns.iter_mut().for_each(|(_, cost)| *cost = cost.plus(all));
        behind
    }

    /// Rises with each of them.
    pub(super) fn id(&self) -> u32 {
        self.id
    }

    /// The states that it keeps.
    pub(super) fn states(&mut self) -> [&mut State; 2] {
        [&mut self.before, &mut self.general]
    }

    /// Values that it keeps.
    pub(super) fn cells(&self) -> usize {
        self.before.cells() + self.general.cells()
    }
}

/// The same, where a path counts those registers from here on.
fn counting(general: &State, id: u32, registers: impl Iterator<Item = u8>) -> State {
    let mut walked = general.clone();
    let (mut added, mut counters) = ([(0, 0); COUNTERS_MAX], 0);
    for (added, register) in added.iter_mut().zip(registers) {
        added.0 = register;
        counters += 1;
    }
    walked.counts.push(Count { id, depth: general.depth(), added, counters });
    walked
}

/// Bits of the registers that count.
fn mask(counters: &[Counter]) -> u16 {
    counters.iter().fold(0, |mask, counter| mask | 1 << counter.register)
}

/// A number, or how far an address is behind the start of its place.
fn offset(value: Value) -> Option<super::interned::Id> {
    match value {
        Value::Number(number) | Value::Address(_, number) => Some(number.id),
        Value::Nothing | Value::Handle(_) => None,
    }
}

/// Registers of the running frame that are other constants than before, or of which the range has moved, if these are
/// some and not too many; and bits of those that have changed otherwise, which may become any number.
fn constants(
    earlier: &State,
    state: &State,
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

/// How many turns there are, and at least so many, before a counter comes to one of the numbers that the program
/// compares it with, or beside it; if it is enough of them.
fn turns(
    counters: &[Counter],
    loops: Loop,
    state: &State,
    (bounds, least): (&Bounds, u64),
    known: &Interned,
) -> Option<u64> {
    // What only a copy is compared with bounds the counter too, but the way out is then mostly taken before the last
    // iteration's cost: walked one by one, such a loop has the exact worst case.
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
    // None of them may come too far in the turn behind the last one.
    let near = counters.iter().all(|counter| counter.last(turns + 1).is_some());
    (near && turns >= TURNS_MIN).then_some(turns)
}

/// What follows on a path costs at most: to its end, or to the head of a loop that is walked as one turn.
#[derive(Clone, Default, Debug)]
pub(super) struct Behind {
    pub(super) end: Option<Cost>,
    turns: Vec<(u32, Cost)>,
}

impl Behind {
    /// An end.
    pub(super) fn end() -> Self {
        Self { end: Some(Cost::default()), turns: Vec::new() }
    }

    /// One more turn.
    pub(super) fn turn(id: u32) -> Self {
        Self { end: None, turns: alloc::vec![(id, Cost::default())] }
    }

    /// Whatever costs more of either.
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

    /// So much more, whatever follows.
    pub(super) fn add(&mut self, cost: Cost) {
        let turns = self.turns.iter_mut().map(|(_, behind)| behind);
        turns.chain(&mut self.end).for_each(|behind| *behind = cost.plus(*behind));
    }

    /// Whether it is what all ends cost, whatever path comes.
    pub(super) fn is_to_ends(&self) -> bool {
        self.turns.is_empty()
    }

    /// What the turns of a loop cost, if there is one.
    fn take(&mut self, id: u32) -> Option<Cost> {
        let at = self.turns.iter().position(|(known, _)| *known == id)?;
        Some(self.turns.swap_remove(at).1)
    }

    /// No end that anybody knows of.
    pub(super) fn endless() -> Self {
        Self { end: Some(Cost::ENDLESS), turns: Vec::new() }
    }
}
