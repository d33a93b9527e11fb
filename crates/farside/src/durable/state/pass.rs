//! How far a cleaning pass is.

/// A cleaning pass.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Pass {
    /// The position of its first record.
    pub(super) begin: u64,
    /// Whether it has restated the directory and the identity.
    pub(super) has_identity: bool,
    /// All allocations before this offset of the memory were restated, or are fresh since the beginning of the pass.
    pub(super) cursor: u64,
    /// Bytes that it has added to the log.
    pub(super) restated: u64,
    /// The cost since its last record, of pieces that are zero and have none.
    pub(super) unlogged: u64,
    /// The position after its last record, once that is appended.
    pub(super) end: Option<u64>,
}

impl Pass {
    pub(super) const fn new(begin: u64) -> Self {
        Self { begin, has_identity: false, cursor: 0, restated: 0, unlogged: 0, end: None }
    }
}
