//! Acknowledgements: the receiver reports how far it has processed messages, so that the sender may reuse memory (001
//! §6).
//!
//! A position only grows. It travels in full in a word, or as its low 32 bits, in units, in immediate data. At most
//! one word or message is in flight at a time, so that an older one never overwrites a newer one on a fabric without
//! order; on such fabrics words are used only if completed WRITEs have been placed
//! ([`Shape::fit`](super::Shape::fit)).

use super::canary::{ChannelMutant, mutant};
use super::effects::{Effects, Name, Notify, Peer};
use super::half::{Checked, Own, OwnRegions, PeerRegions, Step, own as reach};
use super::shape::{Acknowledge, MemoryPlan, Shape};
use crate::wire::Violation;
use farside_base::{Access, LocalSlice, Memory, Planted, RemoteSlice};

/// The name of an acknowledgement at the receiver, and of a READ of the tail at the sender. Halves use other names
/// for all other requests.
pub(super) const ACKNOWLEDGEMENT: Name = Name(u32::MAX);

/// The offset of the tail in the receiver's bells.
const TAIL: u64 = 0;

/// Receives that a sender keeps posted, per peer, for acknowledgements that come as messages.
///
/// The sender may handle them late, so there must be enough for all that it has not handled. Those are within its
/// capacity: it can send no more than that beyond the last acknowledgement that it has handled.
pub(super) const RECEIVES: u32 = 8;

/// The part of those that a ring needs for acknowledgements forced by [`Acknowledger::must`]. Each follows half of
/// the messages that the sender may have in flight, so two complete within what it sends without an acknowledgement,
/// and a third one has begun before.
const MUSTS: u32 = 3;

impl MemoryPlan {
    /// Adds the receives for acknowledgements by message.
    pub(super) const fn with_acknowledgements(self, shape: &Shape) -> Self {
        let receives = match shape.acknowledge {
            Acknowledge::Message => RECEIVES,
            Acknowledge::Word | Acknowledge::ReadTail => 0,
        };
        Self { receives: self.receives + receives, ..self }
    }

    /// Lets the sender READ the tail among the bells, if acknowledgements work that way.
    pub(super) const fn with_tail(self, shape: &Shape) -> Self {
        let access = match shape.acknowledge {
            Acknowledge::ReadTail => self.bells_access.with(Access::READ),
            Acknowledge::Word | Acknowledge::Message => self.bells_access,
        };
        Self { bells_access: access, ..self }
    }
}

/// A receiver's progress, as its sender knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Progress {
    way: Acknowledge,
    peer: Peer,
    /// The number of bytes or messages per step of an acknowledged integer.
    unit: u64,
    /// The offset of the word in the sender's bells.
    word: u64,
    /// The position up to which messages are known to be processed.
    tail: u64,
    /// A READ of the remote tail is in flight.
    looking: bool,
}

impl Progress {
    pub(super) const fn new(way: Acknowledge, peer: Peer, unit: u64, word: u64) -> Self {
        Self { way, peer, unit, word, tail: 0, looking: false }
    }

    /// The word is at this offset.
    pub(super) const fn acknowledged_at(&mut self, word: u64) {
        self.word = word;
    }

    /// The same for a receiver that begins at a position, and does not receive anything before it.
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

    /// Posts one of these receives.
    pub(super) fn post(&self, regions: &OwnRegions, effects: &mut Effects) {
        let into = LocalSlice { region: regions.bells, offset: self.word, bytes: 0 };
        effects.receive(self.peer, ACKNOWLEDGEMENT, into);
    }

