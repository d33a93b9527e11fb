//! The model of the data channels: the halves of one channel, their memory, and a network with no more order than its
//! guarantees. One model for all twenty channels, selected by a [`DataChannelSetup`].
//!
//! Sources of requests are read as late as permitted, words land and are sampled one by one, and a completion may
//! precede the placement of its WRITE. A half may die at any step; its requests in flight then land in part or not
//! at all.

mod delivery;
pub(super) mod memory;
mod network;
mod program;

#[cfg(test)]
mod tests;

use crate::explorer::{Model, Violation};
use farside_base::{Memory, RegionId, RemoteRegionId};
use farside_protocol::channel::{
    Acknowledge, Arrival, Content, Effects, Family, Half as _, HeldMessage, Kind, MemoryPlan,
    Offer, Own, OwnRegions, Peer, PeerRegions, Posting, Receiver, Sender, Shape,
};
use memory::Bytes;
use network::{PostedRequest, PostedVerb as Work, region};
use std::collections::VecDeque;

pub use network::Guarantees;

const BUFFER: RegionId = RegionId(0);
const BELLS: RegionId = RegionId(1);
const USER: RegionId = RegionId(2);
const COUNTERS: RegionId = RegionId(3);
const OWN: OwnRegions = OwnRegions { buffer: BUFFER, bells: BELLS };
/// Bytes of the user's region per message.
const USER_STEP: u64 = 64;

/// Parameters of the model.
#[derive(Clone, Debug)]
pub struct DataChannelSetup {
    /// The channel.
    pub kind: Kind,
    /// Its dimensions.
    pub shape: Shape,
    /// Number of senders; more than one only for a kind with a shared receiver.
    pub senders: usize,
    /// Number of receivers; more than one only for a kind with a shared sender.
    pub receivers: usize,
    /// Bytes of the messages that each sender sends, in order.
    pub messages: Vec<u32>,
    /// Senders send slices of registered memory, or lent memory, instead of inline bytes.
    pub gather: bool,
    /// Receivers fetch offered messages into memory that they choose.
    pub offers: bool,
    /// The guarantees of the network.
    pub guarantees: Guarantees,
    /// Whether each half may die: senders first, then receivers.
    pub mortal: Vec<usize>,
    /// Number of new halves that replace dead and removed ones.
    pub reconnects: u8,
    /// Maximum number of messages held or fetched at a time.
    pub held_max: usize,
    /// Arrivals are handled at the next poll of the program, not at once.
    pub late: bool,
    /// Receivers acknowledge only when required; the program requests no further acknowledgement.
    pub lazy: bool,
    /// Whether a message without a posted receive waits for one; otherwise it is a failure.
    pub waits: bool,
}

impl DataChannelSetup {
    /// Creates a sender and a receiver on the weakest network that the channel's requirements permit.
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
            reconnects: 0,
            held_max: 2,
            late: false,
            lazy: false,
            waits: false,
        }
    }

    /// Whether messages must be received in the order of sending.
    fn in_order(&self) -> bool {
        // Later atomics, which reserve the positions, may overtake earlier ones.
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

/// A message held by the program of a receiver.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Holding {
    held: HeldMessage,
    /// Its sender, and the life of that sender.
    voice: usize,
    number: u8,
    content: Content,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ModelHalf {
    half: Half,
    regions: Vec<Bytes>,
    receives: VecDeque<Posting>,
    /// Arrivals that are not handled yet.
    arrivals: VecDeque<Arrival>,
    dead: bool,
    /// Number of previous halves at this index.
    life: u8,
    /// Of a sender: messages sent.
    sent: u8,
    /// Of a receiver: messages received, by sender; previous lives follow all present ones.
    came: Vec<u32>,
    holding: Vec<Holding>,
    /// Offers being fetched, with their destinations and their indices among all offers.
    fetching: Vec<(Offer, u64, u8)>,
    offered: u8,
}

/// A step of the model.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum DataChannelAction {
    /// A sender sends its next message.
    Send(usize),
    /// A sender polls.
    Advance(usize),
    /// A receiver polls for the next message.
    Receive(usize),
    /// A receiver polls for an offer, or for the completion of its fetch.
    Offer(usize),
    /// The oldest arrival is handled.
    Poll(usize),
    /// A sender that waits until all messages are processed requests the receivers' progress.
    Ask(usize),
    /// A receiver releases the held message at this index.
    Release(usize, usize),
    /// A word of a request lands, or is sampled.
    Word(usize, usize),
    /// A request takes effect in one step, or a WRITE with immediate takes its receive.
    Effect(usize),
    /// A request completes with success.
    Complete(usize),
    /// A half dies.
    Die(usize),
    /// The requests in flight of a dead half end in their current state, and its peers are notified.
    Lost(usize),
    /// A new half replaces a dead one.
    Reconnect(usize),
}

