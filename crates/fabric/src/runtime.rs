//! The time, pauses, threads and random numbers of a program: those of the machine, or those of a simulation that
//! runs the calling thread as one of its programs.
//!
//! A deterministic simulation must decide everything that is not a function of its seed. Code that is to run in one
//! takes [`Instant`], [`pause`], [`spawn`] and [`random`] from here in place of those of the standard library. They
//! cost one read of a thread-local word more.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Add;
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a simulation provides to the threads that it runs.
pub trait Runtime: Send + Sync {
    /// Returns the simulated time; it rises only.
    fn now_ns(&self) -> u64;

    /// Lets other threads run, for at least this time.
    fn pause(&self, timeout: Duration);

    /// Returns the next random number of the seed.
    fn random(&self) -> u64;

    /// Starts a thread that the simulation runs too, beside the calling one; returns its number.
    ///
    /// # Errors
    /// Those of the system.
    fn spawn(&self, name: &str, body: Box<dyn FnOnce() + Send>) -> io::Result<u64>;

    /// Waits for the end of a thread that [`spawn`](Self::spawn) started.
    fn join(&self, thread: u64);
}

thread_local! {
    static RUNTIME: RefCell<Option<Arc<dyn Runtime>>> = const { RefCell::new(None) };
}

/// Makes the calling thread one of a simulation, from now on.
pub fn enter(runtime: Arc<dyn Runtime>) {
    RUNTIME.with_borrow_mut(|entered| *entered = Some(runtime));
}

/// Returns the simulation of the calling thread; none also while the thread ends.
fn entered() -> Option<Arc<dyn Runtime>> {
    RUNTIME.try_with(|entered| entered.borrow().clone()).ok().flatten()
}

/// A point in time of the program.
///
/// ```
/// use farside_fabric::runtime::Instant;
/// use std::time::Duration;
///
/// let now = Instant::now();
/// assert!(now + Duration::from_secs(1) > now);
/// assert_eq!(now.saturating_duration_since(now + Duration::from_secs(1)), Duration::ZERO);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Instant {
    ns: u64,
}

impl Instant {
    /// Returns the present.
    #[inline]
    pub fn now() -> Self {
        static START: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
        let simulated =
            RUNTIME.try_with(|entered| entered.borrow().as_ref().map(|runtime| runtime.now_ns()));
        let ns = simulated.ok().flatten().unwrap_or_else(|| START.elapsed().as_nanos() as u64);
        Self { ns }
    }

    /// Returns the nanoseconds from the first reading of the clock, or the start of the simulation.
    pub const fn ns(&self) -> u64 {
        self.ns
    }

    /// Returns the time since then; zero if it is in the future.
    pub fn elapsed(&self) -> Duration {
        Self::now().saturating_duration_since(*self)
    }

    /// Returns the time from an earlier point to this one; zero if that one is later.
    pub const fn saturating_duration_since(&self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns.saturating_sub(earlier.ns))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Returns the point this time later; at most about 584 years.
    fn add(self, time: Duration) -> Self {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self { ns: self.ns.saturating_add(ns) }
    }
}

/// Lets other threads run: yields the processor for no time, else sleeps for this time, or less if the thread is
/// unparked.
pub fn pause(timeout: Duration) {
    match entered() {
        Some(runtime) => runtime.pause(timeout),
        None if timeout.is_zero() => std::thread::yield_now(),
        None => std::thread::park_timeout(timeout),
    }
}

/// Returns a random number, not for secrets.
pub fn random() -> u64 {
    entered().map_or_else(|| RandomState::new().hash_one(()), |runtime| runtime.random())
}

/// A thread of the program.
pub struct Thread(ThreadHandle);

enum ThreadHandle {
    System(JoinHandle<()>),
    /// By its number.
    Simulated(u64),
}

/// Starts a thread; a simulated program starts another one.
///
/// # Errors
/// Those of the system.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<Thread> {
    let handle = match entered() {
        Some(runtime) => ThreadHandle::Simulated(runtime.spawn(name, Box::new(body))?),
        None => {
            ThreadHandle::System(std::thread::Builder::new().name(name.to_owned()).spawn(body)?)
        }
    };
    Ok(Thread(handle))
}

impl Thread {
    /// Waits for its end, whether or not it panicked.
    pub fn join(self) {
        match self.0 {
            ThreadHandle::System(thread) => drop(thread.join()),
            // Without a simulation around the caller, it has ended with all its threads.
            ThreadHandle::Simulated(thread) => {
                if let Some(runtime) = entered() {
                    runtime.join(thread);
                }
            }
        }
    }
}

impl std::fmt::Debug for Thread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Thread")
    }
}