    /// The position up to which the receiver is known to have processed.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.tail
    }

    /// Polls the word, if there is one. `head` is the position up to which messages were sent.
    #[inline]
    pub(super) fn look<M: Memory>(&mut self, head: u64, own: Own<'_, M>) -> Checked {
        if self.way == Acknowledge::Word {
            self.advance(head, reach(own.bells.load_word(self.word))?)?;
        }
        Ok(())
    }

    /// READs the tail at the receiver, if acknowledgements work that way and no READ is in flight.
    pub(super) fn fetch(&mut self, to: &PeerRegions, regions: &OwnRegions, effects: &mut Effects) {
        if self.way == Acknowledge::ReadTail && !self.looking {
            self.looking = true;
            let into = LocalSlice { region: regions.bells, offset: self.word, bytes: 8 };
            let from = RemoteSlice { region: to.bells, offset: TAIL };
            effects.read(self.peer, ACKNOWLEDGEMENT, into, from);
        }
    }

    /// Handles the completed READ of the tail.
    pub(super) fn fetched<M: Memory>(&mut self, head: u64, own: Own<'_, M>) -> Checked {
        self.looking = false;
        self.advance(head, reach(own.bells.load_word(self.word))?)
    }

    /// Handles an acknowledgement by message, and posts its receive again.
    pub(super) fn arrived(
        &mut self,
        head: u64,
        immediate: Option<u32>,
        regions: &OwnRegions,
        effects: &mut Effects,
    ) -> Checked {
        let Some(low) = immediate.filter(|_| self.way == Acknowledge::Message) else {
            return Err(Violation("a message instead of an acknowledgement"));
        };
        self.post(regions, effects);
        self.heard(head, low, u32::BITS)
    }

    /// Handles the low `bits` of an acknowledged position, in units.
    pub(super) fn heard(&mut self, head: u64, low: u32, bits: u32) -> Checked {
        let unused = u32::BITS - bits;
        let ahead = low.wrapping_sub((self.tail / self.unit) as u32) << unused >> unused;
        // Integers may overtake each other: one below the known tail is stale.
        if ahead >> (bits - 1) != 0 {
            return Ok(());
        }
        self.advance(head, self.tail + u64::from(ahead) * self.unit)
    }

    #[inline]
    fn advance(&mut self, head: u64, tail: u64) -> Checked {
        if tail > head {
            return Err(Violation("acknowledges more than was sent"));
        }
        self.tail = self.tail.max(tail);
        Ok(())
    }
}

/// The acknowledgements of a receiver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Acknowledger {
    way: Acknowledge,
    peer: Peer,
    unit: u64,
    /// Acknowledge at the latest when this much is not acknowledged.
    threshold: u64,
    /// Acknowledge no less than this, unless forced. If the sender's receives are limited, it is an eighth of what
    /// the sender can have in flight, or for a ring a fifth. This much may stay unacknowledged indefinitely if no
    /// message follows, and such a sender is never drained. It never blocks a sender, since a processed half is
    /// acknowledged at once, and nothing is held back if the capacity is not more than the receives.
    worth: u64,
    /// The offset of the word in the sender's bells, or of the tail in the receiver's own.
    word: u64,
    /// The processed position.
    done: u64,
    /// The acknowledged position.
    told: u64,
    /// A word or message is in flight.
    flying: bool,
    /// Another one has to follow it at once.
    due: bool,
    pub(super) mutant: Planted<ChannelMutant>,
}

impl Acknowledger {
    /// Creates an acknowledger that acknowledges when half of `capacity` is processed and not acknowledged.
    pub(super) const fn new(
        way: Acknowledge,
        peer: Peer,
        unit: u64,
        word: u64,
        capacity: u64,
    ) -> Self {
        let threshold = if capacity < 2 { 1 } else { capacity / 2 };
        // Only rings use units other than messages.
        let receives = if unit > 1 { RECEIVES - MUSTS } else { RECEIVES };
        let worth = match way {
            Acknowledge::Message if capacity > 0 => capacity.div_ceil(receives as u64),
            Acknowledge::Message | Acknowledge::Word | Acknowledge::ReadTail => 1,
        };
        let (done, told, flying, due, mutant) = (0, 0, false, false, Planted::NONE);
        Self { way, peer, unit, threshold, worth, word, done, told, flying, due, mutant }
    }

    /// The position up to which the sender may know that messages are processed.
    #[inline]
    pub(super) const fn told(&self) -> u64 {
        self.told
    }

    /// Begins at a position, and acknowledges in the word at this offset.
    pub(super) const fn begin(&mut self, done: u64, word: u64) {
        (self.done, self.told, self.word) = (done, done, word);
    }

    /// The processed position.
    #[inline]
    pub(super) const fn done(&self) -> u64 {
        self.done
    }

