//! Links on which nothing happens for a long time.

mod common;

use common::{Node, free_endpoint};
use farside_fabric_tcp::TcpOptions;
use std::time::{Duration, Instant};

/// What was carried out, and nobody waits for, does not look as if the peer never answered.
#[test]
fn requests_without_a_signal_do_not_break_an_idle_link() {
    let lease = Duration::from_millis(250);
    let options = || TcpOptions { lease, request_timeout: lease, ..TcpOptions::default() };
    let listen = free_endpoint().to_string();
    let mut far = Node::at(&listen, options());
    let mut near = Node::new(options());
    let idle = lease * 6;
    let (link, region) = std::thread::scope(|scope| {
        let accepted = scope.spawn(|| far.accept());
        let connected = near.connect(&format!("{listen}/p"));
        (connected, accepted.join().expect("a link"))
    })
    .0;
    assert!(near.try_send(link, 7));
    assert_eq!(far.message(), 7);
    let (waiter, start) = (near.port.waiter(), Instant::now());
    while start.elapsed() < idle {
        near.poll();
        assert_eq!(near.events, [], "{:?}", near.port.trouble(link));
        if !near.port.arm() {
            waiter.wait(Some(idle.saturating_sub(start.elapsed())));
        }
        near.port.disarm();
    }
    far.poll();
    assert_eq!(far.events, []);
    near.works(link, region);
}
