//! Decodes the frames of one link, however the stream is cut: headers, and payloads stored where the
//! headers say.
//!
//! *Words and order of a WRITE*: bytes are stored in rising order by `Arena::write`. A cut of the
//! stream never tears an aligned word: up to seven bytes of an incomplete word are carried over. Bytes
//! of READs and messages, and of WRITEs to relaxed-ordering regions, may also be received directly from
//! the socket into their memory, since their order is not promised.

use crate::connection::ConnectionFailure;
use crate::desk::{PortQueues, Posted, received};
use crate::link::TcpLink;
use crate::responder::Course;
use crate::wire::{
    self, CHUNK_MAX, CONTROL_MAX, FrameKind, HEADER_MAX, Header, LAST, RequestHeader, Short,
};
use farside_base::{CompletionKind, CompletionStatus, RegionId};
use farside_fabric::Arena;

/// Fewer bytes than that are not worth a call of their own.
const STRAIGHT_MIN: usize = 16 << 10;

/// The decoder's state: the position within the current frame.
pub(crate) struct Incoming {
    header: [u8; HEADER_MAX],
    have: usize,
    body: Body,
    /// Most of the last body could be received directly.
    long: bool,
}

/// The result of receiving a body directly.
pub(crate) struct Straight {
    /// Bytes stored at their destination.
    pub(crate) placed: usize,
    /// Bytes received after them, into the buffer.
    pub(crate) rest: usize,
    /// The socket is empty.
    pub(crate) drained: bool,
}

/// The kind of body that follows the last header.
enum Body {
    None,
    Drop { left: usize },
    Write(Writing),
    Message { request: RequestHeader, posted: Posted, at: u64, left: usize },
    Bytes { left: usize, last: bool },
    Control { short: Short, bytes: Vec<u8> },
}

/// A WRITE that is being received.
struct Writing {
    request: RequestHeader,
    region: RegionId,
    arena: Arena,
    /// The region has relaxed ordering: neither order nor whole words are promised.
    relaxed: bool,
    receive: Option<Posted>,
    /// The offset of the next byte, carried ones included.
    at: u64,
    left: usize,
    carry: [u8; 8],
    carried: usize,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { header: [0; HEADER_MAX], have: 0, body: Body::None, long: false }
    }

    /// Returns whether the next body is likely to be received directly.
    pub(crate) fn expects_long(&self) -> bool {
        self.long
    }

    /// Discards what is still to arrive for a deregistered region. Returns whether a request was in
    /// flight.
    pub(crate) fn end_region(&mut self, ended: RegionId, desk: &mut PortQueues) -> bool {
        match &mut self.body {
            Body::Write(writing) if writing.region == ended => {
                let left = writing.left;
                if let Some(posted) = writing.receive.take() {
                    desk.give_back(posted);
                }
                self.body = Body::Drop { left };
                true
            }
            _ => false,
        }
    }

    /// Returns the receive of an incomplete message to its queue when the link ends.
    pub(crate) fn end(&mut self, desk: &mut PortQueues) {
        let posted = match std::mem::replace(&mut self.body, Body::None) {
            Body::Write(writing) => writing.receive,
            Body::Message { posted, .. } => Some(posted),
            _ => None,
        };
        if let Some(posted) = posted {
            desk.give_back(posted);
        }
    }
}

impl Writing {
    /// Stores as many of `bytes` as make whole words, and carries the rest.
    fn land(&mut self, bytes: &[u8]) {
        self.left -= bytes.len();
        if self.relaxed {
            self.put(bytes);
            return;
        }
        let mut bytes = bytes;
        while self.carried > 0 && !bytes.is_empty() {
            self.carry[self.carried] = bytes[0];
            self.carried += 1;
            bytes = &bytes[1..];
            let end = self.at + self.carried as u64;
            if end.is_multiple_of(8) {
                self.put_carry();
            }
        }
        let end = self.at + self.carried as u64 + bytes.len() as u64;
        let whole = if self.left == 0 || self.carried > 0 {
            bytes.len()
        } else {
            bytes.len().saturating_sub((end % 8) as usize)
        };
        if self.carried == 0 {
            let (now, later) = bytes.split_at(whole);
            self.put(now);
            self.carry[..later.len()].copy_from_slice(later);
            self.carried = later.len();
        }
        if self.left == 0 {
            self.put_carry();
        }
    }

