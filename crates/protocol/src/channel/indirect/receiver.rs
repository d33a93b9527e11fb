//! The receiver of indirect reads, which tells the sender the destination of each message.
//!
//! *Destinations.* The indirect channel accepts destinations only in the reader's own buffer, since the sender knows
//! no other region. `receive` never uses the second half of that buffer. An offer of this
//! channel is a position in the order of messages: if it is not fetched, later messages never arrive.

use super::super::effects::{Effects, Name, Notify, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Content, HalfRefusal, HeldMessage, NOT_HELD, Offer, Own,
    OwnRegions, PeerRegions, Received, Step, WORD, own as reach,
};
use super::super::inbound::{InboundPeer, NO_OFFER, ReaderPosition, ReceiveHalf};
use super::super::kind::Kind;
use super::super::read_slot::{Boxes, IN_FLIGHT, SIGNALS};
use super::super::shape::{Shape, Signal};
use super::{PLACES, place_of, plan_receiver};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of every WRITE of a destination.
const PLACE: Name = Name(0);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum IndirectState {
    /// Offered to the caller, who has not named a destination.
    Offered,
    /// Requested: the sender has its destination.
    Asked,
    /// It has arrived, with this size in bytes.
    Here(u32),
}

/// A requested or offered message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Ask {
    number: u64,
    offset: u64,
    /// The caller named the destination.
    named: bool,
    state: IndirectState,
}

/// The receiver half of `read-slot-indirect`.
///
/// *Order*: that of sending. *Cost*: one WRITE of a destination per message. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct IndirectReceiver {
    boxes: Boxes,
    buffer_bytes: u64,
    position: ReaderPosition,
    /// The number of the next message to request.
    next: u64,
    /// Messages that were requested or offered, by number.
    asks: VecDeque<Ask>,
    /// The requested or held messages: number and offset.
    taken: Vec<(u64, u64)>,
}

impl IndirectReceiver {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let (slots, plan) = (shape.slots as usize, plan_receiver(kind, shape));
        let capacity = u64::from(shape.slots);
        Self {
            boxes: Boxes::new(0, shape),
            buffer_bytes: plan.buffer_bytes,
            position: ReaderPosition::new(shape, regions, plan.receives, (1, capacity)),
            next: 0,
            asks: VecDeque::with_capacity(slots),
            taken: Vec::with_capacity(slots),
        }
    }

    /// Whether one more can be requested: there are as many words for destinations as slots.
    fn has_room(&self) -> bool {
        self.next - self.position.tail() < self.boxes.slots
    }

    /// Whether no other message occupies an offset.
    fn is_free(&self, offset: u64) -> bool {
        let bytes = u64::from(self.boxes.message_bytes_max);
        self.taken.iter().all(|(_, taken)| offset.abs_diff(*taken) >= bytes)
    }

    fn tell(&mut self, number: u64, offset: u64, to: &PeerRegions, effects: &mut Effects) {
        self.taken.push((number, offset));
        let word = place_of(number, offset).to_le_bytes();
        let at = PLACES + self.boxes.slot(number) * WORD;
        let at = RemoteSlice { region: to.bells, offset: at };
        effects.write_inline(Peer::ONLY, PLACE, Notify::No, &[&word], at, None);
    }

    /// Requests messages into its own buffer.
    fn ask(&mut self, effects: &mut Effects) -> Checked {
        let Some(to) = self.position.ready(effects) else { return Ok(()) };
        while self.has_room() && self.asks.len() < IN_FLIGHT {
            let (number, offset) = (self.next, self.boxes.message(self.next));
            if !self.is_free(offset) {
                break;
            }
            self.position.hold(number, number + 1)?;
            self.next += 1;
            self.asks.push_back(Ask { number, offset, named: false, state: IndirectState::Asked });
            self.tell(number, offset, &to, effects);
        }
        Ok(())
    }

    /// Polls the bells of requested messages: they are set in order.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        if self.position.inbound.shape.signal != Signal::Word {
            return Ok(());
        }
        for ask in &mut self.asks {
            if matches!(ask.state, IndirectState::Here(_)) {
                continue;
            }
            let at = SIGNALS + self.boxes.slot(ask.number) * WORD;
            let bell = reach(own.bells.load_word(at))?;
            let Some(bytes) = self.boxes.rung(ask.number, bell)? else { break };
            if ask.state == IndirectState::Offered {
                return Err(Violation("an unrequested message"));
            }
            ask.state = IndirectState::Here(bytes);
        }
        Ok(())
    }
}

