//! Words, locks, publications and heaps in lent memory under every schedule of a weak fabric, with faults.
//! `FARSIDE_RUNS` sets the number of seeds of each test, `FARSIDE_SEED` the first one.

use farside::onesided::{
    HeapOptions, MemoryClient, Publication, QueueLock, RangeList, RecoverableWord, RemoteAddress,
    RemoteGuard, RemoteHeap, RemoteLock, TicketLock, VectorIo,
};
use farside::runtime::{Instant, pause};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_sim::lent::{NAP, PATIENCE, Scene};
use farside_sim::seeds::each_seed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const COMMAND: &str = "cargo test -p farside-sim --test onesided";
const CLIENTS: u64 = 3;
/// Steps of a run, about.
const STEPS: u64 = 3_000;
/// Longer than a request takes.
const LEASE: Duration = Duration::from_millis(500);

fn names() -> Vec<String> {
    (0..CLIENTS).map(|number| format!("client-{number}")).collect()
}

/// Additions of clients whose links are cut: each previous value is returned once, and the sum is exact. A client that dies
/// leaves its last one done or not.
fn sums(seed: u64, with_death: bool) -> Result<(), String> {
    const ADDITIONS: u64 = 12;
    let mut scene = Scene::new(seed, 4096)?;
    let returned = Arc::<Mutex<Vec<u64>>>::default();
    for (number, name) in (0..).zip(&names()) {
        let returned = Arc::clone(&returned);
        scene.client(name, move |client, memory| {
            let place = (number, CLIENTS as u32);
            let mut word = RecoverableWord::open(client, memory.at(0), place, PATIENCE).unwrap();
            for _ in 0..ADDITIONS {
                let was = word.fetch_add(client, 1, PATIENCE).unwrap();
                returned.lock().unwrap().push(was);
            }
        })?;
    }
    scene.disturb(&names(), STEPS, LEASE);
    if with_death {
        scene.kill("client-0", STEPS);
    }
    scene.run()?;
    let mut all = std::mem::take(&mut *returned.lock().unwrap());
    all.sort_unstable();
    // One value is missing if a client died within its addition.
    let missing = all.iter().zip(0..).find(|(was, number)| *was != number);
    let (holes, complete) = match missing {
        None => (0, all.len() as u64 == CLIENTS * ADDITIONS),
        Some((_, hole)) => {
            (1, all.iter().skip(hole as usize).zip(hole + 1..).all(|(was, number)| *was == number))
        }
    };
    if holes > u64::from(with_death) || !complete && !with_death || holes == 1 && !complete {
        return Err(scene.trouble(&format!("values {all:?}")));
    }
    Ok(())
}

#[test]
fn sums_are_exact() {
    each_seed(COMMAND, 40, |seed| sums(seed, false));
}

#[test]
fn sums_with_a_dying_client_are_exact() {
    each_seed(COMMAND, 40, |seed| sums(seed, true));
}

/// Clients whose links are cut move lists of ranges to a part of their own and back: no range is missing, and the
/// lists fill the queue of requests.
fn lists(seed: u64) -> Result<(), String> {
    const PART: u64 = 64 << 10;
    let mut scene = Scene::new(seed, CLIENTS * PART)?;
    for (number, name) in (0..).zip(&names()) {
        let mut random = Random::new(seed ^ number << 60);
        scene.client(name, move |client, memory| {
            let (from, into) = (client.register(PART).unwrap(), client.register(PART).unwrap());
            let at = memory.at(number * PART);
            for round in 1..=4_u64 {
                let bytes = 8 * (1 + random.below(8)) as u32;
                let stride = u64::from(bytes) * (1 + random.below(3));
                let count = 1 + random.below((PART / stride).min(300)) as usize;
                let list = RangeList::strided(count, bytes, bytes.into(), stride).unwrap();
                let list = list.by(*random.pick(&VectorIo::ALL));
                let sent: Vec<u8> = (0..list.bytes()).map(|at| (at * round) as u8).collect();
                from.write(0, &sent).unwrap();
                let written = client.write_ranges(at, &from, 0, &list).unwrap();
                client.wait(written, PATIENCE).unwrap();
                let read = client.read_ranges(at, &into, 0, &list).unwrap();
                client.wait(read, PATIENCE).unwrap();
                let mut back = vec![0; sent.len()];
                into.read(0, &mut back).unwrap();
                assert!(back == sent, "{list:?} of stride {stride} in round {round}");
            }
        })?;
    }
    scene.disturb(&names(), STEPS, LEASE);
    scene.run().map(drop)
}

