//! Atomics: the previous value, and never a lost update.

use super::Subject;
use super::scene::{Scene, Wire, succeeded, work};
use farside_base::Random;
use farside_base::{AtomicScope, CompletionKind, LocalSlice, Operation};
use std::sync::atomic::Ordering;

/// The offset of the word at the target, and of the local result.
const WORD: u64 = 128;
const RESULT: u64 = 256;

/// Sets the word and runs one atomic on it: the previous value is returned, the word becomes `after`,
/// and its neighbours stay.
#[track_caller]
fn check(scene: &mut Scene<'_>, wire: &Wire, word: u64, after: u64, operation: Operation<'_>) {
    let guard = u64::MAX / 3;
    let words = |middle: u64| [guard, middle, guard].map(u64::to_ne_bytes).concat();
    scene.nodes[wire.to].put(WORD - 8, &words(word));
    let done = scene.perform(wire, operation);
    succeeded(&done, CompletionKind::Atomic, 8);
    let before = scene.nodes[wire.from].bytes_at(RESULT, 8);
    assert_eq!(before, word.to_ne_bytes(), "{operation:x?} on {word:#x}");
    scene.memory_is(wire.to, WORD - 8, &words(after));
}

/// Returns the slice in which the atomics of `check` store the previous value.
fn result(scene: &Scene<'_>, wire: &Wire) -> LocalSlice {
    scene.nodes[wire.from].slice(RESULT, 8)
}

fn atomic_pair(subject: &dyn Subject) -> Option<(Scene<'_>, Wire)> {
    let (scene, wire) = Scene::pair(subject);
    (scene.capabilities.atomics > AtomicScope::None).then_some((scene, wire))
}

pub(super) fn fetch_add_returns_the_value_before_and_wraps(subject: &dyn Subject) {
    let Some((mut scene, wire)) = atomic_pair(subject) else {
        return;
    };
    let (at, into) = (wire.at(WORD), result(&scene, &wire));
    for (word, add) in [(0, 1), (41, 1), (7, u64::MAX), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        let operation = Operation::FetchAdd { at, add, into };
        check(&mut scene, &wire, word, word.wrapping_add(add), operation);
    }
}

pub(super) fn compare_swap_returns_the_value_before(subject: &dyn Subject) {
    let Some((mut scene, wire)) = atomic_pair(subject) else {
        return;
    };
    let (at, into) = (wire.at(WORD), result(&scene, &wire));
    for (word, expected, new) in [(5, 5, 9), (5, 6, 9), (0, 0, u64::MAX), (1 << 63, 0, 3)] {
        let operation = Operation::CompareSwap { at, expected, new, into };
        let after = if word == expected { new } else { word };
        check(&mut scene, &wire, word, after, operation);
    }
}

pub(super) fn swap_returns_the_value_before(subject: &dyn Subject) {
    let Some((mut scene, wire)) = extended_pair(subject) else {
        return;
    };
    let (at, into) = (wire.at(WORD), result(&scene, &wire));
    for (word, new) in [(1, 2), (u64::MAX, 0), (9, 9)] {
        check(&mut scene, &wire, word, new, Operation::Swap { at, new, into });
    }
}

/// Adds bit by bit; a carry does not leave a bit of `boundaries`.
pub(super) fn add_by_bits(word: u64, add: u64, boundaries: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let ones = (word >> bit & 1) + (add >> bit & 1) + carry;
        sum |= (ones & 1) << bit;
        carry = if boundaries >> bit & 1 == 1 { 0 } else { ones >> 1 };
    }
    sum
}

pub(super) fn masked_fetch_add_keeps_carries_in_their_fields(subject: &dyn Subject) {
    let Some((mut scene, wire)) = extended_pair(subject) else {
        return;
    };
    let (at, into) = (wire.at(WORD), result(&scene, &wire));
    let mut random = Random::new(1);
    let fields = [0, 1 << 63, 1 << 31 | 1 << 63, 0x8080_8080_8080_8080, u64::MAX, 1, 0x8000];
    for round in 0..200 {
        let (word, add) = (random.word(), random.word());
        let drawn = random.word();
        let boundaries = fields.get(round % 14).copied().unwrap_or(drawn);
        let operation = Operation::MaskedFetchAdd { at, add, boundaries, into };
        check(&mut scene, &wire, word, add_by_bits(word, add, boundaries), operation);
    }
}

pub(super) fn masked_compare_swap_looks_and_writes_under_its_masks(subject: &dyn Subject) {
    let Some((mut scene, wire)) = extended_pair(subject) else {
        return;
    };
    let (at, into) = (wire.at(WORD), result(&scene, &wire));
    let mut random = Random::new(2);
    let masks = [0, u64::MAX, 0xff, 1 << 63, 0xffff_0000_ffff_0000];
    for round in 0..200 {
        let (word, new) = (random.word(), random.word());
        let compare_mask = masks[round % 5];
        let drawn = random.word();
        let swap_mask = masks.get(round / 5 % 7).copied().unwrap_or(drawn);
        // Equal under the mask three times of four, and one bit off otherwise.
        let off = if round % 4 == 0 { 1 << random.below(64) } else { 0 };
        let expected = word ^ (random.word() & !compare_mask) ^ off;
        let operation =
            Operation::MaskedCompareSwap { at, expected, compare_mask, new, swap_mask, into };
        let after = swap_by_bits(word, [expected, compare_mask, new, swap_mask]);
        check(&mut scene, &wire, word, after, operation);
    }
}

