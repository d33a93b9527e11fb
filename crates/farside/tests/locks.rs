//! Locks through the public interface: those granted on loan, without the engine, together with those that
//! the engine grants.

mod fabrics;

use fabrics::{Make, cluster};
use farside::fabrics::{Fabric, MemFabric};
use farside::{Config, ErrorCode, GlobalAddress, Joining, Limits, Node, NodeId, Session};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm => (
    a_lock_used_again_needs_no_engine
    tokens_rise_on_loan_and_off_it
    any_range_is_locked_on_loan
    another_node_waits_for_a_lock_on_loan
    another_session_waits_for_a_lock_on_loan
    readers_share_what_one_has_on_loan
    a_read_lock_on_loan_is_upgraded
    contended_lock_is_handed_over_without_sleeps
    waiter_with_its_budget_used_up_is_next
    lock_under_writes_in_flight_is_fenced
    closing_a_session_frees_its_locks_on_loan
    home_that_leaves_takes_its_locks_along
    a_freed_line_is_lent_no_more
    a_cycle_of_locks_on_loan_has_a_victim
    the_bound_on_locks_is_exact
    locks_on_loan_and_off_it_exclude_each_other
    a_node_that_left_locks_nothing
) with crate::fabrics::named }

fn config(name: &str) -> Config {
    let name = format!("locks-{name}-{}", std::process::id());
    Config::new(name).memory_bytes(8 << 20).cache_bytes(16 << 20)
}

fn code<T: std::fmt::Debug>(result: Result<T, farside::Error>) -> ErrorCode {
    result.unwrap_err().code
}

fn hits(node: &Node) -> u64 {
    node.stats().lock_hits
}

/// Uses a line's lock until it is lent.
fn warm(session: &mut Session, address: GlobalAddress) {
    for _ in 0..12 {
        session.lock_write(address, 8).unwrap().unlock().unwrap();
    }
}

/// Locks 8 bytes on loan, to be unlocked by `unlock`; returns the token.
fn lock_on_loan(node: &Node, session: &mut Session, address: GlobalAddress) -> u64 {
    warm(session, address);
    let before = hits(node);
    let token = session.lock_write(address, 8).unwrap().keep();
    assert_eq!(hits(node), before + 1, "on loan");
    token
}

fn a_lock_used_again_needs_no_engine(make: &Make) {
    let nodes = cluster(make, &config("again"), 2);
    for home in [0, 1] {
        let mut session = nodes[0].session().unwrap();
        let address = session.alloc_on(64, NodeId(home)).unwrap();
        warm(&mut session, address);
        let before = nodes[0].stats();
        drop(session.lock_read(address, 8).unwrap());
        session.lock_write(address, 64).unwrap().unlock().unwrap();
        session.try_lock_read(address, 8).unwrap().keep();
        session.unlock(address, 8).unwrap();
        session.try_lock_write(address, 8).unwrap().keep();
        session.unlock(address, 8).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        let locked = pin!(session.lock_write_async(address, 8)).poll(&mut context).map(|lock| {
            lock.unwrap().keep();
        });
        assert_eq!(locked, Poll::Ready(()));
        let unlocked = pin!(session.unlock_async(address, 8)).poll(&mut context);
        assert_eq!(unlocked, Poll::Ready(Ok(())));
        let after = nodes[0].stats();
        assert_eq!(after.lock_hits - before.lock_hits, 5);
        assert_eq!(after.locks - before.locks, 5);
        assert_eq!(after.messages_sent, before.messages_sent);
        drop(session);
        assert_eq!(nodes[0].stats().lock_hits, after.lock_hits, "also of closed sessions");
        assert_eq!(nodes[0].stats().locks, after.locks, "also of closed sessions");
    }
}

fn tokens_rise_on_loan_and_off_it(make: &Make) {
    let nodes = cluster(make, &config("tokens"), 2);
    let mut sessions: Vec<_> = nodes.iter().map(|node| node.session().unwrap()).collect();
    let address = sessions[0].alloc_on(64, NodeId(0)).unwrap();
    let mut last = 0;
    for round in 0..60 {
        let guard = sessions[round / 6 % 2].lock_write(address, 8).unwrap();
        assert!(guard.token() > last, "{} after {last}", guard.token());
        last = guard.token();
    }
    assert!(hits(&nodes[0]) > 5 && hits(&nodes[1]) > 5);
}

