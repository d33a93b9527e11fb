//! Names of conversations, and locks that survive panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a thread panicked under the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Names a conversation over a control stream, and the link that it is for. Never used twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Token(pub(crate) u64);
