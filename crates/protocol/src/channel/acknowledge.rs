//! The way back: how far the receiver has processed, so that the sender may reuse memory (001 §6).
//!
//! A position only grows. It travels whole in a word, or by its low 32 bits, in units, in immediate
//! data. At most one word or message is under way at a time, so that an older one never lands upon a
//! newer one on a fabric without order, where only fabrics whose completed WRITEs are placed use
//! words ([`Shape::fit`](super::Shape::fit)).

use super::effects::{Effects, Name, Told};
use super::half::{Own, OwnRegions, Peer, PeerRegions, own as reach};
use super::shape::Acknowledge;
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of an acknowledgement at the receiver, and of a look at the tail at the sender. Halves
/// use other names for everything else.
pub(super) const ACKNOWLEDGEMENT: Name = Name(u32::MAX);

/// Receives that a sender keeps posted for acknowledgements that come as messages.
pub(super) const RECEIVES: u32 = 8;

/// What a sender knows of one receiver's progress.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Progress {
    way: Acknowledge,
    peer: Peer,
    /// Bytes, messages or whatever, that one step of an integer stands for.
    unit: u64,
    /// Where the word is, in the sender's bells.
    word: u64,
    /// Where the tail is, in the receiver's bells.
    remote: u64,
    /// Known to be processed.
    tail: u64,
    /// A look at the remote tail is under way.
    looking: bool,
}

impl Progress {
    pub(super) const fn new(way: Acknowledge, peer: Peer, unit: u64, word: u64) -> Self {
        Self { way, peer, unit, word, remote: 0, tail: 0, looking: false }
    }

    /// The same of a receiver that begins at a position: everything before is none of its business.
    pub(super) const fn starting_at(self, tail: u64) -> Self {
        Self { tail, ..self }
    }

    /// Posts the receives that acknowledgements need, if they come as messages.
    pub(super) fn connected(&self, regions: &OwnRegions, effects: &mut Effects) {
        if self.way == Acknowledge::Message {
            for _ in 0..RECEIVES {
                self.post(regions, effects);
            }
        }
    }

    fn post(&self, regions: &OwnRegions, effects: &mut Effects) {
        let into = LocalSlice { region: regions.bells, offset: self.word, bytes: 0 };
        effects.receive(self.peer, ACKNOWLEDGEMENT, into);
    }

    /// How far the receiver is known to be.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    /// Looks at the word, where there is one. `head` is what was sent.
    #[inline]
    pub(super) fn look<M: Memory>(
        &mut self,
        head: u64,
        own: Own<'_, M>,
    ) -> Result<(), Violation> {
        if self.way == Acknowledge::Word {
            self.advance(head, reach(own.bells.load_word(self.word))?)?;
        }
        Ok(())
    }

    /// READs the tail at the receiver, where that is the way and no READ is under way.
    pub(super) fn fetch(&mut self, to: &PeerRegions, regions: &OwnRegions, effects: &mut Effects) {
        if self.way == Acknowledge::ReadTail && !self.looking {
            self.looking = true;
            let into = LocalSlice { region: regions.bells, offset: self.word, bytes: 8 };
            let from = RemoteSlice { region: to.bells, offset: self.remote };
            effects.read(self.peer, ACKNOWLEDGEMENT, into, from);
        }
    }

    /// The READ of the tail has ended.
    pub(super) fn fetched<M: Memory>(
        &mut self,
        head: u64,
        own: Own<'_, M>,
    ) -> Result<(), Violation> {
        self.looking = false;
        self.advance(head, reach(own.bells.load_word(self.word))?)
    }

    /// An integer has arrived; its receive is posted again.
    pub(super) fn arrived(
        &mut self,
        head: u64,
        immediate: Option<u32>,
        regions: &OwnRegions,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(low) = immediate.filter(|_| self.way == Acknowledge::Message) else {
            return Err(Violation("a message where acknowledgements come"));
        };
        self.post(regions, effects);
        // Integers may overtake each other: one behind the known tail is an old one.
        let ahead = low.wrapping_sub((self.tail / self.unit) as u32);
        if ahead > u32::MAX / 2 {
            return Ok(());
        }
        self.advance(head, self.tail + u64::from(ahead) * self.unit)
    }

