//! Exhaustive breadth-first search of a model: visits every state that any order of its actions can reach, so that
//! the first failing trace found is a shortest one.
//!
//! A visited state is stored as a 128-bit fingerprint and its predecessor, about 32 bytes; whole states are kept only
//! for the current layer. Two different states with the same fingerprint would hide each other: with ten million
//! states the probability is below 1 in 10^24.

use std::cell::Cell;
use std::fmt::{self, Debug, Write as _};
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// A transition system with a finite set of reachable states.
///
/// The effect of an action depends only on the state.
pub trait Model: Clone + Eq + Hash {
    /// A transition.
    type Action: Clone + Debug;

    /// Returns the enabled actions, at most 65,535, in an order that depends only on the state.
    fn enabled(&self) -> Vec<Self::Action>;

    /// Performs an action.
    fn apply(&mut self, action: Self::Action);

    /// Returns the violated property of this state, if any.
    fn violation(&self) -> Option<Violation>;

    /// Returns the violated property of a state without enabled actions, if any: an operation still waits.
    fn stuck(&self) -> Option<Violation> {
        None
    }

    /// Performs an action and describes it in `lines`, for the transcript of a failure.
    fn narrate(&mut self, action: Self::Action, lines: &mut Vec<String>) {
        lines.push(format!("{action:?}"));
        self.apply(action);
    }
}

/// A violated property, described by its text.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Violation(pub String);

impl Violation {
    /// Creates a violation with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The extent of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Number of different states.
    pub states: u64,
    /// Number of actions applied.
    pub transitions: u64,
    /// Number of states without enabled actions.
    pub ends: u64,
    /// Maximum distance of a state from the initial one, in actions.
    pub depth: u32,
}

/// A shortest trace to a state that violates a property.
#[derive(Clone, Debug)]
pub struct Failure<A> {
    /// The violated property.
    pub violation: Violation,
    /// The actions, from the initial state.
    pub trace: Vec<A>,
    /// The trace as described by the model.
    pub transcript: String,
    /// The extent of the search until then.
    pub coverage: Coverage,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub enum Outcome<A> {
    /// All states were visited and every property holds.
    Holds(Coverage),
    /// A property is violated.
    Fails(Failure<A>),
    /// The memory bound was reached first; no visited state violates a property.
    OutOfBounds(Coverage),
}

impl<A> Outcome<A> {
    /// Returns the coverage if all states were visited and all properties hold.
    ///
    /// # Errors
    /// The transcript of the failure, or that the bound was reached; intended for `unwrap` in tests.
    pub fn holds(self) -> Result<Coverage, String> {
        match self {
            Self::Holds(coverage) => Ok(coverage),
            Self::Fails(failure) => Err(failure.transcript),
            Self::OutOfBounds(coverage) => Err(format!("out of bounds after {coverage:?}")),
        }
    }

    /// Returns the failure, if there is one.
    pub fn failure(self) -> Option<Failure<A>> {
        match self {
            Self::Fails(failure) => Some(failure),
            Self::Holds(_) | Self::OutOfBounds(_) => None,
        }
    }
}

/// Callback that is given the coverage and the number of waiting states from time to time.
pub type Progress<'a> = &'a mut dyn FnMut(Coverage, usize);

/// A search with its bounds.
pub struct Explorer<'a> {
    states_max: u64,
    layer_max: usize,
    progress: Option<Progress<'a>>,
}

/// Divisor of the numbers of states at which progress is reported.
const PROGRESS_STATES: u64 = 1 << 16;

impl Default for Explorer<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl Debug for Explorer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explorer")
            .field("states_max", &self.states_max)
            .field("layer_max", &self.layer_max)
            .finish_non_exhaustive()
    }
}

impl<'a> Explorer<'a> {
    /// Creates a search with at most 50 million states (under 2 GB of fingerprints) and 2 million in a layer.
    pub const fn new() -> Self {
        Self { states_max: 50_000_000, layer_max: 2_000_000, progress: None }
    }

    /// Limits the search to `states` states in all and `layer` states in one layer.
    pub const fn bounds(mut self, states: u64, layer: usize) -> Self {
        self.states_max = states;
        self.layer_max = layer;
        self
    }

