//! Options and counters of a client.

use super::vector::VectorCosts;
use crate::setters::setters;
use std::time::Duration;

/// Options of a [`MemoryClient`](super::MemoryClient).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryClientOptions {
    /// Most requests whose outcomes were not taken; 1,024 by default.
    pub requests_max: u32,
    /// How long a lost connection is established again before its requests fail; 10 s by default, zero: not.
    pub reconnect: Duration,
    /// What decides how lists of ranges are moved ([`VectorIo::Auto`](super::VectorIo::Auto)).
    pub vector_costs: VectorCosts,
    /// Whether requests of at most 64 KiB end within their calls where the processor of the client moves their bytes
    /// (shared memory), instead of being queued, posted and completed; true by default.
    pub in_call: bool,
}

/// What a client has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct MemoryClientStats {
    /// Times that work requests were posted: doorbells of an adapter.
    pub doorbells: u64,
    /// Work requests, posted or carried out within calls.
    pub work_requests: u64,
    /// Copies to and from staging memory.
    pub copies: u64,
    /// Work requests that were carried out within calls ([`MemoryClientOptions::in_call`]): without a doorbell.
    pub in_call: u64,
}

impl MemoryClientStats {
    /// Counts work requests that the port has taken at once.
    pub(super) const fn posted(&mut self, work_requests: usize) {
        self.doorbells += (work_requests > 0) as u64;
        self.work_requests += work_requests as u64;
    }

    /// Counts work requests that were carried out within a call.
    pub(super) const fn carried_out(&mut self, work_requests: u64) {
        self.in_call += work_requests;
        self.work_requests += work_requests;
    }
}

setters!(MemoryClientOptions {
    requests_max: u32,
    reconnect: Duration,
    vector_costs: VectorCosts,
    in_call: bool
});

impl Default for MemoryClientOptions {
    fn default() -> Self {
        Self {
            requests_max: 1024,
            reconnect: Duration::from_secs(10),
            vector_costs: VectorCosts::default(),
            in_call: true,
        }
    }
}
