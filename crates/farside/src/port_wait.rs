//! Waiting at an end of a channel or a client of one-sided memory: on its thread, or as a future of any executor. Both
//! repeat an attempt until it has a result and never spin without bound.
//!
//! Between two attempts a thread uses its spin budget and then parks ([`EventWait`]); a future suspends at once, and a
//! thread of the end, started by the first suspended future, wakes its task. What ends a suspension:
//!
//! | what is awaited | what ends the wait |
//! | --- | --- |
//! | peers; messages of a channel with events; one-sided requests | the port is armed: its event |
//! | the same while an operation is pending that no event announces | the same, and [`POLL_INTERVAL`] |
//! | words that a peer writes into memory | the time: intervals grow from 20 to 500 us |
//!
//! Invariants: a wake-up is requested before the port is armed, so that its event finds the request. The port's waiter
//! has one sleeper. The thread of the end sleeps on it while a future is suspended;
//! before the end's own thread does, [`Sleeper::stand_down`] makes the other one leave.

use crate::event_wait::EventWait;
use crate::progress::EnginePort;
use crate::{Error, ErrorCode};
use farside_base::waiting::{Backoff, POLL_INTERVAL, SPIN_MEMORY_POLLS};
use farside_fabric::Waiter;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What an end waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Awaited {
    /// Peers that connect or disconnect.
    Peers,
    /// Messages, or the ends of one-sided requests.
    Messages,
    /// Space for messages, their acknowledgement, or bytes that are fetched.
    Words,
}

/// An end of a channel, both ends of a connection, or a client of one-sided memory.
pub(crate) trait Waits {
    /// Whether events of the port announce it.
    fn is_announced(&self, awaited: Awaited) -> bool;

    /// Whether no operation is pending that no event of the port announces.
    fn is_quiet(&self) -> bool;

    /// Returns the port on which it sleeps.
    fn port(&mut self) -> &mut EnginePort;

    /// Returns the place of the thread that sleeps for futures.
    fn sleeper(&mut self) -> &mut Option<Sleeper>;
}

/// Repeats an attempt on this thread until it has a result: spins at first, then parks between two attempts.
///
/// # Errors
/// Those of the attempt; `TimedOut`.
pub(crate) fn wait<E: Waits, T>(
    end: &mut E,
    awaited: Awaited,
    timeout: Duration,
    mut attempt: impl FnMut(&mut E) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut wait = EventWait::new(timeout, SPIN_MEMORY_POLLS);
    loop {
        if let Some(result) = attempt(end)? {
            return Ok(result);
        }
        if !end.is_announced(awaited) {
            wait.wait()?;
            continue;
        }
        let mut nap_max = None;
        if wait.parks_next() {
            nap_max = (!end.is_quiet()).then_some(POLL_INTERVAL);
            if let Some(sleeper) = end.sleeper() {
                sleeper.stand_down();
            }
        }
        wait.wait_for_event(end.port(), nap_max)?;
    }
}

/// Repeats an attempt until it has a result, suspending between two attempts. Dropping the future loses nothing.
///
/// # Errors
/// Those of the attempt; `System` if the thread that wakes the task cannot be started.
pub(crate) async fn wait_async<E: Waits, T>(
    end: &mut E,
    awaited: Awaited,
    mut attempt: impl FnMut(&mut E) -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    let mut wait = Suspended { end, awaited, naps: Backoff::NAPS };
    poll_fn(|context| wait.poll(context, &mut attempt)).await
}

/// A wait of a future.
struct Suspended<'a, E: Waits> {
    end: &'a mut E,
    awaited: Awaited,
    naps: Backoff,
}

