//! Checks of the network for nodes connected by TCP, and of the route to a peer.

use super::check::{Finding, Group, Rule};
use super::host::{Route, word};
use super::ports::roce_mtu_of;
use super::rdma::{Port, Transport, is_up};
use super::subject::Subject;
use farside_command::output::bytes;
use farside_fabric_tcp::Congestion;
use std::net::{IpAddr, Ipv6Addr};

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "network_devices",
        group: Group::Network,
        why: "nodes on other machines are reached through a network device that is up",
        inspect: network_devices,
    },
    Rule {
        name: "peer_route",
        group: Group::Network,
        why: "packets to the peer must leave by the RDMA port and fit the MTU of every hop",
        inspect: peer_route,
    },
    Rule {
        name: "tcp_buffers",
        group: Group::Network,
        why: "the socket buffers bound the bytes in flight on a connection",
        inspect: tcp_buffers,
    },
    Rule {
        name: "tcp_congestion_control",
        group: Group::Network,
        why: "the algorithm decides how fast a connection recovers from loss",
        inspect: tcp_congestion_control,
    },
    Rule {
        name: "listen_backlog",
        group: Group::Network,
        why: "all nodes of a cluster connect at once when it starts",
        inspect: listen_backlog,
    },
    Rule {
        name: "port_range",
        group: Group::Network,
        why: "each outgoing connection takes a port from this range",
        inspect: port_range,
    },
    Rule {
        name: "io_uring",
        group: Group::Network,
        why: "without io_uring each socket needs separate system calls",
        inspect: io_uring,
    },
];

/// Link speed from which the default socket buffers are too small, in Mb/s.
const FAST_MEGABITS: u64 = 10_000;

/// Returns the network devices that are up, with their speeds in Mb/s if the driver reports one.
fn up(subject: &Subject<'_>) -> Vec<(String, Option<u64>)> {
    let host = subject.host;
    let names = host.names("/sys/class/net").into_iter();
    let is_other = |name: &String| {
        // ARPHRD_LOOPBACK
        name != "lo" && host.number(&format!("/sys/class/net/{name}/type")) != Some(772)
    };
    let up = names.filter(is_other).filter(|name| is_up(host, name) == Some(true));
    up.map(|name| {
        let speed = host.number(&format!("/sys/class/net/{name}/speed"));
        // Older drivers report an unknown speed as -1, read here as unsigned.
        let speed = speed.filter(|speed| *speed < u64::from(u32::MAX));
        (name, speed)
    })
    .collect()
}

fn network_devices(subject: &Subject<'_>) -> Vec<Finding> {
    let up = up(subject);
    if up.is_empty() {
        return Finding::note("none is up: only nodes on this machine can connect").one();
    }
    up.into_iter()
        .map(|(name, speed)| {
            let mtu = subject.host.number(&format!("/sys/class/net/{name}/mtu"));
            let mtu = mtu.map(|mtu| format!(", MTU {mtu}")).unwrap_or_default();
            let speed = speed.map(|speed| format!(", {speed} Mb/s")).unwrap_or_default();
            Finding::ok(format!("up{speed}{mtu}")).of(name)
        })
        .collect()
}

fn peer_route(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(peer) = &subject.plan.peer else {
        return Finding::skipped("no --peer was given").one();
    };
    let finding = match subject.host.route(peer) {
        Ok(route) => judged(subject, peer, &route),
        Err(why) => {
            Finding::failing(why, format!("getent hosts {0}; ip route get {0}", word(peer)))
        }
    };
    finding.of(peer.clone()).one()
}

fn judged(subject: &Subject<'_>, peer: &str, route: &Route) -> Finding {
    let found = format!("from {} to {}, packets of {} bytes", route.from, route.to, route.mtu);
    let theirs =
        "the MTU of the peer's device is visible on the peer only: run farside doctor there too";
    if route.from == route.to {
        return Finding::note(format!("{found}: this machine itself"));
    }
    let ports = subject.devices.iter().flat_map(|device| &device.ports);
    let ports: Vec<_> =
        ports.filter(|port| matches!(port.transport, Transport::Roce | Transport::Iwarp)).collect();
    let Some(port) = ports.iter().find(|port| has_address(port, route.from)) else {
        // The GID table of an iWARP port holds no IP address.
        if ports.is_empty() || ports.iter().all(|port| port.transport == Transport::Iwarp) {
            return Finding::ok(found).detail(theirs);
        }
        let fix = format!("name {} by its address on the RDMA network", word(peer));
        return Finding::warning(format!("{found}: not through an RDMA port"), fix).detail(theirs);
    };
    let found = format!("{found}, through {}", port.name);
    let mtu = roce_mtu_of(u64::from(route.mtu));
    let own = port.netdev.as_ref();
    let own = own.and_then(|netdev| subject.host.number(&format!("/sys/class/net/{netdev}/mtu")));
    match own.map(roce_mtu_of) {
        Some(own) if own > mtu => Finding::warning(
            format!("{found}: the port has RoCE MTU {own}, the route allows {mtu}"),
            format!("tracepath -n {}    # names the hop with the smaller MTU", word(peer)),
        ),
        Some(_) | None => Finding::ok(format!("{found}: RoCE MTU {mtu}")),
    }
    .detail(theirs)
}

