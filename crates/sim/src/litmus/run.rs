//! Running litmus tests: the placement of threads and variables, subjects, and drivers.

use super::program::{Instruction, Litmus, LitmusOutcome};
use super::report::Observations;
use crate::random::Random;
use std::fmt;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

/// The location of a variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Spot {
    /// Number of the home node, from 0.
    pub home: u16,
    /// Number of the line at the home; variables with equal home and line share it.
    pub line: u16,
    /// Index of the 64-bit word in the line.
    pub word: u16,
}

/// The node of each thread, and the location of each variable.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Placement {
    /// Short name for tables.
    pub name: &'static str,
    /// Number of nodes.
    pub nodes: u16,
    /// Node of each thread.
    pub threads: Vec<u16>,
    /// Location of each variable.
    pub variables: Vec<Spot>,
}

impl Placement {
    /// Returns the placements for a test: all variables on one line, on lines of one home, on lines of homes that
    /// have threads, at a home without threads, and with two threads on a node.
    pub fn all(litmus: &Litmus) -> Vec<Self> {
        let threads = litmus.threads.len() as u16;
        let nodes = threads.max(2);
        let apart: Vec<u16> = (0..threads).collect();
        let paired: Vec<u16> = (0..threads).map(|thread| thread / 2).collect();
        let half = threads.div_ceil(2).max(2);
        let place = |name, nodes, threads: &[u16], spot: fn(u16, u16) -> Spot| Self {
            name,
            nodes,
            threads: threads.to_vec(),
            variables: (0..litmus.variables() as u16).map(|one| spot(one, nodes)).collect(),
        };
        vec![
            place("one-line", nodes, &apart, |variable, _| spot(0, 0, variable)),
            place("one-home", nodes, &apart, |variable, _| spot(0, variable, 0)),
            place("many-homes", nodes, &apart, |variable, nodes| {
                spot(variable % nodes, variable / nodes, 0)
            }),
            place("far-home", nodes + 1, &apart, |variable, nodes| spot(nodes - 1, variable, 0)),
            place("two-a-node", half, &paired, |variable, nodes| {
                spot(variable % nodes, variable / nodes, 0)
            }),
        ]
    }

    /// Returns the distinct lines, as (home, line).
    pub fn lines(&self) -> Vec<(u16, u16)> {
        let mut lines: Vec<_> = self.variables.iter().map(|spot| (spot.home, spot.line)).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }
}

const fn spot(home: u16, line: u16, word: u16) -> Spot {
    Spot { home, line, word }
}

/// Runs litmus programs step by step on the driver's thread, for example on a simulated cluster.
///
/// Threads of the program are numbered from 0 and keep their program order: the driver starts a thread's next
/// instruction after the previous one is done.
pub trait LitmusSubject {
    /// Creates variables with the value 0 for a new run. No operation of the previous run is in flight.
    ///
    /// # Errors
    /// The reason why the placement is impossible.
    fn place(&mut self, placement: &Placement) -> Result<(), String>;

    /// Starts or continues an instruction of a thread. Returns `Some` when it is done, with the value for the
    /// register (any value for other instructions). After `None` it is called again with the same instruction.
    fn perform(&mut self, thread: usize, instruction: Instruction) -> Option<u64>;

    /// Performs one small step of the environment; false if none is pending.
    fn advance(&mut self) -> bool;

    /// Performs an action that programs must not notice: evicts a line, moves its owner. The driver calls it at
    /// random times.
    fn disturb(&mut self, random: &mut Random);

    /// Returns the value of a variable at quiescence.
    fn value(&mut self, variable: u8) -> u64;

    /// Returns the information to reproduce the current run, in one line.
    fn reproduce(&self) -> String;
}

/// Frequencies of the driver's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Steps per thousand that perform an instruction.
    pub perform_per_mille: u32,
    /// Steps per thousand that disturb; the rest advance the subject.
    pub disturb_per_mille: u32,
    /// Number of disturbances completed before the threads start, so that variables are in all coherence states: with
    /// empty caches, programs rarely show any order but program order.
    pub disturbances_before: u32,
    /// Number of steps after which an unfinished run counts as stuck.
    pub steps_max: u64,
}

impl Pace {
    /// Draws a pace: sometimes fast threads, sometimes a fast environment.
    pub fn draw(random: &mut Random) -> Self {
        Self {
            perform_per_mille: *random.pick(&[100, 300, 600, 950]),
            disturb_per_mille: *random.pick(&[0, 20, 100]),
            disturbances_before: *random.pick(&[0, 4, 16]),
            steps_max: 1_000_000,
        }
    }
}

