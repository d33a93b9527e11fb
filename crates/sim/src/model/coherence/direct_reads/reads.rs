//! The steps of a read, which change nothing but the read, and what it returns.

use super::canary::mutant;
use super::{DirectReadAction, LineRead, LineUse, Oldest, PendingRead, ReadStep, TagWord};
use crate::model::coherence::{CoherenceAction, System};
use farside_protocol::coherence::Level;

/// What a step of a read led to.
#[derive(PartialEq, Eq, Debug)]
enum ReadProgress {
    Continues,
    /// The reader tries again, or asks the home.
    Refused,
    Returns,
}

impl System {
    pub(super) fn enabled_reads(&self, actions: &mut Vec<CoherenceAction>) {
        let lines = if self.setup.direct.snapshots { 1 } else { self.setup.homes.len() as u8 };
        for &node in &self.setup.direct.readers {
            let reads = self.direct.reads.iter().any(|read| read.node == node);
            for line in (0..lines).filter(|_| self.node(node).alive && !reads) {
                if self.begun(node, line).is_some() {
                    actions.push(CoherenceAction::Direct(DirectReadAction::Begin(node, line)));
                }
            }
        }
    }

    /// Adds the next steps of the reads in progress.
    pub(super) fn enabled_read_steps(&self, actions: &mut Vec<CoherenceAction>) {
        let next = |read: &PendingRead| DirectReadAction::Continue(read.node);
        actions.extend(self.direct.reads.iter().map(next).map(CoherenceAction::Direct));
    }

    pub(super) fn begin_read(&mut self, node: u16, line: u8) {
        self.tell(|| format!("n{node} begins to read line {line}"));
        if let Some(read) = self.begun(node, line) {
            let at = self.direct.reads.partition_point(|other| other.node < node);
            self.direct.reads.insert(at, read);
        }
    }

    pub(super) fn continue_read(&mut self, node: u16) {
        let Some(at) = self.direct.reads.iter().position(|read| read.node == node) else {
            return;
        };
        let mut read = self.direct.reads.remove(at);
        let progress = self.advance(&mut read);
        self.tell(|| format!("n{node} reads on: {progress:?} {:?}", read.lines));
        match progress {
            ReadProgress::Continues => self.direct.reads.insert(at, read),
            ReadProgress::Refused => {}
            ReadProgress::Returns => {
                if let Some(text) = self.read_violation(&read) {
                    self.wrong(text);
                }
            }
        }
    }

    /// Returns a read after its first step, if that is possible.
    fn begun(&self, node: u16, line: u8) -> Option<PendingRead> {
        let lines = match self.setup.direct.snapshots {
            true => 0..self.setup.homes.len() as u8,
            false => line..line + 1,
        };
        let lines = lines.map(|line| self.line_read(node, line)).collect::<Option<_>>()?;
        let mut read = PendingRead { node, lines, steps: 0 };
        (self.advance(&mut read) == ReadProgress::Continues).then_some(read)
    }

    /// The read of a line from the reader's own copy or, if it has none, from the home.
    fn line_read(&self, node: u16, line: u8) -> Option<LineRead> {
        let home = self.home(line);
        let has_copy = self.tag(node, line).held.level > Level::Invalid;
        let from = if has_copy || home == node { node } else { home };
        if from != node && self.node(node).noticed >> home & 1 == 1 {
            return None; // its memory is no longer mapped
        }
        let oldest = if self.was_freed(line) {
            Oldest::Freed
        } else if self.direct.taken_over && self.setup.direct.removable == Some(home) {
            Oldest::TakenOver
        } else {
            Oldest::Version(self.truths[usize::from(line)].latest)
        };
        Some(LineRead { line, from, oldest, seen: None, moved: false, halves: [0; 2] })
    }

