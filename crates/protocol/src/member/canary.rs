//! Planted defects that the tests must find, compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in a machine.
    crate::member::canary => MemberMutant {
        /// A number is reused before all members have settled the removal of the last node that had it.
        ReusedBeforeSettled,
        /// Memory lent under a reused number keeps the previous memory's generation.
        GenerationKept,
        /// An ordinary node is given the number of a node with state that is away.
        StateNumberReused,
        /// A node with state returns before all members have settled its removal.
        ReturnedBeforeSettled,
        /// The lowest number coordinates, not the earliest member.
        LowestNumberCoordinates,
        /// A notification of the death of a previous node counts for the next one with its number.
        FormerBurialCounts,
        /// A peer counts as notified after its death notification in the class of replies alone.
        BurialOvertakesRecalls,
        /// A node does not answer a peer that it had not notified of a death.
        BurialUnanswered,
        /// A new coordinator does not wait for the reports of others.
        TakeoverWithoutReports,
        /// A view declares a node dead a second time.
        DeadTwice,
        /// A joiner continues when its coordinator dies.
        JoinerOutlivesCoordinator,
        /// A joiner treats every broken link as a death.
        JoinerJudges,
        /// A new coordinator keeps members without a link to it.
        UnlinkedKept,
        /// The question of a takeover does not void the former coordinator's late views.
        FormerCoordinatorHeard,
        /// A link request is refused if no view names the requester yet.
        EarlyPeerRefused,
        /// A death is settled before the other members have confirmed that they know of it.
        DeathSettledAtOnce,
        /// The process of a removed member that may be alive counts as ended.
        RemovedCountsAsEnded,
        /// Suspects are judged without a quorum.
        NoQuorum,
        /// A dead node leaves the count of a quorum before other members have confirmed its death.
        QuorumShrinksAtDeath,
        /// A member that still reaches an earlier member than the asker answers its takeover.
        VotesForBothSides,
        /// A witness does not count in a quorum.
        WitnessUncounted,
        /// The casting vote of a tie is that of the earliest voter, a witness or not.
        WitnessBreaksTies,
        /// A quorum may consist of witnesses while others lend memory.
        WitnessesSuffice,
        /// A witness with a broken link is removed no sooner than a member that lends memory.
        WitnessJudgedAsLender,
        /// The number of a node that leaves with its memory saved is given to others.
        SavedMemoryForgotten,
        /// Members that have heard of the leave of a node that saved its memory keep its number, whatever their
        /// coordinator knows.
        SavedMemoryUndecided,
        /// A node that leaves does not wait until the others have processed its messages.
        LeavesUnheard,
    }
}
