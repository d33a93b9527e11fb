//! Receivers of one sender: its regions, the receives posted for it, and the acknowledgements. Readers of memory at
//! their sender also have a start and the records that they hold ([`ReaderPosition`]).

use super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::canary::ChannelMutant;
use super::effects::{Effects, Name, Peer};
use super::half::{
    Accepted, Arrival, Checked, Completed, HalfRefusal, HeldMessage, Offer, Own, OwnRegions,
    PeerRegions, Received, Step, UNEXPECTED, checked_length, own as reach,
};
use super::readers::{START_COPY, STEP};
use super::releases::Releases;
use super::shape::{Acknowledge, Shape};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, Planted, RemoteSlice};

/// The name of every receive: they are all alike.
const RECEIVE: Name = Name(0);

/// Posts receives for messages without bytes of their own.
#[inline]
pub(super) fn post_receives(peer: Peer, count: u32, regions: OwnRegions, effects: &mut Effects) {
    let into = LocalSlice { region: regions.bells, offset: 0, bytes: 0 };
    for _ in 0..count {
        effects.receive(peer, RECEIVE, into);
    }
}

/// A receiver's sender, and what is acknowledged to it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct InboundPeer {
    pub(super) regions: OwnRegions,
    pub(super) peer: Option<PeerRegions>,
    pub(super) shape: Shape,
    /// The number of receives kept posted.
    pub(super) receives: u32,
    pub(super) acknowledger: Acknowledger,
    pub(super) mutant: Planted<ChannelMutant>,
}

impl InboundPeer {
    /// Creates it without a sender. Half of `capacity`, in steps of `unit`, is acknowledged at once.
    pub(super) fn new(
        shape: &Shape,
        regions: OwnRegions,
        receives: u32,
        (unit, capacity): (u64, u64),
    ) -> Self {
        Self {
            regions,
            peer: None,
            shape: *shape,
            receives,
            acknowledger: Acknowledger::new(shape.acknowledge, Peer::ONLY, unit, 0, capacity),
            mutant: Planted::NONE,
        }
    }

    pub(super) fn connected(&mut self, regions: PeerRegions, effects: &mut Effects) {
        self.peer = Some(regions);
        post_receives(Peer::ONLY, self.receives, self.regions, effects);
    }

    /// Checks the length of a message.
    #[inline]
    pub(super) fn length(&self, bytes: u64) -> Checked<u32> {
        checked_length(bytes, self.shape.message_bytes_max)
    }

    /// Posts the receive of a message again; returns its immediate data.
    #[inline]
    pub(super) fn immediate(&self, arrival: Arrival, effects: &mut Effects) -> Checked<u32> {
        let immediate = arrival.immediate.filter(|_| self.receives > 0).ok_or(UNEXPECTED)?;
        post_receives(Peer::ONLY, 1, self.regions, effects);
        Ok(immediate)
    }

    /// Notes the processed position, and acknowledges it when due.
    #[inline]
    pub(super) fn processed<M: Memory>(&mut self, tail: u64, step: &mut Step<'_, M>) {
        if tail > self.acknowledger.done() {
            self.acknowledger.processed(tail, self.peer.as_ref(), step);
        }
    }

    /// Acknowledges in any case.
    pub(super) fn must(&mut self, effects: &mut Effects) {
        self.acknowledger.must(self.peer.as_ref(), effects);
    }
}

/// The receiver half of a channel, as the dispatch in `machine.rs` calls it.
pub(super) trait ReceiveHalf: Sized {
    /// The common part, if it has a single sender.
    fn inbound(&mut self) -> Option<&mut InboundPeer> {
        None
    }

    /// As [`Receiver::receive`](super::Receiver::receive).
    fn receive<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked<Option<Received>>;

    /// As [`Receiver::release`](super::Receiver::release).
    fn release<M: Memory>(&mut self, held: HeldMessage, step: &mut Step<'_, M>) -> Accepted<()>;

    #[cfg(canary)]
    fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        if let Some(inbound) = self.inbound() {
            inbound.mutant = Planted::new(mutant);
            inbound.acknowledger.mutant = inbound.mutant;
        }
        self
    }

    fn prepare<M: Memory>(&mut self, _: Peer, _: &mut Step<'_, M>) -> Checked {
        Ok(())
    }

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        if let Some(inbound) = self.inbound() {
            inbound.connected(to, step.effects);
        }
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        if let Some(inbound) = self.inbound() {
            inbound.peer = None;
        }
    }

    fn advance<M: Memory>(&mut self, _: &mut Step<'_, M>) -> Checked {
        Ok(())
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        if let Some(inbound) = self.inbound().filter(|_| completed.name == ACKNOWLEDGEMENT) {
            inbound.acknowledger.completed(inbound.peer.as_ref(), step.effects);
        }
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked;

    fn wasted(&mut self, _: Peer, _: Name, _: &mut Effects) {}

    fn accused(&self) -> Option<Peer> {
        None
    }

    fn acknowledge<M: Memory>(&mut self, step: &mut Step<'_, M>) {
        if let Some(inbound) = self.inbound() {
            inbound.acknowledger.now(inbound.peer.as_ref(), step.effects);
        }
    }

    #[inline]
    fn drain<M: Memory>(
        &mut self,
        max: usize,
        step: &mut Step<'_, M>,
        see: &mut impl FnMut(Received),
    ) -> (usize, Checked) {
        drain_one_by_one(self, max, step, see)
    }

    fn offer<M: Memory>(&mut self, _: &mut Step<'_, M>) -> Checked<Option<Offer>> {
        Ok(None)
    }

    fn receive_into<M: Memory>(
        &mut self,
        _: HeldMessage,
        _: LocalSlice,
        _: &mut Step<'_, M>,
    ) -> Accepted<()> {
        Err(NO_OFFER)
    }

    fn fetched<M: Memory>(&mut self, _: HeldMessage, _: &mut Step<'_, M>) -> Option<u32> {
        None
    }
}

