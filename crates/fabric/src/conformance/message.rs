//! SEND, receives and immediates.

use super::Subject;
use super::scene::{
    LENGTHS, QUEUE_DEPTH, Scene, Wire, pattern, register, send, silent, slice, succeeded, work,
};
use crate::Stop;
use farside_base::{
    Access, BackPressure, CompletionKind, CompletionStatus, Operation, Receive, Source, WorkId,
};

/// The offsets from which the cases send and to which they receive.
const FROM: u64 = 512;
const INTO: u64 = 8 * 1024;

/// Also requires the order of messages, without which few cases could check anything.
fn message_pair(subject: &dyn Subject) -> Option<(Scene<'_>, Wire)> {
    let (scene, wire) = Scene::pair(subject);
    let suits = scene.capabilities.send && scene.capabilities.message_order;
    suits.then_some((scene, wire))
}

pub(super) fn send_delivers_every_length(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    let most = scene.capabilities.send_bytes_max as usize;
    for bytes in LENGTHS.into_iter().filter(|bytes| *bytes <= most) {
        let data = pattern(bytes as u64, bytes);
        scene.nodes[0].put(FROM, &data);
        scene.nodes[1].put(INTO, &[0xee; 8192]);
        scene.receive(1, 77, INTO, 8000);
        let slices = [scene.nodes[0].slice(FROM, bytes)];
        succeeded(&scene.perform(&wire, send(&slices)), CompletionKind::Send, bytes);
        let received = scene.completion(1);
        succeeded(&received, CompletionKind::Receive, bytes);
        assert_eq!((received.id, received.link), (WorkId(77), wire.there));
        assert_eq!(received.immediate, None);
        assert_eq!(scene.nodes[1].bytes_at(INTO, bytes), data);
        assert!(scene.nodes[1].bytes_at(INTO + bytes as u64, 64).iter().all(|b| *b == 0xee));
    }
}

pub(super) fn immediate_arrives_and_takes_one_receive(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    if !scene.capabilities.immediate || !scene.capabilities.write {
        return;
    }
    for immediate in [0, 1, u32::MAX] {
        scene.receive(1, 1, INTO, 64);
        scene.receive(1, 2, INTO + 64, 64);
        scene.nodes[1].put(INTO, &[0xee; 64]);
        let data = pattern(u64::from(immediate), 20);
        scene.nodes[0].put(FROM, &data);
        let slices = [scene.nodes[0].slice(FROM, 20)];
        let write = Operation::Write {
            source: Source::Gather(&slices),
            to: wire.at(100),
            immediate: Some(immediate),
        };
        succeeded(&scene.perform(&wire, write), CompletionKind::Write, 20);
        let received = scene.completion(1);
        succeeded(&received, CompletionKind::ReceiveImmediate, 20);
        assert_eq!((received.id, received.immediate), (WorkId(1), Some(immediate)));
        assert_eq!(scene.nodes[1].bytes_at(100, 20), data, "placed when it is announced");
        assert_eq!(scene.nodes[1].bytes_at(INTO, 64), [0xee; 64], "the receive is untouched");
        let message =
            Operation::Send { source: Source::Gather(&slices), immediate: Some(!immediate) };
        succeeded(&scene.perform(&wire, message), CompletionKind::Send, 20);
        let received = scene.completion(1);
        succeeded(&received, CompletionKind::Receive, 20);
        assert_eq!((received.id, received.immediate), (WorkId(2), Some(!immediate)));
    }
}

pub(super) fn message_longer_than_its_receive_fails_alone(subject: &dyn Subject) {
    let Some((mut scene, other)) = message_pair(subject) else {
        return;
    };
    if !scene.capabilities.shared_receive_queue {
        return;
    }
    let wire = scene.wire(0, 1);
    scene.nodes[1].put(INTO, &[0xee; 64]);
    scene.receive(1, 5, INTO, 16);
    let slices = [scene.nodes[0].slice(FROM, 17)];
    let done = scene.perform(&wire, send(&slices));
    // A fabric that holds messages at the receiver completes the SEND before it takes a receive.
    let held = done.status == CompletionStatus::Success;
    let refused = done.status == CompletionStatus::LengthExceeded;
    assert!(held || refused, "{done:?}");
    let received = scene.completion(1);
    assert_eq!(received.id, WorkId(5), "the receive comes back");
    assert_eq!(received.status, CompletionStatus::LengthExceeded, "{received:?}");
    assert_eq!(scene.nodes[1].bytes_at(INTO + 16, 48), [0xee; 48], "nothing past the receive");
    scene.receive(1, 6, INTO, 64);
    let status = scene.until("the sender to learn that its link has failed", |scene| {
        let done = scene.perform(&wire, send(&slices));
        let late = held && done.status == CompletionStatus::Success;
        (!late).then_some(done.status)
    });
    let first = if held { CompletionStatus::PeerLost } else { CompletionStatus::Flushed };
    assert_eq!(status, first);
    let done = scene.perform(&wire, send(&slices));
    assert_eq!(done.status, CompletionStatus::Flushed, "{done:?}");
    succeeded(&scene.perform(&other, send(&slices)), CompletionKind::Send, 17);
    assert_eq!(scene.completion(1).id, WorkId(6), "the other link uses the next receive");
}

