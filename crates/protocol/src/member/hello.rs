//! The wire form of connection requests and their answers.
//!
//! ```text
//! 0          8             12     13        16
//! +----------+-------------+------+---------+---------------------------+
//! | magic    | version     | kind | zero    | fields of the kind        |
//! +----------+-------------+------+---------+---------------------------+
//! ```
//! All integers are little-endian; text and lists are length-prefixed. The first 16 bytes and all of [`JoinRefusal`] stay
//! the same in every version, so that a peer of another version can be refused with a reason. Bytes after the last
//! field, unknown kinds and excessive lengths are refused.

use super::keeps::Keeps;
use super::settings::{FounderSettings, Leases};
use crate::wire::{HOST, Violation, decode_host, encode_host};
use alloc::{string::String, vec::Vec};
use core::net::SocketAddr;
use farside_base::{
    ErrorCode, Generation, Incarnation, MemberRegions, NodeId, NodeSet, RegionToken, ViewNumber,
};

/// The version of the whole protocol between nodes. Different versions are incompatible.
pub const PROTOCOL_VERSION: u32 = 13;

/// The maximum size in bytes of a hello or answer, of any kind.
pub const HELLO_MAX: usize = 16_384;

/// The maximum length in bytes of a cluster's name.
pub const CLUSTER_NAME_MAX: usize = 64;

/// The maximum length in bytes of a refusal's text.
pub const REFUSAL_TEXT_MAX: usize = 512;

const MAGIC: [u8; 8] = *b"farside\n";

const _: () = assert!(NodeSet::CAPACITY * (20 + HOST + 4) + 64 <= HELLO_MAX, "a full Welcome fits");

/// Whether `name` is a valid cluster name: 1 to 64 ASCII letters, digits, `-`, `_` and `.`, starting with a letter or
/// digit. The name becomes part of socket names and file names.
pub fn valid_cluster_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    name.len() <= CLUSTER_NAME_MAX
        && name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
        && name.bytes().all(inner)
}

/// Sent to the rendezvous name: asks to become a member.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Join {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// The name of the cluster.
    pub cluster: String,
    /// Fingerprint of the sender's `Limits` that must be equal.
    pub limits: u64,
    /// The incarnation of the sender's process.
    pub incarnation: Incarnation,
    /// Bytes of memory that it lends.
    pub home_bytes: u64,
    /// It is a witness. Invariant: it lends no memory and keeps nothing then.
    pub witness: bool,
    /// What it keeps of its earlier lives.
    pub keeps: Keeps,
    /// The network address that it will have, on fabrics between hosts.
    pub host: Option<SocketAddr>,
}

/// A member, in the list that a joiner receives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ListedMember {
    /// Its number.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The view that admitted it: unique to each member, and members are ordered by it.
    pub born: ViewNumber,
    /// Its network address, on fabrics between hosts.
    pub host: Option<SocketAddr>,
    /// The generation of the memory that it lends, if any; it counts in a quorum then.
    pub memory: Option<Generation>,
    /// It is a node with state. Invariant: it lends memory then.
    pub state: bool,
    /// Names of roots may be in its memory. Invariant: it has state then.
    pub names: bool,
    /// It is a witness, and counts in a quorum. Invariant: it lends no memory then.
    pub witness: bool,
}

/// What a cluster knows of a number under which memory was lent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LentNumber {
    /// The number.
    pub node: NodeId,
    /// Its next generation: all smaller ones have been used.
    pub next: u16,
    /// The last memory under this number is that of a node with state, which is a member or will return.
    pub state: bool,
    /// Names of roots may be in that memory.
    pub names: bool,
}

/// The coordinator's answer to [`Join`]: the joiner is a member.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Welcome {
    /// The number of the joiner.
    pub node: NodeId,
    /// The view that admits the joiner.
    pub view: ViewNumber,
    /// What the founder has set.
    pub settings: FounderSettings,
    /// The generation of the memory that the joiner lends, if any.
    pub memory: Option<Generation>,
    /// The other live members in order of admission; the first is the coordinator. Connect to all.
    pub members: Vec<ListedMember>,
    /// The numbers under which memory was lent, ascending.
    pub generations: Vec<LentNumber>,
    /// The cluster's fingerprint of limits.
    pub limits: u64,
    /// The incarnation of the cluster's founder, which distinguishes clusters of one name.
    pub founder: Incarnation,
}

