//! Links on which nothing happens for a long time.

mod common;

use common::{free_endpoint, node, node_at};
use farside_fabric_tcp::TcpOptions;
use std::time::{Duration, Instant};

/// Executed requests whose acknowledgement no thread waits for do not count as unanswered.
#[test]
fn requests_without_a_signal_do_not_break_an_idle_link() {
    let lease = Duration::from_millis(250);
    let options = || TcpOptions { lease, request_timeout: lease, ..TcpOptions::default() };
    let listen = free_endpoint().to_string();
    let mut far = node_at(&listen, options());
    let mut near = node(options());
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

/// Each side speaks often enough for the other one, though its own lease is much longer.
#[test]
fn idle_link_of_ends_with_unequal_leases_holds() {
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(100));
    for (of_listener, of_caller) in [(long, short), (short, long)] {
        let options = |lease| TcpOptions { lease, request_timeout: lease, ..TcpOptions::default() };
        let listen = free_endpoint().to_string();
        let mut far = node_at(&listen, options(of_listener));
        let mut near = node(options(of_caller));
        let (link, region) = std::thread::scope(|scope| {
            let accepted = scope.spawn(|| far.accept());
            let connected = near.connect(&format!("{listen}/p"));
            (connected, accepted.join().expect("a link"))
        })
        .0;
        let start = Instant::now();
        while start.elapsed() < short * 8 {
            for node in [&mut near, &mut far] {
                node.poll();
                assert_eq!(node.events, [], "leases {of_listener:?} and {of_caller:?}");
            }
            std::thread::yield_now();
        }
        near.works(link, region);
    }
}
