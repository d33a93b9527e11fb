//! Work requests and completions, shaped like verbs (IBTA 10.7, 10.8).

use crate::{FlushScope, LinkId, ReceiveQueueId, RegionId, RemoteKey, RemoteRegionId, WorkId};

/// What a peer may do to a region. The owner may always read and write it.
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
    /// Peers may FLUSH what they wrote to where everybody sees it (IBTA annex A19).
    pub const FLUSH: Self = Self(8);
    /// Peers may FLUSH what they wrote to where it survives the loss of power. Of memory that cannot
    /// keep it, such a region is refused.
    pub const FLUSH_PERSISTENT: Self = Self(16);
    /// Grants nothing; gives up order for speed (`IBV_ACCESS_RELAXED_ORDERING`, PCI Express relaxed
    /// ordering). Bytes that peers WRITE to the region or READ from it move in any order, words may be
    /// torn, and such WRITEs keep no order among each other, whatever the fabric declares, until
    /// something behind them is seen: a completion at the target, what an atomic changed, or a WRITE
    /// to memory without this. For buffers that are looked at after a message has told of them.
    pub const RELAXED_ORDERING: Self = Self(32);
    /// Every bit that there is.
    const EVERY: u8 = 63;

    /// Both together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether everything in `other` is allowed.
    pub const fn allows(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// As a byte, for the wire.
    pub const fn to_bits(self) -> u8 {
        self.0
    }

    /// From a byte of the wire; unknown bits are refused.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= Self::EVERY { Some(Self(bits)) } else { None }
    }
}

/// What memory a region is made of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum RegionKind {
    /// Ordinary memory; huge pages where the system agrees.
    #[default]
    Memory,
    /// Memory whose end joins its beginning: the bytes that were asked for are one turn, rounded up
    /// to whole pages and mapped twice in a row, so that an access that passes the end of the first
    /// turn goes on at its beginning. Arena and token cover both turns. A word has two places, and
    /// atomics at the one may not be atomic against those at the other. Needs
    /// `Capabilities::mirrored_regions` (001 §4, "software tricks").
    Mirrored,
    /// A small memory at the adapter, nearer to the network than main memory: atomics of peers there
    /// do not cross the bus. Bounded by `Capabilities::device_bytes_max` (001 §4, "hardware tricks").
    Device,
}

impl RegionKind {
    /// As a byte, for the wire.
    pub const fn to_bits(self) -> u8 {
        match self {
            Self::Memory => 0,
            Self::Mirrored => 1,
            Self::Device => 2,
        }
    }

    /// From a byte of the wire; unknown kinds are refused.
    pub const fn from_bits(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Memory),
            1 => Some(Self::Mirrored),
            2 => Some(Self::Device),
            _ => None,
        }
    }

    /// How often its memory is mapped in a row.
    pub const fn turns(self) -> u64 {
        match self {
            Self::Mirrored => 2,
            Self::Memory | Self::Device => 1,
        }
    }
}

/// All a peer needs to reach a region, to be handed over by whoever trusts that peer.
/// Holding it is the right to use the region within its access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RegionToken {
    /// The region's number at its owner.
    pub region: RegionId,
    /// Its random key; changes with each registration.
    pub key: RemoteKey,
    /// Bytes of the region.
    pub bytes: u64,
    /// What peers may do.
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

    /// Reads the wire form; `None` when it is none.
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

/// Bytes of a local region.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LocalSlice {
    /// The region.
    pub region: RegionId,
    /// First byte.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u32,
}

/// A place in a peer's region; how many bytes is said by the local side of the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteSlice {
    /// The imported region.
    pub region: RemoteRegionId,
    /// First byte.
    pub offset: u64,
}

