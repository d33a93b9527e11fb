//! Path-sensitive abstract interpretation: every path to its end, depth first, with pruning.
//!
//! Abstract states that paths passed a slot with are kept as *visited states*. A path that comes with a state that is
//! contained in one of them is pruned, and costs what the path of the visited state did: its concrete states were explored
//! there. This is what Linux's verifier does (`is_state_visited`, `states_equal`). Where the visited state's path has not
//! ended, the path has gone round a loop without progress: there is no bound, and the program is metered.
//!
//! Invariants: a visited state is exactly what was explored, so that nothing is made less precise when it is kept; states
//! found in a loop summarization that is given up are dropped with it, in the table of older ones too.
//!
//! Counted loops are summarized where that can be proven (`counted.rs`), else walked one iteration at a time. In a loop
//! whose counters depend on data, numbers that cannot decide a verdict are forgotten (`live.rs`), and the pairs of the
//! others are polynomially many: the most recent visited states of a slot are compared one by one, older ones are found by
//! their hash.
//!
//! The walk can pause before every instruction and after every stretch of a path.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::bounds::{Bounds, Loop};
use super::counted::{Again, Behind, Count, Counted, Tries, Turn};
use super::problem::Problem;
use super::state::{CELLS_MAX, Spot, State};
use super::step::{Cost, Next, Stepper};
use crate::isa::Instruction;

/// Visited states of one slot that are compared with every path that comes there. Others are found by their hash, where a
/// path comes with the same numbers.
const REMEMBERED: usize = 24;
/// Values in visited states and on other ways beyond which a state is forgotten instead of kept by its hash.
const KEPT_CELLS_MAX: usize = CELLS_MAX / 2;

/// Meeting points that are passed between memories, where no loop starts.
const FORGETFUL: u32 = 4;

/// Times that a path comes to a meeting point that are worth a memory: others may come too.
const AGAIN: core::ops::RangeInclusive<u8> = 2..=3;

/// Instructions that may be walked in vain, for each of the program, before turns of loops are walked one by one.
const WASTED_MAX: u64 = 16;

/// How much more than what was walked may be walked for a program that has no end that could be proven.
const ENDLESS_SHARE: u64 = 4;

/// How an exploration ended, if no path is wrong.
pub(super) enum Explored {
    /// All paths end, at most so far away, or go on for ever where nothing is wrong.
    Closed(Cost),
    /// There are too many.
    TooMuch,
}

/// What was known when a path passed, and how far its end was.
struct Memory {
    state: State,
    /// `None` while the path has not ended.
    cost: Option<Behind>,
    /// When the path has ended, in paths.
    ended: u32,
    /// How many there were before.
    number: u32,
    /// The stretch that remembers it.
    stretch: usize,
}

impl Memory {
    /// The path that it is of has ended.
    fn end(&mut self, stretch: usize, behind: &Behind, ended: &mut u32) {
        if self.stretch == stretch && self.cost.is_none() {
            self.cost = Some(behind.clone());
            self.ended = *ended;
            *ended += 1;
        }
    }

    /// Its cost, if it holds for a path that comes with this state too. A path that may come to the head of a counted
    /// loop costs what another one did only where that might come there with the same.
    fn cost_of(&self, state: &State) -> Option<&Behind> {
        let counts_so = state.counts.starts_with(&self.state.counts);
        self.cost.as_ref().filter(|cost| counts_so || cost.is_to_ends())
    }
}

/// What is known of a path from others.
enum Recalled {
    Nothing,
    /// What it costs.
    Cost(Behind),
    /// That it is no more than what is known in this memory of the slot, whose paths have not ended.
    Open(usize),
}

/// What a try to take turns as one comes to.
enum Counting {
    /// The path goes on with what is known of each of them.
    Begun,
    /// It is not the first one, and the path goes back to where another one was begun.
    Before(Walk),
}

/// A piece of a path, from one meeting point or branch to the next.
struct Stretch {
    /// What it costs itself.
    own: Cost,
    /// The greatest cost of what followed so far.
    behind: Behind,
    /// Where else it goes on, and with what.
    other: Option<(usize, State)>,
    /// The slot where it is remembered, and the hash by which it is since others have taken its place there.
    remembered: Option<usize>,
    older: Option<u32>,
}

