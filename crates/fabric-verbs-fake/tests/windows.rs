//! Memory windows: an rkey is valid on the link that it was granted to, and on no other; who binds
//! them, when they are deallocated, and what happens if they are not available.

mod node;

use farside_base::{
    Completion, CompletionStatus, LinkId, LocalSlice, Operation, RemoteRegionId, Source, WorkId,
};
use farside_fabric::{Fabric, FabricError, LinkEvent};
use farside_fabric_verbs_fake::{Fake, Odd};
use node::{FakeNode, LEASE, WATCHDOG, alone, completion, connect, options, until, works};
use std::time::{Duration, Instant};

const REMOTE: u32 = 1 << 1;

fn shared_keys(name: &str) -> FakeNode {
    let mut shared = options();
    shared.memory_windows = false;
    FakeNode::with(name, shared)
}

/// Another link between two nodes.
fn again(one: &mut FakeNode, other: &mut FakeNode) -> (LinkId, LinkId, RemoteRegionId) {
    one.events.clear();
    other.events.clear();
    connect(one, other)
}

/// Writes with the rkey that the owner of a link has just used. Returns how that completes.
fn borrowed(
    fake: &Fake,
    thief: &mut FakeNode,
    link: LinkId,
    far: &mut FakeNode,
) -> CompletionStatus {
    let region = thief.port.import(link, &far.region.token).expect("a region");
    fake.borrow_key();
    thief.write(5, link, region);
    completion([thief, far]).status
}

#[test]
fn a_key_serves_on_the_link_that_it_was_given_to() {
    let (_one, fake) = alone();
    let (mut near, mut far, mut thief) =
        (FakeNode::new("near"), FakeNode::new("far"), FakeNode::new("thief"));
    assert!(far.fabric.choice().keys.contains("one link"), "{}", far.fabric.describe());
    // The registration itself grants no rights.
    assert_eq!(fake.registered(REMOTE), 0);
    let (link, _, region) = connect(&mut near, &mut far);
    let (stolen, _, _) = again(&mut thief, &mut far);
    works(&mut near, &mut far, link, region);
    let status = borrowed(&fake, &mut thief, stolen, &mut far);
    assert_eq!(status, CompletionStatus::RemoteAccess, "by another process");
    works(&mut near, &mut far, link, region);
    let (second, _, _) = again(&mut near, &mut far);
    works(&mut near, &mut far, link, region);
    let status = borrowed(&fake, &mut near, second, &mut far);
    assert_eq!(status, CompletionStatus::RemoteAccess, "on another link of the same process");
    works(&mut near, &mut far, link, region);
    drop((near, far, thief));
    assert_eq!((fake.windows(), fake.violations()), (0, 0));
}

#[test]
fn without_windows_a_key_serves_on_every_link() {
    let (_one, fake) = alone();
    for lacking in [false, true] {
        fake.reset();
        fake.say(Odd::Windows, if lacking { 0 } else { 64 });
        let open = |name| if lacking { FakeNode::new(name) } else { shared_keys(name) };
        let (mut near, mut far, mut thief) = (open("near"), open("far"), open("thief"));
        let why = if lacking { "the device has no memory windows" } else { "were not requested" };
        assert!(far.fabric.choice().keys.contains(why), "{}", far.fabric.describe());
        let (link, _, region) = connect(&mut near, &mut far);
        let (stolen, _, _) = again(&mut thief, &mut far);
        assert_eq!(fake.windows(), 0);
        works(&mut near, &mut far, link, region);
        let status = borrowed(&fake, &mut thief, stolen, &mut far);
        assert_eq!(status, CompletionStatus::Success, "as before there were windows");
    }
}

#[test]
fn windows_end_with_their_regions_and_their_links() {
    let (_one, fake) = alone();
    let before = fake.violations();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there, region) = connect(&mut near, &mut far);
    assert_eq!(fake.windows(), 1);
    // The same again is the same window.
    near.port.import(link, &far.region.token).expect("a region");
    far.port.import(there, &near.region.token).expect("a region");
    assert_eq!(fake.windows(), 2);
    let (second, _, other) = again(&mut near, &mut far);
    assert_eq!(fake.windows(), 3);
    near.port.close(link);
    until("its end there", [&mut near, &mut far], |_, far| {
        far.events.iter().any(|event| matches!(event, LinkEvent::Lost { .. })).then_some(())
    });
    assert_eq!(fake.windows(), 1, "those of the link that is closed");
    far.port.close(there);
    works(&mut near, &mut far, second, other);
    let (id, token) = (far.region.id, far.region.token);
    far.fabric.deregister(id).expect("its end");
    assert_eq!(fake.windows(), 0);
    near.write(3, second, other);
    assert_eq!(completion([&mut near, &mut far]).status, CompletionStatus::RemoteAccess);
    let (third, _) = link_up(&mut near, &mut far);
    let stale = near.port.import(third, &token);
    assert!(matches!(stale, Err(FabricError::Unknown("token"))), "{stale:?}");
    assert_eq!(fake.violations(), before);
    let _ = region;
}

