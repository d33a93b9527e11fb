//! Latencies of many operations, merged from the counts of several threads or workers.

use crate::worker::{LookupStats, Ran};
use serde::Serialize;
use std::collections::BTreeMap;

/// Number of operations by latency in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latencies {
    counts: BTreeMap<u64, u64>,
    operations: u64,
}

/// Percentiles of latencies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Percentiles {
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Maximum.
    pub max_ns: u64,
}

impl Latencies {
    /// Adds latencies in nanoseconds, each with its number of operations.
    pub fn add(&mut self, counted: &[(u64, u64)]) {
        for (value, count) in counted {
            *self.counts.entry(*value).or_default() += count;
            self.operations += count;
        }
    }

    /// Returns the number of operations.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns the least value that at least `permille` thousandths of the operations do not exceed.
    fn at(&self, permille: u64) -> u64 {
        let wanted = (u128::from(self.operations) * u128::from(permille)).div_ceil(1_000);
        let mut seen = 0_u128;
        for (value, count) in &self.counts {
            seen += u128::from(*count);
            if seen >= wanted {
                return *value;
            }
        }
        0
    }

    /// Returns the percentiles; zeros without operations.
    pub fn percentiles(&self) -> Percentiles {
        Percentiles {
            p50_ns: self.at(500),
            p99_ns: self.at(990),
            p999_ns: self.at(999),
            max_ns: self.at(1_000),
        }
    }
}

/// A workload's result over all nodes.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Number of operations.
    pub operations: u64,
    /// Throughput of all nodes.
    pub operations_per_second: f64,
    /// Latencies of all operations.
    #[serde(flatten)]
    pub all: Percentiles,
    /// Latencies of each kind of operation.
    pub by_kind: BTreeMap<String, Percentiles>,
    /// Operations that failed.
    pub errors: u64,
    /// The reason of one of them.
    pub first_error: Option<String>,
    /// Operations that found no record.
    pub absent: u64,
    /// Operations that found a value that no operation had written.
    pub wrong: u64,
    /// Results of reads by calls, with `--by-call`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lookups: Option<LookupStats>,
}

impl Summary {
    /// Merges the nodes' results. The elapsed time is that of the slowest node.
    pub fn of(shares: &[Ran]) -> Self {
        let mut all = Latencies::default();
        let mut kinds: BTreeMap<String, Latencies> = BTreeMap::new();
        for share in shares {
            for (kind, counted) in &share.latencies {
                all.add(counted);
                kinds.entry(kind.clone()).or_default().add(counted);
            }
        }
        let elapsed_ns = shares.iter().map(|share| share.elapsed_ns).max().unwrap_or(0).max(1);
        Self {
            operations: all.operations(),
            operations_per_second: all.operations() as f64 * 1e9 / elapsed_ns as f64,
            all: all.percentiles(),
            by_kind: kinds.into_iter().map(|(kind, of)| (kind, of.percentiles())).collect(),
            errors: shares.iter().map(|share| share.errors).sum(),
            first_error: shares.iter().find_map(|share| share.first_error.clone()),
            absent: shares.iter().map(|share| share.absent).sum(),
            wrong: shares.iter().map(|share| share.wrong).sum(),
            lookups: shares
                .iter()
                .filter_map(|share| share.lookups.clone())
                .reduce(LookupStats::and),
        }
    }
}

/// Returns the median of samples; 0 without any.
pub fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_include_all_operations() {
        let mut latencies = Latencies::default();
        latencies.add(&[(10, 500), (20, 490)]);
        latencies.add(&[(20, 9), (900, 1)]);
        let found = latencies.percentiles();
        let expected = Percentiles { p50_ns: 10, p99_ns: 20, p999_ns: 20, max_ns: 900 };
        assert_eq!(found, expected);
        assert_eq!(Latencies::default().percentiles().max_ns, 0);
    }

    #[test]
    fn summary_adds_shares() {
        let share = |elapsed_ns, kind: &str| Ran {
            elapsed_ns,
            latencies: BTreeMap::from([(kind.to_owned(), vec![(100, 50)])]),
            errors: 2,
            first_error: Some(kind.to_owned()),
            absent: 1,
            wrong: 0,
            lookups: None,
        };
        let summary = Summary::of(&[share(1_000_000, "read"), share(2_000_000, "update")]);
        assert_eq!(summary.operations, 100);
        assert_eq!(summary.operations_per_second, 50_000.0);
        assert_eq!(summary.by_kind.len(), 2);
        assert_eq!(summary.first_error.as_deref(), Some("read"));
        assert_eq!((summary.errors, summary.absent), (4, 2));
    }
}
