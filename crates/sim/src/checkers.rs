//! Checkers of coherence over the ordered events of a cluster: [`SingleWriter`] for permissions, [`ValueChain`] for
//! values, [`MemoryChecker`] for both.
//!
//! They check the guarantee, not the protocol: the single-writer/multiple-reader invariant and the data-value
//! invariant (Nagarajan, Sorin, Hill, Wood: A Primer on Memory Consistency and Cache Coherence, chapter 2). They
//! apply to any simulation that can report permissions and the order of reads and writes; that of whole nodes can,
//! since a simulation has one order.
//!
//! Not modelled: store buffers. A read served by the session's store buffer is no access to memory and is not
//! reported here; the litmus tests cover it.

use crate::explorer::Violation;
use farside_base::{GlobalAddress, LineAddress, NodeId, SessionId};
use farside_protocol::coherence::Level;
use std::collections::BTreeMap;

/// One event of a trace. Times do not decrease; simultaneous events are in the order of report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Observation {
    /// The tag of a line is set at a node, which changes the node's permission.
    Level {
        /// The node of the tag.
        node: NodeId,
        /// The line.
        line: LineAddress,
        /// The new permission.
        level: Level,
    },
    /// A node reads an aligned word from its copy of the line.
    Read {
        /// The reading node.
        node: NodeId,
        /// The reading session.
        session: SessionId,
        /// The word.
        address: GlobalAddress,
        /// The value found.
        value: u64,
    },
    /// A node writes an aligned word of a line that it may write.
    Write {
        /// The writing node.
        node: NodeId,
        /// The word.
        address: GlobalAddress,
        /// The value written.
        value: u64,
    },
    /// A node changes an aligned word atomically.
    Update {
        /// The node.
        node: NodeId,
        /// The word.
        address: GlobalAddress,
        /// The value before.
        before: u64,
        /// The value after.
        after: u64,
    },
    /// A node is dead: its permissions are void, and lines that only it could write are lost.
    Dead {
        /// The dead node.
        node: NodeId,
    },
    /// A line is initialised: allocated, all zero, at its home.
    Fresh {
        /// The line.
        line: LineAddress,
    },
}

/// Interval in which a node was permitted to write a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteInterval {
    /// The node.
    pub node: NodeId,
    /// Beginning of the interval.
    pub from_ns: u64,
    /// End of the interval; `None` while it is open.
    pub until_ns: Option<u64>,
}

/// The permissions of one line's holders, and the intervals in which nodes were permitted to write it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Holders {
    /// Nodes with a permission.
    levels: BTreeMap<NodeId, Level>,
    intervals: Vec<WriteInterval>,
    /// Whether the only node permitted to write it died.
    lost: bool,
}

/// Checks that at most one node may write a line at a time, and that no other node may read it meanwhile.
///
/// An unreported line belongs to its home: `Dirty` at the home, `Invalid` elsewhere.
/// Memory: one interval per change of writer and line, until [`forget_history`](Self::forget_history).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SingleWriter {
    lines: BTreeMap<LineAddress, Holders>,
}

impl SingleWriter {
    /// Records the new level of a node.
    ///
    /// # Errors
    /// If the level conflicts with that of another node.
    pub fn level(
        &mut self,
        at_ns: u64,
        node: NodeId,
        line: LineAddress,
        level: Level,
    ) -> Result<(), Violation> {
        let holders = self.holders(line);
        let conflicts = |other: Level| match level {
            Level::Invalid => false,
            Level::Shared => other == Level::Dirty,
            Level::Dirty => other != Level::Invalid,
        };
        let mut others = holders.levels.iter().filter(|(other, _)| **other != node);
        if let Some((other, theirs)) = others.find(|(_, theirs)| conflicts(**theirs)) {
            return Err(Violation::new(format!(
                "at {at_ns} ns: node {node} becomes {level:?} of line {line:?} while node {other} is {theirs:?}"
            )));
        }
        holders.set(at_ns, node, level);
        Ok(())
    }

    /// Returns the current permission of a node.
    pub fn level_of(&self, node: NodeId, line: LineAddress) -> Level {
        match self.lines.get(&line) {
            Some(holders) => holders.levels.get(&node).copied().unwrap_or_default(),
            None if line.home() == node => Level::Dirty,
            None => Level::Invalid,
        }
    }

    /// Records the death of a node. Returns the lines of other homes that are lost with it.
    pub fn dead(&mut self, at_ns: u64, node: NodeId) -> Vec<LineAddress> {
        let mut lost = Vec::new();
        for (line, holders) in &mut self.lines {
            if holders.levels.get(&node) == Some(&Level::Dirty) && line.home() != node {
                holders.lost = true;
                lost.push(*line);
            }
            holders.set(at_ns, node, Level::Invalid);
        }
        lost
    }

