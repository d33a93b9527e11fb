//! The common words of the channels with messages that stay at the sender until they are READ: the starts of readers,
//! their progress, and detached bells.
//!
//! ```text
//! the sender's bells    [ start + 1, progress ] of reader 0 | of reader 1 | ... | words of the family
//! a reader's bells      [ tail | a copy of its start | ... to 64 | words of the family ]
//! ```
//! A reader begins at the sender's head at the time when it is connected there, and first READs that position: zero
//! means not yet set. A lost reader no longer counts. Its word is cleared by the next call of the sender that has
//! memory, so a number may be reused only after, for example, an `advance`.

use super::half::{Own, PeerRegions};
use super::shape::{Acknowledge, MemoryPlan, Shape};
use farside_base::{Access, Memory, OutOfBounds, RemoteSlice};

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
