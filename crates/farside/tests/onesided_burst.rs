//! Write-combining buffers for remote memory (`onesided::BurstBuffer`).

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::ErrorCode;
use farside::fabrics::Fabric;
use farside::onesided::{
    Access, BurstBuffer, BurstOptions, LendOptions, MemoryClient, MemoryClientOptions,
    MemoryServer, RemoteMemory,
};
use farside_base::Random;
use farside_testkit::{Process, WATCHDOG, await_parent, role, say, unique_name, until};
use lent::{BYTES, client_of, code, pair, posting_pair, process_fabric, server, tcp};
use proxy::Proxy;
use std::sync::Arc;
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    burst_agrees_with_reference_bytes
    writes_are_consolidated_by_theta
    bytes_between_written_ones_stay
    least_recently_used_block_is_evicted
    hot_blocks_keep_their_places
    cold_blocks_are_written_through
    blocks_are_flushed_after_their_time_out
    flushed_writes_are_seen_by_others
    dropped_holder_loses_what_it_held
    failed_flush_loses_nothing
    wrong_uses_have_no_effect
    flushes_and_other_requests_share_a_client
) with crate::fabrics::named }

/// Without a time-out.
fn options() -> BurstOptions {
    BurstOptions::default().time_out(Duration::MAX)
}

/// A server, and a burst buffer for all its memory.
fn burst_of(
    make: &Make,
    test: &str,
    options: &BurstOptions,
) -> (MemoryServer, MemoryClient, RemoteMemory, BurstBuffer) {
    // Whose doorbells are counted.
    let (server, client, memory) = posting_pair(make, test);
    let burst = BurstBuffer::new(&client, memory.at(0), BYTES, options).unwrap();
    (server, client, memory, burst)
}

fn there(server: &MemoryServer, at: u64, bytes: usize) -> Vec<u8> {
    let mut there = vec![0; bytes];
    server.read(at, &mut there).unwrap();
    there
}

/// Polls until no flush is in flight: what is pending then is held.
fn settle(burst: &mut BurstBuffer, client: &mut MemoryClient, held: usize) {
    until("all flushes have ended", || {
        burst.progress(client).unwrap();
        burst.pending() == held
    });
}

/// Random writes, reads, hints and flushes of few small blocks, by every reason to flush.
fn burst_agrees_with_reference_bytes(make: &Make) {
    const RANGE: u64 = 64 * 24 + 40;
    let (server, mut client, memory) = pair(make, "reference");
    for round in 0..24 {
        let mut random = Random::new(round);
        let time_outs = [Duration::MAX, Duration::from_micros(50), Duration::ZERO];
        let options = BurstOptions::default()
            .block_bytes(64)
            .blocks(1 + random.below(5) as u32)
            .flushes_max(1 + random.below(4) as u32)
            .theta(1 + random.below(7) as u32)
            .time_out(time_outs[round as usize % 3]);
        let at = random.below(8) * 64;
        let mut expected: Vec<u8> = (0..RANGE).map(|_| random.byte()).collect();
        server.write(at, &expected).unwrap();
        let mut burst = BurstBuffer::new(&client, memory.at(at), RANGE, &options).unwrap();
        for step in 0..600 {
            let offset = random.below(RANGE);
            let bytes = (1 + random.below(150)).min(RANGE - offset) as usize;
            let range = offset as usize..offset as usize + bytes;
            match random.below(20) {
                0..12 => {
                    let new: Vec<u8> = (0..bytes).map(|_| random.byte()).collect();
                    burst.write(&mut client, offset, &new, WATCHDOG).unwrap();
                    expected[range].copy_from_slice(&new);
                }
                12..17 => {
                    let mut read = vec![0; bytes];
                    burst.read(&mut client, offset, &mut read, WATCHDOG).unwrap();
                    assert!(read == expected[range], "round {round}, step {step}: {options:?}");
                }
                17 => burst.hint_hot(range.start as u64..range.end as u64).unwrap(),
                18 => burst.hint_cold(range.start as u64..range.end as u64).unwrap(),
                _ => {
                    burst.flush(&mut client, WATCHDOG).unwrap();
                    assert_eq!(burst.pending(), 0);
                    let there = there(&server, at, RANGE as usize);
                    assert!(there == expected, "round {round}, step {step}: {options:?}");
                }
            }
        }
        burst.flush(&mut client, WATCHDOG).unwrap();
        assert!(there(&server, at, RANGE as usize) == expected, "round {round}");
        // What is not a part of the range was not written.
        assert!(there(&server, at + RANGE, 4096).iter().all(|byte| *byte == 0) || round > 0);
    }
}

