//! Sends from and receives into memory that peers may change, without a copy in between.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the kernel, for [`send`] | read the bytes of the pieces | during the call |
//! | the kernel, for [`receive`] | write the bytes of the pieces | during the call |
//! | every other holder of the arena | read and write the same bytes | always |
//!
//! No slice is made of arena memory: its address is passed from the arena to the kernel, whose copy is
//! no access of this program. Bytes may be torn as by any race. Only bytes that may be torn are passed:
//! those that their owner keeps unchanged, and those whose order is not promised, such as those of
//! regions with `Access::RELAXED_ORDERING`.

use farside_fabric::{Arena, OutOfBounds};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::marker::PhantomData;

/// Most pieces of one call.
pub(crate) const PIECES_MAX: usize = 64;

/// Memory that bytes are sent from.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct SendPiece<'a>(libc::iovec, PhantomData<&'a [u8]>);

impl<'a> SendPiece<'a> {
    /// None.
    pub(crate) const EMPTY: Self =
        Self(libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, PhantomData);

    /// Private bytes.
    pub(crate) fn bytes(bytes: &'a [u8]) -> Self {
        let iov_base = bytes.as_ptr().cast_mut().cast();
        Self(libc::iovec { iov_base, iov_len: bytes.len() }, PhantomData)
    }

    /// Returns the bytes of an arena.
    pub(crate) fn arena(arena: &'a Arena, offset: u64, bytes: usize) -> Result<Self, OutOfBounds> {
        let iov_base = arena.at(offset, bytes)?.cast();
        Ok(Self(libc::iovec { iov_base, iov_len: bytes }, PhantomData))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iov_len
    }
}

/// Sends as much of the pieces, in order, as the socket takes. With `more`, which follows at once,
/// their end may wait for it, so that no segment is sent half empty.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    pieces: &[SendPiece<'_>],
    more: bool,
) -> io::Result<usize> {
    // SAFETY: a message header of zeros is valid: no name, no pieces, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    // A piece is an `iovec` and nothing else; the kernel does not change them.
    message.msg_iov = pieces.as_ptr().cast_mut().cast();
    message.msg_iovlen = pieces.len().min(PIECES_MAX) as _;
    let more = if more { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
    // SAFETY: the header points at `msg_iovlen` pieces, each of which names memory that the lifetime
    // in it keeps mapped and readable; the kernel writes nothing.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives into `bytes` at `offset` of an arena, and what follows into `rest`. Returns how many in
/// all; zero at the end of the stream.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    (arena, offset, bytes): (&Arena, u64, usize),
    rest: &mut [u8],
) -> io::Result<usize> {
    let outside = |OutOfBounds| io::Error::from(io::ErrorKind::InvalidInput);
    let mut places = [
        libc::iovec { iov_base: arena.at(offset, bytes).map_err(outside)?.cast(), iov_len: bytes },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    // SAFETY: as in `send`.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = places.as_mut_ptr();
    message.msg_iovlen = places.len() as _;
    // SAFETY: the header points at two buffers: arena memory within its bounds, which the borrow keeps
    // mapped and which is accessed as racy memory everywhere, and an exclusive slice.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
    usize::try_from(got).map_err(|_| io::Error::last_os_error())
}
