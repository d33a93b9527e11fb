//! The number generators of YCSB (Cooper et al., SoCC 2010), each with YCSB's arithmetic, so that the same
//! random draws give the same numbers. Checked against the values of YCSB's Java classes.

use super::random::WorkloadRandom;

/// The default constant of YCSB's zipfian distributions.
pub const ZIPFIAN_CONSTANT: f64 = 0.99;
/// Items of the distribution under a scrambled zipfian one.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;
/// Its zeta for 0.99, as in YCSB.
const SCRAMBLED_ZETA: f64 = 26.469_028_201_783_02;
/// Terms of a zeta that are summed individually; the rest follows from the Euler-Maclaurin formula.
const ZETA_TERMS: u64 = 1 << 22;

/// YCSB's hash of a number: FNV-1a over its eight bytes, lowest first, without the sign.
pub fn fnv_hash(value: u64) -> u64 {
    let hash = value.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(1_099_511_628_211)
    });
    hash.cast_signed().unsigned_abs()
}

/// A random 63-bit number below `bound`, as YCSB draws it.
fn below(random: &mut WorkloadRandom, bound: u64) -> u64 {
    random.bits().cast_signed().unsigned_abs() % bound.max(1)
}

/// The sum of `1 / i^theta` for `i` after `from` up to `to`.
fn zeta(from: u64, to: u64, theta: f64) -> f64 {
    let exact = to.min(from.max(ZETA_TERMS));
    let sum: f64 = (from + 1..=exact).map(|i| (i as f64).powf(-theta)).sum();
    if exact == to {
        return sum;
    }
    let (a, b) = (exact as f64, to as f64);
    let integral = if theta == 1.0 {
        (b / a).ln()
    } else {
        (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta)
    };
    let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
    let slope = theta / 12.0 * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0));
    sum + integral + ends + slope
}

/// Numbers from a range, smaller ones more often (Gray et al., SIGMOD 1994).
#[derive(Clone, Debug)]
pub struct Zipfian {
    base: u64,
    items: u64,
    theta: f64,
    alpha: f64,
    zeta_two: f64,
    zeta_items: f64,
    eta: f64,
    /// The number of items of `zeta_items`.
    counted: u64,
}

impl Zipfian {
    /// Numbers from `min` to `max`. Takes a millisecond for each 100,000 of them.
    pub fn new(min: u64, max: u64, theta: f64) -> Self {
        let items = (max.saturating_sub(min) + 1).max(1);
        Self::with_zeta(min, items, theta, zeta(0, items, theta))
    }

    fn with_zeta(base: u64, items: u64, theta: f64, zeta_items: f64) -> Self {
        let mut zipfian = Self {
            base,
            items,
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta_two: zeta(0, 2, theta),
            zeta_items,
            eta: 0.0,
            counted: items,
        };
        zipfian.eta = zipfian.eta_now();
        zipfian
    }

    fn eta_now(&self) -> f64 {
        let two_of_all = 2.0 / self.items as f64;
        (1.0 - two_of_all.powf(1.0 - self.theta)) / (1.0 - self.zeta_two / self.zeta_items)
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom) -> u64 {
        self.next_of(random, self.items)
    }

    /// The next number as for `items` items. If that is more than ever before, the sum of the additional
    /// ones is added (and, as in YCSB, only that part of the formula follows). If it is fewer, the sum
    /// stays.
    #[inline]
    pub fn next_of(&mut self, random: &mut WorkloadRandom, items: u64) -> u64 {
        if items > self.counted {
            self.zeta_items += zeta(self.counted, items, self.theta);
            self.counted = items;
            self.eta = self.eta_now();
        }
        let u = random.unit();
        let uz = u * self.zeta_items;
        if uz < 1.0 {
            return self.base;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) {
            return self.base + 1;
        }
        let rank = items as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        self.base + (rank as u64).min(items.saturating_sub(1))
    }
}

/// Zipfian popularity scattered over the range, so that popular items are not neighbours.
#[derive(Clone, Debug)]
pub struct ScrambledZipfian {
    min: u64,
    items: u64,
    under: Zipfian,
}