/// The halves of a channel, and the requests in flight between them.
#[derive(Clone, Debug)]
pub struct DataChannel {
    setup: std::rc::Rc<DataChannelSetup>,
    sides: Vec<ModelHalf>,
    flights: Vec<PostedRequest>,
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

/// The bytes of a message; `from` is a sender and its life.
fn message(from: usize, number: u8, bytes: u32) -> Vec<u8> {
    (0..bytes).map(|at| (from as u8) << 6 | (number + 1) << 3 | (at % 8) as u8).collect()
}

impl DataChannel {
    /// Creates the initial state: all halves connected, no message sent. `change` may plant defects.
    pub fn new(
        setup: DataChannelSetup,
        change: impl Fn(Sender) -> Sender,
        change_receiver: impl Fn(Receiver) -> Receiver,
    ) -> Self {
        let (kind, shape) = (setup.kind, setup.shape);
        // Pages are small here: mirrored rings have less than a page of the machine.
        let plain = Shape { mirrored: false, ..shape };
        plain.check(kind).expect("a shape that can be had");
        let mut sides = Vec::new();
        for from in 0..setup.senders {
            let half = change(Sender::new(kind, &shape, OWN));
            sides.push(ModelHalf::sender(half, from, &setup));
        }
        for _ in 0..setup.receivers {
            let half = change_receiver(Receiver::new(kind, &shape, OWN));
            sides.push(ModelHalf::receiver(half, &setup));
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

    /// The peers of a half.
    fn others(&self, side: usize) -> std::ops::Range<usize> {
        let senders = self.setup.senders;
        if side < senders { senders..self.sides.len() } else { 0..senders }
    }

    /// The number of a peer at a half.
    fn peer(&self, of: usize) -> Peer {
        let senders = self.setup.senders;
        Peer(if of < senders { of } else { of - senders } as u16)
    }

    /// The number that identifies messages of a sender in its current life.
    fn voice(&self, from: usize) -> usize {
        from + self.setup.senders * usize::from(self.sides[from].life)
    }

    fn by_peer(&self, side: usize, peer: Peer) -> usize {
        self.others(side).start + peer.0 as usize
    }

    fn connect(&mut self, side: usize, other: usize) {
        let peer = self.peer(other);
        let remote = PeerRegions {
            buffer: RemoteRegionId(BUFFER.0),
            bells: RemoteRegionId(BELLS.0),
            counters: RemoteRegionId(COUNTERS.0),
            number: self.peer(side),
        };
        self.with(side, |half, own, effects| match half {
            Half::Sender(half) => {
                half.prepare(peer, own, effects)?;
                half.connected(peer, remote, own, effects)
            }
            Half::Receiver(half) => {
                half.prepare(peer, own, effects)?;
                half.connected(peer, remote, own, effects)
            }
        });
    }

    /// Calls a half and performs its effects. All halves are correct, so a violation is a failure of the model.
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
        let ModelHalf { half, regions, .. } = &mut self.sides[side];
        let own = Own { buffer: &regions[0], bells: &regions[1], counters: &regions[3] };
        if let Err(violation) = call(half, own, &mut effects) {
            self.broken = Some(violation.0);
        }
        for posting in effects.postings() {
            self.sides[side].receives.push_back(*posting);
        }
        for request in effects.requests() {
            self.flights.push(PostedRequest {
                from: side,
                to: self.by_peer(side, request.peer),
                name: request.name,
                told: request.signalled,
                fence: request.fence,
                action: Work::of(&effects.operation(request)),
            });
        }
    }
}

impl ModelHalf {
    /// A sender, with its messages in the user's region.
    fn sender(half: Sender, from: usize, setup: &DataChannelSetup) -> Self {
        let side = Self::new(Half::Sender(half), &Sender::plan(setup.kind, &setup.shape), setup);
        for (number, bytes) in setup.messages.iter().enumerate() {
            let bytes = message(from, number as u8, *bytes);
            let user = region(&side.regions, USER);
            user.write(number as u64 * USER_STEP, &bytes).expect("the user's region");
        }
        side
    }

