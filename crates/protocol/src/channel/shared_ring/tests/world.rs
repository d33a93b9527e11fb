//! Some senders and their receiver over plain memory, with wires that carry out one request at a time.

extern crate std;

use super::super::super::half::{
    Arrival, Completed, Content, Half as _, HalfRefusal, HeldMessage, Own, OwnRegions, Payload,
    Peer, PeerRegions, Received,
};
use super::super::super::kind::Kind;
use super::super::super::shape::{MemoryPlan, Shape};
use super::super::super::{Effects, Name, Receiver, Sender};
use super::super::{HEAD, RingWords, TAIL, plan_receiver, plan_sender};
use crate::wire::Violation;
use core::cell::RefCell;
use farside_base::{
    LocalSlice, Memory, Operation, OutOfBounds, RegionId, RemoteRegionId, RemoteSlice, Source,
};
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

pub(super) const OWN: OwnRegions = OwnRegions { buffer: RegionId(0), bells: RegionId(1) };

/// Plain memory; its end may join its beginning.
#[derive(Debug)]
pub(super) struct Plain(pub(super) RefCell<Vec<u8>>, u64);

impl Plain {
    pub(super) fn new(bytes: u64, turns: u64) -> Self {
        Self(RefCell::new(vec![0; bytes as usize]), turns)
    }

    fn places(&self, offset: u64, bytes: u64) -> Result<impl Iterator<Item = usize>, OutOfBounds> {
        let turn = self.0.borrow().len() as u64;
        let end = offset.checked_add(bytes).filter(|end| *end <= turn * self.1);
        let end = end.ok_or(OutOfBounds)?;
        Ok((offset..end).map(move |place| (place % turn) as usize))
    }
}

impl Memory for Plain {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        for (place, byte) in self.places(offset, out.len() as u64)?.zip(out) {
            *byte = self.0.borrow()[place];
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        for (place, byte) in self.places(offset, bytes.len() as u64)?.zip(bytes) {
            self.0.borrow_mut()[place] = *byte;
        }
        Ok(())
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        for place in self.places(offset, bytes)? {
            self.0.borrow_mut()[place] = 0;
        }
        Ok(())
    }

    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        let mut word = [0; 8];
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        self.read(offset, &mut word).map(|()| u64::from_le_bytes(word))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        self.write(offset, &word.to_le_bytes())
    }
}

#[derive(Debug)]
pub(super) enum PostedVerb {
    Write(Vec<u8>, RemoteSlice, Option<u32>),
    Read(LocalSlice, RemoteSlice),
    Add(RemoteSlice, u64, LocalSlice),
}

#[derive(Debug)]
pub(super) struct Sent {
    pub(super) peer: Peer,
    pub(super) name: Name,
    pub(super) told: bool,
    pub(super) what: PostedVerb,
}

/// A half's memory, and its posted requests. Region 2 is the program's, region 3 has the counters.
#[derive(Debug)]
pub(super) struct RingHalf {
    pub(super) regions: [Plain; 4],
    pub(super) effects: Effects,
    pub(super) receives: usize,
    pub(super) wire: VecDeque<Sent>,
}

impl RingHalf {
    pub(super) fn new(plan: &MemoryPlan) -> Self {
        let user = Plain::new(1 << 14, 1);
        let buffer = Plain::new(plan.buffer_bytes, plan.buffer_kind.turns());
        let [bells, counters] = [plan.bells_bytes, plan.counters_bytes].map(|b| Plain::new(b, 1));
        let regions = [buffer, bells, user, counters];
        Self { regions, effects: Effects::new(0), receives: 0, wire: VecDeque::new() }
    }

    pub(super) fn with<T>(&mut self, call: impl FnOnce(Own<'_, Plain>, &mut Effects) -> T) -> T {
        let [buffer, bells, _, counters] = &self.regions;
        let result = call(Own { buffer, bells, counters }, &mut self.effects);
        self.receives += self.effects.postings().len();
        self.effects.receives_posted();
        for request in self.effects.requests() {
            let gathered = |source: Source<'_>| match source {
                Source::Inline(bytes) => bytes.to_vec(),
                Source::Gather(slices) => {
                    slices.iter().flat_map(|slice| self.get(*slice)).collect()
                }
            };
            let what = match self.effects.operation(request) {
                Operation::Write { source, to, immediate } => {
                    PostedVerb::Write(gathered(source), to, immediate)
                }
                Operation::Read { into: [into], from } => PostedVerb::Read(*into, from),
                Operation::FetchAdd { at, add, into } => PostedVerb::Add(at, add, into),
                other => panic!("{other:?}"),
            };
            let (peer, name, told) = (request.peer, request.name, request.signalled);
            self.wire.push_back(Sent { peer, name, told, what });
        }
        let count = self.effects.requests().len();
        self.effects.posted(count);
        result
    }

    pub(super) fn get(&self, slice: LocalSlice) -> Vec<u8> {
        let mut bytes = vec![0; slice.bytes as usize];
        self.regions[slice.region.0 as usize].read(slice.offset, &mut bytes).unwrap();
        bytes
    }
}

/// Some senders and their receiver.
pub(super) struct World {
    pub(super) senders: Vec<(Sender, RingHalf)>,
    pub(super) receiver: Receiver,
    pub(super) at: RingHalf,
    pub(super) sources: [u64; 3],
    words: RingWords,
}

pub(super) fn regions(number: u16) -> PeerRegions {
    let [buffer, bells, counters] = [0, 1, 3].map(RemoteRegionId);
    PeerRegions { buffer, bells, counters, number: Peer(number) }
}

