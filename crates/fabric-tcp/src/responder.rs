//! The responder of one link: executes the peer's requests in the order of their sequence numbers, in
//! the thread that holds the port's lock. The target's program takes no part.
//!
//! A request that finds no receive is not executed: it is answered `NotReady`, and everything after it
//! is dropped until the peer repeats it. The same holds while READ answers wait for room and a later
//! request would change the memory that they read.

use crate::payload::Segment;
use crate::queues::{PortQueues, PostedReceive};
use crate::region::TcpRegion;
use crate::staged::Staged;
use crate::wire::{
    self, FrameKind, LAST, OUTSTANDING_MAX, RequestHeader, SEND_MAX, Short, TRANSFER_MAX,
};
use farside_base::{Access, CompletionStatus, LinkId, ReceiveQueueId, RegionId};
use farside_fabric::Arena;
use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

/// Unacknowledged requests without a waiting thread after which an acknowledgement is sent anyway.
const QUIET_MAX: u32 = 64;
/// Requests that are acknowledged at once, even if the program is about to answer: a peer that sends
/// this many in a row waits for room rather than for an answer.
const MANY: u32 = 4;
/// Bytes of READ answers that are copied at once so that a later request need not wait.
const SNAPSHOT_MAX: u64 = 1 << 20;

/// Bytes of an answer that are copied, and sent, at once: few enough for a cache.
const CHUNK_BYTES: u32 = 64 << 10;
const _: () = assert!(CHUNK_BYTES <= wire::CHUNK_MAX);
/// Fewer bytes than this are copied, so that one call sends many answers.
const DIRECT_MIN: u32 = 16 << 10;

/// An answer to be sent, in this order.
enum Response {
    Bytes {
        sequence: u32,
        region: RegionId,
        arena: Arena,
        /// The region has relaxed ordering: neither order nor whole words are promised.
        relaxed: bool,
        offset: u64,
        left: u32,
    },
    Word {
        sequence: u32,
        value: u64,
    },
    Refused {
        sequence: u32,
        status: CompletionStatus,
    },
    NotReady {
        sequence: u32,
    },
    Ready {
        sequence: u32,
    },
}

impl Response {
    /// Returns the request that it answers, if only requests before that can be acknowledged.
    fn holds(&self) -> Option<u32> {
        match self {
            Self::Bytes { sequence, .. } | Self::Word { sequence, .. } => Some(*sequence),
            _ => None,
        }
    }
}

#[derive(Default)]
pub(crate) struct Responder {
    /// The sequence of the next request.
    expected: u32,
    /// The last request that was acknowledged to the peer.
    acknowledged: u32,
    /// The peer waits for an acknowledgement.
    pub(crate) urgent: bool,
    /// Everything is dropped until `expected` is repeated.
    drops: bool,
    /// A request was refused: everything is dropped for good.
    refused: bool,
    /// `Ready` is due once answers were sent.
    busy: bool,
    answers: VecDeque<Response>,
}

/// The result of staging the next answer.
pub(crate) enum Staging {
    /// There is none.
    Nothing,
    /// It is staged, or a part of it.
    Copied,
    /// Its header is staged, and these bytes follow directly from memory.
    Direct(RegionId, Segment),
}

/// The treatment of the bytes after a request's header.
pub(crate) enum Course {
    /// There were none, and the request is executed.
    Done,
    /// They are dropped.
    Drop,
    /// They are a WRITE's.
    Write { region: RegionId, arena: Arena, relaxed: bool, receive: Option<PostedReceive> },
    /// They are a message's.
    Message { posted: PostedReceive },
    /// The message has a receive that is too short, or whose memory was deregistered.
    Unfit { posted: PostedReceive, status: CompletionStatus },
    /// The request violates the protocol.
    Violation(&'static str),
}

impl Responder {
    /// A link begins at sequence 0, so nothing was executed.
    pub(crate) fn new() -> Self {
        Self { acknowledged: u32::MAX, ..Self::default() }
    }

