//! One-sided memory: clients, memory servers, lost connections.

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::ErrorCode;
use farside::channel::{Kind, Options, Receiver};
use farside::onesided::{
    Access, Buffer, FlushScope, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer,
    Publication, RangeList, RemoteMemory, TransferRange, VectorCosts, VectorIo,
};
use farside_base::Random;
use farside_testkit::{Process, WATCHDOG, await_parent, role, say, unique_name, until};
use lent::{BYTES, client_of, code, cut_pair, pair, posting_pair, process_fabric, server};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    bytes_are_moved_whole
    words_are_changed_by_each_atomic
    wrong_requests_fail_alone
    requests_in_flight_end_once_each
    requests_end_within_their_calls
    clients_add_exactly
    ended_server_fails_requests
    server_that_started_again_has_other_memory
    access_is_what_the_server_grants
    task_is_woken_without_polling
    dropped_buffer_stays_registered
    other_listeners_are_not_memory_servers
    clients_have_a_limit
    ranges_are_moved_to_their_places
    wrong_ranges_move_nothing
    ways_of_vector_io_have_their_counts
    lists_and_single_requests_share_a_queue
    memory_is_opened_more_than_once
    snapshots_are_of_one_generation
    writers_that_meet_are_reported
) with crate::fabrics::named }

fn bytes_are_moved_whole(make: &Make) {
    let (server, mut client, memory) = pair(make, "bytes");
    assert_eq!((memory.bytes(), memory.access()), (BYTES, Access::ALL));
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 251) as u8).collect();
    client.write_bytes(memory.at(0), &bytes, WATCHDOG).unwrap();
    let mut back = vec![0; BYTES as usize];
    client.read_bytes(memory.at(0), &mut back, WATCHDOG).unwrap();
    assert!(back == bytes);
    let mut there = vec![0; BYTES as usize];
    server.read(0, &mut there).unwrap();
    assert!(there == bytes);
    // A part, from and to the middle of a buffer.
    let buffer = client.register(100).unwrap();
    let read = client.read(memory.at(BYTES - 50), &buffer, 13..63).unwrap();
    assert_eq!(client.wait(read, WATCHDOG), Ok(0));
    let mut part = [0; 50];
    buffer.read(13, &mut part).unwrap();
    assert_eq!(part, bytes[bytes.len() - 50..]);
    // A word of the server's own program.
    server.store_word(64, 0x0102).unwrap();
    let word = client.read_word(memory.at(64)).unwrap();
    assert_eq!((client.wait(word, WATCHDOG), server.load_word(64)), (Ok(0x0102), Ok(0x0102)));
    for outside in [65, BYTES] {
        assert_eq!(code(server.load_word(outside)), ErrorCode::OutOfBounds);
        assert_eq!(code(server.store_word(outside, 1)), ErrorCode::OutOfBounds);
    }
}

fn words_are_changed_by_each_atomic(make: &Make) {
    let (server, mut client, memory) = pair(make, "words");
    let has = make().capabilities();
    let word = memory.at(64);
    let added = client.fetch_add(word, u64::MAX).unwrap();
    assert_eq!(client.wait(added, WATCHDOG), Ok(0));
    let swapped = client.compare_swap(word, u64::MAX, 7).unwrap();
    assert_eq!(client.wait(swapped, WATCHDOG), Ok(u64::MAX));
    let not_swapped = client.compare_swap(word, 8, 9).unwrap();
    assert_eq!(client.wait(not_swapped, WATCHDOG), Ok(7));
    let stored = client.atomic_write(word, 0x00ff_0001).unwrap();
    assert_eq!(client.wait(stored, WATCHDOG).is_ok(), has.atomic_write);
    let flushed = client.flush(word, 8, FlushScope::Visible).unwrap_err();
    assert_eq!(flushed.code, ErrorCode::AccessDenied, "the server does not lend it for flushes");
    if has.extended_atomics {
        let fields = client.masked_fetch_add(word, 0x0001_ffff, 0x8000).unwrap();
        assert_eq!(client.wait(fields, WATCHDOG), Ok(0x00ff_0001));
        let masked = client.masked_compare_swap(word, [0, 0xffff], [0xab, 0xff]).unwrap();
        assert_eq!(client.wait(masked, WATCHDOG), Ok(0x0100_0000));
        let old = client.swap(word, 1).unwrap();
        assert_eq!(client.wait(old, WATCHDOG), Ok(0x0100_00ab));
        let mut bytes = [0; 8];
        server.read(64, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 1);
    }
}

