//! Planted defects that the tests must find, compiled only under `--cfg canary`.

/// A defect that can be enabled in a messenger or in WRITEs in flight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum MessagingMutant {
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

/// The enabled defect: none, unless built with `--cfg canary` and set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct MessagingCanary {
    #[cfg(canary)]
    mutant: Option<MessagingMutant>,
}

impl MessagingCanary {
    #[cfg(canary)]
    pub(super) const fn new(mutant: MessagingMutant) -> Self {
        Self { mutant: Some(mutant) }
    }

    /// Whether it has this defect.
    #[cfg(canary)]
    pub(super) fn is(self, mutant: MessagingMutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Nothing has a defect.
    #[cfg(not(canary))]
    pub(super) const fn is(self, _: MessagingMutant) -> bool {
        false
    }
}
