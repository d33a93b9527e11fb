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
    pub(super) const fn busy_ps(&self, busy_ns: u64, bytes: u64) -> u64 {
        busy_ns * 1_000 + bytes * self.ps_per_byte
    }
}

/// The sockets on which a program and its memory are, and the port of the adapter that it uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SocketPlacement {
    /// Port of the adapter, below [`ADAPTER_PORTS`].
    pub port: u8,
    /// Socket of that port.
    pub port_socket: u8,
    /// Socket of the thread, and of its queues.
    pub thread_socket: u8,
    /// Socket of the memory.
    pub memory_socket: u8,
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
    pub(super) fn misses(&mut self, key: K, entries_max: usize) -> bool {
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
