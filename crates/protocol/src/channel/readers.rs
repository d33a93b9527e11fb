//! The common part of the channels with messages that stay at the sender until they are READ: the readers, their
//! starts, and the progress of the slowest.
//!
//! ```text
//! the sender's bells    [ start + 1, progress ] of reader 0 | of reader 1 | ... | words of the family
//! a reader's bells      [ tail | a copy of its start | ... to 64 | words of the family ]
//! ```
//! A reader begins at the sender's head at the time when it is connected there, and first READs that position: zero
//! means not yet set. A lost reader no longer counts. Its word is cleared by the next call of the sender that has
//! memory, so a number may be reused only after, for example, an `advance`.

use super::acknowledge::Progress;
use super::canary::{ChannelMutant, mutant};
use super::effects::{Effects, Peer};
use super::half::{
    Accepted, Checked, HalfRefusal, Own, OwnRegions, PeerRegions, Step, own as reach,
};
use super::shape::{Acknowledge, MemoryPlan, Shape};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{Access, Memory, OutOfBounds, Planted, RemoteSlice};

/// The sender's bytes for each reader.
pub(super) const STEP: u64 = 16;
/// The offset of a reader's copy of its start; its tail is at zero.
pub(super) const START_COPY: u64 = 8;
/// The offset of the family's words at a reader.
pub(super) const READER_WORDS: u64 = 64;

/// The offset of the family's words at the sender.
pub(super) const fn sender_words(readers: u16) -> u64 {
    (readers as u64 * STEP).next_multiple_of(64)
}

/// The memory that a sender needs besides its messages: words for its readers, and `words` bytes more.
pub(super) const fn plan_sender(shape: &Shape, words: u64) -> MemoryPlan {
    let plan = MemoryPlan::words(sender_words(shape.peers_max) + words);
    let access = match shape.acknowledge {
        Acknowledge::Word => Access::READ.with(Access::WRITE),
        Acknowledge::Message | Acknowledge::ReadTail => Access::READ,
    };
    MemoryPlan { bells_access: access, ..plan }.with_acknowledgements(shape)
}

/// Bytes for `words` bytes of bells among the sender's own, and of a separate region for them in adapter memory.
pub(super) const fn plan_bells(shape: &Shape, words: u64) -> (u64, u64) {
    if shape.device.has_head() { (0, words) } else { (words.next_multiple_of(64), 0) }
}

/// The location of the bells that a sender stores and its readers READ.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Bells {
    /// In a separate region, not after the words for readers.
    apart: bool,
    first: u64,
}

impl Bells {
    pub(super) const fn of(shape: &Shape) -> Self {
        let apart = shape.device.has_head();
        Self { apart, first: if apart { 0 } else { sender_words(shape.peers_max) } }
    }

    /// The address of a bell at the sender, for its readers.
    #[inline]
    pub(super) const fn at(self, offset: u64, sender: &PeerRegions) -> RemoteSlice {
        let region = if self.apart { sender.counters } else { sender.bells };
        RemoteSlice { region, offset: self.first + offset }
    }

    /// Stores a bell, at the sender.
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

/// The memory that a reader needs besides its messages: `words` bytes, which the sender WRITEs if `written`.
pub(super) const fn plan_reader(shape: &Shape, words: u64, written: bool) -> MemoryPlan {
    let access = if written { Access::WRITE } else { Access::NONE };
    let plan = MemoryPlan::words(READER_WORDS + words);
    MemoryPlan { bells_access: access, ..plan }.with_tail(shape)
}

/// One reader, as its sender knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ReaderState {
    regions: PeerRegions,
    progress: Progress,
}

