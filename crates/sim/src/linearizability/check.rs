//! The search of the linearizability checker.

use super::specification::Specification;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// One operation of a history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HistoryCall<O, A> {
    /// The calling process; only for messages.
    pub process: u64,
    /// The operation.
    pub operation: O,
    /// Time of the invocation.
    pub invoke_ns: u64,
    /// Time of the return and the answer; `None` if it is unknown whether it took effect.
    pub returned: Option<(u64, A)>,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// An order exists that explains every answer.
    Linearizable,
    /// No order explains every answer.
    NotLinearizable(CheckFailure),
    /// The bound of configurations was reached first.
    GaveUp {
        /// The undecided part.
        part: String,
        /// Number of visited configurations.
        configurations: usize,
    },
}

impl Verdict {
    /// Returns `Ok` if the history is linearizable.
    ///
    /// # Errors
    /// The failure as text, or that the check gave up.
    pub fn holds(&self) -> Result<(), String> {
        match self {
            Self::Linearizable => Ok(()),
            Self::NotLinearizable(failure) => Err(failure.to_string()),
            Self::GaveUp { part, configurations } => {
                Err(format!("{part}: undecided after {configurations} configurations"))
            }
        }
    }
}

/// The longest explained prefix, and the operations that could not continue it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckFailure {
    /// The key or object; empty if there is only one.
    pub part: String,
    /// Maximum number of operations that could be ordered.
    pub explained: usize,
    /// Number of operations.
    pub operations: usize,
    /// The state after the ordered operations.
    pub state: String,
    /// The candidates for the next operation, none of which fits the state.
    pub next: Vec<String>,
}

impl fmt::Display for CheckFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "not linearizable: {} {} of {} operations explained, then {}, and next would be one of",
            self.part, self.explained, self.operations, self.state
        )?;
        for call in &self.next {
            writeln!(f, "  {call}")?;
        }
        Ok(())
    }
}

/// Maximum number of configurations of one part before the check ends without a verdict.
const CONFIGURATIONS_MAX: usize = 5_000_000;

/// Checks a history of one object from its initial state.
///
/// Cost: about one configuration per operation if few run at a time; in the worst case exponential in the number of
/// operations that overlap or have an unknown outcome.
pub fn check<S: Specification>(
    initial: &S,
    calls: &[HistoryCall<S::Operation, S::Answer>],
) -> Verdict {
    check_part(initial, calls, "")
}

/// Checks the part of each key of a history separately.
///
/// The verdict is that of the first part, by rising key, that fails or cannot be decided.
pub fn check_each<S: Specification, K: Ord + fmt::Debug>(
    initial: &S,
    calls: impl IntoIterator<Item = (K, HistoryCall<S::Operation, S::Answer>)>,
) -> Verdict {
    let mut parts: BTreeMap<K, Vec<_>> = BTreeMap::new();
    for (key, call) in calls {
        parts.entry(key).or_default().push(call);
    }
    for (key, calls) in &parts {
        let verdict = check_part(initial, calls, &format!("{key:?}"));
        if verdict != Verdict::Linearizable {
            return verdict;
        }
    }
    Verdict::Linearizable
}

fn check_part<S: Specification>(
    initial: &S,
    calls: &[HistoryCall<S::Operation, S::Answer>],
    part: &str,
) -> Verdict {
    let mut known: Vec<_> = calls.iter().filter(|call| call.returned.is_some()).collect();
    known.sort_by_key(|call| call.invoke_ns);
    let unknown =
        |call: &&HistoryCall<_, _>| call.returned.is_none() && !S::is_read(&call.operation);
    let mut unknown: Vec<_> = calls.iter().filter(unknown).collect();
    unknown.sort_by_key(|call| call.invoke_ns);
    Search { known, unknown, seen: HashSet::new() }.run(initial, part)
}

type Calls<'a, S> =
    Vec<&'a HistoryCall<<S as Specification>::Operation, <S as Specification>::Answer>>;

struct Search<'a, S: Specification> {
    /// Operations of known outcome, by invocation.
    known: Calls<'a, S>,
    /// Operations of unknown outcome that may have changed the state, by invocation.
    unknown: Calls<'a, S>,
    seen: HashSet<Configuration<S>>,
}

/// A set of ordered operations, and the state after them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Configuration<S> {
    /// Index of the first known operation that is not ordered.
    base: usize,
    /// Further ordered known operations, as rising distances from `base`.
    beyond: Vec<u32>,
    /// The ordered unknown operations, rising.
    taken: Vec<u32>,
    state: S,
}

/// An operation that could be next.
#[derive(Clone, Copy)]
enum Candidate {
    Known(usize),
    Unknown(usize),
}

impl<S> Configuration<S> {
    fn has(&self, known: usize) -> bool {
        known < self.base || self.beyond.binary_search(&((known - self.base) as u32)).is_ok()
    }

