//! Planted defects that the tests must find, compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in a half of a channel.
    crate::channel::canary => ChannelMutant {
        /// One more message than the peer has receives for.
        CreditOffByOne,
        /// A detached bell is written before the message that it announces.
        BellBeforeData,
        /// Processed messages are not zeroed.
        NotZeroed,
        /// The word after a message is not checked.
        TrailerUnchecked,
        /// A message does not clear the bell of the next one.
        NextBellNotUnset,
        /// A mailbox is reused before its release was acknowledged.
        SlotReusedEarly,
        /// The bell in a mailbox is not cleared when the mailbox is released.
        BellNotCleared,
        /// A granted mailbox stays in the list of free ones.
        SlotGrantedTwice,
        /// Bytes fetched by a READ are accepted with a wrong checksum.
        ChecksumUnchecked,
        /// A sender uses the tail of its fastest reader, and reuses memory that others have not processed.
        StaleTail,
        /// A late reader begins at the first message ever sent.
        WrongStart,
        /// Reserved space of a shared ring is written without a check for room.
        TailUnchecked,
        /// A sender answers a query about its reservations while it is reserving more.
        AnswersWhileFetching,
        /// The reservations of a living sender are skipped together with those of a dead one.
        RepairSkipsLiving,
        /// The head of a ring is written over the receiver's tail.
        HeadUponTail,
        /// A receiver with a ring full of held messages takes the oldest for the next one.
        HeldTakenForNew,
        /// An acknowledged notice no longer counts, though it has not arrived.
        LateNoticeForgotten,
        /// An acknowledgement that is due while another one is in flight is dropped.
        AcknowledgementForgotten,
        /// A sender of mailboxes READs the tail only when it needs room.
        TailNotAsked,
    }
}
