//! Receiving on a link: decodes its frames, however the stream is cut, and passes requests to the responder and
//! answers to the requester.

use super::TcpLink;
use crate::failure::ConnectionFailure;
use crate::incoming::{IncomingBody, IncomingWrite};
use crate::queues::PortQueues;
use crate::responder::Course;
use crate::stream::{Got, LinkStream};
use crate::wire::{self, CHUNK_MAX, CONTROL_MAX, FrameKind, Header, LAST, RequestHeader, Short};
use farside_base::{CompletionKind, CompletionStatus};

/// Bytes received with or before a header when long bodies follow each other: what is received beyond a
/// header must be copied, and the rest of the body is received directly.
const AHEAD_OF_LONG: usize = 2048;
/// Receive calls on one link before the other links are served.
const ROUNDS_MAX: usize = 64;
/// Fewer bytes than that are not worth a call of their own.
const DIRECT_MIN: usize = 16 << 10;

/// The result of receiving a body directly.
struct DirectReceive {
    /// Bytes stored at their destination.
    placed: usize,
    /// Bytes received after them, into the buffer.
    rest: usize,
    /// The socket is empty.
    drained: bool,
}

impl TcpLink {
    /// Receives what is available, at most `ROUNDS_MAX` times. Returns whether more is buffered.
    pub(crate) fn receive(&mut self, queues: &mut PortQueues) -> Result<bool, ConnectionFailure> {
        let mut buffer = std::mem::take(&mut queues.buffer);
        let more = self.receive_to(&mut buffer, queues);
        queues.buffer = buffer;
        more
    }

    fn receive_to(
        &mut self,
        all: &mut [u8],
        queues: &mut PortQueues,
    ) -> Result<bool, ConnectionFailure> {
        for _ in 0..ROUNDS_MAX {
            let short = self.incoming.expects_long()
                && self.connection.as_ref().is_some_and(LinkStream::receives_direct);
            let most = if short { AHEAD_OF_LONG } else { all.len() };
            let buffer = &mut all[..most];
            if let Some(got) = self.receive_direct(buffer) {
                let DirectReceive { placed, rest, drained } = got?;
                if placed + rest == 0 {
                    return Ok(false);
                }
                self.clock.heard = true;
                queues.moved = true;
                queues.bytes_moved += (placed + rest) as u64;
                self.finish_direct(queues)?;
                self.feed(&buffer[..rest], queues)?;
                if drained {
                    return Ok(false);
                }
                continue;
            }
            let Some(connection) = self.connection.as_mut() else {
                return Ok(false);
            };
            let Got::Bytes(count) = connection.receive(buffer)? else {
                return Ok(false);
            };
            let drained = connection.receives_direct() && count < buffer.len();
            self.clock.heard = true;
            queues.moved = true;
            queues.bytes_moved += count as u64;
            self.feed(&buffer[..count], queues)?;
            if drained || self.is_rejected() {
                return Ok(false);
            }
        }
        Ok(self.connection.as_ref().is_some_and(LinkStream::holds_bytes))
    }