impl ScrambledZipfian {
    /// Numbers from `min` to `max`.
    pub fn new(min: u64, max: u64, theta: f64) -> Self {
        let items = SCRAMBLED_ITEMS + 1;
        let sum = if theta == ZIPFIAN_CONSTANT { SCRAMBLED_ZETA } else { zeta(0, items, theta) };
        Self {
            min,
            items: max.saturating_sub(min) + 1,
            under: Zipfian::with_zeta(0, items, theta, sum),
        }
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom) -> u64 {
        self.min + fnv_hash(self.under.next(random)) % self.items
    }
}

/// Numbers up to the newest, newer ones more often.
#[derive(Clone, Debug)]
pub struct SkewedLatest {
    under: Zipfian,
}

impl SkewedLatest {
    /// For a run that begins with `newest` as the newest number.
    pub fn new(newest: u64, theta: f64) -> Self {
        Self { under: Zipfian::new(0, newest.saturating_sub(1), theta) }
    }

    /// The next number, with `newest` as the newest one.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom, newest: u64) -> u64 {
        newest - self.under.next_of(random, newest).min(newest)
    }
}

/// Numbers from a range with equal probability.
#[derive(Clone, Debug)]
pub struct Uniform {
    min: u64,
    items: u64,
}

impl Uniform {
    /// Numbers from `min` to `max`.
    pub fn new(min: u64, max: u64) -> Self {
        Self { min, items: max.saturating_sub(min) + 1 }
    }

    /// The next number.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom) -> u64 {
        self.min + below(random, self.items)
    }
}

/// Numbers from a range with most of the draws in its first part.
#[derive(Clone, Debug)]
pub struct Hotspot {
    min: u64,
    hot_items: u64,
    cold_items: u64,
    hot_draws: f64,
}

impl Hotspot {
    /// Numbers from `min` to `max`; a share of `hot_draws` from the first `hot_share` of them. Shares are
    /// from 0 to 1.
    pub fn new(min: u64, max: u64, hot_share: f64, hot_draws: f64) -> Self {
        let items = max.saturating_sub(min) + 1;
        let hot_items = (items as f64 * hot_share) as u64;
        Self { min, hot_items, cold_items: items - hot_items.min(items), hot_draws }
    }

    /// The next number. If one of the two parts is empty, the other one gets its draws.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom) -> u64 {
        let hot = random.unit() < self.hot_draws;
        if (hot && self.hot_items > 0) || self.cold_items == 0 {
            return self.min + below(random, self.hot_items);
        }
        self.min + self.hot_items + below(random, self.cold_items)
    }
}

/// Distances with an exponentially decreasing probability.
#[derive(Clone, Debug)]
pub struct Exponential {
    gamma: f64,
}

impl Exponential {
    /// `percentile` of 100 draws are below `range`.
    pub fn new(percentile: f64, range: f64) -> Self {
        Self { gamma: -(1.0 - percentile / 100.0).ln() / range }
    }

    /// The next distance, rounded down.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom) -> u64 {
        (-random.unit().ln() / self.gamma) as u64
    }
}

/// A weighted choice.
#[derive(Clone, Debug)]
pub struct Discrete<T> {
    parts: Vec<(f64, T)>,
    sum: f64,
}

impl<T: Copy> Discrete<T> {
    /// The choices with a positive weight; `None` if there are none.
    pub fn new(parts: impl IntoIterator<Item = (f64, T)>) -> Option<Self> {
        let parts: Vec<_> = parts.into_iter().filter(|(weight, _)| *weight > 0.0).collect();
        let sum = parts.iter().map(|(weight, _)| weight).sum();
        (!parts.is_empty()).then_some(Self { parts, sum })
    }