pub(super) struct Explorer {
    pub(super) stepper: Box<Stepper>,
    /// Slots that some jump goes back to.
    heads: Vec<bool>,
    /// How often a path came to a slot and went on there, if not often.
    visits: Vec<u8>,
    memories: Vec<Vec<Memory>>,
    /// Older visited states, by slot and hash: loops whose counters depend on data come to a place with hundreds of pairs
    /// of numbers, and with each of them again and again.
    older: BTreeMap<(u32, u32), Memory>,
    /// Slots of all memories that there were, but of those that were given up, in order.
    remembered: Vec<u32>,
    /// Where two states of a place differed the last time: mostly in what a loop counts by.
    differing: Vec<Spot>,
    path: Vec<Stretch>,
    /// Loops on the path of which all turns are walked as one.
    counted: Vec<Counted>,
    /// How many there were.
    counted_ever: u32,
    has_counted: bool,
    /// For each slot, whether it is of use to try.
    tries: Vec<Tries>,
    /// For each head of a loop, the last slot that jumps back to it.
    ends: Vec<u32>,
    /// Instructions that were walked in vain.
    wasted: u64,
    bounds: Bounds,
    /// Where it stands between two of its steps.
    walk: Walk,
    walked: u64,
    /// No more of them are walked: fewer once some path is known to have no end that could be proven, since a
    /// fixpoint may say the same sooner.
    walked_max: u64,
    /// How many were walked when the present step is over; stretches that end count as instructions.
    pause: u64,
    /// Paths that have ended.
    ended: u32,
    /// Values in memories and on other ways.
    cells: usize,
}

/// Where the walk stands.
enum Walk {
    Going(Going),
    /// The present stretch ended, with what follows costing so much.
    Ended(Behind),
    /// There is too much to walk.
    TooMuch,
}

/// A path that has come to a slot.
struct Going {
    at: usize,
    state: State,
    /// Meeting points since the last memory.
    since: u32,
}

impl Explorer {
    /// At the start of the program.
    pub(super) fn new(mut stepper: Box<Stepper>) -> Self {
        let slots = stepper.program.code.len();
        let state = State::new(stepper.limits.context_bytes_max, &mut stepper.known);
        let mut explorer = Self {
            heads: super::structure::loop_heads(&stepper.program),
            visits: alloc::vec![0; slots],
            memories: (0..slots).map(|_| Vec::new()).collect(),
            older: BTreeMap::new(),
            remembered: Vec::new(),
            walked_max: u64::from(stepper.limits.walked_max),
            differing: alloc::vec![Spot::default(); slots],
            path: Vec::with_capacity(64),
            counted: Vec::new(),
            counted_ever: 0,
            has_counted: false,
            tries: alloc::vec![Tries::default(); slots],
            ends: super::structure::loop_ends(&stepper.program),
            wasted: 0,
            bounds: Bounds::new(&stepper.program, stepper.limits.budget.instructions),
            walk: Walk::Going(Going { at: 0, state, since: 0 }),
            walked: 0,
            pause: 0,
            ended: 0,
            cells: 0,
            stepper,
        };
        explorer.open(None, None);
        explorer
    }

    /// Instructions that were walked.
    pub(super) fn walked(&self) -> u64 {
        self.walked
    }

    /// Whether turns of a loop were walked as one, or tried to, with more than each of them has.
    pub(super) fn has_counted(&self) -> bool {
        self.has_counted
    }

    /// Walks at most so many instructions further, which must be some: how it ended, if it has. A problem
    /// comes with its slot.
    // Not a part of what steps it, where the compiler has no registers left for it.
    #[inline(never)]
    pub(super) fn explore(
        &mut self,
        instructions: u32,
    ) -> Result<Option<Explored>, (usize, Problem)> {
        self.pause = self.walked + u64::from(instructions);
        let mut walk = core::mem::replace(&mut self.walk, Walk::TooMuch);
        while self.walked < self.pause {
            walk = match walk {
                Walk::Going(going) => self.advance(going)?,
                Walk::Ended(behind) => match self.close(behind) {
                    Ok(next) => next,
                    Err(behind) => {
                        let cost = behind.end.unwrap_or_default();
                        return Ok(Some(Explored::Closed(cost)));
                    }
                },
                Walk::TooMuch => return Ok(Some(Explored::TooMuch)),
            };
        }
        self.walk = walk;
        Ok(None)
    }

