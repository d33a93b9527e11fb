//! Seeded defects, to test the tests. Only under `--cfg canary`.

/// A defect that the executor's machine or a caller's window can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// A request that is sent again is run again.
    RunAgain,
    /// A reply that was lost with its link is not repeated.
    ReplyForgotten,
    /// What runs when its link breaks is answered over the next one before it was asked there.
    RepliedUnasked,
    /// A caller does not send again what was under way.
    NothingSentAgain,
    /// A session that was resumed begins with fresh slots.
    SlotsForgotten,
    /// What a call has used is not charged to its session.
    NothingCharged,
    /// What a call has used is not charged to its tenant.
    TenantsUncharged,
    /// A session that ends takes its debt with it.
    DebtShed,
    /// A session that ends goes on counting towards its tenant's.
    PlacesKept,
    /// An object that is no longer being registered goes on counting.
    ReservationsKept,
    /// A program is erased with the first session that ends.
    ErasedEarly,
    /// A call that was cancelled stays in the schedule.
    CancelledRuns,
}

/// Which defect it has: none, unless built with `--cfg canary` and told so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Canary {
    #[cfg(canary)]
    mutant: Option<Mutant>,
}

impl Canary {
    #[cfg(canary)]
    pub(super) const fn new(mutant: Mutant) -> Self {
        Self { mutant: Some(mutant) }
    }

    #[cfg(canary)]
    pub(super) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    #[cfg(not(canary))]
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "the same face as with defects")]
    pub(super) const fn is(self, _mutant: Mutant) -> bool {
        false
    }
}
