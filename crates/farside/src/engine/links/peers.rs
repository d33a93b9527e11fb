//! The other nodes, as the engine reaches them: links, imported regions, messengers.

use super::regions::{PeerLink, PeerWords};
use farside_base::{
    ErrorCode, Incarnation, LinkId, MemberRegions, MemoryId, NodeId, NodeSet, Operation, Source,
    Work, WorkFlags, WorkId,
};
use farside_protocol::messaging::Messenger;
use farside_protocol::wire::{BODY, Class, Family, MESSAGE, Violation};
use std::collections::BTreeSet;

/// One connected node.
#[derive(Debug)]
pub(super) struct Peer {
    /// Tells restarts of its process apart.
    pub(super) incarnation: Incarnation,
    /// The memory that it lends.
    pub(super) memory: Option<MemoryId>,
    /// Tokens of the regions that this node may write.
    pub(super) tokens: MemberRegions,
    /// `None` while the link is broken; it may reconnect.
    pub(super) link: Option<PeerLink>,
    /// The peer ended the link. If nothing listens at its address any more, its process has certainly
    /// ended.
    pub(super) ended: bool,
    pub(super) messenger: Messenger,
    /// Its words that this node may access, once it was linked.
    pub(super) words: Option<PeerWords>,
    /// Its link, if that was closed before this node had imported its regions. It may have imported those
    /// of this node.
    pub(super) closed: Option<LinkId>,
}

/// The most peers whose messages are posted with one doorbell.
const MESSAGES: usize = 4;
/// The work id of every message, which is unsignaled.
const SENT: WorkId = WorkId(u64::MAX);

/// The next messages for some peers.
pub(super) struct Messages {
    /// Each peer, its link and the message.
    pub(super) first: [(NodeId, LinkId, [u8; MESSAGE]); MESSAGES],
    pub(super) count: usize,
}

impl Default for Messages {
    fn default() -> Self {
        Self { first: [(NodeId(0), LinkId(0), [0; MESSAGE]); MESSAGES], count: 0 }
    }
}

impl Messages {
    /// Returns the work request of one of them.
    pub(super) fn work(&self, at: usize) -> Work<'_> {
        let (_, link, message) = &self.first[at];
        let operation = Operation::Send { source: Source::Inline(message), immediate: None };
        Work { id: SENT, link: *link, flags: WorkFlags::default(), operation }
    }
}

/// All other nodes.
pub(crate) struct Peers {
    connected: Vec<Option<Peer>>,
    by_link: Vec<Option<NodeId>>,
    /// Numbers whose last node is dead, and those of them whose last node has left.
    dead: NodeSet,
    left: NodeSet,
    /// Memories whose nodes have left and have not returned; other memories that are gone are lost.
    memories_left: BTreeSet<MemoryId>,
    /// Peers whose messenger may have messages to post.
    pub(super) ready: NodeSet,
    /// Peers that broke the protocol.
    muted: NodeSet,
    /// The same, with the reasons for people.
    accused: Vec<(NodeId, Violation)>,
}

impl Peers {
    pub(super) fn new(nodes_max: u16) -> Self {
        Self {
            connected: (0..nodes_max).map(|_| None).collect(),
            by_link: Vec::new(),
            dead: NodeSet::EMPTY,
            left: NodeSet::EMPTY,
            memories_left: BTreeSet::new(),
            ready: NodeSet::EMPTY,
            muted: NodeSet::EMPTY,
            accused: Vec::new(),
        }
    }

    pub(super) fn get(&self, node: NodeId) -> Option<&Peer> {
        self.connected.get(usize::from(node.0))?.as_ref()
    }

