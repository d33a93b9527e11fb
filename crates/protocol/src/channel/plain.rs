//! Memory and wires for tests of channels with peers that READ: plain vectors that remember every store, and requests
//! that are carried out in any order. A READ takes every word from any moment between its posting and its completion,
//! and readers may lag the sender: they can READ the memory as it was in the middle of an earlier call of the sender.

extern crate std;

use super::effects::{Effects, Name};
use super::half::{Arrival, Completed, Half, Own, OwnRegions, Peer, PeerRegions};
use super::kind::Kind;
use super::machine::{Receiver, Sender};
use super::shape::{MemoryPlan, Shape};
use crate::wire::Violation;
use core::cell::{Cell, RefCell};
use farside_base::{
    LocalSlice, Memory, Operation, OutOfBounds, RegionId, RegionKind, RemoteRegionId, RemoteSlice,
    Source,
};
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

/// Pseudo-random numbers.
#[derive(Clone, Debug)]
pub(super) struct Xorshift64(u64);

impl Xorshift64 {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) % bound.max(1) as u64) as usize
    }
}

/// Plain memory; its end joins its beginning if it is planned as mirrored.
#[derive(Debug)]
pub(super) struct Plain {
    /// Its contents from each moment on; the last are the current ones.
    states: RefCell<Vec<(usize, Vec<u8>)>>,
    turns: usize,
    /// The current moment, for memory that remembers.
    clock: Option<Rc<Cell<usize>>>,
}

impl Plain {
    pub(super) fn new(bytes: u64) -> Self {
        Self::mapped(bytes, 1, None)
    }

    fn mapped(bytes: u64, turns: usize, clock: Option<Rc<Cell<usize>>>) -> Self {
        Self { states: RefCell::new(vec![(0, vec![0; bytes as usize])]), turns, clock }
    }

    /// Copies bytes, every aligned word as it was at some moment of a range.
    fn sample(
        &self,
        offset: u64,
        bytes: u32,
        (from, to): (usize, usize),
        chance: &mut Xorshift64,
    ) -> Vec<u8> {
        self.check(offset, u64::from(bytes)).expect("READs stay inside");
        let states = self.states.borrow();
        // Often all from one moment, often from the two ends, sometimes from any moment.
        let whole = chance.below(3);
        let mut moment = from + chance.below(to + 1 - from);
        let mut state = 0;
        let mut out = Vec::new();
        for at in offset as usize..offset as usize + bytes as usize {
            if (at % 8 == 0 && whole > 0) || at == offset as usize {
                moment = match whole {
                    0 => moment,
                    1 => from + chance.below(to + 1 - from),
                    _ => [from, to][chance.below(2)],
                };
                state = states.partition_point(|(since, _)| *since <= moment) - 1;
            }
            let (_, memory) = &states[state];
            out.push(memory[at % memory.len()]);
        }
        out
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<usize, OutOfBounds> {
        let end = offset.checked_add(bytes).ok_or(OutOfBounds)?;
        let all = self.states.borrow()[0].1.len() * self.turns;
        if end > all as u64 { Err(OutOfBounds) } else { Ok(offset as usize) }
    }

    /// Stores word by word, the last first: copies have no order.
    fn store(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, bytes.len() as u64)?;
        let mut states = self.states.borrow_mut();
        let mut memory = states.last().expect("a state").1.clone();
        let turn = memory.len();
        for (step, byte) in bytes.iter().enumerate().rev() {
            memory[(at + step) % turn] = *byte;
            if let Some(clock) = self.clock.as_ref().filter(|_| (at + step) % 8 == 0 || step == 0) {
                clock.set(clock.get() + 1);
                states.push((clock.get(), memory.clone()));
            }
        }
        if self.clock.is_none() {
            states[0].1 = memory;
        }
        Ok(())
    }
}

