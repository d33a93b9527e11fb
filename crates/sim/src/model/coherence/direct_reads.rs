//! State of the part of the coherence model that reads lines directly: a node loads the tag word of another home's
//! line, copies the bytes, loads the word again, and then loads two fence words, its own and the home's. Reads of a
//! node's own copies take the same steps. A reader makes one read at a time, and any number of them.
//!
//! Bytes are two halves, which are copied, written by a session of the home, and landed by a WRITE one by one. The
//! version in a tag word is not part of the state: a change of the word marks the reads that have seen it.
//!
//! A read whose first step was possible either returns a value or is refused; then the reader is idle again. A refused
//! read is left out, since a later one starts from the same state.
//!
//! Properties, besides those of the coherence model:
//! - a read returns one version, which was the latest at a moment between its first and its last step, also in a
//!   removed node; a snapshot returns the same version of all lines;
//! - a read that began after `free` had returned, or after another node took over the line's memory, returns nothing;
//! - a removed node reads nothing that was written after a member reclaimed something of it;
//! - a tag word that allows reads has the latest version under it, and no other node can write;
//! - a read changes nothing but itself, and no step of another node depends on it;
//! - when nothing is in flight, a read of an allocated line that no other node owns succeeds.

mod canary;
mod home;
mod reads;
mod removal;
#[cfg(test)]
mod tests;

#[cfg(canary)]
pub use canary::DirectReadMutant;

use canary::mutant;
use farside_base::Planted;
use farside_protocol::coherence::Level;

/// How the memory of a freed line is used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reuse {
    /// By an allocation of the same line size.
    #[default]
    SameSize,
    /// By one of another line size, with the same tag word.
    SameWord,
    /// By one of another line size, with another tag word.
    AnotherWord,
}

/// Parameters of direct reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct DirectReadSetup {
    /// The nodes that read. None: the model has no direct reads, and no steps within a write.
    pub readers: Vec<u16>,
    /// A read is a snapshot of all lines, and a pinned update changes all lines at once.
    pub snapshots: bool,
    /// Number of changes of all lines at once by a session of their home.
    pub atomic_writes: u8,
    /// How a freed line is used again.
    pub reuse: Reuse,
    /// The node that may be removed while it runs.
    pub removable: Option<u16>,
}

/// The value of a tag word, without its version.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct TagWord {
    pub(super) level: Level,
    /// Its extent is not zero.
    pub(super) allocated: bool,
    /// It is of another line size than the addresses that are read.
    pub(super) another_size: bool,
    pub(super) busy: bool,
}

/// The use of a home's line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum LineUse {
    /// Allocated, also while it is being freed.
    Allocated,
    /// No node holds it any more: the engine is about to clear its tag word.
    Retired,
    /// `free` has returned.
    Free,
    /// The first step of an allocation is done.
    Prepared,
    /// Allocated with another line size.
    AnotherSize,
}

/// A line in its home's memory, as peers can read it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct HomeLine {
    pub(super) word: TagWord,
    pub(super) halves: [u8; 2],
    pub(super) line_use: LineUse,
    /// Of a mutant: the level to which the word falls later.
    pub(super) falls_to: Option<Level>,
}

/// What a read of a line may return.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Oldest {
    /// This version, or a later one.
    Version(u8),
    /// Nothing: it was free when the read began.
    Freed,
    /// Nothing: another node had taken over its memory when the read began.
    TakenOver,
}

/// A read of one line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LineRead {
    pub(super) line: u8,
    /// The node whose word and bytes are read: the reader or the home.
    pub(super) from: u16,
    pub(super) oldest: Oldest,
    /// The word at the first load.
    pub(super) seen: Option<TagWord>,
    /// The word has changed since, to whatever value.
    pub(super) moved: bool,
    pub(super) halves: [u8; 2],
}

/// A read in progress.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct PendingRead {
    pub(super) node: u16,
    pub(super) lines: Vec<LineRead>,
    /// Number of steps taken.
    pub(super) steps: u8,
}

/// A step of a read; lines by their index in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadStep {
    Look(usize),
    CopyHalf(usize, usize),
    CopyLine(usize),
    Recheck(usize),
    CheckFence,
}