pub(super) fn missing_receive_holds_messages_back_and_loses_none(subject: &dyn Subject) {
    const MESSAGES: u64 = 40;
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    if scene.capabilities.receiver_not_ready == BackPressure::EndsLink {
        return;
    }
    let mut sent = 0;
    let mut received = 0;
    let mut posted = 0;
    let at_post = scene.capabilities.receiver_not_ready == BackPressure::AtPost;
    // Without order, one at a time.
    let ordered = scene.capabilities.message_order;
    let most = if ordered { 8 } else { 1 };
    let most = most.min(u64::from(scene.capabilities.outstanding_max));
    scene.until("all messages to arrive", |scene| {
        while sent < MESSAGES && (at_post && ordered || sent < received + most) {
            let data = sent.to_ne_bytes();
            scene.nodes[0].put(FROM + 8 * sent, &data);
            let slices = [scene.nodes[0].slice(FROM + 8 * sent, 8)];
            let request = work(sent, wire.here, send(&slices));
            match scene.try_post(0, &[request]) {
                (1, None) => sent += 1,
                (0, Some(Stop::ReceiverNotReady)) if at_post => {
                    assert_eq!(sent, posted, "back-pressure only where no receive is posted");
                    break;
                }
                other => panic!("message {sent}: {other:?}"),
            }
        }
        while let Some(done) = scene.nodes[1].completions.pop_front() {
            succeeded(&done, CompletionKind::Receive, 8);
            let got = scene.nodes[1].bytes_at(INTO + 8 * received, 8);
            assert_eq!(got, received.to_ne_bytes(), "each once, in order");
            received += 1;
        }
        if posted < MESSAGES && posted == received {
            for _ in 0..1 + posted % 3 {
                scene.receive(1, posted, INTO + 8 * posted, 8);
                posted += 1;
            }
        }
        (received == MESSAGES).then_some(())
    });
    for (at, done) in scene.completions(0, MESSAGES as usize).iter().enumerate() {
        assert_eq!(done.id, WorkId(at as u64));
        succeeded(done, CompletionKind::Send, 8);
    }
}

pub(super) fn longest_message_arrives(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    let most = scene.capabilities.send_bytes_max.min(1 << 24) as usize;
    let from = register(&*scene.nodes[0].fabric, most as u64, Access::NONE);
    let into = register(&*scene.nodes[1].fabric, most as u64, Access::NONE);
    let data = pattern(5, most);
    from.arena.write(0, &data).expect("fits");
    let receive =
        Receive { id: WorkId(3), queue: scene.nodes[1].queue, into: slice(&into, 0, most) };
    assert_eq!(scene.nodes[1].port().post_receives(&[receive]).accepted, 1);
    let slices = [slice(&from, 0, most)];
    succeeded(&scene.perform(&wire, send(&slices)), CompletionKind::Send, most);
    succeeded(&scene.completion(1), CompletionKind::Receive, most);
    let mut back = vec![0; most];
    into.arena.read(0, &mut back).expect("fits");
    assert!(back == data, "all bytes of the longest message");
}

pub(super) fn inline_and_gathered_messages_arrive_whole(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    let inline = scene.capabilities.inline_bytes_max as usize;
    for bytes in [0, 1, 8, 13, inline].into_iter().filter(|bytes| *bytes <= inline) {
        let data = pattern(bytes as u64, bytes);
        scene.receive(1, 1, INTO, inline);
        let source = Source::Inline(&data);
        let immediate = None;
        let done = scene.perform(&wire, Operation::Send { source, immediate });
        succeeded(&done, CompletionKind::Send, bytes);
        succeeded(&scene.completion(1), CompletionKind::Receive, bytes);
        assert_eq!(scene.nodes[1].bytes_at(INTO, bytes), data);
    }
    let data = pattern(1, 100);
    scene.nodes[0].put(FROM, &data);
    let cuts = [(70, 30), (0, 0), (0, 69), (69, 1)];
    let slices = cuts.map(|(at, bytes)| scene.nodes[0].slice(FROM + at, bytes));
    let slices = &slices[..cuts.len().min(scene.capabilities.slices_max as usize)];
    let joined: Vec<u8> = slices
        .iter()
        .flat_map(|slice| scene.nodes[0].bytes_at(slice.offset, slice.bytes as usize))
        .collect();
    scene.receive(1, 1, INTO, 100);
    succeeded(&scene.perform(&wire, send(slices)), CompletionKind::Send, joined.len());
    succeeded(&scene.completion(1), CompletionKind::Receive, joined.len());
    assert_eq!(scene.nodes[1].bytes_at(INTO, joined.len()), joined);
}

