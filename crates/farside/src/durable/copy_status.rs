//! What the copies of a log are, for other threads.

use crate::Error;
use crate::mutex::locked;
use std::sync::{Arc, Mutex};

/// What a log's copies are at the moment. A handle that other threads may read.
#[derive(Clone, Default, Debug)]
pub struct CopyStatus(Arc<Mutex<CopyCounts>>);

#[derive(Default, Debug)]
struct CopyCounts {
    lost: Vec<Error>,
    lent: usize,
    survives_power: bool,
}

impl CopyStatus {
    /// Returns the copies that the log continues without: an error with the address and the reason for each that its opening
    /// has not reached or has left out, and for each lost since.
    pub fn lost(&self) -> Vec<Error> {
        locked(&self.0).lost.clone()
    }

    /// Returns the number of copies in memory of other processes.
    pub fn in_memory(&self) -> usize {
        locked(&self.0).lent
    }

    /// Whether one of the copies is in a file that survives a loss of power.
    pub fn survives_power(&self) -> bool {
        locked(&self.0).survives_power
    }

    /// Notes further lost copies, and what the others are.
    pub(super) fn note(&self, lost: Vec<Error>, in_memory: usize, survives_power: bool) {
        let mut counts = locked(&self.0);
        counts.lost.extend(lost);
        (counts.lent, counts.survives_power) = (in_memory, survives_power);
    }
}
