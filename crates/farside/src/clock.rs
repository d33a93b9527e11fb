//! The clock by which hits check whether this node's membership lease has ended.
//!
//! On fabrics between hosts it is read after the copy of every hit, so it is the processor's counter if the
//! kernel uses that as its clock source: then it has one rate on all processors, also while they sleep. A
//! restartable sequence (`rseq`) would be cheaper but is insufficient: the kernel aborts one when it
//! preempts the thread, but does not see that the whole virtual machine was paused.

use crate::hit::processor;
use farside_fabric::Fabric;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The kernel's file that names its clock source.
const CLOCK_SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// How long the counter is compared with the system's clock, once per process.
const CALIBRATION: Duration = Duration::from_millis(2);

/// A monotonic clock.
#[derive(Clone)]
pub(crate) enum Clock {
    /// The processor's counter, in ticks per 2^32 nanoseconds.
    Counter(u64),
    /// The system's monotonic clock, in nanoseconds from a start.
    System(Instant),
    /// The fabric's time, for nodes that their caller drives: it may be simulated.
    Fabric(Arc<dyn Fabric>),
}

impl Clock {
    /// The processor's counter, or the system's clock if the counter is unsuitable.
    pub(crate) fn of_processor() -> Self {
        static RATE: OnceLock<Option<u64>> = OnceLock::new();
        match *RATE.get_or_init(counter_rate) {
            Some(rate) => Self::Counter(rate),
            None => Self::System(Instant::now()),
        }
    }

    /// The time in ticks.
    #[inline(always)]
    pub(crate) fn now(&self) -> u64 {
        match self {
            Self::Counter(_) => processor::counter(),
            other => other.now_by_call(),
        }
    }

    #[inline(never)]
    fn now_by_call(&self) -> u64 {
        match self {
            Self::Counter(_) => processor::counter(),
            Self::System(start) => u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            Self::Fabric(fabric) => fabric.time_ns(),
        }
    }

    /// Ticks of a span of time.
    pub(crate) fn ticks(&self, ns: u64) -> u64 {
        match self {
            Self::Counter(rate) => {
                let ticks = (u128::from(ns) * u128::from(*rate)) >> 32;
                u64::try_from(ticks).unwrap_or(u64::MAX)
            }
            Self::System(_) | Self::Fabric(_) => ns,
        }
    }

    /// The kind of clock, for people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Counter(_) => "processor's counter",
            Self::System(_) => "system's clock",
            Self::Fabric(_) => "fabric's time",
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Ticks of the processor's counter in 2^32 nanoseconds, if it is the kernel's clock source.
fn counter_rate() -> Option<u64> {
    let source = std::fs::read_to_string(CLOCK_SOURCE).ok()?;
    if !processor::HAS_COUNTER || source.trim() != "tsc" {
        return None;
    }
    let (start, first) = (Instant::now(), processor::counter());
    while start.elapsed() < CALIBRATION {
        std::hint::spin_loop();
    }
    let ns = start.elapsed().as_nanos();
    let ticks = u128::from(processor::counter().checked_sub(first)?);
    u64::try_from((ticks << 32) / ns).ok().filter(|rate| *rate > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_of_processor_measures_what_the_system_does() {
        let clock = Clock::of_processor();
        let (start, first) = (Instant::now(), clock.now());
        while start.elapsed() < Duration::from_millis(20) {
            std::hint::spin_loop();
        }
        let most = clock.now();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap();
        let (ticks, span) = (most - first, clock.ticks(ns));
        assert!(ticks <= span + span / 50, "{clock:?}: {ticks} of {span}");
        assert!(clock.ticks(20_000_000) <= ticks + ticks / 50, "{clock:?}: {ticks} in {ns} ns");
    }
}
