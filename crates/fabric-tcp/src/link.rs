//! One link: its connection, requester, responder, and the bytes staged between them.

use crate::call::{Dial, set_patience};
use crate::connection::{Body, ConnectionFailure, Got, LinkStream};
use crate::desk::PortQueues;
use crate::incoming::{Incoming, Straight};
use crate::options::{LEASE_MIN, TcpOptions, peer_lease, tick_of};
use crate::requester::{Requester, Segment};
use crate::responder::{Responder, Staging};
use crate::staged::Staged;
use crate::wire::{self, FrameKind, Short};
use farside_base::{CompletionStatus, LinkId, ReceiveQueueId, RegionId};
use farside_bootstrap::Protect;
use farside_fabric::LinkEvent;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Bytes that are staged before they are sent.
const STAGE_BYTES: usize = 128 << 10;
/// Payloads up to this size are copied after their headers, so that one call sends many; longer ones
/// are sent from their memory.
const COPY_MAX: u32 = 4096;
/// The longest time between two retransmissions to a silent peer; also how late the engine may be
/// before the kernel gives up instead of it.
const STEP_MAX: Duration = Duration::from_millis(500);
/// Bytes received with or before a header when long bodies follow each other: what is received beyond a
/// header must be copied, and the rest of the body is received directly.
const AHEAD_OF_LONG: usize = 2048;
/// Receive calls on one link before the other links are served.
const ROUNDS_MAX: usize = 64;

/// The state of a link.
pub(crate) enum Phase {
    /// This side dials: there is no answer yet.
    Calling(Box<Dial>),
    /// The hello was sent: the peer's program decides.
    Asked(Box<Dial>),
    /// The peer dialled, and this program has not answered.
    Requested,
    /// Usable.
    Up,
    /// The peer's program refused, or no port has that name there.
    Over(Answered),
}

/// The result of a link's timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerVerdict {
    Fine,
    /// A keepalive is due.
    Speak,
}

/// The answer of a peer that did not accept.
pub(crate) enum Answered {
    Declined(Vec<u8>),
    NoListener(Box<Dial>),
}

pub(crate) struct TcpLink {
    pub(crate) id: LinkId,
    pub(crate) queue: Option<ReceiveQueueId>,
    pub(crate) phase: Phase,
    pub(crate) connection: Option<LinkStream>,
    pub(crate) requester: Requester,
    pub(crate) responder: Responder,
    pub(crate) incoming: Incoming,
    staged: Staged,
    /// A long payload that is sent after the staged bytes.
    body: Option<BodyLeft>,
    /// Memory of a READ answer that is sent without a copy.
    shown: Option<Segment>,
    /// Bytes staged to be sent after that payload.
    later: Staged,
    /// The socket is full. It is not tried until the epoll reports room: a try would take the socket
    /// lock from the kernel, which is about to make room.
    full: bool,
    /// Both sides know that the link is up, and whether bytes are protected.
    pub(crate) confirmed: bool,
    /// The peer has refused a request.
    pub(crate) refusal: Option<CompletionStatus>,
    /// The address of a peer that connected.
    pub(crate) host: Option<IpAddr>,
    /// Whether the epoll watches for writability; `None` if the socket is not registered.
    pub(crate) watched: Option<bool>,
    pub(crate) clock: Clock,
    /// The leases in ms: of this side, and of the peer.
    pub(crate) lease_ms: u32,
    pub(crate) peer_lease_ms: u32,
}

/// A payload that is being sent.
struct BodyLeft {
    of: BodyOf,
    skip: u64,
    left: u64,
}

/// The source of that payload.
enum BodyOf {
    /// A request's: its first segment, counted over the life of the link.
    Request(u64),
    /// An answer's, which is in `shown`: bytes of this region.
    Answer(RegionId),
}

/// When the peer was heard and when it was sent to. Flags are set on the data path and become times at
/// the engine's tick, so that no frame costs a clock read.
pub(crate) struct Clock {
    pub(crate) heard: bool,
    pub(crate) spoken: bool,
    pub(crate) heard_at: Instant,
    pub(crate) spoken_at: Instant,
    pub(crate) progress_at: Instant,
    /// TCP_USER_TIMEOUT is being moved ahead, so that the kernel retransmits more often.
    pub(crate) impatient: bool,
}

