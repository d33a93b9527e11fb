//! Links from connect to close, and peers that end.

use super::Subject;
use super::scene::{
    QUEUE_DEPTH, Scene, TestNode, Wire, send, silent, succeeded, together, work, write,
};
use crate::{FabricError, HELLO_BYTES_MAX, LinkEvent, Loss, NotReached, PortSpec, Stop};
use farside_base::{
    BackPressure, Completion, CompletionKind, CompletionStatus, LinkId, Operation, ReceiveQueueId,
    WorkId,
};

/// Any request that the fabric can do on this wire.
fn request<'a>(
    scene: &Scene<'_>,
    wire: &Wire,
    slices: &'a [farside_base::LocalSlice],
) -> Operation<'a> {
    if scene.capabilities.write { write(slices, wire.at(0)) } else { send(slices) }
}

/// Asserts that requests on a link whose peer is gone complete as specified.
#[track_caller]
fn is_dead(scene: &mut Scene<'_>, wire: &Wire) {
    let slices = [scene.nodes[wire.from].slice(0, 8)];
    let operation = request(scene, wire, &slices);
    let list = [
        silent(1, wire.here, operation),
        work(2, wire.here, operation),
        silent(3, wire.here, operation),
    ];
    scene.post(wire.from, &list);
    let done = scene.completions(wire.from, 3);
    assert!(done.iter().map(|done| done.id).eq([1, 2, 3].map(WorkId)));
    let first = done[0].status;
    let known = [CompletionStatus::PeerLost, CompletionStatus::Flushed];
    assert!(known.contains(&first), "{first:?}");
    assert!(done[1..].iter().all(|done| done.status == CompletionStatus::Flushed), "{done:?}");
}

fn connect(scene: &mut Scene<'_>, from: usize, to: usize, hello: &[u8]) -> LinkId {
    let address = scene.nodes[to].address.clone();
    let queue = scene.queue_for_link(from);
    let link = scene.nodes[from].port().connect(&address, hello, queue);
    link.expect("a listener to be found")
}

pub(super) fn hello_and_reply_arrive_whole(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    for bytes in [0, 1, 24, 255, 256, HELLO_BYTES_MAX] {
        let hello = super::scene::pattern(bytes as u64, bytes);
        let reply = super::scene::pattern(!(bytes as u64), bytes);
        let here = connect(&mut scene, 0, 1, &hello);
        let (there, got) = scene.requested(1);
        assert_eq!(got, hello);
        let queue = scene.queue_for_link(1);
        scene.nodes[1].port().accept(there, &reply, queue).expect("to be accepted");
        assert_eq!(scene.connected(0, here), reply);
        scene.nodes[0].port().close(here);
        scene.lost(1, there);
        scene.nodes[1].port().close(there);
    }
    let (long, queue) = (vec![0; HELLO_BYTES_MAX + 1], scene.queue_for_link(0));
    let address = scene.nodes[1].address.clone();
    let refused = scene.nodes[0].port().connect(&address, &long, queue);
    assert!(matches!(refused, Err(FabricError::Limit("hello"))), "{refused:?}");
    scene.quiet(0);
    scene.quiet(1);
}

