//! Counters of a node.

/// Counters of one node since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Line accesses served by a tag check and a copy.
    pub hits: u64,
    /// Line accesses that needed the engine.
    pub misses: u64,
    /// Lines requested ahead of their use: by [`Session::prefetch_read`](crate::Session::prefetch_read) and
    /// its twin for writes, and by accesses to many lines.
    pub prefetches: u64,
    /// Lines of other homes read in their memory, without a message and without caching them.
    pub direct_reads: u64,
    /// Cached lines lost to other nodes' writes.
    pub invalidations: u64,
    /// Cached lines evicted.
    pub evictions: u64,
    /// Messages sent.
    pub messages_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes of lines placed at other nodes.
    pub bytes_placed: u64,
    /// Work requests posted.
    pub work_requests: u64,
    /// Doorbells: `post` calls.
    pub doorbells: u64,
    /// Times a thread of this node went to sleep.
    pub sleeps: u64,
    /// Locks granted.
    pub locks: u64,
    /// Locks granted without the engine.
    pub lock_hits: u64,
    /// Links to other hosts that broke and reconnected.
    pub resumes: u64,
    /// Stopped members of this machine that this node has removed.
    pub removals: u64,
    /// Members removed during a copy into memory of this node that may still land. Until it has ended, lost
    /// lines of this node are not healed, and no new node gets the number of such a member.
    pub quarantined_members: u64,
    /// Bytes withheld until then: cache frames, and freed memory.
    pub quarantined_bytes: u64,
    /// Lines of other homes that were written back, in the background or by
    /// [`Session::write_back`](crate::Session::write_back).
    pub write_backs: u64,
    /// Bytes of this node's memory that are free.
    pub memory_free_bytes: u64,
}
