//! Tests of the adversary: with enough seeds it does everything that is permitted, and nothing else.

use super::hardware::CONNECTX5_ROCE;
use super::scene::{LinkedNodes, side};
use super::{ADAPTIVE_ROUTING, INFINIBAND, Marks, SHARED_MEMORY, SimOptions, UNORDERED};
use farside_base::{
    Access, Capabilities, Completion, CompletionKind, CompletionStatus, Operation, WordScope,
    WorkId,
};
use farside_fabric::{Fabric, LinkEvent};
use std::sync::atomic::Ordering;

/// A short busy run: data, messages and atomics between three nodes, one of which dies.
fn busy(seed: u64, capabilities: Capabilities) -> (u64, Marks) {
    busy_with(seed, SimOptions::draw(seed, capabilities))
}

fn busy_with(seed: u64, options: SimOptions) -> (u64, Marks) {
    let capabilities = options.capabilities;
    let mut scene = LinkedNodes::with(seed, options, 3);
    for round in 0..6 {
        for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 2)] {
            scene.receive(to, round);
            scene.fill(from, 0, 4_096, round as u8 + 1);
            scene.write(from, to, 1, 0, 4_000);
            let into = [scene.slice(from, 8_192, 3_000)];
            let read = Operation::Read { into: &into, from: scene.at(from, to, 100) };
            scene.post(from, to, 2, read);
            let add = Operation::FetchAdd {
                at: scene.at(from, to, 16_384),
                add: 1,
                into: scene.slice(from, 16_392, 8),
            };
            if capabilities.atomics != farside_base::AtomicScope::None {
                scene.post(from, to, 3, add);
            }
            scene.write(from, to, 4, 20_000, 200);
            scene.send(from, to, 5);
        }
        for _ in 0..40 {
            scene.net.step();
        }
        for node in 0..3 {
            scene.poll(node);
        }
    }
    scene.net.kill("c");
    scene.net.run_until_idle();
    for node in 0..2 {
        scene.poll(node);
        let lost = scene.events(node);
        assert!(matches!(lost[..], [LinkEvent::Lost { .. }]), "{lost:?}");
    }
    (scene.net.fingerprint(), scene.net.marks())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for (seed, capabilities) in [(1, INFINIBAND), (2, SHARED_MEMORY), (3, UNORDERED)] {
        assert_eq!(busy(seed, capabilities), busy(seed, capabilities));
    }
    assert_ne!(busy(1, INFINIBAND).0, busy(2, INFINIBAND).0);
    for capabilities in [INFINIBAND, SHARED_MEMORY, ADAPTIVE_ROUTING] {
        let options = SimOptions::on_hardware(capabilities, CONNECTX5_ROCE);
        assert_eq!(busy_with(1, options), busy_with(1, options), "with the losses of a death");
    }
}

#[test]
fn every_rare_case_occurs() {
    let mut sum = Marks::default();
    let mut reordered = 0;
    for seed in 0..40 {
        let add = |sum: &mut Marks, one: Marks| {
            sum.pieces_reordered += one.pieces_reordered;
            sum.fetches_overtaken += one.fetches_overtaken;
            sum.completed_before_placed += one.completed_before_placed;
            sum.atomics_contended += one.atomics_contended;
            sum.writes_torn_by_death += one.writes_torn_by_death;
            sum.delivered_after_death += one.delivered_after_death;
            sum.dropped_by_death += one.dropped_by_death;
        };
        add(&mut sum, busy(seed, INFINIBAND).1);
        let unordered = busy(seed, UNORDERED).1;
        reordered += unordered.messages_reordered;
        add(&mut sum, unordered);
    }
    let counts = [
        sum.pieces_reordered,
        sum.fetches_overtaken,
        sum.completed_before_placed,
        sum.atomics_contended,
        sum.writes_torn_by_death,
        sum.delivered_after_death,
        sum.dropped_by_death,
        reordered,
    ];
    assert!(counts.iter().all(|count| *count > 0), "{sum:?} {reordered}");
}

