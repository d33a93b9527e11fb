//! The congestion control of connections: `Port::path` reports the one that the options request.

mod common;

use common::{free_endpoint, node, node_at};
use farside_fabric_tcp::{Congestion, TcpOptions};

/// Returns the paths that both ends of a link report.
fn paths(congestion: Congestion) -> [String; 2] {
    let options = || TcpOptions { congestion, ..TcpOptions::default() };
    let listen = free_endpoint().to_string();
    let mut far = node_at(&listen, options());
    let mut near = node(options());
    let (near_link, far_link) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| far.accept());
        let (connected, _) = near.connect(&format!("{listen}/p"));
        (connected, accepted.join().expect("a link"))
    });
    [near.port.path(near_link), far.port.path(far_link)]
}

fn of_the_kernel(name: &str) -> String {
    let value = std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    value.expect("what Linux shows to everybody").trim().to_owned()
}

#[test]
fn the_systems_is_used_where_it_is_asked_for() {
    let expected = format!("tcp ({}) ", of_the_kernel("tcp_congestion_control"));
    for path in paths(Congestion::System) {
        assert!(path.starts_with(&expected), "{path} for {expected}");
    }
}

/// Every user may select `reno`, unless it was forbidden.
#[test]
fn one_that_arms_no_timers_is_used_otherwise() {
    let system = of_the_kernel("tcp_congestion_control");
    let allowed = of_the_kernel("tcp_allowed_congestion_control");
    let free = allowed.split(' ').any(|name| name == "reno");
    for path in paths(Congestion::Unpaced) {
        let paced = path.starts_with("tcp (bbr");
        let kept = path.starts_with(&format!("tcp ({system}) "));
        assert!(if system.starts_with("bbr") { paced != free } else { kept }, "{path}");
    }
}
