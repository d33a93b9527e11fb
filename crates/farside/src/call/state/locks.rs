//! Locks of programs, and who holds them.

use super::records::{Chunk, Records};
use super::{Done, Holder, done};
use farside_rmc::helpers::{Call, status};
use farside_rmc::program::LOCK_BYTES;

/// Most locks that a call holds at once, of those of its session and of those that are shared: what has to be
/// looked for when it ends.
const HELD_MAX: usize = 64;

/// Locks by index: the holder of each.
#[derive(Debug)]
pub(super) struct Locks(Records);

/// A lock that somebody holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct One {
    holder: Holder,
    handle: usize,
    index: usize,
}

/// All locks of a program that are held.
#[derive(Debug, Default)]
pub(super) struct Held(Vec<One>);

impl Locks {
    pub(super) fn new(entries: usize) -> Self {
        Self(Records::new(LOCK_BYTES as usize, entries))
    }

    /// Carries a helper out on a lock, which belongs to the declaration with this handle.
    pub(super) fn perform(
        &mut self,
        held: &mut Held,
        call: Call,
        [handle, index]: [usize; 2],
        holder: Holder,
    ) -> Done {
        let Some(bytes) = self.0.get(index) else {
            return done(status::OUT_OF_RANGE);
        };
        let now = bytes.first_chunk().map_or(0, |bytes| Holder::from_le_bytes(*bytes));
        match (call, now) {
            (Call::Lock | Call::TryLock, 0) => {
                if held.of(holder) >= HELD_MAX {
                    return done(status::FULL);
                }
                held.0.push(One { holder, handle, index });
                self.set(index, holder);
                done(status::OK)
            }
            // Whoever waits for what it holds itself would wait for ever.
            (Call::Lock, other) if other != holder => Done::Held,
            (Call::Lock | Call::TryLock, _) => done(status::BUSY),
            (Call::Unlock, other) if other == holder => {
                held.0.retain(|one| (one.handle, one.index) != (handle, index));
                self.set(index, 0);
                done(status::OK)
            }
            _ => done(status::NOT_PERMITTED),
        }
    }

    /// Makes somebody, or nobody, the holder of a lock.
    pub(super) fn set(&mut self, index: usize, holder: Holder) {
        if let Some(bytes) = self.0.get_mut(index) {
            bytes.copy_from_slice(&holder.to_le_bytes());
        }
    }

    /// Chunks made so far.
    pub(super) const fn made(&self) -> usize {
        self.0.made()
    }

    pub(super) fn take_chunks(&mut self) -> Vec<Chunk> {
        self.0.take_chunks()
    }
}

impl Held {
    fn of(&self, holder: Holder) -> usize {
        self.0.iter().filter(|one| one.holder == holder).count()
    }

    /// Takes a lock of somebody out: its handle and index.
    pub(super) fn take(&mut self, holder: Holder) -> Option<(usize, usize)> {
        let at = self.0.iter().position(|one| one.holder == holder)?;
        let One { handle, index, .. } = self.0.swap_remove(at);
        Some((handle, index))
    }
}

const _: () = assert!(size_of::<Holder>() as u64 == LOCK_BYTES, "as is counted");
