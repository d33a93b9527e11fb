//! One wait of a thread for a peer: spins within its budget, then parks ([`farside_base::waiting`]). What no event
//! announces is polled with naps that double; otherwise the thread arms its port, checks for events and sleeps on
//! the port's waiter (an eventcount).

use crate::progress::EnginePort;
use crate::{Error, ErrorCode};
use farside_base::waiting::{Backoff, SpinThenPark, WaitStep, YieldInterval};
use farside_fabric::runtime::{Instant, pause};
use std::cell::Cell;
use std::time::Duration;

thread_local! {
    /// Of all waits of this thread since it last slept: whether another thread wants its core changes rarely.
    static YIELDS: Cell<YieldInterval> = const { Cell::new(YieldInterval::FIRST) };
}

/// A wait with its deadline.
pub(crate) struct EventWait {
    /// Set by the first check, so that a call that need not wait reads no clock.
    end: Option<Instant>,
    timeout: Duration,
    spin: SpinThenPark,
    naps: Backoff,
}

impl EventWait {
    /// Returns a wait that parks after this many polls.
    pub(crate) fn new(timeout: Duration, spin_polls: u32) -> Self {
        let spin = SpinThenPark::new(spin_polls, YIELDS.get());
        Self { end: None, timeout, spin, naps: Backoff::NAPS }
    }

    /// Returns the remaining time, or an error at the deadline.
    fn check(&mut self) -> Result<Duration, Error> {
        let now = Instant::now();
        let end = *self.end.get_or_insert_with(|| now + self.timeout);
        let left = end.saturating_duration_since(now);
        if left.is_zero() { Err(ErrorCode::TimedOut.into()) } else { Ok(left) }
    }

    /// Whether work that only the clock announces is due to be checked: every few polls, and before a park.
    pub(crate) fn reads_clock(&self) -> bool {
        self.spin.reads_clock()
    }

    /// Whether the next wait parks.
    pub(crate) fn parks_next(&self) -> bool {
        self.spin.parks_next()
    }

    /// Spins before the next poll; returns the remaining time once the spin budget is used up.
    pub(crate) fn spin(&mut self) -> Result<Option<Duration>, Error> {
        match self.spin.step() {
            WaitStep::Park => return self.check().map(Some),
            WaitStep::Yield => {
                self.check()?;
                let began = Instant::now();
                pause(Duration::ZERO);
                YIELDS.set(YIELDS.get().after(began.elapsed()));
                self.spin.yielded(YIELDS.get());
            }
            WaitStep::Poll => std::hint::spin_loop(),
        }
        Ok(None)
    }

    /// Waits before the next poll of something that no event announces.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        if let Some(left) = self.spin()? {
            pause(Duration::from_nanos(self.naps.next_ns()).min(left));
        }
        Ok(())
    }

    /// Waits for an event of the port: spins first, then sleeps until something arrives there, or for
    /// `nap_max`.
    pub(crate) fn wait_for_event(
        &mut self,
        port: &mut EnginePort,
        nap_max: Option<Duration>,
    ) -> Result<(), Error> {
        if let Some(left) = self.spin()? {
            if !port.arm() {
                port.waiter().wait(Some(nap_max.map_or(left, |nap| nap.min(left))));
                // A woken thread may run on another core, which another thread wants.
                YIELDS.set(YieldInterval::FIRST);
            }
            port.disarm();
        }
        Ok(())
    }
}
