//! Kinds of records, and what a log writes at a time.

/// Kinds of records of the log itself: how far it was durable when a group was written; the rest of a segment is unused.
pub(super) const MARK: u8 = 255;
pub(super) const SEGMENT_END: u8 = 254;
/// Bytes that wait to be written, above which an append writes them itself.
pub(super) const STAGED_BYTES_MAX: usize = 1 << 20;
/// The largest kind of a record of a program.
pub const RECORD_KIND_MAX: u8 = 253;

/// What a record of a [`DurableLog`](super::DurableLog) is, for its program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RecordTag {
    /// 1 to [`RECORD_KIND_MAX`].
    pub kind: u8,
    /// Any number.
    pub counter: u64,
    /// Any number.
    pub address: u64,
}
