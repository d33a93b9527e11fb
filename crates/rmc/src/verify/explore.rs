//! Path-sensitive abstract interpretation: every path to its end, depth first, with pruning.
//!
//! The abstract states of paths at a slot are kept as *visited states*. A path with a state that is contained in a
//! visited one is pruned, and has the cost of that one's path: its concrete states were explored there. This is what
//! Linux's verifier does (`is_state_visited`, `states_equal`). If the visited state's path has not ended, the path has
//! gone round a loop without progress: the loop has no bound, and the program is metered.
//!
//! Invariants: a visited state is exactly what was explored, without loss of precision; visited states of an abandoned
//! loop summarization are removed with it, also from the table of older ones.
//!
//! Counted loops are summarized if that can be proven (`counted.rs`), else unrolled. In a loop with counters that
//! depend on data, numbers that cannot decide a verdict are dropped (`live.rs`), and the pairs of the others are
//! polynomially many: the most recent visited states of a slot are compared one by one, older ones are found by hash.
//!
//! The exploration can pause before every instruction and after every stretch of a path.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use super::bounds::{Bounds, Loop};
use super::counted::{Behind, Counted, Mark, Tries, Turn};
use super::induction::Count;
use super::problem::Problem;
use super::state::{AbstractState, CELLS_MAX, Spot};
use super::step::{Next, Stepper};
use crate::cost::Cost;

/// Visited states of one slot that are compared with every path there. Others are found by their hash, for a path with
/// the same numbers.
const REMEMBERED: usize = 24;
/// Values in visited states and unexplored successors beyond which an old state is dropped instead of kept by hash.
const KEPT_CELLS_MAX: usize = CELLS_MAX / 2;

/// Join points between two visited states of a path, except at loop headers.
const FORGETFUL: u32 = 4;

/// Visits of a join point at which a visited state is recorded: further paths may reach it.
const AGAIN: core::ops::RangeInclusive<u8> = 2..=3;

/// Instructions that abandoned loop summarizations may cost, per instruction of the program, before loops are unrolled.
const WASTED_MAX: u64 = 16;

/// Share of the work so far that may still be spent once some path has no provable end.
const ENDLESS_SHARE: u64 = 4;

/// The result of an exploration that found no problem.
pub(super) enum Explored {
    /// All paths are safe, and end within this cost or have no bound.
    Closed(Cost),
    /// The paths exceed a limit of work or memory.
    TooMuch,
}

/// A visited state: the abstract state of a path at a slot, and the cost from there.
struct VisitedState {
    state: AbstractState,
    /// `None` while the path has not ended.
    cost: Option<Behind>,
    /// The order in which the paths ended.
    ended: u32,
    /// The order in which visited states were recorded.
    number: u32,
    /// The stretch that starts with it.
    stretch: usize,
}

impl VisitedState {
    /// Records the cost of its path, if it starts `stretch` and has none.
    fn end(&mut self, stretch: usize, behind: &Behind, ended: &mut u32) {
        if self.stretch == stretch && self.cost.is_none() {
            self.cost = Some(behind.clone());
            self.ended = *ended;
            *ended += 1;
        }
    }

    /// Its cost, if it holds for a path with this state. A cost that leads to the header of a summarized loop holds
    /// only for a path with the same counts.
    fn cost_of(&self, state: &AbstractState) -> Option<&Behind> {
        let counts_so = state.counts.starts_with(&self.state.counts);
        self.cost.as_ref().filter(|cost| counts_so || cost.is_to_ends())
    }
}

/// What the visited states of a slot say of a path.
enum Recalled {
    Nothing,
    /// Contained in a visited state with this cost.
    Cost(Behind),
    /// Contained in the visited state at this index, with paths that have not ended.
    Open(usize),
}

/// A piece of a path, from one join point or branch to the next.
#[derive(Default)]
struct Stretch {
    /// Its own cost.
    own: Cost,
    /// The greatest cost of the continuations explored so far.
    behind: Behind,
    /// The other successor of its branch, not yet explored.
    other: Option<(usize, AbstractState)>,
    /// The slot of its visited state, and its hash if that has moved to the table of older ones.
    remembered: Option<usize>,
    older: Option<u32>,
}

