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
//! | a key's line, a way's frame | the engine alone | only while the tag is `Invalid`; the version rises after it |
//! | the word of what is not durable | the engine alone | before a tag rises to `Dirty`, and any time later |
//! | a key's age | any reader that hits | any time, by compare-and-swap |
//! | a way's grant | the engine alone | with the level; only the engine reads it |
//! | the time until which accesses hit | the engine alone | any time |
//! | the word behind the tags that this node lends | this node | before its memory ends |
//! | this node's fence word | any member that removes it | before it reclaims anything of this node |
//!
//! A reader loads the tag, copies, and loads it again: an unchanged tag without the busy bit means that no
//! writer and no change of level came in between (a sequence lock per line). A reader of the cache also
//! loads the key and the frame after the first load of the tag, because they may have changed before.
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
mod table;
mod tag;

use table::{AllZero, SparseTable, zeroed};
pub(crate) use tag::{Tag, TagValue, WORD};

use crate::clock::Clock;
use crate::mutex::locked;
use crate::pool::{Block, Pool};
use farside_base::GlobalAddress;
use farside_base::{Grant, LineAddress, LineSize, MemoryId, NodeId};
use farside_fabric::{Arena, SharedWord};
use farside_protocol::coherence::{Extent, Frame, HeldLine, Level};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Mutex;

#[cfg(loom)]
use loom::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(shuttle)]
use shuttle::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
#[cfg(not(any(loom, shuttle)))]
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

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

/// What the cache stores about a line besides its key.
#[derive(Debug)]
struct Way {
    tag: Tag,
    /// The start of its frame in units of 64 B.
    frame: AtomicU32,
    /// The low part of its grant.
    grant: AtomicU32,
}

#[repr(align(64))]
#[derive(Debug)]
struct WaySet([Way; WAYS]);

/// The high parts of the grants of one set; [`FAR`]: a grant of more than 48 bits is stored separately.
#[derive(Debug)]
struct GrantSet([AtomicU16; WAYS]);

const FAR: u64 = u16::MAX as u64;

/// The cached lines of all sizes: a set-associative table from lines to frames of one pool. Lines of
/// `64 << n` bytes use the first `1 / 2^n` of the sets, which is touched when the cache has only such lines.
/// There are a quarter more ways than smallest frames, so that few sets are full before the pool is.
#[derive(Debug)]
struct Cache {
    /// Units of 64 B of its memory.
    units: u32,
    keys: SparseTable<KeySet>,
    ways: SparseTable<WaySet>,
    grants: Box<[GrantSet]>,
    /// Grants of more than 48 bits, by set and way.
    far_grants: Mutex<BTreeMap<(usize, usize), u64>>,
    /// Frames; the engine alone locks it.
    pool: Mutex<Pool>,
    /// The current age; lines used since it was set carry it.
    age: AtomicU64,
    /// Units of blocks cleared.
    cleared: AtomicU64,
}

/// The number of a way among all ways of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot(pub(crate) u32);

/// What a line lacks to be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// All ways of its set are taken.
    Way,
    /// No block of its size is free.
    Frame,
}

/// The number of ways of a cache of this size.
pub(crate) const fn slots(cache_bytes: u64) -> u64 {
    let units = cache_bytes >> LineSize::MIN.log2();
    (units + units / 4).next_multiple_of(WAYS as u64)
}

impl Cache {
    /// `None` if this process has no memory for it.
    fn new(bytes: u64) -> Option<Self> {
        let sets = slots(bytes) as usize / WAYS;
        let units = (bytes >> LineSize::MIN.log2()) as u32;
        let len = Pool::table_len(units);
        Some(Self {
            units,
            keys: SparseTable::new(sets)?,
            ways: SparseTable::new(sets)?,
            grants: zeroed(sets)?,
            far_grants: Mutex::default(),
            pool: Mutex::new(Pool::new(units, zeroed(len)?, zeroed(len)?)),
            age: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        })
    }

