//! Planted defects that the tests must find: each is that of a published implementation, or one step away from the
//! correct code. Compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in a machine.
    crate::lock::canary => LockMutant {
        /// V1: a denied try-upgrade undoes too much: the authority drops the read lock.
        DeniedTryUndoes,
        /// V2: a recall is answered as if no locks were held.
        ReturnsNoHolders,
        /// V5: a second upgrader of a range waits for the first.
        UpgradersWait,
        /// V9: a try waits in the queue.
        TryWaits,
        /// V11: only equal ranges conflict.
        EqualRangesOnly,
        /// V11: all ranges of a line conflict.
        WholeLine,
        /// V12: new requests check holders only, not waiters.
        Barging,
        /// V12: readers join waiting readers without a bound.
        EndlessBatch,
        /// Requests queue in the order of arrival, however many a node has.
        NodesUnequal,
        /// V12: a delegate keeps its delegation while a session of its own waits.
        DelegateKeeps,
        /// V17: tokens are truncated to 32 bits on the wire.
        ShortTokens,
        /// A recall that overtook its delegation is answered as one for an earlier delegation.
        RecallNumberIgnored,
        /// A release that overtook the return is dropped.
        EarlyReleaseDropped,
        /// A cancellation that overtook the return is dropped.
        EarlyCancelDropped,
        /// A request that arrives after its own node became the delegate is queued after a recall that is never sent.
        MovedForgotten,
        /// A probe stops at the first session.
        ProbeNotForwarded,
        /// Waiters that came with a return send no probes.
        ReturnNotProbed,
        /// A waiter whose probe has closed one cycle sends no further probe.
        OneCycleEach,
        /// The oldest of a cycle is the victim.
        OldestIsVictim,
        /// A victim that starts over gets a new age.
        VictimForgetsAge,
        /// A delegate grants the same token again.
        TokenRepeated,
        /// A cancelled waiter leaves without waking the waiters after it in the queue.
        CancelWakesNobody,
        /// Locks of a dead node stay held.
        DeadStillHold,
        /// A delegation stays when its delegate has died.
        DeadDelegateKeeps,
        /// An unlock need not name the held mode.
        UnlockAnyMode,
        /// Idle delegations are kept without a bound.
        EndlessDelegations,
        /// The held lock is lost when a loan ends.
        LoanForgetsHolder,
        /// The tokens of a loan are granted again after it.
        LoanTokensAgain,
        /// A line is lent though a deferred request of a waiting session will start there.
        LoanDespiteDeferred,
        /// A line is lent though a session holds a lock of it.
        LoanWhileHeld,
        /// The next holder is not notified when the holder of a lock dies.
        AbandonedForgotten,
        /// The next holder is not notified when the delegate of a line dies.
        DeadDelegateUnmarked,
        /// A grant that reports a dead holder is undone or cancelled, and the next holder is not notified.
        UndoneTellsNobody,
        /// A home that leaves grants the requests that wait in its queues.
        DrainGrantsQueue,
        /// A home leaves while a lock of it is held.
        DrainEndsHeld,
    }
}
