//! Seeded defects, to test the tests. Only under `--cfg canary`.

/// A defect that a messenger can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// One message more than the peer has receives for.
    CreditOffByOne,
    /// All classes, and credit messages, draw on one pool.
    SharedPool,
    /// The sequence number is not looked at.
    SequenceUnchecked,
}

/// Which defect a messenger has: none, unless built with `--cfg canary` and told so.
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

    /// Whether the messenger has this defect.
    #[cfg(canary)]
    pub(super) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// No messenger has a defect.
    #[cfg(not(canary))]
    pub(super) const fn is(self, _: Mutant) -> bool {
        false
    }
}
