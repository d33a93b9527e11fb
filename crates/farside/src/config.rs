//! How a node is set up.

use crate::Error;
use farside_base::{ErrorCode, GlobalAddress, Limits, LineSize, NodeId};

/// How a node of a cluster is set up. Start from [`Config::new`] and change fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The cluster's name: 1 to 64 letters, digits, `-`, `_` or `.`.
    pub cluster: String,
    /// Bytes of global memory that this node is home of; zero for a node that only uses others'.
    pub memory_bytes: u64,
    /// Bytes of other nodes' lines that this node caches at most.
    pub cache_bytes: u64,
    /// Shares of the cache by line size class (64 B first); the default favours the default line.
    pub cache_shares: [u8; LineSize::CLASSES],
    /// The line size of allocations that name none.
    pub line_size: LineSize,
    /// The cluster's bounds; equal on all nodes.
    pub limits: Limits,
    /// How long a waiting thread spins before it sleeps.
    pub spin_ns: u64,
    /// Between hosts: for how long a lost link is dialled again before its member counts as out of reach.
    /// Operations wait meanwhile, and go on when the link is back. The fabric notices a silent member first,
    /// after a lease of its own (1 s by default).
    ///
    /// *Guarantees*: an outage shorter than both leases together expels no member. *Cost*: an operation on the
    /// memory of a member that is silent for longer fails after the fabric's lease, this lease, a quarter of the
    /// fabric's lease and the time of one more dial (at most 0.65 s), the vote (some round trips), and one and a
    /// quarter of the fabric's lease until nothing counts that the lost member has cached: with the defaults 3.7
    /// to 4.1 s after the loss. A process that has ended is noticed at once.
    pub lease_ns: u64,
}

impl Config {
    /// The defaults: 256 MiB of memory, 64 MiB of cache, 512 B lines.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            memory_bytes: 256 << 20,
            cache_bytes: 64 << 20,
            cache_shares: [1, 1, 1, 8, 1, 1, 1, 1, 1, 1, 1],
            line_size: LineSize::DEFAULT,
            limits: Limits::DEFAULT,
            spin_ns: 20_000,
            lease_ns: 1_000_000_000,
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// `BadConfiguration`, which names the setting.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |detail: &str| Err(Error::with(ErrorCode::BadConfiguration, detail));
        let name_fits = (1..=64).contains(&self.cluster.len())
            && self.cluster.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !name_fits {
            return bad("cluster: 1 to 64 letters, digits, '-', '_' or '.'");
        }
        if self.memory_bytes > 1 << GlobalAddress::OFFSET_BITS {
            return bad("memory_bytes: at most 16 TiB");
        }
        if !(4_096..=1 << 37).contains(&self.cache_bytes) {
            return bad("cache_bytes: 4 KiB to 128 GiB");
        }
        if !(10_000_000..=600_000_000_000).contains(&self.lease_ns) {
            return bad("lease_ns: 10 ms to 10 minutes");
        }
        if self.cache_shares.iter().all(|share| *share == 0) {
            return bad("cache_shares: at least one over zero");
        }
        Ok(())
    }
}

/// Where an allocation should live (004 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AllocationHint {
    /// Here, unless memory is short here: then at the node with most free memory.
    #[default]
    Default,
    /// Here or nowhere.
    Local,
    /// At the other node with most free memory.
    Remote,
    /// At the home of this address.
    Near(GlobalAddress),
    /// At this node.
    On(NodeId),
}

/// How an allocation shall be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AllocationSpec {
    /// Where.
    pub hint: AllocationHint,
    /// In lines of which size; `None` for the node's default.
    pub line_size: Option<LineSize>,
}
