//! Locks and sequencers in memory that is lent.

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::onesided::{
    MemoryClient, MemoryClientOptions, MemoryServer, QueueLock, RemoteGuard, RemoteLock,
    RemoteMemory, Sequencer, TicketLock,
};
use farside::{Error, ErrorCode};
use farside_testkit::{Process, WATCHDOG, await_parent, role, say, unique_name, until};
use lent::{BYTES, client_of, code, cut_pair, pair, posting_pair, process_fabric, server};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    locked_additions_are_exact
    lock_of_a_holder_that_ended_is_taken_over
    one_of_several_locks_is_taken
    renewed_lock_is_kept
    locks_have_their_counts
    tickets_are_served_in_their_order
    ticket_of_a_dead_waiter_is_skipped
    client_that_gives_up_costs_no_lease
    wrong_locks_are_refused
    numbers_are_given_out_once
) with crate::fabrics::named }

/// Where the lock is, and the word that it protects.
const LOCK: u64 = 1024;
const SUM: u64 = 64;
/// Longer than any test.
const HOUR: Duration = Duration::from_hours(1);

#[derive(Clone, Copy, Debug)]
enum AnyLock {
    Spin(RemoteLock),
    Ticket(TicketLock),
    Queue(QueueLock),
}

const KINDS: [&str; 3] = ["spin", "ticket", "queue"];

impl AnyLock {
    fn new(kind: &str, memory: RemoteMemory, lease: Duration) -> Self {
        let at = memory.at(LOCK);
        match kind {
            "spin" => Self::Spin(RemoteLock::new(at, lease).unwrap()),
            "ticket" => Self::Ticket(TicketLock::new(at, lease).unwrap()),
            _ => Self::Queue(QueueLock::new(at, 4, lease).unwrap()),
        }
    }

    fn lock(self, client: &mut MemoryClient, timeout: Duration) -> Result<RemoteGuard, Error> {
        match self {
            Self::Spin(lock) => lock.lock(client, timeout),
            Self::Ticket(lock) => lock.lock(client, timeout),
            Self::Queue(lock) => lock.lock(client, timeout),
        }
    }

    fn try_lock(self, client: &mut MemoryClient) -> Result<RemoteGuard, Error> {
        match self {
            Self::Spin(lock) => lock.try_lock(client, WATCHDOG),
            Self::Ticket(lock) => lock.try_lock(client, WATCHDOG),
            Self::Queue(lock) => lock.try_lock(client, WATCHDOG),
        }
    }
}

