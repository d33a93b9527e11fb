//! Waiting for a peer: a spin budget, then park. Polled channels park with exponentially growing naps;
//! others arm their port, check for events and sleep on its waiter (an eventcount). The spin budget and the
//! interval of `sched_yield` adapt to the observed waits.

use crate::{Error, ErrorCode};
use farside_fabric::Port;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Polls of memory before the first sleep, for polls of some nanoseconds.
const SPINS: u32 = 1 << 12;
/// The same for polls of an engine, each of which takes some hundred times as long.
const TURNS: u32 = 768;
/// The same for a peer that works some 100 us on each answer: being woken costs a tenth of that in
/// addition.
const TURNS_OF_WORK: u32 = 4 * TURNS;
/// Polls between readings of the clock, some microseconds.
const LOOKS_TO_CLOCK: u32 = 16;
/// The shortest and the longest sleep between polls of a channel without events.
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_micros(500);

thread_local! {
    /// The yield policy of all waits of this thread since it last slept: whether another thread wants its
    /// core changes rarely.
    static OFFERS: Cell<Offers> = const { Cell::new(Offers::FIRST) };
}

/// Yield policy: the number of polls before `sched_yield`, for a peer that may be waiting for the same
/// core. If no thread takes the core, the yield is a system call during which no arrival is noticed, so the
/// interval doubles; if one took it, the interval halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Offers {
    turns: u32,
}

impl Offers {
    const FIRST: Self = Self { turns: 32 };
    const TURNS_MIN: u32 = 8;
    const TURNS_MAX: u32 = 256;
    /// A yield that was taken lasts for two context switches and the work of the other thread, some
    /// microseconds; otherwise for the system call, some hundred nanoseconds.
    const TAKEN: Duration = Duration::from_nanos(1_500);

    /// The policy after a yield that lasted `lasted`.
    fn after(self, lasted: Duration) -> Self {
        let turns = if lasted < Self::TAKEN { self.turns * 2 } else { self.turns / 2 };
        Self { turns: turns.clamp(Self::TURNS_MIN, Self::TURNS_MAX) }
    }

    /// Yields; returns the number of polls until the next yield is due.
    fn make() -> u32 {
        let began = Instant::now();
        std::thread::yield_now();
        let offers = OFFERS.get().after(began.elapsed());
        OFFERS.set(offers);
        offers.turns
    }
}

/// Adaptive spin budget: the number of polls before a thread that waits for answers sleeps. It doubles
/// after a short sleep or a wait of over half the budget, and halves after a long sleep, so that slow
/// answers do not take the core from other threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spins {
    turns: u32,
}

impl Spins {
    pub(crate) const FIRST: Self = Self { turns: TURNS };
    /// Some microseconds: the cost of being woken.
    const TURNS_MIN: u32 = 64;
    /// A sleep shorter than this should have been spinning.
    const NAP_TOO_SHORT: Duration = Duration::from_micros(20);

    /// The budget after a wait.
    pub(crate) fn after(self, patience: &Patience) -> Self {
        let turns = match patience.slept {
            Some(slept) if slept >= Self::NAP_TOO_SHORT => self.turns / 2,
            Some(_) => self.turns * 2,
            None if patience.looks > self.turns / 2 => self.turns * 2,
            None => self.turns,
        };
        Self { turns: turns.clamp(Self::TURNS_MIN, TURNS) }
    }
}

/// The intervals between polls of something that no event announces: they double from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Naps(Duration);

impl Naps {
    pub(crate) const FIRST: Self = Self(NAP_MIN);

    /// Returns the next interval.
    pub(crate) fn take(&mut self) -> Duration {
        let nap = self.0;
        self.0 = (nap * 2).min(NAP_MAX);
        nap
    }
}

/// One wait: its deadline, spin budget and yield policy.
pub(crate) struct Patience {
    /// Set by the first check, so that a call that need not wait reads no clock.
    end: Option<Instant>,
    timeout: Duration,
    looks: u32,
    /// Polls before it sleeps.
    looks_max: u32,
    /// The number of polls at which the thread yields next.
    looks_to_offer: u32,
    naps: Naps,
    /// Total time slept.
    slept: Option<Duration>,
}

impl Patience {
    pub(crate) const fn new(timeout: Duration) -> Self {
        Self {
            end: None,
            timeout,
            looks: 0,
            looks_max: SPINS,
            looks_to_offer: u32::MAX,
            naps: Naps::FIRST,
            slept: None,
        }
    }

