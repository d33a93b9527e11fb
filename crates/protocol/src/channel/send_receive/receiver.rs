//! The receiver of messages into posted receives.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::super::effects::{Effects, Name, Peer};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HeldMessage, NOT_HELD, OwnRegions, PeerRegions,
    Received, Step, checked_length,
};
use super::super::inbound::ReceiveHalf;
use super::super::kind::Kind;
use super::super::outbound::PROGRESS;
use super::super::shape::{Acknowledge, Shape};
use super::ReceiveForm;
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
    form: ReceiveForm,
    shape: Shape,
    step: u64,
    credits: u32,
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
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReceiveForm::of(kind);
        let credits = form.credits(shape);
        let peers = if form == ReceiveForm::Shared { shape.peers_max } else { 1 };
        let slots = shape.slots as usize;
        let from = |peer| From::new(shape.acknowledge, Peer(peer), credits);
        Self {
            form,
            shape: *shape,
            step: form.step(shape),
            credits,
            regions,
            senders: (0..peers).map(from).collect(),
            slots: alloc::vec![ReceiveSlot::POSTED; slots],
            posted: false,
            ready: VecDeque::with_capacity(slots),
            untold: false,
        }
    }

    fn post(&self, slot: u32, effects: &mut Effects) {
        let into = match self.form {
            ReceiveForm::Bufferless => {
                LocalSlice { region: self.regions.bells, offset: 0, bytes: 0 }
            }
            ReceiveForm::Normal | ReceiveForm::Shared => LocalSlice {
                region: self.regions.buffer,
                offset: u64::from(slot) * self.step,
                bytes: self.shape.message_bytes_max,
            },
        };
        effects.receive(Peer::ONLY, Name(slot), into);
    }

    fn is_posted(&self, number: u32) -> bool {
        let slot = self.slots.get(number as usize);
        slot.is_some_and(|slot| slot.state == ReceiveState::Posted)
    }

    /// The content of an arrival; a violation if it is not a message of this channel.
    #[inline]
    fn value(&self, arrival: Arrival) -> Checked<u32> {
        match (self.form, arrival.immediate) {
            (ReceiveForm::Bufferless, Some(_)) if arrival.bytes > 0 => {
                Err(Violation("bytes instead of an integer"))
            }
            (ReceiveForm::Bufferless, Some(integer)) => Ok(integer),
            (ReceiveForm::Bufferless, None) => Err(Violation("a message without its integer")),
            (_, Some(_)) => Err(Violation("an integer instead of a message")),
            (_, None) => checked_length(u64::from(arrival.bytes), self.shape.message_bytes_max),
        }
    }

    /// Counts a message; a violation if its sender had no credit for it.
    #[inline]
    fn count(&mut self, peer: Peer) -> Checked<bool> {
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

impl ReceiveHalf for TwoSidedReceiver {
    fn connected(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        step: &mut Step<'_, impl Memory>,
    ) -> Checked {
        let Some(from) = self.senders.get_mut(usize::from(peer.0)) else {
            return Err(Violation("more peers than the channel has"));
        };
        *from = From::new(self.shape.acknowledge, peer, self.credits);
        from.regions = Some(regions);
        if !self.posted {
            self.posted = true;
            for slot in 0..self.slots.len() as u32 {
                self.post(slot, step.effects);
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

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        let from = self.senders.get_mut(usize::from(completed.peer.0));
        if let Some(from) = from.filter(|_| completed.name == ACKNOWLEDGEMENT) {
            from.acknowledger.completed(from.regions.as_ref(), step.effects);
        }
        Ok(())
    }

    #[inline]
    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let number = arrival.name.0;
        if !self.is_posted(number) {
            return Err(Violation("a message for no posted receive"));
        }
        let value = self.value(arrival);
        let counted = value.and_then(|value| Ok((value, self.count(arrival.peer)?)));
        if counted.is_err() {
            // The receive serves the other senders again.
            self.post(number, step.effects);
        }
        let (value, living) = counted?;
        if let Some(slot) = self.slots.get_mut(number as usize) {
            let (state, peer) = (ReceiveState::Arrived, arrival.peer);
            *slot = ReceiveSlot { state, peer, orphan: !living, value };
            self.ready.push_back(number);
        }
        Ok(())
    }

    fn wasted(&mut self, _: Peer, name: Name, effects: &mut Effects) {
        if self.form == ReceiveForm::Shared && self.is_posted(name.0) {
            self.post(name.0, effects);
        }
    }

    #[inline]
    fn receive<M: Memory>(&mut self, _: &mut Step<'_, M>) -> Checked<Option<Received>> {
        let ready = self.ready.pop_front();
        let slot = ready.and_then(|number| Some((number, self.slots.get_mut(number as usize)?)));
        let Some((number, slot)) = slot else {
            return Ok(None);
        };
        slot.state = ReceiveState::Held;
        let content = match self.form {
            ReceiveForm::Bufferless => Content::Integer(slot.value),
            ReceiveForm::Normal | ReceiveForm::Shared => {
                Content::Buffer { offset: u64::from(number) * self.step, bytes: slot.value }
            }
        };
        Ok(Some(Received { held: HeldMessage(u64::from(number)), peer: slot.peer, content }))
    }

    #[inline]
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()> {
        let slot = usize::try_from(held.0).ok().and_then(|number| self.slots.get_mut(number));
        let slot = slot.filter(|slot| slot.state == ReceiveState::Held).ok_or(NOT_HELD)?;
        let (peer, orphan) = (slot.peer, slot.orphan);
        *slot = ReceiveSlot::POSTED;
        // Without its only sender there is no queue any more.
        if !orphan || self.form == ReceiveForm::Shared {
            self.post(held.0 as u32, step.effects);
        }
        if let Some(from) = self.senders.get_mut(usize::from(peer.0)).filter(|_| !orphan) {
            let done = from.acknowledger.done() + 1;
            from.acknowledger.processed(done, from.regions.as_ref(), step);
            self.untold = true;
        }
        Ok(())
    }

    fn acknowledge<M: Memory>(&mut self, step: &mut Step<'_, M>) {
        if !core::mem::take(&mut self.untold) {
            return;
        }
        for from in &mut self.senders {
            from.acknowledger.now(from.regions.as_ref(), step.effects);
            let told = from.acknowledger.told() == from.acknowledger.done();
            self.untold |= !told && from.regions.is_some();
        }
    }
}
