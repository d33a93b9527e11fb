//! The regions of a fabric, and a port's own copy of the table, so that a request takes no lock.

use crate::adapter::Adapter;
use crate::ffi::types::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT, IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND, IBV_ACCESS_RELAXED_ORDERING,
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};
use crate::ffi::{AdapterMemory, Backing, MemoryRegion, ProtectionDomain};
use crate::wire::Imported;
use farside_base::{Access, FlushScope, Memory, RegionId, RegionToken, RemoteKey};
use farside_fabric::{Arena, DeviceMemory, FabricError, Region};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The low bits of a region's number are its table index; above them is how often the entry was used
/// before.
const PLACE_BITS: u32 = 20;
const PLACES_MAX: usize = 1 << PLACE_BITS;

fn place_of(region: RegionId) -> usize {
    (region.0 as usize) & (PLACES_MAX - 1)
}

/// Longer regions are no windows: some adapters have room for 31 bits.
const WINDOW_BYTES_MAX: u64 = 1 << 31;

/// Returns the `ibv_access_flags` of peers' access.
pub(crate) fn rights(access: Access) -> i32 {
    let table = [
        (Access::WRITE, IBV_ACCESS_REMOTE_WRITE),
        (Access::READ, IBV_ACCESS_REMOTE_READ),
        (Access::ATOMIC, IBV_ACCESS_REMOTE_ATOMIC),
        (Access::FLUSH, IBV_ACCESS_FLUSH_GLOBAL),
        (Access::FLUSH_PERSISTENT, IBV_ACCESS_FLUSH_PERSISTENT),
    ];
    let given = table.iter().filter(|(right, _)| access.allows(*right));
    given.fold(0, |flags, (_, flag)| flags | flag)
}

/// A region of the table; dropping it ends its registration.
pub(crate) struct VerbsRegion {
    id: RegionId,
    memory: MemoryRegion,
    token: RegionToken,
    /// Peers reach it through windows alone.
    windowed: bool,
}

/// How a fabric registers memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Manner {
    /// How far the device flushes.
    pub(crate) flush: FlushScope,
    /// Pages are not pinned.
    pub(crate) on_demand: bool,
    /// Peers access regions through windows, if these permit.
    pub(crate) windows: bool,
    /// Windows permit FLUSH.
    pub(crate) windows_flush: bool,
}

impl Manner {
    /// Returns whether peers access such a region through windows. Otherwise it has an rkey of its own.
    pub(crate) fn windowed(&self, access: Access, bytes: u64) -> bool {
        let flushes = access.allows(Access::FLUSH) || access.allows(Access::FLUSH_PERSISTENT);
        let permits = self.windows_flush || !flushes;
        self.windows && permits && rights(access) != 0 && (1..=WINDOW_BYTES_MAX).contains(&bytes)
    }

    /// Returns the `ibv_access_flags` of a region. Its owner may always change it.
    fn flags(&self, access: Access, bytes: u64) -> i32 {
        let persists = rights(access) & (IBV_ACCESS_FLUSH_GLOBAL | IBV_ACCESS_FLUSH_PERSISTENT);
        let peers = match self.windowed(access, bytes) {
            // The kernel checks here whether the memory can be flushed.
            true => IBV_ACCESS_MW_BIND | persists,
            false => rights(access),
        };
        let flag = |wanted, flag| if wanted { flag } else { 0 };
        let paging = flag(self.on_demand, IBV_ACCESS_ON_DEMAND);
        let relaxed = access.allows(Access::RELAXED_ORDERING);
        IBV_ACCESS_LOCAL_WRITE | peers | paging | flag(relaxed, IBV_ACCESS_RELAXED_ORDERING)
    }
}

/// Registers all of an arena, with no more rights than requested.
pub(crate) fn register(
    domain: &Arc<ProtectionDomain>,
    arena: &Arena,
    access: Access,
    manner: Manner,
) -> Result<MemoryRegion, FabricError> {
    let persistent = access.allows(Access::FLUSH_PERSISTENT);
    if persistent && manner.flush < FlushScope::Persistent {
        return Err(FabricError::Lacks("persistent flush"));
    }
    if access.allows(Access::FLUSH) && manner.flush < FlushScope::Visible {
        return Err(FabricError::Lacks("flush"));
    }
    let flags = manner.flags(access, arena.len() as u64);
    MemoryRegion::new(domain, arena.clone(), flags).map_err(|reason| {
        let reason = match reason.kind() {
            kind @ io::ErrorKind::InvalidInput if persistent => {
                io::Error::new(kind, NOT_PERSISTENT)
            }
            _ => reason,
        };
        FabricError::System("registration of memory", reason)
    })
}

/// Allocates zeroed device memory and registers it. Peers access it by an rkey of its own, not by
/// windows.
pub(crate) fn register_at_adapter(
    domain: &Arc<ProtectionDomain>,
    bytes: u64,
    access: Access,
) -> Result<MemoryRegion, FabricError> {
    let system = |reason| FabricError::System("memory at the adapter", reason);
    let memory = AdapterMemory::new(&domain.context, bytes.next_multiple_of(8)).map_err(system)?;
    let zeroed = Adapter::new(&memory).clear(0, memory.bytes());
    zeroed.map_err(|_| system(io::Error::other("its provider does not copy")))?;
    MemoryRegion::at_adapter(domain, memory, IBV_ACCESS_LOCAL_WRITE | rights(access))
        .map_err(system)
}

const NOT_PERSISTENT: &str = "the adapter takes this memory for none that persists: bring that of a DAX \
                              device (`/dev/dax*` of an NVDIMM, by `map_device`), or ask for no \
                              `FLUSH_PERSISTENT`";

