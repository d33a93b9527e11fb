//! Global memory through the public interface, several nodes in one process.

mod fabrics;

use fabrics::{Make, cluster};
use farside::{
    AllocationHint, AllocationSpec, Config, ErrorCode, GlobalAddress, LineSize, Node, NodeId,
};
use farside_testkit::Random;
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { mem shm tcp => (
    one_node_reads_what_it_wrote
    every_node_sees_every_nodes_writes
    atomics_of_all_nodes_add_up
    atomics_of_4_bytes_leave_their_neighbours_alone
    an_atomic_write_is_seen_whole
    a_small_cache_evicts_and_forgets_nothing
    lines_of_any_size_get_the_whole_cache
    bad_input_is_a_typed_error_without_effect
    a_full_home_sends_allocations_elsewhere
    every_line_size_works_from_everywhere
    refused_join_says_why
    locks_exclude_and_order
    lock_errors_are_typed
    a_cycle_of_locks_has_a_victim
    more_nodes_than_configured_are_refused
    v18_locked_lines_do_not_fill_a_cache
    an_atomic_too_large_for_the_cache_is_refused
    atomics_of_nearly_the_whole_cache_complete
    threads_with_lines_of_all_sizes_share_a_small_cache
    a_node_without_memory_of_its_own_takes_part
) with crate::fabrics::named }

fn config(name: &str) -> Config {
    let name = format!("{name}-{}", std::process::id());
    Config::new(name).memory_bytes(8 << 20).cache_bytes(16 << 20)
}

fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

fn one_node_reads_what_it_wrote(make: &Make) {
    let nodes = cluster(make, &config("one"), 1);
    let mut session = nodes[0].session().unwrap();
    let address = session.alloc(1000).unwrap();
    let mut bytes = [1; 1000];
    session.read(address, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 1000], "fresh memory is zero");
    let pattern: Vec<u8> = (0..1000).map(|i| i as u8).collect();
    session.write(address, &pattern).unwrap();
    session.read(address, &mut bytes).unwrap();
    assert_eq!(bytes.as_slice(), pattern);
}

fn every_node_sees_every_nodes_writes(make: &Make) {
    let nodes = cluster(make, &config("three"), 3);
    let mut sessions: Vec<_> = nodes.iter().map(|node| node.session().unwrap()).collect();
    for home in 0..3_u16 {
        let address = sessions[0].alloc_on(4096, NodeId(home)).unwrap();
        assert_eq!(address.home(), NodeId(home));
        for round in 0..20_u8 {
            let writer = usize::from(round) % 3;
            sessions[writer].write(address, &[round + 1; 3000]).unwrap();
            sessions[writer].fence().unwrap();
            for session in &mut sessions {
                let mut bytes = [0; 3000];
                if let Err(error) = session.read(address, &mut bytes) {
                    let nodes: Vec<_> = nodes.iter().map(Node::describe).collect();
                    panic!("{error} {nodes:#?}");
                }
                assert_eq!(bytes, [round + 1; 3000], "home {home} round {round}");
            }
        }
    }
}

fn atomics_of_all_nodes_add_up(make: &Make) {
    let nodes = cluster(make, &config("atomics"), 3);
    let mut first = nodes[0].session().unwrap();
    let counter = first.alloc_on(8, NodeId(1)).unwrap();
    std::thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                for _ in 0..500 {
                    session.fetch_add(counter, 1).unwrap();
                    session
                        .atomic(counter, 8, |bytes| {
                            let word = u64::from_le_bytes(bytes.try_into().unwrap());
                            bytes.copy_from_slice(&(word + 1).to_le_bytes());
                        })
                        .unwrap();
                }
            });
        }
    });
    assert_eq!(first.read_u64(counter).unwrap(), 3000);
    assert_eq!(first.compare_swap(counter, 3000, 7).unwrap(), 3000);
    assert_eq!(first.compare_swap(counter, 3000, 8).unwrap(), 7);
    assert_eq!(first.swap(counter, 9).unwrap(), 7);
}

