//! Refusals: invalid local requests, forged and forbidden ones at the target, and everything that a
//! fabric declares that it lacks.

use super::Subject;
use super::scene::{Scene, Wire, atomics, pattern, register, send, slice, succeeded, work, write};
use crate::{FabricError, RegionSpec, Stop};
use farside_base::{
    Access, AtomicScope, CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation, Receive,
    ReceiveQueueId, RegionId, RegionKind, RemoteRegionId, RemoteSlice, Source, WorkId,
};

/// Posts a good request, the bad one and another good one: the first is done, the second refused by
/// name without an effect, the third not reached.
#[track_caller]
fn refused_in_list(
    scene: &mut Scene<'_>,
    wire: &Wire,
    link: LinkId,
    bad: Operation<'_>,
    name: &'static str,
) {
    let data = pattern(9, 8);
    scene.nodes[0].put(8, &data);
    scene.nodes[1].put(0, &[0xee; 64]);
    let slices = [scene.nodes[0].slice(8, 8)];
    let (has, to) = (scene.capabilities, wire.at(0));
    let good = match (has.write, has.read) {
        (true, _) => write(&slices, to),
        (_, true) => Operation::Read { into: &slices, from: to },
        _ => send(&slices),
    };
    let messages = matches!(good, Operation::Send { .. });
    if messages {
        scene.receive(1, 7, 0, 8);
        scene.receive(1, 8, 16, 8);
    }
    let list = [work(1, wire.here, good), work(2, link, bad), work(3, wire.here, good)];
    let (accepted, stop) = scene.try_post(0, &list);
    assert_eq!((accepted, stop), (1, Some(Stop::Invalid(name))));
    let done = scene.completion(0);
    let success = CompletionStatus::Success;
    assert_eq!((done.id, done.status), (WorkId(1), success), "{done:?}");
    if messages {
        assert_eq!(scene.completion(1).id, WorkId(7));
    }
    if has.write || messages {
        scene.memory_is(1, 0, &[&data[..], &[0xee; 56]].concat());
    }
    scene.quiet(0);
    scene.quiet(1);
    if messages {
        succeeded(&scene.perform(wire, good), CompletionKind::Send, 8);
        assert_eq!(scene.completion(1).id, WorkId(8));
    }
}

pub(super) fn unknown_link_is_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let slices = [scene.nodes[0].slice(0, 8)];
    for link in [LinkId(u32::MAX), LinkId(wire.here.0 + 1000)] {
        let bad = send(&slices);
        let bad = if scene.capabilities.send { bad } else { write(&slices, wire.at(32)) };
        refused_in_list(&mut scene, &wire, link, bad, "link");
    }
    scene.works(&wire);
}

/// Returns a WRITE and a READ of these local slices, as far as the fabric can.
fn uses<'a>(scene: &Scene<'_>, wire: &Wire, slices: &'a [LocalSlice]) -> Vec<Operation<'a>> {
    let read = Operation::Read { into: slices, from: wire.at(32) };
    let mut list = Vec::new();
    list.extend(scene.capabilities.write.then(|| write(slices, wire.at(32))));
    list.extend(scene.capabilities.read.then_some(read));
    list.extend(scene.capabilities.send.then(|| send(slices)));
    list
}

pub(super) fn unknown_local_region_is_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let ended = register(&*scene.nodes[0].fabric, 4096, Access::ALL);
    scene.nodes[0].fabric.deregister(ended.id).expect("a region to be ended");
    for region in [ended.id, RegionId(u32::MAX)] {
        let good = scene.nodes[0].slice(0, 8);
        let slices = [good, LocalSlice { region, ..good }];
        let slices = if scene.capabilities.slices_max > 1 { &slices[..] } else { &slices[1..] };
        for bad in uses(&scene, &wire, slices) {
            refused_in_list(&mut scene, &wire, wire.here, bad, "local region");
        }
    }
    scene.works(&wire);
}

pub(super) fn local_bounds_are_held_to_the_byte(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let end = scene.nodes[0].region.token.bytes;
    for (offset, bytes) in [(end, 1), (end - 7, 8), (end + 1, 0), (u64::MAX, 1), (u64::MAX - 6, 8)]
    {
        let slices = [scene.nodes[0].slice(offset, bytes)];
        for bad in uses(&scene, &wire, &slices) {
            refused_in_list(&mut scene, &wire, wire.here, bad, "local bounds");
        }
    }
    scene.works(&wire);
}

pub(super) fn too_many_slices_are_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let count = scene.capabilities.slices_max as usize + 1;
    let slices = vec![scene.nodes[0].slice(0, 1); count];
    for bad in uses(&scene, &wire, &slices) {
        refused_in_list(&mut scene, &wire, wire.here, bad, "too many slices");
    }
}

pub(super) fn too_many_inline_bytes_are_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let bytes = vec![1; scene.capabilities.inline_bytes_max as usize + 1];
    if scene.capabilities.write {
        let bad =
            Operation::Write { source: Source::Inline(&bytes), to: wire.at(32), immediate: None };
        refused_in_list(&mut scene, &wire, wire.here, bad, "inline too long");
    }
}

