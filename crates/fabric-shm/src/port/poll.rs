//! Messages that arrive: each is copied into the next receive of its link's queue.

use super::cache::RegionCache;
use super::link::{Link, LinkSlot};
use super::{PASSED_OVER_MAX, ShmPort};
use crate::bell::ring;
use crate::mapping::View;
use crate::options::CAPABILITIES;
use crate::queue::ReceiveQueue;
use crate::ring::{Kind, Message, SLOT_BYTES, Seen};
use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId, Receive};
use farside_fabric::{Arena, OutOfBounds};
use std::sync::atomic::Ordering;

/// What becomes of a message that met a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// It is done with.
    Taken,
    /// It was not put anywhere and meets the next receive.
    Again,
}

impl ShmPort {
    /// Moves completions of requests, then messages where it is time for them, to `out`.
    #[inline(never)]
    pub(super) fn poll_all(&mut self, out: &mut [Completion]) -> usize {
        let finished = self.completions.take(out);
        if finished > 0 && self.passed_over < PASSED_OVER_MAX {
            self.passed_over += 1;
            return finished;
        }
        if self.inbox.wants_attention() {
            self.attend();
        }
        self.passed_over = 0;
        self.pace.polled(0, &self.bell);
        finished + self.receive(&mut out[finished..])
    }

    /// Moves messages into receives, one link after the other, beginning after the one where the
    /// last call began; how many completions were written.
    #[inline(never)]
    pub(super) fn receive(&mut self, out: &mut [Completion]) -> usize {
        let count = self.open.len();
        let first = if self.turn < count { self.turn } else { 0 };
        self.turn = first + 1;
        let mut written = 0;
        for at in (first..count).chain(0..first) {
            if !self.open[at].is_idle() {
                written += self.receive_from(at, &mut out[written..]);
            }
        }
        written
    }

    /// As [`receive`](Self::receive), of one link of the open ones, on which there is something.
    #[inline(never)]
    pub(super) fn receive_from(&mut self, at: usize, out: &mut [Completion]) -> usize {
        let Some(watch) = self.open.get_mut(at) else { return 0 };
        let Some(LinkSlot::Open(link)) = self.links.get_mut(watch.link.0 as usize) else {
            return 0;
        };
        let Some(queue) = self.queues.get_mut(link.queue as usize) else { return 0 };
        if link.deaf {
            return 0;
        }
        let written = link.drain(queue, &self.regions, out);
        watch.look_again(link);
        self.pace.polled(written as u32, &self.bell);
        if link.deaf {
            let number = watch.link;
            self.fail(number);
        }
        written
    }

    /// Tells all peers how much was taken, before this port sleeps: they may wait for room.
    pub(super) fn tell_all(&mut self) {
        for watch in &mut self.open {
            if let Some(LinkSlot::Open(link)) = self.links.get_mut(watch.link.0 as usize)
                && link.consumer.tell()
            {
                ring(&link.bell);
                watch.look_again(link);
            }
        }
    }
}

/// What a look for messages needs of an open link, kept together, since most looks are in vain. In
/// a cache line of its own, since another port of the process may have its own beside it.
#[repr(align(64))]
pub(super) struct Watch {
    pub(super) link: LinkId,
    memory: View,
    seen: Seen,
}

impl Watch {
    pub(super) fn new(link: &Link) -> Self {
        Self {
            link: link.number,
            memory: link.consumer.other().clone(),
            seen: link.consumer.seen(),
        }
    }

    /// Whether there is neither a message nor anything that the peer waits to be told.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        self.seen.is_idle(&self.memory)
    }

    #[inline(always)]
    fn look_again(&mut self, link: &Link) {
        self.seen = link.consumer.seen();
    }
}

/// Not in line, for the sake of the registers of the common case.
#[inline(never)]
fn copy_apart(
    ring: &View,
    from: u64,
    arena: &Arena,
    to: u64,
    bytes: u32,
) -> Result<(), OutOfBounds> {
    ring.copy_to(from, arena, to, bytes as usize)
}

impl Link {
    /// Moves messages into receives while there are both, and room in `out`; how many.
    #[inline(always)]
    fn drain(
        &mut self,
        queue: &mut ReceiveQueue,
        regions: &RegionCache,
        out: &mut [Completion],
    ) -> usize {
        let mut written = 0;
        while let Some(place) = out.get_mut(written)
            && let Some(header) = self.consumer.fresh()
        {
            if self.deliver_straight(header, queue, regions, place) {
                written += 1;
                continue;
            }
            let delivered = self.deliver_generally(header, queue, regions, place);
            written += usize::from(delivered);
            if self.deaf || !delivered {
                break;
            }
        }
        let more = written == out.len() && !self.deaf;
        if self.consumer.settle(more) {
            ring(&self.bell);
        }
        written
    }

