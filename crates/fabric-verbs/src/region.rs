//! The regions of a fabric, and a port's own copy of the table, so that a request takes no lock.

use crate::ffi::types::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT, IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};
use crate::ffi::{MemoryRegion, ProtectionDomain};
use crate::wire::Imported;
use farside_base::{Access, FlushScope, RegionId, RegionToken, RemoteKey};
use farside_fabric::{Arena, FabricError, Region};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// A region's number is its place, and above that how often the place was used before.
const PLACE_BITS: u32 = 20;
const PLACES_MAX: usize = 1 << PLACE_BITS;

fn place_of(region: RegionId) -> usize {
    (region.0 as usize) & (PLACES_MAX - 1)
}

/// `ibv_access_flags` of what peers may do. Whoever owns memory may always change it.
fn flags(access: Access) -> i32 {
    let table = [
        (Access::WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::READ, IBV_ACCESS_REMOTE_READ),
        (Access::ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
        (Access::FLUSH, IBV_ACCESS_FLUSH_GLOBAL),
        (Access::FLUSH_PERSISTENT, IBV_ACCESS_FLUSH_PERSISTENT),
    ];
    let given = table.iter().filter(|(right, _)| access.allows(*right));
    given.fold(IBV_ACCESS_LOCAL_WRITE, |flags, (_, flag)| flags | flag)
}

/// A region of the table; dropping it ends its registration.
pub(crate) struct Registered {
    id: RegionId,
    memory: MemoryRegion,
    token: RegionToken,
}

/// Registers all of an arena, with no more rights than asked for; `flush` is how far the device does.
pub(crate) fn register(
    domain: &Arc<ProtectionDomain>,
    arena: &Arena,
    access: Access,
    flush: FlushScope,
) -> Result<MemoryRegion, FabricError> {
    let persistent = access.allows(Access::FLUSH_PERSISTENT);
    if persistent && flush < FlushScope::Persistent {
        return Err(FabricError::Lacks("persistent flush"));
    }
    if access.allows(Access::FLUSH) && flush < FlushScope::Visible {
        return Err(FabricError::Lacks("flush"));
    }
    MemoryRegion::new(domain, arena.clone(), flags(access)).map_err(|reason| {
        let reason = match reason.kind() {
            kind @ io::ErrorKind::InvalidInput if persistent => {
                io::Error::new(kind, NOT_PERSISTENT)
            }
            _ => reason,
        };
        FabricError::System("registration of memory", reason)
    })
}

const NOT_PERSISTENT: &str = "the adapter takes this memory for none that persists: bring that of a DAX \
                              device (`/dev/dax*` of an NVDIMM, by `map_device`), or ask for no \
                              `FLUSH_PERSISTENT`";

/// All regions, by place.
#[derive(Default)]
pub(crate) struct RegionTable {
    places: Vec<Option<Registered>>,
    /// Free places with the number of their next region, oldest first.
    free: VecDeque<RegionId>,
}

impl RegionTable {
    fn next(&mut self) -> Result<RegionId, FabricError> {
        if let Some(id) = self.free.pop_front() {
            return Ok(id);
        }
        let place = self.places.len();
        if place >= PLACES_MAX {
            return Err(FabricError::Limit("regions"));
        }
        self.places.push(None);
        Ok(RegionId(u32::try_from(place).unwrap_or(u32::MAX)))
    }

    /// Takes registered memory in under a fresh random key.
    pub(crate) fn add(
        &mut self,
        memory: MemoryRegion,
        arena: Arena,
        access: Access,
        key: u64,
    ) -> Result<Region, FabricError> {
        let id = self.next()?;
        let bytes = arena.len() as u64;
        let token = RegionToken { region: id, key: RemoteKey(key), bytes, access };
        self.places[place_of(id)] = Some(Registered { id, memory, token });
        Ok(Region { id, arena, token })
    }

    fn find(&self, id: RegionId) -> Option<&Registered> {
        self.places.get(place_of(id))?.as_ref().filter(|found| found.id == id)
    }

    /// Takes a region out: its adapter reaches it no more once what this gives is dropped.
    pub(crate) fn remove(&mut self, id: RegionId) -> Result<Registered, FabricError> {
        self.find(id).ok_or(FabricError::Unknown("region"))?;
        let removed = self.places[place_of(id)].take().ok_or(FabricError::Unknown("region"))?;
        self.free.push_back(RegionId(id.0.wrapping_add(1 << PLACE_BITS)));
        Ok(removed)
    }

    /// What a peer that shows this token may use.
    pub(crate) fn import(&self, token: &RegionToken) -> Option<Imported> {
        let found = self.find(token.region)?;
        // Keys are compared whole, so that how long it takes says nothing.
        let right = (found.token.key.0 ^ token.key.0) == 0;
        right.then(|| Imported {
            key: found.memory.remote_key(),
            address: found.memory.address(),
            bytes: found.token.bytes,
            access: found.token.access,
        })
    }
}

/// Where a region lies, for the adapter.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    id: RegionId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
}

/// The regions that a port has used, by place.
#[derive(Default)]
pub(crate) struct RegionCache {
    places: Vec<Option<Place>>,
}

impl RegionCache {
    /// Forgets everything, since regions were ended.
    pub(crate) fn clear(&mut self) {
        self.places.fill(None);
    }

    #[inline]
    pub(crate) fn find(&self, id: RegionId) -> Option<&Place> {
        self.places.get(place_of(id))?.as_ref().filter(|place| place.id == id)
    }

    /// Takes a region over from the table.
    #[cold]
    pub(crate) fn learn(&mut self, table: &RegionTable, id: RegionId) -> Option<Place> {
        let found = table.find(id)?;
        let place = Place {
            id,
            address: found.memory.address(),
            bytes: found.token.bytes,
            key: found.memory.local_key(),
        };
        let at = place_of(id);
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        self.places[at] = Some(place);
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_no_more_than_asked_for() {
        assert_eq!(flags(Access::NONE), IBV_ACCESS_LOCAL_WRITE);
        assert_eq!(flags(Access::READ), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        let both = Access::WRITE.with(Access::FLUSH);
        let expected = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_FLUSH_GLOBAL;
        assert_eq!(flags(both), expected);
    }
}