/// Work requests and doorbells are those of the writes, divided by theta (paper 000, figure 8).
fn writes_are_consolidated_by_theta(make: &Make) {
    const WRITES: u64 = 32 * 32;
    for theta in [1, 2, 4, 8, 16, 32] {
        let (server, mut client, _, mut burst) = burst_of(make, "theta", &options().theta(theta));
        let before = client.stats();
        for at in 0..WRITES {
            burst.write(&mut client, at * 32, &[at as u8; 32], WATCHDOG).unwrap();
        }
        settle(&mut burst, &mut client, 0);
        let (after, flushes) = (client.stats(), WRITES / u64::from(theta));
        assert_eq!(after.work_requests - before.work_requests, flushes, "theta {theta}");
        assert_eq!(after.doorbells - before.doorbells, flushes, "theta {theta}");
        let stats = burst.stats();
        assert_eq!((stats.writes, stats.flushed_by_theta), (WRITES, flushes));
        assert_eq!(stats.work_requests, flushes);
        let there = there(&server, 0, WRITES as usize * 32);
        assert!(there.chunks(32).zip(0..WRITES).all(|(part, at)| part == [at as u8; 32]));
    }
    // All writes of a block in any order: one work request too.
    let (_server, mut client, _, mut burst) = burst_of(make, "any", &options().theta(32));
    let mut order: Vec<u64> = (0..32).collect();
    Random::new(5).shuffle(&mut order);
    let before = client.stats().work_requests;
    for at in order {
        burst.write(&mut client, 1024 + at * 32, &[7; 32], WATCHDOG).unwrap();
    }
    assert_eq!(client.stats().work_requests - before, 1);
    // Half of them, each by itself: as many, with one doorbell.
    let before = client.stats();
    for at in 0..32 {
        burst.write(&mut client, 4096 + at % 16 * 64, &[7; 32], WATCHDOG).unwrap();
    }
    assert_eq!(client.stats().work_requests - before.work_requests, 16);
    assert_eq!(client.stats().doorbells - before.doorbells, 1);
    burst.flush(&mut client, WATCHDOG).unwrap();
}

/// What others have written next to the writes of this client stays.
fn bytes_between_written_ones_stay(make: &Make) {
    let (server, mut client, _, mut burst) = burst_of(make, "between", &options().theta(8));
    for round in 1..=20_u8 {
        for at in 0..64 {
            burst.write(&mut client, at * 16 + 3, &[round; 9], WATCHDOG).unwrap();
            server.write(at * 16, &[0x80 | round; 3]).unwrap();
            server.write(at * 16 + 12, &[0x80 | round; 4]).unwrap();
        }
        burst.flush(&mut client, WATCHDOG).unwrap();
        for row in there(&server, 0, 1024).chunks(16) {
            assert_eq!(row[3..12], [round; 9]);
            assert_eq!((&row[..3], &row[12..]), (&[0x80 | round; 3][..], &[0x80 | round; 4][..]));
        }
        let mut read = [0; 16];
        burst.write(&mut client, 3, &[0x7f; 9], WATCHDOG).unwrap();
        burst.read(&mut client, 0, &mut read, WATCHDOG).unwrap();
        assert_eq!(
            (read[2], read[3], read[11], read[12]),
            (0x80 | round, 0x7f, 0x7f, 0x80 | round)
        );
    }
    burst.flush(&mut client, WATCHDOG).unwrap();
}

