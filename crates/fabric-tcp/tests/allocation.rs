//! The hot path allocates nothing after warm-up. In a file of its own, since allocations are counted
//! for the whole process.

mod common;

use common::{TestNode, free_endpoint, node, node_at};
use farside_base::{
    Completion, CompletionStatus, LinkId, Operation, RemoteRegionId, RemoteSlice, Source, Work,
};
use farside_fabric_tcp::TcpOptions;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Polls until `count` requests have completed.
fn drain(node: &mut TestNode, mut count: usize) {
    let mut out = [Completion::BLANK; 16];
    while count > 0 {
        let got = node.port.poll(&mut out);
        for done in &out[..got] {
            assert_eq!(done.status, CompletionStatus::Success);
        }
        count -= got;
    }
}

/// Requests of every kind and of short and long payloads, both ways.
fn round(
    near: &mut TestNode,
    far: &mut TestNode,
    (here, there): (LinkId, LinkId),
    region: RemoteRegionId,
) {
    let at = RemoteSlice { region, offset: 512 << 10 };
    for bytes in [8, 5000, 100_000] {
        let slices = [near.slice(256 << 10, bytes)];
        let source = Source::Gather(&slices);
        let list: [Work<'_>; 4] = [
            near.work(here, 1, Operation::Write { source, to: at, immediate: None }),
            near.work(here, 2, Operation::Read { into: &slices, from: at }),
            near.work(here, 3, Operation::FetchAdd { at, add: 1, into: near.slice(0, 8) }),
            near.work(here, 4, Operation::AtomicWrite { to: at, value: 1 }),
        ];
        let mut posted = 0;
        while posted < list.len() {
            posted += near.port.post(&list[posted..]).accepted;
        }
        drain(near, list.len());
    }
    for (link, forth) in [(here, true), (there, false)] {
        let (from, to) = if forth { (&mut *near, &mut *far) } else { (&mut *far, &mut *near) };
        assert!(from.try_send(link, 7));
        let mut out = [Completion::BLANK; 1];
        while to.port.poll(&mut out) == 0 {}
        to.post_receive(out[0].id.0);
    }
}

#[test]
fn nothing_is_allocated_after_warm_up() {
    let listen = free_endpoint().to_string();
    let mut far = node_at(&listen, TcpOptions::default());
    let mut near = node(TcpOptions::default());
    let here = near.port.connect(&format!("{listen}/p"), b"", near.queue).expect("an address");
    let there = far.accept();
    let event = near.event();
    assert!(matches!(event, farside_fabric::LinkEvent::Connected { .. }), "{event:?}");
    let region = near.port.import(here, &far.region.token).expect("a region");
    // Buffers grow with the largest burst, which depends on scheduling; several rounds without growth
    // show that it ends.
    let (mut quiet, mut rounds) = (0, 0);
    while quiet < 200 {
        let before = Region::new(ALLOCATOR);
        round(&mut near, &mut far, (here, there), region);
        let change = before.change();
        let counted = change.allocations + change.reallocations;
        quiet = if counted == 0 { quiet + 1 } else { 0 };
        rounds += 1;
        assert!(rounds < 20_000, "still allocating after {rounds} rounds: {change:?}");
    }
}