/// Compares and replaces bit by bit.
fn swap_by_bits(word: u64, [expected, compare_mask, new, swap_mask]: [u64; 4]) -> u64 {
    let bit = |word: u64, at: u32| word >> at & 1;
    let unlike = |at: &u32| bit(compare_mask, *at) == 1 && bit(word, *at) != bit(expected, *at);
    if (0..64).any(|at| unlike(&at)) {
        return word;
    }
    let from = |at: u32| if bit(swap_mask, at) == 1 { new } else { word };
    (0..64).map(|at| bit(from(at), at) << at).sum()
}

fn extended_pair(subject: &dyn Subject) -> Option<(Scene<'_>, Wire)> {
    atomic_pair(subject).filter(|(scene, _)| scene.capabilities.extended_atomics)
}

/// How often each side adds or retries in the cases with several threads.
const TIMES: u64 = 1500;

/// Runs one atomic of a requester in the threaded cases. Returns the previous value.
fn once(side: &mut Scene<'_>, wire: &Wire, operation: Operation<'_>) -> u64 {
    side.post(0, &[work(1, wire.here, operation)]);
    succeeded(&side.completion(0), CompletionKind::Atomic, 8);
    let word = side.nodes[0].region.arena.load(RESULT, Ordering::Acquire);
    word.expect("an aligned word of the region")
}

/// Runs two requesters on threads of their own against the third node, which a third thread polls if
/// its fabric needs that.
fn contend(
    scene: &mut Scene<'_>,
    run: impl Fn(&mut Scene<'_>, &Wire) -> Vec<u64> + Sync,
    mut meanwhile: impl FnMut(&mut Scene<'_>),
) -> Vec<u64> {
    let wires = [scene.wire(0, 2), scene.wire(1, 2)];
    let mut sides = scene.split();
    let mut target = sides.pop().expect("three nodes");
    target.nodes[0].passive = true;
    let run = &run;
    let (results, nodes) = std::thread::scope(move |threads| {
        let mut running = Vec::new();
        for (mut side, wire) in sides.into_iter().zip(wires) {
            let run = move || (run(&mut side, &wire), side.take_nodes());
            running.push(threads.spawn(run));
        }
        meanwhile(&mut target);
        for count in 0.. {
            if running.iter().all(|thread| thread.is_finished()) {
                break;
            }
            target.poll();
            target.pause(count);
        }
        let (mut results, mut nodes) = (Vec::new(), Vec::new());
        for thread in running {
            let (result, node) = thread.join().expect("a requester to succeed");
            results.extend(result);
            nodes.extend(node);
        }
        nodes.extend(target.take_nodes());
        (results, nodes)
    });
    scene.nodes = nodes;
    results
}

/// Waits until the word has its expected final value.
fn settles_at(scene: &mut Scene<'_>, node: usize, value: u64) {
    scene.memory_is(node, WORD, &value.to_ne_bytes());
}

pub(super) fn concurrent_fetch_adds_sum_exactly(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    if scene.capabilities.atomics == AtomicScope::None {
        return;
    }
    let add = |side: &mut Scene<'_>, wire: &Wire| {
        let operation =
            Operation::FetchAdd { at: wire.at(WORD), add: 1, into: side.nodes[0].slice(RESULT, 8) };
        (0..TIMES).map(|_| once(side, wire, operation)).collect()
    };
    let mut seen = contend(&mut scene, add, |_| {});
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..2 * TIMES), "each value before is seen exactly once");
    settles_at(&mut scene, 2, 2 * TIMES);
}

pub(super) fn concurrent_compare_swaps_have_one_winner_each(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    if scene.capabilities.atomics == AtomicScope::None {
        return;
    }
    let increment = |side: &mut Scene<'_>, wire: &Wire| {
        let into = side.nodes[0].slice(RESULT, 8);
        let mut expected = 0;
        let mut won = Vec::new();
        while (won.len() as u64) < TIMES {
            let operation =
                Operation::CompareSwap { at: wire.at(WORD), expected, new: expected + 1, into };
            let before = once(side, wire, operation);
            if before == expected {
                won.push(before);
            }
            expected = if before == expected { before + 1 } else { before };
        }
        won
    };
    let mut won = contend(&mut scene, increment, |_| {});
    won.sort_unstable();
    assert!(won.into_iter().eq(0..2 * TIMES), "each value is replaced by exactly one");
    settles_at(&mut scene, 2, 2 * TIMES);
}

pub(super) fn atomics_of_system_scope_meet_those_of_the_processor(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    if scene.capabilities.atomics < AtomicScope::System {
        return;
    }
    let add = |side: &mut Scene<'_>, wire: &Wire| {
        let operation =
            Operation::FetchAdd { at: wire.at(WORD), add: 1, into: side.nodes[0].slice(RESULT, 8) };
        (0..TIMES).map(|_| once(side, wire, operation)).collect()
    };
    let mut local = Vec::new();
    let mut seen = contend(&mut scene, add, |target| {
        let arena = target.nodes[0].region.arena.clone();
        for at in 0..TIMES {
            let before = arena.fetch_add(WORD, 1).expect("an aligned word of the region");
            local.push(before);
            if at % 16 == 0 {
                target.poll();
                target.subject.settle();
            }
        }
    });
    seen.append(&mut local);
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..3 * TIMES), "each value before is seen exactly once");
    settles_at(&mut scene, 2, 3 * TIMES);
}
