//! Planted defects of the runtime (mutants), to test the tests. Only under `--cfg canary`.

use farside_base::Planted;

farside_base::mutants! {
    /// A defect that can be planted in the nodes of a thread.
    crate::canary => NodeMutant {
        /// V16: a fence, and so every lock and atomic, does not wait.
        FenceReturnsAtOnce,
        /// The memory of removed members is settled at once, and their caches are trusted until their own
        /// thread has noticed.
        SettledAtOnce,
        /// WRITEs that were in flight when a link broke are not repeated.
        NotPlacedAgain,
        /// A call that is repeated over another link runs again.
        CallsRunAgain,
        /// The reply to a call with a broken link is not repeated.
        RepliesForgotten,
        /// A posted write does not wait for an earlier one of its session to the line.
        WritesPass,
        /// A copy in a file is written and not synced.
        CopyNotSynced,
        /// A log writes a group and does not sync it.
        LogNotSynced,
        /// A log that is opened syncs what follows its last mark, and does not write it again.
        LogNotWrittenAgain,
        /// A log that is opened does not sync at all.
        LogTrusted,
        /// A log that is opened leaves the records behind its end.
        LogCutForgotten,
        /// A log that is opened takes damage for records that were cut off.
        LogDamageCutOff,
        /// A log that is opened does not compare checksums.
        LogChecksumIgnored,
        /// A trim frees the segment with the position too.
        LogTrimmedTooFar,
        /// A log uses its device after a failure.
        LogFailureForgotten,
        /// The second segment of a group is synced alone.
        LogFirstSegmentNotSynced,
        /// Persistent memory: a sync does not write cache lines back.
        PersistentNotWrittenBack,
        /// Persistent memory: the last cache line of a range is not written back.
        PersistentLastLineNotWrittenBack,
        /// Persistent memory: no fence follows the write-backs.
        PersistentNotFenced,
        /// A remote persistent write: no FLUSH follows the WRITEs.
        RemoteNotFlushed,
        /// A remote persistent write: no FLUSH follows the commit word.
        RemoteWordNotFlushed,
        /// A remote persistent write: no READ follows the WRITEs.
        RemoteNotRead,
        /// A remote persistent write: READ is chosen although DDIO is not known to be off.
        RemoteReadUnknown,
        /// A remote persistent write: the completion of a SEND ends a step.
        RemoteSendEndsStep,
        /// The program at the target does not write cache lines back.
        RemoteStoreNotWrittenBack,
        /// The program at the target answers before a fence.
        RemoteStoreNotFenced,
        /// The program at the target stores the commit word before the records are kept.
        RemoteStoreWordNotBehind,
        /// A cleaning pass trims the log before what it has restated is durable.
        StateTrimmedBeforeDurable,
        /// A cleaning pass trims the log up to its own end.
        StateTrimmedTooFar,
        /// The record that restates an allocation zeroes it.
        StateRestatedZeroes,
        /// A cleaning pass restates bytes of before the last write, after it.
        StateRestatedStale,
        /// A cleaning pass does not restate the last piece of an allocation.
        StatePieceSkipped,
        /// A cleaning pass that a process before has begun is taken for one that has just begun.
        StatePassForgotten,
        /// An allocation is freed and nothing is logged.
        StateFreedNotLogged,
        /// An allocation begins with the bytes that its memory had before.
        StateFreshNotZeroed,
        /// The last changed granule of a write is not logged.
        StateChangeTooShort,
        /// A write with two changed ranges is logged as two records.
        StateWriteTorn,
        /// A cleaning pass is slower than the writes that fill the log.
        StateCleanedTooSlowly,
        /// A home with state grants a line before its record is durable.
        StateLoggedEarly,
        /// A fence does not wait for what is not durable.
        FenceForgetsState,
        /// A line of a home with state counts as durable when an earlier write-back of it has ended.
        StateWriteBackTooEarly,
        /// No session learns of the end of a home with state.
        StateLossNotTold,
        /// A home with state leaves though a lock of it is held.
        StateLocksEnded,
        /// A node that is drained does not copy again what was written since the first copy.
        DrainCopiesOnce,
        /// A node that is drained copies its memory while other nodes own lines of it.
        DrainKeepsOwners,
        /// The answer of a call is sent before its writes to global memory are visible.
        AnswersBeforeWrites,
    }
}

#[cfg(canary)]
thread_local! {
    static PLANTED: std::cell::Cell<Option<NodeMutant>> = const { std::cell::Cell::new(None) };
}

/// Plants a defect in everything that sessions do on this thread from now on.
#[cfg(canary)]
pub fn plant(mutant: Option<NodeMutant>) {
    PLANTED.set(mutant);
}

/// The defect of this thread, to be planted in a thread that works for it.
#[cfg(canary)]
pub fn planted() -> Option<NodeMutant> {
    PLANTED.get()
}

/// The nodes of this thread, for `mutant!`.
pub(crate) struct ThreadNodes {
    pub(crate) mutant: Planted<NodeMutant>,
}

/// Returns the nodes of this thread, with their defect.
#[cfg(canary)]
pub(crate) fn nodes() -> ThreadNodes {
    ThreadNodes { mutant: PLANTED.get().map_or(Planted::NONE, Planted::new) }
}

/// Returns the nodes of this thread: none has a defect.
#[cfg(not(canary))]
#[inline(always)]
pub(crate) const fn nodes() -> ThreadNodes {
    ThreadNodes { mutant: Planted::NONE }
}