    /// Takes a message of the common kind in whose delivery nothing is amiss, a SEND that lies in
    /// its slot, and tells of it in `out`; whether it was one. If not, nothing has happened.
    #[inline(always)]
    fn deliver_straight(
        &mut self,
        header: u64,
        queue: &mut ReceiveQueue,
        regions: &RegionCache,
        out: &mut Completion,
    ) -> bool {
        let Some(bytes) = self.consumer.parse_short(header) else { return false };
        let Some(receive) = queue.front() else { return false };
        let Some(arena) = regions.find(receive.into.region) else { return false };
        if bytes > receive.into.bytes {
            return false;
        }
        let (ring, from, to) = (self.consumer.other(), self.consumer.slot(), receive.into.offset);
        let copied = match bytes {
            // Of a length that the compiler knows, so without the choice of the moves for it.
            SLOT_BYTES => ring.copy_to(from, arena, to, SLOT_BYTES as usize),
            bytes => copy_apart(ring, from, arena, to, bytes),
        };
        if copied.is_err() {
            return false;
        }
        *out = self.received(receive, bytes, None);
        queue.take();
        self.consumer.take_short();
        self.hear();
        true
    }

    /// Takes any message, if there is a receive for it and the peer kept the rules, and tells of it
    /// in `out`; whether it did.
    #[inline(never)]
    fn deliver_generally(
        &mut self,
        header: u64,
        queue: &mut ReceiveQueue,
        regions: &RegionCache,
        out: &mut Completion,
    ) -> bool {
        let Ok(message) = self.consumer.parse(header) else {
            self.break_off();
            return false;
        };
        let Some(receive) = queue.front() else {
            return false;
        };
        let Some(delivery) = self.deliver(&message, receive, regions, out) else {
            self.break_off();
            return false;
        };
        queue.take();
        self.hear();
        if delivery == Delivery::Taken {
            self.consumer.take(&message);
        }
        true
    }

    /// Notes that a message came. Where messages alternate, the answer's slot comes while the
    /// caller thinks.
    #[inline(always)]
    fn hear(&mut self) {
        self.heard = true;
        if std::mem::take(&mut self.spoke) {
            self.producer.expect_one();
        }
    }

    /// Puts a message into a receive, and what came of it into `out`, in place, since a completion
    /// that is copied right after it was written waits for its pieces. `None` when the peer broke
    /// the rules.
    fn deliver(
        &mut self,
        message: &Message,
        receive: &Receive,
        regions: &RegionCache,
        out: &mut Completion,
    ) -> Option<Delivery> {
        let immediate = match message.kind {
            Kind::WriteImmediate => return self.deliver_immediate(message, receive, out),
            Kind::SendImmediate => Some(message.immediate),
            Kind::Send => None,
        };
        if message.bytes > receive.into.bytes {
            return Some(self.too_long(receive, out));
        }
        let bytes = message.bytes as usize;
        let Some(arena) = regions.find(receive.into.region) else {
            return Some(self.without_memory(receive, out));
        };
        let ring = self.consumer.other();
        let copied = ring.copy_to(message.payload, arena, receive.into.offset, bytes);
        if copied.is_err() {
            return Some(self.without_memory(receive, out));
        }
        *out = self.received(receive, message.bytes, immediate);
        Some(Delivery::Taken)
    }

    #[inline(always)]
    fn received(&self, receive: &Receive, bytes: u32, immediate: Option<u32>) -> Completion {
        Completion {
            id: receive.id,
            link: self.number,
            bytes,
            immediate,
            kind: CompletionKind::Receive,
            status: CompletionStatus::Success,
        }
    }

    fn deliver_immediate(
        &self,
        message: &Message,
        receive: &Receive,
        out: &mut Completion,
    ) -> Option<Delivery> {
        let bytes = self.consumer.other().load(message.payload, Ordering::Relaxed);
        if bytes > CAPABILITIES.transfer_bytes_max {
            return None;
        }
        *out = Completion {
            id: receive.id,
            link: self.number,
            bytes: bytes as u32,
            immediate: Some(message.immediate),
            kind: CompletionKind::ReceiveImmediate,
            status: CompletionStatus::Success,
        };
        Some(Delivery::Taken)
    }

    /// The message ends the link, as does every message that meets too short a receive.
    #[cold]
    fn too_long(&mut self, receive: &Receive, out: &mut Completion) -> Delivery {
        self.deaf = true;
        *out = self.refusal(receive, CompletionStatus::LengthExceeded);
        Delivery::Taken
    }

    /// The receive's region was ended after it was posted: the receive goes, the message stays.
    #[cold]
    fn without_memory(&self, receive: &Receive, out: &mut Completion) -> Delivery {
        *out = self.refusal(receive, CompletionStatus::Flushed);
        Delivery::Again
    }

    fn refusal(&self, receive: &Receive, status: CompletionStatus) -> Completion {
        Completion {
            id: receive.id,
            link: self.number,
            bytes: 0,
            immediate: None,
            kind: CompletionKind::Receive,
            status,
        }
    }
}
