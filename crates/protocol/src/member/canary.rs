//! Seeded defects, to test the tests. Only under `--cfg canary`.

/// A defect that a machine can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// A number is given again before all members have settled the removal of its last bearer.
    ReusedBeforeSettled,
    /// Memory lent under a number that was in use gets the generation of the memory before.
    GenerationKept,
    /// The lowest number coordinates, not the earliest member.
    LowestNumberCoordinates,
    /// What is heard of the death of a former bearer counts for the next one.
    FormerBurialCounts,
    /// A peer is heard when it has told of a death in the class of replies alone.
    BurialOvertakesRecalls,
    /// A node does not answer one that it had not told of a death.
    BurialUnanswered,
    /// A new coordinator does not wait for what others know.
    TakeoverWithoutReports,
    /// A view declares a node dead again that was found dead before.
    DeadTwice,
    /// A joiner goes on when its coordinator dies.
    JoinerOutlivesCoordinator,
    /// A joiner takes every broken link for a death.
    JoinerJudges,
    /// A new coordinator keeps members that it has no link to.
    UnlinkedKept,
    /// The question of a takeover does not void the former coordinator's late views.
    FormerCoordinatorHeard,
    /// A request for a link is refused if no view names the asker yet.
    EarlyPeerRefused,
    /// A death is settled before the others have said that they know of it.
    DeathSettledAtOnce,
    /// The process of a member that was removed and may live counts as ended.
    RemovedCountsAsEnded,
    /// Suspects are judged without a quorum.
    NoQuorum,
    /// A death leaves the count of a quorum before other members have confirmed it.
    QuorumShrinksAtDeath,
    /// Who still reaches somebody below answers a takeover.
    VotesForBothSides,
    /// A node that leaves does not wait until the others have processed what it sent.
    LeavesUnheard,
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
