//! Ends of measured links and channels: a benchmark runs one, and its worker processes run the others.

pub(crate) mod channel;
pub(crate) mod pair;
pub(crate) mod task;