/// Sent to another member: asks for a link.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PeerRequest {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// The name of the cluster.
    pub cluster: String,
    /// The sender's number.
    pub node: NodeId,
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The view that named the sender.
    pub view: ViewNumber,
    /// The sender's regions.
    pub regions: MemberRegions,
}

/// Accepts a [`PeerRequest`].
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct PeerReply {
    /// The answering node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Its view.
    pub view: ViewNumber,
    /// Its regions.
    pub regions: MemberRegions,
}

/// Sent to a member with a broken link: asks to resume over a new one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Resume {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u32,
    /// The name of the cluster.
    pub cluster: String,
    /// The sender's number.
    pub node: NodeId,
    /// The sender's incarnation.
    pub incarnation: Incarnation,
    /// The receiver's incarnation, as the sender knows it.
    pub to: Incarnation,
    /// The number of messages that the sender has received from the receiver.
    pub received: u64,
}

/// Accepts a [`Resume`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Resumed {
    /// The answering node's incarnation.
    pub incarnation: Incarnation,
    /// The number of messages that it has received.
    pub received: u64,
}

/// Redirects the sender of a [`Join`] to the coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Elsewhere {
    /// The coordinator's host.
    pub host: SocketAddr,
}

/// Sent to the rendezvous name by a process that does not join: asks for the number of members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AskOccupancy;

/// Answers [`AskOccupancy`]; it comes with the refusal of that link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Occupancy {
    /// The number of live members, as far as the answering node knows.
    pub members: u16,
    /// The maximum number of members at a time.
    pub members_max: u16,
}

/// Refuses any request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct JoinRefusal {
    /// The reason, as a row of the error table.
    pub code: ErrorCode,
    /// Details beyond that row; may be empty.
    pub text: String,
}

/// The content of a connection request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HelloRequest {
    /// At the rendezvous name.
    Join(Join),
    /// At a member's name.
    Peer(PeerRequest),
    /// At a member's name, of a member.
    Resume(Resume),
    /// At the rendezvous name.
    AskOccupancy(AskOccupancy),
}

/// The content of an answer to a connection request.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum HelloAnswer {
    /// To [`Join`].
    Welcome(Welcome),
    /// To [`PeerRequest`].
    PeerReply(PeerReply),
    /// To [`Resume`].
    Resumed(Resumed),
    /// To [`Join`].
    Elsewhere(Elsewhere),
    /// To [`AskOccupancy`].
    Occupancy(Occupancy),
    /// To any.
    Refusal(JoinRefusal),
}

/// Why bytes are not a valid hello or answer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HelloError {
    /// Malformed, or not of Farside; names the offending part.
    Junk(&'static str),
    /// Sent by a peer of this other protocol version.
    Version(u32),
}

impl HelloError {
    /// The refusal to send to the peer that sent the bytes.
    pub fn refusal(self) -> JoinRefusal {
        match self {
            Self::Junk(place) => {
                JoinRefusal { code: ErrorCode::ProtocolViolation, text: place.into() }
            }
            Self::Version(theirs) => version_refusal(theirs),
        }
    }
}

