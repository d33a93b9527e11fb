//! Identifiers. No interface uses a bare integer as an id, and no id is narrower than what a cluster can
//! use up in its lifetime (a 32-bit counter wraps in minutes at today's rates).

use core::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($inner:ty) $letter:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    )*};
}

ids! {
    /// A node of the cluster: an array index, and a bit of a [`NodeSet`]. Once a node is gone and every
    /// member has settled its removal, a later node may get the same number. Addresses stay distinct by
    /// their [`Generation`].
    NodeId(u16) "n";
    /// Counts the memories lent by nodes of one number, from 0; part of every global address.
    Generation(u16) "m";
    /// One run of a process that joined; distinguishes a restarted process from the one it replaces.
    Incarnation(u64) "i";
    /// The number of a membership view. Only grows.
    ViewNumber(u64) "v";
    /// A reliable connection of a port. Index into the port's table; not reused while the port lives.
    LinkId(u32) "l";
    /// A local registered region.
    RegionId(u32) "r";
    /// A peer's region, imported on one link.
    RemoteRegionId(u32) "R";
    /// A receive queue of a port.
    ReceiveQueueId(u32) "q";
    /// The caller's id of a work request, repeated in its completion.
    WorkId(u64) "w";
    /// The random 64-bit key of a region, checked on every request.
    RemoteKey(u64) "k";
    /// One grant of a line to one node; numbered by the home, never reused by that home.
    Grant(u64) "g";
    /// One operation of a session in the engine.
    OperationId(u64) "o";
    /// One request of a node to a home; the answer repeats it.
    Ticket(u64) "t";
    /// One program order: the high 16 bits are its node, the rest is a count within the node.
    SessionId(u64) "s";
}

impl Generation {
    /// The number of generations of a node number: an address has ten bits for them.
    pub const COUNT: u16 = 1 << 10;
}

impl SessionId {
    /// The session `count` of `node`; bits of `count` beyond 48 are dropped, which no node reaches.
    pub const fn new(node: NodeId, count: u64) -> Self {
        Self(((node.0 as u64) << 48) | (count & 0xffff_ffff_ffff))
    }

    /// The node of this program order.
    pub const fn node(self) -> NodeId {
        NodeId((self.0 >> 48) as u16)
    }
}

/// A set of nodes, up to [`NodeSet::CAPACITY`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct NodeSet {
    words: [u64; NodeSet::WORDS],
}

impl NodeSet {
    const WORDS: usize = 4;
    /// The number of node numbers that fit, from 0.
    pub const CAPACITY: usize = Self::WORDS * 64;

    /// The empty set.
    pub const EMPTY: Self = Self { words: [0; Self::WORDS] };

    /// Adds `node`; false if it was in the set already or its number does not fit.
    pub fn insert(&mut self, node: NodeId) -> bool {
        let Some(word) = self.words.get_mut(node.0 as usize / 64) else {
            return false;
        };
        let bit = 1 << (node.0 % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Removes `node`; false if it was not in the set.
    pub fn remove(&mut self, node: NodeId) -> bool {
        let Some(word) = self.words.get_mut(node.0 as usize / 64) else {
            return false;
        };
        let bit = 1 << (node.0 % 64);
        let was = *word & bit != 0;
        *word &= !bit;
        was
    }

    /// Whether `node` is in the set.
    pub fn contains(&self, node: NodeId) -> bool {
        self.words.get(node.0 as usize / 64).is_some_and(|word| word & (1 << (node.0 % 64)) != 0)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The number of nodes in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The nodes, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.words.iter().zip(0_u16..).flat_map(|(word, index)| {
            let mut left = *word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as u16)?;
                left &= left - 1;
                Some(NodeId(index * 64 + bit))
            })
        })
    }
}

impl fmt::Debug for NodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl FromIterator<NodeId> for NodeSet {
    fn from_iter<T: IntoIterator<Item = NodeId>>(nodes: T) -> Self {
        let mut set = Self::EMPTY;
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_set_holds_each_number_once() {
        let mut set = NodeSet::EMPTY;
        for number in [0, 63, 64, 255] {
            assert!(set.insert(NodeId(number)));
            assert!(!set.insert(NodeId(number)));
        }
        assert!(!set.insert(NodeId(256)), "a number that does not fit is refused");
        assert_eq!(set.len(), 4);
        assert!(set.remove(NodeId(64)) && !set.remove(NodeId(64)));
        assert!(set.iter().eq([0, 63, 255].map(NodeId)));
    }

    #[test]
    fn session_knows_its_node() {
        assert_eq!(SessionId::new(NodeId(65535), 7).node(), NodeId(65535));
    }
}
