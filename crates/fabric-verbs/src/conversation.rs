//! One end of a link's control stream: the socket, its handshake, frames in and out.

use crate::core::Dial;
use crate::ffi::QueuePairHandle;
use crate::inbox::{ImportReply, Inbox, PendingReply};
use crate::pending_work::{ManagerState, PeerImports};
use crate::wire::{self, Frame, Malformed, QueuePairEnd};
use farside_bootstrap::{BootstrapError, Endpoint, HandshakeLimits, Security, Stream, Transfer};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most bytes of pending output; a peer that requests more without reading is disconnected.
const OUTPUT_BYTES_MAX: usize = 1 << 20;

/// How long an address may be silent before it is dialled again. The kernel repeats a lost SYN after a
/// second, which is long after a short outage of the path; round trips on networks of adapters are
/// shorter.
pub(crate) const CALL_AGAIN: Duration = Duration::from_millis(250);
/// After this many repetitions the interval grows by its initial value, for hosts that are slow after
/// all.
const CALLS_AT_A_PACE: u32 = 8;

/// The state of a conversation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConversationStage {
    /// Names of hosts are being resolved.
    Resolving,
    /// The socket connects.
    Calling,
    /// The handshake runs; this side dialled.
    Securing,
    /// `Connect` was sent: the peer's program decides.
    Asking,
    /// The peer's program has accepted, and this side's queue pair is being connected.
    Joining,
    /// A peer has dialled and has not sent `Connect` yet.
    Called,
    /// The program has been asked.
    Offered,
    /// This program has accepted, and the caller's queue pair is not yet connected.
    Confirming,
    /// The link is up.
    Up,
}

impl ConversationStage {
    /// Returns whether both ends send keepalives.
    pub(crate) fn keeps_alive(self) -> bool {
        !matches!(self, Self::Resolving | Self::Calling | Self::Securing | Self::Called)
    }
}

/// Why a conversation is over.
#[derive(Debug)]
pub(crate) enum Over {
    /// The peer or its process has ended.
    Ended,
    /// The host refuses the connection: no process listens.
    NoListener,
    /// The peer was silent for too long, or the network path failed; in words.
    Unreachable(String),
    /// The peer violated the protocol; in words.
    Violation(String),
    /// One does not trust the other; in words.
    NotTrusted(String),
}

impl From<BootstrapError> for Over {
    fn from(error: BootstrapError) -> Self {
        let words = error.to_string();
        match error {
            BootstrapError::Ended => Self::Ended,
            BootstrapError::Io(reason) => reason.into(),
            BootstrapError::TooSlow | BootstrapError::OwnerUnknown(_) => Self::Unreachable(words),
            error if error.is_refusal() => Self::NotTrusted(words),
            _ => Self::Violation(words),
        }
    }
}

impl From<io::Error> for Over {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::NotConnected => Self::Ended,
            io::ErrorKind::ConnectionRefused => Self::NoListener,
            _ => Self::Unreachable(error.to_string()),
        }
    }
}

impl From<Malformed> for Over {
    fn from(malformed: Malformed) -> Self {
        Self::Violation(malformed.0.to_owned())
    }
}

/// The byte stream of a conversation.
enum Io {
    None,
    Connecting(TcpStream, Endpoint),
    Open(Box<Stream<TcpStream>>),
}