/// The refusal of a peer of version `theirs`.
pub(super) fn version_refusal(theirs: u32) -> JoinRefusal {
    JoinRefusal {
        code: ErrorCode::VersionMismatch,
        text: alloc::format!("protocol version {PROTOCOL_VERSION} is required, not {theirs}"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum HelloKind {
    Join = 1,
    Welcome = 2,
    Peer = 3,
    PeerReply = 4,
    Refusal = 5,
    Resume = 6,
    Resumed = 7,
    Elsewhere = 8,
    AskOccupancy = 9,
    Occupancy = 10,
}

impl HelloRequest {
    /// Decodes a connection request.
    ///
    /// # Errors
    /// [`HelloError`]: refuse the request with [`HelloError::refusal`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let (kind, mut input) = Input::open(bytes)?;
        match kind {
            HelloKind::Join => input.join().map(Self::Join),
            HelloKind::Peer => input.peer().map(Self::Peer),
            HelloKind::Resume => input.resume().map(Self::Resume),
            HelloKind::AskOccupancy => input.end(Self::AskOccupancy(AskOccupancy)),
            _ => Err(HelloError::Junk("kind")),
        }
    }
}

impl HelloAnswer {
    /// Decodes an answer to a connection request.
    ///
    /// # Errors
    /// [`HelloError`]: the sender of the answer is not a peer of this version; give up.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let (kind, mut input) = Input::open(bytes)?;
        match kind {
            HelloKind::Welcome => input.welcome().map(Self::Welcome),
            HelloKind::PeerReply => input.peer_reply().map(Self::PeerReply),
            HelloKind::Refusal => input.refusal().map(Self::Refusal),
            HelloKind::Resumed => input.resumed().map(Self::Resumed),
            HelloKind::Elsewhere => input.elsewhere().map(Self::Elsewhere),
            HelloKind::Occupancy => input.occupancy().map(Self::Occupancy),
            HelloKind::Join | HelloKind::Peer | HelloKind::Resume | HelloKind::AskOccupancy => {
                Err(HelloError::Junk("kind"))
            }
        }
    }
}

impl Join {
    /// Returns the wire form. A name that is too long is encoded unchanged, and refused by the receiver.
    pub fn encode(&self) -> Vec<u8> {
        let output = Output::new(HelloKind::Join, self.version)
            .u64(self.limits)
            .u64(self.incarnation.0)
            .u64(self.home_bytes)
            .raw(&[u8::from(self.witness)])
            .keeps(self.keeps)
            .raw(&encode_host(self.host));
        output.bytes(self.cluster.as_bytes()).0
    }
}

impl Welcome {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        let output = Output::new(HelloKind::Welcome, PROTOCOL_VERSION)
            .u64(self.view.0)
            .u64(self.limits)
            .u64(self.founder.0)
            .u16(self.node.0)
            .u16(self.settings.nodes_max)
            .u64(self.settings.leases.fabric_ns)
            .u64(self.settings.leases.member_ns)
            .u16(encode_memory(SharedMemory::of(self.memory)))
            .u16(self.members.len() as u16);
        let output = self.members.iter().fold(output, |output, member| {
            let host = encode_host(member.host);
            output
                .u16(member.node.0)
                .u64(member.incarnation.0)
                .u64(member.born.0)
                .u16(encode_memory(member.shared()))
                .raw(&host)
        });
        let output = output.u16(self.generations.len() as u16);
        let generations = self.generations.iter();
        let encoded = |lent: &LentNumber| lent.next | kept_bits(lent.state, lent.names);
        generations.fold(output, |output, lent| output.u16(lent.node.0).u16(encoded(lent))).0
    }
}

impl PeerRequest {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        let output = Output::new(HelloKind::Peer, self.version)
            .u64(self.incarnation.0)
            .u64(self.view.0)
            .u16(self.node.0);
        output.regions(&self.regions).bytes(self.cluster.as_bytes()).0
    }
}

impl PeerReply {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        let output = Output::new(HelloKind::PeerReply, PROTOCOL_VERSION)
            .u64(self.incarnation.0)
            .u64(self.view.0)
            .u16(self.node.0);
        output.regions(&self.regions).0
    }
}

impl Resume {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        let output = Output::new(HelloKind::Resume, self.version)
            .u64(self.incarnation.0)
            .u64(self.to.0)
            .u64(self.received)
            .u16(self.node.0);
        output.bytes(self.cluster.as_bytes()).0
    }
}

impl Resumed {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        Output::new(HelloKind::Resumed, PROTOCOL_VERSION)
            .u64(self.incarnation.0)
            .u64(self.received)
            .0
    }
}

impl Elsewhere {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        Output::new(HelloKind::Elsewhere, PROTOCOL_VERSION).raw(&encode_host(Some(self.host))).0
    }
}

impl AskOccupancy {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        Output::new(HelloKind::AskOccupancy, PROTOCOL_VERSION).0
    }
}

impl Occupancy {
    /// Returns the wire form.
    pub fn encode(&self) -> Vec<u8> {
        Output::new(HelloKind::Occupancy, PROTOCOL_VERSION)
            .u16(self.members)
            .u16(self.members_max)
            .0
    }
}

impl JoinRefusal {
    /// Creates a refusal without details.
    pub const fn new(code: ErrorCode) -> Self {
        Self { code, text: String::new() }
    }

    /// Returns the wire form; the text is truncated to [`REFUSAL_TEXT_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.text.len().min(REFUSAL_TEXT_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        Output::new(HelloKind::Refusal, PROTOCOL_VERSION)
            .u16(self.code.entry().number)
            .bytes(&self.text.as_bytes()[..end])
            .0
    }
}

struct Output(Vec<u8>);

