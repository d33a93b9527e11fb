//! Sleeping until another thread of this process wakes.

use crate::Waiter;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A waiter for fabrics with wakers in this process: a permit, as with `std::thread::park`, so that a
/// `wake` before the `wait` is not lost. For implementations of fabrics.
#[derive(Default, Debug)]
pub struct ThreadWaiter {
    permit: Mutex<bool>,
    arrived: Condvar,
}

impl Waiter for ThreadWaiter {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut permit = self.permit.lock().unwrap_or_else(PoisonError::into_inner);
        while !*permit {
            permit = match end {
                None => self.arrived.wait(permit).unwrap_or_else(PoisonError::into_inner),
                Some(end) => {
                    let left = end.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return false;
                    }
                    let waited = self.arrived.wait_timeout(permit, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *permit = false;
        true
    }

    fn wake(&self) {
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.arrived.notify_one();
    }
}
