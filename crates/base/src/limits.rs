//! Every limit of the system, with its reason.

/// The limits of one cluster. Equal on all its nodes, except for `nodes_max`; a node with others is refused
/// at the join.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Maximum members of a cluster at a time; node numbers are below it, and are reused by later nodes.
    /// Bounded by [`crate::NodeSet`]. The founder of a cluster sets it, and joiners learn it.
    pub nodes_max: u16,
    /// Maximum sessions (program orders) of a node at a time: one per thread or task that uses memory.
    pub sessions_max: u32,
    /// Maximum operations of a node that wait in the engine; a further one waits for a free slot.
    pub operations_max: u32,
    /// Maximum asynchronous writes of a session in flight, 1 to 179; a further one waits for the oldest.
    pub writes_in_flight_max: u32,
    /// Maximum bytes of one read, write or atomic call.
    pub access_bytes_max: u64,
    /// Maximum bytes of one allocation.
    pub allocation_bytes_max: u64,
    /// Maximum locks that a session holds or awaits at a time.
    pub locks_per_session_max: u32,
    /// Messages that a node may have in flight to one peer in each class (request, forward, reply).
    pub credits_per_class: u32,
    /// How often readers may overtake a waiting writer; and how many lock requests of one node are granted in a row
    /// while another node's wait.
    pub lock_handovers_max: u32,
    /// Unused lines over whose locks a node may keep the authority: some 300 B each.
    pub lock_delegations_max: u32,
    /// Grants of a line's locks to one node in a row until that node becomes their authority.
    pub lock_delegate_after: u32,
}

impl Limits {
    /// The limits of a cluster by default.
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

    /// Limits so small that a search reaches every one of them.
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