    /// Notes the processed position, and acknowledges it when due.
    #[inline]
    pub(super) fn processed<M: Memory>(
        &mut self,
        done: u64,
        to: Option<&PeerRegions>,
        step: &mut Step<'_, M>,
    ) {
        self.done = done;
        if self.way == Acknowledge::ReadTail {
            // The plan has this word; a half with too little memory has reported that before.
            let _ = step.own.bells.store_word(self.word, done);
            self.told = done;
        } else if done - self.told >= self.threshold {
            self.tell(to, step.effects);
        }
    }

    /// Acknowledges in any case: the sender may wait for it before half of the capacity is reached.
    pub(super) fn must(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        if self.way != Acknowledge::ReadTail && self.told != self.done {
            self.due = self.flying;
            self.tell(to, effects);
        }
    }

    /// Acknowledges what is not acknowledged, if it is at least `worth`: at once, or when the acknowledgement in
    /// flight has completed.
    pub(super) fn now(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        if self.way != Acknowledge::ReadTail && self.done - self.told >= self.worth {
            self.due = self.flying && !mutant!(self, AcknowledgementForgotten);
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
                let name = ACKNOWLEDGEMENT;
                effects.write_inline(self.peer, name, Notify::Yes, &[&word], place, None);
            }
            Acknowledge::Message => {
                let low = (self.done / self.unit) as u32;
                effects.send_inline(self.peer, ACKNOWLEDGEMENT, Notify::Yes, &[], Some(low));
            }
            Acknowledge::ReadTail => {}
        }
    }

    /// Handles the completion of the acknowledgement in flight.
    pub(super) fn completed(&mut self, to: Option<&PeerRegions>, effects: &mut Effects) {
        self.flying = false;
        let due = core::mem::take(&mut self.due) && self.done != self.told;
        if due || self.done - self.told >= self.threshold {
            self.tell(to, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::super::tests::network::Plain;
    use super::*;
    use farside_base::{Random, RemoteRegionId};
    use std::collections::VecDeque;

    /// A sender that handles acknowledgements at arbitrary times, and its receiver.
    struct AcknowledgedPair {
        capacity: u64,
        unit: u64,
        /// The maximum number of messages that a ring lets be in flight.
        messages_max: u64,
        head: u64,
        /// Ends of the messages that are not processed.
        ends: VecDeque<u64>,
        /// Ends of the messages that are not known to be processed.
        open: VecDeque<u64>,
        tail: u64,
        released: u64,
        acknowledger: Acknowledger,
        flying: bool,
        unhandled: VecDeque<u64>,
    }

    impl AcknowledgedPair {
        fn new(unit: u64, capacity: u64, messages_max: u64) -> Self {
            let way = Acknowledge::Message;
            Self {
                capacity,
                unit,
                messages_max,
                head: 0,
                ends: VecDeque::new(),
                open: VecDeque::new(),
                tail: 0,
                released: 0,
                acknowledger: Acknowledger::new(way, Peer::ONLY, unit, 0, capacity),
                flying: false,
                unhandled: VecDeque::new(),
            }
        }

        fn call(&mut self, then: impl FnOnce(&mut Acknowledger, &PeerRegions, &mut Effects)) {
            let mut effects = Effects::default();
            let id = RemoteRegionId(0);
            let to = PeerRegions { buffer: id, bells: id, counters: id, number: Peer::ONLY };
            then(&mut self.acknowledger, &to, &mut effects);
            if !effects.requests().is_empty() {
                assert!(!self.flying && effects.requests().len() == 1, "one at a time");
                self.flying = true;
                self.unhandled.push_back(self.acknowledger.told());
            }
        }

        fn send(&mut self, units: u64) -> bool {
            let end = self.head + units * self.unit;
            while self.open.front().is_some_and(|end| *end <= self.tail) {
                self.open.pop_front();
            }
            let limited = self.unit > 1 && self.open.len() as u64 >= self.messages_max;
            if end > self.tail + self.capacity || limited {
                return false;
            }
            self.head = end;
            self.ends.push_back(end);
            self.open.push_back(end);
            true
        }

        fn process(&mut self) {
            let Some(end) = self.ends.pop_front() else { return };
            let memory = Plain::new(8);
            self.call(|one, to, effects| {
                let own = Own { buffer: &memory, bells: &memory, counters: &memory };
                one.processed(end, Some(to), &mut Step { own, effects });
            });
            self.released += 1;
            if self.unit > 1 && self.released >= self.messages_max.div_ceil(2) {
                self.released = 0;
                self.call(|one, to, effects| one.must(Some(to), effects));
            }
        }

        fn acknowledge(&mut self) {
            self.call(|one, to, effects| one.now(Some(to), effects));
        }

        fn complete(&mut self) {
            if core::mem::take(&mut self.flying) {
                self.call(|one, to, effects| one.completed(Some(to), effects));
            }
        }

        fn handle(&mut self) {
            // The last one may not have arrived.
            if self.unhandled.len() > usize::from(self.flying) {
                self.tail = self.unhandled.pop_front().unwrap_or(self.tail);
            }
        }
    }

    #[test]
    fn receives_suffice_however_late_the_sender_handles_them() {
        for (unit, units, messages_max) in
            [(1, 1, 0), (1, 7, 0), (1, 8, 0), (1, 64, 0), (8, 8, 2), (8, 64, 5), (8, 128, 64)]
        {
            let mut chance = Random::new(unit * 1000 + units);
            let mut pair = AcknowledgedPair::new(unit, unit * units, messages_max);
            let mut most = 0;
            for _ in 0..200_000 {
                match chance.below(16) {
                    0..6 => {
                        let longest = if unit == 1 { 1 } else { units / 2 };
                        let short = 1 + chance.below(2);
                        let long = 1 + chance.below(longest);
                        pair.send(if chance.one_in(4) { long } else { short }.min(longest));
                    }
                    6..10 => pair.process(),
                    10..12 => pair.acknowledge(),
                    12..15 => pair.complete(),
                    _ => pair.handle(),
                }
                most = most.max(pair.unhandled.len());
            }
            assert!(most <= RECEIVES as usize, "{unit} {units} {messages_max}: {most}");
        }
    }

    #[test]
    fn a_sender_that_waits_gets_room_unasked() {
        for (unit, units, messages_max) in [(1, 1, 0), (1, 7, 0), (1, 64, 0), (8, 64, 5)] {
            let mut pair = AcknowledgedPair::new(unit, unit * units, messages_max);
            for turn in 0..1000 {
                let length = if unit == 1 { 1 } else { 1 + turn % (units / 2) };
                while !pair.send(length) {
                    let before = (pair.ends.len(), pair.unhandled.len(), pair.flying);
                    pair.process();
                    pair.complete();
                    pair.handle();
                    let after = (pair.ends.len(), pair.unhandled.len(), pair.flying);
                    assert_ne!(before, after, "it waits for ever: {unit} {units} {turn}");
                }
            }
        }
    }

    /// The new low half with the old high one is less than what was READ before.
    #[test]
    fn a_tail_that_was_read_in_halves_is_ignored() {
        let memory = Plain::new(8);
        let own = Own { buffer: &memory, bells: &memory, counters: &memory };
        let mut progress = Progress::new(Acknowledge::ReadTail, Peer::ONLY, 8, 0);
        let table =
            [(0xffff_fff8, 0xffff_fff8), (0x10, 0xffff_fff8), (0x1_0000_0010, 0x1_0000_0010)];
        for (word, tail) in table {
            memory.store_word(0, word).unwrap();
            assert_eq!(progress.fetched(1 << 62, own), Ok(()));
            assert_eq!(progress.tail(), tail);
        }
    }

    /// Up to as many messages as there are receives, everything is acknowledged in the end.
    #[test]
    fn acknowledgement_due_during_another_follows_it() {
        let mut pair = AcknowledgedPair::new(1, 8, 0);
        assert!((0..3).all(|_| pair.send(1)));
        pair.process();
        pair.acknowledge();
        pair.process();
        pair.process();
        pair.acknowledge();
        assert_eq!((pair.acknowledger.told(), pair.unhandled.len()), (1, 1));
        pair.complete();
        assert_eq!((pair.acknowledger.told(), pair.unhandled.len()), (3, 2));
    }
}
