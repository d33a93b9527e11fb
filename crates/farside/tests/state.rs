//! Nodes with state: what was fenced is there after the node has returned, at the same addresses.

#[path = "state/drain.rs"]
mod drain;

use farside::call::{CallOptions, CallServer, Caller, CallerOptions, ServerOptions, Site};
use farside::fabrics::Fabric;
use farside::onesided::{LendOptions, MemoryServer};
use farside::{
    AllocationHint, AllocationSpec, Config, Durability, Error, ErrorCode, GlobalAddress, Node,
    Session,
};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{Process, Random, WATCHDOG, await_parent, role, say, unique_name};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// A folder that is removed at the end.
struct StateFolder(PathBuf);

impl StateFolder {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(unique_name(&format!("state-{name}"))))
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        _ = std::fs::remove_dir_all(&self.0).or_else(|_| std::fs::remove_file(&self.0));
    }
}

/// The fabric of a process, which joins at this host.
fn process_fabric(name: &str, host: Option<SocketAddr>) -> Arc<dyn Fabric> {
    if name == "shm" {
        return Arc::new(ShmFabric::new().unwrap());
    }
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let hosts = host.into_iter().map(Into::into).collect();
    Arc::new(TcpFabric::new(TcpOptions { listen, hosts, ..TcpOptions::default() }).unwrap())
}

fn config(name: &str, state: Option<&Path>) -> Config {
    let config = Config::new(format!("state-{name}-{}", std::process::id()));
    let config = config.memory_bytes(4 << 20).cache_bytes(1 << 20);
    config.state(state.map(Path::to_path_buf))
}