fn any_range_is_locked_on_loan(make: &Make) {
    let nodes = cluster(make, &config("ranges"), 1);
    let mut session = nodes[0].session().unwrap();
    let address = session.alloc(512).unwrap();
    warm(&mut session, address);
    let before = hits(&nodes[0]);
    let ranges = [(0, 1), (3, 7), (511, 1), (0, 512), (256, 255)];
    for (start, bytes) in ranges {
        let at = address.checked_add(start).unwrap();
        let guard = session.lock_write(at, bytes).unwrap();
        guard.unlock().unwrap();
    }
    assert_eq!(hits(&nodes[0]), before + ranges.len() as u64);
    let edge = address.checked_add(508).unwrap();
    assert_eq!(code(session.lock_read(edge, 5)), ErrorCode::OutOfBounds, "into the next line");
    assert_eq!(code(session.lock_read(address, 0)), ErrorCode::ZeroSize);
    session.lock_read(address, 8).unwrap().keep();
    assert_eq!(code(session.unlock(address, 16)), ErrorCode::NotLocked, "another range");
    session.unlock(address, 8).unwrap();
    assert_eq!(code(session.unlock(address, 8)), ErrorCode::NotLocked, "twice");
}

fn another_node_waits_for_a_lock_on_loan(make: &Make) {
    let nodes = cluster(make, &config("node"), 2);
    for home in [0, 1] {
        let mut own = nodes[0].session().unwrap();
        let mut other = nodes[1].session().unwrap();
        let address = own.alloc_on(64, NodeId(home)).unwrap();
        let token = lock_on_loan(&nodes[0], &mut own, address);
        assert_eq!(code(other.try_lock_read(address, 8)), ErrorCode::Busy);
        let released = AtomicBool::new(false);
        let before = nodes[0].stats().messages_received;
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = other.lock_write(address, 8).unwrap();
                assert!(released.load(Ordering::Relaxed), "while it was held");
                guard.token()
            });
            while nodes[0].stats().messages_received == before {
                std::thread::yield_now(); // until it got the request, or the recall of its delegation
            }
            released.store(true, Ordering::Relaxed);
            own.unlock(address, 8).unwrap();
            assert!(waiting.join().unwrap() > token);
        });
    }
}

fn another_session_waits_for_a_lock_on_loan(make: &Make) {
    let nodes = cluster(make, &config("session"), 1);
    let mut sessions = [nodes[0].session().unwrap(), nodes[0].session().unwrap()];
    let address = sessions[0].alloc(64).unwrap();
    let half = address.checked_add(32).unwrap();
    let [own, other] = &mut sessions;
    lock_on_loan(&nodes[0], own, address);
    other.lock_write(half, 8).unwrap().keep();
    assert_eq!(code(other.try_lock_write(address, 16)), ErrorCode::Busy);
    assert_eq!(code(other.unlock(address, 8)), ErrorCode::NotLocked, "another's");
    assert_eq!(code(own.lock_write(address, 8)), ErrorCode::Deadlock, "its own");
    own.unlock(address, 8).unwrap();
    other.unlock(half, 8).unwrap();
    lock_on_loan(&nodes[0], other, address);
    assert_eq!(code(own.try_lock_write(address, 16)), ErrorCode::Busy);
    other.unlock(address, 8).unwrap();
}

fn readers_share_what_one_has_on_loan(make: &Make) {
    let nodes = cluster(make, &config("readers"), 2);
    let mut first = nodes[0].session().unwrap();
    let mut second = nodes[0].session().unwrap();
    let mut third = nodes[1].session().unwrap();
    let address = first.alloc(64).unwrap();
    warm(&mut first, address);
    first.lock_read(address, 8).unwrap().keep();
    first.lock_read(address, 8).unwrap().keep();
    second.lock_read(address, 16).unwrap().keep();
    assert_eq!(code(third.try_lock_write(address, 8)), ErrorCode::Busy);
    third.lock_read(address, 64).unwrap().keep();
    first.unlock(address, 8).unwrap();
    first.unlock(address, 8).unwrap();
    assert_eq!(code(first.unlock(address, 8)), ErrorCode::NotLocked);
    second.unlock(address, 16).unwrap();
    third.unlock(address, 64).unwrap();
    third.lock_write(address, 64).unwrap().unlock().unwrap();
}

