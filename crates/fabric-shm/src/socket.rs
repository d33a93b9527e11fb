//! Unix seqpacket sockets at names in the user's folder ([`crate::names`]): the kernel reports the
//! process and user of the other end.
//!
//! | who | touches | when |
//! | --- | --- | --- |
//! | the kernel | the local variable that a system call fills | for the length of that call |

use crate::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};
use crate::names::{Listener, NAME_BYTES_MAX, NamesFolder};
use farside_fabric::{FabricError, user};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// Most connections that wait to be accepted; the kernel may lower it.
const BACKLOG: i32 = 1024;

/// How long `connect` waits while that queue is full. The kernel admits waiting peers one after the
/// other.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(200);

fn check(name: &str) -> Result<(), FabricError> {
    let fits = name.len() <= NAME_BYTES_MAX;
    fits.then_some(()).ok_or(FabricError::Limit("listen name bytes"))
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, FabricError> {
    let flags = SocketFlags::CLOEXEC | flags;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|reason| FabricError::System("socket", reason.into()))
}

/// Listens at `name` in the user's folder, or in the `given` one.
pub(crate) fn listen(given: Option<&Path>, name: &str) -> Result<Listener, FabricError> {
    check(name)?;
    let listener = NamesFolder::open(given)?.bind(socket(SocketFlags::NONBLOCK)?, name)?;
    rustix::net::listen(&listener, BACKLOG)
        .map_err(|reason| FabricError::System("listen", reason.into()))?;
    Ok(listener)
}

/// Connects to the listener at `name`, if that is of the same user.
pub(crate) fn connect(given: Option<&Path>, name: &str) -> Result<OwnedFd, FabricError> {
    check(name)?;
    let absent = || FabricError::NoListener(name.to_owned());
    let folder = NamesFolder::find(given)?.ok_or_else(absent)?;
    // It blocks in `connect` alone: all other calls are non-blocking.
    let socket = socket(SocketFlags::empty())?;
    let connected = connect_within(&socket, &folder.address_of(name)?, CONNECT_TIMEOUT);
    connected.map_err(|reason| match reason {
        Errno::CONNREFUSED | Errno::NOENT => absent(),
        Errno::AGAIN => FabricError::System("the peer accepts no connections", reason.into()),
        reason => FabricError::System("connect", reason.into()),
    })?;
    if !is_same_user(socket.as_fd()) {
        return Err(FabricError::NotPermitted(format!("{name} is of another user")));
    }
    Ok(socket)
}

/// Connects within a time, despite signals: each of them interrupts a wait with a timeout, even if the
/// handler requests restarts.
///
/// # Errors
/// `AGAIN` if the time is up while the listener's queue is full.
fn connect_within(socket: &OwnedFd, to: &SocketAddrUnix, time: Duration) -> rustix::io::Result<()> {
    let until = Instant::now() + time;
    loop {
        // Zero would mean without end.
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(left))?;
        match rustix::net::connect(socket, to) {
            Err(Errno::INTR) if Instant::now() >= until => return Err(Errno::AGAIN),
            // Interrupted while the listener's queue was full: the socket is unchanged.
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}

/// The result of accepting.
pub(crate) enum Accepted {
    /// A connection of a process of this user; 0 for one in another process namespace.
    Connection(OwnedFd, u32),
    /// A connection of another user, which is closed already.
    Stranger,
    Nothing,
}

/// Takes one waiting connection. Never blocks.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> rustix::io::Result<Accepted> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) if is_same_user(socket.as_fd()) => {
                let process = peer_process(socket.as_fd()).unwrap_or(0);
                return Ok(Accepted::Connection(socket, process));
            }
            Ok(_) | Err(Errno::CONNABORTED) => return Ok(Accepted::Stranger),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(Accepted::Nothing),
            Err(reason) => return Err(reason),
        }
    }
}

/// Returns whether the process at the other end runs for the user of this one.
fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    credentials(socket).is_some_and(|peer| user::is_own(peer.uid))
}

/// Returns the process at the other end; `None` when it is in another process namespace.
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> Option<u32> {
    let process = credentials(socket)?.pid;
    u32::try_from(process).ok().filter(|process| *process != 0)
}

/// Returns what the kernel recorded when the other end connected or listened. Not queried through
/// rustix, whose process number cannot be zero, as it is for a peer in another process namespace.
fn credentials(socket: BorrowedFd<'_>) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let into = std::ptr::from_mut(&mut peer).cast();
    let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `bytes` bytes, the size of `peer`, which is plain numbers.
    let done = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut bytes) };
    (done == 0 && bytes as usize == size_of::<libc::ucred>()).then_some(peer)
}

/// Sends one datagram with its descriptors. Never blocks; a full socket is an error, since a peer
/// that leaves so much unread does not keep to the protocol.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        let bytes = [IoSlice::new(bytes)];
        match rustix::net::sendmsg(socket, &bytes, &mut ancillary, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(reason) => return Err(reason),
        }
    }
}

/// The result of receiving.
pub(crate) enum Received {
    /// A datagram; its bytes are at the front of the buffer.
    Datagram(usize, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other end is gone, or violated the protocol of the socket itself.
    Ended,
}

/// Receives one datagram. Never blocks.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8; MESSAGE_BYTES_MAX]) -> Received {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let received = loop {
        let mut into = [IoSliceMut::new(buffer)];
        match rustix::net::recvmsg(socket, &mut into, &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Ended,
            Ok(received) => break received,
        }
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let cut =
        received.flags.contains(ReturnFlags::TRUNC) || received.flags.contains(ReturnFlags::CTRUNC);
    if received.bytes == 0 || cut {
        return Received::Ended;
    }
    Received::Datagram(received.bytes, descriptors)
}

/// Ends the conversation in both directions; the other end sees it at once.
pub(crate) fn end(socket: BorrowedFd<'_>) {
    // Fails only when it has ended already.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}