    /// Executes a WRITE whose bytes were all received. Leaves it to `begin` if it must wait or be
    /// refused. Most short WRITEs are executed here.
    pub(crate) fn write_whole(
        &mut self,
        request: &RequestHeader,
        bytes: &[u8],
        queues: &PortQueues,
    ) -> bool {
        let next = request.kind == FrameKind::Write && request.sequence == self.expected;
        if !next || request.takes_receive() || self.refused || !self.answers.is_empty() {
            return false;
        }
        let Ok(region) = self.allowed(request, queues) else {
            return false;
        };
        self.drops = false;
        // A thread that sees what follows also sees what came before on this link.
        fence(Ordering::AcqRel);
        let written = region.arena.write(request.offset, bytes);
        debug_assert!(written.is_ok(), "bounds were checked");
        self.done(request);
        true
    }

    /// Checks a request, and executes it if no bytes follow.
    pub(crate) fn begin(
        &mut self,
        request: &RequestHeader,
        (link, queue): (LinkId, ReceiveQueueId),
        queues: &mut PortQueues,
    ) -> Course {
        if request.bytes > TRANSFER_MAX
            || (request.kind == FrameKind::Send && request.bytes > SEND_MAX)
        {
            return Course::Violation("length of a request");
        }
        if self.refused {
            return Course::Drop;
        }
        if request.sequence != self.expected {
            return if self.drops { Course::Drop } else { Course::Violation("sequence") };
        }
        self.drops = false;
        if self.answers.len() > OUTSTANDING_MAX as usize {
            return Course::Violation("too many requests");
        }
        if request.changes() && self.unread_bytes() > 0 {
            return self.defer(Response::NotReady { sequence: request.sequence }, true);
        }
        if request.kind == FrameKind::Send {
            return self.message(request, (link, queue), queues);
        }
        let region = match self.allowed(request, queues) {
            Ok(region) => region.clone(),
            Err(status) => return self.refuse(status),
        };
        // A thread that sees what follows also sees what came before on this link.
        fence(Ordering::AcqRel);
        self.one_sided(request, region, (link, queue), queues)
    }

    fn one_sided(
        &mut self,
        request: &RequestHeader,
        region: TcpRegion,
        (link, queue): (LinkId, ReceiveQueueId),
        queues: &mut PortQueues,
    ) -> Course {
        let TcpRegion { id, arena, access, .. } = region;
        let relaxed = access.allows(Access::RELAXED_ORDERING);
        match request.kind {
            FrameKind::Write => {
                let mut receive = None;
                if request.takes_receive() {
                    receive = queues.next_receive(queue, link);
                    if receive.is_none() {
                        let sequence = request.sequence;
                        return self.defer(Response::NotReady { sequence }, false);
                    }
                }
                Course::Write { region: id, arena, relaxed, receive }
            }
            FrameKind::Read => {
                let (sequence, offset, left) = (request.sequence, request.offset, request.bytes);
                let region = id;
                self.answers.push_back(Response::Bytes {
                    sequence,
                    region,
                    arena,
                    relaxed,
                    offset,
                    left,
                });
                self.expected = self.expected.wrapping_add(1);
                Course::Done
            }
            FrameKind::Atomic => {
                let Some(value) = atomic(request, &arena) else {
                    return Course::Violation("atomic");
                };
                let sequence = request.sequence;
                self.answers.push_back(Response::Word { sequence, value });
                self.expected = self.expected.wrapping_add(1);
                Course::Done
            }
            FrameKind::AtomicWrite => {
                let stored = arena.store(request.offset, request.value, Ordering::Release);
                debug_assert!(stored.is_ok(), "bounds and alignment were checked");
                self.done(request);
                Course::Done
            }
            FrameKind::Flush => {
                fence(Ordering::SeqCst);
                self.done(request);
                Course::Done
            }
            _ => Course::Violation("kind of a request"),
        }
    }

    fn message(
        &mut self,
        request: &RequestHeader,
        (link, queue): (LinkId, ReceiveQueueId),
        queues: &mut PortQueues,
    ) -> Course {
        let Some(posted) = queues.next_receive(queue, link) else {
            return self.defer(Response::NotReady { sequence: request.sequence }, false);
        };
        let status = if request.bytes > posted.receive.into.bytes {
            CompletionStatus::LengthExceeded
        } else if queues.regions.find(posted.receive.into.region).is_none() {
            // The receiver's program deregistered the memory of a posted receive.
            CompletionStatus::RemoteAccess
        } else {
            return Course::Message { posted };
        };
        self.refuse(status);
        Course::Unfit { posted, status }
    }

