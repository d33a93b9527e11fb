//! Tracked regions of simulated nodes: what requests and processors do to their [`CrashRegion`]s.

use super::SimNet;
use super::crash::{CrashDomain, CrashRegion, LineHolder, lines};
use super::request::RemotePlace;
use super::world::{LinkEnd, NodeKey, World};
use farside_base::{CompletionKind, FlushScope, RegionId};
use farside_fabric::{Arena, OutOfBounds};
use std::sync::atomic::Ordering;

impl SimNet {
    /// Makes the regions that a node registers from now on persistent memory whose contents after a loss of power can be
    /// asked for, or with `None` ordinary memory again; the node is created if absent. Needs no hardware profile.
    pub fn track_crashes(&self, node: &str, domain: Option<CrashDomain>) {
        let mut world = self.lock();
        let node = world.node_named(node);
        world.nodes[node.0].crash = domain;
    }

    /// Returns the offsets of the unkept lines of a region.
    pub fn unkept_lines(&self, node: &str, region: RegionId) -> Vec<u64> {
        self.with_crash_region(node, region, |region| region.unkept()).unwrap_or_default()
    }

    /// Returns the contents of a region after a loss of power now. `choose` is called for each unkept line with the number
    /// of its possible contents, and returns the index of one, from the oldest (0) to the current contents (the last).
    ///
    /// Returns nothing if the region is not tracked.
    pub fn crash_image(
        &self,
        node: &str,
        region: RegionId,
        choose: &mut dyn FnMut(usize) -> usize,
    ) -> Vec<u8> {
        self.with_crash_region(node, region, |region| region.image(choose)).unwrap_or_default()
    }

    /// Stores bytes as a processor of the node does: past the caches until a fence, or into one. Other regions are left
    /// as they are.
    ///
    /// # Errors
    /// `OutOfBounds` outside of the region.
    pub fn store_tracked(
        &self,
        node: &str,
        region: RegionId,
        at: u64,
        bytes: &[u8],
        is_non_temporal: bool,
    ) -> Result<(), OutOfBounds> {
        let stored =
            self.with_crash_region(node, region, |region| region.store(at, bytes, is_non_temporal));
        stored.unwrap_or(Ok(()))
    }

    /// Begins to write lines back, as `clwb` does.
    pub fn write_back_tracked(&self, node: &str, region: RegionId, at: u64, bytes: u64) {
        self.with_crash_region(node, region, |region| {
            region.leave(lines(at, bytes), LineHolder::Cache, Some(LineHolder::Store));
        });
    }

    /// Passes a fence: what was written back or stored past the caches is kept.
    pub fn fence_tracked(&self, node: &str, region: RegionId) {
        self.with_crash_region(node, region, |region| {
            region.leave(0..u64::MAX, LineHolder::Store, None);
        });
    }

    fn with_crash_region<T>(
        &self,
        node: &str,
        region: RegionId,
        run: impl FnOnce(&mut CrashRegion) -> T,
    ) -> Option<T> {
        let mut world = self.lock();
        let node = world.find_node(node)?;
        world.crash.get_mut(&(node, region)).map(run)
    }
}

impl World {
    /// To be called before a request of a link changes bytes of a region.
    pub(super) fn crash_change(&mut self, end: LinkEnd, at: Option<RemotePlace>, bytes: u64) {
        let node = self.port(end.port).node;
        if let Some((token, offset)) = at
            && let Some(region) = self.crash.get_mut(&(node, token.region))
        {
            region.change(offset, bytes, holder(end));
        }
    }

    /// To be called when a READ starts: what its link wrote before leaves the bus.
    pub(super) fn crash_read(&mut self, end: LinkEnd) {
        let node = self.port(end.port).node;
        for region in self.crash_regions(node) {
            region.pass_read(holder(end));
        }
    }

    /// To be called when a FLUSH has its effect.
    pub(super) fn crash_flush(&mut self, end: LinkEnd, number: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        let message = &inbound.message;
        let (at, scope, reach) = (message.at, message.scope, message.reach as u64);
        let Some((token, offset)) = at.filter(|_| scope == FlushScope::Persistent) else {
            return;
        };
        let node = self.port(end.port).node;
        if let Some(region) = self.crash.get_mut(&(node, token.region)) {
            let range = if reach == 0 { 0..u64::MAX } else { lines(offset, reach) };
            for holder in [holder(end), LineHolder::Cache] {
                region.leave(range.clone(), holder, None);
            }
        }
    }

    fn crash_regions(&mut self, node: NodeKey) -> impl Iterator<Item = &mut CrashRegion> {
        let all = (node, RegionId(0))..=(node, RegionId(u32::MAX));
        self.crash.range_mut(all).map(|(_, region)| region)
    }

    /// To be called before an atomic changes its word.
    pub(super) fn crash_word(&mut self, end: LinkEnd, number: u64) {
        let inbound = self.link_mut(end).inbound(number);
        let at = inbound.and_then(|inbound| inbound.message.at);
        self.crash_change(end, at, 8);
    }

    /// Stores the word of an ATOMIC WRITE.
    pub(super) fn write_word(&mut self, end: LinkEnd, number: u64, arena: &Arena, offset: u64) {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return;
        };
        debug_assert_eq!(inbound.message.kind, CompletionKind::AtomicWrite);
        let at = inbound.message.at;
        let word = inbound.message.payload.bytes().first_chunk().copied();
        let word = word.map_or(0, u64::from_ne_bytes);
        self.crash_change(end, at, 8);
        let stored = arena.store(offset, word, Ordering::Release);
        debug_assert!(stored.is_ok(), "the bounds were checked");
        self.record("word", end, number, word);
    }
}

/// What holds lines that a request of a link has written.
const fn holder(end: LinkEnd) -> LineHolder {
    LineHolder::Link(end.port.0, end.link.0)
}
