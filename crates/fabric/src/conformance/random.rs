//! Seeded random sequences against an oracle of plain byte arrays and queues.

use super::Subject;
use super::scene::{QUEUE_DEPTH, Scene, Wire, work};
use farside_base::Random;
use farside_base::{
    AtomicScope, CompletionKind, CompletionStatus, LocalSlice, Operation, Source, Work,
};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a randomized case; if it fails, prints how to repeat it.
fn seeded(subject: &dyn Subject, case: impl FnOnce(u64)) {
    let seed = subject.seed();
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(seed))) else {
        return;
    };
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    panic!("again with FARSIDE_SEED={seed}: {}", text.unwrap_or("a panic without words"));
}

/// The part of each target that the random requests use.
const ARENA: usize = 4096;
/// Each request of a batch has a lane of local memory to itself.
const LANE: u64 = 2048;
const BATCH_MAX: u64 = 12;
const BATCHES: u64 = 150;

/// A request as plain data, applied to the fabric and to the oracle.
#[derive(Clone, Debug)]
enum RandomStep {
    Write { to: u64, data: Vec<u8>, inline: bool },
    Read { from: u64, bytes: usize },
    Atomic { at: u64, kind: u64, values: [u64; 4] },
}

fn draw(random: &mut Random, scene: &Scene<'_>) -> Option<RandomStep> {
    let has = &scene.capabilities;
    let bytes = match random.below(4) {
        0 => random.below(9),
        1 => random.below(80),
        _ => random.below(LANE / 2),
    } as usize;
    let place = random.below((ARENA - bytes) as u64 + 1);
    match random.below(5) {
        0 | 1 if has.write => {
            let inline = bytes <= has.inline_bytes_max as usize && random.below(3) == 0;
            let data = (0..bytes).map(|_| random.word() as u8).collect();
            Some(RandomStep::Write { to: place, data, inline })
        }
        2 | 3 if has.read => Some(RandomStep::Read { from: place, bytes }),
        4 if has.atomics > AtomicScope::None => Some(RandomStep::Atomic {
            at: random.below(ARENA as u64 / 8) * 8,
            kind: random.below(if has.extended_atomics { 5 } else { 2 }),
            values: [0; 4].map(|_: u64| if random.below(2) == 0 { 0 } else { random.word() }),
        }),
        _ => None,
    }
}

impl RandomStep {
    fn bytes(&self) -> usize {
        match self {
            Self::Write { data, .. } => data.len(),
            Self::Read { bytes, .. } => *bytes,
            Self::Atomic { .. } => 8,
        }
    }

    fn kind(&self) -> CompletionKind {
        match self {
            Self::Write { .. } => CompletionKind::Write,
            Self::Read { .. } => CompletionKind::Read,
            Self::Atomic { .. } => CompletionKind::Atomic,
        }
    }

    /// Returns the request, with its bytes in these slices.
    fn operation<'a>(&'a self, wire: &Wire, slices: &'a [LocalSlice]) -> Operation<'a> {
        match self {
            Self::Write { to, data, inline } => Operation::Write {
                source: if *inline { Source::Inline(data) } else { Source::Gather(slices) },
                to: wire.at(*to),
                immediate: None,
            },
            Self::Read { from, .. } => Operation::Read { into: slices, from: wire.at(*from) },
            Self::Atomic { at, kind, values } => {
                let (at, into, [add, expected, mask, other]) = (wire.at(*at), slices[0], *values);
                match kind {
                    0 => Operation::FetchAdd { at, add, into },
                    1 => Operation::CompareSwap { at, expected, new: add, into },
                    2 => Operation::Swap { at, new: add, into },
                    3 => Operation::MaskedFetchAdd { at, add, boundaries: mask, into },
                    _ => Operation::MaskedCompareSwap {
                        at,
                        expected,
                        compare_mask: mask,
                        new: add,
                        swap_mask: other,
                        into,
                    },
                }
            }
        }
    }

    /// Applies it to the oracle. Returns the resulting bytes.
    fn apply(&self, memory: &mut [u8]) -> Vec<u8> {
        match self {
            Self::Write { to, data, .. } => {
                memory[*to as usize..][..data.len()].copy_from_slice(data);
                Vec::new()
            }
            Self::Read { from, bytes } => memory[*from as usize..][..*bytes].to_vec(),
            Self::Atomic { at, kind, values } => {
                let place = &mut memory[*at as usize..][..8];
                let before = u64::from_ne_bytes((&*place).try_into().expect("8 bytes"));
                place.copy_from_slice(&atomic_result(before, *kind, values).to_ne_bytes());
                before.to_ne_bytes().to_vec()
            }
        }
    }
}

