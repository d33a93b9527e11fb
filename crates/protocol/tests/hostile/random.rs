//! Reproducible random numbers: SplitMix64.

pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.word() as u128 * bound as u128) >> 64) as u64
    }

    /// True once in `of` times.
    pub(crate) const fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) const fn pick(&mut self, items: &[u64]) -> u64 {
        items[self.below(items.len() as u64) as usize]
    }
}