/// Whatever is wrong with a request is found before it is posted: the connection serves others.
fn wrong_requests_fail_alone(make: &Make) {
    let (_server, mut client, memory) = pair(make, "wrong");
    let other = MemoryClient::new(&fabrics::mem()(), &MemoryClientOptions::default()).unwrap();
    let (buffer, foreign) = (client.register(64).unwrap(), other.register(64).unwrap());
    let end = buffer.len() as u64; // a fabric may round up
    let good = client.fetch_add(memory.at(0), 1).unwrap();
    let wrong = [
        (client.read(memory.at(0), &buffer, 8..8), ErrorCode::ZeroSize),
        (client.read(memory.at(BYTES - 8), &buffer, 0..9), ErrorCode::OutOfBounds),
        (client.read(memory.at(u64::MAX), &buffer, 0..9), ErrorCode::OutOfBounds),
        (client.read(memory.at(0), &buffer, end - 4..end + 1), ErrorCode::OutOfBounds),
        (client.write(memory.at(0), &buffer, u64::MAX - 1..u64::MAX), ErrorCode::OutOfBounds),
        (client.read(memory.at(0), &buffer, 0..1 << 32), ErrorCode::TooLarge),
        (client.fetch_add(memory.at(12), 1), ErrorCode::Misaligned),
        (client.fetch_add(memory.at(BYTES), 1), ErrorCode::OutOfBounds),
        (client.read(memory.at(0), &foreign, 0..8), ErrorCode::BadForm),
    ];
    for (at, (result, expected)) in wrong.into_iter().enumerate() {
        assert_eq!(code(result), expected, "request {at}");
    }
    let (_, mut stranger, _) = pair(make, "stranger");
    assert_eq!(code(stranger.fetch_add(memory.at(0), 1)), ErrorCode::BadForm);
    assert_eq!(client.wait(good, WATCHDOG), Ok(0));
    assert_eq!(code(client.wait(good, WATCHDOG)), ErrorCode::BadForm, "taken before");
    assert_eq!(client.reconnections(memory), Ok(0));
}

fn requests_in_flight_end_once_each(make: &Make) {
    let server = server(&make(), &unique_name("flight"));
    let options = MemoryClientOptions::default().requests_max(64);
    let (mut client, memory) = client_of(&make(), &server, &options);
    let requests: Vec<_> = (0..64).map(|_| client.fetch_add(memory.at(8), 1).unwrap()).collect();
    assert_eq!(code(client.fetch_add(memory.at(8), 1)), ErrorCode::TooManyRequests);
    let mut taken = Vec::new();
    // Some by their names, and the rest as they come.
    for request in requests.iter().step_by(3) {
        taken.push((*request, client.wait(*request, WATCHDOG).unwrap()));
    }
    until("all have ended", || {
        client.progress();
        while let Some((request, value)) = client.take_next() {
            taken.push((request, value.unwrap()));
        }
        taken.len() == 64
    });
    taken.sort_unstable();
    let mut sorted = requests;
    sorted.sort_unstable();
    assert!(taken.iter().map(|(request, _)| *request).eq(sorted));
    let mut values: Vec<_> = taken.iter().map(|(_, value)| *value).collect();
    values.sort_unstable();
    assert!(values.into_iter().eq(0..64));
    let last: Vec<_> = (0..20).map(|_| client.fetch_add(memory.at(8), 1).unwrap()).collect();
    client.wait_for_all(memory, WATCHDOG).unwrap();
    assert!(last.into_iter().all(|request| matches!(client.take(request), Ok(Some(_)))));
    // Forgotten requests leave their slots.
    for _ in 0..200 {
        let request = client.fetch_add(memory.at(8), 1).unwrap();
        client.forget(request);
        until("it has ended", || {
            client.progress();
            client.take(request).is_err()
        });
    }
    assert!(client.take_next().is_none());
    client.wait_for_all(memory, Duration::ZERO).unwrap();
}

/// Where the processor of the client moves the bytes, a request has ended when its call returns, in the order of calls.
fn requests_end_within_their_calls(make: &Make) {
    let server = server(&make(), &unique_name("within"));
    let open =
        |in_call| client_of(&make(), &server, &MemoryClientOptions::default().in_call(in_call));
    let (mut client, memory) = open(true);
    let buffer = client.register(1 << 17).unwrap();
    let list = RangeList::strided(8, 16, 16, 64).unwrap();
    let run = |client: &mut MemoryClient, memory: RemoteMemory, buffer: &Buffer, round: u64| {
        buffer.write(0, &[7; 64]).unwrap();
        let requests = [
            (client.write(memory.at(0), buffer, 0..64).unwrap(), 0),
            (client.read(memory.at(0), buffer, 64..128).unwrap(), 0),
            (client.read_word(memory.at(0)).unwrap(), 0x0707_0707_0707_0707),
            (client.fetch_add(memory.at(512), 5).unwrap(), 5 * round),
            (client.compare_swap(memory.at(520), round, round + 1).unwrap(), round),
            (client.write_ranges(memory.at(1024), buffer, 0, &list).unwrap(), 0),
            (client.read_ranges(memory.at(1024), buffer, 256, &list).unwrap(), 0),
        ];
        let ended = requests.iter().filter(|(request, _)| client.has_ended(*request)).count();
        for (request, value) in requests {
            assert_eq!(client.wait(request, WATCHDOG), Ok(value));
        }
        let mut read = [0; 64];
        buffer.read(64, &mut read).unwrap();
        assert_eq!(read, [7; 64]);
        ended
    };
    // A port may have to learn of the memory by a request that is posted.
    run(&mut client, memory, &buffer, 0);
    let (before, within) = (client.stats(), make().name() == "shm");
    assert_eq!(run(&mut client, memory, &buffer, 1), if within { 7 } else { 0 });
    let after = client.stats();
    assert_eq!(after.work_requests - before.work_requests, 5 + 2 * 8);
    assert_eq!(after.in_call - before.in_call, if within { 5 + 2 * 8 } else { 0 });
    assert_eq!(after.doorbells == before.doorbells, within);
    // Not before what waits to be posted: a long one is.
    let long = client.write(memory.at(1 << 18), &buffer, 0..1 << 17).unwrap();
    let after = client.read_word(memory.at(0)).unwrap();
    assert!(!client.has_ended(long) && !client.has_ended(after));
    client.wait(long, WATCHDOG).unwrap();
    client.wait(after, WATCHDOG).unwrap();
    let (mut other, memory) = open(false);
    let buffer = other.register(4096).unwrap();
    run(&mut other, memory, &buffer, 2);
    assert_eq!(other.stats().in_call, 0);
}

