//! Figures in the form of perftest's tables, and their statistics.

use crate::settings::Test;
use serde::Serialize;
use std::time::Duration;

/// A MiB, which perftest calls a MB by default.
const MIB: f64 = 1_048_576.0;

/// A line of a latency table; times in microseconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) test: Test,
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) min_us: f64,
    pub(super) max_us: f64,
    pub(super) typical_us: f64,
    pub(super) average_us: f64,
    pub(super) stdev_us: f64,
    pub(super) p99_us: f64,
    pub(super) p999_us: f64,
}

impl Latency {
    /// Computes the line from the times of rounds. A round crosses the link `trips` times.
    pub(super) fn of(test: Test, bytes: u32, mut times_ns: Vec<u64>, trips: f64) -> Self {
        times_ns.sort_unstable();
        let us = |ns: f64| ns / 1e3 / trips;
        let count = times_ns.len();
        // The least time that `permille` thousandths of the rounds do not exceed.
        let at = |permille: usize| {
            let index = (count * permille).div_ceil(1000).max(1) - 1;
            us(times_ns.get(index).copied().unwrap_or(0) as f64)
        };
        let total: f64 = times_ns.iter().map(|ns| *ns as f64).sum();
        let average = total / count.max(1) as f64;
        let squares: f64 = times_ns.iter().map(|ns| (*ns as f64 - average).powi(2)).sum();
        Self {
            test,
            bytes,
            iterations: count as u64,
            min_us: at(0),
            max_us: at(1000),
            typical_us: at(500),
            average_us: us(average),
            stdev_us: us((squares / count.max(1) as f64).sqrt()),
            p99_us: at(990),
            p999_us: at(999),
        }
    }

    pub(super) fn head() -> String {
        format!(
            "{:>8} {:>11} {:>12} {:>12} {:>16} {:>12} {:>14} {:>10} {:>12}",
            "#bytes",
            "#iterations",
            "t_min[usec]",
            "t_max[usec]",
            "t_typical[usec]",
            "t_avg[usec]",
            "t_stdev[usec]",
            "99%[usec]",
            "99.9%[usec]"
        )
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:>8} {:>11} {:>12.2} {:>12.2} {:>16.2} {:>12.2} {:>14.2} {:>10.2} {:>12.2}",
            self.bytes,
            self.iterations,
            self.min_us,
            self.max_us,
            self.typical_us,
            self.average_us,
            self.stdev_us,
            self.p99_us,
            self.p999_us
        )
    }
}

/// A line of a bandwidth table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Bandwidth {
    pub(super) test: Test,
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) peak_mib_per_second: f64,
    pub(super) average_mib_per_second: f64,
    pub(super) million_messages_per_second: f64,
}

impl Bandwidth {
    /// Computes the line from `count` requests that took `took` in total, and `best` seconds for each request of
    /// the best stretch.
    pub(super) fn of(test: Test, bytes: u32, count: u64, took: Duration, best: f64) -> Self {
        let each = took.as_secs_f64().max(1e-9) / count.max(1) as f64;
        let mib = |each: f64| f64::from(bytes) / MIB / each;
        Self {
            test,
            bytes,
            iterations: count,
            peak_mib_per_second: mib(best.min(each)),
            average_mib_per_second: mib(each),
            million_messages_per_second: 1e-6 / each,
        }
    }

    pub(super) fn head() -> String {
        format!(
            "{:>8} {:>11} {:>17} {:>20} {:>14}",
            "#bytes", "#iterations", "BW peak[MiB/sec]", "BW average[MiB/sec]", "MsgRate[Mpps]"
        )
    }

    pub(super) fn line(&self) -> String {
        format!(
            "{:>8} {:>11} {:>17.2} {:>20.2} {:>14.6}",
            self.bytes,
            self.iterations,
            self.peak_mib_per_second,
            self.average_mib_per_second,
            self.million_messages_per_second
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_has_percentiles_of_rounds() {
        let times: Vec<u64> = (1..=1000).rev().map(|n| n * 1000).collect();
        let found = Latency::of(Test::Read, 8, times.clone(), 1.0);
        assert_eq!((found.min_us, found.max_us, found.iterations), (1.0, 1000.0, 1000));
        assert_eq!((found.typical_us, found.average_us), (500.0, 500.5));
        assert_eq!((found.p99_us, found.p999_us), (990.0, 999.0));
        assert!((found.stdev_us - 288.67).abs() < 0.01, "{found:?}");
        let half = Latency::of(Test::Send, 8, times, 2.0);
        assert_eq!((half.max_us, half.typical_us), (500.0, 250.0));
        assert_eq!(Latency::of(Test::Read, 8, vec![], 1.0).max_us, 0.0);
        assert_eq!(Latency::of(Test::Read, 8, vec![7000], 1.0).p99_us, 7.0);
    }

    #[test]
    fn bandwidths_are_in_mib() {
        let took = Duration::from_secs(2);
        let found = Bandwidth::of(Test::Write, 1 << 20, 4000, took, 0.000_25);
        assert_eq!((found.peak_mib_per_second, found.average_mib_per_second), (4000.0, 2000.0));
        assert_eq!(found.million_messages_per_second, 0.002);
        let slow = Bandwidth::of(Test::Write, 1 << 20, 4000, took, f64::INFINITY);
        assert_eq!(slow.peak_mib_per_second, 2000.0, "the whole test is a stretch too");
    }

    #[test]
    fn lines_are_aligned_with_heads() {
        let latency = Latency::of(Test::Write, 8 << 20, vec![1_234_567; 3], 1.0);
        assert_eq!(latency.line().len(), Latency::head().len());
        let took = Duration::from_millis(1);
        let bandwidth = Bandwidth::of(Test::Write, 8 << 20, 5000, took, 1.0);
        assert_eq!(bandwidth.line().len(), Bandwidth::head().len());
        assert_eq!(bandwidth.line().split_whitespace().count(), 5);
    }
}
