//! Memory with relaxed ordering (`Access::RELAXED_ORDERING`): complete when a later message arrives,
//! and protected like other memory.

use super::Subject;
use super::scene::{
    Scene, Wire, pattern, register, send, silent, slice, succeeded, together, write,
};
use crate::Region;
use farside_base::{Access, AtomicScope, CompletionKind, Operation, RemoteSlice};

/// Of two WRITEs each: lengths that take different paths through a fabric, most of them odd.
const LENGTHS: [[usize; 2]; 7] = [
    [1, 8],
    [64, 7],
    [100, 4097],
    [9000, 3],
    [40_000, 65_536],
    [70_001, 20_000],
    [300_000, 131_077],
];
const BYTES: usize = 1 << 19;

/// Returns a region of the target with `access`, as imported by the other side.
fn relaxed(scene: &mut Scene<'_>, wire: &Wire, access: Access) -> (Region, RemoteSlice) {
    let access = access.with(Access::RELAXED_ORDERING);
    let region = register(&*scene.nodes[wire.to].fabric, BYTES as u64, access);
    let imported = scene.nodes[wire.from].port().import(wire.here, &region.token);
    (region, RemoteSlice { region: imported.expect("a valid token"), offset: 0 })
}

fn behind(at: RemoteSlice, offset: usize) -> RemoteSlice {
    RemoteSlice { offset: at.offset + offset as u64, ..at }
}

pub(super) fn relaxed_memory_is_whole_behind_a_message(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let has = scene.capabilities;
    if !has.write || !has.send || !has.message_order {
        return;
    }
    let near = register(&*scene.nodes[0].fabric, BYTES as u64, Access::NONE);
    let (far, at) = relaxed(&mut scene, &wire, Access::ALL);
    let most = usize::try_from(has.transfer_bytes_max).unwrap_or(usize::MAX);
    let all = (0..12).flat_map(|_| LENGTHS);
    let rounds: Vec<_> =
        (0_u64..).zip(all.filter(|both| both.iter().max() <= Some(&most))).collect();
    scene.receive(1, 0, 50_000, 8);
    scene.receive(0, 0, 60_000, 8);
    together(
        &mut scene,
        |near_side| {
            for &(round, [first, second]) in &rounds {
                let data = pattern(round, first + second);
                near.arena.write(0, &data).expect("fits");
                let slices = [slice(&near, 0, first), slice(&near, first as u64, second)];
                let word = [near_side.nodes[0].slice(0, 8)];
                let list = [
                    silent(1, wire.here, write(&slices[..1], at)),
                    silent(2, wire.here, write(&slices[1..], behind(at, first))),
                    silent(3, wire.here, send(&word)),
                ];
                near_side.post(0, &list);
                succeeded(&near_side.completion(0), CompletionKind::Receive, 8);
                near_side.receive(0, round + 1, 60_000, 8);
            }
        },
        |far_side| {
            for &(round, [first, second]) in &rounds {
                succeeded(&far_side.completion(0), CompletionKind::Receive, 8);
                let mut got = vec![0; first + second];
                far.arena.read(0, &mut got).expect("fits");
                assert!(got == pattern(round, first + second), "{first} + {second} bytes");
                far_side.receive(0, round + 1, 50_000, 8);
                let word = [far_side.nodes[0].slice(0, 8)];
                far_side.post(0, &[silent(1, wire.there, send(&word))]);
            }
        },
    );
}

pub(super) fn relaxed_memory_is_read_and_counted_as_any_other(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let has = scene.capabilities;
    let near = register(&*scene.nodes[0].fabric, BYTES as u64, Access::NONE);
    let (far, at) = relaxed(&mut scene, &wire, Access::ALL);
    for length in LENGTHS.into_iter().flatten() {
        if !has.read || length as u64 > has.transfer_bytes_max {
            continue;
        }
        let data = pattern(length as u64, length);
        far.arena.write(3, &data).expect("fits");
        let into = [slice(&near, 0, length)];
        let read = Operation::Read { into: &into, from: behind(at, 3) };
        succeeded(&scene.perform(&wire, read), CompletionKind::Read, length);
        let mut got = vec![0; length];
        near.arena.read(0, &mut got).expect("fits");
        assert!(got == data, "{length} bytes");
    }
    if has.atomics > AtomicScope::None {
        let into = slice(&near, 0, 8);
        far.arena.write(64, &7_u64.to_ne_bytes()).expect("fits");
        for before in 7..10_u64 {
            let add = Operation::FetchAdd { at: behind(at, 64), add: 1, into };
            succeeded(&scene.perform(&wire, add), CompletionKind::Atomic, 8);
            let mut word = [0; 8];
            near.arena.read(0, &mut word).expect("fits");
            assert_eq!(u64::from_ne_bytes(word), before);
        }
    }
}
