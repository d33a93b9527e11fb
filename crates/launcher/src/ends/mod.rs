//! Ends of measured links and channels: a benchmark runs one, and its worker processes run the others.

pub mod channel;
pub mod pair;
pub mod task;