    /// Reports progress after each expansion that leaves a multiple of 65,536 states; expansions may skip one.
    pub fn progress(mut self, progress: Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Visits every state that is reachable from `initial`, or stops at the first failure.
    pub fn explore<M: Model>(mut self, initial: &M) -> Outcome<M::Action> {
        let mut search = Search::new(initial);
        if let Some(violation) = initial.violation() {
            return Outcome::Fails(search.failure(initial, 0, violation));
        }
        let mut layer = vec![(0_u32, initial.clone())];
        while !layer.is_empty() {
            let mut next = Vec::new();
            for (index, state) in layer.drain(..) {
                if let Err((at, violation)) = search.expand(index, state, &mut next) {
                    return Outcome::Fails(search.failure(initial, at, violation));
                }
                if search.coverage.states > self.states_max || next.len() > self.layer_max {
                    return Outcome::OutOfBounds(search.coverage);
                }
                self.report(&search, next.len());
            }
            layer = next;
            search.coverage.depth += u32::from(!layer.is_empty());
        }
        Outcome::Holds(search.coverage)
    }

    fn report(&mut self, search: &Search, waiting: usize) {
        if search.coverage.states.is_multiple_of(PROGRESS_STATES)
            && let Some(progress) = &mut self.progress
        {
            progress(search.coverage, waiting);
        }
    }
}

/// Performs one random walk through a model that is too large to search: `actions_max` actions chosen by `seed`, or
/// fewer if none is enabled. Returns the number of actions.
///
/// # Errors
/// A failure; its transcript begins with the seed.
pub fn walk<M: Model>(
    initial: &M,
    seed: u64,
    actions_max: usize,
) -> Result<usize, Box<Failure<M::Action>>> {
    let mut state = initial.clone();
    let mut trace: Vec<M::Action> = Vec::new();
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    loop {
        let mut actions = state.enabled();
        let stuck = || actions.is_empty().then(|| state.stuck()).flatten();
        if let Some(violation) = state.violation().or_else(stuck) {
            let coverage = Coverage::default();
            let mut failure = describe_failure(initial, trace, violation, coverage);
            failure.transcript.insert_str(0, &format!("walk with seed {seed}: "));
            return Err(Box::new(failure));
        }
        if actions.is_empty() || trace.len() == actions_max {
            return Ok(trace.len());
        }
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let action = actions.swap_remove((random >> 33) as usize % actions.len());
        trace.push(action.clone());
        state.apply(action);
    }
}

/// Creates the failure of a trace, with its transcript.
fn describe_failure<M: Model>(
    initial: &M,
    trace: Vec<M::Action>,
    violation: Violation,
    coverage: Coverage,
) -> Failure<M::Action> {
    let (mut state, mut lines) = (initial.clone(), Vec::new());
    for action in &trace {
        state.narrate(action.clone(), &mut lines);
    }
    let mut transcript = format!("{violation}\nafter {} actions:\n", trace.len());
    for line in lines {
        let _ = writeln!(transcript, "{line}");
    }
    Failure { violation, trace, transcript, coverage }
}

/// Visited states, and how each was reached.
struct Search {
    seen: FingerprintSet,
    /// For each state, in the order of discovery: its predecessor, and the index of the predecessor's action that
    /// leads to it.
    predecessors: Vec<(u32, u16)>,
    coverage: Coverage,
}

impl Search {
    fn new<M: Model>(initial: &M) -> Self {
        let mut seen = FingerprintSet::default();
        seen.insert(fingerprint(initial));
        let coverage = Coverage { states: 1, ..Coverage::default() };
        Self { seen, predecessors: vec![(0, 0)], coverage }
    }

    /// Visits all successors of a state; new ones are added to `next`.
    fn expand<M: Model>(
        &mut self,
        index: u32,
        state: M,
        next: &mut Vec<(u32, M)>,
    ) -> Result<(), (u32, Violation)> {
        let actions = state.enabled();
        if actions.is_empty() {
            self.coverage.ends += 1;
            if let Some(violation) = state.stuck() {
                return Err((index, violation));
            }
        }
        // Clones the state for all actions but the last, which takes it.
        let states = std::iter::repeat_n(state, actions.len());
        for (choice, (action, mut after)) in actions.into_iter().zip(states).enumerate() {
            after.apply(action);
            self.coverage.transitions += 1;
            if !self.seen.insert(fingerprint(&after)) {
                continue;
            }
            let found = self.predecessors.len() as u32;
            self.predecessors.push((index, choice as u16));
            self.coverage.states += 1;
            if let Some(violation) = after.violation() {
                return Err((found, violation));
            }
            next.push((found, after));
        }
        Ok(())
    }

