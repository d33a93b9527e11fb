//! WRITE and READ: every length, alignment and list, and no byte outside.

use super::Subject;
use super::scene::{
    LENGTHS, REGION_BYTES, Scene, Wire, pattern, register, slice, succeeded, work, write,
};
use farside_base::{Access, CompletionKind, LocalSlice, Operation, RemoteSlice, Source, WorkId};

/// Writes a pattern with a guard byte on either side, and checks the guards too.
fn check_write(scene: &mut Scene<'_>, wire: &Wire, from: u64, to: u64, bytes: usize) {
    let data = pattern(from ^ (to << 8) ^ bytes as u64, bytes);
    scene.nodes[wire.from].put(from, &data);
    scene.nodes[wire.to].put(to - 1, &vec![0xee; bytes + 2]);
    let slices = [scene.nodes[wire.from].slice(from, bytes)];
    let done = scene.perform(wire, write(&slices, wire.at(to)));
    succeeded(&done, CompletionKind::Write, bytes);
    scene.memory_is(wire.to, to - 1, &[&[0xee], &data[..], &[0xee]].concat());
}

fn check_read(scene: &mut Scene<'_>, wire: &Wire, into: u64, from: u64, bytes: usize) {
    let data = pattern(from ^ (into << 8) ^ bytes as u64, bytes);
    scene.nodes[wire.to].put(from, &data);
    scene.nodes[wire.from].put(into - 1, &vec![0xee; bytes + 2]);
    let slices = [scene.nodes[wire.from].slice(into, bytes)];
    let read = Operation::Read { into: &slices, from: wire.at(from) };
    let done = scene.perform(wire, read);
    succeeded(&done, CompletionKind::Read, bytes);
    let expected = [&[0xee], &data[..], &[0xee]].concat();
    assert_eq!(scene.nodes[wire.from].bytes_at(into - 1, bytes + 2), expected);
}

/// Returns the lengths around edges that one request may have.
fn lengths(scene: &Scene<'_>) -> impl Iterator<Item = usize> + use<> {
    let most = scene.capabilities.transfer_bytes_max;
    LENGTHS.into_iter().filter(move |bytes| *bytes as u64 <= most)
}

pub(super) fn write_moves_every_length(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    if scene.capabilities.write {
        for bytes in lengths(&scene) {
            check_write(&mut scene, &wire, 64, 128, bytes);
            check_write(&mut scene, &wire.reversed(), 65, 131, bytes);
        }
    }
}

pub(super) fn read_moves_every_length(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    if scene.capabilities.read {
        for bytes in lengths(&scene) {
            check_read(&mut scene, &wire, 64, 128, bytes);
            check_read(&mut scene, &wire.reversed(), 65, 131, bytes);
        }
    }
}

pub(super) fn every_alignment_is_exact(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    for from in 1..9 {
        for to in 1..9 {
            for bytes in [1, 3, 8, 13, 40, 200] {
                if scene.capabilities.write {
                    check_write(&mut scene, &wire, from, to, bytes);
                }
                if scene.capabilities.read {
                    check_read(&mut scene, &wire, from, to, bytes);
                }
            }
        }
    }
}

pub(super) fn inline_write_moves_every_length_up_to_the_limit(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let limit = scene.capabilities.inline_bytes_max as usize;
    if !scene.capabilities.write {
        return;
    }
    for bytes in LENGTHS.into_iter().filter(|bytes| *bytes < limit).chain([limit]) {
        let mut data = pattern(bytes as u64, bytes);
        let expected = data.clone();
        let operation =
            Operation::Write { source: Source::Inline(&data), to: wire.at(1000), immediate: None };
        scene.post(wire.from, &[work(9, wire.here, operation)]);
        // Inline bytes are copied out before `post` returns.
        data.fill(0xdd);
        let done = scene.completion(wire.from);
        assert_eq!(done.id, WorkId(9));
        succeeded(&done, CompletionKind::Write, bytes);
        scene.memory_is(wire.to, 1000, &expected);
    }
}

