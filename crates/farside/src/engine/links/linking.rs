//! Adding, linking and removing peers.

use super::peers::Peer;
use super::regions::{PeerLink, PeerWords};
use super::{Import, LineWrite, Links};
use crate::canary;
use crate::direct::DirectHome;
use farside_base::{Incarnation, LineAddress, LinkId, MemoryId, NodeId};
use farside_protocol::member::Outlives;
use farside_protocol::messaging::Messenger;
use farside_protocol::wire::Violation;
use std::sync::atomic::Ordering;

impl Links {
    /// Adds a member with a connected link and begins to import its regions; false if there is no room for
    /// its number.
    pub(crate) fn add(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        memory: Option<MemoryId>,
        import: Import,
    ) -> bool {
        let messenger = Messenger::new(self.credits_per_class);
        let messenger = if self.resumes { messenger.resumable() } else { messenger };
        let peer = Peer {
            incarnation,
            memory,
            tokens: import.tokens(),
            link: None,
            ended: false,
            messenger,
            words: None,
            closed: None,
        };
        if !self.peers.insert(node, peer) {
            return false;
        }
        // The queue is shared, so receives of a removed peer serve the next one.
        let receives = u64::from(Messenger::receives_needed(self.credits_per_class));
        while self.buffers < self.peers.alive() as u64 * receives {
            self.buffers += 1;
            self.post_receive(self.buffers - 1);
        }
        self.imports.push(import);
        true
    }

    /// The number of members whose regions are being imported.
    #[inline]
    pub(crate) fn imports(&self) -> usize {
        self.imports.len()
    }

    /// Whether a link is that of a member whose regions are being imported.
    pub(crate) fn is_importing(&self, link: LinkId) -> bool {
        self.imports.iter().any(|import| import.link == link)
    }

    /// Advances the first import; returns it when it is over, and whether the link is complete.
    pub(crate) fn advance_import(&mut self) -> Option<(Import, bool)> {
        if self.imports.is_empty() {
            return None;
        }
        let mut import = self.imports.remove(0);
        match import.advance(&mut *self.port) {
            Ok(Some(link)) => {
                self.complete(&import, link);
                Some((import, true))
            }
            Ok(None) => {
                self.imports.push(import);
                None
            }
            Err(_) => Some((import, false)),
        }
    }

    /// Completes the link of a member whose regions are all imported.
    fn complete(&mut self, import: &Import, link: PeerLink) {
        let words = PeerWords::of(&*self.port, &link, self.me, import.asked_here);
        if let Some(peer) = self.peers.get_mut(import.node) {
            peer.words = Some(words);
        }
        self.peers.link(import.node, link);
        self.placements.resume(import.node, 0, |_| {});
        self.joining.take_if(|(_, coordinator)| *coordinator == import.node);
    }

    /// The memory of a linked member, if sessions may read it directly.
    pub(crate) fn direct_home(&self, node: NodeId) -> Option<DirectHome> {
        let peer = self.peers.get(node)?;
        peer.link?.direct_home(&*self.port, peer.memory?)
    }

    /// Takes the import over a link that was lost.
    pub(crate) fn take_import(&mut self, link: LinkId) -> Option<Import> {
        let place = self.imports.iter().position(|import| import.link == link)?;
        Some(self.imports.remove(place))
    }

    /// Keeps the failed import of a member until it is removed, and with it the link.
    pub(crate) fn keep_import(&mut self, import: Import) {
        self.imports.push(import);
    }

    /// Ends the imports of dead members, or of all.
    pub(crate) fn end_imports(&mut self, is_over: impl Fn(NodeId) -> bool) {
        let ended: Vec<Import> =
            self.imports.extract_if(.., |import| is_over(import.node)).collect();
        ended.iter().for_each(|import| self.close_import(import));
    }