/// Each node adds to its own half of a word, with carries that must not reach the other half.
fn atomics_of_4_bytes_leave_their_neighbours_alone(make: &Make) {
    let nodes = cluster(make, &config("halves"), 3);
    let mut first = nodes[0].session().unwrap();
    let words = first.alloc_on(16, NodeId(1)).unwrap();
    let word = |number: u64| words.checked_add(4 * number).unwrap();
    std::thread::scope(|scope| {
        for (number, node) in (0..).zip(&nodes) {
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                for round in 0..300_u32 {
                    let before = session.fetch_add_u32(word(number), 1 << 31 | 1).unwrap();
                    assert_eq!(before, round.wrapping_mul(1 << 31 | 1));
                    session.fetch_add_u32(word(3), u32::MAX).unwrap();
                }
            });
        }
    });
    let mut bytes = [0; 16];
    first.read(words, &mut bytes).unwrap();
    let values = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    let all = 900_u32.wrapping_neg();
    assert_eq!(values.collect::<Vec<_>>(), [300, 300, 300, all]);
    assert_eq!(first.compare_swap_u32(word(3), all, 7), Ok(all));
    assert_eq!(first.compare_swap_u32(word(3), all, 8), Ok(7));
    assert_eq!(first.swap_u32(word(3), 9), Ok(7));
    assert_eq!(first.read_u64(word(2)), Ok(9 << 32 | 300));
}

fn an_atomic_write_is_seen_whole(make: &Make) {
    let nodes = cluster(make, &config("whole"), 2);
    let mut first = nodes[0].session().unwrap();
    let address = first.alloc_on(4096, NodeId(1)).unwrap();
    std::thread::scope(|scope| {
        for (number, node) in nodes.iter().enumerate() {
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                for round in 0..100_u8 {
                    session.write_atomic(address, &[round * 2 + number as u8; 2000]).unwrap();
                    let mut bytes = [0; 2000];
                    session.read_atomic(address, &mut bytes).unwrap();
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn: {bytes:?}");
                }
            });
        }
    });
}

fn a_small_cache_evicts_and_forgets_nothing(make: &Make) {
    let small = config("evict").cache_bytes(1 << 20);
    let home = Node::create_on(&config("evict"), make()).unwrap();
    let user = Node::join_on(&small, make()).unwrap();
    let mut session = user.session().unwrap();
    let bytes = 4 << 20;
    let address = session.alloc_on(bytes, NodeId(0)).unwrap();
    let at = |line: u64| address.checked_add(line * 512).unwrap();
    let lines = bytes / 512;
    for line in 0..lines {
        session.write_u64(at(line), line + 1).unwrap();
    }
    session.fence().unwrap();
    for line in 0..lines {
        assert_eq!(session.read_u64(at(line)).unwrap(), line + 1);
    }
    assert!(user.stats().evictions > 1000, "{:?}", user.stats());
    drop(session);
    user.leave().unwrap();
    let mut session = home.session().unwrap();
    for line in 0..lines {
        assert_eq!(session.read_u64(at(line)).unwrap(), line + 1, "written back");
    }
}

fn lines_of_any_size_get_the_whole_cache(make: &Make) {
    const CACHE: u64 = 1 << 20;
    let home = Node::create_on(&config("pool"), make()).unwrap();
    let user = config("pool").cache_bytes(CACHE).direct_reads(false);
    let user = Node::join_on(&user, make()).unwrap();
    let mut session = user.session().unwrap();
    for (number, bytes) in [512, 4_096, 64, 65_536, 512].into_iter().enumerate() {
        let spec = AllocationSpec::new(AllocationHint::On(home.id()));
        let spec = spec.line_size(LineSize::from_bytes(bytes as usize));
        let lines = CACHE / bytes * 9 / 10;
        let address = session.alloc_with(lines * bytes, spec).unwrap();
        let mut evicted_by_pass = || {
            let before = user.stats().evictions;
            for line in 0..lines {
                let word = address.checked_add(line * bytes).unwrap();
                assert_eq!(session.read_u64(word), Ok(0));
            }
            user.stats().evictions - before
        };
        if number == 0 {
            assert_eq!(evicted_by_pass(), 0, "the cache is empty, and nine tenths of it are used");
        }
        let passes = (0..16).position(|_| evicted_by_pass() == 0);
        assert!(passes.is_some(), "lines of {bytes} B do not get the cache");
    }
}