    /// Records that a line is initialised at its home.
    ///
    /// # Errors
    /// If another node still has a permission.
    pub fn fresh(&mut self, at_ns: u64, line: LineAddress) -> Result<(), Violation> {
        let home = line.home();
        let holders = self.holders(line);
        if let Some((other, level)) = holders.levels.iter().find(|(other, _)| **other != home) {
            return Err(Violation::new(format!(
                "at {at_ns} ns: line {line:?} is initialised while node {other} is {level:?}"
            )));
        }
        holders.lost = false;
        holders.set(at_ns, home, Level::Dirty);
        Ok(())
    }

    /// Whether the node with the only up-to-date copy died.
    pub fn is_lost(&self, line: LineAddress) -> bool {
        self.lines.get(&line).is_some_and(|holders| holders.lost)
    }

    /// Returns the write intervals of a line, oldest first. They do not overlap.
    pub fn write_intervals(&self, line: LineAddress) -> &[WriteInterval] {
        self.lines.get(&line).map_or(&[], |holders| &holders.intervals)
    }

    /// Drops the closed intervals.
    pub fn forget_history(&mut self) {
        for holders in self.lines.values_mut() {
            holders.intervals.retain(|interval| interval.until_ns.is_none());
        }
    }

    fn holders(&mut self, line: LineAddress) -> &mut Holders {
        self.lines.entry(line).or_insert_with(|| {
            let mut holders = Holders::default();
            holders.set(0, line.home(), Level::Dirty);
            holders
        })
    }
}

impl Holders {
    fn set(&mut self, at_ns: u64, node: NodeId, level: Level) {
        let before = if level == Level::Invalid {
            self.levels.remove(&node)
        } else {
            self.levels.insert(node, level)
        };
        match (before == Some(Level::Dirty), level == Level::Dirty) {
            (false, true) => {
                self.intervals.push(WriteInterval { node, from_ns: at_ns, until_ns: None })
            }
            (true, false) => {
                let open = self.intervals.iter_mut().rev();
                let mut open = open.filter(|one| one.node == node && one.until_ns.is_none());
                if let Some(interval) = open.next() {
                    interval.until_ns = Some(at_ns);
                }
            }
            (true, true) | (false, false) => {}
        }
    }
}

/// The values of one word, oldest first.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Word {
    /// Value number `first` and all later ones, each with the time of its write.
    values: Vec<(u64, u64)>,
    first: u64,
    /// Per session, the number of the latest value seen.
    seen: BTreeMap<SessionId, u64>,
}

impl Default for Word {
    fn default() -> Self {
        Self { values: vec![(0, 0)], first: 0, seen: BTreeMap::new() }
    }
}

impl Word {
    fn last(&self) -> (u64, u64) {
        self.values.last().copied().unwrap_or_default()
    }
}

/// Checks that every read returns a value that the word held at that time, and that no session reads an older value
/// later.
///
/// Words start with 0 at time 0. Memory: per written word, the values that were current in the last `window_ns` and
/// the preceding one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValueChain {
    words: BTreeMap<GlobalAddress, Word>,
    window_ns: u64,
}

impl ValueChain {
    /// Creates a checker for reads that take at most `window_ns`; 0 if a read is instantaneous.
    pub fn new(window_ns: u64) -> Self {
        Self { words: BTreeMap::new(), window_ns }
    }

    /// Records a write of a word.
    pub fn write(&mut self, at_ns: u64, address: GlobalAddress, value: u64) {
        let window_ns = self.window_ns;
        let word = self.words.entry(address).or_default();
        word.values.push((at_ns, value));
        // A value ends when the next one is written; values that ended before the window are not needed.
        let old_ns = at_ns.saturating_sub(window_ns);
        let over = word.values.windows(2).take_while(|pair| pair[1].0 < old_ns).count();
        word.values.drain(..over);
        word.first += over as u64;
    }

    /// Records an atomic change of a word from `before` to `after`.
    ///
    /// # Errors
    /// If the word did not hold `before`: an update was lost.
    pub fn update(
        &mut self,
        at_ns: u64,
        address: GlobalAddress,
        before: u64,
        after: u64,
    ) -> Result<(), Violation> {
        let (since_ns, held) = self.words.entry(address).or_default().last();
        if held != before {
            return Err(Violation::new(format!(
                "at {at_ns} ns: an update of {address} found {before:#x}, but it holds {held:#x} since {since_ns} ns"
            )));
        }
        self.write(at_ns, address, after);
        Ok(())
    }

