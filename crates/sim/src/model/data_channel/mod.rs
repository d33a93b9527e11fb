//! The model of the data channels: the halves of one channel, their memory, and a network that does
//! whatever the guarantees that it gives permit. One model for all twenty; a [`Setup`] says which.
//!
//! Sources of requests are looked at as late as may be, words land and are sampled one by one, a
//! completion comes before its WRITE has landed where that is allowed, a half dies at any step and
//! what it had under way lands in part or not at all.

pub(super) mod memory;
mod network;

#[cfg(test)]
mod tests;

use crate::explorer::{Model, Violation};
use farside_base::{LocalSlice, Memory, RegionId, RemoteRegionId, RemoteSlice};
use farside_protocol::channel::{
    Arrival, Completed, Content, Effects, Family, Held, Kind, Offer, Own, OwnRegions, Payload, Peer,
    PeerRegions, Plan, Posting, ReceiveHalf, Receiver, Refusal, SendHalf, Sender, Shape,
};
use memory::Bytes;
use network::{Action as Work, Flight, Origin, region, words};
use std::collections::VecDeque;

pub use network::Guarantees;

const BUFFER: RegionId = RegionId(0);
const BELLS: RegionId = RegionId(1);
const USER: RegionId = RegionId(2);
/// Bytes of the user's region for one message.
const USER_STEP: u64 = 64;

/// What is modelled.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Which channel.
    pub kind: Kind,
    /// Its measures.
    pub shape: Shape,
    /// Senders; more than one only of a kind that shares its receiver.
    pub senders: usize,
    /// Receivers; more than one only of a kind that shares its sender.
    pub receivers: usize,
    /// Bytes of the messages that each sender sends, in turn.
    pub messages: Vec<u32>,
    /// Send from slices of registered memory instead of inline.
    pub gather: bool,
    /// Fetch offered messages into memory of the user's choice.
    pub offers: bool,
    /// What the network promises.
    pub guarantees: Guarantees,
    /// Halves that may die: senders first, then receivers.
    pub mortal: Vec<usize>,
    /// Messages held at a time, at most.
    pub held_max: usize,
}

impl Setup {
    /// A sender and a receiver on the weakest network that the channel declares itself good for.
    pub fn new(kind: Kind, shape: Shape, messages: &[u32]) -> Self {
        let needs = kind.requirements(&shape);
        Self {
            kind,
            shape,
            senders: 1,
            receivers: 1,
            messages: messages.to_vec(),
            gather: false,
            offers: false,
            guarantees: Guarantees {
                message_order: needs.message_order,
                byte_order: needs.byte_order,
                completion_means_placed: needs.ordered_or_placed && !needs.message_order,
            },
            mortal: Vec::new(),
            held_max: 2,
        }
    }