/// Returns a link without an import.
fn link_up(near: &mut FakeNode, far: &mut FakeNode) -> (LinkId, LinkId) {
    near.events.clear();
    far.events.clear();
    let address = far.port.address().expect("a listener");
    let here = near.port.connect(&address, b"", near.queue).expect("a link");
    let there = until("a request", [near, far], |_, far| match far.events.pop()? {
        LinkEvent::Requested { link, .. } => Some(link),
        _ => None,
    });
    far.port.accept(there, b"", far.queue).expect("to be accepted");
    until("a link", [near, far], |near, _| match near.events.pop()? {
        LinkEvent::Connected { link, .. } if link == here => Some(()),
        _ => None,
    });
    (here, there)
}

#[test]
fn reconnected_link_gets_new_windows_and_no_new_registration() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let registered = fake.registered(0);
    for _ in 0..5 {
        let (link, there, region) = again(&mut near, &mut far);
        works(&mut near, &mut far, link, region);
        near.port.close(link);
        far.port.close(there);
        assert_eq!((fake.windows(), fake.registered(0)), (0, registered));
    }
}

#[test]
fn no_window_left_is_a_typed_refusal_and_others_go_on() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, _, region) = connect(&mut near, &mut far);
    fake.say(Odd::Windows, 1);
    let (second, _) = link_up(&mut near, &mut far);
    let refused = near.port.import(second, &far.region.token);
    assert!(
        matches!(refused, Err(FabricError::Limit(name)) if name.contains("memory windows")),
        "{refused:?}"
    );
    works(&mut near, &mut far, link, region);
    near.port.close(link);
    until("a window that is free", [&mut near, &mut far], |_, _| {
        (fake.windows() == 0).then_some(())
    });
    let region = near.port.import(second, &far.region.token).expect("the window that is free now");
    works(&mut near, &mut far, second, region);
}

#[test]
fn what_the_control_thread_finds_beside_a_bind_is_kept_for_the_port() {
    let (_one, _fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there) = link_up(&mut near, &mut far);
    let back = far.port.import(there, &near.region.token).expect("a region");
    for round in 0..20 {
        // Completed, and not polled.
        for id in 0..4 {
            far.write(round * 10 + id, there, back);
        }
        let spec = farside_fabric::RegionSpec {
            bytes: 64,
            access: farside_base::Access::WRITE,
            kind: farside_base::RegionKind::Memory,
        };
        let another = far.fabric.register(&spec).expect("a region");
        // Needs a bind by the peer, whose program sleeps.
        near.port.import(link, &another.token).expect("a region");
        for id in 4..8 {
            far.write(round * 10 + id, there, back);
        }
        let mut out = [Completion::BLANK; 16];
        let count = far.port.poll(&mut out);
        let ids: Vec<_> = out[..count].iter().map(|done| done.id).collect();
        let expected: Vec<_> = (0..8).map(|id| WorkId(round * 10 + id)).collect();
        assert_eq!(ids, expected);
        assert!(!far.port.arm(), "nothing is left");
        far.port.disarm();
    }
}

#[test]
fn a_port_that_sleeps_is_woken_by_what_is_kept_for_it() {
    let (_one, fake) = alone();
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there) = link_up(&mut near, &mut far);
    let (other, _) = link_up(&mut near, &mut far);
    let back = far.port.import(there, &near.region.token).expect("a region");
    fake.hold_binds();
    let before = fake.posted();
    std::thread::scope(|scope| {
        let token = far.region.token;
        let importing = scope.spawn(move || {
            let imported = near.port.import(link, &token);
            (near, imported)
        });
        // The bind is in the queue: later requests wait too.
        until_posted(&fake, before);
        far.write(1, there, back);
        assert!(!far.port.arm());
        fake.let_binds();
        assert!(far.port.waiter().wait(Some(Duration::from_secs(30))), "woken");
        far.port.disarm();
        let (mut near, imported) = importing.join().expect("no panic");
        let region = imported.expect("a region");
        let done = completion([&mut far, &mut near]);
        assert_eq!((done.id, done.status), (WorkId(1), CompletionStatus::Success));
        works(&mut near, &mut far, link, region);
        near.port.close(other);
    });
}

/// Waits until more was posted than before.
fn until_posted(fake: &Fake, before: (u64, u64)) {
    let start = Instant::now();
    while fake.posted() == before && start.elapsed() < node::WATCHDOG {
        std::thread::yield_now();
    }
}