    #[inline]
    fn advance(&mut self, head: u64, tail: u64) -> Result<(), Violation> {
        if tail > head {
            return Err(Violation("acknowledges more than was sent"));
        }
        self.tail = self.tail.max(tail);
        Ok(())
    }
}

/// What a receiver tells its sender.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Acknowledger {
    way: Acknowledge,
    peer: Peer,
    unit: u64,
    /// Tell at the latest when so much is not told.
    threshold: u64,
    /// Do not tell less, unless asked to in any case: where the sender's receives are limited, an
    /// eighth of what it can have under way.
    worth: u64,
    /// Where the word is: in the sender's bells, or the tail in the receiver's own.
    word: u64,
    /// Processed.
    done: u64,
    /// Told.
    told: u64,
    /// A word or message is under way.
    flying: bool,
    /// Another one is to follow it at once.
    due: bool,
}

impl Acknowledger {
    /// Tells when half of `capacity` is processed and not told.
    pub(super) const fn new(
        way: Acknowledge,
        peer: Peer,
        unit: u64,
        word: u64,
        capacity: u64,
    ) -> Self {
        let threshold = if capacity < 2 { 1 } else { capacity / 2 };
        let worth = match way {
            Acknowledge::Message if capacity > 0 => capacity.div_ceil(RECEIVES as u64),
            Acknowledge::Message => 1,
            Acknowledge::Word | Acknowledge::ReadTail => 1,
        };
        let (done, told, flying, due) = (0, 0, false, false);
        Self { way, peer, unit, threshold, worth, word, done, told, flying, due }
    }

    /// How much the sender can know to be processed.
    #[inline]
    pub(super) const fn told(&self) -> u64 {
        self.told
    }

    /// The same of a receiver that begins at a position.
    pub(super) const fn starting_at(self, done: u64) -> Self {
        Self { done, told: done, ..self }
    }

    /// How much has been processed.
    #[inline]
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// So much is processed now.
    #[inline]
    pub(super) fn processed<M: Memory>(
        &mut self,
        done: u64,
        to: Option<&PeerRegions>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) {
        self.done = done;
        if self.way == Acknowledge::ReadTail {
            // The plan has this word, and a half that was lent less has told so before.
            let _ = own.bells.store_word(self.word, done);
            self.told = done;
        } else if done - self.told >= self.threshold {
            self.tell(to, effects);
        }
    }

    /// Tells in any case: the sender may wait for it though half of the capacity is not reached.
    pub(super) fn must(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        if self.way != Acknowledge::ReadTail && self.told != self.done {
            self.due = self.flying;
            self.tell(to, effects);
        }
    }

    /// Tells what has not been told, if it is worth it.
    pub(super) fn now(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        if self.way != Acknowledge::ReadTail && self.done - self.told >= self.worth {
            self.tell(to, effects);
        }
    }

    fn tell(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        let Some(to) = to.filter(|_| !self.flying) else {
            return;
        };
        self.told = self.done;
        self.flying = true;
        match self.way {
            Acknowledge::Word => {
                let word = self.done.to_le_bytes();
                let place = RemoteSlice { region: to.bells, offset: self.word };
                effects.write_inline(self.peer, ACKNOWLEDGEMENT, Told::Yes, &[&word], place, None);
            }
            Acknowledge::Message => {
                let low = (self.done / self.unit) as u32;
                effects.send_inline(self.peer, ACKNOWLEDGEMENT, Told::Yes, &[], Some(low));
            }
            Acknowledge::ReadTail => {}
        }
    }

    /// The word or message has ended.
    pub(super) fn completed(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        self.flying = false;
        let due = core::mem::take(&mut self.due) && self.done != self.told;
        if due || self.done - self.told >= self.threshold {
            self.tell(to, effects);
        }
    }
}
