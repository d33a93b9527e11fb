//! A stream to another host that two threads share: one sends, one receives, and both may block.

use farside_bootstrap::{BootstrapError, Endpoint, HandshakeLimits, HostAddress, Security};
use farside_bootstrap::{Stream, Transfer};
use farside_command::failure::Failure;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Timeout of a connection attempt to each address of a host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time until a vanished peer is detected; workers of a vanished command end then.
const SILENCE: Duration = Duration::from_secs(6);
const PROBES: u32 = 3;

/// A stream after its handshake.
pub(crate) struct Line {
    stream: Mutex<Stream<TcpStream>>,
    /// The same socket, for waiting while the other thread uses the stream.
    socket: Arc<TcpStream>,
}

impl Line {
    /// Connects to `to`.
    pub(crate) fn connect(to: &Endpoint, security: &Security) -> Result<Self, Failure> {
        let failed = |e: &dyn std::fmt::Display| Failure::system(format!("{to}: {e}"));
        let addresses = to.resolve().map_err(|e| failed(&e))?;
        let mut last = io::Error::from(ErrorKind::NotFound);
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(socket) => {
                    let socket = Arc::new(socket);
                    let line = Self::with(socket, Some(&to.host), security, || {});
                    return line.map_err(|e| failed(&e));
                }
                Err(error) => last = error,
            }
        }
        Err(match last.kind() {
            ErrorKind::ConnectionRefused => failed(&"no process listens there"),
            _ => failed(&format!("not reached: {last}")),
        })
    }

    /// Accepts a connection and calls `heard` when the peer has sent something. *Blocks* until the end of the
    /// handshake, or its deadline.
    pub(crate) fn accept(
        socket: Arc<TcpStream>,
        security: &Security,
        heard: impl Fn(),
    ) -> Result<Self, BootstrapError> {
        Self::with(socket, None, security, heard)
    }

    fn with(
        socket: Arc<TcpStream>,
        calls: Option<&HostAddress>,
        security: &Security,
        heard: impl Fn(),
    ) -> Result<Self, BootstrapError> {
        prepare(&socket).map_err(BootstrapError::Io)?;
        let other = socket.try_clone().map_err(BootstrapError::Io)?;
        let limits = HandshakeLimits::DEFAULT;
        let mut stream = match calls {
            Some(host) => {
                let local = socket.local_addr().map_err(BootstrapError::Io)?;
                let peer = socket.peer_addr().map_err(BootstrapError::Io)?;
                Stream::connect(other, security, host, limits)?.between(local, peer)
            }
            None => Stream::accept(other, security, limits)?,
        };
        while !stream.advance()? {
            if stream.has_heard() {
                heard();
            }
            let wants = interest(stream.wants_write());
            wait(&socket, wants, Some(stream.deadline())).map_err(BootstrapError::Io)?;
        }
        Ok(Self { stream: Mutex::new(stream), socket })
    }

    /// Returns the local address, at which a peer that connected reaches this host.
    pub(crate) fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Returns the peer's address.
    pub(crate) fn peer(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Sends all bytes. *Blocks* while the peer does not read.
    pub(crate) fn send(&self, mut bytes: &[u8]) -> Result<(), BootstrapError> {
        loop {
            let done = {
                let mut stream = self.stream();
                if bytes.is_empty() {
                    stream.flush()?
                } else if let Transfer::Moved(count) = stream.write(bytes)? {
                    bytes = &bytes[count..];
                    continue;
                } else {
                    false
                }
            };
            if done {
                return Ok(());
            }
            wait(&self.socket, PollFlags::OUT, None).map_err(BootstrapError::Io)?;
        }
    }

    /// Receives available bytes, at least one; returns 0 if the peer has ended the stream. *Blocks* until then, or
    /// until `until`, which is an error.
    pub(crate) fn receive(
        &self,
        out: &mut [u8],
        until: Option<Instant>,
    ) -> Result<usize, BootstrapError> {
        loop {
            if until.is_some_and(|until| Instant::now() >= until) {
                return Err(BootstrapError::TooSlow);
            }
            let wants = {
                let mut stream = self.stream();
                match stream.read(out)? {
                    Transfer::Moved(count) => return Ok(count),
                    Transfer::Ended => return Ok(0),
                    Transfer::Blocked => interest(stream.wants_write() && !stream.flush()?),
                }
            };
            wait(&self.socket, wants, until).map_err(BootstrapError::Io)?;
        }
    }

    /// Ends the stream for both threads.
    pub(crate) fn end(&self) {
        // The peer may have gone already and then needs no notification.
        let _ = self.stream().close();
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn stream(&self) -> MutexGuard<'_, Stream<TcpStream>> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives line by line.
pub(crate) struct Lines<'a> {
    line: &'a Line,
    held: Vec<u8>,
    /// The length of the prefix of `held` without a newline.
    seen: usize,
    bytes_max: usize,
    /// The deadline of the next line.
    until: Option<Instant>,
}

impl<'a> Lines<'a> {
    /// Reads lines of at most `bytes_max` bytes.
    pub(crate) fn new(line: &'a Line, bytes_max: usize) -> Self {
        Self { line, held: Vec::new(), seen: 0, bytes_max, until: None }
    }

    /// Sets the deadline of further lines; none for `None`.
    pub(crate) fn by(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// Receives the next line, without its newline; `None` if the peer has ended the stream. A last line without a
    /// newline is dropped.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, BootstrapError> {
        let mut block = [0; 16 << 10];
        loop {
            if let Some(at) = self.held[self.seen..].iter().position(|byte| *byte == b'\n') {
                let rest = self.held.split_off(self.seen + at + 1);
                let mut line = std::mem::replace(&mut self.held, rest);
                line.pop();
                self.seen = 0;
                return Ok(Some(line));
            }
            self.seen = self.held.len();
            if self.seen > self.bytes_max {
                return Err(BootstrapError::TooLong);
            }
            match self.line.receive(&mut block, self.until)? {
                0 => return Ok(None),
                count => self.held.extend_from_slice(&block[..count]),
            }
        }
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, SILENCE / 2)?;
    sockopt::set_tcp_keepintvl(socket, SILENCE / 2 / PROBES)?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    let silence_ms = u32::try_from(SILENCE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, silence_ms)?;
    Ok(())
}

fn interest(writes: bool) -> PollFlags {
    if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
}

/// Waits until the socket can be read or written, or until the deadline.
fn wait(socket: &TcpStream, wants: PollFlags, until: Option<Instant>) -> io::Result<()> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    // One millisecond more, so that the deadline has passed when this returns.
    let left = left.and_then(|left| Timespec::try_from(left + Duration::from_millis(1)).ok());
    match poll(&mut [PollFd::new(socket, wants)], left.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
