//! The regions that nodes export to each other, and the words in them that two processes share.

use super::fabric_error;
use crate::direct::DirectHome;
use crate::hit::{END_BYTES, end_word, remove_member, tag_bytes};
use crate::registered::Registered;
use crate::{Error, ErrorCode};
use farside_base::{
    Access, LinkId, MemberRegions, MemoryId, NodeId, NodeSet, Operation, RegionKind,
    RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Arena, Fabric, FabricError, PeerProcess, Port, RegionSpec, SharedWord};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Offset of the fence word in a member's fence region.
const FENCE_WORD: u64 = 0;
/// Bytes of a fence region.
const FENCE_BYTES: u64 = 4096;
/// Offset of the query words in a fence region, one per member, which members WRITE as membership queries.
const QUESTIONS: u64 = 64;
/// Offset of the pair words in a fence region, one per number of a member admitted later. Members on one
/// machine query no quorum, so the area of those queries is free.
const PAIRS: u64 = 64;
/// Offset of the owner's poll count, in cache lines apart from those that hits read.
const POLLS: u64 = FENCE_BYTES - 128;

const _: () = assert!(QUESTIONS + NodeSet::CAPACITY as u64 * 8 <= FENCE_BYTES);
const _: () = assert!(PAIRS + NodeSet::CAPACITY as u64 * 8 <= POLLS);
const _: () = assert!(POLLS.is_multiple_of(128));

/// The registered regions of a node that peers write. They end with it: a fabric may outlive its nodes.
#[derive(Clone, Debug)]
pub(crate) struct Regions {
    /// The memory this node is home of; peers write it under recalls.
    pub(crate) home: Arc<Registered>,
    /// Frames of cached lines; homes and owners write them under grants.
    pub(crate) cache: Arc<Registered>,
    /// The fence word of this node, which peers that remove it write.
    pub(crate) fence: Arc<Registered>,
    /// The tags of the home memory.
    pub(crate) tags: Arena,
    /// The same as a region, if peers read the home memory directly. Its last word says that the memory has
    /// ended: the other regions may be empty then, while peers still have all of them mapped.
    lent_tags: Option<Arc<Registered>>,
}

/// Registers memory for a node.
///
/// # Errors
/// `System`, `FabricLacks`.
pub(super) fn register(
    fabric: &Arc<dyn Fabric>,
    bytes: u64,
    access: Access,
) -> Result<Registered, Error> {
    let spec = RegionSpec { bytes, access, kind: RegionKind::Memory };
    Registered::of(fabric, &spec).map_err(fabric_error)
}

impl Regions {
    /// Registers the regions of a node with this memory and cache; `lends`: peers read the memory directly.
    ///
    /// # Errors
    /// As [`register`].
    pub(crate) fn new(
        fabric: &Arc<dyn Fabric>,
        home_bytes: u64,
        cache_bytes: u64,
        lends: bool,
    ) -> Result<Self, Error> {
        let both = Access::READ.with(Access::WRITE);
        let home = register(fabric, home_bytes, if lends { both } else { Access::WRITE })?;
        let fence = Arc::new(register(fabric, FENCE_BYTES, both)?);
        let cache = Arc::new(register(fabric, cache_bytes, Access::WRITE)?);
        let bytes = tag_bytes(home_bytes);
        let with_end = bytes + END_BYTES;
        let spec = RegionSpec { bytes: with_end, access: Access::READ, kind: RegionKind::Sparse };
        let lent_tags = lends.then(|| Registered::of(fabric, &spec).map(Arc::new)).transpose();
        let lent_tags = lent_tags.map_err(fabric_error)?;
        let tags = match &lent_tags {
            Some(region) => {
                let part = region.arena.part(0, bytes as usize);
                part.map_err(|_| fabric_error(FabricError::Limit("region of tags")))?
            }
            None => Arena::try_heap(bytes as usize).map_err(|reason| {
                let detail = format!("no memory for {bytes} B of tags: lower memory_bytes");
                Error::with(ErrorCode::System, format!("{detail} ({reason})"))
            })?,
        };
        Ok(Self { home: Arc::new(home), cache, fence, tags, lent_tags })
    }

