//! Scheduling policies: the length of time slices, the order of verifications, and the placement of calls.

pub(crate) mod place_model;
pub(crate) mod placement_policy;
pub(crate) mod time_slice;
pub(crate) mod verification_queue;
