//! Waiting: the policies that all crates share, and the one table of their constants.
//!
//! A thread spins for a bounded number of polls, yields its processor at intervals, and parks ([`SpinThenPark`]).
//! This is the competitive solution of the ski-rental problem (Karlin et al., *Empirical Studies of Competitive
//! Spinning for a Shared-Memory Multiprocessor*, SOSP 1991): a budget of about the cost of a park and a wake-up
//! costs at most twice as much as the best choice in hindsight. What no event announces is polled at intervals
//! that double ([`Backoff`]).
//!
//! Pure: no clock, no thread. `docs/internals/waiting.md` says who wakes whom, and how each constant was measured.

use core::time::Duration;

/// What a waiting thread does before its next poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStep {
    /// Polls again at once.
    Poll,
    /// Yields its processor, which the peer may be waiting for, and checks its deadline.
    Yield,
    /// Parks until an event, with a time limit.
    Park,
}

/// One wait: spins for a budget of polls, yields at intervals, then parks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SpinThenPark {
    polls: u32,
    /// The spin budget.
    polls_max: u32,
    /// The number of polls at which the thread yields next.
    yields_at: u32,
}

impl SpinThenPark {
    /// Returns a wait with this spin budget.
    pub const fn new(polls_max: u32, interval: YieldInterval) -> Self {
        Self { polls: 0, polls_max, yields_at: interval.polls }
    }

    /// Counts a poll without a result, and returns what follows.
    pub const fn step(&mut self) -> WaitStep {
        self.polls = self.polls.saturating_add(1);
        if self.polls >= self.polls_max {
            WaitStep::Park
        } else if self.polls >= self.yields_at {
            WaitStep::Yield
        } else {
            WaitStep::Poll
        }
    }

    /// Records that the thread has yielded, and when it does so again.
    pub const fn yielded(&mut self, interval: YieldInterval) {
        self.yields_at = self.polls.saturating_add(interval.polls);
    }

    /// Whether the next step parks.
    pub const fn parks_next(&self) -> bool {
        self.polls.saturating_add(1) >= self.polls_max
    }

    /// Whether it is time to read the clock: every [`CLOCK_EVERY_POLLS`] polls, and before a park.
    pub const fn reads_clock(&self) -> bool {
        self.polls.is_multiple_of(CLOCK_EVERY_POLLS) || self.parks_next()
    }
}

/// Polls from one yield to the next. A yield that no other thread takes is a system call during which no arrival is
/// noticed, so the interval doubles; one that was taken served the peer, so it halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct YieldInterval {
    polls: u32,
}

impl YieldInterval {
    /// Before the first yield.
    pub const FIRST: Self = Self { polls: 32 };

    /// Returns the interval after a yield that lasted so long.
    pub fn after(self, lasted: Duration) -> Self {
        let polls = if lasted < YIELD_TAKEN { self.polls * 2 } else { self.polls / 2 };
        Self { polls: polls.clamp(YIELD_POLLS_MIN, YIELD_POLLS_MAX) }
    }
}

/// Exponential backoff: delays that double up to a maximum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    next_ns: u64,
    first_ns: u64,
    max_ns: u64,
}

impl Backoff {
    /// Between polls of memory that no event announces. The first is about the cost of a park and a wake-up; the
    /// last costs an idle wait less than 1 % of a processor.
    pub const NAPS: Self = Self::new(20_000, 500_000);
    /// Between attempts to reach a lost executor of calls or memory server; the first is immediate.
    pub const REDIALS: Self = Self { next_ns: 0, ..Self::new(500_000, 100_000_000) };
    /// Between attempts to found or join a cluster.
    pub const JOINS: Self = Self::new(1_000_000, 250_000_000);

    /// Returns delays from `first_ns` to `max_ns`.
    pub const fn new(first_ns: u64, max_ns: u64) -> Self {
        Self { next_ns: first_ns, first_ns, max_ns }
    }

    /// Returns the next delay.
    pub fn next_ns(&mut self) -> u64 {
        let delay_ns = self.next_ns;
        self.next_ns = delay_ns.saturating_mul(2).clamp(self.first_ns, self.max_ns);
        delay_ns
    }
}

// The table of constants: counts have their unit in the name, times in their type. "Measured" is on two virtual
// processors of a loaded machine, medians of 3 to 11 runs beside the neighbouring values (`docs/internals/waiting.md`).
// "Chosen" bounds a delay that no benchmark shows.

