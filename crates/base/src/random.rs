//! Pseudo-random numbers that a seed repeats, on every machine.

/// A generator of pseudo-random numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), one word of state, every seed
/// good, period 2^64. Not for secrets.
///
/// All tests, simulations and benchmarks draw from this type, so that one seed repeats a failure.
///
/// ```
/// let mut random = farside_base::Random::new(7);
/// assert!(random.below(10) < 10);
/// assert_eq!(farside_base::Random::new(7).word(), farside_base::Random::new(7).word());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns the next byte.
    pub const fn byte(&mut self) -> u8 {
        (self.word() >> 56) as u8
    }

    /// Returns a number below `bound`; zero when the bound is.
    pub const fn below(&mut self, bound: u64) -> u64 {
        ((self.word() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, both included.
    pub const fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// Returns an index of a list of `length` items.
    pub const fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns true once in `odds` times.
    pub const fn one_in(&mut self, odds: u64) -> bool {
        self.below(odds) == 0
    }

    /// Returns true `per_mille` times of a thousand.
    pub const fn chance(&mut self, per_mille: u32) -> bool {
        self.below(1000) < per_mille as u64
    }

    /// Returns one of the items; the list is not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.index(items.len())]
    }

    /// Puts the items in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Returns an independent sequence, so that one part's draws do not shift another's.
    pub const fn fork(&mut self) -> Self {
        Self(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_met_and_kept() {
        let mut random = Random::new(7);
        let mut seen = [0_u32; 4];
        for _ in 0..400 {
            seen[random.between(3, 6) as usize - 3] += 1;
        }
        assert!(seen.iter().all(|count| *count > 50), "{seen:?}");
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn a_seed_repeats() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            [random.word(), random.fork().word(), random.word()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}