pub(super) fn refusal_brings_its_reason(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    for reason in [&b""[..], b"no room"] {
        let here = connect(&mut scene, 0, 1, b"please");
        let (there, _) = scene.requested(1);
        scene.nodes[1].port().refuse(there, reason).expect("to be refused");
        match scene.event(0) {
            LinkEvent::Refused { link, reason: got } => {
                assert_eq!((link, &got[..]), (here, reason));
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
        let again = scene.nodes[1].port().refuse(there, reason);
        assert!(matches!(again, Err(FabricError::Unknown(_))), "{again:?}");
    }
    let wire = scene.wire(0, 1);
    scene.works(&wire);
}

pub(super) fn link_is_unusable_until_accepted(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let here = connect(&mut scene, 0, 1, b"");
    let (there, _) = scene.requested(1);
    for (node, link) in [(0, here), (1, there)] {
        let slices = [scene.nodes[node].slice(0, 8)];
        let (accepted, stop) = scene.try_post(node, &[work(1, link, send(&slices))]);
        assert_eq!((accepted, stop), (0, Some(Stop::Invalid("link"))));
        let token = scene.nodes[1 - node].region.token;
        let imported = scene.nodes[node].port().import(link, &token);
        assert!(matches!(imported, Err(FabricError::Unknown(_))), "{imported:?}");
    }
    let queue = scene.queue_for_link(1);
    scene.nodes[1].port().accept(there, b"", queue).expect("to be accepted");
    scene.connected(0, here);
    let again = scene.nodes[1].port().accept(there, b"", queue);
    assert!(matches!(again, Err(FabricError::Unknown(_))), "{again:?}");
}

pub(super) fn unknown_links_and_queues_are_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let (unknown, nothing) = (LinkId(u32::MAX), ReceiveQueueId(u32::MAX));
    let address = scene.nodes[1].address.clone();
    let queue = scene.nodes[0].queue;
    let token = scene.nodes[1].region.token;
    let port = scene.nodes[0].port();
    assert!(matches!(port.accept(unknown, b"", queue), Err(FabricError::Unknown(_))));
    assert!(matches!(port.accept(wire.here, b"", queue), Err(FabricError::Unknown(_))));
    assert!(matches!(port.refuse(unknown, b""), Err(FabricError::Unknown(_))));
    assert!(matches!(port.import(unknown, &token), Err(FabricError::Unknown(_))));
    assert!(matches!(port.connect(&address, b"", nothing), Err(FabricError::Unknown(_))));
    port.close(unknown);
    assert!(!port.path(wire.here).is_empty(), "a link has a path to speak of");
    let _ = port.path(unknown);
    scene.works(&wire);
}

pub(super) fn connect_without_listener_is_not_reached(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 1);
    let queue = scene.nodes[0].queue;
    let nowhere = subject.address();
    for address in [nowhere.as_str(), "", "no such name"] {
        match scene.nodes[0].port().connect(address, b"", queue) {
            Err(FabricError::NoListener(named)) => assert_eq!(named, address),
            Err(FabricError::Unknown("address")) => assert_ne!(address, nowhere),
            Err(other) => panic!("{address:?}: {other}"),
            Ok(link) => match scene.event(0) {
                LinkEvent::NotReached { link: which, why } => {
                    assert_eq!((which, why), (link, NotReached::NoListener));
                    let slices = [scene.nodes[0].slice(0, 8)];
                    let (accepted, _) = scene.try_post(0, &[work(1, link, send(&slices))]);
                    assert_eq!(accepted, 1, "as on any link that is gone");
                    let done = scene.completion(0);
                    assert_eq!(done.status, CompletionStatus::Flushed, "{done:?}");
                }
                other => panic!("connected without a listener: {other:?}"),
            },
        }
    }
}

pub(super) fn a_port_tells_where_it_is_reached(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let address = scene.nodes[1].port().address().expect("a listener has an address");
    let queue = scene.queue_for_link(0);
    let here = scene.nodes[0].port().connect(&address, b"by address", queue).expect("a listener");
    let (there, hello) = scene.requested(1);
    assert_eq!(hello, b"by address");
    scene.nodes[1].port().refuse(there, b"enough").expect("to be refused");
    assert_eq!(scene.event(0), LinkEvent::Refused { link: here, reason: b"enough".to_vec() });
    let nameless = scene.nodes[0].fabric.open(&PortSpec::default()).expect("a port");
    assert_eq!(nameless.address(), None);
}

pub(super) fn receive_queues_end_and_come_again(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let in_use = scene.nodes[1].port().destroy_receive_queue(wire.queues[1]);
    assert!(matches!(in_use, Err(FabricError::Limit("receive queue in use"))), "{in_use:?}");
    scene.works(&wire);
    scene.nodes[1].port().close(wire.there);
    scene.lost(0, wire.here);
    let unused = ReceiveQueueId(u32::MAX);
    let unknown = scene.nodes[1].port().destroy_receive_queue(unused);
    assert!(matches!(unknown, Err(FabricError::Unknown(_))), "{unknown:?}");
    // More often than a port has room for at a time, with receives that no message takes.
    for round in 0..5000 {
        let queue = scene.nodes[1].port().create_receive_queue(4).expect("a receive queue");
        if round % 100 == 0 {
            scene.receive_in(1, queue, 7, 0, 8);
        }
        scene.nodes[1].port().destroy_receive_queue(queue).expect("a queue without links");
        let again = scene.nodes[1].port().destroy_receive_queue(queue);
        assert!(matches!(again, Err(FabricError::Unknown(_))), "{again:?}");
    }
    let fresh = scene.nodes[1].port().create_receive_queue(QUEUE_DEPTH).expect("a receive queue");
    let gone = scene.nodes[1].queue;
    scene.nodes[1].port().destroy_receive_queue(gone).expect("its link was closed");
    scene.nodes[1].queue = fresh;
    let wire = scene.wire(0, 1);
    scene.works(&wire);
    scene.quiet(1);
}