    pub(super) fn get_mut(&mut self, node: NodeId) -> Option<&mut Peer> {
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

    /// The number of nodes that were linked, including those with broken links.
    pub(crate) fn linked(&self) -> usize {
        self.connected.iter().flatten().filter(|peer| peer.words.is_some()).count()
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
    pub(super) fn links_mut(&mut self) -> impl Iterator<Item = (NodeId, &mut PeerLink)> {
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
    pub(super) fn push(&mut self, to: NodeId, class: Class, family: Family, body: &[u8; BODY]) {
        if let Some(peer) = self.get_mut(to) {
            peer.messenger.push(class, family, body);
            self.ready.insert(to);
        }
    }

    /// Returns the next message of each peer that has a message, a link and a credit, for at most `room` and
    /// [`MESSAGES`] peers. Other peers are no longer ready: a message, credit or link that arrives makes them so again.
    #[inline]
    pub(super) fn messages(&mut self, room: usize) -> Messages {
        let mut messages = Messages::default();
        let ready = self.ready;
        for node in ready.iter() {
            if messages.count == room.min(MESSAGES) {
                break;
            }
            let peer = self.get_mut(node);
            let next =
                peer.and_then(|peer| Some((node, peer.link.as_ref()?.id, peer.messenger.peek()?)));
            match next {
                Some(next) => {
                    messages.first[messages.count] = next;
                    messages.count += 1;
                }
                None => {
                    self.ready.remove(node);
                }
            }
        }
        messages
    }

    /// Notes that the fabric accepted the next message for a node.
    pub(super) fn sent(&mut self, to: NodeId) {
        let Some(peer) = self.get_mut(to) else {
            return;
        };
        peer.messenger.sent();
        if peer.messenger.is_idle() {
            self.ready.remove(to);
        }
    }

    /// Notes that a node's link was lost, and whether the node ended it.
    pub(crate) fn lost(&mut self, node: NodeId, ended: bool) {
        if let Some(peer) = self.get_mut(node) {
            peer.ended = ended;
        }
    }

    /// Adds a node; false if its number is out of range or taken.
    pub(super) fn insert(&mut self, node: NodeId, peer: Peer) -> bool {
        let Some(place) = self.connected.get_mut(usize::from(node.0)) else {
            return false;
        };
        if place.is_some() || self.dead.contains(node) {
            return false;
        }
        let link = peer.link;
        if let Some(memory) = peer.memory {
            self.memories_left.remove(&memory);
        }
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
    pub(super) fn remove(&mut self, node: NodeId, left: bool) {
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
    pub(super) fn link(&mut self, node: NodeId, link: PeerLink) {
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
    pub(super) fn unlink(&mut self, node: NodeId) -> Option<LinkId> {
        let link = self.get_mut(node)?.link.take()?.id;
        self.by_link[link.0 as usize] = None;
        Some(link)
    }

    /// Whether a node has a link.
    #[inline]
    pub(crate) fn is_linked(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|peer| peer.link.is_some())
    }

    /// The memory that a node lends in bytes; zero if it is not connected.
    pub(crate) fn home_bytes(&self, node: NodeId) -> u64 {
        self.get(node).map_or(0, |peer| peer.tokens.home.bytes)
    }

    /// The incarnation of a connected node.
    pub(crate) fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        self.get(node).map(|peer| peer.incarnation)
    }

    /// Whether a node is connected, perhaps with a broken link.
    pub(crate) fn is_connected(&self, node: NodeId) -> bool {
        self.get(node).is_some()
    }

    /// Whether a node ended its link itself.
    pub(crate) fn has_ended(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|peer| peer.ended)
    }

    /// The number of messages received from a node over all its links.
    pub(crate) fn received_count(&self, node: NodeId) -> Option<u64> {
        self.get(node).map(|peer| peer.messenger.received_count())
    }

    /// Whether all messages queued for a node are posted.
    pub(crate) fn has_sent_all(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|peer| peer.messenger.has_sent_all())
    }

    /// Peers that broke the protocol, with the reasons.
    pub(crate) fn accused(&self) -> &[(NodeId, Violation)] {
        &self.accused
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
}