    /// The present stretch has cost what was stepped since.
    fn settle(&mut self) {
        let cost = core::mem::take(&mut self.stepper.cost);
        if let Some(stretch) = self.path.last_mut() {
            stretch.own = stretch.own.plus(cost);
        }
    }

    fn open(&mut self, other: Option<(usize, State)>, remembered: Option<usize>) {
        self.settle();
        let (own, behind) = (Cost::default(), Behind::default());
        self.path.push(Stretch { own, behind, other, remembered, older: None });
    }

    /// Ends stretches until one has another way to go. The whole cost when there is none.
    fn close(&mut self, mut behind: Behind) -> Result<Walk, Behind> {
        self.settle();
        while self.walked < self.pause {
            let at = self.path.len();
            let Some(stretch) = self.path.last_mut() else {
                return Err(behind);
            };
            stretch.behind.or(behind);
            if let Some((slot, state)) = stretch.other.take() {
                self.cells -= state.cells();
                // The other way is a stretch of its own, so that its cost is apart.
                self.open(None, None);
                return Ok(Walk::Going(Going { at: slot, state, since: 0 }));
            }
            behind = core::mem::take(&mut stretch.behind);
            behind.add(stretch.own);
            let (remembered, older) = (stretch.remembered, stretch.older);
            if let Some(counted) = self.counted.pop_if(|counted| counted.stretch == at - 1) {
                self.cells -= counted.cells();
                behind = counted.cost(behind);
            }
            if let Some(slot) = remembered {
                let older = older.and_then(|hash| self.older.get_mut(&(slot as u32, hash)));
                for memory in self.memories[slot].iter_mut().chain(older) {
                    memory.end(at - 1, &behind, &mut self.ended);
                }
            }
            self.path.pop();
            self.pause -= 1;
        }
        Ok(Walk::Ended(behind))
    }

    fn advance(&mut self, going: Going) -> Result<Walk, (usize, Problem)> {
        let Going { mut at, mut state, mut since } = going;
        while self.walked < self.pause {
            if self.stepper.facts.meetings[at] && !self.is_end(at, &state) {
                if self.stepper.known.is_full() {
                    self.keep(&mut state);
                }
                self.stepper.forget_dead(&mut state, at);
                if let Some(walk) = self.meet(at, &mut state, &mut since) {
                    self.stepper.spare.push(state);
                    return Ok(walk);
                }
            }
            if self.walked - self.wasted >= self.walked_max || self.cells > CELLS_MAX {
                return Ok(Walk::TooMuch);
            }
            self.walked += 1;
            state.count(self.stepper.program.code[at]);
            let next = match self.stepper.step(&mut state, at) {
                Ok(next) => next,
                Err(problem) => return self.fail(at, problem),
            };
            match next {
                Next::Through => at += self.stepper.program.code[at].slots(),
                Next::At(target) => at = target,
                Next::Either(target) => {
                    let Some(mut other) = self.stepper.jumped.take() else {
                        at += 1;
                        continue;
                    };
                    let (mut first, mut second) = (at + 1, target);
                    let ends = self.is_end(target, &other);
                    if ends && self.walked < self.pause {
                        match self.end(target, other) {
                            Ok(()) => at = first,
                            Err(problem) => return self.fail(target, problem),
                        }
                        continue;
                    }
                    // An end comes first, also where it is another step's. Whether a loop counts is known when it comes
                    // back; all else may be in vain.
                    if ends || target <= at && !state.counts.is_empty() {
                        core::mem::swap(&mut first, &mut second);
                        core::mem::swap(&mut state, &mut other);
                    }
                    self.cells += other.cells();
                    if let Some(stretch) = self.path.last_mut() {
                        stretch.other = Some((second, other));
                    }
                    self.open(None, None);
                    at = first;
                }
                Next::End => {
                    self.stepper.spare.push(state);
                    return Ok(Walk::Ended(Behind::end()));
                }
            }
        }
        Ok(Walk::Going(Going { at, state, since }))
    }

