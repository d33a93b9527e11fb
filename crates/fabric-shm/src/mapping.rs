//! Memory without a name: memfds, their seals, and their mappings.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the maker of a memfd | size it, map it, then seal it | before other code has it |
//! | any holder of the descriptor | map it, read-only where the seals say so | always |
//! | holders of a [`View`] or [`PeerWord`] | read | until the view and its clones are dropped |
//! | holders of [`OwnMemory`] | read and write by words, copy in | until it and its clones are dropped |
//! | holders of an [`Arena`] made here | read, write, atomics | until it and its clones are dropped |
//! | [`Mapping::drop`] | unmap, once | when the last of those is dropped |
//!
//! A memfd from a peer is mapped only if it is sealed against shrinking and has the size that the
//! protocol requires: the kernel then never removes a mapped page, so no access can end in SIGBUS. The
//! kernel frees a memfd with its last mapping and descriptor, so a killed process leaves nothing.

use farside_base::{Access, RegionKind};
use farside_fabric::{Arena, OutOfBounds};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};
use std::ffi::c_void;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes of a small page.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a huge page.
pub(crate) const HUGE_PAGE: u64 = 2 << 20;

/// The mappings that peers may make of a memfd of this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerMappings {
    /// Map it read-only.
    Read,
    /// Map it for everything.
    Write,
}

impl PeerMappings {
    /// Returns the mappings that the access of a region requires.
    pub(crate) fn of(access: Access) -> Self {
        if access.allows(Access::WRITE) || access.allows(Access::ATOMIC) {
            Self::Write
        } else {
            Self::Read
        }
    }
}

/// A memfd of this process: mapped locally, and passed to peers.
pub(crate) struct SharedMapping {
    pub(crate) descriptor: OwnedFd,
    pub(crate) arena: Arena,
}

impl SharedMapping {
    /// Zeroed memory of `bytes`, a multiple of [`PAGE`], sealed.
    pub(crate) fn new(name: &str, bytes: u64, peers: PeerMappings) -> io::Result<Self> {
        let descriptor = memfd(name, bytes)?;
        let mapping = Mapping::new(descriptor.as_fd(), bytes, RegionKind::Memory, true)?;
        seal(descriptor.as_fd(), peers)?;
        Ok(Self { descriptor, arena: mapping.into_arena() })
    }
}

fn memfd(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    // Beyond this limit the kernel would end the process by SIGXFSZ.
    if let Some(most) = getrlimit(Resource::Fsize).current.filter(|most| *most < bytes) {
        return Err(io::Error::other(format!(
            "shared memory of {bytes} B is over RLIMIT_FSIZE ({most} B): raise that limit (ulimit -f)"
        )));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let descriptor = rustix::fs::memfd_create(name, flags)?;
    rustix::fs::ftruncate(&descriptor, bytes)?;
    Ok(descriptor)
}

/// Fixes the size permanently; with [`PeerMappings::Read`] it also forbids further writable mappings. A mapping
/// that exists stays writable.
fn seal(descriptor: BorrowedFd<'_>, peers: PeerMappings) -> io::Result<()> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if peers == PeerMappings::Read {
        seals |= SealFlags::FUTURE_WRITE;
    }
    Ok(rustix::fs::fcntl_add_seals(descriptor, seals)?)
}

/// The memory of a region of this process.
pub(crate) struct RegionMemory {
    pub(crate) descriptor: Arc<RegionDescriptor>,
    pub(crate) arena: Arena,
}

impl RegionMemory {
    /// Allocates zeroed memory of `bytes` (for a mirrored region those of one mapping), a multiple of
    /// [`PAGE`]. `fill` runs before it is sealed.
    pub(crate) fn new(
        bytes: u64,
        kind: RegionKind,
        peers: PeerMappings,
        fill: impl FnOnce(&Arena),
    ) -> io::Result<Self> {
        let descriptor = Arc::new(RegionDescriptor {
            descriptor: memfd("farside-region", bytes)?,
            bytes,
            ended: AtomicBool::new(false),
        });
        let mut mapping = Mapping::new(descriptor.as_fd(), bytes, kind, true)?;
        mapping.region = Some(Arc::clone(&descriptor));
        let arena = mapping.into_arena();
        fill(&arena);
        seal(descriptor.as_fd(), peers)?;
        Ok(Self { descriptor, arena })
    }
}

/// The memfd of a region; held by its mapping too, so it is dropped after the last arena.
pub(crate) struct RegionDescriptor {
    descriptor: OwnedFd,
    bytes: u64,
    /// The region was deregistered: no peer may reach it any more.
    ended: AtomicBool,
}

