//! Dialling: tries the addresses of a name or host in order and keeps the reason of the worst failure.

use crate::failure::ConnectionFailure;
use crate::options::TcpOptions;
use crate::socket::{reachable, set_options};
use crate::stream::LinkStream;
use crate::wire::{self, Short};
use farside_bootstrap::{Address, BootstrapError, Endpoint, HandshakeLimits, HostAddress, Stream};
use farside_fabric::{FabricError, NotReached};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

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
    /// The most telling failure so far (see `record`).
    pub(crate) why: NotReached,
    pub(crate) trouble: String,
}

/// The next step of a dial.
pub(crate) enum DialStep {
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
    pub(crate) fn next(&mut self) -> DialStep {
        if let Some(address) = self.addresses.pop_front() {
            return DialStep::Connect(address);
        }
        let Some(endpoint) = self.endpoints.pop_front() else {
            return DialStep::NoListener;
        };
        self.host = endpoint.host.clone();
        match endpoint.host {
            HostAddress::Ip(number) => DialStep::Connect(SocketAddr::new(number, endpoint.port)),
            HostAddress::Name(_) => DialStep::Resolve(endpoint),
        }
    }

    /// Takes the result of a name lookup.
    pub(crate) fn resolved(&mut self, found: io::Result<Vec<SocketAddr>>) {
        match found {
            Ok(addresses) => self.addresses.extend(addresses),
            Err(reason) => {
                let text = format!("{}: {reason}; check the name and its name server", self.host);
                self.record(NotReached::Unreachable, text);
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
        self.record(why, text);
    }

    /// Records that the host has no port of that name.
    pub(crate) fn no_listener(&mut self) {
        let text = format!("{} has no port named {}", self.host, self.name);
        self.addresses.clear();
        self.record(NotReached::NoListener, text);
    }

    fn record(&mut self, why: NotReached, trouble: String) {
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