fn bad_input_is_a_typed_error_without_effect(make: &Make) {
    let nodes = cluster(make, &config("bad"), 2);
    let mut session = nodes[0].session().unwrap();
    let mut bytes = [0; 64];
    for home in 0..2 {
        let address = session.alloc_on(100, NodeId(home)).unwrap();
        let past = address.checked_add(104).unwrap();
        assert_eq!(code(session.read(past, &mut bytes)), ErrorCode::OutOfBounds);
        let edge = address.checked_add(96).unwrap();
        assert_eq!(code(session.read(edge, &mut bytes)), ErrorCode::OutOfBounds);
        session.write(edge, &bytes).unwrap();
        assert_eq!(code(session.fence()), ErrorCode::OutOfBounds);
        assert_eq!(session.fence(), Ok(()), "a failure is reported once");
        assert_eq!(code(session.read(address, &mut [])), ErrorCode::ZeroSize);
        let odd = address.checked_add(4).unwrap();
        assert_eq!(code(session.fetch_add(odd, 1)), ErrorCode::Misaligned);
        assert_eq!(
            code(session.swap_u32(address.checked_add(2).unwrap(), 1)),
            ErrorCode::Misaligned
        );
        assert_eq!(code(session.free(odd)), ErrorCode::NotAnAllocation);
        let far = address.checked_add(1 << 40).unwrap();
        assert_eq!(code(session.read(far, &mut bytes)), ErrorCode::Unallocated);
        let next = session.alloc_on(64, NodeId(home)).unwrap();
        let forged = GlobalAddress::new(NodeId(home), LineSize::MIN, address.offset()).unwrap();
        assert_eq!(code(session.read(forged, &mut bytes)), ErrorCode::Unallocated);
        session.free(address).unwrap();
        assert_eq!(code(session.free(address)), ErrorCode::NotAnAllocation);
        assert_eq!(code(session.read(address, &mut bytes)), ErrorCode::Unallocated);
        session.read(next, &mut bytes).unwrap();
    }
    let foreign = GlobalAddress::new(NodeId(77), LineSize::DEFAULT, 512).unwrap();
    assert_eq!(code(session.read(foreign, &mut bytes)), ErrorCode::ForeignAddress);
    assert_eq!(code(session.alloc(0)), ErrorCode::ZeroSize);
    assert_eq!(code(session.alloc(1 << 41)), ErrorCode::TooLarge);
    assert_eq!(code(session.alloc(1 << 30)), ErrorCode::OutOfMemory);
    assert_eq!(code(session.alloc_on(8, NodeId(9))), ErrorCode::ForeignAddress);
}

fn a_full_home_sends_allocations_elsewhere(make: &Make) {
    let nodes = cluster(make, &config("full"), 2);
    let mut session = nodes[0].session().unwrap();
    let mut homes = [0; 2];
    loop {
        match session.alloc(1 << 20) {
            Ok(address) => homes[usize::from(address.home().0)] += 1,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::OutOfMemory);
                break;
            }
        }
    }
    assert!(homes[0] >= 6 && homes[1] >= 6, "{homes:?}");
    let spec = AllocationSpec::new(AllocationHint::Local).line_size(LineSize::from_bytes(4096));
    assert_eq!(code(session.alloc_with(1 << 20, spec)), ErrorCode::OutOfMemory);
}

fn every_line_size_works_from_everywhere(make: &Make) {
    let nodes = cluster(make, &config("sizes"), 2);
    let mut here = nodes[0].session().unwrap();
    let mut there = nodes[1].session().unwrap();
    for size in LineSize::all() {
        let spec = AllocationSpec::new(AllocationHint::On(NodeId(1))).line_size(Some(size));
        let bytes = size.bytes() * 3 + 40;
        let address = here.alloc_with(bytes as u64, spec).unwrap();
        let pattern: Vec<u8> = (0..bytes).map(|i| (i * 7 + size.bytes()) as u8).collect();
        here.write(address, &pattern).unwrap();
        here.fence().unwrap();
        let mut back = vec![0; bytes];
        there.read(address, &mut back).unwrap();
        assert!(back == pattern, "{size:?}");
        there.free(address).unwrap();
    }
}

fn refused_join_says_why(make: &Make) {
    let node = Node::create_on(&config("why"), make()).unwrap();
    assert_eq!(code(Node::join_on(&config("other"), make())), ErrorCode::NoSuchCluster);
    let mut wrong = config("why");
    wrong.limits.sessions_max = 5;
    assert_eq!(code(Node::join_on(&wrong, make())), ErrorCode::LimitsMismatch);
    assert_eq!(code(Node::join_on(&config("no spaces"), make())), ErrorCode::BadConfiguration);
    node.leave().unwrap();
}

/// Between hosts each host has separate names.
#[test]
fn names_on_one_machine_are_taken() {
    for make in [fabrics::mem(), fabrics::shm()] {
        let node = Node::create_on(&config("name"), make()).unwrap();
        assert_eq!(code(Node::create_on(&config("name"), make())), ErrorCode::NameTaken);
        node.leave().unwrap();
    }
}

