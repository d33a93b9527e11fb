//! The requests in flight between two halves, and their possible effects under the given guarantees and
//! no others.

use super::memory::Bytes;
use farside_base::{LocalSlice, Memory, Operation, RegionId, RemoteSlice, Source};
use farside_protocol::channel::Name;

/// The guarantees of a network, as in `Capabilities`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Guarantees {
    /// Requests of a link take effect in order.
    pub message_order: bool,
    /// The words of a WRITE land in rising order.
    pub byte_order: bool,
    /// A completed WRITE has landed.
    pub completion_means_placed: bool,
}

/// A work request that has been posted.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PostedRequest {
    /// The half that posted it.
    pub(super) from: usize,
    /// Its target half.
    pub(super) to: usize,
    pub(super) name: Name,
    /// Its completion has not been reported yet.
    pub(super) told: bool,
    pub(super) fence: bool,
    pub(super) action: PostedVerb,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum PostedVerb {
    /// Words that have not landed, by ascending offset, and the immediate that follows them.
    Write {
        source: Origin,
        at: RemoteSlice,
        left: Option<Vec<(u64, Vec<u8>)>>,
        immediate: Option<u32>,
        bytes: u32,
    },
    /// The words sampled so far.
    Read {
        into: Vec<LocalSlice>,
        from: RemoteSlice,
        sampled: Vec<Option<Vec<u8>>>,
    },
    FetchAdd {
        at: RemoteSlice,
        add: u64,
        into: LocalSlice,
        before: Option<u64>,
    },
    Send {
        source: Origin,
        immediate: Option<u32>,
        arrived: bool,
    },
}

/// The source of a request's bytes: copied at posting, or still in memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Origin {
    Copied(Vec<u8>),
    Gather(Vec<LocalSlice>),
}

impl Origin {
    fn of(source: &Source<'_>) -> Self {
        match source {
            Source::Inline(bytes) => Self::Copied(bytes.to_vec()),
            Source::Gather(slices) => Self::Gather(slices.to_vec()),
        }
    }

    /// The current bytes.
    pub(super) fn sample(&self, regions: &[Bytes]) -> Vec<u8> {
        match self {
            Self::Copied(bytes) => bytes.clone(),
            Self::Gather(slices) => {
                let mut all = Vec::new();
                for slice in slices {
                    let mut part = vec![0; slice.bytes as usize];
                    let read = region(regions, slice.region).read(slice.offset, &mut part);
                    read.expect("a slice of the own memory");
                    all.extend(part);
                }
                all
            }
        }
    }
}

/// A region of a half by its number.
pub(super) fn region(regions: &[Bytes], id: RegionId) -> &Bytes {
    &regions[id.0 as usize]
}

impl PostedVerb {
    pub(super) fn of(operation: &Operation<'_>) -> Self {
        match *operation {
            Operation::Write { ref source, to, immediate } => {
                Self::Write { source: Origin::of(source), at: to, left: None, immediate, bytes: 0 }
            }
            Operation::Read { into, from } => {
                let bytes: u32 = into.iter().map(|slice| slice.bytes).sum();
                let words = words(from.offset, bytes as usize).len();
                Self::Read { into: into.to_vec(), from, sampled: vec![None; words] }
            }
            Operation::FetchAdd { at, add, into } => Self::FetchAdd { at, add, into, before: None },
            Operation::Send { ref source, immediate } => {
                Self::Send { source: Origin::of(source), immediate, arrived: false }
            }
            _ => panic!("a channel posts no other request"),
        }
    }

    /// READs and atomics, which later requests may overtake.
    pub(super) const fn fetches(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::FetchAdd { .. })
    }

    /// Whether it has taken full effect at the target.
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Write { left, immediate, .. } => {
                left.as_ref().is_some_and(Vec::is_empty) && immediate.is_none()
            }
            Self::Read { sampled, .. } => sampled.iter().all(Option::is_some),
            Self::FetchAdd { before, .. } => before.is_some(),
            Self::Send { arrived, .. } => *arrived,
        }
    }
}

/// The aligned words of a transfer: start within it, and bytes.
pub(super) fn words(offset: u64, bytes: usize) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut start = 0;
    while start < bytes {
        let end = (8 - (offset as usize + start) % 8 + start).min(bytes);
        all.push((start, end - start));
        start = end;
    }
    all
}
