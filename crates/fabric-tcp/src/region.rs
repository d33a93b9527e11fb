//! Regions: one registry for the fabric, and a table for each port, so that no request takes a lock
//! that other ports use.

use farside_base::{Access, Capabilities, RegionId, RegionKind, RegionToken, RemoteKey};
use farside_fabric::{Arena, FabricError, Region, RegionSpec};
use rustix::rand::{GetRandomFlags, getrandom};

/// Bits of a region's number that are its table index; the rest counts the uses of that entry.
const PLACE_BITS: u32 = 20;
const PLACES_MAX: usize = 1 << PLACE_BITS;

/// A region as its owner recorded it, against which each request is checked.
#[derive(Clone)]
pub(crate) struct TcpRegion {
    pub(crate) id: RegionId,
    pub(crate) key: u64,
    pub(crate) access: Access,
    pub(crate) arena: Arena,
}

fn place(id: RegionId) -> usize {
    id.0 as usize % PLACES_MAX
}

/// A port's table of regions.
#[derive(Clone, Default)]
pub(crate) struct Regions(Vec<Option<TcpRegion>>);

impl Regions {
    #[inline]
    pub(crate) fn find(&self, id: RegionId) -> Option<&TcpRegion> {
        self.0.get(place(id))?.as_ref().filter(|region| region.id == id)
    }

    pub(crate) fn insert(&mut self, region: TcpRegion) {
        let at = place(region.id);
        if self.0.len() <= at {
            self.0.resize(at + 1, None);
        }
        self.0[at] = Some(region);
    }

    pub(crate) fn remove(&mut self, id: RegionId) {
        if self.find(id).is_some() {
            self.0[place(id)] = None;
        }
    }
}

/// All regions of a fabric.
#[derive(Default)]
pub(crate) struct RegionRegistry {
    /// The table that new ports copy.
    pub(crate) regions: Regions,
    /// The uses of each entry so far, and the kind of its current region.
    places: Vec<(u32, Option<(RegionKind, u64)>)>,
    free: Vec<usize>,
}

impl RegionRegistry {
    /// Allocates memory for a region, with a number and a key.
    pub(crate) fn register(
        &mut self,
        has: &Capabilities,
        spec: &RegionSpec,
    ) -> Result<(TcpRegion, Region), FabricError> {
        let device = self.places.iter().filter_map(|(_, tenant)| *tenant);
        let device = device.filter(|(kind, _)| *kind == RegionKind::Device);
        spec.check(has, device.map(|(_, bytes)| bytes).sum())?;
        self.add(spec.memory()?, spec.access, spec.kind)
    }

    /// Assigns a number and a key to existing memory.
    pub(crate) fn add(
        &mut self,
        arena: Arena,
        access: Access,
        kind: RegionKind,
    ) -> Result<(TcpRegion, Region), FabricError> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.places.len() == PLACES_MAX => return Err(FabricError::Limit("regions")),
            None => {
                self.places.push((0, None));
                self.places.len() - 1
            }
        };
        let mut key = [0; 8];
        getrandom(&mut key, GetRandomFlags::empty())
            .map_err(|reason| FabricError::System("random key", reason.into()))?;
        let bytes = arena.len() as u64;
        let (tenants, tenant) = &mut self.places[at];
        *tenant = Some((kind, bytes));
        let id = RegionId(*tenants << PLACE_BITS | at as u32);
        let key = u64::from_ne_bytes(key);
        let region = TcpRegion { id, key, access, arena: arena.clone() };
        self.regions.insert(region.clone());
        let token = RegionToken { region: id, key: RemoteKey(key), bytes, access };
        Ok((region, Region { id, arena, token, device: None }))
    }

    /// Forgets a region.
    pub(crate) fn remove(&mut self, id: RegionId) -> Result<(), FabricError> {
        self.regions.find(id).ok_or(FabricError::Unknown("region"))?;
        self.regions.remove(id);
        let at = place(id);
        let (tenants, tenant) = &mut self.places[at];
        *tenants = tenants.wrapping_add(1) % (1 << (32 - PLACE_BITS));
        *tenant = None;
        self.free.insert(0, at);
        Ok(())
    }
}