fn has_address(port: &Port, address: IpAddr) -> bool {
    let six: Ipv6Addr = match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    };
    port.gids.iter().any(|gid| gid.gid == six.octets())
}

/// Socket buffer that a fast connection within a rack needs, with hundreds of microseconds of queueing delay.
const FAST_BUFFER_BYTES: u64 = 16 << 20;

/// Returns the maximum of a setting such as `4096 131072 6291456` (minimum, default, maximum).
fn maximum(subject: &Subject<'_>, name: &str) -> Option<u64> {
    let text = subject.host.value(&format!("/proc/sys/net/ipv4/{name}"))?;
    text.split_whitespace().nth(2)?.parse().ok()
}

fn tcp_buffers(subject: &Subject<'_>) -> Vec<Finding> {
    let (Some(receive), Some(send)) = (maximum(subject, "tcp_rmem"), maximum(subject, "tcp_wmem"))
    else {
        return Finding::skipped("the kernel does not report it").one();
    };
    let found = format!("receive up to {}, send up to {}", bytes(receive), bytes(send));
    let fast =
        up(subject).iter().any(|(_, speed)| speed.is_some_and(|speed| speed >= FAST_MEGABITS));
    if !fast || receive.min(send) >= FAST_BUFFER_BYTES {
        return Finding::ok(found).one();
    }
    let fix = "sudo sysctl net.ipv4.tcp_rmem='4096 131072 67108864' net.ipv4.tcp_wmem='4096 65536 67108864'";
    Finding::note(format!("{found}, and a device has 10 Gb/s or more")).fix(fix).one()
}

fn tcp_congestion_control(subject: &Subject<'_>) -> Vec<Finding> {
    match subject.host.value("/proc/sys/net/ipv4/tcp_congestion_control") {
        Some(name) if !Congestion::default().keeps(&name) => {
            let text = format!(
                "{name}; the TCP fabric uses cubic or reno instead, unless --congestion system is given"
            );
            Finding::ok(text).one()
        }
        Some(name) => Finding::ok(name).one(),
        None => Finding::skipped("the kernel does not report it").one(),
    }
}

fn listen_backlog(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(most) = subject.host.number("/proc/sys/net/core/somaxconn") else {
        return Finding::skipped("the kernel does not report it").one();
    };
    if most >= subject.plan.nodes.max(128) {
        return Finding::ok(most.to_string()).one();
    }
    Finding::warning(most.to_string(), "sudo sysctl net.core.somaxconn=4096").one()
}

/// Fewer ephemeral ports than this run out soon: a closed connection holds its port for a minute (TIME_WAIT).
const PORTS_MIN: u64 = 1_000;

fn port_range(subject: &Subject<'_>) -> Vec<Finding> {
    let range = subject.host.value("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut words = range.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next()) else {
        return Finding::skipped("the kernel does not report it").one();
    };
    let count = last.saturating_sub(first).saturating_add(1);
    let found = format!("{first} to {last}");
    if count >= PORTS_MIN && first <= last {
        return Finding::ok(found).one();
    }
    let fix = "sudo sysctl net.ipv4.ip_local_port_range='32768 60999'";
    Finding::warning(format!("{found}: too few"), fix).one()
}

fn io_uring(subject: &Subject<'_>) -> Vec<Finding> {
    let fix = "sudo sysctl kernel.io_uring_disabled=0";
    let finding = match subject.host.number("/proc/sys/kernel/io_uring_disabled") {
        Some(0) => Finding::ok("allowed"),
        Some(1) => Finding::note("allowed to a group of users only; epoll works too").fix(fix),
        Some(2) => Finding::note("disabled; epoll works too").fix(fix),
        Some(_) | None => Finding::skipped("the kernel does not report it (before 6.6)"),
    };
    finding.one()
}