pub(super) struct Explorer {
    pub(super) stepper: Box<Stepper>,
    /// How often paths reached each slot without being pruned; saturates.
    visits: Vec<u8>,
    memories: Vec<Vec<VisitedState>>,
    /// Older visited states, by slot and hash: loops with counters that depend on data reach a slot with hundreds of
    /// pairs of numbers, and with each of them repeatedly.
    older: BTreeMap<(u32, u32), VisitedState>,
    /// Slots of all recorded visited states in order, except those of abandoned summarizations.
    remembered: Vec<u32>,
    /// Where two states of each slot differed last: mostly in the counter of a loop.
    differing: Vec<Spot>,
    path: Vec<Stretch>,
    /// Summarizations in progress on the path, outermost first.
    counted: Vec<Counted>,
    /// Summarizations begun so far.
    counted_ever: u32,
    has_counted: bool,
    /// Failed attempts at summarization, by slot.
    tries: Vec<Tries>,
    /// The last slot with a back edge to each loop header, by slot.
    ends: Vec<Option<u32>>,
    /// Instructions explored in abandoned summarizations.
    wasted: u64,
    bounds: Bounds,
    /// The position between two steps.
    walk: Walk,
    /// Instructions explored.
    walked: u64,
    /// The limit of them: lower once some path has no provable end, since the fixpoint may reach the same verdict
    /// sooner.
    walked_max: u64,
    /// The value of `walked` at which the present step ends; the end of a stretch counts as an instruction.
    pause: u64,
    /// Paths that have ended.
    ended: u32,
    /// Values in visited states and in unexplored successors.
    cells: usize,
}

/// The position of the exploration.
enum Walk {
    Going(Going),
    /// The present stretch has ended; this is the cost of what follows it.
    Ended(Behind),
    /// The paths exceed a limit.
    TooMuch,
}

/// A path at a slot.
struct Going {
    at: usize,
    state: AbstractState,
    /// Join points since the last visited state.
    since: u32,
}

