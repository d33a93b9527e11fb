//! The requester of one link: requests are posted, sent and answered in order. A request is kept until
//! it is answered, so that it can be repeated after receiver-not-ready.

use crate::options::INLINE_MAX;
use crate::payload::Segment;
use crate::queues::PortQueues;
use crate::staged::Staged;
use crate::wire::{self, FrameKind, IMMEDIATE, OUTSTANDING_MAX, RequestHeader, SIGNALLED};
use farside_base::{
    CompletionKind, CompletionStatus, FlushScope, LinkId, LocalSlice, Operation, RegionToken, Work,
    WorkId,
};
use farside_fabric::{Arena, Parts, Stop};
use std::collections::{VecDeque, vec_deque};

/// Requests in flight from which on further ones may be held back to be sent together.
const CROWD: usize = 16;

/// A request that is not answered yet.
struct PendingRequest {
    id: WorkId,
    kind: CompletionKind,
    signalled: bool,
    fence: bool,
    /// Without its sequence and acknowledgement.
    header: RequestHeader,
    /// Its first segment, counted over the life of the link, and how many it has.
    segments: (u64, u32),
    /// The same for bytes that travel in the request.
    inline: (u64, u32),
    /// Bytes that it moves.
    bytes: u32,
}

#[derive(Default)]
pub(crate) struct Requester {
    /// Oldest first.
    requests: VecDeque<PendingRequest>,
    /// The sequence of the first of them.
    first: u32,
    /// How many of them are staged.
    staged: usize,
    /// Staged ones that a fence waits for.
    reads_staged: usize,
    segments: VecDeque<Segment>,
    segments_before: u64,
    inline: Staged,
    inline_before: u64,
    /// Received bytes of the first request's answer.
    landed: u64,
    /// The receiver is not ready: nothing is sent until `Ready` arrives.
    pub(crate) waits: bool,
    /// Set by every answer; for the deadline.
    pub(crate) progress: bool,
}

/// A request that is being staged.
pub(crate) struct Outgoing {
    pub(crate) header: RequestHeader,
    /// First segment, counted over the life of the link.
    pub(crate) segments: u64,
    pub(crate) bytes: u32,
    inline: (u64, u32),
}

/// The destination of an answer's bytes.
pub(crate) type Landing<'a> = (&'a Arena, u64, usize);

impl Requester {
    /// Returns whether many requests are in flight and few wait to be sent.
    pub(crate) fn is_crowded(&self) -> bool {
        let waiting = self.requests.len() - self.staged;
        self.staged >= CROWD && waiting < 2 * CROWD && !self.waits
    }

    /// Returns whether the peer has something to answer.
    pub(crate) fn awaits_answer(&self) -> bool {
        self.staged > 0 && !self.waits
    }

    /// Queues a request whose `parts` were checked against the capabilities.
    pub(crate) fn post(
        &mut self,
        work: &Work<'_>,
        parts: &Parts<'_>,
        token: Option<RegionToken>,
        queues: &PortQueues,
    ) -> Result<(), Stop> {
        let many = self.requests.len() as u64 + u64::from(queues.unpolled(work.link));
        if many >= u64::from(OUTSTANDING_MAX) {
            return Err(Stop::QueueFull);
        }
        for slice in parts.local {
            queues.local(slice)?;
        }
        let header = header(work, parts, token);
        let pending = PendingRequest {
            id: work.id,
            kind: parts.kind,
            signalled: work.flags.signalled,
            fence: work.flags.fence,
            header,
            segments: (self.segments_before + self.segments.len() as u64, parts.local.len() as u32),
            inline: (self.inline_before + self.inline.len() as u64, 0),
            // A FLUSH and an ATOMIC WRITE move nothing of their own.
            bytes: parts.bytes() as u32,
        };
        for slice in parts.local {
            self.segments.push_back(segment(slice, queues)?);
        }
        let inline = parts.inline.unwrap_or(&[]);
        debug_assert!(inline.len() <= INLINE_MAX as usize);
        if !inline.is_empty() {
            self.inline.extend(inline);
        }
        let inline = (pending.inline.0, inline.len() as u32);
        self.requests.push_back(PendingRequest { inline, ..pending });
        Ok(())
    }

    /// Returns the next request to send, if it may be sent now.
    fn waiting(&self) -> Option<&PendingRequest> {
        let next = self.requests.get(self.staged).filter(|_| !self.waits)?;
        (!next.fence || self.reads_staged == 0).then_some(next)
    }

