//! Admission of unauthenticated connections: from `accept` until the peer has named a port.
//!
//! Only the engine handles them. They are limited in number (`TcpLimits`), in bytes (64 KiB of
//! handshake, then two hello frames) and in time (`connect_timeout`), so an unauthenticated peer holds
//! few resources, and for a short time.

use crate::failure::ConnectionFailure;
use crate::payload::PayloadSegments;
use crate::stream::{Got, LinkStream};
use crate::wire::{self, CONTROL_MAX, FrameKind, Header, SHORT, Short};
use farside_bootstrap::Protect;
use std::net::IpAddr;
use std::time::Instant;

/// The longest hello frame.
const HELLO_FRAME_MAX: usize = SHORT + CONTROL_MAX as usize;

/// A connection that has not named a port yet.
pub(crate) struct PendingLink {
    pub(crate) connection: LinkStream,
    pub(crate) host: IpAddr,
    /// When the handshake and the hello must be complete.
    pub(crate) deadline: Instant,
    /// The nonce that the hello must repeat: a replayed hello does not match.
    challenge: u64,
    /// The lease of this side, in ms.
    lease_ms: u32,
    stage: PendingStage,
    received: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PendingStage {
    Handshake,
    Hello,
    /// Rejected: kept until the peer closes, so that the answer arrives.
    Rejected,
}

/// The result of advancing a pending connection.
pub(crate) enum PendingProgress {
    /// More bytes are needed.
    Incomplete,
    /// A complete hello: the port's name, the program's bytes, the bytes received after them, and the
    /// peer's lease.
    Hello { name: String, hello: Vec<u8>, early: Vec<u8>, lease_ms: u32 },
}

impl PendingLink {
    pub(crate) fn new(
        connection: LinkStream,
        host: IpAddr,
        deadline: Instant,
        (challenge, lease_ms): (u64, u32),
    ) -> Self {
        let (stage, received) = (PendingStage::Handshake, Vec::new());
        Self { connection, host, deadline, challenge, lease_ms, stage, received }
    }

    /// Returns whether the peer has sent nothing yet.
    pub(crate) fn is_silent(&self) -> bool {
        match &self.connection {
            LinkStream::Stream(stream) => {
                self.stage == PendingStage::Handshake && !stream.has_heard()
            }
            LinkStream::Plain { .. } => false,
        }
    }

    /// Advances the handshake and the hello as far as the received bytes allow.
    pub(crate) fn advance(
        &mut self,
        incarnation: u64,
    ) -> Result<PendingProgress, ConnectionFailure> {
        if self.stage == PendingStage::Handshake {
            let LinkStream::Stream(stream) = &mut self.connection else {
                return Err(ConnectionFailure::Violation("handshake"));
            };
            if !stream.advance()? {
                return Ok(PendingProgress::Incomplete);
            }
            if stream.protect() == Protect::Nothing && !self.connection.make_plain() {
                return Ok(PendingProgress::Incomplete);
            }
            self.stage = PendingStage::Hello;
            self.send_control(FrameKind::Greeting, self.challenge, &incarnation.to_le_bytes())?;
        }
        let mut bytes = [0; 4096];
        while let Got::Bytes(count) = self.connection.receive(&mut bytes)? {
            if self.stage == PendingStage::Hello {
                self.received.extend_from_slice(&bytes[..count]);
                if self.received.len() > 2 * HELLO_FRAME_MAX {
                    return Err(ConnectionFailure::Violation("length of a hello"));
                }
            }
        }
        self.connection.flush()?;
        if self.stage == PendingStage::Hello {
            self.decode_hello()
        } else {
            Ok(PendingProgress::Incomplete)
        }
    }

    fn decode_hello(&mut self) -> Result<PendingProgress, ConnectionFailure> {
        let Some((header, rest)) = self.received.split_at_checked(SHORT) else {
            // The first byte is enough to reject a peer of another protocol.
            let right = self.received.first().is_none_or(|first| Header::size(*first) == Ok(SHORT));
            return if right {
                Ok(PendingProgress::Incomplete)
            } else {
                Err(ConnectionFailure::Violation("hello"))
            };
        };
        let Some(Header::Short(Short { kind: FrameKind::Hello, bytes, value, sequence, .. })) =
            Header::decode(header)
        else {
            return Err(ConnectionFailure::Violation("hello"));
        };
        if bytes > CONTROL_MAX || value != self.challenge {
            return Err(ConnectionFailure::Violation("hello of another connection"));
        }
        let Some((hello, early)) = rest.split_at_checked(bytes as usize) else {
            return Ok(PendingProgress::Incomplete);
        };
        let (name, hello) =
            wire::decode_hello(hello).ok_or(ConnectionFailure::Violation("hello"))?;
        let (name, hello, early) = (name.to_owned(), hello.to_vec(), early.to_vec());
        Ok(PendingProgress::Hello { name, hello, early, lease_ms: sequence })
    }

    /// Rejects the connection; it is dropped when the peer closes or the time is over.
    pub(crate) fn reject(
        &mut self,
        kind: FrameKind,
        reason: &[u8],
    ) -> Result<(), ConnectionFailure> {
        self.send_control(kind, 0, reason)?;
        self.stage = PendingStage::Rejected;
        self.received = Vec::new();
        self.connection.end();
        Ok(())
    }

    /// Sends a frame, for which a new socket has room.
    fn send_control(
        &mut self,
        kind: FrameKind,
        value: u64,
        bytes: &[u8],
    ) -> Result<(), ConnectionFailure> {
        let code = if kind == FrameKind::Greeting { wire::VERSION } else { 0 };
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let sequence = if kind == FrameKind::Greeting { self.lease_ms } else { 0 };
        let short = Short { kind, code, bytes: length, sequence, acknowledged: 0, value };
        let out = [&short.encode()[..], bytes].concat();
        let (sent, _) = self.connection.send(&out, PayloadSegments::none(), false, &mut [])?;
        if sent < out.len() {
            return Err(ConnectionFailure::Violation("room for an answer"));
        }
        Ok(())
    }
}
