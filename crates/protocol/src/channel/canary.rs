//! Seeded defects, to test the tests. Only under `--cfg canary`.

/// A defect that a messenger or a half of a channel can be built with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(not(canary), expect(unreachable_pub, reason = "public for tests of tests alone"))]
pub enum Mutant {
    /// One message more than the peer has receives for.
    CreditOffByOne,
    /// All classes, and credit messages, draw on one pool.
    SharedPool,
    /// The sequence number is not looked at.
    SequenceUnchecked,
    /// What was under way when a link broke is not sent again.
    NothingSentAgain,
    /// What has landed before a link broke is written again.
    WrittenAgain,
    /// A detached bell is written before what it announces.
    BellBeforeData,
    /// What was processed is not zeroed.
    NotZeroed,
    /// The word behind a message is not looked at.
    TrailerUnchecked,
    /// A message does not unset the bell of the one to come.
    NextBellNotUnset,
    /// A mailbox is used again before its release was acknowledged.
    SlotReusedEarly,
    /// The bell in a mailbox is not cleared when it is given back.
    BellNotCleared,
    /// A granted mailbox is not taken out of those that are free.
    SlotGrantedTwice,
    /// What a READ brought is taken though its checksum does not fit.
    ChecksumUnchecked,
    /// A sender goes by its fastest reader, and so reuses what others have not processed.
    StaleTail,
    /// A reader that comes late begins at the first message there ever was.
    WrongStart,
    /// What is reserved in a shared ring is written without a look whether there is room.
    TailUnchecked,
    /// A sender tells what it has reserved while it is reserving more.
    AnswersWhileFetching,
    /// What a living sender has reserved is passed together with what a dead one left.
    RepairSkipsLiving,
    /// The head of a ring is told where the receiver keeps its tail.
    HeadUponTail,
    /// A receiver whose ring is full of held messages takes the oldest for the next one.
    HeldTakenForNew,
    /// A notice that was acknowledged counts no more though it has not arrived.
    LateNoticeForgotten,
    /// What is to be acknowledged while another acknowledgement is under way stays untold.
    AcknowledgementForgotten,
    /// A sender of mailboxes READs the tail only when it needs room.
    TailNotAsked,
}

/// Which defect it has: none, unless built with `--cfg canary` and told so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Canary {
    #[cfg(canary)]
    mutant: Option<Mutant>,
}

impl Canary {
    /// No defect.
    pub(super) const NONE: Self = Self {
        #[cfg(canary)]
        mutant: None,
    };

    #[cfg(canary)]
    pub(super) const fn new(mutant: Mutant) -> Self {
        Self { mutant: Some(mutant) }
    }

    /// Whether it has this defect.
    #[cfg(canary)]
    pub(super) fn is(self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Nothing has a defect.
    #[cfg(not(canary))]
    pub(super) const fn is(self, _: Mutant) -> bool {
        false
    }
}