impl RegionDescriptor {
    /// Frees the memory with the last arena of this process, although peers may still have it mapped.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }
}

impl AsFd for RegionDescriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for RegionDescriptor {
    fn drop(&mut self) {
        if self.ended.load(Ordering::Acquire) {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Best effort: under a read-only seal the kernel refuses, and the last unmapping
            // frees the pages.
            let _ = rustix::fs::fallocate(&self.descriptor, flags, 0, self.bytes);
        }
    }
}

/// Shared memory of which one word at a time is accessed, each after a single comparison.
#[derive(Clone, Debug)]
struct SharedWords {
    first: NonNull<AtomicU64>,
    count: u64,
    /// Keeps the memory mapped.
    memory: Arena,
}

// SAFETY: points to atomics in memory that `memory` keeps mapped.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    fn new(memory: Arena) -> Self {
        let first = memory.at(0, memory.len()).ok().and_then(NonNull::new);
        let (first, count) = match first {
            Some(first) => (first.cast(), memory.len() as u64 / 8),
            None => (NonNull::dangling(), 0),
        };
        Self { first, count, memory }
    }

    /// Returns the eight words from `offset` on, a multiple of 8; `None` when they pass the end.
    #[inline(always)]
    fn get_line(&self, offset: u64) -> Option<&[AtomicU64; 8]> {
        debug_assert!(offset.is_multiple_of(8));
        let place = offset / 8;
        if place + 8 > self.count {
            return None;
        }
        // SAFETY: as in `get`, for eight words; an array has the alignment of its elements.
        Some(unsafe { self.first.add(place as usize).cast::<[AtomicU64; 8]>().as_ref() })
    }

    /// Returns the word at `offset`, a multiple of 8; `None` when it passes the end.
    #[inline(always)]
    fn get(&self, offset: u64) -> Option<&AtomicU64> {
        debug_assert!(offset.is_multiple_of(8));
        let place = offset / 8;
        if place >= self.count {
            return None;
        }
        // SAFETY: one of the `count` whole words from `first` on, which is 64-byte aligned as every
        // arena; mapped while `memory` lives; only ever accessed atomically, and written only
        // through `OwnMemory`, whose memory is writable.
        Some(unsafe { self.first.add(place as usize).as_ref() })
    }
}

/// Memory of a peer that this process can only read.
#[derive(Clone, Debug)]
pub(crate) struct View(SharedWords);

impl View {
    /// Maps a memfd from a peer.
    pub(crate) fn new(descriptor: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        check(descriptor, bytes)?;
        let mapping = Mapping::new(descriptor, bytes, RegionKind::Memory, false)?;
        Ok(Self(SharedWords::new(mapping.into_arena())))
    }

    #[cfg(test)]
    pub(crate) fn of(arena: &Arena) -> Self {
        Self(SharedWords::new(arena.clone()))
    }

    /// Loads an aligned word; zero if `offset` is out of bounds.
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, order: Ordering) -> u64 {
        self.0.get(offset).map_or(0, |word| word.load(order))
    }

    /// Copies bytes of it to `to`.
    #[inline(always)]
    pub(crate) fn copy_to(
        &self,
        offset: u64,
        to: &Arena,
        to_offset: u64,
        bytes: usize,
    ) -> Result<(), OutOfBounds> {
        to.copy_from(to_offset, &self.0.memory, offset, bytes)
    }
}

/// Memory that this process writes and peers only read, for an end of a link.
#[derive(Clone, Debug)]
pub(crate) struct OwnMemory(SharedWords);

impl OwnMemory {
    /// Returns all of a writable arena.
    pub(crate) fn new(memory: Arena) -> Self {
        Self(SharedWords::new(memory))
    }

    /// Returns the arena, for copying bytes in.
    #[inline(always)]
    pub(crate) fn arena(&self) -> &Arena {
        &self.0.memory
    }

    /// Loads an aligned word; zero if `offset` is out of bounds.
    #[inline(always)]
    pub(crate) fn load(&self, offset: u64, order: Ordering) -> u64 {
        self.0.get(offset).map_or(0, |word| word.load(order))
    }

