//! Exhaustive search over a model: every state that any order of its actions can reach, breadth
//! first, so that the first failing trace found is a shortest one.
//!
//! A visited state is remembered by a 128-bit fingerprint and by how it was reached, 32 bytes or so;
//! whole states are kept only for the layer that is being searched. Two different states with one
//! fingerprint would hide each other: with ten million states the odds are below 1 in 10^24.

use std::cell::Cell;
use std::fmt::{self, Debug, Write as _};
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// A system of which every reachable state can be visited.
///
/// An action's effect depends on the state and on nothing else.
pub trait Model: Clone + Eq + Hash {
    /// Something that can happen.
    type Action: Clone + Debug;

    /// What can happen now. In an order that depends on the state alone, at most 65,535.
    fn enabled(&self) -> Vec<Self::Action>;

    /// Lets it happen.
    fn apply(&mut self, action: Self::Action);

    /// What is wrong with this state, if anything.
    fn violation(&self) -> Option<Violation>;

    /// What is wrong with a state in which no action is enabled, if anything: an operation still waits.
    fn stuck(&self) -> Option<Violation> {
        None
    }

    /// Performs an action and describes it in `lines`, for the transcript of a failure.
    fn narrate(&mut self, action: Self::Action, lines: &mut Vec<String>) {
        lines.push(format!("{action:?}"));
        self.apply(action);
    }
}

/// A property that does not hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Violation(pub String);

impl Violation {
    /// With this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much has been searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Coverage {
    /// Different states met.
    pub states: u64,
    /// Actions applied.
    pub transitions: u64,
    /// States in which nothing was enabled.
    pub ends: u64,
    /// Actions of the longest of the shortest ways to a state.
    pub depth: u32,
}

/// A shortest way to a state that violates a property.
#[derive(Clone, Debug)]
pub struct Failure<A> {
    /// What does not hold.
    pub violation: Violation,
    /// The actions, from the initial state.
    pub trace: Vec<A>,
    /// The same, as described by the model.
    pub transcript: String,
    /// What had been searched until then.
    pub coverage: Coverage,
}

/// How a search ended.
#[derive(Clone, Debug)]
pub enum Outcome<A> {
    /// Every state was met and every property holds.
    Holds(Coverage),
    /// A property does not hold.
    Fails(Failure<A>),
    /// The bound of memory was reached first; what was searched holds.
    OutOfBounds(Coverage),
}

impl<A> Outcome<A> {
    /// What was searched, when all was and all holds.
    ///
    /// # Errors
    /// The transcript of the failure, or that the bound was reached; made to be unwrapped by tests.
    pub fn holds(self) -> Result<Coverage, String> {
        match self {
            Self::Holds(coverage) => Ok(coverage),
            Self::Fails(failure) => Err(failure.transcript),
            Self::OutOfBounds(coverage) => Err(format!("out of bounds after {coverage:?}")),
        }
    }

    /// The failure, if there is one.
    pub fn failure(self) -> Option<Failure<A>> {
        match self {
            Self::Fails(failure) => Some(failure),
            Self::Holds(_) | Self::OutOfBounds(_) => None,
        }
    }
}

/// Called now and then with what has been searched and how many states wait.
pub type Progress<'a> = &'a mut dyn FnMut(Coverage, usize);

/// A search.
pub struct Explorer<'a> {
    states_max: u64,
    layer_max: usize,
    progress: Option<Progress<'a>>,
}