    /// Creates the failure of a state, with the trace and transcript that lead to it.
    fn failure<M: Model>(&self, initial: &M, at: u32, violation: Violation) -> Failure<M::Action> {
        let mut choices = Vec::new();
        let mut index = at;
        while index != 0 {
            let (before, choice) = self.predecessors[index as usize];
            choices.push(choice);
            index = before;
        }
        let (mut state, mut trace) = (initial.clone(), Vec::new());
        for choice in choices.into_iter().rev() {
            let action = state.enabled()[usize::from(choice)].clone();
            trace.push(action.clone());
            state.apply(action);
        }
        describe_failure(initial, trace, violation, self.coverage)
    }
}

fn fingerprint(state: &impl Hash) -> u128 {
    let mut hasher = Fingerprint::default();
    state.hash(&mut hasher);
    hasher.value()
}

/// Part of a state that most actions leave unchanged: copied on modification, and hashed once.
#[derive(Clone, Debug)]
pub struct CopyOnWrite<T>(Rc<Hashed<T>>);

#[derive(Clone, Debug)]
struct Hashed<T> {
    value: T,
    /// Fingerprint of the value, if computed since the last modification.
    fingerprint: Cell<Option<u128>>,
}

impl<T> CopyOnWrite<T> {
    /// Creates a shared copy of a value.
    pub fn new(value: T) -> Self {
        Self(Rc::new(Hashed { value, fingerprint: Cell::new(None) }))
    }
}

impl<T> Deref for CopyOnWrite<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for CopyOnWrite<T> {
    fn deref_mut(&mut self) -> &mut T {
        let hashed = Rc::make_mut(&mut self.0);
        hashed.fingerprint.set(None);
        &mut hashed.value
    }
}

impl<T: PartialEq> PartialEq for CopyOnWrite<T> {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl<T: Eq> Eq for CopyOnWrite<T> {}

impl<T: Hash> Hash for CopyOnWrite<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let cell = &self.0.fingerprint;
        let value = cell.get().unwrap_or_else(|| fingerprint(&**self));
        cell.set(Some(value));
        state.write_u128(value);
    }
}

/// Two independent 64-bit hashes by folded multiplication.
struct Fingerprint(u64, u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344)
    }
}

const fn fold(one: u64, other: u64) -> u64 {
    let product = one as u128 * other as u128;
    product as u64 ^ (product >> 64) as u64
}

impl Fingerprint {
    const fn word(&mut self, word: u64) {
        self.0 = fold(self.0 ^ word, 0x9e37_79b9_7f4a_7c15).wrapping_add(0xa409_3822_299f_31d0);
        self.1 = fold(self.1 ^ word, 0xd6e8_feb8_6659_fd93).wrapping_add(0x082e_fa98_ec4e_6c89);
    }