    /// Stores `bytes` after the word at `offset` and then, with release order, that word, if they are
    /// within the memory. Returns whether they are.
    #[inline(always)]
    pub(crate) fn store_line(&self, offset: u64, first: u64, bytes: &[u8; 56]) -> bool {
        let Some(line) = self.0.get_line(offset) else { return false };
        let (words, _) = bytes.as_chunks();
        for (place, word) in line[1..].iter().zip(words) {
            place.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        line[0].store(first, Ordering::Release);
        true
    }

    /// Stores an aligned word, if `offset` is within bounds. Returns whether it is.
    #[inline(always)]
    pub(crate) fn store(&self, offset: u64, value: u64, order: Ordering) -> bool {
        match self.0.get(offset) {
            Some(word) => {
                word.store(value, order);
                true
            }
            None => false,
        }
    }
}

/// Maps a memfd from a peer for reading and writing.
pub(crate) fn map_writable(descriptor: BorrowedFd<'_>, bytes: u64) -> io::Result<Arena> {
    check(descriptor, bytes)?;
    Ok(Mapping::new(descriptor, bytes, RegionKind::Memory, true)?.into_arena())
}

/// One word of shared memory whose bounds were checked once, for hot paths.
#[derive(Clone, Debug)]
struct WordLocation {
    word: NonNull<AtomicU64>,
    /// Keeps the memory mapped.
    _memory: Arena,
}

// SAFETY: points to an atomic in memory that `_memory` keeps mapped.
unsafe impl Send for WordLocation {}
// SAFETY: as above.
unsafe impl Sync for WordLocation {}

impl WordLocation {
    fn new(memory: &Arena, offset: u64) -> Option<Self> {
        let aligned = offset.is_multiple_of(8);
        let word = memory.at(offset, 8).ok().filter(|_| aligned)?;
        Some(Self { word: NonNull::new(word)?.cast(), _memory: memory.clone() })
    }

    #[inline(always)]
    fn get(&self) -> &AtomicU64 {
        // SAFETY: in bounds and aligned, as `new` found; mapped while `_memory` lives; only ever
        // accessed atomically, and written only through `OwnWord`, whose memory is writable.
        unsafe { self.word.as_ref() }
    }
}

/// A word that only a peer writes.
#[derive(Clone, Debug)]
pub(crate) struct PeerWord(WordLocation);

impl PeerWord {
    /// Returns the word at `offset`; `None` if that is out of bounds.
    pub(crate) fn new(view: &View, offset: u64) -> Option<Self> {
        WordLocation::new(&view.0.memory, offset).map(Self)
    }

    /// Returns a word that is always zero.
    pub(crate) fn none() -> Self {
        let memory = Arena::heap(8);
        Self(WordLocation::new(&memory, 0).expect("eight bytes are a word"))
    }

    #[inline(always)]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.get().load(order)
    }
}

/// A word that this process writes.
#[derive(Clone, Debug)]
pub(crate) struct OwnWord(WordLocation);

impl OwnWord {
    /// Returns the word at `offset` of writable memory; `None` if that is out of bounds.
    pub(crate) fn new(memory: &Arena, offset: u64) -> Option<Self> {
        WordLocation::new(memory, offset).map(Self)
    }

    #[inline(always)]
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.0.get().load(order)
    }

    #[inline(always)]
    pub(crate) fn store(&self, value: u64, order: Ordering) {
        self.0.get().store(value, order);
    }
}

/// A peer's region, mapped as far as the peer allows.
#[derive(Clone, Debug)]
pub(crate) struct PeerMemory {
    arena: Arena,
    access: Access,
}

impl PeerMemory {
    /// Maps a memfd that a peer granted with `access`, as a region of `kind`.
    pub(crate) fn new(
        descriptor: BorrowedFd<'_>,
        bytes: u64,
        kind: RegionKind,
        access: Access,
    ) -> io::Result<Self> {
        check(descriptor, bytes)?;
        let writable = PeerMappings::of(access) == PeerMappings::Write;
        let arena = Mapping::new(descriptor, bytes, kind, writable)?.into_arena();
        Ok(Self { arena, access })
    }

    /// Returns a region of which nothing may be used.
    pub(crate) fn none() -> Self {
        Self { arena: Arena::heap(0), access: Access::NONE }
    }

    /// Returns the memory, for `need` and nothing else; `None` if that is not allowed. Changes need
    /// WRITE or ATOMIC, so a read-only mapping is never written.
    #[inline(always)]
    pub(crate) fn allowed(&self, need: Access) -> Option<&Arena> {
        self.access.allows(need).then_some(&self.arena)
    }
}

/// Refuses anything but a memfd of `bytes` that can never shrink.
fn check(descriptor: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
    let seals = rustix::fs::fcntl_get_seals(descriptor)?;
    let size = rustix::fs::fstat(descriptor)?.st_size;
    if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).ok() != Some(bytes) {
        return Err(io::Error::other("the peer's memory is not sealed or has another size"));
    }
    Ok(())
}

/// A mapped memfd.
struct Mapping {
    base: NonNull<c_void>,
    /// Of all mappings.
    bytes: usize,
    /// The descriptor dropped after the mapping, if it is a region of this process.
    region: Option<Arc<RegionDescriptor>>,
}