#[test]
fn region_deregistered_while_a_window_is_bound_is_unreachable() {
    let (_one, fake) = alone();
    let violations = fake.violations();
    let (mut near, mut far, mut third) =
        (FakeNode::new("near"), FakeNode::new("far"), FakeNode::new("third"));
    let (link, there) = link_up(&mut near, &mut far);
    let (sound, _, region) = again(&mut third, &mut far);
    fake.hold_binds();
    let before = fake.posted();
    let near = std::thread::scope(|scope| {
        let token = far.region.token;
        let importing = scope.spawn(move || {
            let imported = near.port.import(link, &token);
            (near, imported)
        });
        until_posted(&fake, before);
        let start = Instant::now();
        far.fabric.deregister(far.region.id).expect("its end");
        assert!(start.elapsed() >= LEASE / 2, "it waits for the bind");
        let (near, imported) = importing.join().expect("no panic");
        assert!(imported.is_err(), "{imported:?}");
        near
    });
    fake.let_binds();
    assert_eq!((fake.windows(), fake.violations()), (0, violations));
    let mut near = near;
    // That link has failed, and the other one has not.
    let words = until("the link's end", [&mut far, &mut near], |far, _| far.port.trouble(there));
    assert!(words.contains("memory window"), "{words}");
    third.write(9, sound, region);
    assert_eq!(completion([&mut third, &mut far]).status, CompletionStatus::RemoteAccess);
}

#[test]
fn a_window_is_bound_once_though_requests_before_it_are_repeated() {
    let (_one, fake) = alone();
    fake.say(Odd::RepeatsBinds, 1);
    let (mut near, mut far) = (FakeNode::new("near"), FakeNode::new("far"));
    let (link, there) = link_up(&mut near, &mut far);
    let back = far.port.import(there, &near.region.token).expect("a region");
    // Packets are lost: what is posted now will be repeated.
    fake.set_port(false);
    far.write(1, there, back);
    let (_, posted) = fake.posted();
    let token = far.region.token;
    let (mut near, region) = std::thread::scope(|scope| {
        let importing = scope.spawn(|| {
            let imported = near.port.import(link, &token);
            (near, imported)
        });
        let start = Instant::now();
        while fake.posted().1 == posted {
            assert!(start.elapsed() < WATCHDOG, "no bind is posted");
            std::thread::yield_now();
        }
        fake.set_port(true);
        let (near, imported) = importing.join().expect("no panic");
        (near, imported.expect("a region"))
    });
    assert_eq!(completion([&mut far, &mut near]).status, CompletionStatus::Success);
    works(&mut near, &mut far, link, region);
    assert_eq!(fake.windows(), 2);
}

#[test]
fn a_window_that_cannot_be_bound_ends_its_link_alone() {
    let (_one, fake) = alone();
    let (mut near, mut far, mut third) =
        (FakeNode::new("near"), FakeNode::new("far"), FakeNode::new("third"));
    let (sound, _, region) = connect(&mut third, &mut far);
    let (link, there) = link_up(&mut near, &mut far);
    let back = far.port.import(there, &near.region.token).expect("a region");
    fake.fail_bind();
    let refused = near.port.import(link, &far.region.token);
    assert!(matches!(refused, Err(FabricError::Limit(_))), "{refused:?}");
    let words = until("trouble", [&mut far, &mut near], |far, _| far.port.trouble(there));
    assert!(words.contains("IBV_WC_MW_BIND_ERR"), "{words}");
    far.write(4, there, back);
    assert_eq!(completion([&mut far, &mut near]).status, CompletionStatus::Broken);
    works(&mut third, &mut far, sound, region);
}

#[test]
fn doorbells_and_requests_are_as_many_as_without() {
    let (_one, fake) = alone();
    let mut counts = Vec::new();
    for windows in [true, false] {
        let open = |name| if windows { FakeNode::new(name) } else { shared_keys(name) };
        let (mut near, mut far) = (open("near"), open("far"));
        let (link, _, region) = connect(&mut near, &mut far);
        let before = fake.posted();
        for id in 0..50 {
            works(&mut near, &mut far, link, region);
            let at = farside_base::RemoteSlice { region, offset: 0 };
            let into = LocalSlice { region: near.region.id, offset: 0, bytes: 8 };
            near.post(id, link, Operation::FetchAdd { at, add: 1, into });
            let slices = [into];
            near.post(id, link, Operation::Read { into: &slices, from: at });
            let source = Source::Inline(b"inline");
            near.post(id, link, Operation::Write { source, to: at, immediate: None });
            for _ in 0..3 {
                assert_eq!(completion([&mut near, &mut far]).status, CompletionStatus::Success);
            }
        }
        let after = fake.posted();
        counts.push((after.0 - before.0, after.1 - before.1));
    }
    assert_eq!(counts[0], counts[1]);
    assert_eq!(counts[0], (200, 200));
}