pub(super) fn longest_transfer_moves(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let capabilities = scene.capabilities;
    let most = capabilities.transfer_bytes_max.min(4 << 20);
    let most = most.min(capabilities.region_bytes_max) as usize;
    let near = register(&*scene.nodes[0].fabric, most as u64, Access::NONE);
    let far = register(&*scene.nodes[1].fabric, most as u64, Access::ALL);
    let imported = scene.nodes[0].port().import(wire.here, &far.token);
    let region = imported.expect("a valid token");
    let there = RemoteSlice { region, offset: 0 };
    let data = pattern(3, most);
    let slices = [slice(&near, 0, most)];
    let mut back = vec![0; most];
    if capabilities.write {
        near.arena.write(0, &data).expect("fits");
        succeeded(&scene.perform(&wire, write(&slices, there)), CompletionKind::Write, most);
        scene.until("bytes to be placed", |_| {
            far.arena.read(0, &mut back).expect("fits");
            (capabilities.completion_means_placed || back == data).then_some(())
        });
        assert!(back == data, "all bytes of the longest WRITE");
    }
    if capabilities.read {
        far.arena.write(0, &data).expect("fits");
        near.arena.zero(0, most).expect("fits");
        let read = Operation::Read { into: &slices, from: there };
        succeeded(&scene.perform(&wire, read), CompletionKind::Read, most);
        near.arena.read(0, &mut back).expect("fits");
        assert!(back == data, "all bytes of the longest READ");
    }
}

/// Cuts `bytes` into `count` separate slices, in falling order of address, some empty.
fn scattered(scene: &Scene<'_>, node: usize, count: usize) -> Vec<LocalSlice> {
    let place = |at: usize| REGION_BYTES / 2 - 600 * at as u64 - at as u64 % 7;
    let length = |at: usize| if at % 4 == 3 { 0 } else { 5 + 37 * at % 501 };
    (0..count).map(|at| scene.nodes[node].slice(place(at), length(at))).collect()
}

pub(super) fn gather_and_scatter_join_slices_in_list_order(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let most = scene.capabilities.slices_max as usize;
    for count in [0, 1, 2, 3, most.min(40)].into_iter().filter(|count| *count <= most) {
        let slices = scattered(&scene, 0, count);
        let bytes = slices.iter().map(|slice| slice.bytes as usize).sum();
        let data = pattern(count as u64, bytes);
        if scene.capabilities.write {
            let mut at = 0;
            for slice in &slices {
                let end = at + slice.bytes as usize;
                scene.nodes[0].put(slice.offset, &data[at..end]);
                at = end;
            }
            let done = scene.perform(&wire, write(&slices, wire.at(11)));
            succeeded(&done, CompletionKind::Write, bytes);
            scene.memory_is(1, 11, &data);
        }
        if scene.capabilities.read {
            scene.nodes[1].put(13, &data);
            let read = Operation::Read { into: &slices, from: wire.at(13) };
            succeeded(&scene.perform(&wire, read), CompletionKind::Read, bytes);
            let part =
                |slice: &LocalSlice| scene.nodes[0].bytes_at(slice.offset, slice.bytes as usize);
            assert_eq!(slices.iter().flat_map(part).collect::<Vec<_>>(), data);
        }
    }
}

pub(super) fn last_byte_of_a_region_is_reached(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let end = scene.nodes[1].region.token.bytes;
    for bytes in [1_usize, 8, 64, 1000] {
        let slices = [scene.nodes[0].slice(REGION_BYTES - bytes as u64, bytes)];
        let data = pattern(end + bytes as u64, bytes);
        if scene.capabilities.write {
            scene.nodes[0].put(slices[0].offset, &data);
            let place = end - bytes as u64;
            let done = scene.perform(&wire, write(&slices, wire.at(place)));
            succeeded(&done, CompletionKind::Write, bytes);
            scene.memory_is(1, place, &data);
        }
        if scene.capabilities.read {
            let read = Operation::Read { into: &slices, from: wire.at(end - bytes as u64) };
            succeeded(&scene.perform(&wire, read), CompletionKind::Read, bytes);
        }
    }
}

pub(super) fn region_starts_zeroed_and_serves_all_ports_of_its_fabric(subject: &dyn Subject) {
    let mut scene = Scene::new(subject, 2);
    assert!(scene.nodes[0].bytes_at(0, REGION_BYTES as usize).iter().all(|byte| *byte == 0));
    // A second node on the first fabric, which works on the region of the first node.
    let fabric = std::sync::Arc::clone(&scene.nodes[0].fabric);
    let mut second = super::scene::TestNode::new(fabric, subject.address());
    second.region = scene.nodes[0].region.clone();
    scene.nodes.push(second);
    let (first, second) = (scene.wire(0, 1), scene.wire(2, 1));
    scene.works(&first);
    scene.works(&second);
    scene.works(&first);
}
