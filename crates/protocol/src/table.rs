//! A deterministic hash table: no random seed, no dependence on addresses. The machines keep their per-line state in
//! it.
//!
//! Open addressing, linear probing, backward-shift deletion: without tombstones a table that stays small stays fast.
//! It grows by doubling and never shrinks, so that it allocates nothing once it has reached its largest size.

use alloc::vec::Vec;
use core::fmt;
use core::hash::{Hash, Hasher};

/// A key of a [`Table`]: a small value identified by 64 bits.
pub trait TableKey: Copy + Eq {
    /// Equal for equal keys, and only for those.
    fn bits(self) -> u64;
}

impl TableKey for u64 {
    #[inline]
    fn bits(self) -> u64 {
        self
    }
}

impl TableKey for u32 {
    #[inline]
    fn bits(self) -> u64 {
        self.into()
    }
}

impl TableKey for farside_base::LineAddress {
    #[inline]
    fn bits(self) -> u64 {
        self.to_bits()
    }
}

macro_rules! id_keys {
    ($($id:ident)*) => {$(
        impl TableKey for farside_base::$id {
            #[inline]
    fn bits(self) -> u64 {
                self.0.into()
            }
        }
    )*};
}

id_keys! { NodeId Incarnation ViewNumber LinkId RegionId WorkId Grant OperationId Ticket SessionId }

/// A map from small keys to values.
///
/// The order of iteration depends on the history of the table; code that turns entries into effects must use
/// [`Table::sorted_keys`]. Equality and hash depend on the entries alone. Look-up, insertion and removal cost O(1);
/// growth copies all entries.
#[derive(Clone)]
pub struct Table<K, V> {
    /// A power of two of slots, or none; at least one is always empty.
    slots: Vec<Option<(K, V)>>,
    /// The shift that leaves a slot index of 64 bits.
    shift: u32,
    len: usize,
}

impl<K: TableKey, V> Table<K, V> {
    /// Creates an empty table without memory.
    pub const fn new() -> Self {
        Self { slots: Vec::new(), shift: 0, len: 0 }
    }

    /// Creates an empty table that holds `entries` before it has to grow.
    pub fn with_capacity(entries: usize) -> Self {
        let mut table = Self::new();
        table.reserve(entries);
        table
    }

    /// Reserves capacity for `entries` in total, so that growth happens now.
    pub fn reserve(&mut self, entries: usize) {
        if entries > self.capacity() {
            let slots = entries.saturating_mul(4).div_ceil(3) + 1;
            self.resize(slots.next_power_of_two());
        }
    }

    /// The number of entries that fit before the table grows: three quarters of its slots.
    pub const fn capacity(&self) -> usize {
        self.slots.len() / 4 * 3
    }

    /// The number of entries.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether there is an entry for `key`.
    #[inline]
    pub fn contains(&self, key: K) -> bool {
        self.look_up(key).is_ok()
    }

    /// The value for `key`.
    #[inline]
    pub fn get(&self, key: K) -> Option<&V> {
        match self.look_up(key) {
            Ok(place) => self.slots[place].as_ref().map(|(_, value)| value),
            Err(_) => None,
        }
    }

    /// The value for `key`, mutable.
    #[inline]
    pub fn get_mut(&mut self, key: K) -> Option<&mut V> {
        match self.look_up(key) {
            Ok(place) => self.slots[place].as_mut().map(|(_, value)| value),
            Err(_) => None,
        }
    }

