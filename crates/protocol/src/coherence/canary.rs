//! Planted defects that the tests must find: each is that of a published implementation of the same protocol, or one
//! step away from the correct code. Compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in a machine.
    crate::coherence::canary => CoherenceMutant {
        /// V1: a refused upgrade restores the copy that was recalled in the meantime.
        RefusalRestoresCopy,
        /// V2: a pinned line obeys a recall at once.
        PinIgnored,
        /// V3: a home queues the eviction of a grant that it recalls.
        EvictionQueuedBehindRecall,
        /// V4: an owner's level falls when its bytes have been placed, not before they are sent.
        LevelFallsAfterPlace,
        /// V6: an operation that a recall follows is performed again with the next grant.
        PerformedTwice,
        /// V7: a write is performed in the shared copy before its grant.
        EarlyWrite,
        /// V7: the bytes alone count as the grant (004 §2.4.2 says why they must not).
        DataIsEnough,
        /// V7: the grant alone counts as the bytes.
        GrantIsEnough,
        /// V8: waiting requests are served last in, first out, and copies are identified by node alone.
        QueueReorders,
        /// V10: a home starts the next request while the bytes of the last one are still being sent.
        HomeForgetsPlace,
        /// V10: a frame is free while its bytes are still being sent.
        FrameFreedEarly,
        /// V13: freeing a line sends no recalls.
        FreeRecallsNobody,
        /// V14: an eviction writes the home's memory before the home has agreed.
        EvictionWritesBack,
        /// V15: the home believes any dirty eviction, whatever grant it names.
        StaleEvictionBelieved,
        /// V17: grants are 32 bits wide.
        GrantsWrap,
        /// V18: a refused request keeps its frame.
        FrameLeaks,
        /// A home trusts the requester that it still has its copy.
        HeldBelieved,
        /// A recall whose grant has not arrived yet is forgotten.
        EarlyRecallForgotten,
        /// A home's own level falls after the bytes have been sent.
        HomeLevelFallsLate,
        /// An upgrade is granted before the sharers have acknowledged.
        AcksNotAwaited,
        /// The home serves its stale bytes of a line with a dead owner.
        LostServed,
        /// A requester waits for bytes from a dead node.
        DeadSupplierAwaited,
        /// A frame is freed while a dead node's last bytes may still arrive.
        StrayForgotten,
        /// A home forgets that a new sharer evicted its copy before the acknowledgement that made it a sharer.
        EarlyLeaverKept,
        /// A waiting recall still names a dead requester when another node gets its number.
        FormerRequesterKept,
        /// A holder stays the owner while its line is written back: later writes count as clean.
        WriteBackKeepsOwner,
        /// A home reports a line as written back without having recalled its owner.
        WrittenEarly,
        /// A home ends an owner's grant while the bytes of its write-back are still in flight.
        WriteBackNotAwaited,
        /// A holder that has returned its bytes ignores every recall that crosses them.
        CrossedRecallIgnored,
        /// A home counts a new sharer that has acknowledged its recall already as one that keeps its copy.
        CrossedCopyKept,
        /// A lost line is readable before the write that overwrites it has stored its bytes.
        HealReadsStale,
        /// A lost line is healed by a write to a part of it.
        HealByPart,
        /// A lost line is healed while its removed owner may still write the home's memory.
        HealUnderLateBytes,
        /// A home that logs grants a line before its record is durable.
        GrantedBeforeLogged,
        /// A home that logs lets an owner send its bytes to the next one.
        LoggedForwarded,
        /// What a home's own node wrote is not logged at the end of a pin.
        UnpinNotLogged,
        /// What a home's own node wrote is not logged.
        OwnWriteNotLogged,
        /// A dead owner's line keeps the bytes that were landing.
        NotRestored,
        /// A dead owner's line is restored while its bytes may still land.
        RestoredUnderLateBytes,
    }
}
