//! Planted defects of the runtime (mutants), to test the tests. Only under `--cfg canary`.

/// A defect that can be planted in the nodes of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(canary),
    expect(
        unreachable_pub,
        dead_code,
        reason = "public for tests of tests alone, some there alone"
    )
)]
pub enum NodeMutant {
    /// V16: a fence, and so every lock and atomic, does not wait.
    FenceReturnsAtOnce,
    /// The memory of removed members is settled at once, and their caches are trusted until their own
    /// thread has noticed.
    SettledAtOnce,
    /// WRITEs that were in flight when a link broke are not repeated.
    NotPlacedAgain,
    /// A call that is repeated over another link runs again.
    CallsRunAgain,
    /// The reply to a call with a broken link is not repeated.
    RepliesForgotten,
    /// The answer of a call is sent before its writes to global memory are visible.
    AnswersBeforeWrites,
}

#[cfg(canary)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<NodeMutant>> = const { std::cell::Cell::new(None) };
}

/// Plants a defect in everything that sessions do on this thread from now on.
#[cfg(canary)]
pub fn plant(mutant: Option<NodeMutant>) {
    PLANTED.set(mutant);
}

/// The defect of this thread, to be planted in a thread that works for it.
#[cfg(canary)]
pub fn planted() -> Option<NodeMutant> {
    PLANTED.get()
}

/// Whether this thread has the defect.
#[cfg(canary)]
pub(crate) fn is(mutant: NodeMutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// No thread has a defect.
#[cfg(not(canary))]
#[inline(always)]
pub(crate) const fn is(_: NodeMutant) -> bool {
    false
}