/// Overwrites a block by a WRITE and reads the target after each step. Returns the states seen, each as the set of
/// lines that have the new value.
fn partial_states(seed: u64, capabilities: Capabilities) -> Vec<u8> {
    let mut scene = LinkedNodes::new(seed, capabilities, 2);
    scene.fill(0, 0, 256, 1);
    scene.write(0, 1, 1, 0, 256);
    let mut seen = Vec::new();
    while scene.net.step() {
        let lines = scene.bytes(1, 0, 256);
        let new = (0..4).filter(|line| lines[line * 64] == 1).map(|line| 1 << line).sum();
        for line in lines.chunks(64) {
            assert!(line.iter().all(|byte| *byte == line[0]), "a line never tears");
        }
        seen.push(new);
    }
    assert_eq!(seen.last(), Some(&0b1111));
    seen
}

#[test]
fn writes_land_in_pieces_and_in_byte_order_only_if_declared() {
    let rising = [0, 0b1, 0b11, 0b111, 0b1111];
    let (mut partly, mut out_of_order) = (false, false);
    for seed in 0..60 {
        let ordered = partial_states(seed, INFINIBAND);
        assert!(ordered.iter().all(|state| rising.contains(state)), "seed {seed}");
        partly |= ordered.contains(&0b1);
        let unordered = Capabilities { byte_order: false, ..SHARED_MEMORY };
        let free = partial_states(seed, unordered);
        out_of_order |= free.iter().any(|state| !rising.contains(state));
    }
    assert!(partly && out_of_order);
}

/// Whether an aligned word was ever observed torn by a WRITE of `bytes` bytes to an aligned address.
fn tears_words(words: WordScope, access: Access, bytes: u32) -> bool {
    let capabilities = Capabilities { words, ..INFINIBAND };
    (0..100).any(|seed| {
        let options = SimOptions::draw(seed, capabilities);
        let mut scene = LinkedNodes::with_access(seed, options, 2, access);
        scene.fill(0, 0, bytes as usize, 1);
        scene.write(0, 1, 1, 0, bytes);
        let mut torn = false;
        while scene.net.step() {
            let seen = scene.bytes(1, 0, bytes as usize);
            torn |= seen.chunks_exact(8).any(|word| word.iter().any(|byte| *byte != word[0]));
        }
        assert!(scene.bytes(1, 0, bytes as usize).iter().all(|byte| *byte == 1));
        torn
    })
}

#[test]
fn words_are_torn_only_where_that_is_permitted() {
    let relaxed = Access::ALL.with(Access::RELAXED_ORDERING);
    for (words, access, bytes, torn) in [
        (WordScope::Any, Access::ALL, 205, false),
        (WordScope::Aligned, Access::ALL, 200, false),
        (WordScope::Aligned, Access::ALL, 205, true),
        (WordScope::None, Access::ALL, 200, true),
        (WordScope::Any, relaxed, 200, true),
    ] {
        assert_eq!(tears_words(words, access, bytes), torn, "{words:?} {access:?} {bytes}");
    }
}

#[test]
fn memory_without_order_fills_in_any_order() {
    let relaxed = Access::ALL.with(Access::RELAXED_ORDERING);
    let rising = (0..60).all(|seed| {
        let options = SimOptions::draw(seed, INFINIBAND);
        let mut scene = LinkedNodes::with_access(seed, options, 2, relaxed);
        scene.fill(0, 0, 256, 1);
        scene.write(0, 1, 1, 0, 256);
        let mut rising = true;
        while scene.net.step() {
            rising &= scene.bytes(1, 0, 256).is_sorted_by(|before, after| before >= after);
        }
        rising
    });
    assert!(!rising);
}

#[test]
fn reads_are_torn_by_concurrent_writes() {
    let mut torn = false;
    for seed in 0..60 {
        let mut scene = LinkedNodes::new(seed, INFINIBAND, 2);
        let into = [scene.slice(0, 0, 256)];
        let read = Operation::Read { into: &into, from: scene.at(0, 1, 0) };
        scene.post(0, 1, 1, read);
        let mut version = 0;
        while scene.net.step() {
            version += 1;
            scene.fill(1, 0, 256, version);
        }
        assert_eq!(scene.poll(0).len(), 1);
        let got = scene.bytes(0, 0, 256);
        assert!(got.chunks(64).all(|line| line.iter().all(|byte| *byte == line[0])));
        torn |= got.iter().any(|byte| *byte != got[0]);
    }
    assert!(torn);
}