    /// Whether a path ends at a slot: there is nothing to compare with others.
    fn is_end(&self, at: usize, state: &State) -> bool {
        self.stepper.program.code[at] == Instruction::Exit && state.frames.len() == 1
    }

    /// A way of the present stretch ends there at once; what comes next is another one.
    fn end(&mut self, at: usize, mut state: State) -> Result<(), Problem> {
        self.settle();
        self.walked += 1;
        self.stepper.step(&mut state, at)?;
        self.stepper.spare.push(state);
        let mut behind = Behind::end();
        behind.add(core::mem::take(&mut self.stepper.cost));
        if let Some(stretch) = self.path.last_mut() {
            stretch.behind.or(behind);
        }
        self.open(None, None);
        Ok(())
    }

    /// What is wrong at a slot may be so because turns are taken as one, of those that were tried last.
    fn fail(&mut self, at: usize, problem: Problem) -> Result<Walk, (usize, Problem)> {
        let innermost = self.counted.len().checked_sub(1);
        let back = innermost.and_then(|place| self.give_up(place, Again::Never));
        back.ok_or((at, problem))
    }

    /// A path has come to a meeting point: how it goes on, unless it is by what comes next. There have been so many
    /// of them since the last one that was remembered.
    fn meet(&mut self, at: usize, state: &mut State, since: &mut u32) -> Option<Walk> {
        let mut leaves = false;
        for count in (0..state.counts.len()).rev() {
            let Some(place) = self.place_of(&state.counts[count]) else { continue };
            if self.counted[place].at != at {
                continue;
            }
            match self.counted[place].turn(count, state, &self.stepper.known) {
                Turn::Other => {}
                Turn::Leaves => {
                    state.counts.remove(count);
                    leaves = true;
                }
                Turn::Same => {
                    let id = self.counted[place].id();
                    return Some(Walk::Ended(Behind::turn(id)));
                }
                Turn::Another(again) => return self.give_up(place, again),
            }
        }
        match self.recall(at, state) {
            Recalled::Nothing => {}
            Recalled::Cost(cost) => return Some(Walk::Ended(cost)),
            Recalled::Open(memory) => {
                if self.heads[at] && self.count_ranges(at, memory, state) {
                    *since = 0;
                    return None;
                }
                let hidden = self.hides(at, self.memories[at][memory].number, state);
                let back = hidden.and_then(|place| self.give_up(place, Again::Never));
                return Some(back.unwrap_or_else(|| self.endless()));
            }
        }
        // Every memory costs a copy: loops need theirs, others where paths came to again, or now and then.
        *since += 1;
        self.visits[at] = self.visits[at].saturating_add(1);
        let may_count = self.heads[at] && !leaves;
        match may_count.then(|| self.count_constants(at, state)).flatten() {
            Some(Counting::Begun) => *since = 0,
            Some(Counting::Before(walk)) => return Some(walk),
            None if self.heads[at] || *since >= FORGETFUL || AGAIN.contains(&self.visits[at]) => {
                self.remember(at, state);
                *since = 0;
            }
            None => {}
        }
        None
    }

    /// The loop that a count is of.
    fn place_of(&self, count: &Count) -> Option<usize> {
        self.counted.binary_search_by_key(&count.id(), Counted::id).ok()
    }

    /// A loop whose turns are walked as one and that may hide the end of a path that comes back with no more than is in
    /// this memory of a slot: since the path may be in it, or in one around it, or was when that was remembered.
    fn hides(&self, at: usize, memory: u32, state: &State) -> Option<usize> {
        let counts = state.counts.last().and_then(|count| self.place_of(count));
        let within = || {
            let since = self.counted.iter().rposition(|counted| {
                let loop_of = |head: usize| head..=self.ends[head] as usize;
                let program = &self.stepper.program;
                let nested = loop_of(counted.at).contains(&at)
                    || loop_of(at).contains(&counted.at)
                    || program.function_at(at) != program.function_at(counted.at);
                counted.memory <= memory && nested
            });
            since.filter(|place| self.counted[*place].of.is_none())
        };
        counts.or_else(within)
    }