/// All regions, by table index.
#[derive(Default)]
pub(crate) struct RegionTable {
    places: Vec<Option<VerbsRegion>>,
    /// Free entries with the number of their next region, oldest first.
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
        access: Access,
        windowed: bool,
        key: u64,
    ) -> Result<Region, FabricError> {
        let id = self.next()?;
        let bytes = memory.bytes();
        let (arena, device) = match memory.backing() {
            Backing::Arena(arena) => (arena.clone(), None),
            Backing::Adapter(memory) => {
                let device: Arc<dyn DeviceMemory> = Arc::new(Adapter::new(memory));
                (Arena::heap(0), Some(device))
            }
        };
        let token = RegionToken { region: id, key: RemoteKey(key), bytes, access };
        self.places[place_of(id)] = Some(VerbsRegion { id, memory, token, windowed });
        Ok(Region { id, arena, token, device })
    }

    fn find(&self, id: RegionId) -> Option<&VerbsRegion> {
        self.places.get(place_of(id))?.as_ref().filter(|found| found.id == id)
    }

    /// Removes a region: the adapter accesses it no more once the result is dropped.
    pub(crate) fn remove(&mut self, id: RegionId) -> Result<VerbsRegion, FabricError> {
        self.find(id).ok_or(FabricError::Unknown("region"))?;
        let removed = self.places[place_of(id)].take().ok_or(FabricError::Unknown("region"))?;
        self.free.push_back(RegionId(id.0.wrapping_add(1 << PLACE_BITS)));
        Ok(removed)
    }

    /// Returns the bytes of the regions at the adapter.
    pub(crate) fn adapter_bytes(&self) -> u64 {
        let all = self.places.iter().flatten();
        let there = all.filter(|one| matches!(one.memory.backing(), Backing::Adapter(_)));
        there.map(|one| one.token.bytes).sum()
    }

    /// Returns the memory of a region.
    pub(crate) fn memory(&self, id: RegionId) -> Option<&MemoryRegion> {
        self.find(id).map(|found| &found.memory)
    }

    /// Returns the import of a peer with this token, with the region's own rkey, and whether it needs a
    /// window's instead.
    pub(crate) fn import(&self, token: &RegionToken) -> Option<(Imported, bool)> {
        let found = self.find(token.region)?;
        // Keys are compared whole, so that the time reveals nothing.
        let right = (found.token.key.0 ^ token.key.0) == 0;
        let imported = Imported {
            key: found.memory.remote_key(),
            address: found.memory.address(),
            bytes: found.token.bytes,
            access: found.token.access,
        };
        right.then_some((imported, found.windowed))
    }
}

/// The address and key of a region, for the adapter.
#[derive(Clone, Copy)]
pub(crate) struct RegionAddress {
    id: RegionId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) key: u32,
}

/// The regions that a port has used, by table index.
#[derive(Default)]
pub(crate) struct RegionCache {
    places: Vec<Option<RegionAddress>>,
}

impl RegionCache {
    /// Forgets everything, since regions were ended.
    pub(crate) fn clear(&mut self) {
        self.places.fill(None);
    }

    #[inline]
    pub(crate) fn find(&self, id: RegionId) -> Option<&RegionAddress> {
        self.places.get(place_of(id))?.as_ref().filter(|place| place.id == id)
    }

    /// Takes a region over from the table.
    #[cold]
    pub(crate) fn learn(&mut self, table: &RegionTable, id: RegionId) -> Option<RegionAddress> {
        let found = table.find(id)?;
        let place = RegionAddress {
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

    const PLAIN: Manner = Manner {
        flush: FlushScope::Visible,
        on_demand: false,
        windows: false,
        windows_flush: false,
    };
    const WINDOWS: Manner = Manner { windows: true, ..PLAIN };

    #[test]
    fn rights_are_no_more_than_asked_for() {
        let flags = |access| PLAIN.flags(access, 4096);
        assert_eq!(flags(Access::NONE), IBV_ACCESS_LOCAL_WRITE);
        assert_eq!(flags(Access::READ), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
        let both = Access::WRITE.with(Access::FLUSH);
        let expected = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_FLUSH_GLOBAL;
        assert_eq!(flags(both), expected);
        let relaxed = Access::READ.with(Access::RELAXED_ORDERING);
        assert_eq!(flags(relaxed), flags(Access::READ) | IBV_ACCESS_RELAXED_ORDERING);
        assert_eq!(rights(relaxed), rights(Access::READ), "it grants nothing");
    }

    #[test]
    fn what_peers_reach_through_windows_has_no_rights_of_its_own() {
        let bind = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;
        assert_eq!(WINDOWS.flags(Access::ALL, 4096), bind);
        assert_eq!(WINDOWS.flags(Access::NONE, 4096), IBV_ACCESS_LOCAL_WRITE);
        // Access that a window cannot grant.
        for (access, bytes) in [
            (Access::ALL, WINDOW_BYTES_MAX + 1),
            (Access::ALL, 0),
            (Access::WRITE.with(Access::FLUSH), 4096),
        ] {
            assert_eq!(WINDOWS.flags(access, bytes), PLAIN.flags(access, bytes));
            assert!(!WINDOWS.windowed(access, bytes));
        }
        let flushes = Manner { windows_flush: true, ..WINDOWS };
        let both = Access::WRITE.with(Access::FLUSH);
        assert_eq!(flushes.flags(both, 4096), bind | IBV_ACCESS_FLUSH_GLOBAL);
        let paged = Manner { on_demand: true, ..WINDOWS };
        assert_eq!(paged.flags(Access::READ, 4096), bind | IBV_ACCESS_ON_DEMAND);
    }
}
