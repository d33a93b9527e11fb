//! What is common to the channels whose messages stay at the sender until they are READ: who reads,
//! where each reader begins, and how far the slowest is.
//!
//! ```text
//! the sender's bells    [ start + 1, progress ] of reader 0 | of reader 1 | ... | words of the family
//! a reader's bells      [ tail | a copy of its start | ... to 64 | words of the family ]
//! ```
//! A reader begins at what the sender's head is when it is connected there, and first READs where
//! that is: zero means not yet. A lost reader counts no more. Its word is unset by the next call of
//! the sender that has memory, so that a number serves again only after, say, an `advance`.

use super::acknowledge::Progress;
use super::canary::{Canary, Mutant};
use super::effects::Effects;
use super::half::{Own, OwnRegions, Peer, PeerRegions, Refusal, own as reach};
use super::shape::{Acknowledge, Plan, Shape};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{Access, Memory, OutOfBounds, RemoteSlice};

/// The sender's bytes for each reader.
pub(super) const STEP: u64 = 16;
/// Where a reader puts its start; its tail is at zero.
pub(super) const START_COPY: u64 = 8;
/// Where the words of the family begin at a reader.
pub(super) const READER_WORDS: u64 = 64;

/// Where the words of the family begin at the sender.
pub(super) const fn sender_words(shape: &Shape) -> u64 {
    (shape.peers_max as u64 * STEP).next_multiple_of(64)
}

/// What a sender needs besides its messages: words for its readers, and `words` bytes more.
pub(super) const fn plan_sender(shape: &Shape, words: u64) -> Plan {
    let plan = Plan::words(sender_words(shape) + words);
    let access = match shape.acknowledge {
        Acknowledge::Word => Access::READ.with(Access::WRITE),
        Acknowledge::Message | Acknowledge::ReadTail => Access::READ,
    };
    Plan { bells_access: access, ..plan }.with_acknowledgements(shape)
}

/// Bytes for `words` bytes of bells among the sender's own, and of a region for them at the adapter.
pub(super) const fn plan_bells(shape: &Shape, words: u64) -> (u64, u64) {
    if shape.device.has_head() { (0, words) } else { (words.next_multiple_of(64), 0) }
}

/// Where the bells are that a sender stores and its readers READ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Bells {
    /// In a region of their own, not behind the words for readers.
    apart: bool,
    first: u64,
}

impl Bells {
    pub(super) const fn of(shape: &Shape) -> Self {
        let apart = shape.device.has_head();
        Self { apart, first: if apart { 0 } else { sender_words(shape) } }
    }

    /// The place of a bell at the sender, for its readers.
    #[inline]
    pub(super) const fn at(self, offset: u64, sender: &PeerRegions) -> RemoteSlice {
        let region = if self.apart { sender.counters } else { sender.bells };
        RemoteSlice { region, offset: self.first + offset }
    }

    /// Stores one, at the sender.
    #[inline]
    pub(super) fn store<M: Memory>(
        self,
        offset: u64,
        word: u64,
        own: Own<'_, M>,
    ) -> Result<(), OutOfBounds> {
        match self.apart {
            true => own.counters.store_word(self.first + offset, word),
            false => own.bells.store_word(self.first + offset, word),
        }
    }
}

/// What a reader needs besides its messages: `words` bytes, which the sender WRITEs if `written`.
pub(super) const fn plan_reader(shape: &Shape, words: u64, written: bool) -> Plan {
    let plan = Plan::words(READER_WORDS + words);
    let write = if written { Access::WRITE } else { Access::NONE };
    let read = match shape.acknowledge {
        Acknowledge::ReadTail => Access::READ,
        Acknowledge::Word | Acknowledge::Message => Access::NONE,
    };
    Plan { bells_access: read.with(write), ..plan }
}

/// One reader, as its sender knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Reader {
    regions: PeerRegions,
    progress: Progress,
}

/// The readers of one sender.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Readers {
    way: Acknowledge,
    /// What one step of an acknowledgement that comes as a message stands for.
    unit: u64,
    regions: OwnRegions,
    readers: Vec<Option<Reader>>,
    /// Somebody was there before.
    ever: bool,
    /// Receives for acknowledgements have been posted for readers of smaller numbers.
    receives_of: u16,
    /// Words of lost readers are still set.
    stale: bool,
    /// How far all living readers are.
    tail: u64,
    /// The head at the last look: a sender that rests looks for the last acknowledgements.
    rested: u64,
    accused: Peer,
    canary: Canary,
}

impl Readers {
    pub(super) fn new(shape: &Shape, unit: u64, regions: OwnRegions) -> Self {
        let mut readers = Vec::new();
        readers.resize_with(usize::from(shape.peers_max), || None);
        Self {
            way: shape.acknowledge,
            unit,
            regions,
            readers,
            ever: false,
            receives_of: 0,
            stale: false,
            tail: 0,
            rested: 0,
            accused: Peer::ONLY,
            canary: Canary::default(),
        }
    }

    #[cfg(canary)]
    pub(super) const fn set_canary(&mut self, canary: Canary) {
        self.canary = canary;
    }