fn least_recently_used_block_is_evicted(make: &Make) {
    let options = options().blocks(4).theta(100);
    let (server, mut client, _, mut burst) = burst_of(make, "evict", &options);
    for block in [0, 1, 2, 3, 0] {
        burst.write(&mut client, block * 1024, &[1; 8], WATCHDOG).unwrap();
    }
    assert_eq!((burst.pending(), client.stats().work_requests), (4, 0));
    // In the order of their last uses, each for one that begins.
    for (begins, evicted) in [(4, 1), (5, 2), (6, 3), (7, 0), (8, 4)] {
        assert_eq!(there(&server, evicted * 1024, 8), [0; 8]);
        burst.write(&mut client, begins * 1024, &[1; 8], WATCHDOG).unwrap();
        settle(&mut burst, &mut client, 4);
        assert_eq!(there(&server, evicted * 1024, 8), [1; 8], "block {evicted}");
    }
    assert_eq!(burst.stats().flushed_by_eviction, 5);
    burst.flush(&mut client, WATCHDOG).unwrap();
    assert_eq!(burst.stats().flushed_by_call, 4);
    assert_eq!(client.stats().work_requests, 9);
}

fn hot_blocks_keep_their_places(make: &Make) {
    let options = options().blocks(4).theta(100);
    let (server, mut client, _, mut burst) = burst_of(make, "hot", &options);
    let write = |burst: &mut BurstBuffer, client: &mut MemoryClient, block: u64| {
        burst.write(client, block * 1024 + 8, &[1; 8], WATCHDOG).unwrap();
    };
    burst.hint_hot(0..3 * 1024).unwrap();
    (0..3).for_each(|block| write(&mut burst, &mut client, block));
    (10..60).for_each(|block| write(&mut burst, &mut client, block));
    settle(&mut burst, &mut client, 4);
    assert_eq!(burst.stats().flushed_by_eviction, 49, "one place is left for the others");
    assert_eq!(there(&server, 8, 8), [0; 8]);
    // The last place too: what is colder takes none.
    burst.hint_hot(0..4 * 1024).unwrap();
    write(&mut burst, &mut client, 3);
    (60..70).for_each(|block| write(&mut burst, &mut client, block));
    settle(&mut burst, &mut client, 4);
    assert_eq!((burst.stats().flushed_by_eviction, burst.stats().written_through), (50, 10));
    assert!((10..70).all(|block| there(&server, block * 1024 + 8, 8) == [1; 8]));
    // A hot block gives way to a hot one, and any to another after a hint that it is not.
    burst.hint_hot(100 * 1024..101 * 1024).unwrap();
    write(&mut burst, &mut client, 100);
    settle(&mut burst, &mut client, 4);
    assert_eq!((there(&server, 8, 8), there(&server, 1024 + 8, 8)), (vec![1; 8], vec![0; 8]));
    burst.hint_cold(2 * 1024..3 * 1024).unwrap();
    write(&mut burst, &mut client, 50);
    settle(&mut burst, &mut client, 4);
    assert_eq!(there(&server, 2 * 1024 + 8, 8), [1; 8]);
    burst.flush(&mut client, WATCHDOG).unwrap();
}

fn cold_blocks_are_written_through(make: &Make) {
    let (server, mut client, _, mut burst) = burst_of(make, "cold", &options());
    burst.hint_cold(0..BYTES).unwrap();
    burst.hint_hot(0..1024).unwrap();
    for at in 0..256 {
        burst.write(&mut client, 2048 + at * 32, &[at as u8; 32], WATCHDOG).unwrap();
    }
    burst.write(&mut client, 1000, &[1; 48], WATCHDOG).unwrap();
    let stats = burst.stats();
    assert_eq!((stats.writes, stats.written_through, stats.work_requests), (258, 257, 257));
    settle(&mut burst, &mut client, 1);
    let bytes = there(&server, 2048, 256 * 32);
    assert!(bytes.chunks(32).zip(0..256).all(|(part, at)| part == [at as u8; 32]));
    assert_eq!((there(&server, 1000, 24), there(&server, 1024, 24)), (vec![0; 24], vec![1; 24]));
    burst.flush(&mut client, WATCHDOG).unwrap();
    assert_eq!(there(&server, 1000, 24), [1; 24]);
}

