//! Owned lines of other homes are written back, so that a node that dies takes little with it.
//!
//! When the tag of a line rises to `Dirty`, its frame joins a queue with the version of its tag, which each write
//! raises anyway: hits do nothing for it. The engine looks at each frame every half interval. If the version has
//! changed, the line is in use, and would be lost with this node whether or not its home had older bytes: it waits
//! for another half. So does one that a closure of [`Session::atomic`] is changing, or that an operation keeps at this
//! node: the engine would wait for it. If not, its last write was between a half and a whole interval ago, and the engine asks the home
//! to recall it down to `Shared` (`protocol::coherence`, event `WriteBack`). The next write needs the home again, and
//! the frame joins the queue again. So a line that is written all the time stays owned.
//!
//! **Pauses.** Lines that are written less often than that ask their homes again for each write. Where many do,
//! the program becomes so slow by it that no line is in use by the rule above, for ever. So lines that were written
//! back and are owned again are counted. If the round trips for them take more than a quarter of the time, nothing
//! is written back until they have become few, and for some intervals more: [`PAUSE_LEAST`] to [`PAUSE_MOST`] half
//! ones, twice as many if it happens again soon.
//!
//! *Invariants*
//! - A frame at `Dirty` is in the queue, or its write-back is in flight.
//! - A frame is in the queue at most once, so the queue has no more entries than the cache has frames.
//! - No line is written back twice within half an interval: the time of an entry is that of the engine's last look at
//!   the clock, which is no earlier than the last write-back.

use crate::engine::Engine;
use crate::hit::TagValue;
use crate::memory::{Buffer, Session, What};
use crate::{Error, GlobalAddress};
use farside_base::{LineAddress, LineSize, NodeSet, OperationId};
use farside_protocol::coherence::{Event, Frame};
use std::collections::VecDeque;

/// Bytes of lines that are asked to be recalled in one poll of the engine, at most.
const BYTES_PER_POLL: usize = 64 << 10;
/// Entries of the queue that one poll goes through, at most.
const ENTRIES_PER_POLL: usize = 64;

/// Round trips for lines that were written back may take this part of the time.
const SHARE: u64 = 4;
/// Half intervals that a pause takes, at least and at most.
const PAUSE_LEAST: u64 = 8;
const PAUSE_MOST: u64 = 64;
/// What a round trip is taken for before one was measured.
const ROUND_TRIP_NS: u64 = 50_000;
/// A write-back that is not answered in this time measures nothing.
const SAMPLE_NS: u64 = 1_000_000_000;

/// A set of frames, a bit for each.
#[derive(Debug)]
struct Frames(Box<[u64]>);

impl Frames {
    /// Whether the frame was not in the set, and has room.
    fn insert(&mut self, frame: Frame) -> bool {
        let bit = 1 << (frame.0 % 64);
        let word = self.0.get_mut(frame.0 as usize / 64).filter(|word| **word & bit == 0);
        word.map(|word| *word |= bit).is_some()
    }

    /// Whether the frame was in the set.
    fn remove(&mut self, frame: Frame) -> bool {
        let bit = 1 << (frame.0 % 64);
        let word = self.0.get_mut(frame.0 as usize / 64).filter(|word| **word & bit != 0);
        word.map(|word| *word &= !bit).is_some()
    }
}

/// Whether write-backs are worth what they cost.
#[derive(Debug)]
struct Pauses {
    /// Frames whose lines were written back and are still there to read.
    clean: Frames,
    /// Lines among them that were owned again in this half interval.
    returns: u64,
    /// When this half interval ends.
    ends_ns: u64,
    /// Until when nothing is written back.
    until_ns: u64,
    /// Half intervals that the last pause took.
    halves: u64,
    /// What a write-back last took from request to answer; at most twice what it took before, for one that was held
    /// up is no measure.
    round_trip_ns: u64,
    /// One that is in flight, and since when.
    sample: Option<(LineAddress, u64)>,
}