impl Memory for Plain {
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfBounds> {
        let at = self.check(offset, out.len() as u64)?;
        let states = self.states.borrow();
        let (_, memory) = states.last().expect("a state");
        for (step, byte) in out.iter_mut().enumerate() {
            *byte = memory[(at + step) % memory.len()];
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfBounds> {
        self.store(offset, bytes)
    }

    fn clear(&self, offset: u64, bytes: u64) -> Result<(), OutOfBounds> {
        self.check(offset, bytes)?;
        self.store(offset, &vec![0; bytes as usize])
    }

    fn load_word(&self, offset: u64) -> Result<u64, OutOfBounds> {
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn store_word(&self, offset: u64, word: u64) -> Result<(), OutOfBounds> {
        if !offset.is_multiple_of(8) {
            return Err(OutOfBounds);
        }
        self.store(offset, &word.to_le_bytes())
    }
}

/// A request in flight, with a copy of its content.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) peer: Peer,
    name: Name,
    signalled: bool,
    what: PostedVerb,
    /// The moment of its posting.
    since: Option<usize>,
}

#[derive(Clone, Debug)]
enum PostedVerb {
    Write(Vec<u8>, RemoteSlice, Option<u32>),
    Read(Vec<LocalSlice>, RemoteSlice),
    Send(Option<u32>),
}

/// A half's memory and its posted requests. Region 0 is its buffer, 1 its bells, 2 memory of the program.
#[derive(Debug)]
pub(super) struct PlainHalf {
    pub(super) regions: [Plain; 3],
    effects: Effects,
    /// Posted receives.
    receives: Vec<(Peer, Name)>,
    pub(super) wire: VecDeque<Sent>,
    /// The numbers of READs, WRITEs and SENDs that it has posted.
    pub(super) posted: [usize; 3],
    /// The moment of the sender's memory: now, or for a reader, the latest moment that it has seen.
    clock: Rc<Cell<usize>>,
}

pub(super) const OWN: OwnRegions = OwnRegions { buffer: RegionId(0), bells: RegionId(1) };

impl PlainHalf {
    pub(super) fn new(plan: &MemoryPlan, remembers: bool) -> Self {
        let turns = plan.buffer_kind.turns() as usize;
        assert!(turns == 1 || plan.buffer_kind == RegionKind::Mirrored);
        let clock = Rc::new(Cell::new(0));
        let remembered = remembers.then(|| clock.clone());
        Self {
            regions: [
                Plain::mapped(plan.buffer_bytes, turns, remembered.clone()),
                Plain::mapped(plan.bells_bytes, 1, remembered),
                Plain::new(4096),
            ],
            effects: Effects::new(0),
            receives: Vec::new(),
            wire: VecDeque::new(),
            posted: [0; 3],
            clock,
        }
    }

    /// Lends a half its memory and collects its effects.
    pub(super) fn with<T>(&mut self, call: impl FnOnce(Own<'_, Plain>, &mut Effects) -> T) -> T {
        let [buffer, bells, _] = &self.regions;
        let result = call(Own { buffer, bells, counters: bells }, &mut self.effects);
        self.post();
        result
    }

    /// The bytes of a slice of its memory.
    pub(super) fn get(&self, slice: &LocalSlice) -> Vec<u8> {
        let mut bytes = vec![0; slice.bytes as usize];
        self.regions[slice.region.0 as usize]
            .read(slice.offset, &mut bytes)
            .expect("inside the region");
        bytes
    }

    fn post(&mut self) {
        for posting in self.effects.postings() {
            self.receives.push((posting.peer, posting.name));
        }
        self.effects.receives_posted();
        for request in self.effects.requests() {
            let gathered = |source: Source<'_>| match source {
                Source::Inline(bytes) => bytes.to_vec(),
                Source::Gather(slices) => slices.iter().flat_map(|one| self.get(one)).collect(),
            };
            let (count, what) = match self.effects.operation(request) {
                Operation::Read { into, from } => {
                    assert!(!into.is_empty(), "an empty READ");
                    (0, PostedVerb::Read(into.to_vec(), from))
                }
                Operation::Write { source, to, immediate } => {
                    (1, PostedVerb::Write(gathered(source), to, immediate))
                }
                Operation::Send { immediate, .. } => (2, PostedVerb::Send(immediate)),
                _ => panic!("no such request in these channels"),
            };
            self.posted[count] += 1;
            let (peer, name, signalled) = (request.peer, request.name, request.signalled);
            self.wire.push_back(Sent { peer, name, signalled, what, since: None });
        }
        let count = self.effects.requests().len();
        self.effects.posted(count);
    }

    /// Carries out a request of `from` on this memory.
    fn take(
        &mut self,
        from: &PlainHalf,
        as_peer: Peer,
        sent: &Sent,
        chance: &mut Xorshift64,
    ) -> Option<Arrival> {
        let (bytes, immediate) = match &sent.what {
            PostedVerb::Write(bytes, at, immediate) => {
                if !bytes.is_empty() {
                    self.regions[at.region.0 as usize]
                        .write(at.offset, bytes)
                        .expect("inside the region");
                }
                (bytes.len() as u32, (*immediate)?)
            }
            PostedVerb::Read(into, at) => {
                let mut offset = at.offset;
                for slice in into {
                    let region = at.region.0 as usize;
                    let moments = (sent.since.unwrap_or_default(), from.clock.get());
                    let bytes = self.regions[region].sample(offset, slice.bytes, moments, chance);
                    from.regions[slice.region.0 as usize]
                        .write(slice.offset, &bytes)
                        .expect("inside the region");
                    offset += u64::from(slice.bytes);
                }
                return None;
            }
            PostedVerb::Send(immediate) => (0, (*immediate)?),
        };
        let at = self.receives.iter().position(|(peer, _)| *peer == as_peer);
        let (_, name) = self.receives.remove(at.expect("a receive for every message"));
        Some(Arrival { peer: as_peer, name, bytes, immediate: Some(immediate) })
    }
}

/// A sender, its readers, and the wires between them.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) kind: Kind,
    pub(super) shape: Shape,
    pub(super) sender: Sender,
    pub(super) at_sender: PlainHalf,
    /// By number.
    pub(super) readers: Vec<(Receiver, PlainHalf)>,
    pub(super) chance: Xorshift64,
    /// Readers may see earlier contents of the sender's memory.
    pub(super) lags: bool,
    #[cfg(canary)]
    mutant: Option<super::ChannelMutant>,
}

impl Net {
    /// A sender without readers.
    pub(super) fn new(kind: Kind, shape: &Shape, seed: u64) -> Self {
        assert_eq!(shape.check(kind), Ok(()));
        Self {
            kind,
            shape: *shape,
            sender: Sender::new(kind, shape, OWN),
            at_sender: PlainHalf::new(&Sender::plan(kind, shape), true),
            readers: Vec::new(),
            chance: Xorshift64::new(seed),
            lags: true,
            #[cfg(canary)]
            mutant: None,
        }
    }

