//! Options of TCP sockets, and the addresses of listeners.

use crate::options::TcpOptions;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};

/// Sets the socket options of a link. All are optimizations: failures are ignored.
pub(crate) fn set_options(socket: &TcpStream, options: &TcpOptions) {
    let _ = rustix::net::sockopt::set_tcp_nodelay(socket, true);
    if congestion(socket).is_some_and(|name| !options.congestion.keeps(&name)) {
        // If neither is permitted, the system's algorithm stays.
        let taken = |name: &&&str| rustix::net::sockopt::set_tcp_congestion(socket, name).is_ok();
        let _ = UNPACED.iter().find(taken);
    }
    set_user_timeout(socket, options.lease_ms().saturating_mul(2));
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
pub(crate) fn set_user_timeout(socket: impl rustix::fd::AsFd, timeout_ms: u32) {
    let _ = rustix::net::sockopt::set_tcp_user_timeout(socket, timeout_ms);
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
