//! A hostile peer without a channel: a bare port that sends or answers a hello, and then writes, sends, adds and
//! changes memory at random.

use farside::channel::Shape;
use farside_base::{
    Access, Completion, LinkId, LocalSlice, Operation, Random, Receive, ReceiveQueueId, RegionKind,
    RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use std::sync::Arc;

/// The end that a peer is, or claims to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Sender = 1,
    Receiver = 2,
}

impl End {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }
}

/// A defect of a hello or a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wrong {
    Cut,
    Longer,
    Random,
    OtherVersion,
    OtherKind,
    SameEnd,
    OtherMeasures,
    AbsurdMeasures,
    /// Correct except for tokens that refer to no region.
    Tokens,
}

impl Wrong {
    pub(crate) const ALL: [Self; 9] = [
        Self::Cut,
        Self::Longer,
        Self::Random,
        Self::OtherVersion,
        Self::OtherKind,
        Self::SameEnd,
        Self::OtherMeasures,
        Self::AbsurdMeasures,
        Self::Tokens,
    ];
}

/// The answer to a connecting end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerAnswer {
    Right,
    Bent(Wrong),
    Refuses,
    Silence,
}

impl PeerAnswer {
    pub(crate) const ALL: [Self; 7] = [
        Self::Right,
        Self::Bent(Wrong::Cut),
        Self::Bent(Wrong::Longer),
        Self::Bent(Wrong::Random),
        Self::Bent(Wrong::Tokens),
        Self::Refuses,
        Self::Silence,
    ];
}

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Coming,
    Open,
    Refused,
    Lost,
}

const RECEIVES: usize = 64;

/// Offsets in a hello: see `hello.rs` of the channels. Its tail, and the beginning of a reply, are tokens of
/// regions.
mod at {
    pub(super) const VERSION: usize = 4;
    pub(super) const KIND: usize = 5;
    pub(super) const END: usize = 6;
    pub(super) const SHAPE: usize = 20;
    pub(super) const TOKENS: usize = 52;
}

/// Returns the hello that a correct end would send.
pub(crate) fn sound_hello(fabric: &dyn Fabric, name: &str, connect: impl FnOnce()) -> Vec<u8> {
    let mut port = fabric.open(&PortSpec { listen: Some(name.to_owned()) }).unwrap();
    connect();
    let mut events = Vec::new();
    loop {
        port.link_events(&mut events);
        for event in events.drain(..) {
            if let LinkEvent::Requested { hello, .. } = event {
                return hello;
            }
        }
    }
}

pub(crate) struct Hostile {
    fabric: Arc<dyn Fabric>,
    port: Box<dyn Port>,
    queue: ReceiveQueueId,
    /// Its regions; not all of them are announced.
    regions: Vec<Region>,
    shape: Shape,
    /// The hello of a correct end.
    hello: Vec<u8>,
    link: Option<LinkId>,
    pub(crate) state: State,
    /// The regions of the other end, with their bytes and access rights.
    remote: Vec<(RemoteRegionId, u64, Access)>,
    answer: PeerAnswer,
    random: Random,
}

fn region(fabric: &dyn Fabric, bytes: u64) -> Region {
    let spec = RegionSpec { bytes, access: Access::ALL, kind: RegionKind::Memory };
    fabric.register(&spec).unwrap()
}

impl Hostile {
    /// Opens a peer with the hello of a correct end, listening if it has a name to listen at.
    pub(crate) fn new(
        fabric: Arc<dyn Fabric>,
        hello: Vec<u8>,
        shape: Shape,
        listen: Option<&str>,
        seed: u64,
    ) -> Self {
        let mut random = Random::new(seed);
        let slots = u64::from(shape.slots) * (u64::from(shape.message_bytes_max) + 128);
        let enough = (2 * shape.ring_bytes + 2 * slots + (64 << 10)) * u64::from(shape.peers_max);
        let tokens = hello[at::TOKENS..].chunks_exact(RegionToken::ENCODED);
        let regions: Vec<Region> =
            tokens.map(|_| region(&*fabric, if random.one_in(10) { 64 } else { enough })).collect();
        let mut port = fabric.open(&PortSpec { listen: listen.map(str::to_owned) }).unwrap();
        let queue = port.create_receive_queue(RECEIVES).unwrap();
        for number in 0..random.below(RECEIVES as u64) {
            let into = LocalSlice { region: regions[0].id, offset: 0, bytes: 64 };
            let _ = port.post_receives(&[Receive { id: WorkId(number), queue, into }]);
        }
        let (link, state, answer, remote) = (None, State::Coming, PeerAnswer::Right, Vec::new());
        Self { fabric, port, queue, regions, shape, hello, link, state, remote, answer, random }
    }

    /// Returns the tokens of its regions, as many as a correct end has.
    fn tokens(&self, wrong: Option<Wrong>) -> Vec<u8> {
        let mut out = self.hello[at::TOKENS..].to_vec();
        for (place, region) in out.chunks_exact_mut(RegionToken::ENCODED).zip(&self.regions) {
            let mut token = region.token;
            token.key.0 ^= u64::from(wrong == Some(Wrong::Tokens));
            if place.iter().any(|byte| *byte != 0) {
                place.copy_from_slice(&token.encode());
            }
        }
        out
    }

