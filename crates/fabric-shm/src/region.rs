//! The regions of a fabric: their memory, their keys on the board, and which peers may import them.

use crate::layout::{REGIONS_MAX, board};
use crate::mapping::{self, PAGE, Pages, PeerMappings, RegionDescriptor, RegionMemory};
use crate::message::Grant;
use crate::options::{CAPABILITIES, ShmOptions};
use farside_base::{RegionId, RegionKind, RegionToken, RemoteKey};
use farside_fabric::{Arena, FabricError, Region, RegionSpec};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A registered region.
pub(crate) struct ShmRegion {
    pub(crate) arena: Arena,
    pub(crate) descriptor: Arc<RegionDescriptor>,
    pub(crate) pages: Pages,
    token: RegionToken,
    kind: RegionKind,
}

impl ShmRegion {
    fn device_bytes(&self) -> u64 {
        if self.kind == RegionKind::Device { self.token.bytes } else { 0 }
    }
}

enum RegionSlot {
    Free,
    Used(ShmRegion),
    /// Deregistered, but a request that has seen the key may be in flight.
    Leaving {
        /// Bytes of device memory that it still uses.
        device_bytes: u64,
    },
}

/// All regions, by entry; a region's number is its entry and the number of uses of the entry, so no
/// number names two regions in the life of a fabric.
pub(crate) struct RegionTable {
    places: Vec<(u32, RegionSlot)>,
    board: Arena,
}

const PLACE_BITS: u32 = REGIONS_MAX.trailing_zeros();
const USES_MAX: u32 = u32::MAX >> PLACE_BITS;

/// Which key word and table entry a region has.
#[inline]
pub(crate) fn place_of(region: RegionId) -> usize {
    (region.0 & (REGIONS_MAX - 1)) as usize
}

impl RegionTable {
    pub(crate) fn new(board: Arena) -> Self {
        Self { places: Vec::new(), board }
    }

    /// Adds a region with existing memory.
    ///
    /// # Errors
    /// `Limit` if there are too many, or too many bytes of device memory.
    pub(crate) fn add(
        &mut self,
        memory: RegionMemory,
        pages: Pages,
        spec: &RegionSpec,
    ) -> Result<Region, FabricError> {
        let (access, kind) = (spec.access, spec.kind);
        let bytes = memory.arena.len() as u64;
        RegionSpec { bytes: bytes / kind.turns(), ..*spec }
            .check(&CAPABILITIES, self.device_bytes())?;
        let place = self.free_place()?;
        let key = random_key()?;
        let (uses, entry) = &mut self.places[place];
        *uses += 1;
        let id = RegionId(*uses << PLACE_BITS | place as u32);
        let token = RegionToken { region: id, key, bytes, access };
        *entry = RegionSlot::Used(ShmRegion {
            arena: memory.arena.clone(),
            descriptor: memory.descriptor,
            pages,
            token,
            kind,
        });
        self.publish(place, key.0);
        Ok(Region { id, arena: memory.arena, token, device: None })
    }

    fn free_place(&mut self) -> Result<usize, FabricError> {
        let usable = |(uses, place): &(u32, RegionSlot)| {
            matches!(place, RegionSlot::Free) && *uses < USES_MAX
        };
        if let Some(place) = self.places.iter().position(usable) {
            return Ok(place);
        }
        if self.places.len() >= REGIONS_MAX as usize {
            return Err(FabricError::Limit("regions"));
        }
        self.places.push((0, RegionSlot::Free));
        Ok(self.places.len() - 1)
    }

    /// Returns the bytes of device memory in use.
    fn device_bytes(&self) -> u64 {
        let bytes = self.places.iter().map(|(_, place)| match place {
            RegionSlot::Free => 0,
            RegionSlot::Used(registered) => registered.device_bytes(),
            RegionSlot::Leaving { device_bytes } => *device_bytes,
        });
        bytes.sum()
    }

    fn publish(&self, place: usize, key: u64) {
        let at = board::key(place as u32);
        let stored = self.board.store(at, key, Ordering::SeqCst);
        debug_assert!(stored.is_ok(), "the board has a word for every place");
    }