fn a_read_lock_on_loan_is_upgraded(make: &Make) {
    let nodes = cluster(make, &config("upgrade"), 2);
    for home in [0, 1] {
        let mut own = nodes[0].session().unwrap();
        let mut other = nodes[1].session().unwrap();
        let address = own.alloc_on(64, NodeId(home)).unwrap();
        warm(&mut own, address);
        let before = hits(&nodes[0]);
        let mut guard = own.lock_read(address, 8).unwrap();
        let token = guard.token();
        assert_eq!(hits(&nodes[0]), before + 1);
        guard.upgrade().unwrap();
        assert!(guard.token() > token);
        assert_eq!(code(other.try_lock_read(address, 8)), ErrorCode::Busy);
        guard.unlock().unwrap();
        other.lock_write(address, 8).unwrap().unlock().unwrap();
    }
}

/// Threads outnumber the processors of a small machine.
fn contended_lock_is_handed_over_without_sleeps(make: &Make) {
    const ROUNDS: u64 = 4_000;
    let nodes = cluster(make, &config("contended"), 1);
    let threads = 4.max(2 * std::thread::available_parallelism().map_or(1, usize::from));
    let address = nodes[0].session().unwrap().alloc(64).unwrap();
    let before = nodes[0].stats();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut session = nodes[0].session().unwrap();
                for _ in 0..ROUNDS {
                    let mut guard = session.lock_write(address, 8).unwrap();
                    let count = guard.read_u64(address).unwrap();
                    guard.write_u64(address, count + 1).unwrap();
                    guard.unlock().unwrap();
                }
            });
        }
    });
    let (all, after) = (ROUNDS * threads as u64, nodes[0].stats());
    assert_eq!(nodes[0].session().unwrap().read_u64(address).unwrap(), all);
    let (sleeps, hits) = (after.sleeps - before.sleeps, after.lock_hits - before.lock_hits);
    assert!(sleeps < all / 8, "{sleeps} sleeps in {all} acquisitions");
    assert!(hits > all / 2, "{hits} of {all} acquisitions without the engine");
}

fn waiter_with_its_budget_used_up_is_next(make: &Make) {
    let nodes = cluster(make, &config("budget"), 1);
    let mut own = nodes[0].session().unwrap();
    let mut other = nodes[0].session().unwrap();
    let address = own.alloc(64).unwrap();
    lock_on_loan(&nodes[0], &mut own, address);
    let before = hits(&nodes[0]);
    let late = other.try_lock_write_for(address, 8, Duration::from_millis(5));
    assert_eq!(code(late), ErrorCode::TimedOut, "spun, and then queued");
    own.unlock(address, 8).unwrap();
    own.lock_write(address, 8).unwrap().keep();
    assert_eq!(hits(&nodes[0]), before + 1, "lent again at once");
    let mut context = Context::from_waker(Waker::noop());
    {
        let mut next = pin!(other.lock_write_async(address, 8));
        assert!(next.as_mut().poll(&mut context).is_pending(), "queued");
        own.unlock(address, 8).unwrap();
        assert_eq!(code(own.try_lock_write(address, 8)), ErrorCode::Busy, "handed over");
        let Poll::Ready(guard) = next.poll(&mut context) else { panic!("not granted") };
        guard.unwrap().unlock().unwrap();
    }
    own.lock_write(address, 8).unwrap().unlock().unwrap();
    assert_eq!(hits(&nodes[0]), before + 2, "lent again at once");
}

/// Both nodes are polled by this thread alone.
#[test]
fn a_request_that_has_arrived_waits_for_a_bounded_number_of_grants_on_loan() {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let home = Node::create_driven(&config("loan"), Arc::clone(&fabric)).unwrap();
    let mut joining = Joining::start(&config("loan"), fabric).unwrap();
    let other = loop {
        home.progress();
        if let Some(node) = joining.poll().unwrap() {
            break node;
        }
    };
    while home.progress() | other.progress() {}
    let (mut own, mut remote) = (home.session().unwrap(), other.session().unwrap());
    let address = own.alloc(64).unwrap();
    warm(&mut own, address);
    let mut context = Context::from_waker(Waker::noop());
    let mut request = pin!(remote.lock_write_async(address, 8));
    assert!(request.as_mut().poll(&mut context).is_pending());
    other.progress();
    let mut grants = 0;
    loop {
        own.lock_write(address, 8).unwrap().unlock().unwrap();
        grants += 1;
        other.progress();
        if let Poll::Ready(guard) = request.as_mut().poll(&mut context) {
            guard.unwrap().unlock().unwrap();
            break;
        }
        assert!(grants < 1_100, "a loan is 1,024 grants");
    }
    assert!(grants > 100, "{grants} grants, without a poll of the home");
}

