//! Calls that wait for a condition that must be polled, and calls whose wait is over.

use std::collections::{BTreeSet, VecDeque};

/// Most blocked calls checked per poll: this many checks take some hundred nanoseconds.
const CHECKS_MAX: usize = 16;

/// What a call waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Awaited {
    /// A word of local memory.
    Word,
    /// A lock of this program.
    Lock(u64),
    /// Scratch memory.
    Block,
}

/// Position in a queue: what a call waits for, and since when.
type QueuePosition = (Awaited, u64);

/// Waiting calls and woken calls. Invariant: each call is watched at most once and woken at most once. Operations
/// on one call cost the logarithm of the number of calls.
#[derive(Debug, Default)]
pub(crate) struct BlockedCalls {
    /// Calls that wait.
    all: BTreeSet<usize>,
    /// Where the next round of checks begins; it goes round robin.
    next: usize,
    /// The same calls by what they wait for, the longest wait first.
    queues: BTreeSet<(QueuePosition, usize)>,
    waits: u64,
    /// For each call: its position in `queues`, and whether it is in `woken`.
    entries: Vec<BlockedEntry>,
    /// Calls whose wait is over; may include some removed since.
    woken: VecDeque<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct BlockedEntry {
    position: Option<QueuePosition>,
    is_woken: bool,
}

impl BlockedCalls {
    fn entry(&mut self, at: usize) -> &mut BlockedEntry {
        if self.entries.len() <= at {
            self.entries.resize(at + 1, BlockedEntry::default());
        }
        &mut self.entries[at]
    }

    /// Adds a waiting call.
    pub(crate) fn add(&mut self, at: usize, awaited: Awaited) {
        self.leave(at);
        self.waits += 1;
        let position = (awaited, self.waits);
        self.entry(at).position = Some(position);
        self.queues.insert((position, at));
        self.all.insert(at);
    }

    /// Removes a call; it is not woken either.
    pub(crate) fn remove(&mut self, at: usize) {
        self.leave(at);
        self.entry(at).is_woken = false;
    }

    fn leave(&mut self, at: usize) {
        if let Some(position) = self.entry(at).position.take() {
            self.queues.remove(&(position, at));
            self.all.remove(&at);
        }
    }

    /// Ends the wait of a call.
    pub(crate) fn wake(&mut self, at: usize) {
        self.leave(at);
        if !std::mem::replace(&mut self.entry(at).is_woken, true) {
            self.woken.push_back(at);
        }
    }

    /// Wakes at most `most` calls that wait for this, the longest wait first.
    pub(crate) fn wake_those(&mut self, awaited: Awaited, most: usize) {
        for _ in 0..most {
            let waiting = self.queues.range(((awaited, 0), 0)..=((awaited, u64::MAX), usize::MAX));
            let Some((_, at)) = waiting.copied().next() else { break };
            self.wake(at);
        }
    }

    /// Checks the next few calls, or all, and wakes those whose wait `is_over`.
    pub(crate) fn check(&mut self, all: bool, is_over: impl Fn(usize) -> bool) {
        let most = if all { self.all.len() } else { CHECKS_MAX };
        let (after, before) = (self.all.range(self.next..), self.all.range(..self.next));
        let mut next = self.next;
        let mut over = [usize::MAX; CHECKS_MAX];
        let mut found = 0;
        for at in after.chain(before).take(most) {
            next = at + 1;
            if is_over(*at) {
                over[found] = *at;
                found += 1;
            }
            if found == CHECKS_MAX {
                break;
            }
        }
        self.next = next;
        over[..found].iter().for_each(|at| self.wake(*at));
    }

    /// Returns the next call whose wait is over.
    pub(crate) fn take(&mut self) -> Option<usize> {
        loop {
            let at = self.woken.pop_front()?;
            if std::mem::take(&mut self.entry(at).is_woken) {
                return Some(at);
            }
        }
    }

    /// Whether no call waits and none was woken.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.woken.is_empty()
    }

    /// Whether a call was woken.
    pub(crate) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn taken(blocked: &mut BlockedCalls) -> Vec<usize> {
        std::iter::from_fn(|| blocked.take()).collect()
    }

    #[test]
    fn waiting_calls_are_checked_round_robin_a_few_per_poll() {
        let mut blocked = BlockedCalls::default();
        (0..100).for_each(|at| blocked.add(at, Awaited::Word));
        let seen = RefCell::new(vec![0; 100]);
        for position in 1..=70 {
            blocked.check(false, |at| {
                seen.borrow_mut()[at] += 1;
                false
            });
            assert_eq!(seen.borrow().iter().sum::<usize>(), position * CHECKS_MAX);
        }
        assert!(seen.borrow().iter().all(|checks| (11..=12).contains(checks)), "{seen:?}");
        blocked.check(true, |at| at % 10 == 3);
        assert_eq!(taken(&mut blocked).len(), 10);
        assert!(!blocked.has_woken() && !blocked.is_empty());
    }

    #[test]
    fn call_is_woken_once_and_not_after_removal() {
        let mut blocked = BlockedCalls::default();
        (0..4).for_each(|at| blocked.add(at, Awaited::Word));
        blocked.wake(2);
        blocked.wake(2);
        blocked.check(false, |at| at == 2 || at == 0);
        blocked.wake(9);
        blocked.remove(0);
        assert_eq!(taken(&mut blocked), [2, 9]);
        blocked.add(2, Awaited::Word);
        blocked.wake(2);
        blocked.remove(2);
        blocked.add(2, Awaited::Word);
        blocked.wake(2);
        assert_eq!(taken(&mut blocked), [2], "another call in the same slot");
        (0..10).for_each(|at| blocked.remove(at));
        assert!(blocked.is_empty() && blocked.queues.is_empty());
    }

    #[test]
    fn longest_wait_is_woken_first_among_calls_that_match() {
        let mut blocked = BlockedCalls::default();
        let awaited = [Awaited::Block, Awaited::Lock(1), Awaited::Lock(2), Awaited::Word];
        for at in (0..12).rev() {
            blocked.add(at, awaited[at % 4]);
        }
        blocked.wake_those(Awaited::Block, 1);
        assert_eq!(taken(&mut blocked), [8]);
        blocked.wake_those(Awaited::Lock(2), usize::MAX);
        assert_eq!(taken(&mut blocked), [10, 6, 2]);
        blocked.wake_those(Awaited::Lock(2), usize::MAX);
        blocked.wake_those(Awaited::Lock(3), 1);
        assert_eq!(taken(&mut blocked), []);
    }
}
