//! One run of a half among hostile peers.

mod halves;
mod memory;

use farside_base::{
    Access, LocalSlice, Memory, Operation, Random, RegionId, RegionKind, RemoteRegionId, Source,
};
use farside_protocol::channel::{
    Acknowledge, Arrival, Completed, Content, DeviceWords, Effects, HeldMessage, Kind, MemoryPlan,
    Name, Own, OwnRegions, Peer, PeerRegions, Shape, Signal,
};
use farside_protocol::wire::Violation;
pub(crate) use halves::{Driven, HalfRole};
use memory::Strict;

const OWN: OwnRegions = OwnRegions { buffer: RegionId(0), bells: RegionId(1) };
/// The program's own region.
const USER: RegionId = RegionId(2);
const USER_BYTES: u64 = 4_096;
/// Receives for acknowledgements, per peer: as the runtime creates its queues.
const ACKNOWLEDGEMENTS: usize = 8;
/// The maximum number of requests of one call.
const REQUESTS_MAX: usize = 1_024;
/// The maximum length of a half's debug output: a bound for the state that it keeps.
const DEBUG_BYTES_MAX: usize = 200_000;

/// A request with an outstanding completion, and the destination of its answer.
struct PendingRequest {
    peer: Peer,
    name: Name,
    lands: Vec<LocalSlice>,
}

/// The outcome of a run.
pub(crate) struct Lived {
    pub(crate) steps: u64,
    pub(crate) violations: u64,
}

/// A half and everything that it can access.
pub(crate) struct Life<H> {
    kind: Kind,
    shape: Shape,
    plan: MemoryPlan,
    pub(crate) half: H,
    pub(crate) effects: Effects,
    pub(crate) buffer: Strict,
    pub(crate) bells: Strict,
    pub(crate) counters: Strict,
    user: Strict,
    pub(crate) random: Random,
    connected: Vec<bool>,
    receives: Vec<(Peer, Name, LocalSlice)>,
    asked: Vec<PendingRequest>,
    pub(crate) held: Vec<HeldMessage>,
    pub(crate) offers: Vec<(HeldMessage, u32)>,
    violations: u64,
}

fn draw_shape(kind: Kind, random: &mut Random) -> Shape {
    loop {
        let message_bytes_max = *random.pick(&[1, 7, 8, 30, 64, 200, 1_000]) as u32;
        let mirrored = random.one_in(2);
        let shape = Shape {
            message_bytes_max,
            slots: *random.pick(&[1, 2, 3, 8, 20]) as u32,
            ring_bytes: *random.pick(&[64, 256, 1_024, 4_096]),
            peers_max: if kind.shares_receiver() || kind.shares_sender() {
                *random.pick(&[1, 2, 3]) as u16
            } else {
                1
            },
            mirrored,
            prefetch_bytes: *random.pick(&[0, 0, 64, 500]) as u32,
            acknowledge: match random.below(3) {
                0 => Acknowledge::Word,
                1 => Acknowledge::Message,
                _ => Acknowledge::ReadTail,
            },
            signal: if random.one_in(2) { Signal::Word } else { Signal::Message },
            device: DeviceWords::ALL[random.below(4) as usize],
            piece_bytes: 1 << 16,
        };
        if shape.check(kind).is_ok() {
            return shape;
        }
    }
}