fn clients_add_exactly(make: &Make) {
    const CLIENTS: u64 = 3;
    const ADDITIONS: u64 = 2_000;
    let server = server(&make(), &unique_name("exact"));
    let before = server.wake_ups();
    let fabrics: Vec<_> = (0..CLIENTS).map(|_| make()).collect();
    std::thread::scope(|scope| {
        for fabric in &fabrics {
            scope.spawn(|| {
                let (mut client, memory) =
                    client_of(fabric, &server, &MemoryClientOptions::default());
                let requests: Vec<_> = (0..ADDITIONS / 2)
                    .map(|at| client.fetch_add(memory.at(at % 2 * 512), 1).unwrap())
                    .collect();
                for request in requests {
                    client.wait(request, WATCHDOG).unwrap();
                    let more = client.fetch_add(memory.at(0), 1).unwrap();
                    client.wait(more, WATCHDOG).unwrap();
                }
            });
        }
    });
    let word = |offset| {
        let mut bytes = [0; 8];
        server.read(offset, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    assert_eq!(word(0) + word(512), CLIENTS * ADDITIONS);
    // Not one of the 6,000 requests woke it: clients that come and go did.
    assert!(server.wake_ups() - before <= 4 * CLIENTS, "{} wake-ups", server.wake_ups() - before);
    until("the clients have gone", || server.clients() == 0);
}

fn ended_server_fails_requests(make: &Make) {
    let server = server(&make(), &unique_name("ended"));
    let options = MemoryClientOptions::default().reconnect(Duration::ZERO);
    let (mut client, memory) = client_of(&make(), &server, &options);
    let buffer = client.register(8).unwrap();
    let first = client.read(memory.at(0), &buffer, 0..8).unwrap();
    assert_eq!(client.wait(first, WATCHDOG), Ok(0));
    drop(server);
    let lost = client.read(memory.at(0), &buffer, 0..8).unwrap();
    assert_eq!(code(client.wait(lost, WATCHDOG)), ErrorCode::PeerLost);
    assert_eq!(code(client.read(memory.at(0), &buffer, 0..8)), ErrorCode::PeerLost);
    client.close(memory).unwrap();
}

fn server_that_started_again_has_other_memory(make: &Make) {
    let (fabric, name) = (make(), unique_name("again"));
    let first = server(&fabric, &name);
    let (mut client, memory) = client_of(&make(), &first, &MemoryClientOptions::default());
    drop(first);
    let again = server(&fabric, &name);
    let buffer = client.register(8).unwrap();
    let read = client.read(memory.at(0), &buffer, 0..8).unwrap();
    let error = client.wait(read, WATCHDOG).unwrap_err();
    assert_eq!(error.code, ErrorCode::PeerLost);
    assert!(error.detail.contains("started again"), "{error}");
    let new = client.open(again.address(), WATCHDOG).unwrap();
    let read = client.read(new.at(0), &buffer, 0..8).unwrap();
    assert_eq!(client.wait(read, WATCHDOG), Ok(0));
}

fn access_is_what_the_server_grants(make: &Make) {
    let options = LendOptions::default().access(Access::READ);
    let server = MemoryServer::lend(&make(), &unique_name("grants"), 64, &options).unwrap();
    let (mut client, memory) = client_of(&make(), &server, &MemoryClientOptions::default());
    let buffer = client.register(8).unwrap();
    assert_eq!(code(client.write(memory.at(0), &buffer, 0..8)), ErrorCode::AccessDenied);
    assert_eq!(code(client.fetch_add(memory.at(0), 1)), ErrorCode::AccessDenied);
    server.write(8, b"readable").unwrap();
    let read = client.read(memory.at(8), &buffer, 0..8).unwrap();
    client.wait(read, WATCHDOG).unwrap();
    let mut bytes = [0; 8];
    buffer.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"readable");
    assert_eq!(server.bytes(), 64);
    let too_much = MemoryServer::lend(&make(), "none", u64::MAX, &LendOptions::default());
    assert_eq!(code(too_much), ErrorCode::TooLarge);
    assert_eq!(
        code(MemoryServer::lend(&make(), "none", 0, &LendOptions::default())),
        ErrorCode::ZeroSize
    );
}

/// A task that counts its polls.
struct Parked {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

/// Runs a future; returns its result and the number of its polls.
fn block_on<T>(future: impl Future<Output = T>) -> (T, u32) {
    let parked = Arc::new(Parked { thread: std::thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&parked));
    let mut future = pin!(future);
    let mut polls = 0;
    loop {
        if parked.woken.swap(false, Ordering::SeqCst) {
            polls += 1;
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return (result, polls);
            }
        } else {
            std::thread::park();
        }
    }
}

fn task_is_woken_without_polling(make: &Make) {
    let server = server(&make(), &unique_name("task"));
    let mut client = MemoryClient::new(&make(), &MemoryClientOptions::default()).unwrap();
    let (memory, _) = block_on(client.open_async(server.address()));
    let memory = memory.unwrap();
    let mut polls = 0;
    for value in 0..100 {
        let request = client.fetch_add(memory.at(0), 1).unwrap();
        let (result, its) = block_on(client.wait_async(request));
        assert_eq!(result, Ok(value));
        polls += its;
    }
    assert!(polls <= 100 * 4, "{polls} polls");
    // A dropped future loses nothing.
    let request = client.fetch_add(memory.at(0), 1).unwrap();
    drop(client.wait_async(request));
    assert_eq!(client.wait(request, WATCHDOG), Ok(100));
}

fn dropped_buffer_stays_registered(make: &Make) {
    let (server, mut client, memory) = pair(make, "dropped");
    let buffers: Vec<Buffer> = (0..20).map(|_| client.register(4096).unwrap()).collect();
    let mut writes = Vec::new();
    for (at, buffer) in buffers.into_iter().enumerate() {
        buffer.write(0, &[at as u8 + 1; 4096]).unwrap();
        writes.push(client.write(memory.at(at as u64 * 4096), &buffer, 0..4096).unwrap());
        client.submit();
    }
    for write in writes {
        client.wait(write, WATCHDOG).unwrap();
    }
    for at in 0..20 {
        let mut bytes = [0; 4096];
        server.read(at * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [at as u8 + 1; 4096]);
    }
}

fn other_listeners_are_not_memory_servers(make: &Make) {
    let fabric = make();
    let name = unique_name("channel");
    let options = Options::new(Kind::RingInlined, 64);
    let mut receiver = Receiver::listen(Arc::clone(&fabric), &name, &options).unwrap();
    let address = receiver.address().unwrap();
    let opener = make();
    let opened = std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            let mut client = MemoryClient::new(&opener, &MemoryClientOptions::default()).unwrap();
            client.open(&address, WATCHDOG)
        });
        until("it was refused", || {
            let _ = receiver.poll();
            opened.is_finished()
        });
        opened.join().unwrap()
    });
    let error = opened.unwrap_err();
    assert_eq!(error.code, ErrorCode::ChannelMismatch, "{error}");
    let mut client = MemoryClient::new(&make(), &MemoryClientOptions::default()).unwrap();
    let missing = client.open(&unique_name("missing"), Duration::from_secs(5)).unwrap_err();
    assert_eq!(missing.code, ErrorCode::NoListener, "{missing}");
}

