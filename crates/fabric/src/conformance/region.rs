//! Kinds of regions: mirrored memory, whose end is followed by its beginning, and device memory.

use super::Subject;
use super::scene::{Scene, Wire, pattern, slice, succeeded, write};
use crate::{Fabric, FabricError, Region, RegionSpec, Stop};
use farside_base::{
    Access, AtomicScope, CompletionKind, CompletionStatus, Operation, RegionKind, RemoteSlice,
};
use std::sync::atomic::Ordering;

fn try_register(fabric: &dyn Fabric, bytes: u64, kind: RegionKind) -> Result<Region, FabricError> {
    fabric.register(&RegionSpec { bytes, access: Access::ALL, kind })
}

#[track_caller]
fn register(fabric: &dyn Fabric, bytes: u64, kind: RegionKind) -> Region {
    let region = try_register(fabric, bytes, kind).expect("a kind that is declared");
    let addressed = if region.device.is_some() { 0 } else { region.token.bytes };
    assert_eq!(region.arena.len() as u64, addressed, "the token covers the arena");
    region
}

/// Returns the bytes of one mapping of a mirrored region that was requested with `bytes`.
#[track_caller]
fn turn_of(region: &Region, bytes: u64) -> u64 {
    let turn = region.token.bytes / 2;
    assert_eq!(region.token.bytes, 2 * turn);
    assert!(turn >= bytes, "a turn of {turn} B holds the {bytes} B that were asked for");
    turn
}

fn mirrored_pair(subject: &dyn Subject) -> Option<(Scene<'_>, Wire)> {
    let (scene, wire) = Scene::pair(subject);
    scene.capabilities.mirrored_regions.then_some((scene, wire))
}

#[track_caller]
fn import(scene: &mut Scene<'_>, wire: &Wire, region: &Region) -> RemoteSlice {
    let imported = scene.nodes[wire.from].port().import(wire.here, &region.token);
    RemoteSlice { region: imported.expect("a valid token"), offset: 0 }
}

fn bytes_at(region: &Region, offset: u64, bytes: usize) -> Vec<u8> {
    let mut out = vec![0; bytes];
    region.arena.read(offset, &mut out).expect("within the region");
    out
}

pub(super) fn end_of_a_mirrored_region_joins_its_beginning_here(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1);
    if !scene.capabilities.mirrored_regions {
        return;
    }
    for bytes in [1, 4096, 5000, 65_536] {
        let region = register(&*scene.nodes[0].fabric, bytes, RegionKind::Mirrored);
        let turn = turn_of(&region, bytes);
        assert_eq!(bytes_at(&region, 0, 2 * turn as usize), vec![0; 2 * turn as usize]);
        let data = pattern(bytes, 200);
        region.arena.write(turn - 77, &data).expect("within two turns");
        assert_eq!(bytes_at(&region, turn - 77, 200), data);
        assert_eq!(bytes_at(&region, 0, 123), data[77..]);
        assert_eq!(bytes_at(&region, 2 * turn - 77, 77), data[..77]);
        let word = region.arena.load(turn + 8, Ordering::Acquire).expect("a word");
        assert_eq!(region.arena.fetch_add(8, 1), Ok(word));
        assert_eq!(region.arena.load(turn + 8, Ordering::Acquire), Ok(word.wrapping_add(1)));
        assert!(region.arena.write(2 * turn - 1, &[0; 2]).is_err(), "two turns and no more");
        scene.nodes[0].fabric.deregister(region.id).expect("a region to be ended");
    }
}

