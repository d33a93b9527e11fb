//! The regions that calls may access: local memory, or remote memory over a link.

use super::AccessDenied;
use super::direct_loads::DirectLoads;
use super::lent_region::{LentRegion, RegionSite};
use farside_base::{Access, LinkId, RegionToken};
use farside_fabric::{Arena, Region};
use std::collections::{BTreeMap, BTreeSet};

/// Number of region numbers of an executor.
pub const REGIONS_MAX: usize = 256;

/// Regions by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct RegionTable {
    regions: Vec<Option<LentRegion>>,
    words: DirectLoads,
}

impl RegionTable {
    const NOTHING: Self = Self { regions: Vec::new(), words: DirectLoads::NOTHING };

    /// Lends a region under a number below [`REGIONS_MAX`].
    pub(crate) fn lend(&mut self, number: u8, lent: LentRegion) {
        let at = usize::from(number);
        if self.regions.len() <= at {
            self.regions.resize(at + 1, None);
        }
        self.words.set(at, Some(&lent));
        self.regions[at] = Some(lent);
    }

    /// Returns the words that machine code of calls may load directly.
    pub(crate) const fn words(&self) -> &DirectLoads {
        &self.words
    }

    /// Revokes a region.
    pub(crate) fn take_back(&mut self, number: u8) -> Option<LentRegion> {
        let lent = self.regions.get_mut(usize::from(number))?.take();
        self.words.set(usize::from(number), None);
        lent
    }

    /// Marks the regions over a lost link as lost.
    pub(crate) fn lost(&mut self, link: LinkId) {
        for lent in self.regions.iter_mut().flatten() {
            if matches!(lent.site, RegionSite::Remote(of, _) if of == link) {
                lent.site = RegionSite::Lost;
            }
        }
    }

    #[inline]
    fn lent(&self, region: u64) -> Option<&LentRegion> {
        self.regions.get(usize::try_from(region).ok()?)?.as_ref()
    }

    /// Whether there is a local region of this number.
    pub(crate) fn is_local(&self, region: u64) -> bool {
        self.lent(region).is_some_and(|lent| matches!(lent.site, RegionSite::Local(_)))
    }

    /// Returns a region if this access to it is permitted; local or remote.
    #[inline]
    pub(crate) fn region(
        &self,
        region: u64,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<&LentRegion, AccessDenied> {
        let lent = self.lent(region).ok_or(AccessDenied::NotPermitted)?;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= lent.bytes);
        if inside && lent.access.allows(access) {
            Ok(lent)
        } else {
            Err(AccessDenied::NotPermitted)
        }
    }

    /// Returns the arena of a local region if this access to it is permitted.
    #[inline]
    pub(crate) fn local(
        &self,
        region: u64,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<&Arena, AccessDenied> {
        match &self.region(region, offset, bytes, access)?.site {
            RegionSite::Local(arena) => Ok(arena),
            // A lost region is reported when a remote access begins, so that local accesses need no check.
            RegionSite::Remote(..) | RegionSite::Lost => Err(AccessDenied::NotLocal),
        }
    }
}

/// The regions of each tenant: one table per tenant, so that accesses need no check of ownership.
#[derive(Debug, Default)]
pub(crate) struct TenantRegions {
    lent: BTreeMap<u8, (LentRegion, Option<BTreeSet<usize>>)>,
    /// By tenant.
    views: Vec<RegionTable>,
}

impl TenantRegions {
    /// Adds a tenant, unless it exists.
    pub(crate) fn add(&mut self, tenant: usize) {
        while self.views.len() <= tenant {
            let mut view = RegionTable::default();
            for (number, (lent, tenants)) in &self.lent {
                if is_open(tenants.as_ref(), self.views.len()) {
                    view.lend(*number, lent.clone());
                }
            }
            self.views.push(view);
        }
    }

    /// Lends a region to these tenants, or to all, later ones included.
    pub(crate) fn lend(&mut self, number: u8, lent: LentRegion, tenants: Option<BTreeSet<usize>>) {
        for (tenant, view) in self.views.iter_mut().enumerate() {
            if is_open(tenants.as_ref(), tenant) {
                view.lend(number, lent.clone());
            } else {
                view.take_back(number);
            }
        }
        self.lent.insert(number, (lent, tenants));
    }

    pub(crate) fn take_back(&mut self, number: u8) {
        self.lent.remove(&number);
        for view in &mut self.views {
            view.take_back(number);
        }
    }

