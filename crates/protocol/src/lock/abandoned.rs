//! Ranges whose holder died while it had them for writing: what they protect may be half changed, so
//! the next holder learns of it, as with robust mutexes (POSIX `EOWNERDEAD`).
//!
//! The home marks such a range when it hears of the death, and the whole line when the dead node was
//! its delegate, since no other node knows what was held there. Every grant of marked bytes says so; one
//! for writing takes the mark along, unless it is cancelled or [undone](super::Action::Undo) before its
//! session knows of it. A marked line is neither delegated nor lent, so that marks never travel.

use super::canary::Mutant;
use super::line::Line;
use super::own::Locks;
use super::{Mode, Range, Token};
use alloc::vec::Vec;
use farside_base::LineAddress;

impl Locks {
    /// Marks a range of an own line that this home decides about.
    pub(super) fn mark(&mut self, at: LineAddress, range: Range) {
        if self.line(at).bytes == 0 || self.rules.has(Mutant::AbandonedForgotten) {
            return;
        }
        if self.line(at).abandoned.is_empty() {
            self.unlink(at);
        }
        self.line(at).abandoned.push(range);
    }

    /// Whether a lock that was just granted is of marked bytes; one for writing takes the marks along.
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

    /// An own line is in no allocation any more.
    pub(super) fn unmark(&mut self, at: LineAddress) {
        if !core::mem::take(&mut self.line(at).abandoned).is_empty() {
            self.relink(at);
        }
    }

    /// A line whose marks have changed may be kept without a bound no more.
    fn relink(&mut self, at: LineAddress) {
        if self.line(at).abandoned.is_empty() {
            self.link(at);
        }
    }
}

impl Line {
    /// Whether its locks may be handed to another to decide: no session is still to be told something.
    pub(super) fn is_unmarked(&self) -> bool {
        self.abandoned.is_empty() && self.holders.iter().all(|held| !held.abandoned)
    }
}

impl Range {
    /// What is left of it without `other`: nothing, or one or two ranges.
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
