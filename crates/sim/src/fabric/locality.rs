//! Effects of distance and of footprint with a [`HardwareProfile`](super::HardwareProfile): caches of the adapter,
//! its two ports, and the sockets of the machine.
//!
//! | effect | where it takes time |
//! | --- | --- |
//! | a missing translation | the send engine for local bytes that are fetched, the receive engine for the target of a request and of an answer: busy [`translation_miss_ns`](AdapterCaches::translation_miss_ns) for each page, later by one `pcie_read_ns` |
//! | a missing queue pair | the same, with [`queue_pair_miss_ns`](AdapterCaches::queue_pair_miss_ns), whenever a request is sent or arrives |
//! | a thread on the other socket than the port | its doorbells and its completion entries are later by [`crossing_ns`](SocketCosts::crossing_ns) |
//! | memory on the other socket than the port | a read of the adapter is later by two crossings and occupies the interconnect; a write is later by one and occupies the receive engine |
//!
//! Not modelled: translations and completion entries of receives, and prefetching of translations.

use super::SimNet;
use super::hardware::{HardwareProfile, Resource};
use super::request::{LocalRange, RequestRecord};
use super::world::{LinkEnd, SimNode, World};
use farside_base::RegionId;
use std::collections::BTreeMap;

/// Ports of an adapter.
pub const ADAPTER_PORTS: usize = 2;

/// Caches of metadata in the adapter; both replace the least recently used entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AdapterCaches {
    /// Bytes of a translated page.
    pub page_bytes: u32,
    /// Number of cached translations; 0 if translations never miss.
    pub translations_max: usize,
    /// Time for which a missing translation occupies the engine that needs it.
    pub translation_miss_ns: u64,
    /// Number of cached queue pairs; 0 if they never miss.
    pub queue_pairs_max: usize,
    /// Time for which a missing queue pair occupies the engine that needs it.
    pub queue_pair_miss_ns: u64,
}

impl AdapterCaches {
    /// Caches that never miss.
    pub const NONE: Self = Self {
        page_bytes: 4_096,
        translations_max: 0,
        translation_miss_ns: 0,
        queue_pairs_max: 0,
        queue_pair_miss_ns: 0,
    };
}

/// Costs of the interconnect between two sockets of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketCosts {
    /// Latency of one crossing.
    pub crossing_ns: u64,
    /// Busy time of the interconnect for a read of the adapter from memory of the other socket.
    pub read_busy_ns: u64,
    /// Busy time of the receive engine for a write to memory of the other socket.
    pub write_busy_ns: u64,
    /// Busy time of each byte of both.
    pub ps_per_byte: u64,
}

impl SocketCosts {
    /// A machine with one socket.
    pub const NONE: Self =
        Self { crossing_ns: 0, read_busy_ns: 0, write_busy_ns: 0, ps_per_byte: 0 };

    /// Busy time of the transfer of `bytes` bytes that takes `busy_ns` apart from them.
    const fn busy_ps(&self, busy_ns: u64, bytes: u64) -> u64 {
        busy_ns * 1_000 + bytes * self.ps_per_byte
    }
}

/// The sockets on which a program and its memory are, and the port of the adapter that it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Placement {
    /// Port of the adapter, below [`ADAPTER_PORTS`].
    pub port: u8,
    /// Socket of that port.
    pub port_socket: u8,
    /// Socket of the thread, and of its queues.
    pub thread_socket: u8,
    /// Socket of the memory.
    pub memory_socket: u8,
}

impl SimNet {
    /// Places the ports that a node opens and the regions that it registers from now on, as `numactl` does for a
    /// program; the node is created if absent. At first everything is on socket 0 and uses port 0.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such port.
    pub fn place(&self, node: &str, placement: Placement) -> std::io::Result<()> {
        if usize::from(placement.port) >= ADAPTER_PORTS {
            let text = format!("adapter port {} of {ADAPTER_PORTS}", placement.port);
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, text));
        }
        let mut world = self.lock();
        let node = world.node_named(node);
        world.nodes[node.0].placement = placement;
        Ok(())
    }
}

/// A set of bounded size that replaces the least recently used key.
#[derive(Clone, Debug)]
pub(super) struct UsedCache<K> {
    ages: BTreeMap<K, u64>,
    keys: BTreeMap<u64, K>,
    uses: u64,
}

impl<K> Default for UsedCache<K> {
    fn default() -> Self {
        Self { ages: BTreeMap::new(), keys: BTreeMap::new(), uses: 0 }
    }
}

impl<K: Ord + Copy> UsedCache<K> {
    /// Uses a key. Returns whether it was missing; never with `entries_max` 0.
    fn misses(&mut self, key: K, entries_max: usize) -> bool {
        if entries_max == 0 {
            return false;
        }
        self.uses += 1;
        let age = self.ages.insert(key, self.uses);
        if let Some(age) = age {
            self.keys.remove(&age);
        }
        self.keys.insert(self.uses, key);
        if self.ages.len() > entries_max
            && let Some((_, oldest)) = self.keys.pop_first()
        {
            self.ages.remove(&oldest);
        }
        age.is_none()
    }
}

/// The cached metadata of one adapter.
#[derive(Clone, Default, Debug)]
pub(super) struct CachedMetadata {
    translations: UsedCache<(RegionId, u64)>,
    queue_pairs: UsedCache<LinkEnd>,
}

