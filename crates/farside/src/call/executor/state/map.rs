//! Hash maps of a fixed size, with separate chaining and a random seed per map.

use super::records::{Chunk, Records};
use farside_rmc::helpers::status;
use farside_rmc::program::MAP_ENTRY_BYTES;
use std::hash::{BuildHasher, RandomState};

/// Most entries of a chain, and so of steps per operation. The load factor is at most 1: a full map of 16 million
/// entries exceeds this with probability 10^-30, unless an attacker learns colliding keys from the time that
/// operations take.
const CHAIN_MAX: usize = 32;

/// Bytes of a link, and of the header of an entry. The header holds the link to the next entry of the chain, and
/// the tag of the key.
const LINK_BYTES: usize = 4;
const HEAD_BYTES: usize = 2 * LINK_BYTES;

/// A link: entry number plus one, or [`NOWHERE`].
type Link = u32;
const NOWHERE: Link = 0;

/// Keys with their values, in a table of chained entries of a fixed size.
///
/// There are as many chains as entries, and an entry stays in place until its key is removed. So the map never
/// rehashes and never moves a value, however long; and removal leaves no tombstone.
#[derive(Debug)]
pub(crate) struct Map {
    key_bytes: usize,
    value_bytes: usize,
    /// Random for this map, so that colliding keys cannot be predicted.
    seed: RandomState,
    /// The first entry of each chain.
    chains: Records,
    /// Link, tag, key and value of each entry.
    entries: Records,
    /// List of entries whose key was removed.
    free: Link,
    /// Entries ever used, from the first; later ones are free as well.
    used: Link,
}

/// The result of a search of a chain for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Walk {
    /// The entry of the key, or nowhere.
    at: Link,
    /// Its predecessor, or nowhere if it is the first.
    before: Link,
    /// Entries compared.
    steps: usize,
}

impl Map {
    pub(crate) fn new(key_bytes: usize, value_bytes: usize, entries: usize) -> Self {
        Self {
            key_bytes,
            value_bytes,
            seed: RandomState::new(),
            chains: Records::new(LINK_BYTES, entries),
            entries: Records::new(HEAD_BYTES + key_bytes + value_bytes, entries),
            free: NOWHERE,
            used: 0,
        }
    }

