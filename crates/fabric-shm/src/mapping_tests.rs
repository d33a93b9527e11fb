//! Regions and their memory: pages, permissions, numbers, and that memory is freed.

use crate::mapping::{
    HUGE_PAGE, PAGE, PeerMappings, PeerMemory, RegionMemory, SharedMapping, View,
};
use crate::{ShmFabric, ShmOptions};
use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, FabricError, RegionSpec};
use rustix::fd::AsFd;
use rustix::fs::fstat;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

fn spec(bytes: u64, access: Access) -> RegionSpec {
    RegionSpec { bytes, access, kind: RegionKind::Memory }
}

#[test]
fn large_memory_is_aligned_and_zeroed() {
    for bytes in [HUGE_PAGE, HUGE_PAGE + PAGE, 5 * HUGE_PAGE] {
        let memory = RegionMemory::new(bytes, RegionKind::Memory, PeerMappings::Write, |_| {})
            .expect("memory");
        let base = memory.arena.at(0, 1).expect("a byte").addr() as u64;
        assert!(base.is_multiple_of(HUGE_PAGE), "{bytes} B at {base:#x}");
        for offset in [0, bytes / 2, bytes - 8] {
            assert_eq!(memory.arena.load(offset, Ordering::Relaxed), Ok(0));
        }
        let peer =
            PeerMemory::new(memory.descriptor.as_fd(), bytes, RegionKind::Memory, Access::ALL);
        let peer = peer.expect("a mapping");
        let there = peer.allowed(Access::WRITE).expect("allowed");
        there.store(bytes - 8, 7, Ordering::Release).expect("in bounds");
        assert_eq!(memory.arena.load(bytes - 8, Ordering::Acquire), Ok(7));
        assert!((there.at(0, 1).expect("a byte").addr() as u64).is_multiple_of(HUGE_PAGE));
    }
}

#[test]
fn what_is_prefaulted_is_reported_and_bounded() {
    let bound = 3 * HUGE_PAGE + PAGE;
    for huge_pages in [true, false] {
        let options = ShmOptions { prefault_bytes_max: bound, huge_pages, ..ShmOptions::DEFAULT };
        let fabric = ShmFabric::with_options(options).expect("a fabric");
        let region = fabric.register(&spec(8 * HUGE_PAGE, Access::ALL)).expect("a region");
        let pages = fabric.describe(region.id).expect("a region");
        assert_eq!((pages.bytes, pages.prefaulted), (8 * HUGE_PAGE, bound), "{pages:?}");
        assert!(pages.reason.is_some(), "says that not all is filled: {pages:?}");
        assert!(pages.huge == 0 || huge_pages, "{pages:?}");
        assert!(pages.huge <= 3 * HUGE_PAGE, "{pages:?}");
        // The rest is accessible all the same.
        assert_eq!(region.arena.store(8 * HUGE_PAGE - 8, 1, Ordering::Relaxed), Ok(()));
    }
}

#[test]
fn sparse_regions_take_memory_where_they_are_written() {
    let fabric = ShmFabric::new().expect("a fabric");
    let spec = RegionSpec { kind: RegionKind::Sparse, ..spec(64 * HUGE_PAGE, Access::READ) };
    let region = fabric.register(&spec).expect("a region");
    let pages = fabric.describe(region.id).expect("a region");
    assert_eq!((pages.prefaulted, pages.huge, pages.reason), (0, 0, None));
    assert_eq!(region.arena.store(63 * HUGE_PAGE, 1, Ordering::Relaxed), Ok(()));
    let memory = RegionMemory::new(64 * HUGE_PAGE, RegionKind::Sparse, PeerMappings::Read, |_| {});
    let memory = memory.expect("memory");
    memory.arena.store(63 * HUGE_PAGE, 1, Ordering::Relaxed).expect("in bounds");
    let blocks = fstat(&memory.descriptor).expect("a file").st_blocks as u64;
    assert!(blocks * 512 <= PAGE, "one page of {} is used, not {blocks} blocks", 64 * HUGE_PAGE);
}

