//! Heaps in lent memory: objects of several clients, their deaths, and times of reuse.

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::ErrorCode;
use farside::onesided::{
    HeapOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteAddress,
    RemoteHeap, RemoteMemory,
};
use farside_testkit::{Random, WATCHDOG, unique_name};
use lent::client_of;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { mem shm tcp => (
    objects_do_not_overlap
    freed_objects_are_used_again_after_the_grace
    chunks_of_a_dead_client_are_taken_over
    closed_heap_leaves_its_objects
    client_whose_lease_is_over_starts_again
    wrong_use_is_refused
) with crate::fabrics::named }

fn options() -> HeapOptions {
    let (lease, grace) = (Duration::from_millis(200), Duration::from_millis(20));
    HeapOptions::default().bytes(1 << 20).clients(4).lease(lease).grace(grace)
}

fn lend(make: &Make, options: &HeapOptions) -> MemoryServer {
    let name = unique_name("heap");
    MemoryServer::lend(&make(), &name, options.bytes, &LendOptions::default()).unwrap()
}

fn client(make: &Make, server: &MemoryServer) -> (MemoryClient, RemoteMemory) {
    client_of(&make(), server, &MemoryClientOptions::default())
}

fn create(make: &Make, options: &HeapOptions) -> (MemoryServer, MemoryClient, RemoteHeap) {
    let server = lend(make, options);
    let (mut client, memory) = client(make, &server);
    let heap = RemoteHeap::create(&mut client, memory.at(0), options, WATCHDOG).unwrap();
    (server, client, heap)
}

fn open(make: &Make, server: &MemoryServer) -> (MemoryClient, RemoteHeap) {
    let (mut client, memory) = client(make, server);
    let heap = RemoteHeap::open(&mut client, memory.at(0), WATCHDOG).unwrap();
    (client, heap)
}

/// An object of `memory`, as another client names it.
fn at(object: RemoteAddress, memory: RemoteMemory) -> RemoteAddress {
    memory.at(object.offset())
}

/// Random allocations and frees of three clients, each also of objects of the others.
fn objects_do_not_overlap(make: &Make) {
    let (server, client, heap) =
        create(make, &options().bytes(3 << 20).grace(Duration::from_millis(1)));
    let mut ends = vec![(client, heap)];
    ends.extend((0..2).map(|_| open(make, &server)));
    let mut live: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut random = Random::new(9);
    let mut reused = false;
    for number in 0..2500_u64 {
        let (client, heap) = &mut ends[random.below(3) as usize];
        if live.len() > 60 || random.below(3) == 0 && !live.is_empty() {
            let which = random.below(live.len() as u64) as usize;
            let (offset, (bytes, mark)) =
                live.iter().nth(which).map(|(at, of)| (*at, *of)).unwrap();
            live.remove(&offset);
            let mut found = [0; 8];
            server.read(offset, &mut found).unwrap();
            assert_eq!(u64::from_le_bytes(found), mark, "another object overwrote it");
            let (_, memory) = (offset, heap_memory(heap));
            heap.free(client, memory.at(offset), bytes, WATCHDOG).unwrap();
            continue;
        }
        let bits = 8 + random.below(7);
        let bytes = 8 + random.below(1 << bits);
        // Chunks of the others have room, of other sizes.
        let object = match heap.alloc(client, bytes, Duration::from_millis(5)) {
            Err(error) if [ErrorCode::OutOfMemory, ErrorCode::TimedOut].contains(&error.code) => {
                continue;
            }
            object => object.unwrap(),
        };
        let begins = object.offset();
        let mut before = [0; 8];
        server.read(begins, &mut before).unwrap();
        reused |= u64::from_le_bytes(before) != 0;
        let overlaps =
            live.range(..begins + bytes).next_back().is_some_and(|(at, (of, _))| at + of > begins);
        assert!(!overlaps && begins % 64 == 0 && begins + bytes <= 3 << 20);
        client.write_bytes(object, &(number + 1).to_le_bytes(), WATCHDOG).unwrap();
        live.insert(begins, (bytes, number + 1));
    }
    assert!(reused, "no object was used again");
    for (mut client, heap) in ends {
        heap.close(&mut client, WATCHDOG).unwrap();
    }
}

fn heap_memory(heap: &RemoteHeap) -> RemoteMemory {
    heap.address().memory()
}

fn freed_objects_are_used_again_after_the_grace(make: &Make) {
    let options = options().lease(WATCHDOG);
    let (_server, mut client, mut heap) = create(make, &options);
    let whole = options.chunk_bytes - 256;
    let mut all = Vec::new();
    let full = loop {
        match heap.alloc(&mut client, whole, WATCHDOG) {
            Ok(object) => all.push(object),
            Err(error) => break error,
        }
    };
    assert_eq!((full.code, all.len()), (ErrorCode::OutOfMemory, 15));
    let freed = Instant::now();
    heap.free(&mut client, all[3], whole, WATCHDOG).unwrap();
    heap.free(&mut client, all[7], whole, WATCHDOG).unwrap();
    // Waits, and gets both, the second one as smaller objects.
    let again = heap.alloc(&mut client, whole, WATCHDOG).unwrap();
    assert!(freed.elapsed() >= options.grace);
    let small = heap.alloc(&mut client, 100, WATCHDOG).unwrap();
    let chunk = |object: RemoteAddress| object.offset() / 64 * 64;
    assert!([all[3], all[7]].contains(&again));
    assert!([all[3], all[7]].iter().any(|one| chunk(*one) == chunk(small) && *one != again));
    assert_eq!(heap.chunks(), 15);
}

