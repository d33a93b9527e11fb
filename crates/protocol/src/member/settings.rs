//! The settings of a cluster, from its founder.

/// What the founder of a cluster sets for all members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FounderSettings {
    /// `Limits::nodes_max`: node numbers are below it.
    pub nodes_max: u16,
    /// How long a member may be silent.
    pub leases: Leases,
}

/// How long a member may be silent. Members with leases of their own would disagree about when a removed member has
/// stopped using what it has cached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leases {
    /// The fabric detects silence within this time; zero on fabrics where live members are always reachable.
    pub fabric_ns: u64,
    /// How long a lost link is redialled.
    pub member_ns: u64,
}

impl Leases {
    /// The maximum of each.
    pub const MAX_NS: u64 = 600_000_000_000;
    /// The minimum of `member_ns`.
    pub const MEMBER_MIN_NS: u64 = 10_000_000;

    /// Whether these leases are within the permitted ranges.
    pub const fn are_possible(self) -> bool {
        self.fabric_ns <= Self::MAX_NS
            && self.member_ns >= Self::MEMBER_MIN_NS
            && self.member_ns <= Self::MAX_NS
    }
}