    /// Returns the region with this number.
    pub(crate) fn find(&self, region: RegionId) -> Option<&ShmRegion> {
        match self.places.get(place_of(region)) {
            Some((_, RegionSlot::Used(registered))) if registered.token.region == region => {
                Some(registered)
            }
            _ => None,
        }
    }

    /// Returns the grant for a peer that names this key.
    pub(crate) fn grant(
        &self,
        region: RegionId,
        key: RemoteKey,
    ) -> Option<(Grant, Arc<RegionDescriptor>)> {
        let registered = self.find(region).filter(|found| found.token.key == key)?;
        let grant = Grant {
            bytes: registered.token.bytes / registered.kind.turns(),
            kind: registered.kind,
            access: registered.token.access,
            place: place_of(region) as u32,
        };
        Some((grant, Arc::clone(&registered.descriptor)))
    }

    /// Removes the key, so that no later request passes. The entry stays taken until
    /// [`free`](Self::free).
    ///
    /// # Errors
    /// `Unknown` if the region was freed before, or never existed.
    pub(crate) fn revoke(&mut self, region: RegionId) -> Result<(), FabricError> {
        let place = place_of(region);
        let unknown = FabricError::Unknown("region");
        let Some((uses, entry)) = self.places.get_mut(place) else {
            return Err(unknown);
        };
        if *uses != region.0 >> PLACE_BITS {
            return Err(unknown);
        }
        match entry {
            RegionSlot::Free => return Err(unknown),
            RegionSlot::Leaving { .. } => {}
            RegionSlot::Used(registered) => {
                registered.descriptor.end();
                *entry = RegionSlot::Leaving { device_bytes: registered.device_bytes() };
            }
        }
        self.publish(place, 0);
        Ok(())
    }

    /// Frees the entry of a revoked region.
    pub(crate) fn free(&mut self, region: RegionId) {
        if let Some((_, entry @ RegionSlot::Leaving { .. })) = self.places.get_mut(place_of(region))
        {
            *entry = RegionSlot::Free;
        }
    }
}

/// Allocates memory for a region, populated as far as the options say.
pub(crate) fn allocate(
    spec: &RegionSpec,
    options: &ShmOptions,
) -> Result<(RegionMemory, Pages), FabricError> {
    // The table checks again, with the bytes that are in use.
    spec.check(&CAPABILITIES, 0)?;
    let bytes = spec.bytes.max(1).next_multiple_of(PAGE);
    let mut pages = None;
    let fill = |arena: &Arena| {
        pages = match spec.kind {
            RegionKind::Sparse => Some(Pages::filled_on_use(bytes)),
            _ => fill_turns(arena, bytes, options),
        };
    };
    let memory = RegionMemory::new(bytes, spec.kind, PeerMappings::of(spec.access), fill)
        .map_err(|reason| FabricError::System("region memory", reason))?;
    let pages = pages.ok_or(FabricError::Lacks("region memory"))?;
    Ok((memory, pages))
}

/// Populates the first mapping; a further one then needs only its page tables.
fn fill_turns(arena: &Arena, turn: u64, options: &ShmOptions) -> Option<Pages> {
    let first = arena.part(0, usize::try_from(turn).ok()?).ok()?;
    let pages = fill(&first, options);
    if let Ok(second) = arena.part(turn, first.len()) {
        mapping::prefault(&second, pages.prefaulted, false);
    }
    Some(pages)
}

fn fill(arena: &Arena, options: &ShmOptions) -> Pages {
    let bytes = arena.len() as u64;
    let limit = mapping::prefault_limit(bytes, options.prefault_bytes_max);
    if options.huge_pages && bytes >= mapping::HUGE_PAGE {
        mapping::advise_huge(arena);
    }
    mapping::prefault(arena, limit, options.huge_pages)
}

/// Returns a key that cannot be guessed; never zero, which means no region.
fn random_key() -> Result<RemoteKey, FabricError> {
    loop {
        let mut bytes = [0; 8];
        let got = getrandom(&mut bytes, GetRandomFlags::empty())
            .map_err(|reason| FabricError::System("random key", reason.into()))?;
        let key = u64::from_le_bytes(bytes);
        if got == bytes.len() && key != 0 {
            return Ok(RemoteKey(key));
        }
    }
}
