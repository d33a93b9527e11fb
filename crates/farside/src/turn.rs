//! The one loop: poll, land, step, route, post. The only caller of both the machines and the fabric
//! (with [`route`](crate::route), its other half).

use crate::engine::{Engine, FollowUp, Placement, Regions};
use crate::peer::{MESSAGE_SLOT, PLACED, SENT};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LocalSlice, NodeId, Operation, RemoteSlice,
    Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Posted, Stop};
use farside_protocol::wire::{MESSAGE, Violation};

/// Completions taken by one poll.
pub(crate) const BATCH: usize = 64;
/// Busy turns from one look at links to the next.
const LINKS_EVERY: u32 = 16;
/// Work requests posted by one doorbell.
const POST: usize = 16;

impl Engine {
    /// Does what there is to do, without blocking; true when there was something.
    pub(crate) fn turn(&mut self) -> bool {
        if self.armed {
            self.port.disarm();
            self.armed = false;
        }
        let landed = self.land();
        // Links come and go rarely: a busy node looks after them now and then.
        self.turns = self.turns.wrapping_add(1);
        let linked = (!landed || self.turns.is_multiple_of(LINKS_EVERY)) && self.links();
        self.follow_up();
        let posted = self.post();
        landed || linked || posted
    }

    /// Gets ready to sleep; true when there is something to do instead.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.port.arm()
    }

    fn land(&mut self) -> bool {
        // Taken out for the time of the loop; the buffer itself stays where it is.
        let Some(mut completions) = self.completions.take() else {
            return false;
        };
        let count = self.port.poll(&mut *completions);
        for completion in &completions[..count] {
            match completion.kind {
                CompletionKind::Receive => self.received(completion),
                CompletionKind::Write => self.placed(completion.id),
                _ => {}
            }
            let failed = !matches!(
                completion.status,
                CompletionStatus::Success
                    | CompletionStatus::Flushed
                    | CompletionStatus::PeerLost
                    | CompletionStatus::Unreachable
                    | CompletionStatus::Broken
            );
            if failed && let Some(node) = self.peers.node(completion.link) {
                self.follow_ups.push_back(FollowUp::Drop(node));
            }
            self.follow_up();
        }
        self.completions = Some(completions);
        count > 0
    }

    fn received(&mut self, completion: &Completion) {
        if completion.status != CompletionStatus::Success {
            return;
        }
        let slot = completion.id.0;
        let mut bytes = [0; MESSAGE];
        let whole = completion.bytes as usize == MESSAGE
            && self.regions.messages.arena.read(slot * MESSAGE_SLOT, &mut bytes).is_ok();
        self.peers.repost(&mut *self.port, self.regions.messages.id, slot);
        let Some(node) = self.peers.node(completion.link) else {
            if whole && self.is_connecting(completion.link) {
                self.peers.early.push((completion.link, bytes));
            }
            return; // else a former link; its node is dead
        };
        self.message(node, whole.then_some(&bytes));
    }

    /// Takes one message of a peer; `None` for one of a wrong length.
    pub(crate) fn message(&mut self, node: NodeId, bytes: Option<&[u8; MESSAGE]>) {
        self.counters.messages_received += 1;
        if self.peers.is_accused(node) {
            return;
        }
        let parsed = match (self.peers.get_mut(node), bytes) {
            (Some(peer), Some(bytes)) => {
                let parsed = peer.messenger.received(bytes);
                // Credits may be owed now, or have come for what waits.
                if !peer.messenger.is_idle() {
                    self.peers.ready.insert(node);
                }
                parsed
            }
            (None, _) => return,
            (_, None) => Err(Violation("message of a wrong length")),
        };
        let done = match parsed {
            Ok(Some((class, family, body))) => self.dispatch(node, class, family, &body),
            Ok(None) => Ok(()),
            Err(violation) => Err(violation),
        };
        if let Err(violation) = done {
            self.peers.accuse(node, violation);
            self.follow_ups.push_back(FollowUp::Accuse(node));
        }
    }

    fn placed(&mut self, id: WorkId) {
        let index = (id.0 & !PLACED) as usize;
        if id.0 & PLACED == 0 || id == SENT {
            return;
        }
        if let Some(line) = self.placing.get(index).copied() {
            self.placing_free.push(index as u32);
            self.follow_ups.push_back(FollowUp::Placed(line));
        }
    }

    fn links(&mut self) -> bool {
        let mut events = std::mem::take(&mut self.peers.events);
        self.port.link_events(&mut events);
        let mut any = !events.is_empty();
        for event in events.drain(..) {
            self.link_event(event);
        }
        if let Some((rendezvous, _)) = self.peers.rendezvous.as_mut() {
            rendezvous.link_events(&mut events);
            any |= !events.is_empty();
            for event in events.drain(..) {
                self.rendezvous_event(event);
            }
        }
        self.peers.events = events;
        any
    }

    /// Posts what waits: bytes of lines first, then messages, so that on each link the bytes that a
    /// message speaks of travel ahead of it.
    #[inline]
    pub(crate) fn post(&mut self) -> bool {
        let idle = self.placements.is_empty() && self.peers.ready.is_empty();
        !idle && self.post_all()
    }

    fn post_all(&mut self) -> bool {
        let mut any = false;
        while !self.placements.is_empty() {
            let (taken, posted) = self.post_placements();
            any |= taken > 0;
            if posted.stop.is_some() {
                return any;
            }
        }
        if !self.peers.ready.is_empty() {
            let ready = std::mem::take(&mut self.peers.ready);
            for node in ready.iter() {
                any |= self.post_messages(node);
            }
        }
        any
    }

    fn post_placements(&mut self) -> (usize, Posted) {
        if let [only] = self.placements.make_contiguous() {
            let only = *only;
            return self.post_placement(&only);
        }
        let waiting = self.placements.make_contiguous();
        let count = waiting.len().min(POST);
        let slices: [LocalSlice; POST] =
            std::array::from_fn(|at| source(&self.regions, &waiting[at.min(count - 1)]));
        let peers = &self.peers;
        let work = |at: usize| {
            let placement = waiting.get(at)?;
            let peer = peers.get(placement.to)?;
            Some(place(placement, &slices[at], peer.link, peer.region(placement.to_cache)))
        };
        let Some(first) = work(0) else {
            let gone = waiting[0].id;
            return self.skip_placement(gone);
        };
        let run = (0..count).take_while(|at| peers.get(waiting[*at].to).is_some()).count();
        let works: [Work<'_>; POST] =
            std::array::from_fn(|at| work(at.min(run - 1)).unwrap_or(first));
        let posted = self.port.post(&works[..run]);
        let bytes = waiting[..posted.accepted].iter().map(|p| u64::from(p.bytes)).sum();
        let refused = waiting.get(posted.accepted).map(|refused| refused.to);
        self.posted_placements(posted, bytes, refused)
    }

    /// As `post_placements` for one, as most are.
    fn post_placement(&mut self, placement: &Placement) -> (usize, Posted) {
        let Some(peer) = self.peers.get(placement.to) else {
            return self.skip_placement(placement.id);
        };
        let slice = source(&self.regions, placement);
        let work = place(placement, &slice, peer.link, peer.region(placement.to_cache));
        let posted = self.port.post(&[work]);
        self.posted_placements(posted, u64::from(placement.bytes), Some(placement.to))
    }

    /// The first placement is for a peer that is gone: it counts as landed.
    fn skip_placement(&mut self, id: WorkId) -> (usize, Posted) {
        self.placements.pop_front();
        self.placed(id);
        self.follow_up();
        (1, Posted { accepted: 1, stop: None })
    }

    /// Counts what was posted; `refused` is whom the first that was not is for.
    fn posted_placements(
        &mut self,
        posted: Posted,
        bytes: u64,
        refused: Option<NodeId>,
    ) -> (usize, Posted) {
        self.counters.doorbells += 1;
        self.counters.work_requests += posted.accepted as u64;
        if posted.accepted > 0 {
            self.counters.bytes_placed += bytes;
        }
        if let (Some(Stop::Invalid(what)), Some(node)) = (posted.stop, refused) {
            self.failure = Some(what);
            self.follow_ups.push_back(FollowUp::Drop(node));
        }
        self.placements.drain(..posted.accepted);
        (posted.accepted, posted)
    }

    fn post_messages(&mut self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get_mut(node) else {
            return false;
        };
        let mut sent = 0;
        while !peer.messenger.is_idle()
            && let Some(message) = peer.messenger.peek()
        {
            let work = Work {
                id: SENT,
                link: peer.link,
                flags: WorkFlags::default(),
                operation: Operation::Send { source: Source::Inline(&message), immediate: None },
            };
            self.counters.doorbells += 1;
            if self.port.post(&[work]).accepted == 0 {
                self.peers.ready.insert(node); // the next turn tries again
                break;
            }
            sent += 1;
            peer.messenger.sent();
        }
        // Without a credit nothing is shown: credits that come back make the peer ready again.
        self.counters.work_requests += sent;
        self.counters.messages_sent += sent;
        sent > 0
    }
}

/// Where the bytes of a placement come from.
fn source(regions: &Regions, placement: &Placement) -> LocalSlice {
    let region = if placement.from_cache { regions.cache.id } else { regions.home.id };
    LocalSlice { region, offset: placement.offset, bytes: placement.bytes }
}

fn place<'a>(
    placement: &Placement,
    slice: &'a LocalSlice,
    link: farside_base::LinkId,
    region: farside_base::RemoteRegionId,
) -> Work<'a> {
    Work {
        id: placement.id,
        link,
        flags: WorkFlags { signalled: true, fence: false, awaited: false },
        operation: Operation::Write {
            source: Source::Gather(std::slice::from_ref(slice)),
            to: RemoteSlice { region, offset: placement.to_offset },
            immediate: None,
        },
    }
}
