//! The model of a shared ring with deaths: senders may die at any step, and their reservations must not block the other
//! senders. It has fewer steps than the model of all channels, which works word by word: a READ takes one step, a WRITE
//! two, of which the first lands the first word. Requests of a link take effect in any order, and the result of an
//! atomic arrives in a separate step.
//!
//! A poll that finds nothing is not a step, so an end that waits forever leaves the model without an enabled step.

#[cfg(test)]
mod tests;

use super::data_channel::memory::Bytes;
use crate::explorer::{Model, Violation};
use farside_base::{LocalSlice, Memory, Operation, RegionId, RemoteRegionId, RemoteSlice, Source};
use farside_protocol::channel::{
    Arrival, Completed, Content, Effects, Half as _, HalfRefusal, HeldMessage, Kind, MemoryPlan,
    Name, Own, OwnRegions, Payload, Peer, PeerRegions, Receiver, Sender, Shape,
};
use farside_protocol::wire::Violation as Breach;

const OWN: OwnRegions = OwnRegions { buffer: RegionId(0), bells: RegionId(1) };

const COUNTERS: u32 = 2;

/// Offsets of the tail among the receiver's bells, and of the head among its counters.
const TAIL: u64 = 0;
const HEAD: u64 = 8;

/// Parameters of the model.
#[derive(Clone, Debug)]
pub struct SharedRingSetup {
    /// Which of the two shared rings.
    pub kind: Kind,
    /// Its dimensions; the ring is not mirrored.
    pub shape: Shape,
    /// Bytes of the messages that each sender sends.
    pub messages: Vec<Vec<u32>>,
    /// Number of senders that may die.
    pub deaths: u8,
    /// Maximum number of messages held at a time.
    pub held_max: usize,
}

/// A request of a sender in flight.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Flight {
    Write {
        name: Name,
        told: bool,
        bytes: Vec<u8>,
        at: RemoteSlice,
        immediate: Option<u32>,
        begun: bool,
    },
    Read {
        name: Name,
        into: LocalSlice,
        from: RemoteSlice,
    },
    Add {
        name: Name,
        at: RemoteSlice,
        add: u64,
        into: LocalSlice,
        before: Option<u64>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Life {
    Lives,
    Dead,
    Buried,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct SharedRingHalf<H> {
    half: H,
    buffer: Bytes,
    bells: Bytes,
    counters: Bytes,
}

impl<H> SharedRingHalf<H> {
    fn new(half: H, plan: &MemoryPlan) -> Self {
        let region = |bytes| Bytes::new(bytes, false);
        let (buffer, bells) = (region(plan.buffer_bytes), region(plan.bells_bytes));
        Self { half, buffer, bells, counters: region(plan.counters_bytes) }
    }

    fn region(&self, id: u32) -> &Bytes {
        match id {
            COUNTERS => &self.counters,
            id if id == OWN.buffer.0 => &self.buffer,
            _ => &self.bells,
        }
    }

    fn with<T>(
        &mut self,
        call: impl FnOnce(&mut H, Own<'_, Bytes>, &mut Effects) -> T,
    ) -> (T, Effects) {
        let mut effects = Effects::default();
        let Self { half, buffer, bells, counters } = self;
        let own = Own { buffer, bells, counters };
        (call(half, own, &mut effects), effects)
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ModelWriter {
    side: SharedRingHalf<Sender>,
    life: Life,
    sent: usize,
    came: u8,
    flights: Vec<Flight>,
}

/// The senders, their receiver, and the requests in flight between them.
#[derive(Clone, Debug)]
pub struct Ring {
    setup: std::rc::Rc<SharedRingSetup>,
    writers: Vec<ModelWriter>,
    reader: SharedRingHalf<Receiver>,
    /// Words in flight to senders.
    words: Vec<(Peer, RemoteSlice, u64)>,
    receives: usize,
    holding: Vec<(HeldMessage, usize, usize, Content)>,
    deaths: u8,
    broken: Option<&'static str>,
}

impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        self.writers == other.writers
            && self.reader == other.reader
            && self.words == other.words
            && self.receives == other.receives
            && self.holding == other.holding
            && self.deaths == other.deaths
            && self.broken == other.broken
    }
}

impl Eq for Ring {}

impl std::hash::Hash for Ring {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.writers, &self.reader, &self.words).hash(state);
        (self.receives, &self.holding, self.deaths, self.broken).hash(state);
    }
}

/// A step of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SharedRingAction {
    /// A sender sends its next message.
    Send(usize),
    /// A sender polls.
    Advance(usize),
    /// The receiver polls for the next message.
    Receive,
    /// The receiver releases the held message at this index.
    Release(usize),
    /// A word to a sender lands.
    Word(usize),
    /// A sender's request, or its next part, takes effect.
    Effect(usize, usize),
    /// The result of an atomic arrives.
    Result(usize, usize),
    /// A sender dies.
    Die(usize),
    /// The requests in flight of a dead sender end in their current state, and the receiver is notified.
    Lost(usize),
}