fn word(server: &MemoryServer, offset: u64) -> u64 {
    let mut bytes = [0; 8];
    server.read(offset, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

/// Adds to a word by a READ and a WRITE, which only the lock makes whole.
fn add_locked(client: &mut MemoryClient, memory: RemoteMemory, lock: AnyLock) -> u64 {
    let guard = lock.lock(client, WATCHDOG).unwrap();
    let mut bytes = [0; 8];
    client.read_bytes(memory.at(SUM), &mut bytes, WATCHDOG).unwrap();
    let sum = u64::from_le_bytes(bytes) + 1;
    client.write_bytes(memory.at(SUM), &sum.to_le_bytes(), WATCHDOG).unwrap();
    let token = guard.token();
    guard.unlock(client, WATCHDOG).unwrap();
    token
}

fn locked_additions_are_exact(make: &Make) {
    const ADDITIONS: u64 = 100;
    for kind in KINDS {
        let server = server(&make(), &unique_name("locked"));
        let fabrics = [make(), make(), make()];
        std::thread::scope(|scope| {
            for fabric in &fabrics {
                scope.spawn(|| {
                    let (mut client, memory) =
                        client_of(fabric, &server, &MemoryClientOptions::default());
                    let lock = AnyLock::new(kind, memory, WATCHDOG);
                    let mut last = 0;
                    for _ in 0..ADDITIONS {
                        let token = add_locked(&mut client, memory, lock);
                        assert!(token > last);
                        last = token;
                    }
                });
            }
        });
        assert_eq!(word(&server, SUM), 3 * ADDITIONS, "{kind}");
    }
}

fn lock_of_a_holder_that_ended_is_taken_over(make: &Make) {
    let lease = Duration::from_millis(50);
    for kind in KINDS {
        let (server, mut first, memory) = pair(make, "over");
        let (mut second, its) = client_of(&make(), &server, &MemoryClientOptions::default());
        let guard = AnyLock::new(kind, memory, lease).lock(&mut first, WATCHDOG).unwrap();
        let lock = AnyLock::new(kind, its, lease);
        assert_eq!(code(lock.try_lock(&mut second)), ErrorCode::Busy);
        let taken = lock.lock(&mut second, WATCHDOG).unwrap();
        assert!(taken.was_abandoned() && taken.token() > guard.token());
        assert!(guard.left().is_zero(), "it was taken over before the end of its lease");
        assert_eq!(code(guard.unlock(&mut first, WATCHDOG)), ErrorCode::NotLocked);
        let token = taken.token();
        taken.unlock(&mut second, WATCHDOG).unwrap();
        let next = lock.lock(&mut second, WATCHDOG).unwrap();
        assert!(!next.was_abandoned() && next.token() > token, "{kind}");
        next.unlock(&mut second, WATCHDOG).unwrap();
    }
}

fn one_of_several_locks_is_taken(make: &Make) {
    let (server, mut first, memory) = pair(make, "several");
    let (mut second, its) = client_of(&make(), &server, &MemoryClientOptions::default());
    let leases = [(0, HOUR), (64, HOUR), (128, Duration::from_millis(50))];
    let locks = |memory: RemoteMemory| {
        leases.map(|(at, lease)| RemoteLock::new(memory.at(at), lease).unwrap())
    };
    let mut guards = locks(memory).map(|lock| lock.lock(&mut first, WATCHDOG).ok());
    // The holder of the third is found dead.
    let (at, taken) = RemoteLock::lock_any(&mut second, &locks(its), WATCHDOG).unwrap();
    assert!(at == 2 && taken.was_abandoned());
    let few = Duration::from_millis(5);
    let held = RemoteLock::lock_any(&mut second, &locks(its)[..2], few).map(drop);
    assert_eq!(code(held), ErrorCode::TimedOut);
    guards[1].take().unwrap().unlock(&mut first, WATCHDOG).unwrap();
    let (at, free) = RemoteLock::lock_any(&mut second, &locks(its)[..2], WATCHDOG).unwrap();
    assert!(at == 1 && !free.was_abandoned());
}

fn renewed_lock_is_kept(make: &Make) {
    // Long against the time that a thread may wait for a processor.
    let lease = Duration::from_secs(2);
    for kind in KINDS {
        let (server, mut client, memory) = pair(make, "renewed");
        let mut guard = AnyLock::new(kind, memory, lease).lock(&mut client, WATCHDOG).unwrap();
        let fabric = make();
        let other = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let (mut client, memory) =
                    client_of(&fabric, &server, &MemoryClientOptions::default());
                let lock = AnyLock::new(kind, memory, lease);
                lock.lock(&mut client, lease * 3 / 2).map(|guard| guard.token())
            });
            until("the other has given up", || {
                guard.renew(&mut client, WATCHDOG).unwrap();
                other.is_finished()
            });
            other.join().unwrap()
        });
        assert_eq!(code(other), ErrorCode::TimedOut);
        assert!(!guard.left().is_zero());
        guard.unlock(&mut client, WATCHDOG).unwrap();
    }
}

/// Work requests and doorbells of a lock that no other client wants. Each doorbell is a round trip.
fn locks_have_their_counts(make: &Make) {
    let counts = [
        ("spin", [2, 2], [2, 2], [1, 1]),
        ("ticket", [2, 1], [2, 2], [1, 1]),
        ("queue", [2, 1], [3, 3], [2, 1]),
    ];
    for (kind, locks, tries, unlocks) in counts {
        let (_server, mut client, memory) = posting_pair(make, "counts");
        let lock = AnyLock::new(kind, memory, HOUR);
        let mut last = client.stats();
        let mut done = |client: &MemoryClient| {
            let before = std::mem::replace(&mut last, client.stats());
            [last.work_requests - before.work_requests, last.doorbells - before.doorbells]
        };
        for _ in 0..3 {
            let guard = lock.lock(&mut client, WATCHDOG).unwrap();
            assert_eq!(done(&client), locks, "lock: {kind}");
            guard.unlock(&mut client, WATCHDOG).unwrap();
            assert_eq!(done(&client), unlocks, "unlock: {kind}");
            let mut guard = lock.try_lock(&mut client).unwrap();
            assert_eq!(done(&client), tries, "try_lock: {kind}");
            guard.renew(&mut client, WATCHDOG).unwrap();
            assert_eq!(done(&client), [1, 1], "renew: {kind}");
            guard.unlock(&mut client, WATCHDOG).unwrap();
            assert_eq!(done(&client), unlocks, "unlock: {kind}");
        }
    }
}