#[test]
fn founder_with_state_returns_with_its_memory() {
    let folder = StateFolder::new("founder");
    let config = config("founder", Some(&folder.0));
    let node = Node::create(&config).unwrap();
    let memory = node.memory();
    let mut session = node.session().unwrap();
    let words = session.alloc(4096).unwrap();
    let freed = session.alloc(4096).unwrap();
    session.publish_root("words", words, 4096).unwrap();
    session.write(words, b"kept").unwrap();
    session.write(freed, b"freed").unwrap();
    session.free(freed).unwrap();
    assert_eq!(session.fetch_add(words.checked_add(8).unwrap(), 7).unwrap(), 0);
    session.atomic(words.checked_add(512).unwrap(), 8, |bytes| bytes.fill(3)).unwrap();
    session.write_atomic(words.checked_add(1020).unwrap(), &[9; 8]).unwrap();
    session.fence().unwrap();
    drop(session);
    assert_eq!(node.leave().unwrap().memory_bytes, 0, "nothing is gone");

    let node = Node::create(&config).unwrap();
    assert_eq!(node.memory(), memory);
    let mut session = node.session().unwrap();
    assert_eq!(session.root("words").unwrap().address, words);
    let mut out = [0; 16];
    session.read(words, &mut out).unwrap();
    assert_eq!((&out[..4], &out[8..]), (&b"kept"[..], &7_u64.to_le_bytes()[..]));
    session.read(words.checked_add(512).unwrap(), &mut out).unwrap();
    assert_eq!(out, [3, 3, 3, 3, 3, 3, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    session.read(words.checked_add(1020).unwrap(), &mut out[..8]).unwrap();
    assert_eq!(out[..8], [9; 8]);
    assert_eq!(session.read(freed, &mut out).unwrap_err().code, ErrorCode::Unallocated);
    let again = session.alloc(4096).unwrap();
    assert_ne!(again, words);
    session.read(again, &mut out).unwrap();
    assert_eq!(out, [0; 16]);
    session.free(words).unwrap();
}

#[test]
fn member_with_state_returns_to_those_that_use_its_memory() {
    let folder = StateFolder::new("member");
    let founder = Node::create(&config("member", None).return_timeout_ns(0)).unwrap();
    let kept = config("member", Some(&folder.0));
    let home = Node::join(&kept).unwrap();
    let mut session = founder.session().unwrap();
    let words = session.alloc_on(4096, home.id()).unwrap();
    for (at, word) in (0..4096_u64).step_by(8).zip(1_u64..) {
        session.write_u64(words.checked_add(at).unwrap(), word).unwrap();
    }
    session.fence().unwrap();
    home.leave().unwrap();
    founder.wait_for_members(1, WATCHDOG).unwrap();
    assert_eq!(session.read_u64(words).unwrap_err().code, ErrorCode::HomeAway);

    let home = Node::join(&kept).unwrap();
    assert_eq!(Some(words.memory()), home.memory());
    for (at, word) in (0..4096_u64).step_by(8).zip(1_u64..) {
        assert_eq!(session.read_u64(words.checked_add(at).unwrap()).unwrap(), word);
    }
    session.write_u64(words, 99).unwrap();
    session.fence().unwrap();
    assert_eq!(home.session().unwrap().read_u64(words).unwrap(), 99);
}

#[test]
fn accesses_wait_for_a_node_with_state_that_is_away() {
    let folder = StateFolder::new("waiting");
    let founder = Node::create(&config("waiting", None)).unwrap();
    let kept = config("waiting", Some(&folder.0));
    let home = Node::join(&kept).unwrap();
    let mut session = founder.session().unwrap();
    let spec = AllocationSpec::default().durability(Durability::Logged);
    let word = session.alloc_with(16, spec).unwrap();
    assert_eq!(word.home(), home.id());
    session.write_u64(word, 1).unwrap();
    session.fence().unwrap();
    home.leave().unwrap();
    founder.wait_for_members(1, WATCHDOG).unwrap();
    let error = session.with_timeout(Duration::from_millis(1)).read_u64(word).unwrap_err();
    assert_eq!(error.code, ErrorCode::TimedOut, "{error}");
    let posted = word.checked_add(8).unwrap();
    for value in 1..=3 {
        session.write_u64(posted, value).unwrap();
    }
    std::thread::scope(|scope| {
        let adds = scope.spawn(|| founder.session().unwrap().fetch_add(word, 5).unwrap());
        let reads = scope.spawn(|| founder.session().unwrap().read_u64(word).unwrap());
        let _home = Node::join(&kept).unwrap();
        assert_eq!(adds.join().unwrap(), 1);
        assert!([1, 6].contains(&reads.join().unwrap()));
        session.write_u64(word, 7).unwrap();
        session.fence().unwrap();
        assert_eq!(session.read_u64(posted).unwrap(), 3);
    });
}

/// Every call that has to ask the home waits for it, and holds nothing meanwhile.
#[test]
fn calls_of_all_kinds_wait_for_a_node_with_state_that_is_away() {
    let folder = StateFolder::new("kinds");
    let founder = Node::create(&config("kinds", None)).unwrap();
    let kept = config("kinds", Some(&folder.0));
    let home = Node::join(&kept).unwrap();
    let mut session = founder.session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let bytes = session.alloc_with(4096, logged).unwrap();
    let freed = session.alloc_with(8, logged).unwrap();
    let at = |offset| bytes.checked_add(offset).unwrap();
    session.publish_root("bytes", bytes, 4096).unwrap();
    session.write(at(1024), &[1; 1024]).unwrap();
    session.fence().unwrap();
    let node = home.id();
    home.leave().unwrap();
    founder.wait_for_members(1, WATCHDOG).unwrap();

    type Call<'a> = Box<dyn Fn(&mut Session) -> Result<(), Error> + Sync + 'a>;
    let calls: [Call<'_>; 11] = [
        Box::new(|session| session.lock_write(at(0), 8)?.unlock()),
        Box::new(|session| session.lock_read(at(256), 512)?.unlock()),
        Box::new(|session| session.atomic(at(8), 8, |bytes| bytes.fill(7))),
        Box::new(|session| session.write_atomic(at(3000), &[9; 500])),
        Box::new(|session| {
            let mut out = [0; 1024];
            session.read_atomic(at(1024), &mut out)?;
            assert_eq!(out, [1; 1024]);
            Ok(())
        }),
        Box::new(|session| session.alloc_with(8, logged).map(drop)),
        Box::new(|session| session.alloc_on(8, node).map(drop)),
        Box::new(|session| session.alloc_near(8, bytes).map(drop)),
        Box::new(|session| session.free(freed)),
        Box::new(|session| session.write_back(at(0), 4096)),
        Box::new(|session| session.root("bytes").map(|root| assert_eq!(root.address, bytes))),
    ];
    let away = Barrier::new(calls.len() + 1);
    let returned = std::thread::scope(|scope| {
        for (number, call) in calls.iter().enumerate() {
            let (away, mut session) = (&away, founder.session().unwrap());
            scope.spawn(move || {
                let error = call(&mut session.with_timeout(Duration::from_millis(1))).unwrap_err();
                away.wait();
                assert_eq!(error.code, ErrorCode::TimedOut, "call {number}: {error}");
                let outcome = call(&mut session);
                assert!(outcome.is_ok(), "call {number}: {outcome:?}");
            });
        }
        // A multi-line atomic of memory that is there needs the gate, which none of those that wait holds.
        let here = session.alloc(4096).unwrap();
        session.write_atomic(here, &[1; 4096]).unwrap();
        away.wait();
        let returned = Node::join(&kept).unwrap();
        session.lock_write(bytes, 4096).unwrap().unlock().unwrap();
        returned
    });
    assert_eq!(returned.id(), node);
    assert_eq!(session.read_u64(at(3000)).unwrap(), u64::from_le_bytes([9; 8]));
}

/// Restarts nodes with state one after the other while sessions of another node use the memory of both.
#[test]
fn rolling_restart_fails_no_call() {
    let (first, second) = (StateFolder::new("rolling"), StateFolder::new("rolling"));
    let client = Node::create(&config("rolling", None)).unwrap();
    let kept = [&first, &second].map(|folder| config("rolling", Some(&folder.0)));
    let mut homes = [0, 1].map(|at| Some(Node::join(&kept[at]).unwrap()));
    let mut session = client.session().unwrap();
    let words = homes.each_ref().map(|home| {
        let words = session.alloc_on(4096, home.as_ref().unwrap().id()).unwrap();
        [0, 512, 1024].map(|offset| words.checked_add(offset).unwrap())
    });
    let free = |homes: &[Option<Node>; 2]| {
        homes.each_ref().map(|home| home.as_ref().unwrap().stats().memory_free_bytes)
    };
    let free_before = free(&homes);
    let (counts, times) = under_use(&client, &words, 6, |round| {
        let home = homes[round % 2].take().unwrap();
        home.leave().unwrap();
        homes[round % 2] = Some(Node::join(&kept[round % 2]).unwrap());
    });
    assert_eq!(free(&homes), free_before, "all that was allocated was freed");
    for at in &words {
        let seen = at.map(|word| session.read_u64(word).unwrap());
        assert_eq!(seen[..], counts[..]);
    }
    report(times);
}

fn report(mut times: Vec<Duration>) {
    times.sort_unstable();
    let [p50, p99, max] = [50, 99, 100].map(|part| times[(times.len() - 1) * part / 100]);
    say(&format!("{} uses of both homes: p50 {p50:?}, p99 {p99:?}, longest {max:?}", times.len()));
}

/// Has three sessions of a node use words of two homes, each in its way, until the homes were replaced `rounds` times;
/// returns the number of uses of each, and their times.
fn under_use(
    client: &Node,
    words: &[[GlobalAddress; 3]; 2],
    rounds: usize,
    mut replace: impl FnMut(usize),
) -> (Vec<u64>, Vec<Duration>) {
    let (ends, uses_made) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let uses = |kind: usize| {
            let (ends, uses_made) = (&ends, &uses_made);
            move || {
                let mut session = client.session().unwrap();
                let (mut count, mut times) = (0, Vec::new());
                while !ends.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    for at in words {
                        use_words(&mut session, kind, at);
                    }
                    times.push(began.elapsed());
                    count += 1;
                    uses_made.fetch_add(1, Ordering::Relaxed);
                }
                (count, times)
            }
        };
        let users: Vec<_> = (0..3).map(|kind| scope.spawn(uses(kind))).collect();
        for round in 0..rounds {
            let before = uses_made.load(Ordering::Relaxed);
            while uses_made.load(Ordering::Relaxed) < before + 300 {
                if users.iter().any(ScopedJoinHandle::is_finished) {
                    ends.store(true, Ordering::Relaxed); // the others end too
                    panic!("a call has failed");
                }
                std::thread::yield_now();
            }
            replace(round);
        }
        ends.store(true, Ordering::Relaxed);
        let ended = users.into_iter().map(|user| user.join().unwrap());
        ended.fold((Vec::new(), Vec::new()), |(mut counts, mut times), (count, more)| {
            counts.push(count);
            times.extend(more);
            (counts, times)
        })
    })
}