pub(crate) struct Conversation {
    pub(crate) stage: ConversationStage,
    io: Io,
    input: Vec<u8>,
    output: Vec<u8>,
    /// How much of `output` was sent.
    sent: usize,
    /// The peer's address, for display.
    pub(crate) from: String,
    /// The host of a peer that dialled this side.
    pub(crate) caller: Option<IpAddr>,
    /// The port it is for, once that is known.
    pub(crate) inbox: Option<Arc<Inbox>>,
    pub(crate) handle: Option<QueuePairHandle>,
    pub(crate) own: Option<QueuePairEnd>,
    pub(crate) peer: Option<QueuePairEnd>,
    pub(crate) peer_incarnation: u64,
    /// The reply of the peer's program.
    pub(crate) reply: Vec<u8>,
    /// When the present stage must be over, if it is limited.
    pub(crate) deadline: Instant,
    pub(crate) heard: Instant,
    pub(crate) said: Instant,
    /// Pending imports of this side.
    pub(crate) imports: HashMap<u32, Arc<ImportReply>>,
    pub(crate) imports_made: u32,
    /// Imports of the peer.
    pub(crate) asked: PeerImports,
    /// The `accept` call that waits for the caller's `Ready`.
    pub(crate) done: Option<Arc<PendingReply<()>>>,
    /// The dial, and its addresses that were not tried yet.
    pub(crate) call: Option<Box<Dial>>,
    pub(crate) targets: VecDeque<(Endpoint, SocketAddr)>,
    /// The text for a dialled address that could not be reached.
    pub(crate) unreachable: Option<String>,
    /// How many of them were dialled.
    pub(crate) calls: u32,
    /// When the current address is dialled again, and how often it was.
    pub(crate) again_at: Instant,
    repeats: u32,
    /// Whether writability was last requested from the epoll.
    pub(crate) watches_writes: bool,
    /// Its connection by rdma_cm, if there is one.
    pub(crate) met: ManagerState,
}

impl Conversation {
    fn new(stage: ConversationStage, io: Io, limits: HandshakeLimits) -> Self {
        let now = Instant::now();
        Self {
            stage,
            io,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            from: String::new(),
            caller: None,
            inbox: None,
            handle: None,
            own: None,
            peer: None,
            peer_incarnation: 0,
            reply: Vec::new(),
            deadline: now + limits.time,
            heard: now,
            said: now,
            imports: HashMap::new(),
            imports_made: 0,
            asked: PeerImports::default(),
            done: None,
            call: None,
            targets: VecDeque::new(),
            unreachable: None,
            calls: 0,
            again_at: now,
            repeats: 0,
            watches_writes: false,
            met: ManagerState::default(),
        }
    }

    /// Returns the conversation of a peer that dialled this side.
    pub(crate) fn called(
        socket: TcpStream,
        security: &Security,
        limits: HandshakeLimits,
    ) -> Result<Self, BootstrapError> {
        let caller = socket.peer_addr().ok();
        let stream = Box::new(Stream::accept(socket, security, limits)?);
        let mut made = Self::new(ConversationStage::Called, Io::Open(stream), limits);
        made.from = caller.map_or_else(String::new, |from| from.to_string());
        made.caller = caller.map(|from| from.ip().to_canonical());
        Ok(made)
    }

    /// Returns the conversation of a dial of this side.
    pub(crate) fn calling(call: Box<Dial>, limits: HandshakeLimits) -> Self {
        let mut made = Self::new(ConversationStage::Resolving, Io::None, limits);
        made.inbox = Some(Arc::clone(&call.inbox));
        made.handle = Some(call.handle.clone());
        made.own = Some(call.end);
        made.call = Some(call);
        made
    }

    /// Dials the next address; false if there is none left.
    pub(crate) fn call_next(&mut self, limits: HandshakeLimits) -> bool {
        while let Some((endpoint, address)) = self.targets.pop_front() {
            (self.io, self.input, self.output, self.sent) = (Io::None, Vec::new(), Vec::new(), 0);
            self.from = address.to_string();
            self.calls += 1;
            match start(address) {
                Ok(socket) => {
                    self.io = Io::Connecting(socket, endpoint);
                    self.stage = ConversationStage::Calling;
                    let now = Instant::now();
                    self.deadline = now + limits.time;
                    (self.again_at, self.repeats) = (now + CALL_AGAIN, 0);
                    self.watches_writes = true;
                    return true;
                }
                Err(error) => self.unreachable = Some(error.to_string()),
            }
        }
        false
    }

    /// Dials the same address again, with a new socket that replaces the first. Returns false if that
    /// is impossible.
    pub(crate) fn call_again(&mut self, now: Instant) -> bool {
        self.repeats += 1;
        self.again_at = now + CALL_AGAIN * (1 + self.repeats / CALLS_AT_A_PACE);
        let Io::Connecting(socket, _) = &mut self.io else {
            return false;
        };
        // If it fails, the first socket reports why.
        let again = self.from.parse().ok().and_then(|address| start(address).ok());
        again.map(|again| *socket = again).is_some()
    }