impl Explorer {
    /// At the start of the program.
    pub(super) fn new(mut stepper: Box<Stepper>) -> Self {
        let slots = stepper.program.code.len();
        let state = AbstractState::new(stepper.limits.context_bytes_max, &mut stepper.known);
        let mut explorer = Self {
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
        explorer.open(None);
        explorer
    }

    /// Instructions explored.
    pub(super) fn walked(&self) -> u64 {
        self.walked
    }

    /// Whether a summarization was attempted, with a state that over-approximates the iterations.
    pub(super) fn has_counted(&self) -> bool {
        self.has_counted
    }

    /// Explores at most `instructions` more, which must not be 0. Returns the result when the exploration ends. A
    /// problem comes with its slot.
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

    /// Charges the instructions stepped since the last call to the present stretch.
    fn settle(&mut self) {
        let cost = core::mem::take(&mut self.stepper.cost);
        if let Some(stretch) = self.path.last_mut() {
            stretch.own = stretch.own.plus(cost);
        }
    }

    fn open(&mut self, remembered: Option<usize>) {
        self.settle();
        self.path.push(Stretch { remembered, ..Stretch::default() });
    }

    /// Ends stretches until one has an unexplored successor. Fails with the whole cost if none has.
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
                // The other successor is a separate stretch, so that its cost is counted separately.
                self.open(None);
                return Ok(Walk::Going(Going { at: slot, state, since: 0 }));
            }
            behind = core::mem::take(&mut stretch.behind);
            behind.add(stretch.own);
            let (remembered, older) = (stretch.remembered, stretch.older);
            if let Some(counted) = self.counted.pop_if(|counted| counted.mark.stretch == at - 1) {
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
            if self.stepper.facts.meetings[at] {
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
                    // A back edge in a summarized loop is explored first: whether the summarization holds is known
                    // there, and work on other paths may be discarded.
                    if target <= at && !state.counts.is_empty() {
                        core::mem::swap(&mut first, &mut second);
                        core::mem::swap(&mut state, &mut other);
                    }
                    self.cells += other.cells();
                    if let Some(stretch) = self.path.last_mut() {
                        stretch.other = Some((second, other));
                    }
                    self.open(None);
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

    /// Handles a problem: abandons the innermost summarization, which may have caused it, else reports it.
    fn fail(&mut self, at: usize, problem: Problem) -> Result<Walk, (usize, Problem)> {
        let innermost = self.counted.len().checked_sub(1);
        innermost.and_then(|place| self.give_up(place, None)).ok_or((at, problem))
    }

    /// Handles a path at a join point. Returns how the exploration continues, or `None` for the next instruction.
    /// `since` counts the join points since the last visited state.
    fn meet(&mut self, at: usize, state: &mut AbstractState, since: &mut u32) -> Option<Walk> {
        for count in (0..state.counts.len()).rev() {
            let Some(place) = self.place_of(&state.counts[count]) else { continue };
            if self.counted[place].at != at {
                continue;
            }
            match self.counted[place].turn(count, state, &self.stepper.known) {
                Turn::Other => {}
                Turn::Same => return Some(Walk::Ended(Behind::turn(self.counted[place].mark.id))),
                Turn::Fails(turns) => return self.give_up(place, turns),
            }
        }
        match self.recall(at, state) {
            Recalled::Nothing => {}
            Recalled::Cost(cost) => return Some(Walk::Ended(cost)),
            Recalled::Open(memory) => {
                if self.count_ranges(at, memory, state) {
                    *since = 0;
                    return None;
                }
                let hidden = self.hides(at, self.memories[at][memory].number, state);
                let back = hidden.and_then(|place| self.give_up(place, None));
                return Some(back.unwrap_or_else(|| self.endless()));
            }
        }
        // A visited state costs a copy: recorded at loop headers, at repeated visits, and every few join points.
        *since += 1;
        self.visits[at] = self.visits[at].saturating_add(1);
        let head = self.ends[at].map(|end| Loop { head: at, end: end as usize });
        if head.is_some_and(|loops| self.count_constants(loops, state)) {
            *since = 0;
        } else if head.is_some() || *since >= FORGETFUL || AGAIN.contains(&self.visits[at]) {
            self.remember(at, state);
            *since = 0;
        }
        None
    }

    /// The index of the summarization that a count belongs to.
    fn place_of(&self, count: &Count) -> Option<usize> {
        self.counted.binary_search_by_key(&count.id, |counted| counted.mark.id).ok()
    }

    /// The summarization that may hide the end of a path contained in this visited state: the path is within its loop
    /// or a loop around it, or was when the state was recorded.
    fn hides(&self, at: usize, memory: u32, state: &AbstractState) -> Option<usize> {
        let counts = state.counts.last().and_then(|count| self.place_of(count));
        let within = || {
            let since = self.counted.iter().rposition(|counted| {
                let loop_of = |head: usize| head..=self.ends[head].map_or(head, |end| end as usize);
                let program = &self.stepper.program;
                let nested = loop_of(counted.at).contains(&at)
                    || loop_of(at).contains(&counted.at)
                    || program.function_at(at) != program.function_at(counted.at);
                counted.mark.memory <= memory && nested
            });
            since.filter(|place| self.counted[*place].of.is_none())
        };
        counts.or_else(within)
    }

    /// Ends a path that has gone round a loop without progress: it is safe, but has no bound.
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

    /// Begins a summarization by constants, if the path has returned to the header with moved counters. Returns whether
    /// it has begun.
    fn count_constants(&mut self, loops: Loop, state: &mut AbstractState) -> bool {
        let (at, mark) = (loops.head, self.mark());
        let open = |memory: &&VisitedState| memory.cost.is_none();
        let Some(memory) = self.memories[at].iter().rev().find(open) else { return false };
        let known = &mut self.stepper.known;
        if self.tries[at].of_constants_are_over() || !self.stepper.counts {
            if self.stepper.widens {
                state.widen(&memory.state, self.bounds.bounded(loops), known);
            }
            return false;
        }
        let hints = (self.tries[at], &self.bounds);
        let states = (&memory.state, &*state);
        let Some(begun) = Counted::of_constants((loops, mark), states, hints, known) else {
            return false;
        };
        self.has_counted = true;
        self.remember(at, state);
        self.count(begun, state);
        true
    }

    /// Begins a summarization by ranges for a path that is contained in a visited state. Returns whether it has begun.
    fn count_ranges(&mut self, at: usize, memory: usize, state: &mut AbstractState) -> bool {
        let memory = &self.memories[at][memory];
        let is_tried = |counted: &Counted| counted.at == at && counted.of == Some(memory.number);
        let never = self.ends[at].is_none() || self.tries[at].of_ranges_are_over();
        if never || self.counted.iter().any(is_tried) {
            return false;
        }
        let states = ((memory.number, &memory.state), &*state);
        let (mark, known) = (self.mark(), &self.stepper.known);
        let Some(begun) = Counted::of_ranges((at, mark), states, &self.bounds, known) else {
            return false;
        };
        // The general state holds in every iteration, so it is a visited state.
        self.remember(at, &begun.0.general);
        self.count(begun, state);
        true
    }

    /// What a summarization that begins with a visited state needs to know if it is abandoned.
    fn mark(&self) -> Mark {
        Mark {
            id: self.counted_ever,
            stretch: self.path.len(),
            memory: self.remembered.len() as u32,
            walked: self.walked,
            wasted: self.wasted,
            facts: self.stepper.facts.of_all,
        }
    }

    /// Continues with the general state of a loop.
    fn count(&mut self, (counted, general): (Counted, AbstractState), state: &mut AbstractState) {
        self.counted_ever += 1;
        self.cells += counted.cells();
        self.counted.push(counted);
        *state = general;
    }

    /// Abandons a summarization, with those within it, and resumes at its header, where another attempt may follow,
    /// with this trip count.
    fn give_up(&mut self, mut place: usize, turns: Option<u64>) -> Option<Walk> {
        let most = WASTED_MAX * self.stepper.program.code.len() as u64;
        let since = self.counted.get(place).map_or(0, |counted| self.walked - counted.mark.walked);
        if self.wasted + since > most {
            // The budget for failed attempts is exhausted: unroll all loops, from the outermost candidate on.
            self.stepper.counts = false;
            let first = self.counted.iter().position(|counted| counted.of.is_none());
            place = first.map_or(place, |first| first.min(place));
        }
        self.cells -= self.counted.iter().skip(place).map(Counted::cells).sum::<usize>();
        let counted = self.counted.drain(place..).next()?;
        // Discard the cost of what was stepped there.
        self.stepper.cost = Cost::default();
        for (_, state) in
            self.path.drain(counted.mark.stretch..).filter_map(|stretch| stretch.other)
        {
            self.cells -= state.cells();
            self.stepper.spare.push(state);
        }
        // Discard its visited states: their paths may not have been explored to the end.
        for slot in self.remembered.drain(counted.mark.memory as usize..) {
            let memories = &mut self.memories[slot as usize];
            while let Some(memory) = memories.pop_if(|memory| memory.number >= counted.mark.memory)
            {
                self.cells -= memory.state.cells();
                self.stepper.spare.push(memory.state);
            }
        }
        for (_, memory) in
            self.older.extract_if(.., |_, memory| memory.number >= counted.mark.memory)
        {
            self.cells -= memory.state.cells();
            self.stepper.spare.push(memory.state);
        }
        self.tries[counted.at].add(&counted, turns);
        self.stepper.facts.of_all = counted.mark.facts;
        // Counts what nested summarizations discarded once.
        self.wasted = counted.mark.wasted + (self.walked - counted.mark.walked);
        Some(Walk::Going(Going { at: counted.at, state: counted.before, since: 0 }))
    }

    /// Removes sets of numbers that no state refers to.
    fn keep(&mut self, state: &mut AbstractState) {
        let memories = self.memories.iter_mut().flatten().chain(self.older.values_mut());
        let memories = memories.map(|memory| &mut memory.state);
        let others = self.path.iter_mut().filter_map(|stretch| stretch.other.as_mut());
        let others = others.map(|(_, state)| state);
        let counted = self.counted.iter_mut().flat_map(Counted::states);
        let states = memories.chain(others).chain(counted).chain([state]);
        self.stepper.known.keep(states.flat_map(AbstractState::ids_mut));
    }

    /// Searches the visited states of a slot for one that contains this state.
    fn recall(&mut self, at: usize, state: &AbstractState) -> Recalled {
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

    fn remember(&mut self, at: usize, state: &AbstractState) {
        self.open(Some(at));
        let (state, stretch) = (self.stepper.copy(state), self.path.len() - 1);
        let cells = state.cells();
        let number = self.remembered.len() as u32;
        let memory = VisitedState { state, cost: None, ended: 0, number, stretch };
        self.remembered.push(at as u32);
        let memories = &mut self.memories[at];
        if memories.len() >= REMEMBERED {
            // Paths end from the last iteration of a loop to its first, so the one that has ended first is
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
