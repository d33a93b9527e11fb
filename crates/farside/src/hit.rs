//! The hit path: tags, and copies under them, on the caller's thread. No machine, lock, system call or
//! allocation; a local or cached access is one tag check and one copy.
//!
//! | what | who changes it | when |
//! | --- | --- | --- |
//! | a tag's busy bit | the thread that set it | `claim` to `release`, for the length of one copy |
//! | a tag's version | the same, and the engine with each change of level | at `release` and `set` |
//! | a tag's level, class, extent | the engine alone | `set`, only while it holds the busy bit |
//! | a line's bytes | the holder of the busy bit | at `Dirty` |
//! | | peers by one-sided WRITE; the engine if a line was lost | at `Invalid` |
//! | a key's line | the engine alone | only while the tag is `Invalid`; the version rises after it |
//! | a key's age | any reader that hits | any time, by compare-and-swap |
//! | a frame's grant | the engine alone | with the level; only the engine reads it |
//! | the time until which accesses hit | the engine alone | any time |
//! | the word behind the tags that this node lends | this node | before its memory ends |
//! | this node's fence word | any member that removes it | before it reclaims anything of this node |
//!
//! A reader loads the tag, copies, and loads it again: an unchanged tag without the busy bit means that no
//! writer and no change of level came in between (a sequence lock per line). A reader of the cache also
//! loads the key after the first load of the tag, because the key may have changed before.
//!
//! Other nodes read the tags and bytes of this node's own lines in the same way, and change neither tags nor
//! the bytes of a line that they do not own ([`direct`](crate::direct)).
//!
//! **Removal.** A removed member must return no stale data, however long its threads were stopped. Each
//! member that removes it stores its fence word first, and only then reclaims its cached lines. A read
//! loads the word after its copy. If the word is zero, no line was reclaimed before the copy, so the bytes
//! were the latest at that moment. A change loads the word while it holds the busy bit, before it copies:
//! it takes effect at that load, when this node was a member and owned the line. It loads the word again
//! after its copy, so that a change is not acknowledged either if the word was set in between.
//!
//! Between hosts no member can store the word. There the cache is trusted until a time ([`Standing`]),
//! which is compared with the clock at the same points: other members wait longer than that before they
//! reclaim anything.
//!
//! [`Standing`]: farside_protocol::member::Standing

pub(crate) mod processor;

