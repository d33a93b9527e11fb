//! The layout of a ring: the offsets of positions in its buffer.

use super::half::WORD;
use super::shape::{MemoryPlan, Shape};
use farside_base::{Access, Memory, OutOfBounds, RegionKind};

/// The offsets of positions in a ring that is mirrored, or has a guard after it for the end of a record that crosses
/// the end of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct RingLayout {
    mask: u64,
    /// The offset of the last word: of both mappings, or of the guard.
    top: u64,
    mirrored: bool,
}

impl RingLayout {
    /// The layout of a ring with records of up to `record_max` bytes.
    pub(super) const fn new(shape: &Shape, record_max: u64) -> Self {
        let more = if shape.mirrored { shape.ring_bytes } else { record_max.next_multiple_of(64) };
        let (mask, top) = (shape.ring_bytes - 1, shape.ring_bytes + more - WORD);
        Self { mask, top, mirrored: shape.mirrored }
    }

    pub(super) const fn ring_bytes(self) -> u64 {
        self.mask + 1
    }

    pub(super) const fn is_mirrored(self) -> bool {
        self.mirrored
    }

    /// The offset of a position: the first byte of a record, in a ring that grows upwards.
    #[inline]
    pub(super) const fn offset(self, position: u64) -> u64 {
        position & self.mask
    }

    /// In a ring that grows downwards: the bell of a record, which is its last word.
    #[inline]
    pub(super) const fn down(self, position: u64) -> u64 {
        self.top - (position & self.mask)
    }

    /// Whether a record crosses the end of the ring, or reaches it.
    #[inline]
    pub(super) const fn passes_end(self, position: u64, record: u64) -> bool {
        (position & self.mask) + record > self.mask
    }

    /// The end of the contiguous bytes from a position on, guard included.
    #[inline]
    pub(super) const fn contiguous_end(self, position: u64) -> u64 {
        position - self.offset(position) + self.top + WORD
    }

    /// The end of the records that are contiguous with the one at a position.
    #[inline]
    pub(super) const fn turn_end(self, position: u64) -> u64 {
        match self.mirrored {
            true => self.contiguous_end(position),
            false => position - self.offset(position) + self.ring_bytes(),
        }
    }

    /// Zeroes the bytes that records from `start` to `end` may have filled, at most a ring. In a ring that is not
    /// mirrored also zeroes the guard, if they cross the end.
    pub(super) fn clear(
        self,
        start: u64,
        end: u64,
        buffer: &impl Memory,
    ) -> Result<(), OutOfBounds> {
        let (first, all) = (self.offset(start), self.ring_bytes());
        let (bytes, to_end) = (end.saturating_sub(start).min(all), all - first);
        if self.mirrored || bytes <= to_end {
            return buffer.clear(first, bytes);
        }
        buffer.clear(first, self.top + WORD - first)?;
        buffer.clear(0, bytes - to_end)
    }
}

impl MemoryPlan {
    /// Adds a ring of messages.
    pub(super) const fn with_ring(self, ring: RingLayout, access: Access) -> Self {
        let (buffer_bytes, buffer_kind) = match ring.mirrored {
            true => (ring.ring_bytes(), RegionKind::Mirrored),
            false => (ring.top + WORD, RegionKind::Memory),
        };
        Self { buffer_bytes, buffer_kind, buffer_access: access, ..self }
    }
}
