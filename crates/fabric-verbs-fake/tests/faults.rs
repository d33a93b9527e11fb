//! Faults that the kernel's software devices cannot show: each completion status, odd capabilities, a
//! request that never completes, a port that changes its address, a device that is removed. Each must
//! end as a typed error on the links concerned, and on no other.

mod node;

use farside_base::{
    AtomicScope, CompletionStatus, LocalSlice, Operation, RemoteSlice, Source, Work, WorkFlags,
    WorkId,
};
use farside_bootstrap::Endpoint;
use farside_fabric::{Fabric, FabricError, LinkEvent, Loss, PortSpec};
use farside_fabric_verbs::{OpenError, Options, VerbsFabric, status};
use farside_fabric_verbs_fake::Odd;
use node::{FakeNode, LEASE, WATCHDOG, alone, completion, connect, options, until, works};
use std::time::Instant;

#[test]
fn each_status_ends_its_link_with_words_and_no_other() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (other, _, other_region) = connect(&mut near, &mut far);
    // Flushes are never a cause; successes are no failures.
    for row in status::COMPLETIONS.iter().filter(|row| ![0, 5].contains(&row.number)) {
        let (link, _, region) = connect(&mut near, &mut far);
        fake.fail_next(row.number);
        near.write(1, link, region);
        near.write(2, link, region);
        let done = completion([&mut near, &mut far]);
        // Too long a request at this end is this fabric's fault, and not the peer's receive's.
        let expected = if row.number == 1 { CompletionStatus::Broken } else { row.status };
        assert_eq!((done.id, done.status), (WorkId(1), expected), "{}", row.name);
        let words = near.port.trouble(link).expect("words");
        assert!(words.contains(row.name) && words.contains(row.remedy), "{words}");
        let done = completion([&mut near, &mut far]);
        assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::Flushed), "{}", row.name);
        near.port.close(link);
        near.events.clear();
        let lost = |_: &mut FakeNode, far: &mut FakeNode| far.events.pop();
        match until("the loss there", [&mut near, &mut far], lost) {
            LinkEvent::Lost { link, .. } => far.port.close(link),
            event => panic!("{event:?}"),
        }
        works(&mut near, &mut far, other, other_region);
        assert_eq!(near.port.trouble(other), None);
    }
}

#[test]
fn a_request_that_hangs_is_unreachable_after_the_lease() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (other, _, other_region) = connect(&mut near, &mut far);
    let (link, _, region) = connect(&mut near, &mut far);
    fake.hang_next();
    let start = Instant::now();
    near.write(1, link, region);
    near.write(2, link, region);
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::Unreachable));
    assert!(start.elapsed() >= LEASE, "not before the lease");
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::Flushed));
    let lost = LinkEvent::Lost { link, loss: Loss::Unreachable };
    until("the loss", [&mut near, &mut far], |near, _| near.events.contains(&lost).then_some(()));
    assert!(near.port.trouble(link).is_some_and(|words| words.contains("lease")));
    works(&mut near, &mut far, other, other_region);
}

#[test]
fn silent_requests_that_hang_are_found_too() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, region) = connect(&mut near, &mut far);
    fake.hang_next();
    let slices = [LocalSlice { region: near.region.id, offset: 0, bytes: 8 }];
    let to = RemoteSlice { region, offset: 0 };
    let operation = Operation::Write { source: Source::Gather(&slices), to, immediate: None };
    let flags = WorkFlags::default();
    let posted = near.port.post(&[Work { id: WorkId(3), link, flags, operation }]);
    assert_eq!(posted.accepted, 1);
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(3), CompletionStatus::Unreachable));
}

#[test]
fn a_sleeper_is_woken_for_a_request_that_hangs() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, region) = connect(&mut near, &mut far);
    fake.hang_next();
    near.write(1, link, region);
    let start = Instant::now();
    let waiter = near.port.waiter();
    while near.done.is_empty() {
        if !near.port.arm() {
            assert!(waiter.wait(Some(WATCHDOG)), "never woken");
        }
        near.port.disarm();
        near.poll();
    }
    assert_eq!(near.done[0].status, CompletionStatus::Unreachable);
    assert!(start.elapsed() >= LEASE);
}

#[test]
fn a_message_without_a_receive_is_not_ready_after_the_patience() {
    let (_one, _fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, _) = connect(&mut near, &mut far);
    let slices = [LocalSlice { region: near.region.id, offset: 0, bytes: 8 }];
    let source = Source::Gather(&slices);
    let start = Instant::now();
    near.post(1, link, Operation::Send { source, immediate: None });
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::ReceiverNotReady));
    assert!(start.elapsed() >= LEASE * 2, "not before the patience");
}

#[test]
fn address_change_ends_links_and_keeps_regions() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there, _) = connect(&mut near, &mut far);
    assert!(near.port.path(link).contains("10.9.8.1"), "{}", near.port.path(link));
    fake.move_gid();
    until("the losses", [&mut near, &mut far], |near, far| {
        let lost = |node: &FakeNode, link| node.events.iter().any(|event| event.link() == link);
        (lost(near, link) && lost(far, there)).then_some(())
    });
    // The side that is notified second may learn it from the peer first.
    let troubles = [near.port.trouble(link), far.port.trouble(there)];
    assert!(troubles.iter().flatten().any(|words| words.contains("GID_CHANGE")), "{troubles:?}");
    near.port.close(link);
    far.port.close(there);
    near.events.clear();
    far.events.clear();
    let (link, _, region) = connect(&mut near, &mut far);
    assert!(near.port.path(link).contains("10.9.8.2"), "{}", near.port.path(link));
    works(&mut near, &mut far, link, region);
}