/// A run that did not end, or could not begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stuck(pub String);

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A running program on a subject.
struct LitmusWalk<'a, S: ?Sized> {
    litmus: &'static Litmus,
    subject: &'a mut S,
    next: Vec<usize>,
    registers: Vec<Vec<u64>>,
    /// Relative speed of each thread.
    weights: Vec<u64>,
}

impl<S: LitmusSubject + ?Sized> LitmusWalk<'_, S> {
    /// Returns the threads that have not ended.
    fn running(&self) -> Vec<usize> {
        let all = 0..self.litmus.threads.len();
        all.filter(|thread| self.next[*thread] < self.litmus.threads[*thread].len()).collect()
    }

    /// Performs the next instruction of a random running thread, weighted by speed.
    fn perform_one(&mut self, running: &[usize], random: &mut Random) {
        let all = running.iter().map(|thread| self.weights[*thread]).sum();
        let mut draw = random.below(all);
        for thread in running {
            let weight = self.weights[*thread];
            if draw < weight {
                self.perform(*thread);
                return;
            }
            draw -= weight;
        }
    }

    fn perform(&mut self, thread: usize) {
        let instruction = self.litmus.threads[thread][self.next[thread]];
        let Some(value) = self.subject.perform(thread, instruction) else {
            return;
        };
        self.next[thread] += 1;
        if instruction.fills_register() {
            self.registers[thread].push(value);
        }
    }
}

/// Runs a test once, in an order drawn from `random`.
///
/// # Errors
/// [`Stuck`] if it cannot begin or does not end; the text contains the line that reproduces it.
pub fn walk<S: LitmusSubject + ?Sized>(
    litmus: &'static Litmus,
    subject: &mut S,
    placement: &Placement,
    random: &mut Random,
) -> Result<LitmusOutcome, Stuck> {
    subject.place(placement).map_err(Stuck)?;
    let pace = Pace::draw(random);
    for _ in 0..pace.disturbances_before {
        subject.disturb(random);
        while subject.advance() {}
    }
    let threads = litmus.threads.len();
    let mut walk = LitmusWalk {
        litmus,
        subject,
        next: vec![0; threads],
        registers: vec![Vec::new(); threads],
        weights: (0..threads).map(|_| *random.pick(&[1, 4, 32])).collect(),
    };
    for _ in 0..pace.steps_max {
        let running = walk.running();
        if running.is_empty() {
            while walk.subject.advance() {}
            let variables = 0..litmus.variables() as u8;
            return Ok(LitmusOutcome {
                memory: variables.map(|variable| walk.subject.value(variable)).collect(),
                registers: walk.registers.concat(),
            });
        }
        if random.chance(pace.disturb_per_mille) {
            walk.subject.disturb(random);
        } else if random.chance(pace.perform_per_mille) {
            walk.perform_one(&running, random);
        } else if !walk.subject.advance() {
            // No event is pending: only the threads can continue.
            walk.perform_one(&running, random);
        }
    }
    let at: Vec<_> = walk.next.iter().map(ToString::to_string).collect();
    Err(Stuck(format!(
        "{litmus} in {}: threads stay at {}; {}",
        placement.name,
        at.join(","),
        walk.subject.reproduce()
    )))
}

/// Runs a test `runs` times over all its placements, each run with a different seed.
///
/// # Errors
/// [`Stuck`] from the first run that does not end.
pub fn observe<S: LitmusSubject + ?Sized>(
    litmus: &'static Litmus,
    subject: &mut S,
    seed: u64,
    runs: u64,
) -> Result<Observations, Stuck> {
    let placements = Placement::all(litmus);
    let mut seen = Observations::new();
    for run in 0..runs {
        let mut random = Random::new(seed.wrapping_add(run));
        let placement = &placements[run as usize % placements.len()];
        let outcome = walk(litmus, subject, placement, &mut random)
            .map_err(|stuck| Stuck(format!("seed {}: {stuck}", seed.wrapping_add(run))))?;
        *seen.entry(outcome).or_default() += 1;
    }
    Ok(seen)
}

/// Runs litmus programs on real threads, on a real cluster.
pub trait FreeSubject: Sync {
    /// Creates variables with the value 0 for round `round`, while no thread runs.
    ///
    /// # Errors
    /// The reason why the placement is impossible.
    fn place(&self, placement: &Placement, round: u64) -> Result<(), String>;

