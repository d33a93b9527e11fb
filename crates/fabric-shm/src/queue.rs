//! The queues of a port that only its own thread sees: completions and receives. Both have their
//! memory from the start.

use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId, Receive, WorkId};
use std::collections::VecDeque;

/// How a request ended, as it waits to be polled. It has no immediate, which only receives have.
#[derive(Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) id: WorkId,
    pub(crate) link: LinkId,
    pub(crate) bytes: u32,
    pub(crate) kind: CompletionKind,
    pub(crate) status: CompletionStatus,
}

#[derive(Clone, Copy)]
struct Entry {
    /// Link, then bytes.
    place: u64,
    id: WorkId,
    kind: Apart<CompletionKind>,
    status: Apart<CompletionStatus>,
}

/// A byte in a word of its own.
#[derive(Clone, Copy)]
#[repr(align(4))]
struct Apart<T>(T);

/// Completions of requests, oldest first. Starts over at the front whenever it is empty, so that a
/// caller who polls after each post touches the same lines each time.
///
/// An entry has not the shape of a [`Completion`], so that no compiler reads as one piece what was
/// written as several just before: the processor would wait for the pieces, some 3 ns a request.
pub(crate) struct CompletionQueue {
    entries: Box<[Entry]>,
    /// Counted from the last time it was empty; places are these, cut to the length.
    head: u32,
    tail: u32,
}

impl CompletionQueue {
    /// For at most `most` completions, a power of two.
    pub(crate) fn new(most: u32) -> Self {
        assert!(most.is_power_of_two(), "places are found by masking");
        let entry = Entry {
            place: 0,
            id: WorkId(0),
            kind: Apart(CompletionKind::Send),
            status: Apart(CompletionStatus::Success),
        };
        Self { entries: vec![entry; most as usize].into_boxed_slice(), head: 0, tail: 0 }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        (self.tail.wrapping_sub(self.head)) as usize == self.entries.len()
    }

    #[inline(always)]
    fn place(&self, count: u32) -> usize {
        count as usize & (self.entries.len() - 1)
    }

    /// Adds one. The caller has seen that it is not full.
    #[inline(always)]
    pub(crate) fn push(&mut self, finished: &Finished) {
        debug_assert!(!self.is_full());
        let at = self.place(self.tail);
        self.entries[at] = Entry {
            place: u64::from(finished.link.0) << 32 | u64::from(finished.bytes),
            id: finished.id,
            kind: Apart(finished.kind),
            status: Apart(finished.status),
        };
        self.tail = self.tail.wrapping_add(1);
    }

    /// Moves the oldest to the front of `out`; how many.
    #[inline(always)]
    pub(crate) fn take(&mut self, out: &mut [Completion]) -> usize {
        if self.is_empty() {
            return 0;
        }
        let waiting = self.tail.wrapping_sub(self.head) as usize;
        let count = waiting.min(out.len());
        for place in &mut out[..count] {
            let entry = &self.entries[self.place(self.head)];
            *place = Completion {
                id: entry.id,
                link: LinkId((entry.place >> 32) as u32),
                bytes: entry.place as u32,
                immediate: None,
                kind: entry.kind.0,
                status: entry.status.0,
            };
            self.head = self.head.wrapping_add(1);
        }
        if self.is_empty() {
            self.head = 0;
            self.tail = 0;
        }
        count
    }
}

/// Posted receives, oldest first. In cache lines of its own, since it changes with every message
/// and another port of the process may have its own beside it.
#[repr(align(128))]
pub(crate) struct ReceiveQueue {
    posted: VecDeque<Receive>,
    depth: usize,
}

impl ReceiveQueue {
    pub(crate) fn new(depth: usize) -> Self {
        Self { posted: VecDeque::with_capacity(depth), depth }
    }

    /// Adds one; false when there is no room.
    #[inline]
    pub(crate) fn push(&mut self, receive: Receive) -> bool {
        let room = self.posted.len() < self.depth;
        if room {
            self.posted.push_back(receive);
        }
        room
    }

    /// The next one to be taken.
    #[inline]
    pub(crate) fn front(&self) -> Option<&Receive> {
        self.posted.front()
    }

    /// Takes the next one.
    #[inline]
    pub(crate) fn take(&mut self) {
        self.posted.pop_front();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(number: u64) -> Finished {
        Finished {
            id: WorkId(number),
            link: LinkId(number as u32 + 1),
            bytes: number as u32 + 2,
            kind: CompletionKind::Read,
            status: CompletionStatus::Flushed,
        }
    }

    #[test]
    fn completions_come_in_order_through_every_fill_level() {
        let mut queue = CompletionQueue::new(8);
        let (mut pushed, mut taken) = (0, 0);
        for round in 0..200 {
            for _ in 0..round % 9 {
                if !queue.is_full() {
                    queue.push(&numbered(pushed));
                    pushed += 1;
                }
            }
            assert!(pushed - taken <= 8);
            let mut out = [Completion::BLANK; 3];
            let count = queue.take(&mut out[..round % 4]);
            for completion in &out[..count] {
                let expected = numbered(taken);
                assert_eq!(completion.id, expected.id);
                assert_eq!((completion.link, completion.bytes), (expected.link, expected.bytes));
                assert_eq!((completion.kind, completion.status), (expected.kind, expected.status));
                taken += 1;
            }
        }
        assert!(taken > 200, "the queue moved: {taken}");
    }

    #[test]
    fn a_full_queue_says_so_and_takes_again_after_one_is_taken() {
        let mut queue = CompletionQueue::new(4);
        for number in 0..4 {
            assert!(!queue.is_full());
            queue.push(&numbered(number));
        }
        assert!(queue.is_full());
        let mut one = [Completion::BLANK];
        assert_eq!(queue.take(&mut one), 1);
        assert!(!queue.is_full());
    }
}
