//! The other nodes, as the engine reaches them: links, imported regions, messengers.

use crate::stopped::Watched;
use farside_base::{
    ErrorCode, Incarnation, LinkId, LocalSlice, MemoryId, NodeId, NodeSet, Receive, ReceiveQueueId,
    RegionId, RegionToken, RemoteRegionId, WorkId,
};
use farside_fabric::{LinkEvent, Port, SharedWord};
use farside_protocol::messaging::Messenger;
use farside_protocol::wire::{BODY, Class, Family, MESSAGE, Violation};
use std::collections::BTreeSet;

/// Distance between receive buffers in bytes.
pub(crate) const MESSAGE_SLOT: u64 = 64;
/// Marks the work ids of placements.
pub(crate) const PLACED: u64 = 1 << 63;
/// Marks the work ids of membership queries; the queried node is in the low bits.
pub(crate) const ASKED: u64 = 1 << 62;
/// The work id of every message, which is unsignaled.
pub(crate) const SENT: WorkId = WorkId(u64::MAX);

/// One connected node.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Tells restarts of its process apart.
    pub(crate) incarnation: Incarnation,
    /// The memory that it lends.
    pub(crate) memory: Option<MemoryId>,
    /// Tokens of the regions that this node may write.
    pub(crate) tokens: Tokens,
    /// `None` while the link is broken; it may reconnect.
    pub(crate) link: Option<PeerLink>,
    /// The peer ended the link. If nothing listens at its address any more, its process has certainly
    /// ended.
    pub(crate) ended: bool,
    pub(crate) messenger: Messenger,
    /// Its fence word, which outlives the link; `None` if this processor cannot access it.
    pub(crate) fence_word: Option<SharedWord>,
    /// The words of it that this node watches; outlives the link too.
    pub(crate) watched: Option<Watched>,
    /// Its link, if that was closed before this node had imported its regions. It may have imported those
    /// of this node.
    pub(crate) closed: Option<LinkId>,
}

/// The regions of a peer, as it exports them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tokens {
    pub(crate) home: RegionToken,
    pub(crate) cache: RegionToken,
    pub(crate) fence: RegionToken,
}

/// A link to a peer, with its imported regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerLink {
    pub(crate) id: LinkId,
    pub(crate) home: RemoteRegionId,
    pub(crate) cache: RemoteRegionId,
    pub(crate) fence: RemoteRegionId,
    /// The question that the peer's adapter has not answered yet. Only one at a time: soft-RoCE starts its
    /// retransmission timer again with each request, so that requests in short intervals put off for ever what a lost
    /// packet needs.
    pub(crate) question: Option<Question>,
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
    pub(crate) fn import(port: &mut dyn Port, id: LinkId, tokens: &Tokens) -> Option<Self> {
        let home = port.import(id, &tokens.home).ok()?;
        let cache = port.import(id, &tokens.cache).ok()?;
        let fence = port.import(id, &tokens.fence).ok()?;
        Some(Self { id, home, cache, fence, question: None })
    }

    pub(crate) fn region(&self, cache: bool) -> RemoteRegionId {
        if cache { self.cache } else { self.home }
    }
}

/// All other nodes.
pub(crate) struct Peers {
    connected: Vec<Option<Peer>>,
    by_link: Vec<Option<NodeId>>,
    /// Numbers whose last node is dead, and those of them whose last node has left.
    dead: NodeSet,
    left: NodeSet,
    /// Memories whose nodes have left; other memories that are gone are lost.
    memories_left: BTreeSet<MemoryId>,
    /// Peers whose messenger may have messages to post.
    pub(crate) ready: NodeSet,
    /// The port at which new nodes ask to join; only the coordinator has one.
    pub(crate) rendezvous: Option<(Box<dyn Port>, ReceiveQueueId)>,
    pub(crate) events: Vec<LinkEvent>,
    pub(crate) receives: ReceiveQueueId,
    /// Receive buffers handed out so far.
    buffers: u64,
    /// Messages over links whose `Connected` event has not arrived yet.
    pub(crate) early: Vec<(LinkId, [u8; MESSAGE])>,
    /// Peers that broke the protocol.
    muted: NodeSet,
    /// The same, with the reasons for people.
    pub(crate) accused: Vec<(NodeId, Violation)>,
}

impl Peers {
    pub(crate) fn new(nodes_max: u16, receives: ReceiveQueueId) -> Self {
        Self {
            connected: (0..nodes_max).map(|_| None).collect(),
            by_link: Vec::new(),
            dead: NodeSet::EMPTY,
            left: NodeSet::EMPTY,
            memories_left: BTreeSet::new(),
            ready: NodeSet::EMPTY,
            rendezvous: None,
            events: Vec::new(),
            receives,
            buffers: 0,
            early: Vec::new(),
            muted: NodeSet::EMPTY,
            accused: Vec::new(),
        }
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<&Peer> {
        self.connected.get(usize::from(node.0))?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.connected.get_mut(usize::from(node.0))?.as_mut()
    }

    /// The node at the other end of a link.
    pub(crate) fn node(&self, link: LinkId) -> Option<NodeId> {
        self.by_link.get(link.0 as usize).copied().flatten()
    }

    /// The number of connected nodes, including those with broken links.
    pub(crate) fn alive(&self) -> usize {
        self.connected.iter().flatten().count()
    }

    /// Connected nodes.
    pub(crate) fn iter(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.connected
            .iter()
            .enumerate()
            .filter(|(_, peer)| peer.is_some())
            .map(|(number, _)| NodeId(number as u16))
    }

    /// The open links, by node.
    pub(crate) fn links_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut PeerLink)> {
        self.connected.iter_mut().enumerate().filter_map(|(number, peer)| {
            let link = peer.as_mut()?.link.as_mut()?;
            Some((NodeId(number as u16), link))
        })
    }

