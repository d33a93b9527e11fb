//! Every bound of the system, with its reason.

/// The bounds of one cluster. Equal on all its nodes, but for `nodes_max`; a node with others is refused at
/// the join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Most members of a cluster at a time; numbers of nodes are below it, and are given again to later nodes.
    /// Sized by [`crate::NodeSet`]. The founder of a cluster decides it, and nodes that join learn it.
    pub nodes_max: u16,
    /// Most sessions (program orders) of a node at a time: one per thread or task that uses memory.
    pub sessions_max: u32,
    /// Most operations of a node that wait in the engine; a further one waits for a place.
    pub operations_max: u32,
    /// Most asynchronous writes of a session in flight; a further one waits for the oldest.
    pub writes_in_flight_max: u32,
    /// Most bytes of one read, write or atomic call.
    pub access_bytes_max: u64,
    /// Most bytes of one allocation.
    pub allocation_bytes_max: u64,
    /// Most locks a session holds or awaits at a time.
    pub locks_per_session_max: u32,
    /// Messages a node may have under way to one peer in each class (request, forward, reply).
    pub credits_per_class: u32,
    /// How often readers may overtake a waiting writer.
    pub lock_handovers_max: u32,
    /// Lines whose locks a node may keep the authority over while nobody uses them: some 300 B each.
    pub lock_delegations_max: u32,
    /// Grants of a line's locks to one node in a row until that node becomes their authority.
    pub lock_delegate_after: u32,
}

impl Limits {
    /// What a cluster gets unless it says otherwise.
    pub const DEFAULT: Self = Self {
        nodes_max: 128,
        sessions_max: 1_024,
        operations_max: 4_096,
        writes_in_flight_max: 16,
        access_bytes_max: 1 << 30,
        allocation_bytes_max: 1 << 40,
        locks_per_session_max: 4_096,
        credits_per_class: 32,
        lock_handovers_max: 16,
        lock_delegations_max: 16_384,
        lock_delegate_after: 2,
    };

    /// Bounds so small that a search meets every one of them.
    pub const TINY: Self = Self {
        nodes_max: 3,
        sessions_max: 2,
        operations_max: 4,
        writes_in_flight_max: 2,
        access_bytes_max: 4_096,
        allocation_bytes_max: 4_096,
        locks_per_session_max: 2,
        credits_per_class: 2,
        lock_handovers_max: 2,
        lock_delegations_max: 1,
        lock_delegate_after: 1,
    };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

const _: () = assert!(Limits::DEFAULT.nodes_max as usize <= crate::NodeSet::CAPACITY);
const _: () = assert!(Limits::DEFAULT.nodes_max >= 64, "the product promises 64 nodes");
const _: () =
    assert!(Limits::DEFAULT.allocation_bytes_max < 1 << crate::GlobalAddress::OFFSET_BITS);
const _: () = assert!(Limits::TINY.operations_max >= Limits::TINY.writes_in_flight_max);
