//! Reconnect backoff: exponential, with an upper bound.

/// The first attempt is immediate; then this delay, doubled each time, up to the maximum.
const WAIT_NS: u64 = 500_000;
const WAIT_NS_MAX: u64 = 100_000_000;

/// Failed attempts in a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Backoff {
    tries: u32,
}

impl Backoff {
    /// Returns the delay before the next attempt; call once per attempt.
    pub(crate) fn next_delay_ns(&mut self) -> u64 {
        let doublings = self.tries.saturating_sub(1).min(16);
        let wait_ns = if self.tries == 0 { 0 } else { (WAIT_NS << doublings).min(WAIT_NS_MAX) };
        self.tries = self.tries.saturating_add(1);
        wait_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_bound() {
        let mut backoff = Backoff::default();
        let waits: Vec<u64> = (0..40).map(|_| backoff.next_delay_ns()).collect();
        assert_eq!(waits[..4], [0, 500_000, 1_000_000, 2_000_000]);
        assert!(waits[12..].iter().all(|wait_ns| *wait_ns == WAIT_NS_MAX), "{waits:?}");
    }
}