    pub(crate) fn get(&self, key: &[u8], out: &mut [u8]) -> i64 {
        if key.len() != self.key_bytes || out.len() != self.value_bytes {
            return status::OUT_OF_RANGE;
        }
        let (chain, tag) = self.chain(key);
        let value = self.record(self.walk(chain, tag, key).at).get(HEAD_BYTES + key.len()..);
        match value.filter(|value| value.len() == out.len()) {
            Some(value) => {
                out.copy_from_slice(value);
                status::OK
            }
            None => status::NOT_FOUND,
        }
    }

    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> i64 {
        if key.len() != self.key_bytes || value.len() != self.value_bytes {
            return status::OUT_OF_RANGE;
        }
        let (chain, tag) = self.chain(key);
        let walk = self.walk(chain, tag, key);
        if walk.at != NOWHERE {
            self.write(walk.at, HEAD_BYTES + key.len(), value);
            return status::OK;
        }
        let at = if walk.steps < CHAIN_MAX { self.take_free() } else { NOWHERE };
        if at == NOWHERE {
            return status::FULL;
        }
        let first = link(self.chains.get(chain).unwrap_or_default());
        self.write(at, 0, &first.to_le_bytes());
        self.write(at, LINK_BYTES, &tag.to_le_bytes());
        self.write(at, HEAD_BYTES, key);
        self.write(at, HEAD_BYTES + key.len(), value);
        self.lead(chain, NOWHERE, at);
        status::OK
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> i64 {
        if key.len() != self.key_bytes {
            return status::OUT_OF_RANGE;
        }
        let (chain, tag) = self.chain(key);
        let Walk { at, before, .. } = self.walk(chain, tag, key);
        if at == NOWHERE {
            return status::NOT_FOUND;
        }
        let next = link(self.record(at));
        self.lead(chain, before, next);
        self.write(at, 0, &self.free.to_le_bytes());
        self.free = at;
        status::OK
    }

    /// Returns the chain of a key, and its tag, which distinguishes it from most other keys there.
    fn chain(&self, key: &[u8]) -> (usize, u32) {
        let hash = self.seed.hash_one(key);
        let chain = ((hash >> 32) * self.chains.count() as u64) >> 32;
        (chain as usize, hash as u32)
    }

    fn walk(&self, chain: usize, tag: u32, key: &[u8]) -> Walk {
        let mut walk = Walk { at: NOWHERE, before: NOWHERE, steps: 0 };
        let mut at = link(self.chains.get(chain).unwrap_or_default());
        while at != NOWHERE && walk.steps < CHAIN_MAX {
            walk.steps += 1;
            let record = self.record(at);
            let (head, rest) = record.split_at_checked(HEAD_BYTES).unwrap_or_default();
            if head.ends_with(&tag.to_le_bytes()) && rest.starts_with(key) {
                return Walk { at, ..walk };
            }
            (walk.before, at) = (at, link(record));
        }
        walk
    }

    /// Links the predecessor, or the chain if there is none, to another entry.
    fn lead(&mut self, chain: usize, before: Link, to: Link) {
        match before {
            NOWHERE => {
                if let Some(first) = self.chains.get_mut(chain) {
                    first.copy_from_slice(&to.to_le_bytes());
                }
            }
            before => self.write(before, 0, &to.to_le_bytes()),
        }
    }

    /// Allocates an entry; nowhere if the map is full.
    fn take_free(&mut self) -> Link {
        if self.free != NOWHERE {
            let at = self.free;
            self.free = link(self.record(at));
            return at;
        }
        if self.used as usize >= self.entries.count() {
            return NOWHERE;
        }
        self.used += 1;
        self.used
    }

    fn record(&self, at: Link) -> &[u8] {
        let index = (at as usize).wrapping_sub(1);
        self.entries.get(index).unwrap_or_default()
    }

    fn write(&mut self, at: Link, start: usize, bytes: &[u8]) {
        let index = (at as usize).wrapping_sub(1);
        let record = self.entries.get_mut(index);
        let place = record.and_then(|record| record.get_mut(start..start + bytes.len()));
        if let Some(place) = place {
            place.copy_from_slice(bytes);
        }
    }

    /// Chunks allocated so far.
    pub(crate) const fn made(&self) -> usize {
        self.chains.made() + self.entries.made()
    }

    /// Moves its chunks out; it is empty afterwards.
    pub(crate) fn take_chunks(&mut self) -> [Vec<Chunk>; 2] {
        (self.free, self.used) = (NOWHERE, 0);
        [self.chains.take_chunks(), self.entries.take_chunks()]
    }

    /// Bytes allocated now.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        self.chains.bytes() + self.entries.bytes()
    }
}

/// Returns the link at the beginning of these bytes; nowhere if they are empty.
fn link(bytes: &[u8]) -> Link {
    bytes.first_chunk().map_or(NOWHERE, |link| Link::from_le_bytes(*link))
}

