//! Memory that calls access, by distance: local, remote, or global and coherent.

pub(crate) mod chunked;
pub(crate) mod direct_loads;
pub(crate) mod global;
pub(crate) mod local;
pub(crate) mod regions;
pub(crate) mod remote;
