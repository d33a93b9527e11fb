//! Chooses the node of an allocation (004 §2.1): near an address or at a node if the program asks for that; otherwise
//! the local node, unless its memory is short; then the node with the most free memory.
//!
//! Each node reports its free bytes to the others when they have changed by more than a sixteenth of its memory since
//! the last report, so the table is at most that stale. A home with less memory than the table says refuses, and the
//! next best is asked.

use alloc::vec::Vec;
use farside_base::{ErrorCode, GlobalAddress, NodeId, NodeSet};

/// The node that the program asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Hint {
    /// The local node if it has room without pressure, otherwise the node with the most free memory.
    #[default]
    Default,
    /// At the home of this address.
    Near(GlobalAddress),
    /// At this node.
    On(NodeId),
    /// The local node.
    Local,
    /// Another node: the one with the most free memory.
    Remote,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct HomeEntry {
    node: NodeId,
    free_bytes: u64,
}

/// A node's table of free memory, and the choice.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Placement {
    me: NodeId,
    /// Bytes of this node's memory.
    capacity_bytes: u64,
    /// The last report of this node; `None` before the first.
    told_bytes: Option<u64>,
    /// Live nodes, this one included, in ascending order.
    homes: Vec<HomeEntry>,
}

impl Placement {
    /// Local memory is short if an allocation would leave less than one part in this many free.
    pub const PRESSURE_PARTS: u64 = 16;
    /// Free bytes are reported again after a change of more than one part in this many.
    pub const TELL_PARTS: u64 = 16;

    /// Creates the table of `me`, with `capacity_bytes` of memory, all free.
    pub fn new(me: NodeId, capacity_bytes: u64) -> Self {
        let own = HomeEntry { node: me, free_bytes: capacity_bytes };
        Self { me, capacity_bytes, told_bytes: None, homes: alloc::vec![own] }
    }

    /// Notes the free bytes of a node.
    pub fn note(&mut self, node: NodeId, free_bytes: u64) {
        match self.position(node) {
            Ok(at) => self.homes[at].free_bytes = free_bytes,
            Err(at) => self.homes.insert(at, HomeEntry { node, free_bytes }),
        }
    }

    /// Forgets a node that is dead.
    pub fn remove(&mut self, node: NodeId) {
        if let Ok(at) = self.position(node) {
            self.homes.remove(at);
        }
    }

    /// Notes this node's free bytes; `Some` if they have to be reported to all others now.
    pub fn note_own(&mut self, free_bytes: u64) -> Option<u64> {
        self.note(self.me, free_bytes);
        let step = self.capacity_bytes / Self::TELL_PARTS;
        let near = |told: u64| told.abs_diff(free_bytes) <= step;
        if self.told_bytes.is_some_and(near) {
            return None;
        }
        self.told_bytes = Some(free_bytes);
        self.told_bytes
    }

    /// The last report, to be sent to a node that joins.
    pub fn told_bytes(&self) -> Option<u64> {
        self.told_bytes
    }

    /// The last known free bytes of a live node.
    pub fn free_bytes(&self, node: NodeId) -> Option<u64> {
        self.position(node).ok().map(|at| self.homes[at].free_bytes)
    }

    /// Returns the node to ask for `bytes`. Nodes in `refused` have refused already; with `Default` and `Remote`,
    /// call again with the refusing node added.
    ///
    /// # Errors
    /// `OutOfMemory` if no permitted node is left; `NodeLost` if the requested node is not alive.
    pub fn choose(&self, hint: Hint, bytes: u64, refused: &NodeSet) -> Result<NodeId, ErrorCode> {
        match hint {
            Hint::Near(address) => self.only(address.home(), refused),
            Hint::On(node) => self.only(node, refused),
            Hint::Local => self.only(self.me, refused),
            Hint::Remote => self.most_free(bytes, refused, false),
            Hint::Default if !refused.contains(self.me) && self.has_room(bytes) => Ok(self.me),
            Hint::Default => self.most_free(bytes, refused, true),
        }
    }

    fn only(&self, node: NodeId, refused: &NodeSet) -> Result<NodeId, ErrorCode> {
        if self.position(node).is_err() {
            return Err(ErrorCode::NodeLost);
        }
        if refused.contains(node) {
            return Err(ErrorCode::OutOfMemory);
        }
        Ok(node)
    }

    /// Whether the local node has room for `bytes` without pressure.
    fn has_room(&self, bytes: u64) -> bool {
        let free = self.free_bytes(self.me).unwrap_or(0);
        let left = free.checked_sub(bytes);
        left.is_some_and(|left| left >= self.capacity_bytes / Self::PRESSURE_PARTS)
    }