    /// Why a node cannot be asked anything, if so.
    pub(crate) fn refusal(&self, node: NodeId) -> Option<ErrorCode> {
        if self.get(node).is_some() {
            None
        } else if self.left.contains(node) {
            Some(ErrorCode::NodeLeft)
        } else if self.dead.contains(node) {
            Some(ErrorCode::NodeLost)
        } else {
            Some(ErrorCode::ForeignAddress)
        }
    }

    /// Whether a peer lends this memory.
    #[inline]
    pub(crate) fn lends(&self, memory: MemoryId) -> bool {
        self.get(memory.node()).is_some_and(|peer| peer.memory == Some(memory))
    }

    /// Whether this memory is gone because its node has left.
    pub(crate) fn has_left(&self, memory: MemoryId) -> bool {
        self.memories_left.contains(&memory)
    }

    /// Queues a message for a node; does nothing if the node was removed.
    pub(crate) fn push(&mut self, to: NodeId, class: Class, family: Family, body: &[u8; BODY]) {
        if let Some(peer) = self.get_mut(to) {
            peer.messenger.push(class, family, body);
            self.ready.insert(to);
        }
    }

    /// Adds a node; false if its number is out of range or taken.
    pub(crate) fn insert(&mut self, node: NodeId, peer: Peer) -> bool {
        let Some(place) = self.connected.get_mut(usize::from(node.0)) else {
            return false;
        };
        if place.is_some() || self.dead.contains(node) {
            return false;
        }
        let link = peer.link;
        *place = Some(peer);
        if let Some(link) = link {
            self.link(node, link);
        }
        true
    }

    /// Notes that a new node has this number.
    pub(crate) fn admitted(&mut self, node: NodeId) {
        debug_assert!(self.get(node).is_none(), "the earlier node of this number was removed");
        self.dead.remove(node);
        self.left.remove(node);
        self.muted.remove(node);
        self.ready.remove(node);
    }

    /// Removes a node for good, after it was unlinked.
    pub(crate) fn remove(&mut self, node: NodeId, left: bool) {
        self.dead.insert(node);
        if left {
            self.left.insert(node);
            self.memories_left.extend(self.get(node).and_then(|peer| peer.memory));
        }
        if let Some(place) = self.connected.get_mut(usize::from(node.0)) {
            *place = None;
        }
    }

    /// Sets a node's link.
    pub(crate) fn link(&mut self, node: NodeId, link: PeerLink) {
        let place = link.id.0 as usize;
        if let Some(peer) = self.get_mut(node) {
            peer.link = Some(link);
            peer.ended = false;
            self.ready.insert(node);
            if self.by_link.len() <= place {
                self.by_link.resize(place + 1, None);
            }
            self.by_link[place] = Some(node);
        }
    }

    /// Takes a node's link away, if it has one; nothing from it is processed any more.
    pub(crate) fn unlink(&mut self, node: NodeId) -> Option<LinkId> {
        let link = self.get_mut(node)?.link.take()?.id;
        self.by_link[link.0 as usize] = None;
        Some(link)
    }

    /// Whether a node has a link.
    #[inline]
    pub(crate) fn is_linked(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|peer| peer.link.is_some())
    }

    /// Whether a peer has broken the protocol; its messages are ignored.
    pub(crate) fn is_accused(&self, node: NodeId) -> bool {
        self.muted.contains(node)
    }

    /// Records a peer that broke the protocol.
    pub(crate) fn accuse(&mut self, node: NodeId, violation: Violation) {
        self.muted.insert(node);
        if self.accused.len() < 64 {
            self.accused.push((node, violation));
        }
    }

    /// Posts the receives for a new link, `count` for each peer. The queue is shared, so receives of a
    /// removed peer serve the next one.
    pub(crate) fn post_receives(&mut self, port: &mut dyn Port, messages: RegionId, count: u64) {
        while self.buffers < self.alive() as u64 * count {
            let slot = self.buffers;
            self.buffers += 1;
            self.repost(port, messages, slot);
        }
    }

    /// Reposts the receive of a buffer.
    pub(crate) fn repost(&mut self, port: &mut dyn Port, messages: RegionId, slot: u64) {
        let receive = Receive {
            id: WorkId(slot),
            queue: self.receives,
            into: LocalSlice {
                region: messages,
                offset: slot * MESSAGE_SLOT,
                bytes: MESSAGE_SLOT as u32,
            },
        };
        let posted = port.post_receives(&[receive]);
        debug_assert_eq!(posted.accepted, 1, "the queue has room for every buffer");
    }
}
