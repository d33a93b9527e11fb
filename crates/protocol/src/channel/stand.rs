//! A reader's position in memory that its sender owns (`readers.rs` has the sender's part).

use super::acknowledge::{ACKNOWLEDGEMENT, Acknowledger};
use super::effects::{Effects, Name};
use super::half::{HalfRefusal, HeldMessage, Own, OwnRegions, Peer, PeerRegions, own as reach};
use super::readers::{START_COPY, STEP};
use super::releases::Releases;
use super::shape::{Acknowledge, Shape};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of the READ of a reader's start.
pub(super) const START: Name = Name(u32::MAX - 1);

/// No channel lasts long enough to reach it; positions below never overflow.
const START_MAX: u64 = 1 << 62;

/// A reader's sender, its start, and the messages that it holds and has acknowledged.
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
    /// Creates the position of a reader that acknowledges when half of `capacity` has been processed.
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

    /// Connects the sender.
    pub(super) fn connected(&mut self, regions: PeerRegions, effects: &mut Effects) {
        self.peer = Some(regions);
        self.ask(effects);
    }

    /// Begins at a known position.
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

    /// Returns the sender once the start is known; otherwise requests the start.
    #[inline]
    pub(super) fn ready(&mut self, effects: &mut Effects) -> Option<PeerRegions> {
        if !self.begun {
            self.ask(effects);
            return None;
        }
        self.peer
    }

    /// Whether the start is known.
    #[inline]
    pub(super) const fn has_begun(&self) -> bool {
        self.begun
    }

    /// Handles the completed READ of the start; returns it if it is set.
    pub(super) fn started<M: Memory>(&mut self, own: Own<'_, M>) -> Result<Option<u64>, Violation> {
        self.asked = false;
        let word = reach(own.bells.load_word(START_COPY))?;
        let (Some(start), Some(peer)) = (word.checked_sub(1), self.peer) else {
            return Ok(None);
        };
        if self.begun || start > START_MAX || !start.is_multiple_of(self.unit) {
            return Err(Violation("an invalid start"));
        }
        self.begin(peer, start);
        Ok(Some(start))
    }

    /// Everything before this position is released.
    #[inline]
    pub(super) const fn tail(&self) -> u64 {
        self.releases.tail()
    }

    /// Hands out the record between two positions.
    #[inline]
    pub(super) fn hold(&mut self, start: u64, end: u64) -> Result<HeldMessage, Violation> {
        if self.releases.hold(start, end) {
            Ok(HeldMessage(start))
        } else {
            Err(Violation("overlapping messages"))
        }
    }

    /// Releases a record.
    #[inline]
    pub(super) fn release<M: Memory>(
        &mut self,
        held: HeldMessage,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
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

    /// Acknowledges if it is worthwhile.
    pub(super) fn acknowledge(&mut self, effects: &mut Effects) {
        self.acknowledger.now(self.peer.as_ref(), effects);
    }

    /// Handles the completion of an acknowledgement; false if the request is not one.
    pub(super) fn completed(&mut self, name: Name, effects: &mut Effects) -> bool {
        if name == ACKNOWLEDGEMENT {
            self.acknowledger.completed(self.peer.as_ref(), effects);
        }
        name == ACKNOWLEDGEMENT
    }
}
