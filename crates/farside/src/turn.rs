//! One poll of the progress engine: poll the port, handle completions, step the machines, route their
//! effects, post work requests. Together with [`route`](crate::route), the only caller of both the machines
//! and the fabric. Nothing here blocks.
//!
//! Invariants: on each connection, the bytes of a line are posted before the message that announces them;
//! work requests without a connection wait until it is back, or count as landed when the peer is removed.

use crate::engine::{Engine, FollowUp, LineWrite};
use crate::peer::{ASKED, MESSAGE_SLOT, PLACED, PeerLink, SENT};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LocalSlice, NodeId, Operation, RemoteSlice,
    Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Posted, Stop};
use farside_protocol::member;
use farside_protocol::messaging::WriteKey;
use farside_protocol::wire::{MESSAGE, Violation};

/// Completions per poll of the port.
pub(crate) const BATCH: usize = 64;
/// Busy polls between checks of the links.
const LINKS_EVERY: u32 = 16;
/// Work requests per doorbell.
const POST: usize = 16;

impl Engine {
    /// Polls the engine once, without blocking; true if there was work.
    pub(crate) fn turn(&mut self) -> bool {
        if self.armed {
            self.port.disarm();
            self.armed = false;
        }
        if self.lines.is_removed() && self.closed_with.is_none() {
            self.member_own(member::MemberEvent::Removed);
        }
        let landed = self.land();
        // Links change rarely: a busy node checks them in one poll of [`LINKS_EVERY`].
        self.turns = self.turns.wrapping_add(1);
        self.count_poll();
        let linked = (!landed || self.turns.is_multiple_of(LINKS_EVERY)) && self.links();
        let sliced = self.allocation_slice();
        self.follow_up();
        let mut posted = self.post();
        // After the posts: a home to which this node has just answered does not count as busy.
        let cleaned = self.turns.is_multiple_of(LINKS_EVERY) && self.write_back_due();
        if cleaned {
            self.follow_up();
            posted |= self.post();
        }
        let busy = landed || linked || posted || sliced || cleaned || self.homes.is_runnable();
        if self.leaving.is_some() {
            self.step_leave();
            return self.post() || busy;
        }
        busy
    }

    /// Arms the port before a sleep; true if there is work instead.
    pub(crate) fn arm(&mut self) -> bool {
        self.armed = true;
        self.port.arm()
    }

    /// Processes all arrivals, unless a caller is already doing so.
    pub(crate) fn land_all(&mut self) {
        while self.land() {}
    }

