//! The queues of a port that only its own thread sees: completions and receives. Both have their
//! memory from the start.

use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId, Receive, WorkId};

/// How a request ended, as it waits to be polled. It has no immediate, which only receives have.
#[derive(Clone, Copy)]
pub(crate) struct Finished {
    pub(crate) id: WorkId,
    pub(crate) link: LinkId,
    pub(crate) bytes: u32,
    pub(crate) kind: CompletionKind,
    pub(crate) status: CompletionStatus,
}

/// Not laid out as a [`Completion`], so that no compiler loads as one piece what was just stored as
/// several: the processor would wait for the pieces (store forwarding), some 3 ns a request.
#[derive(Clone, Copy)]
#[repr(C)]
struct QueueEntry {
    /// Link, then bytes, as a [`Completion`] has them: both move by one store.
    place: u64,
    kind: Apart<CompletionKind>,
    status: Apart<CompletionStatus>,
    id: WorkId,
}

impl QueueEntry {
    #[inline(always)]
    fn new(finished: &Finished) -> Self {
        Self {
            place: u64::from(finished.link.0) | u64::from(finished.bytes) << 32,
            id: finished.id,
            kind: Apart(finished.kind),
            status: Apart(finished.status),
        }
    }

    #[inline(always)]
    fn completion(&self) -> Completion {
        Completion {
            id: self.id,
            link: LinkId(self.place as u32),
            bytes: (self.place >> 32) as u32,
            immediate: None,
            kind: self.kind.0,
            status: self.status.0,
        }
    }
}

/// A byte in a word of its own.
#[derive(Clone, Copy)]
#[repr(align(4))]
struct Apart<T>(T);

/// Completions of requests, oldest first. Starts over at the front whenever it is empty, so that a
/// program that polls after each post touches the same lines each time.
pub(crate) struct CompletionQueue {
    entries: Box<[QueueEntry]>,
    /// Indexes are these, modulo the length. `head` is below the length, and `tail` at most the length
    /// ahead of it.
    head: u32,
    tail: u32,
}

/// The entry of the next completion.
pub(crate) struct Room<'q> {
    entry: &'q mut QueueEntry,
    tail: &'q mut u32,
}

impl Room<'_> {
    /// Adds the completion.
    #[inline(always)]
    pub(crate) fn fill(self, finished: &Finished) {
        *self.entry = QueueEntry::new(finished);
        *self.tail += 1;
    }
}

impl CompletionQueue {
    /// Returns a queue for at most `most` completions, a power of two.
    pub(crate) fn new(most: u32) -> Self {
        assert!(most.is_power_of_two(), "places are found by masking");
        let entry = QueueEntry {
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
        self.waiting() == self.entries.len()
    }

    #[inline(always)]
    fn waiting(&self) -> usize {
        (self.tail - self.head) as usize
    }

    #[inline(always)]
    fn place(&self, count: u32) -> usize {
        count as usize & (self.entries.len() - 1)
    }

    /// Returns an entry for one more, if there is any.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> Option<Room<'_>> {
        // Before the ring wraps around for the first time the count is the index, and cannot be ahead
        // too far.
        let at = match self.tail as usize {
            at if at < self.entries.len() => at,
            _ => self.place_again()?,
        };
        let entry = self.entries.get_mut(at)?;
        Some(Room { entry, tail: &mut self.tail })
    }

    #[cold]
    fn place_again(&self) -> Option<usize> {
        (!self.is_full()).then(|| self.place(self.tail))
    }

    /// Moves the oldest to the front of `out`, if it is the only one and the first since the queue was
    /// empty. Returns whether it did. This is the path of a program that posts and polls one request at
    /// a time.
    #[inline(always)]
    pub(crate) fn take_only(&mut self, out: &mut [Completion]) -> bool {
        if self.tail == 1
            && self.head == 0
            && let (Some(entry), Some(place)) = (self.entries.first(), out.first_mut())
        {
            *place = entry.completion();
            self.tail = 0;
            return true;
        }
        false
    }

    /// Moves the oldest to the front of `out`. Returns how many.
    #[inline]
    pub(crate) fn take(&mut self, out: &mut [Completion]) -> usize {
        let count = self.waiting().min(out.len());
        for (place, at) in out.iter_mut().zip(self.head..).take(count) {
            *place = self.entries[self.place(at)].completion();
        }
        self.head += count as u32;
        if self.is_empty() {
            (self.head, self.tail) = (0, 0);
        }
        let length = self.entries.len() as u32;
        if self.head >= length {
            (self.head, self.tail) = (self.head - length, self.tail - length);
        }
        count
    }
}

