//! Waiting for a peer: a little spinning, then sleep.

use crate::{Error, ErrorCode};
use farside_fabric::Port;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// Looks without giving the processor away.
const SPINS: u32 = 1 << 12;
/// The same for looks that are whole turns of a loop, which take some hundred times as long.
const TURNS: u32 = 768;
/// The same as [`TURNS`] where the peer works on each answer for some 100 us: being woken costs a tenth of
/// that again.
const TURNS_OF_WORK: u32 = 4 * TURNS;
/// The clock is asked after so many looks, some microseconds.
const LOOKS_TO_CLOCK: u32 = 16;
/// Shortest and longest sleep between looks of a channel that can only be polled.
const NAP_MIN: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_micros(500);

thread_local! {
    /// Of all waits of this thread since it slept: whether somebody else wants its processor changes seldom.
    static OFFERS: Cell<Offers> = const { Cell::new(Offers::FIRST) };
}

/// After how many turns the processor is offered to the peer, who may be waiting for it. Where nobody is, an
/// offer is a system call during which nothing that comes is noticed, so that the next one comes later; where
/// it was taken, sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Offers {
    turns: u32,
}

impl Offers {
    const FIRST: Self = Self { turns: 32 };
    const TURNS_MIN: u32 = 8;
    const TURNS_MAX: u32 = 256;
    /// An offer that was taken lasts for two changes of threads and what the other one does, some
    /// microseconds; else for the system call, some hundred nanoseconds.
    const TAKEN: Duration = Duration::from_nanos(1_500);

    /// As they are behind one that has lasted so long.
    fn after(self, lasted: Duration) -> Self {
        let turns = if lasted < Self::TAKEN { self.turns * 2 } else { self.turns / 2 };
        Self { turns: turns.clamp(Self::TURNS_MIN, Self::TURNS_MAX) }
    }

    /// Makes one; after how many turns the next one is due.
    fn make() -> u32 {
        let began = Instant::now();
        std::thread::yield_now();
        let offers = OFFERS.get().after(began.elapsed());
        OFFERS.set(offers);
        offers.turns
    }
}

/// How many turns whoever waits for answers looks before it sleeps: as many as were of use the last times. Where
/// answers take long, a processor that somebody else has a use for would only be kept from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Spins {
    turns: u32,
}

impl Spins {
    pub(crate) const FIRST: Self = Self { turns: TURNS };
    /// Some microseconds, which is what being woken costs.
    const TURNS_MIN: u32 = 64;
    /// Whoever sleeps for less had better gone on looking.
    const NAP_TOO_SHORT: Duration = Duration::from_micros(20);

    /// As they are behind a wait.
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

/// How long somebody has waited, and what he does meanwhile.
pub(crate) struct Patience {
    /// Set with the first wait, so that a call that need not wait asks no clock.
    end: Option<Instant>,
    timeout: Duration,
    looks: u32,
    /// Looks before it sleeps.
    looks_max: u32,
    /// The processor is offered to others after so many.
    looks_to_offer: u32,
    nap: Duration,
    /// For how long it has slept.
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
            nap: NAP_MIN,
            slept: None,
        }
    }

    /// For whoever turns a loop with each look.
    pub(crate) fn of_turns(timeout: Duration) -> Self {
        let new = Self::new(timeout);
        Self { looks_max: TURNS, looks_to_offer: OFFERS.get().turns, ..new }
    }

    /// For whoever turns a loop until an answer comes.
    pub(crate) fn of_answer(timeout: Duration, spins: Spins) -> Self {
        Self { looks_max: spins.turns, ..Self::of_turns(timeout) }
    }

    /// For whoever turns a loop while the peer works.
    pub(crate) fn of_work(timeout: Duration) -> Self {
        Self { looks_max: TURNS_OF_WORK, ..Self::of_turns(timeout) }
    }

    /// Whether the time is up; asks the clock now and then only.
    fn check(&mut self) -> Result<Duration, Error> {
        let now = Instant::now();
        let end = *self.end.get_or_insert_with(|| {
            now.checked_add(self.timeout).unwrap_or(now + Duration::from_secs(1 << 30))
        });
        let left = end.saturating_duration_since(now);
        if left.is_zero() { Err(ErrorCode::TimedOut.into()) } else { Ok(left) }
    }

    /// Whether it is time to look at what comes by the clock alone: before a sleep, and now and then.
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

    /// Waits before the next look at something that no event announces.
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
        std::thread::park_timeout(self.nap.min(left));
        self.nap = (self.nap * 2).min(NAP_MAX);
        Ok(())
    }

    /// Waits for an event of the port: spins first, then sleeps until something arrives there, or
    /// for `nap_max`.
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
            // Whoever is woken may find itself on the processor of somebody else.
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
    fn offers_come_seldom_where_nobody_takes_them() {
        let after = |offers: Offers, ns| {
            (0..9).fold(offers, |offers, _| offers.after(Duration::from_nanos(ns)))
        };
        let seldom = after(Offers::FIRST, 700);
        assert_eq!(seldom.turns, 256);
        assert_eq!(seldom.after(Duration::from_micros(4)).turns, 128, "one may be an accident");
        assert_eq!(after(seldom, 4_000).turns, 8);
        assert_eq!(after(Offers { turns: 8 }, 100), seldom);
    }

    #[test]
    fn whoever_waits_long_looks_less_before_it_sleeps() {
        let after = |spins: Spins, looks, slept_us: Option<u64>| {
            let slept = slept_us.map(Duration::from_micros);
            let patience = Patience { looks, slept, ..Patience::new(Duration::MAX) };
            (0..9).fold(spins, |spins, _| spins.after(&patience))
        };
        let few = after(Spins::FIRST, TURNS, Some(300));
        assert_eq!(few.turns, Spins::TURNS_MIN);
        assert_eq!(after(few, 20, None), few, "that was enough");
        assert_eq!(after(few, Spins::TURNS_MIN - 1, None).turns, 128, "as it nearly was not");
        assert_eq!(after(few, Spins::TURNS_MIN, Some(5)), Spins::FIRST);
        assert_eq!(after(Spins::FIRST, 20, None), Spins::FIRST);
    }
}
