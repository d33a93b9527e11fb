//! Planted defects that the tests must find, compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in the executor's machine or a caller's window.
    crate::call::canary => CallMutant {
        /// A repeated request is run a second time.
        RunAgain,
        /// A reply that was lost with its link is not repeated.
        ReplyForgotten,
        /// A request that runs when its link breaks is answered over the next link before it was repeated there.
        RepliedUnasked,
        /// A caller does not repeat the requests that were in flight.
        NothingSentAgain,
        /// A resumed session begins with fresh slots.
        SlotsForgotten,
        /// The time that a call used is not charged to its session.
        NothingCharged,
        /// The time that a call used is not charged to its tenant.
        TenantsUncharged,
        /// The lag of a session is dropped when it ends.
        DebtShed,
        /// An ended session still counts towards its tenant's limit.
        PlacesKept,
        /// An object that is no longer being registered still counts.
        ReservationsKept,
        /// A program is erased with the first session that ends.
        ErasedEarly,
        /// A call that was cancelled stays in the schedule.
        CancelledRuns,
    }
}
