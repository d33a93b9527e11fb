//! Abandoned ranges: the holder of a write lock died, so the protected data may be partly changed, and the next
//! holder is notified, as with robust mutexes (POSIX `EOWNERDEAD`).
//!
//! The home marks such a range when it learns of the death, and the whole line if the dead node was its delegate,
//! since no other node knows what was held there. Every grant of marked bytes reports it. A grant for writing removes
//! the mark, unless it is cancelled or [undone](super::Action::Undo) before its session knows of it. A marked line is
//! neither delegated nor lent, so marks never travel.

use super::canary::mutant;
use super::line::LineLocks;
use super::own::Locks;
use super::{Mode, Range, Token};
use alloc::vec::Vec;
use farside_base::LineAddress;

impl Locks {
    /// Marks a range of an own line for which this home arbitrates.
    pub(super) fn mark(&mut self, at: LineAddress, range: Range) {
        if self.line(at).bytes == 0 || mutant!(self.rules, AbandonedForgotten) {
            return;
        }
        if self.line(at).abandoned.is_empty() {
            self.unlink(at);
        }
        self.line(at).abandoned.push(range);
    }

    /// Returns whether a lock just granted covers marked bytes; one for writing removes the marks.
    pub(super) fn tell(&mut self, at: LineAddress, range: Range, mode: Mode, token: Token) -> bool {
        let line = self.line(at);
        if !line.abandoned.iter().any(|marked| marked.overlaps(range)) {
            return false;
        }
        if mode == Mode::Write {
            line.abandoned =
                line.abandoned.iter().flat_map(|marked| marked.without(range)).collect();
            if let Some(held) = line.holders.iter_mut().find(|held| held.token == token) {
                held.abandoned = true;
            }
            self.relink(at);
        }
        true
    }

    /// Removes the marks of an own line that is no longer allocated.
    pub(super) fn unmark(&mut self, at: LineAddress) {
        if !core::mem::take(&mut self.line(at).abandoned).is_empty() {
            self.relink(at);
        }
    }

    /// Updates the list of recency for a line with changed marks, which may no longer be kept without a bound.
    fn relink(&mut self, at: LineAddress) {
        if self.line(at).abandoned.is_empty() {
            self.link(at);
        }
    }
}

impl LineLocks {
    /// Whether the authority over its locks may move: no later holder is still to be notified.
    pub(super) fn is_unmarked(&self) -> bool {
        self.abandoned.is_empty() && self.holders.iter().all(|held| !held.abandoned)
    }
}

impl Range {
    /// Returns the parts of this range outside `other`: none, one or two.
    fn without(self, other: Self) -> Vec<Self> {
        let part = |start: u64, end: u64| {
            let bytes = end.checked_sub(start).filter(|bytes| *bytes > 0)?;
            Some(Self { start: start as u32, bytes: bytes as u32 })
        };
        let (start, end) = (u64::from(self.start), self.end());
        let before = part(start, end.min(other.start.into()));
        let behind = part(start.max(other.end()), end);
        before.into_iter().chain(behind).collect()
    }
}