    /// Sets the value for `key`; returns the one it replaces.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.look_up(key) {
            Ok(place) => self.slots[place].replace((key, value)).map(|(_, old)| old),
            Err(place) => {
                self.add(place, key, value);
                None
            }
        }
    }

    /// The value for `key`, created by `default` if there is none.
    pub fn get_or_insert_with(&mut self, key: K, default: impl FnOnce() -> V) -> &mut V {
        let place = match self.look_up(key) {
            Ok(place) => place,
            Err(place) => self.add(place, key, default()),
        };
        let (_, value) = self.slots[place].as_mut().expect("found or added just now");
        value
    }

    /// Runs `work` on the value for `key`, created by `default` if there is none; `work` is passed whether it was.
    /// Removes the value if `work` returns that it is no longer needed. One look-up.
    #[inline]
    pub(crate) fn visit(
        &mut self,
        key: K,
        default: impl FnOnce() -> V,
        work: impl FnOnce(&mut V, bool) -> bool,
    ) -> Option<V> {
        let (place, is_new) = match self.look_up(key) {
            Ok(place) => (place, false),
            Err(place) => (self.add(place, key, default()), true),
        };
        let (_, value) = self.slots[place].as_mut().expect("found or added just now");
        work(value, is_new).then(|| self.take(place).1)
    }

    /// Removes the entry for `key`.
    pub fn remove(&mut self, key: K) -> Option<V> {
        match self.look_up(key) {
            Ok(place) => Some(self.take(place).1),
            Err(_) => None,
        }
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.slots.iter_mut().for_each(|slot| *slot = None);
        self.len = 0;
    }

    /// Keeps the entries for which `keep` is true; visits each once.
    pub fn retain(&mut self, mut keep: impl FnMut(K, &mut V) -> bool) {
        // No run of occupied slots crosses an empty one, so a walk that starts after an empty slot visits every entry
        // once, even as removals shift the rest of a run backwards.
        let Some(empty) = self.slots.iter().position(Option::is_none) else {
            return;
        };
        let mut steps = 1;
        while steps < self.slots.len() {
            let place = (empty + steps) & self.mask();
            let kept = match &mut self.slots[place] {
                Some((key, value)) => keep(*key, value),
                None => true,
            };
            if kept {
                steps += 1;
            } else {
                self.take(place);
            }
        }
    }

    /// The entries, in unspecified order.
    pub fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.slots.iter().flatten().map(|(key, value)| (*key, value))
    }

    /// The entries with mutable values, in unspecified order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.slots.iter_mut().flatten().map(|(key, value)| (*key, value))
    }

    /// The keys in ascending order. Allocates.
    pub fn sorted_keys(&self) -> Vec<K>
    where
        K: Ord,
    {
        let mut keys: Vec<K> = self.iter().map(|(key, _)| key).collect();
        keys.sort_unstable();
        keys
    }

    const fn mask(&self) -> usize {
        self.slots.len() - 1
    }

    /// The slot at which the search for `key` begins. Multiplicative hashing: the highest bits of the product depend
    /// on all bits of the key, and consecutive lines are spread far apart.
    #[inline]
    fn start(&self, key: K) -> usize {
        let product = key.bits().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (product >> self.shift) as usize
    }

    /// The slot of the entry for `key`, or the empty one that it would take.
    #[inline]
    fn look_up(&self, key: K) -> Result<usize, usize> {
        let mut place = self.start(key);
        // Without slots, every index is out of range.
        while let Some(Some((other, _))) = self.slots.get(place) {
            if *other == key {
                return Ok(place);
            }
            place = (place + 1) & self.mask();
        }
        Err(place)
    }

    /// Adds an entry for a new key, in the slot that the look-up found; returns the slot it was put in.
    #[inline]
    fn add(&mut self, place: usize, key: K, value: V) -> usize {
        let place = if self.len == self.capacity() { self.grow(key) } else { place };
        self.slots[place] = Some((key, value));
        self.len += 1;
        place
    }

    /// Doubles the table; returns the slot for a new key.
    #[cold]
    fn grow(&mut self, key: K) -> usize {
        self.resize((self.slots.len() * 2).max(4));
        match self.look_up(key) {
            Ok(place) | Err(place) => place,
        }
    }

    /// Empties an occupied slot and shifts the rest of its run backwards.
    #[inline]
    fn take(&mut self, place: usize) -> (K, V) {
        let taken = self.slots[place].take().expect("the place is occupied");
        self.len -= 1;
        let mut hole = place;
        let mut next = (hole + 1) & self.mask();
        while let Some((key, _)) = &self.slots[next] {
            let distance = next.wrapping_sub(self.start(*key)) & self.mask();
            if distance >= (next.wrapping_sub(hole) & self.mask()) {
                self.slots.swap(hole, next);
                hole = next;
            }
            next = (next + 1) & self.mask();
        }
        taken
    }

    fn resize(&mut self, slots: usize) {
        let mut larger = Vec::with_capacity(slots);
        larger.resize_with(slots, || None);
        let old = core::mem::replace(&mut self.slots, larger);
        self.shift = 64 - slots.trailing_zeros();
        self.len = 0;
        for (key, value) in old.into_iter().flatten() {
            self.insert(key, value);
        }
    }
}

impl<K: TableKey, V> Default for Table<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: TableKey + fmt::Debug, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut entries: Vec<(K, &V)> = self.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| key.bits());
        f.debug_map().entries(entries).finish()
    }
}

impl<K: TableKey, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        let same = |(key, value)| other.get(key) == Some(value);
        self.len == other.len && self.iter().all(same)
    }
}

impl<K: TableKey, V: Eq> Eq for Table<K, V> {}

