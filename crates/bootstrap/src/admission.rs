//! Admission of connections by a listener. With an identity the handshake decides. Without one every peer
//! that reaches the listener is admitted; on the loopback that would be every user of the machine, so the
//! kernel is asked for the owner of a connection, and those of other users are refused.
//!
//! TCP sockets have no credentials of their peer (`SO_PEERCRED` is for Unix sockets). The kernel's
//! `sock_diag` names the owner of any socket of this network namespace by its two addresses, here that of
//! the peer's end, at a cost of three system calls.

use crate::{BootstrapError, Security};
use farside_fabric::user;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};

/// Which peers a listener admits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Admission {
    /// Peers that prove an identity in the handshake.
    Identity,
    /// Processes of this user: there is no identity, and the listener is reachable only over the loopback.
    ThisUser,
    /// All users of this machine, since the kernel does not report owners of connections; with the reason.
    AnyUser(String),
    /// Every peer that reaches the address.
    Anybody,
}

impl Admission {
    /// The admission of a listener at `local`. Asks the kernel for the owner of the listener, to see
    /// whether it reports owners: `AnyUser` only if this kernel never does.
    ///
    /// # Errors
    /// `OwnerUnknown` if the query fails otherwise, for example for lack of descriptors or memory: raise
    /// the limit that the error names, or try again. `UnmappedUser` if the kernel cannot distinguish this
    /// user from others.
    pub fn of(security: &Security, local: SocketAddr) -> Result<Self, BootstrapError> {
        if !security.is_open() {
            return Ok(Self::Identity);
        }
        if !local.ip().to_canonical().is_loopback() {
            return Ok(Self::Anybody);
        }
        if user::is_unmapped().map_err(BootstrapError::OwnerUnknown)? {
            return Err(BootstrapError::UnmappedUser);
        }
        let no_peer = SocketAddr::new(local.ip(), 0);
        match owner(local, no_peer) {
            Ok(found) if found.user == user::own() => Ok(Self::ThisUser),
            Ok(Owner { user, .. }) => {
                let text = format!("it names user {user} as the owner of this listener");
                Err(BootstrapError::OwnerUnknown(std::io::Error::other(text)))
            }
            // An open listener is found on any kernel that reports TCP sockets.
            Err(reason) if never_tells(reason) || reason == Errno::NOENT => {
                Ok(Self::AnyUser(format!("sock_diag: {reason}")))
            }
            Err(reason) => Err(BootstrapError::OwnerUnknown(reason.into())),
        }
    }

    /// Admits or refuses an accepted connection. One of another user is sent a refusal if that does not
    /// block. Never blocks on the peer.
    ///
    /// # Errors
    /// `OtherUser` if it is of another user, or closed already so that its user is unknown. `OwnerUnknown`
    /// if the owner is unknown for lack of descriptors or memory: close it without an answer, after which
    /// its peer tries again.
    pub fn judge(&self, mut socket: &TcpStream) -> Result<(), BootstrapError> {
        if *self != Self::ThisUser {
            return Ok(());
        }
        let judged = peer_is_own(socket);
        if judged.as_ref().is_err_and(BootstrapError::is_refusal)
            && socket.set_nonblocking(true).is_ok()
        {
            // Best effort: without it the peer only sees the connection end.
            let _ = socket.write(&crate::opening::refusal());
            let _ = socket.shutdown(std::net::Shutdown::Write);
        }
        judged
    }

    /// A short description for people, if the identity does not decide.
    pub fn describe(&self) -> Option<&'static str> {
        match self {
            Self::Identity => None,
            Self::ThisUser => Some("for processes of this user alone"),
            Self::AnyUser(_) => Some("FOR EVERY USER OF THIS MACHINE"),
            Self::Anybody => Some("for every peer that reaches it"),
        }
    }

    /// The warning for the operator at the start, with what to do.
    pub fn warning(&self) -> Option<String> {
        match self {
            Self::AnyUser(reason) => Some(format!(
                "without a key every user of this machine can connect, since the kernel does not report \
                 the owner of a connection over the loopback ({reason}); use a key (farside key new), or \
                 shared memory"
            )),
            Self::Identity | Self::ThisUser | Self::Anybody => None,
        }
    }
}