// SAFETY: owns address space, given back once in `drop`.
unsafe impl Send for Mapping {}
// SAFETY: has no methods on `&self`.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` at this address and size; arenas into it hold an `Arc` of it, so none
        // is left.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

impl Mapping {
    /// Maps all of a memfd, a mirrored one twice in a row; at a multiple of [`HUGE_PAGE`] when it is
    /// at least that large.
    fn new(
        descriptor: BorrowedFd<'_>,
        bytes: u64,
        kind: RegionKind,
        writable: bool,
    ) -> io::Result<Self> {
        if kind == RegionKind::Mirrored {
            return Self::mirrored(descriptor, bytes, writable);
        }
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let rights = rights(writable);
        let place = if bytes as u64 >= HUGE_PAGE { Some(Reserved::new(bytes)?) } else { None };
        let (at, flags) = match &place {
            Some(reserved) => (reserved.aligned(), MapFlags::SHARED | MapFlags::FIXED),
            None => (std::ptr::null_mut(), MapFlags::SHARED),
        };
        // SAFETY: either the kernel chooses an unused address, or it replaces a part of address space
        // that `place` owns and nothing else uses.
        let base = unsafe { rustix::mm::mmap(at, bytes, rights, flags, descriptor, 0) }?;
        if let Some(reserved) = place {
            reserved.keep_only(base, bytes);
        }
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, bytes, region: None })
    }

    /// Maps all of a memfd twice in a row.
    fn mirrored(descriptor: BorrowedFd<'_>, bytes: u64, writable: bool) -> io::Result<Self> {
        let none = io::ErrorKind::OutOfMemory;
        // A mapping with an incomplete page would leave a gap before the next.
        if !bytes.is_multiple_of(PAGE) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let length = usize::try_from(bytes).map_err(|_| none)?;
        let both = length.checked_mul(2).ok_or(none)?;
        let reserved = Reserved::new(both)?;
        let base = reserved.aligned();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        for start in [0, length] {
            // SAFETY: replaces a part of the address space that `reserved` owns, which nothing else
            // uses; a failure frees all of it.
            unsafe {
                let at = base.byte_add(start);
                rustix::mm::mmap(at, length, rights(writable), flags, descriptor, 0)
            }?;
        }
        reserved.keep_only(base, both);
        let base = NonNull::new(base).ok_or(none)?;
        Ok(Self { base, bytes: both, region: None })
    }

    fn into_arena(self) -> Arena {
        let (base, bytes) = (self.base.cast(), self.bytes);
        // SAFETY: mapped for `bytes` until the `Arc` of `self` is dropped, page-aligned, and this file
        // makes no reference into it. A read-only mapping is accessed only through `View` and
        // `PeerMemory`, which call no method that writes.
        unsafe { Arena::from_raw(base, bytes, Arc::new(self)) }
    }
}

fn rights(writable: bool) -> ProtFlags {
    if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ }
}

/// Reserved address space without memory, in which an aligned address is found.
struct Reserved {
    base: *mut c_void,
    bytes: usize,
}

impl Reserved {
    /// Room for `bytes` at a multiple of [`HUGE_PAGE`].
    fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.checked_add(HUGE_PAGE as usize).ok_or(io::ErrorKind::OutOfMemory)?;
        let none = std::ptr::null_mut();
        // SAFETY: the kernel chooses an unused address.
        let base = unsafe {
            rustix::mm::mmap_anonymous(none, bytes, ProtFlags::empty(), MapFlags::PRIVATE)
        }?;
        Ok(Self { base, bytes })
    }

    fn aligned(&self) -> *mut c_void {
        self.base.map_addr(|address| address.next_multiple_of(HUGE_PAGE as usize))
    }

    /// Frees all but `bytes` at `base`, which now belong to a mapping.
    fn keep_only(self, base: *mut c_void, bytes: usize) {
        let before = base.addr() - self.base.addr();
        let after = self.bytes - before - bytes;
        let end = self.base.wrapping_byte_add(before + bytes);
        for (start, length) in [(self.base, before), (end, after)] {
            if length > 0 {
                // SAFETY: within the reserved space, outside the part that is kept; no other code knows
                // these addresses. A failure leaves address space unused, nothing else.
                let _ = unsafe { rustix::mm::munmap(start, length) };
            }
        }
        std::mem::forget(self);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; runs only when no other code knows what was mapped into it.
        let _ = unsafe { rustix::mm::munmap(self.base, self.bytes) };
    }
}

