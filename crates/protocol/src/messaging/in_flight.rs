//! One-sided WRITEs in flight, each posted before a message that refers to it, on links that may break while both
//! ends live.
//!
//! A WRITE that was posted and has not completed when its link breaks may or may not have taken effect. It must not
//! be posted again once the peer has acted on its message: the memory may have been reused by then. The messages
//! decide: on each link a WRITE is posted before its message, so a peer that has received any message posted after
//! the WRITE has the WRITE too. Each WRITE remembers the number of the first such message, its *mark*. When the link
//! is restored and the peer reports how many messages it has received, a WRITE with its mark among them has landed.
//! Every other one is posted again, ahead of the messages that are sent again, and its message has not been received.
//!
//! ```text
//! add ──► waiting ──posted──► posted ──done──► gone
//!            ▲ │                 │
//!     resumed│ └──────hold───────┤ hold
//!            └────── held ◄──────┘
//! ```

use super::canary::{MessagingMutant, mutant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{NodeId, Planted};

/// The identifier of a WRITE, for its work request; not reused by another post for a long time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct WriteKey(u64);

impl WriteKey {
    /// The maximum number of bits of a key.
    pub const BITS: u32 = 62;

    /// Returns the key as a number of [`Self::BITS`] bits.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Creates a key from a number; any number is a key, possibly of no WRITE.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    const fn new(index: u32, generation: u32) -> Self {
        Self::from_bits(((generation as u64) << 32) | index as u64)
    }

    const fn index(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

const GENERATION: u32 = (1 << (WriteKey::BITS - 32)) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum WriteStage {
    Free,
    /// To be posted.
    Waiting,
    /// Its peer's link is broken; not posted on any link, or posted on the broken one with this mark.
    Held(Option<u64>),
    /// Posted with this mark, and not known to have landed.
    Posted(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct WriteEntry<T> {
    to: NodeId,
    item: T,
    /// Counts the posts in this entry, so that completions of earlier ones are recognized.
    generation: u32,
    /// The mark when it is posted again: it is posted ahead of messages that were sent before.
    again: Option<u64>,
    stage: WriteStage,
}

/// WRITEs of one node to all its peers.
///
/// *Guarantees.* Each added item is returned once, as landed or as one that needs no landing since its peer is gone.
/// No WRITE is posted again after a message that follows it was received. *Cost*: no allocation beyond the maximum
/// number ever in flight at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct WritesInFlight<T> {
    entries: Vec<WriteEntry<T>>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    mutant: Planted<MessagingMutant>,
}

impl<T: Copy> Default for WritesInFlight<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> WritesInFlight<T> {
    /// Creates an empty set.
    pub fn new() -> Self {
        Self {
            entries: Vec::with_capacity(64),
            free: Vec::with_capacity(64),
            waiting: VecDeque::with_capacity(64),
            mutant: Planted::NONE,
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: MessagingMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// Adds a WRITE to a peer; `linked` if its link currently holds.
    #[inline]
    pub fn add(&mut self, to: NodeId, item: T, linked: bool) {
        let stage = if linked { WriteStage::Waiting } else { WriteStage::Held(None) };
        let index = match self.free.pop() {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                (entry.to, entry.item, entry.stage) = (to, item, stage);
                index
            }
            None => {
                self.entries.push(WriteEntry { to, item, generation: 0, again: None, stage });
                self.entries.len() as u32 - 1
            }
        };
        if linked {
            self.waiting.push_back(index);
        }
    }

    /// Whether no WRITE has to be posted.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The number of WRITEs to be posted.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The WRITE at index `place` of those to be posted.
    #[inline]
    pub fn waiting(&self, place: usize) -> Option<(WriteKey, NodeId, &T)> {
        let index = *self.waiting.get(place)?;
        let entry = &self.entries[index as usize];
        Some((WriteKey::new(index, entry.generation), entry.to, &entry.item))
    }

    /// Notes that the first WRITE to be posted was posted. `sent` is the number of messages sent to its peer so far:
    /// [`Messenger::sent_count`](super::Messenger::sent_count).
    #[inline]
    pub fn posted(&mut self, sent: u64) {
        if let Some(index) = self.waiting.pop_front() {
            let entry = &mut self.entries[index as usize];
            entry.stage = WriteStage::Posted(entry.again.take().unwrap_or(sent));
        }
    }

    /// Removes and returns a posted WRITE that has landed; `None` for the key of an earlier post.
    #[inline]
    pub fn landed(&mut self, key: WriteKey) -> Option<T> {
        let entry = self.entries.get(key.index())?;
        let current = entry.generation == key.generation();
        if !current || !matches!(entry.stage, WriteStage::Posted(_)) {
            return None;
        }
        Some(self.take(key.index()))
    }

    fn take(&mut self, index: usize) -> T {
        let entry = &mut self.entries[index];
        entry.stage = WriteStage::Free;
        entry.again = None;
        entry.generation = (entry.generation + 1) & GENERATION;
        self.free.push(index as u32);
        entry.item
    }

    fn of(&self, to: NodeId) -> Vec<usize> {
        let live = |entry: &WriteEntry<T>| entry.to == to && entry.stage != WriteStage::Free;
        (0..self.entries.len()).filter(|index| live(&self.entries[*index])).collect()
    }

    /// Holds back the WRITEs to a peer with a broken link that was closed here: requests posted on it no longer take
    /// effect, and their completions are ignored.
    pub fn hold(&mut self, to: NodeId) {
        for index in self.of(to) {
            let entry = &mut self.entries[index];
            entry.stage = match entry.stage {
                WriteStage::Waiting => WriteStage::Held(entry.again),
                WriteStage::Posted(mark) => WriteStage::Held(Some(mark)),
                held => held,
            };
            entry.again = None;
            entry.generation = (entry.generation + 1) & GENERATION;
        }
        let entries = &self.entries;
        self.waiting.retain(|index| entries[*index as usize].to != to);
    }

    /// Resumes over a new link to a peer that has received this many messages. WRITEs that have landed are passed to
    /// `landed`; the rest has to be posted, ahead of any message on the new link.
    pub fn resume(&mut self, to: NodeId, received: u64, mut landed: impl FnMut(T)) {
        for index in self.of(to) {
            let entry = &mut self.entries[index];
            match entry.stage {
                WriteStage::Held(Some(mark)) if mark < received && !mutant!(self, WrittenAgain) => {
                    landed(self.take(index));
                }
                WriteStage::Held(mark) => {
                    // The message of a WRITE that was never posted was not sent yet.
                    entry.again = mark.map(|_| received);
                    entry.stage = WriteStage::Waiting;
                    self.waiting.push_back(index as u32);
                }
                _ => {}
            }
        }
    }

    /// Removes the WRITEs to a peer that is gone for good, which need not land.
    pub fn gone(&mut self, to: NodeId, mut landed: impl FnMut(T)) {
        self.hold(to);
        for index in self.of(to) {
            landed(self.take(index));
        }
    }
}
