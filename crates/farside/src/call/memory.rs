//! The regions that calls may reach: beside their executor, or at the other end of a link.

use super::words::Words;
use farside_base::{Access, LinkId, RemoteRegionId};
use farside_fabric::Arena;
use std::collections::{BTreeMap, BTreeSet};

/// Most regions of an executor: their numbers are below.
pub const REGIONS_MAX: usize = 256;

/// Where the bytes of a region are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// This processor loads and stores them.
    Here(Arena),
    /// They are READ and written by work requests.
    There(LinkId, RemoteRegionId),
    /// They were at the other end of a link that was lost.
    Gone,
}

/// A region and what calls may do with it, as a one-sided request might.
#[derive(Clone, Debug)]
pub(super) struct Lent {
    pub(super) place: Place,
    pub(super) bytes: u64,
    pub(super) access: Access,
}

/// Why memory was not touched. What programs see of it are `status` numbers or the end of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Denied {
    /// The region is unknown, too short or does not allow this.
    NotPermitted,
    /// It is elsewhere.
    Elsewhere,
    /// It was elsewhere, and is out of reach.
    Gone,
}

/// Regions by number.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    regions: Vec<Option<Lent>>,
    words: Words,
}

impl Memory {
    const NOTHING: Self = Self { regions: Vec::new(), words: Words::NOTHING };

    /// Puts a region at a number below [`REGIONS_MAX`].
    pub(super) fn lend(&mut self, number: u8, lent: Lent) {
        let at = usize::from(number);
        if self.regions.len() <= at {
            self.regions.resize(at + 1, None);
        }
        self.words.set(at, Some(&lent));
        self.regions[at] = Some(lent);
    }

    /// What machine code of calls may load by itself.
    pub(super) const fn words(&self) -> &Words {
        &self.words
    }

    /// Takes a region back.
    pub(super) fn take_back(&mut self, number: u8) -> Option<Lent> {
        let lent = self.regions.get_mut(usize::from(number))?.take();
        self.words.set(usize::from(number), None);
        lent
    }

    /// What lies at the other end of this link is gone.
    pub(super) fn lost(&mut self, link: LinkId) {
        for lent in self.regions.iter_mut().flatten() {
            if matches!(lent.place, Place::There(of, _) if of == link) {
                lent.place = Place::Gone;
            }
        }
    }

    #[inline]
    fn lent(&self, region: u64) -> Option<&Lent> {
        self.regions.get(usize::try_from(region).ok()?)?.as_ref()
    }

    /// Whether there is a region of this number whose bytes are here.
    pub(super) fn is_here(&self, region: u64) -> bool {
        self.lent(region).is_some_and(|lent| matches!(lent.place, Place::Here(_)))
    }

    /// A region whose bytes may be accessed so, here or there.
    #[inline]
    pub(super) fn region(
        &self,
        region: u64,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<&Lent, Denied> {
        let lent = self.lent(region).ok_or(Denied::NotPermitted)?;
        let inside = offset.checked_add(bytes).is_some_and(|end| end <= lent.bytes);
        if inside && lent.access.allows(access) { Ok(lent) } else { Err(Denied::NotPermitted) }
    }

    /// The same for what lies here.
    #[inline]
    pub(super) fn here(
        &self,
        region: u64,
        offset: u64,
        bytes: u64,
        access: Access,
    ) -> Result<&Arena, Denied> {
        match &self.region(region, offset, bytes, access)?.place {
            Place::Here(arena) => Ok(arena),
            // What is gone is told where accesses across begin: no access here pays for it.
            Place::There(..) | Place::Gone => Err(Denied::Elsewhere),
        }
    }
}

/// What each tenant may reach: a table of regions for each, so that no access pays for looking whose it is.
#[derive(Debug, Default)]
pub(super) struct Memories {
    lent: BTreeMap<u8, (Lent, Option<BTreeSet<usize>>)>,
    /// By tenant.
    views: Vec<Memory>,
}

impl Memories {
    /// A tenant, unless it is here already.
    pub(super) fn add(&mut self, tenant: usize) {
        while self.views.len() <= tenant {
            let mut view = Memory::default();
            for (number, (lent, tenants)) in &self.lent {
                if is_open(tenants.as_ref(), self.views.len()) {
                    view.lend(*number, lent.clone());
                }
            }
            self.views.push(view);
        }
    }