pub(super) fn address_in_use_is_said_and_is_free_after_its_port(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let address = scene.nodes[0].address.clone();
    let spec = PortSpec { listen: Some(address.clone()) };
    let others = if subject.names_are_shared() { 2 } else { 1 };
    for fabric in (0..others).map(|node| std::sync::Arc::clone(&scene.nodes[node].fabric)) {
        match fabric.open(&spec) {
            Err(FabricError::AddressInUse(named)) => assert_eq!(named, address),
            Err(other) => panic!("expected the address to be in use: {other}"),
            Ok(_) => panic!("two ports listen at one address"),
        }
    }
    scene.nodes[0].port = None;
    let port = scene.nodes[others - 1].fabric.open(&spec);
    drop(port.expect("the address to be free again"));
    let nameless = scene.nodes[1].fabric.open(&PortSpec::default());
    nameless.expect("a port that only connects");
}

/// Revoking the memory of a dropped port must not hide that the peer has ended.
pub(super) fn requests_to_a_dropped_port_lose_the_peer(subject: &dyn Subject) {
    for _ in 0..3 {
        let mut scene = Scene::new(subject, 2);
        if !scene.capabilities.write {
            return;
        }
        let wire = scene.wire(0, 1);
        scene.works(&wire);
        scene.nodes[1].port = None;
        let far = &scene.nodes[1];
        far.fabric.deregister(far.region.id).expect("a region to be ended");
        is_dead(&mut scene, &wire);
    }
}

pub(super) fn close_is_seen_by_the_peer_and_flushes_here(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let (first, second) = (scene.wire(0, 1), scene.wire(0, 1));
    scene.works(&first);
    for _ in 0..3 {
        scene.nodes[0].port().close(first.here);
    }
    scene.lost(1, first.there);
    let slices = [scene.nodes[0].slice(0, 8)];
    let operation = request(&scene, &first, &slices);
    let list = [silent(1, first.here, operation), work(2, first.here, operation)];
    scene.post(0, &list);
    let flushed = |done: &Completion| done.status == CompletionStatus::Flushed;
    assert!(scene.completions(0, 2).iter().all(flushed));
    is_dead(&mut scene, &first.reversed());
    scene.works(&second);
    scene.nodes[1].port().close(first.there);
    scene.quiet(0);
    scene.quiet(1);
}

pub(super) fn reconnect_after_close_gives_new_links(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let mut seen = std::collections::HashSet::new();
    for round in 0..20 {
        let wire = scene.wire(0, 1);
        assert!(seen.insert((0, wire.here)) && seen.insert((1, wire.there)), "a number twice");
        scene.works(&wire);
        let (closer, other) =
            if round % 2 == 0 { (wire, wire.reversed()) } else { (wire.reversed(), wire) };
        scene.nodes[closer.from].port().close(closer.here);
        scene.lost(other.from, other.here);
        scene.nodes[other.from].port().close(other.here);
    }
    scene.quiet(0);
    scene.quiet(1);
}