/// Checks the owner of the peer that has accepted a connection of this side over the loopback. Passes if
/// the peer is elsewhere, and if the kernel never reports owners, of which the accepting side has warned.
///
/// # Errors
/// `OtherUser`; `Ended` if the peer has closed its end, and `OwnerUnknown`: both may be retried.
pub(crate) fn judge_server(local: SocketAddr, peer: SocketAddr) -> Result<(), BootstrapError> {
    if !peer.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    match owner(peer, local) {
        Ok(found) if found.state != ESTABLISHED => Err(BootstrapError::Ended),
        Ok(found) => found.judge(),
        Err(reason) if never_tells(reason) => Ok(()),
        Err(Errno::NOENT) => judge_hidden_server(local, peer),
        Err(reason) => Err(BootstrapError::OwnerUnknown(reason.into())),
    }
}

/// The kernel finds no other end of a connection. A listener created for the purpose shows whether it ever
/// finds one.
fn judge_hidden_server(local: SocketAddr, peer: SocketAddr) -> Result<(), BootstrapError> {
    let unknown = |reason: std::io::Error| BootstrapError::OwnerUnknown(reason);
    let listener = TcpListener::bind(SocketAddr::new(local.ip(), 0)).map_err(unknown)?;
    let known = listener.local_addr().map_err(unknown)?;
    match owner(known, SocketAddr::new(known.ip(), 0)) {
        Ok(_) => {}
        Err(Errno::NOENT) => return Ok(()),
        Err(reason) => return Err(unknown(reason.into())),
    }
    match owner(local, peer) {
        // Open at this end only: its addresses are translated in between, so its owner cannot be
        // determined.
        Ok(own) if own.state == ESTABLISHED => Err(BootstrapError::OtherUser(None)),
        Ok(_) | Err(Errno::NOENT) => Err(BootstrapError::Ended),
        Err(reason) => Err(unknown(reason.into())),
    }
}

fn peer_is_own(socket: &TcpStream) -> Result<(), BootstrapError> {
    let peer = socket.peer_addr().map_err(BootstrapError::Io)?;
    let local = socket.local_addr().map_err(BootstrapError::Io)?;
    match owner(peer, local) {
        Ok(found) => found.judge(),
        // It is closed already, or has no user that could be named.
        Err(Errno::NOENT) => Err(BootstrapError::OtherUser(None)),
        Err(reason) => Err(BootstrapError::OwnerUnknown(reason.into())),
    }
}

/// Whether an error means that this kernel reports no owners of sockets, or not to this process, rather
/// than that one query failed.
fn never_tells(reason: Errno) -> bool {
    matches!(
        reason,
        Errno::AFNOSUPPORT
            | Errno::PFNOSUPPORT
            | Errno::PROTONOSUPPORT
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::INVAL
            | Errno::CONNREFUSED
            | Errno::ACCESS
            | Errno::PERM
    )
}

/// The state of a socket with an open connection.
const ESTABLISHED: u8 = 1;

/// The owner and state of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owner {
    user: u32,
    state: u8,
}

impl Owner {
    /// Checks that it is of this user. A socket that its process has closed has no owner, and the kernel
    /// then names user 0.
    fn judge(self) -> Result<(), BootstrapError> {
        if self.state != ESTABLISHED {
            return Err(BootstrapError::OtherUser(None));
        }
        if self.user != user::own() {
            return Err(BootstrapError::OtherUser(Some(self.user)));
        }
        match user::is_unmapped().map_err(BootstrapError::OwnerUnknown)? {
            true => Err(BootstrapError::UnmappedUser),
            false => Ok(()),
        }
    }
}

/// `SOCK_DIAG_BY_FAMILY`, as the type of request and answer.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
/// Bytes of `nlmsghdr`, and of it followed by `inet_diag_req_v2` and by `inet_diag_msg`.
const HEADER: usize = 16;
const QUESTION: usize = HEADER + 56;
const ANSWER: usize = HEADER + 72;
/// Offset of the user in an answer.
const USER: usize = HEADER + 64;
const STATE: usize = HEADER + 1;

/// The owner of the socket in this network namespace that is bound to `local` and connected to `remote`.
fn owner(local: SocketAddr, remote: SocketAddr) -> rustix::io::Result<Owner> {
    let kind = (AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC);
    let diag = rustix::net::socket_with(kind.0, kind.1, kind.2, Some(netlink::SOCK_DIAG))?;
    let question = question(local, remote);
    rustix::io::retry_on_intr(|| rustix::net::send(&diag, &question, SendFlags::empty()))?;
    read_answer(&diag)
}

