//! Seeded defects, to test the tests. Only under `--cfg canary`.

/// A defect that an allocator can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// A free does not tell that a longer run is there now.
    RunForgotten,
    /// A large allocation may be freed up to a line before its end.
    EndUnchecked,
    /// Offset 0 is memory like any other.
    ZeroHandedOut,
    /// A wholly free segment goes on serving its line size.
    SegmentKept,
}

/// Which defect an allocator has: none, unless built with `--cfg canary` and told so.
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

    /// Whether the allocator has this defect.
    #[cfg(canary)]
    pub(super) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// No allocator has a defect.
    #[cfg(not(canary))]
    pub(super) const fn is(self, _: Mutant) -> bool {
        false
    }
}
