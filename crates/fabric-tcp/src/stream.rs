//! The byte stream of a link: a socket in plain text, or under TLS.

use crate::failure::ConnectionFailure;
use crate::payload::PayloadSegments;
use crate::raw::{self, PIECES_MAX, SendPiece};
use crate::socket;
use farside_bootstrap::{Stream, Transfer};
use farside_fabric::Arena;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::io;
use std::net::{SocketAddr, TcpStream};

/// The byte stream of a link.
pub(crate) enum LinkStream {
    /// Bytes as they are.
    Plain {
        socket: TcpStream,
        /// Bytes received before the socket became plain, and the next one to take.
        early: (Vec<u8>, usize),
    },
    /// The handshake, or TLS to the end.
    Stream(Box<Stream<TcpStream>>),
}

/// How a receive ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Got {
    Bytes(usize),
    Nothing,
}

impl LinkStream {
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain { socket, .. } => socket.as_fd(),
            Self::Stream(stream) => stream.transport().as_fd(),
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain { .. })
    }

    /// Returns whether bytes wait for room in the socket.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Self::Plain { .. } => false,
            Self::Stream(stream) => stream.wants_write(),
        }
    }

    /// Returns whether received bytes are buffered, so that the socket does not become readable for
    /// them.
    pub(crate) fn holds_bytes(&self) -> bool {
        match self {
            Self::Plain { early: (bytes, at), .. } => *at < bytes.len(),
            Self::Stream(stream) => stream.is_ready() && stream.holds_bytes(),
        }
    }

    /// Receives what is available.
    pub(crate) fn receive(&mut self, out: &mut [u8]) -> Result<Got, ConnectionFailure> {
        match self {
            Self::Plain { early: (bytes, at), .. } if *at < bytes.len() => {
                let count = out.len().min(bytes.len() - *at);
                out[..count].copy_from_slice(&bytes[*at..*at + count]);
                *at += count;
                if *at == bytes.len() {
                    (*bytes, *at) = (Vec::new(), 0);
                }
                Ok(Got::Bytes(count))
            }
            Self::Plain { socket, .. } => {
                match rustix::net::recv(&*socket, out, RecvFlags::DONTWAIT) {
                    Ok((0, _)) => Err(ConnectionFailure::Ended),
                    Ok((count, _)) => Ok(Got::Bytes(count)),
                    Err(Errno::AGAIN | Errno::INTR) => Ok(Got::Nothing),
                    Err(reason) => Err(ConnectionFailure::Io(reason.into())),
                }
            }
            Self::Stream(stream) => match stream.read(out)? {
                Transfer::Moved(count) => Ok(Got::Bytes(count)),
                Transfer::Blocked => Ok(Got::Nothing),
                Transfer::Ended => Err(ConnectionFailure::Ended),
            },
        }
    }

    /// Returns whether bytes can be received directly into an arena.
    pub(crate) fn receives_direct(&self) -> bool {
        self.is_plain() && !self.holds_bytes()
    }

    /// Receives directly into an arena, and what follows into `rest`.
    pub(crate) fn receive_direct(
        &mut self,
        place: (&Arena, u64, usize),
        rest: &mut [u8],
    ) -> Result<Got, ConnectionFailure> {
        judge(raw::receive(self.socket(), place, rest))
    }

    /// Sends staged bytes, then bytes of arenas, as far as the socket has room. Returns how many, and
    /// whether there may be room for more: a call takes at most `PIECES_MAX` pieces, so it may have
    /// sent all that it was given. With `more`, another call follows at once.
    pub(crate) fn send(
        &mut self,
        staged: &[u8],
        body: PayloadSegments<'_>,
        more: bool,
        scratch: &mut [u8],
    ) -> Result<(usize, bool), ConnectionFailure> {
        match self {
            Self::Plain { socket, .. } if body.left == 0 => {
                // Most often: all of it is staged.
                let mut flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                flags.set(SendFlags::MORE, more);
                match rustix::net::send(&*socket, staged, flags) {
                    Ok(sent) => Ok((sent, sent == staged.len())),
                    Err(Errno::AGAIN | Errno::INTR) => Ok((0, false)),
                    Err(reason) => Err(ConnectionFailure::Io(reason.into())),
                }
            }
            Self::Plain { socket, .. } => {
                let mut pieces = [SendPiece::EMPTY; PIECES_MAX];
                pieces[0] = SendPiece::bytes(staged);
                let mut count = 1;
                for (segment, from, bytes) in body {
                    if count == PIECES_MAX {
                        break;
                    }
                    let piece = SendPiece::arena(&segment.arena, segment.offset + from, bytes);
                    pieces[count] =
                        piece.map_err(|_| ConnectionFailure::Violation("local bounds"))?;
                    count += 1;
                }
                let offered: usize = pieces[..count].iter().map(SendPiece::len).sum();
                debug_assert!(offered > 0);
                match raw::send(socket.as_fd(), &pieces[..count], more) {
                    Ok(sent) => Ok((sent, sent == offered)),
                    Err(reason) if is_no_room(&reason) => Ok((0, false)),
                    Err(reason) => Err(reason.into()),
                }
            }
            Self::Stream(stream) => {
                let offered = staged.len() as u64 + body.left;
                let sent = send_protected(stream, staged, body, scratch)?;
                Ok((sent, sent as u64 == offered))
            }
        }
    }

    /// Sends what TLS has buffered.
    pub(crate) fn flush(&mut self) -> Result<(), ConnectionFailure> {
        if let Self::Stream(stream) = self {
            stream.flush()?;
        }
        Ok(())
    }

    /// Switches to plain text; false while the stream still has protected bytes to send.
    pub(crate) fn make_plain(&mut self) -> bool {
        let Self::Stream(stream) = self else {
            return true;
        };
        if stream.wants_write() {
            return false;
        }
        // A temporary value, so that the stream can be taken apart.
        let Ok(stand_in) = stream.transport().try_clone() else {
            return false;
        };
        let plain = Self::Plain { socket: stand_in, early: (Vec::new(), 0) };
        let Self::Stream(stream) = std::mem::replace(self, plain) else {
            return true;
        };
        match stream.into_plain() {
            Ok((socket, rest)) => {
                *self = Self::Plain { socket, early: (rest, 0) };
                true
            }
            Err(stream) => {
                *self = Self::Stream(stream);
                false
            }
        }
    }

    /// Returns the congestion control, for display.
    pub(crate) fn congestion(&self) -> Option<String> {
        socket::congestion(self.socket())
    }

    /// Returns both addresses, for display.
    pub(crate) fn ends(&self) -> (Option<SocketAddr>, Option<SocketAddr>) {
        let socket = match self {
            Self::Plain { socket, .. } => socket,
            Self::Stream(stream) => stream.transport(),
        };
        (socket.local_addr().ok(), socket.peer_addr().ok())
    }

    /// Sends the TLS close alert, if there is TLS, and shuts down the sending direction.
    pub(crate) fn end(&mut self) {
        if let Self::Stream(stream) = self {
            let _ = stream.close();
        }
        let _ = rustix::net::shutdown(self.socket(), rustix::net::Shutdown::Write);
    }
}

