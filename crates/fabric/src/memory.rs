//! Memory that peers may change at any time. It is never borrowed as `&[u8]`: this file copies in and
//! out, and does atomics, and no other code in Farside touches such bytes.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | any thread that holds an [`Arena`] | read, write, atomics within its bounds | always |
//! | peers, through their fabric | the same, as their access allows | until deregistration |
//! | the owner of the mapping | unmap | when the last `Arena` is dropped (`keep_alive`) |
//!
//! Races between these are expected. Every access to such memory below is an atomic of at most 8 bytes
//! or an assembly block, which the language treats as unordered atomic accesses, so a race gives torn
//! bytes and never undefined behaviour. Protocols above detect tearing by versions. The other side of a
//! copy is a slice that its caller borrowed, so no other thread accesses it meanwhile. No access
//! touches a byte outside the bytes that were asked for.

mod copy;
mod mirror;
#[cfg(target_os = "linux")]
mod place;

use copy::{ArenaMemory, Private, fetch, place};
use farside_base::{Memory, OutOfBounds};
use mirror::Mirror;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A stretch of shared memory, 64-byte aligned. Cloning shares it.
#[derive(Clone)]
pub struct Arena {
    base: NonNull<u8>,
    bytes: usize,
    keep_alive: Arc<dyn Any + Send + Sync>,
}

// SAFETY: all access goes through atomics and assembly copies; the memory lives as long as
// `keep_alive`, which every clone holds.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// The heap memory of an arena without a fabric.
struct Heap(NonNull<u8>, std::alloc::Layout);

// SAFETY: owns plain memory, freed once in `drop`.
unsafe impl Send for Heap {}
// SAFETY: has no methods on `&self`.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated by `Arena::heap` with this layout, freed only here.
        unsafe { std::alloc::dealloc(self.0.as_ptr(), self.1) }
    }
}

impl Arena {
    /// Zeroed memory of this process alone.
    ///
    /// # Panics
    /// When the process is out of memory, as every allocation in Rust.
    pub fn heap(bytes: usize) -> Self {
        match Self::try_heap(bytes) {
            Ok(arena) => arena,
            Err(_) => std::alloc::handle_alloc_error(std::alloc::Layout::new::<u8>()),
        }
    }

    /// Allocates zeroed memory of this process alone.
    ///
    /// # Errors
    /// `OutOfMemory`: request less, or free memory.
    pub fn try_heap(bytes: usize) -> std::io::Result<Self> {
        let none = std::io::ErrorKind::OutOfMemory;
        let layout = std::alloc::Layout::from_size_align(bytes.max(64), 4096).map_err(|_| none)?;
        // SAFETY: the layout has a size over zero.
        let memory = unsafe { std::alloc::alloc_zeroed(layout) };
        let base = NonNull::new(memory).ok_or(none)?;
        Ok(Self { base, bytes, keep_alive: Arc::new(Heap(base, layout)) })
    }

    /// Whether copied bytes are stored in rising address order: on x86-64, where the processor shows
    /// stores in their order.
    pub const RISING: bool = cfg!(all(target_arch = "x86_64", not(miri)));

    /// Whether [`mirrored`](Self::mirrored) is supported on this platform.
    pub const MIRRORS: bool = cfg!(all(target_os = "linux", not(miri)));