#[test]
fn a_port_that_is_down_for_less_than_the_lease_loses_nothing() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, region) = connect(&mut near, &mut far);
    fake.set_port(false);
    near.write(5, link, region);
    near.poll();
    assert!(near.done.is_empty());
    fake.set_port(true);
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(5), CompletionStatus::Success));
    works(&mut near, &mut far, link, region);
}

#[test]
fn a_device_that_goes_breaks_every_link_and_nothing_else() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, region) = connect(&mut near, &mut far);
    fake.hang_next();
    near.write(1, link, region);
    fake.remove_device();
    let done = completion([&mut near, &mut far]);
    assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::Broken));
    let lost = |near: &mut FakeNode, _: &mut FakeNode| near.events.pop();
    let event = until("the loss", [&mut near, &mut far], lost);
    assert_eq!(event.link(), link);
    assert!(near.port.trouble(link).is_some());
    near.write(2, link, region);
    assert_eq!(completion([&mut near, &mut far]).status, CompletionStatus::Flushed);
    let address = far.port.address().expect("a listener");
    let again = near.port.connect(&address, b"", near.queue);
    assert!(matches!(again, Err(FabricError::System(..))), "{again:?}");
    let gone = VerbsFabric::open(options());
    assert!(matches!(gone, Err(OpenError::NoDevices)), "{gone:?}");
}

#[test]
fn what_a_device_says_of_itself_is_what_is_promised() {
    let (_one, fake) = alone();
    fake.say(Odd::AtomicCap, 1);
    let fabric = VerbsFabric::open(options()).expect("a device");
    assert_eq!(fabric.capabilities().atomics, AtomicScope::Adapter);
    fake.say(Odd::AtomicCap, 0);
    fake.say(Odd::Slices, 1);
    fake.say(Odd::InlineBytes, 0);
    fake.say(Odd::InOrder, 0);
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let has = near.fabric.capabilities();
    assert_eq!((has.atomics, has.slices_max), (AtomicScope::None, 1));
    assert_eq!((has.inline_bytes_max, has.byte_order), (0, false));
    let (link, _, region) = connect(&mut near, &mut far);
    works(&mut near, &mut far, link, region);
    fake.say(Odd::Transport, 1);
    let iwarp = VerbsFabric::open(options());
    assert!(matches!(iwarp, Err(OpenError::NoManager { .. })), "{iwarp:?}");
    fake.say(Odd::Transport, 0);
    fake.say(Odd::SharedReceiveQueues, 0);
    let without = VerbsFabric::open(options());
    assert!(
        matches!(without, Err(OpenError::Lacks { what: "shared receive queues", .. })),
        "{without:?}"
    );
}

#[test]
fn a_fabric_says_where_it_is_reached_and_how_long_silence_lasts() {
    let (_one, _fake) = alone();
    let fabric = VerbsFabric::open(options()).expect("a device");
    let host = fabric.host().expect("it listens");
    assert!(host.ip().is_loopback() && host.port() != 0, "{host}");
    assert_eq!(fabric.lease_ns(), 200_000_000);
    let mut everywhere = options();
    everywhere.listen = Some("0.0.0.0:0".parse::<Endpoint>().expect("an endpoint"));
    let fabric = VerbsFabric::open(everywhere.clone()).expect("a device");
    // The address of the fake port.
    assert_eq!(fabric.host().expect("it listens").ip().to_string(), "10.9.8.1");
    everywhere.advertise = Some("192.0.2.1:80".parse::<Endpoint>().expect("an endpoint"));
    let fabric = VerbsFabric::open(everywhere.clone()).expect("a device");
    assert_eq!(fabric.host().expect("it listens").to_string(), "192.0.2.1:80");
    let mut port = fabric.open(&PortSpec { listen: Some("p".to_owned()) }).expect("a port");
    assert_eq!(port.address().as_deref(), Some("192.0.2.1:80/p"));
    // Its own names it finds without leaving the host.
    let queue = port.create_receive_queue(4).expect("a queue");
    let mut caller = fabric.open(&PortSpec::default()).expect("a port");
    let callers = caller.create_receive_queue(4).expect("a queue");
    caller.connect("p", b"", callers).expect("a call");
    let start = Instant::now();
    let mut events = Vec::new();
    while events.is_empty() {
        assert!(start.elapsed() < WATCHDOG, "no peer dialled");
        port.link_events(&mut events);
        std::thread::yield_now();
    }
    let LinkEvent::Requested { link, .. } = events[0] else { panic!("{events:?}") };
    port.accept(link, b"", queue).expect("to accept");
    let silent = VerbsFabric::open(Options { listen: None, ..options() }).expect("a device");
    assert_eq!(silent.host(), None);
}

#[test]
fn a_connection_that_the_adapter_ends_with_its_port_is_lost_at_once() {
    const FLUSHED: u32 = 5;
    let (_one, fake) = alone();
    for heard_before in [false, true] {
        let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
        let (link, _, region) = connect(&mut near, &mut far);
        if heard_before {
            fake.set_port(false);
            fake.set_port(true);
        }
        // No reason is given.
        fake.fail_next(FLUSHED);
        near.write(1, link, region);
        near.write(2, link, region);
        if !heard_before {
            fake.set_port(false);
        }
        let done = completion([&mut near, &mut far]);
        assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::Unreachable));
        let done = completion([&mut near, &mut far]);
        assert_eq!((done.id, done.status), (WorkId(2), CompletionStatus::Flushed));
        let words = near.port.trouble(link).expect("words");
        assert!(words.contains("its port was down"), "{words}");
        let lost = LinkEvent::Lost { link, loss: Loss::Unreachable };
        until("the loss", [&mut near, &mut far], |near, _| {
            near.events.contains(&lost).then_some(())
        });
        until("the loss there", [&mut near, &mut far], |_, far| far.events.pop());
        fake.set_port(true);
    }
}