/// A step of the model that has to do with direct reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DirectReadAction {
    /// A node begins to read a line, or a snapshot.
    Begin(u16, u8),
    /// A reader takes the next step.
    Continue(u16),
    /// A half of the bytes in flight to the home of a line lands.
    Land(u8, u8),
    /// A session of a line's home ends a write.
    EndWrite(u8),
    /// A session of the home takes the next step of a change of all lines.
    WriteAll,
    /// A line's home clears the tag word of a line that no node holds any more, and `free` returns.
    ClearTag(u8),
    /// A line's home takes the second step of an allocation.
    EndAllocation(u8),
    /// Of a mutant: a tag word falls.
    Fall(u8),
    /// The fence word of the removed node is stored.
    SetFence,
    /// A member that removes the node reclaims what it had.
    Reclaim(u16),
    /// Another node takes over the lines of the removed node, and writes them.
    TakeOver,
}

/// The state of everything that has to do with direct reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct DirectReads {
    /// The lines in their homes' memory; empty without readers.
    pub(super) lines: Vec<HomeLine>,
    pub(super) reads: Vec<PendingRead>,
    pub(super) atomic_writes: u8,
    /// Steps taken of a change of all lines by their home.
    pub(super) atomic_steps: u8,
    /// The removed node's fence word.
    pub(super) fenced: bool,
    /// The latest versions when the removed node was first reclaimed; empty before.
    pub(super) reclaimed_at: Vec<u8>,
    pub(super) taken_over: bool,
    pub(super) mutant: Planted<canary::DirectReadMutant>,
}

impl DirectReads {
    /// Lines that are allocated, at version 0.
    pub(super) fn new(setup: &DirectReadSetup, lines: usize) -> Self {
        let word =
            TagWord { level: Level::Dirty, allocated: true, another_size: false, busy: false };
        let line = HomeLine { word, halves: [0; 2], line_use: LineUse::Allocated, falls_to: None };
        Self {
            lines: if setup.readers.is_empty() { Vec::new() } else { vec![line; lines] },
            reads: Vec::new(),
            atomic_writes: setup.atomic_writes,
            atomic_steps: 0,
            fenced: false,
            reclaimed_at: Vec::new(),
            taken_over: false,
            mutant: Planted::NONE,
        }
    }

    /// Whether the model has direct reads.
    pub(super) const fn is_on(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Marks the reads that have seen a node's tag word of a line: its version rises.
    pub(super) fn word_changes(&mut self, node: u16, line: u8) {
        let lines = self.reads.iter_mut().flat_map(|read| &mut read.lines);
        for read in lines.filter(|read| (read.from, read.line) == (node, line)) {
            read.moved |= read.seen.is_some();
        }
    }

    /// Whether a word allows a read.
    pub(super) fn allows(&self, word: TagWord) -> bool {
        word.level > Level::Invalid
            && (word.allocated || mutant!(self, ExtentIgnored))
            && (!word.another_size || mutant!(self, LineSizeIgnored))
            && (!word.busy || mutant!(self, BusyIgnored))
    }

    /// The steps of a read.
    pub(super) fn steps(&self, snapshot: bool) -> &'static [ReadStep] {
        use ReadStep::{CheckFence, CopyHalf, CopyLine, Look, Recheck};
        const COPY: [ReadStep; 2] = [CopyHalf(0, 0), CopyHalf(0, 1)];
        if snapshot && mutant!(self, SnapshotByLine) {
            return &[
                Look(0),
                CopyLine(0),
                Recheck(0),
                Look(1),
                CopyLine(1),
                Recheck(1),
                CheckFence,
            ];
        }
        if snapshot {
            return &[
                Look(0),
                Look(1),
                CopyLine(0),
                CopyLine(1),
                Recheck(0),
                Recheck(1),
                CheckFence,
            ];
        }
        if mutant!(self, LooksAfterCopy) {
            return &[COPY[0], COPY[1], Look(0), CheckFence];
        }
        if mutant!(self, RecheckMissing) {
            return &[Look(0), COPY[0], COPY[1], CheckFence];
        }
        if mutant!(self, FenceBeforeCopy) {
            return &[CheckFence, Look(0), COPY[0], COPY[1], Recheck(0)];
        }
        &[Look(0), COPY[0], COPY[1], Recheck(0), CheckFence]
    }
}