impl<E: Waits> Suspended<'_, E> {
    fn poll<T>(
        &mut self,
        context: &Context<'_>,
        attempt: &mut impl FnMut(&mut E) -> Result<Option<T>, Error>,
    ) -> Poll<Result<T, Error>> {
        self.end.port().disarm();
        loop {
            match attempt(self.end) {
                Ok(Some(result)) => return Poll::Ready(Ok(result)),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
            if !self.end.is_announced(self.awaited) {
                let until = Until::Time(Instant::now() + Duration::from_nanos(self.naps.next_ns()));
                return match self.wake_later(context, until) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                };
            }
            // Before the port is armed: the event wakes the thread, which may still sleep for a dropped future.
            let nap_max = (!self.end.is_quiet()).then_some(POLL_INTERVAL);
            if let Err(error) = self.wake_later(context, Until::Event(nap_max)) {
                return Poll::Ready(Err(error));
            }
            if !self.end.port().arm() {
                return Poll::Pending;
            }
            self.withdraw(); // an event came in between: the next attempt takes it
        }
    }

    /// Makes the thread of the end wake this task, and starts it if there is none.
    fn wake_later(&mut self, context: &Context<'_>, until: Until) -> Result<(), Error> {
        if self.end.sleeper().is_none() {
            let waiter = self.end.port().waiter();
            let sleeper = Sleeper::start(waiter)
                .map_err(|error| Error::with(ErrorCode::System, error.to_string()))?;
            *self.end.sleeper() = Some(sleeper);
        }
        if let Some(sleeper) = self.end.sleeper() {
            sleeper.wake_later(context.waker(), until);
        }
        Ok(())
    }

    fn withdraw(&mut self) {
        self.end.port().disarm();
        if let Some(sleeper) = self.end.sleeper() {
            sleeper.lock().request = None;
        }
    }
}

impl<E: Waits> Drop for Suspended<'_, E> {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// What ends a suspension.
#[derive(Clone, Copy, Debug)]
enum Until {
    /// An event of the port, which is or will be armed; and this time after, if any.
    Event(Option<Duration>),
    /// The time alone.
    Time(Instant),
}

/// A task to wake, and when.
struct SleepRequest {
    waker: Waker,
    until: Until,
}

#[derive(Default)]
struct SleeperState {
    request: Option<SleepRequest>,
    /// Whether the thread is in the port's waiter.
    waits: bool,
    stop: bool,
}

#[derive(Default)]
struct SharedState {
    state: Mutex<SleeperState>,
    changed: Condvar,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, SleeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that sleeps for the tasks of an end and wakes them.
pub(crate) struct Sleeper {
    shared: Arc<SharedState>,
    waiter: Arc<dyn Waiter>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    fn start(waiter: Arc<dyn Waiter>) -> std::io::Result<Self> {
        let shared = Arc::<SharedState>::default();
        let (its_shared, its_waiter) = (Arc::clone(&shared), Arc::clone(&waiter));
        let thread = std::thread::Builder::new()
            .name("farside-wait".to_owned())
            .spawn(move || sleep(&its_shared, &*its_waiter))?;
        Ok(Self { shared, waiter, thread: Some(thread) })
    }

    fn lock(&self) -> MutexGuard<'_, SleeperState> {
        self.shared.lock()
    }

    /// Wakes this task at the end of its wait, instead of the one before.
    fn wake_later(&self, waker: &Waker, until: Until) {
        let mut state = self.lock();
        state.request = Some(SleepRequest { waker: waker.clone(), until });
        // The thread may still sleep for a future that was dropped, without a limit of time.
        let is_limited = !matches!(until, Until::Event(None));
        let interrupt = state.waits && is_limited;
        drop(state);
        self.shared.changed.notify_all();
        if interrupt {
            self.waiter.wake();
        }
    }

    /// Makes the thread leave the port's waiter, for another thread to sleep on it.
    fn stand_down(&self) {
        let mut state = self.lock();
        state.request = None;
        while state.waits {
            self.waiter.wake();
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.lock().stop = true;
        self.shared.changed.notify_all();
        self.waiter.wake();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, nothing depends on it any more.
            let _ = thread.join();
        }
    }
}

/// Runs the thread of an end.
fn sleep(shared: &SharedState, waiter: &dyn Waiter) {
    let mut state = shared.lock();
    while !state.stop {
        match state.request.as_ref().map(|request| request.until) {
            None => {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            Some(Until::Time(end)) => {
                let left = end.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    let waited = shared.changed.wait_timeout(state, left);
                    state = waited.unwrap_or_else(PoisonError::into_inner).0;
                    continue;
                }
            }
            Some(Until::Event(nap_max)) => {
                state.waits = true;
                drop(state);
                waiter.wait(nap_max);
                state = shared.lock();
                state.waits = false;
                shared.changed.notify_all();
                let is_timed = |request: &SleepRequest| matches!(request.until, Until::Time(_));
                if state.stop || state.request.as_ref().is_none_or(is_timed) {
                    continue; // replaced meanwhile
                }
            }
        }
        if let Some(request) = state.request.take() {
            drop(state);
            request.waker.wake();
            state = shared.lock();
        }
    }
}

#[cfg(test)]
#[path = "port_wait_tests.rs"]
mod tests;