impl Pauses {
    /// Judges the half interval that has ended, if one has; whether there is a pause now.
    fn is_paused(&mut self, now_ns: u64, half_ns: u64) -> bool {
        if now_ns >= self.ends_ns {
            let is_paused = now_ns < self.until_ns;
            let cost_ns = self.returns.saturating_mul(self.round_trip_ns);
            if cost_ns > half_ns / SHARE {
                if !is_paused {
                    self.halves = (self.halves * 2).clamp(PAUSE_LEAST, PAUSE_MOST);
                    // Nothing is measured in a pause, so an old measure would decide when it ends.
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

    /// A line is written back in the background.
    fn begins(&mut self, line: LineAddress, frame: Frame, now_ns: u64) {
        self.clean.insert(frame);
        let is_over = |(_, at_ns): (LineAddress, u64)| now_ns.saturating_sub(at_ns) > SAMPLE_NS;
        if self.sample.is_none_or(is_over) {
            self.sample = Some((line, now_ns));
        }
    }

    /// The home has answered a write-back.
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

/// A frame whose line is owned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    frame: Frame,
    /// Of its tag, when that was last looked at.
    version: u32,
    /// When it is looked at next.
    due_ns: u64,
}

/// Owned lines, by the time of the next look.
#[derive(Debug)]
pub(crate) struct WriteBacks {
    /// Between two looks at a line; `None`: lines stay owned until others want them.
    half_ns: Option<u64>,
    queue: VecDeque<Entry>,
    /// Which frames are in the queue.
    queued: Frames,
    pauses: Pauses,
    /// When the clock was last looked at.
    seen_ns: u64,
    /// The first entry has come since the threads that sleep were last told.
    is_news: bool,
}

impl WriteBacks {
    pub(crate) fn new(interval_ns: Option<u64>, cache_bytes: u64) -> Self {
        let frames = interval_ns.map_or(0, |_| cache_bytes >> LineSize::MIN.log2());
        let none = || Frames(vec![0; frames.div_ceil(64) as usize].into_boxed_slice());
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

    /// When the first line is to be looked at.
    pub(crate) fn next_due_ns(&self) -> u64 {
        self.queue.front().map_or(u64::MAX, |entry| entry.due_ns)
    }

    /// Adds a frame, unless it is there.
    fn add(&mut self, frame: Frame, version: u32, now_ns: impl FnOnce() -> u64) {
        self.pauses.returns += u64::from(self.pauses.clean.remove(frame));
        if !self.queued.insert(frame) {
            return;
        }
        if self.queue.is_empty() {
            self.seen_ns = now_ns();
            self.is_news = true;
        }
        self.push(frame, version);
    }

    /// Puts a frame behind all others.
    fn push(&mut self, frame: Frame, version: u32) {
        let due_ns = self.seen_ns.saturating_add(self.half_ns.unwrap_or(u64::MAX));
        self.queue.push_back(Entry { frame, version, due_ns });
    }

    /// Takes the first entry, if its time has come. Push its frame again, or [`forget`](Self::forget) it.
    fn take_due(&mut self) -> Option<Entry> {
        self.queue.pop_front_if(|entry| entry.due_ns <= self.seen_ns)
    }

    /// Empties the queue for good: this node is no member any more.
    pub(crate) fn stop(&mut self) {
        self.queue.clear();
        self.queued = Frames(Box::default()); // no frame has room in it
        self.is_news = false;
    }

    /// A frame is not in the queue any more.
    fn forget(&mut self, frame: Frame) {
        self.queued.remove(frame);
    }
}

impl Engine {
    /// A line of another home is owned from now on.
    pub(crate) fn owned(&mut self, line: LineAddress) {
        if let Some((frame, version)) = self.lines.frame_and_version(line) {
            let fabric = &self.boot.fabric;
            self.write_backs.add(frame, version, || fabric.time_ns());
        }
    }

    /// In how long the first line is to be looked at, if the queue was empty when this was last asked.
    pub(crate) fn take_first_due(&mut self) -> Option<u64> {
        if !std::mem::take(&mut self.write_backs.is_news) {
            return None;
        }
        Some(self.write_backs.next_due_ns().saturating_sub(self.boot.fabric.time_ns()))
    }

    /// Looks at owned lines whose time has come, and has the homes of those recall them that have not been
    /// written for half an interval; whether there was any.
    pub(crate) fn write_back_due(&mut self) -> bool {
        if self.write_backs.queue.is_empty() {
            return false;
        }
        self.write_backs.seen_ns = self.boot.fabric.time_ns();
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
            let Some(Entry { frame, version, .. }) = self.write_backs.take_due() else {
                break;
            };
            match self.lines.owned_in(frame) {
                None => self.write_backs.forget(frame),
                Some((line, tag)) if is_paused || self.is_in_use(line, tag, version, busy) => {
                    self.write_backs.push(frame, tag.version());
                }
                Some((line, _)) => {
                    self.write_backs.forget(frame);
                    self.write_backs.pauses.begins(line, frame, now_ns);
                    bytes += line.line_size().bytes();
                    let here = self.here(line);
                    self.step_own(Event::WriteBack { operation: None, line, here });
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
            || self.coherence.is_pinned(line)
    }

    /// Homes to which messages wait for credits, or for a link: more would only lengthen their queues.
    fn busy_homes(&self) -> NodeSet {
        let ready = |node| {
            let peer = self.peers.get(node);
            peer.is_none_or(|peer| peer.link.is_some() && peer.messenger.has_sent_all())
        };
        self.peers.iter().filter(|node| !ready(*node)).collect()
    }

    /// A home has answered a write-back.
    pub(crate) fn written(&mut self, line: LineAddress) {
        if self.write_backs.pauses.sample.is_some() {
            self.write_backs.pauses.answered(line, self.boot.fabric.time_ns());
        }
    }

    /// A line's frame is about to be free.
    pub(crate) fn leaves_frame(&mut self, line: LineAddress) {
        if let Some(frame) = self.lines.frame(line) {
            self.write_backs.pauses.clean.remove(frame);
        }
    }

    /// Starts an operation that ends when a line's home has its bytes.
    pub(crate) fn start_write_back(&mut self, operation: OperationId, line: LineAddress) {
        if let Some(code) = self.refusal_at(line) {
            return self.finish(operation, Err(code));
        }
        let here = self.here(line);
        self.step_own(Event::WriteBack { operation: Some(operation), line, here });
    }
}

impl Session {
    /// Writes the lines of a range that this node owns back to their homes.
    ///
    /// *Guarantees*: when it returns, the homes have everything that this session wrote there before, and that
    /// other sessions of this node had fenced: the death of this node loses none of it. A line that another node has
    /// taken from this one meanwhile is fetched from there if it is still cached here, and is that node's to lose if
    /// not. This node keeps copies to read, and asks the home again before its next write.
    /// *Blocks* until the homes have answered, up to 8 lines at a time. *Cost*: one and a half round trips to the
    /// home and the bytes of an owned line; one round trip for any other, cached here or not (and a recall where
    /// another node owns it), because only the home knows what it has; nothing for memory of this home. The next
    /// write of each line is one round trip.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`; the first failure of an earlier write; `NodeLost` and `NodeLeft` when a home is gone;
    /// `LineLost` when a node died that had taken a line (overwrite the whole line); `Unallocated` when the
    /// memory was freed; `ForeignAddress` for memory that no member ever lent; `TimedOut`.
    pub fn write_back(&mut self, address: GlobalAddress, bytes: usize) -> Result<(), Error> {
        self.access(What::WriteBack, address, bytes, Buffer::In(&[])).map(drop)
    }

    /// The awaitable twin of [`write_back`](Self::write_back).
    ///
    /// # Errors
    /// As `write_back`.
    pub async fn write_back_async(
        &mut self,
        address: GlobalAddress,
        bytes: usize,
    ) -> Result<(), Error> {
        self.access_async(What::WriteBack, address, bytes, Buffer::In(&[])).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_is_queued_once_and_due_after_half_an_interval() {
        let mut lines = WriteBacks::new(Some(200), 64 * 128);
        lines.add(Frame(3), 7, || 1_000);
        lines.add(Frame(3), 8, || panic!("it is there"));
        lines.add(Frame(127), 9, || panic!("the clock was looked at already"));
        assert_eq!((lines.next_due_ns(), lines.queue.len()), (1_100, 2));
        assert_eq!(lines.take_due(), None);
        lines.seen_ns = 1_100;
        assert_eq!(lines.take_due(), Some(Entry { frame: Frame(3), version: 7, due_ns: 1_100 }));
        lines.push(Frame(3), 8);
        lines.add(Frame(3), 9, || panic!("it is there again"));
        assert_eq!(lines.take_due().map(|entry| entry.frame), Some(Frame(127)));
        lines.forget(Frame(127));
        assert_eq!((lines.take_due(), lines.next_due_ns()), (None, 1_200));
        lines.add(Frame(127), 9, || panic!("the queue is not empty"));
        assert_eq!(lines.queue.len(), 2);
    }

    #[test]
    fn write_backs_pause_while_lines_return() {
        let mut lines = WriteBacks::new(Some(2_000_000), 1 << 20);
        let line = GlobalAddress::from_bits(0).unwrap().line();
        let half_ns = 1_000_000;
        let mut time_ns = 0;
        let mut period = |returns: u32| {
            for frame in (0..returns).map(Frame) {
                lines.pauses.begins(line, frame, time_ns);
                lines.add(frame, 0, || time_ns);
                lines.forget(frame);
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
        pauses.begins(line, Frame(0), 0);
        pauses.answered(line, SAMPLE_NS + 1);
        assert_eq!(pauses.round_trip_ns, ROUND_TRIP_NS, "it measures nothing");
        pauses.begins(line, Frame(0), 0);
        pauses.answered(line, SAMPLE_NS);
        assert_eq!(pauses.round_trip_ns, 2 * ROUND_TRIP_NS, "at most twice what it was");
        pauses.begins(line, Frame(0), 0);
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
        lines.add(Frame(3), 0, || panic!("no clock"));
        assert_eq!(lines.next_due_ns(), u64::MAX);
    }
}

#[cfg(test)]
#[path = "write_back_tests.rs"]
mod driven;
