//! Work requests and completions, shaped like verbs (IBTA 10.7, 10.8).

use crate::{FlushScope, LinkId, ReceiveQueueId, RegionId, RemoteKey, RemoteRegionId, WorkId};

/// The access of peers to a region. The owner may always read and write it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access(u8);

impl Access {
    /// Peers may do nothing.
    pub const NONE: Self = Self(0);
    /// Peers may READ.
    pub const READ: Self = Self(1);
    /// Peers may WRITE.
    pub const WRITE: Self = Self(2);
    /// Peers may use atomics and ATOMIC WRITE.
    pub const ATOMIC: Self = Self(4);
    /// Peers may READ, WRITE and use atomics.
    pub const ALL: Self = Self(7);
    /// Peers may FLUSH their writes to global visibility (IBTA annex A19).
    pub const FLUSH: Self = Self(8);
    /// Peers may FLUSH their writes to persistence. Refused for memory that is not persistent.
    pub const FLUSH_PERSISTENT: Self = Self(16);
    /// Grants nothing; trades order for speed (`IBV_ACCESS_RELAXED_ORDERING`, PCI Express relaxed
    /// ordering). Bytes that peers WRITE to the region or READ from it move in any order, words may tear,
    /// and such WRITEs have no order among each other, whatever the fabric declares, until a later event is
    /// seen: a completion at the target, the effect of an atomic, or a WRITE to memory without this flag.
    /// For buffers that are read after a message has announced them.
    pub const RELAXED_ORDERING: Self = Self(32);
    /// Every defined bit.
    const EVERY: u8 = 63;

    /// The union of both.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether everything in `other` is allowed.
    pub const fn allows(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Encodes it as a byte for the wire.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// Decodes a byte of the wire; unknown bits are refused.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= Self::EVERY { Some(Self(bits)) } else { None }
    }
}

/// The kind of memory of a region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum RegionKind {
    /// Ordinary memory; huge pages if the system agrees.
    #[default]
    Memory,
    /// Memory that wraps around: the requested bytes, rounded up to whole pages, are mapped twice in a row,
    /// so that an access that passes the end of the first mapping continues at its beginning. Arena and
    /// token cover both mappings. A word has two addresses, and atomics at the one may not be atomic
    /// against those at the other. Needs `Capabilities::mirrored_regions` (001 §4, "software tricks").
    Mirrored,
    /// A small memory at the adapter, nearer to the network than main memory: peers' atomics there do not
    /// cross the bus. Bounded by `Capabilities::device_bytes_max` (001 §4, "hardware tricks").
    Device,
    /// Ordinary memory for large tables of which little is used: in small pages, which take memory when
    /// they are first written if the fabric can do so.
    Sparse,
}

impl RegionKind {
    /// Encodes it as a byte for the wire.
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::Memory => 0,
            Self::Mirrored => 1,
            Self::Device => 2,
            Self::Sparse => 3,
        }
    }

    /// Decodes a byte of the wire; unknown kinds are refused.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Memory),
            1 => Some(Self::Mirrored),
            2 => Some(Self::Device),
            3 => Some(Self::Sparse),
            _ => None,
        }
    }

    /// The number of consecutive mappings of its memory.
    pub const fn turns(self) -> u64 {
        match self {
            Self::Mirrored => 2,
            Self::Memory | Self::Device | Self::Sparse => 1,
        }
    }
}

/// What a peer needs to access a region; hand it only to trusted peers. Possession is the right to use the
/// region within its access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionToken {
    /// The region's id at its owner.
    pub region: RegionId,
    /// Its random key; changes with each registration.
    pub key: RemoteKey,
    /// Bytes of the region.
    pub bytes: u64,
    /// The access of peers.
    pub access: Access,
}

impl RegionToken {
    /// Bytes of the encoded form.
    pub const ENCODED: usize = 24;