    /// Whether messages are received in the order of sending.
    fn in_order(&self) -> bool {
        // Later atomics may overtake earlier ones, and they give the places.
        if self.kind.family() == Family::SharedRing {
            return false;
        }
        let by_completion = matches!(
            self.kind,
            Kind::Send
                | Kind::SendShared
                | Kind::SendBufferless
                | Kind::WriteSlotDetached
                | Kind::WriteSlotImmediate
                | Kind::WriteSlotReserved
                | Kind::RingImmediate
        );
        self.guarantees.message_order || !by_completion
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Half {
    Sender(Sender),
    Receiver(Receiver),
}

/// A message that the model's program holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Holding {
    held: Held,
    from: usize,
    number: u8,
    content: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Side {
    half: Half,
    regions: Vec<Bytes>,
    receives: VecDeque<Posting>,
    dead: bool,
    /// Messages sent (a sender).
    sent: u8,
    /// By sender, which messages came (a receiver).
    came: Vec<u32>,
    holding: Vec<Holding>,
    /// Offers that are being fetched into the user's region.
    fetching: Vec<Offer>,
}

/// What can happen next.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// A sender is asked to send its next message.
    Send(usize),
    /// A sender looks around.
    Advance(usize),
    /// A receiver asks for the next message.
    Receive(usize),
    /// A receiver asks for an offer, or whether what it fetches is there.
    Offer(usize),
    /// A receiver releases the message in this place.
    Release(usize, usize),
    /// A word of a request lands or is sampled.
    Word(usize, usize),
    /// A request has its effect in one step, or the receive of a WRITE with immediate is taken.
    Effect(usize),
    /// A request's success is told.
    Complete(usize),
    /// A half dies.
    Die(usize),
    /// What a dead half had under way ends where it is, and its peers are told.
    Lost(usize),
}

/// The halves of a channel and what is between them.
#[derive(Clone, Debug)]
pub struct DataChannel {
    setup: std::rc::Rc<Setup>,
    sides: Vec<Side>,
    flights: Vec<Flight>,
    buried: Vec<bool>,
    broken: Option<&'static str>,
}

impl PartialEq for DataChannel {
    fn eq(&self, other: &Self) -> bool {
        self.sides == other.sides
            && self.flights == other.flights
            && self.buried == other.buried
            && self.broken == other.broken
    }
}

impl Eq for DataChannel {}

impl std::hash::Hash for DataChannel {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.sides.hash(state);
        self.flights.hash(state);
        self.buried.hash(state);
        self.broken.hash(state);
    }
}

/// The bytes of a sender's message.
fn message(from: usize, number: u8, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (from as u8) << 6 | (number + 1) << 3 | (at % 8) as u8).collect()
}

impl DataChannel {
    /// Everything connected and nothing sent. `change` may put defects in.
    pub fn new(
        setup: Setup,
        change: impl Fn(Sender) -> Sender,
        change_receiver: impl Fn(Receiver) -> Receiver,
    ) -> Self {
        let regions = OwnRegions { buffer: BUFFER, bells: BELLS };
        let (kind, shape) = (setup.kind, setup.shape);
        shape.check(kind).expect("a shape that can be had");
        let mut sides = Vec::new();
        for from in 0..setup.senders {
            let half = Half::Sender(change(Sender::new(kind, &shape, regions)));
            let side = Side::new(half, &Sender::plan(kind, &shape), &setup);
            for (number, bytes) in setup.messages.iter().enumerate() {
                let bytes = message(from, number as u8, *bytes);
                let user = region(&side.regions, USER);
                user.write(number as u64 * USER_STEP, &bytes).expect("the user's region");
            }
            sides.push(side);
        }
        for _ in 0..setup.receivers {
            let half = Half::Receiver(change_receiver(Receiver::new(kind, &shape, regions)));
            sides.push(Side::new(half, &Receiver::plan(kind, &shape), &setup));
        }
        let buried = vec![false; sides.len()];
        let setup = std::rc::Rc::new(setup);
        let mut all = Self { setup, sides, flights: Vec::new(), buried, broken: None };
        for side in 0..all.sides.len() {
            for other in all.others(side) {
                all.connect(side, other);
            }
        }
        all
    }

    /// The halves at the other ends.
    fn others(&self, side: usize) -> std::ops::Range<usize> {
        let senders = self.setup.senders;
        if side < senders { senders..self.sides.len() } else { 0..senders }
    }

    /// The number by which a half knows another one.
    fn peer(&self, of: usize) -> Peer {
        let senders = self.setup.senders;
        Peer(if of < senders { of } else { of - senders } as u16)
    }

    fn by_peer(&self, side: usize, peer: Peer) -> usize {
        self.others(side).start + peer.0 as usize
    }

    fn connect(&mut self, side: usize, other: usize) {
        let peer = self.peer(other);
        let remote = PeerRegions {
            buffer: RemoteRegionId(BUFFER.0),
            bells: RemoteRegionId(BELLS.0),
            number: self.peer(side),
        };
        self.with(side, |half, own, effects| match half {
            Half::Sender(half) => half.connected(peer, remote, own, effects),
            Half::Receiver(half) => half.connected(peer, remote, own, effects),
        });
    }

