//! Order, signals, lists and full queues.

use super::Subject;
use super::scene::{
    REGION_BYTES, Scene, Wire, pattern, send, silent, succeeded, together, work, write,
};
use crate::{RunNow, Stop};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, Operation, RemoteRegionId, RemoteSlice, Source,
    Work, WorkFlags, WorkId,
};
use std::sync::atomic::Ordering;

fn write_pair(subject: &dyn Subject) -> Option<(Scene<'_>, Wire)> {
    let (scene, wire) = Scene::pair(subject);
    scene.capabilities.write.then_some((scene, wire))
}

fn ids(completions: &[Completion]) -> Vec<u64> {
    completions.iter().map(|done| done.id.0).collect()
}

pub(super) fn completions_come_oldest_first_on_each_link(subject: &dyn Subject) {
    let Some((mut scene, first)) = write_pair(subject) else {
        return;
    };
    let second = scene.wire(0, 1);
    let lengths = [1, 4096, 8, 900, 64, 3000, 0, 16];
    let slices = lengths.map(|bytes| [scene.nodes[0].slice(4096, bytes)]);
    let into = lengths.map(|bytes| [scene.nodes[0].slice(16 * 1024, bytes)]);
    let mut list = Vec::new();
    for at in 0..60_usize {
        let wire = if at % 3 == 1 { &second } else { &first };
        let operation = if at % 4 == 2 && scene.capabilities.read {
            Operation::Read { into: &into[at % 8], from: wire.at(9) }
        } else {
            write(&slices[at % 8], wire.at(9))
        };
        list.push(work(at as u64, wire.here, operation));
    }
    scene.post(0, &list);
    let done = scene.completions(0, 60);
    for wire in [first, second] {
        let of_link: Vec<_> = done.iter().filter(|done| done.link == wire.here).copied().collect();
        let posted: Vec<_> = list.iter().filter(|work| work.link == wire.here).collect();
        assert_eq!(ids(&of_link), posted.iter().map(|work| work.id.0).collect::<Vec<_>>());
        assert!(of_link.iter().all(|done| done.status == CompletionStatus::Success));
    }
    scene.quiet(0);
}

pub(super) fn unsignalled_success_is_silent(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    let slices = [scene.nodes[0].slice(64, 32)];
    let operation = write(&slices, wire.at(64));
    for round in 0..10 {
        let mut list: Vec<_> = (0..5).map(|id| silent(id, wire.here, operation)).collect();
        list.push(work(100 + round, wire.here, operation));
        scene.post(0, &list);
        assert_eq!(scene.completion(0).id, WorkId(100 + round));
    }
    scene.post(0, &[silent(1, wire.here, operation)]);
    scene.quiet(0);
    scene.quiet(1);
}

pub(super) fn unsignalled_requests_never_fill_the_queue_for_good(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    let slices = [scene.nodes[0].slice(0, 8)];
    let list = vec![silent(1, wire.here, write(&slices, wire.at(8))); 100];
    let mut left = 3 * u64::from(scene.capabilities.outstanding_max.min(4096));
    while left > 0 {
        scene.post(0, &list);
        left = left.saturating_sub(100);
    }
    scene.works(&wire);
    scene.quiet(0);
}

pub(super) fn unsignalled_failure_is_reported(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    let slices = [scene.nodes[0].slice(0, 8)];
    let beyond = write(&slices, wire.at(REGION_BYTES * 2));
    let fine = write(&slices, wire.at(0));
    scene.post(0, &[silent(1, wire.here, beyond), silent(2, wire.here, fine)]);
    let done = scene.completions(0, 2);
    assert_eq!(ids(&done), [1, 2]);
    assert_eq!(done[0].status, CompletionStatus::RemoteAccess);
    assert_eq!(done[1].status, CompletionStatus::Flushed);
}