/// Adds one to the word of this kind of use, and makes it durable.
fn use_words(session: &mut Session, kind: usize, words: &[GlobalAddress; 3]) {
    let word = words[kind];
    match kind {
        0 => _ = session.fetch_add(word, 1).unwrap(),
        1 => session
            .atomic(word, 8, |bytes| {
                let count = u64::from_le_bytes((&*bytes).try_into().unwrap());
                bytes.copy_from_slice(&(count + 1).to_le_bytes());
            })
            .unwrap(),
        _ => {
            let count = session.read_u64(word).unwrap();
            session.write_u64(word, count + 1).unwrap();
            let more = session.alloc_near(64, word).unwrap();
            session.free(more).unwrap();
        }
    }
    session.fence().unwrap();
}

/// Restarts nodes with state one after the other while sessions of two other nodes lock memory of one and of both.
#[test]
fn rolling_restart_ends_no_lock() {
    let (first, second) = (StateFolder::new("locking"), StateFolder::new("locking"));
    let founder = Node::create(&config("locking", None)).unwrap();
    let clients = [founder.clone(), Node::join(&config("locking", None)).unwrap()];
    let kept = [&first, &second].map(|folder| config("locking", Some(&folder.0)));
    let mut homes = [0, 1].map(|at| Some(Node::join(&kept[at]).unwrap()));
    let mut session = founder.session().unwrap();
    let words = homes.each_ref().map(|home| {
        let words = session.alloc_on(4096, home.as_ref().unwrap().id()).unwrap();
        [0, 512].map(|offset| words.checked_add(offset).unwrap())
    });
    let (ends, uses_made) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts = std::thread::scope(|scope| {
        let (ends, uses_made, words) = (&ends, &uses_made, &words);
        let uses = |client: &Node, kind: usize| {
            let mut session = client.session().unwrap();
            scope.spawn(move || {
                let mut count = 0;
                while !ends.load(Ordering::Relaxed) {
                    add_under_locks(&mut session, kind, words);
                    count += 1;
                    uses_made.fetch_add(1, Ordering::Relaxed);
                }
                (kind, count)
            })
        };
        let users: Vec<_> =
            clients.iter().flat_map(|node| [0, 1, 2].map(|kind| uses(node, kind))).collect();
        for round in 0..6 {
            let before = uses_made.load(Ordering::Relaxed);
            while uses_made.load(Ordering::Relaxed) < before + 300 {
                if users.iter().any(ScopedJoinHandle::is_finished) {
                    ends.store(true, Ordering::Relaxed); // the others end too
                    panic!("a call has failed");
                }
                std::thread::yield_now();
            }
            homes[round % 2].take().unwrap().leave().unwrap();
            homes[round % 2] = Some(Node::join(&kept[round % 2]).unwrap());
        }
        ends.store(true, Ordering::Relaxed);
        users.into_iter().map(|user| user.join().unwrap()).fold(
            [0; 3],
            |mut counts, (kind, count)| {
                counts[kind] += count;
                counts
            },
        )
    });
    let [first, second] = words.map(|at| at.map(|word| session.read_u64(word).unwrap()));
    assert_eq!([first[0], second[0]], [counts[0], counts[1]]);
    assert_eq!([first[1], second[1]], [counts[2]; 2]);
}