    /// Calls a half and carries out its effects; a violation breaks the model, since all are honest.
    fn with(
        &mut self,
        side: usize,
        call: impl FnOnce(
            &mut Half,
            Own<'_, Bytes>,
            &mut Effects,
        ) -> Result<(), farside_protocol::wire::Violation>,
    ) {
        let mut effects = Effects::default();
        let Side { half, regions, .. } = &mut self.sides[side];
        let own = Own { buffer: &regions[0], bells: &regions[1] };
        if let Err(violation) = call(half, own, &mut effects) {
            self.broken = Some(violation.0);
        }
        for posting in effects.postings() {
            self.sides[side].receives.push_back(*posting);
        }
        for request in effects.requests() {
            self.flights.push(Flight {
                from: side,
                to: self.by_peer(side, request.peer),
                name: request.name,
                told: request.signalled,
                fence: request.fence,
                action: Work::of(&effects.operation(request)),
            });
        }
    }

    fn send(&mut self, side: usize) {
        let number = self.sides[side].sent;
        let bytes = self.setup.messages[usize::from(number)];
        let content = message(side, number, bytes);
        let gather = self.setup.gather;
        let offset = u64::from(number) * USER_STEP;
        let slice = [LocalSlice { region: USER, offset, bytes }];
        let mut taken = false;
        self.with(side, |half, own, effects| {
            let Half::Sender(half) = half else { return Ok(()) };
            let payload =
                if gather { Payload::Gather(&slice) } else { Payload::Bytes(&content) };
            match half.send(payload, own, effects) {
                Ok(_) => taken = true,
                Err(Refusal::Full | Refusal::Lost) => {}
                Err(other) => panic!("{other}"),
            }
            half.flush(own, effects);
            Ok(())
        });
        self.sides[side].sent += u8::from(taken);
    }

    fn receive(&mut self, side: usize) {
        let mut received = None;
        self.with(side, |half, own, effects| {
            let Half::Receiver(half) = half else { return Ok(()) };
            received = half.receive(own, effects)?;
            Ok(())
        });
        if let Some(received) = received {
            let from = usize::from(received.peer.0);
            let content = self.content(side, BUFFER, received.content);
            if let Some(number) = self.came(side, from, &content) {
                let holding =
                    Holding { held: received.held, from, number, content: received.content };
                self.sides[side].holding.push(holding);
            }
        }
    }

    fn content(&self, side: usize, of: RegionId, content: Content) -> Vec<u8> {
        match content {
            Content::Integer(integer) => integer.to_le_bytes().to_vec(),
            Content::Buffer { offset, bytes } => {
                let mut out = vec![0; bytes as usize];
                let read = region(&self.sides[side].regions, of).read(offset, &mut out);
                if read.is_err() {
                    return Vec::new();
                }
                out
            }
        }
    }

    /// Notes that a message came; its number, unless something is wrong with it.
    fn came(&mut self, side: usize, from: usize, content: &[u8]) -> Option<u8> {
        let messages = &self.setup.messages;
        let number = (0..messages.len() as u8)
            .find(|number| message(from, *number, messages[usize::from(*number)]) == content);
        let Some(number) = number else {
            self.broken = Some("a message that nobody sent");
            return None;
        };
        let came = &mut self.sides[side].came[from];
        if *came & (1 << number) != 0 {
            self.broken = Some("a message came twice");
        }
        if self.setup.in_order() && *came != (1 << number) - 1 {
            self.broken = Some("out of order");
        }
        *came |= 1 << number;
        Some(number)
    }

    fn release(&mut self, side: usize, place: usize) {
        let holding = self.sides[side].holding.remove(place);
        let content = self.content(side, BUFFER, holding.content);
        let bytes = self.setup.messages[usize::from(holding.number)];
        if content != message(holding.from, holding.number, bytes) {
            self.broken = Some("a message changed while it was held");
        }
        self.with(side, |half, own, effects| {
            let Half::Receiver(half) = half else { return Ok(()) };
            half.release(holding.held, own, effects).expect("it is held");
            half.acknowledge(own, effects);
            Ok(())
        });
    }