    /// Decodes received bytes, all of them unless the link fails.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        queues: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        loop {
            if matches!(self.incoming.body, IncomingBody::None) {
                if bytes.is_empty() || self.is_rejected() {
                    return Ok(());
                }
                bytes = self.feed_header(bytes, queues)?;
                continue;
            }
            let taken = self.feed_body(bytes, queues)?;
            bytes = &bytes[taken..];
            if !matches!(self.incoming.body, IncomingBody::None) && bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Collects a header. Returns the rest of `bytes`.
    fn feed_header<'b>(
        &mut self,
        bytes: &'b [u8],
        queues: &mut PortQueues,
    ) -> Result<&'b [u8], ConnectionFailure> {
        let violation = ConnectionFailure::Violation("header");
        let incoming = &mut self.incoming;
        // The common case: the whole header was received.
        if incoming.have == 0 {
            let size =
                Header::size(bytes[0]).map_err(|()| ConnectionFailure::Violation("header"))?;
            if let Some((header, rest)) = bytes.split_at_checked(size) {
                let header = Header::decode(header).ok_or(violation)?;
                let taken = self.begin(header, rest, queues)?;
                return Ok(&rest[taken..]);
            }
            incoming.header[0] = bytes[0];
            incoming.have = 1;
            return Ok(&bytes[1..]);
        }
        let size = Header::size(incoming.header[0])
            .map_err(|()| ConnectionFailure::Violation("header"))?;
        let count = (size - incoming.have).min(bytes.len());
        incoming.header[incoming.have..incoming.have + count].copy_from_slice(&bytes[..count]);
        incoming.have += count;
        if incoming.have == size {
            incoming.have = 0;
            let header = Header::decode(&incoming.header[..size]).ok_or(violation)?;
            self.begin(header, &[], queues)?;
        }
        Ok(&bytes[count..])
    }

    /// Handles a header and the bytes received after it. Returns how many of them were used.
    fn begin(
        &mut self,
        header: Header,
        behind: &[u8],
        queues: &mut PortQueues,
    ) -> Result<usize, ConnectionFailure> {
        match header {
            Header::Request(request) => self.begin_request(&request, behind, queues),
            Header::Short(short) => self.begin_short(short, queues).map(|()| 0),
        }
    }

    fn begin_request(
        &mut self,
        request: &RequestHeader,
        behind: &[u8],
        queues: &mut PortQueues,
    ) -> Result<usize, ConnectionFailure> {
        let Some(queue) = self.queue.filter(|_| self.is_connected()) else {
            return Err(ConnectionFailure::Violation("request before its time"));
        };
        self.take_acknowledged(request.acknowledged, queues)?;
        let left = request.body() as usize;
        if request.changes() {
            self.copy_direct_answer(None);
            if self.responder.snapshot() {
                self.stage_answers();
            }
        }
        // A short WRITE was mostly received whole, and needs no state beyond this call.
        if left < 2 * DIRECT_MIN
            && let Some(bytes) = behind.get(..left)
            && self.responder.write_whole(request, bytes, queues)
        {
            self.incoming.long = false;
            return Ok(left);
        }
        self.incoming.body = match self.responder.begin(request, (self.id, queue), queues) {
            Course::Done => IncomingBody::None,
            Course::Drop if left == 0 => IncomingBody::None,
            Course::Drop => IncomingBody::Drop { left },
            Course::Violation(what) => return Err(ConnectionFailure::Violation(what)),
            Course::Write { region, arena, relaxed, receive } => {
                let at = request.offset;
                let (carry, carried) = ([0; 8], 0);
                IncomingBody::Write(IncomingWrite {
                    request: *request,
                    region,
                    arena,
                    relaxed,
                    receive,
                    at,
                    left,
                    carry,
                    carried,
                })
            }
            Course::Message { posted } => {
                let (request, at) = (*request, posted.receive.into.offset);
                IncomingBody::Message { request, posted, at, left }
            }
            Course::Unfit { posted, status } => {
                let kind = CompletionKind::Receive;
                let completion = posted.completion(self.id, kind, 0, None, status);
                queues.finish_receive(completion, posted.receive.queue);
                if left == 0 { IncomingBody::None } else { IncomingBody::Drop { left } }
            }
        };
        let free = match &self.incoming.body {
            IncomingBody::Message { .. } => true,
            IncomingBody::Write(writing) => writing.relaxed,
            _ => false,
        };
        self.incoming.long = free && left >= 2 * DIRECT_MIN;
        if left == 0 {
            self.end_body(queues)?;
        }
        Ok(0)
    }

    fn begin_short(
        &mut self,
        short: Short,
        queues: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        let control = matches!(
            short.kind,
            FrameKind::Greeting
                | FrameKind::NoListener
                | FrameKind::Accepted
                | FrameKind::Declined
                | FrameKind::Confirm
        );
        if control {
            if short.bytes > CONTROL_MAX {
                return Err(ConnectionFailure::Violation("length of a control frame"));
            }
            let bytes = Vec::with_capacity(short.bytes as usize);
            self.incoming.body = IncomingBody::Control { short, bytes };
            if short.bytes == 0 {
                self.end_body(queues)?;
            }
            return Ok(());
        }
        if short.bytes > 0 && short.kind != FrameKind::Bytes {
            return Err(ConnectionFailure::Violation("bytes after a header"));
        }
        if short.kind == FrameKind::Alive {
            return Ok(());
        }
        if !self.is_connected() {
            return Err(ConnectionFailure::Violation("answer before its time"));
        }
        self.take_acknowledged(short.acknowledged, queues)?;
        let (id, sequence, unsent) = (self.id, short.sequence, self.body_is_unsent());
        let right = match short.kind {
            FrameKind::Acknowledge => true,
            FrameKind::Bytes => {
                let last = short.code == LAST;
                let right = short.bytes <= CHUNK_MAX
                    && self.requester.expects_bytes(sequence, short.bytes, last);
                if right {
                    let left = short.bytes as usize;
                    self.incoming.long = left >= 2 * DIRECT_MIN;
                    self.incoming.body = IncomingBody::Bytes { left, last };
                    if short.bytes == 0 {
                        self.end_body(queues)?;
                    }
                }
                right
            }
            FrameKind::Word => self.requester.word(id, sequence, short.value, queues),
            FrameKind::NotReady => self.requester.not_ready(sequence, unsent),
            FrameKind::Ready => {
                self.requester.waits = false;
                true
            }
            FrameKind::Refused => return self.refused(short),
            _ => false,
        };
        if right { Ok(()) } else { Err(ConnectionFailure::Violation("answer to nothing")) }
    }

    /// Fails the link: the peer has refused its oldest request.
    fn refused(&mut self, short: Short) -> Result<(), ConnectionFailure> {
        let status = wire::refusal_from_bits(short.code);
        match status {
            Some(status) if self.requester.is_first(short.sequence) => {
                self.refusal = Some(status);
                Err(ConnectionFailure::Ended)
            }
            _ => Err(ConnectionFailure::Violation("refusal of nothing")),
        }
    }

    fn take_acknowledged(
        &mut self,
        sequence: u32,
        queues: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        let unsent = self.body_is_unsent();
        if self.requester.acknowledged(self.id, sequence, unsent, queues) {
            return Ok(());
        }
        Err(ConnectionFailure::Violation("acknowledgement of nothing"))
    }

    /// Handles bytes of the body. Returns how many were used.
    fn feed_body(
        &mut self,
        bytes: &[u8],
        queues: &mut PortQueues,
    ) -> Result<usize, ConnectionFailure> {
        let (taken, over) = match &mut self.incoming.body {
            IncomingBody::None => return Ok(0),
            IncomingBody::Drop { left } => {
                let count = bytes.len().min(*left);
                *left -= count;
                (count, *left == 0)
            }
            IncomingBody::Write(writing) => {
                let count = bytes.len().min(writing.left);
                writing.land(&bytes[..count]);
                (count, writing.left == 0)
            }
            IncomingBody::Message { posted, at, left, .. } => {
                let count = bytes.len().min(*left);
                // Bounds were checked when the receive was posted.
                let _ = posted.arena.write(*at, &bytes[..count]);
                *at += count as u64;
                *left -= count;
                (count, *left == 0)
            }
            IncomingBody::Bytes { left, .. } => {
                let count = bytes.len().min(*left);
                let mut done = 0;
                while done < count {
                    let Some((arena, at, part)) = self.requester.landing(count - done) else {
                        return Err(ConnectionFailure::Violation("bytes for nothing"));
                    };
                    let _ = arena.write(at, &bytes[done..done + part]);
                    self.requester.land(part);
                    done += part;
                }
                *left -= count;
                (count, *left == 0)
            }
            IncomingBody::Control { short, bytes: held } => {
                let count = bytes.len().min(short.bytes as usize - held.len());
                held.extend_from_slice(&bytes[..count]);
                (count, held.len() == short.bytes as usize)
            }
        };
        if over {
            self.end_body(queues)?;
        }
        Ok(taken)
    }

    /// Completes a body whose bytes were all received.
    fn end_body(&mut self, queues: &mut PortQueues) -> Result<(), ConnectionFailure> {
        let success = CompletionStatus::Success;
        match std::mem::replace(&mut self.incoming.body, IncomingBody::None) {
            IncomingBody::None | IncomingBody::Drop { .. } => Ok(()),
            IncomingBody::Write(mut writing) => {
                writing.land(&[]);
                let request = writing.request;
                self.responder.done(&request);
                if let Some(posted) = writing.receive.take() {
                    let kind = CompletionKind::ReceiveImmediate;
                    let immediate = request.immediate();
                    let completion =
                        posted.completion(self.id, kind, request.bytes, immediate, success);
                    queues.finish_receive(completion, posted.receive.queue);
                }
                Ok(())
            }
            IncomingBody::Message { request, posted, .. } => {
                self.responder.done(&request);
                let immediate = request.immediate();
                let kind = CompletionKind::Receive;
                let completion =
                    posted.completion(self.id, kind, request.bytes, immediate, success);
                queues.finish_receive(completion, posted.receive.queue);
                Ok(())
            }
            IncomingBody::Bytes { last, .. } => {
                if last {
                    self.requester.read_done(self.id, queues);
                }
                Ok(())
            }
            IncomingBody::Control { short, bytes } => self.control(short, bytes, queues),
        }
    }

    /// Receives a long body directly into its destination; `None` if that is not allowed.
    fn receive_direct(
        &mut self,
        rest: &mut [u8],
    ) -> Option<Result<DirectReceive, ConnectionFailure>> {
        let connection = self.connection.as_mut()?;
        if !connection.receives_direct() {
            return None;
        }
        let place = match &self.incoming.body {
            IncomingBody::Message { posted, at, left, .. } if *left >= DIRECT_MIN => {
                (&posted.arena, *at, *left)
            }
            IncomingBody::Write(writing) if writing.relaxed && writing.left >= DIRECT_MIN => {
                (&writing.arena, writing.at, writing.left)
            }
            IncomingBody::Bytes { left, .. } if *left >= DIRECT_MIN => {
                self.requester.landing(*left).filter(|(.., bytes)| *bytes >= DIRECT_MIN)?
            }
            _ => return None,
        };
        // What follows a body goes through the buffer; a body that continues elsewhere has nothing
        // after it.
        let whole = match &self.incoming.body {
            IncomingBody::Message { .. } | IncomingBody::Write(_) => true,
            IncomingBody::Bytes { left, .. } => *left == place.2,
            _ => false,
        };
        let rest = if whole { rest } else { &mut [] };
        let room = place.2 + rest.len();
        let got = match connection.receive_direct(place, rest) {
            Ok(Got::Bytes(count)) => count,
            Ok(Got::Nothing) => 0,
            Err(failure) => return Some(Err(failure)),
        };
        let direct = got.min(place.2);
        match &mut self.incoming.body {
            IncomingBody::Message { at, left, .. } => {
                *at += direct as u64;
                *left -= direct;
            }
            IncomingBody::Write(writing) => {
                writing.at += direct as u64;
                writing.left -= direct;
            }
            IncomingBody::Bytes { left, .. } => {
                *left -= direct;
                self.requester.land(direct);
            }
            _ => {}
        }
        Some(Ok(DirectReceive { placed: direct, rest: got - direct, drained: got < room }))
    }

    /// Ends a body whose last byte was received directly.
    fn finish_direct(&mut self, queues: &mut PortQueues) -> Result<(), ConnectionFailure> {
        let over = match &self.incoming.body {
            IncomingBody::Message { left, .. } | IncomingBody::Bytes { left, .. } => *left == 0,
            IncomingBody::Write(writing) => writing.left == 0,
            _ => false,
        };
        if over { self.end_body(queues) } else { Ok(()) }
    }
}