pub(super) fn post_list_takes_effect_in_order(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    if !scene.capabilities.message_order {
        return;
    }
    for round in 0..20_u64 {
        let lengths: Vec<usize> =
            (0..12).map(|at| 1 + (at * 97 + round as usize * 13) % 700).collect();
        let data: Vec<Vec<u8>> =
            lengths.iter().map(|bytes| pattern(round ^ *bytes as u64, *bytes)).collect();
        let mut expected = vec![0; 1024];
        let mut slices = Vec::new();
        for (at, bytes) in data.iter().enumerate() {
            scene.nodes[0].put(1024 * at as u64, bytes);
            slices.push([scene.nodes[0].slice(1024 * at as u64, bytes.len())]);
            expected[at..at + bytes.len()].copy_from_slice(bytes);
        }
        scene.nodes[1].put(0, &[0; 1024]);
        let mut list = Vec::new();
        for (at, slices) in slices.iter().enumerate() {
            list.push(work(at as u64, wire.here, write(slices, wire.at(at as u64))));
        }
        scene.post(0, &list);
        assert_eq!(ids(&scene.completions(0, 12)), (0..12).collect::<Vec<_>>());
        scene.memory_is(1, 0, &expected);
    }
}

pub(super) fn empty_lists_are_nothing(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    scene.post(0, &[]);
    let posted = scene.nodes[0].port().post_receives(&[]);
    assert_eq!((posted.accepted, posted.stop), (0, None));
    assert_eq!(scene.nodes[0].port().poll(&mut []), 0);
    scene.works(&wire);
}

pub(super) fn read_sees_an_earlier_write_of_its_link(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    if !scene.capabilities.read || !scene.capabilities.message_order {
        return;
    }
    for bytes in [1, 8, 64, 1000, 5000] {
        let data = pattern(bytes as u64, bytes);
        scene.nodes[0].put(0, &data);
        let slices = [scene.nodes[0].slice(0, bytes)];
        let into = [scene.nodes[0].slice(8192, bytes)];
        let read = Operation::Read { into: &into, from: wire.at(77) };
        let list = [silent(1, wire.here, write(&slices, wire.at(77))), work(2, wire.here, read)];
        scene.post(0, &list);
        assert_eq!(scene.completion(0).id, WorkId(2));
        assert_eq!(scene.nodes[0].bytes_at(8192, bytes), data);
    }
}

pub(super) fn fence_waits_for_earlier_reads(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    if !scene.capabilities.read {
        return;
    }
    for bytes in [8, 100, 4096] {
        let data = pattern(!(bytes as u64), bytes);
        scene.nodes[1].put(0, &data);
        let through = [scene.nodes[0].slice(100, bytes)];
        let read = Operation::Read { into: &through, from: wire.at(0) };
        let fenced = Work {
            flags: WorkFlags { signalled: true, fence: true, awaited: false },
            ..work(2, wire.here, write(&through, wire.at(20_000)))
        };
        scene.post(0, &[silent(1, wire.here, read), fenced]);
        assert_eq!(scene.completion(0).id, WorkId(2));
        scene.memory_is(1, 20_000, &data);
    }
}

pub(super) fn one_sided_requests_need_nothing_of_the_target(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    // From here on no thread calls the target's port.
    scene.nodes[1].passive = true;
    let capabilities = scene.capabilities;
    let local = [scene.nodes[0].slice(0, 256)];
    for round in 0..500_u64 {
        if capabilities.write {
            scene.nodes[0].put(0, &round.to_ne_bytes());
            let done = scene.perform(&wire, write(&local, wire.at(64)));
            succeeded(&done, CompletionKind::Write, 256);
        }
        if capabilities.read {
            let read = Operation::Read { into: &local, from: wire.at(64) };
            succeeded(&scene.perform(&wire, read), CompletionKind::Read, 256);
        }
        if capabilities.atomics > farside_base::AtomicScope::None {
            let add = Operation::FetchAdd {
                at: wire.at(512),
                add: 1,
                into: scene.nodes[0].slice(512, 8),
            };
            succeeded(&scene.perform(&wire, add), CompletionKind::Atomic, 8);
            assert_eq!(scene.nodes[0].bytes_at(512, 8), round.to_ne_bytes());
        }
    }
}