    fn land(&mut self) -> bool {
        // Taken out for the loop; the boxed buffer does not move.
        let Some(mut completions) = self.completions.take() else {
            return false;
        };
        let count = self.port.poll(&mut *completions);
        for completion in &completions[..count] {
            match completion.kind {
                CompletionKind::Receive => self.received(completion),
                CompletionKind::Write => self.write_ended(completion),
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
            return; // else an earlier link of a removed node
        };
        self.message(node, whole.then_some(&bytes));
    }

    /// Processes one message of a peer; `None` for one of a wrong length.
    pub(crate) fn message(&mut self, node: NodeId, bytes: Option<&[u8; MESSAGE]>) {
        self.counters.messages_received += 1;
        if self.peers.is_accused(node) {
            return;
        }
        let parsed = match (self.peers.get_mut(node), bytes) {
            (Some(peer), Some(bytes)) => {
                let parsed = peer.messenger.received(bytes);
                // Credits may be owed now, or may have arrived for queued messages.
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

    fn write_ended(&mut self, completion: &Completion) {
        let id = completion.id.0;
        // If links reconnect, a failed WRITE may still land.
        let ended = completion.status == CompletionStatus::Success || !self.resumes();
        if id & (PLACED | ASKED) == ASKED {
            return self.question_ended(completion);
        }
        if id & PLACED == 0 || !ended {
            return;
        }
        if let Some(placement) = self.placements.landed(WriteKey::from_bits(id & !PLACED)) {
            self.follow_ups.push_back(FollowUp::Placed(placement.line));
        }
    }

    /// Counts WRITEs in flight to a removed peer as landed.
    pub(crate) fn placed_at_dead(&mut self, node: NodeId) {
        let follow_ups = &mut self.follow_ups;
        let landed = |placement: LineWrite| follow_ups.push_back(FollowUp::Placed(placement.line));
        self.placements.gone(node, landed);
    }

    fn links(&mut self) -> bool {
        self.tick();
        self.end_requests();
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
        if !self.boot.incoming.is_empty() {
            self.advance_incoming();
        }
        any
    }

    /// Posts pending work: first bytes of lines, then messages. On each link the bytes that a message
    /// announces thus precede it.
    #[inline]
    pub(crate) fn post(&mut self) -> bool {
        let idle = self.placements.is_idle() && self.peers.ready.is_empty();
        !idle && self.post_all()
    }

    fn post_all(&mut self) -> bool {
        let mut any = false;
        while !self.placements.is_idle() {
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
        let count = self.placements.waiting_count().min(POST);
        let nothing = Posted { accepted: 0, stop: None };
        let Some(first) = self.waiting(0) else {
            // For a removed peer: it counts as landed.
            if let Some((_, to, _)) = self.placements.waiting(0) {
                self.placed_at_dead(to);
                self.follow_up();
            }
            return (1, nothing);
        };
        if count == 1 {
            let posted = self.port.post(&[place(&first)]);
            return self.posted_placements(posted);
        }
        let run = (1..count).take_while(|at| self.waiting(*at).is_some()).count() + 1;
        let waiting: [PendingLineWrite; POST] =
            std::array::from_fn(|at| self.waiting(at.min(run - 1)).unwrap_or(first));
        let works: [Work<'_>; POST] = std::array::from_fn(|at| place(&waiting[at]));
        let posted = self.port.post(&works[..run]);
        self.posted_placements(posted)
    }

    /// The pending placement at index `place`; `None` if its peer has no link.
    #[inline]
    fn waiting(&self, place: usize) -> Option<PendingLineWrite> {
        let (key, to, placement) = self.placements.waiting(place)?;
        let link = self.peers.get(to)?.link?;
        let region =
            if placement.from_cache { self.regions.cache.id } else { self.regions.home.id };
        let slice = LocalSlice { region, offset: placement.offset, bytes: placement.bytes };
        Some(PendingLineWrite { key, link, slice, placement })
    }

    /// Counts posted placements.
    fn posted_placements(&mut self, posted: Posted) -> (usize, Posted) {
        self.counters.doorbells += 1;
        self.counters.work_requests += posted.accepted as u64;
        for _ in 0..posted.accepted {
            let Some((_, to, placement)) = self.placements.waiting(0) else {
                break;
            };
            self.counters.bytes_placed += u64::from(placement.bytes);
            let sent = self.peers.get(to).map_or(0, |peer| peer.messenger.sent_count());
            self.placements.posted(sent);
        }
        if let (Some(Stop::Invalid(what)), Some((_, to, _))) =
            (posted.stop, self.placements.waiting(0))
        {
            self.failure = Some(what);
            self.follow_ups.push_back(FollowUp::Drop(to));
        }
        (posted.accepted, posted)
    }

    fn post_messages(&mut self, node: NodeId) -> bool {
        let Some(peer) = self.peers.get_mut(node) else {
            return false;
        };
        let Some(link) = peer.link else {
            return false; // queued messages are posted when the link is back
        };
        let mut sent = 0;
        while !peer.messenger.is_idle()
            && let Some(message) = peer.messenger.peek()
        {
            let work = Work {
                id: SENT,
                link: link.id,
                flags: WorkFlags::default(),
                operation: Operation::Send { source: Source::Inline(&message), immediate: None },
            };
            self.counters.doorbells += 1;
            if self.port.post(&[work]).accepted == 0 {
                self.peers.ready.insert(node); // the next poll retries
                break;
            }
            sent += 1;
            peer.messenger.sent();
        }
        // Without a credit the messenger shows no message; credits that arrive make the peer ready again.
        self.counters.work_requests += sent;
        self.counters.messages_sent += sent;
        sent > 0
    }
}

/// A placement with the values of its work request.
#[derive(Clone, Copy)]
struct PendingLineWrite {
    key: WriteKey,
    link: PeerLink,
    slice: LocalSlice,
    placement: LineWrite,
}

fn place(waiting: &PendingLineWrite) -> Work<'_> {
    let PendingLineWrite { key, link, slice, placement } = waiting;
    Work {
        id: WorkId(PLACED | key.to_bits()),
        link: link.id,
        flags: WorkFlags { signalled: true, fence: false, awaited: false },
        operation: Operation::Write {
            source: Source::Gather(std::slice::from_ref(slice)),
            to: RemoteSlice {
                region: link.region(placement.to_cache),
                offset: placement.to_offset,
            },
            immediate: None,
        },
    }
}