impl<H: Driven> Life<H> {
    pub(crate) fn new(kind: Kind, seed: u64) -> Self {
        let mut random = Random::new(seed ^ ((kind as u64) << 32) ^ (u64::from(!H::SENDS) << 40));
        let shape = draw_shape(kind, &mut random);
        let plan = H::plan(kind, &shape);
        let mirrored = plan.buffer_kind == RegionKind::Mirrored;
        // A missing region is replaced by memory like the bells, as in the runtime.
        let or_bells = |bytes, mirrored| match bytes {
            0 => Strict::new(plan.bells_bytes, false),
            bytes => Strict::new(bytes, mirrored),
        };
        let buffer = or_bells(plan.buffer_bytes, mirrored);
        let bells = or_bells(plan.bells_bytes, false);
        let counters = or_bells(plan.counters_bytes, false);
        let peers = if H::shares(kind) { usize::from(shape.peers_max) } else { 1 };
        Self {
            kind,
            shape,
            plan,
            half: H::new(kind, &shape, OWN),
            effects: Effects::new(shape.message_bytes_max + 64),
            buffer,
            bells,
            counters,
            user: Strict::new(USER_BYTES, false),
            random,
            connected: vec![false; peers],
            receives: Vec::new(),
            asked: Vec::new(),
            held: Vec::new(),
            offers: Vec::new(),
            violations: 0,
        }
    }

    pub(crate) fn parts(&mut self) -> (&mut H, Own<'_, Strict>, &mut Effects) {
        let (buffer, bells, counters) = (&self.buffer, &self.bells, &self.counters);
        (&mut self.half, Own { buffer, bells, counters }, &mut self.effects)
    }

    pub(crate) const fn message_bytes_max(&self) -> u32 {
        self.shape.message_bytes_max
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.shape.slots
    }

    pub(crate) fn live(mut self, steps: u64) -> Lived {
        for _ in 0..steps {
            let result = self.step();
            if result.is_err() {
                self.violations += 1;
                self.cut_off();
            }
            self.take_effects();
        }
        let remembered = format!("{:?}", self.half).len();
        assert!(remembered < DEBUG_BYTES_MAX, "{remembered} bytes of state: {:?}", self.shape);
        Lived { steps, violations: self.violations }
    }

    /// Acts like the runtime after a violation: closes the link of the accused peer, or of all peers.
    fn cut_off(&mut self) {
        let accused = self.half.accused();
        for peer in 0..self.connected.len() as u16 {
            if accused.is_none_or(|accused| accused.0 == peer) {
                self.lose(Peer(peer));
            }
        }
    }

    fn lose(&mut self, peer: Peer) {
        if std::mem::take(&mut self.connected[usize::from(peer.0)]) {
            self.half.lost(peer);
            self.asked.retain(|asked| asked.peer != peer);
            // The runtime's queue keeps receives posted for a peer that is gone; here the next peer with its number
            // brings its own.
            self.receives.retain(|(posted_for, ..)| *posted_for != peer);
        }
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.random.below(12) {
            0..=2 => self.scribble(),
            3 => return self.arrive(),
            4 | 5 => return self.complete(),
            6 => return self.come_or_go(),
            _ => return H::act(self),
        }
        Ok(())
    }

    fn come_or_go(&mut self) -> Result<(), Violation> {
        let at = self.random.below(self.connected.len() as u64) as usize;
        let peer = Peer(at as u16);
        if self.connected[at] {
            if self.random.one_in(10) {
                self.lose(peer);
            }
            return Ok(());
        }
        // A half with one peer is connected once.
        if !H::shares(self.kind) && self.violations + self.receives.len() as u64 > 0 {
            self.begin_again();
        }
        self.connected[at] = true;
        // The peer's reply has the number by which it knows us: any number is possible.
        let number = if self.random.one_in(4) { self.random.word() as u16 } else { 0 };
        let regions = PeerRegions {
            buffer: RemoteRegionId(3 * u32::from(peer.0)),
            bells: RemoteRegionId(3 * u32::from(peer.0) + 1),
            counters: RemoteRegionId(3 * u32::from(peer.0) + 2),
            number: Peer(number),
        };
        let (half, own, effects) = self.parts();
        half.connected(peer, regions, own, effects)
    }

    /// A half with one peer is replaced by a new half with new memory for the next peer.
    fn begin_again(&mut self) {
        self.half = H::new(self.kind, &self.shape, OWN);
        self.buffer.clear(0, self.plan.buffer_bytes).expect("within");
        self.bells.clear(0, self.plan.bells_bytes).expect("within");
        self.counters.clear(0, self.plan.counters_bytes).expect("within");
        self.receives.clear();
        self.asked.clear();
        self.held.clear();
        self.offers.clear();
        self.effects.posted(usize::MAX);
        self.effects.receives_posted();
    }

