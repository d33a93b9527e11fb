//! Writes into a burst buffer allocate nothing after warm-up. A separate test executable, since it counts allocations of
//! the whole process.

use farside::fabrics;
use farside::onesided::{
    BurstBuffer, BurstOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer,
};
use farside_testkit::{WATCHDOG, unique_name};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Flushes after theta writes, by eviction and by call, and writes through.
#[test]
fn writes_and_flushes_do_not_allocate() {
    let fabric = fabrics::shared_memory().unwrap();
    let name = unique_name("burst-allocation");
    let server = MemoryServer::lend(&fabric, &name, 1 << 20, &LendOptions::default()).unwrap();
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default()).unwrap();
    let memory = client.open(server.address(), WATCHDOG).unwrap();
    let options = BurstOptions::default().blocks(8).theta(4);
    let mut burst = BurstBuffer::new(&client, memory.at(0), 1 << 20, &options).unwrap();
    burst.hint_cold(512 << 10..1 << 20).unwrap();
    let mut write_all = || {
        // One behind the other, and single ones of other blocks: no gaps.
        for at in 0..4096 {
            burst.write(&mut client, at * 32 % (64 << 10), &[1; 32], WATCHDOG).unwrap();
            let block = 128 + at * 67 % 896;
            burst.write(&mut client, block * 1024, &[1; 32], WATCHDOG).unwrap();
        }
        burst.flush(&mut client, WATCHDOG).unwrap();
        burst.stats()
    };
    write_all();
    let region = Region::new(ALLOCATOR);
    let stats = write_all();
    let change = region.change();
    assert!(stats.flushed_by_theta > 0 && stats.flushed_by_eviction > 0, "{stats:?}");
    assert!(stats.written_through > 0 && stats.flushed_by_call > 0, "{stats:?}");
    assert_eq!((change.allocations, change.reallocations), (0, 0), "{stats:?}");
}