/// Adds by an atomic of the adapter, with a processor's add in between. Returns whether an update was lost.
fn loses_updates(seed: u64, capabilities: Capabilities) -> bool {
    let mut scene = LinkedNodes::new(seed, capabilities, 2);
    let add =
        Operation::FetchAdd { at: scene.at(0, 1, 8), add: 1 << 32, into: scene.slice(0, 8, 8) };
    for id in 0..4 {
        scene.post(0, 1, id, add);
    }
    let mut steps = 0;
    while scene.net.step() {
        steps += 1;
        scene.sides[1].region.arena.fetch_add(8, 1).unwrap();
    }
    assert_eq!(scene.poll(0).len(), 4);
    let word = scene.sides[1].region.arena.load(8, Ordering::Acquire).unwrap();
    word != (4 << 32) + steps
}

#[test]
fn atomics_meet_the_processor_only_with_system_scope() {
    assert!((0..20).any(|seed| loses_updates(seed, INFINIBAND)));
    assert!((0..20).all(|seed| !loses_updates(seed, SHARED_MEMORY)));
}

#[test]
fn death_keeps_answered_requests_and_a_prefix_of_the_rest() {
    let (mut none, mut some, mut all) = (0, 0, 0);
    for (seed, options) in (0..200).flat_map(|seed| both(seed, INFINIBAND).map(|one| (seed, one))) {
        let mut scene = LinkedNodes::with(seed, options, 2);
        for id in 0..8 {
            scene.receive(1, id);
        }
        for id in 0..8 {
            scene.fill(0, 64 * id, 64, 1);
            scene.write(0, 1, 100 + id, 64 * id, 64);
            scene.send(0, 1, id);
        }
        let mut promised = 0;
        for _ in 0..seed % 100 {
            scene.net.step();
            let sends = |done: &&Completion| done.kind == CompletionKind::Send;
            promised += scene.poll(0).iter().filter(sends).count();
        }
        scene.net.kill("a");
        scene.net.run_until_idle();
        let early = scene.events(1).len();
        let received = scene.poll(1);
        assert!(received.len() >= promised, "seed {seed}");
        assert!(
            early == 0 || received.is_empty(),
            "the loss comes after the messages, seed {seed}"
        );
        for (at, done) in received.iter().enumerate() {
            assert_eq!((done.id, done.status), (WorkId(at as u64), CompletionStatus::Success));
            assert_eq!(
                scene.bytes(1, 64 * at as u64, 64),
                [1; 64],
                "WRITE before SEND, seed {seed}"
            );
        }
        assert_eq!(early + scene.events(1).len(), 1);
        match received.len() {
            0 => none += 1,
            8 => all += 1,
            _ => some += 1,
        }
    }
    assert!(none > 0 && some > 0 && all > 0, "{none} {some} {all}");
}

#[test]
fn work_for_a_dead_node_ends_as_peer_lost_and_then_flushed() {
    for (seed, options) in (0..50).flat_map(|seed| both(seed, INFINIBAND).map(|one| (seed, one))) {
        let mut scene = LinkedNodes::with(seed, options, 3);
        for id in 0..5 {
            scene.write(0, 1, id, 0, 100);
            scene.write(0, 2, id, 0, 100);
        }
        for _ in 0..seed {
            scene.net.step();
        }
        scene.net.kill("b");
        scene.write(0, 1, 5, 0, 8);
        scene.net.run_until_idle();
        let done = scene.poll(0);
        let (link, _) = scene.sides[0].links[1].unwrap();
        let (dead, other): (Vec<_>, Vec<_>) = done.into_iter().partition(|done| done.link == link);
        assert!(
            other.len() == 5 && other.iter().all(|done| done.status == CompletionStatus::Success)
        );
        assert!(dead.iter().map(|done| done.id.0).eq(0..6), "each once, in order");
        let after = dead.iter().skip_while(|done| done.status == CompletionStatus::Success);
        let after: Vec<_> = after.map(|done| done.status).collect();
        assert_eq!(after[0], CompletionStatus::PeerLost);
        assert!(after[1..].iter().all(|status| *status == CompletionStatus::Flushed));
        scene.write(0, 1, 6, 0, 8);
        assert_eq!(scene.poll(0)[0].status, CompletionStatus::Flushed);
    }
}

