//! Background write-back of owned lines of other homes, so that the death of this node loses little.
//!
//! When the tag of a line rises to `Dirty`, its way in the cache (its *slot*) joins a queue with the version
//! of its tag, which each write raises anyway: hits have no extra work. The engine checks each slot every half interval. If the
//! version has changed, the line is in use (it would be lost with this node even if its home had older
//! bytes), and the slot waits for another half. The same holds while a closure of [`Session::atomic`](crate::Session::atomic)
//! changes the line or an operation pins it: the engine would block on it. Otherwise the last write was
//! between a half and a whole interval ago, and the engine sends the bytes to the home and keeps the line as
//! `Shared` (`protocol::coherence`, event `WriteBack`). The next write needs the home again, and the slot
//! rejoins the queue. A line that is written all the time stays owned.
//!
//! **Pauses.** Lines written less often than that need their homes again for each write. With many such
//! lines the program becomes so slow that no line counts as in use any more. So lines that were written
//! back and are owned again are counted. If the round trips for them take more than a quarter of the time,
//! write-back pauses until they have become few, and for some further intervals: [`PAUSE_LEAST`] to
//! [`PAUSE_MOST`] half intervals, doubling if it recurs soon.
//!
//! *Invariants*
//! - A slot at `Dirty` is in the queue, or its write-back is in flight.
//! - A slot is in the queue at most once, so the queue has no more entries than the cache has slots.
//! - No line is written back twice within half an interval: the time of an entry is that of the engine's
//!   last reading of the clock, which is no earlier than the last write-back.

use super::Engine;
use crate::hit::{Slot, TagValue, slots};
use farside_base::{LineAddress, NodeSet, OperationId};
use farside_protocol::coherence::CoherenceEvent;
use std::collections::VecDeque;

/// Maximum bytes of lines that one poll writes back.
const BYTES_PER_POLL: usize = 64 << 10;
/// Maximum queue entries that one poll examines.
const ENTRIES_PER_POLL: usize = 64;

/// Round trips for lines that were written back may take one part in this many of the time.
const SHARE: u64 = 4;
/// Half intervals of a pause, minimum and maximum.
const PAUSE_LEAST: u64 = 8;
const PAUSE_MOST: u64 = 64;
/// The assumed round trip before one was measured.
const ROUND_TRIP_NS: u64 = 50_000;
/// A write-back without an answer within this time is not measured.
const SAMPLE_NS: u64 = 1_000_000_000;

/// A set of slots, a bit for each.
#[derive(Debug)]
struct Slots(Box<[u64]>);

impl Slots {
    /// Inserts a slot; false if it was in the set or out of range.
    fn insert(&mut self, slot: Slot) -> bool {
        let bit = 1 << (slot.0 % 64);
        let word = self.0.get_mut(slot.0 as usize / 64).filter(|word| **word & bit == 0);
        word.map(|word| *word |= bit).is_some()
    }

    /// Removes a slot; returns whether it was in the set.
    fn remove(&mut self, slot: Slot) -> bool {
        let bit = 1 << (slot.0 % 64);
        let word = self.0.get_mut(slot.0 as usize / 64).filter(|word| **word & bit != 0);
        word.map(|word| *word &= !bit).is_some()
    }
}

/// Decides whether write-backs are worth their cost.
#[derive(Debug)]
struct Pauses {
    /// Slots of lines that were written back and are still cached for reading.
    clean: Slots,
    /// Of these, lines that were owned again in this half interval.
    returns: u64,
    /// The end of this half interval.
    ends_ns: u64,
    /// The end of the pause.
    until_ns: u64,
    /// The length of the last pause in half intervals.
    halves: u64,
    /// The last measured time from request to answer; at most twice the previous one, because a delayed
    /// answer is no measure.
    round_trip_ns: u64,
    /// The measured write-back in flight, and its start.
    sample: Option<(LineAddress, u64)>,
}