use crate::clock::Clock;
use crate::mutex::locked;
use farside_base::GlobalAddress;
use farside_base::{Grant, LineAddress, LineSize, MemoryId, NodeId};
use farside_fabric::{Arena, SharedWord};
use farside_protocol::coherence::{Extent, Frame, HeldLine, Level};
use processor::pause;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Mutex;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(shuttle)]
use shuttle::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

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
pub(crate) struct TagValue(u64);

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
    fn class(self) -> u8 {
        ((self.0 & CLASS_MASK) >> CLASS_SHIFT) as u8
    }

    /// Whether `level` suffices for `bytes` at `offset` of the line, and no thread writes. An access that
    /// `continues` from the previous line must not run into the next allocation.
    #[inline(always)]
    fn allows(self, level: u64, offset: usize, bytes: usize, continues: bool) -> bool {
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
pub(crate) struct Tag(AtomicU64);

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

/// Whether a member is not removed, according to its fence word. The caller has passed an acquire fence
/// since its copy, so the load does not precede the copy.
#[inline(always)]
pub(crate) fn is_member(load: impl FnOnce(Ordering) -> u64) -> bool {
    load(Ordering::Relaxed) == 0
}

/// Removes a member: call it before anything of the member is reclaimed.
pub(crate) fn remove_member(store: impl FnOnce(u64, Ordering)) {
    store(1, Ordering::Release);
}

/// Ways of a set: their keys fill one 64-byte cache line of the processor.
const WAYS: usize = 8;
const AGE_MASK: u64 = 63;

/// The keys of one set, and with it one LRU list (004 §2.6: many lists).
#[repr(align(64))]
#[derive(Debug)]
struct KeySet([AtomicU64; WAYS]);

#[repr(align(64))]
#[derive(Debug)]
struct TagSet([Tag; WAYS]);

/// The grants of one set, 48 bits each; [`FAR`] in the high part: a longer grant is stored separately.
#[derive(Debug)]
struct GrantSet {
    low: [AtomicU32; WAYS],
    high: [AtomicU16; WAYS],
}

const FAR: u64 = u16::MAX as u64;

/// The cached lines of one size.
#[derive(Debug)]
struct ClassCache {
    line: LineSize,
    /// Offset of its frames in the cache region.
    base: u64,
    keys: Box<[KeySet]>,
    tags: Box<[TagSet]>,
    grants: Box<[GrantSet]>,
    /// Grants of more than 48 bits, by set and way.
    far_grants: Mutex<BTreeMap<(usize, usize), u64>>,
    /// The current age; frames used since it was set carry it.
    age: AtomicU64,
    evictions: AtomicU64,
}

/// Names one set of the cache: line size class and number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct SetName(u8, u32);

impl ClassCache {
    /// `None` if this process has no memory for it.
    fn new(line: LineSize, base: u64, bytes: u64) -> Option<Self> {
        let sets = (bytes / set_bytes(line)) as usize;
        Some(Self {
            line,
            base,
            keys: zeroed(sets)?,
            tags: zeroed(sets)?,
            grants: zeroed(sets)?,
            far_grants: Mutex::default(),
            age: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        })
    }

    /// The set of a line, and the way at which the search for it starts and where it is put if that is
    /// free.
    #[inline(always)]
    fn set_and_way(&self, line: LineAddress) -> (usize, usize) {
        let hash = (line.to_bits() >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let set = (u128::from(hash) * self.keys.len() as u128) >> 64;
        (set as usize, (hash >> 8) as usize % WAYS)
    }

    fn set_of(&self, line: LineAddress) -> usize {
        self.set_and_way(line).0
    }

    #[inline(always)]
    fn find(&self, line: LineAddress) -> Option<(usize, usize)> {
        let (set, way) = self.set_and_way(line);
        let keys = &self.keys.get(set)?.0;
        let is_it = |key: &AtomicU64| key.load(Ordering::Relaxed) & !AGE_MASK == line.to_bits();
        if is_it(&keys[way]) {
            return Some((set, way));
        }
        Some((set, keys.iter().position(is_it)?))
    }

    #[inline(always)]
    fn offset(&self, set: usize, way: usize) -> u64 {
        self.base + (((set * WAYS + way) as u64) << self.line.log2())
    }

    fn grant(&self, set: usize, way: usize) -> u64 {
        let grants = &self.grants[set];
        let high = u64::from(grants.high[way].load(Ordering::Relaxed));
        if high == FAR {
            return locked(&self.far_grants).get(&(set, way)).copied().unwrap_or_default();
        }
        high << 32 | u64::from(grants.low[way].load(Ordering::Relaxed))
    }

    /// Engine only.
    fn set_grant(&self, set: usize, way: usize, grant: u64) {
        let grants = &self.grants[set];
        let high = (grant >> 32).min(FAR);
        if high == FAR {
            locked(&self.far_grants).insert((set, way), grant);
        } else if u64::from(grants.high[way].load(Ordering::Relaxed)) == FAR {
            locked(&self.far_grants).remove(&(set, way));
        }
        grants.low[way].store(grant as u32, Ordering::Relaxed);
        grants.high[way].store(high as u16, Ordering::Relaxed);
    }

    /// Marks a frame as just used. Lost races are harmless.
    #[inline(always)]
    fn touch(&self, set: usize, way: usize) {
        let age = self.age.load(Ordering::Relaxed);
        let key = &self.keys[set].0[way];
        let seen = key.load(Ordering::Relaxed);
        if seen & AGE_MASK != age {
            let _ = key.compare_exchange(
                seen,
                seen & !AGE_MASK | age,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Sets a frame's line (0: free). Engine only, while the tag is `Invalid`.
    fn set_key(&self, set: usize, way: usize, bits: u64) {
        let age = self.age.load(Ordering::Relaxed);
        self.keys[set].0[way].swap(if bits == 0 { 0 } else { bits | age }, Ordering::Release);
    }
}

/// A slice with all elements zero, in memory that is touched only when used; `None` if this process has no
/// room for it.
#[cfg(not(any(loom, shuttle)))]
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
fn zeroed<T: AllZero>(count: usize) -> Option<Box<[T]>> {
    let layout = std::alloc::Layout::array::<T>(count).ok()?;
    if layout.size() == 0 {
        return Some(Box::default());
    }
    // SAFETY: the layout has a size over zero.
    let memory = unsafe { std::alloc::alloc_zeroed(layout) };
    let first = std::ptr::NonNull::new(memory.cast::<T>())?;
    let slice = std::ptr::NonNull::slice_from_raw_parts(first, count);
    // SAFETY: allocated with the layout of `[T]` of this length, which has no other owner, and `AllZero` promises
    // that zero bytes are a value of the type.
    Some(unsafe { Box::from_raw(slice.as_ptr()) })
}

/// Modelled atomics are no plain bytes; the models use tags only.
#[cfg(any(loom, shuttle))]
fn zeroed<T: AllZero>(_count: usize) -> Option<Box<[T]>> {
    Some(Box::new([]))
}

/// Types made of atomics only, for which all bytes zero is a value.
trait AllZero {}
impl AllZero for KeySet {}
impl AllZero for TagSet {}
impl AllZero for GrantSet {}

const SEGMENT_LOG2: u32 = 20;
/// The unit of a home's memory that serves one line size at a time.
pub(crate) const SEGMENT: u64 = 1 << SEGMENT_LOG2;

/// Bytes of a tag.
const TAG_BYTES: u64 = 8;

/// Bytes of the tags of a home memory of this size.
pub(crate) const fn tag_bytes(home_bytes: u64) -> u64 {
    (home_bytes.div_ceil(SEGMENT) << (SEGMENT_LOG2 - LineSize::MIN.log2())) * TAG_BYTES
}

/// Bytes of a word behind the tags that a home lends.
pub(crate) const END_BYTES: u64 = TAG_BYTES;

/// The offset of that word in a region of this length. Nonzero: the home's memory has ended.
pub(crate) const fn end_word(tags_bytes: usize) -> u64 {
    tags_bytes as u64 - END_BYTES
}

/// The place of an own line's tag among those of its home; all nodes use the same.
#[inline(always)]
fn tag_index(line: LineAddress) -> u64 {
    let offset = line.offset();
    let in_segment = (offset & (SEGMENT - 1)) >> line.line_size().log2();
    ((offset >> SEGMENT_LOG2) << (SEGMENT_LOG2 - LineSize::MIN.log2())) + in_segment
}

/// The offset of a line's tag in its home's memory of tags.
#[inline(always)]
pub(crate) fn tag_offset(line: LineAddress) -> u64 {
    tag_index(line) * TAG_BYTES
}

/// The tags of a node's own lines, in memory that peers may read.
#[derive(Debug)]
struct HomeTags {
    first: NonNull<Tag>,
    count: u64,
    /// Keeps it mapped.
    _memory: Arena,
}

#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
// SAFETY: points to atomics in memory that the arena keeps mapped.
unsafe impl Send for HomeTags {}
#[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reasons below")]
// SAFETY: as above.
unsafe impl Sync for HomeTags {}

impl HomeTags {
    fn new(memory: Arena) -> Self {
        let first = memory.at(0, memory.len()).ok().and_then(NonNull::new);
        // Modelled atomics have another layout; the models use no lines.
        let is_plain = size_of::<Tag>() as u64 == TAG_BYTES;
        let (first, count) = match first {
            Some(first) if is_plain => (first.cast(), memory.len() as u64 / TAG_BYTES),
            _ => (NonNull::dangling(), 0),
        };
        Self { first, count, _memory: memory }
    }

    #[allow(unsafe_code, reason = "this file is a home of unsafe code; see the reason below")]
    #[inline(always)]
    fn get(&self, index: u64) -> Option<&Tag> {
        if index >= self.count {
            return None;
        }
        // SAFETY: in bounds of memory that lives as long as self and is only accessed by atomics of 8
        // bytes, at a multiple of 8 of its base, which is 64-byte aligned. A tag is one such atomic.
        Some(unsafe { self.first.add(index as usize).as_ref() })
    }
}

/// The value of `trusted_until` for no limit.
pub(crate) const ALWAYS: u64 = u64::MAX;

/// All lines of a node: its home memory and the lines that it caches.
#[derive(Debug)]
pub(crate) struct Lines {
    me: NodeId,
    /// The memory that this node lends; an address of another generation of its number is not in it.
    memory: Option<MemoryId>,
    /// Its bits, or those of no memory: one comparison recognises own lines.
    memory_bits: u32,
    home: Arena,
    home_tags: HomeTags,
    cache: Arena,
    classes: Vec<ClassCache>,
    /// The cache is trusted before that time of `clock`, for until then this node is a member for certain.
    /// Zero: nothing hits. [`ALWAYS`]: the clock is not read.
    trusted_until: AtomicU64,
    clock: Clock,
    /// Nonzero: a member has removed this node. Peers write it.
    fence_word: SharedWord,
}

/// Bytes of a set of lines of this size: the minimum for a cache of them.
pub(crate) const fn set_bytes(size: LineSize) -> u64 {
    (size.bytes() * WAYS) as u64
}

/// Bytes of the cache region that each line size gets.
pub(crate) fn cache_split(
    bytes: u64,
    shares: &[u8; LineSize::CLASSES],
) -> [u64; LineSize::CLASSES] {
    let total: u64 = shares.iter().map(|share| u64::from(*share)).sum();
    let mut split = [0; LineSize::CLASSES];
    for (class, size) in LineSize::all().enumerate() {
        let set = set_bytes(size);
        let part = (bytes / total.max(1)) * u64::from(shares[class]);
        split[class] = part / set * set;
    }
    split
}

/// A line that this node can access: its tag and its bytes.
pub(crate) struct Spot<'a> {
    pub(crate) tag: &'a Tag,
    arena: &'a Arena,
    start: u64,
    key: Option<(&'a ClassCache, usize, usize)>,
    line: LineAddress,
}

impl<'a> Spot<'a> {
    /// Whether the frame still belongs to this line, checked after the tag was loaded.
    #[inline(always)]
    fn still(&self, seen: TagValue) -> bool {
        match self.key {
            None => seen.class() == self.line.line_size().class(),
            Some((class, set, way)) => {
                class.keys[set].0[way].load(Ordering::Relaxed) & !AGE_MASK == self.line.to_bits()
            }
        }
    }

    #[inline(always)]
    fn touch(&self) {
        if let Some((class, set, way)) = self.key {
            class.touch(set, way);
        }
    }

    /// The line's allocation according to its tag; `None` if it is in none.
    #[inline(always)]
    pub(crate) fn extent(&self) -> Option<Extent> {
        self.tag.observe().extent()
    }

    /// The location for a fabric: offset in the region, and whether that is the cache.
    pub(crate) fn offset(&self) -> (u64, bool) {
        (self.start, self.key.is_some())
    }

    /// Tries once to copy bytes out.
    #[inline(always)]
    pub(crate) fn try_read(&self, offset: usize, out: &mut [u8], continues: bool) -> bool {
        let seen = self.tag.observe();
        if !seen.allows(1, offset, out.len(), continues) || !self.still(seen) {
            return false;
        }
        if self.arena.read(self.start + offset as u64, out).is_err() {
            return false;
        }
        if !self.tag.unchanged(seen) {
            return false;
        }
        self.touch();
        true
    }

    /// The first load for a read of several lines: the tag, if it allows the read.
    pub(crate) fn look(&self, offset: usize, bytes: usize, continues: bool) -> Option<TagValue> {
        let seen = self.tag.observe();
        (seen.allows(1, offset, bytes, continues) && self.still(seen)).then_some(seen)
    }

    /// Copies bytes out between the two tag checks of a read of several lines.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let done = self.arena.read(self.start + offset as u64, out);
        debug_assert!(done.is_ok(), "the tag's extent lies within the line");
    }

    /// Tries once to take the line's busy bit for a change of `bytes` at `offset`.
    #[inline(always)]
    pub(crate) fn try_claim(
        &self,
        offset: usize,
        bytes: usize,
        continues: bool,
    ) -> Option<Claim<'a>> {
        let seen = self.tag.observe();
        if !seen.allows(2, offset, bytes, continues) || !self.tag.claim(seen) {
            return None;
        }
        let claim = Claim { tag: self.tag, seen, arena: self.arena, start: self.start };
        if !self.still(seen) {
            return None; // dropping the claim clears the bit
        }
        self.touch();
        Some(claim)
    }
}

/// The right to change a line's bytes, until dropped.
pub(crate) struct Claim<'a> {
    tag: &'a Tag,
    seen: TagValue,
    arena: &'a Arena,
    start: u64,
}

impl Claim<'_> {
    #[inline]
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let done = self.arena.write(self.start + offset as u64, bytes);
        debug_assert!(done.is_ok(), "the tag's extent lies within the line");
    }

    #[inline]
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        let done = self.arena.read(self.start + offset as u64, out);
        debug_assert!(done.is_ok(), "the tag's extent lies within the line");
    }

    /// Changes an aligned word of at most 8 bytes, modulo its size, and returns the previous value.
    #[inline(always)]
    pub(crate) fn update(&self, at: usize, bytes: usize, change: impl FnOnce(u64) -> u64) -> u64 {
        let mut word = [0; 8];
        self.read(at, &mut word[..bytes]);
        let before = u64::from_le_bytes(word);
        self.write(at, &change(before).to_le_bytes()[..bytes]);
        before
    }
}

