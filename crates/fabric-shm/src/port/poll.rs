//! Messages that arrive: each is copied into the next receive of its link's queue.

use super::cache::RegionCache;
use super::link::{Link, LinkSlot};
use super::{PASSED_OVER_MAX, ShmPort};
use crate::bell::ring;
use crate::mapping::View;
use crate::options::CAPABILITIES;
use crate::queue::ReceiveQueue;
use crate::ring::{Kind, Message, Seen, Violation};
use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId, Receive};
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
        finished + self.receive(&mut out[finished..])
    }

    /// Moves messages into receives, one link after the other, beginning after the one where the
    /// last call began; how many completions were written.
    #[inline]
    fn receive(&mut self, out: &mut [Completion]) -> usize {
        self.passed_over = 0;
        if self.inbox.wants_attention() {
            self.attend();
        }
        let count = self.open.len();
        let mut turn = self.turn;
        let mut written = 0;
        for _ in 0..count {
            turn = if turn + 1 < count { turn + 1 } else { 0 };
            let watch = &mut self.open[turn];
            if watch.is_idle() {
                continue;
            }
            let number = watch.link;
            let Some(LinkSlot::Open(link)) = self.links.get_mut(number.0 as usize) else {
                continue;
            };
            let Some(queue) = self.queues.get_mut(link.queue as usize) else {
                continue;
            };
            let was_deaf = link.deaf;
            written += link.drain(queue, &self.regions, &mut out[written..]);
            watch.look_again(link);
            if link.deaf && !was_deaf {
                self.fail(number);
            }
        }
        if count > 1 {
            self.turn = if turn + 1 < count { turn + 1 } else { 0 };
        }
        self.pace.polled(written as u32, &self.bell);
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
    fn is_idle(&self) -> bool {
        self.seen.is_idle(&self.memory)
    }

    fn look_again(&mut self, link: &Link) {
        self.seen = link.consumer.seen();
    }
}

impl Link {
    /// Moves messages into receives while there are both, and room in `out`.
    fn drain(
        &mut self,
        queue: &mut ReceiveQueue,
        regions: &RegionCache,
        out: &mut [Completion],
    ) -> usize {
        let mut written = 0;
        while written < out.len() && !self.deaf {
            let message = match self.consumer.peek() {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(Violation) => {
                    self.break_off();
                    break;
                }
            };
            let Some(receive) = queue.front() else {
                break;
            };
            if std::mem::take(&mut self.spoke) {
                // Where messages alternate, the answer's slot comes while the caller thinks.
                self.producer.expect_one();
            }
            let Some(delivery) = self.deliver(&message, receive, regions, &mut out[written]) else {
                self.break_off();
                break;
            };
            queue.take();
            self.heard = true;
            written += 1;
            if delivery == Delivery::Taken {
                self.consumer.take(&message);
            }
        }
        let more = written == out.len() && !self.deaf;
        if self.consumer.settle(more) {
            ring(&self.bell);
        }
        written
    }

    /// Puts a message into a receive, and what came of it into `out`, in place, since a completion
    /// that is copied right after it was written waits for its pieces. `None` when the peer broke
    /// the rules.
    #[inline(always)]
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
        *out = Completion {
            id: receive.id,
            link: self.number,
            bytes: message.bytes,
            immediate,
            kind: CompletionKind::Receive,
            status: CompletionStatus::Success,
        };
        Some(Delivery::Taken)
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