/// No such message is offered.
pub(super) const NO_OFFER: HalfRefusal = HalfRefusal::NoSuch("offer");

/// [`ReceiveHalf::drain`] by receiving and releasing.
#[inline]
pub(super) fn drain_one_by_one<H: ReceiveHalf, M: Memory>(
    half: &mut H,
    max: usize,
    step: &mut Step<'_, M>,
    see: &mut impl FnMut(Received),
) -> (usize, Checked) {
    let mut taken = 0;
    while taken < max {
        match half.receive(step) {
            Ok(Some(received)) => {
                see(received);
                let released = half.release(received.held, step);
                debug_assert!(released.is_ok(), "it was just received");
                taken += 1;
            }
            Ok(None) => break,
            Err(violation) => return (taken, Err(violation)),
        }
    }
    (taken, Ok(()))
}

/// The name of the READ of a reader's start.
pub(super) const START: Name = Name(u32::MAX - 1);

/// No channel lasts long enough to reach it; positions below never overflow.
const START_MAX: u64 = 1 << 62;

/// A reader's position in memory that its sender owns (`readers.rs` has the sender's part): its start, and the
/// messages that it holds and has acknowledged.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReaderPosition {
    pub(super) inbound: InboundPeer,
    unit: u64,
    asked: bool,
    begun: bool,
    releases: Releases,
}

impl ReaderPosition {
    /// Creates the position of a reader that acknowledges when half of `capacity` has been processed.
    pub(super) fn new(
        shape: &Shape,
        regions: OwnRegions,
        receives: u32,
        (unit, capacity): (u64, u64),
    ) -> Self {
        Self {
            inbound: InboundPeer::new(shape, regions, receives, (unit, capacity)),
            unit,
            asked: false,
            begun: false,
            releases: Releases::default(),
        }
    }

    /// Connects the sender, and asks for the start.
    pub(super) fn connected(&mut self, regions: PeerRegions, effects: &mut Effects) {
        self.inbound.peer = Some(regions);
        self.ask(effects);
        self.inbound.connected(regions, effects);
    }

    /// Begins at a known position.
    pub(super) fn begin(&mut self, regions: PeerRegions, start: u64) {
        let word = match self.inbound.shape.acknowledge {
            Acknowledge::Word => u64::from(regions.number.0) * STEP + 8,
            Acknowledge::Message | Acknowledge::ReadTail => 0,
        };
        self.inbound.peer = Some(regions);
        self.begun = true;
        self.releases.skip(start);
        self.inbound.acknowledger.begin(start, word);
    }

    fn ask(&mut self, effects: &mut Effects) {
        if let Some(to) = self.inbound.peer.filter(|_| !self.asked && !self.begun) {
            self.asked = true;
            let region = self.inbound.regions.bells;
            let into = LocalSlice { region, offset: START_COPY, bytes: 8 };
            let offset = u64::from(to.number.0) * STEP;
            effects.read(Peer::ONLY, START, into, RemoteSlice { region: to.bells, offset });
        }
    }

    /// Returns the sender once the start is known; otherwise requests the start.
    #[inline]
    pub(super) fn ready(&mut self, effects: &mut Effects) -> Option<PeerRegions> {
        if !self.begun {
            self.ask(effects);
            return None;
        }
        self.inbound.peer
    }

    /// Whether the start is known.
    #[inline]
    pub(super) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Handles the completed READ of the start; returns it if it is set.
    pub(super) fn started<M: Memory>(&mut self, own: Own<'_, M>) -> Checked<Option<u64>> {
        self.asked = false;
        let word = reach(own.bells.load_word(START_COPY))?;
        let (Some(start), Some(peer)) = (word.checked_sub(1), self.inbound.peer) else {
            return Ok(None);
        };
        if self.begun || start > START_MAX || !start.is_multiple_of(self.unit) {
            return Err(Violation("an invalid start"));
        }
        self.begin(peer, start);
        Ok(Some(start))
    }

    /// Handles the completion of an acknowledgement; false if the request is not one.
    pub(super) fn completed(&mut self, name: Name, effects: &mut Effects) -> bool {
        let inbound = &mut self.inbound;
        if name == ACKNOWLEDGEMENT {
            inbound.acknowledger.completed(inbound.peer.as_ref(), effects);
        }
        name == ACKNOWLEDGEMENT
    }

    /// Everything before this position is released.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.releases.tail()
    }

    /// Hands out the record between two positions.
    #[inline]
    pub(super) fn hold(&mut self, start: u64, end: u64) -> Checked<HeldMessage> {
        let held = self.releases.hold(start, end);
        if held { Ok(HeldMessage(start)) } else { Err(Violation("overlapping messages")) }
    }

    /// Releases a record.
    #[inline]
    pub(super) fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        step: &mut Step<'_, M>,
    ) -> Accepted<()> {
        self.releases.release(held)?;
        self.inbound.processed(self.releases.tail(), step);
        Ok(())
    }
}
