//! ATOMIC WRITE and FLUSH, and memory provided by the caller.

use super::Subject;
use super::scene::{Scene, Wire, pattern, silent, slice, succeeded, work, write};
use crate::{Arena, FabricError, Region, RegionSpec, Stop};
use farside_base::{
    Access, CompletionKind, CompletionStatus, FlushScope, Operation, RegionKind, RemoteSlice,
};
use std::sync::atomic::Ordering;

const BYTES: u64 = 8192;

fn region(scene: &Scene<'_>, node: usize, access: Access) -> Result<Region, FabricError> {
    let spec = RegionSpec { bytes: BYTES, access, kind: RegionKind::Memory };
    scene.nodes[node].fabric.register(&spec)
}

/// Returns a pair whose second node has a region with this access.
fn pair(subject: &dyn Subject, access: Access) -> (Scene<'_>, Wire, Region, RemoteSlice) {
    let (mut scene, wire) = Scene::pair(subject);
    let region = region(&scene, 1, access).expect("access that the fabric can give");
    let imported = scene.nodes[0].port().import(wire.here, &region.token);
    let at = RemoteSlice { region: imported.expect("a valid token"), offset: 0 };
    (scene, wire, region, at)
}

pub(super) fn atomic_write_replaces_a_word_after_what_came_before(subject: &dyn Subject) {
    let (mut scene, wire, region, at) = pair(subject, Access::ALL);
    let has = scene.capabilities;
    if !has.atomic_write || !has.write {
        return;
    }
    let slices = [scene.nodes[0].slice(0, 4000)];
    for round in 1..=50_u64 {
        let data = pattern(round, 4000);
        scene.nodes[0].put(0, &data);
        let flag = RemoteSlice { offset: 4096, ..at };
        let list = [
            silent(1, wire.here, write(&slices, at)),
            work(2, wire.here, Operation::AtomicWrite { to: flag, value: round << 32 | round }),
        ];
        scene.post(0, &list);
        let seen = || region.arena.load(4096, Ordering::Acquire) == Ok(round << 32 | round);
        scene.until("the word", |_| seen().then_some(()));
        let mut found = vec![0; 4000];
        region.arena.read(0, &mut found).expect("within the region");
        assert!(found == data, "the word was there before the bytes, round {round}");
        succeeded(&scene.completion(0), CompletionKind::AtomicWrite, 0);
    }
    let odd = RemoteSlice { offset: 4100, ..at };
    let done = scene.perform(&wire, Operation::AtomicWrite { to: odd, value: 1 });
    assert_eq!(done.status, CompletionStatus::RemoteAlignment, "{done:?}");
}

pub(super) fn flush_completes_once_everything_before_it_is_visible(subject: &dyn Subject) {
    let (scene, _) = Scene::pair(subject);
    if scene.capabilities.flush == FlushScope::None || !scene.capabilities.write {
        return;
    }
    drop(scene);
    let (mut scene, wire, region, at) = pair(subject, Access::ALL.with(Access::FLUSH));
    let slices = [scene.nodes[0].slice(0, 4000)];
    let scope = FlushScope::Visible;
    for round in 0..50 {
        let data = pattern(round, 4000);
        scene.nodes[0].put(0, &data);
        // A range, and the whole region.
        let bytes = if round % 2 == 0 { 4000 } else { 0 };
        let list = [
            silent(1, wire.here, write(&slices, at)),
            work(2, wire.here, Operation::Flush { from: at, bytes, scope }),
        ];
        scene.post(0, &list);
        succeeded(&scene.completion(0), CompletionKind::Flush, 0);
        let mut found = vec![0; 4000];
        region.arena.read(0, &mut found).expect("within the region");
        assert!(found == data, "flushed, but not visible, round {round}");
    }
    let past = Operation::Flush { from: at, bytes: BYTES + 1, scope };
    let done = scene.perform(&wire, past);
    assert_eq!(done.status, CompletionStatus::RemoteAccess, "{done:?}");
}