fn clients_have_a_limit(make: &Make) {
    let options = LendOptions::default().clients_max(1);
    let server = MemoryServer::lend(&make(), &unique_name("limit"), 64, &options).unwrap();
    let (mut first, memory) = client_of(&make(), &server, &MemoryClientOptions::default());
    let mut second = MemoryClient::new(&make(), &MemoryClientOptions::default()).unwrap();
    let refused = second.open(server.address(), WATCHDOG).unwrap_err();
    assert!(refused.code == ErrorCode::ChannelFull && refused.detail.contains('1'), "{refused}");
    first.close(memory).unwrap();
    until("there is room", || second.open(server.address(), WATCHDOG).is_ok());
}

/// Lists of every form, with ranges that are adjacent on one side, on both and on none.
fn ranges_are_moved_to_their_places(make: &Make) {
    let (server, mut client, memory) = pair(make, "ranges");
    let mut random = Random::new(7);
    let buffer = client.register(BYTES).unwrap();
    for round in 0..48 {
        let (list, ranges) = random_list(&mut random, round);
        let ways = [VectorIo::Auto, VectorIo::Doorbell, VectorIo::Gather, VectorIo::Stage];
        let list = (list.by(ways[round as usize / 3 % 4]), ranges);
        let (from, at) = (random.below(64) * 8, random.below(64) * 8);
        // The reference: the same moves, range by range.
        let remote: Vec<u8> = (0..BYTES).map(|_| random.byte()).collect();
        let mut expected: Vec<u8> = (0..BYTES).map(|_| random.byte()).collect();
        server.write(0, &remote).unwrap();
        buffer.write(0, &expected).unwrap();
        for range in &list.1 {
            let (local, remote_at) = ((at + range.local) as usize, (from + range.remote) as usize);
            let bytes = range.bytes as usize;
            expected[local..local + bytes].copy_from_slice(&remote[remote_at..remote_at + bytes]);
        }
        let read = client.read_ranges(memory.at(from), &buffer, at, &list.0).unwrap();
        assert_eq!(client.wait(read, WATCHDOG), Ok(0));
        let mut got = vec![0; BYTES as usize];
        buffer.read(0, &mut got).unwrap();
        assert!(got == expected, "round {round}: {:?}", list.0);
        // And back: what was read is there already; a change of it arrives.
        let changed: Vec<u8> = got.iter().map(|byte| byte ^ 0xff).collect();
        buffer.write(0, &changed).unwrap();
        let mut expected = remote;
        for range in &list.1 {
            let (local, remote_at) = ((at + range.local) as usize, (from + range.remote) as usize);
            let bytes = range.bytes as usize;
            expected[remote_at..remote_at + bytes].copy_from_slice(&changed[local..local + bytes]);
        }
        let write = client.write_ranges(memory.at(from), &buffer, at, &list.0).unwrap();
        let after = client.fetch_add(memory.at(BYTES - 8), 0).unwrap();
        assert_eq!(client.wait(write, WATCHDOG), Ok(0));
        client.wait(after, WATCHDOG).unwrap();
        server.read(0, &mut got).unwrap();
        assert!(got == expected, "round {round}: {:?}", list.0);
    }
}

