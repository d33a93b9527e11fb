//! The receiver of messages into posted receives.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::super::effects::{Effects, Name};
use super::super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Own, OwnRegions, Peer,
    PeerRegions, ReceiveHalf, Received,
};
use super::super::kind::Kind;
use super::super::shape::{Acknowledge, Shape};
use super::{Form, PROGRESS};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory};

/// The state of a receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ReceiveState {
    /// It waits for a message.
    Posted,
    /// It took a message that the program has not received.
    Arrived,
    /// Its message was handed out.
    Held,
}

/// A receive, and its slot in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ReceiveSlot {
    state: ReceiveState,
    /// The sender of its message.
    peer: Peer,
    /// That sender is gone: the release is not acknowledged.
    orphan: bool,
    /// Bytes of the message, or the integer.
    value: u32,
}

impl ReceiveSlot {
    const POSTED: Self =
        Self { state: ReceiveState::Posted, peer: Peer::ONLY, orphan: false, value: 0 };
}

/// A sender, as its receiver knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct From {
    regions: Option<PeerRegions>,
    /// The number of messages that arrived.
    arrived: u64,
    acknowledger: Acknowledger,
}

impl From {
    const fn new(way: Acknowledge, peer: Peer, credits: u32) -> Self {
        let acknowledger = Acknowledger::new(way, peer, 1, PROGRESS, credits as u64);
        Self { regions: None, arrived: 0, acknowledger }
    }
}

/// The receiver half of a send/receive channel.
///
/// *Order*: that of arrival, which is each sender's on a fabric with `message_order`. *Cost*: no request except an
/// acknowledgement per half of the receives that a sender has; a receive posted per message. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TwoSidedReceiver {
    form: Form,
    message_bytes_max: u32,
    step: u64,
    credits: u32,
    acknowledge: Acknowledge,
    regions: OwnRegions,
    senders: Vec<From>,
    slots: Vec<ReceiveSlot>,
    posted: bool,
    /// Slots with messages that the program has not received, by arrival.
    ready: VecDeque<u32>,
    /// A message was released since everything was last acknowledged.
    untold: bool,
}

impl TwoSidedReceiver {
    /// Creates a receiver without peers.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = Form::of(kind);
        let credits = form.credits(shape);
        let peers = if form == Form::Shared { shape.peers_max } else { 1 };
        let slots = shape.slots as usize;
        let from = |peer| From::new(shape.acknowledge, Peer(peer), credits);
        Self {
            form,
            message_bytes_max: shape.message_bytes_max,
            step: form.step(shape),
            credits,
            acknowledge: shape.acknowledge,
            regions,
            senders: (0..peers).map(from).collect(),
            slots: alloc::vec![ReceiveSlot::POSTED; slots],
            posted: false,
            ready: VecDeque::with_capacity(slots),
            untold: false,
        }
    }

    /// Enables a planted defect: this half has none.
    #[cfg(canary)]
    pub fn with_mutant(self, _: super::super::ChannelMutant) -> Self {
        self
    }

    fn post(&self, slot: u32, effects: &mut Effects) {
        let into = match self.form {
            Form::Bufferless => LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 },
            Form::Normal | Form::Shared => LocalSlice {
                region: self.regions.buffer,
                offset: u64::from(slot) * self.step,
                bytes: self.message_bytes_max,
            },
        };
        effects.receive(Peer::ONLY, Name(slot), into);
    }

    /// The content of an arrival; a violation if it is not a message of this channel.
    #[inline]
    fn value(&self, arrival: Arrival) -> Result<u32, Violation> {
        match (self.form, arrival.immediate) {
            (Form::Bufferless, Some(_)) if arrival.bytes > 0 => {
                Err(Violation("bytes instead of an integer"))
            }
            (Form::Bufferless, Some(integer)) => Ok(integer),
            (Form::Bufferless, None) => Err(Violation("a message without its integer")),
            (_, Some(_)) => Err(Violation("an integer instead of a message")),
            (_, None) if arrival.bytes > self.message_bytes_max => {
                Err(Violation("a length that no message has"))
            }
            (_, None) => Ok(arrival.bytes),
        }
    }

    /// Counts a message; a violation if its sender had no credit for it.
    #[inline]
    fn count(&mut self, peer: Peer) -> Result<bool, Violation> {
        let Some(from) = self.senders.get_mut(usize::from(peer.0)) else {
            return Err(Violation("a message from an unknown sender"));
        };
        if from.regions.is_none() {
            return Ok(false);
        }
        if from.arrived - from.acknowledger.told() >= u64::from(self.credits) {
            return Err(Violation("more messages than receives"));
        }
        from.arrived += 1;
        Ok(true)
    }
}

