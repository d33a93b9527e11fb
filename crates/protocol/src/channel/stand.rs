//! Where a reader stands in a memory that its sender owns (`readers.rs` has the sender's side).

use super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::effects::{Effects, Name};
use super::half::{Held, Own, OwnRegions, Peer, PeerRegions, Refusal, own as reach};
use super::readers::{START_COPY, STEP};
use super::releases::Releases;
use super::shape::{Acknowledge, Shape};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of a look at where a reader begins.
pub(super) const START: Name = Name(u32::MAX - 1);

/// No channel lives so long; positions below never overflow.
const START_MAX: u64 = 1 << 62;

/// A reader's sender, where it began, what it holds and what it has told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Stand {
    way: Acknowledge,
    unit: u64,
    capacity: u64,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    asked: bool,
    begun: bool,
    releases: Releases,
    acknowledger: Acknowledger,
}

impl Stand {
    /// Of a reader that acknowledges when half of `capacity` has been processed.
    pub(super) fn new(shape: &Shape, unit: u64, capacity: u64, regions: OwnRegions) -> Self {
        let way = shape.acknowledge;
        Self {
            way,
            unit,
            capacity,
            regions,
            peer: None,
            asked: false,
            begun: false,
            releases: Releases::default(),
            acknowledger: Acknowledger::new(way, Peer::ONLY, unit, 0, capacity),
        }
    }

    /// The sender is there.
    pub(super) fn connected(&mut self, regions: PeerRegions, effects: &mut Effects) {
        self.peer = Some(regions);
        self.ask(effects);
    }

    /// The sender is there and the first message is ours.
    pub(super) fn begin(&mut self, regions: PeerRegions, start: u64) {
        let word = match self.way {
            Acknowledge::Word => u64::from(regions.number.0) * STEP + 8,
            Acknowledge::Message | Acknowledge::ReadTail => 0,
        };
        let (way, unit, capacity) = (self.way, self.unit, self.capacity);
        self.peer = Some(regions);
        self.begun = true;
        self.releases.skip(start);
        self.acknowledger =
            Acknowledger::new(way, Peer::ONLY, unit, word, capacity).starting_at(start);
    }

    pub(super) const fn lost(&mut self) {
        self.peer = None;
    }

    fn ask(&mut self, effects: &mut Effects) {
        if let Some(to) = self.peer.filter(|_| !self.asked && !self.begun) {
            self.asked = true;
            let into = LocalSlice { region: self.regions.bells, offset: START_COPY, bytes: 8 };
            let offset = u64::from(to.number.0) * STEP;
            effects.read(Peer::ONLY, START, into, RemoteSlice { region: to.bells, offset });
        }
    }

    /// The sender, once it is known where to begin; asks it where, if not.
    #[inline]
    pub(super) fn ready(&mut self, effects: &mut Effects) -> Option<PeerRegions> {
        if !self.begun {
            self.ask(effects);
            return None;
        }
        self.peer
    }

    /// Whether it is known where to begin.
    #[inline]
    pub(super) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// The look at the start has ended: where that is, if it is known now.
    pub(super) fn started<M: Memory>(&mut self, own: Own<'_, M>) -> Result<Option<u64>, Violation> {
        self.asked = false;
        let word = reach(own.bells.load_word(START_COPY))?;
        let (Some(start), Some(peer)) = (word.checked_sub(1), self.peer) else {
            return Ok(None);
        };
        if self.begun || start > START_MAX || !start.is_multiple_of(self.unit) {
            return Err(Violation("a start where no message begins"));
        }
        self.begin(peer, start);
        Ok(Some(start))
    }

    /// Everything before this position is released.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.releases.tail()
    }

    /// Hands out what lies between two positions.
    #[inline]
    pub(super) fn hold(&mut self, start: u64, end: u64) -> Result<Held, Violation> {
        if self.releases.hold(start, end) {
            Ok(Held(start))
        } else {
            Err(Violation("a message upon another one"))
        }
    }

    /// Gives back what was handed out.
    #[inline]
    pub(super) fn release<M: Memory>(
        &mut self,
        held: Held,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        self.releases.release(held)?;
        let tail = self.releases.tail();
        if tail > self.acknowledger.done() {
            self.acknowledger.processed(tail, self.peer.as_ref(), own, effects);
        }
        Ok(())
    }

    /// Acknowledges in any case.
    pub(super) fn must(&mut self, effects: &mut Effects) {
        self.acknowledger.must(self.peer.as_ref(), effects);
    }

    /// Acknowledges what is worth it.
    pub(super) fn acknowledge(&mut self, effects: &mut Effects) {
        self.acknowledger.now(self.peer.as_ref(), effects);
    }

    /// An acknowledgement has ended; whether it was one.
    pub(super) fn completed(&mut self, name: Name, effects: &mut Effects) -> bool {
        if name == ACKNOWLEDGEMENT {
            self.acknowledger.completed(self.peer.as_ref(), effects);
        }
        name == ACKNOWLEDGEMENT
    }
}
