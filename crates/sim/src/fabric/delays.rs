//! The delays of [`locality`](super::locality) for messages at the adapters.

use super::SimNet;
use super::hardware::HardwareProfile;
use super::locality::{ADAPTER_PORTS, SocketPlacement};
use super::request::{LocalRange, RequestRecord};
use super::resource::Resource;
use super::world::{LinkEnd, SimNode, World};
use farside_base::RegionId;

impl SimNet {
    /// Places the ports that a node opens and the regions that it registers from now on, as `numactl` does for a
    /// program; the node is created if absent. At first everything is on socket 0 and uses port 0.
    ///
    /// # Errors
    /// `InvalidInput` if there is no such port.
    pub fn place(&self, node: &str, placement: SocketPlacement) -> std::io::Result<()> {
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

/// Additional time of a request at an engine.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct EngineDelay {
    pub(super) busy_ps: u64,
    pub(super) latency_ns: u64,
}

impl SimNode {
    /// Whether a region of this node is on the other socket than a port of that placement.
    fn is_across(&self, region: RegionId, placement: SocketPlacement) -> bool {
        let region = self.regions.get(&region);
        region.is_some_and(|region| region.socket != placement.port_socket)
    }
}

/// A range of a region of the node that accesses it.
type RegionRange = (RegionId, u64, u64);

impl World {
    fn placement(&self, end: LinkEnd) -> SocketPlacement {
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
        let has_cache = caches.translations_max > 0;
        for (region, offset, bytes) in ranges.iter().filter(|range| has_cache && range.2 > 0) {
            // A range beyond the region is refused later.
            let last = offset.saturating_add(bytes - 1);
            for page in offset / page_bytes..=last / page_bytes {
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