    /// For a thread that polls an engine each time.
    pub(crate) fn of_turns(timeout: Duration) -> Self {
        let new = Self::new(timeout);
        Self { looks_max: TURNS, looks_to_offer: OFFERS.get().turns, ..new }
    }

    /// For a thread that polls an engine until an answer arrives.
    pub(crate) fn of_answer(timeout: Duration, spins: Spins) -> Self {
        Self { looks_max: spins.turns, ..Self::of_turns(timeout) }
    }

    /// For a thread that polls an engine while the peer works.
    pub(crate) fn of_work(timeout: Duration) -> Self {
        Self { looks_max: TURNS_OF_WORK, ..Self::of_turns(timeout) }
    }

    /// Returns the remaining time, or an error at the deadline.
    fn check(&mut self) -> Result<Duration, Error> {
        let now = Instant::now();
        let end = *self.end.get_or_insert_with(|| {
            now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(1 << 30))
        });
        let left = end.saturating_duration_since(now);
        if left.is_zero() { Err(ErrorCode::TimedOut.into()) } else { Ok(left) }
    }

    /// Whether work that only the clock announces is due to be checked: before a sleep, and now and then.
    pub(crate) const fn asks_clock(&self) -> bool {
        self.looks.is_multiple_of(LOOKS_TO_CLOCK) || self.sleeps_next()
    }

    /// Whether the next wait for an event sleeps.
    pub(crate) const fn sleeps_next(&self) -> bool {
        self.looks + 1 >= self.looks_max
    }

    /// Whether the next [`Self::wait`] sleeps.
    pub(crate) const fn naps_next(&self) -> bool {
        self.looks + 1 >= SPINS
    }

    /// Waits before the next poll of something that no event announces.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        self.looks += 1;
        if self.looks < SPINS {
            if self.looks.is_multiple_of(256) {
                self.check()?;
                std::thread::yield_now();
            }
            std::hint::spin_loop();
            return Ok(());
        }
        let left = self.check()?;
        std::thread::park_timeout(self.naps.take().min(left));
        Ok(())
    }

    /// Waits for an event of the port: spins first, then sleeps until something arrives there, or for
    /// `nap_max`.
    pub(crate) fn wait_for_event(
        &mut self,
        port: &mut dyn Port,
        nap_max: Option<Duration>,
    ) -> Result<(), Error> {
        self.looks += 1;
        if self.looks < self.looks_max {
            if self.looks.is_multiple_of(256) {
                self.check()?;
            }
            if self.looks >= self.looks_to_offer {
                self.looks_to_offer = self.looks.saturating_add(Offers::make());
            }
            std::hint::spin_loop();
            return Ok(());
        }
        let left = self.check()?;
        if !port.arm() {
            let began = Instant::now();
            port.waiter().wait(Some(nap_max.map_or(left, |nap| nap.min(left))));
            *self.slept.get_or_insert_default() += began.elapsed();
            // A woken thread may run on another core, which another thread wants.
            OFFERS.set(Offers::FIRST);
        }
        port.disarm();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yields_that_are_not_taken_become_rare() {
        let after = |offers: Offers, ns| {
            (0..9).fold(offers, |offers, _| offers.after(Duration::from_nanos(ns)))
        };
        let seldom = after(Offers::FIRST, 700);
        assert_eq!(seldom.turns, 256);
        assert_eq!(seldom.after(Duration::from_micros(4)).turns, 128, "one may be a coincidence");
        assert_eq!(after(seldom, 4_000).turns, 8);
        assert_eq!(after(Offers { turns: 8 }, 100), seldom);
    }

    #[test]
    fn spin_budget_shrinks_after_long_waits() {
        let after = |spins: Spins, looks, slept_us: Option<u64>| {
            let slept = slept_us.map(Duration::from_micros);
            let patience = Patience { looks, slept, ..Patience::new(Duration::MAX) };
            (0..9).fold(spins, |spins, _| spins.after(&patience))
        };
        let few = after(Spins::FIRST, TURNS, Some(300));
        assert_eq!(few.turns, Spins::TURNS_MIN);
        assert_eq!(after(few, 20, None), few, "it sufficed");
        assert_eq!(after(few, Spins::TURNS_MIN - 1, None).turns, 128, "it nearly failed to");
        assert_eq!(after(few, Spins::TURNS_MIN, Some(5)), Spins::FIRST);
        assert_eq!(after(Spins::FIRST, 20, None), Spins::FIRST);
    }
}