    /// Returns the region, if its owner's record allows this request.
    fn allowed<'d>(
        &self,
        request: &RequestHeader,
        queues: &'d PortQueues,
    ) -> Result<&'d TcpRegion, CompletionStatus> {
        let refused = CompletionStatus::RemoteAccess;
        let (access, bytes) = match request.kind {
            FrameKind::Read => (Access::READ, u64::from(request.bytes)),
            FrameKind::Write => (Access::WRITE, u64::from(request.bytes)),
            FrameKind::AtomicWrite => (Access::WRITE, 8),
            FrameKind::Flush => (Access::FLUSH, request.value),
            _ => (Access::ATOMIC, 8),
        };
        let region = queues.regions.find(RegionId(request.region)).ok_or(refused)?;
        if region.key != request.key || !region.access.allows(access) {
            return Err(refused);
        }
        if request.kind == FrameKind::Flush && wire::scope_from_bits(request.immediate).is_none() {
            return Err(refused);
        }
        let bytes = usize::try_from(bytes).map_err(|_| refused)?;
        region.arena.at(request.offset, bytes).map_err(|_| refused)?;
        let is_word = matches!(request.kind, FrameKind::Atomic | FrameKind::AtomicWrite);
        if is_word && !request.offset.is_multiple_of(8) {
            return Err(CompletionStatus::RemoteAlignment);
        }
        Ok(region)
    }

    /// Records an executed request that changes local memory or needs no answer.
    pub(crate) fn done(&mut self, request: &RequestHeader) {
        self.expected = self.expected.wrapping_add(1);
        self.urgent |= request.flags & wire::SIGNALLED != 0;
    }

    /// Fails a request; no later request of the link is executed.
    pub(crate) fn refuse(&mut self, status: CompletionStatus) -> Course {
        self.refused = true;
        self.answers.push_back(Response::Refused { sequence: self.expected, status });
        Course::Drop
    }

    fn defer(&mut self, answer: Response, busy: bool) -> Course {
        self.drops = true;
        self.busy |= busy;
        self.answers.push_back(answer);
        Course::Drop
    }

    /// Notifies the peer that a receive was posted.
    pub(crate) fn receive_posted(&mut self) {
        if self.drops && !self.busy && !self.refused {
            self.answers.push_back(Response::Ready { sequence: self.expected });
        }
    }

    /// Returns the bytes that earlier READs have still to read.
    fn unread_bytes(&self) -> u64 {
        self.answers.iter().fold(0, |sum, answer| match answer {
            Response::Bytes { left, .. } => sum + u64::from((*left).max(1)),
            _ => sum,
        })
    }

    /// Returns whether answers are short enough to be copied at once.
    pub(crate) fn snapshot(&self) -> bool {
        (1..=SNAPSHOT_MAX).contains(&self.unread_bytes())
    }

    /// Returns whether many unsignaled requests are unacknowledged.
    fn owes_much(&self) -> bool {
        self.covered().wrapping_sub(self.acknowledged) >= QUIET_MAX
    }

    /// Returns whether an answer is to be sent now.
    pub(crate) fn has_answers(&self) -> bool {
        !self.answers.is_empty() || (self.busy && !self.refused)
    }

    /// Returns whether an acknowledgement must not be delayed further.
    pub(crate) fn owes_many(&self) -> bool {
        self.covered().wrapping_sub(self.acknowledged) >= MANY
    }

    /// Returns whether an acknowledgement is due as a frame of its own.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.owes_much() || (self.urgent && self.has_unacknowledged())
    }

    /// Returns whether an executed request was not acknowledged yet.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.covered() != self.acknowledged
    }

    /// Returns the last request that can be acknowledged, before the pending answers.
    fn covered(&self) -> u32 {
        let holding = self.answers.iter().find_map(Response::holds);
        holding.unwrap_or(self.expected).wrapping_sub(1)
    }

    /// Returns the acknowledgement for the next header.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        self.acknowledged = self.covered();
        if self.acknowledged == self.expected.wrapping_sub(1) {
            self.urgent = false;
        }
        self.acknowledged
    }

    /// Removes a deregistered region: pending READs return no more of it.
    pub(crate) fn end_region(&mut self, region: RegionId) {
        let at = self.answers.iter().position(
            |answer| matches!(answer, Response::Bytes { region: of, .. } if *of == region),
        );
        let Some(at) = at else {
            return;
        };
        let sequence = self.answers[at].holds().unwrap_or(self.expected);
        self.answers.truncate(at);
        let status = CompletionStatus::RemoteAccess;
        self.answers.push_back(Response::Refused { sequence, status });
        self.refused = true;
        self.busy = false;
        // Nothing from this request on is acknowledged, whatever was executed.
        self.expected = sequence;
    }

    /// Appends the next answer, or a part of it. With `direct`, long bytes of relaxed-ordering
    /// regions are not copied.
    pub(crate) fn stage(&mut self, out: &mut Staged, direct: bool) -> Staging {
        let short = |kind, code, bytes, sequence, value| Short {
            kind,
            code,
            bytes,
            sequence,
            acknowledged: 0,
            value,
        };
        let Some(answer) = self.answers.front_mut() else {
            if std::mem::take(&mut self.busy) && !self.refused {
                self.answers.push_back(Response::Ready { sequence: self.expected });
                return self.stage(out, direct);
            }
            return Staging::Nothing;
        };
        let mut rest = None;
        let mut direct_bytes = None;
        let frame = match answer {
            Response::Bytes { sequence, region, arena, relaxed: true, offset, left }
                if direct && *left >= DIRECT_MIN =>
            {
                let count = (*left).min(wire::CHUNK_MAX);
                let last = count == *left;
                let segment = Segment { arena: arena.clone(), offset: *offset, bytes: count };
                direct_bytes = Some((*region, segment));
                *offset += u64::from(count);
                *left -= count;
                short(FrameKind::Bytes, if last { LAST } else { 0 }, count, *sequence, 0)
            }
            Response::Bytes { sequence, arena, offset, left, .. } => {
                // Cut where a word of the source ends, so that none is fetched in two pieces.
                let most = CHUNK_BYTES - (*offset % 8) as u32;
                let count = (*left).min(most);
                let last = count == *left;
                rest = Some((arena.clone(), *offset, count));
                *offset += u64::from(count);
                *left -= count;
                short(FrameKind::Bytes, if last { LAST } else { 0 }, count, *sequence, 0)
            }
            Response::Word { sequence, value } => short(FrameKind::Word, 0, 0, *sequence, *value),
            Response::Refused { sequence, status } => {
                short(FrameKind::Refused, wire::refusal_to_bits(*status), 0, *sequence, 0)
            }
            Response::NotReady { sequence } => short(FrameKind::NotReady, 0, 0, *sequence, 0),
            Response::Ready { sequence } => short(FrameKind::Ready, 0, 0, *sequence, 0),
        };
        let acknowledged = self.acknowledge();
        out.extend(&Short { acknowledged, ..frame }.encode());
        if let Some((arena, offset, count)) = rest {
            let read = arena.read(offset, out.room(count as usize));
            debug_assert!(read.is_ok(), "bounds were checked");
        }
        let finished = frame.kind != FrameKind::Bytes || frame.code == LAST;
        if finished {
            self.answers.pop_front();
        }
        match direct_bytes {
            Some((region, segment)) => Staging::Direct(region, segment),
            None => Staging::Copied,
        }
    }
}

fn atomic(request: &RequestHeader, arena: &Arena) -> Option<u64> {
    let (at, [a, b, c, d]) = (request.offset, request.operands);
    let before = match request.immediate {
        1 => arena.fetch_add(at, a),
        2 => arena.compare_swap(at, a, b),
        3 => arena.swap(at, a),
        4 => arena.masked_compare_swap(at, a, b, c, d),
        5 => arena.masked_fetch_add(at, a, b),
        _ => return None,
    };
    before.ok()
}
