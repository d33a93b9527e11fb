//! How this crate locks a mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, ignoring poison: a panic of another holder leaves the values sound.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
