//! Shared test code: endpoints, fabrics and nodes.
#![allow(dead_code, reason = "each test file uses a part")]

use farside_base::Access;
use farside_bootstrap::{Endpoint, Security};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns an endpoint of this host at which no process listens: a loopback address of its own.
pub(crate) fn free_endpoint() -> Endpoint {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let part = |value: u32, most: u32| 1 + (value % most) as u8;
    let number = [127, part(process, 200), part(number / 250, 250), part(number, 250)];
    let port = 7000 + (process / 200 % 20_000) as u16;
    Endpoint::from(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(number)), port))
}

/// Returns a fabric that listens on this host.
pub(crate) fn fabric_of(options: TcpOptions) -> TcpFabric {
    TcpFabric::new(options).expect("a fabric")
}

/// Returns fabrics that all know the endpoints of the others.
pub(crate) fn fabrics_of(security: &Security, count: usize) -> Vec<TcpFabric> {
    let hosts: Vec<_> = (0..count).map(|_| free_endpoint()).collect();
    let fabric = |endpoint: &Endpoint| {
        let (listen, hosts) = (Some(endpoint.clone()), hosts.clone());
        fabric_of(TcpOptions { listen, hosts, security: security.clone(), ..TcpOptions::default() })
    };
    hosts.iter().map(fabric).collect()
}

pub(crate) type TestNode = farside_testkit::TestNode<TcpFabric>;

/// Returns a node that only connects.
pub(crate) fn node(options: TcpOptions) -> TestNode {
    TestNode::new(fabric_of(options), None, Access::ALL.with(Access::FLUSH))
}

/// Returns a node that listens as `p` at an endpoint.
pub(crate) fn node_at(endpoint: &str, options: TcpOptions) -> TestNode {
    let listen = Some(endpoint.parse().expect("an endpoint"));
    let fabric = fabric_of(TcpOptions { listen, ..options });
    TestNode::new(fabric, Some("p"), Access::ALL.with(Access::FLUSH))
}
