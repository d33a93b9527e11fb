//! Statistics of a machine.

/// Counts since the machine was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Read requests sent to homes.
    pub reads_requested: u64,
    /// Write requests sent to homes, upgrades among them.
    pub writes_requested: u64,
    /// Write requests sent while a shared copy was held.
    pub upgrades_requested: u64,
    /// Operations that joined a request already in flight.
    pub operations_merged: u64,
    /// Clean copies dropped to make room.
    pub evictions_clean: u64,
    /// Owned lines returned to make room.
    pub evictions_dirty: u64,
    /// Write-backs that homes have confirmed.
    pub write_backs: u64,
    /// Lost lines of this home that were overwritten.
    pub lines_healed: u64,
    /// Recalls obeyed as a holder.
    pub recalls_obeyed: u64,
    /// Recalls that had to wait for a grant or a pin.
    pub recalls_deferred: u64,
    /// Lines sent directly to another requester, as an owner.
    pub lines_forwarded: u64,
    /// Requests of other nodes served as a home.
    pub requests_served: u64,
    /// Requests of other nodes refused as a home.
    pub requests_refused: u64,
    /// Recalls sent as a home.
    pub recalls_sent: u64,
    /// Lines of this home with their only copy at a node that died.
    pub lines_lost: u64,
    /// Lines of this home whose owner died, restored from the log.
    pub lines_restored: u64,
}
