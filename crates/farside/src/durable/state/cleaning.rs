//! Cleaning passes: a fuzzy checkpoint into the log, whose beginning is trimmed then.

use super::MemoryState;
use super::changes::not_zero;
use super::pass::Pass;
use super::record::StateRecord;
use super::sizes::SCANNED_PER_BYTE;
use super::types::Allocation;
use crate::{Error, canary};
use std::ops::Range;

/// Bytes without contents for which a pass counts one.
const UNWRITTEN_PER_BYTE: u64 = 4096;

/// A part of an allocation, which one record restates.
struct Piece {
    range: Range<u64>,
    /// The allocation, if this is its first part.
    allocation: Option<Allocation>,
    is_last: bool,
}

impl MemoryState {
    /// Moves a cleaning pass on by a number of bytes of the log; begins one if the log is long enough. Returns whether a pass is
    /// in flight. Operations do the same for twice the bytes that they append: a program need not call this.
    ///
    /// *Blocks* as operations do; never for a sync: a pass ends by the first call after a commit of its records.
    ///
    /// # Errors
    /// Those of [`DurableLog::append`](crate::durable::DurableLog::append) and
    /// [`DurableLog::trim`](crate::durable::DurableLog::trim); a later call tries again.
    pub fn clean(&mut self, budget_bytes: u64) -> Result<bool, Error> {
        self.credit = self.credit.saturating_add(i64::try_from(budget_bytes).unwrap_or(i64::MAX));
        let advanced = self.advance();
        self.paced = self.log.watermarks().appended;
        advanced.map(|()| self.pass.is_some())
    }

    /// Begins a cleaning pass, however long the log is. Does nothing if one is in flight, or the state is new.
    ///
    /// # Errors
    /// Those of [`DurableLog::append`](crate::durable::DurableLog::append).
    pub fn begin_cleaning(&mut self) -> Result<(), Error> {
        if self.pass.is_none() && self.contents.identity.is_some() {
            let (tag, payload) = StateRecord::PassBegin.encode(&mut self.scratch);
            let begin = self.log.watermarks().appended;
            self.log.append(tag, payload)?;
            self.pass = Some(Pass::new(begin));
        }
        Ok(())
    }

    /// Why the last operation could not move cleaning on, if so: the log grows until it can.
    pub const fn cleaning_failure(&self) -> Option<&Error> {
        self.cleaning_failure.as_ref()
    }

    /// Moves cleaning on by twice what was appended since the last call, marks of the log included. A failure does not fail
    /// the operation, which was logged.
    pub(super) fn pace(&mut self) {
        let grown = self.log.watermarks().appended - self.paced;
        let credit = match canary::mutant!(canary::nodes(), StateCleanedTooSlowly) {
            true => grown / 32,
            false => 2 * grown,
        };
        self.credit = self.credit.saturating_add(i64::try_from(credit).unwrap_or(i64::MAX));
        self.cleaning_failure = self.advance().err();
        self.paced = self.log.watermarks().appended;
    }

    fn advance(&mut self) -> Result<(), Error> {
        if self.pass.is_none() {
            let marks = self.log.watermarks();
            if marks.appended - marks.begin <= self.sizes.pass_from(self.live) {
                self.credit = 0;
                return Ok(());
            }
            self.begin_cleaning()?;
        }
        while self.credit > 0 && self.restate()? {}
        self.finish()
    }

    /// Restates the next piece. Returns whether the pass continues.
    fn restate(&mut self) -> Result<bool, Error> {
        let before = self.log.watermarks().appended;
        let Some(pass) = self.pass.as_mut().filter(|pass| pass.end.is_none()) else {
            return Ok(false);
        };
        if !pass.has_identity {
            if let Some((offset, lines)) = self.contents.directory {
                let record = StateRecord::Directory { offset, lines };
                let (tag, payload) = record.encode(&mut self.scratch);
                self.log.append(tag, payload)?;
            }
            // The last of the two: a pass that continues after the end of its process need not repeat them.
            if let Some(identity) = self.contents.identity.clone() {
                let record = match self.contents.is_saving {
                    true => StateRecord::Saving(identity),
                    false => StateRecord::Identity(identity),
                };
                let (tag, payload) = record.encode(&mut self.scratch);
                let end = self.log.append(tag, payload)?;
                pass.restated += end - before;
                self.credit -= (end - before).cast_signed();
            }
            pass.has_identity = true;
            return Ok(true);
        }
        let Some(piece) = next_piece(&self.contents, pass.cursor, self.sizes.piece) else {
            let record = StateRecord::PassEnd { begin: pass.begin, restated: pass.restated };
            let (tag, payload) = record.encode(&mut self.scratch);
            pass.end = Some(self.log.append(tag, payload)?);
            return Ok(false);
        };
        let Range { start: offset, end } = piece.range;
        let (bytes, scan_cost) = match self.contents.is_written(piece.range.clone()) {
            true => (self.contents.bytes(offset..end), (end - offset) / SCANNED_PER_BYTE),
            false => (&[][..], (end - offset) / UNWRITTEN_PER_BYTE),
        };
        pass.unlogged += scan_cost;
        let mut set = not_zero(bytes);
        // A record of a zero tells a later process how far the pass is.
        if set.is_empty() && !bytes.is_empty() && pass.unlogged >= self.sizes.piece {
            set = bytes.len() - 1..bytes.len();
        }
        let record = match piece.allocation {
            Some(allocation) => {
                StateRecord::Restated { offset, allocation, bytes: &bytes[..set.end] }
            }
            None => {
                let offset = offset + set.start as u64;
                StateRecord::RestatedBytes { offset, bytes: &bytes[set.clone()] }
            }
        };
        let is_skipped = piece.allocation.is_none()
            && (set.is_empty()
                || piece.is_last && canary::mutant!(canary::nodes(), StatePieceSkipped));
        let mut added = 0;
        if !is_skipped {
            let (tag, payload) = record.encode(&mut self.scratch);
            added = self.log.append(tag, payload)? - before;
            pass.unlogged = 0;
        }
        pass.cursor = end;
        pass.restated += added;
        self.stats.restated_bytes += added;
        self.credit -= (added + scan_cost).cast_signed();
        Ok(true)
    }

    /// Trims the log once all up to the end of the pass is durable.
    fn finish(&mut self) -> Result<(), Error> {
        let Some(Pass { begin, end: Some(end), restated, .. }) = self.pass else {
            return Ok(());
        };
        let durable = self.log.watermarks().durable;
        let needed = match canary::mutant!(canary::nodes(), StateTrimmedBeforeDurable) {
            true => begin,
            false => end,
        };
        if durable < needed {
            return Ok(());
        }
        let below = match canary::mutant!(canary::nodes(), StateTrimmedTooFar) {
            true => durable,
            false => begin,
        };
        self.log.trim(below)?;
        (self.pass, self.live, self.credit) = (None, restated, 0);
        self.stats.passes += 1;
        Ok(())
    }
}

/// The piece that follows a cursor.
fn next_piece(contents: &super::Contents, cursor: u64, longest: u64) -> Option<Piece> {
    let inside = contents.allocation_at(cursor).filter(|(range, _)| range.start < cursor);
    let (start, range, allocation) = match inside {
        Some((range, _)) => (cursor, range, None),
        None => {
            let (range, allocation) = contents.allocation_from(cursor)?;
            (range.start, range, Some(allocation))
        }
    };
    let end = range.end.min(start + longest);
    Some(Piece { range: start..end, allocation, is_last: end == range.end })
}
