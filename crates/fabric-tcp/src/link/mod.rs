//! One link: a connection with its requester and its responder, the phases of its handshake, and its timers.
//!
//! `send.rs` stages and sends frames, `receive.rs` decodes and dispatches them. All run under the port's lock.

mod receive;
mod send;

use crate::dial::Dial;
use crate::failure::ConnectionFailure;
use crate::incoming::Incoming;
use crate::options::{LEASE_MIN, TcpOptions, peer_lease, tick_of};
use crate::payload::Segment;
use crate::queues::PortQueues;
use crate::requester::Requester;
use crate::responder::Responder;
use crate::socket::set_user_timeout;
use crate::staged::Staged;
use crate::stream::LinkStream;
use crate::wire::{FrameKind, Short};
use farside_base::{CompletionStatus, LinkId, ReceiveQueueId, RegionId};
use farside_bootstrap::Protect;
use farside_fabric::LinkEvent;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The longest time between two retransmissions to a silent peer; also how late the engine may be
/// before the kernel gives up instead of it.
const STEP_MAX: Duration = Duration::from_millis(500);

/// The state of a link.
pub(crate) enum Phase {
    /// This side dials: there is no answer yet.
    Dialing(Box<Dial>),
    /// The hello was sent: the peer's program decides.
    Asked(Box<Dial>),
    /// The peer dialled, and this program has not answered.
    Requested,
    /// Usable.
    Connected,
    /// The peer's program refused, or no port has that name there.
    Rejected(Rejection),
}

/// The result of a link's timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerVerdict {
    Fine,
    /// A keepalive is due.
    Keepalive,
}

/// The answer of a peer that did not accept.
pub(crate) enum Rejection {
    Declined(Vec<u8>),
    NoListener(Box<Dial>),
}

/// One link of a port.
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
    body: Option<UnsentBody>,
    /// Memory of a READ answer that is sent without a copy.
    direct_answer: Option<Segment>,
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
struct UnsentBody {
    of: BodySource,
    skip: u64,
    left: u64,
}

/// The source of that payload.
enum BodySource {
    /// A request's: its first segment, counted over the life of the link.
    Request(u64),
    /// An answer's, which is in `direct_answer`: bytes of this region.
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
            direct_answer: None,
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
    pub(crate) fn dialing(id: LinkId, queue: Option<ReceiveQueueId>, dial: Box<Dial>) -> Self {
        Self { queue, ..Self::new(id, Phase::Dialing(dial)) }
    }

    pub(crate) fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Connected)
    }

    pub(crate) fn is_rejected(&self) -> bool {
        matches!(self.phase, Phase::Rejected(_))
    }

    /// Returns whether a request's payload is still to be sent.
    pub(crate) fn body_is_unsent(&self) -> bool {
        matches!(&self.body, Some(UnsentBody { of: BodySource::Request(_), .. }))
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

    /// Switches a dialled link to plain text once its last protected frame was sent. Returns whether it
    /// is plain as of now.
    fn confirm(&mut self) -> Result<bool, ConnectionFailure> {
        let due = self.is_connected() && !self.confirmed && self.host.is_none();
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
        self.stage_control(FrameKind::Accepted, 0, reply);
        self.phase = Phase::Connected;
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
                set_user_timeout(connection.socket(), most_ms);
            }
        }
        let most = match self.phase {
            Phase::Dialing(_) => options.connect_timeout,
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
            TimerVerdict::Keepalive
        } else {
            TimerVerdict::Fine
        })
    }

    /// Returns the time until its next tick: short enough for the keepalives of a peer with a shorter lease.
    pub(crate) fn tick_every(&self, options: &TcpOptions) -> Duration {
        // The lease of the peer comes with its greeting.
        if matches!(self.phase, Phase::Dialing(_) | Phase::Asked(_)) {
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
        queues: &mut PortQueues,
    ) -> Result<(), ConnectionFailure> {
        let violation = Err(ConnectionFailure::Violation("control frame"));
        if short.kind == FrameKind::Confirm {
            let awaited = self.is_connected() && !self.confirmed && self.host.is_some();
            let plain = |connection: &mut LinkStream| connection.make_plain();
            if !awaited || !self.connection.as_mut().is_some_and(plain) {
                return violation;
            }
            self.confirmed = true;
            return Ok(());
        }
        if short.kind == FrameKind::Greeting {
            let Phase::Dialing(dial) = &mut self.phase else {
                return violation;
            };
            let Some(hello) = dial.answer(&short, &bytes) else {
                return Err(ConnectionFailure::Violation("greeting of another version"));
            };
            self.peer_lease_ms = short.sequence;
            self.stage_control(FrameKind::Hello, short.value, &hello);
            let phase = std::mem::replace(&mut self.phase, Phase::Connected);
            if let Phase::Dialing(dial) = phase {
                self.phase = Phase::Asked(dial);
            }
            return Ok(());
        }
        let Phase::Asked(_) = &self.phase else {
            return violation;
        };
        match short.kind {
            FrameKind::Accepted => {
                let protect = self.protect();
                self.phase = Phase::Connected;
                self.confirmed = protect != Protect::Handshake;
                if !self.confirmed {
                    self.stage_control(FrameKind::Confirm, 0, &[]);
                }
                queues.push_event(LinkEvent::Connected { link: self.id, reply: bytes });
                Ok(())
            }
            FrameKind::Declined => {
                self.phase = Phase::Rejected(Rejection::Declined(bytes));
                Ok(())
            }
            FrameKind::NoListener => {
                if let Phase::Asked(dial) = std::mem::replace(&mut self.phase, Phase::Connected) {
                    self.phase = Phase::Rejected(Rejection::NoListener(dial));
                }
                Ok(())
            }
            _ => violation,
        }
    }
}