    /// Whether `free` of a line has returned, and no `alloc` of its addresses since.
    fn was_freed(&self, line: u8) -> bool {
        match self.direct.lines[usize::from(line)].line_use {
            LineUse::Allocated | LineUse::Retired => false,
            LineUse::Prepared => !self.truths[usize::from(line)].allocated,
            LineUse::Free | LineUse::AnotherSize => true,
        }
    }

    /// A node's tag word of a line, and the bytes under it.
    fn word_and_halves(&self, node: u16, line: u8) -> (TagWord, [u8; 2]) {
        if self.home(line) == node {
            let line = self.direct.lines[usize::from(line)];
            return (line.word, line.halves);
        }
        let tag = self.tag(node, line);
        let word =
            TagWord { level: tag.held.level, allocated: true, another_size: false, busy: false };
        (word, [tag.value; 2])
    }

    /// Takes the next step of a read.
    fn advance(&self, read: &mut PendingRead) -> ReadProgress {
        let steps = self.direct.steps(self.setup.direct.snapshots);
        let passes = match steps[usize::from(read.steps)] {
            ReadStep::Look(at) => {
                let line = &mut read.lines[at];
                let (word, _) = self.word_and_halves(line.from, line.line);
                line.seen = Some(word);
                self.direct.allows(word)
            }
            ReadStep::CopyHalf(at, half) => {
                let line = &mut read.lines[at];
                line.halves[half] = self.word_and_halves(line.from, line.line).1[half];
                true
            }
            ReadStep::CopyLine(at) => {
                let line = &mut read.lines[at];
                line.halves = self.word_and_halves(line.from, line.line).1;
                true
            }
            ReadStep::Recheck(at) => {
                let line = &mut read.lines[at];
                let (word, _) = self.word_and_halves(line.from, line.line);
                let unchanged = line.seen == Some(word) && !line.moved;
                (line.seen, line.moved) = (None, false); // not needed any more
                unchanged
            }
            ReadStep::CheckFence => !self.is_stopped_by_fence(read),
        };
        read.steps += 1;
        match passes {
            false => ReadProgress::Refused,
            true if usize::from(read.steps) == steps.len() => ReadProgress::Returns,
            true => ReadProgress::Continues,
        }
    }

    fn is_stopped_by_fence(&self, read: &PendingRead) -> bool {
        read.lines.iter().any(|line| {
            let ignored = match line.from == read.node {
                true => mutant!(self.direct, HitFenceIgnored),
                false => mutant!(self.direct, ReaderFenceIgnored),
            };
            let by_home = self.is_fenced(line.from) && !mutant!(self.direct, HomeFenceIgnored);
            (self.is_fenced(read.node) && !ignored) || (line.from != read.node && by_home)
        })
    }

    /// The property that a read violates by what it returns, if any.
    fn read_violation(&self, read: &PendingRead) -> Option<String> {
        let node = read.node;
        for &LineRead { line, oldest, halves: [version, other], .. } in &read.lines {
            let latest = self.truths[usize::from(line)].latest;
            if version != other {
                return Some(format!("n{node} reads halves of versions {version} and {other}"));
            }
            match oldest {
                Oldest::Version(oldest) if version < oldest || version > latest => {
                    return Some(format!(
                        "n{node} reads version {version} of line {line}, written were {oldest} to {latest}"
                    ));
                }
                Oldest::Version(_) => {}
                Oldest::Freed => {
                    return Some(format!("n{node} reads line {line}, which was free"));
                }
                Oldest::TakenOver => {
                    return Some(format!("n{node} reads line {line} from its former home"));
                }
            }
            let reclaimed_at = self.direct.reclaimed_at.get(usize::from(line));
            if self.setup.direct.removable == Some(node)
                && reclaimed_at.is_some_and(|reclaimed| version > *reclaimed)
            {
                return Some(format!("n{node} reads what was written after its removal"));
            }
        }
        let mut versions = read.lines.iter().map(|line| line.halves[0]);
        let first = versions.next();
        versions
            .any(|version| Some(version) != first)
            .then(|| format!("n{node} reads lines of different changes"))
    }
}