    /// The wire form: little-endian region, key, length, access in the length's top byte.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        out[..4].copy_from_slice(&self.region.0.to_le_bytes());
        out[4] = self.access.to_bits();
        out[8..16].copy_from_slice(&self.key.0.to_le_bytes());
        out[16..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// Decodes the wire form; `None` if it is invalid.
    pub fn decode(bytes: &[u8; Self::ENCODED]) -> Option<Self> {
        let word = |at: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(eight)
        };
        if bytes[5..8] != [0; 3] {
            return None;
        }
        Some(Self {
            region: RegionId(u32::try_from(word(0) & 0xffff_ffff).ok()?),
            key: RemoteKey(word(8)),
            bytes: word(16),
            access: Access::from_bits(bytes[4])?,
        })
    }
}

/// The regions that a member exports to the others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemberRegions {
    /// Its memory.
    pub home: RegionToken,
    /// Its cache: frames of all line sizes.
    pub cache: RegionToken,
    /// Its fence words.
    pub fence: RegionToken,
    /// The tags of its memory, if others can reach both by loads.
    pub tags: Option<RegionToken>,
}

/// A range of bytes in a local region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalSlice {
    /// The region.
    pub region: RegionId,
    /// First byte.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
}

/// A location in a peer's region; the local side of the request has the number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteSlice {
    /// The imported region.
    pub region: RemoteRegionId,
    /// First byte.
    pub offset: u64,
}

/// The source of the bytes of a SEND or WRITE.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Local slices, concatenated; must stay unchanged until the completion.
    Gather(&'a [LocalSlice]),
    /// Bytes copied before `post` returns, at most `inline_bytes_max`.
    Inline(&'a [u8]),
}

/// The operation of a work request. Results of READ and atomics go to local slices; an atomic's slice has 8
/// bytes, 8-byte aligned, as has its remote word (IBTA 9.4.5).
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Put bytes into the peer's region; with `immediate` it also consumes a receive there and completes
    /// it.
    Write {
        /// The bytes.
        source: Source<'a>,
        /// The destination.
        to: RemoteSlice,
        /// 32 bits for the peer's receive completion.
        immediate: Option<u32>,
    },
    /// Get bytes of the peer's region.
    Read {
        /// The destination, one slice after the other.
        into: &'a [LocalSlice],
        /// The source.
        from: RemoteSlice,
    },
    /// Add to a 64-bit word and get the previous value.
    FetchAdd {
        /// The word.
        at: RemoteSlice,
        /// The addend, wrapping.
        add: u64,
        /// The slice for the previous value.
        into: LocalSlice,
    },
    /// Replace a 64-bit word if it has the expected value, and get the previous value.
    CompareSwap {
        /// The word.
        at: RemoteSlice,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
        /// The slice for the previous value.
        into: LocalSlice,
    },
    /// Replace a 64-bit word and get the previous value.
    Swap {
        /// The word.
        at: RemoteSlice,
        /// The new value.
        new: u64,
        /// The slice for the previous value.
        into: LocalSlice,
    },
    /// Compare under one mask, replace under another, and get the previous value.
    MaskedCompareSwap {
        /// The word.
        at: RemoteSlice,
        /// The expected value; only bits of `compare_mask` count.
        expected: u64,
        /// The bits that are compared.
        compare_mask: u64,
        /// The new value; only bits of `swap_mask` are written.
        new: u64,
        /// The bits that are replaced.
        swap_mask: u64,
        /// The slice for the previous value.
        into: LocalSlice,
    },
    /// Add within fields: carries do not cross a set bit of `boundaries`, the top bit of a field.
    MaskedFetchAdd {
        /// The word.
        at: RemoteSlice,
        /// The addend.
        add: u64,
        /// The top bits of the fields.
        boundaries: u64,
        /// The slice for the previous value.
        into: LocalSlice,
    },
    /// Replace an aligned 64-bit word, whole, after all requests posted earlier on the link (IBTA annex
    /// A19). No previous value is returned.
    AtomicWrite {
        /// The word.
        to: RemoteSlice,
        /// The new value.
        value: u64,
    },
    /// Completes when every WRITE, atomic and ATOMIC WRITE that was posted earlier on the link and touched
    /// these bytes has reached `scope` (IBTA annex A19). Moves nothing.
    Flush {
        /// First byte.
        from: RemoteSlice,
        /// The number of bytes; zero for the whole region.
        bytes: u64,
        /// The scope.
        scope: FlushScope,
    },
    /// Put a message into the next posted receive of the peer.
    Send {
        /// The message.
        source: Source<'a>,
        /// 32 bits for the peer's receive completion.
        immediate: Option<u32>,
    },
}

