//! The executor's half of sessions: at-most-once execution of requests.

use super::canary::{CallMutant, mutant};
use super::message::{Header, Reply};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::Planted;

/// A secret drawn by a caller, which identifies it on another link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SessionId(pub u128);

/// The session that a caller obtained.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Opened {
    /// A new session.
    New(super::Session),
    /// An existing session; the caller will repeat its outstanding requests.
    Resumed(super::Session),
}

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum SlotStage {
    /// There was no request yet.
    Idle,
    /// A request is being carried out.
    Running,
    /// The request has ended with this reply.
    Done(Reply),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RequestSlot {
    sequence: u16,
    stage: SlotStage,
    /// The request was received over the current link, so its reply is awaited there. A request that runs when its
    /// link breaks is repeated over the next one, and only then answered.
    asked: bool,
}

/// Whether a request is new or repeated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Arrived {
    /// New: carry it out.
    New,
    /// In progress: its reply will follow.
    Running,
    /// Carried out: repeat this reply.
    Done(Reply),
}

/// The slots of one session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Slots {
    slots: Vec<RequestSlot>,
    mutant: Planted<CallMutant>,
}

impl Slots {
    pub(super) fn new(count: usize, mutant: Planted<CallMutant>) -> Self {
        let idle = RequestSlot { sequence: 0, stage: SlotStage::Idle, asked: false };
        Self { slots: alloc::vec![idle; count], mutant }
    }

    /// Handles a request. An error changes nothing.
    pub(super) fn arrived(&mut self, header: Header) -> Result<Arrived, Violation> {
        let Some(slot) = self.slots.get_mut(usize::from(header.slot)) else {
            return Err(Violation("a request in an unknown slot"));
        };
        if header.verb.is_reply() {
            return Err(Violation("a reply instead of a request"));
        }
        if header.sequence == slot.sequence && !mutant!(self, RunAgain) {
            slot.asked |= slot.stage != SlotStage::Idle;
            return match slot.stage {
                SlotStage::Idle => Err(Violation("a request before the first")),
                SlotStage::Running => Ok(Arrived::Running),
                SlotStage::Done(reply) => Ok(Arrived::Done(reply)),
            };
        }
        if slot.stage == SlotStage::Running && !mutant!(self, RunAgain) {
            return Err(Violation("a second request in a slot"));
        }
        let again = header.sequence == slot.sequence;
        if header.sequence != slot.sequence.wrapping_add(1) && !again {
            return Err(Violation("a request out of sequence"));
        }
        *slot = RequestSlot { sequence: header.sequence, stage: SlotStage::Running, asked: true };
        Ok(Arrived::New)
    }

    /// Notes that the link is lost or replaced: the caller will repeat its outstanding requests.
    pub(super) fn unlinked(&mut self) {
        let repeats = mutant!(self, RepliedUnasked);
        self.slots.iter_mut().for_each(|slot| slot.asked &= repeats);
    }

    /// Completes the running request of a slot; returns its sequence number and whether its reply is awaited, or
    /// `None` if no request runs.
    pub(super) fn done(&mut self, slot: u8, reply: Reply) -> Option<(u16, bool)> {
        let place = self.slots.get_mut(usize::from(slot))?;
        if place.stage != SlotStage::Running {
            return None;
        }
        place.stage = SlotStage::Done(reply);
        Some((place.sequence, place.asked))
    }

    /// The sequence number of the running request of a slot.
    pub(super) fn running(&self, slot: u8) -> Option<u16> {
        let place = self.slots.get(usize::from(slot))?;
        (place.stage == SlotStage::Running).then_some(place.sequence)
    }

    /// Slots with running requests.
    pub(super) fn all_running(&self) -> impl Iterator<Item = u8> {
        let numbered = (0..=u8::MAX).zip(&self.slots);
        numbered.filter(|(_, place)| place.stage == SlotStage::Running).map(|(slot, _)| slot)
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
    fn repeated_request_is_recognized() {
        let mut slots = Slots::new(2, Planted::NONE);
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
        assert_eq!(slots.done(0, REPLY), Some((2, false)), "it will be repeated");
        assert!(slots.arrived(request(2, 1)).is_err(), "no such slot");
        assert!(slots.arrived(Header { verb: Verb::Refused, ..request(1, 1) }).is_err());
    }
}
