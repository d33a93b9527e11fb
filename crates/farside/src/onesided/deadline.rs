//! The deadline of a call that waits for several requests.

use super::client::{MemoryClient, RemoteAddress, RequestId};
use crate::runtime::Instant;
use crate::{Error, ErrorCode};
use std::cell::Cell;
use std::time::Duration;

/// The end of a call that waits for several requests, each of which has what is left of its time. The time begins with
/// the first request that has not ended at once, so that a call whose requests have reads no clock.
///
/// ```
/// use farside::onesided::Deadline;
/// use std::time::Duration;
///
/// let deadline = Deadline::after(Duration::from_secs(1));
/// assert!(deadline.left() <= Duration::from_secs(1));
/// assert!(Deadline::after(Duration::ZERO).is_over());
/// ```
#[derive(Clone, Debug)]
pub struct Deadline {
    /// Set when the time begins.
    end: Cell<Option<Instant>>,
    timeout: Duration,
}

impl Deadline {
    /// Returns the deadline at this time from the first wait.
    pub const fn after(timeout: Duration) -> Self {
        Self { end: Cell::new(None), timeout }
    }

    /// Returns what is left of the time, which begins now if it has not before.
    pub fn left(&self) -> Duration {
        let now = Instant::now();
        let end = self.end.get().unwrap_or_else(|| now + self.timeout);
        self.end.set(Some(end));
        end.saturating_duration_since(now)
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
        match client.poll_request(request) {
            Ok(None) => client.wait_or_forget(request, self.left()),
            Ok(Some(value)) => Ok(value),
            Err(error) => Err(error),
        }
    }

    /// Reads a word of 8 bytes. *Blocks* for a round trip.
    ///
    /// # Errors
    /// As [`MemoryClient::read_word`] and [`MemoryClient::wait`].
    pub fn read_word(&self, client: &mut MemoryClient, at: RemoteAddress) -> Result<u64, Error> {
        let read = client.read_word(at)?;
        self.wait(client, read)
    }

    /// Replaces a word of 8 bytes that is `expected`, and returns the previous value. A lost compare-and-swap is resolved by
    /// reading the word: `new` must be a value that no other program stores, or one that all of them may.
    ///
    /// *Blocks* for a round trip.
    ///
    /// # Errors
    /// As [`MemoryClient::compare_swap`] and [`MemoryClient::wait`], never `Indeterminate`.
    pub fn replace(
        &self,
        client: &mut MemoryClient,
        at: RemoteAddress,
        (expected, new): (u64, u64),
    ) -> Result<u64, Error> {
        loop {
            let swapped = client.compare_swap(at, expected, new)?;
            match self.wait(client, swapped) {
                Err(error) if error.code == ErrorCode::Indeterminate => {}
                outcome => return outcome,
            }
            match self.read_word(client, at)? {
                now if now == expected => {}
                now if now == new => return Ok(expected),
                now => return Ok(now),
            }
        }
    }
}