/// Adds one to a word of the first home, of the second, or of each, under its lock.
fn add_under_locks(session: &mut Session, kind: usize, words: &[[GlobalAddress; 2]; 2]) {
    let add = |session: &mut Session, word| {
        let count = session.read_u64(word).unwrap();
        session.write_u64(word, count + 1).unwrap();
    };
    match kind {
        0 | 1 => {
            let word = words[kind][0];
            let mut guard = session.lock_write(word, 8).unwrap();
            add(&mut guard, word);
            guard.unlock().unwrap();
        }
        _ => {
            let [one, other] = words.map(|at| at[1]);
            let mut guard = session.lock_write(one, 8).unwrap();
            add(&mut guard, one);
            let mut nested = guard.lock_write(other, 8).unwrap();
            add(&mut nested, other);
            nested.unlock().unwrap();
            guard.unlock().unwrap();
        }
    }
}

/// A leave waits for what is locked at the node, and serves the holders; others wait for its return.
#[test]
fn leave_waits_for_locks_and_serves_their_holders() {
    let folder = StateFolder::new("holders");
    let founder = Node::create(&config("holders", None)).unwrap();
    let kept = config("holders", Some(&folder.0)).leave_timeout_ns(Some(600_000_000_000));
    let home = Node::join(&kept).unwrap();
    let [mut holder, mut other] = [(); 2].map(|()| founder.session().unwrap());
    let words = holder.alloc_on(4096, home.id()).unwrap();
    let [one, two, three] = [0, 1024, 2048].map(|offset| words.checked_add(offset).unwrap());
    let mut at_home = home.session().unwrap();
    at_home.lock_write(three, 8).unwrap().keep();
    let mut held = holder.lock_read(one, 8).unwrap();
    let _home = std::thread::scope(|scope| {
        let leave = scope.spawn(move || home.leave().unwrap());
        let drains = loop {
            match other.try_lock_read(two, 8) {
                Ok(lock) => lock.unlock().unwrap(),
                Err(error) => break error.code,
            }
        };
        assert_eq!(drains, ErrorCode::HomeAway);
        let waiter = scope.spawn(move || other.lock_write(one, 8).unwrap().unlock().unwrap());
        // What needs the home under a lock is done as before: nested locks, writes, allocations.
        held.upgrade().unwrap();
        held.write_u64(one, 7).unwrap();
        let mut nested = held.lock_write(two, 8).unwrap();
        let more = nested.alloc_near(64, two).unwrap();
        nested.write_u64(two, 8).unwrap();
        nested.free(more).unwrap();
        nested.unlock().unwrap();
        held.unlock().unwrap();
        assert!(!leave.is_finished(), "a session of the home holds a lock");
        // So is what a session of the home does under its lock.
        at_home.write_u64(three, 9).unwrap();
        at_home.unlock(three, 8).unwrap();
        drop(at_home);
        leave.join().unwrap();
        assert!(!waiter.is_finished(), "the home is away");
        let home = Node::join(&kept).unwrap();
        waiter.join().unwrap();
        home
    });
    assert_eq!([one, two, three].map(|word| holder.read_u64(word).unwrap()), [7, 8, 9]);
}