impl TcpLink {
    pub(crate) fn new(id: LinkId, phase: Phase) -> Self {
        let now = Instant::now();
        Self {
            id,
            queue: None,
            phase,
            connection: None,
            requester: Requester::default(),
            responder: Responder::new(),
            incoming: Incoming::new(),
            staged: Staged::default(),
            body: None,
            shown: None,
            later: Staged::default(),
            full: false,
            confirmed: false,
            refusal: None,
            host: None,
            watched: None,
            lease_ms: u32::MAX,
            peer_lease_ms: u32::MAX,
            clock: Clock {
                heard: false,
                spoken: false,
                heard_at: now,
                spoken_at: now,
                progress_at: now,
                impatient: false,
            },
        }
    }

    /// Returns a link that starts to dial, or dials the next host.
    pub(crate) fn calling(id: LinkId, queue: Option<ReceiveQueueId>, call: Box<Dial>) -> Self {
        Self { queue, ..Self::new(id, Phase::Calling(call)) }
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over(_))
    }

    /// Returns whether a request's payload is still to be sent.
    pub(crate) fn body_is_unsent(&self) -> bool {
        matches!(&self.body, Some(BodyLeft { of: BodyOf::Request(_), .. }))
    }

    /// Returns whether bytes wait for room in the socket.
    pub(crate) fn wants_write(&self) -> bool {
        !self.staged.is_empty()
            || self.body.is_some()
            || self.connection.as_ref().is_some_and(LinkStream::wants_write)
    }

    /// Records that the socket may have room again.
    pub(crate) fn has_room(&mut self) {
        self.full = false;
    }

    /// Receives what is available, at most `ROUNDS_MAX` times. Returns whether more is buffered.
    pub(crate) fn receive(&mut self, desk: &mut PortQueues) -> Result<bool, ConnectionFailure> {
        let mut buffer = std::mem::take(&mut desk.buffer);
        let more = self.receive_to(&mut buffer, desk);
        desk.buffer = buffer;
        more
    }

    fn receive_to(
        &mut self,
        all: &mut [u8],
        desk: &mut PortQueues,
    ) -> Result<bool, ConnectionFailure> {
        for _ in 0..ROUNDS_MAX {
            let short = self.incoming.expects_long()
                && self.connection.as_ref().is_some_and(LinkStream::receives_straight);
            let most = if short { AHEAD_OF_LONG } else { all.len() };
            let buffer = &mut all[..most];
            if let Some(got) = self.receive_straight(buffer) {
                let Straight { placed, rest, drained } = got?;
                if placed + rest == 0 {
                    return Ok(false);
                }
                self.clock.heard = true;
                desk.moved = true;
                desk.bytes_moved += (placed + rest) as u64;
                self.finish_straight(desk)?;
                self.feed(&buffer[..rest], desk)?;
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
            let drained = connection.receives_straight() && count < buffer.len();
            self.clock.heard = true;
            desk.moved = true;
            desk.bytes_moved += count as u64;
            self.feed(&buffer[..count], desk)?;
            if drained || self.is_over() {
                return Ok(false);
            }
        }
        Ok(self.connection.as_ref().is_some_and(LinkStream::holds_bytes))
    }

    /// Appends a control frame.
    pub(crate) fn say(&mut self, kind: FrameKind, value: u64, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let code = if kind == FrameKind::Greeting { wire::VERSION } else { 0 };
        let sequence = if kind == FrameKind::Hello { self.lease_ms } else { 0 };
        let short = Short { kind, code, bytes: length, sequence, acknowledged: 0, value };
        self.staged.extend(&short.encode());
        self.staged.extend(bytes);
    }

    /// Sends a keepalive, unless something else is about to be sent. A delayed acknowledgement serves
    /// as one, so that executed requests do not seem to make no progress.
    pub(crate) fn say_alive(&mut self) {
        let free = match self.phase {
            Phase::Asked(_) | Phase::Requested => true,
            Phase::Up => self.confirmed,
            Phase::Calling(_) | Phase::Over(_) => false,
        };
        if !free || self.wants_write() {
            return;
        }
        if self.is_up() && self.responder.has_untold() {
            self.acknowledge();
        } else {
            self.say(FrameKind::Alive, 0, &[]);
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
    pub(crate) fn copy_shown(&mut self, region: Option<RegionId>) {
        let Some(BodyLeft { of: BodyOf::Answer(of), skip, left }) = self.body else {
            return;
        };
        if region.is_some_and(|region| region != of) {
            return;
        }
        if let Some(shown) = self.shown.take() {
            let room = self.staged.room(left as usize);
            let read = shown.arena.read(shown.offset + skip, room);
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
                let straight = connection_is_plain(&self.connection);
                match self.responder.stage(&mut self.staged, straight) {
                    Staging::Copied => continue,
                    Staging::Shown(region, segment) => {
                        let (of, left) = (BodyOf::Answer(region), u64::from(segment.bytes));
                        self.body = Some(BodyLeft { of, skip: 0, left });
                        self.shown = Some(segment);
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
                let of = BodyOf::Request(outgoing.segments);
                self.body = Some(BodyLeft { of, skip: 0, left: u64::from(outgoing.bytes) });
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
        self.is_up() && self.confirmed && self.responder.owes_acknowledgement()
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
        desk: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        loop {
            let goes = self.confirmed && self.is_up();
            if goes {
                self.stage(defer)?;
            }
            let Some(connection) = self.connection.as_mut().filter(|_| !self.full) else {
                return Ok(());
            };
            let staged = self.staged.bytes();
            let body = match &self.body {
                Some(BodyLeft { of: BodyOf::Request(segments), skip, left }) => {
                    let segments = self.requester.segments_from(*segments);
                    Body::new(segments, *skip, *left)
                }
                Some(BodyLeft { of: BodyOf::Answer(_), skip, left }) => {
                    Body::one(self.shown.as_ref(), *skip, *left)
                }
                None => Body::none(),
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
            let more = !self.later.is_empty() || (follows && goes);
            let (sent, room) = connection.send(staged, body, more, &mut desk.scratch)?;
            if sent > 0 {
                self.clock.spoken = true;
                desk.bytes_moved += sent as u64;
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
            if matches!(body.of, BodyOf::Request(_)) {
                self.requester.progress = true;
            }
            if body.left == 0 {
                (self.body, self.shown) = (None, None);
                debug_assert!(self.staged.is_empty());
                std::mem::swap(&mut self.staged, &mut self.later);
            }
        }
    }

    /// Switches a dialled link to plain text once its last protected frame was sent. Returns whether it
    /// is plain as of now.
    fn confirm(&mut self) -> Result<bool, ConnectionFailure> {
        let due = self.is_up() && !self.confirmed && self.host.is_none();
        let Some(connection) = self.connection.as_mut().filter(|_| due) else {
            return Ok(false);
        };
        if connection.wants_write() {
            return Ok(false);
        }
        if !connection.make_plain() {
            return Err(ConnectionFailure::Violation("protected bytes after the last"));
        }
        self.confirmed = true;
        Ok(true)
    }

    /// Returns how data on this link is protected.
    fn protect(&self) -> Protect {
        match &self.connection {
            Some(LinkStream::Stream(stream)) => stream.protect(),
            _ => Protect::Nothing,
        }
    }

    /// Accepts the peer: replies, and the link is up.
    pub(crate) fn accept(&mut self, reply: &[u8]) {
        self.say(FrameKind::Accepted, 0, reply);
        self.phase = Phase::Up;
        self.confirmed = self.protect() != Protect::Handshake;
    }

    /// Turns the flags into times, and checks them.
    pub(crate) fn tick(
        &mut self,
        now: Instant,
        late: bool,
        options: &TcpOptions,
    ) -> Result<TimerVerdict, ConnectionFailure> {
        let clock = &mut self.clock;
        if std::mem::take(&mut clock.heard) || late {
            clock.heard_at = now;
        }
        if std::mem::take(&mut clock.spoken) {
            clock.spoken_at = now;
        }
        let progress = std::mem::take(&mut self.requester.progress);
        if progress || late || !self.requester.awaits_answer() {
            clock.progress_at = now;
        }
        let silent = now.saturating_duration_since(clock.heard_at);
        let impatient = silent >= options.lease / 5;
        if impatient || clock.impatient {
            clock.impatient = impatient;
            // The measured silence may be a tick too short.
            let ahead = options.tick() + (options.lease / 2).min(STEP_MAX);
            let most = if impatient { silent + ahead } else { options.lease * 2 };
            if let Some(connection) = &self.connection {
                let most_ms = u32::try_from(most.as_millis()).unwrap_or(u32::MAX);
                set_patience(connection.socket(), most_ms);
            }
        }
        let most = match self.phase {
            Phase::Calling(_) => options.connect_timeout,
            _ => options.lease,
        };
        if silent > most {
            return Err(ConnectionFailure::Silence);
        }
        if now.saturating_duration_since(clock.progress_at) > options.request_timeout {
            return Err(ConnectionFailure::NoProgress);
        }
        let quiet = now.saturating_duration_since(clock.spoken_at);
        // A lower limit of the peer's lease bounds the rate of keepalives.
        let peer = peer_lease(self.peer_lease_ms);
        Ok(if quiet >= options.lease.min(peer) / 6 {
            TimerVerdict::Speak
        } else {
            TimerVerdict::Fine
        })
    }

    /// Returns the time until its next tick: short enough for the keepalives of a peer with a shorter lease.
    pub(crate) fn tick_every(&self, options: &TcpOptions) -> Duration {
        // The lease of the peer comes with its greeting.
        if matches!(self.phase, Phase::Calling(_) | Phase::Asked(_)) {
            return options.tick().min(LEASE_MIN);
        }
        let of_peer = tick_of(peer_lease(self.peer_lease_ms));
        // The kernel's patience with a silent peer is moved ahead in small steps.
        if self.clock.impatient { of_peer.min(options.tick() / 4) } else { of_peer }
    }

    /// Handles a control frame.
    pub(crate) fn control(
        &mut self,
        short: Short,
        bytes: Vec<u8>,
        desk: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        let violation = Err(ConnectionFailure::Violation("control frame"));
        if short.kind == FrameKind::Confirm {
            let awaited = self.is_up() && !self.confirmed && self.host.is_some();
            let plain = |connection: &mut LinkStream| connection.make_plain();
            if !awaited || !self.connection.as_mut().is_some_and(plain) {
                return violation;
            }
            self.confirmed = true;
            return Ok(());
        }
        if short.kind == FrameKind::Greeting {
            let Phase::Calling(call) = &mut self.phase else {
                return violation;
            };
            let Some(hello) = call.answer(&short, &bytes) else {
                return Err(ConnectionFailure::Violation("greeting of another version"));
            };
            self.peer_lease_ms = short.sequence;
            self.say(FrameKind::Hello, short.value, &hello);
            let phase = std::mem::replace(&mut self.phase, Phase::Up);
            if let Phase::Calling(call) = phase {
                self.phase = Phase::Asked(call);
            }
            return Ok(());
        }
        let Phase::Asked(_) = &self.phase else {
            return violation;
        };
        match short.kind {
            FrameKind::Accepted => {
                let protect = self.protect();
                self.phase = Phase::Up;
                self.confirmed = protect != Protect::Handshake;
                if !self.confirmed {
                    self.say(FrameKind::Confirm, 0, &[]);
                }
                desk.tell(LinkEvent::Connected { link: self.id, reply: bytes });
                Ok(())
            }
            FrameKind::Declined => {
                self.phase = Phase::Over(Answered::Declined(bytes));
                Ok(())
            }
            FrameKind::NoListener => {
                if let Phase::Asked(call) = std::mem::replace(&mut self.phase, Phase::Up) {
                    self.phase = Phase::Over(Answered::NoListener(call));
                }
                Ok(())
            }
            _ => violation,
        }
    }
}

fn connection_is_plain(connection: &Option<LinkStream>) -> bool {
    connection.as_ref().is_some_and(LinkStream::is_plain)
}
