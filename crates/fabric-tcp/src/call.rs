//! How a link is called into being: which hosts are tried, one after the other, and how each answers.

use crate::connection::{Connection, Failure};
use crate::options::TcpOptions;
use crate::wire::{self, Short};
use farside_bootstrap::{Address, BootstrapError, Endpoint, HandshakeLimits, Host, Stream};
use farside_fabric::{FabricError, NotReached};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

/// Bytes that a peer may send in a handshake.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// A connection attempt.
pub(crate) struct Call {
    /// What the program called.
    name: String,
    hello: Vec<u8>,
    /// Hosts that were not tried yet.
    endpoints: VecDeque<Endpoint>,
    /// The host that is being tried, and addresses of it that were not.
    host: Host,
    addresses: VecDeque<SocketAddr>,
    /// The worst that was met so far.
    pub(crate) why: NotReached,
    pub(crate) trouble: String,
}

/// What a call does next.
pub(crate) enum Next {
    /// It connects.
    Connect(SocketAddr),
    /// A name is to be looked up.
    Resolve(Endpoint),
    /// Nobody is left.
    Nobody,
}

impl Call {
    /// A call of `to`: a full address, or the name of a port at the fabric itself or at one of its
    /// hosts.
    pub(crate) fn new(
        to: &str,
        hello: &[u8],
        own: Option<SocketAddr>,
        options: &TcpOptions,
    ) -> Result<Self, FabricError> {
        let unknown = |_| FabricError::Unknown("address");
        let (name, endpoints) = if to.contains('/') {
            let address: Address = to.parse().map_err(unknown)?;
            (address.name, VecDeque::from([address.endpoint]))
        } else {
            Address::check_name(to).map_err(unknown)?;
            let own = own.map(|own| Endpoint::from(reachable(own)));
            let others = options.hosts.iter().filter(|host| Some(*host) != own.as_ref());
            (to.to_owned(), own.clone().into_iter().chain(others.cloned()).collect())
        };
        Ok(Self {
            name,
            hello: hello.to_vec(),
            endpoints,
            host: Host::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            addresses: VecDeque::new(),
            why: NotReached::Nobody,
            trouble: String::new(),
        })
    }

    /// Whom to try now.
    pub(crate) fn next(&mut self) -> Next {
        if let Some(address) = self.addresses.pop_front() {
            return Next::Connect(address);
        }
        let Some(endpoint) = self.endpoints.pop_front() else {
            return Next::Nobody;
        };
        self.host = endpoint.host.clone();
        match endpoint.host {
            Host::Ip(number) => Next::Connect(SocketAddr::new(number, endpoint.port)),
            Host::Name(_) => Next::Resolve(endpoint),
        }
    }

    /// A name was looked up.
    pub(crate) fn resolved(&mut self, found: io::Result<Vec<SocketAddr>>) {
        match found {
            Ok(addresses) => self.addresses.extend(addresses),
            Err(reason) => {
                let text = format!("{}: {reason}; see to the name and its server", self.host);
                self.met(NotReached::Unreachable, text);
            }
        }
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        options: &TcpOptions,
    ) -> Result<Connection, Failure> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
        let socket = TcpStream::from(socket.map_err(io::Error::from)?);
        set_options(&socket, options);
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(reason) => return Err(Failure::Io(reason.into())),
        }
        let limits = HandshakeLimits { time: options.connect_timeout, bytes: HANDSHAKE_BYTES };
        // Bound by now; should it not be, connecting has failed, which the socket tells later.
        let local = socket.local_addr().unwrap_or(to);
        let stream = Stream::connect(socket, &options.security, &self.host, limits)?;
        let stream = stream.between(local, to);
        Ok(Connection::Stream(Box::new(stream)))
    }

    /// What to answer to a greeting; `None` when it cannot be answered.
    pub(crate) fn answer(&self, greeting: &Short, bytes: &[u8]) -> Option<Vec<u8>> {
        let fits = greeting.code == wire::VERSION && bytes.len() == 8;
        fits.then(|| wire::encode_hello(&self.name, &self.hello))
    }

    /// An attempt has failed.
    pub(crate) fn failed(&mut self, failure: &Failure) {
        let text = |reason: &dyn std::fmt::Display| format!("{}: {reason}", self.host);
        let (why, text) = match failure {
            Failure::Io(reason) if reason.kind() == io::ErrorKind::ConnectionRefused => {
                (NotReached::Nobody, text(&"nobody listens there; see to host and port"))
            }
            Failure::Bootstrap(reason) if reason.is_refusal() => {
                (NotReached::NotPermitted, text(reason))
            }
            Failure::Bootstrap(reason @ BootstrapError::Stranger) => {
                (NotReached::Nobody, text(reason))
            }
            Failure::Bootstrap(reason) => (NotReached::Unreachable, text(reason)),
            Failure::Io(reason) => (NotReached::Unreachable, text(reason)),
            Failure::Violation(what) => (NotReached::Unreachable, text(what)),
            Failure::Ended => {
                (NotReached::HungUp, text(&"it hung up; its load or its log may say why"))
            }
            Failure::Silence | Failure::NoProgress => {
                (NotReached::Unreachable, text(&"no answer in time; see to the way there"))
            }
        };
        self.met(why, text);
    }

    /// A host has no port of that name.
    pub(crate) fn nobody(&mut self) {
        let text = format!("{} has no port named {}", self.host, self.name);
        self.addresses.clear();
        self.met(NotReached::Nobody, text);
    }

    fn met(&mut self, why: NotReached, trouble: String) {
        let weight = |why| match why {
            NotReached::NotPermitted => 3,
            NotReached::HungUp => 2,
            NotReached::Unreachable => 1,
            _ => 0,
        };
        if self.trouble.is_empty() || weight(why) > weight(self.why) {
            self.trouble = trouble;
            self.why = why;
        }
    }
}

/// What every socket of a link is told. None of it is needed for anything to be right.
pub(crate) fn set_options(socket: &TcpStream, options: &TcpOptions) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
    if congestion(socket).is_some_and(|name| !options.congestion.keeps(&name)) {
        // Where neither is permitted, the system's stays.
        let taken = |name: &&&str| rustix::net::sockopt::set_tcp_congestion(socket, name).is_ok();
        let _ = UNPACED.iter().find(taken);
    }
    set_patience(socket, options.lease_ms().saturating_mul(2));
    // While little is under way, tries come in even steps and not in ever longer ones, so that a link
    // goes on soon after its way is mended.
    let _ = rustix::net::sockopt::set_tcp_thin_linear_timeouts(socket, true);
}

/// Congestion controls that arm no timer for each segment; the first that the system permits is taken
/// in place of one that does.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// The congestion control of a connection.
pub(crate) fn congestion(socket: impl rustix::fd::AsFd) -> Option<String> {
    rustix::net::sockopt::tcp_congestion(socket).ok()
}

/// How long the kernel tries to send what nobody acknowledges. Its tries come ever more rarely, but the
/// last one when that time is up: by moving it a little ahead, again and again, as long as the peer is
/// silent, tries keep coming in even steps.
pub(crate) fn set_patience(socket: impl rustix::fd::AsFd, patience_ms: u32) {
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, patience_ms);
}

/// Where a listener is reached from its own host.
pub(crate) fn reachable(listener: SocketAddr) -> SocketAddr {
    let number = match listener.ip() {
        IpAddr::V4(number) if number.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(number) if number.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        number => number,
    };
    SocketAddr::new(number, listener.port())
}
