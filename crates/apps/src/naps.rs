//! Waiting for memory that no event announces.

use farside::runtime::pause;
use std::time::Duration;

/// Attempts that only yield the processor.
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(20);
const NAP_MAX: Duration = Duration::from_micros(500);

/// The pauses between two attempts: at first the processor is yielded, then the thread sleeps, each time for longer.
#[derive(Debug)]
pub(crate) struct Naps {
    attempts: u32,
    nap: Duration,
}

impl Naps {
    pub(crate) const fn new() -> Self {
        Self { attempts: 0, nap: NAP }
    }

    /// Pauses.
    pub(crate) fn pause(&mut self) {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts <= YIELDS {
            pause(Duration::ZERO);
            return;
        }
        pause(self.nap);
        self.nap = (self.nap * 2).min(NAP_MAX);
    }
}