    /// The node with the most free memory; among equals this one, then the lowest. Nodes with too little according to
    /// the table are left out: their figure is stale by at most a sixteenth of their memory, and a larger allocation
    /// fails there later anyway.
    fn most_free(&self, bytes: u64, refused: &NodeSet, with_me: bool) -> Result<NodeId, ErrorCode> {
        let permitted = |home: &&HomeEntry| {
            !refused.contains(home.node)
                && (with_me || home.node != self.me)
                && home.free_bytes >= bytes
        };
        let rank = |home: &&HomeEntry| {
            let mine = home.node == self.me;
            (home.free_bytes, mine, core::cmp::Reverse(home.node))
        };
        let best = self.homes.iter().filter(permitted).max_by_key(rank);
        best.map(|home| home.node).ok_or(ErrorCode::OutOfMemory)
    }

    fn position(&self, node: NodeId) -> Result<usize, usize> {
        self.homes.binary_search_by_key(&node, |home| home.node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::LineSize;

    const ME: NodeId = NodeId(1);

    fn placement() -> Placement {
        let mut placement = Placement::new(ME, 1_600);
        placement.note(NodeId(0), 500);
        placement.note(NodeId(2), 900);
        placement
    }

    fn check(placement: &Placement, hint: Hint, bytes: u64, expected: Result<u16, ErrorCode>) {
        let choice = placement.choose(hint, bytes, &NodeSet::EMPTY);
        assert_eq!(choice, expected.map(NodeId), "{hint:?} {bytes}");
    }

    #[test]
    fn hints_are_obeyed() {
        let placement = placement();
        let near = GlobalAddress::new(NodeId(2), LineSize::DEFAULT, 4_096).unwrap();
        check(&placement, Hint::Near(near), 100_000, Ok(2));
        check(&placement, Hint::On(NodeId(0)), 1, Ok(0));
        check(&placement, Hint::On(NodeId(9)), 1, Err(ErrorCode::NodeLost));
        check(&placement, Hint::Local, 100_000, Ok(1));
        check(&placement, Hint::Remote, 1, Ok(2));
        check(&placement, Hint::Remote, 901, Err(ErrorCode::OutOfMemory));
    }

    #[test]
    fn default_is_local_until_memory_is_short() {
        let mut placement = placement();
        check(&placement, Hint::Default, 1_500, Ok(1));
        check(&placement, Hint::Default, 1_501, Ok(1));
        placement.note_own(800);
        check(&placement, Hint::Default, 700, Ok(1));
        check(&placement, Hint::Default, 701, Ok(2));
        check(&placement, Hint::Default, 900, Ok(2));
        check(&placement, Hint::Default, 901, Err(ErrorCode::OutOfMemory));
        placement.remove(NodeId(2));
        check(&placement, Hint::Default, 701, Ok(1));
    }

    #[test]
    fn refusals_lead_to_the_next_best() {
        let placement = placement();
        let mut refused = NodeSet::EMPTY;
        for expected in [1, 2, 0] {
            let choice = placement.choose(Hint::Default, 10, &refused).unwrap();
            assert_eq!(choice, NodeId(expected));
            refused.insert(choice);
        }
        assert_eq!(placement.choose(Hint::Default, 10, &refused), Err(ErrorCode::OutOfMemory));
        assert_eq!(placement.choose(Hint::Local, 10, &refused), Err(ErrorCode::OutOfMemory));
    }

    #[test]
    fn a_dead_node_is_never_chosen() {
        let mut placement = placement();
        placement.remove(NodeId(2));
        check(&placement, Hint::On(NodeId(2)), 1, Err(ErrorCode::NodeLost));
        check(&placement, Hint::Remote, 1, Ok(0));
        placement.remove(NodeId(0));
        check(&placement, Hint::Remote, 1, Err(ErrorCode::OutOfMemory));
    }

    #[test]
    fn free_bytes_are_reported_after_a_sixteenth() {
        let mut placement = Placement::new(ME, 1_600);
        assert_eq!(placement.note_own(1_600), Some(1_600), "the first time always");
        assert_eq!(placement.note_own(1_500), None);
        assert_eq!(placement.note_own(1_499), Some(1_499));
        assert_eq!(placement.note_own(1_599), None);
        assert_eq!(placement.note_own(1_600), Some(1_600));
        assert_eq!(placement.told_bytes(), Some(1_600));
    }
}