const _: () = assert!((LINK_BYTES + HEAD_BYTES) as u64 == MAP_ENTRY_BYTES, "as is counted");

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::Random;
    use std::collections::HashMap;

    /// Performs random operations on keys below `keys`, each compared with a reference map.
    fn compare(seed: u64, entries: usize, keys: u64, operations: u32) {
        let mut random = Random::new(seed);
        let mut map = Map::new(8, 3, entries);
        let mut model = HashMap::new();
        for operation in 0..operations {
            let key = random.below(keys).to_le_bytes();
            let value = [operation as u8, (operation >> 8) as u8, 7];
            let known = model.get(&key).copied();
            // Phases alternate: more puts than removals until the map is full, then the reverse.
            let puts = if (operation / 1000) % 2 == 0 { 6 } else { 2 };
            match random.below(10) {
                n if n < puts => {
                    let full = known.is_none() && model.len() == entries;
                    let expected = if full { status::FULL } else { status::OK };
                    assert_eq!(map.put(&key, &value), expected, "seed {seed}");
                    if !full {
                        model.insert(key, value);
                    }
                }
                8.. => {
                    let mut out = [0; 3];
                    let found = (map.get(&key, &mut out) == status::OK).then_some(out);
                    assert_eq!(found, known, "seed {seed}");
                }
                _ => {
                    let expected = if known.is_some() { status::OK } else { status::NOT_FOUND };
                    assert_eq!(map.remove(&key), expected, "seed {seed}");
                    model.remove(&key);
                }
            }
        }
        for (key, value) in &model {
            let mut out = [0; 3];
            assert_eq!((map.get(key, &mut out), &out), (status::OK, value), "seed {seed}");
        }
        assert!(map.bytes() <= (MAP_ENTRY_BYTES + 11) * entries as u64);
    }

    #[test]
    fn agrees_with_reference_map() {
        for seed in 0..40 {
            let entries = [1, 2, 3, 64, 1000, 5000][seed as usize % 6];
            let keys = entries as u64 * [1, 2, 20][seed as usize % 3];
            compare(seed, entries, keys, 20_000);
        }
    }

    #[test]
    fn entries_are_reused_and_memory_equals_the_declared_size() {
        let entries = 20_000;
        let mut map = Map::new(4, 1, entries);
        for round in 0..4_u32 {
            let keys = || (0..entries as u32).map(|key| (key * 7 + round).to_le_bytes());
            assert!(keys().all(|key| map.put(&key, &[1]) == status::OK), "{round}");
            assert_eq!(map.put(b"\xff\xff\xff\xff", &[1]), status::FULL);
            assert_eq!(map.bytes(), (MAP_ENTRY_BYTES + 5) * entries as u64);
            assert!(keys().all(|key| map.remove(&key) == status::OK), "{round}");
        }
    }

    /// Returns keys of the first chain of a map.
    fn meeting(map: &Map, count: usize) -> Vec<[u8; 8]> {
        let keys = (0_u64..).map(u64::to_le_bytes);
        keys.filter(|key| map.chain(key).0 == 0).take(count).collect()
    }

    #[test]
    fn hash_flooding_is_bounded() {
        let mut map = Map::new(8, 1, 64);
        let keys = meeting(&map, 60);
        let (most, rest) = keys.split_at(CHAIN_MAX);
        assert!(most.iter().all(|key| map.put(key, &[1]) == status::OK));
        assert!(rest.iter().all(|key| map.put(key, &[1]) == status::FULL));
        for key in &keys {
            let (chain, tag) = map.chain(key);
            assert!(map.walk(chain, tag, key).steps <= CHAIN_MAX);
        }
        assert!(most.iter().all(|key| map.put(key, &[2]) == status::OK), "they are present");
        assert_eq!(map.remove(&most[3]), status::OK);
        assert_eq!(map.put(&rest[0], &[1]), status::OK, "removal makes space in the chain");
        assert_eq!(map.put(&rest[1], &[1]), status::FULL);
    }

    #[test]
    fn keys_colliding_in_one_map_do_not_in_another() {
        let (known, mut map) = (Map::new(8, 1, 1000), Map::new(8, 1, 1000));
        let keys = meeting(&known, 1000);
        assert!(keys.iter().all(|key| map.put(key, &[1]) == status::OK));
        let steps = |key: &[u8; 8]| {
            let (chain, tag) = map.chain(key);
            map.walk(chain, tag, key).steps
        };
        // One and a half on average; twice that has a probability of about 10^-100.
        assert!(keys.iter().map(steps).sum::<usize>() < 3 * keys.len());
    }

    #[test]
    fn wrong_key_and_value_lengths_are_refused() {
        let mut map = Map::new(2, 3, 4);
        assert_eq!(map.put(&[1, 2], &[1, 2, 3]), status::OK);
        for (key, value) in [(&[1, 2, 3][..], &[0; 3][..]), (&[1], &[0; 3]), (&[1, 2], &[0; 4])] {
            assert_eq!(map.put(key, value), status::OUT_OF_RANGE);
            assert_eq!(map.get(key, &mut value.to_vec()), status::OUT_OF_RANGE);
        }
        assert_eq!(map.remove(&[1]), status::OUT_OF_RANGE);
        assert_eq!(map.remove(&[1, 2]), status::OK);
    }
}
