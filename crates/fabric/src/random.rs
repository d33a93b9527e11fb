//! A small seeded generator, the same on every machine: for fault plans and the conformance suite.

/// xorshift64*. Not for keys.
#[derive(Clone, Debug)]
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.word();
        }
        random
    }

    /// Returns the upper halves of two words, which are the better ones.
    pub(crate) fn word(&mut self) -> u64 {
        let mut half = || {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
        };
        half() << 32 | half()
    }

    /// Returns a number below `end`, or 0 if there is none.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.word() % end.max(1)
    }
}