pub(super) fn too_long_messages_are_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let most = u64::from(scene.capabilities.send_bytes_max);
    if scene.capabilities.send && most <= 1 << 26 {
        let long = register(&*scene.nodes[0].fabric, most + 1, Access::NONE);
        let slices = [slice(&long, 0, most as usize + 1)];
        refused_in_list(&mut scene, &wire, wire.here, send(&slices), "send too long");
    }
    let most = scene.capabilities.transfer_bytes_max;
    if scene.capabilities.write && most < 1 << 26 {
        let long = register(&*scene.nodes[0].fabric, most + 1, Access::NONE);
        let slices = [slice(&long, 0, most as usize + 1)];
        let bad = write(&slices, wire.at(0));
        refused_in_list(&mut scene, &wire, wire.here, bad, "transfer too long");
    }
}

pub(super) fn atomic_result_must_be_an_aligned_word(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    for (offset, bytes) in [(4, 8), (8, 4), (8, 16), (8, 0), (1, 8)] {
        let into = scene.nodes[0].slice(offset, bytes);
        for bad in atomics(&scene.capabilities, wire.at(32), into) {
            refused_in_list(&mut scene, &wire, wire.here, bad, "atomic slice");
        }
    }
}

pub(super) fn remote_region_of_another_link_is_refused(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 3);
    let (wire, other) = (scene.wire(0, 1), scene.wire(0, 2));
    let slices = [scene.nodes[0].slice(0, 8)];
    let into = scene.nodes[0].slice(0, 8);
    for region in [other.target, RemoteRegionId(u32::MAX)] {
        let place = RemoteSlice { region, offset: 32 };
        let mut bad = atomics(&scene.capabilities, place, into);
        bad.extend(scene.capabilities.write.then(|| write(&slices, place)));
        for bad in bad {
            refused_in_list(&mut scene, &wire, wire.here, bad, "remote region");
        }
    }
    scene.works(&other);
}

pub(super) fn bad_receives_are_refused(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    if !scene.capabilities.send {
        return;
    }
    let good =
        Receive { id: WorkId(1), queue: scene.nodes[1].queue, into: scene.nodes[1].slice(0, 64) };
    let of = |into| Receive { into, ..good };
    let end = scene.nodes[1].region.token.bytes;
    let nowhere = LocalSlice { region: RegionId(u32::MAX), ..good.into };
    let queue = ReceiveQueueId(u32::MAX);
    let bad = [
        (of(nowhere), "local region"),
        (of(scene.nodes[1].slice(end, 1)), "local bounds"),
        (of(scene.nodes[1].slice(u64::MAX, 8)), "local bounds"),
        (Receive { queue, ..good }, "receive queue"),
    ];
    for (bad, name) in bad {
        let posted = scene.nodes[1].port().post_receives(&[good, bad, good]);
        assert_eq!((posted.accepted, posted.stop), (1, Some(Stop::Invalid(name))));
    }
    let slices = [scene.nodes[0].slice(0, 8)];
    for _ in bad {
        succeeded(&scene.perform(&wire, send(&slices)), CompletionKind::Send, 8);
        assert_eq!(scene.completion(1).id, WorkId(1), "those before the bad one are there");
    }
}

pub(super) fn oversized_regions_are_refused(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1);
    let most = scene.capabilities.region_bytes_max;
    for bytes in [u64::MAX, most.saturating_add(1)].into_iter().filter(|bytes| *bytes > most) {
        let spec = RegionSpec { bytes, access: Access::ALL, kind: RegionKind::Memory };
        let region = scene.nodes[0].fabric.register(&spec);
        assert!(matches!(region, Err(FabricError::Limit("region_bytes_max"))), "{region:?}");
    }
    // Both mappings count, and a missing kind is reported first.
    if scene.capabilities.mirrored_regions && most < u64::MAX / 2 {
        let (bytes, kind) = (most / 2 + 1, RegionKind::Mirrored);
        let spec = RegionSpec { bytes, access: Access::ALL, kind };
        let region = scene.nodes[0].fabric.register(&spec);
        assert!(matches!(region, Err(FabricError::Limit("region_bytes_max"))), "{region:?}");
    }
}

pub(super) fn what_is_lacking_is_refused_by_name(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let has = scene.capabilities;
    let slices = [scene.nodes[0].slice(0, 8)];
    let into = scene.nodes[0].slice(0, 8);
    let read = Operation::Read { into: &slices, from: wire.at(8) };
    let add = Operation::FetchAdd { at: wire.at(8), add: 1, into };
    let swap = Operation::Swap { at: wire.at(8), new: 1, into };
    let announce = Operation::Send { source: Source::Gather(&slices), immediate: Some(1) };
    let table = [
        (has.write, write(&slices, wire.at(8)), "lacks write"),
        (has.read, read, "lacks read"),
        (has.send, send(&slices), "lacks send"),
        (has.atomics > AtomicScope::None, add, "lacks atomics"),
        (has.extended_atomics || has.atomics == AtomicScope::None, swap, "lacks extended_atomics"),
        (has.immediate || !has.send, announce, "lacks immediate"),
    ];
    for (_, operation, name) in table.into_iter().filter(|(has, ..)| !has) {
        let (accepted, stop) = scene.try_post(0, &[work(1, wire.here, operation)]);
        assert_eq!((accepted, stop), (0, Some(Stop::Invalid(name))));
    }
    if !has.shared_receive_queue {
        let (address, queue) = (scene.nodes[1].address.clone(), scene.nodes[0].queue);
        let second = scene.nodes[0].port().connect(&address, &[], queue);
        let lacks = matches!(second, Err(FabricError::Lacks("shared_receive_queue")));
        assert!(lacks, "{second:?}");
    }
    if !has.sleep {
        assert!(scene.nodes[0].port().arm(), "no sleep: the caller must always poll");
    }
    scene.quiet(0);
}