fn locks_exclude_and_order(make: &Make) {
    let nodes = cluster(make, &config("locks"), 3);
    let mut first = nodes[0].session().unwrap();
    let address = first.alloc_on(1024, NodeId(2)).unwrap();
    std::thread::scope(|scope| {
        for node in &nodes {
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                for _ in 0..200 {
                    let mut guard = session.lock_write(address, 1024).unwrap();
                    let one = guard.read_u64(address).unwrap();
                    let far = address.checked_add(1016).unwrap();
                    let other = guard.read_u64(far).unwrap();
                    assert_eq!(one, other, "both ends change under one lock");
                    guard.write_u64(address, one + 1).unwrap();
                    guard.write_u64(far, one + 1).unwrap();
                    guard.unlock().unwrap();
                }
            });
        }
    });
    assert_eq!(first.read_u64(address).unwrap(), 600);
}

fn lock_errors_are_typed(make: &Make) {
    let nodes = cluster(make, &config("lock-errors"), 2);
    let mut a = nodes[0].session().unwrap();
    let mut b = nodes[1].session().unwrap();
    for home in 0..2 {
        let address = a.alloc_on(512, NodeId(home)).unwrap();
        let half = address.checked_add(256).unwrap();
        assert_eq!(code(a.unlock(address, 8)), ErrorCode::NotLocked);
        a.lock_write(address, 256).unwrap().keep();
        assert_eq!(code(b.try_lock_read(address, 8)), ErrorCode::Busy);
        b.lock_write(half, 8).unwrap().unlock().unwrap();
        assert_eq!(code(a.unlock(address, 8)), ErrorCode::NotLocked, "exactly what was locked");
        a.unlock(address, 256).unwrap();
        let token = b.lock_read(address, 8).unwrap().token();
        let mut guard = a.lock_read(address, 8).unwrap();
        assert!(guard.token() != token);
        guard.upgrade().unwrap();
        drop(guard);
        assert_eq!(code(a.lock_read(address, 513)), ErrorCode::OutOfBounds);
        assert_eq!(code(a.lock_read(address, 0)), ErrorCode::ZeroSize);
    }
}