    fn receiver(half: Receiver, setup: &DataChannelSetup) -> Self {
        Self::new(Half::Receiver(half), &Receiver::plan(setup.kind, &setup.shape), setup)
    }

    fn new(half: Half, plan: &MemoryPlan, setup: &DataChannelSetup) -> Self {
        let mirrored = plan.buffer_kind == farside_base::RegionKind::Mirrored;
        Self {
            half,
            regions: vec![
                Bytes::new(plan.buffer_bytes.max(8), mirrored),
                Bytes::new(plan.bells_bytes, false),
                Bytes::new(USER_STEP * setup.messages.len().max(setup.held_max) as u64, false),
                Bytes::new(plan.counters_bytes, false),
            ],
            receives: VecDeque::new(),
            arrivals: VecDeque::new(),
            dead: false,
            life: 0,
            sent: 0,
            came: vec![0; setup.senders * (1 + usize::from(setup.reconnects))],
            holding: Vec::new(),
            fetching: Vec::new(),
            offered: 0,
        }
    }
}

impl DataChannel {
    /// The steps of the programs, including those without effect.
    fn program_actions(&self, actions: &mut Vec<DataChannelAction>) {
        for (at, side) in self.sides.iter().enumerate().filter(|(_, side)| !side.dead) {
            if !side.arrivals.is_empty() {
                actions.push(DataChannelAction::Poll(at));
            }
            if at < self.setup.senders {
                if usize::from(side.sent) < self.setup.messages.len() {
                    actions.push(DataChannelAction::Send(at));
                }
                actions.push(DataChannelAction::Advance(at));
                if self.waits_for_the_end(at) {
                    actions.push(DataChannelAction::Ask(at));
                }
            } else {
                if self.setup.offers {
                    actions.push(DataChannelAction::Offer(at));
                } else if side.holding.len() < self.setup.held_max {
                    actions.push(DataChannelAction::Receive(at));
                }
                actions.extend(
                    (0..side.holding.len()).map(|place| DataChannelAction::Release(at, place)),
                );
            }
        }
    }

    /// Whether every message from a live sender to a live receiver has arrived.
    fn all_came(&self) -> bool {
        let all = (1 << self.setup.messages.len()) - 1;
        let senders = self.setup.senders;
        self.sides[senders..].iter().filter(|side| !side.dead).all(|side| {
            let living = |from: usize| self.sides[from].dead || side.came[self.voice(from)] == all;
            (0..senders).all(living)
        })
    }

    fn holds(&self) -> bool {
        // The indirect channel offers messages before they are sent.
        let offers = self.setup.kind != Kind::ReadSlotIndirect;
        let holds =
            |side: &ModelHalf| !side.holding.is_empty() || (offers && !side.fetching.is_empty());
        self.sides.iter().any(|side| !side.dead && holds(side))
    }

    /// Whether a live sender must eventually learn that all messages were processed: no receiver of it has died, and
    /// receivers acknowledge everything.
    fn should_drain(&self, at: usize) -> bool {
        let living = self.others(at).all(|other| !self.sides[other].dead);
        living && !self.sides[at].dead && !self.setup.lazy
    }

    fn is_drained(&self, at: usize) -> bool {
        match &self.sides[at].half {
            Half::Sender(half) => half.is_drained(),
            Half::Receiver(_) => true,
        }
    }

    /// Whether a sender only waits until all messages are processed, and must request the progress.
    fn waits_for_the_end(&self, at: usize) -> bool {
        self.setup.shape.acknowledge == Acknowledge::ReadTail
            && self.should_drain(at)
            && !self.is_drained(at)
            && self.all_came()
            && !self.holds()
    }

    /// Whether the only enabled steps are READs by receivers of unchanged memory. Without this check a
    /// sender that waits forever would not be detected, since these READs never end. (A message that was sent and
    /// that such a receiver never finds is not detected here; it is detected as out of order when the
    /// next one is found.)
    fn finds_nothing(&self, actions: &[DataChannelAction]) -> bool {
        let senders = self.setup.senders;
        let came = |side: &ModelHalf| {
            let all = |from: usize| (1 << self.sides[from].sent) - 1;
            side.dead || (0..senders).all(|from| side.came[self.voice(from)] == all(from))
        };
        self.setup.kind.shares_sender()
            && self.flights.is_empty()
            && actions.iter().all(|one| {
                matches!(one, DataChannelAction::Receive(_) | DataChannelAction::Offer(_))
            })
            && self.sides[senders..].iter().all(came)
            && !self.sides.iter().any(|side| !side.dead && !side.fetching.is_empty())
    }

