//! The network of the tests of all channels: endpoints with plain memory, and requests that are carried out one by one,
//! in any order that the test chooses.
//!
//! The memory of a sender that is READ remembers every store. A READ takes every word from any moment between its
//! posting and its completion, and readers may lag the sender: they can READ the memory as it was in the middle of an
//! earlier call of the sender.

extern crate std;

use super::super::canary::ChannelMutant;
use super::super::effects::{Effects, Peer, PostRequest, Posting};
use super::super::half::{
    Accepted, Arrival, Checked, Completed, Content, HeldMessage, Offer, Own, OwnRegions, Payload,
    PeerRegions, Received,
};
use super::super::kind::Kind;
use super::super::machine::{Half, Receiver, Sender};
use super::super::shape::{MemoryPlan, Shape};
use core::cell::{Cell, RefCell};
use farside_base::{
    LocalSlice, Memory, Operation, OutOfBounds, Random, RegionId, RegionKind, RemoteRegionId,
    RemoteSlice, Source,
};
use std::collections::VecDeque;
use std::rc::Rc;
use std::vec;
use std::vec::Vec;

/// Plain memory; its end joins its beginning if it is planned as mirrored.
#[derive(Debug)]
pub(crate) struct Plain {
    /// Its contents from each moment on; the last are the current ones.
    states: RefCell<Vec<(usize, Vec<u8>)>>,
    turns: usize,
    /// The current moment, for memory that remembers.
    clock: Option<Rc<Cell<usize>>>,
}

impl Plain {
    pub(crate) fn new(bytes: u64) -> Self {
        Self::mapped(bytes, 1, None)
    }

