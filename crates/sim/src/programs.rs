//! Programs that block, in a simulated network: each is a thread, and one of them runs at a time.
//!
//! The seed decides after every poll, pause and wait which of them runs next, or whether the network performs its next
//! event first. Programs read the network's clock and draw from the seed ([`farside_fabric::runtime`]), so that the
//! same seed, programs and faults give the same run. What they do between two such points is one step; shuttle
//! and loom search schedules within a step.
//!
//! A program that is killed loses its node at once; then its thread unwinds, while nothing that it calls has an
//! effect.

use crate::fabric::SimNet;
use crate::scheduled::{self, Scheduled};
use farside_base::Random;
use farside_fabric::runtime::{Runtime, enter};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Steps after which a run has failed.
const STEPS_MAX: u64 = 5_000_000;
/// What a yield takes.
const YIELD: Duration = Duration::from_nanos(100);
/// What the clock of a killed program shows, so that no deadline holds it.
const END_OF_TIME_NS: u64 = u64::MAX / 2;

/// What happens to a node or its links at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The process of a node dies, as by kill -9.
    Kill(String),
    /// The programs of a node are stopped for a time, as by SIGSTOP; its adapter works on.
    Stop(String, Duration),
    /// The links between two nodes are lost; new ones may be established.
    Cut(String, String),
}

/// Programs of a [`SimNet`], on threads of which one runs at a time.
pub struct Programs {
    scheduler: Arc<Scheduler>,
}

struct Scheduler {
    net: SimNet,
    state: Mutex<SchedulerState>,
    driver: Condvar,
}

struct SchedulerState {
    random: Random,
    programs: Vec<SimProgram>,
    running: Runner,
    /// Steps of programs and events of the network so far.
    steps: u64,
    /// Of a thousand steps, those of the network while a program could run.
    net_per_mille: u32,
    /// By the steps after which they happen.
    faults: VecDeque<(u64, Fault)>,
    failure: Option<String>,
    /// Whether the programs that have not ended are killed one after the other.
    is_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Runner {
    Driver,
    Program(usize),
}

struct SimProgram {
    node: String,
    phase: ProgramPhase,
    /// Whether the run ends without waiting for it.
    is_service: bool,
    is_killed: bool,
    stopped_until_ns: u64,
    woken: Arc<Condvar>,
    thread: Option<JoinHandle<()>>,
}

enum ProgramPhase {
    Ready,
    /// Until a time, or until this is set.
    Waiting(u64, Option<Arc<AtomicBool>>),
    Joining(usize),
    Ended,
}

/// The payload with which a killed program unwinds.
struct Killed;

/// The calling program.
#[derive(Clone)]
struct RunningProgram {
    scheduler: Arc<Scheduler>,
    program: usize,
}

impl Programs {
    /// Returns a set of programs of this net, whose seed decides their schedule.
    pub fn new(net: &SimNet) -> Self {
        let mut random = Random::new(net.seed() ^ 0x7072_6f67_7261_6d73);
        let net_per_mille = *random.pick(&[100, 500, 900]);
        let state = SchedulerState {
            random,
            programs: Vec::new(),
            running: Runner::Driver,
            steps: 0,
            net_per_mille,
            faults: VecDeque::new(),
            failure: None,
            is_over: false,
        };
        let (state, driver) = (Mutex::new(state), Condvar::new());
        Self { scheduler: Arc::new(Scheduler { net: net.clone(), state, driver }) }
    }

    /// Adds a program of a node. [`run`](Self::run) waits for its end.
    ///
    /// # Errors
    /// Those of the system, for its thread.
    pub fn add(&self, node: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.scheduler.start(node, "program", false, Box::new(body)).map(drop)
    }

    /// Adds a program that lasts as long as the run.
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn add_service(&self, node: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        self.scheduler.start(node, "service", true, Box::new(body)).map(drop)
    }

    /// Plans a fault after this number of steps of programs and events of the network. A run that ends before is without
    /// it.
    pub fn after(&self, steps: u64, fault: Fault) {
        let mut state = self.scheduler.lock();
        let place = state.faults.partition_point(|(earlier, _)| *earlier <= steps);
        state.faults.insert(place, (steps, fault));
    }