pub(super) fn messages_and_receives_are_taken_in_order(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    let count = QUEUE_DEPTH as u64;
    if !scene.capabilities.message_order {
        return;
    }
    for round in 0..5 {
        for at in 0..count {
            scene.nodes[0].put(FROM + 8 * at, &(round * 100 + at).to_ne_bytes());
            scene.receive(1, at, INTO + 8 * (count - at), 8);
        }
        let slices: Vec<_> =
            (0..count).map(|at| [scene.nodes[0].slice(FROM + 8 * at, 8)]).collect();
        let request = |at: u64| silent(at, wire.here, send(&slices[at as usize]));
        let list: Vec<_> = (0..count).map(request).collect();
        scene.post(0, &list);
        for at in 0..count {
            let received = scene.completion(1);
            assert_eq!((received.id, received.link), (WorkId(at), wire.there));
            let word = scene.nodes[1].bytes_at(INTO + 8 * (count - at), 8);
            assert_eq!(word, (round * 100 + at).to_ne_bytes());
        }
    }
    scene.quiet(0);
}

pub(super) fn receive_queue_holds_its_depth_and_no_more(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    let receive = |id| Receive {
        id: WorkId(id),
        queue: scene.nodes[1].queue,
        into: scene.nodes[1].slice(INTO, 8),
    };
    let list: Vec<_> = (0..QUEUE_DEPTH as u64 * 8).map(receive).collect();
    let posted = scene.nodes[1].port().post_receives(&list);
    assert_eq!(posted.stop, Some(Stop::QueueFull), "no queue is unbounded");
    assert!(posted.accepted >= QUEUE_DEPTH, "{posted:?}");
    let slices = [scene.nodes[0].slice(FROM, 8)];
    for id in 0..3 {
        succeeded(&scene.perform(&wire, send(&slices)), CompletionKind::Send, 8);
        assert_eq!(scene.completion(1).id, WorkId(id));
    }
    let more = &list[posted.accepted..posted.accepted + 3];
    let again = scene.nodes[1].port().post_receives(more);
    assert_eq!((again.accepted, again.stop), (3, None), "room again for what was taken");
    for id in 3..posted.accepted as u64 + 3 {
        succeeded(&scene.perform(&wire, send(&slices)), CompletionKind::Send, 8);
        assert_eq!(scene.completion(1).id, WorkId(id));
    }
}

pub(super) fn shared_receive_queue_serves_all_its_links(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    if !shares(&scene) {
        return;
    }
    let wires = [scene.wire(0, 2), scene.wire(1, 2), scene.wire(0, 2)];
    for round in 0..20_u64 {
        for id in 0..9 {
            scene.receive(2, id, INTO + 16 * id, 16);
        }
        for at in 0..9 {
            let wire = wires[(at as usize + round as usize * 2) % 3];
            let message = [u64::from(wire.there.0), at].map(u64::to_ne_bytes).concat();
            scene.nodes[wire.from].put(FROM, &message);
            let slices = [scene.nodes[wire.from].slice(FROM, 16)];
            succeeded(&scene.perform(&wire, send(&slices)), CompletionKind::Send, 16);
        }
        let mut last = std::collections::HashMap::new();
        for _ in 0..9 {
            let received = scene.completion(2);
            succeeded(&received, CompletionKind::Receive, 16);
            let message = scene.nodes[2].bytes_at(INTO + 16 * received.id.0, 16);
            assert_eq!(message[..8], u64::from(received.link.0).to_ne_bytes(), "{received:?}");
            let before = last.insert(received.link, message[8]);
            assert!(before < Some(message[8]), "messages of one link in order");
        }
        assert_eq!(last.len(), 3);
    }
    scene.quiet(2);
}

