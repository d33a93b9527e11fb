//! The registered memory of a half, and memory that holds messages.

use super::hello::Tokens;
use crate::registered::Registered;
use crate::{Error, ErrorCode};
use farside_base::RegionKind;
use farside_fabric::{Arena, Fabric, Reached, Region};
use farside_protocol::channel::{MemoryPlan, Own, OwnRegions};
use std::sync::Arc;

/// The regions that a half's plan requires.
pub(super) struct Memory {
    buffer: Option<Registered>,
    bells: Registered,
    counters: Option<Registered>,
}

impl Memory {
    pub(super) fn new(fabric: &Arc<dyn Fabric>, plan: &MemoryPlan) -> Result<Self, Error> {
        let MemoryPlan { buffer_bytes, buffer_access, buffer_kind, .. } = *plan;
        let MemoryPlan { bells_bytes, bells_access, .. } = *plan;
        let MemoryPlan { counters_bytes, counters_access, counters_kind, .. } = *plan;
        Ok(Self {
            buffer: Registered::if_any(fabric, buffer_bytes, buffer_access, buffer_kind)?,
            bells: Registered::new(fabric, bells_bytes, bells_access, RegionKind::Memory)?,
            counters: Registered::if_any(fabric, counters_bytes, counters_access, counters_kind)?,
        })
    }

    /// Returns an optional region; if it was omitted, the bells take its role.
    #[inline]
    fn or_bells<'a>(&'a self, region: &'a Option<Registered>) -> &'a Region {
        &region.as_ref().unwrap_or(&self.bells).region
    }

    /// Returns the buffer of messages.
    #[inline]
    pub(super) fn buffer(&self) -> &Arena {
        &self.or_bells(&self.buffer).arena
    }

    /// Returns the arenas, to be lent to the half.
    #[inline]
    pub(super) fn own(&self) -> Own<'_, Arena> {
        Own {
            buffer: self.buffer(),
            bells: &self.bells.region.arena,
            counters: self.or_bells(&self.counters).memory(),
        }
    }

    /// Returns the numbers of the regions.
    pub(super) fn regions(&self) -> OwnRegions {
        OwnRegions { buffer: self.or_bells(&self.buffer).id, bells: self.bells.region.id }
    }

    /// Returns the tokens of the regions, for the peer.
    pub(super) fn tokens(&self) -> Tokens {
        let token = |region: &Option<Registered>| region.as_ref().map(|one| one.region.token);
        Tokens {
            buffer: token(&self.buffer),
            bells: self.bells.region.token,
            counters: token(&self.counters),
        }
    }

    /// Returns the bytes of all regions.
    pub(super) fn bytes(&self) -> u64 {
        let all = self.buffer.iter().chain([&self.bells]).chain(&self.counters);
        all.map(|one| one.region.token.bytes).sum()
    }
}

/// Memory of a channel that holds messages, of this end or, if this processor can access it, of the peer.
#[derive(Clone, Copy, Debug)]
pub(super) enum MemoryView<'a> {
    Own(&'a Arena),
    OfPeer(&'a Reached),
}

impl MemoryView<'_> {
    /// Copies bytes out.
    #[inline]
    pub(super) fn read(self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let read = match self {
            Self::Own(arena) => arena.read(offset, out),
            Self::OfPeer(reached) => reached.read(offset, out),
        };
        read.map_err(|_| ErrorCode::OutOfBounds.into())
    }
}

/// Memory of this end that holds a message.
#[derive(Clone, Debug)]
pub(super) struct MessageMemory(Arena);

impl MessageMemory {
    pub(super) fn of(arena: &Arena) -> Self {
        Self(arena.clone())
    }

    #[inline]
    pub(super) fn view(&self) -> MemoryView<'_> {
        MemoryView::Own(&self.0)
    }

    /// Copies bytes in.
    #[inline]
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.0.write(offset, bytes).map_err(|_| ErrorCode::OutOfBounds.into())
    }
}