fn tickets_are_served_in_their_order(make: &Make) {
    for kind in &KINDS[1..] {
        for backoff in [true, false] {
            let (server, mut client, memory) = pair(make, "order");
            let guard = AnyLock::new(kind, memory, HOUR).lock(&mut client, WATCHDOG).unwrap();
            let order = Mutex::new(Vec::new());
            let fabrics: Vec<_> = (0..6_u64).map(|_| make()).collect();
            std::thread::scope(|scope| {
                for (number, fabric) in (1..).zip(&fabrics) {
                    let (server, order) = (&server, &order);
                    scope.spawn(move || {
                        let (mut client, memory) =
                            client_of(fabric, server, &MemoryClientOptions::default());
                        let lock = match AnyLock::new(kind, memory, HOUR) {
                            AnyLock::Ticket(lock) if !backoff => {
                                AnyLock::Ticket(lock.without_backoff())
                            }
                            AnyLock::Queue(lock) if !backoff => {
                                AnyLock::Queue(lock.without_backoff())
                            }
                            lock => lock,
                        };
                        let guard = lock.lock(&mut client, WATCHDOG).unwrap();
                        order.lock().unwrap().push(guard.token());
                        guard.unlock(&mut client, WATCHDOG).unwrap();
                    });
                    until("it has its ticket", || word(server, LOCK) == number + 1);
                }
                guard.unlock(&mut client, WATCHDOG).unwrap();
            });
            assert_eq!(order.into_inner().unwrap(), [2, 3, 4, 5, 6, 7], "{kind}");
        }
    }
}

/// A client that has only taken a ticket, and does nothing more.
fn ticket_of_a_dead_waiter_is_skipped(make: &Make) {
    let lease = Duration::from_millis(50);
    for kind in &KINDS[1..] {
        let (server, mut client, memory) = pair(make, "waiter");
        let lock = AnyLock::new(kind, memory, lease);
        for round in 1..=3 {
            let (mut dead, its) = client_of(&make(), &server, &MemoryClientOptions::default());
            let guard = lock.lock(&mut client, WATCHDOG).unwrap();
            let ticket = dead.fetch_add(its.at(LOCK), 1).unwrap();
            let ticket = dead.wait(ticket, WATCHDOG).unwrap();
            drop(dead);
            assert_eq!(ticket, guard.token());
            // That the lease was over on the way is no error while no other client has taken the lock.
            guard.unlock(&mut client, WATCHDOG).unwrap();
            assert_eq!(code(lock.try_lock(&mut client)), ErrorCode::Busy);
            let next = lock.lock(&mut client, WATCHDOG).unwrap();
            assert!(next.was_abandoned() && next.token() > ticket, "{kind}");
            let token = next.token();
            // Unless it was stopped for a lease itself.
            let _ = next.unlock(&mut client, WATCHDOG);
            assert!(token > 2 * round);
        }
    }
}

/// The leases are longer than the test: nothing may wait for their end.
fn client_that_gives_up_costs_no_lease(make: &Make) {
    for kind in ["spin", "queue"] {
        let (server, mut client, memory) = pair(make, "gives-up");
        let (mut other, its) = client_of(&make(), &server, &MemoryClientOptions::default());
        let guard = AnyLock::new(kind, memory, HOUR).lock(&mut client, WATCHDOG).unwrap();
        for _ in 0..2 {
            let left = AnyLock::new(kind, its, HOUR).lock(&mut other, Duration::from_millis(500));
            assert_eq!(code(left), ErrorCode::TimedOut);
        }
        other.wait_for_all(its, WATCHDOG).unwrap();
        guard.unlock(&mut client, WATCHDOG).unwrap();
        let tried = AnyLock::new(kind, its, HOUR).try_lock(&mut other).unwrap();
        assert!(!tried.was_abandoned(), "{kind}");
        tried.unlock(&mut other, WATCHDOG).unwrap();
        // Once more, and a client that waits meanwhile.
        let guard = AnyLock::new(kind, memory, HOUR).lock(&mut client, WATCHDOG).unwrap();
        let left = AnyLock::new(kind, its, HOUR).lock(&mut other, Duration::from_millis(500));
        assert_eq!(code(left), ErrorCode::TimedOut);
        other.wait_for_all(its, WATCHDOG).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lock = AnyLock::new(kind, its, HOUR);
                lock.lock(&mut other, WATCHDOG).unwrap().unlock(&mut other, WATCHDOG).unwrap();
            });
            guard.unlock(&mut client, WATCHDOG).unwrap();
            waits.join().unwrap();
        });
    }
}

