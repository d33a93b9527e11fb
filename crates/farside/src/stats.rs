//! What a node has done.

/// Counters of one node since its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Line accesses served by a tag check and a copy.
    pub hits: u64,
    /// Line accesses that needed the engine.
    pub misses: u64,
    /// Cached lines lost to other nodes' writes.
    pub invalidations: u64,
    /// Cached lines given up for room.
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
    /// Those among them that did not need the engine.
    pub lock_hits: u64,
    /// Links to other hosts that broke and came back.
    pub resumes: u64,
    /// Stopped members of this machine that this node has removed.
    pub removals: u64,
    /// Members that were removed within a copy into memory of this node, which may still land. Until it has, lost lines
    /// of this node are not healed, and no other node gets the numbers of such members.
    pub quarantined_members: u64,
    /// Bytes that serve for nothing until then: frames of the cache, and memory that was freed.
    pub quarantined_bytes: u64,
    /// Lines of other homes that were written back, in the background or by
    /// [`Session::write_back`](crate::Session::write_back).
    pub write_backs: u64,
    /// Bytes of this node's memory that are free.
    pub memory_free_bytes: u64,
}