fn message(from: usize, number: usize, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (from as u8) << 6 | (number as u8 + 1) << 3 | (at % 8) as u8).collect()
}

impl Ring {
    /// Creates the initial state: all ends connected, no message sent. `change` may plant defects.
    pub fn new(
        setup: SharedRingSetup,
        change: impl Fn(Sender) -> Sender,
        change_receiver: impl Fn(Receiver) -> Receiver,
    ) -> Self {
        let (kind, shape) = (setup.kind, setup.shape);
        shape.check(kind).expect("a shape that can be had");
        let writer = |_| ModelWriter {
            side: SharedRingHalf::new(
                change(Sender::new(kind, &shape, OWN)),
                &Sender::plan(kind, &shape),
            ),
            life: Life::Lives,
            sent: 0,
            came: 0,
            flights: Vec::new(),
        };
        let receiver = change_receiver(Receiver::new(kind, &shape, OWN));
        let mut all = Self {
            writers: setup.messages.iter().map(writer).collect(),
            reader: SharedRingHalf::new(receiver, &Receiver::plan(kind, &shape)),
            words: Vec::new(),
            receives: 0,
            holding: Vec::new(),
            deaths: setup.deaths,
            broken: None,
            setup: std::rc::Rc::new(setup),
        };
        for at in 0..all.writers.len() {
            let [buffer, bells, counters] = [0, 1, COUNTERS].map(RemoteRegionId);
            let number = Peer(at as u16);
            let here = PeerRegions { buffer, bells, counters, number };
            all.write(at, |half, own, effects| half.connected(Peer::ONLY, here, own, effects));
            let there = PeerRegions { buffer, bells, counters, number: Peer::ONLY };
            all.read(|half, own, effects| half.connected(number, there, own, effects));
        }
        all
    }