    /// Allocates zeroed memory of this process alone that is mapped twice in a row: `bytes`, rounded up
    /// to whole pages, are one mapping; the arena covers both, of which the second shows the same bytes
    /// as the first.
    ///
    /// # Errors
    /// `Unsupported` except on Linux; `OutOfMemory` and other errors of the system if it has none.
    pub fn mirrored(bytes: usize) -> std::io::Result<Self> {
        let mirror = Mirror::new(bytes)?;
        let (base, bytes) = mirror.place();
        let base = NonNull::new(base).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes, keep_alive: Arc::new(mirror) })
    }

    /// Wraps memory that was mapped elsewhere.
    ///
    /// # Safety
    /// `base` is 64-byte aligned and readable and writable for `bytes` until `keep_alive` is
    /// dropped, and nothing in this process forms a reference to it.
    pub unsafe fn from_raw(
        base: NonNull<u8>,
        bytes: usize,
        keep_alive: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        assert!(base.as_ptr().addr().is_multiple_of(64));
        Self { base, bytes, keep_alive }
    }

    /// Returns the bytes of it.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the part of `bytes` from `offset` on, as an arena of its own.
    ///
    /// # Errors
    /// When it passes the end or `offset` is not a multiple of 64.
    pub fn part(&self, offset: u64, bytes: usize) -> Result<Self, OutOfBounds> {
        if !offset.is_multiple_of(64) {
            return Err(OutOfBounds);
        }
        let base = NonNull::new(self.at(offset, bytes)?).ok_or(OutOfBounds)?;
        Ok(Self { base, bytes, keep_alive: Arc::clone(&self.keep_alive) })
    }

    /// Returns the address of `bytes` bytes at `offset`, for a fabric that passes it to a device or to
    /// [`copy_from`](Self::copy_from). Not for reading or writing in any other way.
    ///
    /// # Errors
    /// When they pass the end.
    #[inline]
    pub fn at(&self, offset: u64, bytes: usize) -> Result<*mut u8, OutOfBounds> {
        let size = self.bytes as u64;
        if offset > size || bytes as u64 > size - offset {
            return Err(OutOfBounds);
        }
        // SAFETY: `offset` is within the memory, as just checked.
        Ok(unsafe { self.base.as_ptr().add(offset as usize) })
    }

    /// Returns an aligned 64-bit word, so that one bounds check covers several accesses.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn word(&self, offset: u64) -> Result<&AtomicU64, OutOfBounds> {
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        let at = self.at(offset, 8)?;
        // SAFETY: in bounds, 8-byte aligned (the base is 64-byte aligned), lives as long as self,
        // and only ever accessed atomically.
        Ok(unsafe { &*at.cast::<AtomicU64>() })
    }

    /// Copies bytes out. Order and tearing are undefined beyond 8 aligned bytes.
    ///
    /// # Errors
    /// When they pass the end; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let from = self.at(offset, out.len())?;
        // SAFETY: source is in bounds, target is an exclusive slice; they do not overlap because
        // no reference to arena memory exists.
        unsafe { fetch(from, out.as_mut_ptr(), out.len()) };
        Ok(())
    }

    /// Copies bytes in. Each aligned word of 8 bytes changes at once, and with [`RISING`](Self::RISING)
    /// the bytes are stored in rising address order: a thread that sees one of them (by an acquire
    /// load) sees by later loads all before it.
    ///
    /// # Errors
    /// When they pass the end; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let to = self.at(offset, bytes.len())?;
        // SAFETY: target is in bounds, source is a shared slice; no overlap, as in `read`.
        unsafe { place::<Private>(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// Copies `bytes` from another arena (or another, not overlapping, part of this one); they are
    /// stored as in [`write`](Self::write). If source and target are aligned alike, each aligned word
    /// of 8 bytes is loaded at once too.
    ///
    /// # Errors
    /// When they pass the end of either; nothing is copied then.
    #[inline(always)]
    pub fn copy_from(
        &self,
        offset: u64,
        from: &Self,
        from_offset: u64,
        bytes: usize,
    ) -> Result<(), OutOfBounds> {
        let to = self.at(offset, bytes)?;
        let from = from.at(from_offset, bytes)?;
        // SAFETY: both in bounds. Should they overlap, bytes of the overlap are mixed, as in any
        // other race on shared memory.
        unsafe { place::<ArenaMemory>(from, to, bytes) };
        Ok(())
    }

    /// Hints that this thread will soon write these bytes, so that their cache lines are fetched now.
    /// Only a hint: bytes past the end are ignored.
    #[inline]
    pub fn expect_write(&self, offset: u64, bytes: usize) {
        self.each_line(offset, bytes, copy::expect_write);
    }

    /// Hints that another processor will soon read these bytes, which this one has just written. No
    /// more than a hint: bytes past the end are ignored.
    #[inline]
    pub fn expect_read_elsewhere(&self, offset: u64, bytes: usize) {
        self.each_line(offset, bytes, copy::expect_read_elsewhere);
    }

    #[inline(always)]
    fn each_line(&self, offset: u64, bytes: usize, hint: impl Fn(*const u8)) {
        if let Ok(start) = self.at(offset, bytes) {
            let within = start.addr() % 64;
            for line in (0..within + bytes).step_by(64) {
                hint(start.wrapping_sub(within).wrapping_add(line));
            }
        }
    }

    /// Sets bytes to zero.
    ///
    /// # Errors
    /// When they pass the end.
    pub fn zero(&self, offset: u64, bytes: usize) -> Result<(), OutOfBounds> {
        const ZEROES: [u8; 4096] = [0; 4096];
        self.at(offset, bytes)?;
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(ZEROES.len());
            self.write(offset + done as u64, &ZEROES[..step])?;
            done += step;
        }
        Ok(())
    }

    /// Populates the memory and puts it on the first of these NUMA nodes, except for pages that are on one of them.
    ///
    /// *Cost*: a touch of each page, and a system call for each 1,024 pages; two where pages must move. *Blocks* for it.
    ///
    /// # Errors
    /// Those of the system: `EPERM` or `ENOSYS` where it does not let this process ask (a container without
    /// `CAP_SYS_NICE`), `ENODEV` for a node without memory, `EBUSY` for a page that a device has pinned elsewhere. The
    /// memory is usable then, with its pages anywhere.
    #[cfg(target_os = "linux")]
    pub fn place(&self, nodes: &[u32]) -> std::io::Result<()> {
        let page = rustix::param::page_size();
        let out = |_| std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let mut addresses = Vec::with_capacity(place::PAGES);
        let mut offset = 0;
        while offset < self.len() {
            let word = (offset & !7) as u64;
            if self.len() - word as usize >= 8 {
                // A store, so that the page is one of its own and not the page of zeroes.
                self.fetch_add(word, 0).map_err(out)?;
            }
            let at = self.at(offset as u64, 1).map_err(out)?;
            addresses.push(at.wrapping_sub(at.addr() % page));
            offset += page - at.addr() % page;
            if addresses.len() == place::PAGES || offset >= self.len() {
                place::place_pages(&addresses, nodes)?;
                addresses.clear();
            }
        }
        Ok(())
    }

    /// Is not supported on this platform.
    ///
    /// # Errors
    /// `Unsupported`, always.
    #[cfg(not(target_os = "linux"))]
    pub fn place(&self, _nodes: &[u32]) -> std::io::Result<()> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// Loads an aligned 64-bit word.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn load(&self, offset: u64, order: Ordering) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.load(order))
    }

    /// Stores an aligned 64-bit word.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn store(&self, offset: u64, value: u64, order: Ordering) -> Result<(), OutOfBounds> {
        self.word(offset)?.store(value, order);
        Ok(())
    }

    /// Adds to an aligned word, wrapping. Returns the previous value.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.fetch_add(add, Ordering::AcqRel))
    }

    /// Replaces an aligned word. Returns the previous value.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn swap(&self, offset: u64, new: u64) -> Result<u64, OutOfBounds> {
        Ok(self.word(offset)?.swap(new, Ordering::AcqRel))
    }

    /// Replaces an aligned word if it has the expected value. Returns the previous value either way.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, OutOfBounds> {
        let word = self.word(offset)?;
        Ok(match word.compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(before) | Err(before) => before,
        })
    }

    /// Adds to the fields of an aligned word. Returns the previous value. A set bit of `boundaries` is
    /// the top bit of a field, and no carry leaves it.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn masked_fetch_add(
        &self,
        offset: u64,
        add: u64,
        boundaries: u64,
    ) -> Result<u64, OutOfBounds> {
        // Without its top bits no field can carry into the next; those bits add without carry.
        self.update(offset, |word| {
            ((word & !boundaries).wrapping_add(add & !boundaries)) ^ ((word ^ add) & boundaries)
        })
    }

    /// Replaces the bits under `swap_mask` if those under `compare_mask` are as expected. Returns the
    /// previous value either way.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn masked_compare_swap(
        &self,
        offset: u64,
        expected: u64,
        compare_mask: u64,
        new: u64,
        swap_mask: u64,
    ) -> Result<u64, OutOfBounds> {
        self.update(offset, |word| {
            if (word ^ expected) & compare_mask == 0 {
                (word & !swap_mask) | (new & swap_mask)
            } else {
                word
            }
        })
    }

    /// Changes an aligned word by a function, repeated until no other thread interfered. Returns the
    /// previous value.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    #[inline]
    pub fn update(
        &self,
        offset: u64,
        mut change: impl FnMut(u64) -> u64,
    ) -> Result<u64, OutOfBounds> {
        let word = self.word(offset)?;
        let mut before = word.load(Ordering::Acquire);
        loop {
            let new = change(before);
            match word.compare_exchange_weak(before, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(before),
                Err(now) => before = now,
            }
        }
    }
}

