//! A stream of bytes to another host, over any transport that does not block.

use crate::records::{Filled, Incoming, receive};
use crate::{BootstrapError, Host, Protect, Security, admission, opening, tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::fmt;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What a peer may take of this side before it has proved who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeLimits {
    /// From the start of the stream until it is ready.
    pub time: Duration,
    /// Bytes that the peer may send meanwhile.
    pub bytes: usize,
}

impl HandshakeLimits {
    /// What is used unless told otherwise: five seconds, and chains of some dozen certificates.
    pub const DEFAULT: Self = Self { time: Duration::from_secs(5), bytes: 64 << 10 };
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How a read or write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// So many bytes were moved, at least one (or none where none were asked for).
    Moved(usize),
    /// Nothing can be moved now: wait until the transport can be read or, with
    /// [`wants_write`](Stream::wants_write), written.
    Blocked,
    /// The peer has ended the stream in order; only reads say so.
    Ended,
}

/// What `Stream::into_plain` gives: the transport, and bytes of the peer that were read from it and
/// belong to what follows.
pub type Plain<T> = (T, Vec<u8>);

/// A stream to one peer, from the first byte of the handshake on.
///
/// *Use*: whenever the transport can be read or written, call [`advance`](Self::advance) until it says
/// that the stream is ready, then [`read`](Self::read), [`write_vectored`](Self::write_vectored) and
/// [`flush`](Self::flush). Until [`deadline`](Self::deadline) at the latest `advance` must be called
/// once more. Nothing blocks, if the transport does not. *Guarantees*: with an identity, whoever
/// accepts is ready only after the peer has proved who it is; whoever connects may be ready one
/// message before the peer has judged it, and learns of a refusal by its first read. *Errors*: after
/// any of them the stream is useless; what it still had to say (an alert) has been tried to send.
pub struct Stream<T> {
    transport: T,
    security: Security,
    incoming: Incoming,
    /// The opening, and how much of it is sent.
    opening: ([u8; opening::BYTES], usize),
    tls: Option<Box<Connection>>,
    /// Decrypted bytes that nobody has read.
    plaintext: usize,
    stage: Stage,
    limits: HandshakeLimits,
    deadline: Instant,
    /// Of the peer, in the handshake.
    received: usize,
    /// Own address and the peer's, where the peer's user is to be judged.
    ends: Option<(SocketAddr, SocketAddr)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Opening,
    Handshake,
    Ready,
}

impl<T: Read + Write> Stream<T> {
    /// The side that calls. `host` is whom it calls, which certificates are checked against.
    ///
    /// # Errors
    /// `HostName` when no certificate could be for it.
    pub fn connect(
        transport: T,
        security: &Security,
        host: &Host,
        limits: HandshakeLimits,
    ) -> Result<Self, BootstrapError> {
        let mut tls = None;
        if let Some(roles) = security.identity().roles() {
            let name = if roles.connecting.enable_sni {
                match host {
                    Host::Ip(number) => ServerName::IpAddress((*number).into()),
                    Host::Name(name) => ServerName::try_from(name.clone())
                        .map_err(|_| BootstrapError::HostName(name.clone()))?,
                }
            } else {
                ServerName::try_from(tls::NAMELESS)
                    .map_err(|_| BootstrapError::HostName(tls::NAMELESS.to_owned()))?
            };
            let client = ClientConnection::new(Arc::clone(&roles.connecting), name);
            tls = Some(Connection::Client(client.map_err(tls::explain)?));
        }
        Ok(Self::new(transport, security, tls, limits))
    }

    /// The side that is called.
    ///
    /// # Errors
    /// None that is known; those of the library.
    pub fn accept(
        transport: T,
        security: &Security,
        limits: HandshakeLimits,
    ) -> Result<Self, BootstrapError> {
        let mut tls = None;
        if let Some(roles) = security.identity().roles() {
            let server = ServerConnection::new(Arc::clone(&roles.accepting));
            tls = Some(Connection::Server(server.map_err(tls::explain)?));
        }
        Ok(Self::new(transport, security, tls, limits))
    }

    fn new(
        transport: T,
        security: &Security,
        tls: Option<Connection>,
        limits: HandshakeLimits,
    ) -> Self {
        Self {
            transport,
            security: security.clone(),
            incoming: Incoming::new(),
            opening: (opening::of(security), 0),
            tls: tls.map(Box::new),
            plaintext: 0,
            stage: Stage::Opening,
            limits,
            deadline: Instant::now() + limits.time,
            received: 0,
            ends: None,
        }
    }

    /// Tells the connecting side where its socket and the peer's are: without an identity, a peer on
    /// the loopback must be of this user, which is judged when it has said something. For all other
    /// streams this changes nothing.
    #[must_use]
    pub fn between(mut self, local: SocketAddr, peer: SocketAddr) -> Self {
        self.ends = self.security.is_open().then_some((local, peer));
        self
    }

    /// Goes on with the handshake as far as it can; true once the stream is ready.
    ///
    /// # Errors
    /// Everything that a handshake can fail of.
    pub fn advance(&mut self) -> Result<bool, BootstrapError> {
        let done = self.try_advance();
        if done.is_err() {
            // The peer should learn why; should that fail, the first error is the one that counts.
            let _ = self.flush();
        }
        done
    }

    fn try_advance(&mut self) -> Result<bool, BootstrapError> {
        if self.stage == Stage::Ready {
            return Ok(true);
        }
        if Instant::now() >= self.deadline {
            return Err(BootstrapError::TooSlow);
        }
        self.flush()?;
        loop {
            let moved = match self.stage {
                Stage::Opening => self.check_opening()?,
                Stage::Handshake => self.process_record()?,
                Stage::Ready => return Ok(true),
            };
            if moved {
                continue;
            }
            let before = self.incoming.len();
            match self.incoming.fill(&mut self.transport)? {
                Filled::Some => {}
                Filled::Blocked => return Ok(false),
                Filled::Ended => return Err(BootstrapError::Ended),
            }
            self.received += self.incoming.len() - before;
            if self.received > self.limits.bytes {
                return Err(BootstrapError::TooLong);
            }
        }
    }

    /// Judges the opening; false when it is not there yet.
    fn check_opening(&mut self) -> Result<bool, BootstrapError> {
        let Some(theirs) = self.incoming.opening() else {
            return Ok(false);
        };
        opening::check(&theirs, &self.security)?;
        if let Some((local, peer)) = self.ends.take() {
            admission::judge_server(local, peer)?;
        }
        self.stage = Stage::Handshake;
        self.settle();
        Ok(true)
    }

    /// Processes one record; false when none is there.
    fn process_record(&mut self) -> Result<bool, BootstrapError> {
        let Some(tls) = self.tls.as_deref_mut() else {
            return Ok(false);
        };
        let Some(mut record) = self.incoming.record()? else {
            return Ok(false);
        };
        while !record.is_empty() {
            let taken = tls.read_tls(&mut record).map_err(BootstrapError::Io)?;
            let state = tls.process_new_packets().map_err(tls::explain)?;
            self.plaintext = state.plaintext_bytes_to_read();
            if taken == 0 {
                return Err(BootstrapError::Malformed("record".to_owned()));
            }
        }
        if self.stage == Stage::Handshake {
            self.flush()?;
            self.settle();
        }
        Ok(true)
    }

    /// Sees whether the handshake is over.
    fn settle(&mut self) {
        if self.tls.as_deref().is_none_or(|tls| !tls.is_handshaking()) {
            self.stage = Stage::Ready;
            self.incoming.settle(self.tls.is_some());
        }
    }

    /// Whether the handshake is over.
    pub fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Whether the peer has sent anything in the handshake.
    pub fn has_heard(&self) -> bool {
        self.received > 0
    }

    /// Until when the handshake must be over.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Reads what is there; `Blocked` also before the stream is ready.
    ///
    /// # Errors
    /// What the transport says; `Ended` when a protected stream breaks off without a farewell;
    /// `Malformed` and `NotTrustedThere`.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Transfer, BootstrapError> {
        if out.is_empty() {
            return Ok(Transfer::Moved(0));
        }
        if self.stage != Stage::Ready {
            return Ok(Transfer::Blocked);
        }
        if self.tls.is_none() {
            return self.read_plain(out);
        }
        loop {
            if let Some(tls) = self.tls.as_deref_mut() {
                match tls.reader().read(out) {
                    Ok(0) => return Ok(Transfer::Ended),
                    Ok(bytes) => {
                        self.plaintext -= bytes.min(self.plaintext);
                        return Ok(Transfer::Moved(bytes));
                    }
                    Err(reason) if reason.kind() == ErrorKind::WouldBlock => {}
                    Err(reason) => return Err(BootstrapError::Io(reason)),
                }
            }
            if self.process_record()? {
                continue;
            }
            match self.incoming.fill(&mut self.transport)? {
                Filled::Some => {}
                Filled::Blocked => return Ok(Transfer::Blocked),
                Filled::Ended => return Err(BootstrapError::Ended),
            }
        }
    }

    fn read_plain(&mut self, out: &mut [u8]) -> Result<Transfer, BootstrapError> {
        let held = self.incoming.take(out);
        if held > 0 {
            return Ok(Transfer::Moved(held));
        }
        Ok(match receive(&mut self.transport, out)? {
            Some(0) => Transfer::Ended,
            Some(bytes) => Transfer::Moved(bytes),
            None => Transfer::Blocked,
        })
    }

    /// Writes as much of the slices, one after the other, as there is room for, and sends what the
    /// transport takes. `Blocked` also before the stream is ready.
    ///
    /// # Errors
    /// What the transport says.
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<Transfer, BootstrapError> {
        if self.stage != Stage::Ready || (self.wants_write() && !self.flush()?) {
            return Ok(Transfer::Blocked);
        }
        if slices.iter().all(|slice| slice.is_empty()) {
            return Ok(Transfer::Moved(0));
        }
        let written = match self.tls.as_deref_mut() {
            None => send(|| self.transport.write_vectored(slices))?,
            Some(tls) => {
                let taken = tls.writer().write_vectored(slices).map_err(BootstrapError::Io)?;
                self.flush()?;
                Some(taken)
            }
        };
        Ok(match written {
            None | Some(0) => Transfer::Blocked,
            Some(bytes) => Transfer::Moved(bytes),
        })
    }

    /// The same of one slice.
    ///
    /// # Errors
    /// As there.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Transfer, BootstrapError> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Sends what was taken and not sent yet; true when nothing of it is left.
    ///
    /// # Errors
    /// What the transport says.
    pub fn flush(&mut self) -> Result<bool, BootstrapError> {
        while self.opening.1 < opening::BYTES {
            let rest = &self.opening.0[self.opening.1..];
            match send(|| self.transport.write(rest))? {
                Some(bytes) if bytes > 0 => self.opening.1 += bytes,
                _ => return Ok(false),
            }
        }
        if let Some(tls) = self.tls.as_deref_mut() {
            while tls.wants_write() {
                match send(|| tls.write_tls(&mut self.transport))? {
                    Some(bytes) if bytes > 0 => {}
                    _ => return Ok(false),
                }
            }
        }
        Ok(true)
    }

    /// Whether something waits until the transport can be written.
    pub fn wants_write(&self) -> bool {
        self.opening.1 < opening::BYTES || self.tls.as_deref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether bytes are held here that `read` would give without the transport, which therefore
    /// does not announce them.
    pub fn holds_bytes(&self) -> bool {
        self.plaintext > 0 || !self.incoming.is_empty()
    }

    /// Says farewell, so that the peer can tell this end from one that somebody in between forged.
    ///
    /// # Errors
    /// What the transport says.
    pub fn close(&mut self) -> Result<(), BootstrapError> {
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.send_close_notify();
        }
        self.flush().map(|_| ())
    }

    /// Goes on in plain text: the transport, and what the peer has already sent so. Each side calls
    /// this after it has sent its last protected message and received the peer's last, as their
    /// protocol has it; either may go first, and no byte is lost.
    ///
    /// # Errors
    /// The stream itself, while the handshake is not over, or something protected is still to be sent
    /// ([`flush`](Self::flush)) or read.
    pub fn into_plain(self) -> Result<Plain<T>, Box<Self>> {
        if self.stage != Stage::Ready || self.wants_write() || self.plaintext > 0 {
            return Err(Box::new(self));
        }
        Ok((self.transport, self.incoming.into_rest()))
    }
}

impl<T> Stream<T> {
    /// What is below.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// What both sides agreed to protect.
    pub const fn protect(&self) -> Protect {
        self.security.protect()
    }
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?}, {:?})", self.security, self.stage)
    }
}

/// Writes once; `None` when there is no room.
fn send(
    mut write: impl FnMut() -> std::io::Result<usize>,
) -> Result<Option<usize>, BootstrapError> {
    loop {
        match write() {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(reason) if reason.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(reason) if reason.kind() == ErrorKind::Interrupted => {}
            Err(reason) => return Err(BootstrapError::Io(reason)),
        }
    }
}