pub(super) fn request_within_its_call_has_its_effect_and_no_completion(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    let (before, bytes) = ([scene.nodes[0].slice(0, 64)], [scene.nodes[0].slice(64, 64)]);
    let mut last = Vec::new();
    for round in 0..20 {
        // After what was posted before, whose completions were not polled.
        let (posted, data) = (pattern(2 * round, 64), pattern(2 * round + 1, 64));
        scene.nodes[0].put(0, &posted);
        scene.nodes[0].put(64, &data);
        scene.post(0, &[work(1, wire.here, write(&before, wire.at(128)))]);
        let run = scene.nodes[0].port().run_now(&work(2, wire.here, write(&bytes, wire.at(128))));
        assert!(matches!(run, RunNow::NotRun | RunNow::Done(64)), "{run:?}");
        last = if run == RunNow::NotRun { posted } else { data };
        assert_eq!(scene.completion(0).id, WorkId(1));
        scene.memory_is(1, 128, &last);
    }
    let (into, word) = ([scene.nodes[0].slice(512, 64)], scene.nodes[0].slice(1024, 8));
    let read = Operation::Read { into: &into, from: wire.at(128) };
    if scene.nodes[0].port().run_now(&work(3, wire.here, read)) != RunNow::NotRun {
        assert_eq!(scene.nodes[0].bytes_at(512, 64), last);
    }
    // Neither messages nor what is wrong: without an effect.
    let far = [scene.nodes[0].slice(0, 64)];
    let beyond = wire.at(REGION_BYTES - 8);
    let message =
        Operation::Write { source: Source::Gather(&bytes), to: wire.at(128), immediate: Some(1) };
    let wrong = [
        send(&bytes),
        message,
        write(&far, beyond),
        Operation::Read { into: &far, from: beyond },
        Operation::FetchAdd { at: wire.at(132), add: 1, into: word },
        write(&bytes, RemoteSlice { region: RemoteRegionId(u32::MAX), offset: 0 }),
    ];
    for operation in wrong {
        let run = scene.nodes[0].port().run_now(&work(4, wire.here, operation));
        assert_eq!(run, RunNow::NotRun, "{operation:?}");
    }
    scene.memory_is(1, 128, &last);
    scene.quiet(0);
    scene.works(&wire);
    scene.nodes[0].port().close(wire.here);
    let run = scene.nodes[0].port().run_now(&work(5, wire.here, write(&bytes, wire.at(128))));
    assert_eq!(run, RunNow::NotRun, "a link that was closed");
}

pub(super) fn full_queue_refuses_and_recovers(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    let slices = [scene.nodes[0].slice(0, 8)];
    let least = u64::from(scene.capabilities.outstanding_max);
    // Without a poll the queue must fill eventually: no queue is unbounded.
    let most = 64 * least + (1 << 17);
    for _ in 0..2 {
        let mut posted = 0;
        let stop = loop {
            assert!(posted < most, "{posted} unpolled completions and no end");
            let request = work(posted, wire.here, write(&slices, wire.at(0)));
            let answer = scene.nodes[0].port().post(&[request]);
            match (answer.accepted, answer.stop) {
                (1, None) => posted += 1,
                (0, stop) => break stop,
                other => panic!("one request: {other:?}"),
            }
        };
        assert_eq!(stop, Some(Stop::QueueFull));
        let done = scene.completions(0, posted as usize);
        assert_eq!(ids(&done), (0..posted).collect::<Vec<_>>(), "each once, in order");
        scene.works(&wire);
    }
    scene.quiet(0);
}

pub(super) fn queue_takes_as_many_as_declared(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    let count = u64::from(scene.capabilities.outstanding_max.min(1 << 16));
    let slices = [scene.nodes[0].slice(0, 8)];
    let request = |id| work(id, wire.here, write(&slices, wire.at(0)));
    let list: Vec<_> = (0..count).map(request).collect();
    // Nothing is polled meanwhile, so a lasting `QueueFull` is an error.
    let (mut taken, mut tries) = (0, 0);
    while taken < list.len() {
        taken += scene.nodes[0].port().post(&list[taken..]).accepted;
        tries += 1;
        assert!(tries < 100 * list.len() + 100, "only {taken} of {count} without a poll");
        subject.settle();
    }
    let done = scene.completions(0, list.len());
    assert_eq!(ids(&done), (0..count).collect::<Vec<_>>());
}

/// The bytes of a WRITE, then the word with the number of the round.
const BLOCK: usize = 4096;
const FLAG: u64 = BLOCK as u64;