    /// A plausible word: zero, small, a copy of an existing one, slightly larger, or random.
    fn word(&mut self) -> u64 {
        let small = [0, 1, 2, 8, 16, 24, 64, self.shape.ring_bytes, u64::MAX, 1 << 63, 1 << 24];
        match self.random.below(6) {
            0 => *self.random.pick(&small),
            1 => {
                let lengths = u64::from(self.shape.message_bytes_max) + 20;
                self.random.below(lengths)
            }
            2 => self.random.word(),
            3 => self.random.below(64) << *self.random.pick(&[0, 8, 24, 32, 40, 48]),
            _ => {
                let memory = if self.random.one_in(2) { &self.buffer } else { &self.bells };
                let at = self.random.below(memory.len() / 8) * 8;
                let word = memory.load_word(at).unwrap_or(0);
                let step = *self.random.pick(&[0, 1, 8, u64::MAX, 1 << 24, 1 << 32, 1 << 40]);
                word.wrapping_add(step)
            }
        }
    }

    /// Writes where peers are permitted to.
    fn scribble(&mut self) {
        let word = self.word().to_le_bytes();
        let rest = self.random.word().to_le_bytes();
        let length = *self.random.pick(&[1, 4, 8, 8, 8, 16]) as usize;
        let both = [word, rest].concat();
        let bells = self.plan.buffer_bytes == 0 || self.random.one_in(2);
        let (memory, access) = if self.plan.counters_bytes > 0 && self.random.one_in(16) {
            (&self.counters, Access::ATOMIC)
        } else if bells {
            (&self.bells, self.plan.bells_access)
        } else {
            (&self.buffer, self.plan.buffer_access)
        };
        if !access.allows(Access::WRITE) && !access.allows(Access::ATOMIC) {
            return;
        }
        // Most words are at the beginning.
        let reach = if self.random.one_in(2) { memory.len().min(256) } else { memory.len() };
        let at = self.random.below(reach) & !(if length >= 8 { 7 } else { 0 });
        let length = length.min((memory.len() - at) as usize);
        memory.write(at, &both[..length]).expect("within");
    }

    /// A message of an arbitrary kind takes one of the receives.
    fn arrive(&mut self) -> Result<(), Violation> {
        if self.receives.is_empty() || !self.connected.contains(&true) {
            return Ok(());
        }
        let at = self.random.below(self.receives.len() as u64) as usize;
        let (posted_for, name, into) = self.receives.remove(at);
        let shared = H::shares(self.kind);
        let from = if shared && self.random.one_in(2) {
            Peer(self.random.below(self.connected.len() as u64) as u16)
        } else {
            posted_for
        };
        if !self.connected[usize::from(from.0)] {
            return Ok(());
        }
        self.fill(into);
        let bytes = match self.random.below(4) {
            0 => into.bytes,
            1 => self.random.below(u64::from(into.bytes) + 1) as u32,
            // A WRITE with immediate may have any length that fits in a region.
            2 => self.random.below(u64::from(self.shape.message_bytes_max) * 2) as u32,
            _ => self.random.word() as u32,
        };
        let immediate = if self.random.one_in(8) { None } else { Some(self.word() as u32) };
        // A message without immediate data, or into memory, fits its receive.
        let bytes =
            if immediate.is_none() || into.bytes > 0 { bytes.min(into.bytes) } else { bytes };
        let arrival = Arrival { peer: from, name, bytes, immediate };
        let (half, own, effects) = self.parts();
        half.arrived(arrival, own, effects)
    }