fn send_protected(
    stream: &mut Stream<TcpStream>,
    staged: &[u8],
    body: PayloadSegments<'_>,
    scratch: &mut [u8],
) -> Result<usize, ConnectionFailure> {
    let mut sent = 0;
    let write =
        |stream: &mut Stream<TcpStream>, bytes: &[u8]| -> Result<usize, ConnectionFailure> {
            Ok(match stream.write(bytes)? {
                Transfer::Moved(count) => count,
                Transfer::Blocked | Transfer::Ended => 0,
            })
        };
    if !staged.is_empty() {
        sent = write(stream, staged)?;
        if sent < staged.len() {
            return Ok(sent);
        }
    }
    for (segment, from, bytes) in body {
        let mut done = 0;
        while done < bytes {
            let count = scratch.len().min(bytes - done);
            let chunk = &mut scratch[..count];
            let read = segment.arena.read(segment.offset + from + done as u64, chunk);
            read.map_err(|_| ConnectionFailure::Violation("local bounds"))?;
            let taken = write(stream, chunk)?;
            sent += taken;
            done += taken;
            if taken < count {
                return Ok(sent);
            }
        }
    }
    Ok(sent)
}

fn is_no_room(reason: &io::Error) -> bool {
    matches!(reason.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn judge(got: io::Result<usize>) -> Result<Got, ConnectionFailure> {
    match got {
        Ok(0) => Err(ConnectionFailure::Ended),
        Ok(count) => Ok(Got::Bytes(count)),
        Err(reason) if is_no_room(&reason) => Ok(Got::Nothing),
        Err(reason) => Err(reason.into()),
    }
}