    /// The number of its bytes.
    pub(crate) fn len(&self) -> usize {
        self.states.borrow()[0].1.len()
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
        chance: &mut Random,
    ) -> Vec<u8> {
        self.check(offset, u64::from(bytes)).expect("READs stay inside");
        let states = self.states.borrow();
        // Often all from one moment, often from the two ends, sometimes from any moment.
        let whole = chance.index(3);
        let mut moment = from + chance.index(to + 1 - from);
        let mut state = 0;
        let mut out = Vec::new();
        for at in offset as usize..offset as usize + bytes as usize {
            if (at % 8 == 0 && whole > 0) || at == offset as usize {
                moment = match whole {
                    0 => moment,
                    1 => from + chance.index(to + 1 - from),
                    _ => [from, to][chance.index(2)],
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
        let all = self.len() * self.turns;
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

pub(crate) const OWN: OwnRegions = OwnRegions { buffer: RegionId(0), bells: RegionId(1) };
/// The program's own region, and the words apart from the bells.
const USER: RegionId = RegionId(2);
const COUNTERS: u32 = 3;
/// Sources stay in use until they are done: there are more of them than messages can be in flight.
const SOURCES: u64 = 128;
const SOURCE_BYTES: u64 = 128;

/// A half with its memory, its effects and its posted receives.
#[derive(Debug)]
pub(crate) struct Endpoint<H> {
    pub(crate) half: H,
    pub(crate) buffer: Plain,
    pub(crate) bells: Plain,
    pub(crate) user: Plain,
    /// Unless it has none: then they are the bells.
    pub(crate) counters: Option<Plain>,
    effects: Effects,
    receives: Vec<Posting>,
    /// The numbers of READs, WRITEs, SENDs and FETCH_ADDs that it has posted.
    pub(crate) posted: [usize; 4],
    sources: u64,
    /// The moment of its memory: now, or for a reader, the latest moment of the sender's that it has seen.
    clock: Rc<Cell<usize>>,
}

impl<H: Half> Endpoint<H> {
    fn new(half: H, plan: &MemoryPlan, remembers: bool) -> Self {
        let turns = plan.buffer_kind.turns() as usize;
        assert!(turns == 1 || plan.buffer_kind == RegionKind::Mirrored);
        let clock = Rc::new(Cell::new(0));
        let remembered = remembers.then(|| clock.clone());
        let counters = plan.counters_bytes;
        Self {
            half,
            buffer: Plain::mapped(plan.buffer_bytes, turns, remembered.clone()),
            bells: Plain::mapped(plan.bells_bytes, 1, remembered),
            user: Plain::new(SOURCES * SOURCE_BYTES),
            counters: (counters > 0).then(|| Plain::new(counters)),
            effects: Effects::new(0),
            receives: Vec::new(),
            posted: [0; 4],
            sources: 0,
            clock,
        }
    }

    fn region(&self, number: u32) -> &Plain {
        match number {
            0 => &self.buffer,
            1 => &self.bells,
            COUNTERS => self.counters.as_ref().expect("counters"),
            _ => &self.user,
        }
    }

    /// Its regions, for a peer that it knows by this number.
    fn regions(&self, number: usize) -> PeerRegions {
        let counters = RemoteRegionId(if self.counters.is_some() { COUNTERS } else { 1 });
        let (buffer, bells) = (RemoteRegionId(0), RemoteRegionId(1));
        PeerRegions { buffer, bells, counters, number: Peer(number as u16) }
    }

    /// Makes a call of the half.
    pub(crate) fn with<T>(
        &mut self,
        call: impl FnOnce(&mut H, Own<'_, Plain>, &mut Effects) -> T,
    ) -> T {
        let Self { half, buffer, bells, counters, effects, .. } = self;
        let own = Own { buffer, bells, counters: counters.as_ref().unwrap_or(bells) };
        call(half, own, effects)
    }

    /// The bytes of a slice of its memory.
    pub(crate) fn get(&self, slice: &LocalSlice) -> Vec<u8> {
        let mut bytes = vec![0; slice.bytes as usize];
        self.region(slice.region.0).read(slice.offset, &mut bytes).expect("inside the region");
        bytes
    }

    /// Writes a message into the program's memory, as two slices.
    fn source(&mut self, message: &[u8]) -> [LocalSlice; 2] {
        self.sources += 1;
        let offset = self.sources % SOURCES * SOURCE_BYTES;
        self.user.write(offset, message).unwrap();
        let half = message.len() as u32 / 2;
        let slice = |offset, bytes| LocalSlice { region: USER, offset, bytes };
        [slice(offset, half), slice(offset + u64::from(half), message.len() as u32 - half)]
    }

    /// The requests since the last call, with their bytes.
    fn take(&mut self) -> Vec<(PostRequest, PostedVerb)> {
        self.receives.extend(self.effects.postings());
        self.effects.receives_posted();
        let gathered = |source: Source<'_>| match source {
            Source::Inline(bytes) => bytes.to_vec(),
            Source::Gather(slices) => slices.iter().flat_map(|slice| self.get(slice)).collect(),
        };
        let mut posted = [0; 4];
        let mut verb = |request| {
            let (count, verb) = match self.effects.operation(request) {
                Operation::Read { into, from } => {
                    assert!(!into.is_empty(), "an empty READ");
                    (0, PostedVerb::Read(into.to_vec(), from))
                }
                Operation::Write { source, to, immediate } => {
                    (1, PostedVerb::Write(gathered(source), to, immediate))
                }
                Operation::Send { source, immediate } => {
                    (2, PostedVerb::Send(gathered(source), immediate))
                }
                Operation::FetchAdd { at, add, into } => (3, PostedVerb::Add(at, add, into)),
                other => panic!("{other:?}"),
            };
            posted[count] += 1;
            (*request, verb)
        };
        let works = self.effects.requests().iter().map(&mut verb).collect();
        for (all, new) in self.posted.iter_mut().zip(posted) {
            *all += new;
        }
        self.effects.posted(usize::MAX);
        works
    }

    /// Takes a receive for a message.
    fn arrival(&mut self, at: usize, peer: Peer, bytes: &[u8], immediate: Option<u32>) -> Arrival {
        assert!(at < self.receives.len(), "a message meets an empty queue");
        let posting = self.receives.remove(at);
        assert!(bytes.len() <= posting.into.bytes as usize, "a message longer than its receive");
        self.region(posting.into.region.0).write(posting.into.offset, bytes).unwrap();
        Arrival { peer, name: posting.name, bytes: bytes.len() as u32, immediate }
    }
}

/// A request with its bytes.
#[derive(Clone, Debug)]
pub(crate) enum PostedVerb {
    Write(Vec<u8>, RemoteSlice, Option<u32>),
    Read(Vec<LocalSlice>, RemoteSlice),
    Send(Vec<u8>, Option<u32>),
    Add(RemoteSlice, u64, LocalSlice),
}

/// A request in flight, from or to a sender.
#[derive(Clone, Debug)]
pub(crate) struct RequestInFlight {
    pub(crate) sender: usize,
    receiver: usize,
    pub(crate) to_receiver: bool,
    request: PostRequest,
    pub(crate) verb: PostedVerb,
    /// The moment of its posting.
    since: usize,
}

/// Carries out a request at its target, which knows its origin as `peer`, and completes it.
fn carry_out<A: Half, B: Half>(
    flight: &RequestInFlight,
    (from, to, peer): (&mut Endpoint<A>, &mut Endpoint<B>, usize),
    moments: (usize, usize),
    chance: &mut Random,
) -> Checked {
    let peer = Peer(peer as u16);
    // Receivers share their receives, senders have some for each peer.
    let of_peer = |posting: &Posting| !B::SENDS || posting.peer == peer;
    let receive = to.receives.iter().position(of_peer).unwrap_or(usize::MAX);
    let arrival = match &flight.verb {
        PostedVerb::Write(bytes, at, immediate) => {
            to.region(at.region.0).write(at.offset, bytes).expect("inside the region");
            immediate.map(|immediate| {
                let arrival = to.arrival(receive, peer, &[], Some(immediate));
                Arrival { bytes: bytes.len() as u32, ..arrival }
            })
        }
        PostedVerb::Send(bytes, immediate) => Some(to.arrival(receive, peer, bytes, *immediate)),
        PostedVerb::Read(into, at) => {
            let mut offset = at.offset;
            for slice in into {
                let region = to.region(at.region.0);
                let bytes = region.sample(offset, slice.bytes, moments, chance);
                from.region(slice.region.0).write(slice.offset, &bytes).expect("inside");
                offset += u64::from(slice.bytes);
            }
            None
        }
        PostedVerb::Add(at, add, into) => {
            let region = to.region(at.region.0);
            let word = region.load_word(at.offset).expect("inside the region");
            region.store_word(at.offset, word + add).expect("inside the region");
            from.region(into.region.0).store_word(into.offset, word).expect("inside");
            None
        }
    };
    if let Some(arrival) = arrival {
        to.with(|half, own, effects| half.arrived(arrival, own, effects))?;
    }
    if flight.request.signalled {
        let completed = Completed { peer: flight.request.peer, name: flight.request.name };
        from.with(|half, own, effects| half.completed(completed, own, effects))?;
    }
    Ok(())
}

/// Senders and one receiver, or one sender and receivers, and the requests in flight.
#[derive(Debug)]
pub(crate) struct Network {
    pub(crate) kind: Kind,
    pub(crate) shape: Shape,
    pub(crate) senders: Vec<Endpoint<Sender>>,
    pub(crate) receivers: Vec<Endpoint<Receiver>>,
    pub(crate) flying: VecDeque<RequestInFlight>,
    /// The number of requests by the halves, senders' first.
    pub(crate) requests: [usize; 2],
    pub(crate) chance: Random,
    /// Readers may see earlier contents of the sender's memory.
    pub(crate) lags: bool,
    mutant: Option<ChannelMutant>,
}

/// Creates a half with its memory, and with the planted defect of its network, if any.
macro_rules! endpoint {
    ($network:ident, $role:ident, $remembers:expr) => {{
        let half = $role::new($network.kind, &$network.shape, OWN);
        let half = match $network.mutant {
            #[cfg(canary)]
            Some(mutant) => half.with_mutant(mutant),
            #[cfg(not(canary))]
            Some(mutant) => panic!("{mutant:?} without --cfg canary"),
            None => half,
        };
        Endpoint::new(half, &$role::plan($network.kind, &$network.shape), $remembers)
    }};
}

impl Network {
    /// A sender without receivers.
    pub(crate) fn new(kind: Kind, shape: &Shape, seed: u64) -> Self {
        Self::planted(kind, shape, seed, None)
    }

    /// The same with a planted defect in both ends.
    pub(crate) fn planted(
        kind: Kind,
        shape: &Shape,
        seed: u64,
        mutant: Option<ChannelMutant>,
    ) -> Self {
        assert_eq!(shape.check(kind), Ok(()));
        let mut network = Self {
            kind,
            shape: *shape,
            senders: Vec::new(),
            receivers: Vec::new(),
            flying: VecDeque::new(),
            requests: [0; 2],
            chance: Random::new(seed),
            lags: true,
            mutant,
        };
        network.add_sender();
        network
    }

    /// Senders and one receiver, all connected.
    pub(crate) fn all(kind: Kind, shape: Shape, senders: u16) -> Self {
        Self::new(kind, &shape, 1).connect_all(senders)
    }

    /// The same with a planted defect in both ends.
    #[cfg(canary)]
    pub(crate) fn spoiled(kind: Kind, shape: Shape, senders: u16, mutant: ChannelMutant) -> Self {
        Self::planted(kind, &shape, 1, Some(mutant)).connect_all(senders)
    }

    /// A sender that is READ, with one reader that knows its start.
    pub(crate) fn reader(kind: Kind, shape: &Shape) -> Self {
        let mut network = Self::new(kind, shape, 1);
        network.lags = false;
        network.connect();
        network.settle().unwrap();
        if kind != Kind::ReadSlotIndirect {
            // It may have polled before its start was known.
            assert_eq!(network.try_receive(), Ok(None));
            network.settle().unwrap();
        }
        network
    }

    fn connect_all(mut self, senders: u16) -> Self {
        self.lags = false;
        self.add_receiver();
        for sender in 0..usize::from(senders) {
            if sender > 0 {
                self.add_sender();
            }
            self.connect_receiver(sender, 0);
            self.connect_sender(sender, 0);
        }
        self
    }

    fn new_sender(&self) -> Endpoint<Sender> {
        endpoint!(self, Sender, self.kind.receiver_names_destination())
    }

    fn add_sender(&mut self) {
        self.senders.push(self.new_sender());
    }

    fn add_receiver(&mut self) {
        self.receivers.push(endpoint!(self, Receiver, false));
    }

    fn connect_sender(&mut self, sender: usize, receiver: usize) {
        let (peer, to) = (Peer(receiver as u16), self.receivers[receiver].regions(sender));
        self.sender_at(sender, |half, own, effects| half.connected(peer, to, own, effects))
            .unwrap();
    }

    fn connect_receiver(&mut self, sender: usize, receiver: usize) {
        let (peer, to) = (Peer(sender as u16), self.senders[sender].regions(receiver));
        self.receiver(receiver, |half, own, effects| half.connected(peer, to, own, effects))
            .unwrap();
    }

    /// Connects one more receiver; the end that is connected first is random.
    pub(crate) fn connect(&mut self) -> usize {
        self.add_receiver();
        let receiver = self.receivers.len() - 1;
        if self.chance.index(2) == 0 {
            self.connect_receiver(0, receiver);
            self.connect_sender(0, receiver);
        } else {
            self.connect_sender(0, receiver);
            self.connect_receiver(0, receiver);
        }
        receiver
    }

    /// Connects a new sender under the number of a lost one.
    pub(crate) fn reconnect(&mut self, sender: usize) {
        self.reconnect_with(sender, |_| ());
    }

    /// Connects a new sender under the number of a lost one, which acts before the receiver knows of it.
    pub(crate) fn reconnect_with(&mut self, sender: usize, act: impl FnOnce(&mut Self)) {
        self.senders[sender] = self.new_sender();
        let peer = Peer(sender as u16);
        self.receiver(0, |half, own, effects| half.prepare(peer, own, effects)).unwrap();
        self.connect_sender(sender, 0);
        act(self);
        self.connect_receiver(sender, 0);
    }

    /// Puts the requests of all halves in flight.
    pub(crate) fn launch(&mut self) {
        let Self { senders, receivers, flying, requests, .. } = self;
        let mut fly = |(number, since, to_receiver), (request, verb): (PostRequest, PostedVerb)| {
            let peer = usize::from(request.peer.0);
            let (sender, receiver) = if to_receiver { (number, peer) } else { (peer, number) };
            requests[usize::from(!to_receiver)] += 1;
            let flight = RequestInFlight { sender, receiver, to_receiver, request, verb, since };
            flying.push_back(flight);
        };
        for (number, endpoint) in senders.iter_mut().enumerate() {
            let since = endpoint.clock.get();
            endpoint.take().into_iter().for_each(|one| fly((number, since, true), one));
        }
        for (number, endpoint) in receivers.iter_mut().enumerate() {
            let since = endpoint.clock.get();
            endpoint.take().into_iter().for_each(|one| fly((number, since, false), one));
        }
    }

    /// Makes a call of the first sender.
    pub(crate) fn sender<T>(
        &mut self,
        call: impl FnOnce(&mut Sender, Own<'_, Plain>, &mut Effects) -> T,
    ) -> T {
        self.sender_at(0, call)
    }

    pub(crate) fn sender_at<T>(
        &mut self,
        sender: usize,
        call: impl FnOnce(&mut Sender, Own<'_, Plain>, &mut Effects) -> T,
    ) -> T {
        let result = self.senders[sender].with(call);
        self.launch();
        result
    }

    /// Makes a call of a receiver.
    pub(crate) fn receiver<T>(
        &mut self,
        receiver: usize,
        call: impl FnOnce(&mut Receiver, Own<'_, Plain>, &mut Effects) -> T,
    ) -> T {
        let result = self.receivers[receiver].with(call);
        self.launch();
        result
    }

    /// Carries out the request at this index.
    pub(crate) fn carry(&mut self, at: usize) -> Checked {
        let flight = self.flying.remove(at).expect("a request");
        let Self { senders, receivers, chance, lags, .. } = self;
        let sender = &mut senders[flight.sender];
        let receiver = &mut receivers[flight.receiver];
        let now = sender.clock.get();
        let result = if flight.to_receiver {
            // Its content was stored when it was sent.
            receiver.clock.set(receiver.clock.get().max(flight.since));
            carry_out(&flight, (sender, receiver, flight.sender), (0, 0), chance)
        } else {
            let since = if *lags { flight.since } else { now };
            let from = receiver.clock.get().max(since);
            let prompt = !*lags || chance.index(2) == 0;
            let moment = if prompt { now } else { from + chance.index(now + 1 - from) };
            receiver.clock.set(moment);
            carry_out(&flight, (receiver, sender, flight.receiver), (since, moment), chance)
        };
        self.launch();
        result
    }

    /// Carries out all requests, in order, until none is in flight.
    pub(crate) fn settle(&mut self) -> Checked {
        while !self.flying.is_empty() {
            self.carry(0)?;
        }
        Ok(())
    }

    /// The same; senders that push poll after each request. The others would ask for acknowledgements at each poll.
    pub(crate) fn run(&mut self) {
        let polls = !self.kind.receiver_names_destination();
        while !self.flying.is_empty() {
            self.carry(0).unwrap();
            for sender in 0..if polls { self.senders.len() } else { 0 } {
                self.advance(sender).unwrap();
            }
        }
    }

    /// The indexes of the requests from a sender, or to it.
    pub(crate) fn flights(&self, sender: usize, to_receiver: bool) -> Vec<usize> {
        let mine =
            |flight: &RequestInFlight| flight.sender == sender && flight.to_receiver == to_receiver;
        (0..self.flying.len()).filter(|at| mine(&self.flying[*at])).collect()
    }

    /// Carries out the request of a sender at this index among its own, if there is one.
    pub(crate) fn carry_of(&mut self, sender: usize, at: usize) -> Checked {
        match self.flights(sender, true).get(at) {
            Some(at) => self.carry(*at),
            None => Ok(()),
        }
    }

    /// Carries out the oldest request of receivers, if there is one.
    pub(crate) fn carry_back(&mut self) -> Checked {
        match self.flying.iter().position(|flight| !flight.to_receiver) {
            Some(at) => self.carry(at),
            None => Ok(()),
        }
    }

    /// Carries out any one request; in order if the channel needs it.
    pub(crate) fn carry_any(&mut self) -> Checked {
        if self.flying.is_empty() {
            return Ok(());
        }
        let mut at = self.chance.index(self.flying.len());
        if self.kind.requirements(&self.shape).message_order {
            let key = |one: &RequestInFlight| (one.sender, one.receiver, one.to_receiver);
            let chosen = key(&self.flying[at]);
            at = self.flying.iter().position(|one| key(one) == chosen).unwrap_or(at);
        }
        self.carry(at)
    }

    pub(crate) fn advance(&mut self, sender: usize) -> Checked {
        self.sender_at(sender, Sender::advance)
    }

    /// Sends without flushing.
    pub(crate) fn put(&mut self, sender: usize, message: &[u8]) -> Accepted {
        let payload = Payload::Bytes(message);
        self.sender_at(sender, |half, own, effects| half.send(payload, own, effects))
    }

    pub(crate) fn flush(&mut self, sender: usize) {
        self.sender_at(sender, Sender::flush);
    }

    /// Sends a message and flushes.
    pub(crate) fn send(&mut self, sender: usize, message: &[u8]) -> Accepted {
        let sent = self.put(sender, message)?;
        self.flush(sender);
        Ok(sent)
    }

    /// The same without a copy: two slices of the program's memory, or memory that the channel lends.
    pub(crate) fn gather(&mut self, sender: usize, message: &[u8]) -> Accepted {
        let slices = self.senders[sender].source(message);
        let lends = self.kind.shares_sender();
        let sent = self.sender_at(sender, |half, own, effects| {
            if !lends {
                return half.send(Payload::Gather(&slices), own, effects);
            }
            let Some(lent) = half.loan(message.len() as u32, own) else {
                return half.send(Payload::Bytes(message), own, effects);
            };
            own.buffer.write(lent.offset, message).unwrap();
            half.send(Payload::Gather(&[lent]), own, effects)
        })?;
        self.flush(sender);
        Ok(sent)
    }

    /// Sends into a slot and flushes.
    pub(crate) fn send_to(&mut self, slot: u32, message: &[u8]) -> Accepted {
        let payload = Payload::Bytes(message);
        let sent = self.sender(|half, own, effects| half.send_to(slot, payload, own, effects))?;
        self.flush(0);
        Ok(sent)
    }

    /// The next message of a receiver, with its bytes.
    pub(crate) fn found(&mut self, receiver: usize) -> Checked<Option<(Received, Vec<u8>)>> {
        let received = self.receiver(receiver, Receiver::receive)?;
        Ok(received.map(|received| {
            let bytes = match received.content {
                Content::Integer(integer) => integer.to_le_bytes().to_vec(),
                Content::Buffer { offset, bytes } => {
                    let slice = LocalSlice { region: OWN.buffer, offset, bytes };
                    self.receivers[receiver].get(&slice)
                }
            };
            (received, bytes)
        }))
    }

    pub(crate) fn try_receive(&mut self) -> Checked<Option<Received>> {
        Ok(self.found(0)?.map(|(received, _)| received))
    }

    /// The next message: its name, its sender, and its bytes.
    pub(crate) fn receive(&mut self) -> Option<(HeldMessage, u16, Vec<u8>)> {
        let (Received { held, peer, .. }, bytes) = self.found(0).unwrap()?;
        Some((held, peer.0, bytes))
    }

    pub(crate) fn release(&mut self, held: HeldMessage) -> Accepted<()> {
        self.receiver(0, |half, own, effects| half.release(held, own, effects))
    }

    /// Receives a message and releases it; returns its sender and its bytes.
    pub(crate) fn take(&mut self) -> Option<(u16, Vec<u8>)> {
        let (held, from, bytes) = self.receive()?;
        self.release(held).unwrap();
        Some((from, bytes))
    }

    /// Receives and carries out all requests until a message arrives; releases it.
    pub(crate) fn take_any(&mut self) -> Checked<Vec<u8>> {
        for _ in 0..8 {
            if let Some((received, bytes)) = self.found(0)? {
                self.release(received.held).unwrap();
                return Ok(bytes);
            }
            self.settle()?;
            // For grants.
            let polls = !self.kind.receiver_names_destination();
            for sender in 0..if polls { self.senders.len() } else { 0 } {
                self.advance(sender)?;
            }
        }
        panic!("no message: {} {:?}", self.kind, self.shape)
    }

    /// Acknowledges, and carries out all requests.
    pub(crate) fn acknowledge(&mut self) {
        self.receiver(0, Receiver::acknowledge);
        self.run();
        self.advance(0).unwrap();
        self.run();
    }

    /// Delivers a message that no half has sent.
    pub(crate) fn intrude(&mut self, peer: u16, bytes: u32, immediate: Option<u32>) -> Checked {
        let arrival = self.receivers[0].arrival(0, Peer(peer), &[], immediate);
        self.arrive(Arrival { bytes, ..arrival })
    }

    /// The same without a receive.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Checked {
        self.receiver(0, |half, own, effects| half.arrived(arrival, own, effects))
    }

    /// Polls until a message is offered.
    pub(crate) fn offer(&mut self) -> Offer {
        for _ in 0..8 {
            let offer = self.receiver(0, Receiver::offer).unwrap();
            self.settle().unwrap();
            if let Some(offer) = offer {
                return offer;
            }
        }
        panic!("no offer: {} {:?}", self.kind, self.shape)
    }

    /// Fetches an offered message.
    pub(crate) fn receive_into(&mut self, offer: HeldMessage, into: LocalSlice) -> Accepted<()> {
        self.receiver(0, |half, own, effects| half.receive_into(offer, into, own, effects))
    }

    pub(crate) fn fetched(&mut self, offer: HeldMessage) -> Option<u32> {
        self.receiver(0, |half, own, effects| half.fetched(offer, own, effects))
    }

    /// Drops a sender and its requests in flight.
    pub(crate) fn lose(&mut self, sender: usize) {
        self.flying.retain(|flight| flight.sender != sender);
        self.receivers[0].half.lost(Peer(sender as u16));
    }

    /// Drops a reader and its requests in flight.
    pub(crate) fn lose_reader(&mut self, receiver: usize) {
        self.flying.retain(|flight| flight.receiver != receiver);
        self.senders[0].half.lost(Peer(receiver as u16));
        self.receivers[receiver].half.lost(Peer::ONLY);
    }
}