impl ReceiveHalf for IndirectReceiver {
    fn inbound(&mut self) -> Option<&mut InboundPeer> {
        Some(&mut self.position.inbound)
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        // There is one receiver, so it gets the first message.
        let to = PeerRegions { number: Peer::ONLY, ..to };
        self.position.begin(to, 0);
        self.position.inbound.connected(to, step.effects);
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let number = self.position.inbound.immediate(arrival, step.effects)?;
        self.position.inbound.length(u64::from(arrival.bytes))?;
        let asked =
            |ask: &&mut Ask| ask.number as u32 == number && ask.state == IndirectState::Asked;
        let ask = self.asks.iter_mut().find(asked);
        ask.ok_or(Violation("an unrequested message"))?.state = IndirectState::Here(arrival.bytes);
        Ok(())
    }

    #[inline]
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>> {
        self.look(step.own)?;
        self.ask(step.effects)?;
        let Some(at) = self.asks.iter().position(|ask| !ask.named) else { return Ok(None) };
        let Some(Ask { number, offset, state: IndirectState::Here(bytes), .. }) =
            self.asks.get(at).copied()
        else {
            return Ok(None);
        };
        self.asks.remove(at);
        let content = Content::Buffer { offset, bytes };
        Ok(Some(Received { held: HeldMessage(number), peer: Peer::ONLY, content }))
    }

    #[inline]
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        if self.asks.iter().any(|ask| ask.number == held.0) {
            return Err(NOT_HELD);
        }
        self.position.release(held, step)?;
        self.taken.retain(|(number, _)| *number != held.0);
        Ok(())
    }

    fn offer<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Offer>> {
        self.look(step.own)?;
        if self.position.ready(step.effects).is_none() || !self.has_room() {
            return Ok(None);
        }
        let number = self.next;
        let held = self.position.hold(number, number + 1)?;
        self.next += 1;
        self.asks.push_back(Ask { number, offset: 0, named: true, state: IndirectState::Offered });
        let bytes_max = self.boxes.message_bytes_max;
        Ok(Some(Offer { held, peer: Peer::ONLY, bytes_max, place: None }))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: HeldMessage,
        into: LocalSlice,
        step: &mut Step<'_, M>,
    ) -> Accepted<()> {
        let offered = |ask: &Ask| ask.number == offer.0 && ask.state == IndirectState::Offered;
        let at = self.asks.iter().position(offered).ok_or(NO_OFFER)?;
        let to = self.position.ready(step.effects).ok_or(HalfRefusal::Lost)?;
        if into.bytes < self.boxes.message_bytes_max {
            return Err(HalfRefusal::TooLong { bytes_max: into.bytes });
        }
        let end = into.offset.checked_add(u64::from(into.bytes));
        let own = into.region == self.position.inbound.regions.buffer;
        if !own || end.is_none_or(|end| end > self.buffer_bytes) {
            return Err(HalfRefusal::Form("a place in its own buffer"));
        }
        if !self.is_free(into.offset) {
            return Err(HalfRefusal::Form("a slice that no other message occupies"));
        }
        self.tell(offer.0, into.offset, &to, step.effects);
        if let Some(ask) = self.asks.get_mut(at) {
            (ask.offset, ask.state) = (into.offset, IndirectState::Asked);
        }
        Ok(())
    }

    fn fetched<M: Memory>(&mut self, offer: HeldMessage, step: &mut Step<'_, M>) -> Option<u32> {
        // The next `receive` or `offer` detects and reports the same violation.
        let _ = self.look(step.own);
        let at = self.asks.iter().position(|ask| ask.number == offer.0 && ask.named)?;
        let IndirectState::Here(bytes) = self.asks.get(at)?.state else { return None };
        self.asks.remove(at);
        self.release(offer, step).ok()?;
        Some(bytes)
    }
}
