//! Dialling: tries the addresses of a name or host in order and keeps the reason of the worst failure.

use crate::connection::{ConnectionFailure, LinkStream};
use crate::options::TcpOptions;
use crate::wire::{self, Short};
use farside_bootstrap::{Address, BootstrapError, Endpoint, HandshakeLimits, HostAddress, Stream};
use farside_fabric::{FabricError, NotReached};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

/// Bytes that a peer may send in a handshake.
const HANDSHAKE_BYTES: usize = 64 << 10;

/// A connection attempt.
pub(crate) struct Dial {
    /// The port name that the program passed.
    name: String,
    hello: Vec<u8>,
    /// Endpoints that were not tried yet.
    endpoints: VecDeque<Endpoint>,
    /// The host that is being tried, and its addresses that were not tried yet.
    host: HostAddress,
    addresses: VecDeque<SocketAddr>,
    /// The most telling failure so far (see `met`).
    pub(crate) why: NotReached,
    pub(crate) trouble: String,
}

/// The next step of a dial.
pub(crate) enum Next {
    /// Connect to this address.
    Connect(SocketAddr),
    /// Resolve the name of this endpoint.
    Resolve(Endpoint),
    /// No address is left.
    NoListener,
}

impl Dial {
    /// Returns a dial of `to`: a full address, or the name of a port at this fabric or at one of its
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
            host: HostAddress::Ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            addresses: VecDeque::new(),
            why: NotReached::NoListener,
            trouble: String::new(),
        })
    }

    /// Returns the next address to try.
    pub(crate) fn next(&mut self) -> Next {
        if let Some(address) = self.addresses.pop_front() {
            return Next::Connect(address);
        }
        let Some(endpoint) = self.endpoints.pop_front() else {
            return Next::NoListener;
        };
        self.host = endpoint.host.clone();
        match endpoint.host {
            HostAddress::Ip(number) => Next::Connect(SocketAddr::new(number, endpoint.port)),
            HostAddress::Name(_) => Next::Resolve(endpoint),
        }
    }

    /// Takes the result of a name lookup.
    pub(crate) fn resolved(&mut self, found: io::Result<Vec<SocketAddr>>) {
        match found {
            Ok(addresses) => self.addresses.extend(addresses),
            Err(reason) => {
                let text = format!("{}: {reason}; check the name and its name server", self.host);
                self.met(NotReached::Unreachable, text);
            }
        }
    }

    /// Starts a non-blocking connect.
    pub(crate) fn connect(
        &self,
        to: SocketAddr,
        options: &TcpOptions,
    ) -> Result<LinkStream, ConnectionFailure> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
        let socket = TcpStream::from(socket.map_err(io::Error::from)?);
        set_options(&socket, options);
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
            Err(reason) => return Err(ConnectionFailure::Io(reason.into())),
        }
        let limits = HandshakeLimits { time: options.connect_timeout, bytes: HANDSHAKE_BYTES };
        // Bound by now; if it is not, connecting has failed, and the socket reports that later.
        let local = socket.local_addr().unwrap_or(to);
        let stream = Stream::connect(socket, &options.security, &self.host, limits)?;
        let stream = stream.between(local, to);
        Ok(LinkStream::Stream(Box::new(stream)))
    }

    /// Returns the hello that answers a greeting; `None` for another protocol version.
    pub(crate) fn answer(&self, greeting: &Short, bytes: &[u8]) -> Option<Vec<u8>> {
        let fits = greeting.code == wire::VERSION && bytes.len() == 8;
        fits.then(|| wire::encode_hello(&self.name, &self.hello))
    }

    /// Records a failed attempt.
    pub(crate) fn failed(&mut self, failure: &ConnectionFailure) {
        let text = |reason: &dyn std::fmt::Display| format!("{}: {reason}", self.host);
        let (why, text) = match failure {
            ConnectionFailure::Io(reason) if reason.kind() == io::ErrorKind::ConnectionRefused => {
                (NotReached::NoListener, text(&"no process listens there; check host and port"))
            }
            ConnectionFailure::Bootstrap(reason) if reason.is_refusal() => {
                (NotReached::NotPermitted, text(reason))
            }
            ConnectionFailure::Bootstrap(reason @ BootstrapError::Stranger) => {
                (NotReached::NoListener, text(reason))
            }
            ConnectionFailure::Bootstrap(reason) => (NotReached::Unreachable, text(reason)),
            ConnectionFailure::Io(reason) => (NotReached::Unreachable, text(reason)),
            ConnectionFailure::Violation(what) => (NotReached::Unreachable, text(what)),
            ConnectionFailure::Ended => {
                (NotReached::HungUp, text(&"it closed the connection; check its load and its log"))
            }
            ConnectionFailure::Silence | ConnectionFailure::NoProgress => {
                (NotReached::Unreachable, text(&"no answer in time; check the network path"))
            }
        };
        self.met(why, text);
    }

    /// Records that the host has no port of that name.
    pub(crate) fn no_listener(&mut self) {
        let text = format!("{} has no port named {}", self.host, self.name);
        self.addresses.clear();
        self.met(NotReached::NoListener, text);
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

/// Sets the socket options of a link. All are optimizations: failures are ignored.
pub(crate) fn set_options(socket: &TcpStream, options: &TcpOptions) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
    if congestion(socket).is_some_and(|name| !options.congestion.keeps(&name)) {
        // If neither is permitted, the system's algorithm stays.
        let taken = |name: &&&str| rustix::net::sockopt::set_tcp_congestion(socket, name).is_ok();
        let _ = UNPACED.iter().find(taken);
    }
    set_patience(socket, options.lease_ms().saturating_mul(2));
    // With little data in flight, retransmit at a constant interval instead of backing off
    // exponentially, so that a link resumes soon after the network path is repaired.
    let _ = rustix::net::sockopt::set_tcp_thin_linear_timeouts(socket, true);
}

/// Congestion controls that arm no timer for each segment; the first that the system permits replaces
/// one that does.
const UNPACED: [&str; 2] = ["cubic", "reno"];

/// Returns the congestion control of a connection.
pub(crate) fn congestion(socket: impl rustix::fd::AsFd) -> Option<String> {
    rustix::net::sockopt::tcp_congestion(socket).ok()
}

/// Sets how long the kernel retransmits unacknowledged data (TCP_USER_TIMEOUT). Its retransmissions
/// back off exponentially, but the last one happens when the timeout expires: moving the timeout a
/// little ahead again and again while the peer is silent keeps them at a constant interval.
pub(crate) fn set_patience(socket: impl rustix::fd::AsFd, patience_ms: u32) {
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, patience_ms);
}

/// Returns the address by which a listener is reached from its own host.
pub(crate) fn reachable(listener: SocketAddr) -> SocketAddr {
    let number = match listener.ip() {
        IpAddr::V4(number) if number.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(number) if number.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        number => number,
    };
    SocketAddr::new(number, listener.port())
}