    /// The next choice.
    #[inline]
    pub fn next(&mut self, random: &mut WorkloadRandom) -> T {
        let mut left = random.unit();
        for (weight, thing) in &self.parts[..self.parts.len() - 1] {
            let share = weight / self.sum;
            if left < share {
                return *thing;
            }
            left -= share;
        }
        self.parts[self.parts.len() - 1].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 24 numbers of a generator from the draws of seed 1.
    fn draw(mut next: impl FnMut(&mut WorkloadRandom) -> u64) -> Vec<u64> {
        let mut random = WorkloadRandom::new(1);
        (0..24).map(|_| next(&mut random)).collect()
    }

    // The numbers below are what the classes of YCSB 0.18 give when their random source is replaced
    // by splitmix64 with seed 1, the sequence of `WorkloadRandom::new(1)`.

    #[test]
    fn the_hash_is_ycsbs() {
        let hashes = [0, 1, 2, 999, 300_000, 1 << 40].map(fnv_hash);
        let wanted = [
            6_284_781_860_667_377_211,
            8_517_097_267_634_966_620,
            1_820_151_046_732_198_393,
            2_071_219_101_098_386_137,
            4_957_861_345_786_552_768,
            6_908_947_124_047_430_886,
        ];
        assert_eq!(hashes, wanted);
    }

    #[test]
    fn zipfian_is_ycsbs() {
        let mut generator = Zipfian::new(0, 999, ZIPFIAN_CONSTANT);
        let wanted = [
            37, 146, 804, 14, 14, 167, 397, 26, 4, 211, 10, 49, 15, 27, 13, 1, 67, 248, 89, 419, 0,
            0, 21, 0,
        ];
        assert_eq!(draw(|random| generator.next(random)), wanted);
        let mut generator = Zipfian::new(10, 1009, 0.5);
        let wanted = [
            339, 572, 953, 216, 216, 598, 783, 292, 98, 646, 181, 384, 225, 299, 208, 43, 434, 680,
            482, 795, 16, 19, 264, 29,
        ];
        assert_eq!(draw(|random| generator.next(random)), wanted);
    }

    #[test]
    fn scrambled_zipfian_is_ycsbs() {
        let mut generator = ScrambledZipfian::new(0, 299_999, ZIPFIAN_CONSTANT);
        let wanted = [
            20_830, 129_230, 75_315, 249_769, 132_169, 243_856, 57_082, 46_519, 88_000, 22_898,
            227_552, 123_812, 87_512, 70_966, 247_858, 42_426, 179_929, 181_931, 71_644, 277_598,
            298_393, 187_802, 233_746, 224_146,
        ];
        assert_eq!(draw(|random| generator.next(random)), wanted);
    }

    #[test]
    fn latest_is_ycsbs_also_while_it_grows() {
        let mut generator = SkewedLatest::new(999, ZIPFIAN_CONSTANT);
        let wanted = [
            962, 853, 195, 985, 985, 833, 602, 973, 995, 788, 989, 950, 984, 972, 986, 998, 932,
            751, 910, 581, 999, 999, 978, 999,
        ];
        assert_eq!(draw(|random| generator.next(random, 999)), wanted);
        let mut newest = 999;
        let grown = draw(|random| {
            newest += 1;
            generator.next(random, newest)
        });
        let wanted = [
            963, 855, 196, 989, 990, 838, 606, 981, 1004, 796, 1000, 961, 997, 985, 1001, 1014,
            947, 764, 927, 592, 1020, 1021, 1001, 1023,
        ];
        assert_eq!(grown, wanted);
    }

    #[test]
    fn the_others_are_ycsbs() {
        let mut uniform = Uniform::new(5, 104);
        let wanted = [
            56, 102, 31, 40, 66, 73, 76, 88, 25, 71, 42, 51, 89, 99, 21, 44, 66, 80, 7, 29, 51, 49,
            90, 81,
        ];
        assert_eq!(draw(|random| uniform.next(random)), wanted);
        let mut hotspot = Hotspot::new(0, 999, 0.2, 0.8);
        let wanted = [
            97, 435, 168, 883, 66, 146, 94, 139, 175, 24, 44, 76, 159, 5, 62, 94, 156, 36, 135,
            652, 737, 198, 944, 118,
        ];
        assert_eq!(draw(|random| hotspot.next(random)), wanted);
        let mut exponential = Exponential::new(95.0, 1000.0 * 0.857_142_857_1);
        let wanted = [
            162, 83, 8, 232, 232, 77, 37, 185, 358, 66, 259, 143, 225, 181, 237, 512, 125, 58, 109,
            35, 777, 717, 200, 599,
        ];
        assert_eq!(draw(|random| exponential.next(random)), wanted);
        let mut discrete = Discrete::new([(0.5, 1), (0.3, 2), (0.0, 9), (0.2, 3)]).unwrap();
        let wanted = [2, 2, 3, 1, 1, 2, 3, 2, 1, 2, 1, 2, 1, 2, 1, 1, 2, 3, 2, 3, 1, 1, 1, 1];
        assert_eq!(draw(|random| discrete.next(random)), wanted);
        assert!(Discrete::new([(0.0, 1)]).is_none());
    }

    #[test]
    fn the_long_sum_is_ycsbs_constant() {
        let sum = zeta(0, SCRAMBLED_ITEMS, ZIPFIAN_CONSTANT);
        assert!((sum - SCRAMBLED_ZETA).abs() < 1e-6, "{sum}");
        let parts = zeta(0, 1000, 0.7) + zeta(1000, 5_000_000, 0.7);
        let exact: f64 = (1..=5_000_000_u32).map(|i| f64::from(i).powf(-0.7)).sum();
        assert!((parts - exact).abs() < 1e-6, "{parts} for {exact}");
        let harmonic = zeta(0, 10_000_000, 1.0);
        assert!((harmonic - 16.695_311_365_857_27).abs() < 1e-9, "{harmonic}");
    }

    #[test]
    fn grown_step_by_step_is_grown_at_once() {
        let mut random = WorkloadRandom::new(3);
        let (mut slow, mut fast) = (Zipfian::new(0, 99, 0.99), Zipfian::new(0, 99, 0.99));
        for items in 101..=2_000 {
            slow.next_of(&mut random, items);
        }
        fast.next_of(&mut random, 2_000);
        assert!((slow.zeta_items - fast.zeta_items).abs() < 1e-9);
        assert!((slow.eta - fast.eta).abs() < 1e-9);
    }

    #[test]
    fn every_range_is_kept_even_the_smallest() {
        let mut random = WorkloadRandom::new(9);
        for items in [1, 2, 3, 10, 1_000] {
            let max = 7 + items - 1;
            let mut zipfian = Zipfian::new(7, max, 0.99);
            let mut scrambled = ScrambledZipfian::new(7, max, 0.99);
            let mut latest = SkewedLatest::new(max, 0.99);
            let mut hotspots =
                [(0.2, 0.8), (0.0, 1.0), (1.0, 0.0)].map(|(a, b)| Hotspot::new(7, max, a, b));
            for _ in 0..2_000 {
                assert!((7..=max).contains(&zipfian.next(&mut random)));
                assert!((7..=max).contains(&scrambled.next(&mut random)));
                assert!(latest.next(&mut random, max) <= max);
                for hotspot in &mut hotspots {
                    assert!((7..=max).contains(&hotspot.next(&mut random)));
                }
            }
        }
    }

    /// The share of the first item and of the first hundred against the distribution's own formula.
    #[test]
    fn the_first_get_their_share() {
        let (items, draws) = (10_000, 400_000);
        let mut generator = Zipfian::new(0, items - 1, ZIPFIAN_CONSTANT);
        let mut random = WorkloadRandom::new(4);
        let numbers: Vec<u64> = (0..draws).map(|_| generator.next(&mut random)).collect();
        let all = zeta(0, items, ZIPFIAN_CONSTANT);
        for first in [1, 2, 100] {
            let seen =
                numbers.iter().filter(|number| **number < first).count() as f64 / f64::from(draws);
            let wanted = zeta(0, first, ZIPFIAN_CONSTANT) / all;
            assert!((seen / wanted - 1.0).abs() < 0.05, "first {first}: {seen} for {wanted}");
        }
    }
}