pub(super) fn requests_pass_the_joint_of_a_mirrored_region(subject: &dyn Subject) {
    let Some((mut scene, wire)) = mirrored_pair(subject) else {
        return;
    };
    let [near, far] =
        [0, 1].map(|node| register(&*scene.nodes[node].fabric, 5000, RegionKind::Mirrored));
    let (own, turn) = (turn_of(&near, 5000), turn_of(&far, 5000));
    let there = import(&mut scene, &wire, &far);
    let most = scene.capabilities.transfer_bytes_max;
    let ranges = [(1, 2), (8, 16), (77, 200), (2048, 4096)];
    for (at, bytes) in ranges.into_iter().filter(|(_, bytes)| *bytes as u64 <= most) {
        let data = pattern(at, bytes);
        let (before, after) = data.split_at(at as usize);
        let joint = RemoteSlice { offset: turn - at, ..there };
        // The local side crosses its boundary too.
        let slices = [slice(&near, own - at, bytes)];
        if scene.capabilities.write {
            near.arena.write(own - at, &data).expect("within two turns");
            let done = scene.perform(&wire, write(&slices, joint));
            succeeded(&done, CompletionKind::Write, bytes);
            scene.until("bytes to be placed", |_| {
                (bytes_at(&far, turn - at, bytes) == data).then_some(())
            });
            assert_eq!(bytes_at(&far, 0, after.len()), after);
            assert_eq!(bytes_at(&far, 2 * turn - at, before.len()), before);
        }
        if scene.capabilities.read {
            let data = pattern(at + 1, bytes);
            let (before, after) = data.split_at(at as usize);
            far.arena.write(0, after).expect("within a turn");
            far.arena.write(turn - at, before).expect("within a turn");
            let done = scene.perform(&wire, Operation::Read { into: &slices, from: joint });
            succeeded(&done, CompletionKind::Read, bytes);
            assert_eq!(bytes_at(&near, own - at, bytes), data);
            assert_eq!(bytes_at(&near, 0, after.len()), after);
        }
    }
    if scene.capabilities.atomics > AtomicScope::None {
        far.arena.store(64, 40, Ordering::Release).expect("a word");
        let into = slice(&near, own + 8, 8);
        let at = RemoteSlice { offset: turn + 64, ..there };
        let done = scene.perform(&wire, Operation::FetchAdd { at, add: 2, into });
        succeeded(&done, CompletionKind::Atomic, 8);
        assert_eq!(near.arena.load(8, Ordering::Acquire), Ok(40));
        scene.until("the sum", |_| (far.arena.load(64, Ordering::Acquire) == Ok(42)).then_some(()));
    }
}

pub(super) fn bounds_of_a_mirrored_region_are_two_turns(subject: &dyn Subject) {
    let Some((mut scene, wire)) = mirrored_pair(subject) else {
        return;
    };
    let region = register(&*scene.nodes[1].fabric, 4096, RegionKind::Mirrored);
    let end = region.token.bytes;
    let there = import(&mut scene, &wire, &region);
    if !scene.capabilities.write {
        return;
    }
    let last = RemoteSlice { offset: end - 8, ..there };
    let slices = [scene.nodes[0].slice(0, 8)];
    succeeded(&scene.perform(&wire, write(&slices, last)), CompletionKind::Write, 8);
    let own = register(&*scene.nodes[0].fabric, 4096, RegionKind::Mirrored);
    let beyond = [slice(&own, own.token.bytes - 8, 9)];
    let refused = scene.try_post(0, &[super::scene::work(1, wire.here, write(&beyond, there))]);
    assert_eq!(refused, (0, Some(Stop::Invalid("local bounds"))));
    let slices = [scene.nodes[0].slice(0, 9)];
    let done = scene.perform(&wire, write(&slices, last));
    assert_eq!(done.status, CompletionStatus::RemoteAccess);
}

pub(super) fn memory_at_the_adapter_serves_like_any_other(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let has = scene.capabilities;
    let bytes = has.device_bytes_max.min(4096);
    if bytes < 256 {
        return;
    }
    let region = register(&*scene.nodes[1].fabric, bytes, RegionKind::Device);
    assert!(region.token.bytes >= bytes);
    let there = import(&mut scene, &wire, &region);
    let data = pattern(5, 128);
    let slices = [scene.nodes[0].slice(64, 128)];
    let mut word = 7;
    region.memory().store_word(0, word).expect("a word");
    if has.write {
        scene.nodes[0].put(64, &data);
        let done = scene.perform(&wire, write(&slices, RemoteSlice { offset: 128, ..there }));
        succeeded(&done, CompletionKind::Write, 128);
        scene.until("bytes to be placed", |_| {
            let mut placed = [0; 128];
            region.memory().read(128, &mut placed).expect("within the region");
            (placed == data[..]).then_some(())
        });
    }
    if has.atomics > AtomicScope::None {
        let into = scene.nodes[0].slice(8, 8);
        for add in [1, 5] {
            let done = scene.perform(&wire, Operation::FetchAdd { at: there, add, into });
            succeeded(&done, CompletionKind::Atomic, 8);
            assert_eq!(scene.nodes[0].bytes_at(8, 8), word.to_ne_bytes());
            word += add;
        }
        scene.until("the sum", |_| (region.memory().load_word(0) == Ok(word)).then_some(()));
    }
    if has.read {
        region.memory().write(128, &data).expect("within the region");
        let from = RemoteSlice { offset: 128, ..there };
        let done = scene.perform(&wire, Operation::Read { into: &slices, from });
        succeeded(&done, CompletionKind::Read, 128);
        assert_eq!(scene.nodes[0].bytes_at(64, 128), data);
        // The owner's word, as its peers see it.
        region.memory().store_word(8, u64::MAX - 1).expect("a word");
        let into = [scene.nodes[0].slice(64, 8)];
        let from = RemoteSlice { offset: 8, ..there };
        succeeded(
            &scene.perform(&wire, Operation::Read { into: &into, from }),
            CompletionKind::Read,
            8,
        );
        assert_eq!(scene.nodes[0].bytes_at(64, 8), (u64::MAX - 1).to_ne_bytes());
    }
    let end = region.token.bytes;
    assert_eq!(region.memory().load_word(end), Err(crate::OutOfBounds));
    assert_eq!(region.memory().store_word(4, 1), Err(crate::OutOfBounds), "misaligned");
    scene.nodes[1].fabric.deregister(region.id).expect("a region to be ended");
}

