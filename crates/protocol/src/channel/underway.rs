//! One-sided writes under way, each before a message that speaks of it, on links that may break while
//! both ends live.
//!
//! A write that was posted and has not completed when its link breaks may have taken effect or not, and
//! must not be posted again once the peer has acted on its message: the memory may serve for something
//! else by then. The messages tell: on each link a write is posted before its message, so whoever has
//! received any message that was posted after the write has the write too. Each write remembers the
//! number of the first such message, its *mark*. When the link is back and the peer says how many
//! messages it has received, a write whose mark is among them has landed; every other one is posted
//! again, ahead of the messages that are shown again, and its message is not received yet.
//!
//! ```text
//! add ──► waiting ──posted──► posted ──done──► gone
//!            ▲ │                 │
//!     resumed│ └──────hold───────┤ hold
//!            └────── held ◄──────┘
//! ```

use super::canary::{Canary, Mutant};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::NodeId;

/// The key of a write, for its work request: no two posts of any writes have the same for a long time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key(u64);

impl Key {
    /// Bits that a key has at most.
    pub const BITS: u32 = 62;

    /// As a number of [`Self::BITS`] bits.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Of a number; any number is a key, though perhaps of nothing.
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

const GENERATION: u32 = (1 << (Key::BITS - 32)) - 1;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    Free,
    /// To be posted.
    Waiting,
    /// Its peer's link is broken; not posted on any link, or posted on the broken one with this mark.
    Held(Option<u64>),
    /// Posted with this mark, and not known to have landed.
    Posted(u64),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Entry<T> {
    to: NodeId,
    item: T,
    /// Counts the posts of this place, so that what is said of a former one is told apart.
    generation: u32,
    /// The mark when it is posted again: it goes out ahead of messages that were sent before.
    again: Option<u64>,
    stage: Stage,
}

/// Writes of one node to all its peers.
///
/// *Guarantees.* Each item that is added comes out once, as landed or as one that needs no landing since
/// its peer is gone. Nothing is posted again after a message behind it was received. *Cost*: no
/// allocation beyond the most that were ever under way at a time.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Underway<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    waiting: VecDeque<u32>,
    canary: Canary,
}

impl<T: Copy> Default for Underway<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> Underway<T> {
    /// Nothing.
    pub fn new() -> Self {
        Self {
            entries: Vec::with_capacity(64),
            free: Vec::with_capacity(64),
            waiting: VecDeque::with_capacity(64),
            canary: Canary::default(),
        }
    }

    /// Puts a defect in.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: Mutant) -> Self {
        self.canary = Canary::new(mutant);
        self
    }

    /// Takes a write to a peer, whose link holds or is broken just now.
    #[inline]
    pub fn add(&mut self, to: NodeId, item: T, linked: bool) {
        let stage = if linked { Stage::Waiting } else { Stage::Held(None) };
        let index = match self.free.pop() {
            Some(index) => {
                let entry = &mut self.entries[index as usize];
                (entry.to, entry.item, entry.stage) = (to, item, stage);
                index
            }
            None => {
                self.entries.push(Entry { to, item, generation: 0, again: None, stage });
                self.entries.len() as u32 - 1
            }
        };
        if linked {
            self.waiting.push_back(index);
        }
    }

    /// Whether nothing is to be posted.
    #[inline]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many are to be posted.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The write that is to be posted after `place` others.
    #[inline]
    pub fn waiting(&self, place: usize) -> Option<(Key, NodeId, T)> {
        let index = *self.waiting.get(place)?;
        let entry = &self.entries[index as usize];
        Some((Key::new(index, entry.generation), entry.to, entry.item))
    }

    /// The first of those to be posted was posted. `sent` is what the messenger of its peer has sent so
    /// far: [`Messenger::sent_count`](super::Messenger::sent_count).
    #[inline]
    pub fn posted(&mut self, sent: u64) {
        if let Some(index) = self.waiting.pop_front() {
            let entry = &mut self.entries[index as usize];
            entry.stage = Stage::Posted(entry.again.take().unwrap_or(sent));
        }
    }

    /// A posted write has landed: what it was. `None` for a key of a former post.
    #[inline]
    pub fn landed(&mut self, key: Key) -> Option<T> {
        let entry = self.entries.get(key.index())?;
        let current = entry.generation == key.generation();
        if !current || !matches!(entry.stage, Stage::Posted(_)) {
            return None;
        }
        Some(self.take(key.index()))
    }

    fn take(&mut self, index: usize) -> T {
        let entry = &mut self.entries[index];
        entry.stage = Stage::Free;
        entry.again = None;
        entry.generation = (entry.generation + 1) & GENERATION;
        self.free.push(index as u32);
        entry.item
    }

    fn of(&self, to: NodeId) -> Vec<usize> {
        let live = |entry: &Entry<T>| entry.to == to && entry.stage != Stage::Free;
        (0..self.entries.len()).filter(|index| live(&self.entries[*index])).collect()
    }

    /// The link to a peer is broken and closed here: nothing that is posted on it takes effect any more,
    /// and nothing that it says counts.
    pub fn hold(&mut self, to: NodeId) {
        for index in self.of(to) {
            let entry = &mut self.entries[index];
            entry.stage = match entry.stage {
                Stage::Waiting => Stage::Held(entry.again),
                Stage::Posted(mark) => Stage::Held(Some(mark)),
                held => held,
            };
            entry.again = None;
            entry.generation = (entry.generation + 1) & GENERATION;
        }
        let entries = &self.entries;
        self.waiting.retain(|index| entries[*index as usize].to != to);
    }

    /// There is a new link to the peer, which has received so many messages. What has landed comes out;
    /// the rest is to be posted, ahead of any message on the new link.
    pub fn resume(&mut self, to: NodeId, received: u64, mut landed: impl FnMut(T)) {
        for index in self.of(to) {
            let entry = &mut self.entries[index];
            match entry.stage {
                Stage::Held(Some(mark))
                    if mark < received && !self.canary.is(Mutant::WrittenAgain) =>
                {
                    landed(self.take(index));
                }
                Stage::Held(mark) => {
                    // Of one that was never posted the message was not sent yet.
                    entry.again = mark.map(|_| received);
                    entry.stage = Stage::Waiting;
                    self.waiting.push_back(index as u32);
                }
                _ => {}
            }
        }
    }

    /// A peer is gone for good: nothing needs to land there.
    pub fn gone(&mut self, to: NodeId, mut landed: impl FnMut(T)) {
        self.hold(to);
        for index in self.of(to) {
            landed(self.take(index));
        }
    }
}