/// A list, and its ranges one by one: none overlaps another on either side.
fn random_list(random: &mut Random, round: u64) -> (RangeList, Vec<TransferRange>) {
    let count = 1 + random.below(400);
    let bytes = 8 * (1 + random.below(40)) as u32;
    let stride = |random: &mut Random| u64::from(bytes) + 8 * random.below(3) * random.below(60);
    let (local, remote) = (stride(random), stride(random));
    let range = |at: u64, to: u64| TransferRange { local: at * local, remote: to * remote, bytes };
    match round % 3 {
        0 => {
            let list = RangeList::strided(count as usize, bytes, local, remote).unwrap();
            (list, (0..count).map(|at| range(at, at)).collect())
        }
        1 => {
            let mut to: Vec<u64> = (0..count).collect();
            random.shuffle(&mut to[count as usize / 2..]);
            let ranges: Vec<_> = (0..count).map(|at| range(at, to[at as usize])).collect();
            (RangeList::explicit(&ranges).unwrap(), ranges)
        }
        _ => {
            let mut to: Vec<u32> = (0..count as u32).collect();
            random.shuffle(&mut to);
            let table: Vec<_> = (0..).zip(&to).map(|(at, to)| [at, *to]).collect();
            let block = |[at, to]: &[u32; 2]| {
                let offset = |block: u32| u64::from(block) * u64::from(bytes);
                TransferRange { local: offset(*at), remote: offset(*to), bytes }
            };
            (RangeList::blocks(bytes, &table).unwrap(), table.iter().map(block).collect())
        }
    }
}

/// Work requests, doorbells and copies of each way to move pieces (paper 000, figure 3).
fn ways_of_vector_io_have_their_counts(make: &Make) {
    const PIECES: usize = 16;
    let (_server, mut client, memory) = posting_pair(make, "vector");
    let slices_max = make().capabilities().slices_max as usize;
    let buffer = client.register(8192).unwrap();
    let list = RangeList::strided(PIECES, 32, 64, 32).unwrap();
    let gathered = PIECES.div_ceil(slices_max) as u64;
    let counts = [
        (VectorIo::Doorbell, [PIECES as u64, 1, 0]),
        (VectorIo::Gather, [gathered, 1, 0]),
        (VectorIo::Stage, [1, 1, PIECES as u64]),
    ];
    for write in [true, false] {
        for (way, expected) in counts {
            let (before, list) = (client.stats(), list.clone().by(way));
            let request = match write {
                true => client.write_ranges(memory.at(0), &buffer, 0, &list),
                false => client.read_ranges(memory.at(0), &buffer, 0, &list),
            };
            client.wait(request.unwrap(), WATCHDOG).unwrap();
            let after = client.stats();
            let done = [
                after.work_requests - before.work_requests,
                after.doorbells - before.doorbells,
                after.copies - before.copies,
            ];
            assert_eq!(done, expected, "{}", way.name());
        }
    }
    // Short pieces are staged, long ones are not.
    let explain = |bytes: u32| {
        let list = RangeList::strided(PIECES, bytes, 8192, bytes.into()).unwrap();
        list.explain(&make().capabilities(), &VectorCosts::default())
    };
    assert_eq!(explain(32).chosen, VectorIo::Stage);
    assert_ne!(explain(4096).chosen, VectorIo::Stage, "{}", explain(4096));
    // A list of staged ranges may fail too; its staging memory is not used by the next one before its end.
    let staged = RangeList::strided(PIECES, 32, 64, 32).unwrap().by(VectorIo::Stage);
    let mut requests = Vec::new();
    for round in 0..8_u8 {
        buffer.write(0, &[round; 1024]).unwrap();
        let at = memory.at(u64::from(round) * 512);
        requests.push(client.write_ranges(at, &buffer, 0, &staged).unwrap());
    }
    for request in requests {
        client.wait(request, WATCHDOG).unwrap();
    }
    let mut bytes = [0; 8 * 512];
    client.read_bytes(memory.at(0), &mut bytes, WATCHDOG).unwrap();
    assert!(bytes.chunks(512).zip(0..).all(|(part, round)| part == [round; 512]));
}