/// How much of a region is populated, and with which pages.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pages {
    /// Bytes of the region.
    pub bytes: u64,
    /// Bytes that have memory from the start.
    pub prefaulted: u64,
    /// Bytes in pages of 2 MiB.
    pub huge: u64,
    /// Why not all of it, if so.
    pub reason: Option<String>,
}

impl Pages {
    /// Those of a region that takes memory only where it is used.
    pub(crate) const fn filled_on_use(bytes: u64) -> Self {
        Self { bytes, prefaulted: 0, huge: 0, reason: None }
    }
}

/// Populates the first `limit` bytes of `arena`, with huge pages if `huge` and the kernel agrees. Best
/// effort: pages that are not available now are allocated at first touch.
///
/// Touching one small page in each 2 MiB and then collapsing takes a seventeenth of the time of
/// touching all pages first (28 ms against 958 ms for 512 MiB), since the kernel clears each huge page
/// at once.
pub(crate) fn prefault(arena: &Arena, limit: u64, huge: bool) -> Pages {
    let bytes = arena.len() as u64;
    let until = bytes.min(limit) / PAGE * PAGE;
    let mut pages = Pages::filled_on_use(bytes);
    if bytes > until {
        pages.reason = Some(format!("only {until} B are filled ahead of use"));
    }
    let mut want_huge = huge;
    while pages.prefaulted < until {
        let at = pages.prefaulted;
        let step = (until - at).min(HUGE_PAGE);
        if want_huge && step == HUGE_PAGE {
            match collapse(arena, at) {
                Ok(()) => pages.huge += step,
                Err(reason) => {
                    pages.reason = Some(format!("no huge pages: {reason}"));
                    want_huge = false;
                }
            }
        }
        if let Err(reason) = populate(arena, at, step) {
            pages.reason = Some(format!("could not be filled ahead of use: {reason}"));
            break;
        }
        pages.prefaulted += step;
    }
    pages
}

/// Makes the 2 MiB at `offset` one page.
fn collapse(arena: &Arena, offset: u64) -> io::Result<()> {
    populate(arena, offset, PAGE)?;
    let at = place(arena, offset, HUGE_PAGE)?;
    // SAFETY: a whole part of a mapping; the kernel keeps its bytes as they are.
    let done = unsafe { libc::madvise(at, HUGE_PAGE as usize, libc::MADV_COLLAPSE) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Populates `bytes` at `offset`.
fn populate(arena: &Arena, offset: u64, bytes: u64) -> io::Result<()> {
    let at = place(arena, offset, bytes)?;
    // SAFETY: a whole part of a writable mapping; existing bytes stay as they are.
    Ok(unsafe { rustix::mm::madvise(at, bytes as usize, Advice::LinuxPopulateWrite) }?)
}

/// Maps the first `limit` bytes of a peer's region into the page tables of this process.
pub(crate) fn prefault_peer(memory: &PeerMemory, most: u64) {
    let bytes = memory.arena.len() as u64;
    let bytes = bytes.min(prefault_limit(bytes, most)) / PAGE * PAGE;
    let advice = if PeerMappings::of(memory.access) == PeerMappings::Write {
        Advice::LinuxPopulateWrite
    } else {
        Advice::LinuxPopulateRead
    };
    if let Ok(at) = place(&memory.arena, 0, bytes) {
        // SAFETY: a whole part of a mapping, populated for the access that it allows. Best effort.
        let _ = unsafe { rustix::mm::madvise(at, bytes as usize, advice) };
    }
}

/// Requests huge pages for later first touches, beyond what is populated now.
pub(crate) fn advise_huge(arena: &Arena) {
    if let Ok(at) = place(arena, 0, arena.len() as u64) {
        // SAFETY: a whole mapping; advice changes no bytes. Best effort.
        let _ = unsafe { rustix::mm::madvise(at, arena.len(), Advice::LinuxHugepage) };
    }
}

fn place(arena: &Arena, offset: u64, bytes: u64) -> io::Result<*mut c_void> {
    match arena.at(offset, bytes as usize) {
        Ok(at) => Ok(at.cast()),
        Err(OutOfBounds) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// Returns how much of a region of `bytes` is populated ahead of use: up to `most`, and up to half of
/// the machine's available memory, which is not queried for small regions.
pub(crate) fn prefault_limit(bytes: u64, most: u64) -> u64 {
    const SMALL: u64 = 64 << 20;
    if bytes.min(most) <= SMALL {
        return most;
    }
    most.min(half_of_available())
}

/// Returns half of the available memory, as reported by the kernel.
fn half_of_available() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.map_or(u64::MAX, |kibibytes| kibibytes.saturating_mul(512))
}