/// One aligned 64-bit word of an [`Arena`] whose bounds were checked once, for hot paths. A clone
/// shares it; the memory stays mapped while a clone lives.
#[derive(Clone)]
pub struct SharedWord {
    word: NonNull<AtomicU64>,
    _memory: Arena,
}

// SAFETY: points to an atomic in memory that `_memory` keeps mapped.
unsafe impl Send for SharedWord {}
// SAFETY: as above.
unsafe impl Sync for SharedWord {}

impl SharedWord {
    /// Returns the word at `offset`.
    ///
    /// # Errors
    /// When it passes the end or is misaligned.
    pub fn new(memory: &Arena, offset: u64) -> Result<Self, OutOfBounds> {
        Ok(Self { word: NonNull::from(memory.word(offset)?), _memory: memory.clone() })
    }

    /// Loads it.
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> u64 {
        self.get().load(order)
    }

    /// Stores it.
    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        self.get().store(value, order);
    }

    /// Stores `new` if it is `expected`, with acquire and release order.
    ///
    /// # Errors
    /// The value that it had instead; nothing was stored.
    pub fn compare_exchange(&self, expected: u64, new: u64) -> Result<u64, u64> {
        self.get().compare_exchange(expected, new, Ordering::AcqRel, Ordering::Acquire)
    }

    #[inline(always)]
    fn get(&self) -> &AtomicU64 {
        // SAFETY: in bounds and aligned, as `new` found; mapped while `_memory` lives; only ever
        // accessed atomically.
        unsafe { self.word.as_ref() }
    }
}