pub(super) fn lost_peer_fails_its_links_and_no_other(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    let (dying, back, living) = (scene.wire(0, 1), scene.wire(1, 0), scene.wire(0, 2));
    scene.works(&dying);
    scene.nodes[1].port = None;
    let mut lost: Vec<_> = (0..2).map(|_| scene.event(0)).collect();
    lost.sort_by_key(|event| format!("{event:?}"));
    let mut expected =
        [dying.here, back.there].map(|link| LinkEvent::Lost { link, loss: Loss::Ended });
    expected.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(lost, expected);
    is_dead(&mut scene, &dying);
    is_dead(&mut scene, &back.reversed());
    scene.works(&living);
    let token = scene.nodes[1].region.token;
    let imported = scene.nodes[0].port().import(dying.here, &token);
    assert!(imported.is_err(), "nothing can be imported over a lost link");
    scene.nodes[0].port().close(dying.here);
    scene.nodes[0].port().close(back.there);
    scene.works(&living);
    scene.quiet(0);
    scene.quiet(2);
}

pub(super) fn messages_before_a_loss_come_before_it(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    if !scene.capabilities.send {
        return;
    }
    for drops in [false, true] {
        let wire = scene.wire(0, 1);
        for id in 0..8 {
            scene.receive_in(1, wire.queues[1], id, 8 * id, 8);
        }
        let slices = [scene.nodes[0].slice(0, 8)];
        let request = |id| work(id, wire.here, send(&slices));
        let list: Vec<_> = (0..8).map(request).collect();
        scene.nodes[1].passive = true;
        scene.post(0, &list);
        // A completed SEND has arrived, whichever end closes afterwards.
        for done in scene.completions(0, 8) {
            succeeded(&done, CompletionKind::Send, 8);
        }
        if drops {
            scene.nodes[0].port = None;
        } else {
            scene.nodes[0].port().close(wire.here);
        }
        let mut received = 0;
        scene.until("the loss", |scene| {
            let mut events = Vec::new();
            scene.nodes[1].port().link_events(&mut events);
            scene.nodes[1].events.extend(events);
            if scene.nodes[1].events.pop_front().is_some() {
                return Some(());
            }
            let mut out = [Completion::BLANK; 3];
            let count = scene.nodes[1].port().poll(&mut out);
            scene.nodes[1].completions.extend(&out[..count]);
            received += scene.nodes[1].completions.drain(..).count();
            None
        });
        assert_eq!(received, 8, "messages that arrived are delivered before `Lost`");
        scene.nodes[1].passive = false;
        scene.quiet(1);
    }
}

pub(super) fn receives_survive_the_loss_of_a_link(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    if !scene.capabilities.send || !scene.capabilities.shared_receive_queue {
        return;
    }
    let (dying, living) = (scene.wire(0, 1), scene.wire(2, 1));
    for id in 0..4 {
        scene.receive(1, id, 64 * id, 64);
    }
    scene.nodes[0].port = None;
    scene.lost(1, dying.there);
    scene.nodes[1].port().close(dying.there);
    let slices = [scene.nodes[2].slice(0, 8)];
    for id in 0..4 {
        succeeded(&scene.perform(&living, send(&slices)), CompletionKind::Send, 8);
        let received = scene.completion(1);
        succeeded(&received, CompletionKind::Receive, 8);
        assert_eq!((received.id, received.link), (WorkId(id), living.there));
    }
    scene.quiet(1);
}

pub(super) fn requester_that_left_is_no_link(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let here = connect(&mut scene, 0, 1, b"soon gone");
    let (there, _) = scene.requested(1);
    scene.nodes[0].port().close(here);
    let queue = scene.queue_for_link(1);
    // A fabric may learn of it before, with or after its answer; then the link is lost.
    match scene.nodes[1].port().accept(there, b"", queue) {
        Err(FabricError::PeerLost | FabricError::Unknown(_)) => {}
        Ok(()) => scene.lost(1, there),
        Err(other) => panic!("accepting a link that is gone: {other}"),
    }
    scene.nodes[1].port().close(there);
    scene.poll();
    scene.nodes[1].events.clear();
    let wire = scene.wire(0, 1);
    scene.works(&wire);
}

pub(super) fn listener_that_leaves_ends_requests(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let here = connect(&mut scene, 0, 1, b"");
    scene.requested(1);
    scene.nodes[1].port = None;
    match scene.event(0) {
        LinkEvent::Lost { link, .. } | LinkEvent::Refused { link, .. } => assert_eq!(link, here),
        other => panic!("the listener is gone, and yet {other:?}"),
    }
}

