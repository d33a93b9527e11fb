//! Members that are being linked: their links are connected, and imports of their regions are pending. The
//! imports take as long as the other process is not scheduled, so the engine does not wait for them;
//! messages to the member are queued in its messenger.

use crate::boot::FENCE_WORD;
use crate::engine::Engine;
use crate::peer::{Peer, PeerLink, Tokens};
use crate::stopped::Watched;
use farside_base::{Incarnation, LinkId, MemoryId, NodeId, RemoteRegionId};
use farside_fabric::{FabricError, Port};
use farside_protocol::member::MemberEvent;
use farside_protocol::messaging::Messenger;

/// One such member.
#[derive(Debug)]
pub(crate) struct Incoming {
    node: NodeId,
    link: LinkId,
    tokens: Tokens,
    /// The regions imported so far, in the order of [`Tokens`].
    imported: Vec<RemoteRegionId>,
    /// This node dialled it, and waits to be linked to it.
    asked_here: bool,
}

impl Incoming {
    pub(crate) fn is_of(&self, link: LinkId) -> bool {
        self.link == link
    }

    /// The link with its regions; `None` while some are pending.
    fn advance(&mut self, port: &mut dyn Port) -> Result<Option<PeerLink>, FabricError> {
        let Tokens { home, cache, fence } = self.tokens;
        while let Some(token) = [home, cache, fence].get(self.imported.len()) {
            match port.try_import(self.link, token)? {
                Some(region) => self.imported.push(region),
                None => return Ok(None),
            }
        }
        let [home, cache, fence] = self.imported[..] else {
            return Ok(None);
        };
        Ok(Some(PeerLink { id: self.link, home, cache, fence, question: None }))
    }
}

impl Engine {
    /// Starts to link a member with a connected link; false if there is no room for its number.
    pub(crate) fn take_in(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        link: LinkId,
        tokens: Tokens,
        asked_here: bool,
    ) -> bool {
        let credits = self.limits.credits_per_class;
        let messenger = Messenger::new(credits);
        let messenger = if self.resumes() { messenger.resumable() } else { messenger };
        let memory = self.membership.listed(node).and_then(|listed| listed.memory);
        let peer = Peer {
            incarnation,
            memory: memory.and_then(|generation| MemoryId::new(node, generation)),
            tokens,
            link: None,
            ended: false,
            messenger,
            fence_word: None,
            watched: None,
            closed: None,
        };
        if !self.peers.insert(node, peer) {
            return false;
        }
        let receives = u64::from(Messenger::receives_needed(credits));
        self.peers.post_receives(&mut *self.port, self.regions.messages.id, receives);
        let imported = Vec::with_capacity(3);
        self.boot.incoming.push(Incoming { node, link, tokens, imported, asked_here });
        true
    }

    /// Advances the imports of all members that are being linked.
    pub(crate) fn advance_incoming(&mut self) {
        for _ in 0..self.boot.incoming.len() {
            // One at a time: each step may end others.
            if self.boot.incoming.is_empty() {
                return;
            }
            let mut incoming = self.boot.incoming.remove(0);
            match incoming.advance(&mut *self.port) {
                Ok(Some(link)) => self.taken_in(incoming.node, link, incoming.asked_here),
                Ok(None) => self.boot.incoming.push(incoming),
                Err(_) => self.not_taken_in(incoming),
            }
        }
    }

    /// Completes the link of a member whose regions are all imported.
    fn taken_in(&mut self, node: NodeId, link: PeerLink, asked_here: bool) {
        let fence_word = self.port.reach_word(link.id, link.fence, FENCE_WORD);
        let watched = Watched::new(&*self.port, link, self.lines.me(), asked_here);
        if let Some(peer) = self.peers.get_mut(node) {
            (peer.fence_word, peer.watched) = (fence_word, watched);
            self.lookout.add(node, peer);
        }
        self.peers.link(node, link);
        self.placements.resume(node, 0, |_| {});
        self.contact_linked(node);
        if self.boot.ready {
            self.announce_free(Some(node));
        }
        if asked_here {
            self.member_own(MemberEvent::LinkUp { node });
        }
        self.early_messages(node, link.id);
        if self.boot.joining.as_ref().is_some_and(|(_, _, coordinator)| *coordinator == node) {
            self.boot.joining = None;
        }
    }

    /// Handles the end of its link, or a failed import.
    fn not_taken_in(&mut self, incoming: Incoming) {
        let Incoming { node, asked_here, .. } = incoming;
        if asked_here || self.resumes() || self.peers.get(node).is_none() {
            self.close_incoming(&incoming);
        } else {
            // Closed with its removal, which first decides which of the two survives: a member with a
            // stopped process takes a closed link for the end of this node.
            self.boot.incoming.push(incoming);
        }
        match asked_here {
            true => self.lost_on_the_way(node),
            false => self.member_own(MemberEvent::Dropped { node }),
        }
    }

    /// Handles the loss of a link of a member that is being linked; false if it was none of those.
    pub(crate) fn incoming_lost(&mut self, link: LinkId) -> bool {
        let place = self.boot.incoming.iter().position(|incoming| incoming.link == link);
        let Some(place) = place else {
            return false;
        };
        let incoming = self.boot.incoming.remove(place);
        self.not_taken_in(incoming);
        true
    }

    /// Ends the imports of dead members, or of all.
    pub(crate) fn end_incoming(&mut self, is_over: impl Fn(NodeId) -> bool) {
        let ended: Vec<Incoming> =
            self.boot.incoming.extract_if(.., |incoming| is_over(incoming.node)).collect();
        for incoming in ended {
            self.close_incoming(&incoming);
        }
    }

    /// Closes the link. The member may nevertheless be inside a copy into memory of this node: it may have
    /// imported this node's regions, and an owner writes for a home.
    fn close_incoming(&mut self, incoming: &Incoming) {
        self.port.close(incoming.link);
        if let Some(peer) = self.peers.get_mut(incoming.node) {
            peer.closed = Some(incoming.link);
        }
    }
}
