//! A pseudo-random generator, repeatable by seed: SplitMix64.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        ((self.word() as u128 * bound as u128) >> 64) as u64
    }

    /// Returns true with probability 1 / `of`.
    pub(crate) const fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    pub(crate) const fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    pub(crate) fn bytes(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.word() as u8).collect()
    }

    /// Returns a word that may be meaningful to a channel: a length, a count, an offset, or parts of them.
    pub(crate) fn telling_word(&mut self, message_bytes_max: u32, ring_bytes: u64) -> u64 {
        let shifts = [0, 3, 8, 12, 16, 19, 20, 24, 32, 40, 48];
        let length = self.below(u64::from(message_bytes_max) + 10);
        match self.below(8) {
            0 => self.pick(&[0, 1, u64::MAX, 1 << 63, 1 << 31, 1 << 24, ring_bytes]),
            1 => length,
            2 => self.word(),
            3 => self.below(16) << self.pick(&shifts),
            4 => self.below(ring_bytes * 2) & !7,
            // A bell: a sequence number and a length.
            5 | 6 => (self.below(20) << self.pick(&[24, 32])) | (length + 1),
            _ => (self.below(16) << self.pick(&shifts)) | (self.below(16) << self.pick(&shifts)),
        }
    }
}