fn chunks_of_a_dead_client_are_taken_over(make: &Make) {
    let (server, mut dead, mut heap) = create(make, &options());
    let objects: Vec<_> =
        (0..100).map(|_| heap.alloc(&mut dead, 1000, WATCHDOG).unwrap()).collect();
    dead.write_bytes(objects[99], b"left behind", WATCHDOG).unwrap();
    drop((dead, heap));
    let (mut client, mut heap) = open(make, &server);
    let memory = heap_memory(&heap);
    // All that is free, which is less than all by the objects of the dead one.
    let mut own = Vec::new();
    while let Ok(object) = heap.alloc(&mut client, 1000, WATCHDOG) {
        own.push(object);
    }
    let chunks = 15;
    assert_eq!(
        own.len(),
        chunks * 63 - 126,
        "the objects of the dead one, and those it had prepared"
    );
    assert!(objects.iter().all(|object| !own.contains(&at(*object, memory))));
    let mut bytes = [0; 11];
    client.read_bytes(at(objects[99], memory), &mut bytes, WATCHDOG).unwrap();
    assert_eq!(&bytes, b"left behind");
    // They are freed as any others.
    for object in &objects {
        heap.free(&mut client, at(*object, memory), 1000, WATCHDOG).unwrap();
    }
    for _ in &objects {
        heap.alloc(&mut client, 1000, WATCHDOG).unwrap();
    }
}

fn closed_heap_leaves_its_objects(make: &Make) {
    let options = options().lease(WATCHDOG);
    let (server, mut first, mut heap) = create(make, &options);
    let kept = heap.alloc(&mut first, 5000, WATCHDOG).unwrap();
    heap.close(&mut first, WATCHDOG).unwrap();
    let (mut client, mut heap) = open(make, &server);
    let mut own = 0;
    while let Ok(object) = heap.alloc(&mut client, 5000, WATCHDOG) {
        assert_ne!(object.offset(), kept.offset());
        own += 1;
    }
    assert_eq!(own, 15 * 7 - 1, "only the object that was kept is missing");
    let kept = at(kept, heap_memory(&heap));
    heap.free(&mut client, kept, 5000, WATCHDOG).unwrap();
    assert_eq!(heap.alloc(&mut client, 5000, WATCHDOG), Ok(kept));
}

fn client_whose_lease_is_over_starts_again(make: &Make) {
    let (server, mut slow, mut first) = create(make, &options());
    let object = first.alloc(&mut slow, 100, WATCHDOG).unwrap();
    let (mut client, mut second) = open(make, &server);
    // Takes everything, also the chunks of the first once its lease is over.
    while second.chunks() < 15 {
        let large = second.alloc(&mut client, 60_000, WATCHDOG);
        if large.is_err() {
            second.alloc(&mut client, 100, WATCHDOG).unwrap();
        }
    }
    let (_third_client, third) = (second.chunks(), &mut first);
    let refused = third.alloc(&mut slow, 60_000, Duration::ZERO).map_err(|error| error.code);
    assert!(matches!(refused, Err(ErrorCode::OutOfMemory | ErrorCode::TimedOut)), "{refused:?}");
    let object = at(object, heap_memory(&second));
    second.free(&mut client, object, 100, WATCHDOG).unwrap();
}

fn wrong_use_is_refused(make: &Make) {
    let (server, mut client, mut heap) = create(make, &options().lease(WATCHDOG));
    let object = heap.alloc(&mut client, 300, WATCHDOG).unwrap();
    let code = |result: Result<(), farside::Error>| result.map_err(|error| error.code);
    let memory = heap_memory(&heap);
    for (address, bytes, expected) in [
        (memory.at(0), 300, ErrorCode::OutOfBounds),
        (memory.at(1 << 20), 300, ErrorCode::OutOfBounds),
        (memory.at(object.offset() + 64), 300, ErrorCode::Misaligned),
        (object, 0, ErrorCode::ZeroSize),
        (object, 65_536, ErrorCode::TooLarge),
    ] {
        let freed = heap.free(&mut client, address, bytes, WATCHDOG);
        assert_eq!(code(freed), Err(expected), "{address:?} {bytes}");
    }
    heap.free(&mut client, object, 300, WATCHDOG).unwrap();
    let twice = heap.free(&mut client, object, 300, WATCHDOG);
    assert_eq!(code(twice), Err(ErrorCode::Unallocated));
    for (bytes, expected) in [(0, ErrorCode::ZeroSize), (65_400, ErrorCode::TooLarge)] {
        assert_eq!(code(heap.alloc(&mut client, bytes, WATCHDOG).map(drop)), Err(expected));
    }
    let again = RemoteHeap::create(&mut client, memory.at(0), &options(), WATCHDOG).map(drop);
    assert_eq!(code(again), Err(ErrorCode::AddressTaken));
    let none = RemoteHeap::open(&mut client, memory.at(4096), WATCHDOG).map(drop);
    assert_eq!(code(none), Err(ErrorCode::BadForm));
    for wrong in [options().clients(0), options().chunk_bytes(100_000), options().bytes(4096)] {
        let refused = RemoteHeap::create(&mut client, memory.at(0), &wrong, WATCHDOG).map(drop);
        assert_eq!(code(refused), Err(ErrorCode::BadConfiguration));
    }
    // All places of clients are taken.
    let others: Vec<_> = (0..3).map(|_| open(make, &server)).collect();
    let (mut fifth, memory) = crate::client(make, &server);
    let refused = RemoteHeap::open(&mut fifth, memory.at(0), Duration::from_millis(50)).map(drop);
    assert_eq!(code(refused), Err(ErrorCode::TooManyRequests));
    drop(others);
}