fn blocks_are_flushed_after_their_time_out(make: &Make) {
    let time_out = Duration::from_millis(5);
    let (server, mut client, _, mut burst) =
        burst_of(make, "late", &BurstOptions::default().time_out(time_out));
    for block in 0..20 {
        burst.write(&mut client, block * 1024, &[1; 8], WATCHDOG).unwrap();
    }
    until("all are placed", || !burst.progress(&mut client).unwrap());
    assert!((0..20).all(|block| there(&server, block * 1024, 8) == [1; 8]));
    let stats = burst.stats();
    assert_eq!((stats.flushed_by_time_out, stats.work_requests), (20, 20));
    // Each call finds what is late: a write, and a read of other bytes. All flushes may be in flight.
    let at_once = BurstOptions::default().time_out(Duration::ZERO).flushes_max(32);
    let (_server, mut client, _, mut burst) = burst_of(make, "at-once", &at_once);
    for block in 0..20 {
        burst.write(&mut client, block * 1024, &[1; 8], WATCHDOG).unwrap();
        assert_eq!(burst.stats().flushed_by_time_out, block);
    }
    burst.read(&mut client, 65536, &mut [0; 8], WATCHDOG).unwrap();
    assert_eq!(burst.stats().flushed_by_time_out, 20);
    burst.flush(&mut client, WATCHDOG).unwrap();
}

/// Another client sees nothing of what is held, and all of it after a flush.
fn flushed_writes_are_seen_by_others(make: &Make) {
    const BLOCKS: u64 = 8;
    let (server, mut client, _, mut burst) = burst_of(make, "seen", &options().theta(100));
    let (mut other, its) = client_of(&make(), &server, &MemoryClientOptions::default());
    let mut bytes = [0; (BLOCKS * 1024) as usize];
    for generation in 1..=50_u64 {
        for at in 0..BLOCKS * 32 {
            let word = generation.to_le_bytes().repeat(4);
            burst.write(&mut client, at * 32, &word, WATCHDOG).unwrap();
        }
        other.read_bytes(its.at(0), &mut bytes, WATCHDOG).unwrap();
        assert!(bytes.chunks(8).all(|word| word == (generation - 1).to_le_bytes()));
        burst.flush(&mut client, WATCHDOG).unwrap();
        other.read_bytes(its.at(0), &mut bytes, WATCHDOG).unwrap();
        assert!(bytes.chunks(8).all(|word| word == generation.to_le_bytes()));
    }
}

/// Writes of which the first four of each block are flushed, and the others are held. Returns the bytes of the flushes.
fn write_partly(burst: &mut BurstBuffer, client: &mut MemoryClient) -> Vec<u8> {
    let mut flushed = vec![0; 15 * 1024];
    for block in 0..15 {
        for at in 0..4 + block % 3 {
            let value = [(block * 16 + at + 1) as u8; 32];
            let offset = block * 1024 + at * 32;
            burst.write(client, offset, &value, WATCHDOG).unwrap();
            if at < 4 {
                flushed[offset as usize..offset as usize + 32].copy_from_slice(&value);
            }
        }
        if block % 3 > 0 {
            burst.write(client, block * 1024, &[0xff; 8], WATCHDOG).unwrap(); // over what is flushed
        }
    }
    settle(burst, client, 10);
    flushed
}

/// Exactly what was held is lost with its holder.
fn dropped_holder_loses_what_it_held(make: &Make) {
    let (server, mut client, _, mut burst) = burst_of(make, "holder", &options().theta(4));
    let flushed = write_partly(&mut burst, &mut client);
    drop((burst, client));
    assert!(there(&server, 0, flushed.len()) == flushed);
}