pub(super) fn what_is_reached_is_what_lies_there(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let reach = |scene: &mut Scene<'_>, at: RemoteSlice| {
        scene.nodes[wire.from].port().reach(wire.here, at.region)
    };
    let kinds = [RegionKind::Memory, RegionKind::Sparse, RegionKind::Mirrored];
    for kind in &kinds[..2 + usize::from(scene.capabilities.mirrored_regions)] {
        let region = register(&*scene.nodes[1].fabric, 4096, *kind);
        let there = import(&mut scene, &wire, &region);
        // A fabric without reachable regions uses READ.
        let reached = reach(&mut scene, there);
        assert_eq!(reached.is_some(), scene.capabilities.loads, "{kind:?}: as it is declared");
        let Some(reached) = reached else { continue };
        assert_eq!(reached.len() as u64, region.token.bytes);
        let look = |offset| {
            let mut out = [0; 100];
            reached.read(offset, &mut out).map(|()| out)
        };
        let data = pattern(9, 100);
        region.arena.write(700, &data).expect("within the region");
        region.arena.store(64, 5, Ordering::Release).expect("a word");
        assert_eq!((reached.load_word(64), &look(700).unwrap()[..]), (Ok(5), &data[..]));
        assert_eq!(reached.load_word_after(64), Ok(5));
        let last = region.token.bytes - 8;
        assert_eq!((reached.load_word(last), reached.load_word_after(last)), (Ok(0), Ok(0)));
        for outside in [last + 1, last + 8, u64::MAX] {
            assert!(
                reached.load_word(outside).is_err() && reached.load_word_after(outside).is_err()
            );
        }
        if scene.capabilities.write {
            scene.nodes[0].put(64, &data);
            let slices = [scene.nodes[0].slice(64, 100)];
            let done = scene.perform(&wire, write(&slices, RemoteSlice { offset: 1800, ..there }));
            succeeded(&done, CompletionKind::Write, 100);
            scene.until("what was written", |_| (look(1800).unwrap() == data[..]).then_some(()));
        }
        assert_eq!(look(region.token.bytes - 99), Err(crate::OutOfBounds));
        let stranger = RemoteSlice { region: farside_base::RemoteRegionId(u32::MAX), offset: 0 };
        assert!(reach(&mut scene, stranger).is_none(), "it was not imported");
        // It stays memory, whatever becomes of the region and the link.
        scene.nodes[1].fabric.deregister(region.id).expect("a region to be ended");
        assert!(reach(&mut scene, there).is_none(), "a region that was ended");
        assert!(look(700).is_ok() && reached.load_word(64).is_ok());
    }
    let secret = RegionSpec { bytes: 4096, access: Access::WRITE, kind: RegionKind::Memory };
    if scene.capabilities.write {
        let secret = scene.nodes[1].fabric.register(&secret).expect("a region");
        let there = import(&mut scene, &wire, &secret);
        assert!(reach(&mut scene, there).is_none(), "a region that may not be READ");
    }
    let last = register(&*scene.nodes[1].fabric, 4096, RegionKind::Memory);
    let there = import(&mut scene, &wire, &last);
    scene.nodes[wire.from].port().close(wire.here);
    assert!(reach(&mut scene, there).is_none(), "a link that was closed");
}

/// The rounds of the test below; a reader that mixes two of them sees unequal words.
const ROUNDS: u64 = 20_000;
const WORDS: u64 = 16;

pub(super) fn loads_see_stores_in_the_order_of_a_sequence_lock(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let spec = RegionSpec { bytes: 4096, access: Access::READ, kind: RegionKind::Sparse };
    let region = scene.nodes[1].fabric.register(&spec).expect("a region");
    let there = import(&mut scene, &wire, &region);
    let reached = scene.nodes[wire.from].port().reach(wire.here, there.region);
    assert_eq!(reached.is_some(), scene.capabilities.loads);
    let Some(reached) = reached else { return };
    let arena = region.arena;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                arena.store(0, 2 * round - 1, Ordering::Relaxed).expect("a word");
                std::sync::atomic::fence(Ordering::Release);
                for word in 0..WORDS {
                    arena.write(64 + 8 * word, &round.to_le_bytes()).expect("within the region");
                }
                arena.store(0, 2 * round, Ordering::Release).expect("a word");
            }
        });
        let mut newest = 0;
        while newest < ROUNDS {
            let before = reached.load_word(0).expect("a word");
            let mut words = [0; 8 * WORDS as usize];
            reached.read(64, &mut words).expect("within the region");
            if before % 2 == 0 && reached.load_word_after(0) == Ok(before) {
                let whole = words.chunks(8).all(|word| word == (before / 2).to_le_bytes());
                assert!(whole && before / 2 >= newest, "round {}: {words:?}", before / 2);
                newest = before / 2;
            }
        }
    });
}