    fn hello(&mut self, wrong: Option<Wrong>) -> Vec<u8> {
        let mut hello = self.hello[..at::TOKENS].to_vec();
        let kind = hello[at::KIND];
        match wrong {
            Some(Wrong::OtherVersion) => {
                let version = hello[at::VERSION];
                hello[at::VERSION] = *self.random.pick(&[0, version - 1, version + 1, 255]);
            }
            Some(Wrong::OtherKind) => {
                let others = [0, 21, 255, if kind == 1 { 2 } else { kind - 1 }];
                hello[at::KIND] = *self.random.pick(&others);
            }
            Some(Wrong::SameEnd) => hello[at::END] ^= 3,
            Some(Wrong::OtherMeasures) => hello[at::SHAPE] ^= 1,
            Some(Wrong::AbsurdMeasures) => {
                let word = at::SHAPE + self.random.below(4) as usize * 4;
                hello[word..word + 4].fill(*self.random.pick(&[0, 0xff]));
                hello[at::SHAPE + 22] ^= 1;
            }
            _ => {}
        }
        hello.extend(self.tokens(wrong));
        self.bend(hello, wrong)
    }

    /// Cuts, extends or replaces a message.
    fn bend(&mut self, said: Vec<u8>, wrong: Option<Wrong>) -> Vec<u8> {
        let length = said.len() as u64;
        match wrong {
            Some(Wrong::Cut) => said[..self.random.below(length) as usize].to_vec(),
            Some(Wrong::Longer) => [said, self.junk(8)].concat(),
            Some(Wrong::Random) => {
                let count = *self.random.pick(&[0, 1, length, 300]);
                self.junk(count)
            }
            _ => said,
        }
    }

    pub(crate) fn connect(&mut self, to: &str, wrong: Option<Wrong>) {
        let hello = self.hello(wrong);
        self.link = Some(self.port.connect(to, &hello, self.queue).unwrap());
    }

    /// Sets the answer to a connecting end.
    pub(crate) const fn will_answer(&mut self, answer: PeerAnswer) {
        self.answer = answer;
    }

    fn learn(&mut self, link: LinkId, tokens: &[u8]) {
        for token in tokens.chunks_exact(RegionToken::ENCODED) {
            let token = RegionToken::decode(token.try_into().unwrap()).unwrap();
            // The token of an omitted region is zero.
            if token.bytes > 0 {
                let imported = self.port.import(link, &token);
                self.remote.extend(imported.ok().map(|region| (region, token.bytes, token.access)));
            }
        }
    }

    fn answer(&mut self, link: LinkId, hello: &[u8]) {
        let wrong = match self.answer {
            PeerAnswer::Right => None,
            PeerAnswer::Bent(wrong) => Some(wrong),
            PeerAnswer::Silence => return,
            PeerAnswer::Refuses => {
                self.state = State::Refused;
                return self.port.refuse(link, &[0xff, 0xfe, 0x80]).unwrap();
            }
        };
        let mut reply = self.tokens(wrong);
        let number = if self.random.one_in(2) { 0 } else { self.random.word() as u16 };
        reply.extend(number.to_le_bytes());
        let reply = self.bend(reply, wrong);
        if self.port.accept(link, &reply, self.queue).is_ok() {
            self.link = Some(link);
            self.state = State::Open;
            self.learn(link, &hello[at::TOKENS..]);
        }
    }

    /// Handles the events of its link.
    pub(crate) fn look(&mut self) {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        for event in events {
            match event {
                LinkEvent::Requested { link, hello } => self.answer(link, &hello),
                LinkEvent::Connected { link, reply } => {
                    self.state = State::Open;
                    // The peer number at the end is ignored.
                    self.learn(link, &reply);
                }
                LinkEvent::Refused { .. } => self.state = State::Refused,
                LinkEvent::Lost { .. } => self.state = State::Lost,
                _ => {}
            }
        }
    }

    /// Performs a random step, in most cases one that no correct end performs.
    pub(crate) fn step(&mut self) {
        self.look();
        let Some(link) = self.link.filter(|_| self.state == State::Open) else {
            return;
        };
        match self.random.below(64) {
            0 => self.port.close(link),
            1 => {
                let region = self.some_region().id;
                let _ = self.fabric.deregister(region);
            }
            2..=9 => {
                let mut completions = [Completion::BLANK; 32];
                self.port.poll(&mut completions);
            }
            10..=13 => {
                let into = LocalSlice { region: self.regions[0].id, offset: 0, bytes: 0 };
                let receive = Receive { id: WorkId(1), queue: self.queue, into };
                let _ = self.port.post_receives(&[receive]);
            }
            14..=27 => self.scribble(),
            28..=37 => self.send(link),
            38..=41 => self.count(link),
            _ => self.write(link),
        }
    }

