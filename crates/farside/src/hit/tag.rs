//! The tag of a line: one word that the coherence machine and the hit path share. The table in the parent module says
//! who changes which of its bits.

use super::processor::pause;
use farside_base::LineSize;
use farside_protocol::coherence::{Extent, Level};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(shuttle)]
use shuttle::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::{AtomicU64, Ordering, fence};

const BUSY: u64 = 1;
const LEVEL_SHIFT: u32 = 1;
const LEVEL_MASK: u64 = 3 << LEVEL_SHIFT;
const FIRST: u64 = 1 << 3;
const CLASS_SHIFT: u32 = 4;
const CLASS_MASK: u64 = 15 << CLASS_SHIFT;
const WORDS_SHIFT: u32 = 8;
const WORDS_MASK: u64 = 0x3fff << WORDS_SHIFT;
const VERSION: u64 = 1 << 22;

/// The unit of byte counts in a tag: allocations are rounded up to this.
pub(crate) const WORD: u64 = 8;

/// The value of a tag at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TagValue(pub(super) u64);

impl TagValue {
    /// The value of a tag in the memory of another home.
    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether bytes of a line of this size may be copied out, if the tag is the same after the copy.
    #[inline(always)]
    pub(crate) fn allows_read(
        self,
        size: LineSize,
        offset: usize,
        bytes: usize,
        continues: bool,
    ) -> bool {
        self.allows(1, offset, bytes, continues) && self.class() == size.class()
    }

    /// Whether a thread changes the line's bytes.
    #[inline]
    pub(crate) fn busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// The access right of this node to the line.
    #[inline]
    pub(crate) fn level(self) -> Level {
        match (self.0 & LEVEL_MASK) >> LEVEL_SHIFT {
            0 => Level::Invalid,
            1 => Level::Shared,
            _ => Level::Dirty,
        }
    }

    /// Whether sessions of this node may change the line.
    pub(crate) fn may_change(self) -> bool {
        self.level() == Level::Dirty
    }

    /// The line's allocation; `None` if it is in none (or this is unknown).
    pub(crate) fn extent(self) -> Option<Extent> {
        let words = (self.0 & WORDS_MASK) >> WORDS_SHIFT;
        (words != 0).then_some(Extent { first: self.0 & FIRST != 0, bytes: (words * WORD) as u32 })
    }

    /// The low bits of a counter of writes and changes of level.
    pub(crate) fn version(self) -> u32 {
        (self.0 / VERSION) as u32
    }

    #[inline]
    pub(super) fn class(self) -> u8 {
        ((self.0 & CLASS_MASK) >> CLASS_SHIFT) as u8
    }

    /// Whether `level` suffices for `bytes` at `offset` of the line, and no thread writes. An access that
    /// `continues` from the previous line must not run into the next allocation.
    #[inline(always)]
    pub(super) fn allows(self, level: u64, offset: usize, bytes: usize, continues: bool) -> bool {
        let end = (offset + bytes) as u64;
        let stop = if continues { BUSY | FIRST } else { BUSY };
        self.0 & stop == 0
            && (self.0 & LEVEL_MASK) >> LEVEL_SHIFT >= level
            && end <= ((self.0 & WORDS_MASK) >> WORDS_SHIFT) * WORD
    }
}

/// The word that the coherence machine and the hit path share.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct Tag(pub(super) AtomicU64);

impl Tag {
    #[cfg(any(loom, shuttle))]
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// The first load of a reader.
    #[inline(always)]
    pub(crate) fn observe(&self) -> TagValue {
        TagValue(self.0.load(Ordering::Acquire))
    }

    /// The second check of a reader: true if the line has not changed since `seen`.
    #[inline(always)]
    pub(crate) fn unchanged(&self, seen: TagValue) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == seen.0
    }

    /// Takes the busy bit if the tag is still `seen`.
    #[inline(always)]
    pub(crate) fn claim(&self, seen: TagValue) -> bool {
        let claimed = self
            .0
            .compare_exchange(seen.0, seen.0 | BUSY, Ordering::Acquire, Ordering::Relaxed)
            .is_ok();
        // Readers that see bytes written from here on also see the busy bit.
        fence(Ordering::Release);
        claimed
    }

    /// Clears the busy bit after writing.
    #[inline]
    pub(crate) fn release(&self, claimed: TagValue) {
        self.0.store(claimed.0.wrapping_add(VERSION), Ordering::Release);
    }

    /// Takes the busy bit whatever the tag is; waits for a copy in progress on another thread.
    pub(crate) fn claim_any(&self) -> TagValue {
        let mut tries = 0_u32;
        loop {
            let seen = TagValue(self.0.load(Ordering::Relaxed));
            if !seen.busy() && self.claim(seen) {
                return seen;
            }
            tries += 1;
            pause(tries);
        }
    }

    /// Sets the level and, if given, class and extent. Engine only.
    pub(crate) fn set(&self, level: Level, extent: Option<(LineSize, Option<Extent>)>) {
        let seen = self.claim_any();
        let mut bits = seen.0 & !LEVEL_MASK | (level as u64) << LEVEL_SHIFT;
        if let Some((size, extent)) = extent {
            bits &= !(FIRST | CLASS_MASK | WORDS_MASK);
            bits |= u64::from(size.class()) << CLASS_SHIFT;
            if let Some(extent) = extent {
                let words = u64::from(extent.bytes).div_ceil(WORD);
                bits |= words << WORDS_SHIFT;
                bits |= if extent.first { FIRST } else { 0 };
            }
        }
        self.release(TagValue(bits));
    }
}