fn lock_under_writes_in_flight_is_fenced(make: &Make) {
    let nodes = cluster(make, &config("fence"), 2);
    let mut own = nodes[0].session().unwrap();
    let mut other = nodes[1].session().unwrap();
    let lock = own.alloc_on(64, NodeId(0)).unwrap();
    let data = own.alloc_on(64, NodeId(1)).unwrap();
    warm(&mut own, lock);
    for round in 1..=50 {
        let mut guard = own.lock_write(lock, 8).unwrap();
        guard.write_u64(data, round).unwrap();
        drop(guard);
        assert_eq!(other.read_u64(data).unwrap(), round, "unlocking waits for the write");
        warm(&mut own, lock);
        other.write_u64(data, 0).unwrap();
        other.fence().unwrap();
    }
    let beyond = data.checked_add(1 << 20).unwrap();
    own.write_u64(beyond, 1).unwrap();
    assert!(own.lock_write(lock, 8).is_err(), "the write's failure is reported first");
    own.lock_write(lock, 8).unwrap().unlock().unwrap();
}

fn closing_a_session_frees_its_locks_on_loan(make: &Make) {
    let nodes = cluster(make, &config("close"), 2);
    let mut other = nodes[1].session().unwrap();
    for home in [0, 1] {
        let mut own = nodes[0].session().unwrap();
        let lines: Vec<_> = (0..3).map(|_| own.alloc_on(64, NodeId(home)).unwrap()).collect();
        for address in &lines {
            lock_on_loan(&nodes[0], &mut own, *address);
        }
        assert_eq!(code(other.try_lock_write(lines[0], 8)), ErrorCode::Busy, "taken back");
        drop(own);
        let mut next = nodes[0].session().unwrap();
        for address in lines {
            other.lock_write(address, 8).unwrap().unlock().unwrap();
            next.lock_write(address, 8).unwrap().unlock().unwrap();
        }
    }
}

fn home_that_leaves_takes_its_locks_along(make: &Make) {
    let mut limited = config("death");
    limited.limits = Limits { locks_per_session_max: 3, ..Limits::DEFAULT };
    let mut nodes = cluster(make, &limited, 2);
    let mut own = nodes[0].session().unwrap();
    let lost: Vec<_> = (0..3).map(|_| own.alloc_on(64, NodeId(1)).unwrap()).collect();
    for address in &lost {
        lock_on_loan(&nodes[0], &mut own, *address);
    }
    nodes.pop().unwrap().leave().unwrap();
    while nodes[0].members().iter().any(|member| member.node == NodeId(1) && member.alive) {
        std::thread::yield_now();
    }
    let here: Vec<_> = (0..4).map(|_| own.alloc_on(64, NodeId(0)).unwrap()).collect();
    for address in &here[..3] {
        own.lock_write(*address, 8).unwrap().keep();
    }
    assert_eq!(code(own.lock_write(here[3], 8)), ErrorCode::TooManyLocks);
    for address in lost {
        assert_eq!(code(own.unlock(address, 8)), ErrorCode::NodeLeft);
        assert_eq!(code(own.lock_write(address, 8)), ErrorCode::NodeLeft);
    }
}

fn a_freed_line_is_lent_no_more(make: &Make) {
    let nodes = cluster(make, &config("free"), 2);
    for home in [0, 1] {
        let mut own = nodes[0].session().unwrap();
        let mut other = nodes[1].session().unwrap();
        let address = own.alloc_on(64, NodeId(home)).unwrap();
        lock_on_loan(&nodes[0], &mut own, address);
        other.free(address).unwrap();
        own.unlock(address, 8).unwrap();
        assert_eq!(code(other.lock_write(address, 8)), ErrorCode::Unallocated);
        // A delegate continues until the recall arrives.
        let refused = loop {
            match own.lock_write(address, 8) {
                Ok(guard) => guard.unlock().unwrap(),
                Err(error) => break error.code,
            }
        };
        assert_eq!(refused, ErrorCode::Unallocated);
    }
}

fn a_cycle_of_locks_on_loan_has_a_victim(make: &Make) {
    let nodes = cluster(make, &config("cycle"), 2);
    for (homes, sides) in [([0, 0], [0, 0]), ([1, 1], [0, 0]), ([0, 1], [0, 1]), ([1, 0], [0, 1])] {
        let mut setup = nodes[0].session().unwrap();
        let lines = homes.map(|home| setup.alloc_on(64, NodeId(home)).unwrap());
        let barrier = std::sync::Barrier::new(2);
        let victims: usize = std::thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let (node, barrier, lines) = (&nodes[sides[number]], &barrier, &lines);
                scope.spawn(move || {
                    let mut session = node.session().unwrap();
                    warm(&mut session, lines[number]);
                    let mut guard = session.lock_write(lines[number], 8).unwrap();
                    barrier.wait();
                    let other = guard.lock_write(lines[1 - number], 8);
                    usize::from(other.is_err_and(|error| error.code == ErrorCode::Deadlock))
                })
            });
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(victims, 1, "homes {homes:?} sides {sides:?}");
    }
    assert!(hits(&nodes[0]) > 8 && hits(&nodes[1]) > 2);
}

