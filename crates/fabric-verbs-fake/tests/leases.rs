//! Two ends with leases of their own: neither takes the other for lost while it lives.

mod node;

use farside_fabric::{Fabric, LinkEvent};
use farside_fabric_verbs::Options;
use node::{FakeNode, LEASE, alone, connect, options, until, works};
use std::time::{Duration, Instant};

fn pair(near: Duration, far: Duration) -> (FakeNode, FakeNode) {
    let of = |lease| Options { lease, patience: Duration::from_secs(10), ..options() };
    (FakeNode::with("near", of(near)), FakeNode::with("far", of(far)))
}

/// Lets both be for some leases of the shorter kind.
fn rest(near: &mut FakeNode, far: &mut FakeNode) {
    let start = Instant::now();
    until("the end of a rest", [near, far], |near, far| {
        assert!(near.events.is_empty() && far.events.is_empty(), "{:?}", near.events);
        (start.elapsed() > LEASE * 5).then_some(())
    });
}

const LONG: Duration = Duration::from_secs(3);

#[test]
fn ends_with_leases_of_their_own_keep_their_link_while_idle() {
    for (one, other) in [(LEASE, LONG), (LONG, LEASE)] {
        let (_one, _fake) = alone();
        let (mut near, mut far) = pair(one, other);
        let (link, _, region) = connect(&mut near, &mut far);
        rest(&mut near, &mut far);
        works(&mut near, &mut far, link, region);
        assert_ne!(near.fabric.lease_ns(), far.fabric.lease_ns());
    }
}

#[test]
fn a_program_that_thinks_for_long_loses_no_caller() {
    for (one, other) in [(LEASE, LONG), (LONG, LEASE)] {
        let (_one, _fake) = alone();
        let (mut near, mut far) = pair(one, other);
        let address = far.port.address().expect("a listener");
        let here = near.port.connect(&address, b"", near.queue).expect("a link");
        let there = until("a request", [&mut near, &mut far], |_, far| match far.events.pop()? {
            LinkEvent::Requested { link, .. } => Some(link),
            event => panic!("{event:?}"),
        });
        rest(&mut near, &mut far);
        far.port.accept(there, b"", far.queue).expect("to be accepted");
        until("a link", [&mut near, &mut far], |near, _| match near.events.pop()? {
            LinkEvent::Connected { link, .. } if link == here => Some(()),
            event => panic!("{event:?}"),
        });
        rest(&mut near, &mut far);
    }
}
