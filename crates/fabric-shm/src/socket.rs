//! Unix seqpacket sockets at abstract names: they vanish with their process, and the kernel says
//! who is at the other end.
//!
//! | who | touches | when |
//! | --- | --- | --- |
//! | the kernel | the local variable that a system call fills | for the length of that call |

use crate::message::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};
use farside_fabric::FabricError;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
    SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::time::Duration;

/// Connections that wait to be accepted; the kernel may cut it.
const BACKLOG: i32 = 1024;

/// How often, a millisecond apart, a name that nobody uses any more is asked for.
const BIND_TRIES: u32 = 500;

/// Most bytes of a listen name; the rest of an abstract address is the prefix.
const NAME_BYTES_MAX: usize = 80;

/// The address of a listen name: unique for machine, network namespace and user.
fn address(name: &str) -> Result<SocketAddrUnix, FabricError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(FabricError::Limit("listen name bytes"));
    }
    let user = rustix::process::getuid().as_raw();
    let full = format!("farside-shm/{user}/{name}");
    SocketAddrUnix::new_abstract_name(full.as_bytes())
        .map_err(|reason| FabricError::System("abstract socket address", reason.into()))
}

fn socket() -> Result<OwnedFd, FabricError> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .map_err(|reason| FabricError::System("socket", reason.into()))
}

/// Listens at `name`. A socket that has ended may hold the name for a moment, when a thread of its
/// process forks just then and the child has not yet closed its copy; it is waited for.
pub(crate) fn listen(name: &str) -> Result<OwnedFd, FabricError> {
    let address = address(name)?;
    let socket = socket()?;
    let mut tries = 0;
    loop {
        match rustix::net::bind(&socket, &address) {
            Ok(()) => break,
            Err(Errno::ADDRINUSE) if tries < BIND_TRIES && has_ended(&address) => {
                tries += 1;
                crate::control::pause(Duration::from_millis(1));
            }
            Err(Errno::ADDRINUSE) => return Err(FabricError::AddressInUse(name.to_owned())),
            Err(reason) => return Err(FabricError::System("bind", reason.into())),
        }
    }
    rustix::net::listen(&socket, BACKLOG)
        .map_err(|reason| FabricError::System("listen", reason.into()))?;
    Ok(socket)
}

/// Whether nobody listens at an address that is in use.
fn has_ended(address: &SocketAddrUnix) -> bool {
    let tried = socket().map(|socket| rustix::net::connect(&socket, address));
    matches!(tried, Ok(Err(Errno::CONNREFUSED)))
}

/// Connects to who listens at `name`, if that is the same user.
pub(crate) fn connect(name: &str) -> Result<OwnedFd, FabricError> {
    let address = address(name)?;
    let socket = socket()?;
    rustix::net::connect(&socket, &address).map_err(|reason| match reason {
        Errno::CONNREFUSED => FabricError::NobodyThere(name.to_owned()),
        reason => FabricError::System("connect", reason.into()),
    })?;
    if !is_same_user(socket.as_fd()) {
        return Err(FabricError::NotPermitted(format!("{name} is of another user")));
    }
    Ok(socket)
}

/// Takes a waiting connection, if it is of the same user; others are dropped. `None` when none
/// waits.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> rustix::io::Result<Option<OwnedFd>> {
    loop {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match rustix::net::accept_with(listener, flags) {
            Ok(socket) if is_same_user(socket.as_fd()) => return Ok(Some(socket)),
            Ok(_) | Err(Errno::INTR | Errno::CONNABORTED) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(reason) => return Err(reason),
        }
    }
}

/// Whether the process at the other end runs for the user of this one.
fn is_same_user(socket: BorrowedFd<'_>) -> bool {
    credentials(socket).is_some_and(|peer| peer.uid == rustix::process::getuid().as_raw())
}

/// The process at the other end; `None` when it is in another process namespace.
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> Option<u32> {
    let process = credentials(socket)?.pid;
    u32::try_from(process).ok().filter(|process| *process != 0)
}

/// What the kernel noted when the other end connected or listened. Not asked through rustix, whose
/// process number cannot be zero, as it is for a peer in another process namespace.
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

/// What was received.
pub(crate) enum Received {
    /// A datagram; its bytes are at the front of the buffer.
    Datagram(usize, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// The other end is gone, or broke the protocol of the socket itself.
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