    /// Records a read of a word between two times; with equal times, in one instant, after all earlier reports.
    ///
    /// # Errors
    /// If the word did not hold that value then, or the session has already seen a newer one.
    pub fn read(
        &mut self,
        (from_ns, to_ns): (u64, u64),
        session: SessionId,
        address: GlobalAddress,
        value: u64,
    ) -> Result<(), Violation> {
        let word = self.words.entry(address).or_default();
        let last_seen = word.seen.get(&session).copied().unwrap_or(0);
        let count = word.values.len();
        let mut found = None;
        for (at, (since_ns, held)) in word.values.iter().enumerate() {
            let over_ns = word.values.get(at + 1).map(|next| next.0);
            let instant = from_ns == to_ns;
            let current = if instant {
                at + 1 == count
            } else {
                *since_ns <= to_ns && over_ns.is_none_or(|over_ns| over_ns >= from_ns)
            };
            let number = word.first + at as u64;
            if current && *held == value && number >= last_seen {
                found = Some(number);
                break;
            }
        }
        let Some(number) = found else {
            let (since_ns, held) = word.last();
            return Err(Violation::new(format!(
                "from {from_ns} to {to_ns} ns: session {session:?} reads {value:#x} of {address}, \
                 which holds {held:#x} since {since_ns} ns; it has seen value {last_seen} of {}",
                word.first + count as u64 - 1
            )));
        };
        word.seen.insert(session, number);
        Ok(())
    }

    /// Records that the words of a line are set to 0.
    pub fn fresh(&mut self, at_ns: u64, line: LineAddress) {
        let inside = |address: &GlobalAddress| address.line() == line;
        let words: Vec<_> = self.words.keys().copied().filter(inside).collect();
        for address in words {
            self.write(at_ns, address, 0);
        }
    }

    /// Returns the current value of a word.
    pub fn value(&self, address: GlobalAddress) -> u64 {
        self.words.get(&address).map_or(0, |word| word.last().1)
    }
}

/// Checks permissions and values of one trace: accesses need their permission, and lost lines are never read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryChecker {
    /// Checker of permissions.
    pub permissions: SingleWriter,
    /// Checker of values.
    pub values: ValueChain,
}

impl Default for MemoryChecker {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryChecker {
    /// Creates a checker of an empty trace.
    pub fn new() -> Self {
        Self { permissions: SingleWriter::default(), values: ValueChain::new(0) }
    }

    /// Records the next event.
    ///
    /// # Errors
    /// The violated property. The checker is unusable after an error.
    pub fn observe(&mut self, at_ns: u64, event: Observation) -> Result<(), Violation> {
        match event {
            Observation::Level { node, line, level } => {
                self.permissions.level(at_ns, node, line, level)
            }
            Observation::Read { node, session, address, value } => {
                self.needs(at_ns, node, address, Level::Shared)?;
                self.values.read((at_ns, at_ns), session, address, value)
            }
            Observation::Write { node, address, value } => {
                self.needs(at_ns, node, address, Level::Dirty)?;
                self.values.write(at_ns, address, value);
                Ok(())
            }
            Observation::Update { node, address, before, after } => {
                self.needs(at_ns, node, address, Level::Dirty)?;
                self.values.update(at_ns, address, before, after)
            }
            Observation::Dead { node } => {
                self.permissions.dead(at_ns, node);
                Ok(())
            }
            Observation::Fresh { line } => {
                self.values.fresh(at_ns, line);
                self.permissions.fresh(at_ns, line)
            }
        }
    }