    /// A path comes back to where it was with nothing new, so that nothing is wrong there that is not wrong elsewhere,
    /// and maybe for ever.
    fn endless(&mut self) -> Walk {
        if self.stepper.is_patient {
            return Walk::Ended(Behind::endless());
        }
        self.stepper.was_cut = true;
        let slots = self.stepper.program.code.len() as u64;
        let walked = self.walked - self.wasted;
        let more = walked + ENDLESS_SHARE * (walked + slots);
        self.walked_max = self.walked_max.min(more);
        Walk::Ended(Behind::endless())
    }

    /// Tries all further turns of a loop as one, from what is known of each of them.
    fn count_constants(&mut self, at: usize, state: &mut State) -> Option<Counting> {
        let open = |memory: &&Memory| memory.cost.is_none();
        let memory = self.memories[at].iter().rev().find(open)?;
        let loops = Loop { head: at, end: self.ends[at] as usize };
        let known = &mut self.stepper.known;
        if self.tries[at].of_constants_are_over() || !self.stepper.counts {
            if self.stepper.widens {
                state.widen(&memory.state, self.bounds.bounded(loops), known);
            }
            return None;
        }
        let id = (loops, self.counted_ever);
        let hints = (self.tries[at], &self.bounds);
        let (counted, general) = Counted::of_constants(id, (&memory.state, state), hints, known)?;
        if let Some(left) = self.counted.iter().rposition(|left| left.goes_on_as(&counted)) {
            return self.give_up(left, Again::Never).map(Counting::Before);
        }
        self.has_counted = true;
        let memory = self.remembered.len() as u32;
        self.remember(at, state);
        self.count(counted, memory, (state, general));
        Some(Counting::Begun)
    }

    /// The same, where a path has come back with no more than was known in a memory.
    fn count_ranges(&mut self, at: usize, memory: usize, state: &mut State) -> bool {
        let memory = &self.memories[at][memory];
        let is_tried = |counted: &Counted| counted.at == at && counted.of == Some(memory.number);
        if self.tries[at].of_ranges_are_over() || self.counted.iter().any(is_tried) {
            return false;
        }
        let (id, known) = ((at, self.counted_ever), &self.stepper.known);
        let states = ((memory.number, &memory.state), &*state);
        let Some((counted, general)) = Counted::of_ranges(id, states, &self.bounds, known) else {
            return false;
        };
        // What is known of its turns holds of whatever comes.
        let memory = self.remembered.len() as u32;
        self.remember(at, &counted.general);
        self.count(counted, memory, (state, general));
        true
    }

    /// Goes on with what is known of all turns of a loop; its stretch is open. The next memory was `memory` before.
    fn count(&mut self, mut counted: Counted, memory: u32, (state, general): (&mut State, State)) {
        self.counted_ever += 1;
        self.cells += counted.cells();
        (counted.stretch, counted.memory) = (self.path.len() - 1, memory);
        (counted.walked, counted.wasted) = (self.walked, self.wasted);
        counted.facts = self.stepper.facts.of_all();
        self.counted.push(counted);
        *state = general;
    }

