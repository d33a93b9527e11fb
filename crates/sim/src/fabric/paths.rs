//! Paths between two nodes with a hardware profile: separate cables, and the traffic over them.

use super::SimNet;
use super::resource::Resource;
use super::world::{LinkEnd, NodeKey, World};
use std::collections::BTreeMap;

/// The path from one node to another, in place of the profile's wires and switch: for example a bus to a processor at
/// an adapter, or a link to a more distant rack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Path {
    /// Latency from one adapter to the other.
    pub latency_ns: u64,
    /// Busy time per byte.
    pub ps_per_byte: u64,
}

/// Traffic from one node to another: payloads without packet overhead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Requests: SENDs, WRITEs, READs, atomics.
    pub requests: u64,
    /// Answers to requests, including empty ones.
    pub answers: u64,
    /// Bytes of both.
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Cable {
    path: Path,
    wire: Resource,
}

/// The two nodes of a path, in its direction.
type NodePair = (NodeKey, NodeKey);

#[derive(Clone, Default, Debug)]
pub(super) struct Paths {
    cables: BTreeMap<NodePair, Cable>,
    traffic: BTreeMap<NodePair, Traffic>,
}

impl SimNet {
    /// Sets the path from one node to another, in one direction; nodes of these names are created if absent. Messages
    /// in flight keep the previous path. It has an effect with a hardware profile only.
    pub fn set_path(&self, from: &str, to: &str, path: Path) {
        let mut world = self.lock();
        let pair = (world.node_named(from), world.node_named(to));
        let wire = world.paths.cables.get(&pair).map(|cable| cable.wire).unwrap_or_default();
        world.paths.cables.insert(pair, Cable { path, wire });
    }

    /// Returns and resets the traffic from one living node to another; with a hardware profile only.
    pub fn take_traffic(&self, from: &str, to: &str) -> Traffic {
        let mut world = self.lock();
        let pair = world.find_node(from).zip(world.find_node(to));
        pair.and_then(|pair| world.paths.traffic.remove(&pair)).unwrap_or_default()
    }
}

impl World {
    /// Returns the path to this end from its peer.
    fn pair_to(&self, to: LinkEnd) -> NodePair {
        (self.port(self.link(to).peer.port).node, self.port(to.port).node)
    }

    /// Counts a message that leaves for `to`.
    pub(super) fn count_traffic(&mut self, to: LinkEnd, answer: bool, bytes: u64) {
        let pair = self.pair_to(to);
        let traffic = self.paths.traffic.entry(pair).or_default();
        traffic.requests += u64::from(!answer);
        traffic.answers += u64::from(answer);
        traffic.bytes += bytes;
    }

    /// Sends `bytes` over the cable to this end, if there is one. Returns when transmission begins and ends, and the
    /// path.
    pub(super) fn take_cable(&mut self, to: LinkEnd, bytes: u64) -> Option<(u64, u64, Path)> {
        let (pair, now_ns) = (self.pair_to(to), self.now_ns);
        let cable = self.paths.cables.get_mut(&pair)?;
        let (start_ns, sent_ns) = cable.wire.take(now_ns, bytes * cable.path.ps_per_byte);
        Some((start_ns, sent_ns, cable.path))
    }

    /// The transmission time of `bytes` over the cable to this end, if there is one. A cable carries one direction of
    /// one pair only.
    pub(super) fn cable_ns(&self, to: LinkEnd, bytes: u64) -> Option<u64> {
        let cable = self.paths.cables.get(&self.pair_to(to))?;
        Some((bytes * cable.path.ps_per_byte).div_ceil(1_000))
    }
}