#[test]
fn deregistered_region_is_never_accessed() {
    let mut refused = 0;
    for seed in 0..60 {
        let mut scene = LinkedNodes::new(seed, INFINIBAND, 2);
        scene.fill(0, 0, 4_096, 9);
        scene.write(0, 1, 1, 0, 4_096);
        for _ in 0..seed % 10 {
            scene.net.step();
        }
        let before = scene.bytes(1, 0, 4_096);
        scene.net.fabric("b").deregister(scene.sides[1].region.id).unwrap();
        scene.net.run_until_idle();
        assert_eq!(scene.bytes(1, 0, 4_096), before);
        let done = scene.poll(0);
        assert_eq!(done.len(), 1);
        refused += u64::from(done[0].status == CompletionStatus::RemoteAccess);
    }
    assert!(refused > 0);
}

#[test]
fn paused_program_serves_one_sided_requests_and_frozen_machine_none() {
    for options in both(4, INFINIBAND) {
        pause_and_freeze(LinkedNodes::with(4, options, 2));
    }
}

/// Options of the adversary and of the hardware profile.
fn both(seed: u64, capabilities: Capabilities) -> [SimOptions; 2] {
    let hardware = SimOptions::on_hardware(capabilities, CONNECTX5_ROCE);
    [SimOptions::draw(seed, capabilities), hardware]
}

fn pause_and_freeze(mut scene: LinkedNodes) {
    scene.receive(1, 1);
    scene.fill(0, 0, 64, 5);
    assert!(scene.net.pause("b") && !scene.net.runs("b"));
    scene.write(0, 1, 1, 0, 64);
    scene.send(0, 1, 2);
    scene.net.run_until_idle();
    assert_eq!(scene.poll(0).len(), 2);
    assert_eq!(scene.bytes(1, 0, 64), [5; 64]);
    assert!(scene.poll(1).is_empty(), "a paused program polls nothing");
    assert!(scene.net.resume("b"));
    assert_eq!(scene.poll(1).len(), 1);
    assert!(scene.net.freeze("b"));
    scene.write(0, 1, 3, 0, 64);
    scene.net.run_until_idle();
    assert!(scene.poll(0).is_empty());
    scene.net.resume("b");
    scene.net.run_until_idle();
    assert_eq!(scene.poll(0).len(), 1);
}

#[test]
fn cut_links_fail_at_both_nodes_and_reconnect() {
    for options in both(5, SHARED_MEMORY) {
        cut_and_connect(LinkedNodes::with(5, options, 3));
    }
}

fn cut_and_connect(mut scene: LinkedNodes) {
    scene.write(0, 1, 1, 0, 64);
    assert!(scene.net.cut("a", "b"));
    scene.net.run_until_idle();
    for node in 0..2 {
        assert!(matches!(scene.events(node)[..], [LinkEvent::Lost { .. }]));
    }
    assert!(scene.events(2).is_empty());
    assert_eq!(scene.poll(0).len(), 1);
    scene.connect(0, 1);
    scene.write(0, 1, 2, 0, 64);
    scene.net.run_until_idle();
    assert_eq!(scene.poll(0)[0].status, CompletionStatus::Success);
}

#[test]
fn node_with_reused_name_starts_empty() {
    let mut scene = LinkedNodes::new(6, INFINIBAND, 2);
    let (link, _) = scene.sides[0].links[1].unwrap();
    let old = scene.sides[1].region.token;
    scene.net.kill("b");
    scene.net.run_until_idle();
    scene.sides[1] = side(&scene.net.clone(), "b", "b", 2, Access::ALL);
    assert!(scene.sides[0].port.import(link, &old).is_err());
    assert_eq!(scene.events(0).len(), 1);
    scene.connect(0, 1);
    let (link, _) = scene.sides[0].links[1].unwrap();
    assert!(scene.sides[0].port.import(link, &old).is_err(), "another key");
}