    fn value(&self) -> u128 {
        let low = fold(self.0, 0xc2b2_ae3d_27d4_eb4f);
        let high = fold(self.1, 0x1656_67b1_9e37_79f9);
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        // Joined by shifts: a copy of variable length would be a call of `memcpy`.
        if !rest.is_empty() {
            self.word(rest.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.word(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.word(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.word(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn write_u128(&mut self, value: u128) {
        self.word(value as u64);
        self.word((value >> 64) as u64);
    }

    fn write_usize(&mut self, value: usize) {
        self.word(value as u64);
    }

    fn finish(&self) -> u64 {
        self.value() as u64
    }
}

/// A set of fingerprints with open addressing; fingerprints are uniform, so they serve as hashes.
#[derive(Default)]
struct FingerprintSet {
    /// Entries, a power of two of them; 0 is an empty one.
    entries: Vec<u128>,
    len: usize,
}

impl FingerprintSet {
    /// Adds a fingerprint; false if it was present.
    fn insert(&mut self, fingerprint: u128) -> bool {
        if self.len * 4 >= self.entries.len() * 3 {
            self.grow();
        }
        let fingerprint = fingerprint.max(1);
        let mask = self.entries.len() - 1;
        let mut place = (fingerprint >> 64) as usize & mask;
        while self.entries[place] != 0 {
            if self.entries[place] == fingerprint {
                return false;
            }
            place = (place + 1) & mask;
        }
        self.entries[place] = fingerprint;
        self.len += 1;
        true
    }

    fn grow(&mut self) {
        let larger = (self.entries.len() * 2).max(1 << 10);
        let old = std::mem::replace(&mut self.entries, vec![0; larger]);
        self.len = 0;
        for fingerprint in old.into_iter().filter(|place| *place != 0) {
            self.insert(fingerprint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clocks with hands that go round; a violation if both show `forbidden`.
    #[derive(Clone, PartialEq, Eq, Hash)]
    struct Clocks {
        hands: [u8; 2],
        round: u8,
        forbidden: Option<u8>,
        stops: bool,
    }

    impl Clocks {
        fn new(round: u8) -> Self {
            Self { hands: [0; 2], round, forbidden: None, stops: false }
        }
    }

    impl Model for Clocks {
        type Action = usize;

        fn enabled(&self) -> Vec<usize> {
            let moves = |hand: &usize| !self.stops || self.hands[*hand] + 1 < self.round;
            (0..2).filter(moves).collect()
        }

        fn apply(&mut self, hand: usize) {
            self.hands[hand] = (self.hands[hand] + 1) % self.round;
        }

        fn violation(&self) -> Option<Violation> {
            let wrong = self.forbidden.is_some_and(|hour| self.hands == [hour; 2]);
            wrong.then(|| Violation::new("both show the forbidden hour"))
        }

        fn stuck(&self) -> Option<Violation> {
            Some(Violation::new("no hand moves"))
        }
    }

    #[test]
    fn visits_every_state_once() {
        let coverage = Explorer::new().explore(&Clocks::new(40)).holds().unwrap();
        assert_eq!(coverage, Coverage { states: 1_600, transitions: 3_200, ends: 0, depth: 78 });
    }

    #[test]
    fn finds_and_describes_a_shortest_trace() {
        let clocks = Clocks { forbidden: Some(3), ..Clocks::new(12) };
        let failure = Explorer::new().explore(&clocks).failure().expect("a failure");
        assert_eq!(failure.trace.len(), 6);
        assert_eq!(failure.transcript.lines().count(), 8);
        assert!(failure.transcript.starts_with("both show the forbidden hour\n"));
    }

    #[test]
    fn states_without_actions_are_detected() {
        let clocks = Clocks { stops: true, ..Clocks::new(5) };
        let failure = Explorer::new().explore(&clocks).failure().expect("a failure");
        assert_eq!(failure.violation, Violation::new("no hand moves"));
        assert_eq!(failure.trace.len(), 8);
    }

    #[test]
    fn walks_are_long_and_reproducible() {
        let clocks = Clocks { forbidden: Some(29), ..Clocks::new(30) };
        assert_eq!(walk(&clocks, 1, 40).map_err(|failure| failure.transcript), Ok(40));
        let fail = |seed| walk(&clocks, seed, 1_000_000).expect_err("meets the hour some day");
        assert_eq!(fail(7).trace, fail(7).trace);
        assert_ne!(fail(7).trace, fail(8).trace);
        assert!(fail(7).transcript.starts_with("walk with seed 7: both show"));
    }

    #[test]
    fn bounds_are_respected() {
        let mut calls = 0;
        let mut progress = |_: Coverage, _: usize| calls += 1;
        let explorer = Explorer::new().bounds(100_000, 1_000_000);
        let outcome = explorer.progress(&mut progress).explore(&Clocks::new(255));
        assert!(matches!(outcome, Outcome::Holds(coverage) if coverage.states == 65_025));
        let outcome = Explorer::new().bounds(1_000, 1_000_000).explore(&Clocks::new(255));
        assert!(matches!(outcome, Outcome::OutOfBounds(_)));
        let outcome = Explorer::new().bounds(1_000_000, 10).explore(&Clocks::new(255));
        assert!(matches!(outcome, Outcome::OutOfBounds(_)));
        assert_eq!(calls, 0, "fewer states than between two reports");
    }
}