    /// Fetches an offer, or takes what has been fetched.
    fn offer(&mut self, side: usize) {
        let mut done = Vec::new();
        let fetching = self.sides[side].fetching.clone();
        let mut offered = None;
        self.with(side, |half, own, effects| {
            let Half::Receiver(half) = half else { return Ok(()) };
            for (place, offer) in fetching.iter().enumerate() {
                if let Some(bytes) = half.fetched(offer.held, own, effects) {
                    done.push((place, offer.peer, bytes));
                }
            }
            if fetching.is_empty() {
                offered = half.offer(own, effects)?;
                if let Some(offer) = offered {
                    let into = LocalSlice { region: USER, offset: 0, bytes: offer.bytes_max };
                    half.receive_into(offer.held, into, own, effects).expect("it was offered");
                }
            }
            half.acknowledge(own, effects);
            Ok(())
        });
        self.sides[side].fetching.extend(offered);
        for (place, peer, bytes) in done {
            self.sides[side].fetching.remove(place);
            let content = self.content(side, USER, Content::Buffer { offset: 0, bytes });
            self.came(side, usize::from(peer.0), &content);
        }
    }
}

impl Side {
    fn new(half: Half, plan: &Plan, setup: &Setup) -> Self {
        let mirrored = plan.buffer_kind == farside_base::RegionKind::Mirrored;
        Self {
            half,
            regions: vec![
                Bytes::new(plan.buffer_bytes.max(8), mirrored),
                Bytes::new(plan.bells_bytes, false),
                Bytes::new(USER_STEP * setup.messages.len() as u64, false),
            ],
            receives: VecDeque::new(),
            dead: false,
            sent: 0,
            came: vec![0; setup.senders],
            holding: Vec::new(),
            fetching: Vec::new(),
        }
    }
}

/// What the network does.
impl DataChannel {
    /// Whether a request may take effect now.
    fn may_run(&self, at: usize) -> bool {
        let flight = &self.flights[at];
        let before = self.flights[..at].iter().filter(|other| {
            (other.from, other.to) == (flight.from, flight.to) && !other.action.is_done()
        });
        let order = self.setup.guarantees.message_order;
        let blocked = before.into_iter().any(|other| {
            if other.action.fetches() { flight.fence } else { order }
        });
        !blocked && !self.buried[flight.to]
    }

    fn network_actions(&self, actions: &mut Vec<Action>) {
        for (at, flight) in self.flights.iter().enumerate() {
            let done = flight.action.is_done();
            let placed = self.setup.guarantees.completion_means_placed;
            let early = matches!(flight.action, Work::Write { immediate: None, .. }) && !placed;
            if flight.told && (done || early) && !self.sides[flight.from].dead {
                actions.push(Action::Complete(at));
            }
            if done || !self.may_run(at) {
                continue;
            }
            match &flight.action {
                Work::Write { left: None, .. } => actions.push(Action::Effect(at)),
                Work::Write { left: Some(left), .. } if left.is_empty() => {
                    actions.push(Action::Effect(at));
                }
                Work::Write { left: Some(left), .. } => {
                    let any = if self.setup.guarantees.byte_order { 1 } else { left.len() };
                    actions.extend((0..any).map(|word| Action::Word(at, word)));
                }
                Work::Read { sampled, .. } => {
                    for (word, sample) in sampled.iter().enumerate() {
                        if sample.is_none() {
                            actions.push(Action::Word(at, word));
                        }
                    }
                }
                Work::FetchAdd { .. } | Work::Send { .. } => actions.push(Action::Effect(at)),
            }
        }
    }