fn atomic_result(before: u64, kind: u64, values: &[u64; 4]) -> u64 {
    let [add, expected, mask, other] = *values;
    match kind {
        0 => before.wrapping_add(add),
        1 if before == expected => add,
        2 => add,
        3 => super::atomic::add_by_bits(before, add, mask),
        4 if (before ^ expected) & mask == 0 => (before & !other) | (add & other),
        _ => before,
    }
}

/// Cuts a lane's bytes into some slices that follow each other.
fn cut(random: &mut Random, scene: &Scene<'_>, lane: u64, step: &RandomStep) -> Vec<LocalSlice> {
    let start = lane * LANE + random.below(LANE / 2) / 8 * 8;
    let bytes = step.bytes();
    let pieces = if step.kind() == CompletionKind::Atomic {
        1
    } else {
        1 + random.below(u64::from(scene.capabilities.slices_max.min(4)))
    };
    let mut slices = Vec::new();
    let mut done = 0;
    for piece in 1..=pieces {
        let left = (bytes - done) as u64;
        let length = if piece == pieces { left } else { random.below(left + 1) } as usize;
        slices.push(scene.nodes[0].slice(start + done as u64, length));
        done += length;
    }
    slices
}

/// Posts one batch on one wire, waits, and compares all results with the oracle.
fn batch(random: &mut Random, scene: &mut Scene<'_>, wire: &Wire, oracle: &mut [u8], number: u64) {
    let most = if scene.capabilities.message_order { BATCH_MAX } else { 1 };
    let count = 1 + random.below(most);
    let steps: Vec<_> = (0..count).filter_map(|_| draw(random, scene)).collect();
    let slices: Vec<_> =
        steps.iter().zip(0..).map(|(step, lane)| cut(random, scene, lane, step)).collect();
    for (step, slices) in steps.iter().zip(&slices) {
        if let RandomStep::Write { data, .. } = step
            && let Some(first) = slices.first()
        {
            scene.nodes[0].put(first.offset, data);
        }
    }
    let mut list: Vec<Work<'_>> = Vec::new();
    for (at, (step, slices)) in steps.iter().zip(&slices).enumerate() {
        let mut request = work(at as u64, wire.here, step.operation(wire, slices));
        // Results are not ordered against later requests unless these are fenced.
        request.flags.fence = at > 0 && steps[at - 1].kind() != CompletionKind::Write;
        request.flags.signalled = at + 1 == steps.len() || random.below(3) == 0;
        list.push(request);
    }
    scene.post(0, &list);
    for request in list.iter().filter(|request| request.flags.signalled) {
        let done = scene.completion(0);
        let step = &steps[request.id.0 as usize];
        let ended = (done.id, done.link, done.kind, done.status, done.bytes as usize);
        let success = CompletionStatus::Success;
        let expected = (request.id, wire.here, step.kind(), success, step.bytes());
        assert_eq!(ended, expected, "batch {number}: {steps:?}");
    }
    for (at, (step, slices)) in steps.iter().zip(&slices).enumerate() {
        let back = step.apply(oracle);
        if step.kind() != CompletionKind::Write {
            let got = scene.nodes[0].bytes_at(slices[0].offset, back.len());
            assert!(got == back, "batch {number}, result of request {at}: {steps:?}");
        }
    }
    scene.memory_is(wire.to, 0, oracle);
}

pub(super) fn one_sided_requests_agree_with_an_oracle(subject: &dyn Subject) {
    seeded(subject, |seed| {
        let mut random = Random::new(seed);
        let mut scene = Scene::new(subject, 3);
        let wires = [scene.wire(0, 1), scene.wire(0, 2)];
        let mut oracles = [vec![0; ARENA], vec![0; ARENA]];
        for number in 0..BATCHES {
            let which = random.below(2) as usize;
            batch(&mut random, &mut scene, &wires[which], &mut oracles[which], number);
        }
        for (node, oracle) in [1, 2].into_iter().zip(&oracles) {
            scene.memory_is(node, 0, oracle);
        }
        scene.quiet(0);
        scene.quiet(1);
    });
}

/// A message in flight, as recorded by the oracle.
struct OracleMessage {
    data: Vec<u8>,
    immediate: Option<u32>,
}

/// Bytes of each receive; its offset is its index times this.
const RECEIVE: u64 = 256;
const MESSAGES: usize = 1200;