    /// Whether a region is lent to a tenant.
    pub(crate) fn is_lent(&self, number: u8, tenant: usize) -> bool {
        let lent = self.lent.get(&number);
        lent.is_some_and(|(_, tenants)| is_open(tenants.as_ref(), tenant))
    }

    /// Marks the regions over a lost link as lost.
    pub(crate) fn lost(&mut self, link: LinkId) {
        for lent in self.lent.values_mut().map(|(lent, _)| lent) {
            if matches!(lent.site, RegionSite::Remote(of, _) if of == link) {
                lent.site = RegionSite::Lost;
            }
        }
        self.views.iter_mut().for_each(|view| view.lost(link));
    }

    /// Whether any region is available to any tenant.
    pub(crate) fn has_any(&self) -> bool {
        self.lent.values().any(|(lent, _)| !matches!(lent.site, RegionSite::Lost))
    }

    /// Returns the regions of an added tenant; none for other tenants.
    #[inline]
    pub(crate) fn of(&self, tenant: usize) -> &RegionTable {
        static NOTHING: RegionTable = RegionTable::NOTHING;
        self.views.get(tenant).unwrap_or(&NOTHING)
    }
}

fn is_open(tenants: Option<&BTreeSet<usize>>, tenant: usize) -> bool {
    tenants.is_none_or(|tenants| tenants.contains(&tenant))
}

/// The regions that an executor lends to its peers, by number.
#[derive(Default)]
pub(crate) struct LentRegions(BTreeMap<u8, Region>);

impl LentRegions {
    pub(crate) fn insert(&mut self, number: u8, region: Region) {
        self.0.insert(number, region);
    }

    pub(crate) fn remove(&mut self, number: u8) -> Option<Region> {
        self.0.remove(&number)
    }

    /// Returns the tokens of the regions whose numbers are open to a peer.
    pub(crate) fn tokens(&self, is_open: impl Fn(u8) -> bool) -> Vec<(u8, RegionToken)> {
        let open = self.0.iter().filter(|(number, _)| is_open(**number));
        open.map(|(number, region)| (*number, region.token)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::RemoteRegionId;

    #[test]
    fn tenant_accesses_only_regions_lent_to_it() {
        let mut memories = TenantRegions::default();
        let lent = |bytes| LentRegion {
            site: RegionSite::Local(Arena::heap(64)),
            bytes,
            access: Access::READ,
        };
        memories.add(1);
        memories.lend(0, lent(64), None);
        memories.lend(3, lent(64), Some([1, 2].into()));
        memories.add(2);
        let reach = |memories: &TenantRegions, number| {
            [0, 1, 2, 3].map(|tenant| memories.of(tenant).local(number, 0, 8, Access::READ).is_ok())
        };
        assert_eq!(reach(&memories, 0), [true, true, true, false], "the last was not added");
        assert_eq!(reach(&memories, 3), [false, true, true, false]);
        assert_eq!([0, 1].map(|tenant| memories.is_lent(3, tenant)), [false, true]);
        memories.lend(3, lent(64), Some([0].into()));
        assert_eq!(reach(&memories, 3), [true, false, false, false]);
        memories.take_back(3);
        assert_eq!(reach(&memories, 3), [false; 4]);
        assert!(memories.has_any() && !memories.is_lent(3, 0));
    }

    #[test]
    fn access_is_checked_against_bounds_and_rights() {
        let mut memory = RegionTable::default();
        let arena = Arena::heap(64);
        let lent = LentRegion { site: RegionSite::Local(arena), bytes: 64, access: Access::READ };
        memory.lend(3, lent);
        assert!(memory.local(3, 56, 8, Access::READ).is_ok());
        for (region, offset, bytes, access) in [
            (3, 57, 8, Access::READ),
            (3, u64::MAX, 8, Access::READ),
            (3, 0, 8, Access::WRITE),
            (2, 0, 8, Access::READ),
            (4, 0, 8, Access::READ),
            (u64::MAX, 0, 0, Access::NONE),
        ] {
            let denied = memory.local(region, offset, bytes, access).err();
            assert_eq!(denied, Some(AccessDenied::NotPermitted), "{region} {offset} {bytes}");
        }
        assert!(memory.take_back(3).is_some() && memory.take_back(3).is_none());
        let site = RegionSite::Remote(LinkId(1), RemoteRegionId(0));
        memory.lend(0, LentRegion { site, bytes: 8, access: Access::ALL });
        assert_eq!(memory.local(0, 0, 8, Access::READ).err(), Some(AccessDenied::NotLocal));
        memory.lost(LinkId(1));
        assert_eq!(memory.local(0, 0, 8, Access::READ).err(), Some(AccessDenied::NotLocal));
    }
}