    /// Closes the link. The member may nevertheless be inside a copy into memory of this node: it may have
    /// imported this node's regions, and an owner writes for a home.
    pub(crate) fn close_import(&mut self, import: &Import) {
        self.port.close(import.link);
        if let Some(peer) = self.peers.get_mut(import.node) {
            peer.closed = Some(import.link);
        }
    }

    /// Closes the link to a member, if there is one; nothing from it is processed any more.
    pub(crate) fn unlink(&mut self, node: NodeId) -> Option<LinkId> {
        let link = self.peers.unlink(node)?;
        self.port.close(link);
        self.placements.hold(node);
        Some(link)
    }

    /// Resumes over a new link to a member that has received this many messages; `false` if its regions cannot
    /// be imported. `landed` gets the lines whose bytes have landed.
    pub(crate) fn resume(
        &mut self,
        node: NodeId,
        link: LinkId,
        received_there: u64,
        mut landed: impl FnMut(LineAddress),
    ) -> Result<bool, Violation> {
        let Some(peer) = self.peers.get_mut(node) else {
            self.port.close(link);
            return Ok(false);
        };
        let resumed = peer.messenger.resume(received_there);
        let imported = PeerLink::import(&mut *self.port, link, &peer.tokens);
        let (Ok(()), Some(linked)) = (resumed, imported) else {
            self.port.close(link);
            return resumed.map(|()| false);
        };
        self.counters.resumes += 1;
        let landed = |placement: LineWrite| landed(placement.line);
        match canary::mutant!(canary::nodes(), NotPlacedAgain) {
            true => self.placements.gone(node, landed),
            false => self.placements.resume(node, received_there, landed),
        }
        self.peers.link(node, linked);
        Ok(true)
    }

    /// Removes a member; returns its last link, and calls `landed` for the lines in flight to it.
    pub(crate) fn remove(
        &mut self,
        node: NodeId,
        has_left: bool,
        landed: impl FnMut(LineAddress),
    ) -> Option<LinkId> {
        let closed = self.peers.get(node).and_then(|peer| peer.closed);
        let link = self.unlink(node).or(closed);
        self.peers.remove(node, has_left);
        self.placed_at_removed(node, landed);
        link
    }

    /// Counts WRITEs in flight to a removed peer as landed.
    pub(crate) fn placed_at_removed(&mut self, node: NodeId, mut landed: impl FnMut(LineAddress)) {
        self.placements.gone(node, |placement| landed(placement.line));
    }

    /// Closes all links.
    pub(crate) fn disconnect(&mut self) {
        self.end_imports(|_| true);
        let peers: Vec<NodeId> = self.peers.iter().collect();
        for node in peers {
            _ = self.unlink(node);
            self.peers.remove(node, false);
        }
        self.unbind_rendezvous();
    }

    /// The words of a peer that this node may access.
    pub(crate) fn words(&self, node: NodeId) -> Option<&PeerWords> {
        self.peers.get(node)?.words.as_ref()
    }

    /// Decides, once and for all, by the word of the pair whether this node survives a member, which was
    /// admitted after it if `first`; true if there is no such word.
    pub(crate) fn outlives(
        &self,
        node: NodeId,
        first: bool,
        outlives: Outlives,
        is_removed: impl Fn() -> bool,
    ) -> bool {
        let own = if first { self.regions.pair(node) } else { None };
        let pair = if first { own.as_ref() } else { self.words(node).and_then(PeerWords::pair) };
        let Some(pair) = pair else {
            return true;
        };
        loop {
            let word = pair.load(Ordering::Acquire);
            if let Some(decided) = outlives.read(word) {
                return decided;
            }
            // Checked after the word: if the word belongs to a later node of this number, this node has
            // been removed.
            if is_removed() {
                return false;
            }
            if pair.compare_exchange(word, outlives.word()).is_ok() {
                return true;
            }
        }
    }

    /// Whether a peer may be inside a copy over this closed link.
    pub(crate) fn may_land(&mut self, link: LinkId) -> bool {
        self.port.may_land(link)
    }
}