/// Lists between single requests, all queued before any is posted.
fn lists_and_single_requests_share_a_queue(make: &Make) {
    let (_server, mut client, memory) = pair(make, "mixed");
    let (out, back) = (client.register(4096).unwrap(), client.register(4096).unwrap());
    let list = RangeList::strided(100, 8, 8, 16).unwrap().by(VectorIo::Doorbell);
    for round in 0..20_u8 {
        out.write(0, &[round; 4096]).unwrap();
        let requests = [
            client.fetch_add(memory.at(8000), 1).unwrap(),
            client.write_ranges(memory.at(0), &out, 0, &list).unwrap(),
            client.read(memory.at(0), &back, 0..8).unwrap(),
            client.read_ranges(memory.at(0), &back, 8, &list).unwrap(),
            client.fetch_add(memory.at(8000), 1).unwrap(),
        ];
        let outcomes = requests.map(|request| client.wait(request, WATCHDOG).unwrap());
        assert_eq!(outcomes, [u64::from(round) * 2, 0, 0, 0, u64::from(round) * 2 + 1]);
        let mut bytes = [0xff; 808];
        back.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [round; 808], "requests of one memory keep their order here");
    }
}

/// Each opening is a connection of its own, and none ends another.
fn memory_is_opened_more_than_once(make: &Make) {
    let (server, mut client, first) = pair(make, "twice");
    let second = client.open(server.address(), WATCHDOG).unwrap();
    for value in 0..50 {
        let requests = [first, second].map(|memory| client.fetch_add(memory.at(0), 1).unwrap());
        let mut values = requests.map(|request| client.wait(request, WATCHDOG).unwrap());
        values.sort_unstable();
        assert_eq!(values, [2 * value, 2 * value + 1]);
    }
    assert_eq!(server.clients(), 2);
    client.close(second).unwrap();
    let again = client.fetch_add(first.at(0), 1).unwrap();
    assert_eq!(client.wait(again, WATCHDOG), Ok(100));
    assert_eq!((client.reconnections(first), client.reconnections(second)), (Ok(0), Ok(0)));
}

fn wrong_ranges_move_nothing(make: &Make) {
    let (server, mut client, memory) = pair(make, "wrong-ranges");
    let buffer = client.register(4096).unwrap();
    buffer.write(0, &[1; 4096]).unwrap();
    let list = RangeList::strided(4, 8, 8, BYTES / 4).unwrap();
    let past = client.write_ranges(memory.at(BYTES / 4), &buffer, 0, &list).unwrap_err();
    assert!(past.code == ErrorCode::OutOfBounds && past.detail.contains("range 3 "), "{past}");
    let end = buffer.len() as u64;
    let past = client.write_ranges(memory.at(0), &buffer, end - 16, &list).unwrap_err();
    assert!(past.code == ErrorCode::OutOfBounds && past.detail.contains("range 2 "), "{past}");
    let mut bytes = vec![1; BYTES as usize];
    server.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
    let options = LendOptions::default().access(Access::READ);
    let reader = MemoryServer::lend(&make(), &unique_name("read"), 64, &options).unwrap();
    let read_only = client.open(reader.address(), WATCHDOG).unwrap();
    let small = RangeList::strided(4, 8, 8, 8).unwrap();
    let denied = client.write_ranges(read_only.at(0), &buffer, 0, &small);
    assert_eq!(code(denied), ErrorCode::AccessDenied);
    // Its slot is free again.
    for _ in 0..2000 {
        let write = client.write_ranges(memory.at(0), &buffer, 0, &small).unwrap();
        client.wait(write, WATCHDOG).unwrap();
    }
}