impl Pauses {
    /// Evaluates the half interval if it has ended; returns whether write-back is paused.
    fn is_paused(&mut self, now_ns: u64, half_ns: u64) -> bool {
        if now_ns >= self.ends_ns {
            let is_paused = now_ns < self.until_ns;
            let cost_ns = self.returns.saturating_mul(self.round_trip_ns);
            if cost_ns > half_ns / SHARE {
                if !is_paused {
                    self.halves = (self.halves * 2).clamp(PAUSE_LEAST, PAUSE_MOST);
                    // Nothing is measured during a pause, so a stale measure would decide when it ends.
                    self.round_trip_ns = ROUND_TRIP_NS;
                }
                self.until_ns = now_ns.saturating_add(half_ns.saturating_mul(self.halves));
            } else if !is_paused {
                self.halves = self.halves.saturating_sub(1);
            }
            self.returns = 0;
            self.ends_ns = now_ns.saturating_add(half_ns);
        }
        now_ns < self.until_ns
    }

    /// Notes a write-back in the background.
    fn begins(&mut self, line: LineAddress, slot: Slot, now_ns: u64) {
        self.clean.insert(slot);
        let is_over = |(_, at_ns): (LineAddress, u64)| now_ns.saturating_sub(at_ns) > SAMPLE_NS;
        if self.sample.is_none_or(is_over) {
            self.sample = Some((line, now_ns));
        }
    }

    /// Notes the home's answer to a write-back.
    fn answered(&mut self, line: LineAddress, now_ns: u64) {
        let Some((_, at_ns)) = self.sample.take_if(|(sample, _)| *sample == line) else {
            return;
        };
        let taken_ns = now_ns.saturating_sub(at_ns);
        if taken_ns <= SAMPLE_NS {
            self.round_trip_ns = taken_ns.min(self.round_trip_ns.saturating_mul(2)).max(1);
        }
    }
}

/// A slot with an owned line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct OwnedSlot {
    slot: Slot,
    /// The version of its tag at the last check.
    version: u32,
    /// The time of the next check.
    due_ns: u64,
}

/// Owned lines, by the time of the next check.
#[derive(Debug)]
pub(crate) struct WriteBacks {
    /// The time between two checks of a line; `None`: lines stay owned until other nodes want them.
    half_ns: Option<u64>,
    queue: VecDeque<OwnedSlot>,
    /// Which slots are in the queue.
    queued: Slots,
    pauses: Pauses,
    /// The last reading of the clock.
    seen_ns: u64,
    /// The queue got its first entry since sleeping threads were last notified.
    is_news: bool,
}

impl WriteBacks {
    pub(crate) fn new(interval_ns: Option<u64>, cache_bytes: u64) -> Self {
        let count = interval_ns.map_or(0, |_| slots(cache_bytes));
        let none = || Slots(vec![0; count.div_ceil(64) as usize].into_boxed_slice());
        let pauses = Pauses {
            clean: none(),
            returns: 0,
            ends_ns: 0,
            until_ns: 0,
            halves: 0,
            round_trip_ns: ROUND_TRIP_NS,
            sample: None,
        };
        Self {
            half_ns: interval_ns.map(|interval_ns| interval_ns / 2),
            queue: VecDeque::new(),
            queued: none(),
            pauses,
            seen_ns: 0,
            is_news: false,
        }
    }

    /// The time of the first check that is due.
    pub(crate) fn next_due_ns(&self) -> u64 {
        self.queue.front().map_or(u64::MAX, |entry| entry.due_ns)
    }

    /// Adds a slot, unless it is queued.
    fn add(&mut self, slot: Slot, version: u32, now_ns: impl FnOnce() -> u64) {
        self.pauses.returns += u64::from(self.pauses.clean.remove(slot));
        if !self.queued.insert(slot) {
            return;
        }
        if self.queue.is_empty() {
            self.seen_ns = now_ns();
            self.is_news = true;
        }
        self.push(slot, version);
    }

    /// Appends a slot.
    fn push(&mut self, slot: Slot, version: u32) {
        let due_ns = self.seen_ns.saturating_add(self.half_ns.unwrap_or(u64::MAX));
        self.queue.push_back(OwnedSlot { slot, version, due_ns });
    }

    /// Takes the first entry if it is due. Push its slot again, or [`forget`](Self::forget) it.
    fn take_due(&mut self) -> Option<OwnedSlot> {
        self.queue.pop_front_if(|entry| entry.due_ns <= self.seen_ns)
    }

