//! Places of entries that a client remembers: a table of sets, in which a new place displaces the oldest of its set.

use super::slot::Slot;

/// Places that are remembered, 32 B each, and those of a set.
const PLACES: usize = 1 << 16;
const SET: usize = 4;

/// A key by two hashes.
pub(super) type KeyIdentity = (u64, u64);

/// Where an entry was.
#[derive(Clone, Copy, Default)]
struct KnownPlace {
    key: KeyIdentity,
    /// Of the slot, in the memory of its partition; zero: none.
    at: u64,
    slot: Slot,
}

pub(super) struct KnownPlaces(Box<[KnownPlace]>);

impl KnownPlaces {
    pub(super) fn new() -> Self {
        Self(vec![KnownPlace::default(); PLACES].into())
    }

    /// Returns the offset of the slot of a key, and the slot as it was.
    #[inline]
    pub(super) fn get(&self, key: KeyIdentity) -> Option<(u64, Slot)> {
        let set = &self.0[first(key)..][..SET];
        let place = set.iter().find(|place| place.at != 0 && place.key == key)?;
        Some((place.at, place.slot))
    }

    pub(super) fn insert(&mut self, key: KeyIdentity, at: u64, slot: Slot) {
        let set = &mut self.0[first(key)..][..SET];
        let same = set.iter().position(|place| place.key == key);
        let old = same.or_else(|| set.iter().position(|place| place.at == 0));
        set[..=old.unwrap_or(SET - 1)].rotate_right(1);
        set[0] = KnownPlace { key, at, slot };
    }

    pub(super) fn remove(&mut self, key: KeyIdentity) {
        let set = &mut self.0[first(key)..][..SET];
        if let Some(place) = set.iter_mut().find(|place| place.key == key) {
            place.at = 0;
        }
    }
}

/// The first place of the set of a key.
fn first(key: KeyIdentity) -> usize {
    key.0 as usize % (PLACES / SET) * SET
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_place_of_a_set_is_displaced() {
        let mut places = KnownPlaces::new();
        let key = |number: u64| (7 + number * (PLACES / SET) as u64, number);
        (0..4).for_each(|number| places.insert(key(number), 8 + number, Slot(number)));
        assert!((0..4).all(|number| places.get(key(number)) == Some((8 + number, Slot(number)))));
        places.insert(key(1), 80, Slot(10)); // newer now
        places.insert(key(4), 12, Slot(4));
        assert_eq!(places.get(key(0)), None);
        assert_eq!(places.get(key(1)), Some((80, Slot(10))));
        places.remove(key(2));
        places.insert(key(5), 13, Slot(5)); // where 2 was
        let known = [0, 1, 2, 3, 4, 5].map(|number| places.get(key(number)).is_some());
        assert_eq!(known, [false, true, false, true, true, true]);
        assert_eq!(places.get((key(5).0, 6)), None); // another key of this hash
        places.remove((1, 1)); // of an empty set
    }
}
