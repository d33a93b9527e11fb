//! Options, and the sizes that follow from them: the log never fills.
//!
//! A pass restates at most one record of 160 B (with a mark of the log) for each 64 B of the memory, so with what segments
//! leave unused, and an eighth for bytes that are scanned, its cost is at most `pass`. While it restates two bytes, at most
//! one is appended beside it; then it waits until its end is durable, within which the log appends at most 2 MiB more, since
//! it writes by itself what waits. So a pass that begins at a length of `L` ends before `L + headroom`, and leaves less
//! than `headroom` and a segment. Passes begin at or below that length, or right after the pass before.

use super::super::copy_header::COPY_HEAD_BYTES;
use super::types::StateOptions;
use crate::{Error, ErrorCode};

/// The largest memory: offsets of global addresses have 42 bits.
const MEMORY_BYTES_MAX: u64 = 1 << 42;
/// The smallest segment.
const SEGMENT_BYTES_MIN: u64 = 4096;
/// The unit of allocations: the smallest line.
const UNIT: u64 = 64;
/// Most bytes in a log of the record that restates a unit, with a mark.
const UNIT_RECORD: u64 = 160;
/// Most bytes of a pass besides its allocations.
const FRAME: u64 = 512;
/// Most bytes that are appended before the end of a pass is durable: two groups of 1 MiB, and what segments leave unused.
const NOT_DURABLE: u64 = 3 << 20;
/// Most bytes of a record's contents.
const PIECE_MAX: u64 = 64 << 10;
/// Most bytes of any record of a state, in all versions of it: a piece with its lengths and offsets.
pub(super) const RECORD_MAX: usize = 2 * PIECE_MAX as usize;
/// Bytes that a pass may scan for each byte of its cost.
pub(super) const SCANNED_PER_BYTE: u64 = 8;

/// The smallest segment of a state in copies: small enough for memory of some megabytes.
const COPIES_SEGMENT_BYTES: u64 = 1 << 20;
/// A state in copies has at most this many segments for as many bytes as its memory: copies have room for more than ten
/// times as many.
const MEMORY_SEGMENTS: u64 = 128;

/// Sizes of a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StateSizes {
    pub(super) segment_bytes: u64,
    /// Most bytes of the contents of a record.
    pub(super) piece: u64,
    /// What a pass may add to the log, with what is appended meanwhile.
    pub(super) headroom: u64,
    pub(super) log_bytes_max: u64,
}

impl StateSizes {
    /// Returns the sizes of options.
    pub(super) fn of(options: &StateOptions) -> Result<Self, Error> {
        let StateOptions { memory_bytes: memory, segment_bytes: segment, .. } = *options;
        let wrong = |text: String| Err(Error::with(ErrorCode::BadConfiguration, text));
        if memory == 0 || memory > MEMORY_BYTES_MAX || !memory.is_multiple_of(UNIT) {
            return wrong(format!(
                "memory_bytes is {memory}; it is a multiple of 64, at most 4 TiB"
            ));
        }
        if !(SEGMENT_BYTES_MIN..=1 << 40).contains(&segment) || !segment.is_multiple_of(4096) {
            return wrong(format!(
                "segment_bytes is {segment}: 4 KiB to 1 TiB, a multiple of 4 KiB"
            ));
        }
        let pass =
            (memory / UNIT * UNIT_RECORD + FRAME + memory / SCANNED_PER_BYTE) * 5 / 4 + segment;
        let headroom = pass + pass / 2 + NOT_DURABLE + segment;
        let least = (2 * headroom + 4 * segment).next_multiple_of(segment);
        let log_bytes_max = options.log_bytes_max.unwrap_or(least);
        if log_bytes_max < least {
            let text = format!(
                "log_bytes_max is {log_bytes_max}; a memory of {memory} B needs at least {least}"
            );
            return wrong(text);
        }
        let piece = (segment / 16).min(PIECE_MAX);
        Ok(Self { segment_bytes: segment, piece, headroom, log_bytes_max })
    }

    /// The length of the log above which a pass begins, when the pass before has restated `live` bytes.
    pub(super) fn pass_from(&self, live: u64) -> u64 {
        let largest = self.log_bytes_max - self.headroom - 3 * self.segment_bytes;
        live.saturating_mul(2).max(4 * self.segment_bytes).min(largest)
    }
}

impl StateOptions {
    /// Options of a state in copies.
    pub(crate) fn in_copies(memory_bytes: u64) -> Self {
        let segment_bytes = (memory_bytes / MEMORY_SEGMENTS).next_power_of_two();
        Self::default()
            .memory_bytes(memory_bytes)
            .segment_bytes(segment_bytes.max(COPIES_SEGMENT_BYTES))
    }

    /// Returns the bytes that the state takes in each copy.
    ///
    /// # Errors
    /// `BadConfiguration` for sizes out of their range.
    pub(crate) fn copy_bytes(&self) -> Result<u64, Error> {
        Ok(COPY_HEAD_BYTES + self.log_bytes_min()?)
    }

    /// Returns the least [`log_bytes_max`](Self::log_bytes_max) with which the log never fills.
    ///
    /// # Errors
    /// `BadConfiguration` for sizes out of their range.
    pub fn log_bytes_min(&self) -> Result<u64, Error> {
        let sizes = StateSizes::of(&self.clone().log_bytes_max(None))?;
        Ok(sizes.log_bytes_max)
    }
}