    /// Creates a new half at the index of a dead one.
    fn reconnect(&mut self, side: usize) {
        let (kind, shape) = (self.setup.kind, self.setup.shape);
        let life = self.sides[side].life + 1;
        let mut fresh = if side < self.setup.senders {
            let from = side + self.setup.senders * usize::from(life);
            ModelHalf::sender(Sender::new(kind, &shape, OWN), from, &self.setup)
        } else {
            ModelHalf::receiver(Receiver::new(kind, &shape, OWN), &self.setup)
        };
        fresh.life = life;
        for from in self.others(side).filter(|_| side >= self.setup.senders) {
            // It does not receive messages that were sent before.
            fresh.came[self.voice(from)] = (1 << self.sides[from].sent) - 1;
        }
        self.sides[side] = fresh;
        self.buried[side] = false;
        for other in self.others(side) {
            if !self.sides[other].dead {
                self.connect(other, side);
                self.connect(side, other);
            }
        }
    }

    /// Whether a new half may replace a removed one: the number is free when all arrivals from the previous half have
    /// been handled.
    fn may_reconnect(&self, side: usize) -> bool {
        let peer = self.peer(side);
        let shared = match side < self.setup.senders {
            true => self.setup.kind.shares_receiver(),
            false => self.setup.kind.shares_sender(),
        };
        let handled =
            |other: usize| self.sides[other].arrivals.iter().all(|arrival| arrival.peer != peer);
        shared && self.sides[side].life < self.setup.reconnects && self.others(side).all(handled)
    }
}

impl Model for DataChannel {
    type Action = DataChannelAction;

    fn enabled(&self) -> Vec<DataChannelAction> {
        let mut actions = Vec::new();
        if self.broken.is_some() {
            return actions;
        }
        self.network_actions(&mut actions);
        let mut tries = Vec::new();
        self.program_actions(&mut tries);
        // An unsuccessful poll changes no state and is not a step.
        for action in tries {
            let mut after = self.clone();
            after.apply(action.clone());
            if after != *self {
                actions.push(action);
            }
        }
        if self.finds_nothing(&actions) {
            actions.clear();
        }
        for &side in &self.setup.mortal {
            if !self.sides[side].dead {
                // A new half does not die.
                if self.sides[side].life == 0 {
                    actions.push(DataChannelAction::Die(side));
                }
            } else if !self.buried[side] {
                actions.push(DataChannelAction::Lost(side));
            } else if self.may_reconnect(side) {
                actions.push(DataChannelAction::Reconnect(side));
            }
        }
        actions
    }

    fn apply(&mut self, action: DataChannelAction) {
        match action {
            DataChannelAction::Send(side) => self.send(side),
            DataChannelAction::Advance(side) => self.with(side, |half, own, effects| match half {
                Half::Sender(half) => half.advance(own, effects),
                Half::Receiver(_) => Ok(()),
            }),
            DataChannelAction::Receive(side) => self.receive(side),
            DataChannelAction::Offer(side) => self.offer(side),
            DataChannelAction::Release(side, place) => self.release(side, place),
            DataChannelAction::Word(at, word) => {
                self.word(at, word);
                self.tidy();
            }
            DataChannelAction::Effect(at) => self.effect(at),
            DataChannelAction::Complete(at) => self.complete(at),
            DataChannelAction::Die(side) => {
                self.sides[side].dead = true;
                self.tidy();
            }
            DataChannelAction::Lost(side) => self.bury(side),
            DataChannelAction::Reconnect(side) => self.reconnect(side),
            DataChannelAction::Poll(side) => self.poll(side),
            DataChannelAction::Ask(side) => self.with(side, |half, _, effects| {
                if let Half::Sender(half) = half {
                    half.ask_progress(effects);
                }
                Ok(())
            }),
        }
    }

    fn violation(&self) -> Option<Violation> {
        self.broken.map(Violation::new)
    }

    fn stuck(&self) -> Option<Violation> {
        if !self.all_came() {
            return Some(Violation::new("a message never comes"));
        }
        if self.holds() {
            return Some(Violation::new("a message cannot be released"));
        }
        let waits = |at: usize| self.should_drain(at) && !self.is_drained(at);
        let waits = (0..self.setup.senders).any(waits);
        waits.then(|| Violation::new("a sender never learns that all was processed"))
    }
}