    /// The fence word of this node.
    pub(crate) fn fence_word(&self) -> Option<SharedWord> {
        SharedWord::new(&self.fence.arena, FENCE_WORD).ok()
    }

    /// The tokens of the regions, for peers.
    pub(super) fn tokens(&self) -> MemberRegions {
        MemberRegions {
            home: self.home.token,
            cache: self.cache.token,
            fence: self.fence.token,
            tags: self.lent_tags.as_ref().map(|tags| tags.token),
        }
    }

    /// Ends direct reads by peers, before the memory ends.
    pub(super) fn end(&self) {
        if let Some(tags) = &self.lent_tags {
            let stored = tags.arena.store(end_word(tags.arena.len()), 1, Ordering::Release);
            debug_assert!(stored.is_ok(), "the region has a word behind the tags");
        }
    }

    /// The published count of this node's polls.
    pub(super) fn poll_count(&self) -> Option<SharedWord> {
        SharedWord::new(&self.fence.arena, POLLS).ok()
    }

    /// The word of the pair of this node and a member that was admitted later.
    pub(super) fn pair(&self, last: NodeId) -> Option<SharedWord> {
        SharedWord::new(&self.fence.arena, pair_of(last)).ok()
    }

    /// Posts a membership query of node `me` over a link: a WRITE to the fence region; returns whether it was
    /// accepted.
    pub(super) fn ask(&self, port: &mut dyn Port, me: NodeId, link: &PeerLink, id: WorkId) -> bool {
        let offset = QUESTIONS + u64::from(me.0) * 8;
        let source = [farside_base::LocalSlice { region: self.fence.id, offset, bytes: 8 }];
        let to = RemoteSlice { region: link.fence, offset };
        let work = Work {
            id,
            link: link.id,
            flags: WorkFlags { signalled: true, ..WorkFlags::default() },
            operation: Operation::Write { source: Source::Gather(&source), to, immediate: None },
        };
        port.post(&[work]).accepted == 1
    }
}

/// Offset of the word that the member with this number shares with one admitted before it.
fn pair_of(last: NodeId) -> u64 {
    PAIRS + u64::from(last.0) * 8
}

/// A link to a peer, with its imported regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLink {
    pub(super) id: LinkId,
    home: RemoteRegionId,
    cache: RemoteRegionId,
    fence: RemoteRegionId,
    tags: Option<RemoteRegionId>,
    /// The question that the peer's adapter has not answered yet. Only one at a time: soft-RoCE starts its
    /// retransmission timer again with each request, so that requests in short intervals put off for ever what a lost
    /// packet needs.
    pub(super) question: Option<Question>,
}

/// When a peer was asked whether this node is a member still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Question {
    /// In ticks of the hit path's clock.
    pub(crate) asked: u64,
    /// In time of the fabric.
    pub(crate) asked_ns: u64,
}

impl PeerLink {
    /// Imports the regions over a connected link; `None` if that fails.
    pub(super) fn import(port: &mut dyn Port, id: LinkId, tokens: &MemberRegions) -> Option<Self> {
        let home = port.import(id, &tokens.home).ok()?;
        let cache = port.import(id, &tokens.cache).ok()?;
        let fence = port.import(id, &tokens.fence).ok()?;
        let tags = tokens.tags.map(|tags| port.import(id, &tags)).transpose().ok()?;
        Some(Self { id, home, cache, fence, tags, question: None })
    }

    /// The memory that the peer lends, if this processor reaches it and its tags by loads.
    pub(super) fn direct_home(&self, port: &dyn Port, memory: MemoryId) -> Option<DirectHome> {
        let tags = port.reach(self.id, self.tags?)?;
        let bytes = port.reach(self.id, self.home)?;
        let fence = port.reach_word(self.id, self.fence, FENCE_WORD)?;
        Some(DirectHome::new(memory, tags, bytes, fence))
    }

