//! What a state has: the image of the memory, its allocations, the directory. Records are applied to it when they are
//! appended and when they are read back, by the same function.

use super::record::StateRecord;
use super::types::{Allocation, StateIdentity};
use crate::canary;
use farside_base::LineSize;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes for which it is remembered whether any is not zero.
const BLOCK: u64 = 64 << 10;

/// How records are applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RecordOrigin {
    /// They are appended.
    New,
    /// They are read back from the first one of the log on.
    WholeLog,
    /// They are read back, and earlier ones were trimmed: records may name allocations that are not known.
    TrimmedLog,
}

/// The contents of a memory.
pub(super) struct Contents {
    pub(super) image: Vec<u8>,
    /// A bit for each block: clear if all of it is zero.
    written: Vec<u64>,
    pub(super) allocations: BTreeMap<u64, Allocation>,
    pub(super) directory: Option<(u64, u64)>,
    pub(super) identity: Option<StateIdentity>,
    /// It is being saved, and is not whole.
    pub(super) is_saving: bool,
}

impl Contents {
    pub(super) fn new(memory_bytes: u64) -> Self {
        let blocks = memory_bytes.div_ceil(BLOCK).div_ceil(64);
        Self {
            // Zeroed by the system when it is first accessed.
            image: vec![0; memory_bytes as usize],
            written: vec![0; blocks as usize],
            allocations: BTreeMap::new(),
            directory: None,
            identity: None,
            is_saving: false,
        }
    }

    /// Returns the allocation that contains an offset, with its range.
    pub(super) fn allocation_at(&self, offset: u64) -> Option<(Range<u64>, Allocation)> {
        let (start, allocation) = self.allocations.range(..=offset).next_back()?;
        let range = *start..start + allocation.span()?;
        range.contains(&offset).then_some((range, *allocation))
    }

    /// Returns the first allocation that begins at an offset or after it.
    pub(super) fn allocation_from(&self, offset: u64) -> Option<(Range<u64>, Allocation)> {
        let (start, allocation) = self.allocations.range(offset..).next()?;
        Some((*start..start + allocation.span()?, *allocation))
    }

    /// Returns the bytes of a range.
    pub(super) fn bytes(&self, range: Range<u64>) -> &[u8] {
        &self.image[range.start as usize..range.end as usize]
    }

    /// Whether a range may have a byte that is not zero.
    pub(super) fn is_written(&self, range: Range<u64>) -> bool {
        blocks(range).any(|block| self.written[block / 64] & 1 << (block % 64) != 0)
    }

    /// Checks whether a record can be applied; returns why not.
    pub(super) fn check(
        &self,
        record: &StateRecord<'_>,
        origin: RecordOrigin,
    ) -> Result<(), String> {
        let is_partial = origin == RecordOrigin::TrimmedLog;
        match record {
            StateRecord::Identity(new) | StateRecord::Saving(new) => match &self.identity {
                Some(identity) if identity != new => Err(format!("{new:?} after {identity:?}")),
                _ => Ok(()),
            },
            StateRecord::Directory { offset, lines } => {
                let size = LineSize::MIN.bytes() as u64;
                let end = lines.checked_mul(size).and_then(|bytes| bytes.checked_add(*offset));
                match end.is_some_and(|end| end <= self.image.len() as u64) {
                    true => Ok(()),
                    false => Err(format!("a directory of {lines} lines at {offset}")),
                }
            }
            StateRecord::Fresh { offset, allocation } => self.check_free(*offset, *allocation),
            StateRecord::Freed { offset } => {
                match is_partial || self.allocations.contains_key(offset) {
                    true => Ok(()),
                    false => Err(format!("no allocation begins at {offset}")),
                }
            }
            StateRecord::Write { offset, bytes } | StateRecord::RestatedBytes { offset, bytes } => {
                self.check_bytes(*offset, bytes.len(), is_partial)
            }
            StateRecord::WriteTwo { offset, first, second_offset, second } => {
                self.check_bytes(*offset, first.len(), is_partial)?;
                self.check_bytes(*second_offset, second.len(), is_partial)
            }
            StateRecord::Restated { offset, allocation, bytes } => {
                match self.allocations.get(offset) {
                    Some(known) if known != allocation => {
                        return Err(format!("{allocation:?} instead of {known:?} at {offset}"));
                    }
                    Some(_) => {}
                    None => self.check_free(*offset, *allocation)?,
                }
                match allocation.span().is_some_and(|span| bytes.len() as u64 <= span) {
                    true => Ok(()),
                    false => Err(format!("{} B of {allocation:?} at {offset}", bytes.len())),
                }
            }
            StateRecord::PassBegin | StateRecord::PassEnd { .. } => Ok(()),
        }
    }