    /// Performs an instruction of a thread and returns the value for the register (any value for other instructions).
    /// Always called on the same thread for one `thread`.
    fn perform(&self, thread: usize, instruction: Instruction) -> u64;

    /// Returns the value of a variable after all threads have ended and their writes are visible.
    fn value(&self, variable: u8) -> u64;
}

/// Runs a test `rounds` times in one placement, each of its threads on a separate thread. Random pauses skew the
/// threads against each other.
///
/// # Errors
/// [`Stuck`] if the placement is impossible.
pub fn run_free<S: FreeSubject + ?Sized>(
    litmus: &'static Litmus,
    subject: &S,
    placement: &Placement,
    seed: u64,
    rounds: u64,
) -> Result<Observations, Stuck> {
    let threads = litmus.threads.len();
    let registers: Vec<AtomicU64> = (0..litmus.registers()).map(|_| AtomicU64::new(0)).collect();
    let [start, end] = [(); 2].map(|()| Barrier::new(threads + 1));
    let mut seen = Observations::new();
    let mut result = Ok(());
    let stop = AtomicU64::new(u64::MAX);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (registers, start, end, stop) = (&registers, &start, &end, &stop);
            scope.spawn(move || {
                let mut random = Random::new(seed ^ (thread as u64) << 32);
                for round in 0.. {
                    start.wait();
                    if round >= stop.load(Ordering::Acquire) {
                        return;
                    }
                    perform_all(litmus, subject, thread, registers, &mut random);
                    end.wait();
                }
            });
        }
        for round in 0..rounds {
            result = subject.place(placement, round).map_err(Stuck);
            if result.is_err() {
                break;
            }
            stop.store(round + 1, Ordering::Release);
            start.wait();
            end.wait();
            let variables = 0..litmus.variables() as u8;
            let outcome = LitmusOutcome {
                registers: registers.iter().map(|one| one.load(Ordering::Acquire)).collect(),
                memory: variables.map(|variable| subject.value(variable)).collect(),
            };
            *seen.entry(outcome).or_default() += 1;
        }
        stop.store(0, Ordering::Release);
        start.wait();
    });
    result.map(|()| seen)
}

fn perform_all<S: FreeSubject + ?Sized>(
    litmus: &'static Litmus,
    subject: &S,
    thread: usize,
    registers: &[AtomicU64],
    random: &mut Random,
) {
    let mut register = litmus.first_register(thread);
    for instruction in litmus.threads[thread] {
        for _ in 0..skew(random) {
            std::hint::spin_loop();
        }
        let value = subject.perform(thread, *instruction);
        if instruction.fills_register() {
            registers[register].store(value, Ordering::Release);
            register += 1;
        }
    }
}