    /// Runs the programs until all that are not services have ended, then ends the services.
    ///
    /// # Errors
    /// A text, of the first program that panicked, or if none can run any more, or they do not end.
    pub fn run(&self) -> Result<(), String> {
        let mut state = self.scheduler.lock();
        self.scheduler.hand_over(&mut state, None);
        state = self.scheduler.wait_for_driver(state);
        state.is_over = true;
        for program in 0..state.programs.len() {
            state.programs[program].is_killed = true;
            if !matches!(state.programs[program].phase, ProgramPhase::Ended) {
                state.running = Runner::Program(program);
                state.programs[program].woken.notify_one();
                state = self.scheduler.wait_for_driver(state);
            }
        }
        let threads: Vec<_> =
            state.programs.iter_mut().filter_map(|program| program.thread.take()).collect();
        let failure = state.failure.take();
        drop(state);
        for thread in threads {
            // Its panic was taken before.
            let _ = thread.join();
        }
        failure.map_or(Ok(()), Err)
    }
}

impl fmt::Debug for Programs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Programs({})", self.scheduler.lock().programs.len())
    }
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_driver<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
    ) -> MutexGuard<'a, SchedulerState> {
        while state.running != Runner::Driver {
            state = self.driver.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    fn start(
        self: &Arc<Self>,
        node: &str,
        name: &str,
        is_service: bool,
        body: Box<dyn FnOnce() + Send>,
    ) -> io::Result<usize> {
        let mut state = self.lock();
        let program = state.programs.len();
        let handle = RunningProgram { scheduler: Arc::clone(self), program };
        let thread = std::thread::Builder::new().name(format!("{node}-{name}"));
        let thread = thread.spawn(move || handle.main(body))?;
        state.programs.push(SimProgram {
            node: node.to_owned(),
            phase: ProgramPhase::Ready,
            is_service,
            is_killed: false,
            stopped_until_ns: 0,
            woken: Arc::default(),
            thread: Some(thread),
        });
        Ok(program)
    }

    /// Ends a step of a program and waits for its next one.
    fn switch(&self, program: usize, phase: ProgramPhase) {
        let mut state = self.lock();
        state.programs[program].phase = phase;
        self.hand_over(&mut state, Some(program));
        drop(self.wait_to_run(state, program));
    }

    /// Waits until a program is the running one. A killed one unwinds.
    fn wait_to_run<'a>(
        &'a self,
        mut state: MutexGuard<'a, SchedulerState>,
        program: usize,
    ) -> MutexGuard<'a, SchedulerState> {
        let woken = Arc::clone(&state.programs[program].woken);
        while state.running != Runner::Program(program) {
            state = woken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.programs[program].phase = ProgramPhase::Ready;
        if state.programs[program].is_killed {
            drop(state);
            resume_unwind(Box::new(Killed));
        }
        state
    }

    /// Lets the next program run, or the driver.
    fn hand_over(&self, state: &mut SchedulerState, from: Option<usize>) {
        state.running = if state.is_over { Runner::Driver } else { self.next(state) };
        match state.running {
            Runner::Driver => self.driver.notify_one(),
            Runner::Program(next) if Some(next) != from => state.programs[next].woken.notify_one(),
            Runner::Program(_) => {}
        }
    }

    /// Performs events of the network until a program is chosen.
    fn next(&self, state: &mut SchedulerState) -> Runner {
        loop {
            state.steps += 1;
            self.perform_faults(state);
            let has_ended = |program: &SimProgram| matches!(program.phase, ProgramPhase::Ended);
            if state.programs.iter().all(|one| one.is_service || has_ended(one)) {
                return Runner::Driver;
            }
            if let Some(killed) =
                state.programs.iter().position(|one| one.is_killed && !has_ended(one))
            {
                return Runner::Program(killed);
            }
            if state.steps > STEPS_MAX {
                state.failure.get_or_insert(format!("no end after {STEPS_MAX} steps"));
            }
            if state.failure.is_some() {
                return Runner::Driver;
            }
            let now_ns = self.net.now_ns();
            let ready: Vec<usize> =
                (0..state.programs.len()).filter(|one| state.can_run(*one, now_ns)).collect();
            let is_of_net = ready.is_empty() || state.random.chance(state.net_per_mille);
            if is_of_net && self.net.step() {
                continue;
            }
            if !ready.is_empty() {
                return Runner::Program(*state.random.pick(&ready));
            }
            match state.next_time_ns(now_ns) {
                Some(next_ns) => drop(self.net.run_until_ns(next_ns)),
                None => {
                    state.failure.get_or_insert("no program can run".to_owned());
                }
            }
        }
    }

    fn perform_faults(&self, state: &mut SchedulerState) {
        let now_ns = self.net.now_ns();
        let steps = state.steps;
        while let Some((_, fault)) = state.faults.pop_front_if(|(after, _)| *after <= steps) {
            match fault {
                Fault::Kill(node) => {
                    self.net.kill(&node);
                    for program in state.of_node(&node) {
                        program.is_killed = true;
                    }
                }
                Fault::Stop(node, time) => {
                    for program in state.of_node(&node) {
                        program.stopped_until_ns = now_ns + time.as_nanos() as u64;
                    }
                }
                Fault::Cut(one, other) => drop(self.net.cut(&one, &other)),
            }
        }
    }
}

