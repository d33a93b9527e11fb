//! The messages that a receiver holds of a ring: the records handed out, and the position up to which all are
//! released.

use super::half::{Accepted, HeldMessage, NOT_HELD};
use alloc::collections::VecDeque;

/// A record: from a position of the ring to the next one's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RingRecord {
    start: u64,
    end: u64,
    held: bool,
}

/// Records by position. They are handed out and released in any order; the tail advances over consecutive released
/// ones.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Releases {
    /// Everything before is released.
    tail: u64,
    /// The end of a held record that begins at the tail, if it is the only one: a receiver that releases each message
    /// before the next needs no list.
    only: Option<u64>,
    /// By ascending start, none before the tail.
    records: VecDeque<RingRecord>,
}

impl Releases {
    /// Everything before this position is released.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    /// The position with these low bits of it in units: those of 32 bits are less than a ring ahead of the tail.
    #[inline]
    pub(super) const fn position(&self, low: u32, unit: u64) -> u64 {
        self.tail + low.wrapping_sub((self.tail / unit) as u32) as u64 * unit
    }

    /// The number of records that the tail has not passed.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.records.len() + usize::from(self.only.is_some())
    }

    /// Hands out a record; false if it overlaps another one or begins before the tail.
    #[inline]
    pub(super) fn hold(&mut self, start: u64, end: u64) -> bool {
        if start == self.tail && end > start && self.records.is_empty() && self.only.is_none() {
            self.only = Some(end);
            return true;
        }
        self.hold_beside(start, end)
    }

    /// Advances the tail over a record that begins there. Call it with no record handed out.
    #[inline]
    pub(super) fn pass_to(&mut self, end: u64) {
        debug_assert!(self.count() == 0 && end > self.tail, "{self:?} to {end}");
        self.tail = end;
    }

    fn hold_beside(&mut self, start: u64, end: u64) -> bool {
        if let Some(end) = self.only.take() {
            self.records.push_back(RingRecord { start: self.tail, end, held: true });
        }
        let held = self.insert(start, end);
        self.fold();
        held
    }

    /// A single record at the tail is always kept outside the list.
    fn fold(&mut self) {
        if self.records.len() == 1
            && let Some(RingRecord { start, end, held: true }) = self.records.front().copied()
            && start == self.tail
        {
            self.records.pop_front();
            self.only = Some(end);
        }
    }

    fn insert(&mut self, start: u64, end: u64) -> bool {
        let record = RingRecord { start, end, held: true };
        // Nearly always the last one.
        let mut at = self.records.len();
        while at > 0 && self.records.get(at - 1).is_some_and(|before| before.start > start) {
            at -= 1;
        }
        let before = at.checked_sub(1).and_then(|before| self.records.get(before));
        let free_before = before.map_or(self.tail, |before| before.end) <= start;
        let free_after = self.records.get(at).is_none_or(|after| end <= after.start);
        if !free_before || !free_after || end <= start {
            return false;
        }
        if at == self.records.len() {
            self.records.push_back(record);
        } else {
            self.records.insert(at, record);
        }
        true
    }

    /// Releases a record; returns its extent.
    ///
    /// # Errors
    /// `NoSuch` if it is not held (any more).
    #[inline]
    pub(super) fn release(&mut self, held: HeldMessage) -> Accepted<(u64, u64)> {
        match self.only {
            Some(end) if held.0 == self.tail => {
                self.only = None;
                self.tail = end;
                Ok((held.0, end))
            }
            Some(_) => Err(NOT_HELD),
            None => self.release_listed(held),
        }
    }

    fn release_listed(&mut self, held: HeldMessage) -> Accepted<(u64, u64)> {
        let at = match self.records.front() {
            Some(front) if front.start == held.0 => 0,
            _ => self
                .records
                .binary_search_by_key(&held.0, |record| record.start)
                .map_err(|_| NOT_HELD)?,
        };
        let Some(record) = self.records.get_mut(at).filter(|record| record.held) else {
            return Err(NOT_HELD);
        };
        record.held = false;
        let extent = (record.start, record.end);
        while let Some(front) = self.records.front() {
            if front.held || front.start != self.tail {
                break;
            }
            self.tail = front.end;
            self.records.pop_front();
        }
        self.fold();
        Ok(extent)
    }

    /// The first position that no record covers, and the start of the next record after it.
    pub(super) fn gap(&self) -> (u64, Option<u64>) {
        let mut gap = self.only.unwrap_or(self.tail);
        for record in &self.records {
            if record.start != gap {
                return (gap, Some(record.start));
            }
            gap = record.end;
        }
        (gap, None)
    }

    /// Advances the tail over a stretch that will never be filled.
    pub(super) fn skip(&mut self, end: u64) {
        self.pass(self.tail, end);
    }

    /// Skips a stretch without records that will never be filled.
    pub(super) fn pass(&mut self, start: u64, end: u64) {
        if self.hold(start, end) {
            let _ = self.release(HeldMessage(start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::half::HalfRefusal;
    use super::*;

    #[test]
    fn the_tail_waits_for_the_oldest() {
        let mut releases = Releases::default();
        assert!(releases.hold(0, 16) && releases.hold(16, 24) && releases.hold(24, 40));
        assert_eq!(releases.release(HeldMessage(16)), Ok((16, 24)));
        assert_eq!(releases.tail(), 0);
        assert_eq!(releases.release(HeldMessage(0)), Ok((0, 16)));
        assert_eq!(releases.tail(), 24);
        assert_eq!(releases.release(HeldMessage(0)), Err(HalfRefusal::NoSuch("held message")));
        assert_eq!(releases.release(HeldMessage(24)), Ok((24, 40)));
        assert_eq!(releases.tail(), 40);
    }

    #[test]
    fn records_that_come_out_of_order_find_their_place() {
        let mut releases = Releases::default();
        assert!(releases.hold(32, 48));
        assert!(!releases.hold(40, 56), "overlaps");
        assert!(!releases.hold(24, 40), "overlaps");
        assert_eq!(releases.gap(), (0, Some(32)));
        assert!(releases.hold(8, 32));
        assert_eq!(releases.gap(), (0, Some(8)));
        assert!(!releases.hold(8, 8), "empty");
        releases.release(HeldMessage(8)).unwrap();
        assert_eq!(releases.release(HeldMessage(8)), Err(HalfRefusal::NoSuch("held message")));
        assert_eq!(releases.tail(), 0, "the first eight are still to come");
        releases.skip(8);
        assert_eq!(releases.gap(), (48, None));
        assert_eq!(releases.tail(), 32);
        assert!(!releases.hold(0, 8), "before the tail");
    }
}
