//! What a state is made with, and what it says of itself.

use crate::setters::setters;
use crate::{Error, ErrorCode};
use farside_base::LineSize;

/// Options of a [`MemoryState`](super::MemoryState).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StateOptions {
    /// Bytes of the memory, a multiple of 64; 64 MiB by default. A state is opened with those that it was made with.
    pub memory_bytes: u64,
    /// Bytes of a segment of the log, a multiple of 4 KiB; 16 MiB by default. The contents of a record are at most a 16th of
    /// it, and at most 64 KiB.
    pub segment_bytes: u64,
    /// Most bytes of the log. By default the least with which it never fills: about 10 times `memory_bytes`, and 6
    /// segments and 6 MiB. Mostly it is much shorter: twice what is restated, or 4 segments.
    pub log_bytes_max: Option<u64>,
}

setters!(StateOptions { memory_bytes: u64, segment_bytes: u64, log_bytes_max: Option<u64> });

impl Default for StateOptions {
    fn default() -> Self {
        Self { memory_bytes: 64 << 20, segment_bytes: 16 << 20, log_bytes_max: None }
    }
}

/// Whose memory a state is of.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct StateIdentity {
    /// The name of the cluster, 1 to 64 bytes.
    pub cluster: String,
    /// The number of the node.
    pub node: u16,
    /// The generation of the node's number.
    pub generation: u16,
    /// Bytes of the memory.
    pub memory_bytes: u64,
}

impl StateIdentity {
    /// Checks that the state is of a cluster.
    ///
    /// # Errors
    /// `StateForeign` if it is of another one.
    pub fn check_cluster(&self, cluster: &str) -> Result<(), Error> {
        if self.cluster == cluster {
            return Ok(());
        }
        let text = format!("it is of the cluster {:?}, not {cluster:?}", self.cluster);
        Err(Error::with(ErrorCode::StateForeign, text))
    }
}

/// An allocation of a memory. Its offset is a multiple of its lines' bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Allocation {
    /// Bytes that its user has asked for, at most those of its lines.
    pub bytes: u64,
    /// Lines that it takes.
    pub lines: u64,
    /// The class of its lines: 0 is 64 B, 10 is 64 KiB.
    pub class: u8,
}

impl Allocation {
    pub(super) fn line_bytes(&self) -> Option<u64> {
        LineSize::from_class(self.class).map(|size| size.bytes() as u64)
    }

    /// Bytes of its lines.
    pub(super) fn span(&self) -> Option<u64> {
        self.lines.checked_mul(self.line_bytes()?)
    }
}

/// What opening a state has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Restored {
    /// Records of the state that were applied.
    pub records: u64,
    /// Bytes of the contents of those.
    pub bytes: u64,
    /// Allocations that exist.
    pub allocations: u64,
    /// Bytes of their lines.
    pub allocated_bytes: u64,
    /// The end of the log: of what was appended before, all up to here is in the state, and durable.
    pub end: u64,
    /// Records that were not committed and were cut off.
    pub cut: u64,
}

/// What a state has done since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StateStats {
    /// Bytes that writes had, equal ones included.
    pub written_bytes: u64,
    /// Bytes of the payloads that operations have logged.
    pub logged_bytes: u64,
    /// Bytes that passes have added to the log.
    pub restated_bytes: u64,
    /// Passes that have ended and trimmed the log.
    pub passes: u64,
}