    /// The set of a line, and the way at which the search for it starts and where it is put if that is
    /// free.
    #[inline(always)]
    fn set_and_way(&self, line: LineAddress) -> (usize, usize) {
        let size = line.line_size();
        let hash = (line.to_bits() >> size.log2()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sets = self.keys.len() >> size.class();
        let set = (u128::from(hash) * sets as u128) >> 64;
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

    /// The line of a way, if any.
    fn line(&self, set: usize, way: usize) -> Option<LineAddress> {
        let key = self.keys.get(set)?.0[way].load(Ordering::Relaxed) & !AGE_MASK;
        LineAddress::from_bits(key).filter(|_| key != 0)
    }

    /// How many ticks of the age clock ago the line of a way was used; zero if it is being fetched.
    fn ticks(&self, set: usize, way: usize) -> u64 {
        if self.ways[set].0[way].tag.observe().level() == Level::Invalid {
            return 0;
        }
        let key = self.keys[set].0[way].load(Ordering::Relaxed);
        self.age.load(Ordering::Relaxed).wrapping_sub(key) & AGE_MASK
    }

    fn grant(&self, set: usize, way: usize) -> u64 {
        let high = u64::from(self.grants[set].0[way].load(Ordering::Relaxed));
        if high == FAR {
            return locked(&self.far_grants).get(&(set, way)).copied().unwrap_or_default();
        }
        high << 32 | u64::from(self.ways[set].0[way].grant.load(Ordering::Relaxed))
    }

    /// Engine only.
    fn set_grant(&self, set: usize, way: usize, grant: u64) {
        let stored = &self.grants[set].0[way];
        let high = (grant >> 32).min(FAR);
        if high == FAR {
            locked(&self.far_grants).insert((set, way), grant);
        } else if u64::from(stored.load(Ordering::Relaxed)) == FAR {
            locked(&self.far_grants).remove(&(set, way));
        }
        self.ways[set].0[way].grant.store(grant as u32, Ordering::Relaxed);
        stored.store(high as u16, Ordering::Relaxed);
    }

    /// Marks a line as just used. Lost races are harmless.
    #[inline(always)]
    fn touch(&self, key: &AtomicU64) {
        let age = self.age.load(Ordering::Relaxed);
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

    /// Sets a way's line (0: free). Engine only, while the tag is `Invalid`.
    fn set_key(&self, set: usize, way: usize, bits: u64) {
        let age = self.age.load(Ordering::Relaxed);
        self.keys[set].0[way].swap(if bits == 0 { 0 } else { bits | age }, Ordering::Release);
    }

    /// The first line in a block whose frame starts at unit `from` or later: its set and way, and the end
    /// of its frame.
    fn next_in(&self, block: Block, from: u32) -> Option<((usize, usize), u32)> {
        let (_, end, slot) = locked(&self.pool).frame_in(block, from)?;
        Some(((slot as usize / WAYS, slot as usize % WAYS), end))
    }
}

impl AllZero for KeySet {}
impl AllZero for WaySet {}
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
    cache_memory: Arena,
    cache: Cache,
    /// The cache is trusted before that time of `clock`, for until then this node is a member for certain.
    /// Zero: nothing hits. [`ALWAYS`]: the clock is not read.
    trusted_until: AtomicU64,
    clock: Clock,
    /// Nonzero: a member has removed this node. Peers write it.
    fence_word: SharedWord,
    /// The number of lines that may not be durable, and above it that of losses; zero if a fence need not wait.
    unlogged: AtomicU64,
}

/// A line that this node can access: its tag and its bytes.
pub(crate) struct Spot<'a> {
    pub(crate) tag: &'a Tag,
    arena: &'a Arena,
    cached: Option<CachedSpot<'a>>,
    line: LineAddress,
}

/// The way of a cached line.
#[derive(Clone, Copy)]
struct CachedSpot<'a> {
    cache: &'a Cache,
    set: usize,
    way: usize,
    key: &'a AtomicU64,
    frame: &'a AtomicU32,
}