pub(super) fn flush_needs_its_permission(subject: &dyn Subject) {
    let (mut scene, wire, _, at) = pair(subject, Access::ALL);
    if scene.capabilities.flush == FlushScope::None {
        return;
    }
    let flush = Operation::Flush { from: at, bytes: 8, scope: FlushScope::Visible };
    let done = scene.perform(&wire, flush);
    assert_eq!(done.status, CompletionStatus::RemoteAccess, "{done:?}");
}

pub(super) fn what_cannot_be_flushed_is_refused_by_name(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let has = scene.capabilities;
    // Ordinary memory cannot keep anything, wherever.
    let kept = region(&scene, 0, Access::ALL.with(Access::FLUSH_PERSISTENT));
    assert!(kept.is_err(), "ordinary memory is not persistent");
    for scope in [FlushScope::None, FlushScope::Visible, FlushScope::Persistent] {
        if scope > has.flush || scope == FlushScope::None {
            let flush = Operation::Flush { from: wire.at(0), bytes: 8, scope };
            let (accepted, stop) = scene.try_post(0, &[work(1, wire.here, flush)]);
            assert_eq!((accepted, stop), (0, Some(Stop::Invalid("lacks flush"))));
        }
    }
    if has.flush == FlushScope::None {
        let refused = region(&scene, 0, Access::ALL.with(Access::FLUSH));
        assert!(matches!(refused, Err(FabricError::Lacks("flush"))), "{refused:?}");
    }
    if !has.atomic_write {
        let request = Operation::AtomicWrite { to: wire.at(0), value: 1 };
        let (accepted, stop) = scene.try_post(0, &[work(1, wire.here, request)]);
        assert_eq!((accepted, stop), (0, Some(Stop::Invalid("lacks atomic_write"))));
    }
    scene.works(&wire);
}

pub(super) fn memory_that_the_caller_brings_serves_like_any_other(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let own = Arena::try_heap(BYTES as usize).expect("memory");
    let registered = scene.nodes[1].fabric.register_memory(own.clone(), Access::ALL);
    if !scene.capabilities.own_memory {
        assert!(matches!(registered, Err(FabricError::Lacks("own_memory"))), "{registered:?}");
        return;
    }
    let region = registered.expect("memory to be registered");
    assert_eq!(region.token.bytes, BYTES);
    own.write(100, b"before").expect("within it");
    let imported = scene.nodes[0].port().import(wire.here, &region.token).expect("a valid token");
    let at = RemoteSlice { region: imported, offset: 100 };
    if scene.capabilities.read {
        let into = [scene.nodes[0].slice(0, 6)];
        let done = scene.perform(&wire, Operation::Read { into: &into, from: at });
        succeeded(&done, CompletionKind::Read, 6);
        assert_eq!(scene.nodes[0].bytes_at(0, 6), b"before");
    }
    if scene.capabilities.write {
        scene.nodes[0].put(0, b"after!");
        let from = [scene.nodes[0].slice(0, 6)];
        let done = scene.perform(&wire, write(&from, at));
        succeeded(&done, CompletionKind::Write, 6);
        let here = |own: &Arena| {
            let mut found = [0; 6];
            own.read(100, &mut found).expect("within it");
            &found == b"after!"
        };
        scene.until("bytes to be placed", |_| here(&own).then_some(()));
    }
    // It can be used as a local region too.
    let wide = [slice(&region, BYTES - 8, 9)];
    let wire_back = wire.reversed();
    let (accepted, stop) = scene.try_post(1, &[work(1, wire.there, write(&wide, wire_back.at(0)))]);
    let refused = if scene.capabilities.write { "local bounds" } else { "lacks write" };
    assert_eq!((accepted, stop), (0, Some(Stop::Invalid(refused))));
    scene.nodes[1].fabric.deregister(region.id).expect("a region to be ended");
    own.write(0, b"still here").expect("the memory stays with its owner");
}
