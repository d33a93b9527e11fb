//! The other nodes, as the engine reaches them: links, imported regions, messengers.

use farside_base::{
    ErrorCode, LinkId, LocalSlice, NodeId, NodeSet, Receive, ReceiveQueueId, RegionId,
    RemoteRegionId, WorkId,
};
use farside_fabric::{LinkEvent, Port};
use farside_protocol::channel::Messenger;
use farside_protocol::wire::{BODY, Class, Family, MESSAGE, Violation};

/// Bytes from one receive buffer to the next.
pub(crate) const MESSAGE_SLOT: u64 = 64;
/// Marks the work ids of placements.
pub(crate) const PLACED: u64 = 1 << 63;
/// The work id of every message: their success is not reported.
pub(crate) const SENT: WorkId = WorkId(u64::MAX);

/// One connected node.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) link: LinkId,
    pub(crate) home: RemoteRegionId,
    pub(crate) cache: RemoteRegionId,
    pub(crate) messenger: Messenger,
}

impl Peer {
    pub(crate) fn region(&self, cache: bool) -> RemoteRegionId {
        if cache { self.cache } else { self.home }
    }
}

/// All other nodes.
pub(crate) struct Peers {
    connected: Vec<Option<Peer>>,
    by_link: Vec<Option<NodeId>>,
    dead: NodeSet,
    /// Peers whose messenger may have something to send.
    pub(crate) ready: NodeSet,
    /// Where new nodes ask to join; the coordinator alone has one.
    pub(crate) rendezvous: Option<(Box<dyn Port>, ReceiveQueueId)>,
    pub(crate) events: Vec<LinkEvent>,
    pub(crate) receives: ReceiveQueueId,
    /// Receive buffers handed out so far.
    buffers: u64,
    /// Messages of links whose `Connected` is still on its way to us.
    pub(crate) early: Vec<(LinkId, [u8; MESSAGE])>,
    /// Peers that broke the protocol.
    muted: NodeSet,
    /// The same with the reasons, for people.
    pub(crate) accused: Vec<(NodeId, Violation)>,
}

impl Peers {
    pub(crate) fn new(nodes_max: u16, receives: ReceiveQueueId) -> Self {
        Self {
            connected: (0..nodes_max).map(|_| None).collect(),
            by_link: Vec::new(),
            dead: NodeSet::EMPTY,
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

    /// How many nodes are connected.
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

    /// Why nothing can be asked of a node, if so.
    pub(crate) fn refusal(&self, node: NodeId) -> Option<ErrorCode> {
        if self.get(node).is_some() {
            None
        } else if self.dead.contains(node) {
            Some(ErrorCode::NodeLost)
        } else {
            Some(ErrorCode::ForeignAddress)
        }
    }

    /// Queues a message for a node; nothing for one that is gone, which needs none.
    pub(crate) fn push(&mut self, to: NodeId, class: Class, family: Family, body: &[u8; BODY]) {
        if let Some(peer) = self.get_mut(to) {
            peer.messenger.push(class, family, body);
            self.ready.insert(to);
        }
    }

    /// Takes a node in; false when its number has no room or is taken.
    pub(crate) fn insert(&mut self, node: NodeId, peer: Peer) -> bool {
        let Some(place) = self.connected.get_mut(usize::from(node.0)) else {
            return false;
        };
        if place.is_some() || self.dead.contains(node) {
            return false;
        }
        let link = peer.link.0 as usize;
        *place = Some(peer);
        if self.by_link.len() <= link {
            self.by_link.resize(link + 1, None);
        }
        self.by_link[link] = Some(node);
        true
    }

    /// Takes a node out for good; its link, if it was connected.
    pub(crate) fn remove(&mut self, node: NodeId) -> Option<LinkId> {
        self.dead.insert(node);
        let peer = self.connected.get_mut(usize::from(node.0))?.take()?;
        self.by_link[peer.link.0 as usize] = None;
        Some(peer.link)
    }

    /// Whether a peer has broken the protocol; nothing that it says counts any more.
    pub(crate) fn is_accused(&self, node: NodeId) -> bool {
        self.muted.contains(node)
    }

    /// Remembers who broke the protocol.
    pub(crate) fn accuse(&mut self, node: NodeId, violation: Violation) {
        self.muted.insert(node);
        if self.accused.len() < 64 {
            self.accused.push((node, violation));
        }
    }

    /// Posts the receives that a new link needs.
    pub(crate) fn post_receives(&mut self, port: &mut dyn Port, messages: RegionId, count: u64) {
        for _ in 0..count {
            let slot = self.buffers;
            self.buffers += 1;
            self.repost(port, messages, slot);
        }
    }

    /// Posts the receive of a buffer again.
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
