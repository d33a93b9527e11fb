//! Adaptive time slices: the amount of work per slice is adjusted to a target duration.

/// Target duration of a slice of a call; slices take 0.9 to 2 times as long. A short call waits for one slice. A
/// slice costs some 250 ns of overhead, so that shorter slices would be mostly overhead.
const SLICE_NS: u64 = 500;
/// Target duration of a slice of a registration: longer, since there are fewer of them, and each costs a poll.
const LOADING_NS: u64 = 1_000;
/// Factor for slices of registrations while there are no calls.
pub(crate) const QUIET: u64 = 8;
/// Short slices in a row before slices grow. Durations vary with cache misses; this keeps slices that overrun the
/// target rare.
const SHORT_SLICES_MAX: u8 = 8;
/// Instructions per memory access of a slice: one access takes about as long.
const INSTRUCTIONS_PER_ACCESS: u64 = 16;

/// Amount of work per slice. Halved after a slice that took too long, doubled after several short ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SliceLength {
    work: u64,
    least: u64,
    most: u64,
    slice_ns: u64,
    /// Number of short slices in a row.
    short_slices: u8,
}

impl SliceLength {
    /// For instructions, and bytes moved by helpers. Starts at a nanosecond per instruction; the minimum is for
    /// cache misses and divisions.
    pub(crate) const INSTRUCTIONS: Self =
        Self { work: 512, least: 128, most: 4_096, slice_ns: SLICE_NS, short_slices: 0 };
    /// For instructions walked by a verification: some 50 ns each, up to a microsecond for adversarial programs.
    pub(crate) const WALKED: Self =
        Self { work: 16, least: 1, most: 64, slice_ns: LOADING_NS, short_slices: 0 };

    /// Returns the work of the next slice.
    pub(crate) const fn work(&self) -> u64 {
        self.work
    }

    /// Returns the memory accesses of the next slice, if its work is in instructions.
    pub(crate) const fn accesses(&self) -> usize {
        (self.work / INSTRUCTIONS_PER_ACCESS) as usize
    }

    /// Records the duration of a slice that was used up.
    pub(crate) fn took(&mut self, used_ns: u64) {
        if used_ns < self.slice_ns / 10 * 9 {
            self.short_slices += 1;
            if self.short_slices == SHORT_SLICES_MAX {
                (self.work, self.short_slices) = ((self.work * 2).min(self.most), 0);
            }
            return;
        }
        self.short_slices = 0;
        if used_ns > self.slice_ns * 2 {
            self.work = (self.work / 2).max(self.least);
        }
    }
}

const _: () =
    assert!(SliceLength::INSTRUCTIONS.least >= INSTRUCTIONS_PER_ACCESS, "a slice has accesses");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_converge_to_the_target_duration() {
        // Tenths of a nanosecond per instruction, and the resulting slice.
        for (tenths, instructions) in [(1, 4_096), (5, 1_024), (10, 512), (30, 256), (500, 128)] {
            let mut slice = SliceLength::INSTRUCTIONS;
            for _ in 0..8 * SHORT_SLICES_MAX {
                slice.took(slice.work() * tenths / 10);
            }
            assert_eq!(slice.work(), instructions, "{tenths} tenths");
        }
    }

    #[test]
    fn slice_overhead_does_not_keep_slices_short() {
        let mut slice = SliceLength::INSTRUCTIONS;
        (0..10).for_each(|_| slice.took(1_000_000));
        (0..10 * SHORT_SLICES_MAX).for_each(|_| slice.took(250 + slice.work() / 8));
        assert_eq!(slice.work(), 2_048);
    }

    #[test]
    fn verification_slices_adapt_to_slow_instructions() {
        let mut slice = SliceLength::WALKED;
        (0..8).for_each(|_| slice.took(slice.work() * 60));
        assert_eq!(slice.work(), 16);
        (0..8).for_each(|_| slice.took(slice.work() * 4_000));
        assert_eq!(slice.work(), 1);
    }

    #[test]
    fn slice_recovers_after_slow_period() {
        let mut slice = SliceLength::INSTRUCTIONS;
        (0..10).for_each(|_| slice.took(1_000_000));
        assert_eq!((slice.work(), slice.accesses()), (128, 8));
        (0..10 * SHORT_SLICES_MAX).for_each(|_| slice.took(1));
        assert_eq!((slice.work(), slice.accesses()), (4_096, 256));
    }

    #[test]
    fn slices_adapt_to_outliers() {
        // Every fifth slice takes five times as long.
        let mut slice = SliceLength::INSTRUCTIONS;
        let took = |slice: &mut SliceLength, at: u64| {
            let used_ns = slice.work() / 8 * if at.is_multiple_of(5) { 5 } else { 1 };
            slice.took(used_ns);
            used_ns > 2 * SLICE_NS
        };
        (0..100).for_each(|at| _ = took(&mut slice, at));
        let late = (100..1_100).filter(|at| took(&mut slice, *at)).count();
        assert_eq!(late, 0);
    }
}