pub(super) fn a_reached_word_outlives_its_link(subject: &dyn Subject) {
    let (mut scene, wire) = Scene::pair(subject);
    let region = register(&*scene.nodes[1].fabric, 4096, RegionKind::Memory);
    let there = import(&mut scene, &wire, &region);
    let word = |scene: &mut Scene<'_>, at: RemoteSlice| {
        scene.nodes[wire.from].port().reach_word(wire.here, at.region, at.offset)
    };
    let whole = scene.nodes[wire.from].port().reach(wire.here, there.region).is_some();
    let first = word(&mut scene, RemoteSlice { offset: 64, ..there });
    assert_eq!(first.is_some(), whole, "words are reached where regions are");
    // A fabric without reachable regions uses WRITE.
    let Some(first) = first else { return };
    for offset in [4, 4092, 4096, u64::MAX] {
        assert!(word(&mut scene, RemoteSlice { offset, ..there }).is_none(), "offset {offset}");
    }
    let spec = RegionSpec { bytes: 4096, access: Access::READ, kind: RegionKind::Memory };
    let sealed = scene.nodes[1].fabric.register(&spec).expect("a region");
    let sealed = import(&mut scene, &wire, &sealed);
    assert!(word(&mut scene, sealed).is_none(), "a region that may not be WRITTEN");
    first.store(7, Ordering::Release);
    assert_eq!(region.arena.load(64, Ordering::Acquire), Ok(7));
    scene.nodes[wire.from].port().close(wire.here);
    assert!(word(&mut scene, there).is_none(), "a link that was closed");
    first.store(8, Ordering::Release);
    assert_eq!(region.arena.load(64, Ordering::Acquire), Ok(8));
    region.arena.store(64, 9, Ordering::Release).expect("a word");
    assert_eq!(first.load(Ordering::Acquire), 9);
}

pub(super) fn memory_at_the_adapter_is_bounded_and_comes_back(subject: &dyn Subject) {
    let scene = Scene::new(subject, 2);
    let most = scene.capabilities.device_bytes_max;
    if most == 0 {
        return;
    }
    let fabric = &*scene.nodes[0].fabric;
    let take = |bytes| try_register(fabric, bytes, RegionKind::Device);
    let is_over = |region: Result<Region, FabricError>| {
        assert!(matches!(region, Err(FabricError::Limit("device_bytes_max"))), "{region:?}");
    };
    for _ in 0..3 {
        is_over(take(most + 1));
        is_over(take(u64::MAX));
        let all = take(most).expect("all there is");
        is_over(take(1));
        // Other memory, and other fabrics, keep their limits.
        register(fabric, most, RegionKind::Memory);
        let other = register(&*scene.nodes[1].fabric, most, RegionKind::Device);
        scene.nodes[1].fabric.deregister(other.id).expect("a region to be ended");
        // The arena may live on, but the device memory is freed.
        fabric.deregister(all.id).expect("a region to be ended");
        let halves = [take(most / 2), take(most / 2)].map(|half| half.expect("half of it"));
        for half in halves {
            fabric.deregister(half.id).expect("a region to be ended");
        }
    }
}

pub(super) fn kinds_that_are_lacking_are_refused_by_name(subject: &dyn Subject) {
    let scene = Scene::new(subject, 1);
    let has = scene.capabilities;
    let table = [
        (has.mirrored_regions, RegionKind::Mirrored, "mirrored_regions"),
        (has.device_bytes_max > 0, RegionKind::Device, "device_memory"),
    ];
    for (had, kind, lacking) in table {
        for bytes in [1, 4096] {
            match try_register(&*scene.nodes[0].fabric, bytes.min(has.region_bytes_max), kind) {
                Ok(_) => assert!(had, "{kind:?} is not declared"),
                Err(FabricError::Lacks(name)) => assert_eq!((had, name), (false, lacking)),
                Err(FabricError::Limit("device_bytes_max")) if had => {}
                Err(other) => panic!("{kind:?}: {other}"),
            }
        }
    }
}