    pub(super) fn region(&self, cache: bool) -> RemoteRegionId {
        if cache { self.cache } else { self.home }
    }
}

/// A member that is being linked: its link is connected, and imports of its regions are pending. The imports
/// take as long as the other process is not scheduled, so the engine does not wait for them; messages to the
/// member are queued in its messenger.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) node: NodeId,
    pub(crate) link: LinkId,
    /// This node dialled it, and waits to be linked to it.
    pub(crate) asked_here: bool,
    tokens: MemberRegions,
    /// The regions imported so far, in the order of [`MemberRegions`].
    imported: Vec<RemoteRegionId>,
}

impl Import {
    pub(crate) fn new(node: NodeId, link: LinkId, tokens: MemberRegions, asked_here: bool) -> Self {
        Self { node, link, asked_here, tokens, imported: Vec::with_capacity(4) }
    }

    pub(super) fn tokens(&self) -> MemberRegions {
        self.tokens
    }

    /// The link with its regions; `None` while some are pending.
    pub(super) fn advance(&mut self, port: &mut dyn Port) -> Result<Option<PeerLink>, FabricError> {
        let MemberRegions { home, cache, fence, tags } = self.tokens;
        let all = [Some(home), Some(cache), Some(fence), tags];
        while let Some(token) = all.iter().flatten().nth(self.imported.len()) {
            match port.try_import(self.link, token)? {
                Some(region) => self.imported.push(region),
                None => return Ok(None),
            }
        }
        let [home, cache, fence, ref tags @ ..] = self.imported[..] else {
            return Ok(None);
        };
        let tags = tags.first().copied();
        Ok(Some(PeerLink { id: self.link, home, cache, fence, tags, question: None }))
    }
}

/// The words of a peer that this node may access directly. They outlive the link.
#[derive(Debug)]
pub(crate) struct PeerWords {
    /// Its fence word; `None` if this processor cannot access it.
    fence: Option<SharedWord>,
    /// The words that this node watches; `None` if this processor cannot access them.
    watched: Option<WatchedWords>,
}

#[derive(Debug)]
struct WatchedWords {
    /// The peer's poll count.
    polls: SharedWord,
    /// The word of the pair, for a member admitted before this node.
    pair: Option<SharedWord>,
    process: PeerProcess,
}

impl PeerWords {
    /// For a linked peer, which was admitted before node `me` if `is_before`.
    pub(super) fn of(port: &dyn Port, link: &PeerLink, me: NodeId, is_before: bool) -> Self {
        let reach = |offset| port.reach_word(link.id, link.fence, offset);
        let watched = || {
            let pair = if is_before { Some(reach(pair_of(me))?) } else { None };
            let process = port.peer_process(link.id);
            Some(WatchedWords { polls: reach(POLLS)?, pair, process })
        };
        Self { fence: reach(FENCE_WORD), watched: watched() }
    }

    /// Stores the fence word of the peer, which is being removed.
    pub(crate) fn fence_off(&self) {
        if let Some(word) = &self.fence {
            remove_member(|value, order| word.store(value, order));
        }
    }

    /// The word of the pair, for a member admitted before this node.
    pub(super) fn pair(&self) -> Option<&SharedWord> {
        self.watched.as_ref()?.pair.as_ref()
    }

    /// The peer's count of its polls; zero if this node cannot access it.
    pub(crate) fn polls(&self) -> u64 {
        self.watched.as_ref().map_or(0, |watched| watched.polls.load(Ordering::Relaxed))
    }

    /// Whether the peer is watched: another process of this machine.
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.as_ref().is_some_and(|watched| watched.process != PeerProcess::Elsewhere)
    }

    /// The number of the peer's process, if it is known.
    pub(crate) fn process(&self) -> Option<u32> {
        match self.watched.as_ref()?.process {
            PeerProcess::Number(number) => Some(number),
            PeerProcess::Elsewhere | PeerProcess::Hidden => None,
        }
    }
}
