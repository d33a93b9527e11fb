//! The kinds of operations of a workload.

/// The kinds of operations in measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Reads a record.
    Read,
    /// Changes fields of a record.
    Update,
    /// Adds a record.
    Insert,
    /// Reads a record, then changes fields of it; measured as one operation.
    ReadModifyWrite,
}

impl Operation {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Read, Self::Update, Self::Insert, Self::ReadModifyWrite];

    /// Its name in YCSB.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Update => "UPDATE",
            Self::Insert => "INSERT",
            Self::ReadModifyWrite => "READ-MODIFY-WRITE",
        }
    }
}
