//! The links of an end of a channel: which half and which of its peers each one serves, and until when completions of
//! a closed one may arrive.

use farside_base::LinkId;
use farside_protocol::channel::Peer;

/// The half of a link, and its number for the peer.
#[derive(Clone, Copy)]
pub(super) struct LinkEntry {
    pub(super) unit: usize,
    /// The life of that half, as another may have replaced it since.
    pub(super) life: u64,
    pub(super) peer: Peer,
    pub(super) stage: LinkStage,
    /// The connection of which the link is one direction.
    pub(super) connection: u64,
    /// Signaled requests of the link in flight.
    awaited: u32,
}

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkStage {
    Connecting,
    Open,
    /// Closed; completions from before may still be polled.
    Closed,
}

/// All links of an end.
#[derive(Default)]
pub(super) struct ChannelLinks {
    /// By link number.
    entries: Vec<Option<LinkEntry>>,
    /// Signaled requests in flight over all open links: while there are any, the port must be polled.
    awaited: u32,
    /// Peers connected since the start.
    connected: usize,
    /// Closed links whose completions may not all have been polled yet.
    resting: Vec<(LinkId, LinkEntry)>,
    /// How many of them were closed before this poll.
    rested: usize,
}

impl ChannelLinks {
    /// Adds a link that is being established, for a peer of a half.
    pub(super) fn add(
        &mut self,
        link: LinkId,
        (unit, life): (usize, u64),
        peer: Peer,
        connection: u64,
    ) {
        let at = link.0 as usize;
        if self.entries.len() <= at {
            self.entries.resize(at + 1, None);
        }
        let stage = LinkStage::Connecting;
        self.entries[at] = Some(LinkEntry { unit, life, peer, stage, connection, awaited: 0 });
    }

    #[inline]
    pub(super) fn get(&self, link: LinkId) -> Option<LinkEntry> {
        self.entries.get(link.0 as usize).copied().flatten()
    }

    #[inline]
    fn get_mut(&mut self, link: LinkId) -> Option<&mut LinkEntry> {
        self.entries.get_mut(link.0 as usize)?.as_mut()
    }

    /// Notes that a link is established.
    pub(super) fn opened(&mut self, link: LinkId) {
        if let Some(entry) = self.get_mut(link) {
            entry.stage = LinkStage::Open;
            self.connected += 1;
        }
    }

    /// Notes that a link was closed; returns its entry unless it was closed before.
    pub(super) fn closed(&mut self, link: LinkId) -> Option<LinkEntry> {
        let entry = self.get_mut(link)?;
        if std::mem::replace(&mut entry.stage, LinkStage::Closed) == LinkStage::Closed {
            return None;
        }
        let awaited = std::mem::take(&mut entry.awaited);
        let entry = *entry;
        self.awaited -= awaited;
        self.resting.push((link, entry));
        Some(entry)
    }

    /// Notes that a signaled request was posted.
    #[inline]
    pub(super) fn posted_signalled(&mut self, link: LinkId) {
        if let Some(entry) = self.get_mut(link) {
            entry.awaited += 1;
            self.awaited += 1;
        }
    }

    /// Notes that a request has completed; failed unsignaled ones do too.
    #[inline]
    pub(super) fn request_completed(&mut self, link: LinkId) {
        if let Some(entry) = self.get_mut(link)
            && entry.awaited > 0
        {
            entry.awaited -= 1;
            self.awaited -= 1;
        }
    }

    /// Whether completions are expected that no event announces.
    #[inline]
    pub(super) const fn awaits(&self) -> bool {
        self.awaited > 0
    }

    /// Begins a poll.
    #[inline]
    pub(super) fn begin_poll(&mut self) {
        self.rested = self.resting.len();
    }

    /// Frees the numbers of links that were closed before this poll, as all their completions have been polled, except
    /// of those where a preempted peer may still write.
    #[inline]
    pub(super) fn release(&mut self, mut may_land: impl FnMut(LinkId) -> bool) {
        let mut before = std::mem::take(&mut self.rested);
        if before > 0 {
            self.resting.retain(|(link, _)| {
                let closed_before = before > 0;
                before = before.saturating_sub(1);
                !closed_before || may_land(*link)
            });
        }
    }

    /// Whether completions of closed links may arrive.
    pub(super) fn is_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Whether completions of a closed link of a half may arrive, of this peer if there is one.
    pub(super) fn rests(&self, life: u64, peer: Option<Peer>) -> bool {
        let is_meant = |at: &LinkEntry| at.life == life && peer.is_none_or(|peer| peer == at.peer);
        self.resting.iter().any(|(_, at)| is_meant(at))
    }

    /// Whether all peers are lost, there having been one if `listens`, and all their completions were polled.
    pub(super) fn are_lost(&self, listens: bool) -> bool {
        self.resting.is_empty()
            && self.not_closed().next().is_none()
            && (self.connected > 0 || !listens)
    }

    /// Returns the links that are not closed.
    pub(super) fn not_closed(&self) -> impl Iterator<Item = LinkId> {
        let numbered = (0..).map(LinkId).zip(&self.entries);
        numbered.filter_map(|(link, entry)| {
            entry.filter(|entry| entry.stage != LinkStage::Closed).map(|_| link)
        })
    }

    /// Returns the entries of established links.
    pub(super) fn open(&self) -> impl Iterator<Item = &LinkEntry> {
        self.entries.iter().flatten().filter(|entry| entry.stage == LinkStage::Open)
    }
}