fn a_cycle_of_locks_has_a_victim(make: &Make) {
    let nodes = cluster(make, &config("cycle"), 2);
    let mut setup = nodes[0].session().unwrap();
    let addresses = [0, 1].map(|home| setup.alloc_on(64, NodeId(home)).unwrap());
    let barrier = std::sync::Barrier::new(2);
    let victims: usize = std::thread::scope(|scope| {
        let threads = [0, 1].map(|number| {
            let (node, barrier) = (&nodes[number], &barrier);
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                let mut guard = session.lock_write(addresses[number], 64).unwrap();
                barrier.wait();
                let other = guard.lock_write(addresses[1 - number], 64);
                usize::from(other.is_err_and(|error| error.code == ErrorCode::Deadlock))
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(victims, 1);
}

fn more_nodes_than_configured_are_refused(make: &Make) {
    let mut config = config("crowded");
    config.limits.nodes_max = 2;
    let nodes =
        [Node::create_on(&config, make()).unwrap(), Node::join_on(&config, make()).unwrap()];
    let error = Node::join_on(&config, make()).unwrap_err();
    assert_eq!(error.code, ErrorCode::ClusterFull, "{error}");
    let mut session = nodes[0].session().unwrap();
    let address = session.alloc_on(8, NodeId(1)).unwrap();
    session.write_u64(address, 1).unwrap();
    session.fence().unwrap();
    assert_eq!(nodes[1].session().unwrap().read_u64(address), Ok(1), "the others go on");
}

/// V18: an advisory lock pins nothing, so a session can hold more locks than the cache has frames, and
/// still read and write under all of them.
fn v18_locked_lines_do_not_fill_a_cache(make: &Make) {
    const LINE: u64 = 512;
    let config = config("locked").cache_bytes(1 << 20);
    let first = Node::create_on(&config, make()).unwrap();
    let second = Node::join_on(&config, make()).unwrap();
    let mut session = second.session().unwrap();
    let lines = config.limits.locks_per_session_max.min(4 * (config.cache_bytes / LINE) as u32);
    let address = session.alloc_on(u64::from(lines) * LINE, first.id()).unwrap();
    let line = |number: u32| address.checked_add(u64::from(number) * LINE).unwrap();
    for number in 0..lines {
        session.lock_write(line(number), LINE).unwrap().keep();
        session.write_u64(line(number), number.into()).unwrap();
    }
    for number in 0..lines {
        assert_eq!(session.read_u64(line(number)), Ok(number.into()));
    }
    let full = session.lock_write(line(0).checked_add(8).unwrap(), 8).map(|guard| guard.token());
    assert!(full.is_err(), "{full:?}");
    for number in 0..lines {
        session.unlock(line(number), LINE).unwrap();
    }
    let mut other = first.session().unwrap();
    for number in 0..lines {
        assert_eq!(
            other.lock_read(line(number), 8).unwrap().read_u64(line(number)),
            Ok(number.into())
        );
    }
}

fn an_atomic_too_large_for_the_cache_is_refused(make: &Make) {
    let config = config("large").cache_bytes(1 << 20);
    let first = Node::create_on(&config, make()).unwrap();
    let second = Node::join_on(&config, make()).unwrap();
    let mut session = second.session().unwrap();
    let bytes = 2 << 20;
    let address = session.alloc_on(bytes, first.id()).unwrap();
    let mut out = vec![1; bytes as usize];
    let refused = session.write_atomic(address, &out);
    assert_eq!(code(refused), ErrorCode::CacheFull);
    assert_eq!(code(session.read_atomic(address, &mut out)), ErrorCode::CacheFull);
    session.read(address, &mut out).unwrap();
    assert!(out.iter().all(|byte| *byte == 0), "nothing of it was written");
    session.write_atomic(address, &[3; 2048]).unwrap();
    session.read_atomic(address, &mut out[..2048]).unwrap();
    assert_eq!(out[..2048], [3; 2048]);
}

fn atomics_of_nearly_the_whole_cache_complete(make: &Make) {
    const LINE: u64 = 512;
    const CACHED: u64 = 64;
    let home = Node::create_on(&config("nearly"), make()).unwrap();
    let user = config("nearly").cache_bytes(CACHED * LINE).direct_reads(false);
    let user = Node::join_on(&user, make()).unwrap();
    let mut session = user.session().unwrap();
    let others = session.alloc_on(CACHED * LINE, home.id()).unwrap();
    let address = session.alloc_on(CACHED * LINE, home.id()).unwrap();
    let mut largest = 0;
    for lines in CACHED / 2..=CACHED {
        for line in 0..CACHED {
            session.read_u64(others.checked_add(line * LINE).unwrap()).unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let bytes = vec![lines as u8; (lines * LINE) as usize];
        match session.with_deadline(deadline).write_atomic(address, &bytes) {
            Ok(()) => largest = lines,
            Err(error) => assert_eq!(error.code(), ErrorCode::CacheFull, "{lines} lines"),
        }
    }
    assert!(largest > CACHED * 3 / 4, "only {largest} of {CACHED} lines at a time");
}

fn threads_with_lines_of_all_sizes_share_a_small_cache(make: &Make) {
    const BYTES: usize = 64 << 10;
    let home = Node::create_on(&config("sizes"), make()).unwrap();
    let user = config("sizes").cache_bytes(128 << 10).direct_reads(false);
    let user = Node::join_on(&user, make()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (user, home) = (&user, home.id());
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut session = user.session().unwrap();
                let mut parts: Vec<_> = (6..13)
                    .map(|log2| {
                        let line = LineSize::from_bytes(1 << log2);
                        let spec = AllocationSpec::new(AllocationHint::On(home)).line_size(line);
                        let address = session.alloc_with(BYTES as u64, spec).unwrap();
                        (address, vec![0_u8; BYTES])
                    })
                    .collect();
                for round in 0..1_000 {
                    let which = random.below(parts.len() as u64) as usize;
                    let (address, expected) = &mut parts[which];
                    let start = random.below(BYTES as u64) as usize;
                    let count = (1 + random.below(2_000) as usize).min(BYTES - start);
                    let at = address.checked_add(start as u64).unwrap();
                    let part = &mut expected[start..start + count];
                    match random.below(4) {
                        0 => {
                            part.fill(round as u8);
                            session.write(at, part).unwrap();
                        }
                        1 => match session.write_atomic(at, &vec![round as u8; count]) {
                            Ok(()) => part.fill(round as u8),
                            Err(error) => assert_eq!(error.code(), ErrorCode::CacheFull),
                        },
                        _ => {
                            let mut found = vec![0; count];
                            session.read(at, &mut found).unwrap();
                            assert!(found == part, "thread {thread}, round {round}");
                        }
                    }
                }
            });
        }
    });
}

fn a_node_without_memory_of_its_own_takes_part(make: &Make) {
    let first = Node::create_on(&config("diskless"), make()).unwrap();
    let second = Node::join_on(&config("diskless").memory_bytes(0), make()).unwrap();
    let mut session = second.session().unwrap();
    assert_eq!(code(session.alloc_on(64, second.id())), ErrorCode::OutOfMemory);
    let address = session.alloc(64).unwrap();
    assert_eq!(address.home(), first.id());
    session.write_u64(address, 4).unwrap();
    session.fence().unwrap();
    assert_eq!(first.session().unwrap().read_u64(address), Ok(4));
}
