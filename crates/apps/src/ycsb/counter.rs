//! The numbers of inserted records: assigned in order, and visible once each lower one has been inserted
//! too.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// YCSB's `AcknowledgedCounterGenerator`.
#[derive(Debug)]
pub(super) struct AcknowledgedCounter {
    next: AtomicU64,
    /// All numbers below are acknowledged.
    limit: AtomicU64,
    early: Mutex<BTreeSet<u64>>,
}

impl AcknowledgedCounter {
    /// Starts the numbers at `start`.
    pub(super) fn new(start: u64) -> Self {
        Self {
            next: AtomicU64::new(start),
            limit: AtomicU64::new(start),
            early: Mutex::new(BTreeSet::new()),
        }
    }

    /// Assigns a unique number.
    pub(super) fn next(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Records that `number` is inserted.
    pub(super) fn acknowledge(&self, number: u64) {
        let mut early = self.early.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        early.insert(number);
        let mut limit = self.limit.load(Ordering::Relaxed);
        while early.remove(&limit) {
            limit += 1;
        }
        self.limit.store(limit, Ordering::Release);
    }

    /// The newest number with all lower ones inserted.
    #[inline]
    pub(super) fn newest(&self) -> u64 {
        self.limit.load(Ordering::Acquire).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_holds_the_newest_back() {
        let counter = AcknowledgedCounter::new(10);
        assert_eq!(counter.newest(), 9);
        let numbers: Vec<u64> = (0..4).map(|_| counter.next()).collect();
        assert_eq!(numbers, [10, 11, 12, 13]);
        counter.acknowledge(11);
        counter.acknowledge(12);
        assert_eq!(counter.newest(), 9);
        counter.acknowledge(10);
        assert_eq!(counter.newest(), 12);
        counter.acknowledge(13);
        assert_eq!(counter.newest(), 13);
    }
}
