//! Which keys a client puts often: the space-saving counters of Metwally, Agrawal and El Abbadi (2005), in sets, so that an
//! update searches eight of them.

use crate::dht::hash::scramble;

const WAYS: usize = 8;
/// Puts of a set after which its counts are halved: keys that are not put any more lose their counts.
const WINDOW: u32 = 512;

#[derive(Clone, Copy, Default, Debug)]
struct Counter {
    key: u64,
    count: u32,
    /// What the count may be too high by: that of the key before.
    error: u32,
}

#[derive(Clone, Default, Debug)]
struct CounterSet {
    counters: [Counter; WAYS],
    seen: u32,
}

/// Counts keys, which are hashes, in bounded space: a key without a counter replaces the one with the lowest count.
#[derive(Debug)]
pub(super) struct SpaceSaving {
    sets: Box<[CounterSet]>,
}

impl SpaceSaving {
    pub(super) fn new(counters: usize) -> Self {
        Self { sets: vec![CounterSet::default(); counters.div_ceil(WAYS).max(1)].into() }
    }

    fn set(&mut self, key: u64) -> &mut CounterSet {
        let high = scramble(key) >> 32;
        let at = (high * self.sets.len() as u64) >> 32;
        &mut self.sets[at as usize]
    }

    /// Counts a key; returns a lower bound of its count.
    pub(super) fn count(&mut self, key: u64) -> u32 {
        let set = self.set(key);
        set.seen += 1;
        if set.seen == WINDOW {
            set.seen = 0;
            for counter in &mut set.counters {
                (counter.count, counter.error) = (counter.count / 2, counter.error / 2);
            }
        }
        let place = |counter: &Counter| (counter.key != key, counter.count);
        let Some(counter) = set.counters.iter_mut().min_by_key(|counter| place(counter)) else {
            return 0;
        };
        if counter.key != key {
            *counter = Counter { key, count: counter.count, error: counter.count };
        }
        counter.count += 1;
        counter.count - counter.error
    }

    /// Forgets the count of a key.
    pub(super) fn reset(&mut self, key: u64) {
        let counters = &mut self.set(key).counters;
        if let Some(counter) = counters.iter_mut().find(|counter| counter.key == key) {
            *counter = Counter::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_testkit::Random;

    #[test]
    fn frequent_keys_have_high_counts_and_rare_ones_low() {
        let (mut counters, mut random) = (SpaceSaving::new(64), Random::new(3));
        let (mut rare, mut frequent) = (0, 0);
        for _ in 0..20_000 {
            rare = rare.max(counters.count(1000 + random.below(100_000)));
            frequent = frequent.max(counters.count(1 + random.below(4)));
        }
        assert!(rare < 8 && frequent > 64, "{rare} {frequent}");
        assert!(counters.count(1) > 8);
        counters.reset(1);
        assert!(counters.count(1) <= 1);
    }
}
