//! Tests of all channels.

pub(super) mod network;
pub(super) mod suite;