    fn put_carry(&mut self) {
        let (carry, carried) = (self.carry, std::mem::take(&mut self.carried));
        self.put(&carry[..carried]);
    }

    fn put(&mut self, bytes: &[u8]) {
        // Bounds were checked when the request began, and memory does not shrink.
        let _ = self.arena.write(self.at, bytes);
        self.at += bytes.len() as u64;
    }
}

impl TcpLink {
    /// Decodes received bytes, all of them unless the link fails.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        desk: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        loop {
            if matches!(self.incoming.body, Body::None) {
                if bytes.is_empty() || self.is_over() {
                    return Ok(());
                }
                bytes = self.feed_header(bytes, desk)?;
                continue;
            }
            let taken = self.feed_body(bytes, desk)?;
            bytes = &bytes[taken..];
            if !matches!(self.incoming.body, Body::None) && bytes.is_empty() {
                return Ok(());
            }
        }
    }

    /// Collects a header. Returns the rest of `bytes`.
    fn feed_header<'b>(
        &mut self,
        bytes: &'b [u8],
        desk: &mut PortQueues,
    ) -> Result<&'b [u8], ConnectionFailure> {
        let violation = ConnectionFailure::Violation("header");
        let incoming = &mut self.incoming;
        // The common case: the whole header was received.
        if incoming.have == 0 {
            let size =
                Header::size(bytes[0]).map_err(|()| ConnectionFailure::Violation("header"))?;
            if let Some((header, rest)) = bytes.split_at_checked(size) {
                let header = Header::decode(header).ok_or(violation)?;
                let taken = self.begin(header, rest, desk)?;
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
            self.begin(header, &[], desk)?;
        }
        Ok(&bytes[count..])
    }

    /// Handles a header and the bytes received after it. Returns how many of them were used.
    fn begin(
        &mut self,
        header: Header,
        behind: &[u8],
        desk: &mut PortQueues,
    ) -> Result<usize, ConnectionFailure> {
        match header {
            Header::Request(request) => self.begin_request(&request, behind, desk),
            Header::Short(short) => self.begin_short(short, desk).map(|()| 0),
        }
    }

    fn begin_request(
        &mut self,
        request: &RequestHeader,
        behind: &[u8],
        desk: &mut PortQueues,
    ) -> Result<usize, ConnectionFailure> {
        let Some(queue) = self.queue.filter(|_| self.is_up()) else {
            return Err(ConnectionFailure::Violation("request before its time"));
        };
        self.take_acknowledged(request.acknowledged, desk)?;
        let left = request.body() as usize;
        if request.changes() {
            self.copy_shown(None);
            if self.responder.snapshot() {
                self.stage_answers();
            }
        }
        // A short WRITE was mostly received whole, and needs no state beyond this call.
        if left < 2 * STRAIGHT_MIN
            && let Some(bytes) = behind.get(..left)
            && self.responder.write_whole(request, bytes, desk)
        {
            self.incoming.long = false;
            return Ok(left);
        }
        self.incoming.body = match self.responder.begin(request, (self.id, queue), desk) {
            Course::Done => Body::None,
            Course::Drop if left == 0 => Body::None,
            Course::Drop => Body::Drop { left },
            Course::Violation(what) => return Err(ConnectionFailure::Violation(what)),
            Course::Write { region, arena, relaxed, receive } => {
                let at = request.offset;
                let (carry, carried) = ([0; 8], 0);
                Body::Write(Writing {
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
                Body::Message { request, posted, at, left }
            }
            Course::Unfit { posted, status } => {
                let kind = CompletionKind::Receive;
                let completion = received(self, &posted, kind, 0, None, status);
                desk.finish_receive(completion, posted.receive.queue);
                if left == 0 { Body::None } else { Body::Drop { left } }
            }
        };
        let free = match &self.incoming.body {
            Body::Message { .. } => true,
            Body::Write(writing) => writing.relaxed,
            _ => false,
        };
        self.incoming.long = free && left >= 2 * STRAIGHT_MIN;
        if left == 0 {
            self.end_body(desk)?;
        }
        Ok(0)
    }

    fn begin_short(
        &mut self,
        short: Short,
        desk: &mut PortQueues,
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
            self.incoming.body = Body::Control { short, bytes };
            if short.bytes == 0 {
                self.end_body(desk)?;
            }
            return Ok(());
        }
        if short.bytes > 0 && short.kind != FrameKind::Bytes {
            return Err(ConnectionFailure::Violation("bytes after a header"));
        }
        if short.kind == FrameKind::Alive {
            return Ok(());
        }
        if !self.is_up() {
            return Err(ConnectionFailure::Violation("answer before its time"));
        }
        self.take_acknowledged(short.acknowledged, desk)?;
        let (id, sequence, unsent) = (self.id, short.sequence, self.body_is_unsent());
        let right = match short.kind {
            FrameKind::Acknowledge => true,
            FrameKind::Bytes => {
                let last = short.code == LAST;
                let right = short.bytes <= CHUNK_MAX
                    && self.requester.expects_bytes(sequence, short.bytes, last);
                if right {
                    let left = short.bytes as usize;
                    self.incoming.long = left >= 2 * STRAIGHT_MIN;
                    self.incoming.body = Body::Bytes { left, last };
                    if short.bytes == 0 {
                        self.end_body(desk)?;
                    }
                }
                right
            }
            FrameKind::Word => self.requester.word(id, sequence, short.value, desk),
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
        desk: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        let unsent = self.body_is_unsent();
        if self.requester.acknowledged(self.id, sequence, unsent, desk) {
            return Ok(());
        }
        Err(ConnectionFailure::Violation("acknowledgement of nothing"))
    }

    /// Handles bytes of the body. Returns how many were used.
    fn feed_body(
        &mut self,
        bytes: &[u8],
        desk: &mut PortQueues,
    ) -> Result<usize, ConnectionFailure> {
        let (taken, over) = match &mut self.incoming.body {
            Body::None => return Ok(0),
            Body::Drop { left } => {
                let count = bytes.len().min(*left);
                *left -= count;
                (count, *left == 0)
            }
            Body::Write(writing) => {
                let count = bytes.len().min(writing.left);
                writing.land(&bytes[..count]);
                (count, writing.left == 0)
            }
            Body::Message { posted, at, left, .. } => {
                let count = bytes.len().min(*left);
                // Bounds were checked when the receive was posted.
                let _ = posted.arena.write(*at, &bytes[..count]);
                *at += count as u64;
                *left -= count;
                (count, *left == 0)
            }
            Body::Bytes { left, .. } => {
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
            Body::Control { short, bytes: held } => {
                let count = bytes.len().min(short.bytes as usize - held.len());
                held.extend_from_slice(&bytes[..count]);
                (count, held.len() == short.bytes as usize)
            }
        };
        if over {
            self.end_body(desk)?;
        }
        Ok(taken)
    }

    /// Completes a body whose bytes were all received.
    fn end_body(&mut self, desk: &mut PortQueues) -> Result<(), ConnectionFailure> {
        let success = CompletionStatus::Success;
        match std::mem::replace(&mut self.incoming.body, Body::None) {
            Body::None | Body::Drop { .. } => Ok(()),
            Body::Write(mut writing) => {
                writing.land(&[]);
                let request = writing.request;
                self.responder.done(&request);
                if let Some(posted) = writing.receive.take() {
                    let kind = CompletionKind::ReceiveImmediate;
                    let immediate = request.immediate();
                    let completion =
                        received(self, &posted, kind, request.bytes, immediate, success);
                    desk.finish_receive(completion, posted.receive.queue);
                }
                Ok(())
            }
            Body::Message { request, posted, .. } => {
                self.responder.done(&request);
                let immediate = request.immediate();
                let kind = CompletionKind::Receive;
                let completion = received(self, &posted, kind, request.bytes, immediate, success);
                desk.finish_receive(completion, posted.receive.queue);
                Ok(())
            }
            Body::Bytes { last, .. } => {
                if last {
                    self.requester.read_done(self.id, desk);
                }
                Ok(())
            }
            Body::Control { short, bytes } => self.control(short, bytes, desk),
        }
    }

    /// Receives a long body directly into its destination; `None` if that is not allowed.
    pub(crate) fn receive_straight(
        &mut self,
        rest: &mut [u8],
    ) -> Option<Result<Straight, ConnectionFailure>> {
        let connection = self.connection.as_mut()?;
        if !connection.receives_straight() {
            return None;
        }
        let place = match &self.incoming.body {
            Body::Message { posted, at, left, .. } if *left >= STRAIGHT_MIN => {
                (&posted.arena, *at, *left)
            }
            Body::Write(writing) if writing.relaxed && writing.left >= STRAIGHT_MIN => {
                (&writing.arena, writing.at, writing.left)
            }
            Body::Bytes { left, .. } if *left >= STRAIGHT_MIN => {
                self.requester.landing(*left).filter(|(.., bytes)| *bytes >= STRAIGHT_MIN)?
            }
            _ => return None,
        };
        // What follows a body goes through the buffer; a body that continues elsewhere has nothing
        // after it.
        let whole = match &self.incoming.body {
            Body::Message { .. } | Body::Write(_) => true,
            Body::Bytes { left, .. } => *left == place.2,
            _ => false,
        };
        let rest = if whole { rest } else { &mut [] };
        let room = place.2 + rest.len();
        let got = match connection.receive_straight(place, rest) {
            Ok(crate::connection::Got::Bytes(count)) => count,
            Ok(crate::connection::Got::Nothing) => 0,
            Err(failure) => return Some(Err(failure)),
        };
        let straight = got.min(place.2);
        match &mut self.incoming.body {
            Body::Message { at, left, .. } => {
                *at += straight as u64;
                *left -= straight;
            }
            Body::Write(writing) => {
                writing.at += straight as u64;
                writing.left -= straight;
            }
            Body::Bytes { left, .. } => {
                *left -= straight;
                self.requester.land(straight);
            }
            _ => {}
        }
        Some(Ok(Straight { placed: straight, rest: got - straight, drained: got < room }))
    }

    /// Ends a body whose last byte was received directly.
    pub(crate) fn finish_straight(
        &mut self,
        desk: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        let over = match &self.incoming.body {
            Body::Message { left, .. } | Body::Bytes { left, .. } => *left == 0,
            Body::Write(writing) => writing.left == 0,
            _ => false,
        };
        if over { self.end_body(desk) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However a WRITE is cut, every byte lands once, and an aligned word at once.
    #[test]
    fn cuts_tear_no_words() {
        let data: Vec<u8> = (1..=200).collect();
        for start in 0..9_u64 {
            for cut in 1..20 {
                for length in [0, 1, 7, 8, 9, 64, 193] {
                    let arena = Arena::heap(256);
                    let request = RequestHeader {
                        kind: FrameKind::Write,
                        flags: 0,
                        bytes: length as u32,
                        sequence: 0,
                        acknowledged: 0,
                        region: 0,
                        immediate: 0,
                        key: 0,
                        offset: start,
                        value: 0,
                        operands: [0; 4],
                    };
                    let mut writing = Writing {
                        request,
                        region: RegionId(0),
                        arena: arena.clone(),
                        relaxed: false,
                        receive: None,
                        at: start,
                        left: length,
                        carry: [0; 8],
                        carried: 0,
                    };
                    for piece in data[..length].chunks(cut) {
                        writing.land(piece);
                        for at in (0..248).step_by(8) {
                            let inside = at >= start && at + 8 <= start + length as u64;
                            let mut word = [0; 8];
                            arena.read(at, &mut word).unwrap();
                            let some = word.iter().filter(|byte| **byte != 0).count();
                            assert!(!inside || some == 0 || some == 8, "torn at {at}: {word:?}");
                        }
                    }
                    let mut back = vec![0; 256];
                    arena.read(0, &mut back).unwrap();
                    let (from, to) = (start as usize, start as usize + length);
                    assert_eq!(back[from..to], data[..length], "{start} {cut} {length}");
                    assert!(back[..from].iter().chain(&back[to..]).all(|byte| *byte == 0));
                }
            }
        }
    }
}