impl Half for TwoSidedReceiver {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let Some(from) = self.senders.get_mut(usize::from(peer.0)) else {
            return Err(Violation("more peers than the channel has"));
        };
        *from = From::new(self.acknowledge, peer, self.credits);
        from.regions = Some(regions);
        if !self.posted {
            self.posted = true;
            for slot in 0..self.slots.len() as u32 {
                self.post(slot, effects);
            }
        }
        Ok(())
    }

    fn lost(&mut self, peer: Peer) {
        if let Some(from) = self.senders.get_mut(usize::from(peer.0)) {
            from.regions = None;
        }
        for slot in self.slots.iter_mut().filter(|slot| slot.state != ReceiveState::Posted) {
            slot.orphan |= slot.peer == peer;
        }
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let from = self.senders.get_mut(usize::from(completed.peer.0));
        if let Some(from) = from.filter(|_| completed.name == ACKNOWLEDGEMENT) {
            from.acknowledger.completed(from.regions.as_ref(), effects);
        }
        Ok(())
    }

    #[inline]
    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let number = arrival.name.0;
        let posted = |slot: &ReceiveSlot| slot.state == ReceiveState::Posted;
        if !self.slots.get(number as usize).is_some_and(posted) {
            return Err(Violation("a message for no posted receive"));
        }
        let value = self.value(arrival);
        let counted = value.and_then(|value| Ok((value, self.count(arrival.peer)?)));
        match (counted, self.slots.get_mut(number as usize)) {
            (Ok((value, living)), Some(slot)) => {
                let (state, peer) = (ReceiveState::Arrived, arrival.peer);
                *slot = ReceiveSlot { state, peer, orphan: !living, value };
                self.ready.push_back(number);
                Ok(())
            }
            (Err(violation), _) => {
                // The receive serves the other senders again.
                self.post(number, effects);
                Err(violation)
            }
            (Ok(_), None) => Ok(()),
        }
    }

    fn wasted(&mut self, _: Peer, name: Name, effects: &mut Effects) {
        let posted = |slot: &ReceiveSlot| slot.state == ReceiveState::Posted;
        if self.form == Form::Shared && self.slots.get(name.0 as usize).is_some_and(posted) {
            self.post(name.0, effects);
        }
    }
}

impl ReceiveHalf for TwoSidedReceiver {
    #[inline]
    fn receive<M: Memory>(
        &mut self,
        _: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<Option<Received>, Violation> {
        let Some(number) = self.ready.pop_front() else {
            return Ok(None);
        };
        let Some(slot) = self.slots.get_mut(number as usize) else {
            return Ok(None);
        };
        slot.state = ReceiveState::Held;
        let content = match self.form {
            Form::Bufferless => Content::Integer(slot.value),
            Form::Normal | Form::Shared => {
                Content::Buffer { offset: u64::from(number) * self.step, bytes: slot.value }
            }
        };
        Ok(Some(Received { held: HeldMessage(u64::from(number)), peer: slot.peer, content }))
    }

    #[inline]
    fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        let slot = usize::try_from(held.0).ok().and_then(|slot| self.slots.get_mut(slot));
        let Some(slot) = slot.filter(|slot| slot.state == ReceiveState::Held) else {
            return Err(HalfRefusal::NoSuch("held message"));
        };
        let (peer, orphan) = (slot.peer, slot.orphan);
        *slot = ReceiveSlot::POSTED;
        // Without its only sender there is no queue any more.
        if !orphan || self.form == Form::Shared {
            self.post(held.0 as u32, effects);
        }
        if let Some(from) = self.senders.get_mut(usize::from(peer.0)).filter(|_| !orphan) {
            let done = from.acknowledger.done() + 1;
            from.acknowledger.processed(done, from.regions.as_ref(), own, effects);
            self.untold = true;
        }
        Ok(())
    }

    fn acknowledge<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        if !self.untold {
            return;
        }
        self.untold = false;
        for from in &mut self.senders {
            from.acknowledger.now(from.regions.as_ref(), effects);
            let told = from.acknowledger.told() == from.acknowledger.done();
            self.untold |= !told && from.regions.is_some();
        }
    }
}
