//! Locks of programs, and their holders.

use super::done::{Done, Holder, done};
use super::records::{Chunk, Records};
use farside_rmc::helpers::{Call, status};
use farside_rmc::program::LOCK_BYTES;

/// Most locks that a call holds at once, in each scope; bounds the work at its end.
const HELD_MAX: usize = 64;

/// Locks by index: the holder of each.
#[derive(Debug)]
pub(crate) struct Locks(Records);

/// A held lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct One {
    holder: Holder,
    handle: usize,
    index: usize,
}

/// All held locks of a program.
#[derive(Debug, Default)]
pub(crate) struct Held(Vec<One>);

impl Locks {
    pub(crate) fn new(entries: usize) -> Self {
        Self(Records::new(LOCK_BYTES as usize, entries))
    }

    /// Performs a helper on a lock; `handle` is that of its declaration.
    pub(crate) fn perform(
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
            // A call that waited for a lock of its own would wait for ever.
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

    /// Sets the holder of a lock; zero frees it.
    pub(crate) fn set(&mut self, index: usize, holder: Holder) {
        if let Some(bytes) = self.0.get_mut(index) {
            bytes.copy_from_slice(&holder.to_le_bytes());
        }
    }

    /// Chunks allocated so far.
    pub(crate) const fn made(&self) -> usize {
        self.0.made()
    }

    pub(crate) fn take_chunks(&mut self) -> Vec<Chunk> {
        self.0.take_chunks()
    }
}

impl Held {
    fn of(&self, holder: Holder) -> usize {
        self.0.iter().filter(|one| one.holder == holder).count()
    }

    /// Removes a lock of a holder; returns its handle and index.
    pub(crate) fn take(&mut self, holder: Holder) -> Option<(usize, usize)> {
        let at = self.0.iter().position(|one| one.holder == holder)?;
        let One { handle, index, .. } = self.0.swap_remove(at);
        Some((handle, index))
    }
}

const _: () = assert!(size_of::<Holder>() as u64 == LOCK_BYTES, "as is counted");