    fn needs(
        &self,
        at_ns: u64,
        node: NodeId,
        address: GlobalAddress,
        level: Level,
    ) -> Result<(), Violation> {
        let line = address.line();
        if self.permissions.is_lost(line) {
            return Err(Violation::new(format!(
                "at {at_ns} ns: node {node} uses {address} of a lost line"
            )));
        }
        let has = self.permissions.level_of(node, line);
        if has < level {
            return Err(Violation::new(format!(
                "at {at_ns} ns: node {node} uses {address}, which needs {level:?}, with {has:?}"
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::LineSize;

    const HOME: NodeId = NodeId(0);
    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const SESSION: SessionId = SessionId::new(A, 1);

    fn word(offset: u64) -> GlobalAddress {
        GlobalAddress::new(HOME, LineSize::DEFAULT, offset).unwrap()
    }

    fn level(node: NodeId, level: Level) -> Observation {
        let line = word(0).line();
        Observation::Level { node, line, level }
    }

    fn read(node: NodeId, value: u64) -> Observation {
        Observation::Read { node, session: SessionId::new(node, 1), address: word(8), value }
    }

    fn write(node: NodeId, value: u64) -> Observation {
        Observation::Write { node, address: word(8), value }
    }

    /// Feeds events one per nanosecond. Returns the index of the first violation, if any.
    fn fails_at(events: &[Observation]) -> Option<usize> {
        let mut checker = MemoryChecker::new();
        let mut events = events.iter().enumerate();
        events.find_map(|(at, event)| checker.observe(at as u64, *event).err().map(|_| at))
    }

    #[test]
    fn ownership_moves_and_values_follow() {
        let events = [
            write(HOME, 1),
            level(HOME, Level::Invalid),
            level(A, Level::Dirty),
            read(A, 1),
            write(A, 2),
            level(A, Level::Shared),
            level(HOME, Level::Shared),
            level(B, Level::Shared),
            read(B, 2),
            read(HOME, 2),
        ];
        assert_eq!(fails_at(&events), None);
    }

    #[test]
    fn conflicting_holders_are_detected() {
        assert_eq!(fails_at(&[level(A, Level::Dirty)]), Some(0), "the home may still write");
        assert_eq!(fails_at(&[level(A, Level::Shared)]), Some(0));
        let handed = [level(HOME, Level::Invalid), level(A, Level::Dirty)];
        assert_eq!(fails_at(&[&handed[..], &[level(B, Level::Shared)]].concat()), Some(2));
        assert_eq!(fails_at(&[&handed[..], &[level(B, Level::Dirty)]].concat()), Some(2));
    }

    #[test]
    fn accesses_need_their_level() {
        assert_eq!(fails_at(&[read(A, 0)]), Some(0));
        assert_eq!(fails_at(&[level(HOME, Level::Shared), write(HOME, 1)]), Some(1));
    }

    #[test]
    fn stale_values_and_lost_updates_are_found() {
        assert_eq!(fails_at(&[write(HOME, 1), write(HOME, 2), read(HOME, 1)]), Some(2));
        let update =
            |before, after| Observation::Update { node: HOME, address: word(8), before, after };
        assert_eq!(fails_at(&[update(0, 1), update(1, 2), read(HOME, 2)]), None);
        assert_eq!(fails_at(&[update(0, 1), update(0, 1)]), Some(1));
    }

    #[test]
    fn lost_line_is_unused_until_it_is_initialised() {
        let lost = [
            level(HOME, Level::Invalid),
            level(A, Level::Dirty),
            write(A, 5),
            Observation::Dead { node: A },
        ];
        let served = [&lost[..], &[level(HOME, Level::Dirty), read(HOME, 0)]].concat();
        assert_eq!(fails_at(&served), Some(5), "old data is not served");
        let line = word(0).line();
        let renewed = [&lost[..], &[Observation::Fresh { line }, read(HOME, 0)]].concat();
        assert_eq!(fails_at(&renewed), None);
    }

    #[test]
    fn write_intervals_are_kept_and_do_not_overlap() {
        let mut checker = SingleWriter::default();
        let line = word(0).line();
        for (at_ns, node, level) in [
            (5, HOME, Level::Invalid),
            (6, A, Level::Dirty),
            (9, A, Level::Shared),
            (11, A, Level::Invalid),
            (12, B, Level::Dirty),
        ] {
            checker.level(at_ns, node, line, level).unwrap();
        }
        let intervals: Vec<_> = checker
            .write_intervals(line)
            .iter()
            .map(|one| (one.node, one.from_ns, one.until_ns))
            .collect();
        assert_eq!(intervals, [(HOME, 0, Some(5)), (A, 6, Some(9)), (B, 12, None)]);
        checker.forget_history();
        assert_eq!(checker.write_intervals(line).len(), 1);
    }

    #[test]
    fn long_reads_see_overlapping_values_in_order() {
        let mut chain = ValueChain::new(100);
        chain.write(10, word(0), 1);
        chain.write(20, word(0), 2);
        chain.write(30, word(0), 3);
        assert!(chain.read((15, 25), SESSION, word(0), 3).is_err(), "not yet");
        chain.read((15, 25), SESSION, word(0), 1).unwrap();
        chain.read((15, 25), SESSION, word(0), 2).unwrap();
        assert!(chain.read((15, 25), SESSION, word(0), 1).is_err(), "back to an older one");
        chain.read((15, 25), SessionId::new(B, 1), word(0), 1).unwrap();
        assert!(chain.read((40, 50), SESSION, word(0), 2).is_err(), "replaced long before");
        chain.read((40, 50), SESSION, word(0), 3).unwrap();
        assert_eq!(chain.value(word(0)), 3);
    }

    #[test]
    fn old_values_are_forgotten() {
        let mut chain = ValueChain::new(10);
        for at_ns in 0..10_000 {
            chain.write(at_ns, word(0), at_ns);
        }
        assert!(chain.words[&word(0)].values.len() < 20);
        chain.read((9_995, 9_999), SESSION, word(0), 9_996).unwrap();
    }
}