    fn word(&mut self, at: usize, word: usize) {
        let flight = &mut self.flights[at];
        let target = &self.sides[flight.to].regions;
        let of = |slice: &RemoteSlice| &target[slice.region.0 as usize];
        match &mut flight.action {
            Work::Write { at, left: Some(left), .. } => {
                let (offset, bytes) = left.remove(word);
                if of(at).write(offset, &bytes).is_err() {
                    self.broken = Some("a WRITE out of bounds");
                }
            }
            Work::Read { into, from, sampled } => {
                let (start, bytes) = words(from.offset, into.bytes as usize)[word];
                let mut sample = vec![0; bytes];
                if of(from).read(from.offset + start as u64, &mut sample).is_err() {
                    self.broken = Some("a READ out of bounds");
                }
                sampled[word] = Some(sample);
            }
            _ => {}
        }
    }

    fn effect(&mut self, at: usize) {
        let (from, to) = (self.flights[at].from, self.flights[at].to);
        let mut arrival = None;
        match &mut self.flights[at].action {
            Work::Write { source, at, left: left @ None, bytes, .. } => {
                // The source is looked at now, as late as may be.
                let all = source.sample(&self.sides[from].regions);
                *bytes = all.len() as u32;
                let word = |(start, bytes)| {
                    (at.offset + start as u64, all[start..start + bytes].to_vec())
                };
                *left = Some(words(at.offset, all.len()).into_iter().map(word).collect());
            }
            Work::Write { immediate, bytes, .. } => {
                arrival = Some((immediate.take(), *bytes, Vec::new()));
            }
            Work::FetchAdd { at, add, before, .. } => {
                let region = &self.sides[to].regions[at.region.0 as usize];
                match region.load_word(at.offset) {
                    Ok(word) => {
                        *before = Some(word);
                        let stored = region.store_word(at.offset, word.wrapping_add(*add));
                        stored.expect("it was just read");
                    }
                    Err(_) => self.broken = Some("an atomic out of bounds"),
                }
            }
            Work::Send { source, immediate, arrived } => {
                let bytes = source.sample(&self.sides[from].regions);
                *arrived = true;
                arrival = Some((*immediate, bytes.len() as u32, bytes));
            }
            Work::Read { .. } => {}
        }
        if let Some((immediate, bytes, content)) = arrival {
            self.arrive(from, to, immediate, bytes, &content);
        }
        self.tidy();
    }

    fn arrive(&mut self, from: usize, to: usize, immediate: Option<u32>, bytes: u32, content: &[u8]) {
        if self.sides[to].dead {
            return;
        }
        let peer = self.peer(from);
        let shared = self.setup.kind.shares_receiver() && to >= self.setup.senders;
        let receives = &mut self.sides[to].receives;
        let place = receives.iter().position(|posting| shared || posting.peer == peer);
        let Some(posting) = place.and_then(|place| receives.remove(place)) else {
            self.broken = Some("a message found no receive");
            return;
        };
        if content.len() > posting.into.bytes as usize {
            self.broken = Some("a message longer than its receive");
            return;
        }
        let into = region(&self.sides[to].regions, posting.into.region);
        into.write(posting.into.offset, content).expect("a receive in the own memory");
        let arrival = Arrival { peer, name: posting.name, bytes, immediate };
        self.with(to, |half, own, effects| match half {
            Half::Sender(half) => half.arrived(arrival, own, effects),
            Half::Receiver(half) => half.arrived(arrival, own, effects),
        });
    }

    fn complete(&mut self, at: usize) {
        let flight = &mut self.flights[at];
        flight.told = false;
        let (side, name, to) = (flight.from, flight.name, flight.to);
        match &flight.action {
            Work::Write { source: source @ Origin::Gather(_), left: None, .. } => {
                // The source is free from now on: take what is there.
                let bytes = source.sample(&self.sides[side].regions);
                if let Work::Write { source, .. } = &mut self.flights[at].action {
                    *source = Origin::Copied(bytes);
                }
            }
            Work::Read { into, sampled, .. } => {
                let bytes: Vec<u8> = sampled.iter().flatten().flatten().copied().collect();
                let own = region(&self.sides[side].regions, into.region);
                own.write(into.offset, &bytes).expect("a READ into the own memory");
            }
            Work::FetchAdd { into, before: Some(before), .. } => {
                let own = region(&self.sides[side].regions, into.region);
                own.store_word(into.offset, *before).expect("an atomic into the own memory");
            }
            _ => {}
        }
        let completed = Completed { peer: self.peer(to), name };
        self.with(side, |half, own, effects| match half {
            Half::Sender(half) => half.completed(completed, own, effects),
            Half::Receiver(half) => half.completed(completed, own, effects),
        });
        self.tidy();
    }

