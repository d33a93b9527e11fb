//! A byte stream to another host, over any non-blocking transport.

use crate::records::{Filled, IncomingRecords, receive};
use crate::{BootstrapError, HostAddress, Protect, Security, admission, opening, tls};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, Connection, ServerConnection};
use std::fmt;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The resources that an unauthenticated peer may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HandshakeLimits {
    /// From the start of the stream until it is ready.
    pub time: Duration,
    /// Bytes that the peer may send in that time.
    pub bytes: usize,
}

impl HandshakeLimits {
    /// The default: five seconds, and chains of some dozen certificates.
    pub const DEFAULT: Self = Self { time: Duration::from_secs(5), bytes: 64 << 10 };
}

impl Default for HandshakeLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The result of a read or write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// This many bytes were moved, at least one (or zero if zero were requested).
    Moved(usize),
    /// Nothing can be moved now: wait until the transport is readable or, with
    /// [`wants_write`](Stream::wants_write), writable.
    Blocked,
    /// The peer has closed the stream properly; only reads return this.
    Ended,
}

/// The result of `Stream::into_plain`: the transport, and bytes of the peer that were read from it and
/// belong to the plaintext that follows.
pub type Plain<T> = (T, Vec<u8>);

/// A stream to one peer, from the first byte of the handshake on.
///
/// *Use*: whenever the transport is readable or writable, call [`advance`](Self::advance) until the stream
/// is ready, then [`read`](Self::read), [`write_vectored`](Self::write_vectored) and
/// [`flush`](Self::flush). Call `advance` again by [`deadline`](Self::deadline) at the latest. Nothing
/// blocks, if the transport does not. *Guarantees*: with an identity, the accepting side is ready only
/// after the peer has authenticated; the connecting side may be ready one message before the peer has
/// decided, and learns of a refusal by its first read. *Errors*: after any of them the stream is unusable;
/// it has tried to send its pending alert.
pub struct Stream<T> {
    transport: T,
    security: Security,
    incoming: IncomingRecords,
    /// The opening, and how many bytes of it were sent.
    opening: ([u8; opening::BYTES], usize),
    tls: Option<Box<Connection>>,
    /// Decrypted bytes that were not read yet.
    plaintext: usize,
    stage: StreamStage,
    limits: HandshakeLimits,
    deadline: Instant,
    /// Bytes of the peer in the handshake.
    received: usize,
    /// The addresses of both ends, if the peer's user is to be checked.
    ends: Option<(SocketAddr, SocketAddr)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StreamStage {
    Opening,
    Handshake,
    Ready,
}

impl<T: Read + Write> Stream<T> {
    /// Creates the connecting side. `host` is the dialled host, which certificates are checked against.
    ///
    /// # Errors
    /// `HostName` if no certificate can be for it.
    pub fn connect(
        transport: T,
        security: &Security,
        host: &HostAddress,
        limits: HandshakeLimits,
    ) -> Result<Self, BootstrapError> {
        let mut tls = None;
        if let Some(roles) = security.identity().roles() {
            let name = if roles.connecting.enable_sni {
                match host {
                    HostAddress::Ip(number) => ServerName::IpAddress((*number).into()),
                    HostAddress::Name(name) => ServerName::try_from(name.clone())
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

    /// Creates the accepting side.
    ///
    /// # Errors
    /// Those of the TLS library; none is known.
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
            incoming: IncomingRecords::new(),
            opening: (opening::of(security), 0),
            tls: tls.map(Box::new),
            plaintext: 0,
            stage: StreamStage::Opening,
            limits,
            deadline: Instant::now() + limits.time,
            received: 0,
            ends: None,
        }
    }

    /// Sets the addresses of both ends for the connecting side. Without an identity, a peer on the loopback
    /// must be of this user, which is checked after its first bytes. For all other streams this has no
    /// effect.
    #[must_use]
    pub fn between(mut self, local: SocketAddr, peer: SocketAddr) -> Self {
        self.ends = self.security.is_open().then_some((local, peer));
        self
    }

    /// Continues the handshake as far as possible; true once the stream is ready.
    ///
    /// # Errors
    /// All errors of a handshake.
    pub fn advance(&mut self) -> Result<bool, BootstrapError> {
        let done = self.try_advance();
        if done.is_err() {
            // Tells the peer the reason; if that fails, the first error counts.
            let _ = self.flush();
        }
        done
    }

    fn try_advance(&mut self) -> Result<bool, BootstrapError> {
        if self.stage == StreamStage::Ready {
            return Ok(true);
        }
        if Instant::now() >= self.deadline {
            return Err(BootstrapError::TooSlow);
        }
        self.flush()?;
        loop {
            let moved = match self.stage {
                StreamStage::Opening => self.check_opening()?,
                StreamStage::Handshake => self.process_record()?,
                StreamStage::Ready => return Ok(true),
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

    /// Checks the opening; false if it is incomplete.
    fn check_opening(&mut self) -> Result<bool, BootstrapError> {
        let Some(theirs) = self.incoming.opening() else {
            return Ok(false);
        };
        opening::check(&theirs, &self.security)?;
        if let Some((local, peer)) = self.ends.take() {
            admission::judge_server(local, peer)?;
        }
        self.stage = StreamStage::Handshake;
        self.settle();
        Ok(true)
    }

    /// Processes one record; false if none is complete.
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
        if self.stage == StreamStage::Handshake {
            self.flush()?;
            self.settle();
        }
        Ok(true)
    }

    /// Checks whether the handshake is complete.
    fn settle(&mut self) {
        if self.tls.as_deref().is_none_or(|tls| !tls.is_handshaking()) {
            self.stage = StreamStage::Ready;
            self.incoming.settle(self.tls.is_some());
        }
    }

    /// Whether the handshake is complete.
    pub fn is_ready(&self) -> bool {
        self.stage == StreamStage::Ready
    }

    /// Whether the peer has sent anything in the handshake.
    pub fn has_heard(&self) -> bool {
        self.received > 0
    }

    /// The time by which the handshake must be complete.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Reads available bytes; `Blocked` also before the stream is ready.
    ///
    /// # Errors
    /// Those of the transport; `Ended` if a protected stream ends without a close alert; `Malformed` and
    /// `NotTrustedThere`.
    pub fn read(&mut self, out: &mut [u8]) -> Result<Transfer, BootstrapError> {
        if out.is_empty() {
            return Ok(Transfer::Moved(0));
        }
        if self.stage != StreamStage::Ready {
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

    /// Writes as much of the slices, in order, as there is room for, and sends what the transport takes.
    /// `Blocked` also before the stream is ready.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> Result<Transfer, BootstrapError> {
        if self.stage != StreamStage::Ready || (self.wants_write() && !self.flush()?) {
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

    /// The same for one slice.
    ///
    /// # Errors
    /// As for `write_vectored`.
    pub fn write(&mut self, bytes: &[u8]) -> Result<Transfer, BootstrapError> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Sends pending bytes; true if none are left.
    ///
    /// # Errors
    /// Those of the transport.
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

    /// Whether pending bytes wait until the transport is writable.
    pub fn wants_write(&self) -> bool {
        self.opening.1 < opening::BYTES || self.tls.as_deref().is_some_and(|tls| tls.wants_write())
    }

    /// Whether `read` would return buffered bytes, which the transport does not announce.
    pub fn holds_bytes(&self) -> bool {
        self.plaintext > 0 || !self.incoming.is_empty()
    }

    /// Sends a close alert, so that the peer can distinguish this end from a forged one.
    ///
    /// # Errors
    /// Those of the transport.
    pub fn close(&mut self) -> Result<(), BootstrapError> {
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.send_close_notify();
        }
        self.flush().map(|_| ())
    }

    /// Continues in plaintext: returns the transport, and the plaintext that the peer has already sent.
    /// Each side calls this after it has sent its last protected message and received the peer's last, as
    /// their protocol defines; either may go first, and no byte is lost.
    ///
    /// # Errors
    /// The stream itself, before the handshake is complete, or if protected bytes are still to be sent
    /// ([`flush`](Self::flush)) or read.
    pub fn into_plain(self) -> Result<Plain<T>, Box<Self>> {
        if self.stage != StreamStage::Ready || self.wants_write() || self.plaintext > 0 {
            return Err(Box::new(self));
        }
        Ok((self.transport, self.incoming.into_rest()))
    }
}

impl<T> Stream<T> {
    /// The transport.
    pub const fn transport(&self) -> &T {
        &self.transport
    }

    /// The agreed protection.
    pub const fn protect(&self) -> Protect {
        self.security.protect()
    }
}

impl<T> fmt::Debug for Stream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:?}, {:?})", self.security, self.stage)
    }
}

/// Writes once; `None` if there is no room.
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
