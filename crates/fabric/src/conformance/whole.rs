//! What an observer sees of a request in flight: whole words, and bytes in rising order if that is
//! declared. The observer is another thread, which reads from the end to the beginning.

use super::Subject;
use super::scene::{Scene, Wire, together, work};
use crate::Arena;
use farside_base::{
    Capabilities, CompletionStatus, LocalSlice, Operation, RemoteSlice, Source, WordScope,
};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A form of WRITE: its target, and its source slices.
struct WriteShape {
    to: u64,
    slices: &'static [(u64, usize)],
    inline: bool,
}

const fn plain(to: u64, slices: &'static [(u64, usize)]) -> WriteShape {
    WriteShape { to, slices, inline: false }
}

/// Sizes and alignments that take different paths through copies: within a line, over its end, some
/// lines, many, from several slices.
const SHAPES: [WriteShape; 15] = [
    plain(0, &[(0, 8)]),
    plain(61, &[(0, 11)]),
    plain(56, &[(3, 24)]),
    plain(8, &[(0, 50)]),
    plain(0, &[(0, 64)]),
    plain(17, &[(1, 64)]),
    plain(40, &[(7, 131)]),
    plain(0, &[(0, 256)]),
    plain(33, &[(9, 700)]),
    plain(0, &[(0, 4096)]),
    plain(5, &[(2, 4091)]),
    plain(0, &[(0, 512), (2048, 64), (1024, 512)]),
    plain(29, &[(5, 333), (1000, 9), (2000, 1000)]),
    WriteShape { to: 64, slices: &[(0, 16)], inline: true },
    WriteShape { to: 3, slices: &[(0, 199)], inline: true },
];

/// Rounds of each shape; a byte holds the number of its round.
const ROUNDS: u8 = 200;

impl WriteShape {
    fn bytes(&self) -> usize {
        self.slices.iter().map(|(_, bytes)| bytes).sum()
    }

    fn fits(&self, scene: &Scene<'_>) -> bool {
        let has = &scene.capabilities;
        let inline = !self.inline || self.bytes() <= has.inline_bytes_max as usize;
        let short = self.bytes() as u64 <= has.transfer_bytes_max;
        inline && short && self.slices.len() <= has.slices_max as usize
    }

    /// Returns whether `bytes` before `end` are of one slice.
    fn is_one_slice(&self, end: u64, bytes: u64) -> bool {
        let mut joint = self.to;
        self.slices.iter().all(|(_, length)| {
            joint += *length as u64;
            !(end - bytes + 1..end).contains(&joint)
        })
    }

    /// Returns whether the fabric keeps words of it whole.
    fn has_whole_words(&self, has: &Capabilities) -> bool {
        let end = self.to + self.bytes() as u64;
        let aligned = self.to.is_multiple_of(8) && end.is_multiple_of(8);
        has.words >= if aligned { WordScope::Aligned } else { WordScope::Any }
    }

    /// Checks once, from the end to the beginning. With `words` aligned words of one slice are whole;
    /// and with `rising` lower addresses are no older.
    fn look(&self, arena: &Arena, words: bool, rising: bool) {
        let (start, end) = (self.to, self.to + self.bytes() as u64);
        let mut later = 0;
        let mut at = end;
        while at > start {
            let inside = at.is_multiple_of(8) && at - start >= 8;
            let whole = words && inside && self.is_one_slice(at, 8);
            let round = if whole {
                at -= 8;
                let word = arena.load(at, Ordering::Acquire).expect("within the region");
                let bytes = word.to_ne_bytes();
                assert_eq!(bytes, [bytes[0]; 8], "a word at {at} of {start}..{end} is torn");
                bytes[0]
            } else {
                at -= 1;
                let mut byte = [0];
                arena.read(at, &mut byte).expect("within the region");
                byte[0]
            };
            assert!(
                !rising || round >= later,
                "{start}..{end}: at {at} is round {round}, and behind it is round {later}"
            );
            later = round;
        }
    }

    fn is_there(&self, arena: &Arena, round: u8) -> bool {
        let mut bytes = vec![0; self.bytes()];
        arena.read(self.to, &mut bytes).expect("within the region");
        bytes.iter().all(|byte| *byte == round)
    }

    /// Writes all rounds of this shape.
    fn write(&self, near: &mut Scene<'_>, wire: &Wire, target: &Arena) {
        for round in 1..=ROUNDS {
            let inline = vec![round; self.bytes()];
            let mut slices: Vec<LocalSlice> = Vec::new();
            for (offset, bytes) in self.slices {
                near.nodes[0].put(*offset, &vec![round; *bytes]);
                slices.push(near.nodes[0].slice(*offset, *bytes));
            }
            let source =
                if self.inline { Source::Inline(&inline) } else { Source::Gather(&slices) };
            let to: RemoteSlice = wire.at(self.to);
            let operation = Operation::Write { source, to, immediate: None };
            near.post(0, &[work(u64::from(round), wire.here, operation)]);
            assert_eq!(near.completion(0).status, CompletionStatus::Success);
            near.until("bytes to be placed", |_| self.is_there(target, round).then_some(()));
        }
    }
}

