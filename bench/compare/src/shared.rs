//! Memory that two processes share for the baselines: words that they spin or sleep on, and two slots for
//! messages.
//!
//! | what | who may touch it | when |
//! | --- | --- | --- |
//! | words | both processes | always: they are atomics |
//! | payload of slot 0 | the first process writes, the second reads | alternately: a write before the release of a higher number in the slot's flag, a read after an acquire has seen it |
//! | payload of slot 1 | the second process writes, the first reads | likewise |
//! | the mapping | the process that made it | until `Shared` is dropped; nothing lent outlives it |

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Result;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Distance of words, large enough that no prefetcher fetches one with another.
const WORD_STRIDE: usize = 256;
/// Offset of the slots, after the words.
const SLOTS_AT: usize = 4096;
const SLOTS: usize = 2;
/// Bytes of a slot's flag, which shares its line with the first bytes of the payload.
const FLAG_BYTES: usize = 8;
/// Most bytes of a message.
pub(crate) const MESSAGE_BYTES_MAX: usize = 64 << 10;
const SLOT_STRIDE: usize = MESSAGE_BYTES_MAX + 4096;
const BYTES: usize = SLOTS_AT + SLOTS * SLOT_STRIDE;

const _: () = assert!(FLAG_BYTES + MESSAGE_BYTES_MAX <= SLOT_STRIDE);
const _: () = assert!(SLOT_STRIDE.is_multiple_of(64) && SLOTS_AT.is_multiple_of(64));

/// The mapping of one process. Not `Sync`: one thread of a process accesses it.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
}

impl Shared {
    /// Creates zeroed memory; returns it with the descriptor by which another process can map it.
    pub(crate) fn create() -> Result<(OwnedFd, Self)> {
        let file = memfd_create("farside-compare", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BYTES as u64)?;
        let shared = Self::map(&file)?;
        Ok((file, shared))
    }

    /// Maps memory that another process has created.
    pub(crate) fn map(file: impl AsFd) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe {
            mmap(null_mut(), BYTES, access, MapFlags::SHARED | MapFlags::POPULATE, file, 0)
        }?;
        // A successful mmap without an address hint never returns address 0.
        NonNull::new(base.cast()).map(|base| Self { base }).ok_or(rustix::io::Errno::NOMEM)
    }

    /// Returns a word on its own cache line.
    pub(crate) fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number * WORD_STRIDE < SLOTS_AT);
        // SAFETY: inside the mapping, aligned, and by the table accessed as an atomic alone.
        unsafe { AtomicU64::from_ptr(self.base.add(number * WORD_STRIDE).cast().as_ptr()) }
    }

    /// Returns a word to sleep on. On a little-endian machine it is the low half of the word of this number: a
    /// program uses a number as one or the other.
    pub(crate) fn sleep_word(&self, number: usize) -> &AtomicU32 {
        assert!(number * WORD_STRIDE < SLOTS_AT);
        // SAFETY: inside the mapping, aligned, and by the table accessed as an atomic alone.
        unsafe { AtomicU32::from_ptr(self.base.add(number * WORD_STRIDE).cast().as_ptr()) }
    }

    /// Returns the flag of a slot: the number of messages written to it.
    pub(crate) fn flag(&self, slot: usize) -> &AtomicU64 {
        // SAFETY: `slot` checks the bounds and is aligned to a line; by the table an atomic alone.
        unsafe { AtomicU64::from_ptr(self.slot(slot).cast().as_ptr()) }
    }

    /// Copies a message into the slot that this process writes.
    pub(crate) fn write(&self, slot: usize, message: &[u8]) {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        // SAFETY: within the slot; `message` is private memory, so it cannot overlap; by the table
        // the other process does not read before the flag is stored.
        unsafe {
            let payload = self.slot(slot).add(FLAG_BYTES);
            payload.copy_from_nonoverlapping(NonNull::from(message).cast(), message.len());
        }
    }

    /// Copies a message out of a slot whose flag has announced it.
    pub(crate) fn read(&self, slot: usize, message: &mut [u8]) {
        assert!(message.len() <= MESSAGE_BYTES_MAX);
        let bytes = message.len();
        // SAFETY: as in `write`; by the table the other process waits for the answer before it
        // writes again.
        unsafe {
            let payload = self.slot(slot).add(FLAG_BYTES);
            payload.copy_to_nonoverlapping(NonNull::from(message).cast(), bytes);
        }
    }

    fn slot(&self, slot: usize) -> NonNull<u8> {
        assert!(slot < SLOTS);
        // SAFETY: the assertion keeps it inside the mapping.
        unsafe { self.base.add(SLOTS_AT + slot * SLOT_STRIDE) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value; no borrow of it is left. On failure it stays mapped.
        let _ = unsafe { munmap(self.base.cast().as_ptr(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn two_mappings_have_the_same_memory() {
        let (file, one) = Shared::create().unwrap();
        let two = Shared::map(&file).unwrap();
        let message: Vec<u8> = (0..MESSAGE_BYTES_MAX).map(|at| at as u8).collect();
        for slot in 0..SLOTS {
            one.write(slot, &message);
            one.flag(slot).store(7, Ordering::Release);
            let mut out = vec![0; MESSAGE_BYTES_MAX];
            two.read(slot, &mut out);
            assert_eq!(two.flag(slot).load(Ordering::Acquire), 7);
            assert_eq!(out, message, "slot {slot}");
        }
        one.word(3).store(9, Ordering::Relaxed);
        assert_eq!(two.sleep_word(3).load(Ordering::Relaxed), 9);
        assert_eq!(two.word(2).load(Ordering::Relaxed), 0);
    }
}
