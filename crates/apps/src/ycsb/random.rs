//! The random numbers of a run: splitmix64, reproducible from its seed on every machine.

use crate::dht::scramble;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub struct WorkloadRandom {
    state: u64,
}

impl WorkloadRandom {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The sequence `stream` of a seed, distinct from all others.
    pub fn stream(seed: u64, stream: u64) -> Self {
        Self::new(scramble(seed ^ scramble(stream)))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let bits = scramble(self.state);
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits
    }

    /// A number from 0 to under 1, with 53 random bits as Java draws it.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix64_as_published() {
        let mut random = WorkloadRandom::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(first, published);
    }

    #[test]
    fn units_fill_their_range() {
        let mut random = WorkloadRandom::new(5);
        let units: Vec<f64> = (0..10_000).map(|_| random.unit()).collect();
        assert!(units.iter().all(|u| (0.0..1.0).contains(u)));
        let mean = units.iter().sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
    }
}