impl<'a> Spot<'a> {
    /// Whether the frame still belongs to this line, checked after the tag was loaded.
    #[inline(always)]
    fn still(&self, seen: TagValue) -> bool {
        match self.cached {
            None => seen.class() == self.line.line_size().class(),
            Some(CachedSpot { key, .. }) => {
                key.load(Ordering::Relaxed) & !AGE_MASK == self.line.to_bits()
            }
        }
    }

    #[inline(always)]
    fn touch(&self) {
        if let Some(CachedSpot { cache, key, .. }) = self.cached {
            cache.touch(key);
        }
    }

    /// The offset of the line's bytes. Of a cached line it is valid if the tag does not change from before
    /// this load until after the access.
    #[inline(always)]
    fn start(&self) -> u64 {
        match self.cached {
            None => self.line.offset(),
            Some(CachedSpot { frame, .. }) => {
                u64::from(frame.load(Ordering::Relaxed)) << LineSize::MIN.log2()
            }
        }
    }

    /// The line's allocation according to its tag; `None` if it is in none.
    #[inline(always)]
    pub(crate) fn extent(&self) -> Option<Extent> {
        self.tag.observe().extent()
    }

    /// The location for a fabric: offset in the region, and whether that is the cache.
    pub(crate) fn offset(&self) -> (u64, bool) {
        (self.start(), self.cached.is_some())
    }

