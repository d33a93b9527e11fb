//! Planted defects that the tests must find, compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be planted in the machines of what is kept.
    crate::persist::canary => PersistMutant {
        /// What is being written counts as durable.
        DurableAtBegin,
        /// A sync that has failed is forgotten: the next one is believed.
        FailureForgotten,
        /// What was appended during a write counts as written.
        AllAppendedDurable,
        /// Two callers write at the same time.
        TwoLeaders,
    }
}