pub(super) fn write_is_visible_when_a_later_send_is_received(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    if !scene.capabilities.send || !scene.capabilities.message_order {
        return;
    }
    const ROUNDS: u64 = 300;
    scene.receive(1, 0, 50_000, 8);
    together(
        &mut scene,
        |near| {
            let block = [near.nodes[0].slice(0, BLOCK)];
            let word = [near.nodes[0].slice(FLAG, 8)];
            for round in 0..ROUNDS {
                near.receive(0, round, 60_000, 8);
                near.nodes[0].put(0, &[round as u8; BLOCK]);
                near.nodes[0].put(FLAG, &round.to_ne_bytes());
                let list = [
                    silent(1, wire.here, write(&block, wire.at(0))),
                    silent(2, wire.here, send(&word)),
                ];
                near.post(0, &list);
                succeeded(&near.completion(0), CompletionKind::Receive, 8);
            }
        },
        |far| {
            let word = [far.nodes[0].slice(FLAG + 8, 8)];
            for round in 0..ROUNDS {
                succeeded(&far.completion(0), CompletionKind::Receive, 8);
                let block = far.nodes[0].bytes_at(0, BLOCK);
                assert_eq!(block, [round as u8; BLOCK], "round {round}");
                far.receive(0, round, 50_000, 8);
                far.post(0, &[silent(1, wire.there, send(&word))]);
            }
        },
    );
}

pub(super) fn flag_written_after_data_is_seen_after_data(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    if !scene.capabilities.message_order {
        return;
    }
    const ROUNDS: u64 = 300;
    let answer = scene.nodes[1].region.clone();
    together(
        &mut scene,
        |near| {
            let block = [near.nodes[0].slice(0, BLOCK)];
            let word = [near.nodes[0].slice(FLAG, 8)];
            for round in 1..=ROUNDS {
                near.nodes[0].put(0, &[round as u8; BLOCK]);
                near.nodes[0].put(FLAG, &round.to_ne_bytes());
                let list = [
                    silent(1, wire.here, write(&block, wire.at(0))),
                    work(round, wire.here, write(&word, wire.at(FLAG))),
                ];
                near.post(0, &list);
                succeeded(&near.completion(0), CompletionKind::Write, 8);
                near.until("the target's answer", |_| {
                    let seen = answer.arena.load(FLAG + 64, Ordering::Acquire);
                    (seen == Ok(round)).then_some(())
                });
            }
        },
        |far| expect_rounds(far, ROUNDS),
    );
}

pub(super) fn bytes_of_a_write_land_in_rising_order(subject: &dyn Subject) {
    let Some((mut scene, wire)) = write_pair(subject) else {
        return;
    };
    if !scene.capabilities.byte_order {
        return;
    }
    const ROUNDS: u64 = 300;
    let answer = scene.nodes[1].region.clone();
    together(
        &mut scene,
        |near| {
            // One WRITE, whose last word proves that all before it has arrived.
            let block = [near.nodes[0].slice(0, BLOCK + 8)];
            for round in 1..=ROUNDS {
                near.nodes[0].put(0, &[round as u8; BLOCK]);
                near.nodes[0].put(FLAG, &round.to_ne_bytes());
                near.post(0, &[work(round, wire.here, write(&block, wire.at(0)))]);
                succeeded(&near.completion(0), CompletionKind::Write, BLOCK + 8);
                near.until("the target's answer", |_| {
                    let seen = answer.arena.load(FLAG + 64, Ordering::Acquire);
                    (seen == Ok(round)).then_some(())
                });
            }
        },
        |far| expect_rounds(far, ROUNDS),
    );
}

/// The target's side: waits for each round's flag, checks the block, replies.
fn expect_rounds(far: &mut Scene<'_>, rounds: u64) {
    let arena = far.nodes[0].region.arena.clone();
    for round in 1..=rounds {
        far.until("the flag", |_| (arena.load(FLAG, Ordering::Acquire) == Ok(round)).then_some(()));
        let block = far.nodes[0].bytes_at(0, BLOCK);
        assert_eq!(block, [round as u8; BLOCK], "round {round}");
        let answered = arena.store(FLAG + 64, round, Ordering::Release);
        answered.expect("an aligned word of the region");
    }
}
