//! Regions of peers, each imported on one link.

use crate::layout::{board, link};
use crate::mapping::{PeerMemory, PeerWord, View};
use crate::message::Grant;
use farside_base::{CompletionStatus, LinkId, RegionToken, RemoteRegionId};
use farside_fabric::FabricError;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// A peer's region on one link. In cache lines of its own.
#[derive(Clone)]
#[repr(align(64))]
pub(super) struct Import {
    /// Link and number, since a request must name both; [`NO_IMPORT`] if the entry is free.
    name: u64,
    /// What the owner allows, whatever the token says.
    pub(super) memory: PeerMemory,
    /// The key that lets requests pass as long as it is the one on the owner's board.
    key: u64,
    key_now: PeerWord,
    /// Not zero when the owner has closed the link.
    closed: PeerWord,
    token: RegionToken,
}

impl Import {
    /// Returns whether the owner lets requests pass now.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        self.key_now.load(Ordering::Acquire) == self.key && self.closed.load(Ordering::Acquire) == 0
    }

    /// Returns the status of a request that may not pass.
    #[cold]
    pub(super) fn refusal(&self) -> CompletionStatus {
        if self.closed.load(Ordering::Acquire) != 0 {
            CompletionStatus::PeerLost
        } else {
            CompletionStatus::RemoteAccess
        }
    }
}

/// No link has the number in it.
const NO_IMPORT: u64 = u64::MAX;

/// The low bits of a number are its entry, the others count the uses of that entry. An entry whose
/// count is exhausted is not used again, so no number names two regions.
const PLACE_BITS: u32 = 16;
const PLACES: u32 = 1 << PLACE_BITS;

#[inline(always)]
fn name_of(link: LinkId, region: RemoteRegionId) -> u64 {
    u64::from(link.0) << 32 | u64::from(region.0)
}

#[inline(always)]
fn place_of(region: RemoteRegionId) -> usize {
    (region.0 & (PLACES - 1)) as usize
}

/// All imported regions of a port, by entry.
#[derive(Default)]
pub(super) struct ImportTable {
    places: Vec<Import>,
    /// Free entries, with the number to use next, oldest first.
    free: VecDeque<RemoteRegionId>,
}

impl ImportTable {
    /// Returns the region that a request names, if it was imported on the request's link.
    #[inline(always)]
    pub(super) fn find(&self, link: LinkId, region: RemoteRegionId) -> Option<&Import> {
        match self.places.get(place_of(region)) {
            Some(import) if import.name == name_of(link, region) => Some(import),
            _ => None,
        }
    }

    /// Adds a region whose memory is mapped. Returns its existing number if it was added before. `peer`
    /// is the board of its owner and the link memory of the other end.
    ///
    /// # Errors
    /// `Limit` if there are too many.
    pub(super) fn add(
        &mut self,
        link: LinkId,
        token: &RegionToken,
        grant: &Grant,
        memory: PeerMemory,
        peer: [&View; 2],
    ) -> Result<RemoteRegionId, FabricError> {
        let [owner, other_end] = peer;
        let known = self.of_link(link).find(|(_, import)| import.token == *token);
        if let Some((number, _)) = known {
            return Ok(number);
        }
        let key_now = PeerWord::new(owner, board::key(grant.place));
        let key_now = key_now.ok_or(FabricError::Unknown("region token"))?;
        let closed = PeerWord::new(other_end, link::CLOSED);
        let closed = closed.ok_or(FabricError::Unknown("link"))?;
        let number = match self.free.pop_front() {
            Some(number) => number,
            None if self.places.len() < PLACES as usize => RemoteRegionId(self.places.len() as u32),
            None => return Err(FabricError::Limit("imports")),
        };
        let import = Import {
            name: name_of(link, number),
            memory,
            key: token.key.0,
            key_now,
            closed,
            token: *token,
        };
        match self.places.get_mut(place_of(number)) {
            Some(place) => *place = import,
            None => self.places.push(import),
        }
        Ok(number)
    }

    /// Returns the regions imported on a link.
    pub(super) fn of_link(&self, link: LinkId) -> impl Iterator<Item = (RemoteRegionId, &Import)> {
        let imports = self.places.iter().filter(|import| import.name != NO_IMPORT);
        let imports = imports.map(|import| (RemoteRegionId(import.name as u32), import));
        imports.filter(move |(_, import)| import.name >> 32 == u64::from(link.0))
    }

    /// Unmaps the imports of a link. Requests find nothing there and then check the link.
    pub(super) fn drop_link(&mut self, link: LinkId) {
        let numbers: Vec<_> = self.of_link(link).map(|(number, _)| number).collect();
        for number in numbers {
            let place = &mut self.places[place_of(number)];
            place.name = NO_IMPORT;
            place.memory = PeerMemory::none();
            place.key_now = PeerWord::none();
            place.closed = PeerWord::none();
            if let Some(next) = number.0.checked_add(PLACES) {
                self.free.push_back(RemoteRegionId(next));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{Access, RegionId, RegionKind, RemoteKey};
    use farside_fabric::Arena;

    fn add(table: &mut ImportTable, number: u32, region: u32) -> RemoteRegionId {
        let owner = View::of(&Arena::heap(board::BYTES as usize));
        let token = RegionToken {
            region: RegionId(region),
            key: RemoteKey(u64::from(region) + 1),
            bytes: 64,
            access: Access::ALL,
        };
        let kind = RegionKind::Memory;
        let grant = Grant { bytes: 64, kind, access: Access::ALL, place: 0 };
        let other_end = View::of(&Arena::heap(link::SLOTS as usize));
        let peer = [&owner, &other_end];
        let added = table.add(LinkId(number), &token, &grant, PeerMemory::none(), peer);
        added.expect("room")
    }

    #[test]
    fn numbers_are_of_one_link_and_not_used_again() {
        let mut table = ImportTable::default();
        let mut seen = std::collections::HashSet::new();
        for round in 0..100 {
            let one = add(&mut table, 2 * round, 7);
            let other = add(&mut table, 2 * round + 1, 7);
            assert_eq!(add(&mut table, 2 * round, 7), one, "known already");
            assert!(seen.insert(one) && seen.insert(other));
            assert!(table.find(LinkId(2 * round), one).is_some());
            assert!(table.find(LinkId(2 * round), other).is_none(), "of the other link");
            table.drop_link(LinkId(2 * round));
            assert!(table.find(LinkId(2 * round), one).is_none());
            assert!(table.find(LinkId(2 * round + 1), other).is_some());
            table.drop_link(LinkId(2 * round + 1));
        }
        assert_eq!(table.places.len(), 2, "places are used again");
    }

    #[test]
    fn a_place_that_has_had_its_uses_stays_empty() {
        let mut table = ImportTable::default();
        for _ in 0..=u32::MAX >> PLACE_BITS {
            let number = add(&mut table, 1, 7);
            assert_eq!(place_of(number), 0);
            table.drop_link(LinkId(1));
        }
        assert_eq!(add(&mut table, 1, 7), RemoteRegionId(1));
    }
}
