//! How long a slice is: as much work as takes about so long, whatever one piece of it takes.

/// What a slice of a call shall take, nine tenths to twice as much. Whoever has a short call waits for one slice;
/// and each costs some 250 ns besides what it does, so that shorter ones would do nothing else.
const SLICE_NS: u64 = 500;
/// What a slice of a registration shall take: more, since there are fewer of them, and each costs a turn.
const LOADING_NS: u64 = 1_000;
/// How much longer those of a registration are while nobody calls.
pub(super) const QUIET: u64 = 8;
/// Slices in a row that are over too soon before the next ones are longer: what takes now this long and now that, as
/// memory in caches and beyond does, shall take too long seldom.
const SOON_MAX: u8 = 8;
/// Instructions for each access of a slice: one takes about as long as so many.
const INSTRUCTIONS_PER_ACCESS: u64 = 16;

/// How much of something a slice has, as the last ones tell: half as much as one that has taken too long, and
/// twice as much as some that were over too soon.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Pace {
    now: u64,
    least: u64,
    most: u64,
    slice_ns: u64,
    /// The last ones that were over too soon.
    soon: u8,
}

impl Pace {
    /// Of instructions, and of bytes that helpers move. Begins where an instruction takes a nanosecond; the least
    /// is for loads that no cache has, and divisions.
    pub(super) const INSTRUCTIONS: Self =
        Self { now: 512, least: 128, most: 4_096, slice_ns: SLICE_NS, soon: 0 };
    /// Of instructions that a verification walks: some 50 ns each, and a microsecond of those that want to take
    /// long.
    pub(super) const WALKED: Self =
        Self { now: 16, least: 1, most: 64, slice_ns: LOADING_NS, soon: 0 };

    /// How much the next slice has.
    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    /// How many accesses it has, where these are instructions.
    pub(super) const fn accesses(&self) -> usize {
        (self.now / INSTRUCTIONS_PER_ACCESS) as usize
    }

    /// A slice that was used up has taken so long.
    pub(super) fn took(&mut self, used_ns: u64) {
        if used_ns < self.slice_ns / 10 * 9 {
            self.soon += 1;
            if self.soon == SOON_MAX {
                (self.now, self.soon) = ((self.now * 2).min(self.most), 0);
            }
            return;
        }
        self.soon = 0;
        if used_ns > self.slice_ns * 2 {
            self.now = (self.now / 2).max(self.least);
        }
    }
}

const _: () = assert!(Pace::INSTRUCTIONS.least >= INSTRUCTIONS_PER_ACCESS, "a slice has accesses");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_come_to_take_what_they_shall() {
        // Tenths of a nanosecond for each instruction, and what slices come to.
        for (tenths, instructions) in [(1, 4_096), (5, 1_024), (10, 512), (30, 256), (500, 128)] {
            let mut pace = Pace::INSTRUCTIONS;
            for _ in 0..8 * SOON_MAX {
                pace.took(pace.now() * tenths / 10);
            }
            assert_eq!(pace.now(), instructions, "{tenths} tenths");
        }
    }

    #[test]
    fn what_each_slice_costs_besides_does_not_keep_them_short() {
        let mut pace = Pace::INSTRUCTIONS;
        (0..10).for_each(|_| pace.took(1_000_000));
        (0..10 * SOON_MAX).for_each(|_| pace.took(250 + pace.now() / 8));
        assert_eq!(pace.now(), 2_048);
    }

    #[test]
    fn those_of_a_verification_are_longer() {
        let mut pace = Pace::WALKED;
        (0..8).for_each(|_| pace.took(pace.now() * 60));
        assert_eq!(pace.now(), 16);
        (0..8).for_each(|_| pace.took(pace.now() * 4_000));
        assert_eq!(pace.now(), 1);
    }

    #[test]
    fn one_that_was_slow_for_a_while_recovers() {
        let mut pace = Pace::INSTRUCTIONS;
        (0..10).for_each(|_| pace.took(1_000_000));
        assert_eq!((pace.now(), pace.accesses()), (128, 8));
        (0..10 * SOON_MAX).for_each(|_| pace.took(1));
        assert_eq!((pace.now(), pace.accesses()), (4_096, 256));
    }

    #[test]
    fn what_takes_too_long_now_and_then_comes_to_take_too_long_seldom() {
        // Every fifth takes five times as long.
        let mut pace = Pace::INSTRUCTIONS;
        let took = |pace: &mut Pace, at: u64| {
            let used_ns = pace.now() / 8 * if at.is_multiple_of(5) { 5 } else { 1 };
            pace.took(used_ns);
            used_ns > 2 * SLICE_NS
        };
        (0..100).for_each(|at| _ = took(&mut pace, at));
        let late = (100..1_100).filter(|at| took(&mut pace, *at)).count();
        assert_eq!(late, 0);
    }
}