impl Output {
    fn new(kind: HelloKind, version: u32) -> Self {
        Self(Vec::with_capacity(256))
            .raw(&MAGIC)
            .raw(&version.to_le_bytes())
            .raw(&[kind as u8, 0, 0, 0])
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(self, value: u16) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn keeps(self, keeps: Keeps) -> Self {
        let (kind, node, generation) = match keeps {
            Keeps::Nothing => (0, 0, 0),
            Keeps::New => (1, 0, 0),
            Keeps::Known { node, generation, names } => (2 + u8::from(names), node.0, generation.0),
        };
        self.raw(&[kind]).u16(node).u16(generation)
    }

    fn regions(self, regions: &MemberRegions) -> Self {
        let MemberRegions { home, cache, fence, tags } = regions;
        let output = [home, cache, fence].iter().fold(self, |to, token| to.raw(&token.encode()));
        let output = output.raw(&[u8::from(tags.is_some())]);
        tags.iter().fold(output, |to, token| to.raw(&token.encode()))
    }

    /// Appends bytes with their length as prefix.
    fn bytes(self, bytes: &[u8]) -> Self {
        self.u64(bytes.len() as u64).raw(bytes)
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn open(bytes: &'a [u8]) -> Result<(HelloKind, Self), HelloError> {
        if bytes.len() > HELLO_MAX {
            return Err(HelloError::Junk("length"));
        }
        let mut input = Self(bytes);
        if input.array()? != MAGIC {
            return Err(HelloError::Junk("magic"));
        }
        let version = u32::from_le_bytes(input.array()?);
        let [kind, zero @ ..] = input.array::<4>()?;
        let kind = match kind {
            1 => HelloKind::Join,
            2 => HelloKind::Welcome,
            3 => HelloKind::Peer,
            4 => HelloKind::PeerReply,
            5 => HelloKind::Refusal,
            6 => HelloKind::Resume,
            7 => HelloKind::Resumed,
            8 => HelloKind::Elsewhere,
            9 => HelloKind::AskOccupancy,
            10 => HelloKind::Occupancy,
            _ if version != PROTOCOL_VERSION => return Err(HelloError::Version(version)),
            _ => return Err(HelloError::Junk("kind")),
        };
        if version != PROTOCOL_VERSION && kind != HelloKind::Refusal {
            return Err(HelloError::Version(version));
        }
        if zero != [0; 3] {
            return Err(HelloError::Junk("header padding"));
        }
        Ok((kind, input))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HelloError> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(HelloError::Junk("too short"))?;
        self.0 = rest;
        Ok(*head)
    }

    fn u16(&mut self) -> Result<u16, HelloError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, HelloError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self, max: usize, place: &'static str) -> Result<&'a [u8], HelloError> {
        let length = usize::try_from(self.u64()?).map_err(|_| HelloError::Junk(place))?;
        if length > max {
            return Err(HelloError::Junk(place));
        }
        let (head, rest) = self.0.split_at_checked(length).ok_or(HelloError::Junk("too short"))?;
        self.0 = rest;
        Ok(head)
    }

    fn cluster(&mut self) -> Result<String, HelloError> {
        let bytes = self.bytes(CLUSTER_NAME_MAX, "cluster name")?;
        match core::str::from_utf8(bytes) {
            Ok(name) if valid_cluster_name(name) => Ok(name.into()),
            _ => Err(HelloError::Junk("cluster name")),
        }
    }

    fn token(&mut self) -> Result<RegionToken, HelloError> {
        RegionToken::decode(&self.array()?).ok_or(HelloError::Junk("region token"))
    }

    fn regions(&mut self) -> Result<MemberRegions, HelloError> {
        let (home, cache, fence) = (self.token()?, self.token()?, self.token()?);
        let tags = match self.array()? {
            [0] => None,
            [1] => Some(self.token()?),
            _ => return Err(HelloError::Junk("region of tags")),
        };
        Ok(MemberRegions { home, cache, fence, tags })
    }

    fn host(&mut self) -> Result<Option<SocketAddr>, HelloError> {
        decode_host(&self.array()?).map_err(|_| HelloError::Junk("host"))
    }

    fn memory(&mut self) -> Result<SharedMemory, HelloError> {
        decode_memory(self.u16()?).map_err(|_| HelloError::Junk("generation of a memory"))
    }

    fn keeps(&mut self) -> Result<Keeps, HelloError> {
        let ([kind], node, generation) = (self.array()?, self.u16()?, self.u16()?);
        match (kind, node, generation) {
            (0, 0, 0) => Ok(Keeps::Nothing),
            (1, 0, 0) => Ok(Keeps::New),
            (2 | 3, node, generation) if generation < Generation::COUNT => {
                let (node, generation) = (NodeId(node), Generation(generation));
                Ok(Keeps::Known { node, generation, names: kind == 3 })
            }
            _ => Err(HelloError::Junk("state of a joiner")),
        }
    }

    fn end<T>(&self, value: T) -> Result<T, HelloError> {
        if self.0.is_empty() { Ok(value) } else { Err(HelloError::Junk("too long")) }
    }

    fn witness(&mut self) -> Result<bool, HelloError> {
        match self.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(HelloError::Junk("flag of a witness")),
        }
    }

    fn join(&mut self) -> Result<Join, HelloError> {
        let join = Join {
            version: PROTOCOL_VERSION,
            limits: self.u64()?,
            incarnation: Incarnation(self.u64()?),
            home_bytes: self.u64()?,
            witness: self.witness()?,
            keeps: self.keeps()?,
            host: self.host()?,
            cluster: self.cluster()?,
        };
        if join.witness && (join.home_bytes > 0 || join.keeps != Keeps::Nothing) {
            return Err(HelloError::Junk("memory of a witness"));
        }
        self.end(join)
    }

    fn occupancy(&mut self) -> Result<Occupancy, HelloError> {
        let occupancy = Occupancy { members: self.u16()?, members_max: self.u16()? };
        if occupancy.members > occupancy.members_max {
            return Err(HelloError::Junk("count of members"));
        }
        self.end(occupancy)
    }

    fn welcome(&mut self) -> Result<Welcome, HelloError> {
        let view = ViewNumber(self.u64()?);
        let (limits, founder) = (self.u64()?, Incarnation(self.u64()?));
        let node = NodeId(self.u16()?);
        let nodes_max = self.u16()?;
        if node.0 >= nodes_max || usize::from(nodes_max) > NodeSet::CAPACITY {
            return Err(HelloError::Junk("count of node numbers"));
        }
        let leases = Leases { fabric_ns: self.u64()?, member_ns: self.u64()? };
        if !leases.are_possible() {
            return Err(HelloError::Junk("leases"));
        }
        let SharedMemory { memory, state: false, witness: false, .. } = self.memory()? else {
            return Err(HelloError::Junk("generation of a memory"));
        };
        let count = usize::from(self.u16()?);
        if count == 0 || count >= NodeSet::CAPACITY {
            return Err(HelloError::Junk("count of members"));
        }
        let mut members = Vec::with_capacity(count);
        for _ in 0..count {
            let (node, incarnation) = (NodeId(self.u16()?), Incarnation(self.u64()?));
            let born = ViewNumber(self.u64()?);
            let shared = self.memory()?;
            members.push(shared.listed((node, incarnation), born, self.host()?));
        }
        let rising = members.windows(2).all(|pair| pair[0].born < pair[1].born);
        if !rising || members.last().is_some_and(|last| last.born >= view) {
            return Err(HelloError::Junk("order of members"));
        }
        let generations = self.generations()?;
        let settings = FounderSettings { nodes_max, leases };
        self.end(Welcome { node, view, settings, memory, members, generations, limits, founder })
    }

    fn generations(&mut self) -> Result<Vec<LentNumber>, HelloError> {
        let count = usize::from(self.u16()?);
        if count > NodeSet::CAPACITY {
            return Err(HelloError::Junk("count of generations"));
        }
        let mut generations: Vec<LentNumber> = Vec::with_capacity(count);
        for _ in 0..count {
            let (node, bits) = (NodeId(self.u16()?), self.u16()?);
            let (next, state) = (bits & !(STATE | NAMES), bits & STATE != 0);
            let names = bits & NAMES != 0;
            let rising = generations.last().is_none_or(|last| last.node < node);
            if !rising || next == 0 || next > Generation::COUNT || names && !state {
                return Err(HelloError::Junk("generations of numbers"));
            }
            generations.push(LentNumber { node, next, state, names });
        }
        Ok(generations)
    }

    fn peer(&mut self) -> Result<PeerRequest, HelloError> {
        let peer = PeerRequest {
            version: PROTOCOL_VERSION,
            incarnation: Incarnation(self.u64()?),
            view: ViewNumber(self.u64()?),
            node: NodeId(self.u16()?),
            regions: self.regions()?,
            cluster: self.cluster()?,
        };
        self.end(peer)
    }

    fn peer_reply(&mut self) -> Result<PeerReply, HelloError> {
        let reply = PeerReply {
            incarnation: Incarnation(self.u64()?),
            view: ViewNumber(self.u64()?),
            node: NodeId(self.u16()?),
            regions: self.regions()?,
        };
        self.end(reply)
    }

    fn resume(&mut self) -> Result<Resume, HelloError> {
        let resume = Resume {
            version: PROTOCOL_VERSION,
            incarnation: Incarnation(self.u64()?),
            to: Incarnation(self.u64()?),
            received: self.u64()?,
            node: NodeId(self.u16()?),
            cluster: self.cluster()?,
        };
        self.end(resume)
    }

    fn resumed(&mut self) -> Result<Resumed, HelloError> {
        let resumed = Resumed { incarnation: Incarnation(self.u64()?), received: self.u64()? };
        self.end(resumed)
    }

    fn elsewhere(&mut self) -> Result<Elsewhere, HelloError> {
        let host = self.host()?.ok_or(HelloError::Junk("host"))?;
        self.end(Elsewhere { host })
    }

    fn refusal(&mut self) -> Result<JoinRefusal, HelloError> {
        // An error number unknown to this version is still a refusal.
        let code = ErrorCode::from_number(self.u16()?).unwrap_or(ErrorCode::ProtocolViolation);
        let text = core::str::from_utf8(self.bytes(REFUSAL_TEXT_MAX, "text")?)
            .map_err(|_| HelloError::Junk("text"))?
            .into();
        self.end(JoinRefusal { code, text })
    }
}

/// Encoded instead of a generation for a member that lends no memory.
const NO_MEMORY: u16 = u16::MAX;

/// Encoded instead of a generation for a witness.
const WITNESS: u16 = u16::MAX - 1;

/// Added to a generation that belongs to a node with state.
const STATE: u16 = 1 << 15;

/// Added to that if names of roots may be in its memory.
const NAMES: u16 = 1 << 14;

const _: () = assert!(Generation::COUNT < WITNESS & !(STATE | NAMES));

/// What messages say of a member's memory.
#[derive(Clone, Copy)]
pub(super) struct SharedMemory {
    pub(super) memory: Option<Generation>,
    /// Invariant: `memory` is some then.
    pub(super) state: bool,
    /// Invariant: `state` is true then.
    pub(super) names: bool,
    /// Invariant: `memory` is none then.
    pub(super) witness: bool,
}

impl SharedMemory {
    const fn of(memory: Option<Generation>) -> Self {
        Self { memory, state: false, names: false, witness: false }
    }

