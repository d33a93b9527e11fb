//! Seeded defects: each is one that a published implementation of the same protocol has, or one step
//! away from it. They exist to test the tests, and only under `--cfg canary`.

/// A defect that a machine can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// V1: a refused upgrade restores the copy that was recalled in the meantime.
    RefusalRestoresCopy,
    /// V2: a pinned line obeys a recall at once.
    PinIgnored,
    /// V3: a home queues the eviction of a grant that it recalls.
    EvictionQueuedBehindRecall,
    /// V4: an owner's level falls when its bytes have been placed, not before they leave.
    LevelFallsAfterPlace,
    /// V6: an operation that a recall follows is performed again with the next grant.
    PerformedTwice,
    /// V7: a write is performed in the shared copy before its grant.
    EarlyWrite,
    /// V7: the bytes are taken for the grant (004 §2.4.2 says why they must not be).
    DataIsEnough,
    /// V7: the grant is taken for the bytes.
    GrantIsEnough,
    /// V8: waiting requests are taken last in, first out, and copies are told apart by node alone.
    QueueReorders,
    /// V10: a home takes the next request while the bytes of the last one are still being sent.
    HomeForgetsPlace,
    /// V10: a frame is free while its bytes are still being sent.
    FrameFreedEarly,
    /// V13: freeing a line recalls nobody.
    FreeRecallsNobody,
    /// V14: an eviction writes the home's memory before the home has agreed.
    EvictionWritesBack,
    /// V15: the home believes any dirty eviction, whatever grant it names.
    StaleEvictionBelieved,
    /// V17: grants are 32 bits wide.
    GrantsWrap,
    /// V18: a refused request keeps its frame.
    FrameLeaks,
    /// A home believes the requester that it still has its copy.
    HeldBelieved,
    /// A recall whose grant has not arrived yet is forgotten.
    EarlyRecallForgotten,
    /// A home's own level falls after the bytes have left.
    HomeLevelFallsLate,
    /// An upgrade is granted before the sharers have acknowledged.
    AcksNotAwaited,
    /// A line whose owner has died is served from the home's old bytes.
    LostServed,
    /// A requester waits for bytes from a node that is dead.
    DeadSupplierAwaited,
    /// A frame is free while a dead node's last bytes may still come.
    StrayForgotten,
    /// A home forgets that a new sharer left before the acknowledgement that made it one.
    EarlyLeaverKept,
    /// A recall that waits still names a dead requester when another node gets its number.
    FormerRequesterKept,
    /// A holder stays the owner while its line is written back: what is written meanwhile passes for clean.
    WriteBackKeepsOwner,
    /// A home says that it has the bytes of a line whose owner it has not recalled.
    WrittenEarly,
    /// A lost line is readable before the write that covers it has put its bytes there.
    HealReadsStale,
    /// A lost line is healed by a write of a part of it.
    HealByPart,
    /// A lost line is healed while its removed owner may still write the home's memory.
    HealUnderLateBytes,
}

#[cfg(canary)]
impl Mutant {
    /// Every defect.
    pub const ALL: &'static [Self] = &[
        Self::RefusalRestoresCopy,
        Self::PinIgnored,
        Self::EvictionQueuedBehindRecall,
        Self::LevelFallsAfterPlace,
        Self::PerformedTwice,
        Self::EarlyWrite,
        Self::DataIsEnough,
        Self::GrantIsEnough,
        Self::QueueReorders,
        Self::HomeForgetsPlace,
        Self::FrameFreedEarly,
        Self::FreeRecallsNobody,
        Self::EvictionWritesBack,
        Self::StaleEvictionBelieved,
        Self::GrantsWrap,
        Self::FrameLeaks,
        Self::HeldBelieved,
        Self::EarlyRecallForgotten,
        Self::HomeLevelFallsLate,
        Self::AcksNotAwaited,
        Self::LostServed,
        Self::DeadSupplierAwaited,
        Self::StrayForgotten,
        Self::EarlyLeaverKept,
        Self::FormerRequesterKept,
        Self::WriteBackKeepsOwner,
        Self::WrittenEarly,
        Self::HealReadsStale,
        Self::HealByPart,
        Self::HealUnderLateBytes,
    ];
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