/// The server is lost: the bytes are kept, and written to another one.
fn failed_flush_loses_nothing(make: &Make) {
    let fabric = make();
    let first = server(&fabric, &unique_name("first"));
    let options_of_client = MemoryClientOptions::default().reconnect(Duration::ZERO);
    let (mut client, memory) = client_of(&make(), &first, &options_of_client);
    let options = options().theta(8).blocks(8).flushes_max(4);
    let mut burst = BurstBuffer::new(&client, memory.at(0), BYTES, &options).unwrap();
    let mut expected = vec![0; 16 * 1024];
    let mut write = |burst: &mut BurstBuffer, client: &mut MemoryClient, at: usize, value: u8| {
        expected[at..at + 32].fill(value);
        burst.write(client, at as u64, &[value; 32], WATCHDOG)
    };
    for at in 0..8 * 4 {
        write(&mut burst, &mut client, at % 8 * 1024 + at / 8 * 32, 1).unwrap();
    }
    drop(first);
    assert_eq!(code(burst.flush(&mut client, WATCHDOG)), ErrorCode::PeerLost);
    // Held blocks take more, up to theta; others find no place, and say why.
    for at in 0..8 * 3 {
        write(&mut burst, &mut client, at % 8 * 1024 + at / 8 * 32, 2).unwrap();
    }
    assert_eq!(code(write(&mut burst, &mut client, 8 * 1024, 3)), ErrorCode::PeerLost);
    burst.hint_cold(9 * 1024..10 * 1024).unwrap();
    assert_eq!(code(write(&mut burst, &mut client, 9 * 1024, 3)), ErrorCode::PeerLost);
    assert_eq!(code(burst.flush(&mut client, WATCHDOG)), ErrorCode::PeerLost);
    let second = server(&fabric, &unique_name("second"));
    let memory = client.open(second.address(), WATCHDOG).unwrap();
    burst.resume_at(&client, memory.at(1024)).unwrap_err();
    burst.resume_at(&client, memory.at(0)).unwrap();
    for block in [8, 9] {
        write(&mut burst, &mut client, block * 1024, 3).unwrap();
    }
    let mut read = vec![0; 16 * 1024];
    burst.read(&mut client, 0, &mut read, WATCHDOG).unwrap();
    burst.flush(&mut client, WATCHDOG).unwrap();
    assert!(there(&second, 0, 16 * 1024) == expected);
    assert!(read == expected);
}

fn wrong_uses_have_no_effect(make: &Make) {
    let (server, mut client, memory, mut burst) = burst_of(make, "wrong", &options());
    let new = |at, bytes, options: &BurstOptions| {
        code(BurstBuffer::new(&client, memory.at(at), bytes, options))
    };
    let wrong = [
        (options().block_bytes(32), "block_bytes"),
        (options().block_bytes(1000), "block_bytes"),
        (options().block_bytes(1 << 21), "block_bytes"),
        (options().blocks(0), "blocks"),
        (options().blocks(1 << 20), "blocks"),
        (options().theta(0), "theta"),
        (options().flushes_max(0), "flushes_max"),
        (options().flushes_max(1 << 20), "flushes_max"),
    ];
    for (options, names) in wrong {
        let error = BurstBuffer::new(&client, memory.at(0), BYTES, &options).unwrap_err();
        assert!(error.code == ErrorCode::BadConfiguration && error.detail.contains(names));
    }
    assert_eq!(new(0, 0, &options()), ErrorCode::ZeroSize);
    assert_eq!(new(512, 1024, &options()), ErrorCode::Misaligned);
    assert_eq!(new(1024, BYTES, &options()), ErrorCode::OutOfBounds);
    assert_eq!(new(u64::MAX - 1023, 1024, &options()), ErrorCode::OutOfBounds);
    let lent = LendOptions::default().access(Access::READ);
    let reader = MemoryServer::lend(&make(), &unique_name("read"), 4096, &lent).unwrap();
    let read_only = client.open(reader.address(), WATCHDOG).unwrap();
    let denied = BurstBuffer::new(&client, read_only.at(0), 4096, &options());
    assert_eq!(code(denied), ErrorCode::AccessDenied);
    let (_other_server, mut other, its) = pair(make, "other");
    assert_eq!(code(BurstBuffer::new(&client, its.at(0), BYTES, &options())), ErrorCode::BadForm);
    let results = [
        (burst.write(&mut client, 0, &[], WATCHDOG), ErrorCode::ZeroSize),
        (burst.write(&mut client, BYTES - 4, &[1; 5], WATCHDOG), ErrorCode::OutOfBounds),
        (burst.write(&mut client, u64::MAX, &[1; 5], WATCHDOG), ErrorCode::OutOfBounds),
        (burst.read(&mut client, BYTES, &mut [0; 1], WATCHDOG), ErrorCode::OutOfBounds),
        (burst.read(&mut client, 0, &mut [], WATCHDOG), ErrorCode::ZeroSize),
        (burst.hint_hot(8..8), ErrorCode::ZeroSize),
        (burst.hint_cold(8..BYTES + 1), ErrorCode::OutOfBounds),
        (burst.write(&mut other, 0, &[1; 5], WATCHDOG), ErrorCode::BadForm),
        (burst.read(&mut other, 0, &mut [0; 1], WATCHDOG), ErrorCode::BadForm),
        (burst.flush(&mut other, WATCHDOG), ErrorCode::BadForm),
        (burst.progress(&mut other).map(drop), ErrorCode::BadForm),
        (burst.resume_at(&other, memory.at(0)), ErrorCode::BadForm),
        (burst.resume_at(&client, its.at(0)), ErrorCode::BadForm),
    ];
    for (at, (result, expected)) in results.into_iter().enumerate() {
        assert_eq!(code(result), expected, "use {at}");
    }
    burst.flush(&mut client, WATCHDOG).unwrap();
    assert_eq!(burst.stats().writes, 0);
    assert!(there(&server, 0, BYTES as usize).iter().all(|byte| *byte == 0));
}