fn question(local: SocketAddr, remote: SocketAddr) -> [u8; QUESTION] {
    let (local_ip, remote_ip) = (local.ip().to_canonical(), remote.ip().to_canonical());
    let family = match local_ip {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let mut out = [0; QUESTION];
    let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(QUESTION as u32).to_ne_bytes());
    put(4, &BY_FAMILY.to_ne_bytes());
    put(6, &REQUEST.to_ne_bytes());
    put(HEADER, &[family.as_raw() as u8, TCP]);
    put(HEADER + 4, &u32::MAX.to_ne_bytes()); // every state
    put(HEADER + 8, &local.port().to_be_bytes());
    put(HEADER + 10, &remote.port().to_be_bytes());
    for (at, ip) in [(HEADER + 12, local_ip), (HEADER + 28, remote_ip)] {
        match ip {
            IpAddr::V4(ip) => put(at, &ip.octets()),
            IpAddr::V6(ip) => put(at, &ip.octets()),
        }
    }
    put(HEADER + 48, &[0xff; 8]); // no cookie
    out
}

/// The kernel answers before the question's system call returns.
fn read_answer(diag: &OwnedFd) -> rustix::io::Result<Owner> {
    let mut answer = [0; 512];
    let (bytes, _) = rustix::net::recv(diag, &mut answer[..], RecvFlags::DONTWAIT)?;
    let kind = u16::from_ne_bytes([answer[4], answer[5]]);
    if bytes >= ANSWER && kind == BY_FAMILY {
        let user = [answer[USER], answer[USER + 1], answer[USER + 2], answer[USER + 3]];
        return Ok(Owner { user: u32::from_ne_bytes(user), state: answer[STATE] });
    }
    let code = [answer[16], answer[17], answer[18], answer[19]];
    match i32::from_ne_bytes(code).checked_neg() {
        Some(code) if bytes >= HEADER + 4 && code > 0 => Err(Errno::from_raw_os_error(code)),
        _ => Err(Errno::PROTO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClusterKey, Identity, Protect};
    use std::io::Read;

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn owners_of_connections_are_found_by_their_addresses() {
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let mut to = listener.local_addr().unwrap();
            if to.ip().is_unspecified() {
                to.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
            }
            let client = TcpStream::connect(to).unwrap();
            let (server, _) = listener.accept().unwrap();
            let (peer, local) = (server.peer_addr().unwrap(), server.local_addr().unwrap());
            let own = Owner { user: user::own(), state: ESTABLISHED };
            assert_eq!((owner(peer, local), owner(local, peer)), (Ok(own), Ok(own)), "{at}");
            let wrong = SocketAddr::new(peer.ip(), 1);
            assert_eq!(owner(wrong, local), Err(Errno::NOENT), "{at}");
            drop(client);
        }
    }

    #[test]
    fn admission_depends_on_identity_and_address() {
        let open = Security::open();
        let of = |at: &str| {
            let listener = TcpListener::bind(at).unwrap();
            Admission::of(&open, listener.local_addr().unwrap()).unwrap()
        };
        assert_eq!((of("127.0.0.1:0"), of("0.0.0.0:0")), (Admission::ThisUser, Admission::Anybody));
        // For a port without a listener of this user nothing is known.
        let unknown = Admission::of(&open, "127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(matches!(unknown, Admission::AnyUser(_)), "{unknown:?}");
        assert!(unknown.warning().is_some_and(|text| text.contains("farside key new")));
        let identity = Identity::cluster_key(&ClusterKey::generate().unwrap()).unwrap();
        let keyed = Security::new(identity, Protect::Handshake).unwrap();
        let keyed = Admission::of(&keyed, "127.0.0.1:0".parse().unwrap()).unwrap();
        assert_eq!((keyed.warning(), keyed.describe()), (None, None));
    }

    #[test]
    fn own_connections_pass_and_closed_ones_do_not() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (client, server) = pair(&listener);
        Admission::ThisUser.judge(&server).unwrap();
        let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        judge_server(local, peer).unwrap();
        drop(client);
        // The kernel would name user 0 for a socket that no process has open any more.
        let refused = Admission::ThisUser.judge(&server).unwrap_err();
        assert!(matches!(refused, BootstrapError::OtherUser(None)), "{refused}");
        Admission::Anybody.judge(&server).unwrap();
    }

    #[test]
    fn another_user_is_refused_with_the_reason() {
        let stranger = Owner { user: user::own() ^ 1, state: ESTABLISHED };
        let refused = stranger.judge().unwrap_err();
        assert!(matches!(refused, BootstrapError::OtherUser(Some(_))), "{refused}");
        assert!(refused.is_refusal() && refused.to_string().contains("farside key new"));
        let closed = Owner { user: user::own(), state: 6 };
        assert!(closed.judge().is_err(), "a closed socket has no owner");
        let told = crate::opening::check(&crate::opening::refusal(), &Security::open());
        assert!(matches!(told, Err(BootstrapError::OtherUserThere)), "{told:?}");
    }

    #[test]
    fn a_refused_connection_reads_why() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mut client, server) = pair(&listener);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        // Its own end is shut down for writing, so it is no open connection any more.
        while owner(client.local_addr().unwrap(), client.peer_addr().unwrap())
            .is_ok_and(|found| found.state == ESTABLISHED)
        {
            std::thread::yield_now();
        }
        Admission::ThisUser.judge(&server).unwrap_err();
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        assert_eq!(said, crate::opening::refusal());
    }

    /// Marks this process as a child with a role.
    const ROLE: &str = "FARSIDE_BOOTSTRAP_TEST_ROLE";

    /// The child's role; does nothing in an ordinary run.
    #[test]
    fn child() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let (mut client, server) = pair(&listener);
        let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        // No descriptor is left: the lowest free number is the limit.
        let free = server.try_clone().unwrap();
        let most = u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&free)).unwrap();
        drop(free);
        let limit = rustix::process::Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
        assert_eq!(TcpStream::connect(at).unwrap_err().raw_os_error(), Some(24), "no descriptor");
        let judged = [
            Admission::of(&Security::open(), at).map(drop),
            Admission::ThisUser.judge(&server),
            judge_server(local, peer),
        ];
        for judged in judged {
            let Err(error @ BootstrapError::OwnerUnknown(_)) = judged else {
                panic!("{judged:?}");
            };
            assert!(!error.is_refusal());
            let text = error.to_string();
            assert!(text.contains(&format!("RLIMIT_NOFILE is {most}: raise")), "{text}");
        }
        drop(server);
        let mut said = Vec::new();
        client.read_to_end(&mut said).unwrap();
        assert_eq!(said, [], "nothing is refused");
    }

    #[test]
    fn lack_of_descriptors_neither_admits_nor_refuses() {
        let this = std::env::current_exe().unwrap();
        let mut child = std::process::Command::new(this);
        child.args(["admission::tests::child", "--exact", "--nocapture", "--test-threads=1"]);
        let ended = child.env(ROLE, "starved").output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{text}");
    }

    #[test]
    fn only_kernels_without_owners_count_as_silent() {
        for reason in [Errno::PROTONOSUPPORT, Errno::AFNOSUPPORT, Errno::PERM, Errno::ACCESS] {
            assert!(never_tells(reason), "{reason}");
        }
        let passing = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN];
        for reason in passing.into_iter().chain([Errno::NOENT, Errno::INTR, Errno::PROTO]) {
            assert!(!never_tells(reason), "{reason}");
        }
    }

    /// A listener that has closed its end is not trusted by what it sent.
    #[test]
    fn server_that_has_closed_its_end_is_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (client, mut server) = pair(&listener);
        let (local, peer) = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        // Unread bytes make its close a reset, after which the kernel does not know it any more.
        (&client).write_all(&[0]).unwrap();
        server.peek(&mut [0]).unwrap();
        server.write_all(&crate::opening::of(&Security::open())).unwrap();
        // The kernel finds no listener at its address either.
        drop((server, listener));
        while owner(peer, local).is_ok_and(|found| found.state == ESTABLISHED) {
            std::thread::yield_now();
        }
        let judged = judge_server(local, peer);
        assert!(matches!(judged, Err(BootstrapError::Ended)), "{judged:?}");
    }
}