/// A lock that is held for half of the leave's timeout ends with its home.
#[test]
fn lock_that_is_held_ends_with_a_leave_after_a_time() {
    let folder = StateFolder::new("held");
    let founder = Node::create(&config("held", None)).unwrap();
    let kept = config("held", Some(&folder.0)).leave_timeout_ns(Some(1_000_000_000));
    let home = Node::join(&kept).unwrap();
    let mut session = founder.session().unwrap();
    let word = session.alloc_on(8, home.id()).unwrap();
    session.lock_write(word, 8).unwrap().keep();
    _ = home.leave();
    founder.wait_for_members(1, WATCHDOG).unwrap();
    assert_eq!(session.unlock(word, 8).unwrap_err().code, ErrorCode::HomeAway);
    let _home = Node::join(&kept).unwrap();
    assert_eq!(session.unlock(word, 8).unwrap_err().code, ErrorCode::NotLocked);
    session.lock_write(word, 8).unwrap().unlock().unwrap();
}

#[test]
fn accesses_fail_when_a_home_does_not_return_in_time() {
    let folder = StateFolder::new("late");
    let founder = Node::create(&config("late", None).return_timeout_ns(20_000_000)).unwrap();
    let home = Node::join(&config("late", Some(&folder.0))).unwrap();
    let mut session = founder.session().unwrap();
    let word = session.alloc_on(8, home.id()).unwrap();
    home.leave().unwrap();
    founder.wait_for_members(1, WATCHDOG).unwrap();
    assert_eq!(session.fetch_add(word, 1).unwrap_err().code, ErrorCode::HomeAway);
    for value in 1..=3 {
        session.write_u64(word, value).unwrap();
    }
    assert_eq!(session.fence().unwrap_err().code, ErrorCode::HomeAway);
    session.fence().unwrap();
}

/// What was written and not fenced when a home was killed is reported, once, also by a write-back after its return.
#[test]
fn lost_writes_are_reported_by_each_session_once() {
    let folder = StateFolder::new("lost");
    let config = Config::new(unique_name("lost")).memory_bytes(0).cache_bytes(1 << 20);
    let founder = Node::create_on(&config, process_fabric("shm", None)).unwrap();
    let role = home_role("shm", &founder, &config, &format!("folder {}", folder.0.display()));
    let mut home = Process::child(&role);
    home.hear("ready");
    let (mut one, mut other) = (founder.session().unwrap(), founder.session().unwrap());
    let spec = AllocationSpec::default().durability(Durability::Logged);
    let word = one.alloc_with(8, spec).unwrap();
    one.write_u64(word, 1).unwrap();
    one.fence().unwrap();
    one.fetch_add(word, 1).unwrap();
    home.kill();
    founder.wait_for_members(1, WATCHDOG).unwrap();
    let mut home = Process::child(&role);
    home.hear("ready");
    assert_eq!(one.write_back(word, 8).unwrap_err().code, ErrorCode::WritesLost);
    one.write_back(word, 8).unwrap();
    one.fence().unwrap();
    assert_eq!(other.fence().unwrap_err().code, ErrorCode::WritesLost);
    other.fence().unwrap();
    assert_eq!(founder.session().unwrap().read_u64(word).unwrap(), 1);
}

#[test]
fn logged_memory_needs_a_node_with_state() {
    let folder = StateFolder::new("policy");
    let founder = Node::create(&config("policy", None)).unwrap();
    let mut session = founder.session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    assert_eq!(session.alloc_with(8, logged).unwrap_err().code, ErrorCode::NoState);
    let here = logged.hint(AllocationHint::On(founder.id()));
    assert_eq!(session.alloc_with(8, here).unwrap_err().code, ErrorCode::NoState);
    let home = Node::join(&config("policy", Some(&folder.0))).unwrap();
    assert_eq!(session.alloc_with(8, logged).unwrap().home(), home.id());
    assert_eq!(session.alloc(8).unwrap().home(), founder.id());
    let mut at_home = home.session().unwrap();
    assert_eq!(at_home.alloc(8).unwrap().home(), founder.id(), "volatile where there is room");
    assert_eq!(at_home.alloc_with(8, logged).unwrap().home(), home.id());
}

/// The words that a child is given: what it does, its fabric, its cluster, a member's host or "-", and where its state is.
fn home_role(fabric: &str, founder: &Node, config: &Config, place: &str) -> String {
    let me = founder.members().into_iter().find(|member| member.node == founder.id()).unwrap();
    let host = me.host.map_or("-".to_owned(), |host| host.to_string());
    format!("home {fabric} {} {host} {place}", config.cluster)
}