/// Spin budget for polls of memory, a few nanoseconds each.
/// Chosen: some 20 us, about the cost of a park and a wake-up (14 us).
pub const SPIN_MEMORY_POLLS: u32 = 4096;
/// Spin budget for polls of an engine, some 60 ns each.
/// Measured: calls of 0.6 us and of 12 us over TCP within 2 % at 192, 384 and 1536; a budget that adapts the same.
pub const SPIN_ENGINE_POLLS: u32 = 768;
/// The same for a peer that works some 100 us on each answer, to which a wake-up would add a tenth.
/// Chosen: registrations of 30 to 90 us then end within the budget.
pub const SPIN_WORK_POLLS: u32 = 3072;
/// The smallest [`YieldInterval`].
/// Measured: calls on one core 4.7 us, with a constant interval of 32 6.7 us, of 64 9.4 us. Yields that no thread
/// takes at a constant 8 double a call of 0.6 us on two cores; at 16 they add 2 to 23 %, at 256 nothing.
pub const YIELD_POLLS_MIN: u32 = 8;
/// The largest [`YieldInterval`]; measured with [`YIELD_POLLS_MIN`].
pub const YIELD_POLLS_MAX: u32 = 256;
/// A yield that was taken lasts for two context switches and the work of the other thread, some microseconds;
/// otherwise for the system call, some hundred nanoseconds.
pub const YIELD_TAKEN: Duration = Duration::from_nanos(1_500);
/// Polls from one reading of the clock to the next.
/// Chosen: a reading costs a third of a poll of an engine.
pub const CLOCK_EVERY_POLLS: u32 = 16;
/// Attempts to take a lock that is held for nanoseconds, before the thread yields or blocks.
/// Measured: read misses within 5 % at 8.
pub const LOCK_SPINS: u32 = 64;

/// The longest time for which other threads of a node may overtake a thread that waits for a lock; then it queues. A
/// thread that spins [`SPIN_MEMORY_POLLS`] polls queues earlier, but its yields may take a time slice each.
/// Chosen: a hand-over to a thread that sleeps, some 30 us, is then a small part; the same as in Go's mutex.
pub const LOCK_BARGE_MAX: Duration = Duration::from_millis(1);

/// How long a thread of a node polls without work before it parks (`Config::spin_ns`).
/// Measured: read misses every 5 us take 2.0 us, at 5 us 70 us; at 80 us 10 % less for four times the idle polling.
pub const NODE_SPIN_NS: u64 = 20_000;
/// Idle polls of a node between readings of the clock, each of which costs as much as several polls.
/// Measured: read misses within 6 % at 1 and 16.
pub const NODE_IDLE_POLLS_PER_CLOCK: u32 = 4;
/// Busy polls between readings of the clock.
/// Chosen.
pub const NODE_BUSY_POLLS_PER_CLOCK: u32 = 64;
/// Polls without work before the lock of the engine is released.
/// Measured: read misses within 10 % at 1 and 16.
pub const NODE_POLLS_PER_LOCK: u32 = 4;
/// The period at which the server thread polls while the program does ("timed sleep").
/// Measured: read misses every 5 us take 1.27 us, without it 1.86 us; back to back 1.06 and 1.13 us. Within 5 % at
/// 125 us and 2 ms.
pub const TIMED_SLEEP: Duration = Duration::from_micros(500);
/// Polls by program threads within [`TIMED_SLEEP`] that count as polling all the time.
/// Measured: read misses within 3 % at 10 and 160.
pub const DENSE_POLLS: u32 = 40;
/// The longest sleep without a poll: a safety net under the wake-up protocol.
/// Chosen: two wake-ups a second.
pub const PARK_MAX: Duration = Duration::from_millis(500);
/// The interval of checks while joining or leaving, once in a node's life.
/// Chosen.
pub const TICK: Duration = Duration::from_micros(200);

/// The longest sleep of an executor of calls, which bounds the delay until it notices its stop flag.
/// Chosen.
pub const SERVE_PARK_MAX: Duration = Duration::from_millis(50);
/// The longest sleep while messages wait for space in a port, which no event announces.
/// Chosen.
pub const BACKLOG_INTERVAL: Duration = Duration::from_micros(200);
/// The longest sleep on a channel's port while an operation is pending that none of its events announces.
/// Chosen.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The longest time between two checks of a word that is waited for.
/// Chosen.
pub const WORD_INTERVAL: Duration = Duration::from_millis(1);
/// The delay between two reads of a line that a node cannot keep a copy of.
/// Chosen.
pub const UNCACHED_INTERVAL: Duration = Duration::from_micros(200);
/// How often a waiting member of a group checks that the others are alive.
/// Chosen.
pub const LIVENESS_INTERVAL: Duration = Duration::from_millis(50);
/// How often a session that waits for a root checks which member is the directory's home.
/// Chosen.
pub const HOLDER_INTERVAL: Duration = Duration::from_millis(100);