    /// Enables a planted defect in both ends.
    #[cfg(canary)]
    pub(super) fn spoil(&mut self, mutant: super::ChannelMutant) {
        self.sender = self.sender.clone().with_mutant(mutant);
        self.mutant = Some(mutant);
    }

    fn regions(number: usize) -> PeerRegions {
        let number = Peer(number as u16);
        let (buffer, bells) = (RemoteRegionId(0), RemoteRegionId(1));
        PeerRegions { buffer, bells, counters: bells, number }
    }

    /// Connects one more reader; the end that is connected first is random.
    pub(super) fn connect(&mut self) -> usize {
        let number = self.readers.len();
        let receiver = Receiver::new(self.kind, &self.shape, OWN);
        #[cfg(canary)]
        let receiver = match self.mutant {
            Some(mutant) => receiver.with_mutant(mutant),
            None => receiver,
        };
        let side = PlainHalf::new(&Receiver::plan(self.kind, &self.shape), false);
        self.readers.push((receiver, side));
        if self.chance.below(2) == 0 {
            self.connect_receiver(number);
            self.connect_sender(number);
        } else {
            self.connect_sender(number);
            self.connect_receiver(number);
        }
        number
    }

    fn connect_sender(&mut self, number: usize) {
        let Self { sender, at_sender, .. } = self;
        let peer = Peer(number as u16);
        let connected =
            at_sender.with(|own, effects| sender.connected(peer, Self::regions(0), own, effects));
        assert_eq!(connected, Ok(()));
    }

    fn connect_receiver(&mut self, number: usize) {
        let connected = self.receiver(number, |half, own, effects| {
            half.connected(Peer::ONLY, Self::regions(number), own, effects)
        });
        assert_eq!(connected, Ok(()));
    }