impl Drop for Claim<'_> {
    #[inline]
    fn drop(&mut self) {
        self.tag.release(self.seen);
    }
}

impl Lines {
    /// Lines over the given regions, all unallocated and uncached; `None` if this process has no memory for
    /// their tags.
    pub(crate) fn new(
        (me, memory): (NodeId, Option<MemoryId>),
        (home, home_tags): (Arena, Arena),
        cache: Arena,
        split: &[u64; LineSize::CLASSES],
        fence_word: SharedWord,
        clock: Clock,
    ) -> Option<Self> {
        let mut base = 0;
        let mut classes = Vec::with_capacity(LineSize::CLASSES);
        for size in LineSize::all() {
            let bytes = split[usize::from(size.class())];
            classes.push(ClassCache::new(size, base, bytes)?);
            base += bytes;
        }
        Some(Self {
            me,
            memory,
            memory_bits: memory.map_or(u32::MAX, MemoryId::to_bits),
            home_tags: HomeTags::new(home_tags),
            home,
            cache,
            classes,
            trusted_until: AtomicU64::new(ALWAYS),
            clock,
            fence_word,
        })
    }

    #[inline]
    pub(crate) fn me(&self) -> NodeId {
        self.me
    }

    /// The memory that this node lends.
    pub(crate) fn memory(&self) -> Option<MemoryId> {
        self.memory
    }

