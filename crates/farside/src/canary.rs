//! Seeded defects of the runtime, to test the tests. Only under `--cfg canary`.

/// A defect that the nodes of a thread can be given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(
    not(canary),
    expect(
        unreachable_pub,
        dead_code,
        reason = "public for tests of tests alone, some there alone"
    )
)]
pub enum Mutant {
    /// V16: a fence, and so every lock and atomic, waits for nothing.
    FenceReturnsAtOnce,
    /// The memory of members that were removed settles at once, and what they have cached counts until
    /// their own thread has noticed.
    SettledAtOnce,
    /// Bytes that were on their way when a link broke are not written again.
    NotPlacedAgain,
    /// A call that is asked for again over another link runs again.
    CallsRunAgain,
    /// The reply to a call whose link broke is not repeated.
    RepliesForgotten,
    /// The answer of a call goes before what it wrote to global memory is visible.
    AnswersBeforeWrites,
}

#[cfg(canary)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Plants a defect in whatever sessions do on this thread from now on.
#[cfg(canary)]
pub fn plant(mutant: Option<Mutant>) {
    PLANTED.set(mutant);
}

/// The defect of this thread, for one that works for it.
#[cfg(canary)]
pub fn planted() -> Option<Mutant> {
    PLANTED.get()
}

/// Whether this thread has the defect.
#[cfg(canary)]
pub(crate) fn is(mutant: Mutant) -> bool {
    PLANTED.get() == Some(mutant)
}

/// Nobody has a defect.
#[cfg(not(canary))]
#[inline(always)]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}