/// How long the engine of a TCP fabric polls after the last arrival.
/// Measured: calls within 1 % at 5 and 80 us.
pub const TCP_SPIN: Duration = Duration::from_micros(20);
/// Empty polls in a row after which a polling thread claims a TCP port from the engine.
/// Measured: calls within 1 % at 2 and 32; without claims p90 is 62 us instead of 18, with 19 times the context
/// switches.
pub const CLAIM_AFTER_EMPTY_POLLS: u32 = 8;
/// The same for polls of any kind since the thread slept: a thread whose polls always find what the engine received
/// contends with the engine for the lock and, on few cores, for a processor.
/// Measured: calls within 1 % at 8 and 128.
pub const CLAIM_AFTER_POLLS: u32 = 32;
/// Moved bytes that count as a call: they take about as long.
/// Chosen.
pub const BYTES_PER_CALL: u64 = 16 << 10;
/// The interval of the engine's checks whether the thread that claimed a port still polls, which bounds how long a
/// peer waits for a thread that went off to compute. A check takes the processor from the polling thread.
/// Measured: messages of 17.5 us; at 200 and 400 us 20.2 us and two to three times the context switches, at 1.6 ms
/// 17.7 us. An interval that doubled from 100 us: 19.9 us.
pub const CLAIM_CHECK: Duration = Duration::from_micros(800);
/// Calls between two checks below which the engine takes a port back; it does so too if no call polls.
/// Chosen: a call per 25 us.
pub const CLAIM_CALLS_MIN: u32 = 32;
/// Polls by a spinning engine of the port that it served last, before it polls the epoll of all.
/// Measured: calls within 1 % at 4 and 64; p90 7 % more at 4.
pub const POLLS_PER_EPOLL: u32 = 16;
/// Polls of a port before all links are served, and not only the one that received last.
/// Measured: calls 2 % slower at 4, the same at 64.
pub const POLLS_PER_SCAN: u32 = 16;
/// Arrivals in a row on one link after which only that link is polled.
/// Measured: calls 7 % slower without.
pub const WARM_AFTER_ARRIVALS: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_spins_yields_and_parks_by_its_budget() {
        let mut wait = SpinThenPark::new(8, YieldInterval { polls: 3 });
        let steps: [WaitStep; 9] = core::array::from_fn(|_| {
            let parks = wait.parks_next();
            let step = wait.step();
            assert_eq!(parks, step == WaitStep::Park);
            if step == WaitStep::Yield {
                wait.yielded(YieldInterval { polls: 2 });
            }
            step
        });
        let [poll, yields, park] = [WaitStep::Poll, WaitStep::Yield, WaitStep::Park];
        assert_eq!(steps, [poll, poll, yields, poll, yields, poll, yields, park, park]);
    }

    #[test]
    fn clock_is_read_now_and_then_and_before_each_park() {
        let mut wait = SpinThenPark::new(40, YieldInterval { polls: 40 });
        let read = |wait: &mut SpinThenPark| (wait.reads_clock(), wait.step()).0;
        let polls = (0..42).map(|poll| (poll, read(&mut wait))).filter(|(_, reads)| *reads);
        assert!(polls.map(|(poll, _)| poll).eq([0, 16, 32, 39, 40, 41]));
    }

    #[test]
    fn yields_that_are_not_taken_become_rare() {
        let after = |interval: YieldInterval, ns| {
            (0..9).fold(interval, |interval, _| interval.after(Duration::from_nanos(ns)))
        };
        let seldom = after(YieldInterval::FIRST, 700);
        assert_eq!(seldom.polls, YIELD_POLLS_MAX);
        assert_eq!(seldom.after(Duration::from_micros(4)).polls, 128, "one may be a coincidence");
        assert_eq!(after(seldom, 4_000).polls, YIELD_POLLS_MIN);
        assert_eq!(after(YieldInterval { polls: 8 }, 100), seldom);
    }

    #[test]
    fn delays_double_up_to_a_maximum() {
        let delays = |mut backoff: Backoff| core::array::from_fn(|_| backoff.next_ns() / 1_000);
        assert_eq!(delays(Backoff::NAPS), [20, 40, 80, 160, 320, 500, 500]);
        assert_eq!(delays(Backoff::REDIALS), [0, 500, 1_000, 2_000, 4_000, 8_000, 16_000]);
        let mut redials = Backoff::REDIALS;
        assert!((0..40).map(|_| redials.next_ns()).all(|delay_ns| delay_ns <= 100_000_000));
    }
}
