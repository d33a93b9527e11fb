//! The deadline of a call that waits for several requests.

use super::client::{MemoryClient, RequestId};
use crate::Error;
use std::time::{Duration, Instant};

/// The end of a call that waits for several requests, each of which has what is left of its time.
///
/// ```
/// use farside::onesided::Deadline;
/// use std::time::Duration;
///
/// let deadline = Deadline::after(Duration::from_secs(1));
/// assert!(deadline.left() <= Duration::from_secs(1));
/// assert!(Deadline::after(Duration::ZERO).is_over());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    began: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Returns the deadline at this time from now.
    pub fn after(timeout: Duration) -> Self {
        Self { began: Instant::now(), timeout }
    }

    /// Returns what is left of the time.
    pub fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.began.elapsed())
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    /// Waits for a request and takes its outcome; discards it after an error.
    ///
    /// # Errors
    /// As [`MemoryClient::wait`].
    pub fn wait(&self, client: &mut MemoryClient, request: RequestId) -> Result<u64, Error> {
        client.wait_or_forget(request, self.left())
    }
}