    /// Returns whether a request may be sent now.
    pub(crate) fn has_next(&self) -> bool {
        self.waiting().is_some()
    }

    /// Takes the next request to send, if it may be sent now.
    pub(crate) fn next(&mut self) -> Option<Outgoing> {
        let next = self.waiting()?;
        let sequence = self.first.wrapping_add(self.staged as u32);
        let header = RequestHeader { sequence, ..next.header };
        let body = header.body();
        let outgoing =
            Outgoing { header, segments: next.segments.0, bytes: body, inline: next.inline };
        self.staged += 1;
        self.reads_staged += usize::from(is_read(header.kind));
        Some(outgoing)
    }

    /// Appends the bytes of a request that is short, or has them in itself.
    pub(crate) fn copy_body(&self, outgoing: &Outgoing, out: &mut Staged) -> bool {
        let (start, count) = outgoing.inline;
        let from = (start - self.inline_before) as usize;
        if count > 0 {
            out.extend(&self.inline.bytes()[from..from + count as usize]);
        }
        let mut left = outgoing.bytes - count;
        if left == 0 {
            return true;
        }
        for segment in self.segments_from(outgoing.segments) {
            if left == 0 {
                break;
            }
            if segment.arena.read(segment.offset, out.room(segment.bytes as usize)).is_err() {
                return false;
            }
            left -= segment.bytes.min(left);
        }
        left == 0
    }

    /// Segments from one on, counted over the life of the link.
    pub(crate) fn segments_from(&self, start: u64) -> vec_deque::Iter<'_, Segment> {
        let from = (start.saturating_sub(self.segments_before) as usize).min(self.segments.len());
        self.segments.range(from..)
    }

    /// Returns whether `sequence` is that of a staged request whose body was sent; `unsent` says that
    /// the last one's was not.
    fn is_staged(&self, sequence: u32, unsent: bool) -> bool {
        let index = sequence.wrapping_sub(self.first) as usize;
        index < self.staged - usize::from(unsent && self.staged > 0)
    }

    /// Completes everything up to `sequence`. Returns false if that is impossible.
    pub(crate) fn acknowledged(
        &mut self,
        link: LinkId,
        sequence: u32,
        unsent: bool,
        queues: &mut PortQueues,
    ) -> bool {
        let count = sequence.wrapping_sub(self.first).wrapping_add(1);
        if count == 0 || count > OUTSTANDING_MAX {
            // A repeated acknowledgement has no effect.
            return count == 0 || self.first.wrapping_sub(sequence) <= OUTSTANDING_MAX;
        }
        if !self.is_staged(sequence, unsent) {
            return false;
        }
        for _ in 0..count {
            if self.requests.front().is_some_and(|first| is_read(first.header.kind)) {
                return false;
            }
            self.finish_first(link, None, queues);
        }
        true
    }

    /// Completes the oldest request, with success unless `status` is given.
    fn finish_first(
        &mut self,
        link: LinkId,
        status: Option<CompletionStatus>,
        queues: &mut PortQueues,
    ) {
        let Some(first) = self.requests.pop_front() else {
            return;
        };
        self.first = self.first.wrapping_add(1);
        if self.staged > 0 {
            self.staged -= 1;
            self.reads_staged -= usize::from(is_read(first.header.kind)).min(self.reads_staged);
        }
        for _ in 0..first.segments.1 {
            self.segments.pop_front();
        }
        self.segments_before += u64::from(first.segments.1);
        self.inline.gone(first.inline.1 as usize);
        self.inline_before += u64::from(first.inline.1);
        self.landed = 0;
        self.progress = true;
        let (bytes, status) = match status {
            None => (first.bytes, CompletionStatus::Success),
            Some(status) => (0, status),
        };
        if first.signalled || status != CompletionStatus::Success {
            queues.finish(link, (first.id, first.kind), bytes, status);
        }
    }

    /// Returns whether `bytes` more are a valid answer to the READ `sequence`, the last of them with
    /// `last`.
    pub(crate) fn expects_bytes(&self, sequence: u32, bytes: u32, last: bool) -> bool {
        let Some(first) = self.requests.front() else {
            return false;
        };
        let after = self.landed + u64::from(bytes);
        let fits = if last {
            after == u64::from(first.bytes)
        } else {
            bytes > 0 && after < u64::from(first.bytes)
        };
        let staged = sequence == self.first && self.staged > 0;
        staged && first.header.kind == FrameKind::Read && fits
    }

    /// Returns the destination of the next bytes of the first READ's answer, at most `bytes`.
    pub(crate) fn landing(&self, bytes: usize) -> Option<Landing<'_>> {
        let first = self.requests.front()?;
        let mut skip = self.landed;
        for segment in self.segments.iter().take(first.segments.1 as usize) {
            let length = u64::from(segment.bytes);
            if skip >= length {
                skip -= length;
                continue;
            }
            let count = (length - skip).min(bytes as u64) as usize;
            return Some((&segment.arena, segment.offset + skip, count));
        }
        None
    }

    /// Accounts for stored bytes of the answer.
    pub(crate) fn land(&mut self, bytes: usize) {
        self.landed += bytes as u64;
        self.progress = true;
    }

    /// Completes the first READ.
    pub(crate) fn read_done(&mut self, link: LinkId, queues: &mut PortQueues) {
        self.finish_first(link, None, queues);
    }

    /// Takes the answer to an atomic. Returns false if none was requested.
    pub(crate) fn word(
        &mut self,
        link: LinkId,
        sequence: u32,
        value: u64,
        queues: &mut PortQueues,
    ) -> bool {
        let asked =
            self.requests.front().is_some_and(|first| first.header.kind == FrameKind::Atomic);
        if !asked || sequence != self.first || self.staged == 0 {
            return false;
        }
        let Some(segment) = self.segments.front() else {
            return false;
        };
        // Its bounds were checked when it was posted, and memory does not shrink.
        let _ = segment.arena.write(segment.offset, &value.to_ne_bytes());
        self.finish_first(link, None, queues);
        true
    }

    /// Handles `NotReady`: request `sequence` and all after it are repeated. Returns false if that is
    /// impossible.
    pub(crate) fn not_ready(&mut self, sequence: u32, unsent: bool) -> bool {
        if sequence != self.first || (self.staged == 0 && !unsent) {
            return false;
        }
        self.staged = 0;
        self.reads_staged = 0;
        self.waits = true;
        self.progress = true;
        true
    }

    /// Fails all requests: the first with `status`, the others flushed.
    pub(crate) fn fail(
        &mut self,
        link: LinkId,
        mut status: CompletionStatus,
        queues: &mut PortQueues,
    ) -> CompletionStatus {
        while !self.requests.is_empty() {
            self.finish_first(link, Some(status), queues);
            status = CompletionStatus::Flushed;
        }
        status
    }

    /// Returns whether request `sequence` is the one that can be refused now.
    pub(crate) fn is_first(&self, sequence: u32) -> bool {
        sequence == self.first && self.staged > 0
    }
}