impl World {
    pub(super) fn new(kind: Kind, shape: &Shape, senders: u16) -> Self {
        assert_eq!(shape.check(kind), Ok(()));
        let mut receiver = Receiver::new(kind, shape, OWN);
        let mut at = RingHalf::new(&plan_receiver(kind, shape));
        let connect = |number| {
            let mut half = Sender::new(kind, shape, OWN);
            let mut side = RingHalf::new(&plan_sender(kind, shape));
            let peer = Peer(number);
            side.with(|own, effects| half.connected(Peer::ONLY, regions(number), own, effects))
                .unwrap();
            at.with(|own, effects| receiver.connected(peer, regions(0), own, effects)).unwrap();
            (half, side)
        };
        let senders = (0..senders).map(connect).collect();
        Self { senders, receiver, at, sources: [0; 3], words: RingWords::of(shape) }
    }

    /// Carries out the receiver's oldest word.
    pub(super) fn word(&mut self) {
        let Some(Sent { peer, told, what, .. }) = self.at.wire.pop_front() else {
            return;
        };
        let PostedVerb::Write(bytes, at, None) = what else { panic!("{what:?}") };
        assert!(!told && bytes.len() == 8);
        let side = &self.senders[usize::from(peer.0)].1;
        side.regions[at.region.0 as usize].write(at.offset, &bytes).unwrap();
    }

    /// Carries out a sender's request.
    pub(super) fn carry(&mut self, from: usize, place: usize) -> Result<(), Violation> {
        let (half, side) = &mut self.senders[from];
        let Some(Sent { name, told, what, .. }) = side.wire.remove(place) else {
            return Ok(());
        };
        let mut immediate = None;
        match what {
            PostedVerb::Write(bytes, at, with) => {
                self.at.regions[at.region.0 as usize].write(at.offset, &bytes).unwrap();
                immediate = with.map(|with| (with, bytes.len() as u32));
            }
            PostedVerb::Read(into, at) => {
                let word = self.at.regions[at.region.0 as usize].load_word(at.offset).unwrap();
                side.regions[into.region.0 as usize].store_word(into.offset, word).unwrap();
            }
            PostedVerb::Add(at, add, into) => {
                let region = &self.at.regions[at.region.0 as usize];
                let word = region.load_word(at.offset).unwrap();
                region.store_word(at.offset, word + add).unwrap();
                side.regions[into.region.0 as usize].store_word(into.offset, word).unwrap();
            }
        }
        if told {
            let completed = Completed { peer: Peer::ONLY, name };
            side.with(|own, effects| half.completed(completed, own, effects))?;
        }
        if let Some((immediate, bytes)) = immediate {
            self.at.receives = self.at.receives.checked_sub(1).expect("a receive");
            let (peer, immediate) = (Peer(from as u16), Some(immediate));
            let arrival = Arrival { peer, name: Name(0), bytes, immediate };
            self.at.with(|own, effects| self.receiver.arrived(arrival, own, effects))?;
        }
        Ok(())
    }

    /// Carries out all requests in order until none is in flight.
    pub(super) fn settle(&mut self) {
        loop {
            while !self.at.wire.is_empty() {
                self.word();
            }
            for from in 0..self.senders.len() {
                self.carry(from, 0).unwrap();
            }
            let idle = |(_, side): &(Sender, RingHalf)| side.wire.is_empty();
            if self.senders.iter().all(idle) {
                return;
            }
        }
    }

    pub(super) fn advance(&mut self, from: usize) -> Result<(), Violation> {
        let (half, side) = &mut self.senders[from];
        side.with(|own, effects| half.advance(own, effects))
    }

    pub(super) fn send(
        &mut self,
        from: usize,
        bytes: &[u8],
        gather: bool,
    ) -> Result<(), HalfRefusal> {
        let (half, side) = &mut self.senders[from];
        if !gather {
            let payload = Payload::Bytes(bytes);
            return side.with(|own, effects| half.send(payload, own, effects)).map(drop);
        }
        // Sources stay in use until they are done: there are more slots than messages can be in flight.
        self.sources[from] = (self.sources[from] + 1) % 256;
        let offset = self.sources[from] * 64;
        side.regions[2].write(offset, bytes).unwrap();
        let cut = bytes.len() as u32 / 2;
        let slice = |offset, bytes| LocalSlice { region: RegionId(2), offset, bytes };
        let rest = bytes.len() as u32 - cut;
        let slices = [slice(offset, cut), slice(offset + u64::from(cut), rest)];
        let payload = Payload::Gather(&slices);
        side.with(|own, effects| half.send(payload, own, effects)).map(drop)
    }

    pub(super) fn receive(&mut self) -> Result<Option<(Received, Vec<u8>)>, Violation> {
        let got = self.at.with(|own, effects| self.receiver.receive(own, effects))?;
        Ok(got.map(|received| {
            let Content::Buffer { offset, bytes } = received.content else { panic!("bytes") };
            (received, self.at.get(LocalSlice { region: OWN.buffer, offset, bytes }))
        }))
    }

    pub(super) fn release(&mut self, held: HeldMessage) -> Result<(), HalfRefusal> {
        self.at.with(|own, effects| self.receiver.release(held, own, effects))
    }

    pub(super) fn lose(&mut self, from: usize) {
        self.senders[from].1.wire.clear();
        self.at.wire.retain(|sent| usize::from(sent.peer.0) != from);
        self.receiver.lost(Peer(from as u16));
    }

    pub(super) fn head(&self) -> u64 {
        self.at.regions[if self.words.head_apart { 3 } else { 1 }].load_word(HEAD).unwrap()
    }

    pub(super) fn tail(&self) -> u64 {
        self.at.regions[if self.words.tail_apart { 3 } else { 1 }].load_word(TAIL).unwrap()
    }
}

/// Low-quality pseudo-random numbers.
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}
