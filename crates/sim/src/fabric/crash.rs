//! What of persistent memory a loss of power keeps: contents, where the persistent memory of a hardware profile
//! ([`NvmSocket`](super::NvmSocket)) has times and counters.
//!
//! A line of 64 bytes that was written is *unkept* until something has brought it into the persistence domain. A loss of
//! power keeps any subset of the unkept lines, each as it was at any time since it was kept last:
//!
//! | written by | kept |
//! | --- | --- |
//! | WRITE, atomic or ATOMIC WRITE of a link | by a READ of the link that starts after it, if DDIO is off or caches persist; with DDIO on it is in a cache then |
//! | the same | by a FLUSH of the link to persistence, of its lines |
//! | a store | by a write-back of its line, and a fence; at once if caches persist |
//! | a non-temporal store | by a fence |
//!
//! Nothing is kept by evictions or by time: both are drawn with the subset. Not modelled: lines that several links
//! write at a time count as unkept until each of them has confirmed; received messages are not tracked.

use farside_fabric::{Arena, OutOfBounds};
use std::collections::{BTreeMap, BTreeSet};

/// Bytes that are kept or lost together.
const LINE: u64 = 64;

/// What keeps bytes at a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CrashDomain {
    /// Whether adapters write to the last-level cache.
    pub ddio: bool,
    /// Whether the caches are in the persistence domain.
    pub caches_persist: bool,
}

/// What holds a line that is not kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LineHolder {
    /// The bus or the adapter, for a request of this port and link.
    Link(usize, u32),
    /// A cache.
    Cache,
    /// The way from a processor to the memory, until a fence.
    Store,
}

/// A line that is not kept.
#[derive(Debug)]
struct UnkeptLine {
    /// What it was when it was kept last, and at each change since, but for what it is now.
    versions: Vec<Vec<u8>>,
    holders: BTreeSet<LineHolder>,
}

/// The unkept lines of a region.
#[derive(Debug)]
pub(super) struct CrashRegion {
    domain: CrashDomain,
    arena: Arena,
    lines: BTreeMap<u64, UnkeptLine>,
}

impl CrashRegion {
    pub(super) fn new(domain: CrashDomain, arena: Arena) -> Self {
        Self { domain, arena, lines: BTreeMap::new() }
    }

    /// Returns what a line is.
    fn line(&self, line: u64) -> Vec<u8> {
        let start = line * LINE;
        let bytes = (self.arena.len() as u64).saturating_sub(start).min(LINE);
        let mut out = vec![0; bytes as usize];
        // The range is within the arena.
        let read = self.arena.read(start, &mut out);
        debug_assert!(read.is_ok());
        out
    }

    /// To be called before bytes are changed.
    pub(super) fn change(&mut self, offset: u64, bytes: u64, holder: LineHolder) {
        for line in lines(offset, bytes) {
            let before = self.line(line);
            let unkept = self
                .lines
                .entry(line)
                .or_insert_with(|| UnkeptLine { versions: Vec::new(), holders: BTreeSet::new() });
            unkept.versions.push(before);
            unkept.holders.insert(holder);
        }
    }

    /// Takes lines from a holder: to the persistence domain, or to another holder.
    pub(super) fn leave(
        &mut self,
        range: std::ops::Range<u64>,
        from: LineHolder,
        to: Option<LineHolder>,
    ) {
        for (_, unkept) in self.lines.range_mut(range) {
            if unkept.holders.remove(&from) {
                unkept.holders.extend(to);
            }
        }
        self.lines.retain(|_, unkept| !unkept.holders.is_empty());
    }
}

impl CrashRegion {
    /// Returns the offsets of the unkept lines.
    pub(super) fn unkept(&self) -> Vec<u64> {
        self.lines.keys().map(|line| line * LINE).collect()
    }

    /// Returns what a loss of power leaves; `choose` as in [`SimNet::crash_image`](super::SimNet::crash_image).
    pub(super) fn image(&self, choose: &mut dyn FnMut(usize) -> usize) -> Vec<u8> {
        let mut image = vec![0; self.arena.len()];
        let read = self.arena.read(0, &mut image);
        debug_assert!(read.is_ok());
        for (line, unkept) in &self.lines {
            if let Some(version) = unkept.versions.get(choose(unkept.versions.len() + 1)) {
                let start = (line * LINE) as usize;
                image[start..start + version.len()].copy_from_slice(version);
            }
        }
        image
    }

    /// Stores bytes as a processor does: past the caches until a fence, or into one.
    pub(super) fn store(
        &mut self,
        at: u64,
        bytes: &[u8],
        is_non_temporal: bool,
    ) -> Result<(), OutOfBounds> {
        self.arena.at(at, bytes.len())?;
        let holder = if is_non_temporal { LineHolder::Store } else { LineHolder::Cache };
        self.change(at, bytes.len() as u64, holder);
        if self.domain.caches_persist {
            self.leave(0..u64::MAX, LineHolder::Cache, None);
        }
        self.arena.write(at, bytes)
    }

    /// A READ of a link starts: what the link wrote before leaves the bus.
    pub(super) fn pass_read(&mut self, link: LineHolder) {
        let is_cached = self.domain.ddio && !self.domain.caches_persist;
        self.leave(0..u64::MAX, link, is_cached.then_some(LineHolder::Cache));
    }
}

/// The lines of a range.
pub(super) fn lines(offset: u64, bytes: u64) -> std::ops::Range<u64> {
    if bytes == 0 {
        return 0..0;
    }
    offset / LINE..offset.saturating_add(bytes).div_ceil(LINE)
}