/// Adds to a word of a home that is killed again and again: what was fenced is there when it has returned.
fn killed_home_returns_with_what_was_fenced(fabric: &str, place: &str) {
    let config = Config::new(unique_name("returns")).memory_bytes(0).cache_bytes(1 << 20);
    let founder = Node::create_on(&config, process_fabric(fabric, None)).unwrap();
    let role = home_role(fabric, &founder, &config, place);
    let mut home = Process::child(&role);
    home.hear("ready");
    let mut session = founder.session().unwrap();
    let spec = AllocationSpec::default().durability(Durability::Logged);
    let words = session.alloc_with(4096, spec).unwrap();
    let mut random = Random::new(5);
    let (mut fenced, mut away_ms) = (0, Vec::new());
    for _ in 0..12 {
        for _ in 0..random.below(30) {
            let number = fenced + 1;
            for at in [0, 1_024] {
                session.write_u64(words.checked_add(at).unwrap(), number).unwrap();
            }
            session.fence().unwrap();
            fenced = number;
        }
        if random.below(2) == 0 {
            session.write_u64(words, fenced + 1).unwrap(); // may be lost with its home
        }
        home.kill();
        let killed = Instant::now();
        home = Process::child(&role);
        // It serves again once a write is durable; the first fence may report what is lost.
        loop {
            session.write_u64(words.checked_add(2_048).unwrap(), fenced).unwrap();
            match session.fence() {
                Ok(()) => break,
                Err(error) => assert_eq!(error.code, ErrorCode::WritesLost, "{error}"),
            }
        }
        away_ms.push(killed.elapsed().as_millis());
        let found = session.read_u64(words).unwrap();
        assert!((fenced..=fenced + 1).contains(&found), "{found}, and {fenced} were fenced");
        let other = session.read_u64(words.checked_add(1_024).unwrap()).unwrap();
        assert_eq!(other, fenced);
    }
    away_ms.sort_unstable();
    say(&format!("{fabric}: away for {} ms (median), with the start of a process", away_ms[6]));
}

#[test]
fn killed_home_returns_with_what_was_fenced_over_shm() {
    let folder = StateFolder::new("killed-shm");
    killed_home_returns_with_what_was_fenced("shm", &format!("folder {}", folder.0.display()));
}

#[test]
fn killed_home_returns_with_what_was_fenced_over_tcp() {
    let folder = StateFolder::new("killed-tcp");
    killed_home_returns_with_what_was_fenced("tcp", &format!("folder {}", folder.0.display()));
}

#[test]
fn killed_home_returns_from_its_copies() {
    let options = LendOptions::default().exclusive(true);
    let fabric = process_fabric("shm", None);
    let lend = || MemoryServer::lend(&fabric, &unique_name("copy"), 80 << 20, &options).unwrap();
    let (one, other) = (lend(), lend());
    let place = format!("copies {} {}", one.address(), other.address());
    killed_home_returns_with_what_was_fenced("shm", &place);
}

/// An allocation is at a home whose state is as it asks, whatever else has room.
#[test]
fn allocation_is_where_its_durability_is_promised() {
    let (folder, file) = (StateFolder::new("durability"), StateFolder::new("durability-copy"));
    let options = LendOptions::default().exclusive(true);
    let fabric = process_fabric("shm", None);
    let lend = || MemoryServer::lend(&fabric, &unique_name("copy"), 80 << 20, &options).unwrap();
    let (one, other) = (lend(), lend());
    let volatile = Node::create(&config("durability", None)).unwrap();
    let logged = Node::join(&config("durability", Some(&folder.0))).unwrap();
    let file_address = format!("file:{}", file.0.display());
    let copies = [one.address(), &file_address, other.address()].map(str::to_owned).to_vec();
    let kept = config("durability", None).state_copies(copies);
    let both = Node::join(&kept).unwrap();
    let report = both.state_report().unwrap();
    assert_eq!((report.copies, report.log.durable <= report.log.appended), (2, true));
    assert_eq!(logged.state_report().unwrap().copies, 0);
    assert_eq!(volatile.state_report(), None);
    let survives_power = report.promise.survives_power; // not on a file system in memory
    for node in [&volatile, &logged, &both] {
        let mut session = node.session().unwrap();
        let mut home = |hint: AllocationHint, durability: Durability| {
            let spec = AllocationSpec::new(hint).durability(durability);
            let address = session.alloc_with(4096, spec).map_err(|error| error.code)?;
            session.free(address).unwrap();
            Ok(address.home())
        };
        let any = AllocationHint::Default;
        assert_eq!(home(any, Durability::Volatile), Ok(volatile.id()));
        assert_ne!(home(any, Durability::Logged), Ok(volatile.id()));
        assert_eq!(home(any, Durability::Replicated(1)), Ok(both.id()));
        assert_eq!(home(any, Durability::Replicated(2)), Ok(both.id()));
        assert_eq!(home(any, Durability::Replicated(3)), Err(ErrorCode::NoState));
        let expected = if survives_power { Ok(both.id()) } else { Err(ErrorCode::NoState) };
        assert_eq!(home(any, Durability::LoggedAndReplicated(2)), expected);
        assert_eq!(home(any, Durability::LoggedAndReplicated(3)), Err(ErrorCode::NoState));
        let on = AllocationHint::On(logged.id());
        assert_eq!(home(on, Durability::Replicated(1)), Err(ErrorCode::NoState));
        assert_eq!(home(on, Durability::Logged), Ok(logged.id()));
        let on = AllocationHint::On(volatile.id());
        assert_eq!(home(on, Durability::Replicated(1)), Err(ErrorCode::NoState));
    }
    // What was fenced is in the file when the memory of the copies is gone.
    let mut session = volatile.session().unwrap();
    let spec = AllocationSpec::default().durability(Durability::Replicated(2));
    let words = session.alloc_with(4096, spec).unwrap();
    session.write_u64(words, 7).unwrap();
    session.fence().unwrap();
    both.leave().unwrap();
    drop((one, other));
    let (one, other) = (lend(), lend());
    let copies = [one.address(), &file_address, other.address()].map(str::to_owned).to_vec();
    let kept = kept.state_copies(copies).state_copies_min(Some(1));
    let both = Node::join(&kept).unwrap();
    assert_eq!(session.read_u64(words).unwrap(), 7);
    assert_eq!(Some(words.memory()), both.memory());
}

