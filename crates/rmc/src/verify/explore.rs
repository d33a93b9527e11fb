//! Every path to its end: the exact proof, for programs whose loops end by themselves.
//!
//! Paths are walked depth first. Where paths may meet, what was known there is remembered; a path that
//! comes with no more than what was known before needs no second walk, and costs what the first one did.
//! If the first one has not ended yet, the path has come round a loop without progress: there is no
//! bound, and the program needs a meter.
//!
//! The walk can stop before every instruction and behind every stretch of a path, and goes on from there.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::problem::Problem;
use super::state::{CELLS_MAX, Spot, State};
use super::step::{Cost, Next, Stepper};

/// Memories of one place: more of them are rarely of use, and each is compared with every path.
const REMEMBERED: usize = 24;

/// Meeting points that are passed between memories, where no loop starts.
const FORGETFUL: u32 = 4;

/// How an exploration ended, if no path is wrong.
pub(super) enum Explored {
    /// All paths end, at most so far away.
    Bounded(Cost),
    /// Some path may not end, or there are too many.
    Unbounded,
}

/// What was known when a path passed, and how far its end was.
struct Memory {
    state: State,
    /// `None` while the path has not ended.
    cost: Option<Cost>,
    /// When the path has ended, in paths.
    ended: u32,
    /// The stretch that remembers it.
    stretch: usize,
}

/// A piece of a path, from one meeting point or branch to the next.
struct Stretch {
    /// What it costs itself.
    own: Cost,
    /// The greatest cost of what followed so far.
    behind: Cost,
    /// Where else it goes on, and with what.
    other: Option<(usize, State)>,
    /// The place where it is remembered.
    remembered: Option<usize>,
}

pub(super) struct Explorer {
    pub(super) stepper: Box<Stepper>,
    /// Slots that some jump goes back to.
    heads: Vec<bool>,
    memories: Vec<Vec<Memory>>,
    /// Where two states of a place differed the last time: mostly in what a loop counts by.
    differing: Vec<Spot>,
    path: Vec<Stretch>,
    /// Where it stands between two of its steps.
    walk: Walk,
    walked: u64,
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
    Ended(Cost),
    Unbounded,
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
            memories: (0..slots).map(|_| Vec::new()).collect(),
            differing: alloc::vec![Spot::default(); slots],
            path: Vec::new(),
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

    /// Walks at most so many instructions further, which must be some: how it ended, if it has. A problem
    /// comes with its slot.
    // Not a part of what steps it, where the compiler has no registers left for it.
    #[inline(never)]
    pub(super) fn explore(
        &mut self,
        instructions: u32,
    ) -> Result<Option<Explored>, (usize, Problem)> {
        self.pause = self.walked + u64::from(instructions);
        let mut walk = core::mem::replace(&mut self.walk, Walk::Unbounded);
        while self.walked < self.pause {
            walk = match walk {
                Walk::Going(going) => self.advance(going)?,
                Walk::Ended(behind) => match self.close(behind) {
                    Ok(next) => next,
                    Err(cost) => return Ok(Some(Explored::Bounded(cost))),
                },
                Walk::Unbounded => return Ok(Some(Explored::Unbounded)),
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
        let (own, behind) = (Cost::default(), Cost::default());
        self.path.push(Stretch { own, behind, other, remembered });
    }

    /// Ends stretches until one has another way to go. The whole cost when there is none.
    fn close(&mut self, mut behind: Cost) -> Result<Walk, Cost> {
        self.settle();
        while self.walked < self.pause {
            let at = self.path.len();
            let Some(stretch) = self.path.last_mut() else {
                return Err(behind);
            };
            stretch.behind = stretch.behind.or(behind);
            if let Some((slot, state)) = stretch.other.take() {
                self.cells -= state.cells();
                // The other way is a stretch of its own, so that its cost is apart.
                self.open(None, None);
                return Ok(Walk::Going(Going { at: slot, state, since: 0 }));
            }
            behind = stretch.own.plus(stretch.behind);
            if let Some(slot) = stretch.remembered {
                let memories = self.memories[slot].iter_mut();
                for memory in memories.filter(|memory| memory.stretch == at - 1) {
                    if memory.cost.is_none() {
                        memory.cost = Some(behind);
                        memory.ended = self.ended;
                        self.ended += 1;
                    }
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
                if let Some(walk) = self.recall(at, &state) {
                    self.stepper.spare.push(state);
                    return Ok(walk);
                }
                // Every memory costs a copy: loops need theirs, others only now and then.
                since += 1;
                if self.heads[at] || since >= FORGETFUL {
                    self.remember(at, &state);
                    since = 0;
                }
            }
            if self.walked >= u64::from(self.stepper.limits.walked_max) || self.cells > CELLS_MAX {
                return Ok(Walk::Unbounded);
            }
            self.walked += 1;
            let next = self.stepper.step(&mut state, at).map_err(|problem| (at, problem))?;
            match next {
                Next::Through => at += self.stepper.program.code[at].slots(),
                Next::At(target) => at = target,
                Next::Either(target) => {
                    let jumped = self.stepper.jumped.take();
                    self.cells += jumped.as_ref().map_or(0, State::cells);
                    if let Some(stretch) = self.path.last_mut() {
                        stretch.other = jumped.map(|jumped| (target, jumped));
                    }
                    self.open(None, None);
                    at += 1;
                }
                Next::End => {
                    self.stepper.spare.push(state);
                    return Ok(Walk::Ended(Cost::default()));
                }
            }
        }
        Ok(Walk::Going(Going { at, state, since }))
    }

    /// Forgets sets of numbers that neither the path nor anything else names.
    fn keep(&mut self, state: &mut State) {
        let memories = self.memories.iter_mut().flatten().map(|memory| &mut memory.state);
        let others = self.path.iter_mut().filter_map(|stretch| stretch.other.as_mut());
        let others = others.map(|(_, state)| state);
        self.stepper.known.keep(memories.chain(others).chain([state]));
    }

    /// Whether this was walked already.
    fn recall(&mut self, at: usize, state: &State) -> Option<Walk> {
        let mut unbounded = None;
        let known = &self.stepper.known;
        for memory in self.memories[at].iter().rev() {
            if !memory.state.may_contain_at(state, self.differing[at], known) {
                continue;
            }
            if !memory.state.contains(state, known) {
                if let Some(spot) = memory.state.differs_at(state, known) {
                    self.differing[at] = spot;
                }
                continue;
            }
            match memory.cost {
                Some(cost) => return Some(Walk::Ended(cost)),
                None => unbounded = Some(Walk::Unbounded),
            }
        }
        unbounded
    }

    fn remember(&mut self, at: usize, state: &State) {
        self.open(None, Some(at));
        let (state, stretch) = (self.stepper.copy(state), self.path.len() - 1);
        let cells = state.cells();
        let memory = Memory { state, cost: None, ended: 0, stretch };
        let memories = &mut self.memories[at];
        if memories.len() >= REMEMBERED {
            // The walk goes back from the last turn of a loop to its first, so the one that has ended first is
            // of least use.
            let ended = memories.iter().enumerate().filter(|(_, memory)| memory.cost.is_some());
            let first = ended.min_by_key(|(_, memory)| memory.ended).map(|(at, _)| at);
            let forgotten = memories.remove(first.unwrap_or(0));
            self.cells -= forgotten.state.cells();
            self.stepper.spare.push(forgotten.state);
        }
        self.cells += cells;
        memories.push(memory);
    }
}