pub(super) fn crossing_connections_make_two_links(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let forth = connect(&mut scene, 0, 1, b"forth");
    let back = connect(&mut scene, 1, 0, b"back");
    let (at_1, _) = scene.requested(1);
    let (at_0, _) = scene.requested(0);
    for (node, link) in [(0, at_0), (1, at_1)] {
        let queue = scene.queue_for_link(node);
        scene.nodes[node].port().accept(link, b"", queue).expect("to be accepted");
    }
    scene.connected(0, forth);
    scene.connected(1, back);
    if scene.capabilities.send && scene.capabilities.shared_receive_queue {
        for (node, link, other, at) in [(0, forth, 1, at_1), (1, back, 0, at_0), (0, at_0, 1, back)]
        {
            scene.receive(other, 5, 0, 8);
            let slices = [scene.nodes[node].slice(0, 8)];
            scene.post(node, &[silent(1, link, send(&slices))]);
            assert_eq!(scene.completion(other).link, at);
        }
    }
}

pub(super) fn many_links_of_one_port_work(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    let links = scene.capabilities.links_max.min(48) as usize;
    assert!(QUEUE_DEPTH >= links, "a receive for each link");
    let wires: Vec<_> = (0..links / 2).flat_map(|_| [scene.wire(0, 1), scene.wire(2, 1)]).collect();
    for wire in &wires {
        scene.works(wire);
    }
    for wire in wires.iter().step_by(2) {
        scene.nodes[0].port().close(wire.here);
        scene.lost(1, wire.there);
    }
    for wire in wires.iter().skip(1).step_by(2) {
        scene.works(wire);
    }
}

pub(super) fn links_max_is_a_limit(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    let most = scene.capabilities.links_max;
    if most > 1024 {
        return;
    }
    let address = scene.nodes[1].address.clone();
    for _ in 0..most {
        let queue = scene.queue_for_link(0);
        let link = scene.nodes[0].port().connect(&address, b"", queue);
        if matches!(link, Err(FabricError::Limit("links_max"))) {
            // Both ends count; either may be the first to be full.
            return;
        }
        link.expect("a link within the limit");
        scene.poll();
    }
    let queue = scene.queue_for_link(0);
    let over = scene.nodes[0].port().connect(&address, b"", queue);
    assert!(matches!(over, Err(FabricError::Limit("links_max"))), "{over:?}");
}

pub(super) fn sender_learns_of_peer_death_amid_messages(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    // Sends without looking for receives.
    let ends = scene.capabilities.receiver_not_ready == BackPressure::EndsLink;
    if !scene.capabilities.send || ends {
        return;
    }
    for round in 0..10 {
        let wire = scene.wire(0, 1);
        let mut far =
            TestNode::new(std::sync::Arc::clone(&scene.nodes[1].fabric), subject.address());
        together(
            &mut scene,
            |near| send_until_failed(near, &wire),
            |far| {
                for id in 0..20 + round {
                    far.receive(0, id, 0, 8);
                    far.completion(0);
                }
                // Some receives are left and some messages are in flight.
                far.receive(0, 100, 0, 8);
                far.nodes[0].port = None;
            },
        );
        scene.lost(0, wire.here);
        scene.nodes[0].port().close(wire.here);
        std::mem::swap(&mut scene.nodes[1], &mut far);
    }
    let wire = scene.wire(0, 1);
    scene.works(&wire);
}

/// Sends until a request fails, which must be for the loss of the peer.
fn send_until_failed(side: &mut Scene<'_>, wire: &Wire) {
    let slices = [side.nodes[0].slice(0, 8)];
    let mut taken = 0;
    let failed = side.until("a request to fail", |side| {
        let (accepted, stop) = side.try_post(0, &[silent(taken, wire.here, send(&slices))]);
        assert!(matches!(stop, None | Some(Stop::ReceiverNotReady)), "{stop:?}");
        taken += accepted as u64;
        side.nodes[0].completions.pop_front()
    });
    let known = [CompletionStatus::PeerLost, CompletionStatus::Flushed];
    assert!(known.contains(&failed.status), "{failed:?}");
    for id in failed.id.0 + 1..taken {
        let done = side.completion(0);
        let expected = (WorkId(id), CompletionStatus::Flushed);
        assert_eq!((done.id, done.status), expected, "after {failed:?}");
    }
}