#[test]
fn copies_with_too_little_room_are_refused() {
    let options = LendOptions::default().exclusive(true);
    let fabric = process_fabric("shm", None);
    let least = config("room", None).copy_bytes().unwrap();
    let lend = |bytes| MemoryServer::lend(&fabric, &unique_name("copy"), bytes, &options).unwrap();
    let (small, enough) = (lend(least - 4096), lend(least));
    let kept = config("room", None).state_copies(vec![enough.address().to_owned()]);
    Node::create(&kept).unwrap().leave().unwrap();
    let kept = config("room", None).state_copies(vec![small.address().to_owned()]);
    let error = Node::create(&kept).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadConfiguration, "{error}");
    assert!(error.detail.contains("are needed"), "{error}");
}

/// Programs that are killed while they own lines lose none of them, and nothing that they had fenced.
#[test]
fn killed_program_loses_nothing_that_it_had_fenced() {
    let folder = StateFolder::new("programs");
    let kept = config("programs", Some(&folder.0));
    let home = Node::create(&kept).unwrap();
    let mut session = home.session().unwrap();
    let words = session.alloc(4096).unwrap();
    let mut random = Random::new(6);
    let mut fenced = 0;
    for _ in 0..12 {
        let role = format!("program shm {} {:x}", kept.cluster, words.to_bits());
        let mut program = Process::child(&role);
        for _ in 0..1 + random.below(40) {
            fenced = program.hear("fenced ").parse().unwrap();
        }
        program.kill();
        let found = session.read_u64(words).unwrap();
        assert!(found >= fenced, "{found}, and {fenced} were fenced");
        let other = session.read_u64(words.checked_add(1_024).unwrap()).unwrap();
        assert!(other >= fenced, "{other}, and {fenced} were fenced");
    }
}

/// Adds one to the word at the first parameter, and returns what it was.
const ADD: &str = "
.program add
    r1 = *(u64 *)(r1 + 0)
    r2 = 1
    call global_fetch_add
    exit
";

/// A call that only hits a line that its node has written ends when that is durable: what it has answered is there when the
/// home was killed.
#[test]
fn answers_of_calls_are_durable() {
    let folder = StateFolder::new("calls");
    let config = Config::new(unique_name("calls")).memory_bytes(0).cache_bytes(1 << 20);
    let founder = Node::create(&config).unwrap();
    let place = format!("folder {}", folder.0.display());
    let role = home_role("shm", &founder, &config, &place);
    let mut home = Process::child(&role);
    home.hear("ready");
    let mut session = founder.session().unwrap();
    let logged = AllocationSpec::default().durability(Durability::Logged);
    let word = session.alloc_with(8, logged).unwrap();
    let (fabric, at) = (process_fabric("shm", None), unique_name("calls-at"));
    let mut server = CallServer::listen(&fabric, &at, &ServerOptions::default()).unwrap();
    server.share(&founder).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let server = scope.spawn(|| server.serve(&stop));
        let work = scope.spawn(|| -> Result<u64, Error> {
            let mut caller = Caller::connect(&fabric, &at, &CallerOptions::default())?;
            let add = caller.register(ADD.as_bytes())?.remove(0);
            let options = || CallOptions::new().site(Site::Remote).timeout(WATCHDOG);
            for round in 0..6_u64 {
                for count in 0..8 {
                    let before = 2 * (8 * round + count);
                    assert_eq!(session.fetch_add(word, 1)?, before);
                    let answer = caller.call(&add, &word.to_bits().to_le_bytes(), options())?;
                    assert_eq!(answer.result, before + 1);
                }
                home.kill();
                home = Process::child(&role);
                home.hear("ready");
            }
            session.read_u64(word)
        });
        let found = work.join();
        stop.store(true, Ordering::Release);
        drop(server);
        assert_eq!(found.expect("no failed assertion").unwrap(), 96);
    });
}

