//! Sending on a link: stages frames of the responder and the requester, and sends them with their payloads.

use super::{BodySource, Phase, TcpLink, UnsentBody};
use crate::failure::ConnectionFailure;
use crate::payload::PayloadSegments;
use crate::queues::PortQueues;
use crate::responder::Staging;
use crate::stream::LinkStream;
use crate::wire::{self, FrameKind, Short};
use farside_base::RegionId;

/// Bytes that are staged before they are sent.
const STAGE_BYTES: usize = 128 << 10;
/// Payloads up to this size are copied after their headers, so that one call sends many; longer ones
/// are sent from their memory.
const COPY_MAX: u32 = 4096;

impl TcpLink {
    /// Appends a control frame.
    pub(crate) fn stage_control(&mut self, kind: FrameKind, value: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let code = if kind == FrameKind::Greeting { wire::VERSION } else { 0 };
        let sequence = if kind == FrameKind::Hello { self.lease_ms } else { 0 };
        let short = Short { kind, code, bytes: length, sequence, acknowledged: 0, value };
        self.staged.extend(&short.encode());
        self.staged.extend(bytes);
    }

    /// Sends a keepalive, unless something else is about to be sent. A delayed acknowledgement serves
    /// as one, so that executed requests do not seem to make no progress.
    pub(crate) fn stage_keepalive(&mut self) {
        let free = match self.phase {
            Phase::Asked(_) | Phase::Requested => true,
            Phase::Connected => self.confirmed,
            Phase::Dialing(_) | Phase::Rejected(_) => false,
        };
        if !free || self.wants_write() {
            return;
        }
        if self.is_connected() && self.responder.has_unacknowledged() {
            self.acknowledge();
        } else {
            self.stage_control(FrameKind::Alive, 0, &[]);
        }
    }

    fn acknowledge(&mut self) {
        let acknowledged = self.responder.acknowledge();
        let (kind, code, bytes) = (FrameKind::Acknowledge, 0, 0);
        let short = Short { kind, code, bytes, sequence: 0, acknowledged, value: 0 };
        self.staged.extend(&short.encode());
    }

    /// Copies answers now, so that later requests may change the memory that they read.
    pub(crate) fn stage_answers(&mut self) {
        let out = if self.body.is_some() { &mut self.later } else { &mut self.staged };
        while self.responder.has_answers()
            && !matches!(self.responder.stage(out, false), Staging::Nothing)
        {}
    }

    /// Copies the rest of an answer that is being sent directly from a region (only from `region`, if
    /// one is named), so that the region may change or end.
    pub(crate) fn copy_direct_answer(&mut self, region: Option<RegionId>) {
        let Some(UnsentBody { of: BodySource::Answer(of), skip, left }) = self.body else {
            return;
        };
        if region.is_some_and(|region| region != of) {
            return;
        }
        if let Some(segment) = self.direct_answer.take() {
            let room = self.staged.room(left as usize);
            let read = segment.arena.read(segment.offset + skip, room);
            debug_assert!(read.is_ok(), "bounds were checked");
        }
        self.body = None;
        self.staged.extend(self.later.bytes());
        self.later.gone(self.later.len());
    }

    /// Stages answers and requests, as many as are sent at once. With `defer`, acknowledgements are
    /// staged only together with something else.
    fn stage(&mut self, defer: bool) -> Result<(), ConnectionFailure> {
        while self.body.is_none() && self.staged.len() < STAGE_BYTES {
            if self.responder.has_answers() {
                let direct = connection_is_plain(&self.connection);
                match self.responder.stage(&mut self.staged, direct) {
                    Staging::Copied => continue,
                    Staging::Direct(region, segment) => {
                        let (of, left) = (BodySource::Answer(region), u64::from(segment.bytes));
                        self.body = Some(UnsentBody { of, skip: 0, left });
                        self.direct_answer = Some(segment);
                        continue;
                    }
                    Staging::Nothing => {}
                }
            }
            let Some(mut outgoing) = self.requester.next() else {
                break;
            };
            outgoing.header.acknowledged = self.responder.acknowledge();
            outgoing.header.encode(&mut self.staged);
            if outgoing.bytes <= COPY_MAX {
                if !self.requester.copy_body(&outgoing, &mut self.staged) {
                    return Err(ConnectionFailure::Violation("local bounds"));
                }
            } else {
                let of = BodySource::Request(outgoing.segments);
                self.body = Some(UnsentBody { of, skip: 0, left: u64::from(outgoing.bytes) });
            }
        }
        if self.body.is_none()
            && self.responder.owes_acknowledgement()
            && (!defer || self.responder.owes_many())
        {
            self.acknowledge();
        }
        Ok(())
    }

    /// Returns whether an acknowledgement is due that no other frame carries.
    pub(crate) fn owes_acknowledgement(&self) -> bool {
        self.is_connected() && self.confirmed && self.responder.owes_acknowledgement()
    }

    /// Returns whether there is nothing to send but an acknowledgement that can be delayed.
    pub(crate) fn only_acknowledges(&self) -> bool {
        self.owes_acknowledgement()
            && !self.responder.owes_many()
            && !self.responder.has_answers()
            && !self.requester.has_next()
            && !self.wants_write()
    }

    /// Sends staged bytes and payloads as far as the socket has room.
    pub(crate) fn flush(
        &mut self,
        defer: bool,
        queues: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        loop {
            let sends = self.confirmed && self.is_connected();
            if sends {
                self.stage(defer)?;
            }
            let Some(connection) = self.connection.as_mut().filter(|_| !self.full) else {
                return Ok(());
            };
            let staged = self.staged.bytes();
            let body = match &self.body {
                Some(UnsentBody { of: BodySource::Request(segments), skip, left }) => {
                    let segments = self.requester.segments_from(*segments);
                    PayloadSegments::new(segments, *skip, *left)
                }
                Some(UnsentBody { of: BodySource::Answer(_), skip, left }) => {
                    PayloadSegments::one(self.direct_answer.as_ref(), *skip, *left)
                }
                None => PayloadSegments::none(),
            };
            let total = staged.len() as u64 + self.body.as_ref().map_or(0, |body| body.left);
            if total == 0 {
                connection.flush()?;
                if self.confirm()? {
                    continue;
                }
                return Ok(());
            }
            let follows = self.responder.has_answers() || self.requester.has_next();
            let more = !self.later.is_empty() || (follows && sends);
            let (sent, room) = connection.send(staged, body, more, &mut queues.scratch)?;
            if sent > 0 {
                self.clock.spoken = true;
                queues.bytes_moved += sent as u64;
                self.gone(sent);
            }
            if !room {
                // Protected bytes are buffered in the TLS stream, which requests writability itself.
                self.full = connection_is_plain(&self.connection);
                return Ok(());
            }
        }
    }

    /// Accounts for sent bytes.
    fn gone(&mut self, sent: usize) {
        let of_staged = sent.min(self.staged.len());
        self.staged.gone(of_staged);
        if let Some(body) = &mut self.body {
            let of_body = (sent - of_staged) as u64;
            body.skip += of_body;
            body.left -= of_body.min(body.left);
            if matches!(body.of, BodySource::Request(_)) {
                self.requester.progress = true;
            }
            if body.left == 0 {
                (self.body, self.direct_answer) = (None, None);
                debug_assert!(self.staged.is_empty());
                std::mem::swap(&mut self.staged, &mut self.later);
            }
        }
    }
}

fn connection_is_plain(connection: &Option<LinkStream>) -> bool {
    connection.as_ref().is_some_and(LinkStream::is_plain)
}