/// Outcomes of flushes are not those of the program, and few requests are enough.
fn flushes_and_other_requests_share_a_client(make: &Make) {
    let server = server(&make(), &unique_name("shared"));
    let few = MemoryClientOptions::default().requests_max(4);
    let (mut client, memory) = client_of(&make(), &server, &few);
    let options = options().theta(1);
    let mut burst = BurstBuffer::new(&client, memory.at(0), BYTES / 2, &options).unwrap();
    let mut added = 0;
    for at in 0..2000 {
        burst.write(&mut client, at * 32, &[at as u8; 32], WATCHDOG).unwrap();
        if at % 7 == 0 {
            burst.flush(&mut client, WATCHDOG).unwrap();
            let request = client.fetch_add(memory.at(BYTES - 8), 1).unwrap();
            burst.write(&mut client, at * 32, &[at as u8; 32], WATCHDOG).unwrap();
            let mut taken = None;
            until("the addition has ended", || {
                client.progress();
                taken = client.take_next();
                taken.is_some()
            });
            assert_eq!(taken, Some((request, Ok(added))));
            added += 1;
        }
    }
    burst.flush(&mut client, WATCHDOG).unwrap();
    assert_eq!(client.take_next(), None);
    let bytes = there(&server, 0, 2000 * 32);
    assert!(bytes.chunks(32).zip(0..2000).all(|(part, at)| part == [at as u8; 32]));
}

/// Connections are cut again and again: nothing is lost, and writes of a block keep their order. Either the client
/// connects again by itself, or the program opens the memory again.
#[test]
fn cut_connections_lose_no_writes() {
    for reconnect in [Duration::MAX, Duration::ZERO] {
        let way = Proxy::new();
        let lender = tcp(Vec::new(), Some(&way));
        way.leads_to(lender.listens_at().unwrap().resolve().unwrap()[0]);
        let lender: Arc<dyn Fabric> = Arc::new(lender);
        let server = server(&lender, &unique_name("cut-burst"));
        let fabric: Arc<dyn Fabric> = Arc::new(tcp(vec![way.at().into()], None));
        let options_of_client = MemoryClientOptions::default().reconnect(reconnect);
        let (mut client, memory) = client_of(&fabric, &server, &options_of_client);
        let options = options().theta(3).blocks(4).block_bytes(256);
        let mut burst = BurstBuffer::new(&client, memory.at(0), 16 * 256, &options).unwrap();
        let mut random = Random::new(11);
        let (mut expected, mut resumed) = (vec![0; 16 * 256], 0);
        let mut resume = |burst: &mut BurstBuffer, client: &mut MemoryClient, code| {
            assert_eq!(code, ErrorCode::PeerLost);
            until("the memory is open again", || {
                let opened = client.open(server.address(), WATCHDOG);
                opened.is_ok_and(|memory| burst.resume_at(client, memory.at(0)).is_ok())
            });
            resumed += 1;
        };
        for step in 0..4000 {
            let offset = random.below(16 * 256 - 40);
            let new = [random.byte(); 40];
            expected[offset as usize..offset as usize + 40].copy_from_slice(&new);
            while let Err(error) = burst.write(&mut client, offset, &new, WATCHDOG) {
                resume(&mut burst, &mut client, error.code);
            }
            if step % 100 == 0 {
                way.cut();
            }
        }
        while let Err(error) = burst.flush(&mut client, WATCHDOG) {
            resume(&mut burst, &mut client, error.code);
        }
        assert!(there(&server, 0, expected.len()) == expected, "reconnect {reconnect:?}");
        assert_eq!(resumed > 0, reconnect.is_zero());
        assert_eq!(burst.stats().repeated > 0, reconnect.is_zero());
    }
}

