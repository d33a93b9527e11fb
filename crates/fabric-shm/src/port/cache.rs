//! A port's own copy of the fabric's table of regions, so that a request takes no lock.

use crate::connection::lock;
use crate::port::ShmPort;
use crate::region::{RegionTable, place_of};
use farside_base::RegionId;
use farside_fabric::{Arena, Stop};

/// The regions that a port has used, by entry; unused entries are [`blank`].
pub(super) struct RegionCache {
    places: Vec<(RegionId, Arena)>,
}

/// Returns an entry that no region's number finds at `place`, since it belongs to another.
fn blank(place: usize) -> (RegionId, Arena) {
    (RegionId(!(place as u32)), Arena::heap(0))
}

impl RegionCache {
    pub(super) fn new() -> Self {
        Self { places: Vec::new() }
    }

    /// Returns the memory of a region, if the port has used it before.
    #[inline(always)]
    pub(super) fn find(&self, region: RegionId) -> Option<&Arena> {
        match self.places.get(place_of(region)) {
            Some((known, arena)) if *known == region => Some(arena),
            _ => None,
        }
    }

    fn compare(&mut self, table: &RegionTable) {
        for (place, entry) in self.places.iter_mut().enumerate() {
            if place_of(entry.0) == place && table.find(entry.0).is_none() {
                *entry = blank(place);
            }
        }
    }

    fn put(&mut self, region: RegionId, arena: Arena) {
        let place = place_of(region);
        for unused in self.places.len()..=place {
            self.places.push(blank(unused));
        }
        self.places[place] = (region, arena);
    }
}

impl ShmPort {
    /// Forgets regions that were deregistered since the last check.
    pub(super) fn forget_regions(&mut self) {
        self.regions.compare(&lock(&self.inner.regions));
    }

    /// Adds a region to the cache. Returns whether there is one.
    #[cold]
    pub(super) fn learn(&mut self, region: RegionId) -> Result<&Arena, Stop> {
        let arena = {
            let table = lock(&self.inner.regions);
            let found = table.find(region).ok_or(Stop::Invalid("local region"))?;
            found.arena.clone()
        };
        self.regions.put(region, arena);
        self.regions.find(region).ok_or(Stop::Invalid("local region"))
    }
}
