//! Messages that arrive: each is copied into the next receive of its link's queue.

use super::cache::RegionCache;
use super::link::{LinkSlot, ShmLink};
use super::{PASSED_OVER_MAX, ShmPort};
use crate::bell::ring;
use crate::mapping::View;
use crate::options::CAPABILITIES;
use crate::queue::ShmReceiveQueue;
use crate::ring::{RingMessage, RingMessageKind, SLOT_BYTES, Seen};
use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId, Receive};
use farside_fabric::{Arena, OutOfBounds};
use std::sync::atomic::Ordering;

/// The result of delivering a message to a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// It is done with.
    Taken,
    /// It was not stored and takes the next receive.
    Again,
}

impl ShmPort {
    /// Moves completions of requests, then messages if they are due, to `out`.
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
        finished + self.receive(&mut out[finished..])
    }

    /// Moves messages into receives, one link after the other, beginning after the one with which the
    /// last call began. Returns how many completions were written.
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

    /// As [`receive`](Self::receive), for one open link that has something.
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
        if link.deaf {
            let number = watch.link;
            self.fail(number);
        }
        written
    }

    /// Notifies all peers of freed slots before this port sleeps: they may wait for room.
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

/// The part of an open link that a check for messages needs, kept together since most checks find
/// nothing. In a cache line of its own, since another port of the process may have its own next to it.
#[repr(align(64))]
pub(super) struct PolledLink {
    pub(super) link: LinkId,
    memory: View,
    seen: Seen,
}

impl PolledLink {
    pub(super) fn new(link: &ShmLink) -> Self {
        Self {
            link: link.number,
            memory: link.consumer.other().clone(),
            seen: link.consumer.seen(),
        }
    }

    /// Returns whether there is neither a message nor a notification that the peer waits for.
    #[inline(always)]
    pub(super) fn is_idle(&self) -> bool {
        self.seen.is_idle(&self.memory)
    }

    #[inline(always)]
    fn look_again(&mut self, link: &ShmLink) {
        self.seen = link.consumer.seen();
    }
}

/// Not inlined, to leave registers to the common case.
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

impl ShmLink {
    /// Moves messages into receives while there are both, and room in `out`. Returns how many.
    #[inline(always)]
    fn drain(
        &mut self,
        queue: &mut ShmReceiveQueue,
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

    /// Delivers a valid SEND that fits in its slot on the fast path, and stores its completion in
    /// `out`. Returns whether it did; if not, nothing has happened.
    #[inline(always)]
    fn deliver_straight(
        &mut self,
        header: u64,
        queue: &mut ShmReceiveQueue,
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

    /// Delivers any message, if there is a receive for it and the peer kept the protocol, and stores
    /// its completion in `out`. Returns whether it did.
    #[inline(never)]
    fn deliver_generally(
        &mut self,
        header: u64,
        queue: &mut ShmReceiveQueue,
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

    /// Records that a message arrived. If messages alternate, the slot of the answer is prefetched
    /// while the caller computes.
    #[inline(always)]
    fn hear(&mut self) {
        self.heard = true;
        if std::mem::take(&mut self.spoke) {
            self.producer.expect_one();
        }
    }

    /// Copies a message into a receive and stores the completion in `out`, in place, since copying a
    /// completion right after it was written would stall on its parts. `None` if the peer violated the
    /// protocol.
    fn deliver(
        &mut self,
        message: &RingMessage,
        receive: &Receive,
        regions: &RegionCache,
        out: &mut Completion,
    ) -> Option<Delivery> {
        let immediate = match message.kind {
            RingMessageKind::WriteImmediate => {
                return self.deliver_immediate(message, receive, out);
            }
            RingMessageKind::SendImmediate => Some(message.immediate),
            RingMessageKind::Send => None,
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
        message: &RingMessage,
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

    /// Handles a message longer than its receive, which ends the link.
    #[cold]
    fn too_long(&mut self, receive: &Receive, out: &mut Completion) -> Delivery {
        self.deaf = true;
        *out = self.refusal(receive, CompletionStatus::LengthExceeded);
        Delivery::Taken
    }

    /// Handles a receive whose region was deregistered after it was posted: the receive is used up, the
    /// message stays.
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