    /// Lends a region to these tenants, or to all, those to come included.
    pub(super) fn lend(&mut self, number: u8, lent: Lent, tenants: Option<BTreeSet<usize>>) {
        for (tenant, view) in self.views.iter_mut().enumerate() {
            if is_open(tenants.as_ref(), tenant) {
                view.lend(number, lent.clone());
            } else {
                view.take_back(number);
            }
        }
        self.lent.insert(number, (lent, tenants));
    }

    pub(super) fn take_back(&mut self, number: u8) {
        self.lent.remove(&number);
        for view in &mut self.views {
            view.take_back(number);
        }
    }

    /// Whether a tenant may reach a region.
    pub(super) fn is_lent(&self, number: u8, tenant: usize) -> bool {
        let lent = self.lent.get(&number);
        lent.is_some_and(|(_, tenants)| is_open(tenants.as_ref(), tenant))
    }

    /// What lies at the other end of this link is gone.
    pub(super) fn lost(&mut self, link: LinkId) {
        for lent in self.lent.values_mut().map(|(lent, _)| lent) {
            if matches!(lent.place, Place::There(of, _) if of == link) {
                lent.place = Place::Gone;
            }
        }
        self.views.iter_mut().for_each(|view| view.lost(link));
    }

    /// Whether any region is in reach of anybody.
    pub(super) fn has_any(&self) -> bool {
        self.lent.values().any(|(lent, _)| !matches!(lent.place, Place::Gone))
    }

    /// What a tenant may reach that was added.
    #[inline]
    pub(super) fn of(&self, tenant: usize) -> &Memory {
        static NOTHING: Memory = Memory::NOTHING;
        self.views.get(tenant).unwrap_or(&NOTHING)
    }
}

fn is_open(tenants: Option<&BTreeSet<usize>>, tenant: usize) -> bool {
    tenants.is_none_or(|tenants| tenants.contains(&tenant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_reaches_what_is_lent_to_it() {
        let mut memories = Memories::default();
        let lent =
            |bytes| Lent { place: Place::Here(Arena::heap(64)), bytes, access: Access::READ };
        memories.add(1);
        memories.lend(0, lent(64), None);
        memories.lend(3, lent(64), Some([1, 2].into()));
        memories.add(2);
        let reach = |memories: &Memories, number| {
            [0, 1, 2, 3].map(|tenant| memories.of(tenant).here(number, 0, 8, Access::READ).is_ok())
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
    fn regions_are_reached_within_bounds_and_rights() {
        let mut memory = Memory::default();
        let arena = Arena::heap(64);
        let lent = Lent { place: Place::Here(arena), bytes: 64, access: Access::READ };
        memory.lend(3, lent);
        assert!(memory.here(3, 56, 8, Access::READ).is_ok());
        for (region, offset, bytes, access) in [
            (3, 57, 8, Access::READ),
            (3, u64::MAX, 8, Access::READ),
            (3, 0, 8, Access::WRITE),
            (2, 0, 8, Access::READ),
            (4, 0, 8, Access::READ),
            (u64::MAX, 0, 0, Access::NONE),
        ] {
            let denied = memory.here(region, offset, bytes, access).err();
            assert_eq!(denied, Some(Denied::NotPermitted), "{region} {offset} {bytes}");
        }
        assert!(memory.take_back(3).is_some() && memory.take_back(3).is_none());
        let place = Place::There(LinkId(1), RemoteRegionId(0));
        memory.lend(0, Lent { place, bytes: 8, access: Access::ALL });
        assert_eq!(memory.here(0, 0, 8, Access::READ).err(), Some(Denied::Elsewhere));
        memory.lost(LinkId(1));
        assert_eq!(memory.here(0, 0, 8, Access::READ).err(), Some(Denied::Elsewhere));
    }
}