    /// The member whose memory it is.
    pub(super) const fn listed(
        self,
        (node, incarnation): (NodeId, Incarnation),
        born: ViewNumber,
        host: Option<SocketAddr>,
    ) -> ListedMember {
        let Self { memory, state, names, witness } = self;
        ListedMember { node, incarnation, born, host, memory, state, names, witness }
    }
}

impl ListedMember {
    pub(super) const fn shared(&self) -> SharedMemory {
        let Self { memory, state, names, witness, .. } = *self;
        SharedMemory { memory, state, names, witness }
    }
}

const fn kept_bits(state: bool, names: bool) -> u16 {
    if state { STATE | if names { NAMES } else { 0 } } else { 0 }
}

pub(super) fn encode_memory(shared: SharedMemory) -> u16 {
    let SharedMemory { memory, state, names, witness } = shared;
    debug_assert!(memory.is_some() || !state, "a node with state lends memory");
    debug_assert!(memory.is_none() || !witness, "a witness lends no memory");
    let without = if witness { WITNESS } else { NO_MEMORY };
    memory.map_or(without, |generation| generation.0 | kept_bits(state, names))
}

pub(super) const fn decode_memory(bits: u16) -> Result<SharedMemory, Violation> {
    let generation = bits & !(STATE | NAMES);
    let (state, names) = (bits & STATE != 0, bits & NAMES != 0);
    match bits {
        NO_MEMORY => Ok(SharedMemory::of(None)),
        WITNESS => Ok(SharedMemory { memory: None, state: false, names: false, witness: true }),
        _ if names && !state => Err(Violation("names in memory without state")),
        _ if generation < Generation::COUNT => {
            let memory = Some(Generation(generation));
            Ok(SharedMemory { memory, state, names, witness: false })
        }
        _ => Err(Violation("an invalid memory generation")),
    }
}

#[cfg(test)]
mod tests;