/// Posted receives, oldest first. In cache lines of its own, since it changes with every message and
/// another port of the process may have its own next to it. It has memory for as many as were ever
/// posted at a time, since a ring touches all its memory, and `depth` allows for every possible peer.
#[repr(align(128))]
pub(crate) struct ShmReceiveQueue {
    /// None, or a power of two of them.
    posted: Box<[Receive]>,
    /// Indexes are these, modulo the length.
    head: u32,
    tail: u32,
    /// As many as there is memory for, at most `depth`.
    room: u32,
    depth: u32,
    ended: bool,
}

impl ShmReceiveQueue {
    /// Returns a queue for at most `depth` receives.
    pub(crate) fn new(depth: u32) -> Self {
        Self { posted: Box::default(), head: 0, tail: 0, room: 0, depth, ended: false }
    }

    /// Frees the memory; the queue takes nothing any more.
    pub(crate) fn end(&mut self) {
        *self = Self { ended: true, ..Self::new(0) };
    }

    /// Returns whether it was ended: its number may be given to another.
    pub(crate) fn is_ended(&self) -> bool {
        self.ended
    }

    #[inline(always)]
    fn place(&self, count: u32) -> usize {
        count as usize & self.posted.len().wrapping_sub(1)
    }

    /// Adds one; false if the queue is full.
    pub(crate) fn push(&mut self, receive: &Receive) -> bool {
        if self.tail.wrapping_sub(self.head) == self.room && self.room < self.depth {
            self.grow(receive);
        }
        self.push_straight(receive)
    }

    /// Adds one, if there is memory for it. Returns whether there was.
    #[inline(always)]
    pub(crate) fn push_straight(&mut self, receive: &Receive) -> bool {
        if self.tail.wrapping_sub(self.head) >= self.room {
            return false;
        }
        let place = self.place(self.tail);
        let Some(place) = self.posted.get_mut(place) else { return false };
        *place = *receive;
        self.tail = self.tail.wrapping_add(1);
        true
    }

    /// Doubles the memory; `filler` initializes unused entries.
    fn grow(&mut self, filler: &Receive) {
        let count = self.posted.len();
        let mut posted = vec![*filler; (count * 2).max(4)];
        for (at, to) in posted.iter_mut().enumerate().take(count) {
            *to = self.posted[self.place(self.head.wrapping_add(at as u32))];
        }
        self.posted = posted.into_boxed_slice();
        (self.head, self.tail) = (0, self.tail.wrapping_sub(self.head));
        self.room = self.depth.min(self.posted.len() as u32);
    }

    /// Returns the next one to be taken.
    #[inline(always)]
    pub(crate) fn front(&self) -> Option<&Receive> {
        if self.is_empty() { None } else { self.posted.get(self.place(self.head)) }
    }

    /// Takes the next one, which exists.
    #[inline(always)]
    pub(crate) fn take(&mut self) {
        debug_assert!(!self.is_empty());
        self.head = self.head.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::{LocalSlice, ReceiveQueueId, RegionId};

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
                    queue.room().unwrap().fill(&numbered(pushed));
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
            queue.room().unwrap().fill(&numbered(number));
        }
        assert!(queue.is_full());
        let mut one = [Completion::BLANK];
        assert_eq!(queue.take(&mut one), 1);
        assert!(!queue.is_full());
    }

    #[test]
    fn receives_come_in_order_while_the_queue_grows_and_its_counts_go_round() {
        const DEPTH: u32 = 21;
        let mut queue = ShmReceiveQueue::new(DEPTH);
        (queue.head, queue.tail) = (u32::MAX - 1, u32::MAX - 1);
        let receive = |id| {
            let into = LocalSlice { region: RegionId(1), offset: id, bytes: 8 };
            Receive { id: WorkId(id), queue: ReceiveQueueId(0), into }
        };
        let (mut pushed, mut taken) = (0, 0);
        for round in 0..400 {
            for _ in 0..round % 29 {
                let room = pushed - taken < u64::from(DEPTH);
                assert_eq!(queue.push(&receive(pushed)), room);
                pushed += u64::from(room);
            }
            for _ in 0..round % 23 {
                let front = queue.front().copied();
                assert_eq!(front, (taken < pushed).then(|| receive(taken)));
                if front.is_some() {
                    queue.take();
                    taken += 1;
                }
            }
        }
        assert!(taken > 1000, "the queue moved: {taken}");
    }
}