/// All nodes are killed at once, and started again in another order.
#[test]
fn cluster_returns_from_its_state() {
    let folders = [StateFolder::new("first"), StateFolder::new("second")];
    let name = unique_name("all");
    let role = |verb: &str, folder: &StateFolder| {
        format!("{verb} shm {name} - folder {}", folder.0.display())
    };
    let mut first = Process::child(&role("founds", &folders[0]));
    first.hear("ready");
    let mut second = Process::child(&role("home", &folders[1]));
    second.hear("ready");
    let config = Config::new(&name).memory_bytes(0).cache_bytes(1 << 20);
    let homes = {
        let node = Node::join(&config).unwrap();
        let mut session = node.session().unwrap();
        let homes: Vec<_> = node.members().iter().map(|member| member.node).collect();
        let homes: Vec<_> = homes.into_iter().filter(|home| *home != node.id()).collect();
        for (home, root) in homes.iter().zip(["one", "two"]) {
            let hint = AllocationHint::On(*home);
            let spec = AllocationSpec::default().hint(hint).durability(Durability::Logged);
            let words = session.alloc_with(4096, spec).unwrap();
            session.write(words, root.as_bytes()).unwrap();
            session.publish_root(root, words, 4096).unwrap();
        }
        session.fence().unwrap();
        homes
    };
    first.kill();
    second.kill();
    let mut second = Process::child(&role("founds", &folders[1]));
    second.hear("ready");
    let mut first = Process::child(&role("home", &folders[0]));
    first.hear("ready");
    let node = Node::join(&config).unwrap();
    let mut session = node.session().unwrap();
    for (home, name) in homes.iter().zip(["one", "two"]) {
        let root = session.root(name).unwrap();
        assert_eq!(root.address.home(), *home);
        let mut out = [0; 3];
        session.read(root.address, &mut out).unwrap();
        assert_eq!(out, name.as_bytes());
    }
}

/// A state is of one cluster and one size of memory, from its first start on.
#[test]
fn state_of_another_memory_is_refused() {
    let folder = StateFolder::new("foreign");
    let own = config("foreign", Some(&folder.0));
    Node::create(&own).unwrap().leave().unwrap();
    let code = |config: &Config| Node::create(config).unwrap_err().code;
    assert_eq!(code(&own.clone().memory_bytes(8 << 20)), ErrorCode::StateForeign);
    assert_eq!(code(&config("stranger", Some(&folder.0))), ErrorCode::StateForeign);
    assert_eq!(code(&own.clone().memory_bytes(0)), ErrorCode::BadConfiguration);
    let both = own.clone().state_copies(vec!["a".to_owned()]);
    assert_eq!(code(&both), ErrorCode::BadConfiguration);
    // This folder is on a disk or a file system in memory; what it has is kept.
    assert_eq!(code(&own.clone().persistent_memory(true)), ErrorCode::BadConfiguration);
    let no_folder = Config::new("none").persistent_memory(true);
    assert_eq!(code(&no_folder), ErrorCode::BadConfiguration);
    let node = Node::create(&own).unwrap();
    assert_eq!(code(&config("foreign-second", Some(&folder.0))), ErrorCode::StateInUse);
    drop(node);
    Node::create(&own).unwrap().leave().unwrap();
}

#[test]
fn child() {
    let Some(words) = role() else { return };
    let config = Config::new(&words[2]).memory_bytes(4 << 20).cache_bytes(1 << 20);
    if words[0] == "program" {
        let node = Node::join(&config.memory_bytes(0)).unwrap();
        let mut session = node.session().unwrap();
        let bits = u64::from_str_radix(&words[3], 16).unwrap();
        let word = GlobalAddress::from_bits(bits).unwrap();
        loop {
            let number = session.fetch_add(word, 1).unwrap() + 1;
            session.write_u64(word.checked_add(1_024).unwrap(), number).unwrap();
            session.fence().unwrap();
            say(&format!("fenced {number}"));
        }
    }
    let fabric = process_fabric(&words[1], words[3].parse().ok());
    let config = match words[4].as_str() {
        "folder" => config.state(Some(PathBuf::from(&words[5]))),
        _ => config.state_copies(words[5..].to_vec()),
    };
    // The state may be in use, and the number not settled, until the end of the last life is known.
    let open = || match words[0].as_str() {
        "founds" => Node::create_on(&config, fabric.clone()),
        _ => Node::join_on(&config, fabric.clone()),
    };
    let node = loop {
        match open() {
            Err(error) if error.code.entry().retry == farside::Retry::Later => {
                std::thread::yield_now()
            }
            node => break node.unwrap(),
        }
    };
    say("ready");
    await_parent();
    drop(node);
}