/// Writes every shape repeatedly while another thread checks.
fn observe_writes(subject: &dyn Subject, rising: bool) {
    let (mut scene, wire) = Scene::pair(subject);
    if !scene.capabilities.write || (rising && !scene.capabilities.byte_order) {
        return;
    }
    for shape in SHAPES {
        let words = shape.has_whole_words(&scene.capabilities);
        if !shape.fits(&scene) || !(words || rising) {
            continue;
        }
        scene.nodes[1].put(shape.to, &vec![0; shape.bytes()]);
        let target = scene.nodes[1].region.arena.clone();
        let over = AtomicBool::new(false);
        together(
            &mut scene,
            |near| {
                shape.write(near, &wire, &target);
                over.store(true, Ordering::Release);
            },
            |far| {
                far.until("the last round", |_| {
                    for _ in 0..16 {
                        shape.look(&target, words, rising);
                    }
                    over.load(Ordering::Acquire).then_some(())
                });
            },
        );
    }
}

pub(super) fn words_of_a_write_are_never_torn(subject: &dyn Subject) {
    observe_writes(subject, false);
}

pub(super) fn bytes_of_a_write_are_seen_in_rising_order(subject: &dyn Subject) {
    observe_writes(subject, true);
}

/// Another thread changes each word as soon as it arrives, and no byte is written a second time.
pub(super) fn bytes_of_a_write_land_once(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let has = scene.capabilities;
    if !has.write || !has.byte_order {
        return;
    }
    const CHANGED: u64 = u64::MAX;
    for bytes in [8, 16, 48, 200] {
        if bytes > has.transfer_bytes_max {
            continue;
        }
        let target = scene.nodes[1].region.arena.clone();
        let changed = AtomicU64::new(0);
        let words = || (0..bytes).step_by(8);
        let holds = |word| words().all(|at| target.load(at, Ordering::Acquire) == Ok(word));
        let rounds = 50 * u64::from(ROUNDS);
        together(
            &mut scene,
            |near| {
                let slices = [near.nodes[0].slice(0, bytes as usize)];
                for round in 1..=rounds {
                    let word = round.to_ne_bytes();
                    near.nodes[0].put(0, &word.repeat(bytes as usize / 8));
                    let source = Source::Gather(&slices);
                    let write = Operation::Write { source, to: wire.at(0), immediate: None };
                    near.post(0, &[work(round, wire.here, write)]);
                    assert_eq!(near.completion(0).status, CompletionStatus::Success);
                    near.until("the words to be changed", |_| {
                        (changed.load(Ordering::Acquire) == round).then_some(())
                    });
                }
            },
            |far| {
                for round in 1..=rounds {
                    for at in words() {
                        let here = || target.load(at, Ordering::Acquire) == Ok(round);
                        // Most arrive while no other thread runs: then they are changed at once.
                        let soon = (0..1000).any(|_| here());
                        far.until("a word", |_| (soon || here()).then_some(()));
                        target.store(at, CHANGED, Ordering::Release).expect("within the region");
                    }
                    for _ in 0..20 {
                        assert!(holds(CHANGED), "{bytes} bytes, round {round}: a word came twice");
                    }
                    changed.store(round, Ordering::Release);
                }
            },
        );
    }
}

pub(super) fn words_of_a_read_are_never_torn(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    if !scene.capabilities.read || scene.capabilities.words < WordScope::Aligned {
        return;
    }
    let most = scene.capabilities.transfer_bytes_max;
    let source = scene.nodes[1].region.arena.clone();
    let over = AtomicBool::new(false);
    together(
        &mut scene,
        |near| {
            let ranges = [(0, 8), (8, 56), (56, 24), (0, 64), (24, 2048), (0, 4096)];
            for (at, bytes) in ranges.into_iter().filter(|(_, bytes)| *bytes as u64 <= most) {
                for local in [0, 8, 40] {
                    let into = [near.nodes[0].slice(local, bytes)];
                    for round in 0..u64::from(ROUNDS) {
                        let read = Operation::Read { into: &into, from: wire.at(at) };
                        near.post(0, &[work(round, wire.here, read)]);
                        assert_eq!(near.completion(0).status, CompletionStatus::Success);
                        for word in near.nodes[0].bytes_at(local, bytes).chunks(8) {
                            assert_eq!(word, [word[0]; 8], "{bytes} bytes at {at} into {local}");
                        }
                    }
                }
            }
            over.store(true, Ordering::Release);
        },
        |far| {
            let mut round = 0_u8;
            far.until("the last round", |_| {
                for _ in 0..16 {
                    round = round.wrapping_add(1);
                    for at in (0..4096).step_by(8) {
                        let word = u64::from_ne_bytes([round; 8]);
                        source.store(at, word, Ordering::Release).expect("within the region");
                    }
                }
                over.load(Ordering::Acquire).then_some(())
            });
        },
    );
}