fn wrong_locks_are_refused(make: &Make) {
    let (_server, mut client, memory) = pair(make, "wrong");
    let second = Duration::from_secs(1);
    assert_eq!(code(RemoteLock::new(memory.at(4), second)), ErrorCode::Misaligned);
    assert_eq!(code(TicketLock::new(memory.at(4), second)), ErrorCode::Misaligned);
    assert_eq!(code(Sequencer::new(memory.at(4))), ErrorCode::Misaligned);
    assert_eq!(code(RemoteLock::new(memory.at(BYTES), second)), ErrorCode::OutOfBounds);
    assert_eq!(code(Sequencer::new(memory.at(u64::MAX - 7))), ErrorCode::OutOfBounds);
    let end = memory.at(BYTES - TicketLock::FOOTPRINT);
    assert!(TicketLock::new(end, second).is_ok());
    assert_eq!(code(QueueLock::new(end, 1, second)), ErrorCode::OutOfBounds);
    assert_eq!(code(QueueLock::new(end, 0, second)), ErrorCode::BadConfiguration);
    assert_eq!(code(QueueLock::new(memory.at(0), u32::MAX, second)), ErrorCode::OutOfBounds);
    for lease in [Duration::ZERO, Duration::MAX] {
        assert_eq!(code(RemoteLock::new(memory.at(0), lease)), ErrorCode::BadConfiguration);
        assert_eq!(code(TicketLock::new(memory.at(0), lease)), ErrorCode::BadConfiguration);
    }
    // Words of anything: no ticket is left, no number is left.
    client.write_bytes(memory.at(LOCK), &[0xff; 4096], WATCHDOG).unwrap();
    for kind in &KINDS[1..] {
        let lock = AnyLock::new(kind, memory, second);
        assert_eq!(code(lock.try_lock(&mut client)), ErrorCode::TooLarge);
        client.write_bytes(memory.at(LOCK), &[0xff; 8], WATCHDOG).unwrap();
        assert_eq!(code(lock.lock(&mut client, WATCHDOG)), ErrorCode::TooLarge);
    }
    client.write_bytes(memory.at(LOCK), &[0xff; 8], WATCHDOG).unwrap();
    let numbers = Sequencer::new(memory.at(LOCK)).unwrap();
    assert_eq!(code(numbers.take(&mut client, 0, WATCHDOG)), ErrorCode::ZeroSize);
    assert_eq!(code(numbers.take(&mut client, 2, WATCHDOG)), ErrorCode::TooLarge);
}

fn numbers_are_given_out_once(make: &Make) {
    let (server, mut client, memory) = pair(make, "numbers");
    let fabrics = [make(), make(), make()];
    let mut ranges: Vec<_> = std::thread::scope(|scope| {
        let threads = fabrics.each_ref().map(|fabric| {
            scope.spawn(|| {
                let (mut client, memory) =
                    client_of(fabric, &server, &MemoryClientOptions::default());
                let numbers = Sequencer::new(memory.at(LOCK)).unwrap();
                let take = |at: u64| numbers.take(&mut client, 1 + at % 5, WATCHDOG).unwrap();
                let ranges: Vec<_> = (0..500).map(take).collect();
                assert!(ranges.is_sorted_by(|one, next| one.end <= next.start));
                ranges
            })
        });
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    ranges.sort_unstable_by_key(|range| range.start);
    assert_eq!(ranges[0].start, 0);
    assert!(ranges.windows(2).all(|two| two[0].end == two[1].start));
    let before = client.stats().work_requests;
    let numbers = Sequencer::new(memory.at(LOCK)).unwrap();
    assert_eq!(numbers.next(&mut client, WATCHDOG), Ok(3 * 500 * 3));
    assert_eq!(client.stats().work_requests - before, 1);
}

/// Cuts the connections whenever a word has grown by `every`, until a test ends.
fn cuts(
    way: &proxy::Proxy,
    server: &MemoryServer,
    [at, every]: [u64; 2],
    ends: &AtomicBool,
) -> u64 {
    let (mut next, mut cuts) = (every, 0);
    while !ends.load(Ordering::SeqCst) {
        if word(server, at) >= next {
            way.cut();
            cuts += 1;
            next = word(server, at) + every;
        }
        std::thread::yield_now();
    }
    cuts
}

/// Numbers over connections that are cut: none twice, and at most those of the lost requests are skipped.
#[test]
fn cut_connections_skip_numbers_and_repeat_none() {
    const CLIENTS: u64 = 4;
    const EACH: u64 = 25_000;
    let (way, server, fabric) = cut_pair("cut-numbers");
    let (server, ends) = (&server, &AtomicBool::new(false));
    let (mut taken, lost, cut) = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS)
            .map(|_| {
                scope.spawn(|| {
                    let options = MemoryClientOptions::default().reconnect(WATCHDOG);
                    let (mut client, memory) = client_of(&fabric, server, &options);
                    let numbers = Sequencer::new(memory.at(LOCK)).unwrap();
                    let next = |_| numbers.next(&mut client, WATCHDOG).unwrap();
                    let taken: Vec<_> = (0..EACH).map(next).collect();
                    assert!(taken.is_sorted());
                    (taken, client.reconnections(memory).unwrap())
                })
            })
            .collect();
        let cutter = scope.spawn(|| cuts(&way, server, [LOCK, 4_000], ends));
        let (mut taken, mut lost) = (Vec::new(), 0);
        for thread in threads {
            let (its, reconnections) = thread.join().unwrap();
            taken.extend(its);
            lost += reconnections;
        }
        ends.store(true, Ordering::SeqCst);
        (taken, lost, cutter.join().unwrap())
    });
    taken.sort_unstable();
    assert!(taken.is_sorted_by(|one, next| one < next), "a number twice");
    let given_out = word(server, LOCK);
    let skipped = given_out - CLIENTS * EACH;
    assert!(taken[taken.len() - 1] < given_out && skipped <= lost, "{skipped} of {lost}");
    assert!(cut >= 10 && lost >= 10, "{cut} {lost}");
}