    /// Forgets requests that are over.
    fn tidy(&mut self) {
        let sides = &self.sides;
        self.flights.retain(|flight| {
            !flight.action.is_done() || (flight.told && !sides[flight.from].dead)
        });
    }

    /// A dead half's requests end; its peers hear of it.
    fn bury(&mut self, side: usize) {
        self.buried[side] = true;
        self.flights.retain(|flight| flight.from != side && flight.to != side);
        let peer = self.peer(side);
        for other in self.others(side) {
            match &mut self.sides[other].half {
                Half::Sender(half) => half.lost(peer),
                Half::Receiver(half) => half.lost(peer),
            }
        }
    }
}

impl DataChannel {
    /// What the programs may do, whether or not it changes anything.
    fn program_actions(&self, actions: &mut Vec<Action>) {
        for (at, side) in self.sides.iter().enumerate().filter(|(_, side)| !side.dead) {
            if at < self.setup.senders {
                if usize::from(side.sent) < self.setup.messages.len() {
                    actions.push(Action::Send(at));
                }
                actions.push(Action::Advance(at));
            } else {
                if self.setup.offers {
                    actions.push(Action::Offer(at));
                } else if side.holding.len() < self.setup.held_max {
                    actions.push(Action::Receive(at));
                }
                actions.extend((0..side.holding.len()).map(|place| Action::Release(at, place)));
            }
        }
    }

    /// Whether everything that was sent to a living receiver by a living sender has come.
    fn all_came(&self) -> bool {
        let all = (1 << self.setup.messages.len()) - 1;
        let senders = self.setup.senders;
        self.sides[senders..].iter().filter(|side| !side.dead).all(|side| {
            let living = |(from, came): (usize, &u32)| self.sides[from].dead || *came == all;
            side.came.iter().enumerate().all(living)
        })
    }
}

impl Model for DataChannel {
    type Action = Action;

    fn enabled(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.broken.is_some() {
            return actions;
        }
        self.network_actions(&mut actions);
        let mut tries = Vec::new();
        self.program_actions(&mut tries);
        // Looking in vain changes nothing and is no step.
        for action in tries {
            let mut after = self.clone();
            after.apply(action.clone());
            if after != *self {
                actions.push(action);
            }
        }
        for &side in &self.setup.mortal {
            if !self.sides[side].dead {
                actions.push(Action::Die(side));
            } else if !self.buried[side] {
                actions.push(Action::Lost(side));
            }
        }
        actions
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Send(side) => self.send(side),
            Action::Advance(side) => self.with(side, |half, own, effects| match half {
                Half::Sender(half) => half.advance(own, effects),
                Half::Receiver(_) => Ok(()),
            }),
            Action::Receive(side) => self.receive(side),
            Action::Offer(side) => self.offer(side),
            Action::Release(side, place) => self.release(side, place),
            Action::Word(at, word) => {
                self.word(at, word);
                self.tidy();
            }
            Action::Effect(at) => self.effect(at),
            Action::Complete(at) => self.complete(at),
            Action::Die(side) => {
                self.sides[side].dead = true;
                self.tidy();
            }
            Action::Lost(side) => self.bury(side),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.broken.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        if !self.all_came() {
            return Some(Violation::new("a message never comes"));
        }
        let holds = self.sides.iter().any(|side| !side.dead && !side.holding.is_empty());
        holds.then(|| Violation::new("a message cannot be released"))
    }
}