/// Draws a pause: mostly none, sometimes up to some microseconds.
fn skew(random: &mut Random) -> u64 {
    if random.chance(300) {
        let most = 1 << random.below(10);
        random.below(most)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CATALOG, LitmusReport, MemoryModel, ModelVerdict};
    use super::*;
    use std::collections::VecDeque;
    use std::sync::Mutex;

    /// One memory with a store buffer per thread, drained in any order or only from the oldest write; or without
    /// buffers. With `stale` it is defective: a read may return the previous value.
    #[derive(Default)]
    struct Toy {
        pso: bool,
        stale: bool,
        memory: Vec<(u64, u64)>,
        buffers: Vec<VecDeque<(u8, u64)>>,
        random: Option<Random>,
        /// The variable to which writes are slow in this run.
        slow: u8,
    }

    impl LitmusSubject for Toy {
        fn place(&mut self, placement: &Placement) -> Result<(), String> {
            self.memory = vec![(0, 0); placement.variables.len()];
            self.buffers = vec![VecDeque::new(); placement.threads.len()];
            self.slow = self.random.get_or_insert(Random::new(1)).below(4) as u8;
            Ok(())
        }

        fn perform(&mut self, thread: usize, instruction: Instruction) -> Option<u64> {
            let Some(variable) = instruction.variable() else {
                return self.buffers[thread].is_empty().then_some(0);
            };
            if let Instruction::Write { value, .. } = instruction {
                self.buffers[thread].push_back((variable, value));
                return Some(0);
            }
            if instruction.is_atomic() && !self.buffers[thread].is_empty() {
                return None;
            }
            let mut own = self.buffers[thread].iter().rev();
            let own = own.find(|(other, _)| *other == variable);
            let word = &mut self.memory[usize::from(variable)];
            let (now, before) = *word;
            if instruction.is_atomic() {
                *word = (instruction.apply(now), now);
            }
            let stale = self.stale && self.random.get_or_insert(Random::new(1)).chance(500);
            Some(own.map_or(if stale { before } else { now }, |(_, value)| *value))
        }

        fn advance(&mut self) -> bool {
            let random = self.random.get_or_insert(Random::new(1));
            let thread = random.index(self.buffers.len());
            let buffer = &mut self.buffers[thread];
            let at = if self.pso { random.index(buffer.len().max(1)) } else { 0 };
            let older = |at: usize| buffer.iter().take(at).any(|one| one.0 == buffer[at].0);
            let slow = buffer.get(at).is_some_and(|one| one.0 == self.slow);
            if at < buffer.len()
                && !older(at)
                && !(slow && random.chance(900))
                && let Some((variable, value)) = buffer.remove(at)
            {
                let word = &mut self.memory[usize::from(variable)];
                *word = (value, word.0);
            }
            self.buffers.iter().any(|buffer| !buffer.is_empty())
        }

        fn disturb(&mut self, _: &mut Random) {}

        fn value(&mut self, variable: u8) -> u64 {
            self.memory[usize::from(variable)].0
        }

        fn reproduce(&self) -> String {
            "toy".to_owned()
        }
    }

    fn report(litmus: &'static Litmus, toy: &mut Toy, model: MemoryModel) -> LitmusReport {
        let seen = observe(litmus, toy, 1, 3_000).expect("every run ends");
        LitmusReport::new(litmus, "toy", model, &seen)
    }

    #[test]
    fn subject_as_weak_as_model_shows_every_witness() {
        for (pso, model) in [(true, MemoryModel::Pso), (false, MemoryModel::Tso)] {
            for litmus in CATALOG {
                let mut toy = Toy { pso, ..Toy::default() };
                let report = report(litmus, &mut toy, model).holds().expect("nothing forbidden");
                let wanted = litmus.verdict(model) == ModelVerdict::Allowed;
                assert_eq!(report.witness_seen() > 0, wanted, "{report}");
            }
        }
    }

    #[test]
    fn defective_subject_is_detected() {
        let named = |name: &str| CATALOG.iter().find(|litmus| litmus.name == name).unwrap();
        for name in ["CoRR", "SB+fences", "MP+fences", "IRIW", "ISA2+fences"] {
            let mut toy = Toy { pso: true, stale: true, ..Toy::default() };
            assert!(report(named(name), &mut toy, MemoryModel::Pso).holds().is_err(), "{name}");
        }
        let mut weak = Toy { pso: true, ..Toy::default() };
        assert!(report(named("MP"), &mut weak, MemoryModel::Tso).holds().is_err());
    }

    /// Real memory under a lock.
    struct Locked(Mutex<Vec<u64>>);

    impl FreeSubject for Locked {
        fn place(&self, placement: &Placement, _: u64) -> Result<(), String> {
            *self.0.lock().unwrap() = vec![0; placement.variables.len()];
            Ok(())
        }

        fn perform(&self, _: usize, instruction: Instruction) -> u64 {
            let Some(variable) = instruction.variable() else {
                return 0;
            };
            let word = &mut self.0.lock().unwrap()[usize::from(variable)];
            std::mem::replace(word, instruction.apply(*word))
        }

        fn value(&self, variable: u8) -> u64 {
            self.0.lock().unwrap()[usize::from(variable)]
        }
    }

    #[test]
    fn free_threads_run_every_round() {
        for litmus in CATALOG.iter().take(6) {
            let subject = Locked(Mutex::default());
            let placement = &Placement::all(litmus)[0];
            let seen = run_free(litmus, &subject, placement, 7, 200).unwrap();
            let report = LitmusReport::new(litmus, "locked", MemoryModel::Tso, &seen);
            assert_eq!(report.holds().unwrap().runs(), 200);
        }
    }

    #[test]
    fn placements_fit_their_test() {
        for litmus in CATALOG {
            for placement in Placement::all(litmus) {
                assert_eq!(placement.threads.len(), litmus.threads.len());
                assert_eq!(placement.variables.len(), litmus.variables());
                assert!(placement.threads.iter().all(|node| *node < placement.nodes));
                assert!(placement.variables.iter().all(|spot| spot.home < placement.nodes));
                assert!(!placement.lines().is_empty());
            }
        }
    }
}