/// A word is whole in each snapshot, and the number of the generation is that of the content.
fn snapshots_are_of_one_generation(make: &Make) {
    const CONTENT: u64 = 16 << 10;
    const GENERATIONS: u64 = 300;
    let server = server(&make(), &unique_name("generations"));
    let (writer_fabric, reader_fabrics) = (make(), [make(), make()]);
    let ends = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = reader_fabrics
            .iter()
            .map(|fabric| {
                scope.spawn(|| {
                    let (mut client, memory) =
                        client_of(fabric, &server, &MemoryClientOptions::default());
                    let mut content = Publication::new(memory.at(64), CONTENT).unwrap();
                    let buffer = client.register(CONTENT).unwrap();
                    let (mut last, mut seen) = (0, 0);
                    while !ends.load(Ordering::SeqCst) || seen == 0 {
                        match content.snapshot(&mut client, &buffer, 0, WATCHDOG) {
                            Ok(None) => assert_eq!(last, 0),
                            Ok(Some(generation)) => {
                                assert!(generation >= last, "{generation} after {last}");
                                let mut bytes = vec![0; CONTENT as usize];
                                buffer.read(0, &mut bytes).unwrap();
                                let words = bytes.chunks(8);
                                assert!(words.clone().all(|word| word == generation.to_le_bytes()));
                                (last, seen) = (generation, seen + 1);
                            }
                            Err(error) => assert_eq!(error.code, ErrorCode::Torn),
                        }
                    }
                    (last, seen)
                })
            })
            .collect();
        let (mut client, memory) =
            client_of(&writer_fabric, &server, &MemoryClientOptions::default());
        let mut content = Publication::new(memory.at(64), CONTENT).unwrap();
        let buffer = client.register(CONTENT).unwrap();
        let rows = RangeList::strided(16, 1024, 1024, 1024).unwrap();
        for generation in 1..=GENERATIONS {
            buffer.write(0, &generation.to_le_bytes().repeat(CONTENT as usize / 8)).unwrap();
            let published = match generation % 2 {
                0 => content.publish(&mut client, &buffer, 0, WATCHDOG),
                _ => content.publish_ranges(&mut client, &buffer, 0, &rows, WATCHDOG),
            };
            assert_eq!(published, Ok(generation));
        }
        ends.store(true, Ordering::SeqCst);
        for reader in readers {
            let (last, seen) = reader.join().unwrap();
            assert!(last <= GENERATIONS && seen > 0);
        }
        // At rest, two requests suffice.
        let buffer = client.register(CONTENT).unwrap();
        let requests = |client: &MemoryClient| client.stats().work_requests;
        let before = requests(&client);
        let last = content.snapshot(&mut client, &buffer, 0, WATCHDOG);
        assert_eq!(last, Ok(Some(GENERATIONS)));
        assert_eq!(requests(&client) - before, 2);
        let next = content.publish(&mut client, &buffer, 0, WATCHDOG);
        assert_eq!(next, Ok(GENERATIONS + 1));
        assert_eq!(requests(&client) - before, 2 + 3);
    });
}

/// Of two writers that meet one fails: as many generations as calls that succeeded.
fn writers_that_meet_are_reported(make: &Make) {
    let (server, mut client, memory) = pair(make, "writers");
    let fabrics = [make(), make()];
    let published: u64 = std::thread::scope(|scope| {
        let writers = fabrics.each_ref().map(|fabric| {
            scope.spawn(|| {
                let (mut client, memory) =
                    client_of(fabric, &server, &MemoryClientOptions::default());
                let buffer = client.register(64).unwrap();
                let mut place = Publication::new(memory.at(0), 64).unwrap();
                let mut published = 0;
                for _ in 0..500 {
                    match place.publish(&mut client, &buffer, 0, WATCHDOG) {
                        Ok(_) => published += 1,
                        Err(error) => assert_eq!(error.code, ErrorCode::Busy),
                    }
                }
                published
            })
        });
        writers.into_iter().map(|writer| writer.join().unwrap()).sum()
    });
    let buffer = client.register(4096).unwrap();
    let place = |offset, bytes| Publication::new(memory.at(offset), bytes);
    let mut one = place(0, 64).unwrap();
    assert_eq!(one.snapshot(&mut client, &buffer, 0, WATCHDOG), Ok(Some(published)));
    assert_eq!(code(place(0, 0)), ErrorCode::ZeroSize);
    assert_eq!(code(place(4, 64)), ErrorCode::Misaligned);
    assert_eq!(code(place(0, 1 << 32)), ErrorCode::TooLarge);
    assert_eq!(code(place(BYTES - Publication::footprint(64) + 8, 64)), ErrorCode::OutOfBounds);
    assert!(place(BYTES - Publication::footprint(64), 64).is_ok());
    let long = RangeList::strided(2, 64, 64, 64).unwrap();
    let past = one.publish_ranges(&mut client, &buffer, 0, &long, WATCHDOG);
    assert_eq!(code(past), ErrorCode::OutOfBounds);
    assert_eq!(one.snapshot(&mut client, &buffer, 0, WATCHDOG), Ok(Some(published)));
}

/// A list whose connection is cut within it is moved whole, and a server that ends fails it.
#[test]
fn cut_connections_repeat_ranges() {
    let (way, server, fabric) = cut_pair("cut-ranges");
    let options = MemoryClientOptions::default().reconnect(Duration::MAX);
    let (mut client, memory) = client_of(&fabric, &server, &options);
    // 4,096 work requests: no two ranges are adjacent in the remote memory.
    let list = RangeList::strided(4096, 64, 64, 256).unwrap();
    let buffer = client.register(4096 * 64).unwrap();
    for round in 1..=20_u8 {
        buffer.write(0, &[round; 4096 * 64]).unwrap();
        let write = client.write_ranges(memory.at(0), &buffer, 0, &list).unwrap();
        let mut polls = 0;
        until("the list is moved", || {
            polls += 1;
            if polls == 1 + u32::from(round) % 4 {
                way.cut();
            }
            client.progress();
            client.take(write).unwrap().is_some()
        });
        let mut bytes = vec![0; BYTES as usize];
        server.read(0, &mut bytes).unwrap();
        assert!(bytes.chunks(256).all(|row| row[..64] == [round; 64] && row[64..] == [0; 192]));
    }
    assert!(client.reconnections(memory).unwrap() >= 5);
    let write = client.write_ranges(memory.at(0), &buffer, 0, &list).unwrap();
    client.submit();
    drop(server);
    client.close(memory).unwrap();
    assert_eq!(code(client.wait(write, WATCHDOG)), ErrorCode::PeerLost);
}