/// Additions over connections that are cut are exact; tickets of lost requests are skipped after a lease.
#[test]
fn cut_connections_keep_locked_additions_exact() {
    const ADDITIONS: u64 = 100;
    for kind in KINDS {
        let (way, server, fabric) = cut_pair("cut-locks");
        let (server, ends) = (&server, &AtomicBool::new(false));
        let cut = std::thread::scope(|scope| {
            let adds = || {
                let options = MemoryClientOptions::default().reconnect(WATCHDOG);
                let (mut client, memory) = client_of(&fabric, server, &options);
                // Long against the time that a thread may wait for a processor.
                let lock = AnyLock::new(kind, memory, Duration::from_secs(2));
                for _ in 0..ADDITIONS {
                    add_locked(&mut client, memory, lock);
                }
            };
            let threads = [scope.spawn(adds), scope.spawn(adds)];
            let cutter = scope.spawn(|| cuts(&way, server, [SUM, 40], ends));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            ends.store(true, Ordering::SeqCst);
            cutter.join().unwrap()
        });
        assert_eq!(word(server, SUM), 2 * ADDITIONS, "{kind}");
        assert!(cut >= 1);
    }
}

/// Not a test by itself: a client in a process of its own, which takes a lock and holds it until it is killed.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let [fabric, kind, address] = &role[..] else { panic!("{role:?}") };
    let mut client =
        MemoryClient::new(&process_fabric(fabric, &[]), &MemoryClientOptions::default()).unwrap();
    let memory = client.open(address, WATCHDOG).unwrap();
    let lock = AnyLock::new(kind, memory, Duration::from_millis(200));
    let guard = lock.lock(&mut client, WATCHDOG).unwrap();
    say(&format!("holds {}", guard.token()));
    await_parent();
}

/// A holder is killed, and a client that waits for its lock.
fn killed_clients_are_skipped(fabric: &str) {
    for kind in KINDS {
        let server = server(&process_fabric(fabric, &[]), &unique_name("killed-lock"));
        let role = format!("{fabric} {kind} {}", server.address());
        let mut holder = Process::child(&role);
        let held: u64 = holder.hear("holds ").parse().unwrap();
        holder.stop();
        let mut waiter = Process::child(&role);
        if kind == "spin" {
            until("it has connected", || server.clients() == 2);
        } else {
            until("it has a ticket", || word(&server, LOCK) == held + 1);
        }
        waiter.kill();
        holder.kill();
        let (mut client, memory) =
            client_of(&process_fabric(fabric, &[]), &server, &MemoryClientOptions::default());
        let lock = AnyLock::new(kind, memory, Duration::from_millis(200));
        let guard = lock.lock(&mut client, WATCHDOG).unwrap();
        assert!(guard.was_abandoned() && guard.token() > held, "{kind}");
        let _ = guard.unlock(&mut client, WATCHDOG); // unless it was stopped for a lease
    }
}

#[test]
fn killed_clients_are_skipped_over_shm() {
    killed_clients_are_skipped("shm");
}

#[test]
fn killed_clients_are_skipped_over_tcp() {
    killed_clients_are_skipped("tcp");
}