    /// Empties the queue permanently: this node has left the cluster or was removed.
    pub(crate) fn stop(&mut self) {
        self.queue.clear();
        self.queued = Slots(Box::default()); // every slot is out of range
        self.is_news = false;
    }

    /// Notes that a slot is not in the queue any more.
    fn forget(&mut self, slot: Slot) {
        self.queued.remove(slot);
    }
}

impl Engine {
    /// Notes that this node owns a line of another home from now on.
    pub(crate) fn owned(&mut self, line: LineAddress) {
        if let Some((slot, version)) = self.lines.slot_and_version(line) {
            let links = &self.links;
            self.write_backs.add(slot, version, || links.now_ns());
        }
    }

    /// The time until the first check, if the queue was empty at the previous call.
    pub(crate) fn take_first_due(&mut self) -> Option<u64> {
        if !std::mem::take(&mut self.write_backs.is_news) {
            return None;
        }
        Some(self.write_backs.next_due_ns().saturating_sub(self.links.now_ns()))
    }

    /// Checks the owned lines that are due, and asks their homes to recall those not written for half an
    /// interval; returns whether there were any.
    pub(crate) fn write_back_due(&mut self) -> bool {
        if self.write_backs.queue.is_empty() {
            return false;
        }
        self.write_backs.seen_ns = self.links.now_ns();
        if self.write_backs.next_due_ns() > self.write_backs.seen_ns {
            return false;
        }
        let now_ns = self.write_backs.seen_ns;
        let half_ns = self.write_backs.half_ns.unwrap_or(u64::MAX);
        let is_paused = self.write_backs.pauses.is_paused(now_ns, half_ns);
        let busy = self.busy_homes();
        let mut bytes = 0;
        for _ in 0..ENTRIES_PER_POLL {
            if bytes >= BYTES_PER_POLL {
                break;
            }
            let Some(OwnedSlot { slot, version, .. }) = self.write_backs.take_due() else {
                break;
            };
            match self.lines.owned_in(slot) {
                None => self.write_backs.forget(slot),
                Some((line, tag)) if is_paused || self.is_in_use(line, tag, version, busy) => {
                    self.write_backs.push(slot, tag.version());
                }
                Some((line, _)) => {
                    self.write_backs.forget(slot);
                    self.write_backs.pauses.begins(line, slot, now_ns);
                    bytes += line.line_size().bytes();
                    let here = self.here(line);
                    self.step_own(CoherenceEvent::WriteBack { operation: None, line, here });
                }
            }
        }
        true
    }

    /// Whether a line was written since its tag had this version, or cannot be recalled at once.
    fn is_in_use(&self, line: LineAddress, tag: TagValue, version: u32, busy: NodeSet) -> bool {
        tag.version() != version
            || tag.busy()
            || busy.contains(line.home())
            || self.coherence.machine().is_pinned(line)
    }

    /// Homes to which messages wait for credits or a link: more would only lengthen their queues.
    fn busy_homes(&self) -> NodeSet {
        let peers = self.links.peers();
        let ready = |node| peers.is_linked(node) && peers.has_sent_all(node);
        peers.iter().filter(|node| !ready(*node)).collect()
    }

    /// Notes a home's answer to a write-back.
    pub(crate) fn written(&mut self, line: LineAddress) {
        if self.write_backs.pauses.sample.is_some() {
            self.write_backs.pauses.answered(line, self.links.now_ns());
        }
    }

    /// Notes that a line's frame is about to become free.
    pub(crate) fn leaves_frame(&mut self, line: LineAddress) {
        if let Some((slot, _)) = self.lines.slot_and_version(line) {
            self.write_backs.pauses.clean.remove(slot);
        }
    }

