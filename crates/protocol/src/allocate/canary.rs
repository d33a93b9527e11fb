//! Planted defects that the tests must find, compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in an allocator.
    crate::allocate::canary => AllocateMutant {
        /// A free does not note that there is a longer run now.
        RunForgotten,
        /// A large allocation may be freed up to a line before its end.
        EndUnchecked,
        /// Offset 0 is allocated like any other.
        ZeroHandedOut,
        /// A wholly free segment stays with its line size.
        SegmentKept,
    }
}
