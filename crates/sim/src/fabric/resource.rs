//! A server of a queueing model, in virtual time.

/// A resource that serves one request at a time. It counts picoseconds, since small packets take few nanoseconds.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Resource {
    free_ps: u64,
}

impl Resource {
    /// Serves a request that arrives at `at_ns` for `busy_ps`. Returns when service begins and ends.
    pub(super) fn take(&mut self, at_ns: u64, busy_ps: u64) -> (u64, u64) {
        let start_ps = self.free_ps.max(at_ns.saturating_mul(1_000));
        self.free_ps = start_ps.saturating_add(busy_ps);
        (start_ps.div_ceil(1_000), self.free_ps.div_ceil(1_000))
    }

    /// As [`take`](Self::take), in picoseconds.
    pub(super) fn take_ps(&mut self, at_ps: u64, busy_ps: u64) -> (u64, u64) {
        let start_ps = self.free_ps.max(at_ps);
        self.free_ps = start_ps.saturating_add(busy_ps);
        (start_ps, self.free_ps)
    }

    /// Keeps it busy until `at_ps`, as the next stage does that accepts nothing before.
    pub(super) fn hold_ps(&mut self, at_ps: u64) {
        self.free_ps = self.free_ps.max(at_ps);
    }

    /// Returns the time at which it is idle again.
    pub(super) fn free_ns(&self) -> u64 {
        self.free_ps.div_ceil(1_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resource_serves_requests_in_sequence() {
        let mut wire = Resource::default();
        assert_eq!(wire.take(10, 2_500), (10, 13));
        assert_eq!(wire.take(10, 2_500), (13, 15), "the half nanoseconds add up");
        assert_eq!(wire.take(100, 0), (100, 100));
        assert_eq!(wire.free_ns(), 100);
    }
}