    /// Starts an operation that ends when a line's home has its bytes.
    pub(crate) fn start_write_back(&mut self, operation: OperationId, line: LineAddress) {
        if let Some(code) = self.refusal_at(line) {
            return self.finish(operation, Err(code));
        }
        let here = self.here(line);
        self.step_own(CoherenceEvent::WriteBack { operation: Some(operation), line, here });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::GlobalAddress;

    #[test]
    fn frame_is_queued_once_and_due_after_half_an_interval() {
        let mut lines = WriteBacks::new(Some(200), 64 * 128);
        lines.add(Slot(3), 7, || 1_000);
        lines.add(Slot(3), 8, || panic!("it is there"));
        lines.add(Slot(127), 9, || panic!("the clock was read already"));
        assert_eq!((lines.next_due_ns(), lines.queue.len()), (1_100, 2));
        assert_eq!(lines.take_due(), None);
        lines.seen_ns = 1_100;
        assert_eq!(lines.take_due(), Some(OwnedSlot { slot: Slot(3), version: 7, due_ns: 1_100 }));
        lines.push(Slot(3), 8);
        lines.add(Slot(3), 9, || panic!("it is there again"));
        assert_eq!(lines.take_due().map(|entry| entry.slot), Some(Slot(127)));
        lines.forget(Slot(127));
        assert_eq!((lines.take_due(), lines.next_due_ns()), (None, 1_200));
        lines.add(Slot(127), 9, || panic!("the queue is not empty"));
        assert_eq!(lines.queue.len(), 2);
    }

    #[test]
    fn write_backs_pause_while_lines_return() {
        let mut lines = WriteBacks::new(Some(2_000_000), 1 << 20);
        let line = GlobalAddress::from_bits(0).unwrap().line();
        let half_ns = 1_000_000;
        let mut time_ns = 0;
        let mut period = |returns: u32| {
            for slot in (0..returns).map(Slot) {
                lines.pauses.begins(line, slot, time_ns);
                lines.add(slot, 0, || time_ns);
                lines.forget(slot);
            }
            lines.queue.clear();
            time_ns += half_ns;
            lines.pauses.is_paused(time_ns, half_ns)
        };
        assert!(!period(5), "five round trips of 50 us in 1 ms");
        assert!(period(6));
        for _ in 1..PAUSE_LEAST {
            assert!(period(0));
        }
        assert!(!period(0));
        let pause = |period: &mut dyn FnMut(u32) -> bool| (1..).take_while(|_| period(0)).count();
        assert!(period(9));
        assert!(period(9), "longer, as lines still return");
        assert_eq!(pause(&mut period) as u64 + 1, 2 * (PAUSE_LEAST - 1));
        for _ in 0..8 {
            period(9);
            pause(&mut period);
        }
        assert!(period(9));
        assert_eq!(pause(&mut period) as u64 + 1, PAUSE_MOST);
    }

    #[test]
    fn slow_answer_does_not_decide_how_long_a_pause_is() {
        let mut lines = WriteBacks::new(Some(2_000_000), 1 << 20);
        let line = GlobalAddress::from_bits(0).unwrap().line();
        let pauses = &mut lines.pauses;
        pauses.begins(line, Slot(0), 0);
        pauses.answered(line, SAMPLE_NS + 1);
        assert_eq!(pauses.round_trip_ns, ROUND_TRIP_NS, "it measures nothing");
        pauses.begins(line, Slot(0), 0);
        pauses.answered(line, SAMPLE_NS);
        assert_eq!(pauses.round_trip_ns, 2 * ROUND_TRIP_NS, "at most twice what it was");
        pauses.begins(line, Slot(0), 0);
        pauses.answered(line, 70_000);
        assert_eq!(pauses.round_trip_ns, 70_000);
        pauses.round_trip_ns = SAMPLE_NS;
        pauses.returns = 1;
        assert!(pauses.is_paused(1_000_000, 1_000_000));
        assert_eq!(pauses.round_trip_ns, ROUND_TRIP_NS);
        let halves = (1..).take_while(|half| {
            pauses.returns = 1;
            pauses.is_paused(1_000_000 * (half + 1), 1_000_000)
        });
        assert_eq!(halves.count() as u64, PAUSE_LEAST - 1, "one line in a half interval is few");
    }

    #[test]
    fn nothing_is_queued_without_an_interval() {
        let mut lines = WriteBacks::new(None, 1 << 20);
        lines.add(Slot(3), 0, || panic!("no clock"));
        assert_eq!(lines.next_due_ns(), u64::MAX);
    }
}

#[cfg(test)]
#[path = "write_back_tests.rs"]
mod driven;