/// Additional time of a request at an engine.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct EngineDelay {
    pub(super) busy_ps: u64,
    pub(super) latency_ns: u64,
}

impl SimNode {
    /// Whether a region of this node is on the other socket than a port of that placement.
    fn is_across(&self, region: RegionId, placement: Placement) -> bool {
        let region = self.regions.get(&region);
        region.is_some_and(|region| region.socket != placement.port_socket)
    }
}

/// A range of a region of the node that accesses it.
type RegionRange = (RegionId, u64, u64);

impl World {
    fn placement(&self, end: LinkEnd) -> Placement {
        self.port(end.port).placement
    }

    /// Latency between the thread that uses this link and its port.
    pub(super) fn thread_crossing_ns(&self, hardware: &HardwareProfile, end: LinkEnd) -> u64 {
        let placement = self.placement(end);
        if placement.thread_socket == placement.port_socket {
            0
        } else {
            hardware.sockets.crossing_ns
        }
    }

    /// Returns the delay of the metadata of a request: its queue pair, and the pages of these ranges.
    fn metadata(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        queue_pair: bool,
        ranges: &[RegionRange],
    ) -> EngineDelay {
        let caches = &hardware.caches;
        let node = self.port(end.port).node;
        let cached = &mut self.adapters.of(node).cached;
        let mut busy_ns = 0;
        if queue_pair && cached.queue_pairs.misses(end, caches.queue_pairs_max) {
            busy_ns += caches.queue_pair_miss_ns;
        }
        let page_bytes = u64::from(caches.page_bytes.max(1));
        for (region, offset, bytes) in ranges.iter().filter(|range| range.2 > 0) {
            for page in offset / page_bytes..=(offset + bytes - 1) / page_bytes {
                if cached.translations.misses((*region, page), caches.translations_max) {
                    busy_ns += caches.translation_miss_ns;
                }
            }
        }
        let latency_ns = if busy_ns > 0 { hardware.pcie_read_ns } else { 0 };
        EngineDelay { busy_ps: busy_ns * 1_000, latency_ns }
    }

    /// Returns the delay of a request at its send engine, of which these local ranges are fetched.
    pub(super) fn send_delay(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        fetched: &[LocalRange],
    ) -> EngineDelay {
        let ranges: Vec<_> = fetched.iter().map(region_range).collect();
        self.metadata(hardware, end, true, &ranges)
    }

    /// Returns the delay of a request at the receive engine of its target.
    pub(super) fn receive_delay(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        number: u64,
    ) -> EngineDelay {
        let Some(inbound) = self.link_mut(end).inbound(number) else {
            return EngineDelay::default();
        };
        let message = &inbound.message;
        let (bytes, fetches) = (message.bytes as u64, message.fetches());
        let at = message.at.map(|(token, offset)| (token.region, offset, bytes));
        let mut delay = self.metadata(hardware, end, true, at.as_slice());
        let across = at.is_some_and(|(region, ..)| self.is_across(end, region));
        if across && !fetches {
            delay.busy_ps += hardware.sockets.busy_ps(hardware.sockets.write_busy_ns, bytes);
        }
        delay
    }

    /// Returns the delay of an answer at the receive engine of its requester.
    pub(super) fn answer_delay(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        number: u64,
    ) -> EngineDelay {
        let request = self.link_mut(end).request(number);
        let into = request.map(|request: &mut RequestRecord| request.into.as_slice());
        let ranges: Vec<_> = into.unwrap_or_default().iter().map(region_range).collect();
        let mut delay = self.metadata(hardware, end, false, &ranges);
        for (region, _, bytes) in ranges {
            if self.is_across(end, region) {
                delay.busy_ps += hardware.sockets.busy_ps(hardware.sockets.write_busy_ns, bytes);
                delay.latency_ns = delay.latency_ns.max(hardware.sockets.crossing_ns);
            }
        }
        delay
    }

    /// Whether a region of this end's node is on the other socket than the port.
    pub(super) fn is_across(&self, end: LinkEnd, region: RegionId) -> bool {
        self.node(end).is_across(region, self.placement(end))
    }

    /// Returns when a read of memory of the other socket, of which the adapter's part begins at `at_ns`, may begin.
    pub(super) fn cross(
        &mut self,
        hardware: &HardwareProfile,
        end: LinkEnd,
        at_ns: u64,
        bytes: u64,
    ) -> u64 {
        let node = self.port(end.port).node;
        let busy_ps = hardware.sockets.busy_ps(hardware.sockets.read_busy_ns, bytes);
        let interconnect: &mut Resource = &mut self.adapters.of(node).interconnect;
        interconnect.take(at_ns, busy_ps).0 + 2 * hardware.sockets.crossing_ns
    }
}

fn region_range(range: &LocalRange) -> RegionRange {
    (range.region, range.offset, range.bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_key_is_replaced() {
        let mut cache = UsedCache::default();
        let missed: Vec<bool> = [1, 2, 1, 3, 1, 2].map(|key| cache.misses(key, 2)).to_vec();
        assert_eq!(missed, [true, true, false, true, false, true]);
        assert!(!cache.misses(9, 0), "no cache is modelled");
    }
}