    /// Makes a call of the sender.
    pub(super) fn sender<T>(
        &mut self,
        call: impl FnOnce(&mut Sender, Own<'_, Plain>, &mut Effects) -> T,
    ) -> T {
        let Self { sender, at_sender, .. } = self;
        let result = at_sender.with(|own, effects| call(sender, own, effects));
        for sent in at_sender.wire.iter_mut() {
            sent.since = sent.since.or(Some(at_sender.clock.get()));
        }
        result
    }

    /// Notes that a reader has seen the sender's memory of some moment.
    fn pass(&mut self, number: usize, since: usize) {
        let (_, side) = &mut self.readers[number];
        let from = side.clock.get().max(since);
        let now = self.at_sender.clock.get();
        let prompt = !self.lags || self.chance.below(2) == 0;
        let moment = if prompt { now } else { from + self.chance.below(now + 1 - from) };
        side.clock.set(moment);
    }

    /// Makes a call of a receiver.
    pub(super) fn receiver<T>(
        &mut self,
        number: usize,
        call: impl FnOnce(&mut Receiver, Own<'_, Plain>, &mut Effects) -> T,
    ) -> T {
        let (receiver, side) = &mut self.readers[number];
        let result = side.with(|own, effects| call(receiver, own, effects));
        for sent in side.wire.iter_mut() {
            sent.since = sent.since.or(Some(side.clock.get()));
        }
        result
    }

    /// Carries out one of the sender's requests.
    pub(super) fn carry_sender(&mut self, at: usize) -> Result<(), Violation> {
        let sent = self.at_sender.wire.remove(at).expect("a request");
        let number = usize::from(sent.peer.0);
        // Its content was stored when it was sent.
        let side = &self.readers[number].1;
        side.clock.set(side.clock.get().max(sent.since.unwrap_or_default()));
        let (_, side) = &mut self.readers[number];
        if let Some(arrival) = side.take(&self.at_sender, Peer::ONLY, &sent, &mut self.chance) {
            self.receiver(number, |half, own, effects| half.arrived(arrival, own, effects))?;
        }
        if sent.signalled {
            let completed = Completed { peer: sent.peer, name: sent.name };
            self.sender(|half, own, effects| half.completed(completed, own, effects))?;
        }
        Ok(())
    }

    /// Carries out one of a receiver's requests.
    pub(super) fn carry_receiver(&mut self, number: usize, at: usize) -> Result<(), Violation> {
        let mut sent = self.readers[number].1.wire.remove(at).expect("a request");
        sent.since = sent.since.filter(|_| self.lags).or(Some(self.at_sender.clock.get()));
        self.pass(number, sent.since.unwrap_or_default());
        let (_, side) = &mut self.readers[number];
        let peer = Peer(number as u16);
        if let Some(arrival) = self.at_sender.take(side, peer, &sent, &mut self.chance) {
            self.sender(|half, own, effects| half.arrived(arrival, own, effects))?;
        }
        if sent.signalled {
            let completed = Completed { peer: Peer::ONLY, name: sent.name };
            self.receiver(number, |half, own, effects| half.completed(completed, own, effects))?;
        }
        Ok(())
    }

    /// Carries out all requests, in order, until none is in flight.
    pub(super) fn settle(&mut self) -> Result<(), Violation> {
        loop {
            if !self.at_sender.wire.is_empty() {
                self.carry_sender(0)?;
            } else if let Some(number) =
                self.readers.iter().position(|(_, side)| !side.wire.is_empty())
            {
                self.carry_receiver(number, 0)?;
            } else {
                return Ok(());
            }
        }
    }

    /// Carries out any one request; in order if the channel needs it.
    pub(super) fn carry_any(&mut self) -> Result<(), Violation> {
        let ordered = self.kind.requirements(&self.shape).message_order;
        let number = self.chance.below(self.readers.len() + 1);
        let requests = match number.checked_sub(1) {
            None => self.at_sender.wire.len(),
            Some(number) => self.readers[number].1.wire.len(),
        };
        if requests == 0 {
            return Ok(());
        }
        let at = if ordered { 0 } else { self.chance.below(requests) };
        match number.checked_sub(1) {
            None => self.carry_sender(at),
            Some(number) => self.carry_receiver(number, at),
        }
    }

    /// Disconnects a reader.
    pub(super) fn lose(&mut self, number: usize) {
        let peer = Peer(number as u16);
        self.sender.lost(peer);
        self.readers[number].0.lost(Peer::ONLY);
        self.readers[number].1.wire.clear();
        self.at_sender.wire.retain(|sent| sent.peer != peer);
    }
}