/// Two senders and one receiver with a shared queue, at random speeds.
struct FanInTraffic<'s> {
    random: Random,
    scene: Scene<'s>,
    wires: Vec<Wire>,
    /// For each wire: sent and not yet received.
    in_flight: Vec<VecDeque<OracleMessage>>,
    sent: usize,
    sent_on: Vec<usize>,
    received: usize,
    /// Receives posted.
    posted: usize,
    /// Indexes at the receiver without a posted receive. Messages of several links complete in any
    /// order, so an index is free when its own receive has completed.
    places: Vec<u64>,
}

impl FanInTraffic<'_> {
    fn post_receives(&mut self) {
        let room = QUEUE_DEPTH - (self.posted - self.received);
        for _ in 0..self.random.below(room as u64 + 1).min(9) {
            let Some(place) = self.places.pop() else {
                return;
            };
            self.scene.receive(2, place, place * RECEIVE, RECEIVE as usize);
            self.posted += 1;
        }
    }

    fn send(&mut self) {
        // No more than there are receives for, so that no sender waits forever.
        if self.sent == MESSAGES || self.sent == self.posted {
            return;
        }
        let which = self.random.below(self.wires.len() as u64) as usize;
        let wire = self.wires[which];
        if !self.scene.capabilities.message_order && !self.in_flight[which].is_empty() {
            return;
        }
        let bytes = self.random.below(RECEIVE + 1) as usize;
        let data: Vec<u8> = (0..bytes).map(|_| self.random.word() as u8).collect();
        let announced = self.scene.capabilities.immediate && self.random.below(3) == 0;
        let immediate = announced.then(|| self.random.word() as u32);
        let inline = bytes <= self.scene.capabilities.inline_bytes_max as usize;
        let node = &self.scene.nodes[wire.from];
        // The bytes stay unchanged until the message was received: each outstanding message of a wire
        // has its own bytes, and there are never more messages than receives.
        let lane = which * QUEUE_DEPTH + self.sent_on[which] % QUEUE_DEPTH;
        let place = lane as u64 * RECEIVE;
        self.sent_on[which] += 1;
        let slices = [node.slice(place, bytes)];
        node.put(place, &data);
        let source = if inline && self.random.below(2) == 0 {
            Source::Inline(&data)
        } else {
            Source::Gather(&slices)
        };
        let operation = Operation::Send { source, immediate };
        let mut request = work(self.sent as u64, wire.here, operation);
        request.flags.signalled = false;
        self.scene.post(wire.from, &[request]);
        self.in_flight[which].push_back(OracleMessage { data, immediate });
        self.sent += 1;
    }

    fn collect(&mut self) {
        self.scene.poll();
        while let Some(done) = self.scene.nodes[2].completions.pop_front() {
            let number = self.received;
            let place = done.id.0;
            assert!(
                place < QUEUE_DEPTH as u64 && !self.places.contains(&place),
                "each receive ends once: {done:?}"
            );
            assert_eq!(done.status, CompletionStatus::Success, "message {number}: {done:?}");
            let which = self.wires.iter().position(|wire| wire.there == done.link);
            let which = which.expect("a link of the receiver");
            let message = self.in_flight[which].pop_front().expect("a message that was sent");
            let got = self.scene.nodes[2].bytes_at(place * RECEIVE, done.bytes as usize);
            self.places.push(place);
            assert!(got == message.data, "message {number}: {} bytes", done.bytes);
            assert_eq!(done.immediate, message.immediate, "message {number}");
            self.received += 1;
        }
    }
}

pub(super) fn messages_agree_with_an_oracle(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    let has = scene.capabilities;
    if !has.send || !has.shared_receive_queue || !has.message_order {
        return;
    }
    seeded(subject, |seed| {
        let wires = vec![scene.wire(0, 2), scene.wire(1, 2), scene.wire(0, 2)];
        let mut mail = FanInTraffic {
            random: Random::new(!seed),
            in_flight: wires.iter().map(|_| VecDeque::new()).collect(),
            scene,
            sent: 0,
            sent_on: vec![0; wires.len()],
            received: 0,
            posted: 0,
            places: (0..QUEUE_DEPTH as u64).rev().collect(),
            wires,
        };
        let polls_max = subject.polls_max();
        for _ in 0..polls_max {
            match mail.random.below(4) {
                0 if mail.posted < MESSAGES => mail.post_receives(),
                1 => mail.collect(),
                _ => mail.send(),
            }
            subject.settle();
            if mail.received == MESSAGES {
                break;
            }
        }
        assert_eq!(mail.received, MESSAGES, "{} sent", mail.sent);
        assert_eq!(mail.scene.nodes[0].completions, [], "unsignalled successes are silent");
    });
}
