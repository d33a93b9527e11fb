//! The executor's half of sessions: each request once.

use super::canary::{Canary, Mutant};
use super::message::{Header, Reply};
use crate::wire::Violation;
use alloc::vec::Vec;

/// What a caller draws to be known again on another link. Nobody else knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u128);

/// What became of a caller that wants a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opened {
    /// It is new.
    New(super::Session),
    /// It was there; what it still waits for, it will ask for again.
    Resumed(super::Session),
}

/// What is in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// There was no request yet.
    Idle,
    /// A request is being carried out.
    Running,
    /// It has ended so.
    Done(Reply),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Slot {
    sequence: u16,
    stage: Stage,
    /// It was asked over the link that there is now, so that its reply is awaited there. A request that
    /// runs when its link breaks is asked again over the next one, and answered once it was.
    asked: bool,
}

/// Whether a request is new.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Arrived {
    /// Carry it out.
    New,
    /// It is being carried out: its reply will come.
    Running,
    /// It was carried out: repeat this.
    Done(Reply),
}

/// The slots of one session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    canary: Canary,
}

impl Slots {
    pub(super) fn new(count: usize, canary: Canary) -> Self {
        let idle = Slot { sequence: 0, stage: Stage::Idle, asked: false };
        Self { slots: alloc::vec![idle; count], canary }
    }

    /// A request has come. Nothing is changed by an error.
    pub(super) fn arrived(&mut self, header: Header) -> Result<Arrived, Violation> {
        let Some(slot) = self.slots.get_mut(usize::from(header.slot)) else {
            return Err(Violation("a request in a slot that there is not"));
        };
        if header.verb.is_reply() {
            return Err(Violation("a reply where requests come"));
        }
        if header.sequence == slot.sequence && !self.canary.is(Mutant::RunAgain) {
            slot.asked |= slot.stage != Stage::Idle;
            return match slot.stage {
                Stage::Idle => Err(Violation("a request before the first")),
                Stage::Running => Ok(Arrived::Running),
                Stage::Done(reply) => Ok(Arrived::Done(reply)),
            };
        }
        if slot.stage == Stage::Running && !self.canary.is(Mutant::RunAgain) {
            return Err(Violation("a second request in a slot"));
        }
        let again = header.sequence == slot.sequence;
        if header.sequence != slot.sequence.wrapping_add(1) && !again {
            return Err(Violation("a request out of sequence"));
        }
        *slot = Slot { sequence: header.sequence, stage: Stage::Running, asked: true };
        Ok(Arrived::New)
    }

    /// The link is lost, or there is another one: whoever waits will ask again.
    pub(super) fn unlinked(&mut self) {
        let repeats = self.canary.is(Mutant::RepliedUnasked);
        self.slots.iter_mut().for_each(|slot| slot.asked &= repeats);
    }

    /// What runs in a slot has ended: the sequence of its request and whether its reply is awaited, or
    /// nothing where nothing runs.
    pub(super) fn done(&mut self, slot: u8, reply: Reply) -> Option<(u16, bool)> {
        let place = self.slots.get_mut(usize::from(slot))?;
        if place.stage != Stage::Running {
            return None;
        }
        place.stage = Stage::Done(reply);
        Some((place.sequence, place.asked))
    }

    /// The sequence of what runs in a slot.
    pub(super) fn running(&self, slot: u8) -> Option<u16> {
        let place = self.slots.get(usize::from(slot))?;
        (place.stage == Stage::Running).then_some(place.sequence)
    }

    /// Slots in which something runs.
    pub(super) fn all_running(&self) -> impl Iterator<Item = u8> {
        let numbered = (0..=u8::MAX).zip(&self.slots);
        numbered.filter(|(_, place)| place.stage == Stage::Running).map(|(slot, _)| slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Verb;

    const REPLY: Reply = Reply { verb: Verb::Returned, result: 7, output_bytes: 0 };

    fn request(slot: u8, sequence: u16) -> Header {
        Header { slot, sequence, verb: Verb::Invoke }
    }

    #[test]
    fn what_is_sent_again_is_told_from_what_is_new() {
        let mut slots = Slots::new(2, Canary::default());
        assert!(slots.arrived(request(0, 0)).is_err(), "before the first");
        assert_eq!(slots.arrived(request(0, 1)), Ok(Arrived::New));
        assert_eq!(slots.arrived(request(0, 1)), Ok(Arrived::Running));
        assert!(slots.arrived(request(0, 2)).is_err(), "before its end");
        assert_eq!((slots.running(0), slots.all_running().count()), (Some(1), 1));
        assert_eq!(slots.done(0, REPLY), Some((1, true)));
        assert_eq!((slots.done(0, REPLY), slots.running(0)), (None, None));
        assert_eq!(slots.arrived(request(0, 1)), Ok(Arrived::Done(REPLY)));
        assert!(slots.arrived(request(0, 3)).is_err() && slots.arrived(request(0, 0)).is_err());
        assert_eq!(slots.arrived(request(0, 2)), Ok(Arrived::New));
        slots.unlinked();
        assert_eq!(slots.done(0, REPLY), Some((2, false)), "it will be asked again");
        assert!(slots.arrived(request(2, 1)).is_err(), "no such slot");
        assert!(slots.arrived(Header { verb: Verb::Refused, ..request(1, 1) }).is_err());
    }
}