    fn explained(&self) -> usize {
        self.base + self.beyond.len() + self.taken.len()
    }

    fn with(&self, candidate: Candidate, state: S) -> Self {
        let mut next =
            Self { base: self.base, beyond: self.beyond.clone(), taken: self.taken.clone(), state };
        match candidate {
            Candidate::Known(known) => next.add(known),
            Candidate::Unknown(unknown) => {
                let at = next.taken.partition_point(|one| (*one as usize) < unknown);
                next.taken.insert(at, unknown as u32);
            }
        }
        next
    }

    fn add(&mut self, known: usize) {
        let distance = (known - self.base) as u32;
        let at = self.beyond.partition_point(|one| *one < distance);
        self.beyond.insert(at, distance);
        // The contiguous prefix moves into the base.
        let run = self.beyond.iter().zip(0..).take_while(|(one, at)| **one == *at).count();
        self.base += run;
        self.beyond.drain(..run);
        for one in &mut self.beyond {
            *one -= run as u32;
        }
    }
}

/// A configuration on the search path, and its untried candidates.
struct SearchFrame<S> {
    configuration: Configuration<S>,
    candidates: Vec<Candidate>,
}

impl<S: Specification> Search<'_, S> {
    fn run(mut self, initial: &S, part: &str) -> Verdict {
        let start = Configuration {
            base: 0,
            beyond: Vec::new(),
            taken: Vec::new(),
            state: initial.clone(),
        };
        let mut furthest = start.clone();
        let mut stack = vec![self.frame(start)];
        while let Some(frame) = stack.last_mut() {
            if frame.configuration.base == self.known.len() {
                return Verdict::Linearizable;
            }
            let Some(candidate) = frame.candidates.pop() else {
                stack.pop();
                continue;
            };
            let (operation, answer) = self.call(candidate);
            let Some(state) = frame.configuration.state.after(operation, answer) else {
                continue;
            };
            let next = frame.configuration.with(candidate, state);
            if !self.seen.insert(next.clone()) {
                continue;
            }
            if self.seen.len() > CONFIGURATIONS_MAX {
                return Verdict::GaveUp { part: part.to_owned(), configurations: self.seen.len() };
            }
            if next.explained() > furthest.explained() {
                furthest = next.clone();
            }
            let frame = self.frame(next);
            stack.push(frame);
        }
        Verdict::NotLinearizable(self.failure(&furthest, part))
    }

    fn call(&self, candidate: Candidate) -> (&S::Operation, Option<&S::Answer>) {
        let call = match candidate {
            Candidate::Known(known) => self.known[known],
            Candidate::Unknown(unknown) => self.unknown[unknown],
        };
        let answer = call.returned.as_ref().map(|(_, answer)| answer);
        (&call.operation, answer)
    }

    /// Returns the candidates of a configuration, the most promising last: the known operation that returned first;
    /// unknown operations are tried only if no known one helps.
    fn frame(&self, configuration: Configuration<S>) -> SearchFrame<S> {
        let mut known = Vec::new();
        let mut first_return_ns = u64::MAX;
        for (at, call) in self.known.iter().enumerate().skip(configuration.base) {
            if call.invoke_ns > first_return_ns {
                break;
            }
            if !configuration.has(at) {
                let return_ns = call.returned.as_ref().map_or(u64::MAX, |(at_ns, _)| *at_ns);
                first_return_ns = first_return_ns.min(return_ns);
                known.push((return_ns, at));
            }
        }
        // An operation precedes another only if it returned before the other was invoked.
        known.retain(|(_, at)| self.known[*at].invoke_ns <= first_return_ns);
        known.sort_unstable_by(|one, other| other.cmp(one));
        let unknown = self
            .unknown
            .iter()
            .enumerate()
            .take_while(|(_, call)| call.invoke_ns <= first_return_ns);
        let untaken = |at: &usize| configuration.taken.binary_search(&(*at as u32)).is_err();
        let unknown = unknown.map(|(at, _)| at).filter(untaken).map(Candidate::Unknown);
        let candidates = unknown.chain(known.into_iter().map(|(_, at)| Candidate::Known(at)));
        SearchFrame { candidates: candidates.collect(), configuration }
    }

    fn failure(&self, furthest: &Configuration<S>, part: &str) -> CheckFailure {
        let frame = self.frame(furthest.clone());
        let told = |candidate: &Candidate| match candidate {
            Candidate::Known(known) => format!("{:?}", self.known[*known]),
            Candidate::Unknown(unknown) => format!("{:?}", self.unknown[*unknown]),
        };
        CheckFailure {
            part: part.to_owned(),
            explained: furthest.explained(),
            operations: self.known.len() + self.unknown.len(),
            state: format!("{:?}", furthest.state),
            next: frame.candidates.iter().rev().map(told).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::specification::{Lock, LockOperation, Register, RegisterOperation};
    use super::*;
    use crate::random::Random;
    use RegisterOperation::{CompareSwap, FetchAdd, Read, Swap, Write};

    type RegisterCall = HistoryCall<RegisterOperation, u64>;

    fn call(
        process: u64,
        operation: RegisterOperation,
        from: u64,
        to: u64,
        answer: u64,
    ) -> RegisterCall {
        HistoryCall { process, operation, invoke_ns: from, returned: Some((to, answer)) }
    }

    fn pending(operation: RegisterOperation, from: u64) -> RegisterCall {
        HistoryCall { process: 99, operation, invoke_ns: from, returned: None }
    }

    #[track_caller]
    fn assert_register(calls: &[RegisterCall], linearizable: bool) {
        let verdict = check(&Register(0), calls);
        assert_eq!(verdict == Verdict::Linearizable, linearizable, "{verdict:?}");
    }

    #[test]
    fn known_histories_of_a_register() {
        // A read that overlaps a write may see it or not.
        assert_register(
            &[call(1, Write(1), 0, 10, 0), call(2, Read, 1, 2, 1), call(3, Read, 3, 4, 1)],
            true,
        );
        // Once read, a value never disappears: the new-old inversion.
        assert_register(
            &[call(1, Write(1), 0, 10, 0), call(2, Read, 1, 2, 1), call(3, Read, 3, 4, 0)],
            false,
        );
        // A write that has returned is visible.
        assert_register(&[call(1, Write(1), 0, 1, 0), call(2, Read, 2, 3, 0)], false);
        // A value that was never written is not read.
        assert_register(&[call(1, Read, 0, 1, 5)], false);
        // Two overlapping writes have one order for all processes.
        let writes = [call(1, Write(1), 0, 10, 0), call(2, Write(2), 0, 10, 0)];
        let reads = |first, second| [call(3, Read, 11, 12, first), call(4, Read, 11, 12, second)];
        assert_register(&[&writes[..], &reads(1, 1)[..]].concat(), true);
        assert_register(&[&writes[..], &reads(1, 2)[..]].concat(), false);
        // Equal times do not determine the order.
        assert_register(&[call(1, Write(1), 0, 5, 0), call(2, Read, 5, 6, 0)], true);
    }

    #[test]
    fn atomics_never_lose_an_update() {
        assert_register(&[call(1, FetchAdd(1), 0, 9, 0), call(2, FetchAdd(1), 0, 9, 1)], true);
        assert_register(&[call(1, FetchAdd(1), 0, 9, 0), call(2, FetchAdd(1), 0, 9, 0)], false);
        assert_register(
            &[call(1, CompareSwap(0, 1), 0, 9, 0), call(2, CompareSwap(0, 2), 0, 9, 1)],
            true,
        );
        assert_register(
            &[call(1, CompareSwap(0, 1), 0, 9, 0), call(2, CompareSwap(0, 2), 0, 9, 0)],
            false,
        );
        assert_register(
            &[call(1, Swap(4), 0, 1, 0), call(2, Swap(5), 2, 3, 4), call(1, Read, 4, 5, 5)],
            true,
        );
    }

    #[test]
    fn unknown_outcome_takes_effect_later_or_never() {
        let write = pending(Write(1), 5);
        assert_register(&[write.clone(), call(1, Read, 90, 91, 1)], true);
        assert_register(&[write.clone(), call(1, Read, 90, 91, 0)], true);
        assert_register(&[write.clone(), call(1, Read, 90, 91, 0), call(1, Read, 92, 93, 1)], true);
        assert_register(
            &[write.clone(), call(1, Read, 90, 91, 1), call(1, Read, 92, 93, 0)],
            false,
        );
        // Not before its invocation.
        assert_register(&[write, call(1, Read, 0, 1, 1)], false);
        // And only once.
        let add = pending(FetchAdd(1), 0);
        assert_register(&[add, call(1, Read, 1, 2, 1), call(1, Read, 3, 4, 2)], false);
    }

    #[test]
    fn failure_names_impossible_candidates() {
        let calls = [call(1, Write(1), 0, 1, 0), call(2, Read, 2, 3, 7)];
        let Verdict::NotLinearizable(failure) = check(&Register(0), &calls) else {
            panic!("7 was never written");
        };
        assert_eq!((failure.explained, failure.operations), (1, 2));
        assert_eq!(failure.next.len(), 1);
        assert!(failure.to_string().contains("Register(1)"), "{failure}");
    }

    #[track_caller]
    fn assert_lock(calls: &[(LockOperation, u64, u64, bool)], linearizable: bool) {
        let calls: Vec<_> = calls
            .iter()
            .map(|(operation, from, to, answer)| HistoryCall {
                process: 0,
                operation: *operation,
                invoke_ns: *from,
                returned: Some((*to, *answer)),
            })
            .collect();
        let verdict = check(&Lock::default(), &calls);
        assert_eq!(verdict == Verdict::Linearizable, linearizable, "{verdict:?}");
    }

    #[test]
    fn locks_exclude() {
        use LockOperation::{Read, TryRead, TryWrite, Unlock, Upgrade, Write};
        assert_lock(
            &[(Write(1), 0, 1, true), (Write(2), 0, 5, true), (Unlock(1), 2, 3, true)],
            true,
        );
        assert_lock(
            &[(Write(1), 0, 1, true), (Write(2), 0, 5, true), (Unlock(1), 6, 7, true)],
            false,
        );
        assert_lock(&[(Read(1), 0, 1, true), (Read(2), 0, 1, true)], true);
        assert_lock(&[(Read(1), 0, 1, true), (Write(2), 2, 3, true)], false);
        assert_lock(&[(Read(1), 0, 1, true), (TryWrite(2), 2, 3, false)], true);
        assert_lock(&[(Read(1), 0, 1, true), (TryRead(2), 2, 3, false)], false);
        assert_lock(&[(TryWrite(2), 2, 3, false)], false);
        assert_lock(&[(Write(1), 0, 1, false), (TryWrite(2), 2, 3, true)], true);
        assert_lock(&[(Unlock(1), 0, 1, true)], false);
        assert_lock(&[(Unlock(1), 0, 1, false)], true);
        assert_lock(
            &[(Read(1), 0, 1, true), (Upgrade(1), 2, 3, true), (TryRead(2), 4, 5, true)],
            false,
        );
        assert_lock(
            &[(Read(1), 0, 1, true), (Read(2), 0, 1, true), (Upgrade(1), 2, 3, true)],
            false,
        );
    }

    /// Returns a history that `processes` could have made on registers: effects at random times within each call;
    /// some calls are never answered. With `wrong`, one answer is altered to an impossible one.
    fn recorded(
        seed: u64,
        operations: u64,
        keys: u64,
        processes: u64,
        wrong: bool,
    ) -> Vec<(u64, RegisterCall)> {
        let mut random = Random::new(seed);
        let mut free_ns = vec![0; processes as usize];
        let mut plan = Vec::new();
        for number in 0..operations {
            let process = random.index(free_ns.len());
            let invoke_ns = free_ns[process] + random.below(20);
            let effect_ns = invoke_ns + 1 + random.below(50);
            let return_ns = effect_ns + 1 + random.below(50);
            free_ns[process] = return_ns + 1;
            plan.push((effect_ns, number, process as u64, invoke_ns, return_ns));
        }
        plan.sort_unstable();
        let mut words = vec![Register(0); keys as usize];
        let mut calls = Vec::new();
        for (_, number, process, invoke_ns, return_ns) in plan {
            let key = random.below(keys);
            let operation =
                *random.pick(&[Read, Read, Write(number), FetchAdd(number), Swap(number)]);
            let word = &mut words[key as usize];
            let before = word.0;
            *word = word.after(&operation, None).expect("a register does everything");
            let answer = if matches!(operation, Write(_)) { 0 } else { before };
            let lost = random.chance(1);
            let returned = (!lost).then_some((return_ns, answer));
            calls.push((key, HistoryCall { process, operation, invoke_ns, returned }));
        }
        if wrong {
            let reads = |(_, call): &&mut (u64, RegisterCall)| {
                call.operation == Read && call.returned.is_some()
            };
            let read = calls.iter_mut().filter(reads).last().expect("some read");
            read.1.returned = read.1.returned.map(|(at_ns, answer)| (at_ns, answer ^ 1 << 60));
        }
        calls
    }

    #[test]
    fn recorded_histories_are_linearizable_and_mutated_ones_are_not() {
        for seed in 0..40 {
            for processes in [1, 3, 6] {
                let good = recorded(seed, 400, 3, processes, false);
                assert_eq!(check_each(&Register(0), good), Verdict::Linearizable, "seed {seed}");
                let bad = recorded(seed, 400, 3, processes, true);
                let verdict = check_each(&Register(0), bad);
                assert!(matches!(verdict, Verdict::NotLinearizable(_)), "seed {seed}: {verdict:?}");
            }
        }
    }

    #[test]
    fn a_hundred_thousand_operations_are_checked() {
        let many_keys = recorded(1, 100_000, 1_000, 8, false);
        assert_eq!(check_each(&Register(0), many_keys), Verdict::Linearizable);
        let one_key = recorded(2, 20_000, 1, 4, false);
        assert_eq!(check_each(&Register(0), one_key), Verdict::Linearizable);
    }
}