    /// Returns whether the peer has sent nothing yet.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(&self.io, Io::Open(stream) if !stream.has_heard())
    }

    /// Returns the socket that the epoll watches.
    pub(crate) fn socket(&self) -> Option<&TcpStream> {
        match &self.io {
            Io::None => None,
            Io::Connecting(socket, _) => Some(socket),
            Io::Open(stream) => Some(stream.transport()),
        }
    }

    /// Advances as far as the socket allows. Returns true when frames can be read and sent.
    pub(crate) fn advance(
        &mut self,
        security: &Security,
        limits: HandshakeLimits,
    ) -> Result<bool, Over> {
        if let Io::Connecting(socket, endpoint) = &self.io {
            match sockopt::socket_error(socket) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => return Err(io::Error::from(error).into()),
            }
            let (Ok(peer), Ok(local)) = (socket.peer_addr(), socket.local_addr()) else {
                return Ok(false);
            };
            let host = endpoint.host.clone();
            let Io::Connecting(socket, _) = std::mem::replace(&mut self.io, Io::None) else {
                return Ok(false);
            };
            let stream = Stream::connect(socket, security, &host, limits)?.between(local, peer);
            self.io = Io::Open(Box::new(stream));
            self.stage = ConversationStage::Securing;
        }
        match &mut self.io {
            Io::Open(stream) => Ok(stream.is_ready() || stream.advance()?),
            Io::None | Io::Connecting(..) => Ok(false),
        }
    }

    /// Reads what is available; `take_frame` returns the frames of it.
    pub(crate) fn fill(&mut self) -> Result<(), Over> {
        let Io::Open(stream) = &mut self.io else {
            return Ok(());
        };
        let mut chunk = [0; 4096];
        loop {
            // One frame and the start of the next; the rest stays in the socket.
            if self.input.len() > wire::FRAME_BYTES_MAX + wire::LENGTH_BYTES {
                return Ok(());
            }
            match stream.read(&mut chunk)? {
                Transfer::Moved(count) => self.input.extend(&chunk[..count]),
                Transfer::Blocked => return Ok(()),
                Transfer::Ended => return Err(Over::Ended),
            }
        }
    }

    /// Returns whether bytes of the peer are held that the socket does not announce again.
    pub(crate) fn holds_bytes(&self) -> bool {
        matches!(&self.io, Io::Open(stream) if stream.holds_bytes())
    }

    /// Takes the bytes of the next whole frame that was read.
    pub(crate) fn take_frame(&mut self) -> Result<Option<Vec<u8>>, Over> {
        let Some((_, taken)) = wire::decode(&self.input)? else {
            return Ok(None);
        };
        let rest = self.input.split_off(taken);
        Ok(Some(std::mem::replace(&mut self.input, rest)))
    }

    /// Appends a frame to the output.
    pub(crate) fn say(&mut self, frame: &Frame<'_>) -> Result<(), Over> {
        if self.output.len() - self.sent > OUTPUT_BYTES_MAX {
            return Err(Over::Violation(
                "it sends requests and does not read the answers".to_owned(),
            ));
        }
        frame.encode(&mut self.output);
        self.said = Instant::now();
        Ok(())
    }

    /// Sends as much as the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Over> {
        let Io::Open(stream) = &mut self.io else {
            return Ok(());
        };
        while stream.is_ready() && self.sent < self.output.len() {
            match stream.write(&self.output[self.sent..])? {
                Transfer::Moved(count) => self.sent += count,
                Transfer::Blocked | Transfer::Ended => break,
            }
        }
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        stream.flush()?;
        Ok(())
    }

    /// Returns whether something waits until the socket can be written.
    pub(crate) fn wants_write(&self) -> bool {
        match &self.io {
            Io::None => false,
            Io::Connecting(..) => true,
            Io::Open(stream) => stream.wants_write() || self.sent < self.output.len(),
        }
    }

    /// Sends what is left, and ends the stream.
    pub(crate) fn hang_up(&mut self) {
        // A peer that does not receive it sees the end of the socket.
        let _ = self.flush();
        if let Io::Open(stream) = &mut self.io {
            let _ = stream.close();
        }
    }
}

/// Returns a socket that connects.
fn start(address: SocketAddr) -> io::Result<TcpStream> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(TcpStream::from(socket)),
        Err(error) => Err(error.into()),
    }
}