#[test]
fn vast_regions_cost_nothing_until_they_are_used() {
    let options = ShmOptions { prefault_bytes_max: HUGE_PAGE, ..ShmOptions::DEFAULT };
    let fabric = ShmFabric::with_options(options).expect("a fabric");
    let region = fabric.register(&spec(1 << 40, Access::ALL)).expect("a terabyte of nothing");
    assert_eq!(region.arena.store((1 << 40) - 8, 1, Ordering::Relaxed), Ok(()));
    let over = fabric.register(&spec((1 << 40) + 1, Access::ALL));
    assert!(matches!(over, Err(FabricError::Limit("region_bytes_max"))), "{over:?}");
}

/// Peers can map for writing only regions that they may change, whatever their own fabric requests.
#[test]
fn read_only_memory_cannot_be_mapped_for_writing() {
    for (access, writable) in [
        (Access::NONE, false),
        (Access::READ, false),
        (Access::WRITE, true),
        (Access::ATOMIC, true),
    ] {
        let memory = RegionMemory::new(PAGE, RegionKind::Memory, PeerMappings::of(access), |_| {})
            .expect("memory");
        let mapped =
            PeerMemory::new(memory.descriptor.as_fd(), PAGE, RegionKind::Memory, Access::ALL);
        assert_eq!(mapped.is_ok(), writable, "{access:?}");
        let mapped =
            PeerMemory::new(memory.descriptor.as_fd(), PAGE, RegionKind::Memory, Access::READ);
        assert!(mapped.is_ok_and(|memory| memory.allowed(Access::WRITE).is_none()));
    }
}