    /// Stores arbitrary bytes of the peer at the destination of a request.
    fn fill(&mut self, place: LocalSlice) {
        let mut offset = place.offset;
        let end = place.offset + u64::from(place.bytes);
        while offset < end {
            let word = self.word().to_le_bytes();
            let bytes = (end - offset).min(8);
            self.region(place.region).write(offset, &word[..bytes as usize]).expect("within");
            offset += bytes;
        }
    }

    fn complete(&mut self) -> Result<(), Violation> {
        if self.asked.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.asked.len() as u64) as usize;
        let PendingRequest { peer, name, lands } = self.asked.remove(at);
        for place in lands {
            // Or it leaves the memory unchanged.
            if !self.random.one_in(4) {
                self.fill(place);
            }
        }
        let (half, own, effects) = self.parts();
        half.completed(Completed { peer, name }, own, effects)
    }

    fn region(&self, region: RegionId) -> &Strict {
        match region {
            RegionId(0) => &self.buffer,
            RegionId(1) => &self.bells,
            USER => &self.user,
            other => panic!("a region {other:?}"),
        }
    }

    fn check_local(&self, slice: &LocalSlice) {
        let end = slice.offset.checked_add(u64::from(slice.bytes)).expect("wraps around");
        assert!(end <= self.region(slice.region).len(), "{slice:?} of {:?}", self.shape);
    }

    /// Remembers the requests, and checks that all are within bounds.
    fn take_effects(&mut self) {
        let postings: Vec<_> = self.effects.postings().to_vec();
        for posting in postings {
            self.check_local(&posting.into);
            self.receives.push((posting.peer, posting.name, posting.into));
        }
        self.effects.receives_posted();
        let back =
            if self.shape.acknowledge == Acknowledge::Message { ACKNOWLEDGEMENTS } else { 0 };
        let depth = (self.plan.receives as usize + back * self.connected.len()).max(1);
        assert!(self.receives.len() <= depth, "{} receives of {depth}", self.receives.len());
        let requests = self.effects.requests();
        assert!(requests.len() <= REQUESTS_MAX, "{} requests", requests.len());
        let mut asked = Vec::new();
        for request in requests {
            let lands = match self.effects.operation(request) {
                Operation::Read { into, .. } => into.to_vec(),
                Operation::FetchAdd { into, .. } => vec![into],
                Operation::Write { source, .. } | Operation::Send { source, .. } => {
                    if let Source::Gather(slices) = source {
                        slices.iter().for_each(|slice| self.check_local(slice));
                    }
                    Vec::new()
                }
                other => panic!("{other:?}"),
            };
            lands.iter().for_each(|slice| self.check_local(slice));
            let there = self.connected.get(usize::from(request.peer.0)) == Some(&true);
            if request.signalled && there {
                asked.push(PendingRequest { peer: request.peer, name: request.name, lands });
            }
        }
        self.asked.extend(asked);
        assert!(self.asked.len() <= 4 * REQUESTS_MAX, "{} are in flight", self.asked.len());
        self.effects.posted(usize::MAX);
    }

    /// Asserts that a message is in the buffer and not too long.
    pub(crate) fn check_content(&self, content: Content) {
        if let Content::Buffer { offset, bytes } = content {
            let end = offset.checked_add(u64::from(bytes)).expect("wraps around");
            assert!(end <= self.buffer.len(), "{content:?} of {:?}", self.shape);
            assert!(bytes <= self.shape.message_bytes_max, "{content:?} of {:?}", self.shape);
        }
    }

    /// The maximum number of messages held at a time.
    pub(crate) fn check_held(&self) {
        let most = u64::from(self.shape.slots) * self.connected.len() as u64
            + u64::from(self.plan.receives)
            + self.shape.ring_bytes / 8;
        assert!(self.held.len() as u64 <= most, "{} are held of {:?}", self.held.len(), self.shape);
    }

    /// A slice of the program's memory.
    pub(crate) fn user_slice(&mut self, bytes: u32) -> LocalSlice {
        let offset = self.random.below(USER_BYTES - u64::from(bytes) + 1);
        LocalSlice { region: USER, offset, bytes }
    }
}