#[test]
fn lists_arrive_whole() {
    each_seed(COMMAND, 40, lists);
}

/// One writer publishes, others read: each snapshot is one generation, and none is older than one before.
fn publications(seed: u64, with_death: bool) -> Result<(), String> {
    const GENERATIONS: u64 = 12;
    const BYTES: u64 = 200;
    let mut scene = Scene::new(seed, 4096)?;
    let published = Arc::<AtomicU64>::default();
    let its_published = Arc::clone(&published);
    scene.client("client-0", move |client, memory| {
        let mut place = Publication::new(memory.at(64), BYTES).unwrap();
        let from = client.register(BYTES).unwrap();
        for generation in 1..=GENERATIONS {
            for word in 0..BYTES / 8 {
                from.write(word * 8, &generation.to_le_bytes()).unwrap();
            }
            loop {
                match place.publish(client, &from, 0, PATIENCE) {
                    Ok(number) if number >= generation => break,
                    Ok(_) => {}
                    Err(error) => assert_eq!(error.code, ErrorCode::Indeterminate, "{error}"),
                }
            }
            its_published.store(generation, Ordering::Relaxed);
        }
    })?;
    for name in &names()[1..] {
        let published = Arc::clone(&published);
        scene.client(name, move |client, memory| {
            let mut place = Publication::new(memory.at(64), BYTES).unwrap();
            let into = client.register(BYTES).unwrap();
            let mut last = 0;
            for _ in 0..20 {
                let least = published.load(Ordering::Relaxed);
                let number = place.snapshot(client, &into, 0, PATIENCE).unwrap().unwrap_or(0);
                let mut bytes = [0; BYTES as usize];
                into.read(0, &mut bytes).unwrap();
                let words =
                    bytes.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
                let words: Vec<u64> = words.collect();
                if number > 0 {
                    assert!(words.iter().all(|word| *word == words[0]), "torn: {words:?}");
                    assert!(words[0] >= least.max(last), "{words:?} after {least} and {last}");
                    last = words[0];
                }
                assert!(number > 0 || least == 0, "nothing after {least}");
            }
        })?;
    }
    scene.disturb(&names(), STEPS, LEASE);
    if with_death {
        scene.kill("client-0", STEPS);
    }
    scene.run().map(drop)
}

#[test]
fn snapshots_are_never_torn() {
    each_seed(COMMAND, 30, |seed| publications(seed, false));
}

#[test]
fn snapshots_of_a_dying_writer_are_never_torn() {
    each_seed(COMMAND, 30, |seed| publications(seed, true));
}

/// The locks that clients of a run take: of one kind at one address.
#[derive(Clone, Copy)]
enum Kind {
    Spin,
    Ticket,
    Queue,
}

fn lock(kind: Kind, client: &mut MemoryClient, at: RemoteAddress) -> Result<RemoteGuard, Error> {
    match kind {
        Kind::Spin => RemoteLock::new(at, LEASE)?.lock(client, PATIENCE),
        Kind::Ticket => TicketLock::new(at, LEASE)?.lock(client, PATIENCE),
        Kind::Queue => QueueLock::new(at, 8, LEASE)?.lock(client, PATIENCE),
    }
}

