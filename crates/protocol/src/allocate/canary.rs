//! Planted defects that the tests must find, compiled only under `--cfg canary`.

/// A defect that can be enabled in an allocator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum AllocateMutant {
    /// A free does not note that there is a longer run now.
    RunForgotten,
    /// A large allocation may be freed up to a line before its end.
    EndUnchecked,
    /// Offset 0 is allocated like any other.
    ZeroHandedOut,
    /// A wholly free segment stays with its line size.
    SegmentKept,
}

/// The enabled defect: none, unless built with `--cfg canary` and set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct AllocateCanary {
    #[cfg(canary)]
    mutant: Option<AllocateMutant>,
}

impl AllocateCanary {
    #[cfg(canary)]
    pub(super) const fn new(mutant: AllocateMutant) -> Self {
        Self { mutant: Some(mutant) }
    }

    /// Whether the allocator has this defect.
    #[cfg(canary)]
    pub(super) fn is(self, mutant: AllocateMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// No allocator has a defect.
    #[cfg(not(canary))]
    pub(super) const fn is(self, _: AllocateMutant) -> bool {
        false
    }
}
