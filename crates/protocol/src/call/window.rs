//! The caller's half of a session.

use super::canary::{CallMutant, mutant};
use super::message::{Header, Verb, encode_target};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::Planted;

/// A slot of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct WindowSlot {
    /// The sequence number of the request in it, or of the last one.
    sequence: u16,
    /// The type of the request, while its reply is outstanding.
    waits: Option<Verb>,
}

/// The request to which a reply belongs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Answered {
    /// The slot, which is free again.
    pub slot: u8,
    /// The type of the request.
    pub verb: Verb,
}

/// The outstanding requests of one session.
///
/// *Guarantees.* At most as many are in flight as there are slots, and each ends once: by a reply, or with the
/// session.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Window {
    slots: Vec<WindowSlot>,
    /// Free slots, as a stack.
    free: Vec<u8>,
    mutant: Planted<CallMutant>,
}

impl Window {
    /// Creates the window of a new session with 1 to [`super::SLOTS_MAX`] slots.
    pub fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, super::SLOTS_MAX);
        let numbers = (0..=u8::MAX).take(slots);
        Self {
            slots: alloc::vec![WindowSlot { sequence: 0, waits: None }; slots],
            free: numbers.rev().collect(),
            mutant: Planted::NONE,
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: CallMutant) -> Self {
        self.mutant = Planted::new(mutant);
        self
    }

    /// The number of free slots.
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Returns the header of a new request; `None` if no slot is free.
    pub fn begin(&mut self, verb: Verb) -> Option<Header> {
        let slot = self.free.pop()?;
        let place = &mut self.slots[usize::from(slot)];
        place.sequence = place.sequence.wrapping_add(1);
        place.waits = Some(verb);
        Some(Header { slot, sequence: place.sequence, verb })
    }

    /// The outstanding request of a slot.
    pub fn waiting(&self, slot: u8) -> Option<Header> {
        let place = self.slots.get(usize::from(slot))?;
        place.waits.map(|verb| Header { slot, sequence: place.sequence, verb })
    }

    /// The body of a cancellation of this request.
    pub fn cancellation(target: Header) -> [u8; 8] {
        encode_target(target)
    }

    /// Handles a reply. An error changes nothing.
    ///
    /// # Errors
    /// [`Violation`]: it belongs to no outstanding request.
    pub fn reply(&mut self, header: Header) -> Result<Answered, Violation> {
        let Some(place) = self.slots.get_mut(usize::from(header.slot)) else {
            return Err(Violation("a reply in an unknown slot"));
        };
        if place.sequence != header.sequence || !header.verb.is_reply() {
            return Err(Violation("a reply to another request"));
        }
        let verb = place.waits.take().ok_or(Violation("a second reply to a request"))?;
        self.free.push(header.slot);
        Ok(Answered { slot: header.slot, verb })
    }

    /// The requests to repeat over a new link to the same session: all outstanding ones.
    pub fn again(&self) -> impl Iterator<Item = Header> {
        let nothing = mutant!(self, NothingSentAgain);
        let slots = if nothing { &[] } else { self.slots.as_slice() };
        let numbered = (0..=u8::MAX).zip(slots);
        numbered.filter_map(|(slot, place)| {
            place.waits.map(|verb| Header { slot, sequence: place.sequence, verb })
        })
    }

    /// Resets the window for a new session and returns the requests that ended with the old one, with unknown
    /// outcome.
    pub fn over(&mut self) -> Vec<Header> {
        let ended = self.again().collect();
        let mutant = self.mutant;
        *self = Self { mutant, ..Self::new(self.slots.len()) };
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_serves_again_after_its_reply_with_the_next_number() {
        let mut window = Window::new(2);
        let (one, two) = (window.begin(Verb::Invoke).unwrap(), window.begin(Verb::Listen).unwrap());
        assert_eq!((one.slot, two.slot, window.begin(Verb::Invoke)), (0, 1, None));
        let reply = Header { verb: Verb::Returned, ..one };
        assert_eq!(window.reply(reply), Ok(Answered { slot: 0, verb: Verb::Invoke }));
        assert!(window.reply(reply).is_err(), "twice");
        assert!(window.reply(Header { verb: Verb::Invoke, ..two }).is_err(), "a request");
        assert!(window.reply(Header { sequence: 9, verb: Verb::Returned, ..two }).is_err());
        assert!(window.reply(Header { slot: 2, ..reply }).is_err());
        let third = window.begin(Verb::Invoke).unwrap();
        assert_eq!((third.slot, third.sequence), (0, 2));
        assert_eq!(window.again().collect::<Vec<_>>(), [third, two]);
        assert_eq!(window.over(), [third, two]);
        assert_eq!((window.room(), window.again().count()), (2, 0));
    }

    #[test]
    fn sequences_wrap() {
        let mut window = Window::new(1);
        for _ in 0..=u16::MAX {
            let header = window.begin(Verb::Invoke).unwrap();
            window.reply(Header { verb: Verb::Returned, ..header }).unwrap();
        }
        assert_eq!(window.begin(Verb::Invoke).unwrap().sequence, 1);
    }

    #[test]
    fn as_many_slots_as_a_byte_names() {
        assert_eq!((Window::new(0).room(), Window::new(1000).room()), (1, 256));
    }
}
