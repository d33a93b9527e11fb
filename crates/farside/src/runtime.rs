//! The time, pauses and random numbers of a program: those of the machine, or of a simulation that runs the calling
//! thread.
//!
//! What waits for memory of other machines reads this clock and pauses by it, so that a deterministic simulation can
//! run it.

pub use farside_fabric::runtime::{Instant, pause, random};