/// States between two calls of the progress callback.
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
    /// Up to 50 million states (under 2 GB of fingerprints) and 2 million in a layer.
    pub const fn new() -> Self {
        Self { states_max: 50_000_000, layer_max: 2_000_000, progress: None }
    }

    /// Gives up after `states` states in all or `layer` states in one layer.
    pub const fn bounds(mut self, states: u64, layer: usize) -> Self {
        self.states_max = states;
        self.layer_max = layer;
        self
    }

    /// Reports progress every 65,536 states.
    pub fn progress(mut self, progress: Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Visits every state that can be reached from `initial`, or stops at the first failure.
    pub fn explore<M: Model>(mut self, initial: &M) -> Outcome<M::Action> {
        let mut search = Search::new(initial);
        if let Some(violation) = initial.violation() {
            return Outcome::Fails(search.failure(initial, 0, violation));
        }
        let mut layer = vec![(0_u32, initial.clone())];
        while !layer.is_empty() {
            let mut next = Vec::new();
            for (index, state) in layer.drain(..) {
                if let Err((at, violation)) = search.expand(index, &state, &mut next) {
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

/// Follows one way through a model that is too large to search: `actions_max` actions chosen by
/// `seed`, or fewer when nothing is enabled any more. Returns how many it were.
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
            let mut failure = tell(initial, trace, violation, coverage);
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

/// The transcript of a trace.
fn tell<M: Model>(
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

/// What has been visited, and how.
struct Search {
    seen: FingerprintSet,
    /// For each state, in the order of discovery: the state before it, and which of that state's
    /// actions leads here.
    ways: Vec<(u32, u16)>,
    coverage: Coverage,
}

impl Search {
    fn new<M: Model>(initial: &M) -> Self {
        let mut seen = FingerprintSet::default();
        seen.insert(fingerprint(initial));
        let coverage = Coverage { states: 1, ..Coverage::default() };
        Self { seen, ways: vec![(0, 0)], coverage }
    }

    /// Visits all states one action away; new ones go to `next`.
    fn expand<M: Model>(
        &mut self,
        index: u32,
        state: &M,
        next: &mut Vec<(u32, M)>,
    ) -> Result<(), (u32, Violation)> {
        let actions = state.enabled();
        if actions.is_empty() {
            self.coverage.ends += 1;
            if let Some(violation) = state.stuck() {
                return Err((index, violation));
            }
        }
        for (choice, action) in actions.into_iter().enumerate() {
            let mut after = state.clone();
            after.apply(action);
            self.coverage.transitions += 1;
            if !self.seen.insert(fingerprint(&after)) {
                continue;
            }
            let found = self.ways.len() as u32;
            self.ways.push((index, choice as u16));
            self.coverage.states += 1;
            if let Some(violation) = after.violation() {
                return Err((found, violation));
            }
            next.push((found, after));
        }
        Ok(())
    }

    /// The failure of a state, with the trace and transcript that lead to it.
    fn failure<M: Model>(&self, initial: &M, at: u32, violation: Violation) -> Failure<M::Action> {
        let mut choices = Vec::new();
        let mut index = at;
        while index != 0 {
            let (before, choice) = self.ways[index as usize];
            choices.push(choice);
            index = before;
        }
        let (mut state, mut trace) = (initial.clone(), Vec::new());
        for choice in choices.into_iter().rev() {
            let action = state.enabled()[usize::from(choice)].clone();
            trace.push(action.clone());
            state.apply(action);
        }
        tell(initial, trace, violation, self.coverage)
    }
}

fn fingerprint(state: &impl Hash) -> u128 {
    let mut hasher = Fingerprint::default();
    state.hash(&mut hasher);
    hasher.value()
}

/// Part of a state that most actions leave as it is: it is copied when it is changed, and hashed once.
#[derive(Clone, Debug)]
pub struct CopyOnWrite<T>(Rc<Hashed<T>>);

#[derive(Clone, Debug)]
struct Hashed<T> {
    value: T,
    /// Of the value, when it has been asked for since the last change.
    fingerprint: Cell<Option<u128>>,
}

impl<T> CopyOnWrite<T> {
    /// Holds this.
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
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
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

/// A set of fingerprints: open addressing over them alone, for they are uniform already.
#[derive(Default)]
struct FingerprintSet {
    /// A power of two of places; 0 is an empty one.
    places: Vec<u128>,
    len: usize,
}

impl FingerprintSet {
    /// Adds a fingerprint; false when it was there.
    fn insert(&mut self, fingerprint: u128) -> bool {
        if self.len * 4 >= self.places.len() * 3 {
            self.grow();
        }
        let fingerprint = fingerprint.max(1);
        let mask = self.places.len() - 1;
        let mut place = (fingerprint >> 64) as usize & mask;
        while self.places[place] != 0 {
            if self.places[place] == fingerprint {
                return false;
            }
            place = (place + 1) & mask;
        }
        self.places[place] = fingerprint;
        self.len += 1;
        true
    }

    fn grow(&mut self) {
        let larger = (self.places.len() * 2).max(1 << 10);
        let old = std::mem::replace(&mut self.places, vec![0; larger]);
        self.len = 0;
        for fingerprint in old.into_iter().filter(|place| *place != 0) {
            self.insert(fingerprint);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clocks that go round; wrong when both show `forbidden`.
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
    fn finds_a_shortest_trace_and_tells_it() {
        let clocks = Clocks { forbidden: Some(3), ..Clocks::new(12) };
        let failure = Explorer::new().explore(&clocks).failure().expect("a failure");
        assert_eq!(failure.trace.len(), 6);
        assert_eq!(failure.transcript.lines().count(), 8);
        assert!(failure.transcript.starts_with("both show the forbidden hour\n"));
    }

    #[test]
    fn finds_where_nothing_is_enabled() {
        let clocks = Clocks { stops: true, ..Clocks::new(5) };
        let failure = Explorer::new().explore(&clocks).failure().expect("a failure");
        assert_eq!(failure.violation, Violation::new("no hand moves"));
        assert_eq!(failure.trace.len(), 8);
    }

    #[test]
    fn walks_far_and_repeats_itself() {
        let clocks = Clocks { forbidden: Some(29), ..Clocks::new(30) };
        assert_eq!(walk(&clocks, 1, 40).map_err(|failure| failure.transcript), Ok(40));
        let fail = |seed| walk(&clocks, seed, 1_000_000).expect_err("meets the hour some day");
        assert_eq!(fail(7).trace, fail(7).trace);
        assert_ne!(fail(7).trace, fail(8).trace);
        assert!(fail(7).transcript.starts_with("walk with seed 7: both show"));
    }

    #[test]
    fn keeps_to_its_bounds_and_reports_progress() {
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