    /// A reader is there and begins at `head`.
    pub(super) fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        head: u64,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.settle(own)?;
        let Some(reader) = self.readers.get_mut(usize::from(peer.0)) else {
            return Err(Violation("a reader beyond the most that there may be"));
        };
        let word = u64::from(peer.0) * STEP;
        let progress = Progress::new(self.way, peer, self.unit, word + 8).starting_at(head);
        // All readers share the receives: those of a former reader of this number are still there.
        if peer.0 >= self.receives_of {
            progress.connected(&self.regions, effects);
            self.receives_of = peer.0 + 1;
        }
        *reader = Some(Reader { regions, progress });
        self.ever = true;
        let start = if self.canary.is(Mutant::WrongStart) { 0 } else { head };
        reach(own.bells.store_word(word + 8, head))?;
        reach(own.bells.store_word(word, start + 1))?;
        self.measure(head);
        Ok(())
    }

    pub(super) fn lost(&mut self, peer: Peer, head: u64) {
        if let Some(reader) = self.readers.get_mut(usize::from(peer.0)) {
            self.stale |= reader.take().is_some();
            self.measure(head);
        }
    }

    /// Unsets the words of lost readers.
    fn settle<M: Memory>(&mut self, own: Own<'_, M>) -> Result<(), Violation> {
        if !core::mem::take(&mut self.stale) {
            return Ok(());
        }
        for (at, reader) in self.readers.iter().enumerate() {
            if reader.is_none() {
                reach(own.bells.store_word(at as u64 * STEP, 0))?;
            }
        }
        Ok(())
    }

    fn measure(&mut self, head: u64) {
        let tails = self.readers.iter().flatten().map(|reader| reader.progress.tail());
        let tail = if self.canary.is(Mutant::StaleTail) { tails.max() } else { tails.min() };
        self.tail = tail.unwrap_or(head);
    }

    /// Whether a message can be sent to anybody.
    #[inline]
    pub(super) fn reachable(&self) -> Result<(), Refusal> {
        if self.readers.iter().any(Option::is_some) {
            return Ok(());
        }
        Err(if self.ever { Refusal::Lost } else { Refusal::NotConnected })
    }

    /// How far all readers are known to be.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) const fn accused(&self) -> Peer {
        self.accused
    }

    /// Every living reader.
    pub(super) fn living(&self) -> impl Iterator<Item = (Peer, &PeerRegions)> {
        let numbers = (0_u16..).map(Peer);
        let readers = numbers.zip(&self.readers);
        readers.filter_map(|(peer, reader)| Some((peer, &reader.as_ref()?.regions)))
    }

    /// How far one reader is known to be.
    pub(super) fn tail_of(&self, peer: Peer) -> Option<u64> {
        Some(self.readers.get(usize::from(peer.0))?.as_ref()?.progress.tail())
    }

    /// Looks at the words that readers have written. One that is wrong keeps nobody else back.
    pub(super) fn look<M: Memory>(&mut self, head: u64, own: Own<'_, M>) -> Result<(), Violation> {
        self.settle(own)?;
        let mut result = Ok(());
        for (peer, reader) in (0_u16..).map(Peer).zip(&mut self.readers) {
            let Some(reader) = reader else { continue };
            if let Err(violation) = reader.progress.look(head, own) {
                self.accused = peer;
                result = Err(violation);
            }
        }
        self.measure(head);
        result
    }

    /// READs the tails of the slowest readers, where that is the way: there is no room.
    pub(super) fn fetch(&mut self, effects: &mut Effects) {
        let tail = self.tail;
        for reader in self.readers.iter_mut().flatten() {
            if reader.progress.tail() == tail {
                reader.progress.fetch(&reader.regions, &self.regions, effects);
            }
        }
    }

    /// The look of a sender that may rest: then it asks for what has not been acknowledged.
    pub(super) fn advance<M: Memory>(
        &mut self,
        head: u64,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let result = self.look(head, own);
        if core::mem::replace(&mut self.rested, head) == head && self.tail < head {
            self.fetch(effects);
        }
        result
    }

    /// The READ of a tail has ended.
    pub(super) fn fetched<M: Memory>(
        &mut self,
        peer: Peer,
        head: u64,
        own: Own<'_, M>,
    ) -> Result<(), Violation> {
        if let Some(Some(reader)) = self.readers.get_mut(usize::from(peer.0)) {
            reader.progress.fetched(head, own)?;
            self.measure(head);
        }
        Ok(())
    }

    /// An acknowledgement has come as a message.
    pub(super) fn arrived(
        &mut self,
        peer: Peer,
        head: u64,
        immediate: Option<u32>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if let Some(Some(reader)) = self.readers.get_mut(usize::from(peer.0)) {
            reader.progress.arrived(head, immediate, &self.regions, effects)?;
            self.measure(head);
        } else if self.way == Acknowledge::Message {
            // The last word of a reader that is gone: its receive is for those who stay.
            let gone = Progress::new(self.way, peer, self.unit, u64::from(peer.0) * STEP + 8);
            gone.post(&self.regions, effects);
        }
        Ok(())
    }
}