impl SchedulerState {
    fn of_node(&mut self, node: &str) -> impl Iterator<Item = &mut SimProgram> {
        self.programs.iter_mut().filter(move |program| program.node == node)
    }

    fn can_run(&self, program: usize, now_ns: u64) -> bool {
        let one = &self.programs[program];
        one.stopped_until_ns <= now_ns
            && match &one.phase {
                ProgramPhase::Ready => true,
                ProgramPhase::Waiting(until_ns, permit) => {
                    let is_set = |permit: &Arc<AtomicBool>| permit.load(Ordering::Relaxed);
                    *until_ns <= now_ns || permit.as_ref().is_some_and(is_set)
                }
                ProgramPhase::Joining(other) => {
                    matches!(self.programs[*other].phase, ProgramPhase::Ended)
                }
                ProgramPhase::Ended => false,
            }
    }

    /// Returns the next time at which a program can run, while the network is idle.
    fn next_time_ns(&self, now_ns: u64) -> Option<u64> {
        let of_program = |one: &SimProgram| match one.phase {
            ProgramPhase::Waiting(until_ns, _) if until_ns < END_OF_TIME_NS => {
                Some(until_ns.max(one.stopped_until_ns))
            }
            ProgramPhase::Ended => None,
            _ => Some(one.stopped_until_ns),
        };
        let times = self.programs.iter().filter_map(of_program);
        times.filter(|time_ns| *time_ns > now_ns).min()
    }
}

impl RunningProgram {
    /// Runs the thread of a program.
    fn main(self, body: Box<dyn FnOnce() + Send>) {
        enter(Arc::new(self.clone()));
        scheduled::enter(Arc::new(self.clone()));
        let result = catch_unwind(AssertUnwindSafe(|| {
            drop(self.scheduler.wait_to_run(self.scheduler.lock(), self.program));
            body();
        }));
        let mut state = self.scheduler.lock();
        if let Err(payload) = result
            && !payload.is::<Killed>()
        {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
            let node = &state.programs[self.program].node;
            let text = format!("{node}: {}", text.as_deref().unwrap_or("a panic"));
            state.failure.get_or_insert(text);
        }
        state.programs[self.program].phase = ProgramPhase::Ended;
        self.scheduler.hand_over(&mut state, None);
    }

    fn end_ns(&self, timeout: Duration) -> u64 {
        let timeout_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        self.scheduler.net.now_ns().saturating_add(timeout_ns).min(END_OF_TIME_NS)
    }
}

impl Scheduled for RunningProgram {
    fn yield_now(&self) {
        self.scheduler.switch(self.program, ProgramPhase::Ready);
    }

    fn wait(&self, permit: &Arc<AtomicBool>, timeout: Option<Duration>) -> bool {
        let until_ns = self.end_ns(timeout.unwrap_or(Duration::MAX));
        let phase = ProgramPhase::Waiting(until_ns, Some(Arc::clone(permit)));
        if !permit.load(Ordering::Relaxed) {
            self.scheduler.switch(self.program, phase);
        }
        permit.swap(false, Ordering::Relaxed)
    }
}

impl Runtime for RunningProgram {
    fn now_ns(&self) -> u64 {
        if std::thread::panicking() { END_OF_TIME_NS } else { self.scheduler.net.now_ns() }
    }

    fn pause(&self, timeout: Duration) {
        if !std::thread::panicking() {
            let until_ns = self.end_ns(timeout.max(YIELD));
            self.scheduler.switch(self.program, ProgramPhase::Waiting(until_ns, None));
        }
    }

    fn random(&self) -> u64 {
        self.scheduler.lock().random.word()
    }

    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<u64> {
        let state = self.scheduler.lock();
        let SimProgram { node, is_service, .. } = &state.programs[self.program];
        let (node, is_service) = (node.clone(), *is_service);
        drop(state);
        Ok(self.scheduler.start(&node, name, is_service, body)? as u64)
    }

    fn join(&self, thread: u64) {
        if !std::thread::panicking() {
            self.scheduler.switch(self.program, ProgramPhase::Joining(thread as usize));
        }
    }
}