/// Not a test by itself: the holder of a burst buffer, in a process of its own.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [fabric, address, what] = &role[..] else { panic!("{role:?}") };
    let mut client =
        MemoryClient::new(&process_fabric(fabric, &[]), &MemoryClientOptions::default()).unwrap();
    let memory = client.open(address, WATCHDOG).unwrap();
    if what == "holds" {
        let options = options().theta(4);
        let mut burst = BurstBuffer::new(&client, memory.at(0), BYTES, &options).unwrap();
        write_partly(&mut burst, &mut client);
        say("has written");
        await_parent();
        return;
    }
    // Whole blocks of generation after generation.
    let options = options().theta(32);
    let mut burst = BurstBuffer::new(&client, memory.at(0), BYTES, &options).unwrap();
    for generation in 1_u64.. {
        for at in 0..16 * 32 {
            let word = generation.to_le_bytes().repeat(4);
            burst.write(&mut client, at * 32, &word, WATCHDOG).unwrap();
        }
        if generation == 50 {
            say("has written");
        }
    }
}

/// What a killed holder leaves: all that it had flushed, and nothing of what it held.
fn killed_holder_loses_what_it_held(fabric: &str) {
    let lender = process_fabric(fabric, &[]);
    let server = server(&lender, &unique_name("killed-holder"));
    let mut holder = Process::child(&format!("{fabric} {} holds", server.address()));
    holder.hear("has written");
    holder.kill();
    // The same writes by another client, at another place.
    let (mut client, memory) = client_of(&lender, &server, &MemoryClientOptions::default());
    let options = options().theta(4);
    let mut burst = BurstBuffer::new(&client, memory.at(65536), 65536, &options).unwrap();
    let flushed = write_partly(&mut burst, &mut client);
    assert!(there(&server, 0, flushed.len()) == flushed);
}

/// A holder that is killed while it writes leaves each block with the bytes of a flush. Only the flush that was being
/// placed may be there in part, by whole words.
fn killed_holder_leaves_whole_flushes(fabric: &str) {
    let lender = process_fabric(fabric, &[]);
    for _ in 0..5 {
        let server = server(&lender, &unique_name("killed-writer"));
        let mut holder = Process::child(&format!("{fabric} {} writes", server.address()));
        holder.hear("has written");
        holder.kill();
        until("its connection has ended", || server.clients() == 0);
        let bytes = there(&server, 0, 16 * 1024);
        let (mut torn, mut generations) = (0, Vec::new());
        for block in bytes.chunks(1024) {
            let words = block.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let (low, high) = (words.clone().min().unwrap(), words.max().unwrap());
            assert!(low + 1 >= high, "generations {low} and {high}");
            torn += u32::from(low != high);
            generations.push(high);
        }
        assert!(torn <= 1, "{generations:?}");
        let (first, last) = (generations[0], generations[15]);
        assert!(last >= 40 && generations.is_sorted_by(|a, b| a >= b) && first <= last + 1);
    }
}

#[test]
fn killed_holder_loses_what_it_held_over_shm() {
    killed_holder_loses_what_it_held("shm");
}

#[test]
fn killed_holder_loses_what_it_held_over_tcp() {
    killed_holder_loses_what_it_held("tcp");
}

#[test]
fn killed_holder_leaves_whole_flushes_over_shm() {
    killed_holder_leaves_whole_flushes("shm");
}

#[test]
fn killed_holder_leaves_whole_flushes_over_tcp() {
    killed_holder_leaves_whole_flushes("tcp");
}