/// Where the bytes of a SEND or WRITE come from.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Local slices, one after the other; must stay unchanged until the completion.
    Gather(&'a [LocalSlice]),
    /// Bytes copied out before `post` returns, at most `inline_bytes_max`.
    Inline(&'a [u8]),
}

/// What is asked of the fabric. Results of READ and atomics go to local slices; an atomic's slice
/// has 8 bytes, 8-byte aligned, as has its remote word (IBTA 9.4.5).
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// Put bytes into the peer's region; with `immediate` it also takes a receive there and says so.
    Write {
        /// What.
        source: Source<'a>,
        /// Where to.
        to: RemoteSlice,
        /// 32 bits for the peer's receive completion.
        immediate: Option<u32>,
    },
    /// Get bytes of the peer's region.
    Read {
        /// Where to, one slice after the other.
        into: &'a [LocalSlice],
        /// Where from.
        from: RemoteSlice,
    },
    /// Add to a 64-bit word and get the value before.
    FetchAdd {
        /// The word.
        at: RemoteSlice,
        /// What is added, wrapping.
        add: u64,
        /// Where the former value goes.
        into: LocalSlice,
    },
    /// Replace a 64-bit word if it has the expected value, and get the value before.
    CompareSwap {
        /// The word.
        at: RemoteSlice,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
        /// Where the former value goes.
        into: LocalSlice,
    },
    /// Replace a 64-bit word and get the value before.
    Swap {
        /// The word.
        at: RemoteSlice,
        /// The new value.
        new: u64,
        /// Where the former value goes.
        into: LocalSlice,
    },
    /// Compare under one mask, replace under another, and get the value before.
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
        /// Where the former value goes.
        into: LocalSlice,
    },
    /// Add within fields: carries do not cross a set bit of `boundaries`, the top bit of a field.
    MaskedFetchAdd {
        /// The word.
        at: RemoteSlice,
        /// What is added.
        add: u64,
        /// The top bits of the fields.
        boundaries: u64,
        /// Where the former value goes.
        into: LocalSlice,
    },
    /// Replace an aligned 64-bit word, whole, after everything that was posted on the link before
    /// (IBTA annex A19). No former value comes back.
    AtomicWrite {
        /// The word.
        to: RemoteSlice,
        /// The new value.
        value: u64,
    },
    /// Completes when every WRITE, atomic and ATOMIC WRITE that was posted on the link before and
    /// touched these bytes is where `scope` says (IBTA annex A19). Moves nothing.
    Flush {
        /// First byte.
        from: RemoteSlice,
        /// How many bytes; zero for the whole region.
        bytes: u64,
        /// How far.
        scope: FlushScope,
    },
    /// Put a message into the next posted receive of the peer.
    Send {
        /// What.
        source: Source<'a>,
        /// 32 bits for the peer's receive completion.
        immediate: Option<u32>,
    },
}

/// How a work request is treated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WorkFlags {
    /// Report success too; failures are always reported.
    pub signalled: bool,
    /// Start only after earlier READs and atomics of this link have completed.
    pub fence: bool,
    /// A hint: somebody at the target looks for these bytes now, so that they should be there soon
    /// rather than the next request begin soon.
    pub awaited: bool,
}

/// One work request.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The caller's name for it.
    pub id: WorkId,
    /// The connection.
    pub link: LinkId,
    /// How.
    pub flags: WorkFlags,
    /// What.
    pub operation: Operation<'a>,
}

/// One receive: where the next message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receive {
    /// The caller's name for it.
    pub id: WorkId,
    /// The queue it joins.
    pub queue: ReceiveQueueId,
    /// Where the bytes go; zero bytes take only immediates.
    pub into: LocalSlice,
}

/// Which request a completion ends.
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

/// How a request ended. After the first failure of a link everything else on it is `Flushed`, so
/// only the first tells the cause (IBTA 10.7.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum CompletionStatus {
    /// Done.
    Success,
    /// The remote region, its bounds, permission or key did not allow it.
    RemoteAccess,
    /// The remote word is not 8-byte aligned.
    RemoteAlignment,
    /// The message is longer than the receive that it met.
    LengthExceeded,
    /// The peer posted no receive in time.
    ReceiverNotReady,
    /// The peer is gone.
    PeerLost,
    /// Nothing was heard of the peer for too long: the tries of the fabric are used up, or the
    /// deadline of the request has passed. Whether it took effect is not known.
    Unreachable,
    /// The adapter or the fabric's engine failed in itself; `Port::trouble` has the words.
    Broken,
    /// An earlier request of this link failed, or the link was closed.
    Flushed,
}

/// The end of a work request or receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The request's name.
    pub id: WorkId,
    /// The link it ran on; for a receive, the link of the sender.
    pub link: LinkId,
    /// Bytes moved.
    pub bytes: u32,
    /// The immediate of a receive, if it came with one.
    pub immediate: Option<u32>,
    /// Which request.
    pub kind: CompletionKind,
    /// How it ended.
    pub status: CompletionStatus,
}

impl Completion {
    /// A completion to fill arrays with.
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
        for kind in [RegionKind::Memory, RegionKind::Mirrored, RegionKind::Device] {
            assert_eq!(RegionKind::from_bits(kind.to_bits()), Some(kind));
        }
        assert!((3..=255).all(|bits| RegionKind::from_bits(bits).is_none()));
    }

    #[test]
    fn access_is_a_set() {
        assert!(Access::ALL.allows(Access::WRITE.with(Access::READ)));
        assert!(!Access::READ.allows(Access::WRITE));
        assert!(Access::NONE.allows(Access::NONE));
    }
}