/// Flags of a work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkFlags {
    /// Signaled: report success too; failures are always reported.
    pub signalled: bool,
    /// Start only after earlier READs and atomics of this link have completed.
    pub fence: bool,
    /// A hint: a thread at the target polls for these bytes, so optimise their latency rather than the
    /// start of the next request.
    pub awaited: bool,
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The caller's id of it.
    pub id: WorkId,
    /// The connection.
    pub link: LinkId,
    /// The flags.
    pub flags: WorkFlags,
    /// The operation.
    pub operation: Operation<'a>,
}

/// A receive: the buffer for the next message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// The caller's id of it.
    pub id: WorkId,
    /// Its receive queue.
    pub queue: ReceiveQueueId,
    /// The buffer; zero bytes take only immediates.
    pub into: LocalSlice,
}

/// The kind of a completed request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CompletionKind {
    /// A WRITE.
    Write,
    /// A READ.
    Read,
    /// An atomic of any kind.
    Atomic,
    /// An ATOMIC WRITE.
    AtomicWrite,
    /// A FLUSH.
    Flush,
    /// A SEND.
    Send,
    /// A receive that took a SEND.
    Receive,
    /// A receive that took a WRITE with immediate.
    ReceiveImmediate,
}

/// The outcome of a request. After the first failure of a link everything else on it is `Flushed`, so only
/// the first has the cause (IBTA 10.7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The remote region, its bounds, permission or key did not allow it.
    RemoteAccess,
    /// The remote word is not 8-byte aligned.
    RemoteAlignment,
    /// The message is longer than its receive.
    LengthExceeded,
    /// The peer posted no receive in time.
    ReceiverNotReady,
    /// The peer is gone.
    PeerLost,
    /// The peer was silent for too long: the retries of the fabric are exhausted, or the deadline of the
    /// request has passed. Whether it took effect is unknown.
    Unreachable,
    /// The adapter or the fabric's engine itself failed; `Port::trouble` has the text.
    Broken,
    /// An earlier request of this link failed, or the link was closed.
    Flushed,
}

/// The completion of a work request or receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's id.
    pub id: WorkId,
    /// Its link; for a receive, the link of the sender.
    pub link: LinkId,
    /// Bytes moved.
    pub bytes: u32,
    /// The immediate of a receive, if it has one.
    pub immediate: Option<u32>,
    /// The kind of the request.
    pub kind: CompletionKind,
    /// The outcome.
    pub status: CompletionStatus,
}

impl Completion {
    /// A completion to initialise arrays with.
    pub const BLANK: Self = Self {
        id: WorkId(0),
        link: LinkId(0),
        bytes: 0,
        immediate: None,
        kind: CompletionKind::Send,
        status: CompletionStatus::Success,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_survives_the_wire_and_junk_does_not() {
        let token = RegionToken {
            region: RegionId(7),
            key: RemoteKey(u64::MAX - 3),
            bytes: 1 << 40,
            access: Access::READ.with(Access::ATOMIC),
        };
        assert_eq!(RegionToken::decode(&token.encode()), Some(token));
        let mut junk = token.encode();
        junk[4] = 64;
        assert_eq!(RegionToken::decode(&junk), None);
        junk[4] = 7;
        junk[6] = 1;
        assert_eq!(RegionToken::decode(&junk), None);
    }

    #[test]
    fn kinds_of_regions_survive_the_wire_and_junk_does_not() {
        for bits in 0..4 {
            let kind = RegionKind::from_bits(bits).unwrap();
            assert_eq!(kind.to_bits(), bits);
        }
        assert!((4..=255).all(|bits| RegionKind::from_bits(bits).is_none()));
    }

    #[test]
    fn access_is_a_set() {
        assert!(Access::ALL.allows(Access::WRITE.with(Access::READ)));
        assert!(!Access::READ.allows(Access::WRITE));
        assert!(Access::NONE.allows(Access::NONE));
    }
}