fn the_bound_on_locks_is_exact(make: &Make) {
    const MOST: usize = 6;
    let mut limited = config("bound");
    limited.limits = Limits { locks_per_session_max: MOST as u32, ..Limits::DEFAULT };
    let nodes = cluster(make, &limited, 2);
    let mut own = nodes[0].session().unwrap();
    let mut other = nodes[1].session().unwrap();
    let lines: Vec<_> =
        (0..MOST + 2).map(|at| own.alloc_on(64, NodeId(at as u16 % 2)).unwrap()).collect();
    // The number of locks on loan, and how many of those are taken back before the last.
    for (on_loan, taken) in [(0, 0), (3, 0), (3, 2), (MOST, 0), (MOST, MOST)] {
        for address in &lines[..on_loan] {
            lock_on_loan(&nodes[0], &mut own, *address);
        }
        for address in &lines[on_loan..MOST] {
            other.lock_write(*address, 8).unwrap().unlock().unwrap();
            own.lock_write(*address, 8).unwrap().keep();
        }
        for address in &lines[..taken] {
            assert_eq!(code(other.try_lock_read(*address, 8)), ErrorCode::Busy);
        }
        for address in &lines[MOST..] {
            assert_eq!(code(own.lock_write(*address, 8)), ErrorCode::TooManyLocks);
        }
        own.unlock(lines[0], 8).unwrap();
        own.lock_write(lines[MOST], 8).unwrap().keep();
        assert_eq!(code(own.lock_write(lines[0], 8)), ErrorCode::TooManyLocks);
        for address in &lines[1..=MOST] {
            own.unlock(*address, 8).unwrap();
        }
    }
}

fn locks_on_loan_and_off_it_exclude_each_other(make: &Make) {
    const LINES: usize = 3;
    const ROUNDS: u64 = 400;
    let nodes = cluster(make, &config("exclude"), 2);
    let mut setup = nodes[0].session().unwrap();
    let lines: Vec<_> =
        (0..LINES).map(|at| setup.alloc_on(64, NodeId(at as u16 % 2)).unwrap()).collect();
    let counts: Vec<_> = (0..LINES).map(|_| [AtomicU64::new(0), AtomicU64::new(0)]).collect();
    std::thread::scope(|scope| {
        for (side, stay) in [(0, 40), (0, 1), (1, 70)] {
            let (node, lines, counts) = (&nodes[side], &lines, &counts);
            scope.spawn(move || {
                let mut session = node.session().unwrap();
                for round in 0..ROUNDS {
                    // Stays at a line for a while, so that it is lent.
                    let at = (round / stay) as usize % LINES;
                    let guard = session.lock_write(lines[at], 8).unwrap();
                    let [count, token] = &counts[at];
                    // No read-modify-write: only the lock makes the sum correct.
                    let seen = count.load(Ordering::Relaxed);
                    assert!(token.load(Ordering::Relaxed) < guard.token());
                    token.store(guard.token(), Ordering::Relaxed);
                    count.store(seen + 1, Ordering::Relaxed);
                    guard.unlock().unwrap();
                }
            });
        }
    });
    let all: u64 = counts.iter().map(|[count, _]| count.load(Ordering::Relaxed)).sum();
    assert_eq!(all, 3 * ROUNDS);
    assert_eq!(nodes[0].stats().locks + nodes[1].stats().locks, 3 * ROUNDS);
}

fn a_node_that_left_locks_nothing(make: &Make) {
    let mut nodes = cluster(make, &config("left"), 2);
    let leaving = nodes.pop().unwrap();
    let mut own = leaving.session().unwrap();
    let address = own.alloc_on(64, NodeId(1)).unwrap();
    let held = own.alloc_on(64, NodeId(1)).unwrap();
    lock_on_loan(&leaving, &mut own, held);
    warm(&mut own, address);
    leaving.leave().unwrap();
    assert_eq!(code(own.lock_write(address, 8)), ErrorCode::NodeClosed);
    assert_eq!(code(own.unlock(held, 8)), ErrorCode::NodeClosed);
}