pub(super) fn separate_receive_queues_stay_separate(subject: &dyn Subject) {
    let Some((mut scene, first)) = message_pair(subject) else {
        return;
    };
    let separate = scene.nodes[1].port().create_receive_queue(4).expect("a second queue");
    let address = scene.nodes[1].address.clone();
    let queue = scene.queue_for_link(0);
    let here = scene.nodes[0].port().connect(&address, &[], queue).expect("a listener");
    let (there, _) = scene.requested(1);
    scene.nodes[1].port().accept(there, &[], separate).expect("to be accepted");
    scene.connected(0, here);
    let slices = [scene.nodes[0].slice(FROM, 8)];
    for round in 0..10 {
        scene.receive(1, 100 + round, INTO, 8);
        scene.receive_in(1, separate, 200 + round, INTO + 8, 8);
        for (link, id) in [(here, 200 + round), (first.here, 100 + round)] {
            scene.post(0, &[silent(1, link, send(&slices))]);
            assert_eq!(scene.completion(1).id, WorkId(id));
        }
    }
    assert_eq!(scene.nodes[1].completions, []);
}

/// Returns whether ordered messages of several links can share one queue.
fn shares(scene: &Scene<'_>) -> bool {
    let has = &scene.capabilities;
    has.send && has.message_order && has.shared_receive_queue
}

/// Sends that many messages, each with its number some times over, waiting for each.
fn send_numbered(side: &mut Scene<'_>, wire: &Wire, messages: u64) {
    for number in 0..messages {
        let data = number.to_ne_bytes().repeat(1 + number as usize % 8);
        let place = FROM + 64 * (number % 64);
        side.nodes[0].put(place, &data);
        let slices = [side.nodes[0].slice(place, data.len())];
        side.post(0, &[work(number, wire.here, send(&slices))]);
        let done = side.completion(0);
        assert_eq!(done.id, WorkId(number));
        succeeded(&done, CompletionKind::Send, data.len());
    }
}

pub(super) fn senders_on_threads_share_one_receive_queue(subject: &dyn Subject) {
    const MESSAGES: u64 = 1500;
    /// Receives posted at a time, so that the queue runs empty repeatedly.
    const RECEIVES: u64 = 12;
    let mut scene = Scene::new(subject, 3);
    if !shares(&scene) {
        return;
    }
    let wires = [scene.wire(0, 2), scene.wire(1, 2)];
    let mut sides = scene.split();
    let mut receiver = sides.pop().expect("three nodes");
    // It outlives the scope: a sender that waits for its last completion must not lose its peer.
    let receiver = &mut receiver;
    std::thread::scope(move |threads| {
        for (mut side, wire) in sides.into_iter().zip(wires) {
            threads.spawn(move || send_numbered(&mut side, &wire, MESSAGES));
        }
        for place in 0..RECEIVES {
            receiver.receive(0, place, INTO + 64 * place, 64);
        }
        let mut next = [0; 2];
        for _ in 0..2 * MESSAGES {
            let received = receiver.completion(0);
            let which = usize::from(received.link != wires[0].there);
            let expected = next[which];
            let data = u64::to_ne_bytes(expected).repeat(1 + expected as usize % 8);
            succeeded(&received, CompletionKind::Receive, data.len());
            let place = INTO + 64 * received.id.0;
            let got = receiver.nodes[0].bytes_at(place, data.len());
            assert_eq!(got, data, "message {expected} of sender {which}");
            next[which] += 1;
            receiver.receive(0, received.id.0, place, 64);
        }
        assert_eq!(next, [MESSAGES; 2]);
    });
}

pub(super) fn unpolled_receives_do_not_pile_up_without_end(subject: &dyn Subject) {
    let Some((mut scene, wire)) = message_pair(subject) else {
        return;
    };
    scene.nodes[1].passive = true;
    let slices = [scene.nodes[0].slice(FROM, 8)];
    let most = 64 * QUEUE_DEPTH as u64 + (1 << 17);
    let (mut posted, mut sent) = (0, 0);
    // Receives are posted and messages sent as long as either side takes them.
    loop {
        assert!(posted < most, "{posted} receives taken, none polled, and no end");
        let receive = Receive {
            id: WorkId(posted),
            queue: scene.nodes[1].queue,
            into: scene.nodes[1].slice(INTO, 8),
        };
        let more = scene.nodes[1].port().post_receives(&[receive]).accepted as u64;
        posted += more;
        let answer = scene.nodes[0].port().post(&[silent(sent, wire.here, send(&slices))]);
        sent += answer.accepted as u64;
        scene.nodes[0].poll();
        subject.settle();
        if more == 0 && answer.accepted == 0 {
            break;
        }
    }
    scene.nodes[1].passive = false;
    for id in 0..sent.min(posted) {
        let received = scene.completion(1);
        succeeded(&received, CompletionKind::Receive, 8);
        assert_eq!(received.id, WorkId(id), "each once, in order");
    }
    scene.quiet(1);
}
