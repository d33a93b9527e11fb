//! Outcomes of operations on state.

/// The holder of a lock; zero if it is free.
pub(crate) type Holder = u64;

/// Outcome of an operation on state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// The helper's result; its output is written.
    Result(u64),
    /// Another call holds the lock.
    Held,
    /// The state belongs to the other scope.
    Elsewhere,
}

pub(super) fn done(status: i64) -> Done {
    Done::Result(status as u64)
}