    /// Goes back to the head of a loop whose turns were tried as one, if it is there: it may be tried once more. What is
    /// within goes as well.
    fn give_up(&mut self, mut place: usize, again: Again) -> Option<Walk> {
        let most = WASTED_MAX * self.stepper.program.code.len() as u64;
        let since = self.counted.get(place).map_or(0, |counted| self.walked - counted.walked);
        if self.wasted + since > most {
            // Enough is enough: from the first of those that are tried on, all is walked turn by turn.
            self.stepper.counts = false;
            let first = self.counted.iter().position(|counted| counted.of.is_none());
            place = first.map_or(place, |first| first.min(place));
        }
        self.cells -= self.counted.iter().skip(place).map(Counted::cells).sum::<usize>();
        let counted = self.counted.drain(place..).next()?;
        // What was stepped there is no cost of the path.
        self.stepper.cost = Cost::default();
        for (_, state) in self.path.drain(counted.stretch..).filter_map(|stretch| stretch.other) {
            self.cells -= state.cells();
            self.stepper.spare.push(state);
        }
        // Neither is anything of what was found there: it may be of paths that nobody has followed to their ends.
        for slot in self.remembered.drain(counted.memory as usize..) {
            let memories = &mut self.memories[slot as usize];
            while let Some(memory) = memories.pop_if(|memory| memory.number >= counted.memory) {
                self.cells -= memory.state.cells();
                self.stepper.spare.push(memory.state);
            }
        }
        for (_, memory) in self.older.extract_if(.., |_, memory| memory.number >= counted.memory) {
            self.cells -= memory.state.cells();
            self.stepper.spare.push(memory.state);
        }
        self.tries[counted.at].add(&counted, again);
        self.stepper.facts.restore(counted.facts);
        // Of which some may be known already.
        self.wasted = counted.wasted + (self.walked - counted.walked);
        Some(Walk::Going(Going { at: counted.at, state: counted.before, since: 0 }))
    }

    /// Forgets sets of numbers that neither the path nor anything else names.
    fn keep(&mut self, state: &mut State) {
        let memories = self.memories.iter_mut().flatten().chain(self.older.values_mut());
        let memories = memories.map(|memory| &mut memory.state);
        let others = self.path.iter_mut().filter_map(|stretch| stretch.other.as_mut());
        let others = others.map(|(_, state)| state);
        let counted = self.counted.iter_mut().flat_map(Counted::states);
        self.stepper.known.keep(memories.chain(others).chain(counted).chain([state]));
    }

    /// Whether this was walked already.
    fn recall(&mut self, at: usize, state: &State) -> Recalled {
        let mut recalled = Recalled::Nothing;
        let known = &self.stepper.known;
        for (place, memory) in self.memories[at].iter().enumerate().rev() {
            if !memory.state.may_contain_at(state, self.differing[at], known) {
                continue;
            }
            if !memory.state.contains(state, known) {
                if let Some(spot) = memory.state.differs_at(state, known) {
                    self.differing[at] = spot;
                }
                continue;
            }
            match memory.cost_of(state) {
                Some(cost) => return Recalled::Cost(cost.clone()),
                None if memory.cost.is_none() => recalled = Recalled::Open(place),
                None => {}
            }
        }
        if matches!(recalled, Recalled::Nothing)
            && self.memories[at].len() >= REMEMBERED
            && let Some(older) = self.older.get(&(at as u32, state.hash(known)))
            && older.state.contains(state, known)
            && let Some(cost) = older.cost_of(state)
        {
            return Recalled::Cost(cost.clone());
        }
        recalled
    }

    fn remember(&mut self, at: usize, state: &State) {
        self.open(None, Some(at));
        let (state, stretch) = (self.stepper.copy(state), self.path.len() - 1);
        let cells = state.cells();
        let number = self.remembered.len() as u32;
        let memory = Memory { state, cost: None, ended: 0, number, stretch };
        self.remembered.push(at as u32);
        let memories = &mut self.memories[at];
        if memories.len() >= REMEMBERED {
            // The walk goes back from the last turn of a loop to its first, so the one that has ended first is
            // of least use.
            let ended = memories.iter().enumerate().filter(|(_, memory)| memory.cost.is_some());
            let first = ended.min_by_key(|(_, memory)| memory.ended).map(|(at, _)| at);
            let oldest = memories.remove(first.unwrap_or(0));
            let forgotten = if self.cells < KEPT_CELLS_MAX {
                let hash = oldest.state.hash(&self.stepper.known);
                if let (None, Some(stretch)) = (&oldest.cost, self.path.get_mut(oldest.stretch)) {
                    stretch.older = Some(hash);
                }
                self.older.insert((at as u32, hash), oldest)
            } else {
                Some(oldest)
            };
            if let Some(forgotten) = forgotten {
                self.cells -= forgotten.state.cells();
                self.stepper.spare.push(forgotten.state);
            }
        }
        self.cells += cells;
        self.memories[at].push(memory);
    }
}
