//! Seeded defects, to test the tests: each is one of a published implementation, or one step away
//! from what is right. Only under `--cfg canary`.

/// A defect that a machine can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// V1: a denied try-upgrade undoes too much: the read lock is forgotten by the arbiter.
    DeniedTryUndoes,
    /// V2: a recall is answered as if nothing were held.
    ReturnsNoHolders,
    /// V5: a second upgrader of a range waits for the first.
    UpgradersWait,
    /// V9: a try waits in the queue.
    TryWaits,
    /// V11: only equal ranges conflict.
    EqualRangesOnly,
    /// V11: all ranges of a line conflict.
    WholeLine,
    /// V12: newcomers look at holders only, not at who waits.
    Barging,
    /// V12: readers join waiting readers without a bound.
    EndlessBatch,
    /// V12: a delegate keeps its delegation while anybody of its own waits.
    DelegateKeeps,
    /// V17: tokens are cut to 32 bits on the wire.
    ShortTokens,
    /// A recall that overtook its delegation is answered as one of the past.
    RecallNumberIgnored,
    /// A release that overtook the return is dropped.
    EarlyReleaseDropped,
    /// A cancellation that overtook the return is dropped.
    EarlyCancelDropped,
    /// A request that meets its own node's delegation is queued behind a recall that is never sent.
    MovedForgotten,
    /// A probe stops at the first session.
    ProbeNotForwarded,
    /// Waiters that came with a return send no probes.
    ReturnNotProbed,
    /// A waiter whose probe has closed one cycle is not probed for again.
    OneCycleEach,
    /// The oldest of a cycle is the victim.
    OldestIsVictim,
    /// A victim that starts over is young again.
    VictimForgetsAge,
    /// A delegate grants the same token again.
    TokenRepeated,
    /// A cancelled waiter leaves without waking those behind it.
    CancelWakesNobody,
    /// Locks of a dead node stay held.
    DeadStillHold,
    /// Nothing is done about a delegation whose delegate died.
    DeadDelegateKeeps,
    /// An unlock need not name the mode that is held.
    UnlockAnyMode,
    /// Idle delegations are kept without bound.
    EndlessDelegations,
    /// A loan that ends forgets the lock that is held.
    LoanForgetsHolder,
    /// The tokens of a loan are granted again after it.
    LoanTokensAgain,
    /// A line is lent though a request of a waiting session will start there.
    LoanDespiteDeferred,
    /// A line is lent though somebody holds a lock of it.
    LoanWhileHeld,
    /// The holder of a lock dies and the next one is not told.
    AbandonedForgotten,
    /// The delegate of a line dies and the next holder is not told.
    DeadDelegateUnmarked,
    /// A grant that tells of a dead holder is undone or cancelled, and the next holder is not told.
    UndoneTellsNobody,
}

/// Which defect a machine has: none, unless built with `--cfg canary` and told so.
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

    /// Whether the machine has this defect.
    #[cfg(canary)]
    pub(super) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// No machine has a defect.
    #[cfg(not(canary))]
    pub(super) const fn is(self, _: Mutant) -> bool {
        false
    }
}