    fn some_region(&mut self) -> &Region {
        &self.regions[self.random.below(self.regions.len() as u64) as usize]
    }

    /// Returns a word that may be meaningful to a channel: a length, a count, an offset, or parts of them.
    fn telling(&mut self) -> u64 {
        let (random, ring_bytes) = (&mut self.random, self.shape.ring_bytes);
        let shifts = [0, 3, 8, 12, 16, 19, 20, 24, 32, 40, 48];
        let length = random.below(u64::from(self.shape.message_bytes_max) + 10);
        match random.below(8) {
            0 => *random.pick(&[0, 1, u64::MAX, 1 << 63, 1 << 31, 1 << 24, ring_bytes]),
            1 => length,
            2 => random.word(),
            3 => random.below(16) << *random.pick(&shifts),
            4 => random.below(ring_bytes * 2) & !7,
            // A bell: a sequence number and a length.
            5 | 6 => (random.below(20) << *random.pick(&[24, 32])) | (length + 1),
            _ => {
                (random.below(16) << *random.pick(&shifts))
                    | (random.below(16) << *random.pick(&shifts))
            }
        }
    }

    fn junk(&mut self, count: u64) -> Vec<u8> {
        (0..count).map(|_| self.random.byte()).collect()
    }

    /// Returns one to four words that may be meaningful, or junk.
    fn words(&mut self) -> Vec<u8> {
        if self.random.one_in(8) {
            let bytes = self.random.below(u64::from(self.shape.message_bytes_max) + 20).min(256);
            return self.junk(bytes);
        }
        let words = *self.random.pick(&[1, 1, 1, 2, 4]);
        (0..words).flat_map(|_| self.telling().to_le_bytes()).collect()
    }

    /// Returns an offset: near the beginning, where most words are, or anywhere; rarely past the end.
    fn place(&mut self, bytes: u64, length: u64) -> u64 {
        if self.random.one_in(200) {
            return bytes;
        }
        let room = bytes.saturating_sub(length) + 1;
        let reach = if self.random.one_in(2) { room.min(192) } else { room };
        let offset = self.random.below(reach);
        if self.random.one_in(8) { offset } else { offset & !7 }
    }

    /// Changes its own memory, which the other end may READ.
    fn scribble(&mut self) {
        let bytes = self.words();
        let arena = self.some_region().arena.clone();
        let offset = self.place(arena.len() as u64, bytes.len() as u64);
        let _ = arena.write(offset, &bytes);
    }

    fn post(&mut self, link: LinkId, operation: Operation<'_>) {
        let flags = WorkFlags { signalled: self.random.one_in(4), fence: false, awaited: false };
        let _ = self.port.post(&[Work { id: WorkId(7), link, flags, operation }]);
    }

    fn immediate(&mut self) -> Option<u32> {
        if self.random.one_in(6) { None } else { Some(self.telling() as u32) }
    }

    fn send(&mut self, link: LinkId) {
        let longest = u64::from(self.shape.message_bytes_max);
        let bytes = match self.random.below(4) {
            0 | 1 => Vec::new(),
            2 => self.words(),
            // Longer than any receive.
            _ => self.junk((longest + 8).min(256)),
        };
        let immediate = self.immediate();
        self.post(link, Operation::Send { source: Source::Inline(&bytes), immediate });
    }

    /// Returns a region of the other end that permits this access; rarely one that does not, which breaks the link.
    fn target(&mut self, access: Access) -> Option<(RemoteRegionId, u64)> {
        let any = self.random.one_in(200);
        let mut allowed = self.remote.clone();
        allowed.retain(|remote| any || remote.2.allows(access));
        if allowed.is_empty() {
            return None;
        }
        let (region, size, _) = *self.random.pick(&allowed);
        Some((region, size))
    }

    fn write(&mut self, link: LinkId) {
        let Some((region, size)) = self.target(Access::WRITE) else {
            return;
        };
        let immediate = if self.random.one_in(3) { self.immediate() } else { None };
        let bytes = self.words();
        let long =
            LocalSlice { region: self.regions[0].id, offset: 0, bytes: 2048.min(size as u32) };
        // With an immediate, the length of a message is that of its WRITE.
        let (source, length) = match self.random.below(8) {
            0 => (Source::Gather(std::slice::from_ref(&long)), u64::from(long.bytes)),
            _ => (Source::Inline(&bytes[..]), bytes.len() as u64),
        };
        let to = RemoteSlice { region, offset: self.place(size, length) };
        self.post(link, Operation::Write { source, to, immediate });
    }

    fn count(&mut self, link: LinkId) {
        let Some((region, size)) = self.target(Access::ATOMIC) else {
            return;
        };
        let at = RemoteSlice { region, offset: self.place(size, 8) & !7 };
        let add = self.telling();
        let into = LocalSlice { region: self.regions[0].id, offset: 0, bytes: 8 };
        self.post(link, Operation::FetchAdd { at, add, into });
    }
}