fn is_read(kind: FrameKind) -> bool {
    matches!(kind, FrameKind::Read | FrameKind::Atomic)
}

fn segment(slice: &LocalSlice, queues: &PortQueues) -> Result<Segment, Stop> {
    let arena = queues.local(slice)?.clone();
    Ok(Segment { arena, offset: slice.offset, bytes: slice.bytes })
}

/// Returns the header of a request, without the fields that change with each repetition.
fn header(work: &Work<'_>, parts: &Parts<'_>, token: Option<RegionToken>) -> RequestHeader {
    let (region, key) = token.map_or((0, 0), |token| (token.region.0, token.key.0));
    let kind = match parts.kind {
        CompletionKind::Write => FrameKind::Write,
        CompletionKind::Read => FrameKind::Read,
        CompletionKind::Atomic => FrameKind::Atomic,
        CompletionKind::AtomicWrite => FrameKind::AtomicWrite,
        CompletionKind::Flush => FrameKind::Flush,
        _ => FrameKind::Send,
    };
    let (which, operands) = wire::atomic(&work.operation).unwrap_or((0, [0; 4]));
    let (number, value) = match work.operation {
        Operation::AtomicWrite { value, .. } => (0, value),
        Operation::Flush { bytes, scope: FlushScope::Visible, .. } => (1, bytes),
        _ => (which, 0),
    };
    let signalled = if work.flags.signalled { SIGNALLED } else { 0 };
    RequestHeader {
        kind,
        flags: signalled | if parts.immediate.is_some() { IMMEDIATE } else { 0 },
        bytes: match kind {
            FrameKind::Write | FrameKind::Read | FrameKind::Send => parts.bytes() as u32,
            _ => 0,
        },
        sequence: 0,
        acknowledged: 0,
        region,
        immediate: parts.immediate.unwrap_or(number),
        key,
        offset: parts.remote.map_or(0, |remote| remote.offset),
        value,
        operands,
    }
}