/// Not a test by itself: a memory server in a process of its own.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [fabric, name] = &role[..] else { panic!("{role:?}") };
    let server = server(&process_fabric(fabric, &[]), name);
    say(&format!("lends {}", server.address()));
    await_parent();
}

/// A server in another process, and a client of it.
fn far_pair(
    fabric: &str,
    test: &str,
    options: &MemoryClientOptions,
) -> (Process, MemoryClient, RemoteMemory) {
    let mut server = Process::child(&format!("{fabric} {}", unique_name(test)));
    let address = server.hear("lends ");
    let mut client = MemoryClient::new(&process_fabric(fabric, &[]), options).unwrap();
    let memory = client.open(&address, WATCHDOG).unwrap();
    (server, client, memory)
}

/// The processor of the server executes nothing for its clients.
#[test]
fn stopped_server_is_read_and_written() {
    let (mut server, mut client, memory) =
        far_pair("shm", "asleep", &MemoryClientOptions::default());
    server.stop();
    for value in 0..1000 {
        let request = client.fetch_add(memory.at(0), 1).unwrap();
        assert_eq!(client.wait(request, WATCHDOG), Ok(value));
    }
    client.write_bytes(memory.at(8), &[7; 4096], WATCHDOG).unwrap();
    let mut bytes = [0; 4096];
    client.read_bytes(memory.at(8), &mut bytes, WATCHDOG).unwrap();
    assert_eq!(bytes, [7; 4096]);
    server.resume();
    server.say("end");
    server.wait();
}

fn killed_server_fails_what_was_in_flight(fabric: &str) {
    let options = MemoryClientOptions::default().reconnect(Duration::from_millis(200));
    let (mut server, mut client, memory) = far_pair(fabric, "killed", &options);
    let buffer = client.register(64).unwrap();
    let mut added = 0;
    let mut codes = Vec::new();
    for round in 0.. {
        let requests = [
            client.fetch_add(memory.at(0), 1),
            client.write(memory.at(64), &buffer, 0..64),
            client.read(memory.at(64), &buffer, 0..64),
        ];
        for request in requests {
            match request.and_then(|request| client.wait(request, WATCHDOG)) {
                Ok(_) => added += 1,
                Err(error) => codes.push(error.code),
            }
        }
        if round == 100 {
            server.kill();
        }
        if !codes.is_empty() {
            break;
        }
    }
    assert!(added >= 300);
    let is_expected =
        |code: &ErrorCode| matches!(code, ErrorCode::PeerLost | ErrorCode::Indeterminate);
    assert!(codes.iter().all(is_expected), "{codes:?}");
}

#[test]
fn killed_server_fails_what_was_in_flight_over_shm() {
    killed_server_fails_what_was_in_flight("shm");
}

#[test]
fn killed_server_fails_what_was_in_flight_over_tcp() {
    killed_server_fails_what_was_in_flight("tcp");
}

/// Connections are cut again and again. Additions count once or are reported as indeterminate; writes and reads are
/// repeated, in order.
#[test]
fn cut_connections_repeat_transfers_and_report_atomics() {
    const ROUNDS: u64 = 400;
    let (way, server, fabric) = cut_pair("cut");
    let options = MemoryClientOptions::default().reconnect(WATCHDOG);
    let (mut client, memory) = client_of(&fabric, &server, &options);
    let (out, back) = (client.register(8).unwrap(), client.register(8).unwrap());
    let (mut added, mut unknown) = (0, 0);
    for round in 1..=ROUNDS {
        out.write(0, &round.to_le_bytes()).unwrap();
        let write = client.write(memory.at(64), &out, 0..8).unwrap();
        let read = client.read(memory.at(64), &back, 0..8).unwrap();
        let add = client.fetch_add(memory.at(0), 1).unwrap();
        client.submit();
        if round % 20 == 0 {
            way.cut();
        }
        client.wait(write, WATCHDOG).unwrap();
        client.wait(read, WATCHDOG).unwrap();
        let mut bytes = [0; 8];
        back.read(0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), round, "a READ overtook the WRITE before it");
        match client.wait(add, WATCHDOG) {
            Ok(_) => added += 1,
            Err(error) => {
                assert_eq!(error.code, ErrorCode::Indeterminate);
                unknown += 1;
            }
        }
    }
    let mut bytes = [0; 8];
    server.read(0, &mut bytes).unwrap();
    let sum = u64::from_le_bytes(bytes);
    assert!((added..=added + unknown).contains(&sum), "{added} {unknown} {sum}");
    assert_eq!(added + unknown, ROUNDS);
    assert!(client.reconnections(memory).unwrap() >= 10);
    // The last cut may be later than the last request.
    until("one connection is left", || {
        client.progress();
        server.clients() == 1
    });
}