    /// The location of a line at this node: in the home memory, or in a frame.
    #[inline(always)]
    fn spot_inline(&self, line: LineAddress) -> Option<Spot<'_>> {
        if line.memory().to_bits() == self.memory_bits {
            return Some(Spot {
                tag: self.home_tags.get(tag_index(line))?,
                arena: &self.home,
                start: line.offset(),
                key: None,
                line,
            });
        }
        let class = self.classes.get(usize::from(line.line_size().class()))?;
        let (set, way) = class.find(line)?;
        Some(Spot {
            tag: &class.tags.get(set)?.0[way],
            arena: &self.cache,
            start: class.offset(set, way),
            key: Some((class, set, way)),
            line,
        })
    }

    /// Sets the time until which the cache is trusted; zero lets nothing hit from now on. A hit at this
    /// very moment counts as before.
    pub(crate) fn trust_until(&self, until: u64) {
        self.trusted_until.store(until, Ordering::SeqCst);
    }

    /// The clock of [`trust_until`](Self::trust_until).
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether this node may trust its cache, being a member for certain. Checked after the copy of a read,
    /// and while a change holds the busy bit.
    #[inline(always)]
    pub(crate) fn is_trusted(&self) -> bool {
        let until = self.trusted_until.load(Ordering::Relaxed);
        !self.is_removed() && (until == ALWAYS || self.clock.now() < until)
    }

    /// This node's fence word.
    pub(crate) fn fence_word(&self) -> &SharedWord {
        &self.fence_word
    }

    /// Whether another member has removed this node.
    #[inline(always)]
    pub(crate) fn is_removed(&self) -> bool {
        !is_member(|order| self.fence_word.load(order))
    }

    /// As `spot_inline`, for callers that are not on the hit path.
    pub(crate) fn spot(&self, line: LineAddress) -> Option<Spot<'_>> {
        self.spot_inline(line)
    }

    /// Copies bytes of one line out if the tag allows. All bytes from `address` on are in one line.
    #[inline]
    pub(crate) fn read(&self, address: GlobalAddress, out: &mut [u8], continues: bool) -> bool {
        match self.spot_inline(address.line()) {
            Some(spot) => {
                spot.try_read(address.offset_in_line(), out, continues) && self.is_trusted()
            }
            None => false,
        }
    }

    /// Copies bytes of several lines out, each atomically, if all tags allow; returns the number of lines.
    pub(crate) fn read_lines(&self, address: GlobalAddress, out: &mut [u8]) -> Option<u64> {
        let line_bytes = address.line_size().bytes();
        let (first, rest) = out.split_at_mut_checked(line_bytes - address.offset_in_line())?;
        if !self.read(address, first, false) {
            return None;
        }
        let mut line = address.line();
        let mut lines = 1;
        for part in rest.chunks_mut(line_bytes) {
            line = line.checked_add(1)?;
            if !self.read(line.address(), part, true) {
                return None;
            }
            lines += 1;
        }
        Some(lines)
    }

    /// Takes the busy bit for a change in one line if the tag allows.
    #[inline(always)]
    pub(crate) fn claim(
        &self,
        address: GlobalAddress,
        bytes: usize,
        continues: bool,
    ) -> Option<Claim<'_>> {
        self.claim_pinned(address, bytes, continues).filter(|_| self.is_trusted())
    }

    /// As [`claim`](Self::claim), for a pinned line; the caller checks [`is_trusted`](Self::is_trusted).
    #[inline(always)]
    pub(crate) fn claim_pinned(
        &self,
        address: GlobalAddress,
        bytes: usize,
        continues: bool,
    ) -> Option<Claim<'_>> {
        self.spot_inline(address.line())?.try_claim(address.offset_in_line(), bytes, continues)
    }

    /// Copies bytes into one line if the tag allows.
    pub(crate) fn write(&self, address: GlobalAddress, bytes: &[u8], continues: bool) -> bool {
        match self.claim(address, bytes.len(), continues) {
            Some(claim) => {
                claim.write(address.offset_in_line(), bytes);
                drop(claim);
                !self.is_removed()
            }
            None => false,
        }
    }

    /// Changes an aligned word of at most 8 bytes if the tag allows, and returns the previous value.
    #[inline(always)]
    pub(crate) fn update(
        &self,
        address: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(u64) -> u64,
    ) -> Option<u64> {
        let claim = self.claim(address, bytes, false)?;
        let before = claim.update(address.offset_in_line(), bytes, change);
        drop(claim);
        (!self.is_removed()).then_some(before)
    }

    /// The state of a line that the machine needs.
    pub(crate) fn here(&self, line: LineAddress) -> (HeldLine, Option<Extent>) {
        let Some(spot) = self.spot_inline(line) else {
            return (HeldLine::default(), None);
        };
        let seen = spot.tag.observe();
        if !spot.still(seen) {
            return (HeldLine::default(), None);
        }
        let grant = match spot.key {
            Some((class, set, way)) => class.grant(set, way),
            None => 0,
        };
        let held = HeldLine { level: seen.level(), grant: Grant(grant) };
        (held, seen.extent())
    }

    /// Copies bytes into a line, from its start, and fills the rest with zeros. Engine only, while the tag
    /// is `Invalid`.
    pub(crate) fn fill(&self, line: LineAddress, bytes: &[u8]) {
        if let Some(spot) = self.spot(line) {
            let len = line.line_size().bytes();
            let put = &bytes[..bytes.len().min(len)];
            let done = spot.arena.zero(spot.start, len);
            let done = done.and_then(|()| spot.arena.write(spot.start, put));
            debug_assert!(done.is_ok(), "the line lies within its region");
        }
    }

    /// Sets a line's tag. Engine only.
    pub(crate) fn set_level(&self, line: LineAddress, held: HeldLine, extent: Option<Extent>) {
        let Some(spot) = self.spot_inline(line) else {
            return;
        };
        if let Some((class, set, way)) = spot.key {
            class.set_grant(set, way, held.grant.0);
            class.touch(set, way);
        }
        let extent = extent.map(|extent| (line.line_size(), Some(extent)));
        spot.tag.set(held.level, extent);
    }

    /// Assigns an own line to an allocation (or to none). Engine only.
    pub(crate) fn set_own(&self, line: LineAddress, level: Level, extent: Option<Extent>) {
        if let Some(spot) = self.spot(line) {
            spot.tag.set(level, Some((line.line_size(), extent)));
        }
    }

    /// The memory this node is home of.
    pub(crate) fn home(&self) -> &Arena {
        &self.home
    }

    /// The frame of a line that is cached or being fetched.
    pub(crate) fn frame(&self, line: LineAddress) -> Option<Frame> {
        let spot = self.spot_inline(line)?;
        spot.key.map(|_| Frame((spot.start >> LineSize::MIN.log2()) as u32))
    }

    /// The frame of a cached line, and the version of its tag.
    pub(crate) fn frame_and_version(&self, line: LineAddress) -> Option<(Frame, u32)> {
        let spot = self.spot(line)?;
        let frame = Frame((spot.start >> LineSize::MIN.log2()) as u32);
        spot.key.map(|_| (frame, spot.tag.observe().version()))
    }

    /// The owned line in a frame, if any, and its tag.
    pub(crate) fn owned_in(&self, frame: Frame) -> Option<(LineAddress, TagValue)> {
        let offset = u64::from(frame.0) << LineSize::MIN.log2();
        let class =
            self.classes.iter().rfind(|class| class.base <= offset && !class.keys.is_empty())?;
        let place = ((offset - class.base) >> class.line.log2()) as usize;
        let (set, way) = (place / WAYS, place % WAYS);
        let key = class.keys.get(set)?.0[way].load(Ordering::Relaxed) & !AGE_MASK;
        let seen = class.tags[set].0[way].observe();
        let line = LineAddress::from_bits(key).filter(|_| key != 0)?;
        (seen.level() == Level::Dirty).then_some((line, seen))
    }

    /// Reserves a free frame for a line that has none. Engine only.
    pub(crate) fn reserve(&self, line: LineAddress) -> Option<Frame> {
        let class = &self.classes[usize::from(line.line_size().class())];
        let (set, first) = class.set_and_way(line);
        let keys = &class.keys.get(set)?.0;
        let free = |way: &usize| keys[*way].load(Ordering::Relaxed) == 0;
        let way = std::iter::once(first).chain(0..WAYS).find(free)?;
        class.tags[set].0[way].set(Level::Invalid, Some((class.line, None)));
        class.set_key(set, way, line.to_bits());
        Some(Frame((class.offset(set, way) >> LineSize::MIN.log2()) as u32))
    }

    /// Frees a line's frame. Engine only; the tag is `Invalid` already.
    pub(crate) fn release(&self, line: LineAddress) {
        if let Some(Spot { key: Some((class, set, way)), tag, .. }) = self.spot(line) {
            tag.set(Level::Invalid, Some((class.line, None)));
            class.set_key(set, way, 0);
        }
    }

    /// The eviction candidates for `line`: lines of its set with no or nearly no transition in progress,
    /// least recently used first.
    pub(crate) fn victims(&self, line: LineAddress) -> impl Iterator<Item = LineAddress> + use<> {
        let class = &self.classes[usize::from(line.line_size().class())];
        let set = class.set_of(line);
        let now = class.age.load(Ordering::Relaxed);
        let mut ages = [(0, 0); WAYS];
        if let Some(keys) = class.keys.get(set) {
            for (way, (key, tag)) in keys.0.iter().zip(&class.tags[set].0).enumerate() {
                if tag.observe().level() != Level::Invalid {
                    let key = key.load(Ordering::Relaxed);
                    ages[way] = (now.wrapping_sub(key) & AGE_MASK, key & !AGE_MASK);
                }
            }
        }
        // The age clock ticks once per eighth of the cache evicted: enough to tell old from new.
        let evictions = class.evictions.fetch_add(1, Ordering::Relaxed) + 1;
        if evictions.is_multiple_of(class.keys.len().max(1) as u64) {
            class.age.store((now + 1) & AGE_MASK, Ordering::Relaxed);
        }
        ages.sort_unstable_by(|a, b| b.cmp(a));
        ages.into_iter()
            .filter(|(_, bits)| *bits != 0)
            .filter_map(|(_, bits)| LineAddress::from_bits(bits))
    }

    /// The number of lines of this size that the cache can hold.
    pub(crate) fn frames(&self, size: LineSize) -> usize {
        self.classes[usize::from(size.class())].keys.len() * WAYS
    }

    /// Every line that is cached or being fetched, for rare sweeps.
    pub(crate) fn cached(&self) -> impl Iterator<Item = LineAddress> + '_ {
        self.classes
            .iter()
            .flat_map(|class| class.keys.iter())
            .flat_map(|set| set.0.iter())
            .filter_map(|key| match key.load(Ordering::Relaxed) & !AGE_MASK {
                0 => None,
                bits => LineAddress::from_bits(bits),
            })
    }

    /// The number of lines that a set holds.
    pub(crate) const WAYS: usize = WAYS;

    /// The set of a line, so that callers can count lines in the same set.
    pub(crate) fn set_name(&self, line: LineAddress) -> SetName {
        let class = line.line_size().class();
        SetName(class, self.classes[usize::from(class)].set_of(line) as u32)
    }
}

#[cfg(test)]
#[path = "hit_tests.rs"]
mod tests;