impl<K: TableKey, V: Hash> Hash for Table<K, V> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        hash_in_any_order(self.iter(), state, |(key, value), entry| {
            key.bits().hash(entry);
            value.hash(entry);
        });
    }
}

/// Hashes a set of entries: the sum of 128 bits of each, independent of their order.
pub(crate) fn hash_in_any_order<E>(
    entries: impl Iterator<Item = E>,
    state: &mut impl Hasher,
    hash: impl Fn(&E, &mut Mixer),
) {
    let (mut len, mut sums) = (0_usize, [0_u64; 2]);
    for entry in entries {
        len += 1;
        for (sum, seed) in sums.iter_mut().zip([1, 2]) {
            let mut mixer = Mixer(seed);
            hash(&entry, &mut mixer);
            *sum = sum.wrapping_add(mixer.finish());
        }
    }
    (len, sums).hash(state);
}

/// A small fixed hasher for single entries.
pub(crate) struct Mixer(u64);

impl Mixer {
    fn word(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
        self.0 = (mixed ^ (mixed >> 32)).wrapping_add(0x632b_e59b_d9b4_e019);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.word(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.word(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.word(value);
    }

    fn finish(&self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use farside_base::Random;
    use std::collections::BTreeMap;
    use std::hash::DefaultHasher;

    fn hash_of(table: &Table<u64, u64>) -> u64 {
        let mut hasher = DefaultHasher::new();
        table.hash(&mut hasher);
        hasher.finish()
    }

    fn check(seed: u64, table: &Table<u64, u64>, map: &BTreeMap<u64, u64>) {
        assert_eq!(table.len(), map.len(), "seed {seed}");
        assert_eq!(table.is_empty(), map.is_empty(), "seed {seed}");
        let keys: Vec<u64> = map.keys().copied().collect();
        assert_eq!(table.sorted_keys(), keys, "seed {seed}");
        for (key, value) in map {
            assert_eq!(table.get(*key), Some(value), "seed {seed}, key {key}");
        }
    }

    #[test]
    fn behaves_like_a_map() {
        for seed in 1..400 {
            let mut numbers = Random::new(seed);
            // Few keys, or keys that differ only in high bits, make long runs that wrap around.
            let shift = [0, 9, 44, 60][numbers.below(4) as usize];
            let (mut table, mut map) = (Table::new(), BTreeMap::new());
            for step in 0..200 {
                let key = numbers.below(24) << shift;
                match numbers.below(8) {
                    0..4 => {
                        assert_eq!(table.insert(key, step), map.insert(key, step), "seed {seed}")
                    }
                    4..6 => assert_eq!(table.remove(key), map.remove(&key), "seed {seed}"),
                    6 => {
                        *table.get_or_insert_with(key, || step) += 1;
                        *map.entry(key).or_insert(step) += 1;
                    }
                    _ => {
                        let bound = numbers.below(200);
                        let mut visits = 0;
                        let before = map.len();
                        table.retain(|_, value| {
                            visits += 1;
                            *value ^= 1;
                            *value > bound
                        });
                        assert_eq!(visits, before, "seed {seed}: each entry is visited once");
                        map.retain(|_, value| {
                            *value ^= 1;
                            *value > bound
                        });
                    }
                }
                check(seed, &table, &map);
            }
        }
    }

    #[test]
    fn equality_and_hash_forget_the_history() {
        for seed in 1..200 {
            let mut numbers = Random::new(seed);
            let mut table = Table::new();
            for _ in 0..numbers.below(60) {
                table.insert(numbers.below(40), 0);
                table.remove(numbers.below(40));
            }
            let mut again = Table::with_capacity(100);
            for key in table.sorted_keys().into_iter().rev() {
                again.insert(key, 0);
            }
            assert_eq!(table, again, "seed {seed}");
            assert_eq!(hash_of(&table), hash_of(&again), "seed {seed}");
            again.insert(41, 0);
            assert_ne!(table, again, "seed {seed}");
            assert_ne!(hash_of(&table), hash_of(&again), "seed {seed}");
        }
    }

    #[test]
    fn stays_in_the_memory_it_was_given() {
        for entries in [0, 1, 3, 4, 100, 1_000] {
            let mut table = Table::with_capacity(entries);
            let capacity = table.capacity();
            assert!(capacity >= entries);
            for round in 0..5_u64 {
                for key in 0..entries as u64 {
                    table.insert(key + round, key);
                }
                table.clear();
            }
            assert_eq!(table.capacity(), capacity, "{entries} entries");
        }
    }
}