    /// Checks whether an allocation is possible, and overlaps none.
    fn check_free(&self, offset: u64, allocation: Allocation) -> Result<(), String> {
        let wrong = |why: &str| Err(format!("{allocation:?} at {offset} {why}"));
        let (Some(size), Some(span)) = (allocation.line_bytes(), allocation.span()) else {
            return wrong("is no allocation: lines of class 0 to 10 that hold its bytes");
        };
        let Some(end) = offset.checked_add(span).filter(|end| *end <= self.image.len() as u64)
        else {
            return wrong("is not within the memory");
        };
        if !offset.is_multiple_of(size) || allocation.bytes == 0 || allocation.bytes > span {
            return wrong("has its bytes in whole lines, and begins at a multiple of a line");
        }
        let below = self.allocations.range(..end).next_back();
        match below.is_some_and(|(start, other)| start + other.span().unwrap_or(0) > offset) {
            true => wrong("overlaps another one"),
            false => Ok(()),
        }
    }

    fn check_bytes(&self, offset: u64, bytes: usize, is_partial: bool) -> Result<(), String> {
        let wrong = || format!("{bytes} B at {offset} are not within an allocation");
        let end = offset.checked_add(bytes as u64).ok_or_else(wrong)?;
        let is_right = match self.allocation_at(offset) {
            Some((range, _)) => end <= range.end || is_partial && end <= self.image.len() as u64,
            None => is_partial && end <= self.image.len() as u64,
        };
        if is_right { Ok(()) } else { Err(wrong()) }
    }

    /// Applies a record that [`check`](Self::check) has allowed.
    pub(super) fn apply(&mut self, record: &StateRecord<'_>) {
        match record {
            StateRecord::Identity(identity) | StateRecord::Saving(identity) => {
                self.identity = Some(identity.clone());
                self.is_saving = matches!(record, StateRecord::Saving(_));
            }
            StateRecord::Directory { offset, lines } => {
                self.directory = (*lines > 0).then_some((*offset, *lines));
            }
            StateRecord::Fresh { offset, allocation } => {
                if !canary::mutant!(canary::nodes(), StateFreshNotZeroed) {
                    self.zero(*offset..offset + allocation.span().unwrap_or(0));
                }
                self.allocations.insert(*offset, *allocation);
            }
            StateRecord::Freed { offset } => drop(self.allocations.remove(offset)),
            StateRecord::Write { offset, bytes } | StateRecord::RestatedBytes { offset, bytes } => {
                self.put(*offset, bytes);
            }
            StateRecord::WriteTwo { offset, first, second_offset, second } => {
                self.put(*offset, first);
                self.put(*second_offset, second);
            }
            StateRecord::Restated { offset, allocation, bytes } => {
                if canary::mutant!(canary::nodes(), StateRestatedZeroes) {
                    self.zero(*offset..offset + allocation.span().unwrap_or(0));
                }
                self.allocations.insert(*offset, *allocation);
                self.put(*offset, bytes);
            }
            StateRecord::PassBegin | StateRecord::PassEnd { .. } => {}
        }
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let range = offset..offset + bytes.len() as u64;
        self.image[range.start as usize..range.end as usize].copy_from_slice(bytes);
        for block in blocks(range) {
            self.written[block / 64] |= 1 << (block % 64);
        }
    }

    /// Writes zeros where there may be something else: memory that was never written is not accessed.
    fn zero(&mut self, range: Range<u64>) {
        for block in blocks(range.clone()) {
            let bit = 1 << (block % 64);
            if self.written[block / 64] & bit == 0 {
                continue;
            }
            let whole = block as u64 * BLOCK..(block as u64 + 1) * BLOCK;
            let part = whole.start.max(range.start)..whole.end.min(range.end);
            self.image[part.start as usize..part.end as usize].fill(0);
            if part == whole {
                self.written[block / 64] &= !bit;
            }
        }
    }
}

/// The blocks that a range touches.
fn blocks(range: Range<u64>) -> Range<usize> {
    match range.is_empty() {
        true => 0..0,
        false => (range.start / BLOCK) as usize..range.end.div_ceil(BLOCK) as usize,
    }
}