    /// Tries once to copy bytes out.
    #[inline(always)]
    pub(crate) fn try_read(&self, offset: usize, out: &mut [u8], continues: bool) -> bool {
        let seen = self.tag.observe();
        if !seen.allows(1, offset, out.len(), continues) || !self.still(seen) {
            return false;
        }
        if self.arena.read(self.start() + offset as u64, out).is_err() {
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

    /// Copies bytes out between the two tag checks of a read of several lines. If the frame has changed since the
    /// first check, this copies other bytes, or none beyond the end of the cache, and the second check fails.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) {
        let _ = self.arena.read(self.start() + offset as u64, out);
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
        let start = self.start();
        let claim = Claim { tag: self.tag, seen, arena: self.arena, start };
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
        fence_word: SharedWord,
        clock: Clock,
    ) -> Option<Self> {
        Some(Self {
            me,
            memory,
            memory_bits: memory.map_or(u32::MAX, MemoryId::to_bits),
            home_tags: HomeTags::new(home_tags),
            home,
            cache: Cache::new(cache.len() as u64)?,
            cache_memory: cache,
            trusted_until: AtomicU64::new(ALWAYS),
            clock,
            fence_word,
            unlogged: AtomicU64::new(0),
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
                cached: None,
                line,
            });
        }
        let (set, way) = self.cache.find(line)?;
        let Way { tag, frame, .. } = &self.cache.ways.get(set)?.0[way];
        let key = &self.cache.keys.get(set)?.0[way];
        Some(Spot {
            tag,
            arena: &self.cache_memory,
            cached: Some(CachedSpot { cache: &self.cache, set, way, key, frame }),
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

    /// The losses of homes with state so far in the high half, and the number of lines that may not be durable in the low
    /// one. Both are zero at nodes that write no memory of such homes.
    #[inline(always)]
    pub(crate) fn unlogged(&self) -> u64 {
        self.unlogged.load(Ordering::Relaxed)
    }

    /// The losses alone.
    pub(crate) fn losses(&self) -> u64 {
        self.unlogged() & !u64::from(u32::MAX)
    }

    /// Whether there are lines that may not be durable.
    pub(crate) fn has_unlogged(&self) -> bool {
        self.unlogged() as u32 != 0
    }

    /// Engine only.
    pub(crate) fn set_unlogged(&self, losses: u32, lines: u32) {
        self.unlogged.store(u64::from(losses) << 32 | u64::from(lines), Ordering::Release);
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
        let grant = match spot.cached {
            Some(CachedSpot { cache, set, way, .. }) => cache.grant(set, way),
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
            let done = spot.arena.zero(spot.start(), len);
            let done = done.and_then(|()| spot.arena.write(spot.start(), put));
            debug_assert!(done.is_ok(), "the line lies within its region");
        }
    }

    /// Sets a line's tag. Engine only.
    pub(crate) fn set_level(&self, line: LineAddress, held: HeldLine, extent: Option<Extent>) {
        let Some(spot) = self.spot_inline(line) else {
            return;
        };
        if let Some(CachedSpot { cache, set, way, key, .. }) = spot.cached {
            cache.set_grant(set, way, held.grant.0);
            cache.touch(key);
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

    /// Copies an own line out, once no thread of this node changes it; returns its allocation, if it is in one.
    pub(crate) fn copy_own(&self, line: LineAddress, out: &mut [u8]) -> Option<Extent> {
        let spot = self.spot(line)?;
        let seen = spot.tag.claim_any();
        let copied = self.home.read(line.offset(), out);
        spot.tag.release(seen);
        seen.extent().filter(|_| copied.is_ok() && seen.class() == line.line_size().class())
    }

    /// The memory this node is home of.
    pub(crate) fn home(&self) -> &Arena {
        &self.home
    }

    /// The frame of a line that is cached or being fetched.
    pub(crate) fn frame(&self, line: LineAddress) -> Option<Frame> {
        let spot = self.spot_inline(line)?;
        spot.cached.map(|_| Frame((spot.start() >> LineSize::MIN.log2()) as u32))
    }

    /// The way of a cached line, and the version of its tag.
    pub(crate) fn slot_and_version(&self, line: LineAddress) -> Option<(Slot, u32)> {
        let spot = self.spot(line)?;
        let CachedSpot { set, way, .. } = spot.cached?;
        Some((Slot((set * WAYS + way) as u32), spot.tag.observe().version()))
    }

    /// The owned line of a way, if any, and its tag.
    pub(crate) fn owned_in(&self, slot: Slot) -> Option<(LineAddress, TagValue)> {
        let (set, way) = (slot.0 as usize / WAYS, slot.0 as usize % WAYS);
        let line = self.cache.line(set, way)?;
        let seen = self.cache.ways[set].0[way].tag.observe();
        (seen.level() == Level::Dirty).then_some((line, seen))
    }

    /// Reserves a frame for a line that has none. Engine only.
    pub(crate) fn reserve(&self, line: LineAddress) -> Result<Frame, Lack> {
        let cache = &self.cache;
        let (set, first) = cache.set_and_way(line);
        let keys = &cache.keys.get(set).ok_or(Lack::Way)?.0;
        let free = |way: &usize| keys[*way].load(Ordering::Relaxed) == 0;
        let way = std::iter::once(first).chain(0..WAYS).find(free).ok_or(Lack::Way)?;
        let (order, slot) = (line.line_size().class(), (set * WAYS + way) as u32);
        let frame = locked(&cache.pool).allocate(order.into(), slot).ok_or(Lack::Frame)?;
        let entry = &cache.ways[set].0[way];
        entry.tag.set(Level::Invalid, Some((line.line_size(), None)));
        entry.frame.store(frame, Ordering::Relaxed);
        cache.set_key(set, way, line.to_bits());
        Ok(Frame(frame))
    }

    /// Frees a line's frame. Engine only; the tag is `Invalid` already.
    pub(crate) fn release(&self, line: LineAddress) {
        let spot = self.spot(line);
        if let Some(Spot { cached: Some(CachedSpot { cache, set, way, .. }), tag, .. }) = spot {
            tag.set(Level::Invalid, Some((line.line_size(), None)));
            cache.set_key(set, way, 0);
            locked(&cache.pool).free(cache.ways[set].0[way].frame.load(Ordering::Relaxed));
        }
    }

    /// Blocks that could be cleared for `line`, least recently used first: the frames of its set, or a
    /// sample of the pool. The age of a block is that of its first line.
    pub(crate) fn candidates(
        &self,
        line: LineAddress,
        lack: Lack,
    ) -> impl Iterator<Item = Block> + use<> {
        let cache = &self.cache;
        let set = cache.set_of(line);
        let mut found = [None; WAYS];
        for (way, found) in found.iter_mut().enumerate() {
            let mut pool = locked(&cache.pool);
            let block = match (lack, cache.line(set, way)) {
                (Lack::Way, Some(line)) => {
                    let frame = cache.ways[set].0[way].frame.load(Ordering::Relaxed);
                    let block = Block::around(frame, line.line_size().class().into());
                    (!pool.overlaps_clearing(block)).then_some(block)
                }
                (Lack::Way, None) => None,
                (Lack::Frame, _) => pool.next_block(line.line_size().class().into()),
            };
            drop(pool);
            *found = block.and_then(|block| {
                let ((set, way), _) = cache.next_in(block, block.start)?;
                Some((cache.ticks(set, way), block))
            });
        }
        found.sort_unstable_by_key(|found| found.map(|(ticks, _)| std::cmp::Reverse(ticks)));
        found.into_iter().flatten().map(|(_, block)| block)
    }

    /// The number of calls of [`candidates`](Self::candidates) that return all blocks.
    pub(crate) fn samples(&self, line: LineAddress, lack: Lack) -> usize {
        match lack {
            Lack::Way => 1,
            Lack::Frame => self.frames(line.line_size()) / WAYS + 1,
        }
    }

    /// The first line in a block whose frame starts at unit `from` or later, and the end of its frame.
    pub(crate) fn next_in(&self, block: Block, from: u32) -> Option<(LineAddress, u32)> {
        let ((set, way), end) = self.cache.next_in(block, from)?;
        Some((self.cache.line(set, way)?, end))
    }

    /// Withholds a block from other lines until all lines in it have left their frames. Engine only.
    pub(crate) fn clear(&self, block: Block) {
        let cache = &self.cache;
        locked(&cache.pool).clear(block);
        // The age clock ticks once per eighth of the cache evicted: enough to tell old from new.
        let units = u64::from(block.units());
        let eighth = u64::from(cache.units / 8).max(1);
        let before = cache.cleared.fetch_add(units, Ordering::Relaxed);
        let ticks = (before + units) / eighth - before / eighth;
        let age = cache.age.load(Ordering::Relaxed);
        cache.age.store((age + ticks) & AGE_MASK, Ordering::Relaxed);
    }

    /// Whether lines in a block still have to leave their frames.
    pub(crate) fn is_clearing(&self, block: Block) -> bool {
        locked(&self.cache.pool).is_clearing(block)
    }

    /// Gives up clearing a block.
    pub(crate) fn abandon(&self, block: Block) {
        locked(&self.cache.pool).abandon(block);
    }

    /// The maximum number of lines of this size in the cache; zero if it has no room for [`WAYS`].
    pub(crate) fn frames(&self, size: LineSize) -> usize {
        let frames = self.cache.units as usize >> size.class();
        if frames < WAYS { 0 } else { frames }
    }

    /// Whether the cache can hold all these lines of other homes at a time, whatever the places of their
    /// frames: one way of each set, and one block of the largest size, are left for other lines.
    pub(crate) fn have_room(&self, lines: impl Iterator<Item = LineAddress>) -> bool {
        let lines: Vec<_> = lines.filter(|line| line.home() != self.me).collect();
        let mut sets: Vec<_> = lines.iter().map(|line| self.cache.set_of(*line)).collect();
        sets.sort_unstable();
        let largest = lines.iter().map(|line| line.line_size()).max();
        largest.is_none_or(|size| lines.len() < self.frames(size))
            && sets.chunk_by(|a, b| a == b).all(|same| same.len() < WAYS)
    }

    /// Every line that is cached or being fetched, for rare sweeps.
    pub(crate) fn cached(&self) -> impl Iterator<Item = LineAddress> + '_ {
        (0..self.cache.keys.len() * WAYS)
            .filter_map(|slot| self.cache.line(slot / WAYS, slot % WAYS))
    }
}

#[cfg(test)]
#[path = "hit_tests.rs"]
mod tests;