/// Both ends map the one memory twice in a row, each as far as it may.
#[test]
fn mirrored_memory_is_two_turns_of_one() {
    let kind = RegionKind::Mirrored;
    for bytes in [PAGE, 3 * PAGE, HUGE_PAGE, HUGE_PAGE + PAGE] {
        for access in [Access::ALL, Access::READ] {
            let memory =
                RegionMemory::new(bytes, kind, PeerMappings::of(access), |_| {}).expect("memory");
            assert_eq!(memory.arena.len() as u64, 2 * bytes);
            assert_eq!(fstat(&memory.descriptor).expect("a memfd").st_size as u64, bytes);
            memory.arena.write(bytes - 4, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("in bounds");
            let peer = PeerMemory::new(memory.descriptor.as_fd(), bytes, kind, access);
            let peer = peer.expect("a mapping");
            let there = peer.allowed(Access::READ).expect("allowed");
            assert_eq!(there.len() as u64, 2 * bytes);
            let mut back = [0; 4];
            for (offset, expected) in [(0, [5, 6, 7, 8]), (bytes, [5, 6, 7, 8])] {
                there.read(offset, &mut back).expect("in bounds");
                assert_eq!(back, expected);
            }
            there.read(2 * bytes - 4, &mut back).expect("in bounds");
            assert_eq!(back, [1, 2, 3, 4]);
            assert!(there.read(2 * bytes - 3, &mut back).is_err());
            if let Some(there) = peer.allowed(Access::WRITE) {
                there.store(bytes, 9, Ordering::Release).expect("in bounds");
                assert_eq!(memory.arena.load(0, Ordering::Acquire), Ok(9));
            }
        }
    }
}

#[test]
fn mirrored_memory_of_broken_pages_is_refused() {
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let broken = rustix::fs::memfd_create("farside-test", flags).expect("a memfd");
    rustix::fs::ftruncate(&broken, PAGE + 100).expect("a size");
    rustix::fs::fcntl_add_seals(&broken, rustix::fs::SealFlags::SHRINK).expect("a seal");
    let map = |kind| PeerMemory::new(broken.as_fd(), PAGE + 100, kind, Access::ALL);
    assert!(map(RegionKind::Mirrored).is_err());
    assert!(map(RegionKind::Memory).is_ok());
}

#[test]
fn memory_of_another_size_or_without_seals_is_refused() {
    let shared = SharedMapping::new("farside-test", PAGE, PeerMappings::Write).expect("memory");
    assert!(View::new(shared.descriptor.as_fd(), PAGE).is_ok());
    assert!(View::new(shared.descriptor.as_fd(), 2 * PAGE).is_err());
    let flags = rustix::fs::MemfdFlags::ALLOW_SEALING | rustix::fs::MemfdFlags::CLOEXEC;
    let unsealed = rustix::fs::memfd_create("farside-test", flags).expect("a memfd");
    rustix::fs::ftruncate(&unsealed, PAGE).expect("a size");
    assert!(View::new(unsealed.as_fd(), PAGE).is_err(), "it could shrink");
    let socket = crate::socket::listen(None, "test-of-seals").expect("a socket");
    assert!(View::new(socket.as_fd(), PAGE).is_err(), "no memory at all");
}

/// The pages of a deregistered region are freed with its last local arena, although a peer still maps
/// it; not before.
#[test]
fn memory_goes_back_with_the_last_arena() {
    let bytes = 4 * PAGE;
    let memory =
        RegionMemory::new(bytes, RegionKind::Memory, PeerMappings::Write, |_| {}).expect("memory");
    let peer = PeerMemory::new(memory.descriptor.as_fd(), bytes, RegionKind::Memory, Access::ALL);
    let peer = peer.expect("a mapping");
    let kept = memory.descriptor.as_fd().try_clone_to_owned().expect("a descriptor");
    let blocks = || fstat(&kept).expect("a memfd").st_blocks;
    memory.arena.store(0, 9, Ordering::Release).expect("in bounds");
    assert!(blocks() > 0);
    memory.descriptor.end();
    let arena = memory.arena.clone();
    drop(memory);
    assert_eq!(arena.load(0, Ordering::Acquire), Ok(9), "an arena keeps its bytes");
    drop(arena);
    assert_eq!(blocks(), 0);
    let there = peer.allowed(Access::READ).expect("allowed");
    assert_eq!(there.load(0, Ordering::Acquire), Ok(0), "a late reader finds zeroes");
}

#[test]
fn no_number_and_no_key_comes_twice() {
    let fabric = ShmFabric::new().expect("a fabric");
    let (mut numbers, mut keys) = (HashSet::new(), HashSet::new());
    for round in 0..200 {
        let regions: Vec<_> = (0..1 + round % 3)
            .map(|_| fabric.register(&spec(1, Access::ALL)).expect("a region"))
            .collect();
        for region in regions {
            assert!(numbers.insert(region.id) && keys.insert(region.token.key));
            assert_eq!(region.token.bytes, PAGE, "rounded up to what is registered");
            fabric.deregister(region.id).expect("a region");
            let again = fabric.deregister(region.id);
            assert!(matches!(again, Err(FabricError::Unknown("region"))), "{again:?}");
            assert!(fabric.describe(region.id).is_err());
        }
    }
}

#[test]
fn regions_are_limited_and_places_used_again() {
    let options = ShmOptions { prefault_bytes_max: 0, ..ShmOptions::DEFAULT };
    let fabric = ShmFabric::with_options(options).expect("a fabric");
    let mut regions = Vec::new();
    let over = loop {
        match fabric.register(&spec(1, Access::NONE)) {
            Ok(region) => regions.push(region.id),
            Err(reason) => break reason,
        }
    };
    // A small limit of descriptors may be reached first.
    let known = matches!(over, FabricError::Limit("regions") | FabricError::System(..));
    assert!(known, "{over}");
    fabric.deregister(regions[regions.len() / 2]).expect("a region");
    fabric.register(&spec(1, Access::NONE)).expect("room again");
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let wrong = |options: ShmOptions| match ShmFabric::with_options(options) {
        Err(FabricError::Limit(name)) => name,
        other => panic!("{other:?}"),
    };
    for ring_slots in [0, 8, 17, 1 << 17] {
        assert_eq!(wrong(ShmOptions { ring_slots, ..ShmOptions::DEFAULT }), "ring_slots");
    }
    for bulk_bytes in [0, 4096, 65_537, 1 << 27] {
        assert_eq!(wrong(ShmOptions { bulk_bytes, ..ShmOptions::DEFAULT }), "bulk_bytes");
    }
}
