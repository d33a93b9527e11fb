//! The sender of messages into a pool of mailboxes.

use super::super::effects::{Effects, Name, Notify, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, HalfRefusal, OwnRegions, Payload, PeerRegions, Step, UNEXPECTED,
    own as reach,
};
use super::super::inbound::post_receives;
use super::super::kind::Kind;
use super::super::outbound::{BELL, Frame, FrameWord, Outbound, PushSender};
use super::super::shape::{Acknowledge, Shape, Signal};
use super::super::write_slot::at_end;
use super::{GRANT_BITS, REQUEST, REQUESTS, STATE, WORD, sender_receives, step_bytes};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The message that waits for a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum PendingMessage {
    Nothing,
    /// In `bytes`.
    Copied,
    /// Its slices in `slices`, with its index in the window.
    Sliced(u32),
}

/// The sender half of `write-slot-reserved`.
///
/// It accepts a message, requests a mailbox, and writes when it is granted one; until then it is full. *Cost*: a
/// request and a WRITE per message. Allocates until it has seen its longest message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReservedSender {
    step: u64,
    /// Its head is the number of messages written.
    out: Outbound,
    waiting: PendingMessage,
    bytes: Vec<u8>,
    slices: Vec<LocalSlice>,
    /// The number of requests made.
    requests: u64,
}

impl ReservedSender {
    pub(in super::super) fn new(_: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        Self {
            step: step_bytes(shape),
            out: Outbound::new(shape, regions, Acknowledge::Message, (1, WORD)),
            waiting: PendingMessage::Nothing,
            bytes: Vec::new(),
            slices: Vec::new(),
            requests: 0,
        }
    }

    fn request(&mut self, to: PeerRegions, effects: &mut Effects) {
        self.requests += 1;
        match self.out.shape.signal {
            Signal::Word => {
                let offset = REQUESTS + WORD * u64::from(to.number.0);
                self.out.write_word(&to, offset, self.requests, effects);
            }
            Signal::Message => {
                effects.send_inline(Peer::ONLY, BELL, Notify::No, &[], Some(REQUEST));
            }
        }
    }

    /// Writes the waiting message into the mailbox that was granted.
    fn granted<M: Memory>(&mut self, slot: u32, step: &mut Step<'_, M>) -> Checked {
        let waiting = core::mem::replace(&mut self.waiting, PendingMessage::Nothing);
        let Some(to) = self.out.peer.filter(|_| slot < self.out.shape.slots) else {
            return Err(Violation("a slot that does not exist"));
        };
        let (name, payload) = match waiting {
            PendingMessage::Nothing => return Err(Violation("a grant that was not requested")),
            PendingMessage::Copied => (BELL, Payload::Bytes(&self.bytes)),
            PendingMessage::Sliced(place) => (Name(place), Payload::Gather(&self.slices)),
        };
        let (first, bytes) = (u64::from(slot) * self.step, payload.bytes());
        let (frame, offset, immediate) = match self.out.shape.signal {
            Signal::Message => (Frame::BARE, first, Some(slot)),
            Signal::Word => {
                let bell = FrameWord::Word(bytes + 1);
                let (frame, offset) = at_end(bytes as u32, bell, first + self.step);
                (frame, offset, None)
            }
        };
        let place = RemoteSlice { region: to.buffer, offset };
        reach(self.out.write(name, frame, payload, (place, immediate), step))?;
        self.out.head += 1;
        Ok(())
    }

    /// Polls the state that the receiver writes.
    fn look<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        if self.out.shape.signal == Signal::Message || self.out.lost {
            return Ok(());
        }
        let state = reach(step.own.bells.load_word(STATE))?;
        self.out.progress.heard(self.out.head, state as u32, u32::BITS)?;
        let answered = self.requests - u64::from(self.waiting != PendingMessage::Nothing);
        match ((state >> 48) as u16).wrapping_sub(answered as u16) {
            0 => Ok(()),
            1 => self.granted(u32::from((state >> 32) as u16), step),
            _ => Err(Violation("a grant that was not requested")),
        }
    }

    /// Stores a message until a mailbox is granted.
    fn keep(&mut self, payload: Payload<'_>) {
        match payload {
            Payload::Bytes(message) => {
                self.bytes.clear();
                self.bytes.extend_from_slice(message);
                self.waiting = PendingMessage::Copied;
            }
            Payload::Gather(message) => {
                self.slices.clear();
                self.slices.extend_from_slice(message);
                self.waiting = PendingMessage::Sliced(self.out.window.next_place());
            }
        }
    }

    /// The peer for a message, if the previous one has its mailbox.
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        step: &mut Step<'_, M>,
    ) -> Accepted<PeerRegions> {
        let (to, _) = self.out.check(payload)?;
        if self.waiting != PendingMessage::Nothing {
            // The next `advance` detects and reports the same violation.
            let _ = self.look(step);
        }
        let room = self.waiting == PendingMessage::Nothing && self.out.window.has_room();
        if room { Ok(to) } else { Err(HalfRefusal::Full) }
    }
}

impl PushSender for ReservedSender {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn outbound_ref(&self) -> &Outbound {
        &self.out
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        self.out.peer = Some(to);
        let receives = sender_receives(&self.out.shape);
        post_receives(Peer::ONLY, receives, self.out.regions, step.effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.waiting = PendingMessage::Nothing;
        self.out.lost();
    }

    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        self.look(step)
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let grant = arrival.immediate.filter(|_| self.out.shape.signal == Signal::Message);
        let grant = grant.ok_or(UNEXPECTED)?;
        post_receives(Peer::ONLY, 1, self.out.regions, step.effects);
        if self.out.lost {
            return Ok(());
        }
        let bits = u32::BITS - GRANT_BITS;
        self.out.progress.heard(self.out.head, grant >> GRANT_BITS, bits)?;
        match (grant & ((1 << GRANT_BITS) - 1)).checked_sub(1) {
            Some(slot) => self.granted(slot, step),
            None => Ok(()),
        }
    }

    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        let to = self.room(payload, step)?;
        self.keep(payload);
        self.request(to, step.effects);
        Ok(self.out.take(payload))
    }

    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        self.room(payload, step).map(|_| ())
    }

    fn ask_progress(&mut self, _: &mut Effects) {}

    fn is_drained(&self) -> bool {
        self.waiting == PendingMessage::Nothing
            && self.out.window.is_empty()
            && self.out.progress.tail() == self.out.head
    }
}