/// The readers of one sender.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Readers {
    way: Acknowledge,
    /// The number of bytes or messages per step of an acknowledgement by message.
    unit: u64,
    regions: OwnRegions,
    readers: Vec<Option<ReaderState>>,
    /// A reader was connected before.
    ever: bool,
    /// Receives for acknowledgements have been posted for readers with smaller numbers.
    receives_of: u16,
    /// Words of lost readers are still set.
    stale: bool,
    /// The tail of the slowest living reader.
    tail: u64,
    /// The head at the last poll: an idle sender asks for the last acknowledgements.
    rested: u64,
    accused: Peer,
    pub(super) mutant: Planted<ChannelMutant>,
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
            mutant: Planted::NONE,
        }
    }

    /// Connects a reader, which begins at `head`.
    pub(super) fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        head: u64,
        step: &mut Step<'_, M>,
    ) -> Checked {
        let own = step.own;
        self.settle(own)?;
        let Some(reader) = self.readers.get_mut(usize::from(peer.0)) else {
            return Err(Violation("a reader number out of range"));
        };
        let word = u64::from(peer.0) * STEP;
        let progress = Progress::new(self.way, peer, self.unit, word + 8).starting_at(head);
        // All readers share the receives: those of an earlier reader with this number are still posted.
        if peer.0 >= self.receives_of {
            progress.connected(&self.regions, step.effects);
            self.receives_of = peer.0 + 1;
        }
        *reader = Some(ReaderState { regions, progress });
        self.ever = true;
        let start = if mutant!(self, WrongStart) { 0 } else { head };
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

    /// Clears the words of lost readers.
    fn settle<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
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
        let tail = if mutant!(self, StaleTail) { tails.max() } else { tails.min() };
        self.tail = tail.unwrap_or(head);
    }

    /// Whether there is a reader to send to.
    #[inline]
    pub(super) fn reachable(&self) -> Accepted<()> {
        if self.readers.iter().any(Option::is_some) {
            return Ok(());
        }
        Err(if self.ever { HalfRefusal::Lost } else { HalfRefusal::NotConnected })
    }

    /// The position up to which all readers are known to have processed.
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

    /// The position up to which one reader is known to have processed.
    pub(super) fn tail_of(&self, peer: Peer) -> Option<u64> {
        Some(self.readers.get(usize::from(peer.0))?.as_ref()?.progress.tail())
    }

    /// Polls the words that readers have written. An invalid one does not affect other readers.
    pub(super) fn look<M: Memory>(&mut self, head: u64, own: Own<'_, M>) -> Checked {
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

    /// READs the tails of the slowest readers, if acknowledgements work that way, because there is no room.
    pub(super) fn fetch(&mut self, effects: &mut Effects) {
        let tail = self.tail;
        for reader in self.readers.iter_mut().flatten() {
            if reader.progress.tail() == tail {
                reader.progress.fetch(&reader.regions, &self.regions, effects);
            }
        }
    }

    /// Polls for a sender that may be idle, and then asks for outstanding acknowledgements.
    pub(super) fn advance<M: Memory>(&mut self, head: u64, step: &mut Step<'_, M>) -> Checked {
        let result = self.look(head, step.own);
        if core::mem::replace(&mut self.rested, head) == head && self.tail < head {
            self.fetch(step.effects);
        }
        result
    }

    /// Handles the completed READ of a tail.
    pub(super) fn fetched<M: Memory>(&mut self, peer: Peer, head: u64, own: Own<'_, M>) -> Checked {
        if let Some(Some(reader)) = self.readers.get_mut(usize::from(peer.0)) {
            reader.progress.fetched(head, own)?;
            self.measure(head);
        }
        Ok(())
    }

    /// Handles an acknowledgement by message.
    pub(super) fn arrived(
        &mut self,
        peer: Peer,
        head: u64,
        immediate: Option<u32>,
        effects: &mut Effects,
    ) -> Checked {
        if let Some(Some(reader)) = self.readers.get_mut(usize::from(peer.0)) {
            reader.progress.arrived(head, immediate, &self.regions, effects)?;
            self.measure(head);
        } else if self.way == Acknowledge::Message {
            // The last message of a reader that is gone: its receive serves the remaining readers.
            let gone = Progress::new(self.way, peer, self.unit, u64::from(peer.0) * STEP + 8);
            gone.post(&self.regions, effects);
        }
        Ok(())
    }
}
