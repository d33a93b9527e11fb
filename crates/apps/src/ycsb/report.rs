//! The measurements of a run.

use super::operation::Operation;
use hdrhistogram::Histogram;

/// The maximum recorded latency: longer ones are counted as this one.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// The measurements of one kind of operation.
#[derive(Clone, Debug)]
pub struct OperationReport {
    /// Latencies in nanoseconds of all that ended without an error, to 1 in 1,000.
    pub latency_ns: Histogram<u64>,
    /// The number of them that found no record.
    pub absent: u64,
    /// The number of them that found a record of another key.
    pub wrong: u64,
    /// The number that failed; their latencies are not counted.
    pub errors: u64,
    /// The first error.
    pub first_error: Option<String>,
}

impl OperationReport {
    fn new() -> Self {
        let bounds = Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Self {
            latency_ns: bounds.expect("1 to 60 s with 3 digits is a histogram"),
            absent: 0,
            wrong: 0,
            errors: 0,
            first_error: None,
        }
    }

    /// Operations that ended without an error.
    pub fn count(&self) -> u64 {
        self.latency_ns.len()
    }

    pub(super) fn succeeded(&mut self, latency_ns: u64) {
        self.latency_ns.saturating_record(latency_ns.clamp(1, LATENCY_NS_MAX));
    }

    pub(super) fn failed(&mut self, error: &impl std::error::Error) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(error.to_string());
        }
    }
}

/// The measurements of one or more clients.
#[derive(Clone, Debug)]
pub struct WorkloadReport {
    operations: Vec<OperationReport>,
    /// Nanoseconds from the first operation's call to the last one's return, for the slowest client.
    pub elapsed_ns: u64,
}

impl Default for WorkloadReport {
    fn default() -> Self {
        Self { operations: Operation::ALL.map(|_| OperationReport::new()).to_vec(), elapsed_ns: 0 }
    }
}

impl WorkloadReport {
    /// The measurements of a kind.
    pub fn operation(&self, operation: Operation) -> &OperationReport {
        &self.operations[operation as usize]
    }

    pub(super) fn operation_mut(&mut self, operation: Operation) -> &mut OperationReport {
        &mut self.operations[operation as usize]
    }

    /// Operations of all kinds that ended without an error.
    pub fn count(&self) -> u64 {
        self.operations.iter().map(OperationReport::count).sum()
    }

    /// Operations of all kinds that failed.
    pub fn errors(&self) -> u64 {
        self.operations.iter().map(|operation| operation.errors).sum()
    }

    /// Records that did not belong to their keys.
    pub fn wrong(&self) -> u64 {
        self.operations.iter().map(|operation| operation.wrong).sum()
    }

    /// Operations a second.
    pub fn rate(&self) -> f64 {
        self.count() as f64 * 1e9 / self.elapsed_ns.max(1) as f64
    }

    /// Adds the measurements of another concurrent client.
    pub fn merge(&mut self, other: &Self) {
        for (mine, other) in self.operations.iter_mut().zip(&other.operations) {
            // Both have the same bounds.
            let _ = mine.latency_ns.add(&other.latency_ns);
            mine.absent += other.absent;
            mine.wrong += other.wrong;
            mine.errors += other.errors;
            if mine.first_error.is_none() {
                mine.first_error.clone_from(&other.first_error);
            }
        }
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_counts_add_up() {
        let mut one = WorkloadReport { elapsed_ns: 2_000_000_000, ..WorkloadReport::default() };
        let mut two = WorkloadReport { elapsed_ns: 1_000_000_000, ..WorkloadReport::default() };
        for latency in [0, 500, u64::MAX] {
            one.operation_mut(Operation::Read).succeeded(latency);
        }
        two.operation_mut(Operation::Read).succeeded(700);
        two.operation_mut(Operation::Insert).failed(&std::fmt::Error);
        one.merge(&two);
        assert_eq!((one.count(), one.errors(), one.wrong()), (4, 1, 0));
        assert_eq!(one.operation(Operation::Read).latency_ns.len(), 4);
        assert_eq!(one.operation(Operation::Read).latency_ns.min(), 1);
        assert!(one.operation(Operation::Insert).first_error.is_some());
        assert!((one.rate() - 2.0).abs() < 1e-9);
    }
}
