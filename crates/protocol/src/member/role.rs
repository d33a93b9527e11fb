//! What a process lends to its cluster, and whether it counts in a quorum.

/// The role of a member, fixed for its whole life.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MemberRole {
    /// It lends no memory, and counts in a quorum only if no member lends memory and none is a witness.
    #[default]
    Program,
    /// It lends no memory and uses none, and counts in a quorum: see `membership/quorum.rs`.
    Witness,
    /// It lends memory, and counts in a quorum.
    Lender,
}

impl MemberRole {
    /// Whether the process lends memory.
    pub const fn lends(self) -> bool {
        matches!(self, Self::Lender)
    }

    /// Whether the process is a witness.
    pub const fn is_witness(self) -> bool {
        matches!(self, Self::Witness)
    }
}