    fn note<T>(&mut self, result: Result<T, Breach>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(Breach(text)) => {
                self.broken = self.broken.or(Some(text));
                None
            }
        }
    }

    /// Calls a sender and collects its effects.
    fn write<T>(
        &mut self,
        at: usize,
        call: impl FnOnce(&mut Sender, Own<'_, Bytes>, &mut Effects) -> Result<T, Breach>,
    ) -> Option<T> {
        let ModelWriter { side, flights, .. } = &mut self.writers[at];
        let (result, effects) = side.with(call);
        for request in effects.requests() {
            let (name, told) = (request.name, request.signalled);
            flights.push(match effects.operation(request) {
                Operation::Write { source, to, immediate } => {
                    let bytes = gathered(side, source);
                    Flight::Write { name, told, bytes, at: to, immediate, begun: false }
                }
                Operation::Read { into, from } => Flight::Read { name, into: into[0], from },
                Operation::FetchAdd { at, add, into } => {
                    Flight::Add { name, at, add, into, before: None }
                }
                other => panic!("no sender of a shared ring posts {other:?}"),
            });
        }
        self.note(result)
    }

    /// Calls the receiver and collects its effects.
    fn read<T>(
        &mut self,
        call: impl FnOnce(&mut Receiver, Own<'_, Bytes>, &mut Effects) -> Result<T, Breach>,
    ) -> Option<T> {
        let (result, effects) = self.reader.with(call);
        self.receives += effects.postings().len();
        for request in effects.requests() {
            let Operation::Write { source: Source::Inline(bytes), to, .. } =
                effects.operation(request)
            else {
                panic!("the receiver of a shared ring WRITEs words");
            };
            let word = u64::from_le_bytes(bytes.try_into().expect("a word"));
            self.words.push((request.peer, to, word));
        }
        self.note(result)
    }

    fn send(&mut self, at: usize) {
        let number = self.writers[at].sent;
        let bytes = message(at, number, self.setup.messages[at][number]);
        let taken = self.write(at, |half, own, effects| {
            Ok(match half.send(Payload::Bytes(&bytes), own, effects) {
                Ok(_) => 1,
                Err(HalfRefusal::Full) => 0,
                Err(other) => panic!("{other}"),
            })
        });
        self.writers[at].sent += taken.unwrap_or(0);
    }

    fn content(&self, content: Content) -> Vec<u8> {
        let Content::Buffer { offset, bytes } = content else { return Vec::new() };
        let mut out = vec![0; bytes as usize];
        self.reader.buffer.read(offset, &mut out).expect("a message in the ring");
        out
    }

    fn receive(&mut self) {
        let received = self.read(|half, own, effects| half.receive(own, effects));
        let Some(received) = received.flatten() else { return };
        let from = usize::from(received.peer.0);
        let bytes = self.content(received.content);
        let sizes = &self.setup.messages[from];
        let fits = |number: &usize| message(from, *number, sizes[*number]) == bytes;
        let Some(number) = (0..sizes.len()).find(fits) else {
            self.broken = Some("a message that was never sent");
            return;
        };
        if self.writers[from].came & (1 << number) != 0 {
            self.broken = Some("a message came twice");
        }
        self.writers[from].came |= 1 << number;
        self.holding.push((received.held, from, number, received.content));
    }

    fn release(&mut self, place: usize) {
        let (held, from, number, content) = self.holding.remove(place);
        if self.content(content) != message(from, number, self.setup.messages[from][number]) {
            self.broken = Some("a message changed while it was held");
        }
        self.read(|half, own, effects| {
            half.release(held, own, effects).map_err(|_| Breach("a message cannot be released"))
        });
    }

    fn effect(&mut self, at: usize, place: usize) {
        match self.writers[at].flights[place].clone() {
            Flight::Write { name, told, bytes, at: to, immediate, begun } => {
                let region = self.reader.region(to.region.0);
                let first = if begun { 8 } else { 0 };
                if !begun && bytes.len() > 8 {
                    region.write(to.offset, &bytes[..8]).expect("a WRITE in bounds");
                    if let Flight::Write { begun, .. } = &mut self.writers[at].flights[place] {
                        *begun = true;
                    }
                    return;
                }
                region.write(to.offset + first as u64, &bytes[first..]).expect("a WRITE in bounds");
                self.writers[at].flights.remove(place);
                if let Some(immediate) = immediate {
                    self.arrive(at, bytes.len() as u32, immediate);
                }
                if told {
                    self.complete(at, name);
                }
            }
            Flight::Read { name, into, from } => {
                let word = self.reader.region(from.region.0).load_word(from.offset);
                let own = self.writers[at].side.region(into.region.0);
                own.store_word(into.offset, word.expect("a READ in bounds")).expect("own memory");
                self.writers[at].flights.remove(place);
                self.complete(at, name);
            }
            Flight::Add { at: word, add, .. } => {
                let region = self.reader.region(word.region.0);
                let value = region.load_word(word.offset).expect("an atomic in bounds");
                region.store_word(word.offset, value + add).expect("it was just read");
                if let Flight::Add { before, .. } = &mut self.writers[at].flights[place] {
                    *before = Some(value);
                }
            }
        }
    }

    fn result(&mut self, at: usize, place: usize) {
        let flight = self.writers[at].flights.remove(place);
        if let Flight::Add { name, into, before: Some(before), .. } = flight {
            let own = self.writers[at].side.region(into.region.0);
            own.store_word(into.offset, before).expect("own memory");
            self.complete(at, name);
        }
    }

    fn complete(&mut self, at: usize, name: Name) {
        if self.writers[at].life == Life::Lives {
            let completed = Completed { peer: Peer::ONLY, name };
            self.write(at, |half, own, effects| half.completed(completed, own, effects));
        }
    }

    fn arrive(&mut self, from: usize, bytes: u32, immediate: u32) {
        let Some(left) = self.receives.checked_sub(1) else {
            self.broken = Some("a message found no receive");
            return;
        };
        self.receives = left;
        let (peer, immediate) = (Peer(from as u16), Some(immediate));
        let arrival = Arrival { peer, name: Name(0), bytes, immediate };
        self.read(|half, own, effects| half.arrived(arrival, own, effects));
    }

    fn lost(&mut self, at: usize) {
        let writer = &mut self.writers[at];
        writer.life = Life::Buried;
        writer.flights.clear();
        self.words.retain(|(peer, ..)| usize::from(peer.0) != at);
        self.reader.half.lost(Peer(at as u16));
    }

    /// Whether an action changes the state; a READ of unchanged memory does not.
    fn changes(&self, action: SharedRingAction) -> bool {
        let mut after = self.clone();
        after.apply(action);
        if let SharedRingAction::Advance(at) | SharedRingAction::Send(at) = action
            && let Some(place) =
                after.writers[at].flights.iter().position(|one| matches!(one, Flight::Read { .. }))
            && !self.writers[at].flights.contains(&after.writers[at].flights[place])
        {
            after.effect(at, place);
        }
        after != *self
    }

    fn network(&self, at: usize, actions: &mut Vec<SharedRingAction>) {
        for (place, flight) in self.writers[at].flights.iter().enumerate() {
            match flight {
                Flight::Add { before: Some(_), .. } => {
                    if self.writers[at].life == Life::Lives {
                        actions.push(SharedRingAction::Result(at, place));
                    }
                }
                Flight::Read { .. } if self.writers[at].life != Life::Lives => {}
                _ => actions.push(SharedRingAction::Effect(at, place)),
            }
        }
    }
}

fn gathered(side: &SharedRingHalf<Sender>, source: Source<'_>) -> Vec<u8> {
    match source {
        Source::Inline(bytes) => bytes.to_vec(),
        Source::Gather(slices) => {
            let mut all = Vec::new();
            for slice in slices {
                let mut part = vec![0; slice.bytes as usize];
                let read = side.region(slice.region.0).read(slice.offset, &mut part);
                read.expect("a slice of the own memory");
                all.extend(part);
            }
            all
        }
    }
}

impl Model for Ring {
    type Action = SharedRingAction;

    fn enabled(&self) -> Vec<SharedRingAction> {
        let mut actions = Vec::new();
        if self.broken.is_some() {
            return actions;
        }
        let mut tries = Vec::new();
        for (at, writer) in self.writers.iter().enumerate() {
            self.network(at, &mut actions);
            match writer.life {
                Life::Lives => {
                    if writer.sent < self.setup.messages[at].len() {
                        tries.push(SharedRingAction::Send(at));
                    }
                    tries.push(SharedRingAction::Advance(at));
                    if self.deaths > 0 {
                        actions.push(SharedRingAction::Die(at));
                    }
                }
                Life::Dead => actions.push(SharedRingAction::Lost(at)),
                Life::Buried => {}
            }
        }
        actions.extend((0..self.words.len()).map(SharedRingAction::Word));
        actions.extend((0..self.holding.len()).map(SharedRingAction::Release));
        if self.holding.len() < self.setup.held_max {
            tries.push(SharedRingAction::Receive);
        }
        actions.extend(tries.into_iter().filter(|action| self.changes(*action)));
        actions
    }

    fn apply(&mut self, action: SharedRingAction) {
        match action {
            SharedRingAction::Send(at) => self.send(at),
            SharedRingAction::Advance(at) => {
                self.write(at, |half, own, effects| half.advance(own, effects));
            }
            SharedRingAction::Receive => self.receive(),
            SharedRingAction::Release(place) => self.release(place),
            SharedRingAction::Word(place) => {
                let (peer, to, word) = self.words.remove(place);
                let side = &self.writers[usize::from(peer.0)].side;
                side.region(to.region.0).store_word(to.offset, word).expect("a word in bounds");
            }
            SharedRingAction::Effect(at, place) => self.effect(at, place),
            SharedRingAction::Result(at, place) => self.result(at, place),
            SharedRingAction::Die(at) => {
                self.deaths -= 1;
                self.writers[at].life = Life::Dead;
            }
            SharedRingAction::Lost(at) => self.lost(at),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.broken.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        let waits = |(writer, sizes): (&ModelWriter, &Vec<u32>)| {
            writer.life == Life::Lives && writer.came != (1 << sizes.len()) - 1
        };
        if self.writers.iter().zip(&self.setup.messages).any(waits) {
            return Some(Violation::new("a message never comes"));
        }
        let SharedRingHalf { bells, counters, .. } = &self.reader;
        let (head, tail) = (counters.load_word(HEAD), bells.load_word(TAIL));
        (head.ok() != tail.ok()).then(|| Violation::new("something is left in the ring"))
    }
}
