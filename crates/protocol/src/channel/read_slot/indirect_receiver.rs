//! The receiver of indirect reads, which tells the sender the destination of each message.
//!
//! *Destinations.* The indirect channel accepts destinations only in the reader's own buffer, since the sender knows
//! no other region. [`receive`](ReceiveHalf::receive) never uses the second half of that buffer. An offer of this
//! channel is a position in the order of messages: if it is not fetched, later messages never arrive.

use super::super::effects::{Effects, Name, Notify};
use super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Offer, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received, own as reach,
};
use super::super::kind::Kind;
use super::super::readers::sender_words;
use super::super::shape::{Shape, Signal};
use super::super::stand::Stand;
use super::{Boxes, IN_FLIGHT, SIGNALS, WORD, one_reader, place_of, plan_receiver};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of every WRITE of a destination.
const PLACE: Name = Name(0);
/// The name of every receive.
const RECEIVE: Name = Name(0);

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
    signal: Signal,
    boxes: Boxes,
    /// The offset of the destinations at the sender.
    places: u64,
    buffer_bytes: u64,
    regions: OwnRegions,
    stand: Stand,
    /// The number of the next message to request.
    next: u64,
    /// Messages that were requested or offered, by number.
    asks: VecDeque<Ask>,
    /// The requested or held messages: number and offset.
    taken: Vec<(u64, u64)>,
    receives: u32,
}

impl IndirectReceiver {
    pub(super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let slots = shape.slots as usize;
        Self {
            signal: shape.signal,
            boxes: Boxes::new(0, shape),
            places: sender_words(&one_reader(shape)),
            buffer_bytes: plan_receiver(kind, shape).buffer_bytes,
            regions,
            stand: Stand::new(shape, 1, u64::from(shape.slots), regions),
            next: 0,
            asks: VecDeque::with_capacity(slots),
            taken: Vec::with_capacity(slots),
            receives: plan_receiver(kind, shape).receives,
        }
    }

    fn post(&self, effects: &mut Effects) {
        let into = LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 };
        effects.receive(Peer::ONLY, RECEIVE, into);
    }

    /// Whether one more can be requested: there are as many words for destinations as slots.
    fn has_room(&self) -> bool {
        self.next - self.stand.tail() < self.boxes.slots
    }

    /// Whether no other message occupies an offset.
    fn is_free(&self, offset: u64) -> bool {
        let bytes = u64::from(self.boxes.message_bytes_max);
        self.taken.iter().all(|(_, taken)| offset.abs_diff(*taken) >= bytes)
    }

    fn tell(&mut self, number: u64, offset: u64, to: &PeerRegions, effects: &mut Effects) {
        self.taken.push((number, offset));
        let word = place_of(number, offset).to_le_bytes();
        let at = self.places + self.boxes.slot(number) * WORD;
        let at = RemoteSlice { region: to.bells, offset: at };
        effects.write_inline(Peer::ONLY, PLACE, Notify::No, &[&word], at, None);
    }

    /// Requests messages into its own buffer.
    fn ask(&mut self, effects: &mut Effects) -> Result<(), Violation> {
        let Some(to) = self.stand.ready(effects) else { return Ok(()) };
        while self.has_room() && self.asks.len() < IN_FLIGHT {
            let (number, offset) = (self.next, self.boxes.message(self.next));
            if !self.is_free(offset) {
                break;
            }
            self.stand.hold(number, number + 1)?;
            self.next += 1;
            self.asks.push_back(Ask { number, offset, named: false, state: IndirectState::Asked });
            self.tell(number, offset, &to, effects);
        }
        Ok(())
    }

    /// Polls the bells of requested messages: they are set in order.
    fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Result<(), Violation> {
        if self.signal != Signal::Word {
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

impl Half for IndirectReceiver {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        // There is one receiver, so it gets the first message.
        self.stand.begin(PeerRegions { number: Peer::ONLY, ..regions }, 0);
        for _ in 0..self.receives {
            self.post(effects);
        }
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.stand.lost();
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.stand.completed(completed.name, effects);
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let (Some(number), Signal::Message) = (arrival.immediate, self.signal) else {
            return Err(Violation("a message where none comes"));
        };
        self.post(effects);
        if arrival.bytes > self.boxes.message_bytes_max {
            return Err(Violation("a length that no message has"));
        }
        let asked =
            |ask: &&mut Ask| ask.number as u32 == number && ask.state == IndirectState::Asked;
        match self.asks.iter_mut().find(asked) {
            Some(ask) => ask.state = IndirectState::Here(arrival.bytes),
            None => return Err(Violation("an unrequested message")),
        }
        Ok(())
    }
}

impl ReceiveHalf for IndirectReceiver {
    #[inline]
    fn receive<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        self.look(own)?;
        self.ask(effects)?;
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
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        if self.asks.iter().any(|ask| ask.number == held.0) {
            return Err(HalfRefusal::NoSuch("held message"));
        }
        self.stand.release(held, own, effects)?;
        self.taken.retain(|(number, _)| *number != held.0);
        Ok(())
    }

    fn offer<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Option<Offer>, Violation> {
        self.look(own)?;
        if self.stand.ready(effects).is_none() || !self.has_room() {
            return Ok(None);
        }
        let number = self.next;
        let held = self.stand.hold(number, number + 1)?;
        self.next += 1;
        self.asks.push_back(Ask { number, offset: 0, named: true, state: IndirectState::Offered });
        let bytes_max = self.boxes.message_bytes_max;
        Ok(Some(Offer { held, peer: Peer::ONLY, bytes_max, place: None }))
    }

    fn receive_into<M: Memory>(
        &mut self,
        offer: HeldMessage,
        into: LocalSlice,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let offered = |ask: &Ask| ask.number == offer.0 && ask.state == IndirectState::Offered;
        if !self.asks.iter().any(offered) {
            return Err(HalfRefusal::NoSuch("offer"));
        }
        let to = self.stand.ready(effects).ok_or(HalfRefusal::Lost)?;
        if into.bytes < self.boxes.message_bytes_max {
            return Err(HalfRefusal::TooLong { bytes_max: into.bytes });
        }
        let end = into.offset.checked_add(u64::from(into.bytes));
        if into.region != self.regions.buffer || end.is_none_or(|end| end > self.buffer_bytes) {
            return Err(HalfRefusal::Form("a place in its own buffer"));
        }
        if !self.is_free(into.offset) {
            return Err(HalfRefusal::Form("a slice that no other message occupies"));
        }
        self.tell(offer.0, into.offset, &to, effects);
        if let Some(ask) = self.asks.iter_mut().find(|ask| ask.number == offer.0) {
            (ask.offset, ask.state) = (into.offset, IndirectState::Asked);
        }
        Ok(())
    }

    fn fetched<M: Memory>(
        &mut self,
        offer: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Option<u32> {
        // The next `receive` or `offer` detects and reports the same violation.
        let _ = self.look(own);
        let at = self.asks.iter().position(|ask| ask.number == offer.0 && ask.named)?;
        let IndirectState::Here(bytes) = self.asks.get(at)?.state else { return None };
        self.asks.remove(at);
        self.release(offer, own, effects).ok()?;
        Some(bytes)
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        self.stand.acknowledge(effects);
    }
}