/// Holders of a lock exclude each other while their leases last, and each has a higher token than those before.
fn locks(seed: u64, kind: Kind, with_death: bool) -> Result<(), String> {
    let mut scene = Scene::new(seed, 4096)?;
    // Holder, token and end of its lease.
    let held = Arc::<Mutex<Option<(u64, u64, Instant)>>>::default();
    for (number, name) in (0..).zip(&names()) {
        let (held, mut random) = (Arc::clone(&held), Random::new(scene.random.word()));
        scene.client(name, move |client, memory| {
            for _ in 0..5 {
                let guard = match lock(kind, client, memory.at(64)) {
                    Ok(guard) => guard,
                    Err(error) => {
                        assert_eq!(error.code, ErrorCode::Indeterminate, "{error}");
                        continue;
                    }
                };
                let (now, left) = (Instant::now(), guard.left());
                // Else it was stopped, and its lease is over.
                if !left.is_zero() {
                    let mut held = held.lock().unwrap();
                    if let Some((other, token, until)) = *held {
                        let its = guard.token();
                        assert!(its > token, "{other} had {token}, {number} has {its}");
                        assert!(until <= now, "{number} while {other} holds it");
                    }
                    *held = Some((number, guard.token(), now + left));
                }
                for _ in 0..random.below(3) {
                    pause(NAP);
                }
                let mut held = held.lock().unwrap();
                if held.is_some_and(|(holder, token, _)| (holder, token) == (number, guard.token()))
                {
                    *held = Some((number, guard.token(), Instant::now()));
                }
                drop(held);
                let unlocked = guard.unlock(client, PATIENCE).map_err(|error| error.code);
                let expected = [ErrorCode::NotLocked, ErrorCode::Indeterminate];
                assert!(unlocked.is_ok() || expected.contains(&unlocked.unwrap_err()));
            }
        })?;
    }
    scene.disturb(&names(), STEPS, 2 * LEASE);
    if with_death {
        scene.kill("client-0", STEPS);
    }
    scene.run().map(drop)
}

#[test]
fn lock_holders_exclude_each_other() {
    for kind in [Kind::Spin, Kind::Ticket, Kind::Queue] {
        each_seed(COMMAND, 20, |seed| locks(seed, kind, seed % 2 == 0));
    }
}

/// Objects of a heap that clients hold do not overlap, also after a client died or was stopped for longer than its lease.
fn heaps(seed: u64) -> Result<(), String> {
    let options = HeapOptions::default().bytes(4 << 20).clients(6).lease(LEASE).grace(LEASE / 8);
    let mut scene = Scene::new(seed, options.bytes)?;
    scene.client("creator", move |client, memory| {
        let heap = RemoteHeap::create(client, memory.at(0), &options, PATIENCE).unwrap();
        heap.close(client, PATIENCE).unwrap();
    })?;
    let live = Arc::<Mutex<BTreeMap<u64, u64>>>::default();
    for name in &names() {
        let (live, mut random) = (Arc::clone(&live), Random::new(scene.random.word()));
        scene.client(name, move |client, memory| {
            let mut heap = loop {
                match RemoteHeap::open(client, memory.at(0), PATIENCE) {
                    Ok(heap) => break heap,
                    Err(error) if error.code == ErrorCode::BadForm => pause(NAP),
                    Err(error) => panic!("{error}"),
                }
            };
            for _ in 0..40 {
                let freed = random.one_in(2).then(|| live.lock().unwrap().pop_first()).flatten();
                if let Some((at, bytes)) = freed {
                    match heap.free(client, memory.at(at), bytes, PATIENCE) {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.code, ErrorCode::Indeterminate, "{error}"),
                    }
                    continue;
                }
                let bytes = 1 + random.below(3000);
                let object = match heap.alloc(client, bytes, PATIENCE) {
                    Ok(object) => object.offset(),
                    Err(error) => {
                        assert_eq!(error.code, ErrorCode::Indeterminate, "{error}");
                        continue;
                    }
                };
                let mut live = live.lock().unwrap();
                let before = live.range(..object + bytes).next_back();
                let overlaps = before.is_some_and(|(at, of)| at + of > object);
                assert!(!overlaps, "{bytes} B at {object} beside {before:?}");
                live.insert(object, bytes);
            }
        })?;
    }
    scene.disturb(&names(), STEPS, 2 * LEASE);
    if seed.is_multiple_of(2) {
        scene.kill("client-0", STEPS);
    }
    scene.run().map(drop)
}

#[test]
fn objects_of_a_heap_do_not_overlap() {
    each_seed(COMMAND, 20, heaps);
}