impl fmt::Debug for SharedWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWord({:#x})", self.load(Ordering::Relaxed))
    }
}

impl Memory for Arena {
    #[inline]
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        Self::read(self, offset, out)
    }

    #[inline]
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        Self::write(self, offset, bytes)
    }

    #[inline]
    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.zero(offset, usize::try_from(bytes).map_err(|_| OutOfBounds)?)
    }

    #[inline]
    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        self.load(offset, Ordering::Acquire)
    }

    #[inline]
    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        self.store(offset, word, Ordering::Release)
    }

    #[inline]
    fn expect_read(&self, offset: u64, bytes: usize) {
        self.each_line(offset, bytes, copy::expect_read);
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arena({} B)", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_hold_at_both_ends() {
        let arena = Arena::heap(128);
        let mut eight = [0; 8];
        assert_eq!(arena.read(120, &mut eight), Ok(()));
        assert_eq!(arena.read(121, &mut eight), Err(OutOfBounds));
        assert_eq!(arena.read(u64::MAX, &mut eight), Err(OutOfBounds));
        assert_eq!(arena.write(128, &[]), Ok(()));
        assert_eq!(arena.write(129, &[]), Err(OutOfBounds));
        assert_eq!(arena.load(4, Ordering::Relaxed), Err(OutOfBounds));
    }

    #[test]
    fn every_length_and_alignment_copies_exactly() {
        let arena = Arena::heap(1024);
        let pattern: Vec<u8> = (0..600).map(|i| i as u8 | 1).collect();
        for offset in 0..9 {
            for bytes in (0..80).chain([127, 128, 129, 255, 256, 257, 511, 512, 513]) {
                arena.zero(0, 1024).unwrap();
                arena.write(offset, &pattern[..bytes]).unwrap();
                let mut back = vec![0; bytes + 1];
                arena.read(offset, &mut back).unwrap();
                assert_eq!(&back[..bytes], &pattern[..bytes]);
                assert_eq!(back[bytes], 0, "nothing past the end");
            }
        }
    }

    /// Returns all lengths that take another code path, and their neighbours.
    fn lengths() -> impl Iterator<Item = usize> {
        (0..300).chain([383, 384, 385, 511, 512, 513, 1000, 4095, 4096])
    }

    #[test]
    fn shared_copies_are_exact_at_every_alignment() {
        let (from, to) = (Arena::heap(8192), Arena::heap(8192));
        let pattern: Vec<u8> = (0..8192).map(|at| (at * 7 + at / 251) as u8).collect();
        from.write(0, &pattern).unwrap();
        for bytes in lengths() {
            for (source, target) in [(0, 0), (1, 2), (3, 17), (16, 8), (31, 33), (63, 5)] {
                to.write(0, &vec![0xee; bytes + 128]).unwrap();
                to.copy_from(target, &from, source, bytes).unwrap();
                let mut back = vec![0; bytes + 128];
                to.read(0, &mut back).unwrap();
                let (place, start) = (target as usize, source as usize);
                let end = place + bytes;
                assert_eq!(back[place..end], pattern[start..start + bytes]);
                let beside = back[..place].iter().chain(&back[end..]);
                assert!(beside.copied().all(|byte| byte == 0xee), "{bytes} bytes to {target}");
            }
        }
    }

    /// Returns two pages between two inaccessible ones: an access beyond either end ends the process.
    #[cfg(target_os = "linux")]
    fn fenced() -> Arena {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};
        const PAGE: usize = 4096;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping of four pages, never unmapped; the outer two become inaccessible
        // before other code knows of them.
        unsafe {
            let none = std::ptr::null_mut();
            let all = mmap_anonymous(none, 4 * PAGE, access, MapFlags::PRIVATE).unwrap();
            mprotect(all, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(all.byte_add(3 * PAGE), PAGE, MprotectFlags::empty()).unwrap();
            let base = NonNull::new(all.cast::<u8>().add(PAGE)).unwrap();
            Arena::from_raw(base, 2 * PAGE, Arc::new(()))
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn not_a_byte_beyond_the_edges_is_touched() {
        let (one, other) = (fenced(), fenced());
        let end = one.len();
        let mut slice = vec![0; end];
        for bytes in lengths() {
            for offset in [0, (end - bytes) as u64] {
                one.read(offset, &mut slice[..bytes]).unwrap();
                one.write(offset, &slice[..bytes]).unwrap();
                for other_offset in [0, (end - bytes) as u64] {
                    one.copy_from(offset, &other, other_offset, bytes).unwrap();
                }
            }
        }
    }

    #[test]
    fn aligned_words_are_never_torn() {
        let arena = Arena::heap(64);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                for at in 0..100_000_u64 {
                    let word = if at % 2 == 0 { 0 } else { u64::MAX };
                    arena.write(8, &word.to_ne_bytes()).unwrap();
                }
                stop.store(true, Ordering::Release);
            });
            while !stop.load(Ordering::Acquire) {
                let mut word = [0; 8];
                arena.read(8, &mut word).unwrap();
                assert!(word == [0; 8] || word == [0xff; 8], "{word:?}");
            }
        });
    }

    /// One thread overwrites the same bytes again and again, and another reads their words from the
    /// last to the first: the earlier word must be as new as the later one.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[test]
    fn bytes_land_in_rising_order_and_whole_words() {
        let (from, to) = (Arena::heap(8192), Arena::heap(8192));
        for (source, target, bytes) in [
            (0, 0_u64, 64),
            (0, 0, 4096),
            (0, 8, 40),
            (5, 56, 24),
            (3, 21, 50),
            (0, 61, 131),
            (9, 33, 700),
        ] {
            let stop = std::sync::atomic::AtomicBool::new(false);
            let words = target.div_ceil(8) as usize..(target as usize + bytes) / 8;
            to.write(0, &[0; 8192]).unwrap();
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    for round in 0..40_000_u32 {
                        // Every word is the number of the round, four times over.
                        let number = (round as u16).to_ne_bytes();
                        let data: Vec<u8> =
                            (0..bytes).map(|at| number[(target as usize + at) % 2]).collect();
                        from.write(source, &data).unwrap();
                        to.copy_from(target, &from, source, bytes).unwrap();
                    }
                    stop.store(true, Ordering::Release);
                });
                while !stop.load(Ordering::Acquire) {
                    let mut later = 0;
                    for at in words.clone().rev() {
                        let word = to.load(8 * at as u64, Ordering::Acquire).unwrap();
                        let number = word as u16;
                        assert_eq!(word, u64::from(number) * 0x0001_0001_0001_0001, "torn");
                        assert!(
                            number >= later,
                            "{number} before {later} of {bytes} bytes at {target}"
                        );
                        later = number;
                    }
                }
            });
        }
    }

    #[test]
    fn atomics_give_the_value_before() {
        let arena = Arena::heap(64);
        assert_eq!(arena.fetch_add(8, 5), Ok(0));
        assert_eq!(arena.swap(8, 7), Ok(5));
        assert_eq!(arena.compare_swap(8, 6, 1), Ok(7));
        assert_eq!(arena.compare_swap(8, 7, 0xff00), Ok(7));
        // Two fields of 16 bits: the carry out of the lower one is lost.
        assert_eq!(arena.masked_fetch_add(8, 0x0001_0100, 0x8000_8000), Ok(0xff00));
        assert_eq!(arena.load(8, Ordering::Acquire), Ok(0x0001_0000));
        assert_eq!(arena.masked_compare_swap(8, 0x55, 0xff, 9, 0xf), Ok(0x0001_0000));
        assert_eq!(arena.masked_compare_swap(8, 0xff00, 0xff, 9, 0xf), Ok(0x0001_0000));
        assert_eq!(arena.load(8, Ordering::Acquire), Ok(0x0001_0009));
        for misaligned in [1, 60, 64] {
            assert_eq!(arena.fetch_add(misaligned, 1), Err(OutOfBounds));
        }
    }

    #[test]
    fn hints_change_nothing() {
        let arena = Arena::heap(256);
        arena.write(0, &[7; 256]).unwrap();
        for (offset, bytes) in [(0, 256), (3, 200), (256, 0), (200, 57), (u64::MAX, 1)] {
            arena.expect_write(offset, bytes);
            arena.expect_read_elsewhere(offset, bytes);
        }
        let mut back = [0; 256];
        arena.read(0, &mut back).unwrap();
        assert_eq!(back, [7; 256]);
    }

    #[test]
    fn impossible_memory_is_an_error() {
        assert!(Arena::try_heap(usize::MAX).is_err());
        assert!(Arena::try_heap(usize::MAX / 4).is_err());
        assert!(Arena::heap(0).is_empty());
    }
}
