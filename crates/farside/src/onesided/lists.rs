//! Requests that move lists of ranges: their work requests, and memory that stages them.

use super::ranges::RangeList;
use crate::Error;
use crate::buffer::Buffer;
use farside_base::LocalSlice;
use std::collections::VecDeque;
use std::ops::Range;

/// Most requests posted with one doorbell.
pub(super) const BATCH: usize = 32;

/// How far a list of ranges is. Its requests are those of [`RangeList::group`], named by their first ranges.
pub(super) struct ListState {
    pub(super) ranges: RangeList,
    /// The first range that was not posted.
    next: u32,
    /// Requests posted and not known to have ended, in order, and whether each reports its success. One that does tells
    /// that those before it have ended.
    in_flight: VecDeque<(u32, bool)>,
    /// Requests to be repeated, before the next range.
    repeated: VecDeque<u32>,
    /// Most pieces of a request in the buffer; zero: each range is one.
    slices_max: usize,
    /// Most bytes of a request.
    bytes_max: u32,
    /// Its bytes are staged.
    pub(super) staged: Option<Staged>,
    /// The first failure, and how many requests failed: nothing more is posted.
    pub(super) failure: Option<(Error, u32)>,
}

/// A request of a list, ready to be posted.
pub(super) struct ListWork {
    pub(super) first: u32,
    ranges: u32,
    pub(super) remote: u64,
    pub(super) slices: Range<usize>,
}

impl ListState {
    pub(super) fn new(
        ranges: &RangeList,
        (slices_max, bytes_max): (u32, u32),
        staged: Option<Staged>,
    ) -> Self {
        Self {
            ranges: ranges.clone(),
            next: 0,
            in_flight: VecDeque::new(),
            repeated: VecDeque::new(),
            slices_max: slices_max as usize,
            bytes_max,
            staged,
            failure: None,
        }
    }

    /// Fills a batch with its next requests.
    pub(super) fn next_works(
        &self,
        local: LocalSlice,
        works: &mut Vec<ListWork>,
        slices: &mut Vec<LocalSlice>,
    ) {
        works.clear();
        slices.clear();
        let mut next = self.next;
        let mut repeated = self.repeated.iter();
        while works.len() < BATCH {
            let (first, is_repeated) = match repeated.next() {
                Some(first) => (*first, true),
                None if (next as usize) < self.ranges.count() => (next, false),
                None => return,
            };
            let begins = slices.len();
            let (ranges, remote) =
                self.ranges.group(first, local, (self.slices_max, self.bytes_max), slices);
            next += if is_repeated { 0 } else { ranges };
            works.push(ListWork { first, ranges, remote, slices: begins..slices.len() });
        }
    }

    pub(super) fn was_posted(&mut self, work: &ListWork, is_signalled: bool) {
        self.in_flight.push_back((work.first, is_signalled));
        if self.repeated.pop_front().is_none() {
            self.next = work.first + work.ranges;
        }
    }

    pub(super) fn is_posted(&self) -> bool {
        self.repeated.is_empty() && self.next as usize == self.ranges.count()
    }

    /// Whether nothing of it is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// A request completed, so that those before it have succeeded. Returns whether it reports its success; `None` if it
    /// was given up before.
    pub(super) fn completed(&mut self, first: u32) -> Option<bool> {
        let at = self.in_flight.iter().position(|(posted, _)| *posted == first)?;
        self.in_flight.drain(..=at).next_back().map(|(_, is_signalled)| is_signalled)
    }

    /// Repeats the last requests in flight, whose success would be told by later ones that were not posted.
    pub(super) fn give_up_tail(&mut self) {
        let reported = self.in_flight.iter().rposition(|(_, is_signalled)| *is_signalled);
        let tail = self.in_flight.drain(reported.map_or(0, |at| at + 1)..);
        self.repeated.extend(tail.map(|(first, _)| first));
    }

    /// A request of it failed: it is repeated if its connection was lost.
    pub(super) fn failed(&mut self, first: u32, error: &Error, is_lost: bool) {
        match &mut self.failure {
            Some((_, failed)) => *failed += 1,
            None if is_lost => self.repeated.push_back(first),
            None => {
                let text = format!("range {first} of the list: {}", error.detail);
                self.failure = Some((Error::with(error.code, text), 1));
            }
        }
    }
}

/// The bytes of a list in one piece, on their way to or from its buffer.
pub(super) struct Staged {
    pub(super) memory: Buffer,
    /// The ranges in the buffer, from this offset on.
    buffer: Buffer,
    at: u64,
    original: RangeList,
}

impl Staged {
    pub(super) fn new(memory: Buffer, (buffer, at): (&Buffer, u64), ranges: &RangeList) -> Self {
        Self { memory, buffer: buffer.clone(), at, original: ranges.clone() }
    }

    /// Copies the ranges of the buffer to staging memory.
    pub(super) fn gather(&self, packed: &RangeList) -> Result<(), Error> {
        for (from, to) in self.original.iter().zip(packed.iter()) {
            let bytes = from.bytes as usize;
            self.memory.copy_from(to.local, &self.buffer, self.at + from.local, bytes)?;
        }
        Ok(())
    }

    /// Copies staging memory to the ranges of the buffer.
    pub(super) fn scatter(&self, packed: &RangeList) -> Result<(), Error> {
        for (to, from) in self.original.iter().zip(packed.iter()) {
            let bytes = from.bytes as usize;
            self.buffer.copy_from(self.at + to.local, &self.memory, from.local, bytes)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::RegionId;

    #[test]
    fn a_completion_tells_of_the_requests_before_it() {
        let ranges = RangeList::strided(40, 8, 8, 64).unwrap();
        let mut list = ListState::new(&ranges, (0, u32::MAX), None);
        let (mut works, mut slices) = (Vec::new(), Vec::new());
        let local = LocalSlice { region: RegionId(0), offset: 0, bytes: 0 };
        list.next_works(local, &mut works, &mut slices);
        for (at, work) in works.iter().take(10).enumerate() {
            list.was_posted(work, at == 3 || at == 7);
        }
        assert_eq!(list.completed(3), Some(true));
        assert_eq!(list.completed(3), None); // known before
        assert_eq!(list.completed(5), Some(false)); // it failed
        list.give_up_tail(); // 8 and 9
        assert!(!list.is_idle()); // 7 reports
        assert_eq!(list.completed(7), Some(true));
        assert!(list.is_idle() && !list.is_posted());
        list.next_works(local, &mut works, &mut slices);
        assert_eq!(works.iter().map(|work| work.first).take(3).collect::<Vec<_>>(), [8, 9, 10]);
    }
}
