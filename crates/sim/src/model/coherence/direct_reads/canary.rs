//! Planted defects of direct reads that the model must find. Compiled only under `--cfg canary`.

farside_base::mutants! {
    /// A defect that can be enabled in the model of direct reads.
    crate::model::coherence::direct_reads::canary => DirectReadMutant {
        /// The tag word is loaded only after the copy.
        LooksAfterCopy,
        /// The tag word is not loaded again after the copy.
        RecheckMissing,
        /// The busy bit is ignored.
        BusyIgnored,
        /// The engine changes a level without a new version.
        LevelKeepsVersion,
        /// A tag word falls only after the grant has been delivered.
        FallsAfterGrant,
        /// A tag word rises when the first bytes land, before the acknowledgement.
        RisesOnLanding,
        /// A free leaves the tag word as it is until the line is used again.
        FreeLeavesTag,
        /// An allocation sets the tag word before it zeroes the bytes.
        TagBeforeZero,
        /// The line size in the tag word is not compared.
        LineSizeIgnored,
        /// The extent in the tag word is not compared.
        ExtentIgnored,
        /// A hit does not load the fence word.
        HitFenceIgnored,
        /// A direct read does not load the reader's fence word.
        ReaderFenceIgnored,
        /// The fence words are loaded before the copy only.
        FenceBeforeCopy,
        /// A fence word is stored after the reclaim.
        FenceAfterReclaim,
        /// The home's fence word is not loaded.
        HomeFenceIgnored,
        /// A snapshot checks one line after the other.
        SnapshotByLine,
    }
}
