//! Planted defects that the tests must find, compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in a messenger or in WRITEs in flight.
    crate::messaging::canary => MessagingMutant {
        /// One more message than the peer has receives for.
        CreditOffByOne,
        /// All classes, and credit messages, share one pool of credits.
        SharedPool,
        /// The sequence number is not checked.
        SequenceUnchecked,
        /// Messages in flight when a link broke are not sent again.
        NothingSentAgain,
        /// WRITEs that landed before a link broke are posted again.
        WrittenAgain,
    }
}
